"""Quantiles or a law, and channels side by side or mixed: bands and errors of small models on the same rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from txl_ts.bench import report
from txl_ts.errors import FrameError, ParameterError
from txl_ts.metrics import coverage, mae, weighted_quantile_loss

QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
LAWS: tuple[str, ...] = ("normal", "student_t")
COUNTS = (*LAWS, "negative_binomial")
COLUMNS = MappingProxyType(
    {
        "set": "set, h",
        "model": "model",
        "wql": "WQL",
        "mae": "MAE of the median",
        "inside_80": "inside 80 %, %",
        "inside_98": "inside 98 %, %",
        "state": "state, KiB per id",
        "n": "forecasts",
    }
)
# Small and quick: the heads are compared, not the sizes.
_PARAMS = MappingProxyType({"quantiles": QUANTILES, "d_model": 32, "max_epochs": 4})


@dataclass(frozen=True)
class Task:
    """One set and the models that are compared on it.

    Parameters
    ----------
    name : str
    freq : str or int
    h : int
    read : callable
        (folder of the data sets, seed) → frame of all rows.
    n_judged : int
        Last rows of each series, which no fit sees.
    every : int
        Rows between two forecasts that are judged.
    models : mapping of name to parameters
    targets : tuple of str
        Of a wide frame.
    more : mapping
        Parameters of all its models.
    """

    name: str
    freq: str | int
    h: int
    read: Callable[[Path, int], pd.DataFrame]
    n_judged: int
    every: int
    models: Mapping[str, Mapping[str, Any]]
    targets: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)


def _heads(*laws: str) -> dict[str, dict[str, Any]]:
    return {"quantiles": {}, **{law: {"distribution": law} for law in laws}}


def _ett(data: Path, seed: int) -> pd.DataFrame:
    """ETTh1's training and validation rows: its test rows are left for other tables."""
    del seed
    wide = _csv(data / "ett" / "ETTh1.csv").iloc[:11_520]
    wide["ds"] = pd.to_datetime(wide.pop("date"))
    return wide


def _ett_long(data: Path, seed: int) -> pd.DataFrame:
    return _ett(data, seed).melt("ds", var_name="unique_id", value_name="y")


def _m4(data: Path, seed: int) -> pd.DataFrame:
    del seed
    from txl_ts.bench.m4 import load

    m4 = load(data, group="Hourly")
    parts = [
        pd.DataFrame({"unique_id": name, "ds": np.arange(len(train) + len(test)), "y": np.concatenate([train, test])})
        for name, train, test in list(zip(m4.ids, m4.train, m4.test, strict=True))[::7]
    ]
    return pd.concat(parts, ignore_index=True)


def _taxi(data: Path, seed: int) -> pd.DataFrame:
    del seed
    rows = _csv(data / "nab" / "realKnownCause" / "nyc_taxi.csv")
    return pd.DataFrame({"unique_id": "taxi", "ds": pd.to_datetime(rows["timestamp"]), "y": rows["value"]})


def _simulated(data: Path, seed: int) -> pd.DataFrame:
    """Forty series of small counts: a mean that follows the hour, and dispersion .5."""
    del data
    rng = np.random.default_rng(seed)
    parts = []
    for i in range(40):
        t = np.arange(600)
        mean = np.exp(rng.normal(0, 0.7) + rng.uniform(0.3, 1) * np.sin(2 * np.pi * (t / 24 + rng.random())))
        y = rng.poisson(mean * rng.gamma(2.0, 0.5, len(t)))
        parts.append(pd.DataFrame({"unique_id": f"item{i:02}", "ds": t, "y": y.astype(float)}))
    return pd.concat(parts, ignore_index=True)


def _csv(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise FrameError(f"{path} is not there. Pass the folder that holds it.")
    return pd.read_csv(path)


_ETT_TARGETS = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
_DAY = MappingProxyType({"season_length": 24})
TASKS = (
    Task("ETTh1", "1h", 24, _ett_long, 2_880, 6, _heads(*LAWS)),
    Task("M4 Hourly", 1, 48, _m4, 48, 1, _heads(*LAWS), more=_DAY),
    Task("taxi", "30min", 24, _taxi, 2_400, 12, _heads(*COUNTS)),
    Task("simulated counts", 1, 12, _simulated, 100, 4, _heads(*COUNTS), more=_DAY),
    Task(
        "ETTh1 side by side",
        "1h",
        24,
        _ett,
        2_880,
        6,
        {"independent": {}, "mixed": {"channels": "mixed"}},
        targets=_ETT_TARGETS,
    ),
)
SETS = tuple(task.name for task in TASKS)


def run(
    data: str | PathLike[str],
    *,
    sets: Sequence[str] = SETS,
    seeds: Sequence[int] = (0,),
    variants: Sequence[Any] | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Fit each model on the rows before those judged, and judge its quantiles.

    Parameters
    ----------
    data : path
        Folder that holds ``ett/``, ``m4_hourly/`` and ``nab/``.
    sets : sequence of str
    seeds : sequence of int
        The first is used.
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
    rows, runs = [], []
    for name in sets:
        task = tasks[name]
        df = task.read(Path(data), seeds[0])
        for label, params in task.models.items():
            start = time.perf_counter()
            rows.append(row_of(task, df, label, params, seed=seeds[0]))
            runs.append({"set": name, "model": label, "seconds": time.perf_counter() - start})
    return {
        "name": "heads",
        "title": "Quantiles or a law, and channels side by side or mixed",
        "command": command or "txl-ts bench heads --data DIR",
        "protocol": [
            "Small models (d_model 32, at most 4 epochs), one seed. Each fits on the rows before those judged; a tail "
            "of these chooses the epochs. Judged: ETTh1's validation rows (2,880; its test rows are left alone) from "
            "every sixth row, 60 series of M4 Hourly from the last training row, the last 2,400 rows of NAB's nyc_taxi "
            "from every 12th (anomalies among them), the last 100 rows of 40 simulated series of small counts from "
            "every 4th.",
            f"WQL: weighted quantile loss over {', '.join(f'{q:g}' for q in QUANTILES)}, summed over all forecasts. "
            "MAE is in units of the target.",
        ],
        "columns": dict(COLUMNS),
        "rows": rows,
        "runs": runs,
        "notes": [
            "One seed and overlapping forecasts: differences of a few percent are noise.",
            "Equal figures of two heads mean that both kept epoch 0, the linear path alone with normal bands.",
        ],
        "seeds": [seeds[0]],
        "environment": report.environment(),
    }


def row_of(task: Task, df: pd.DataFrame, label: str, params: Mapping[str, Any], *, seed: int) -> dict[str, Any]:
    """One line of the table."""
    from txl_ts.estimators.backtest import Batch
    from txl_ts.estimators.forecaster import TXLForecaster

    model = TXLForecaster(h=task.h, freq=task.freq, random_state=seed, **{**_PARAMS, **task.more, **params})
    columns: dict[str, Any] = {"id_col": None, "target_col": list(task.targets)} if task.targets else {}
    back = np.zeros(len(df), int) if task.targets else df["unique_id"]
    past = df[df.groupby(back).cumcount(ascending=False) >= task.n_judged]
    model.fit(past, **columns)
    n_windows = (task.n_judged - task.h) // task.every + 1
    batches = model.cross_validation(
        df, n_windows=n_windows, step_size=task.every, use_fitted=True, output="batches", **columns
    )
    found = Batch.joined(batches)
    q, y, median = QUANTILES.index, found.y, found.forecast[..., QUANTILES.index(0.5)]
    inside = [
        100 * coverage(y=y, lower=found.forecast[..., q(low)], upper=found.forecast[..., q(high)])
        for low, high in ((0.1, 0.9), (0.01, 0.99))
    ]
    lanes = len(task.targets) if task.targets and label == "independent" else 1
    return {
        "set": f"{task.name}, {task.h}",
        "model": label,
        "wql": weighted_quantile_loss(y=y, forecast=found.forecast, quantiles=QUANTILES),
        "mae": mae(y=y, forecast=median),
        "inside_80": inside[0],
        "inside_98": inside[1],
        "state": lanes * model.params_["state_nbytes"] / 1024,
        "n": len(y),
    }
