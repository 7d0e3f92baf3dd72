"""How far back does the memory help? Errors with the context cut, and where attention goes.

The context is cut by emptying the memory some rows before an origin and walking on from there: nothing of the earlier
rows is left in any layer. (Masking the attention of the last row would not do: the rows that it still sees have seen
further back themselves.)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txl_ts.attention import RelativeAttention
from txl_ts.embeddings import Beside
from txl_ts.errors import ParameterError, ShapeError
from txl_ts.frames import Covariates
from txl_ts.model import TorchState, TXLModel
from txl_ts.state import TensorSpec

Floats = NDArray[np.float64]

# Rows of all lanes in one call.
_ROWS_PER_CALL = 4096
_MOST_LANES = 64
# A context is enough where the mean loss is within this part of the best that any context gives.
TOLERANCE = 0.01


@dataclass(frozen=True)
class Run:
    """Consecutive rows of one series, and the rows of it that forecast.

    Attributes
    ----------
    values : float32 array of shape (n,) or (n, C)
    origins : int64 array of shape (k,)
        Increasing; rows, counted from the start of the run.
    unit : float, or float64 array of shape (C,)
        What errors are measured in.
    beside : callable, optional
        ``beside(first, stop)`` gives the columns beside the target of some rows.
    """

    values: NDArray[np.float32]
    origins: NDArray[np.int64]
    unit: float | Floats
    beside: Callable[[int, int], Covariates] | None = None


@dataclass(frozen=True)
class ContextLosses:
    """Losses of each origin, with the context cut and whole.

    Attributes
    ----------
    contexts : tuple of int
        Rows before an origin that were walked, increasing; 0 is the origin's own row alone.
    memory : dict of str to float64 array of shape (n_contexts, n_origins)
        ``"squared"`` (the median) and ``"pinball"`` (all quantiles), means over the steps ahead and the channels, in
        units of each; the memory was emptied, normaliser and look-back were kept.
    history : dict of str to float64 array of shape (n_contexts, n_origins)
        The same with all of the state emptied: nothing before those rows was ever seen.
    whole : dict of str to float64 array of shape (n_origins,)
        Nothing was cut.
    attention : float64 array of shape (n_layers, mem_len + 1), or None
        Share of the attention by age in visits, own row first, mean over heads and origins with a full memory. None
        without a memory of single rows.
    """

    contexts: tuple[int, ...]
    memory: dict[str, Floats]
    history: dict[str, Floats]
    whole: dict[str, Floats]
    attention: Floats | None


def context_losses(model: TXLModel, runs: Sequence[Run], *, contexts: Sequence[int]) -> ContextLosses:
    """Measure a model's forecasts with its context cut.

    Parameters
    ----------
    model : TXLModel
    runs : sequence of Run
        Each origin has the longest context before it, and a value among the ``h`` rows behind it.
    contexts : sequence of int
        Increasing.

    Returns
    -------
    ContextLosses
    """
    model.config.check_any_split("context_losses")
    model.eval()
    made = [_of_run(model, run, tuple(contexts)) for run in runs]
    attention = [part.attention for part in made if part.attention is not None]
    weight = [len(run.origins) for run in runs]

    def joined(name: str, loss: str) -> Floats:
        return np.concatenate([getattr(part, name)[loss] for part in made], axis=-1)

    return ContextLosses(
        contexts=tuple(contexts),
        **{
            name: {loss: joined(name, loss) for loss in ("squared", "pinball")}
            for name in ("memory", "history", "whole")
        },
        attention=np.average(attention, axis=0, weights=weight) if len(attention) == len(made) else None,
    )


def effective_context_length(
    losses: Floats, contexts: Sequence[int], *, r: float = 1.0, threshold: float = 0.01, is_nll: bool = False
) -> list[int]:
    """Relative effective context length of each model of a group.

    From the shortest context on, a step to the next one counts while it lowers the relative loss by ``threshold``. Only
    losses below the group's best at the shorter context count, so that every model has the same to improve on: noise
    that differs between two contexts looks like a gain. Compare it between models, on the same positions; for one model
    read its curve.

    Parameters
    ----------
    losses : float array of shape (n_models, n_contexts, n_positions)
    contexts : sequence of int
        Increasing; equal steps in the paper.
    r : float
        In (0, 1]: only this part of the positions counts, those where the group does worst with the shorter context.
    threshold : float
        Of the relative gain.
    is_nll : bool
        Losses are negative log-likelihoods: the gain is the reduction of the perplexity, as in the paper. Otherwise (a
        squared error, a pinball loss) it is the reduction of the loss.

    Returns
    -------
    list of int
        One of ``contexts`` per model.

    Raises
    ------
    ShapeError, ParameterError

    References
    ----------
    Dai et al. (2019), Transformer-XL (arXiv 1901.02860), appendix C.
    """
    losses = np.asarray(losses, np.float64)
    if losses.ndim != 3 or losses.shape[1] != len(contexts) or not losses.size:
        raise ShapeError(
            f"losses must have shape (n_models, {len(contexts)} contexts, n_positions), got {losses.shape}."
        )
    if not 0 < r <= 1:
        raise ParameterError(f"r={r!r} must lie in (0, 1]. r=1 counts all positions.")
    n_hard = max(round(r * losses.shape[2]), 1)
    found = []
    for own in losses:
        at = 0
        while at + 1 < len(contexts):
            best = losses[:, at].min(axis=0)
            hard = np.argsort(-best, kind="stable")[:n_hard]
            before, after = best[hard].mean(), np.minimum(best, own[at + 1])[hard].mean()
            gain = 1 - np.exp(after - before) if is_nll else (before - after) / before if before else 0.0
            if gain < threshold:
                break
            at += 1
        found.append(int(contexts[at]))
    return found


def enough(losses: Floats, contexts: Sequence[int], *, tolerance: float = TOLERANCE) -> int:
    """Give the shortest context from which on the mean loss stays within ``tolerance`` of that of the longest.

    Parameters
    ----------
    losses : float array of shape (n_contexts, n_positions)
    contexts : sequence of int
        Increasing.
    tolerance : float
    """
    mean = np.asarray(losses, np.float64).mean(axis=1)
    above = np.flatnonzero(mean > (1 + tolerance) * mean[-1])
    return int(contexts[int(above[-1]) + 1 if len(above) else 0])


def context_grid(*, reach: int, stride: int, more: Sequence[int] = (), longest: int) -> tuple[int, ...]:
    """Choose contexts in rows up to ``longest``: 0, 1, 2, 3, 4, 6, 8, 12, … visits up to the reach, and ``more``."""
    visits = {0, *(part << power for power in range(reach.bit_length()) for part in (1, 3))}
    grid = {n * stride for n in visits if n * stride < reach}
    return tuple(sorted(n for n in grid | {reach, *more} if n <= longest))


def _of_run(model: TXLModel, run: Run, contexts: tuple[int, ...]) -> ContextLosses:
    starts = {int(origin) - context for origin in run.origins for context in contexts}
    y, small, attention = _walked(model, run, starts)
    losses = {"whole": dict(_losses(model, run, y).items())}
    for name, kept in (("memory", small), ("history", {})):
        cut = [_losses(model, run, _cut(model, run, context, kept)) for context in contexts]
        losses[name] = {loss: np.stack([part[loss] for part in cut]) for loss in ("squared", "pinball")}
    return ContextLosses(contexts, losses["memory"], losses["history"], losses["whole"], attention)


def _walked(model: TXLModel, run: Run, starts: set[int]) -> tuple[Floats, dict[int, TorchState], Floats | None]:
    """Walk a run once; gives the forecasts (k, h, C, Q), what is not memory before each start, and the attention."""
    names = {spec.name for spec in _not_memory(model)}
    origins = set(run.origins.tolist())
    # The row of an origin is a call of its own: its attention is read there.
    edges = sorted(starts | origins | {origin + 1 for origin in origins} | {0})
    state, y, small = model.init_state(1), [], {}
    attention = _Attention(model)
    for first, stop in itertools.pairwise(edges):
        if first in starts:
            small[first] = {name: tensor for name, tensor in state.items() if name in names}
        with attention if first in origins else torch.inference_mode():
            forecast, state = _fed(model, run.values[None, first:stop], state, [_beside(run, first, stop)])
        if first in origins:
            y.append(forecast[0])
    return np.stack(y), small, attention.share()


def _cut(model: TXLModel, run: Run, context: int, kept: dict[int, TorchState]) -> Floats:
    """Forecast from each origin with a memory that began ``context`` rows before it, (k, h, C, Q)."""
    out = []
    for first in range(0, len(run.origins), _MOST_LANES):
        origins = run.origins[first : first + _MOST_LANES]
        state = model.init_state(len(origins))
        if kept:
            small = [kept[int(origin) - context] for origin in origins]
            state |= {name: torch.cat([part[name] for part in small]) for name in small[0]}
        rows = np.stack([run.values[origin - context : origin + 1] for origin in origins])
        beside = [_beside(run, int(origin) - context, int(origin) + 1) for origin in origins]
        with torch.inference_mode():
            out.append(_fed(model, rows, state, beside)[0])
    return np.concatenate(out)


def _fed(
    model: TXLModel, rows: NDArray[np.float32], state: TorchState, beside: Sequence[Covariates | None]
) -> tuple[Floats, TorchState]:
    """Feed rows (B, n) or (B, n, C); gives the forecasts (B, h, C, Q) from the last ones."""
    rows = rows.reshape(*rows.shape[:2], -1)
    n, size, h = rows.shape[1], max(_ROWS_PER_CALL // len(rows), 1), model.config.h
    y = torch.zeros(())
    for first in range(0, n, size):
        stop = min(first + size, n)
        more = None
        given = [part for part in beside if part is not None]
        if given:
            hist, futr = (np.stack([getattr(c, name) for c in given]) for name in ("hist", "futr"))
            static = np.stack([c.static for c in given])
            parts = (hist[:, first:stop], futr[:, first : stop + h], static)
            more = Beside(*(torch.from_numpy(np.ascontiguousarray(part)) for part in parts))
        x = torch.from_numpy(np.ascontiguousarray(rows[:, first:stop]))
        y, state = model(x, state, last_only=True, beside=more)
    return y[:, 0].numpy().astype(np.float64), state


def _losses(model: TXLModel, run: Run, forecast: Floats) -> dict[str, Floats]:
    """Mean loss over the steps ahead and channels that have a value, of each origin."""
    levels = np.array(model.config.quantiles)
    steps = run.origins[:, None] + np.arange(1, model.config.h + 1)
    inside = steps < len(run.values)
    values = run.values.reshape(len(run.values), -1)
    y = np.where(inside[..., None], values[np.where(inside, steps, 0)], np.nan).astype(np.float64)  # (k, h, C)
    error = (y[..., None] - forecast) / np.reshape(run.unit, (-1, 1))
    squared = np.square(error[..., int(np.argmin(np.abs(levels - 0.5)))])
    pinball = np.maximum(levels * error, (levels - 1) * error).mean(axis=-1)
    return {"squared": np.nanmean(squared, axis=(1, 2)), "pinball": np.nanmean(pinball, axis=(1, 2))}


def _beside(run: Run, first: int, stop: int) -> Covariates | None:
    return None if run.beside is None else run.beside(first, stop)


def _not_memory(model: TXLModel) -> tuple[TensorSpec, ...]:
    """Specs of what is kept where the memory is emptied."""
    return (*model.normaliser.specs(), *model.window.specs(), *model._beside_specs())


class _Attention:
    """Adds up, while it is entered, how the last row of each call spreads its attention over ages."""

    def __init__(self, model: TXLModel) -> None:
        self.layers = [part for part in model.backbone.modules() if isinstance(part, RelativeAttention)]
        self.is_fifo = model.config.memory == "fifo"
        self.sums, self.n = np.zeros((len(self.layers), 1 + max(layer.mem_len for layer in self.layers))), 0

    def __enter__(self) -> None:
        self.mode = torch.inference_mode()
        self.mode.__enter__()
        self.handles = []
        if self.is_fifo:
            for i, layer in enumerate(self.layers):
                self.handles.append(layer.register_forward_pre_hook(self._hook(i)))

    def __exit__(self, *why: object) -> None:
        for handle in self.handles:
            handle.remove()
        self.mode.__exit__(None, None, None)

    def share(self) -> Floats | None:
        """Give the mean share by layer and age, own row first."""
        return self.sums / (self.n / len(self.layers)) if self.n else None

    def _hook(self, layer: int) -> Callable[[torch.nn.Module, tuple[Tensor, ...]], None]:
        def see(attention: torch.nn.Module, given: tuple[Tensor, ...]) -> None:
            assert isinstance(attention, RelativeAttention)
            x, key, visible = given[0], given[1], given[3]
            if not bool(visible.all()):
                return
            weights = attention.last_row_weights(x, key, visible)
            self.sums[layer, : weights.shape[-1]] += weights.mean(dim=(0, 1)).flip(0).double().numpy()
            self.n += 1

        return see
