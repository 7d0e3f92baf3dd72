"""Two rates: the window of rows, and a slow first-in, first-out of one summary per block of rows."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from txl_ts.attention import RelativeAttention
from txl_ts.memory.far import FarMemory, Kept, Slots, in_line


class TwoRate(FarMemory):
    """The newest ``n_slots`` summaries, each of ``every`` rows; a layer attends to rows and summaries in one softmax.

    A summary is a weighted mean of the rows of its block, with weights of its own for each head: a softmax over learned
    scores of the rows and of their places in the block. At first it is nearly the plain mean.

    Parameters
    ----------
    d_model, n_heads : int
    n_slots : int
        Summaries that are kept.
    every : int
        Rows of a summary.

    Notes
    -----
    A two-level segment recurrence of our own; hierarchical memories are its models.
    """

    defaults: ClassVar[dict[str, int | float]] = {"n_slots": 16, "every": 8}

    def __init__(self, *, d_model: int, n_heads: int, n_slots: int, every: int) -> None:
        super().__init__()
        self.n_slots, self.block = n_slots, every
        self.score = nn.Linear(d_model, n_heads, bias=False)
        self.place_score = nn.Parameter(torch.zeros(every, n_heads))
        self.place = nn.Parameter(torch.zeros(every, d_model))

    def specs(self) -> dict[str, tuple[int, ...]]:
        """Describe the summaries, oldest first."""
        return {"rows": (self.n_slots, self.place.shape[1])}

    def read(self, kept: Kept, n_blocks: Tensor) -> Slots:
        """Give the summaries; the age of one is that of the middle of its block."""
        return in_line(kept["rows"], n_blocks, per_block=1, every=self.block)

    def absorb(self, kept: Kept, rows: Tensor, n_blocks: Tensor, attention: RelativeAttention) -> Kept:
        """Append the summary of a block; the oldest one leaves."""
        return {"rows": torch.cat([kept["rows"][:, 1:], self.summary(rows)[:, None].to(kept["rows"].dtype)], dim=1)}

    def summary(self, rows: Tensor) -> Tensor:
        """Give one row (B, D) for the rows (B, every, D) of a block."""
        share = (self.score(rows) + self.place_score).softmax(dim=1)  # (B, N, H)
        heads = (rows + self.place).unflatten(-1, (share.shape[-1], -1))  # (B, N, H, K)
        return (share[..., None] * heads).sum(dim=1).flatten(1)
