"""A frame of what is known ahead: its cells on the rows that are forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from txl_ts.errors import ColumnError, FrameError, ParameterError, StampError
from txl_ts.frames.calendar import calendar_features
from txl_ts.frames.columns import Frame, beyond_float32, check_roles, open_frame, read_ids, read_ticks
from txl_ts.frames.freq import Freq
from txl_ts.frames.grid import place
from txl_ts.frames.panel import ONLY_SERIES, SeriesId
from txl_ts.frames.roles import FloatArray, Roles, read_column
from txl_ts.frames.stamps import show, to_native
from txl_ts.frames.style import FrameStyle
from txl_ts.frames.uneven import Asked, asked_times, gaps_ahead
from txl_ts.frames.words import counted

IntArray = npt.NDArray[np.int64]

_NO_FUTR_DF = "futr_cols are known ahead, and without futr_df the forecast lacks"


@dataclass(frozen=True)
class Ahead:
    """Rows that are forecast: ``n`` for each of some series.

    Attributes
    ----------
    ids : tuple of str or int
    origins : int64 array of shape (n_series,)
        Native stamp of grid ordinal 0.
    last : int64 array of shape (n_series,)
        Grid ordinal of the row before the first.
    n : int
    freq : Freq
    style : FrameStyle
    asked : Asked, optional
        Where time is uneven, and the rows were asked for by their stamps: they then are not ``n`` median steps.
    """

    ids: tuple[SeriesId, ...]
    origins: IntArray
    last: IntArray
    n: int
    freq: Freq
    style: FrameStyle
    asked: Asked | None = None

    def stamps(self) -> IntArray:
        """Native stamps, (n_series, n)."""
        if self.asked is not None:
            return self.asked.stamps
        ordinals = self.last[:, None] + np.arange(1, self.n + 1)
        return self.freq.shift(np.broadcast_to(self.origins[:, None], ordinals.shape), ordinals, self.style.zone)


def read_ahead(rows: Ahead, futr_df: Any, roles: Roles, *, mask_missing: bool, nearest: bool) -> FloatArray:
    """Read what is known of the rows ahead.

    Parameters
    ----------
    rows : Ahead
    futr_df : frame or None
        The id and time columns and the ``futr`` columns; rows of other series and times are not used.
    roles : Roles
    mask_missing : bool
        A cell without a value is a missing value, not an error.
    nearest : bool
        Move stamps to the grid.

    Returns
    -------
    float32 array of shape (n_series, n, n_futr)
        The columns of the frame, then the calendar's, then the time since the row before.

    Raises
    ------
    ParameterError
        If a frame was given and no column is known ahead.
    FrameError
        If a cell is missing, or the frame cannot be used.
    """
    out = np.full((len(rows.ids), rows.n, len(roles.futr)), np.nan, np.float32)
    stray = ""
    if futr_df is not None:
        if not roles.futr and rows.asked is None:
            raise ParameterError("futr_df was given, and no futr_cols. Name its columns in futr_cols of fit.")
        stray = _read(out, rows, futr_df, roles, nearest=nearest)
    if not mask_missing and roles.futr:
        _refuse_missing(out, rows, roles, what=_NO_FUTR_DF if futr_df is None else f"futr_df {stray}lacks")
    parts = [out]
    if roles.calendar:
        parts.append(calendar_features(rows.stamps(), roles.calendar, zone=rows.style.zone))
    if roles.is_uneven:
        parts.append(gaps_ahead(rows.stamps(), ends=rows.origins, freq=rows.freq))
    return np.concatenate(parts, axis=2)


def read_asked(rows: Ahead, futr_df: Any) -> Ahead:
    """Take the rows of a frame, where time is uneven, for the rows that are forecast: those of series that it names.

    Parameters
    ----------
    rows : Ahead
        All series that may be asked, each at its last row.
    futr_df : frame
        The id and time columns.

    Raises
    ------
    FrameError
        If the frame cannot be used, or asks for times that lie behind a series.
    ParameterError
        If it asks for none.
    """
    _, ids, codes, stamps = _open(futr_df, rows, [])
    lane = _lanes(rows, ids)[codes]
    known = lane >= 0
    asked = asked_times(lane[known], stamps[known], ends=rows.origins, ids=rows.ids, style=rows.style)
    names = tuple(rows.ids[i] for i in asked.lanes)
    n, origins, last = asked.stamps.shape[1], rows.origins[asked.lanes], rows.last[asked.lanes]
    return Ahead(names, origins, last, n, rows.freq, rows.style, asked)


def _open(futr_df: Any, rows: Ahead, columns: Sequence[str]) -> tuple[Frame, tuple[SeriesId, ...], IntArray, IntArray]:
    """Give the frame, its ids, and the code and native stamp of each row."""
    frame, style = open_frame(futr_df), rows.style
    asked = [("time column", style.time_col), *(("futr column", name) for name in columns)]
    check_roles(frame, asked if style.id_col is None else [("id column", style.id_col), *asked], warn_unused=False)
    ids: tuple[SeriesId, ...] = (ONLY_SERIES,)
    codes = np.zeros(frame.shape[0], np.int64)
    if style.id_col is not None:
        ids, codes = read_ids(frame, style.id_col)
    ticks, unit, zone = read_ticks(frame, style.time_col)
    if (zone is None) != (style.zone is None) or (unit == "integer") != (style.unit == "integer"):
        raise StampError(
            f"time column {style.time_col!r} of futr_df holds {_kind(unit, zone)}, and the rows that were fitted hold "
            f"{_kind(style.unit, style.zone)}. Give both the same."
        )
    return frame, ids, codes, to_native(ticks, unit, style.time_col)


def _lanes(rows: Ahead, ids: tuple[SeriesId, ...]) -> IntArray:
    """Position of each id among the rows' series; −1 where it is not among them."""
    lane_of = {name: lane for lane, name in enumerate(rows.ids)}
    return np.array([lane_of.get(name, -1) for name in ids], np.int64)


def _read(out: FloatArray, rows: Ahead, futr_df: Any, roles: Roles, *, nearest: bool) -> str:
    """Fill in the cells that the frame has; gives words about a frame that has none of them."""
    frame, ids, codes, stamps = _open(futr_df, rows, roles.futr)
    lane, all_stamps = _lanes(rows, ids)[codes], stamps
    used = np.flatnonzero(lane >= 0)
    lane, stamps = lane[used], stamps[used]
    if rows.asked is not None:
        column, inside = rows.asked.column_of(lane, stamps), np.ones(len(lane), bool)
    else:
        column, inside = _on_grid(rows, used, lane, stamps, nearest=nearest)
    used, lane, column, stamps = used[inside], lane[inside], column[inside], stamps[inside]
    cell = lane * rows.n + column
    _, first = np.unique(cell, return_index=True)
    repeated = np.ones(len(cell), bool)
    repeated[first] = False
    _refuse(repeated, used, lane, stamps, rows, "futr_df repeats times", "Give one row per series and time.")
    for i, name in enumerate(roles.futr):
        # A category that is not given is a cell that is missing; one that was never seen is none of those known.
        values = read_column(frame, name, roles, role="futr", missing_code=np.nan)
        beyond = np.flatnonzero(beyond_float32(values))
        if len(beyond):
            row = int(beyond[0])
            raise ColumnError(
                f"futr column {name!r} of futr_df holds {counted(len(beyond), 'value')} outside the finite float32 "
                f"numbers, in series {ids[codes[row]]!r} (first at row {row}: {values[row]}). Replace them with null, "
                "or rescale the column."
            )
        out[lane, column, i] = values[used]
    if len(used):
        return ""
    if not len(inside):
        return f"holds other series, such as {ids[0]!r}, and "
    first, last = (show(int(stamp), rows.style) for stamp in (all_stamps.min(), all_stamps.max()))
    return f"holds other times, from {first} to {last}, and "


def _on_grid(
    rows: Ahead, used: IntArray, lane: IntArray, stamps: IntArray, *, nearest: bool
) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Give the column of each row, and whether it is one that is forecast."""
    placed = place(rows.origins[lane], stamps, rows.freq, rows.style.zone, nearest=nearest)
    column = placed.ordinals - rows.last[lane] - 1
    inside = (column >= 0) & (column < rows.n)
    _refuse(
        inside & (placed.moves != 0) & (not nearest),
        used, lane, stamps, rows,
        f"futr_df has stamps off the {rows.freq.grid_name} grid",
        "Give the stamps of make_future_frame(), or make the forecaster with align='nearest'.",
    )  # fmt: skip
    return column, inside


def _refuse(
    bad: npt.NDArray[np.bool_], used: IntArray, lane: IntArray, stamps: IntArray, rows: Ahead, what: str, cure: str
) -> None:
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise StampError(
            f"{what}: {counted(int(bad.sum()), 'row')}, first at row {used[row]} ({rows.ids[lane[row]]!r}, "
            f"{show(int(stamps[row]), rows.style)}). {cure}"
        )


def _refuse_missing(out: FloatArray, rows: Ahead, roles: Roles, *, what: str) -> None:
    missing = np.argwhere(np.isnan(out) & (True if rows.asked is None else rows.asked.inside[..., None]))
    if not len(missing):
        return
    stamps = rows.stamps()
    shown = [
        f"({rows.ids[lane]!r}, {show(int(stamps[lane, step]), rows.style)}, {roles.futr[i]!r})"
        for lane, step, i in missing[:5]
    ]
    raise FrameError(
        f"{what} {counted(len(missing), 'cell')}, such as {', '.join(shown)}. Give "
        f"futr_df=make_future_frame(h={rows.n}) with the columns {list(roles.futr)} filled in, or on_missing='mask' to "
        "forecast without what is not known."
    )


def _kind(unit: str, zone: str | None) -> str:
    if unit == "integer":
        return "integers"
    return "times without a zone" if zone is None else f"times with zone {zone}"
