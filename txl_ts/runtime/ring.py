"""What a row reads and writes of a stream's memory, so that a step need not copy all of it.

A memory tensor is a ring of ``stride · (mem_len + 1)`` slots. A row writes the slot that the counter names and looks at
those a whole number of strides before it; the other slots may hold anything finite. The slot that is written held a row
that no later one sees, so a step whose new counter is thrown away has changed nothing that matters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.runtime.contract import Contract


@dataclass(frozen=True)
class Ring:
    """Where the rings lie among the state tensors.

    Attributes
    ----------
    count : int
        Index of the counters (valid, phase) among the state tensors.
    axes : dict of int to int
        Index of each memory tensor, and its slot axis in an array with lanes.
    n_slots, stride : int
    """

    count: int
    axes: dict[int, int]
    n_slots: int
    stride: int

    def slots(self, count: NDArray[Any], start: NDArray[Any]) -> NDArray[np.int64]:
        """Give the slot that each lane's next row writes, from the counters (n, 2) and the start flags (n,)."""
        return np.where(start > 0, 0, count[:, 1]).astype(np.int64)

    def opened(self, index: int, array: NDArray[Any]) -> NDArray[Any]:
        """View a memory tensor as (lanes, before, slots, after)."""
        axis = self.axes[index]
        before = math.prod(array.shape[1:axis])
        return array.reshape(len(array), before, self.n_slots, -1)

    def visited(self, index: int, array: NDArray[Any]) -> NDArray[Any]:
        """View a memory tensor as (lanes, before, visits, phases, after)."""
        opened = self.opened(index, array)
        return opened.reshape(*opened.shape[:2], -1, self.stride, opened.shape[3])


def ring_of(contract: Contract) -> Ring | None:
    """Find the rings; None if the state is not laid out so, and is then copied whole."""
    n_slots = contract.stride * (contract.mem_len + 1)
    names = [spec.name for spec in contract.specs]
    if "count" not in names or contract.specs[names.index("count")].shape != (2,):
        return None
    axes = {}
    for i, (name, spec) in enumerate(zip(contract.inputs, contract.specs, strict=True)):
        if not (spec.name.startswith("mem") or name in contract.in_place):
            continue
        places = [axis for axis, size in enumerate(spec.shape, start=1) if size == n_slots]
        if len(spec.shape) - 1 in places:  # rows of numbers: the usual layout
            places = [len(spec.shape) - 1]
        if len(places) == 1:
            axes[i] = places[0]
    return Ring(names.index("count"), axes, n_slots, contract.stride) if axes else None
