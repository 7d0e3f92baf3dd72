"""Transformer-XL's relative attention under a sliding window, in blocks: time and memory linear in the segment.

The rows of a call stand behind the rows of the memory, oldest first. Query ``i`` sees the ``mem_len + 1`` keys whose
distance lies in 0..mem_len, whatever the split of the stream into calls: that makes the output independent of it.

There are two forms of the score by position. On an even grid distances are counted in visits, and a table of them is
projected once. For uneven time they are real numbers, and the sine and cosine of a difference are split into products:
the score is a dot product of a rotated query and the waves of the key's own time, exact for any times. The window is
counted in visits in both.

Beside the window rows may attend to a far memory: slots that change only at the lines of a grid, so that the rows
between two lines (a block) see the same ones.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txl_ts.errors import ShapeError

# Short windows are still worked off in blocks of some size: a block of one row would be a matrix-vector product.
_LEAST_BLOCK = 32
# Where nothing was summed yet, nothing is divided by nothing.
_LEAST_SUM = 1e-6


def sinusoid_table(*, n_distances: int, d_model: int, clamp_len: int | None = None) -> Tensor:
    """Encode the distances ``n_distances − 1 … 0``, farthest first, halves concatenated.

    Distances beyond ``clamp_len`` are encoded as it.

    Returns
    -------
    Tensor of shape (n_distances, d_model)

    References
    ----------
    Dai et al. (2019), Transformer-XL (arXiv 1901.02860), section 3.3; frequencies of Vaswani et al. (2017).
    """
    distance = torch.arange(n_distances - 1, -1, -1, dtype=torch.float64)
    distance = distance if clamp_len is None else distance.clamp(max=clamp_len)
    frequency = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    angle = distance[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def waves(times: Tensor, *, d_model: int) -> tuple[Tensor, Tensor]:
    """Give sines and cosines of times, (…, d_model / 2) each, by the frequencies of :func:`sinusoid_table`.

    Angles are taken in float64: as float32, times of some thousand steps would be off in the third digit.
    """
    frequency = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64, device=times.device) / d_model)
    angle = times.double()[..., None] * frequency
    return angle.sin(), angle.cos()


def rotated(query: Tensor, weight: Tensor, sine: Tensor, cosine: Tensor) -> Tensor:
    """Turn queries so that their product with the waves of a key's time is their score by distance.

    ``W R(t − s)``, with the sine and cosine of a difference split into products:
    ``q · W R(t − s) = rotated(q, t) · [sin(f s); cos(f s)]``.

    Parameters
    ----------
    query : Tensor of shape (B, H, …, T, K)
    weight : Tensor of shape (H, K, D)
        Projection of the distances, by head.
    sine, cosine : Tensor of shape (B, 1, …, T, D / 2)
        Waves of the queries' times.

    Returns
    -------
    Tensor of shape (B, H, …, T, D)
    """
    weight = weight.reshape(len(weight), *(1,) * (query.ndim - 4), *weight.shape[1:])
    by_sine, by_cosine = (query @ weight).chunk(2, dim=-1)
    return torch.cat([by_cosine * sine - by_sine * cosine, by_sine * sine + by_cosine * cosine], dim=-1)


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


class Far(NamedTuple):
    """Slots beyond the window, as the rows of a call see them: ``n`` blocks of ``N`` rows, each with ``F`` slots.

    Attributes
    ----------
    key, value : Tensor of shape (B, H, n, F, K)
    visible : bool Tensor of shape (B, n, F)
        Which slots hold something.
    age : Tensor of shape (B, n, F) or (1, n, F), or None
        Visits from what a slot stands for to the first row of the block; None if slots have no place in time.
    bias : Tensor of shape (B, n, F) or None
        What is added to the score of each slot.
    place : int64 Tensor of shape (B, T)
        Where the rows of the call lie among the ``n · N`` rows of the blocks; consecutive.
    offset : Tensor of shape (B, n, N), or one that broadcasts to it
        Visits from the first row of the block to each row.
    sums : Tensor of shape (B, H, n, K, K + 1), optional
        Sums of ``φ(k) [v, 1]``, for linear attention beside the slots.
    share : Tensor of shape (B, H, n, 1, 1), optional
        Share of the heads that linear attention has.
    """

    key: Tensor
    value: Tensor
    visible: Tensor
    age: Tensor | None
    bias: Tensor | None
    place: Tensor
    offset: Tensor
    sums: Tensor | None = None
    share: Tensor | None = None

    def deal(self, rows: Tensor) -> Tensor:
        """Deal what belongs to the rows of a call, (B, H, T, K), out to the blocks, (B, H, n, N, K).

        Places before the first row and after the last are filled with copies of these: nobody reads them.
        """
        n_blocks, n_rows = self.key.shape[2], self.offset.shape[-1]
        place = torch.arange(n_blocks * n_rows, device=rows.device)
        row = (place - self.place[:, :1]).clamp(0, rows.shape[2] - 1)
        return _taken(rows, row).unflatten(2, (n_blocks, n_rows))

    def join(self, rows: Tensor) -> Tensor:
        """Take the rows of the call, (B, H, T, K), out of the blocks, (B, H, n, N, K)."""
        return _taken(rows.flatten(2, 3), self.place)


def positive(rows: Tensor) -> Tensor:
    """Map keys and queries of linear attention to positive numbers: ``φ(x) = elu(x) + 1``."""
    return F.elu(rows) + 1


def _taken(rows: Tensor, index: Tensor) -> Tensor:
    """Take rows (B, H, n, K) by their numbers (B, T)."""
    return rows.gather(2, index[:, None, :, None].expand(-1, rows.shape[1], -1, rows.shape[3]))


class RelativeAttention(nn.Module):
    """Multi-head attention with content and position scores (untied ``u`` and ``v``).

    Parameters
    ----------
    d_model : int
    n_heads : int
    mem_len : int
        Window in visits: ``mem_len + 1`` keys are visible, the own one among them.
    clamp_len : int, optional
        Distances beyond it count as it.
    same_length : bool
        False lets every row see the whole memory and all rows of its own call that come before it.

    References
    ----------
    Dai et al. (2019), Transformer-XL (arXiv 1901.02860), section 3.3 and appendix B.
    """

    def __init__(
        self, *, d_model: int, n_heads: int, mem_len: int, clamp_len: int | None = None, same_length: bool = True
    ) -> None:
        super().__init__()
        self.n_heads, self.d_head, self.mem_len = n_heads, d_model // n_heads, mem_len
        self.clamp_len, self.same_length = clamp_len, same_length
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key_value = nn.Linear(d_model, 2 * d_model, bias=False)
        self.position = nn.Linear(d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)
        self.u = nn.Parameter(torch.zeros(n_heads, self.d_head))
        self.v = nn.Parameter(torch.zeros(n_heads, self.d_head))
        table = sinusoid_table(n_distances=mem_len + 1, d_model=d_model, clamp_len=clamp_len)
        self.register_buffer("table", table, persistent=False)
        self.table: Tensor

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Project rows (B, T, D) to keys and values, (B, H, T, K) each."""
        key, value = self.key_value(x).unflatten(-1, (2, self.n_heads, self.d_head)).permute(2, 0, 3, 1, 4)
        return key, value

    def position_keys(self, window: int | None = None) -> Tensor:
        """Give the projected position table, farthest distance first, of shape (H, M + 1, K), or (H, window + 1, K)."""
        table = self.table
        if window is not None and window != self.mem_len:
            table = sinusoid_table(n_distances=window + 1, d_model=self.position.in_features, clamp_len=self.clamp_len)
        table = table.to(self.position.weight)
        return self.position(table).unflatten(-1, (self.n_heads, self.d_head)).transpose(0, 1)

    def position_weight(self) -> Tensor:
        """Give the projection of the distances by head, of shape (H, K, D)."""
        return self.position.weight.unflatten(0, (self.n_heads, self.d_head))

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

    def forward(
        self,
        x: Tensor,
        key: Tensor,
        value: Tensor,
        visible: Tensor,
        times: Tensor | None = None,
        far: Far | None = None,
    ) -> Tensor:
        """Attend from each row to the window that ends with it.

        Parameters
        ----------
        x : Tensor of shape (B, T, D)
            Rows that ask.
        key, value : Tensor of shape (B, H, M + T, K)
            Of the memory, then of the rows themselves. Must be finite, hidden slots too.
        visible : bool Tensor of shape (B, M)
            Which memory slots hold a row.
        times : float64 Tensor of shape (B, M + T), optional
            When the rows of the memory and those that ask came, in any units, from any origin; without it rows are
            one unit apart.
        far : Far, optional
            What rows attend to beyond the window, in one softmax with it.

        Returns
        -------
        Tensor of shape (B, T, D)
        """
        n_rows, window = x.shape[1], self.mem_len
        block = n_rows if n_rows <= 2 * max(window, _LEAST_BLOCK) else max(window, _LEAST_BLOCK)
        if not self.same_length:  # a window that no row of the call leaves, over a memory with empty slots before it
            window, block, empty = window + n_rows - 1, n_rows, n_rows - 1
            key, value = (F.pad(t, (0, 0, empty, 0)) for t in (key, value))
            visible = F.pad(visible, (empty, 0), value=False)
        n_blocks = -(-n_rows // block)
        pad = n_blocks * block - n_rows
        scale = 1 / math.sqrt(self.d_head)
        query = (self.query(x) * scale).unflatten(-1, (self.n_heads, self.d_head)).transpose(1, 2)  # (B, H, T, K)
        by_content = query
        beyond = None if far is None else F.pad(self.far_scores(query, far), (0, 0, 0, pad))  # (B, H, T, F)
        # Rows that pad the last block come last: no real row sees them.
        query = F.pad(query, (0, 0, 0, pad)).unflatten(2, (n_blocks, block))  # (B, H, n, b, K)
        if n_blocks == 1:  # the same view, without the copies that the gradient of the other would make
            key, value = (t.transpose(2, 3)[:, :, None] for t in (key, value))
        else:
            key, value = (F.pad(t, (0, 0, 0, pad)).unfold(2, window + block, block) for t in (key, value))
        content = (query + (self.u * scale)[:, None, None]) @ key  # (B, H, n, b, W + b)
        by_position = query + (self.v * scale)[:, None, None]
        if times is None:
            table = self.position_keys(window)[:, None].transpose(-1, -2)
            score = content + band_shift(by_position @ table, n_keys=window + block)  # from (B, H, n, b, W + 1)
        else:
            times = F.pad(times, (0, pad)).unfold(1, window + block, block)  # (B, n, W + b)
            score = content + self._by_time(by_position, times)
        seen = F.pad(visible, (0, n_blocks * block), value=True).unfold(1, window + block, block)  # (B, n, W + b)
        mask = _band(block, window=window, device=x.device) & seen[:, None, :, None]
        score = score.masked_fill(~mask, -torch.inf)
        if beyond is not None:
            score = torch.cat([score, beyond.unflatten(2, (n_blocks, block))], dim=-1)  # (B, H, n, b, W + b + F)
        weight = score.softmax(-1)
        heads = (weight[..., : window + block] @ value.transpose(-1, -2)).flatten(2, 3)[:, :, :n_rows]  # (B, H, T, K)
        if far is not None:
            beyond = weight[..., window + block :].flatten(2, 3)[:, :, :n_rows]
            heads = heads + far.join(far.deal(beyond) @ far.value)
            heads = self.with_sums(heads, by_content, far)
        return self.output(heads.transpose(1, 2).flatten(2))

    def far_scores(self, query: Tensor, far: Far) -> Tensor:
        """Score the slots beyond the window, (B, H, T, F), for scaled queries (B, H, T, K)."""
        scale = 1 / math.sqrt(self.d_head)
        asked = far.deal(query)  # (B, H, n, N, K)
        score = (asked + (self.u * scale)[:, None, None]) @ far.key.transpose(-1, -2)
        if far.age is not None:
            width, dtype = self.position.in_features, query.dtype
            sine, cosine = (wave[:, None].to(dtype) for wave in waves(far.offset, d_model=width))
            weight = self.position_weight().to(dtype)
            turned = rotated(asked + (self.v * scale)[:, None, None], weight, sine, cosine)
            score = score + turned @ torch.cat(waves(-far.age, d_model=width), -1).to(dtype)[:, None].transpose(-1, -2)
        if far.bias is not None:
            score = score + far.bias[:, None, :, None]
        return far.join(score.masked_fill(~far.visible[:, None, :, None], -torch.inf))

    def with_sums(self, heads: Tensor, query: Tensor, far: Far) -> Tensor:
        """Mix heads (B, H, T, K) with linear attention of scaled queries over the sums, if there are any."""
        if far.sums is None or far.share is None:
            return heads
        told = positive(far.deal(query)) @ far.sums  # (B, H, n, N, K + 1)
        read = told[..., :-1] / told[..., -1:].clamp(min=_LEAST_SUM)
        return heads + far.join(far.share * (read - far.deal(heads)))

    def _by_time(self, query: Tensor, times: Tensor) -> Tensor:
        """Scores (B, H, n, b, W + b) by real distances, of queries (B, H, n, b, K) and times (B, n, W + b)."""
        window, dtype = self.mem_len, query.dtype
        times = times - times[..., window : window + 1]  # small angles: what is left of a long stream is rounding
        sine, cosine = (wave[:, None].to(dtype) for wave in waves(times, d_model=self.position.in_features))
        turned = rotated(query, self.position_weight().to(dtype), sine[..., window:, :], cosine[..., window:, :])
        return turned @ torch.cat([sine, cosine], dim=-1).transpose(-1, -2)


def _band(n_rows: int, *, window: int, device: torch.device) -> Tensor:
    """Tell which of ``window + n_rows`` keys lie at a distance of 0..window of each row."""
    ahead = torch.arange(window + n_rows, device=device) - torch.arange(n_rows, device=device)[:, None]
    return (ahead >= 0) & (ahead <= window)
