"""The forecaster: fit on a frame of many series, forecast, take in new rows, backtest."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError as SklearnNotFittedError

from txl_ts.config import ModelConfig, check_choice, check_integer
from txl_ts.errors import CleanedDataWarning, ColumnError, ExportError, ParameterError, StampError, TxlError
from txl_ts.estimators import files
from txl_ts.estimators.ahead import forecast_ahead, path_quantiles
from txl_ts.estimators.backtest import Batch, backtest, cutoff_range, metrics_of, rows_until
from txl_ts.estimators.bands import Watch
from txl_ts.estimators.columns import forecast_columns, pick_quantiles
from txl_ts.estimators.fitting import Fitted, fit_panel
from txl_ts.estimators.fleet import Fleet
from txl_ts.estimators.kept import KeptMemories
from txl_ts.estimators.sizes import resolve_season, resolve_sizes
from txl_ts.estimators.weights import read_weights, without_column
from txl_ts.export import LARGEST_ERROR
from txl_ts.frames import FrameStyle, Freq, Panel, id_frame, long_frame, read_long
from txl_ts.live import LiveSession
from txl_ts.model import TXLModel
from txl_ts.training import History, LinearFit, TrainingSettings
from txl_ts.walk import Pace


class NotFittedError(TxlError, SklearnNotFittedError):
    """The estimator was used before ``fit``."""


class TXLForecaster(KeptMemories, BaseEstimator):
    """Forecast many series with one recurrent model that remembers each of them.

    After ``fit`` every series keeps its memory: ``update`` moves it on row by row without refitting, ``predict`` reads
    it. Any split of the rows into calls gives the same numbers.

    Parameters
    ----------
    h : int
        Steps ahead.
    freq : str or int
        Step of the grid, in the spelling of pandas or polars (``"1h"``, ``"5min"``, ``"MS"``) or an integer; ``"auto"``
        infers it from all series.
    quantiles : sequence of float, optional
        Trained quantiles, .5 among them. Default: .1, .2, …, .9.
    season_length : int or "auto"
        Rows of a season, which sizes the model and is the unit of the losses ``"mase"`` and ``"owa"``. ``"auto"`` takes
        it from ``freq`` (24 for hours, 12 for months); integer time has none to take.
    context : str or int, optional
        History that forecasts should reach back to, such as ``"90d"`` or a number of rows; sets ``lookback`` and
        ``mem_len`` where these are ``"auto"``.
    patch_len, stride, mem_len, lookback, half_life : int or "auto"
        Rows of a token, rows between two visits of the memory, memory length in visits, rows of the linear path,
        half-life of the running normaliser in rows. ``"auto"`` sizes them from the frequency and the length of the
        series; ``params_`` says what was chosen.
    scaler : {"running", "standard"}
        Normalise each series by what it has seen so far, or all by the training rows.
    transform : {"log1p", "sqrt", "asinh"}, optional
        The model sees the target through this map, and losses are measured there; forecasts and bands come back in raw
        units, in the exported graph too. ``log1p`` and ``sqrt`` keep the sign of negative values.
    non_negative : bool
        Forecasts below 0 become 0.
    memory : {"fifo"}
        Memory policy.
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
    carry_memory : bool
        False empties the memory at each segment, in training and in walks (there counted from the first row of each
        call); for comparisons.
    align : {"error", "nearest"}
        Stamps off the grid are an error, or are moved to it and counted.
    max_gap : int, optional
        A gap of more missing rows begins a series anew. Default: the reach of the model.
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
    _model: TXLModel
    _fleet: Fleet
    _style: FrameStyle
    _freq: Freq
    _fitted_end: dict[str | int, int]
    config_: ModelConfig
    history_: History
    linear_fit_: LinearFit

    def __init__(
        self,
        h: int = 1,
        *,
        freq: str | int = "auto",
        quantiles: Sequence[float] | None = None,
        season_length: int | Literal["auto"] = "auto",
        context: str | int | None = None,
        patch_len: int | Literal["auto"] = "auto",
        stride: int | Literal["auto"] = "auto",
        mem_len: int | Literal["auto"] = "auto",
        lookback: int | Literal["auto"] = "auto",
        half_life: float | Literal["auto"] = "auto",
        scaler: str = "running",
        transform: str | None = None,
        non_negative: bool = False,
        memory: str = "fifo",
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
        carry_memory: bool = True,
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
        self.memory = memory
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
        self.carry_memory = carry_memory
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
        target_col: str = "y",
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
        time_col, target_col : str
        val_size : int, optional
            The last rows of each series choose the epoch and are never trained on. Without it a tail chooses the number
            of epochs, and then all rows are trained on.
        sample_weight : str, optional
            Column that says what the error at each row counts for in training and in the choice of the epoch; from 0
            on. Rows of weight 0 are still seen, as history.
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
        begin = time.perf_counter()
        self._settings(val_size=val_size)
        rows = df
        if sample_weight is not None:
            rows = without_column(df, sample_weight, taken=[id_col, time_col, target_col])
        panel = self._read_first(rows, id_col=id_col, time_col=time_col, target_col=target_col)
        weight = None
        if sample_weight is not None:
            names: Any = {"id_col": id_col, "time_col": time_col, "target_col": sample_weight}
            gap = self._gap(self._sizes(panel)[0])
            weight = read_weights(panel, sample_weight, lambda: self._read(df, panel.freq, gap=gap, **names))
        fitted = self._fit_rows(panel, val_size=val_size, checkpoint=checkpoint, weight=weight)
        sizes = fitted.model.config
        fleet, _ = Fleet.fresh(fitted.model, panel.ids, panel.origins).advance(
            fitted.model, panel, max_gap=self._gap(sizes), pace=self._pace(sizes), one_step=False
        )
        self._keep(fitted, panel, fleet, val_size=val_size)
        self.fit_seconds_ = time.perf_counter() - begin
        if self.verbose:
            print("\n".join(self._report()))  # noqa: T201 - asked for
        return self

    # -- using ------------------------------------------------------------------------------------------------------

    def predict(
        self,
        h: int | None = None,
        *,
        df: Any = None,
        start: Literal["fitted"] | None = None,
        level: Sequence[float] | None = None,
        quantiles: Sequence[float] | None = None,
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
        start : {"fitted"}, optional
            With ``df``: continue the kept memories instead of starting empty; they stay as they were.
        level : sequence of float, optional
            Central intervals in percent: columns ``TXL-lo-80`` and ``TXL-hi-80``.
        quantiles : sequence of float, optional
            Columns ``TXL_ql0.1``, …; not together with ``level``. Default: all trained quantiles.
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
        columns = forecast_columns(self.config_.quantiles, level=level, quantiles=quantiles)
        n_ahead = self.config_.h if h is None else check_integer("h", h, at_least=1)
        if start not in (None, "fitted"):
            raise ParameterError(f"start={start!r} must be None or 'fitted'.")
        fleet, style = self._fleet, self._style
        if df is not None:
            panel = self._read_more(df, continues=start == "fitted")
            kept = self._fleet if start == "fitted" else Fleet.fresh(self._model)
            kept.refuse_old_rows(panel, call="predict(start='fitted')")
            fleet, _ = self._advance(kept.take_for(panel, self._model), panel, one_step=False)
            style = panel.style
        elif start == "fitted":
            raise ParameterError("start='fitted' goes with df=rows; predict() alone reads the kept memories already.")
        if isinstance(ids, str | int):
            raise ParameterError(f"ids={ids!r} must be a list, such as ids=[{ids!r}].")
        if ids is not None:
            fleet = fleet.take(list(ids))
        lanes = np.repeat(np.arange(len(fleet)), n_ahead)
        ahead = np.tile(np.arange(1, n_ahead + 1), len(fleet))
        stamps = fleet.stamps(lanes, fleet.last[lanes] + ahead, freq=self._freq, zone=style.zone)
        values = self._ahead(fleet, n_ahead, list(columns.values()), n_paths=n_paths, seed=random_state)
        return self._frame(style, fleet, lanes, stamps, columns, values.reshape(-1, len(columns)))

    def update(self, df: Any) -> Any:
        """Take in new rows: the memories move on, the weights stay.

        Parameters
        ----------
        df : frame
            Rows after the last one of each series, with the columns of ``fit``. New series start empty. A call with
            late, repeated or overlapping rows is refused whole, and nothing is changed.

        Returns
        -------
        frame
            What was predicted for those rows one step ahead, before each was seen, beside the target: id, time,
            ``TXL``, quantiles, target. NaN where nothing had been seen.

        Raises
        ------
        NotFittedError, FrameError
        """
        self._check_fitted()
        panel = self._read_more(df, continues=True)
        self._fleet.refuse_old_rows(panel, call="update")
        watch = None if self.calibration_ is None else self.calibration_.watch()
        moved, before = self._advance(self._fleet.take_for(panel, self._model), panel, watch=watch)
        if self.calibration_ is not None and watch is not None:
            self.calibration_ = self.calibration_.after(panel, watch)
        out = self._one_step_frame(panel, before, level=None, quantiles=None)
        self._fleet = self._fleet.merged(moved)
        return out

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
        output: Literal["frame", "metrics", "batches"] = "frame",
        id_col: str | None = "unique_id",
        time_col: str = "ds",
        target_col: str = "y",
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
        level, quantiles : sequence of float, optional
            As in :meth:`predict`.
        output : {"frame", "metrics", "batches"}
            All forecasts as one frame; errors per series; or an iterator over :class:`Batch`, for backtests too large
            for a frame.
        id_col, time_col, target_col : str
            Columns, where no fit has told them (with ``use_fitted`` those of ``fit`` count).

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
            panel, steps = self._read_more(df, continues=False), self._steps(h)
        else:
            self._settings(val_size=val_size)
            panel = self._read_first(df, id_col=id_col, time_col=time_col, target_col=target_col)
            steps = check_integer("h", self.h if h is None else h, at_least=1)
            if steps > self.h:
                raise ParameterError(f"h={steps} is more than the estimator's h={self.h}. Make one with h={steps}.")
        cutoffs = cutoff_range(panel, h=steps, n_windows=n_windows, step_size=step_size)
        batches = (
            self._walk_fitted(panel, cutoffs, h=steps)
            if use_fitted
            else self._walk_refitted(panel, cutoffs, h=steps, refit=every, val_size=val_size)
        )
        if output == "batches":
            return batches
        trained = (self.config_ if use_fitted else self._sizes(panel)[0]).quantiles
        if output == "metrics":
            errors = metrics_of(batches, trained, n_series=panel.n_series)
            return id_frame(panel.style, ids=panel.ids, columns=errors)
        wanted = forecast_columns(trained, level=level, quantiles=quantiles)
        found = Batch.joined(batches)
        series = found.series.repeat(steps)
        stamps = panel.stamps(series, (found.ordinals[:, None] + np.arange(1, steps + 1)).ravel())
        values = pick_quantiles(found.forecast, trained, list(wanted.values())).reshape(-1, len(wanted))
        y, cutoffs = found.y.ravel(), found.cutoffs.repeat(steps)
        return self._frame(panel.style, panel, series, stamps, wanted, values, target=y, cutoffs=cutoffs)

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

    def export_state(self, path: str | PathLike[str]) -> None:
        """Write the kept memories alone, for a stream session to restore.

        Raises
        ------
        NotFittedError, SaveError
        """
        self._check_fitted()
        files.export_state(path, self)

    def export_onnx(
        self,
        path: str | PathLike[str],
        *,
        precision: str = "float32",
        profile: str = "opset18",
        df: Any = None,
        max_error: float | None = LARGEST_ERROR,
    ) -> dict[str, Any]:
        """Write the model as one stateful ONNX graph, with its memories as inputs and outputs.

        Scaling, missing values, the linear path and the quantiles are inside the graph. What was written is run and
        compared with the model before it is kept. A precision with fewer bits makes the file smaller, not faster; its
        error is measured against the float32 graph and stands in the contract.

        Parameters
        ----------
        path : path
            Such as ``"demand.onnx"``; the contract goes beside it, as ``demand.contract.json``.
        precision : {"float32", "float16", "int8-weights", "int8-dynamic"}
            How the weights of the layers are kept. The last one takes one row of one series per call.
        profile : {"opset18", "opset23"}
            Version of ONNX's operators: ONNX Runtime 1.16 or newer runs the first, 1.23 or newer the second.
        df : frame, optional
            Rows to measure the error of the precision on, with the columns of ``fit``; without them rows are drawn.
        max_error : float or None
            Largest error of a precision that is accepted, in standard deviations of the target; None accepts any.

        Returns
        -------
        dict
            The contract: names, shapes, units, sizes, and the parity that was measured.

        Raises
        ------
        NotFittedError, ParameterError, FrameError, MissingExtraError, ExportError, SaveError
        """
        self._check_exportable()
        panel = None if df is None else self._read_more(df, continues=False)
        return files.export_graph(path, self, precision=precision, profile=profile, panel=panel, max_error=max_error)

    def export_triton(
        self,
        folder: str | PathLike[str],
        *,
        name: str = "forecaster",
        n_streams: int = 1024,
        n_lanes: int = 64,
        idle_min: float = 60.0,
    ) -> dict[str, Any]:
        """Write the graph into a model repository of Triton, which then keeps the memories of all streams.

        Parameters
        ----------
        folder : path
            The repository; made if it is not there. It gets ``<name>/config.pbtxt`` and ``<name>/1/model.onnx``.
        name : str
            Under which clients ask for the model.
        n_streams : int
            Streams that are alive at once; each costs ``state_nbytes`` of the contract, in the server.
        n_lanes : int
            Most streams in one call of the graph.
        idle_min : float
            Minutes without a row after which the server forgets a stream.

        Returns
        -------
        dict
            The contract, as :meth:`export_onnx` gives it.

        Raises
        ------
        NotFittedError, ParameterError, MissingExtraError, ExportError, SaveError
        """
        self._check_exportable()
        settings = {"name": name, "n_streams": n_streams, "n_lanes": n_lanes, "idle_min": idle_min}
        return files.export_repository(folder, self, **settings)

    def live(self) -> LiveSession:
        """Open a torch session with the protocol of ``StreamSession``, without exporting anything; it starts empty.

        ``live().restore(path)`` takes what :meth:`export_state` wrote.

        Raises
        ------
        NotFittedError
        """
        self._check_fitted()
        return files.live_session(self)

    # -- inside -----------------------------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "config_")

    def _check_exportable(self) -> None:
        self._check_fitted()
        if self.calibration_ is not None:
            raise ExportError(
                "calibrated bands are not part of the graph: it would give others than predict(). Set "
                "calibration_ = None to export the bands as they were trained."
            )

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet. Call fit(df), or load a saved one.")

    def _settings(self, *, val_size: int | None = None) -> TrainingSettings:
        """Check all that a fit needs besides the rows."""
        if val_size is not None:
            check_integer("val_size", val_size, at_least=1)
        names = ("learning_rate", "weight_decay", "max_epochs", "batch_size", "segment_len", "patience", "loss")
        return TrainingSettings(
            **{name: getattr(self, name) for name in names},
            carry_memory=self.carry_memory,
            random_state=self.random_state,
            verbose=self.verbose,
        )

    def _read(
        self,
        df: Any,
        freq: str | int | Freq,
        *,
        gap: int | None,
        origins: Any = None,
        warn_unused: bool = False,
        **columns: Any,
    ) -> Panel:
        return read_long(
            df,
            **columns,
            freq=freq,
            align=self.align,
            max_gap=gap,
            on_bad_series=self.on_bad_series,
            origins=origins,
            warn_unused=warn_unused,
            warn_cleaned=False,
        )

    def _read_first(self, df: Any, **columns: Any) -> Panel:
        """Read rows to fit on."""
        panel = self._read(df, self.freq, gap=self.max_gap, warn_unused=True, **columns)
        reach = self._sizes(panel)[0].reach
        if self.max_gap is None and panel.report.n_filled > reach:
            # The longest gap to bridge is the reach, which is known only now.
            panel = self._read(df, self.freq, gap=reach, **columns)
        if told := panel.report.changes():
            warnings.warn(f"{' '.join(told)} See cleaned_ and skipped_.", CleanedDataWarning, stacklevel=3)
        return panel

    def _read_more(self, df: Any, *, continues: bool) -> Panel:
        """Read rows with the columns and the frequency that were fitted."""
        style = self._style
        panel = self._read(
            df,
            self._freq,
            gap=self._gap(self.config_),
            origins=self._fleet.known_origins() if continues else None,
            id_col=style.id_col,
            time_col=style.time_col,
            target_col=style.target_col,
        )
        if continues:
            self._refuse_other_kinds(panel)
        # What align moves has been said by fit; a series that is left out is news.
        if panel.skipped:
            left_out = ", ".join(f"{name!r} ({reason})" for name, reason in panel.skipped[:5])
            warnings.warn(f"{len(panel.skipped)} series were skipped: {left_out}.", CleanedDataWarning, stacklevel=3)
        return panel

    def _refuse_other_kinds(self, panel: Panel) -> None:
        """Raise unless ids and stamps are of the kinds that were fitted: they would be taken for others."""
        old, new = self._style, panel.style
        if (old.zone is None) != (new.zone is None):
            raise StampError(
                f"time column {old.time_col!r} was fitted {_zone_text(old)} and now comes {_zone_text(new)}. Nothing "
                "was changed. Give the rows the zone that was fitted: dt.tz_localize, or dt.replace_time_zone."
            )
        known, got = {type(name) for name in self._fleet.ids}, {type(name) for name in panel.ids}
        if known and got - known:
            names = ["/".join(sorted(kind.__name__ for kind in kinds)) for kinds in (known, got)]
            raise ColumnError(
                f"id column {old.id_col!r} was fitted with {names[0]} names and now holds {names[1]}, such as "
                f"{panel.ids[0]!r}. Nothing was changed. Cast the column to {names[0]}."
            )

    def _gap(self, config: ModelConfig) -> int:
        return config.reach if self.max_gap is None else self.max_gap

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
        self, fleet: Fleet, h: int, levels: Sequence[float], *, n_paths: int | None, seed: int
    ) -> NDArray[np.float32]:
        """Quantiles of the next ``h`` rows, (n, h, len(levels))."""
        if n_paths is None:
            y = forecast_ahead(self._model, fleet, h=h, pace=self._pace(self.config_))
            y = y if self.calibration_ is None else self.calibration_.moved(y, fleet.ids)
            return pick_quantiles(y, self.config_.quantiles, levels)
        check_integer("n_paths", n_paths, at_least=1)
        seed = check_integer("random_state", seed, at_least=0)
        return path_quantiles(self._model, fleet, h=h, n_paths=n_paths, seed=seed, levels=levels)

    def _one_step_frame(
        self,
        panel: Panel,
        before: NDArray[np.float32],
        *,
        level: Sequence[float] | None,
        quantiles: Sequence[float] | None,
    ) -> Any:
        columns = forecast_columns(self.config_.quantiles, level=level, quantiles=quantiles)
        values = pick_quantiles(before, self.config_.quantiles, list(columns.values()))
        stamps = panel.stamps(panel.row_series(), panel.row_ordinals())
        return self._frame(panel.style, panel, panel.row_series(), stamps, columns, values, target=panel.values)

    def _keep(self, fitted: Fitted, panel: Panel, fleet: Fleet, *, val_size: int | None) -> None:
        """Take over all that fitting found, at once."""
        self._model, self._fleet, self._style, self._freq = fitted.model, fleet, panel.style, panel.freq
        self.config_ = fitted.model.config
        self.history_, self.linear_fit_ = fitted.history, fitted.linear
        self.validation_mse_, self.validation_mae_ = fitted.validation_mse, fitted.validation_mae
        self._fit_panel, self._val_size, self.calibration_ = panel, val_size, None
        self.skipped_, self.cleaned_ = panel.skipped, panel.report.lines()
        self._fitted_end = dict(zip(panel.ids, self._last_stamps().tolist(), strict=True))
        self._describe()

    def _last_stamps(self) -> NDArray[np.int64]:
        fleet = self._fleet
        return fleet.stamps(np.arange(len(fleet)), fleet.last, freq=self._freq, zone=self._style.zone)

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
            f"{config.mem_len} visits (reach {freq.duration(config.reach)}), "
            f"look-back {freq.duration(config.lookback)}, "
            f"{self._model.state_nbytes() / 1024:.1f} KiB of state per series, {self.n_parameters_:,} parameters.",
        ]
        if history.validation:
            alone, best = history.validation[0], min(history.validation)
            lines.append(
                f"Validation loss {alone:.4f} with the linear path alone, {best:.4f} with the recurrent path "
                f"({100 * (1 - best / alone) if alone else 0:.1f} % less), "
                f"epoch {history.best_epoch} of {history.epochs}."
            )
        return lines

    def _frame(
        self,
        style: FrameStyle,
        named: Fleet | Panel,
        lanes: NDArray[np.int64],
        stamps: NDArray[np.int64],
        columns: dict[str, float],
        values: NDArray[np.float32],
        *,
        target: NDArray[np.float32] | None = None,
        cutoffs: NDArray[np.int64] | None = None,
    ) -> Any:
        out: dict[str, Any] = {name: values[:, i] for i, name in enumerate(columns)}
        if target is not None:
            out[style.target_col] = target
        extra = None if cutoffs is None else {"cutoff": cutoffs}
        return long_frame(style, ids=(named.ids, lanes), stamps=stamps, columns=out, extra_stamps=extra)

    def _fit_rows(self, panel: Panel, *, val_size: int | None, **more: Any) -> Fitted:
        config, season = self._sizes(panel)
        more = {"checkpoint": None} | more
        return fit_panel(panel, config, self._settings(), season=season, val_size=val_size, **more)

    def _sizes(self, panel: Panel) -> tuple[ModelConfig, int]:
        """Sizes and season for these rows."""
        typical = int(np.median(panel.series_rows()))
        season = resolve_season(self.season_length, freq=panel.freq)
        return resolve_sizes(self.get_params(), freq=panel.freq, season=season, typical_length=typical), season

    def _walk_fitted(self, panel: Panel, cutoffs: NDArray[np.int64], *, h: int) -> Iterator[Batch]:
        first = panel.stamps(np.arange(panel.n_series), cutoffs[:, 0])
        seen = [name for i, name in enumerate(panel.ids) if first[i] < self._fitted_end.get(name, first[i])]
        if seen:
            raise ParameterError(
                f"use_fitted=True, but for {len(seen)} series, such as {seen[:5]}, the first cutoff lies before the "
                "end of the rows that were fitted on: the backtest would have seen its answers. "
                "Give fewer windows, fit on fewer rows, or leave use_fitted out."
            )
        return backtest(self._model, panel, cutoffs, h=h, pace=self._pace(self.config_))

    def _walk_refitted(
        self, panel: Panel, cutoffs: NDArray[np.int64], *, h: int, refit: int, val_size: int | None
    ) -> Iterator[Batch]:
        for some in np.split(cutoffs, range(refit, cutoffs.shape[1], refit), axis=1) if refit else [cutoffs]:
            fitted = self._fit_rows(rows_until(panel, some[:, 0]), val_size=val_size)
            yield from backtest(fitted.model, panel, some, h=h, pace=self._pace(fitted.model.config))


def _zone_text(style: FrameStyle) -> str:
    return "without a zone" if style.zone is None else f"with zone {style.zone}"
