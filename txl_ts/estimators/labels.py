"""Labels of rows or of whole series, as one target and one weight per row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d

from txl_ts.errors import ParameterError, ShapeError
from txl_ts.estimators.series_rows import SeriesRows, lengths_of


def read_labels(name: str, y: Any, X: Any) -> NDArray[Any]:
    """Read y as an array without missing values: (n_rows,), or for a panel (n_series,) or (n_series, n_rows).

    Raises
    ------
    ParameterError
        If there is none.
    ShapeError
        If it fits neither rows nor series.
    """
    if y is None:
        raise ParameterError(f"{name} requires y to be passed, but the target y is None. Call fit(X, y).")
    shape: tuple[int, ...] = tuple(getattr(X, "shape", ()))
    if len(shape) == 3 and np.shape(y) == shape[:2]:
        return np.asarray(check_array(np.asarray(y), dtype=None, ensure_2d=True))
    labels = column_or_1d(y, warn=True)
    labels = np.asarray(check_array(labels, dtype=None, ensure_2d=False, ensure_min_samples=0))
    if len(shape) == 3 and len(labels) != shape[0]:
        raise ShapeError(
            f"y has shape {np.shape(y)} and X {shape}. Labels of a panel are one per series, ({shape[0]},), or "
            f"one per row, {shape[:2]}."
        )
    check_consistent_length(X, labels)
    return labels


def is_by_series(labels: NDArray[Any], rows: SeriesRows) -> bool:
    """Tell whether there is one label per series of a panel."""
    return rows.panel is not None and labels.ndim == 1


def by_row(labels: NDArray[Any], rows: SeriesRows) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Give each row its label, in the order of ``rows``, and its weight: 0 where no answer is asked for.

    A label of a series is asked for at its last row.
    """
    weight = np.zeros(len(rows.values), np.float32)
    if is_by_series(labels, rows):
        weight[rows.stop - 1] = 1
        n_rows = len(rows.values) // len(labels)
        return labels.repeat(n_rows), weight
    for a, b in zip(rows.first, rows.stop, strict=True):
        weight[a:b] = 1
    return labels.reshape(-1)[rows.order], weight


def to_score(X: Any, y: Any, said: NDArray[Any], sample_weight: Any) -> tuple[NDArray[Any], NDArray[Any], Any]:
    """Give labels, answers and weights of the rows that count: not those behind the end of a series of a panel."""
    labels, answers = np.ravel(y), np.ravel(said)
    shape = np.shape(X)
    if len(shape) != 3 or np.shape(y) != shape[:2]:
        return labels, answers, sample_weight
    counts = (np.arange(shape[1]) < lengths_of(np.asarray(X, np.float32))[:, None]).ravel()
    weight = None if sample_weight is None else np.ravel(sample_weight)[counts]
    return labels[counts], answers[counts], weight
