"""A promise, the verdict on it, and what the checks of all kinds of parts need."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from txl_ts.errors import TxlError

LARGEST = float(np.finfo(np.float32).max)
BAD_VALUES = (math.nan, math.inf, -math.inf, 1e30, LARGEST, -LARGEST)
# Lanes, channels, width: all different, so that a swapped axis cannot pass.
N_LANES, N_CHANNELS, D_MODEL = 3, 2, 4


class CheckFailed(TxlError, AssertionError):  # noqa: N818 - a verdict, named like pytest's own
    """A part does not keep a promise that every part of its kind must keep."""


@dataclass(frozen=True)
class Check:
    """One promise, ready to be tried.

    Attributes
    ----------
    name : str
        The promise as a sentence, after the kind of part: ``"memory: shapes stay fixed"``.
    run : callable
        Raises :class:`CheckFailed` if the promise is broken.
    """

    name: str
    run: Callable[[], None]

    def __call__(self) -> None:
        """Try the promise."""
        self.run()

    def __str__(self) -> str:
        return self.name


def named(kind: str, factory: Any, functions: Iterable[Callable[[Any], None]]) -> list[Check]:
    """Make checks of functions: a check's name is its function's."""
    return [Check(f"{kind}: {f.__name__.strip('_').replace('_', ' ')}", partial(f, factory)) for f in functions]


def require(holds: bool | Tensor | np.bool_, sentence: str) -> None:
    """Fail with this sentence unless it holds."""
    if not bool(holds):
        raise CheckFailed(sentence)


def require_equal(found: NDArray[Any], expected: NDArray[Any], sentence: str) -> None:
    """Fail with this sentence unless two arrays are equal, NaN at the same places."""
    require(np.array_equal(found, expected, equal_nan=found.dtype.kind == "f"), sentence)


def require_close(found: NDArray[Any], expected: NDArray[Any], sentence: str, *, tolerance: float) -> None:
    """Fail unless the largest difference is at most ``tolerance`` of the largest size, NaN at the same places."""
    same = found.shape == expected.shape and np.array_equal(np.isnan(found), np.isnan(expected))
    require(same, f"{sentence} Shapes are {found.shape} and {expected.shape}, or NaN stand at other places.")
    size = max(float(np.nan_to_num(np.abs(expected)).max(initial=0)), 1e-30)
    gap = float(np.nan_to_num(np.abs(found.astype(float) - expected)).max(initial=0)) / size
    require(gap <= tolerance, f"{sentence} They differ by {gap:.1e}, allowed are {tolerance:.0e}.")


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Tell whether two tensors are equal, NaN at the same places included."""
    same = a.shape == b.shape and torch.equal(a.isnan(), b.isnan())
    return same and torch.equal(a.nan_to_num(), b.nan_to_num())


def random(*shape: int, seed: int = 0) -> Tensor:
    """Draw normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def randomised(module: nn.Module) -> nn.Module:
    """Draw all weights: a layer that starts at zero would hide what is behind it."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.5)
    return module.eval()
