"""The clock faults and dead sensors of real recordings: each has its status, and the row after is right again."""

import csv
import itertools
import math
from collections import Counter
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from tests.oracles.mean_session import MeanSession
from txl_ts.stream import Channel, Intake, Watch

MIN = 60 * 10**9


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))[1:]


def nab(shared_data, name):
    return [("value", time, float(value)) for time, value in rows_of(shared_data / "nab" / name)]


def watched(messages, channels=("value",), **settings):
    """All rows of a recording, over a stand-in model; in calls of 100 messages."""
    intake = Intake(list(channels), **settings)
    watch = Watch(intake, MeanSession(intake.columns))
    found = [
        one for first in range(0, len(messages), 100) for one in watch.step({"s": messages[first : first + 100]})["s"]
    ]
    return found + watch.flush()["s"]


def counted(found):
    return Counter(one.row.status for one in found)


@pytest.mark.parametrize("tick", [None, "5min"])
def test_the_backward_step_of_the_machine_temperature_is_said_and_the_next_row_is_scored(shared_data, tick):
    messages = nab(shared_data, "realKnownCause/machine_temperature_system_failure.csv")
    found = watched(messages, tick=tick)
    assert counted(found) == {"ok": 22_683, "clock_back": 12}
    (first,) = (i for i in range(len(found)) if found[i].status == "clock_back" and found[i - 1].status != "clock_back")
    assert found[first].row.stamp == int(np.datetime64("2014-01-07T02:00", "ns").astype(int))
    assert all(math.isnan(one.score) for one in found[first : first + 12])
    after = found[first + 12]
    assert (after.row.stamp, after.status) == (int(np.datetime64("2014-01-07T03:00", "ns").astype(int)), "ok")
    assert math.isfinite(after.score)
    alerts = [(a.event, a.kind, a.at) for one in found[first : first + 13] for a in one.alerts]
    assert alerts == [("raised", "clock_back", found[first - 1].row.stamp), ("cleared", "clock_back", after.row.stamp)]


@pytest.mark.parametrize(
    "name",
    [
        "realAWSCloudwatch/ec2_disk_write_bytes_1ef3de.csv",
        "realAWSCloudwatch/ec2_network_in_5abac7.csv",
        "realKnownCause/ec2_request_latency_system_failure.csv",
    ],
)
def test_the_eleven_repeats_in_each_ec2_file_are_duplicates_and_the_next_row_is_scored(shared_data, name):
    messages = nab(shared_data, name)
    found = watched(messages, max_gap="2h")
    assert counted(found) == {"ok": len(messages) - 11, "duplicate": 11}
    last = max(i for i, one in enumerate(found) if one.status == "duplicate")
    assert found[last + 1].status == "ok"
    assert math.isfinite(found[last + 1].score)


@pytest.mark.slow
def test_every_nab_file_gives_one_row_per_message_and_no_error(shared_data):
    for path in sorted((shared_data / "nab").glob("*/*.csv")):
        messages = nab(shared_data, path.relative_to(shared_data / "nab"))
        rows, state = Intake(["value"], max_gap="30d", max_jump="30d").step(messages)
        assert len(rows) == len(messages), path.name
        assert {status for status, n in state["counts"].items() if n} <= {"ok", "clock_back", "duplicate"}, path.name


def test_gaps_of_days_in_a_traffic_file_reset_and_warm_up_again(shared_data):
    found = watched(nab(shared_data, "realTraffic/occupancy_6005.csv"), tick="5min", max_gap="1h")
    counts = counted(found)
    assert counts["reset"] > 0
    assert counts["stale"] >= counts["reset"]
    for i, one in enumerate(found):
        if one.row.is_reset:
            assert math.isnan(one.score)
            later = [other for other in found[i : i + 40] if other.row.is_used]
            assert any(math.isfinite(other.score) or other.row.is_reset for other in later[1:])


def test_a_summer_time_clock_goes_back_in_autumn_and_leaves_a_gap_in_spring(shared_data):
    zone = ZoneInfo("Australia/Melbourne")
    instants = [
        datetime.fromisoformat(row[0]) for row in rows_of(shared_data / "vic_electricity" / "vic_electricity.csv")
    ]
    values = [float(row[1]) for row in rows_of(shared_data / "vic_electricity" / "vic_electricity.csv")]
    wall = [
        ("value", time.astimezone(zone).replace(tzinfo=None), value)
        for time, value in zip(instants, values, strict=True)
    ]
    rows, _ = Intake(["value"], tick="30min", max_gap="3h").step(wall)
    # Three autumns repeat two half-hours each, three springs skip two.
    counts = Counter(row.status for row in rows)
    assert counts == {"ok": len(wall) - 6 - 3, "clock_back": 6, "missing": 6, "gap_bridged": 3}
    assert all(rows[i + 1].status in ("clock_back", "ok") for i, row in enumerate(rows) if row.status == "clock_back")
    aware = [("value", time, value) for time, value in zip(instants, values, strict=True)]
    rows, _ = Intake(["value"], tick="30min", max_gap="3h", zone=True).step(aware)
    assert Counter(row.status for row in rows) == {"ok": len(aware)}


def test_the_stuck_inverter_is_said_after_its_time_wherever_the_label_says_so(shared_data):
    rows = rows_of(shared_data / "pv_quality" / "ac_power_inv_2173_stale_data.csv")
    channel = Channel(name="value", stuck_after="75min", may_repeat=(0.0,), stuck_tolerance=1e-5)
    messages = [("value", time, float(value) if value else None) for time, value, _ in rows]
    found = watched(messages, [channel], tick="15min", max_gap="1d", zone=True)
    by_stamp = {one.row.stamp: one.row.status for one in found if one.row.raw}
    stamps = [int(np.datetime64(time.removesuffix("+00:00"), "ns").astype(int)) for time, _, _ in rows]
    is_stuck = np.array([by_stamp[stamp] == "stuck" for stamp in stamps])
    labels = np.array([label == "True" for _, _, label in rows])
    assert not (is_stuck & ~labels).any()
    assert (labels & ~is_stuck).sum() == 3 * 5  # the first 75 minutes of each of three runs
    last = np.flatnonzero(is_stuck)[-1]
    assert by_stamp[stamps[last + 1]] != "stuck"
    come = [one for one in found if one.row.raw and one.row.values.get("value") is not None]
    after = [one for before, one in itertools.pairwise(come) if before.row.status == "stuck" != one.row.status]
    assert len(after) == 3
    assert all(math.isfinite(one.score) for one in after)


def test_nights_without_values_make_an_inverter_missing_then_stale_and_the_morning_bridges_or_resets(shared_data):
    rows = rows_of(shared_data / "pv_quality" / "ac_power_inv_2173.csv")
    messages = [("value", time, float(value) if value else None) for time, value in rows]
    found = watched(messages, tick="15min", max_gap="12h", zone=True)
    counts = counted(found)
    assert counts["missing"] + counts["stale"] == sum(value == "" for _, value in rows)
    assert counts["gap_bridged"] + counts["reset"] > 0
    assert all(math.isnan(one.score) for one in found if one.row.raw == {"value": None})


def test_impossible_powers_of_an_inverter_are_out_of_range_and_the_next_row_is_scored(shared_data):
    rows = rows_of(shared_data / "pv_quality" / "ac_power_inv_7539_outliers.csv")
    messages = [("value", time, float(value)) for time, value, _ in rows]
    found = [
        one
        for one in watched(
            messages, [Channel(name="value", low=-0.01, high=1.2)], tick="15min", max_gap="12h", zone=True
        )
        if one.row.raw
    ]
    outside = [i for i, (_, value, _) in enumerate(rows) if not -0.01 <= float(value) <= 1.2]
    assert [i for i, one in enumerate(found) if one.row.channels["value"] == "out_of_range"] == outside
    assert outside
    assert all(found[i].row.values == {"value": None} for i in outside)
    assert all(math.isfinite(found[i + 1].score) for i in outside if i > 10 and i + 1 not in outside)


def test_a_site_that_logs_with_summer_time_and_holes_gives_a_row_for_each_stamp(shared_data):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(shared_data / "pv_quality" / "system_50_ac_power_2_full_DST.parquet").iloc[:20_000]
    messages = [("value", time.to_pydatetime(), value) for time, value in frame.itertuples(index=False)]
    found = watched(messages, tick="15min", max_gap="1d", zone=True)
    assert sum(bool(one.row.raw) for one in found) == 20_000
    n_missing = int(frame.iloc[:, 1].isna().sum())
    assert counted(found)["missing"] + counted(found)["stale"] == n_missing


def femto(shared_data):
    """Bursts of accelerations at 25.6 kHz (0.1 s every 10 s) and a minute of temperatures at 10 Hz, each in a file."""
    folder = shared_data / "femto_bearing" / "Learning_set" / "Bearing3_1"

    def stamp(h, m, s, ns):
        return ((int(h) * 60 + int(m)) * 60 + int(s)) * 10**9 + ns

    files = []
    for n in range(511, 516):
        lines = [line.split(",") for line in (folder / f"acc_{n:05d}.csv").read_text().splitlines()]
        files.append([("shake", stamp(h, m, s, round(float(us) * 1000)), float(x)) for h, m, s, us, x, _ in lines])
    for n in (85, 86):
        lines = [line.split(";") for line in (folder / f"temp_{n:05d}.csv").read_text().splitlines()]
        files.append([("heat", stamp(h, m, s, int(tenth) * 10**8), float(x)) for h, m, s, tenth, x in lines])
    return files


RATES = [Channel(name="shake", every="10s", stale_after="1min"), Channel(name="heat", every="100ms", stale_after="30s")]


def test_two_rates_are_masks_and_ages_in_one_stream(shared_data):
    messages = sorted((one for file in femto(shared_data) for one in file), key=lambda one: one[1])
    found = watched(messages, RATES)
    assert sum(len(one.row.raw) for one in found) == len(messages) == 5 * 2560 + 417 + 600
    assert set(counted(found)) <= {"ok", "missing", "stale"}
    between = [one for one in found if "shake" not in one.row.raw]
    assert len(between) > 900
    assert all(one.row.values["shake"] is None for one in between)  # no acceleration is made up
    ages = [one.row.ages["shake"] for one in between if one.row.ages["shake"] is not None]
    assert max(one for one in ages if one < 10**10) > 9 * 10**9
    # After the last burst its channel is missing, then stale, while temperatures are scored on.
    assert [status for status, _ in itertools.groupby(one.row.channels["shake"] for one in found[-600:])] == [
        "missing",
        "stale",
    ]
    assert all(math.isfinite(one.score) for one in found[-600:])


def test_files_that_arrive_when_they_are_whole_need_a_buffer_or_lose_what_is_late(shared_data):
    messages = [one for file in sorted(femto(shared_data), key=lambda file: file[-1][1]) for one in file]
    waits, drops = (watched(messages, RATES, late=late) for late in ("1min", "0s"))
    n_lost = [
        sum(len(one.row.raw) for one in found if one.status in ("late_dropped", "clock_back"))
        for found in (waits, drops)
    ]
    newest = itertools.accumulate((stamp for _, stamp, _ in messages), max)
    n_late = sum(stamp < before for (_, stamp, _), before in zip(messages[1:], newest, strict=False))
    assert n_lost == [0, n_late]
    assert n_late > 417  # the temperatures, and accelerations that were measured before the last of them
    stamps = [one.row.stamp for one in waits]
    assert stamps == sorted(set(stamps))
    assert sum(len(one.row.raw) for one in waits) == len(messages)


def test_a_sensor_that_dies_in_a_real_recording_raises_and_the_others_are_scored_on(shared_data):
    with open(shared_data / "skab" / "anomaly-free" / "anomaly-free.csv", newline="") as file:
        header, *rows = list(csv.reader(file, delimiter=";"))
    tags = header[1:4]
    messages = []
    for i, row in enumerate(rows[:1500]):
        values = {tag: float(value) for tag, value in zip(tags, row[1:4], strict=True)}
        if 700 <= i < 1200:
            del values[tags[1]]
        messages.append({"time": row[0], "values": values})
    found = watched(messages, tags, tick="1s", max_gap="30s", late="2s")
    alerts = [
        (a.event, a.kind, a.sensors)
        for one in found
        for a in one.alerts
        if a.kind == "stale" and a.sensors == (tags[1],)
    ]
    assert alerts == [("raised", "stale", (tags[1],)), ("cleared", "stale", (tags[1],))]
    dead = [one for one in found if one.row.channels.get(tags[1]) == "stale" and one.row.raw]
    assert len(dead) > 400
    assert all(math.isfinite(one.score) for one in dead if not one.row.is_reset and one.status != "warming_up")
    assert sum(math.isfinite(one.score) for one in dead) > 400
