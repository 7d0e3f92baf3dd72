"""The demo's picture: what came, and the bands that were forecast, one stream above the other."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from txl_ts.cli.trial import Trial
from txl_ts.errors import SaveError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

# Forecasts that follow one another, each from where the one before ends.
N_SHOWN = {"glucose": 24}
N_SHOWN_ELSE = 7
COLOUR = "#1f77b4"


def save_picture(path: Path, trials: Sequence[Trial]) -> None:
    """Draw the last forecasts of every stream into a PNG.

    Raises
    ------
    SaveError
        If the file cannot be written.
    """
    figure = Figure(figsize=(11, 4.0 * len(trials)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, trial in zip(np.atleast_1d(figure.subplots(len(trials), 1)), trials, strict=True):
        draw(axes, trial)
    try:
        figure.savefig(path, format="png", dpi=130)
    except OSError as error:
        raise SaveError(
            f"the picture could not be written to {str(path)!r}: {error}. Name another with --out."
        ) from error


def draw(axes: "Axes", trial: Trial) -> None:
    """Draw one stream."""
    stream, grid, backtest = trial.stream, trial.grid, trial.backtest
    quantiles, h = trial.model.config_.quantiles, stream.h
    low, middle, high = (quantiles.index(q) for q in (0.1, 0.5, 0.9))
    wanted = backtest.ordinals[-1] - h * np.arange(N_SHOWN.get(stream.name, N_SHOWN_ELSE))[::-1]
    wanted = wanted[wanted >= backtest.ordinals[0]]
    begin = int(wanted[0]) - 2 * h

    def times(ordinals: "NDArray[np.int64]") -> "NDArray[np.datetime64]":
        return (grid.origin + ordinals * (stream.step_min * 60 * 10**9)).astype("datetime64[ns]")

    shown = np.arange(begin, len(grid.values))
    axes.plot(times(shown), grid.values[shown], color="black", lw=1.4, label="what came", zorder=3)
    for number, ordinal in enumerate(wanted[np.isin(wanted, backtest.ordinals)]):
        at = int(np.searchsorted(backtest.ordinals, ordinal))
        # Bands open at the last value that was seen.
        forecast = np.concatenate([np.full((1, len(quantiles)), grid.seen[ordinal]), backtest.forecast[at]])
        ahead = times(ordinal + np.arange(h + 1))
        label = number == 0
        axes.fill_between(
            ahead,
            forecast[:, low],
            forecast[:, high],
            color=COLOUR,
            alpha=0.25,
            lw=0,
            label="80 % band" if label else None,
        )
        axes.plot(
            ahead, forecast[:, middle], color=COLOUR, lw=1.6, label="median forecast" if label else None, zorder=2
        )
        axes.plot(
            times(np.array([ordinal])),
            grid.seen[[ordinal]],
            "o",
            color=COLOUR,
            ms=4.5,
            label="last row that it saw" if label else None,
            zorder=4,
        )
    locator = AutoDateLocator(minticks=5, maxticks=10)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.set_xlim(times(shown[:1])[0], times(shown[-1:])[0])
    axes.set_xlabel("time, UTC" if grid.panel.zone else "time on the sensor's clock")
    axes.set_ylabel(f"{stream.name}, {stream.unit}")
    axes.set_title(
        f"{stream.name[0].upper()}{stream.name[1:]}: forecasts {stream.horizon_h:g} h ahead, on rows that were not "
        f"fitted (one every {stream.step_min} min)",
        loc="left",
    )
    axes.grid(alpha=0.25)
    axes.legend(loc="upper left", ncols=4, frameon=True, framealpha=0.9, fontsize="small")
    low_end, high_end = axes.get_ylim()
    axes.set_ylim(low_end, high_end + 0.14 * (high_end - low_end))  # room for the legend
