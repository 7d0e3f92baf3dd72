"""Reading long frames: one panel whatever the library, the order, the unit and the zone of the rows."""

import datetime as dt
import decimal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_ts.errors import CleanedDataWarning, FrequencyError, UnusedColumnsWarning
from txl_ts.frames import CleaningReport, Panel, parse_freq, read_long

NAN = float("nan")
LIBRARIES = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}


def times(start, n, freq, unit="us", zone=None):
    """Stamps as numpy datetimes; with a zone, the instants of wall times."""
    return pd.date_range(start, periods=n, freq=freq, tz=zone).as_unit(unit).to_numpy("datetime64[" + unit + "]")


def hours(*numbers):
    return np.datetime64("2024-01-01", "us") + np.array(numbers) * np.timedelta64(1, "h")


def long(series, time=hours):
    """A dict of columns from {id: [(hour, value), …]}."""
    rows = [(name, when, value) for name, pairs in series.items() for when, value in pairs]
    names, when, values = zip(*rows, strict=True)
    return {"unique_id": list(names), "ds": time(*when), "y": np.array(values, dtype=float)}


def zoned(columns, zone, library):
    """A frame whose naive UTC stamps were told their zone."""
    if library == "pandas":
        return pd.DataFrame({**columns, "ds": pd.DatetimeIndex(columns["ds"], tz="UTC").tz_convert(zone)})
    if library == "polars":
        return pl.DataFrame(columns).with_columns(pl.col("ds").dt.replace_time_zone("UTC").dt.convert_time_zone(zone))
    return pa.table(
        {**columns, "ds": pa.array(columns["ds"]).cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us", zone))}
    )


def same_panels(left: Panel, right: Panel):
    assert left.ids == right.ids
    assert left.freq == right.freq
    assert left.report == right.report
    assert left.skipped == right.skipped
    for name in ("origins", "piece_series", "piece_first", "offsets", "values"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))


# ---------------------------------------------------------------------------------------------------------- the panel


def test_ragged_unsorted_series_with_gaps_become_pieces_on_a_grid(frame):
    panel = read_long(frame(long({"b": [(3, 4.0), (0, 1.0), (1, 2.0)], "a": [(7, 8.0), (6, 7.0)]})))
    assert panel.ids == ("a", "b")
    assert panel.freq == parse_freq("1h")
    np.testing.assert_array_equal(panel.origins, hours(6, 0).astype("datetime64[ns]").view(np.int64))
    np.testing.assert_array_equal(panel.piece_series, [0, 1])
    np.testing.assert_array_equal(panel.piece_first, [0, 0])
    np.testing.assert_array_equal(panel.offsets, [0, 2, 6])
    np.testing.assert_array_equal(panel.values, np.array([7, 8, 1, 2, NAN, 4], dtype=np.float32))
    assert panel.values.dtype == np.float32
    assert panel.report == CleaningReport(n_filled=1, max_move="0 days", grid="1-hour")


def test_a_gap_longer_than_max_gap_starts_a_new_piece(frame):
    rows = {"a": [(0, 1.0), (1, 2.0), (4, 3.0), (8, 4.0), (9, 5.0)]}
    panel = read_long(frame(long(rows)), max_gap=2)
    np.testing.assert_array_equal(panel.piece_first, [0, 8])
    np.testing.assert_array_equal(panel.lengths, [5, 2])
    assert panel.report.n_cut == 1
    assert panel.report.n_filled == 2
    assert read_long(frame(long(rows)), max_gap=3).n_pieces == 1
    assert read_long(frame(long(rows)), max_gap=0).n_pieces == 3


def test_a_panel_knows_the_stamp_and_ordinal_of_every_row(frame):
    panel = read_long(frame(long({"b": [(0, 1.0), (1, 2.0), (9, 3.0)], "a": [(5, 7.0), (6, 8.0)]})), max_gap=2)
    np.testing.assert_array_equal(panel.row_series(), [0, 0, 1, 1, 1])
    np.testing.assert_array_equal(panel.row_ordinals(), [0, 1, 0, 1, 9])
    np.testing.assert_array_equal(panel.first_ordinals(), [0, 0])
    np.testing.assert_array_equal(panel.last_ordinals(), [1, 9])
    np.testing.assert_array_equal(panel.series_rows(), [2, 3])
    stamps = panel.stamps(panel.row_series(), panel.row_ordinals())
    np.testing.assert_array_equal(stamps.view("datetime64[ns]"), hours(5, 6, 0, 1, 9).astype("datetime64[ns]"))


def test_missing_targets_are_nan_in_every_library():
    columns = {"unique_id": ["a"] * 4, "ds": hours(0, 1, 2, 3), "y": [1, None, 3, None]}
    frames = [
        pd.DataFrame(columns),
        pd.DataFrame(columns).astype({"y": "Int64"}),
        pd.DataFrame(columns).astype({"y": "int64[pyarrow]"}),
        pl.DataFrame(columns),
        pa.table(columns),
    ]
    for frame in frames:
        panel = read_long(frame)
        np.testing.assert_array_equal(panel.values, np.array([1, NAN, 3, NAN], dtype=np.float32))
        assert panel.report.lines() == ["2 rows have no value."]


@pytest.mark.parametrize(
    "values",
    [
        [1, 0, 1],
        [True, False, True],
        np.array([1, 0, 1], dtype=np.uint8),
        np.array([1, 0, 1], dtype=np.float16),
        np.array([1, 0, 1], dtype=np.float32),
    ],
    ids=["int", "bool", "uint8", "float16", "float32"],
)
def test_every_kind_of_number_is_a_target(frame, values):
    panel = read_long(frame({"unique_id": ["a"] * 3, "ds": hours(0, 1, 2), "y": values}))
    np.testing.assert_array_equal(panel.values, np.array([1, 0, 1], dtype=np.float32))


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_decimals_are_numbers(library):
    values = [decimal.Decimal("1.5"), None, decimal.Decimal("2.25")]
    panel = read_long(LIBRARIES[library]({"unique_id": ["a"] * 3, "ds": hours(0, 1, 2), "y": values}))
    np.testing.assert_array_equal(panel.values, np.array([1.5, NAN, 2.25], dtype=np.float32))


# ---------------------------------------------------------------------------------------------------------------- ids


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        (["T2", "T1", "T11"], ("T1", "T11", "T2")),
        ([2, 11, 1], (1, 2, 11)),
        (np.array([2, 11, 1], dtype=np.int16), (1, 2, 11)),
        (np.array([2, 2**64 - 1, 1], dtype=np.uint64), (1, 2, 2**64 - 1)),
    ],
    ids=["text", "int", "int16", "uint64"],
)
def test_names_keep_their_type_and_stay_distinct(frame, names, ids):
    columns = {"unique_id": np.repeat(names, 2), "ds": hours(0, 1, 0, 1, 0, 1), "y": np.arange(6.0)}
    if isinstance(names[0], str):
        columns["unique_id"] = columns["unique_id"].tolist()
    panel = read_long(frame(columns))
    assert panel.ids == ids
    assert {type(name) for name in panel.ids} == {type(ids[0])}
    order = [list(names).index(name) for name in ids]
    np.testing.assert_array_equal(panel.values, np.arange(6.0).reshape(3, 2)[order].ravel())


CATEGORICAL = {
    "pandas category": lambda columns: pd.DataFrame(columns).astype({"unique_id": "category"}),
    "pandas object": lambda columns: pd.DataFrame(columns).astype({"unique_id": "object"}),
    "pandas pyarrow": lambda columns: pd.DataFrame(columns).astype({"unique_id": "string[pyarrow]"}),
    "polars categorical": lambda columns: pl.DataFrame(columns).with_columns(pl.col("unique_id").cast(pl.Categorical)),
    "polars enum": lambda columns: pl.DataFrame(columns).with_columns(
        pl.col("unique_id").cast(pl.Enum(["T2", "T1", "never", "T11"]))
    ),
    "arrow dictionary": lambda columns: pa.table(
        {**columns, "unique_id": pa.array(columns["unique_id"]).dictionary_encode()}
    ),
    "arrow large": lambda columns: pa.table(
        {**columns, "unique_id": pa.array(columns["unique_id"], pa.large_string())}
    ),
}


@pytest.mark.parametrize("make", CATEGORICAL.values(), ids=CATEGORICAL)
def test_every_kind_of_text_column_names_series(make):
    columns = {"unique_id": ["T2", "T1", "T11", "T1"], "ds": hours(0, 0, 0, 1), "y": [1.0, 2.0, 3.0, 4.0]}
    panel = read_long(make(columns))
    assert panel.ids == ("T1", "T11", "T2")
    np.testing.assert_array_equal(panel.values, [2, 4, 3, 1])


def test_integer_categories_name_series_by_integers():
    columns = {"unique_id": pd.Categorical([30, 4, 30]), "ds": hours(0, 0, 1), "y": [1.0, 2.0, 3.0]}
    panel = read_long(pd.DataFrame(columns))
    assert panel.ids == (4, 30)
    assert type(panel.ids[0]) is int


def test_a_frame_without_an_id_column_is_one_series(frame):
    panel = read_long(frame({"ds": hours(0, 1), "y": [1.0, 2.0]}), id_col=None)
    assert panel.ids == ("series",)
    assert panel.style.id_col is None


# --------------------------------------------------------------------------------------------------------------- order


@given(data=st.data())
@pytest.mark.parametrize("align", ["error", "nearest"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_order_of_rows_and_columns_changes_nothing(library, align, data):
    steps = data.draw(st.lists(st.integers(1, 4), min_size=3, max_size=12), label="steps")
    ids = data.draw(st.sampled_from([["T1", "T2", "T11"], [7, 70, 8]]), label="ids")
    hour = np.tile(np.cumsum([1, 1, *steps]), 3)
    columns = {
        "unique_id": np.repeat(ids, len(steps) + 2).tolist(),
        "ds": hours(*hour),
        "y": np.cos(np.arange(len(hour))),
    }
    if align == "nearest":  # repeated stamps with other values, and stamps a little off
        columns = {name: np.concatenate([column, column[:2], column[:2]]) for name, column in columns.items()}
        columns["unique_id"] = columns["unique_id"].tolist()
        columns["y"][-4:] = [0.1, 0.2, 0.3, NAN]
        columns["ds"][-2:] += np.timedelta64(90, "s")
    order = data.draw(st.permutations(range(len(columns["y"]))), label="order")
    names = data.draw(st.permutations(list(columns)), label="columns")
    shuffled = {name: np.asarray(columns[name])[order] for name in names}
    if ids[0] == "T1":
        shuffled["unique_id"] = shuffled["unique_id"].tolist()
    make = LIBRARIES[library]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CleanedDataWarning)
        settings = {"align": align, "freq": "1h"}
        same_panels(read_long(make(columns), **settings), read_long(make(shuffled), **settings))


@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["T1", "T2", "T11"]), st.integers(0, 50), st.floats(-1e6, 1e6, width=32)),
        min_size=1,
        unique_by=lambda row: row[:2],
    )
)
def test_pandas_polars_and_pyarrow_give_bit_equal_panels(rows):
    ids, when, values = zip(*rows, strict=True)
    columns = {"unique_id": list(ids), "ds": hours(*when), "y": np.array(values)}
    panels = [read_long(make(columns), freq="1h") for make in LIBRARIES.values()]
    same_panels(panels[0], panels[1])
    same_panels(panels[0], panels[2])
    found = {}
    for series, ordinal, value in zip(panels[0].row_series(), panels[0].row_ordinals(), panels[0].values, strict=True):
        if not np.isnan(value):
            stamp = panels[0].stamps([series], [ordinal]).view("datetime64[ns]")[0]
            found[panels[0].ids[series], int((stamp - hours(0)[0]) / np.timedelta64(1, "h"))] = value
    assert found == {(name, hour): np.float32(value) for name, hour, value in rows}


def test_the_frame_is_left_as_it_was(frame):
    native = frame(long({"b": [(1, 4.0), (0, 1.0)], "a": [(7, 8.0), (6, 7.0)]}))
    before = pd.DataFrame(native.to_pandas() if hasattr(native, "to_pandas") else native).copy(deep=True)
    read_long(native)
    after = pd.DataFrame(native.to_pandas() if hasattr(native, "to_pandas") else native)
    pd.testing.assert_frame_equal(before, after)


# --------------------------------------------------------------------------------------------------------------- units


@pytest.mark.parametrize("freq", ["1h", "D", "MS", "B", "W"])
@pytest.mark.parametrize("start", ["2024-01-01", "1959-12-31 00:00"])
def test_units_change_nothing(freq, start):
    stamps = times(start, 30, freq, unit="s")[::-1]
    columns = {"unique_id": ["a"] * 30, "y": np.sin(np.arange(30.0))}
    reference = read_long(pd.DataFrame({**columns, "ds": stamps}))
    for unit in ("s", "ms", "us", "ns"):
        cast = stamps.astype(f"datetime64[{unit}]")
        same_panels(reference, read_long(pd.DataFrame({**columns, "ds": cast})))
        same_panels(reference, read_long(pa.table({**columns, "ds": cast})))
        if unit != "s":
            same_panels(reference, read_long(pl.DataFrame({**columns, "ds": cast})))


def test_dates_are_days(frame):
    days = [dt.date(2024, 2, 27), dt.date(2024, 2, 28), dt.date(2024, 2, 29), dt.date(2024, 3, 2)]
    panel = read_long(frame({"unique_id": ["a"] * 4, "ds": days, "y": [1.0, 2.0, 3.0, 4.0]}))
    assert panel.freq.text == "1D"
    assert panel.style.unit == "D"
    np.testing.assert_array_equal(panel.values, np.array([1, 2, 3, NAN, 4], dtype=np.float32))


def test_arrow_types_inside_pandas_are_read():
    columns = {"unique_id": ["a"] * 3, "ds": hours(0, 1, 2), "y": [1.0, 2.0, 3.0]}
    reference = read_long(pd.DataFrame(columns))
    types = {"ds": "timestamp[ms][pyarrow]", "y": "float[pyarrow]", "unique_id": "string[pyarrow]"}
    same_panels(reference, read_long(pd.DataFrame(columns).astype(types)))
    days = pd.DataFrame({**columns, "ds": times("2024-01-01", 3, "D")}).astype({"ds": "date32[pyarrow]"})
    assert read_long(days).freq.text == "1D"


def test_integer_time_counts_in_its_own_units(frame):
    panel = read_long(frame({"unique_id": ["a"] * 3 + ["b"] * 2, "ds": [10, 13, 19, -5, -2], "y": np.arange(5.0)}))
    assert panel.freq == parse_freq(3)
    np.testing.assert_array_equal(panel.origins, [10, -5])
    np.testing.assert_array_equal(panel.values, np.array([0, 1, NAN, 2, 3, 4], dtype=np.float32))
    np.testing.assert_array_equal(panel.stamps([0, 1], [4, 2]), [22, 1])


# --------------------------------------------------------------------------------------------------------------- zones

MELBOURNE = "Australia/Melbourne"


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("start", "rows"), [("2024-10-05 22:00", 9), ("2024-04-06 22:00", 13)], ids=["spring", "autumn"]
)
def test_half_hours_run_on_through_a_clock_change(library, start, rows):
    stamps = times(start, rows, "30min", zone=MELBOURNE)
    panel = read_long(zoned({"unique_id": ["a"] * rows, "ds": stamps, "y": np.arange(float(rows))}, MELBOURNE, library))
    assert panel.freq.text == "30min"
    assert panel.zone == MELBOURNE
    np.testing.assert_array_equal(panel.values, np.arange(float(rows)))
    following = panel.stamps([0], panel.last_ordinals() + 1).view("datetime64[ns]")
    assert following[0] == stamps[-1] + np.timedelta64(30, "m")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("start", "hours_of_day"), [("2024-10-04", 23), ("2024-04-05", 25)], ids=["spring", "autumn"])
def test_days_of_23_and_25_hours_are_one_step(library, start, hours_of_day):
    stamps = times(start, 5, "D", zone=MELBOURNE)
    assert np.timedelta64(hours_of_day, "h") in np.diff(stamps)
    panel = read_long(zoned({"unique_id": ["a"] * 5, "ds": stamps, "y": np.arange(5.0)}, MELBOURNE, library))
    assert panel.freq.text == "1D"
    np.testing.assert_array_equal(panel.values, np.arange(5.0))
    np.testing.assert_array_equal(
        panel.stamps(np.zeros(200, np.int64), np.arange(200)).view("datetime64[ns]"),
        times(start, 200, "D", "ns", MELBOURNE),
    )


@pytest.mark.parametrize("alias", ["W-SUN", "MS", "ME", "B"])
def test_long_steps_in_a_zone_are_recognised_on_the_wall_clock(alias):
    stamps = times("2023-01-01", 60, alias, zone=MELBOURNE)
    panel = read_long(zoned({"unique_id": ["a"] * 60, "ds": stamps, "y": np.arange(60.0)}, MELBOURNE, "pandas"))
    assert panel.freq == parse_freq("W" if alias == "W-SUN" else alias)
    assert panel.n_rows == 60


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("zone", ["America/New_York", "Etc/GMT+5", "America/Port-au-Prince", "EST5EDT"])
def test_every_zone_of_the_world_is_known(library, zone):
    stamps = times("2024-03-09", 4, "D", zone=zone)
    panel = read_long(zoned({"unique_id": ["a"] * 4, "ds": stamps, "y": np.arange(4.0)}, zone, library))
    assert (panel.zone, panel.freq.text, panel.n_rows) == (zone, "1D", 4)


def test_a_fixed_offset_is_a_zone():
    index = pd.date_range("2024-01-01", periods=4, freq="D", tz=dt.timezone(dt.timedelta(hours=10)))
    panel = read_long(pd.DataFrame({"unique_id": "a", "ds": index, "y": np.arange(4.0)}))
    assert panel.zone == "UTC+10:00"
    assert panel.freq.text == "1D"


# --------------------------------------------------------------------------------------------------------- inference


@pytest.mark.parametrize(
    ("alias", "text"),
    [
        ("s", "1s"),
        ("250ms", "250ms"),
        ("5min", "5min"),
        ("h", "1h"),
        ("36h", "36h"),
        ("D", "1D"),
        ("2D", "2D"),
        ("W", "1W"),
        ("2W", "2W"),
        ("B", "B"),
        ("MS", "MS"),
        ("ME", "ME"),
        ("2MS", "2MS"),
        ("QS", "QS"),
        ("QE", "QE"),
        ("YS", "YS"),
        ("YE", "YE"),
    ],
)
def test_auto_recognises_what_date_range_makes(alias, text):
    for n in (13, 60):
        columns = {"unique_id": ["a"] * n, "ds": times("2023-02-17", n, alias, unit="ns"), "y": np.arange(float(n))}
        assert read_long(pd.DataFrame(columns)).freq.text == text


def test_auto_recognises_months_by_day():
    stamps = np.arange("2023-01", "2024-06", dtype="datetime64[M]").astype("datetime64[us]") + np.timedelta64(14, "D")
    panel = read_long(pd.DataFrame({"unique_id": "a", "ds": stamps, "y": np.arange(17.0)}))
    assert panel.freq.text == "1mo"
    assert panel.n_rows == 17


def test_auto_takes_the_most_common_step_in_spite_of_gaps(frame):
    panel = read_long(frame(long({"a": [(h, 1.0) for h in (0, 1, 2, 4, 6, 8, 9, 10, 11)]})))
    assert panel.freq.text == "1h"


def test_auto_lets_series_with_one_row_or_one_step_follow_the_others(frame):
    rows = {"a": [(0, 1.0), (1, 2.0), (2, 3.0)], "b": [(5, 1.0)], "c": [(0, 1.0), (4, 2.0)]}
    panel = read_long(frame(long(rows)))
    assert panel.freq.text == "1h"
    np.testing.assert_array_equal(panel.series_rows(), [3, 1, 5])


def test_auto_takes_a_series_within_one_working_week_for_business_days(frame):
    two_weeks, three_days = times("2024-01-01", 10, "B"), times("2024-01-02", 3, "D")
    ids = ["a"] * 10 + ["b"] * 3
    panel = read_long(frame({"unique_id": ids, "ds": np.concatenate([two_weeks, three_days]), "y": np.arange(13.0)}))
    assert panel.freq.text == "B"
    assert read_long(frame({"unique_id": ids[10:], "ds": three_days, "y": np.arange(3.0)})).freq.text == "1D"


@pytest.mark.parametrize(("given_freq", "days", "text"), [("1mo", 1, "MS"), ("1mo", 31, "ME"), ("1mo", 15, "1mo")])
def test_a_month_by_day_becomes_a_month_start_or_end_where_all_rows_are(given_freq, days, text):
    starts = np.arange("2024-01", "2024-04", dtype="datetime64[M]")
    ends = (starts + 1).astype("datetime64[D]") - np.timedelta64(1, "D")
    stamps = np.minimum(starts.astype("datetime64[D]") + np.timedelta64(days - 1, "D"), ends).astype("datetime64[us]")
    panel = read_long(pd.DataFrame({"unique_id": "a", "ds": stamps, "y": [1.0, 2.0, 3.0]}), freq=given_freq)
    assert panel.freq.text == text


def test_series_of_one_month_step_may_start_in_different_months(frame):
    stamps = [*times("2024-01-01", 4, "QS-JAN"), *times("2024-02-01", 3, "QS-FEB")]
    columns = {"unique_id": ["a"] * 4 + ["b"] * 3, "ds": np.array(stamps), "y": np.arange(7.0)}
    panel = read_long(frame(columns), freq="QS")
    np.testing.assert_array_equal(panel.lengths, [4, 3])


# ------------------------------------------------------------------------------------------------------------- nearest


def test_nearest_moves_stamps_to_the_grid_of_the_most_common_phase_and_says_so(frame):
    stamps = hours(0, 1, 2, 3) + np.array([61, 0, -30, 0]) * np.timedelta64(1, "s")
    columns = {"unique_id": ["a"] * 4, "ds": stamps, "y": [1.0, 2.0, 3.0, 4.0]}
    with pytest.warns(CleanedDataWarning, match=r"2 stamps were moved to the 1-hour grid \(at most 61 s\)\."):
        panel = read_long(frame(columns), freq="1h", align="nearest")
    np.testing.assert_array_equal(panel.values, [1, 2, 3, 4])
    assert panel.origins.view("datetime64[ns]")[0] == hours(0)[0]
    assert panel.report.n_moved == 2


def test_nearest_averages_the_finite_values_of_rows_that_collide(frame):
    stamps = hours(0, 1, 1, 1, 2, 2) + np.array([0, 0, 5, 0, 0, 0]) * np.timedelta64(1, "m")
    columns = {"unique_id": ["a"] * 6, "ds": stamps, "y": [1.0, 2.0, 4.0, NAN, NAN, NAN]}
    with pytest.warns(CleanedDataWarning, match=r"1 stamp was moved .* 3 rows fell on taken stamps"):
        panel = read_long(frame(columns), freq="1h", align="nearest")
    np.testing.assert_array_equal(panel.values, np.array([1, 3, NAN], dtype=np.float32))
    assert panel.report.n_collided == 3


def test_nearest_finds_the_month_start_that_is_meant():
    stamps = np.array(["2024-01-31T18", "2024-03-02", "2024-03-31T23", "2024-05-01"], dtype="datetime64[us]")
    panel = read_long(
        pd.DataFrame({"unique_id": "a", "ds": stamps, "y": [1.0, 2, 3, 4]}),
        freq="MS",
        align="nearest",
        warn_cleaned=False,
    )
    assert str(panel.stamps([0], [0]).view("datetime64[ns]")[0])[:13] == "2024-02-01T00"
    np.testing.assert_array_equal(panel.values, [1, 2, 3, 4])


@given(
    jitter=st.lists(st.floats(-0.45, 0.45), min_size=20, max_size=20),
    kept=st.lists(st.booleans(), min_size=20, max_size=20),
    zone=st.sampled_from([None, MELBOURNE, "America/St_Johns"]),
    alias=st.sampled_from(["30min", "1h", "D", "2D", "W-MON", "B", "MS", "ME", "QS-JAN", "2ME"]),
)
def test_nearest_finds_the_grid_stamp_that_date_range_had_before_the_jitter(jitter, kept, zone, alias):
    grid = times("2023-09-01", 100, alias, unit="ns", zone=zone)
    shift = (np.array(jitter) * np.diff(grid[:21]).min().astype(np.int64)).astype("timedelta64[ns]")
    rows = np.append(np.flatnonzero(kept), np.arange(20, 100))  # most stamps are right
    stamps = np.append((grid[:20] + shift)[kept], grid[20:])
    columns = {"unique_id": "a", "ds": pd.DatetimeIndex(stamps, tz=zone and "UTC"), "y": rows.astype(float)}
    native = pd.DataFrame(columns)
    if zone is not None:
        native["ds"] = native["ds"].dt.tz_convert(zone)
    panel = read_long(native, freq=alias, align="nearest", warn_cleaned=False)
    np.testing.assert_array_equal(panel.values[~np.isnan(panel.values)], rows)
    np.testing.assert_array_equal(panel.stamps(0, panel.row_ordinals()).view("datetime64[ns]"), grid[rows[0] :])
    assert panel.report.n_moved == np.count_nonzero(shift[kept])


# ------------------------------------------------------------------------------------------------------ known origins


def test_rows_of_known_series_continue_their_grid(frame):
    fitted = read_long(frame(long({"a": [(0, 1.0), (2, 2.0), (4, 3.0)], "b": [(10, 1.0), (12, 2.0), (14, 0.0)]})))
    known = dict(zip(fitted.ids, fitted.origins.tolist(), strict=True))
    panel = read_long(frame(long({"b": [(16, 5.0)], "c": [(3, NAN), (5, 1.0)]})), freq=fitted.freq, origins=known)
    assert panel.ids == ("b", "c")
    np.testing.assert_array_equal(panel.piece_first, [3, 0])
    np.testing.assert_array_equal(panel.last_ordinals(), [3, 1])
    assert panel.origins[0] == known["b"]


def test_a_known_series_may_bring_rows_without_any_value(frame):
    known = {"a": int(hours(0).astype("datetime64[ns]").view(np.int64)[0])}
    panel = read_long(frame(long({"a": [(3, NAN)]})), freq="1h", origins=known)
    np.testing.assert_array_equal(panel.first_ordinals(), [3])


def test_stamps_can_be_counted_on_without_the_values(frame):
    panel = read_long(frame(long({"a": [(0, 1.0), (1, 2.0)]})))
    again = parse_freq(panel.freq.text).shift(panel.origins, panel.last_ordinals() + 1, panel.style.zone)
    np.testing.assert_array_equal(again, panel.stamps([0], panel.last_ordinals() + 1))


# -------------------------------------------------------------------------------------------------------------- skip


def test_bad_series_are_skipped_with_a_reason(frame):
    rows = {
        "good": [(0, 1.0), (1, 2.0), (2, 3.0)],
        "inf": [(0, 1.0), (1, float("inf")), (2, 3.0)],
        "missing": [(0, NAN), (1, NAN), (2, NAN)],
        "repeat": [(0, 1.0), (0, 2.0), (1, 3.0)],
        "slow": [(0, 1.0), (2, 2.0), (4, 3.0), (6, 1.0)],
        "well": [(5, 1.0), (6, 2.0), (7, 3.0)],
        "late": [(0, 1.0), (1, 2.0), (2, 0.0), (2.5, 1.0)],
    }
    with pytest.warns(CleanedDataWarning, match=r"5 series were skipped\."):
        panel = read_long(frame(long(rows, half_hours)), on_bad_series="skip")
    assert panel.ids == ("good", "well")
    np.testing.assert_array_equal(panel.values, [1, 2, 3, 1, 2, 3])
    assert dict(panel.skipped) == {
        "inf": "target column 'y' holds 1 value outside the finite float32 numbers in series 'inf' "
        "(first at row 4: inf at 2024-01-01 01:00)",
        "missing": "target column 'y' has no value at all in series 'missing' (first at row 6: 2024-01-01 00:00)",
        "repeat": "time column 'ds' repeats 1 time in series 'repeat' (first at row 10: 2024-01-01 00:00)",
        "slow": "the most common freq is '1h', but '2h' was found in series 'slow' (first at row 12: 2024-01-01 00:00)",
        "late": "time column 'ds' has 1 row off the 1-hour grid in series 'late' (first at row 22: 2024-01-01 02:30)",
    }
    assert panel.report.n_skipped == 5


def half_hours(*numbers):
    return np.datetime64("2024-01-01", "us") + (np.array(numbers) * 60).astype(int) * np.timedelta64(1, "m")


# ----------------------------------------------------------------------------------------------------------- warnings


def test_levels_whose_changes_float32_rounds_away_are_counted_and_said():
    t = pd.date_range("2024-01-01", periods=50, freq="h")
    wave = np.sin(np.arange(50))
    names = {"meter": 1e8 + wave, "pressure": 101_325 + 10 * wave, "constant": np.full(50, 1e8 + 0.3), "whole": 1e6}
    df = pd.concat([pd.DataFrame({"unique_id": name, "ds": t, "y": y}) for name, y in names.items()])
    with pytest.warns(CleanedDataWarning, match="1 series has a level so far above the changes that float32"):
        panel = read_long(df)
    assert panel.report.n_coarse == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_long(df[df.unique_id != "meter"]).report.n_coarse == 0


def test_columns_without_a_role_are_named_once(frame):
    native = frame({**long({"a": [(0, 1.0), (1, 2.0)]}), "price": [1, 2], "site": ["x", "y"]})
    with pytest.warns(
        UnusedColumnsWarning, match=r"without a role were not used: 'price', 'site'\. Drop them"
    ) as caught:
        read_long(native)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    read_long(native, warn_unused=False)


def test_warnings_of_cleaning_can_be_left_to_the_caller(frame):
    native = frame(long({"a": [(0, 1.0), (1, 2.0), (1, 4.0)]}))
    assert read_long(native, align="nearest", warn_cleaned=False).report.lines() == [
        "1 row fell on taken stamps; values were averaged."
    ]


def test_reading_loads_no_other_library_than_the_frames():
    code = (
        "import sys, txl_ts.frames, polars as pl; "
        "txl_ts.frames.read_long(pl.DataFrame({'unique_id': ['a', 'a'], 'ds': [1, 2], 'y': [1.0, 2.0]})); "
        "print(sorted({'torch', 'pandas', 'pyarrow', 'sklearn'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"


def test_auto_without_two_rows_anywhere_asks_for_a_frequency(frame):
    with pytest.raises(FrequencyError, match=r"freq='auto' needs a series with two rows.*Give freq, for example"):
        read_long(frame(long({"a": [(0, 1.0)], "b": [(1, 1.0)]})))
