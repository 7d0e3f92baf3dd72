"""The exported graph: the model's numbers for any client, lanes that do not know each other, a contract that tells all.

One file is exported for the whole session. Errors are measured as in RELIABILITY.md: the largest difference over the
largest size, NaN at the same places.
"""

import functools
import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from txl_ts import __version__
from txl_ts.config import ModelConfig
from txl_ts.errors import ExportError, MissingExtraError
from txl_ts.export.graph import StreamGraph
from txl_ts.model import TXLModel, is_memory
from txl_ts.state import init_state, to_arrays

SIZES = {"h": 3, "quantiles": (0.1, 0.5, 0.8), "n_channels": 1, "patch_len": 4, "stride": 3, "mem_len": 2}
SIZES |= {"lookback": 6, "half_life": 24.0, "d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 10}
N_SLOTS = 9  # stride · (mem_len + 1)
COUNT = "past.04.count"
ABOUT = {
    "model_type": "forecaster",
    "model_digest": "0" * 64,
    "freq": "1h",
    "time": {"kind": "datetime", "zone": "UTC", "step_ns": 3_600_000_000_000},
    "channels": [{"name": "load", "unit": "MW"}],
    "trained": 24,
}
# float32 keeps 7 digits; the sums of the graph run in another order than torch's.
CLOSE = 1e-5
FINITE_FLOAT32 = float(np.finfo(np.float32).max)


def make_model(seed=0, **changes):
    """A model whose every weight counts: what starts at zero is drawn too."""
    model = TXLModel(ModelConfig(**{**SIZES, **changes}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in [*model.parameters(), *model.linear_path.buffers()]:
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
        if model.config.scaler == "standard":
            model.normaliser.mean.uniform_(-1, 1, generator=generator)
            model.normaliser.deviation.uniform_(0.5, 2, generator=generator)
    return model.eval()


def walk(n_lanes, n_rows, n_channels=1, seed=0):
    """Random walks around levels far apart, with gaps: single ones, a long run, infinities, a late start."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_lanes, n_rows, n_channels)).cumsum(axis=1) + 20 * rng.normal(size=(n_lanes, 1, 1))
    x[rng.random(x.shape) < 0.1] = np.nan
    x[:, n_rows // 3 : n_rows // 3 + n_rows // 8] = np.nan
    x[rng.random(x.shape) < 0.01] = np.inf
    x[rng.random(x.shape) < 0.01] = -np.inf
    x[0, :5] = np.nan
    return x.astype(np.float32)


def calls(n_rows, length, restarts=()):
    """First and last row of each call, none longer than ``length``; a restart begins a call."""
    edges = [0, *restarts, n_rows]
    for begin, end in itertools.pairwise(edges):
        for row in range(begin, end, length):
            yield row, min(row + length, end)


def flags(n_lanes, row, restarts):
    """The start flags (B, 1) of a call that begins at ``row``; ``restarts`` maps rows to lanes."""
    start = np.zeros((n_lanes, 1), np.int32)
    start[list(restarts.get(row, ()))] = 1
    return start


def run_model(model, x, *, length=256, restarts=None, state=None):
    """Forecasts of all rows and the last state, by torch."""
    restarts = restarts or {}
    state = model.init_state(len(x)) if state is None else state
    found = []
    with torch.inference_mode():
        for begin, end in calls(x.shape[1], length, restarts):
            start = torch.from_numpy(flags(len(x), begin, restarts))
            y, state = model(torch.from_numpy(x[:, begin:end]), state, start)
            found.append(y.numpy())
    return np.concatenate(found, axis=1), {name: tensor.numpy() for name, tensor in state.items()}


def run_graph(model, x, *, length, restarts=None, state=None):
    """The same by the graph's form, still in torch."""
    graph = StreamGraph(model).eval()
    restarts = restarts or {}
    state = model.init_state(len(x)) if state is None else state
    found = []
    with torch.inference_mode():
        for begin, end in calls(x.shape[1], length, restarts):
            start = torch.from_numpy(flags(len(x), begin, restarts))
            y, *present = graph(torch.from_numpy(x[:, begin:end]), start, *state.values())
            state = dict(zip(state, present, strict=True))
            found.append(y.numpy())
    return np.concatenate(found, axis=1), {name: tensor.numpy() for name, tensor in state.items()}


def run_file(session, x, state, *, length, restarts=None):
    """The same by a session of the file: ``state`` has the graph's names."""
    restarts = restarts or {}
    found = []
    for begin, end in calls(x.shape[1], length, restarts):
        y, *present = session.run(None, {"x": x[:, begin:end], "start": flags(len(x), begin, restarts), **state})
        state = dict(zip(state, present, strict=True))
        found.append(y)
    return np.concatenate(found, axis=1), state


def fresh(model, n_lanes):
    return to_arrays(init_state(model.state_specs(), n_lanes=n_lanes))


def is_ring(name):
    """Whether a tensor of the graph is a layer's memory."""
    return is_memory(name.split(".", 2)[2])


def distance(a, b):
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
    a, b = np.nan_to_num(a.astype(np.float64)), np.nan_to_num(b.astype(np.float64))
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30))


def assert_close_states(found, wanted):
    for a, b in zip(found.values(), wanted.values(), strict=True):
        assert distance(a, b) <= CLOSE


def assert_same_bits(a, b):
    assert a.dtype == b.dtype
    assert a.tobytes() == b.tobytes()


# ----------------------------------------------------------------------------------------- the form of the graph, torch

VARIANTS = {
    "default": {},
    "no memory": {"mem_len": 0},
    "row by row": {"patch_len": 1, "stride": 1},
    "two channels": {"n_channels": 2},
    "standard scaler": {"scaler": "standard", "n_channels": 2},
    "no linear path": {"lookback": 0},
    "linear path with a season": {"lookback": 23, "lookback_season": 5, "n_channels": 2},
    "stride longer than the patch": {"patch_len": 3, "stride": 5, "n_layers": 1},
    "median only": {"quantiles": (0.5,), "h": 1},
    "asinh": {"transform": "asinh"},
    "log1p, non-negative": {"transform": "log1p", "non_negative": True},
    "sqrt": {"transform": "sqrt"},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("length", [1, 7, 64, 300])
def test_the_form_of_the_graph_gives_the_models_numbers(changes, length):
    model = make_model(**changes)
    x = walk(3, 330, model.config.n_channels)
    restarts = {110: [1], 200: [0, 2]}
    wanted, state_wanted = run_model(model, x, restarts=restarts)
    found, state = run_graph(model, x, length=length, restarts=restarts)
    assert distance(found, wanted) <= CLOSE
    assert_close_states(state, state_wanted)


@pytest.mark.parametrize("length", [1, 2, 20])
def test_what_lies_in_unfilled_slots_does_not_show(length):
    model, x = make_model(), walk(2, 40)
    state = model.init_state(2)
    dirty = {name: torch.full_like(t, 1e6) if is_memory(name) else t for name, t in state.items()}
    found, _ = run_graph(model, x, length=length, state=dirty)
    assert_same_bits(found, run_graph(model, x, length=length, state=state)[0])


def test_the_graph_holds_a_copy_of_the_model():
    model = make_model()
    graph = StreamGraph(model)
    assert not model.normaliser.in_graph
    assert {p.data_ptr() for p in model.parameters()}.isdisjoint(p.data_ptr() for p in graph.parameters())


# ---------------------------------------------------------------------------------------------------- the exported file


@functools.cache
def export_once(folder):
    """The model, the file's path, its contract, its proto and an open session; tests leave them as they are."""
    onnx = pytest.importorskip("onnx", reason="the extra `export` is not installed")
    pytest.importorskip("onnxscript", reason="the extra `export` is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="the extra `ort` is not installed")
    from txl_ts.export import export_onnx

    model, path = make_model(lookback_season=2), folder / "load.onnx"
    contract = export_onnx(model, path, about=ABOUT)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return SimpleNamespace(model=model, path=path, contract=contract, proto=onnx.load(path), session=session)


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "exported_load"  # test_clients.py reads the same file
    folder.mkdir(exist_ok=True)
    return export_once(folder)


def dims_of(entry):
    return [dim.dim_param or dim.dim_value for dim in entry.type.tensor_type.shape.dim]


def test_the_file_is_of_the_profile_that_old_runtimes_read(exported):
    assert [(opset.domain, opset.version) for opset in exported.proto.opset_import] == [("", 18)]
    assert exported.proto.ir_version == 8
    assert {node.domain for node in exported.proto.graph.node} == {""}
    assert not exported.proto.functions


def test_argmax_reads_a_type_that_onnxruntime_1_16_has(exported):
    import onnx

    inferred = onnx.shape_inference.infer_shapes(exported.proto).graph
    kinds = {entry.name: entry.type.tensor_type.elem_type for entry in [*inferred.value_info, *inferred.input]}
    read = {kinds[node.input[0]] for node in inferred.node if node.op_type == "ArgMax"}
    assert read <= {onnx.TensorProto.FLOAT, onnx.TensorProto.INT32}  # version 1.16.3 refuses int64


def test_the_graph_has_no_control_flow(exported):
    assert {node.op_type for node in exported.proto.graph.node} & {"If", "Loop", "Scan", "SequenceMap"} == set()


def test_lanes_and_rows_are_dynamic_under_the_contracts_names(exported):
    graph = exported.proto.graph
    entries = [*graph.input, *graph.output]
    assert {dims_of(entry)[0] for entry in entries} == {"batch"}
    named = {entry.name: [dim for dim in dims_of(entry)[1:] if isinstance(dim, str)] for entry in entries}
    assert {name for name, dims in named.items() if dims} == {"x", "y"}
    assert named["x"] == named["y"] == ["time"]


def test_state_names_sort_in_the_order_of_their_pairs(exported):
    past = [entry.name for entry in exported.proto.graph.input][2:]
    present = [entry.name for entry in exported.proto.graph.output][1:]
    assert past == sorted(past)
    assert present == sorted(present)
    assert present == [name.replace("past", "present") for name in past]


def test_every_input_is_read(exported):
    read = {name for node in exported.proto.graph.node for name in node.input}
    assert {entry.name for entry in exported.proto.graph.input} <= read


def test_no_int64_crosses_the_border_of_the_graph(exported):
    import onnx

    kinds = {entry.type.tensor_type.elem_type for entry in [*exported.proto.graph.input, *exported.proto.graph.output]}
    assert kinds == {onnx.TensorProto.FLOAT, onnx.TensorProto.INT32}  # int64 is BigInt in JavaScript


def test_the_file_does_not_tell_where_it_was_made(exported):
    data = exported.path.read_bytes()
    folders = {str(Path(module.__file__).parents[1]) for module in (sys.modules["txl_ts"], torch, pytest)}
    assert [folder for folder in sorted(folders) if folder.encode() in data] == []


# --------------------------------------------------------------------------------------------------------- the contract


def test_the_contract_stands_in_the_file_and_beside_it(exported):
    inside = {entry.key: entry.value for entry in exported.proto.metadata_props}
    beside = exported.path.with_name("load.contract.json").read_text(encoding="utf-8")
    assert json.loads(inside["txl_ts.contract"]) == json.loads(beside) == exported.contract


def test_the_contract_tells_what_a_client_must_know(exported):
    contract = exported.contract
    assert contract["schema"].split(".")[0] == "1"
    assert contract["model_type"] == "forecaster"
    assert contract["library"] == __version__
    assert contract["model_digest"] == "0" * 64
    assert contract["inputs"][0]["channels"] == [{"name": "load", "unit": "MW"}]
    assert contract["freq"] == "1h"
    assert contract["time"] == ABOUT["time"]
    assert contract["segment"] == {"min": 1, "max": 512, "trained": 24}
    assert contract["memory"] == {"layers": 2, "length": 2, "stride": 3, "dim": 8, "reach": exported.model.config.reach}
    assert (contract["horizon"], contract["quantiles"], contract["lookback"]) == (3, [0.1, 0.5, 0.8], 6)
    assert (contract["scaler"], contract["missing"], contract["calendar"]) == ("running", "NaN", [])
    assert (contract["precision"], contract["opset"], contract["ir"]) == ("float32", 18, 8)
    assert contract["lane_independent"] is True
    assert 0 <= contract["parity"]["max_relative"] <= CLOSE


def test_the_contract_describes_the_tensors_of_the_graph(exported):
    import onnx

    graph, contract = exported.proto.graph, exported.contract
    kinds = {onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.INT32: "int32"}
    found = {e.name: (kinds[e.type.tensor_type.elem_type], dims_of(e)) for e in [*graph.input, *graph.output]}
    told = {e["name"]: (e["dtype"], e["dims"]) for e in [*contract["inputs"], *contract["outputs"]]}
    for state in contract["states"]:  # of one lane
        told[state["in"]] = told[state["out"]] = (state["dtype"], ["batch", *state["dims"]])
    assert told == found
    assert {state["init"] for state in contract["states"]} == {"zeros"}


def test_the_contract_counts_the_bytes_of_a_lane(exported):
    assert exported.contract["state_nbytes"] == sum(array.nbytes for array in fresh(exported.model, 1).values())


# --------------------------------------------------------------------------------------------------------------- parity


@pytest.mark.parametrize("changes", [{}, {"mem_len": 0}, {"n_channels": 2, "stride": 5}], ids=str)
def test_the_drawn_states_of_the_parity_are_ones_that_streams_have_and_no_two_lanes_are_alike(changes):
    from txl_ts.export.onnx import _drawn_state

    model = make_model(**changes)
    turn = model.config.stride * (model.config.mem_len + 1)
    state = {name: t.numpy() for name, t in _drawn_state(model, np.random.default_rng(0), 7).items()}
    for spec in model.state_specs():
        array = state[spec.name]
        assert (array.shape[1:], array.dtype) == (spec.shape, np.dtype(spec.dtype))
        assert np.isfinite(array).all()
        if spec.dtype == "float32":
            assert len(np.unique(array.reshape(7, -1), axis=0)) == 7
    valid, phase = state["count"].T
    assert valid.max() == turn  # saturated, and one that is about to be
    assert {turn - 1, turn} <= set(valid.tolist())
    assert {turn - 1, 0} <= set(phase.tolist())  # about to wrap, and just wrapped


def test_the_parity_is_measured_from_empty_and_from_drawn_states(exported):
    parity = exported.contract["parity"]
    assert parity["states"] == ["empty", "drawn"]
    assert parity["rows"] >= 256 * len(parity["states"])


@pytest.mark.parametrize("n_lanes", [1, 3, pytest.param(64, marks=pytest.mark.slow)])
def test_the_file_gives_the_models_numbers_in_any_split_into_calls(exported, n_lanes):
    x = walk(n_lanes, 1000)
    restarts = {411: [0], 700: range(0, n_lanes, 2)}
    wanted, state_wanted = run_model(exported.model, x, restarts=restarts)
    for length in (1, 2, 7, 64, 300):
        found, state = run_file(exported.session, x, fresh(exported.model, n_lanes), length=length, restarts=restarts)
        assert distance(found, wanted) <= CLOSE, f"calls of {length} rows"
        assert_close_states(state, state_wanted)


def test_a_lane_that_starts_anew_equals_a_fresh_one_to_the_bit(exported):
    x = walk(2, 90)
    used = run_file(exported.session, x, fresh(exported.model, 2), length=30)[1]
    used = {name: np.full_like(a, FINITE_FLOAT32) if is_ring(name) else a for name, a in used.items()}
    found, state = run_file(exported.session, x, used, length=7, restarts={0: [0, 1]})
    wanted, state_wanted = run_file(exported.session, x, fresh(exported.model, 2), length=7)
    assert_same_bits(found, wanted)
    for name in state:
        assert_same_bits(state[name], state_wanted[name])


@pytest.mark.parametrize("length", [1, 5, 40])
def test_forecasts_do_not_depend_on_where_the_ring_begins(exported, length):
    x = walk(1, 140)
    before = run_file(exported.session, x[:, :100], fresh(exported.model, 1), length=50)[1]
    wanted = run_model(exported.model, x)[0][:, 100:]
    for turn in range(N_SLOTS):  # one of them begins in the last slot before the wrap
        state = {name: np.roll(a, turn, axis=2) if is_ring(name) else a for name, a in before.items()}
        valid, phase = before[COUNT][0]
        state[COUNT] = np.array([[valid, (phase + turn) % N_SLOTS]], np.int32)
        assert distance(run_file(exported.session, x[:, 100:], state, length=length)[0], wanted) <= CLOSE


def test_a_call_longer_than_the_contracts_segment_still_counts_right(exported):
    x = walk(1, 600)
    found, _ = run_file(exported.session, x, fresh(exported.model, 1), length=600)
    assert distance(found, run_model(exported.model, x)[0]) <= CLOSE


@pytest.mark.parametrize("bad", [1e30, np.inf, -np.inf, np.nan, FINITE_FLOAT32], ids=str)
@pytest.mark.parametrize("length", [1, 16])
def test_a_bad_neighbour_changes_no_bit_of_a_lane(exported, bad, length):
    x = walk(3, 64)
    spoilt = x.copy()
    spoilt[1, 20:] = bad
    wanted, state_wanted = run_file(exported.session, x, fresh(exported.model, 3), length=length)
    found, state = run_file(exported.session, spoilt, fresh(exported.model, 3), length=length)
    others = [0, 2]
    assert_same_bits(found[others], wanted[others])
    for name in state:
        assert_same_bits(state[name][others], state_wanted[name][others])


def test_lanes_may_change_places(exported):
    x, order = walk(5, 60), [3, 0, 4, 1, 2]
    wanted = run_file(exported.session, x, fresh(exported.model, 5), length=6)[0]
    found = run_file(exported.session, x[order], fresh(exported.model, 5), length=6)[0]
    # Not to the bit: where a row lies in a matrix decides in which order its products are summed.
    assert distance(found, wanted[order]) <= CLOSE


@pytest.mark.parametrize("length", [1, 13, 200])
def test_no_input_makes_the_state_leave_the_finite_numbers(exported, length):
    rng = np.random.default_rng(4)
    worst = np.array([FINITE_FLOAT32, -FINITE_FLOAT32, np.inf, -np.inf, np.nan, 0.0, 1e-45, 1e19, -1e30], np.float32)
    x = rng.choice(worst, size=(6, 400, 1))
    x[0] = 5.0  # a lane that stands still
    x[1, 50:] = np.nan
    state = fresh(exported.model, 6)
    for begin, end in calls(400, length):
        y, state = run_file(exported.session, x[:, begin:end], state, length=length)
        assert all(np.isfinite(array).all() for array in state.values())
        assert not np.isinf(y).any()


def test_the_reference_evaluator_agrees_over_chained_calls(exported):
    from onnx.reference import ReferenceEvaluator

    reference, x = ReferenceEvaluator(exported.proto), walk(2, 24)
    restarts = {9: [1]}
    wanted, state_wanted = run_model(exported.model, x, restarts=restarts)
    state = fresh(exported.model, 2)
    found = []
    for begin, end in [(0, 1), (1, 9), (9, 12), (12, 13), (13, 24)]:
        y, *present = reference.run(None, {"x": x[:, begin:end], "start": flags(2, begin, restarts), **state})
        state = dict(zip(state, present, strict=True))
        found.append(y)
    assert distance(np.concatenate(found, axis=1), wanted) <= CLOSE
    assert_close_states(state, state_wanted)


# --------------------------------------------------------------------------------------- one row of one lane, in place


@pytest.fixture(scope="session")
def step_session(exported):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    path = exported.path.with_suffix(".step.onnx")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def test_the_graph_of_one_row_gives_the_models_numbers(exported, step_session):
    x, restarts = walk(1, 1000), {411: [0], 700: [0]}
    wanted, state_wanted = run_model(exported.model, x, restarts=restarts)
    found, state = run_file(step_session, x, fresh(exported.model, 1), length=1, restarts=restarts)
    assert distance(found, wanted) <= CLOSE
    assert_close_states(state, state_wanted)


def test_the_two_graphs_take_each_others_states(exported, step_session):
    x, state = walk(1, 120), fresh(exported.model, 1)
    wanted = run_model(exported.model, x)[0]
    found = []
    for session, begin, end, length in (
        (exported.session, 0, 50, 7),
        (step_session, 50, 61, 1),
        (exported.session, 61, 100, 39),
        (step_session, 100, 120, 1),
    ):
        y, state = run_file(session, x[:, begin:end], state, length=length)
        found.append(y)
    assert distance(np.concatenate(found, axis=1), wanted) <= CLOSE


def test_the_graph_of_one_row_has_fixed_sizes_and_says_so(exported, step_session):
    import onnx

    proto = onnx.load(exported.path.with_suffix(".step.onnx"))
    sizes = [dim for entry in [*proto.graph.input, *proto.graph.output] for dim in dims_of(entry)]
    assert all(isinstance(dim, int) for dim in sizes)
    inside = json.loads(next(entry.value for entry in proto.metadata_props if entry.key == "txl_ts.contract"))
    assert inside.pop("fixed") == {"batch": 1, "time": 1}
    assert {**inside, "parity": None} == {**exported.contract, "parity": None}


def in_place(session, x, state, places, *, length, restarts):
    """Run calls of one length with some states bound to the buffers that they came from."""
    n_lanes = len(x)
    binding, found = session.io_binding(), []
    shapes = {entry.name: entry.shape for entry in session.get_outputs()}
    y = np.zeros([n_lanes, length, *shapes["y"][2:]], np.float32)
    feed = {"x": np.zeros((n_lanes, length, x.shape[2]), np.float32), "start": np.zeros((n_lanes, 1), np.int32)}
    feed |= {name: array.copy() for name, array in state.items()}
    out = {name.replace("past", "present"): a if name in places else a.copy() for name, a in list(feed.items())[2:]}
    for name, array in feed.items():
        binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    for name, array in {"y": y, **out}.items():
        binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    for row in range(0, x.shape[1], length):
        feed["x"][:] = x[:, row : row + length]
        feed["start"][:] = flags(n_lanes, row, restarts)
        session.run_with_iobinding(binding)
        found.append(y.copy())
        for name, array in out.items():
            feed[name.replace("present", "past")][...] = array
    return np.concatenate(found, axis=1), {name: feed[name] for name in state}


@pytest.mark.parametrize(("form", "length"), [("any lanes", 1), ("any lanes", 8), ("any lanes", 20), ("one row", 1)])
def test_rings_may_be_written_where_they_lie(exported, step_session, form, length):
    """The copying mode is the oracle: a write that came before a read of the old rows would show."""
    session, n_lanes = (exported.session, 3) if form == "any lanes" else (step_session, 1)
    x, restarts = walk(n_lanes, 80), {40: [0]}
    places = exported.contract["in_place"]
    assert [name for name in fresh(exported.model, 1) if is_ring(name)] == places
    found, state = in_place(session, x, fresh(exported.model, n_lanes), places, length=length, restarts=restarts)
    wanted, state_wanted = run_file(session, x, fresh(exported.model, n_lanes), length=length, restarts=restarts)
    assert_same_bits(found, wanted)
    for name, array in state.items():
        assert_same_bits(array, state_wanted[name])


# -------------------------------------------------------------------------------------------- what is refused at export


def spoil_nothing(proto):
    """The graph as it is."""


def read_no_memory(proto):
    """All readers of the memory get the same random numbers instead."""
    from onnx import numpy_helper

    shape = dims_of(next(entry for entry in proto.graph.input if entry.name == "past.00.keys_0"))[1:]
    noise = np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(noise, "noise"))
    for node in proto.graph.node:
        for i, name in enumerate(node.input):
            if name == "past.00.keys_0":
                node.input[i] = "noise"


def keep_the_memory_still(proto):
    """The memory comes out as it went in."""
    from onnx import helper

    for node in proto.graph.node:
        for i, name in enumerate(node.output):
            if name == "present.00.keys_0":
                node.output[i] = "moved"
    proto.graph.node.append(helper.make_node("Identity", ["past.00.keys_0"], ["present.00.keys_0"]))


def turn_a_weight(proto):
    """One weight matrix is another."""
    from onnx import numpy_helper

    weight = max(proto.graph.initializer, key=lambda entry: len(entry.raw_data) if entry.data_type == 1 else 0)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 1.01, weight.name))


def branch(proto):
    """The forecast goes through an If."""
    from onnx import helper

    for node in proto.graph.node:
        for i, name in enumerate(node.output):
            if name == "y":
                node.output[i] = "inner"
    inside = helper.make_tensor_value_info("branched", 1, None)
    body = helper.make_graph([helper.make_node("Identity", ["inner"], ["branched"])], "body", [], [inside])
    proto.graph.initializer.append(helper.make_tensor("always", 9, [], [True]))
    proto.graph.node.append(helper.make_node("If", ["always"], ["y"], then_branch=body, else_branch=body))


def rename_a_state(proto):
    """A state comes out under a name that does not pair."""
    for entry in [*proto.graph.output, *proto.graph.node]:
        if getattr(entry, "name", "") == "present.05.norm":
            entry.name = "present.05.moments"
    for node in proto.graph.node:
        for i, name in enumerate(node.output):
            if name == "present.05.norm":
                node.output[i] = "present.05.moments"


@pytest.fixture
def export_spoilt(exported, monkeypatch, tmp_path):
    """Export once more into an empty folder, with a graph that was spoilt on its way to the lint."""
    import onnx

    from txl_ts.export import export_onnx

    def export(spoil):
        proto = onnx.ModelProto()
        proto.CopyFrom(exported.proto)
        del proto.metadata_props[:]
        spoil(proto)
        fixed = onnx.load(exported.path.with_suffix(".step.onnx"))
        del fixed.metadata_props[:]
        monkeypatch.setattr("txl_ts.export.onnx._exported", lambda graph, *_: fixed if graph.fixed else proto)
        return export_onnx(exported.model, tmp_path / "load.onnx", about=ABOUT)

    return export


def test_a_good_graph_is_written_with_its_contract_and_nothing_else(exported, export_spoilt, tmp_path):
    assert export_spoilt(spoil_nothing) == exported.contract
    assert sorted(path.name for path in tmp_path.iterdir()) == ["load.contract.json", "load.onnx", "load.step.onnx"]


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (read_no_memory, r"does not use its inputs \['past.00.keys_0'\]: it would forget"),
        (keep_the_memory_still, r"the graph and the model differ by .* of the largest value"),
        (turn_a_weight, r"the graph and the model differ by .* of the largest value"),
        (branch, r"holds control flow \(\['If'\]\)"),
        (rename_a_state, r"states do not pair: .*present.05.moments"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_graph_that_breaks_a_promise_is_refused_and_nothing_is_written(export_spoilt, tmp_path, spoil, text):
    with pytest.raises(ExportError, match=text):
        export_spoilt(spoil)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch, tmp_path, package):
    from txl_ts.export import export_onnx

    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"^{package} is needed.*pip install \"txl-ts\[export,ort\]\""):
        export_onnx(make_model(), tmp_path / "load.onnx", about=ABOUT)
    assert list(tmp_path.iterdir()) == []
