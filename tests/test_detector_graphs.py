"""Graphs of every kind of detector: what is exported says what the model says, and ONNX Runtime says the same."""

import copy

import numpy as np
import pytest
import torch

from txl_ts import TXLAnomalyDetector
from txl_ts.bench import parity
from txl_ts.export.detector import DetectorGraph, one_row

SMALL = {"d_model": 8, "n_layers": 1, "n_heads": 2, "lookback": 8, "mem_len": 4, "max_epochs": 0}
KINDS = {
    "novelty": {"kind": "novelty", "horizons": (1, 6)},
    "level": {"kind": "level"},
    "independent": {"channels": "independent", "horizons": (1, 6)},
    "independent novelty": {"kind": "novelty", "channels": "independent", "horizons": (1, 6), "span": 500},
    "independent level": {"kind": "level", "channels": "independent"},
    "tail": {"tail": "gpd", "contamination": 0.02, "calibration_share": 0.5},
    "deviation": {"kind": "deviation", "smooth": 4.0, "horizons": (2,)},
}


def made_up(n, seed=0):
    """A wave far from 0, a small one, and noise; with a jump, and holes."""
    rng = np.random.default_rng(seed)
    x = np.stack(
        [
            101_325 + 10 * np.sin(np.arange(n) / 8) + rng.normal(size=n),
            1e-3 * np.sin(np.arange(n) / 5) + 1e-4 * rng.normal(size=n),
            rng.normal(size=n),
        ],
        axis=1,
    )
    if seed:
        x[60:70, 1] += 1e-2
        x[80:90, 2] = np.nan
        x[95] = np.nan
    return x


@pytest.fixture(scope="module")
def detector():
    """Fit one of a kind, once."""
    fitted = {}

    def fit(kind):
        if kind not in fitted:
            fitted[kind] = TXLAnomalyDetector(**SMALL, **KINDS[kind]).fit(made_up(1_200))
        return fitted[kind]

    return fit


def close(found, wanted):
    """Equal to 1e-5 of the largest, and NaN at the same places."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.nanmax(np.abs(wanted)))


# The exporter traces this module, which takes seconds here and half a minute as a file: `slow` has the files.
@pytest.mark.parametrize("kind", KINDS)
def test_the_module_that_is_exported_says_what_the_model_says_row_by_row(detector, kind):
    model = detector(kind)._model
    graph, step = DetectorGraph(model), DetectorGraph(model, fixed=True)
    x = made_up(130, seed=1).astype(np.float32)
    lengths = [1] * len(x) if one_row(model) else [40, 1, 30, *[1] * 59]
    state, found, at = list(model.init_state(1).values()), [], 0
    for length in lengths:
        rows = torch.from_numpy(x[None, at : at + length])
        status, start = torch.zeros(rows.shape, dtype=torch.int32), torch.zeros(1, 1, dtype=torch.int32)
        with torch.inference_mode():
            _, *said = (step if length == 1 else graph)(rows, start, status, *state)
        found.append([one[0].numpy() for one in said[:3]])
        state, at = said[3:], at + length
    score, parts, p_value = (np.concatenate(one) for one in zip(*found, strict=True))
    wanted = detector(kind).detect(x)
    close(score, wanted.score)
    close(parts, wanted.parts)
    # A score that differs in its last digit may pass one of the table.
    assert np.nanmax(np.abs(p_value - wanted.p_value)) < 1.01 / (detector(kind).calibration_.n + 1)


@pytest.mark.parametrize("kind", ["novelty", "level"])
def test_ranges_and_levels_far_from_0_keep_their_digits(detector, kind):
    """101,325 ± 10 in float32 has steps of .008: beside a watch, which counts in float64."""
    x = made_up(120, seed=2)
    watch, wanted = detector(kind).watch(), detector(kind).detect(x)
    messages = [
        {"time": i, "values": {f"x{c}": None if np.isnan(v) else v for c, v in enumerate(r)}} for i, r in enumerate(x)
    ]
    found = watch.step({"pump": messages})["pump"] + watch.flush()["pump"]
    parts = np.array([[one.parts.get(f"x{c}", np.nan) for c in range(3)] for one in found])
    # The forecasts themselves are float32: an error of one may be off by .008 of a range of 20.
    np.testing.assert_allclose(parts[:, 0], wanted.parts[:, 0], rtol=0, atol=1e-3)
    np.testing.assert_allclose(parts[:, 1:], wanted.parts[:, 1:], rtol=1e-4, atol=1e-4)


def test_channels_that_are_streams_of_their_own_have_ranges_of_their_own(detector):
    scale = detector("independent novelty")._model.surprise.scale
    np.testing.assert_allclose(scale, np.ptp(made_up(1_200), axis=0), rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_update_watch_and_file_agree_across_a_stop_in_the_middle(detector, kind, tmp_path):
    pytest.importorskip("onnxscript", reason="exports need onnxscript")
    one = copy.deepcopy(detector(kind))
    one.export_onnx(tmp_path / "graph.onnx")
    found = parity.differences(one, tmp_path / "graph.onnx", made_up(200, seed=1))
    assert max(found["update"], found["graph"], found["watch"]) < 1e-5, found
    assert max(found["update_p"], found["graph_p"], found["watch_p"]) < 1.01 / (one.calibration_.n + 1), found
    assert found["alarms"] > 0
    assert found["graph_alarms"] == found["watch_alerts"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("case", parity.CASES, ids=lambda case: f"{case.of}: {case.name}")
def test_real_rows_get_one_answer(case, shared_data):
    pytest.importorskip("onnxscript", reason="exports need onnxscript")
    (found,) = parity.run(shared_data, cases=[case], most_rows=500)["rows"]
    assert max(found[f"{how}_millionths"] for how in ("update", "graph", "watch")) < 10, found
    assert found["graph_alarms"] == found["watch_alerts"] == 0, found
