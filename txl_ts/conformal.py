"""Bands that hold what they say: conformal corrections of quantiles, once from held-out rows, or online in the state.

A conformity score is a miss in widths of the band that was forecast: ``(y − q̂) / (q̂_highest − q̂_lowest)``, one
distribution per step ahead and quantile, over all series. A quantile of level ``q`` is moved by the ``q``-quantile of
its scores. Scores in widths adapt to the series and the moment.

References
----------
Romano, Patterson and Candès (2019), Conformalized quantile regression (arXiv 1905.03222).
Gibbs and Candès (2021), Adaptive conformal inference under distribution shift (arXiv 2106.00170).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import ParameterError

Floats = NDArray[np.float32]

# Score distributions are kept as quantile functions at so many probabilities.
N_GRID = 101
# So many forecasts of a series wait to be judged at most: its bands are h × Q numbers each.
_MOST_PENDING = 8
# Fewer scores than this say nothing about a tail.
LEAST_SCORES = 20


@dataclass(frozen=True)
class Conformal:
    """Score distributions, and how they move quantiles.

    Attributes
    ----------
    quantiles : tuple of float
        Trained levels.
    scores : float32 array of shape (h, Q, G)
        Quantile function of the scores, at probabilities 0, …, 1.
    n_scores : int
        Least number of scores behind any of them.
    """

    quantiles: tuple[float, ...]
    scores: Floats
    n_scores: int

    @classmethod
    def from_forecasts(cls, parts: Iterable[tuple[Floats, Floats]], *, quantiles: Sequence[float]) -> Conformal:
        """Measure scores.

        Parameters
        ----------
        parts : iterable of (forecast, y)
            float32 arrays of shape (k, h, Q) and (k, h), of rows that were not trained on; NaN is left out.
        quantiles : sequence of float
            At least two.

        Raises
        ------
        ParameterError
            If there is no band, or a step ahead has fewer than 20 scores.
        """
        if len(quantiles) < 2:
            raise ParameterError("only the median was trained: there is no band to calibrate. Fit with more quantiles.")
        found = [_scores(forecast, y) for forecast, y in parts]
        scores = np.concatenate(found) if found else np.empty((0, 1, len(quantiles)), np.float32)
        count = np.isfinite(scores).all(axis=2).sum(axis=0)
        if not len(scores) or count.min() < LEAST_SCORES:
            raise ParameterError(
                f"calibration needs {LEAST_SCORES} forecasts of every step ahead with what came, and has "
                f"{int(count.min()) if len(scores) else 0}. Give more rows that the fit has not seen."
            )
        ordered = np.sort(scores, axis=0)  # NaN last
        at = np.linspace(0, 1, N_GRID)[:, None] * (count - 1)  # (G, h)
        low = np.floor(at).astype(np.int64)
        high = np.minimum(low + 1, count - 1)
        steps = np.arange(scores.shape[1])
        below, above = ordered[low, steps], ordered[high, steps]  # (G, h, Q)
        table = below + (above - below) * (at - low)[..., None]
        return cls(tuple(quantiles), np.moveaxis(table, 0, -1).astype(np.float32), int(count.min()))

    @property
    def h(self) -> int:
        """Steps ahead."""
        return self.scores.shape[0]

    def levels(self) -> Floats:
        """Probabilities to read the scores at, (h, Q): the levels, with split conformal's allowance for few scores."""
        q, n = np.array(self.quantiles), self.n_scores
        fair = np.where(q > 0.5, np.minimum(q * (n + 1) / n, 1), np.maximum(1 - (1 - q) * (n + 1) / n, 0))
        return np.tile(fair.astype(np.float32), (self.h, 1))

    def moved(self, forecast: Floats, levels: Floats | None = None, *, floor: float = -np.inf) -> Floats:
        """Move quantiles; the median stays, and no two cross.

        Parameters
        ----------
        forecast : float32 array of shape (…, n, Q)
            n steps; those beyond the trained horizon are moved like its last one.
        levels : float32 array of shape (…, h, Q), optional
            Probabilities to read the scores at; beyond 0 and 1 they go on in proportion to the range of the scores.
        floor : float
            No quantile falls below this.
        """
        step = np.minimum(np.arange(forecast.shape[-2]), self.h - 1)
        p = (self.levels() if levels is None else levels)[..., step, :]
        move = _read(self.scores[step], p)  # (…, n, Q)
        width = forecast[..., -1:] - forecast[..., :1]
        out = forecast + (move * width).astype(np.float32)
        middle = self.quantiles.index(0.5)
        out[..., middle] = forecast[..., middle]
        out[..., middle:] = np.maximum.accumulate(out[..., middle:], axis=-1)
        out[..., : middle + 1] = np.minimum.accumulate(out[..., middle::-1], axis=-1)[..., ::-1]
        return np.where(out < floor, np.float32(floor), out)


@dataclass
class Adaptive:
    """The online variant: levels of each series that follow its own misses.

    After each judged forecast a level moves by ``rate`` times what was promised minus what happened, so that in the
    long run each quantile holds its level whatever the series does. A forecast is issued every few rows and judged step
    by step as rows come; the bands that wait are part of the state.

    Attributes
    ----------
    rate : float
        γ of the paper.
    levels : float32 array of shape (n, h, Q)
        Probabilities that the scores are read at.
    bands : float32 array of shape (n, K, h, Q)
        Issued quantiles that wait to be judged.
    origins : int64 array of shape (n, K)
        Grid ordinal of the row each was issued from; −1 for none.
    """

    rate: float
    levels: Floats
    bands: Floats
    origins: NDArray[np.int64]

    @classmethod
    def fresh(cls, table: Conformal, *, n: int, rate: float) -> Adaptive:
        """Give series that have judged nothing."""
        h, n_levels = table.scores.shape[:2]
        k = -(-h // spacing(h))
        return cls(
            rate,
            np.tile(table.levels(), (n, 1, 1)),
            np.full((n, k, h, n_levels), np.nan, np.float32),
            np.full((n, k), -1, np.int64),
        )

    def take(self, lanes: NDArray[np.int64]) -> Adaptive:
        """Copy some series out."""
        return Adaptive(self.rate, self.levels[lanes], self.bands[lanes], self.origins[lanes])

    def joined(self, other: Adaptive) -> Adaptive:
        """Put series behind each other."""
        pairs = ((self.levels, other.levels), (self.bands, other.bands), (self.origins, other.origins))
        return Adaptive(self.rate, *(np.concatenate(pair) for pair in pairs))  # type: ignore[arg-type]

    def judge(self, lane: int, *, ordinal: int, y: float, quantiles: Sequence[float]) -> None:
        """Compare the waiting bands of a series with what came, and move its levels. Changes this object."""
        if not np.isfinite(y):
            return
        h = self.levels.shape[1]
        ahead = ordinal - self.origins[lane]
        for slot in np.flatnonzero((self.origins[lane] >= 0) & (ahead >= 1) & (ahead <= h)):
            step = ahead[slot] - 1
            band = self.bands[lane, slot, step]
            if np.isfinite(band).all():
                self.levels[lane, step] += self.rate * (np.asarray(quantiles) - (y <= band))

    def issue(self, lane: int, *, ordinal: int, forecast: Floats, table: Conformal, floor: float = -np.inf) -> None:
        """Keep a forecast (h, Q), moved by the levels of now, to be judged. Changes this object."""
        slot = (ordinal // spacing(table.h)) % self.bands.shape[1]
        self.bands[lane, slot] = table.moved(forecast, self.levels[lane], floor=floor)
        self.origins[lane, slot] = ordinal


def spacing(h: int) -> int:
    """Rows between two forecasts that are judged: at most eight of a horizon wait at once."""
    return -(-h // _MOST_PENDING)


def _scores(forecast: Floats, y: Floats) -> Floats:
    width = forecast[..., -1:] - forecast[..., :1]
    with np.errstate(invalid="ignore", divide="ignore"):
        scores = (y[..., None] - forecast) / width
    return np.where(np.isfinite(scores) & (width > 0), scores, np.float32(np.nan))


def _read(table: Floats, p: Floats) -> Floats:
    """Read quantile functions (n, Q, G) at probabilities (…, n, Q); outside 0 and 1 they go on as a straight line."""
    n_steps = table.shape[-1] - 1
    inside = np.clip(p, 0, 1)
    at = inside * n_steps
    low = np.minimum(np.floor(at).astype(np.int64), n_steps - 1)
    rows, columns = np.arange(table.shape[0])[:, None], np.arange(table.shape[1])
    below, above = table[rows, columns, low], table[rows, columns, low + 1]
    reach = table[..., -1] - table[..., 0]
    return (below + (above - below) * (at - low) + (p - inside) * reach).astype(np.float32)
