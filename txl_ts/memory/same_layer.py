"""Same-layer recurrence: rows of a block see what this very layer made of the block before."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from txl_ts.attention import RelativeAttention
from txl_ts.memory.far import FarMemory, Kept, Slots, in_line


class SameLayer(FarMemory):
    """The layer's outputs at the last ``block`` rows that were completed, in time order.

    In Transformer-XL a layer sees what the layer below made of the rows before, so that each layer adds its window to
    the reach and no more. Here a layer sees its own outputs: what a block leaves goes on to the next one at the same
    height, block after block, and the reach has no bound. The price is that blocks wait for each other: a call of many
    rows is walked block by block.

    It comes beside the window, which is Transformer-XL's; a short ``mem_len`` leaves the recurrence to the blocks.

    Parameters
    ----------
    d_model, n_heads : int
    block : int
        Rows of a block, and slots.

    References
    ----------
    Ding et al. (2021), ERNIE-Doc (arXiv 2012.15688), section 3.3, "enhanced recurrence mechanism".
    """

    defaults: ClassVar[dict[str, int | float]] = {"block": 8}
    of_outputs: ClassVar[bool] = True

    def __init__(self, *, d_model: int, n_heads: int, block: int) -> None:
        super().__init__()
        self.n_slots = self.block = block
        self.width = d_model

    def specs(self) -> dict[str, tuple[int, ...]]:
        """Describe the outputs of the block before."""
        return {"outputs": (self.block, self.width)}

    def read(self, kept: Kept, n_blocks: Tensor) -> Slots:
        """Give the block before, row by row at its place in time."""
        return in_line(kept["outputs"], n_blocks, per_block=self.block, every=1)

    def absorb(self, kept: Kept, rows: Tensor, n_blocks: Tensor, attention: RelativeAttention) -> Kept:
        """Take the place of the block before."""
        return {"outputs": rows}
