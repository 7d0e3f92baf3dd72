"""Graphs with a far memory: the model's numbers, in calls of at most one block, from any place of the grid."""

import json

import numpy as np
import pytest
import torch

from tests.test_memory_far import PARAMS, distance, every_policy, make_model, random_rows, run
from txl_ts.export.graph import StreamGraph
from txl_ts.export.onnx import LONGEST_SEGMENT, contract_of, export_onnx, longest_segment
from txl_ts.live import LiveSession

ABOUT = {
    "model_type": "forecaster",
    "model_digest": "0" * 64,
    "freq": "1",
    "time": {"kind": "integer", "step": 1},
    "channels": [{"name": "y"}],
    "trained": 24,
}


@every_policy
@pytest.mark.parametrize("fixed", [False, True])
def test_the_forward_pass_of_the_graph_gives_the_models_numbers_and_state(name, fixed):
    model, rng = make_model(name), np.random.default_rng(0)
    longest = 1 if fixed else min(longest_segment(model), 9)
    x = random_rows(1 if fixed else 3, 120, 1, dtype=torch.float32)
    graph, state, out, row = StreamGraph(model, fixed=fixed), list(model.init_state(len(x)).values()), [], 0
    with torch.no_grad():
        while row < 120:
            n_rows = int(rng.integers(1, longest + 1))
            y, *state = graph(x[:, row : row + n_rows], torch.zeros(len(x), 1, dtype=torch.int32), *state)
            out.append(y)
            row += n_rows
    expected, after = run(model, x)
    # Float32 keeps 7 digits; the sums of the graph run in another order.
    assert distance(torch.cat(out, dim=1), expected) <= 1e-5
    assert all(distance(found, wanted) <= 1e-5 for found, wanted in zip(state, after.values(), strict=True))


@every_policy
def test_a_session_splits_calls_at_the_longest_and_snapshots_go_on(name, tmp_path):
    model, x = make_model(name), random_rows(1, 60, 1, dtype=torch.float32)
    contract = contract_of(model, about=ABOUT)
    assert contract["segment"]["max"] == longest_segment(model)
    expected = run(model, x)[0][0, :, :, 0]
    session = LiveSession(model, contract)
    rows = {"values": {"y": x[0, :45, 0].numpy()}}
    caught_up = session.step({"a": rows})["a"]
    session.snapshot(tmp_path / "now.txl")
    other = LiveSession(model, contract)
    other.restore(tmp_path / "now.txl")
    found = [other.step({"a": {"values": {"y": float(value)}}})["a"].quantiles for value in x[0, 45:, 0]]
    wanted = expected[45:].numpy()
    np.testing.assert_allclose(np.stack(found), wanted, rtol=0, atol=1e-5 * float(expected.abs().max()))
    np.testing.assert_allclose(caught_up.quantiles, expected[44].numpy(), atol=1e-5 * float(expected.abs().max()))


def test_calls_are_short_only_where_something_is_updated():
    assert longest_segment(make_model("fifo")) == longest_segment(make_model("sinks")) == LONGEST_SEGMENT
    assert longest_segment(make_model("gated")) == PARAMS["gated"]["block"]


@pytest.mark.slow  # about 80 s of one core each: the exporter
@every_policy
def test_the_exported_files_give_the_models_numbers(name, tmp_path):
    pytest.importorskip("onnxscript", reason="the extra `export` is not installed")
    pytest.importorskip("onnxruntime", reason="the extra `ort` is not installed")
    contract = export_onnx(make_model(name, n_layers=1), tmp_path / "graph.onnx", about=ABOUT)
    assert contract["parity"]["max_relative"] <= 1e-5
    assert json.loads((tmp_path / "graph.contract.json").read_text())["segment"] == contract["segment"]
