"""What the demo does with one stream: fit, backtest every origin in one pass, then feed a day row by row."""

import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from txl_ts.bench.baselines import last_value, seasonal_naive
from txl_ts.cli.streams import Stream
from txl_ts.errors import TxlWarning
from txl_ts.estimators.forecaster import TXLForecaster
from txl_ts.frames import Panel, read_long
from txl_ts.metrics import coverage, mae, pinball
from txl_ts.runtime import StreamSession

FloatArray = NDArray[np.float64]

TEST_PART = 0.2
# The part of the fitted rows that chooses the epoch and is not trained on.
VALIDATION_PART = 0.15


class Grid(NamedTuple):
    """A stream on its grid, as the forecaster reads it.

    Attributes
    ----------
    panel : Panel
        Its report says what was cleaned.
    values : float64 array of shape (N,)
        By grid ordinal; NaN where missing.
    seen : float64 array of shape (N,)
        The last value that was there, at each ordinal.
    """

    panel: Panel
    values: FloatArray
    seen: FloatArray

    @property
    def origin(self) -> int:
        """Stamp of ordinal 0, in epoch nanoseconds."""
        return int(self.panel.origins[0])


class Forecasts(NamedTuple):
    """Forecasts from many origins.

    Attributes
    ----------
    ordinals : int64 array of shape (k,)
        Grid ordinal of the last row seen.
    forecast : float64 array of shape (k, h, Q)
    y : float64 array of shape (k, h)
        What came.
    """

    ordinals: NDArray[np.int64]
    forecast: FloatArray
    y: FloatArray


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What came out for one stream.

    Attributes
    ----------
    stream : Stream
    grid : Grid
    model : TXLForecaster
    backtest : Forecasts
        Of ``model``, in one pass.
    errors : dict of str to float
        Mean absolute error by forecaster, over the same cells, in the stream's unit.
    pinball, coverage_80 : float
        Of ``model``: pinball loss over its quantiles; part of the values inside the band from .1 to .9.
    difference : float
        Largest distance between the live forecasts and those of the one pass, in deviations of the fitted values.
    n_live, live_rate_hz, pass_rate_hz : float
        Rows fed one by one; rows per second so, and in the one pass.
    graph_difference, graph_rate_hz : float
        The same for the exported graph, stepped without torch from the fitted memories; NaN if it was left out.
    """

    stream: Stream
    grid: Grid
    model: TXLForecaster
    backtest: Forecasts
    errors: dict[str, float]
    pinball: float
    coverage_80: float
    difference: float
    n_live: int
    live_rate_hz: float
    pass_rate_hz: float
    graph_difference: float
    graph_rate_hz: float


def run_trial(stream: Stream, *, params: dict[str, Any], with_graph: bool) -> Trial:
    """Do it all for one stream, and say on the way what was cleaned and chosen.

    Parameters
    ----------
    stream : Stream
    params : dict
        Arguments of the forecaster besides ``h``, ``freq`` and ``align``.
    with_graph : bool
        Export the model, which takes a quarter of a minute, and feed the graph too.
    """
    print(f"\n{stream.name}: {len(stream.frame):,} rows, {stream.source}", flush=True)
    n_fitted = int(len(stream.frame) * (1 - TEST_PART))
    print(f"  fitting on the first {n_fitted:,} rows", flush=True)
    model = fit(stream, n_fitted, params=params)
    linear = fit(stream, n_fitted, params=params | {"max_epochs": 0})
    grid = read_grid(stream, max_gap=model.config_.reach)
    _say(stream, grid, model)
    fitted_end = int(stream.ordinals(grid.origin)[n_fitted - 1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TxlWarning)  # said above
        begin = time.perf_counter()
        backtest = walk_once(model, stream, n_windows=len(grid.values) - stream.h - fitted_end)
        pass_s = time.perf_counter() - begin
        alone = walk_once(linear, stream, n_windows=len(grid.values) - stream.h - fitted_end)
        graph, graph_s = feed_the_graph(model, stream, grid, fitted_end=fitted_end) if with_graph else (None, np.nan)
        live, live_s = feed_a_day(model, stream, grid, n_fitted=n_fitted)
    level = model.config_.quantiles.index(0.5)
    forecasts = {
        "txl-ts": backtest.forecast[..., level],
        "linear path alone": alone.forecast[..., level],
        "last value": last_value(grid.seen[:, None], origins=backtest.ordinals, h=stream.h)[:, 0],
        "same time yesterday": seasonal_naive(
            grid.seen[:, None], origins=backtest.ordinals, h=stream.h, season=stream.day
        )[:, 0],
    }
    deviation = float(np.nanstd(grid.values[: fitted_end + 1]))

    def apart(found: Forecasts) -> float:
        at = np.searchsorted(backtest.ordinals, found.ordinals)
        return float(np.abs(found.forecast - backtest.forecast[at]).max()) / deviation

    quantiles = model.config_.quantiles
    low, high = (backtest.forecast[..., quantiles.index(q)] for q in (0.1, 0.9))
    return Trial(
        stream=stream,
        grid=grid,
        model=model,
        backtest=backtest,
        errors=_errors(backtest.y, forecasts),
        pinball=pinball(y=backtest.y, forecast=backtest.forecast, quantiles=quantiles),
        coverage_80=coverage(y=backtest.y, lower=low, upper=high),
        difference=apart(live),
        n_live=len(live.ordinals),
        live_rate_hz=len(live.ordinals) / live_s,
        pass_rate_hz=(len(grid.values) - stream.h) / pass_s,
        graph_difference=np.nan if graph is None else apart(graph),
        graph_rate_hz=np.nan if graph is None else len(graph.ordinals) / graph_s,
    )


def fit(stream: Stream, n_rows: int, *, params: dict[str, Any]) -> TXLForecaster:
    """Fit one model on the first rows."""
    model = TXLForecaster(h=stream.h, freq=stream.freq, align="nearest", **params)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TxlWarning)  # printed from the report
        return model.fit(
            stream.frame.iloc[:n_rows],
            id_col=None,
            time_col=stream.time_col,
            target_col=stream.target_col,
            val_size=int(n_rows * VALIDATION_PART),
        )


def read_grid(stream: Stream, *, max_gap: int) -> Grid:
    """Read the whole stream as the forecaster does, for the naive forecasts and the picture."""
    panel = read_long(
        stream.frame[[stream.time_col, stream.target_col]],
        id_col=None,
        time_col=stream.time_col,
        target_col=stream.target_col,
        freq=stream.freq,
        align="nearest",
        max_gap=max_gap,
        warn_cleaned=False,
    )
    values = np.full(int(panel.last_ordinals()[0]) + 1, np.nan)
    values[panel.row_ordinals()] = panel.values
    latest = np.maximum.accumulate(np.where(np.isfinite(values), np.arange(len(values)), 0))
    return Grid(panel, values, values[latest])


def walk_once(model: TXLForecaster, stream: Stream, *, n_windows: int) -> Forecasts:
    """Forecast from every origin after the fitted rows, in one pass over the stream."""
    batches = list(
        model.cross_validation(stream.frame, n_windows=n_windows, step_size=1, use_fitted=True, output="batches")
    )
    return Forecasts(
        np.concatenate([batch.ordinals for batch in batches]),
        np.concatenate([batch.forecast for batch in batches]).astype(np.float64),
        np.concatenate([batch.y for batch in batches]).astype(np.float64),
    )


def feed_a_day(model: TXLForecaster, stream: Stream, grid: Grid, *, n_fitted: int) -> tuple[Forecasts, float]:
    """Take in all rows up to the last day whose forecasts can be judged, then that day row by row.

    Returns
    -------
    forecasts : Forecasts
        One ``predict`` after each ``update``.
    seconds : float
        For the rows of the day.
    """
    ordinals, last = stream.ordinals(grid.origin), len(grid.values) - 1 - stream.h
    begin, stop = np.searchsorted(ordinals, [last - stream.day + 1, last + 1])
    model.update(stream.frame.iloc[n_fitted:begin])
    rows = [stream.frame.iloc[i : i + 1] for i in range(begin, stop)]
    found = []
    start = time.perf_counter()
    for row in rows:
        model.update(row)
        found.append(model.predict())
    seconds = time.perf_counter() - start
    names = ["TXL" if q == 0.5 else f"TXL_ql{q}" for q in model.config_.quantiles]
    forecast = np.stack([frame[names].to_numpy(np.float64) for frame in found])
    at = ordinals[begin:stop]
    return Forecasts(at, forecast, np.stack([grid.values[o + 1 : o + 1 + stream.h] for o in at])), seconds


def feed_the_graph(model: TXLForecaster, stream: Stream, grid: Grid, *, fitted_end: int) -> tuple[Forecasts, float]:
    """Export, restore the fitted memories in a session, catch up in one call, then step the last day row by row.

    Returns
    -------
    forecasts : Forecasts
        After each row of the day.
    seconds : float
        For the rows of the day.
    """
    with tempfile.TemporaryDirectory() as folder:
        graph, state = Path(folder, "stream.onnx"), Path(folder, "stream-state.txl")
        model.export_onnx(graph)
        model.export_state(state)
        session = StreamSession(graph)
        session.restore(state)
    (name,) = session.streams
    last = len(grid.values) - 1 - stream.h
    ordinals = grid.panel.row_ordinals()
    behind = ordinals[(ordinals > fitted_end) & (ordinals <= last - stream.day)]
    day = ordinals[(ordinals > last - stream.day) & (ordinals <= last)]
    stamps, channel = grid.panel.stamps(0, np.arange(last + 1)), stream.target_col
    session.step({name: {"time": stamps[behind], "values": {channel: grid.values[behind]}}})
    found = []
    start = time.perf_counter()
    for ordinal in day:
        row = {"time": int(stamps[ordinal]), "values": {channel: float(grid.values[ordinal])}}
        found.append(session.step({name: row})[name].quantiles)
    seconds = time.perf_counter() - start
    y = np.stack([grid.values[o + 1 : o + 1 + stream.h] for o in day])
    return Forecasts(day, np.stack(found).astype(np.float64), y), seconds


def _errors(y: FloatArray, forecasts: dict[str, FloatArray]) -> dict[str, float]:
    """Judge all forecasters on the cells where a value came and each of them said one."""
    counted = np.isfinite(y) & np.all([np.isfinite(forecast) for forecast in forecasts.values()], axis=0)
    y = np.where(counted, y, np.nan)
    return {name: mae(y=y, forecast=forecast) for name, forecast in forecasts.items()}


def _say(stream: Stream, grid: Grid, model: TXLForecaster) -> None:
    unused = [name for name in stream.frame.columns if name not in (stream.time_col, stream.target_col)]
    for line in grid.panel.report.lines():
        print(f"  cleaned: {line}")
    for name in unused:
        print(f"  unused: column {name!r} has no role.")
    history, params = model.history_, model.params_
    print(
        f"  fitted: patch {params['patch_len']} rows, memory {params['mem_len']} visits of stride {params['stride']}, "
        f"look-back {params['lookback']} rows;\n"
        f"          {model.n_parameters_:,} parameters, epoch {history.best_epoch} of {history.epochs} kept.",
        flush=True,
    )
