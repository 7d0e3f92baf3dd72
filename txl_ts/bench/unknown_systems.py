"""Linear systems that nobody has met, and what estimation theory makes of them: Kalman filters, least squares.

A system is a damped oscillator with noise in its state and in its reading; its period and its damping are drawn anew
for each series, its noises are known. Whoever forecasts the next reading has to find out what it looks at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SHORTEST, LONGEST = 4.0, 32.0  # periods in rows, drawn evenly in logarithms
LEAST_DAMPING, MOST_DAMPING = 0.90, 0.995  # what is left of the state after a row
READING_NOISE = 0.3  # deviation; that of the signal is 1


@dataclass(frozen=True)
class Oscillators:
    """Systems x[t] = ρ R(2π / period) x[t−1] + w, y[t] = x₁[t] + v, with Var w = 1 − ρ² in each of two parts.

    Attributes
    ----------
    period : float64 array of shape (n,)
    damping : float64 array of shape (n,)
    """

    period: Floats
    damping: Floats

    @classmethod
    def drawn(cls, rng: np.random.Generator, n: int) -> Oscillators:
        """Draw systems."""
        period = np.exp(rng.uniform(np.log(SHORTEST), np.log(LONGEST), n))
        return cls(period, rng.uniform(LEAST_DAMPING, MOST_DAMPING, n))

    def matrices(self) -> Floats:
        """Give what a row makes of the state, (n, 2, 2)."""
        angle = 2 * np.pi / self.period
        turn = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], axis=1)
        return self.damping[:, None, None] * turn.reshape(-1, 2, 2)

    def readings(self, rng: np.random.Generator, n_rows: int) -> Floats:
        """Draw a series of each, (n, n_rows), from the stationary start on."""
        turn, n = self.matrices(), len(self.period)
        push = np.sqrt(1 - self.damping**2)[:, None]
        x, y = rng.normal(size=(n, 2)), np.empty((n, n_rows))
        for row in range(n_rows):
            y[:, row] = x[:, 0] + READING_NOISE * rng.normal(size=n)
            x = np.einsum("nij,nj->ni", turn, x) + push * rng.normal(size=(n, 2))
        return y


def kalman(y: Floats, systems: Oscillators) -> tuple[Floats, Floats]:
    """Forecast each next reading with a Kalman filter per system.

    Parameters
    ----------
    y : float64 array of shape (n, T)
        A series per system, or one series in each row for a bank: see :func:`bank`.
    systems : Oscillators
        Of n, or of 1 for all.

    Returns
    -------
    forecast, variance : float64 arrays of shape (n, T)
        Of the reading after each row.

    References
    ----------
    Kalman (1960), A new approach to linear filtering and prediction problems.
    """
    turn, push = systems.matrices(), (1 - systems.damping**2)[:, None, None] * np.eye(2)
    n_systems = len(turn)
    mean, spread = np.zeros((len(y), 2)), np.broadcast_to(np.eye(2), (n_systems, 2, 2))
    forecast, variance = np.empty(y.shape), np.empty(y.shape)
    for row in range(y.shape[1]):
        gain = spread[:, :, 0] / (spread[:, 0, 0] + READING_NOISE**2)[:, None]  # (n, 2)
        mean = mean + gain * (y[:, row] - mean[:, 0])[:, None]
        spread = spread - gain[:, :, None] * spread[:, None, 0, :]
        mean = np.einsum("nij,nj->ni", turn, mean) if n_systems > 1 else mean @ turn[0].T
        spread = turn @ spread @ turn.transpose(0, 2, 1) + push
        forecast[:, row], variance[:, row] = mean[:, 0], spread[:, 0, 0] + READING_NOISE**2
    return forecast, variance


def bank(y: Floats, candidates: Oscillators) -> Floats:
    """Forecast with a bank of Kalman filters, each weighed by how likely it made the readings so far.

    The structure and the noises are known, the parameters are not: with enough candidates drawn as the systems are,
    this is the best that can be done.

    Parameters
    ----------
    y : float64 array of shape (n, T)
    candidates : Oscillators

    Returns
    -------
    float64 array of shape (n, T)

    References
    ----------
    Magill (1965), Optimal adaptive estimation of sampled stochastic processes.
    """
    first = 1 + READING_NOISE**2  # variance of a first reading, of every candidate
    said, evidence = [], []
    for period, damping in zip(candidates.period, candidates.damping, strict=True):
        forecast, variance = kalman(y, Oscillators(np.array([period]), np.array([damping])))
        before, spread = forecast[:, :-1], variance[:, :-1]
        terms = -0.5 * ((y[:, 1:] - before) ** 2 / spread + np.log(spread))
        start = -0.5 * (y[:, :1] ** 2 / first + np.log(first))
        said.append(forecast)
        evidence.append(np.cumsum(np.concatenate([start, terms], axis=1), axis=1))
    stacked = np.stack(evidence)
    weight = np.exp(stacked - stacked.max(axis=0))
    out: Floats = (weight * np.stack(said)).sum(axis=0) / weight.sum(axis=0)
    return out


def least_squares(y: Floats, *, order: int, prior: float = 1.0) -> Floats:
    """Forecast with an autoregression whose coefficients are found on the way, by recursive least squares.

    Parameters
    ----------
    y : float64 array of shape (n, T)
    order : int
        Rows that it looks back.
    prior : float
        Ridge penalty of the start.

    Returns
    -------
    float64 array of shape (n, T)
        Forecast of the reading after each row.
    """
    n, n_rows = y.shape
    past, weights = np.zeros((n, order)), np.zeros((n, order))
    inverse = np.broadcast_to(np.eye(order) / prior, (n, order, order)).copy()
    forecast = np.empty(y.shape)
    for row in range(n_rows):
        if row:
            lifted = np.einsum("nij,nj->ni", inverse, past)
            gain = lifted / (1 + np.einsum("ni,ni->n", past, lifted))[:, None]
            weights = weights + gain * (y[:, row] - np.einsum("ni,ni->n", weights, past))[:, None]
            inverse = inverse - gain[:, :, None] * lifted[:, None, :]
        past = np.concatenate([y[:, row : row + 1], past[:, :-1]], axis=1)
        forecast[:, row] = np.einsum("ni,ni->n", weights, past)
    return forecast
