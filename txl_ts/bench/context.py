"""How far back do models of equal weights use a stream? The relative effective context length of the paper.

The stream repeats itself after known numbers of rows, with noise: a symbol is that of 4, 12 or 28 rows before, with a
chance of .3 each, else another. What a model gains from more rows must come from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from txl_ts.bench import report
from txl_ts.bench.kept import KeptFits
from txl_ts.bench.memory import TRAINING, Training, of_fit, one_thread, row_losses, train
from txl_ts.bench.memory_contenders import POLICIES, REACH, SEGMENT_LEN, Contender, Policy, contenders
from txl_ts.bench.memory_rivals import RowModel, count
from txl_ts.bench.memory_tasks import SYMBOLS, Episodes, MemoryTask, Part
from txl_ts.effective_context import effective_context_length

# Two inside the window of a segment; one beyond it, and inside the reach of two layers.
LAGS = (4, 12, 28)
KEPT = 0.9  # shared by the lags
CONTEXTS = tuple(range(0, 2 * REACH + 1, 4))
SHARES = (0.1, 0.5, 1.0)
RIVALS = ("GRU", "LSTM", "window Transformer")
COLUMNS = MappingProxyType(
    {
        "model": "model",
        "recl_0.1": "RECL, r = .1, rows",
        "recl_0.5": "r = .5",
        "recl_1.0": "r = 1",
        "loss_none": "loss, own row alone",
        "loss": "loss, longest context",
        "best": "best possible",
        "n_seeds": "seeds",
        "n_parameters": "parameters",
    }
)


def echoes(rng: np.random.Generator, n_episodes: int, n_rows: int) -> Episodes:
    """Draw symbols that come again after one of ``LAGS`` rows; the answer at a row is the next symbol."""
    longest, lane = max(LAGS), np.arange(n_episodes)
    symbol = rng.integers(SYMBOLS, size=(n_episodes, n_rows + 1))
    kept = rng.random((n_episodes, n_rows + 1)) < KEPT
    lag = rng.choice(LAGS, size=(n_episodes, n_rows + 1))
    for row in range(longest, n_rows + 1):
        symbol[:, row] = np.where(kept[:, row], symbol[lane, row - lag[:, row]], symbol[:, row])
    counts = np.broadcast_to(np.arange(n_rows) >= longest - 1, (n_episodes, n_rows))
    x = np.eye(SYMBOLS, dtype=np.float32)[symbol[:, :-1]]
    return Episodes(x, symbol[:, 1:], counts, np.where(counts, longest - 1, -1))


def best_losses(episodes: Episodes) -> Any:
    """Cross entropies at the last row of what knows how the stream is drawn, in nats: (B,)."""
    n_rows = episodes.x.shape[1]
    likely = (1 - KEPT) / SYMBOLS + KEPT * np.mean([episodes.x[:, n_rows - lag] for lag in LAGS], axis=0)
    return -np.log(likely[np.arange(len(likely)), episodes.target[:, -1]])


TASK = MemoryTask(
    "echo", echoes, SYMBOLS, SYMBOLS, 8 * SEGMENT_LEN, (Part("all", 8 * SEGMENT_LEN),), lambda _: 1 / SYMBOLS
)


def run(
    data: str | PathLike[str] | None = None,
    *,
    seeds: Sequence[int] = (1, 2, 3),
    policies: Sequence[Policy] = POLICIES[:1],
    rivals: Sequence[str] = RIVALS,
    training: Training = TRAINING,
    n_positions: int = 500,
    kept: str | PathLike[str] | None = None,
    from_kept: bool = False,
    variants: Sequence[Any] | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Train a group of models per seed, and measure their losses with the context cut.

    Parameters
    ----------
    data
        Not used: the stream is drawn.
    seeds : sequence of int
    policies : sequence of Policy
    rivals : sequence of str
        As in :mod:`txl_ts.bench.memory`.
    training : Training
    n_positions : int
        Rows whose next symbol is judged, each from an empty state of its own.
    kept : path, optional
        Folder of the groups that are finished: each is kept there at once, and found again by the next call.
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
    """
    del data, variants
    group = contenders(policies, rivals)
    store = KeptFits(kept, "context")
    runs: list[dict[str, Any]] = []
    for seed in seeds:
        # A length is relative to the group, so the group is what is kept.
        of = {"group": [of_fit(TASK.name, one, seed, training=training, n_test=n_positions) for one in group]}
        found = store.find(of)
        if found is None and not from_kept:
            with one_thread():
                runs_of_seed = fit_group(group, seed, training=training, n_positions=n_positions)
            found = store.keep(of, runs_of_seed)
        runs += found or []
    rows = [_mean(fits) for one in group if (fits := [run for run in runs if run["model"] == one.name])]
    return {
        "name": "context",
        "title": f"Effective context on a stream that repeats itself after {LAGS[0]}, {LAGS[1]} and {LAGS[2]} rows",
        "command": command or "txl-ts bench context",
        "protocol": [
            f"A symbol of {SYMBOLS} is that of {LAGS[0]}, {LAGS[1]} or {LAGS[2]} rows before, with a chance of "
            f"{KEPT / len(LAGS):g} each, else drawn anew. Models of equal weights, {training.n_updates} updates each, "
            f"trained as in the memory bench; the window Transformer sees {SEGMENT_LEN} rows. At {n_positions} rows "
            "per seed the next symbol is forecast from an empty state that began "
            f"0, 4, 8, … {CONTEXTS[-1]} rows before. "
            "The longest lag lies beyond the window of a segment and inside the reach of our two layers.",
            "RECL: relative effective context length of each model in this group, for the tenth of the rows that the "
            "group finds hardest with the shorter context, for half, and for all (appendix C of arXiv 1901.02860; "
            "steps of 4 rows, threshold 1 % of the perplexity). Losses are cross entropies in nats.",
        ],
        "columns": dict(COLUMNS),
        "rows": rows,
        "runs": runs,
        "notes": _ratios(rows) + report.still_missing(len(seeds) * len(group) - len(runs), of=len(seeds) * len(group)),
        "contexts": list(CONTEXTS),
        "seeds": list(seeds),
        "environment": report.environment(),
    }


def fit_group(group: Sequence[Contender], seed: int, *, training: Training, n_positions: int) -> list[dict[str, Any]]:
    """Train each model of a group, and measure how long its context is beside the others."""
    best = float(best_losses(judged_episodes(seed, n_positions)).mean())
    sizes, losses = [], []
    for contender in group:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = contender.make(TASK)
            train(model, TASK, seed=seed, training=training, bptt_segments=contender.bptt_segments or TASK.span)
        sizes.append(count(model))
        losses.append(cut_losses(model, seed=seed, n_positions=n_positions))
    lengths = {r: effective_context_length(np.stack(losses), CONTEXTS, r=r, is_nll=True) for r in SHARES}
    runs = []
    for i, contender in enumerate(group):
        curve = losses[i].mean(axis=1)
        about = {"model": contender.name, "seed": seed, "n_parameters": sizes[i], "best": best}
        about |= {"loss_none": float(curve[0]), "loss": float(curve[-1]), "curve": curve.tolist()}
        runs.append(about | {f"recl_{r}": float(lengths[r][i]) for r in SHARES})
    return runs


def judged_episodes(seed: int, n_positions: int) -> Episodes:
    """Episodes whose last row is judged."""
    return echoes(np.random.default_rng([seed, 1]), n_positions, CONTEXTS[-1] + max(LAGS))


def cut_losses(model: RowModel, *, seed: int, n_positions: int) -> Any:
    """Loss at the last row of some episodes, walked from ``CONTEXTS`` rows before it on: (contexts, positions)."""
    episodes = judged_episodes(seed, n_positions)
    x, target = torch.from_numpy(episodes.x), torch.from_numpy(episodes.target[:, -1:])
    losses = []
    with torch.inference_mode():
        for context in CONTEXTS:
            z, _ = model.forward_rows(x[:, x.shape[1] - 1 - context :], model.init_rows(n_positions))
            losses.append(row_losses(z[:, -1:], target)[:, 0].double().numpy())
    return np.stack(losses)


def _mean(fits: Sequence[dict[str, Any]]) -> dict[str, Any]:
    keys = ("loss_none", "loss", "best", *(f"recl_{r}" for r in SHARES))
    same = {key: fits[0][key] for key in ("model", "n_parameters")}
    return same | {key: float(np.mean([fit[key] for fit in fits])) for key in keys} | {"n_seeds": len(fits)}


def _ratios(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Say how much further than its rivals the first model uses its context; the paper has 1.8 and 5.5 times."""
    if not rows:
        return []
    own, notes = rows[0], []
    for row in rows[1:]:
        said = [
            f"{own[f'recl_{r}'] / row[f'recl_{r}']:.1f}" if row[f"recl_{r}"] else "beyond any ratio" for r in SHARES
        ]
        notes.append(f"{own['model']} / {row['model']}: {said[0]}, {said[1]} and {said[2]} at r = .1, .5 and 1.")
    return notes
