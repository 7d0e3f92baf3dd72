"""What every far memory must hold: a policy beside the window of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from txl_ts.attention import Far, RelativeAttention
from txl_ts.checks.verdict import Check, CheckFailed, named, random, randomised, require
from txl_ts.memory import FarMemory, Kept
from txl_ts.memory.far import advance, attended, far_specs

# Lanes, width, heads: all different, so that a swapped axis cannot pass.
_N_LANES, _D_MODEL, _N_HEADS = 3, 8, 2
# Sums of some hundred terms of size one, in another order.
_CLOSE = 1e-5


def check_far_memory(policy: type[FarMemory]) -> list[Check]:
    """List the checks of a memory policy, of its default parameters."""
    return named("memory", policy, _CHECKS)


class _Bench:
    """One layer's far memory and attention without a window, so that only the far memory and the own row are seen."""

    def __init__(self, policy: type[FarMemory]) -> None:
        torch_state = torch.random.get_rng_state()
        far = policy(d_model=_D_MODEL, n_heads=_N_HEADS, **policy.defaults)
        attention = RelativeAttention(d_model=_D_MODEL, n_heads=_N_HEADS, mem_len=0)
        torch.random.set_rng_state(torch_state)
        randomised(far), randomised(attention)
        self.far, self.attention = far, attention
        self.n_long = 5 * far.block * max(far.n_slots, 2) if far.has_state else 40
        self.n_rows = min(self.n_long, 6 * far.block + 5) if far.has_state else 40

    def fresh(self, n_lanes: int = _N_LANES) -> Kept:
        specs = far_specs(self.far, n_layers=1, d_model=_D_MODEL)
        dtypes = {"int32": torch.int32, "float32": torch.float32}
        return {spec.name: torch.zeros(n_lanes, *spec.shape, dtype=dtypes[spec.dtype]) for spec in specs}

    def step(self, rows: Tensor, state: Kept) -> tuple[Tensor, Kept]:
        """Give what rows (B, T, D) read, and the state after them."""
        count = state.get("far_count")
        kept = {name[4:-2]: tensor for name, tensor in state.items() if name != "far_count"}
        key, value = self.attention.project(rows)
        visible = torch.ones(len(rows), 0, dtype=torch.bool)

        def attend(far: Far, first: int, end: int) -> Tensor:
            part = slice(first, end)
            return self.attention(rows[:, part], key[:, :, part], value[:, :, part], visible, far=far)

        y, kept = attended(self.far, rows, kept, count, self.attention, attend, _ready)
        after = {} if count is None else {"far_count": advance(count, n_rows=rows.shape[1], far=self.far)}
        return y, after | {f"far_{name}_0": tensor for name, tensor in kept.items()}

    def run(self, rows: Tensor, chunks: Sequence[int] | int, state: Kept | None = None) -> tuple[Tensor, Kept]:
        state, out = self.fresh(len(rows)) if state is None else state, []
        with torch.no_grad():
            for part in rows.split(chunks if isinstance(chunks, int) else list(chunks), dim=1):
                y, state = self.step(part, state)
                out.append(y)
        return torch.cat(out, dim=1), state

    def rows(self, *, seed: int = 0, n_rows: int | None = None) -> Tensor:
        rows = random(_N_LANES, n_rows or self.n_rows, _D_MODEL, seed=seed)
        return _ready(rows)


def _ready(rows: Tensor) -> Tensor:
    """Normalise rows, as a layer gives them."""
    return torch.nn.functional.layer_norm(rows, (_D_MODEL,))


def _gap(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1e-30)) if a.numel() else 0.0


def _defaults_are_numbers_and_make_a_policy(policy: type[FarMemory]) -> None:
    plain = all(type(value) in (int, float) for value in policy.defaults.values())
    require(plain, f"defaults={policy.defaults!r} must be numbers: they go into a file of JSON.")
    try:
        with torch.device("meta"):
            policy(d_model=_D_MODEL, n_heads=_N_HEADS, **policy.defaults)
    except NotImplementedError as error:
        raise CheckFailed(
            f"__init__ reads numbers, so that nobody can count weights without making them: {error}."
        ) from error
    far = _Bench(policy).far
    require(far.n_slots >= 1, f"n_slots={far.n_slots} must be at least 1.")
    require(far.has_state == (far.block >= 1), f"has_state={far.has_state} contradicts block={far.block}.")


def _names_and_shapes_stay_fixed(policy: type[FarMemory]) -> None:
    bench = _Bench(policy)
    state = bench.fresh()
    shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()}
    for n_rows in (1, 2, bench.n_rows):
        _, state = bench.run(bench.rows(n_rows=n_rows), n_rows, state)
        found = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()}
        require(found == shapes, f"after {n_rows} rows the state is {found}, expected {shapes}.")


def _what_was_absorbed_is_read(policy: type[FarMemory]) -> None:
    bench = _Bench(policy)
    if not bench.far.has_state:
        return
    rows = bench.rows(n_rows=bench.far.block + 1)
    other = torch.cat([bench.rows(seed=1, n_rows=bench.far.block), rows[:, -1:]], dim=1)
    differs = not torch.equal(bench.run(rows, len(rows[0]))[0][:, -1], bench.run(other, len(rows[0]))[0][:, -1])
    require(differs, "after one block, streams with different rows read the same.")


def _reads_do_not_depend_on_the_split_of_rows(policy: type[FarMemory]) -> None:
    bench = _Bench(policy)
    rows = bench.rows()
    whole, state = bench.run(rows, bench.n_rows)
    for chunks in (1, 2, max(bench.far.block, 1), max(bench.far.block, 1) + 1):
        y, other = bench.run(rows, chunks)
        gap = max([_gap(y, whole), *(_gap(other[name], state[name]) for name in state)])
        require(gap <= _CLOSE, f"calls of {chunks} rows differ from one of {bench.n_rows} by {gap:.1e}.")


def _the_future_changes_no_past_read(policy: type[FarMemory]) -> None:
    bench = _Bench(policy)
    rows = bench.rows()
    before, _ = bench.run(rows, bench.n_rows)
    for row in range(1, bench.n_rows, 3):
        changed = torch.cat([rows[:, :row], bench.rows(seed=1)[:, row:]], dim=1)
        same = torch.equal(bench.run(changed, bench.n_rows)[0][:, :row], before[:, :row])
        require(same, f"changing the rows from {row} on changed what earlier rows read.")


def _lanes_may_stand_anywhere_on_the_grid(policy: type[FarMemory]) -> None:
    bench = _Bench(policy)
    rows = bench.rows()
    for n_before in range(1, max(bench.far.block, 1) + 2):
        _, state = bench.run(rows[:, :n_before], n_before)
        state = {name: torch.where(_first(tensor), tensor, 0) for name, tensor in state.items()}  # the others restart
        y, _ = bench.run(rows[:, n_before:], bench.n_rows, state)
        alone, _ = bench.run(rows[:, n_before:], bench.n_rows)
        on, _ = bench.run(rows, bench.n_rows)
        gap = max(_gap(y[1:], alone[1:]), _gap(y[:1], on[:1, n_before:]))
        require(gap <= _CLOSE, f"a lane reads otherwise by {gap:.1e} where others began {n_before} rows later.")


def _first(tensor: Tensor) -> Tensor:
    return (torch.arange(len(tensor)) == 0).reshape(-1, *(1,) * (tensor.ndim - 1))


def _a_memory_lane_does_not_know_the_others(policy: type[FarMemory]) -> None:
    bench = _Bench(policy)
    rows = bench.rows()
    plain, state = bench.run(rows, 7)
    other = rows.clone()
    other[1] = bench.rows(seed=1)[1] * 1e3
    changed, after = bench.run(other, 7)
    same = torch.equal(changed[[0, 2]], plain[[0, 2]])
    same &= all(torch.equal(after[name][[0, 2]], state[name][[0, 2]]) for name in state)
    require(same, "the rows of lane 1 changed what other lanes read or keep.")
    permuted, _ = bench.run(rows[[2, 0, 1]], 7)
    gap = _gap(permuted, plain[[2, 0, 1]])
    require(gap <= _CLOSE, f"permuting lanes does not permute what they read: {gap:.1e}.")


def _memory_inputs_stay_untouched(policy: type[FarMemory]) -> None:
    bench = _Bench(policy)
    rows = bench.rows()
    _, state = bench.run(rows, 5)
    inputs: dict[str, Any] = {**state, "rows": rows}
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    bench.run(rows, 5, state)
    for name, tensor in inputs.items():
        require(torch.equal(tensor, before[name]), f"{name!r} was changed in place.")


def _the_state_stays_bounded(policy: type[FarMemory]) -> None:
    bench = _Bench(policy)
    state, sizes = bench.fresh(), []
    for seed in range(6):
        y, state = bench.run(bench.rows(seed=seed, n_rows=bench.n_long), bench.n_long, state)
        finite = all(bool(tensor.isfinite().all()) for tensor in (y, *state.values()))
        require(finite, f"after {(seed + 1) * bench.n_long} rows something is not finite.")
        sizes.append(max((float(tensor.abs().max()) for tensor in state.values()), default=0.0))
    grown = sizes[5] > 4 * max(sizes[2], 1.0)
    require(not grown, f"the state grows: its largest number went {', '.join(f'{size:.3g}' for size in sizes)}.")


def _every_weight_gets_a_gradient(policy: type[FarMemory]) -> None:
    bench = _Bench(policy)
    bench.far.train()
    y, _ = bench.step(bench.rows(), bench.fresh())
    y.square().mean().backward()
    missing = [name for name, p in bench.far.named_parameters() if p.grad is None or not bool(p.grad.abs().max() > 0)]
    require(not missing, f"{missing[:5]} get no gradient within {bench.n_rows} rows: they would never be learned.")


_CHECKS = (
    _defaults_are_numbers_and_make_a_policy,
    _names_and_shapes_stay_fixed,
    _what_was_absorbed_is_read,
    _reads_do_not_depend_on_the_split_of_rows,
    _the_future_changes_no_past_read,
    _lanes_may_stand_anywhere_on_the_grid,
    _a_memory_lane_does_not_know_the_others,
    _memory_inputs_stay_untouched,
    _the_state_stays_bounded,
    _every_weight_gets_a_gradient,
)
