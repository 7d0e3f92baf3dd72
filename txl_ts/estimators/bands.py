"""The calibration that an estimator keeps: one table of scores, and the levels of each series where they adapt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from txl_ts.conformal import Adaptive, Conformal, spacing
from txl_ts.estimators.fleet import Fleet, SeriesId
from txl_ts.frames import Panel

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Calibration:
    """What ``calibrate`` found.

    Attributes
    ----------
    table : Conformal
    floor : float
        0 where forecasts are not negative, else −inf.
    ids : tuple of str or int
        Series that adapt, in the order of ``adaptive``.
    adaptive : Adaptive or None
    """

    table: Conformal
    floor: float
    ids: tuple[SeriesId, ...] = ()
    adaptive: Adaptive | None = None

    def moved(self, forecast: Floats, ids: Sequence[SeriesId]) -> Floats:
        """Move quantiles (n, steps, Q) of series by what they have learnt."""
        return self.table.moved(forecast, self._levels(ids), floor=self.floor)

    def without(self, ids: Sequence[SeriesId]) -> Calibration:
        """Forget some series."""
        if self.adaptive is None:
            return self
        kept = [i for i, name in enumerate(self.ids) if name not in set(ids)]
        return Calibration(
            self.table, self.floor, tuple(self.ids[i] for i in kept), self.adaptive.take(np.array(kept, np.int64))
        )

    def lane(self, name: SeriesId) -> Adaptive | None:
        """Copy the adaptive levels of a series out; None where it has none yet."""
        if self.adaptive is None or name not in self.ids:
            return None
        return self.adaptive.take(np.array([self.ids.index(name)], np.int64))

    def put_back(self, lanes: Mapping[SeriesId, Adaptive | None]) -> Calibration:
        """Give the calibration with some series as they once stood."""
        if self.adaptive is None:
            return self
        rest = self.without(list(lanes))
        assert rest.adaptive is not None
        found = {name: one for name, one in lanes.items() if one is not None}
        adaptive = rest.adaptive
        for one in found.values():
            adaptive = adaptive.joined(one)
        return Calibration(self.table, self.floor, (*rest.ids, *found), adaptive)

    def after(self, panel: Panel, watch: Watch) -> Calibration:
        """Give the calibration after the rows of a panel; this one stays."""
        if self.adaptive is None:
            return self
        new = [name for name in panel.ids if name not in set(self.ids)]
        ids = (*self.ids, *new)
        grown = self.adaptive.joined(Adaptive.fresh(self.table, n=len(new), rate=self.adaptive.rate))
        where = {name: i for i, name in enumerate(ids)}
        keys = zip(panel.row_series().tolist(), panel.row_ordinals().tolist(), strict=True)
        came = dict(zip(keys, panel.values.tolist(), strict=True))
        # Missing rows between two calls are none of the panel's, and were forecast from all the same.
        for s, ordinal in sorted(came.keys() | watch.forecasts.keys()):
            lane = where[panel.ids[s]]
            grown.judge(lane, ordinal=ordinal, y=came.get((s, ordinal), np.nan), quantiles=self.table.quantiles)
            if (forecast := watch.forecasts.get((s, ordinal))) is not None:
                grown.issue(lane, ordinal=ordinal, forecast=forecast, table=self.table, floor=self.floor)
        return Calibration(self.table, self.floor, ids, grown)

    def watch(self, read: Callable[[Floats], Floats]) -> Watch:
        """Give what a walk calls to have the forecasts kept that will be judged; ``read`` gives their quantiles."""
        return Watch(self.table.h, read)

    def _levels(self, ids: Sequence[SeriesId]) -> Floats | None:
        if self.adaptive is None:
            return None
        where = {name: i for i, name in enumerate(self.ids)}
        start = self.table.levels()
        found = [self.adaptive.levels[where[name]] if name in where else start for name in ids]
        return np.array(found, np.float32).reshape(len(ids), *start.shape)  # there may be no series


@dataclass
class Watch:
    """Keeps the forecasts from every few rows of a walk.

    Attributes
    ----------
    h : int
    read : callable
        From what a walk says (h, law_width) to quantiles (h, Q).
    forecasts : dict
        (position of the series, grid ordinal) to quantiles (h, Q).
    """

    h: int
    read: Callable[[Floats], Floats]
    forecasts: dict[tuple[int, int], Floats] = field(default_factory=dict)

    def __call__(self, series: int, ordinal: int, y: Floats) -> None:
        """Take what was said (T, h, law_width) at rows that begin at an ordinal."""
        every = spacing(self.h)
        for row in range(-ordinal % every, len(y), every):
            self.forecasts[series, ordinal + row] = self.read(y[row].copy())


def fresh_calibration(table: Conformal, fleet: Fleet, *, rate: float | None, floor: float) -> Calibration:
    """Begin with a table; with a rate each series adapts to the rows that come."""
    if rate is None:
        return Calibration(table, floor)
    adaptive = Adaptive.fresh(table, n=len(fleet), rate=rate)
    return Calibration(table, floor, fleet.ids, adaptive)


def last_known_ordinals(panel: Panel, ends: Mapping[SeriesId, int]) -> NDArray[np.int64]:
    """Grid ordinal of each series' last row up to a native stamp; its first row where there is none."""
    first, last = panel.first_ordinals(), panel.last_ordinals()
    out = first.copy()
    for i, name in enumerate(panel.ids):
        if (end := ends.get(name)) is not None:
            ordinals = np.arange(first[i], last[i] + 1)
            seen = np.searchsorted(panel.stamps(np.full(len(ordinals), i), ordinals), end, side="right")
            out[i] = first[i] + max(int(seen) - 1, 0)
    return out
