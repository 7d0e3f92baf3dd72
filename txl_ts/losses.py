"""Training losses: pinball in units of each series, plainly or with a relative term beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """What a loss measures.

    Attributes
    ----------
    unit : {"deviation", "seasonal"}
        Errors are in units of each series: the deviation of its training rows, or their mean absolute seasonal
        difference (the scale of MASE).
    relative : float
        Weight of the error relative to its own level, beside it.
    squared : bool
        The point forecast is trained by squared error (it is then a mean), not by absolute error (a median).
    """

    unit: str
    relative: float = 0.0
    squared: bool = False


# 20 is about the ratio in which the M4 competition's OWA weighs sMAPE and MASE: (2 · 100 / 18.4) / (1 / 2.4).
LOSSES = {
    "pinball": Loss("deviation"),
    "squared": Loss("deviation", squared=True),
    "mase": Loss("seasonal"),
    "owa": Loss("seasonal", relative=20.0),
}

# A row whose running deviation is more than this many units gives no more gradient than one with this many.
_LARGEST_RATIO = 20.0


def pinball(error: Tensor, quantiles: Sequence[float]) -> Tensor:
    """Pinball loss, doubled so that the median's is the absolute error.

    Parameters
    ----------
    error : Tensor of shape (…, Q)
        Target minus forecast.
    quantiles : sequence of float

    Returns
    -------
    Tensor of shape (…, Q)

    References
    ----------
    Koenker and Bassett (1978), Regression quantiles.
    """
    level = error.new_tensor(quantiles)
    return 2 * torch.maximum(level * error, (level - 1) * error)


def mean_over(terms: Tensor, usable: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean of terms (B, n, h, C) over the usable targets, by their weights; 0 where nothing is usable."""
    terms = torch.where(usable, terms, torch.zeros_like(terms))
    if weight is None:
        return terms.sum() / usable.sum().clamp(min=1)
    counted = torch.where(usable, weight, torch.zeros_like(weight))
    return (terms * counted).sum() / counted.sum().clamp(min=1e-12)


def forecast_loss(
    forecast: Tensor,
    target: Tensor,
    *,
    quantiles: Sequence[float],
    deviation: Tensor,
    unit: Tensor,
    level: Tensor,
    usable: Tensor,
    loss: Loss,
    weight: Tensor | None = None,
) -> Tensor:
    """Mean loss over the usable targets.

    Parameters
    ----------
    forecast : Tensor of shape (B, n, h, C, Q)
        In raw units above ``level``'s zero.
    target : Tensor of shape (B, n, h, C)
        In the same units; anything where not usable.
    quantiles : sequence of float
    deviation : Tensor of shape (B, n, C)
        Running deviation of the row that forecasts.
    unit : Tensor of shape (B,) or (B, C)
        What an error is measured in, in raw units.
    level : Tensor of shape (B, n, C)
        What must be added to ``forecast`` and ``target`` to have raw values.
    usable : bool Tensor of shape (B, n, h, C)
    loss : Loss
    weight : Tensor of shape (B, n, h, C), optional
        What each target counts for.

    Returns
    -------
    Tensor of shape ()
        0 where nothing is usable.
    """
    target = torch.where(usable, target, torch.zeros_like(target))[..., None]
    error = torch.where(usable[..., None], target - forecast, torch.zeros_like(forecast))
    scale = torch.maximum(unit.reshape(len(unit), 1, -1), deviation / _LARGEST_RATIO)[
        :, :, None, :, None
    ]  # (B, n, 1, C, 1)
    per_unit = 1 / scale
    if loss.relative:
        raw = level[:, :, None, :, None]
        size = ((target + raw).abs() + (forecast.detach() + raw).abs()).clamp(min=1e-6)
        per_unit = per_unit + loss.relative / torch.maximum(size, 1e-3 * scale)
    terms = pinball(error, quantiles) * per_unit
    if loss.squared:
        median = list(quantiles).index(0.5)
        point = (error[..., median] * per_unit[..., 0]).square()
        terms = torch.cat([terms[..., :median], point[..., None], terms[..., median + 1 :]], dim=-1)
    if weight is None:
        return terms.sum() / (usable.sum() * len(quantiles)).clamp(min=1)
    counted = torch.where(usable, weight, torch.zeros_like(weight))
    return (terms * counted[..., None]).sum() / (counted.sum() * len(quantiles)).clamp(min=1e-12)
