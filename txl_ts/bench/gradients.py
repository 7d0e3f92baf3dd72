"""What gradients through segments are worth: k = 1, 2, 4, 8 segments, and shares of what passes between them.

Every fit sees as many rows in as many updates: a step of more segments has fewer lanes. So what differs is how far back
its gradients go, and how alike the rows of a step are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from txl_ts.bench import report
from txl_ts.bench.kept import KeptFits
from txl_ts.bench.live_bytes import peak_bytes
from txl_ts.bench.memory import all_tasks, loss_sum, scores, segments
from txl_ts.bench.memory_contenders import REACH, SIZES, txl
from txl_ts.bench.memory_tasks import MemoryTask
from txl_ts.errors import ParameterError
from txl_ts.label_model import LabelModel
from txl_ts.model import TorchState
from txl_ts.plots import BLUE, INK, ORANGE
from txl_ts.training import LabelSettings
from txl_ts.training.epochs import descend, optimiser_of
from txl_ts.training.unroll import in_steps, unrolled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEGMENT_LEN = 8
# Lanes × segments of a step, whatever k is.
_PARTS = 32
_TASK = "recall at lag"
# Hops that gradient norms are looked at over.
_HOPS = 7
COLUMNS = MappingProxyType(
    {
        "memory": "memory",
        "bptt_segments": "k",
        "memory_gradient": "share",
        "score_half": "recall, ½ reach",
        "score_reach": "recall, 1 reach",
        "score_twice": "recall, 2 reaches",
        "spread": "± (max − min, 1 reach)",
        "loss": "loss",
        "norm_1": "norm, 1 hop",
        "norm_4": "4 hops",
        "norm_7": "7 hops",
        "us_per_row": "CPU µs per row",
        "us_checkpointed": "checkpointed",
        "kib": "peak, KiB",
        "kib_checkpointed": "peak, checkpointed",
        "n_seeds": "seeds",
    }
)


@dataclass(frozen=True)
class Policy:
    """A memory that is trained.

    Parameters
    ----------
    name : str
    params : dict
        Fields of :class:`~txl_ts.label_model.LabelConfig`.
    """

    name: str
    params: dict[str, Any] = field(default_factory=dict)


# A block of tokens is as long as a segment: with k = 1 no gradient reaches what they write.
POLICIES = (
    Policy("fifo"),
    Policy("tokens", {"memory": "tokens", "memory_params": {"n_slots": 4, "block": SEGMENT_LEN}}),
)
# Segments and share: how far back, then how much of it.
VARIANTS = ((1, 1.0), (2, 1.0), (4, 1.0), (8, 1.0), (4, 0.5), (4, 0.0))


def run(
    data: str | PathLike[str] | None = None,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    memories: Sequence[str] = ("fifo", "tokens"),
    variants: Sequence[tuple[int, float]] | None = None,
    n_updates: int = 1000,
    n_test: int = 64,
    kept: str | PathLike[str] | None = None,
    from_kept: bool = False,
    command: str | None = None,
) -> dict[str, Any]:
    """Train every variant, judge it on fresh episodes, and measure what a step costs.

    Parameters
    ----------
    data
        Not used: the task draws its own rows.
    seeds : sequence of int
        Each draws weights, episodes and the test of its own.
    memories : sequence of str
        Names of ``POLICIES``.
    variants : sequence of (int, float), optional
        ``bptt_segments`` and ``memory_gradient``.
    n_updates, n_test : int
        Steps of each fit; episodes that judge it.
    kept : path, optional
        Folder of the fits that are finished: each is kept there at once, and found again by the next call.
    from_kept : bool
        Fit nothing: the table of the fits that are there.
    command : str, optional
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`, with every single fit under ``runs``.

    Raises
    ------
    ParameterError
        If a memory is not known.
    """
    del data
    wanted = VARIANTS if variants is None else variants
    if unknown := sorted(set(memories) - {policy.name for policy in POLICIES}):
        raise ParameterError(f"memories={unknown} are not known. Choose among {[policy.name for policy in POLICIES]}.")
    policies = [policy for policy in POLICIES if policy.name in memories]
    store = KeptFits(kept, "gradients")
    groups: dict[tuple[str, int, float], list[dict[str, Any]]] = {}
    for seed in seeds:  # all of one seed first: what is there when a run is stopped compares
        for policy in policies:
            for k, share in wanted:
                how: dict[str, Any] = {"bptt_segments": k, "memory_gradient": share, "n_updates": n_updates}
                how |= {"seed": seed, "n_test": n_test}
                of: dict[str, Any] = {
                    "task": _TASK,
                    "memory": policy.name,
                    "params": policy.params,
                    "sizes": dict(SIZES),
                }
                of |= {"segment_len": SEGMENT_LEN, "parts": _PARTS, **how}
                found = store.find(of)
                if found is None and not from_kept:
                    found = store.keep(of, fit(policy, **how))
                if found is not None:
                    groups.setdefault((policy.name, k, share), []).append({"memory": policy.name, **how, **found})
    costs = {
        (policy.name, k): cost(policy, k)
        for policy in policies
        for k in sorted({k for m, k, _ in groups if m == policy.name})
    }
    rows = [_mean(runs) | costs[memory, k] for (memory, k, _), runs in groups.items()]
    fits, n_wanted = [fit for runs in groups.values() for fit in runs], len(seeds) * len(policies) * len(wanted)
    return {
        "name": "gradients",
        "title": "Gradients through segments",
        "command": command or "txl-ts bench gradients",
        "protocol": [
            f"Recall of a symbol that was shown so many rows ago ({SIZES['n_layers']} layers of width "
            f"{SIZES['d_model']}, a window of {SIZES['mem_len']} rows each: a reach of {REACH} rows). A segment has "
            f"{SEGMENT_LEN} rows, a step k of them × {_PARTS} / k lanes: every fit sees as many rows in as many "
            f"updates ({n_updates}), and differs in how far back its gradients go. Chance is 0.25; loss is the cross "
            "entropy of the last tenth of the training.",
            f"Norms: gradient of the loss of one segment after {_HOPS} others, at the hop 1, 4 and 7 segments back, of "
            "the trained model, with nothing held back. Costs: one step of 32 lanes, forwards and backwards, median of "
            "ten by turns; the peak counts every tensor that is alive at once, beside weights.",
        ],
        "columns": dict(COLUMNS),
        "rows": rows,
        "runs": fits,
        "notes": _notes(rows) + report.still_missing(n_wanted - len(fits), of=n_wanted),
        "seeds": list(seeds),
        "environment": report.environment(),
    }


def picture(table: Mapping[str, Any]) -> Figure:
    """Draw recall by the number of segments, and the norm of gradients by the hops that they pass (extra ``plot``)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for memory, colour in zip(dict.fromkeys(fit["memory"] for fit in table["runs"]), (BLUE, ORANGE, INK), strict=False):
        fits = [fit for fit in table["runs"] if fit["memory"] == memory and fit["memory_gradient"] == 1]
        points = [(fit["bptt_segments"], fit["score_half"]) for fit in fits]
        left.plot(*zip(*points, strict=True), "o", color=colour, label=memory)
        for k, style in zip((1, 2, 4, 8), (":", "-.", "--", "-"), strict=True):
            norms = [fit["norms"] for fit in fits if fit["bptt_segments"] == k]
            if norms:
                hops = range(1, _HOPS + 1)
                mean = np.mean(norms, axis=0)
                right.plot(hops, np.where(mean > 0, mean, np.nan), style, color=colour, label=f"{memory}, k = {k}")
    left.axhline(0.25, color=INK, linewidth=0.8, linestyle=":")
    left.set(xlabel="segments that gradients run through", ylabel=f"recall, {REACH // 2} rows back", xscale="log")
    left.minorticks_off()
    left.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    right.set(xlabel="hops back", ylabel="norm of the gradient", yscale="log")
    left.legend(frameon=False)
    right.legend(frameon=False, fontsize="small")
    return figure


def fit(
    policy: Policy, *, seed: int, bptt_segments: int, memory_gradient: float, n_updates: int, n_test: int
) -> dict[str, Any]:
    """Train one model; gives its scores, the loss, and the norms of gradients by hops."""
    task, k = _task(), bptt_segments
    settings = _settings(k, n_updates, memory_gradient=memory_gradient if k > 1 else 1.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = txl(task, params=policy.params).train()
        begin = time.process_time()
        loss = _train(model, task, settings, np.random.default_rng([seed, 0]), n_updates=n_updates)
        train_s = time.process_time() - begin
        norms = norms_by_hop(model, task, np.random.default_rng([seed, 2]))
        judged = {part.name: score for part, score, _ in scores(model.eval(), task, seed=seed, n_test=n_test)}
    names = {"score_half": "0.5 × reach", "score_reach": "1 × reach", "score_twice": "2 × reach"}
    found = {key: judged[name] for key, name in names.items()}
    return found | {"loss": loss, "norms": norms, "train_s": train_s}


def _train(
    model: LabelModel, task: MemoryTask, settings: LabelSettings, rng: np.random.Generator, *, n_updates: int
) -> float:
    """Train in place; gives the mean loss of the last tenth."""
    optimiser, hops = optimiser_of(model, "row_path", settings), settings.hops(model.config)
    losses: list[float] = []
    n_lanes = _PARTS // settings.bptt_segments
    while True:
        state = model.init_rows(n_lanes)
        for some in in_steps(_episode(task, rng, n_lanes), n=settings.bptt_segments):
            loss, weight, state = unrolled(some, state, _forward_of(model), hops)
            if not float(weight):
                continue
            part = (len(losses) + 1) / n_updates
            descend(model, optimiser, loss / weight, settings, part=part, epoch=0, where="X")
            losses.append(float(loss.detach() / weight))
            if len(losses) == n_updates:
                return float(np.mean(losses[-max(n_updates // 10, 1) :]))


def norms_by_hop(model: LabelModel, task: MemoryTask, rng: np.random.Generator, *, n_lanes: int = 32) -> list[float]:
    """Give the gradient norm of one segment's mean loss, 1 … 7 hops back; the episode is well under way."""
    parts = list(_episode(task, rng, n_lanes))
    first = len(parts) // 2
    state = model.init_rows(n_lanes)
    with torch.no_grad():
        for part in parts[:first]:
            state = model.forward_rows(part[0], state)[1]
    hops, forward = _settings(_HOPS + 1, 1).hops(model.config), _forward_of(model)

    def of_the_last(part: tuple[Tensor, Tensor, Tensor], state: TorchState) -> tuple[Tensor, Tensor, TorchState]:
        loss, weight, state = forward(part, state)
        return (loss, weight, state) if part is parts[first + _HOPS] else (0 * loss, 0 * weight, state)

    loss, weight, _ = unrolled(parts[first : first + _HOPS + 1], state, of_the_last, hops)
    torch.autograd.grad(loss / weight, list(model.parameters()), allow_unused=True)
    return hops.means()[::-1]


def cost(policy: Policy, k: int, *, n_lanes: int = 32, n_times: int = 10) -> dict[str, float]:
    """Measure one step of k segments: CPU time per row and the most bytes alive, kept and checkpointed."""
    task = _task()
    model = txl(task, params=policy.params).train()
    hops, forward = _settings(k, 1).hops(model.config), _forward_of(model)
    parts = list(_episode(task, np.random.default_rng(0), n_lanes))[:k]

    def step(*, checkpoint_activations: bool = False) -> None:
        loss, weight, _ = unrolled(
            parts, model.init_rows(n_lanes), forward, hops, checkpoint_activations=checkpoint_activations
        )
        (loss / weight).backward()

    kept, checkpointed = peak_bytes(step), peak_bytes(lambda: step(checkpoint_activations=True))
    took: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(n_times):
        for is_checkpointed, times in took.items():
            begin = time.process_time()
            step(checkpoint_activations=is_checkpointed)
            times.append(time.process_time() - begin)
    kept_us, checkpointed_us = (float(np.median(t)) * 1e6 / (k * n_lanes * SEGMENT_LEN) for t in took.values())
    return {
        "us_per_row": kept_us,
        "us_checkpointed": checkpointed_us,
        "kib": kept / 1024,
        "kib_checkpointed": checkpointed / 1024,
    }


def _task() -> MemoryTask:
    task = next(task for task in all_tasks() if task.name == _TASK)
    nearest = {"0.5 × reach", "1 × reach", "2 × reach"}
    parts = tuple(replace(part, n_rows=3 * REACH) for part in task.parts if part.name in nearest)
    return replace(task, parts=parts)


def _episode(task: MemoryTask, rng: np.random.Generator, n_lanes: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    draw = task.practice or task.draw
    return segments(draw(rng, n_lanes, task.n_rows), len_=SEGMENT_LEN)


def _forward_of(model: LabelModel) -> Any:
    def forward(part: tuple[Tensor, Tensor, Tensor], state: TorchState) -> tuple[Tensor, Tensor, TorchState]:
        x, target, counts = part
        z, state = model.forward_rows(x, state)
        return *loss_sum(z, target, counts), state

    return forward


def _settings(k: int, n_updates: int, *, memory_gradient: float = 1.0) -> LabelSettings:
    return LabelSettings(
        learning_rate=3e-3,
        max_epochs=n_updates,
        segment_len=SEGMENT_LEN,
        bptt_segments=k,
        memory_gradient=memory_gradient,
        warm_up=0.05,
    )


def _mean(fits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over seeds."""
    norms = np.mean([fit["norms"] for fit in fits], axis=0)
    reach = [fit["score_reach"] for fit in fits]
    return {
        **{key: fits[0][key] for key in ("memory", "bptt_segments", "memory_gradient")},
        **{key: float(np.mean([fit[key] for fit in fits])) for key in COLUMNS if key in fits[0] and key[:5] == "score"},
        "loss": float(np.mean([fit["loss"] for fit in fits])),
        **({"spread": max(reach) - min(reach)} if len(reach) > 1 else {}),
        **{f"norm_{hop}": float(norms[hop - 1]) for hop in (1, 4, 7)},
        "n_seeds": len(fits),
    }


def _notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say for each memory what more segments changed."""
    notes = []
    for memory in dict.fromkeys(row["memory"] for row in rows):
        own = {(row["bptt_segments"], row["memory_gradient"]): row for row in rows if row["memory"] == memory}
        told = [f"{own[k, 1.0]['score_reach']:.3f} with k = {k}" for k in (1, 2, 4, 8) if (k, 1.0) in own]
        notes.append(f"{memory}: recall at the reach {', '.join(told)}.")
    return notes
