"""Linear attention over the far past: one matrix of decaying sums per head. Experimental."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from txl_ts.attention import RelativeAttention, positive
from txl_ts.memory.far import FarMemory, Kept, Slots

# Blocks after which the sums of the fastest and of the slowest head have forgotten two thirds, at first.
_FASTEST, _SLOWEST = 4.0, 256.0


class Linear(FarMemory):
    """Sums of ``φ(k) [v, 1]`` over all blocks, older ones fading; each head mixes its window with what they answer.

    Beside the sums there is one sink, a learned row. Experimental: others could not reproduce the gains that are
    published for such memories, and nothing here was measured to be better than another policy.

    Parameters
    ----------
    d_model, n_heads : int
    block : int
        Rows between two updates.

    References
    ----------
    Munkhdalai et al. (2024), Infini-attention (arXiv 2404.07143), for sums and mixing; the decay is that of gated
    linear attention, per head and not per row; there is no delta rule (Yang et al., arXiv 2412.06464).
    """

    defaults: ClassVar[dict[str, int | float]] = {"block": 8}
    n_slots = 1

    def __init__(self, *, d_model: int, n_heads: int, block: int) -> None:
        super().__init__()
        self.block, self.shape = block, (n_heads, d_model // n_heads, d_model // n_heads + 1)
        self.sink = nn.Parameter(torch.randn(1, d_model))
        slow = torch.logspace(math.log10(_FASTEST), math.log10(_SLOWEST), n_heads)
        self.decay = nn.Parameter((slow - 1).log())  # σ of it is 1 − 1 / slow
        self.share = nn.Parameter(torch.zeros(n_heads))  # at first one half

    def specs(self) -> dict[str, tuple[int, ...]]:
        """Describe the sums."""
        return {"sums": self.shape}

    def read(self, kept: Kept, n_blocks: Tensor) -> Slots:
        """Give the sink and the sums; before the first block the sums have no share."""
        n_lanes, dtype = n_blocks.shape[0], self.sink.dtype
        visible = torch.ones(1, 1, dtype=torch.bool, device=self.sink.device).expand(n_lanes, -1)
        share = self.share.sigmoid() * (n_blocks > 0).to(dtype)[:, None]
        return Slots(self.sink.expand(n_lanes, -1, -1), visible, sums=kept["sums"].to(dtype), share=share)

    def absorb(self, kept: Kept, rows: Tensor, n_blocks: Tensor, attention: RelativeAttention) -> Kept:
        """Let the sums fade and add those of a block."""
        key, value = attention.project(rows)  # (B, H, N, K)
        new = positive(key).transpose(-1, -2) @ torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)
        return {"sums": self.decay.sigmoid()[:, None, None] * kept["sums"] + new / self.block}
