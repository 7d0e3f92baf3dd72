"""Instants and durations as integers: nanoseconds since 1970 and nanoseconds, or the plain numbers of an integer clock.

Integers are passed through, so that a stream whose clock counts cycles works in its own unit throughout.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from txl_ts.errors import ParameterError, StampError

SECOND = 10**9
_UNITS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": SECOND,
    "min": 60 * SECOND,
    "m": 60 * SECOND,
    "h": 3600 * SECOND,
    "d": 86_400 * SECOND,
    "w": 7 * 86_400 * SECOND,
}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.ASCII)
_NAIVE, _AWARE = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)
_NS_OF = {"W": 604_800 * SECOND, "D": 86_400 * SECOND, "h": 3600 * SECOND, "m": 60 * SECOND, "s": SECOND}
_NS_OF |= {"ms": 10**6, "us": 10**3, "ns": 1}


def read_duration(name: str, value: Any, *, at_least: int = 0) -> int:
    """Give a duration in nanoseconds.

    Parameters
    ----------
    name : str
        The argument's name for messages.
    value : str, int, timedelta or timedelta64
        ``"5s"``, ``"1.5h"``, ``"30d"``; units are ns, us, ms, s, min (or m), h, d, w. Integers are passed through.
    at_least : int
        The shortest that is allowed.

    Raises
    ------
    ParameterError
        If it is anything else.

    Examples
    --------
    >>> read_duration("late", "5s")
    5000000000
    """
    found = _duration(value)
    if found is None or not at_least <= found < 2**62:
        raise ParameterError(
            f"{name}={value!r:.60} ({type(value).__name__}) must be a duration of at least {at_least} ns: text such as "
            f"'5s', '10min' or '30d', a timedelta, or an integer in the unit of the stamps. Take for example "
            f" {name}='1min'."
        )
    return found


def _duration(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, np.timedelta64):
        unit = np.datetime_data(value.dtype)[0]
        return int(value.astype("timedelta64[ns]").astype(np.int64)) if unit in _NS_OF else None
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, timedelta):
        return ((value.days * 86_400 + value.seconds) * 10**6 + value.microseconds) * 1000
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.lower())) and match[2] in _UNITS:
        whole, _, part = match[1].partition(".")
        return int(whole + part) * _UNITS[match[2]] // 10 ** len(part)
    return None


def read_stamp(value: Any, *, zone: bool = False, what: str = "time") -> int:
    """Give an instant in nanoseconds since 1970; integers are passed through.

    Parameters
    ----------
    value : int, datetime64, datetime or ISO text
        What a source gives.
    zone : bool
        True: datetimes and texts must carry their offset and are turned to UTC. False: they must carry none, and are
        taken as they stand. datetime64 carries none and is taken in both cases (as UTC where there is a zone).
    what : str
        What to call it in messages.

    Raises
    ------
    StampError
        If it is no time, or with a zone where there must be none, or beyond 64 bits.

    Examples
    --------
    >>> read_stamp("1970-01-01T00:00:01")
    1000000000
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64):
        stamp = int(value)
    elif isinstance(value, np.datetime64) and not np.isnat(value):
        unit, count = np.datetime_data(value.dtype)
        if unit not in _NS_OF:
            value, unit, count = value.astype("datetime64[s]"), "s", 1
        stamp = int(value.astype(np.int64)) * count * _NS_OF[unit]
    elif isinstance(value, datetime | str) and (moment := _datetime(value)) is not None:
        is_aware = moment.tzinfo is not None
        if is_aware != zone:
            raise StampError(
                f"{what} {value!r:.60} has {'an' if is_aware else 'no'} offset from UTC, but this stream's times have "
                f"{'one' if zone else 'none'} (zone={zone}). Give all times of a stream alike, or set zone={is_aware}."
            )
        past = moment - (_AWARE if is_aware else _NAIVE)
        stamp = ((past.days * 86_400 + past.seconds) * 10**6 + past.microseconds) * 1000
        stamp += int(getattr(moment, "nanosecond", 0))
    else:
        raise StampError(
            f"{what} {value!r:.60} is of type {type(value).__name__} and no time. Give integer nanoseconds since 1970, "
            "a datetime64, a datetime, or ISO text such as '2026-01-31T12:00:00'."
        )
    if not -(2**63) < stamp < 2**63:
        shown = shown_integer(stamp) if isinstance(value, int) else f"{value!r:.60}"
        raise StampError(f"{what} {shown} lies beyond 64 bits (the years 1678 to 2261). Correct or drop it.")
    return stamp


def shown_integer(value: int) -> str:
    """Spell an integer for a message; Python itself prints no more than some thousands of digits."""
    return f"of {value.bit_length()} bits" if value.bit_length() > 256 else str(value)


def _datetime(value: datetime | str) -> datetime | None:
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            return None
    return value if value == value else None  # pandas' NaT is a datetime, unlike itself


def shown_stamp(stamp: int) -> str:
    """Write an instant for a message; small numbers are those of an integer clock."""
    if abs(stamp) < 10**15:
        return str(stamp)
    return str(np.datetime64(stamp, "ns")).replace("T", " ").removesuffix(".000000000")


def shown_duration(ns: int) -> str:
    """Write a duration for a message, in the largest unit that divides it."""
    for unit in ("d", "h", "min", "s", "ms", "us"):
        if ns and ns % _UNITS[unit] == 0:
            return f"{ns // _UNITS[unit]}{unit}"
    return f"{ns}ns"
