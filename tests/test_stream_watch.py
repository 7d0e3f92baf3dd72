"""Rows step a model, are scored by what was said before; splits, restarts and revisions lose and repeat nothing."""

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles.mean_session import MeanSession
from txl_ts.calibration import Calibration
from txl_ts.errors import ColumnError, FileFormatError, ParameterError, SaveError, StateError, TxlError
from txl_ts.stream import Alerts, Channel, Intake, Rule, Surprise, Watch, from_arrays, restore, snapshot, to_arrays
from txl_ts.stream.score import joint_surprise, surprises

MIN = 60 * 10**9
T0 = 473_353 * 60 * MIN
ROOT = Path(__file__).parents[1]


def normal_scores(n=999):
    """About what is said of two standard normal sensors whose deviation MeanSession takes for 80 % of the rows."""
    rng = np.random.default_rng(5)
    return joint_surprise(surprises(1.4 * rng.normal(size=(n, 2))))


def make(columns=("flow", "heat"), *, online=False, warm_rows=5, **more):
    intake = Intake(list(columns), tick="1min", max_gap="5min", late="2min")
    calibration = Calibration(normal_scores(), contamination=0.01, online=online)
    rules = {"anomaly": Rule(over="2min", within="4min", clear="2min"), "stale": Rule(), "clock_back": Rule()}
    more = {"alerts": Alerts(rules), "calibration": calibration, **more}
    return Watch(intake, MeanSession(intake.columns, warm_rows), **more)


def log_of(seed, n=120):
    """Two sensors with noise, a burst, a silence, missing values, repeats and a clock that goes back."""
    rng = np.random.default_rng(seed)
    log = []
    for i in range(n):
        if 60 <= i < 70:
            continue
        far = 9.0 if 40 <= i < 47 else 0.0
        log.append(("flow", T0 + i * MIN, float(rng.normal() + far)))
        log.append({"time": T0 + i * MIN, "values": {"heat": None if i % 11 == 3 else float(rng.normal())}})
        if i % 13 == 5:
            log.append(log[-1])
        if i == 90:
            log.append(("flow", T0 + 20 * MIN, 1.0))
    return log


def plain(watched):
    return json.dumps([one.to_json() for one in watched], allow_nan=False)


def walk(watch, log, name="pump", cuts=()):
    found, first = [], 0
    for cut in [*sorted(cuts), len(log)]:
        found += watch.step({name: log[first:cut]})[name]
        first = cut
    return found


def alerts_of(watched):
    return [(a.event, a.kind, (a.since - T0) // MIN, (a.at - T0) // MIN) for one in watched for a in one.alerts]


# --------------------------------------------------------------------------------------------------------------- scores


def test_a_row_is_scored_by_the_forecast_that_was_made_before_it():
    watch = make(["flow"], warm_rows=1)
    found = walk(watch, [("flow", T0 + i * MIN, v) for i, v in enumerate([1.0, 3.0, 5.0, 7.0, 8.0, 9.0])])
    # Mean 2 and deviation 1 of (1, 3) are said before 5 comes: three half-widths from the median, each 1.28 normal
    # scores, of which the two beyond the band count a little less. The bound of Mills' ratio is within 1 %.
    z = 1.2816 + 10 * math.log1p(2 * 1.2816 / 10)
    wanted = -math.log10(2 * (1 - NormalDist().cdf(z)))
    assert found[2].score == pytest.approx(wanted, rel=0.01)
    assert found[2].band == {"flow": (1.0, 3.0)}
    assert found[2].parts == {"flow": found[2].score}


def test_a_score_that_cannot_be_given_is_nan_with_its_status_and_never_0():
    found = walk(make(), log_of(0))
    assert {one.status for one in found if math.isnan(one.score)} >= {
        "warming_up",
        "missing",
        "stale",
        "reset",
        "duplicate",
    }
    assert all(one.score > 0 for one in found if not math.isnan(one.score))
    assert all(math.isnan(one.p_value) == math.isnan(one.score) for one in found)
    assert all(not math.isnan(one.score) for one in found if one.status == "ok")


def test_a_missing_sensor_leaves_the_score_to_the_others_and_a_row_without_any_has_none():
    found = walk(make(), log_of(0))
    half = [one for one in found[10:50] if one.status == "missing"]
    assert half
    assert all(list(one.parts) == ["flow"] for one in half)
    empty = [one for one in found if one.row.is_used and not one.row.raw]
    assert empty
    assert all(math.isnan(one.score) for one in empty)


def test_a_burst_is_one_alert_that_names_the_sensor_its_band_and_since_when():
    found = walk(make(), log_of(0))
    (raised,) = [a for one in found for a in one.alerts if a.kind == "anomaly" and a.event == "raised"]
    assert raised.sensors[0] == "flow"
    low, high = raised.band["flow"]
    assert low < 0 < high < raised.values["flow"]
    assert (raised.since - T0) // MIN == 40


def test_a_stream_that_dies_raises_an_alert_of_stale_sensors():
    watch = make()
    walk(watch, log_of(0)[:60])
    found = watch.step({"pump": [(None, T0 + 200 * MIN, None)]})["pump"]
    (alert,) = [a for one in found for a in one.alerts]
    assert (alert.event, alert.kind, alert.sensors) == ("raised", "stale", ("flow", "heat"))


def test_a_refused_reading_alerts_and_the_next_right_row_clears_it():
    found = [one for one in alerts_of(walk(make(), log_of(0))) if one[1] == "clock_back"]
    assert [event for event, *_ in found] == ["raised", "cleared"]


def test_a_reset_empties_the_models_memory():
    watch = make()
    log = log_of(0)
    found = walk(watch, log)
    at = next(i for i, one in enumerate(found) if one.row.is_reset)
    assert [one.status for one in found[at : at + 6] if one.row.is_used].count("warming_up") >= 3
    fresh = make()
    after = [one for one in found[at:] if one.row.is_used]
    again = fresh.model.step({"pump": {"time": after[0].row.stamp, "values": after[0].row.values}})
    assert again["pump"].status == "warming_up"
    assert watch.model.lanes["pump"]["n"] == len(after)


def test_a_protected_memory_does_not_see_rows_that_alarm():
    log = [("flow", T0 + i * MIN, (-1.0) ** i + (50.0 if i == 40 else 0.0)) for i in range(60)]
    open_, protected = make(["flow"]), make(["flow"], protect_memory=True)
    walk(open_, log), walk(protected, log)
    assert open_.model.lanes["pump"]["seen"]["flow"][0] == protected.model.lanes["pump"]["seen"]["flow"][0] + 1
    assert protected.model.lanes["pump"]["seen"]["flow"][1] == pytest.approx(0.0, abs=1.01)


def alarms_after_a_new_level(n=120, step_at=40, **more):
    watch = make(["flow"], **more)
    values = [(-1.0) ** i + (9.0 if i >= step_at else 0.0) for i in range(n)]
    found = walk(watch, [("flow", T0 + i * MIN, v) for i, v in enumerate(values)]) + watch.flush()["pump"]
    return np.array([one.p_value <= watch.calibration.alpha for one in found])


def test_a_memory_that_is_protected_for_a_while_learns_a_new_level_after_it():
    for_ever, while_ = (alarms_after_a_new_level(protect_memory=one) for one in (True, "10min"))
    assert for_ever[40:].all()
    assert while_[40:51].all()
    assert not while_[-40:].any()
    np.testing.assert_array_equal(alarms_after_a_new_level(protect_memory="10d"), for_ever)


def test_how_long_a_memory_was_protected_survives_a_restart(tmp_path):
    log = [("flow", T0 + i * MIN, (-1.0) ** i + (9.0 if i >= 40 else 0.0)) for i in range(80)]
    whole = walk(make(["flow"], protect_memory="10min"), log)
    watch = make(["flow"], protect_memory="10min")
    found = walk(watch, log[:47])
    snapshot(watch, tmp_path / "now")
    again = make(["flow"], protect_memory="10min")
    restore(again, tmp_path / "now")
    assert plain(found + walk(again, log[47:])) == plain(whole)


def test_many_streams_take_one_call_of_the_model_per_row():
    watch = make(["flow"])
    log = [("flow", T0 + i * MIN, 1.0) for i in range(10)]
    together = watch.step({f"pump-{i}": log for i in range(30)})
    assert watch.model.n_calls == len(together["pump-0"])
    assert plain(together["pump-7"]) == plain(walk(make(["flow"]), log))


# ------------------------------------------------------------------------------------------------- splits and restarts


@settings(max_examples=30)
@given(st.integers(0, 3), st.sets(st.integers(0, 200), max_size=20), st.booleans())
def test_any_split_of_the_messages_gives_the_same_rows_scores_and_alerts(seed, cuts, online):
    log = log_of(seed)
    assert plain(walk(make(online=online), log, cuts=cuts)) == plain(walk(make(online=online), log))


@pytest.mark.parametrize("more", [{}, {"online": True}, {"on_revision": "rewind", "epoch_rows": 7}], ids=str)
def test_a_snapshot_at_any_message_continues_the_same(more, tmp_path):
    log = log_of(1)
    whole = plain(walk(make(**more), log))
    for cut in range(0, len(log), 9):
        watch = make(**more)
        first = walk(watch, log[:cut])
        snapshot(watch, tmp_path / "now")
        again = make(**more)
        taken = restore(again, tmp_path / "now")
        assert taken == {"pump": cut}
        assert plain(first + walk(again, log[taken["pump"] :])) == whole


KILLED = """
import json, sys
sys.path[:0] = {path!r}
from tests.test_stream_watch import *
watch, out = make(), open({out!r}, "a")
taken = restore(watch, {folder!r}).get("pump", 0) if {resumes} else 0
log = log_of(2)
for i in range(taken, len(log)):
    for one in watch.step({{"pump": [log[i]]}})["pump"]:
        out.write(json.dumps(one.to_json()) + "\\n")
    out.flush()
    if i % 10 == 9:
        snapshot(watch, {folder!r})
    if i == {kill_at}:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_kill_9_and_resume_every_row_is_there_and_repeats_are_byte_equal(tmp_path):
    out, folder = tmp_path / "rows.jsonl", tmp_path / "now"
    path = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    for resumes, kill_at in [(False, 37), (True, 95), (True, -1)]:
        code = KILLED.format(path=path, out=str(out), folder=str(folder), resumes=resumes, kill_at=kill_at)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == (0 if kill_at < 0 else -signal.SIGKILL), done.stderr
    by_seq: dict[int, set[str]] = {}
    for line in out.read_text().splitlines():
        by_seq.setdefault(json.loads(line)["seq"], set()).add(line)
    wanted = walk(make(), log_of(2))
    assert sorted(by_seq) == list(range(len(wanted)))
    assert [by_seq[one.row.seq] for one in wanted] == [{json.dumps(one.to_json())} for one in wanted]


def test_a_snapshot_replaces_the_one_before_and_leaves_two_files(tmp_path):
    watch = make()
    for cut in (10, 30, 50):
        walk(watch, log_of(0)[cut - 10 : cut])
        snapshot(watch, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model-2.txl", "watch.txl"]


def test_a_snapshot_that_finds_a_file_in_place_of_its_folder_is_a_save_error(tmp_path):
    (tmp_path / "afile").write_text("mine")
    for place in (tmp_path / "afile", tmp_path / "afile" / "below"):
        with pytest.raises(SaveError, match="cannot be made a folder"):
            snapshot(make(), place)
    assert (tmp_path / "afile").read_text() == "mine"


def test_a_kill_between_the_two_files_of_a_snapshot_leaves_the_one_before(tmp_path):
    watch, log = make(), log_of(0)
    walk(watch, log[:30])
    snapshot(watch, tmp_path)
    walk(watch, log[30:50])
    watch.model.snapshot(tmp_path / "model-1.txl")  # and dead
    again = make()
    assert restore(again, tmp_path) == {"pump": 30}
    assert again.model.lanes["pump"]["n"] < watch.model.lanes["pump"]["n"]


def test_a_snapshot_of_other_channels_or_rules_is_refused_and_nothing_is_changed(tmp_path):
    watch = make()
    walk(watch, log_of(0)[:50])
    snapshot(watch, tmp_path)
    for other, text in [
        (make(["flow"]), "for the channels"),
        (make(alerts=Alerts({"stale": Rule()})), "Give the same rules"),
        (make(calibration=None), "was made with a calibration"),
        (make(calibration=Calibration(normal_scores(2000), contamination=0.01)), "belongs to the calibration"),
    ]:
        walk(other, [("flow", T0, 1.0)], name="mine")
        with pytest.raises(StateError, match=text):
            restore(other, tmp_path)
        assert other.streams == ("mine",)
        assert other.model.streams in ((), ("mine",))


def test_a_damaged_snapshot_is_a_file_format_error(tmp_path):
    watch = make()
    walk(watch, log_of(0)[:50])
    snapshot(watch, tmp_path)
    data = bytearray((tmp_path / "watch.txl").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "watch.txl").write_bytes(data)
    with pytest.raises(FileFormatError):
        restore(make(), tmp_path)


def damaged(rng, state):
    """A state of which one value is another, or one key is gone."""
    state = json.loads(json.dumps(state))
    here = state
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        key = keys[rng.integers(len(keys))]
        if isinstance(here[key], dict | list) and len(here[key]) and rng.random() < 0.8:
            here = here[key]
            continue
        if isinstance(here, dict) and rng.random() < 0.3:
            del here[key]
        else:
            here[key] = [None, "x", -(2**70), [], {}, [{}], True][rng.integers(7)]
        return state


@pytest.mark.parametrize("seed", range(150))
def test_a_crafted_document_can_only_fail_with_our_error_or_be_a_state(seed):
    watch = make(on_revision="rewind", epoch_rows=20)
    walk(watch, log_of(0)[:90])
    crafted = damaged(np.random.default_rng(seed), watch.to_state())
    again = make(on_revision="rewind", epoch_rows=20)
    try:
        again.from_state(crafted)
    except StateError:
        assert again.streams == ()
        return
    again.model.restore_from(watch.model)
    with contextlib.suppress(TxlError):  # numbers that make no sense are what they are
        walk(again, log_of(0)[90:100])


@pytest.mark.parametrize(
    "document",
    [b"{", b"[]", b'{"names": ["a"], "streams": [{}]}', b'{"names": [NaN], "streams": []}', b"[" * 10**5, b"\xff"],
)
def test_a_crafted_file_is_a_file_format_error(document, tmp_path, monkeypatch):
    from txl_ts.stream import files

    watch = make()
    walk(watch, log_of(0)[:9])
    crafted = {"document": np.frombuffer(document, np.uint8), "floats": np.zeros(0)}
    monkeypatch.setattr(files, "to_arrays", lambda state: crafted)
    snapshot(watch, tmp_path)
    with pytest.raises(FileFormatError, match="the streams' document"):
        restore(make(), tmp_path)


def test_a_state_with_arrays_comes_back_as_it_was():
    state = {"a": [1, None, "x"], "b": {"ring": np.arange(3.0), "other": np.zeros(0)}, "c": np.array([np.pi])}
    back = from_arrays(to_arrays(state))
    assert json.dumps(back, default=np.ndarray.tolist) == json.dumps(state, default=np.ndarray.tolist)


# ----------------------------------------------------------------------------------------------------------- revisions


@settings(max_examples=30)
@given(st.integers(0, 3), st.integers(30, 190), st.integers(1, 15), st.data())
def test_a_revision_gives_what_the_right_values_would_have_given(seed, now, epoch_rows, data):
    log = log_of(seed)[:now]
    watch = make(on_revision="rewind", epoch_rows=epoch_rows, n_epochs=3)
    before = walk(watch, log)
    kept = len(watch.to_state()["streams"][0]["log"])
    refused = ("flow", T0 + 20 * MIN, 1.0)  # by the clock: there is nothing to revise
    readings = [i for i in range(len(log) - kept, len(log)) if isinstance(log[i], tuple) and log[i] != refused]
    if not readings:
        return
    i = data.draw(st.sampled_from(readings))
    corrected = list(log)
    corrected[i] = (*log[i][:2], 0.25)
    again = watch.revise("pump", [corrected[i]])
    fresh = make()
    wanted = walk(fresh, corrected)
    assert {one.revision for one in again} <= {1}
    values = [(one.row, one.status, one.score, one.p_value) for one in again]
    assert repr(values) == repr(
        [(one.row, one.status, one.score, one.p_value) for one in wanted[len(wanted) - len(again) :]]
    )
    # Both go on alike, too.
    more = log_of(seed)[now:]
    assert [repr(one.score) for one in walk(watch, more)] == [repr(one.score) for one in walk(fresh, more)]
    del before


def test_a_revision_gives_no_alert_twice():
    log = log_of(0)
    watch = make(on_revision="rewind", epoch_rows=1000)
    first = alerts_of(walk(watch, log))
    assert first
    again = watch.revise(
        "pump", [(log[-5][0], log[-5][1], 0.1)] if isinstance(log[-5], tuple) else [("flow", log[-6][1], 0.1)]
    )
    assert alerts_of(again) == []


def test_a_revision_of_what_is_no_longer_kept_or_without_epochs_is_refused_and_changes_nothing():
    log = log_of(0)
    for watch, text in [
        (make(), "Make the watch with on_revision='rewind'"),
        (make(on_revision="rewind", epoch_rows=5), "there is no reading of 'flow'"),
    ]:
        walk(watch, log)
        before = json.dumps(watch.to_state(), default=str)
        with pytest.raises(StateError, match=text):
            watch.revise("pump", [("flow", T0, 0.0)])
        assert json.dumps(watch.to_state(), default=str) == before


def guarded(**more):
    """Two gauges that are out of range above 50."""
    channels = [Channel(name=name, high=50.0) for name in ("flow", "heat")]
    rules = Alerts({"out_of_range": Rule()})
    return Watch(Intake(channels, tick="1min"), MeanSession(["flow", "heat"]), alerts=rules, **more)


def calm(n=80, **flow):
    """A row a minute; ``flow`` at some of them, by ``at_N``."""
    return [
        {"time": T0 + i * MIN, "values": {"flow": flow.get(f"at_{i}", 20.0 + i % 3), "heat": 30.0}} for i in range(n)
    ]


def test_a_reading_that_came_twice_is_revised_where_it_was_taken_in():
    log = [one for message in calm() for one in (message, dict(message))]
    log[101]["values"] = {"flow": 21.5, "heat": 30.0}  # the repeat says something else
    watch, fresh = guarded(on_revision="rewind", epoch_rows=60), guarded()
    walk(watch, log)
    again = watch.revise("pump", [("flow", T0 + 50 * MIN, 40.0)])
    log[100]["values"] = {"flow": 40.0, "heat": 30.0}
    wanted = walk(fresh, log)[-len(again) :]
    assert [(one.row, repr(one.score)) for one in again] == [(one.row, repr(one.score)) for one in wanted]
    assert 40.0 in {one.row.values.get("flow") for one in again}


def test_a_reading_that_was_refused_cannot_be_revised():
    watch = guarded(on_revision="rewind", epoch_rows=20)
    walk(watch, [*calm(), ("flow", T0 + 70 * MIN, 9.0)])
    watch.revise("pump", [("flow", T0 + 70 * MIN, 22.5)])
    walk(watch, [("flow", T0 + 10 * MIN, 9.0)])
    with pytest.raises(StateError, match="only a reading of 'flow' that was refused at 2024-01-01 01:10"):
        watch.revise("pump", [("flow", T0 + 10 * MIN, 8.0)])


def test_an_alert_that_a_revision_reveals_is_given_and_the_others_keep_their_ids():
    watch = guarded(on_revision="rewind", epoch_rows=100)
    before = walk(watch, calm(at_60=99.0, at_78=99.0, at_79=99.0))
    again = watch.revise("pump", [("flow", T0 + 50 * MIN, 99.0)])
    assert alerts_of(again) == [("raised", "out_of_range", 50, 50), ("cleared", "out_of_range", 50, 51)]
    after = walk(watch, calm(100)[80:])  # the episode that was open ends under its own id
    told = [(a.event, a.id) for one in (*before, *again, *after) for a in one.alerts]
    ids = [alert_id for event, alert_id in told if event == "raised"]
    assert len(set(ids)) == 3
    assert sorted(alert_id for event, alert_id in told if event == "cleared") == sorted(ids)
    assert watch.counts("pump")["n_alerts"] == 3
    again = watch.revise("pump", [("flow", T0 + 40 * MIN, 21.5)])
    assert alerts_of(again) == []


def test_a_revision_is_refused_once_the_model_has_closed_the_fork_it_needs(tmp_path):
    from txl_ts.runtime import StreamSession

    graph = str(ROOT / "tests" / "golden" / "0.1.0" / "graph.onnx")  # y, every hour
    log = [("y", T0 + i * 60 * MIN, 20.0 + i % 5) for i in range(70)]

    def watch_of(**session):
        intake = Intake(["y"], tick="1h", max_gap="10h")
        return Watch(intake, StreamSession(graph, **session), on_revision="rewind", epoch_rows=20)

    watch = watch_of(idle="10h")
    walk(watch, log)
    before = json.dumps(watch.to_state())
    with pytest.raises(StateError, match=r"is no longer in the model.*Give its session a longer `idle`"):
        watch.revise("pump", [("y", log[45][1], 30.0)])
    assert json.dumps(watch.to_state()) == before
    # Without it, also after a restart.
    watch, fresh = watch_of(), watch_of()
    walk(watch, log)
    snapshot(watch, tmp_path)
    watch = watch_of()
    restore(watch, tmp_path)
    again = watch.revise("pump", [("y", log[45][1], 30.0)])
    log[45] = (*log[45][:2], 30.0)
    wanted = walk(fresh, log)[-len(again) :]
    assert [repr(one.score) for one in again] == [repr(one.score) for one in wanted]


def test_streams_of_like_names_have_forks_of_their_own():
    log = {7: calm(), "7": calm(at_30=45.0), "7@0": calm(at_20=45.0), "'7'@40": calm(at_40=45.0)}
    watch = guarded(on_revision="rewind", epoch_rows=20)
    watch.step(log)
    assert len(watch.model.streams) == 4 * 3
    for name, messages in log.items():
        again = watch.revise(name, [("flow", T0 + 70 * MIN, 25.0)])
        right = [*messages[:70], {**messages[70], "values": {"flow": 25.0, "heat": 30.0}}, *messages[71:]]
        wanted = walk(guarded(), right)[-len(again) :]
        assert [repr(one.score) for one in again] == [repr(one.score) for one in wanted]
    with pytest.raises(ParameterError, match="begins with a null character"):
        watch.step({"\0007": calm()})


def test_epochs_leave_as_many_forks_in_the_model_as_are_kept():
    watch = make(on_revision="rewind", epoch_rows=5, n_epochs=3)
    walk(watch, log_of(0))
    assert len(watch.model.streams) == 4
    assert len(watch.to_state()["streams"][0]["log"]) < 60
    watch.close("pump")
    assert watch.model.streams == ()


# ------------------------------------------------------------------------------------------------------------ the rest


def test_a_false_alarm_that_was_reported_raises_the_level():
    watch = make(["flow"])
    values = [(-1.0) ** i for i in range(60)]
    for i in (30, 31, 32, 40, 41, 42):
        values[i] = 6.0
    log = [("flow", T0 + i * MIN, v) for i, v in enumerate(values)]
    found = walk(watch, log[:38])
    (alert,) = {a.id for one in found for a in one.alerts if a.kind == "anomaly"}
    quiet = make(["flow"])
    walk(quiet, log[:38])
    for one in (watch, quiet):
        one.feedback("pump", alert, false=one is quiet)
    p_kept = [one.p_value for one in walk(watch, log[38:]) if one.row.raw.get("flow") == 6.0]
    p_learned = [one.p_value for one in walk(quiet, log[38:]) if one.row.raw.get("flow") == 6.0]
    assert all(learned > kept for learned, kept in zip(p_learned, p_kept, strict=True))
    with pytest.raises(StateError, match="keeps no scores of alert 'anomaly-0'"):
        watch.feedback("pump", alert, false=True)


def test_a_new_calibration_after_a_retrain_judges_by_its_own_scores():
    watch = make(["flow"])
    log = [("flow", T0 + i * MIN, (-1.0) ** i) for i in range(40)]
    walk(watch, log[:20])
    watch.recalibrate(watch.calibration.recalibrated(normal_scores() * 100))
    assert min(one.p_value for one in walk(watch, log[20:])) > 0.9


def test_a_new_score_goes_on_where_it_can_and_warms_up_again_where_it_cannot():
    log = [("flow", T0 + i * MIN, (-1.0) ** i) for i in range(40)]
    old = Surprise(kind="novelty", scale=2.0)
    for score, is_warm in ((Surprise(kind="novelty", scale=3.0), True), (Surprise(kind="level", scale=3.0), False)):
        watch = make(["flow"], score=old)
        walk(watch, log[:20])
        watch.recalibrate(watch.calibration, score=score)
        found = walk(watch, log[20:25])
        assert math.isfinite(found[0].score) == is_warm
        assert found[0].status == ("ok" if is_warm else "warming_up")


def test_the_largest_reading_has_a_score_that_json_can_hold():
    watch = make(["flow"])
    values = [0.0, 1.0] * 20 + [1e37, -1e37, 1.0]
    found = walk(watch, [("flow", T0 + i * MIN, v) for i, v in enumerate(values)]) + watch.flush()["pump"]
    assert max(one.score for one in found if not math.isnan(one.score)) > 1e4
    plain(found)
    json.dumps(watch.to_state(), allow_nan=False)


def test_scores_that_are_no_longer_those_of_the_calibration_are_said_to_drift():
    watch = make(["flow"], calibration=Calibration(normal_scores() * 100, contamination=0.01))
    found = walk(watch, [("flow", T0 + i * MIN, (-1.0) ** i) for i in range(120)])
    statuses = [one.status for one in found]
    assert "drift" not in statuses[:20]
    assert set(statuses[80:]) == {"drift"}
    assert all(math.isfinite(one.score) for one in found[80:])


def test_maintenance_of_a_stream_mutes_it():
    log = log_of(0)
    watch = make()
    watch.step({"pump": log[:3]})
    watch.mute("pump", T0 + 35 * MIN, T0 + 50 * MIN)
    found = walk(watch, log[3:])
    assert [one for one in alerts_of(found) if one[1] == "anomaly"] == []
    assert watch.counts("pump")["n_muted"] > 0


def test_a_call_with_a_bad_message_uses_nothing_of_any_stream():
    watch = make(["flow"])
    before = json.dumps(watch.to_state())
    with pytest.raises(ColumnError, match="there is no channel 'flaw'"):
        watch.step({"a": [("flow", T0, 1.0)], "b": [("flaw", T0, 1.0)]})
    assert json.dumps(watch.to_state()) == before
    assert watch.model.streams == ()


def test_after_an_error_of_the_model_a_watch_goes_on_from_a_snapshot_only(tmp_path, monkeypatch):
    watch = make(["flow"])
    log = [("flow", T0 + i * MIN, 1.0) for i in range(30)]
    walk(watch, log[:10])
    snapshot(watch, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(watch.model, "step", lambda rows: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            walk(watch, log[10:])
    with pytest.raises(StateError, match="Go on from the last snapshot"):
        walk(watch, log[10:])
    restore(watch, tmp_path)
    whole = make(["flow"])
    walk(whole, log[:10])
    assert plain(walk(watch, log[10:])) == plain(walk(whole, log[10:]))


def test_what_is_left_at_the_end_is_given_out_by_flush():
    watch = make(["flow"])
    log = [("flow", T0 + i * MIN, 1.0) for i in range(10)]
    n = len(walk(watch, log))
    assert n + len(watch.flush()["pump"]) == 10


def test_counts_tell_what_came_of_the_messages():
    watch = make()
    log = log_of(0)
    walk(watch, log)
    counts = watch.counts("pump")
    assert counts["n_messages"] == len(log)
    assert (counts["duplicate"], counts["clock_back"], counts["n_resets"]) == (9, 1, 1)
    with pytest.raises(StateError, match="there is no stream 'pomp'"):
        watch.counts("pomp")


def test_protecting_the_memory_without_a_calibration_is_refused():
    with pytest.raises(ParameterError, match=re.escape("protect_memory=True needs a calibration")):
        make(protect_memory=True, calibration=None)


def test_a_watch_over_the_torch_session_scores_like_its_own_forecasts(forecaster, make_rows):
    live = forecaster.live()
    watch = Watch(Intake(["y"], tick="1h", max_gap="2d"), live, score_while_warming=True)
    frame = make_rows(n_series=1, n_rows=60, seed=3)
    messages = [("y", row.ds.to_pydatetime(), row.y) for row in frame.itertuples()]
    found = walk(watch, messages, cuts=(13, 40))
    other, ahead = forecaster.live(), np.full(3, np.nan)
    for one in found:
        if not math.isnan(one.score):
            low, _, high = ahead
            assert one.band["y"] == (pytest.approx(low), pytest.approx(high))
        ahead = other.step({"pump": {"time": one.row.stamp, "values": {"y": one.row.values["y"]}}})["pump"].quantiles[0]
    assert sum(not math.isnan(one.score) for one in found) > 50


def test_a_counter_feeds_the_model_its_differences():
    watch = Watch(Intake([Channel(name="n", kind="counter")], tick="1min"), MeanSession(["n"]))
    walk(watch, [("n", T0 + i * MIN, 10**17 + 3 * i) for i in range(8)])
    assert watch.model.lanes["pump"]["seen"]["n"] == [7, 21.0, 63.0]
