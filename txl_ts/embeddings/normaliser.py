"""Causal normalisers: the level and deviation of a lane, known at each row from that row and earlier ones only.

The running normaliser keeps exponentially weighted moments. They are a linear recurrence, so a chunk of rows is one
product with a triangular matrix of decays: no loop over rows, here or in the exported graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from txl_ts.embeddings.units import PLAIN, Units
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
Decays = tuple[Tensor, Tensor, Tensor]
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

    @property
    def units(self) -> Units:
        """What the values are measured in."""
        return PLAIN

    @property
    def level(self) -> Tensor:
        """Level of each row, (B, T, C); NaN where it is not known."""
        # The shift of a chunk may be a value that comes later in it: rows before that value must not show it.
        return torch.where(self.known, self.shift + (self.mean + self.rest), torch.nan)

    def at(self, rows: Tensor | None) -> Scale:
        """Keep only some rows (indices along time); None keeps all."""
        if rows is None:
            return self
        parts = ("mean", "rest", "deviation", "drift", "age", "known")
        return replace(self, **{name: getattr(self, name).index_select(1, rows) for name in parts})

    def in_units(self, units: Units) -> Scale:
        """Say what the values are measured in."""
        return self if units == self.units else MappedScale(**vars(self), map=units)

    def normalise(self, x: Tensor) -> Tensor:
        """Put values above ``shift``, of shape (B, T, C, n), into deviations from the mean of their row (B, T, C)."""
        deviation = torch.where(self.deviation > 0, self.deviation, torch.ones_like(self.deviation))
        return ((x - self.mean[..., None]) - self.rest[..., None]) / deviation[..., None]

    def restore(self, z: Tensor) -> Tensor:
        """Put deviations, of shape (B, T, h, C, Q), back into raw units; NaN where the level is not known."""
        return self.units.back(self.level[:, :, None, :, None] + z * self.deviation[:, :, None, :, None])


@dataclass(frozen=True)
class MappedScale(Scale):
    """A scale of values that went through a map: what is restored goes back through it.

    Attributes
    ----------
    map : Units
    """

    map: Units

    @property
    def units(self) -> Units:
        """What the values are measured in."""
        return self.map


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
        return (TensorSpec("norm", (self.n_entries, self.n_channels), "float32"),)

    def forward(self, x: Tensor, present: Tensor, norm: Tensor) -> tuple[Scale, Tensor]:
        """Move the statistics on.

        Parameters
        ----------
        x : Tensor of shape (B, T, C)
            Raw values, 0 where missing.
        present : bool Tensor of shape (B, T, C)
        norm : Tensor of shape (B, 15, C)

        Returns
        -------
        scale : Scale
            Known at each row from that row and earlier ones.
        norm : Tensor of shape (B, 15, C)
        """
        shift, seen, age, *kept = norm.split(1, dim=1)  # (B, 1, C) each
        raw, fast, slow = (Moments(*kept[i : i + 4]) for i in (0, 4, 8))
        here = present.to(x.dtype)
        shift = torch.where(seen > 0, shift, first_value(x, here))
        x = torch.where(present, (x - shift).clamp(-LARGEST, LARGEST), x.new_zeros(()))
        raw_rate, rate, slow_rate = self.rates
        raw_after = _moved(raw, x, here, rate=raw_rate, in_graph=self.in_graph)
        low, high = _spike_bounds(raw_after.before(raw), clip_weight=self.clip_weight)
        clipped = x.clamp(low, high)  # of a missing row nothing is used
        fast = _moved(fast, clipped, here, rate=rate, in_graph=self.in_graph)
        slow = _moved(slow, clipped, here, rate=slow_rate, in_graph=self.in_graph)
        slow_deviation = slow.variance.sqrt()
        deviation = torch.maximum(fast.variance.sqrt(), _FLOOR * slow_deviation)
        varied = deviation > 0
        unit = torch.where(varied, deviation, torch.ones_like(deviation))
        ratio = unit / torch.where(varied & (slow_deviation > 0), slow_deviation, unit)
        apart = (fast.mean - slow.mean) + (fast.rest - slow.rest)
        drift = torch.stack([(apart / unit).clamp(-10, 10), ratio.log()], dim=-1)
        ages, known = _ages(present, age, seen > 0, in_graph=self.in_graph)
        last = known[:, -1:].to(x.dtype)
        moments = (part for moved in (raw_after, fast, slow) for part in moved.kept())
        after = torch.cat([shift, last, ages[:, -1:], *moments], dim=1)
        return Scale(shift, fast.mean, fast.rest, deviation, drift, ages, known), after


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
        return (TensorSpec("norm", (self.n_entries, self.n_channels), "float32"),)

    def forward(self, x: Tensor, present: Tensor, norm: Tensor) -> tuple[Scale, Tensor]:
        """Give the fitted scale at every row; see :meth:`RunningNormaliser.forward`."""
        _, _, age = norm.split(1, dim=1)
        ages, known = _ages(present, age, torch.ones_like(age, dtype=torch.bool), in_graph=self.in_graph)
        mean, deviation = self.mean.expand(x.shape), self.deviation.expand(x.shape)
        shift = torch.zeros_like(x[:, :1])
        drift = torch.zeros(*x.shape, 2, dtype=x.dtype, device=x.device)
        scale = Scale(shift, mean, torch.zeros_like(mean), deviation, drift, ages, known)
        return scale, torch.cat([shift, shift, ages[:, -1:]], dim=1)


@dataclass(frozen=True)
class Moments:
    """Exponentially weighted moments at each row.

    Attributes
    ----------
    mean, rest : Tensor of shape (B, T, C)
        The mean, and what rounding left of it.
    variance : Tensor of shape (B, T, C)
    weight : Tensor of shape (B, T, C)
        What the rows so far weigh; 1 after long.
    """

    mean: Tensor
    rest: Tensor
    variance: Tensor
    weight: Tensor

    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Give the four tensors."""
        return self.mean, self.rest, self.variance, self.weight

    def before(self, first: Moments) -> Moments:
        """Give the moments one row earlier; ``first`` are those before the first row."""
        return Moments(*(_earlier(a, b) for a, b in zip(first.parts(), self.parts(), strict=True)))

    def kept(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Put the last row into the form that is kept: the rest small, the weight not vanishing."""
        old, rest, variance, weight = (part[:, -1:] for part in self.parts())
        mean = old + rest
        weight = torch.where(weight > 0, weight.clamp(min=_LEAST_WEIGHT), weight)
        return mean, rest - (mean - old), variance, weight


def _moved(before: Moments, x: Tensor, here: Tensor, *, rate: float, in_graph: bool) -> Moments:
    """Give the debiased moments at rows (B, T, C), from those before them; ``here`` is 1 where a value is, else 0."""
    if x.shape[1] == 1:
        return _chunk_moments(before, x, here, rate=rate, decays=None)
    if in_graph:
        return _chunk_moments(before, x, here, rate=rate, decays=_decays(x.shape[1], rate, x.dtype, x.device))
    chunks = []
    with torch.autocast(x.device.type, enabled=False):  # bfloat16 decays would lose all but three digits
        for values, mask in zip(x.split(_CHUNK, dim=1), here.split(_CHUNK, dim=1), strict=True):
            decays = _cached_decays(values.shape[1], rate, x.dtype, x.device)
            chunks.append(_chunk_moments(before, values, mask, rate=rate, decays=decays))
            before = Moments(*chunks[-1].kept())
    return Moments(*(torch.cat(parts, dim=1) for parts in zip(*(chunk.parts() for chunk in chunks), strict=True)))


def _chunk_moments(before: Moments, x: Tensor, here: Tensor, *, rate: float, decays: Decays | None) -> Moments:
    """Move the moments over the rows of a chunk; of one row, without ``decays``."""
    used, decay = rate * here, None if decays is None else decays[0]
    gone = rate if decays is None else decays[2]
    # Not (1 − rate) · w + rate: rounding would add up over a half-life, row by row (1e-5 where it is 400 rows).
    gained = _decayed_sum(used, decay)
    weight = before.weight + (gained - gone * before.weight)
    if decays is not None:  # of a long run of missing rows, what is left is too small to be a difference
        weight = torch.where(decays[1] > 0.5, weight, gained + decays[1] * before.weight)
    safe = torch.where(weight > 0, weight, torch.ones_like(weight))
    # Sums are taken about the moments before the chunk: a lane may wander far from its first value, and a run of
    # missing rows must leave mean and variance as they are, to the bit.
    off = x - before.mean
    rest = before.rest + _decayed_sum(used * (off - before.rest), decay) / safe
    # The very first row has no earlier mean: its deviation from its own is 0.
    had = _earlier(before.weight, weight) > 0
    about = torch.where(had, off - _earlier(before.rest, rest), torch.zeros_like(x))
    gain = used * (about * (off - rest) - before.variance)
    variance = (before.variance + _decayed_sum(gain, decay) / safe).clamp(min=0)
    return Moments(before.mean.expand_as(rest), rest, variance, weight)


def _earlier(first: Tensor, rows: Tensor) -> Tensor:
    """Move rows (B, T, C) one row on, behind a first one (B, 1, C)."""
    return first if rows.shape[1] == 1 else torch.cat([first, rows[:, :-1]], dim=1)


def _spike_bounds(earlier: Moments, *, clip_weight: float) -> tuple[Tensor, Tensor]:
    """Give the interval, (B, T, C) each, outside which a value is a spike, by the moments of the row before."""
    deviation = earlier.variance.sqrt()
    trusted = (earlier.weight >= clip_weight) & (deviation > _LEAST_DEVIATION)
    width = torch.where(trusted, _CLIP * deviation, torch.full_like(deviation, 2 * LARGEST))
    level = earlier.mean + earlier.rest
    return level - width, level + width


def _decays(n_rows: int, rate: float, dtype: torch.dtype, device: torch.device) -> Decays:
    """Matrix (T, T) that runs ``s ← (1 − rate) · s + value`` over rows; what is left of before, (T, 1); what is not."""
    step = torch.arange(n_rows, dtype=torch.float64, device=device)
    lag = step[:, None] - step
    decay = torch.where(lag >= 0, (1 - rate) ** lag.clamp(min=0), 0.0)
    left = ((1 - rate) ** (step + 1))[:, None]
    return decay.to(dtype), left.to(dtype), (1 - left).to(dtype)


@lru_cache(maxsize=64)
def _cached_decays(n_rows: int, rate: float, dtype: torch.dtype, device: torch.device) -> Decays:
    with torch.inference_mode(False):  # what is cached must serve training too
        return _decays(n_rows, rate, dtype, device)


def _decayed_sum(values: Tensor, decay: Tensor | None) -> Tensor:
    # A product per lane: in one product of all lanes, a lane's last digits would depend on its place.
    return values if decay is None else decay[None] @ values


def first_value(x: Tensor, here: Tensor) -> Tensor:
    """Give each lane's first value in the call, (B, 1, C); 0 where there is none, since missing rows hold 0."""
    if x.shape[1] == 1:
        return x
    first = here.to(torch.int32).argmax(dim=1, keepdim=True)  # the first of equal maxima; int64 needs ORT > 1.16
    return x.gather(1, first)


def _ages(present: Tensor, age: Tensor, seen: Tensor, *, in_graph: bool) -> tuple[Tensor, Tensor]:
    """Count the rows since the last value, and tell whether there was any, from what was before (B, 1, C)."""
    if present.shape[1] == 1:
        ages = torch.where(present, torch.zeros_like(age), (age + 1).clamp(max=_AGE_CAP))
        return ages, seen | present
    order = torch.arange(present.shape[1], device=present.device)
    if in_graph:  # graphs have no cumulative maximum: a masked one
        earlier = (order[:, None] >= order)[..., None] & present[:, None]  # (B, T, T, C)
        latest = torch.where(earlier, order[:, None], -1).amax(dim=2)
    else:
        latest = torch.where(present, order[:, None], -1).cummax(dim=1).values
    since = (order[:, None] - latest).to(age.dtype)
    running = age + (order[:, None] + 1).to(age.dtype)
    return torch.where(latest >= 0, since, running).clamp(max=_AGE_CAP), seen | (latest >= 0)
