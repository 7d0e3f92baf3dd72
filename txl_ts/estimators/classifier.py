"""The classifier: a class for each row of a stream, or for each series of a panel."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import metadata_routing
from sklearn.utils.multiclass import check_classification_targets

from txl_ts.errors import ParameterError
from txl_ts.estimators.labels import by_row, is_by_series, read_labels, to_score
from txl_ts.estimators.tabular import TabularEstimator


class TXLClassifier(ClassifierMixin, TabularEstimator):
    """Classify rows by themselves and by what came before them in their series.

    Rows are in time order and belong to one series, or to those that ``series_id`` names; a panel (three axes) holds
    one series each, with a label per row or per series. Each row is one token of all features; a linear path on the
    last rows, fitted as a logistic regression, stands beside the recurrent one.

    Parameters
    ----------
    patch_len : int
        Rows that one token looks back over, its own among them.
    mem_len : int or "auto"
        Memory length in rows, or a sequence of one per layer. ``"auto"``: 32, or the longest series. 0 is no memory.
    memory : str
    memory_params : dict, optional
        Memory policy and its parameters, see ``docs/memory.md``. ``"fifo"`` is the newest ``mem_len`` rows alone.
    lookback : int
        Rows of the linear path, the current one among them; 0 leaves a constant.
    half_life : float or "auto"
        Of the running scaler, in rows; ``"auto"``: 64.
    scaler : {"standard", "running"}
        Scale features by the training rows, or each series by what it has seen so far.
    pooling : {"last", "mean"}
        What the head reads at each row: its hidden row, or the mean of the hidden rows of the series so far.
    d_model, n_layers, n_heads : int
    d_ff : int or "auto"
        Sizes of the network.
    dropout, learning_rate, weight_decay : float
    max_epochs : int
        0 leaves the linear path alone.
    early_stopping : bool
        Hold out ``validation_fraction`` of the series (with fewer than ten: of the last rows of each) to choose the
        number of epochs, then train anew on all rows for as many.
    validation_fraction : float
    patience : int
        Epochs without a better validation loss before training stops; with ``early_stopping``.
    batch_size : int
        Series, or pieces of long ones, in a training step.
    segment_len : int or "auto"
        Rows of a training segment. ``"auto"``: 64, or 256 where whole series have labels.
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
    precision : {"float32", "bf16"}
        In which the layers compute, in training and afterwards; memory and scaling are float32, graphs in all.
    deterministic : bool
        Walk series in a fixed lane width and row grid, so that their answers do not depend, to the bit, on which other
        series are there. Slower.
    random_state : int, RandomState or None
    verbose : bool
        Show a bar while training.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
    n_features_in_ : int
    feature_names_in_ : array of shape (n_features_in_,)
        Where X had names.
    config_ : LabelConfig
        Sizes of the model.
    params_ : dict
        The same as a dictionary, with the reach in rows and the state's bytes per series.
    history_ : History
        Training and validation losses.
    n_parameters_ : int
    fit_seconds_ : float

    Examples
    --------
    >>> import numpy as np
    >>> from txl_ts import TXLClassifier
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> y = np.append(0, X[:-1, 0] > 0).astype(int)  # whether the row before was positive
    >>> TXLClassifier(mem_len=4).fit(X[:40], y[:40]).predict(X[40:]).shape
    (20,)

    References
    ----------
    Dai et al. (2019), Transformer-XL (arXiv 1901.02860).
    """

    __metadata_request__predict = {"start": metadata_routing.UNUSED}  # noqa: RUF012 - scikit-learn reads it so
    __metadata_request__predict_proba = {"start": metadata_routing.UNUSED}  # noqa: RUF012

    _head = "classes"
    classes_: NDArray[Any]

    def fit(self, X: Any, y: Any, *, series_id: Any = None, time: Any = None) -> Self:
        """Train, then fill the memory of each series.

        Parameters
        ----------
        X : array or frame of shape (n_rows, n_features), or array of shape (n_series, n_rows, n_features)
            Rows in time order within each series; NaN is a missing value, infinity an error. In a panel (three axes), a
            series that ended early is padded with rows of NaN.
        y : array of shape (n_rows,); for a panel (n_series,) or (n_series, n_rows)
            Labels of rows, or of whole series.
        series_id : array of shape (n_rows,), str or int, optional
            Series of each row, as strings or integers; one name if all rows are one series, which they are without it.
            A panel takes one name per series.
        time : array of shape (n_rows,), optional
            Datetimes or numbers that must increase within each series. They are only checked: rows are steps. The index
            of a pandas frame is taken if it holds datetimes.

        Returns
        -------
        TXLClassifier
            Itself.

        Raises
        ------
        ParameterError, ShapeError, ColumnError, StampError, TrainingError, ValueError
        """
        labels = read_labels(type(self).__name__, y, X)
        check_classification_targets(labels)
        rows = self._read(X, series_id=series_id, time=time, reset=True)
        classes, codes = np.unique(labels, return_inverse=True)
        target, weight = by_row(codes.reshape(labels.shape).astype(np.int64), rows)
        self._fit(rows, target, weight, n_outputs=len(classes), by_series=is_by_series(labels, rows))
        self.classes_ = classes
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, *, series_id: Any = None, time: Any = None) -> Self:
        """Train the weights one pass further, on these rows alone, and let the memories of their series take them in.

        The scaler stays that of the first call. Memory rows from before this call stay as the earlier weights wrote
        them.

        Parameters
        ----------
        X, y, series_id, time
            As in :meth:`fit`; in training each series starts with an empty memory. Rows of a known series come after
            those taken in.
        classes : array, optional
            All that will ever come; needed in the first call.

        Returns
        -------
        TXLClassifier
            Itself.
        """
        labels = read_labels(type(self).__name__, y, X)
        check_classification_targets(labels)
        is_first = not hasattr(self, "config_")
        if is_first and classes is None:
            raise ParameterError("classes must be passed on the first call to partial_fit: all that will ever come.")
        known = np.unique(classes) if is_first else self.classes_
        if not is_first and classes is not None and not np.array_equal(np.unique(classes), known):
            raise ParameterError(f"classes={classes!r} is not the same as on the first call, {known.tolist()}.")
        if len(missing := np.setdiff1d(labels, known)):
            raise ParameterError(
                f"y holds classes that were not named: {missing[:5].tolist()}. Known are {known.tolist()[:20]}."
            )
        rows = self._read(X, series_id=series_id, time=time, reset=is_first)
        target, weight = by_row(np.searchsorted(known, labels).astype(np.int64), rows)
        if is_first:
            self._fit(rows, target, weight, n_outputs=len(known), by_series=is_by_series(labels, rows), n_epochs=1)
            self.classes_ = known
            return self
        self._refuse_unnamed(rows)
        return self._go_on(rows, target, weight)

    def predict_proba(
        self, X: Any, *, series_id: Any = None, time: Any = None, start: Literal["fitted"] | None = None
    ) -> NDArray[np.float32]:
        """Give the probabilities of the classes at each row.

        Parameters
        ----------
        X, series_id, time
            As in :meth:`fit`.
        start : {"fitted"}, optional
            Continue the memories that were kept at the end of ``fit`` (series are known by their names; a new one
            starts empty). By default every series starts empty. The kept memories stay as they are.

        Returns
        -------
        float32 array of shape (n_rows, n_classes)
            Of a panel (n_series, n_classes) where ``fit`` had a label per series, else (n_series, n_rows, n_classes).

        Raises
        ------
        NotFittedError, ParameterError, ShapeError, ColumnError, StampError, StateError, ValueError
            ParameterError for rows without ``series_id`` after a ``fit`` that had it.
        """
        return self._walk(X, series_id=series_id, time=time, start=start)

    def predict(
        self, X: Any, *, series_id: Any = None, time: Any = None, start: Literal["fitted"] | None = None
    ) -> NDArray[Any]:
        """Give the most probable class at each row, or of each series of a panel; see :meth:`predict_proba`."""
        said = self._walk(X, series_id=series_id, time=time, start=start).argmax(axis=-1)
        return self.classes_[said]

    def _learned(self) -> dict[str, Any]:
        kind = self.classes_.dtype.kind
        return {
            "kind": "U" if kind == "O" else kind,
            "classes": [str(c) if kind in "OU" else c for c in self.classes_.tolist()],
        } | ({"dtype": self.classes_.dtype.name} if kind in "iuf" else {})

    def _learn_from(self, document: dict[str, Any]) -> None:
        kind, classes = document["kind"], document["classes"]
        dtypes = {"i": np.int64, "u": np.uint64, "f": np.float64, "b": np.bool_, "U": np.str_}
        if len(classes) != self.config_.n_outputs or sorted(set(classes)) != classes:
            raise ValueError("classes must be distinct, sorted, and one per output")
        dtype = np.dtype(document.get("dtype", dtypes[kind]) if kind in "iuf" else dtypes[kind])
        if dtype.kind != kind:
            raise ValueError(f"classes of the kind {kind!r} cannot be {dtype}")
        self.classes_ = np.array(classes, dtype)

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, series_id: Any = None, time: Any = None) -> float:
        """Give the accuracy of :meth:`predict` over all rows, each series started empty.

        Rows of a panel behind the end of their series do not count.
        """
        said = self.predict(X, series_id=series_id, time=time)
        labels, answers, weight = to_score(X, y, said, sample_weight)
        return float(accuracy_score(labels, answers, sample_weight=weight))
