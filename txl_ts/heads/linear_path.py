"""The linear path beside the recurrent one: the last normalised rows, straight to the forecast."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LinearPath(nn.Module):
    """One affine map, shared by all channels, from ``lookback`` rows to ``h`` steps.

    It is fitted in closed form (ridge) before training. That is the end of it where squared errors count; for other
    losses it is where training starts from.

    Parameters
    ----------
    lookback : int
        Rows; 0 makes the path a constant 0.
    h : int
    n_known : int
        Features of each row ahead that the path sees beside the rows; each step has weights of its own for them.
    """

    def __init__(self, *, lookback: int, h: int, n_known: int = 0) -> None:
        super().__init__()
        self.lookback, self.n_known = lookback, n_known
        self.weight = nn.Parameter(torch.zeros(h, lookback))
        self.bias = nn.Parameter(torch.zeros(h))
        if n_known:
            self.known = nn.Parameter(torch.zeros(h, n_known))

    def forward(self, z: Tensor) -> Tensor:
        """Map windows (B, n, C, lookback), in deviations, to forecasts (B, n, h, C), in deviations."""
        if not self.lookback:  # a product over no rows: OpenVINO reads the empty weights as a scalar, and refuses
            return self.bias[:, None].expand(*z.shape[:2], -1, z.shape[2])
        return F.linear(z, self.weight, self.bias).transpose(2, 3)

    def ahead(self, known: Tensor) -> Tensor:
        """Map features of the rows ahead (B, n, h, ≥ n_known), the first ``n_known``, to their part (B, n, h, 1)."""
        if not self.n_known:  # large vocabularies alone
            return torch.zeros_like(known[..., :1])
        known = known[..., : self.n_known]
        if len(self.known) < known.shape[2]:  # one map for all asked times
            return F.linear(known, self.known)
        return torch.einsum("bnhf,hf->bnh", known, self.known)[..., None]
