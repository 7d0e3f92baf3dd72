"""Units of the target: a monotone map into the model, and its inverse on the way out.

Elementwise and without parameters, so that the exported graph has them too. Quantiles of a monotone map are the map of
the quantiles: forecasts come back in raw units, bands with them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# exp of more than this nears the end of float32; a forecast that far is no forecast.
_LARGEST_EXPONENT = 60.0
# Beyond this, squares leave float32; the normaliser clips there too.
_LARGEST = 1e15


@dataclass(frozen=True)
class Units:
    """How raw values become those that the model sees, and forecasts raw values.

    Parameters
    ----------
    transform : {"none", "log1p", "sqrt", "asinh"}
        ``log1p`` and ``sqrt`` keep the sign, so that no value lies outside their domain.
    non_negative : bool
        Forecasts below 0 become 0.
    """

    transform: str = "none"
    non_negative: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether values stay as they are."""
        return self.transform == "none"

    def into(self, x: Tensor) -> Tensor:
        """Map finite raw values, of any shape."""
        if self.is_plain:
            return x
        size = x.abs().clamp(max=_LARGEST)
        if self.transform == "log1p":
            return x.sign() * _log1p(size)
        if self.transform == "sqrt":
            return x.sign() * size.sqrt()
        return x.sign() * _log1p(size + size.square() / (1 + (size.square() + 1).sqrt()))

    def back(self, z: Tensor) -> Tensor:
        """Map forecasts to raw values, of any shape; NaN stays NaN."""
        if not self.is_plain:
            size = z.abs()
            # where, not clamp: runtimes differ on the clamp of NaN.
            if self.transform == "sqrt":
                size = size.square()
            else:
                size = _expm1(torch.where(size > _LARGEST_EXPONENT, torch.full_like(size, _LARGEST_EXPONENT), size))
            z = z.sign() * ((size + size / (size + 1)) / 2 if self.transform == "asinh" else size)
        return torch.where(z < 0, torch.zeros_like(z), z) if self.non_negative else z


PLAIN = Units()


# Kahan's forms, of plain logarithms and exponentials: graphs have no log1p and no expm1, and both sides must agree.


def _log1p(x: Tensor) -> Tensor:
    u = 1 + x
    small = u == 1
    return torch.where(small, x, u.log() * x / torch.where(small, torch.ones_like(u), u - 1))


def _expm1(x: Tensor) -> Tensor:
    u = x.exp()
    small = u == 1
    return torch.where(small, x, (u - 1) * x / torch.where(small, torch.ones_like(u), u.log()))
