"""Columns beside the target, from the rows of a frame to the rows of a panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from txl_ts.errors import ColumnError, FrameError, ParameterError
from txl_ts.frames.calendar import calendar_features
from txl_ts.frames.columns import Frame, beyond_float32, check_roles, open_frame, read_ids
from txl_ts.frames.panel import ONLY_SERIES, Panel, SeriesId
from txl_ts.frames.roles import Covariates, FloatArray, Roles, learn_vocabulary, read_column
from txl_ts.frames.rows import Sieve
from txl_ts.frames.stamps import show
from txl_ts.frames.style import FrameStyle
from txl_ts.frames.words import counted

Columns = Mapping[str, npt.NDArray[np.floating[Any]]]


def with_vocabulary(roles: Roles, *, df: object, static_df: object) -> Roles:
    """Learn the categories of the frames of a fit."""
    if not roles.cat:
        return roles
    frames = {"df": open_frame(df)} | ({} if static_df is None else {"static_df": open_frame(static_df)})
    for name in roles.cat:
        check_roles(*_home(frames, roles, name), warn_unused=False)
    return learn_vocabulary(roles, {name: _home(frames, roles, name)[0] for name in roles.cat})


def _home(frames: Mapping[str, Frame], roles: Roles, name: str) -> tuple[Frame, list[tuple[str, str]]]:
    """Frame that a categorical column must stand in, and its role there."""
    if name not in roles.static:
        return frames["df"], [(f"{'hist' if name in roles.hist else 'futr'} column", name)]
    if "static_df" not in frames:
        raise ParameterError(
            f"static_cols={list(roles.static)} need static_df=…, with one row per series: the id column and these."
        )
    return frames["static_df"], [("static column", name)]


def read_beside(frame: Frame, roles: Roles, sieve: Sieve, style: FrameStyle) -> Columns:
    """Read all columns with a role, and refuse values that float32 cannot hold.

    Returns
    -------
    mapping of str to array of shape (rows of the frame,)
    """
    columns: dict[str, npt.NDArray[np.floating[Any]]] = {}
    for name in roles.hist + roles.futr:
        role = "hist" if name in roles.hist else "futr"
        columns[name] = read_column(frame, name, roles, role=role)
        values = _in_order(columns[name], sieve)
        sieve.refuse(
            beyond_float32(values),
            ColumnError,
            lambda row, count, name=name, role=role: (  # type: ignore[misc]
                f"{role} column {name!r} holds {counted(count, 'value')} outside the finite float32 numbers"
            ),
            "Replace them with null, or rescale the column.",
            detail=lambda row, values=values: f"{values[row]} at {show(int(sieve.rows.stamps[row]), style)}",  # type: ignore[misc]
        )
    return columns


def _in_order(values: npt.NDArray[np.floating[Any]], sieve: Sieve) -> npt.NDArray[np.floating[Any]]:
    return values[sieve.rows.order] if sieve.rows.order.size else values


def attach(panel: Panel, columns: Columns, roles: Roles) -> Panel:
    """Put the columns of the frame on the rows of its panel."""
    assert panel.source is not None
    row = np.maximum(panel.source, 0)
    filled = panel.source < 0

    def packed(names: tuple[str, ...]) -> FloatArray:
        out = np.empty((panel.n_rows, len(names)), np.float32)
        for i, name in enumerate(names):
            # A missing category is code 0, as one that was never seen.
            out[:, i] = np.where(filled, 0 if name in roles.cat else np.nan, columns[name][row])
        return out

    static = np.full((panel.n_series, len(roles.static)), np.nan, np.float32)
    return replace(panel, covariates=Covariates(packed(roles.hist), packed(roles.futr), static))


def with_calendar(panel: Panel, roles: Roles) -> Panel:
    """Put the features of the stamps beside the columns of the frame."""
    if not roles.calendar:
        return panel
    nothing = np.zeros((panel.n_rows, 0), np.float32)
    here = panel.covariates or Covariates(nothing, nothing, np.zeros((panel.n_series, 0), np.float32))
    stamps = panel.stamps(panel.row_series(), panel.row_ordinals())
    features = calendar_features(stamps, roles.calendar, zone=panel.zone)
    here = replace(here, futr=np.concatenate([here.futr, features], axis=1))
    return replace(panel, covariates=here, calendar=roles.calendar)


def with_static(
    panel: Panel,
    static_df: object,
    roles: Roles,
    *,
    known: Mapping[SeriesId, FloatArray],
    ids: Sequence[SeriesId] | None = None,
) -> Panel:
    """Give each series of a panel its static values: those of ``static_df``, else those that were fitted.

    Parameters
    ----------
    panel : Panel
        With covariates.
    static_df : frame or None
        One row per series: the id column (if there is one) and the static columns.
    roles : Roles
    known : mapping of id to float32 array of shape (n_static,)
        Of series that were fitted.
    ids : sequence of str or int, optional
        Names of the series in ``static_df`` and ``known``, where they are not those of the panel.

    Raises
    ------
    ParameterError
        If ``static_df`` is needed and missing, or given without static columns.
    FrameError
        If it lacks a series or has one twice.
    ColumnError
        If it lacks a column, or one holds what it must not hold.
    """
    if not roles.static:
        if static_df is not None:
            raise ParameterError("static_df was given, and no static_cols. Name its columns in static_cols of fit.")
        return panel
    given = {} if static_df is None else _read_static(static_df, roles, style=panel.style)
    values = {**known, **given}
    names = list(panel.ids if ids is None else ids)
    if absent := list(dict.fromkeys(name for name in names if name not in values)):
        wanted = [*([] if panel.style.id_col is None else [panel.style.id_col]), *roles.static]
        what = "static_df has no row for" if given else "static_cols need static_df=…, and it is missing for"
        raise (FrameError if given else ParameterError)(
            f"{what} {counted(len(absent), 'series', 'series')}, such as {absent[:5]}. "
            f"Give one row per series with the columns {wanted}; null where a value is not known."
        )
    static = np.array([values[name] for name in names], np.float32)
    assert panel.covariates is not None
    return replace(panel, covariates=replace(panel.covariates, static=static))


def _read_static(static_df: object, roles: Roles, *, style: FrameStyle) -> dict[SeriesId, FloatArray]:
    frame = open_frame(static_df)
    id_col = style.id_col
    asked = [("static column", name) for name in roles.static]
    check_roles(frame, asked if id_col is None else [("id column", id_col), *asked], warn_unused=False)
    ids: tuple[SeriesId, ...] = (ONLY_SERIES,)
    codes = np.zeros(frame.shape[0], np.int64)
    if id_col is not None:
        ids, codes = read_ids(frame, id_col)
    counts = np.bincount(codes)
    if (counts > 1).any():
        twice = [ids[code] for code in np.flatnonzero(counts > 1)]
        row = int(np.flatnonzero(codes == np.flatnonzero(counts > 1)[0])[1])
        raise FrameError(
            f"static_df has more than one row for {counted(len(twice), 'series', 'series')}, such as {twice[:5]} "
            f"(again at row {row}). Give one row per series, for example with drop_duplicates."
        )
    columns = []
    for name in roles.static:
        values = read_column(frame, name, roles, role="static")
        if len(bad := np.flatnonzero(beyond_float32(values))):
            raise ColumnError(
                f"static column {name!r} holds {counted(len(bad), 'value')} outside the finite float32 numbers, in "
                f"series {ids[codes[bad[0]]]!r} (first at row {bad[0]}: {values[bad[0]]}). Replace them with null, or "
                "rescale the column."
            )
        columns.append(values.astype(np.float32))
    rows = np.stack(columns, axis=1)
    return {ids[code]: rows[row] for row, code in enumerate(codes)}


def with_words_of(panel: Panel, part: Panel, roles: Roles) -> tuple[Panel, Roles]:
    """Forget the categories of rows that ``part`` does not have: a backtest must not know a word before it was said.

    Parameters
    ----------
    panel, part : Panel
        With covariates; ``part`` has some of the rows.
    roles : Roles

    Returns
    -------
    panel : Panel
        With the codes of the smaller vocabulary.
    roles : Roles
    """
    if panel.covariates is None or part.covariates is None:
        return panel, roles
    covariates, words = {"hist": panel.covariates.hist, "futr": panel.covariates.futr}, dict(roles.vocabulary)
    for role, values in covariates.items():
        values = covariates[role] = values.copy()
        for i, name in enumerate(getattr(roles, role)):
            if name not in roles.cat:
                continue
            known = np.unique(getattr(part.covariates, role)[:, i]).astype(np.int64)
            known = known[known > 0]
            new_code = np.zeros(len(words[name]) + 1, np.float32)
            new_code[known] = np.arange(1, len(known) + 1)
            values[:, i] = new_code[values[:, i].astype(np.int64)]
            words[name] = tuple(words[name][code - 1] for code in known)
    return replace(panel, covariates=replace(panel.covariates, **covariates)), replace(roles, vocabulary=words)


def run_of(panel: Panel, piece: int, first: int, stop: int, *, h: int) -> Covariates:
    """Cut the columns of a run of rows, and those of the ``h`` rows after it, out of a panel.

    Parameters
    ----------
    panel : Panel
        With covariates.
    piece : int
    first, stop : int
        Rows of the piece; a negative ``first`` adds rows before it, which are missing.
    h : int

    Returns
    -------
    Covariates
        NaN where the piece has no row; the calendar is known for all.
    """
    assert panel.covariates is not None
    here = panel.covariates
    begin, n_piece = int(panel.offsets[piece]), int(panel.lengths[piece])
    series = int(panel.piece_series[piece])

    def cut(values: FloatArray, n: int) -> FloatArray:
        inside = values[begin + max(first, 0) : begin + min(first + n, n_piece)]
        before, after = max(-first, 0), max(first + n - n_piece, 0)
        return np.pad(inside, ((before, after), (0, 0)), constant_values=np.nan) if before or after else inside

    n = stop - first
    futr = cut(here.futr, n + h)
    if panel.calendar and (first < 0 or stop + h > n_piece):
        futr = futr.copy()
        rows = np.concatenate([np.arange(first, 0), np.arange(n_piece, max(stop + h, n_piece))])
        stamps = panel.stamps(series, panel.piece_first[piece] + rows)
        stop_at = futr.shape[1] - (panel.row_stamps is not None)  # behind the calendar stands the time between rows
        features = calendar_features(stamps, panel.calendar, zone=panel.zone)
        futr[rows - first, stop_at - len(panel.calendar) : stop_at] = features
    return Covariates(cut(here.hist, n), futr, here.static[series])
