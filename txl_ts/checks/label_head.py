"""What every head for labels must hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from txl_ts.checks.verdict import D_MODEL, N_LANES, Check, named, random, randomised, require


def check_label_head(head_factory: Callable[..., nn.Module]) -> list[Check]:
    """List the checks of a head for labels.

    Parameters
    ----------
    head_factory : callable
        ``head_factory(d_model=…, n_outputs=…)`` gives a module, called as ``module(hidden, centre) -> z``, with a
        method ``outputs(z)``, like :class:`~txl_ts.heads.ClassHead` and :class:`~txl_ts.heads.ValueHead`.

    Returns
    -------
    list of Check
    """
    return named("label head", head_factory, _LABEL_HEAD_CHECKS)


_N_OUTPUTS, _N_ROWS = 5, 6


def _label_head(factory: Callable[..., nn.Module], n_outputs: int = _N_OUTPUTS) -> Any:
    return randomised(factory(d_model=D_MODEL, n_outputs=n_outputs))


def _label_hidden(scale: float = 1.0, *, seed: int = 0, n_outputs: int = _N_OUTPUTS) -> tuple[Tensor, Tensor]:
    hidden = random(N_LANES, _N_ROWS, D_MODEL, seed=seed) * scale
    return hidden, random(N_LANES, _N_ROWS, n_outputs, seed=seed + 1) * scale


def _there_is_one_value_per_row_and_output(factory: Callable[..., nn.Module]) -> None:
    for n_outputs in (1, 2, _N_OUTPUTS):
        head = _label_head(factory, n_outputs)
        z = head(*_label_hidden(n_outputs=n_outputs))
        expected = (N_LANES, _N_ROWS, n_outputs)
        for name, found in (("the head", tuple(z.shape)), ("outputs()", tuple(head.outputs(z).shape))):
            require(found == expected, f"n_outputs={n_outputs}: {name} gives shape {found}, expected {expected}.")


def _a_new_head_answers_by_the_centre_alone(factory: Callable[..., nn.Module]) -> None:
    hidden, centre = _label_hidden()
    same = torch.equal(factory(d_model=D_MODEL, n_outputs=_N_OUTPUTS)(hidden, centre), centre)
    require(same, "before training, the answer is not that of the linear path alone.")


def _answers_move_with_the_centre(factory: Callable[..., nn.Module]) -> None:
    head, (hidden, centre) = _label_head(factory), _label_hidden()
    moved = head(hidden, centre + 3.0) - head(hidden, centre)
    require(((moved - 3.0).abs() < 1e-4).all(), "adding 3 to the centre does not add 3 to every answer.")


def _answers_and_gradients_of_huge_hidden_rows_are_finite(factory: Callable[..., nn.Module]) -> None:
    for scale in (1e6, 1e12):
        head = _label_head(factory)
        hidden, centre = _label_hidden(scale)
        found = head.outputs(head(hidden.requires_grad_(), centre))
        require(found.isfinite().all(), f"hidden rows of size {scale:.0e} give a non-finite answer.")
        found.mean().backward()
        grads = [hidden.grad, *(weight.grad for weight in head.parameters())]
        finite = all(grad is None or bool(grad.isfinite().all()) for grad in grads)
        require(finite, f"hidden rows of size {scale:.0e} give a non-finite gradient.")


def _an_answer_sees_its_own_row_only(factory: Callable[..., nn.Module]) -> None:
    head, (hidden, centre), (others, other_centre) = _label_head(factory), _label_hidden(), _label_hidden(seed=50)
    before = head.outputs(head(hidden, centre))
    for name, here in (("row 3", (slice(None), 3)), ("lane 1", (1, slice(None)))):
        changed, changed_centre = hidden.clone(), centre.clone()
        changed[here], changed_centre[here] = others[here], other_centre[here]
        after = head.outputs(head(changed, changed_centre))
        own = torch.zeros(hidden.shape[:2], dtype=torch.bool)
        own[here] = True
        require(torch.equal(after[~own], before[~own]), f"{name} changed, and so did the answer of another one.")


def _label_head_inputs_stay_untouched(factory: Callable[..., nn.Module]) -> None:
    inputs, head = _label_hidden(), _label_head(factory)
    z = head(*inputs)
    twin = z.clone()
    head.outputs(z)
    require(torch.equal(z, twin), "'z' was changed in place.")
    for name, tensor, other in zip(("hidden", "centre"), inputs, _label_hidden(), strict=True):
        require(torch.equal(tensor, other), f"{name!r} was changed in place.")


_LABEL_HEAD_CHECKS = (
    _there_is_one_value_per_row_and_output,
    _a_new_head_answers_by_the_centre_alone,
    _answers_move_with_the_centre,
    _answers_and_gradients_of_huge_hidden_rows_are_finite,
    _an_answer_sees_its_own_row_only,
    _label_head_inputs_stay_untouched,
)
