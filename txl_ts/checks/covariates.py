"""What every embedding of columns beside the target must hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from txl_ts.checks.verdict import D_MODEL, N_LANES, Check, named, random, randomised, require, same_bits
from txl_ts.config import ModelConfig
from txl_ts.embeddings import Beside

_H, _N_ROWS = 5, 8
# An amount and a category of each role, a large vocabulary and a feature of the stamp.
_CONFIG = ModelConfig(
    h=_H,
    quantiles=(0.5,),
    patch_len=3,
    stride=1,
    mem_len=2,
    lookback=2,
    half_life=6.0,
    d_model=D_MODEL,
    n_layers=1,
    n_heads=2,
    d_ff=6,
    hist_kinds=(0, 2),
    futr_kinds=(0, 3, 20, -1),
    static_kinds=(0, 2),
)


def check_covariates(embedding_factory: Callable[..., Any]) -> list[Check]:
    """List the checks of an embedding of columns beside the target.

    Parameters
    ----------
    embedding_factory : callable
        ``embedding_factory(config)`` gives a module like :class:`~txl_ts.embeddings.CovariateEmbedding`: called as
        ``module(beside, ahead, state, picked) -> (tokens, state)``, with ``module.futr`` from raw columns to features
        and ``module.specs()`` of its state.

    Returns
    -------
    list of Check
    """
    return named("covariates", embedding_factory, _CHECKS)


def _beside(n_rows: int = _N_ROWS, *, seed: int = 0) -> Beside:
    """Draw columns: amounts with holes, and codes within their vocabularies."""

    def columns(kinds: tuple[int, ...], *shape: int, at: int) -> Tensor:
        drawn = [random(*shape, seed=seed + at + i) for i in range(len(kinds))]
        codes = [
            torch.where(x > 1.2, torch.nan, x) if kind <= 0 else (x.abs() * 7).floor().clamp(max=kind)
            for x, kind in zip(drawn, kinds, strict=True)
        ]
        return torch.stack(codes, dim=-1)

    return Beside(
        columns(_CONFIG.hist_kinds, N_LANES, n_rows, at=0),
        columns(_CONFIG.futr_kinds, N_LANES, n_rows + _H, at=10),
        columns(_CONFIG.static_kinds, N_LANES, at=20),
    )


def _module(factory: Callable[..., Any]) -> Any:
    return randomised(factory(_CONFIG))


def _state(module: Any, n_lanes: int = N_LANES) -> dict[str, Tensor]:
    return {spec.name: torch.zeros(n_lanes, *spec.shape) for spec in module.specs()}


def _walked(module: Any, beside: Beside, state: dict[str, Tensor], *splits: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Walk the rows in calls that end at ``splits`` and at the end."""
    tokens, first, n = [], 0, beside.hist.shape[1]
    with torch.no_grad():
        for stop in (*splits, n):
            futr = beside.futr[:, first : stop + _H]
            part = Beside(beside.hist[:, first:stop], futr, beside.static)
            given, state = module(part, module.futr(futr), state, None)
            tokens.append(given)
            first = stop
    return torch.cat(tokens, dim=1), state


def _later(a: Tensor, b: Tensor, row: int) -> Tensor:
    return torch.cat([a[:, :row], b[:, row:]], dim=1)


def _there_is_one_token_per_row_and_picked_rows_are_those(factory: Callable[..., Any]) -> None:
    module, beside = _module(factory), _beside()
    tokens, _ = _walked(module, beside, _state(module))
    expected = (N_LANES, _N_ROWS, D_MODEL)
    require(tokens.shape == expected, f"tokens have shape {tuple(tokens.shape)}, expected {expected}.")
    picked = torch.tensor([1, 4, 7])
    with torch.no_grad():
        some, _ = module(beside, module.futr(beside.futr), _state(module), picked)
    close = torch.allclose(some.expand(N_LANES, 3, D_MODEL), tokens[:, picked], atol=1e-5)
    require(close, "tokens of picked rows are not those of the same rows among all.")


def _any_split_of_the_rows_gives_one_answer(factory: Callable[..., Any]) -> None:
    module, beside = _module(factory), _beside()
    whole, after = _walked(module, beside, _state(module))
    for splits in ((1,), (5,), (2, 3, 7), tuple(range(1, _N_ROWS))):
        tokens, state = _walked(module, beside, _state(module), *splits)
        require(torch.allclose(tokens, whole, atol=1e-5), f"calls that end at rows {splits} give other tokens.")
        same = all(torch.allclose(state[name], after[name], atol=1e-5) for name in after)
        require(same, f"calls that end at rows {splits} leave another state.")


def _a_later_row_changes_no_earlier_token(factory: Callable[..., Any]) -> None:
    module, beside, others = _module(factory), _beside(), _beside(seed=50)
    before, _ = _walked(module, beside, _state(module))
    for row in range(1, _N_ROWS):
        mixed = replace(beside, hist=_later(beside.hist, others.hist, row), futr=_later(beside.futr, others.futr, row))
        after, _ = _walked(module, mixed, _state(module))
        require(same_bits(after[:, :row], before[:, :row]), f"columns from row {row} on changed an earlier token.")


def _every_role_reaches_the_token(factory: Callable[..., Any]) -> None:
    module, beside, others = _module(factory), _beside(), _beside(seed=50)
    before, _ = _walked(module, beside, _state(module))
    for name in ("hist", "futr", "static"):
        after, _ = _walked(module, replace(beside, **{name: getattr(others, name)}), _state(module))
        require(not torch.allclose(after, before, atol=1e-4), f"other {name} columns give the same tokens.")


def _a_missing_amount_is_not_a_zero(factory: Callable[..., Any]) -> None:
    module, beside = _module(factory), _beside()
    for name in ("hist", "futr", "static"):
        there, gone = getattr(beside, name).clone(), getattr(beside, name).clone()
        there[..., 0], gone[..., 0] = 0.0, torch.nan
        a, _ = _walked(module, replace(beside, **{name: there}), _state(module))
        b, _ = _walked(module, replace(beside, **{name: gone}), _state(module))
        require(b.isfinite().all(), f"a missing {name} amount gives a token that is not finite.")
        require(not torch.allclose(a, b, atol=1e-4), f"a missing {name} amount gives the token of a 0.")


def _tokens_of_extreme_amounts_are_finite(factory: Callable[..., Any]) -> None:
    module, beside = _module(factory), _beside()
    for value in (float("inf"), -float("inf"), 1e30, -3e38):
        hist, futr, static = beside.hist.clone(), beside.futr.clone(), beside.static.clone()
        hist[:, 2::3, 0], futr[:, 1::4, 0], static[:, 0] = value, value, value
        tokens, state = _walked(module, Beside(hist, futr, static), _state(module))
        require(tokens.isfinite().all(), f"amounts of {value:g} give a token that is not finite.")
        finite = all(bool(tensor.isfinite().all()) for tensor in state.values())
        require(finite, f"amounts of {value:g} leave a state that is not finite.")


def _covariate_lanes_do_not_know_each_other(factory: Callable[..., Any]) -> None:
    module, beside, others = _module(factory), _beside(), _beside(seed=50)
    mixed = Beside(
        *(
            torch.cat([a[:1], b[1:2], a[2:]])
            for a, b in zip(
                (beside.hist, beside.futr, beside.static), (others.hist, others.futr, others.static), strict=True
            )
        )
    )
    before, _ = _walked(module, beside, _state(module))
    after, _ = _walked(module, mixed, _state(module))
    require(same_bits(after[[0, 2]], before[[0, 2]]), "what lane 1 holds changed the tokens of another lane.")


def _covariate_inputs_stay_untouched(factory: Callable[..., Any]) -> None:
    module, beside, twin = _module(factory), _beside(), _beside()
    state = _walked(module, _beside(seed=7), _state(module))[1]
    copies = {name: tensor.clone() for name, tensor in state.items()}
    _walked(module, beside, state)
    for name in ("hist", "futr", "static"):
        require(same_bits(getattr(beside, name), getattr(twin, name)), f"{name!r} was changed in place.")
    for name, tensor in state.items():
        require(same_bits(tensor, copies[name]), f"the state {name!r} was changed in place.")


_CHECKS = (
    _there_is_one_token_per_row_and_picked_rows_are_those,
    _any_split_of_the_rows_gives_one_answer,
    _a_later_row_changes_no_earlier_token,
    _every_role_reaches_the_token,
    _a_missing_amount_is_not_a_zero,
    _tokens_of_extreme_amounts_are_finite,
    _covariate_lanes_do_not_know_each_other,
    _covariate_inputs_stay_untouched,
)
