"""How a graph may be stepped, tried out when a session opens: what saves copies must not change a bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.runtime.desk import Desk, Manner
from txl_ts.runtime.engine import Engine, Steps
from txl_ts.runtime.lanes import Shelves
from txl_ts.runtime.ring import ring_of
from txl_ts.runtime.warned import warn

_ROWS = 6


def manner_of(steps: Steps, *, where: str) -> Manner:
    """Give the fastest manner that agrees with plain calls, bit for bit, over a few rows of made-up streams.

    Warns
    -----
    TxlWarning
        If the contract allows buffers to be shared, and the numbers then differ.
    """
    contract, ring = steps.contract, ring_of(steps.contract)
    if ring is None:
        return Manner(steps)
    shared = frozenset(i for i in ring.axes if contract.inputs[i] in contract.in_place)
    is_host = isinstance(steps, Engine) and steps.device == "cpu"
    if shared and is_host:
        manner = Manner(steps, ring, shared)
        if _agrees(manner):
            return manner
        warn(
            f"{where}: written in place, {', '.join(contract.in_place)[:80]} differ from a copying run, so memories "
            "are copied: slower, and right. Export the model again, or use another version of onnxruntime.",
        )
    manner = Manner(steps, ring)
    return manner if _agrees(manner) else Manner(steps)


def _agrees(manner: Manner) -> bool:
    """Chain rows side by side and out of order, with a gap, a restart and a call that is thrown away."""
    contract, rng = manner.steps.contract, np.random.default_rng(0)
    n = contract.fixed[0] if contract.fixed else 2
    state = _made_up(manner.steps, rng, n)
    store = Shelves(contract.specs)
    lanes = store.take(n)
    store.scatter(lanes, state)
    desk = Desk(manner, width=n)
    shape = (n, *contract.answer_shape)
    y, thrown = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for turn in range(_ROWS):
        x = rng.normal(size=(n, contract.layout.width)).astype(np.float32)
        x[0, 0] = np.nan if turn == 1 else x[0, 0]
        start = np.zeros(n, np.int32)
        start[-1] = turn == 3
        if turn != 3:
            desk.row(store, lanes, -x, np.zeros(n, np.int32), is_anew=False, y=thrown)  # not committed
        # Last lanes first, they do not lie side by side and are staged.
        order = np.arange(n)[:: -1 if turn % 2 else 1].copy()
        pending = desk.row(store, lanes[order], x[order], start[order], is_anew=bool(start.any()), y=y)
        pending.commit(store, manner.ring)
        feed: dict[str, NDArray[Any]] = contract.layout.feed(x[order, None]) | {"start": start[order, None]}
        feed |= {name: array[order] for name, array in zip(contract.inputs, state, strict=True)}
        wanted, *after = manner.steps.run(feed)
        state = [array[order] for array in after]  # the order is its own inverse
        kept = store.gather(lanes)
        if not np.array_equal(y, wanted[:, 0], equal_nan=True) or not all(map(np.array_equal, kept, state)):
            return False
    return True


def _made_up(steps: Steps, rng: np.random.Generator, n: int) -> list[NDArray[Any]]:
    """Streams in full swing: memories of noise, counters near their wrap, small tensors as rows leave them."""
    contract, ring = steps.contract, ring_of(steps.contract)
    assert ring is not None
    state: list[NDArray[Any]] = [np.zeros((n, *spec.shape), spec.dtype) for spec in contract.specs]
    for _ in range(3):
        feed: dict[str, NDArray[Any]] = {}
        feed |= contract.layout.feed(rng.normal(size=(n, 1, contract.layout.width)).astype(np.float32))
        feed |= {"start": np.zeros((n, 1), np.int32)} | dict(zip(contract.inputs, state, strict=True))
        state = list(steps.run(feed))[1:]
    for i in ring.axes:
        state[i] = rng.normal(size=state[i].shape).astype(np.float32)
    phases = [(ring.n_slots - 2 - 5 * lane) % ring.n_slots for lane in range(n)]
    state[ring.count] = np.array([[ring.n_slots, phase] for phase in phases], np.int32)
    return state
