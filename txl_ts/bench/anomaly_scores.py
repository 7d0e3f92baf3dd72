"""How well scores and alarms meet labelled ranges: area and volume under precision and recall, F1 and its two errors.

No point adjustment anywhere: with it, random scores look excellent.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from txl_ts.errors import ParameterError, ShapeError

Floats = NDArray[np.float64]
# Thresholds of a curve, lags of an autocorrelation, rows of a series that are looked at: as TSB-AD has them.
_N_THRESHOLDS, _N_LAGS, _MOST_ROWS = 250, 400, 20_000
_FIRST_LAG, _LONGEST_PERIOD, _NO_PERIOD = 3, 300, 125


class Counts(NamedTuple):
    """Rows by what they are and what was said of them."""

    tp: int
    fp: int
    fn: int
    tn: int

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 0 if nothing was found."""
        return 2 * self.tp / max(2 * self.tp + self.fp + self.fn, 1)

    @property
    def far(self) -> float:
        """False alarm rate: share of the normal rows that alarm."""
        return self.fp / max(self.fp + self.tn, 1)

    @property
    def mar(self) -> float:
        """Missed alarm rate: share of the anomalous rows that do not alarm."""
        return self.fn / max(self.fn + self.tp, 1)


def count(labels: ArrayLike, alarms: ArrayLike) -> Counts:
    """Count rows by label and alarm.

    Parameters
    ----------
    labels, alarms : array_like of shape (n,)
        True where a row is anomalous, and where it alarms.

    Returns
    -------
    Counts

    Raises
    ------
    ShapeError
        If their lengths differ.
    """
    y, a = np.asarray(labels, bool), np.asarray(alarms, bool)
    if y.ndim != 1 or y.shape != a.shape:
        raise ShapeError(f"one alarm per label is needed, got shapes {y.shape} and {a.shape}.")
    return Counts(*(int(np.count_nonzero(part)) for part in (y & a, ~y & a, y & ~a, ~y & ~a)))


def auc_pr(labels: ArrayLike, scores: ArrayLike) -> float:
    """Average precision: precision at each threshold, weighted by the recall it adds.

    Parameters
    ----------
    labels : array_like of shape (n,)
        1 where a row is anomalous.
    scores : array_like of shape (n,)
        Higher is more abnormal; finite.

    Returns
    -------
    float
    """
    y, s = _checked(labels, scores)
    order = np.argsort(-s, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(s[order]) != 0, True))
    tp = np.cumsum(y[order])[ends]
    return float(np.sum(np.diff(tp, prepend=0) * tp / (ends + 1)) / y.sum())


def vus_pr(labels: ArrayLike, scores: ArrayLike, *, window: int) -> float:
    """Volume under the surface of precision and recall, over thresholds and over widths of the labels' soft edges.

    Parameters
    ----------
    labels : array_like of shape (n,)
        1 where a row is anomalous.
    scores : array_like of shape (n,)
        Higher is more abnormal; finite.
    window : int
        Widest soft edge in rows, both sides together; :func:`period` of the series by TSB-AD's protocol.

    Returns
    -------
    float

    References
    ----------
    Paparrizos et al. (2022), Volume under the surface (PVLDB 15(11)), with the thresholds and the averaged count of
    positives of TSB-AD's own evaluation (Liu and Paparrizos 2024, NeurIPS Datasets and Benchmarks).
    """
    y, s = _checked(labels, scores)
    n = len(y)
    order = np.argsort(-s, kind="stable")
    thresholds = s[order][np.linspace(0, n - 1, _N_THRESHOLDS).astype(int)]
    n_alarms = np.searchsorted(-s[order], -thresholds, side="right")
    edges = np.diff(np.concatenate([[0], y, [0]]))
    ranges = list(zip(np.flatnonzero(edges == 1).tolist(), (np.flatnonzero(edges == -1) - 1).tolist(), strict=True))
    areas = []
    for width in range(window + 1):
        soft = _softened(y, ranges, width)
        found = np.cumsum(soft[order])[n_alarms - 1]
        beside = np.cumsum(np.where(y[order] > 0, 0.0, soft[order]))[n_alarms - 1]
        tops = np.array([s[first : last + 1].max() for first, last in _joined(ranges, width // 2, n)])
        met = (tops[:, None] >= thresholds).mean(axis=0)
        recall = np.minimum(found / (y.sum() + beside / 2), 1) * met
        areas.append(np.sum(np.diff(recall, prepend=0.0) * found / n_alarms))
    return float(np.mean(areas))


def period(series: ArrayLike) -> int:
    """Guess the period of a series from the highest peak of its autocorrelation, as TSB-AD does.

    Parameters
    ----------
    series : array_like of shape (n,)

    Returns
    -------
    int
        125 where there is no peak between lag 6 and lag 303.
    """
    x = np.asarray(series, np.float64)[:_MOST_ROWS]
    x = x - x.mean()
    n = len(x)
    spectrum = np.fft.rfft(x, 2 ** int(np.ceil(np.log2(2 * n))))
    covariance = np.fft.irfft(np.abs(spectrum) ** 2)[: min(_N_LAGS + 1, n)]
    if not covariance[0] > 0:
        return _NO_PERIOD
    correlation = (covariance / covariance[0])[_FIRST_LAG:]
    peaks = 1 + np.flatnonzero((correlation[1:-1] > correlation[:-2]) & (correlation[1:-1] > correlation[2:]))
    if not len(peaks):
        return _NO_PERIOD
    highest = int(peaks[np.argsort(correlation[peaks])[-1]])
    return highest + _FIRST_LAG if _FIRST_LAG <= highest <= _LONGEST_PERIOD else _NO_PERIOD


def _softened(y: Floats, ranges: list[tuple[int, int]], width: int) -> Floats:
    """Give rows beside a range a label that falls off over half the width."""
    soft, n = y.copy(), len(y)
    for first, last in ranges:
        after = np.arange(last + 1, min(last + width // 2 + 1, n))
        soft[after] += np.sqrt(1 - (after - last) / max(width, 1))
        before = np.arange(max(first - width // 2, 0), first)
        soft[before] += np.sqrt(1 - (first - before) / max(width, 1))
    return np.minimum(soft, 1.0)


def _joined(ranges: list[tuple[int, int]], half: int, n: int) -> list[tuple[int, int]]:
    """Widen ranges on both sides and join those that meet."""
    wide: list[tuple[int, int]] = []
    for first, last in ranges:
        start = max(first - half, 0)
        if wide and wide[-1][1] >= start:
            wide[-1] = (wide[-1][0], last + half)
        else:
            wide.append((start, last + half))
    return [(first, min(last, n - 1)) for first, last in wide]


def _checked(labels: ArrayLike, scores: ArrayLike) -> tuple[Floats, Floats]:
    y, s = np.asarray(labels, np.float64), np.asarray(scores, np.float64)
    if y.ndim != 1 or y.shape != s.shape:
        raise ShapeError(f"one score per label is needed, got shapes {y.shape} and {s.shape}.")
    if not np.isfinite(s).all():
        raise ParameterError(f"{np.count_nonzero(~np.isfinite(s))} scores are not finite. Say what they stand for.")
    if not y.any():
        raise ParameterError("no row is labelled anomalous: there is nothing to be found.")
    return y, s
