"""How much history does a fitted forecaster need? Measured on rows that it was not trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from txl_ts.config import check_integer
from txl_ts.effective_context import (
    TOLERANCE,
    ContextLosses,
    Run,
    context_grid,
    context_losses,
    effective_context_length,
    enough,
)
from txl_ts.errors import ParameterError
from txl_ts.estimators.bands import last_known_ordinals
from txl_ts.estimators.fleet import SeriesId
from txl_ts.frames import Panel, run_of
from txl_ts.plots import plot_context

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from txl_ts.estimators.kept import KeptMemories

# Series that hardly move are measured in this part of their level.
_LEAST_UNIT = 1e-6


@dataclass(frozen=True)
class EffectiveContext:
    """Errors of a forecaster with its context cut, and what follows from them.

    Attributes
    ----------
    contexts : tuple of int
        Rows before an origin.
    durations : tuple of str
        The same in the user's time.
    losses : ContextLosses
        Of each origin: with the memory cut, with all history cut, and whole.
    stride : int
        Rows between two ages of the attention.
    loss : {"pinball", "squared"}
        What the answers below are about.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from txl_ts import TXLForecaster
    >>> t = np.arange(400)
    >>> df = pd.DataFrame({"unique_id": "a", "ds": t, "y": np.sin(t * 2 * np.pi / 24)})
    >>> model = TXLForecaster(h=3, patch_len=8, d_model=8, n_heads=2, max_epochs=1).fit(df, val_size=100)
    >>> found = model.effective_context(n_origins=8)
    >>> list(found.table().columns)
    ['context_rows', 'context', 'memory_pinball', 'memory_squared', 'history_pinball', 'history_squared']
    """

    contexts: tuple[int, ...]
    durations: tuple[str, ...]
    losses: ContextLosses
    stride: int
    loss: str
    _implementation: Any

    @property
    def n_origins(self) -> int:
        """Forecasts that were measured, per context."""
        return len(self.losses.whole[self.loss])

    @property
    def memory_rows(self) -> int:
        """Rows of memory from which on more of them change the mean loss by less than 1 %."""
        return enough(self.losses.memory[self.loss], self.contexts)

    @property
    def history_rows(self) -> int:
        """Rows to feed a series that starts empty, from which on more of them change the mean loss by less than 1 %."""
        return enough(self.losses.history[self.loss], self.contexts)

    @property
    def recl(self) -> int:
        """Relative effective context length of the memory, in rows, as the paper has it for a group of one model."""
        return effective_context_length(self.losses.memory[self.loss][None], self.contexts)[0]

    def table(self) -> Any:
        """Give mean losses per context, as a frame of the kind that was fitted on."""
        columns: dict[str, Any] = {"context_rows": list(self.contexts), "context": list(self.durations)}
        for name in ("memory", "history"):
            for loss in ("pinball", "squared"):
                columns[f"{name}_{loss}"] = getattr(self.losses, name)[loss].mean(axis=1)
        return nw.from_dict(columns, backend=self._implementation).to_native()

    def plot(self) -> Figure:
        """Draw losses against context, and attention against age. Needs the extra ``plot``."""
        whole = self.losses.whole[self.loss].mean()
        curves = {
            "memory emptied": self.losses.memory[self.loss].mean(axis=1) / whole,
            "nothing before": self.losses.history[self.loss].mean(axis=1) / whole,
        }
        return plot_context(self.durations, curves, attention=self.losses.attention, visit=self.durations_of_visit)

    @property
    def durations_of_visit(self) -> str:
        """One visit of the memory in the user's time."""
        return self.durations[self.contexts.index(self.stride)] if self.stride in self.contexts else "visits"

    def __str__(self) -> str:
        """Answer in sentences."""
        said = {n: text if n else "no rows" for n, text in zip(self.contexts, self.durations, strict=True)}
        gain = 1 - self.losses.memory[self.loss][-1].mean() / self.losses.memory[self.loss][0].mean()
        return (
            f"Feed at least {said[self.history_rows]} of history ({self.history_rows} rows): more changes the "
            f"{self.loss} loss by less than {100 * TOLERANCE:g} %. The memory helps up to {said[self.memory_rows]} "
            f"back ({self.memory_rows} rows) and lowers the loss by {100 * gain:.1f} % in all. "
            f"Measured at {self.n_origins} origins with contexts up to {self.durations[-1]}."
        )


def measure_context(
    model: KeptMemories,
    panel: Panel,
    trained: NDArray[np.int64],
    *,
    contexts: Sequence[int] | None,
    n_origins: int,
    loss: str,
) -> EffectiveContext:
    """Measure; see :meth:`KeptMemories.effective_context`."""
    config, freq = model.config_, model._freq
    n_origins = check_integer("n_origins", n_origins, at_least=1)
    first, length = panel.piece_first, panel.lengths
    begin = np.maximum(trained[panel.piece_series], first)  # the row of the last value that was trained on
    room = begin - first
    last = first + length - 1 - config.h
    room[last < begin] = -1
    if contexts is None:
        more = (config.lookback, 2 * config.lookback)
        grid = context_grid(reach=config.reach, stride=config.stride, more=more, longest=int(room.max(initial=-1)))
    else:
        grid = tuple(sorted({check_integer("contexts", n, at_least=0) for n in contexts}))
    usable = np.flatnonzero((room >= max(grid, default=0)) & (last >= begin))
    if not grid or not len(usable):
        raise ParameterError(
            f"no series has max(contexts)={max(grid, default=0)} rows before, and h={config.h} rows behind, an origin "
            "that was not trained on. Hold out more rows (fit with val_size=k, or give df with later rows), or give "
            "shorter contexts."
        )
    each = -(-n_origins // len(usable))
    runs = [_run(panel, int(p), int(begin[p] - first[p]), int(last[p] - first[p]), each, h=config.h) for p in usable]
    runs = [run for run in runs if len(run.origins)]
    if not runs:
        raise ParameterError(
            f"the rows that were not trained on hold no value to judge by, in {len(usable)} series. Give df with "
            "later rows that have values."
        )
    losses = context_losses(model._model, runs, contexts=grid)
    durations = tuple(freq.duration(n) for n in grid)
    return EffectiveContext(grid, durations, losses, config.stride, loss, panel.style.implementation)


def held_out_ends(panel: Panel, ends: dict[Any, int], *, val_size: int | None) -> NDArray[np.int64]:
    """Grid ordinal of the last row of each series that was trained on; its first row where none was."""
    if val_size is None:
        return last_known_ordinals(panel, ends)
    return np.maximum(panel.last_ordinals() - val_size, panel.first_ordinals())


def later_ends(known: Mapping[SeriesId, int], more: Mapping[SeriesId, int]) -> dict[SeriesId, int]:
    """Last stamps that were trained on, of two trainings one after the other."""
    return {**known, **{name: max(end, known.get(name, end)) for name, end in more.items()}}


def _run(panel: Panel, piece: int, begin: int, last: int, n: int, *, h: int) -> Run:
    values = panel.values[panel.offsets[piece] : panel.offsets[piece + 1]]
    origins = np.unique(np.linspace(begin, last, n).round().astype(np.int64))
    ahead = np.isfinite(values[origins[:, None] + np.arange(1, h + 1)]).reshape(len(origins), -1).any(axis=1)
    beside = None if panel.covariates is None else partial(_columns, panel, piece, h)
    known = values[: begin + 1].reshape(begin + 1, -1)
    return Run(values, origins[ahead], np.array([unit_of(channel) for channel in known.T]), beside)


def unit_of(values: NDArray[np.float32]) -> float:
    """Give the deviation of a series, to measure its errors in; 1 where it has no value."""
    known = values[np.isfinite(values)].astype(np.float64)
    if not len(known):
        return 1.0
    return max(float(known.std()), _LEAST_UNIT * float(np.abs(known).mean()), float(np.finfo(np.float32).tiny))


def _columns(panel: Panel, piece: int, h: int, first: int, stop: int) -> Any:
    return run_of(panel, piece, first, stop, h=h)
