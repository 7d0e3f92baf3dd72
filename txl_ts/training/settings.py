"""How to train: plain numbers, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from txl_ts.config import check_choice, check_integer, check_number
from txl_ts.errors import ParameterError
from txl_ts.losses import LOSSES
from txl_ts.memory import FarMemory


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
    carry_memory: bool = True
    random_state: int = 0
    verbose: bool = False

    # Not offered to users: no data set of the benchmarks asked for other values.
    warm_up: float = 0.1
    clip_norm: float = 1.0
    phases_per_epoch: int = 8
    least_steps: int = 30

    def __post_init__(self) -> None:
        for name, least in (("max_epochs", 0), ("batch_size", 1), ("segment_len", 1), ("patience", 1)):
            check_integer(name, getattr(self, name), at_least=least)
        check_integer("random_state", self.random_state, at_least=0)
        if check_number("learning_rate", self.learning_rate, at_least=0, below=math.inf, example=1e-3) == 0:
            raise ParameterError(
                "learning_rate=0 must be positive. Take for example 1e-3, or max_epochs=0 not to train."
            )
        check_number("weight_decay", self.weight_decay, at_least=0, below=math.inf, example=1e-2)
        check_choice("loss", self.loss, tuple(LOSSES))


def check_segment(segment_len: int, far: FarMemory | None) -> None:
    """Raise ParameterError where a far memory would never learn what to keep.

    What a block leaves gets its gradient from the rows after it in the same segment.
    """
    if far is not None and far.has_state and segment_len <= far.block:
        raise ParameterError(
            f"segment_len={segment_len} must be longer than the {far.block} rows between two updates of the memory, "
            f"better several times as long. Take for example segment_len={4 * far.block}."
        )
