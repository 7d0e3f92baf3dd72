"""What the memory bench trains: every policy at equal bytes of state, beside rivals of equal weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from txl_ts.bench.memory_rivals import Convolutional, Recurrent, Windowed, count, of_equal_weights
from txl_ts.bench.memory_tasks import MemoryTask
from txl_ts.errors import ParameterError
from txl_ts.label_model import LabelConfig, LabelModel

SEGMENT_LEN = 16
# Reach 2 × 16 rows: lags of 32 reaches are 1,024 rows.
SIZES: Mapping[str, Any] = MappingProxyType(
    {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 64, "mem_len": SEGMENT_LEN}
)
REACH = SIZES["n_layers"] * SIZES["mem_len"]


@dataclass(frozen=True)
class Policy:
    """A memory policy under test.

    Parameters
    ----------
    name : str
        As it stands in the table.
    params : mapping
        Fields of :class:`~txl_ts.label_model.LabelConfig` beside ``SIZES``: ``memory`` and what gives it as many bytes
        of state as the others.
    bptt_segments : int
        Segments that the gradient runs through, where the policy's own state carries one.
    """

    name: str
    params: dict[str, Any] = field(default_factory=dict)  # not a proxy: other processes get it
    bptt_segments: int = 1


# Bytes of state of a window of SEGMENT_LEN visits, shared out: a shorter window, and slots beyond it. The row and its
# window see the whole block that is not absorbed yet; compressive gives that up for slots, since it learns no hop from
# layer to layer. Gradients run through two segments where one taught too little.
_WINDOW, _BLOCK = 7, 8
POLICIES = (
    Policy("fifo"),
    Policy("sinks", {"memory": "sinks"}),
    Policy(
        "compressive",
        {"memory": "compressive", "mem_len": 3, "memory_params": {"n_slots": 18, "every": 8, "block": _BLOCK}},
        2,
    ),
    Policy(
        "two_rate", {"memory": "two_rate", "mem_len": _WINDOW, "memory_params": {"n_slots": 10, "every": _BLOCK}}, 2
    ),
    Policy("gated", {"memory": "gated", "mem_len": _WINDOW, "memory_params": {"n_slots": 10, "block": _BLOCK}}),
    Policy(
        "importance", {"memory": "importance", "mem_len": _WINDOW, "memory_params": {"n_slots": 9, "block": _BLOCK}}
    ),
    Policy("tokens", {"memory": "tokens", "mem_len": _WINDOW, "memory_params": {"n_slots": 10, "block": _BLOCK}}, 2),
    Policy("linear", {"memory": "linear", "mem_len": _WINDOW, "memory_params": {"block": _BLOCK}}),
    Policy("same_layer", {"memory": "same_layer", "mem_len": _BLOCK, "memory_params": {"block": _BLOCK}}, 2),
)
RIVALS = ("GRU", "LSTM", "TCN", "window Transformer")


@dataclass(frozen=True)
class Contender:
    """A model that is trained.

    Attributes
    ----------
    name : str
    make : callable
        Task → untrained model.
    bptt_segments : int or None
        None: the span that the task asks for.
    params : mapping
        Of the policy.
    """

    name: str
    make: Callable[[MemoryTask], Any]
    bptt_segments: int | None = 1
    params: Mapping[str, Any] = field(default_factory=dict)


def contenders(policies: Sequence[Policy] = POLICIES, rivals: Sequence[str] = RIVALS) -> list[Contender]:
    """Give what is trained: each policy, then the rivals."""
    made = [Contender(f"TXL, {p.name}", partial(txl, params=p.params), p.bptt_segments, p.params) for p in policies]
    known = {
        "GRU": Contender("GRU", partial(recurrent, kind="gru"), None),
        "LSTM": Contender("LSTM", partial(recurrent, kind="lstm"), None),
        "TCN": Contender("TCN", convolutional),
        "window Transformer": Contender("window Transformer", window_transformer),
    }
    if unknown := [name for name in rivals if name not in known]:
        raise ParameterError(f"rivals={unknown} are not known. Choose among {list(known)}.")
    return made + [known[name] for name in rivals]


def txl(task: MemoryTask, *, params: Mapping[str, Any] = MappingProxyType({})) -> LabelModel:
    """Our model for a task."""
    head = "classes" if task.n_classes else "values"
    return row_model(n_channels=task.n_channels, n_outputs=task.n_outputs, head=head, **params)


def row_model(*, n_channels: int = 1, n_outputs: int = 1, head: str = "values", **params: Any) -> LabelModel:
    """Our model, without a linear path: one token per row, a memory of ``mem_len`` rows per layer.

    Parameters
    ----------
    n_channels, n_outputs : int
    head : {"values", "classes"}
    **params
        Other fields of :class:`~txl_ts.label_model.LabelConfig`, before those of ``SIZES``.
    """
    config = LabelConfig(
        patch_len=1,
        lookback=0,
        half_life=2,  # not used
        scaler="standard",  # never fitted: rows are taken as they are
        n_channels=n_channels,
        head=head,
        n_outputs=n_outputs,
        **{**SIZES, **params},
    )
    return LabelModel(config)


def recurrent(task: MemoryTask, *, kind: str) -> Any:
    """Two layers of equal weights."""
    sizes = {"n_channels": task.n_channels, "n_outputs": task.n_outputs}
    return of_equal_weights(lambda width: Recurrent(kind, width=width, **sizes), count(txl(task)))


def convolutional(task: MemoryTask) -> Any:
    """Dilated convolutions of equal weights that reach twice as far as FIFO."""
    n_layers = max(int(math.log2(2 * REACH + 2)), 1)
    sizes = {"n_channels": task.n_channels, "n_outputs": task.n_outputs, "n_layers": n_layers}
    return of_equal_weights(lambda width: Convolutional(width=width, **sizes), count(txl(task)))


def window_transformer(task: MemoryTask) -> Windowed:
    """Our layers over a window as long as a training segment, as the paper's baseline has it."""
    return Windowed(txl(task), window=SEGMENT_LEN)
