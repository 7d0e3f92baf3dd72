"""Frozen weights, systems that nobody has met: the memory finds out what it looks at.

Every series is an oscillation of its own: its period and its damping are drawn anew. A model is fitted on many of them
once. Then new ones come row by row, nothing is trained, and the error of the next value falls with the rows seen.
Beside it: the same weights with the memory emptied at every row, recursive least squares, which begins anew with each
series and is told that two rows decide (the model is not), and what is left to noise for whoever knows the system.

    python examples/adapt_without_training.py [picture.png]
"""

import copy
import sys

import numpy as np
import pandas as pd

from txl_ts import TXLForecaster

BINS = ((2, 3), (4, 7), (8, 15), (16, 31), (32, 63), (64, 119))


def oscillations(n_series: int, n_rows: int, *, seed: int) -> tuple[pd.DataFrame, float]:
    """Draw series y[t] = a y[t−1] + b y[t−2] + noise of variance about 1; gives the mean variance of the noise too."""
    rng = np.random.default_rng(seed)
    period, damping = np.exp(rng.uniform(np.log(4), np.log(16), n_series)), rng.uniform(0.9, 0.99, n_series)
    a, b = 2 * damping * np.cos(2 * np.pi / period), -(damping**2)
    noise = np.sqrt((1 + b) * ((1 - b) ** 2 - a**2) / (1 - b))  # the deviation that makes the variance 1
    y = np.zeros((n_series, 200 + n_rows))
    for t in range(2, y.shape[1]):
        y[:, t] = a * y[:, t - 1] + b * y[:, t - 2] + noise * rng.normal(size=n_series)
    rows = {
        "unique_id": np.repeat(1000 * seed + np.arange(n_series), n_rows),
        "ds": np.tile(np.arange(n_rows), n_series),
    }
    return pd.DataFrame(rows | {"y": y[:, 200:].ravel()}), float((noise**2).mean())


def least_squares(y: np.ndarray) -> np.ndarray:
    """Forecast each row of (n, T) from the two before it, with coefficients found on the way; NaN before any."""
    out = np.full(y.shape, np.nan)
    for series, said in zip(y, out, strict=True):
        weights, inverse = np.zeros(2), np.eye(2)
        for t in range(2, len(series)):
            past = series[t - 2 : t]
            said[t] = weights @ past
            gain = inverse @ past / (1 + past @ inverse @ past)
            weights = weights + gain * (series[t] - said[t])
            inverse = inverse - np.outer(gain, past @ inverse)
    return out


def by_rows_seen(y: np.ndarray, said: np.ndarray) -> list[float]:
    """Mean squared error of the forecasts made after so many rows."""
    return [float(np.nanmean((y - said)[:, a : b + 1] ** 2)) for a, b in BINS]


def main(picture: str | None = None) -> None:
    """Fit once, meet new systems, print what the error was after how many rows."""
    known, _ = oscillations(128, 96, seed=0)
    new, noise = oscillations(64, 120, seed=1)
    sizes = {"patch_len": 1, "mem_len": 24, "lookback": 1, "half_life": 48, "d_model": 24, "n_layers": 2, "n_heads": 2}
    model = TXLForecaster(
        freq=1,
        season_length=1,
        quantiles=(0.5,),
        **sizes,
        dropout=0.0,
        learning_rate=1e-2,
        max_epochs=7,
        loss="squared",
    )
    model.fit(known, val_size=8)

    emptied = copy.deepcopy(model).set_params(carry_memory=False, segment_len=1)
    shape = (64, 120)
    y = new.y.to_numpy().reshape(shape)
    errors = {
        "memory carried": by_rows_seen(y, model.update(new).TXL.to_numpy().reshape(shape)),
        "memory emptied": by_rows_seen(y, emptied.update(new).TXL.to_numpy().reshape(shape)),
        "least squares": by_rows_seen(y, least_squares(y)),
        "noise alone": [noise] * len(BINS),
    }
    table = pd.DataFrame(errors, index=[f"{a}–{b}" for a, b in BINS]).rename_axis("rows seen")
    print(table.round(3).to_string())
    if picture is not None:
        draw(table, picture)


def draw(table: pd.DataFrame, path: str) -> None:
    """Draw the errors against the rows seen (extra `plot`)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, marker in zip(table, "os^ ", strict=True):
        axes.plot(table.index, table[name], marker=marker, linestyle="-" if marker != " " else ":", label=name)
    axes.set(xlabel="rows seen", ylabel="mean squared error", yscale="log", title="New systems, frozen weights")
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:2])
