"""The training loop: plain torch, lanes of segments, memory carried from step to step.

A run is a function of model, rows and settings: every epoch draws its own random numbers from (seed, epoch), dropout
from torch's generator, whose state is part of a checkpoint. A run that stops at any step and goes on is bit for bit the
run that did not stop.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from txl_ts.embeddings import Units
from txl_ts.heads import QuantileHead
from txl_ts.losses import LOSSES, forecast_loss, mean_over
from txl_ts.model import Front, TorchState, TXLModel, forgotten
from txl_ts.training.epochs import History, copied, descend, note_hops, optimiser_of
from txl_ts.training.pieces import Step, schedule
from txl_ts.training.segments import Origins, Segment, segments
from txl_ts.training.settings import TrainingSettings, check_segment
from txl_ts.training.unroll import in_steps, unrolled

_VALIDATION_ROWS = 512
_VALIDATION_LANES = 32


@dataclass
class Progress:
    """Where a run stands; with weights, optimiser and lanes, all that a checkpoint needs.

    Attributes
    ----------
    step : int
        Steps done in the current epoch.
    loss_sum : float
        Sum of their losses.
    lanes : dict of Tensor
        Training state of the lanes after that step; empty at the start of an epoch.
    best : dict of Tensor
        The best weights so far; empty without validation rows.
    """

    history: History = field(default_factory=History)
    step: int = 0
    loss_sum: float = 0.0
    lanes: TorchState = field(default_factory=dict)
    best: dict[str, Tensor] = field(default_factory=dict)


class Trainer:
    """Trains the recurrent path; the linear path stays as its closed form left it.

    Parameters
    ----------
    model : TXLModel
        Trained in place.
    train : Origins
    validation : Origins or None
        Rows that choose the epoch. None trains for all epochs and keeps the last weights.
    settings : TrainingSettings
    """

    def __init__(self, model: TXLModel, train: Origins, validation: Origins | None, settings: TrainingSettings) -> None:
        self.model, self.train, self.validation, self.settings = model, train, validation, settings
        stride = model.config.stride
        check_segment(settings, model.backbone.far)
        self.hops = settings.hops(model.config)
        self.n_lanes = max(min(len(train.pieces), settings.batch_size), 1)
        self.n_phases = min(stride, max(settings.batch_size // self.n_lanes, 1))
        self.n_rows = settings.segment_len * stride
        self._rows_per_step = self.n_lanes * self.n_rows * settings.bptt_segments
        # An epoch walks each piece by some of its phases, and has enough steps to be worth a look at the validation.
        self.n_passes = 1
        per_pass = max(self._count_steps(), 1)
        phases = min(stride, settings.phases_per_epoch)
        self.n_passes = max(round(phases / self.n_phases), -(-settings.least_steps // per_pass), 1)
        self.n_steps = self._count_steps()
        # The closed form of the linear path minimises squared errors: for that loss there is nothing left to learn.
        for parameter in model.linear_path.parameters():
            parameter.requires_grad_(parameter.requires_grad and not LOSSES[settings.loss].squared)
        self.optimiser = optimiser_of(model, "linear_path", settings)
        self.progress = Progress()

    def run(self, after_step: Callable[[], None] | None = None) -> History:
        """Train from where ``progress`` stands to the end, and leave the best weights in the model.

        Parameters
        ----------
        after_step : callable, optional
            Called after each step and each epoch; what it raises ends the run.
        """
        progress, history = self.progress, self.progress.history
        if self.validation and not history.validation:
            history.validation.append(self.validation_loss())
            progress.best = copied(self.model.state_dict())
        with tqdm(
            total=self.settings.max_epochs * self.n_steps * self._rows_per_step,
            initial=(history.epochs * self.n_steps + progress.step) * self._rows_per_step,
            disable=not self.settings.verbose,
            desc="training",
            unit="row",
            unit_scale=True,
        ) as bar:
            while history.epochs < self.settings.max_epochs and not history.is_patience_over(self.settings.patience):
                self._epoch(after_step, bar)
        if progress.best:
            self.model.load_state_dict(progress.best)
        else:
            history.best_epoch = history.epochs
        self.model.eval()
        return history

    def validation_loss(self) -> float:
        """Loss of the current weights on the validation rows."""
        if self.validation is None:
            return math.nan
        self.model.eval()
        total, count = 0.0, 0.0
        with torch.inference_mode():
            for segment, front, z, picked in _forecasts(self.model, self.validation):
                usable, weight = segment.targets(picked, front.scale)[1], segment.target_weights(picked)
                n = float((usable if weight is None else usable * weight).sum())
                total += float(self._loss(segment, front, z, picked)) * n
                count += n
        return total / count if count else math.nan

    def validation_errors(self) -> tuple[float, float]:
        """Mean squared and mean absolute error of the point forecast on the validation rows, in raw units."""
        if self.validation is None:
            return math.nan, math.nan
        config = self.model.config
        # A law's location is its median; of counts it is taken for it, since exact medians of all rows take minutes.
        median = config.quantiles.index(0.5) if config.distribution == "none" else 0
        square, absolute, count = 0.0, 0.0, 0
        with torch.inference_mode():
            for segment, front, z, picked in _forecasts(self.model, self.validation):
                target, usable = segment.targets(picked, front.scale)
                level = front.scale.mean + front.scale.rest
                point = level[:, :, None] + z[..., median] * front.scale.deviation[:, :, None]
                if front.scale.units != Units():
                    shift, back = front.scale.shift[:, :, None], front.scale.units.back
                    target, point = back(target + shift), back(point + shift)
                error = (target - point)[usable].double()
                square += float(error.square().sum())
                absolute += float(error.abs().sum())
                count += len(error)
        return (square / count, absolute / count) if count else (math.nan, math.nan)

    def _epoch(self, after_step: Callable[[], None] | None, bar: tqdm) -> None:
        progress, history = self.progress, self.progress.history
        rng = np.random.default_rng([self.settings.random_state, history.epochs])
        phases = torch.from_numpy(rng.permutation(self.model.config.stride)[: self.n_phases].copy())
        if not progress.lanes:
            progress.lanes = self.model.init_visits(self.n_lanes, n_phases=self.n_phases)
        self.model.train()
        n = self.settings.bptt_segments
        steps = itertools.islice(self._schedule(rng), progress.step * n, None)
        for some in in_steps(segments(self.train, steps, n_rows=self.n_rows, h=self.model.config.h), n=n):
            progress.loss_sum += self._step(some, phases)
            progress.step += 1
            bar.update(self._rows_per_step)
            if after_step:
                after_step()
        history.train.append(progress.loss_sum / max(progress.step, 1))
        note_hops(history, self.hops, self.settings)
        if self.validation:
            history.validation.append(self.validation_loss())
            bar.set_postfix(validation=f"{history.validation[-1]:.4f}")
            if history.validation[-1] < history.validation[history.best_epoch]:
                history.best_epoch, progress.best = history.epochs, copied(self.model.state_dict())
        progress.step, progress.loss_sum, progress.lanes = 0, 0.0, {}
        if after_step:
            after_step()

    def _step(self, some: list[Segment], phases: Tensor) -> float:
        forward = partial(self._forward, phases=phases)
        total, n, self.progress.lanes = unrolled(
            some,
            self.progress.lanes,
            forward,
            self.hops,
            checkpoint_activations=self.settings.checkpoint_activations,
        )
        loss = total / n
        history = self.progress.history
        done = history.epochs * self.n_steps + self.progress.step
        descend(
            self.model,
            self.optimiser,
            loss,
            self.settings,
            part=(done + 1) / (self.settings.max_epochs * self.n_steps),
            epoch=history.epochs,
            where="the target",
        )
        return float(loss.detach())

    def _forward(self, segment: Segment, lanes: TorchState, *, phases: Tensor) -> tuple[Tensor, Tensor, TorchState]:
        """Give the mean loss of a segment, which counts for one, and the lanes moved on."""
        if not self.settings.carry_memory:
            lanes = forgotten(lanes)
        z, front, lanes = self.model.forward_visits(segment.x, lanes, phases, segment.start, beside=segment.beside)
        picked = (torch.arange(self.settings.segment_len)[:, None] * self.model.config.stride + phases).flatten()
        loss = self._loss(segment, front, z, picked)
        return loss, torch.ones_like(loss), lanes

    def _loss(self, segment: Segment, front: Front, z: Tensor, picked: Tensor) -> Tensor:
        scale = front.scale
        target, usable = segment.targets(picked, scale)
        if not isinstance(self.model.head, QuantileHead):
            return self._likelihood(segment, front, z, picked)
        return forecast_loss(
            (scale.mean + scale.rest)[:, :, None, :, None] + z * scale.deviation[:, :, None, :, None],
            target,
            quantiles=self.model.config.quantiles,
            deviation=scale.deviation,
            unit=segment.unit,
            level=scale.shift.expand_as(scale.mean),
            usable=usable,
            loss=LOSSES[self.settings.loss],
            weight=segment.target_weights(picked),
        )

    def _likelihood(self, segment: Segment, front: Front, z: Tensor, picked: Tensor) -> Tensor:
        """Mean negative log-likelihood of a law."""
        scale, head = front.scale, self.model.head
        assert not isinstance(head, QuantileHead)
        target, usable = segment.targets(picked, scale)
        level = scale.mean + scale.rest
        # Where nothing came: what was expected, so that no gradient of it is infinite.
        expected = level[:, :, None] + z[..., 0] * scale.deviation[:, :, None]
        target = torch.where(usable, target, expected.detach())
        if head.is_of_counts:  # all others are measured above the lane's first value, where float32 keeps its digits
            target, level = target + scale.shift[:, :, None], level + scale.shift
        unit = segment.unit.reshape(len(segment.unit), 1, 1, -1)
        terms = head.nll(z, target, level=level[:, :, None], deviation=scale.deviation[:, :, None], unit=unit)
        return mean_over(terms, usable, segment.target_weights(picked))

    def _schedule(self, rng: np.random.Generator) -> Iterator[Step]:
        return schedule(
            self.train.pieces,
            n_lanes=self.n_lanes,
            n_passes=self.n_passes,
            n_rows=self.n_rows,
            stride=self.model.config.stride,
            rng=rng,
        )

    def _count_steps(self) -> int:
        """Count the steps of an epoch; cuts differ between epochs by a step at most, which only the schedule sees."""
        n_segments = sum(1 for _ in self._schedule(np.random.default_rng(self.settings.random_state)))
        return -(-n_segments // self.settings.bptt_segments)


def _forecasts(model: TXLModel, origins: Origins) -> Iterator[tuple[Segment, Front, Tensor, Tensor]]:
    """Forecast from every row, all phases, in large segments."""
    stride, h = model.config.stride, model.config.h
    n_lanes = min(len(origins.pieces), _VALIDATION_LANES)
    n_rows = max(_VALIDATION_ROWS // stride, 1) * stride
    state = model.init_visits(n_lanes, n_phases=stride)
    phases, picked = torch.arange(stride), torch.arange(n_rows)
    steps = schedule(
        origins.pieces,
        n_lanes=n_lanes,
        n_passes=1,
        n_rows=n_rows,
        stride=1,
        jump=False,
        rng=np.random.default_rng(0),
    )
    for segment in segments(origins, steps, n_rows=n_rows, h=h):
        z, front, state = model.forward_visits(segment.x, state, phases, segment.start, beside=segment.beside)
        yield segment, front, z, picked
