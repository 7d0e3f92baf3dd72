"""The whole model for one lane: raw rows in, quantiles in raw units out, float64, one row after the other.

Weights are a ``state_dict`` as numpy arrays; ``config`` is the plain dictionary of sizes.
"""

import math

import numpy as np

from tests.oracles.closed_form import backbone, below
from tests.oracles.normaliser import AGE_CAP, RowByRow

TOKEN_CLIP = 10.0


class Fitted:
    """The scale that was fitted on the training rows: the same at every row, known before the first."""

    def __init__(self, mean, deviation):
        self.mean, self.deviation, self.age = mean, deviation, 0.0

    def step(self, x):
        self.age = 0.0 if math.isfinite(x) else min(self.age + 1, AGE_CAP)
        return {
            "known": True,
            "shift": 0.0,
            "mean": self.mean,
            "deviation": self.deviation,
            "drift": (0.0, 0.0),
            "age": self.age,
        }


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def window_before(x, t, length, scale):
    """Normalised values and masks of the rows t − length + 1 … t of one channel, by the scale of row t."""
    unit = scale["deviation"] if scale["deviation"] > 0 else 1.0
    z, mask = np.zeros(length), np.zeros(length)
    for i in range(length):
        row = t - length + 1 + i
        if row >= 0 and math.isfinite(x[row]):
            z[i] = np.clip((x[row] - scale["shift"] - scale["mean"]) / unit, -TOKEN_CLIP, TOKEN_CLIP)
            mask[i] = 1.0
    return z, mask


def carried(x):
    """Each missing value of one channel replaced by the one before it; NaN where there is none."""
    out, last = [], math.nan
    for value in x:
        last = value if math.isfinite(value) else last
        out.append(last)
    return np.array(out)


def begun_earlier(x, t, season):
    """The rows … t of one channel, one season longer in front for each row that is there; a new first row number.

    Once ``season`` rows have come since the first value, what was before it is the season that begins there, again and
    again.
    """
    there = np.flatnonzero(np.isfinite(x[: t + 1]))
    if not season or not len(there) or t - there[0] + 1 < season:
        return x, 0
    first, n_more = there[0], season * len(x)
    repeats = [x[first + (row - first) % season] for row in range(-n_more, first)]
    return np.array([*repeats, *x[first:]]), n_more


def quantile_steps(raw, quantiles, centre):
    """Median, then positive steps outwards: ``raw`` (Q,) to increasing quantiles (Q,)."""
    median = list(quantiles).index(0.5)
    out = np.zeros(len(quantiles))
    out[median] = raw[median] + centre
    for i in range(median + 1, len(quantiles)):
        out[i] = out[i - 1] + softplus(raw[i])
    for i in range(median - 1, -1, -1):
        out[i] = out[i + 1] - softplus(raw[i])
    return out


def scales(x, weights, config):
    """The scale of each row and channel."""
    table = []
    for c in range(config["n_channels"]):
        if config["scaler"] == "running":
            lane = RowByRow(half_life=config["half_life"])
        else:
            lane = Fitted(weights["normaliser.mean"][c], weights["normaliser.deviation"][c])
        table.append([lane.step(value) for value in x[:, c]])
    return table


def forecast(x, weights, config, beside=None):
    """Quantiles (T, h, C, Q) from raw rows (T, C); ``beside`` is an oracle of the columns beside them."""
    n_rows, n_channels = x.shape
    h, quantiles, lookback = config["h"], config["quantiles"], config["lookback"]
    scale = scales(x, weights, config)
    tokens, centres = [], []
    for t in range(n_rows):
        features, centre = [], np.zeros((h, n_channels))
        for c in range(n_channels):
            z, mask = window_before(x[:, c], t, config["patch_len"], scale[c][t])
            features += [*z, *mask, *scale[c][t]["drift"], math.log1p(scale[c][t]["age"])]
            longer, n_more = begun_earlier(carried(x[:, c]), t, config["lookback_season"])
            z, _ = window_before(longer, t + n_more, lookback, scale[c][t])
            centre[:, c] = weights["linear_path.weight"] @ z + weights["linear_path.bias"]
        token = weights["embedding.linear.weight"] @ np.array(features) + weights["embedding.linear.bias"]
        tokens.append(token if beside is None else token + beside.token(t))
        centres.append(centre)
    sizes = {name: config[name] for name in ("n_layers", "n_heads", "mem_len", "stride")}
    hidden = backbone(np.array(tokens), below(weights, "backbone."), **sizes)
    out = np.full((n_rows, h, n_channels, len(quantiles)), np.nan)
    for t in range(n_rows):
        raw = weights["head.linear.weight"] @ hidden[t] + weights["head.linear.bias"]
        raw = raw.reshape(h, n_channels, len(quantiles))
        if beside is not None:
            known_centre, more = beside.ahead(hidden[t], t)
            raw, centres[t] = raw + more, centres[t] + known_centre[:, None]
        for step in range(h):
            for c in range(n_channels):
                if scale[c][t]["known"]:
                    z = quantile_steps(raw[step, c], quantiles, centres[t][step, c])
                    level = scale[c][t]["shift"] + scale[c][t]["mean"]
                    out[t, step, c] = level + z * scale[c][t]["deviation"]
    return out
