"""Rows with labels, as lanes of segments: what :class:`LabelTrainer` and the closed form of the linear path read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txl_ts.training.pieces import Pieces, schedule


@dataclass(frozen=True)
class LabelRows:
    """Contiguous runs of rows, each walked from an empty memory, and what is to be said at them.

    Attributes
    ----------
    values : float32 array of shape (N, C)
        All rows of all series; NaN where missing. Never copied.
    target : int64 array of shape (N,), or float32 array of shape (N, K)
        Number of the class; or values, NaN where there is none.
    weight : float32 array of shape (N,)
        What a row's answer counts; 0 for rows that only fill the memory.
    first, stop : int64 array of shape (n,)
        Rows of each run.
    """

    values: NDArray[np.float32]
    target: NDArray[np.int64] | NDArray[np.float32]
    weight: NDArray[np.float32]
    first: NDArray[np.int64]
    stop: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.first)

    @property
    def n_counting(self) -> int:
        """Rows whose answer counts."""
        return int(sum((self.weight[a:b] > 0).sum() for a, b in zip(self.first, self.stop, strict=True)))

    def cut(self, *, n_pieces: int, least: int) -> LabelRows:
        """Cut long runs, each piece with an empty memory of its own, until there are about ``n_pieces``."""
        length = self.stop - self.first
        size = max(least, -(-int(length.sum()) // n_pieces))
        parts = np.maximum(length // size, 1)
        edges = [
            np.linspace(a, b, n + 1).astype(np.int64) for a, b, n in zip(self.first, self.stop, parts, strict=True)
        ]
        first, stop = (np.concatenate([e[s] for e in edges]) for s in (slice(None, -1), slice(1, None)))
        return LabelRows(self.values, self.target, self.weight, first, stop)


@dataclass(frozen=True)
class LabelSegment:
    """The same rows of all lanes, as tensors.

    Attributes
    ----------
    x : Tensor of shape (B, T, C)
        NaN from the end of a run on.
    target : Tensor of shape (B, T) or (B, T, K)
    weight : Tensor of shape (B, T)
    start : bool Tensor of shape (B, 1)
        The lane begins.
    """

    x: Tensor
    target: Tensor
    weight: Tensor
    start: Tensor


def label_segments(
    rows: LabelRows, *, n_lanes: int, n_rows: int, n_passes: int, jump: bool, rng: np.random.Generator
) -> Iterator[LabelSegment]:
    """Walk lanes along all runs; memory is O(lanes × rows).

    Parameters
    ----------
    rows : LabelRows
    n_lanes, n_rows : int
        Of a segment.
    n_passes : int
        Times that each run is walked.
    jump : bool
        Long runs begin up to a segment later, so that segments are cut elsewhere in each epoch.
    rng : numpy Generator
    """
    # A schedule leaves out the last row of a piece, which is nothing but a target for forecasts.
    pieces = Pieces(rows.values[:, 0], rows.first, rows.stop + 1, np.ones(len(rows), np.float32))
    for step in schedule(pieces, n_lanes=n_lanes, n_passes=n_passes, n_rows=n_rows, stride=1, rng=rng, jump=jump):
        idle = step.piece < 0
        stop = np.where(idle, 0, rows.stop[step.piece])
        index = step.row[:, None] + np.arange(n_rows)
        inside = index < stop[:, None]
        index = np.where(inside, index, 0)
        yield LabelSegment(
            x=torch.from_numpy(np.where(inside[..., None], rows.values[index], np.float32(np.nan))),
            target=torch.from_numpy(rows.target[index]),
            weight=torch.from_numpy(np.where(inside, rows.weight[index], np.float32(0))),
            start=torch.from_numpy((step.row == step.begun) | idle)[:, None],
        )
