"""Where many streams stand in time, as columns by lane."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from txl_ts.runtime.lanes import Lanes
from txl_ts.runtime.plan import Place

_T = TypeVar("_T", bound=np.generic)


class Table:
    """Counters and stamps by lane.

    Attributes
    ----------
    n_rows : int64 array
        Rows of the grid since the stream began.
    origin, last : int64 array
        Native stamps of the first and the last row, where ``timed``.
    timed : bool array
    used : int64 array
        Number of the call that used the lane last.
    low, high : float32 array of shape (lanes, C)
        Outer quantiles that were forecast for the next row; NaN if there are none.
    static : float32 array of shape (lanes, S)
        What is static of the streams, where ``described``.
    described : bool array
    """

    def __init__(self, *, n_channels: int, n_static: int = 0) -> None:
        self.n_rows = np.zeros(0, np.int64)
        self.origin = np.zeros(0, np.int64)
        self.last = np.zeros(0, np.int64)
        self.timed = np.zeros(0, bool)
        self.used = np.zeros(0, np.int64)
        self.low = np.zeros((0, n_channels), np.float32)
        self.high = np.zeros((0, n_channels), np.float32)
        self.static = np.zeros((0, n_static), np.float32)
        self.described = np.zeros(0, bool)

    def make_room(self, n: int) -> None:
        """Let there be at least ``n`` lanes."""
        for name, array in vars(self).items():
            if len(array) < n:
                setattr(self, name, grown(array, n))

    def place(self, lane: int) -> Place:
        """Say where one lane stands."""
        static = tuple(self.static[lane].tolist()) if self.described[lane] else None
        if not self.timed[lane]:
            return Place(int(self.n_rows[lane]), static=static)
        return Place(int(self.n_rows[lane]), int(self.origin[lane]), int(self.last[lane]), static)

    def put(self, lane: int, place: Place) -> None:
        """Let one lane stand elsewhere; what was forecast for it is forgotten."""
        self.n_rows[lane], self.timed[lane] = place.n_rows, place.last is not None
        self.origin[lane], self.last[lane] = place.origin or 0, place.last or 0
        self.low[lane] = self.high[lane] = np.nan
        self.described[lane] = place.static is not None
        if place.static is not None:
            self.static[lane] = place.static

    def puts(self, lanes: Lanes, places: list[Place]) -> None:
        """Let lanes stand elsewhere."""
        for lane, place in zip(lanes.tolist(), places, strict=True):
            self.put(lane, place)


def grown(array: NDArray[_T], n: int) -> NDArray[_T]:
    """Give an array with room for at least ``n`` lanes, and for as many again as there were."""
    out = np.zeros((max(n, 2 * len(array)), *array.shape[1:]), array.dtype)
    out[: len(array)] = array
    return out
