"""Splits for ``cross_validate`` and ``GridSearchCV`` that cut by time inside each series."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.config import check_integer
from txl_ts.errors import ParameterError, ShapeError
from txl_ts.estimators.series_rows import series_codes


class PanelSplit:
    """Cut the rows of every series by time: the past trains, what follows it tests.

    ``TimeSeriesSplit`` cuts a long frame by row: with one series behind the other it trains on some machines and tests
    on others. Here each series is cut by itself, at the same places from its end.

    Parameters
    ----------
    series_id : array of shape (n_rows,), optional
        Series of each row, in time order within each. Also taken as ``groups`` of :meth:`split`. Without either, all
        rows are one series.
    n_splits : int
    test_size : int, optional
        Test rows of each series in each split. Default: the rows of the shortest series over ``n_splits + 1``.
    gap : int
        Rows left out between training and test.

    Examples
    --------
    >>> import numpy as np
    >>> from txl_ts import PanelSplit
    >>> ids = np.array(["a", "a", "a", "b", "b", "b", "b"])
    >>> for train, test in PanelSplit(ids, n_splits=2).split(ids):
    ...     print(train, test)
    [0 3 4] [1 5]
    [0 1 3 4 5] [2 6]
    """

    def __init__(self, series_id: Any = None, *, n_splits: int = 5, test_size: int | None = None, gap: int = 0) -> None:
        self.series_id, self.n_splits, self.test_size, self.gap = series_id, n_splits, test_size, gap

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Give the number of splits."""
        return check_integer("n_splits", self.n_splits, at_least=1)

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Give the rows of each split, oldest split first.

        Parameters
        ----------
        X : array or frame of n_rows rows
        y : ignored
        groups : array of shape (n_rows,), optional
            Series of each row, where the splitter was made without.

        Yields
        ------
        train, test : int64 array
            Positions of rows, increasing. In test, a series continues where its training rows end; an estimator starts
            it with an empty memory.

        Raises
        ------
        ParameterError
            If a series is too short.
        ShapeError
            If the series are not as many as the rows.
        """
        n_rows = X.shape[0] if hasattr(X, "shape") else len(X)
        named = self.series_id if self.series_id is not None else groups
        if named is not None and np.shape(named) != (n_rows,):
            raise ShapeError(
                f"series_id has shape {np.shape(named)}, and X has {n_rows} rows. Give one name per row: for a part of "
                "the rows, take the same part of series_id."
            )
        codes, names = series_codes(named, n_rows=n_rows)
        n_splits, gap = self.get_n_splits(), check_integer("gap", self.gap, at_least=0)
        length = np.bincount(codes)
        size = int(length.min()) // (n_splits + 1) if self.test_size is None else self.test_size
        size = check_integer("test_size", max(size, 1) if self.test_size is None else size, at_least=1)
        short = np.flatnonzero(length <= n_splits * size + gap)
        if len(short):
            shown = [repr(names[i]) if names else "the only one" for i in short[:5]]
            raise ParameterError(
                f"n_splits={n_splits} with test_size={size} and gap={gap} needs more than {n_splits * size + gap} rows "
                f"of each series, and {len(short)} have no more: {', '.join(shown)}. Lower one of them, or leave those "
                "series out."
            )
        order = np.argsort(codes, kind="stable")
        from_end = np.empty(n_rows, np.int64)
        starts = np.repeat(np.cumsum(length) - length, length)
        from_end[order] = length[codes[order]] - (np.arange(n_rows) - starts)  # 1 at the last row of each series
        for k in range(n_splits, 0, -1):
            test = (from_end <= k * size) & (from_end > (k - 1) * size)
            yield np.flatnonzero(from_end > k * size + gap), np.flatnonzero(test)
