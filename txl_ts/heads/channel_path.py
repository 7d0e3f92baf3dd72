"""The linear path of sensors that are not alike: the last normalised rows of each channel, by weights of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ChannelPath(nn.Module):
    """One affine map per channel, from ``lookback`` rows to ``h`` steps; :class:`LinearPath` with weights of its own.

    Parameters
    ----------
    lookback : int
        Rows; 0 makes the path a constant.
    h : int
    n_channels : int
    """

    def __init__(self, *, lookback: int, h: int, n_channels: int) -> None:
        super().__init__()
        self.lookback, self.n_known = lookback, 0
        self.weight = nn.Parameter(torch.zeros(n_channels, h, lookback))
        self.bias = nn.Parameter(torch.zeros(n_channels, h))

    def forward(self, z: Tensor) -> Tensor:
        """Map windows (B, n, C, lookback), in deviations, to forecasts (B, n, h, C), in deviations."""
        if not self.lookback:
            return self.bias.T.expand(*z.shape[:2], -1, -1)
        along = z.transpose(1, 2) @ self.weight.transpose(1, 2)  # (B, C, n, h)
        return (along + self.bias[:, None]).permute(0, 2, 3, 1)
