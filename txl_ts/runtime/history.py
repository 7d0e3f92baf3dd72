"""Histories of many streams: a mapping of rows by stream, or the columns of a long frame. No dataframe is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import ColumnError, ParameterError
from txl_ts.runtime.beside import read_static
from txl_ts.runtime.contract import Contract
from txl_ts.runtime.names import StreamName, checked_name
from txl_ts.runtime.rows import Rows, read_rows
from txl_ts.runtime.stamps import native_stamps


def read_history(given: Any, *, contract: Contract, id_col: str, time_col: str) -> dict[StreamName, Rows]:
    """Read histories.

    Parameters
    ----------
    given : mapping or frame
        ``{"meter-7": {"time": […], "values": {"y": […]}}}``, or anything that gives a column for its name (a dict of
        arrays, a frame of pandas or polars, a pyarrow table): an id, a time, one column per channel, and those beside
        the channels; of static columns, the first row of a stream counts.
    contract : Contract
    id_col, time_col : str
        Names of these columns.

    Raises
    ------
    ParameterError, ColumnError, ShapeError, StampError
        If it is anything else.
    """
    is_long = id_col in given if isinstance(given, Mapping) else hasattr(given, "__getitem__")
    if isinstance(given, Mapping) and not is_long:
        return {
            (name := checked_name(key)): read_rows(rows, stream=name, contract=contract) for key, rows in given.items()
        }
    if not is_long:
        raise ParameterError(
            f"history is of type {type(given).__name__}, expected rows by stream, or columns by name. Give "
            f"{{'meter-7': {{'time': […], 'values': {{{contract.channels[0]!r}: […]}}}}}} or a long frame."
        )
    ids = _column(given, id_col)
    if ids.dtype.kind == "U" and not all(isinstance(one, str) for one in given[id_col]):  # a list with numbers in it
        ids = np.array(given[id_col], object)
    stamps = np.array(native_stamps(_column(given, time_col), stream="of the history", contract=contract), np.int64)
    layout = contract.row_layout
    names = [*contract.channels, *(column.name for column in layout.columns)]
    values = {name: _column(given, name) for name in names}
    together = read_rows({"values": values}, stream="of the history", contract=contract).values
    static = {column.name: _column(given, column.name) for column in layout.static}
    if not len(ids) == len(stamps) == len(together):
        raise ColumnError(
            f"the history's columns have {len(ids)}, {len(stamps)} and {len(together)} rows. Give one length."
        )
    by_name, first = _by_stream(ids, stamps, together)
    if not static:
        return by_name
    given = [{name: column[i] for name, column in static.items()} for i in first]
    return {
        name: replace(rows, static=read_static(one, layout, stream=name))
        for (name, rows), one in zip(by_name.items(), given, strict=True)
    }


def _by_stream(
    ids: NDArray[Any], stamps: NDArray[np.int64], values: NDArray[np.float32]
) -> tuple[dict[StreamName, Rows], list[int]]:
    """Give the rows of each stream in order of time, and the place of one row of each."""
    known, first, number = np.unique(
        ids.astype(str) if ids.dtype == object else ids, return_index=True, return_inverse=True
    )
    if ids.dtype == object:  # "5" and 5 are two streams
        is_text = np.array([isinstance(one, str) for one in ids.tolist()], bool)
        known, first, number = np.unique(2 * number + is_text, return_index=True, return_inverse=True)
    order = np.lexsort((stamps, number))
    ends = np.cumsum(np.bincount(number, minlength=len(known)))
    out: dict[StreamName, Rows] = {}
    begin = 0
    for i, end in zip(first.tolist(), ends.tolist(), strict=True):
        mine = order[begin:end]
        out[checked_name(ids[i].item() if isinstance(ids[i], np.generic) else ids[i])] = Rows(
            values[mine], stamps[mine].tolist()
        )
        begin = end
    return out, first.tolist()


def _column(frame: Any, name: str) -> NDArray[Any]:
    cure = "Rename it, or give `id_col=` and `time_col=`."
    names = list(frame) if isinstance(frame, Mapping) else getattr(frame, "columns", None)
    names = getattr(frame, "column_names", names)  # pyarrow's columns are its arrays
    if names is None or name not in list(names):
        raise ColumnError(f"the history has no column {name!r}: it has {list(names or ())[:5]}. {cure}")
    return np.asarray(frame[name])
