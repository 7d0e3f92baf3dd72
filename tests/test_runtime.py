"""Streams through an exported graph: the model's numbers, whatever the company, the cut and the break."""

import json
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import torch

from txl_ts.checks import check_session
from txl_ts.errors import (
    ColumnError,
    FileFormatError,
    MissingExtraError,
    ParameterError,
    ShapeError,
    StampError,
    StateError,
    TxlWarning,
)
from txl_ts.runtime import StreamSession
from txl_ts.runtime.contract import read_contract
from txl_ts.runtime.engine import Engine
from txl_ts.runtime.rows import read_rows
from txl_ts.store import Bundle, save

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

HOUR = 3600 * 10**9
T0 = 473_353 * HOUR  # 2024-01-01 01:00
# Torch and ONNX Runtime sum in another order, over values of up to 30; the exporter itself holds 1e-5 of the largest.
CLOSE = {"rtol": 1e-5, "atol": 1e-4}


@pytest.fixture(scope="session")
def model(fitted):
    return fitted._model


@pytest.fixture
def session(graph):
    return StreamSession(graph)


def series(n_streams, n_rows, seed=0):
    """Random walks of shape (n_streams, n_rows), a tenth missing, with one long run of NaN and one infinity."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_streams, n_rows)).cumsum(1).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    x[0, n_rows // 3 : n_rows // 3 + 30] = np.nan
    x[-1, n_rows // 2] = np.inf
    return x


def wanted(model, x):
    """The torch model's forecasts (n_streams, n_rows, h, Q) in one pass."""
    with torch.inference_mode():
        y, _ = model(torch.from_numpy(x)[:, :, None], model.init_state(len(x)))
    return y.numpy()[:, :, :, 0]


def rows(values, first=0):
    """Rows with their times, from the first-th hour."""
    return {"time": [T0 + (first + i) * HOUR for i in range(len(values))], "values": {"y": values}}


def kept(session, tmp_path):
    """All that a session remembers, as bytes."""
    session.snapshot(tmp_path / "kept.txl")
    return (tmp_path / "kept.txl").read_bytes()


# ------------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("promise", [str(check) for check in check_session(StreamSession, protocol="streams")])
def test_a_session_keeps_every_promise_of_the_protocol(graph, promise):
    checks = {str(check): check for check in check_session(lambda: StreamSession(graph), protocol="streams")}
    checks[promise]()


@pytest.mark.parametrize("n_streams", [1, 3])
def test_row_by_row_gives_the_models_numbers_over_600_rows(session, model, n_streams):
    x = series(n_streams, 600)
    reference = wanted(model, x)
    for t in range(600):
        out = session.step({f"meter-{i}": x[i, t] for i in range(n_streams)})
        for i in range(n_streams):
            np.testing.assert_allclose(out[f"meter-{i}"].quantiles, reference[i, t], **CLOSE)


def test_interleaved_subsets_of_80_streams_give_each_its_own_numbers(session, model):
    x = series(80, 60)
    reference = wanted(model, x)
    rng, at = np.random.default_rng(1), np.zeros(80, int)
    while at.min() < 60:
        chosen = [i for i in rng.permutation(80)[: rng.integers(1, 81)].tolist() if at[i] < 60]
        lengths = {i: min(int(rng.integers(1, 4)), 60 - at[i]) for i in chosen}
        out = session.step({i: rows(x[i, at[i] : at[i] + n], first=int(at[i])) for i, n in lengths.items()})
        assert list(out) == chosen
        for i, n in lengths.items():
            np.testing.assert_allclose(out[i].forecasts, reference[i, at[i] : at[i] + n], **CLOSE)
            at[i] += n
    assert sorted(session.streams) == list(range(80))


@pytest.mark.parametrize("cuts", [(600,), (300, 300), (1, 64, 7, 100, 29, 399)], ids=str)
def test_catching_up_in_any_pieces_equals_row_by_row(session, model, cuts):
    x = series(2, 600)
    reference, first = wanted(model, x), 0
    for n in cuts:  # 600 rows are more than the graph takes in one call
        out = session.step({name: rows(x[i, first : first + n], first) for i, name in enumerate("ab")})
        for i, name in enumerate("ab"):
            assert out[name].forecasts.shape == (n, 3, 3)
            np.testing.assert_allclose(out[name].forecasts, reference[i, first : first + n], **CLOSE)
        first += n


def test_streams_with_different_numbers_of_rows_go_in_one_call(session, model):
    x = series(3, 700)
    out = session.step({0: rows(x[0, :1]), 1: rows(x[1]), 2: rows(x[2, :40])})
    reference = wanted(model, x)
    for i, n in enumerate((1, 700, 40)):
        np.testing.assert_allclose(out[i].forecasts, reference[i, :n], **CLOSE)


def test_rows_that_did_not_come_are_walked_as_missing(graph):
    gap, told = StreamSession(graph), StreamSession(graph)
    x = series(1, 50)[0]
    x[20:23] = np.nan
    came = [t for t in range(50) if not 20 <= t < 23]
    out = gap.step({"a": {"time": [T0 + t * HOUR for t in came], "values": {"y": x[came]}}})["a"]
    expected = told.step({"a": rows(x)})["a"]
    np.testing.assert_array_equal(out.forecasts, expected.forecasts[came])
    np.testing.assert_array_equal(gap.step({"a": 1.0})["a"].forecasts, told.step({"a": 1.0})["a"].forecasts)


def test_a_gap_longer_than_the_reach_begins_the_stream_anew(graph):
    old, new = StreamSession(graph), StreamSession(graph)
    x = series(1, 40)[0]
    later = 40 + old.contract.reach + 1
    old.step({"a": rows(x)})
    out = old.step({"a": rows(x[:9], later)})["a"]
    np.testing.assert_array_equal(out.forecasts, new.step({"a": rows(x[:9], later)})["a"].forecasts)
    both = {"time": [T0, T0 + later * HOUR], "values": {"y": [x[0], x[0]]}}
    out = old.step({"b": both})["b"].forecasts
    np.testing.assert_array_equal(out[0], out[1])


def test_a_reset_stream_is_a_fresh_one_and_its_neighbour_notices_nothing(graph):
    x = series(2, 80)
    left, fresh = StreamSession(graph), StreamSession(graph)
    left.step({"a": rows(x[0, :50]), "b": rows(x[1, :50])})
    left.reset("a")
    out = left.step({"a": rows(x[0, :30])})["a"]  # its old times are forgotten too
    np.testing.assert_array_equal(out.forecasts, fresh.step({"a": rows(x[0, :30])})["a"].forecasts)
    straight = StreamSession(graph)
    straight.step({"a": rows(x[0, :50]), "b": rows(x[1, :50])})
    tail = {"b": rows(x[1, 50:], 50)}
    np.testing.assert_array_equal(left.step(tail)["b"].forecasts, straight.step(tail)["b"].forecasts)


@pytest.mark.parametrize("bad", [1e30, -1e30, np.inf, np.nan, 1e300], ids=str)
def test_a_neighbours_extreme_values_change_no_bit(graph, bad):
    x = series(2, 60)
    x[1] = 3.0
    calm, wild = StreamSession(graph), StreamSession(graph)
    for t in range(60):
        a = calm.step({"a": x[0, t], "b": x[1, t]})["a"].forecasts
        b = wild.step({"a": x[0, t], "b": float(x[1, t]) if t < 20 else bad})["a"].forecasts
        np.testing.assert_array_equal(a, b)


def test_two_threads_take_turns(session, graph):
    x = series(2, 60)

    def feed(i):
        for t in range(60):
            session.step({i: x[i, t]})

    threads = [threading.Thread(target=feed, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = StreamSession(graph)
    for i in range(2):
        for t in range(60):
            alone.step({i: x[i, t]})
        np.testing.assert_array_equal(alone.step({i: 1.0})[i].forecasts, session.step({i: 1.0})[i].forecasts)


# ------------------------------------------------------------------------------------------------------------- results


def test_a_result_names_its_times_its_median_and_its_status(session):
    seen = []
    for i in range(18):
        out = session.step({"a": {"time": T0 + i * HOUR, "values": {"y": float(i)}}})["a"]
        seen.append(out.status)
    assert out.quantiles.shape == (3, 3)
    assert out.quantiles.dtype == np.float32
    np.testing.assert_array_equal(out.median, out.quantiles[:, 1])
    np.testing.assert_array_equal(
        out.times, np.datetime64("2024-01-01T18", "ns") + np.arange(4) * np.timedelta64(1, "h")
    )
    assert seen == ["warming_up"] * 15 + ["ok"] * 3  # a look-back of 16 is more than 5 visits with stride 3
    assert session.step({"a": None})["a"].status == "missing"


def test_without_times_rows_follow_each_other(session):
    assert session.step({"a": 1.0})["a"].times is None
    out = session.step({"b": {"time": T0, "values": {"y": 1.0}}})
    assert session.step({"b": 2.0})["b"].times[0] == out["b"].times[1]


def test_a_stream_without_times_may_get_them_later(session):
    session.step({"a": 1.0})
    assert session.step({"a": rows([2.0])})["a"].times[0] == np.datetime64(T0, "ns")
    with pytest.raises(StampError, match="is not after"):
        session.step({"a": rows([2.0])})


TIMES = {
    "int": T0,
    "numpy int": np.int64(T0),
    "datetime": datetime(2024, 1, 1, 1),
    "datetime64[s]": np.datetime64("2024-01-01T01", "s"),
    "datetime64[ns]": np.datetime64(T0, "ns"),
}


@pytest.mark.parametrize("time", TIMES.values(), ids=TIMES)
def test_times_may_have_many_forms(session, time):
    assert session.step({"a": {"time": time, "values": {"y": 1.0}}})["a"].times[0] == np.datetime64(T0, "ns")
    assert session.step({"b": {"time": [time], "values": {"y": [1.0]}}})["b"].times[0] == np.datetime64(T0, "ns")


def test_pandas_and_polars_columns_are_rows(session):
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    stamps = pd.date_range("2024-01-01", periods=3, freq="h")
    values = [1.0, float("nan"), 3.0]
    a = session.step({"a": {"time": pd.Series(stamps), "values": {"y": pd.Series(values)}}})["a"]
    b = session.step({"b": {"time": pl.Series(stamps.to_numpy()), "values": {"y": pl.Series([1.0, None, 3.0])}}})["b"]
    c = session.step({"c": {"time": list(stamps), "values": {"y": [1, None, 3]}}})["c"]
    for other in (b, c):
        np.testing.assert_array_equal(a.forecasts, other.forecasts)
        np.testing.assert_array_equal(a.times, other.times)


def test_a_model_with_a_zone_wants_instants(changed):
    session = StreamSession(changed(lambda document: document["time"].update(zone="Europe/Berlin")))
    berlin = datetime(2024, 1, 1, 2, tzinfo=UTC).astimezone()
    out = session.step({"a": {"time": berlin, "values": {"y": 1.0}}})["a"]
    assert out.times[0] == np.datetime64("2024-01-01T02", "ns")
    with pytest.raises(StampError, match=r"has no zone, but the model's times are in zone Europe/Berlin\. Give `time"):
        session.step({"a": {"time": datetime(2024, 1, 1, 4), "values": {"y": 1.0}}})


def test_a_model_with_integer_times_counts_in_its_own_steps(changed):
    session = StreamSession(changed(lambda d: d.update(freq="3", time={"kind": "integer", "zone": None, "step": 3})))
    out = session.step({"a": {"time": 30, "values": {"y": 1.0}}})["a"]
    assert out.times.tolist() == [30, 33, 36, 39]
    with pytest.raises(StampError, match=r"type datetime, expected an integer, as in the rows"):
        session.step({"a": {"time": datetime(2024, 1, 1), "values": {"y": 1.0}}})


def test_without_a_fixed_step_each_row_is_the_next(changed):
    session = StreamSession(changed(lambda d: d.update(freq="MS", time={"kind": "datetime", "zone": None})))
    for month in ("2024-01", "2024-02", "2024-03"):
        out = session.step({"a": {"time": np.datetime64(month), "values": {"y": 1.0}}})["a"]
        assert out.times is None
    with pytest.raises(StampError, match=r"no time was given.*freq='MS' has no fixed step"):
        session.step({"a": 1.0})


# -------------------------------------------------------------------------------------------------------- stream names


def test_streams_close_and_their_room_is_used_again_without_a_trace(graph):
    session, fresh = StreamSession(graph), StreamSession(graph)
    x = series(20, 30)
    session.step({i: rows(x[i]) for i in range(20)})  # the slab grows twice
    for i in range(0, 20, 2):
        session.close(i)
    assert session.streams == tuple(range(1, 20, 2))
    new = {f"new-{i}": rows(x[i]) for i in range(12)}
    ours, theirs = session.step(new), fresh.step(new)
    for name in new:
        np.testing.assert_array_equal(ours[name].forecasts, theirs[name].forecasts)


def test_a_copy_continues_alone(session):
    x = series(1, 40)[0]
    session.step({"a": rows(x)})
    session.copy("a", "what-if")
    session.step({"what-if": 99.0})
    session.copy("a", "twin")
    # One after the other: a matrix product may round its last lanes otherwise than its first.
    out = session.step({"a": 5.0}) | session.step({"twin": 5.0})
    np.testing.assert_array_equal(out["a"].forecasts, out["twin"].forecasts)
    np.testing.assert_array_equal(out["a"].times, out["twin"].times)
    with pytest.raises(StateError, match=r"there is a stream 'twin' already\. Close it first"):
        session.copy("a", "twin")


@pytest.mark.parametrize("call", ["reset", "close", "copy"])
def test_an_unknown_stream_is_named_with_a_suggestion(session, call):
    session.step({"meter-7": 1.0})
    more = ("new",) if call == "copy" else ()
    with pytest.raises(StateError, match=r"no stream 'metre-7' \(1 in all\): did you mean 'meter-7'\?"):
        getattr(session, call)("metre-7", *more)


def test_state_nbytes_are_those_of_the_model(session, model):
    assert session.state_nbytes == model.state_nbytes() == session.contract.document["state_nbytes"]


# -------------------------------------------------------------------------------------------------- snapshot, restore


def test_a_restored_session_continues_bit_for_bit(graph, tmp_path):
    x = series(3, 90)
    first, second = StreamSession(graph), StreamSession(graph)
    first.step({i: rows(x[i, :60]) for i in range(3)})
    first.step({"untimed": 4.0})
    first.reset(1)
    first.snapshot(tmp_path / "now.txl")
    second.step({"other": 1.0})
    second.restore(tmp_path / "now.txl")
    assert second.streams == first.streams == (0, 1, 2, "untimed")
    for t in range(60, 90):
        row = {i: rows(x[i, t : t + 1], t) for i in range(3)} | {"untimed": float(t), f"new-{t % 7}": 2.0}
        ours, theirs = first.step(row), second.step(row)
        for name in row:
            np.testing.assert_array_equal(ours[name].forecasts, theirs[name].forecasts)
            assert ours[name].status == theirs[name].status
    assert kept(first, tmp_path) == kept(second, tmp_path)


def test_an_empty_session_is_saved_and_restored(session, tmp_path):
    session.snapshot(tmp_path / "none.txl")
    session.step({"a": 1.0})
    session.restore(tmp_path / "none.txl")
    assert session.streams == ()
    session.step({"a": 1.0})


def test_the_streams_of_another_model_are_refused(session, changed, tmp_path):
    other = StreamSession(changed(lambda document: document.update(model_digest="cd" * 32)))
    other.step({"a": 1.0})
    other.snapshot(tmp_path / "other.txl")
    session.step({"b": 1.0})
    before = kept(session, tmp_path)
    with pytest.raises(
        StateError, match=r"streams of another model: digest cdcdcdcdcdcd…, this graph's is [0-9a-f]{12}…"
    ):
        session.restore(tmp_path / "other.txl")
    assert kept(session, tmp_path) == before


def crafted(session, **positions):
    specs = session.contract.specs
    state = {
        name: np.zeros((2, *spec.shape), spec.dtype) for name, spec in zip(session.contract.inputs, specs, strict=True)
    }
    config = {"class": "StreamState", "model_digest": session.contract.model_digest}
    where = {"ids": ["a", "b"], "origins": [0, 0], "last": [1, 1], "last_stamps": [HOUR, HOUR]} | positions
    return Bundle("stream-state", config, {"state": state}, where)


@pytest.mark.parametrize(
    ("positions", "text"),
    [
        ({"ids": ["a", "a"]}, "ids must be distinct"),
        ({"ids": ["a", True]}, "ids must be distinct"),
        ({"last": [1]}, "equally long"),
        ({"last": [1, -2]}, "last must be integers"),
        ({"last_stamps": [0, 2**64]}, "64-bit integers"),
        ({"origins": [0, None]}, "both of origin and last stamp"),
        ({"ids": ["a"], "origins": [0], "last": [1], "last_stamps": [0]}, "shape"),
    ],
)
def test_a_crafted_state_is_refused_and_nothing_is_changed(session, tmp_path, positions, text):
    save(tmp_path / "crafted.txl", crafted(session, **positions))
    session.step({"b": 1.0})
    before = kept(session, tmp_path)
    with pytest.raises(FileFormatError, match=text):
        session.restore(tmp_path / "crafted.txl")
    assert kept(session, tmp_path) == before


def test_a_state_that_is_not_finite_is_refused(session, tmp_path):
    bundle = crafted(session)
    bundle.tensors["state"]["past.00.keys_0"][1, 0] = np.inf
    save(tmp_path / "crafted.txl", bundle)
    with pytest.raises(FileFormatError, match=r"past\.00\.keys_0 holds numbers that are not finite"):
        session.restore(tmp_path / "crafted.txl")


def test_a_file_of_another_role_is_refused(session, tmp_path):
    save(tmp_path / "model.txl", Bundle("model", {}, {}, {}))
    with pytest.raises(FileFormatError, match="is a model, expected a stream-state"):
        session.restore(tmp_path / "model.txl")


def test_the_estimators_graph_and_state_continue_its_streams(forecaster, make_rows, session, tmp_path):
    forecaster.export_state(tmp_path / "state.txl")
    session.restore(tmp_path / "state.txl")
    old = make_rows()
    last = old.groupby("unique_id")["ds"].max()
    new = old.groupby("unique_id").tail(9).copy()
    new["ds"] += timedelta(hours=12)  # three hours did not come
    out = session.step(
        {name: {"time": part["ds"], "values": {"y": part["y"]}} for name, part in new.groupby("unique_id")}
    )
    forecaster.update(new)
    predicted = forecaster.predict()
    for name, part in predicted.groupby("unique_id"):
        # The memory of the fit has gone through torch, here it goes on in ONNX Runtime.
        np.testing.assert_allclose(out[name].median, part["TXL"], **CLOSE)
        np.testing.assert_array_equal(out[name].times[1:], part["ds"].to_numpy().astype("datetime64[ns]"))
        assert out[name].times[0] > last[name]


# ------------------------------------------------------------------------------------------------------------ bad input


def row(time=T0 + 10 * HOUR, y=1.0):
    return {"time": time, "values": {"y": y}}


BAD = {
    "late": (row(T0), StampError, r"'bad': time 2024-01-01 01:00:00 is not after 2024-01-01 09:00:00, the row"),
    "repeated": (row(T0 + 8 * HOUR), StampError, r"Late and repeated rows cannot be taken in: drop them\. Nothing of"),
    "repeated in the call": ({"time": [T0 + 9 * HOUR] * 2, "values": {"y": [1, 2]}},
                             StampError, "is not after"),
    "off the grid": (row(T0 + 9 * HOUR + 1), StampError, r"not a whole number of steps \(1h\) after .*Round times"),
    "text": (row("2024-01-01"), StampError, r"time '2024-01-01' is of type str, expected a datetime, a datetime64 or"),
    "seconds": (row(1.7e9), StampError, r"type float, expected .* integer nanoseconds since 1970"),
    "bool": (row(True), StampError, "type bool"),
    "NaT": (row(np.datetime64("NaT")), StampError, r"NaT.* type datetime64"),
    "aware": (row(datetime(2024, 1, 2, tzinfo=UTC)), StampError, r"has a zone, but the model's times are without a"),
    "far": (row(np.datetime64("2300-01-01")), StampError, "lies beyond 64 bits"),
    "huge": (row(2**63), StampError, "lies beyond 64 bits"),
    "end": (row(T0 + (2**63 - T0) // HOUR * HOUR - HOUR), StampError, "would end beyond 64 bits"),
    "lengths": ({"time": [T0 + 9 * HOUR], "values": {"y": [1, 2]}}, ShapeError, "1 times for 2 values"),
    "no rows": ({"time": [], "values": {"y": []}}, ShapeError, "no rows were given"),
    "two axes": (row(y=[[1.0]]), ShapeError, r"channel 'y' has shape \(1, 1\), expected a number"),
    "ragged": (row(y=[[1.0], [2.0, 3.0]]), ShapeError, "channel 'y' is no sequence of numbers: .*inhomogeneous"),
    "channel": ({"values": {"Y": 1.0, "y": 1.0}}, ColumnError, r"unknown channel 'Y'.* has \['y'\] \(1 in all\)"),
    "close channel": ({"values": {"yy": 1.0}}, ColumnError, r"unknown channel 'yy', did you mean 'y'\?"),
    "no channel": ({"values": {}}, ColumnError, r"no value for channel 'y' \(1 lacking\)\. Give NaN where"),
    "no values": ({"time": T0}, ParameterError, r"'values' is missing, expected a mapping by channel"),
    "list": ([1.0], ParameterError, r"a row of type list is not understood\. Give a number, or \{'time': …, 'values'"),
    "key": ({"times": T0, "values": {"y": 1}}, ParameterError, r"unknown keys \['times'\], expected 'time' and"),
    "word": (row(y="3.1"), ColumnError, r"channel 'y' holds str, expected a number or a sequence of numbers: '3\.1'"),
    "words": ({"values": {"y": [1.0, object()]}}, ColumnError, "channel 'y' holds object"),
    "flag": (True, ColumnError, "channel 'y' holds bool"),
    "complex": (row(y=1j), ColumnError, "channel 'y' holds complex128"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "error", "text"), BAD.values(), ids=BAD)
def test_a_refused_row_leaves_every_stream_as_it_was(session, tmp_path, given, error, text):
    session.step({"bad": rows([1.0] * 9), "good": rows([1.0] * 9)})
    before = kept(session, tmp_path)
    with pytest.raises(error, match=text) as caught:
        session.step({"good": row(), "new": row(), "bad": given})
    assert "'bad'" in str(caught.value)
    assert kept(session, tmp_path) == before
    session.step({"good": row(), "new": row(), "bad": row()})


@pytest.mark.parametrize("width", [1, 64])
def test_a_run_that_fails_leaves_every_stream_as_it_was(graph, tmp_path, monkeypatch, width):
    left = []  # runs until one fails

    def failing(call):
        def run(*given):
            if left:
                left[0] -= 1
                if left[0] < 0:
                    raise RuntimeError("out of memory")
            return call(*given)

        return run

    monkeypatch.setattr(Engine, "run", failing(Engine.run))
    bind = Engine.bind
    monkeypatch.setattr(Engine, "bind", lambda *given: failing(bind(*given)))
    monkeypatch.setattr("txl_ts.runtime.fleet._width", lambda contract: width)
    session = StreamSession(graph)
    session.step({"a": rows([1.0] * 9), "c": rows([1.0] * 9)})
    session.snapshot(tmp_path / "before.txl")
    call = {"a": rows([1.0], 9), "b": rows([1.0, 2.0]), "c": rows([2.0], 9)}
    for n in range(2 if width == 64 else 3):
        left[:] = [n]
        with pytest.raises(RuntimeError, match="out of memory"):
            session.step(call)
        left.clear()
        assert session.streams == ("a", "c")
    # A slot of the ring that no row sees any more may have been written; nothing that a row sees.
    other = StreamSession(graph)
    other.restore(tmp_path / "before.txl")
    found, wanted = session.step(call), other.step(call)
    for name in call:
        np.testing.assert_array_equal(found[name].forecasts, wanted[name].forecasts)
    assert kept(session, tmp_path) == kept(other, tmp_path)


@pytest.mark.parametrize(
    ("rows", "text"), [([1.0], "rows is of type list"), ({1.5: 1.0}, "stream name 1.5 is of type")]
)
def test_rows_and_names_are_checked(session, rows, text):
    with pytest.raises(ParameterError, match=text):
        session.step(rows)
    assert session.step({}) == {}


@pytest.fixture
def two_channels(session):
    document = json.loads(json.dumps(session.contract.document))
    document["inputs"][0].update(dims=["batch", "time", 2], channels=[{"name": "flow"}, {"name": "heat"}])
    return read_contract(json.dumps(document), where="two.onnx")


def test_channels_are_put_into_the_graphs_order(two_channels):
    given = {"values": {"heat": [1, 2, None], "flow": [3.0, np.inf, 1e39]}}
    read = read_rows(given, stream="a", contract=two_channels)
    assert read.values.dtype == np.float32
    np.testing.assert_array_equal(read.values, [[3, 1], [np.nan, 2], [np.nan, np.nan]])


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (3.1, ColumnError, r"got a bare number, but the model has the channels \['flow', 'heat'\]\. Give"),
        ({"values": {"heat": 1.0}}, ColumnError, r"no value for channel 'flow' \(1 lacking\)"),
        ({"values": {"heat": 1.0, "flow": [1, 2]}}, ShapeError, r"numbers of rows: \{'flow': 2, 'heat': 1\}"),
    ],
)
def test_rows_of_several_channels_are_checked(two_channels, given, error, text):
    with pytest.raises(error, match=text):
        read_rows(given, stream="a", contract=two_channels)


# ------------------------------------------------------------------------------------------------------------- opening


CONTRACTS = {
    "major": (lambda d: d.update(schema="2.1.0"), r"schema '2\.1\.0', this version reads 1\.x\. Upgrade"),
    "lacking": (lambda d: d.pop("segment") and None, r"the contract lacks 'segment' \(it holds .*'?states"),
    "kind": (lambda d: d["segment"].update(max="many"), r"'segment' has max='many', expected a int"),
    "not JSON": (lambda d: "{", "the contract is not JSON"),
    "a list": (lambda d: "[]", "the contract is a list, expected an object"),
    "dims": (lambda d: d["states"][4].update(dims=[3]), r"graph's 'p.*\.04\.count' is tensor\(int32\) .*\['any', 3\]"),
    "names": (
        lambda d: d["states"][4].update({"in": "past.04.number"}),
        r"the graph has the tensors .*past\.04\.count",
    ),
    "horizon": (lambda d: d.update(horizon=6), r"the graph's 'y' is tensor\(float\) of shape .*3.*says float32 .*6"),
    "levels": (lambda d: d.update(quantiles=[0.9, 0.5, 0.1]), "expected increasing numbers between 0 and 1"),
    "time": (lambda d: d["time"].update(kind="moon"), r"'time' has kind='moon', expected 'datetime' or 'integer'"),
}


@pytest.mark.parametrize(("edit", "text"), CONTRACTS.values(), ids=CONTRACTS)
def test_a_contract_that_is_not_kept_is_refused(changed, edit, text):
    with pytest.raises(FileFormatError, match=text):
        StreamSession(changed(edit))


def test_unknown_keys_and_minor_versions_are_read(changed):
    assert StreamSession(changed(lambda d: d.update(schema="1.7.2", mood="fine"))).step({"a": 1.0})


def test_a_graph_that_mixes_lanes_runs_them_one_by_one(changed, graph):
    mixing, other = StreamSession(changed(lambda d: d.update(lane_independent=False))), StreamSession(graph)
    out = mixing.step({"a": 1.0, "b": 2.0})
    for name, value in (("a", 1.0), ("b", 2.0)):
        np.testing.assert_array_equal(out[name].forecasts, other.step({name: value})[name].forecasts)


def test_a_graph_without_a_contract_is_refused(graph):
    proto = onnx.load(graph)
    del proto.metadata_props[:]
    with pytest.raises(FileFormatError, match=r"the graph carries no 'txl_ts\.contract' in its metadata"):
        StreamSession(proto.SerializeToString())


def test_what_is_no_graph_is_refused_by_name(tmp_path):
    (tmp_path / "odd.onnx").write_bytes(b"no graph")
    with pytest.raises(FileFormatError, match=r"odd\.onnx is not a graph that ONNX Runtime .* can load"):
        StreamSession(tmp_path / "odd.onnx")
    with pytest.raises(FileNotFoundError):
        StreamSession(tmp_path / "none.onnx")
    with pytest.raises(FileFormatError, match="is a folder, expected a graph"):
        StreamSession(tmp_path)


@pytest.mark.parametrize("threads", [0, True, 1.5])
def test_threads_are_checked(graph, threads):
    with pytest.raises(ParameterError, match=f"threads={threads} must be an integer of 1 or more"):
        StreamSession(graph, threads=threads)


@pytest.mark.parametrize("providers", ["auto", "cpu", ["CPUExecutionProvider"]])
def test_the_cpu_is_always_there(graph, providers):
    assert StreamSession(graph, providers=providers).step({"a": 1.0})


@pytest.mark.parametrize("providers", ["gpu", [], [7]], ids=str)
def test_unknown_providers_are_named(graph, providers):
    with pytest.raises(ParameterError, match=r"providers=.* expected 'auto', 'cpu', 'cuda' or some of \['"):
        StreamSession(graph, providers=providers)


def test_cuda_that_is_not_installed_is_an_error_with_the_cure(graph, monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(MissingExtraError, match=r'was asked for, but .* only .*pip install "txl-ts\[ort-gpu\]"'):
        StreamSession(graph, providers="cuda")


def test_cuda_that_quietly_falls_back_is_an_error_unless_auto(graph, monkeypatch):
    both, real = ["CUDAExecutionProvider", "CPUExecutionProvider"], onnxruntime.InferenceSession

    def without_libraries(data, options, providers):  # onnxruntime-gpu without CUDA: no exception, the CPU
        return real(data, options, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: both)
    monkeypatch.setattr(onnxruntime, "InferenceSession", without_libraries)
    with pytest.raises(MissingExtraError, match=r"CUDAExecutionProvider was asked for.*preload_dlls\(\)"):
        StreamSession(graph, providers="cuda")
    assert StreamSession(graph).step({"a": 1.0})


def test_two_wheels_of_onnxruntime_are_warned_of(graph, monkeypatch):
    monkeypatch.setattr("txl_ts.runtime.engine.version", lambda name: "1.99")
    with pytest.warns(TxlWarning, match=r"onnxruntime 1\.99 and onnxruntime-gpu 1\.99 are both installed") as caught:
        StreamSession(graph)
    assert caught[0].filename == __file__


def test_a_missing_onnxruntime_is_named_with_the_install_command(graph, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r'Install it with `pip install "txl-ts\[ort\]"`'):
        StreamSession(graph)


def test_a_session_runs_without_torch_and_dataframes(graph):
    code = f"""
import sys
for name in ("torch", "pandas", "polars", "sklearn", "narwhals", "pyarrow", "onnx", "tqdm"):
    sys.modules[name] = None  # importing one is an error
from txl_ts.runtime import StreamSession
assert "onnxruntime" not in sys.modules
assert StreamSession({str(graph)!r}).step({{"a": 1.0}})["a"].quantiles.shape == (3, 3)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
