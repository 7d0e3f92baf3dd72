"""What every normaliser must hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from txl_ts.checks.verdict import BAD_VALUES, N_CHANNELS, N_LANES, Check, named, random, require
from txl_ts.embeddings import Scale
from txl_ts.state import TensorSpec


class Normaliser(Protocol):
    """Level and deviation of each lane and channel at each row. Axis 0 of every tensor is the lane."""

    def specs(self) -> tuple[TensorSpec]:
        """Describe the state (C, n); a fresh lane's is zero."""

    def __call__(self, x: Tensor, present: Tensor, norm: Tensor) -> tuple[Scale, Tensor]:
        """Take raw values (B, T, C), 0 where missing; give the scale at each row and the next state."""


def check_normaliser(normaliser_factory: Callable[..., Normaliser]) -> list[Check]:
    """List the checks of a normaliser, the module that takes raw rows to a :class:`~txl_ts.embeddings.Scale`.

    Parameters
    ----------
    normaliser_factory : callable
        ``normaliser_factory(n_channels=…)`` gives a module with ``specs()``, called as
        ``module(x, present, norm) -> (scale, norm)``.

    Returns
    -------
    list of Check
    """
    return named("normaliser", normaliser_factory, _NORMALISER_CHECKS)


_SCALE_PARTS = ("level", "deviation", "drift", "age", "known")


def _raw_rows(n_rows: int, *, seed: int = 0) -> Tensor:
    """Draw rows around 50 with a fifth of them missing."""
    x = 50 + 3 * random(N_LANES, n_rows, N_CHANNELS, seed=seed)
    return x.masked_fill(random(*x.shape, seed=seed + 1) > 0.84, torch.nan)


def _scaled(
    module: Normaliser, x: Tensor, chunks: Sequence[int] | None = None, norm: Tensor | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """Run a normaliser over raw rows: the parts of its scale at each row, and the last state."""
    if norm is None:
        (spec,) = module.specs()
        norm = torch.zeros(len(x), *spec.shape)
    parts: dict[str, list[Tensor]] = {name: [] for name in _SCALE_PARTS}
    for chunk in x.split(list(chunks) if chunks else x.shape[1], dim=1):
        present = chunk.isfinite()
        scale, norm = module(torch.where(present, chunk, 0.0), present, norm)
        # Shift and mean may be split otherwise from call to call; their sum may not.
        level = torch.where(scale.known, scale.shift + (scale.mean + scale.rest), 0.0)
        for name, part in zip(_SCALE_PARTS, (level, scale.deviation, scale.drift, scale.age, scale.known), strict=True):
            parts[name].append(part)
    return {name: torch.cat(tensors, dim=1) for name, tensors in parts.items()}, norm


def _scale_has_a_value_for_every_row_and_channel(factory: Callable[..., Normaliser]) -> None:
    module, x = factory(n_channels=N_CHANNELS), _raw_rows(7)
    (spec,) = module.specs()
    scale, norm = _scaled(module, x)
    for name, part in scale.items():
        expected = (*x.shape, 2) if name == "drift" else x.shape
        require(part.shape == expected, f"{name} has shape {tuple(part.shape)}, expected {tuple(expected)}.")
    require(norm.shape == (N_LANES, *spec.shape), f"the state has shape {tuple(norm.shape)}, specs say {spec.shape}.")
    require((scale["deviation"] >= 0).all(), "a deviation is negative.")


def _scale_does_not_depend_on_the_split_of_rows(factory: Callable[..., Normaliser]) -> None:
    module, x = factory(n_channels=N_CHANNELS), _raw_rows(300)
    whole, norm = _scaled(module, x)
    for chunks in ([1] * 20 + [280], [7, 200, 93], [150, 150]):
        split, last = _scaled(module, x, chunks)
        for name, part in {**split, "state": last}.items():
            expected = norm if name == "state" else whole[name]
            gap = (part.double() - expected.double()).abs().max() / expected.double().abs().max().clamp(min=1e-30)
            require(gap <= 1e-5, f"chunks {chunks[:3]} give another {name} than 300 rows at once (by {gap:.1e}).")


def _a_later_row_changes_no_earlier_scale(factory: Callable[..., Normaliser]) -> None:
    module, x = factory(n_channels=N_CHANNELS), _raw_rows(60)
    x[0, :10] = torch.nan  # a lane that starts late
    before, _ = _scaled(module, x)
    for row in (0, 1, 5, 31, 59):
        for value in (*BAD_VALUES, 0.0):
            changed = x.clone()
            changed[:, row:] = value
            after, _ = _scaled(module, changed)
            for name in _SCALE_PARTS:
                same = torch.equal(after[name][:, :row], before[name][:, :row])
                require(same, f"{value} from row {row} on changed {name} of an earlier row.")


def _no_value_makes_scale_or_state_non_finite(factory: Callable[..., Normaliser]) -> None:
    module = factory(n_channels=N_CHANNELS)
    for value in BAD_VALUES:
        for row in (0, 1, 25):
            x = _raw_rows(40)
            x[:, row], x[:, row + 2] = value, -value
            for chunks in (None, [1] * 40):
                scale, norm = _scaled(module, x, chunks)
                bad = [name for name, part in {**scale, "state": norm}.items() if not part.double().isfinite().all()]
                require(not bad, f"{value} in row {row} made {', '.join(bad)} non-finite.")


def _a_constant_lane_is_normalised_to_finite_values(factory: Callable[..., Normaliser]) -> None:
    module, x = factory(n_channels=N_CHANNELS), torch.full((N_LANES, 50, N_CHANNELS), 0.1)
    scale, _ = module(x, x.isfinite(), torch.zeros(N_LANES, *module.specs()[0].shape))
    z = scale.normalise((x - scale.shift)[..., None])
    require(z.isfinite().all(), "a constant lane gives non-finite z.")
    back = scale.restore(z[:, :, None])[:, :, 0, :, 0]
    require(((back - x).abs() <= 1e-5).all(), "restoring the z of a constant lane does not give the constant back.")


def _restoring_undoes_normalising(factory: Callable[..., Normaliser]) -> None:
    module, x = factory(n_channels=N_CHANNELS), 50 + 3 * random(N_LANES, 40, N_CHANNELS)
    scale, _ = module(x, x.isfinite(), torch.zeros(N_LANES, *module.specs()[0].shape))
    z = scale.normalise((x - scale.shift)[..., None])  # (B, T, C, 1)
    back = scale.restore(z[:, :, None])[:, :, 0, :, 0]
    require(((back - x).abs() <= 1e-4).all(), "restore(normalise(x)) is not x.")


def _a_normaliser_lane_does_not_know_the_others(factory: Callable[..., Normaliser]) -> None:
    module, x = factory(n_channels=N_CHANNELS), _raw_rows(40)
    before, _ = _scaled(module, x)
    for value in BAD_VALUES:
        bad = x.clone()
        bad[1, 20:] = value
        after, _ = _scaled(module, bad)
        for name in _SCALE_PARTS:
            same = torch.equal(after[name][[0, 2]], before[name][[0, 2]])
            require(same, f"{value} in lane 1 changed {name} of another lane.")


def _normaliser_inputs_stay_untouched(factory: Callable[..., Normaliser]) -> None:
    module = factory(n_channels=N_CHANNELS)
    _, norm = _scaled(module, _raw_rows(20))
    x = _raw_rows(20, seed=3)
    inputs = {"x": x.nan_to_num(0), "present": x.isfinite(), "norm": norm}
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    module(*inputs.values())
    for name, tensor in inputs.items():
        require(torch.equal(tensor, before[name]), f"{name!r} was changed in place.")


_NORMALISER_CHECKS = (
    _scale_has_a_value_for_every_row_and_channel,
    _scale_does_not_depend_on_the_split_of_rows,
    _a_later_row_changes_no_earlier_scale,
    _no_value_makes_scale_or_state_non_finite,
    _a_constant_lane_is_normalised_to_finite_values,
    _restoring_undoes_normalising,
    _a_normaliser_lane_does_not_know_the_others,
    _normaliser_inputs_stay_untouched,
)
