"""The recurrent backbone: pre-norm Transformer-XL layers over interleaved phases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txl_ts.attention import RelativeAttention
from txl_ts.config import ModelConfig
from txl_ts.memory import FarMemory, Fifo, Kept, far_memory
from txl_ts.memory.far import advance, far_specs, kept_of, look
from txl_ts.state import TensorSpec

# What one layer keeps: hidden rows, or keys and values.
Rows = tuple[Tensor, ...]


class Layer(nn.Module):
    """Attention over memory and segment, then a feed-forward part, both pre-norm and residual."""

    def __init__(self, config: ModelConfig, *, mem_len: int) -> None:
        super().__init__()
        width = config.d_model
        self.norm_attention, self.norm_forward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = RelativeAttention(
            d_model=width, n_heads=config.n_heads, mem_len=mem_len, clamp_len=config.clamp_len
        )
        self.far = far_memory(config)
        self.forward_in, self.forward_out = nn.Linear(width, config.d_ff), nn.Linear(config.d_ff, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        past: Rows,
        visible: Tensor,
        times: Tensor | None = None,
        kept: Kept | None = None,
        far_count: Tensor | None = None,
    ) -> tuple[Tensor, Rows, Kept]:
        """Give the layer's output and the rows that its memory should keep.

        Parameters
        ----------
        x : Tensor of shape (B, T, D)
        past : tuple of Tensor of shape (B, H, M, K)
            What the memory kept: the layer's inputs as one head (training, projected here with the current weights),
            or keys and values (inference).
        visible : bool Tensor of shape (B, M)
        times : float64 Tensor of shape (B, M + T), optional
            When the rows came; see :class:`~txl_ts.attention.RelativeAttention`.
        kept : dict of Tensor, optional
            What the far memory kept, if there is one.
        far_count : int32 Tensor of shape (B, 2), optional
            Its counters.

        Returns
        -------
        output : Tensor of shape (B, T, D)
        rows : tuple of Tensor of shape (B, H, T, K)
        kept : dict of Tensor
            Moved on.
        """
        normed = self.norm_attention(x)
        own = self.attention.project(normed)
        hidden_form = len(past) == 1
        before = self.attention.project(self.norm_attention(past[0][:, 0])) if hidden_form else past
        key, value = (torch.cat(pair, dim=2) for pair in zip(before, own, strict=True))
        far, kept = None, kept or {}
        if self.far is not None:
            far, kept = look(self.far, normed, kept, far_count, self.attention)
        y = x + self.dropout(self.attention(normed, key, value, visible, times, far))
        y = y + self.dropout(self.forward_out(F.gelu(self.forward_in(self.norm_forward(y)))))
        return y, (x[:, None],) if hidden_form else own, kept


class Backbone(nn.Module):
    """Layers that each attend to their own memory; recurrence runs one layer down per segment."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, mem_len=config.mem_len_of(i)) for i in range(config.n_layers))
        self.norm = nn.LayerNorm(config.d_model)

    @property
    def far(self) -> FarMemory | None:
        """The first layer's far memory: all have the same sizes."""
        return cast(Layer, self.layers[0]).far

    def far_specs(self) -> tuple[TensorSpec, ...]:
        """Describe the state of the far memories."""
        return far_specs(self.far, n_layers=len(self.layers), d_model=self.norm.normalized_shape[0])

    def forward(
        self,
        x: Tensor,
        rings: Sequence[Rows],
        count: Tensor,
        *,
        memory: Fifo,
        times: Tensor | None = None,
        far: Kept | None = None,
    ) -> tuple[Tensor, list[Rows], Tensor, Kept]:
        """Run rows through all layers and move the memory on.

        Parameters
        ----------
        x : Tensor of shape (B, T, D)
            Tokens, one per row.
        rings : sequence of tuple of Tensor of shape (B, H, n_slots, K)
            For each layer its hidden rows, or its keys and values.
        count : int32 Tensor of shape (B, 2)
        memory : Fifo
            The policy; its stride tells how many phases interleave in ``x``.
        times : float64 Tensor of shape (B, M + T), optional
            When the rows of the memory and of ``x`` came; for a stride of 1.
        far : dict of Tensor, optional
            State of the far memories, as :meth:`far_specs` describes it; for a stride of 1.

        Returns
        -------
        y : Tensor of shape (B, T, D)
        rings, count, far
            As they came in, moved on by T rows.
        """
        n_rows, stride = x.shape[1], memory.stride
        n_phases = min(n_rows, stride)  # a call shorter than the stride touches only some phases
        pad = -n_rows % n_phases
        h = _split(F.pad(x, (0, 0, 0, pad))[:, None], n_phases).flatten(0, 1)[:, 0]  # (B · P, T / P, D)
        kept, far = [], far or {}
        far_count, moved = far.get("far_count"), {}
        if far_count is not None and self.far is not None:
            moved["far_count"] = advance(far_count, n_rows=n_rows, far=self.far)
        for i, (layer, ring) in enumerate(zip(self.layers, rings, strict=True)):
            window = memory.of(i)
            visible = _split(window.visible(count)[:, None, :, None], stride)[:, :n_phases].flatten(0, 1)[:, 0, :, 0]
            past = [_split(window.read(kind, count), stride)[:, :n_phases].flatten(0, 1) for kind in ring]
            since = None if times is None else times[:, memory.mem_len - window.mem_len :]
            h, rows, beyond = layer(h, tuple(past), visible, since, kept_of(far, i), far_count)
            moved |= {f"far_{name}_{i}": tensor for name, tensor in beyond.items()}
            # Rows of the padding never reach the memory.
            new = (_join(kind.unflatten(0, (len(x), n_phases)))[:, :, :n_rows] for kind in rows)
            kept.append(tuple(window.write(kind, count, part) for kind, part in zip(ring, new, strict=True)))
        y = _join(self.norm(h).unflatten(0, (len(x), n_phases))[:, :, None])[:, 0, :n_rows]
        return y, kept, memory.advance(count, n_rows=n_rows), moved


def _split(rows: Tensor, n_phases: int) -> Tensor:
    """Deal rows out to phases: (B, H, n · P, K) to (B, P, H, n, K)."""
    return rows.unflatten(2, (rows.shape[2] // n_phases, n_phases)).permute(0, 3, 1, 2, 4)


def _join(rows: Tensor) -> Tensor:
    """Put phases back in time order: (B, P, H, n, K) to (B, H, n · P, K)."""
    return rows.permute(0, 2, 3, 1, 4).flatten(2, 3)
