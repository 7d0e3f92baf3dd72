"""Calendar offsets as numbered slots on the wall clock: days, weeks, business days and months without a loop.

Every rule numbers its slots with integers and knows where each starts, so that a calendar step is an addition and the
number of steps between two stamps a subtraction.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from txl_ts.errors import StampError

IntArray = npt.NDArray[np.int64]

DAY_NS = 86_400 * 10**9
_LAST_DAY = 2**63 // DAY_NS - 1
_LAST_MONTH = 3506  # 2262-03: the last whole month that int64 nanoseconds reach
_MONDAY = 3  # 1970-01-01 was a Thursday, three days after a Monday

Rule = Literal["day", "week", "business", "month_start", "month_end", "month_day"]


@dataclass(frozen=True)
class Slots:
    """One way to divide wall time.

    Attributes
    ----------
    rule : str
        ``"day"``; ``"week"`` from a fixed weekday; ``"business"`` (Monday to Friday); ``"month_start"`` and
        ``"month_end"`` on the first and last day of a month; ``"month_day"`` on any day of the month, brought back to
        the last one where the month is shorter.
    months : int
        Months in a slot (3 for anchored quarters, 12 for anchored years).
    anchor : int
        Weekday (0 is Monday) for weeks; first month (0 is January) modulo ``months`` for months.
    """

    rule: Rule
    months: int = 1
    anchor: int = 0

    def slot_of(self, wall: IntArray) -> IntArray:
        """Number of the last slot that starts at or before each wall time."""
        if self.rule == "day":
            return wall // DAY_NS
        if self.rule == "week":
            return (wall // DAY_NS + _MONDAY - self.anchor) // 7
        if self.rule == "business":
            days = wall // DAY_NS + _MONDAY
            return days // 7 * 5 + np.minimum(days % 7, 4)
        slot = (_month_of(wall) - self.anchor) // self.months
        if self.rule == "month_end":  # the last slot may have its end still to come
            slot = slot - (self.start_of(slot) > wall)
        return slot

    def start_of(self, slot: IntArray) -> IntArray:
        """Wall time at which each slot starts: midnight of its day."""
        if self.rule == "day":
            return _day_start(slot)
        if self.rule == "week":
            return _day_start(slot * 7 - _MONDAY + self.anchor)
        if self.rule == "business":
            return _day_start(slot // 5 * 7 + slot % 5 - _MONDAY)
        month = slot * self.months + self.anchor
        return _month_start(month + 1) - DAY_NS if self.rule == "month_end" else _month_start(month)

    def point(self, slot: IntArray, rest: IntArray) -> IntArray:
        """Wall time that lies ``rest`` nanoseconds after the start of each slot."""
        start = self.start_of(slot)
        if self.rule == "month_day":
            last_day = _month_start(slot + 1) - DAY_NS - start
            rest = np.minimum(rest, last_day + rest % DAY_NS)
        return start + rest

    def floor(self, wall: IntArray, rest: IntArray) -> IntArray:
        """Number of the last slot whose point is at or before each wall time."""
        slot = self.slot_of(wall)
        return slot - (self.point(slot, rest) > wall)


def _day_start(days: IntArray) -> IntArray:
    _check_range(days, _LAST_DAY)
    return days * DAY_NS


def _month_of(wall: IntArray) -> IntArray:
    return np.ascontiguousarray(wall).view("datetime64[ns]").astype("datetime64[M]").view(np.int64)


def _month_start(months: IntArray) -> IntArray:
    _check_range(months, _LAST_MONTH)
    return np.ascontiguousarray(months).view("datetime64[M]").astype("datetime64[ns]").view(np.int64)


def _check_range(numbers: IntArray, last: int) -> None:
    if numbers.size and (int(numbers.max()) > last or int(numbers.min()) < -last):
        raise StampError(
            "a stamp on the calendar grid would lie outside the years 1678 to 2262 that nanoseconds reach. "
            "Ask for a shorter horizon, or number the rows with integers and give freq=1."
        )
