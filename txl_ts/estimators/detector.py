"""The anomaly detector: every row is judged by what a model that remembers had said about it."""

from __future__ import annotations

import time as clock
from collections.abc import Sequence
from os import PathLike
from typing import Any, Literal, Self

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils import check_random_state, metadata_routing

from txl_ts.calibration import Calibration
from txl_ts.config import ModelConfig, check_choice, check_integer, check_number, check_quantiles
from txl_ts.detector_model import DetectorModel, Tail, unpacked
from txl_ts.errors import ParameterError, ShapeError
from txl_ts.estimators import detector_files
from txl_ts.estimators.detector_columns import take_columns
from txl_ts.estimators.detector_fitting import least_alpha, roles_of, train_detector
from txl_ts.estimators.forecaster import NotFittedError
from txl_ts.estimators.row_scores import RowScores
from txl_ts.estimators.series_memories import SeriesMemories
from txl_ts.estimators.series_rows import Name, SeriesRows, check_start, read_rows
from txl_ts.export.detector import export_detector
from txl_ts.instants import read_duration
from txl_ts.live import LiveSession
from txl_ts.state import State, init_state
from txl_ts.stream import Watch
from txl_ts.stream.score import KINDS, NEVER, Surprise, check_horizons
from txl_ts.stream.statuses import DRIFT, MISSING, OK, WARMING_UP
from txl_ts.training import GRADIENTS, History, TrainingSettings
from txl_ts.walk import Pace, walk

CHANNELS = ("mixed", "independent")
QUANTILES = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)
_CONTAMINATION = 0.01
_MEM_LEN, _LOOKBACK = 32, 32
# Of an epoch: a few hundred rows are fitted in a moment.
_LEAST_STEPS = 8


class TXLAnomalyDetector(SeriesMemories, OutlierMixin, BaseEstimator):
    """Score rows of sensors by how far they lie from what was forecast for them, and alarm within a budget.

    Rows are in time order and belong to one series, or to those that ``series_id`` names; a panel (three axes) holds
    one series each. A row is judged by the forecast that was made before it, from the rows before it alone. Most rows
    of ``fit`` train the model; blocks of them, spread over time, are held out and say which scores are normal. NaN is a
    missing value: it has no part in the score, and a row without any value has none.

    Parameters
    ----------
    contamination : float or "auto"
        Share of normal rows that may alarm. ``"auto"``: .01, or the least that the held-out rows can support.
    false_alarms : str, optional
        The same as a rate, such as ``"1 per 30d"``; instead of ``contamination``.
    step : duration or "auto"
        Time between two rows, for ``false_alarms``; ``"auto"`` takes it from ``time``.
    per : {"stream", "fleet"}
    n_streams : int
        Whose budget it is, and how many streams share it; see :class:`~txl_ts.calibration.Budget`.
    tail : {"empirical", "gpd"}
        ``"gpd"`` fits a tail beyond the held-out scores, and allows any budget.
    online : bool
        In a watch, rows that do not alarm take the place of the oldest calibration rows. (:meth:`update` judges by the
        calibration of ``fit``, as :meth:`detect` and the graph do.)
    kind : {"surprise", "deviation", "novelty", "level"}
        ``"surprise"``: −log₁₀ of the probability of lying so far out of the forecast distribution, of all sensors
        together; ``"deviation"``: distance from the forecast in deviations of the training errors, of the worst sensor;
        ``"novelty"``: how far outside the range that the stream has had; ``"level"``: smoothed distance from a running
        level that holds still while a sensor is off. See :class:`~txl_ts.stream.Surprise`.
    context : sequence of str or int
        Sensors (names, or positions) that the model sees and that are not judged, such as set points and commands.
    horizons : "auto" or tuple of int
        Steps ahead: a row is compared with what was said so many rows before it. ``"auto"``: one, and with
        ``"novelty"`` 24 too.
    smooth : float or "auto"
        Half-life in rows of a running mean that takes the place of each sensor's part; 0 for none. Finds what lasts,
        and hides what is short. ``"auto"``: none, and 5.2 rows for ``"level"``.
    span : int or "auto"
        Rows in which ``"novelty"`` forgets the whole range (``"auto"``: never), half-life of the ``"level"`` (200).
    channels : {"mixed", "independent"}
        One token for all sensors of a row, or each sensor as a stream of its own, with shared weights.
    quantiles : sequence of float, optional
        Trained quantiles, .5 among them and at least one on each side.
    warm_up : int or "auto"
        First rows of a series that get no score. ``"auto"``: until the look-back is filled, and 32 on long series.
    calibration_share : float
        Of the rows to hold out.
    block_len : int or "auto"
        Rows of a held-out block. ``"auto"``: a twentieth of a typical series, at most 512.
    patch_len, mem_len, lookback, half_life : int or "auto"
        Rows of a token, memory length in rows, rows of the linear path, half-life of the running scaler in rows.
    scaler : {"running", "standard"}
        Scale each series by what it has seen so far, or all by the training rows.
    d_model, n_layers, n_heads : int
    d_ff : int or "auto"
    dropout, learning_rate, weight_decay : float
    max_epochs : int
        0 leaves the linear path alone.
    patience, batch_size, segment_len : int
        Of training.
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
    deterministic : bool
        Walk series one by one in a fixed grid of rows, so that their scores do not depend, to the bit, on which others
        are there. Slower.
    random_state : int, RandomState or None
    verbose : bool

    Attributes
    ----------
    offset_ : float
        ``decision_function`` is ``score_samples`` less this.
    calibration_ : Calibration
        From scores to p-values; its ``alpha`` is the level, its ``threshold`` the score at which alarms begin.
    contamination_ : float
        The level, as a share of rows.
    n_features_in_ : int
    feature_names_in_ : array of shape (n_features_in_,)
        Where X had names: those of the sensors.
    config_ : ModelConfig
    params_ : dict
        The same as a dictionary, with reach, warm-up, horizons, floor and the state's bytes per series.
    history_ : History
    n_parameters_ : int
    fit_seconds_ : float

    Examples
    --------
    >>> import numpy as np
    >>> from txl_ts import TXLAnomalyDetector
    >>> X = np.random.default_rng(0).normal(size=(600, 2))
    >>> detector = TXLAnomalyDetector(max_epochs=1).fit(X[:500])
    >>> X[550, 1] = 9.0
    >>> found = detector.detect(X[500:])
    >>> int(found.score[32:].argmax()) + 32, found.worst[50], bool(found.is_alarm[50])
    (50, 'x1', True)

    References
    ----------
    Dai et al. (2019), Transformer-XL (arXiv 1901.02860). Vovk (2012), Conditional validity of inductive conformal
    predictors (arXiv 1209.2673).
    """

    __metadata_request__predict = {"start": metadata_routing.UNUSED}  # noqa: RUF012 - scikit-learn reads it so
    __metadata_request__decision_function = {"start": metadata_routing.UNUSED}  # noqa: RUF012

    _model: DetectorModel
    config_: ModelConfig
    history_: History
    calibration_: Calibration

    def __init__(
        self,
        *,
        contamination: float | Literal["auto"] = "auto",
        false_alarms: str | None = None,
        step: Any = "auto",
        per: str = "stream",
        n_streams: int = 1,
        tail: str = "empirical",
        online: bool = False,
        kind: str = "surprise",
        context: Sequence[str | int] = (),
        horizons: Sequence[int] | Literal["auto"] = "auto",
        smooth: float | Literal["auto"] = "auto",
        span: int | Literal["auto"] = "auto",
        channels: str = "mixed",
        quantiles: Sequence[float] | None = None,
        warm_up: int | Literal["auto"] = "auto",
        calibration_share: float = 0.2,
        block_len: int | Literal["auto"] = "auto",
        patch_len: int = 1,
        mem_len: int | Literal["auto"] = "auto",
        lookback: int | Literal["auto"] = "auto",
        half_life: float | Literal["auto"] = "auto",
        scaler: str = "running",
        d_model: int = 32,
        n_layers: int = 2,
        n_heads: int = 4,
        d_ff: int | Literal["auto"] = "auto",
        dropout: float = 0.1,
        learning_rate: float = 3e-3,
        weight_decay: float = 1e-2,
        max_epochs: int = 10,
        patience: int = 3,
        batch_size: int = 8,
        segment_len: int = 64,
        bptt_segments: int = 1,
        memory_gradient: float | Sequence[float] = 1.0,
        memory_grad_clip: float | None = None,
        checkpoint_activations: bool = False,
        deterministic: bool = False,
        random_state: int | RandomState | None = 0,
        verbose: bool = False,
    ) -> None:
        self.contamination = contamination
        self.false_alarms = false_alarms
        self.step = step
        self.per = per
        self.n_streams = n_streams
        self.tail = tail
        self.online = online
        self.kind = kind
        self.context = context
        self.horizons = horizons
        self.smooth = smooth
        self.span = span
        self.channels = channels
        self.quantiles = quantiles
        self.warm_up = warm_up
        self.calibration_share = calibration_share
        self.block_len = block_len
        self.patch_len = patch_len
        self.mem_len = mem_len
        self.lookback = lookback
        self.half_life = half_life
        self.scaler = scaler
        self.d_model = d_model
        self.n_layers = n_layers
        self.n_heads = n_heads
        self.d_ff = d_ff
        self.dropout = dropout
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
        self.deterministic = deterministic
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn what is true: NaN is a missing value, panels are three-dimensional."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        return tags

    # -- fitting ----------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, *, time: Any = None, series_id: Any = None) -> Self:
        """Train, calibrate on held-out rows, then fill the memory of each series.

        Parameters
        ----------
        X : array or frame of shape (n_rows, n_sensors), or array of shape (n_series, n_rows, n_sensors)
            Rows in time order within each series, most of them normal; NaN is a missing value, infinity an error. A
            series of a panel that ended early is padded with rows of NaN. In a long frame of pandas, polars or pyarrow
            the columns ``"unique_id"`` and ``"ds"``, or those that ``series_id`` and ``time`` name, are ids and times;
            all others are sensors.
        y : None
            Not used; there for scikit-learn.
        time : array of shape (n_rows,) or column name, optional
            Datetimes or numbers that must increase within each series. Rows are steps; the median difference of
            datetimes is the ``step`` of ``false_alarms``. The index of a pandas frame is taken if it holds datetimes.
        series_id : array of shape (n_rows,), str, int or column name, optional
            Series of each row; one name if all rows are one series, which they are without it. A panel takes one name
            per series.

        Returns
        -------
        TXLAnomalyDetector
            Itself.

        Raises
        ------
        ParameterError
            If a parameter cannot work; also if the budget needs more held-out rows than there are.
        ShapeError, ColumnError, StampError, TrainingError, ValueError
        """
        begin = clock.perf_counter()
        contamination = self._check_budget()
        settings = self._training_settings()
        X, time, series_id = take_columns(X, time=time, series_id=series_id)
        rows = self._read(X, series_id=series_id, time=time, reset=True)
        if not (np.isfinite(rows.values).any()):
            raise ParameterError("X holds no value at all: there is nothing to learn from.")
        length = rows.stop - rows.first
        n_channels = rows.values.shape[1]
        config, surprise = self._sizes(n_channels, longest=int(length.max()))
        block_len = None if self.block_len == "auto" else check_integer("block_len", self.block_len, at_least=1)
        share = check_number("calibration_share", self.calibration_share, at_least=1e-9, below=1, example=0.2)
        gap = surprise.horizons[-1] + config.patch_len + round(2 * surprise.smooth)
        roles, block_len = roles_of(length, share=share, block_len=block_len, gap=gap)
        trained = train_detector(
            rows.runs,
            roles,
            config,
            settings,
            surprise,
            independent=self.channels == "independent",
            deterministic=bool(self.deterministic),
        )
        scores = [part[~np.isnan(part)].astype(np.float64) for part in trained.scores]
        step = self._step(rows, time)
        if not sum(map(len, scores)):
            raise ShapeError(
                f"n_samples = {int(length.sum())} rows leave no held-out row with a score (blocks of {block_len}, the "
                f"first {surprise.warm_rows} rows of a series have none). Give more rows, or a shorter warm_up."
            )
        calibration = self._calibrated(scores, contamination, step)
        self._model, self.history_, self.config_ = trained.model, trained.history, config
        self._scores, self._step_ns, self.block_len_ = scores, step, block_len
        self._take_calibration(calibration)
        self._keep_memories(rows)
        self._bets: dict[Name, dict[str, Any] | None] = {}  # against drift, of the series that were updated
        self._describe()
        self.fit_seconds_ = clock.perf_counter() - begin
        return self

    def _calibrated(self, scores: list[NDArray[np.float64]], contamination: float | None, step: Any) -> Calibration:
        if contamination is None and self.false_alarms is None:
            contamination = least_alpha([part.astype(np.float32) for part in scores], _CONTAMINATION)
            if self.per == "fleet":
                contamination = min(contamination * self.n_streams, 0.5)
        return Calibration(
            scores,
            step=step,
            contamination=contamination,
            false_alarms=self.false_alarms,
            per=self.per,
            n_streams=self.n_streams,
            tail=self.tail,
            online=bool(self.online),
        )

    def _take_calibration(self, calibration: Calibration) -> None:
        self.calibration_ = calibration
        table, tail = calibration.table()
        self._model.calibrate(table, None if tail is None else Tail(*tail))
        # An alarm begins at the threshold, and an outlier below 0.
        self.offset_ = -float(np.nextafter(calibration.threshold, -np.inf))
        self.contamination_ = calibration.alpha

    # -- judging ----------------------------------------------------------------------------------------------------

    def detect(
        self, X: Any, *, time: Any = None, series_id: Any = None, start: Literal["fitted"] | None = None
    ) -> RowScores:
        """Say all that there is to say about rows; nothing is changed.

        Parameters
        ----------
        X, time, series_id
            As in :meth:`fit`. The rows of a panel come one series behind the other.
        start : {"fitted"}, optional
            Continue the memories that are kept since ``fit`` and ``update`` (series are known by their names; a new one
            starts empty). By default every series starts empty.

        Returns
        -------
        RowScores

        Raises
        ------
        NotFittedError, ParameterError, ShapeError, ColumnError, StampError, StateError, ValueError
        """
        self._check_fitted()
        check_start(start)
        rows = self._read_more(X, time=time, series_id=series_id)
        state = None if start is None else self._memories_of(rows)
        return self._judged(rows, state, [None] * len(rows.first) if start is None else self._bets_of(rows))

    def update(self, X: Any, *, time: Any = None, series_id: Any = None) -> RowScores:
        """Take in new rows: the memories of their series move on. Any split of the rows gives the same answer.

        Parameters
        ----------
        X, time, series_id
            As in :meth:`fit`; new names begin by themselves.

        Returns
        -------
        RowScores

        Raises
        ------
        NotFittedError, ParameterError, ShapeError, ColumnError, StampError, StateError, ValueError
            Nothing was changed then.
        """
        self._check_fitted()
        rows = self._read_more(X, time=time, series_id=series_id)
        state = self._memories_of(rows)
        bets = self._bets_of(rows)
        found = self._judged(rows, state, bets)
        names = ("",) if rows.names is None else rows.names
        self._keep_moved(names, state)
        self._bets.update(zip(names, bets, strict=True))
        return found

    def score_samples(
        self, X: Any, *, time: Any = None, series_id: Any = None, start: Literal["fitted"] | None = None
    ) -> NDArray[np.float64]:
        """Give the scores in scikit-learn's sign: higher is more normal; NaN for a row without a score.

        Parameters are those of :meth:`detect`.
        """
        return -self.anomaly_score(X, time=time, series_id=series_id, start=start)

    def anomaly_score(
        self, X: Any, *, time: Any = None, series_id: Any = None, start: Literal["fitted"] | None = None
    ) -> NDArray[np.float64]:
        """Give the scores of rows: higher is more unusual; NaN for a row without a score.

        Parameters are those of :meth:`detect`.
        """
        return self.detect(X, time=time, series_id=series_id, start=start).score.astype(np.float64)

    def decision_function(
        self, X: Any, *, time: Any = None, series_id: Any = None, start: Literal["fitted"] | None = None
    ) -> NDArray[np.float64]:
        """Give ``score_samples`` less ``offset_``: below 0 is an outlier; NaN for a row without a score.

        Parameters are those of :meth:`detect`.
        """
        return self.score_samples(X, time=time, series_id=series_id, start=start) - self.offset_

    def predict(
        self, X: Any, *, time: Any = None, series_id: Any = None, start: Literal["fitted"] | None = None
    ) -> NDArray[np.int64]:
        """Give −1 for rows that alarm and 1 for the others, those without a score among them: see their status.

        Parameters are those of :meth:`detect`.
        """
        decision = self.decision_function(X, time=time, series_id=series_id, start=start)
        return np.where(decision < 0, -1, 1)

    def p_value(
        self, X: Any, *, time: Any = None, series_id: Any = None, start: Literal["fitted"] | None = None
    ) -> NDArray[np.float64]:
        """Give the share of normal rows that score as high as each row; NaN for a row without a score.

        Parameters are those of :meth:`detect`.
        """
        return self.detect(X, time=time, series_id=series_id, start=start).p_value

    def fit_predict(self, X: Any, y: Any = None, *, time: Any = None, series_id: Any = None) -> NDArray[np.int64]:
        """Fit, then predict the same rows; parameters are those of :meth:`fit`. The budget is about other rows."""
        return self.fit(X, time=time, series_id=series_id).predict(X, time=time, series_id=series_id)

    def watch(self, **options: Any) -> Watch:
        """Open a :class:`~txl_ts.stream.Watch` over this model: messages in, rows with statuses and alerts out.

        The scores are those of :meth:`update` for the same rows, streams start empty.

        Parameters
        ----------
        **options
            Of :class:`~txl_ts.stream.Intake` (``tick``, ``late``, ``max_gap``, … ; ``channels`` are the sensors as
            gauges unless given), and of the watch (``alerts``, ``protect_memory``, ``on_revision``, …).

        Returns
        -------
        Watch

        Raises
        ------
        NotFittedError, ParameterError
        """
        self._check_fitted()
        return detector_files.opened_watch(self, options)

    def live(self) -> LiveSession:
        """Open a torch session with the protocol of ``StreamSession``, without exporting anything; it starts empty.

        Raises
        ------
        NotFittedError
        """
        self._check_fitted()
        return detector_files.live_session(self)

    def export_state(self, path: str | PathLike[str]) -> None:
        """Write the kept memories alone, for a session to restore: streams are named after the series.

        An only series without a name becomes the stream ``"stream"``.

        Raises
        ------
        NotFittedError, SaveError
        StateError
            If no memories were kept.
        """
        self._check_fitted()
        detector_files.export_state(path, self)

    def export_onnx(self, path: str | PathLike[str], *, profile: str = "opset18") -> dict[str, Any]:
        """Write the detector as one stateful ONNX graph: scores, parts, p-values and forecasts, memories in and out.

        Scaling, missing values, the score and the calibration are inside; ``status``, beside the values, says which
        readings must not be used. What was written is run and compared with the model before it is kept.

        Parameters
        ----------
        path : path
            Such as ``"pump.onnx"``; the contract goes beside it, as ``pump.contract.json``.
        profile : {"opset18", "opset23"}
            Version of ONNX's operators: ONNX Runtime 1.16 or newer runs the first, 1.23 or newer the second.

        Returns
        -------
        dict
            The contract: names, shapes, units, sizes, calibration, and the parity that was measured.

        Raises
        ------
        NotFittedError, ParameterError, MissingExtraError, ExportError, SaveError
        """
        self._check_fitted()
        return export_detector(self._model, path, about=detector_files.about_detector(self), profile=profile)

    def _bets_of(self, rows: SeriesRows) -> list[dict[str, Any] | None]:
        return [self._bets.get(name) for name in (rows.names or ("",))]

    def _judged(self, rows: SeriesRows, state: State | None, bets: list[dict[str, Any] | None]) -> RowScores:
        """Score rows; ``state`` and ``bets``, those of each series, are moved on in place."""
        n, channels = len(rows.values), rows.values.shape[1]
        levels = self.config_.quantiles
        picked = [0, levels.index(0.5), len(levels) - 1]
        score, p_value = np.full(n, np.nan, np.float32), np.full(n, np.nan)
        parts = np.full((n, channels), np.nan, np.float32)
        bands = np.full((n + 1, channels, 3), np.nan, np.float32)
        status = np.full(n, OK, object)
        # Rows of a panel behind the end of a series have no score either.
        runs = [rows.values[a:b] for a, b in zip(rows.first, rows.stop, strict=True)]
        kept = init_state(self._model.state_specs(), n_lanes=len(runs)) if state is None else state
        for a, b, age, ahead in zip(rows.first, rows.stop, kept["age"][:, 0], kept["ahead"], strict=True):
            status[a : min(a + self._model.warm_rows - int(age), b)] = WARMING_UP
            if self._model.surprise.horizons[0] == 1:
                bands[a] = np.where(ahead[0, :, -1:] > 0, ahead[0][:, picked], np.nan)
        for stretch in walk(self._model, runs, kept, pace=Pace(bool(self.deterministic))):  # type: ignore[arg-type]
            y, scores, of_sensors, _ = unpacked(stretch.y)
            for i, lane in enumerate(stretch.lanes):
                at = rows.first[lane] + stretch.row
                here = slice(at, at + y.shape[1])
                score[here], parts[here] = scores[i], of_sensors[i]
                said = y[i, : min(y.shape[1], rows.stop[lane] - at - 1), 0][..., picked]
                bands[at + 1 : at + 1 + len(said)] = said
        p_value = self.calibration_.p_values(score.astype(np.float64))
        for i, (a, b) in enumerate(zip(rows.first, rows.stop, strict=True)):
            has_drifted, bets[i] = self.calibration_.drifts(score[a:b].astype(np.float64), bets[i])
            status[a:b][has_drifted] = DRIFT
            status[a:b][np.isnan(rows.values[a:b]).any(axis=1)] = MISSING
            if rows.panel is not None:
                status[b : a + rows.panel[1]] = MISSING
        ordered = [rows.in_order_of_x(one) for one in (score, p_value, parts, status.astype(str), bands[:-1])]
        score, p_value, parts, status, bands = ordered
        return RowScores(
            score=score,
            p_value=p_value,
            is_alarm=p_value <= self.calibration_.alpha,
            parts=parts,
            status=status,
            low=bands[..., 0],
            median=bands[..., 1],
            high=bands[..., 2],
            sensors=self._sensors(),
        )

    # -- files ------------------------------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Save weights, calibration, memories and parameters to one file (safetensors and JSON), atomically.

        Raises
        ------
        NotFittedError, SaveError
        ParameterError
            If ``random_state`` is a generator, which JSON cannot hold.
        """
        self._check_fitted()
        detector_files.save_detector(path, self)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Load what :meth:`save` wrote. A file from a stranger can do nothing but fail.

        Raises
        ------
        FileFormatError
            If the file is damaged, crafted, or of another class.
        """
        return detector_files.load_detector(path, cls)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _check_fitted(self) -> None:
        if not hasattr(self, "config_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet. Call fit(X), or load a saved one.")

    def _read(self, X: Any, *, series_id: Any, time: Any, reset: bool = False) -> SeriesRows:
        return read_rows(self, X, series_id=series_id, time=time, reset=reset)

    def _read_more(self, X: Any, *, time: Any, series_id: Any) -> SeriesRows:
        """Read rows after a fit; those of several series need the names that the fit had."""
        X, time, series_id = take_columns(X, time=time, series_id=series_id)
        rows = self._read(X, series_id=series_id, time=time)
        self._refuse_unnamed(rows)
        return rows

    def _sensors(self) -> tuple[str, ...]:
        if hasattr(self, "feature_names_in_"):
            return tuple(self.feature_names_in_.tolist())
        return tuple(f"x{i}" for i in range(self.n_features_in_))

    def _check_budget(self) -> float | None:
        if isinstance(self.contamination, str):
            if self.contamination != "auto":
                raise ParameterError(f"contamination={self.contamination!r} must be 'auto' or a number in (0, 0.5].")
            return None
        if self.false_alarms is not None:
            raise ParameterError(
                f"contamination={self.contamination!r} and false_alarms={self.false_alarms!r}: give one of them, and "
                "leave contamination='auto' beside false_alarms."
            )
        return check_number("contamination", self.contamination, at_least=1e-300, below=0.5 + 1e-12, example=0.001)

    def _training_settings(self) -> TrainingSettings:
        seed = self.random_state
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            seed = int(check_random_state(seed).randint(2**31 - 1))
        names = ("learning_rate", "weight_decay", "max_epochs", "patience", "batch_size", "segment_len")
        return TrainingSettings(
            **{name: getattr(self, name) for name in (*names, *GRADIENTS)},
            random_state=int(seed),
            verbose=bool(self.verbose),
            least_steps=_LEAST_STEPS,
        )

    def _sizes(self, n_channels: int, *, longest: int) -> tuple[ModelConfig, Surprise]:
        check_choice("channels", self.channels, CHANNELS)
        check_choice("kind", self.kind, KINDS)
        usual = (1, 24) if self.kind == "novelty" else (1,)
        horizons = (
            usual if isinstance(self.horizons, str) and self.horizons == "auto" else check_horizons(self.horizons)
        )
        quantiles = QUANTILES if self.quantiles is None else check_quantiles(self.quantiles)
        if not quantiles[0] < 0.5 < quantiles[-1]:
            raise ParameterError(f"quantiles={quantiles} need levels on both sides of 0.5: take (0.1, 0.5, 0.9).")
        lookback = max(1, min(_LOOKBACK, longest // 8)) if self.lookback == "auto" else self.lookback
        config = ModelConfig(
            h=horizons[-1],
            quantiles=quantiles,
            n_channels=1 if self.channels == "independent" else n_channels,
            patch_len=self.patch_len,
            stride=1,
            mem_len=max(1, min(_MEM_LEN, longest // 8)) if self.mem_len == "auto" else self.mem_len,
            lookback=lookback,
            half_life=max(2, min(256, longest // 4)) if self.half_life == "auto" else self.half_life,
            scaler=self.scaler,
            d_model=self.d_model,
            n_layers=self.n_layers,
            n_heads=self.n_heads,
            d_ff=2 * self.d_model if self.d_ff == "auto" else self.d_ff,
            dropout=self.dropout,
        )
        settled = max(lookback, config.patch_len, min(_LOOKBACK, longest // 8), 1)
        warm = settled if self.warm_up == "auto" else self.warm_up
        is_level = self.kind == "level"
        smooth = (5.2 if is_level else 0.0) if self.smooth == "auto" else self.smooth
        span = (200 if is_level else NEVER) if self.span == "auto" else self.span
        return config, Surprise(
            kind=self.kind,
            horizons=horizons,
            smooth=check_number("smooth", smooth, at_least=0, below=np.inf, example=5),
            judged=self._judged_columns(n_channels),
            span=check_integer("span", span, at_least=1),
            warm_rows=check_integer("warm_up", warm, at_least=1),
        )

    def _judged_columns(self, n: int) -> tuple[bool, ...] | None:
        """Which sensors are judged; None if all are."""
        if isinstance(self.context, str) or not isinstance(self.context, Sequence):
            raise ParameterError(f"context={self.context!r} must be a list of sensors, such as ['valve'].")
        names = self._sensors()
        places: dict[Any, int] = {name: i for i, name in enumerate(names)} | {i: i for i in range(n)}
        if unknown := [one for one in self.context if one not in places]:
            raise ParameterError(f"context names {unknown[:5]}: known are {list(names)[:10]} and positions below {n}.")
        left_out = {places[one] for one in self.context}
        if len(left_out) == n:
            raise ParameterError("context holds all sensors: there is nothing left to judge.")
        return tuple(i not in left_out for i in range(n)) if left_out else None

    def _step(self, rows: SeriesRows, time: Any) -> int | None:
        """Time between two rows in nanoseconds; None if nobody knows."""
        if not isinstance(self.step, str) or self.step != "auto":
            return read_duration("step", self.step, at_least=1)
        if self.false_alarms is not None and (rows.step_ns is None):
            raise ParameterError(
                f"false_alarms={self.false_alarms!r} is a rate in time, and nobody knows how far rows are apart. Give "
                "datetimes as time=…, or step='1min'."
            )
        return rows.step_ns

    def _describe(self) -> None:
        """Derive what is shown from what is kept."""
        self.n_parameters_ = sum(p.numel() for p in self._model.parameters())
        config = self.config_
        self.params_ = (
            config.to_json()
            | self._model.surprise.to_json()
            | {"reach": config.reach, "state_nbytes": self._model.state_nbytes()}
        )
