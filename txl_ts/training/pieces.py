"""The rows to train on: contiguous pieces of one flat array, and the schedule that walks lanes along them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class BesideRows:
    """Columns beside the target of all rows, and of the pieces.

    Attributes
    ----------
    hist : float32 array of shape (N, n_hist)
    futr : float32 array of shape (N, n_futr)
    static : float32 array of shape (n, n_static)
        Of each piece's series.
    """

    hist: NDArray[np.float32]
    futr: NDArray[np.float32]
    static: NDArray[np.float32]

    def take(self, picked: NDArray[np.int64]) -> BesideRows:
        """Keep some pieces."""
        return BesideRows(self.hist, self.futr, self.static[picked])

    def cut(self, step: Step, stop: NDArray[np.int64], *, n_rows: int, h: int) -> tuple[NDArray[np.float32], ...]:
        """Give ``hist`` (B, n_rows, n_hist), ``futr`` (B, n_rows + h, n_futr) and ``static`` (B, n_static) of a step.

        NaN from ``stop`` on: what comes after a piece is not seen.
        """
        hist = _cut(self.hist, step.row, stop, n_rows=n_rows)
        return hist, _cut(self.futr, step.row, stop, n_rows=n_rows + h), self.static[step.piece]


@dataclass(frozen=True)
class Pieces:
    """Contiguous runs of rows, each walked from an empty memory.

    Attributes
    ----------
    values : float32 array of shape (N,) or (N, C)
        All rows of all series; NaN where missing. Never copied.
    first, stop : int64 array of shape (n,)
        Rows of each piece.
    unit : float32 array of shape (n,) or (n, C)
        What the loss measures the errors of each piece in, in raw units; positive.
    weight : float32 array of shape (N,), optional
        What the error at each row counts for; all alike without it.
    beside : BesideRows or None
        Columns beside the target.
    """

    values: NDArray[np.float32]
    first: NDArray[np.int64]
    stop: NDArray[np.int64]
    unit: NDArray[np.float32]
    weight: NDArray[np.float32] | None = None
    beside: BesideRows | None = None

    def __len__(self) -> int:
        return len(self.first)

    def take(self, picked: NDArray[np.int64]) -> Pieces:
        """Keep some pieces."""
        beside = None if self.beside is None else self.beside.take(picked)
        return Pieces(self.values, self.first[picked], self.stop[picked], self.unit[picked], self.weight, beside)

    def rows(self, first: NDArray[np.int64], stop: NDArray[np.int64], *, n_rows: int) -> NDArray[np.float32]:
        """Cut ``n_rows`` rows from each ``first`` on, of shape (B, n_rows) or (B, n_rows, C); NaN from ``stop`` on."""
        return _cut(self.values, first, stop, n_rows=n_rows)

    def weights(self, first: NDArray[np.int64], stop: NDArray[np.int64], *, n_rows: int) -> NDArray[np.float32] | None:
        """Cut the weights of the same rows; 0 from ``stop`` on."""
        return None if self.weight is None else _cut(self.weight, first, stop, n_rows=n_rows, outside=0)


@dataclass(frozen=True)
class Step:
    """Where each lane stands in one training step.

    Attributes
    ----------
    piece : int64 array of shape (B,)
        −1: the lane has nothing left to do in this epoch.
    row : int64 array of shape (B,)
        First row of the segment, in the flat array.
    begun : int64 array of shape (B,)
        Row where the lane entered its piece: ``row == begun`` where it starts anew.
    """

    piece: NDArray[np.int64]
    row: NDArray[np.int64]
    begun: NDArray[np.int64]


def schedule(
    pieces: Pieces,
    *,
    n_lanes: int,
    n_passes: int,
    n_rows: int,
    stride: int,
    rng: np.random.Generator,
    jump: bool = True,
) -> Iterator[Step]:
    """Walk lanes along all pieces, in random order: a lane that ends a piece begins the next one that waits.

    Parameters
    ----------
    pieces : Pieces
    n_lanes : int
    n_passes : int
        Times that each piece is walked.
    n_rows : int
        Rows of a segment.
    stride : int
        Each walk skips up to ``stride − 1`` rows of its piece.
    rng : numpy Generator
    jump : bool
        Long pieces skip up to a whole segment instead, so that segments are cut elsewhere in each epoch.
    """
    waiting = list(np.concatenate([rng.permutation(len(pieces)) for _ in range(n_passes)])[::-1])
    piece = np.full(n_lanes, -1, np.int64)
    row, begun = np.zeros(n_lanes, np.int64), np.zeros(n_lanes, np.int64)
    while True:
        for lane in range(n_lanes):
            # The last row of a piece has no target.
            if piece[lane] >= 0 and row[lane] < pieces.stop[piece[lane]] - 1:
                continue
            piece[lane] = waiting.pop() if waiting else -1
            if piece[lane] >= 0:
                length = pieces.stop[piece[lane]] - pieces.first[piece[lane]]
                most = n_rows if jump and length >= 4 * n_rows else min(stride, max(length // 4, 1))
                skip = rng.integers(most)
                row[lane] = begun[lane] = pieces.first[piece[lane]] + skip
        if (piece < 0).all():
            return
        yield Step(piece.copy(), row.copy(), begun.copy())
        row += n_rows


def _cut(
    values: NDArray[np.float32],
    first: NDArray[np.int64],
    stop: NDArray[np.int64],
    *,
    n_rows: int,
    outside: float = np.nan,
) -> NDArray[np.float32]:
    index = first[:, None] + np.arange(n_rows)
    inside = index < stop[:, None]
    rows = values[np.where(inside, index, 0)]
    return np.where(inside if values.ndim == 1 else inside[..., None], rows, np.float32(outside))
