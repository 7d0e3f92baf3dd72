"""Results go back as the kind of frame that came in."""

import datetime as dt
import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from txl_ts.errors import ParameterError, StampError
from txl_ts.frames import FrameStyle, long_frame, read_long

ZONE = "Australia/Melbourne"


def times(n=3, freq="h", unit="us", zone=None):
    return pd.date_range("2024-04-06 22:00", periods=n, freq=freq, tz=zone).as_unit(unit)


def table(**changes):
    return {
        "unique_id": ["T2", "T11", "T2"],
        "ds": list(times()),
        "y": np.array([1, 2, 3], dtype=np.float32),
        **changes,
    }


def pandas_table(**changes):
    return pd.DataFrame(table(**{"ds": times(), **changes}))


NATIVE = {
    "pandas": lambda: pandas_table(),
    "pandas seconds": lambda: pandas_table(ds=times(unit="s")),
    "pandas nanoseconds": lambda: pandas_table(ds=times(unit="ns")),
    "pandas zone": lambda: pandas_table(ds=times(zone=ZONE)),
    "pandas zone with underscore": lambda: pandas_table(ds=times(zone="America/New_York")),
    "pandas arrow zone with underscore": lambda: pandas_table(ds=times(zone="America/New_York")).astype(
        {"ds": "timestamp[us, tz=America/New_York][pyarrow]"}
    ),
    "pandas offset": lambda: pandas_table(ds=times(zone=dt.timezone(dt.timedelta(hours=10)))),
    "pandas object names": lambda: pandas_table().astype({"unique_id": object}),
    "pandas category": lambda: pandas_table(
        unique_id=pd.Categorical(["T2", "T11", "T2"], ["T2", "never", "T11"], ordered=True)
    ),
    "pandas integer category": lambda: pandas_table(unique_id=pd.Categorical([3, 20, 3])),
    "pandas int names": lambda: pandas_table(unique_id=np.array([3, 20, 3], dtype=np.int16)),
    "pandas nullable names": lambda: pandas_table(unique_id=pd.array([3, 20, 3], dtype="Int64")),
    "pandas arrow": lambda: pandas_table(ds=times(zone=ZONE)).astype(
        {"unique_id": "string[pyarrow]", "ds": f"timestamp[ms, tz={ZONE}][pyarrow]"}
    ),
    "pandas arrow dates": lambda: pandas_table(ds=times(freq="D").normalize()).astype({"ds": "date32[day][pyarrow]"}),
    "pandas object dates": lambda: pandas_table(ds=[dt.date(2024, 1, d) for d in (1, 2, 3)]),
    "pandas int time": lambda: pandas_table(ds=np.array([1, 2, 3], dtype=np.int32)),
    "pandas nullable time": lambda: pandas_table(ds=pd.array([1, 2, 3], dtype="Int64")),
    "polars": lambda: pl.DataFrame(table()),
    "polars ms": lambda: pl.DataFrame(table()).with_columns(pl.col("ds").dt.cast_time_unit("ms")),
    "polars ns zone": lambda: pl.DataFrame(table()).with_columns(
        pl.col("ds").dt.cast_time_unit("ns").dt.replace_time_zone("UTC").dt.convert_time_zone(ZONE)
    ),
    "polars categorical": lambda: pl.DataFrame(table()).with_columns(pl.col("unique_id").cast(pl.Categorical)),
    "polars enum": lambda: pl.DataFrame(table()).with_columns(pl.col("unique_id").cast(pl.Enum(["T2", "x", "T11"]))),
    "polars dates": lambda: pl.DataFrame(table(ds=[dt.date(2024, 1, d) for d in (1, 2, 3)])),
    "polars ints": lambda: pl.DataFrame(table(ds=[1, 2, 3], unique_id=[3, 20, 3]), schema_overrides={"ds": pl.UInt16}),
    "pyarrow": lambda: pa.table(table()),
    "pyarrow zone": lambda: pa.table(table(ds=pa.array(times(zone=ZONE), pa.timestamp("s", ZONE)))),
    "pyarrow large": lambda: pa.table(table(unique_id=pa.array(["T2", "T11", "T2"], pa.large_string()))),
    "pyarrow view": lambda: pa.table(table(unique_id=pa.array(["T2", "T11", "T2"], pa.string_view()))),
    "pyarrow dictionary": lambda: pa.table(table(unique_id=pa.array(["T2", "T11", "T2"]).dictionary_encode())),
    "pyarrow chunks": lambda: pa.concat_tables(
        [pa.table(table(unique_id=pa.array([name] * 3).dictionary_encode())) for name in ("b", "a")]
    ),
    "pyarrow dates": lambda: pa.table(table(ds=[dt.date(2024, 1, d) for d in (1, 2, 3)])),
    "pyarrow ints": lambda: pa.table(table(ds=np.array([1, 2, 3], np.uint32), unique_id=np.array([3, 20, 3], np.int8))),
}


def types(frame):
    if isinstance(frame, pd.DataFrame):
        return {name: str(dtype) for name, dtype in frame.dtypes.items()}
    return (
        {field.name: str(field.type) for field in frame.schema} if isinstance(frame, pa.Table) else dict(frame.schema)
    )


def as_pandas(frame):
    native = frame if isinstance(frame, pd.DataFrame) else frame.to_pandas()
    native = native.astype({"unique_id": object}).sort_values(["unique_id", "ds"]).reset_index(drop=True)
    return native


@pytest.mark.parametrize("make", NATIVE.values(), ids=NATIVE)
def test_a_frame_comes_back_with_its_types_after_a_trip_through_json(make):
    native = make()
    panel = read_long(native)
    style = FrameStyle.from_json(json.loads(json.dumps(panel.style.to_json())))
    assert style == panel.style
    present = ~np.isnan(panel.values)
    series, ordinals = panel.row_series()[present], panel.row_ordinals()[present]
    stamps = panel.stamps(series, ordinals)
    back = long_frame(style, ids=(panel.ids, series), stamps=stamps, columns={"y": panel.values[present]})
    assert type(back) is type(native)
    assert types(back) == types(native)
    pd.testing.assert_frame_equal(as_pandas(back), as_pandas(native), check_index_type="exact")


def test_rows_are_sorted_by_name_then_time_and_the_index_is_plain(frame):
    panel = read_long(frame(table()))
    stamps = panel.stamps([1, 0, 1], [2, 0, 0])
    back = long_frame(panel.style, ids=["T2", "T11", "T2"], stamps=stamps, columns={"TXL": [1.0, 2.0, 3.0]})
    plain = back if isinstance(back, pd.DataFrame) else back.to_pandas()
    assert plain["unique_id"].tolist() == ["T11", "T2", "T2"]
    assert plain["TXL"].tolist() == [2.0, 3.0, 1.0]
    assert isinstance(plain.index, pd.RangeIndex)
    kept = long_frame(panel.style, ids=["T2", "T11", "T2"], stamps=stamps, columns={"TXL": [1.0, 2.0, 3.0]}, sort=False)
    assert (kept if isinstance(kept, pd.DataFrame) else kept.to_pandas())["TXL"].tolist() == [1.0, 2.0, 3.0]


def test_further_stamps_have_the_type_of_the_time_column(frame):
    panel = read_long(frame(table()))
    cutoffs = panel.stamps([0, 1], [0, 2])
    back = long_frame(
        panel.style,
        ids=(panel.ids, np.array([0, 1])),
        stamps=panel.stamps([0, 1], [1, 3]),
        columns={"TXL": np.zeros(2, np.float32), "y": np.ones(2)},
        extra_stamps={"cutoff": cutoffs},
    )
    assert list(types(back)) == ["unique_id", "ds", "cutoff", "TXL", "y"]
    assert types(back)["cutoff"] == types(back)["ds"]
    assert [str(value)[:16] for value in as_pandas(back)["cutoff"]] == ["2024-04-06 23:00", "2024-04-07 02:00"]


def test_a_frame_without_names_comes_back_without_names(frame):
    panel = read_long(frame({"ds": list(times()), "y": [1.0, 2.0, 3.0]}), id_col=None)
    back = long_frame(
        panel.style, ids=(panel.ids, np.zeros(2, int)), stamps=panel.stamps(0, [3, 4]), columns={"TXL": [1, 2]}
    )
    assert list(types(back)) == ["ds", "TXL"]


@pytest.mark.parametrize("kind", ["pandas category", "polars enum", "polars categorical", "pyarrow dictionary"])
def test_a_new_name_joins_the_categories(kind):
    panel = read_long(NATIVE[kind]())
    stamps = panel.origins[[0, 0]]
    back = long_frame(panel.style, ids=["new", "T2"], stamps=stamps, columns={"y": [1.0, 2.0]})
    assert as_pandas(back)["unique_id"].tolist() == ["T2", "new"]


def test_a_column_name_cannot_be_taken_twice(frame):
    panel = read_long(frame(table()))
    with pytest.raises(ParameterError, match=r"column names \['ds'\] would stand twice"):
        long_frame(panel.style, ids=["T2"], stamps=[0], columns={"ds": [1.0]})


def test_columns_need_one_length(frame):
    panel = read_long(frame(table()))
    with pytest.raises(
        ParameterError, match=r"need one length, got shapes \{'ids': \(1,\), 'ds': \(2,\), 'TXL': \(1,\)\}"
    ):
        long_frame(panel.style, ids=["T2"], stamps=[0, 1], columns={"TXL": [1.0]})


def test_a_stamp_that_the_time_column_cannot_hold_is_refused():
    panel = read_long(NATIVE["pandas seconds"]())
    with pytest.raises(StampError, match=r"stamp 1970-01-01T00:00:00\.5.* falls between two ticks of column 'ds'"):
        long_frame(panel.style, ids=["T2"], stamps=[500_000_000], columns={})
    for kind, typed in (("polars ints", "uint16"), ("pyarrow ints", "uint32"), ("pandas int time", "int32")):
        panel = read_long(NATIVE[kind]())
        with pytest.raises(StampError, match=rf"column 'ds' would hold {2**40}, which does not fit {typed}"):
            long_frame(panel.style, ids=[3], stamps=[2**40], columns={})


@pytest.mark.parametrize(
    "change",
    [
        {"implementation": "spark"},
        {"unit": "fortnight"},
        {"time_col": 3},
        {"time_type": "x" * 500},
        {"id_type": "a\nb"},
        {"categories": "abc"},
        {"ordered": "yes"},
        {"extra": 1},
    ],
    ids=str,
)
def test_a_style_that_to_json_did_not_write_is_refused(change):
    plain = read_long(pl.DataFrame(table())).style.to_json()
    with pytest.raises(ParameterError, match=r"frame style .*Pass what FrameStyle\.to_json\(\) gave\."):
        FrameStyle.from_json({**plain, **change})


@pytest.mark.parametrize(("narrow", "wide"), [("int8", "int64"), ("Int16", "Int64"), ("uint8", "int64")])
@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_names_beyond_the_integer_type_of_the_input_are_written_in_a_wider_one(library, narrow, wide):
    if library == "polars":
        narrow, wide = narrow.replace("i", "I").replace("u", "U"), "Int64"
    elif library == "pyarrow":
        narrow, wide = narrow.lower(), "int64"
    style = FrameStyle(library, "id", "t", "y", narrow, {"polars": "Int64"}.get(library, "int64"), "integer")
    frame = long_frame(style, ids=[7, 70_000], stamps=[1, 2], columns={})
    column = frame["id"]
    assert column.to_list() == [7, 70_000] if library != "pyarrow" else column.to_pylist() == [7, 70_000]
    assert str(column.type if library == "pyarrow" else column.dtype) == wide
    same = long_frame(style, ids=[7, 70], stamps=[1, 2], columns={})["id"]
    assert str(same.type if library == "pyarrow" else same.dtype) == narrow


def test_a_stamp_beyond_a_nullable_type_of_the_input_is_refused():
    style = FrameStyle("pandas", "id", "t", "y", "int64", "Int8", "integer")
    with pytest.raises(StampError, match="column 't' would hold 300, which does not fit int8"):
        long_frame(style, ids=[1], stamps=[300], columns={})
