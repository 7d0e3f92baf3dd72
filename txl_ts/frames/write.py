"""Frames of the kind that came in."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from txl_ts.errors import ParameterError, StampError
from txl_ts.frames.stamps import to_ticks
from txl_ts.frames.style import FrameStyle

IntArray = npt.NDArray[np.int64]
SeriesId = str | int
Ids = Sequence[SeriesId] | tuple[Sequence[SeriesId], npt.NDArray[np.integer[Any]]]


def long_frame(
    style: FrameStyle,
    *,
    ids: Ids,
    stamps: npt.ArrayLike,
    columns: Mapping[str, npt.ArrayLike],
    extra_stamps: Mapping[str, npt.ArrayLike] | None = None,
    sort: bool = True,
) -> Any:
    """Build a long frame of the library, names and types of the frame that was read.

    Columns stand in the order id, time, ``extra_stamps``, ``columns``. Rows are sorted by id, then time, then the extra
    stamps; a pandas frame has its default index.

    Parameters
    ----------
    style : FrameStyle
        ``panel.style``.
    ids : sequence of N names, or (names, index)
        Name of every row; for speed, distinct names and an integer array of shape (N,) that picks from them.
    stamps : int64 array of shape (N,)
        Native stamps, as :meth:`Panel.stamps` gives them.
    columns : mapping of str to array of shape (N,)
        Values by column name.
    extra_stamps : mapping of str to int64 array of shape (N,), optional
        Further time columns such as ``"cutoff"``, of the type of the time column.
    sort : bool
        False keeps the order of the rows.

    Raises
    ------
    ParameterError
        If lengths differ or a column name is taken twice.
    StampError
        If a stamp cannot be written in the type of the time column.
    """
    names, index = _table(ids)
    times = {style.time_col: stamps, **(extra_stamps or {})}
    ticks = {name: np.asarray(values, dtype=np.int64) for name, values in times.items()}
    values = {name: np.asarray(column) for name, column in columns.items()}
    _check_names([style.id_col, style.time_col, *(extra_stamps or {}), *columns])
    _check_lengths({"ids": index, **ticks, **values})
    if sort:
        order = _order(names, index, list(ticks.values()))
        if order is not None:
            index = index[order]
            ticks = {name: stamp[order] for name, stamp in ticks.items()}
            values = {name: column[order] for name, column in values.items()}
    ticks = {name: to_ticks(stamp, style, name) for name, stamp in ticks.items()}
    return _build(style, names, index, ticks, values)


def id_frame(style: FrameStyle, *, ids: Sequence[SeriesId], columns: Mapping[str, npt.ArrayLike]) -> Any:
    """Build a frame with one row per series and no time, of the library, names and types of the frame that was read.

    Parameters
    ----------
    style : FrameStyle
    ids : sequence of N names
    columns : mapping of str to array of shape (N,)
    """
    values = {name: np.asarray(column) for name, column in columns.items()}
    return _build(style, list(ids), np.arange(len(ids)), {}, values)


def _build(
    style: FrameStyle,
    names: list[SeriesId],
    index: IntArray,
    ticks: Mapping[str, IntArray],
    values: Mapping[str, npt.NDArray[Any]],
) -> Any:
    style = replace(style, id_type=_wide_enough(style.id_type, names))
    build = {"pandas": _pandas_frame, "polars": _polars_frame, "pyarrow": _pyarrow_frame}[style.implementation]
    return build(style, names, index, ticks, values)


def _wide_enough(id_type: str, names: list[SeriesId]) -> str:
    """Spell an integer type of 64 bits where the names of new series do not fit that of the old ones."""
    found = re.fullmatch(r"([Uu]?)([Ii])nt(8|16|32)(.*)", id_type)
    if found is None or not names or not all(isinstance(name, int) for name in names):
        return id_type
    limits = np.iinfo(f"{found[1].lower()}int{found[3]}")
    if limits.min <= min(names) and max(names) <= limits.max:  # type: ignore[operator]
        return id_type
    return f"{found[2]}nt64{found[4]}"


def _table(ids: Ids) -> tuple[list[SeriesId], IntArray]:
    if isinstance(ids, tuple) and len(ids) == 2 and isinstance(ids[1], np.ndarray):
        return list(ids[0]), np.asarray(ids[1], dtype=np.int64)
    position: dict[SeriesId, int] = {}
    index = [position.setdefault(name, len(position)) for name in cast("Sequence[SeriesId]", ids)]
    return list(position), np.array(index, dtype=np.int64)


def _check_names(names: list[str | None]) -> None:
    taken = [name for name in names if name is not None]
    twice = sorted({name for name in taken if taken.count(name) > 1})
    if twice:
        raise ParameterError(
            f"column names {twice} would stand twice in the result. "
            "Rename the id, time or target column of the input, or the new column."
        )


def _check_lengths(arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    lengths = {name: array.shape for name, array in arrays.items()}
    if len(set(lengths.values())) > 1 or any(len(shape) != 1 for shape in lengths.values()):
        raise ParameterError(f"all columns of a frame need one length, got shapes {lengths}. Pass one value per row.")


def _order(names: list[SeriesId], index: IntArray, stamps: list[IntArray]) -> IntArray | None:
    """Permutation that sorts the rows; None where they are sorted already."""
    by_name = sorted(range(len(names)), key=names.__getitem__)
    rank = np.empty(len(names), dtype=np.int64)
    rank[by_name] = np.arange(len(names))
    keys = [rank[index], *stamps]
    if _is_sorted(keys):
        return None
    return np.lexsort(keys[::-1])


def _is_sorted(keys: list[IntArray]) -> bool:
    undecided = np.ones(max(len(keys[0]) - 1, 0), dtype=bool)
    for key in keys:
        if (undecided & (key[1:] < key[:-1])).any():
            return False
        undecided &= key[1:] == key[:-1]
    return True


def _categories(style: FrameStyle, names: list[SeriesId]) -> list[SeriesId]:
    known = list(style.categories or ())
    return known + sorted(set(names) - set(known))


def _in_type_of(ticks: IntArray, bits: npt.DTypeLike, column: str) -> npt.NDArray[Any]:
    narrow = ticks.astype(bits)
    if not np.array_equal(narrow, ticks) or (narrow < 0).any() != (ticks < 0).any():
        raise StampError(
            f"column {column!r} would hold {int(ticks.max())}, which does not fit {np.dtype(bits)}. "
            "Cast the time column of the input to a wider type, such as int64."
        )
    return narrow


# --------------------------------------------------------------------------------------------------------------- pandas


def _pandas_frame(
    style: FrameStyle,
    names: list[SeriesId],
    index: IntArray,
    ticks: Mapping[str, IntArray],
    values: Mapping[str, npt.NDArray[Any]],
) -> Any:
    import pandas as pd

    data: dict[str, Any] = {}
    if style.id_col is not None:
        data[style.id_col] = _pandas_ids(style, names, index)
    data |= {name: _pandas_stamps(style, tick, name) for name, tick in ticks.items()}
    return pd.DataFrame({**data, **values})


def _pandas_ids(style: FrameStyle, names: list[SeriesId], index: IntArray) -> Any:
    import pandas as pd

    if style.id_type == "category":
        categories = _categories(style, names)
        place = {name: position for position, name in enumerate(categories)}
        codes = np.array([place[name] for name in names], dtype=np.int64)[index]
        return pd.Categorical.from_codes(codes, categories=pd.Index(categories), ordered=style.ordered)
    return pd.Series(names, dtype=style.id_type).take(index).reset_index(drop=True)


def _pandas_stamps(style: FrameStyle, ticks: IntArray, name: str) -> Any:
    import pandas as pd

    if style.unit == "integer":
        narrow = _in_type_of(ticks, style.time_type.lower().removesuffix("[pyarrow]"), name)
        return pd.Series(narrow).astype(style.time_type)  # type: ignore[call-overload]
    moments = ticks.view(f"datetime64[{style.unit}]")
    if style.time_type == "object":
        return pd.Series(list(moments.astype(object)), dtype=object)
    if style.unit == "D":
        return pd.Series(moments.astype("datetime64[s]")).astype(style.time_type)  # type: ignore[call-overload]
    stamps = pd.DatetimeIndex(moments)
    if style.zone is not None:
        stamps = stamps.tz_localize("UTC").tz_convert(style.zone)
    column = pd.Series(stamps)
    return column.astype(style.time_type) if style.time_type.endswith("[pyarrow]") else column  # type: ignore[call-overload]


# --------------------------------------------------------------------------------------------------------------- polars


def _polars_frame(
    style: FrameStyle,
    names: list[SeriesId],
    index: IntArray,
    ticks: Mapping[str, IntArray],
    values: Mapping[str, npt.NDArray[Any]],
) -> Any:
    import polars as pl

    data: list[pl.Series] = []
    if style.id_col is not None:
        kind = (
            pl.Enum([str(name) for name in _categories(style, names)])
            if style.id_type == "Enum"
            else getattr(pl, style.id_type)
        )
        data.append(pl.Series(style.id_col, names, dtype=kind).gather(index))
    for name, tick in ticks.items():
        data.append(_polars_stamps(style, tick, name))
    data += [pl.Series(name, np.ascontiguousarray(column)) for name, column in values.items()]
    return pl.DataFrame(data)


def _polars_stamps(style: FrameStyle, ticks: IntArray, name: str) -> Any:
    import polars as pl

    if style.unit == "integer":
        return pl.Series(name, _in_type_of(ticks, style.time_type.lower(), name))
    numbers = pl.Series(name, np.ascontiguousarray(ticks))
    if style.unit == "D":
        return numbers.cast(pl.Int32).cast(pl.Date)
    return numbers.cast(pl.Datetime(style.unit, style.zone))  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------------------- pyarrow


def _pyarrow_frame(
    style: FrameStyle,
    names: list[SeriesId],
    index: IntArray,
    ticks: Mapping[str, IntArray],
    values: Mapping[str, npt.NDArray[Any]],
) -> Any:
    import pyarrow as pa

    data: dict[str, Any] = {}
    if style.id_col is not None:
        data[style.id_col] = _pyarrow_ids(style, names, index)
    data |= {name: _pyarrow_stamps(style, tick, name) for name, tick in ticks.items()}
    return pa.table({**data, **{name: pa.array(column) for name, column in values.items()}})


def _pyarrow_ids(style: FrameStyle, names: list[SeriesId], index: IntArray) -> Any:
    import pyarrow as pa

    if not style.id_type.startswith("dictionary"):
        kind = pa.type_for_alias(style.id_type)
        if pa.types.is_string_view(kind):  # has no kernel for take
            return pa.array(names, type=pa.string()).take(pa.array(index)).cast(kind)
        return pa.array(names, type=kind).take(pa.array(index))
    parts = dict(part.split("=") for part in style.id_type.removeprefix("dictionary<").rstrip(">").split(", "))
    categories = _categories(style, names)
    place = {name: position for position, name in enumerate(categories)}
    codes = np.array([place[name] for name in names], dtype=np.int64)[index]
    index_type, value_type = pa.type_for_alias(parts["indices"]), pa.type_for_alias(parts["values"])
    return pa.DictionaryArray.from_arrays(
        pa.array(codes).cast(index_type), pa.array(categories, type=value_type), ordered=style.ordered
    )


def _pyarrow_stamps(style: FrameStyle, ticks: IntArray, name: str) -> Any:
    import pyarrow as pa

    if style.unit == "integer":
        return pa.array(_in_type_of(ticks, style.time_type, name))
    if style.unit == "D":
        return pa.array(ticks.astype(np.int32)).view(pa.date32())
    return pa.array(ticks).view(pa.timestamp(style.unit, style.zone))
