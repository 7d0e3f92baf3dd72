"""Parity of a graph with any function ``(x, state) → (y, state)``, over the calls that streams make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import ExportError
from txl_ts.runtime.columns import Columns
from txl_ts.runtime.fleet import Fleet
from txl_ts.runtime.names import StreamName
from txl_ts.runtime.rows import Rows

State = dict[str, NDArray[Any]]
BATCHES = (1, 2, 7)


class Step(Protocol):
    """A model as a function of numpy arrays; what it returns may be anything that numpy reads."""

    def __call__(self, x: NDArray[np.float32], state: State, /) -> tuple[Any, Mapping[str, Any]]:
        """Give y (B, T, h, C, Q) and the new state for x (B, T, C) and the state."""
        ...


def verify(
    empty: Callable[[], Fleet],
    fn: Step,
    *,
    init: Callable[[int], Mapping[str, Any]] | None = None,
    bound: float = 1e-5,
    seed: int = 0,
) -> float:
    """Compare forecasts over chained calls, and give the worst error: largest difference over largest value.

    One, two and seven streams; one row per call, several, and more than the memory holds; missing values; a stream that
    is reset in mid-stream; names in another order at each call.

    Parameters
    ----------
    empty : callable
        Gives a fleet without streams.
    fn : callable (x, state) -> (y, state)
        Takes float32 (B, T, C) and a dict of arrays with lanes on axis 0; both are numpy arrays. A torch model is
        wrapped: ``lambda x, s: model(torch.from_numpy(x), {k: torch.from_numpy(v) for k, v in s.items()})``
        under ``torch.inference_mode()``.
    init : callable (n_lanes) -> state, optional
        The state of streams that have seen nothing; zeros in the graph's layout if it is left out.
    bound : float
        Largest error that will do.
    seed : int
        Of the rows.

    Raises
    ------
    ExportError
        If the error is larger, or one of both is NaN where the other is not.
    """
    worst = 0.0
    for n in BATCHES:
        rng = np.random.default_rng([seed, n])
        fleet = empty()
        fresh = init or _zeros(fleet)
        state = _arrays(fresh(n))
        for turn, length in enumerate(_lengths(fleet)):
            x = rng.normal(size=(n, length, len(fleet.contract.channels))).cumsum(1).astype(np.float32)
            x[rng.random(x.shape) < 0.1] = np.nan
            if turn == 4:
                lane = int(rng.integers(n))
                fleet.reset(lane)
                for name, array in _arrays(fresh(1)).items():
                    state[name][lane] = array[0]
            order = rng.permutation(n)
            mine = _stepped(fleet, order.tolist(), x)
            theirs, after = fn(x, state)
            state = _arrays(after)
            wanted = np.asarray(theirs)
            worst = max(worst, _error(mine, wanted, f"{n} streams, call {turn} of {length} rows, seed {seed}"))
            if worst > bound:
                raise ExportError(
                    f"the graph's forecasts differ from the function's by {worst:.1e} of the largest value, more than "
                    f"{bound:.1e} ({n} streams, call {turn} of {length} rows, seed {seed}). "
                    "Is it the same model, in evaluation mode? Then export it again."
                )
    return worst


def _lengths(fleet: Fleet) -> list[int]:
    contract = fleet.contract
    beyond = min(contract.stride * (contract.mem_len + 1) + 7, 4 * contract.longest)
    return [1, 1, 3, beyond, 1, 1, 5, 1]


def _stepped(fleet: Fleet, order: list[int], x: NDArray[np.float32]) -> NDArray[np.float32]:
    n, length = x.shape[:2]
    names: list[StreamName] = list(order)
    odd = {i: Rows(x[lane], None) for i, lane in enumerate(order)} if length > 1 else {}
    answer = fleet.take(Columns(names, x[order, -1], np.zeros(n, np.int64), np.zeros(n, bool), odd))
    out = np.empty((n, length, *answer.y.shape[1:]), np.float32)
    for i, lane in enumerate(order):
        out[lane] = answer.several[i] if odd else answer.y[i][None]
    return out


def _error(mine: NDArray[np.float32], wanted: NDArray[Any], where: str) -> float:
    if mine.shape != wanted.shape:
        raise ExportError(f"the function gives y of shape {wanted.shape}, the graph {mine.shape} ({where}).")
    if not np.array_equal(np.isnan(mine), np.isnan(wanted)):
        raise ExportError(f"the graph and the function give NaN at different places ({where}).")
    known = ~np.isnan(mine)
    if not known.any():
        return 0.0
    scale = float(np.abs(wanted[known]).max())
    return float(np.abs(mine[known] - wanted[known]).max()) / (scale or 1.0)


def _zeros(fleet: Fleet) -> Callable[[int], State]:
    specs = fleet.contract.specs
    return lambda n: {spec.name: np.zeros((n, *spec.shape), spec.dtype) for spec in specs}


def _arrays(state: Mapping[str, Any]) -> State:
    return {name: np.asarray(value).copy() for name, value in state.items()}
