"""First in, first out: a layer keeps the newest rows, in a ring."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from txl_ts.errors import ParameterError
from txl_ts.state import TensorSpec

_LONGEST_TURN = 2**30


class Fifo:
    """The newest ``mem_len`` visits of each phase, interleaved in one ring.

    Row ``t`` lies in slot ``t mod (stride · (mem_len + 1))``, so a phase (``t mod stride``) owns every stride-th slot.
    The ring has room for ``mem_len + 1`` visits of a phase: a row may be written before it is read. Unfilled slots may
    hold anything: they are invisible.

    Parameters
    ----------
    mem_len : int, or sequence of int
        Visits that stay visible beside the own one, of all layers or of each.
    stride : int
        Rows between two visits of a phase.

    References
    ----------
    Dai et al. (2019), Transformer-XL (arXiv 1901.02860), section 3.2.
    """

    name = "fifo"

    def __init__(self, *, mem_len: int | Sequence[int], stride: int = 1) -> None:
        self.lengths = None if isinstance(mem_len, int) else tuple(mem_len)
        # Of the longest layer; shorter ones share its counters.
        self.mem_len, self.stride = mem_len if isinstance(mem_len, int) else max(mem_len), stride
        self.n_rows = stride * self.mem_len
        self.n_slots = stride * (self.mem_len + 1)
        self.turn = self.n_slots
        if self.lengths is not None:
            self.turn = stride * math.lcm(*(length + 1 for length in self.lengths))
            if self.turn >= _LONGEST_TURN:
                raise ParameterError(
                    f"mem_len={self.lengths} makes rings that stand alike only every {self.turn} rows, more than "
                    "counters hold. Take lengths such as 15, 31, 63: one less than numbers that divide each other."
                )

    def of(self, layer: int) -> Fifo:
        """Give the window of one layer; its counters are those of this one."""
        if self.lengths is None:
            return self
        window = Fifo(mem_len=self.lengths[layer], stride=self.stride)
        window.turn = self.turn
        return window

    def specs(self, *, n_layers: int, kinds: Sequence[str], n_heads: int, d_head: int) -> tuple[TensorSpec, ...]:
        """Describe the state: one ring per layer and kind of row, then the counters.

        The counters are ``valid``, the filled slots (saturating), and ``phase``, the next slot (wrapped; where layers
        differ in length, at the least common multiple of their rings). Each ring is
        a tensor of its own and each head lies in one piece: a graph then reads them where they are, and a step writes
        one row instead of copying all (1,024 slots of width 128: 8 µs a copy).
        """
        rings = (
            TensorSpec(f"{kind}_{layer}", (n_heads, self.of(layer).n_slots, d_head), "float32")
            for layer in range(n_layers)
            for kind in kinds
        )
        return (*rings, TensorSpec("count", (2,), "int32"))

    def visible(self, count: Tensor) -> Tensor:
        """Tell which of the rows that :meth:`read` gives hold a row: (B, stride · mem_len)."""
        return _filled(count, self.n_rows)

    def read(self, ring: Tensor, count: Tensor) -> Tensor:
        """Give the visible rows of one ring, oldest first.

        Parameters
        ----------
        ring : Tensor of shape (B, H, n_slots, K)
        count : int32 Tensor of shape (B, 2)

        Returns
        -------
        Tensor of shape (B, H, stride · mem_len, K)
            Slots that hold no row are zero.
        """
        return self._newest(ring, count, self.visible(count))

    def write(self, ring: Tensor, count: Tensor, rows: Tensor) -> Tensor:
        """Give the ring after new rows (B, H, T, K), in time order."""
        n_new = min(rows.shape[2], self.n_slots)  # older ones would be overwritten in the same call
        skipped = rows.shape[2] - n_new
        order = torch.arange(skipped, skipped + n_new, device=ring.device)
        slot = torch.remainder(count[:, 1:] + order, self.n_slots).long()
        # Memory keeps its own precision when the layers compute in a lower one.
        return ring.scatter(2, _along_slots(slot, ring), rows[:, :, skipped:].to(ring.dtype))

    def advance(self, count: Tensor, *, n_rows: int) -> Tensor:
        """Move the counters on by ``n_rows`` rows."""
        # Both stay below turn + n_rows, so int32 cannot overflow however long the stream runs.
        valid = (count[:, 0] + n_rows).clamp(max=self.n_slots)
        phase = torch.remainder(count[:, 1] + n_rows, self.turn)
        return torch.stack([valid, phase], dim=1).to(count.dtype)

    def taken_over(self, rings: Sequence[Tensor], count: Tensor, *, before: Fifo) -> tuple[list[Tensor], Tensor]:
        """Give one kind of ring of each layer, and the counters, that hold the newest rows of another length's.

        A memory that grew has room that nothing fills until rows come: it is invisible. Layers share their counters, so
        where some grow, all see as far as what those held.

        Parameters
        ----------
        rings : sequence of Tensor of shape (B, H, n_slots, K)
            Of each layer, as ``before`` has them.
        count : int32 Tensor of shape (B, 2)
        before : Fifo
            Of the same stride.
        """
        pairs = [(self.of(layer), before.of(layer)) for layer in range(len(rings))]
        most = min([self.n_slots, *(old.n_slots for new, old in pairs if new.n_slots > old.n_slots)])
        valid, phase = count[:, :1].clamp(max=most), torch.remainder(count[:, 1:], self.stride)
        out = []
        for ring, (new, old) in zip(rings, pairs, strict=True):
            n = min(new.n_slots, old.n_slots)
            empty = ring.new_zeros(*ring.shape[:2], new.n_slots, ring.shape[3])
            out.append(
                new.write(empty, torch.cat([valid, phase - n], dim=1), old._newest(ring, count, _filled(count, n)))
            )
        return out, torch.cat([valid, phase], dim=1)

    def _newest(self, ring: Tensor, count: Tensor, filled: Tensor) -> Tensor:
        """Give the newest rows of a ring, oldest first, as many as are told to be filled (B, n) or not; zero if not."""
        n = filled.shape[1]
        order = torch.arange(n, device=ring.device)
        slot = torch.remainder(count[:, 1:] - n + order, self.n_slots).long()  # (B, n)
        rows = ring.gather(2, _along_slots(slot, ring))
        # where, not a product: an unfilled slot may hold NaN, and 0 · NaN is NaN.
        return torch.where(filled[:, None, :, None], rows, rows.new_zeros(()))


def _filled(count: Tensor, n: int) -> Tensor:
    """Tell which of the newest ``n`` slots hold a row, oldest first."""
    return torch.arange(n, device=count.device) >= n - count[:, :1]


def _along_slots(slot: Tensor, ring: Tensor) -> Tensor:
    """Spread slots (B, n) over the heads and columns of a ring."""
    return slot[:, None, :, None].expand(-1, ring.shape[1], -1, ring.shape[3])
