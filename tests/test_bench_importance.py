"""Memory by importance beside FIFO: equal slots, exact densities, and validation that chooses; on made-up rows."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as students_t

from txl_ts.bench import importance as bench
from txl_ts.bench.does_memory_help import Case, in_deviations
from txl_ts.bench.report import markdown
from txl_ts.errors import ParameterError, ShapeError

TINY = {"d_model": 8, "n_heads": 2, "n_layers": 1, "max_epochs": 1, "segment_len": 16, "learning_rate": 1e-3}
LENGTHS = {"season_length": 6, "half_life": 42, "patch_len": 1, "stride": 1, "lookback": 1}


def rows(data):
    t, rng = np.arange(200), np.random.default_rng(0)
    parts = [
        pd.DataFrame(
            {"unique_id": name, "ds": t, "y": np.sin(t * 2 * np.pi / 6 + i) * (i + 1) + rng.normal(size=200) / 5}
        )
        for i, name in enumerate(["b", "a"])
    ]
    return in_deviations(pd.concat(parts, ignore_index=True), n_judged=40)


CASE = Case("waves", 1, 3, rows, 30, {"distribution": "student_t", "quantiles": (0.1, 0.5, 0.9), **TINY, **LENGTHS})


def fitted(variant):
    made, model = rows(None), variant.make(h=3, freq=1, random_state=0)
    count = made.frame.groupby("unique_id").cumcount(ascending=False)
    return made.frame, model.fit(made.frame[count >= 40], val_size=30)


@pytest.mark.parametrize("case", [CASE, *bench.CASES], ids=lambda case: case.name)
def test_contenders_differ_in_their_memory_alone_and_have_equal_slots(case):
    fifo, short, importance = bench.contenders(case)
    slots = importance.params["memory_params"]["n_slots"]
    assert fifo.params["mem_len"] == importance.params["mem_len"] + slots
    assert short.params == {**fifo.params, "mem_len": importance.params["mem_len"]}
    assert {k: v for k, v in importance.params.items() if k not in ("memory", "memory_params")} == short.params


@pytest.mark.parametrize("which", [0, 2], ids=["fifo", "importance"])
def test_the_nll_is_that_of_students_density_at_what_came(which):
    frame, model = fitted(bench.contenders(CASE)[which])
    nll = bench.likelihood(model, frame, n_rows=40)
    assert nll.shape == (2, 38)
    found = model.cross_validation(frame, n_windows=38, use_fitted=True, quantiles=[0.9])
    freedom = model._model.head.freedom
    scale = (found["TXL_ql0.9"] - found["TXL"]) / students_t.ppf(0.9, freedom)
    found["nll"] = -students_t.logpdf(found["y"], freedom, found["TXL"], scale)
    expected = found.groupby(["unique_id", "cutoff"])["nll"].mean().unstack()
    order = [list(expected.index).index(name) for name in model._read_more(frame, continues=False).ids]
    # Scales are read off differences of float32 quantiles.
    np.testing.assert_allclose(nll, expected.to_numpy()[order], atol=2e-5)


def test_what_did_not_come_counts_for_nothing():
    frame, model = fitted(bench.contenders(CASE)[0])
    whole = bench.likelihood(model, frame, n_rows=10)
    frame = frame.assign(y=frame["y"].where(frame.groupby("unique_id").cumcount(ascending=False) > 0))
    part = bench.likelihood(model, frame, n_rows=10)
    np.testing.assert_array_equal(part[:, :-1], whole[:, :-1])
    assert np.isfinite(part).all()
    assert (part[:, -1] != whole[:, -1]).all()


def test_series_in_pieces_are_refused():
    frame, model = fitted(bench.contenders(CASE)[0])
    with pytest.raises(ShapeError, match="2 series have 3 pieces"):
        bench.likelihood(model, frame.assign(ds=frame["ds"] + 500 * (frame.index >= 350)), n_rows=10)


def test_validation_rows_and_test_rows_do_not_meet():
    variant = bench.contenders(CASE)[2]
    scores, test = bench.fit_and_score(CASE, rows(None), variant=variant, seed=0)
    frame, model = fitted(variant)
    np.testing.assert_array_equal(test, bench.likelihood(model, frame, n_rows=40))
    before = frame[frame.groupby("unique_id").cumcount(ascending=False) >= 40]
    expected = bench.likelihood(model, before, n_rows=30).mean()
    # Calls are cut elsewhere.
    assert scores["validation_nll"] == pytest.approx(expected, abs=1e-5)
    assert scores["test_nll"] == pytest.approx(test.mean())


def test_series_that_stand_still_are_left_out_by_their_fitted_rows():
    y = {"moves": np.arange(20.0), "stands": np.arange(20) // 2, "stands later": np.minimum(np.arange(20), 12)}
    frame = pd.concat([pd.DataFrame({"unique_id": name, "y": y}) for name, y in y.items()], ignore_index=True)
    assert list(bench.moving(frame, n_judged=8)["unique_id"].unique()) == ["moves", "stands later"]


CHOICES = ({"learning_rate": 1e-3}, {"learning_rate": 1e-2})


def test_validation_chooses_and_the_table_gives_differences_with_intervals(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "CASES", (CASE,))
    table = bench.run(".", seeds=(0, 1), choices=CHOICES, kept=tmp_path)
    fifo, short, importance = table["rows"]
    assert [row["slots"] for row in table["rows"]] == ["32 + 0", "16 + 0", "16 + 16"]
    assert "difference" not in fifo
    for row in (importance, short):
        assert row["difference"] == pytest.approx(row["test_nll"] - fifo["test_nll"], abs=1e-5)
        assert row["low"] < row["difference"] < row["high"]
        is_tie = row["low"] <= 0 <= row["high"]
        assert row["verdict"] == ("tie" if is_tie else "worse" if row["difference"] > 0 else "better")
    assert importance["added"] == pytest.approx(importance["difference"] - short["difference"], abs=1e-5)
    assert importance["added_low"] < importance["added"] < importance["added_high"]
    lines = (tmp_path / "importance.fits.jsonl").read_text().splitlines()
    fits = [json.loads(line)["found"] for line in lines]
    assert len(fits) == 3 * 3
    for row in table["rows"]:
        tried = [fit for fit in fits if fit["model"] == row["model"] and fit["seed"] == 0]
        best = min(tried, key=lambda fit: fit["validation_nll"])
        assert row["learning_rate"] == best["learning_rate"]
    assert "| waves | importance |" in markdown(table)
    assert bench.run(".", seeds=(0, 1), choices=CHOICES, kept=tmp_path, from_kept=True)["rows"] == table["rows"]


def measured(case, rows, *, variant, seed, of_fifo, best_epoch):
    """Give what a fit would: importance is a quarter of a nat worse."""
    nll = np.full((2, 38), of_fifo + 0.25 * (variant.name == "importance"))
    same = dict.fromkeys(("slots", "state_nbytes", "n_parameters", "learning_rate", "train_s"), 1)
    scores = {"set": case.name, "model": variant.name, "validation_nll": 0.0, "test_nll": nll.mean()}
    return same | scores | {"best_epoch": best_epoch}, nll


@pytest.mark.parametrize(("of_fifo", "percent"), [(2.5, 10.0), (-0.5, None)])
def test_per_cent_are_given_where_the_nll_of_fifo_is_positive_alone(monkeypatch, of_fifo, percent):
    monkeypatch.setattr(bench, "CASES", (CASE,))
    monkeypatch.setattr(bench, "fit_and_score", partial(measured, of_fifo=of_fifo, best_epoch=1))
    row = bench.run(".", seeds=(0,), choices=CHOICES[:1])["rows"][2]
    assert row["difference"] == pytest.approx(0.25)
    assert row.get("difference_percent") == (percent if percent is None else pytest.approx(percent))


def test_the_table_says_how_many_fits_were_not_done_with_learning(monkeypatch):
    monkeypatch.setattr(bench, "CASES", (CASE,))
    monkeypatch.setattr(bench, "fit_and_score", partial(measured, of_fifo=1.0, best_epoch=8))
    assert "6 of 6 fits chose the last of their 8 epochs" in bench.run(".", seeds=(0, 1), choices=CHOICES)["notes"][-1]


def test_an_unknown_set_is_said():
    with pytest.raises(ParameterError, match=r"sets=\['ETTh3'\] are not known. Choose among \['ETTh2', 'SKAB'"):
        bench.run(".", sets=("ETTh3",))


@pytest.mark.parametrize("case", bench.CASES, ids=lambda case: case.name)
def test_real_sets_are_read_in_deviations(case, shared_data):
    made = case.read(shared_data)
    count = made.frame.groupby("unique_id", sort=False).cumcount(ascending=False)
    by = made.frame[count >= made.n_judged].groupby("unique_id")["y"]
    np.testing.assert_allclose(by.std(ddof=0), 1, rtol=1e-6)
    assert (by.agg(lambda y: (np.diff(y) == 0).mean()) < bench.MOST_UNCHANGED).all()
    assert made.frame.groupby("unique_id").size().min() > made.n_judged + case.val_size
    assert replace(case, name="x").params["stride"] == 1
