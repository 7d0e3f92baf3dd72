"""The three columns of a long frame as arrays: names as codes, stamps as int64, the target as floats."""

import datetime
import difflib
import warnings
from collections.abc import Sequence
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import numpy.typing as npt

from txl_ts.errors import ColumnError, FrameError, StampError, UnusedColumnsWarning
from txl_ts.frames.style import Unit
from txl_ts.frames.words import counted
from txl_ts.frames.zones import check_zone

IntArray = npt.NDArray[np.int64]
Frame = nw.DataFrame[Any]
Column = nw.Series[Any]

_ID_TYPES = (nw.String, nw.Categorical, nw.Enum)
_TOO_WIDE = (nw.Int128, nw.UInt128)
_NOT_IN_NUMPY = (nw.Boolean, nw.Decimal, *_TOO_WIDE)  # with nulls at least
_FLOAT_MAX = float(np.finfo(np.float32).max)
_ARGUMENTS = {
    "id column": "id_col",
    "time column": "time_col",
    "target column": "target_col",
    "hist column": "hist_cols",
    "futr column": "futr_cols",
    "static column": "static_cols",
}


def open_frame(frame: object) -> Frame:
    """Wrap a pandas, polars or pyarrow frame.

    Raises
    ------
    FrameError
        If it is anything else, is lazy, repeats a column name, or has no rows.
    """
    kind = f"{type(frame).__module__.partition('.')[0]}.{type(frame).__qualname__}"
    if kind == "polars.LazyFrame":
        raise FrameError(f"frame is a {kind}, which holds no rows yet. Pass frame.collect().")
    try:
        wrapped: Frame = nw.from_native(frame, eager_only=True)
    except nw.exceptions.DuplicateError as error:
        raise FrameError(
            f"frame repeats a column name: {' '.join(str(error).split())}. Rename or drop one of them."
        ) from error
    except TypeError as error:
        raise FrameError(
            f"frame must be a pandas or polars DataFrame or a pyarrow Table, got {kind}. "
            "Turn it into one, for example with pandas.DataFrame(…)."
        ) from error
    if str(wrapped.implementation) not in {"pandas", "polars", "pyarrow"}:
        raise FrameError(f"frame must come from pandas, polars or pyarrow, got {kind}. Pass frame.to_pandas().")
    if wrapped.shape[0] == 0:
        raise FrameError("frame has no rows. Pass at least one row per series.")
    return wrapped


def check_roles(frame: Frame, roles: Sequence[tuple[str, str]], *, warn_unused: bool) -> None:
    """See that every column with a role is there, once; say which columns have none.

    Parameters
    ----------
    frame : narwhals DataFrame
        The frame.
    roles : sequence of (role, column)
        Such as ``("time column", "ds")``.
    warn_unused : bool
        Whether columns without a role give an UnusedColumnsWarning.
    """
    columns = frame.columns
    for role, column in roles:
        if column not in columns:
            raise ColumnError(_missing_column(frame, role, column))
    names = [column for _, column in roles]
    if len(set(names)) < len(names):
        raise ColumnError(
            f"one column cannot have two roles, got {dict(roles)}. "
            "Name different columns in id_col, time_col and target_col."
        )
    unused = [str(column) for column in columns if column not in names]
    if unused and warn_unused:
        shown = ", ".join(map(repr, unused[:10])) + (f" and {len(unused) - 10} more" if len(unused) > 10 else "")
        warnings.warn(
            f"columns without a role were not used: {shown}. Drop them, or give them a role.",
            UnusedColumnsWarning,
            stacklevel=3,
        )


def _missing_column(frame: Frame, role: str, column: str) -> str:
    columns = [str(name) for name in frame.columns]
    close = difflib.get_close_matches(column, columns, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    index_names = getattr(getattr(frame.to_native(), "index", None), "names", None) or []
    if column in index_names:
        hint = " It is the frame's index: pass frame.reset_index()."
    cure = f"Name it with {_ARGUMENTS[role]}=…, or add it to the frame"
    cure += "; id_col=None takes the frame as one series." if role == "id column" else "."
    shown = ", ".join(map(repr, columns[:20])) + (" …" if len(columns) > 20 else "")
    return f"{role} {column!r} is not in the frame, which has {shown}.{hint} {cure}"


# ------------------------------------------------------------------------------------------------------------------ ids


def read_ids(frame: Frame, column: str) -> tuple[tuple[str | int, ...], IntArray]:
    """Number the series.

    Returns
    -------
    ids : tuple of str or int
        Distinct names, sorted.
    codes : int64 array of shape (N,)
        Position in ``ids`` for every row.
    """
    series = frame[column]
    if series.null_count():
        row = int(series.is_null().arg_true()[0])
        raise ColumnError(
            f"id column {column!r} has {counted(series.null_count(), 'missing name')} (first at row {row}). "
            "Every row needs the name of its series: fill or drop these rows."
        )
    dtype = series.dtype
    if dtype.is_integer() and not isinstance(dtype, _TOO_WIDE):
        found, codes = np.unique(series.to_numpy(), return_inverse=True)
        return tuple(int(i) for i in found), codes.astype(np.int64, copy=False)
    if not isinstance(dtype, _ID_TYPES):
        raise ColumnError(
            f"id column {column!r} must hold strings, categories or integers, got {type_text(series)}"
            f"{_such_as(series)}. Cast it to strings."
        )
    return _pandas_codes(series) if str(frame.implementation) == "pandas" else _plain_codes(series)


def _plain_codes(series: Column) -> tuple[tuple[str | int, ...], IntArray]:
    texts = series.cast(nw.String)
    ids = sorted(texts.unique().to_list())
    codes = texts.replace_strict(ids, list(range(len(ids))), return_dtype=nw.Int64)
    return tuple(ids), np.asarray(codes.to_numpy(), dtype=np.int64)


def _pandas_codes(series: Column) -> tuple[tuple[str | int, ...], IntArray]:
    import pandas as pd

    codes, found = pd.factorize(series.to_native())
    names = [i.item() if isinstance(i, np.generic) else i for i in found]
    if not all(type(i) is str for i in names) and not all(type(i) is int for i in names):
        kinds = sorted({type(i).__name__ for i in names})
        raise ColumnError(
            f"id column {series.name!r} must hold strings or integers only, got values of type {', '.join(kinds)}. "
            "Cast it to strings."
        )
    order = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return tuple(names[i] for i in order), rank[codes]


# ---------------------------------------------------------------------------------------------------------------- times


def read_ticks(frame: Frame, column: str) -> tuple[IntArray, Unit, str | None]:
    """Read a time column as int64.

    Returns
    -------
    ticks : int64 array of shape (N,)
        Ticks since 1970 (in UTC for a column with a zone), or the integers.
    unit : {"s", "ms", "us", "ns", "D", "integer"}
        Length of a tick.
    zone : str or None
        Time zone.
    """
    series = frame[column]
    if series.null_count():
        row = int(series.is_null().arg_true()[0])
        raise StampError(
            f"time column {column!r} has {counted(series.null_count(), 'missing stamp')} (first at row {row}). "
            "Fill or drop these rows."
        )
    zone, series = _in_utc(series)
    dtype = series.dtype
    if isinstance(dtype, nw.Datetime):
        stamps = series.to_numpy()
        unit: Unit = np.datetime_data(stamps.dtype)[0]  # type: ignore[assignment]
        return stamps.view(np.int64), unit, zone
    if isinstance(dtype, nw.Date):
        days = series.cast(nw.Datetime("us")).to_numpy().astype("datetime64[D]")
        return days.view(np.int64), "D", None
    if dtype.is_integer() and not isinstance(dtype, _TOO_WIDE):
        return _integers(series), "integer", None
    return _object_dates(series), "D", None


def _in_utc(series: Column) -> tuple[str | None, Column]:
    """Zone of a time column, and the column in UTC where narwhals would not see that it is a time column.

    Its names of pandas types (2.29) know letters and slashes only: America/New_York is Unknown to it.
    """
    zone = getattr(series.dtype, "time_zone", None)
    native = series.to_native()
    if series.implementation.is_pandas() and hasattr(native.dtype, "tz"):
        zone = str(native.dtype.tz)
        series = nw.from_native(native.dt.tz_convert("UTC"), series_only=True)
    if zone is not None:
        check_zone(zone)
    return zone, series


def _integers(series: Column) -> IntArray:
    numbers = series.to_numpy()
    if numbers.dtype == np.uint64 and numbers.max() > np.uint64(2**63 - 1):
        raise StampError(
            f"time column {series.name!r} holds {numbers.max()}, beyond 64-bit signed integers. "
            "Subtract a constant from it."
        )
    return np.asarray(numbers, dtype=np.int64)


def _object_dates(series: Column) -> IntArray:
    """Dates in a pandas object column; every other type ends here in an error that knows the cure."""
    name = series.name
    if not isinstance(series.dtype, nw.Object):
        raise ColumnError(_not_time(series))
    values = series.to_list()
    if all(type(value) is datetime.date for value in values):
        return np.array(values, dtype="datetime64[D]").view(np.int64)
    if all(isinstance(value, datetime.datetime) for value in values):
        zones = list(dict.fromkeys(str(value.tzinfo) if value.tzinfo else "no zone" for value in values))
        if len(zones) > 1:
            shown = ", ".join(zones[:5]) + (f" and {len(zones) - 5} more" if len(zones) > 5 else "")
            raise StampError(
                f"time column {name!r} mixes time zones: {shown}. "
                f"Bring it to one with pandas.to_datetime(df[{name!r}], utc=True)."
            )
    raise ColumnError(_not_time(series))


def _not_time(series: Column) -> str:
    name, dtype = series.name, series.dtype
    if isinstance(dtype, nw.String) and series.implementation.is_polars():
        cure = f"Convert it with pl.col({name!r}).str.to_datetime()."
    elif dtype.is_float():
        cure = "Cast it to integers if it numbers the rows, else convert it to datetimes."
    elif "period" in type_text(series):
        cure = f"Convert it with df[{name!r}].dt.to_timestamp()."
    elif series.implementation.is_pyarrow():
        cure = f"Convert it with pyarrow.compute.strptime(table[{name!r}], …), or cast it to a timestamp."
    elif series.implementation.is_polars():
        cure = "Cast it to pl.Datetime."
    else:
        cure = f"Convert it with pandas.to_datetime(df[{name!r}])."
    got = f"{type_text(series)}{_such_as(series)}"
    return f"time column {name!r} must hold datetimes, dates or integers, got {got}. {cure}"


# --------------------------------------------------------------------------------------------------------------- target


def read_target(frame: Frame, column: str) -> npt.NDArray[np.float32] | npt.NDArray[np.float64]:
    """Read the target as floats; missing values become NaN.

    Raises
    ------
    ColumnError
        If the column holds something else than numbers.
    """
    return read_number(frame, column, role="target column")


def read_number(frame: Frame, column: str, *, role: str) -> npt.NDArray[np.float32] | npt.NDArray[np.float64]:
    """Read a column of numbers as floats; see :func:`read_target`."""
    series = frame[column]
    dtype = series.dtype
    if not (dtype.is_numeric() or isinstance(dtype, nw.Boolean)):
        categories = "" if role == "target column" else " If it holds categories, name it in cat_cols of fit."
        raise ColumnError(
            f"{role} {column!r} must hold numbers, got {type_text(series)}{_such_as(series)}. "
            f"{_number_cure(series)}{categories}"
        )
    numbers = series.cast(nw.Float64) if isinstance(dtype, _NOT_IN_NUMPY) else series
    if isinstance(dtype, nw.Float32):
        return np.asarray(numbers.to_numpy(), dtype=np.float32)
    return np.asarray(numbers.to_numpy(), dtype=np.float64)


def beyond_float32(values: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.bool_]:
    """Mark values that are infinite or too large for float32."""
    too_large: npt.NDArray[np.bool_] = np.abs(values) > _FLOAT_MAX
    return too_large


def _number_cure(series: Column) -> str:
    name = series.name
    if series.implementation.is_polars():
        return f"Cast it with pl.col({name!r}).cast(pl.Float32, strict=False): what is no number becomes missing."
    if series.implementation.is_pyarrow():
        return "Cast it with pyarrow.compute.cast(…, 'float32')."
    return f"Cast it with pandas.to_numeric(df[{name!r}], errors='coerce'): what is no number becomes missing."


# ------------------------------------------------------------------------------------------------------------- messages


def type_text(series: Column) -> str:
    """Type of a column in the words of its library."""
    native = series.to_native()
    if series.implementation.is_pyarrow():
        return str(native.type)
    return str(native.dtype)


def _such_as(series: Column) -> str:
    """A value that explains the type: the first that is no number, else the first that is there."""
    values = series.head(10_000).drop_nulls().to_list()
    odd = next((value for value in values if not _reads_as_number(value)), values[0] if values else None)
    return "" if odd is None else f" with values such as {_short(odd)}"


def _reads_as_number(value: object) -> bool:
    if isinstance(value, np.complexfloating):  # float() takes its real part, with a warning
        return False
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
