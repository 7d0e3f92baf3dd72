"""Rows of before, to be trained on again: a sample of fixed size of all that was ever trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from txl_ts.training.pieces import BesideRows, Pieces
from txl_ts.training.segments import Origins

SeriesId = str | int
Floats = NDArray[np.float32]


def slot_of(number: int, *, size: int, seed: int) -> int | None:
    """Say where in a reservoir the item of this number goes, from 0 on; None: it is not kept.

    Whoever asks for each number in turn, and replaces what was there, holds a sample in which every item so far is as
    likely as any other.

    Parameters
    ----------
    number : int
    size : int
        Slots of the reservoir.
    seed : int

    References
    ----------
    Vitter (1985), Random sampling with a reservoir, ACM TOMS 11(1), algorithm R.
    """
    if number < size:
        return number
    # A generator of its own: what is drawn depends on seed and number alone, so that nothing but a count is saved.
    slot = int(np.random.default_rng([seed, number]).integers(number + 1))
    return slot if slot < size else None


@dataclass(frozen=True)
class Stretch:
    """Some consecutive rows of a series.

    Attributes
    ----------
    id : str or int
    values : float32 array of shape (T,) or (T, C)
    unit : float32 array of shape () or (C,)
        What errors are measured in.
    hist, futr : float32 array of shape (T, n_hist) and (T, n_futr)
        Columns beside the target.
    static : float32 array of shape (n_static,)
    """

    id: SeriesId
    values: Floats
    unit: Floats
    hist: Floats
    futr: Floats
    static: Floats


@dataclass(frozen=True)
class Reservoir:
    """Some stretches of the rows that were trained on, each of all stretches so far as likely as any other.

    Attributes
    ----------
    size : int
        Stretches at most.
    n_rows : int
        Rows of a stretch at most.
    n_seen : int
        Stretches that were offered.
    kept : tuple of Stretch
    """

    size: int = 0
    n_rows: int = 1
    n_seen: int = 0
    kept: tuple[Stretch, ...] = ()

    def with_pieces(self, pieces: Pieces, ids: Sequence[SeriesId], *, least: int, seed: int) -> Reservoir:
        """Offer the stretches of some pieces, in their order.

        Parameters
        ----------
        pieces : Pieces
        ids : sequence of str or int
            Series of each piece.
        least : int
            A rest of no more rows is not offered.
        seed : int
        """
        if not self.size:
            return self
        kept, number = list(self.kept), self.n_seen
        for piece, (begin, end) in enumerate(zip(pieces.first.tolist(), pieces.stop.tolist(), strict=True)):
            for first in range(begin, end, self.n_rows):
                stop = min(first + self.n_rows, end)
                if stop - first <= least:
                    continue
                slot = slot_of(number, size=self.size, seed=seed)
                number += 1
                if slot is None:
                    continue
                stretch = _cut(pieces, piece, first, stop, name=ids[piece])
                if slot < len(kept):
                    kept[slot] = stretch
                else:  # where series were dropped, slots are free
                    kept.append(stretch)
        return replace(self, kept=tuple(kept), n_seen=number)

    def without(self, ids: Sequence[SeriesId]) -> Reservoir:
        """Drop the stretches of some series."""
        gone = set(ids)
        return replace(self, kept=tuple(stretch for stretch in self.kept if stretch.id not in gone))

    def beside(self, new: Origins, *, lookback: int, patch_len: int, h: int) -> Origins:
        """Give the pieces to train on, and what is kept behind them.

        Parameters
        ----------
        new : Origins
        lookback, patch_len, h : int
            A kept row may forecast once a look-back has been seen, or a patch where the stretch is too short.
        """
        if not self.kept:
            return new
        rows, lengths = new.pieces, np.array([len(stretch.values) for stretch in self.kept])
        stop = len(rows.values) + np.cumsum(lengths)
        warm = np.where(lengths > lookback + h, lookback, np.minimum(patch_len, lengths))
        beside = None
        if rows.beside is not None:
            beside = BesideRows(
                np.concatenate([rows.beside.hist, *(stretch.hist for stretch in self.kept)]),
                np.concatenate([rows.beside.futr, *(stretch.futr for stretch in self.kept)]),
                np.concatenate([rows.beside.static, np.stack([stretch.static for stretch in self.kept])]),
            )
        pieces = Pieces(
            np.concatenate([rows.values, *(stretch.values for stretch in self.kept)]),
            np.concatenate([rows.first, stop - lengths]),
            np.concatenate([rows.stop, stop]),
            np.concatenate([rows.unit, np.stack([stretch.unit for stretch in self.kept])]),
            beside=beside,
        )
        return Origins(pieces, np.concatenate([new.first, stop - lengths + warm]), full=new.full)


def _cut(pieces: Pieces, piece: int, first: int, stop: int, *, name: SeriesId) -> Stretch:
    """Copy rows, so that a sample of a frame does not keep the frame."""
    none = np.zeros((stop - first, 0), np.float32)
    hist, futr, static = none, none, none[0]
    if (beside := pieces.beside) is not None:
        hist, futr, static = beside.hist[first:stop].copy(), beside.futr[first:stop].copy(), beside.static[piece].copy()
    return Stretch(name, pieces.values[first:stop].copy(), pieces.unit[piece].copy(), hist, futr, static)
