"""Sinks: a few learned rows that are never evicted, beside the window."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from txl_ts.memory.far import FarMemory, Kept, Slots


class Sinks(FarMemory):
    """Learned rows that every row may attend to: where attention goes when the window holds nothing of interest.

    There is no state, and no claim of recall beyond the window.

    Parameters
    ----------
    d_model, n_heads : int
    n_slots : int
        Learned rows.

    References
    ----------
    Xiao et al. (2023), Efficient streaming language models with attention sinks (arXiv 2309.17453); the learned rows
    are its section 3.3.
    """

    defaults: ClassVar[dict[str, int | float]] = {"n_slots": 4}
    has_state: ClassVar[bool] = False
    block = 0

    def __init__(self, *, d_model: int, n_heads: int, n_slots: int) -> None:
        super().__init__()
        self.n_slots = n_slots
        self.rows = nn.Parameter(torch.randn(n_slots, d_model))  # of the size of normalised rows

    def read(self, kept: Kept, n_blocks: Tensor) -> Slots:
        """Give the learned rows to every lane."""
        n_lanes = n_blocks.shape[0]
        visible = torch.ones(1, self.n_slots, dtype=torch.bool, device=self.rows.device)
        return Slots(self.rows.expand(n_lanes, -1, -1), visible.expand(n_lanes, -1))
