"""Numbers that a caller gives, one or a sequence, as float32."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import ColumnError, ShapeError

UNUSED = "Nothing of this call was used."
LARGEST = float(np.finfo(np.float32).max)


def read_numbers(given: Any, *, stream: object, what: str) -> NDArray[np.float32]:
    """Give values as float32 (T,); None, NaN and what float32 cannot hold become NaN.

    Parameters
    ----------
    given : number or sequence of number
    stream : object
    what : str
        What is read, for messages: ``"channel 'y'"``.

    Raises
    ------
    ShapeError, ColumnError
        If it is anything else.
    """
    if type(given) is float:  # the usual row, and the fastest way
        value = np.float32(given) if abs(given) <= LARGEST else np.float32(math.nan)
        return np.array([value], np.float32)
    try:
        array = np.asarray(given)
    except ValueError as error:  # lists of unequal length
        raise ShapeError(f"stream {stream!r}: {what} is no sequence of numbers: {error}. {UNUSED}") from error
    if array.dtype == object and array.size and all(one is None or _is_number(one) for one in array.flat):
        array = array.astype(np.float64)
    expected = f"expected a number or a sequence of numbers: {given!r:.60}. {UNUSED}"
    if array.ndim > 1:
        raise ShapeError(f"stream {stream!r}: {what} has shape {array.shape}, {expected}")
    if array.size and array.dtype.kind not in "fiu":
        raise ColumnError(f"stream {stream!r}: {what} holds {_odd_type(array)}, {expected}")
    array = np.atleast_1d(array).astype(np.float64)
    # Beyond float32 is not a number that was measured.
    return np.where(np.abs(array) <= LARGEST, array, np.nan).astype(np.float32)


def _is_number(one: object) -> bool:
    return isinstance(one, Real) and not isinstance(one, bool)


def _odd_type(array: NDArray[Any]) -> str:
    if array.dtype != object:
        return {"b": "bool", "U": "str", "S": "bytes", "M": "datetime64", "m": "timedelta64"}.get(
            array.dtype.kind, str(array.dtype)
        )
    return next(type(one).__name__ for one in array.flat if one is not None and not _is_number(one))
