"""The distance between two rows, and all arithmetic on stamps that depends on it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from txl_ts.errors import StampError
from txl_ts.frames.slots import DAY_NS, Slots
from txl_ts.frames.words import counted
from txl_ts.frames.zones import instant_of, wall_of

IntArray = npt.NDArray[np.int64]

FIXED_UNITS = {"h": 3600 * 10**9, "min": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
"""Nanoseconds in each unit of a fixed frequency, longest first."""

WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")

_MAX_SEASON = 1440
_WORDS = {
    "h": "hour",
    "min": "minute",
    "s": "second",
    "ms": "millisecond",
    "us": "microsecond",
    "ns": "nanosecond",
    "D": "day",
    "W": "week",
    "B": "business day",
    "M": "month",
    "Q": "quarter",
    "Y": "year",
}
_MEAN_DAYS = {"D": 1.0, "W": 7.0, "B": 1.4, "M": 30.436875, "Q": 91.310625, "Y": 365.2425}
_PER_YEAR = {"W": 52, "M": 12, "Q": 4, "Y": 1}
_MONTHS_IN = {"M": 1, "Q": 3, "Y": 12}


@dataclass(frozen=True)
class Freq:
    """The step from one row to the next. Make one with :func:`parse_freq`; equal steps are equal objects.

    Stamps are int64 throughout: plain integers for ``kind="integer"``, else epoch nanoseconds (the instant in UTC where
    the time column has a zone, wall time where it has none). Nothing here needs the values of a series, so that a
    loaded model can count on from what it stored.

    Attributes
    ----------
    text : str
        Canonical alias, which :func:`parse_freq` reads back: ``"5min"``, ``"1h"``, ``"1D"``, ``"MS"``, ``"3"``,
        ``"~1h"``.
    kind : {"integer", "fixed", "calendar", "uneven"}
        Plain numbers, a fixed number of nanoseconds, or days and longer, which follow the wall clock of the zone; or no
        grid at all.
    step : int
        Numbers per row, nanoseconds per row, or calendar offsets per row; of uneven time the unit that distances are
        counted in.
    unit : str
        ``""`` for integers, uneven ones too, a unit of ``FIXED_UNITS``, or a calendar offset: ``"D"``, ``"W"``,
        ``"W-MON"``, ``"B"``, ``"MS"``, ``"ME"``, ``"QS-FEB"``, ``"mo"``, … An offset without an anchor takes its
        weekday or month from the first row of each series.

    Examples
    --------
    >>> from txl_ts.frames import parse_freq
    >>> freq = parse_freq("60T")
    >>> freq.text, freq.season, freq.duration(432)
    ('1h', 24, '18 days')
    """

    text: str
    kind: Literal["integer", "fixed", "calendar", "uneven"]
    step: int
    unit: str = ""

    @property
    def is_uneven(self) -> bool:
        """Whether rows come without a grid."""
        return self.kind == "uneven"

    @property
    def is_integer(self) -> bool:
        """Whether stamps are plain numbers."""
        return self.kind != "calendar" and not self.unit

    @property
    def family(self) -> str:
        """Calendar family of the unit: ``"D"``, ``"W"``, ``"B"``, ``"M"``, ``"Q"`` or ``"Y"``; ``""`` otherwise."""
        if self.kind != "calendar":
            return ""
        return {"mo": "M", "q": "Q", "y": "Y"}.get(self.unit, self.unit[0])

    @cached_property
    def season(self) -> int:
        """Rows in the usual season; 1 where there is none.

        Fixed steps: the longest of day, hour, minute and second that holds a whole number of rows between 2 and 1440
        (1h → 24, 5min → 288, 1min → 1440, 10s → 360, 1s → 60); a week for steps of whole days. Calendar steps: a week
        of days (7), a week of business days (5), else a year (W → 52, M → 12, Q → 4).
        """
        if self.kind == "fixed":
            return _fixed_season(self.step)
        if self.kind in ("integer", "uneven"):
            return 1
        if self.family == "D":
            return {1: 7, 7: 52}.get(self.step, 1)
        per_season = 5 if self.family == "B" else _PER_YEAR[self.family]
        return per_season // self.step if per_season % self.step == 0 else 1

    @property
    def nominal_ns(self) -> float:
        """Mean length of a step in nanoseconds (a month counts 30.44 days); NaN for integers."""
        if self.is_integer:
            return float("nan")
        return float(self.step) if self.kind in ("fixed", "uneven") else self.step * _MEAN_DAYS[self.family] * DAY_NS

    @property
    def per_hour(self) -> float:
        """Rows per hour (on average, for calendar steps); NaN for integers."""
        return FIXED_UNITS["h"] / self.nominal_ns

    @property
    def grid_name(self) -> str:
        """The step in words, for messages: ``"5-minute"``, ``"1-month"``, ``"3-unit"``."""
        if self.kind == "uneven":
            return "uneven"
        if self.kind == "integer":
            return f"{self.step}-unit"
        if self.kind == "calendar":
            return f"{self.step}-{_WORDS[self.family]}"
        return f"{self.step // FIXED_UNITS[self.unit]}-{_WORDS[self.unit]}"

    def duration(self, rows: int) -> str:
        """Say in the user's time how long a number of rows is.

        Examples
        --------
        >>> from txl_ts.frames import parse_freq
        >>> parse_freq("1h").duration(36), parse_freq("MS").duration(24), parse_freq(1).duration(432)
        ('36 h', '24 months', '432 rows')
        """
        if self.is_integer:
            return counted(rows, "row")
        if self.kind == "uneven":
            return f"about {human_ns(rows * self.step)}"
        if self.kind == "calendar":
            return counted(rows * self.step, _WORDS[self.family])
        return human_ns(rows * self.step)

    def shift(self, stamps: npt.ArrayLike, n: npt.ArrayLike, zone: str | None = None) -> IntArray:
        """Move stamps by whole rows.

        Parameters
        ----------
        stamps : int64 array of shape (N,)
            Stamps on the grid.
        n : int64 array, broadcast against ``stamps``
            Rows to move by; negative moves back.
        zone : str or None
            Zone whose wall clock calendar steps follow.

        Returns
        -------
        int64 array
            Stamps, in the units of the input.

        Raises
        ------
        StampError
            If a result lies beyond int64 (in the year 2262 for nanoseconds).
        """
        left, right = np.broadcast_arrays(np.asarray(stamps, dtype=np.int64), np.asarray(n, dtype=np.int64))
        shape, left, right = left.shape, left.ravel(), right.ravel()
        if self.kind != "calendar":
            _check_sum(left, right, self.step)
            moved: IntArray = left + right * self.step
            return moved.reshape(shape)
        wall = wall_of(left, zone)
        slot = self.slots.slot_of(wall)
        rest = wall - self.slots.start_of(slot)
        moved = instant_of(self.slots.point(slot + right * self.slots_per_step, rest), zone)
        return np.where(right == 0, left, moved).reshape(shape)  # a stamp stays on its own side of a clock change

    def count(self, origins: npt.ArrayLike, stamps: npt.ArrayLike, zone: str | None = None) -> IntArray:
        """Count the whole rows from each origin to each stamp, rounded down.

        The inverse of :meth:`shift`: ``shift(origins, count(origins, stamps))`` is the last grid stamp at or before
        ``stamps``.
        """
        start, stop = np.broadcast_arrays(np.asarray(origins, dtype=np.int64), np.asarray(stamps, dtype=np.int64))
        if self.kind != "calendar":
            whole: IntArray = (stop - start) // self.step
            return whole
        wall = wall_of(start, zone)
        slot = self.slots.slot_of(wall)
        rest = wall - self.slots.start_of(slot)
        return (self.slots.floor(wall_of(stop, zone), rest) - slot) // self.slots_per_step

    @cached_property
    def slots(self) -> Slots:
        """Calendar slots behind the unit; without an anchor, weeks are days and quarters months."""
        family, _, anchor = self.unit.partition("-")
        if family in {"D", "W", "B"}:
            if anchor:
                return Slots("week", anchor=WEEKDAYS.index(anchor))
            return Slots("business" if family == "B" else "day")
        months = _MONTHS_IN[self.family] if anchor else 1
        if family in {"mo", "q", "y"}:
            return Slots("month_day")
        month = MONTHS.index(anchor) if anchor else 0
        if family.endswith("S"):
            return Slots("month_start", months=months, anchor=month % months)
        return Slots("month_end", months=months, anchor=month % months)

    @cached_property
    def slots_per_step(self) -> int:
        """Slots from one row to the next."""
        if "-" in self.unit:
            return self.step
        return self.step * {"W": 7, "Q": 3, "Y": 12}.get(self.family, 1)


def human_ns(nanoseconds: int) -> str:
    """Write a length of time in the largest unit that fits: ``"18 days"``, ``"36 h"``, ``"61 s"``, ``"7.3 days"``."""
    units = {"day": DAY_NS, **FIXED_UNITS}
    for name, size in units.items():
        if nanoseconds % size == 0 and abs(nanoseconds) // size < 1000:
            return _in_units(nanoseconds // size, name)
    for name, size in units.items():
        if abs(nanoseconds) >= size:
            rounded = f"{nanoseconds / size:,.1f}".removesuffix(".0")
            return f"{rounded} days" if name == "day" else f"{rounded} {name}"
    return f"{nanoseconds} ns"


def _in_units(number: int, unit: str) -> str:
    return f"{number:,} {unit}" if unit in FIXED_UNITS else counted(number, unit)


def _fixed_season(step: int) -> int:
    if step % DAY_NS == 0:
        return 7 * DAY_NS // step if (7 * DAY_NS) % step == 0 else 1
    for period in (DAY_NS, FIXED_UNITS["h"], FIXED_UNITS["min"], FIXED_UNITS["s"]):
        if period % step == 0 and 2 <= period // step <= _MAX_SEASON:
            return period // step
    return 1


def _check_sum(stamps: IntArray, n: IntArray, step: int) -> None:
    if not stamps.size:
        return
    low = int(stamps.min()) + min(int(n.min()) * step, 0)
    high = int(stamps.max()) + max(int(n.max()) * step, 0)
    if low <= -(2**63) or high >= 2**63:
        raise StampError(
            "a stamp on the grid would lie beyond 64 bits (for nanoseconds: outside the years 1678 to 2262). "
            "Ask for a shorter horizon, or number the rows with integers and give freq=1."
        )
