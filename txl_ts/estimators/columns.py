"""Which quantiles a user sees, and what their columns are called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from txl_ts.config import ModelConfig
from txl_ts.errors import ParameterError
from txl_ts.model import TXLModel

NAME = "TXL"
# The level that stands for the mean among quantiles.
MEAN = "mean"
Level = float | str


def forecast_columns(
    config: ModelConfig,
    *,
    level: Sequence[float] | None,
    quantiles: Sequence[float] | None,
    mean: bool = False,
    any_level: bool = True,
) -> dict[str, Level]:
    """Name the columns of a forecast and the quantile that each shows.

    Parameters
    ----------
    config : ModelConfig
        Says which quantiles were trained, or that a law was, which has all.
    level : sequence of float, optional
        Widths of central intervals in percent, such as ``[80, 90]``.
    quantiles : sequence of float, optional
        Not together with ``level``. Neither: all trained ones.
    mean : bool
        Show the mean of the law beside them.
    any_level : bool
        False keeps to the trained quantiles even where there is a law.

    Returns
    -------
    dict of str to float
        ``TXL`` (the median) first, then ``TXL-mean``, then ``TXL-lo-80``, ``TXL-hi-80`` or ``TXL_ql0.1``, ….

    Raises
    ------
    ParameterError
        If both are given, or a quantile lies outside the trained ones, or there is no mean.
    """
    if level is not None and quantiles is not None:
        raise ParameterError(
            f"level={list(level)} and quantiles={list(quantiles)} were both given. Give one: level=[80] is "
            "quantiles=[0.1, 0.9]."
        )
    trained = config.quantiles
    columns: dict[str, Level] = {NAME: 0.5}
    if mean:
        _check_mean(config)
        columns[f"{NAME}-mean"] = MEAN
    if level is not None:
        for width in sorted(_numbers("level", level), reverse=True):
            if not 1 <= width < 100:  # a share of 0.8 is not meant as 0.8 percent
                raise ParameterError(f"level={width!r} must lie in [1, 100) percent. Take for example level=[80].")
            columns[f"{NAME}-lo-{width:g}"] = round((1 - width / 100) / 2, 10)
        for width in sorted(_numbers("level", level)):
            columns[f"{NAME}-hi-{width:g}"] = round((1 + width / 100) / 2, 10)
    elif quantiles is not None:
        columns |= {f"{NAME}_ql{q:g}": q for q in _numbers("quantiles", quantiles)}
    else:
        columns |= {f"{NAME}_ql{q:g}": q for q in trained if q != 0.5}
    has_law = config.distribution != "none"
    for q in columns.values():
        if isinstance(q, str):
            continue
        if not 0 < q < 1:
            raise ParameterError(f"quantile {q:g} must lie in (0, 1). Take for example quantiles=[0.1, 0.9].")
        if has_law and not any_level and not trained[0] <= q <= trained[-1]:
            raise ParameterError(
                f"quantile {q:g} lies outside those that were calibrated, {trained[0]:g} to {trained[-1]:g}. Fit with "
                "quantiles that reach it and calibrate again, or set calibration_ = None for the law as it was trained."
            )
        if not has_law and not trained[0] <= q <= trained[-1]:
            raise ParameterError(
                f"quantile {q:g} lies outside the trained ones, {trained[0]:g} to {trained[-1]:g}, and tails are not "
                f"guessed. Fit with quantiles that reach it, such as ({min(q, 1 - q):g}, 0.5, {max(q, 1 - q):g})."
            )
    return columns


def read_law(model: TXLModel, law: NDArray[np.float32], levels: Sequence[Level]) -> NDArray[np.float32]:
    """Read quantiles, and the mean, off what a model said.

    Parameters
    ----------
    model : TXLModel
    law : float32 array of shape (…, C · law_width)
        Of each channel.
    levels : sequence of float, or "mean"

    Returns
    -------
    float32 array of shape (…, len(levels)), or with several channels (…, C, len(levels))
    """
    config = model.config
    said = law.reshape(*law.shape[:-1], config.n_channels, config.law_width)
    numbers = [q for q in levels if not isinstance(q, str)]
    if config.distribution == "none":
        out = pick_quantiles(said, config.quantiles, numbers)
    else:
        with torch.inference_mode():
            out = model.read(torch.from_numpy(np.ascontiguousarray(said)), numbers).numpy()
            if len(numbers) < len(levels):
                mean = model.mean_of(torch.from_numpy(np.ascontiguousarray(said))).numpy()
                out = np.insert(out, [levels.index(MEAN)], mean[..., None], axis=-1)
    return out if config.n_channels > 1 else out[..., 0, :]


def _check_mean(config: ModelConfig) -> None:
    """Raise ParameterError where the mean is not known."""
    if config.distribution == "none":
        raise ParameterError(
            "mean=True needs a distribution: trained quantiles do not say what the mean is. Fit with "
            "distribution='normal' or another law, or with loss='squared', whose TXL is a mean."
        )
    if config.transform != "none" or config.non_negative:
        raise ParameterError(
            f"mean=True is known where the law is one of raw values, and transform={config.transform!r}, "
            f"non_negative={config.non_negative} change it. Ask for quantiles, or fit without them."
        )


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
