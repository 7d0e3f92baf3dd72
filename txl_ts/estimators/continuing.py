"""Learning that goes on: rows of new regimes, with some of the old ones again, and what was forgotten on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any, Self

import narwhals as nw
import numpy as np
import torch
from numpy.typing import NDArray

from txl_ts.config import ModelConfig, check_integer
from txl_ts.errors import ParameterError
from txl_ts.estimators.backtest import backtest, cutoff_range, metrics_of
from txl_ts.estimators.context import later_ends
from txl_ts.estimators.epochs import Epochs
from txl_ts.estimators.fleet import Fleet
from txl_ts.estimators.reading import ReadsFrames
from txl_ts.estimators.sizes import resolve_season
from txl_ts.estimators.split import split
from txl_ts.frames import Panel
from txl_ts.metrics import forgetting
from txl_ts.model import TXLModel
from txl_ts.training import Adapter, Origins, Reservoir, Trainer, TrainingSettings, with_all_trained
from txl_ts.walk import Pace


class Continues(ReadsFrames):
    """Part of :class:`TXLForecaster`: trains on what comes later."""

    replay_size: int
    loss: str
    segment_len: int
    random_state: int
    calibration_: Any
    adapter_: Adapter | None
    _fit_panel: Panel | None
    _val_size: int | None
    _epochs: Epochs | None
    _replay: Reservoir = Reservoir()

    if TYPE_CHECKING:

        def __sklearn_is_fitted__(self) -> bool: ...
        def _settings(self, *, val_size: int | None = None) -> TrainingSettings: ...
        def _pace(self, config: ModelConfig) -> Pace: ...

    def partial_fit(self, df: Any, *, max_epochs: int = 1, static_df: Any = None, **columns: Any) -> Self:
        """Train the weights further on these rows, and let the memories of their series take them in.

        The scaler stays that of the first call, and memory rows from before this call stay as the earlier weights wrote
        them. With ``replay_size`` the kept stretches of earlier rows are trained on beside the new ones; without it no
        old row is seen again, and what it taught may fade: :meth:`learn_regimes` says by how much. What
        :meth:`calibrate` found belonged to other weights, and is dropped.

        Parameters
        ----------
        df : frame
            Rows after the last one of each series, or new series; in training each begins with an empty memory. A call
            with late, repeated or overlapping rows is refused whole, and nothing is changed.
        max_epochs : int
            Passes over the rows; there is no choice among them, except in the first call.
        static_df : frame, optional
            The ``static_cols`` of series that were not fitted.
        **columns
            Of the first call, which is a :meth:`fit` with at most ``max_epochs`` epochs: ``id_col``, ``time_col``,
            ``target_col``, ``hist_cols``, ``futr_cols``, ``static_cols``, ``cat_cols``. Later calls have the same.

        Returns
        -------
        TXLForecaster
            Itself.

        Raises
        ------
        FrameError, ParameterError, TrainingError
        StampError
            If rows come late or again.
        """
        epochs = check_integer("max_epochs", max_epochs, at_least=0)
        if not self.__sklearn_is_fitted__():
            fresh: Any = self  # the subclass knows how to begin
            if unknown := sorted(columns.keys() - signature(fresh.fit).parameters.keys()):
                raise ParameterError(
                    f"partial_fit does not know {unknown}. The first call takes max_epochs and what fit takes: "
                    "id_col, time_col, target_col, hist_cols, futr_cols, static_cols, cat_cols."
                )
            return fresh._fit_frame(df, static_df, max_epochs=epochs, **columns)
        if columns:
            raise ParameterError(f"the columns are those of the first call: leave {sorted(columns)} out.")
        settings = replace(self._settings(), max_epochs=epochs)
        panel = self._read_more(df, static_df, continues=True)
        self._fleet.refuse_old_rows(panel, call="partial_fit")
        before = self._fleet.take_for(panel, self._model)
        rows = self._rows_to_train(panel, self.config_, val_size=None)
        model = _trained(self._model, self._beside_kept(rows), settings)
        moved, _ = before.advance(
            model, panel, max_gap=self._gap(self.config_), pace=self._pace(self.config_), one_step=False
        )
        self._replay = self._with_rows(self._replay, rows, panel)
        self._model, self._fleet = model, self._fleet.merged(moved)
        # Not in place: a copy with another memory shares it.
        self._fitted_end = later_ends(self._fitted_end, dict(zip(panel.ids, self._ends_of(moved), strict=True)))
        self._fit_panel = self._val_size = self._epochs = None  # of other weights, or not all that was trained on
        self.calibration_ = self.adapter_ = None
        return self

    def learn_regimes(
        self,
        train: Sequence[Any],
        test: Sequence[Any],
        *,
        n_windows: int,
        step_size: int = 1,
        max_epochs: int = 1,
        static_df: Any = None,
        **columns: Any,
    ) -> Any:
        """Learn one regime after the other with :meth:`partial_fit`, and tell what each later one did to earlier ones.

        Parameters
        ----------
        train : sequence of frame
            Rows of each regime, in the order in which they come.
        test : sequence of frame
            Rows of each regime that judge: each series is walked from an empty memory and forecast from its last
            cutoffs, as in :meth:`cross_validation`. The rows before the first cutoff only fill the memory, and may be
            those that were trained on; the rows after it must not be, which is not checked: with series of one name in
            all regimes they lie before later rows.
        n_windows, step_size : int
            Cutoffs per series of ``test``, and rows between them.
        max_epochs, static_df, **columns
            As in :meth:`partial_fit`.

        Returns
        -------
        frame
            Of the kind of ``train``, a row for each regime ``on`` that was judged ``after`` another (counted from 0):
            ``mae`` over all windows and steps, in units of the target, and ``forgetting``, which is how much worse it
            is than the best that was reached before; NaN where the regime was just learned. The mean over the rows of
            the last ``after`` is the mean forgetting.

        Raises
        ------
        FrameError, ParameterError, TrainingError

        References
        ----------
        Chaudhry et al. (2018), Riemannian walk for incremental learning (arXiv 1801.10112), section 3.1.
        """
        if not train or len(train) != len(test):
            raise ParameterError(
                f"{len(train)} frames to train on and {len(test)} to judge by: give a pair per regime."
            )
        for name, value in (("n_windows", n_windows), ("step_size", step_size)):
            check_integer(name, value, at_least=1)
        errors = np.full((len(train), len(train)), np.nan)
        for after, df in enumerate(train):
            # Columns are those of the first call; a model that was fitted before refuses them by name.
            self.partial_fit(df, max_epochs=max_epochs, static_df=static_df, **({} if after else columns))
            for on in range(after + 1):
                errors[after, on] = self._error_on(test[on], static_df, n_windows=n_windows, step_size=step_size)
        pairs = np.tril_indices(len(train))
        table = {
            "after": pairs[0],
            "on": pairs[1],
            "mae": errors[pairs],
            "forgetting": forgetting(errors=errors)[pairs],
        }
        return nw.from_dict(table, backend=self._style.implementation).to_native()

    def _error_on(self, df: Any, static_df: Any, *, n_windows: int, step_size: int) -> float:
        panel = self._read_more(df, static_df, continues=False)
        cutoffs = cutoff_range(panel, h=self.config_.h, n_windows=n_windows, step_size=step_size)
        batches = backtest(self._model, panel, cutoffs, h=self.config_.h, pace=self._pace(self.config_))
        found = metrics_of(batches, self.config_.quantiles, n_series=len(panel.lane_names))
        return float(np.nanmean(found["mae"]))

    def _rows_to_train(self, panel: Panel, config: ModelConfig, *, val_size: int | None) -> Origins:
        season = resolve_season(self.season_length, freq=panel.freq)
        held_out = np.full(panel.n_series, val_size or 0, np.int64)
        return split(panel, config, val_rows=held_out, season=season, loss=self.loss).train

    def _beside_kept(self, rows: Origins) -> Origins:
        config = self.config_
        return self._replay.beside(rows, lookback=config.lookback, patch_len=config.patch_len, h=config.h)

    def _fresh_replay(self, panel: Panel, *, val_size: int | None) -> Reservoir:
        """Begin a sample with the rows of a fit; a stretch is a look-back and a training segment."""
        size = check_integer("replay_size", self.replay_size, at_least=0)
        config = self.config_
        empty = Reservoir(size, config.lookback + self.segment_len * config.stride + config.h)
        return self._with_rows(empty, self._rows_to_train(panel, config, val_size=val_size), panel) if size else empty

    def _with_rows(self, replay: Reservoir, rows: Origins, panel: Panel) -> Reservoir:
        piece = np.searchsorted(panel.offsets, rows.pieces.first, side="right") - 1
        ids = [panel.ids[series] for series in panel.piece_series[piece]]
        return replay.with_pieces(rows.pieces, ids, least=self.config_.patch_len, seed=self.random_state)

    def _ends_of(self, fleet: Fleet) -> list[int]:
        ends: NDArray[np.int64] = fleet.stamps(
            np.arange(len(fleet)), fleet.last, freq=self._freq, zone=self._style.zone
        )
        return ends.tolist()


def _trained(model: TXLModel, rows: Origins, settings: TrainingSettings) -> TXLModel:
    """Give a copy of a model, trained further; the one that was given stays."""
    trained = with_all_trained(model)
    if len(rows.pieces):
        with torch.random.fork_rng(devices=[]):  # the user's own stream of numbers must not move
            torch.manual_seed(settings.random_state)
            Trainer(trained, rows, None, settings).run()
    for parameter in trained.parameters():
        parameter.requires_grad_(True)
    return trained.eval()
