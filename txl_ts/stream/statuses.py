"""What stands beside every number: the statuses of a row, and which of several is said."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

OK: Final = "ok"
WARMING_UP: Final = "warming_up"
MISSING: Final = "missing"
STALE: Final = "stale"
STUCK: Final = "stuck"
GAP_BRIDGED: Final = "gap_bridged"
RESET: Final = "reset"
LATE_DROPPED: Final = "late_dropped"
DUPLICATE: Final = "duplicate"
CLOCK_BACK: Final = "clock_back"
CLOCK_AHEAD: Final = "clock_ahead"
OUT_OF_RANGE: Final = "out_of_range"
UNIT_SUSPECT: Final = "unit_suspect"
DRIFT: Final = "drift"

REFUSED: Final = (CLOCK_AHEAD, CLOCK_BACK, LATE_DROPPED, DUPLICATE)
"""Statuses of readings that were not taken in; the most telling first."""

_BY_WEIGHT = (
    *REFUSED,
    RESET,
    STALE,
    UNIT_SUSPECT,
    OUT_OF_RANGE,
    STUCK,
    MISSING,
    GAP_BRIDGED,
    DRIFT,
    WARMING_UP,
    OK,
)
STATUSES: Final = tuple(reversed(_BY_WEIGHT))
"""All of them, from "ok" to the heaviest."""

_WEIGHT = {status: weight for weight, status in enumerate(STATUSES)}


def heaviest(statuses: Iterable[str]) -> str:
    """Give the status that a row with several of them shows; ``"ok"`` if there is none.

    Examples
    --------
    >>> heaviest(["ok", "stale", "missing"])
    'stale'
    """
    return max(statuses, key=_WEIGHT.__getitem__, default=OK)
