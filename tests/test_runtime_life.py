"""The life of a fleet: memories filled from history, new weights without losing a row, streams that go, counters."""

import copy
import re
import threading
from datetime import timedelta

import numpy as np
import pytest
import torch

from txl_ts.errors import ColumnError, ExportError, ParameterError, StampError, StateError
from txl_ts.runtime import StreamSession

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


def wanted(model, x):
    with torch.inference_mode():
        y, _ = model(torch.from_numpy(x)[:, :, None], model.init_state(len(x)))
    return y.numpy()[:, :, :, 0]


def rows(values, first=0):
    return {"time": [T0 + (first + i) * HOUR for i in range(len(values))], "values": {"y": values}}


def fed(session, x, first, last):
    """Step all streams row by row; gives the last results."""
    for t in range(first, last):
        out = session.step({i: rows(x[i, t : t + 1], t) for i in range(len(x))})
    return out


@pytest.fixture(scope="session")
def retrained(fitted, tmp_path_factory):
    """The same sizes with other weights, and its graph."""
    model = copy.deepcopy(fitted)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for parameter in model._model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    path = tmp_path_factory.mktemp("retrained") / "demand.onnx"
    model.export_onnx(path)
    return model._model, path


# ---------------------------------------------------------------------------------------------------------------- warm


def test_memories_filled_from_history_are_those_of_rows_that_were_stepped(graph):
    x, warm, stepped = walks(3, 90), StreamSession(graph), StreamSession(graph)
    assert warm.warm({i: rows(x[i, :80]) for i in range(3)}) == 240
    fed(stepped, x, 0, 80)
    for t in range(80, 90):
        a, b = fed(warm, x, t, t + 1), fed(stepped, x, t, t + 1)
        for i in range(3):
            np.testing.assert_allclose(a[i].quantiles, b[i].quantiles, **CLOSE)
            np.testing.assert_array_equal(a[i].times, b[i].times)


@pytest.mark.parametrize("kind", ["dict", "frame"])
def test_a_long_table_in_any_order_is_a_history(graph, frame, kind):
    x, by_name, long = walks(3, 40), StreamSession(graph), StreamSession(graph)
    by_name.warm({f"m{i}": rows(x[i]) for i in range(3)})
    order = np.random.default_rng(0).permutation(120)
    columns = {
        "unique_id": np.repeat(["m0", "m1", "m2"], 40)[order].tolist(),
        "ds": np.tile(T0 + np.arange(40) * HOUR, 3)[order].view("M8[ns]"),
        "y": x.reshape(-1)[order],
    }
    assert long.warm(frame(columns) if kind == "frame" else columns) == 120
    for i in range(3):
        a, b = (s.step({f"m{i}": rows([1.0], 40)})[f"m{i}"] for s in (by_name, long))
        np.testing.assert_array_equal(a.quantiles, b.quantiles)


@pytest.mark.parametrize("value", [50.0, np.nan])
def test_a_history_of_one_row_is_that_row(graph, value):
    warm, stepped, history = StreamSession(graph), StreamSession(graph), {"a": rows([value]), "b": rows([1.0, 2.0])}
    warm.warm(history)
    stepped.step(history)
    a, b = (s.step({"a": 51.0})["a"] for s in (warm, stepped))
    np.testing.assert_array_equal(a.forecasts, b.forecasts)
    assert warm.metrics()["statuses"] == stepped.metrics()["statuses"]


@pytest.mark.parametrize("ids", [["5", 5, "5", 5], np.array(["5", 5, "5", 5], object)], ids=["list", "objects"])
def test_a_name_and_the_number_that_is_written_like_it_are_two_streams(graph, ids):
    session = StreamSession(graph)
    assert session.warm({"unique_id": ids, "ds": T0 + np.array([0, 0, 1, 1]) * HOUR, "y": np.arange(4.0)}) == 4
    assert set(session.streams) == {"5", 5}


def test_a_history_that_cannot_be_read_changes_nothing(graph):
    session = StreamSession(graph)
    session.step({"a": rows([1.0], 50)})
    with pytest.raises(ColumnError, match=r"the history has no column 'ds': it has \['unique_id', 'y'\]"):
        session.warm({"unique_id": ["b"], "y": [1.0]})
    with pytest.raises(ParameterError, match="history is of type int, expected rows by stream, or columns by name"):
        session.warm(5)
    with pytest.raises(StampError, match="stream 'a'"):
        session.warm({"b": rows([1.0]), "a": rows([1.0], 50)})
    assert session.streams == ("a",)


# ---------------------------------------------------------------------------------------------------------------- swap


def test_swapped_streams_continue_with_the_new_models_numbers(graph, retrained):
    """With the whole history, the new model says what it would have said from the beginning."""
    model, path = retrained
    x, session = walks(3, 130), StreamSession(graph)
    fed(session, x, 0, 120)
    report = session.swap(path, history={i: rows(x[i, :100]) for i in range(3)})
    assert report["streams"] == 3
    assert report["rows"] == 3 * 120
    assert report["without_history"] == 0
    reference = wanted(model, x)
    for t in range(120, 130):
        out = fed(session, x, t, t + 1)
        for i in range(3):
            np.testing.assert_allclose(out[i].quantiles, reference[i, t], **CLOSE)
            assert out[i].times[0] == np.datetime64(T0 + t * HOUR, "ns")


def test_without_history_the_kept_rows_are_walked(graph, retrained):
    model, path = retrained
    x, session = walks(2, 150), StreamSession(graph)
    fed(session, x, 0, 149)
    kept = [len(session._fleet.recent(i)[1].values) for i in range(2)]
    assert min(kept) >= session.contract.n_layers * session.contract.mem_len * session.contract.stride
    session.swap(path)
    out = fed(session, x, 149, 150)
    for i, n in enumerate(kept):
        reference = wanted(model, x[i : i + 1, 149 - n : 150])
        np.testing.assert_allclose(out[i].quantiles, reference[0, -1], **CLOSE)


def test_streams_without_times_are_swapped_too(graph, retrained):
    model, path = retrained
    x, session = walks(1, 41), StreamSession(graph)
    for t in range(40):
        session.step({"a": float(x[0, t])})
    session.swap(path)
    out = session.step({"a": float(x[0, 40])})["a"]
    assert out.times is None
    np.testing.assert_allclose(out.quantiles, wanted(model, x)[0, -1], **CLOSE)


def test_no_row_is_lost_or_answered_twice_while_a_swap_runs(graph, retrained, fitted):
    """One thread feeds, one swaps: each row has one answer, the old model's or, later, the new one's."""
    model, path = retrained
    n_streams, n_rows = 4, 400
    x, session = walks(n_streams, n_rows), StreamSession(graph)
    fed(session, x, 0, 20)
    answers, switched = {}, threading.Event()

    def feed():
        for t in range(20, n_rows):
            answers[t] = fed(session, x, t, t + 1)
            if t == 60:
                swapping.start()
            if t > 60 and not switched.is_set() and t == n_rows - 60:
                switched.wait(60)

    def swap():
        session.swap(path, history={i: rows(x[i, :55]) for i in range(n_streams)})
        switched.set()

    swapping = threading.Thread(target=swap)
    feeding = threading.Thread(target=feed)
    feeding.start()
    feeding.join(120)
    swapping.join(120)
    assert not feeding.is_alive()
    assert not swapping.is_alive()
    assert sorted(answers) == list(range(20, n_rows))
    old, new = wanted(fitted._model, x), wanted(model, x)
    is_new = []
    for t, out in answers.items():
        near = [all(np.allclose(out[i].quantiles, y[i, t], **CLOSE) for i in range(n_streams)) for y in (old, new)]
        assert sum(near) == 1, t
        is_new.append(near[1])
    assert is_new == sorted(is_new)
    assert is_new[-1]
    assert session.metrics()["rows"] == n_streams * n_rows


def test_a_shadow_compares_and_does_not_answer_until_it_is_switched(graph, retrained, fitted):
    model, path = retrained
    x, session = walks(2, 100), StreamSession(graph)
    fed(session, x, 0, 60)
    session.swap(path, history={i: rows(x[i, :60]) for i in range(2)}, shadow=True)
    old, new = wanted(fitted._model, x), wanted(model, x)
    out = fed(session, x, 60, 90)
    np.testing.assert_allclose(out[1].quantiles, old[1, 89], **CLOSE)
    report = session.shadow_report()
    assert report["rows"] == 60
    medians = np.abs(new[:, 60:90, :, 1].astype(float) - old[:, 60:90, :, 1])
    width = old[:, 60:90, :, -1].astype(float) - old[:, 60:90, :, 0]
    assert report["median_change"] == pytest.approx(medians.sum() / width.sum(), rel=1e-3)
    assert report["largest_change"] == pytest.approx(medians.max(), rel=1e-3)
    assert 0 <= report["coverage_new"] <= 1
    session.switch()
    out = fed(session, x, 90, 91)
    np.testing.assert_allclose(out[1].quantiles, new[1, 90], **CLOSE)


@pytest.mark.parametrize("shadow", [True, False])
def test_a_swap_that_is_rolled_back_has_lost_no_row(graph, retrained, shadow):
    x, session, straight = walks(3, 100), StreamSession(graph), StreamSession(graph)
    for each in (session, straight):
        fed(each, x, 0, 60)
    session.swap(retrained[1], shadow=shadow)
    for each in (session, straight):
        fed(each, x, 60, 80)
        each.reset(2)
        each.copy(0, "fork")
        each.step({"new": rows([1.0, 2.0], 80)})
    session.roll_back()
    for each in (session, straight):
        fed(each, x[:2], 80, 90)
    a, b = (
        each.step({0: rows([1.0], 90), "fork": rows([1.0], 80), "new": rows([1.0], 82)}) for each in (session, straight)
    )
    assert session.streams == straight.streams
    for name in a:
        np.testing.assert_array_equal(a[name].forecasts, b[name].forecasts)
    with pytest.raises(StateError, match="there is nothing to go back to"):
        session.roll_back()


def test_a_stream_of_one_row_is_swapped_with_that_row(graph, retrained):
    session, fresh = StreamSession(graph), StreamSession(retrained[1])
    for s in (session, fresh):
        s.step({"a": rows([50.0])})
    session.swap(retrained[1])
    a, b = (s.step({"a": 51.0})["a"] for s in (session, fresh))
    np.testing.assert_array_equal(a.forecasts, b.forecasts)


def test_a_stream_that_was_reset_is_still_there_after_a_swap(graph, retrained):
    session, fresh = StreamSession(graph), StreamSession(retrained[1])
    session.step({"a": 1.0, "b": 2.0})
    session.reset("a")
    assert session.swap(retrained[1])["without_history"] == 1
    assert set(session.streams) == {"a", "b"}
    np.testing.assert_array_equal(session.step({"a": 5.0})["a"].forecasts, fresh.step({"a": 5.0})["a"].forecasts)


def test_after_settling_there_is_no_way_back(graph, retrained):
    session = StreamSession(graph)
    session.step({"a": 1.0})
    session.swap(retrained[1])
    session.settle()
    with pytest.raises(StateError, match="`settle` was called"):
        session.roll_back()


def test_a_journal_is_let_go_once_it_is_too_long(graph, retrained, monkeypatch):
    monkeypatch.setattr("txl_ts.runtime.swapping.MOST_ROWS", 3)
    session = StreamSession(graph)
    session.step({"a": 1.0})
    session.swap(retrained[1])
    session.step({"a": [1.0]} and {"a": {"values": {"y": [1.0] * 4}}})
    with pytest.raises(StateError, match="more than 3 rows have come since the switch"):
        session.roll_back()
    session.step({"a": 1.0})


def test_a_model_of_other_streams_is_refused_and_the_old_one_goes_on(graph, changed, retrained):
    session, straight = StreamSession(graph), StreamSession(graph)
    x = walks(1, 30)
    fed(session, x, 0, 20)
    fed(straight, x, 0, 20)
    other = changed(lambda d: d["inputs"][0]["channels"][0].update(name="load"))
    with pytest.raises(StateError, match=r"the new model has channels=\('load',\), the streams have \('y',\)"):
        session.swap(other)
    with pytest.raises(StampError, match="not a whole number of steps"):
        session.swap(retrained[1], history={0: {"time": [T0 - HOUR - 5], "values": {"y": [1.0]}}})
    session.swap(retrained[1], shadow=True)
    with pytest.raises(StateError, match="another swap is under way"):
        session.swap(retrained[1])
    session.roll_back()
    with pytest.raises(StateError, match="no new model walks along"):
        session.switch()
    a, b = fed(session, x, 20, 30), fed(straight, x, 20, 30)
    np.testing.assert_array_equal(a[0].forecasts, b[0].forecasts)


# ------------------------------------------------------------------------------------------------------------ eviction


def test_streams_beyond_the_most_are_packed_and_return_as_they_were(graph):
    x, session, free = walks(8, 120), StreamSession(graph, max_streams=3), StreamSession(graph)
    for each in (session, free):
        for t in range(100):
            for i in range(8):
                each.step({i: rows(x[i, t : t + 1], t)})
    assert session.metrics()["packed"] >= 5
    assert len(session.streams) == 8
    for t in range(100, 120):
        i = t % 8
        a, b = (each.step({i: rows(x[i, t : t + 1], t)})[i] for each in (session, free))
        np.testing.assert_allclose(a.quantiles, b.quantiles, **CLOSE)
        assert a.status == b.status
    session.close(0)
    session.copy(1, "fork")
    session.reset(2)
    assert len(session.streams) == 8
    assert session.metrics()["evicted"] > 100


def test_idle_streams_are_closed_by_the_time_of_the_stamps(graph):
    session = StreamSession(graph, idle="48h")
    session.step({"old": rows([1.0]), "new": rows([1.0])})
    for t in range(1, 49):
        session.step({"new": rows([1.0], t)})
    assert session.streams == ("old", "new")
    for t in range(49, 60):
        session.step({"new": rows([1.0], t)})
    assert session.streams == ("new",)
    assert StreamSession(graph, idle=timedelta(hours=2))._idle == 2 * HOUR


def test_one_clock_far_ahead_does_not_end_the_closing_of_idle_streams(graph):
    session = StreamSession(graph, idle="10h")
    session.step({"before": rows([1.0])})
    session.step({"wrong": rows([1.0], 10**6)})
    assert session.streams == ("wrong",)
    for t in range(1, 40):
        session.step({f"m{t}": rows([1.0], t)})
    assert len(session.streams) < 15


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"idle": "soon"}, "idle='soon' must be '2h'"),
        ({"idle": 5}, "idle=5 must be '2h'"),
        ({"idle": "0h"}, "idle='0h' must be"),
        ({"max_streams": 0}, "max_streams=0 must be a positive integer"),
        ({"max_streams": True}, "max_streams=True must be a positive integer"),
    ],
)
def test_what_goes_is_checked(graph, given, text):
    with pytest.raises(ParameterError, match=text):
        StreamSession(graph, **given)


# ------------------------------------------------------------------------------------------------------------- metrics


def test_counters_count_what_was_done(graph):
    session = StreamSession(graph)
    assert session.metrics()["call_seconds_p50"] is None
    session.step({"a": rows([1.0] * 20), "b": rows([1.0])})
    session.step({"a": rows([2.0], 23), "b": rows([np.nan], 1)})  # three rows did not come
    session.step({"b": rows([1.0], 2 + session.contract.reach + 1)})
    for late in (22, 23):
        with pytest.raises(StampError):
            session.step({"a": rows([2.0], late)})
    with pytest.raises(ColumnError):
        session.step({"a": {"values": {}}})
    metrics = session.metrics()
    expected = {"streams": 2, "packed": 0, "rows": 24, "calls": 3, "refused": 3, "late": 1, "duplicates": 1}
    expected |= {"gaps": 3, "resets": 1, "evicted": 0, "statuses": {"ok": 2, "warming_up": 2, "missing": 1}}
    assert {key: metrics[key] for key in expected} == expected
    assert 0 < metrics["call_seconds_p50"] <= metrics["call_seconds_p99"]


def test_coverage_is_the_share_of_values_inside_their_forecasts(graph, fitted):
    x = walks(3, 80)
    y = wanted(fitted._model, x)[:, :-1, 0]
    later = x[:, 1:]
    known = np.isfinite(later) & np.isfinite(y[..., 0])
    inside = known & (y[..., 0] <= later) & (later <= y[..., -1])
    one_by_one, at_once = StreamSession(graph), StreamSession(graph)
    fed(one_by_one, x, 0, 80)
    at_once.step({i: rows(x[i, :50]) for i in range(3)})
    fed(at_once, x, 50, 80)
    for session in (one_by_one, at_once):
        assert session.metrics()["coverage"] == pytest.approx(inside.sum() / known.sum(), abs=2 / known.sum())


def test_prometheus_can_read_the_counters(graph):
    session = StreamSession(graph)
    assert "coverage" not in session.metrics_text()
    fed(session, walks(2, 30), 0, 30)
    line = re.compile(r'(# (HELP|TYPE) txl_ts_\w+ .+)|(txl_ts_\w+(\{\w+="[\w.]+"\})? -?[0-9.e+-]+)')
    text = session.metrics_text()
    assert text.endswith("\n")
    assert all(line.fullmatch(one) for one in text.splitlines())
    assert "txl_ts_rows_total 60\n" in text
    assert 'txl_ts_results_total{status="ok"}' in text


# -------------------------------------------------------------------------------------------------------------- verify


def as_function(model):
    def step(x, state):
        with torch.inference_mode():
            return model(torch.from_numpy(x), {name: torch.from_numpy(array) for name, array in state.items()})

    return step


def test_a_session_is_verified_against_the_model(graph, fitted):
    worst = StreamSession(graph).verify(as_function(fitted._model), init=fitted._model.init_state)
    assert 0 < worst < 1e-5


def test_another_model_is_found_out(graph, fitted, retrained):
    session = StreamSession(graph)
    with pytest.raises(
        ExportError, match=r"differ from the function's by .* more than 1\.0e-05 \(1 streams, call \d of"
    ):
        session.verify(as_function(retrained[0]), init=fitted._model.init_state)
    with pytest.raises(ExportError, match=r"gives y of shape \(1, 1, 1\), the graph \(1, 1, 3, 1, 3\)"):
        session.verify(lambda x, state: (x, state))
