"""Scores of a detector, from their definition: tables of scipy, interpolation of numpy, one row after the other."""

import numpy as np
from scipy import stats


def normal_score(x, quantiles, levels, least):
    """Interpolated between the quantiles, straight beyond them up to a logarithm from ten on."""
    z = stats.norm.ppf(levels)
    median = quantiles[list(levels).index(0.5)]
    off, side = (x - median, 1) if x >= median else (median - x, -1)
    picked = z > 0 if side > 0 else z < 0
    at = np.abs(z[picked])
    knots = np.abs(quantiles[picked] - median)
    order = np.argsort(at)
    at, knots = at[order], knots[order]
    knots = np.maximum.accumulate(np.maximum(knots, at * least))
    inside = np.interp(off, np.append(0.0, knots), np.append(0.0, at))
    beyond = max(off - knots[-1], 0.0) / (knots[-1] / at[-1])
    return side * (inside + 10 * np.log1p(beyond / 10))


def part(z):
    return -(np.log(2) + stats.norm.logsf(abs(z))) / np.log(10)


def fisher(parts):
    """Of the parts that are there: the chi-square law of 2n degrees."""
    there = [one for one in parts if not np.isnan(one)]
    if not there:
        return np.nan
    if len(parts) == 1:
        return there[0]
    return -stats.chi2.logsf(2 * np.log(10) * sum(there), 2 * len(there)) / np.log(10)


def novelty(values, scale, span):
    """Of one value after the other: outside the leaking range of those before, in widths of it."""
    out, seen = [], []
    for t, value in enumerate(values):
        if np.isnan(value) or not seen:
            out.append(np.nan)
        else:
            high = max(v - scale / span * (t - i) for i, v in seen)
            low = min(v + scale / span * (t - i) for i, v in seen)
            out.append(max(value - high, low - value) / max(high - low, 1e-3 * scale))
        if not np.isnan(value):
            seen.append((t, value))
    return np.array(out)


def weighted_means(values, half_life):
    """Running means with weights 0.5 ** (age / half_life), in rows; NaN where there is no value."""
    out = []
    for t in range(len(values)):
        age = t - np.arange(t + 1)
        weight = 0.5 ** (age / half_life) * ~np.isnan(values[: t + 1])
        out.append(np.nansum(weight * values[: t + 1]) / weight.sum() if not np.isnan(values[t]) else np.nan)
    return np.array(out)
