"""What a tabular estimator is given, as runs of rows: one per series, in time order."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from txl_ts.errors import ColumnError, ParameterError, RowOrderWarning, ShapeError, StampError

Name = str | int


@dataclass(frozen=True)
class SeriesRows:
    """Rows of all series behind each other.

    Attributes
    ----------
    values : float32 array of shape (N, C)
        NaN where missing.
    first, stop : int64 array of shape (n,)
        Rows of each series. Behind ``stop`` there may be rows of a panel whose series ended early.
    order : int64 array of shape (N,)
        Where each row stood in X.
    names : tuple of str or int, or None
        As ``series_id`` named them.
    panel : tuple of int, or None
        ``(n_series, n_rows)`` of a 3-D X.
    step_ns : int or None
        Median time between two rows, where times are datetimes.
    """

    values: NDArray[np.float32]
    first: NDArray[np.int64]
    stop: NDArray[np.int64]
    order: NDArray[np.int64]
    names: tuple[Name, ...] | None
    panel: tuple[int, int] | None
    step_ns: int | None = None

    @property
    def runs(self) -> list[NDArray[np.float32]]:
        """Rows of each series."""
        return [self.values[a:b] for a, b in zip(self.first, self.stop, strict=True)]

    def in_order_of_x(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Put what belongs to the rows (N, …) back into the order of X."""
        out = np.empty_like(rows)
        out[self.order] = rows
        return out


def read_rows(estimator: BaseEstimator, X: Any, *, series_id: Any, time: Any, reset: bool) -> SeriesRows:
    """Read X, and group its rows by series; the order within a series stays.

    Parameters
    ----------
    estimator : BaseEstimator
        Its ``n_features_in_`` and ``feature_names_in_`` are set or held against X.
    X : array or frame of shape (n_rows, n_features), or array of shape (n_series, n_rows, n_features)
    series_id, time : array, scalar or None
    reset : bool
        Set the features (in ``fit``) instead of checking them.

    Raises
    ------
    ShapeError, ColumnError, StampError, ValueError
        ValueError is scikit-learn's own, for arrays that are no numbers or hold infinity.
    """
    panel = _panel_of(X)
    if panel is None:
        if time is None:
            time = _index_time(X, named=series_id is not None)
        values = _validated(estimator, X, reset=reset)
        codes, names = series_codes(series_id, n_rows=len(values))
        order = np.argsort(codes, kind="stable").astype(np.int64)
        edges = np.searchsorted(codes[order], np.arange(int(codes.max(initial=0)) + 2)).astype(np.int64)
        first, stop, values = edges[:-1], edges[1:], values[order]
    else:
        values = _validated(estimator, np.asarray(X).reshape(-1, panel[2]), reset=reset)
        n_series, n_rows = panel[:2]
        first = np.arange(n_series, dtype=np.int64) * n_rows
        stop = first + lengths_of(values.reshape(panel))
        order, names = np.arange(len(values), dtype=np.int64), _panel_names(series_id, n_series=n_series)
    rows = SeriesRows(values, first, stop, order, names, None if panel is None else panel[:2])
    return rows if time is None else replace(rows, step_ns=_check_time(rows, time))


def lengths_of(panel: NDArray[Any]) -> NDArray[np.int64]:
    """Count the rows of each series of a panel (n_series, n_rows, C): without the rows of NaN behind its end.

    One row always stays.
    """
    there = ~np.isnan(panel).all(axis=2)
    return np.where(there.any(axis=1), panel.shape[1] - there[:, ::-1].argmax(axis=1), 1)


def _panel_of(X: Any) -> tuple[int, int, int] | None:
    """Shape of a 3-D array; None for everything else, which scikit-learn judges."""
    shape = getattr(X, "shape", None)
    if not isinstance(shape, tuple) or len(shape) != 3:
        return None
    if 0 in shape:
        raise ShapeError(f"X has shape {shape}: a panel needs at least one series, one row and one feature.")
    return int(shape[0]), int(shape[1]), int(shape[2])


def _validated(estimator: BaseEstimator, X: Any, *, reset: bool) -> NDArray[np.float32]:
    # A value beyond float32 becomes infinite, and is then refused by name: no warning beside the error.
    with np.errstate(over="ignore"):
        try:
            array: NDArray[np.float32] = validate_data(
                estimator, X, reset=reset, dtype=np.float32, ensure_all_finite="allow-nan"
            )
        except ValueError as error:
            if (odd := _column_of_words(X)) is None:
                raise
            raise ColumnError(
                f"column {odd!r} of X must hold numbers: {error}. Encode categories first, for example with a "
                "ColumnTransformer that has a OneHotEncoder, or leave the column out."
            ) from error
    return array


def _column_of_words(X: Any) -> str | None:
    """Name of the first column of a frame that holds text or categories."""
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if not isinstance(frame, nw.DataFrame):
        return None
    words = (nw.String, nw.Categorical, nw.Enum, nw.Object)
    return next((name for name, dtype in frame.schema.items() if isinstance(dtype, words)), None)


def series_codes(series_id: Any, *, n_rows: int) -> tuple[NDArray[np.int64], tuple[Name, ...] | None]:
    """Number the series; a scalar names all rows."""
    if series_id is None:
        return np.zeros(n_rows, np.int64), None
    ids = _names_of(series_id)
    if ids.ndim == 0:
        ids = np.broadcast_to(ids, n_rows)
    if ids.shape != (n_rows,):
        raise ShapeError(
            f"series_id has shape {ids.shape}, and X has {n_rows} rows. Give one name per row, or one for all."
        )
    found, codes = np.unique(ids, return_inverse=True)
    return codes.astype(np.int64), tuple(found.tolist())


def _panel_names(series_id: Any, *, n_series: int) -> tuple[Name, ...] | None:
    if series_id is None:
        return None
    ids = _names_of(series_id)
    if ids.shape != (n_series,) or len(np.unique(ids)) != n_series:
        raise ShapeError(
            f"series_id of a panel must hold {n_series} distinct names, one per series, got "
            f"{len(np.unique(ids))} in shape {ids.shape}."
        )
    return tuple(ids.tolist())


def _names_of(series_id: Any) -> NDArray[Any]:
    ids = np.asarray(series_id)
    if ids.dtype.kind == "O" and all(type(name) is str for name in ids.flat):
        ids = ids.astype(str)
    if ids.dtype.kind not in "iuU":
        kinds = sorted({type(name).__name__ for name in ids.flat[:1000]}) if ids.dtype.kind == "O" else [str(ids.dtype)]
        raise ColumnError(
            f"series_id must hold strings or integers, none missing, got {', '.join(kinds)}. Cast it to strings."
        )
    return ids


def _check_time(rows: SeriesRows, time: Any) -> int | None:
    """Refuse time that does not go forwards: the rows would be shuffled, or several series taken for one.

    Returns
    -------
    int or None
        Median step in nanoseconds, of datetimes.
    """
    stamps = np.asarray(time)
    if rows.panel is not None and stamps.shape == rows.panel[1:]:
        stamps = np.broadcast_to(stamps, rows.panel)
    if stamps.size != len(rows.values) or stamps.shape not in ((len(rows.values),), rows.panel):
        need = f"({len(rows.values)},)" if rows.panel is None else f"{rows.panel} or ({rows.panel[1]},)"
        raise ShapeError(f"time has shape {stamps.shape}, expected {need}.")
    if stamps.dtype.kind == "O":
        stamps = _dates(stamps)
    if stamps.dtype.kind not in "iufM":
        raise ColumnError(f"time must hold datetimes or numbers, got {stamps.dtype}. Convert it first.")
    stamps = stamps.reshape(-1)[rows.order]
    steps = []
    for i, (a, b) in enumerate(zip(rows.first, rows.stop, strict=True)):
        wrong = np.flatnonzero(~(stamps[a + 1 : b] > stamps[a : b - 1]))
        if not len(wrong):
            steps.append(np.diff(stamps[a:b]))
            continue
        at = int(rows.order[a + wrong[0] + 1])
        of = "" if rows.names is None else f" of series {rows.names[i]!r}"
        cure = (
            "If X holds several series, name them with series_id=…; else sort its rows by time, and drop repeats."
            if rows.names is None
            else "Sort the rows by time within each series, and drop repeats."
        )
        raise StampError(
            f"time{of} repeats or goes back {len(wrong)} times (first at row {at}: {stamps[a + wrong[0] + 1]} after "
            f"{stamps[a + wrong[0]]}). {cure}"
        )
    if stamps.dtype.kind != "M" or not any(map(len, steps)):
        return None
    return int(np.median(np.concatenate(steps).astype("timedelta64[ns]").astype(np.int64)))


def _dates(stamps: NDArray[Any]) -> NDArray[Any]:
    """Read Python's and pandas' dates, with zones or without, as UTC."""
    import pandas as pd

    try:
        read = pd.to_datetime(pd.Series(stamps.ravel()), utc=True).dt.tz_convert(None)
    except (TypeError, ValueError) as error:
        raise ColumnError(f"time must hold datetimes or numbers, and these cannot be read: {error}") from error
    return read.to_numpy().reshape(stamps.shape)


def _index_time(X: Any, *, named: bool) -> Any:
    """Take time from a pandas index of stamps; an integer one is at least looked at: splits that shuffle leave a trace.

    Returns
    -------
    array or None
    """
    index = getattr(X, "index", None)
    kind = str(getattr(index, "dtype", ""))
    if kind.startswith("datetime64"):
        return index.tz_convert(None).to_numpy() if getattr(index, "tz", None) else index.to_numpy()  # type: ignore[union-attr]
    if kind.startswith(("int", "uint")) and not named and not index.is_monotonic_increasing:  # type: ignore[union-attr]
        warnings.warn(
            "the index of X goes backwards: if its rows were shuffled, or belong to several series, a memory over them "
            "means nothing. Sort them, name the series with series_id=…, or reset the index if the order is right.",
            RowOrderWarning,
            stacklevel=4,
        )
    return None


def check_start(start: Any) -> None:
    """Raise ParameterError unless ``start`` is None or ``"fitted"``."""
    if start not in (None, "fitted"):
        raise ParameterError(f"start={start!r} must be None or 'fitted'.")
