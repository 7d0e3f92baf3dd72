"""First in, first out: a layer keeps the newest rows, in a ring."""

from __future__ import annotations

import torch
from torch import Tensor

from txl_ts.state import TensorSpec


class Fifo:
    """The newest ``mem_len`` visits of each phase, interleaved in one ring.

    Row ``t`` lies in slot ``t mod (stride · (mem_len + 1))``, so a phase (``t mod stride``) owns every stride-th slot.
    The ring has room for ``mem_len + 1`` visits of a phase: a row may be written before it is read. Unfilled slots may
    hold anything: they are invisible.

    Parameters
    ----------
    mem_len : int
        Visits that stay visible beside the own one.
    stride : int
        Rows between two visits of a phase.

    References
    ----------
    Dai et al. (2019), Transformer-XL (arXiv 1901.02860), section 3.2.
    """

    name = "fifo"

    def __init__(self, *, mem_len: int, stride: int = 1) -> None:
        self.mem_len, self.stride = mem_len, stride
        self.n_rows = stride * mem_len
        self.n_slots = stride * (mem_len + 1)

    def specs(self, *, n_layers: int, n_kinds: int, d_model: int) -> tuple[TensorSpec, TensorSpec]:
        """Describe the state: the rows (``n_kinds`` is 1 for hidden rows, 2 for keys and values) and the counters.

        The counters are ``valid``, the filled slots (saturating), and ``phase``, the next slot (wrapped).
        """
        shape = (n_layers, n_kinds, self.n_slots, d_model)
        return TensorSpec("mem", shape, "float32"), TensorSpec("count", (2,), "int32")

    def visible(self, count: Tensor) -> Tensor:
        """Tell which of the rows that :meth:`read` gives hold a row: (B, stride · mem_len)."""
        order = torch.arange(self.n_rows, device=count.device)
        return order >= self.n_rows - count[:, :1]

    def read(self, ring: Tensor, count: Tensor) -> Tensor:
        """Give one layer's visible rows, oldest first.

        Parameters
        ----------
        ring : Tensor of shape (B, n_kinds, n_slots, D)
        count : int32 Tensor of shape (B, 2)

        Returns
        -------
        Tensor of shape (B, stride · mem_len, n_kinds, D)
            Slots that hold no row are zero.
        """
        order = torch.arange(self.n_rows, device=ring.device)
        slot = torch.remainder(count[:, 1:] - self.n_rows + order, self.n_slots).long()  # (B, S · M)
        index = slot[:, None, :, None].expand(-1, ring.shape[1], -1, ring.shape[3])
        rows = ring.gather(2, index).transpose(1, 2)  # (B, S · M, n_kinds, D)
        # where, not a product: an unfilled slot may hold NaN, and 0 · NaN is NaN.
        return torch.where(self.visible(count)[:, :, None, None], rows, rows.new_zeros(()))

    def write(self, ring: Tensor, count: Tensor, rows: Tensor) -> Tensor:
        """Give the ring after new rows (B, T, n_kinds, D), in time order."""
        n_new = min(rows.shape[1], self.n_slots)  # older ones would be overwritten in the same call
        skipped = rows.shape[1] - n_new
        order = torch.arange(skipped, skipped + n_new, device=ring.device)
        slot = torch.remainder(count[:, 1:] + order, self.n_slots).long()
        index = slot[:, None, :, None].expand(-1, ring.shape[1], -1, ring.shape[3])
        # Memory keeps its own precision when the layers compute in a lower one.
        return ring.scatter(2, index, rows[:, skipped:].transpose(1, 2).to(ring.dtype))

    def advance(self, count: Tensor, *, n_rows: int) -> Tensor:
        """Move the counters on by ``n_rows`` rows."""
        # Both stay below n_slots + n_rows, so int32 cannot overflow however long the stream runs.
        valid = (count[:, 0] + n_rows).clamp(max=self.n_slots)
        phase = torch.remainder(count[:, 1] + n_rows, self.n_slots)
        return torch.stack([valid, phase], dim=1).to(count.dtype)
