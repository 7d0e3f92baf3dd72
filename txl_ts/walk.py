"""One pass over many series: lanes of like length run side by side, each row once, memory O(lanes × rows of a call)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from txl_ts.embeddings import Beside
from txl_ts.frames import Covariates
from txl_ts.model import TorchState, TXLModel, empties_memory
from txl_ts.state import State, init_state

# Rows of all lanes in one call; the windows of the linear path make a row cost kilobytes.
_ROWS_PER_CALL = 4096
# Row counts of calls that keep to a fixed grid, largest first.
_GRID = (64, 16, 4, 1)


@dataclass(frozen=True)
class Pace:
    """How a walk cuts its calls; the numbers are the same to rounding, unless memories are reset.

    Attributes
    ----------
    fixed_grid : bool
        Run one lane at a time, in steps of a fixed grid: a lane's numbers then do not depend, to the bit, on which
        other lanes are there. Slower. (Equally many lanes are not enough: on some processors the last digits of a
        matrix product depend on the row in which a lane stands.)
    reset_every : int, optional
        Empty the memories (not the normaliser) every so many rows of a run; for comparisons.
    lane_width : int
        Lanes that run side by side.
    bar : str, optional
        Show a bar with this name and the rows per second, once a walk takes longer than a second.
    """

    fixed_grid: bool = False
    reset_every: int | None = None
    lane_width: int = 64
    bar: str | None = None

    def n_rows(self, *, left: int, row: int, n_lanes: int) -> int:
        """Rows of the next call, when ``left`` remain from ``row`` on."""
        if self.reset_every:
            left = min(left, self.reset_every - row % self.reset_every)
        return next(g for g in _GRID if g <= left) if self.fixed_grid else min(left, _ROWS_PER_CALL // n_lanes)


_PACE = Pace()


@dataclass(frozen=True)
class Stretch:
    """Forecasts of some lanes from some consecutive rows.

    Attributes
    ----------
    lanes : int64 array of shape (B,)
        Positions in the given sequence of runs.
    row : int
        First row, counted from the start of each run.
    y : float32 array of shape (B, T, h, C, law_width)
        Quantiles in raw units, or what :meth:`~txl_ts.model.TXLModel.read` reads them off; a model of labels gives its
        own (B, T, K).
    """

    lanes: NDArray[np.int64]
    row: int
    y: NDArray[np.float32]

    @property
    def flat(self) -> NDArray[np.float32]:
        """The same with channels side by side, (B, T, h, C · law_width)."""
        return self.y.reshape(*self.y.shape[:3], -1)


def walk(
    model: TXLModel,
    runs: Sequence[NDArray[np.float32]],
    state: State | None,
    *,
    wanted_from: NDArray[np.int64] | None = None,
    pace: Pace = _PACE,
    beside: Sequence[Covariates] | None = None,
) -> Iterator[Stretch]:
    """Feed runs of rows to their lanes and give the forecasts from every row.

    ``state`` is moved on **in place** as the walk goes: give a copy if it must stay. None starts every lane empty and
    forgets it at its end.

    Parameters
    ----------
    model : TXLModel
    runs : sequence of float32 array of shape (n_i,) or (n_i, C)
        One run of consecutive rows per lane; may be empty.
    state : dict of array, or None
        Lane ``i`` belongs to run ``i``.
    wanted_from : int64 array of shape (n_lanes,), optional
        First row of each run whose forecast is wanted; earlier rows are walked, and most of them not given.
    pace : Pace
    beside : sequence of Covariates, optional
        Columns beside the target, one per run.

    Yields
    ------
    Stretch
    """
    model.config.check_any_split("a walk")
    length = np.array([len(run) for run in runs], np.int64)
    total = int(length.sum())
    bar = tqdm(total=total, desc=pace.bar, unit="row", unit_scale=True, delay=1, disable=pace.bar is None)
    for batch in _batches(length, lane_width=1 if pace.fixed_grid else pace.lane_width):
        lanes, row = batch, 0
        kept = init_state(model.state_specs(), n_lanes=len(batch)) if state is None else state
        while len(lanes := lanes[length[lanes] > row]):
            # Without a state of the caller's, lanes are counted within the batch; those that end first stand last.
            at = np.arange(len(lanes)) if state is None else lanes
            if pace.reset_every and row % pace.reset_every == 0:
                for name in kept:
                    if empties_memory(name):
                        kept[name][at] = 0
            n_rows = pace.n_rows(left=int(length[lanes].min()) - row, row=row, n_lanes=len(lanes))
            rows = np.stack([runs[lane][row : row + n_rows] for lane in lanes]).reshape(len(lanes), n_rows, -1)
            first = 0 if wanted_from is None else int(wanted_from[lanes].min())
            more = None if beside is None else _beside_of([beside[i] for i in lanes], row, n_rows, model.config.h)
            y = _call(model, rows, kept, at, wanted=first < row + n_rows, beside=more)
            if y is not None:
                yield Stretch(lanes, row, y)
            row += n_rows
            bar.update(n_rows * len(lanes))
    bar.close()


def _batches(length: NDArray[np.int64], *, lane_width: int) -> Iterator[NDArray[np.int64]]:
    """Put lanes of like length together, longest first: ends that lie apart cost a call each."""
    order = np.argsort(-length, kind="stable")
    for head in range(0, len(order), lane_width):
        yield order[head : head + lane_width]


def _beside_of(runs: Sequence[Covariates], row: int, n_rows: int, h: int) -> Beside:
    hist = np.stack([run.hist[row : row + n_rows] for run in runs])
    futr = np.stack([run.futr[row : row + n_rows + h] for run in runs])
    return Beside(*(torch.from_numpy(part) for part in (hist, futr, np.stack([run.static for run in runs]))))


def _call(
    model: TXLModel,
    rows: NDArray[np.float32],
    state: State,
    lanes: NDArray[np.int64],
    *,
    wanted: bool,
    beside: Beside | None,
) -> NDArray[np.float32] | None:
    """Run one call and put the new state where it belongs."""
    past: TorchState = {name: torch.from_numpy(array[lanes]) for name, array in state.items()}
    with torch.inference_mode():
        y, new = model(torch.from_numpy(rows), past, last_only=not wanted, beside=beside, as_law=True)
    for name, tensor in new.items():
        state[name][lanes] = tensor.numpy()
    return y.numpy() if wanted else None
