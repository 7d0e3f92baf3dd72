"""Pictures of forecasts, of backtests, and of streams that are watched.

matplotlib, from the extra ``plot``, loads when one is drawn.
No window is opened and pyplot is not touched: what comes back is a ``matplotlib.figure.Figure``, which a notebook shows
and ``figure.savefig("forecast.png")`` writes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, Literal
from zoneinfo import ZoneInfo

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import ColumnError, MissingExtraError, ParameterError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's blue and orange: told apart by the colour-blind, and in print.
BLUE, ORANGE, INK = "#0072B2", "#D55E00", "#333333"
PURPLE = "#9467BD"
# So many series are drawn where none are named.
N_PANELS = 6
_N_CUTOFFS = 5
# History is shown for this many times the length of what is forecast.
_TIMES_HISTORY = 4
# Neighbours further apart than this many steps are not joined by a line.
_GAP = 4
_BAND = re.compile(r"^(?P<model>.+)-(?P<side>lo|hi)-(?P<level>[\d.]+)$")
_QUANTILE = re.compile(r"^(?P<model>.+)_ql(?P<level>0?\.\d+)$")

_ABOVE: Literal["outside upper center"] = "outside upper center"

Array = NDArray[Any]


@dataclass(frozen=True)
class Band:
    """Two columns that enclose a part of the outcomes.

    Attributes
    ----------
    level : float
        In percent.
    low, high : str
        Column names.
    """

    level: float
    low: str
    high: str


def plot_forecast(
    forecast: Any,
    history: Any = None,
    *,
    actuals: Any = None,
    ids: Sequence[str | int] | None = None,
    n_history: int | None = None,
    id_col: str | None = "unique_id",
    time_col: str = "ds",
    target_col: str = "y",
    model_col: str = "TXL",
) -> Figure:
    """Draw forecasts behind the history that they continue.

    Parameters
    ----------
    forecast : frame
        Of ``predict``: id, time, median, and columns of bands (``TXL-lo-80``) or quantiles (``TXL_ql0.1``).
    history, actuals : frame, optional
        Id, time and target of the rows before, and of those that came after.
    ids : sequence, optional
        Series to draw, one panel each. Default: the first six.
    n_history : int, optional
        Rows of history per panel. Default: four times the rows of the forecast.
    id_col, time_col, target_col, model_col : str

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    MissingExtraError
        Without matplotlib.
    ColumnError
        If a frame lacks a column.
    ParameterError
        If a series of ``ids`` is not in the forecast.
    """
    ahead = _columns(forecast, id_col, time_col, model_col)
    past = {} if history is None else _by_series(_columns(history, id_col, time_col, target_col), id_col)
    came = {} if actuals is None else _by_series(_columns(actuals, id_col, time_col, target_col), id_col)
    parts = _by_series(ahead, id_col)
    bands = bands_of(ahead.columns, model_col)
    figure, panels = _panels(_picked(parts, ids))
    for axes, name in panels:
        part = parts[name]
        kept = _TIMES_HISTORY * len(part) if n_history is None else n_history
        last = _draw_history(axes, past.get(name), kept, time_col, target_col)
        _draw_forecast(axes, part, bands, time_col, model_col, joined_to=last)
        if name in came:
            _draw_actuals(axes, came[name], time_col, target_col, joined_to=last)
        _finish(axes, name, target_col, zone=_zone_of(forecast, time_col))
    _legend(figure)
    return figure


def plot_backtest(
    frame: Any,
    history: Any = None,
    *,
    ids: Sequence[str | int] | None = None,
    cutoffs: int | Sequence[Any] = _N_CUTOFFS,
    id_col: str | None = "unique_id",
    time_col: str = "ds",
    target_col: str = "y",
    cutoff_col: str = "cutoff",
    model_col: str = "TXL",
) -> Figure:
    """Draw the forecasts of a backtest over what came.

    Parameters
    ----------
    frame : frame
        Of ``cross_validation``: id, time, cutoff, median, bands or quantiles, target.
    history : frame, optional
        All rows, to show what came before the first cutoff that is drawn.
    ids : sequence, optional
        Series to draw, one panel each. Default: the first six.
    cutoffs : int or sequence
        Stamps of the cutoffs to draw, or how many: the last ones that do not overlap.
    id_col, time_col, target_col, cutoff_col, model_col : str

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    MissingExtraError
        Without matplotlib.
    ColumnError
        If a frame lacks a column.
    ParameterError
        If a series or a cutoff is not there.
    """
    table, zone = _columns(frame, id_col, time_col, cutoff_col, model_col, target_col), _zone_of(frame, time_col)
    past = {} if history is None else _by_series(_columns(history, id_col, time_col, target_col), id_col)
    parts = _by_series(table, id_col)
    bands = bands_of(table.columns, model_col)
    figure, panels = _panels(_picked(parts, ids))
    for axes, name in panels:
        part = parts[name]
        chosen = _chosen_cutoffs(part, cutoffs, time_col, cutoff_col, zone=zone)
        shown = part.filter(nw.col(cutoff_col).is_in(chosen))
        rows = past.get(name, shown.unique(time_col)).filter(nw.col(time_col) <= shown[time_col].max()).sort(time_col)
        begun = len(rows.filter(nw.col(time_col) <= min(chosen)))
        n_ahead = len(shown.filter(nw.col(cutoff_col) == min(chosen)))
        rows = rows.tail(len(rows) - max(begun - n_ahead, 0))
        times, values = rows[time_col].to_numpy(), _numbers(rows[target_col])
        _line(axes, times, values, color=INK, lw=1.3, label="what came", zorder=4)
        seen = dict(zip(rows[time_col].to_list(), values, strict=True))
        for cutoff in chosen:
            one = shown.filter(nw.col(cutoff_col) == cutoff)
            last = seen.get(cutoff, np.nan)
            joined = (_moments([cutoff])[0], last) if np.isfinite(last) else None
            _draw_forecast(axes, one, bands, time_col, model_col, joined_to=joined)
            axes.axvline(_moments([cutoff])[0], color=INK, lw=0.7, ls=":", alpha=0.6, label="cutoff")
        _finish(axes, name, target_col, zone=zone)
    _legend(figure)
    return figure


def plot_watch(
    rows: Sequence[Any], *, sensors: Sequence[str] | None = None, threshold: float | None = None, title: str = ""
) -> Figure:
    """Draw what was watched: each sensor with the band that was expected, the score, the statuses, and the alerts.

    Parameters
    ----------
    rows : sequence of Watched
        Of one stream, in their order.
    sensors : sequence of str, optional
        Columns to draw, one panel each. Default: the first six.
    threshold : float, optional
        The score at which a row alarms, such as ``calibration.threshold``.
    title : str

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    MissingExtraError
        Without matplotlib.
    ParameterError
        If there is nothing to draw, or a sensor is not in the rows.
    """
    used = [one for one in rows if one.row.is_used]
    if not used:
        raise ParameterError(f"none of the {len(rows)} rows to draw was used by a model: give rows of one stream.")
    known = list(used[0].row.values)
    if missing := [name for name in sensors or [] if name not in known]:
        raise ParameterError(f"sensors={missing[:5]} are not in the rows, which hold {known[:8]}.")
    shown = list(sensors or known[:N_PANELS])
    told = {one.status for one in rows}
    statuses = [status for status in STATUS_COLORS if status in told]
    figure, panels = _watch_panels(shown, n_statuses=len(statuses))
    times = _stamps([one.row.stamp for one in used])
    for axes, name in zip(panels, shown, strict=False):
        low, high = (np.array([one.band[name][i] if name in one.band else np.nan for one in used]) for i in (0, 1))
        axes.fill_between(times, low, high, color=BLUE, alpha=0.25, lw=0, label="expected")
        values = np.array([np.nan if one.row.values[name] is None else one.row.values[name] for one in used], float)
        _line(axes, times, values, color=INK, lw=0.9, label="what came", zorder=3)
        _limit(axes, values)
        _finish(axes, name, "")
    _draw_score(panels[-2], times, np.array([one.score for one in used]), threshold)
    _draw_statuses(panels[-1], rows, statuses)
    for axes in panels[:-1]:
        axes.tick_params(labelbottom=False)
    for first, last, kind in _episodes(rows):
        is_anomaly = kind == "anomaly"
        color, label = (ORANGE, "alert: anomaly") if is_anomaly else (PURPLE, "alert: a sensor or clock")
        for axes in panels[:-1]:
            axes.axvspan(first, last, facecolor=color, edgecolor=color, alpha=0.18, lw=0.8, zorder=0, label=label)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize="large", fontweight="bold")
    _legend(figure, loc="outside lower center")
    return figure


# Statuses of a row: what the model lacks in greys and blues, what is wrong with a sensor or a clock in warm colours.
STATUS_COLORS = {
    "warming_up": "#BBBBBB",
    "missing": "#56B4E9",
    "gap_bridged": "#0072B2",
    "reset": "#000000",
    "stale": "#CC79A7",
    "stuck": "#E69F00",
    "out_of_range": "#D55E00",
    "unit_suspect": "#A6611A",
    "late_dropped": "#80B1A3",
    "duplicate": "#009E73",
    "clock_back": "#00553D",
    "clock_ahead": "#7570B3",
    "drift": "#661100",
}


def _watch_panels(sensors: Sequence[str], *, n_statuses: int) -> tuple[Figure, list[Axes]]:
    """Make a panel per sensor, one for the score, and one with a line for each status."""
    heights = [1.1] * len(sensors) + [1.1, 0.19 * max(n_statuses, 1)]
    figure = _figure(10, sum(heights) + 0.45 * len(heights) + 0.8)
    grid = figure.subplots(len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})
    return figure, list(grid[:, 0])


def _draw_score(axes: Axes, times: Array, score: Array, threshold: float | None) -> None:
    _line(axes, times, score, color=BLUE, lw=0.9, label="score", zorder=3)
    highest = np.nanmax(score, initial=0.0)
    if threshold is not None:
        axes.axhline(threshold, color=ORANGE, lw=1.1, ls="--", label="alarm level", zorder=4)
        if highest > 20 * threshold > 0:  # one huge peak must not flatten all others
            axes.set_yscale("symlog", linthresh=threshold)
            axes.set_ylim(0, 1.5 * highest)
            powers = range(math.ceil(math.log10(threshold)), math.floor(math.log10(highest)) + 1)
            axes.set_yticks([0.0, *(10.0**k for k in powers)], ["0", *(f"{10.0**k:g}" for k in powers)])
    _finish(axes, "score", "")


def _draw_statuses(axes: Axes, rows: Sequence[Any], statuses: Sequence[str]) -> None:
    now, moments = None, []
    for one in rows:  # a refused reading has the stamp of a wrong clock: it is drawn where it came
        now = one.row.stamp if one.row.is_used or now is None else now
        moments.append(now)
    for place, status in enumerate(statuses):
        at = _stamps([moment for moment, one in zip(moments, rows, strict=True) if one.status == status])
        axes.plot(at, np.full(len(at), -place), "|", color=STATUS_COLORS[status], ms=9, mew=1.3)
    axes.set_yticks([-place for place in range(len(statuses))], statuses, fontsize="small")
    axes.set_ylim(-max(len(statuses), 1) + 0.4, 0.6)
    _finish(axes, "status of the rows that are not ok", "")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _episodes(rows: Sequence[Any]) -> list[tuple[Any, Any, str]]:
    """Give beginning, end and kind of each alert; one that is not over lasts to the last row."""
    end = max(one.row.stamp for one in rows if one.row.is_used)
    begun: dict[str, tuple[int, str]] = {}
    found: list[tuple[int, int, str]] = []
    for alert in (alert for one in rows for alert in one.alerts):
        if alert.event == "raised":
            begun[alert.id] = (alert.since, alert.kind)
        elif alert.id in begun:
            since, kind = begun.pop(alert.id)
            found.append((since, alert.at, kind))
    found += [(since, end, kind) for since, kind in begun.values()]
    return [(*_stamps([first, max(last, first)]), kind) for first, last, kind in found]


def _limit(axes: Axes, values: Array) -> None:
    """Let what came fill the panel: a band that opens wide after a gap is cut off."""
    known = values[np.isfinite(values)]
    if len(known):
        low, high = known.min(), known.max()
        room = 0.15 * (high - low) or 0.5
        axes.set_ylim(low - room, high + room)


def _stamps(stamps: Sequence[int]) -> Array:
    """Nanoseconds since 1970 as moments; the small numbers of an integer clock as they are."""
    array = np.asarray(stamps, np.int64)
    return _moments(array.view("datetime64[ns]")) if (np.abs(array) >= 10**15).all() else array


def plot_context(
    contexts: Sequence[str], curves: Mapping[str, Array], *, attention: Array | None = None, visit: str = "visits"
) -> Figure:
    """Draw losses against context, and the share of attention against age.

    Parameters
    ----------
    contexts : sequence of str
        Increasing, in words.
    curves : mapping of str to array of shape (n_contexts,)
        Losses relative to that with the whole context.
    attention : array of shape (n_layers, n_ages), optional
        Own row first.
    visit : str
        How long it is from one age to the next, in words.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    MissingExtraError
        Without matplotlib.
    """
    n_panels = 1 if attention is None else 2
    figure, panels = _panels(["loss", "attention"][:n_panels])
    for axes, name in panels:
        if name == "loss":
            for (label, curve), colour in zip(curves.items(), (BLUE, ORANGE), strict=False):
                axes.plot(range(len(contexts)), curve, color=colour, marker="o", markersize=3, label=label)
            axes.axhline(1, color=INK, linewidth=0.8)
            axes.set_xticks(range(len(contexts)), contexts, rotation=45, ha="right")
            axes.set_ylabel("loss / loss with all")
            axes.legend(frameon=False)
        elif attention is not None:
            for layer, share in enumerate(attention):
                axes.plot(range(len(share)), share, marker="o", markersize=3, label=f"layer {layer + 1}")
            axes.set_xlabel(f"age, in steps of {visit}")
            axes.set_ylabel("share of attention")
            axes.legend(frameon=False)
    return figure


def bands_of(columns: Sequence[str], model_col: str) -> list[Band]:
    """Find the bands among column names, widest first: ``TXL-lo-80`` with ``TXL-hi-80``, or quantiles that pair."""
    bands: list[Band] = []
    lows: dict[float, str] = {}
    for name in columns:
        if (match := _BAND.match(name)) and match["model"] == model_col and match["side"] == "lo":
            high = f"{model_col}-hi-{match['level']}"
            bands += [Band(float(match["level"]), name, high)] if high in columns else []
        if (match := _QUANTILE.match(name)) and match["model"] == model_col:
            lows[round(float(match["level"]), 10)] = name
    for q, low in lows.items():
        if q < 0.5 and round(1 - q, 10) in lows:
            bands.append(Band(round(100 * (1 - 2 * q), 8), low, lows[round(1 - q, 10)]))
    return sorted(bands, key=lambda band: -band.level)


# ---------------------------------------------------------------------------------------------------------------- rows


def _columns(frame: Any, id_col: str | None, *needed: str) -> nw.DataFrame[Any]:
    table = nw.from_native(frame, eager_only=True)
    names = [name for name in (id_col, *needed) if name is not None]
    if missing := [name for name in names if name not in table.columns]:
        raise ColumnError(
            f"the frame to draw has no column {missing[0]!r}; it has {table.columns[:8]}. Name the columns with "
            "id_col, time_col, target_col and model_col; id_col=None is one series without a name."
        )
    table = table.with_columns(*(_in_utc(table[name]) for name in names if _zone_in(table[name]) is not None))
    return table.sort([*([] if id_col is None else [id_col]), needed[0]])


def _zone_of(frame: Any, time_col: str) -> tzinfo | None:
    return _zone_in(nw.from_native(frame, eager_only=True)[time_col])


def _zone_in(series: nw.Series[Any]) -> tzinfo | None:
    if series.implementation.is_pandas():  # narwhals (2.29) does not know the zones of pandas with an underscore
        zone: tzinfo | None = getattr(series.to_native().dtype, "tz", None)
        return zone
    name = getattr(series.dtype, "time_zone", None)
    if name is None:
        return None
    return datetime.strptime(name, "%z").tzinfo if name[0] in "+-" else ZoneInfo(name)


def _in_utc(series: nw.Series[Any]) -> nw.Series[Any]:
    """Stamps in UTC and without a zone: wall time would go back once a year, and the line with it."""
    if series.implementation.is_pandas():
        return nw.from_native(series.to_native().dt.tz_convert(None), series_only=True)
    return series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)


def _by_series(table: nw.DataFrame[Any], id_col: str | None) -> dict[Any, nw.DataFrame[Any]]:
    if id_col is None:
        return {None: table}
    names = table[id_col].unique(maintain_order=True).to_list()
    return {name: table.filter(nw.col(id_col) == name) for name in names}


def _picked(parts: Mapping[Any, Any], ids: Sequence[str | int] | None) -> list[Any]:
    if ids is None:
        return list(parts)[:N_PANELS]
    if isinstance(ids, str | int):
        raise ParameterError(f"ids={ids!r} must be a list, such as ids=[{ids!r}].")
    if missing := [name for name in ids if name not in parts]:
        raise ParameterError(
            f"{len(missing)} of ids are not in the frame, such as {missing[:5]}; it holds {list(parts)[:5]}."
        )
    return list(ids)


def _chosen_cutoffs(
    part: nw.DataFrame[Any], cutoffs: int | Sequence[Any], time_col: str, cutoff_col: str, *, zone: tzinfo | None
) -> list[Any]:
    known = sorted(part[cutoff_col].unique().to_list())
    if not isinstance(cutoffs, int):
        wanted = {_moment(cutoff, zone) for cutoff in cutoffs}
        there = [cutoff for cutoff in known if cutoff in wanted]
        if not there:
            raise ParameterError(f"none of cutoffs={list(cutoffs)[:5]} is in the frame; it has {_shown(known, zone)}.")
        return there
    span = part.filter(nw.col(cutoff_col) == known[-1])[time_col].max() - known[-1]
    chosen = [known[-1]]
    for cutoff in reversed(known[:-1]):
        if len(chosen) < cutoffs and cutoff + span <= chosen[-1]:
            chosen.append(cutoff)
    return chosen[::-1]


# ------------------------------------------------------------------------------------------------------------- drawing


def _panels(names: Sequence[Any]) -> tuple[Figure, list[tuple[Axes, Any]]]:
    n_columns = 1 if len(names) < 4 else 2
    n_rows = -(-len(names) // n_columns)
    figure = _figure(11 if n_columns > 1 else 10, max(2.5 * n_rows, 2) + 0.9)
    grid = figure.subplots(n_rows, n_columns, squeeze=False)
    for spare in grid.flat[len(names) :]:
        spare.remove()
    return figure, list(zip(grid.flat, names, strict=False))


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError('pictures need matplotlib. Install it with `pip install "txl-ts[plot]"`.') from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw_history(
    axes: Axes, rows: nw.DataFrame[Any] | None, kept: int, time_col: str, target_col: str
) -> tuple[Any, float] | None:
    """Draw the last rows; give the last one, so that what follows can be joined to it."""
    if rows is None or not len(rows) or not kept:
        return None
    rows = rows.tail(kept)
    times, values = rows[time_col].to_numpy(), _numbers(rows[target_col])
    _line(axes, times, values, color=INK, lw=1.3, label="history")
    return (times[-1], values[-1]) if np.isfinite(values[-1]) else None


def _draw_actuals(
    axes: Axes, rows: nw.DataFrame[Any], time_col: str, target_col: str, *, joined_to: tuple[Any, float] | None
) -> None:
    times, values = _joined(rows[time_col].to_numpy(), _numbers(rows[target_col]), joined_to)
    _line(axes, times, values, color=ORANGE, lw=1.3, label="what came", zorder=4)


def _draw_forecast(
    axes: Axes,
    rows: nw.DataFrame[Any],
    bands: Sequence[Band],
    time_col: str,
    model_col: str,
    *,
    joined_to: tuple[Any, float] | None = None,
) -> None:
    stamps = rows[time_col].to_numpy()
    for i, band in enumerate(bands):
        # Bands open at the last value that was seen.
        times, low = _joined(stamps, _numbers(rows[band.low]), joined_to)
        _, high = _joined(stamps, _numbers(rows[band.high]), joined_to)
        shade = 0.18 + 0.30 * (i + 1) / len(bands) if len(bands) > 1 else 0.25
        shade = shade if len(bands) < 4 else 0.14  # many bands: each adds to those around it
        label = f"{band.level:g} % band"
        axes.fill_between(_moments(times), low, high, color=BLUE, alpha=shade, lw=0, label=label)
    times, median = _joined(stamps, _numbers(rows[model_col]), joined_to)
    axes.plot(_moments(times), median, color=BLUE, lw=1.7, label="median forecast", zorder=3)


def _line(axes: Axes, times: Array, values: Array, **style: Any) -> None:
    """Draw a line that breaks at long gaps."""
    x, y = _moments(times), np.asarray(values, np.float64)
    if len(x) > 2:
        apart = np.diff(x).astype(np.float64)
        breaks = np.flatnonzero(apart > _GAP * np.median(apart)) + 1
        y = np.insert(y, breaks, np.nan)
        x = np.insert(x, breaks, x[breaks])
    axes.plot(x, y, **style)


def _joined(times: Array, values: Array, to: tuple[Any, float] | None) -> tuple[Array, Array]:
    if to is None:
        return times, values
    return np.concatenate([_moments([to[0]]), _moments(times)]), np.concatenate([[to[1]], values])


def _moments(times: Any) -> Array:
    """Stamps that matplotlib can place: datetime64, or the integers themselves."""
    array = np.asarray(times)
    return array.astype("datetime64[us]") if array.dtype.kind in "MO" else array


def _moment(stamp: Any, zone: tzinfo | None) -> Any:
    """A stamp as the table has it: in UTC where there is a zone. One without is wall time."""
    if zone is None or not hasattr(stamp, "tzinfo"):
        return stamp
    known = stamp.replace(tzinfo=zone) if stamp.tzinfo is None else stamp
    return known.astimezone(UTC).replace(tzinfo=None)


def _shown(stamps: Sequence[Any], zone: tzinfo | None) -> list[Any]:
    last = list(stamps[-3:])
    return last if zone is None else [stamp.replace(tzinfo=UTC).astimezone(zone) for stamp in last]


def _numbers(column: nw.Series[Any]) -> Array:
    return np.asarray(column.cast(nw.Float64).to_numpy(), np.float64)


def _finish(axes: Axes, name: Any, target_col: str, *, zone: tzinfo | None = None) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    if any(np.asarray(line.get_xdata(orig=True)).dtype.kind == "M" for line in axes.lines):
        locator = AutoDateLocator(tz=zone, minticks=4, maxticks=8)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=zone))  # type: ignore[no-untyped-call]
    axes.margins(x=0.01)
    axes.grid(alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylabel(target_col)
    if name is not None:
        axes.set_title(str(name), loc="left", fontsize="medium", fontweight="bold")


def _legend(figure: Figure, *, loc: Literal["outside upper center", "outside lower center"] = _ABOVE) -> None:
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(found.values(), found.keys(), loc=loc, ncols=min(len(found), 6), frameon=False)
