"""What the kept memories give besides forecasts: pictures, paths, fitted values, bands that hold; and how they end."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from txl_ts.config import ModelConfig, check_choice, check_integer, check_number
from txl_ts.conformal import Conformal
from txl_ts.errors import ParameterError
from txl_ts.estimators.ahead import sample_paths
from txl_ts.estimators.backtest import backtest, held_out_cutoffs
from txl_ts.estimators.bands import Calibration, Watch, fresh_calibration
from txl_ts.estimators.context import EffectiveContext, held_out_ends, measure_context
from txl_ts.estimators.epochs import Epochs
from txl_ts.estimators.fleet import Fleet
from txl_ts.estimators.pictures import draw_forecast
from txl_ts.estimators.reading import ReadsFrames
from txl_ts.frames import Panel, base_ids, long_frame, split_name
from txl_ts.training import Reservoir
from txl_ts.walk import Pace

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class KeptMemories(ReadsFrames):
    """Part of :class:`TXLForecaster`: methods that read, calibrate or drop the memories that it keeps."""

    _fit_panel: Panel | None
    _val_size: int | None
    calibration_: Calibration | None
    _epochs: Epochs | None
    _replay: Reservoir
    carry_memory: bool

    if TYPE_CHECKING:

        def predict(self, *args: Any, **kwargs: Any) -> Any:
            """Forecast; see the subclass."""

        def _pace(self, config: ModelConfig) -> Pace: ...
        def _advance(
            self, fleet: Fleet, panel: Panel, *, one_step: bool = True, watch: Watch | None = None
        ) -> tuple[Fleet, NDArray[np.float32]]: ...
        def _one_step_frame(
            self,
            panel: Panel,
            before: NDArray[np.float32],
            *,
            level: Sequence[float] | None,
            quantiles: Sequence[float] | None,
        ) -> Any: ...

    def plot(
        self,
        df: Any = None,
        *,
        ids: Sequence[str | int] | None = None,
        h: int | None = None,
        level: Sequence[float] | None = None,
        n_history: int | None = None,
        futr_df: Any = None,
        on_missing: Literal["raise", "mask"] = "raise",
    ) -> Figure:
        """Draw the forecasts of the kept memories, one panel per series. Needs the extra ``plot``.

        Parameters
        ----------
        df : frame, optional
            Rows with the columns of ``fit``: those up to the last one that was taken in are drawn as history, later
            ones as what came.
        ids : sequence, optional
            Series to draw. Default: the first six.
        h : int, optional
            As in :meth:`predict`.
        level : sequence of float, optional
            Bands in percent. Default: 80, or less where the trained quantiles do not reach it.
        n_history : int, optional
            Rows of history per panel. Default: four times the rows of the forecast.
        futr_df, on_missing
            As in :meth:`predict`.

        Returns
        -------
        matplotlib.figure.Figure
            Shown by a notebook; ``figure.savefig("forecast.png")`` writes it. For backtests there is
            :func:`txl_ts.plots.plot_backtest`.

        Raises
        ------
        NotFittedError, MissingExtraError, ParameterError, FrameError, StateError
        """
        self._check_fitted()
        known = {"futr_df": futr_df, "on_missing": on_missing}
        return draw_forecast(self, df, ids=ids, h=h, level=level, n_history=n_history, **known)

    def fitted_values(
        self,
        df: Any = None,
        *,
        static_df: Any = None,
        level: Sequence[float] | None = None,
        quantiles: Sequence[float] | None = None,
    ) -> Any:
        """What the fitted weights say about the rows they were fitted on, each one step ahead. Nothing is changed.

        In-sample: errors of these are no estimate of errors to come; :meth:`cross_validation` gives one.

        Parameters
        ----------
        df : frame, optional
            Walk these rows instead, each series from an empty memory. Needed after :meth:`load`: a file does not hold
            the rows.
        static_df : frame, optional
            The ``static_cols`` of series in ``df`` that were not fitted.
        level, quantiles : sequence of float, optional
            As in :meth:`predict`.

        Returns
        -------
        frame
            Id, time, ``TXL``, quantiles, target; NaN where nothing had been seen.

        Raises
        ------
        NotFittedError, ParameterError, FrameError
        """
        self._check_fitted()
        panel = getattr(self, "_fit_panel", None) if df is None else self._read_more(df, static_df, continues=False)
        if panel is None:
            raise ParameterError(
                "the rows of the fit are not here: a loaded file has none, and after partial_fit they are not all. "
                "Give them: fitted_values(df)."
            )
        _, before = self._advance(Fleet.fresh_for(panel, self._model), panel)
        return self._one_step_frame(panel, before, level=level, quantiles=quantiles)

    def sample_paths(
        self,
        h: int | None = None,
        *,
        n_paths: int = 100,
        ids: Sequence[str | int] | None = None,
        random_state: int = 0,
        futr_df: Any = None,
        on_missing: Literal["raise", "mask"] = "raise",
    ) -> Any:
        """Draw possible futures: whole paths, whose steps depend on each other. Nothing is changed.

        The trained quantiles of one row are marginals of each step ahead: they say nothing about how steps hang
        together. A path is drawn step by step: from the one-step quantiles of its own forked memory (linear between
        trained quantiles in normal scores, normal tails beyond) or from its law, then fed into that memory. A path
        costs one row of the model per step, and the state of a series while it is drawn. Targets of a wide frame are
        drawn apart from each other; mixed channels are drawn apart at each step, and share the memory.

        Parameters
        ----------
        h : int, optional
            Steps ahead; any number. Default: the trained one.
        n_paths : int
        ids : sequence, optional
            Only these series.
        random_state : int
            What a series draws depends on this and its id alone.
        futr_df, on_missing
            As in :meth:`predict`.

        Returns
        -------
        frame
            Id, time, ``sample_id`` (from 0), ``TXL`` (of several targets ``load_TXL`` and so on); ordered by id, path,
            time.

        Raises
        ------
        NotFittedError, ParameterError, StateError
        """
        self._check_fitted()
        steps = self.config_.h if h is None else check_integer("h", h, at_least=1)
        check_integer("n_paths", n_paths, at_least=1)
        self._refuse_unknown("sample_paths", n_fed=steps - 1)
        fleet = self._taken(self._fleet, ids)
        futr = self._known_ahead(fleet, steps, self._style, futr_df, on_missing=on_missing)
        seed = check_integer("random_state", random_state, at_least=0)
        drawn = sample_paths(self._model, fleet, h=steps, n_paths=n_paths, seed=seed, futr=futr)
        nothing = np.empty((0, n_paths, steps, self.config_.n_channels), np.float32)  # there may be no series
        paths = np.concatenate([nothing, *(part for _, part in drawn)])
        return self._path_frame(fleet, paths)

    def forget(self, ids: Sequence[str | int]) -> None:
        """Drop the memories of some series: they are forecast no more, and their next rows begin them anew.

        Stretches of them that were kept for :meth:`partial_fit` are dropped too.

        Parameters
        ----------
        ids : sequence

        Raises
        ------
        NotFittedError, ParameterError
        StateError
            If some are not known; nothing is dropped then.
        """
        self._check_fitted()
        names = self._lanes_of(ids)
        self._fleet = self._fleet.without(names)
        if self._epochs is not None:
            self._epochs.forget(names)
        self._replay = self._replay.without(names)
        self.calibration_ = None if self.calibration_ is None else self.calibration_.without(names)

    def calibrate(
        self,
        df: Any = None,
        *,
        n_windows: int | None = None,
        adaptive: bool = False,
        rate: float = 0.005,
        static_df: Any = None,
    ) -> Self:
        """Make bands hold what they say, by the misses on rows that were not trained on (conformal prediction).

        Each quantile of each step ahead is moved by the matching quantile of its own misses, measured in widths of the
        band (split conformal CQR). Then ``predict`` gives moved bands; the median, paths and backtests stay as they
        are. Held-out rows that are like the rows to come are taken for granted: under drift use ``adaptive``.

        Parameters
        ----------
        df : frame, optional
            Whole history with rows after those that were fitted on. Without it the rows of ``fit(val_size=k)``, which
            chose the epoch and were not trained on.
        n_windows : int, optional
            Cutoffs per series. Default: as many as the shortest series has, thinned out to 20,000 in all.
        adaptive : bool
            Go on: each series' levels follow what ``update`` brings (adaptive conformal inference). They are part of
            the state, and of the file. Not with ``futr_cols``: what ``update`` forecasts knows nothing of the rows
            ahead; and not with mixed channels. Rows from before this call can then be revised no more
            (``on_revision="rewind"``): no levels are known there to go back to.
        rate : float
            Step of the adaptive levels: larger follows faster and wavers more.
        static_df : frame, optional
            The ``static_cols`` of series in ``df`` that were not fitted.

        Returns
        -------
        TXLForecaster
            Itself.

        Raises
        ------
        NotFittedError, FrameError
        ParameterError
            If rows were trained on, or there are too few.
        """
        self._check_fitted()
        check_number("rate", rate, at_least=0, below=1, example=0.005)
        if self._freq.is_uneven:
            raise ParameterError(
                "calibrate() counts misses by step ahead, and where time is uneven (freq=None) a forecast is for a "
                "time. Compare the quantiles of cross_validation(df) with what came instead."
            )
        if adaptive and self._roles.futr:
            raise ParameterError(
                f"adaptive=True follows the forecasts that update makes, and they know nothing of futr_cols "
                f"{list(self._roles.futr)} ahead, as those of predict do. Calibrate once: calibrate(adaptive=False)."
            )
        if adaptive and self.config_.n_channels > 1:
            raise ParameterError(
                "adaptive=True follows series with one target each, and channels='mixed' has several in one. Calibrate "
                "once: calibrate(adaptive=False), or fit with channels='independent'."
            )
        h, panel = self.config_.h, self._held_out(df, static_df)
        trained = held_out_ends(panel, self._fitted_end, val_size=self._val_size if df is None else None)
        cutoffs = held_out_cutoffs(panel, trained, h=h, n_windows=n_windows, call="calibration")
        batches = backtest(self._model, panel, cutoffs, h=h, pace=self._pace(self.config_))
        table = Conformal.from_forecasts(((b.forecast, b.y) for b in batches), quantiles=self.config_.quantiles)
        floor = 0.0 if self.config_.non_negative else -np.inf
        if adaptive:
            self._epochs = None  # what they hold of adaptive bands belongs to an earlier calibration, or is not there
        self.calibration_ = fresh_calibration(table, self._fleet, rate=rate if adaptive else None, floor=floor)
        return self

    def effective_context(
        self,
        df: Any = None,
        *,
        contexts: Sequence[int] | None = None,
        n_origins: int = 200,
        loss: str = "pinball",
        static_df: Any = None,
    ) -> EffectiveContext:
        """How much history should I feed, and how far back does the memory help? Nothing is changed.

        At some origins among rows that were not trained on, the context is cut in two ways: the memory is emptied some
        rows before the origin (normaliser and look-back are kept), and everything is, as if the series began there.

        Parameters
        ----------
        df : frame, optional
            Whole history with rows after those that were fitted on. Without it the rows of ``fit(val_size=k)``, which
            chose the epoch and were not trained on.
        contexts : sequence of int, optional
            Rows before the origin. Default: visits of the memory in steps of half an octave, its reach, the look-back
            and twice that, as far as the rows go.
        n_origins : int
            Forecasts to measure per context; each walks its context again.
        loss : {"pinball", "squared"}
            What the answers are about; both are measured, in deviations of each series.
        static_df : frame, optional
            The ``static_cols`` of series in ``df`` that were not fitted.

        Returns
        -------
        EffectiveContext
            ``print`` it for the answer; ``table()`` and ``plot()`` for what it rests on.

        Raises
        ------
        NotFittedError, FrameError
        ParameterError
            If there are too few rows that were not trained on, the model never carries its memory, or time is uneven.
        """
        self._check_fitted()
        check_choice("loss", loss, ("pinball", "squared"))
        if self._freq.is_uneven:
            raise ParameterError(
                "effective_context() cuts the context by rows, and where time is uneven (freq=None) a row is no length "
                "of time. Compare cross_validation(df) of estimators with a larger and a smaller mem_len instead."
            )
        if not self.carry_memory:
            raise ParameterError(
                "carry_memory=False empties the memory at each segment: there is no context to measure."
            )
        panel = self._held_out(df, static_df, call="effective_context")
        trained = held_out_ends(panel, self._fitted_end, val_size=self._val_size if df is None else None)
        return measure_context(self, panel, trained, contexts=contexts, n_origins=n_origins, loss=loss)

    def _held_out(self, df: Any, static_df: Any, *, call: str = "calibrate") -> Panel:
        """Rows that were not trained on, behind those that were."""
        if df is not None:
            return self._read_judging(df, static_df)
        if self._fit_panel is None or self._val_size is None:
            raise ParameterError(
                "no rows were held out: fit with val_size=k, or give the history with rows after those of the fit, "
                f"{call}(df)."
            )
        return self._fit_panel

    def _path_frame(self, fleet: Fleet, paths: NDArray[np.float32]) -> Any:
        """Lay paths (n_series, n_paths, h, C) out by id, path and time, with a column per target."""
        n_paths, steps, n_channels = paths.shape[1:]
        named, names = self._name_targets, base_ids(fleet.ids, self._name_targets, self._style)
        distinct = sorted(set(names))
        rank = {name: i for i, name in enumerate(distinct)}
        # A row for each id and time that any of its targets has: one may have been left out for a while.
        base = np.array([rank[name] for name in names], np.int64).repeat(steps)
        stamps = fleet.ahead(steps, freq=self._freq, style=self._style).stamps().ravel()
        rows, row = np.unique(np.stack([base, stamps], axis=1), axis=0, return_inverse=True)
        row, cuts = row.reshape(len(fleet), steps), np.searchsorted(rows[:, 0], np.arange(len(distinct) + 1))

        def laid_out(values: NDArray[Any]) -> NDArray[Any]:
            """Order (rows, n_paths) by id, path and time."""
            whole = np.broadcast_to(values, (len(rows), n_paths))
            return np.concatenate([whole[:0].ravel(), *(whole[a:b].T.ravel() for a, b in itertools.pairwise(cuts))])

        columns: dict[str, NDArray[Any]] = {"sample_id": laid_out(np.arange(n_paths))}
        target = np.array([split_name(name, named)[1] if named else 0 for name in fleet.ids], np.int64)
        for i, prefix in enumerate([f"{name}_" for name in self._targets] or [""]):
            spread = np.full((len(rows), n_paths), np.nan, np.float32)
            mine, channel = (target == i, 0) if n_channels == 1 else (target == 0, i)
            spread[row[mine]] = paths[mine, ..., channel].swapaxes(1, 2)
            columns[f"{prefix}TXL"] = laid_out(spread)
        ids, stamps = (distinct, laid_out(rows[:, :1])), laid_out(rows[:, 1:])
        return long_frame(self._style, ids=ids, stamps=stamps, columns=columns, sort=False)
