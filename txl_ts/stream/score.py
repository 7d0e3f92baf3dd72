"""How unusual a row is, from what a model had said about it; a stand-in that a detector may replace."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from txl_ts.stream.row import Row

_HIGHEST = 1e30  # scores stay numbers that JSON can hold


@dataclass(frozen=True, kw_only=True)
class Score:
    """A number for a row.

    Attributes
    ----------
    value : float
        Higher is more unusual; NaN if it cannot be given.
    sensors : dict of column to float
        Its parts.
    band : dict of column to (low, high)
        What was expected.
    """

    value: float
    sensors: dict[str, float] = field(default_factory=dict)
    band: dict[str, tuple[float, float]] = field(default_factory=dict)


class Scorer(Protocol):
    """Whatever scores a row from the forecast that was made before it."""

    def __call__(self, row: Row, *, ahead: NDArray[np.float32], levels: tuple[float, ...]) -> Score:
        """Score a row.

        Parameters
        ----------
        row : Row
            What came.
        ahead : array of shape (C, Q)
            Quantiles of this row, as said before it; columns in the order of ``row.values``.
        levels : tuple of float
            The Q levels, .5 among them.
        """
        ...


def band_score(row: Row, *, ahead: NDArray[np.float32], levels: tuple[float, ...]) -> Score:
    """Score a row by its distance from the median, in half-widths of the outermost quantiles; the worst column counts.

    1 is the edge of the band. Columns without a value or a forecast have no part.
    """
    lows, medians, highs = ahead[:, 0], ahead[:, levels.index(0.5)], ahead[:, -1]
    return _from_band(row.values, lows.tolist(), medians.tolist(), highs.tolist())


def _from_band(
    values: Mapping[str, float | None], lows: list[float], medians: list[float], highs: list[float]
) -> Score:
    parts: dict[str, float] = {}
    band: dict[str, tuple[float, float]] = {}
    for (column, value), low, median, high in zip(values.items(), lows, medians, highs, strict=True):
        if not math.isfinite(low + high):
            continue
        band[column] = (low, high)
        if value is not None:
            half = max(high - median if value > median else median - low, 1e-6 * abs(median), 1e-30)
            parts[column] = min(abs(value - median) / half, _HIGHEST)
    return Score(value=max(parts.values(), default=math.nan), sensors=parts, band=band)
