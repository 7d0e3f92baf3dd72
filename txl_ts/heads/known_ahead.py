"""What is known of the rows ahead, beside what the memory says: one small network for every step."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class KnownAhead(nn.Module):
    """Corrections of the head's raw outputs, per step ahead, from the columns that are known there.

    The hidden row says what the columns mean now (an hour of the day, a level of the load), the columns say what comes.
    It starts at zero.

    Parameters
    ----------
    projection : Module
        Maps features (…, F) to (…, width).
    d_model : int
    h : int
    n_channels, n_quantiles : int
    width : int
    """

    def __init__(
        self, projection: nn.Module, *, d_model: int, h: int, n_channels: int, n_quantiles: int, width: int
    ) -> None:
        super().__init__()
        self.projection = projection
        self.shape = (n_channels, n_quantiles)
        self.context = nn.Linear(d_model, width)
        self.step = nn.Parameter(torch.zeros(h, width))
        self.inner = nn.Linear(width, width)
        self.out = nn.Linear(width, n_channels * n_quantiles)
        nn.init.normal_(self.step, std=0.02)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, hidden: Tensor, known: Tensor) -> Tensor:
        """Give corrections.

        Parameters
        ----------
        hidden : Tensor of shape (B, n, D)
        known : Tensor of shape (B, n, h, F)
            Features of the rows ahead.

        Returns
        -------
        Tensor of shape (B, n, h, C, Q)
        """
        mixed = F.gelu(self.projection(known) + self.context(hidden)[:, :, None] + self.step)
        return self.out(F.gelu(self.inner(mixed))).unflatten(-1, self.shape)
