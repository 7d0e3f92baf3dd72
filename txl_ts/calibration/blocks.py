"""How much rows that resemble their neighbours can tell, and how to hold some of them out."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from txl_ts.config import check_integer, check_number
from txl_ts.errors import ShapeError


def integrated_time(scores: ArrayLike) -> float:
    """Rows that tell as much as one independent row: 1 + 2 Σ autocorrelations, at least 1.

    Of the indicator "among the highest tenth", since alarms come from there: scores whose high values come in clumps
    tell less about their tail than their number. The sum ends where two neighbouring terms no longer add.

    Parameters
    ----------
    scores : array_like of shape (n,)
        In the order of time. NaN are rows without a score: they take part in no product.

    Returns
    -------
    float
        In rows. ``n`` where nothing varies.

    References
    ----------
    Geyer (1992), Practical Markov chain Monte Carlo, Statistical Science 7(4): the initial positive sequence.
    """
    x = _series(scores)
    there = ~np.isnan(x)
    if there.sum() < 4:
        return float(max(1, there.sum()))
    high = np.where(there, x > np.quantile(x[there], 0.9), np.nan)
    centred = np.where(there, high - high[there].mean(), 0.0)
    if not centred.any():
        return float(there.sum())
    size = 1 << (2 * len(x) - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(centred, size)) ** 2
    known = np.fft.irfft(np.abs(np.fft.rfft(there.astype(np.float64), size)) ** 2, size)[: len(x)]
    products = np.fft.irfft(spectrum, size)[: len(x)]
    rho = products / np.maximum(known, 1.0) / (products[0] / known[0])
    pairs = rho[1 : len(rho) - (len(rho) - 1) % 2].reshape(-1, 2).sum(axis=1)
    ends = np.flatnonzero(pairs <= 0)
    total = 1.0 + 2.0 * pairs[: ends[0] if len(ends) else len(pairs)].sum()
    return float(np.clip(total, 1.0, there.sum()))


def effective_size(scores: ArrayLike) -> float:
    """Give the number of independent rows that would tell as much: rows with a score over their integrated time."""
    x = _series(scores)
    return float((~np.isnan(x)).sum() / integrated_time(x))


def held_out_blocks(n_rows: int, *, block_len: int, share: float = 0.2, gap: int = 0) -> NDArray[np.int8]:
    """Cut rows into blocks and hold some of them out, evenly over time, so that seasons and drift are in both parts.

    Parameters
    ----------
    n_rows : int
        Rows in the order of time.
    block_len : int
        Rows of a block: many times the integrated time of the errors.
    share : float
        Of the blocks to hold out, in (0, 1).
    gap : int
        Rows on both sides of a held-out block that are used for neither, since they resemble it.

    Returns
    -------
    array of int8, shape (n_rows,)
        0 for training, 1 for calibration, −1 for neither.

    Raises
    ------
    ParameterError
        If an argument cannot work.
    """
    n_rows = check_integer("n_rows", n_rows, at_least=1)
    block_len, gap = check_integer("block_len", block_len, at_least=1), check_integer("gap", gap, at_least=0)
    share = check_number("share", share, at_least=1e-9, below=1, example=0.2)
    block = np.arange(n_rows) // block_len
    held = np.floor((block + 1) * share) > np.floor(block * share)
    near = np.zeros(n_rows, bool)
    for edge in np.flatnonzero(np.diff(held.astype(np.int8))) + 1:
        near[max(0, edge - gap) : edge + gap] = True
    return np.where(held, 1, np.where(near, -1, 0)).astype(np.int8)


def _series(scores: ArrayLike) -> NDArray[np.float64]:
    x = np.asarray(scores, np.float64)
    if x.ndim != 1:
        raise ShapeError(f"scores must be of shape (n,), in the order of time, got {x.shape}.")
    return x
