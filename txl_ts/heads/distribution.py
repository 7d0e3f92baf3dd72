"""Whole laws instead of a few quantiles: a location and a spread per step ahead, that answer at any level."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from txl_ts.laws import (
    negative_binomial_nll,
    negative_binomial_quantile,
    normal_nll,
    normal_scores,
    student_t_nll,
    student_t_scores,
)

# Location and spread.
N_PARAMETERS = 2
# A spread below this part of a deviation is a promise that no series keeps.
_LEAST_SPREAD = 1e-3
# In training, a spread counts as at least this part of the unit of its series: where a sensor stands still, densities
# grow without bound, and one surprise would outweigh all other rows.
_LEAST_UNIT = 1e-2
# How sharply means turn from the location to 0 where that is negative, per deviation.
_SHARPNESS = 4.0
# Of the negative binomial law: from next to Poisson to nearly always 0.
_LEAST_DISPERSION, _MOST_DISPERSION = 1e-6, 1e3
# Levels closer to 0 and 1 are not drawn: they have no count.
_LEAST_LEVEL = 1e-12


class NormalHead(nn.Module):
    """Normal laws around the linear path, for ``h`` steps ahead at once.

    A new head has the centre as location and deviation 1 in the lane's own deviations. In the exported graph a quantile
    is location + spread × a constant.

    Parameters
    ----------
    d_model : int
    h : int
    n_channels : int
    quantiles : sequence of float
        Levels that :meth:`forward` gives.
    """

    is_of_counts = False

    def __init__(self, *, d_model: int, h: int, n_channels: int, quantiles: Sequence[float]) -> None:
        super().__init__()
        self.shape = (h, n_channels, N_PARAMETERS)
        self.quantiles = tuple(quantiles)
        self.linear = nn.Linear(d_model, h * n_channels * N_PARAMETERS)
        # A zero start: the first forecast is the linear path's alone.
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self._add_parameters()
        self.register_buffer("constants", torch.zeros(len(self.quantiles)), persistent=False)
        self.constants: Tensor
        self._settle()
        self.set_spread(torch.ones(h), quantiles)

    def set_spread(self, deviation: Tensor, quantiles: Sequence[float]) -> None:
        """Start with a deviation per step ahead, of shape (h,); the levels do not matter here."""
        raw = torch.log(torch.expm1(deviation.double().clamp(min=2 * _LEAST_SPREAD) - _LEAST_SPREAD))
        bias = torch.stack([torch.zeros_like(raw), raw], dim=-1)[:, None]  # (h, 1, 2)
        with torch.no_grad():
            self.linear.bias.copy_(bias.expand(*self.shape).flatten())

    def law(self, hidden: Tensor, centre: Tensor, more: Tensor | None = None) -> Tensor:
        """Give location and spread (B, n, h, C, 2), in deviations; the arguments are those of :meth:`forward`."""
        raw = self.linear(hidden).unflatten(-1, self.shape)
        raw = raw if more is None else raw + more
        location = raw[..., 0] + centre
        return torch.stack([location, F.softplus(raw[..., 1]) + _LEAST_SPREAD], dim=-1)

    def forward(self, hidden: Tensor, centre: Tensor, more: Tensor | None = None) -> Tensor:
        """Give quantiles around a centre.

        Parameters
        ----------
        hidden : Tensor of shape (B, n, D)
        centre : Tensor of shape (B, n, h, C)
            The linear path's forecast, in deviations.
        more : Tensor of shape (B, n, h, C, 2), optional
            Added to the raw outputs.

        Returns
        -------
        Tensor of shape (B, n, h, C, Q)
            In deviations, increasing along the last axis.
        """
        law = self.law(hidden, centre, more)
        return law[..., :1] + law[..., 1:] * self.constants

    def scores(self, levels: Sequence[float]) -> list[float]:
        """Quantiles of the law with location 0 and spread 1."""
        return normal_scores(levels)

    def in_units(self, law: Tensor, level: Tensor, deviation: Tensor) -> Tensor:
        """Put a law in deviations into the model's units.

        Parameters
        ----------
        law : Tensor of shape (…, h, C, 2)
        level, deviation : Tensor of shape (…, 1, C)
            NaN where the level is not known.
        """
        return torch.stack([level + law[..., 0] * deviation, law[..., 1] * deviation + 0 * level], dim=-1)

    def at(self, law: Tensor, levels: Sequence[float], back: Callable[[Tensor], Tensor]) -> Tensor:
        """Read a law of :meth:`in_units` at any levels in (0, 1): raw quantiles of shape (…, len(levels)).

        ``back`` maps the model's units to raw ones.
        """
        return back(law[..., :1] + law[..., 1:] * law.new_tensor(self.scores(levels)))

    def draws(self, rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
        """Draw what :meth:`drawn` turns into values."""
        return rng.standard_normal(size)

    def drawn(self, law: Tensor, draws: Tensor, back: Callable[[Tensor], Tensor]) -> Tensor:
        """Turn one draw per law of :meth:`in_units` (…, 2) into a raw value (…,)."""
        return back((law[..., 0] + law[..., 1] * draws).to(law.dtype))

    def mean(self, law: Tensor) -> Tensor:
        """Give the mean of a law of :meth:`in_units`, in the model's units."""
        return law[..., 0]

    def nll(self, law: Tensor, target: Tensor, *, level: Tensor, deviation: Tensor, unit: Tensor) -> Tensor:
        """Negative log-likelihood of targets, per unit of their series, so that series of any size count alike.

        Parameters
        ----------
        law : Tensor of shape (…, h, C, 2)
            In deviations.
        target : Tensor of shape (…, h, C)
            In the model's units, as ``level``.
        level, deviation, unit : Tensor, broadcast against ``target``
        """
        return self._nll(
            (target - level) / unit,
            law[..., 0] * deviation / unit,
            (law[..., 1] * deviation / unit).clamp(min=_LEAST_UNIT),
        )

    def _nll(self, y: Tensor, location: Tensor, scale: Tensor) -> Tensor:
        return normal_nll(y, location, scale)

    def _add_parameters(self) -> None:
        """Add what a law has beside location and spread."""

    def _settle(self) -> None:
        """Keep the constants of the levels that :meth:`forward` gives."""
        if not self.constants.is_meta:
            self.constants.copy_(torch.tensor(self.scores(self.quantiles)))


class StudentTHead(NormalHead):
    """Student's laws: as :class:`NormalHead`, with tails as heavy as the rows ask for.

    The degrees of freedom, more than 2, are one number that the whole model learns; a graph keeps its constants.
    """

    def _add_parameters(self) -> None:
        self.log_freedom = nn.Parameter(torch.tensor(math.log(4.0)))  # freedom = 2 + exp(this); 6 to begin with

    @property
    def freedom(self) -> float:
        """Degrees of freedom."""
        return 2 + float(self.log_freedom.detach().double().clamp(-20, 20).exp())

    def scores(self, levels: Sequence[float]) -> list[float]:
        """Quantiles of the law with location 0 and spread 1."""
        return student_t_scores(tuple(float(q) for q in levels), freedom=self.freedom)

    def draws(self, rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
        """Draw what :meth:`drawn` turns into values."""
        return rng.standard_t(self.freedom, size)

    def train(self, mode: bool = True) -> StudentTHead:
        """Leave training with the constants of what was learned: a graph cannot compute them."""
        super().train(mode)
        if not mode:
            self._settle()
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._settle()

    def _nll(self, y: Tensor, location: Tensor, scale: Tensor) -> Tensor:
        return student_t_nll(y, location, scale, freedom=2 + self.log_freedom.clamp(-20, 20).exp())


class NegativeBinomialHead(NormalHead):
    """Negative binomial laws of counts: mean and dispersion from location and spread.

    The mean is the location in raw units, kept above 0; the variance is mean + (spread × deviation)². DeepAR divides
    its dispersion by the root of a series' size to the same end: one output should fit counts of any size. Here the
    extra deviation is a multiple of the running deviation, which has that size.

    ``forward`` gives quantiles in deviations, where there are no counts: those of the normal law with this location and
    spread. Forecasts are read off :meth:`at`, exactly. There is no graph of that search.

    References
    ----------
    Salinas et al. (2017), DeepAR (arXiv 1704.04110), section 3.2.
    """

    is_of_counts = True

    def in_units(self, law: Tensor, level: Tensor, deviation: Tensor) -> Tensor:
        """Give mean and dispersion; the arguments are those of :class:`NormalHead`."""
        # Of a lane that never moved too: its mean is its level, and if that is 0 then next to 0.
        width = deviation + 1e-6 * (1 + level.abs())
        size = level / width + law[..., 0]
        mean = width * F.softplus(size * _SHARPNESS) / _SHARPNESS
        # softplus leaves float32 far below 0.
        mean = mean + 1e-9 * width
        dispersion = (law[..., 1] * width / mean).square().clamp(_LEAST_DISPERSION, _MOST_DISPERSION)
        return torch.stack([mean, dispersion + 0 * level], dim=-1)

    def at(self, law: Tensor, levels: Sequence[float], back: Callable[[Tensor], Tensor]) -> Tensor:
        """Read a law at any levels: whole numbers, of shape (…, len(levels))."""
        found = negative_binomial_quantile(law[..., :1], law[..., 1:], law.new_tensor(levels, dtype=torch.float64))
        return found.to(law.dtype)

    def draws(self, rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
        """Draw levels."""
        return rng.uniform(_LEAST_LEVEL, 1 - _LEAST_LEVEL, size)

    def drawn(self, law: Tensor, draws: Tensor, back: Callable[[Tensor], Tensor]) -> Tensor:
        """Turn one level per law of :meth:`in_units` (…, 2) into a count (…,)."""
        return negative_binomial_quantile(law[..., 0], law[..., 1], draws).to(law.dtype)

    def nll(self, law: Tensor, target: Tensor, *, level: Tensor, deviation: Tensor, unit: Tensor) -> Tensor:
        """Negative log-likelihood of counts; the arguments are those of :class:`NormalHead`, in raw units."""
        floored = torch.maximum(deviation, _LEAST_UNIT * unit)
        mean, dispersion = self.in_units(law, level, floored).unbind(-1)
        return negative_binomial_nll(target.clamp(min=0), mean, dispersion)


HEADS = {"normal": NormalHead, "student_t": StudentTHead, "negative_binomial": NegativeBinomialHead}
