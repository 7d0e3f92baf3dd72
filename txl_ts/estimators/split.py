"""Which rows are trained on, which choose, and what errors of each series are measured in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from txl_ts.config import ModelConfig
from txl_ts.embeddings import Units
from txl_ts.frames import Panel
from txl_ts.losses import LOSSES
from txl_ts.training import BesideRows, Origins, Pieces

# Validation walks start this many half-lives before their first row: earlier rows weigh less than 1 in 16.
_HALF_LIVES = 4
# Validation rows beyond this many are thinned out by series: choosing an epoch needs no more.
_MOST_VALIDATION_ROWS = 200_000


@dataclass(frozen=True)
class Split:
    """Rows to train on and rows to choose by.

    Attributes
    ----------
    train : Origins
    validation : Origins or None
        None where no series is long enough.
    n_untrained : int
        Series with too few rows to be trained on.
    """

    train: Origins
    validation: Origins | None
    n_untrained: int


def split(
    panel: Panel,
    config: ModelConfig,
    *,
    val_rows: NDArray[np.int64],
    season: int,
    loss: str,
    weight: NDArray[np.float32] | None = None,
) -> Split:
    """Cut the last rows off each series for validation.

    Parameters
    ----------
    panel : Panel
    config : ModelConfig
    val_rows : int64 array of shape (n_series,)
        Rows to cut off each; 0 leaves a series out of the validation.
    season : int
        Rows of a season.
    loss : str
        Gives the unit of the errors.
    weight : float32 array of shape (N,), optional
        What the error at each row counts for.
    """
    first, stop = panel.offsets[:-1], panel.offsets[1:]
    end = np.zeros(panel.n_series, np.int64)
    np.maximum.at(end, panel.piece_series, stop)
    cut = (end - val_rows)[panel.piece_series]
    measured = Units(config.transform).into(torch.from_numpy(panel.values)).numpy()  # errors are in the model's units
    unit = _units(replace(panel, values=measured), stop=np.minimum(stop, cut), season=season, kind=LOSSES[loss].unit)
    train_stop = np.clip(cut, first, stop)
    # A row may forecast once a patch, or a look-back on long series, has been seen.
    warm = np.where(stop - first >= 3 * config.lookback + config.h, config.lookback, config.patch_len)
    trained = train_stop - first > config.patch_len
    train = _origins(
        panel, trained, first, train_stop, first + np.minimum(warm, train_stop - first), unit, weight, full=False
    )
    n_untrained = panel.n_series - len(np.unique(panel.piece_series[trained]))
    begin = np.maximum(first, cut - _validation_context(config))
    origin = np.maximum(cut - 1, first)
    # Whole horizons only, if the rows allow it: a choice by the first steps alone would forget the last ones.
    full = bool((val_rows >= config.h).any())
    chosen = (val_rows[panel.piece_series] > 0) & (stop - (config.h if full else 1) > origin)
    if not chosen.any():
        return Split(train, None, n_untrained)
    kept = np.flatnonzero(chosen)
    every = -(-int((stop - begin)[kept].sum()) // _MOST_VALIDATION_ROWS)
    chosen = np.isin(np.arange(len(first)), kept[::every])
    return Split(train, _origins(panel, chosen, begin, stop, origin, unit, weight, full=full), n_untrained)


def tail_rows(panel: Panel, *, h: int, patch_len: int) -> NDArray[np.int64]:
    """Rows of each series that choose the epoch when the user names none: a tenth, whole horizons; 0 if too short."""
    length = panel.series_rows()
    tail = np.maximum(h, np.minimum(length // 10, 10 * h))
    return np.where(length - tail > 2 * patch_len, tail, 0)


def _validation_context(config: ModelConfig) -> int:
    return int(max(config.reach, config.lookback) + _HALF_LIVES * config.half_life)


def _origins(
    panel: Panel,
    picked: NDArray[np.bool_],
    first: NDArray[np.int64],
    stop: NDArray[np.int64],
    origin: NDArray[np.int64],
    unit: NDArray[np.float32],
    weight: NDArray[np.float32] | None,
    *,
    full: bool,
) -> Origins:
    beside = None
    if panel.covariates is not None:
        static = panel.covariates.static[panel.piece_series[picked]]
        beside = BesideRows(panel.covariates.hist, panel.covariates.futr, static)
    pieces = Pieces(panel.values, first[picked], stop[picked], unit[picked], weight, beside)
    return Origins(pieces, origin[picked], full=full)


def _units(panel: Panel, *, stop: NDArray[np.int64], season: int, kind: str) -> NDArray[np.float32]:
    """Unit of the errors of each piece and channel: its deviation, or mean absolute seasonal difference; positive."""
    shape = (panel.n_series, panel.n_lanes_per_series)
    total, square, count, difference, pairs = (np.zeros(shape) for _ in range(5))
    values = panel.values.reshape(len(panel.values), -1)
    for piece, series in enumerate(panel.piece_series):
        rows = values[panel.offsets[piece] : max(stop[piece], panel.offsets[piece])].astype(np.float64)
        there = np.isfinite(rows)
        total[series] += np.sum(rows, axis=0, where=there)
        square[series] += np.sum(np.square(rows), axis=0, where=there)
        count[series] += there.sum(axis=0)
        if kind == "seasonal" and len(rows) > season:
            step = np.abs(rows[season:] - rows[:-season])
            difference[series] += np.nansum(step, axis=0)
            pairs[series] += np.isfinite(step).sum(axis=0)
    mean = total / np.maximum(count, 1)
    unit = np.sqrt(np.maximum(square / np.maximum(count, 1) - mean**2, 0))
    if kind == "seasonal":
        unit = np.where(difference > 0, difference / np.maximum(pairs, 1), unit)
    # A series that never moved, or has no rows: any positive number will do.
    unit = np.where(unit > 1e-9 * np.maximum(np.abs(mean), 1e-30), unit, np.maximum(np.abs(mean), 1))
    unit = unit[panel.piece_series].astype(np.float32)
    return unit if panel.is_mixed else unit[:, 0]
