"""One training step's tensors: rows in, targets out, and which of them count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txl_ts.embeddings import Beside, Scale
from txl_ts.training.pieces import Pieces, Step


@dataclass(frozen=True)
class Origins:
    """Pieces together with the rows that forecasts may start from.

    Attributes
    ----------
    pieces : Pieces
    first : int64 array of shape (n,)
        First row that forecasts, per piece; rows before it only fill the memory.
    full : bool
        Only rows whose whole horizon lies inside the piece count.
    """

    pieces: Pieces
    first: NDArray[np.int64]
    full: bool = False

    def count(self, *, h: int) -> int:
        """Count the rows that forecast."""
        last = self.pieces.stop - (h if self.full else 1)
        return int(np.maximum(last - self.first, 0).sum())


@dataclass(frozen=True)
class Segment:
    """The same rows of all lanes, as tensors.

    Attributes
    ----------
    x : Tensor of shape (B, T, C)
        Raw rows.
    ahead : Tensor of shape (B, T + h, C)
        The same rows and the ``h`` after them; NaN from the end of the piece on.
    origin : bool Tensor of shape (B, T)
        The row may forecast.
    start : bool Tensor of shape (B, 1)
        The lane begins.
    unit : Tensor of shape (B,) or (B, C)
    h : int
    weight : Tensor of shape (B, T + h), optional
        Of the rows of ``ahead``.
    beside : Beside or None
    """

    x: Tensor
    ahead: Tensor
    origin: Tensor
    start: Tensor
    unit: Tensor
    h: int
    weight: Tensor | None = None
    beside: Beside | None = None

    def target_weights(self, picked: Tensor) -> Tensor | None:
        """Give the weights of :meth:`targets`, (B, n, h, 1)."""
        if self.weight is None:
            return None
        return self.weight[:, picked[:, None] + torch.arange(1, self.h + 1)][..., None]

    def targets(self, picked: Tensor, scale: Scale) -> tuple[Tensor, Tensor]:
        """Give targets above the lane's shift (B, n, h, C), in the model's units, at the picked rows; which count."""
        ahead = scale.units.into(self.ahead)
        target = ahead[:, picked[:, None] + torch.arange(1, self.h + 1)] - scale.shift[:, :, None]
        usable = target.isfinite() & (self.origin.index_select(1, picked)[..., None] & scale.known)[:, :, None]
        return target, usable


def segments(origins: Origins, steps: Iterator[Step], *, n_rows: int, h: int) -> Iterator[Segment]:
    """Turn the steps of a schedule into tensors; memory is O(lanes × rows)."""
    pieces = origins.pieces
    for step in steps:
        idle = step.piece < 0
        stop = np.where(idle, 0, pieces.stop[step.piece])
        x = torch.from_numpy(pieces.rows(step.row, stop, n_rows=n_rows + h))
        x = x if x.ndim == 3 else x[..., None]
        weight = pieces.weights(step.row, stop, n_rows=n_rows + h)
        row = step.row[:, None] + np.arange(n_rows)
        last = stop - h if origins.full else stop - 1
        may = (row >= np.maximum(origins.first[step.piece], step.begun)[:, None]) & (row < last[:, None])
        yield Segment(
            x=x[:, :n_rows],
            ahead=x,
            origin=torch.from_numpy(may & ~idle[:, None]),
            start=torch.from_numpy((step.row == step.begun) | idle)[:, None],
            unit=torch.from_numpy(
                np.where(idle.reshape(-1, *(1,) * (pieces.unit.ndim - 1)), np.float32(1), pieces.unit[step.piece])
            ),
            h=h,
            weight=None if weight is None else torch.from_numpy(weight),
            beside=_beside(pieces, step, stop, n_rows=n_rows, h=h),
        )


def _beside(pieces: Pieces, step: Step, stop: NDArray[np.int64], *, n_rows: int, h: int) -> Beside | None:
    if pieces.beside is None:
        return None
    return Beside(*(torch.from_numpy(part) for part in pieces.beside.cut(step, stop, n_rows=n_rows, h=h)))
