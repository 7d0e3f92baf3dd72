"""Real time in the model: when the rows came, how old the last values are, how far ahead an asked time lies.

All times are in median steps of the rows that were fitted on. The state holds the gaps between the newest rows, not
their times: it is the same however the stream was cut into calls, and small however long it runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from txl_ts.state import TensorSpec

# Longer gaps and ages count as this many median steps.
_LONGEST = 1e6
# To attention a gap is no longer than this: the slowest of its waves has a period of 63,000.
LONGEST_GAP = 1e4
# The last value is worth what is left of it after these many median steps.
_TIMES = (1.0, 4.0, 16.0, 64.0, 256.0)


@dataclass(frozen=True)
class Times:
    """When rows came, in median steps.

    Attributes
    ----------
    slots : float64 Tensor of shape (B, M + T)
        Times of the rows of the memory and of the call, for attention.
    patch : Tensor of shape (B, T, patch_len)
        Gaps before the rows of each patch, oldest first.
    since : Tensor of shape (B, T, n)
        Time since the last value of each column before the row's own.
    age : Tensor of shape (B, T)
        Time since the target's last value, the row's own among them.
    gap : float64 Tensor of shape (B, T + h)
        Time from the row before to each row of the call and to those ahead.
    n_asked : int, optional
        Rows ahead, where they are asked for apart from any call: ``gap`` then begins with the first of them.
    """

    slots: Tensor
    patch: Tensor
    since: Tensor
    age: Tensor
    gap: Tensor
    n_asked: int | None = None

    def ahead(self, picked: Tensor, *, h: int) -> Tensor:
        """Time from some rows of the call to the ``h`` rows after each, (B, n, h)."""
        if self.n_asked is not None:
            gap = self.gap[:, None]
        else:
            gap = self.gap[:, picked[:, None] + torch.arange(1, h + 1, device=picked.device)]
        # A sum of its own for each row: the difference of two times would hold the rounding of a long call.
        return gap.cumsum(dim=2).to(self.age.dtype)


class Clock(nn.Module):
    """Keep the time between rows, and add to each token when its rows came.

    Parameters
    ----------
    mem_len, patch_len : int
    n_columns : int
        The target, and the amounts beside it that are known up to now.
    d_model : int
    """

    def __init__(self, *, mem_len: int, patch_len: int, n_columns: int, d_model: int) -> None:
        super().__init__()
        self.mem_len, self.patch_len, self.n_columns = mem_len, patch_len, n_columns
        self.n_kept = max(mem_len, patch_len - 1, 1)  # at least one: empty tensors break graphs
        self.linear = nn.Linear(patch_len + n_columns, d_model, bias=False)

    def specs(self) -> tuple[TensorSpec, ...]:
        """Describe the state: gaps before the newest rows, oldest first, and the age of each column's last value."""
        return (TensorSpec("gaps", (self.n_kept,), "float32"), TensorSpec("ages", (self.n_columns,), "float32"))

    def forward(self, gap: Tensor, present: Tensor, state: dict[str, Tensor]) -> tuple[Times, dict[str, Tensor]]:
        """Read the times of a call.

        Parameters
        ----------
        gap : Tensor of shape (B, T + h)
            Time from the row before to each row, also of the rows ahead; what is not finite counts as 1.
        present : bool Tensor of shape (B, T, n_columns)
            Which values came.
        state : dict of Tensor
            As :meth:`specs` describes it.

        Returns
        -------
        times : Times
        state : dict of Tensor
        """
        n_rows = present.shape[1]
        gap = _usable(gap)
        kept = torch.cat([state["gaps"], gap[:, :n_rows].to(state["gaps"].dtype)], dim=1)  # (B, n_kept + T)
        # Sums in float64: the same to the last digit of float32 wherever the call begins.
        slots = kept[:, self.n_kept - self.mem_len :].double().clamp(max=LONGEST_GAP).cumsum(dim=1)
        patch = kept[:, self.n_kept - self.patch_len + 1 :].unfold(1, self.patch_len, 1)
        clock = gap[:, :n_rows, None].double().cumsum(dim=1)
        since, age = _ages(clock, present, state["ages"][:, None].double())
        dtype = state["ages"].dtype
        moved = {"gaps": kept[:, n_rows:], "ages": age[:, -1].to(dtype)}
        return Times(slots, patch, since.to(dtype), age[..., 0].to(dtype), gap.double()), moved

    def asked(self, gap: Tensor, *, age: Tensor) -> Times:
        """Read asked times by the gaps (B, n) before them, after a row whose last value had an age (B, 1)."""
        gap = _usable(gap)
        nothing = gap[:, :0]
        return Times(nothing, nothing, nothing, age, gap.double(), n_asked=gap.shape[1])

    def tokens(self, times: Times, picked: Tensor | None) -> Tensor:
        """Give what times add to the tokens of some rows, (B, n, D)."""
        features = torch.log1p(torch.cat([times.patch, times.since], dim=-1))
        return self.linear(features if picked is None else features.index_select(1, picked))


class AskedTimes:
    """Features of asked times: how far each lies ahead, and what is left of the last value there."""

    n_features = 2 * len(_TIMES) + 2

    def __call__(self, ahead: Tensor, age: Tensor, last: Tensor) -> Tensor:
        """Give features (B, n, h, n_features).

        Parameters
        ----------
        ahead : Tensor of shape (B, n, h)
            Time from the row to the asked time.
        age : Tensor of shape (B, n)
            Time since the last value.
        last : Tensor of shape (B, n)
            The last value, in deviations.
        """
        ahead = ahead.clamp(max=_LONGEST)
        old = (ahead + age[..., None]).clamp(max=_LONGEST)
        left = torch.exp(-old[..., None] / torch.tensor(_TIMES, dtype=old.dtype, device=old.device))  # (B, n, h, 5)
        logs = torch.stack([torch.log1p(ahead), torch.log1p(old)], dim=-1)
        return torch.cat([left * last[..., None, None], left, logs], dim=-1)


def _usable(gap: Tensor) -> Tensor:
    return torch.where(gap.isfinite(), gap, torch.ones_like(gap)).clamp(0, _LONGEST)


def _ages(clock: Tensor, present: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Time since the last value before each row, and up to it, (B, T, n) each, from the ages before (B, 1, n)."""
    latest = torch.where(present, clock, -before)  # the call's own clock starts at 0
    latest = latest if clock.shape[1] == 1 else latest.cummax(dim=1).values
    earlier = torch.cat([-before, latest[:, :-1]], dim=1)
    return (clock - earlier).clamp(max=_LONGEST), (clock - latest).clamp(max=_LONGEST)
