"""The forecaster: fit on a frame of many series, forecast, take in new rows, backtest."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError as SklearnNotFittedError

from txl_ts.config import ModelConfig, check_choice, check_integer
from txl_ts.errors import ParameterError, TxlError
from txl_ts.estimators import files
from txl_ts.estimators.ahead import forecast_ahead, path_quantiles
from txl_ts.estimators.backtest import Batch, backtest, cutoff_range, metrics_of, rows_until
from txl_ts.estimators.bands import Watch
from txl_ts.estimators.columns import Level, forecast_columns, pick_quantiles, read_law
from txl_ts.estimators.continuing import Continues
from txl_ts.estimators.exports import Exports
from txl_ts.estimators.fitting import Fitted, fit_panel
from txl_ts.estimators.fleet import Fleet
from txl_ts.estimators.kept import KeptMemories
from txl_ts.estimators.tuning import Tunes
from txl_ts.estimators.updating import Updates
from txl_ts.estimators.weights import read_weights, without_column
from txl_ts.estimators.window import Windows
from txl_ts.frames import FrameStyle, Panel, Roles, id_frame, long_frame, wide_frame, wide_id_frame, with_words_of
from txl_ts.training import GRADIENTS, History, LinearFit, TrainingSettings
from txl_ts.walk import Pace


class NotFittedError(TxlError, SklearnNotFittedError):
    """The estimator was used before ``fit``."""


class TXLForecaster(Updates, KeptMemories, Windows, Exports, Tunes, Continues):
    """Forecast many series with one recurrent model that remembers each of them.

    After ``fit`` every series keeps its memory: ``update`` moves it on row by row without refitting, ``predict`` reads
    it. Any split of the rows into calls gives the same numbers.

    Parameters
    ----------
    h : int
        Steps ahead.
    freq : str, int or None
        Step of the grid, in the spelling of pandas or polars (``"1h"``, ``"5min"``, ``"MS"``) or an integer; ``"auto"``
        infers it from all series. None is uneven time: rows come when they come, and the model knows how far apart, in
        median steps (``"~1h"``: in hours).
    quantiles : sequence of float, optional
        Trained quantiles, .5 among them. Default: .1, .2, …, .9.
    season_length : int or "auto"
        Rows of a season, which sizes the model and is the unit of the losses ``"mase"`` and ``"owa"``; where the
        look-back reaches back to before a series began, the series is taken to have repeated its first season.
        ``"auto"`` takes it from ``freq`` (24 for hours, 12 for months); integer time has none to take.
    context : str or int, optional
        History that forecasts should reach back to, such as ``"90d"`` or a number of rows; sets ``lookback`` and
        ``mem_len`` where these are ``"auto"``.
    patch_len, stride, mem_len, lookback, half_life : int or "auto"
        Rows of a token, rows between two visits of the memory, memory length in visits, rows of the linear path,
        half-life of the running normaliser in rows. ``"auto"`` sizes them from the frequency and the length of the
        series; ``params_`` says what was chosen. ``mem_len`` may be a sequence with one length per layer.
    scaler : {"running", "standard"}
        Normalise each series by what it has seen so far, or all by the training rows.
    transform : {"log1p", "sqrt", "asinh"}, optional
        The model sees the target through this map, and losses are measured there; forecasts and bands come back in raw
        units, in the exported graph too. ``log1p`` and ``sqrt`` keep the sign of negative values.
    non_negative : bool
        Forecasts below 0 become 0.
    distribution : {"normal", "student_t", "negative_binomial"}, optional
        Train a law of each step by its likelihood, instead of quantiles by the pinball loss: it answers at any level,
        and knows its mean. ``"negative_binomial"`` is for counts, and is not exported.
    channels : {"independent", "mixed"}
        Whether several targets are series of their own with the same weights, or channels of one series, with one token
        per row and one memory. With one target there is no difference.
    memory : str
        Memory policy: ``"fifo"``, the newest ``mem_len`` visits alone, or with a far memory beside them: ``"sinks"``,
        ``"compressive"``, ``"two_rate"``, ``"gated"``, ``"importance"``, ``"tokens"``, ``"linear"``, ``"same_layer"``,
        or one that was registered; see ``docs/memory.md``.
    memory_params : dict, optional
        Parameters of the policy, such as ``{"n_slots": 32}``; ``params_`` says all of them.
    d_model, n_layers, n_heads : int
    d_ff : int or "auto"
        Sizes of the network.
    dropout : float
    loss : {"pinball", "squared", "mase", "owa"}
        ``"pinball"`` in deviations of each series; ``"squared"`` trains the point forecast by squared error;
        ``"mase"`` measures in seasonal differences; ``"owa"`` adds a relative term (M4's measure).
    learning_rate, weight_decay : float
    max_epochs : int
        0 leaves the linear path alone.
    patience : int
        Epochs without a better validation loss before training stops.
    batch_size : int
        Lanes (series × phases) in a training step.
    segment_len : int
        Visits of a training segment.
    bptt_segments : int
        Segments of a training step, through which gradients run; 1 stops them at the segment. See
        ``docs/gradients.md``, for the next three too.
    memory_gradient : float or sequence of float
        Share of the gradient that passes from a segment to the one before it, or one per place in the window, the
        newest row first.
    memory_grad_clip : float, optional
        Largest norm of the gradient that passes.
    checkpoint_activations : bool
        Compute each segment once more on the way back instead of keeping all its numbers.
    carry_memory : bool
        False empties the memory at each segment, in training and in walks (there counted from the first row of each
        call); for comparisons.
    precision : {"float32", "bf16"}
        In which the layers compute, in training and afterwards; memory and scaling are float32, graphs in all.
    replay_size : int
        Stretches of the rows that were trained on (a look-back and a training segment each) that are kept for
        :meth:`partial_fit` to train on again, each of all so far as likely as any other. They are part of the file. 0
        keeps none; read when a fit begins anew.
    calendar : "auto" or sequence of str, optional
        Features of the stamp, on the wall clock of its zone, that are known ahead by themselves: ``"hour"``,
        ``"weekday"``, ``"month"``, ``"yearday"``, ``"holidays:CC"`` (extra ``holidays``). ``"auto"`` takes hour,
        weekday and yearday as far as they differ between rows.
    align : {"error", "nearest"}
        Stamps off the grid are an error, or are moved to it and counted.
    max_gap : int, optional
        A gap of more missing rows begins a series anew. Default: the reach of the model. Where time is uneven, a gap of
        more median steps; by default none does.
    on_bad_series : {"raise", "skip"}
        A series that cannot be used is an error, or is left out and listed in ``skipped_``.
    deterministic : bool
        Run series in a fixed lane width and row grid, so that their numbers do not depend, to the bit, on which other
        series are there. Slower.
    random_state : int
    verbose : bool
        Show a bar with rows per second while training, and in walks that take longer than a second; after a fit, what
        was cleaned, chosen and gained.

    Attributes
    ----------
    config_ : ModelConfig
        Sizes of the model.
    params_ : dict
        The same as a dictionary, with the reach, and the state's bytes per series.
    history_ : History
        Training and validation losses; entry 0 is the linear path alone.
    validation_mse_, validation_mae_ : float
        Errors of the point forecast on the validation rows, in units of the target.
    skipped_ : tuple of (id, reason)
    cleaned_ : list of str
        What was done to the rows, in sentences.
    calibration_ : Calibration or None
        What :meth:`calibrate` found.
    adapter_ : Adapter or None
        What :meth:`fine_tune` with ``method="lora"`` added to the weights.
    n_parameters_ : int
    fit_seconds_ : float

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from txl_ts import TXLForecaster
    >>> t = np.arange(400)
    >>> df = pd.DataFrame({"unique_id": "a", "ds": t, "y": np.sin(t * 2 * np.pi / 24)})
    >>> model = TXLForecaster(h=3, patch_len=8, d_model=8, n_heads=2, max_epochs=1).fit(df)
    >>> list(model.predict(level=[80]).columns)
    ['unique_id', 'ds', 'TXL', 'TXL-lo-80', 'TXL-hi-80']

    References
    ----------
    Dai et al. (2019), Transformer-XL (arXiv 1901.02860).
    """

    # Set by fit and load; told here, since other methods read them.
    history_: History
    linear_fit_: LinearFit

    def __init__(
        self,
        h: int = 1,
        *,
        freq: str | int | None = "auto",
        quantiles: Sequence[float] | None = None,
        season_length: int | Literal["auto"] = "auto",
        context: str | int | None = None,
        patch_len: int | Literal["auto"] = "auto",
        stride: int | Literal["auto"] = "auto",
        mem_len: int | Sequence[int] | Literal["auto"] = "auto",
        lookback: int | Literal["auto"] = "auto",
        half_life: float | Literal["auto"] = "auto",
        scaler: str = "running",
        transform: str | None = None,
        non_negative: bool = False,
        distribution: str | None = None,
        channels: str = "independent",
        memory: str = "fifo",
        memory_params: dict[str, int | float] | None = None,
        d_model: int = 64,
        n_layers: int = 2,
        n_heads: int = 4,
        d_ff: int | Literal["auto"] = "auto",
        dropout: float = 0.2,
        loss: str = "pinball",
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-2,
        max_epochs: int = 10,
        patience: int = 3,
        batch_size: int = 32,
        segment_len: int = 24,
        bptt_segments: int = 1,
        memory_gradient: float | Sequence[float] = 1.0,
        memory_grad_clip: float | None = None,
        checkpoint_activations: bool = False,
        carry_memory: bool = True,
        precision: str = "float32",
        replay_size: int = 0,
        calendar: str | Sequence[str] | None = None,
        align: str = "error",
        max_gap: int | None = None,
        on_bad_series: str = "raise",
        deterministic: bool = False,
        random_state: int = 0,
        verbose: bool = False,
    ) -> None:
        self.h = h
        self.freq = freq
        self.quantiles = quantiles
        self.season_length = season_length
        self.context = context
        self.patch_len = patch_len
        self.stride = stride
        self.mem_len = mem_len
        self.lookback = lookback
        self.half_life = half_life
        self.scaler = scaler
        self.transform = transform
        self.non_negative = non_negative
        self.distribution = distribution
        self.channels = channels
        self.memory = memory
        self.memory_params = memory_params
        self.d_model = d_model
        self.n_layers = n_layers
        self.n_heads = n_heads
        self.d_ff = d_ff
        self.dropout = dropout
        self.loss = loss
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.max_epochs = max_epochs
        self.patience = patience
        self.batch_size = batch_size
        self.segment_len = segment_len
        self.bptt_segments = bptt_segments
        self.memory_gradient = memory_gradient
        self.memory_grad_clip = memory_grad_clip
        self.checkpoint_activations = checkpoint_activations
        self.carry_memory = carry_memory
        self.precision = precision
        self.replay_size = replay_size
        self.calendar = calendar
        self.align = align
        self.max_gap = max_gap
        self.on_bad_series = on_bad_series
        self.deterministic = deterministic
        self.random_state = random_state
        self.verbose = verbose

    # -- fitting ----------------------------------------------------------------------------------------------------

    def fit(
        self,
        df: Any,
        *,
        id_col: str | None = "unique_id",
        time_col: str = "ds",
        target_col: str | Sequence[str] = "y",
        hist_cols: Sequence[str] = (),
        futr_cols: Sequence[str] = (),
        static_cols: Sequence[str] = (),
        cat_cols: Sequence[str] = (),
        static_df: Any = None,
        val_size: int | None = None,
        sample_weight: str | None = None,
        checkpoint: str | PathLike[str] | None = None,
    ) -> Self:
        """Train on a long frame, then fill the memory of each of its series.

        Parameters
        ----------
        df : pandas or polars DataFrame, or pyarrow Table
            One row per series and time, in any order; series may have gaps, NaN and different lengths.
        id_col : str or None
            None if the frame is one series.
        time_col : str
        target_col : str or sequence of str
            Several columns of a wide frame are forecast side by side, and columns of the result are named
            ``"load_TXL"`` and so on; ``channels`` says whether each is a series of its own.
        hist_cols, futr_cols : sequence of str
            Columns beside the target that are known up to now, and ahead (``futr_df`` of :meth:`predict`). Missing
            values are taken as such.
        static_cols : sequence of str
            Columns of ``static_df``, one value per series.
        cat_cols : sequence of str
            Those of the three lists above that hold categories; one that was not fitted counts as not known.
        static_df : frame, optional
            One row per series: the id column and ``static_cols``.
        val_size : int, optional
            The last rows of each series choose the epoch and are never trained on. Without it a tail chooses the number
            of epochs, and then all rows are trained on.
        sample_weight : str, optional
            Column that says what the error at each row counts for in training and in the choice of the epoch; from 0
            on. Rows of weight 0 are still seen, as history; some that are trained on, and some that choose the epoch,
            need more.
        checkpoint : path, optional
            Folder to write checkpoints to; a run that was interrupted goes on from there, to the same numbers.

        Returns
        -------
        TXLForecaster
            Itself.

        Raises
        ------
        FrameError
            If the frame cannot be used; the subclass and the text say why.
        ParameterError
            If a parameter has a value that cannot work.
        TrainingError
            If the loss is no longer finite.
        """
        how: Any = {"id_col": id_col, "time_col": time_col, "target_col": target_col, "val_size": val_size}
        how |= {"hist_cols": hist_cols, "futr_cols": futr_cols, "static_cols": static_cols, "cat_cols": cat_cols}
        return self._fit_frame(df, static_df, sample_weight=sample_weight, checkpoint=checkpoint, **how)

    # -- using ------------------------------------------------------------------------------------------------------

    def predict(
        self,
        h: int | None = None,
        *,
        df: Any = None,
        futr_df: Any = None,
        static_df: Any = None,
        on_missing: Literal["raise", "mask"] = "raise",
        start: Literal["fitted"] | None = None,
        level: Sequence[float] | None = None,
        quantiles: Sequence[float] | None = None,
        mean: bool = False,
        ids: Sequence[str | int] | None = None,
        n_paths: int | None = None,
        random_state: int = 0,
    ) -> Any:
        """Forecast the rows after the last one of each series. Nothing is changed.

        Beyond the trained ``h`` the forecast continues itself. By default its medians are fed into forked memories, a
        trained horizon at a time: as cheap as walking the rows once, and bands that are too narrow from the second
        horizon on, since each horizon takes the medians before it for certain. With ``n_paths`` paths are drawn step by
        step instead (see :meth:`sample_paths`), and quantiles are those of the paths: one row of the model per step and
        path.

        Parameters
        ----------
        h : int, optional
            Steps ahead; any number. Default: the trained one.
        df : frame, optional
            Rows to walk first: each series starts empty and is forgotten afterwards. Without it the kept memories
            speak.
        futr_df : frame, optional
            The ``futr_cols`` of the rows ahead; :meth:`make_future_frame` gives their ids and times. Where time is
            uneven its rows are the times that are forecast, any number for each series, instead of ``h`` median steps;
            series that it does not name are left out.
        static_df : frame, optional
            The ``static_cols`` of series in ``df`` that were not fitted.
        on_missing : {"raise", "mask"}
            Whether a cell of ``futr_df`` that is missing is an error, or is forecast without.
        start : {"fitted"}, optional
            With ``df``: continue the kept memories instead of starting empty; they stay as they were.
        level : sequence of float, optional
            Central intervals in percent: columns ``TXL-lo-80`` and ``TXL-hi-80``.
        quantiles : sequence of float, optional
            Columns ``TXL_ql0.1``, …; not together with ``level``. Default: all trained quantiles.
        mean : bool
            A column ``TXL-mean`` too: the mean of the law, which a model with a ``distribution`` knows.
        ids : sequence, optional
            Only these series.
        n_paths : int, optional
            Read the quantiles off so many sampled paths.
        random_state : int
            Seed of the paths.

        Returns
        -------
        frame
            Of the kind that was fitted on (with ``df``: of its kind): id, time, ``TXL`` (the median) and quantiles.

        Raises
        ------
        NotFittedError, ParameterError, FrameError, StateError
        """
        self._check_fitted()
        moved = self.calibration_ is not None and n_paths is None
        columns = forecast_columns(self.config_, level=level, quantiles=quantiles, mean=mean, any_level=not moved)
        n_ahead = self.config_.h if h is None else check_integer("h", h, at_least=1)
        if start not in (None, "fitted"):
            raise ParameterError(f"start={start!r} must be None or 'fitted'.")
        fleet, style = self._fleet, self._style
        if df is not None:
            panel = self._read_more(df, static_df, continues=start == "fitted")
            kept = self._fleet if start == "fitted" else Fleet.fresh(self._model)
            kept.refuse_old_rows(panel, call="predict(start='fitted')")
            fleet, _ = self._advance(kept.take_for(panel, self._model), panel, one_step=False)
            style = panel.style
        elif static_df is not None:
            raise ParameterError(
                "static_df goes with df=rows, for series that were not fitted; predict() alone reads the kept "
                "memories, which have their static columns. Leave static_df out, or give the rows too."
            )
        elif start == "fitted":
            raise ParameterError("start='fitted' goes with df=rows; predict() alone reads the kept memories already.")
        fleet = self._taken(fleet, ids)
        if self._freq.is_uneven and futr_df is not None:
            if h is not None or n_paths is not None:
                raise ParameterError("futr_df names the times that are forecast: leave h and n_paths out.")
            fleet, asked, futr = self._asked_ahead(fleet, style, futr_df, on_missing=on_missing)
            n_asked, inside = asked.stamps.shape[1], asked.inside.ravel()
            values = self._ahead(fleet, n_asked, list(columns.values()), futr=futr, n_paths=None, seed=0)
            values = values.reshape(-1, len(columns))[inside]
            lanes, stamps = np.repeat(np.arange(len(fleet)), asked.counts), asked.stamps.ravel()[inside]
            return self._frame(style, fleet.ids, lanes, stamps, columns, values)
        futr = self._known_ahead(fleet, n_ahead, style, futr_df, on_missing=on_missing)
        values = self._ahead(fleet, n_ahead, list(columns.values()), futr=futr, n_paths=n_paths, seed=random_state)
        lanes = np.repeat(np.arange(len(fleet)), n_ahead)
        stamps = fleet.ahead(n_ahead, freq=self._freq, style=style).stamps().ravel()
        return self._frame(style, fleet.ids, lanes, stamps, columns, values.reshape(-1, *values.shape[2:]))

    def make_future_frame(self, h: int | None = None, *, df: Any = None, ids: Sequence[str | int] | None = None) -> Any:
        """Give the ids and times of the rows that :meth:`predict` would forecast, to be filled with ``futr_cols``.

        Parameters
        ----------
        h : int, optional
            Steps ahead; any number. Default: the trained one.
        df : frame, optional
            Rows that ``predict(df=…)`` will walk; without it the rows after the kept memories.
        ids : sequence, optional
            Only these series.

        Returns
        -------
        frame
            Of the kind that was fitted on (with ``df``: of its kind): id and time.

        Raises
        ------
        NotFittedError, ParameterError, FrameError, StateError
        """
        self._check_fitted()
        n_ahead = self.config_.h if h is None else check_integer("h", h, at_least=1)
        fleet, style = self._fleet, self._style
        if df is not None:
            panel = self._read_rows(df)
            fleet = Fleet.at_end_of(panel, self._model)
            style = panel.style
        turns = [rows for rows, _, _ in self._rows_ahead(self._taken(fleet, ids), n_ahead, style)]
        names = turns[0].ids  # of all ids; what else there is are other rows of some of them
        place = {name: i for i, name in enumerate(names)}
        lanes = np.array([place[name] for rows in turns for name in rows.ids], np.int64).repeat(n_ahead)
        stamps = np.concatenate([rows.stamps().ravel() for rows in turns])
        lanes, stamps = np.unique(np.stack([lanes, stamps]), axis=1) if len(turns) > 1 else (lanes, stamps)
        return long_frame(style, ids=(names, lanes), stamps=stamps, columns={})

    def cross_validation(
        self,
        df: Any,
        *,
        h: int | None = None,
        n_windows: int,
        step_size: int = 1,
        refit: bool | int = False,
        use_fitted: bool = False,
        val_size: int | None = None,
        level: Sequence[float] | None = None,
        quantiles: Sequence[float] | None = None,
        mean: bool = False,
        output: Literal["frame", "metrics", "batches"] = "frame",
        id_col: str | None = "unique_id",
        time_col: str = "ds",
        target_col: str | Sequence[str] = "y",
        hist_cols: Sequence[str] = (),
        futr_cols: Sequence[str] = (),
        static_cols: Sequence[str] = (),
        cat_cols: Sequence[str] = (),
        static_df: Any = None,
    ) -> Any:
        """Backtest: forecasts from many cutoffs, each series walked once. The estimator itself is not changed.

        Parameters
        ----------
        df : frame
            Whole history; the last cutoff leaves ``h`` rows of each series.
        h : int, optional
            Steps ahead, at most the trained ``h``.
        n_windows : int
            Cutoffs per series.
        step_size : int
            Rows between cutoffs.
        refit : bool or int
            False fits once, on the rows up to the first cutoff; ``k`` fits again every ``k`` cutoffs, True at every
            one.
        use_fitted : bool
            Walk with the weights that are there. Raises if a cutoff lies before a series' fitted end: such a backtest
            would have seen its answers.
        val_size : int, optional
            For the fits, as in :meth:`fit`.
        level, quantiles, mean
            As in :meth:`predict`.
        output : {"frame", "metrics", "batches"}
            All forecasts as one frame; errors per series; or an iterator over :class:`Batch`, for backtests too large
            for a frame.
        id_col, time_col, target_col : str
            Columns, where no fit has told them (with ``use_fitted`` those of ``fit`` count).
        hist_cols, futr_cols, static_cols, cat_cols, static_df
            As in :meth:`fit`, where no fit has told them. What is known ahead at a cutoff is read from ``df``, and only
            ``futr_cols`` are.

        Returns
        -------
        frame or iterator of Batch
            ``"frame"``: id, time, cutoff, ``TXL``, quantiles, target.

        Raises
        ------
        NotFittedError, ParameterError, FrameError
        """
        check_choice("output", output, ("frame", "metrics", "batches"))
        for name, value in (("n_windows", n_windows), ("step_size", step_size)):
            check_integer(name, value, at_least=1)
        every = check_integer("refit", int(refit) if isinstance(refit, bool) else refit, at_least=0)
        if use_fitted:
            self._check_fitted()
            if every:
                raise ParameterError("use_fitted=True and refit exclude each other: leave one of them out.")
            if hist_cols or futr_cols or static_cols or cat_cols:
                raise ParameterError(
                    "with use_fitted=True the columns are those of fit: leave the lists of columns out."
                )
            panel, steps = self._read_judging(df, static_df), self._steps(h)
            roles = self._roles
        else:
            self._settings(val_size=val_size)
            names: Any = {"id_col": id_col, "time_col": time_col, "target_col": target_col}
            roles = self._named_roles(
                df,
                static_df,
                names,
                hist_cols=hist_cols,
                futr_cols=futr_cols,
                static_cols=static_cols,
                cat_cols=cat_cols,
            )
            panel, roles = self._read_first(df, roles, static_df, **names)
            steps = check_integer("h", self.h if h is None else h, at_least=1)
            if steps > self.h:
                raise ParameterError(f"h={steps} is more than the estimator's h={self.h}. Make one with h={steps}.")
        cutoffs = cutoff_range(panel, h=steps, n_windows=n_windows, step_size=step_size)
        config = self.config_ if use_fitted else self._sizes(panel, roles)[0]
        wanted = forecast_columns(config, level=level, quantiles=quantiles, mean=mean)
        levels = list(wanted.values()) if output == "frame" else None
        batches = (
            self._walk_fitted(panel, cutoffs, h=steps, levels=levels)
            if use_fitted
            else self._walk_refitted(panel, roles, cutoffs, h=steps, refit=every, val_size=val_size, levels=levels)
        )
        if output == "batches":
            return batches
        if output == "metrics":
            errors = metrics_of(batches, config.quantiles, n_series=len(panel.lane_names))
            if panel.targets:
                return wide_id_frame(panel.style, targets=panel.targets, ids=panel.lane_names, columns=errors)
            return id_frame(panel.style, ids=panel.ids, columns=errors)
        found = Batch.joined(batches)
        lanes, cutoffs = found.series.repeat(steps), found.cutoffs.repeat(steps)
        ahead = (found.ordinals[:, None] + np.arange(1, steps + 1)).ravel()
        stamps = panel.stamps(lanes // panel.n_lanes_per_series, ahead)
        values = found.forecast.reshape(-1, len(wanted))
        how: Any = {"target": found.y.ravel(), "cutoffs": cutoffs, "targets": panel.targets}
        return self._frame(panel.style, panel.lane_names, lanes, stamps, wanted, values, **how)

    # -- files ------------------------------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Save weights, memories and parameters to one file (safetensors and JSON; no pickle), atomically.

        Raises
        ------
        NotFittedError, SaveError
        """
        self._check_fitted()
        files.save_forecaster(path, self)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Load what :meth:`save` wrote. A file from a stranger can do nothing but fail.

        Raises
        ------
        FileFormatError
            If the file is damaged, crafted, or of another kind.
        """
        return files.load_forecaster(path, cls)

    # -- inside -----------------------------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "config_")

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet. Call fit(df), or load a saved one.")

    def _settings(self, *, val_size: int | None = None) -> TrainingSettings:
        """Check all that a fit needs besides the rows."""
        if val_size is not None:
            check_integer("val_size", val_size, at_least=1)
        check_choice("channels", self.channels, ("independent", "mixed"))
        if self.distribution is not None and self.loss != "pinball":
            raise ParameterError(
                f"distribution={self.distribution!r} is trained by its likelihood, and loss={self.loss!r} would be "
                "another. Leave one of them out."
            )
        names = ("learning_rate", "weight_decay", "max_epochs", "batch_size", "segment_len", "patience", "loss")
        return TrainingSettings(
            **{name: getattr(self, name) for name in (*names, *GRADIENTS)},
            carry_memory=self.carry_memory,
            random_state=self.random_state,
            verbose=self.verbose,
        )

    def _pace(self, config: ModelConfig) -> Pace:
        return Pace(
            fixed_grid=self.deterministic,
            reset_every=None if self.carry_memory else self.segment_len * config.stride,
            bar="walking" if self.verbose else None,
        )

    def _steps(self, h: int | None) -> int:
        if h is None:
            return self.config_.h
        steps = check_integer("h", h, at_least=1)
        if steps > self.config_.h:
            raise ParameterError(
                f"h={h} is more than the trained h={self.config_.h}. Fit a TXLForecaster(h={h}), or ask for less."
            )
        return steps

    def _advance(
        self, fleet: Fleet, panel: Panel, *, one_step: bool = True, watch: Watch | None = None
    ) -> tuple[Fleet, NDArray[np.float32]]:
        gap, pace = self._gap(self.config_), self._pace(self.config_)
        return fleet.advance(self._model, panel, max_gap=gap, pace=pace, one_step=one_step, watch=watch)

    def _ahead(
        self,
        fleet: Fleet,
        h: int,
        levels: Sequence[Level],
        *,
        futr: NDArray[np.float32],
        n_paths: int | None,
        seed: int,
    ) -> NDArray[np.float32]:
        """Quantiles of the next ``h`` rows, (n, h, len(levels)), or with mixed channels (n, h, C, len(levels))."""
        if n_paths is None:
            self._refuse_unknown(f"h={h}, beyond the trained h={self.config_.h},", n_fed=h - self.config_.h)
            y = forecast_ahead(self._model, fleet, h=h, pace=self._pace(self.config_), futr=futr)
            if self.calibration_ is None:
                return read_law(self._model, y, levels)
            return self._moved(y, fleet, levels)
        check_integer("n_paths", n_paths, at_least=1)
        self._refuse_unknown(f"n_paths={n_paths}", n_fed=h - 1)
        seed = check_integer("random_state", seed, at_least=0)
        return path_quantiles(self._model, fleet, h=h, n_paths=n_paths, seed=seed, levels=levels, futr=futr)

    def _moved(self, law: NDArray[np.float32], fleet: Fleet, levels: Sequence[Level]) -> NDArray[np.float32]:
        """Read a calibrated forecast; the mean stays as it is."""
        assert self.calibration_ is not None
        trained = read_law(self._model, law, self.config_.quantiles)
        if trained.ndim == 4:  # channels are calibrated as series are
            trained = np.moveaxis(self.calibration_.moved(np.moveaxis(trained, 2, 1), fleet.ids), 1, 2)
        else:
            trained = self.calibration_.moved(trained, fleet.ids)
        out = pick_quantiles(trained, self.config_.quantiles, [q for q in levels if not isinstance(q, str)])
        at = [i for i, q in enumerate(levels) if isinstance(q, str)]
        return np.insert(out, at, read_law(self._model, law, ["mean"]), axis=-1) if at else out

    def _one_step_frame(
        self,
        panel: Panel,
        before: NDArray[np.float32],
        *,
        level: Sequence[float] | None,
        quantiles: Sequence[float] | None,
    ) -> Any:
        columns = forecast_columns(self.config_, level=level, quantiles=quantiles)
        values = read_law(self._model, before, list(columns.values()))
        stamps = panel.stamps(panel.row_series(), panel.row_ordinals())
        return self._frame(panel.style, panel.ids, panel.row_series(), stamps, columns, values, target=panel.values)

    def _keep(self, fitted: Fitted, panel: Panel, fleet: Fleet, roles: Roles, *, val_size: int | None) -> None:
        """Take over all that fitting found, at once."""
        self._model, self._fleet, self._style, self._freq = fitted.model, fleet, panel.style, panel.freq
        self._roles, self._targets, self.adapter_ = roles, panel.targets, None
        self.config_ = fitted.model.config
        self.history_, self.linear_fit_ = fitted.history, fitted.linear
        self.validation_mse_, self.validation_mae_ = fitted.validation_mse, fitted.validation_mae
        self._fit_panel, self._val_size, self.calibration_ = panel, val_size, None
        self._epochs = None
        self.skipped_, self.cleaned_ = panel.skipped, panel.report.lines()
        self._fitted_end = dict(zip(panel.ids, self._last_stamps().tolist(), strict=True))
        self._replay = self._fresh_replay(panel, val_size=val_size)
        self._describe()

    def _describe(self) -> None:
        """Derive what is shown from what is kept."""
        config, freq = self.config_, self._freq
        self.n_parameters_ = sum(p.numel() for p in self._model.parameters())
        self.params_ = config.to_json() | {
            "freq": freq.text,
            "reach": config.reach,
            "reach_time": freq.duration(config.reach),
            "lookback_time": freq.duration(config.lookback),
            "state_nbytes": self._model.state_nbytes(),
        }

    def _report(self) -> list[str]:
        """Say what was cleaned, chosen and gained."""
        config, freq, history = self.config_, self._freq, self.history_
        lines = [
            *self.cleaned_,
            f"{len(self._fleet)} series, step {freq.text}: patch {config.patch_len}, stride {config.stride}, memory "
            f"{config.memory} of {config.mem_len} visits (reach {freq.duration(config.reach)}), "
            f"look-back {freq.duration(config.lookback)}, "
            f"{self._model.state_nbytes() / 1024:.1f} KiB of state per series, {self.n_parameters_:,} parameters.",
        ]
        if history.validation:
            alone, best = history.validation[0], min(history.validation)
            gain = f"{100 * (1 - best / alone) if alone else 0:.1f} % less"
            if config.distribution != "none":  # logarithms of densities have no zero to count from
                gain = f"{alone - best:.4f} nats less per value"
            lines.append(
                f"Validation loss {alone:.4f} with the linear path alone, {best:.4f} with the recurrent path "
                f"({gain}), epoch {history.best_epoch} of {history.epochs}."
            )
        return lines

    def _frame(
        self,
        style: FrameStyle,
        ids: Sequence[str | int],
        lanes: NDArray[np.int64],
        stamps: NDArray[np.int64],
        columns: dict[str, Level],
        values: NDArray[np.float32],
        *,
        target: NDArray[np.float32] | None = None,
        cutoffs: NDArray[np.int64] | None = None,
        targets: tuple[str, ...] | None = None,
    ) -> Any:
        targets = self._targets if targets is None else targets
        if values.ndim == 3:  # mixed channels: a row of each
            n = len(targets)
            ids = [f"{name}/{channel}" for name in ids for channel in targets]
            lanes, stamps = (lanes[:, None] * n + np.arange(n)).ravel(), stamps.repeat(n)
            values, target = values.reshape(-1, len(columns)), None if target is None else target.ravel()
        out: dict[str, Any] = {name: values[:, i] for i, name in enumerate(columns)}
        extra = None if cutoffs is None else {"cutoff": cutoffs}
        how: Any = {"ids": (ids, lanes), "stamps": stamps, "columns": out, "extra_stamps": extra}
        if targets:
            return wide_frame(style, targets=targets, values=target, **how)
        if target is not None:
            out[style.target_col] = target
        return long_frame(style, **how)

    def _fit_frame(
        self,
        df: Any,
        static_df: Any,
        *,
        max_epochs: int | None = None,
        id_col: str | None = "unique_id",
        time_col: str = "ds",
        target_col: str | Sequence[str] = "y",
        hist_cols: Sequence[str] = (),
        futr_cols: Sequence[str] = (),
        static_cols: Sequence[str] = (),
        cat_cols: Sequence[str] = (),
        val_size: int | None = None,
        sample_weight: str | None = None,
        checkpoint: str | PathLike[str] | None = None,
    ) -> Self:
        """Fit, see :meth:`fit`; ``max_epochs`` instead of the estimator's, if it is given."""
        begin = time.perf_counter()
        self._settings(val_size=val_size)
        check_integer("replay_size", self.replay_size, at_least=0)
        names: Any = {"id_col": id_col, "time_col": time_col, "target_col": target_col}
        roles = self._named_roles(
            df, static_df, names, hist_cols=hist_cols, futr_cols=futr_cols, static_cols=static_cols, cat_cols=cat_cols
        )
        rows = df
        if sample_weight is not None:
            rows = without_column(df, sample_weight, roles=roles, **names)
        panel, roles = self._read_first(rows, roles, static_df, stacklevel=4, **names)
        weight = None
        if sample_weight is not None:
            gap, weights = self._gap(self._sizes(panel, roles)[0]), names | {"target_col": sample_weight}
            weight = read_weights(panel, sample_weight, lambda: self._read(df, panel.freq, gap=gap, **weights))
        how: Any = {"val_size": val_size, "checkpoint": checkpoint, "weight": weight, "max_epochs": max_epochs}
        fitted = self._fit_rows(panel, roles, **how)
        sizes = fitted.model.config
        fleet, _ = Fleet.fresh_for(panel, fitted.model).advance(
            fitted.model, panel, max_gap=self._gap(sizes), pace=self._pace(sizes), one_step=False
        )
        self._keep(fitted, panel, fleet, roles, val_size=val_size)
        self.fit_seconds_ = time.perf_counter() - begin
        if self.verbose:
            print("\n".join(self._report()))  # noqa: T201 - asked for
        return self

    def _fit_rows(
        self, panel: Panel, roles: Roles, *, val_size: int | None, max_epochs: int | None = None, **more: Any
    ) -> Fitted:
        config, season = self._sizes(panel, roles)
        more, settings = {"checkpoint": None} | more, self._settings()
        if max_epochs is not None:
            settings = replace(settings, max_epochs=max_epochs)
        return fit_panel(panel, config, settings, season=season, val_size=val_size, **more)

    def _walk_fitted(self, panel: Panel, cutoffs: NDArray[np.int64], *, h: int, levels: Any) -> Iterator[Batch]:
        first = panel.stamps(np.arange(panel.n_series), cutoffs[:, 0])
        seen = [name for i, name in enumerate(panel.ids) if first[i] < self._fitted_end.get(name, first[i])]
        if seen:
            raise ParameterError(
                f"use_fitted=True, but for {len(seen)} series, such as {seen[:5]}, the first cutoff lies before the "
                "end of the rows that were fitted on: the backtest would have seen its answers. "
                "Give fewer windows, fit on fewer rows, or leave use_fitted out."
            )
        return backtest(self._model, panel, cutoffs, h=h, pace=self._pace(self.config_), levels=levels)

    def _walk_refitted(
        self,
        panel: Panel,
        roles: Roles,
        cutoffs: NDArray[np.int64],
        *,
        h: int,
        refit: int,
        val_size: int | None,
        levels: Any,
    ) -> Iterator[Batch]:
        for some in np.split(cutoffs, range(refit, cutoffs.shape[1], refit), axis=1) if refit else [cutoffs]:
            known, words = with_words_of(panel, rows_until(panel, some[:, 0]), roles)
            fitted = self._fit_rows(rows_until(known, some[:, 0]), words, val_size=val_size)
            pace = self._pace(fitted.model.config)
            yield from backtest(fitted.model, known, some, h=h, pace=pace, levels=levels)
