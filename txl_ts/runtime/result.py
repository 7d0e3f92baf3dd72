"""What a step gives back for one stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Status = Literal["ok", "warming_up", "missing"]


@dataclass(frozen=True, eq=False)
class StepResult:
    """Forecasts of one stream, one for each row that was given.

    Attributes
    ----------
    forecasts : float32 array of shape (T, h, Q), or (T, h, C, Q) with several channels
        Quantiles of the next h steps, seen from each of the T rows, in the user's units; NaN before the first value.
    levels : tuple of float
        The Q quantile levels.
    times : datetime64[ns] or int64 array of shape (1 + h,), or None
        Stamp of the last row, then those of the steps that its forecast is for. Where the time column has a zone, these
        are instants in UTC. None if no time was given or the step has no fixed length (days of a zone, months).
    status : {"ok", "warming_up", "missing"}
        ``"missing"`` if the last row lacks a value; else ``"warming_up"`` until the look-back and one layer's memory
        are filled: the forecast is valid, but knows less than it will.
    """

    forecasts: NDArray[np.float32]
    levels: tuple[float, ...]
    times: NDArray[Any] | None
    status: Status

    @property
    def quantiles(self) -> NDArray[np.float32]:
        """Forecast from the last row, (h, Q), or (h, C, Q) with several channels."""
        last: NDArray[np.float32] = self.forecasts[-1]
        return last

    @property
    def median(self) -> NDArray[np.float32]:
        """Median from the last row, (h,), or (h, C) with several channels."""
        return self.quantiles[..., self.levels.index(0.5)]
