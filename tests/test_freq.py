"""Frequencies: one list of aliases, and arithmetic on stamps that agrees with pandas."""

from datetime import timedelta

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_ts.errors import FrequencyError, StampError
from txl_ts.frames import Freq, parse_freq, rows_in

HOUR = 3600 * 10**9

# ------------------------------------------------------------------------------------------------------------- aliases

SAME = [
    ("1h", ["h", "H", "1H", "60min", "60T", "60m", "3600s", "3600S", timedelta(hours=1), pd.Timedelta("1h")]),
    ("5min", ["5T", "5m", "300s", "0h5m", pd.offsets.Minute(5)]),
    ("90min", ["1h30m", "1h30min", "1.5h"]),
    ("30s", ["0.5min", "30S", "30000ms"]),
    ("1ms", ["ms", "L", "1000us", "1000µs", "1000U"]),
    ("1us", ["us", "U", "1000N"]),
    ("24h", ["1440min", "24H"]),
    ("1D", ["D", "d", "1d", pd.offsets.Day()]),
    ("1W", ["W", "1w", "w"]),
    ("W-MON", ["W-MON", "1W-MON", "w-mon"]),
    ("B", ["B", "1B", "1bd"]),
    ("ME", ["M", "1M", "ME", pd.offsets.MonthEnd()]),
    ("MS", ["MS", "1MS"]),
    ("1mo", ["mo", "1mo"]),
    ("3mo", ["3mo"]),
    ("QE", ["Q", "QE"]),
    ("QE-DEC", ["Q-DEC", "QE-DEC"]),
    ("QS-FEB", ["QS-FEB"]),
    ("1q", ["q", "1q"]),
    ("YE", ["A", "Y", "YE"]),
    ("YS", ["AS", "YS"]),
    ("YE-JUN", ["A-JUN", "Y-JUN"]),
    ("1y", ["y", "1y"]),
    ("3", [3, "3", "3i"]),
]


@pytest.mark.parametrize(("text", "spellings"), SAME, ids=[text for text, _ in SAME])
def test_spellings_of_pandas_and_of_polars_give_one_frequency(text, spellings):
    freqs = {parse_freq(spelling) for spelling in (text, *spellings)}
    assert freqs == {parse_freq(text)}
    assert parse_freq(text).text == text


@pytest.mark.parametrize("spelling", [alias for text, more in SAME for alias in (text, *more)], ids=str)
def test_the_text_of_a_frequency_parses_back_to_it(spelling):
    freq = parse_freq(spelling)
    assert parse_freq(freq.text) == freq
    assert parse_freq(freq) is freq


@pytest.mark.parametrize(
    ("freq", "season"),
    [
        ("1h", 24),
        ("30min", 48),
        ("15min", 96),
        ("10min", 144),
        ("5min", 288),
        ("1min", 1440),
        ("30s", 120),
        ("10s", 360),
        ("1s", 60),
        ("1ms", 1000),
        ("7min", 1),
        ("24h", 7),
        ("D", 7),
        ("7D", 52),
        ("B", 5),
        ("W", 52),
        ("2W", 26),
        ("MS", 12),
        ("3mo", 4),
        ("QE", 4),
        ("Y", 1),
        (1, 1),
    ],
)
def test_the_season_is_the_usual_one(freq, season):
    assert parse_freq(freq).season == season


@pytest.mark.parametrize(
    ("freq", "rows", "text"),
    [
        ("1h", 432, "18 days"),
        ("1h", 36, "36 h"),
        ("1h", 24, "1 day"),
        ("5min", 1000, "3.5 days"),
        ("1min", 61, "61 min"),
        ("1ms", 1500, "1.5 s"),
        ("D", 1, "1 day"),
        ("W", 2, "2 weeks"),
        ("MS", 24, "24 months"),
        ("B", 5, "5 business days"),
        ("2QS", 3, "6 quarters"),
        (1, 432, "432 rows"),
        (1, 1, "1 row"),
    ],
)
def test_a_duration_is_said_in_the_users_time(freq, rows, text):
    assert parse_freq(freq).duration(rows) == text


@pytest.mark.parametrize(
    ("freq", "duration", "rows"),
    [
        ("1h", "90d", 2160),
        ("30min", "1w", 336),
        ("7min", "1h", 9),
        ("D", "36h", 2),
        ("MS", "2y", 24),
        ("QS", "1y", 4),
        ("1h", 100, 100),
        (1, 100, 100),
        ("1h", timedelta(days=2), 48),
    ],
)
def test_a_duration_counts_rows_rounded_up(freq, duration, rows):
    assert rows_in(parse_freq(freq), duration) == rows


def test_a_duration_in_time_needs_a_time_column():
    with pytest.raises(FrequencyError, match=r"'90d' is a length of time, but .* counts in integers.*number of rows"):
        rows_in(parse_freq(1), "90d")


def test_rows_per_hour_are_known_where_time_is():
    assert parse_freq("5min").per_hour == 12
    assert parse_freq("D").per_hour == pytest.approx(1 / 24)
    assert np.isnan(parse_freq(1).per_hour)


@pytest.mark.parametrize(
    ("freq", "message"),
    [
        ("hourly", r"freq='hourly' is not a known frequency\. Did you mean '1h'\?"),
        ("5mins", r"Did you mean '5min'\?"),
        ("monthly", r"Did you mean 'MS'\?"),
        ("BME", r"Did you mean 'ME'\?"),
        ("", r"freq='' is not a known frequency\. Known are integers and"),
        ("W-FEB", r"freq='W-FEB' is not a known frequency"),
        ("1h30", "not a known frequency"),
        ("1D12h", "not a known frequency"),
        ("0h", r"must be a step forward in time, got '0h'"),
        (0, "must be a step forward in time, got 0"),
        (-3, "must be a step forward"),
        ("-1", "must be a step forward"),
        ("0.1ns", "not a whole number of nanoseconds"),
        (True, "must be a string such as '1h' or an integer, got True of type bool"),
        (1.5, "got 1.5 of type float"),
        (None, "got None of type NoneType"),
    ],
    ids=str,
)
def test_an_unknown_frequency_is_told_what_is_known(freq, message):
    with pytest.raises(FrequencyError, match=message):
        parse_freq(freq)


# ---------------------------------------------------------------------------------------------------- pandas as oracle

PANDAS = ["ns", "us", "ms", "s", "min", "5min", "h", "D", "3D", "B", "2B", "W-SUN", "W-MON", "2W-THU"]
PANDAS += ["MS", "ME", "2MS", "5ME", "QS-JAN", "QS-FEB", "QE-DEC", "QE-OCT", "2QS-MAR", "YS-JAN", "YE-JUN", "2YE-DEC"]
STARTS = ["1969-11-30 00:00", "2023-12-29 00:00", "2024-02-29 13:45"]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("alias", PANDAS)
def test_a_shift_agrees_with_date_range(alias, start):
    expected = pd.date_range(start, periods=40, freq=alias).as_unit("ns").asi8
    freq = parse_freq(alias)
    np.testing.assert_array_equal(freq.shift(expected[:1], np.arange(40)), expected)
    np.testing.assert_array_equal(freq.shift(expected, 7)[:-7], expected[7:])
    np.testing.assert_array_equal(freq.shift(expected, -7)[7:], expected[:-7])


@pytest.mark.parametrize("alias", [*PANDAS, "1mo", "1q", "1y", "W", "QS"])
def test_count_inverts_shift_and_rounds_down_between_grid_stamps(alias):
    freq = parse_freq(alias)
    start = pd.date_range("2023-11-14 06:30", periods=1, freq=alias if alias in PANDAS else "MS")
    origin = start.as_unit("ns").asi8
    n = np.arange(-50, 50)
    stamps = freq.shift(origin, n)
    np.testing.assert_array_equal(freq.count(origin, stamps), n)
    np.testing.assert_array_equal(freq.count(origin, stamps - 1), n - 1)


@pytest.mark.parametrize("alias", ["D", "3D", "W-MON", "B", "MS", "ME", "QS-JAN"])
@pytest.mark.parametrize("zone", ["Australia/Melbourne", "Europe/Berlin", "America/St_Johns", "UTC"])
def test_calendar_steps_follow_the_wall_clock_of_the_zone(alias, zone):
    expected = pd.date_range("2023-01-01", periods=500, freq=alias, tz=zone).as_unit("ns").asi8
    freq = parse_freq(alias)
    np.testing.assert_array_equal(freq.shift(expected[:1], np.arange(500), zone), expected)
    np.testing.assert_array_equal(freq.count(expected[:1], expected, zone), np.arange(500))


def test_months_by_day_come_back_to_the_day_after_a_short_month():
    origin = pd.DatetimeIndex(["2024-01-31 08:00"]).as_unit("ns").asi8
    stamps = parse_freq("1mo").shift(origin, np.arange(4)).view("datetime64[ns]").astype("datetime64[h]")
    assert list(stamps.astype(str)) == ["2024-01-31T08", "2024-02-29T08", "2024-03-31T08", "2024-04-30T08"]


def test_a_day_that_starts_in_the_skipped_hour_starts_after_it():
    zone = "Australia/Melbourne"
    origin = pd.DatetimeIndex(["2024-10-05 02:30"]).as_unit("ns").tz_localize(zone).asi8
    stamps = pd.DatetimeIndex(parse_freq("D").shift(origin, [0, 1, 2], zone), tz="UTC").tz_convert(zone)
    assert list(stamps.strftime("%d %H:%M")) == ["05 02:30", "06 03:00", "07 02:30"]


def test_a_shift_by_nothing_keeps_the_second_of_two_equal_wall_times():
    zone = "Australia/Melbourne"
    second = pd.DatetimeIndex(["2024-04-07 02:30"]).tz_localize(zone, ambiguous=np.array([False])).as_unit("ns").asi8
    np.testing.assert_array_equal(parse_freq("D").shift(second, 0, zone), second)


@pytest.mark.parametrize("freq", ["1h", "D", "MS", "YE", "B", "W-MON", "1mo"])
def test_a_stamp_beyond_nanoseconds_is_a_typed_error(freq):
    origin = pd.DatetimeIndex(["2200-01-01"]).as_unit("ns").asi8
    with pytest.raises(StampError, match=r"1678 to 2262.*shorter horizon"):
        parse_freq(freq).shift(origin, 10**6)


@given(
    origin=st.integers(-(2**40), 2**40),
    steps=st.lists(st.integers(-(10**6), 10**6), min_size=1),
    step=st.integers(1, 10**4),
)
def test_integer_steps_are_plain_arithmetic(origin, steps, step):
    freq = parse_freq(step)
    moved = freq.shift(origin, steps)
    assert moved.tolist() == [origin + n * step for n in steps]
    assert freq.count(origin, moved).tolist() == steps


def test_shift_broadcasts_and_keeps_the_shape():
    moved = parse_freq("1h").shift(np.zeros((2, 1), np.int64), np.arange(3))
    assert moved.shape == (2, 3)
    assert moved[1].tolist() == [0, HOUR, 2 * HOUR]


def test_a_freq_is_hashable_and_frozen():
    assert len({parse_freq("1h"), parse_freq("60min"), parse_freq("D")}) == 2
    with pytest.raises(AttributeError):
        parse_freq("1h").step = 3
    assert isinstance(parse_freq("1h"), Freq)
