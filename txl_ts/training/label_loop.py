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

from txl_ts.errors import TrainingError
from txl_ts.label_model import LabelModel
from txl_ts.training.labelled import LabelRows, LabelSegment, label_segments
from txl_ts.training.loop import History
from txl_ts.training.settings import TrainingSettings, check_segment

_VALIDATION_LANES = 64
_VALIDATION_ROWS = 256
# The linear path has its closed form already and learns this much more slowly than the rest.
_LINEAR_PACE = 0.1


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
        check_segment(settings.segment_len, model.backbone.far)
        longest = int((train.stop - train.first).max())
        self.n_rows = min(settings.segment_len, longest)
        reach = model.config.reach
        # One long series keeps all lanes busy if it is cut; a piece much longer than the reach loses little by it.
        self.train = train.cut(n_pieces=settings.batch_size, least=max(4 * self.n_rows, 2 * reach))
        self.n_lanes = max(min(len(self.train), settings.batch_size), 1)
        self.n_passes = 1
        self.n_passes = -(-settings.least_steps // max(self._count_steps(), 1))
        self.n_steps = self._count_steps()
        linear = list(model.row_path.parameters())
        others = [parameter for name, parameter in model.named_parameters() if not name.startswith("row_path.")]
        self.optimiser = torch.optim.AdamW(
            [
                {"params": others, "pace": 1.0},
                {"params": linear, "pace": _LINEAR_PACE, "weight_decay": 0.0},
            ],
            settings.learning_rate,
            weight_decay=settings.weight_decay,
            foreach=False,
        )
        self.history = History()

    def run(self) -> History:
        """Train to the end, and leave the best weights in the model."""
        history, best = self.history, {}
        if self.validation is not None:
            history.validation.append(self.validation_loss())
            best = _copied(self.model.state_dict())
        with tqdm(
            total=self.settings.max_epochs * self.n_steps,
            disable=not self.settings.verbose,
            desc="training",
            unit="step",
        ) as bar:
            while history.epochs < self.settings.max_epochs and not self._is_patience_over():
                history.train.append(self._epoch(bar))
                if self.validation is None:
                    continue
                history.validation.append(self.validation_loss())
                bar.set_postfix(validation=f"{history.validation[-1]:.4f}")
                if history.validation[-1] < history.validation[history.best_epoch]:
                    history.best_epoch, best = history.epochs, _copied(self.model.state_dict())
        if best:
            self.model.load_state_dict(best)
        else:
            history.best_epoch = history.epochs
        self.model.eval()
        return history

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
        self.model.train()
        for step, segment in enumerate(self._segments(rng)):
            if not self.settings.carry_memory:
                state = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
            z, state = self.model.forward_rows(segment.x, state, segment.start)
            loss, weight = label_loss(z, segment)
            bar.update()
            if not float(weight):
                continue
            self._step(loss / weight, step)
            total, count = total + float(loss.detach()), count + float(weight)
        return total / count if count else math.nan

    def _step(self, loss: Tensor, step: int) -> None:
        if not bool(loss.isfinite()):
            raise TrainingError(
                f"the loss became {float(loss.detach())} in epoch {self.history.epochs + 1}. "
                f"Lower learning_rate (it is {self.settings.learning_rate:g}), or look for absurd values in X or y."
            )
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
        part = (self.history.epochs * self.n_steps + step + 1) / (self.settings.max_epochs * self.n_steps)
        part = min(part, 1.0)  # cuts differ between epochs by a step
        rate = self.settings.learning_rate * min(1.0, part / self.settings.warm_up) * (1 + math.cos(math.pi * part)) / 2
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["pace"]
        self.optimiser.step()

    def _segments(self, rng: np.random.Generator) -> Iterator[LabelSegment]:
        return label_segments(
            self.train, n_lanes=self.n_lanes, n_rows=self.n_rows, n_passes=self.n_passes, jump=True, rng=rng
        )

    def _count_steps(self) -> int:
        longest_first = self.train.stop - self.train.first
        return max(-(-int((-(-longest_first // self.n_rows)).sum()) * self.n_passes // self.n_lanes), 1)

    def _is_patience_over(self) -> bool:
        history = self.history
        return self.validation is not None and history.epochs - history.best_epoch >= self.settings.patience


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


def _copied(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in weights.items()}
