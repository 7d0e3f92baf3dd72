"""What every head must hold."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from txl_ts.checks.verdict import D_MODEL, N_CHANNELS, N_LANES, Check, named, random, randomised, require


def check_head(head_factory: Callable[..., nn.Module]) -> list[Check]:
    """List the checks of a quantile head.

    Parameters
    ----------
    head_factory : callable
        ``head_factory(d_model=…, h=…, n_channels=…, quantiles=…)`` gives a module, called as
        ``module(hidden, centre) -> quantiles`` like :class:`~txl_ts.heads.QuantileHead`.

    Returns
    -------
    list of Check
    """
    return named("head", head_factory, _HEAD_CHECKS)


_H, _N_ROWS = 5, 6
_LEVELS = ((0.5,), (0.1, 0.5, 0.9), (0.01, 0.5), (0.5, 0.6, 0.95, 0.99))


def _head(factory: Callable[..., nn.Module], quantiles: tuple[float, ...] = _LEVELS[1]) -> nn.Module:
    return randomised(factory(d_model=D_MODEL, h=_H, n_channels=N_CHANNELS, quantiles=quantiles))


def _hidden(scale: float = 1.0, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    hidden = random(N_LANES, _N_ROWS, D_MODEL, seed=seed) * scale
    return hidden, random(N_LANES, _N_ROWS, _H, N_CHANNELS, seed=seed + 1) * scale


def _there_is_one_value_per_row_step_channel_and_level(factory: Callable[..., nn.Module]) -> None:
    for quantiles in _LEVELS:
        found = tuple(_head(factory, quantiles)(*_hidden()).shape)
        expected = (N_LANES, _N_ROWS, _H, N_CHANNELS, len(quantiles))
        require(found == expected, f"quantiles={quantiles}: the output has shape {found}, expected {expected}.")


def _quantiles_increase(factory: Callable[..., nn.Module]) -> None:
    for quantiles in _LEVELS:
        for scale in (1e-6, 1.0, 1e3, 1e6):
            for seed in range(5):
                found = _head(factory, quantiles)(*_hidden(scale, seed=seed))
                require((found.diff(dim=-1) >= 0).all(), f"quantiles={quantiles} cross at size {scale}.")


def _outputs_and_gradients_of_huge_hidden_rows_are_finite(factory: Callable[..., nn.Module]) -> None:
    for scale in (1e6, 1e12):
        module = _head(factory)
        hidden, centre = _hidden(scale)
        found = module(hidden.requires_grad_(), centre)
        require(found.isfinite().all(), f"hidden rows of size {scale:.0e} give a non-finite output.")
        found.mean().backward()
        grads = [hidden.grad, *(weight.grad for weight in module.parameters())]
        finite = all(grad is None or bool(grad.isfinite().all()) for grad in grads)
        require(finite, f"hidden rows of size {scale:.0e} give a non-finite gradient.")


def _forecasts_move_with_the_centre(factory: Callable[..., nn.Module]) -> None:
    module, (hidden, centre) = _head(factory), _hidden()
    moved = module(hidden, centre + 3.0) - module(hidden, centre)
    require(((moved - 3.0).abs() < 1e-4).all(), "adding 3 to the centre does not add 3 to every quantile.")


def _an_output_sees_its_own_row_only(factory: Callable[..., nn.Module]) -> None:
    module, (hidden, centre), (others, other_centre) = _head(factory), _hidden(), _hidden(seed=50)
    before = module(hidden, centre)
    for name, here in (
        ("row 3", (slice(None), 3)),
        ("lane 1", (1, slice(None))),
    ):
        changed, changed_centre = hidden.clone(), centre.clone()
        changed[here], changed_centre[here] = others[here], other_centre[here]
        after = module(changed, changed_centre)
        own = torch.zeros(hidden.shape[:2], dtype=torch.bool)
        own[here] = True
        require(torch.equal(after[~own], before[~own]), f"{name} changed, and so did the output of another one.")


def _head_inputs_stay_untouched(factory: Callable[..., nn.Module]) -> None:
    inputs = _hidden()
    _head(factory)(*inputs)
    for name, tensor, twin in zip(("hidden", "centre"), inputs, _hidden(), strict=True):
        require(torch.equal(tensor, twin), f"{name!r} was changed in place.")


_HEAD_CHECKS = (
    _there_is_one_value_per_row_step_channel_and_level,
    _quantiles_increase,
    _outputs_and_gradients_of_huge_hidden_rows_are_finite,
    _forecasts_move_with_the_centre,
    _an_output_sees_its_own_row_only,
    _head_inputs_stay_untouched,
)
