"""One or several numbers for each row."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ValueHead(nn.Module):
    """Values in deviations of the training targets, and in their units.

    Parameters
    ----------
    d_model : int
    n_outputs : int
        Targets.
    """

    def __init__(self, *, d_model: int, n_outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d_model, n_outputs)
        # A zero start: the first answer is the linear path's alone.
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.register_buffer("level", torch.zeros(n_outputs))
        self.register_buffer("unit", torch.ones(n_outputs))
        self.level: Tensor
        self.unit: Tensor

    def set_scale(self, level: Tensor, unit: Tensor) -> None:
        """Take level and deviation (positive) of the training targets, of shape (K,)."""
        self.level.copy_(level)
        self.unit.copy_(unit)

    def forward(self, hidden: Tensor, centre: Tensor) -> Tensor:
        """Add what hidden rows (B, n, D) say to the linear path's values (B, n, K), in deviations."""
        return centre + self.linear(hidden)

    def outputs(self, z: Tensor) -> Tensor:
        """Turn deviations (B, n, K) into units of the target."""
        return self.level + self.unit * z
