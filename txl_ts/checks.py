"""What every memory policy, normaliser, embedding, head and session must hold, as small named checks.

Write a part of your own, then run its checks: each of them raises :class:`CheckFailed` with one sentence, or is silent.
The parts of this library pass the same checks in its tests.

Examples
--------
>>> from txl_ts.checks import check_memory
>>> from txl_ts.memory import Fifo
>>> for check in check_memory(Fifo):
...     check()

In pytest, one test per check:

>>> import pytest
>>> @pytest.mark.parametrize("check", check_memory(Fifo), ids=str)
... def test_my_policy(check):
...     check()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from txl_ts.embeddings import Scale
from txl_ts.errors import TxlError
from txl_ts.state import TensorSpec, from_arrays, reset, select, to_arrays

Arrays = Mapping[str, NDArray[Any]]

_LARGEST = float(np.finfo(np.float32).max)
_BAD_VALUES = (math.nan, math.inf, -math.inf, 1e30, _LARGEST, -_LARGEST)
# Lanes, channels, width: all different, so that a swapped axis cannot pass.
_N_LANES, _N_CHANNELS, _D_MODEL = 3, 2, 4


class CheckFailed(TxlError, AssertionError):  # noqa: N818 - a verdict, named like pytest's own
    """A part does not keep a promise that every part of its kind must keep."""


@dataclass(frozen=True)
class Check:
    """One promise, ready to be tried.

    Attributes
    ----------
    name : str
        The promise as a sentence, after the kind of part: ``"memory: shapes stay fixed"``.
    run : callable
        Raises :class:`CheckFailed` if the promise is broken.
    """

    name: str
    run: Callable[[], None]

    def __call__(self) -> None:
        """Try the promise."""
        self.run()

    def __str__(self) -> str:
        return self.name


class MemoryPolicy(Protocol):
    """What a layer keeps of the rows that it has seen. Axis 0 of every tensor is the lane."""

    def specs(self, *, n_layers: int, n_kinds: int, d_model: int) -> tuple[TensorSpec, TensorSpec]:
        """Describe the memory (L, n_kinds, n_slots, D) and the int32 counters; a fresh lane's are zero."""

    def visible(self, count: Tensor) -> Tensor:
        """Tell which rows that :meth:`read` gives hold something: bool (B, n)."""

    def read(self, ring: Tensor, count: Tensor) -> Tensor:
        """Give one layer's rows (B, n, n_kinds, D), zero where nothing is visible."""

    def write(self, ring: Tensor, count: Tensor, rows: Tensor) -> Tensor:
        """Give one layer's memory (B, n_kinds, n_slots, D) after rows (B, T, n_kinds, D)."""

    def advance(self, count: Tensor, *, n_rows: int) -> Tensor:
        """Move the counters on."""


class Normaliser(Protocol):
    """Level and deviation of each lane and channel at each row. Axis 0 of every tensor is the lane."""

    def specs(self) -> tuple[TensorSpec]:
        """Describe the state (C, n); a fresh lane's is zero."""

    def __call__(self, x: Tensor, present: Tensor, norm: Tensor) -> tuple[Scale, Tensor]:
        """Take raw values (B, T, C), 0 where missing; give the scale at each row and the next state."""


class Session(Protocol):
    """A model as a function of rows and state, in numpy. Axis 0 of every array is the lane."""

    def init_state(self, n_lanes: int) -> Arrays:
        """Give the state of lanes that have seen nothing."""

    def step(self, x: NDArray[Any], state: Arrays, start: NDArray[Any] | None = None) -> tuple[NDArray[Any], Arrays]:
        """Take rows (B, T, C) in; give the outputs (B, T, …) and the next state.

        ``start``, int32 of shape (B, 1), is non-zero where a lane begins anew before its first row.
        """


def check_memory(policy_factory: Callable[..., MemoryPolicy]) -> list[Check]:
    """List the checks of a memory policy.

    Parameters
    ----------
    policy_factory : callable
        ``policy_factory(mem_len=…, stride=…)`` gives a policy; a policy's class will often do.

    Returns
    -------
    list of Check
    """
    return _named("memory", policy_factory, _MEMORY_CHECKS)


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
    return _named("normaliser", normaliser_factory, _NORMALISER_CHECKS)


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
    return _named("embedding", embedding_factory, _EMBEDDING_CHECKS)


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
    return _named("head", head_factory, _HEAD_CHECKS)


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
    return _named("label head", head_factory, _LABEL_HEAD_CHECKS)


def check_session(
    session_factory: Callable[[], Session], *, n_channels: int = 1, tolerance: float = 1e-5
) -> list[Check]:
    """List the checks of a session: anything with ``init_state(n_lanes)`` and ``step(x, state, start)``.

    Parameters
    ----------
    session_factory : callable
        Gives a session; every one must give the same numbers.
    n_channels : int
        Channels of its rows.
    tolerance : float
        Largest difference over largest size that is allowed where lanes or chunks are grouped otherwise.

    Returns
    -------
    list of Check
    """
    return _named("session", partial(_Bench, session_factory, n_channels, tolerance), _SESSION_CHECKS)


def _named(kind: str, factory: Any, functions: Iterable[Callable[[Any], None]]) -> list[Check]:
    return [Check(f"{kind}: {f.__name__.strip('_').replace('_', ' ')}", partial(f, factory)) for f in functions]


def _require(holds: bool | Tensor | np.bool_, sentence: str) -> None:
    if not bool(holds):
        raise CheckFailed(sentence)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Tell whether two tensors are equal, NaN at the same places included."""
    same = a.shape == b.shape and torch.equal(a.isnan(), b.isnan())
    return same and torch.equal(a.nan_to_num(), b.nan_to_num())


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _randomised(module: nn.Module) -> nn.Module:
    """Draw all weights: a layer that starts at zero would hide what is behind it."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.5)
    return module.eval()


# -- memory -----------------------------------------------------------------------------------------------------------

_MEMORY_SIZES = ({"mem_len": 3, "stride": 2}, {"mem_len": 5, "stride": 1}, {"mem_len": 0, "stride": 3})
_N_KINDS = 2


def _fresh_memory(policy: MemoryPolicy, *, filler: float = 0.0, n_lanes: int = _N_LANES) -> tuple[Tensor, Tensor]:
    mem, count = policy.specs(n_layers=1, n_kinds=_N_KINDS, d_model=_D_MODEL)
    ring = torch.full((n_lanes, *mem.shape[1:]), filler)
    return ring, torch.zeros(n_lanes, *count.shape, dtype=torch.int32)


def _rows(n_rows: int, *, seed: int = 0, n_lanes: int = _N_LANES) -> Tensor:
    return _random(n_lanes, n_rows, _N_KINDS, _D_MODEL, seed=seed)


def _written(
    policy: MemoryPolicy, ring: Tensor, count: Tensor, rows: Tensor, chunks: Sequence[int]
) -> tuple[Tensor, Tensor]:
    for part in rows.split(list(chunks), dim=1):
        ring, count = policy.write(ring, count, part), policy.advance(count, n_rows=part.shape[1])
    return ring, count


def _shapes_stay_fixed(factory: Callable[..., MemoryPolicy]) -> None:
    for size in _MEMORY_SIZES:
        policy = factory(**size)
        ring, count = _fresh_memory(policy)
        n_visible = policy.visible(count).shape
        for n_rows in (1, 2, 50):
            after, counted = _written(policy, ring, count, _rows(n_rows), [n_rows])
            _require(after.shape == ring.shape, f"{size}: writing {n_rows} rows made {ring.shape} {after.shape}.")
            same = counted.shape == count.shape and counted.dtype == count.dtype
            _require(same, f"{size}: the counters changed to {counted.dtype} of shape {tuple(counted.shape)}.")
            read, visible = policy.read(after, counted), policy.visible(counted)
            _require(visible.shape == n_visible, f"{size}: {n_visible} visible flags became {visible.shape}.")
            fits = read.shape == (*n_visible, _N_KINDS, _D_MODEL)
            _require(fits, f"{size}: reading gave {tuple(read.shape)}, expected {(*n_visible, _N_KINDS, _D_MODEL)}.")


def _what_was_written_can_be_read(factory: Callable[..., MemoryPolicy]) -> None:
    for size in _MEMORY_SIZES:
        if size["mem_len"]:
            policy = factory(**size)
            first, second = (_written(policy, *_fresh_memory(policy), _rows(40, seed=seed), [40]) for seed in (1, 2))
            differs = not torch.equal(policy.read(*first), policy.read(*second))
            _require(differs, f"{size}: after 40 rows, two different streams read the same.")
            _require(policy.visible(first[1]).any(), f"{size}: after 40 rows nothing is visible.")


def _reads_do_not_depend_on_the_split_of_writes(factory: Callable[..., MemoryPolicy]) -> None:
    for size in _MEMORY_SIZES:
        policy = factory(**size)
        # Every start within some turns of the ring: the wrap-around comes at each place of the later calls.
        for n_before in range(30):
            ring, count = _written(policy, *_fresh_memory(policy), _rows(n_before + 1), [n_before + 1])
            whole = _written(policy, ring, count, _rows(17, seed=1), [17])
            for chunks in ([1] * 17, [2, 9, 6], [16, 1]):
                split = _written(policy, ring, count, _rows(17, seed=1), chunks)
                same = torch.equal(policy.read(*split), policy.read(*whole)) and torch.equal(split[1], whole[1])
                _require(same, f"{size}: after {n_before + 1} rows, chunks {chunks} read otherwise than 17 at once.")


def _a_reset_lane_sees_nothing_of_before(factory: Callable[..., MemoryPolicy]) -> None:
    for size in _MEMORY_SIZES:
        policy = factory(**size)
        ring, count = _written(policy, *_fresh_memory(policy), _rows(29), [29])
        fresh_ring, fresh = _fresh_memory(policy)
        count = torch.cat([count[:1], fresh[1:]])  # the rows stay, the counters say that there are none
        kept = policy.read(ring, count)
        _require(torch.equal(kept[1:], policy.read(fresh_ring, fresh)[1:]), f"{size}: a reset lane still reads rows.")
        for n_rows in range(1, 13):
            ring, count = _written(policy, ring, count, _rows(1, seed=n_rows), [1])
            fresh_ring, fresh = _written(policy, fresh_ring, fresh, _rows(1, seed=n_rows), [1])
            same = torch.equal(policy.read(ring, count)[1:], policy.read(fresh_ring, fresh)[1:])
            seen = torch.equal(policy.visible(count)[1:], policy.visible(fresh)[1:])
            _require(same and seen, f"{size}: {n_rows} rows after a reset, a lane reads otherwise than a fresh one.")


def _unfilled_slots_read_as_zero_even_when_they_hold_nan(factory: Callable[..., MemoryPolicy]) -> None:
    for size in _MEMORY_SIZES:
        policy = factory(**size)
        for filler in (math.nan, math.inf, 1e30):
            ring, count = _fresh_memory(policy, filler=filler)
            for n_rows in range(14):
                read, visible = policy.read(ring, count), policy.visible(count)
                hidden = read[~visible]
                _require((hidden == 0).all(), f"{size}: after {n_rows} rows an unfilled slot reads as {filler}.")
                _require(read.isfinite().all(), f"{size}: after {n_rows} rows a slot that holds {filler} is visible.")
                ring, count = _written(policy, ring, count, _rows(1, seed=n_rows), [1])


def _counters_never_leave_int32(factory: Callable[..., MemoryPolicy]) -> None:
    for size in _MEMORY_SIZES:
        policy = factory(**size)
        _, count = _fresh_memory(policy)
        for _ in range(5000):  # 5e9 rows: more than int32 can count
            count = policy.advance(count, n_rows=1_000_003)
            bounded = count.dtype == torch.int32 and ((count >= 0) & (count < 2**30)).all()
            _require(bounded, f"{size}: the counters became {count[0].tolist()}: wrap or saturate them.")


def _a_memory_lane_does_not_know_the_others(factory: Callable[..., MemoryPolicy]) -> None:
    for size in _MEMORY_SIZES:
        policy = factory(**size)
        ring, count = _written(policy, *_fresh_memory(policy), _rows(9), [4, 5])
        plain = policy.read(ring, count)
        for value in _BAD_VALUES:
            rows = _rows(9)
            rows[1] = value
            read = policy.read(*_written(policy, *_fresh_memory(policy), rows, [4, 5]))
            same = torch.equal(read[[0, 2]], plain[[0, 2]])
            _require(same, f"{size}: {value} in lane 1 changed what other lanes read.")
        order = [2, 0, 1]
        permuted = policy.read(*_written(policy, *_fresh_memory(policy), _rows(9)[order], [4, 5]))
        _require(torch.equal(permuted, plain[order]), f"{size}: permuting lanes does not permute what they read.")


def _memory_inputs_stay_untouched(factory: Callable[..., MemoryPolicy]) -> None:
    for size in _MEMORY_SIZES:
        policy = factory(**size)
        ring, count = _written(policy, *_fresh_memory(policy), _rows(5), [5])
        inputs = {"ring": ring, "count": count, "rows": _rows(7, seed=1)}
        before = {name: tensor.clone() for name, tensor in inputs.items()}
        policy.read(ring, count)
        policy.visible(count)
        policy.write(**inputs)
        policy.advance(count, n_rows=7)
        for name, tensor in inputs.items():
            _require(torch.equal(tensor, before[name]), f"{size}: {name!r} was changed in place.")


_MEMORY_CHECKS = (
    _shapes_stay_fixed,
    _what_was_written_can_be_read,
    _reads_do_not_depend_on_the_split_of_writes,
    _a_reset_lane_sees_nothing_of_before,
    _unfilled_slots_read_as_zero_even_when_they_hold_nan,
    _counters_never_leave_int32,
    _a_memory_lane_does_not_know_the_others,
    _memory_inputs_stay_untouched,
)

# -- normalisers ------------------------------------------------------------------------------------------------------

_SCALE_PARTS = ("level", "deviation", "drift", "age", "known")


def _raw_rows(n_rows: int, *, seed: int = 0) -> Tensor:
    """Draw rows around 50 with a fifth of them missing."""
    x = 50 + 3 * _random(_N_LANES, n_rows, _N_CHANNELS, seed=seed)
    return x.masked_fill(_random(*x.shape, seed=seed + 1) > 0.84, torch.nan)


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
    module, x = factory(n_channels=_N_CHANNELS), _raw_rows(7)
    (spec,) = module.specs()
    scale, norm = _scaled(module, x)
    for name, part in scale.items():
        expected = (*x.shape, 2) if name == "drift" else x.shape
        _require(part.shape == expected, f"{name} has shape {tuple(part.shape)}, expected {tuple(expected)}.")
    _require(norm.shape == (_N_LANES, *spec.shape), f"the state has shape {tuple(norm.shape)}, specs say {spec.shape}.")
    _require((scale["deviation"] >= 0).all(), "a deviation is negative.")


def _scale_does_not_depend_on_the_split_of_rows(factory: Callable[..., Normaliser]) -> None:
    module, x = factory(n_channels=_N_CHANNELS), _raw_rows(300)
    whole, norm = _scaled(module, x)
    for chunks in ([1] * 20 + [280], [7, 200, 93], [150, 150]):
        split, last = _scaled(module, x, chunks)
        for name, part in {**split, "state": last}.items():
            expected = norm if name == "state" else whole[name]
            gap = (part.double() - expected.double()).abs().max() / expected.double().abs().max().clamp(min=1e-30)
            _require(gap <= 1e-5, f"chunks {chunks[:3]} give another {name} than 300 rows at once (by {gap:.1e}).")


def _a_later_row_changes_no_earlier_scale(factory: Callable[..., Normaliser]) -> None:
    module, x = factory(n_channels=_N_CHANNELS), _raw_rows(60)
    x[0, :10] = torch.nan  # a lane that starts late
    before, _ = _scaled(module, x)
    for row in (0, 1, 5, 31, 59):
        for value in (*_BAD_VALUES, 0.0):
            changed = x.clone()
            changed[:, row:] = value
            after, _ = _scaled(module, changed)
            for name in _SCALE_PARTS:
                same = torch.equal(after[name][:, :row], before[name][:, :row])
                _require(same, f"{value} from row {row} on changed {name} of an earlier row.")


def _no_value_makes_scale_or_state_non_finite(factory: Callable[..., Normaliser]) -> None:
    module = factory(n_channels=_N_CHANNELS)
    for value in _BAD_VALUES:
        for row in (0, 1, 25):
            x = _raw_rows(40)
            x[:, row], x[:, row + 2] = value, -value
            for chunks in (None, [1] * 40):
                scale, norm = _scaled(module, x, chunks)
                bad = [name for name, part in {**scale, "state": norm}.items() if not part.double().isfinite().all()]
                _require(not bad, f"{value} in row {row} made {', '.join(bad)} non-finite.")


def _a_constant_lane_is_normalised_to_finite_values(factory: Callable[..., Normaliser]) -> None:
    module, x = factory(n_channels=_N_CHANNELS), torch.full((_N_LANES, 50, _N_CHANNELS), 0.1)
    scale, _ = module(x, x.isfinite(), torch.zeros(_N_LANES, *module.specs()[0].shape))
    z = scale.normalise((x - scale.shift)[..., None])
    _require(z.isfinite().all(), "a constant lane gives non-finite z.")
    back = scale.restore(z[:, :, None])[:, :, 0, :, 0]
    _require(((back - x).abs() <= 1e-5).all(), "restoring the z of a constant lane does not give the constant back.")


def _restoring_undoes_normalising(factory: Callable[..., Normaliser]) -> None:
    module, x = factory(n_channels=_N_CHANNELS), 50 + 3 * _random(_N_LANES, 40, _N_CHANNELS)
    scale, _ = module(x, x.isfinite(), torch.zeros(_N_LANES, *module.specs()[0].shape))
    z = scale.normalise((x - scale.shift)[..., None])  # (B, T, C, 1)
    back = scale.restore(z[:, :, None])[:, :, 0, :, 0]
    _require(((back - x).abs() <= 1e-4).all(), "restore(normalise(x)) is not x.")


def _a_normaliser_lane_does_not_know_the_others(factory: Callable[..., Normaliser]) -> None:
    module, x = factory(n_channels=_N_CHANNELS), _raw_rows(40)
    before, _ = _scaled(module, x)
    for value in _BAD_VALUES:
        bad = x.clone()
        bad[1, 20:] = value
        after, _ = _scaled(module, bad)
        for name in _SCALE_PARTS:
            same = torch.equal(after[name][[0, 2]], before[name][[0, 2]])
            _require(same, f"{value} in lane 1 changed {name} of another lane.")


def _normaliser_inputs_stay_untouched(factory: Callable[..., Normaliser]) -> None:
    module = factory(n_channels=_N_CHANNELS)
    _, norm = _scaled(module, _raw_rows(20))
    x = _raw_rows(20, seed=3)
    inputs = {"x": x.nan_to_num(0), "present": x.isfinite(), "norm": norm}
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    module(*inputs.values())
    for name, tensor in inputs.items():
        _require(torch.equal(tensor, before[name]), f"{name!r} was changed in place.")


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

# -- embeddings -------------------------------------------------------------------------------------------------------

_PATCH_LEN = 5


def _embedding(factory: Callable[..., nn.Module]) -> nn.Module:
    return _randomised(factory(patch_len=_PATCH_LEN, n_channels=_N_CHANNELS, d_model=_D_MODEL))


def _patches(n_rows: int = 6, *, seed: int = 0) -> dict[str, Any]:
    shape = (_N_LANES, n_rows, _N_CHANNELS)
    present = (_random(*shape, _PATCH_LEN, seed=seed + 1) < 0.8).float()
    scale = Scale(
        shift=_random(_N_LANES, 1, _N_CHANNELS, seed=seed + 2),
        mean=_random(*shape, seed=seed + 3),
        rest=torch.zeros(shape),
        deviation=_random(*shape, seed=seed + 4).abs() + 0.1,
        drift=_random(*shape, 2, seed=seed + 5),
        age=_random(*shape, seed=seed + 6).abs().round(),
        known=torch.ones(shape, dtype=torch.bool),
    )
    return {"z": _random(*shape, _PATCH_LEN, seed=seed) * present, "present": present, "scale": scale}


def _mixed(inputs: dict[str, Any], others: dict[str, Any], pick: Callable[[Tensor, Tensor], Tensor]) -> dict[str, Any]:
    """Put two sets of patches together, tensor by tensor; the shift has no rows and stays."""
    scale, other = vars(inputs["scale"]), vars(others["scale"])
    parts = {name: tensor if name == "shift" else pick(tensor, other[name]) for name, tensor in scale.items()}
    return {name: pick(inputs[name], others[name]) for name in ("z", "present")} | {"scale": Scale(**parts)}


def _there_is_one_token_per_row(factory: Callable[..., nn.Module]) -> None:
    tokens = _embedding(factory)(**_patches())
    expected = (_N_LANES, 6, _D_MODEL)
    _require(tokens.shape == expected, f"tokens have shape {tuple(tokens.shape)}, expected {expected}.")


def _a_token_sees_its_own_patch_only(factory: Callable[..., nn.Module]) -> None:
    module, inputs, others = _embedding(factory), _patches(), _patches(seed=50)
    before = module(**inputs)
    for row in range(6):
        rows = torch.arange(6) >= row

        def later(a: Tensor, b: Tensor, rows: Tensor = rows) -> Tensor:
            return torch.where(rows.reshape(1, -1, *(1,) * (a.ndim - 2)), b, a)

        after = module(**_mixed(inputs, others, later))
        _require(torch.equal(after[:, :row], before[:, :row]), f"rows from {row} on changed an earlier token.")
        _require(not torch.equal(after[:, row], before[:, row]), f"row {row} itself changed and its token did not.")


def _a_missing_value_is_not_a_zero(factory: Callable[..., nn.Module]) -> None:
    module, inputs = _embedding(factory), _patches()
    inputs["z"], inputs["present"] = torch.zeros_like(inputs["z"]), torch.ones_like(inputs["present"])
    there = module(**inputs)
    inputs["present"] = torch.zeros_like(inputs["present"])
    _require(not torch.equal(module(**inputs), there), "a missing value gives the same token as a value of 0.")


def _tokens_of_extreme_patches_are_finite(factory: Callable[..., nn.Module]) -> None:
    module = _embedding(factory)
    for sign in (-1, 1):
        inputs = _patches()
        scale = {**vars(inputs["scale"]), "age": torch.full_like(inputs["scale"].age, 1e6)}
        scale |= {"drift": torch.full_like(scale["drift"], 10.0 * sign), "deviation": torch.zeros_like(scale["mean"])}
        tokens = module(torch.full_like(inputs["z"], 10.0 * sign), inputs["present"], Scale(**scale))
        _require(tokens.isfinite().all(), "a patch of the largest values gives a non-finite token.")


def _an_embedding_lane_does_not_know_the_others(factory: Callable[..., nn.Module]) -> None:
    module, inputs, others = _embedding(factory), _patches(), _patches(seed=50)
    lane = torch.arange(_N_LANES) == 1
    mixed = _mixed(inputs, others, lambda a, b: torch.where(lane.reshape(-1, *(1,) * (a.ndim - 1)), b, a))
    same = torch.equal(module(**mixed)[[0, 2]], module(**inputs)[[0, 2]])
    _require(same, "what lane 1 holds changed the tokens of another lane.")


def _embedding_inputs_stay_untouched(factory: Callable[..., nn.Module]) -> None:
    inputs, twin = _patches(), _patches()
    _embedding(factory)(**inputs)
    for name in ("z", "present"):
        _require(torch.equal(inputs[name], twin[name]), f"{name!r} was changed in place.")
    for name, tensor in vars(inputs["scale"]).items():
        _require(torch.equal(tensor, getattr(twin["scale"], name)), f"'scale.{name}' was changed in place.")


_EMBEDDING_CHECKS = (
    _there_is_one_token_per_row,
    _a_token_sees_its_own_patch_only,
    _a_missing_value_is_not_a_zero,
    _tokens_of_extreme_patches_are_finite,
    _an_embedding_lane_does_not_know_the_others,
    _embedding_inputs_stay_untouched,
)

# -- heads ------------------------------------------------------------------------------------------------------------

_H, _N_ROWS = 5, 6
_LEVELS = ((0.5,), (0.1, 0.5, 0.9), (0.01, 0.5), (0.5, 0.6, 0.95, 0.99))


def _head(factory: Callable[..., nn.Module], quantiles: tuple[float, ...] = _LEVELS[1]) -> nn.Module:
    return _randomised(factory(d_model=_D_MODEL, h=_H, n_channels=_N_CHANNELS, quantiles=quantiles))


def _hidden(scale: float = 1.0, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    hidden = _random(_N_LANES, _N_ROWS, _D_MODEL, seed=seed) * scale
    return hidden, _random(_N_LANES, _N_ROWS, _H, _N_CHANNELS, seed=seed + 1) * scale


def _there_is_one_value_per_row_step_channel_and_level(factory: Callable[..., nn.Module]) -> None:
    for quantiles in _LEVELS:
        found = tuple(_head(factory, quantiles)(*_hidden()).shape)
        expected = (_N_LANES, _N_ROWS, _H, _N_CHANNELS, len(quantiles))
        _require(found == expected, f"quantiles={quantiles}: the output has shape {found}, expected {expected}.")


def _quantiles_increase(factory: Callable[..., nn.Module]) -> None:
    for quantiles in _LEVELS:
        for scale in (1e-6, 1.0, 1e3, 1e6):
            for seed in range(5):
                found = _head(factory, quantiles)(*_hidden(scale, seed=seed))
                _require((found.diff(dim=-1) >= 0).all(), f"quantiles={quantiles} cross at size {scale}.")


def _outputs_and_gradients_of_huge_hidden_rows_are_finite(factory: Callable[..., nn.Module]) -> None:
    for scale in (1e6, 1e12):
        module = _head(factory)
        hidden, centre = _hidden(scale)
        found = module(hidden.requires_grad_(), centre)
        _require(found.isfinite().all(), f"hidden rows of size {scale:.0e} give a non-finite output.")
        found.mean().backward()
        grads = [hidden.grad, *(weight.grad for weight in module.parameters())]
        finite = all(grad is None or bool(grad.isfinite().all()) for grad in grads)
        _require(finite, f"hidden rows of size {scale:.0e} give a non-finite gradient.")


def _forecasts_move_with_the_centre(factory: Callable[..., nn.Module]) -> None:
    module, (hidden, centre) = _head(factory), _hidden()
    moved = module(hidden, centre + 3.0) - module(hidden, centre)
    _require(((moved - 3.0).abs() < 1e-4).all(), "adding 3 to the centre does not add 3 to every quantile.")


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
        _require(torch.equal(after[~own], before[~own]), f"{name} changed, and so did the output of another one.")


def _head_inputs_stay_untouched(factory: Callable[..., nn.Module]) -> None:
    inputs = _hidden()
    _head(factory)(*inputs)
    for name, tensor, twin in zip(("hidden", "centre"), inputs, _hidden(), strict=True):
        _require(torch.equal(tensor, twin), f"{name!r} was changed in place.")


_HEAD_CHECKS = (
    _there_is_one_value_per_row_step_channel_and_level,
    _quantiles_increase,
    _outputs_and_gradients_of_huge_hidden_rows_are_finite,
    _forecasts_move_with_the_centre,
    _an_output_sees_its_own_row_only,
    _head_inputs_stay_untouched,
)

# -- heads of labels --------------------------------------------------------------------------------------------------

_N_OUTPUTS = 5


def _label_head(factory: Callable[..., nn.Module], n_outputs: int = _N_OUTPUTS) -> Any:
    return _randomised(factory(d_model=_D_MODEL, n_outputs=n_outputs))


def _label_hidden(scale: float = 1.0, *, seed: int = 0, n_outputs: int = _N_OUTPUTS) -> tuple[Tensor, Tensor]:
    hidden = _random(_N_LANES, _N_ROWS, _D_MODEL, seed=seed) * scale
    return hidden, _random(_N_LANES, _N_ROWS, n_outputs, seed=seed + 1) * scale


def _there_is_one_value_per_row_and_output(factory: Callable[..., nn.Module]) -> None:
    for n_outputs in (1, 2, _N_OUTPUTS):
        head = _label_head(factory, n_outputs)
        z = head(*_label_hidden(n_outputs=n_outputs))
        expected = (_N_LANES, _N_ROWS, n_outputs)
        for name, found in (("the head", tuple(z.shape)), ("outputs()", tuple(head.outputs(z).shape))):
            _require(found == expected, f"n_outputs={n_outputs}: {name} gives shape {found}, expected {expected}.")


def _a_new_head_answers_by_the_centre_alone(factory: Callable[..., nn.Module]) -> None:
    hidden, centre = _label_hidden()
    same = torch.equal(factory(d_model=_D_MODEL, n_outputs=_N_OUTPUTS)(hidden, centre), centre)
    _require(same, "before training, the answer is not that of the linear path alone.")


def _answers_move_with_the_centre(factory: Callable[..., nn.Module]) -> None:
    head, (hidden, centre) = _label_head(factory), _label_hidden()
    moved = head(hidden, centre + 3.0) - head(hidden, centre)
    _require(((moved - 3.0).abs() < 1e-4).all(), "adding 3 to the centre does not add 3 to every answer.")


def _answers_and_gradients_of_huge_hidden_rows_are_finite(factory: Callable[..., nn.Module]) -> None:
    for scale in (1e6, 1e12):
        head = _label_head(factory)
        hidden, centre = _label_hidden(scale)
        found = head.outputs(head(hidden.requires_grad_(), centre))
        _require(found.isfinite().all(), f"hidden rows of size {scale:.0e} give a non-finite answer.")
        found.mean().backward()
        grads = [hidden.grad, *(weight.grad for weight in head.parameters())]
        finite = all(grad is None or bool(grad.isfinite().all()) for grad in grads)
        _require(finite, f"hidden rows of size {scale:.0e} give a non-finite gradient.")


def _an_answer_sees_its_own_row_only(factory: Callable[..., nn.Module]) -> None:
    head, (hidden, centre), (others, other_centre) = _label_head(factory), _label_hidden(), _label_hidden(seed=50)
    before = head.outputs(head(hidden, centre))
    for name, here in (("row 3", (slice(None), 3)), ("lane 1", (1, slice(None)))):
        changed, changed_centre = hidden.clone(), centre.clone()
        changed[here], changed_centre[here] = others[here], other_centre[here]
        after = head.outputs(head(changed, changed_centre))
        own = torch.zeros(hidden.shape[:2], dtype=torch.bool)
        own[here] = True
        _require(torch.equal(after[~own], before[~own]), f"{name} changed, and so did the answer of another one.")


def _label_head_inputs_stay_untouched(factory: Callable[..., nn.Module]) -> None:
    inputs, head = _label_hidden(), _label_head(factory)
    z = head(*inputs)
    twin = z.clone()
    head.outputs(z)
    _require(torch.equal(z, twin), "'z' was changed in place.")
    for name, tensor, other in zip(("hidden", "centre"), inputs, _label_hidden(), strict=True):
        _require(torch.equal(tensor, other), f"{name!r} was changed in place.")


_LABEL_HEAD_CHECKS = (
    _there_is_one_value_per_row_and_output,
    _a_new_head_answers_by_the_centre_alone,
    _answers_move_with_the_centre,
    _answers_and_gradients_of_huge_hidden_rows_are_finite,
    _an_answer_sees_its_own_row_only,
    _label_head_inputs_stay_untouched,
)

# -- sessions ---------------------------------------------------------------------------------------------------------


class _Bench:
    """A session on the bench: rows to feed it with, and how close is close enough."""

    def __init__(self, factory: Callable[[], Session], n_channels: int, tolerance: float) -> None:
        self.session, self.n_channels, self.tolerance = factory(), n_channels, tolerance

    def rows(self, n_rows: int = 50, *, n_lanes: int = 4, seed: int = 0) -> NDArray[Any]:
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n_lanes, n_rows, self.n_channels)) + 5
        x[rng.random(x.shape) < 0.15] = np.nan
        x[:, 0] = 5.0  # every lane's level is known from the first row on
        return x.astype(np.float32)

    def run(
        self, x: NDArray[Any], chunks: Sequence[int] | None = None, state: Arrays | None = None
    ) -> tuple[NDArray[Any], Arrays]:
        state = self.session.init_state(len(x)) if state is None else state
        out = []
        for chunk in np.split(x, np.cumsum(chunks or [x.shape[1]])[:-1], axis=1):
            y, state = self.session.step(chunk, state, None)
            out.append(y)
        return np.concatenate(out, axis=1), state

    def require_close(self, found: NDArray[Any], expected: NDArray[Any], sentence: str) -> None:
        same = found.shape == expected.shape and np.array_equal(np.isnan(found), np.isnan(expected))
        _require(same, f"{sentence} Shapes are {found.shape} and {expected.shape}.")
        size = max(float(np.nan_to_num(np.abs(expected)).max(initial=0)), 1e-30)
        gap = float(np.nan_to_num(np.abs(found.astype(float) - expected)).max(initial=0)) / size
        _require(gap <= self.tolerance, f"{sentence} They differ by {gap:.1e}, allowed are {self.tolerance:.0e}.")

    def require_equal(self, found: NDArray[Any], expected: NDArray[Any], sentence: str) -> None:
        _require(np.array_equal(found, expected, equal_nan=True), sentence)


def _every_row_has_an_output_and_the_state_keeps_its_form(make: Callable[[], _Bench]) -> None:
    bench = make()
    fresh = bench.session.init_state(4)
    for n_rows in (1, 7):
        y, state = bench.run(bench.rows(n_rows))
        _require(y.shape[:2] == (4, n_rows), f"{n_rows} rows of 4 lanes gave outputs of shape {y.shape}.")
        form = {name: (array.shape, array.dtype) for name, array in state.items()}
        same = form == {name: (array.shape, array.dtype) for name, array in fresh.items()}
        _require(same and list(state) == list(fresh), f"after {n_rows} rows the state has another form: {form}.")


def _outputs_do_not_depend_on_the_split_of_rows(make: Callable[[], _Bench]) -> None:
    bench = make()
    whole, state = bench.run(bench.rows())
    for chunks in ([1] * 50, [2, 11, 37], [49, 1]):
        y, last = bench.run(bench.rows(), chunks)
        bench.require_close(y, whole, f"Outputs of chunks {chunks[:3]} must be those of 50 rows at once.")
        for name in state:
            bench.require_close(last[name], state[name], f"State {name!r} after chunks {chunks[:3]} must be the same.")


def _later_rows_change_no_earlier_output(make: Callable[[], _Bench]) -> None:
    bench = make()
    before, _ = bench.run(bench.rows())
    for row in (1, 17, 49):
        for value in (*_BAD_VALUES, 0.0):
            x = bench.rows()
            x[:, row:] = value
            after, _ = bench.run(x)
            bench.require_equal(after[:, :row], before[:, :row], f"{value} in row {row} changed an earlier output.")


def _lanes_alone_equal_lanes_together(make: Callable[[], _Bench]) -> None:
    bench = make()
    x = bench.rows()
    together, _ = bench.run(x)
    for lane in range(4):
        alone, _ = bench.run(x[lane : lane + 1])
        bench.require_close(alone, together[lane : lane + 1], f"Lane {lane} alone must equal lane {lane} of four.")
    order = [3, 1, 0, 2]
    bench.require_close(bench.run(x[order])[0], together[order], "Permuting lanes must permute outputs.")


def _one_bad_lane_leaves_the_others_bit_equal(make: Callable[[], _Bench]) -> None:
    bench = make()
    before, state = bench.run(bench.rows(), [25, 25])
    for value in _BAD_VALUES:
        x = bench.rows()
        x[2, 20:] = value
        after, other = bench.run(x, [25, 25])
        bench.require_equal(after[[0, 1, 3]], before[[0, 1, 3]], f"{value} in lane 2 changed another lane's output.")
        for name in state:
            kept = other[name][[0, 1, 3]], state[name][[0, 1, 3]]
            bench.require_equal(*kept, f"{value} in lane 2 changed state {name!r} of another lane.")


def _no_value_makes_the_state_non_finite(make: Callable[[], _Bench]) -> None:
    bench = make()
    for value in _BAD_VALUES:
        for row in (0, 5):
            x = bench.rows(8)
            x[:, row], x[:, -1] = value, -value
            _, state = bench.run(x)
            bad = [name for name, array in state.items() if not np.isfinite(array).all()]
            _require(not bad, f"{value} in row {row}, {-value} in the last one made the state {bad} non-finite.")


def _a_started_lane_is_a_fresh_lane(make: Callable[[], _Bench]) -> None:
    bench = make()
    _, state = bench.run(bench.rows())
    x = bench.rows(seed=1)
    plain, fresh = bench.run(x, state=state)[0], bench.run(x)[0]
    flags = np.array([[0], [1], [0], [1]], dtype=np.int32)
    y, after = bench.session.step(x, state, flags)
    bench.require_equal(y[[1, 3]], fresh[[1, 3]], "A lane with a start flag must equal a fresh one.")
    bench.require_equal(y[[0, 2]], plain[[0, 2]], "A start flag must leave the other lanes bit for bit.")
    again = bench.rows(seed=2)
    onwards, fresh = bench.run(again, state=after)[0], bench.run(np.concatenate([x, again], axis=1), [50, 50])[0]
    bench.require_equal(onwards[[1, 3]], fresh[[1, 3], 50:], "A started lane must stay equal to a fresh one.")


def _a_reset_lane_is_a_fresh_lane(make: Callable[[], _Bench]) -> None:
    bench = make()
    _, state = bench.run(bench.rows())
    x = bench.rows(seed=1)
    plain, fresh = bench.run(x, state=state)[0], bench.run(x)[0]
    y, _ = bench.run(x, state=reset(state, np.array([1, 3])))
    bench.require_equal(y[[1, 3]], fresh[[1, 3]], "A lane whose state was reset must equal a fresh one.")
    bench.require_equal(y[[0, 2]], plain[[0, 2]], "Resetting lanes must leave the others bit for bit.")


def _a_restored_stream_goes_on_bit_equal(make: Callable[[], _Bench]) -> None:
    bench = make()
    x = bench.rows(60)
    for row in (0, 1, 20):
        state = bench.run(x[:, :row])[1] if row else bench.session.init_state(4)
        y, after = bench.run(x[:, row:], [7] * 5 + [25 - row], state)
        specs = [TensorSpec(name, array.shape[1:], str(array.dtype)) for name, array in state.items()]
        saved = {name: array.tobytes() for name, array in to_arrays(state).items()}
        arrays = {
            full: np.frombuffer(saved[full], array.dtype).reshape(array.shape).copy()
            for full, array in to_arrays(state).items()
        }
        other = make()
        resumed, resumed_after = other.run(x[:, row:], [7] * 5 + [25 - row], from_arrays(arrays, specs))
        bench.require_equal(resumed, y, f"Saved and restored after {row} rows, a stream must go on bit-equal.")
        for name in after:
            bench.require_equal(resumed_after[name], after[name], f"A restored state {name!r} must be bit-equal.")


def _a_call_repeats_and_keeps_nothing_outside_the_state(make: Callable[[], _Bench]) -> None:
    bench = make()
    _, state = bench.run(bench.rows())
    x = bench.rows(seed=1)
    first, _ = bench.run(x, state=state)
    bench.run(bench.rows(seed=2))  # other streams in between
    bench.require_equal(bench.run(x, state=state)[0], first, "The same call must give the same outputs again.")


def _session_inputs_stay_untouched(make: Callable[[], _Bench]) -> None:
    bench = make()
    _, state = bench.run(bench.rows())
    x, flags = bench.rows(seed=1), np.array([[0], [1], [0], [1]], dtype=np.int32)
    inputs = {**state, "x": x, "start": flags}
    before = {name: array.copy() for name, array in inputs.items()}
    bench.session.step(x, state, flags)
    for name, array in inputs.items():
        bench.require_equal(array, before[name], f"{name!r} was changed in place.")


def _lanes_may_join_and_leave(make: Callable[[], _Bench]) -> None:
    bench = make()
    x = bench.rows()
    whole, _ = bench.run(x)
    _, state = bench.run(x[:, :20])
    picked = np.array([3, 1])
    y, _ = bench.run(x[picked, 20:], state=select(state, picked))
    bench.require_close(y, whole[picked, 20:], "Lanes picked out of a state must go on as before.")


_SESSION_CHECKS = (
    _every_row_has_an_output_and_the_state_keeps_its_form,
    _outputs_do_not_depend_on_the_split_of_rows,
    _later_rows_change_no_earlier_output,
    _lanes_alone_equal_lanes_together,
    _one_bad_lane_leaves_the_others_bit_equal,
    _no_value_makes_the_state_non_finite,
    _a_started_lane_is_a_fresh_lane,
    _a_reset_lane_is_a_fresh_lane,
    _a_restored_stream_goes_on_bit_equal,
    _a_call_repeats_and_keeps_nothing_outside_the_state,
    _session_inputs_stay_untouched,
    _lanes_may_join_and_leave,
)
