"""The recurrent backbone: pre-norm Transformer-XL layers over interleaved phases."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txl_ts.attention import RelativeAttention
from txl_ts.config import ModelConfig
from txl_ts.memory import Fifo


class Layer(nn.Module):
    """Attention over memory and segment, then a feed-forward part, both pre-norm and residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.d_model
        self.norm_attention, self.norm_forward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = RelativeAttention(d_model=width, n_heads=config.n_heads, mem_len=config.mem_len)
        self.forward_in, self.forward_out = nn.Linear(width, config.d_ff), nn.Linear(config.d_ff, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, past: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
        """Give the layer's output and the rows that its memory should keep.

        Parameters
        ----------
        x : Tensor of shape (B, T, D)
        past : Tensor of shape (B, M, n_kinds, D)
            What the memory kept: the layer's inputs (one kind: training, projected here with the current weights) or
            keys and values (two kinds: inference).
        visible : bool Tensor of shape (B, M)

        Returns
        -------
        output : Tensor of shape (B, T, D)
        rows : Tensor of shape (B, T, n_kinds, D)
        """
        normed = self.norm_attention(x)
        own = self.attention.project(normed)  # (B, T, 2, D)
        hidden_form = past.shape[2] == 1
        if hidden_form:
            past = self.attention.project(self.norm_attention(past[:, :, 0]))
        attended = self.attention(normed, torch.cat([past, own], dim=1), visible)
        y = x + self.dropout(attended)
        y = y + self.dropout(self.forward_out(F.gelu(self.forward_in(self.norm_forward(y)))))
        return y, x[:, :, None] if hidden_form else own


class Backbone(nn.Module):
    """Layers that each attend to their own memory; recurrence runs one layer down per segment."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(config.d_model)

    def forward(self, x: Tensor, mem: Tensor, count: Tensor, *, memory: Fifo) -> tuple[Tensor, Tensor, Tensor]:
        """Run rows through all layers and move the memory on.

        Parameters
        ----------
        x : Tensor of shape (B, T, D)
            Tokens, one per row.
        mem : Tensor of shape (B, L, n_kinds, n_slots, D)
        count : int32 Tensor of shape (B, 2)
        memory : Fifo
            The policy; its stride tells how many phases interleave in ``x``.

        Returns
        -------
        y : Tensor of shape (B, T, D)
        mem, count : Tensor
            As they came in, moved on by T rows.
        """
        n_rows, stride = x.shape[1], memory.stride
        n_phases = min(n_rows, stride)  # a call shorter than the stride touches only some phases
        pad = -n_rows % n_phases
        visible = _split(memory.visible(count), stride)[:, :n_phases].flatten(0, 1)  # (B · P, M)
        h = _split(F.pad(x, (0, 0, 0, pad)), n_phases).flatten(0, 1)  # (B · P, T / P, D)
        kept = []
        for i, layer in enumerate(self.layers):
            past = _split(memory.read(mem[:, i], count), stride)[:, :n_phases].flatten(0, 1)
            h, rows = layer(h, past, visible)
            # Rows of the padding never reach the memory.
            rows = _join(rows.unflatten(0, (len(x), n_phases)))[:, :n_rows]
            kept.append(memory.write(mem[:, i], count, rows))
        y = _join(self.norm(h).unflatten(0, (len(x), n_phases)))[:, :n_rows]
        return y, torch.stack(kept, dim=1), memory.advance(count, n_rows=n_rows)


def _split(rows: Tensor, n_phases: int) -> Tensor:
    """Deal rows out to phases: (B, n · P, …) to (B, P, n, …)."""
    return rows.unflatten(1, (rows.shape[1] // n_phases, n_phases)).transpose(1, 2)


def _join(rows: Tensor) -> Tensor:
    """Put phases back in time order: (B, P, n, …) to (B, n · P, …)."""
    return rows.transpose(1, 2).flatten(1, 2)
