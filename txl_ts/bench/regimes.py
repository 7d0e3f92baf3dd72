"""What is forgotten when regimes come one after the other, with and without memory and replay.

Ten regimes in a row: noisy oscillations of ten periods, each learned for a while and never shown again. The next value
of an oscillation depends on the two before it, so that a single row does not tell the regime, and a memory could.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txl_ts.bench import report
from txl_ts.bench.memory import descend
from txl_ts.bench.memory_contenders import SEGMENT_LEN, row_model
from txl_ts.bench.memory_rivals import Forgetful, Recurrent, RowModel, count, of_equal_weights
from txl_ts.metrics import mean_forgetting
from txl_ts.training.replay import slot_of

Floats = NDArray[np.float32]

PERIODS = (2.5, 3, 3.5, 4, 5, 6, 7.5, 9, 11, 13)  # in rows
DAMPING = 0.97
N_ROWS = 4 * SEGMENT_LEN
MODELS = ("TXL", "TXL, memory emptied at each segment", "GRU")
COLUMNS = MappingProxyType(
    {
        "model": "model",
        "replay": "replay",
        "forgetting": "mean forgetting",
        "spread": "± (max − min)",
        "ratio": "of TXL without replay",
        "learned": "error, just learned",
        "last": "error on all, at the end",
        "n_seeds": "seeds",
        "n_parameters": "parameters",
        "train_s": "training, s",
    }
)
_N_TEST = 32


@dataclass(frozen=True)
class Course:
    """How long each regime is learned.

    Parameters
    ----------
    n_updates : int
        Per regime; an update comes after each segment.
    n_lanes : int
        Fresh episodes side by side; with replay as many kept ones beside them.
    replay_size : int
        Episodes that are kept of all so far.
    learning_rate, recurrent_rate : float
        Peaks, as in :mod:`txl_ts.bench.memory`; each regime has its own warm-up and cosine.
    """

    n_updates: int = 60
    n_lanes: int = 8
    replay_size: int = 64
    learning_rate: float = 3e-3
    recurrent_rate: float = 1e-2


COURSE = Course()


def oscillations(rng: np.random.Generator, n: int, n_rows: int, *, period: float) -> Floats:
    """Draw (n, n_rows) of y[t] = 2 ρ cos(2π / period) y[t−1] − ρ² y[t−2] + noise, of variance 1 in the long run."""
    first, second = 2 * DAMPING * math.cos(2 * math.pi / period), -(DAMPING**2)
    deviation = noise_deviation(period)
    y = np.zeros((n, 200 + n_rows))
    noise = deviation * rng.normal(size=y.shape)
    for row in range(2, y.shape[1]):
        y[:, row] = first * y[:, row - 1] + second * y[:, row - 2] + noise[:, row]
    return y[:, 200:].astype(np.float32)


def noise_deviation(period: float) -> float:
    """Deviation of the noise that keeps an oscillation at variance 1: that of an AR(2) process, in closed form."""
    a, b = 2 * DAMPING * math.cos(2 * math.pi / period), -(DAMPING**2)
    return math.sqrt((1 + b) * ((1 - b) ** 2 - a**2) / (1 - b))


def run(
    data: str | PathLike[str] | None = None,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    models: Sequence[str] = MODELS,
    periods: Sequence[float] = PERIODS,
    course: Course = COURSE,
    variants: Sequence[Any] | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Train every model through all regimes, with and without replay.

    Parameters
    ----------
    data
        Not used: the regimes are drawn.
    seeds : sequence of int
        Each draws weights, rows and the order of the regimes.
    models : sequence of str
    periods : sequence of float
        Of the regimes, in rows.
    course : Course
    variants
        Not used.
    command : str, optional
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`, with the errors on each regime after each other under ``runs``.
    """
    del data, variants
    runs = [
        learn(name, seed, replay=replay, periods=periods, course=course)
        for seed in seeds
        for name in models
        for replay in (False, True)
    ]
    table = _summaries(runs)
    return {
        "name": "regimes",
        "title": f"{len(periods)} regimes in a row: what is forgotten",
        "command": command or "txl-ts bench regimes",
        "protocol": [
            f"Regimes are noisy oscillations (AR(2), damping {DAMPING:g}) of {', '.join(f'{p:g}' for p in periods)} "
            "rows a period, in an order that the seed draws; the task is the next value. "
            f"Each is learned for {course.n_updates} updates of {SEGMENT_LEN} rows × {course.n_lanes} lanes (episodes "
            f"of {N_ROWS} rows), and never again. Replay keeps {course.replay_size} episodes of all so far (reservoir "
            f"sampling), and each update has {course.n_lanes} of them beside the new ones: twice the rows. All "
            "gradients stop at the segment. Sizes are small: the table was made on two cores shared with others.",
            "Error: squared error of the next value over the variance of the noise, on fresh episodes of each regime "
            "after each other one: 1 is the best that can be. Forgetting: error at the end minus the least error "
            "before, mean over all regimes but the last (Chaudhry et al. 2018, with errors). The model without memory "
            f"has the same weights and attends within its segment of {SEGMENT_LEN} rows, in training and judged.",
        ],
        "columns": dict(COLUMNS),
        "rows": table,
        "runs": runs,
        "notes": _verdicts(table),
        "seeds": list(seeds),
        "environment": report.environment(),
    }


def make(name: str) -> Any:
    """Make an untrained model: ours, or a GRU of equal weights."""
    ours = row_model()
    if name == "GRU":
        return of_equal_weights(lambda width: Recurrent("gru", n_channels=1, n_outputs=1, width=width), count(ours))
    return ours if name == "TXL" else Forgetful(ours)


def learn(name: str, seed: int, *, replay: bool, periods: Sequence[float], course: Course) -> dict[str, Any]:
    """Train one model through all regimes; gives its errors on each after each.

    Parameters
    ----------
    name : str
    seed : int
    replay : bool
    periods : sequence of float
    course : Course
    """
    order = np.random.default_rng([seed, 0]).permutation(len(periods))
    kept: dict[int, Floats] = {}
    errors, n_seen = np.full((len(periods), len(periods)), np.nan), 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, begin = make(name), time.perf_counter()
        peak = course.recurrent_rate if isinstance(model, Recurrent) else course.learning_rate
        for after, regime in enumerate(order):
            rng = np.random.default_rng([seed, 1, after])
            period = periods[regime]
            draw = partial(oscillations, rng, course.n_lanes, N_ROWS + 1, period=period)
            losses = _losses(model, _episodes(draw, kept if replay else {}, course, rng))
            descend(model, losses, n_updates=course.n_updates, peak=peak)
            if replay:
                for episode in oscillations(rng, course.replay_size, N_ROWS + 1, period=period):
                    if (slot := slot_of(n_seen, size=course.replay_size, seed=seed)) is not None:
                        kept[slot] = episode
                    n_seen += 1
            for on in range(after + 1):
                errors[after, on] = _error_on(model, periods[order[on]], np.random.default_rng([seed, 2, on]))
        seconds = time.perf_counter() - begin
    about = {"model": name, "replay": "yes" if replay else "no", "seed": seed, "n_parameters": count(model)}
    found = {"forgetting": mean_forgetting(errors=errors), "learned": float(errors.diagonal().mean())}
    return about | found | {"last": float(errors[-1].mean()), "train_s": seconds, "errors": errors.tolist()}


def _losses(model: Any, episodes: Iterator[Floats]) -> Iterator[Tensor]:
    """Walk episode after episode; gives the mean loss of each segment, where gradients stop."""
    for episode in episodes:
        rows = torch.from_numpy(episode)[..., None]
        state = model.init_rows(len(rows))
        for a in range(0, N_ROWS, SEGMENT_LEN):
            z, state = model.forward_rows(rows[:, a : a + SEGMENT_LEN], state)
            state = {part: tensor.detach() for part, tensor in state.items()}
            yield (z - rows[:, a + 1 : a + SEGMENT_LEN + 1]).square().mean()


def _episodes(
    draw: Callable[[], Floats], kept: Mapping[int, Floats], course: Course, rng: np.random.Generator
) -> Iterator[Floats]:
    """Give fresh episodes, and some of the kept ones below them."""
    while True:
        fresh = draw()
        if not kept:
            yield fresh
            continue
        picked = rng.choice(len(kept), min(course.n_lanes, len(kept)), replace=False)
        yield np.concatenate([fresh, np.stack([kept[i] for i in picked])])


def _error_on(model: RowModel, period: float, rng: np.random.Generator) -> float:
    """Mean squared error over the second half of fresh episodes, in variances of the noise."""
    rows = torch.from_numpy(oscillations(rng, _N_TEST, N_ROWS + 1, period=period))[..., None]
    state, square = model.init_rows(_N_TEST), []
    with torch.inference_mode():
        for a in range(0, N_ROWS, SEGMENT_LEN):
            z, state = model.forward_rows(rows[:, a : a + SEGMENT_LEN], state)
            square.append((z - rows[:, a + 1 : a + SEGMENT_LEN + 1]).square())
    return float(torch.cat(square[len(square) // 2 :], dim=1).mean()) / noise_deviation(period) ** 2


def _summaries(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for one in runs:
        groups.setdefault((one["model"], one["replay"]), []).append(one)
    means = {key: float(np.mean([fit["forgetting"] for fit in fits])) for key, fits in groups.items()}
    base = means.get(("TXL", "no"), math.nan)
    table = []
    for (model, replay), fits in groups.items():
        found = [fit["forgetting"] for fit in fits]
        row = {
            "model": model,
            "replay": replay,
            "forgetting": means[model, replay],
            "ratio": means[model, replay] / base,
        }
        row |= {key: float(np.mean([fit[key] for fit in fits])) for key in ("learned", "last", "train_s")}
        row |= {"spread": max(found) - min(found)} if len(found) > 1 else {}
        table.append(row | {"n_seeds": len(fits), "n_parameters": fits[0]["n_parameters"]})
    return table


def _verdicts(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say what was to be shown: the article that started the project claims 67 % less forgetting."""
    found = {(row["model"], row["replay"]): row["forgetting"] for row in table}
    notes = []
    for replay, words in (("no", "Without replay"), ("yes", "With replay")):
        if ("TXL", replay) not in found:
            continue
        ours = found["TXL", replay]
        beside = [
            f"{100 * (ours / other - 1):+.0f} % beside {model} ({other:.3f})"
            for (model, of), other in found.items()
            if of == replay and model != "TXL"
        ]
        notes.append(f"{words}, mean forgetting of TXL is {ours:.3f}: {', '.join(beside) or 'nothing beside it'}.")
    if {("TXL", "no"), ("TXL", "yes")} <= set(found):
        change = 100 * (found["TXL", "yes"] / found["TXL", "no"] - 1)
        notes.append(f"Replay changes the mean forgetting of TXL by {change:+.0f} % (the article's figure is −67 %).")
    return notes
