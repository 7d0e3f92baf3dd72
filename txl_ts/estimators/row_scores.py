"""What a detector says about rows, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class RowScores:
    """What a detector says about each of n rows, in the order of X.

    Attributes
    ----------
    score : float32 array of shape (n,)
        Higher is more unusual; −log₁₀ of how often a normal row lies so far out, if the forecasts are right. NaN where
        none can be given: the status says why.
    p_value : float64 array of shape (n,)
        Share of the normal rows of the calibration that score as high.
    is_alarm : bool array of shape (n,)
        The p-value is at most the budget's level.
    parts : float32 array of shape (n, C)
        Of each sensor; NaN where it has no value or no forecast.
    status : array of str, shape (n,)
        ``"ok"``, ``"warming_up"``, ``"missing"`` (a sensor gave no value), ``"drift"``.
    low, median, high : float32 array of shape (n, C)
        What was expected one row before: outermost quantiles and median.
    sensors : tuple of str
        Names of the C sensors.
    """

    score: NDArray[np.float32]
    p_value: NDArray[np.float64]
    is_alarm: NDArray[np.bool_]
    parts: NDArray[np.float32]
    status: NDArray[np.str_]
    low: NDArray[np.float32]
    median: NDArray[np.float32]
    high: NDArray[np.float32]
    sensors: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.score)

    @property
    def worst(self) -> NDArray[np.object_]:
        """Name of the sensor with the largest part, of each row; None without any."""
        known = ~np.isnan(self.parts).all(axis=1)
        at = np.where(np.isnan(self.parts), -1, self.parts).argmax(axis=1)
        names: NDArray[np.object_] = np.array(self.sensors, object)[at]
        names[~known] = None
        return names

    def to_frame(self, *, index: Any = None) -> Any:
        """Give a pandas frame: score, p_value, is_alarm, status, worst, and ``part:…`` of each sensor."""
        import pandas as pd

        columns = {
            "score": self.score,
            "p_value": self.p_value,
            "is_alarm": self.is_alarm,
            "status": self.status,
            "worst": self.worst,
        }
        columns |= {f"part:{name}": self.parts[:, i] for i, name in enumerate(self.sensors)}
        return pd.DataFrame(columns, index=index)
