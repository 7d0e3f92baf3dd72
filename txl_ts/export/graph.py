"""The model in the form of a graph: dynamic lanes and rows, no loops, no branches, the contract's names.

The forward pass of :class:`~txl_ts.model.TXLModel` cuts rows into phases and blocks, whose number depends on the call.
A graph cannot: here each row gathers its own ``mem_len + 1`` keys. The numbers are the same.
"""

from __future__ import annotations

import copy
import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txl_ts.backbone import Layer
from txl_ts.model import TXLModel, restarted


class StreamGraph(nn.Module):
    """``(x, start, past…) → (y, present…)`` with the sizes and weights of a model.

    Parameters
    ----------
    model : TXLModel
    """

    def __init__(self, model: TXLModel) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).eval()
        self.model.normaliser.in_graph = True
        # Weights do not change any more: the position table is projected once.
        self.layers = [cast(Layer, layer) for layer in self.model.backbone.layers]
        for i, layer in enumerate(self.layers):
            self.register_buffer(f"position_{i}", layer.attention.position_keys().detach(), persistent=False)

    def forward(
        self, x: Tensor, start: Tensor, mem: Tensor, count: Tensor, norm: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Give y (B, T, h, C, Q) and the four state tensors, moved on; see the contract in ``docs/onnx.md``."""
        small = restarted({"count": count, "norm": norm, "rows": rows}, start)
        count, norm, rows = small["count"], small["norm"], small["rows"]
        picked = torch.arange(x.shape[1], device=x.device)
        front, norm, rows = self.model.front(x, norm, rows, picked)
        h, kept = front.tokens, []
        ring = _Ring(self.model.config.stride, self.model.config.mem_len, count, n_rows=x.shape[1])
        for i, layer in enumerate(self.layers):
            h, memory = self._layer(layer, h, mem[:, i], ring, getattr(self, f"position_{i}"))
            kept.append(memory)
        hidden = self.model.backbone.norm(h)
        y = front.scale.restore(self.model.head(hidden, self.model.linear_path(front.lookback)))
        return y, torch.stack(kept, dim=1), self.model.memory.advance(count, n_rows=x.shape[1]), norm, rows

    def _layer(self, layer: Layer, x: Tensor, memory: Tensor, ring: _Ring, position: Tensor) -> tuple[Tensor, Tensor]:
        attention = layer.attention
        normed = layer.norm_attention(x)
        own = attention.project(normed)  # (B, T, 2, D)
        every = torch.cat([ring.in_order(memory), own.transpose(1, 2)], dim=2)  # (B, 2, N + T, D), oldest first
        window = every[:, :, ring.window]  # (B, 2, T, M + 1, D)
        key, value = window.unflatten(-1, (attention.n_heads, attention.d_head)).unbind(1)  # (B, T, M + 1, H, K)
        scale = 1 / math.sqrt(attention.d_head)
        query = attention.query(normed).unflatten(-1, (attention.n_heads, attention.d_head)) * scale  # (B, T, H, K)
        by_head = key.transpose(2, 3)  # (B, T, H, M + 1, K)
        score = (by_head @ (query + attention.u * scale)[..., None]).squeeze(-1)  # (B, T, H, M + 1)
        score = score + (position @ (query + attention.v * scale)[..., None]).squeeze(-1)
        score = torch.where(ring.visible[:, :, None], score, torch.full_like(score, -1e30))
        weight = torch.where(ring.visible[:, :, None], score.softmax(-1), torch.zeros_like(score))
        heads = (weight[..., None, :] @ value.transpose(2, 3)).squeeze(-2)  # (B, T, H, K)
        y = x + attention.output(heads.flatten(2))
        y = y + layer.forward_out(F.gelu(layer.forward_in(layer.norm_forward(y))))
        return y, ring.written(every)


class _Ring:
    """Where rows lie in the ring, for one call: shared by all layers."""

    def __init__(self, stride: int, mem_len: int, count: Tensor, *, n_rows: int) -> None:
        self.n_slots, self.n_rows = stride * (mem_len + 1), n_rows
        device = count.device
        slot = torch.arange(self.n_slots, dtype=torch.int32, device=device)
        valid, phase = count[:, :1], count[:, 1:]
        self._order = torch.remainder(phase + slot, self.n_slots).long()  # (B, N): the oldest slot is the next to write
        row = torch.arange(n_rows, device=device)[:, None]
        back = torch.arange(mem_len, -1, -1, device=device) * stride
        self.window = row + self.n_slots - back  # (T, M + 1), farthest first
        self.visible = self.window >= (self.n_slots - valid[:, :, None])  # (B, T, M + 1)
        # Slot s holds after the call the newest row that belongs to it.
        self._source = torch.remainder(slot - phase - n_rows, self.n_slots).long()  # (B, N), among the last N rows

    def in_order(self, memory: Tensor) -> Tensor:
        """Give the ring (B, 2, N, D), oldest row first."""
        return _take(memory, self._order)

    def written(self, every: Tensor) -> Tensor:
        """Give the ring (B, 2, N, D) after all rows (B, 2, N + T, D)."""
        return _take(every[:, :, self.n_rows :], self._source)  # of the newest N rows


def _take(rows: Tensor, index: Tensor) -> Tensor:
    """Pick rows (B, 2, N, D) of each lane by (B, N): whole rows are copied, where a gather would copy numbers."""
    n_lanes, n_kinds, n_rows, width = rows.shape
    lane = torch.arange(n_lanes, device=rows.device)[:, None, None] * n_kinds
    kind = torch.arange(n_kinds, device=rows.device)[None, :, None]
    return rows.reshape(n_lanes * n_kinds * n_rows, width)[(lane + kind) * n_rows + index[:, None]]
