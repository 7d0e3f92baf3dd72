"""Which quantiles a user sees, and what their columns are called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import ParameterError

NAME = "TXL"


def forecast_columns(
    trained: Sequence[float], *, level: Sequence[float] | None, quantiles: Sequence[float] | None
) -> dict[str, float]:
    """Name the columns of a forecast and the quantile that each shows.

    Parameters
    ----------
    trained : sequence of float
        Quantiles of the model.
    level : sequence of float, optional
        Widths of central intervals in percent, such as ``[80, 90]``.
    quantiles : sequence of float, optional
        Not together with ``level``. Neither: all trained ones.

    Returns
    -------
    dict of str to float
        ``TXL`` (the median) first, then ``TXL-lo-80``, ``TXL-hi-80`` or ``TXL_ql0.1``, ….

    Raises
    ------
    ParameterError
        If both are given, or a quantile lies outside the trained ones.
    """
    if level is not None and quantiles is not None:
        raise ParameterError(
            f"level={list(level)} and quantiles={list(quantiles)} were both given. Give one: level=[80] is "
            "quantiles=[0.1, 0.9]."
        )
    columns = {NAME: 0.5}
    if level is not None:
        for width in sorted(_numbers("level", level), reverse=True):
            if not 0 < width < 100:
                raise ParameterError(f"level={width!r} must lie in (0, 100) percent. Take for example level=[80].")
            columns[f"{NAME}-lo-{width:g}"] = round((1 - width / 100) / 2, 10)
        for width in sorted(_numbers("level", level)):
            columns[f"{NAME}-hi-{width:g}"] = round((1 + width / 100) / 2, 10)
    elif quantiles is not None:
        columns |= {f"{NAME}_ql{q:g}": q for q in _numbers("quantiles", quantiles)}
    else:
        columns |= {f"{NAME}_ql{q:g}": q for q in trained if q != 0.5}
    for q in columns.values():
        if not trained[0] <= q <= trained[-1]:
            raise ParameterError(
                f"quantile {q:g} lies outside the trained ones, {trained[0]:g} to {trained[-1]:g}, and tails are not "
                f"guessed. Fit with quantiles that reach it, such as ({min(q, 1 - q):g}, 0.5, {max(q, 1 - q):g})."
            )
    return columns


def pick_quantiles(y: NDArray[np.float32], trained: Sequence[float], wanted: Sequence[float]) -> NDArray[np.float32]:
    """Read quantiles (…, n) off trained ones (…, Q); between two of them linearly, which keeps their order."""
    levels = np.asarray(trained)
    right = np.clip(np.searchsorted(levels, wanted), 1, max(len(levels) - 1, 1)).astype(np.int64)
    if len(levels) == 1:
        return np.repeat(y, len(wanted), axis=-1)
    left = right - 1
    part = ((np.asarray(wanted) - levels[left]) / (levels[right] - levels[left])).astype(y.dtype)
    # A trained quantile is given as it is, to the bit.
    between = y[..., left] * (1 - part) + y[..., right] * part
    return np.where(part == 0, y[..., left], np.where(part == 1, y[..., right], between))


def _numbers(name: str, values: Sequence[float]) -> list[float]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ParameterError(f"{name}={values!r} must be a list, such as {name}=[{values}].")
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError) as error:
        example = "[80]" if name == "level" else "[0.1, 0.9]"
        raise ParameterError(f"{name}={values!r} must hold numbers, such as {name}={example}.") from error
