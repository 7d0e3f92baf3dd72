"""What a caller gives for one stream, checked and turned into arrays."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import ColumnError, ParameterError, ShapeError
from txl_ts.runtime.contract import Contract
from txl_ts.runtime.stamps import native_stamps

UNUSED = "Nothing of this call was used."
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one stream.

    Attributes
    ----------
    values : float32 array of shape (T, C)
        NaN where a value is missing.
    stamps : list of int, or None
        Native stamps of the T rows.
    """

    values: NDArray[np.float32]
    stamps: list[int] | None


def read_rows(given: Any, *, stream: object, contract: Contract) -> Rows:
    """Read one row or several.

    Parameters
    ----------
    given : float or mapping
        A bare number for one channel, or ``{"time": …, "values": {channel: …}}`` with single values or equally long
        sequences; ``time`` may be left out.

    Raises
    ------
    ParameterError, ColumnError, ShapeError, StampError
        If it is anything else; the message names the stream and the channel.
    """
    channels = contract.channels
    if given is None or isinstance(given, Real | np.bool_):
        if len(channels) > 1:
            raise ColumnError(
                f"stream {stream!r}: got a bare number, but the model has the channels {list(channels)}. "
                f"Give {{'values': {{{channels[0]!r}: …, …}}}}. {UNUSED}"
            )
        return Rows(_column(given, stream=stream, channel=channels[0])[:, None], None)
    if not isinstance(given, Mapping):
        raise ParameterError(
            f"stream {stream!r}: a row of type {type(given).__name__} is not understood. "
            f"Give a number, or {{'time': …, 'values': {{{channels[0]!r}: …}}}}. {UNUSED}"
        )
    if unknown := [key for key in given if key not in ("time", "values")]:
        raise ParameterError(
            f"stream {stream!r}: unknown keys {unknown[:5]}, expected 'time' and 'values'. "
            f"Put channels under 'values': {{'values': {{{channels[0]!r}: …}}}}. {UNUSED}"
        )
    values = _values(given.get("values"), stream=stream, channels=channels)
    if given.get("time") is None:
        return Rows(values, None)
    stamps = native_stamps(given["time"], stream=stream, contract=contract)
    if len(stamps) != len(values):
        raise ShapeError(
            f"stream {stream!r}: {len(stamps)} times for {len(values)} values. Give one time per row. {UNUSED}"
        )
    return Rows(values, stamps)


def _values(given: Any, *, stream: object, channels: tuple[str, ...]) -> NDArray[np.float32]:
    if not isinstance(given, Mapping):
        raise ParameterError(
            f"stream {stream!r}: 'values' is {'missing' if given is None else type(given).__name__}, "
            f"expected a mapping by channel. Give {{'values': {{{channels[0]!r}: …}}}}. {UNUSED}"
        )
    if unknown := [name for name in given if name not in channels]:
        raise ColumnError(
            f"stream {stream!r}: unknown channel {unknown[0]!r}{_near(unknown[0], channels)} The model has "
            f"{list(channels[:5])} ({len(channels)} in all). {UNUSED}"
        )
    if lacking := [name for name in channels if name not in given]:
        raise ColumnError(
            f"stream {stream!r}: no value for channel {lacking[0]!r} ({len(lacking)} lacking). "
            f"Give NaN where a value is missing. {UNUSED}"
        )
    columns = [_column(given[name], stream=stream, channel=name) for name in channels]
    lengths = {name: len(column) for name, column in zip(channels, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        raise ShapeError(
            f"stream {stream!r}: channels have different numbers of rows: {lengths}. "
            f"Give NaN where a value is missing. {UNUSED}"
        )
    if not len(columns[0]):
        raise ShapeError(f"stream {stream!r}: no rows were given. Leave the stream out of the call. {UNUSED}")
    return np.stack(columns, axis=1)


def _column(given: Any, *, stream: object, channel: str) -> NDArray[np.float32]:
    """Give a channel's values as float32 (T,); None, NaN and what float32 cannot hold become NaN."""
    if type(given) is float:  # the usual row, and the fastest way
        value = np.float32(given) if abs(given) <= _LARGEST else np.float32(math.nan)
        return np.array([value], np.float32)
    try:
        array = np.asarray(given)
    except ValueError as error:  # lists of unequal length
        raise ShapeError(
            f"stream {stream!r}: channel {channel!r} is no sequence of numbers: {error}. {UNUSED}"
        ) from error
    if array.dtype == object and array.size and all(one is None or _is_number(one) for one in array.flat):
        array = array.astype(np.float64)
    expected = f"expected a number or a sequence of numbers: {given!r:.60}. {UNUSED}"
    if array.ndim > 1:
        raise ShapeError(f"stream {stream!r}: channel {channel!r} has shape {array.shape}, {expected}")
    if array.size and array.dtype.kind not in "fiu":
        raise ColumnError(f"stream {stream!r}: channel {channel!r} holds {_odd_type(array)}, {expected}")
    array = np.atleast_1d(array).astype(np.float64)
    # Beyond float32 is not a number that was measured.
    return np.where(np.abs(array) <= _LARGEST, array, np.nan).astype(np.float32)


def _is_number(one: object) -> bool:
    return isinstance(one, Real) and not isinstance(one, bool)


def _odd_type(array: NDArray[Any]) -> str:
    if array.dtype != object:
        return {"b": "bool", "U": "str", "S": "bytes", "M": "datetime64", "m": "timedelta64"}.get(
            array.dtype.kind, str(array.dtype)
        )
    return next(type(one).__name__ for one in array.flat if one is not None and not _is_number(one))


def _near(name: object, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else "."
