"""The memories that an estimator keeps: one lane per series, and where each of them stands in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import StampError, StateError
from txl_ts.estimators.covariates import forecast_known
from txl_ts.frames import Ahead, FrameStyle, Freq, Panel, run_of
from txl_ts.model import TXLModel
from txl_ts.state import State, init_state, select
from txl_ts.walk import Pace, walk

SeriesId = str | int


@dataclass(frozen=True)
class Fleet:
    """Series, their place on the grid, their state, and the forecast from their last row.

    Only :meth:`merged` changes anything in place: a fleet of thousands must not be copied for each row.

    Attributes
    ----------
    ids : tuple of str or int
    origins : int64 array of shape (n,)
        Native stamp of grid ordinal 0.
    last : int64 array of shape (n,)
        Grid ordinal of the last row that was taken in; −1 for none. Where time is uneven ordinals are counted from that
        row, which has 0.
    state : dict of array
    forecast : float32 array of shape (n, h, C · law_width)
        What was said at the last row, as :class:`~txl_ts.walk.Stretch` has it; NaN where nothing was seen. Where
        columns are known ahead, ``state["last"]`` speaks instead.
    static : float32 array of shape (n, n_static)
        Columns of each series as a whole.
    """

    ids: tuple[SeriesId, ...]
    origins: NDArray[np.int64]
    last: NDArray[np.int64]
    state: State
    forecast: NDArray[np.float32]
    static: NDArray[np.float32]

    @classmethod
    def fresh(cls, model: TXLModel, ids: Sequence[SeriesId] = (), origins: Any = (), static: Any = None) -> Fleet:
        """Give series that have seen nothing."""
        config, n = model.config, len(ids)
        return cls(
            ids=tuple(ids),
            origins=np.array(origins, np.int64),
            last=np.full(n, -1, np.int64),
            state=init_state(model.state_specs(), n_lanes=n),
            forecast=np.full((n, config.h, config.n_channels * config.law_width), np.nan, np.float32),
            static=np.zeros((n, len(config.static_kinds)), np.float32) if static is None else static,
        )

    @classmethod
    def fresh_for(cls, panel: Panel, model: TXLModel) -> Fleet:
        """Give the series of a panel, which have seen nothing."""
        static = None if panel.covariates is None else panel.covariates.static
        return cls.fresh(model, panel.ids, panel.origins, static)

    @classmethod
    def at_end_of(cls, panel: Panel, model: TXLModel) -> Fleet:
        """Give the series of a panel at their last rows, without a memory of them."""
        fleet, last = cls.fresh_for(panel, model), panel.last_ordinals()
        if panel.row_stamps is None:
            return replace(fleet, last=last)
        return replace(fleet, origins=panel.stamps(np.arange(len(fleet)), last), last=np.zeros_like(last))

    def __len__(self) -> int:
        return len(self.ids)

    def known_origins(self) -> dict[Any, int]:
        """Give the origins by series, as ``read_long`` takes them."""
        return dict(zip(self.ids, self.origins.tolist(), strict=True))

    def ahead(self, n: int, *, freq: Freq, style: FrameStyle) -> Ahead:
        """Give the ``n`` rows after the last one of each series."""
        return Ahead(self.ids, self.origins, self.last, n, freq, style)

    def take(self, ids: Sequence[SeriesId]) -> Fleet:
        """Copy some series out, in the given order.

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
        lanes = np.array([where[name] for name in ids], np.int64)
        state = select(self.state, lanes)
        return Fleet(tuple(ids), self.origins[lanes], self.last[lanes], state, self.forecast[lanes], self.static[lanes])

    def without(self, ids: Sequence[SeriesId]) -> Fleet:
        """Copy all series but some.

        Raises
        ------
        StateError
            If some are not here.
        """
        gone = set(self.take(ids).ids)
        return self.take([name for name in self.ids if name not in gone])

    def take_for(self, panel: Panel, model: TXLModel) -> Fleet:
        """Copy the panel's series out, in its order; those that are not here come fresh."""
        known = set(self.ids)
        new = [i for i, name in enumerate(panel.ids) if name not in known]
        if not new:
            return self.take(panel.ids)
        static = None if panel.covariates is None else panel.covariates.static[new]
        fresh = Fleet.fresh(model, [panel.ids[i] for i in new], panel.origins[new], static)
        old = self.take([name for name in panel.ids if name in known])
        return old._joined(fresh).take(panel.ids)

    def merged(self, part: Fleet) -> Fleet:
        """Take over the series of ``part``: those that are here in place, new ones at the end."""
        where = {name: i for i, name in enumerate(self.ids)}
        here = np.array([i for i, name in enumerate(part.ids) if name in where], np.int64)
        lanes = np.array([where[part.ids[i]] for i in here], np.int64)
        self.origins[lanes] = part.origins[here]
        self.last[lanes], self.forecast[lanes] = part.last[here], part.forecast[here]
        self.static[lanes] = part.static[here]
        for name, array in self.state.items():
            array[lanes] = part.state[name][here]
        new = [name for name in part.ids if name not in where]
        return self._joined(part.take(new)) if new else self

    def lane(self, i: int) -> Fleet:
        """Copy one series out, by its position."""
        state = {name: array[i : i + 1].copy() for name, array in self.state.items()}
        parts = (array[i : i + 1].copy() for array in (self.forecast, self.static))
        return Fleet(self.ids[i : i + 1], self.origins[i : i + 1].copy(), self.last[i : i + 1].copy(), state, *parts)

    @classmethod
    def of_lanes(cls, lanes: Sequence[Fleet]) -> Fleet:
        """Put series side by side."""
        return cls(
            ids=tuple(name for lane in lanes for name in lane.ids),
            state={name: np.concatenate([lane.state[name] for lane in lanes]) for name in lanes[0].state},
            **{
                name: np.concatenate([getattr(lane, name) for lane in lanes])
                for name in ("origins", "last", "forecast", "static")
            },
        )

    def has_old_rows(self, panel: Panel) -> bool:
        """Tell whether the panel has rows that were already taken in, or earlier ones."""
        known, first = dict(zip(self.ids, self.last.tolist(), strict=True)), panel.first_ordinals()
        return any(known.get(name, -1) >= first[i] for i, name in enumerate(panel.ids))

    def refuse_old_rows(self, panel: Panel, *, call: str) -> None:
        """Raise StampError if the panel has rows that were already taken in, or earlier ones."""
        known = dict(zip(self.ids, self.last.tolist(), strict=True))
        first = panel.first_ordinals()
        late = [i for i, name in enumerate(panel.ids) if known.get(name, -1) >= first[i]]
        if late:
            shown = [f"{panel.ids[i]!r} starts {known[panel.ids[i]] - first[i] + 1} rows too early" for i in late[:5]]
            raise StampError(
                f"{len(late)} series have rows that come before, or again at, rows already taken in: "
                f"{', '.join(shown)}. Nothing was changed. Give {call} only rows after the last one of each series"
                f"{', or correct earlier ones with on_revision=' + repr('rewind') if call == 'update' else ''}."
            )

    def advance(
        self,
        model: TXLModel,
        panel: Panel,
        *,
        max_gap: int | None,
        pace: Pace,
        one_step: bool = True,
        watch: Callable[[int, int, NDArray[np.float32]], None] | None = None,
    ) -> tuple[Fleet, NDArray[np.float32]]:
        """Take in the rows of a panel.

        Parameters
        ----------
        model : TXLModel
        panel : Panel
            Its series are those of the fleet, in the same order; its rows come after those taken in.
        max_gap : int or None
            A longer gap begins the series anew; a shorter one is walked as missing rows.
        pace : Pace
        one_step : bool
            False saves the forecasts of rows other than each last one.
        watch : callable, optional
            Called with a series' position, the grid ordinal of a row, and what was said (T, h, C · law_width)
            at it and the next ones.

        Returns
        -------
        fleet : Fleet
        before : float32 array of shape (N, C · law_width)
            For each row of the panel, the one-step forecast that was made before it; NaN where there was none.
        """
        state = select(self.state, np.arange(len(self)))
        forecast, last = self.forecast.copy(), self.last.copy()
        before = np.full((panel.n_rows, forecast.shape[2]), np.nan, np.float32)
        for pieces in _rounds(panel):
            series, first_row = panel.piece_series[pieces], panel.offsets[pieces]
            gap = panel.piece_first[pieces] - last[series] - 1
            restart = (last[series] < 0) | (gap > (np.iinfo(np.int64).max if max_gap is None else max_gap))
            if panel.row_stamps is not None and panel.covariates is not None:
                restart |= panel.covariates.futr[first_row, -1] == 0  # no time since the row before: there is none
            gap[restart] = 0
            forecast[series[restart]] = np.nan
            for array in state.values():
                array[series[restart]] = 0
            runs = [_run(panel, piece, n_missing=n) for piece, n in zip(pieces, gap, strict=True)]
            lanes = select(state, series)
            beside = None
            if panel.covariates is not None:
                beside = [
                    run_of(panel, int(piece), -int(n), int(panel.lengths[piece]), h=model.config.h)
                    for piece, n in zip(pieces, gap, strict=True)
                ]
            if beside is not None and "last" in lanes:
                now = np.stack([run.futr[: model.config.h] for run in beside])
                forecast[series] = forecast_known(model, lanes["last"], now)
            straight = gap == 0  # else the first row's forecast comes from the rows of the gap
            before[first_row[straight]] = forecast[series[straight], 0]
            wanted = None if one_step else np.array([len(run) - 1 for run in runs], np.int64)
            for stretch in walk(model, runs, lanes, wanted_from=wanted, pace=pace, beside=beside):
                for y, lane in zip(stretch.flat, stretch.lanes, strict=True):  # y is (T, h, C · law_width)
                    # Row r of a run forecasts row r + 1; the rows of the gap are none of the panel's.
                    row = np.arange(stretch.row, stretch.row + len(y)) + 1 - gap[lane]
                    if watch is not None:
                        watch(int(series[lane]), int(panel.piece_first[pieces[lane]] + row[0] - 1), y)
                    inside = (row >= 0) & (row < panel.lengths[pieces[lane]])
                    before[first_row[lane] + row[inside]] = y[inside, 0]
                    if stretch.row + len(y) == len(runs[lane]):
                        forecast[series[lane]] = y[-1]
            for name, array in lanes.items():
                state[name][series] = array
            last[series] = panel.piece_first[pieces] + panel.lengths[pieces] - 1
        static = self.static if panel.covariates is None else panel.covariates.static
        origins = self.origins
        if panel.row_stamps is not None:
            origins, last = panel.stamps(np.arange(len(self)), last), np.zeros_like(last)
        return Fleet(self.ids, origins, last, state, forecast, static), before

    def stamps(self, lanes: NDArray[np.int64], ordinals: NDArray[np.int64], *, freq: Freq, zone: str | None) -> Any:
        """Native stamps of grid ordinals."""
        return freq.shift(self.origins[lanes], ordinals, zone)

    def _joined(self, other: Fleet) -> Fleet:
        return Fleet(
            ids=self.ids + other.ids,
            origins=np.concatenate([self.origins, other.origins]),
            last=np.concatenate([self.last, other.last]),
            state={name: np.concatenate([array, other.state[name]]) for name, array in self.state.items()},
            forecast=np.concatenate([self.forecast, other.forecast]),
            static=np.concatenate([self.static, other.static]),
        )


def _run(panel: Panel, piece: int, *, n_missing: int) -> NDArray[np.float32]:
    """Rows of a piece, behind the missing rows of the gap before it."""
    rows = panel.values[panel.offsets[piece] : panel.offsets[piece + 1]]
    return np.concatenate([np.full((n_missing, *rows.shape[1:]), np.nan, np.float32), rows]) if n_missing else rows


def _rounds(panel: Panel) -> Iterator[NDArray[np.int64]]:
    """Give the first piece of every series, then the second of those that have one, and so on."""
    start = np.searchsorted(panel.piece_series, panel.piece_series, side="left")
    rank = np.arange(panel.n_pieces) - start
    for k in range(int(rank.max(initial=-1)) + 1):
        yield np.flatnonzero(rank == k)
