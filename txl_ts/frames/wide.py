"""Wide frames: several target columns, and forecasts side by side again.

Each target becomes a series of its own, named ``"id/target"``: a lane with the same weights. With mixed channels the
targets of an id stay side by side, and are one lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import narwhals as nw
import numpy as np
import numpy.typing as npt

from txl_ts.errors import ColumnError, FrameError, ParameterError
from txl_ts.frames.columns import check_roles, open_frame
from txl_ts.frames.panel import Panel, SeriesId
from txl_ts.frames.read import read_long
from txl_ts.frames.roles import Covariates, Roles
from txl_ts.frames.style import FrameStyle
from txl_ts.frames.words import counted
from txl_ts.frames.write import id_frame, long_frame

IntArray = npt.NDArray[np.int64]

# Column of melted frames that names their series, where the frame had no id column.
SERIES_COL = "series"
# What forecasts are called behind the name of their target.
NAME = "TXL"


def check_targets(target_col: Any) -> tuple[str, ...]:
    """Give the target columns of a wide frame; none where ``target_col`` is one name.

    Raises
    ------
    ParameterError
        If it is no name and no list of distinct names.
    """
    if isinstance(target_col, str) or target_col is None or not isinstance(target_col, Sequence):
        return ()
    targets = tuple(target_col)
    if not targets or any(not isinstance(name, str) for name in targets) or len(set(targets)) < len(targets):
        raise ParameterError(
            f"target_col={list(targets)} must be the name of a column, or a list of different names such as "
            "target_col=['load', 'flow']."
        )
    return targets


def refuse_forecast_names(targets: Sequence[str]) -> None:
    """Raise ParameterError if a target is called what a forecast would be called: one would overwrite the other."""
    prefixes = [f"{target}_{NAME}" for target in targets] if len(targets) > 1 else [NAME]
    for prefix in prefixes:
        if taken := [name for name in targets if name == prefix or name.startswith((f"{prefix}-", f"{prefix}_"))]:
            raise ParameterError(
                f"target column {taken[0]!r} has the name of a forecast column ({prefix}, {prefix}-lo-80, …). "
                "Rename it."
            )


def read_wide(
    frame: object,
    *,
    targets: tuple[str, ...],
    id_col: str | None,
    time_col: str,
    origins: Mapping[Any, int] | None,
    beside: Roles | None,
    warn_unused: bool,
    is_mixed: bool = False,
    **settings: Any,
) -> Panel:
    """Read a wide frame, target by target; see :func:`~txl_ts.frames.read.read_long` for the arguments and errors.

    Returns
    -------
    Panel
        Series are named ``"id/target"``, ids first; ``panel.targets`` are the columns. With ``is_mixed`` series are the
        ids, and ``panel.values`` has an axis of targets: any of them may lack values.
    """
    wrapped = open_frame(frame)
    roles = [
        ("time column", time_col),
        *(("target column", name) for name in targets),
        *(beside.asked() if beside else []),
    ]
    check_roles(wrapped, roles if id_col is None else [("id column", id_col), *roles], warn_unused=warn_unused)
    own: dict[Any, int] | None = None if origins is None else dict(origins) if is_mixed else {}
    for name, stamp in () if is_mixed else (origins or {}).items():
        base = split_name(name, targets)[0]
        assert own is not None
        own[base] = stamp
        if base.lstrip("-").isdecimal():  # whole numbers may name series too
            own[int(base)] = stamp
    panels: list[Panel] = []
    for target in targets:
        kept = [name for role, name in roles if role != "target column" or name == target]
        panels.append(
            read_long(
                wrapped.select(*([] if id_col is None else [id_col]), *kept).to_native(),
                id_col=id_col,
                time_col=time_col,
                target_col=target,
                origins=own,
                beside=beside,
                warn_unused=False,
                needs_values=not is_mixed,
                **settings | ({"freq": panels[0].freq} if panels else {}),
            )
        )
    if is_mixed:
        return _side_by_side(panels, targets, known=origins or {}, skip=settings["on_bad_series"] == "skip")
    return _stacked(panels, targets)


def split_name(name: SeriesId, targets: Sequence[str]) -> tuple[str, int]:
    """Give the id, as text, and the position of the target that a series is named after."""
    text = str(name)
    at = max((i for i, t in enumerate(targets) if text.endswith(f"/{t}")), key=lambda i: len(targets[i]))
    return text[: -len(targets[at]) - 1], at


def base_ids(names: Sequence[SeriesId], targets: Sequence[str], style: FrameStyle) -> list[SeriesId]:
    """Names of the series in the frame, of the type that they have there."""
    if not targets:
        return list(names)
    texts = [split_name(name, targets)[0] for name in names]
    is_number = style.id_type.lower().startswith(("int", "uint")) or (
        bool(style.categories) and all(isinstance(word, int) for word in style.categories or ())
    )
    return [int(text) for text in texts] if is_number else list(texts)


def wide_frame(
    style: FrameStyle,
    *,
    targets: Sequence[str],
    ids: tuple[Sequence[SeriesId], IntArray],
    stamps: IntArray,
    columns: Mapping[str, npt.NDArray[Any]],
    values: npt.NDArray[Any] | None,
    extra_stamps: Mapping[str, IntArray] | None,
) -> Any:
    """Build the frame of :func:`~txl_ts.frames.write.long_frame` with a column per target and value.

    Columns are named ``"target_column"``, such as ``"load_TXL"``; ``values``, the targets themselves, by their name. A
    series that one target lacks has NaN there.
    """
    names, index = ids
    bases = base_ids(names, targets, style)
    distinct = list(dict.fromkeys(bases))
    where = {name: i for i, name in enumerate(distinct)}
    lane_base = np.array([where[name] for name in bases], np.int64)[index]
    lane_target = np.array([split_name(name, targets)[1] for name in names], np.int64)[index]
    extras = dict(extra_stamps or {})
    keys = np.stack([lane_base, *extras.values(), stamps], axis=1)
    found, row = np.unique(keys, axis=0, return_inverse=True)
    row = row.ravel()
    out: dict[str, npt.NDArray[Any]] = {}
    for i, target in enumerate(targets):
        mine = lane_target == i
        for name, column in {**columns, **({} if values is None else {"": values})}.items():
            spread = np.full(len(found), np.nan, np.float32)
            spread[row[mine]] = column[mine]
            out[f"{target}_{name}" if name else target] = spread
    extra = {name: found[:, 1 + i] for i, name in enumerate(extras)}
    return long_frame(style, ids=(distinct, found[:, 0]), stamps=found[:, -1], columns=out, extra_stamps=extra or None)


def melted(frame: Any, *, targets: Sequence[str], style: FrameStyle, value: str | None) -> Any:
    """Put the columns of each target under each other, for pictures: ids become ``"id/target"``, or the target alone.

    Parameters
    ----------
    frame : frame
        Of :func:`wide_frame`.
    targets : sequence of str
    style : FrameStyle
    value : str or None
        Name of the targets' own column; None takes the columns that were named after each target instead.
    """
    wide = open_frame(frame)
    parts = []
    for target in targets:
        prefix = f"{target}_{NAME}"
        own = (
            {c: c[len(target) + 1 :] for c in wide.columns if c.startswith(prefix)}
            if value is None
            else {target: value}
        )
        series = nw.lit(target)
        if style.id_col is not None:
            series = nw.concat_str([nw.col(style.id_col).cast(nw.String), nw.lit(f"/{target}")])
        series = series.alias(style.id_col or SERIES_COL)
        parts.append(wide.select(series, style.time_col, *own).rename(own))
    return nw.concat(parts).to_native()


def wide_id_frame(
    style: FrameStyle, *, targets: Sequence[str], ids: Sequence[SeriesId], columns: Mapping[str, npt.NDArray[Any]]
) -> Any:
    """Build the frame of :func:`~txl_ts.frames.write.id_frame` with a column per target and value."""
    bases = base_ids(ids, targets, style)
    distinct = list(dict.fromkeys(bases))
    where = {name: i for i, name in enumerate(distinct)}
    out: dict[str, npt.NDArray[Any]] = {}
    for i, target in enumerate(targets):
        mine = [k for k, name in enumerate(ids) if split_name(name, targets)[1] == i]
        for name, column in columns.items():
            spread = np.full(len(distinct), np.nan)
            spread[[where[bases[k]] for k in mine]] = column[mine]
            out[f"{target}_{name}"] = spread
    return id_frame(style, ids=distinct, columns=out)


def _side_by_side(panels: list[Panel], targets: tuple[str, ...], *, known: Mapping[Any, int], skip: bool) -> Panel:
    """Put the targets of each id into columns; grids are equal, since rows are."""
    skipped = {name: f"{targets[i]}: {why}" for i, panel in enumerate(panels) for name, why in panel.skipped}
    whole = [_without(panel, set(skipped)) for panel in panels]
    values = np.stack([panel.values for panel in whole], axis=1)
    first = whole[0]
    has_any = np.zeros(first.n_series, bool)
    np.logical_or.at(has_any, first.row_series(), np.isfinite(values).any(axis=1))
    empty = [name for i, name in enumerate(first.ids) if not has_any[i] and name not in known]
    if empty and not skip:
        raise ColumnError(
            f"target columns {list(targets)} have no value at all in {counted(len(empty), 'series', 'series')}, such "
            f"as {empty[:5]}. Drop such series, or read with on_bad_series='skip'."
        )
    skipped |= dict.fromkeys(empty, "no target has any value")
    if len(empty) == first.n_series:
        raise FrameError(f"all {len(skipped)} series were skipped: none has a value in {list(targets)}.")
    out = _without(replace(first, values=values, targets=targets), set(empty))
    n_missing, n_coarse = int(np.isnan(out.values).all(axis=1).sum()), sum(panel.report.n_coarse for panel in panels)
    report = replace(first.report, n_skipped=len(skipped), n_missing=n_missing, n_coarse=n_coarse)
    return replace(out, skipped=tuple(skipped.items()), report=report)


def _without(panel: Panel, gone: set[SeriesId]) -> Panel:
    """Leave series out."""
    if not gone & set(panel.ids):
        return panel
    kept = np.array([name not in gone for name in panel.ids])
    pieces = kept[panel.piece_series]
    rows = np.repeat(pieces, panel.lengths)
    covariates = panel.covariates
    if covariates is not None:
        covariates = replace(covariates.keep_rows(rows), static=covariates.static[kept])
    return replace(
        panel,
        ids=tuple(name for name in panel.ids if name not in gone),
        origins=panel.origins[kept],
        piece_series=(np.cumsum(kept) - 1)[panel.piece_series[pieces]],
        piece_first=panel.piece_first[pieces],
        offsets=np.concatenate([[0], np.cumsum(panel.lengths[pieces])]),
        values=panel.values[rows],
        source=None if panel.source is None else panel.source[rows],
        covariates=covariates,
    )


def _stacked(panels: list[Panel], targets: tuple[str, ...]) -> Panel:
    """Put the panels of all targets into one, whose series are sorted by id, then by target."""
    first = panels[0]
    order = sorted(
        ((name, i, at) for i, panel in enumerate(panels) for at, name in enumerate(panel.ids)),
        key=lambda entry: (entry[0], entry[1]),
    )
    ids = tuple(f"{name}/{targets[i]}" for name, i, _ in order)
    for name, (base, i, _) in zip(ids, order, strict=True):
        if split_name(name, targets) != (str(base), i):
            raise ParameterError(
                f"id {base!r} with target {targets[i]!r} has the name of another id and target, {name!r} (targets: "
                f"{list(targets)}). Rename a target."
            )
    series, starts, lengths, values, source, hist, futr = [], [], [], [], [], [], []
    for position, (_, i, at) in enumerate(order):
        panel = panels[i]
        for piece in np.flatnonzero(panel.piece_series == at):
            rows = slice(int(panel.offsets[piece]), int(panel.offsets[piece + 1]))
            series.append(position)
            starts.append(panel.piece_first[piece])
            lengths.append(rows.stop - rows.start)
            values.append(panel.values[rows])
            if panel.covariates is not None and panel.source is not None:
                source.append(panel.source[rows])
                hist.append(panel.covariates.hist[rows])
                futr.append(panel.covariates.futr[rows])
    covariates = None
    if first.covariates is not None:
        static = np.full((len(ids), first.covariates.static.shape[1]), np.nan, np.float32)
        covariates = Covariates(np.concatenate(hist), np.concatenate(futr), static)
    skipped = [(f"{name}/{targets[i]}", why) for i, panel in enumerate(panels) for name, why in panel.skipped]
    return replace(
        first,
        ids=ids,
        origins=np.array([panels[i].origins[at] for _, i, at in order], np.int64),
        piece_series=np.array(series, np.int64),
        piece_first=np.array(starts, np.int64),
        offsets=np.concatenate([[0], np.cumsum(np.array(lengths, np.int64))]),
        values=np.concatenate(values),
        skipped=tuple(skipped),
        report=replace(first.report, n_skipped=len(skipped), n_coarse=sum(panel.report.n_coarse for panel in panels)),
        source=np.concatenate(source) if source else None,
        covariates=covariates,
        targets=targets,
    )
