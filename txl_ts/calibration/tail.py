"""Beyond the highest score: a generalised Pareto tail, which is a guess and says so."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from txl_ts.errors import ParameterError

MIN_EXCESSES = 50
_RAREST = 1e-6


def fit_gpd(excesses: ArrayLike) -> tuple[float, float]:
    """Fit a generalised Pareto law to what lies above a threshold, by probability-weighted moments.

    Parameters
    ----------
    excesses : array_like of shape (n,)
        Score minus threshold, all at least 0; 50 or more of them.

    Returns
    -------
    shape, scale : float
        ``P(X > x) = (1 + shape·x/scale)^(−1/shape)``. The shape is kept in [−.5, .5], where the moments exist.

    Raises
    ------
    ParameterError
        If they are too few, or do not vary.

    References
    ----------
    Hosking and Wallis (1987), Parameter and quantile estimation for the generalized Pareto distribution, Technometrics
    29(3), with k = −shape.
    """
    x = np.sort(np.asarray(excesses, np.float64))
    n = len(x)
    if n < MIN_EXCESSES or not (np.isfinite(x).all() and x[0] >= 0 and x[-1] > x[0]):
        raise ParameterError(
            f"a tail needs {MIN_EXCESSES} finite excesses of at least 0 that vary, got {n}"
            f"{f' from {x[0]:g} to {x[-1]:g}' if n else ''}. Give more calibration rows."
        )
    a0 = x.mean()
    a1 = (np.arange(n - 1, -1, -1) / (n - 1) * x).mean()  # E[X (1 − F)]
    shape = float(np.clip(2 - a0 / (a0 - 2 * a1), -0.5, 0.5))
    return shape, float(a0 * (1 - shape))


def gpd_survival(excess: ArrayLike, *, shape: float, scale: float) -> NDArray[np.float64]:
    """Give P(X > excess); 1 below 0.

    With a negative shape the law ends somewhere. A guessed tail must not give a probability of 0: beyond one in a
    million it goes on as an exponential.
    """
    x = np.maximum(np.asarray(excess, np.float64), 0.0) / scale
    if abs(shape) < 1e-9:
        return np.exp(-x)
    if shape > 0:
        return np.exp(-np.log1p(shape * x) / shape)
    last = np.expm1(-shape * np.log(_RAREST)) / shape  # where the survival is one in a million
    rate = 1 / (1 + shape * last)  # the hazard there
    inside = np.exp(-np.log1p(shape * np.minimum(x, last)) / shape)
    return np.where(x > last, _RAREST * np.exp(-rate * np.maximum(x - last, 0.0)), inside)


def gpd_excess(survival: float, *, shape: float, scale: float) -> float:
    """Give the excess with P(X > excess) = ``survival``, in (0, 1]."""
    if abs(shape) < 1e-9:
        return -scale * float(np.log(survival))
    within = max(survival, _RAREST) if shape < 0 else survival
    x = float(np.expm1(-shape * np.log(within))) / shape
    if within > survival:
        x += float(np.log(within / survival)) * (1 + shape * x)
    return scale * x
