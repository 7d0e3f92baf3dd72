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
    """

    __slots__ = ("_contract", "_last", "forecasts", "status")

    def __init__(self, forecasts: NDArray[np.float32], status: Status, last: int | None, contract: Contract) -> None:
        self.forecasts, self.status, self._last, self._contract = forecasts, status, last, contract

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
    """

    __slots__ = ("_codes", "_contract", "_last", "_timed", "names", "quantiles")

    def __init__(
        self,
        names: list[str | int],
        quantiles: NDArray[np.float32],
        codes: NDArray[np.int64],
        last: NDArray[np.int64],
        timed: NDArray[np.bool_],
        contract: Contract,
    ) -> None:
        self.names, self.quantiles, self._codes = names, quantiles, codes
        self._last, self._timed, self._contract = last, timed, contract

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
