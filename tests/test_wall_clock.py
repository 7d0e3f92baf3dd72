"""The calendar of streams: read off the wall clock without pandas, the same as in frames, which read it with pandas."""

import numpy as np
import pytest

from txl_ts.errors import StampError
from txl_ts.frames import calendar_features
from txl_ts.runtime.wall import WallClock

COLUMNS = ("hour.1.sin", "hour.2.cos", "weekday.3.sin", "month.1.cos", "yearday.2.sin")
HOUR = 3600 * 10**9


@pytest.mark.parametrize("zone", [None, "UTC", "Australia/Melbourne", "Europe/Berlin", "America/St_Johns", "UTC+05:30"])
def test_streams_and_frames_read_the_same_calendar(zone):
    """Each hour of 2024 has both clock changes; single stamps lie far away, before 1970 too."""
    hours = np.datetime64("2024-01-01", "ns").astype(np.int64) + np.arange(366 * 24) * HOUR + 1_234_567
    far = np.array([-(2**61), -1, 0, 1, 2**61], np.int64)
    stamps = np.concatenate([hours, far])
    found = WallClock(COLUMNS, zone).features(stamps)
    np.testing.assert_array_equal(found, calendar_features(stamps, COLUMNS, zone=zone))


def test_what_was_read_once_is_read_again_the_same():
    clock = WallClock(COLUMNS, "Europe/Berlin")
    stamps = np.arange(20_000, dtype=np.int64) * HOUR  # more than are kept
    first = clock.features(stamps[:10])
    clock.features(stamps)
    clock.features(stamps[5:])
    np.testing.assert_array_equal(clock.features(stamps[:10]), first)


def test_a_zone_that_this_machine_does_not_know_is_named():
    with pytest.raises(StampError, match="time zone 'Mars/Olympus', which this machine does not know"):
        WallClock(COLUMNS, "Mars/Olympus")
