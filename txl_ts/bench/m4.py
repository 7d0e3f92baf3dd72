"""M4 Hourly and Weekly: one global model over all series, judged by the competition's own sMAPE, MASE and OWA."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from txl_ts.bench import report
from txl_ts.bench.baselines import EqualContextRidge, FloatArray, seasonal_naive
from txl_ts.bench.forecasters import Variant, context_rows, memory_variants, parameter_count
from txl_ts.errors import FrameError, ParameterError, ShapeError
from txl_ts.metrics import M4_NAIVE2, mase, owa, seasonal_scale, smape


class Group(NamedTuple):
    """What the competition fixes for one frequency, and the ridge's look-back in rows."""

    h: int
    season: int
    look_back: int


# Horizons and seasons: Makridakis et al. (2020), The M4 Competition. The shortest series have 700 and 80 rows.
GROUPS = MappingProxyType({"Hourly": Group(48, 24, 336), "Weekly": Group(13, 1, 52)})

# OWA as published with the competition's results (Mcompetitions/M4-methods); Naive2 is 1 by definition.
QUOTED = MappingProxyType(
    {
        "Hourly": {"Doornik (quoted)": 0.410, "Smyl (quoted)": 0.440, "FFORMA (quoted)": 0.484},
        "Weekly": {"Darin (quoted)": 0.739, "Smyl (quoted)": 0.851},
    }
)
# One configuration per group, chosen on the held-out training rows; Hourly beside itself with the memory reset or off.
_HOURLY = Variant(
    name="TXL",
    params=MappingProxyType(
        {
            "season_length": 24,
            "quantiles": (0.5,),
            "lookback": 336,
            "loss": "owa",
            "dropout": 0.0,
            "learning_rate": 4e-3,
            "segment_len": 14,
            "max_epochs": 12,
            "patience": 12,
        }
    ),
)
_WEEKLY = Variant(
    name="TXL", params=MappingProxyType({"quantiles": (0.5,), "patch_len": 13, "lookback": 52, "loss": "owa"})
)
# The default memory at a stride of 24: 2 layers × 4 visits × 24 rows + 23.
VARIANTS = MappingProxyType({"Hourly": memory_variants(_HOURLY, reach=215), "Weekly": (_WEEKLY,)})
# Wider than ETT's: these windows hold fewer, scaled values.
PENALTIES = tuple(10.0**power for power in range(-2, 6))
COLUMNS = MappingProxyType(
    {
        "model": "model",
        "smape": "sMAPE",
        "mase": "MASE",
        "owa": "OWA",
        "owa_spread": "± (max − min)",
        "context": "context, rows",
        "n_seeds": "seeds",
        "n_parameters": "parameters",
        "train_s": "training, s",
    }
)


@dataclass(frozen=True)
class M4Set:
    """One frequency of the competition, or its training part held out against itself.

    Parameters
    ----------
    group : str
        ``"Hourly"`` or ``"Weekly"``.
    ids : tuple of str
        Names of the N series, in the order of the file.
    train : tuple of ndarray
        Rows of each series, oldest first.
    test : ndarray of shape (N, h)
        The rows after them.
    """

    group: str
    ids: tuple[str, ...]
    train: tuple[FloatArray, ...]
    test: FloatArray

    def held_out(self) -> M4Set:
        """The last ``h`` training rows as test: what choices are made on."""
        h = self.test.shape[1]
        return M4Set(
            group=self.group,
            ids=self.ids,
            train=tuple(rows[:-h] for rows in self.train),
            test=np.stack([rows[-h:] for rows in self.train]),
        )


def load(data: str | PathLike[str], *, group: str = "Hourly") -> M4Set:
    """Read the two files of one frequency.

    Parameters
    ----------
    data : path
        Folder that holds ``m4_hourly/`` and ``m4_weekly/``.
    group : {"Hourly", "Weekly"}
        Frequency.

    Returns
    -------
    M4Set

    Raises
    ------
    ParameterError
        If the group is not known.
    FrameError
        If a file is not there, or the two do not hold the same series.
    """
    if group not in GROUPS:
        raise ParameterError(f"group={group!r} is not known. Choose one of {list(GROUPS)}.")
    tables = []
    for part in ("train", "test"):
        path = Path(data) / f"m4_{group.lower()}" / f"{group}-{part}.csv"
        if not path.is_file():
            raise FrameError(f"{path} is not there. Pass the folder that holds it (Mcompetitions/M4-methods, Dataset).")
        tables.append(pd.read_csv(path, index_col="V1"))
    train, test = tables
    ids = tuple(str(name) for name in train.index)
    h = GROUPS[group].h
    if tuple(str(name) for name in test.index) != ids or test.shape[1] != h:
        raise FrameError(
            f"{group}-test.csv holds {test.shape[0]} × {test.shape[1]} values; {len(ids)} × {h} are needed, of the "
            f"series of {group}-train.csv in its order. Use the original files."
        )
    rows = train.to_numpy(np.float64)
    return M4Set(
        group=group,
        ids=ids,
        train=tuple(series[~np.isnan(series)] for series in rows),
        test=test.to_numpy(np.float64),
    )


def long_frame(m4: M4Set) -> pd.DataFrame:
    """The training rows as ``unique_id``, ``ds`` (1, 2, … within each series: M4 has no clock) and ``y``.

    Parameters
    ----------
    m4 : M4Set
        A loaded set.

    Returns
    -------
    DataFrame
    """
    lengths = [len(rows) for rows in m4.train]
    return pd.DataFrame(
        {
            "unique_id": np.repeat(np.array(m4.ids, dtype=object), lengths),
            "ds": np.concatenate([np.arange(1, length + 1) for length in lengths]),
            "y": np.concatenate(m4.train),
        }
    )


def scores(m4: M4Set, *, forecast: FloatArray) -> dict[str, float]:
    """The competition's three figures for one set of forecasts.

    Parameters
    ----------
    m4 : M4Set
        What came, and the rows before it.
    forecast : ndarray of shape (N, h)
        Point forecasts, in the order of ``m4.ids``.

    Returns
    -------
    dict
        ``smape``, ``mase`` and ``owa``; the last relative to Naive2 on the official test part.
    """
    percent = smape(y=m4.test, forecast=forecast)
    scaled = mase(y=m4.test, forecast=forecast, insample=m4.train, season=GROUPS[m4.group].season)
    return {"smape": percent, "mase": scaled, "owa": owa(smape=percent, mase=scaled, naive2=M4_NAIVE2[m4.group])}


def run(
    data: str | PathLike[str],
    *,
    group: str = "Hourly",
    seeds: Sequence[int] = (0, 1, 2),
    variants: Sequence[Variant] | None = None,
    baselines: bool = True,
    held_out: bool = False,
    command: str | None = None,
) -> dict[str, Any]:
    """Fit and judge every variant, and the baselines beside it.

    Parameters
    ----------
    data : path
        Folder that holds ``m4_hourly/`` and ``m4_weekly/``.
    group : {"Hourly", "Weekly"}
        Frequency.
    seeds : sequence of int
        One fit per seed; the table shows means and the spread.
    variants : sequence of Variant, optional
        Configurations of the forecaster; empty for the baselines alone. Default: the group's own.
    baselines : bool
        Seasonal naive, the ridge and quoted scores.
    held_out : bool
        Judge on the last ``h`` training rows instead of the test rows: for choosing. Nothing is quoted then.
    command : str, optional
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`, with every single fit under ``runs``.
    """
    m4 = load(data, group=group)
    m4 = m4.held_out() if held_out else m4
    about = GROUPS[group]
    rows = baseline_rows(m4) if baselines else []
    rows += quoted_rows(group) if baselines and not held_out else []
    runs: list[dict[str, Any]] = []
    variants = VARIANTS[group] if variants is None else variants
    for variant in variants:
        fits = [forecaster_run(m4, variant=variant, seed=seed) for seed in seeds]
        runs += fits
        rows.append(_summary(fits))
    naive2 = M4_NAIVE2[group]
    part = f"the last {about.h} training rows (held out for choices)" if held_out else "the official test rows"
    return {
        "name": f"m4-{group.lower()}" + ("-held-out" if held_out else ""),
        "title": f"M4 {group}: {len(m4.ids)} series, h {about.h}, one global model",
        "command": command or f"txl-ts bench m4 --data DIR --group {group}",
        "protocol": [
            f"Trained on the rows before, judged on {part}, one forecast per series. Official sMAPE, MASE (season "
            f"{about.season}) and OWA relative to Naive2 ({naive2.smape}, {naive2.mase}).",
            f"The ridge sees {about.look_back} rows scaled by each series' mean seasonal step, one matrix for all "
            f"series; its penalty is chosen on the last {about.h} training rows, and it is solved again with them.",
        ],
        "columns": dict(COLUMNS),
        "rows": rows,
        "runs": runs,
        "notes": [] if held_out or not baselines else ["Quoted scores are the competition's and were not run here."],
        "seeds": list(seeds),
        "variants": [{"name": variant.name, "params": dict(variant.params)} for variant in variants],
        "environment": report.environment(),
    }


def baseline_rows(m4: M4Set) -> list[dict[str, Any]]:
    """Rows of the table for the seasonal naive and the ridge.

    Parameters
    ----------
    m4 : M4Set
        A loaded set.

    Returns
    -------
    list of dict
    """
    about = GROUPS[m4.group]
    naive = np.stack(
        [seasonal_naive(rows[:, None], origins=_end(rows), h=about.h, season=about.season)[0, 0] for rows in m4.train]
    )
    start = time.perf_counter()
    forecast, ridge = ridge_forecast(m4)
    return [
        {
            "model": "naive" if about.season == 1 else f"seasonal naive, {about.season}",
            **scores(m4, forecast=naive),
            "context": about.season,
            "n_parameters": 0,
        },
        {
            "model": "ridge",
            **scores(m4, forecast=forecast),
            "context": about.look_back,
            "n_parameters": ridge.n_parameters,
            "train_s": time.perf_counter() - start,
            "penalty": ridge.penalty_,
        },
    ]


def ridge_forecast(m4: M4Set) -> tuple[FloatArray, EqualContextRidge]:
    """Forecast every series with one ridge over all of them, each on the scale of its mean seasonal step.

    Parameters
    ----------
    m4 : M4Set
        A loaded set.

    Returns
    -------
    forecast : ndarray of shape (N, h)
    ridge : EqualContextRidge
        Fitted.
    """
    about = GROUPS[m4.group]
    scale = seasonal_scale(insample=m4.train, season=about.season)
    scale = np.where(scale > 0, scale, 1.0)  # a constant series is forecast by its last value whatever its scale
    scaled = [rows / size for rows, size in zip(m4.train, scale, strict=True)]
    ridge = EqualContextRidge(h=about.h, look_back=about.look_back, penalties=PENALTIES, refit=True)
    ridge.fit(scaled, n_validation=about.h)
    moves = np.stack([ridge.predict(rows[:, None], origins=_end(rows))[0, 0] for rows in scaled])
    return moves * scale[:, None], ridge


def quoted_rows(group: str) -> list[dict[str, Any]]:
    """Rows with the OWA that the competition published."""
    return [{"model": name, "owa": figure} for name, figure in QUOTED[group].items()]


def forecaster_run(m4: M4Set, *, variant: Variant, seed: int) -> dict[str, Any]:
    """Fit one forecaster on all series and judge what it says about the rows after them.

    Parameters
    ----------
    m4 : M4Set
        A loaded set.
    variant : Variant
        Configuration.
    seed : int
        ``random_state``.

    Returns
    -------
    dict
        Scores, seconds of training, and sizes.
    """
    h = GROUPS[m4.group].h
    model = variant.make(h=h, freq=1, random_state=seed)
    start = time.perf_counter()
    model.fit(long_frame(m4))
    train_s = time.perf_counter() - start
    forecast = wide_forecast(model.predict(), ids=m4.ids, h=h)
    return {
        "model": variant.name,
        "seed": seed,
        **scores(m4, forecast=forecast),
        "context": context_rows(model),
        "n_parameters": parameter_count(model),
        "train_s": train_s,
    }


def wide_forecast(frame: pd.DataFrame, *, ids: Sequence[str], h: int) -> FloatArray:
    """Turn the frame of ``predict`` into one row of ``h`` values per series, in the order of ``ids``.

    Parameters
    ----------
    frame : DataFrame
        ``unique_id``, ``ds`` and ``TXL``, in any order.
    ids : sequence of str
        Names of the series.
    h : int
        Rows ahead.

    Returns
    -------
    ndarray of shape (N, h)

    Raises
    ------
    ShapeError
        If a series has another number of finite forecasts: the scores would pass over what is missing.
    """
    parts = {str(name): part["TXL"].to_numpy() for name, part in frame.sort_values("ds").groupby("unique_id")}
    wrong = [name for name in ids if np.isfinite(parts.get(name, [])).sum() != h]
    if wrong:
        raise ShapeError(
            f"{len(wrong)} of {len(ids)} series do not have {h} finite forecasts, such as {wrong[:5]}. "
            "Every series must be forecast."
        )
    return np.stack([np.asarray(parts[name], np.float64) for name in ids])


def _end(rows: FloatArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The one origin of a competition: the last row."""
    return np.array([len(rows) - 1])


def _summary(fits: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean over seeds, the spread of OWA, and the sizes."""
    figures = [fit["owa"] for fit in fits]
    return {
        **{key: fits[0][key] for key in ("model", "context", "n_parameters")},
        **{key: float(np.mean([fit[key] for fit in fits])) for key in ("smape", "mase", "owa", "train_s")},
        "owa_spread": max(figures) - min(figures) if len(figures) > 1 else None,
        "n_seeds": len(fits),
    }
