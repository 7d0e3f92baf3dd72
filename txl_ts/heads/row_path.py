"""The linear path of labels: all features of the last normalised rows, straight to the outputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RowPath(nn.Module):
    """One affine map of the last ``lookback`` rows of all channels.

    It is fitted before training (a ridge for values, a logistic regression for classes), and is where training starts.

    Parameters
    ----------
    lookback : int
        Rows, the current one among them; 0 makes the path a constant.
    n_channels : int
    n_outputs : int
    """

    def __init__(self, *, lookback: int, n_channels: int, n_outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_outputs, n_channels * lookback))
        self.bias = nn.Parameter(torch.zeros(n_outputs))

    def forward(self, z: Tensor) -> Tensor:
        """Map windows (B, n, C, lookback), in deviations, to outputs (B, n, K)."""
        return nn.functional.linear(z.flatten(2), self.weight, self.bias)
