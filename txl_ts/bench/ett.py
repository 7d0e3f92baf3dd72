"""ETTh1 and ETTh2: long-horizon forecasting of seven channels, every window counted.

Rows 0 to 8,640 are trained on, rows to 11,520 choose, rows to 14,400 judge. Values are z-scored by the training rows,
errors are averaged over all seven channels and all windows with stride 1, and the last windows are not dropped.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from txl_ts.bench import report
from txl_ts.bench.baselines import (
    LOOK_BACK,
    EqualContextRidge,
    FloatArray,
    OriginForecast,
    RunningErrors,
    Score,
    last_value,
    score_origins,
    seasonal_naive,
)
from txl_ts.bench.forecasters import (
    Variant,
    context_rows,
    median_of,
    parameter_count,
    validation_error,
)
from txl_ts.errors import FrameError, ShapeError

# Zhou et al. (2021), Informer (arXiv 2012.07436), as PatchTST and later work split it: 12, 4, 4 months of 30 days.
N_TRAIN, N_VALIDATION, N_TEST = 8640, 2880, 2880
N_FITTED, N_ROWS = N_TRAIN + N_VALIDATION, N_TRAIN + N_VALIDATION + N_TEST
SEASON = 24
HORIZONS = (96, 192, 336, 720)
# One configuration for both sets, chosen on their validation rows at h 96 (look-backs 168 to 1,008, half-lives 72 to
# 336, memories of 4 to 20 visits, absolute and squared loss): see benchmarks/README.md.
CHOSEN = Variant(
    name="TXL",
    params=MappingProxyType(
        {
            "quantiles": (0.5,),
            "lookback": 504,
            "loss": "squared",
            "dropout": 0.3,
            "weight_decay": 0.05,
            "max_epochs": 6,
            "patience": 6,
        }
    ),
)
SETS = ("ETTh1", "ETTh2")

# Test MSE as published for the protocol without dropped windows (the PatchTST paper itself drops some, its own figures
# are lower). Models: Nie et al. (2023), arXiv 2211.14730; Xu et al. (2024), FITS, arXiv 2307.03756.
QUOTED = MappingProxyType(
    {
        "PatchTST (quoted)": {"ETTh1": (0.385, 0.413, 0.440, 0.456), "ETTh2": (0.274, 0.338, 0.367, 0.391)},
        "FITS (quoted)": {"ETTh1": (0.375, 0.407, 0.430, 0.427), "ETTh2": (0.271, 0.331, 0.354, 0.378)},
    }
)
COLUMNS = MappingProxyType(
    {
        "set": "set",
        "h": "h",
        "model": "model",
        "validation_mse": "val MSE",
        "validation_mae": "val MAE",
        "test_mse": "test MSE",
        "test_mae": "test MAE",
        "test_mse_spread": "± (max − min)",
        "test_mse_ratio": "test MSE / ridge",
        "context": "context, rows",
        "n_seeds": "seeds",
        "n_parameters": "parameters",
        "train_s": "training, s",
    }
)


@dataclass(frozen=True)
class EttSet:
    """One z-scored set.

    Parameters
    ----------
    name : str
        ``"ETTh1"`` or ``"ETTh2"``.
    stamps : DatetimeIndex of length 14,400
        Hours, without a zone.
    values : ndarray of shape (14400, 7)
        In standard deviations of the training rows.
    channels : tuple of str
        Column names.
    """

    name: str
    stamps: pd.DatetimeIndex
    values: FloatArray
    channels: tuple[str, ...]


def load(data: str | PathLike[str], *, name: str) -> EttSet:
    """Read a set, cut it to 14,400 rows and z-score it by its training rows.

    Parameters
    ----------
    data : path
        Folder that holds ``ett/``.
    name : str
        ``"ETTh1"`` or ``"ETTh2"``.

    Returns
    -------
    EttSet

    Raises
    ------
    FrameError
        If the file is not there or has fewer rows.
    """
    path = Path(data) / "ett" / f"{name}.csv"
    if not path.is_file():
        raise FrameError(f"{path} is not there. Pass the folder that holds ett/{name}.csv (zhouhaoyi/ETDataset).")
    raw = pd.read_csv(path, parse_dates=["date"])
    if len(raw) < N_ROWS:
        raise FrameError(f"{path} has {len(raw)} rows and the protocol needs {N_ROWS}. Use the original file.")
    columns = tuple(str(column) for column in raw.columns if column != "date")
    rows = raw[list(columns)].to_numpy(np.float64)[:N_ROWS]
    train = rows[:N_TRAIN]
    values = (rows - train.mean(axis=0)) / train.std(axis=0)
    return EttSet(name=name, stamps=pd.DatetimeIndex(raw["date"][:N_ROWS]), values=values, channels=columns)


def long_frame(ett: EttSet, *, stop: int = N_ROWS) -> pd.DataFrame:
    """The first ``stop`` rows of all channels as ``unique_id``, ``ds``, ``y``, one series after the other.

    Parameters
    ----------
    ett : EttSet
        A loaded set.
    stop : int
        Rows per channel.

    Returns
    -------
    DataFrame of 7 × ``stop`` rows
    """
    return pd.DataFrame(
        {
            "unique_id": np.repeat(np.array(ett.channels, dtype=object), stop),
            "ds": np.tile(ett.stamps[:stop].to_numpy(), len(ett.channels)),
            "y": ett.values[:stop].T.ravel(),
        }
    )


def run(
    data: str | PathLike[str],
    *,
    h: Sequence[int] = HORIZONS,
    sets: Sequence[str] = SETS,
    seeds: Sequence[int] = (0, 1, 2),
    variants: Sequence[Variant] = (CHOSEN,),
    baselines: bool = True,
    command: str = "txl-ts bench ett --data DIR",
) -> dict[str, Any]:
    """Fit and judge every variant, and the baselines beside it.

    Parameters
    ----------
    data : path
        Folder that holds ``ett/``.
    h : sequence of int
        Horizons.
    sets : sequence of str
        Names of the sets.
    seeds : sequence of int
        One fit per seed; the table shows means and the spread.
    variants : sequence of Variant
        Configurations of the forecaster; empty for the baselines alone.
    baselines : bool
        Last value, seasonal naive, the ridge and quoted scores.
    command : str
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`, with every single fit under ``runs``.
    """
    rows: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    for ett in (load(data, name=name) for name in sets):
        for horizon in h:
            cell = baseline_rows(ett, h=horizon) if baselines else []
            for variant in variants:
                fits = [forecaster_run(ett, variant=variant, h=horizon, seed=seed) for seed in seeds]
                runs += fits
                cell.append(_summary(fits))
            rows += _with_ratios(cell)
    return {
        "name": "ett",
        "title": "ETTh1 and ETTh2, errors on z-scored values",
        "command": command,
        "protocol": [
            f"Rows 0 to {N_TRAIN:,} train, to {N_FITTED:,} validation, to {N_ROWS:,} test; z-score by the training "
            "rows; 7 channels; all windows, stride 1, none dropped (2,785 at h 96). Choices are made on validation "
            "only; the validation rows are never trained on. The forecasts are streamed once over the test part.",
            f"The ridge sees {LOOK_BACK:,} rows, one matrix for all channels, its penalty chosen on validation.",
        ],
        "columns": dict(COLUMNS),
        "rows": rows,
        "runs": runs,
        "notes": [
            *_verdicts(rows),
            "Quoted scores are copied from publications that count all windows; they were not run here.",
        ],
        "seeds": list(seeds),
        "variants": [{"name": variant.name, "params": dict(variant.params)} for variant in variants],
        "environment": report.environment(),
    }


def baseline_rows(ett: EttSet, *, h: int) -> list[dict[str, Any]]:
    """Rows of the table for last value, seasonal naive, the ridge, and the scores that others published.

    Parameters
    ----------
    ett : EttSet
        A loaded set.
    h : int
        Rows ahead.

    Returns
    -------
    list of dict
    """
    start = time.perf_counter()
    ridge = EqualContextRidge(h=h).fit(list(ett.values[:N_FITTED].T), n_validation=N_VALIDATION)
    ridge_s = time.perf_counter() - start
    made: list[tuple[str, OriginForecast, dict[str, Any]]] = [
        ("last value", partial(last_value, h=h), {"context": 1, "n_parameters": 0}),
        ("seasonal naive, 24", partial(seasonal_naive, h=h, season=SEASON), {"context": SEASON, "n_parameters": 0}),
        (
            "ridge",
            ridge.predict,
            {
                "context": LOOK_BACK,
                "n_parameters": ridge.n_parameters,
                "train_s": ridge_s,
                "penalty": ridge.penalty_,
            },
        ),
    ]
    rows = []
    for name, forecast, about in made:
        chosen = score_origins(ett.values, forecast, h=h, first=N_TRAIN, stop=N_FITTED)
        judged = score_origins(ett.values, forecast, h=h, first=N_FITTED, stop=N_ROWS)
        rows.append({"set": ett.name, "h": h, "model": name, **_scores(chosen, judged), **about})
    for name, scores in QUOTED.items():
        if h in HORIZONS and ett.name in scores:
            quoted = scores[ett.name][HORIZONS.index(h)]
            rows.append({"set": ett.name, "h": h, "model": name, "test_mse": quoted})
    return rows


def forecaster_run(ett: EttSet, *, variant: Variant, h: int, seed: int) -> dict[str, Any]:
    """Fit one forecaster on train and validation rows and walk it once over the test part.

    Parameters
    ----------
    ett : EttSet
        A loaded set.
    variant : Variant
        Configuration.
    h : int
        Rows ahead.
    seed : int
        ``random_state``.

    Returns
    -------
    dict
        Scores, seconds of training and of the walk, and sizes.
    """
    model = variant.make(h=h, freq="1h", random_state=seed)
    start = time.perf_counter()
    model.fit(long_frame(ett, stop=N_FITTED), val_size=N_VALIDATION)
    train_s = time.perf_counter() - start
    n_windows = N_TEST - h + 1
    start = time.perf_counter()
    batches = model.cross_validation(
        long_frame(ett), n_windows=n_windows, step_size=1, use_fitted=True, output="batches"
    )
    judged = score_batches(batches, quantiles=model.config_.quantiles, h=h, n_windows=n_windows * len(ett.channels))
    walk_s = time.perf_counter() - start
    return {
        "set": ett.name,
        "h": h,
        "model": variant.name,
        "seed": seed,
        **_scores(validation_error(model), judged),
        "context": context_rows(model),
        "n_parameters": parameter_count(model),
        "train_s": train_s,
        "walk_s": walk_s,
    }


def score_batches(batches: Iterable[Any], *, quantiles: tuple[float, ...], h: int, n_windows: int) -> Score:
    """Average the errors of the median over batches of backtest forecasts, and make sure that no window is missing.

    Parameters
    ----------
    batches : iterable
        Objects with ``y`` of shape (k, h) and ``forecast`` of shape (k, h, Q).
    quantiles : tuple of float
        Levels of the last axis.
    h : int
        Rows ahead.
    n_windows : int
        Windows that must come.

    Returns
    -------
    Score

    Raises
    ------
    ShapeError
        If there are more or fewer values than ``n_windows * h``.
    """
    errors = RunningErrors()
    for batch in batches:
        y = np.asarray(batch.y, np.float64)
        errors.add(median_of(np.asarray(batch.forecast, np.float64), quantiles=quantiles) - y)
    if errors.n != n_windows * h:
        raise ShapeError(
            f"the backtest gave {errors.n} finite errors and {n_windows} windows of {h} rows have {n_windows * h}. "
            "A dropped window would make the score incomparable."
        )
    return Score(errors.mse, errors.mae, n_windows)


def _scores(validation: Any, test: Any) -> dict[str, float]:
    return {
        "validation_mse": validation.mse,
        "validation_mae": validation.mae,
        "test_mse": test.mse,
        "test_mae": test.mae,
    }


def _summary(fits: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean over seeds, the spread of the test error, and the sizes."""
    keys = ("validation_mse", "validation_mae", "test_mse", "test_mae", "train_s")
    test = [fit["test_mse"] for fit in fits]
    return {
        **{key: fits[0][key] for key in ("set", "h", "model", "context", "n_parameters")},
        **{key: float(np.mean([fit[key] for fit in fits])) for key in keys},
        "test_mse_spread": max(test) - min(test) if len(test) > 1 else None,
        "n_seeds": len(fits),
    }


def _with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ridge = next((row["test_mse"] for row in rows if row["model"] == "ridge"), None)
    return [{**row, "test_mse_ratio": row["test_mse"] / ridge} if ridge else row for row in rows]


def _verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """Say per fitted model in how many cells it beats the ridge; a difference within the seeds' spread is a tie."""
    ridges = {(row["set"], row["h"]): row for row in rows if row["model"] == "ridge"}
    fitted = [row for row in rows if "n_seeds" in row and (row["set"], row["h"]) in ridges]
    notes = []
    for name in dict.fromkeys(row["model"] for row in fitted):
        mine = [(row, ridges[row["set"], row["h"]]) for row in fitted if row["model"] == name]
        steps = [(row["test_mse"] - ridge["test_mse"], row["test_mse_spread"] or 0.0) for row, ridge in mine]
        ties = sum(abs(step) <= spread for step, spread in steps)
        wins = sum(step < -spread for step, spread in steps)
        chosen = sum(row["validation_mse"] < ridge["validation_mse"] for row, ridge in mine)
        notes.append(
            f"{name} against the ridge: test MSE better in {wins} of {len(mine)} cells, a tie within the spread of "
            f"seeds in {ties}, worse in {len(mine) - wins - ties}; validation MSE better in {chosen}. "
            f"Mean test MSE {np.mean([row['test_mse'] for row, _ in mine]):.4f} against "
            f"{np.mean([ridge['test_mse'] for _, ridge in mine]):.4f}."
        )
    return notes
