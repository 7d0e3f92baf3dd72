"""What a frame may not hold: every refusal says what was wrong, what was got, and what to do."""

import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_ts.errors import ColumnError, FrameError, FrequencyError, ParameterError, StampError, TxlError
from txl_ts.frames import parse_freq, read_long

NAN, INF = float("nan"), float("inf")


def hours(*numbers):
    return np.datetime64("2024-01-01", "us") + np.array(numbers) * np.timedelta64(1, "h")


def rows(**changes):
    return {"unique_id": ["a", "a", "a"], "ds": hours(0, 1, 2), "y": [1.0, 2.0, 3.0], **changes}


# --------------------------------------------------------------------------------------------------------- the frame


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: {"a": 1}, r"must be a pandas or polars DataFrame or a pyarrow Table, got builtins\.dict\."),
        (lambda: np.zeros((2, 2)), r"got numpy\.ndarray\. Turn it into one"),
        (lambda: pd.Series([1.0]), r"got pandas\.Series"),
        (lambda: pl.DataFrame(rows()).lazy(), r"polars\.LazyFrame, which holds no rows yet\. Pass frame\.collect\(\)"),
        (lambda: None, r"got builtins\.NoneType"),
        (lambda: pd.DataFrame([[1, 2]], columns=["y", "y"]), r"frame repeats a column name: .*'y' 2 times"),
    ],
    ids=["dict", "numpy", "series", "lazy", "none", "twice"],
)
def test_another_kind_of_frame_is_refused_by_its_type(made, message):
    with pytest.raises(FrameError, match=message):
        read_long(made())


def test_an_empty_frame_is_refused(frame):
    with pytest.raises(FrameError, match=r"frame has no rows\. Pass at least one row per series\."):
        read_long(frame(rows(unique_id=[], ds=[], y=[])))


def test_a_missing_column_is_told_what_is_there(frame):
    message = (
        r"time column 'dz' is not in the frame, which has 'unique_id', 'ds', 'y'\. Did you mean 'ds'\? .*time_col="
    )
    with pytest.raises(ColumnError, match=message):
        read_long(frame(rows()), time_col="dz")
    with pytest.raises(ColumnError, match=r"target column 'consumption' is not in the frame.*Name it with target_col="):
        read_long(frame(rows()), target_col="consumption")


def test_a_column_that_is_the_index_is_found():
    with pytest.raises(ColumnError, match=r"It is the frame's index: pass frame\.reset_index\(\)"):
        read_long(pd.DataFrame(rows()).set_index("ds"))


def test_one_column_cannot_have_two_roles(frame):
    with pytest.raises(ColumnError, match="one column cannot have two roles"):
        read_long(frame(rows()), target_col="ds")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"align": "left"}, r"align must be one of \('error', 'nearest'\), got 'left'"),
        ({"on_bad_series": "drop"}, r"on_bad_series must be one of \('raise', 'skip'\), got 'drop'"),
        ({"max_gap": -1}, r"max_gap must be a number of rows \(0 or more\) or None, got -1"),
        ({"max_gap": "1h"}, r"max_gap must be a number of rows .* got '1h'"),
        ({"max_gap": True}, "got True"),
        ({"target_col": 3}, r"target_col must be the name of a column, a string, got 3\."),
        ({"time_col": None}, r"time_col must be the name of a column, a string, got None\."),
    ],
    ids=str,
)
def test_a_setting_that_cannot_work_is_refused(frame, setting, message):
    with pytest.raises(ParameterError, match=message):
        read_long(frame(rows()), **setting)


# --------------------------------------------------------------------------------------------------------------- ids


def test_a_missing_name_is_refused(frame):
    with pytest.raises(ColumnError, match=r"id column 'unique_id' has 1 missing name \(first at row 1\)"):
        read_long(frame(rows(unique_id=["a", None, "a"])))


@pytest.mark.parametrize("names", [[1.0, 1.0, 1.0], [True, True, True], hours(0, 0, 0)], ids=["float", "bool", "time"])
def test_names_are_text_or_integers(frame, names):
    with pytest.raises(ColumnError, match=r"must hold strings, categories or integers, got .*Cast it to strings\."):
        read_long(frame(rows(unique_id=names)))


def test_names_of_mixed_types_are_refused():
    with pytest.raises(
        ColumnError, match=r"must hold strings, categories or integers, got object .*values such as 'a'"
    ):
        read_long(pd.DataFrame(rows(unique_id=[1, "a", 2])))
    with pytest.raises(ColumnError, match="must hold strings or integers only, got values of type float"):
        read_long(pd.DataFrame(rows(unique_id=pd.Categorical([1.5, 2.5, 2.5]))))


# ------------------------------------------------------------------------------------------------------------- times


def test_times_as_text_are_told_how_to_become_times():
    texts = rows(ds=["2024-01-01", "2024-01-02", "2024-01-03"])
    message = r"time column 'ds' must hold datetimes, dates or integers, got {} with values such as '2024-01-01'\. {}"
    with pytest.raises(
        ColumnError, match=message.format("(?:str|object)", r"Convert it with pandas\.to_datetime\(df\['ds'\]\)")
    ):
        read_long(pd.DataFrame(texts))
    with pytest.raises(ColumnError, match=message.format("String", r".*pl\.col\('ds'\)\.str\.to_datetime\(\)")):
        read_long(pl.DataFrame(texts))
    with pytest.raises(ColumnError, match=message.format("string", r".*pyarrow\.compute\.strptime")):
        read_long(pa.table(texts))


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([0.0, 1.0, 2.0], "got float64 .*Cast it to integers if it numbers the rows"),
        ([True, False, True], "got bool"),
        (pd.period_range("2024-01", periods=3, freq="M"), r"got period\[M\] .*dt\.to_timestamp\(\)"),
        (pd.to_timedelta([1, 2, 3], unit="h"), "got timedelta64"),
        ([dt.datetime(2024, 1, 1), dt.date(2024, 1, 1), "x"], "got object"),
    ],
    ids=["float", "bool", "period", "duration", "mixture"],
)
def test_other_kinds_of_time_are_refused(times, message):
    with pytest.raises(ColumnError, match=f"time column 'ds' must hold datetimes, dates or integers, {message}"):
        read_long(pd.DataFrame(rows(ds=times)))


def test_mixed_zones_are_refused():
    berlin, utc = pd.Timestamp("2024-01-01", tz="Europe/Berlin"), pd.Timestamp("2024-01-01 01:00", tz="UTC")
    message = r"time column 'ds' mixes time zones: Europe/Berlin, UTC\. .*pandas\.to_datetime\(df\['ds'\], utc=True\)"
    with pytest.raises(StampError, match=message):
        read_long(pd.DataFrame(rows(ds=pd.Series([berlin, utc, utc], dtype=object))))
    naive = pd.Timestamp("2024-01-01 02:00")
    with pytest.raises(StampError, match="mixes time zones: UTC, no zone"):
        read_long(pd.DataFrame(rows(ds=pd.Series([utc, naive, naive], dtype=object))))


def test_a_zone_that_only_this_machine_knows_is_refused():
    dateutil = pytest.importorskip("dateutil.tz", reason="dateutil is not installed")
    times = pd.date_range("2024-01-01", periods=3, freq="h", tz=dateutil.gettz("Europe/Berlin"))
    with pytest.raises(StampError, match=r"time zone .* is not known .*Convert the time column to an IANA zone"):
        read_long(pd.DataFrame(rows(ds=times)))


def test_a_missing_stamp_is_refused(frame):
    times = [dt.datetime(2024, 1, 1), None, dt.datetime(2024, 1, 2)]
    with pytest.raises(StampError, match=r"time column 'ds' has 1 missing stamp \(first at row 1\)"):
        read_long(frame(rows(ds=times)))


def test_a_repeated_stamp_is_refused_with_its_series_and_row(frame):
    native = frame({"unique_id": ["b", "a", "b", "b"], "ds": hours(0, 0, 1, 0), "y": [1.0, 2.0, 3.0, 4.0]})
    message = (
        r"time column 'ds' repeats 1 time in series 'b' \(first at row 3: 2024-01-01 00:00\)\. "
        r"Times must be distinct within a series\. Drop the repeats, or average them with align='nearest'\."
    )
    with pytest.raises(StampError, match=message):
        read_long(native)


def test_at_most_five_offenders_are_listed(frame):
    ids = [f"s{number}" for number in range(9)]
    native = frame({"unique_id": np.repeat(ids, 2).tolist(), "ds": hours(*[0] * 18), "y": np.arange(18.0)})
    with pytest.raises(StampError, match=r"Series with the same problem: 9, among them 's1', 's2', 's3', 's4'\."):
        read_long(native)


def test_a_stamp_off_the_grid_is_refused_with_its_series_and_row(frame):
    times = hours(0, 1, 2, 3) + np.array([0, 0, 7, 0]) * np.timedelta64(1, "m")
    native = frame({"unique_id": ["a"] * 4, "ds": times, "y": [1.0, 2.0, 3.0, 4.0]})
    message = (
        r"time column 'ds' has 1 row off the 1-hour grid in series 'a' \(first at row 2: 2024-01-01 02:07\)\. "
        r"Give the freq that these rows have, or move them to the grid with align='nearest'\."
    )
    with pytest.raises(StampError, match=message):
        read_long(native, freq="1h")


def test_the_first_row_is_named_when_it_is_the_one_off_the_grid(frame):
    times = hours(0, 1, 2, 3) + np.array([7, 0, 0, 0]) * np.timedelta64(1, "m")
    with pytest.raises(StampError, match=r"1 row off the 1-hour grid in series 'a' \(first at row 0: 2024-01-01 00:07"):
        read_long(frame({"unique_id": ["a"] * 4, "ds": times, "y": [1.0, 2.0, 3.0, 4.0]}), freq="1h")


@pytest.mark.parametrize(
    ("freq", "days"),
    [("MS", [1, 32, 62]), ("ME", [31, 60, 90]), ("W-MON", [1, 8, 16]), ("B", [5, 6, 8]), ("QS-JAN", [32, 122, 214])],
)
def test_rows_beside_the_calendar_are_off_the_grid(frame, freq, days):
    times = np.datetime64("2023-12-31", "us") + np.array(days) * np.timedelta64(1, "D")
    with pytest.raises(StampError, match=r"off the 1-.* grid in series 'a'"):
        read_long(frame(rows(ds=times)), freq=freq)


@pytest.mark.parametrize("unit", ["s", "us"])
def test_a_stamp_beyond_nanoseconds_is_a_typed_error(unit):
    times = np.array(["2024-01-01", "2024-01-02", "2500-01-01"], dtype=f"datetime64[{unit}]")
    message = r"time column 'ds' holds 1 stamp outside the years 1678 to 2261 \(first at row 2: 2500-01-01T00:00:00"
    with pytest.raises(StampError, match=message):
        read_long(pd.DataFrame(rows(ds=times)))


def test_one_stamp_far_away_is_an_error_instead_of_a_billion_rows(frame):
    times = np.array(["2024-01-01T00:00", "2024-01-01T00:05", "2024-01-01T00:10", "2261-01-01T00:00"], "datetime64[us]")
    native = frame({"unique_id": ["a"] * 4, "ds": times, "y": [1.0, 2.0, 3.0, 4.0]})
    message = (
        r"the gap of 24,930,141 rows \(86,563 days\) before a stamp is too long to fill in series 'a' "
        r"\(first at row 3: 2261-01-01 00:00\)\. Correct the stamp, or cut there with max_gap=… rows\."
    )
    with pytest.raises(StampError, match=message):
        read_long(native)
    assert read_long(native, max_gap=100).n_pieces == 2


def test_stamps_too_far_apart_for_64_bits_are_refused(frame):
    with pytest.raises(StampError, match=r"spans more than 64 bits can say .* from row 1 to row 2"):
        read_long(frame(rows(ds=[0, -(2**62) - 1, 2**62 + 1])))
    far = np.array(["1700-01-01", "2000-01-01", "2200-01-01"], dtype="datetime64[us]")
    with pytest.raises(StampError, match=r"\(for datetimes 292 years\), from row 0 to row 2"):
        read_long(frame(rows(ds=far)))


# ----------------------------------------------------------------------------------------------------------- target


def test_text_in_the_target_is_shown_with_its_cure():
    nil = rows(y=["22.5", "nil", "21.0"])
    message = r"target column 'y' must hold numbers, got {} with values such as 'nil'\. Cast it with {}"
    with pytest.raises(
        ColumnError, match=message.format("(?:str|object)", r"pandas\.to_numeric\(df\['y'\], errors='coerce'\)")
    ):
        read_long(pd.DataFrame(nil))
    with pytest.raises(
        ColumnError, match=message.format("String", r"pl\.col\('y'\)\.cast\(pl\.Float32, strict=False\)")
    ):
        read_long(pl.DataFrame(nil))
    with pytest.raises(ColumnError, match=message.format("string", r"pyarrow\.compute\.cast")):
        read_long(pa.table(nil))
    with pytest.raises(ColumnError, match=message.format("object", r"pandas\.to_numeric")):
        read_long(pd.DataFrame(rows(y=[22.5, "nil", None])))


def test_infinite_values_are_refused_with_series_row_and_time(frame):
    message = (
        r"target column 'y' holds 1 value outside the finite float32 numbers in series 'a' "
        r"\(first at row 1: -inf at 2024-01-01 01:00\)\. Replace them with null, or rescale the column\."
    )
    with pytest.raises(ColumnError, match=message):
        read_long(frame(rows(y=[1.0, -INF, 2.0])))
    with pytest.raises(ColumnError, match=r"\(first at row 0: 1e\+39 at 2024-01-01 00:00\)"):
        read_long(frame(rows(y=[1e39, 1.0, 2.0])))


def test_a_series_without_any_value_is_refused(frame):
    with pytest.raises(
        ColumnError, match=r"target column 'y' has no value at all in series 'a' .*on_bad_series='skip'"
    ):
        read_long(frame(rows(y=[NAN, NAN, NAN])))


# --------------------------------------------------------------------------------------------------------- frequency


def test_series_that_disagree_are_listed_with_their_frequencies(frame):
    ids = np.repeat(["a", "b", "c", "d"], 3).tolist()
    native = frame({"unique_id": ids, "ds": hours(0, 1, 2, 0, 2, 4, 0, 1, 2, 0, 3, 6), "y": np.arange(12.0)})
    message = (
        r"the most common freq is '1h', but '2h' was found in series 'b' .*"
        r"Other than 1h: 'b' 2h, 'd' 3h \(2 of 4 series\)\. Give freq, read each group by itself"
    )
    with pytest.raises(FrequencyError, match=message):
        read_long(native)
    assert read_long(native, freq="1h").freq.text == "1h"


@pytest.mark.parametrize(
    ("freq", "times", "message"),
    [
        ("1h", [1, 2, 3], r"freq='1h' does not fit time column 'ds', which holds integers\. Give an integer"),
        (1, hours(0, 1, 2), r"freq='1' does not fit time column 'ds', which holds datetimes\. Give a length of time"),
        (
            "500ns",
            hours(0, 1, 2),
            r"freq='500ns' is finer than time column 'ds', which counts in 'us'\. Cast the column",
        ),
        ("1h", [dt.date(2024, 1, d) for d in (1, 2, 3)], r"freq='1h' is finer than .* which counts in 'D'"),
        ("fortnightly", hours(0, 1, 2), "freq='fortnightly' is not a known frequency"),
    ],
    ids=str,
)
def test_a_frequency_that_does_not_fit_the_time_column_is_refused(frame, freq, times, message):
    with pytest.raises(FrequencyError, match=message):
        read_long(frame(rows(ds=times)), freq=freq)


# ----------------------------------------------------------------------------------------------------- known origins


def test_rows_before_or_beside_a_known_grid_are_refused(frame):
    origin = int(hours(1).astype("datetime64[ns]").view(np.int64)[0])
    message = (
        r"time column 'ds' has 1 row before 2024-01-01 01:00, where the known series starts, in series 'a' "
        r"\(first at row 0: 2024-01-01 00:00\)\. Drop these rows, or fit again with them\."
    )
    with pytest.raises(StampError, match=message):
        read_long(frame(rows()), freq="1h", origins={"a": origin})
    with pytest.raises(StampError, match="3 rows off the 1-hour grid in series 'a'"):
        read_long(frame(rows(ds=hours(5, 6, 7))), freq="1h", origins={"a": origin + 1000})


# ------------------------------------------------------------------------------------------------------------- skips


def test_a_frame_of_bad_series_only_is_refused(frame):
    native = frame({"unique_id": ["a", "b"], "ds": hours(0, 0), "y": [INF, INF]})
    message = r"all 2 series were skipped; the first is 'a': target column .* Read with on_bad_series='raise'"
    with pytest.raises(FrameError, match=message):
        read_long(native, on_bad_series="skip")


# --------------------------------------------------------------------------------------------- a result or our error

CELLS = {
    "unique_id": [["a", "b"], [1, 2], [None, "a"], [1.5, 2.0], ["", "é"], [2**63 - 1, 0], [True, False]],
    "ds": [
        [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 2)],
        [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)],
        [dt.date(2024, 2, 29), dt.date(1969, 12, 31)],
        [1, 2],
        [-(2**63), 2**63 - 1],
        [None, 3],
        ["2024", "x"],
        [0.5, 1.0],
    ],
    "y": [
        [1.0, 2.0],
        [NAN, INF],
        [2**63 - 1, 0],
        [2**63 - 1, None],
        [1e308, 0.0],
        [None, None],
        [True, False],
        ["nil", "1"],
        [1, None],
    ],
}


@given(
    data=st.data(),
    kinds=st.fixed_dictionaries({name: st.sampled_from(pools) for name, pools in CELLS.items()}),
    settings=st.fixed_dictionaries(
        {
            "freq": st.sampled_from(["auto", "1h", "D", "MS", 1, "B"]),
            "align": st.sampled_from(["error", "nearest"]),
            "on_bad_series": st.sampled_from(["raise", "skip"]),
            "max_gap": st.sampled_from([None, 0, 3]),
        }
    ),
)
@pytest.mark.filterwarnings("ignore::txl_ts.errors.CleanedDataWarning")
@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "pyarrow"])
def test_whatever_stands_in_a_frame_gives_a_panel_or_our_own_error(library, data, kinds, settings):
    n = data.draw(st.integers(0, 6), label="rows")
    columns = {name: data.draw(st.lists(st.sampled_from(pool), min_size=n, max_size=n)) for name, pool in kinds.items()}
    try:
        native = library(columns)
    except (pl.exceptions.PolarsError, pa.ArrowException, OverflowError, TypeError):
        return  # the library itself does not make such a frame
    try:
        panel = read_long(native, **settings)
    except TxlError:
        return
    assert not np.isinf(panel.values).any()
    assert parse_freq(panel.freq.text) == panel.freq
    assert int(panel.lengths.sum()) == len(panel.values)
