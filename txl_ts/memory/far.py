"""What a layer keeps beyond its window: slots that its rows attend to as well, updated on a grid of rows.

The rows of a stream are counted from its start and cut into blocks of ``block`` rows. At the end of each block, and
only there, the slots change: ``new slots = absorb(old slots, rows of the block)``. Rows see the slots as the block
before left them. The rows of the unfinished block are state. So the numbers do not depend on how a stream is cut into
calls, and lanes that stand at different places of the grid may share one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from txl_ts.attention import Far, RelativeAttention
from txl_ts.state import TensorSpec

Kept = dict[str, Tensor]


class Slots(NamedTuple):
    """What rows may attend to.

    Attributes
    ----------
    rows : Tensor of shape (B, F, D)
        In the place of normalised rows: keys and values are projected from them.
    visible : bool Tensor of shape (B, F)
    age : Tensor of shape (B, F) or (1, F), or None
        Visits back from the first row of the block; None if slots have no place in time.
    bias : Tensor of shape (B, F) or None
        What is added to each slot's score.
    sums : Tensor of shape (B, H, K, K + 1) or None
        Sums for linear attention, see :class:`~txl_ts.attention.Far`.
    share : Tensor of shape (B, H) or None
        Their share of the heads.
    """

    rows: Tensor
    visible: Tensor
    age: Tensor | None = None
    bias: Tensor | None = None
    sums: Tensor | None = None
    share: Tensor | None = None


class FarMemory(nn.Module):
    """The far memory of one layer: a policy is a subclass that says what is kept, read and absorbed.

    A subclass takes ``d_model`` and ``n_heads`` and its own parameters by keyword, each of them a number with a default
    in :attr:`defaults`.

    Attributes
    ----------
    defaults : dict
        The policy's parameters (``memory_params``). ``n_slots`` is how many slots there are; where each stands for some
        rows, ``every`` is how many, and the policy promises to reach ``n_slots · every`` rows back.
    has_state : bool
        False if nothing is ever updated; ``block`` is 0 then.
    of_outputs : bool
        True if the rows of a block are what the layer gives, not what it takes; every block then waits for the one
        before it.
    block : int
        Rows between two updates.
    n_slots : int
    """

    defaults: ClassVar[dict[str, int | float]]
    has_state: ClassVar[bool] = True
    of_outputs: ClassVar[bool] = False
    block: int
    n_slots: int

    def specs(self) -> dict[str, tuple[int, ...]]:
        """Give names and shapes of what is kept for one lane, all float32 and zero for a fresh one."""
        return {}

    def read(self, kept: Kept, n_blocks: Tensor) -> Slots:
        """Give the slots.

        Parameters
        ----------
        kept : dict of Tensor of shape (B, …)
            As :meth:`specs` describes it.
        n_blocks : int32 Tensor of shape (B,)
            Blocks that were absorbed; stands still at ``n_slots``.
        """
        raise NotImplementedError

    def absorb(self, kept: Kept, rows: Tensor, n_blocks: Tensor, attention: RelativeAttention) -> Kept:
        """Give what is kept after a block.

        Parameters
        ----------
        kept : dict of Tensor of shape (B, …)
            Before the block; not changed.
        rows : Tensor of shape (B, block, D)
            Normalised rows of the block, as the layer's keys and values are projected from: what the layer took, or
            gave where :attr:`of_outputs` says so.
        n_blocks : int32 Tensor of shape (B,)
            Blocks that were absorbed before.
        attention : RelativeAttention
            The layer's own, for policies that use its projections.
        """
        return kept

    def own_loss(self, rows: Tensor, attention: RelativeAttention) -> Tensor | None:
        """Give a loss of the policy's own on blocks (n, block, D), a scalar, or None.

        In training it is added to that of the task. Its gradient is the policy's own business: detach what it should
        not reach.
        """
        return None


def in_line(rows: Tensor, n_blocks: Tensor, *, per_block: int, every: int) -> Slots:
    """Give slots (B, F, D) that lie in time order, newest last, ``per_block`` of them for each block.

    Each stands for ``every`` rows; its age is that of their middle.
    """
    n_slots, dtype = rows.shape[1], rows.dtype
    rank = torch.arange(n_slots - 1, -1, -1, device=rows.device)  # 0 is the newest
    visible = rank < n_blocks[:, None] * per_block
    return Slots(rows, visible, (rank.to(dtype) * every + (every + 1) / 2)[None])


def far_specs(far: FarMemory | None, *, n_layers: int, d_model: int) -> tuple[TensorSpec, ...]:
    """Describe the far memories of all layers: counters, then each layer's unfinished block and what is kept.

    The counters ``far_count`` are the rows of the unfinished block and the blocks absorbed (saturating).
    """
    if far is None or not far.has_state:
        return ()
    shapes = {"block": (far.block, d_model)} | far.specs()
    layers = (
        TensorSpec(f"far_{name}_{layer}", shape, "float32")
        for layer in range(n_layers)
        for name, shape in shapes.items()
    )
    return (TensorSpec("far_count", (2,), "int32"), *layers)


def is_far(name: str) -> bool:
    """Tell whether a state tensor belongs to a far memory."""
    return name.startswith("far_")


def kept_of(state: Mapping[str, Tensor], layer: int) -> Kept:
    """Pick one layer's tensors out of a state, by the names of its :meth:`FarMemory.specs`."""
    end = f"_{layer}"
    names = [name for name in state if is_far(name) and name.endswith(end)]
    return {name.removeprefix("far_").removesuffix(end): state[name] for name in names}


def advance(count: Tensor, *, n_rows: int, far: FarMemory) -> Tensor:
    """Move the counters (B, 2) on by ``n_rows`` rows."""
    n_there = count[:, 0] + n_rows
    n_blocks = (count[:, 1] + torch.div(n_there, far.block, rounding_mode="floor")).clamp(max=far.n_slots)
    return torch.stack([torch.remainder(n_there, far.block), n_blocks], dim=1).to(count.dtype)


def attended(
    far: FarMemory,
    rows: Tensor,
    kept: Kept,
    count: Tensor | None,
    attention: RelativeAttention,
    attend: Callable[[Far, int, int], Tensor],
    ready: Callable[[Tensor], Tensor],
    *,
    in_graph: bool = False,
) -> tuple[Tensor, Kept]:
    """Run a layer over the rows of a call with what they see of its far memory.

    Parameters
    ----------
    far, rows, kept, count, attention, in_graph
        As in :func:`look`.
    attend : callable
        ``(seen, first, end) → (B, end − first, D)``: what the layer gives at some rows of the call.
    ready : callable
        The layer's normalisation.

    Returns
    -------
    y : Tensor of shape (B, T, D)
    kept : dict of Tensor
        Moved on.
    """
    if not far.of_outputs or count is None:
        seen, kept = look(far, rows, kept, count, attention, in_graph=in_graph)
        return attend(seen, 0, rows.shape[1]), kept
    return _in_turn(far, rows, kept, count, attention, attend, ready, in_graph=in_graph)


def _in_turn(
    far: FarMemory,
    rows: Tensor,
    kept: Kept,
    count: Tensor,
    attention: RelativeAttention,
    attend: Callable[[Far, int, int], Tensor],
    ready: Callable[[Tensor], Tensor],
    *,
    in_graph: bool,
) -> tuple[Tensor, Kept]:
    """Do the same block by block, since what a block leaves is what the layer gave at its rows."""
    block, n_rows, filled, n_blocks = far.block, rows.shape[1], count[:, :1].long(), count[:, 1]
    kept = dict(kept)
    begun, made, first = kept.pop("block").to(rows.dtype), [], 0
    first_block = torch.arange(block, device=rows.device)

    def see(place: Tensor) -> Far:
        at = torch.arange(place.shape[1], device=rows.device).expand(place.shape)
        offset = torch.remainder(place, block)[:, None].to(rows.dtype)
        return _seen([far.read(kept, n_blocks)], at, offset, attention)

    while True:
        # To the next line of any lane; a call of a graph is one piece, and crosses one line at most.
        end = n_rows if in_graph else min(n_rows, first + block - int(filled.max()))
        place = filled + torch.arange(end - first, device=rows.device)
        y = attend(see(place), first, end)
        whole = _taken(torch.cat([begun, ready(y)], dim=1), _after_hole(first_block, filled, block=block))
        n_there = filled + (end - first)
        kept, n_blocks = _absorbed(far, kept, whole, n_blocks, n_there[:, 0] >= block, attention)
        if in_graph and not _is_one(n_rows):  # rows beyond the line once more: what they see is there now
            y = torch.where(place[..., None] >= block, attend(see(place), first, end), y)
        begun = _unfinished(torch.cat([begun, ready(y)], dim=1), filled, n_there, block=block)
        filled = torch.remainder(n_there, block)
        made.append(y)
        first = end
        if in_graph or first == n_rows:
            return torch.cat(made, dim=1), {"block": begun, **kept}


def _absorbed(
    far: FarMemory, kept: Kept, rows: Tensor, n_blocks: Tensor, is_done: Tensor, attention: RelativeAttention
) -> tuple[Kept, Tensor]:
    """Let a block (B, N, D) be absorbed in the lanes (B,) that completed it; gives what is kept, and the counter."""
    after = far.absorb(kept, rows, n_blocks, attention)
    kept = {name: _where(is_done, after[name].to(old.dtype), old) for name, old in kept.items()}
    return kept, (n_blocks + is_done.to(n_blocks.dtype)).clamp(max=far.n_slots)


def _unfinished(every: Tensor, filled: Tensor, n_there: Tensor, *, block: int) -> Tensor:
    """Give the rows of the block that is not complete, (B, N, D), of [unfinished block, rows of the call]."""
    grid = torch.arange(block, device=every.device)
    place = torch.div(n_there, block, rounding_mode="floor") * block + grid
    left = _taken(every, _after_hole(place, filled, block=block))
    return torch.where((place < n_there)[..., None], left, left.new_zeros(()))


def look(
    far: FarMemory,
    rows: Tensor,
    kept: Kept,
    count: Tensor | None,
    attention: RelativeAttention,
    *,
    in_graph: bool = False,
) -> tuple[Far, Kept]:
    """Give what the rows of a call see of a far memory, and what is kept after them.

    Parameters
    ----------
    far : FarMemory
    rows : Tensor of shape (B, T, D)
        The call's rows, normalised.
    kept : dict of Tensor
        Of this layer, the unfinished block among them; empty where nothing is kept.
    count : int32 Tensor of shape (B, 2) or None
        The counters before the call.
    attention : RelativeAttention
    in_graph : bool
        Let nothing depend on numbers; the call then has at most ``far.block`` rows.
    """
    n_rows, device = rows.shape[1], rows.device
    if not far.has_state or count is None:
        place = torch.arange(n_rows, device=device).expand(rows.shape[0], -1)
        same = far.read({}, rows.new_zeros(rows.shape[0], dtype=torch.int32))
        return _seen([same], place, place[:1, None].to(rows.dtype), attention), {}
    block, filled, n_blocks = far.block, count[:, :1].long(), count[:, 1]
    kept = dict(kept)
    every = torch.cat([kept.pop("block").to(rows.dtype), rows], dim=1)  # (B, N + T, D), with a hole before the rows
    # The unfinished block has N − 1 rows at most, so these are the blocks that the call's rows may lie in.
    n = 2 if in_graph and not _is_one(n_rows) else (block + n_rows - 2) // block + 1
    aligned = _taken(every, _after_hole(torch.arange(n * block, device=device), filled, block=block))
    aligned = aligned.unflatten(1, (n, block))
    n_there, slots = filled[:, 0] + n_rows, [far.read(kept, n_blocks)]
    for j in range(n):
        is_done = n_there >= (j + 1) * block
        can_be_done = j == 0 if in_graph else (j + 1) * block <= block - 1 + n_rows
        if can_be_done and (in_graph or bool(is_done.any())):
            kept, n_blocks = _absorbed(far, kept, aligned[:, j], n_blocks, is_done, attention)
        if j + 1 < n:
            slots.append(far.read(kept, n_blocks))
    place = filled + torch.arange(n_rows, device=device)
    offset = torch.arange(block, device=device)[None, None]
    if n == 1 and _is_one(n_rows):  # not a whole block for the sake of one row
        place, offset = torch.zeros_like(place), place[:, None]
    seen = _seen(slots, place, offset.to(rows.dtype), attention)
    if far.training and torch.is_grad_enabled():
        whole = aligned[n_there[:, None] >= (torch.arange(n, device=device) + 1) * block]
        loss = far.own_loss(whole, attention) if len(whole) else None
        seen = seen if loss is None else seen._replace(key=_with_loss(seen.key, loss))
    return seen, {"block": _unfinished(every, filled, n_there[:, None], block=block), **kept}


class _WithLoss(torch.autograd.Function):
    """Pass a tensor on, and add a loss to whatever loss comes of it: the model stays ``(x, state) → (y, state)``."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, loss: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.new_ones(())


def _with_loss(tensor: Tensor, loss: Tensor) -> Tensor:
    return _WithLoss.apply(tensor, loss)  # type: ignore[no-untyped-call]


def _is_one(n_rows: int) -> bool:
    return isinstance(n_rows, int) and n_rows == 1


def _seen(slots: list[Slots], place: Tensor, offset: Tensor, attention: RelativeAttention) -> Far:
    rows = torch.stack([each.rows for each in slots], dim=1)  # (B, n, F, D)
    key, value = (kind.unflatten(2, rows.shape[1:3]) for kind in attention.project(rows.flatten(1, 2)))
    visible = torch.stack([each.visible for each in slots], dim=1)
    age, bias = _stacked([each.age for each in slots]), _stacked([each.bias for each in slots])
    sums, share = _stacked([each.sums for each in slots], dim=2), _stacked([each.share for each in slots], dim=2)
    share = None if share is None else share[..., None, None]
    return Far(key, value, visible, age, bias, place, offset, sums, share)


def _stacked(parts: list[Tensor | None], dim: int = 1) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.stack(there, dim=dim) if there else None


def _after_hole(place: Tensor, filled: Tensor, *, block: int) -> Tensor:
    """Give where a place of the grid lies among [unfinished block, rows of the call], for lanes (B, 1)."""
    return torch.where(place < filled, place, place - filled + block)


def _taken(rows: Tensor, index: Tensor) -> Tensor:
    """Take rows (B, n, D) by their numbers (B, m); numbers beyond the end give the last one."""
    index = index.clamp(max=rows.shape[1] - 1)
    return rows.gather(1, index[..., None].expand(-1, -1, rows.shape[2]))


def _where(is_done: Tensor, after: Tensor, before: Tensor) -> Tensor:
    return torch.where(is_done.reshape(-1, *(1,) * (before.ndim - 1)), after, before)
