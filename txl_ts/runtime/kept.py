"""The last raw rows of each stream, and its small state tensors before them: a memory can be rebuilt from these.

A memory is a function of the rows in its reach and of the small tensors (normaliser, row window) before the first of
them. Rows are kept from a *base* on. Once as many have come as the reach is long, the small tensors are noted a second
time; and when as many have come again, that second note becomes the base, and the rows before it go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.runtime.lanes import Lanes
from txl_ts.runtime.table import grown
from txl_ts.state import TensorSpec

Small = list[NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Record:
    """One stream without its memory.

    Attributes
    ----------
    base : list of array
        Small tensors before the first of ``rows``.
    rows : float32 array of shape (n, C)
    now : list of array
        Small tensors after the last of ``rows``.
    second : list of array, or None
        The second note: small tensors after ``second_at`` of the rows. None: there was none yet, or an older file has
        left it out.
    second_at : int
    """

    base: Small
    rows: NDArray[np.float32]
    now: Small
    second: Small | None = None
    second_at: int = 0


class Kept:
    """Rows and bases by lane.

    Parameters
    ----------
    specs : sequence of TensorSpec
        The small tensors.
    n_channels : int
    n_rows : int
        Rows that a memory depends on.
    """

    def __init__(self, specs: list[TensorSpec], *, n_channels: int, n_rows: int) -> None:
        self.n_needed = self._step = max(n_rows, 1)  # without a memory, the tensors before the last row
        self.rows = np.zeros((0, 4 * self._step, n_channels), np.float32)
        self.n = np.zeros(0, np.int64)  # rows since the base
        self._second_at = np.zeros(0, np.int64)  # rows between the base and the second note; 0: there is none
        self.is_whole = np.zeros(0, bool)  # the base is the stream's beginning
        self._base = [np.zeros((0, *spec.shape), spec.dtype) for spec in specs]
        self._second = [np.zeros((0, *spec.shape), spec.dtype) for spec in specs]

    def make_room(self, n: int) -> None:
        """Let there be at least ``n`` lanes."""
        if len(self.n) >= n:
            return
        self.rows = grown(self.rows, n)
        self.n, self._second_at = grown(self.n, n), grown(self._second_at, n)
        self.is_whole = grown(self.is_whole, n)
        self._base, self._second = [grown(a, n) for a in self._base], [grown(a, n) for a in self._second]

    def begin(self, lanes: Lanes, small: Small | None = None) -> None:
        """Let the base be here: the beginning of streams, or ``small``."""
        self.n[lanes] = self._second_at[lanes] = 0
        self.is_whole[lanes] = small is None
        for i, array in enumerate(self._base):
            array[lanes] = 0 if small is None else small[i]

    def add(self, lanes: Lanes, rows: NDArray[np.float32], small: Callable[[Lanes], Small]) -> None:
        """Take in T rows (n, T, C) of each lane, T no longer than the reach; ``small`` gives the tensors after them."""
        # Where a record came without its second note, that was noted late: there would be no room up to the next one.
        if (is_full := self.n[lanes] + rows.shape[1] > self.rows.shape[1]).any():
            self._go_on(lanes[is_full])
        n, step = self.n[lanes], self._step
        for t in range(rows.shape[1]):
            self.rows[lanes, n + t] = rows[:, t]
        n = n + rows.shape[1]
        self.n[lanes] = n
        second = self._second_at[lanes]
        is_first = (second == 0) & (n >= step)
        is_due = (second > 0) & (n - second >= step)
        if is_due.any():
            self._go_on(lanes[is_due])
        if (noting := is_first | is_due).any():
            mine = lanes[noting]
            for noted, part in zip(self._second, small(mine), strict=True):
                noted[mine] = part
            self._second_at[mine] = self.n[mine]

    def _go_on(self, lanes: Lanes) -> None:
        """Let the second note be the base."""
        for lane, past in zip(lanes.tolist(), self._second_at[lanes].tolist(), strict=True):
            left = int(self.n[lane]) - past
            self.rows[lane, :left] = self.rows[lane, past : past + left]
            self.n[lane] = left
        for base, noted in zip(self._base, self._second, strict=True):
            base[lanes] = noted[lanes]
        self._second_at[lanes], self.is_whole[lanes] = 0, False

    def add_one(self, lane: int, row: NDArray[np.float32], small: Callable[[Lanes], Small]) -> None:
        """Take in one row (C,) of one lane."""
        n, second = int(self.n[lane]), int(self._second_at[lane])
        if n + 1 - second >= self._step or n == self.rows.shape[1]:
            self.add(np.array([lane]), row[None, None], small)
            return
        self.rows[lane, n] = row
        self.n[lane] = n + 1

    def is_enough(self, lanes: Lanes) -> NDArray[np.bool_]:
        """Tell for which lanes the kept rows give the whole memory."""
        return self.is_whole[lanes] | (self.n[lanes] >= self.n_needed)

    def record(self, lane: int, now: Small) -> Record:
        """Copy one lane out; ``now`` are its small tensors."""
        base, second_at = [array[lane].copy() for array in self._base], int(self._second_at[lane])
        second = [array[lane].copy() for array in self._second] if second_at else None
        return Record(base, self.rows[lane, : self.n[lane]].copy(), now, second, second_at)

    def put(self, lane: int, record: Record, *, is_whole: bool) -> None:
        """Take a record in."""
        n = len(record.rows)
        self.rows[lane, :n] = record.rows
        self.n[lane], self.is_whole[lane] = n, is_whole
        for array, part in zip(self._base, record.base, strict=True):
            array[lane] = part
        second, at = record.second, record.second_at
        if second is None:  # a lane that has come so far needs one
            second, at = record.now, n if n >= self._step else 0
        for array, part in zip(self._second, second, strict=True):
            array[lane] = part
        self._second_at[lane] = at

    def copy(self, lane: int, to: int) -> None:
        """Let another lane have the same."""
        self.rows[to], self.n[to], self.is_whole[to] = self.rows[lane], self.n[lane], self.is_whole[lane]
        self._second_at[to] = self._second_at[lane]
        for array in (*self._base, *self._second):
            array[to] = array[lane]
