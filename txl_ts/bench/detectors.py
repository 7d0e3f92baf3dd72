"""Detectors of the anomaly benchmarks: naive ones, classics, and this library's, behind one function each.

A detector takes a series, may fit to its first ``n_train`` rows, and gives one score per row: higher is more abnormal,
NaN where it has none. All are causal, the row's own value included, except those that say otherwise.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from txl_ts.bench.anomaly_scores import period
from txl_ts.bench.anomaly_sets import LabelledSeries

Floats = NDArray[np.float64]
Detect = Callable[[LabelledSeries, int], Floats]


@dataclass(frozen=True)
class Detector:
    """A row of a table.

    Parameters
    ----------
    name : str
    scores : callable
        ``scores(series, seed)`` gives an array of shape (n,).
    is_random : bool
        Whether the seed changes anything.
    """

    name: str
    scores: Detect
    is_random: bool = False


@dataclass(frozen=True)
class Learned:
    """The estimator of this library: fitted to the first rows, then walked over all of them.

    Parameters
    ----------
    params : mapping
        Of :class:`~txl_ts.TXLAnomalyDetector`.
    n_judged : int, optional
        First columns that are judged; the others are context. All by default.
    """

    params: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    n_judged: int | None = None

    def __call__(self, series: LabelledSeries, seed: int) -> Floats:
        """Score a series."""
        return self.fitted(series.values[: series.n_train], seed).anomaly_score(series.values)

    def shared(self, calm: Sequence[Floats], streams: Sequence[Floats], seed: int) -> list[Floats]:
        """Score streams by a model of others: runs of normal rows, each a series of its own."""
        name = np.repeat(np.arange(len(calm)), [len(run) for run in calm])
        model = self.fitted(np.concatenate(calm), seed, series_id=name)
        return [model.anomaly_score(stream, series_id="new") for stream in streams]

    def fitted(self, rows: Floats, seed: int, **more: Any) -> Any:
        """Fit the estimator to rows; ``more`` goes to its ``fit``."""
        from txl_ts.errors import TxlWarning
        from txl_ts.estimators.detector import TXLAnomalyDetector  # torch loads here, not before

        params = dict(self.params)
        if self.n_judged is not None:
            params["context"] = tuple(range(self.n_judged, rows.shape[1]))
        with warnings.catch_warnings():
            # Of calibrations on few rows that are alike: the benchmarks take the scores, and their own thresholds.
            warnings.simplefilter("ignore", TxlWarning)
            return TXLAnomalyDetector(random_state=seed, **params).fit(rows, **more)


# ---------------------------------------------------------------------------------------------------------------- naive


def constant(series: LabelledSeries, seed: int) -> Floats:
    """Every row is as abnormal as every other."""
    return np.zeros(len(series.values))


def chance(series: LabelledSeries, seed: int) -> Floats:
    """Uniform numbers."""
    return np.random.default_rng([seed, len(series.values)]).random(len(series.values))


def row_number(series: LabelledSeries, seed: int) -> Floats:
    """The later, the more abnormal: what a score gets that knows the position alone."""
    return np.arange(len(series.values), dtype=np.float64)


def last_value(series: LabelledSeries, seed: int) -> Floats:
    """Distance from the row before, in deviations of it over the training rows; the worst channel."""
    step = np.diff(series.values, axis=0, prepend=series.values[:1])
    return _worst(step, series.n_train)


def same_time(series: LabelledSeries, seed: int) -> Floats:
    """Distance from the row one season before; the season is guessed from the training rows."""
    x = series.values
    season = min(period(x[: series.n_train, 0]), series.n_train // 2)
    step = np.zeros_like(x)
    step[season:] = x[season:] - x[:-season]
    return _worst(step, series.n_train)


def distance(series: LabelledSeries, seed: int) -> Floats:
    """Distance of the first channel from its training mean, in deviations."""
    return np.abs(standardised(series.values[:, :1], series.n_train)[:, 0])


def _worst(errors: Floats, n_train: int) -> Floats:
    deviation = errors[:n_train].std(axis=0)
    return np.max(np.abs(errors) / np.where(deviation > 1e-9, deviation, 1.0), axis=1)


def standardised(values: Floats, n_train: int) -> Floats:
    """Rows less their training mean, in training deviations; channels that never moved keep their unit."""
    deviation = values[:n_train].std(axis=0)
    return (values - values[:n_train].mean(axis=0)) / np.where(deviation > 1e-6, deviation, 1.0)


def smoothed(scores: Detect, rows: float) -> Detect:
    """Make a detector whose scores are running means of another's.

    Parameters
    ----------
    scores : callable
    rows : float
        A score counts (1 − 1/rows) as much with each row that it is older.
    """

    def running(series: LabelledSeries, seed: int) -> Floats:
        return running_mean(scores(series, seed), rows)

    return running


def running_mean(x: Floats, rows: float) -> Floats:
    """Exponential mean along the first axis; it begins at the first row."""
    from scipy.signal import lfilter

    keep = 1 - 1 / rows
    return np.asarray(lfilter([1 - keep], [1, -keep], x, axis=0, zi=keep * x[:1])[0])


# ------------------------------------------------------------------------------------------------------------- classics


def hotelling(series: LabelledSeries, seed: int) -> Floats:
    """Hotelling's T²: squared distance from the training rows in their own covariance."""
    z = standardised(series.values, series.n_train)
    covariance = np.atleast_2d(np.cov(z[: series.n_train].T)) + 1e-3 * np.eye(z.shape[1])
    return np.einsum("ij,jk,ik->i", z, np.linalg.inv(covariance), z)


def isolation_forest(series: LabelledSeries, seed: int) -> Floats:
    """scikit-learn's isolation forest over the training rows."""
    from sklearn.ensemble import IsolationForest

    forest = IsolationForest(n_estimators=200, random_state=seed).fit(series.values[: series.n_train])
    return -np.asarray(forest.score_samples(series.values))


def ridge(series: LabelledSeries, seed: int, *, lookback: int = 32, penalty: float = 3.0) -> Floats:
    """Error of a ridge from the last rows of the first channel to its next one, in training deviations."""
    z, n_train = standardised(series.values[:, :1], series.n_train)[:, 0], series.n_train
    windows = sliding_window_view(z, lookback)[:-1]
    inputs, target = windows - windows[:, -1:], z[lookback:] - windows[:, -1]
    k = n_train - lookback
    gram = inputs[:k].T @ inputs[:k] + penalty * np.eye(lookback)
    errors = np.zeros(len(z))
    errors[lookback:] = target - inputs @ np.linalg.solve(gram, inputs[:k].T @ target[:k])
    return np.abs(errors) / max(errors[:n_train].std(), 1e-3)


def windowed_gaussian(series: LabelledSeries, seed: int) -> Floats:
    """NAB's own baseline: two-sided probability under mean and deviation of up to 6,400 rows before, less 1.

    Scores have 12 digits, as in the benchmark's files: which rows tie at 1 decides its published score.
    """
    from scipy.special import erfc

    size, step = 6400, 100
    x = series.values[:, 0]
    n = len(x)
    stop = np.arange(n)
    stop = np.where(stop <= size, stop, size + (stop - size) // step * step)
    first = np.maximum(stop - size, 0)
    shifted = (x - x.mean()).astype(np.longdouble)  # the digits that decide are those of very small tails
    sums, squares = (np.concatenate([[0], np.cumsum(shifted**power)]) for power in (1, 2))
    count = np.maximum(stop - first, 1)
    mean = (sums[stop] - sums[first]) / count
    variance = np.maximum((squares[stop] - squares[first]) / count - mean**2, 0).astype(float)
    deviation = np.where(variance > 1e-18 * np.square(x).max(), np.sqrt(variance), 1e-6)
    scores = 1 - 0.5 * erfc(np.abs(shifted - mean).astype(float) / deviation / math.sqrt(2))
    scores[0] = 0.0
    return np.array([float(f"{score:.12g}") for score in scores])


def relative_entropy(series: LabelledSeries, seed: int) -> Floats:
    """NAB's relative entropy: 1 where the last 52 rows are like none before. Not causal: bins from the whole file.

    References
    ----------
    Wang et al. (2011), Statistical techniques for online anomaly detection in data centers (IM 2011), figure 1.
    """
    n_bins, n_rows, limit = 5, 52, 13.276704135987622  # of the chi-square law with 4 degrees of freedom, at .01
    x = series.values[:, 0]
    scores = np.zeros(len(x))
    step = (x.max() - x.min()) / n_bins
    if not step > 0:
        return scores
    bins = np.minimum(np.ceil((x - x.min()) / step), n_bins - 1).astype(int)
    sums = np.concatenate([np.zeros((1, n_bins)), np.cumsum(np.eye(n_bins)[bins], axis=0)])
    share = (sums[n_rows:] - sums[:-n_rows]) / n_rows
    known, seen = np.empty((len(share), n_bins)), np.zeros(len(share), int)
    known[0], seen[0], n_known = share[0], 1, 1
    with np.errstate(divide="ignore", invalid="ignore"):
        for i, here in enumerate(share[1:], 1):
            there = here > 0
            entropy = 2 * n_rows * (here[there] * np.log(here[there] / known[:n_known, there])).sum(axis=1)
            k = int(np.argmin(entropy))
            if entropy[k] < limit:
                seen[k] += 1
            else:
                known[n_known], k = here, n_known
                seen[k], n_known = 1, n_known + 1
            scores[i + n_rows - 1] = seen[k] <= 1
    return scores


# ------------------------------------------------------------------------------------------------- rules of a few lines


def outside_range(series: LabelledSeries, seed: int, *, rows: float = 16.0, unscored: int = 50) -> Floats:
    """How far a value, or its running mean, lies outside all before, in widths of that range; the worst channel."""
    found = [_outside(x, unscored) for x in (series.values, running_mean(series.values, rows))]
    return np.maximum(*found)


def _outside(x: Floats, unscored: int) -> Floats:
    high, low = (edge.accumulate(x, axis=0)[:-1] for edge in (np.maximum, np.minimum))
    beyond = np.maximum(x[1:] - high, low - x[1:]) / np.maximum(high - low, 1e-9)
    scores = np.concatenate([[np.nan], beyond.max(axis=1)])
    scores[:unscored] = np.nan
    return scores


@dataclass(frozen=True, kw_only=True)
class RunningLevel:
    """Smoothed distance from a running level that stands still while a row is abnormal; the worst channel.

    1 is the .99 quantile of the training rows.

    Parameters
    ----------
    half_life : float
        Of the level, in rows.
    rows : float
        Of the running mean over the signed distance.
    guard : float
        Rows with this score or more do not move the level.
    share : float
        Which quantile of the units of others is taken.
    warm_rows : int
        Rows that get no score where the units come from elsewhere.
    """

    half_life: float = 200.0
    rows: float = 8.0
    guard: float = 3.0
    share: float = 0.75
    warm_rows: int = 60

    def __call__(self, series: LabelledSeries, seed: int) -> Floats:
        """Score a series by units of its own training rows; those have scores, too."""
        unit = self.unit(series.values[: series.n_train])
        return self.walk(series.values, unit, unguarded=series.n_train)

    def unit(self, values: Floats) -> Floats:
        """Give the unit of each channel from a run of normal rows; its first quarter is warm-up."""
        distances = np.abs(self._distances(values))[len(values) // 4 :]
        return np.maximum(np.quantile(distances, 0.99, axis=0), 1e-3)

    def shared(self, calm: Sequence[Floats], streams: Sequence[Floats], seed: int) -> list[Floats]:
        """Score streams by the units of others, some of which may not be normal; the first rows move the level only."""
        unit = np.quantile([self.unit(run) for run in calm], self.share, axis=0)
        return [self.walk(stream, unit, unguarded=self.warm_rows) for stream in streams]

    def walk(self, values: Floats, unit: Floats, *, unguarded: int) -> Floats:
        """Score rows; the level follows the first ones whatever they are."""
        scores = np.abs(self._distances(values, unit, unguarded)) / unit
        return scores.max(axis=1)

    def _distances(self, values: Floats, unit: Floats | None = None, unguarded: int = 0) -> Floats:
        slow, fast = 1 - 0.5 ** (1 / self.half_life), 1 / self.rows
        level, smooth = values[:20].mean(axis=0), np.zeros(values.shape[1])
        out = np.empty_like(values)
        for i, row in enumerate(values):
            off = row - level
            smooth = smooth + fast * (off - smooth)
            out[i] = smooth
            if unit is None or i < unguarded or (np.abs(smooth) / unit).max() < self.guard:
                level = level + (slow if i > self.half_life else 1 / (i + 21)) * off
        return out


NAIVE = (
    Detector("constant", constant),
    Detector("random", chance, is_random=True),
    Detector("row number", row_number),
    Detector("last value", last_value),
    Detector("a season before", same_time),
)
CLASSIC = (
    Detector("Hotelling's T²", hotelling),
    Detector("isolation forest", isolation_forest, is_random=True),
)
