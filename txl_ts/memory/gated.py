"""Gated state: a few vectors that look over each block of rows and keep what their gates let them."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from txl_ts.attention import RelativeAttention
from txl_ts.memory.far import FarMemory, Kept, Slots

# Blocks after which the fastest and the slowest number has forgotten two thirds, at first.
_FASTEST, _SLOWEST = 2.0, 128.0


class Gated(FarMemory):
    """``n_slots`` state vectors that cross-attend to each block and mix what they read in by a learned gate.

    ``s ← g ⊙ s + (1 − g) ⊙ z`` with ``g = σ(b)``, one ``b`` per number, the same at every block (the paper's best
    variant). Gates start between fast and slow, so that some numbers keep for hundreds of blocks.

    Parameters
    ----------
    d_model, n_heads : int
    n_slots : int
        State vectors.
    block : int
        Rows between two updates.

    References
    ----------
    Hutchins et al. (2022), Block-recurrent Transformers (arXiv 2203.07852), section 3.2, "fixed" gate, single
    direction: the rows of a block do not wait for the new state.
    """

    defaults: ClassVar[dict[str, int | float]] = {"n_slots": 8, "block": 8}

    def __init__(self, *, d_model: int, n_heads: int, n_slots: int, block: int) -> None:
        super().__init__()
        self.n_slots, self.block, self.n_heads = n_slots, block, n_heads
        self.identity = nn.Parameter(torch.randn(n_slots, d_model))
        self.norm = nn.LayerNorm(d_model)
        # Not nn.Linear: N(0, 0.02) would leave a state that nobody sees.
        self.query, self.key, self.value, self.output = (
            nn.Parameter(torch.randn(d_model, d_model) / math.sqrt(d_model)) for _ in range(4)
        )
        slow = torch.logspace(math.log10(_FASTEST), math.log10(_SLOWEST), d_model)
        self.gate = nn.Parameter((slow - 1).log())  # σ(b) = 1 − 1 / slow

    def specs(self) -> dict[str, tuple[int, ...]]:
        """Describe the state vectors."""
        return {"state": tuple(self.identity.shape)}

    def read(self, kept: Kept, n_blocks: Tensor) -> Slots:
        """Give the state vectors, told apart by learned identities; they have no place in time."""
        rows = self._told_apart(kept["state"])
        return Slots(rows, torch.ones(rows.shape[:2], dtype=torch.bool, device=rows.device))

    def absorb(self, kept: Kept, rows: Tensor, n_blocks: Tensor, attention: RelativeAttention) -> Kept:
        """Read the block and mix what was read into the state."""
        state = kept["state"].to(rows.dtype)
        query, key, value = (
            (what @ weight).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for what, weight in ((self._told_apart(state), self.query), (rows, self.key), (rows, self.value))
        )  # (B, H, S or N, K)
        weight = (query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])).softmax(-1)
        read = (weight @ value).transpose(1, 2).flatten(2) @ self.output
        keep = self.gate.sigmoid()
        return {"state": keep * state + (1 - keep) * read}

    def _told_apart(self, state: Tensor) -> Tensor:
        return self.norm(state.to(self.identity.dtype)) + self.identity
