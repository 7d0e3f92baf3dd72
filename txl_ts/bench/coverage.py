"""Do 80 % bands hold 80 %? Coverage per step ahead: as trained, after split conformal, and adapted online."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from txl_ts.bench import report
from txl_ts.conformal import Adaptive, Conformal, spacing
from txl_ts.errors import FrameError, ParameterError

if TYPE_CHECKING:
    from txl_ts.estimators.forecaster import TXLForecaster

LEVELS = (80, 90)
QUANTILES = (0.05, 0.1, 0.5, 0.9, 0.95)
# The paper's; on the second half of ETT's validation rows .01 and .02 cost 4 to 19 % more pinball loss.
RATE = 0.005
COLUMNS = MappingProxyType(
    {
        "set": "set",
        "step": "step ahead",
        "level": "nominal, %",
        "trained": "as trained, %",
        "split": "split conformal, %",
        "adaptive": "adaptive, %",
        "split_width": "width, split / trained",
        "adaptive_width": "width, adaptive / trained",
        "n": "forecasts",
    }
)


@dataclass(frozen=True)
class Task:
    """One set: rows to fit on, the last of which calibrate, and rows to judge on.

    Parameters
    ----------
    name : str
    freq : str or int
    h : int
    read : callable
        Folder of the data sets → (long frame of all rows, rows of each series to judge on).
    val_size : int
        Rows of each series that choose the epoch and calibrate, before those that are judged on.
    params : mapping
        Of the forecaster.
    """

    name: str
    freq: str | int
    h: int
    read: Callable[[Path], tuple[pd.DataFrame, int]]
    val_size: int
    params: Mapping[str, Any]


def _ett(name: str) -> Callable[[Path], tuple[pd.DataFrame, int]]:
    def read(data: Path) -> tuple[pd.DataFrame, int]:
        wide = _csv(data / "ett" / f"{name}.csv").iloc[:14_400]
        wide["ds"] = pd.to_datetime(wide.pop("date"))
        return wide.melt("ds", var_name="unique_id", value_name="y"), 2_880

    return read


def _m4(data: Path) -> tuple[pd.DataFrame, int]:
    from txl_ts.bench.m4 import load

    m4 = load(data, group="Hourly")
    rows = [np.concatenate([train, test]) for train, test in zip(m4.train, m4.test, strict=True)]
    parts = [pd.DataFrame({"unique_id": n, "ds": np.arange(len(y)), "y": y}) for n, y in zip(m4.ids, rows, strict=True)]
    return pd.concat(parts, ignore_index=True), 48


def _electricity(data: Path) -> tuple[pd.DataFrame, int]:
    wide = _csv(next(iter(sorted((data / "vic_electricity").glob("*.csv"))), data / "vic_electricity" / "*.csv"))
    ds = pd.to_datetime(wide["Time"], utc=True).dt.tz_localize(None)
    return pd.DataFrame({"unique_id": "Victoria", "ds": ds, "y": wide["Demand"]}), 17_520


def _csv(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise FrameError(f"{path} is not there. Pass the folder that holds it.")
    return pd.read_csv(path)


_PARAMS = MappingProxyType({"quantiles": QUANTILES, "max_epochs": 6})
TASKS = (
    Task("ETTh1", "1h", 96, _ett("ETTh1"), 2_880, _PARAMS),
    Task("ETTh2", "1h", 96, _ett("ETTh2"), 2_880, _PARAMS),
    Task("M4 Hourly", 1, 48, _m4, 96, MappingProxyType({**_PARAMS, "season_length": 24, "max_epochs": 4})),
    Task("Victoria electricity", "30min", 48, _electricity, 5_000, _PARAMS),
)

SETS = tuple(task.name for task in TASKS)


def run(
    data: str | PathLike[str],
    *,
    sets: Sequence[str] = SETS,
    seeds: Sequence[int] = (0,),
    rate: float = RATE,
    variants: Sequence[Any] | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Fit, calibrate on the validation rows, and count what falls into the bands on later rows.

    Parameters
    ----------
    data : path
        Folder that holds ``ett/``, ``m4_hourly/`` and ``vic_electricity/``.
    sets : sequence of str
    seeds : sequence of int
        The first is used.
    rate : float
        Of the adaptive levels.
    variants
        Not used.
    command : str, optional

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`.
    """
    del variants
    tasks = {task.name: task for task in TASKS}
    if unknown := [name for name in sets if name not in tasks]:
        raise ParameterError(f"sets={unknown} are not known. Choose among {list(tasks)}.")
    rows, seconds = [], {}
    for name in sets:
        start = time.perf_counter()
        rows += rows_of(tasks[name], Path(data), seed=seeds[0], rate=rate)
        seconds[name] = time.perf_counter() - start
    return {
        "name": "coverage",
        "title": "Coverage of 80 and 90 % bands, per step ahead",
        "command": command or "txl-ts bench coverage --data DIR",
        "protocol": [
            "One fit per set on rows that end before those judged on; its last rows (ETT 2,880, M4 96, electricity "
            "5,000 per series) choose the epoch and calibrate, and are not trained on. Judged: ETT rows 11,520 to "
            "14,400 and electricity of 2014 from every row, M4 from the last training row to the official test rows.",
            f"Adaptive: levels of each series move by {rate:g} per judged forecast along the judged rows, each "
            "forecast moved by what came before it. M4 has one origin per series: nothing to adapt to.",
        ],
        "columns": dict(COLUMNS),
        "rows": rows,
        "runs": [{"set": name, "seconds": value} for name, value in seconds.items()],
        "notes": [
            "Coverage is counted over all series and origins; origins overlap, so that the counts are not independent."
        ],
        "seeds": [seeds[0]],
        "environment": report.environment(),
    }


def rows_of(task: Task, data: Path, *, seed: int, rate: float) -> list[dict[str, Any]]:
    """Lines of the table for one set."""
    from txl_ts.estimators.forecaster import TXLForecaster

    df, n_judged = task.read(data)
    past = df[df.groupby("unique_id").cumcount(ascending=False) >= n_judged]
    model = TXLForecaster(h=task.h, freq=task.freq, random_state=seed, **task.params)
    model.fit(past, val_size=task.val_size).calibrate()
    assert model.calibration_ is not None
    table = model.calibration_.table
    counts: dict[str, _Count] = {name: _Count(task.h) for name in ("trained", "split", "adaptive")}
    for forecast, y, ordinals in _series(model, df, n_windows=n_judged - task.h + 1):
        counts["trained"].add(forecast, y)
        counts["split"].add(table.moved(forecast), y)
        counts["adaptive"].add(adapted(table, forecast, y, ordinals, rate=rate), y)
    steps: list[tuple[str, slice]] = [
        ("1", slice(0, 1)),
        (f"{task.h // 4}", slice(task.h // 4 - 1, task.h // 4)),
        (f"{task.h // 2}", slice(task.h // 2 - 1, task.h // 2)),
        (f"{task.h}", slice(task.h - 1, task.h)),
        (f"1 to {task.h}", slice(0, task.h)),
    ]
    return [
        {
            "set": task.name,
            "step": label,
            "level": level,
            **{name: count.coverage(i, part) for name, count in counts.items()},
            **{
                f"{n}_width": counts[n].width(i, part) / counts["trained"].width(i, part) for n in ("split", "adaptive")
            },
            "n": int(counts["trained"].n[part].sum()),
        }
        for i, level in enumerate(LEVELS)
        for label, part in steps
    ]


def adapted(
    table: Conformal, forecast: NDArray[np.float32], y: NDArray[np.float32], ordinals: NDArray[np.int64], *, rate: float
) -> NDArray[np.float32]:
    """Move the forecasts of one series in the order of their rows, as ``update`` and ``predict`` would one by one.

    Parameters
    ----------
    table : Conformal
    forecast : float32 array of shape (k, h, Q)
        From consecutive rows.
    y : float32 array of shape (k, h)
    ordinals : int64 array of shape (k,)
    rate : float
    """
    state = Adaptive.fresh(table, n=1, rate=rate)
    out = np.empty_like(forecast)
    for i, ordinal in enumerate(ordinals.tolist()):
        if i:  # the row itself came as the first step of the forecast before it
            state.judge(0, ordinal=ordinal, y=float(y[i - 1, 0]), quantiles=table.quantiles)
        if ordinal % spacing(table.h) == 0:
            state.issue(0, ordinal=ordinal, forecast=forecast[i], table=table)
        out[i] = table.moved(forecast[i], state.levels[0])
    return out


def _series(
    model: TXLForecaster, df: pd.DataFrame, *, n_windows: int
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]]:
    """Give the forecasts of each series from all its judged rows, in order."""
    from txl_ts.estimators.backtest import Batch

    found = Batch.joined(model.cross_validation(df, n_windows=n_windows, use_fitted=True, output="batches"))
    for series in np.unique(found.series):
        mine = np.flatnonzero(found.series == series)
        mine = mine[np.argsort(found.ordinals[mine], kind="stable")]
        yield found.forecast[mine], found.y[mine], found.ordinals[mine]


class _Count:
    """Hits and widths per step ahead, for each level."""

    def __init__(self, h: int) -> None:
        self.n = np.zeros(h)
        self._inside, self._wide = np.zeros((len(LEVELS), h)), np.zeros((len(LEVELS), h))

    def add(self, forecast: NDArray[np.float32], y: NDArray[np.float32]) -> None:
        there = np.isfinite(y) & np.isfinite(forecast).all(axis=-1)
        self.n += there.sum(axis=0)
        scale = np.nanstd(y) or 1.0  # widths of series of unlike sizes are added up in their own deviations
        for i, level in enumerate(LEVELS):
            tail = round((1 - level / 100) / 2, 10)
            low, high = (forecast[..., QUANTILES.index(q)] for q in (tail, round(1 - tail, 10)))
            self._inside[i] += (there & (y >= low) & (y <= high)).sum(axis=0)
            self._wide[i] += np.where(there, (high - low) / scale, 0).sum(axis=0)

    def coverage(self, i: int, part: slice) -> float:
        """Percent of the level that fell inside."""
        return float(100 * self._inside[i, part].sum() / self.n[part].sum())

    def width(self, i: int, part: slice) -> float:
        """Mean width."""
        return float(self._wide[i, part].sum() / self.n[part].sum())
