"""What gradients meet on their way back from a segment to the one before it: a share, a clip, and a note of their size.

Forwards nothing changes. Backwards, all that one segment leaves to the next passes at once, so that its norm can be
taken: the memory rows of every layer, its far memory, and what is pooled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from txl_ts.model import TorchState, is_memory


class Hops:
    """The hops between the segments of a step.

    Parameters
    ----------
    gradient : float or sequence of float
        ``s`` in ``m ← s · m + (1 − s) · stop(m)``; or one for each place in the window, the newest row first. What lies
        beyond the window takes the last one.
    clip : float, optional
        Largest norm that passes a hop.

    Attributes
    ----------
    sums, counts : list of float, list of int
        Norms that passed each hop (before the clip), summed, and how many; the first hop is that from the first segment
        of a step to its second.
    """

    def __init__(self, gradient: float | Sequence[float] = 1.0, clip: float | None = None) -> None:
        self.gradient, self.clip = gradient, clip
        self.sums: list[float] = []
        self.counts: list[int] = []

    def through(self, state: TorchState, *, hop: int) -> TorchState:
        """Give the state to the next segment: the same numbers.

        Parameters
        ----------
        state : dict of Tensor
            Of training: its memory holds hidden rows.
        hop : int
            Number within the step, from 0 on.
        """
        carried = [name for name, tensor in state.items() if tensor.requires_grad]
        if not carried:
            return state
        shares = [self._share(name, state) for name in carried]
        passed = _Hop.apply(self, hop, shares, *(state[name] for name in carried))  # type: ignore[no-untyped-call]
        return state | dict(zip(carried, passed, strict=True))

    def means(self) -> list[float]:
        """Give the mean norm at each hop, and begin anew."""
        found = [total / count if count else 0.0 for total, count in zip(self.sums, self.counts, strict=True)]
        self.sums, self.counts = [], []
        return found

    def note(self, hop: int, norm: float) -> None:
        """Note the norm of a gradient that passed a hop."""
        missing = hop + 1 - len(self.sums)
        self.sums += [0.0] * missing
        self.counts += [0] * missing
        self.sums[hop] += norm
        self.counts[hop] += 1

    def _share(self, name: str, state: TorchState) -> Tensor | float:
        if not isinstance(self.gradient, Sequence):
            return self.gradient
        if not is_memory(name):
            return self.gradient[-1]
        ring, n_slots = state[name], state[name].shape[2]  # (B, 1, mem_len + 1, D)
        # The next row sees the newest one at place 0, and no more than mem_len of them.
        place = torch.remainder(state["count"][:, 1:] - 1 - torch.arange(n_slots, device=ring.device), n_slots)
        by_place = ring.new_tensor([*self.gradient[: n_slots - 1], 0.0])
        return by_place[place.long()][:, None, :, None]


class _Hop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hops: Hops, hop: int, shares: list[Tensor | float], *state: Tensor) -> tuple[Tensor, ...]:
        ctx.hops, ctx.hop, ctx.shares = hops, hop, shares
        return tuple(tensor.view_as(tensor) for tensor in state)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        passed = [gradient * share for gradient, share in zip(gradients, ctx.shares, strict=True)]
        norm = torch.stack([gradient.square().sum() for gradient in passed]).sum().sqrt()
        ctx.hops.note(ctx.hop, float(norm))
        if ctx.hops.clip is not None and float(norm) > ctx.hops.clip:
            passed = [gradient * (ctx.hops.clip / norm) for gradient in passed]
        return None, None, None, *passed
