"""Native stamps: int64 in and out of time columns, and their text in messages."""

import numpy as np
import numpy.typing as npt

from txl_ts.errors import StampError
from txl_ts.frames.style import NS_PER_UNIT, FrameStyle
from txl_ts.frames.words import counted
from txl_ts.frames.zones import wall_of

IntArray = npt.NDArray[np.int64]

_FIRST_YEAR, _LAST_YEAR = 1678, 2261  # whole years within int64 nanoseconds


def to_native(ticks: IntArray, unit: str, column: str) -> IntArray:
    """Turn ticks of a time column into native stamps: nanoseconds, or the integers themselves.

    Raises
    ------
    StampError
        If a stamp lies outside the years 1678 to 2261, the whole years that int64 nanoseconds reach, or if the stamps
        lie further apart than int64 can say.
    """
    if not ticks.size:
        return ticks
    if unit != "integer":
        _check_years(ticks, unit, column)
        ticks = ticks * NS_PER_UNIT[unit] if unit != "ns" else ticks
    if int(ticks.max()) - int(ticks.min()) >= 2**63:
        raise StampError(
            f"time column {column!r} spans more than 64 bits can say (for datetimes 292 years), from row "
            f"{ticks.argmin()} to row {ticks.argmax()}. Correct these stamps, or number the rows and give freq=1."
        )
    return ticks


def _check_years(ticks: IntArray, unit: str, column: str) -> None:
    low, high = np.array([f"{_FIRST_YEAR}", f"{_LAST_YEAR + 1}"], dtype=f"datetime64[{unit}]").view(np.int64)
    outside = np.flatnonzero((ticks < low) | (ticks >= high))
    if outside.size:
        stamp = np.datetime_as_string(ticks[outside[:1]].view(f"datetime64[{unit}]"))[0]
        raise StampError(
            f"time column {column!r} holds {counted(outside.size, 'stamp')} outside the years {_FIRST_YEAR} to "
            f"{_LAST_YEAR} (first at row {outside[0]}: {stamp}), which 64-bit nanoseconds cannot reach. "
            "Correct or drop these rows; for such eras number the rows with integers and give freq=1."
        )


def to_ticks(stamps: IntArray, style: FrameStyle, column: str) -> IntArray:
    """Turn native stamps into ticks of the time column.

    Raises
    ------
    StampError
        If a stamp falls between two ticks.
    """
    factor = NS_PER_UNIT.get(style.unit, 1)
    if factor == 1:
        return stamps
    if (stamps % factor).any():
        between = int(stamps[np.flatnonzero(stamps % factor)[0]])
        raise StampError(
            f"stamp {np.datetime64(between, 'ns')} falls between two ticks of column {column!r}, which counts in "
            f"{style.unit!r}. Cast the time column of the input to a finer type, such as datetime with 'us'."
        )
    return stamps // factor


def show(stamp: int, style: FrameStyle) -> str:
    """Write a native stamp as the user knows it: wall time of the zone, or the plain integer."""
    if style.unit == "integer":
        return str(stamp)
    wall = wall_of(np.array([stamp], dtype=np.int64), style.zone)
    text = str(np.datetime_as_string(wall.view("datetime64[ns]"))[0]).replace("T", " ")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text.removesuffix(":00") if text.endswith(":00") else text
