"""Seconds to equal errors are read off curves as is said, and the curves are of what is said."""

import numpy as np
import pandas as pd
import pytest
import torch

from txl_ts.bench import time_to_error
from txl_ts.bench.ett import N_FITTED, N_ROWS, N_TRAIN, EttSet
from txl_ts.bench.report import markdown

SMALL = time_to_error.Course(n_stretches=2, n_segments=2, n_recurrent=4, first_look=1)
LSTM, LONGER = list(time_to_error.MODELS)[1:]


@pytest.fixture
def walks(monkeypatch):
    """A set of random walks of two channels; what comes after the validation rows is not finite."""
    values = np.random.default_rng(0).normal(size=(N_ROWS, 2)).cumsum(axis=0) / 50
    values[N_FITTED:] = np.nan
    ett = EttSet(
        name="ETTh1", stamps=pd.date_range("2020", periods=N_ROWS, freq="h"), values=values, channels=("a", "b")
    )
    monkeypatch.setattr(time_to_error, "load", lambda data, *, name: ett)
    monkeypatch.setattr(time_to_error, "RIDGES", (3,))
    return ett


def test_the_table_has_a_row_per_model_beside_baselines_and_goes_on_with_the_next_seed(walks, tmp_path, monkeypatch):
    how = {"cells": (("ETTh1", 4),), "rates": (1e-3, 1e-2), "course": SMALL, "kept": tmp_path}
    table = time_to_error.run("", seeds=(0,), **how)
    assert [row["model"] for row in table["rows"]] == ["TXL", LSTM, LONGER, "last value", "ridge of 3 rows"]
    assert [len(table["practised"]), len(table["runs"])] == [6, 3]
    assert [one["n_updates"] for one in table["runs"]] == [2, 4, 2]
    assert all(np.isfinite(row["best"]) for row in table["rows"])
    assert markdown(table).count("ETTh1, width 4, CPU seconds of the faster LSTM / TXL's") == 1
    fit, fitted = time_to_error.learn, []
    monkeypatch.setattr(time_to_error, "learn", lambda *a, **how: fitted.append(how["seed"]) or fit(*a, **how))
    part = time_to_error.run("", seeds=(0, 1), from_kept=True, **how)
    assert (part["rows"], part["notes"][-1]) == (table["rows"], "3 of 12 fits are missing; seeds are counted per row.")
    assert {row["n_seeds"] for row in time_to_error.run("", seeds=(0, 1), **how)["rows"][:3]} == {2}
    assert fitted == [1, 1, 1]


def _fit(model, seed, *curve):
    about = {"set": "ETTh1", "width": 4, "model": model, "seed": seed, "rate": 1e-3, "n_parameters": 9}
    return about | {"n_updates": 8, "n_rows": 80, "train_s": 4.0, "curve": [[i, *look] for i, look in enumerate(curve)]}


def test_levels_are_those_of_the_seed_and_of_the_better_lstm():
    runs = [
        _fit("TXL", 0, (1.0, 2.0), (2.0, 1.0), (4.0, 0.5)),
        _fit(LSTM, 0, (1.0, 2.0), (2.0, 1.04), (3.0, 1.5)),
        _fit(LONGER, 0, (1.0, 3.0), (6.0, 1.0)),
        _fit("TXL", 1, (1.0, 4.0), (2.0, 3.0)),
        _fit(LSTM, 1, (5.0, 2.0)),
        _fit(LONGER, 1, (5.0, 9.0)),
    ]
    rows = {row["model"]: row for row in time_to_error._summaries(runs)}
    # Our lowest errors are .5, which no LSTM reaches, and 3.
    wanted = {
        "TXL": ("2.00 (1 of 2)", "2.00 (1 of 2)", "3.00"),
        LSTM: ("3.50", "5.00 (1 of 2)", "5.00 (1 of 2)"),
        LONGER: ("6.00 (1 of 2)", "6.00 (1 of 2)", "never"),
    }
    for model, cells in wanted.items():
        assert (rows[model]["LSTM_1.05"], rows[model]["LSTM_1"], rows[model]["TXL_1"]) == cells
    assert (rows[LSTM]["best"], rows[LSTM]["spread"], rows[LSTM]["last"]) == pytest.approx((1.52, 0.96, 1.75))
    (first, _) = time_to_error._verdicts(runs)
    assert "to 1 × an LSTM's lowest error 3.0 (3.0 to 3.0), TXL never in 1 of 2 seeds" in first
    assert "to 1 × TXL's lowest error 2.5 (2.5 to 2.5), LSTM never in 1 of 2 seeds" in first


def test_of_the_practice_seed_each_level_is_reached_at_the_fastest_rate():
    fits = [
        _fit("TXL", 100, (1.0, 1.04), (4.0, 1.0)),
        _fit("TXL", 100, (3.0, 1.01)),
        _fit(LSTM, 100, (2.0, 1.0)),
        _fit(LONGER, 100, (1.5, 1.05)),
    ]
    (note,) = time_to_error._at_any_rate(fits)
    assert note.endswith("LSTM / TXL: 1.5 to 1.05 ×, 0.7 to 1.02 ×, 0.5 to 1 × the LSTMs' lowest error.")


class LastStep:
    """Answers with the change to the newest row; its state is the row before."""

    def init_rows(self, n_lanes):
        return {"row": torch.zeros(n_lanes, 1, 1)}

    def forward_rows(self, x, state):
        return x - torch.cat([state["row"], x[:, :-1]], dim=1), {"row": x[:, -1:]}

    def eval(self):
        return self

    train = eval


def test_every_validation_row_is_judged_once_with_the_state_carried(walks):
    rows = torch.from_numpy(walks.values[:N_FITTED].T)[..., None]
    second = np.diff(walks.values[N_TRAIN - 2 : N_FITTED], n=2, axis=0)
    assert len(second) == N_FITTED - N_TRAIN
    assert time_to_error.error_on(LastStep(), rows) == pytest.approx(np.square(second).mean())


def test_looks_come_ever_later_and_once_at_the_end():
    looks = sorted(time_to_error.Course(first_look=5, look_factor=2).looks(43))
    assert looks == [5, 10, 20, 40, 43]


def test_an_lstm_has_the_weights_of_ours():
    ours, lstm = (time_to_error.count(time_to_error.make(name, 32)) for name in ("TXL", LSTM))
    assert lstm == pytest.approx(ours, rel=0.03)
