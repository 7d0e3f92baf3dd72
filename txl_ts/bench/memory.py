"""Can a memory do what it is for? Synthetic tasks at known distances, every policy beside rivals of equal weights.

One loop trains all models alike: segments of an episode, the state carried from one to the next, AdamW with a warm-up
and a cosine. The gradient of ours stops at the segment, as in Transformer-XL, unless a policy asks for more; that of
the others runs through as many segments as suits them.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from os import PathLike
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from txl_ts.bench import report
from txl_ts.bench.kept import KeptFits
from txl_ts.bench.memory_contenders import (
    POLICIES,
    REACH,
    RIVALS,
    SEGMENT_LEN,
    SIZES,
    Contender,
    Policy,
    contenders,
)
from txl_ts.bench.memory_rivals import Forgetful, Recurrent, RowModel, TorchState, count
from txl_ts.bench.memory_tasks import Episodes, MemoryTask, Part, memory_tasks
from txl_ts.errors import ParameterError
from txl_ts.label_model import LabelModel

COLUMNS = MappingProxyType(
    {
        "task": "task",
        "part": "judged at",
        "model": "model",
        "score": "score",
        "spread": "± (max − min)",
        "loss": "loss",
        "chance": "chance",
        "n_seeds": "seeds",
        "n_parameters": "parameters",
        "state_nbytes": "state, bytes",
        "train_s": "training, CPU s",
    }
)
_TEST_EPISODES = 128
_WARM_UP, _CLIP_NORM = 0.05, 1.0


@dataclass(frozen=True)
class Training:
    """How every model is trained.

    Parameters
    ----------
    n_updates : int
        An update comes after each segment, or after as many as the gradient runs through.
    n_lanes : int
    learning_rate : float
        Its peak, for attention and convolutions.
    recurrent_rate : float
        The same for GRU and LSTM, which learn nothing in so few updates at the other one.
    """

    n_updates: int = 1000
    n_lanes: int = 32
    learning_rate: float = 3e-3
    recurrent_rate: float = 1e-2


TRAINING = Training()


def run(
    data: str | PathLike[str] | None = None,
    *,
    seeds: Sequence[int] = (2, 3, 4, 5, 6),
    tasks: Sequence[str] = (),
    policies: Sequence[Policy] = POLICIES,
    rivals: Sequence[str] = RIVALS,
    training: Training = TRAINING,
    n_test: int = _TEST_EPISODES,
    n_jobs: int = 1,
    kept: str | PathLike[str] | None = None,
    from_kept: bool = False,
    variants: Sequence[Any] | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Train every model on every task, and judge it on fresh episodes.

    Parameters
    ----------
    data
        Not used: the tasks draw their own rows.
    seeds : sequence of int
        Each draws weights, episodes and the test of its own. Policies were sized on seeds 1, 101 and 102.
    tasks : sequence of str
        Names, of all by default.
    policies : sequence of Policy
    rivals : sequence of {"GRU", "LSTM", "TCN", "window Transformer"}
    training : Training
    n_test : int
        Episodes that judge.
    n_jobs : int
        Processes.
    kept : path, optional
        Folder of the fits that are finished: each is kept there at once, and found again by the next call.
    from_kept : bool
        Fit nothing: the table of what is there.
    variants
        Not used.
    command : str, optional
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`.

    Raises
    ------
    ParameterError
        If a task or rival is not known.
    """
    del data, variants
    names = [task.name for task in all_tasks()]
    if unknown := [name for name in tasks if name not in names]:
        raise ParameterError(f"tasks={unknown} are not known. Choose among {names}.")
    wanted = list(tasks) or names
    group = contenders(policies, rivals)
    # Every cell gets its first seed before any gets its second.
    cells = [(task, contender, seed) for seed in seeds for task in wanted for contender in group]
    what = [of_fit(*cell, training=training, n_test=n_test) for cell in cells]
    store = KeptFits(kept, "memory")
    found = {i: rows for i, of in enumerate(what) if (rows := store.find(of)) is not None}
    how: dict[str, Any] = {"policies": policies, "training": training, "n_test": n_test}
    jobs = {
        i: partial(fit_and_judge, task, contender.name, seed, **how)
        for i, (task, contender, seed) in enumerate(cells)
        if not from_kept and i not in found
    }
    for i, rows in _done(jobs, n_jobs):
        found[i] = store.keep(what[i], rows)
    runs = [row for i in sorted(found, key=lambda i: group.index(cells[i][1])) for row in found[i]]
    table = _summaries(runs, wanted)
    return {
        "name": "memory",
        "title": "Synthetic tasks at known distances",
        "command": command or "txl-ts bench memory",
        "protocol": [
            f"{SIZES['n_layers']} layers of width {SIZES['d_model']}; a FIFO memory of {SIZES['mem_len']} rows per "
            f"layer reaches {REACH} rows back. All policies keep as many bytes of state (a shorter window, and slots), "
            "to the size of a slot and two counters; the weights of their own come on top. Rivals have the weights of "
            f"fifo. {training.n_updates} updates, each from a "
            f"segment of {SEGMENT_LEN} rows × {training.n_lanes} lanes of fresh episodes, the state carried along. The "
            f"gradient of TXL stops at the segment ({_longer(policies)}); that of GRU and LSTM runs through two, in "
            "adding and copying through the whole episode: they see as many times the rows. Their peak rate is "
            f"{training.recurrent_rate:g}, that of the others {training.learning_rate:g}. Recall is trained on "
            f"episodes of {8 * REACH} rows and judged up to {32 * REACH}; brackets are trained on {REACH} rows. "
            f"{n_test} fresh episodes per seed judge.",
            "Score: share of right answers; for numbers (adding, sine) 1 − squared error / variance. An oracle that "
            "knows the rows so far has 1 everywhere. Loss: cross "
            "entropy, or squared error in variances. Memory zeroed: the trained TXL with its memory emptied every "
            f"{SEGMENT_LEN} rows. The window Transformer has the same layers; judged, each row gets a window of "
            f"{SEGMENT_LEN} rows of its own.",
        ],
        "columns": dict(COLUMNS),
        "rows": table,
        "notes": _verdicts(table) + report.still_missing(len(cells) - len(found), of=len(cells)),
        "seeds": list(seeds),
        "policies": [{"name": p.name, "params": dict(p.params), "bptt_segments": p.bptt_segments} for p in policies],
        "environment": report.environment(),
    }


def all_tasks() -> tuple[MemoryTask, ...]:
    """Give the tasks at the sizes of this bench."""
    return memory_tasks(reach=REACH, segment_len=SEGMENT_LEN)


def of_fit(task: str, contender: Contender, seed: int, *, training: Training, n_test: int) -> dict[str, Any]:
    """Give all that determines a fit."""
    return {
        "task": task,
        "model": contender.name,
        "seed": seed,
        "params": dict(contender.params),
        "bptt_segments": contender.bptt_segments,
        "sizes": dict(SIZES),
        "segment_len": SEGMENT_LEN,
        "training": asdict(training),
        "n_test": n_test,
    }


def fit_and_judge(
    task_name: str, model_name: str, seed: int, *, policies: Sequence[Policy], training: Training, n_test: int
) -> list[dict[str, Any]]:
    """Train one model on one task; gives a row per part, and for ours those of its memory zeroed.

    Parameters
    ----------
    task_name, model_name : str
    seed : int
    policies : sequence of Policy
    training : Training
    n_test : int
    """
    task = next(task for task in all_tasks() if task.name == task_name)
    contender = next(c for c in contenders(policies) if c.name == model_name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = contender.make(task)
        begin = time.process_time()
        last = train(model, task, seed=seed, training=training, bptt_segments=contender.bptt_segments or task.span)
        train_s = time.process_time() - begin
    judged = [(contender.name, model)]
    if isinstance(model, LabelModel):
        judged.append((f"{contender.name}, memory zeroed", Forgetful(model)))
    about = {"task": task.name, "seed": seed, "n_parameters": count(model), "train_loss": last, "train_s": train_s}
    rows = []
    for name, one in judged:
        for part, score, loss in scores(one, task, seed=seed, n_test=n_test):
            row = {"part": part.name, "model": name, "score": score, "loss": loss, "chance": task.chance(part)}
            rows.append(about | row | {"state_nbytes": state_nbytes(one)})
    return rows


def train(model: Any, task: MemoryTask, *, seed: int, training: Training, bptt_segments: int) -> float:
    """Train in place; gives the mean loss of the last tenth of the updates.

    Parameters
    ----------
    model : RowModel
    task : MemoryTask
    seed : int
        Draws the episodes.
    training : Training
    bptt_segments : int
        Segments that the gradient runs through.
    """
    losses = descend(
        model,
        _losses(model, task, np.random.default_rng([seed, 0]), training.n_lanes, bptt_segments),
        n_updates=training.n_updates,
        peak=training.recurrent_rate if isinstance(model, Recurrent) else training.learning_rate,
    )
    return float(np.mean(losses[-max(len(losses) // 10, 1) :]))


def descend(model: Any, losses: Iterable[Tensor], *, n_updates: int, peak: float) -> list[float]:
    """Train in place on the first losses, with a warm-up and a cosine; gives them.

    Parameters
    ----------
    model : RowModel
    losses : iterable of Tensor
        Each with its graph, of the model as the one before it left it.
    n_updates : int
    peak : float
        Learning rate.
    """

    def rate(n: int) -> float:
        part = n / n_updates
        return peak * min(1.0, part / _WARM_UP) * (1 + math.cos(math.pi * part)) / 2

    found = list(itertools.islice(updates(model, losses, rate=rate), n_updates))
    model.eval()
    return found


def updates(model: Any, losses: Iterable[Tensor], *, rate: Callable[[int], float]) -> Iterator[float]:
    """Train in place on each loss; gives it as a number after its update.

    Parameters
    ----------
    model : RowModel
    losses : iterable of Tensor
        As in :func:`descend`.
    rate : callable
        Number of the update, from 1 on → learning rate.
    """
    optimiser = torch.optim.AdamW(model.parameters(), rate(1), weight_decay=1e-2, fused=True)
    model.train()
    for n, loss in enumerate(losses, start=1):
        for group in optimiser.param_groups:
            group["lr"] = rate(n)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP_NORM)
        optimiser.step()
        yield float(loss.detach())


def _losses(
    model: Any, task: MemoryTask, rng: np.random.Generator, n_lanes: int, bptt_segments: int
) -> Iterator[Tensor]:
    """Walk episode after episode; gives the mean loss of so many segments at a time, where anything counts in them."""
    draw = task.practice or task.draw
    while True:
        state = model.init_rows(n_lanes)
        # One call for the segments that share a gradient: how rows are cut into calls changes no answer.
        for x, target, counts in segments(draw(rng, n_lanes, task.n_rows), len_=SEGMENT_LEN * bptt_segments):
            z, state = model.forward_rows(x, state)
            loss, n = loss_sum(z, target, counts)
            state = {name: tensor.detach() for name, tensor in state.items()}
            if int(n):
                yield loss / n


def segments(episodes: Episodes, *, len_: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Cut episodes into segments: rows (B, T, C), targets (B, T) or (B, T, 1), and which of them count (B, T)."""
    x, target, counts = (
        torch.from_numpy(np.ascontiguousarray(a)) for a in (episodes.x, episodes.target, episodes.counts)
    )
    for a in range(0, x.shape[1], len_):
        yield x[:, a : a + len_], target[:, a : a + len_], counts[:, a : a + len_]


def loss_sum(z: Tensor, target: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Sum cross entropies or squared errors over the rows that count; gives the sum and their number."""
    error = row_losses(z, target)
    return torch.where(counts, error, torch.zeros_like(error)).sum(), counts.sum()


def row_losses(z: Tensor, target: Tensor) -> Tensor:
    """Give the loss at each row, (B, T)."""
    if target.ndim == 2:
        return F.cross_entropy(z.flatten(0, 1), target.flatten(), reduction="none").unflatten(0, target.shape)
    return (z - target).square()[..., 0]


def scores(model: RowModel, task: MemoryTask, *, seed: int, n_test: int) -> list[tuple[Part, float, float]]:
    """Judge on fresh episodes; gives each part with its score and its loss.

    Parameters
    ----------
    model : RowModel
    task : MemoryTask
    seed : int
    n_test : int
    """
    rng = np.random.default_rng([seed, 1])
    found = []
    for n_rows in dict.fromkeys(part.n_rows for part in task.parts):
        parts = [part for part in task.parts if part.n_rows == n_rows]
        episodes = task.draw(rng, n_test, n_rows)
        right, loss = _walked(model, episodes, task)
        for part in parts:
            rows = part.rows(episodes)
            at = float(loss[rows].mean())
            found.append((part, float(right[rows].mean()) if task.n_classes else 1 - at, at))
    return found


def _walked(model: RowModel, episodes: Episodes, task: MemoryTask) -> tuple[Any, Any]:
    state: TorchState = model.init_rows(len(episodes.x))
    right, loss = [], []
    with torch.inference_mode():
        for x, target, _ in segments(episodes, len_=SEGMENT_LEN):
            z, state = model.forward_rows(x, state)
            loss.append(row_losses(z, target))
            right.append(z.argmax(dim=-1) == target if task.n_classes else torch.zeros(target.shape[:2]))
    return torch.cat(right, dim=1).numpy(), torch.cat(loss, dim=1).numpy()


def state_nbytes(model: Any) -> int:
    """Bytes that one lane keeps between two rows: of ours, as it is exported."""
    inner = model.model if isinstance(model, Forgetful) else model
    if isinstance(inner, LabelModel):
        return inner.state_nbytes()
    return sum(t.numel() * t.element_size() for t in inner.init_rows(1).values())


def _done(jobs: Mapping[int, Callable[[], Any]], n_jobs: int) -> Iterator[tuple[int, Any]]:
    """Give results as they come."""
    if n_jobs <= 1:
        for i, job in jobs.items():
            with one_thread():
                done = job()
            yield i, done
        return
    # Spawned, not forked: torch's threads do not survive a fork.
    with ProcessPoolExecutor(n_jobs, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        running = {pool.submit(job): i for i, job in jobs.items()}
        yield from ((running[future], future.result()) for future in as_completed(running))


def _one_thread() -> None:
    torch.set_num_threads(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: operations this small only wait for each other on more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _summaries(runs: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> list[dict[str, Any]]:
    """Means over seeds; ordered by task, part, then model."""
    groups: dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for one in sorted(runs, key=lambda one: tasks.index(one["task"])):
        groups.setdefault((one["task"], one["part"]), {}).setdefault(one["model"], []).append(one)
    table = []
    for models in groups.values():
        for fits in models.values():
            score = [fit["score"] for fit in fits]
            table.append(
                {
                    **{
                        key: fits[0][key] for key in ("task", "part", "model", "chance", "n_parameters", "state_nbytes")
                    },
                    **{key: float(np.mean([fit[key] for fit in fits])) for key in ("score", "loss", "train_s")},
                    **({"spread": max(score) - min(score)} if len(score) > 1 else {}),
                    "n_seeds": len(fits),
                }
            )
    return table


def _longer(policies: Sequence[Policy]) -> str:
    more = [f"{policy.name}: after {policy.bptt_segments}" for policy in policies if policy.bptt_segments > 1]
    return ", ".join(more) or "that of every policy"


def _verdicts(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say what was to be shown."""
    notes = []
    for model in dict.fromkeys(row["model"] for row in table if row["task"] == "recall at lag"):
        rows = [row for row in table if row["task"] == "recall at lag" and row["model"] == model]
        held = [row["part"] for row in rows if row["score"] >= 0.98]
        notes.append(f"{model}: recall of at least .98 at {', '.join(held) if held else 'no lag'}.")
    if rows := [row for row in table if row["task"] == "selective recall"]:
        kept = [row["model"] for row in rows if row["score"] >= 0.98]
        notes.append(f"One cue kept through 99 distractors (.98): {', '.join(kept) if kept else 'by none'}.")
    return notes
