"""What every memory policy must hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from txl_ts.checks.far_memory import check_far_memory
from txl_ts.checks.verdict import BAD_VALUES, D_MODEL, N_LANES, Check, named, random, require
from txl_ts.memory import FarMemory
from txl_ts.state import TensorSpec


class MemoryPolicy(Protocol):
    """What a layer keeps of the rows that it has seen. Axis 0 of every tensor is the lane."""

    def specs(self, *, n_layers: int, kinds: Sequence[str], n_heads: int, d_head: int) -> tuple[TensorSpec, ...]:
        """Describe a ring (H, n_slots, K) per layer and kind, and the int32 counters; a fresh lane's are zero."""

    def visible(self, count: Tensor) -> Tensor:
        """Tell which rows that :meth:`read` gives hold something: bool (B, n)."""

    def read(self, ring: Tensor, count: Tensor) -> Tensor:
        """Give the rows (B, H, n, K) of one ring, zero where nothing is visible."""

    def write(self, ring: Tensor, count: Tensor, rows: Tensor) -> Tensor:
        """Give a ring (B, H, n_slots, K) after rows (B, H, T, K)."""

    def advance(self, count: Tensor, *, n_rows: int) -> Tensor:
        """Move the counters on."""


def check_memory(policy_factory: Callable[..., MemoryPolicy] | type[FarMemory]) -> list[Check]:
    """List the checks of a memory policy.

    Parameters
    ----------
    policy_factory : callable or subclass of FarMemory
        ``policy_factory(mem_len=…, stride=…)`` gives a window; a subclass of :class:`~txl_ts.memory.FarMemory` is a
        policy beside it.

    Returns
    -------
    list of Check
    """
    if isinstance(policy_factory, type) and issubclass(policy_factory, FarMemory):
        return check_far_memory(policy_factory)
    return named("memory", policy_factory, _MEMORY_CHECKS)


_MEMORY_SIZES = ({"mem_len": 3, "stride": 2}, {"mem_len": 5, "stride": 1}, {"mem_len": 0, "stride": 3})
_N_HEADS = 2


def _fresh_memory(policy: MemoryPolicy, *, filler: float = 0.0, n_lanes: int = N_LANES) -> tuple[Tensor, Tensor]:
    ring, count = policy.specs(n_layers=1, kinds=("hidden",), n_heads=_N_HEADS, d_head=D_MODEL)
    return torch.full((n_lanes, *ring.shape), filler), torch.zeros(n_lanes, *count.shape, dtype=torch.int32)


def _rows(n_rows: int, *, seed: int = 0, n_lanes: int = N_LANES) -> Tensor:
    return random(n_lanes, _N_HEADS, n_rows, D_MODEL, seed=seed)


def _written(
    policy: MemoryPolicy, ring: Tensor, count: Tensor, rows: Tensor, chunks: Sequence[int]
) -> tuple[Tensor, Tensor]:
    for part in rows.split(list(chunks), dim=2):
        ring, count = policy.write(ring, count, part), policy.advance(count, n_rows=part.shape[2])
    return ring, count


def _shapes_stay_fixed(factory: Callable[..., MemoryPolicy]) -> None:
    for size in _MEMORY_SIZES:
        policy = factory(**size)
        ring, count = _fresh_memory(policy)
        n_visible = policy.visible(count).shape
        for n_rows in (1, 2, 50):
            after, counted = _written(policy, ring, count, _rows(n_rows), [n_rows])
            require(after.shape == ring.shape, f"{size}: writing {n_rows} rows made {ring.shape} {after.shape}.")
            same = counted.shape == count.shape and counted.dtype == count.dtype
            require(same, f"{size}: the counters changed to {counted.dtype} of shape {tuple(counted.shape)}.")
            read, visible = policy.read(after, counted), policy.visible(counted)
            require(visible.shape == n_visible, f"{size}: {n_visible} visible flags became {visible.shape}.")
            expected = (n_visible[0], _N_HEADS, n_visible[1], D_MODEL)
            require(read.shape == expected, f"{size}: reading gave {tuple(read.shape)}, expected {expected}.")


def _what_was_written_can_be_read(factory: Callable[..., MemoryPolicy]) -> None:
    for size in _MEMORY_SIZES:
        if size["mem_len"]:
            policy = factory(**size)
            first, second = (_written(policy, *_fresh_memory(policy), _rows(40, seed=seed), [40]) for seed in (1, 2))
            differs = not torch.equal(policy.read(*first), policy.read(*second))
            require(differs, f"{size}: after 40 rows, two different streams read the same.")
            require(policy.visible(first[1]).any(), f"{size}: after 40 rows nothing is visible.")


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
                require(same, f"{size}: after {n_before + 1} rows, chunks {chunks} read otherwise than 17 at once.")


def _a_reset_lane_sees_nothing_of_before(factory: Callable[..., MemoryPolicy]) -> None:
    for size in _MEMORY_SIZES:
        policy = factory(**size)
        ring, count = _written(policy, *_fresh_memory(policy), _rows(29), [29])
        fresh_ring, fresh = _fresh_memory(policy)
        count = torch.cat([count[:1], fresh[1:]])  # the rows stay, the counters say that there are none
        kept = policy.read(ring, count)
        require(torch.equal(kept[1:], policy.read(fresh_ring, fresh)[1:]), f"{size}: a reset lane still reads rows.")
        for n_rows in range(1, 13):
            ring, count = _written(policy, ring, count, _rows(1, seed=n_rows), [1])
            fresh_ring, fresh = _written(policy, fresh_ring, fresh, _rows(1, seed=n_rows), [1])
            same = torch.equal(policy.read(ring, count)[1:], policy.read(fresh_ring, fresh)[1:])
            seen = torch.equal(policy.visible(count)[1:], policy.visible(fresh)[1:])
            require(same and seen, f"{size}: {n_rows} rows after a reset, a lane reads otherwise than a fresh one.")


def _unfilled_slots_read_as_zero_even_when_they_hold_nan(factory: Callable[..., MemoryPolicy]) -> None:
    for size in _MEMORY_SIZES:
        policy = factory(**size)
        for filler in (math.nan, math.inf, 1e30):
            ring, count = _fresh_memory(policy, filler=filler)
            for n_rows in range(14):
                read, visible = policy.read(ring, count), policy.visible(count)
                hidden = read.transpose(1, 2)[~visible]
                require((hidden == 0).all(), f"{size}: after {n_rows} rows an unfilled slot reads as {filler}.")
                require(read.isfinite().all(), f"{size}: after {n_rows} rows a slot that holds {filler} is visible.")
                ring, count = _written(policy, ring, count, _rows(1, seed=n_rows), [1])


def _counters_never_leave_int32(factory: Callable[..., MemoryPolicy]) -> None:
    for size in _MEMORY_SIZES:
        policy = factory(**size)
        _, count = _fresh_memory(policy)
        for _ in range(5000):  # 5e9 rows: more than int32 can count
            count = policy.advance(count, n_rows=1_000_003)
            bounded = count.dtype == torch.int32 and ((count >= 0) & (count < 2**30)).all()
            require(bounded, f"{size}: the counters became {count[0].tolist()}: wrap or saturate them.")


def _a_memory_lane_does_not_know_the_others(factory: Callable[..., MemoryPolicy]) -> None:
    for size in _MEMORY_SIZES:
        policy = factory(**size)
        ring, count = _written(policy, *_fresh_memory(policy), _rows(9), [4, 5])
        plain = policy.read(ring, count)
        for value in BAD_VALUES:
            rows = _rows(9)
            rows[1] = value
            read = policy.read(*_written(policy, *_fresh_memory(policy), rows, [4, 5]))
            same = torch.equal(read[[0, 2]], plain[[0, 2]])
            require(same, f"{size}: {value} in lane 1 changed what other lanes read.")
        order = [2, 0, 1]
        permuted = policy.read(*_written(policy, *_fresh_memory(policy), _rows(9)[order], [4, 5]))
        require(torch.equal(permuted, plain[order]), f"{size}: permuting lanes does not permute what they read.")


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
            require(torch.equal(tensor, before[name]), f"{size}: {name!r} was changed in place.")


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
