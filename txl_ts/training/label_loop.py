"""The training loop for labels: lanes of segments with the memory carried along, as for forecasts.

A run is a function of model, rows and settings: every epoch draws its own random numbers from (seed, epoch), dropout
from torch's generator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from txl_ts.label_model import LabelModel
from txl_ts.model import TorchState
from txl_ts.training.epochs import History, count_steps, descend, optimiser_of, run_epochs
from txl_ts.training.labelled import LabelRows, LabelSegment, label_segments
from txl_ts.training.settings import TrainingSettings, check_segment
from txl_ts.training.unroll import in_steps, unrolled

_VALIDATION_LANES = 64
_VALIDATION_ROWS = 256


@dataclass(frozen=True, kw_only=True)
class LabelSettings(TrainingSettings):
    """Settings of one training run; ``segment_len`` is in rows, ``loss`` is not used (the head decides)."""

    least_steps: int = 4


class LabelTrainer:
    """Trains a model with labels, in place.

    Parameters
    ----------
    model : LabelModel
    train : LabelRows
    validation : LabelRows or None
        Runs that choose the epoch. None trains for all epochs and keeps the last weights.
    settings : LabelSettings
    """

    def __init__(
        self, model: LabelModel, train: LabelRows, validation: LabelRows | None, settings: LabelSettings
    ) -> None:
        self.model, self.validation, self.settings = model, validation, settings
        check_segment(settings, model.backbone.far)
        self.hops = settings.hops(model.config)
        longest = int((train.stop - train.first).max())
        self.n_rows = min(settings.segment_len, longest)
        reach = model.config.reach
        # One long series keeps all lanes busy if it is cut; a piece much longer than the reach loses little by it.
        self.train = train.cut(n_pieces=settings.batch_size, least=max(4 * self.n_rows, 2 * reach))
        self.n_lanes = max(min(len(self.train), settings.batch_size), 1)
        self.n_passes = 1
        self.n_passes = -(-settings.least_steps // max(self._count_steps(), 1))
        self.n_steps = self._count_steps()
        self.optimiser = optimiser_of(model, "row_path", settings)
        self.history = History()

    def run(self) -> History:
        """Train to the end, and leave the best weights in the model."""
        return run_epochs(
            self.model,
            self.settings,
            self.history,
            n_steps=self.n_steps,
            epoch=self._epoch,
            validation_loss=None if self.validation is None else self.validation_loss,
            hops=self.hops,
        )

    def validation_loss(self) -> float:
        """Loss of the current weights on the validation runs."""
        rows = self.validation
        if rows is None:
            return math.nan
        self.model.eval()
        total, count = 0.0, 0.0
        n_lanes = min(len(rows), _VALIDATION_LANES)
        state = self.model.init_rows(n_lanes)
        walk = label_segments(
            rows, n_lanes=n_lanes, n_rows=_VALIDATION_ROWS, n_passes=1, jump=False, rng=np.random.default_rng(0)
        )
        with torch.inference_mode():
            for segment in walk:
                z, state = self.model.forward_rows(segment.x, state, segment.start)
                loss, weight = label_loss(z, segment)
                total, count = total + float(loss), count + float(weight)
        return total / count if count else math.nan

    def _epoch(self, bar: tqdm) -> float:
        rng = np.random.default_rng([self.settings.random_state, self.history.epochs])
        state, total, count = self.model.init_rows(self.n_lanes), 0.0, 0.0
        how = self.settings.checkpoint_activations
        self.model.train()
        for step, some in enumerate(in_steps(self._segments(rng), n=self.settings.bptt_segments)):
            loss, weight, state = unrolled(some, state, self._forward, self.hops, checkpoint_activations=how)
            bar.update()
            if not float(weight):
                continue
            self._step(loss / weight, step)
            total, count = total + float(loss.detach()), count + float(weight)
        return total / count if count else math.nan

    def _forward(self, segment: LabelSegment, state: TorchState) -> tuple[Tensor, Tensor, TorchState]:
        if not self.settings.carry_memory:
            state = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        z, state = self.model.forward_rows(segment.x, state, segment.start)
        return *label_loss(z, segment), state

    def _step(self, loss: Tensor, step: int) -> None:
        epoch, steps = self.history.epochs, self.settings.max_epochs * self.n_steps
        part = min((epoch * self.n_steps + step + 1) / steps, 1.0)  # cuts differ between epochs by a step
        descend(self.model, self.optimiser, loss, self.settings, part=part, epoch=epoch, where="X or y")

    def _segments(self, rng: np.random.Generator) -> Iterator[LabelSegment]:
        return label_segments(
            self.train, n_lanes=self.n_lanes, n_rows=self.n_rows, n_passes=self.n_passes, jump=True, rng=rng
        )

    def _count_steps(self) -> int:
        lengths = (self.train.stop - self.train.first).tolist()
        sizes = {"n_rows": self.n_rows, "n_passes": self.n_passes, "n_lanes": self.n_lanes}
        return count_steps(lengths, **sizes, n_segments=self.settings.bptt_segments)


def label_loss(z: Tensor, segment: LabelSegment) -> tuple[Tensor, Tensor]:
    """Sum the weighted losses of a segment: cross entropy for classes, squared errors in deviations for values.

    Parameters
    ----------
    z : Tensor of shape (B, T, K)
    segment : LabelSegment
        Its values are in deviations already; NaN counts for nothing.

    Returns
    -------
    loss, weight : Tensor of shape ()
        The sum, and the weights in it.
    """
    weight = segment.weight
    if segment.target.ndim == 2:
        loss = F.cross_entropy(z.flatten(0, 1), segment.target.flatten(), reduction="none").unflatten(0, weight.shape)
        # where, before the product: rows beyond the end may give anything.
        return torch.where(weight > 0, loss, torch.zeros_like(loss)).mul(weight).sum(), weight.sum()
    there = segment.target.isfinite() & (weight > 0)[..., None]
    error = torch.where(there, z - torch.nan_to_num(segment.target), torch.zeros_like(z))
    share = weight[..., None] * there
    return (error.square() * share).sum(), share.sum()
