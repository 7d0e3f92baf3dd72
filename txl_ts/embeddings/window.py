"""The last raw rows of a lane, kept in the state, and the window that ends at each row.

A missing row carries the value before it, and says so: the linear path would else read "at the mean" where nothing is
known. For the same reason rows from before a series began may repeat its first season.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

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
    season : int
        Less than ``length``. Once a series is so many rows long, what a window shows from before its first value
        repeats its first ``season`` rows; 0, and until then, leaves it at the mean.
    """

    def __init__(self, *, length: int, n_channels: int, season: int = 0) -> None:
        self.length, self.n_channels, self.season = length, n_channels, season

    def specs(self) -> tuple[TensorSpec]:
        """Describe the state: value above the shift; and 1 where it came, −1 where it is carried, 0 for neither."""
        return (TensorSpec("rows", (2, self.n_channels, self.length - 1), "float32"),)

    def extend(self, x: Tensor, present: Tensor, age: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Put the rows of a call behind the kept ones.

        Parameters
        ----------
        x : Tensor of shape (B, T, C)
            Values above the lane's shift, 0 where missing.
        present : bool Tensor of shape (B, T, C)
        age : Tensor of shape (B, T, C)
            Rows since the last value.
        rows : Tensor of shape (B, 2, C, length − 1)

        Returns
        -------
        history : Tensor of shape (B, 2, C, length − 1 + T)
        rows : Tensor of shape (B, 2, C, length − 1)
            The newest rows, to be kept.
        """
        n_rows = x.shape[1]
        came = present.transpose(1, 2)  # (B, C, T)
        new = torch.stack([x.transpose(1, 2), came.to(x.dtype)], dim=1)  # (B, 2, C, T)
        if n_rows == 1:
            before = rows[..., -1:]
        else:
            # The row with the last value; one from before the call is carried by the newest kept row.
            order = torch.arange(n_rows, device=x.device)
            back = torch.minimum(age.transpose(1, 2), (order + 1).to(age.dtype)).long()
            source = (self.length - 1 + order - back)[:, None].expand(-1, 2, -1, -1)
            before = torch.cat([rows, new], dim=-1).gather(3, source)
        value, origin = before.split(1, dim=1)
        carried = torch.cat([value, -origin.abs()], dim=1)
        history = torch.cat([rows, torch.where(came[:, None], new, carried)], dim=-1)
        return history, history[..., n_rows:]

    def at(
        self, history: Tensor, picked: Tensor | None, scale: Scale, *, repeats: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Cut out the windows that end at some rows, normalised by the statistics of their last row.

        Parameters
        ----------
        history : Tensor of shape (B, 2, C, length − 1 + T)
        picked : int64 Tensor of shape (n,), optional
            Rows of the call; None is all of them, by a copy of the history per row: for graphs, and for one row.
        scale : Scale
            At the picked rows.
        repeats : bool
            False leaves all that was before the first value at the mean.

        Returns
        -------
        z : Tensor of shape (B, n, C, length)
            In deviations, clipped; carried where missing; from before the first value its season, or 0.
        present : Tensor of shape (B, n, C, length)
            1 where a value came, else 0.
        """
        repeats = repeats and self.season > 0
        if repeats:
            history = _repeated(history, self.season)
        value, origin = self._windows(history, picked).unbind(1)  # (B, n, C, length) each
        known = origin.abs()
        if repeats:  # a whole season is there: so is all that repeats it
            known = torch.maximum(known, known[..., self.length - self.season, None])
        return scale.normalise(value).clamp(-_CLIP, _CLIP) * known, (origin > 0).to(value.dtype)

    def _windows(self, history: Tensor, picked: Tensor | None) -> Tensor:
        """Give the windows (B, 2, n, C, length)."""
        n_rows = history.shape[-1] - self.length + 1
        if picked is None and n_rows == 1:
            return history[:, :, None]
        if picked is None:
            # Row t of a copy that is one number longer begins at number t: windows without an index per number.
            copies = history[..., None, :].expand(-1, -1, -1, n_rows, -1).flatten(-2)
            windows = F.pad(copies, (0, n_rows)).unflatten(-1, (n_rows, history.shape[-1] + 1))[..., : self.length]
        else:
            # Indexing copies the picked windows only; `unfold` and `index_select` would copy all of them first.
            windows = history[..., picked[:, None] + torch.arange(self.length, device=picked.device)]
        return windows.transpose(2, 3)


def _repeated(history: Tensor, season: int) -> Tensor:
    """Let the values before the first one repeat the season that begins there; (B, 2, C, N) as in :class:`RowWindow`.

    Near the end of a short history that takes rows that had not come yet; nobody may look at them.
    """
    value, origin = history.unbind(1)
    order = torch.arange(value.shape[-1], device=value.device)
    n_before = (origin == 0).sum(dim=-1, keepdim=True)
    n_seasons = ((n_before - order).clamp(min=0) / season).ceil().long()
    source = (order + n_seasons * season).clamp(max=value.shape[-1] - 1)
    return torch.stack([value.gather(-1, source), origin], dim=1)
