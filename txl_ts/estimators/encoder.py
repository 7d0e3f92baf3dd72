"""The encoder: rows become hidden rows of a model that learned to predict the next row."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import metadata_routing

from txl_ts.estimators.series_rows import SeriesRows
from txl_ts.estimators.tabular import TabularEstimator

# Targets beyond this many deviations would teach the model about spikes alone.
_CLIP = 10.0


class TXLEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, TabularEstimator):
    """Turn rows into features that know what came before them, without labels.

    The model learns to predict the next row of each series; ``transform`` gives the hidden rows that it reads this
    from. Labels are not used.

    Parameters and further attributes are those of :class:`~txl_ts.TXLClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> from txl_ts import TXLEncoder
    >>> X = np.random.default_rng(0).normal(size=(60, 2)).cumsum(axis=0)
    >>> TXLEncoder(d_model=16, mem_len=4).fit_transform(X).shape
    (60, 16)
    """

    __metadata_request__transform = {"start": metadata_routing.UNUSED}  # noqa: RUF012 - scikit-learn reads it so

    _head = "rows"

    def fit(self, X: Any, y: Any = None, *, series_id: Any = None, time: Any = None) -> Self:
        """Train, then fill the memory of each series.

        Parameters
        ----------
        X : array or frame of shape (n_rows, n_features), or array of shape (n_series, n_rows, n_features)
            Rows in time order within each series; NaN is a missing value, infinity an error. In a panel (three axes), a
            series that ended early is padded with rows of NaN.
        y : ignored
        series_id : array of shape (n_rows,), str or int, optional
            Series of each row, as strings or integers; one name if all rows are one series, which they are without it.
            A panel takes one name per series.
        time : array of shape (n_rows,), optional
            Datetimes or numbers that must increase within each series. They are only checked: rows are steps. The index
            of a pandas frame is taken if it holds datetimes.

        Returns
        -------
        TXLEncoder
            Itself.

        Raises
        ------
        ParameterError, ShapeError, ColumnError, StampError, TrainingError, ValueError
        """
        return self._learn(X, series_id=series_id, time=time, n_epochs=None)

    def partial_fit(self, X: Any, y: Any = None, *, series_id: Any = None, time: Any = None) -> Self:
        """Train the weights one pass further, on these rows alone; see :meth:`TXLClassifier.partial_fit`."""
        if not hasattr(self, "config_"):
            return self._learn(X, series_id=series_id, time=time, n_epochs=1)
        rows = self._read(X, series_id=series_id, time=time)
        self._refuse_unnamed(rows)
        target, weight = _next_rows(rows, *self._scale)
        return self._go_on(rows, target, weight)

    def transform(
        self, X: Any, *, series_id: Any = None, time: Any = None, start: Literal["fitted"] | None = None
    ) -> NDArray[np.float32]:
        """Give the hidden row of each row.

        Parameters
        ----------
        X, series_id, time
            As in :meth:`fit`.
        start : {"fitted"}, optional
            Continue the memories that were kept at the end of ``fit`` (series are known by their names; a new one
            starts empty). By default every series starts empty. The kept memories stay as they are.

        Returns
        -------
        float32 array of shape (n_rows, d_model)
            Of a panel (n_series, d_model): the hidden row at the end of each series, where ``fit`` had a panel too. A
            frame after ``set_output``.

        Raises
        ------
        NotFittedError, ParameterError, ShapeError, ColumnError, StampError, StateError, ValueError
        """
        return self._walk(X, series_id=series_id, time=time, start=start)

    def fit_transform(self, X: Any, y: Any = None, *, series_id: Any = None, time: Any = None) -> Any:
        """Train, then give the hidden rows, each series from an empty memory."""
        return self.fit(X, series_id=series_id, time=time).transform(X, series_id=series_id, time=time)

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that float32 stays float32, and nothing else does."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return self.config_.d_model

    def _learned(self) -> dict[str, Any]:
        return {name: part.tolist() for name, part in zip(("level", "unit"), self._scale, strict=True)}

    def _learn_from(self, document: dict[str, Any]) -> None:
        level, unit = (np.array(document[name], np.float64) for name in ("level", "unit"))
        if level.shape != (self.n_features_in_,) or unit.shape != level.shape:
            raise ValueError("level and unit must hold one number per feature")
        self._scale = level, unit

    def _learn(self, X: Any, *, series_id: Any, time: Any, n_epochs: int | None) -> Self:
        rows = self._read(X, series_id=series_id, time=time, reset=True)
        scale = _scale_of(rows)
        target, weight = _next_rows(rows, *scale)
        self._fit(rows, target, weight, n_outputs=target.shape[1], n_epochs=n_epochs)
        self._scale = scale
        self._label_per = "row" if rows.panel is None else "series"
        return self


def _scale_of(rows: SeriesRows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Level and deviation of each feature; 0 and 1 where there is nothing to measure."""
    values = np.concatenate(rows.runs).astype(np.float64)
    level, unit = np.zeros(values.shape[1]), np.ones(values.shape[1])
    there = ~np.isnan(values).all(axis=0)
    level[there], unit[there] = np.nanmean(values[:, there], axis=0), np.nanstd(values[:, there], axis=0)
    return level, np.where(unit > 1e-7 * np.abs(level), unit, 1.0)


def _next_rows(
    rows: SeriesRows, level: NDArray[np.float64], unit: NDArray[np.float64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Targets (N, C): the row after each, in deviations; NaN and weight 0 at the end of a series."""
    z = ((rows.values - level) / unit).clip(-_CLIP, _CLIP).astype(np.float32)
    target, weight = np.full_like(z, np.nan), np.zeros(len(z), np.float32)
    for a, b in zip(rows.first, rows.stop, strict=True):
        target[a : b - 1] = z[a + 1 : b]
        weight[a : b - 1] = 1
    return target, weight
