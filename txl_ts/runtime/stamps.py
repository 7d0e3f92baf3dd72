"""Stamps that a caller gives, as native ones: int64 nanoseconds since 1970, or plain integers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import StampError
from txl_ts.runtime.contract import Contract

_NAIVE, _AWARE = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)
_NS = {"D": 86_400 * 10**9, "h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}
_KINDS = {
    True: "a datetime, a datetime64 or integer nanoseconds since 1970",
    False: "an integer, as in the rows that the model was fitted on",
}


def native_stamps(given: Any, *, stream: object, contract: Contract) -> list[int]:
    """Read the stamp or stamps of one stream.

    Raises
    ------
    StampError
        If one has another type than the model's time column, lies beyond int64, or is not a time.
    """
    if isinstance(given, list | tuple):
        return [_native(one, stream=stream, contract=contract) for one in given]
    if isinstance(given, np.ndarray) or (hasattr(given, "__array__") and hasattr(given, "__len__")):
        array = np.asarray(given).ravel()
        if contract.is_datetime and array.dtype.kind == "M" and len(array) and not np.isnat(array).any():
            first, last = (_native(one, stream=stream, contract=contract) for one in (array.min(), array.max()))
            if first <= last:  # neither end lies beyond 64 bits
                return array.astype("datetime64[ns]").view(np.int64).tolist()
        return [_native(one, stream=stream, contract=contract) for one in array]
    return [_native(given, stream=stream, contract=contract)]


def shown(stamp: int, contract: Contract) -> str:
    """Write a stamp for a message."""
    if not contract.is_datetime:
        return str(stamp)
    text = str(np.datetime64(stamp, "ns")).replace("T", " ").removesuffix(".000000000")
    return text if contract.zone is None else f"{text} UTC"


def as_array(stamps: list[int], contract: Contract) -> NDArray[Any]:
    """Give stamps to the caller: datetime64[ns] or int64."""
    array = np.array(stamps, np.int64)
    return array.view("datetime64[ns]") if contract.is_datetime else array


def _native(one: Any, *, stream: object, contract: Contract) -> int:
    if isinstance(one, int | np.integer) and not isinstance(one, bool | np.timedelta64):
        stamp = int(one)
    elif contract.is_datetime and isinstance(one, np.datetime64) and not np.isnat(one):
        stamp = _of_datetime64(one)
    elif contract.is_datetime and isinstance(one, datetime) and one == one:  # pandas' NaT is a datetime, unlike itself
        stamp = _of_datetime(one, stream=stream, zone=contract.zone)
    else:
        raise StampError(
            f"stream {stream!r}: time {one!r:.80} is of type {type(one).__name__}, expected "
            f"{_KINDS[contract.is_datetime]}. Nothing of this call was used."
        )
    if not -(2**63) < stamp < 2**63:
        raise StampError(
            f"stream {stream!r}: time {one!r:.80} lies beyond 64 bits (for datetimes: outside the years 1678 to 2261). "
            "Correct or drop this row. Nothing of this call was used."
        )
    return stamp


def _of_datetime64(one: np.datetime64) -> int:
    unit, count = np.datetime_data(one.dtype)
    if unit not in _NS:
        one, unit, count = one.astype("datetime64[s]"), "s", 1
    return int(one.astype(np.int64)) * count * _NS[unit]


def _of_datetime(one: datetime, *, stream: object, zone: str | None) -> int:
    is_aware = one.tzinfo is not None
    if is_aware != (zone is not None):
        kind = f"in zone {zone}" if zone else "without a zone"
        cure = "`time.astimezone(datetime.UTC)`" if zone else "`time.replace(tzinfo=None)` of the wall time"
        raise StampError(
            f"stream {stream!r}: time {one} has {'a' if is_aware else 'no'} zone, but the model's times are {kind}. "
            f"Give {cure}. Nothing of this call was used."
        )
    past = one - (_AWARE if is_aware else _NAIVE)
    micro = (past.days * 86_400 + past.seconds) * 10**6 + past.microseconds
    return micro * 1000 + int(getattr(one, "nanosecond", 0))
