"""Compact snapshots: a memory is a function of the rows in its reach, and is rebuilt from them."""

import numpy as np
import pytest

from txl_ts.errors import FileFormatError, StateError
from txl_ts.runtime import StreamSession
from txl_ts.runtime.desk import Manner
from txl_ts.runtime.fleet import Fleet
from txl_ts.runtime.kept import Kept, Record
from txl_ts.state import TensorSpec
from txl_ts.store import Bundle, load, save, table_of

pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

HOUR = 3600 * 10**9
T0 = 473_353 * HOUR
CLOSE = {"rtol": 1e-5, "atol": 1e-4}  # as in test_runtime.py


def walks(n_streams, n_rows, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_streams, n_rows)).cumsum(1).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    return x


def rows(values, first=0):
    return {"time": [T0 + (first + i) * HOUR for i in range(len(values))], "values": {"y": values}}


def bundle_of(path):
    """Read a snapshot without the runtime's eyes."""
    seen = {}

    def expected(config, positions):
        import zipfile

        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.startswith("state"))
            from safetensors.numpy import load as loads

            seen.update(loads(archive.read(name)))
        return {"state": table_of({"state": seen})["state"]}

    return load(path, role="stream-state", expected=expected)


# Row by row; in pieces that are shorter and longer than the reach; more at once than is kept.
FEEDS = {"rows": [1] * 200, "pieces": [7] * 20 + [29] * 3, "at once": [200], "mixed": [3, 90, 1, 1, 64, 41]}


@pytest.mark.parametrize("cuts", FEEDS.values(), ids=FEEDS)
@pytest.mark.parametrize("n_before", [0, 10])
def test_a_compact_snapshot_continues_with_the_same_numbers(graph, tmp_path, cuts, n_before):
    x = walks(3, sum(cuts) + n_before + 20)
    first, second, at = StreamSession(graph), StreamSession(graph), 0
    for n in [n_before] * (n_before > 0) + cuts:
        first.step({i: rows(x[i, at : at + n], at) for i in range(3)})
        at += n
    first.snapshot(tmp_path / "now.txl", compact=True)
    assert "past.00.keys_0" in bundle_of(tmp_path / "now.txl").tensors["state"]
    assert len(bundle_of(tmp_path / "now.txl").tensors["state"]["past.00.keys_0"]) == 0
    second.restore(tmp_path / "now.txl")
    assert second.streams == first.streams
    for t in range(at, at + 20):
        a, b = (s.step({i: rows(x[i, t : t + 1], t) for i in range(3)}) for s in (first, second))
        for i in range(3):
            np.testing.assert_allclose(a[i].quantiles, b[i].quantiles, **CLOSE)
            np.testing.assert_array_equal(a[i].times, b[i].times)


def test_a_restored_compact_snapshot_can_be_written_again(graph, tmp_path):
    x, session = walks(2, 150), StreamSession(graph)
    session.step({i: rows(x[i, :100]) for i in range(2)})
    for at in range(100, 140, 10):
        session.snapshot(tmp_path / "now.txl", compact=True)
        session = StreamSession(graph)
        session.restore(tmp_path / "now.txl")
        session.step({i: rows(x[i, at : at + 10], at) for i in range(2)})
    straight = StreamSession(graph)
    straight.step({i: rows(x[i, :140]) for i in range(2)})
    a, b = (s.step({i: rows(x[i, 140:], 140) for i in range(2)}) for s in (session, straight))
    for i in range(2):
        np.testing.assert_allclose(a[i].forecasts, b[i].forecasts, **CLOSE)


def test_a_stream_that_is_packed_after_each_row_goes_on_for_ever(graph):
    x = walks(2, 120)
    session, straight = StreamSession(graph, max_streams=1), StreamSession(graph)
    for t in range(120):
        for i in range(2):  # the other one is packed meanwhile
            a, b = (s.step({i: rows(x[i, t : t + 1], t)})[i] for s in (session, straight))
            np.testing.assert_allclose(a.quantiles, b.quantiles, **CLOSE)
    assert session.metrics()["evicted"] > 200


def test_a_stream_that_is_restored_after_each_row_goes_on_for_ever(graph, tmp_path):
    x = walks(1, 150)[0]
    session, straight = StreamSession(graph), StreamSession(graph)
    for t in range(150):
        a, b = (s.step({"a": rows(x[t : t + 1], t)})["a"] for s in (session, straight))
        np.testing.assert_allclose(a.quantiles, b.quantiles, **CLOSE)
        session.snapshot(tmp_path / "now.txl", compact=True)
        session.restore(tmp_path / "now.txl")
    state = bundle_of(tmp_path / "now.txl").tensors["state"]
    assert len(state["kept.rows"]) < 2 * session._fleet.kept.n_needed


def test_a_compact_snapshot_from_before_the_second_note_is_read(graph, tmp_path):
    x = walks(1, 200)[0]
    session, straight = StreamSession(graph), StreamSession(graph)
    for s in (session, straight):
        s.step({"a": rows(x[:20])})
    for t in range(20, 200):  # until there is no room for more rows behind that base
        session.snapshot(tmp_path / "old.txl", compact=True)
        bundle = bundle_of(tmp_path / "old.txl")
        bundle.positions.pop("kept_second", None)  # a stream with too few rows is written whole
        state = {name: a for name, a in bundle.tensors["state"].items() if not name.startswith("second.")}
        save(tmp_path / "old.txl", Bundle(bundle.role, bundle.config, {"state": state}, bundle.positions))
        session.restore(tmp_path / "old.txl")
        a, b = (s.step({"a": rows(x[t : t + 1], t)})["a"] for s in (session, straight))
        np.testing.assert_allclose(a.quantiles, b.quantiles, **CLOSE)


def test_young_streams_and_gaps_are_kept_too(graph, tmp_path):
    first, second = StreamSession(graph), StreamSession(graph)
    x = walks(1, 30)[0]
    first.step({"young": rows(x[:4]), "gap": rows(x[:20]), "new": rows(x[:20]), "untimed": 1.0, "reset": 1.0})
    first.step({"gap": rows(x[:3], 25), "new": rows(x[:3], 20 + first.contract.reach + 9)})
    first.reset("reset")
    first.snapshot(tmp_path / "now.txl", compact=True)
    second.restore(tmp_path / "now.txl")
    a, b = (s.step(dict.fromkeys(("young", "gap", "new", "untimed", "reset"), 2.0)) for s in (first, second))
    for name in a:
        np.testing.assert_allclose(a[name].quantiles, b[name].quantiles, **CLOSE)
        assert a[name].status == b[name].status


def test_streams_with_too_few_kept_rows_are_written_whole(graph, tmp_path):
    x, old = walks(2, 80), StreamSession(graph)
    old.step({i: rows(x[i, :60]) for i in range(2)})
    old.snapshot(tmp_path / "full.txl")
    session, again = StreamSession(graph), StreamSession(graph)
    session.restore(tmp_path / "full.txl")
    session.step({1: rows(x[1, 60:75], 60), "new": rows(x[0, :5], 0)})
    session.snapshot(tmp_path / "mixed.txl", compact=True)
    assert len(bundle_of(tmp_path / "mixed.txl").tensors["state"]["past.00.keys_0"]) == 2
    again.restore(tmp_path / "mixed.txl")
    assert set(again.streams) == {0, 1, "new"}
    a, b = (s.step({0: rows(x[0, 60:], 60), 1: rows(x[1, 75:], 75), "new": 3.0}) for s in (session, again))
    for name in a:
        np.testing.assert_allclose(a[name].forecasts, b[name].forecasts, **CLOSE)
    for t in range(80, 120):  # enough rows have come by now
        session.step({0: rows([1.0], t), 1: rows([1.0], t)})
    session.snapshot(tmp_path / "compact.txl", compact=True)
    assert len(bundle_of(tmp_path / "compact.txl").tensors["state"]["past.00.keys_0"]) == 0


def test_packed_streams_are_saved_in_any_snapshot(graph, tmp_path):
    x, session, again = walks(6, 60), StreamSession(graph, max_streams=2), StreamSession(graph)
    session.step({i: rows(x[i, :50]) for i in range(6)})
    assert session.metrics()["packed"] == 4
    session.snapshot(tmp_path / "now.txl")
    again.restore(tmp_path / "now.txl")
    a, b = (s.step({i: rows(x[i, 50:], 50) for i in range(6)}) for s in (session, again))
    for i in range(6):
        np.testing.assert_allclose(a[i].forecasts, b[i].forecasts, **CLOSE)


def change(path, **changes):
    """Write the snapshot again with other positions or tensors."""
    bundle = bundle_of(path)
    for key, value in changes.items():
        if key in bundle.tensors["state"]:
            bundle.tensors["state"][key] = value(bundle.tensors["state"][key].copy())
        else:
            bundle.positions[key] = value(bundle.positions[key])
    save(path, Bundle(bundle.role, bundle.config, bundle.tensors, bundle.positions))


def _first(array, value):
    array.flat[0] = value
    return array


CRAFTED = {
    "counts": ({"kept": lambda k: [10**9, 1]}, "kept must be counts of at most"),
    "negative": ({"kept": lambda k: [-1, 1]}, "kept must be counts of at most"),
    "more than streams": ({"kept": lambda k: [*k, 1]}, "for no more than all streams"),
    "flags": ({"kept_whole": lambda k: [1, 0]}, "kept_whole must be one flag"),
    "second note": ({"kept_second": lambda k: [10**9, 1]}, "kept_second must be a place among the rows"),
    "sum": ({"kept": lambda k: [k[0] + 1, k[1]]}, "shape"),
    "infinite row": ({"kept.rows": lambda a: _first(a, np.inf)}, r"kept\.rows holds numbers that are not finite"),
    "NaN": ({"base.past.05.norm": lambda a: _first(a, np.nan)}, r"base\.past\.05\.norm holds numbers that are not"),
}


@pytest.mark.parametrize(("changes", "text"), CRAFTED.values(), ids=CRAFTED)
def test_a_crafted_compact_snapshot_is_refused_and_nothing_is_changed(graph, tmp_path, changes, text):
    session, path = StreamSession(graph), tmp_path / "now.txl"
    session.step({i: rows([1.0] * 50) for i in range(2)})
    session.snapshot(path, compact=True)
    session.snapshot(tmp_path / "before.txl")
    change(path, **changes)
    with pytest.raises(FileFormatError, match=text):
        session.restore(path)
    session.snapshot(tmp_path / "after.txl")
    assert (tmp_path / "before.txl").read_bytes() == (tmp_path / "after.txl").read_bytes()


def test_a_graph_without_rings_writes_whole_streams_and_refuses_compact_ones(graph, tmp_path):
    session, plain = StreamSession(graph), StreamSession(graph)
    plain._begin(Fleet(Manner(plain._fleet.manner.steps)))
    for each in (session, plain):
        each.step({"a": rows([1.0] * 50)})
        each.snapshot(tmp_path / f"{id(each)}.txl", compact=True)
    again = StreamSession(graph)
    again.restore(tmp_path / f"{id(plain)}.txl")
    with pytest.raises(StateError, match="the snapshot is a compact one"):
        plain.restore(tmp_path / f"{id(session)}.txl")


# ---------------------------------------------------------------------------------------------------------- kept rows


def test_kept_rows_always_hold_the_last_ones_and_the_tensors_before_them():
    """The small tensor of this model is the number of rows that a lane has seen."""
    rng = np.random.default_rng(0)
    kept = Kept([TensorSpec("n", (), "int32")], n_channels=1, n_rows=5)
    kept.make_room(3)
    lanes = np.arange(3)
    kept.begin(lanes)
    seen = np.zeros(3, np.int64)
    for _ in range(200):
        mine = rng.permutation(3)[: rng.integers(1, 4)]
        n = int(rng.integers(1, 6))
        values = (seen[mine][:, None] + np.arange(n))[:, :, None].astype(np.float32)
        seen[mine] += n
        if n == 1 and len(mine) == 1:
            kept.add_one(int(mine[0]), values[0, 0], lambda lanes: [seen[lanes].astype(np.int32)])
        else:
            kept.add(mine, values, lambda lanes: [seen[lanes].astype(np.int32)])
        assert kept.is_enough(lanes).all()
        for lane in range(3):
            record = kept.record(lane, [])
            first = int(record.base[0])
            assert record.rows[:, 0].tolist() == list(range(first, seen[lane]))
            assert kept.is_whole[lane] == (first == 0)
            assert first == 0 or len(record.rows) >= 5


def test_a_record_is_put_back_with_its_second_note():
    """Packed after each row, the base still goes on: what is kept stays short."""
    kept = Kept([TensorSpec("n", (), "int32")], n_channels=1, n_rows=3)
    kept.make_room(1)
    kept.begin(np.array([0]))
    for t in range(40):
        kept.add_one(0, np.array([t], np.float32), lambda lanes, t=t: [np.full(len(lanes), t + 1, np.int32)])
        record = kept.record(0, [np.int32(t + 1)])
        assert record.rows[:, 0].tolist() == list(range(int(record.base[0]), t + 1))
        assert len(record.rows) < 6
        kept.put(0, record, is_whole=bool(kept.is_whole[0]))


def test_a_record_that_is_put_back_goes_on():
    kept = Kept([TensorSpec("n", (), "int32")], n_channels=1, n_rows=3)
    kept.make_room(2)
    record = Record([np.int32(7)], np.arange(7, 13, dtype=np.float32)[:, None], [np.int32(13)])
    kept.put(1, record, is_whole=False)
    kept.copy(1, 0)
    for t in range(13, 30):
        kept.add_one(0, np.array([t], np.float32), lambda lanes, t=t: [np.full(len(lanes), t + 1, np.int32)])
        back = kept.record(0, [])
        assert back.rows[:, 0].tolist() == list(range(int(back.base[0]), t + 1))
    assert kept.record(1, []).rows[:, 0].tolist() == list(range(7, 13))


def test_without_a_memory_a_row_is_kept_nevertheless():
    """Walks are cut before the rows that are kept: with none, the rows of a whole walk would have to be."""
    assert Kept([TensorSpec("n", (), "int32")], n_channels=1, n_rows=0).n_needed == 1
