"""Causal normalisers: the level and deviation of a lane, known at each row from that row and earlier ones only.

The running normaliser keeps exponentially weighted moments. They are a linear recurrence, so a chunk of rows is one
product with a triangular matrix of decays: no loop over rows, here or in the exported graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from txl_ts.state import TensorSpec

# Inputs beyond this many of the lane's deviations are clipped before they enter the statistics: one spike must not
# blind a lane for many half-lives.
_CLIP = 8.0
# Clipping starts when this many rows were seen: the deviation of two rows says nothing.
_CLIP_AFTER = 16
# The slow moments, which give the floor of the deviation and the drift features, forget this much more slowly.
_SLOWER = 16.0
# The deviation never falls below this part of the lane's own slow deviation.
_FLOOR = 0.05
# The weight never falls below this: in a long run of missing rows it would leave float32, and the level with it. Small
# enough for the next value to outweigh all that was forgotten.
_LEAST_WEIGHT = 1e-18
# Raw deviations below this are rounding: squares leave float32 there.
_LEAST_DEVIATION = 1e-15
# float32 squares overflow beyond 1e19; an input this far from the lane's first value is a fault of the sensor.
LARGEST = 1e15
_CHUNK = 128
_AGE_CAP = 1e6


@dataclass(frozen=True)
class Scale:
    """Level and deviation of each lane and channel at each row.

    Attributes
    ----------
    shift : Tensor of shape (B, 1, C)
        The lane's first finite value. Everything else is relative to it, so that float32 keeps its digits.
    mean, rest : Tensor of shape (B, T, C)
        Level above ``shift``, as a number and what rounding left of it: where a sensor stands still the deviation
        fades, and an error of one last digit would count as many deviations.
    deviation : Tensor of shape (B, T, C)
        0 for a lane that was constant so far.
    drift : Tensor of shape (B, T, C, 2)
        Level above the slow level, in deviations, and logarithm of deviation over slow deviation.
    age : Tensor of shape (B, T, C)
        Rows since the last finite value (0: this row has one), saturating.
    known : bool Tensor of shape (B, T, C)
        Whether the level is known: False until the lane's first finite value.
    """

    shift: Tensor
    mean: Tensor
    rest: Tensor
    deviation: Tensor
    drift: Tensor
    age: Tensor
    known: Tensor

    def at(self, rows: Tensor) -> Scale:
        """Keep only the rows (indices along time) of the given tensor."""
        parts = (self.mean, self.rest, self.deviation, self.drift, self.age, self.known)
        return Scale(self.shift, *(part.index_select(1, rows) for part in parts))

    def normalise(self, x: Tensor) -> Tensor:
        """Put values above ``shift``, of shape (B, T, C, n), into deviations from the mean of their row (B, T, C)."""
        deviation = torch.where(self.deviation > 0, self.deviation, torch.ones_like(self.deviation))
        return ((x - self.mean[..., None]) - self.rest[..., None]) / deviation[..., None]

    def restore(self, z: Tensor) -> Tensor:
        """Put deviations, of shape (B, T, h, C, Q), back into raw units; NaN where the level is not known."""
        # The shift of a chunk may be a value that comes later in it: rows before that value must not show it.
        level = torch.where(self.known, self.shift + (self.mean + self.rest), torch.nan)[:, :, None, :, None]
        return level + z * self.deviation[:, :, None, :, None]


class RunningNormaliser(nn.Module):
    """Exponentially weighted level and deviation of each lane, kept in the state.

    Three pairs of moments are kept: of the raw values (they decide what is a spike), of the values with spikes clipped
    (they normalise), and slow ones (they floor the deviation). A missing row decays and adds nothing.

    Parameters
    ----------
    half_life : float
        In rows.
    n_channels : int

    References
    ----------
    West (1979), Updating mean and variance estimates: an improved method, with exponential forgetting.
    """

    n_entries = 15  # shift, seen, age, then mean, its rest, variance, weight three times

    def __init__(self, *, half_life: float, n_channels: int) -> None:
        super().__init__()
        self.n_channels = n_channels
        # In a graph all rows of a call are one matrix product: no loop over chunks, no cumulative maximum.
        self.in_graph = False
        self.rates = tuple(1 - 0.5 ** (1 / life) for life in (half_life, half_life, _SLOWER * half_life))
        # A little less than the weight of that many rows: rounding must not decide a tie.
        self.clip_weight = (1 - (1 - self.rates[0]) ** _CLIP_AFTER) * (1 - 1e-6)

    def fit(self, rows: NDArray[np.float32]) -> None:
        """Take nothing from the training rows: each lane is normalised by itself."""

    def specs(self) -> tuple[TensorSpec]:
        """Describe the state."""
        return (TensorSpec("norm", (self.n_channels, self.n_entries), "float32"),)

    def forward(self, x: Tensor, present: Tensor, norm: Tensor) -> tuple[Scale, Tensor]:
        """Move the statistics on.

        Parameters
        ----------
        x : Tensor of shape (B, T, C)
            Raw values, 0 where missing.
        present : bool Tensor of shape (B, T, C)
        norm : Tensor of shape (B, C, 15)

        Returns
        -------
        scale : Scale
            Known at each row from that row and earlier ones.
        norm : Tensor of shape (B, C, 15)
        """
        shift, seen = _first_value(x, present, norm)
        x = torch.where(present, (x - shift).clamp(-LARGEST, LARGEST), x.new_zeros(()))
        raw_rate, rate, slow_rate = self.rates
        raw = _moments(x, present, norm[..., 3:7], rate=raw_rate, in_graph=self.in_graph)
        low, high = _spike_bounds(raw, norm[..., 3:7], clip_weight=self.clip_weight)
        clipped = torch.where(present, x.clamp(low, high), x)
        fast = _moments(clipped, present, norm[..., 7:11], rate=rate, in_graph=self.in_graph)
        slow = _moments(clipped, present, norm[..., 11:15], rate=slow_rate, in_graph=self.in_graph)
        mean, rest, variance, _ = fast.unbind(-1)
        slow_mean, slow_rest, slow_variance, _ = slow.unbind(-1)
        slow_deviation = slow_variance.sqrt()
        deviation = torch.maximum(variance.sqrt(), _FLOOR * slow_deviation)
        unit = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
        varied = (slow_deviation > 0) & (deviation > 0)
        ratio = torch.where(varied, deviation, unit) / torch.where(varied, slow_deviation, unit)
        apart = (mean - slow_mean) + (rest - slow_rest)
        drift = torch.stack([(apart / unit).clamp(-10, 10), ratio.log()], dim=-1)
        latest = _latest(present, in_graph=self.in_graph)
        age = _age(latest, norm[..., 2])
        kept = [_kept(moments[:, -1]) for moments in (raw, fast, slow)]
        norm_after = torch.cat([torch.stack([shift[:, 0], seen, age[:, -1]], dim=-1), *kept], dim=-1)
        known = (norm[..., 1] > 0)[:, None] | (latest >= 0)
        return Scale(shift, mean, rest, deviation, drift, age, known), norm_after


class StandardNormaliser(nn.Module):
    """One level and deviation for all lanes, fitted on the training rows.

    Parameters
    ----------
    n_channels : int
    """

    n_entries = 3  # shift (always 0), unused, age

    def __init__(self, *, n_channels: int) -> None:
        super().__init__()
        self.n_channels = n_channels
        self.register_buffer("mean", torch.zeros(n_channels))
        self.register_buffer("deviation", torch.ones(n_channels))
        self.mean: Tensor
        self.deviation: Tensor
        self.in_graph = False

    def fit(self, rows: NDArray[np.float32]) -> None:
        """Take level and deviation from the training rows, of shape (N,) or (N, C); NaN is left out.

        A channel without a value, or without a change that float32 could tell from rounding, keeps a deviation of 1.
        """
        rows = rows.reshape(len(rows), -1).astype(np.float64)
        there = np.isfinite(rows).any(axis=0)
        mean, deviation = np.zeros(rows.shape[1]), np.ones(rows.shape[1])
        mean[there], deviation[there] = np.nanmean(rows[:, there], axis=0), np.nanstd(rows[:, there], axis=0)
        self.mean.copy_(torch.from_numpy(mean))
        self.deviation.copy_(torch.from_numpy(np.where(deviation > 1e-7 * np.abs(mean), deviation, 1.0)))

    def specs(self) -> tuple[TensorSpec]:
        """Describe the state: only the age of the last value."""
        return (TensorSpec("norm", (self.n_channels, self.n_entries), "float32"),)

    def forward(self, x: Tensor, present: Tensor, norm: Tensor) -> tuple[Scale, Tensor]:
        """Give the fitted scale at every row; see :meth:`RunningNormaliser.forward`."""
        age = _age(_latest(present, in_graph=self.in_graph), norm[..., 2])
        mean, deviation = self.mean.expand(x.shape), self.deviation.expand(x.shape)
        shift = torch.zeros_like(x[:, :1])
        drift = torch.zeros(*x.shape, 2, dtype=x.dtype, device=x.device)
        scale = Scale(shift, mean, torch.zeros_like(mean), deviation, drift, age, torch.ones_like(present))
        return scale, torch.stack([shift[:, 0], shift[:, 0], age[:, -1]], dim=-1)


# Moments are tensors (…, 4): mean, what rounding left of it, variance, weight.


def _moments(x: Tensor, present: Tensor, before: Tensor, *, rate: float, in_graph: bool) -> Tensor:
    """Debiased exponentially weighted moments (B, T, C, 4) of rows (B, T, C), from those before them (B, C, 4)."""
    if in_graph:
        return _chunk_moments(x, present, before, rate=rate, decays=_decays(x.shape[1], rate, x.dtype, x.device))
    chunks = []
    with torch.autocast(x.device.type, enabled=False):  # bfloat16 decays would lose all but three digits
        for values, mask in zip(x.split(_CHUNK, dim=1), present.split(_CHUNK, dim=1), strict=True):
            decays = _cached_decays(values.shape[1], rate, x.dtype, x.device)
            chunks.append(_chunk_moments(values, mask, before, rate=rate, decays=decays))
            before = _kept(chunks[-1][:, -1])
    return torch.cat(chunks, dim=1)


def _chunk_moments(x: Tensor, present: Tensor, before: Tensor, *, rate: float, decays: tuple[Tensor, Tensor]) -> Tensor:
    mean0, rest0, variance0, weight0 = before[:, None].unbind(-1)  # (B, 1, C)
    decay, carry = decays
    used = rate * present.to(x.dtype)
    weight = _decayed_sum(used, decay) + carry * weight0
    safe = torch.where(weight > 0, weight, torch.ones_like(weight))
    # Sums are taken about the moments before the chunk: a lane may wander far from its first value, and a run of
    # missing rows must leave mean and variance as they are, to the bit.
    off = x - mean0
    rest = rest0 + _decayed_sum(used * (off - rest0), decay) / safe
    earlier = torch.cat([rest0, rest[:, :-1]], dim=1)
    # The very first row has no earlier mean: its deviation from its own is 0.
    about = torch.where(torch.cat([weight0, weight[:, :-1]], dim=1) > 0, off - earlier, torch.zeros_like(x))
    variance = variance0 + _decayed_sum(used * (about * (off - rest) - variance0), decay) / safe
    return torch.stack([mean0.expand_as(rest), rest, variance.clamp(min=0), weight], dim=-1)


def _kept(moments: Tensor) -> Tensor:
    """Put the moments of the last row into the form that is kept: the rest small, the weight not vanishing."""
    old, rest, variance, weight = moments.unbind(-1)
    mean = old + rest
    weight = torch.where(weight > 0, weight.clamp(min=_LEAST_WEIGHT), weight)
    return torch.stack([mean, rest - (mean - old), variance, weight], dim=-1)


def _spike_bounds(moments: Tensor, before: Tensor, *, clip_weight: float) -> tuple[Tensor, Tensor]:
    """Give the interval, (B, T, C) each, outside which a value is a spike, by the moments of the row before."""
    mean, rest, variance, weight = torch.cat([before[:, None], moments[:, :-1]], dim=1).unbind(-1)
    deviation = variance.sqrt()
    trusted = (weight >= clip_weight) & (deviation > _LEAST_DEVIATION)
    width = torch.where(trusted, _CLIP * deviation, torch.full_like(deviation, 2 * LARGEST))
    return mean + rest - width, mean + rest + width


def _decays(n_rows: int, rate: float, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Matrix (T, T) that runs ``s ← (1 − rate) · s + value`` over rows, and decay (T, 1) of what was before."""
    step = torch.arange(n_rows, dtype=torch.float64, device=device)
    lag = step[:, None] - step
    decay = torch.where(lag >= 0, (1 - rate) ** lag.clamp(min=0), 0.0)
    return decay.to(dtype), ((1 - rate) ** (step + 1))[:, None].to(dtype)


@lru_cache(maxsize=64)
def _cached_decays(n_rows: int, rate: float, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):  # what is cached must serve training too
        return _decays(n_rows, rate, dtype, device)


def _decayed_sum(values: Tensor, decay: Tensor) -> Tensor:
    return torch.einsum("ts,bsc->btc", decay, values)


def _first_value(x: Tensor, present: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
    """Give each lane's first finite value (B, 1, C) and a flag that tells whether there was one (B, C)."""
    first = present.to(torch.int32).argmax(dim=1, keepdim=True)  # the first of equal maxima; int64 needs ORT > 1.16
    here = x.gather(1, first)
    seen = norm[..., 1:2].transpose(1, 2) > 0  # (B, 1, C)
    found = present.any(dim=1, keepdim=True)
    shift = torch.where(seen, norm[..., 0:1].transpose(1, 2), torch.where(found, here, torch.zeros_like(here)))
    return shift, (seen | found)[:, 0].to(x.dtype)


def _latest(present: Tensor, *, in_graph: bool) -> Tensor:
    """Give the newest row with a value up to each row, (B, T, C); −1 where there is none in the call."""
    order = torch.arange(present.shape[1], device=present.device)
    if not in_graph:
        return torch.where(present, order[:, None], -1).cummax(dim=1).values
    # Graphs have no cumulative maximum: a masked one.
    earlier = (order[:, None] >= order)[..., None] & present[:, None]  # (B, T, T, C)
    return torch.where(earlier, order[:, None], -1).amax(dim=2)


def _age(latest: Tensor, before: Tensor) -> Tensor:
    """Count the rows since the last finite value, (B, T, C), from the age before (B, C)."""
    order = torch.arange(latest.shape[1], device=latest.device)[:, None]
    running = before[:, None] + (order + 1).to(before.dtype)
    return torch.where(latest >= 0, (order - latest).to(before.dtype), running).clamp(max=_AGE_CAP)
