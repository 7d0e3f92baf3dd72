"""Read a long frame into a panel: every rule about what a frame may hold, in the order in which it is applied."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from txl_ts.errors import CleanedDataWarning, ColumnError, FrequencyError, ParameterError, StampError
from txl_ts.frames.aliases import parse_freq
from txl_ts.frames.beside import attach, read_beside
from txl_ts.frames.columns import (
    Frame,
    beyond_float32,
    check_roles,
    open_frame,
    read_ids,
    read_target,
    read_ticks,
    type_text,
)
from txl_ts.frames.freq import Freq, human_ns
from txl_ts.frames.grid import average_collisions, find_origins, place
from txl_ts.frames.infer import infer_freq
from txl_ts.frames.panel import ONLY_SERIES, CleaningReport, Panel, SeriesId
from txl_ts.frames.roles import Roles
from txl_ts.frames.rows import Rows, Sieve
from txl_ts.frames.slots import DAY_NS, Slots
from txl_ts.frames.stamps import show, to_native
from txl_ts.frames.style import NS_PER_UNIT, FrameStyle, Unit
from txl_ts.frames.uneven import cut_at_gaps, median_step
from txl_ts.frames.words import counted
from txl_ts.frames.zones import wall_of

IntArray = npt.NDArray[np.int64]

_FILL_RATIO, _FILL_FREE = 50, 1_000_000


def read_long(
    frame: object,
    *,
    id_col: str | None = "unique_id",
    time_col: str = "ds",
    target_col: str = "y",
    freq: str | int | Freq | None = "auto",
    align: str = "error",
    max_gap: int | None = None,
    on_bad_series: str = "raise",
    origins: Mapping[Any, int] | None = None,
    beside: Roles | None = None,
    warn_unused: bool = True,
    warn_cleaned: bool = True,
    needs_values: bool = True,
    zone: str | None = None,
) -> Panel:
    """Read a long frame: one row per series and time, in any order.

    The frame is left as it is.

    Parameters
    ----------
    frame : pandas or polars DataFrame, or pyarrow Table
        Series may have different lengths, gaps and missing values.
    id_col : str or None
        Column that names the series (strings, categories or integers); None if the frame is one series.
    time_col : str
        Datetimes (any unit, with or without a zone), dates, or integers.
    target_col : str
        Numbers; null and NaN are missing values.
    freq : str, int, Freq or None
        Step of the grid, in the spelling of pandas or polars; ``"auto"`` infers it from all series. None is uneven
        time: rows stay where they are, and distances are counted in median steps (``"~1h"``: in hours).
    align : {"error", "nearest"}
        Stamps off the grid and repeated stamps are an error, or are moved to the nearest grid point and averaged there.
    max_gap : int, optional
        A gap of more missing rows than this starts a new piece instead of being filled with NaN; where time is uneven,
        a gap of more median steps than this without a row.
    on_bad_series : {"raise", "skip"}
        Whether a series with missing values only, infinite values, or stamps that do not fit is an error, or is left
        out and listed in ``panel.skipped``.
    origins : mapping of id to int, optional
        Native stamps of ordinal 0 of series that are known already. Their ordinals continue that grid, rows before it
        are an error, and rows without any value are allowed.
    beside : Roles, optional
        Columns beside the target, with their vocabulary; ``panel.covariates`` holds them (static ones are put there by
        :func:`~txl_ts.frames.beside.with_static`).
    warn_unused : bool
        Whether columns without a role give an UnusedColumnsWarning.
    warn_cleaned : bool
        Whether moved, merged and skipped rows give a CleanedDataWarning.
    needs_values : bool
        Whether a series that is not known needs any value at all.
    zone : str, optional
        Zone whose wall clock the grid and the calendar follow, instead of that of the time column; a column without a
        zone has none all the same.

    Returns
    -------
    Panel
        The series on their grid.

    Raises
    ------
    FrameError
        If the frame is of another kind, empty, or all its series were skipped.
    ColumnError
        If a column is missing or holds what it must not hold.
    FrequencyError
        If the frequency is unknown, cannot be inferred, or differs between series.
    StampError
        If stamps are missing, repeat, lie off the grid, before a known origin, or absurdly far away.

    Examples
    --------
    >>> import pandas as pd
    >>> from txl_ts.frames import read_long
    >>> days = pd.to_datetime(["2024-01-01", "2024-01-04", "2024-01-02"])
    >>> df = pd.DataFrame({"unique_id": "a", "ds": days, "y": [1, 4, 2]})
    >>> panel = read_long(df)
    >>> panel.freq.text, panel.values
    ('1D', array([ 1.,  2., nan,  4.], dtype=float32))
    """
    _check_settings(
        id_col=id_col,
        time_col=time_col,
        target_col=target_col,
        align=align,
        max_gap=max_gap,
        on_bad_series=on_bad_series,
    )
    wrapped = open_frame(frame)
    roles = [("time column", time_col), ("target column", target_col)]
    roles = roles if id_col is None else [("id column", id_col), *roles]
    check_roles(wrapped, roles + (beside.asked() if beside else []), warn_unused=warn_unused)
    ids, codes = _read_ids(wrapped, id_col)
    ticks, unit, own_zone = read_ticks(wrapped, time_col)
    zone = own_zone if own_zone is None or zone is None else zone
    style = _read_style(wrapped, id_col, time_col, target_col, unit, zone)
    rows = Rows.sorted(codes, to_native(ticks, unit, time_col), read_target(wrapped, target_col))
    sieve = Sieve(rows, ids, style, skip=on_bad_series == "skip")
    _refuse_values(sieve, style, known=(origins or {}) if needs_values else dict.fromkeys(ids, 0))
    columns = read_beside(wrapped, beside, sieve, style) if beside else None
    if align == "error" or _is_uneven(freq):
        _refuse_repeats(sieve, style, uneven=_is_uneven(freq))
    step = _settle_freq(sieve, style, freq, known=origins)
    starts = _place(sieve, style, step, origins or {}, nearest=align == "nearest")
    panel = _pack(sieve, style, step, starts, max_gap, with_source=columns is not None)
    if beside and columns is not None:
        panel = attach(panel, columns, beside)
    if warn_cleaned:
        _warn_cleaned(panel.report)
    return panel


def check_column_names(**names: Any) -> None:
    """Raise ParameterError unless the columns of a call are named by strings; ``id_col`` may be None."""
    for argument, name in names.items():
        if not isinstance(name, str) and not (argument == "id_col" and name is None):
            got = repr(name) if isinstance(name, int | float | None) else f"a {type(name).__name__}"
            raise ParameterError(
                f"{argument} must be the name of a column, a string, got {got}. "
                "Rename the columns of the frame if they are numbered."
            )


def _check_settings(**settings: Any) -> None:
    check_column_names(**{name: settings[name] for name in ("id_col", "time_col", "target_col")})
    for name, allowed in {"align": ("error", "nearest"), "on_bad_series": ("raise", "skip")}.items():
        if settings[name] not in allowed:
            raise ParameterError(f"{name} must be one of {allowed}, got {settings[name]!r}.")
    max_gap = settings["max_gap"]
    if max_gap is not None and (not isinstance(max_gap, int | np.integer) or isinstance(max_gap, bool) or max_gap < 0):
        raise ParameterError(f"max_gap must be a number of rows (0 or more) or None, got {max_gap!r}.")


def _read_ids(frame: Frame, id_col: str | None) -> tuple[tuple[SeriesId, ...], IntArray]:
    if id_col is None:
        return (ONLY_SERIES,), np.zeros(frame.shape[0], dtype=np.int64)
    return read_ids(frame, id_col)


def _read_style(
    frame: Frame, id_col: str | None, time_col: str, target_col: str, unit: Unit, zone: str | None
) -> FrameStyle:
    implementation: Any = str(frame.implementation)
    id_type, categories, ordered = "", None, False
    if id_col is not None:
        id_type = _type_of(frame, id_col)
        categories, ordered = _categories(frame, id_col)
    time_type = _type_of(frame, time_col)
    return FrameStyle(implementation, id_col, time_col, target_col, id_type, time_type, unit, zone, categories, ordered)


def _type_of(frame: Frame, column: str) -> str:
    """Type of a column as `write` reads it: for polars the class, since zone and categories stand elsewhere."""
    text = type_text(frame[column])
    return text.partition("(")[0] if frame.implementation.is_polars() else text


def _categories(frame: Frame, column: str) -> tuple[tuple[Any, ...] | None, bool]:
    native = frame[column].to_native()
    text = type_text(frame[column])
    if text == "category":
        return tuple(native.cat.categories.tolist()), bool(native.cat.ordered)
    if text.startswith("Enum"):
        return tuple(native.dtype.categories.to_list()), False
    if text.startswith("dictionary"):
        return tuple(native.unify_dictionaries().combine_chunks().dictionary.to_pylist()), bool(native.type.ordered)
    return None, False


# --------------------------------------------------------------------------------------------------------------- checks


def _refuse_values(sieve: Sieve, style: FrameStyle, *, known: Mapping[Any, int]) -> None:
    column = style.target_col
    sieve.refuse(
        beyond_float32(sieve.rows.values),
        ColumnError,
        lambda row, count: (
            f"target column {column!r} holds {counted(count, 'value')} outside the finite float32 numbers"
        ),
        "Replace them with null, or rescale the column.",
        detail=lambda row: f"{sieve.rows.values[row]} at {show(int(sieve.rows.stamps[row]), style)}",
    )
    missing = np.isnan(sieve.rows.values)
    if not missing.any():
        return
    starts = sieve.rows.starts()
    empty = np.logical_and.reduceat(missing, starts)
    empty &= np.array([name not in known for name in sieve.ids])
    bad = np.zeros(len(missing), dtype=bool)
    bad[starts[empty]] = True
    sieve.refuse(
        bad,
        ColumnError,
        lambda row, count: f"target column {column!r} has no value at all",
        "Drop such series, or read with on_bad_series='skip'.",
    )


def _is_uneven(freq: str | int | Freq | None) -> bool:
    return freq is None or (freq != "auto" and parse_freq(freq).is_uneven)


def _refuse_repeats(sieve: Sieve, style: FrameStyle, *, uneven: bool) -> None:
    codes, stamps = sieve.rows.codes, sieve.rows.stamps
    repeated = np.zeros(len(codes), dtype=bool)
    repeated[1:] = (codes[1:] == codes[:-1]) & (stamps[1:] == stamps[:-1])
    sieve.refuse(
        repeated,
        StampError,
        lambda row, count: f"time column {style.time_col!r} repeats {counted(count, 'time')}",
        "Times must be distinct within a series. Drop the repeats, or average them"
        + (" yourself: uneven time has no grid to merge them on." if uneven else " with align='nearest'."),
    )


# ------------------------------------------------------------------------------------------------------------ frequency


def _settle_freq(
    sieve: Sieve, style: FrameStyle, freq: str | int | Freq | None, *, known: Mapping[Any, int] | None
) -> Freq:
    if freq is None:
        return median_step(sieve.rows.codes, sieve.rows.stamps, is_integer=style.unit == "integer")
    if isinstance(freq, str) and freq == "auto":
        return _inferred(sieve, style)
    given = parse_freq(freq)
    _check_kind(given, style)
    if known is None and given.unit in {"mo", "q", "y"}:
        return _month_freq(given, wall_of(sieve.rows.stamps, style.zone))
    return given


def _inferred(sieve: Sieve, style: FrameStyle) -> Freq:
    rows = sieve.rows
    votes = infer_freq(rows.codes, rows.stamps, len(sieve.ids), is_integer=style.unit == "integer", zone=style.zone)
    if votes.others:
        starts = rows.starts()
        bad = np.zeros(len(rows.codes), dtype=bool)
        bad[starts[list(votes.others)]] = True
        listed = [f"{sieve.ids[code]!r} {freq.text}" for code, freq in list(votes.others.items())[:5]]
        texts = {int(starts[code]): freq.text for code, freq in votes.others.items()}
        sieve.refuse(
            bad,
            FrequencyError,
            lambda row, count: f"the most common freq is {votes.winner.text!r}, but {texts[row]!r} was found",
            f"Other than {votes.winner.text}: {', '.join(listed)} ({len(votes.others)} of {len(sieve.ids)} series). "
            "Give freq, read each group by itself, or leave these out with on_bad_series='skip'.",
        )
    return votes.winner


def _check_kind(freq: Freq, style: FrameStyle) -> None:
    if freq.is_integer != (style.unit == "integer"):
        held = "integers" if style.unit == "integer" else "datetimes"
        cure = "an integer such as freq=1" if style.unit == "integer" else "a length of time such as freq='1h'"
        if freq.is_uneven:
            cure = "freq=None, which takes the median step as the unit"
        raise FrequencyError(
            f"freq={freq.text!r} does not fit time column {style.time_col!r}, which holds {held}. Give {cure}."
        )
    if freq.kind == "fixed" and freq.step % NS_PER_UNIT[style.unit]:
        raise FrequencyError(
            f"freq={freq.text!r} is finer than time column {style.time_col!r}, which counts in {style.unit!r}. "
            "Cast the column to a finer type, such as datetime with 'us'."
        )


def _month_freq(freq: Freq, wall: IntArray) -> Freq:
    """A step in months by day, told more exactly if all rows are first or last days (so that 28 February knows)."""
    slots = Slots("month_day")
    month = slots.slot_of(wall)
    day = (wall - slots.start_of(month)) // DAY_NS
    if not day.any():
        return parse_freq(f"{freq.step}{freq.family}S")
    if (slots.start_of(month) + (day + 1) * DAY_NS == slots.start_of(month + 1)).all():
        return parse_freq(f"{freq.step}{freq.family}E")
    return freq


# ----------------------------------------------------------------------------------------------------------------- grid


def _place(sieve: Sieve, style: FrameStyle, freq: Freq, known: Mapping[Any, int], *, nearest: bool) -> IntArray:
    """Place the rows on the grid; gives the origin of every series that is left."""
    if freq.is_uneven:
        starts = sieve.rows.starts()
        number = np.arange(len(sieve.rows.codes)) - starts[sieve.rows.codes]
        sieve.rows = replace(sieve.rows, ordinals=number, moves=np.zeros_like(number))
        return sieve.rows.stamps[starts]
    origins = _origins(sieve, style, freq, known)
    placed = place(origins[sieve.rows.codes], sieve.rows.stamps, freq, style.zone, nearest=nearest)
    sieve.rows = replace(sieve.rows, ordinals=placed.ordinals, moves=placed.moves)
    origin_of = dict(zip(sieve.ids, origins.tolist(), strict=True))
    is_known = np.array([name in known for name in sieve.ids])
    sieve.refuse(
        (sieve.rows.ordinals < 0) & is_known[sieve.rows.codes],
        StampError,
        lambda row, count: (
            f"time column {style.time_col!r} has {counted(count, 'row')} before "
            f"{show(origin_of[sieve.ids[sieve.rows.codes[row]]], style)}, where the known series starts,"
        ),
        "Drop these rows, or fit again with them.",
    )
    if not nearest:
        sieve.refuse(
            sieve.rows.moves != 0,
            StampError,
            lambda row, count: (
                f"time column {style.time_col!r} has {counted(count, 'row')} off the {freq.grid_name} grid"
            ),
            "Give the freq that these rows have, or move them to the grid with align='nearest'.",
        )
    origins = np.array([origin_of[name] for name in sieve.ids], dtype=np.int64)
    return _start_at_zero(sieve, style, freq, origins, known)


def _origins(sieve: Sieve, style: FrameStyle, freq: Freq, known: Mapping[Any, int]) -> IntArray:
    if known and all(name in known for name in sieve.ids):
        return np.array([known[name] for name in sieve.ids], dtype=np.int64)
    origins = find_origins(sieve.rows.codes, sieve.rows.stamps, len(sieve.ids), freq, style.zone)
    for position, name in enumerate(sieve.ids):
        if name in known:
            origins[position] = known[name]
    return origins


def _start_at_zero(
    sieve: Sieve, style: FrameStyle, freq: Freq, origins: IntArray, known: Mapping[Any, int]
) -> IntArray:
    first = sieve.rows.ordinals[sieve.rows.starts()]
    first[[name in known for name in sieve.ids]] = 0
    if not first.any():
        return origins
    sieve.rows = replace(sieve.rows, ordinals=sieve.rows.ordinals - first[sieve.rows.codes])
    return freq.shift(origins, first, style.zone)


# ----------------------------------------------------------------------------------------------------------------- pack

# Rounding errors of more than this part of a deviation are said.
_COARSE = 0.03


@dataclass(frozen=True)
class _Pieces:
    """Where pieces start and how long they are on the grid."""

    first_row: IntArray
    lengths: IntArray
    n_cut: int


def _pack(
    sieve: Sieve, style: FrameStyle, freq: Freq, origins: IntArray, max_gap: int | None, *, with_source: bool
) -> Panel:
    origin_of = dict(zip(sieve.ids, origins.tolist(), strict=True))
    if not freq.is_uneven:
        _refuse_far_away(sieve, freq, max_gap)
    rows = sieve.rows
    n_missing = int(np.isnan(rows.values).sum())
    codes, ordinals, values, n_collided = _merged(rows)
    pieces = _cut(codes, ordinals, max_gap)
    if freq.is_uneven:
        pieces = _cut_rows(codes, cut_at_gaps(codes, rows.stamps, max_gap=max_gap, step=freq.step))
    offsets = np.concatenate(([0], np.cumsum(pieces.lengths)))
    packed = np.full(int(offsets[-1]), np.nan, dtype=np.float32)
    counts = np.diff(np.append(pieces.first_row, len(codes)))
    target = ordinals + np.repeat(offsets[:-1] - ordinals[pieces.first_row], counts)
    packed[target] = values
    source = None
    if with_source:
        source = np.full(len(packed), -1, dtype=np.int64)
        source[target] = _first_of_each(rows)
    report = CleaningReport(
        n_moved=int(np.count_nonzero(rows.moves)),
        max_move=_length_text(int(np.abs(rows.moves).max()), freq),
        n_collided=n_collided,
        n_filled=len(packed) - len(codes),
        n_cut=pieces.n_cut,
        n_missing=n_missing,
        n_skipped=len(sieve.skipped),
        n_coarse=_count_coarse(codes, values, len(sieve.ids)),
        grid=freq.grid_name,
    )
    return Panel(
        ids=sieve.ids,
        origins=np.array([origin_of[name] for name in sieve.ids], dtype=np.int64),
        piece_series=codes[pieces.first_row],
        piece_first=ordinals[pieces.first_row],
        offsets=offsets,
        values=packed,
        freq=freq,
        style=style,
        skipped=tuple(sieve.skipped),
        report=report,
        source=source,
        row_stamps=rows.stamps if freq.is_uneven else None,
    )


def _count_coarse(codes: IntArray, values: npt.NDArray[np.floating[Any]], n_series: int) -> int:
    """Count series of which float32 keeps less than the changes are worth: errors beyond 3 % of the deviation."""
    there = np.isfinite(values)
    codes, values = codes[there], values[there].astype(np.float64)
    rounding = np.bincount(codes, np.square(values - values.astype(np.float32)), minlength=n_series)
    if not rounding.any():
        return 0
    n = np.maximum(np.bincount(codes, minlength=n_series), 1)
    mean = np.bincount(codes, values, minlength=n_series) / n
    squares = np.bincount(codes, np.square(values - mean[codes]), minlength=n_series)
    changes = squares > n * np.square(1e-12 * mean)  # a constant has none, to the digits of float64
    return int((changes & (rounding > _COARSE**2 * squares)).sum())


def _first_of_each(rows: Rows) -> IntArray:
    """Row of the frame behind each grid stamp that has one: the first of those that were merged."""
    fresh = np.ones(len(rows.codes), dtype=bool)
    fresh[1:] = (rows.codes[1:] != rows.codes[:-1]) | (rows.ordinals[1:] != rows.ordinals[:-1])
    return rows.order[fresh] if rows.order.size else np.flatnonzero(fresh)


def _merged(rows: Rows) -> tuple[IntArray, IntArray, npt.NDArray[np.floating[Any]], int]:
    taken = (rows.codes[1:] == rows.codes[:-1]) & (rows.ordinals[1:] == rows.ordinals[:-1])
    n_collided = int(np.count_nonzero(taken))
    if not n_collided:
        return rows.codes, rows.ordinals, rows.values, 0
    return *average_collisions(rows.codes, rows.ordinals, rows.values), n_collided


def _cut(codes: IntArray, ordinals: IntArray, max_gap: int | None) -> _Pieces:
    starts = np.ones(len(codes), dtype=bool)
    new_series = codes[1:] != codes[:-1]
    starts[1:] = new_series if max_gap is None else new_series | (np.diff(ordinals) - 1 > max_gap)
    first_row = np.flatnonzero(starts)
    last_row = np.append(first_row[1:], len(codes)) - 1
    lengths = ordinals[last_row] - ordinals[first_row] + 1
    return _Pieces(first_row, lengths, len(first_row) - 1 - int(np.count_nonzero(new_series)))


def _cut_rows(codes: IntArray, starts: npt.NDArray[np.bool_]) -> _Pieces:
    first_row = np.flatnonzero(starts)
    return _Pieces(first_row, np.diff(np.append(first_row, len(codes))), len(first_row) - int(codes[-1]) - 1)


def _refuse_far_away(sieve: Sieve, freq: Freq, max_gap: int | None) -> None:
    """Refuse series that one wrong stamp would blow up to millions of rows, before anything is allocated."""
    rows, n = sieve.rows, len(sieve.rows.codes)
    gaps = np.diff(rows.ordinals, prepend=rows.ordinals[:1]) - 1
    gaps[rows.starts()] = 0
    gaps = np.maximum(gaps, 0)
    if max_gap is not None:
        gaps[gaps > max_gap] = 0
    if float(gaps.sum(dtype=np.float64)) <= _FILL_RATIO * n + _FILL_FREE:
        return
    starts = rows.starts()
    filled = np.add.reduceat(gaps.astype(np.float64), starts)
    counts = np.diff(np.append(starts, n))
    too_much = filled > counts * (_FILL_RATIO + _FILL_FREE / n)
    longest = np.maximum.reduceat(gaps, starts)
    sieve.refuse(
        too_much[rows.codes] & (gaps == longest[rows.codes]) & (gaps > 0),
        StampError,
        lambda row, count: (
            f"the gap of {gaps[row]:,} rows ({freq.duration(int(gaps[row]))}) before a stamp is too long to fill"
        ),
        "Correct the stamp, or cut there with max_gap=… rows.",
    )


def _length_text(length: int, freq: Freq) -> str:
    return str(length) if freq.is_integer else human_ns(length)


def _warn_cleaned(report: CleaningReport) -> None:
    told = report.changes()
    if told:
        warnings.warn(" ".join(told), CleanedDataWarning, stacklevel=3)
