"""How to train: plain numbers, checked once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from txl_ts.config import ModelConfig, check_choice, check_integer, check_number
from txl_ts.errors import ParameterError
from txl_ts.losses import LOSSES
from txl_ts.memory import FarMemory
from txl_ts.training.hops import Hops

GRADIENTS: tuple[str, ...] = ("bptt_segments", "memory_gradient", "memory_grad_clip", "checkpoint_activations")
"""Settings of how gradients go from segment to segment."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings of one training run.

    Parameters
    ----------
    learning_rate : float
        Peak rate, reached after the warm-up; a cosine takes it to 0.
    weight_decay : float
    max_epochs : int
        0 leaves the linear path alone.
    batch_size : int
        Lanes (series × phases) in a step.
    segment_len : int
        Visits of a segment.
    patience : int
        Epochs without a better validation loss before training stops.
    loss : {"pinball", "squared", "mase", "owa"}
    bptt_segments : int
        Segments of a step, through which gradients run; 1 stops them at the segment, as Transformer-XL does.
    memory_gradient : float or tuple of float
        Share of the gradient that passes from a segment to the one before it, in [0, 1]; or one per place in the
        window, the newest row first.
    memory_grad_clip : float, optional
        Largest norm of the gradient that passes.
    checkpoint_activations : bool
        Compute each segment once more on the way back instead of keeping all its numbers; for long steps.
    carry_memory : bool
        False resets the memory at every segment; for comparisons.
    random_state : int
    verbose : bool
        Show a bar with the validation loss.
    """

    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    max_epochs: int = 10
    batch_size: int = 32
    segment_len: int = 24
    patience: int = 3
    loss: str = "pinball"
    bptt_segments: int = 1
    memory_gradient: float | Sequence[float] = 1.0
    memory_grad_clip: float | None = None
    checkpoint_activations: bool = False
    carry_memory: bool = True
    random_state: int = 0
    verbose: bool = False

    # Not offered to users: no data set of the benchmarks asked for other values.
    warm_up: float = 0.1
    clip_norm: float = 1.0
    phases_per_epoch: int = 8
    least_steps: int = 30

    def __post_init__(self) -> None:
        for name in ("batch_size", "segment_len", "patience", "bptt_segments"):
            check_integer(name, getattr(self, name), at_least=1)
        check_integer("max_epochs", self.max_epochs, at_least=0)
        check_integer("random_state", self.random_state, at_least=0)
        if check_number("learning_rate", self.learning_rate, at_least=0, below=math.inf, example=1e-3) == 0:
            raise ParameterError(
                "learning_rate=0 must be positive. Take for example 1e-3, or max_epochs=0 not to train."
            )
        check_number("weight_decay", self.weight_decay, at_least=0, below=math.inf, example=1e-2)
        check_choice("loss", self.loss, tuple(LOSSES))
        if not isinstance(self.checkpoint_activations, bool):
            raise ParameterError(f"checkpoint_activations={self.checkpoint_activations!r} must be True or False.")
        self._check_hops()

    def _check_hops(self) -> None:
        share, clip = self.memory_gradient, self.memory_grad_clip
        is_one = isinstance(share, str) or not isinstance(share, Sequence)
        shares = _share(share) if is_one else tuple(map(_share, share))  # type: ignore[arg-type]
        object.__setattr__(self, "memory_gradient", shares)
        if clip is not None and check_number("memory_grad_clip", clip, at_least=0, below=math.inf, example=1.0) == 0:
            raise ParameterError("memory_grad_clip=0 lets nothing pass. Take bptt_segments=1, or a positive number.")
        if self.bptt_segments == 1 and (shares != 1 or clip is not None):
            name, value = ("memory_grad_clip", clip) if shares == 1 else ("memory_gradient", share)
            raise ParameterError(
                f"{name}={value!r} is for gradients that go from segment to segment, and bptt_segments=1 lets none. "
                "Take bptt_segments=2 or more, or leave it out."
            )

    def hops(self, config: ModelConfig) -> Hops:
        """Make what gradients meet between the segments of a model of such sizes.

        Raises
        ------
        ParameterError
            If there is not one share per place of the window.
        """
        share = self.memory_gradient
        if isinstance(share, tuple) and len(share) != config.longest_mem_len:
            raise ParameterError(
                f"memory_gradient has {len(share)} numbers for mem_len={config.longest_mem_len}. Give one per place of "
                "the window, the newest row first, or one number for all."
            )
        return Hops(share, self.memory_grad_clip)

    def to_json(self) -> dict[str, Any]:
        """Give what tells this run from another, as plain JSON; a bar changes no number."""
        document = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if name != "verbose"
        }
        # Runs of before know only the defaults of these.
        return {name: value for name, value in document.items() if value != _NEWER.get(name, ...)} | {"verbose": False}


# Settings that came later, and what they were before there was a choice.
_NEWER = {"bptt_segments": 1, "memory_gradient": 1.0, "memory_grad_clip": None, "checkpoint_activations": False}


def _share(value: Any) -> float:
    share = check_number("memory_gradient", value, at_least=0, below=math.inf, example=0.5)
    if share > 1:
        raise ParameterError(f"memory_gradient={value!r} is a share and must lie in [0, 1].")
    return share


def check_segment(settings: TrainingSettings, far: FarMemory | None) -> None:
    """Raise ParameterError where a far memory would never learn what to keep.

    What a block leaves gets its gradient from the rows after it in the same step.
    """
    if far is not None and far.has_state and settings.segment_len * settings.bptt_segments <= far.block:
        raise ParameterError(
            f"segment_len={settings.segment_len} must be longer than the {far.block} rows between two updates of the "
            f"memory, better several times as long. Take for example segment_len={4 * far.block}."
        )
