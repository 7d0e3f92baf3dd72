"""What is judged in the transfer bench, against plain numpy; and what a training step keeps, counted two ways."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from txl_ts.bench import m4, report, training_memory, transfer
from txl_ts.config import ModelConfig
from txl_ts.errors import ParameterError
from txl_ts.model import TXLModel
from txl_ts.training import adapted_weights

SMALL = {"patch_len": 4, "stride": 2, "mem_len": 3, "lookback": 8, "half_life": 24, "d_model": 8, "n_layers": 1}


@pytest.fixture(scope="module")
def series():
    t, rng = np.arange(200), np.random.default_rng(0)
    return [10 + np.sin(2 * np.pi * (t + 3 * i) / 24) + 0.2 * rng.normal(size=200) for i in range(6)]


@pytest.fixture(scope="module")
def table(series):
    pytest.importorskip("peft", reason="peft is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(m4, "load", lambda data, group: SimpleNamespace(train=series))
        how = {"sets": ("M4 Hourly",), "n_known": 3, "n_new": 2, "epochs": 1, "sizes": SMALL}
        return transfer.run("", seeds=(0,), shots=(0, 80), memory=False, **how)


def test_the_table_has_every_method_where_there_are_rows_to_train_on(table):
    found = [(row["rows"], row["model"]) for row in table["rows"]]
    tuned = ["fine-tuned, head", "fine-tuned, lora", "fine-tuned, full"]
    scratch = ["from scratch", "from scratch, linear path alone (ridge)"]
    alone = ["seasonal naive", "frozen, memory alone"]
    assert found == [(0, name) for name in alone] + [(80, name) for name in alone + tuned + scratch]
    assert all(math.isfinite(row["mase"]) for row in table["rows"])
    files = {row["model"]: row["file"] for row in table["rows"] if "file" in row}
    assert files["fine-tuned, lora"] < files["fine-tuned, full"]
    assert report.markdown(table).startswith("# Series never met")


def test_known_and_new_series_of_m4_are_never_the_same(monkeypatch, series):
    monkeypatch.setattr(m4, "load", lambda data, group: SimpleNamespace(train=series))
    known, new = transfer.SETS["M4 Hourly"]("", np.random.default_rng(3), 3, 2)
    assert (len(known), len(new)) == (3, 2)
    assert len({id(one) for one in [*known, *new]}) == 5


def test_new_series_of_ett_are_stretches_of_the_other_transformer(monkeypatch):
    n_rows = 1_000

    def load(data, *, name):
        return SimpleNamespace(values=np.arange(7.0 * n_rows).reshape(n_rows, 7) * (1 if name == "ETTh1" else -1))

    monkeypatch.setattr(transfer.ett, "load", load)
    known, new = transfer.SETS["ETT"]("", np.random.default_rng(0), 60, 5)
    assert [y.shape for y in known] == [(n_rows,)] * 7
    assert all(y[1] > 0 for y in known)
    for y in new:
        assert len(y) == 500 + transfer.N_JUDGED + 96
        np.testing.assert_array_equal(np.diff(y), -7.0)  # one column, row after row


def test_an_unknown_set_is_refused_with_those_that_there_are():
    with pytest.raises(ParameterError, match=r"sets \['M5'\] are not known\. Choose among \['M4 Hourly', 'ETT'\]"):
        transfer.run("", sets=("M5",))


def test_the_seasonal_naive_is_the_value_of_a_day_before(series):
    judged = transfer.long_frame(series[1:2], last=80 + transfer.N_JUDGED)
    said = transfer._seasonal(judged)
    assert said.shape == (1, transfer.N_JUDGED - transfer.H, transfer.H)
    y = series[1]
    for window, origin in enumerate(range(200 - transfer.N_JUDGED, 200 - transfer.H)):
        np.testing.assert_array_equal(said[0, window], y[origin - 23 : origin + 1])
    error = np.mean([np.abs(y[o + 1 : o + 25] - y[o - 23 : o + 1]).mean() for o in range(128, 176)])
    scale = np.abs(y[24:128] - y[:104]).mean()
    assert transfer._mase_of(judged, said, series[1:2]) == pytest.approx(error / scale)


def test_windows_of_a_model_stand_in_the_order_of_their_cutoffs(series):
    judged = transfer.long_frame(series[:2], last=80 + transfer.N_JUDGED)

    class Echo:
        def cross_validation(self, df, **how):
            """Every forecast is its own cutoff, and the rows come sorted by time."""
            assert how == {"n_windows": 48, "use_fitted": True}
            import pandas as pd

            rows = [
                (name, o + k, o, float(o))
                for name in ("new-000", "new-001")
                for o in range(128, 176)
                for k in range(1, 25)
            ]
            return pd.DataFrame(rows, columns=["unique_id", "ds", "cutoff", "TXL"]).sort_values(["unique_id", "ds"])

    said = transfer._said(Echo(), judged)
    assert (said == np.arange(128, 176)[None, :, None]).all()


def test_no_row_that_judges_is_trained_on(series):
    own = transfer.long_frame(series[2:3], last=80 + transfer.N_JUDGED, but=transfer.N_JUDGED)
    assert len(own) == 80
    assert own.ds.max() == 200 - transfer.N_JUDGED - 1


@pytest.fixture(scope="module")
def model():
    sizes = {"h": 2, "quantiles": (0.5,), "n_heads": 2, "d_ff": 16, **SMALL}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return TXLModel(ModelConfig(**sizes))


@pytest.mark.parametrize("method", training_memory.METHODS)
def test_gradients_take_4_bytes_of_what_is_trained_and_the_optimiser_8(model, method):
    if method == "lora":
        pytest.importorskip("peft", reason="peft is not installed")
    found = training_memory.step_bytes(training_memory.ready(model, method, rank=2))
    assert found["gradients"] == 4 * found["trained"]
    assert found["optimiser"] == 8 * found["trained"]
    shapes = adapted_weights(model).values()
    wanted = {
        "full": sum(p.numel() for p in model.parameters()),
        "lora": sum(2 * (n_out + n_in) for n_out, n_in in shapes),
        "head": sum(p.numel() for name, p in model.named_parameters() if name.startswith(("head.", "linear_path."))),
    }
    assert found["trained"] == wanted[method]


def test_a_trained_head_saves_nothing_of_the_layers_below(model):
    whole, head = (training_memory.step_bytes(training_memory.ready(model, name, rank=2)) for name in ("full", "head"))
    # At least the hidden rows of the head's input, float32: lanes × visits × width.
    assert head["activations"] >= training_memory.N_LANES * 24 * 8 * 4
    assert head["activations"] < whole["activations"] / 2
