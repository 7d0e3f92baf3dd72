"""A million rows through each memory policy: bounds of the state, drift of the outputs, time per row.

The same stream is walked in float32, in bfloat16 (whose state is float32) and in float64, state and all: what the first
two lose over a million rows is their difference to the third.

Rows are scaled once for all, not by the running normaliser: its moments fade and never end, so a stream that began
later could not be equal to the long one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from os import PathLike
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from txl_ts.bench import report
from txl_ts.bench.kept import KeptFits
from txl_ts.bench.memory import one_thread
from txl_ts.label_model import LabelConfig, LabelModel
from txl_ts.model import TorchState

N_ROWS, CALL = 1_000_000, 5_000
SIZES: MappingProxyType[str, Any] = MappingProxyType(
    {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32, "mem_len": 16}
)
# Updates are what costs time: a block of 64 rows.
BLOCK = 64
PARAMS: MappingProxyType[str, dict[str, int | float]] = MappingProxyType(
    {
        "fifo": {},
        "sinks": {},
        "compressive": {"n_slots": 16, "every": 16, "block": BLOCK},
        "two_rate": {"n_slots": 8, "every": BLOCK},
        "gated": {"n_slots": 4, "block": BLOCK},
        "importance": {"n_slots": 8, "block": BLOCK},
        "tokens": {"n_slots": 4, "block": BLOCK},
        "linear": {"block": BLOCK},
        "same_layer": {"block": BLOCK},
    }
)
COLUMNS = MappingProxyType(
    {
        "policy": "policy",
        "state_nbytes": "state, bytes",
        "largest_first": "largest number of the state, first tenth",
        "largest": "all rows",
        "float32_first": "float32, RMSE in millionths, first 10,000 rows",
        "float32_last": "last 10,000 rows",
        "bf16_first": "bf16, RMSE, first 10,000 rows",
        "bf16_last": "last 10,000 rows",
        "fresh_millionths": "largest difference to a fresh start, in millionths",
        "us_first": "float32, least CPU µs per row, first tenth",
        "us_last": "last tenth",
        "us_bf16_first": "bf16, least CPU µs per row, first tenth",
        "us_bf16_last": "last tenth",
    }
)


def run(
    data: str | PathLike[str] | None = None,
    *,
    seeds: Sequence[int] = (0,),
    policies: Sequence[str] = tuple(PARAMS),
    n_rows: int = N_ROWS,
    call: int = CALL,
    variants: Sequence[Any] | None = None,
    kept: str | PathLike[str] | None = None,
    from_kept: bool = False,
    command: str | None = None,
) -> dict[str, Any]:
    """Walk one long stream per policy.

    Parameters
    ----------
    data
        Not used: rows are drawn.
    seeds : sequence of int
        The first one draws weights and rows.
    policies : sequence of str
    n_rows : int
        At least twenty calls.
    call : int
        Rows of a call, a multiple of 8.
    variants
        Not used.
    kept : path, optional
        Folder of the policies that are finished: each is kept there at once, and found again by the next call.
    from_kept : bool
        Walk nothing: the table of the policies that are there.
    command : str, optional
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`.
    """
    del data, variants
    store, rows = KeptFits(kept, "memory_soak"), []
    with one_thread():
        for name in policies:
            how: dict[str, Any] = {"seed": seeds[0], "n_rows": n_rows, "call": call}
            of = {"policy": name, "params": PARAMS.get(name, {}), "sizes": dict(SIZES), **how}
            found = store.find(of)
            if found is None and not from_kept:
                found = store.keep(of, walk(name, **how))
            rows += [found] if found else []
    return {
        "name": "memory_soak",
        "title": f"{n_rows:,} rows through each memory policy",
        "command": command or "txl-ts bench memory-soak",
        "protocol": [
            f"Two layers of width {SIZES['d_model']} with drawn weights, a window of {SIZES['mem_len']} visits, blocks "
            f"of {BLOCK} rows; normal rows, calls of {call:,}. The same stream is walked in float32, in bfloat16 (its "
            "state is float32) and in float64, state and all. RMSE of the answers against float64's, in deviations of "
            "those.",
            "A fresh start: a stream that began twice the reach ago, at a line of the grid, beside the long one, in "
            f"float32, over the next {BLOCK} rows. Only for policies that are a function of the rows of their reach.",
            "CPU time is that of the fastest call among the first and among the last tenth: other work on the machine "
            "slows some calls down, and makes none faster.",
        ],
        "columns": dict(COLUMNS),
        "rows": rows,
        "notes": [
            "importance chooses which row leaves: where two are nearly as important, another precision may choose "
            "another, and answers differ by what that row says.",
            *report.still_missing(len(policies) - len(rows), of=len(policies)),
        ],
        "seeds": list(seeds[:1]),
        "environment": report.environment(),
    }


def make_model(name: str, *, seed: int, precision: str = "float32") -> LabelModel:
    """Make a model whose attention is far from even: drawn weights, larger than those that training starts from."""
    torch.manual_seed(seed)
    plain: dict[str, Any] = {"patch_len": 1, "lookback": 0, "half_life": 2, "scaler": "standard", "head": "values"}
    params = dict(PARAMS.get(name, {}))
    model = LabelModel(LabelConfig(**SIZES, **plain, memory=name, memory_params=params, precision=precision))
    for weight in model.parameters():
        if weight.ndim > 1 and weight.numel():  # heads start at zero: answers would say nothing
            nn.init.normal_(weight, std=2 * weight.shape[-1] ** -0.5)
    return model.eval()


def walk(name: str, *, seed: int, n_rows: int, call: int) -> dict[str, Any]:
    """Walk one policy; gives its row of the table."""
    with torch.random.fork_rng(devices=[]):
        double = make_model(name, seed=seed).double()
        models = {how: make_model(name, seed=seed, precision=how) for how in ("float32", "bf16")}
    single, draw = models["float32"], torch.Generator().manual_seed(seed)
    states, exact = {how: model.init_state(1) for how, model in models.items()}, _double(double.init_state(1))
    n_calls, n_fresh = n_rows // call, 2 * _reach_in_blocks(single) * BLOCK
    recent, largest, variances = torch.zeros(1, 0, 1), [], []
    us: dict[str, list[float]] = {how: [] for how in models}
    squares: dict[str, list[float]] = {how: [] for how in models}
    with torch.inference_mode():
        for _ in range(n_calls):
            x = torch.randn(1, call, 1, generator=draw)
            wanted, exact = double(x.double(), exact)
            variances.append(float(wanted.var()))
            for how, model in models.items():
                begin = time.process_time()
                y, states[how] = model(x, states[how])
                us[how].append((time.process_time() - begin) * 1e6 / call)
                squares[how].append(float((y.double() - wanted).square().mean()))
            largest.append(max(float(t.abs().max()) for t in states["float32"].values() if t.is_floating_point()))
            recent = torch.cat([recent, x], dim=1)[:, -n_fresh - call :]
        tenth, two = max(n_calls // 10, 1), max(10_000 // call, 1)
        row = {"policy": name, "state_nbytes": single.state_nbytes()}
        row |= {"largest_first": max(largest[:tenth]), "largest": max(largest)}
        for how, unit in (("float32", 1e6), ("bf16", 1.0)):
            for when, part in (("first", slice(two)), ("last", slice(-two, None))):
                row[f"{how}_{when}"] = unit * (_mean(squares[how][part]) / _mean(variances)) ** 0.5
        if forgets(single):
            how_many = {"n_rows": n_calls * call, "n_fresh": n_fresh}
            row["fresh_millionths"] = 1e6 * _fresh_difference(single, states["float32"], recent, **how_many, draw=draw)
    for how, prefix in (("float32", "us"), ("bf16", "us_bf16")):
        row |= {f"{prefix}_first": min(us[how][:tenth]), f"{prefix}_last": min(us[how][-tenth:])}
    return row


def forgets(model: LabelModel) -> bool:
    """Whether the state is a function of the rows of the reach."""
    return model.config.memory in ("fifo", "sinks") or "every" in model.config.memory_params


def _fresh_difference(
    model: LabelModel, state: TorchState, recent: Tensor, *, n_rows: int, n_fresh: int, draw: torch.Generator
) -> float:
    past = recent[:, recent.shape[1] - n_fresh - n_rows % BLOCK :]
    after = torch.randn(1, BLOCK, 1, generator=draw)
    _, fresh = model(past, model.init_state(1))
    return float((model(after, fresh)[0] - model(after, state)[0]).abs().max())


def _reach_in_blocks(model: LabelModel) -> int:
    return -(-model.config.reach // BLOCK) + 1


def _double(state: TorchState) -> TorchState:
    return {name: t.double() if t.is_floating_point() else t for name, t in state.items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
