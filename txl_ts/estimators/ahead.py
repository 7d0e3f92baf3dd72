"""Horizons of any length: forecasts that are fed back into forked states, as medians or as sampled paths.

States are copied first: what an estimator keeps is not moved.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from txl_ts.embeddings import Beside
from txl_ts.errors import ParameterError
from txl_ts.estimators.columns import Level, read_law
from txl_ts.estimators.covariates import forecast_known, padded_ahead
from txl_ts.frames import Covariates
from txl_ts.model import TXLModel
from txl_ts.state import select
from txl_ts.walk import Pace, walk

if TYPE_CHECKING:
    from txl_ts.estimators.fleet import Fleet

# Lanes of forked states that run side by side: each holds a whole state.
_MOST_LANES = 1024


def forecast_ahead(
    model: TXLModel, fleet: Fleet, *, h: int, pace: Pace, futr: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Forecast ``h`` steps: beyond the trained horizon the medians are fed forward, a trained horizon at a time.

    The quantiles of a later block are conditional on the medians before it, so that bands are too narrow there.

    Parameters
    ----------
    model : TXLModel
    fleet : Fleet
    h : int
    pace : Pace
    futr : float32 array of shape (n, h, n_futr)
        What is known of the rows ahead.

    Returns
    -------
    float32 array of shape (n, h, C · law_width)
    """
    trained, n = model.config.h, len(fleet)
    blocks = [_first_block(model, fleet, futr)]
    state = select(fleet.state, np.arange(n))
    known = padded_ahead(futr, n_rows=h + 2 * trained)
    while (done := sum(block.shape[1] for block in blocks)) < h:
        rows = list(read_law(model, blocks[-1], [0.5])[..., 0])
        after = np.full_like(fleet.forecast, np.nan)
        last = np.full(n, trained - 1)
        beside = None
        if model.config.has_covariates:
            nothing = np.zeros((trained, 0), np.float32)
            here = known[:, done - trained : done + trained]
            beside = [Covariates(nothing, *columns) for columns in zip(here, fleet.static, strict=True)]
        for stretch in walk(model, rows, state, wanted_from=last, pace=pace, beside=beside):
            after[stretch.lanes] = stretch.flat[:, -1]  # the last stretch of a lane overwrites the others
        blocks.append(after)
    return np.concatenate(blocks, axis=1)[:, :h]


def sample_paths(
    model: TXLModel, fleet: Fleet, *, h: int, n_paths: int, seed: int, futr: NDArray[np.float32]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Draw paths step by step, some series at a time; ``futr`` is as in :func:`forecast_ahead`.

    Each step is drawn from the one-step law of its path's own state, then fed into that state. Between trained
    quantiles the quantile function is linear in normal scores, and beyond them it goes on so (normal tails). A path
    costs one row of the model per step. What a series draws depends on the seed and its name, not on the other series.
    Channels of a lane are drawn apart from each other at each step, and then share a memory.

    Yields
    ------
    lanes : int64 array of shape (k,)
    paths : float32 array of shape (k, n_paths, h, C)

    Raises
    ------
    ParameterError
        If the model was trained on the median alone.
    """
    config = model.config
    if config.law_width == 1:
        raise ParameterError(
            "paths are drawn from quantiles, and only the median was trained. Fit with quantiles=(0.1, 0.5, 0.9)."
        )
    size = max(_MOST_LANES // n_paths, 1)
    for first in range(0, len(fleet), size):
        lanes = np.arange(first, min(first + size, len(fleet)))
        shape = (h, n_paths, config.n_channels)
        draws = np.stack([model.draws(_generator(fleet.ids[i], seed), shape).swapaxes(0, 1) for i in lanes])
        yield lanes, _walked(model, fleet.take([fleet.ids[i] for i in lanes]), draws, futr[lanes])


def _walked(
    model: TXLModel, fleet: Fleet, draws: NDArray[np.float64], futr: NDArray[np.float32]
) -> NDArray[np.float32]:
    k, n_paths, h, n_channels = draws.shape
    forked = np.repeat(np.arange(k), n_paths)
    state = {name: torch.from_numpy(array) for name, array in select(fleet.state, forked).items()}
    ahead = torch.from_numpy(_first_block(model, fleet, futr)[forked, 0]).unflatten(1, (n_channels, -1))
    known = torch.from_numpy(padded_ahead(futr, n_rows=h + model.config.h)[forked])
    static, nothing = torch.from_numpy(fleet.static[forked]), torch.zeros(len(forked), 1, 0)
    paths = torch.empty(k * n_paths, h, n_channels)
    at = torch.from_numpy(draws.reshape(k * n_paths, h, n_channels))
    with torch.inference_mode():
        for step in range(h):
            paths[:, step] = model.drawn(ahead, at[:, step])
            if step + 1 < h:
                beside = Beside(nothing, known[:, step : step + 1 + model.config.h], static)
                y, state = model(paths[:, step][:, None], state, beside=beside, as_law=True)
                ahead = y[:, 0, 0]
    return paths.reshape(k, n_paths, h, n_channels).numpy()


def _first_block(model: TXLModel, fleet: Fleet, futr: NDArray[np.float32]) -> NDArray[np.float32]:
    """Forecasts from the kept memories, (n, ≤ h, C · law_width)."""
    if not model.config.futr_kinds:
        return fleet.forecast
    # Where time is uneven a forecast is for a time, however many rows come before it.
    known = futr if model.config.is_uneven else futr[:, : model.config.h]
    return forecast_known(model, fleet.state["last"], known)


def _generator(name: str | int, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(repr(name).encode())])


def path_quantiles(
    model: TXLModel,
    fleet: Fleet,
    *,
    h: int,
    n_paths: int,
    seed: int,
    levels: Sequence[Level],
    futr: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Give the quantiles of sampled paths at each step, of shape (n, h, [C,] len(levels)); their mean is one too."""
    parts = [np.empty((0, h, model.config.n_channels, len(levels)), np.float32)]  # there may be no series
    for _, paths in sample_paths(model, fleet, h=h, n_paths=n_paths, seed=seed, futr=futr):
        shown = [paths.mean(axis=1) if isinstance(q, str) else np.quantile(paths, q, axis=1) for q in levels]
        parts.append(np.stack(shown, axis=-1).astype(np.float32))
    out = np.concatenate(parts)
    return out[:, :, 0] if model.config.n_channels == 1 else out
