"""The linear path beside the recurrent one: the last normalised rows, straight to the forecast."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LinearPath(nn.Module):
    """One affine map, shared by all channels, from ``lookback`` rows to ``h`` steps.

    It is fitted in closed form (ridge) before training and then kept: the recurrent path learns what is left.

    Parameters
    ----------
    lookback : int
        Rows; 0 makes the path a constant 0.
    h : int
    """

    def __init__(self, *, lookback: int, h: int) -> None:
        super().__init__()
        self.lookback = lookback
        self.register_buffer("weight", torch.zeros(h, lookback))
        self.register_buffer("bias", torch.zeros(h))
        self.weight: Tensor
        self.bias: Tensor

    def forward(self, z: Tensor) -> Tensor:
        """Map windows (B, n, C, lookback), in deviations, to forecasts (B, n, h, C), in deviations."""
        return F.linear(z, self.weight, self.bias).transpose(2, 3)
