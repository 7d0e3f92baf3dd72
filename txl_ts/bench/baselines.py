"""What every table is measured against: the last value, the last season, and a ridge with the same context.

An *origin* is the index of the last row that a forecast may see; the forecast covers the ``h`` rows after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from txl_ts.errors import ParameterError, ShapeError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LOOK_BACK = 1008
PENALTIES = (1e2, 1e3, 1e4, 1e5)


class OriginForecast(Protocol):
    """Anything that forecasts from origins: ``(values (T, C), origins (k,)) -> (k, C, h)``."""

    def __call__(self, values: FloatArray, *, origins: IntArray) -> FloatArray: ...  # noqa: D102


class Score(NamedTuple):
    """Errors over ``n_windows`` windows (one channel from one origin each)."""

    mse: float
    mae: float
    n_windows: int


def last_value(values: FloatArray, *, origins: IntArray, h: int) -> FloatArray:
    """Repeat the last value.

    Parameters
    ----------
    values : ndarray of shape (T, C)
        Rows oldest first.
    origins : ndarray of shape (k,)
        Index of the last row that each forecast sees.
    h : int
        Rows ahead.

    Returns
    -------
    ndarray of shape (k, C, h)
    """
    return np.repeat(values[origins][:, :, None], h, axis=2)


def seasonal_naive(values: FloatArray, *, origins: IntArray, h: int, season: int) -> FloatArray:
    """Repeat the last season.

    Parameters
    ----------
    values : ndarray of shape (T, C)
        Rows oldest first.
    origins : ndarray of shape (k,)
        Index of the last row that each forecast sees; at least ``season − 1``.
    h : int
        Rows ahead.
    season : int
        Rows of one season.

    Returns
    -------
    ndarray of shape (k, C, h)

    Raises
    ------
    ShapeError
        If an origin has less than one season behind it.
    """
    _check_history(origins, n_rows=season, what=f"season={season}")
    steps = np.arange(h) % season
    seasons: FloatArray = values[origins[:, None] - (season - 1) + steps]  # (k, h, C)
    return seasons.transpose(0, 2, 1)


class EqualContextRidge:
    """A linear map from the last ``look_back`` rows to the next ``h``, shared by all series and solved in closed form.

    The last value is subtracted from both sides and added back. The penalty is the one with the least squared error on
    the validation rows. Everything is float64, and windows are cut a chunk at a time, never all at once.

    Parameters
    ----------
    h : int
        Rows ahead.
    look_back : int
        Rows that a forecast sees.
    penalties : sequence of float
        Candidates, in units of a sum of squared inputs over all training windows (not their mean). The constant is
        penalised like every other weight. The upper end of the default grid is part of the known ETT scores: on
        ETTh1 from h 192 on the choice is 1e5, and larger penalties are better on validation and worse on test.
    refit : bool
        Solve again with the validation windows among the training windows, after the penalty was chosen.
    chunk : int
        Windows held in memory at once.

    Attributes
    ----------
    weights_ : ndarray of shape (look_back + 1, h)
        The constant is the last row.
    penalty_ : float
        The chosen penalty.
    validation_mse_, validation_mae_ : float
        Errors on the validation windows before any refit, with the chosen penalty.
    n_windows_, n_validation_windows_ : int
        Windows that were summed and that chose.

    References
    ----------
    Toner and Darlow (2024), An Analysis of Linear Time Series Forecasting Models (arXiv 2403.14587).
    """

    def __init__(
        self,
        *,
        h: int,
        look_back: int = LOOK_BACK,
        penalties: Sequence[float] = PENALTIES,
        refit: bool = False,
        chunk: int = 4096,
    ) -> None:
        if min(h, look_back, chunk) < 1:
            raise ParameterError(f"h={h}, look_back={look_back} and chunk={chunk} must each be at least 1.")
        if len(penalties) == 0 or min(penalties) <= 0:
            raise ParameterError(f"penalties={tuple(penalties)} must be positive. Take for example {PENALTIES}.")
        self.h, self.look_back, self.penalties, self.refit, self.chunk = h, look_back, tuple(penalties), refit, chunk

    @property
    def n_parameters(self) -> int:
        """Stored numbers."""
        return (self.look_back + 1) * self.h

    def fit(self, series: Sequence[NDArray[Any]], *, n_validation: int) -> EqualContextRidge:
        """Sum the normal equations over all training windows, solve, and choose the penalty.

        Parameters
        ----------
        series : sequence of ndarray of shape (T,)
            One array per series or channel, of any length, on comparable scales. Windows with a NaN are left out, and
            so are series that are too short for one window.
        n_validation : int
            The last rows of each series. A window whose targets all lie in them chooses the penalty; a window whose
            targets all lie before them is trained on.

        Returns
        -------
        EqualContextRidge
            Itself.

        Raises
        ------
        ParameterError
            If ``n_validation`` is less than ``h``.
        ShapeError
            If no series has a window to train on, or none has one to choose with.
        """
        if n_validation < self.h:
            raise ParameterError(f"n_validation={n_validation} must be at least h={self.h} to hold one window.")
        rows = [np.ascontiguousarray(values, np.float64) for values in series]
        train = _Equations(self.look_back, self.h)
        for values in rows:
            train.add(self._windows(values, first=0, stop=len(values) - n_validation))
        candidates = [train.solve(penalty) for penalty in self.penalties] if train.n_windows else []
        scores = [RunningErrors() for _ in candidates]
        for values in rows:
            for inputs, targets in self._windows(values, first=len(values) - n_validation, stop=len(values)):
                for weights, score in zip(candidates, scores, strict=True):
                    score.add(inputs @ weights - targets)
        if not scores or not scores[0].n:
            raise ShapeError(
                f"no series is long enough: look_back={self.look_back}, h={self.h} and n_validation={n_validation} "
                f"need {self.look_back + self.h + n_validation} rows without a gap, and the longest series has "
                f"{max(map(len, rows), default=0)} rows. Take a smaller look_back."
            )
        best = int(np.argmin([score.mse for score in scores]))
        self.penalty_, self.weights_ = self.penalties[best], candidates[best]
        self.validation_mse_, self.validation_mae_ = scores[best].mse, scores[best].mae
        self.n_windows_, self.n_validation_windows_ = train.n_windows, scores[best].n // self.h
        if self.refit:
            for values in rows:
                train.add(self._windows(values, first=len(values) - n_validation - self.h + 1, stop=len(values)))
            self.weights_, self.n_windows_ = train.solve(self.penalty_), train.n_windows
        return self

    def predict(self, values: FloatArray, *, origins: IntArray) -> FloatArray:
        """Forecast every channel from every origin.

        Parameters
        ----------
        values : ndarray of shape (T, C)
            Rows oldest first, on the scale that was fitted.
        origins : ndarray of shape (k,)
            Index of the last row that each forecast sees; at least ``look_back − 1``.

        Returns
        -------
        ndarray of shape (k, C, h)
            NaN where the look-back holds one.

        Raises
        ------
        ShapeError
            If an origin has less than ``look_back`` rows behind it.
        """
        _check_history(origins, n_rows=self.look_back, what=f"look_back={self.look_back}")
        last = values[origins]  # (k, C)
        seen = sliding_window_view(values, self.look_back, axis=0)[origins - self.look_back + 1]  # (k, C, look_back)
        inputs = (seen - last[:, :, None]).reshape(-1, self.look_back)
        moves: FloatArray = inputs @ self.weights_[:-1] + self.weights_[-1]
        return moves.reshape(*last.shape, self.h) + last[:, :, None]

    def _windows(self, values: FloatArray, *, first: int, stop: int) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Inputs with a constant and targets, for all windows whose targets lie in ``[first, stop)``."""
        origins = np.arange(max(first, self.look_back) - 1, stop - self.h)
        for begin in range(0, len(origins), self.chunk):
            at = origins[begin : begin + self.chunk]
            last = values[at][:, None]
            inputs = np.ones((len(at), self.look_back + 1))
            inputs[:, :-1] = sliding_window_view(values, self.look_back)[at - self.look_back + 1] - last
            targets = sliding_window_view(values, self.h)[at + 1] - last
            there = np.isfinite(inputs).all(axis=1) & np.isfinite(targets).all(axis=1)
            yield (inputs, targets) if there.all() else (inputs[there], targets[there])


def score_origins(
    values: FloatArray, forecast: OriginForecast, *, h: int, first: int, stop: int, chunk: int = 256
) -> Score:
    """Walk over every origin whose targets all lie in ``[first, stop)``, stride 1, and average the errors.

    Nothing is dropped at the end, and only ``chunk`` origins are in memory at once. Cells with a NaN do not count.

    Parameters
    ----------
    values : ndarray of shape (T, C)
        Rows oldest first.
    forecast : callable
        ``(values, origins=…) -> (k, C, h)``.
    h : int
        Rows ahead.
    first, stop : int
        Rows that targets may lie in; what comes before ``first`` may be looked back on.
    chunk : int
        Origins per call.

    Returns
    -------
    Score

    Raises
    ------
    ShapeError
        If ``[first, stop)`` holds no window.
    """
    origins = np.arange(first - 1, stop - h)
    if len(origins) == 0:
        raise ShapeError(f"rows {first} to {stop} hold no window of h={h} rows.")
    errors = RunningErrors()
    for begin in range(0, len(origins), chunk):
        at = origins[begin : begin + chunk]
        targets = sliding_window_view(values, h, axis=0)[at + 1]  # (k, C, h)
        errors.add(forecast(values, origins=at) - targets)
    return Score(errors.mse, errors.mae, len(origins) * values.shape[1])


class _Equations:
    """Normal equations, summed chunk by chunk."""

    def __init__(self, look_back: int, h: int) -> None:
        self.gram = np.zeros((look_back + 1, look_back + 1))
        self.moments = np.zeros((look_back + 1, h))
        self.n_windows = 0

    def add(self, windows: Iterator[tuple[FloatArray, FloatArray]]) -> None:
        for inputs, targets in windows:
            self.gram += inputs.T @ inputs
            self.moments += inputs.T @ targets
            self.n_windows += len(inputs)

    def solve(self, penalty: float) -> FloatArray:
        # The column of the last value is 0 after the subtraction; the penalty makes the system solvable.
        solution = np.linalg.solve(self.gram + penalty * np.eye(len(self.gram)), self.moments)
        return np.asarray(solution, np.float64)


class RunningErrors:
    """Running sums of squared and absolute errors; NaN errors do not count."""

    def __init__(self) -> None:
        self.squared, self.absolute, self.n = 0.0, 0.0, 0

    def add(self, errors: FloatArray) -> None:
        """Count errors of any shape."""
        there = errors[~np.isnan(errors)]
        self.squared += float(there @ there)
        self.absolute += float(np.abs(there).sum())
        self.n += there.size

    @property
    def mse(self) -> float:
        """Mean squared error, NaN before the first error."""
        return self.squared / self.n if self.n else float("nan")

    @property
    def mae(self) -> float:
        """Mean absolute error, NaN before the first error."""
        return self.absolute / self.n if self.n else float("nan")


def _check_history(origins: IntArray, *, n_rows: int, what: str) -> None:
    if len(origins) and int(origins.min()) < n_rows - 1:
        raise ShapeError(
            f"origin {int(origins.min())} has {int(origins.min()) + 1} rows behind it, and {what} needs {n_rows}. "
            f"Start at origin {n_rows - 1} or take fewer rows."
        )
