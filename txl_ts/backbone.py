"""The recurrent backbone: Transformer-XL layers over interleaved phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txl_ts.attention import Far, RelativeAttention
from txl_ts.config import ModelConfig
from txl_ts.memory import FarMemory, Fifo, Kept, far_memory
from txl_ts.memory.far import advance, attended, far_specs, kept_of
from txl_ts.state import TensorSpec

# What one layer keeps: hidden rows, or keys and values.
Rows = tuple[Tensor, ...]


class Gate(nn.Module):
    """Mix what a part of a layer found into its rows, as a GRU takes an input into its state.

    Parameters
    ----------
    width : int

    References
    ----------
    Parisotto et al. (2019), Stabilizing transformers for reinforcement learning (arXiv 1910.06764), section 3.2: the
    part's output goes through a ReLU, and a bias of 2 lets training begin close to the identity.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_new = nn.Linear(width, 3 * width, bias=False)
        self.of_old = nn.Linear(width, 2 * width, bias=False)
        self.candidate = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.full((width,), 2.0))

    def forward(self, x: Tensor, new: Tensor) -> Tensor:
        """Give rows (…, D) between ``x`` and what ``new`` makes of it."""
        reset, update, candidate = self.of_new(new.relu()).chunk(3, dim=-1)
        old_reset, old_update = self.of_old(x).chunk(2, dim=-1)
        update = (update + old_update - self.bias).sigmoid()
        candidate = (candidate + self.candidate((reset + old_reset).sigmoid() * x)).tanh()
        return (1 - update) * x + update * candidate


class Layer(nn.Module):
    """Attention over memory and segment, then a feed-forward part, both residual; pre-norm unless the config asks."""

    def __init__(self, config: ModelConfig, *, mem_len: int) -> None:
        super().__init__()
        width = config.d_model
        self.norm_attention, self.norm_forward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = RelativeAttention(
            d_model=width,
            n_heads=config.n_heads,
            mem_len=mem_len,
            clamp_len=config.clamp_len,
            same_length=config.same_length,
        )
        self.far = far_memory(config)
        self.forward_in, self.forward_out = nn.Linear(width, config.d_ff), nn.Linear(config.d_ff, width)
        self.dropout = nn.Dropout(config.dropout)
        self.pre_lnorm, self.attend_zeros = config.pre_lnorm, config.attend_zeros
        self.activation: Callable[[Tensor], Tensor] = F.gelu if config.activation == "gelu" else F.relu
        self.gate_attention, self.gate_forward = (Gate(width) if config.gate == "gru" else None for _ in range(2))

    def ready(self, x: Tensor) -> Tensor:
        """Give what queries, keys and values of rows (…, D) are projected from."""
        return self.norm_attention(x) if self.pre_lnorm else x

    def after(self, x: Tensor, attended: Tensor) -> Tensor:
        """Join what rows (…, D) attended to, then what the feed-forward part makes of them."""
        y = self._joined(x, attended, self.gate_attention, self.norm_attention)
        inner = self.norm_forward(y) if self.pre_lnorm else y
        found = self.forward_out(self.activation(self.forward_in(inner)))
        return self._joined(y, found, self.gate_forward, self.norm_forward)

    def _joined(self, x: Tensor, found: Tensor, gate: Gate | None, norm: nn.LayerNorm) -> Tensor:
        found = self.dropout(found)
        y = x + found if gate is None else gate(x, found)
        return y if self.pre_lnorm else norm(y)

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
        normed = self.ready(x)
        own = self.attention.project(normed)
        hidden_form = len(past) == 1
        before = self.attention.project(self.ready(past[0][:, 0])) if hidden_form else past
        if self.attend_zeros:
            nothing = self.attention.project(self.ready(torch.zeros_like(x[:1, :1])))
            before = tuple(torch.where(visible[:, None, :, None], *pair) for pair in zip(before, nothing, strict=True))
            visible = torch.ones_like(visible)
        key, value = (torch.cat(pair, dim=2) for pair in zip(before, own, strict=True))
        n_before = visible.shape[1]
        filled = F.pad(visible, (0, x.shape[1]), value=True)

        def attend(far: Far | None, first: int, end: int) -> Tensor:
            """Give the layer's output at some rows of the call."""
            seen = slice(first, n_before + end)
            since = None if times is None else times[:, seen]
            window = filled[:, first : first + n_before]
            found = self.attention(normed[:, first:end], key[:, :, seen], value[:, :, seen], window, since, far)
            return self.after(x[:, first:end], found)

        if self.far is None:
            y, kept = attend(None, 0, x.shape[1]), {}
        else:
            y, kept = attended(self.far, normed, kept or {}, far_count, self.attention, attend, self.ready)
        return y, (x[:, None],) if hidden_form else own, kept


class Backbone(nn.Module):
    """Layers that each attend to their own memory; recurrence runs one layer down per segment."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, mem_len=config.mem_len_of(i)) for i in range(config.n_layers))
        if not config.untie_r:
            first, *others = (cast(Layer, layer).attention for layer in self.layers)
            for attention in others:
                attention.u, attention.v = first.u, first.v
        self.width = config.d_model
        self.norm = nn.LayerNorm(config.d_model) if config.pre_lnorm else nn.Identity()

    @property
    def far(self) -> FarMemory | None:
        """The first layer's far memory: all have the same sizes."""
        return cast(Layer, self.layers[0]).far

    def far_specs(self) -> tuple[TensorSpec, ...]:
        """Describe the state of the far memories."""
        return far_specs(self.far, n_layers=len(self.layers), d_model=self.width)

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
