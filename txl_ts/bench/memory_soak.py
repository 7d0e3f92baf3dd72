"""A million rows through each memory policy: bounds of the state, drift of the outputs, time per row.

The same stream is walked in float32 and in float64, each with a state of its own precision: what float32 loses over a
million rows is their difference.
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
from txl_ts.bench.memory import one_thread
from txl_ts.label_model import LabelConfig, LabelModel
from txl_ts.model import TorchState

N_ROWS, CALL = 1_000_000, 5_000
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
    }
)
COLUMNS = MappingProxyType(
    {
        "policy": "policy",
        "state_nbytes": "state, bytes",
        "largest_first": "largest number of the state, first tenth",
        "largest": "all rows",
        "rmse_first": "float32 − float64, RMSE, first 10,000 rows",
        "rmse_last": "last 10,000 rows",
        "fresh": "largest difference to a fresh start",
        "us_first": "CPU µs per row, first tenth",
        "us_last": "last tenth",
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
    command : str, optional
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`.
    """
    del data, variants
    with one_thread():
        rows = [walk(name, seed=seeds[0], n_rows=n_rows, call=call) for name in policies]
    return {
        "name": "memory_soak",
        "title": f"{n_rows:,} rows through each memory policy",
        "command": command or "txl-ts bench memory-soak",
        "protocol": [
            f"Two layers of width 16 with drawn weights, a window of 16 visits, blocks of {BLOCK} rows; normal rows, "
            f"calls of {call:,}. The same stream is walked in float32 and in float64, state and all.",
            "A fresh start: a stream that began twice the reach ago, at a line of the grid, beside the long one, in "
            f"float32, over the next {BLOCK} rows. Only for policies that are a function of the rows of their reach.",
        ],
        "columns": dict(COLUMNS),
        "rows": rows,
        "notes": [],
        "seeds": list(seeds[:1]),
        "environment": report.environment(),
    }


def make_model(name: str, *, seed: int) -> LabelModel:
    """Make a model whose attention is far from even: drawn weights, larger than those that training starts from."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"patch_len": 1, "mem_len": 16, "lookback": 0, "half_life": 2, "scaler": "standard"}
    network: dict[str, Any] = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32, "head": "values"}
    model = LabelModel(LabelConfig(**sizes, **network, memory=name, memory_params=dict(PARAMS.get(name, {}))))
    for weight in model.parameters():
        if weight.ndim > 1 and weight.numel():  # heads start at zero: answers would say nothing
            nn.init.normal_(weight, std=2 * weight.shape[-1] ** -0.5)
    return model.eval()


def walk(name: str, *, seed: int, n_rows: int, call: int) -> dict[str, Any]:
    """Walk one policy; gives its row of the table."""
    with torch.random.fork_rng(devices=[]):
        single = make_model(name, seed=seed)
        double = make_model(name, seed=seed).double()
    draw = torch.Generator().manual_seed(seed)
    state, exact = single.init_state(1), _double(double.init_state(1))
    recent = torch.zeros(1, 0, 1)
    n_calls, n_fresh = n_rows // call, 2 * _reach_in_blocks(single) * BLOCK
    seconds, largest, squares = [], [], []
    with torch.inference_mode():
        for _ in range(n_calls):
            x = torch.randn(1, call, 1, generator=draw)
            begin = time.process_time()
            y, state = single(x, state)
            seconds.append(time.process_time() - begin)
            wanted, exact = double(x.double(), exact)
            squares.append(float((y.double() - wanted).square().mean()))
            largest.append(max(float(t.abs().max()) for t in state.values() if t.is_floating_point()))
            recent = torch.cat([recent, x], dim=1)[:, -n_fresh - call :]
        row = {"policy": name, "state_nbytes": single.state_nbytes()}
        row |= {"largest_first": max(largest[: n_calls // 10]), "largest": max(largest)}
        two = max(10_000 // call, 1)
        row |= {"rmse_first": _root(squares[:two]), "rmse_last": _root(squares[-two:])}
        if forgets(single):
            row["fresh"] = _fresh_difference(single, state, recent, n_rows=n_calls * call, n_fresh=n_fresh, draw=draw)
    tenth = max(n_calls // 10, 1)
    per_row = [1e6 * second / call for second in seconds]
    row |= {"us_first": _median(per_row[:tenth]), "us_last": _median(per_row[-tenth:])}
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


def _root(squares: Sequence[float]) -> float:
    return float((sum(squares) / len(squares)) ** 0.5)


def _median(values: Sequence[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).median())
