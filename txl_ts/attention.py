"""Transformer-XL's relative attention under a sliding window, in blocks: time and memory linear in the segment.

The rows of a call stand behind the rows of the memory, oldest first. Query ``i`` sees the ``mem_len + 1`` keys whose
distance lies in 0..mem_len, whatever the split of the stream into calls: that makes the output independent of it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txl_ts.errors import ShapeError

# Short windows are still worked off in blocks of some size: a block of one row would be a matrix-vector product.
_LEAST_BLOCK = 32


def sinusoid_table(*, n_distances: int, d_model: int) -> Tensor:
    """Encode the distances ``n_distances − 1 … 0``, farthest first, halves concatenated.

    Returns
    -------
    Tensor of shape (n_distances, d_model)

    References
    ----------
    Dai et al. (2019), Transformer-XL (arXiv 1901.02860), section 3.3; frequencies of Vaswani et al. (2017).
    """
    distance = torch.arange(n_distances - 1, -1, -1, dtype=torch.float64)
    frequency = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    angle = distance[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def band_shift(scores: Tensor, *, n_keys: int) -> Tensor:
    """Line up scores by distance with the keys they belong to.

    Row ``i`` of the input holds the scores of the distances ``W … 0``; key ``j`` of row ``i`` has the distance
    ``W + i − j``, so the row moves ``i`` columns to the right.

    Parameters
    ----------
    scores : Tensor of shape (…, T, W + 1)
    n_keys : int
        ``W + T``.

    Returns
    -------
    Tensor of shape (…, T, W + T)
        Entries outside the band are meaningless and must be masked.

    Raises
    ------
    ShapeError
        If ``n_keys`` is not ``W + T``.
    """
    n_rows, n_distances = scores.shape[-2:]
    if n_keys != n_distances - 1 + n_rows:
        raise ShapeError(f"n_keys={n_keys} must be W + T = {n_distances - 1} + {n_rows}.")
    flat = F.pad(scores, (0, n_rows)).flatten(-2)  # (…, T · (W + 1 + T))
    return flat[..., : n_rows * n_keys].unflatten(-1, (n_rows, n_keys))


class RelativeAttention(nn.Module):
    """Multi-head attention with content and position scores (untied ``u`` and ``v``).

    Parameters
    ----------
    d_model : int
    n_heads : int
    mem_len : int
        Window in visits: ``mem_len + 1`` keys are visible, the own one among them.

    References
    ----------
    Dai et al. (2019), Transformer-XL (arXiv 1901.02860), section 3.3 and appendix B.
    """

    def __init__(self, *, d_model: int, n_heads: int, mem_len: int) -> None:
        super().__init__()
        self.n_heads, self.d_head, self.mem_len = n_heads, d_model // n_heads, mem_len
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key_value = nn.Linear(d_model, 2 * d_model, bias=False)
        self.position = nn.Linear(d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)
        self.u = nn.Parameter(torch.zeros(n_heads, self.d_head))
        self.v = nn.Parameter(torch.zeros(n_heads, self.d_head))
        self.register_buffer("table", sinusoid_table(n_distances=mem_len + 1, d_model=d_model), persistent=False)
        self.table: Tensor

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Project rows (B, T, D) to keys and values, (B, H, T, K) each."""
        key, value = self.key_value(x).unflatten(-1, (2, self.n_heads, self.d_head)).permute(2, 0, 3, 1, 4)
        return key, value

    def position_keys(self) -> Tensor:
        """Give the projected position table, farthest distance first, of shape (H, M + 1, K)."""
        table = self.table.to(self.position.weight.dtype)
        return self.position(table).unflatten(-1, (self.n_heads, self.d_head)).transpose(0, 1)

    def last_row_weights(self, x: Tensor, key: Tensor, visible: Tensor) -> Tensor:
        """Give the weights with which the last row attends to its window, farthest key first, (B, H, M + 1).

        For looking only: :meth:`forward` has no use for it. Arguments are those of :meth:`forward`.
        """
        scale = 1 / math.sqrt(self.d_head)
        query = (self.query(x[:, -1]) * scale).unflatten(-1, (self.n_heads, self.d_head))[:, :, None]  # (B, H, 1, K)
        score = (query + (self.u * scale)[:, None]) @ key[:, :, -self.mem_len - 1 :].transpose(-1, -2)
        score = score + (query + (self.v * scale)[:, None]) @ self.position_keys().transpose(-1, -2)
        seen = F.pad(visible, (0, x.shape[1]), value=True)[:, None, None, -self.mem_len - 1 :]
        return score.masked_fill(~seen, -torch.inf).softmax(-1)[:, :, 0]

    def forward(self, x: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
        """Attend from each row to the window that ends with it.

        Parameters
        ----------
        x : Tensor of shape (B, T, D)
            Rows that ask.
        key, value : Tensor of shape (B, H, M + T, K)
            Of the memory, then of the rows themselves. Must be finite, hidden slots too.
        visible : bool Tensor of shape (B, M)
            Which memory slots hold a row.

        Returns
        -------
        Tensor of shape (B, T, D)
        """
        n_rows, window = x.shape[1], self.mem_len
        block = n_rows if n_rows <= 2 * max(window, _LEAST_BLOCK) else max(window, _LEAST_BLOCK)
        n_blocks = -(-n_rows // block)
        pad = n_blocks * block - n_rows
        scale = 1 / math.sqrt(self.d_head)
        query = (self.query(x) * scale).unflatten(-1, (self.n_heads, self.d_head)).transpose(1, 2)  # (B, H, T, K)
        # Rows that pad the last block come last: no real row sees them.
        query = F.pad(query, (0, 0, 0, pad)).unflatten(2, (n_blocks, block))  # (B, H, n, b, K)
        key, value = (F.pad(t, (0, 0, 0, pad)).unfold(2, window + block, block) for t in (key, value))
        content = (query + (self.u * scale)[:, None, None]) @ key  # (B, H, n, b, W + b)
        table = self.position_keys()[:, None].transpose(-1, -2)
        position = (query + (self.v * scale)[:, None, None]) @ table  # (B, H, n, b, W + 1)
        score = content + band_shift(position, n_keys=window + block)
        seen = F.pad(visible, (0, n_blocks * block), value=True).unfold(1, window + block, block)  # (B, n, W + b)
        mask = _band(block, window=window, device=x.device) & seen[:, None, :, None]
        weight = score.masked_fill(~mask, -torch.inf).softmax(-1)
        heads = (weight @ value.transpose(-1, -2)).flatten(2, 3)[:, :, :n_rows]  # (B, H, T, K)
        return self.output(heads.transpose(1, 2).flatten(2))


def _band(n_rows: int, *, window: int, device: torch.device) -> Tensor:
    """Tell which of ``window + n_rows`` keys lie at a distance of 0..window of each row."""
    ahead = torch.arange(window + n_rows, device=device) - torch.arange(n_rows, device=device)[:, None]
    return (ahead >= 0) & (ahead <= window)
