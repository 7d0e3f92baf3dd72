"""What a step gives back."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from txl_ts.runtime.contract import Contract
from txl_ts.runtime.stamps import as_array

Status = Literal["ok", "warming_up", "missing"]
STATUSES: tuple[Status, ...] = ("ok", "warming_up", "missing")


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
    scores, p_values : float32 array of shape (T,)
        Of a detector: how unusual each row was, by what had been said before it; NaN where that cannot be told.
    sensor_parts : float32 array of shape (T, C)
        What each channel has to do with it. Forecasters have none of the three: AttributeError.
    """

    __slots__ = ("_contract", "_last", "forecasts", "p_values", "scores", "sensor_parts", "status")

    def __init__(self, answer: NDArray[np.float32], status: Status, last: int | None, contract: Contract) -> None:
        """``answer`` is of shape (T, h, C, Q), with a step more of a detector; see ``runtime.engine.joined``."""
        self.status, self._last, self._contract = status, last, contract
        if contract.is_detector:
            said, answer = answer[:, -1], answer[:, :-1]
            self.sensor_parts, self.scores, self.p_values = said[..., 0], said[:, 0, 1], said[:, 0, 2]
        self.forecasts = answer[:, :, 0] if len(contract.channels) == 1 else answer

    def __repr__(self) -> str:
        return f"StepResult(forecasts of shape {self.forecasts.shape}, status={self.status!r}, times={self.times!r})"

    @property
    def levels(self) -> tuple[float, ...]:
        """The Q quantile levels."""
        return self._contract.quantiles

    @property
    def times(self) -> NDArray[Any] | None:
        """Stamp of the last row, then those of the h steps ahead."""
        if self._last is None:
            return None
        return times_ahead(self._last, self._contract)

    @property
    def quantiles(self) -> NDArray[np.float32]:
        """Forecast from the last row, (h, Q), or (h, C, Q) with several channels."""
        last: NDArray[np.float32] = self.forecasts[-1]
        return last

    @property
    def median(self) -> NDArray[np.float32]:
        """Median from the last row, (h,), or (h, C) with several channels."""
        return self.quantiles[..., self.levels.index(0.5)]

    @property
    def score(self) -> float:
        """Of a detector: how unusual the last row was; NaN if that cannot be told."""
        return float(self.scores[-1])

    @property
    def p_value(self) -> float:
        """Of a detector: share of normal rows that score as high as the last one."""
        return float(self.p_values[-1])

    @property
    def parts(self) -> dict[str, float]:
        """Of a detector: the part of each channel in the last row's score; channels without a value have none."""
        parts = zip(self._contract.channels, self.sensor_parts[-1].tolist(), strict=True)
        return {name: part for name, part in parts if part == part}

    @property
    def alarm(self) -> bool:
        """Of a detector: the last row's p-value is at most the level of its budget."""
        return bool(self.p_values[-1] <= np.float32(self._contract.alpha))


class StepColumns:
    """Forecasts of many streams, one row each, as arrays.

    Attributes
    ----------
    names : list of stream name
        In the order of the call.
    quantiles : float32 array of shape (n, h, Q), or (n, h, C, Q) with several channels
        Quantiles of the next h steps, in the user's units; NaN before a stream's first value.
    status : array of str, shape (n,)
        As :attr:`StepResult.status`.
    score, p_value, alarm : array of shape (n,)
        Of a detector, as those of :class:`StepResult`.
    parts : float32 array of shape (n, C)
    """

    __slots__ = (
        "_codes",
        "_contract",
        "_last",
        "_timed",
        "alarm",
        "names",
        "p_value",
        "parts",
        "quantiles",
        "score",
    )

    def __init__(
        self,
        names: list[str | int],
        answer: NDArray[np.float32],
        codes: NDArray[np.int64],
        last: NDArray[np.int64],
        timed: NDArray[np.bool_],
        contract: Contract,
    ) -> None:
        self.names, self._codes = names, codes
        self._last, self._timed, self._contract = last, timed, contract
        if contract.is_detector:
            said, answer = answer[:, -1], answer[:, :-1]
            self.parts, self.score, self.p_value = said[..., 0], said[:, 0, 1], said[:, 0, 2]
            self.alarm = self.p_value <= np.float32(contract.alpha)
        self.quantiles = answer[:, :, 0] if len(contract.channels) == 1 else answer

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"StepColumns({len(self.names)} streams, quantiles of shape {self.quantiles.shape})"

    @property
    def levels(self) -> tuple[float, ...]:
        """The Q quantile levels."""
        return self._contract.quantiles

    @property
    def median(self) -> NDArray[np.float32]:
        """Median, (n, h), or (n, h, C) with several channels."""
        return self.quantiles[..., self.levels.index(0.5)]

    @property
    def status(self) -> NDArray[np.str_]:
        """``"ok"``, ``"warming_up"`` or ``"missing"`` for each stream."""
        return np.array(STATUSES)[self._codes]

    @property
    def times(self) -> NDArray[Any] | None:
        """Stamps of the rows and of the h steps ahead, (n, 1 + h); None if a stream has none."""
        contract = self._contract
        if contract.step is None or not self._timed.all():
            return None
        ahead = self._last[:, None] + np.arange(contract.horizon + 1) * contract.step
        return ahead.view("datetime64[ns]") if contract.is_datetime else ahead


def times_ahead(last: int, contract: Contract) -> NDArray[Any] | None:
    """Give a row's stamp and those of its forecast; None if the step has no fixed length."""
    if contract.step is None:
        return None
    return as_array([last + i * contract.step for i in range(contract.horizon + 1)], contract)
