"""Memories of series that are known by name: kept after a fit, continued on request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from txl_ts.errors import ColumnError, ParameterError, StateError
from txl_ts.estimators.series_rows import Name, SeriesRows
from txl_ts.state import State, init_state, put, select
from txl_ts.walk import Pace, walk

# Memories of all series together; beyond it none are kept.
MEMORY_BUDGET = 256 * 1024**2
_PACE = Pace()


class SeriesMemories:
    """Part of the estimators over rows and panels: what each series' model remembers."""

    _model: Any
    _names: tuple[Name, ...] | None
    _named: bool
    _kept: State

    def _keep_memories(self, rows: SeriesRows) -> None:
        """Walk the series once with the final weights; those of an unnamed panel cannot be asked for again."""
        self._named = rows.names is not None
        self._names, self._kept = None, {}
        n = len(rows.first)
        if (rows.panel is not None and rows.names is None) or n * self._model.state_nbytes() > MEMORY_BUDGET:
            return
        self._names = rows.names if rows.names is not None else ("",)
        self._kept = init_state(self._model.state_specs(), n_lanes=n)
        self._advance(rows, self._kept)

    def _advance(self, rows: SeriesRows, state: State) -> None:
        """Take rows in; ``state`` is moved on in place."""
        wanted = rows.stop - rows.first  # no answer is wanted
        for _ in walk(self._model, rows.runs, state, wanted_from=wanted, pace=_PACE):
            pass

    def _memories_of(self, rows: SeriesRows) -> State:
        """Copies of the kept memories of these series; empty ones for new series."""
        if self._names is None:
            raise StateError(
                "no memories were kept: a panel without series_id cannot be told apart later, and all memories "
                f"together must fit into {MEMORY_BUDGET // 1024**2} MiB. Name the series with series_id=…, or leave "
                "start out."
            )
        if self._named != (rows.names is not None) or (rows.panel is not None and rows.names is None):
            raise StateError(
                "start='fitted' continues series by their names: give series_id both to fit and here, or to neither "
                "(X is one series then)."
            )
        names = rows.names if rows.names is not None else ("",)
        self._refuse_other_kinds(names)
        where = {name: i for i, name in enumerate(self._names)}
        state = init_state(self._model.state_specs(), n_lanes=len(names))
        known = np.array([i for i, name in enumerate(names) if name in where], np.int64)
        return put(state, known, select(self._kept, np.array([where[names[i]] for i in known], np.int64)))

    def _refuse_other_kinds(self, names: Sequence[Name]) -> None:
        """Raise unless names are of the kind that was fitted: the same series would be taken for a new one."""
        known, got = ({type(name).__name__ for name in some} for some in (self._names or (), names))
        if known and got - known:
            kinds = ["/".join(sorted(some)) for some in (known, got)]
            raise ColumnError(
                f"series_id was fitted with {kinds[0]} names and now holds {kinds[1]}, such as {names[0]!r}. Nothing "
                f"was changed. Cast it to {kinds[0]}."
            )

    def _keep_moved(self, names: Sequence[Name], state: State) -> None:
        """Put memories in the place of those that are kept; new names come behind them."""
        assert self._names is not None
        where = {name: i for i, name in enumerate(self._names)}
        old = np.array([i for i, name in enumerate(names) if name in where], np.int64)
        new = np.array([i for i, name in enumerate(names) if name not in where], np.int64)
        kept = put(self._kept, np.array([where[names[i]] for i in old], np.int64), select(state, old))
        self._kept = {name: np.concatenate([kept[name], state[name][new]]) for name in kept}
        self._names = (*self._names, *(names[i] for i in new))

    def _refuse_unnamed(self, rows: SeriesRows) -> None:
        """A model of several series that is given rows without names would run across them, and nobody would know."""
        if self._named and rows.names is None and rows.panel is None and len(rows.values) > 1:
            raise ParameterError(
                f"{type(self).__name__} was fitted with series_id and is given {len(rows.values)} rows without: one "
                "memory would run across all of them. Pass series_id=… (one name per row, or one name if they are one "
                "series). Under cross_validate and GridSearchCV request it for predict and score too, see "
                "docs/estimators.md."
            )
