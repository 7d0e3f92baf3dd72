"""Fleets: where lanes lie, what a call writes, which graph it takes and which thread makes it change no number."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from txl_ts.errors import ParameterError, ShapeError, StampError, TxlWarning
from txl_ts.runtime import StreamSession
from txl_ts.runtime.desk import Desk, Manner
from txl_ts.runtime.fleet import Fleet
from txl_ts.runtime.lanes import Shelves
from txl_ts.runtime.manner import manner_of
from txl_ts.runtime.resident import Resident
from txl_ts.runtime.turns import Turns
from txl_ts.state import TensorSpec

pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from tests.oracles.ring_graph import ring_forecasts, ring_graph  # noqa: E402 - needs onnx

HOUR = 3600 * 10**9
T0 = 473_353 * HOUR
CLOSE = {"rtol": 1e-5, "atol": 1e-4}  # as in test_runtime.py


def walks(n_streams, n_rows, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_streams, n_rows)).cumsum(1).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    return x


def wanted(fitted, x):
    with torch.inference_mode():
        y, _ = fitted._model(torch.from_numpy(x)[:, :, None], fitted._model.init_state(len(x)))
    return y.numpy()[:, :, :, 0]


# --------------------------------------------------------------------------------------------------------------- lanes


def test_lanes_side_by_side_are_seen_as_such_and_shelves_never_move():
    shelves = Shelves([TensorSpec("a", (3,), "float32")])
    first = shelves.take(70)  # more than the first shelf
    assert first.tolist() == list(range(70))
    assert shelves.span(first[:64]) == (0, 0)
    assert shelves.span(first[64:]) == (1, 0)
    assert shelves.span(first[60:70]) is None  # on two shelves
    assert shelves.span(first[[3, 5]]) is None
    assert shelves.span(first[[3, 2]]) is None
    array = shelves.shelves[0][0]
    shelves.take(500)
    assert shelves.shelves[0][0] is array


def test_lanes_that_are_given_back_are_taken_lowest_first():
    shelves = Shelves([TensorSpec("a", (3,), "float32")])
    shelves.take(10)
    shelves.give_back([7, 2, 5])
    assert shelves.take(4).tolist() == [2, 5, 7, 10]


def test_what_is_gathered_from_several_shelves_is_scattered_back():
    shelves = Shelves([TensorSpec("a", (2,), "float32"), TensorSpec("b", (), "int32")])
    lanes = shelves.take(200)[np.random.default_rng(0).permutation(200)[:90]]
    parts = [np.arange(180, dtype=np.float32).reshape(90, 2), np.arange(90, dtype=np.int32)]
    shelves.scatter(lanes, parts)
    for part, back in zip(parts, shelves.gather(lanes), strict=True):
        np.testing.assert_array_equal(part, back)


def test_any_order_of_streams_gives_each_its_own_numbers(graph, fitted):
    x, rng = walks(100, 40), np.random.default_rng(1)
    reference, session = wanted(fitted, x), StreamSession(graph)
    for t in range(40):
        order = rng.permutation(100) if t % 2 else np.arange(100)
        out = session.step({int(i): float(x[i, t]) for i in order})
        for i in range(100):
            np.testing.assert_allclose(out[i].quantiles, reference[i, t], **CLOSE)


def test_staged_lanes_and_lanes_in_place_agree_to_the_bit(graph):
    """Two sessions, one of which has a stream between the others: its neighbours do not lie side by side."""
    close, apart = StreamSession(graph), StreamSession(graph)
    apart.step({0: 1.0, "between": 1.0, 1: 1.0})
    apart.reset(0)
    apart.reset(1)
    x = walks(2, 60)
    for t in range(60):
        a, b = (s.step({i: float(x[i, t]) for i in range(2)}) for s in (close, apart))
        for i in range(2):
            np.testing.assert_array_equal(a[i].forecasts, b[i].forecasts)


# ------------------------------------------------------------------------------------------------------------- columns


def test_columns_give_what_rows_give(graph):
    x, rows, columns = walks(9, 30), StreamSession(graph), StreamSession(graph)
    names = [f"meter-{i}" for i in range(9)]
    for t in range(30):
        stamp = T0 + t * HOUR
        a = rows.step({name: {"time": stamp, "values": {"y": x[i, t]}} for i, name in enumerate(names)})
        b = columns.step_many(names, x[:, t], np.datetime64(stamp, "ns"))
        assert len(b) == 9
        for i, name in enumerate(names):
            np.testing.assert_array_equal(a[name].quantiles, b.quantiles[i])
            np.testing.assert_array_equal(a[name].median, b.median[i])
            np.testing.assert_array_equal(a[name].times, b.times[i])
            assert a[name].status == b.status[i]


def test_columns_may_bring_gaps_and_leave_times_out(graph):
    rows, columns = StreamSession(graph), StreamSession(graph)
    for times in ([0, 0, 0], [1, 3, 1], [2, 4, 9]):
        stamps = T0 + np.array(times) * HOUR
        given = {i: {"time": int(stamps[i]), "values": {"y": 1.0 + i}} for i in range(3)}
        a, b = rows.step(given), columns.step_many(range(3), [1.0, 2.0, 3.0], stamps)
        for i in range(3):
            np.testing.assert_array_equal(a[i].quantiles, b.quantiles[i])
    a, b = rows.step({0: 5.0, 1: 5.0, 2: 5.0}), columns.step_many(np.arange(3), np.full((3, 1), 5))
    np.testing.assert_array_equal(b.times[1], a[1].times)
    assert StreamSession(graph).step_many(["a"], [1.0]).times is None


MANY = {
    "names": (("abc", [1.0] * 3, None), ParameterError, "names is of type str, expected a list"),
    "twice": ((["a", "b", "a"], [1.0] * 3, None), ParameterError, "names holds 'a' twice"),
    "a float": ((["a", 1.5], [1.0] * 2, None), ParameterError, "stream name 1.5 is of type float"),
    "lanes": ((["a", "b"], [1.0] * 3, None), ShapeError, r"values has shape \(3,\), expected \(2, 1\): one row of"),
    "channels": ((["a", "b"], [[1.0, 2.0]] * 2, None), ShapeError, r"values has shape \(2, 2\), expected \(2, 1\)"),
    "text": ((["a"], ["1.0"], None), ParameterError, "values is of dtype <U3, expected numbers"),
    "bool": ((["a"], [True], None), ParameterError, "values is of dtype bool, expected numbers"),
    "times": ((["a", "b"], [1.0] * 2, [T0] * 3), ShapeError, r"times has shape \(3,\), expected one time"),
    "NaT": ((["a"], [1.0], np.array(["NaT"], "M8[ns]")), StampError, "NaT"),
    "late": ((["old"], [1.0], [T0]), StampError, r"stream 'old': time 2024-01-01 01:00:00 is not after"),
    "off the grid": ((["old"], [1.0], [T0 + 2 * HOUR + 5]), StampError, "is not a whole number of steps"),
}


@pytest.mark.parametrize(("given", "error", "text"), MANY.values(), ids=MANY)
def test_columns_that_are_refused_change_nothing(graph, tmp_path, given, error, text):
    session = StreamSession(graph)
    session.step_many(["old"], [1.0], T0 + HOUR)
    session.snapshot(tmp_path / "before.txl")
    with pytest.raises(error, match=text):
        session.step_many(*given)
    session.snapshot(tmp_path / "after.txl")
    assert (tmp_path / "before.txl").read_bytes() == (tmp_path / "after.txl").read_bytes()


# ------------------------------------------------------------------------------------------------------------ in place


def test_a_graph_that_writes_in_place_gives_its_oracles_numbers():
    session, x = StreamSession(ring_graph()), walks(70, 40)
    assert session._fleet.manner.in_place == {1}
    rng, at = np.random.default_rng(2), np.zeros(70, int)
    reference = np.array([ring_forecasts(row) for row in x])
    while at.min() < 40:
        chosen = [i for i in rng.permutation(70)[: rng.integers(1, 71)].tolist() if at[i] < 40]
        if rng.random() < 0.3:
            chosen.sort()
        out = session.step({i: float(x[i, at[i]]) for i in chosen})
        for i in chosen:
            np.testing.assert_allclose(out[i].median[0], reference[i, at[i]], rtol=1e-4, atol=1e-3)
            at[i] += 1


def test_in_place_and_copying_agree_to_the_bit_over_restarts_and_subsets(tmp_path):
    sessions = [StreamSession(ring_graph(in_place=flag)) for flag in (True, False)]
    x, rng = walks(5, 60), np.random.default_rng(3)
    for t in range(60):
        chosen = rng.permutation(5)[: rng.integers(1, 6)].tolist()
        if t % 11 == 10:
            for session in sessions:
                session.reset(chosen[0])
        time = {i: {"time": 3 * t if i == 4 else t, "values": {"y": float(x[i, t])}} for i in chosen}  # 4 has gaps
        a, b = (session.step(time) for session in sessions)
        for i in chosen:
            np.testing.assert_array_equal(a[i].forecasts, b[i].forecasts)


def test_a_call_that_fails_in_place_can_be_made_again(monkeypatch):
    """The slot that was written is one that no row looks at before it is written again."""
    session, twin, x = StreamSession(ring_graph()), StreamSession(ring_graph()), walks(4, 30)
    for t in range(30):
        rows = {i: float(x[i, t]) for i in range(4)}
        if t % 3 == 2:
            with monkeypatch.context() as patch:
                real = Desk.row

                def failing(desk, *given, real=real, **more):
                    real(desk, *given, **more)
                    raise MemoryError

                patch.setattr(Desk, "row", failing)
                with pytest.raises(MemoryError):
                    session.step(dict.fromkeys(range(4), -77.0))
        a, b = session.step(rows), twin.step(rows)
        for i in range(4):
            np.testing.assert_array_equal(a[i].forecasts, b[i].forecasts)


def test_a_graph_whose_writes_disturb_its_reads_is_copied_with_one_warning():
    with pytest.warns(TxlWarning, match=r"written in place, past\.01\.mem differ from a copying run") as caught:
        session = StreamSession(ring_graph(reads_old=True))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert not session._fleet.manner.in_place
    twin = StreamSession(ring_graph(reads_old=True, in_place=False))
    for t in range(20):
        a, b = session.step({0: float(t), 1: 2.0}), twin.step({0: float(t), 1: 2.0})
        np.testing.assert_array_equal(a[0].forecasts, b[0].forecasts)


# ---------------------------------------------------------------------------------------------------------- on a device


def on_device(graph, **how):
    """A session whose state stays in the buffers of its device, whatever that is."""
    session = StreamSession(graph, **how)
    session._begin(Fleet(session._fleet.manner, stays_on_device=True))
    return session


def test_state_that_stays_on_the_device_gives_the_same_numbers(graph, tmp_path):
    """Two sets of buffers in turn, on the CPU's own device; subsets, catch-up, resets, forks and files in between."""
    here, there, x, rng = StreamSession(graph), on_device(graph), walks(6, 120), np.random.default_rng(0)
    at = np.zeros(6, int)
    for turn in range(60):
        chosen = list(range(6)) if turn % 4 else rng.permutation(6)[: rng.integers(1, 7)].tolist()
        lengths = {i: 1 if turn % 7 else int(rng.integers(1, 4)) for i in chosen}
        rows = {i: {"values": {"y": x[i, at[i] : at[i] + n]}} for i, n in lengths.items()}
        a, b = here.step(rows), there.step(rows)
        for i, n in lengths.items():
            # One stream alone runs in place here, in a set there: the same graph, the same numbers.
            np.testing.assert_array_equal(a[i].forecasts, b[i].forecasts)
            at[i] += n
        if turn == 20:
            for session in (here, there):
                session.reset(2)
                session.copy(3, "fork")
                session.step({"fork": 7.0})
                session.close("fork")
        if turn == 40:
            for session in (here, there):
                session.snapshot(tmp_path / f"{session is here}.txl")
            assert (tmp_path / "True.txl").read_bytes() == (tmp_path / "False.txl").read_bytes()
            there.restore(tmp_path / "True.txl")


def test_buffers_of_the_device_are_read_and_written_in_turn(graph):
    session = on_device(graph)
    session.step({0: 1.0, 1: 2.0})
    store = session._fleet.store
    (resident,) = store._by_lanes.values()
    first, second = ([value.numpy().copy() for value in one] for one in resident._sets)
    session.step({0: 1.0, 1: 2.0})
    for before, value in zip(second, resident._sets[1], strict=True):
        np.testing.assert_array_equal(before, value.numpy())  # was read
    assert any((before != value.numpy()).any() for before, value in zip(first, resident._sets[0], strict=True))
    assert (store.shelves[0][0] == 0).all()  # nothing came home


def test_a_call_that_fails_on_the_device_changes_nothing(graph, monkeypatch):
    session, twin = on_device(graph), StreamSession(graph)
    for each in (session, twin):
        each.step({0: 1.0, 1: 2.0})
    with monkeypatch.context() as patch:
        patch.setattr(Resident, "commit", lambda resident: None)
        real = Resident.row

        def failing(resident, *given):
            real(resident, *given)
            raise MemoryError

        patch.setattr(Resident, "row", failing)
        with pytest.raises(MemoryError):
            session.step({0: 9.0, 1: 9.0, 2: 9.0})
        with pytest.raises(MemoryError):
            session.step({0: 9.0, 1: 9.0})
    a, b = (each.step({0: 3.0, 1: 4.0}) for each in (session, twin))
    for i in range(2):
        np.testing.assert_array_equal(a[i].forecasts, b[i].forecasts)


def test_sets_beyond_the_most_come_home(graph, monkeypatch):
    monkeypatch.setattr("txl_ts.runtime.resident._MOST_SETS", 2)
    here, there, x = StreamSession(graph), on_device(graph), walks(5, 12)
    for t in range(12):
        for i in range(5):
            a, b = (session.step({i: float(x[i, t])}) for session in (here, there))
            np.testing.assert_array_equal(a[i].forecasts, b[i].forecasts)
    assert len(there._fleet.store._by_lanes) == 2


def test_in_place_is_for_the_cpu_alone(monkeypatch):
    engine = StreamSession(ring_graph())._fleet.manner.steps
    engine.device = "cuda"  # device buffers are never aliased
    assert not manner_of(engine, where="the graph").in_place


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_a_gpu_gives_the_same_numbers(graph, cuda_graph):
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("onnxruntime has no CUDA here")
    here, there, x = StreamSession(graph, providers="cpu"), None, walks(4, 60)
    there = StreamSession(graph, providers="cuda", cuda_graph=cuda_graph)
    assert there._fleet._stays_on_device
    for t in range(60):
        a, b = (session.step({i: float(x[i, t]) for i in range(4)}) for session in (here, there))
        for i in range(4):
            np.testing.assert_allclose(a[i].forecasts, b[i].forecasts, rtol=1e-4, atol=1e-3)  # TF32, other sums


def test_a_cuda_graph_without_cuda_is_refused(graph):
    with pytest.raises(ParameterError, match="cuda_graph=True needs CUDAExecutionProvider, but the providers are"):
        StreamSession(graph, providers="cpu", cuda_graph=True)


# ---------------------------------------------------------------------------------------------------------- two graphs


@pytest.fixture
def beside(graph, tmp_path):
    """A copy of the graph, and where a graph of one row would lie."""
    path = tmp_path / "demand.onnx"
    path.write_bytes(graph.read_bytes())
    return path, tmp_path / "demand.step.onnx"


def counted(monkeypatch):
    """Count the calls by number of lanes and whether they go to the fixed graph."""
    seen, real = [], Desk._bound

    def bound(desk, n, *given):
        call = real(desk, n, *given)

        def counting():
            seen.append((n, desk.contract.fixed is not None))
            call()

        return counting

    monkeypatch.setattr(Desk, "_bound", bound)
    return seen


def test_one_row_of_one_stream_goes_through_the_graph_that_is_made_for_it(beside, one_row, fitted, monkeypatch):
    path, step = beside
    step.write_bytes(one_row())
    session, seen = StreamSession(path), counted(monkeypatch)
    x = walks(2, 30)
    reference = wanted(fitted, x)
    for t in range(30):
        names = (0, 1) if t % 3 else (0,)
        if len(names) == 1:
            out = session.step({0: float(x[0, t])}) | session.step({1: float(x[1, t])})
        else:
            out = session.step({i: float(x[i, t]) for i in names})
        for i in range(2):
            np.testing.assert_allclose(out[i].quantiles, reference[i, t], **CLOSE)
    assert set(seen) == {(1, True), (2, False)}


@pytest.mark.parametrize("changes", [{"model_digest": "cd" * 32}, {"fixed": None}], ids=["model", "free"])
def test_a_graph_beside_it_that_is_another_is_not_used_and_said_so(beside, one_row, monkeypatch, changes):
    path, step = beside
    step.write_bytes(path.read_bytes() if "fixed" in changes else one_row(**changes))
    with pytest.warns(TxlWarning, match=r"demand\.step\.onnx is no graph for one row of the model in demand\.onnx"):
        session = StreamSession(path)
    seen = counted(monkeypatch)
    session.step({0: 1.0})
    assert seen == [(1, False)]


def test_a_graph_of_one_row_can_be_opened_by_itself(one_row, fitted):
    session, x = StreamSession(one_row()), walks(3, 20)
    reference = wanted(fitted, x)
    out = session.step({i: {"values": {"y": x[i, :15]}} for i in range(3)})
    for i in range(3):
        np.testing.assert_allclose(out[i].forecasts, reference[i, :15], **CLOSE)
    for t in range(15, 20):
        out = session.step({i: float(x[i, t]) for i in range(3)})
        for i in range(3):
            np.testing.assert_allclose(out[i].quantiles, reference[i, t], **CLOSE)


# ------------------------------------------------------------------------------------------------------------- threads


def joined(threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)


def test_streams_of_different_threads_run_side_by_side(graph):
    """Each thread waits inside its run until the other is inside, too: in turn, they would wait for ever."""
    session, both = StreamSession(graph), threading.Barrier(2, timeout=30)
    session.step({"a": 1.0, "b": 1.0})
    fleet = session._fleet
    slow = [Desk(fleet.manner, width=fleet.width) for _ in range(2)]
    for desk in slow:

        def one(*given, call=desk.one):
            both.wait()
            return call(*given)

        desk.one = one
    fleet._desks[:] = [(desk, None) for desk in slow]
    joined([threading.Thread(target=session.step, args=({name: 2.0},)) for name in "ab"])
    assert not both.broken


def test_one_stream_from_many_threads_is_stepped_in_turn(graph):
    session, n, errors = StreamSession(graph), 60, []

    def feed():
        try:
            for _ in range(n):
                session.step({"shared": 1.0, threading.get_ident(): 2.0})
        except BaseException as error:
            errors.append(error)
            raise

    joined([threading.Thread(target=feed) for _ in range(4)])
    assert not errors
    alone = StreamSession(graph)
    for _ in range(4 * n):
        out = alone.step({"shared": 1.0})
    # Another number of lanes in a run may decide a last digit.
    np.testing.assert_allclose(
        session.step({"shared": 1.0})["shared"].forecasts, alone.step({"shared": 1.0})["shared"].forecasts, **CLOSE
    )
    assert session.metrics()["rows"] == 8 * n + 1
    assert out["shared"].status == "ok"


def test_threads_that_step_reset_copy_and_save_do_not_hang(graph, tmp_path):
    session, x, errors = StreamSession(graph), walks(6, 50), []
    session.step(dict.fromkeys(range(6), 1.0))

    def guarded(work):
        def run():
            try:
                work()
            except BaseException as error:
                errors.append(error)
                raise

        return threading.Thread(target=run)

    def feed(i):
        for t in range(50):
            session.step({i: float(x[i, t]), (i + 1) % 6: 1.0})

    def meddle():
        for k in range(10):
            session.copy(0, f"fork-{k}")
            session.reset(f"fork-{k}")
            session.close(f"fork-{k}")
            session.snapshot(tmp_path / "now.txl")
            session.metrics()

    joined([guarded(lambda i=i: feed(i)) for i in range(6)] + [guarded(meddle)])
    assert not errors
    assert session.streams == tuple(range(6))


def test_who_wants_all_streams_is_not_kept_waiting_by_those_who_want_one():
    turns, order = Turns(), []
    with turns.of(["a"]):
        everything = threading.Thread(target=lambda: _take_all(turns, order))
        everything.start()
        while not turns._n_waiting_for_all:
            pass
        one = threading.Thread(target=lambda: _take_one(turns, order))
        one.start()
    joined_already = [everything, one]
    for thread in joined_already:
        thread.join(timeout=30)
    assert order == ["all", "one"]


def _take_all(turns, order):
    with turns.of_all():
        order.append("all")


def _take_one(turns, order):
    with turns.of(["b"]):
        order.append("one")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_of_a_warm_session_goes_on(graph):
    code = f"""
import os
from txl_ts.runtime import StreamSession
session = StreamSession({str(graph)!r}, providers="cpu")
session.step({{"a": 1.0, "b": 2.0}})
child = os.fork()
out = session.step({{"a": 3.0, "b": 4.0}})["a"].forecasts.tobytes()
if not child:
    os._exit(out[0])
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == out[0]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_manner_without_rings_copies_whole_states(graph):
    session = StreamSession(graph)
    plain = StreamSession(graph)
    plain._begin(type(plain._fleet)(Manner(plain._fleet.manner.steps)))
    x = walks(3, 40)
    for t in range(40):
        rows = {i: float(x[i, t]) for i in ((0, 1, 2) if t % 2 else (2, 0))}
        a, b = session.step(rows), plain.step(rows)
        for i in rows:
            np.testing.assert_array_equal(a[i].forecasts, b[i].forecasts)
