"""The scores of the anomaly benchmarks, against slow oracles and against published numbers."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import IsolationForest
from sklearn.metrics import average_precision_score

from tests.oracles import nab_sweep, range_volume
from txl_ts.bench.anomaly_scores import auc_pr, count, period, vus_pr
from txl_ts.bench.nab_scorer import PROFILES, Corpus, label_rows, n_probation
from txl_ts.errors import ParameterError, ShapeError

# --------------------------------------------------------------------------------------------------------------- NAB


def a_file(n, windows, *, seed):
    times = [f"2014-01-01 {i // 60:02}:{i % 60:02}:00" for i in range(n)]
    edges = [(times[first], times[last]) for first, last in windows]
    return times, edges, np.random.default_rng(seed).random(n).round(2)  # ties among the scores


@pytest.fixture
def two_files():
    """One of two windows, one whose window begins right after the probation of 30 rows."""
    return [a_file(120, [(30, 38), (70, 90)], seed=1), a_file(200, [(30, 60)], seed=2)]


@pytest.mark.parametrize("profile", PROFILES)
def test_every_threshold_of_a_corpus_scores_as_row_by_row(two_files, profile):
    corpus = Corpus([label_rows(times, windows) for times, windows, _ in two_files])
    weights = PROFILES[profile]
    found = corpus.sweep([scores for *_, scores in two_files], profile=profile)
    assert len(found) > 90  # none at all, and two decimals of what is not in the probation
    for point in found[::7]:
        raw = sum(
            nab_sweep.score(times, windows, scores >= point.threshold, **weights._asdict())
            for times, windows, scores in two_files
        )
        wanted = nab_sweep.normalised(raw, 3, tp=weights.tp, fn=weights.fn)
        assert point.score == pytest.approx(wanted, abs=1e-9)


def test_one_alarm_at_the_left_edge_of_each_window_is_worth_100_and_none_0(two_files):
    corpus = Corpus([label_rows(times, windows) for times, windows, _ in two_files])
    alarms = [np.isin(times, [first for first, _ in windows]) for times, windows, _ in two_files]
    assert corpus.at(alarms).score == pytest.approx(100)
    assert corpus.at([np.zeros(len(one), bool) for one in alarms]).score == 0


def test_alarms_in_the_probation_neither_earn_nor_cost(two_files):
    corpus = Corpus([label_rows(times, windows) for times, windows, _ in two_files])
    alarms = [np.arange(len(times)) < n_probation(len(times)) for times, *_ in two_files]
    assert corpus.at(alarms) == (np.inf, 0.0, 0, 0)


def test_rows_without_a_score_never_alarm(two_files):
    corpus = Corpus([label_rows(times, windows) for times, windows, _ in two_files])
    scores = [np.where(scores < 0.9, np.nan, scores) for *_, scores in two_files]
    whole = corpus.sweep([scores for *_, scores in two_files])
    assert corpus.sweep(scores) == [point for point in whole if point.threshold >= 0.9]


def test_a_limit_on_false_alarms_takes_the_best_threshold_within_it(two_files):
    corpus = Corpus([label_rows(times, windows) for times, windows, _ in two_files])
    scores = [scores for *_, scores in two_files]
    best = corpus.best(scores, most_false=3)
    assert best.n_false <= 3
    assert best.score == max(point.score for point in corpus.sweep(scores) if point.n_false <= 3)


def test_a_window_that_is_not_in_the_file_is_refused():
    with pytest.raises(ShapeError, match="2015-01-01 00:00:00, which is no row of the file"):
        label_rows(["2014-01-01 00:00:00"], [("2015-01-01 00:00:00", "2015-01-01 00:00:00")])


def test_scores_of_another_length_are_refused(two_files):
    corpus = Corpus([label_rows(times, windows) for times, windows, _ in two_files])
    with pytest.raises(ShapeError, match="one score per row"):
        corpus.sweep([np.zeros(120), np.zeros(199)])


# -------------------------------------------------------------------------------------------------- ranges and counts


@pytest.fixture
def ranges():
    """Four ranges, the first two of them close to each other, one at the very end; scores with ties."""
    y = np.zeros(90, int)
    for first, last in ((12, 14), (18, 18), (40, 52), (86, 89)):
        y[first : last + 1] = 1
    return y, (0.5 * y + np.random.default_rng(0).random(90)).round(1)


@pytest.mark.parametrize("window", [0, 1, 7, 20])
def test_vus_pr_equals_threshold_by_threshold_and_row_by_row(ranges, window):
    y, scores = ranges
    wanted = range_volume.volume(y.tolist(), scores.tolist(), window=window)
    assert vus_pr(y, scores, window=window) == pytest.approx(wanted, rel=1e-12)


def test_auc_pr_is_scikit_learns_average_precision(ranges):
    assert auc_pr(*ranges) == pytest.approx(average_precision_score(*ranges), rel=1e-12)


def test_f1_and_both_error_rates_count_rows_as_they_are_without_any_adjustment():
    counts = count([1, 1, 1, 1, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 1, 1, 0, 0, 0, 0])
    assert counts == (1, 2, 3, 4)
    assert (counts.f1, counts.far, counts.mar) == pytest.approx((2 / 7, 2 / 6, 3 / 4))


def test_scores_that_are_not_numbers_are_refused_and_not_taken_for_0(ranges):
    y, scores = ranges
    with pytest.raises(ParameterError, match="1 scores are not finite"):
        vus_pr(y, np.where(np.arange(90) == 3, np.nan, scores), window=3)
    with pytest.raises(ParameterError, match="no row is labelled"):
        auc_pr(np.zeros(90), scores)


def test_the_period_of_a_noisy_sine_is_found_and_noise_or_a_constant_has_none():
    t = np.arange(3000)
    noise = np.random.default_rng(0).normal(size=3000)
    assert period(np.sin(t * 2 * np.pi / 48) + 0.1 * noise) == 48
    assert period(np.ones(3000)) == 125


# ------------------------------------------------------------------------------------------------- published numbers


@pytest.mark.parametrize(
    ("name", "published", "rows", "n_positive"),
    [
        ("realTraffic/TravelTime_451", 0.1752692798564999, 2161, 216),
        ("realAdExchange/exchange-3_cpm_results", 0.0826583437978543, 1537, 152),
    ],
)
def test_vus_pr_of_an_isolation_forest_is_what_tsb_ad_published(shared_data, name, published, rows, n_positive):
    frame = pd.read_csv(shared_data / "nab" / f"{name}.csv")
    time, x = pd.to_datetime(frame["timestamp"]), frame["value"].to_numpy(float)[1:, None]
    windows = json.loads((shared_data / "nab/labels/combined_windows.json").read_text())[f"{name}.csv"]
    y = np.zeros(len(frame), int)
    for first, last in windows:
        y[(time >= first) & (time < last)] = 1
    y = y[:-1]  # the benchmark's own file has its labels one step early
    assert (len(y), y.sum()) == (rows, n_positive)
    scores = -IsolationForest(n_estimators=200, random_state=0, contamination=0.1).fit(x).decision_function(x)
    # Exact with the same forest; another version of scikit-learn may draw other trees.
    assert vus_pr(y, scores, window=period(x[:, 0])) == pytest.approx(published, rel=0.02)
