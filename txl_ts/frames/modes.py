"""The most common value of each series, over all rows at once."""

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


def mode_per_series(codes: IntArray, values: IntArray, n_series: int) -> tuple[IntArray, IntArray]:
    """Find the most common value of each series; the smallest of those that are equally common.

    Parameters
    ----------
    codes : int64 array of shape (N,)
        Series of each row, in any order.
    values : int64 array of shape (N,)
        What is counted.
    n_series : int
        Number of series.

    Returns
    -------
    modes : int64 array of shape (n_series,)
        0 where a series has no rows.
    counts : int64 array of shape (n_series,)
        How often the mode occurs.
    """
    distinct, which = np.unique(values, return_inverse=True)
    n_distinct = max(len(distinct), 1)
    pairs, counts = _count_pairs(codes * n_distinct + which, n_series * n_distinct)
    series, value = pairs // n_distinct, pairs % n_distinct
    best = np.lexsort((value, -counts, series))
    first = np.flatnonzero(np.diff(series[best], prepend=-1))
    winner = best[first]
    modes, times = np.zeros(n_series, np.int64), np.zeros(n_series, np.int64)
    modes[series[winner]] = distinct[value[winner]]
    times[series[winner]] = counts[winner]
    return modes, times


def _count_pairs(keys: IntArray, n_keys: int) -> tuple[IntArray, IntArray]:
    if n_keys <= 4 * len(keys) + 1_000_000:  # counting beats sorting while the table is about as large as the data
        table = np.bincount(keys, minlength=n_keys)
        present = np.flatnonzero(table)
        return present, table[present]
    return np.unique(keys, return_counts=True)
