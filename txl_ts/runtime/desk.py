"""One row of each of some lanes, through buffers that are bound to the graph once.

Lanes that lie side by side are read where they are. Others are laid side by side first, and of their memories only the
slots that a row looks at. What a call writes is held back in a :class:`Pending` until the whole of it has gone well.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.runtime.engine import Steps, bound
from txl_ts.runtime.lanes import Lanes, Shelves
from txl_ts.runtime.ring import Ring

# Bound calls that are kept for lanes that lie side by side.
_MOST_BOUND = 1024


@dataclass(frozen=True)
class Manner:
    """How one graph is stepped row by row.

    Attributes
    ----------
    steps : Steps
    ring : Ring or None
        Where memories are rings; None copies them whole.
    in_place : frozenset of int
        State tensors that are written into the buffer that they are read from; all of them rings.
    """

    steps: Steps
    ring: Ring | None = None
    in_place: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class Pending:
    """What a call will write: whole small tensors, and one slot of each ring."""

    lanes: Lanes
    whole: dict[int, NDArray[Any]]
    slots: NDArray[np.int64]
    written: dict[int, NDArray[Any]]

    def commit(self, store: Shelves, ring: Ring | None) -> None:
        """Write it."""
        for shelf, rows, inside in store.by_shelf(self.lanes):
            arrays = store.shelves[shelf]
            for index, part in self.whole.items():
                arrays[index][inside] = part if rows is None else part[rows]
            for index, part in self.written.items():
                assert ring is not None
                slots = self.slots if rows is None else self.slots[rows]
                ring.opened(index, arrays[index])[inside, :, slots] = part if rows is None else part[rows]


@dataclass(frozen=True, eq=False)
class _One:
    """One row of one lane, bound: pairs of arrays say what is copied where after it."""

    call: Callable[[], None]
    count: NDArray[np.int32] | None
    whole: list[tuple[NDArray[Any], NDArray[Any]]]
    rings: list[tuple[NDArray[Any], NDArray[Any]]]


class Desk:
    """Buffers for one call at a time; threads take one each.

    Parameters
    ----------
    manner : Manner
    width : int
        Most lanes of a call.
    """

    def __init__(self, manner: Manner, *, width: int) -> None:
        contract = manner.steps.contract
        self.manner, self.contract, self.width = manner, contract, width
        self._layout = contract.layout
        self._inputs = contract.layout.buffers(width)
        self._x = self._inputs["x"]
        self._start = np.zeros((width, 1), np.int32)
        self._y = np.zeros((width, 1, *contract.answer_shape), np.float32)
        self._past = [np.zeros((width, *spec.shape), spec.dtype) for spec in contract.specs]
        self._present = [
            self._past[i] if i in manner.in_place else np.zeros((width, *spec.shape), spec.dtype)
            for i, spec in enumerate(contract.specs)
        ]
        self._ones: dict[int, _One] = {}
        self._staged: dict[int, Callable[[], None]] = {}
        self._direct: OrderedDict[tuple[int, int, int], Callable[[], None]] = OrderedDict()

    def row(
        self,
        store: Shelves,
        lanes: Lanes,
        x: NDArray[np.float32],
        start: NDArray[np.int32],
        *,
        is_anew: bool,
        y: NDArray[np.float32],
    ) -> Pending:
        """Run one row of each lane.

        Parameters
        ----------
        store : Shelves
        lanes : int64 array of shape (n,)
        x : float32 array of shape (n, W)
            As the contract's layout has them.
        start : int32 array of shape (n,)
        is_anew : bool
            True if a lane starts whose rows are still needed should the call fail.
        y : float32 array of shape (n, h, C, Q)
            Is filled.

        Returns
        -------
        Pending
            To be committed.
        """
        n, ring, place = len(lanes), self.manner.ring, store.span(lanes)
        self._start[:n, 0] = start
        self._write(n, x)
        is_direct = place is not None and not (is_anew and self.manner.in_place)
        if is_direct and place is not None:
            self._run_direct(store, place, n)
        else:
            self._run_staged(store, lanes)
        y[...] = self._y[:n, 0]
        rings = () if ring is None else ring.axes
        whole = {i: array[:n].copy() for i, array in enumerate(self._present) if i not in rings}
        if ring is None:
            return Pending(lanes, whole, np.zeros(0, np.int64), {})
        slots, order = self._slots[:n], np.arange(n)
        already = self.manner.in_place if is_direct else ()  # these lie where they belong
        written = {i: ring.opened(i, self._present[i][:n])[order, :, slots] for i in ring.axes if i not in already}
        return Pending(lanes, whole, slots, written)

    def one(self, store: Shelves, lane: int, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Run one row (W,) of a stream in full swing, write what it changes, and give y (h, C, Q)."""
        one = self._ones.get(lane)
        if one is None:
            one = self._ones[lane] = self._one(store, lane)
            if len(self._ones) > _MOST_BOUND:
                self._ones.pop(next(iter(self._ones)))
        self._start[0, 0] = 0
        self._write(1, x[None])
        one.call()
        slot = 0 if one.count is None else int(one.count[1])
        for there, here in one.rings:
            there[:, slot] = here[:, slot]
        for there, here in one.whole:  # the counters among them: last
            there[...] = here
        return self._y[0, 0].copy()

    def _write(self, n: int, rows: NDArray[np.float32]) -> None:
        if self._layout.is_plain:
            self._x[:n, 0] = rows
        else:
            self._layout.write(self._inputs, n, rows)

    def _one(self, store: Shelves, lane: int) -> _One:
        ring, in_place = self.manner.ring, self.manner.in_place
        shelf, first = store.span(np.array([lane])) or (0, 0)
        arrays = [array[first : first + 1] for array in store.shelves[shelf]]
        outputs = [arrays[i] if i in in_place else a[:1] for i, a in enumerate(self._present)]
        rings = () if ring is None else tuple(ring.axes)
        return _One(
            call=self._bound(1, arrays, outputs),
            count=None if ring is None else arrays[ring.count][0],
            whole=[(arrays[i], outputs[i]) for i in range(len(arrays)) if i not in rings],
            rings=[
                (ring.opened(i, arrays[i])[0], ring.opened(i, outputs[i])[0])
                for i in rings
                if ring is not None and i not in in_place
            ],
        )

    def _run_direct(self, store: Shelves, place: tuple[int, int], n: int) -> None:
        shelf, first = place
        arrays = [array[first : first + n] for array in store.shelves[shelf]]
        self._note_slots(arrays, n)
        call = self._direct.get((shelf, first, n))
        if call is None:
            outputs = [arrays[i] if i in self.manner.in_place else a[:n] for i, a in enumerate(self._present)]
            call = self._direct[shelf, first, n] = self._bound(n, arrays, outputs)
            if len(self._direct) > _MOST_BOUND:
                self._direct.popitem(last=False)
        else:
            self._direct.move_to_end((shelf, first, n))
        call()

    def _run_staged(self, store: Shelves, lanes: Lanes) -> None:
        n, ring = len(lanes), self.manner.ring
        rings = () if ring is None else ring.axes
        for i, past in enumerate(self._past):
            if i not in rings:
                store.gather_into(lanes, i, past[:n])
        self._note_slots(self._past, n)
        for i in rings:
            assert ring is not None
            if ring.stride == 1:
                store.gather_into(lanes, i, self._past[i][:n])
                continue
            phases = self._slots[:n] % ring.stride
            past = ring.visited(i, self._past[i])
            for shelf, rows, inside in store.by_shelf(lanes):
                rows = np.arange(n) if rows is None else rows
                phase = phases[rows]
                past[rows, :, :, phase] = ring.visited(i, store.shelves[shelf][i])[inside, :, :, phase]
        call = self._staged.get(n)
        if call is None:
            call = self._staged[n] = self._bound(n, self._past, self._present)
        call()

    def _note_slots(self, past: list[NDArray[Any]], n: int) -> None:
        if self.manner.ring is not None:
            self._slots = self.manner.ring.slots(past[self.manner.ring.count][:n], self._start[:n, 0])

    def _bound(self, n: int, past: list[NDArray[Any]], present: list[NDArray[Any]]) -> Callable[[], None]:
        inputs: dict[str, NDArray[Any]] = {name: array[:n] for name, array in self._inputs.items()}
        inputs["start"] = self._start[:n]
        inputs |= {name: array[:n] for name, array in zip(self.contract.inputs, past, strict=True)}
        outputs = {"y": self._y[:n]}
        outputs |= {name: array[:n] for name, array in zip(self.contract.outputs, present, strict=True)}
        return bound(self.manner.steps, inputs, outputs)
