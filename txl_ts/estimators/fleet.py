"""The memories that an estimator keeps: one lane per series, and where each of them stands in time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import StampError, StateError
from txl_ts.frames import Freq, Panel
from txl_ts.model import TXLModel
from txl_ts.state import State, init_state, select
from txl_ts.walk import Pace, walk

SeriesId = str | int


@dataclass(frozen=True)
class Fleet:
    """Series, their place on the grid, their state, and the forecast from their last row.

    Nothing here is changed in place: :meth:`advance` gives a new fleet.

    Attributes
    ----------
    ids : tuple of str or int
    origins : int64 array of shape (n,)
        Native stamp of grid ordinal 0.
    last : int64 array of shape (n,)
        Grid ordinal of the last row that was taken in; −1 for none.
    state : dict of array
    forecast : float32 array of shape (n, h, Q)
        From the last row; NaN where nothing was seen.
    """

    ids: tuple[SeriesId, ...]
    origins: NDArray[np.int64]
    last: NDArray[np.int64]
    state: State
    forecast: NDArray[np.float32]

    @classmethod
    def empty(cls, model: TXLModel) -> Fleet:
        """Give a fleet without series."""
        config = model.config
        none = np.zeros(0, np.int64)
        forecast = np.zeros((0, config.h, len(config.quantiles)), np.float32)
        return cls((), none, none, init_state(model.state_specs(), n_lanes=0), forecast)

    def __len__(self) -> int:
        return len(self.ids)

    def known_origins(self) -> dict[Any, int]:
        """Give the origins by series, as ``read_long`` takes them."""
        return dict(zip(self.ids, self.origins.tolist(), strict=True))

    def positions(self, ids: Sequence[SeriesId]) -> NDArray[np.int64]:
        """Find series by name.

        Raises
        ------
        StateError
            If some are not here.
        """
        where = {name: i for i, name in enumerate(self.ids)}
        if missing := [name for name in ids if name not in where]:
            raise StateError(
                f"{len(missing)} series are not known, such as {missing[:5]}; known are {len(self.ids)}, such as "
                f"{list(self.ids[:5])}. New series need their rows: predict(df=rows), or update(rows) first."
            )
        return np.array([where[name] for name in ids], np.int64)

    def take(self, ids: Sequence[SeriesId]) -> Fleet:
        """Keep some series, in the given order."""
        lanes = self.positions(ids)
        return Fleet(tuple(ids), self.origins[lanes], self.last[lanes], select(self.state, lanes), self.forecast[lanes])

    def with_series(self, panel: Panel, model: TXLModel) -> Fleet:
        """Add the panel's new series, empty."""
        known = set(self.ids)
        new = [i for i, name in enumerate(panel.ids) if name not in known]
        if not new:
            return self
        fresh = init_state(model.state_specs(), n_lanes=len(new))
        blank = np.full((len(new), *self.forecast.shape[1:]), np.nan, np.float32)
        return Fleet(
            ids=self.ids + tuple(panel.ids[i] for i in new),
            origins=np.concatenate([self.origins, panel.origins[new]]),
            last=np.concatenate([self.last, np.full(len(new), -1, np.int64)]),
            state={name: np.concatenate([array, fresh[name]]) for name, array in self.state.items()},
            forecast=np.concatenate([self.forecast, blank]),
        )

    def refuse_old_rows(self, panel: Panel, *, call: str) -> None:
        """Raise StampError if the panel has rows that were already taken in, or earlier ones."""
        known = {name: int(last) for name, last in zip(self.ids, self.last, strict=True)}
        first = panel.first_ordinals()
        late = [i for i, name in enumerate(panel.ids) if known.get(name, -1) >= first[i]]
        if late:
            shown = [f"{panel.ids[i]!r} starts {known[panel.ids[i]] - first[i] + 1} rows too early" for i in late[:5]]
            raise StampError(
                f"{len(late)} series have rows that come before, or again at, rows already taken in: "
                f"{', '.join(shown)}. Nothing was changed. Give {call} only rows after the last one of each series."
            )

    def advance(
        self, model: TXLModel, panel: Panel, *, max_gap: int | None, pace: Pace, one_step: bool = True
    ) -> tuple[Fleet, NDArray[np.float32]]:
        """Take in the rows of a panel.

        Parameters
        ----------
        model : TXLModel
        panel : Panel
            All its series are in the fleet, its rows come after those taken in.
        max_gap : int or None
            A longer gap begins the series anew; a shorter one is walked as missing rows.
        pace : Pace
        one_step : bool
            False saves the forecasts of rows other than each last one.

        Returns
        -------
        fleet : Fleet
        before : float32 array of shape (N, Q)
            For each row of the panel, the one-step forecast that was made before it; NaN where there was none.
        """
        lanes = self.positions(panel.ids)
        state = select(self.state, lanes)
        forecast, last = self.forecast[lanes].copy(), self.last[lanes].copy()
        before = np.full((panel.n_rows, forecast.shape[2]), np.nan, np.float32)
        for pieces in _rounds(panel):
            series = panel.piece_series[pieces]
            gap = panel.piece_first[pieces] - last[series] - 1
            restart = (last[series] < 0) | (gap > (max_gap if max_gap is not None else np.iinfo(np.int64).max))
            for array in state.values():
                array[series[restart]] = 0
            forecast[series[restart]] = np.nan
            gap[restart] = 0
            runs = [
                np.concatenate([np.full(g, np.nan, np.float32), panel.values[a:b]])
                for g, a, b in zip(gap, panel.offsets[pieces], panel.offsets[pieces + 1], strict=True)
            ]
            part = select(state, series)
            first = np.array([len(run) - 1 for run in runs]) if not one_step else None
            has_before = gap == 0
            before[panel.offsets[pieces[has_before]]] = forecast[series[has_before], 0]
            for stretch in walk(model, runs, part, wanted_from=first, pace=pace):
                y = stretch.y[:, :, :, 0]  # (B, T, h, Q)
                for i, lane in enumerate(stretch.lanes):
                    # Row r of a run forecasts row r + 1; rows of the gap belong to no row of the panel.
                    rows = np.arange(stretch.row, stretch.row + y.shape[1]) + 1 - gap[lane]
                    inside = (rows >= 0) & (rows < len(runs[lane]) - gap[lane])
                    before[panel.offsets[pieces[lane]] + rows[inside]] = y[i, inside, 0]
                    if stretch.row + y.shape[1] == len(runs[lane]):
                        forecast[series[lane]] = y[i, -1]
            for name, array in part.items():
                state[name][series] = array
            last[series] = panel.piece_first[pieces] + panel.lengths[pieces] - 1
        return self._with(lanes, last=last, state=state, forecast=forecast), before

    def _with(
        self, lanes: NDArray[np.int64], *, last: NDArray[np.int64], state: State, forecast: NDArray[np.float32]
    ) -> Fleet:
        if len(lanes) == len(self) and (lanes == np.arange(len(self))).all():
            return replace(self, last=last, state=state, forecast=forecast)
        new_last, new_forecast = self.last.copy(), self.forecast.copy()
        new_last[lanes], new_forecast[lanes] = last, forecast
        new_state = {name: array.copy() for name, array in self.state.items()}
        for name, array in new_state.items():
            array[lanes] = state[name]
        return replace(self, last=new_last, state=new_state, forecast=new_forecast)

    def stamps(self, lanes: NDArray[np.int64], ordinals: NDArray[np.int64], *, freq: Freq, zone: str | None) -> Any:
        """Native stamps of grid ordinals."""
        return freq.shift(self.origins[lanes], ordinals, zone)


def _rounds(panel: Panel) -> Iterator[NDArray[np.int64]]:
    """Give the first piece of every series, then the second of those that have one, and so on."""
    start = np.searchsorted(panel.piece_series, panel.piece_series, side="left")
    rank = np.arange(panel.n_pieces) - start
    for k in range(int(rank.max(initial=-1)) + 1):
        yield np.flatnonzero(rank == k)
