"""The regressor: a value for each row of a stream, or for each series of a panel."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import metadata_routing

from txl_ts.errors import ParameterError
from txl_ts.estimators.labels import by_row, is_by_series, read_labels, to_score
from txl_ts.estimators.tabular import TabularEstimator


class TXLRegressor(RegressorMixin, TabularEstimator):
    """Give each row a value, by itself and by what came before it in its series.

    For soft sensors, remaining life and the like. Squared errors are minimised; a linear path on the last rows, fitted
    as a ridge, stands beside the recurrent one. Answers are float32.

    Parameters and further attributes are those of :class:`~txl_ts.TXLClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> from txl_ts import TXLRegressor
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> y = np.append(0, X[:-1, 0])  # the row before
    >>> TXLRegressor(mem_len=4).fit(X[:40], y[:40]).predict(X[40:]).shape
    (20,)
    """

    __metadata_request__predict = {"start": metadata_routing.UNUSED}  # noqa: RUF012 - scikit-learn reads it so

    _head = "values"

    def fit(self, X: Any, y: Any, *, series_id: Any = None, time: Any = None) -> Self:
        """Train, then fill the memory of each series.

        Parameters
        ----------
        X : array or frame of shape (n_rows, n_features), or array of shape (n_series, n_rows, n_features)
            Rows in time order within each series; NaN is a missing value, infinity an error. In a panel (three axes), a
            series that ended early is padded with rows of NaN.
        y : array of shape (n_rows,); for a panel (n_series,) or (n_series, n_rows)
            Values of rows, or of whole series.
        series_id : array of shape (n_rows,), str or int, optional
            Series of each row, as strings or integers; one name if all rows are one series, which they are without it.
            A panel takes one name per series.
        time : array of shape (n_rows,), optional
            Datetimes or numbers that must increase within each series. They are only checked: rows are steps. The index
            of a pandas frame is taken if it holds datetimes.

        Returns
        -------
        TXLRegressor
            Itself.

        Raises
        ------
        ParameterError, ShapeError, ColumnError, StampError, TrainingError, ValueError
        """
        return self._learn(X, y, series_id=series_id, time=time, n_epochs=None)

    def partial_fit(self, X: Any, y: Any, *, series_id: Any = None, time: Any = None) -> Self:
        """Train the weights one pass further, on these rows alone; see :meth:`TXLClassifier.partial_fit`."""
        if not hasattr(self, "config_"):
            return self._learn(X, y, series_id=series_id, time=time, n_epochs=1)
        labels = _numbers(read_labels(type(self).__name__, y, X))
        rows = self._read(X, series_id=series_id, time=time)
        self._refuse_unnamed(rows)
        target, weight = by_row(labels, rows)
        level, unit = self._scale
        return self._go_on(rows, ((target - level) / unit).astype(np.float32)[:, None], weight)

    def predict(
        self, X: Any, *, series_id: Any = None, time: Any = None, start: Literal["fitted"] | None = None
    ) -> NDArray[np.float32]:
        """Give the value at each row.

        Parameters
        ----------
        X, series_id, time
            As in :meth:`fit`.
        start : {"fitted"}, optional
            Continue the memories that were kept at the end of ``fit`` (series are known by their names; a new one
            starts empty). By default every series starts empty. The kept memories stay as they are.

        Returns
        -------
        float32 array of shape (n_rows,)
            Of a panel (n_series,) where ``fit`` had a value per series, else (n_series, n_rows).

        Raises
        ------
        NotFittedError, ParameterError, ShapeError, ColumnError, StampError, StateError, ValueError
        """
        return self._walk(X, series_id=series_id, time=time, start=start)[..., 0]

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, series_id: Any = None, time: Any = None) -> float:
        """Give R² of :meth:`predict` over all rows, each series started empty.

        Rows of a panel behind the end of their series do not count.
        """
        said = self.predict(X, series_id=series_id, time=time)
        labels, answers, weight = to_score(X, y, said, sample_weight)
        return float(r2_score(labels, answers, sample_weight=weight))

    def _learned(self) -> dict[str, Any]:
        return {"level": self._scale[0], "unit": self._scale[1]}

    def _learn_from(self, document: dict[str, Any]) -> None:
        self._scale = float(document["level"]), float(document["unit"])

    def _learn(self, X: Any, y: Any, *, series_id: Any, time: Any, n_epochs: int | None) -> Self:
        labels = _numbers(read_labels(type(self).__name__, y, X))
        rows = self._read(X, series_id=series_id, time=time, reset=True)
        target, weight = by_row(labels, rows)
        level, unit = target[weight > 0].mean(), target[weight > 0].std()
        unit = unit if unit > 1e-7 * abs(level) else 1.0  # a constant target
        z = ((target - level) / unit).astype(np.float32)[:, None]
        self._fit(
            rows,
            z,
            weight,
            n_outputs=1,
            scale=(np.array([level]), np.array([unit])),
            by_series=is_by_series(labels, rows),
            n_epochs=n_epochs,
        )
        self._scale = float(level), float(unit)
        return self


def _numbers(labels: NDArray[Any]) -> NDArray[np.float64]:
    try:
        return labels.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"y must hold numbers: {error}. For classes take TXLClassifier.") from error
