"""Training of a model of sensors: several channels a row, forecasts of some steps ahead, on the rows that may be used.

First a ridge per channel, then the quantiles of what it leaves, both from one pass over the rows; then epochs of the
pinball loss, as for forecasts. All rows are walked; which of them are targets to train on, and which choose the epoch,
is said by their role.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from txl_ts.embeddings import Scale
from txl_ts.losses import pinball
from txl_ts.model import Front, TorchState, TXLModel, restarted
from txl_ts.training.closed_form import PENALTIES
from txl_ts.training.epochs import History, count_steps, descend, optimiser_of, run_epochs
from txl_ts.training.pieces import Pieces, schedule
from txl_ts.training.settings import TrainingSettings
from txl_ts.training.unroll import in_steps, unrolled

TRAIN, CHOOSE = 0, 2
"""Roles of rows: targets to train on, targets that choose the epoch; others are walked alone."""

_SEGMENT_ROWS, _LANES = 256, 16
# Rows whose running deviation is more than this many units give no more gradient than one with this many.
_LARGEST_RATIO = 20.0
# Errors that the first quantiles are taken from, per channel and step.
_MOST_ERRORS = 20_000
_LEAST_ERRORS = 100
_LEAST_STEP = 1e-3


@dataclass(frozen=True)
class SensorRows:
    """Rows of all series, behind each other.

    Attributes
    ----------
    values : float32 array of shape (N, C)
        NaN where missing.
    role : int8 array of shape (N,)
        ``TRAIN``, ``CHOOSE``, or anything else.
    first, stop : int64 array of shape (n,)
        Rows of each series.
    unit : float32 array of shape (n, C)
        What errors are measured in; positive.
    """

    values: NDArray[np.float32]
    role: NDArray[np.int8]
    first: NDArray[np.int64]
    stop: NDArray[np.int64]
    unit: NDArray[np.float32]

    def cut(self, *, n_pieces: int, least: int) -> SensorRows:
        """Cut long series, each piece with an empty memory of its own, until there are about ``n_pieces``."""
        length = self.stop - self.first
        size = max(least, -(-int(length.sum()) // n_pieces))
        parts = np.maximum(length // size, 1)
        edges = [
            np.linspace(a, b, n + 1).astype(np.int64) for a, b, n in zip(self.first, self.stop, parts, strict=True)
        ]
        first, stop = (np.concatenate([e[s] for e in edges]) for s in (slice(None, -1), slice(1, None)))
        return SensorRows(self.values, self.role, first, stop, np.repeat(self.unit, parts, axis=0))


@dataclass(frozen=True)
class SensorSegment:
    """The same rows of all lanes.

    Attributes
    ----------
    x : Tensor of shape (B, T, C)
    ahead : Tensor of shape (B, T + h, C)
        The same rows and those after them; NaN from the end of the series on.
    role : Tensor of shape (B, T + h)
    start : bool Tensor of shape (B, 1)
    unit : Tensor of shape (B, C)
    """

    x: Tensor
    ahead: Tensor
    role: Tensor
    start: Tensor
    unit: Tensor

    def targets(self, scale: Scale, steps: Sequence[int], role: int) -> tuple[Tensor, Tensor]:
        """Give targets above the lane's shift (B, T, n, C) of these steps ahead, 0 where they do not count; which."""
        n_rows = self.x.shape[1]
        index = torch.arange(n_rows)[:, None] + torch.tensor(steps)
        target = self.ahead[:, index] - scale.shift[:, :, None]
        usable = target.isfinite() & (self.role[:, index] == role)[..., None] & scale.known[:, :, None]
        return torch.where(usable, target, torch.zeros_like(target)), usable


def segments(
    rows: SensorRows, *, n_lanes: int, n_rows: int, h: int, n_passes: int, jump: bool, rng: np.random.Generator
) -> Iterator[SensorSegment]:
    """Walk lanes along all series; memory is O(lanes × rows)."""
    pieces = Pieces(rows.values[:, 0], rows.first, rows.stop, np.ones(len(rows.first), np.float32))
    for step in schedule(pieces, n_lanes=n_lanes, n_passes=n_passes, n_rows=n_rows, stride=1, rng=rng, jump=jump):
        idle = step.piece < 0
        stop = np.where(idle, 0, rows.stop[step.piece])
        index = step.row[:, None] + np.arange(n_rows + h)
        inside = index < stop[:, None]
        index = np.where(inside, index, 0)
        ahead = torch.from_numpy(np.where(inside[..., None], rows.values[index], np.float32(np.nan)))
        yield SensorSegment(
            x=ahead[:, :n_rows],
            ahead=ahead,
            role=torch.from_numpy(np.where(inside, rows.role[index], np.int8(-1))),
            start=torch.from_numpy((step.row == step.begun) | idle)[:, None],
            unit=torch.from_numpy(rows.unit[step.piece]),
        )


# -------------------------------------------------------------------------------------------------------- closed form


@torch.no_grad()
def fit_channel_path(model: TXLModel, rows: SensorRows, *, seed: int) -> None:
    """Fit ``model.linear_path`` as a ridge per channel, and start the head at the quantiles of what it leaves.

    The penalty of each channel is that with the least squared error on the rows that choose; without any, a middle one.

    Parameters
    ----------
    model : TXLModel
        With a ``ChannelPath``; changed in place.
    rows : SensorRows
    seed : int

    References
    ----------
    Hoerl and Kennard (1970), Ridge regression.
    """
    path, h = model.linear_path, model.config.h
    channels, n = model.config.n_channels, path.lookback + 1
    train, choose = (_Sums(channels, n, h) for _ in range(2))
    for segment, front in _fronts(model, rows, seed=seed):
        for sums, role in ((train, TRAIN), (choose, CHOOSE)):
            sums.add(*_equations(segment, front, role, h=h))
    weights = train.solved(PENALTIES)  # (P, C, n, h)
    error = choose.error(weights) if float(choose.count.min()) >= _LEAST_ERRORS else train.error(weights)
    best = error.argmin(dim=0)  # (C,)
    if float(choose.count.min()) < _LEAST_ERRORS:
        best = torch.full_like(best, len(PENALTIES) // 2)
    chosen = weights[best, torch.arange(channels)]  # (C, n, h)
    chosen[train.count < 2 * n] = 0  # too few rows to learn from: the last value
    path.weight.copy_(chosen[:, :-1].transpose(1, 2))
    if path.lookback:  # inputs and targets were counted from the last value
        path.weight[..., -1] += 1 - path.weight.sum(dim=2)
    path.bias.copy_(chosen[:, -1])
    _start_head(model, rows, CHOOSE if float(choose.count.min()) >= _LEAST_ERRORS else TRAIN, seed=seed)


class _Sums:
    """Normal equations of all channels and steps."""

    def __init__(self, channels: int, n: int, h: int) -> None:
        self.gram = torch.zeros(channels, n, n, dtype=torch.float64)
        self.cross = torch.zeros(channels, n, h, dtype=torch.float64)
        self.square = torch.zeros(channels, h, dtype=torch.float64)
        self.count = torch.zeros(channels)

    def add(self, inputs: Tensor, target: Tensor, usable: Tensor) -> None:
        """Sum rows: inputs (C, m, n), targets (C, m, h), both 0 where not usable (C, m)."""
        self.gram += (inputs.transpose(1, 2) @ inputs).double()
        self.cross += (inputs.transpose(1, 2) @ target).double()
        self.square += target.square().sum(dim=1).double()
        self.count += usable.sum(dim=1)

    def solved(self, penalties: Sequence[float]) -> Tensor:
        """Give the maps (P, C, n, h)."""
        n = self.gram.shape[-1]
        size = self.gram.diagonal(dim1=1, dim2=2)[:, :-1].mean(dim=1).clamp(min=1e-12) if n > 1 else self.count + 1.0
        ridge = torch.diag(torch.tensor([1.0] * (n - 1) + [0.0], dtype=torch.float64))  # the bias is free
        floor = 1e-9 * torch.eye(n, dtype=torch.float64)
        systems = [self.gram + (penalty * ridge + floor) * size[:, None, None] for penalty in penalties]
        return torch.stack([torch.linalg.solve(system, self.cross) for system in systems]).float()

    def error(self, weights: Tensor) -> Tensor:
        """Give the squared errors (P, C) of maps (P, C, n, h)."""
        w = weights.double()
        fitted = (w * (self.gram @ w)).sum(2) - 2 * (w * self.cross).sum(2)
        return (self.square + fitted).sum(-1)


def _fronts(model: TXLModel, rows: SensorRows, *, seed: int) -> Iterator[tuple[SensorSegment, Front]]:
    n_lanes = min(len(rows.first), _LANES)
    state = model.init_visits(n_lanes, n_phases=1)
    picked = torch.arange(_SEGMENT_ROWS)
    for segment in segments(
        rows,
        n_lanes=n_lanes,
        n_rows=_SEGMENT_ROWS,
        h=model.config.h,
        n_passes=1,
        jump=False,
        rng=np.random.default_rng(seed),
    ):
        state = restarted(state, segment.start)
        front, state["norm"], state["rows"] = model.front(segment.x, state["norm"], state["rows"], picked)
        yield segment, front


def _equations(segment: SensorSegment, front: Front, role: int, *, h: int) -> tuple[Tensor, Tensor, Tensor]:
    """Give inputs (C, m, n), targets (C, m, h) above the last value, and which rows have all of their targets."""
    scale = front.scale
    target, usable = segment.targets(scale, range(1, h + 1), role)
    usable = usable.all(dim=2) & (scale.deviation > 0)  # (B, T, C)
    deviation = torch.where(scale.deviation > 0, scale.deviation, torch.ones_like(scale.deviation))
    z = (target - (scale.mean + scale.rest)[:, :, None]) / deviation[:, :, None]  # (B, T, h, C)
    weight = (deviation / segment.unit[:, None]).clamp(max=_LARGEST_RATIO) * usable
    last = front.lookback[..., -1:] if front.lookback.shape[-1] else torch.zeros_like(deviation)[..., None]
    inputs = torch.cat([front.lookback - last, torch.ones_like(last)], dim=-1) * weight[..., None]  # (B, T, C, n)
    moved = (z.transpose(2, 3) - last).clamp(-20, 20) * weight[..., None]  # (B, T, C, h)
    by_channel = [one.permute(2, 0, 1, *range(3, one.ndim)).flatten(1, 2) for one in (inputs, moved, usable)]
    return by_channel[0], by_channel[1], by_channel[2]


def _start_head(model: TXLModel, rows: SensorRows, role: int, *, seed: int) -> None:
    """Start the head at the quantiles of the linear path's errors, in deviations, of each step and channel."""
    config = model.config
    levels, h, channels = list(config.quantiles), config.h, config.n_channels
    errors: list[Tensor] = []
    n_found = 0
    for segment, front in _fronts(model, rows, seed=seed):
        scale = front.scale
        target, usable = segment.targets(scale, range(1, h + 1), role)
        usable = usable & (scale.deviation > 0)[:, :, None]
        deviation = torch.where(scale.deviation > 0, scale.deviation, torch.ones_like(scale.deviation))
        z = (target - (scale.mean + scale.rest)[:, :, None]) / deviation[:, :, None]
        error = torch.where(usable, z - model.linear_path(front.lookback), torch.full_like(z, torch.nan))
        kept = error.flatten(0, 1)[usable.flatten(0, 1).any(dim=(1, 2))]
        errors.append(kept)
        n_found += len(kept)
        if n_found >= _MOST_ERRORS:
            break
    if not n_found:
        return
    found = torch.cat(errors)[:_MOST_ERRORS]  # (m, h, C)
    enough = (found.isfinite().sum(dim=0) >= 2 * len(levels))[None]
    quantiles = torch.nanquantile(found, torch.tensor(levels), dim=0)  # (Q, h, C)
    middle = levels.index(0.5)
    step = quantiles.diff(dim=0).clamp(min=_LEAST_STEP)
    width = torch.cat([step[:middle], torch.ones(1, h, channels), step[middle:]])
    raw = torch.log(torch.expm1(width))
    raw[middle] = quantiles[middle]
    bias = model.head.linear.bias.view(h, channels, len(levels))
    bias.copy_(torch.where(enough, raw, bias.permute(2, 0, 1)).permute(1, 2, 0))


# ------------------------------------------------------------------------------------------------------------ epochs


class SensorTrainer:
    """Trains a model of sensors, in place.

    Parameters
    ----------
    model : TXLModel
    rows : SensorRows
        Rows that choose the epoch are among them; without any, all epochs are trained.
    steps : sequence of int
        Steps ahead whose forecasts are trained.
    settings : TrainingSettings
    """

    def __init__(self, model: TXLModel, rows: SensorRows, steps: Sequence[int], settings: TrainingSettings) -> None:
        self.model, self.whole, self.steps, self.settings = model, rows, list(steps), settings
        self.hops = settings.hops(model.config)
        longest = int((rows.stop - rows.first).max())
        self.n_rows = min(settings.segment_len, longest)
        # One long series keeps all lanes busy if it is cut; a piece much longer than the reach loses little by it.
        self.train = rows.cut(n_pieces=settings.batch_size, least=max(4 * self.n_rows, 2 * model.config.reach))
        self.n_lanes = max(min(len(self.train.first), settings.batch_size), 1)
        self.n_passes = 1
        self.n_passes = max(1, -(-settings.least_steps // max(self._count_steps(), 1)))
        self.n_steps = self._count_steps()
        self.has_choice = bool((rows.role == CHOOSE).sum() >= _LEAST_ERRORS)
        self.optimiser = optimiser_of(model, "linear_path", settings)
        self.history = History()

    def run(self) -> History:
        """Train to the end, and leave the best weights in the model."""
        return run_epochs(
            self.model,
            self.settings,
            self.history,
            n_steps=self.n_steps,
            epoch=self._epoch,
            validation_loss=self.validation_loss if self.has_choice else None,
            hops=self.hops,
        )

    def validation_loss(self) -> float:
        """Loss of the current weights on the rows that choose."""
        self.model.eval()
        total, count = 0.0, 0.0
        n_lanes = min(len(self.whole.first), _LANES)
        state = self.model.init_visits(n_lanes, n_phases=1)
        phase = torch.zeros(1, dtype=torch.int64)
        walk = segments(
            self.whole,
            n_lanes=n_lanes,
            n_rows=_SEGMENT_ROWS,
            h=self.model.config.h,
            n_passes=1,
            jump=False,
            rng=np.random.default_rng(0),
        )
        with torch.inference_mode():
            for segment in walk:
                z, front, state = self.model.forward_visits(segment.x, state, phase, segment.start)
                loss, n = self._loss(segment, front.scale, z, CHOOSE)
                total, count = total + float(loss), count + float(n)
        return total / count if count else math.nan

    def _epoch(self, bar: tqdm) -> float:
        rng = np.random.default_rng([self.settings.random_state, self.history.epochs])
        state, total, count = self.model.init_visits(self.n_lanes, n_phases=1), 0.0, 0.0
        how = self.settings.checkpoint_activations
        self.model.train()
        walk = segments(
            self.train,
            n_lanes=self.n_lanes,
            n_rows=self.n_rows,
            h=self.model.config.h,
            n_passes=self.n_passes,
            jump=True,
            rng=rng,
        )
        for step, some in enumerate(in_steps(walk, n=self.settings.bptt_segments)):
            loss, n, state = unrolled(some, state, self._forward, self.hops, checkpoint_activations=how)
            bar.update()
            if not float(n):
                continue
            self._step(loss / n, step)
            total, count = total + float(loss.detach()), count + float(n)
        return total / count if count else math.nan

    def _forward(self, segment: SensorSegment, state: TorchState) -> tuple[Tensor, Tensor, TorchState]:
        phase = torch.zeros(1, dtype=torch.int64)
        z, front, state = self.model.forward_visits(segment.x, state, phase, segment.start)
        return *self._loss(segment, front.scale, z, TRAIN), state

    def _loss(self, segment: SensorSegment, scale: Scale, z: Tensor, role: int) -> tuple[Tensor, Tensor]:
        """Sum the pinball losses, in units of each channel, and count the targets."""
        target, usable = segment.targets(scale, self.steps, role)
        picked = z[:, :, [step - 1 for step in self.steps]]  # (B, T, n, C, Q)
        said = (scale.mean + scale.rest)[:, :, None, :, None] + picked * scale.deviation[:, :, None, :, None]
        error = torch.where(usable[..., None], target[..., None] - said, torch.zeros_like(said))
        unit = torch.maximum(segment.unit[:, None], scale.deviation / _LARGEST_RATIO)[:, :, None, :, None]
        levels = self.model.config.quantiles
        return (pinball(error, levels) / unit).sum() / len(levels), usable.sum()

    def _step(self, loss: Tensor, step: int) -> None:
        epoch, steps = self.history.epochs, self.settings.max_epochs * self.n_steps
        part = min((epoch * self.n_steps + step + 1) / steps, 1.0)  # cuts differ between epochs by a step
        descend(self.model, self.optimiser, loss, self.settings, part=part, epoch=epoch, where="X")

    def _count_steps(self) -> int:
        lengths = (self.train.stop - self.train.first).tolist()
        sizes = {"n_rows": self.n_rows, "n_passes": self.n_passes, "n_lanes": self.n_lanes}
        return count_steps(lengths, **sizes, n_segments=self.settings.bptt_segments)
