"""What the tabular estimators share: parameters, reading, training, walking, and the memories that they keep."""

from __future__ import annotations

import copy
import time as clock
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Literal, Self

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from txl_ts.config import check_number
from txl_ts.errors import ParameterError
from txl_ts.estimators import label_files
from txl_ts.estimators.forecaster import NotFittedError
from txl_ts.estimators.label_fitting import LabelSplit, continue_labels, fit_labels, hold_out
from txl_ts.estimators.series_memories import SeriesMemories
from txl_ts.estimators.series_rows import SeriesRows, check_start, read_rows
from txl_ts.estimators.window import taken_over
from txl_ts.label_model import LabelConfig, LabelModel
from txl_ts.memory import completed
from txl_ts.training import GRADIENTS, History, LabelRows, LabelSettings
from txl_ts.walk import Pace, walk

_MEM_LEN = 32
_LONGEST_SEGMENT = 64
_LONGEST_SERIES_SEGMENT = 256


class TabularEstimator(SeriesMemories, BaseEstimator):
    """Base of the estimators over ``(X, y)``; see :class:`TXLClassifier` for what the parameters mean."""

    _head: str  # of the model: "classes", "values" or "rows"
    _model: LabelModel
    config_: LabelConfig
    history_: History

    def __init__(
        self,
        *,
        patch_len: int = 1,
        mem_len: int | Sequence[int] | Literal["auto"] = "auto",
        memory: str = "fifo",
        memory_params: dict[str, int | float] | None = None,
        lookback: int = 1,
        half_life: float | Literal["auto"] = "auto",
        scaler: str = "standard",
        pooling: str = "last",
        d_model: int = 32,
        n_layers: int = 2,
        n_heads: int = 4,
        d_ff: int | Literal["auto"] = "auto",
        dropout: float = 0.1,
        learning_rate: float = 3e-3,
        weight_decay: float = 1e-2,
        max_epochs: int = 30,
        early_stopping: bool = False,
        validation_fraction: float = 0.2,
        patience: int = 5,
        batch_size: int = 8,
        segment_len: int | Literal["auto"] = "auto",
        bptt_segments: int = 1,
        memory_gradient: float | Sequence[float] = 1.0,
        memory_grad_clip: float | None = None,
        checkpoint_activations: bool = False,
        precision: str = "float32",
        deterministic: bool = False,
        random_state: int | RandomState | None = 0,
        verbose: bool = False,
    ) -> None:
        self.patch_len = patch_len
        self.mem_len = mem_len
        self.memory = memory
        self.memory_params = memory_params
        self.lookback = lookback
        self.half_life = half_life
        self.scaler = scaler
        self.pooling = pooling
        self.d_model = d_model
        self.n_layers = n_layers
        self.n_heads = n_heads
        self.d_ff = d_ff
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.max_epochs = max_epochs
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.batch_size = batch_size
        self.segment_len = segment_len
        self.bptt_segments = bptt_segments
        self.memory_gradient = memory_gradient
        self.memory_grad_clip = memory_grad_clip
        self.checkpoint_activations = checkpoint_activations
        self.precision = precision
        self.deterministic = deterministic
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn what is true: NaN is a missing value, panels are three-dimensional."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        tags.target_tags.single_output = True
        tags.target_tags.multi_output = False
        return tags

    def _fit(
        self,
        rows: SeriesRows,
        target: NDArray[np.int64] | NDArray[np.float32],
        weight: NDArray[np.float32],
        *,
        n_outputs: int,
        scale: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None,
        by_series: bool = False,
        n_epochs: int | None = None,
    ) -> Self:
        """Train on rows and what is to be said at them, fill the memories; ``n_epochs`` leaves nothing to choose."""
        begin = clock.perf_counter()
        labelled = LabelRows(rows.values, target, weight, rows.first, rows.stop)
        longest = int((rows.stop - rows.first).max())
        config = self._config(rows.values.shape[1], n_outputs=n_outputs, longest=longest)
        settings = self._settings(by_series=by_series)
        split = self._split(labelled, config, settings.random_state, by_series=by_series)
        if n_epochs is not None:
            settings, split = (
                replace(settings, max_epochs=min(n_epochs, settings.max_epochs)),
                LabelSplit(labelled, None),
            )
        self._model, self.history_ = fit_labels(split, labelled, config, settings, scale=scale)
        self.config_ = config
        self._label_per = "series" if by_series else "row"
        self._keep_memories(rows)
        self._describe()
        self.fit_seconds_ = clock.perf_counter() - begin
        return self

    def with_memory(self, mem_len: int | Sequence[int], *, clamp_len: int | None = None) -> Self:
        """Give a copy with a longer or shorter memory than it was trained with. This estimator stays as it is.

        The weights are the same. Kept memories (``start="fitted"``) go over: the newest rows as far as the shorter of
        the two lengths; of a longer memory the rest is empty until rows come.

        Parameters
        ----------
        mem_len : int, or sequence of int
            Memory length in rows, of all layers or of each.
        clamp_len : int, optional
            Rows beyond which all keys count as if they lay so far back, such as the memory length of the training.
            Default: as it is.

        Raises
        ------
        NotFittedError, ParameterError
        """
        self._check_fitted()
        out = copy.copy(self)
        out.mem_len, out._model = mem_len, self._model.with_memory(mem_len, clamp_len=clamp_len)
        out.config_ = out._model.config
        out._kept = taken_over(self._kept, self._model, out._model) if self._names is not None else {}
        out._describe()
        return out

    def save(self, path: str | PathLike[str]) -> None:
        """Save weights, memories and parameters to one file (safetensors and JSON; no pickle), atomically.

        Raises
        ------
        NotFittedError, SaveError
        ParameterError
            If ``random_state`` is a generator, which JSON cannot hold.
        """
        self._check_fitted()
        label_files.save_tabular(path, self)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Load what :meth:`save` wrote. A file from a stranger can do nothing but fail.

        Raises
        ------
        FileFormatError
            If the file is damaged, crafted, or of another class.
        """
        return label_files.load_tabular(path, cls)

    def _learned(self) -> dict[str, Any]:
        """What a subclass learned beside weights, as plain JSON."""
        return {}

    def _learn_from(self, document: dict[str, Any]) -> None:
        """Take back what :meth:`_learned` gave."""

    def _describe(self) -> None:
        """Derive what is shown from what is kept."""
        self.n_parameters_ = sum(p.numel() for p in self._model.parameters())
        config = self.config_
        self.params_ = config.to_json() | {"reach": config.reach, "state_nbytes": self._model.state_nbytes()}

    def _go_on(
        self, rows: SeriesRows, target: NDArray[np.int64] | NDArray[np.float32], weight: NDArray[np.float32]
    ) -> Self:
        """Train one pass further on new rows alone, then let the memories of their series take them in."""
        labelled = LabelRows(rows.values, target, weight, rows.first, rows.stop)
        settings = self._settings(by_series=self._label_per == "series")
        names = ("",) if rows.names is None else rows.names
        keeps = self._names is not None and not (rows.panel is not None and rows.names is None)
        # Before anything is changed: names that do not fit are refused here.
        state = self._memories_of(rows) if keeps else {}
        self._model = continue_labels(self._model, labelled, settings)
        if self._names is not None and keeps:
            self._advance(rows, state)
            self._keep_moved(names, state)
        return self

    def _read(self, X: Any, *, series_id: Any, time: Any, reset: bool = False) -> SeriesRows:
        return read_rows(self, X, series_id=series_id, time=time, reset=reset)

    def _walk(self, X: Any, *, series_id: Any, time: Any, start: Any) -> NDArray[np.float32]:
        """Answers for X: (n_rows, K); of a panel (n_series, K) or (n_series, n_rows, K)."""
        self._check_fitted()
        check_start(start)
        rows = self._read(X, series_id=series_id, time=time)
        self._refuse_unnamed(rows)
        state = None if start is None else self._memories_of(rows)
        last_only = rows.panel is not None and self._label_per == "series"
        # All rows of a panel get an answer, those behind the end of a series too.
        stop = rows.stop if last_only or rows.panel is None else rows.first + rows.panel[1]
        runs = [rows.values[a:b] for a, b in zip(rows.first, stop, strict=True)]
        wanted = np.array([len(run) - 1 for run in runs], np.int64) if last_only else None
        width = self.config_.d_model if self._head == "rows" else self.config_.n_outputs
        out = np.empty((len(runs) if last_only else len(rows.values), width), np.float32)
        for stretch in walk(self._model, runs, state, wanted_from=wanted, pace=Pace(bool(self.deterministic))):
            for y, lane in zip(stretch.y, stretch.lanes, strict=True):
                if not last_only:
                    at = rows.first[lane] + stretch.row
                    out[at : at + len(y)] = y
                elif stretch.row + len(y) == len(runs[lane]):
                    out[lane] = y[-1]
        if last_only:
            return out
        out = rows.in_order_of_x(out)
        return out if rows.panel is None else out.reshape(*rows.panel, -1)

    # -- parameters -------------------------------------------------------------------------------------------------

    def _config(self, n_channels: int, *, n_outputs: int, longest: int) -> LabelConfig:
        mem_len: Any = min(_MEM_LEN, max(longest - 1, 1)) if self.mem_len == "auto" else self.mem_len
        sizes = LabelConfig(
            patch_len=self.patch_len,
            lookback=self.lookback,
            d_model=self.d_model,
            n_layers=self.n_layers,
            n_heads=self.n_heads,
            dropout=self.dropout,
            mem_len=mem_len,
            half_life=64 if self.half_life == "auto" else self.half_life,
            d_ff=2 * self.d_model if self.d_ff == "auto" else self.d_ff,
            scaler=self.scaler,
            pooling=self.pooling,
            head=self._head,
            memory=self.memory,
            precision=self.precision,
            memory_params={} if self.memory_params is None else self.memory_params,
            n_channels=n_channels,
            n_outputs=n_outputs,
        )
        return completed(sizes)

    def _settings(self, *, by_series: bool) -> LabelSettings:
        segment = _LONGEST_SERIES_SEGMENT if by_series else _LONGEST_SEGMENT
        seed = self.random_state
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            seed = int(check_random_state(seed).randint(2**31 - 1))
        return LabelSettings(
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            max_epochs=self.max_epochs,
            patience=self.patience,
            batch_size=self.batch_size,
            segment_len=segment if self.segment_len == "auto" else self.segment_len,
            **{name: getattr(self, name) for name in GRADIENTS},
            random_state=int(seed),
            verbose=bool(self.verbose),
        )

    def _split(self, rows: LabelRows, config: LabelConfig, seed: int, *, by_series: bool) -> LabelSplit:
        fraction = check_number("validation_fraction", self.validation_fraction, at_least=0, below=1, example=0.2)
        wanted = self.early_stopping
        if not isinstance(wanted, bool | np.bool_):
            raise ParameterError(f"early_stopping={wanted!r} must be True or False.")
        if not wanted or not fraction:
            return LabelSplit(rows, None)
        strata = rows.target[rows.stop - 1].astype(np.int64) if by_series and rows.target.ndim == 1 else None
        return hold_out(rows, fraction=fraction, reach=config.reach, strata=strata, seed=seed)

    def _check_fitted(self) -> None:
        if not hasattr(self, "config_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet. Call fit(X, y) first.")
