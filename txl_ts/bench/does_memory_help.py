"""Does carried memory help on real data? The same forecaster with its memory carried, reset, and off, on six sets.

Every variant sees the same rows and chooses its configuration and its epoch on the same validation rows; errors are
compared on the same test origins, pair by pair.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from txl_ts.bench import covariates, ett, m4, report
from txl_ts.bench.baselines import FloatArray
from txl_ts.bench.forecasters import (
    Variant,
    context_rows,
    median_of,
    memory_variants,
    parameter_count,
    validation_error,
)
from txl_ts.bench.kept import KeptFits
from txl_ts.errors import FrameError, ParameterError, ShapeError

if TYPE_CHECKING:
    from txl_ts.estimators.forecaster import TXLForecaster

CARRIED, PATCH = "TXL", "TXL, memory off, patch of equal context"
COLUMNS = MappingProxyType(
    {
        "set": "set",
        "model": "model",
        "validation_mae": "val MAE",
        "test_mae": "test MAE",
        "test_mae_spread": "± (max − min)",
        "difference": "error / TXL − 1, %",
        "low": "95 % from",
        "high": "to",
        "verdict": "memory",
        "context": "context, rows",
        "n_seeds": "seeds",
        "n_parameters": "parameters",
        "train_s": "training, CPU s",
    }
)
# What validation chooses among, for each variant on each set.
CHOICES: tuple[Mapping[str, Any], ...] = (
    MappingProxyType({"learning_rate": 1e-3, "dropout": 0.2}),
    MappingProxyType({"learning_rate": 3e-3, "dropout": 0.0}),
)
_SIZES: Mapping[str, Any] = MappingProxyType({"quantiles": (0.5,), "d_model": 32, "n_layers": 2, "max_epochs": 6})
# Blocks of origins whose mean differences are taken for independent.
_MOST_BLOCKS = 40


@dataclass(frozen=True)
class Rows:
    """One set: rows to fit on, the last of which choose, and rows to judge on.

    Attributes
    ----------
    frame : DataFrame
        All rows, long; each series in deviations of its fitted rows.
    n_judged : int
        Last rows of each series.
    """

    frame: pd.DataFrame
    n_judged: int


@dataclass(frozen=True)
class Case:
    """One set and how it is forecast.

    Parameters
    ----------
    name : str
    freq : str or int
    h : int
    read : callable
        Folder of the data sets → :class:`Rows`.
    val_size : int
        Rows of each series that choose.
    params : mapping
        Of the forecaster, the same for all variants.
        They hold ``n_layers``, ``mem_len``, ``stride`` and ``patch_len``, and a look-back of at least their reach.
    """

    name: str
    freq: str | int
    h: int
    read: Callable[[Path], Rows]
    val_size: int
    params: Mapping[str, Any]

    @property
    def reach(self) -> int:
        """Rows back that the memory sees: what the others get as look-back or patch."""
        p = self.params
        return int(p["n_layers"] * p["mem_len"] * p["stride"] + p["patch_len"] - 1)


def variants_of(case: Case) -> tuple[Variant, ...]:
    """The forecaster with its memory carried, reset, off, and off with a token that sees as many rows."""
    carried, reset, off = memory_variants(Variant(name=CARRIED, params=case.params), reach=case.reach)
    patch = Variant(name=PATCH, params={**off.params, "patch_len": case.reach})
    return carried, reset, off, patch


def run(
    data: str | PathLike[str],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    sets: Sequence[str] = (),
    choices: Sequence[Mapping[str, Any]] = CHOICES,
    is_choosing: bool = True,
    kept: str | PathLike[str] | None = None,
    from_kept: bool = False,
    variants: Sequence[Any] | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Fit and judge all variants on each set.

    Parameters
    ----------
    data : path
        Folder that holds ``ett/``, ``m4_hourly/``, ``vic_electricity/``, ``air_quality/``, ``skab/`` and ``market/``.
    seeds : sequence of int
        One fit per seed; the first one chooses the configuration.
    sets : sequence of str
        Names, of all by default.
    choices : sequence of mapping
        Arguments of the forecaster that validation chooses among.
    is_choosing : bool
        False: the first of them for all variants.
    kept : path, optional
        Folder of the fits that are finished: each is kept there at once, and found again by the next call.
    from_kept : bool
        Fit nothing: the table of what is there.
    variants
        Not used.
    command : str, optional
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`.

    Raises
    ------
    ParameterError
        If a set is not known.
    FrameError
        If a file is not there.
    """
    del variants
    choices = choices if is_choosing else choices[:1]
    cases = cases_named(sets, CASES)
    fits = Fits(Path(data), KeptFits(kept, "does_memory_help"), from_kept=from_kept)
    table: list[dict[str, Any]] = []
    for n in range(1, len(seeds) + 1):  # every set gets its first seed before any gets its second
        table = [row for case in cases for row in compare(case, fits, seeds=seeds[:n], choices=choices)]
    return {
        "name": "does_memory_help",
        "title": "Does carried memory help? Carried, reset, and off with equal context",
        "command": command or "txl-ts bench does-memory-help --data DIR",
        "protocol": [
            "One global model per set and variant: the memory carried along; emptied at every segment of 24 visits, in "
            "training and in the walk; off, with the look-back of the linear path at least as long as the memory's "
            "reach; off, with a token of as many rows as the memory reaches. Everything else is equal. Learning rate "
            f"and dropout: {_chosen(choices)}. Each fit chooses its epoch there; test rows are walked once.",
            "Errors are mean absolute errors of the median, in deviations of each series' fitted rows, over all "
            "origins of the test rows and all steps ahead. The difference to TXL is paired by series and origin; its "
            "95 % interval adds the variance between blocks of neighbouring origins (on M4 of series) to that between "
            "seeds. An interval that holds 0 is a tie.",
        ],
        "columns": dict(COLUMNS),
        "rows": table,
        "notes": _verdicts(table) + report.still_missing(fits.n_missing, of=fits.n_asked),
        "seeds": list(seeds),
        "environment": report.environment(),
    }


def cases_named(sets: Sequence[str], cases: Sequence[Case]) -> list[Case]:
    """Pick cases by their names; without any, all.

    Raises
    ------
    ParameterError
        If there is none of a name.
    """
    known = {case.name: case for case in cases}
    if unknown := [name for name in sets if name not in known]:
        raise ParameterError(f"sets={unknown} are not known. Choose among {list(known)}.")
    return [known[name] for name in sets or known]


class Fits:
    """Fits of a bench: found where they are kept, else made and kept.

    Parameters
    ----------
    data : path
        Folder that holds the data sets; read where a fit is made.
    store : KeptFits
    from_kept : bool
        Make none.
    measure : callable, optional
        What makes a fit, with the arguments and results of :func:`fit_and_walk`, which is the default.
    """

    def __init__(
        self,
        data: Path,
        store: KeptFits,
        *,
        from_kept: bool = False,
        measure: Callable[..., tuple[dict[str, Any], FloatArray]] | None = None,
    ) -> None:
        self.data, self.store, self.from_kept, self.measure = data, store, from_kept, measure
        self._rows: dict[str, Rows] = {}
        self._asked: dict[str, bool] = {}

    @property
    def n_asked(self) -> int:
        """Different fits that were asked for."""
        return len(self._asked)

    @property
    def n_missing(self) -> int:
        """How many of them are not there."""
        return sum(not is_there for is_there in self._asked.values())

    def __call__(self, case: Case, variant: Variant, seed: int) -> dict[str, Any] | None:
        """Give the scores of a fit, and its errors summed by blocks of origins; None if it is not there."""
        of = {"set": case.name, "model": variant.name, "seed": seed, "h": case.h, "val_size": case.val_size}
        of["params"] = dict(variant.params)
        found: dict[str, Any] | None = self.store.find(of)
        if found is None and not self.from_kept:
            if case.name not in self._rows:
                self._rows[case.name] = case.read(self.data)
            measure = self.measure or fit_and_walk
            scores, errors = measure(case, self._rows[case.name], variant=variant, seed=seed)
            sums, sizes = by_blocks(errors)
            found = self.store.keep(of, {**scores, "sums": sums.tolist(), "sizes": sizes.tolist()})
        self._asked[str(of)] = found is not None
        return found


def compare(
    case: Case, fits: Fits, *, seeds: Sequence[int], choices: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Give the rows of the table for one set, of the fits that are there."""
    table: list[dict[str, Any]] = []
    own: dict[int, dict[str, Any]] = {}
    for variant in variants_of(case):
        found = chosen_fits(case, fits, variant, seeds=seeds, choices=choices)
        if not found:
            continue
        row = _summary(list(found.values()))
        if variant.name == CARRIED:
            own = found
        elif seeds_of_both := [seed for seed in found if seed in own]:
            mean, half = difference(found, own)
            unit = 100 / float(np.mean([own[seed]["test_mae"] for seed in seeds_of_both]))
            verdict = "tie" if abs(mean) <= half else "helps" if mean > 0 else "hurts"
            row |= {"difference": unit * mean, "low": unit * (mean - half), "high": unit * (mean + half)}
            row["verdict"] = verdict
        table.append(row)
    return table


def chosen_fits(
    case: Case,
    fits: Fits,
    variant: Variant,
    *,
    seeds: Sequence[int],
    choices: Sequence[Mapping[str, Any]],
    score: str = "validation_mae",
) -> dict[int, dict[str, Any]]:
    """Give the fits of a variant by seed, with what the first seed's validation rows choose.

    Parameters
    ----------
    case : Case
    fits : Fits
    variant : Variant
    seeds : sequence of int
    choices : sequence of mapping
    score : str
        Which of a fit's scores chooses; the least is best.

    Returns
    -------
    dict of int to dict
        Empty until there is a fit of each choice.
    """
    tried = [Variant(name=variant.name, params={**variant.params, **choice}) for choice in choices]
    first = [fit for one in tried if (fit := fits(case, one, seeds[0])) is not None]
    if len(first) < len(tried):
        return {}
    best = int(np.argmin([fit[score] for fit in first]))
    return {seed: fit for seed in seeds if (fit := fits(case, tried[best], seed)) is not None}


def difference(fits: Mapping[int, Mapping[str, Any]], others: Mapping[int, Mapping[str, Any]]) -> tuple[float, float]:
    """Mean of the errors of fits less those of others, over the seeds of both, and half the width of its interval.

    See :func:`paired_interval`.
    """
    pairs = [(fits[seed], others[seed]) for seed in fits if seed in others]
    sums = np.array([one["sums"] for one, _ in pairs]) - np.array([other["sums"] for _, other in pairs])
    return paired_interval(sums, np.array(pairs[0][0]["sizes"], np.float64))


def fitted(case: Case, rows: Rows, *, variant: Variant, seed: int) -> tuple[TXLForecaster, float]:
    """Fit a forecaster on all rows but those that judge; gives it, and the CPU seconds."""
    model = variant.make(h=case.h, freq=case.freq, random_state=seed)
    count = rows.frame.groupby("unique_id", sort=False).cumcount(ascending=False)
    begin = time.process_time()
    model.fit(rows.frame[count >= rows.n_judged], val_size=case.val_size)
    return model, time.process_time() - begin


def fit_and_walk(case: Case, rows: Rows, *, variant: Variant, seed: int) -> tuple[dict[str, Any], FloatArray]:
    """Fit one forecaster; gives its scores, and its absolute errors by series and origin, means over the steps ahead.

    Parameters
    ----------
    case : Case
    rows : Rows
    variant : Variant
    seed : int

    Returns
    -------
    scores : dict
    errors : ndarray of shape (n_series, n_origins)
        NaN where nothing was measured.
    """
    model, train_s = fitted(case, rows, variant=variant, seed=seed)
    n_origins = rows.n_judged - case.h + 1
    batches = model.cross_validation(rows.frame, h=case.h, n_windows=n_origins, use_fitted=True, output="batches")
    n_series = int(rows.frame["unique_id"].nunique())
    errors, filled = np.full((n_series, n_origins), np.nan), np.zeros(n_series, np.int64)
    for batch in batches:  # a batch is of one series, and its cutoffs follow those of the one before
        made = median_of(np.asarray(batch.forecast, np.float64), quantiles=model.config_.quantiles)
        error = np.abs(made - batch.y)
        series, n = int(batch.series[0]), len(error)
        there = np.isfinite(batch.y)
        mean = np.where(there, error, 0).sum(axis=1) / np.maximum(there.sum(axis=1), 1)
        errors[series, filled[series] : filled[series] + n] = np.where(there.any(axis=1), mean, np.nan)
        filled[series] += n
    if (filled != n_origins).any():
        raise ShapeError(f"the backtest gave {filled.min()} to {filled.max()} origins per series, not {n_origins}.")
    scores = {
        "set": case.name,
        "model": variant.name,
        "seed": seed,
        "validation_mae": validation_error(model).mae,
        "test_mae": float(np.nanmean(errors)),
        "context": context_rows(model),
        "n_parameters": parameter_count(model),
        "train_s": train_s,
    }
    return scores, errors


def by_blocks(errors: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Sum errors over blocks of neighbouring origins, whose errors hang together.

    Where there are fewer than 8 origins, blocks are of series.

    Parameters
    ----------
    errors : ndarray of shape (n_series, n_origins)
        NaN counts for nothing.

    Returns
    -------
    sums, sizes : ndarray of shape (n_blocks,)
        Sums of errors, and how many they are.
    """
    along = 1 if errors.shape[1] >= 8 else 0
    blocks = np.array_split(np.moveaxis(errors, along, 0), min(errors.shape[along], _MOST_BLOCKS))
    sums, sizes = [np.nansum(block) for block in blocks], [np.isfinite(block).sum() for block in blocks]
    return np.array(sums), np.array(sizes, np.float64)


def paired_interval(sums: FloatArray, sizes: FloatArray) -> tuple[float, float]:
    """Mean of paired differences, and half the width of its 95 % interval.

    Parameters
    ----------
    sums : ndarray of shape (n_seeds, n_blocks)
        Of differences, as :func:`by_blocks` gives them.
    sizes : ndarray of shape (n_blocks,)

    Returns
    -------
    mean, half : float
        The variance between blocks and that between seeds are added, each with Student's t; one seed tells nothing of
        the other ones.
    """
    from scipy.stats import t

    (s, b), n = sums.shape, float(sizes.sum())
    mean = float(sums.sum() / (n * s))
    # Of the ratio Σ sums / Σ sizes, for blocks of unequal sizes.
    rest = sums.mean(axis=0) - mean * sizes
    of_blocks = t.ppf(0.975, b - 1) * np.sqrt(b / (b - 1) * np.square(rest).sum()) / n if b > 1 else np.inf
    by_seed = sums.sum(axis=1) / n
    of_seeds = t.ppf(0.975, s - 1) * by_seed.std(ddof=1) / np.sqrt(s) if s > 1 else 0.0
    return mean, float(np.hypot(of_blocks, of_seeds))


# -- the sets ---------------------------------------------------------------------------------------------------------


def in_deviations(frame: pd.DataFrame, *, n_judged: int) -> Rows:
    """Scale each series by the mean and the deviation of its rows before those that are judged."""
    count = frame.groupby("unique_id", sort=False).cumcount(ascending=False)
    by = frame[count >= n_judged].groupby("unique_id", sort=False)["y"]
    mean, deviation = frame["unique_id"].map(by.mean()), frame["unique_id"].map(by.std(ddof=0))
    y = (frame["y"] - mean) / deviation.where(deviation > 0, 1.0)
    return Rows(frame.assign(y=y), n_judged)


def _ett(data: Path) -> Rows:
    return in_deviations(ett.long_frame(ett.load(data, name="ETTh2")), n_judged=ett.N_TEST)


def _m4(data: Path) -> Rows:
    group = m4.load(data, group="Hourly")
    h = group.test.shape[1]
    rows = [np.concatenate(pair) for pair in zip(group.train, group.test, strict=True)]
    parts = [
        pd.DataFrame({"unique_id": name, "ds": np.arange(len(y)), "y": y})
        for name, y in zip(group.ids, rows, strict=True)
    ]
    return in_deviations(pd.concat(parts, ignore_index=True), n_judged=h)


def _victoria(data: Path) -> Rows:
    return _of(covariates.load_victoria(data))


def _valencia(data: Path) -> Rows:
    return _of(covariates.load_valencia(data))


def _of(rows: covariates.Rows) -> Rows:
    n = len(rows.values)
    nothing = pd.DataFrame(index=range(n))
    frame = covariates.long_frame(rows, rows.values, nothing, stop=n)
    return in_deviations(frame, n_judged=n - rows.n_fitted)


def _skab(data: Path) -> Rows:
    """The run without faults, row by row: its clock leaves out a second now and then."""
    wide = _csv(data / "skab" / "anomaly-free" / "anomaly-free.csv", sep=";").drop(columns="datetime")
    frame = wide.assign(ds=np.arange(len(wide))).melt("ds", var_name="unique_id", value_name="y")
    return in_deviations(frame, n_judged=len(wide) // 5)


def _market(data: Path) -> Rows:
    """Logarithms of prices and of volumes, by the minute."""
    raw = _csv(data / "market" / "btc-perp-20211231-20220201_1m.csv")
    wide = pd.DataFrame(
        {
            "ds": pd.to_datetime(raw["timestamp"]),
            "close": np.log(raw["close"]),
            "range": np.log1p(1e4 * (raw["high"] / raw["low"] - 1)),
            "volume": np.log1p(raw["volume"]),
        }
    )
    return in_deviations(wide.melt("ds", var_name="unique_id", value_name="y"), n_judged=len(wide) // 5)


def _csv(path: Path, **how: Any) -> pd.DataFrame:
    if not path.is_file():
        raise FrameError(f"{path} is not there. Pass the folder that holds it.")
    return pd.read_csv(path, **how)


def _sized(*, season: int, patch: int, mem_len: int, lookback: int) -> Mapping[str, Any]:
    """Sizes of one set. The half-life is told too: left to ``"auto"`` it would follow the patch."""
    lengths = {"patch_len": patch, "stride": patch, "mem_len": mem_len, "lookback": lookback, "half_life": 7 * season}
    return MappingProxyType({**_SIZES, "season_length": season, **lengths})


_HOURLY = _sized(season=24, patch=24, mem_len=6, lookback=336)
_HALF_HOURLY = _sized(season=48, patch=48, mem_len=4, lookback=672)
CASES = (
    Case("ETTh2", "1h", 96, _ett, ett.N_VALIDATION, _HOURLY),
    Case("M4 Hourly", 1, 48, _m4, 48, _HOURLY),
    Case("Victoria electricity", "30min", 48, _victoria, covariates.VICTORIA_VALIDATION, _HALF_HOURLY),
    Case("Valencia air", "1h", 24, _valencia, covariates.VALENCIA_VALIDATION, _HOURLY),
    Case("SKAB", 1, 30, _skab, 1_500, _sized(season=60, patch=8, mem_len=15, lookback=248)),
    Case("Bitcoin by the minute", "1min", 15, _market, 7_000, _sized(season=60, patch=15, mem_len=8, lookback=255)),
)


# -- telling ----------------------------------------------------------------------------------------------------------


def _chosen(choices: Sequence[Mapping[str, Any]]) -> str:
    if len(choices) == 1:
        return ", ".join(f"{name} {value:g}" for name, value in choices[0].items()) + " for all, without a choice"
    return f"chosen among {len(choices)} pairs on the validation rows by the first seed"


def _summary(fits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    test = [fit["test_mae"] for fit in fits]
    means = {key: float(np.mean([fit[key] for fit in fits])) for key in ("validation_mae", "test_mae", "train_s")}
    spread = {"test_mae_spread": max(test) - min(test)} if len(test) > 1 else {}
    same = {key: fits[0][key] for key in ("set", "model", "context", "n_parameters")}
    return same | means | spread | {"n_seeds": len(fits)}


def _verdicts(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say per rival on how many sets memory helps."""
    notes = []
    for name in dict.fromkeys(row["model"] for row in table if "verdict" in row):
        said = [row["verdict"] for row in table if row["model"] == name]
        notes.append(
            f"Carried memory against {name.removeprefix('TXL, ')}: helps on {said.count('helps')} of {len(said)} sets, "
            f"ties on {said.count('tie')}, hurts on {said.count('hurts')}."
        )
    return notes
