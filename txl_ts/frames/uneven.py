"""Uneven time: rows that come when they come, with no grid behind them.

An ordinal is the number of a row within its series, and the panel keeps the stamp of every row. Distances are counted
in median steps: neither the unit of the stamps nor their origin changes a number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from txl_ts.errors import FrequencyError, ParameterError, StampError
from txl_ts.frames.aliases import uneven_freq
from txl_ts.frames.freq import Freq
from txl_ts.frames.roles import Covariates, FloatArray
from txl_ts.frames.stamps import show
from txl_ts.frames.words import counted

if TYPE_CHECKING:
    from txl_ts.frames.panel import Panel

IntArray = npt.NDArray[np.int64]


def median_step(codes: IntArray, stamps: IntArray, *, is_integer: bool) -> Freq:
    """Take the median time between two rows of a series as the unit of uneven time.

    Parameters
    ----------
    codes, stamps : int64 arrays of shape (N,)
        Rows sorted by series, then time.
    is_integer : bool
        Whether the stamps are plain numbers.

    Raises
    ------
    FrequencyError
        If no series has two rows.
    """
    steps = np.diff(stamps)[codes[1:] == codes[:-1]]
    if not len(steps):
        raise FrequencyError(
            "freq=None measures time in median steps, and needs a series with two rows at least. "
            "Give more rows, or the unit yourself, such as freq='~1h'."
        )
    # The lower of two middle ones: a step that occurs, which the time column can hold whatever its unit.
    return uneven_freq(max(int(np.sort(steps)[(len(steps) - 1) // 2]), 1), is_integer=is_integer)


def cut_at_gaps(codes: IntArray, stamps: IntArray, *, max_gap: int | None, step: int) -> npt.NDArray[np.bool_]:
    """Tell which rows begin a piece: the first of a series, and those after a gap of more than ``max_gap`` steps."""
    starts = np.ones(len(codes), dtype=bool)
    starts[1:] = codes[1:] != codes[:-1]
    if max_gap is not None:
        starts[1:] |= _is_long(np.diff(stamps), max_gap=max_gap, step=step)
    return starts


def with_gaps(panel: Panel, *, max_gap: int | None, ends: IntArray | None) -> Panel:
    """Put the time since the row before, in median steps, beside the columns of a panel of uneven time.

    It is 0 where a series begins, or begins anew after a gap of more than ``max_gap`` median steps without a row.

    Parameters
    ----------
    panel : Panel
    max_gap : int, optional
    ends : int64 array of shape (n_series,), optional
        Stamp of the row before the first of each series, for those whose rows go on (their first ordinal is not 0).
    """
    stamps, step = panel.row_stamps, panel.freq.step
    assert stamps is not None
    gap = np.diff(stamps, prepend=stamps[:1])
    first = panel.offsets[:-1]
    gap[first] = 0
    goes_on = panel.first_ordinals() > 0
    if ends is not None:
        rows = first[np.searchsorted(panel.piece_series, np.flatnonzero(goes_on), side="left")]
        apart = stamps[rows] - ends[goes_on]
        gap[rows] = apart if max_gap is None else np.where(_is_long(apart, max_gap=max_gap, step=step), 0, apart)
    nothing = np.zeros((panel.n_rows, 0), np.float32)
    here = panel.covariates or Covariates(nothing, nothing, np.zeros((panel.n_series, 0), np.float32))
    column = (gap / step).astype(np.float32)[:, None]
    return replace(panel, covariates=replace(here, futr=np.concatenate([here.futr, column], axis=1)))


def after_ends(panel: Panel, *, ends: IntArray, seen: npt.NDArray[np.bool_]) -> Panel:
    """Number the rows of series that go on from 1: 0 is the last row that was taken in.

    Parameters
    ----------
    panel : Panel
    ends : int64 array of shape (n_series,)
        Stamp of that row.
    seen : bool array of shape (n_series,)
        Which series go on.

    Raises
    ------
    StampError
        If one has rows at or before that stamp.
    """
    assert panel.row_stamps is not None
    series = panel.row_series()
    late = np.flatnonzero(seen[series] & (panel.row_stamps <= ends[series]))
    if len(late):
        codes, first, counts = np.unique(series[late], return_index=True, return_counts=True)
        shown = []
        for code, row, n in list(zip(codes, late[first], counts, strict=True))[:5]:
            begin, end = (show(int(stamp), panel.style) for stamp in (panel.row_stamps[row], ends[code]))
            shown.append(
                f"{panel.ids[code]!r} has {counted(int(n), 'row')} from {begin} on, and was taken in up to {end}"
            )
        raise StampError(
            f"{len(codes)} series have rows that come before, or again at, rows already taken in: {'; '.join(shown)}. "
            "Nothing was changed. Give only rows after the last one of each series."
        )
    return replace(panel, piece_first=panel.piece_first + seen[panel.piece_series])


@dataclass(frozen=True)
class Asked:
    """Times that are asked for, of some series.

    Attributes
    ----------
    lanes : int64 array of shape (n_series,)
        Which of the given series they are.
    stamps : int64 array of shape (n_series, n)
        Increasing; a series that asks for fewer than ``n`` has its last ones repeated.
    counts : int64 array of shape (n_series,)
        Times that each asks for.
    """

    lanes: IntArray
    stamps: IntArray
    counts: IntArray

    @property
    def inside(self) -> npt.NDArray[np.bool_]:
        """Which of ``stamps`` were asked for."""
        return np.arange(self.stamps.shape[1]) < self.counts[:, None]

    def column_of(self, lane: IntArray, stamps: IntArray) -> IntArray:
        """Find stamps that were asked for among those of their series (positions in ``lanes``)."""
        return np.array([np.searchsorted(self.stamps[i], t) for i, t in zip(lane, stamps, strict=True)], np.int64)


def asked_times(lane: IntArray, stamps: IntArray, *, ends: IntArray, ids: Any, style: Any) -> Asked:
    """Sort the stamps that are asked for by series.

    Parameters
    ----------
    lane, stamps : int64 arrays of shape (N,)
    ends : int64 array
        Stamp of the last row of each series that may be asked.
    ids, style
        Of those series, for messages.

    Raises
    ------
    StampError
        If one is not after the series' last row, or is asked for twice.
    ParameterError
        If there is none.
    """
    if not len(lane):
        raise ParameterError("futr_df asks for no time of any known series. Give rows with their ids and times.")
    order = np.lexsort((stamps, lane))
    lane, stamps = lane[order], stamps[order]
    early, twice = stamps <= ends[lane], np.zeros(len(lane), bool)
    twice[1:] = (lane[1:] == lane[:-1]) & (stamps[1:] == stamps[:-1])
    for bad, what, cure in (
        (early, "asks for times at or before the last row", "Ask for later times."),
        (twice, "repeats times", "Give one row per series and time."),
    ):
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            asked, end = (show(int(stamp), style) for stamp in (stamps[row], ends[lane[row]]))
            raise StampError(
                f"futr_df {what}: {counted(int(bad.sum()), 'row')}, first {ids[lane[row]]!r} at {asked}, where the "
                f"last row came at {end}. {cure}"
            )
    lanes, first, counts = np.unique(lane, return_index=True, return_counts=True)
    column = np.minimum(np.arange(int(counts.max())), counts[:, None] - 1)
    return Asked(lanes, stamps[first[:, None] + column], counts)


def gaps_ahead(stamps: IntArray, *, ends: IntArray, freq: Freq) -> FloatArray:
    """Time before each of some stamps (n_series, n), from the last row on, in median steps: (n_series, n, 1)."""
    return (np.diff(stamps, axis=1, prepend=ends[:, None]) / freq.step).astype(np.float32)[..., None]


def _is_long(apart: IntArray, *, max_gap: int, step: int) -> npt.NDArray[np.bool_]:
    return apart > (max_gap + 1) * step
