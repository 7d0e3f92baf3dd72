"""What columns beside the target are worth, and what holes in it cost: Victoria's electricity, Valencia's air.

Victoria: half-hourly demand of three years in Melbourne's clock time; 2012 and 2013 are fitted on (the last 120 days
choose), every window of 2014 judges. Valencia: six pollutants by the hour from 2021 on, as they were published, with
their holes; 2023 judges, on the cells that are there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view

from txl_ts.bench import report
from txl_ts.bench.baselines import (
    PENALTIES,
    EqualContextRidge,
    FloatArray,
    IntArray,
    OriginForecast,
    RunningErrors,
    last_value,
    score_origins,
    seasonal_naive,
)
from txl_ts.bench.forecasters import Variant, median_of, parameter_count, validation_error
from txl_ts.errors import FrameError, ShapeError

VICTORIA, VALENCIA = "Victoria electricity, MW", "Valencia air, deviations"
SETS = ("victoria", "valencia")
ZONE = "Australia/Melbourne"
DAY, WEEK = 48, 336
VICTORIA_VALIDATION = 120 * DAY
VALENCIA_H, VALENCIA_SEASON, VALENCIA_VALIDATION = 24, 24, 60 * 24
POLLUTANTS = ("so2", "co", "no2", "pm10", "o3", "pm2.5")
LOOK_BACKS = MappingProxyType({"victoria": 14 * DAY, "valencia": 14 * 24})
KNOTS = (0.25, 0.5, 0.75, 0.9)
PARAMS = MappingProxyType({"d_model": 32, "max_epochs": 5, "quantiles": (0.5,)})

COLUMNS = MappingProxyType(
    {
        "set": "set",
        "model": "model",
        "validation_mae": "val MAE",
        "test_mae": "test MAE",
        "test_rmse": "test RMSE",
        "test_mae_spread": "± (max − min)",
        "ratio": "test MAE / TXL",
        "n_seeds": "seeds",
        "n_parameters": "parameters",
    }
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """The forecaster with some columns.

    Parameters
    ----------
    name : str
        As it stands in the table.
    set : {"victoria", "valencia"}
    params : mapping
        Arguments of the forecaster.
    futr_cols, cat_cols : tuple of str
    shuffled : bool
        The rows of the temperature are permuted: the same numbers, at times that mean nothing.
    filled : bool
        Holes are filled by the value before them, in what is fitted and walked; errors count the same cells.
    """

    name: str
    set: str
    params: Mapping[str, Any] = field(default_factory=lambda: PARAMS)
    futr_cols: tuple[str, ...] = ()
    cat_cols: tuple[str, ...] = ()
    shuffled: bool = False
    filled: bool = False


_CALENDAR = MappingProxyType({**PARAMS, "calendar": "auto"})
CASES = (
    Case(name="TXL", set="victoria"),
    Case(name="TXL, temperature", set="victoria", futr_cols=("Temperature",)),
    Case(name="TXL, temperature shuffled", set="victoria", futr_cols=("Temperature",), shuffled=True),
    Case(name="TXL, calendar", set="victoria", params=_CALENDAR),
    Case(
        name="TXL, temperature, holiday, calendar",
        set="victoria",
        params=_CALENDAR,
        futr_cols=("Temperature", "Holiday"),
        cat_cols=("Holiday",),
    ),
    Case(name="TXL", set="valencia"),
    Case(name="TXL, holes filled forward", set="valencia", filled=True),
)


@dataclass(frozen=True)
class Rows:
    """One set on its grid.

    Attributes
    ----------
    stamps : DatetimeIndex of length T
    values : ndarray of shape (T, C)
        NaN where nothing was measured.
    channels : tuple of str
    beside : DataFrame of T rows
        Columns beside the target.
    n_fitted : int
        Rows that are fitted on; the rest judges.
    """

    stamps: pd.DatetimeIndex
    values: FloatArray
    channels: tuple[str, ...]
    beside: pd.DataFrame
    n_fitted: int


def load_victoria(data: str | PathLike[str]) -> Rows:
    """Read half-hourly demand (MW), temperature (°C) and holidays in Melbourne's clock time.

    Raises
    ------
    FrameError
        If the file is not there.
    """
    raw = _read(data, "vic_electricity/vic_electricity.csv")
    stamps = pd.DatetimeIndex(pd.to_datetime(raw["Time"])).tz_convert(ZONE)
    beside = pd.DataFrame({"Temperature": raw["Temperature"], "Holiday": raw["Holiday"].astype(bool)})
    n_fitted = int((stamps < pd.Timestamp("2014-01-01", tz=ZONE)).sum())
    return Rows(stamps, raw[["Demand"]].to_numpy(np.float64), ("Demand",), beside, n_fitted)


def load_valencia(data: str | PathLike[str]) -> Rows:
    """Read hourly pollutants from 2021 on, z-scored by the rows before 2023; holes stay.

    Raises
    ------
    FrameError
        If the file is not there.
    """
    raw = _read(data, "air_quality/air_quality_valencia.csv")
    stamps = pd.DatetimeIndex(pd.to_datetime(raw["datetime"]))
    late = stamps >= pd.Timestamp("2021-01-01")
    values, stamps = raw.loc[late, list(POLLUTANTS)].to_numpy(np.float64), stamps[late]
    n_fitted = int((stamps < pd.Timestamp("2023-01-01")).sum())
    mean, deviation = np.nanmean(values[:n_fitted], axis=0), np.nanstd(values[:n_fitted], axis=0)
    return Rows(stamps, (values - mean) / deviation, POLLUTANTS, pd.DataFrame(index=range(len(values))), n_fitted)


def long_frame(rows: Rows, values: FloatArray, beside: pd.DataFrame, *, stop: int) -> pd.DataFrame:
    """The first ``stop`` rows of all channels, one series after the other."""
    parts = [
        pd.DataFrame({"unique_id": name, "ds": rows.stamps[:stop], "y": values[:stop, i]}).join(beside.iloc[:stop])
        for i, name in enumerate(rows.channels)
    ]
    return pd.concat(parts, ignore_index=True)


def filled_forward(values: FloatArray) -> FloatArray:
    """Each hole takes the value before it; holes at the start stay."""
    return pd.DataFrame(values).ffill().to_numpy(np.float64)


def filled_by_season(values: FloatArray, *, season: int) -> FloatArray:
    """Each hole takes the value of the season before, which may be filled itself."""
    out = values.copy()
    for row in range(season, len(out)):
        out[row] = np.where(np.isnan(out[row]), out[row - season], out[row])
    return out


class KnownRidge:
    """A ridge per step ahead from the last rows of one series and the known columns of that step's own row.

    The common inputs are summed once; each step adds a border of its own. The last value is subtracted and added back;
    the penalty is the one with the least squared error on the validation rows.

    Parameters
    ----------
    h : int
    look_back : int
    penalties : sequence of float
        In units of a sum of squares over all training windows.

    References
    ----------
    Hoerl and Kennard (1970), Ridge regression.
    """

    def __init__(self, *, h: int, look_back: int, penalties: Sequence[float] = PENALTIES) -> None:
        self.h, self.look_back, self.penalties = h, look_back, tuple(penalties)

    def fit(self, values: FloatArray, known: FloatArray, *, n_validation: int) -> KnownRidge:
        """Solve for all penalties and keep the best.

        Parameters
        ----------
        values : ndarray of shape (T,)
        known : ndarray of shape (T, F)
        n_validation : int
            Targets of the last rows choose and are not trained on.
        """
        first_target = len(values) - n_validation
        n, n_known = self.look_back + 1, known.shape[1]
        gram, cross = np.zeros((n, n)), np.zeros((n, self.h))
        mixed = np.zeros((self.h, n, n_known))
        own, own_cross = np.zeros((self.h, n_known, n_known)), np.zeros((self.h, n_known))
        for at in _chunks(np.arange(self.look_back - 1, first_target - self.h)):
            inputs, targets = (
                self._inputs(values, at),
                values[at[:, None] + np.arange(1, self.h + 1)] - values[at, None],
            )
            gram += inputs.T @ inputs
            cross += inputs.T @ targets
            for k in range(self.h):
                ahead = known[at + k + 1]
                mixed[k] += inputs.T @ ahead
                own[k] += ahead.T @ ahead
                own_cross[k] += ahead.T @ targets[:, k]
        origins = np.arange(first_target - 1, len(values) - self.h)
        best = np.inf
        for penalty in self.penalties:
            ridge = penalty * np.eye(n + n_known)
            weights = np.stack(
                [
                    np.linalg.solve(
                        np.block([[gram, mixed[k]], [mixed[k].T, own[k]]]) + ridge,
                        np.concatenate([cross[:, k], own_cross[k]]),
                    )
                    for k in range(self.h)
                ],
                axis=1,
            )
            errors = RunningErrors()
            for at in _chunks(origins):
                made = self._apply(weights, values, known, at)
                errors.add(made - values[at[:, None] + np.arange(1, self.h + 1)])
            if errors.mse < best:
                best, self.weights_, self.penalty_, self.validation_mae_ = errors.mse, weights, penalty, errors.mae
        return self

    def forecaster(self, known: FloatArray) -> OriginForecast:
        """Give a function of origins, which reads the columns ahead from ``known`` of all rows."""

        def forecast(values: FloatArray, *, origins: IntArray) -> FloatArray:
            return self._apply(self.weights_, values[:, 0], known, origins)[:, None]

        return forecast

    def _apply(self, weights: FloatArray, values: FloatArray, known: FloatArray, origins: IntArray) -> FloatArray:
        n = self.look_back + 1
        ahead = known[origins[:, None] + np.arange(1, self.h + 1)]  # (k, h, F)
        moved = self._inputs(values, origins) @ weights[:n] + np.einsum("khf,fh->kh", ahead, weights[n:])
        return np.asarray(moved + values[origins, None], np.float64)

    def _inputs(self, values: FloatArray, origins: IntArray) -> FloatArray:
        out = np.ones((len(origins), self.look_back + 1))
        seen = sliding_window_view(values, self.look_back)[origins - self.look_back + 1]
        out[:, :-1] = seen - values[origins, None]
        return out


def known_columns(rows: Rows, *, with_all: bool) -> FloatArray:
    """Features of the ridge: temperature as a line with knots, and holiday, hour, weekday and season of the year."""
    warm = rows.beside["Temperature"].to_numpy(np.float64)
    z = (warm - warm[: rows.n_fitted].mean()) / warm[: rows.n_fitted].std()
    parts = [z, *(np.maximum(z - knot, 0) for knot in np.quantile(z[: rows.n_fitted], KNOTS))]
    if with_all:
        hour = (rows.stamps.hour + rows.stamps.minute / 60) / 24
        parts += [rows.beside["Holiday"].to_numpy(np.float64)]
        parts += [(rows.stamps.day_of_week == day).astype(float) for day in range(6)]
        for part, n in ((hour, 2), ((rows.stamps.day_of_year - 1) / 365.25, 2)):
            parts += [wave(2 * np.pi * k * part) for k in range(1, n + 1) for wave in (np.sin, np.cos)]
    return np.stack([np.asarray(part, np.float64) for part in parts], axis=1)


def run(
    data: str | PathLike[str],
    *,
    seeds: Sequence[int] = (0,),
    sets: Sequence[str] = SETS,
    variants: Sequence[Case] = CASES,
    command: str = "txl-ts bench covariates --data DIR",
) -> dict[str, Any]:
    """Fit and judge every case, and the baselines beside it.

    Parameters
    ----------
    data : path
        Folder that holds ``vic_electricity/`` and ``air_quality/``.
    seeds : sequence of int
        One fit per seed and case.
    sets : sequence of {"victoria", "valencia"}
    variants : sequence of Case
        Empty for the baselines alone.
    command : str
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`, with every single fit under ``runs``.
    """
    table: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    for name in sets:
        rows = {"victoria": load_victoria, "valencia": load_valencia}[name](data)
        cell = victoria_baselines(rows) if name == "victoria" else valencia_baselines(rows)
        for case in variants:
            if case.set == name:
                fits = [forecaster_run(rows, case=case, seed=seed) for seed in seeds]
                runs += fits
                cell.append(_summary(fits))
        table += _with_ratios(cell)
    return {
        "name": "covariates",
        "title": "Columns beside the target, and holes in it",
        "command": command,
        "protocol": [
            "Victoria: half-hourly demand in Melbourne's clock time (days of 23 and 25 hours as they were), a day "
            f"ahead; 2012 and 2013 are fitted on, the last {VICTORIA_VALIDATION // DAY} days of them choose, every "
            "window of 2014 judges, stride 1. The temperature ahead is the one that was measured, not a forecast of "
            "it: what a good weather forecast could be worth at most. Shuffled: the same temperatures in another "
            "order of rows.",
            "Valencia: six pollutants by the hour, with their holes, a day ahead; 2021 and 2022 are fitted on, the "
            f"last {VALENCIA_VALIDATION // 24} days of them choose, every window of 2023 judges on the cells that were "
            "measured. Deviations are those of the fitted rows.",
        ],
        "columns": dict(COLUMNS),
        "rows": table,
        "runs": runs,
        "notes": _verdicts(table),
        "seeds": list(seeds),
        "variants": [{"name": case.name, "set": case.set, "params": dict(case.params)} for case in variants],
        "environment": report.environment(),
    }


def victoria_baselines(rows: Rows) -> list[dict[str, Any]]:
    """Seasonal naive, the ridge, and the ridge with known columns."""
    made: list[tuple[str, OriginForecast, dict[str, Any]]] = [
        ("seasonal naive, a week", partial(seasonal_naive, h=DAY, season=WEEK), {"n_parameters": 0})
    ]
    fitted = rows.values[: rows.n_fitted, 0]
    mean, deviation = fitted.mean(), fitted.std()
    z = (rows.values - mean) / deviation
    begin = time.perf_counter()
    ridge = EqualContextRidge(h=DAY, look_back=LOOK_BACKS["victoria"])
    ridge.fit([z[: rows.n_fitted, 0]], n_validation=VICTORIA_VALIDATION)
    about = {"n_parameters": ridge.n_parameters, "train_s": time.perf_counter() - begin}
    made.append(("ridge", _in_units(ridge.predict, mean, deviation), about))
    for name, with_all in (("ridge, temperature", False), ("ridge, temperature, holiday, calendar", True)):
        begin = time.perf_counter()
        known = known_columns(rows, with_all=with_all)
        model = KnownRidge(h=DAY, look_back=LOOK_BACKS["victoria"])
        model.fit(z[: rows.n_fitted, 0], known[: rows.n_fitted], n_validation=VICTORIA_VALIDATION)
        about = {"n_parameters": int(model.weights_.size), "train_s": time.perf_counter() - begin}
        made.append((name, _in_units(model.forecaster(known), mean, deviation), about))
    return _judged(VICTORIA, rows.values, made, rows, h=DAY, n_validation=VICTORIA_VALIDATION)


def valencia_baselines(rows: Rows) -> list[dict[str, Any]]:
    """Last value, seasonal naive and the ridge, on rows whose holes were filled."""
    forward = filled_forward(rows.values)
    seasonal = filled_by_season(rows.values, season=VALENCIA_SEASON)
    begin = time.perf_counter()
    ridge = EqualContextRidge(h=VALENCIA_H, look_back=LOOK_BACKS["valencia"])
    ridge.fit(list(forward[: rows.n_fitted].T), n_validation=VALENCIA_VALIDATION)
    about = {"n_parameters": ridge.n_parameters, "train_s": time.perf_counter() - begin}
    naive = partial(seasonal_naive, h=VALENCIA_H, season=VALENCIA_SEASON)
    made: list[tuple[str, OriginForecast, dict[str, Any]]] = [
        ("last value", _reading(partial(last_value, h=VALENCIA_H), forward), {"n_parameters": 0}),
        ("seasonal naive, a day", _reading(naive, seasonal), {"n_parameters": 0}),
        ("ridge, holes filled forward", _reading(ridge.predict, forward), about),
    ]
    return _judged(VALENCIA, rows.values, made, rows, h=VALENCIA_H, n_validation=VALENCIA_VALIDATION)


def forecaster_run(rows: Rows, *, case: Case, seed: int) -> dict[str, Any]:
    """Fit one forecaster and walk it once over the test part.

    Parameters
    ----------
    rows : Rows
    case : Case
    seed : int

    Returns
    -------
    dict
        Scores, seconds and sizes.
    """
    is_victoria = case.set == "victoria"
    h, freq = (DAY, "30min") if is_victoria else (VALENCIA_H, "1h")
    beside = rows.beside[list(case.futr_cols)]
    if case.shuffled:
        order = np.random.default_rng(0).permutation(len(beside))
        beside = beside.assign(Temperature=beside["Temperature"].to_numpy()[order])
    values = filled_forward(rows.values) if case.filled else rows.values
    model = Variant(name=case.name, params=case.params).make(h=h, freq=freq, random_state=seed)
    start = time.perf_counter()
    model.fit(
        long_frame(rows, values, beside, stop=rows.n_fitted),
        futr_cols=case.futr_cols,
        cat_cols=case.cat_cols,
        val_size=VICTORIA_VALIDATION if is_victoria else VALENCIA_VALIDATION,
    )
    train_s = time.perf_counter() - start
    n_windows = len(values) - rows.n_fitted - h + 1
    batches = model.cross_validation(
        long_frame(rows, values, beside, stop=len(values)), n_windows=n_windows, use_fitted=True, output="batches"
    )
    errors, n = _errors_of(batches, rows, quantiles=model.config_.quantiles, h=h)
    if n != n_windows * len(rows.channels):
        raise ShapeError(f"the backtest gave {n} windows, and {n_windows * len(rows.channels)} were asked for.")
    return {
        "set": VICTORIA if is_victoria else VALENCIA,
        "model": case.name,
        "seed": seed,
        "validation_mae": validation_error(model).mae,
        "test_mae": errors.mae,
        "test_rmse": float(np.sqrt(errors.mse)),
        "n_parameters": parameter_count(model),
        "train_s": train_s,
        "uses_known": model.linear_fit_.uses_known,
    }


def _errors_of(
    batches: Iterable[Any], rows: Rows, *, quantiles: tuple[float, ...], h: int
) -> tuple[RunningErrors, int]:
    """Errors of the median against what was measured, whatever the frame held there."""
    errors, n = RunningErrors(), 0
    for batch in batches:
        channel = rows.values[:, rows.channels.index(batch.ids[0])]  # a batch is of one series
        y = channel[batch.ordinals[:, None] + np.arange(1, h + 1)]
        made = median_of(batch.forecast, quantiles=quantiles)
        if np.isnan(made).any():
            raise ShapeError(f"a forecast of {batch.ids[0]!r} is missing.")
        errors.add(made.astype(np.float64) - y)
        n += len(y)
    return errors, n


def _judged(
    name: str,
    values: FloatArray,
    made: Sequence[tuple[str, OriginForecast, dict[str, Any]]],
    rows: Rows,
    *,
    h: int,
    n_validation: int,
) -> list[dict[str, Any]]:
    cell = []
    for model, forecast, about in made:
        chosen = score_origins(values, forecast, h=h, first=rows.n_fitted - n_validation, stop=rows.n_fitted)
        judged = score_origins(values, forecast, h=h, first=rows.n_fitted, stop=len(values))
        scores = {"validation_mae": chosen.mae, "test_mae": judged.mae, "test_rmse": float(np.sqrt(judged.mse))}
        cell.append({"set": name, "model": model, **scores, **about})
    return cell


def _in_units(forecast: OriginForecast, mean: float, deviation: float) -> OriginForecast:
    """Forecast on z-scored values, answer in raw units."""

    def raw(values: FloatArray, *, origins: IntArray) -> FloatArray:
        return forecast((values - mean) / deviation, origins=origins) * deviation + mean

    return raw


def _reading(forecast: OriginForecast, filled: FloatArray) -> OriginForecast:
    """Forecast from other values than those that judge."""

    def from_filled(values: FloatArray, *, origins: IntArray) -> FloatArray:
        return forecast(filled, origins=origins)

    return from_filled


def _summary(fits: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean of the fits of one case over its seeds."""
    means = {
        key: float(np.mean([fit[key] for fit in fits]))
        for key in ("validation_mae", "test_mae", "test_rmse", "train_s")
    }
    scores = [fit["test_mae"] for fit in fits]
    spread = {"test_mae_spread": max(scores) - min(scores)} if len(fits) > 1 else {}
    return {**{key: fits[0][key] for key in ("set", "model", "n_parameters")}, **means, **spread, "n_seeds": len(fits)}


def _with_ratios(cell: list[dict[str, Any]]) -> list[dict[str, Any]]:
    own = next((row["test_mae"] for row in cell if row["model"] == "TXL"), None)
    return [row | ({} if own is None else {"ratio": row["test_mae"] / own}) for row in cell]


def _verdicts(table: list[dict[str, Any]]) -> list[str]:
    """Say what was to be shown, in numbers."""
    found = {(row["set"], row["model"]): row["test_mae"] for row in table}
    notes = []
    own, warm, mixed = (
        found.get((VICTORIA, name)) for name in ("TXL", "TXL, temperature", "TXL, temperature shuffled")
    )
    if own and warm and mixed:
        notes.append(
            f"Known temperature changes the error of the same model by {100 * (warm / own - 1):+.1f} %, shuffled by "
            f"{100 * (mixed / own - 1):+.1f} %."
        )
    best, ridge = (found.get((VICTORIA, f"{name}, temperature, holiday, calendar")) for name in ("TXL", "ridge"))
    if best and ridge:
        gap = 100 * (best / ridge - 1)
        notes.append(f"With all columns the error of TXL differs from that of the ridge with the same by {gap:+.1f} %.")
    raw, filled = (found.get((VALENCIA, name)) for name in ("TXL", "TXL, holes filled forward"))
    if raw and filled:
        notes.append(f"Holes as they are, instead of filled forward: error {100 * (raw / filled - 1):+.1f} %.")
    return notes


def _chunks(origins: IntArray, size: int = 4096) -> Iterable[IntArray]:
    return (origins[begin : begin + size] for begin in range(0, len(origins), size))


def _read(data: str | PathLike[str], name: str) -> pd.DataFrame:
    path = Path(data) / name
    if not path.is_file():
        raise FrameError(f"{path} is not there. Pass the folder that holds {name} (skforecast-datasets).")
    return pd.read_csv(path)
