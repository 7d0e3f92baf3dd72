"""A long frame as a detector reads it: the columns of ids and times taken out, the rest are sensors."""

from __future__ import annotations

from typing import Any

import narwhals.stable.v2 as nw

_ID, _TIME = "unique_id", "ds"


def take_columns(X: Any, *, time: Any, series_id: Any) -> tuple[Any, Any, Any]:
    """Take ids and times out of a frame of pandas, polars or pyarrow; anything else is given back as it is.

    Parameters
    ----------
    X : array or frame
    time, series_id : array, column name or None
        None takes the columns ``"ds"`` and ``"unique_id"`` where they are.

    Returns
    -------
    X, time, series_id
        Columns as numpy arrays.
    """
    if not hasattr(X, "columns") and not hasattr(X, "column_names"):
        return X, time, series_id
    try:
        frame = nw.from_native(X, eager_only=True)
    except TypeError:
        return X, time, series_id
    names: list[str] = list(frame.columns)
    taken = []
    found = {}
    for role, given, usual in (("time", time, _TIME), ("series_id", series_id, _ID)):
        column = usual if given is None else given
        found[role] = given
        if isinstance(column, str) and column in names:
            values = frame[column].to_numpy()
            # An id column of texts comes as objects; one of categories as whatever its library makes of them.
            found[role] = values.astype(str) if role == "series_id" and values.dtype.kind == "O" else values
            taken.append(column)
    if taken:
        X = frame.drop(taken).to_native()
    if str(frame.implementation) == "pyarrow":
        X = frame.drop(taken).to_pandas()
    return X, found["time"], found["series_id"]
