"""State of many streams, one lane each, in arrays that never move: a call may work on a lane where it lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.state import TensorSpec, state_nbytes

# Lanes of the first shelf; the pages of an array of zeros cost nothing until they are used.
_FIRST, _FIRST_BYTES = 64, 64 << 20
_LARGEST_SHELF = 4096

Lanes = NDArray[np.int64]


class Shelves:
    """Lanes that are taken and given back; when all are taken, another shelf is put up.

    Parameters
    ----------
    specs : sequence of TensorSpec
        Name, shape and dtype of one lane's tensors.
    """

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self._specs = tuple(specs)
        self.shelves: list[list[NDArray[Any]]] = []
        self._ends: list[int] = []
        self._free: list[int] = []
        self._is_sorted = True

    def put_up(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Put up a shelf whose lanes are all taken and hold ``arrays``, which it owns from now on."""
        if len(arrays[0]):
            self._ends.append(self.n_lanes + len(arrays[0]))
            self.shelves.append(list(arrays))

    @property
    def n_lanes(self) -> int:
        """Lanes that there are, taken or free."""
        return self._ends[-1] if self._ends else 0

    def take(self, n: int) -> Lanes:
        """Give ``n`` lanes that nobody has, lowest first, with any finite content."""
        while len(self._free) < n:
            self._another()
        if not self._is_sorted:
            self._free.sort(reverse=True)
            self._is_sorted = True
        taken = self._free[: -n - 1 : -1] if n else []
        del self._free[len(self._free) - n :]
        return np.array(taken, np.int64)

    def give_back(self, lanes: Sequence[int] | Lanes) -> None:
        """Let other streams have lanes, whatever is in them."""
        self._free.extend(int(lane) for lane in lanes)
        self._is_sorted = False

    def clear(self, lane: int) -> None:
        """Make a lane fresh."""
        for shelf, _, inside in self.by_shelf(np.array([lane])):
            for array in self.shelves[shelf]:
                array[inside] = 0

    def gather(self, lanes: Lanes) -> list[NDArray[Any]]:
        """Copy lanes out, in this order."""
        parts = [np.empty((len(lanes), *spec.shape), spec.dtype) for spec in self._specs]
        for index, part in enumerate(parts):
            self.gather_into(lanes, index, part)
        return parts

    def gather_into(self, lanes: Lanes, index: int, out: NDArray[Any]) -> None:
        """Copy one tensor of some lanes into ``out``."""
        for shelf, rows, inside in self.by_shelf(lanes):
            array = self.shelves[shelf][index]
            if rows is None:
                np.take(array, inside, axis=0, out=out, mode="clip")  # "raise" would copy twice
            else:
                out[rows] = array[inside]

    def scatter(self, lanes: Lanes, parts: Sequence[NDArray[Any]]) -> None:
        """Write lanes back."""
        for shelf, rows, inside in self.by_shelf(lanes):
            for array, part in zip(self.shelves[shelf], parts, strict=True):
                array[inside] = part if rows is None else part[rows]

    def span(self, lanes: Lanes) -> tuple[int, int] | None:
        """Give shelf and first place of lanes that lie side by side in this order; None if they do not."""
        n, first = len(lanes), int(lanes[0])
        if int(lanes[-1]) - first != n - 1 or (n > 2 and not (np.diff(lanes) == 1).all()):
            return None
        begin = 0
        for shelf, end in enumerate(self._ends):
            if first < end:
                return (shelf, first - begin) if first + n <= end else None
            begin = end
        return None

    def by_shelf(self, lanes: Lanes) -> Iterator[tuple[int, Any, Lanes]]:
        """Give each shelf, which of the lanes lie there (None: all), and where."""
        begin = 0
        for shelf, end in enumerate(self._ends):
            here = (lanes >= begin) & (lanes < end)
            if here.all():
                if len(lanes):
                    yield shelf, None, lanes - begin
                return
            if here.any():
                yield shelf, np.flatnonzero(here), lanes[here] - begin
            begin = end

    def _another(self) -> None:
        nbytes = max(1, state_nbytes(self._specs))
        least = max(1, min(_FIRST, _FIRST_BYTES // nbytes))
        n = min(max(least, self.n_lanes), max(least, _LARGEST_SHELF))
        begin = self.n_lanes
        self.shelves.append([np.zeros((n, *spec.shape), spec.dtype) for spec in self._specs])
        self._ends.append(begin + n)
        self._free[:0] = range(begin + n - 1, begin - 1, -1)
