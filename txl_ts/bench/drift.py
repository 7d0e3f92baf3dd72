"""How far float32 and bfloat16 are from float64 on a long stream, for every memory policy, and whether it grows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from os import PathLike
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from txl_ts.bench import report
from txl_ts.label_model import LabelConfig, LabelModel
from txl_ts.memory import policies

COLUMNS = MappingProxyType(
    {
        "memory": "memory",
        "float32_millionths": "float32, RMSE in millionths",
        "float32_growth": "last tenth / first",
        "bf16": "bf16, RMSE",
        "bf16_growth": "last tenth / first",
        "largest": "largest number kept",
        "us_float32": "float32, CPU µs per row",
        "us_bf16": "bf16",
    }
)
SIZES: Mapping[str, Any] = MappingProxyType({"d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 64, "mem_len": 16})
_ROWS = 1000  # of a call


def run(
    data: str | PathLike[str] | None = None,
    *,
    seeds: Sequence[int] = (0,),
    memories: Sequence[str] | None = None,
    n_rows: int = 100_000,
    variants: Sequence[Any] | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Walk one stream in three precisions, by drawn weights.

    Parameters
    ----------
    data
        Not used.
    seeds : sequence of int
        The first draws weights and rows.
    memories : sequence of str, optional
        Policies, all of them by default.
    n_rows : int
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
    rows = [measured(memory, seeds[0], n_rows=n_rows) for memory in (memories or policies())]
    return {
        "name": "drift",
        "title": "Precision over a long stream",
        "command": command or "txl-ts bench drift",
        "protocol": [
            f"One stream of {n_rows:,} rows (a random walk that is pulled back, at a level of 1,000) through "
            f"{SIZES['n_layers']} layers of width {SIZES['d_model']} with drawn weights, in calls of {_ROWS:,} rows; "
            "running scaler, no linear path. RMSE of the answers against the same weights in float64, in deviations of "
            "those answers; what is kept is float32 in both. A growth of about 1 is no drift.",
        ],
        "columns": dict(COLUMNS),
        "rows": rows,
        "notes": [
            "importance chooses which row leaves: where two are nearly as important, another precision may choose "
            "another, and answers differ by what that row says."
        ],
        "seeds": list(seeds[:1]),
        "environment": report.environment(),
    }


def measured(memory: str, seed: int, *, n_rows: int) -> dict[str, Any]:
    """Give a row of the table."""
    x, weights = stream(seed, n_rows), _model(memory, "float32", seed).state_dict()
    answers, found = {}, {}
    for name, precision in (("float64", "float32"), ("float32", "float32"), ("bf16", "bf16")):
        model = _model(memory, precision, seed)
        model.load_state_dict(weights)
        begin = time.process_time()
        answers[name], largest = _walked(model.double() if name == "float64" else model, x)
        found[f"us_{name}"] = (time.process_time() - begin) * 1e6 / n_rows
        found["largest"] = largest
    true, tenth = answers["float64"], n_rows // 10
    row: dict[str, Any] = {"memory": memory, "largest": found["largest"]}
    for name in ("float32", "bf16"):
        error = np.square(answers[name] - true)
        row[name] = float(np.sqrt(error.mean()) / true.std())
        row[f"{name}_growth"] = float(np.sqrt(error[-tenth:].mean() / max(error[:tenth].mean(), 1e-300)))
        row["float32_millionths"] = 1e6 * row["float32"]
        row[f"us_{name}"] = found[f"us_{name}"]
    return row


def stream(seed: int, n_rows: int) -> NDArray[np.float32]:
    """Draw rows (n_rows,), one deviation around a level of 1,000."""
    noise, x = np.random.default_rng(seed).normal(size=n_rows), np.zeros(n_rows)
    for t in range(1, n_rows):
        x[t] = 0.98 * x[t - 1] + 0.2 * noise[t]
    return (1000 + x).astype(np.float32)


def _model(memory: str, precision: str, seed: int) -> LabelModel:
    plain: dict[str, Any] = {"patch_len": 1, "lookback": 0, "half_life": 1000, "scaler": "running", "head": "values"}
    config = LabelConfig(**SIZES, **plain, memory=memory, precision=precision)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LabelModel(config).eval()
        torch.nn.init.normal_(model.answer.linear.weight)  # a head of zeros says nothing
    return model


def _walked(model: LabelModel, x: NDArray[np.float32]) -> tuple[NDArray[np.float64], float]:
    """Give the answers at all rows, and the largest number that is kept after the last one."""
    rows = torch.from_numpy(x).to(model.answer.linear.weight.dtype)[None, :, None]
    state, out = model.init_state(1), []
    with torch.inference_mode():
        for part in rows.split(_ROWS, dim=1):
            y, state = model(part, state)
            out.append(y[0, :, 0].double().numpy())
    kept = [t.abs().max() for name, t in state.items() if t.is_floating_point() and name not in ("norm", "rows")]
    return np.concatenate(out), float(max(kept))
