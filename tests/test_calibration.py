"""P-values hold on normal rows, budgets are kept or refused, and rows that resemble their neighbours count for less."""

import json
import math
import re
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.signal import lfilter

from txl_ts.calibration import (
    Budget,
    Calibration,
    effective_size,
    exceedance_band,
    fit_gpd,
    gpd_excess,
    gpd_survival,
    held_out_blocks,
    integrated_time,
)
from txl_ts.errors import DependentRowsWarning, ParameterError, ShapeError, StateError, TailWarning


def normal(n, seed=0):
    return np.abs(np.random.default_rng(seed).normal(size=n))


def autoregressive(n, rho, seed=0):
    noise = np.random.default_rng(seed).normal(size=n)
    return np.abs(lfilter([math.sqrt(1 - rho * rho)], [1, -rho], noise))


# ----------------------------------------------------------------------------------------------------------- p-values


@given(st.lists(st.floats(0, 10), min_size=19, max_size=60), st.floats(-1, 11))
def test_a_p_value_counts_the_calibration_scores_that_are_as_high(scores, score):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DependentRowsWarning)  # scores may all be equal
        calibration = Calibration(scores, contamination=0.1)
    wanted = (1 + sum(one >= score for one in scores)) / (len(scores) + 1)
    assert calibration.p_value(score) == pytest.approx(wanted)
    assert (calibration.p_value(score) <= calibration.alpha + 1e-12) == (score >= calibration.threshold)


def test_a_score_that_is_not_there_has_no_p_value():
    calibration = Calibration(normal(99), contamination=0.1)
    p, has_drifted, state = calibration.step(math.nan, calibration.open())
    assert math.isnan(p)
    assert not has_drifted
    assert json.dumps(state) == json.dumps(calibration.open())
    assert math.isnan(calibration.p_value(math.nan))


def test_exceedances_over_a_million_normal_rows_lie_in_the_band_of_the_calibration_size():
    # 20 processes each; the band covers 99 %: one of 20 outside has probability .18, three .001.
    for n in (9_999, 99_999):
        low, high = exceedance_band(n_calibration=n, alpha=1e-4, n_rows=1_000_000)
        inside = 0
        for seed in range(20):
            rng = np.random.default_rng([n, seed])
            calibration = Calibration(np.abs(rng.normal(size=n)), contamination=1e-4)
            above = np.count_nonzero(np.abs(rng.normal(size=1_000_000)) >= calibration.threshold)
            inside += low <= above <= high
        assert inside >= 18, f"n={n}: {inside} of 20 in {low}..{high}"


@pytest.mark.parametrize(("n", "alpha", "m"), [(999, 0.01, 5000), (9_999, 1e-4, 100_000), (199, 0.3, 50)])
def test_the_band_is_the_beta_binomial_of_scipy(n, alpha, m):
    k = int(alpha * (n + 1) + 1e-9)
    law = stats.betabinom(m, k, n + 1 - k)
    low, high = exceedance_band(n_calibration=n, alpha=alpha, n_rows=m, level=0.95)
    assert (low, high) == (int(law.ppf(0.025)), int(law.ppf(0.975)))


def test_with_one_alarm_allowed_the_plain_expectation_is_met_only_sometimes():
    low, high = exceedance_band(n_calibration=9_999, alpha=1e-4, n_rows=1_000_000)
    assert low < 2
    assert high > 500  # 100 are expected: the level itself is that uncertain


# ------------------------------------------------------------------------------------------------------------- budgets


def test_a_hundredth_of_a_percent_needs_9999_rows_or_the_tail():
    with pytest.raises(ParameterError, match=r"α = 0\.0001 need 9,999 held-out rows, got 9,998: .* tail='gpd'"):
        Calibration(normal(9_998), contamination=1e-4)
    assert Calibration(normal(9_999), contamination=1e-4).alpha == 1e-4
    with pytest.warns(TailWarning, match="the level comes from a fitted tail of shape"):
        Calibration(normal(2_000), contamination=1e-4, tail="gpd")


def test_rows_that_resemble_their_neighbours_too_much_for_a_budget_are_warned_of():
    with pytest.warns(DependentRowsWarning, match=r"9,999 calibration rows .* as much as \d\d\d? independent ones"):
        Calibration(autoregressive(9_999, 0.99), contamination=1e-3)


def test_a_tail_within_what_was_seen_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Calibration(normal(2_000), contamination=0.001, tail="gpd")


def test_a_rate_in_time_becomes_a_share_of_rows():
    assert Budget(false_alarms="1 per 30d").alpha(step="1s") == pytest.approx(1 / 2_592_000)
    assert Budget(false_alarms="2 per h").alpha(step="1min") == pytest.approx(2 / 60)
    fleet = Budget(false_alarms="1 per 30d", per="fleet", n_streams=10_000)
    assert fleet.alpha(step="1s") == pytest.approx(1 / 2_592_000 / 10_000)
    # One per 30 days of each of 10,000 streams are 333 a day.
    assert 10_000 * Budget(false_alarms="1 per 30d").alpha(step="1s") * 86_400 == pytest.approx(333, abs=1)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Budget(), "give exactly one of them"),
        (lambda: Budget(contamination=0.1, false_alarms="1 per d"), "give exactly one of them"),
        (lambda: Budget(contamination=0.7), "contamination=0.7 (float) must be a number"),
        (lambda: Budget(contamination=0.1, per="site"), "per='site' is not known"),
        (lambda: Budget(false_alarms="few"), "must be a number in a time, such as '1 per 30d'"),
        (lambda: Budget(false_alarms="0 per 30d"), "must be a number in a time"),
        (lambda: Budget(false_alarms="9 per s").alpha(step="1min"), "above a half nothing is unusual"),
        (lambda: Calibration(normal(99), false_alarms="1 per h"), "give step='1min'"),
        (
            lambda: Calibration(normal(99), contamination=0.1, tail="gpd"),
            "needs 50 there, got 9 from 99 rows. Give 500",
        ),
        (lambda: Calibration(normal(999), contamination=0.1, tail="gpd", online=True), "Take one of them"),
        (lambda: Calibration([], contamination=0.1), "need 9 held-out rows, got 0"),
        (lambda: fit_gpd(np.ones(60)), "finite excesses of at least 0 that vary"),
    ],
)
def test_a_budget_or_calibration_that_cannot_work_is_refused(make, text):
    with pytest.raises(ParameterError, match=re.escape(text)):
        make()


# ---------------------------------------------------------------------------------------------------------------- tail


@pytest.mark.parametrize("shape", [-0.2, 0.0, 0.1, 0.3])
def test_the_fitted_tail_is_about_that_of_scipys_likelihood(shape):
    x = stats.genpareto.rvs(shape, scale=2.0, size=20_000, random_state=1)
    mine = fit_gpd(x)
    theirs, _, scale = stats.genpareto.fit(x, floc=0)
    assert mine[0] == pytest.approx(theirs, abs=0.03)  # two estimators; each is off by .01 at this size
    assert mine[1] == pytest.approx(scale, rel=0.03)


@pytest.mark.parametrize("shape", [-0.1, 0.0, 0.2])
def test_the_tails_survival_is_scipys_and_its_excess_the_inverse(shape):
    x = np.linspace(0, 9, 50)
    survival = gpd_survival(x, shape=shape, scale=1.5)
    np.testing.assert_allclose(survival, stats.genpareto.sf(x, shape, scale=1.5), rtol=1e-12)
    found = [gpd_excess(one, shape=shape, scale=1.5) for one in survival]
    np.testing.assert_allclose(found, x, rtol=1e-9, atol=1e-12)


@given(st.floats(-0.5, 0.5), st.floats(0.1, 10), st.floats(-50, -0.1))
def test_a_tail_falls_without_an_end_whatever_its_shape(shape, scale, log_survival):
    x = np.linspace(0, 100 * scale, 400)
    p = gpd_survival(x, shape=shape, scale=scale)
    assert (np.diff(p) <= 0).all()
    if shape < -0.01:  # where the law itself has ended
        assert gpd_survival(-1.01 * scale / shape, shape=shape, scale=scale) > 0
    excess = gpd_excess(math.exp(log_survival), shape=shape, scale=scale)
    assert gpd_survival(excess, shape=shape, scale=scale) == pytest.approx(math.exp(log_survival), rel=1e-6)


def test_the_tail_joins_the_counted_p_values_and_falls_without_end():
    calibration = Calibration(normal(5000), contamination=0.01, tail="gpd")
    p = calibration.p_values(np.linspace(0, 1e6, 100_000))
    assert (np.diff(p) <= 1e-12).all()
    assert p[-1] > 0
    assert calibration.p_value(calibration.threshold) == pytest.approx(0.01)


def test_a_budget_from_the_tail_is_about_right_but_ten_times_off_now_and_then():
    shares = []
    for seed in range(20):
        with pytest.warns(TailWarning):
            calibration = Calibration(normal(2_000, seed), contamination=1e-4, tail="gpd")
        shares.append(2 * stats.norm.sf(calibration.threshold) / 1e-4)
    assert 0.5 < np.median(shares) < 3
    assert np.quantile(shares, 0.9) < 10


# ---------------------------------------------------------------------------------------------------------- dependence


def test_independent_scores_count_in_full_and_clumped_ones_for_less():
    assert integrated_time(normal(20_000)) == pytest.approx(1, abs=0.15)
    slow = integrated_time(autoregressive(20_000, 0.95))
    assert slow > 5
    assert effective_size(autoregressive(20_000, 0.95)) == pytest.approx(20_000 / slow)


def test_the_integrated_time_is_that_of_a_chain_whose_answer_is_known():
    # High for a tenth of the time, in runs: a chain of two states with eigenvalue .8 has 1 + 2·.8/.2 = 9.
    rng, state, states = np.random.default_rng(0), 0, []
    for u in rng.random(200_000):
        state = u < (0.82 if state else 0.02)
        states.append(state)
    x = np.array(states, float) + 1e-6 * rng.random(200_000)
    assert integrated_time(x) == pytest.approx(9, rel=0.15)


def test_rows_without_a_score_take_part_in_nothing():
    x = autoregressive(20_000, 0.9)
    y = x.copy()
    y[::7] = np.nan
    assert integrated_time(y) == pytest.approx(integrated_time(x), rel=0.2)
    assert Calibration(y, contamination=0.01).n == np.isfinite(y).sum()


def test_constant_scores_tell_as_much_as_one():
    assert effective_size(np.ones(100)) == 1
    with pytest.raises(ShapeError, match="must be of shape"):
        effective_size(np.ones((3, 2)))


def test_clumped_scores_widen_the_band_of_expected_alarms():
    independent = Calibration(normal(20_000), contamination=0.001).expected_alarms(100_000)
    clumped = Calibration(autoregressive(20_000, 0.95), contamination=0.001).expected_alarms(100_000)
    assert clumped[0] < independent[0] < 100 < independent[1] < clumped[1]


@given(st.integers(1, 500), st.integers(1, 40), st.floats(0.05, 0.9), st.integers(0, 10))
def test_held_out_blocks_have_their_share_and_nobody_is_both_near_and_used(n, block_len, share, gap):
    part = held_out_blocks(n, block_len=block_len, share=share, gap=gap)
    assert part.shape == (n,)
    n_blocks = math.ceil(n / block_len)
    held = {i // block_len for i in np.flatnonzero(part == 1)}
    assert abs(len(held) - share * n_blocks) <= 1
    train = np.flatnonzero(part == 0)
    for i in np.flatnonzero(part == 1):
        assert not (np.abs(train - i) <= gap).any()


# ----------------------------------------------------------------------------------------------------------- over time


def run(calibration, scores, state=None):
    state, p = calibration.open() if state is None else state, []
    for score in scores:
        one, _, state = calibration.step(float(score), state)
        p.append(one)
    return np.array(p), state


def test_steps_give_the_p_values_of_the_table_while_nothing_is_learned():
    calibration = Calibration(normal(999), contamination=0.01)
    scores = normal(300, seed=1)
    p, _ = run(calibration, scores)
    np.testing.assert_array_equal(p, calibration.p_values(scores))


def test_an_online_calibration_keeps_its_rate_where_leaving_out_alarms_alone_would_let_it_creep():
    calibration = Calibration(normal(499), contamination=0.02, online=True)
    rates = []
    for seed in range(4):
        p, _ = run(calibration, normal(20_000, seed=10 + seed))  # the table is replaced forty times
        rates.append((p[10_000:] <= calibration.alpha).mean())
    assert 0.7 < np.mean(rates) / 0.02 < 1.4


def test_an_online_calibration_follows_scores_that_become_smaller():
    calibration = Calibration(normal(499), contamination=0.02, online=True)
    p, _ = run(calibration, normal(5_000, seed=1) / 10)
    assert (p[:100] <= 0.5).mean() < 0.05
    assert (p[-500:] <= 0.5).mean() > 0.35


def test_an_online_calibration_does_not_get_used_to_a_long_anomaly():
    calibration = Calibration(normal(499), contamination=0.02, online=True)
    _, state = run(calibration, normal(200, seed=1))
    p, after = run(calibration, np.full(2000, 50.0), state)
    assert p.max() <= calibration.alpha
    assert np.count_nonzero(after["ring"] != state["ring"]) <= 3
    assert after["ring"].max() < 6


def test_a_state_continues_the_same_and_a_step_changes_none():
    calibration = Calibration(normal(199), contamination=0.05, online=True)
    scores = normal(300, seed=2)
    whole, _ = run(calibration, scores)
    first, state = run(calibration, scores[:100])
    kept = {**state, "ring": state["ring"].copy()}
    second, _ = run(calibration, scores[100:], state)
    np.testing.assert_array_equal(np.concatenate([first, second]), whole)
    np.testing.assert_array_equal(state["ring"], kept["ring"])


def test_a_false_alarm_that_is_learned_makes_its_like_less_unusual():
    for more in ({"online": True}, {}, {"tail": "gpd"}):
        calibration = Calibration(normal(999), contamination=0.01, **more)
        state = calibration.open()
        before, _, _ = calibration.step(4.0, state)
        after, _, _ = calibration.step(4.0, calibration.learn([4.5] * 20 + [math.nan], state))
        assert after > before
        assert after >= 20 / 1020


def test_drift_is_seen_and_steady_scores_are_not_called_so():
    calibration = Calibration(normal(2000), contamination=0.01)

    def first_drift(scores):
        state = calibration.open()
        for i, score in enumerate(scores):
            _, has_drifted, state = calibration.step(float(score), state)
            if has_drifted:
                return i
        return None

    assert first_drift(normal(20_000, seed=3)) is None
    found = first_drift(np.concatenate([normal(2000, seed=4), 1.5 * normal(2000, seed=5)]))
    assert found is not None
    assert 2000 < found < 2600


def test_a_pooled_start_serves_a_new_asset_and_is_replaced_by_its_own_rows():
    assets = [scale * normal(200, seed) for seed, scale in enumerate([1, 2, 3])]
    calibration = Calibration(assets, contamination=0.02, online=True)
    assert calibration.n == 600
    own = 0.5 * normal(3000, seed=9)
    p, state = run(calibration, own)
    assert np.median(p[:200]) > 0.7  # a calm asset among others
    assert np.median(p[-500:]) == pytest.approx(0.5, abs=0.1)
    assert np.quantile(state["ring"], 0.9) == pytest.approx(np.quantile(own, 0.9), rel=0.25)


def test_a_recalibration_keeps_the_budget_and_refuses_the_old_state():
    calibration = Calibration(normal(999), step="15min", false_alarms="1 per d", online=True)
    again = calibration.recalibrated(7 * normal(1999, seed=1))
    assert again.alpha == calibration.alpha
    assert again.threshold > 3 * calibration.threshold
    with pytest.raises(StateError, match="scores of two models do not compare"):
        again.step(1.0, calibration.open())
