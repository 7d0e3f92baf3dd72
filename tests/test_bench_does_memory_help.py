"""Does memory help? Equal rows and weights, pairs of errors, and ties that are called ties; here on made-up rows."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from txl_ts.bench import does_memory_help as bench
from txl_ts.bench.report import markdown
from txl_ts.errors import FrameError, ParameterError

TINY = {"d_model": 8, "n_heads": 2, "n_layers": 1, "max_epochs": 1, "quantiles": (0.5,), "batch_size": 8}
LENGTHS = {"season_length": 6, "patch_len": 6, "stride": 6, "mem_len": 2, "lookback": 24, "half_life": 42}


def rows(data):
    t, rng = np.arange(260), np.random.default_rng(0)
    parts = [
        pd.DataFrame(
            {"unique_id": name, "ds": t, "y": np.sin(t * 2 * np.pi / 6 + i) * (i + 1) + rng.normal(size=260) / 5}
        )
        for i, name in enumerate(["b", "a"])
    ]
    return bench.in_deviations(pd.concat(parts, ignore_index=True), n_judged=40)


CASE = bench.Case("waves", 1, 3, rows, 30, {**TINY, **LENGTHS})


def test_variants_differ_in_their_memory_alone():
    carried, reset, off, patch = bench.variants_of(CASE)
    assert CASE.reach == 1 * 2 * 6 + 5
    assert reset.params == {**carried.params, "carry_memory": False}
    assert off.params == {**carried.params, "mem_len": 0}
    assert patch.params == {**off.params, "patch_len": 17}


@pytest.mark.parametrize("case", bench.CASES, ids=lambda case: case.name)
def test_every_set_gives_the_variant_without_memory_as_long_a_look_back(case):
    assert case.params["lookback"] >= case.reach
    assert bench.variants_of(case)[2].params["lookback"] == case.params["lookback"]  # so weights are equal


def test_series_are_in_deviations_of_the_rows_before_those_that_are_judged():
    made = rows(None)
    count = made.frame.groupby("unique_id").cumcount(ascending=False)
    fitted = made.frame[count >= 40].groupby("unique_id")["y"]
    np.testing.assert_allclose(fitted.mean(), 0, atol=1e-12)
    np.testing.assert_allclose(fitted.std(ddof=0), 1)


def test_errors_are_those_of_the_backtest_by_series_and_origin():
    carried = bench.variants_of(CASE)[0]
    scores, errors = bench.fit_and_walk(CASE, rows(None), variant=carried, seed=0)
    assert errors.shape == (2, 38)
    model = carried.make(h=3, freq=1, random_state=0)
    frame = rows(None).frame
    count = frame.groupby("unique_id").cumcount(ascending=False)
    model.fit(frame[count >= 40], val_size=30)
    found = model.cross_validation(frame, n_windows=38, use_fitted=True)
    found["error"] = (found["TXL"] - found["y"]).abs()
    expected = found.groupby(["unique_id", "cutoff"])["error"].mean().unstack().to_numpy()
    # float32 forecasts.
    np.testing.assert_allclose(np.sort(errors.mean(axis=1)), np.sort(expected.mean(axis=1)), rtol=1e-5)
    assert scores["test_mae"] == pytest.approx(expected.mean(), rel=1e-5)


def interval(differences):
    """Of differences (seeds, series, origins)."""
    sums, sizes = zip(*(bench.by_blocks(one) for one in differences), strict=True)
    return bench.paired_interval(np.stack(sums), sizes[0])


def test_the_interval_of_independent_differences_is_that_of_students_t():
    d = np.random.default_rng(0).normal(0.3, 1, (1, 1, 40))
    mean, half = interval(d)
    assert mean == pytest.approx(d.mean())
    assert half == pytest.approx(2.0227 * d.std(ddof=1) / np.sqrt(40), rel=1e-4)


def test_the_interval_holds_the_truth_about_as_often_as_it_says_and_widens_with_the_seeds():
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        d = rng.normal(0, 1, (3, 2, 80)) + rng.normal(0, 0.2, (3, 1, 1)) + rng.normal(0, 0.5, (1, 1, 80))
        mean, half = interval(d)
        held += abs(mean) <= half
    assert held >= 188  # 95 % of 200 less a deviation; with three seeds it is wide
    calm = interval(np.ones((3, 2, 80)) + rng.normal(0, 1e-3, (3, 2, 80)))
    assert calm[0] == pytest.approx(1, abs=0.01)
    assert calm[1] < 0.01


def test_missing_differences_count_for_nothing_and_few_origins_make_blocks_of_series():
    d = np.full((2, 30, 1), 0.5)
    d[:, 4] = np.nan
    mean, half = interval(d)
    assert mean == pytest.approx(0.5)
    assert half == pytest.approx(0, abs=1e-9)


CHOICES = ({"learning_rate": 1e-3}, {"learning_rate": 1e-2})


def test_the_table_names_a_verdict_for_each_variant_and_validation_chooses(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "CASES", (CASE,))
    table = bench.run(".", seeds=(0,), choices=CHOICES, kept=tmp_path)
    assert [row["model"] for row in table["rows"]] == [variant.name for variant in bench.variants_of(CASE)]
    assert "verdict" not in table["rows"][0]
    assert {row["verdict"] for row in table["rows"][1:]} <= {"helps", "tie", "hurts"}
    lines = (tmp_path / "does_memory_help.fits.jsonl").read_text().splitlines()
    fits = [json.loads(line)["found"] for line in lines]
    assert len(fits) == 4 * 2
    for row in table["rows"]:
        tried = [fit for fit in fits if fit["model"] == row["model"]]
        assert row["validation_mae"] == min(fit["validation_mae"] for fit in tried)
    assert "| waves | TXL, memory off |" in markdown(table)


def test_a_stopped_run_goes_on_and_the_table_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "CASES", (CASE,))
    walk, n_fitted = bench.fit_and_walk, 0

    def stopping(*args, **settings):
        nonlocal n_fitted
        n_fitted += 1
        if n_fitted == 3:
            raise KeyboardInterrupt
        return walk(*args, **settings)

    monkeypatch.setattr(bench, "fit_and_walk", stopping)
    how = {"seeds": (0,), "choices": CHOICES[:1], "kept": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        bench.run(".", **how)
    part = bench.run(".", from_kept=True, **how)
    assert [row["model"] for row in part["rows"]] == ["TXL", "TXL, memory reset"]
    assert part["notes"][-1] == "2 of 4 fits are missing; seeds are counted per row."
    whole = bench.run(".", **how)
    assert n_fitted == 5
    assert whole["rows"][:2] == part["rows"]


def test_what_is_not_there_is_said():
    with pytest.raises(ParameterError, match=r"sets=\['ETTh3'\] are not known. Choose among \['ETTh2'"):
        bench.run(".", sets=("ETTh3",))
    with pytest.raises(FrameError, match="is not there"):
        bench.run("no-such-folder", sets=("SKAB",))


@pytest.mark.parametrize("case", bench.CASES, ids=lambda case: case.name)
def test_real_sets_are_read_in_deviations(case, shared_data):
    made = case.read(shared_data)
    count = made.frame.groupby("unique_id", sort=False).cumcount(ascending=False)
    fitted = made.frame[count >= made.n_judged]
    deviations = fitted.groupby("unique_id")["y"].std(ddof=0)
    np.testing.assert_allclose(deviations[deviations > 0], 1, rtol=1e-6)
    assert made.frame.groupby("unique_id").size().min() > made.n_judged + case.val_size
    assert replace(case, name="x").reach == case.reach
