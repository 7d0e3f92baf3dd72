"""The last raw rows of a lane, kept in the state, and the window that ends at each row."""

from __future__ import annotations

import torch
from torch import Tensor

from txl_ts.embeddings.normaliser import Scale
from txl_ts.state import TensorSpec

# Values beyond this many deviations are clipped in tokens and in the linear path.
_CLIP = 10.0


class RowWindow:
    """Windows over the rows of a call and the rows before it.

    Parameters
    ----------
    length : int
        Rows of a window, its own among them.
    n_channels : int
    """

    def __init__(self, *, length: int, n_channels: int) -> None:
        self.length, self.n_channels = length, n_channels

    def specs(self) -> tuple[TensorSpec]:
        """Describe the state: value above the lane's shift, and 1 where there was one."""
        return (TensorSpec("rows", (self.length - 1, self.n_channels, 2), "float32"),)

    def extend(self, x: Tensor, present: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Put the rows of a call behind the kept ones.

        Parameters
        ----------
        x : Tensor of shape (B, T, C)
            Values above the lane's shift, 0 where missing.
        present : bool Tensor of shape (B, T, C)
        rows : Tensor of shape (B, length − 1, C, 2)

        Returns
        -------
        history : Tensor of shape (B, length − 1 + T, C, 2)
        rows : Tensor of shape (B, length − 1, C, 2)
            The newest rows, to be kept.
        """
        history = torch.cat([rows, torch.stack([x, present.to(x.dtype)], dim=-1)], dim=1)
        return history, history[:, x.shape[1] :]

    def at(self, history: Tensor, picked: Tensor, scale: Scale) -> tuple[Tensor, Tensor]:
        """Cut out the windows that end at some rows, normalised by the statistics of their last row.

        Parameters
        ----------
        history : Tensor of shape (B, length − 1 + T, C, 2)
        picked : int64 Tensor of shape (n,)
            Rows of the call.
        scale : Scale
            At the picked rows.

        Returns
        -------
        z : Tensor of shape (B, n, C, length)
            In deviations, clipped; 0 where missing.
        present : Tensor of shape (B, n, C, length)
            1 where there was a value.
        """
        # Indexing copies the picked windows only; `unfold` and `index_select` would copy all of them first.
        index = picked[:, None] + torch.arange(self.length, device=picked.device)
        value, present = history[:, index].permute(4, 0, 1, 3, 2)  # 2 × (B, n, C, length)
        return scale.normalise(value).clamp(-_CLIP, _CLIP) * present, present
