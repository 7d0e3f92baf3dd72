"""Memory tokens: a few tokens that rows read, and that read each block and themselves before the next one."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from txl_ts.attention import RelativeAttention
from txl_ts.memory.far import FarMemory, Kept, Slots


class Tokens(FarMemory):
    """``n_slots`` tokens of each layer: read by the rows of a block, written from them by the layer's own attention.

    The paper passes tokens through all layers of a segment; here each layer has tokens of its own, which pass through
    its attention. What they write is learned only where the next block lies in the same training segment: segments of
    several blocks are needed (the paper: gradients through two segments or more).

    Parameters
    ----------
    d_model, n_heads : int
    n_slots : int
        Tokens.
    block : int
        Rows between two updates.

    References
    ----------
    Bulatov et al. (2022), Recurrent memory transformer (arXiv 2207.06881), section 3.2.
    """

    defaults: ClassVar[dict[str, int | float]] = {"n_slots": 4, "block": 8}

    def __init__(self, *, d_model: int, n_heads: int, n_slots: int, block: int) -> None:
        super().__init__()
        self.n_slots, self.block = n_slots, block
        self.first = nn.Parameter(torch.randn(n_slots, d_model))
        self.norm = nn.LayerNorm(d_model)

    def specs(self) -> dict[str, tuple[int, ...]]:
        """Describe the tokens that the block before has written."""
        return {"tokens": tuple(self.first.shape)}

    def read(self, kept: Kept, n_blocks: Tensor) -> Slots:
        """Give the tokens: learned ones before the first block; they have no place in time."""
        rows = torch.where(n_blocks[:, None, None] > 0, kept["tokens"].to(self.first.dtype), self.first)
        return Slots(rows, torch.ones(rows.shape[:2], dtype=torch.bool, device=rows.device))

    def absorb(self, kept: Kept, rows: Tensor, n_blocks: Tensor, attention: RelativeAttention) -> Kept:
        """Let the tokens attend to themselves and the block, by content."""
        tokens = self.read(kept, n_blocks).rows
        query = attention.query(tokens).unflatten(-1, (attention.n_heads, -1)).transpose(1, 2)
        key, value = attention.project(torch.cat([tokens, rows], dim=1))
        score = (query + attention.u[:, None]) @ key.transpose(-1, -2) / math.sqrt(attention.d_head)
        read = attention.output((score.softmax(-1) @ value).transpose(1, 2).flatten(2))
        return {"tokens": self.norm(tokens + read)}
