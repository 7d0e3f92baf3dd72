"""Causal normalisers: the level and deviation of a lane, known at each row from that row and earlier ones only.

The running normaliser keeps exponentially weighted moments. They are a linear recurrence, so a chunk of rows is one
product with a triangular matrix of decays: no loop over rows, here or in the exported graph.
"""

from __future__ import annotations

from dataclasses import dataclass

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
# The weight never falls below this: its logarithm would leave float32 in a long run of missing rows.
_LEAST_WEIGHT = 1e-9
# float32 squares overflow beyond 1e19; an input this far from the lane's first value is a fault of the sensor.
_LARGEST = 1e15
_CHUNK = 128
_AGE_CAP = 1e6


@dataclass(frozen=True)
class Scale:
    """Level and deviation of each lane and channel at each row.

    Attributes
    ----------
    shift : Tensor of shape (B, 1, C)
        The lane's first finite value. Everything else is relative to it, so that float32 keeps its digits.
    mean, deviation : Tensor of shape (B, T, C)
        Level above ``shift``, and deviation (0 for a lane that was constant so far).
    drift : Tensor of shape (B, T, C, 2)
        Level above the slow level, in deviations, and logarithm of deviation over slow deviation.
    age : Tensor of shape (B, T, C)
        Rows since the last finite value (0: this row has one), saturating.
    known : bool Tensor of shape (B, T, C)
        Whether the level is known: False until the lane's first finite value.
    """

    shift: Tensor
    mean: Tensor
    deviation: Tensor
    drift: Tensor
    age: Tensor
    known: Tensor

    def at(self, rows: Tensor) -> Scale:
        """Keep only the rows (indices along time) of the given tensor."""
        picked = (t.index_select(1, rows) for t in (self.mean, self.deviation, self.drift, self.age, self.known))
        return Scale(self.shift, *picked)

    def normalise(self, x: Tensor) -> Tensor:
        """Put values above ``shift``, of shape (B, T, C, n), into deviations from the mean of their row (B, T, C)."""
        deviation = torch.where(self.deviation > 0, self.deviation, torch.ones_like(self.deviation))
        return (x - self.mean[..., None]) / deviation[..., None]

    def restore(self, z: Tensor) -> Tensor:
        """Put deviations, of shape (B, T, h, C, Q), back into raw units; NaN where the level is not known."""
        # The shift of a chunk may be a value that comes later in it: rows before that value must not show it.
        level = torch.where(self.known, self.shift + self.mean, torch.nan)[:, :, None, :, None]
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

    n_entries = 12  # shift, seen, age, then mean, variance, weight three times

    def __init__(self, *, half_life: float, n_channels: int) -> None:
        super().__init__()
        self.n_channels = n_channels
        self.rates = tuple(1 - 0.5 ** (1 / life) for life in (half_life, half_life, _SLOWER * half_life))
        self.clip_weight = 1 - (1 - self.rates[0]) ** _CLIP_AFTER

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
        norm : Tensor of shape (B, C, 12)

        Returns
        -------
        scale : Scale
            Known at each row from that row and earlier ones.
        norm : Tensor of shape (B, C, 12)
        """
        shift, seen = _first_value(x, present, norm)
        x = torch.where(present, (x - shift).clamp(-_LARGEST, _LARGEST), x.new_zeros(()))
        raw_rate, rate, slow_rate = self.rates
        raw = _Moments.of(x, present, norm[..., 3:6], rate=raw_rate)
        low, high = raw.bounds_before(clip_weight=self.clip_weight)
        clipped = torch.where(present, x.clamp(low, high), x)
        fast = _Moments.of(clipped, present, norm[..., 6:9], rate=rate)
        slow = _Moments.of(clipped, present, norm[..., 9:12], rate=slow_rate)
        slow_deviation = slow.variance.sqrt()
        deviation = torch.maximum(fast.variance.sqrt(), _FLOOR * slow_deviation)
        unit = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
        varied = (slow_deviation > 0) & (deviation > 0)
        ratio = torch.where(varied, deviation, unit) / torch.where(varied, slow_deviation, unit)
        drift = torch.stack([((fast.mean - slow.mean) / unit).clamp(-10, 10), ratio.log()], dim=-1)
        age = _age(present, norm[..., 2])
        last = [shift[:, 0], seen, age[:, -1], *raw.last(), *fast.last(), *slow.last()]
        known = (norm[..., 1] > 0)[:, None] | present.cummax(dim=1).values
        return Scale(shift, fast.mean, deviation, drift, age, known), torch.stack(last, dim=-1)


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

    def fit(self, rows: NDArray[np.float32]) -> None:
        """Take level and deviation from the training rows, of shape (N,) or (N, C); NaN is left out."""
        rows = rows.reshape(len(rows), -1).astype(np.float64)
        if np.isfinite(rows).any(axis=0).all():
            self.mean.copy_(torch.from_numpy(np.nanmean(rows, axis=0)))
            deviation = np.nanstd(rows, axis=0)
            self.deviation.copy_(torch.from_numpy(np.where(deviation > 0, deviation, 1.0)))

    def specs(self) -> tuple[TensorSpec]:
        """Describe the state: only the age of the last value."""
        return (TensorSpec("norm", (self.n_channels, self.n_entries), "float32"),)

    def forward(self, x: Tensor, present: Tensor, norm: Tensor) -> tuple[Scale, Tensor]:
        """Give the fitted scale at every row; see :meth:`RunningNormaliser.forward`."""
        age = _age(present, norm[..., 2])
        mean, deviation = self.mean.expand(x.shape), self.deviation.expand(x.shape)
        shift = torch.zeros_like(x[:, :1])
        drift = torch.zeros(*x.shape, 2, dtype=x.dtype, device=x.device)
        scale = Scale(shift, mean, deviation, drift, age, torch.ones_like(present))
        return scale, torch.stack([shift[:, 0], shift[:, 0], age[:, -1]], dim=-1)


@dataclass(frozen=True)
class _Moments:
    """Debiased exponentially weighted mean, variance and weight, each (B, T, C), and what they were before the rows."""

    mean: Tensor
    variance: Tensor
    weight: Tensor
    before: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def of(cls, x: Tensor, present: Tensor, before: Tensor, *, rate: float) -> _Moments:
        mean0, variance0, weight0 = before.unbind(-1)  # (B, C)
        used = rate * present.to(x.dtype)
        weight = _decayed_sum(used, weight0, rate=rate)
        safe = torch.where(weight > 0, weight, torch.ones_like(weight))
        # Sums are taken about the mean before the chunk: a lane may wander far from its first value.
        mean = mean0[:, None] + _decayed_sum(used * (x - mean0[:, None]), torch.zeros_like(mean0), rate=rate) / safe
        earlier = torch.cat([mean0[:, None], mean[:, :-1]], dim=1)
        # The very first row has no earlier mean: its deviation from its own is 0.
        about = torch.where(_before(weight, weight0) > 0, x - earlier, torch.zeros_like(x))
        variance = _decayed_sum(used * about * (x - mean), weight0 * variance0, rate=rate) / safe
        return cls(mean, variance.clamp(min=0), weight, (mean0, variance0, weight0))

    def bounds_before(self, *, clip_weight: float) -> tuple[Tensor, Tensor]:
        """Give the interval outside which a value is a spike, by the moments of the row before."""
        mean, deviation = _before(self.mean, self.before[0]), _before(self.variance, self.before[1]).sqrt()
        trusted = (_before(self.weight, self.before[2]) >= clip_weight) & (deviation > 0)
        width = torch.where(trusted, _CLIP * deviation, torch.full_like(deviation, 2 * _LARGEST))
        return mean - width, mean + width

    def last(self) -> tuple[Tensor, Tensor, Tensor]:
        weight = self.weight[:, -1]
        return self.mean[:, -1], self.variance[:, -1], torch.where(weight > 0, weight.clamp(min=_LEAST_WEIGHT), weight)


def _before(values: Tensor, initial: Tensor) -> Tensor:
    return torch.cat([initial[:, None], values[:, :-1]], dim=1)


def _decayed_sum(values: Tensor, initial: Tensor, *, rate: float) -> Tensor:
    """Run ``s ← (1 − rate) · s + value`` along time, in chunks of one matrix product.

    Parameters
    ----------
    values : Tensor of shape (B, T, C)
    initial : Tensor of shape (B, C)

    Returns
    -------
    Tensor of shape (B, T, C)
    """
    size = min(_CHUNK, values.shape[1])
    step = torch.arange(size, dtype=torch.float64, device=values.device)
    lag = step[:, None] - step
    decay = torch.where(lag >= 0, (1 - rate) ** lag.clamp(min=0), 0.0).to(values.dtype)  # (T, T)
    carry = ((1 - rate) ** (step + 1)).to(values.dtype)
    sums = []
    for chunk in values.split(size, dim=1):
        n = chunk.shape[1]
        total = torch.einsum("ts,bsc->btc", decay[:n, :n], chunk) + carry[:n, None] * initial[:, None]
        initial = total[:, -1]
        sums.append(total)
    return torch.cat(sums, dim=1)


def _first_value(x: Tensor, present: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
    """Give each lane's first finite value (B, 1, C) and a flag that tells whether there was one (B, C)."""
    first = present.to(torch.int64).argmax(dim=1, keepdim=True)  # the first of equal maxima
    here = x.gather(1, first)
    seen = norm[..., 1:2].transpose(1, 2) > 0  # (B, 1, C)
    found = present.any(dim=1, keepdim=True)
    shift = torch.where(seen, norm[..., 0:1].transpose(1, 2), torch.where(found, here, torch.zeros_like(here)))
    return shift, (seen | found)[:, 0].to(x.dtype)


def _age(present: Tensor, before: Tensor) -> Tensor:
    """Count the rows since the last finite value, (B, T, C), from the age before (B, C)."""
    order = torch.arange(present.shape[1], device=present.device)[:, None]
    latest = torch.where(present, order, -1).cummax(dim=1).values
    running = before[:, None] + (order + 1).to(before.dtype)
    return torch.where(latest >= 0, (order - latest).to(before.dtype), running).clamp(max=_AGE_CAP)
