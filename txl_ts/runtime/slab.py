"""State of many streams in one array per tensor, so that any of them are gathered for a call and scattered back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.state import TensorSpec

_FIRST = 8


class Slab:
    """Lanes that are taken and given back; an array grows to twice its size when all are taken.

    Parameters
    ----------
    specs : sequence of TensorSpec
        Name, shape and dtype of one lane's tensors.
    n_lanes : int
        Lanes that there is room for at first.
    """

    def __init__(self, specs: Sequence[TensorSpec], *, n_lanes: int = _FIRST) -> None:
        self._arrays = [np.zeros((n_lanes, *spec.shape), spec.dtype) for spec in specs]
        self._free = list(range(n_lanes - 1, -1, -1))

    @classmethod
    def of(cls, specs: Sequence[TensorSpec], arrays: Sequence[NDArray[Any]]) -> Slab:
        """Make a slab whose first lanes are taken and hold ``arrays``, which it owns from now on."""
        slab = cls(specs, n_lanes=0)
        slab._arrays = list(arrays)
        return slab

    def take(self, n: int) -> list[int]:
        """Give ``n`` lanes that nobody has, with any content."""
        while len(self._free) < n:
            self._grow()
        return [self._free.pop() for _ in range(n)]

    def give_back(self, lane: int) -> None:
        """Let another stream have a lane, whatever is in it."""
        self._free.append(lane)

    def clear(self, lane: int) -> None:
        """Make a lane fresh."""
        for array in self._arrays:
            array[lane] = 0

    def gather(self, lanes: Sequence[int]) -> list[NDArray[Any]]:
        """Copy lanes out, in this order."""
        index = np.array(lanes, np.int64)
        return [array[index] for array in self._arrays]

    def scatter(self, lanes: Sequence[int], parts: Sequence[NDArray[Any]]) -> None:
        """Write lanes back."""
        index = np.array(lanes, np.int64)
        for array, part in zip(self._arrays, parts, strict=True):
            array[index] = part

    def _grow(self) -> None:
        n = len(self._arrays[0])
        size = max(_FIRST, 2 * n)
        grown = [np.zeros((size, *array.shape[1:]), array.dtype) for array in self._arrays]
        for array, old in zip(grown, self._arrays, strict=True):
            array[:n] = old
        self._arrays = grown
        self._free[:0] = range(size - 1, n - 1, -1)
