"""Direct multi-step quantiles that cannot cross."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class QuantileHead(nn.Module):
    """Median plus positive steps outwards, for ``h`` steps ahead at once.

    A new head gives the normal quantiles around the centre, with deviation 1 in the lane's own deviations.

    Parameters
    ----------
    d_model : int
    h : int
    n_channels : int
    quantiles : sequence of float
        Increasing; .5 is among them.
    """

    def __init__(self, *, d_model: int, h: int, n_channels: int, quantiles: Sequence[float]) -> None:
        super().__init__()
        self.shape = (h, n_channels, len(quantiles))
        self.median = list(quantiles).index(0.5)
        self.linear = nn.Linear(d_model, h * n_channels * len(quantiles))
        # A zero start: the first forecast is the linear path's alone.
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.set_spread(torch.ones(h), quantiles)

    def set_spread(self, deviation: Tensor, quantiles: Sequence[float]) -> None:
        """Start at the steps between the levels of a normal law, with a deviation per step ahead, of shape (h,)."""
        normal = torch.tensor([NormalDist().inv_cdf(q) for q in quantiles], dtype=torch.float64)
        gap = normal.diff()
        step = torch.cat([gap[: self.median], torch.ones(1, dtype=gap.dtype), gap[self.median :]])
        width = (deviation.double()[:, None] * step).clamp(min=1e-3)  # (h, Q); the entry of the median is not used
        raw = torch.log(torch.expm1(width))
        raw[:, self.median] = 0
        with torch.no_grad():
            bias = raw[:, None].expand(*self.shape).to(self.linear.bias.dtype)
            self.linear.bias.copy_(bias.flatten())

    def law(self, hidden: Tensor, centre: Tensor, more: Tensor | None = None) -> Tensor:
        """Give what training compares with the target: the quantiles of :meth:`forward`."""
        return self(hidden, centre, more)

    def forward(self, hidden: Tensor, centre: Tensor, more: Tensor | None = None) -> Tensor:
        """Give quantiles around a centre.

        Parameters
        ----------
        hidden : Tensor of shape (B, n, D)
        centre : Tensor of shape (B, n, h, C)
            The linear path's forecast, in deviations.
        more : Tensor of shape (B, n, h, C, Q), optional
            Added to the raw outputs, before they are put in order.

        Returns
        -------
        Tensor of shape (B, n, h, C, Q)
            In deviations, increasing along the last axis.
        """
        raw = self.linear(hidden).unflatten(-1, self.shape)
        raw = raw if more is None else raw + more
        below, median, above = raw.tensor_split((self.median, self.median + 1), dim=-1)
        median = median + centre[..., None]
        up = median + F.softplus(above).cumsum(dim=-1)
        down = median - F.softplus(below).flip(-1).cumsum(dim=-1).flip(-1)
        return torch.cat([down, median, up], dim=-1)
