"""Beyond the highest score: a generalised Pareto tail, which is a guess and says so."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from txl_ts.errors import ParameterError

MIN_EXCESSES = 50


def fit_gpd(excesses: ArrayLike) -> tuple[float, float]:
    """Fit a generalised Pareto law to what lies above a threshold, by probability-weighted moments.

    Parameters
    ----------
    excesses : array_like of shape (n,)
        Score minus threshold, all at least 0; 50 or more of them.

    Returns
    -------
    shape, scale : float
        ``P(X > x) = (1 + shape·x/scale)^(−1/shape)``. The shape is kept in [0, .5]: a negative one would end the tail
        somewhere and give p-values of 0 beyond, and moments need less than .5.

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
    k = a0 / (a0 - 2 * a1) - 2
    if k > 0:  # a shape of 0: the exponential law, whose scale is the mean
        return 0.0, float(a0)
    shape = min(-k, 0.5)
    return float(shape), float(a0 * (1 - shape))


def gpd_survival(excess: ArrayLike, *, shape: float, scale: float) -> NDArray[np.float64]:
    """Give P(X > excess); 1 below 0."""
    x = np.maximum(np.asarray(excess, np.float64), 0.0) / scale
    return np.exp(-x) if shape < 1e-9 else np.exp(-np.log1p(shape * x) / shape)
