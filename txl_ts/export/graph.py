"""The model in the form of a graph: no loops, no branches, the contract's names, memory that is read where it lies.

The forward pass of :class:`~txl_ts.model.TXLModel` puts the memory in time order and cuts rows into phases and blocks,
whose number depends on the call. A graph cannot, and copies of the memory are what a step costs. Here every row asks
all slots of the ring as they lie and the rows of the call, and slots that it does not see weigh nothing. The numbers
are the same.

There are two forms. The dynamic one takes any number of lanes and rows: rows ask the ring as it was, then it is
written. The fixed one takes one row of one lane: the row is written first, and asks the new ring alone.
"""

from __future__ import annotations

import copy
import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txl_ts.attention import Far
from txl_ts.backbone import Layer
from txl_ts.embeddings import beside_of, row_inputs
from txl_ts.errors import ExportError
from txl_ts.memory import Fifo, Kept
from txl_ts.memory.far import advance, attended, kept_of
from txl_ts.model import TorchState, TXLModel, far_of, is_memory, restarted

# A score that weighs nothing, and lets no number that memory can hold through.
_HIDDEN = -1e30


class StreamGraph(nn.Module):
    """``(x, start, beside…, past…) → (y, present…)`` with the sizes and weights of a model.

    ``beside…`` are the inputs of :func:`~txl_ts.embeddings.row_inputs`, where the model has columns beside the target.

    Parameters
    ----------
    model : TXLModel
    fixed : bool
        Take one row of one lane per call.
    """

    def __init__(self, model: TXLModel, *, fixed: bool = False) -> None:
        super().__init__()
        model.config.check_any_split("a graph's client")
        if model.config.attend_zeros:
            raise ExportError(
                "attend_zeros=True has no graph: slots that hold nothing would have to be written first. "
                "Take attend_zeros=False, or step the model in torch."
            )
        self.model, self.fixed = copy.deepcopy(model).eval(), fixed
        self.model.normaliser.in_graph = True
        if self.model.beside is not None and self.model.beside.amounts:
            self.model.beside.normaliser.in_graph = True
        self.names = [spec.name for spec in self.model.stream_specs()]
        self.beside = list(row_inputs(model.config))
        self.layers = nn.ModuleList(_Layer(cast(Layer, layer)) for layer in self.model.backbone.layers)

    def forward(self, x: Tensor, start: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        """Give y (B, T, h, C, Q) and the state tensors, moved on; see the contract in ``docs/onnx.md``."""
        n_lanes, n_rows = x.shape[:2]
        model, n_beside = self.model, len(self.beside)
        beside = beside_of(dict(zip(self.beside, rest[:n_beside], strict=True)), x)
        state: TorchState = restarted(dict(zip(self.names, rest[n_beside:], strict=True)), start)
        front, norm, rows = model.front(x, state["norm"], state["rows"], None)
        tokens, known, moved = front.tokens, None, {}
        if model.beside is not None and beside is not None:
            own = beside.futr
            if beside.ahead is not None:  # one pass over a row and those ahead of it: half the operations
                features = model.beside.futr(torch.cat([beside.futr[:, :, None], beside.ahead], dim=2))
                own, known = features[:, :, 0], features[:, :, 1:]
            added, moved = model.beside(beside, own, state, None)
            tokens = tokens + added
        memory, views = model.memory, {}  # one per length of memory
        h = tokens.reshape(n_lanes * n_rows, -1)
        rings, before, far = [], far_of(state), {}
        far_count = before.get("far_count")
        if far_count is not None and model.backbone.far is not None:
            far["far_count"] = advance(far_count, n_rows=n_rows, far=model.backbone.far)
        for i, (layer, (keys, values)) in enumerate(zip(self.layers, model.rings(state), strict=True)):
            window = memory.of(i)
            if window.mem_len not in views:
                views[window.mem_len] = (_FixedView if self.fixed else _View)(window, state["count"], n_rows=n_rows)
            view = views[window.mem_len]
            h, *ring, kept = layer(h, keys, values, view, kept_of(before, i), far_count)
            far |= {f"far_{name}_{i}": tensor for name, tensor in kept.items()}
            rings += ring
        hidden = model.backbone.norm(h).reshape(n_lanes, n_rows, -1)
        y = front.scale.restore(model.read_out(hidden, model.linear_path(front.lookback), known, as_law=False))
        count = memory.advance(state["count"], n_rows=n_rows)
        small = {"count": count, "norm": norm, "rows": rows, **far} | moved
        names = (name for name in self.names if is_memory(name))
        after = dict(zip(names, rings, strict=True)) | small
        return y, *(after[name] for name in self.names)


class _Layer(nn.Module):
    """One layer over flat rows (B · T, D), with what does not change any more multiplied out."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        attention = layer.attention
        self.layer, self.n_heads = layer, attention.n_heads
        layer.dropout = nn.Identity()  # type: ignore[assignment]
        layer.activation = _gelu if layer.activation is F.gelu else layer.activation
        scale = 1 / math.sqrt(attention.d_head)
        with torch.no_grad():
            weight = torch.cat([attention.query.weight * scale, attention.key_value.weight])
            self.register_buffer("project", weight.T.contiguous())  # (D, 3 · D)
            self.register_buffer("table", attention.position_keys().transpose(1, 2).contiguous())  # (H, K, M + 1)
            self.register_buffer("u", (attention.u * scale)[:, None].contiguous())
            self.register_buffer("v", (attention.v * scale)[:, None].contiguous())
        self.project: Tensor
        self.table: Tensor
        self.u: Tensor
        self.v: Tensor

    def forward(
        self, h: Tensor, keys: Tensor, values: Tensor, view: _View, kept: Kept, far_count: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Kept]:
        layer, n_heads = self.layer, self.n_heads
        normed = layer.ready(h)
        rows = (normed @ self.project).reshape(view.n_lanes, view.n_rows, 3 * n_heads, -1)
        query, key, value = rows.transpose(1, 2).split(n_heads, dim=1)  # (B, H, T, K) each
        position = view.by_slot((query + self.v) @ self.table)
        shape = (view.n_lanes, view.n_rows, h.shape[1])
        rings: list[Tensor] = []

        def attend(far: Far | None, first: int, end: int) -> Tensor:
            """Give the layer's output, (B, T, D); the rings are those of the last time, after all that was read."""
            beyond = None if far is None else (far, layer.attention.far_scores(query, far))
            heads, *rings[:] = view.attend(query + self.u, position, (key, value), (keys, values), beyond)
            heads = heads if far is None else layer.attention.with_sums(heads, query, far)
            rows = heads.transpose(1, 2).reshape(view.n_lanes * view.n_rows, -1)
            return layer.after(h, layer.attention.output(rows)).reshape(shape)

        if layer.far is None:
            y = attend(None, 0, view.n_rows)
        else:
            far, count, attention = layer.far, far_count, layer.attention
            y, kept = attended(far, normed.reshape(shape), kept, count, attention, attend, layer.ready, in_graph=True)
        return y.reshape(h.shape), rings[0], rings[1], kept


class _View:
    """What the rows of one call see, and where they are written: shared by all layers.

    A row sees slots of its own phase whose row is at most ``stride · mem_len`` rows back, and the rows of the call by
    the same rule. Columns are the slots of the ring as they lie, then the rows of the call.
    """

    def __init__(self, memory: Fifo, count: Tensor, *, n_rows: int) -> None:
        self.memory, self.n_lanes, self.n_rows = memory, count.shape[0], n_rows
        valid, phase = count[:, :1], count[:, 1:]
        slot, row = (torch.arange(n, dtype=count.dtype, device=count.device) for n in (memory.n_slots, n_rows))
        age = torch.remainder(phase - 1 - slot, memory.n_slots) + 1  # (B, N): rows before the call's first
        shape = (self.n_lanes, n_rows, n_rows)
        back = torch.cat([age[:, None] + row[:, None], (row[:, None] - row).expand(shape)], dim=2)  # (B, T, N + T)
        filled = torch.cat([(age <= valid)[:, None].expand(-1, n_rows, -1), (back[..., -n_rows:] >= 0)], dim=2)
        self._see(filled, back)
        # Of more rows than the ring holds, the last are kept: a slot is written once.
        self.skipped = torch.sym_max(n_rows - memory.n_slots, 0)
        self.slot = torch.remainder(phase + row[self.skipped :], memory.n_slots)[:, None].long()  # (B, 1, T)

    def _see(self, filled: Tensor, back: Tensor) -> None:
        """Set which columns (B, T, n) each row sees, and which entry of the position table is theirs."""
        memory = self.memory
        visible = filled & (back <= memory.n_rows)
        if memory.stride > 1:
            visible = visible & (torch.remainder(back, memory.stride) == 0)
        entry = memory.mem_len - torch.div(back, memory.stride, rounding_mode="trunc")
        self.visible = visible[:, None]  # (B, 1, T, n)
        self.entry = entry.clamp(0, memory.mem_len)[:, None].long()

    def by_slot(self, position: Tensor) -> Tensor:
        """Bring scores by distance (B, H, T, M + 1), farthest first, to their columns."""
        return position.gather(3, self.entry.expand(-1, position.shape[1], -1, -1))

    def attend(
        self,
        query: Tensor,
        position: Tensor,
        new: tuple[Tensor, Tensor],
        old: tuple[Tensor, Tensor],
        beyond: tuple[Far, Tensor] | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Give heads (B, H, T, K) and the rings after the new rows.

        Parameters
        ----------
        query : Tensor of shape (B, H, T, K)
        position : Tensor of shape (B, H, T, n)
        new : keys and values of the call's rows, of shape (B, H, T, K)
        old : the same of the ring, of shape (B, H, N, K)
        beyond : the far memory and the scores of its slots, (B, H, T, F), if there is one
        """
        score = torch.cat([query @ ring.transpose(-1, -2) for ring in (old[0], new[0])], dim=-1) + position
        weight, far = self._weights(score, beyond)
        n_slots = self.memory.n_slots
        heads = weight[..., :n_slots] @ old[1] + weight[..., n_slots:] @ new[1]
        heads = heads if far is None else heads + far
        # Where the new ring takes the place of the old one, it may be written only after the old one was read: a sum
        # with nothing makes that an order that no scheduler can change.
        after = 0 * heads
        keys, values = (self._written(ring, rows + after) for ring, rows in zip(old, new, strict=True))
        return heads, keys, values

    def _weights(self, score: Tensor, beyond: tuple[Far, Tensor] | None) -> tuple[Tensor, Tensor | None]:
        """Give the weights of the columns (B, H, T, n), and the part of the heads that the far memory gives."""
        score = torch.where(self.visible, score, _HIDDEN)
        if beyond is None:
            return score.softmax(-1), None
        far, more = beyond
        weight = torch.cat([more, score], dim=-1).softmax(-1)
        n_far = more.shape[-1]
        return weight[..., n_far:], far.join(far.deal(weight[..., :n_far]) @ far.value)

    def _written(self, ring: Tensor, rows: Tensor) -> Tensor:
        lane = torch.arange(self.n_lanes, device=ring.device)[:, None, None]
        head = torch.arange(ring.shape[1], device=ring.device)[:, None]
        return torch.index_put(ring, (lane, head, self.slot), rows[:, :, self.skipped :])


class _FixedView(_View):
    """The same for one row of one lane: it is written first, so that the ring is all there is to see."""

    def __init__(self, memory: Fifo, count: Tensor, *, n_rows: int) -> None:
        self.memory, self.n_lanes, self.n_rows, self.skipped = memory, 1, 1, 0
        valid, phase = count[:, :1], count[:, 1:]
        slot = torch.arange(memory.n_slots, dtype=count.dtype, device=count.device)
        back = torch.remainder(phase - slot, memory.n_slots)[:, None]  # (1, 1, N)
        self._see(back <= valid[:, None], back)
        is_slot = memory.turn == memory.n_slots  # not where layers differ in length
        self.slot = (phase if is_slot else torch.remainder(phase, memory.n_slots))[:, None].long()

    def attend(
        self,
        query: Tensor,
        position: Tensor,
        new: tuple[Tensor, Tensor],
        old: tuple[Tensor, Tensor],
        beyond: tuple[Far, Tensor] | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Give heads (1, H, 1, K) and the rings after the new row; see :meth:`_View.attend`."""
        keys, values = (self._written(ring, rows) for ring, rows in zip(old, new, strict=True))
        weight, far = self._weights(query @ keys.transpose(-1, -2) + position, beyond)
        heads = weight @ values
        return heads if far is None else heads + far, keys, values


def _gelu(x: Tensor) -> Tensor:
    """Write the activation as the pattern that ONNX Runtime makes one operation of."""
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
