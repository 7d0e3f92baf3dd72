"""Messages become rows: in order, on time, once, and each with a status."""

import itertools
import json
import math
import re
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.oracles.stream_rows import change_rows, tick_rows
from txl_ts.errors import ColumnError, ParameterError, StampError, StateError
from txl_ts.forms import check_form
from txl_ts.instants import read_duration, read_stamp, shown_duration, shown_stamp
from txl_ts.stream import STATUSES, Channel, Intake
from txl_ts.stream.intake import FORM

MIN = 60 * 10**9
T0 = 473_353 * 60 * MIN  # 2024-01-01 01:00


def walk(intake, messages, cuts=()):
    """All rows and the last state, with the messages cut into calls."""
    rows, state, first = [], intake.open(), 0
    for cut in [*sorted(cuts), len(messages)]:
        new, state = intake.step(messages[first:cut], state)
        rows, first = rows + new, cut
    return rows, state


def said(rows):
    """Status by number of the row."""
    return [row.status for row in rows]


def every_minute(n, tag="flow", first=0):
    return [(tag, T0 + (first + i) * MIN, float(first + i)) for i in range(n)]


# ---------------------------------------------------------------------------------------------------------- assembling


@st.composite
def quiet_logs(draw):
    """Readings of three tags, each in its own order, every tag and stamp once; delivered in order of time."""
    pairs = draw(st.sets(st.tuples(st.sampled_from("abc"), st.integers(1, 120)), min_size=1, max_size=40))
    return [(tag, stamp, float(i)) for i, (stamp, tag) in enumerate(sorted((s, t) for t, s in pairs))]


@given(quiet_logs(), st.integers(1, 13))
def test_rows_on_a_tick_hold_the_newest_reading_since_the_row_before(log, tick):
    intake = Intake(list("abc"), tick=tick, max_gap=1000)
    rows, state = walk(intake, log)
    rows += intake.flush(state)[0]
    assert {row.stamp: row.values for row in rows} == tick_rows(log, "abc", tick)


@given(quiet_logs())
def test_rows_on_change_hold_what_was_read_at_one_stamp(log):
    intake = Intake(list("abc"), max_gap=1000)
    rows, state = walk(intake, log)
    rows += intake.flush(state)[0]
    assert {row.stamp: row.values for row in rows} == change_rows(log, "abc")


def test_a_row_that_waits_goes_out_when_all_tags_are_there_or_time_is_over():
    intake = Intake(["a", "b"], timeout=5, max_gap=1000)
    log = [
        ("a", 10, 1.0),
        ("b", 12, 2.0),
        ("a", 20, 3.0),
        ("a", 30, 4.0),
        ("b", 34, 5.0),
        ("b", 40, 6.0),
        ("a", 46, 7.0),
    ]
    rows, _ = walk(intake, log)
    found = [(row.stamp, row.values["a"], row.values["b"]) for row in rows]
    assert found == [(12, 1.0, 2.0), (20, 3.0, None), (34, 4.0, 5.0), (40, None, 6.0)]


@pytest.mark.parametrize(
    "last",
    [
        [("a", 35, 2.0), ("b", 35, 3.0)],
        [("b", 35, 3.0), ("a", 35, 2.0)],
        [{"time": 35, "values": {"a": 2.0, "b": 3.0}}],
    ],
    ids=["a first", "b first", "together"],
)
def test_a_full_row_waits_for_readings_of_its_own_stamp_that_are_there(last):
    intake = Intake(["a", "b"], timeout=20, late=5, max_gap=1000)
    rows, state = walk(intake, [("b", 32, 1.0), *last, (None, 99, None)])
    rows += intake.flush(state)[0]
    assert len({row.stamp for row in rows}) == len(rows)
    assert rows[-1].stamp == 35
    assert rows[-1].values == {"a": 2.0, "b": 3.0}


def test_a_message_that_fills_a_row_goes_into_it_whole():
    intake = Intake(list("abc"), timeout=20, max_gap=1000)
    rows, state = walk(intake, [("a", 32, 1.0), ("c", 35, 2.0), {"time": 35, "values": {"b": 3.0, "a": 4.0}}])
    assert [(row.stamp, row.values) for row in rows] == [(35, {"a": 4.0, "b": 3.0, "c": 2.0})]
    assert state["row"] is None


def test_a_row_on_the_grid_with_all_its_tags_goes_out_at_once():
    rows, state = Intake(["a", "b"], tick="1min").step([{"time": T0, "values": {"a": 1.0, "b": 2.0}}])
    assert [row.stamp for row in rows] == [T0]
    assert state["row"] is None


def test_several_rates_are_masks_and_not_missing_until_their_own_time_is_over():
    slow = Channel(name="slow", every="5min", stale_after="30min")
    intake = Intake(["fast", slow], tick="1min")
    log = [
        m for i in range(12) for m in [("fast", T0 + i * MIN, 1.0), *([("slow", T0 + i * MIN, 2.0)] if i == 0 else [])]
    ]
    rows, _ = walk(intake, log)
    assert [row.channels["slow"] for row in rows] == ["ok"] * 6 + ["missing"] * 5
    assert [row.ages["slow"] for row in rows] == [i * MIN for i in range(11)]
    assert rows[3].values == {"fast": 1.0, "slow": None}


# ------------------------------------------------------------------------------------------------------------- order


@st.composite
def wild_logs(draw):
    """Messages as a bad network and bad clocks deliver them."""
    log, now = [], 1000
    for i in range(draw(st.integers(1, 60))):
        now += draw(st.integers(0, 9))
        kind = draw(st.sampled_from(["one", "one", "one", "all", "beat", "late", "far", "again", "nan"]))
        tag = draw(st.sampled_from("abc"))
        shift = {"late": -draw(st.integers(1, 60)), "far": draw(st.sampled_from([-5000, 5000]))}.get(kind, 0)
        if kind == "all":
            log.append({"time": now, "values": {"a": float(i), "c": None}})
        elif kind == "beat":
            log.append((None, now, None))
        elif kind == "again" and log:
            log.append(log[draw(st.integers(0, len(log) - 1))])
        else:
            log.append((tag, now + shift, math.nan if kind == "nan" else float(i % 5)))
    return log


INTAKES = [
    Intake(["a", Channel(name="b", kind="counter", rollover=100), Channel(name="c", kind="angle")], **settings)
    for settings in (
        {"tick": 7, "max_gap": 40, "max_jump": 1000, "back": 20},
        {"tick": 7, "late": 15, "max_gap": 40, "max_jump": 1000, "back": 20},
        {"max_gap": 40, "max_jump": 1000, "back": 20},
        {"late": 9, "timeout": 4, "max_gap": 40, "max_jump": 1000, "back": 20},
        {"late": 9, "timeout": 25, "max_gap": 40, "max_jump": 1000, "back": 20},
    )
]
KINDS = ["tick", "tick and late", "change", "timeout and late", "long timeout and late"]


@pytest.mark.parametrize("intake", INTAKES, ids=KINDS)
@given(wild_logs(), st.sets(st.integers(0, 60)))
def test_any_split_of_the_messages_into_calls_gives_the_same_rows_and_state(intake, log, cuts):
    assert walk(intake, log, [cut for cut in cuts if cut < len(log)]) == walk(intake, log)


@pytest.mark.parametrize("intake", INTAKES, ids=KINDS)
@given(wild_logs())
def test_a_state_that_went_through_json_continues_the_same_at_every_message(intake, log):
    rows, state = [], json.loads(json.dumps(intake.open(), allow_nan=False))
    for message in log:
        before = json.dumps(state)
        new, after = intake.step([message], state)
        assert json.dumps(state) == before  # what was given is left as it was
        rows, state = rows + new, json.loads(json.dumps(after, allow_nan=False))
        check_form(state, FORM)
    assert (rows, state) == walk(intake, log)


@pytest.mark.parametrize("intake", INTAKES, ids=KINDS)
@given(wild_logs())
def test_used_rows_come_in_order_and_every_reading_is_used_once_or_refused_once(intake, log):
    rows, state = walk(intake, log)
    rows += intake.flush(state)[0]
    used = [row for row in rows if row.is_used]
    restarts = [0, *(i for i, row in enumerate(used) if row.is_reset), len(used)]
    for first, last in itertools.pairwise(restarts):
        stamps = [row.stamp for row in used[first:last]]
        assert stamps == sorted(set(stamps))
    assert [row.seq for row in rows] == list(range(len(rows)))
    n_readings = sum(len(m["values"]) if isinstance(m, dict) else m[0] is not None for m in log)
    n_refused = sum(len(row.raw) for row in rows if not row.is_used and row.status != "stale")
    n_used = sum(len(row.raw) for row in rows) - n_refused
    # On a grid, or at one stamp of a row that waits, the newest of several readings of a tag stands for them.
    is_each = intake.tick is None and intake.timeout is None
    assert n_used + n_refused == n_readings if is_each else n_used + n_refused <= n_readings


@given(st.permutations(range(12)), st.integers(0, 11))
def test_readings_that_are_late_by_less_than_they_may_be_are_put_in_order(order, late):
    log = every_minute(12)
    keys = {i: i + 0.99 * late * place / 11 for i, place in enumerate(order)}
    shuffled = sorted(log, key=lambda one: keys[int(one[2])])  # nobody is overtaken by `late` minutes or more
    intake = Intake(["flow"], tick="1min", late=f"{late}min")
    rows, state = walk(intake, shuffled)
    rows += intake.flush(state)[0]
    assert [(row.stamp, row.values["flow"], row.status) for row in rows] == [(s, v, "ok") for _, s, v in log]


def planted(seed, n=400):
    """A log with known faults: (messages, counts by status)."""
    rng = np.random.default_rng(seed)
    log, counts = [], dict.fromkeys(("duplicate", "late_dropped", "clock_back", "clock_ahead"), 0)
    for i in range(n):
        log.append(("flow", T0 + i * 10 * MIN, float(i)))
        if i < 5:
            continue
        fault = rng.choice(
            ["none", "duplicate", "late_dropped", "clock_back", "clock_ahead"], p=[0.6, 0.1, 0.1, 0.1, 0.1]
        )
        if fault == "duplicate":
            log.append(log[-1])
        elif fault == "late_dropped":
            log.append(("flow", T0 + i * 10 * MIN - 30 * 10**9, -1.0))
        elif fault == "clock_back":
            log.append(("flow", T0 + (i - 3) * 10 * MIN - MIN, -1.0))
        elif fault == "clock_ahead":
            log.append(("flow", T0 + i * 10 * MIN + 400 * 1440 * MIN, -1.0))
        counts[fault] = counts.get(fault, 0) + 1
    counts.pop("none", None)
    return log, counts


@pytest.mark.parametrize("seed", range(5))
def test_counters_of_planted_faults_are_exact_and_all_right_rows_are_used(seed):
    log, counts = planted(seed)
    rows, state = walk(Intake(["flow"], max_gap="1h"), log)
    assert {status: n for status, n in state["counts"].items() if n} == {
        "ok": 400,
        **{s: n for s, n in counts.items() if n},
    }
    assert [row.values["flow"] for row in rows if row.is_used] == [float(i) for i in range(400)]


def test_two_producers_of_the_same_readings_give_each_row_once():
    log = [m for i, m in enumerate(every_minute(50)) for m in (m, *([every_minute(50)[i - 3]] if i >= 3 else []))]
    rows, state = walk(Intake(["flow"], tick="1min"), log)
    assert state["counts"]["duplicate"] == 47
    assert [row.values["flow"] for row in rows if row.is_used] == [float(i) for i in range(50)]


def test_one_bad_clock_far_ahead_makes_no_right_row_late():
    ahead = 400 * 1440 * MIN
    log = [
        m
        for i in range(30)
        for m in [("a", T0 + i * MIN, 1.0), ("b", T0 + i * MIN, 2.0), ("c", T0 + i * MIN + ahead, 3.0)]
    ]
    rows, state = walk(Intake(["a", "b", "c"], max_gap="1h"), log)
    assert state["counts"]["clock_ahead"] == 30
    assert sum(row.is_used for row in rows) == 29
    assert not any(state["counts"][status] for status in ("late_dropped", "clock_back", "reset"))


def test_a_first_reading_from_the_future_does_not_silence_the_stream():
    log = [("flow", T0 + 400 * 1440 * MIN, 9.0), *every_minute(10)]
    rows, state = walk(Intake(["flow"], tick="1min"), log)
    assert said(rows) == ["ok", "clock_back", "clock_back", "reset", *["ok"] * 7]
    assert state["gap"]["n_resets"] == 1


def test_a_jump_that_three_readings_agree_on_is_believed():
    log = every_minute(5) + every_minute(5, first=5000)
    rows, _ = walk(Intake(["flow"], tick="1min"), log)
    # Bridged for ten minutes, said to be lost, refused twice, then the new beginning.
    assert said(rows)[5:] == ["clock_ahead", "clock_ahead", *["missing"] * 10, "stale", "reset", "ok", "ok"]


def test_a_long_backlog_that_is_delivered_again_does_not_turn_time_back():
    log = every_minute(3000)
    rows, state = walk(Intake(["flow"], tick="1min"), log + log[:1000])
    assert state["counts"]["ok"] == 3000
    assert state["counts"]["clock_back"] == 1000
    assert all(row.is_used for row in rows[:3000])


def test_a_policy_that_raises_uses_nothing_of_the_call():
    intake = Intake(["flow"], order="raise")
    _, state = intake.step(every_minute(5))
    before = json.dumps(state)
    with pytest.raises(StampError, match=r"channel 'flow': time 2024-01-01 01:00:00 is clock_back .*`late=…`"):
        intake.step([("flow", T0 + 5 * MIN, 1.0), ("flow", T0, 2.0)], state)
    assert json.dumps(state) == before


# --------------------------------------------------------------------------------------------------------------- gaps


def test_a_gap_is_bridged_up_to_its_limit_and_reset_beyond():
    for length, statuses in [
        (10, ["missing"] * 9 + ["gap_bridged"]),
        (11, ["missing"] * 10 + ["reset"]),
        (60, ["missing"] * 10 + ["stale", "reset"]),
    ]:
        log = [*every_minute(3), ("flow", T0 + (2 + length) * MIN, 5.0), ("flow", T0 + (3 + length) * MIN, 5.0)]
        rows, state = walk(Intake(["flow"], tick="1min", max_gap="10min"), log)
        assert said(rows) == ["ok"] * 3 + statuses + ["ok"]
        assert (state["gap"]["n_bridged"], state["gap"]["n_resets"]) == ((1, 0) if length == 10 else (0, 1))
        assert [row.is_reset for row in rows] == [status == "reset" for status in said(rows)]


@given(st.integers(1, 40), st.sets(st.integers(1, 39)))
def test_heartbeats_make_rows_earlier_but_no_others(length, beats):
    log = [*every_minute(3), ("flow", T0 + (2 + length) * MIN, 5.0)]
    beating = [*log[:3], *((None, T0 + (2 + b) * MIN, None) for b in sorted(beats) if b < length), log[3]]
    intake = Intake(["flow"], tick="1min")
    assert walk(intake, beating)[0] == walk(intake, log)[0]


@pytest.mark.parametrize("settings", [{"tick": "1min"}, {}, {"timeout": "5s"}], ids=["tick", "change", "timeout"])
def test_a_stream_that_falls_silent_is_said_to_be_stale_once_a_heartbeat_tells_the_time(settings):
    intake = Intake(["flow"], max_gap="10min", **settings)
    rows, _ = walk(intake, [*every_minute(3), *((None, T0 + i * MIN, None) for i in range(3, 60))])
    assert said(rows).count("stale") == 1
    assert rows[-1].status == "stale"
    assert not rows[-1].is_used


@pytest.mark.parametrize("settings", [{"tick": "1min"}, {}, {"timeout": "5s"}], ids=["tick", "change", "timeout"])
def test_one_dead_sensor_among_living_ones_becomes_stale_and_comes_back(settings):
    log = [(tag, T0 + i * MIN, 1.0) for i in range(60) for tag in "ab" if tag == "a" or not 10 <= i < 40]
    rows, _ = walk(Intake(["a", "b"], max_gap="10min", **settings), log)
    by_stamp = {row.stamp: row for row in rows}
    assert by_stamp[T0 + 30 * MIN].status == "stale"
    assert by_stamp[T0 + 30 * MIN].channels == {"a": "ok", "b": "stale"}
    assert by_stamp[T0 + 30 * MIN].values == {"a": 1.0, "b": None}
    assert by_stamp[T0 + 45 * MIN].status == "ok"


def test_a_row_of_nothing_but_missing_values_is_a_row():
    intake = Intake(["flow"], tick="1min", max_gap="2min")
    rows, _ = walk(
        intake, [*every_minute(2), *(("flow", T0 + i * MIN, None) for i in range(2, 6)), ("flow", T0 + 6 * MIN, 1.0)]
    )
    assert said(rows) == ["ok", "ok", "missing", "missing", "stale", "stale", "reset"]
    assert [row.is_used for row in rows] == [True, True, True, True, False, False, True]


# ------------------------------------------------------------------------------------------------------------- kinds


def read(channel, values, **settings):
    rows, _ = walk(
        Intake([channel], tick="1min", **settings), [(channel.name, T0 + i * MIN, v) for i, v in enumerate(values)]
    )
    return rows


@given(st.lists(st.integers(0, 5), min_size=2, max_size=20), st.integers(10**8, 2**62))
def test_a_counters_differences_are_exact_however_high_it_stands(steps, start):
    counts = [start + sum(steps[:i]) for i in range(len(steps) + 1)]
    rows = read(Channel(name="n", kind="counter"), counts)
    assert [row.values["n"] for row in rows] == [None, *map(float, steps)]
    assert np.float32(10**8 + 3) - np.float32(10**8) != 3  # what a model's own float32 would have made of it


@given(st.lists(st.integers(0, 2**15 - 1), min_size=1, max_size=20), st.integers(0, 2**16 - 1))
def test_a_counter_that_rolls_over_goes_on_counting(steps, start):
    counts = [(start + sum(steps[:i])) % 2**16 for i in range(len(steps) + 1)]
    rows = read(Channel(name="n", kind="counter", rollover=2**16), counts)
    assert [row.values["n"] for row in rows[1:]] == [float(step) for step in steps]


def test_a_counter_that_begins_anew_is_a_reset_of_its_channel_and_no_negative_number():
    rows = read(Channel(name="n", kind="counter"), [100, 105, 3, 4])
    assert [row.values["n"] for row in rows] == [None, 5.0, None, 1.0]
    assert said(rows) == ["warming_up", "ok", "reset", "ok"]
    assert not rows[2].is_reset  # the memory of the stream is as good as before


def test_a_counter_does_not_count_across_a_lost_time():
    log = [("n", T0, 5), ("n", T0 + MIN, 7), ("n", T0 + 60 * MIN, 500), ("n", T0 + 61 * MIN, 503)]
    rows = [row for row in walk(Intake([Channel(name="n", kind="counter")], tick="1min"), log)[0] if row.raw]
    assert [row.values["n"] for row in rows] == [None, 2.0, None, 3.0]


@given(st.floats(-1e6, 1e6))
def test_an_angle_is_the_same_point_of_the_circle_after_any_turn(angle):
    rows = read(Channel(name="w", kind="angle"), [angle, angle + 360])
    assert rows[0].values["w.sin"] == pytest.approx(math.sin(math.radians(angle)), abs=1e-9)
    for column in ("w.sin", "w.cos"):
        assert rows[1].values[column] == pytest.approx(rows[0].values[column], abs=1e-9)


def test_359_and_1_degree_are_neighbours():
    before, after = ([*row.values.values()] for row in read(Channel(name="w", kind="angle"), [359.0, 1.0]))
    assert math.dist(before, after) == pytest.approx(2 * math.sin(math.radians(1)))


def test_a_state_is_one_column_per_state_and_an_unknown_one_is_out_of_range():
    rows = read(Channel(name="valve", kind="state", states=("open", "shut")), ["open", "shut", "ajar", None])
    assert [tuple(row.values.values()) for row in rows] == [(1.0, 0.0), (0.0, 1.0), (None, None), (None, None)]
    assert list(rows[0].values) == ["valve=open", "valve=shut"]
    assert said(rows) == ["ok", "ok", "out_of_range", "missing"]


def test_a_reading_out_of_range_is_missing_for_the_model_and_a_changed_unit_is_suspected():
    rng = np.random.default_rng(0)
    normal = (20 + rng.normal(size=100)).tolist()
    rows = read(Channel(name="heat", low=-20, high=50), [*normal, 68.5, 293.0, 20_100.0, 140.0, 20.0])
    assert said(rows)[100:] == ["unit_suspect", "unit_suspect", "unit_suspect", "out_of_range", "ok"]
    assert [row.values["heat"] is None for row in rows[100:]] == [True, True, True, True, False]


def test_no_unit_is_suspected_before_the_usual_band_is_known():
    assert said(read(Channel(name="heat", low=-20, high=50), [20.0] * 10 + [68.0]))[-1] == "out_of_range"


@pytest.mark.parametrize("kind", ["gauge", "counter", "angle"])
def test_the_largest_numbers_leave_rows_and_state_that_json_can_hold(kind):
    values = [1.0, 1e308, -1e308, 1.7e308, 5e-324, 0.0, 2**63, -(2**63), 1.0]
    rows, state = walk(Intake([Channel(name="a", kind=kind)]), [("a", i, v) for i, v in enumerate(values)])
    assert len(rows) == len(values)
    json.dumps([row.to_json() for row in rows] + [state], allow_nan=False)


def test_a_stuck_value_is_said_after_its_time_and_a_value_that_may_repeat_never():
    channel = Channel(name="sun", stuck_after="3min", may_repeat=(0.0,), stuck_tolerance=0.01)
    rows = read(channel, [1.0, 2.0, 2.005, 1.995, 2.0, 2.0, 3.0, *[0.0] * 6])
    assert said(rows) == ["ok"] * 4 + ["stuck", "stuck"] + ["ok"] * 7
    assert rows[4].values["sun"] == 2.0


# -------------------------------------------------------------------------------------------------------- bad messages


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        (
            ("flaw", T0, 1.0),
            ColumnError,
            "there is no channel 'flaw': did you mean 'flow'? Nothing of this call was used.",
        ),
        (("flow", "yesterday", 1.0), StampError, "time 'yesterday' is of type str and no time."),
        (("flow", T0, "high"), ColumnError, "channel 'flow': value 'high' is of type str, expected a number"),
        (("flow", T0, 10**400), ColumnError, "lies beyond 64 bits. Give a float."),
        (("flow", T0, 10**5000), ColumnError, "lies beyond 64 bits. Give a float."),
        (("count", T0, True), ColumnError, "channel 'count': value True is of type bool, expected a number"),
        (("flow", T0), ParameterError, "Give (tag, time, value)"),
        ({"time": T0}, ParameterError, "lacks 'values'"),
        (
            ("flow", "2024-01-01T00:00:00Z", 1.0),
            StampError,
            "has an offset from UTC, but this stream's times have none",
        ),
        (("flow", 2**70, 1.0), StampError, "lies beyond 64 bits"),
        (("flow", 10**5000, 1.0), StampError, "lies beyond 64 bits"),
    ],
)
def test_a_message_that_cannot_be_read_is_an_error_that_says_what_to_give(message, error, text):
    intake = Intake(["flow", "heat", Channel(name="count", kind="counter")])
    _, state = intake.step([("flow", T0 - MIN, 0.0)])
    before = json.dumps(state)
    with pytest.raises(error, match=re.escape(text)):
        intake.step([("flow", T0 - MIN // 2, 1.0), message], state)
    assert json.dumps(state) == before


def test_a_state_of_other_channels_is_refused():
    with pytest.raises(StateError, match=r"for the channels \['a'\], this intake has schema 1 and \['b'\]"):
        Intake(["b"]).step([], Intake(["a"]).open())


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Intake([]), "must be one or more, with distinct names"),
        (lambda: Intake(["a", "a"]), "must be one or more, with distinct names"),
        (lambda: Intake(["a"], tick="1min", timeout="1s"), "exclude each other"),
        (lambda: Intake(["a"], tick="1 parsec"), "must be a duration of at least 1 ns: text such as '5s'"),
        (lambda: Intake(["a"], tick="1h"), "max_gap='10min' must be at least one tick ('1h')"),
        (lambda: Intake(["a"], order="hold"), "order='hold' is not known. Choose one of ['drop', 'raise']"),
        (lambda: Channel(name="a", kind="gage"), "Did you mean 'gauge'?"),
        (lambda: Channel(name="a", low=3, high=1), "low=3 must be below high=1"),
        (lambda: Channel(name="a", states=("x",)), "Give distinct states to kind='state', and to no other."),
        (lambda: Channel(name="a", kind="counter", rollover=1), "rollover=1 must be an integer such as 2**32"),
        (lambda: Channel(name="a", period=0), "period=0 must be positive"),
        (lambda: Channel(name=""), "a channel's name must be text"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(make, text):
    with pytest.raises(ParameterError, match=re.escape(text)):
        make()


# ------------------------------------------------------------------------------------------------------------ instants


def test_times_of_every_kind_are_the_same_instant():
    naive = [
        T0,
        np.datetime64("2024-01-01T01:00"),
        np.datetime64(T0, "ns"),
        datetime(2024, 1, 1, 1),
        "2024-01-01 01:00",
    ]
    assert {read_stamp(one) for one in naive} == {T0}
    east = timezone(timedelta(hours=2))
    aware = [datetime(2024, 1, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 3, tzinfo=east), "2024-01-01T03:00:00+02:00"]
    assert {read_stamp(one, zone=True) for one in aware} == {T0}


def test_pandas_timestamps_keep_their_nanoseconds():
    import pandas as pd

    assert read_stamp(pd.Timestamp(T0 + 7)) == T0 + 7
    with pytest.raises(StampError, match="no time"):
        read_stamp(pd.NaT)


@example("1.5h", 5400 * 10**9)
@example("0.1s", 10**8)
@example("30d", 2_592_000 * 10**9)
@given(st.just("2w"), st.just(1_209_600 * 10**9))
def test_durations_are_read_exactly(text, ns):
    assert read_duration("x", text) == ns


def test_durations_and_stamps_are_shown_as_a_reader_writes_them():
    assert [shown_duration(read_duration("x", text)) for text in ("90min", "24h", "1500ms")] == [
        "90min",
        "1d",
        "1500ms",
    ]
    assert (shown_stamp(T0), shown_stamp(41)) == ("2024-01-01 01:00:00", "41")
    assert read_duration("x", timedelta(seconds=1.5)) == read_duration("x", np.timedelta64(1500, "ms")) == 1_500_000_000


def test_the_statuses_are_those_that_the_pages_name():
    named = "ok warming_up missing stale stuck gap_bridged reset late_dropped duplicate clock_back clock_ahead"
    assert set(STATUSES) == {*named.split(), "out_of_range", "unit_suspect", "drift"}
