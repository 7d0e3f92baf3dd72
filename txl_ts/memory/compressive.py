"""Compressed rows: beside the window, a first-in, first-out of rows that were convolved ``every`` to one."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txl_ts.attention import RelativeAttention
from txl_ts.errors import ParameterError
from txl_ts.memory.far import FarMemory, Kept, Slots, in_line


class Compressive(FarMemory):
    """The newest ``n_slots`` compressed rows, each a convolution of ``every`` rows.

    The convolution learns from a loss of its own alone: what the rows of a block read from the block should be read
    from its compressed rows too. That loss sends no gradient to any other weight, and the task sends none to the
    convolution, as in the paper.

    Rows are compressed once their block is full, not when they leave the window: the newest slots stand for rows that
    the window still shows. To keep rows until they leave it would cost ``mem_len`` rows of state, and the overlap costs
    ``mem_len / every``.

    Parameters
    ----------
    d_model, n_heads : int
    n_slots : int
        Compressed rows that are kept.
    every : int
        Rows that become one.
    block : int
        Rows between two updates, a multiple of ``every``.

    References
    ----------
    Rae et al. (2020), Compressive Transformers (arXiv 1911.05507), section 3 and the attention-reconstruction loss.
    """

    defaults: ClassVar[dict[str, int | float]] = {"n_slots": 32, "every": 4, "block": 8}

    def __init__(self, *, d_model: int, n_heads: int, n_slots: int, every: int, block: int) -> None:
        super().__init__()
        if block % every:
            raise ParameterError(
                f"memory_params: block={block} must be a multiple of every={every}. Take for example "
                f"block={every * max(1, block // every)}."
            )
        self.n_slots, self.every, self.block = n_slots, every, block
        # At first the plain mean.
        self.mix = nn.Parameter(torch.eye(d_model).repeat(every, 1) / every)  # (every · D, D)

    def specs(self) -> dict[str, tuple[int, ...]]:
        """Describe the compressed rows, oldest first."""
        return {"rows": (self.n_slots, self.mix.shape[1])}

    def read(self, kept: Kept, n_blocks: Tensor) -> Slots:
        """Give the compressed rows; the age of one is that of the middle of its rows."""
        return in_line(kept["rows"], n_blocks, per_block=self.block // self.every, every=self.every)

    def absorb(self, kept: Kept, rows: Tensor, n_blocks: Tensor, attention: RelativeAttention) -> Kept:
        """Append the compressed rows of a block; the oldest leave."""
        new = compressed(rows, self.mix.detach()).to(kept["rows"].dtype)
        return {"rows": torch.cat([kept["rows"], new], dim=1)[:, -self.n_slots :]}

    def own_loss(self, rows: Tensor, attention: RelativeAttention) -> Tensor:
        """Mean squared difference between what blocks (…, block, D) read of themselves and of their compressed rows."""
        rows = rows.detach()
        query, key_value = attention.query.weight.detach(), attention.key_value.weight.detach()
        heads = (attention.n_heads, attention.d_head)
        asked = F.linear(rows, query).unflatten(-1, heads).transpose(-2, -3) + attention.u.detach()[:, None]

        def read(memory: Tensor) -> Tensor:
            key, value = F.linear(memory, key_value).unflatten(-1, (2, *heads)).movedim(-3, 0).transpose(-2, -3)
            return (asked @ key.transpose(-1, -2) / math.sqrt(attention.d_head)).softmax(-1) @ value

        return (read(rows) - read(compressed(rows, self.mix))).square().mean()


def compressed(rows: Tensor, mix: Tensor) -> Tensor:
    """Convolve rows (…, N, D), ``every`` to one, by weights (every · D, D)."""
    every = mix.shape[0] // mix.shape[1]
    return rows.unflatten(-2, (rows.shape[-2] // every, every)).flatten(-2) @ mix
