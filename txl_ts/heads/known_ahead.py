"""What is known of the rows ahead, beside what the memory says: one small network for every step."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Rows × steps that are held at once where no gradient is needed: a horizon of hundreds would else fill the memory.
_AT_ONCE = 100_000


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
        n = hidden.shape[1]
        size = n if torch.is_grad_enabled() else max(_AT_ONCE // (len(hidden) * known.shape[2]), 1)
        parts = [self._some(a, b) for a, b in zip(hidden.split(size, dim=1), known.split(size, dim=1), strict=True)]
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def _some(self, hidden: Tensor, known: Tensor) -> Tensor:
        mixed = F.gelu(self.projection(known) + self.context(hidden)[:, :, None] + self.step)
        return self.out(F.gelu(self.inner(mixed))).unflatten(-1, self.shape)
