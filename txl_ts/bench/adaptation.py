"""Frozen weights, systems never met: what the memory finds out about them, and after how many rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from os import PathLike
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from txl_ts.bench import report
from txl_ts.bench.memory import Training, train
from txl_ts.bench.memory_contenders import SEGMENT_LEN, SIZES, Policy, contenders
from txl_ts.bench.memory_rivals import RowModel, count
from txl_ts.bench.memory_tasks import Episodes, MemoryTask, Part
from txl_ts.bench.unknown_systems import Oscillators, bank, kalman, least_squares

Floats = NDArray[np.float64]

N_ROWS = 8 * SEGMENT_LEN
# Rows seen, counted with the newest one; the last bin is longer than any episode of the training.
BINS = ((1, 1), (2, 3), (4, 7), (8, 15), (16, 31), (32, 63), (64, 127), (128, 255))
# Of as many bytes of state.
POLICIES = (
    Policy("fifo", {"mem_len": 2 * SEGMENT_LEN}),
    Policy("same_layer", {"memory": "same_layer", "memory_params": {"block": SEGMENT_LEN}}, 2),
)
TRAINING = Training(n_updates=800)
ORDERS = (2, 4, 8)
COLUMNS = MappingProxyType(
    {
        "model": "model",
        **{f"rows_{a}": f"{a}–{b} rows" if b > a else "1 row" for a, b in BINS},
        "spread": "± at the last (max − min)",
        "n_seeds": "seeds",
        "n_parameters": "parameters",
        "train_s": "training, s",
    }
)


def episodes(rng: np.random.Generator, n_episodes: int, n_rows: int) -> Episodes:
    """Draw a system and a series of it per episode; the answer at a row is the next reading."""
    y = Oscillators.drawn(rng, n_episodes).readings(rng, n_rows + 1).astype(np.float32)[..., None]
    counts = np.ones((n_episodes, n_rows), bool)
    return Episodes(y[:, :-1], y[:, 1:], counts, np.broadcast_to(np.arange(n_rows), counts.shape))


TASK = MemoryTask("unknown systems", episodes, 1, 0, N_ROWS, (Part("all", N_ROWS),), lambda _: 0.0)


def run(
    data: str | PathLike[str] | None = None,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    policies: Sequence[Policy] = POLICIES,
    rivals: Sequence[str] = ("GRU",),
    training: Training = TRAINING,
    n_test: int = 256,
    n_candidates: int = 300,
    variants: Sequence[Any] | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Train on many systems, freeze, and judge on new ones row by row.

    Parameters
    ----------
    data
        Not used: the systems are drawn.
    seeds : sequence of int
        Each draws weights and training systems; the new systems are the same for all.
    policies : sequence of Policy
    rivals : sequence of str
        As in :mod:`txl_ts.bench.memory`.
    training : Training
    n_test : int
        New systems.
    n_candidates : int
        Kalman filters of the bank.
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
    rng = np.random.default_rng(12345)
    systems = Oscillators.drawn(rng, n_test)
    y = systems.readings(rng, BINS[-1][1] + 1)
    best = binned(y, kalman(y, systems)[0])
    order = _order_of_least_squares(np.random.default_rng(54321))
    candidates = Oscillators.drawn(np.random.default_rng(999), n_candidates)
    rows = [
        _row("Kalman filter, parameters known", best, best),
        _row(f"{n_candidates} Kalman filters, structure known", binned(y, bank(y, candidates)), best),
        _row(f"recursive least squares, {order} rows back", binned(y, least_squares(y, order=order)), best),
        _row("last value", binned(y, y), best),
        _row("nothing: 0", binned(y, np.zeros_like(y)), best),
    ]
    runs = [one for seed in seeds for one in _fits(y, seed, policies=policies, rivals=rivals, training=training)]
    for name in dict.fromkeys(one["model"] for one in runs):
        fits = [one for one in runs if one["model"] == name]
        errors = np.array([fit["errors"] for fit in fits])
        last = errors[:, -1] / best[-1]
        about = {"n_seeds": len(fits), "n_parameters": fits[0]["n_parameters"]}
        about |= {"train_s": float(np.mean([fit["train_s"] for fit in fits]))}
        about |= {"spread": float(np.ptp(last))} if len(fits) > 1 else {}
        rows.append(_row(name, errors.mean(axis=0), best) | about)
    return {
        "name": "adaptation",
        "title": "Systems never met, frozen weights: error by rows seen",
        "command": command or "txl-ts bench adaptation",
        "protocol": [
            "Each series is a damped oscillator of its own (period 4 to 32 rows, damping .90 to .995, noise in the "
            "state and in the reading); the task is the next reading. Models are trained on series of "
            f"{N_ROWS} rows, a new system each ({training.n_updates} updates of {SEGMENT_LEN} rows × "
            f"{training.n_lanes} lanes), then frozen and judged on {n_test} new systems that start empty. The sizes "
            f"are small ({SIZES['n_layers']} layers of width {SIZES['d_model']}): the table was made on two cores "
            "shared with others.",
            "Cells: mean squared error over that of the Kalman filter that knows each system, by the number of rows "
            "seen; 1 is the best possible. The bank of filters knows structure, noises and the law that the parameters "
            "are drawn from, and weighs candidates by the readings so far. The order of the least squares was chosen "
            f"on other systems among {', '.join(map(str, ORDERS))}. Memory zeroed: the trained TXL sees its own row "
            "alone.",
        ],
        "columns": dict(COLUMNS),
        "rows": rows,
        "runs": runs,
        "best": best.tolist(),
        "notes": _verdicts(rows),
        "seeds": list(seeds),
        "environment": report.environment(),
    }


def binned(y: Floats, forecast: Floats) -> Floats:
    """Mean squared error of the forecasts of each next reading, by rows seen: one number per bin of ``BINS``."""
    square = (y[:, 1:] - forecast[:, :-1]) ** 2
    return np.array([square[:, a - 1 : b].mean() for a, b in BINS])


def said(model: RowModel, y: Floats, *, segment_len: int) -> Floats:
    """Walk series from empty memories, so many rows a call; gives the forecast after each row."""
    x = torch.from_numpy(np.ascontiguousarray(y, np.float32)[..., None])
    state, out = model.init_rows(len(x)), []
    with torch.inference_mode():
        for rows in x.split(segment_len, dim=1):
            z, state = model.forward_rows(rows, state)
            out.append(z[..., 0].numpy())
    return np.concatenate(out, axis=1).astype(np.float64)


def _fits(
    y: Floats, seed: int, *, policies: Sequence[Policy], rivals: Sequence[str], training: Training
) -> list[dict[str, Any]]:
    found = []
    for contender in contenders(policies, rivals):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model, begin = contender.make(TASK), time.perf_counter()
            train(model, TASK, seed=seed, training=training, bptt_segments=contender.bptt_segments or TASK.span)
        about = {"seed": seed, "n_parameters": count(model), "train_s": time.perf_counter() - begin}
        errors = binned(y, said(model, y, segment_len=SEGMENT_LEN))
        found.append({"model": contender.name, "errors": errors.tolist(), **about})
        if contender.name.startswith("TXL"):
            x = torch.from_numpy(np.ascontiguousarray(y.reshape(-1, 1, 1), np.float32))
            with torch.inference_mode():
                alone = model.forward_rows(x, model.init_rows(len(x)))[0].numpy().reshape(y.shape)
            zeroed = {"model": f"{contender.name}, memory zeroed", "errors": binned(y, alone).tolist()}
            found.append(zeroed | about)
    return found


def _order_of_least_squares(rng: np.random.Generator) -> int:
    y = Oscillators.drawn(rng, 200).readings(rng, N_ROWS)
    errors = {}
    for order in ORDERS:
        errors[order] = float(((y[:, 1:] - least_squares(y, order=order)[:, :-1]) ** 2).mean())
    return min(errors, key=lambda order: errors[order])


def _row(model: str, errors: Floats, best: Floats) -> dict[str, Any]:
    return {"model": model} | {f"rows_{a}": float(e) for (a, _), e in zip(BINS, errors / best, strict=True)}


def _verdicts(rows: Sequence[dict[str, Any]]) -> list[str]:
    notes = []
    squares = next(row for row in rows if row["model"].startswith("recursive"))
    for row in rows:
        if not row["model"].startswith("TXL") or "zeroed" in row["model"]:
            continue
        ahead = [f"{a}–{b}" for a, b in BINS if row[f"rows_{a}"] < squares[f"rows_{a}"]]
        notes.append(
            f"{row['model']}: error {row['rows_1']:.2f} times the best possible after one row, {row['rows_64']:.2f} "
            f"after 64 to 127; below recursive least squares at {', '.join(ahead) or 'no number of'} rows."
        )
    return notes
