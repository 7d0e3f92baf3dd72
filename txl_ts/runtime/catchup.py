"""Several rows of some streams at once: equally long pieces share a run of the graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.runtime.engine import Steps
from txl_ts.runtime.plan import Plan

# Rows of all lanes in one run: in chunks of 512 rows, a row costs 28 µs in runs of 2,048 rows.
_MOST_ROWS = 2048


@dataclass(eq=False)
class Walk:
    """One stream on its way.

    Attributes
    ----------
    plan : Plan
    outputs : list of array
        Forecasts by chunk, (T, h, C, Q) each.
    noted : list of array, or None
        Small tensors ``n_kept`` rows before the end, if the last piece is longer than that.
    """

    plan: Plan
    chunks: list[tuple[NDArray[np.float32], bool]]
    note_after: int
    outputs: list[NDArray[np.float32]] = field(default_factory=list)
    noted: list[NDArray[Any]] | None = None

    @property
    def tail(self) -> NDArray[np.float32]:
        """Rows of the last piece."""
        return self.plan.pieces[-1][0]


def walk_of(plan: Plan, *, longest: int, n_kept: int) -> Walk:
    """Cut the pieces of a plan into what one call takes; the last ``n_kept`` rows begin with a chunk of their own."""
    chunks: list[tuple[NDArray[np.float32], bool]] = []
    note_after = -1
    for number, (values, is_start) in enumerate(plan.pieces):
        is_last, end = number == len(plan.pieces) - 1, len(values)
        cut = end - n_kept if is_last and 0 < n_kept < end else 0
        for first, until in ((0, cut), (cut, end)):
            begins = range(first, until, longest)
            chunks += [(values[begin : min(begin + longest, until)], is_start and begin == 0) for begin in begins]
            if until == cut and cut:
                note_after = len(chunks) - 1
    return Walk(plan, chunks, note_after)


def run_walks(
    steps: Steps, walks: Sequence[Walk], state: list[NDArray[Any]], *, small: Sequence[int], width: int
) -> list[NDArray[Any]]:
    """Run all chunks and give the state after them; ``state`` is a copy that may be written."""
    contract = steps.contract
    for lanes, turn in _calls(walks, width=width):
        x = np.stack([walks[i].chunks[turn][0] for i in lanes])
        start = np.array([[walks[i].chunks[turn][1]] for i in lanes], np.int32)
        is_all = len(lanes) == len(walks)
        past = state if is_all else [array[lanes] for array in state]
        y, *after = steps.run(
            contract.layout.feed(x) | {"start": start} | dict(zip(contract.inputs, past, strict=True))
        )
        if is_all:
            state = list(after)
        else:
            for whole, part in zip(state, after, strict=True):
                whole[lanes] = part
        for place, i in enumerate(lanes):
            walks[i].outputs.append(y[place])
            if turn == walks[i].note_after:
                walks[i].noted = [after[k][place].copy() for k in small]
    return state


def _calls(walks: Sequence[Walk], *, width: int) -> Iterator[tuple[list[int], int]]:
    """Give the lanes of each run, and the number of their chunk: equally long ones go together."""
    for turn in range(max(len(walk.chunks) for walk in walks)):
        groups: dict[int, list[int]] = defaultdict(list)
        for i, walk in enumerate(walks):
            if turn < len(walk.chunks):
                groups[len(walk.chunks[turn][0])].append(i)
        for length, lanes in groups.items():
            n = max(1, min(width, _MOST_ROWS // length))
            for first in range(0, len(lanes), n):
                yield lanes[first : first + n], turn
