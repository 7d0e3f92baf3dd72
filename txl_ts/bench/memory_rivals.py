"""What a memory is compared with: GRU, LSTM and TCN of equal weights, and the same layer over a window.

All of them speak as :class:`~txl_ts.label_model.LabelModel` does in training: ``init_rows`` gives the state of lanes
that have seen nothing, ``forward_rows(x, state)`` gives answers at each row and the state moved on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txl_ts.label_model import LabelModel

TorchState = dict[str, Tensor]


class RowModel(Protocol):
    """A function ``(x, state) → (z, state)`` with weights."""

    def init_rows(self, n_lanes: int) -> TorchState: ...  # noqa: D102
    def forward_rows(self, x: Tensor, state: TorchState) -> tuple[Tensor, TorchState]: ...  # noqa: D102


class Recurrent(nn.Module):
    """GRU or LSTM over the rows, then a linear map.

    Parameters
    ----------
    kind : {"gru", "lstm"}
    n_channels, n_outputs, width, n_layers : int
    """

    def __init__(self, kind: str, *, n_channels: int, n_outputs: int, width: int, n_layers: int = 2) -> None:
        super().__init__()
        self.n_layers, self.width = n_layers, width
        self.names = ("hidden", "cell") if kind == "lstm" else ("hidden",)
        made = nn.LSTM if kind == "lstm" else nn.GRU
        self.core = made(n_channels, width, n_layers, batch_first=True)
        self.out = nn.Linear(width, n_outputs)

    def init_rows(self, n_lanes: int) -> TorchState:
        """Give the state of lanes that have seen nothing; the layer is the second axis."""
        return {name: torch.zeros(n_lanes, self.n_layers, self.width) for name in self.names}

    def forward_rows(self, x: Tensor, state: TorchState) -> tuple[Tensor, TorchState]:
        """Answer at each row of (B, T, C)."""
        past = tuple(state[name].transpose(0, 1).contiguous() for name in self.names)
        y, last = self.core(x, past if len(past) == 2 else past[0])
        last = last if isinstance(last, tuple) else (last,)
        return self.out(y), {name: t.transpose(0, 1) for name, t in zip(self.names, last, strict=True)}


class Convolutional(nn.Module):
    """Dilated causal convolutions with residuals (TCN); the state is the rows that each of them still needs.

    Parameters
    ----------
    n_channels, n_outputs, width : int
    n_layers : int
        Layer ``i`` looks ``2 · 2^i`` rows back: the reach is 2^(n_layers + 1) − 2 rows.

    References
    ----------
    Bai et al. (2018), An empirical evaluation of generic convolutional and recurrent networks (arXiv 1803.01271).
    """

    def __init__(self, *, n_channels: int, n_outputs: int, width: int, n_layers: int) -> None:
        super().__init__()
        self.width, self.back = width, [2 * 2**i for i in range(n_layers)]
        self.embed = nn.Linear(n_channels, width)
        self.convolutions = nn.ModuleList(nn.Conv1d(width, width, 3, dilation=2**i) for i in range(n_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(n_layers))
        self.out = nn.Linear(width, n_outputs)

    def init_rows(self, n_lanes: int) -> TorchState:
        """Give the state of lanes that have seen nothing."""
        return {f"rows_{i}": torch.zeros(n_lanes, n, self.width) for i, n in enumerate(self.back)}

    def forward_rows(self, x: Tensor, state: TorchState) -> tuple[Tensor, TorchState]:
        """Answer at each row of (B, T, C)."""
        h, moved = self.embed(x), {}
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            rows = torch.cat([state[f"rows_{i}"], norm(h)], dim=1)
            moved[f"rows_{i}"] = rows[:, -self.back[i] :]
            h = h + F.gelu(convolution(rows.transpose(1, 2)).transpose(1, 2))
        return self.out(h), moved


class Windowed(nn.Module):
    """The same layers without carried memory: each row answers from a window that ends with it.

    It is trained on segments whose first rows see nothing before them; judged, every row gets a full window of its own,
    which costs ``window`` rows of work per row.

    Parameters
    ----------
    model : LabelModel
    window : int
        Rows, the own one among them.

    References
    ----------
    Al-Rfou et al. (2019), Character-level language modeling with deeper self-attention (arXiv 1808.04444).
    """

    def __init__(self, model: LabelModel, *, window: int) -> None:
        super().__init__()
        self.model, self.window = model, window

    def init_rows(self, n_lanes: int) -> TorchState:
        """Give the state of lanes that have seen nothing: rows that are missing."""
        channels = self.model.config.n_channels
        return {"rows": torch.full((n_lanes, self.window - 1, channels), torch.nan)}

    def forward_rows(self, x: Tensor, state: TorchState) -> tuple[Tensor, TorchState]:
        """Answer at each row of (B, T, C)."""
        if self.training:
            return self.model.forward_rows(x, self.model.init_rows(len(x)))[0], state
        rows = torch.cat([state["rows"], x], dim=1)
        windows = rows.unfold(1, self.window, 1).transpose(2, 3)  # (B, T, window, C)
        z = torch.cat([self._last(part) for part in windows.split(max(4096 // len(x), 1), dim=1)], dim=1)
        return z, {"rows": rows[:, rows.shape[1] - self.window + 1 :]}

    def _last(self, windows: Tensor) -> Tensor:
        """Answer at the last row of each window; a window that begins before the episode begins with it."""
        lanes = windows.flatten(0, 1)  # (B · T, window, C)
        n_missing = lanes.isnan().all(dim=2).sum(dim=1)
        out = torch.empty(len(lanes), self.model.config.n_outputs)
        for n in n_missing.unique().tolist():
            of = n_missing == n
            part = lanes[of][:, n:]
            out[of] = self.model.forward_rows(part, self.model.init_rows(len(part)))[0][:, -1]
        return out.unflatten(0, windows.shape[:2])


class Forgetful(nn.Module):
    """A trained model whose memory is emptied at every call; for judging only.

    Parameters
    ----------
    model : LabelModel
    """

    def __init__(self, model: RowModel) -> None:
        super().__init__()
        self.model = model

    def init_rows(self, n_lanes: int) -> TorchState:
        """Give the state of lanes that have seen nothing."""
        return self.model.init_rows(n_lanes)

    def forward_rows(self, x: Tensor, state: TorchState) -> tuple[Tensor, TorchState]:
        """Answer at each row of (B, T, C)."""
        return self.model.forward_rows(x, self.model.init_rows(len(x)))


def of_equal_weights(make: Callable[[int], nn.Module], n_parameters: int) -> nn.Module:
    """Make a model of the width whose number of weights comes closest.

    Parameters
    ----------
    make : callable
        Width → model.
    n_parameters : int
    """
    low, high = 1, 2
    while count(make(high)) < n_parameters:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(make(middle)) < n_parameters else (low, middle)
    return min((make(low), make(high)), key=lambda model: abs(count(model) - n_parameters))


def count(model: nn.Module) -> int:
    """Count the weights of a model."""
    return sum(p.numel() for p in model.parameters())
