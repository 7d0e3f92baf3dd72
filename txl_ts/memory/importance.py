"""Rows by importance: the least important row makes room for a new one, however old the others are."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txl_ts.attention import RelativeAttention
from txl_ts.memory.far import FarMemory, Kept, Slots

# Distances to a slot do not grow beyond this many visits.
_OLDEST = 4096.0


class Importance(FarMemory):
    """``n_slots`` rows; after each block the most important of them and of the block's rows stay.

    Importance is worth times use: use is the share of the layer's own attention (by content) that a row gets from the
    rows of each block, averaged over blocks with weights that decay; worth is learned from the row itself, and is also
    what a slot's weight in attention is multiplied by: that is how it gets a gradient, since the choice gives none.
    Recent rows need no protection beyond the window, which shows them anyway.

    Which row stays is a choice: where two are equally important to the last digits, streams that were cut differently
    may choose differently.

    Parameters
    ----------
    d_model, n_heads : int
    n_slots : int
        Rows that are kept.
    block : int
        Rows between two updates.
    decay : float
        What a row's use before counts for after a block, in [0, 1).

    References
    ----------
    Zhang et al. (2023), H2O: heavy-hitter oracle (arXiv 2306.14048), for scores from attention; Rae et al. (2020),
    Compressive Transformers (arXiv 1911.05507), "most used".
    """

    defaults: ClassVar[dict[str, int | float]] = {"n_slots": 16, "block": 8, "decay": 0.98}

    def __init__(self, *, d_model: int, n_heads: int, n_slots: int, block: int, decay: float) -> None:
        super().__init__()
        self.n_slots, self.block, self.decay = n_slots, block, decay
        self.worth = nn.Linear(d_model, 1)

    def specs(self) -> dict[str, tuple[int, ...]]:
        """Describe the rows, oldest first, their use, and their age (0: nothing there)."""
        return {"rows": (self.n_slots, self.worth.in_features), "use": (self.n_slots,), "age": (self.n_slots,)}

    def read(self, kept: Kept, n_blocks: Tensor) -> Slots:
        """Give the rows; what each is worth is added to its score, as a logarithm."""
        rows, age = kept["rows"].to(self.worth.weight.dtype), kept["age"]
        return Slots(rows, age > 0, age, F.logsigmoid(self.worth(rows)[..., 0]))

    def absorb(self, kept: Kept, rows: Tensor, n_blocks: Tensor, attention: RelativeAttention) -> Kept:
        """Keep the most important rows of those that were kept and those of the block."""
        n_new, there = rows.shape[1], kept["age"] > 0
        every = torch.cat([kept["rows"].to(rows.dtype), rows], dim=1)  # (B, F + N, D)
        share = self._shares(every, there, attention)
        use = torch.cat([self.decay * kept["use"] + (1 - self.decay) * share[:, :-n_new], share[:, -n_new:]], dim=1)
        older = torch.where(there, (kept["age"] + n_new).clamp(max=_OLDEST), kept["age"])
        new = torch.arange(n_new, 0, -1, dtype=older.dtype, device=older.device).expand(rows.shape[0], -1)
        score = self.worth(every)[..., 0].sigmoid() * (1 + use)
        score = torch.where(F.pad(there, (0, n_new), value=True), score, -1.0)
        # In the order of time again, so that slots stay where they are while nothing comes in.
        chosen = score.detach().topk(self.n_slots, dim=1).indices.sort(dim=1).values
        return {
            "rows": every.gather(1, chosen[..., None].expand(-1, -1, every.shape[2])),
            "use": use.gather(1, chosen).detach(),
            "age": torch.cat([older, new], dim=1).gather(1, chosen),
        }

    def _shares(self, every: Tensor, there: Tensor, attention: RelativeAttention) -> Tensor:
        """Attention that each of F + N rows gets from the last N of them, (B, F + N), where 1 is an equal share."""
        n_slots, n_rows = there.shape[1], every.shape[1]
        n_new = n_rows - n_slots
        query = attention.query(every[:, n_slots:]).unflatten(-1, (attention.n_heads, -1)).transpose(1, 2)
        key, _ = attention.project(every)
        score = (query + attention.u[:, None]) @ key.transpose(-1, -2) / math.sqrt(attention.d_head)  # (B, H, N, F + N)
        order = torch.arange(n_rows, device=every.device)
        before = order <= n_slots + torch.arange(n_new, device=every.device)[:, None]
        seen = F.pad(there, (0, n_new), value=True)[:, None, None] & before
        return score.masked_fill(~seen, -torch.inf).softmax(-1).mean(dim=(1, 2)) * n_rows
