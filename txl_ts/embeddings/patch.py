"""One token per row: a linear map of the patch that ends there."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from txl_ts.embeddings.normaliser import Scale


class PatchEmbedding(nn.Module):
    """Embed values, masks, drift and age of a patch.

    Parameters
    ----------
    patch_len : int
        Rows of a patch.
    n_channels : int
    d_model : int
    """

    def __init__(self, *, patch_len: int, n_channels: int, d_model: int) -> None:
        super().__init__()
        self.linear = nn.Linear(n_channels * (2 * patch_len + 3), d_model)

    def forward(self, z: Tensor, present: Tensor, scale: Scale) -> Tensor:
        """Give one token per row.

        Parameters
        ----------
        z, present : Tensor of shape (B, n, C, patch_len)
            Normalised values (0 where missing) and masks.
        scale : Scale
            At the same rows.

        Returns
        -------
        Tensor of shape (B, n, D)
        """
        age = torch.log1p(scale.age)[..., None]
        return self.linear(torch.cat([z, present, scale.drift, age], dim=-1).flatten(2))
