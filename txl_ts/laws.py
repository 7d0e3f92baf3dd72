"""Laws of what comes: densities to train by, and quantiles at any level.

Quantiles are made of sums, products and one continued fraction in float64, so that nothing is needed beside torch.

References
----------
Press et al. (2007), Numerical Recipes, 6.4: the incomplete beta function as a continued fraction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import torch
from torch import Tensor

LAWS = ("normal", "student_t", "negative_binomial")

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
# The fraction needs about the root of its larger parameter in terms.
_MOST_TERMS = 20_000
_LARGEST_MEAN = 1e6
_CONVERGED = 1e-13
_TINY = 1e-300


def normal_nll(y: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    """Negative logarithm of the normal density."""
    return _HALF_LOG_2PI + scale.log() + 0.5 * ((y - location) / scale).square()


def student_t_nll(y: Tensor, location: Tensor, scale: Tensor, *, freedom: Tensor) -> Tensor:
    """Negative logarithm of Student's density; ``freedom`` is a tensor of shape ()."""
    half = freedom.double() / 2  # the difference of two large logarithms of gamma
    norm = (torch.lgamma(half) - torch.lgamma(half + 0.5) + 0.5 * (2 * half * math.pi).log()).to(y.dtype)
    z = (y - location) / scale
    return norm + scale.log() + 0.5 * (freedom + 1) * torch.log1p(z.square() / freedom)


def negative_binomial_nll(y: Tensor, mean: Tensor, dispersion: Tensor) -> Tensor:
    """Negative logarithm of the probability of counts ``y``; the variance is ``mean + dispersion · mean²``.

    References
    ----------
    Salinas et al. (2017), DeepAR (arXiv 1704.04110), section 3.2.
    """
    r, spread = 1 / dispersion, dispersion * mean
    # The ratio of gammas in float64: where dispersion is small, both are huge.
    r64, y64 = r.double(), y.double()
    ways = (torch.lgamma(y64 + 1) + torch.lgamma(r64) - torch.lgamma(y64 + r64)).to(y.dtype)
    return ways + r * torch.log1p(spread) + y * (torch.log1p(spread) - spread.log())


def normal_scores(levels: Sequence[float]) -> list[float]:
    """Quantiles of the standard normal law."""
    return [NormalDist().inv_cdf(p) for p in levels]


@lru_cache(maxsize=256)
def student_t_scores(levels: tuple[float, ...], *, freedom: float) -> list[float]:
    """Quantiles of Student's standard law."""
    p = torch.tensor(levels, dtype=torch.float64)
    tail = 2 * torch.minimum(p, 1 - p)
    a, b = torch.full_like(p, freedom / 2), torch.full_like(p, 0.5)
    # P(|T| > t) = I_x(ν / 2, 1 / 2) at x = ν / (ν + t²); bisected in log t, which float64 resolves to its last digits.
    low, high = torch.full_like(p, -40.0), torch.full_like(p, 350.0 / max(freedom, 1.0) + 5)
    for _ in range(60):
        middle = (low + high) / 2
        beyond = _betainc(a, b, freedom / (freedom + (2 * middle).exp()))
        low, high = torch.where(beyond > tail, middle, low), torch.where(beyond > tail, high, middle)
    t = ((low + high) / 2).exp()
    return torch.where(p == 0.5, torch.zeros_like(t), torch.where(p < 0.5, -t, t)).tolist()


def negative_binomial_quantile(mean: Tensor, dispersion: Tensor, level: Tensor) -> Tensor:
    """Least count whose distribution function reaches a level; float64, NaN where an argument is.

    Exactly for means of up to a million; beyond, in steps of a millionth of the mean, and for laws no narrower than
    0.15 % of it.

    Parameters
    ----------
    mean, dispersion, level : Tensor, broadcast against each other
        Not negative; positive; in (0, 1).
    """
    mean, dispersion, level = torch.broadcast_tensors(mean.double(), dispersion.double(), level.double())
    known = mean.isfinite() & dispersion.isfinite()
    m, d, p = (part[known] for part in (mean, dispersion, level))
    out = torch.full_like(mean, torch.nan)
    if not len(m):
        return out
    m = m.clamp(min=1e-12)
    # Larger counts are those of a law with the same relative variance, a million at most, and a factor: the search
    # takes as long as the root of what it counts.
    factor = (m / _LARGEST_MEAN).clamp(min=1)
    d = torch.where(factor > 1, (d + 1 / m - factor / m).clamp(min=1 / _LARGEST_MEAN), d)
    m = m / factor
    # Cantelli: no quantile lies further from the mean than this.
    deviation = (m + d * m.square()).sqrt()
    low = (m - deviation * ((1 - p) / p).sqrt()).floor().clamp(min=0) - 1
    high = (m + deviation * (p / (1 - p)).sqrt()).ceil().clamp(min=0)
    r, share = 1 / d, 1 / (1 + d * m)
    while bool((high - low > 1).any()):
        middle = ((low + high) / 2).floor()
        reached = (_betainc(r, middle.clamp(min=0) + 1, share) >= p) & (middle >= 0)
        low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
    out[known] = (high * factor).round()
    return out


def _betainc(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """Regularised incomplete beta function I_x(a, b)."""
    # The fraction converges fast below the mean; above it the other end is taken.
    turned = x > (a + 1) / (a + b + 2)
    a, b, x = torch.where(turned, b, a), torch.where(turned, a, b), torch.where(turned, 1 - x, x)
    front = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b) + a * x.clamp(min=_TINY).log() + b * torch.log1p(-x)
    value = front.exp() * _fraction(a, b, x) / a
    return torch.where(turned, 1 - value, value)


def _fraction(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """Lentz's way through the continued fraction."""

    def away(value: Tensor) -> Tensor:
        return torch.where(value.abs() < _TINY, torch.full_like(value, _TINY), value)

    c = torch.ones_like(x)
    d = 1 / away(1 - (a + b) * x / (a + 1))
    out = d
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = 1 / away(1 + even * d), away(1 + even / c)
        out = out * d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1 / away(1 + odd * d), away(1 + odd / c)
        out = out * d * c
        if bool(((d * c - 1).abs() < _CONVERGED).all()):
            break
    return out
