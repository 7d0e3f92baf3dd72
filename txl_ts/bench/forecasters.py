"""Named estimator configurations, and what a table reads off a fitted one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from txl_ts.estimators.forecaster import TXLForecaster


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A row of a table: one configuration of the forecaster under a name.

    Parameters
    ----------
    name : str
        As it stands in the table.
    params : mapping
        Arguments of :class:`~txl_ts.TXLForecaster` besides ``h``, ``freq`` and ``random_state``.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def make(self, *, h: int, freq: str | int, random_state: int) -> TXLForecaster:
        """Build the unfitted forecaster. torch loads here, not before."""
        from txl_ts.estimators.forecaster import TXLForecaster

        return TXLForecaster(h=h, freq=freq, random_state=random_state, **self.params)


def memory_variants(carried: Variant, *, reach: int) -> tuple[Variant, Variant, Variant]:
    """Does memory help? A configuration with its memory carried, reset at each segment, and switched off.

    Parameters
    ----------
    carried : Variant
    reach : int
        Rows that its memory sees back: without memory the linear path gets at least as many.

    Returns
    -------
    tuple of Variant
    """
    lookback = max(int(carried.params.get("lookback", 0)), reach)
    reset = Variant(name=f"{carried.name}, memory reset", params={**carried.params, "carry_memory": False})
    off = Variant(name=f"{carried.name}, memory off", params={**carried.params, "mem_len": 0, "lookback": lookback})
    return carried, reset, off


class ValidationError(NamedTuple):
    """Errors on the validation rows, NaN where the model does not keep them."""

    mse: float
    mae: float


def validation_error(model: Any) -> ValidationError:
    """Errors of the chosen epoch on the rows of ``val_size``, in the units of the frame.

    Parameters
    ----------
    model : TXLForecaster
        Fitted. Read are ``validation_mse_`` and ``validation_mae_``.

    Returns
    -------
    ValidationError
    """
    return ValidationError(*(float(getattr(model, f"validation_{name}_", math.nan)) for name in ("mse", "mae")))


def parameter_count(model: Any) -> int | None:
    """Trained numbers of a fitted forecaster, or None if it does not tell (``n_parameters_``)."""
    count = getattr(model, "n_parameters_", None)
    return None if count is None else int(count)


def context_rows(model: Any) -> int | None:
    """Rows back that a forecast can see apart from the normaliser: the longer of the memory's reach and the look-back.

    Parameters
    ----------
    model : TXLForecaster
        Fitted. Read are ``reach`` and ``lookback`` of ``config_``.

    Returns
    -------
    int or None
        None if the model does not tell.
    """
    config = getattr(model, "config_", None)
    return None if config is None else max(int(config.reach), int(config.lookback))


def median_of(forecast: NDArray[Any], *, quantiles: tuple[float, ...]) -> NDArray[Any]:
    """The point forecast of ``(k, h, Q)`` quantiles, as ``(k, h)``."""
    return forecast[..., int(np.argmin(np.abs(np.asarray(quantiles) - 0.5)))]
