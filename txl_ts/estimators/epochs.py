"""What is kept to walk rows again when they were corrected: earlier states of each series, and the rows since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.conformal import Adaptive
from txl_ts.errors import StampError
from txl_ts.estimators.bands import Calibration
from txl_ts.estimators.fleet import Fleet, SeriesId
from txl_ts.frames import Covariates, Panel

REVISIONS = ("raise", "rewind")
# So many earlier states of a series are kept: when the newest is old enough for the next, the oldest goes.
N_EPOCHS = 2

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Rows:
    """Rows of one series.

    Attributes
    ----------
    ordinals : int64 array of shape (n,)
        On the grid, increasing.
    values : float32 array of shape (n,) or (n, C)
    hist, futr : float32 array of shape (n, n_hist), (n, n_futr)
    """

    ordinals: NDArray[np.int64]
    values: Floats
    hist: Floats
    futr: Floats

    @classmethod
    def of(cls, panel: Panel, series: int) -> Rows:
        """Copy the rows of a series out of a panel."""
        pieces = slice(*np.searchsorted(panel.piece_series, [series, series + 1]))
        rows = slice(int(panel.offsets[pieces.start]), int(panel.offsets[pieces.stop]))
        first, length = panel.piece_first[pieces], panel.lengths[pieces]
        ordinals = np.concatenate([np.arange(a, a + n) for a, n in zip(first, length, strict=True)])
        nothing = np.zeros((len(ordinals), 0), np.float32)
        beside = panel.covariates
        hist, futr = (nothing, nothing) if beside is None else (beside.hist[rows].copy(), beside.futr[rows].copy())
        return cls(ordinals, panel.values[rows].copy(), hist, futr)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Put rows together; of several at one ordinal the last part's is taken."""
        ordinals = np.concatenate([part.ordinals for part in parts])
        distinct, last = np.unique(ordinals[::-1], return_index=True)
        at = len(ordinals) - 1 - last
        columns = (np.concatenate([getattr(part, name) for part in parts])[at] for name in ("values", "hist", "futr"))
        return cls(distinct, *columns)

    def __len__(self) -> int:
        return len(self.ordinals)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in (self.ordinals, self.values, self.hist, self.futr))


@dataclass
class Epoch:
    """A series as it stood once, and the rows that came then, up to the next epoch.

    Attributes
    ----------
    was : Fleet
        Of this series alone.
    bands : Adaptive or None
        Its adaptive levels, where bands adapt.
    parts : list of Rows
    """

    was: Fleet
    bands: Adaptive | None
    parts: list[Rows] = field(default_factory=list)

    @property
    def n_rows(self) -> int:
        """Rows since."""
        return sum(map(len, self.parts))


@dataclass(frozen=True)
class Again:
    """Rows to walk, from where each series stood before them.

    Attributes
    ----------
    fleet : Fleet
        The series of the call, those with corrected rows as they once stood.
    panel : Panel
        Their rows since then, corrected, with those that are new.
    asked : bool array of shape (N,)
        Which of these rows the call brought.
    from_epoch : dict of id to int
        Position of the epoch that each rewound series goes back to.
    """

    fleet: Fleet
    panel: Panel
    asked: NDArray[np.bool_]
    from_epoch: dict[SeriesId, int]


class Epochs:
    """Epochs of the series that were updated with ``on_revision="rewind"``.

    A series keeps at most two states, and the rows since the older one: of ``epoch_rows`` rows and more in any case,
    of three times as many at most (and one call's).
    """

    def __init__(self) -> None:
        self._of: dict[SeriesId, list[Epoch]] = {}

    def __contains__(self, name: SeriesId) -> bool:
        return name in self._of

    @property
    def nbytes(self) -> int:
        """Bytes of all states and rows."""
        total = 0
        for epoch in (one for epochs in self._of.values() for one in epochs):
            was = epoch.was
            arrays: list[Any] = [was.origins, was.last, was.forecast, was.static, *was.state.values()]
            total += sum(array.nbytes for array in arrays) + sum(part.nbytes for part in epoch.parts)
        return total

    def forget(self, names: Sequence[SeriesId]) -> None:
        """Drop series."""
        for name in names:
            self._of.pop(name, None)

    def record(
        self, before: Fleet, panel: Panel, calibration: Calibration | None, *, epoch_rows: int, starts: bool
    ) -> None:
        """Keep rows that were taken in.

        Parameters
        ----------
        before : Fleet
            The series of the panel, in its order, as they stood before.
        panel : Panel
        calibration : Calibration or None
            As it stood before.
        epoch_rows : int
            Rows after which a new epoch begins.
        starts : bool
            Whether series without any epoch get one.
        """
        for i, name in enumerate(panel.ids):
            epochs = self._of.get(name, [])
            if not epochs and not starts:
                continue
            if not epochs or epochs[-1].n_rows >= epoch_rows:
                epochs = [*epochs, Epoch(before.lane(i), None if calibration is None else calibration.lane(name))]
            epochs[-1].parts.append(Rows.of(panel, i))
            self._of[name] = epochs[-N_EPOCHS:]

    def plan(self, fleet: Fleet, panel: Panel, *, fresh: Fleet) -> Again:
        """Lay out what has to be walked when rows of a panel come late or again. Nothing is changed.

        Parameters
        ----------
        fleet : Fleet
            All series as they stand.
        panel : Panel
            Rows of the call, none of them filled in.
        fresh : Fleet
            The series of the panel as they stand, new ones empty, in its order.

        Raises
        ------
        StampError
            If rows come before the oldest epoch of their series.
        """
        known = dict(zip(fleet.ids, fleet.last.tolist(), strict=True))
        rows, lanes, asked, from_epoch, refused = [], [], [], {}, []
        for i, name in enumerate(panel.ids):
            own = Rows.of(panel, i)
            lane, parts = fresh.lane(i), [own]
            if own.ordinals[0] <= known.get(name, -1):
                epochs = self._of.get(name, [])
                fitting = [k for k, epoch in enumerate(epochs) if epoch.was.last[0] < own.ordinals[0]]
                if not fitting:
                    refused.append(_told(name, own, epochs))
                    continue
                from_epoch[name] = fitting[-1]
                lane = epochs[fitting[-1]].was
                parts = [*(part for epoch in epochs[fitting[-1] :] for part in epoch.parts), own]
            lanes.append(lane)
            rows.append(Rows.joined(parts))
            asked.append(np.isin(rows[-1].ordinals, own.ordinals))
        if refused:
            raise StampError(
                f"{len(refused)} series have revised rows from before what is kept to walk again: "
                f"{', '.join(refused[:5])}. Nothing was changed. Rows are kept from the first "
                "update(on_revision='rewind') of a series on, at least epoch_rows of them: give later rows only, keep "
                "more in time, or fit again."
            )
        return Again(Fleet.of_lanes(lanes), _panel_of(panel, rows), np.concatenate(asked), from_epoch)

    def rewind(self, again: Again) -> None:
        """Forget what came after the epochs that were gone back to; the rows are recorded anew."""
        for name, kept in again.from_epoch.items():
            epochs = self._of[name] = self._of[name][: kept + 1]
            epochs[-1].parts.clear()

    def bands_of(self, again: Again) -> dict[SeriesId, Adaptive | None]:
        """Give the adaptive levels of the series that are rewound, as they stood."""
        return {name: self._of[name][kept].bands for name, kept in again.from_epoch.items()}


def _told(name: SeriesId, own: Rows, epochs: Sequence[Epoch]) -> str:
    if not epochs:
        return f"{name!r} keeps no rows"
    early = int(epochs[0].was.last[0]) + 1 - int(own.ordinals[0])
    return f"{name!r} starts {early} rows before the oldest that is kept"


def _panel_of(panel: Panel, rows: Sequence[Rows]) -> Panel:
    """Give the series of a panel these rows."""
    series, first, lengths = [], [], []
    for i, one in enumerate(rows):
        cuts = np.flatnonzero(np.diff(one.ordinals) > 1) + 1
        bounds = np.concatenate([[0], cuts, [len(one)]])
        series += [i] * (len(bounds) - 1)
        first += one.ordinals[bounds[:-1]].tolist()
        lengths += np.diff(bounds).tolist()
    covariates = panel.covariates
    if covariates is not None:
        hist, futr = (np.concatenate([getattr(one, name) for one in rows]) for name in ("hist", "futr"))
        covariates = Covariates(hist, futr, covariates.static)
    return replace(
        panel,
        piece_series=np.array(series, np.int64),
        piece_first=np.array(first, np.int64),
        offsets=np.concatenate([[0], np.cumsum(np.array(lengths, np.int64))]),
        values=np.concatenate([one.values for one in rows]),
        source=None,
        covariates=covariates,
    )
