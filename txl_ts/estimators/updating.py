"""New rows for kept memories, and rows that were corrected after they had been taken in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from txl_ts.config import check_choice, check_integer
from txl_ts.estimators.bands import Calibration, Watch
from txl_ts.estimators.columns import read_law
from txl_ts.estimators.epochs import REVISIONS, Epochs
from txl_ts.estimators.fleet import Fleet
from txl_ts.estimators.reading import ReadsFrames
from txl_ts.frames import Panel

Floats = NDArray[np.float32]


class Updates(ReadsFrames):
    """Part of :class:`TXLForecaster`: takes in rows."""

    calibration_: Calibration | None
    # Of series that were updated with on_revision="rewind"; not part of a file.
    _epochs: Epochs | None = None

    if TYPE_CHECKING:

        def _advance(
            self, fleet: Fleet, panel: Panel, *, one_step: bool = True, watch: Watch | None = None
        ) -> tuple[Fleet, Floats]: ...
        def _one_step_frame(
            self, panel: Panel, before: Floats, *, level: Sequence[float] | None, quantiles: Sequence[float] | None
        ) -> Any: ...

    def update(
        self,
        df: Any,
        *,
        static_df: Any = None,
        on_revision: Literal["raise", "rewind"] = "raise",
        epoch_rows: int = 1000,
    ) -> Any:
        """Take in new rows: the memories move on, the weights stay.

        Parameters
        ----------
        df : frame
            Rows after the last one of each series, with the columns of ``fit``. New series start empty. A call with
            late, repeated or overlapping rows is refused whole, and nothing is changed, unless ``on_revision`` allows
            them.
        static_df : frame, optional
            The ``static_cols`` of series that were not fitted.
        on_revision : {"raise", "rewind"}
            ``"rewind"`` takes rows that come late, or again with other values, too: their series go back to the newest
            kept epoch before them and walk all rows since again, as if they had come so from the start. Epochs are kept
            from the first such call on, in memory alone: the newest rows of ``fit`` cannot be revised, and a saved
            file begins anew.
        epoch_rows : int
            Rows of a series between two epochs. Two are kept, so that at least so many rows can be revised; a series
            then takes up to three times ``params_["state_nbytes"]``, and the rows since the older epoch.

        Returns
        -------
        frame
            What was predicted for those rows one step ahead, before each was seen, beside the target: id, time,
            ``TXL``, quantiles, target. NaN where nothing had been seen.

        Raises
        ------
        NotFittedError, FrameError, ParameterError
        StampError
            If rows come late or again, or with ``"rewind"`` from before the oldest epoch.
        """
        self._check_fitted()
        check_choice("on_revision", on_revision, REVISIONS)
        check_integer("epoch_rows", epoch_rows, at_least=1)
        rewinds = on_revision == "rewind"
        panel = self._read_more(df, static_df, continues=True)
        if not rewinds:
            self._fleet.refuse_old_rows(panel, call="update")
        elif self._fleet.has_old_rows(panel):
            return self._walk_again(self._read_more(df, static_df, continues=True, gap=0), epoch_rows=epoch_rows)
        before = self._fleet.take_for(panel, self._model)
        moved, said, calibration = self._taken_in(before, panel, self.calibration_)
        out = self._one_step_frame(panel, said, level=None, quantiles=None)
        self._record(before, panel, epoch_rows=epoch_rows, starts=rewinds)
        self._fleet, self.calibration_ = self._fleet.merged(moved), calibration
        return out

    def _walk_again(self, panel: Panel, *, epoch_rows: int) -> Any:
        """Go back to the epochs before corrected rows, and walk from there."""
        epochs = Epochs() if self._epochs is None else self._epochs
        again = epochs.plan(self._fleet, panel, fresh=self._fleet.take_for(panel, self._model))
        calibration = self.calibration_
        if calibration is not None:
            calibration = calibration.put_back(epochs.bands_of(again))
        moved, said, after = self._taken_in(again.fleet, again.panel, calibration)
        out = self._one_step_frame(panel, said[again.asked], level=None, quantiles=None)
        epochs.rewind(again)
        epochs.record(again.fleet, again.panel, calibration, epoch_rows=epoch_rows, starts=True)
        self._epochs, self._fleet, self.calibration_ = epochs, self._fleet.merged(moved), after
        return out

    def _taken_in(
        self, fleet: Fleet, panel: Panel, calibration: Calibration | None
    ) -> tuple[Fleet, Floats, Calibration | None]:
        """Walk; gives the series after it, what was said before each row, and the calibration after it."""
        if calibration is None:
            return *self._advance(fleet, panel), None
        read: Callable[[Floats], Floats] = lambda said: read_law(self._model, said, self.config_.quantiles)  # noqa: E731
        watch = calibration.watch(read)
        moved, said = self._advance(fleet, panel, watch=watch)
        return moved, said, calibration.after(panel, watch)

    def _record(self, before: Fleet, panel: Panel, *, epoch_rows: int, starts: bool) -> None:
        if self._epochs is None and not starts:
            return
        self._epochs = Epochs() if self._epochs is None else self._epochs
        self._epochs.record(before, panel, self.calibration_, epoch_rows=epoch_rows, starts=starts)
