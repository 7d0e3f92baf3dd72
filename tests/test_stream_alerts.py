"""Alerts come once per episode, whatever flickers, is being repaired, or was restarted in between."""

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.stream_rows import raised
from txl_ts.errors import ParameterError
from txl_ts.stream import Alerts, Rule, Seen

NAN = math.nan


def walk(alerts, levels, stamps=None, state=None, restart=False):
    """All alerts, as (event, since, at), of levels that come one a second."""
    state, found = alerts.open() if state is None else state, []
    for stamp, level in zip(stamps or range(len(levels)), levels, strict=True):
        new, state = alerts.step(stamp, {"anomaly": Seen(level=level, sensors=("a", "b"))}, state)
        found += new
        if restart:
            state = json.loads(json.dumps(state, allow_nan=False))
    return found, state


def events(alerts, levels, **more):
    return [(alert.event, alert.since, alert.at) for alert in walk(alerts, levels, **more)[0]]


levels_in_time = st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0.0, 0.6, 1.0, 3.0])), min_size=1, max_size=40)


@given(levels_in_time, st.integers(0, 8), st.integers(0, 8))
def test_an_alert_begins_with_the_first_row_at_which_the_condition_has_held_long_enough(rows, over, more):
    stamps = [sum(step for step, _ in rows[: i + 1]) for i in range(len(rows))]
    levels = [level for _, level in rows]
    rule = Rule(over=over, within=over + more, clear=10**6)
    wanted = raised(stamps, levels, over=over, within=over + more)
    found = events(Alerts({"anomaly": rule}), levels, stamps=stamps)
    assert [at for event, _, at in found if event == "raised"] == [
        s for s, is_raised in zip(stamps, wanted, strict=True) if is_raised
    ][:1]


@given(levels_in_time, st.integers(0, 6), st.integers(0, 6), st.integers(0, 20), st.sampled_from([0.5, 1.0]))
def test_beginnings_and_ends_take_turns_and_a_restart_at_any_row_changes_nothing(
    rows, over, clear, cooldown, hysteresis
):
    stamps = [sum(step for step, _ in rows[: i + 1]) for i in range(len(rows))]
    alerts = Alerts(
        {"anomaly": Rule(over=over, within=over + 3, clear=clear, cooldown=cooldown, hysteresis=hysteresis)}
    )
    levels = [level for _, level in rows]
    found, _ = walk(alerts, levels, stamps)
    assert [alert.event for alert in found] == ["raised", "cleared"] * (len(found) // 2) + ["raised"] * (len(found) % 2)
    assert len({alert.id for alert in found}) == sum(alert.event == "raised" for alert in found)
    begins = [alert.at for alert in found if alert.event == "raised"][1:]
    ends = [alert.at for alert in found if alert.event == "cleared"]
    assert all(begin - end >= cooldown for end, begin in zip(ends, begins, strict=False))
    assert walk(alerts, levels, stamps, restart=True)[0] == found


def test_one_row_is_enough_where_no_duration_is_asked_for():
    assert events(Alerts({"anomaly": Rule()}), [0, 1.2, 0.3]) == [("raised", 1, 1), ("cleared", 1, 2)]


def test_a_flicker_shorter_than_asked_for_is_no_alert():
    assert events(Alerts({"anomaly": Rule(over=3)}), [0, 2, 2, 0, 2, 2, 0]) == []


def test_an_episode_lasts_through_dips_above_the_hysteresis_and_short_breaks():
    rule = Rule(hysteresis=0.5, clear=3)
    levels = [2, 0.7, 0.7, 0.7, 0.1, 0.1, 2, 0.1, 0.1, 0.1, 0]
    assert events(Alerts({"anomaly": rule}), levels) == [("raised", 0, 0), ("cleared", 0, 9)]


def test_rows_that_do_not_know_neither_begin_nor_end_an_alert():
    assert events(Alerts({"anomaly": Rule(clear=2)}), [2, *[NAN] * 50, 0, 0]) == [("raised", 0, 0), ("cleared", 0, 52)]


def test_a_row_stands_for_no_more_time_than_the_longest():
    rule = Rule(over=5, within=1000, longest=2)
    assert events(Alerts({"anomaly": rule}), [2, 2, 2], stamps=[0, 500, 900]) == []


def test_a_clock_that_was_put_right_does_not_leave_the_cooldown_in_the_future():
    alerts = Alerts({"anomaly": Rule(cooldown=100)})
    _, state = walk(alerts, [2, 0], stamps=[1000, 1001])
    found, _ = walk(alerts, [2], stamps=[10], state=alerts.after_gap(state))
    assert [alert.event for alert in found] == ["raised"]


def test_a_time_of_which_nothing_is_known_counts_for_nothing():
    alerts = Alerts({"anomaly": Rule(over=5, within=1000)})
    _, state = walk(alerts, [0, 2])
    found, _ = walk(alerts, [2, 2, 2], stamps=[900, 901, 902], state=alerts.after_gap(state))
    assert found == []


def test_what_still_holds_after_the_cooldown_alerts_then():
    rule = Rule(cooldown=5)
    assert events(Alerts({"anomaly": rule}), [2, 0, 2, 2, 2, 2, 2])[-1] == ("raised", 6, 6)


def test_maintenance_mutes_and_what_lasts_longer_alerts_after_it():
    alerts = Alerts({"anomaly": Rule()}, maintenance=[(2, 5)])
    found, state = walk(alerts, [0, 0, 2, 2, 2, 2, 2, 0])
    assert [(a.event, a.at) for a in found] == [("raised", 6), ("cleared", 7)]
    assert state["n_muted"] == 4


def test_maintenance_of_one_sensor_leaves_the_others():
    alerts = Alerts({"anomaly": Rule()})
    state = alerts.mute(0, 9, alerts.open(), sensors=["a"])
    found, _ = walk(alerts, [2], state=state)
    assert found[0].sensors == ("b",)
    both = alerts.mute(0, 9, state, sensors=["b"])
    assert walk(alerts, [2], state=both)[0] == []


def test_a_window_that_was_added_survives_a_restart_and_is_dropped_when_over():
    alerts = Alerts({"anomaly": Rule()})
    state = json.loads(json.dumps(alerts.mute(1, 2, alerts.open())))
    found, state = walk(alerts, [0, 2, 2, 2], state=state)
    assert [(a.event, a.at) for a in found] == [("raised", 3)]
    assert state["windows"] == []


def test_an_alert_names_sensors_band_values_and_since_when():
    alerts = Alerts({"anomaly": Rule(over=1)})
    seen = Seen(level=4.0, sensors=("flow",), band={"flow": (1.0, 2.0)}, values={"flow": 9.0})
    _, state = alerts.step(10, {"anomaly": seen}, alerts.open())
    (alert,), _ = alerts.step(11, {"anomaly": seen}, state)
    assert alert.to_json() == {
        "id": "anomaly-0",
        "event": "raised",
        "kind": "anomaly",
        "since": 10,
        "at": 11,
        "sensors": ("flow",),
        "band": {"flow": (1.0, 2.0)},
        "values": {"flow": 9.0},
        "level": 4.0,
    }


def test_a_step_leaves_the_state_that_was_given_as_it_was():
    alerts = Alerts({"anomaly": Rule(over=3)})
    _, state = walk(alerts, [2, 2])
    before = json.dumps(state)
    walk(alerts, [2, 2, 0], stamps=[2, 3, 4], state=state)
    assert json.dumps(state) == before


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Rule(over="5min", within="1min"), "must be at least over=300000000000 ns"),
        (lambda: Rule(over=-1), "over=-1 (int) must be a duration of at least 0 ns"),
        (lambda: Rule(hysteresis=1.5), "hysteresis=1.5 (float) must be a number"),
        (lambda: Alerts({"anomly": Rule()}), "rules for ['anomly']: known are ['anomaly', "),
        (lambda: Alerts(maintenance=[(5, 2)]), "maintenance from 5 to 2 ends before it begins"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(make, text):
    with pytest.raises(ParameterError, match=re.escape(text)):
        make()
