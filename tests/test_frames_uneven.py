"""Reading rows that come when they come: no grid, distances in median steps."""

import numpy as np
import pandas as pd
import pytest

from txl_ts.errors import ColumnError, FrequencyError, StampError
from txl_ts.frames import after_ends, parse_freq, read_long, with_gaps

MINUTES = [0, 7, 10, 55, 60, 600]


def stamps(minutes=MINUTES, *, unit="us", zone=None, start="2024-03-30"):
    return pd.DatetimeIndex(pd.Timestamp(start) + pd.to_timedelta(minutes, unit="min"), tz=zone).as_unit(unit)


def two_series(ds=None):
    ds = stamps() if ds is None else ds
    n = len(ds)
    return {"unique_id": ["b"] * n + ["a"] * n, "ds": list(ds) * 2, "y": list(range(n)) + list(range(10, 10 + n))}


def gaps_of(panel, **how):
    return with_gaps(panel, **{"max_gap": None, "ends": None} | how).covariates.futr[:, -1]


def test_rows_stay_where_they_are(frame):
    panel = read_long(frame(two_series()), freq=None)
    assert panel.ids == ("a", "b")
    assert panel.values.tolist() == [10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5]
    assert panel.report.n_filled == 0
    series, ordinals = panel.row_series(), panel.row_ordinals()
    assert ordinals.tolist() == [0, 1, 2, 3, 4, 5] * 2
    wanted = stamps().as_unit("ns").asi8.tolist()
    assert panel.stamps(series, ordinals).tolist() == wanted * 2
    assert panel.freq.is_uneven


def test_the_unit_is_the_lower_median_step_and_gaps_are_counted_in_it():
    panel = read_long(pd.DataFrame(two_series()), freq=None)
    assert panel.freq.text == "~7min"  # of 3, 5, 7, 45 and 540
    np.testing.assert_allclose(gaps_of(panel)[:6] * 7, [0, 7, 3, 45, 5, 540], rtol=1e-6)


def test_rows_after_the_last_one_are_expected_at_median_steps():
    panel = read_long(pd.DataFrame(two_series()), freq=None)
    ahead = panel.stamps([0, 0], [6, 7]) - panel.stamps([0], [5])
    assert (ahead / 60e9).tolist() == [7, 14]


def test_shuffled_rows_give_the_same_panel():
    df = pd.DataFrame(two_series())
    sorted_, shuffled = (read_long(d, freq=None) for d in (df, df.sample(frac=1, random_state=3)))
    assert np.array_equal(sorted_.row_stamps, shuffled.row_stamps)
    assert np.array_equal(sorted_.values, shuffled.values)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_neither_unit_nor_origin_nor_zone_change_a_gap(unit):
    base = gaps_of(read_long(pd.DataFrame(two_series(stamps(unit="us"))), freq=None))
    assert np.array_equal(base, gaps_of(read_long(pd.DataFrame(two_series(stamps(unit=unit))), freq=None)))
    later = stamps(unit=unit, start="1999-07-01 03:17")
    assert np.array_equal(base, gaps_of(read_long(pd.DataFrame(two_series(later)), freq=None)))
    # Over the hour that Berlin skips: real time runs on.
    zoned = pd.DatetimeIndex(stamps(unit=unit), tz="UTC").tz_convert("Europe/Berlin")
    assert np.array_equal(base, gaps_of(read_long(pd.DataFrame(two_series(zoned)), freq=None)))


@pytest.mark.parametrize(("factor", "shift"), [(1, 0), (1000, 0), (60_000, -(10**12))])
def test_integers_count_in_any_unit(factor, shift):
    minutes = [factor * m + shift for m in MINUTES]
    panel = read_long(pd.DataFrame(two_series(minutes)), freq=None)
    assert panel.freq.text == f"~{7 * factor}"
    np.testing.assert_array_equal(gaps_of(panel)[:6], np.array([0, 7, 3, 45, 5, 540], np.float32) / np.float32(7))


def test_a_unit_may_be_given():
    panel = read_long(pd.DataFrame(two_series()), freq="~1h")
    np.testing.assert_allclose(gaps_of(panel)[1], 7 / 60, rtol=1e-6)
    freq = parse_freq("~1h")
    assert (freq.is_uneven, freq.is_integer, freq.text, parse_freq(freq.text)) == (True, False, "~1h", freq)
    assert freq.duration(36) == "about 36 h"
    assert (freq.season, parse_freq("~3").duration(2)) == (1, "2 rows")
    with pytest.raises(FrequencyError, match="must name a fixed length of time, such as '~24h'"):
        parse_freq("~1mo")
    with pytest.raises(FrequencyError, match="does not fit time column 'ds', which holds integers"):
        read_long(pd.DataFrame(two_series(MINUTES)), freq="~1h")


def test_a_long_gap_is_a_distance_unless_max_gap_says_that_it_begins_a_series_anew():
    df = pd.DataFrame(two_series())
    assert read_long(df, freq=None).n_pieces == 2
    panel = read_long(df, freq=None, max_gap=10)  # 70 minutes without a row
    assert panel.n_pieces == 4
    assert panel.lengths.tolist() == [5, 1, 5, 1]
    assert gaps_of(panel, max_gap=10)[[0, 4, 5]].tolist() == [0, np.float32(5 / 7), 0]


def test_rows_that_go_on_are_numbered_from_the_last_one_that_was_taken_in():
    panel = read_long(pd.DataFrame(two_series()), freq=None)
    ends = panel.row_stamps[[0, 6]] - np.array([21, 0]) * 60 * 10**9
    later = after_ends(panel, ends=ends, seen=np.array([True, False]))
    assert later.piece_first.tolist() == [1, 0]
    assert later.stamps([0, 1], [1, 0]).tolist() == panel.row_stamps[[0, 6]].tolist()
    assert gaps_of(later, ends=ends)[[0, 6]].tolist() == [3, 0]
    assert gaps_of(later, ends=ends, max_gap=1)[0] == 0
    message = r"1 series have rows that come before, or again at, rows already taken in: 'a' has 1 row from 2024-03-30"
    with pytest.raises(StampError, match=message):
        after_ends(panel, ends=panel.row_stamps[[0, 6]], seen=np.array([True, False]))


def test_repeated_times_are_refused_with_or_without_align():
    df = pd.DataFrame(two_series(stamps([0, 7, 7, 9])))
    for align in ("error", "nearest"):
        with pytest.raises(
            StampError, match=r"repeats 1 time in series 'a'.* uneven time has no grid to merge them on"
        ):
            read_long(df, freq=None, align=align)


def test_a_missing_stamp_is_refused_as_elsewhere():
    df = pd.DataFrame(two_series())
    df.loc[3, "ds"] = pd.NaT
    with pytest.raises((StampError, ColumnError), match="'ds'"):
        read_long(df, freq=None)


def test_single_rows_have_no_median_step():
    with pytest.raises(FrequencyError, match="freq=None measures time in median steps, and needs a series with two"):
        read_long(pd.DataFrame(two_series(stamps([5]))), freq=None)
    assert read_long(pd.DataFrame(two_series(stamps([5]))), freq="~1h").n_rows == 2


def test_missing_values_stay_rows():
    df = pd.DataFrame(two_series()).assign(y=[np.nan, 1, 2, np.nan, 4, 5, 6, 7, 8, 9, 10, 11])
    panel = read_long(df, freq=None)
    assert np.isnan(panel.values).sum() == 2
    assert panel.n_rows == 12
