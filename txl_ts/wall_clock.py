"""Features of a stamp, read off a wall clock: sines and cosines of the day, the week and the year, and holidays."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from txl_ts.errors import MissingExtraError, ParameterError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

HOLIDAYS = "holidays:"
_COLUMN = re.compile(r"(?:hour|weekday|month|yearday)\.[1-9]\.(?:sin|cos)")
_DAY_NS = 86_400 * 10**9
_MONDAY = 3  # 1970-01-01 was a Thursday, three days after a Monday


def is_feature(column: str) -> bool:
    """Tell whether :func:`wall_features` knows a column."""
    return column.startswith(HOLIDAYS) or _COLUMN.fullmatch(column) is not None


def wall_features(wall: IntArray, columns: Sequence[str]) -> FloatArray:
    """Compute features of times on a wall clock.

    Parameters
    ----------
    wall : int64 array of shape (N,)
        Nanoseconds between 1970-01-01 00:00 on the clock and the time that it shows.
    columns : sequence of str
        ``"hour.1.sin"`` (part of the day, harmonic, wave), ``"weekday.…"``, ``"month.…"``, ``"yearday.…"``, or
        ``"holidays:CC"`` and ``"holidays:CC-SUB"`` (extra ``holidays``).

    Returns
    -------
    float32 array of shape (N, len(columns))
        Sines and cosines in [−1, 1]; holidays are 0 or 1.

    Raises
    ------
    MissingExtraError
        If the package ``holidays`` is needed.
    """
    out = np.empty((len(wall), len(columns)), np.float32)
    parts: dict[str, npt.NDArray[np.float64]] = {}
    for i, column in enumerate(columns):
        if column.startswith(HOLIDAYS):
            out[:, i] = _is_holiday(wall, column)
            continue
        name, harmonic, wave = column.split(".")
        if name not in parts:
            parts[name] = PARTS[name](wall)
        out[:, i] = (np.sin if wave == "sin" else np.cos)(2 * np.pi * int(harmonic) * parts[name])
    return out


def _day_part(wall: IntArray) -> npt.NDArray[np.float64]:
    return (wall % _DAY_NS) / _DAY_NS


def _week_part(wall: IntArray) -> npt.NDArray[np.float64]:
    return (wall // _DAY_NS + _MONDAY) % 7 / 7


def _month_part(wall: IntArray) -> npt.NDArray[np.float64]:
    return (wall.view("datetime64[ns]").astype("datetime64[M]").view(np.int64) % 12) / 12


def _year_part(wall: IntArray) -> npt.NDArray[np.float64]:
    moment = wall.view("datetime64[ns]")
    year = moment.astype("datetime64[Y]")
    begin = year.astype("datetime64[D]").view(np.int64)
    length = (year + 1).astype("datetime64[D]").view(np.int64) - begin
    return (wall // _DAY_NS - begin) / length


PARTS: dict[str, Callable[[IntArray], npt.NDArray[np.float64]]] = {
    "hour": _day_part,
    "weekday": _week_part,
    "month": _month_part,
    "yearday": _year_part,
}


def _is_holiday(wall: IntArray, name: str) -> npt.NDArray[np.bool_]:
    days = wall // _DAY_NS
    found, of_row = np.unique(days, return_inverse=True)
    dates = found.view("datetime64[D]")
    years = np.unique(dates.astype("datetime64[Y]").view(np.int64) + 1970).tolist()
    free = holidays_of(name, years)
    is_free = np.isin(dates, np.array(sorted(free), "datetime64[D]"))
    return is_free[of_row]


def holidays_of(name: str, years: list[int]) -> Any:
    """Give the holidays of a column such as ``"holidays:AU-VIC"`` in some years.

    Raises
    ------
    MissingExtraError, ParameterError
        Without the package ``holidays``, or where it does not know the country.
    """
    try:
        import holidays
    except ImportError as error:
        raise MissingExtraError(
            f"calendar={name!r} needs the package holidays. Install it with pip install 'txl-ts[holidays]'."
        ) from error
    country, _, part = name.removeprefix(HOLIDAYS).partition("-")
    try:
        return holidays.country_holidays(country, subdiv=part or None, years=years)
    except NotImplementedError as error:
        raise ParameterError(
            f"calendar names {name!r}, which the package holidays does not know ({error}). "
            "Give a country code and, after a dash, one of its subdivisions, such as 'holidays:AU-VIC'."
        ) from error
