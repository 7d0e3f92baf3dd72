"""How good is a forecast? Plain numpy functions with keyword-only arguments, so that no two arrays can be swapped.

A NaN in the values or in the forecast means "not there": the pair is left out of the mean. Where nothing is left the
answer is NaN. Scores are averages over every axis, unless ``axis`` names the ones to average over.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from txl_ts.errors import ParameterError, ShapeError

FloatArray = NDArray[np.float64]
Axis = int | tuple[int, ...]
SeriesRows = Sequence[Any] | NDArray[Any]


class Naive2(NamedTuple):
    """Errors of the M4 benchmark Naive2 (seasonally adjusted naive), the yardstick of :func:`owa`."""

    smape: float
    mase: float


# Makridakis, Spiliotis, Assimakopoulos (2020), The M4 Competition, IJF 36(1), and Mcompetitions/M4-methods.
M4_NAIVE2 = MappingProxyType({"Hourly": Naive2(18.383, 2.395), "Weekly": Naive2(9.161, 2.777)})


@overload
def mse(*, y: ArrayLike, forecast: ArrayLike) -> float: ...
@overload
def mse(*, y: ArrayLike, forecast: ArrayLike, axis: Axis) -> FloatArray: ...
def mse(*, y: ArrayLike, forecast: ArrayLike, axis: Axis | None = None) -> float | FloatArray:
    """Mean of the squared errors, in squared units of ``y``.

    Parameters
    ----------
    y, forecast : array_like of one shape
        What came and what was said. NaN pairs are left out.
    axis : int or tuple of int, optional
        Axes to average over; all of them by default.

    Returns
    -------
    float or ndarray
        A float without ``axis``, else one score per remaining cell.

    Raises
    ------
    ShapeError
        If the shapes differ.

    Examples
    --------
    >>> mse(y=[1.0, 2.0, float("nan")], forecast=[1.0, 4.0, 5.0])
    2.0
    """
    return _mean(_errors(y, forecast) ** 2, axis)


@overload
def mae(*, y: ArrayLike, forecast: ArrayLike) -> float: ...
@overload
def mae(*, y: ArrayLike, forecast: ArrayLike, axis: Axis) -> FloatArray: ...
def mae(*, y: ArrayLike, forecast: ArrayLike, axis: Axis | None = None) -> float | FloatArray:
    """Mean of the absolute errors, in units of ``y``.

    Parameters
    ----------
    y, forecast : array_like of one shape
        What came and what was said. NaN pairs are left out.
    axis : int or tuple of int, optional
        Axes to average over; all of them by default.

    Returns
    -------
    float or ndarray
        A float without ``axis``, else one score per remaining cell.

    Raises
    ------
    ShapeError
        If the shapes differ.

    Examples
    --------
    >>> mae(y=[1.0, 2.0], forecast=[1.0, 4.0])
    1.0
    """
    return _mean(np.abs(_errors(y, forecast)), axis)


@overload
def pinball(*, y: ArrayLike, forecast: ArrayLike, quantiles: ArrayLike) -> float: ...
@overload
def pinball(*, y: ArrayLike, forecast: ArrayLike, quantiles: ArrayLike, axis: Axis) -> FloatArray: ...
def pinball(*, y: ArrayLike, forecast: ArrayLike, quantiles: ArrayLike, axis: Axis | None = None) -> float | FloatArray:
    """Mean pinball loss of quantile forecasts: at level .5 it is half the absolute error.

    Parameters
    ----------
    y : array_like of shape (...)
        What came.
    forecast : array_like of shape (..., Q)
        Quantile forecasts, the levels on the last axis.
    quantiles : array_like of shape (Q,)
        Levels in (0, 1).
    axis : int or tuple of int, optional
        Axes of ``forecast`` to average over; all of them by default. without the last axis: one score per level.

    Returns
    -------
    float or ndarray
        A float without ``axis``, else one score per remaining cell, in units of ``y``.

    Raises
    ------
    ShapeError
        If the shapes do not fit.
    ParameterError
        If a level lies outside (0, 1).

    References
    ----------
    Koenker and Bassett (1978), Regression Quantiles, Econometrica 46(1).

    Examples
    --------
    >>> pinball(y=[10.0], forecast=[[8.0, 11.0]], quantiles=[0.1, 0.5])
    0.35
    """
    return _mean(_pinball_losses(y, forecast, quantiles), axis)


def weighted_quantile_loss(*, y: ArrayLike, forecast: ArrayLike, quantiles: ArrayLike) -> float:
    """Twice the summed pinball loss over the summed size of ``y``, averaged over the levels: Chronos' WQL.

    It has no unit, and large values weigh more. Cells without a value do not count in either sum.

    Parameters
    ----------
    y : array_like of shape (...)
        What came.
    forecast : array_like of shape (..., Q)
        Quantile forecasts, the levels on the last axis.
    quantiles : array_like of shape (Q,)
        Levels in (0, 1).

    Returns
    -------
    float
        NaN when no cell counts or every counted value is 0.

    Raises
    ------
    ShapeError
        If the shapes do not fit.
    ParameterError
        If a level lies outside (0, 1).

    References
    ----------
    Ansari et al. (2024), Chronos, appendix on metrics (arXiv 2403.07815); GluonTS, MeanWeightedSumQuantileLoss.

    Examples
    --------
    >>> weighted_quantile_loss(y=[10.0], forecast=[[8.0, 11.0]], quantiles=[0.1, 0.5])
    0.07
    """
    losses = _pinball_losses(y, forecast, quantiles)
    counted = ~np.isnan(losses)
    cells = tuple(range(losses.ndim - 1))
    size = np.where(counted, np.abs(np.asarray(y, np.float64))[..., None], 0.0).sum(axis=cells)
    return float(np.mean(_ratio(2.0 * np.where(counted, losses, 0.0).sum(axis=cells), size)))


@overload
def coverage(*, y: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> float: ...
@overload
def coverage(*, y: ArrayLike, lower: ArrayLike, upper: ArrayLike, axis: Axis) -> FloatArray: ...
def coverage(*, y: ArrayLike, lower: ArrayLike, upper: ArrayLike, axis: Axis | None = None) -> float | FloatArray:
    """Part of the values that lie inside their interval, its ends included.

    Parameters
    ----------
    y, lower, upper : array_like of one shape
        What came, and the interval that was said. A NaN in any of the three leaves the cell out.
    axis : int or tuple of int, optional
        Axes to average over; all of them by default.

    Returns
    -------
    float or ndarray
        In [0, 1]. A calibrated 80 % interval has .8.

    Raises
    ------
    ShapeError
        If the shapes differ.

    Examples
    --------
    >>> coverage(y=[1.0, 5.0], lower=[0.0, 0.0], upper=[2.0, 2.0])
    0.5
    """
    y_, low = _pair(y, lower, second="lower")
    _, high = _pair(y, upper, second="upper")
    gone = np.isnan(y_) | np.isnan(low) | np.isnan(high)
    return _mean(np.where(gone, np.nan, (low <= y_) & (y_ <= high)), axis)


@overload
def smape(*, y: ArrayLike, forecast: ArrayLike) -> float: ...
@overload
def smape(*, y: ArrayLike, forecast: ArrayLike, axis: Axis) -> FloatArray: ...
def smape(*, y: ArrayLike, forecast: ArrayLike, axis: Axis | None = None) -> float | FloatArray:
    """Symmetric percentage error as the M4 competition computes it: mean of 200·|y − f| / (|y| + |f|), in [0, 200].

    The last axis is the horizon. Without ``axis`` it is averaged first and the series after it, so that every series
    weighs the same. A cell where both are 0 counts as 0, a perfect forecast (M4 has no zeros).

    Parameters
    ----------
    y, forecast : array_like of shape (..., h)
        What came and what was said. NaN pairs are left out.
    axis : int or tuple of int, optional
        Axes to average over at once: ``axis=-1`` gives one score per series.

    Returns
    -------
    float or ndarray
        Percent.

    Raises
    ------
    ShapeError
        If the shapes differ.

    References
    ----------
    Makridakis, Spiliotis, Assimakopoulos (2020), The M4 Competition, International Journal of Forecasting 36(1).

    Examples
    --------
    >>> smape(y=[[100.0, 100.0]], forecast=[[100.0, 300.0]])
    50.0
    """
    y_, f = _pair(y, forecast)
    cells = 200.0 * _ratio(np.abs(y_ - f), np.abs(y_) + np.abs(f), at_zero=0.0)
    return _mean(_mean(cells, -1), None) if axis is None and cells.ndim > 0 else _mean(cells, axis)


@overload
def mase(*, y: ArrayLike, forecast: ArrayLike, insample: SeriesRows, season: int) -> float: ...
@overload
def mase(*, y: ArrayLike, forecast: ArrayLike, insample: SeriesRows, season: int, axis: Axis) -> FloatArray: ...
def mase(
    *,
    y: ArrayLike,
    forecast: ArrayLike,
    insample: SeriesRows,
    season: int,
    axis: Axis | None = None,
) -> float | FloatArray:
    """Mean absolute error over the in-sample error of the seasonal naive forecast, as the M4 competition computes it.

    Below 1 means: better than repeating the last season did on the rows before. Series whose scale is 0 or unknown (a
    constant, or fewer than ``season + 1`` rows) have no MASE and are left out of the mean.

    Parameters
    ----------
    y, forecast : array_like of shape (h,) or (N, h)
        What came and what was said, for one series or for N. NaN pairs are left out.
    insample : array_like of shape (T,) or (N, T), or N sequences of any length
        The rows before the forecast, oldest first, padded with NaN at either end or not at all.
    season : int
        Rows of one season (M4: 24 hourly, 1 weekly).
    axis : {-1}, optional
        With ``axis=-1``, one score per series.

    Returns
    -------
    float or ndarray
        Without unit.

    Raises
    ------
    ShapeError
        If the shapes differ, or the number of series does.
    ParameterError
        If ``season`` is not a positive integer.

    References
    ----------
    Hyndman and Koehler (2006), Another look at measures of forecast accuracy, IJF 22(4); Makridakis et al. (2020).

    Examples
    --------
    >>> mase(y=[5.0, 6.0], forecast=[5.0, 5.0], insample=[1.0, 2.0, 3.0, 4.0], season=1)
    0.5
    """
    errors = np.abs(_errors(y, forecast))
    scale = seasonal_scale(insample=[insample] if errors.ndim == 1 else insample, season=season)
    if errors.ndim == 2 and len(scale) != len(errors):
        raise ShapeError(
            f"insample holds {len(scale)} series and y holds {len(errors)}. Pass the rows before the forecast of each "
            "series, in the same order."
        )
    if errors.ndim == 1:
        return _mean(_ratio(errors, scale), axis)
    cells = _ratio(errors, scale[:, None])
    return _mean(_mean(cells, -1), None) if axis is None else _mean(cells, axis)


def seasonal_scale(*, insample: SeriesRows, season: int) -> FloatArray:
    """Mean absolute step from one season to the next, per series: the denominator of :func:`mase`.

    Parameters
    ----------
    insample : array_like of shape (N, T), or N sequences of any length
        Rows oldest first. NaN rows, padding among them, are left out.
    season : int
        Rows of one season.

    Returns
    -------
    ndarray of shape (N,)
        In units of the series. NaN where fewer than ``season + 1`` rows are there.

    Raises
    ------
    ParameterError
        If ``season`` is not a positive integer.

    Examples
    --------
    >>> seasonal_scale(insample=[[1.0, 2.0, 4.0], [1.0, 1.0]], season=1).tolist()
    [1.5, 0.0]
    """
    if isinstance(season, bool) or not isinstance(season, int | np.integer) or season < 1:
        raise ParameterError(
            f"season={season!r} ({type(season).__name__}) must be an integer of at least 1. "
            "Take for example season=24 for hourly rows."
        )
    rows = [np.asarray(series, np.float64) for series in insample]
    return np.array([_mean(np.abs(series[season:] - series[:-season]), None) for series in rows])


def owa(*, smape: float, mase: float, naive2: Naive2) -> float:
    """Overall weighted average of the M4 competition: the mean of sMAPE and MASE, each relative to Naive2's.

    Parameters
    ----------
    smape, mase : float
        Means over all series, from :func:`smape` and :func:`mase`.
    naive2 : Naive2
        Errors of Naive2 on the same series: ``M4_NAIVE2["Hourly"]``, or a pair of your own.

    Returns
    -------
    float
        Below 1 means: better than Naive2.

    References
    ----------
    Makridakis, Spiliotis, Assimakopoulos (2020), The M4 Competition, International Journal of Forecasting 36(1).

    Examples
    --------
    >>> round(owa(smape=13.912, mase=1.193, naive2=M4_NAIVE2["Hourly"]), 3)
    0.627
    """
    return (smape / naive2[0] + mase / naive2[1]) / 2.0


def forgetting(*, errors: ArrayLike) -> FloatArray:
    """How much worse each regime fares after later ones than it fared at its best before.

    Parameters
    ----------
    errors : array_like of shape (K, K)
        ``errors[after, on]``: error on regime ``on`` once ``after`` has been learned, smaller is better; NaN where it
        was not measured.

    Returns
    -------
    float64 array of shape (K, K)
        ``errors[after, on]`` minus the least of the errors on that regime before ``after``; negative where learning
        later regimes helped. NaN on the diagonal and above.

    Raises
    ------
    ShapeError
        If there is not one column per row.

    References
    ----------
    Chaudhry et al. (2018), Riemannian walk for incremental learning (arXiv 1801.10112), section 3.1, with errors in
    place of accuracies.

    Examples
    --------
    >>> forgetting(errors=[[1.0, float("nan")], [1.5, 2.0]])[1, 0]
    np.float64(0.5)
    """
    e = np.asarray(errors, np.float64)
    if e.ndim != 2 or e.shape[0] != e.shape[1]:
        raise ShapeError(f"errors has shape {e.shape}; (K, K) is needed: a row and a column per regime.")
    best = np.fmin.accumulate(e, axis=0)
    out = np.full(e.shape, np.nan)
    out[1:] = e[1:] - best[:-1]
    return np.where(np.tri(len(e), k=-1, dtype=bool), out, np.nan)


def mean_forgetting(*, errors: ArrayLike) -> float:
    """Mean of :func:`forgetting` over all earlier regimes, once the last one has been learned.

    Parameters
    ----------
    errors : array_like of shape (K, K)
        As for :func:`forgetting`.

    Returns
    -------
    float
        In units of the errors; NaN with a single regime.

    Raises
    ------
    ShapeError
        If there is not one column per row.
    """
    return _mean(forgetting(errors=errors)[-1:], None)


def _pair(y: ArrayLike, other: ArrayLike, *, second: str = "forecast") -> tuple[FloatArray, FloatArray]:
    """Both as float64, or ShapeError: broadcasting would hide a swapped axis."""
    a, b = np.asarray(y, np.float64), np.asarray(other, np.float64)
    if a.shape != b.shape:
        raise ShapeError(f"y has shape {a.shape} and {second} has shape {b.shape}. Pass arrays of one shape.")
    return a, b


def _errors(y: ArrayLike, forecast: ArrayLike) -> FloatArray:
    a, b = _pair(y, forecast)
    return a - b


def _pinball_losses(y: ArrayLike, forecast: ArrayLike, quantiles: ArrayLike) -> FloatArray:
    y_, f, q = (np.asarray(values, np.float64) for values in (y, forecast, quantiles))
    if q.ndim != 1 or f.shape != (*y_.shape, len(q)):
        raise ShapeError(
            f"forecast has shape {f.shape}; {(*y_.shape, q.size)} is needed: y has shape {y_.shape} and "
            f"{q.size} quantiles stand on the last axis."
        )
    if not ((q > 0) & (q < 1)).all():
        raise ParameterError(f"quantiles={q.tolist()} must lie in (0, 1). Take for example quantiles=(0.1, 0.5, 0.9).")
    error = y_[..., None] - f  # (..., Q)
    return np.maximum(q * error, (q - 1.0) * error)


def _ratio(top: FloatArray, bottom: FloatArray, *, at_zero: float = np.nan) -> FloatArray:
    """Quotient with a chosen value where the denominator is 0, and no warning."""
    return np.where(bottom == 0, at_zero, top / np.where(bottom == 0, 1.0, bottom))


@overload
def _mean(values: FloatArray, axis: None) -> float: ...
@overload
def _mean(values: FloatArray, axis: Axis) -> FloatArray: ...
@overload
def _mean(values: FloatArray, axis: Axis | None) -> float | FloatArray: ...
def _mean(values: FloatArray, axis: Axis | None) -> float | FloatArray:
    """Mean of what is there: as np.nanmean, but silent where nothing is."""
    there = ~np.isnan(values)
    mean = _ratio(np.where(there, values, 0.0).sum(axis=axis), np.asarray(there.sum(axis=axis), np.float64))
    return float(mean) if axis is None else mean
