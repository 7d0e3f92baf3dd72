"""From rows to a detector: which rows train, choose and calibrate; sizes; training; the scores of held-out rows."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from txl_ts.calibration import held_out_blocks, integrated_time
from txl_ts.config import ModelConfig
from txl_ts.detector_model import DetectorModel, SensorModel, unpacked
from txl_ts.stream.score import Surprise
from txl_ts.training import History, TrainingSettings
from txl_ts.training.sensors import CHOOSE, TRAIN, SensorRows, SensorTrainer, fit_channel_path
from txl_ts.walk import Pace, walk

CALIBRATE = 1
"""Role of held-out rows; see :mod:`txl_ts.training.sensors` for the others."""
# Of the blocks that are not held out, one in so many chooses the epoch.
_CHOOSE_EVERY = 8
_MOST_BLOCK = 512


@dataclass(frozen=True)
class Trained:
    """What fitting gives.

    Attributes
    ----------
    model : DetectorModel
        Without a calibration.
    history : History
    scores : list of float32 array
        Of the held-out rows of each series, in the order of time; NaN where there is none.
    """

    model: DetectorModel
    history: History
    scores: list[NDArray[np.float32]]


def roles_of(
    length: NDArray[np.int64], *, share: float, block_len: int | None, gap: int
) -> tuple[list[NDArray[np.int8]], int]:
    """Say of the rows of each series what they are for; give the block length that was taken, too."""
    typical = int(np.median(length))
    block = block_len or int(np.clip(typical // 20, 1, _MOST_BLOCK))
    roles = []
    for n in length.tolist():
        role = held_out_blocks(n, block_len=block, share=share, gap=min(gap, block // 4))
        number = np.arange(n) // block
        free = [b for b in range(-(-n // block)) if not (role[number == b] == CALIBRATE).any()]
        if len(free) >= _CHOOSE_EVERY:
            chosen = np.isin(number, free[_CHOOSE_EVERY // 2 :: _CHOOSE_EVERY]) & (role == TRAIN)
            role = np.where(chosen, CHOOSE, role).astype(np.int8)
        roles.append(role)
    return roles, block


def train_detector(
    runs: list[NDArray[np.float32]],
    roles: list[NDArray[np.int8]],
    config: ModelConfig,
    settings: TrainingSettings,
    surprise: Surprise,
    *,
    independent: bool,
    deterministic: bool,
) -> Trained:
    """Train on the rows with that role, and score those that are held out.

    Parameters
    ----------
    runs : list of float32 array of shape (n_i, C)
        One per series.
    roles : list of int8 array of shape (n_i,)
    config : ModelConfig
        Of one channel if they are independent.
    settings : TrainingSettings
    surprise : Surprise
        Its scale is found here.
    independent : bool
        Each channel is a series of its own, of the same model.
    deterministic : bool
    """
    n_channels = runs[0].shape[1]
    lanes, lane_roles = runs, roles
    if independent:
        lanes = [run[:, c : c + 1] for run in runs for c in range(n_channels)]
        lane_roles = [role for role in roles for _ in range(n_channels)]
    edges = np.concatenate([[0], np.cumsum([len(lane) for lane in lanes])]).astype(np.int64)
    values, role = np.ascontiguousarray(np.concatenate(lanes)), np.concatenate(lane_roles)
    unit = np.stack([_units(lane, part) for lane, part in zip(lanes, lane_roles, strict=True)])
    rows = SensorRows(values, role, edges[:-1], edges[1:], unit)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.random_state)
        core = SensorModel(config)
        core.normaliser.fit(values[role == TRAIN])
        fit_channel_path(core, rows, seed=settings.random_state)
        history = SensorTrainer(core, rows, surprise.horizons, settings).run()
    scale = _scale(core, lanes, lane_roles, n_channels=n_channels if independent else 1)
    if surprise.kind == "novelty":
        scale = _ranges(runs)
    if surprise.kind == "level":
        scale = _level_scale(runs, roles, surprise)
    surprise = replace(surprise, scale=scale)
    model = DetectorModel(core, surprise, independent=independent, n_channels=n_channels).eval()
    scores = [np.full(len(run), np.nan, np.float32) for run in runs]
    for stretch in walk(model, runs, None, pace=Pace(deterministic)):  # type: ignore[arg-type]
        for y, lane in zip(unpacked(stretch.y)[1], stretch.lanes, strict=True):
            scores[lane][stretch.row : stretch.row + len(y)] = y
    held = [score[part == CALIBRATE] for score, part in zip(scores, roles, strict=True)]
    return Trained(model, history, held)


def least_alpha(scores: list[NDArray[np.float32]], wanted: float) -> float:
    """Give a share of rows that these scores can support: as wanted, or the least that they can."""
    parts = [part[~np.isnan(part)] for part in scores]
    n = sum(map(len, parts))
    time = max((integrated_time(part) for part in parts if len(part)), default=1.0)
    # A little more than half of the independent rows that it takes, so that no warning is due.
    return float(min(max(wanted, 1 / (n + 1), 1 / (1.9 * n / time + 1)), 0.5))


def _units(rows: NDArray[np.float32], role: NDArray[np.int8]) -> NDArray[np.float32]:
    """Deviation of each channel over the training rows; any positive number where it never moved."""
    inside = rows[role == TRAIN].astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a channel without a value
        unit = np.nanstd(inside, axis=0) if len(inside) else np.ones(rows.shape[1])
        size = np.nanmean(np.abs(inside), axis=0) if len(inside) else np.ones(rows.shape[1])
    size = np.where(size > 0, size, 1.0)
    return np.where(unit > 1e-7 * size, unit, size).astype(np.float32)


def _ranges(runs: list[NDArray[np.float32]]) -> tuple[float, ...]:
    """Give highest less lowest value of each channel; 0 of one without a value."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        width = np.nanmax(rows := np.concatenate(runs), axis=0) - np.nanmin(rows, axis=0)
    return tuple(np.nan_to_num(width).tolist())


def _level_scale(
    runs: list[NDArray[np.float32]], roles: list[NDArray[np.int8]], surprise: Surprise
) -> tuple[float, ...]:
    """Give the .99 quantile of the smoothed distances from the level, of each channel, on training rows."""
    keep, rate = 0.5 ** (1 / surprise.smooth) if surprise.smooth else 0.0, 1 - 0.5 ** (1 / surprise.span)
    found = []
    for run, role in zip(runs, roles, strict=True):
        off, level, n = np.zeros(run.shape), np.zeros(run.shape[1]), np.zeros(run.shape[1])
        for i, row in enumerate(run.astype(np.float64)):
            there = np.isfinite(row)
            away = np.where(there & (n > 0), row - level, 0.0)
            off[i] = np.where(there, keep * off[i - 1] + (1 - keep) * away, off[i - 1]) if i else 0.0
            level = np.where(n > 0, level + np.maximum(1 / (n + 1), rate) * away, np.where(there, row, 0.0))
            n = n + there
        off[~np.isfinite(run)] = np.nan
        found.append(np.abs(off[(role == TRAIN) & (np.arange(len(run)) >= len(run) // 4)]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a channel without a value
        # Of each series by itself: one that was off all along must not widen the scale of the others.
        highs = [np.nanquantile(one, 0.99, axis=0) for one in found if len(one)] or [np.zeros(runs[0].shape[1])]
        high, spread = np.nanquantile(highs, 0.75, axis=0), np.nanstd(np.concatenate(runs), axis=0)
    return tuple(np.nan_to_num(np.maximum(high, 1e-3 * spread)).astype(np.float32).tolist())


def _scale(
    core: SensorModel, lanes: list[NDArray[np.float32]], roles: list[NDArray[np.int8]], *, n_channels: int
) -> tuple[float, ...]:
    """Give the root mean square of the errors one row ahead, of each channel; that of the series with the least."""
    median = core.config.quantiles.index(0.5)
    square = np.zeros((len(lanes), lanes[0].shape[1]))
    count = np.zeros_like(square)
    for stretch in walk(core, lanes, None):
        for y, lane in zip(stretch.y[:, :, 0, :, median], stretch.lanes, strict=True):
            ahead = slice(stretch.row + 1, stretch.row + 1 + len(y))
            came, is_training = lanes[lane][ahead], roles[lane][ahead] == TRAIN
            error = (came - y[: len(came)]).astype(np.float64)[is_training]
            square[lane] += np.nansum(np.square(error), axis=0)
            count[lane] += np.isfinite(error).sum(axis=0)
    rms = np.where(count > 0, np.sqrt(square / np.maximum(count, 1)), np.inf)
    if n_channels > 1:  # lanes are (series, channel)
        rms = rms.reshape(-1, n_channels)
    least = np.where(rms > 0, rms, np.inf).min(axis=0)
    return tuple(float(one) for one in np.where(np.isfinite(least), least, 0.0).astype(np.float32))
