"""Parity of a graph with any function ``(x, state) → (y, state)``, over the calls that streams make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import ExportError
from txl_ts.runtime.columns import Columns
from txl_ts.runtime.contract import Contract
from txl_ts.runtime.fleet import Fleet
from txl_ts.runtime.names import LaneName
from txl_ts.runtime.plan import completed
from txl_ts.runtime.rows import Rows

State = dict[str, NDArray[Any]]
BATCHES = (1, 2, 7)


def verify(
    empty: Callable[[], Fleet],
    fn: Callable[..., tuple[Any, Mapping[str, Any]]],
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
        Takes float32 (B, T, C) and a dict of arrays with lanes on axis 0; both are numpy arrays. Where the graph has
        inputs beside the channels, a third argument is a dict of these. A torch model is
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
        contract, row = fleet.contract, 1
        static: Any = [tuple(one) for one in rng.normal(size=(n, len(contract.layout.static))).tolist()]
        fresh = init or _zeros(fleet)
        state = _arrays(fresh(n))
        for turn, length in enumerate(_lengths(fleet)):
            x = rng.normal(size=(n, length, contract.layout.width)).cumsum(1).astype(np.float32)
            x[rng.random(x.shape) < 0.1] = np.nan
            if turn == 4:
                lane = int(rng.integers(n))
                fleet.reset(lane)
                for name, array in _arrays(fresh(1)).items():
                    state[name][lane] = array[0]
            order = rng.permutation(n)
            stamps = None if contract.clock is None else [(row + i) * (contract.step or 0) for i in range(length)]
            rows = [Rows(x[lane], stamps, static[lane] if contract.layout.static else None) for lane in range(n)]
            row += length
            mine = _stepped(fleet, order.tolist(), rows)
            theirs, after = _called(fn, rows, state, contract)
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


def _stepped(fleet: Fleet, order: list[int], rows: list[Rows]) -> NDArray[np.float32]:
    n, length = len(rows), len(rows[0].values)
    names: list[LaneName] = list(order)
    is_one = length == 1
    last = np.stack([rows[lane].values[-1] for lane in order])
    when = [(rows[lane].stamps or [0])[-1] for lane in order]
    timed = np.array([rows[lane].stamps is not None for lane in order])
    odd = {} if is_one else {i: rows[lane] for i, lane in enumerate(order)}
    static = {i: one for i, lane in enumerate(order) if (one := rows[lane].static) is not None}
    answer = fleet.take(Columns(names, last, np.array(when, np.int64), timed, odd, static))
    out = np.empty((n, length, *answer.y.shape[1:]), np.float32)
    for i, lane in enumerate(order):
        out[lane] = answer.y[i][None] if is_one else answer.several[i]
    return out


def _called(fn: Any, rows: list[Rows], state: State, contract: Contract) -> tuple[Any, Mapping[str, Any]]:
    """Call the function as the graph is called; what stands beside the channels is a third argument."""
    stamps = rows[0].stamps
    when = None if stamps is None else np.array(stamps, np.int64)
    values = np.stack([completed(one.values, when, [one.static], stream="drawn", contract=contract) for one in rows])
    feed = contract.layout.feed(values)
    x = feed.pop("x")
    return fn(x, state, feed) if feed else fn(x, state)


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
