"""The score of the Numenta Anomaly Benchmark: early alarms inside windows earn, alarms outside cost.

References
----------
Lavin and Ahmad (2015), Evaluating real-time anomaly detection algorithms: the Numenta Anomaly Benchmark
(arXiv 1510.03336).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from txl_ts.errors import ShapeError

# Share of the rows at a file's beginning that are not scored, and the most rows that it can be.
PROBATION, MOST_PROBATION = 0.15, 750
# Beyond this many window widths after a window, a false alarm costs its full weight.
_FAR = 3.0

Floats = NDArray[np.float64]


class Weights(NamedTuple):
    """What a window found, a window missed and an alarm outside the windows count."""

    tp: float
    fn: float
    fp: float


PROFILES = MappingProxyType(
    {
        "standard": Weights(tp=1.0, fn=1.0, fp=0.11),
        "reward_low_FP_rate": Weights(tp=1.0, fn=1.0, fp=0.22),
        "reward_low_FN_rate": Weights(tp=1.0, fn=2.0, fp=0.11),
    }
)


@dataclass(frozen=True)
class LabelledRows:
    """What each row of a file would earn if it alarmed.

    Attributes
    ----------
    window : int array of shape (n,)
        Index of the window that a row is in, −1 outside.
    credit : array of shape (n,)
        Inside a window, 1 at its left edge falling to about 0 at its right edge; outside, 0 just after a window
        falling to −1.
    is_scored : bool array of shape (n,)
        False in the probation.
    """

    window: NDArray[np.int64]
    credit: Floats
    is_scored: NDArray[np.bool_]


class Operating(NamedTuple):
    """What a threshold gives over the corpus.

    Attributes
    ----------
    threshold : float
        Rows with at least this score alarm; infinite for none.
    score : float
        0 for a detector that never alarms, 100 for a perfect one.
    n_found : int
        Windows with an alarm.
    n_false : int
        Rows outside the windows that alarm.
    """

    threshold: float
    score: float
    n_found: int
    n_false: int


def n_probation(n_rows: int) -> int:
    """Rows at the beginning of a file that are not scored."""
    return int(min(PROBATION * n_rows, MOST_PROBATION))


def label_rows(times: ArrayLike, windows: Sequence[tuple[Any, Any]]) -> LabelledRows:
    """Place the rows of a file in its windows.

    Parameters
    ----------
    times : array_like of shape (n,)
        Times as they stand in the file; they may repeat or step back.
    windows : sequence of (first, last)
        Times of the first and the last row of each window, in order.

    Returns
    -------
    LabelledRows

    Raises
    ------
    ShapeError
        If a window's end is no row of the file.
    """
    stamps = np.asarray(times, "datetime64[s]")
    n = len(stamps)
    window = np.full(n, -1)
    since, width = np.full(n, np.inf), np.ones(n)
    inside = np.full(n, np.nan)
    for k, edges in enumerate(windows):
        first, last = (_first_row(stamps, edge) for edge in edges)
        rows = np.arange(first, last + 1)
        window[rows] = k
        inside[rows] = (rows - last - 1) / len(rows)
        after = np.arange(last + 1, n)
        since[after], width[after] = after - last, max(len(rows) - 1, 1)
    past = since / width
    credit = np.where(past >= _FAR, -1.0, _sigmoid(np.minimum(past, _FAR)))
    credit = np.where(window >= 0, _sigmoid(np.nan_to_num(inside)) / _sigmoid(-1.0), credit)
    return LabelledRows(window, credit, np.arange(n) >= n_probation(n))


def _first_row(stamps: NDArray[np.datetime64], edge: Any) -> int:
    found = np.flatnonzero(stamps == np.datetime64(edge, "s"))
    if not len(found):
        raise ShapeError(f"a window begins or ends at {edge}, which is no row of the file ({len(stamps)} rows).")
    return int(found[0])


def _sigmoid(position: ArrayLike) -> Floats:
    return 2 / (1 + np.exp(5 * np.asarray(position, np.float64))) - 1


class Corpus:
    """All files together, ready to be scored.

    Parameters
    ----------
    files : sequence of LabelledRows
    """

    def __init__(self, files: Sequence[LabelledRows]) -> None:
        offset, windows = 0, []
        for file in files:
            windows.append(np.where(file.window >= 0, file.window + offset, -1))
            offset = max(offset, 1 + int(windows[-1].max(initial=offset - 1)))
        self._scored = np.concatenate([file.is_scored for file in files])
        self._lengths = [len(file.window) for file in files]
        self._window = np.concatenate(windows)[self._scored]
        self._credit = np.concatenate([file.credit for file in files])[self._scored]
        self.n_windows = len(np.unique(self._window[self._window >= 0]))
        self.n_normal = int(np.count_nonzero(self._window < 0))

    def sweep(self, scores: Sequence[ArrayLike], *, profile: str = "standard") -> list[Operating]:
        """Score every threshold that changes anything, from the highest down.

        Parameters
        ----------
        scores : sequence of array_like
            One per file, one number per row, higher is more abnormal; a row without a number never alarms.
        profile : str
            One of ``PROFILES``.

        Returns
        -------
        list of Operating
            The first is that of no alarm at all.

        Raises
        ------
        ShapeError
            If there is not one score per row.
        """
        flat = self._flat(scores)
        rank = np.argsort(-flat, kind="stable")
        rank = rank[np.isfinite(flat[rank])]
        window, credit = self._window[rank], self._credit[rank]
        weights = PROFILES[profile]
        gain = np.where(window < 0, credit * weights.fp, 0.0)
        is_first = np.zeros(len(rank), bool)
        order = np.argsort(window, kind="stable")
        order = order[window[order] >= 0]
        for rows in np.split(order, np.flatnonzero(np.diff(window[order])) + 1):
            if len(rows):
                best = np.maximum.accumulate(np.maximum(credit[rows] * weights.tp, -weights.fn))
                gain[rows] = np.diff(best, prepend=-weights.fn)
                is_first[rows[0]] = True
        null = -weights.fn * self.n_windows
        scale = 100 / (weights.tp * self.n_windows - null)
        raw, found, false = np.cumsum(gain), np.cumsum(is_first), np.cumsum(window < 0)
        values = flat[rank]
        ends = np.flatnonzero(np.append(values[1:] != values[:-1], len(values) > 0))
        return [Operating(np.inf, 0.0, 0, 0)] + [
            Operating(float(values[i]), float(raw[i] * scale), int(found[i]), int(false[i])) for i in ends
        ]

    def best(self, scores: Sequence[ArrayLike], *, profile: str = "standard", most_false: float = np.inf) -> Operating:
        """Give the operating point of the best threshold: chosen on the labels, as every published score is.

        Parameters
        ----------
        scores : sequence of array_like
            As in :meth:`sweep`.
        profile : str
            One of ``PROFILES``.
        most_false : float
            Thresholds with more false alarms than this are left out.

        Returns
        -------
        Operating
        """
        points = (point for point in self.sweep(scores, profile=profile) if point.n_false <= most_false)
        return max(points, key=lambda point: point.score)

    def at(self, alarms: Sequence[ArrayLike], *, profile: str = "standard") -> Operating:
        """Score alarms that were decided elsewhere, without any label.

        Parameters
        ----------
        alarms : sequence of array_like
            One per file, true where a row alarms.
        profile : str
            One of ``PROFILES``.

        Returns
        -------
        Operating
        """
        marked = [np.where(np.asarray(file, bool), 1.0, -np.inf) for file in alarms]
        return self.sweep(marked, profile=profile)[-1]

    def _flat(self, scores: Sequence[ArrayLike]) -> Floats:
        arrays = [np.asarray(file, np.float64) for file in scores]
        shapes = [array.shape for array in arrays]
        if shapes != [(n,) for n in self._lengths]:
            raise ShapeError(f"one score per row is needed: {self._lengths[:5]}… rows, got shapes {shapes[:5]}….")
        return np.concatenate(arrays)[self._scored]
