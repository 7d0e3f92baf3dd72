"""What every training loop shares: the optimiser and its pace, one step down, epochs and the best of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from tqdm import tqdm

from txl_ts.errors import TrainingError
from txl_ts.training.hops import Hops
from txl_ts.training.settings import TrainingSettings

# The linear path learns this much more slowly than the rest. Decay would pull it from "the last value" to "the mean";
# Adam's full steps would shake hundreds of inputs far from their closed form (glucose: validation loss .247 alone, .274
# so, .232 at a tenth).
_LINEAR_PACE = 0.1


@dataclass
class History:
    """Losses of a run; entry 0 of ``validation`` is the linear path alone.

    Attributes
    ----------
    train : list of float
        Mean loss of each epoch, with dropout.
    validation : list of float
        Loss on the validation rows after each epoch; empty without validation rows.
    best_epoch : int
        The epoch whose weights were kept; 0 is the linear path alone.
    hop_norms : list of list of float
        With ``bptt_segments`` above 1: for each epoch the mean norm of the gradient that passed each hop between the
        segments of a step, in time order, as ``memory_gradient`` left it and before ``memory_grad_clip``.
    """

    train: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    best_epoch: int = 0
    hop_norms: list[list[float]] = field(default_factory=list)

    @property
    def epochs(self) -> int:
        """Epochs that were finished."""
        return len(self.train)

    def is_patience_over(self, patience: int) -> bool:
        """Whether so many epochs have passed without a better validation loss."""
        return bool(self.validation) and self.epochs - self.best_epoch >= patience


def optimiser_of(model: nn.Module, linear: str, settings: TrainingSettings) -> torch.optim.AdamW:
    """Make the optimiser of a model, whose linear path (the module of that name) learns at a slower pace."""
    slow = list(model.get_submodule(linear).parameters())
    others = [parameter for name, parameter in model.named_parameters() if not name.startswith(f"{linear}.")]
    groups = [
        {"params": others, "pace": 1.0},
        {"params": slow, "pace": _LINEAR_PACE, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, settings.learning_rate, weight_decay=settings.weight_decay, foreach=False)


def descend(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    loss: Tensor,
    settings: TrainingSettings,
    *,
    part: float,
    epoch: int,
    where: str,
) -> None:
    """Take one step down, at the rate of so large a part of the run: a linear warm-up, then a cosine to 0.

    Raises
    ------
    TrainingError
        If the loss is not finite; ``where`` says in what absurd values may stand.
    """
    if not bool(loss.isfinite()):
        raise TrainingError(
            f"the loss became {float(loss.detach())} in epoch {epoch + 1}. "
            f"Lower learning_rate (it is {settings.learning_rate:g}), or look for absurd values in {where}."
        )
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
    rate = settings.learning_rate * min(1.0, part / settings.warm_up) * (1 + math.cos(math.pi * part)) / 2
    for group in optimiser.param_groups:
        group["lr"] = rate * group["pace"]
    optimiser.step()


def run_epochs(
    model: nn.Module,
    settings: TrainingSettings,
    history: History,
    *,
    n_steps: int,
    epoch: Callable[[tqdm], float],
    validation_loss: Callable[[], float] | None,
    hops: Hops,
) -> History:
    """Train for all epochs, or until patience is over, and leave the best weights in the model.

    Parameters
    ----------
    model : Module
    settings : TrainingSettings
    history : History
        Filled.
    n_steps : int
        Of an epoch.
    epoch : callable
        Trains for an epoch, tells the bar of each step, gives the mean loss.
    validation_loss : callable or None
        Without it the last weights stay.
    hops : Hops
        Whose norms go into the history.
    """
    best: dict[str, Tensor] = {}
    if validation_loss is not None:
        history.validation.append(validation_loss())
        best = copied(model.state_dict())
    with tqdm(total=settings.max_epochs * n_steps, disable=not settings.verbose, desc="training", unit="step") as bar:
        while history.epochs < settings.max_epochs and not history.is_patience_over(settings.patience):
            history.train.append(epoch(bar))
            note_hops(history, hops, settings)
            if validation_loss is None:
                continue
            history.validation.append(validation_loss())
            bar.set_postfix(validation=f"{history.validation[-1]:.4f}")
            if history.validation[-1] < history.validation[history.best_epoch]:
                history.best_epoch, best = history.epochs, copied(model.state_dict())
    if best:
        model.load_state_dict(best)
    else:
        history.best_epoch = history.epochs
    model.eval()
    return history


def note_hops(history: History, hops: Hops, settings: TrainingSettings) -> None:
    """Put the norms of an epoch into the history, where there are hops at all."""
    if settings.bptt_segments > 1:
        history.hop_norms.append(hops.means())


def count_steps(lengths: Sequence[int], *, n_rows: int, n_passes: int, n_lanes: int, n_segments: int) -> int:
    """Count the steps of an epoch over series of such lengths, ``n_segments`` of ``n_rows`` each in every lane."""
    in_lane = -(-sum(-(-int(length) // n_rows) for length in lengths) * n_passes // n_lanes)
    return max(-(-in_lane // n_segments), 1)


def copied(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy weights that training goes on to change."""
    return {name: tensor.clone() for name, tensor in weights.items()}
