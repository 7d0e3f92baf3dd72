"""Backtests in one pass per series: every cutoff's forecast is read off the same walk."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from txl_ts.config import check_integer
from txl_ts.errors import CleanedDataWarning, ParameterError
from txl_ts.estimators.columns import Level, read_law
from txl_ts.frames import Panel, run_of
from txl_ts.metrics import pinball
from txl_ts.model import TXLModel
from txl_ts.walk import Pace, walk

# Forecasts on held-out rows that are measured; a tail needs no more.
_MOST_HELD_OUT = 20_000


@dataclass(frozen=True)
class Batch:
    """Some of a backtest's forecasts.

    Attributes
    ----------
    series : int64 array of shape (k,)
        Positions in ``ids`` of the panel.
    ids : list of str or int
    cutoffs : int64 array of shape (k,)
        Native stamp of the last row that each forecast has seen.
    ordinals : int64 array of shape (k,)
        The same as grid ordinals.
    y : float32 array of shape (k, h)
        What came; NaN where missing.
    forecast : float32 array of shape (k, h, Q)
        Trained quantiles.
    """

    series: NDArray[np.int64]
    ids: list[str | int]
    cutoffs: NDArray[np.int64]
    ordinals: NDArray[np.int64]
    y: NDArray[np.float32]
    forecast: NDArray[np.float32]

    @classmethod
    def joined(cls, batches: Iterable[Batch]) -> Batch:
        """Put batches behind each other."""
        found = list(batches)
        arrays = {
            name: np.concatenate([getattr(batch, name) for batch in found])
            for name in ("series", "cutoffs", "ordinals", "y", "forecast")
        }
        return cls(ids=[name for batch in found for name in batch.ids], **arrays)


def cutoff_range(panel: Panel, *, h: int, n_windows: int, step_size: int) -> NDArray[np.int64]:
    """Grid ordinals of the cutoffs, (n_series, n_windows); the last one leaves ``h`` rows.

    Raises
    ------
    ParameterError
        If a series is too short, or all cutoffs lie in gaps that were cut. Where only some do a warning says which.
    """
    cutoffs = _cutoffs_back(panel, h=h, n_windows=n_windows, step_size=step_size)
    if told := _in_gaps(panel, cutoffs):
        warnings.warn(
            f"{told}: nothing is forecast from there. Fill such gaps, give another step_size, or raise max_gap.",
            CleanedDataWarning,
            stacklevel=3,
        )
    return cutoffs


def _cutoffs_back(panel: Panel, *, h: int, n_windows: int, step_size: int) -> NDArray[np.int64]:
    back = h + step_size * np.arange(n_windows - 1, -1, -1)
    cutoffs = panel.last_ordinals()[:, None] - back
    short = np.flatnonzero(cutoffs[:, 0] < panel.first_ordinals())
    if len(short):
        need = int(back[0]) + 1
        rows = panel.last_ordinals() - panel.first_ordinals() + 1
        shown = [f"{panel.ids[i]!r} has {rows[i]}" for i in short[:5]]
        raise ParameterError(
            f"n_windows={n_windows} with step_size={step_size} and h={h} needs {need} rows in each series, and "
            f"{len(short)} have fewer: {', '.join(shown)}. Give fewer windows, or leave those series out."
        )
    return cutoffs


def _in_gaps(panel: Panel, cutoffs: NDArray[np.int64]) -> str:
    """Tell how many cutoffs lie in gaps that were cut, which have no rows; "" for none, ParameterError for all."""
    n_lost = np.full(panel.n_series, cutoffs.shape[1])
    np.subtract.at(n_lost, panel.piece_series, _in_pieces(panel, cutoffs).sum(axis=1))
    lost = np.flatnonzero(n_lost)
    if not len(lost):
        return ""
    shown = ", ".join(f"{panel.ids[i]!r} {n_lost[i]}" for i in lost[:5])
    told = f"{n_lost.sum()} of {cutoffs.size} cutoffs, of {len(lost)} series ({shown}), lie in gaps that were cut"
    if n_lost.sum() < cutoffs.size:
        return told
    raise ParameterError(
        f"{told}: there is no row to forecast from. Give more windows or another step_size, fill such gaps, or raise "
        "max_gap."
    )


def _in_pieces(panel: Panel, cutoffs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell which cutoffs of its series (n_series, n) lie in each piece, (n_pieces, n)."""
    of_piece, first = cutoffs[panel.piece_series], panel.piece_first[:, None]
    return (of_piece >= first) & (of_piece < first + panel.lengths[:, None])


def held_out_cutoffs(
    panel: Panel, trained: NDArray[np.int64], *, h: int, n_windows: int | None, call: str
) -> NDArray[np.int64]:
    """Grid ordinals of cutoffs among rows that were not trained on, as many of each series, thinned out to 20,000.

    Parameters
    ----------
    panel : Panel
    trained : int64 array of shape (n_series,)
        Grid ordinal of the last row of each series that was trained on.
    h : int
    n_windows : int, optional
        Cutoffs per series. Default: as many as the shortest series has.
    call : str
        What they are for, to be told.

    Raises
    ------
    ParameterError
        If there are too few rows.
    """
    most = int((panel.last_ordinals() - trained).min()) - h + 1
    windows = most if n_windows is None else check_integer("n_windows", n_windows, at_least=1)
    if windows < 1 or windows > most:
        raise ParameterError(
            f"{call} needs {max(windows, 1)} cutoffs per series after the rows that were trained on, with h={h} rows "
            f"behind each; the shortest series has room for {max(most, 0)}. Hold out more rows."
        )
    step = -(-windows * panel.n_series // _MOST_HELD_OUT)
    if n_windows is not None:
        return cutoff_range(panel, h=h, n_windows=-(-windows // step), step_size=step)
    cutoffs = _cutoffs_back(panel, h=h, n_windows=-(-windows // step), step_size=step)
    _in_gaps(panel, cutoffs)  # all rows are asked for, and a gap has none: no news, unless nothing is left
    return cutoffs


def rows_until(panel: Panel, last: NDArray[np.int64]) -> Panel:
    """Keep the rows of each series up to a grid ordinal."""
    kept = panel.row_ordinals() <= last[panel.row_series()]
    lengths = np.add.reduceat(kept, panel.offsets[:-1], dtype=np.int64)
    whole = lengths > 0
    return replace(
        panel,
        piece_series=panel.piece_series[whole],
        piece_first=panel.piece_first[whole],
        offsets=np.concatenate([[0], np.cumsum(lengths[whole])]),
        values=panel.values[kept],
        source=None if panel.source is None else panel.source[kept],
        covariates=None if panel.covariates is None else panel.covariates.keep_rows(kept),
        row_stamps=None if panel.row_stamps is None else panel.row_stamps[kept],
    )


def backtest(
    model: TXLModel,
    panel: Panel,
    cutoffs: NDArray[np.int64],
    *,
    h: int,
    pace: Pace,
    levels: Sequence[Level] | None = None,
) -> Iterator[Batch]:
    """Walk each series once, from empty, and give the forecasts at its cutoffs.

    Parameters
    ----------
    model : TXLModel
    panel : Panel
    cutoffs : int64 array of shape (n_series, n)
        Grid ordinals, increasing along each row.
    h : int
    pace : Pace
    levels : sequence of float or "mean", optional
        What is read off the forecasts. Default: the trained quantiles.
    """
    levels = model.config.quantiles if levels is None else levels
    first, of_piece, inside = panel.piece_first, cutoffs[panel.piece_series], _in_pieces(panel, cutoffs)
    # Rows of a piece that are cutoffs; a piece is walked up to the last of them.
    picked = np.flatnonzero(inside.any(axis=1))
    rows = [of_piece[p][inside[p]] - first[p] for p in picked]
    runs = [panel.values[panel.offsets[p] : panel.offsets[p] + r[-1] + 1] for p, r in zip(picked, rows, strict=True)]
    wanted = np.array([r[0] for r in rows], np.int64)
    beside = None
    if panel.covariates is not None:
        beside = [run_of(panel, int(p), 0, int(r[-1]) + 1, h=model.config.h) for p, r in zip(picked, rows, strict=True)]
    for stretch in walk(model, runs, None, wanted_from=wanted, pace=pace, beside=beside):
        said = stretch.flat
        stop = stretch.row + said.shape[1]
        for i, lane in enumerate(stretch.lanes):
            at = rows[lane][np.searchsorted(rows[lane], stretch.row) : np.searchsorted(rows[lane], stop)]
            if not len(at):
                continue
            piece = picked[lane]
            series = np.full(len(at), panel.piece_series[piece])
            ordinals = first[piece] + at
            found = Batch(
                series=series,
                ids=[panel.ids[series[0]]] * len(at),
                cutoffs=panel.stamps(series, ordinals),
                ordinals=ordinals,
                y=_ahead(panel, int(series[0]), ordinals, h=h),
                forecast=read_law(model, said[i, at - stretch.row, :h], levels),
            )
            yield from [found] if not panel.is_mixed else _by_channel(found, panel)


def metrics_of(
    batches: Iterable[Batch], quantiles: tuple[float, ...], *, n_series: int
) -> dict[str, NDArray[np.float64]]:
    """Average squared, absolute and pinball errors of each series over all its cutoffs and steps.

    Returns
    -------
    dict of str to float64 array of shape (n_series,)
        ``mse``, ``mae`` of the median and ``pinball`` over all quantiles; NaN for a series without a target.
    """
    median = quantiles.index(0.5)
    sums = {name: np.zeros(n_series) for name in ("mse", "mae", "pinball")}
    count = np.zeros(n_series)
    for batch in batches:
        y, forecast = batch.y.astype(np.float64), batch.forecast.astype(np.float64)
        there = np.isfinite(y) & np.isfinite(forecast[..., median])
        error = np.where(there, y - forecast[..., median], 0)
        series = batch.series[0]
        sums["mse"][series] += np.square(error).sum()
        sums["mae"][series] += np.abs(error).sum()
        if there.any():
            sums["pinball"][series] += pinball(y=y, forecast=forecast, quantiles=quantiles) * there.sum()
        count[series] += there.sum()
    return {name: np.where(count > 0, total / np.maximum(count, 1), np.nan) for name, total in sums.items()}


def _by_channel(found: Batch, panel: Panel) -> Iterator[Batch]:
    """Give y (k, h, C) and forecasts (k, h, C, Q) of one series a channel at a time, as series of their own."""
    n = panel.n_lanes_per_series
    for channel in range(n):
        series = found.series * n + channel
        yield replace(
            found,
            series=series,
            ids=[panel.lane_names[series[0]]] * len(series),
            y=found.y[..., channel],
            forecast=found.forecast[:, :, channel],
        )


def _ahead(panel: Panel, series: int, ordinals: NDArray[np.int64], *, h: int) -> NDArray[np.float32]:
    """Rows that follow each ordinal, (k, h) or (k, h, C); NaN in gaps that were cut and beyond the end."""
    low, high = np.searchsorted(panel.piece_series, [series, series + 1])
    wanted = ordinals[:, None] + np.arange(1, h + 1)
    piece = low + np.searchsorted(panel.piece_first[low:high], wanted, side="right") - 1
    row = wanted - panel.piece_first[piece]
    inside = row < panel.lengths[piece]
    found = panel.values[np.where(inside, panel.offsets[piece] + row, 0)]
    return np.where(inside.reshape(*inside.shape, *(1,) * (found.ndim - 2)), found, np.float32(np.nan))
