"""What it is worth to know when rows came: vital signs of intensive care, and Valencia's air with rows left out.

Every model is asked the same: at whole hours it knows the readings up to that hour, and forecasts those of the next
hours. The model of real time takes the readings as they came; the same model on a grid takes them by the hour, filled
forward or with holes; the same model told rows only does not know when they came.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from txl_ts.bench import report
from txl_ts.bench.baselines import FloatArray, IntArray
from txl_ts.bench.forecasters import Variant, median_of, parameter_count
from txl_ts.errors import FrameError, ParameterError

VITALS, AIR = "PhysioNet 2012, four vital signs", "Valencia air, 7 of 10 rows left out"
SETS = ("vitals", "air")
SIGNS = MappingProxyType({"HR": "HR", "MAP": "MAP", "NIMAP": "MAP", "Temp": "Temp", "RespRate": "RespRate"})
POLLUTANTS = ("so2", "co", "no2", "pm10", "o3", "pm2.5")
N_FITTED_PATIENTS = 300
KEPT_SHARE = 0.3
REAL_TIME, ROWS, FILLED, HOLES = "real time", "rows only", "hourly, filled forward", "hourly, holes left open"

COLUMNS = MappingProxyType(
    {
        "set": "set",
        "model": "model",
        "test_mae": "test MAE",
        "test_rmse": "test RMSE",
        "test_mae_spread": "± (max − min)",
        "ratio": "test MAE / real time",
        "n_seeds": "seeds",
        "n_parameters": "parameters",
        "train_s": "fit, s",
    }
)

_SIZES = MappingProxyType(
    {
        "patch_len": 4,
        "stride": 1,
        "lookback": 8,
        "mem_len": 32,
        "half_life": 24,
        "d_model": 32,
        "quantiles": (0.5,),
        "max_epochs": 6,
    }
)
_DAYS = MappingProxyType({"d_model": 32, "quantiles": (0.5,), "max_epochs": 5})


@dataclass(frozen=True, kw_only=True)
class Case:
    """The forecaster, and how it is told of time.

    Parameters
    ----------
    name : str
        As it stands in the table.
    set : {"vitals", "air"}
    view : str
        One of ``REAL_TIME``, ``ROWS``, ``FILLED`` and ``HOLES``.
    params : mapping
        Arguments of the forecaster.
    """

    name: str
    set: str
    view: str
    params: Mapping[str, Any] = field(default_factory=lambda: _SIZES)


CASES = (
    *(Case(name=f"TXL, {view}", set="vitals", view=view) for view in (REAL_TIME, ROWS, FILLED, HOLES)),
    *(Case(name=f"TXL, {view}", set="air", view=view) for view in (REAL_TIME, ROWS)),
    *(Case(name=f"TXL, {view}", set="air", view=view, params=_DAYS) for view in (FILLED, HOLES)),
    Case(name="TXL, real time, calendar", set="air", view=REAL_TIME, params={**_SIZES, "calendar": "auto"}),
    Case(name="TXL, hourly, holes left open, calendar", set="air", view=HOLES, params={**_DAYS, "calendar": "auto"}),
)


@dataclass(frozen=True)
class Readings:
    """Readings of one set.

    Attributes
    ----------
    name : str
    rows : DataFrame
        Columns ``unique_id`` (``"record/kind"``), ``hour`` (float) and ``y``, sorted by both.
    fitted : set of str
        Series that are fitted on; with ``judged_from`` their rows before that hour.
    judged : set of str
        Series that judge.
    judged_from : float
        Hour from which on forecasts are judged.
    horizon : int
        Hours ahead that are judged.
    every : int
        Hours between two cutoffs.
    h : int
        Rows ahead that a model of rows forecasts.
    val_size : int
        Last readings of each series that choose the epoch.
    origin : Timestamp, optional
        Of hour 0; without one time is counted in integers.
    """

    name: str
    rows: pd.DataFrame
    fitted: frozenset[str]
    judged: frozenset[str]
    judged_from: float
    horizon: int
    every: int
    h: int
    val_size: int
    origin: pd.Timestamp | None = None

    def unit(self) -> dict[str, float]:
        """Deviation of each kind's readings that are fitted on."""
        rows = self._fit_rows()
        deviations = rows.groupby(rows["unique_id"].str.rpartition("/")[2])["y"].std()
        return {str(kind): float(deviation) for kind, deviation in deviations.items()}

    def _fit_rows(self) -> pd.DataFrame:
        rows = self.rows[self.rows["unique_id"].isin(self.fitted)]
        return rows if self.fitted.isdisjoint(self.judged) else rows[rows["hour"] < self.judged_from]

    def fit_frame(self, view: str) -> pd.DataFrame:
        """Rows to fit on."""
        return self.frame(self._fit_rows(), view)

    def judge_frame(self, view: str) -> pd.DataFrame:
        """Whole series that judge."""
        return self.frame(self.rows[self.rows["unique_id"].isin(self.judged)], view)

    def frame(self, rows: pd.DataFrame, view: str) -> pd.DataFrame:
        """Put readings into the frame of a view."""
        if view in (FILLED, HOLES):
            rows = by_the_hour(rows, filled=view == FILLED)
        if view == ROWS:
            return rows.assign(ds=rows.groupby("unique_id").cumcount())[["unique_id", "ds", "y"]]
        minutes = (rows["hour"] * 60).round().astype(np.int64)
        ds = minutes if self.origin is None else self.origin + pd.to_timedelta(minutes, unit="min").dt.as_unit("s")
        if self.origin is None and view != REAL_TIME:
            ds = minutes // 60
        return rows.assign(ds=ds)[["unique_id", "ds", "y"]]


def by_the_hour(rows: pd.DataFrame, *, filled: bool) -> pd.DataFrame:
    """Put readings on whole hours: an hour holds the last reading since the hour before, or else the one before it."""
    rows = rows.assign(hour=np.ceil(rows["hour"] - 1e-9)).drop_duplicates(["unique_id", "hour"], keep="last")
    parts = []
    for name, part in rows.groupby("unique_id"):
        every = np.arange(part["hour"].min(), part["hour"].max() + 1)
        y = part.set_index("hour")["y"].reindex(every)
        parts.append(pd.DataFrame({"unique_id": name, "hour": every, "y": (y.ffill() if filled else y).to_numpy()}))
    return pd.concat(parts, ignore_index=True)


def load_vitals(data: str | PathLike[str], *, n_patients: int | None = None, seed: int = 0) -> Readings:
    """Read heart rate, mean arterial pressure, temperature and respiration of 400 patients, as they were charted.

    Raises
    ------
    FrameError
        If the files are not there.
    """
    folder = Path(data) / "physionet2012" / "set-a"
    files = sorted(folder.glob("*.txt"))[:n_patients]
    if not files:
        raise FrameError(f"{folder} holds no records. Pass the folder that holds physionet2012/.")
    parts = []
    for path in files:
        raw = pd.read_csv(path)
        raw = raw[raw["Parameter"].isin(SIGNS) & (raw["Value"] > 0)]
        hour = raw["Time"].str[:2].astype(float) + raw["Time"].str[3:].astype(float) / 60
        parts.append(
            pd.DataFrame({"unique_id": f"{path.stem}/" + raw["Parameter"].map(SIGNS), "hour": hour, "y": raw["Value"]})
        )
    rows = pd.concat(parts).groupby(["unique_id", "hour"], as_index=False)["y"].mean()
    rows = rows[rows.groupby("unique_id")["y"].transform("size") >= 12]
    record = rows["unique_id"].str.partition("/")[0]
    records = np.random.default_rng(seed).permutation(sorted(record.unique()))
    cut = len(records) * N_FITTED_PATIENTS // 400
    first, rest = (frozenset(rows["unique_id"][record.isin(part)]) for part in (records[:cut], records[cut:]))
    return Readings(VITALS, rows.reset_index(drop=True), first, rest, 6.0, 6, 1, 8, 8)


def load_air(data: str | PathLike[str], *, seed: int = 0) -> Readings:
    """Read six pollutants of Valencia, 2021 to 2023, and leave out seven of ten readings at random.

    Raises
    ------
    FrameError
        If the file is not there.
    """
    path = next(iter(sorted((Path(data) / "air_quality").glob("*.csv"))), None)
    if path is None:
        raise FrameError(f"{data} holds no air_quality/. Pass the folder that holds it.")
    raw = pd.read_csv(path, parse_dates=["datetime"]).set_index("datetime")
    origin = pd.Timestamp("2021-01-01")
    raw = raw[raw.index >= origin]
    hour = (raw.index.to_numpy() - origin.to_numpy()) / np.timedelta64(1, "h")
    rng = np.random.default_rng(seed)
    parts = []
    for name in POLLUTANTS:
        kept = raw[name].notna().to_numpy() & (rng.random(len(raw)) < KEPT_SHARE)
        parts.append(pd.DataFrame({"unique_id": f"air/{name}", "hour": hour[kept], "y": raw[name].to_numpy()[kept]}))
    rows = pd.concat(parts, ignore_index=True)
    names = frozenset(rows["unique_id"])
    first = (pd.Timestamp("2023-01-01") - origin) / pd.Timedelta("1h")
    return Readings(AIR, rows, names, names, float(first), 24, 6, 14, 400, origin)


@dataclass(frozen=True)
class Questions:
    """What is asked: for each reading the series, the cutoff, and which reading it is.

    Attributes
    ----------
    unit : float array
        Deviation of the kind.
    series : list of str
    of : int64 array
        Position in ``series``.
    last, step : int64 array
        Last row known at the cutoff, and rows from it to the reading asked.
    hour : float array
        Of the cutoff.
    ahead : float array
        Hours from the cutoff to the reading.
    y : float array
    """

    unit: FloatArray
    series: list[str]
    of: IntArray
    last: IntArray
    step: IntArray
    hour: FloatArray
    ahead: FloatArray
    y: FloatArray


def questions(readings: Readings) -> Questions:
    """Ask at whole hours for the readings of the next hours."""
    units = readings.unit()
    series: list[str] = []
    found: dict[str, list[Any]] = {name: [] for name in ("unit", "of", "last", "step", "hour", "ahead", "y")}
    rows = readings.rows[readings.rows["unique_id"].isin(readings.judged)]
    for name, part in rows.groupby("unique_id"):
        hour, y = part["hour"].to_numpy(), part["y"].to_numpy()
        begin = max(np.ceil(hour[0] + 1), readings.judged_from)
        cutoffs = np.arange(begin, hour[-1], readings.every)
        last = np.searchsorted(hour, cutoffs, side="right") - 1
        for step in range(1, readings.h + 1):
            row = last + step
            there = row < len(hour)
            ahead = hour[np.minimum(row, len(hour) - 1)] - cutoffs
            asked = there & (ahead <= readings.horizon)
            n = int(asked.sum())
            found["unit"].append(np.full(n, units[str(name).rpartition("/")[2]]))
            found["of"].append(np.full(n, len(series)))
            found["last"].append(last[asked])
            found["step"].append(np.full(n, step))
            found["hour"].append(cutoffs[asked])
            found["ahead"].append(ahead[asked])
            found["y"].append(y[row[asked]])
        series.append(str(name))
    return Questions(series=series, **{name: np.concatenate(parts) for name, parts in found.items()})


def answers_of(model: Any, readings: Readings, asked: Questions, *, view: str) -> FloatArray:
    """What a fitted forecaster says to the questions, each series walked once."""
    from txl_ts.frames import run_of
    from txl_ts.walk import walk

    frame = readings.judge_frame(view)
    panel = model._read_more(frame, continues=False)
    if panel.n_pieces != panel.n_series:
        raise FrameError(f"{panel.n_series} series fell into {panel.n_pieces} pieces: give max_gap.")
    runs = [panel.values[a:b] for a, b in zip(panel.offsets, panel.offsets[1:], strict=False)]
    beside = None
    if panel.covariates is not None:
        beside = [run_of(panel, i, 0, len(run), h=model.config_.h) for i, run in enumerate(runs)]
    forecast = [np.full((len(run), model.config_.h), np.nan) for run in runs]
    for stretch in walk(model._model, runs, None, beside=beside):
        points = median_of(stretch.y[:, :, :, 0], quantiles=model.config_.quantiles)
        for lane, y in zip(stretch.lanes, points, strict=True):
            forecast[lane][stretch.row : stretch.row + len(y)] = y
    offsets = np.concatenate([[0], np.cumsum([len(run) for run in runs])])
    stacked = np.concatenate(forecast)
    lane = np.array([panel.ids.index(name) for name in asked.series])[asked.of]
    if view in (REAL_TIME, ROWS):
        return stacked[offsets[lane] + asked.last, asked.step - 1]
    first = np.array([np.ceil(part["hour"].iloc[0] - 1e-9) for _, part in _judged_rows(readings)])[lane]
    row = np.minimum((asked.hour - first).astype(np.int64), np.diff(offsets)[lane] - 1)
    step = np.ceil(asked.ahead - 1e-9).astype(np.int64)
    return stacked[offsets[lane] + row, step - 1]


def _judged_rows(readings: Readings) -> Any:
    return readings.rows[readings.rows["unique_id"].isin(readings.judged)].groupby("unique_id")


def last_values(readings: Readings, asked: Questions) -> FloatArray:
    """The last reading before each cutoff."""
    values = [part["y"].to_numpy() for _, part in _judged_rows(readings)]
    return np.array([values[s][row] for s, row in zip(asked.of, asked.last, strict=True)])


def seasonal_values(readings: Readings, asked: Questions, *, season: float = 24.0) -> FloatArray:
    """The reading nearest in time to the one asked, whole days before it, among those before the cutoff."""
    series = [(part["hour"].to_numpy(), part["y"].to_numpy()) for _, part in _judged_rows(readings)]
    out = np.empty(len(asked.y))
    for i, (s, last, hour, ahead) in enumerate(zip(asked.of, asked.last, asked.hour, asked.ahead, strict=True)):
        hours, y = series[s]
        wanted = hour + ahead - season * np.ceil(ahead / season)
        near = np.searchsorted(hours[: last + 1], wanted)
        choice = [k for k in (near - 1, near) if 0 <= k <= last]
        out[i] = y[min(choice, key=lambda k: abs(hours[k] - wanted))]
    return out


def score(asked: Questions, said: FloatArray) -> dict[str, float]:
    """Mean absolute and root mean squared error, in deviations of each kind."""
    error = (said - asked.y) / asked.unit
    if not np.isfinite(error).all():
        raise FrameError(f"{int((~np.isfinite(error)).sum())} of {len(error)} forecasts are missing.")
    return {"test_mae": float(np.abs(error).mean()), "test_rmse": float(np.sqrt(np.square(error).mean()))}


def forecaster_run(readings: Readings, asked: Questions, *, case: Case, seed: int) -> dict[str, Any]:
    """Fit one forecaster, and let it answer."""
    h = readings.h if case.view in (REAL_TIME, ROWS) else readings.horizon
    freq: Any = {REAL_TIME: None, ROWS: 1}.get(case.view, 1 if readings.origin is None else "1h")
    params = {**case.params} | ({} if case.view == REAL_TIME else {"max_gap": 10**6})
    model = Variant(name=case.name, params=params).make(h=h, freq=freq, random_state=seed)
    frame = readings.fit_frame(case.view)
    # As many hours choose the epoch in all views: an hourly grid has more rows than there are readings.
    share = len(readings.fit_frame(ROWS)) / len(frame)
    begin = time.perf_counter()
    model.fit(frame, val_size=round(readings.val_size / share))
    train_s = time.perf_counter() - begin
    said = answers_of(model, readings, asked, view=case.view)
    return {
        "set": readings.name,
        "model": case.name,
        "seed": seed,
        **score(asked, said),
        "n_parameters": parameter_count(model),
        "train_s": train_s,
        "best_epoch": model.history_.best_epoch,
        "validation": model.history_.validation,
    }


def run(
    data: str | PathLike[str] | None,
    *,
    seeds: Sequence[int] = (0,),
    sets: Sequence[str] = SETS,
    variants: Sequence[Case] = CASES,
    command: str = "txl-ts bench uneven --data DIR",
) -> dict[str, Any]:
    """Fit and judge every case, and the baselines beside it.

    Parameters
    ----------
    data : path
        Folder that holds ``physionet2012/`` and ``air_quality/``.
    seeds : sequence of int
        One fit per seed and case; the split of patients and the rows left out stay.
    sets : sequence of {"vitals", "air"}
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
        if data is None or name not in _LOADERS:
            raise ParameterError(f"sets={list(sets)} must be of {list(_LOADERS)}, and data the folder that holds them.")
        readings = _LOADERS[name](data)
        asked = questions(readings)
        cell = [
            {"set": readings.name, "model": model, "n_parameters": 0, **score(asked, said)}
            for model, said in (
                ("last value", last_values(readings, asked)),
                ("reading nearest to a day before", seasonal_values(readings, asked)),
            )
        ]
        for case in variants:
            if case.set == name:
                fits = [forecaster_run(readings, asked, case=case, seed=seed) for seed in seeds]
                runs += fits
                cell.append(_summary(fits))
        table += _with_ratios(cell)
    return {
        "name": "uneven",
        "title": "When rows come unevenly",
        "command": command,
        "protocol": [
            "All models are asked the same: at whole hours they know the readings up to that hour, and forecast those "
            "of the next hours. Errors are in deviations of each kind's fitted readings, pooled over all readings.",
            "Vital signs: heart rate, mean arterial pressure, temperature and respiration of 400 patients, as they "
            f"were charted in 48 hours of intensive care; {N_FITTED_PATIENTS} are fitted on, the others judge; every "
            "hour, 6 hours ahead, at most 8 readings of a kind.",
            f"Air: six pollutants by the hour, 2021 to 2023, of which {KEPT_SHARE:.0%} of the readings are kept at "
            "random; 2023 judges; every 6 hours, 24 hours ahead, at most 14 readings of a kind. Models on the hourly "
            "grid have the sizes that `auto` gives it.",
            "Real time: `freq=None`. Rows only: the same sizes, and rows numbered. Hourly: the last reading of each "
            "hour, forward-filled or with holes; a reading is forecast by the hour that ends after it.",
        ],
        "columns": dict(COLUMNS),
        "rows": table,
        "runs": runs,
        "notes": _verdicts(table),
        "seeds": list(seeds),
        "variants": [{"name": case.name, "set": case.set, "params": dict(case.params)} for case in variants],
        "environment": report.environment(),
    }


_LOADERS: Mapping[str, Any] = MappingProxyType({"vitals": load_vitals, "air": load_air})


def _summary(fits: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean of the fits of one case over its seeds."""
    means = {key: float(np.mean([fit[key] for fit in fits])) for key in ("test_mae", "test_rmse", "train_s")}
    scores = [fit["test_mae"] for fit in fits]
    spread = {"test_mae_spread": max(scores) - min(scores)} if len(fits) > 1 else {}
    return {**{key: fits[0][key] for key in ("set", "model", "n_parameters")}, **means, **spread, "n_seeds": len(fits)}


def _with_ratios(cell: list[dict[str, Any]]) -> list[dict[str, Any]]:
    own = next((row["test_mae"] for row in cell if row["model"] == f"TXL, {REAL_TIME}"), None)
    return [row | ({} if own is None else {"ratio": row["test_mae"] / own}) for row in cell]


def _verdicts(table: list[dict[str, Any]]) -> list[str]:
    """Say what was to be shown, in numbers."""
    found = {(row["set"], row["model"]): row["test_mae"] for row in table}
    notes = []
    for name in (VITALS, AIR):
        own = found.get((name, f"TXL, {REAL_TIME}"))
        for model, what in (
            (f"TXL, {ROWS}", "the same model told rows only"),
            (f"TXL, {FILLED}", "the same model on an hourly grid, filled forward"),
            ("last value", "the last value"),
            ("reading nearest to a day before", "the reading nearest to a day before"),
        ):
            other = found.get((name, model))
            if own and other:
                notes.append(f"{name}: real time differs from {what} by {100 * (own / other - 1):+.1f} %.")
    return notes
