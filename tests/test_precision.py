"""Graphs with fewer bits: smaller, as exact as their contract says, and with the promises that it claims.

One float32 graph is exported for the whole session; all others are made of it.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from tests.test_export import (
    ABOUT,
    CLOSE,
    FINITE_FLOAT32,
    assert_close_states,
    assert_same_bits,
    distance,
    fresh,
    make_model,
    run_file,
    run_model,
    walk,
)
from txl_ts.checks import check_session
from txl_ts.errors import ExportError, ParameterError, ShapeError
from txl_ts.runtime import StreamSession

onnx = pytest.importorskip("onnx", reason="the extra `export` is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `ort` is not installed")
pytest.importorskip("onnxscript", reason="the extra `export` is not installed")

from txl_ts.export import export_onnx  # noqa: E402 - the extras come first
from txl_ts.export.precision import WAYS  # noqa: E402

# Wide enough for its weights to be most of the file; widths that are no multiple of a block of 32.
SIZES = {"d_model": 40, "d_ff": 70, "lookback": 50}
INDEPENDENT = ["float16", "int8-weights"]


def opened(data):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """The model and its float32 files; tests leave them as they are."""
    model, path = make_model(**SIZES), tmp_path_factory.mktemp("precision") / "load.onnx"
    contract = export_onnx(model, path, about=ABOUT)
    protos = {False: onnx.load(path), True: onnx.load(path.with_suffix(".step.onnx"))}
    for proto in protos.values():
        del proto.metadata_props[:]
    return SimpleNamespace(
        model=model,
        path=path,
        contract=contract,
        proto=protos[False],
        protos=protos,
        session=opened(path.read_bytes()),
    )


def reuse(patch, exported):
    """Let the exporter give the graphs that are there, instead of making them again."""

    def copy(graph, *_):
        proto = onnx.ModelProto()
        proto.CopyFrom(exported.protos[graph.fixed])
        return proto

    patch.setattr("txl_ts.export.onnx._exported", copy)


@pytest.fixture(scope="session")
def lower(exported, tmp_path_factory):
    """Export in a precision, from the graphs that are there."""

    def export(precision, **more):
        path = tmp_path_factory.mktemp(precision) / "load.onnx"
        with pytest.MonkeyPatch.context() as patch:
            reuse(patch, exported)
            contract = export_onnx(exported.model, path, about=ABOUT, precision=precision, **more)
        return SimpleNamespace(path=path, contract=contract, proto=onnx.load(path), session=opened(path.read_bytes()))

    return export


@pytest.fixture(scope="session")
def low(lower):
    """Each precision's file; these weights are drawn, so that no error is too large."""
    return {precision: lower(precision, max_error=None) for precision in WAYS}


def weights_of(proto, dtype):
    kinds = {"float32": onnx.TensorProto.FLOAT, "float16": onnx.TensorProto.FLOAT16, "uint8": onnx.TensorProto.UINT8}
    return {
        entry.name: onnx.numpy_helper.to_array(entry)
        for entry in proto.graph.initializer
        if entry.data_type == kinds[dtype] and len(entry.dims) > 1
    }


# ------------------------------------------------------------------------------------------------------------- the file


def test_fewer_bits_make_a_smaller_file(exported, low):
    size = {name: one.path.stat().st_size for name, one in low.items()}
    weights = sum(array.nbytes for array in weights_of(exported.proto, "float32").values())
    assert size["float16"] < exported.path.stat().st_size - weights / 3
    assert max(size["int8-weights"], size["int8-dynamic"]) < size["float16"]


@pytest.mark.parametrize("precision", WAYS)
def test_the_contract_tells_what_the_precision_changed(exported, low, precision):
    contract, before = low[precision].contract, exported.contract
    changed = {key for key in contract if contract[key] != before.get(key)}
    error = contract["precision_error"]
    assert contract["precision"] == precision
    assert set(error) == {"max", "rms", "unit", "rows", "lanes", "on"}
    assert 0 < error["rms"] < error["max"]
    assert (error["unit"], error["on"]) == ("standard deviations of the target", "drawn rows")
    expected = {
        "float16": ({"precision", "precision_error"}, "1.16", [], True, 512),
        "int8-weights": (
            {"precision", "precision_error", "domains", "min_onnxruntime"},
            "1.23",
            ["com.microsoft"],
            True,
            512,
        ),
        "int8-dynamic": ({"precision", "precision_error", "lane_independent", "segment"}, "1.16", [], False, 1),
    }[precision]
    found = (changed, contract["min_onnxruntime"], contract["domains"], contract["lane_independent"])
    assert (*found, contract["segment"]["max"]) == expected


@pytest.mark.parametrize("precision", WAYS)
def test_the_file_is_what_its_contract_says(low, precision):
    one = low[precision]
    inside = {entry.key: entry.value for entry in one.proto.metadata_props}["txl_ts.contract"]
    assert json.loads(inside) == one.contract == json.loads(one.path.with_suffix(".contract.json").read_text("utf-8"))
    opsets = {opset.domain: opset.version for opset in one.proto.opset_import}
    assert opsets == {"": 18} | dict.fromkeys(one.contract["domains"], 1)
    assert {node.domain for node in one.proto.graph.node} - {""} == set(one.contract["domains"])
    assert (one.proto.ir_version, one.contract["ir"]) == (8, 8)


@pytest.mark.parametrize("precision", WAYS)
def test_the_state_has_the_form_that_it_always_has(exported, low, precision):
    assert low[precision].contract["states"] == exported.contract["states"]


def test_float16_rounds_every_matrix_of_the_layers(exported, low):
    halves = weights_of(low["float16"].proto, "float16")
    assert len(halves) >= 8
    for name, half in halves.items():
        full = weights_of(exported.proto, "float32")[name.removesuffix(".float16")]
        full = full.astype(np.float16)  # a Gemm's stands on its side
        assert half.tobytes() in (full.tobytes(), full.T.tobytes())


@pytest.mark.parametrize("precision", ["int8-weights", "int8-dynamic"])
def test_the_linear_path_stays_float32_in_8_bits(exported, low, precision):
    weight = exported.model.linear_path.weight.detach().numpy()
    kept = [w for w in weights_of(low[precision].proto, "float32").values() if sorted(w.shape) == [3, 50]]
    assert len(kept) == 1
    np.testing.assert_array_equal(kept[0] if kept[0].shape == weight.shape else kept[0].T, weight)
    assert len(weights_of(low[precision].proto, "uint8")) == len(weights_of(low["float16"].proto, "float16")) - 1


# ------------------------------------------------------------------------------- one product, against plain arithmetic


def product(weight):
    """The smallest graph: y = x @ weight."""
    helper = onnx.helper
    shape = ["rows", weight.shape[0]], ["rows", weight.shape[1]]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape[0])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape[1])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def to_steps(x, scale):
    return np.round(x / scale) * scale


def by_hand(precision, x, weight):
    """The product that a precision promises, in float64."""
    if precision == "float16":
        return x.astype(float) @ weight.astype(np.float16).astype(float)
    if precision == "int8-weights":  # a step for each 32 rows of a column
        parts = [weight[row : row + 32] for row in range(0, len(weight), 32)]
        return x @ np.concatenate([to_steps(part, np.abs(part).max(axis=0) / 127) for part in parts]).astype(float)
    low, high = min(x.min(), 0), max(x.max(), 0)  # as ONNX defines DynamicQuantizeLinear
    step = (high - low) / 255
    return to_steps(x, step).astype(float) @ to_steps(weight, np.abs(weight).max(axis=0) / 127)


@pytest.mark.parametrize("precision", WAYS)
@pytest.mark.parametrize("n_in", [5, 32, 70])
def test_a_product_is_the_one_that_the_precision_promises(precision, n_in):
    from txl_ts.export.precision import _rewritten

    rng = np.random.default_rng(n_in)
    weight, x = rng.normal(size=(n_in, 3)).astype(np.float32), rng.normal(size=(7, n_in)).astype(np.float32)
    weight[:, 1] *= 1e-3  # columns have scales of their own
    (found,) = opened(_rewritten(product(weight), WAYS[precision], None).SerializeToString()).run(None, {"x": x})
    # Where a number lies between two steps, float32 may round it to the other one.
    allowed = 1e-5 if precision != "int8-dynamic" else 1e-2
    for column in range(3):
        assert distance(found[:, column], by_hand(precision, x, weight)[:, column].astype(np.float32)) <= allowed


def test_a_column_of_zeros_stays_zero():
    from txl_ts.export.precision import _rewritten

    for way in WAYS.values():
        proto = _rewritten(product(np.zeros((4, 2), np.float32)), way, None)
        (y,) = opened(proto.SerializeToString()).run(None, {"x": np.ones((3, 4), np.float32)})
        np.testing.assert_array_equal(y, 0)


# ------------------------------------------------------------------------------------------------------------ the error


@pytest.mark.parametrize("precision", WAYS)
def test_the_error_of_the_contract_is_the_largest_difference_in_deviations(exported, lower, precision):
    rows = walk(3, 90)
    rows[2] = 7.0  # stands still: no deviation to measure in
    one = lower(precision, rows=rows, max_error=None)
    by_lane = []
    for lane in range(2):
        x = rows[lane : lane + 1]
        a, _ = run_file(exported.session, x, fresh(exported.model, 1), length=1)
        b, _ = run_file(one.session, x, fresh(exported.model, 1), length=1)
        by_lane.append(np.abs(a - b).ravel() / np.std(x[np.isfinite(x)]))
    error = one.contract["precision_error"]
    apart = np.concatenate(by_lane)
    assert error["max"] == pytest.approx(np.nanmax(apart), rel=1e-2)
    assert error["rms"] == pytest.approx(np.sqrt(np.nanmean(apart**2)), rel=1e-2)
    assert (error["rows"], error["lanes"], error["on"]) == (90, 3, "given rows")


def test_an_error_above_the_bound_is_refused_and_nothing_is_written(exported, monkeypatch, tmp_path):
    reuse(monkeypatch, exported)
    text = r"'float16' moves a forecast by \S+ standard deviations .* allowed are 1e-09\. .*max_error=None"
    with pytest.raises(ExportError, match=text):
        export_onnx(exported.model, tmp_path / "load.onnx", about=ABOUT, precision="float16", max_error=1e-9)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("precision", WAYS)
def test_an_error_does_not_grow_with_the_rows(exported, low, precision):
    n_rows, contract = (10_000, low[precision].contract) if precision in INDEPENDENT else (2_000, None)
    x = walk(1, 250)
    x = np.concatenate([x] * (n_rows // 250), axis=1)  # the same rows again and again: only drift makes a difference
    length = 50 if contract else 1
    a, _ = run_file(exported.session, x, fresh(exported.model, 1), length=length)
    b, _ = run_file(low[precision].session, x, fresh(exported.model, 1), length=length)
    error = np.abs(a - b)[0]
    early, late = error[500:1000], error[-500:]
    assert np.nanmax(late) <= 1.1 * np.nanmax(early)
    assert np.nanmean(late) <= 1.1 * np.nanmean(early)


# ------------------------------------------------------------------------------------------------------------- promises


@pytest.mark.parametrize("precision", WAYS)
def test_the_graph_of_one_row_is_lowered_too_and_gives_the_same_numbers(exported, low, precision):
    path = low[precision].path.with_suffix(".step.onnx")
    proto, x = onnx.load(path), walk(1, 120)
    contract = json.loads({entry.key: entry.value for entry in proto.metadata_props}["txl_ts.contract"])
    assert (contract["precision"], contract["fixed"]) == (precision, {"batch": 1, "time": 1})
    assert path.stat().st_size < exported.path.with_suffix(".step.onnx").stat().st_size
    found, _ = run_file(opened(path.read_bytes()), x, fresh(exported.model, 1), length=1)
    wanted, _ = run_file(low[precision].session, x, fresh(exported.model, 1), length=1)
    # Another order of sums; a number between two steps of 8 bits may be rounded to the other one.
    assert distance(found, wanted) <= (CLOSE if precision in INDEPENDENT else 1e-2)


@pytest.mark.parametrize("precision", INDEPENDENT)
@pytest.mark.parametrize("length", [1, 2, 7, 300])
def test_the_split_into_calls_does_not_show(exported, low, precision, length):
    x, restarts = walk(3, 330), {110: [1], 200: [0, 2]}
    session, state = low[precision].session, fresh(exported.model, 3)
    wanted, state_wanted = run_file(session, x, state, length=64, restarts=restarts)
    found, after = run_file(session, x, state, length=length, restarts=restarts)
    assert distance(found, wanted) <= CLOSE
    assert_close_states(after, state_wanted)


@pytest.mark.parametrize("bad", [1e30, np.inf, np.nan, FINITE_FLOAT32], ids=str)
@pytest.mark.parametrize("precision", INDEPENDENT)
def test_a_bad_neighbour_changes_no_bit(exported, low, precision, bad):
    x, session = walk(3, 64), low[precision].session
    spoilt = x.copy()
    spoilt[1, 20:] = bad
    for length in (1, 16):
        wanted, state_wanted = run_file(session, x, fresh(exported.model, 3), length=length)
        found, state = run_file(session, spoilt, fresh(exported.model, 3), length=length)
        for a, b in ((found, wanted), *((state[name], state_wanted[name]) for name in state)):
            assert_same_bits(a[[0, 2]], b[[0, 2]])


@pytest.mark.parametrize("precision", ["float16", "int8-dynamic"])  # the other one needs an operator of ONNX Runtime
def test_the_reference_evaluator_agrees(exported, low, precision):
    from onnx.reference import ReferenceEvaluator

    evaluator, x, found = ReferenceEvaluator(low[precision].proto), walk(1, 30), []
    state = fresh(exported.model, 1)
    for t in range(30):
        start = np.zeros((1, 1), np.int32)
        y, *present = evaluator.run(None, {"x": x[:, t : t + 1], "start": start, **state})
        state = dict(zip(state, present, strict=True))
        found.append(y)
    wanted, _ = run_file(low[precision].session, x, fresh(exported.model, 1), length=1)
    # A number between two steps of 8 bits may be rounded to the other one.
    assert distance(np.concatenate(found, axis=1), wanted) <= (CLOSE if precision == "float16" else 1e-2)


def test_dynamic_scales_would_mix_lanes_and_so_the_contract_forbids_it(exported, low):
    one = low["int8-dynamic"]
    x = walk(2, 40, seed=3)
    x[1] = np.where(np.arange(40)[:, None] % 2, 1e6, -1e6)
    together, _ = run_file(one.session, x, fresh(exported.model, 2), length=1)
    alone, _ = run_file(one.session, x[:1], fresh(exported.model, 1), length=1)
    assert not np.array_equal(together[:1], alone, equal_nan=True)
    streams = StreamSession(one.path)
    for t in range(40):
        found = streams.step({"a": x[0, t, 0], "b": x[1, t, 0]})["a"].quantiles
        # Not to the bit: the session takes the graph of one row, which sums in another order.
    np.testing.assert_allclose(found, alone[0, t, :, 0], rtol=1e-6)


PROMISES = [str(check) for check in check_session(StreamSession, protocol="streams")]


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("precision", WAYS)
def test_a_session_keeps_every_promise_in_every_precision(low, precision, promise):
    checks = check_session(lambda: StreamSession(low[precision].path), protocol="streams")
    {str(check): check for check in checks}[promise]()


def test_the_streams_of_one_precision_go_on_in_another(exported, low, tmp_path):
    x = walk(1, 120)[0, :, 0]
    sessions = [StreamSession(exported.path), *(StreamSession(one.path) for one in low.values())]
    sessions[0].step({"a": {"values": {"load": x[:100]}}})
    sessions[0].snapshot(tmp_path / "now.txl")
    for session in sessions[1:]:
        session.restore(tmp_path / "now.txl")
    wanted, *found = [session.step({"a": {"values": {"load": x[100:]}}})["a"].forecasts for session in sessions]
    for one, forecasts in zip(low.values(), found, strict=True):
        apart = np.abs(forecasts - wanted).max() / np.nanstd(np.where(np.isfinite(x), x, np.nan))
        assert 0 < apart <= 10 * one.contract["precision_error"]["max"]


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"precision": "int4"}, ParameterError, r"precision='int4', expected one of \['float32', 'float16', 'int8-w"),
        ({"profile": "opset7"}, ParameterError, r"profile='opset7', expected one of \['opset18', 'opset23'\]"),
        ({"precision": "float16", "rows": np.ones((3, 4))}, ShapeError, r"shape \(series, rows, 1\), got \(3, 4\)"),
        ({"precision": "float16", "rows": np.ones((3, 4, 1))}, ParameterError, "no two different values"),
    ],
)
def test_what_cannot_work_is_refused_by_name(exported, monkeypatch, tmp_path, given, error, text):
    reuse(monkeypatch, exported)
    with pytest.raises(error, match=text):
        export_onnx(exported.model, tmp_path / "load.onnx", about=ABOUT, **given)
    assert list(tmp_path.iterdir()) == []


def test_a_weight_beyond_float16_is_refused():
    from txl_ts.export.precision import _rewritten

    with pytest.raises(ExportError, match=r"a weight of 7e\+04 is beyond float16\. Take precision='float32'"):
        _rewritten(product(np.full((2, 2), 7e4, np.float32)), WAYS["float16"], None)


@pytest.mark.parametrize("given", [{"precision": "int8-weights"}, {"profile": "opset23"}], ids=str)
def test_an_onnxruntime_that_is_too_old_is_named(exported, monkeypatch, tmp_path, given):
    monkeypatch.setattr(onnxruntime, "__version__", "1.22.1")
    with pytest.raises(ExportError, match=r"needs onnxruntime 1\.23, 1\.22\.1 is installed\. Upgrade it, or take"):
        export_onnx(exported.model, tmp_path / "load.onnx", about=ABOUT, **given)


# ------------------------------------------------------------------------------------------------------ the new profile


def test_the_profile_of_opset_23_gives_the_models_numbers(tmp_path):
    model = make_model(n_layers=1)
    contract = export_onnx(model, tmp_path / "new.onnx", about=ABOUT, profile="opset23", precision="float16")
    proto, x, restarts = onnx.load(tmp_path / "new.onnx"), walk(3, 200), {110: [1]}
    assert [(opset.domain, opset.version) for opset in proto.opset_import] == [("", 23)]
    assert (proto.ir_version, contract["opset"], contract["ir"], contract["min_onnxruntime"]) == (11, 23, 11, "1.23")
    assert contract["parity"]["max_relative"] <= CLOSE
    found, _ = run_file(opened(proto.SerializeToString()), x, fresh(model, 3), length=50, restarts=restarts)
    wanted, _ = run_model(model, x, restarts=restarts)
    assert distance(found, wanted) <= 1e-2  # the weights are float16


@pytest.mark.parametrize("n_keys", [2, 5, 43])
def test_the_attention_operator_gives_the_numbers_of_plain_products(n_keys):
    from txl_ts.bench.precision import attention_feed, attention_graph

    feed = attention_feed(n_keys=n_keys)
    plain, fused = (opened(attention_graph(feed, is_fused=is_fused)).run(None, feed)[0] for is_fused in (False, True))
    assert distance(fused, plain) <= 1e-6
    feed["k"] = np.where(np.arange(64)[:, None, None, None] == 7, np.float32(1e30), feed["k"])
    wild = opened(attention_graph(feed, is_fused=True)).run(None, feed)[0]
    others = np.arange(64) != 7
    assert_same_bits(wild[others], fused[others])


# ------------------------------------------------------------------------------------------ the forecaster, the command


@pytest.fixture
def asked(exported, monkeypatch):
    """What a forecaster asks the exporter for; the graph that comes out is the one that is there."""

    def export(model, path, **given):
        asked.update(given)
        return export_onnx(exported.model, path, **{**given, "about": ABOUT})

    asked = {}
    reuse(monkeypatch, exported)
    monkeypatch.setattr("txl_ts.estimators.files.export_onnx", export)
    return asked


def test_a_forecaster_measures_a_precision_on_rows_of_its_own(forecaster, make_rows, tmp_path, asked):
    rows = make_rows(n_rows=60)  # series of 60, 67 and 74 rows
    contract = forecaster.export_onnx(tmp_path / "demand.onnx", precision="int8-weights", df=rows, max_error=None)
    error = contract["precision_error"]
    assert (error["rows"], error["lanes"], error["on"]) == (74, 3, "given rows")
    for lane, (name, n_rows) in zip(asked["rows"], [("T3", 74), ("T2", 67), ("T1", 60)], strict=True):
        assert np.isnan(lane[: 74 - n_rows]).all()
        np.testing.assert_array_equal(lane[74 - n_rows :, 0], rows[rows.unique_id == name].y.astype("float32"))


def test_a_forecaster_exports_in_float32_unless_it_is_told_otherwise(forecaster, tmp_path, asked):
    contract = forecaster.export_onnx(tmp_path / "demand.onnx")
    assert (asked["precision"], asked["profile"], asked["rows"]) == ("float32", "opset18", None)
    assert "precision_error" not in contract


def test_the_command_exports_in_a_precision_and_tells_its_error(forecaster, tmp_path, asked, capsys):
    from txl_ts.cli import main

    forecaster.save(tmp_path / "demand.txl")
    options = ["--precision", "int8-weights", "--max-error", "9"]
    with pytest.raises(SystemExit) as end:
        main(["export", str(tmp_path / "demand.txl"), *options])
    assert not end.value.code
    assert (asked["precision"], asked["profile"], asked["max_error"]) == ("int8-weights", "opset18", 9.0)
    printed = capsys.readouterr().out
    assert "int8-weights: off by at most" in printed
    assert "standard deviations of the target, on drawn rows" in printed
    assert "ONNX Runtime 1.23 or newer" in printed
