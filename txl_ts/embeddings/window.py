"""The last raw rows of a lane, kept in the state, and the window that ends at each row.

A missing row carries the value before it, and says so: the linear path would else read "at the mean" where nothing is
known.
"""

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
        """Describe the state: value above the shift; and 1 where it came, −1 where it is carried, 0 for neither."""
        return (TensorSpec("rows", (self.length - 1, self.n_channels, 2), "float32"),)

    def extend(self, x: Tensor, present: Tensor, age: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Put the rows of a call behind the kept ones.

        Parameters
        ----------
        x : Tensor of shape (B, T, C)
            Values above the lane's shift, 0 where missing.
        present : bool Tensor of shape (B, T, C)
        age : Tensor of shape (B, T, C)
            Rows since the last value.
        rows : Tensor of shape (B, length − 1, C, 2)

        Returns
        -------
        history : Tensor of shape (B, length − 1 + T, C, 2)
        rows : Tensor of shape (B, length − 1, C, 2)
            The newest rows, to be kept.
        """
        n_rows = x.shape[1]
        history = torch.cat([rows, torch.stack([x, present.to(x.dtype)], dim=-1)], dim=1)
        # The row with the last value; one from before the call is carried by the newest kept row.
        order = torch.arange(n_rows, device=x.device)[:, None]
        source = self.length - 1 + order - torch.minimum(age, (order + 1).to(age.dtype)).long()
        value, origin = history.gather(1, source[..., None].expand(-1, -1, -1, 2)).unbind(-1)
        origin = torch.where(present, origin, -origin.abs())
        history = torch.cat([rows, torch.stack([value, origin], dim=-1)], dim=1)
        return history, history[:, n_rows:]

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
            In deviations, clipped; carried where missing, 0 where nothing had come yet.
        present : Tensor of shape (B, n, C, length)
            1 where a value came, else 0.
        """
        # Indexing copies the picked windows only; `unfold` and `index_select` would copy all of them first.
        index = picked[:, None] + torch.arange(self.length, device=picked.device)
        value, origin = history[:, index].permute(4, 0, 1, 3, 2)  # 2 × (B, n, C, length)
        return scale.normalise(value).clamp(-_CLIP, _CLIP) * origin.abs(), (origin > 0).to(value.dtype)
