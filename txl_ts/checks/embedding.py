"""What every embedding must hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from txl_ts.checks.verdict import D_MODEL, N_CHANNELS, N_LANES, Check, named, random, randomised, require
from txl_ts.embeddings import Scale


def check_embedding(embedding_factory: Callable[..., nn.Module]) -> list[Check]:
    """List the checks of an embedding, the module that makes one token per row.

    Parameters
    ----------
    embedding_factory : callable
        ``embedding_factory(patch_len=…, n_channels=…, d_model=…)`` gives a module, called as
        ``module(z, present, scale) -> tokens`` like :class:`~txl_ts.embeddings.PatchEmbedding`.

    Returns
    -------
    list of Check
    """
    return named("embedding", embedding_factory, _EMBEDDING_CHECKS)


_PATCH_LEN = 5


def _embedding(factory: Callable[..., nn.Module]) -> nn.Module:
    return randomised(factory(patch_len=_PATCH_LEN, n_channels=N_CHANNELS, d_model=D_MODEL))


def _patches(n_rows: int = 6, *, seed: int = 0) -> dict[str, Any]:
    shape = (N_LANES, n_rows, N_CHANNELS)
    present = (random(*shape, _PATCH_LEN, seed=seed + 1) < 0.8).float()
    scale = Scale(
        shift=random(N_LANES, 1, N_CHANNELS, seed=seed + 2),
        mean=random(*shape, seed=seed + 3),
        rest=torch.zeros(shape),
        deviation=random(*shape, seed=seed + 4).abs() + 0.1,
        drift=random(*shape, 2, seed=seed + 5),
        age=random(*shape, seed=seed + 6).abs().round(),
        known=torch.ones(shape, dtype=torch.bool),
    )
    return {"z": random(*shape, _PATCH_LEN, seed=seed) * present, "present": present, "scale": scale}


def _mixed(inputs: dict[str, Any], others: dict[str, Any], pick: Callable[[Tensor, Tensor], Tensor]) -> dict[str, Any]:
    """Put two sets of patches together, tensor by tensor; the shift has no rows and stays."""
    scale, other = vars(inputs["scale"]), vars(others["scale"])
    parts = {name: tensor if name == "shift" else pick(tensor, other[name]) for name, tensor in scale.items()}
    return {name: pick(inputs[name], others[name]) for name in ("z", "present")} | {"scale": Scale(**parts)}


def _there_is_one_token_per_row(factory: Callable[..., nn.Module]) -> None:
    tokens = _embedding(factory)(**_patches())
    expected = (N_LANES, 6, D_MODEL)
    require(tokens.shape == expected, f"tokens have shape {tuple(tokens.shape)}, expected {expected}.")


def _a_token_sees_its_own_patch_only(factory: Callable[..., nn.Module]) -> None:
    module, inputs, others = _embedding(factory), _patches(), _patches(seed=50)
    before = module(**inputs)
    for row in range(6):
        rows = torch.arange(6) >= row

        def later(a: Tensor, b: Tensor, rows: Tensor = rows) -> Tensor:
            return torch.where(rows.reshape(1, -1, *(1,) * (a.ndim - 2)), b, a)

        after = module(**_mixed(inputs, others, later))
        require(torch.equal(after[:, :row], before[:, :row]), f"rows from {row} on changed an earlier token.")
        require(not torch.equal(after[:, row], before[:, row]), f"row {row} itself changed and its token did not.")


def _a_missing_value_is_not_a_zero(factory: Callable[..., nn.Module]) -> None:
    module, inputs = _embedding(factory), _patches()
    inputs["z"], inputs["present"] = torch.zeros_like(inputs["z"]), torch.ones_like(inputs["present"])
    there = module(**inputs)
    inputs["present"] = torch.zeros_like(inputs["present"])
    require(not torch.equal(module(**inputs), there), "a missing value gives the same token as a value of 0.")


def _tokens_of_extreme_patches_are_finite(factory: Callable[..., nn.Module]) -> None:
    module = _embedding(factory)
    for sign in (-1, 1):
        inputs = _patches()
        scale = {**vars(inputs["scale"]), "age": torch.full_like(inputs["scale"].age, 1e6)}
        scale |= {"drift": torch.full_like(scale["drift"], 10.0 * sign), "deviation": torch.zeros_like(scale["mean"])}
        tokens = module(torch.full_like(inputs["z"], 10.0 * sign), inputs["present"], Scale(**scale))
        require(tokens.isfinite().all(), "a patch of the largest values gives a non-finite token.")


def _an_embedding_lane_does_not_know_the_others(factory: Callable[..., nn.Module]) -> None:
    module, inputs, others = _embedding(factory), _patches(), _patches(seed=50)
    lane = torch.arange(N_LANES) == 1
    mixed = _mixed(inputs, others, lambda a, b: torch.where(lane.reshape(-1, *(1,) * (a.ndim - 1)), b, a))
    same = torch.equal(module(**mixed)[[0, 2]], module(**inputs)[[0, 2]])
    require(same, "what lane 1 holds changed the tokens of another lane.")


def _embedding_inputs_stay_untouched(factory: Callable[..., nn.Module]) -> None:
    inputs, twin = _patches(), _patches()
    _embedding(factory)(**inputs)
    for name in ("z", "present"):
        require(torch.equal(inputs[name], twin[name]), f"{name!r} was changed in place.")
    for name, tensor in vars(inputs["scale"]).items():
        require(torch.equal(tensor, getattr(twin["scale"], name)), f"'scale.{name}' was changed in place.")


_EMBEDDING_CHECKS = (
    _there_is_one_token_per_row,
    _a_token_sees_its_own_patch_only,
    _a_missing_value_is_not_a_zero,
    _tokens_of_extreme_patches_are_finite,
    _an_embedding_lane_does_not_know_the_others,
    _embedding_inputs_stay_untouched,
)
