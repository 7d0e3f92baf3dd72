"""How unusual a row is, from what a model had said about it before it came: ``(row, state) → (score, state)``.

Each sensor's value is put into the distribution that was forecast for it, as a signed normal score; its probability to
lie so far out makes the sensor's part, and all parts together the score of the row. The same in torch, for the graph,
is :mod:`txl_ts.detector_model`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from txl_ts.config import check_choice, check_integer, check_number
from txl_ts.errors import ParameterError
from txl_ts.forms import check_form

Values = Mapping[str, float | None]
TAIL = 10.0
"""Normal scores beyond the outermost quantile after which growth slows down from linear to logarithmic."""
FLOOR = 0.1
"""Least width of a normal score, in deviations of the forecast errors."""
MEAN_ROWS = 11.0
"""Half-life in rows of the running mean whose range is known: about the mean of 16 rows."""
GATE = 3.0
"""A level does not follow a sensor whose part is at least this."""
LEAST_WIDTH, MOST = 1e-30, 1e15
NEVER = 10**9
"""Rows after which all is forgotten, where nothing is."""
KINDS = ("surprise", "deviation", "novelty", "level")
_JSON = {
    "kind": str,
    "horizons": [int],
    "scale": ...,
    "smooth": float,
    "warm_rows": (int, None),
    "judged": ([bool], None),
    "span": int,
}
FORM = {"ahead": [[[(float, None)]]], "levels": [float], "n": int, "smooth": [[float]], "kept": [[float]]}
"""Of a scorer's state, as :func:`txl_ts.forms.check_form` reads it."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """A number for a row.

    Attributes
    ----------
    value : float
        Higher is more unusual; NaN if it cannot be given.
    sensors : dict of column to float
        Its parts.
    band : dict of column to (low, high)
        What was expected.
    """

    value: float
    sensors: dict[str, float] = field(default_factory=dict)
    band: dict[str, tuple[float, float]] = field(default_factory=dict)


class Scorer(Protocol):
    """Whatever scores the rows of a stream from the forecasts that were made before them; the state is plain JSON."""

    @property
    def warm_rows(self) -> int | None:
        """Rows that a stream must have had before one is scored; None leaves that to what the model says."""
        ...

    def open(self) -> dict[str, Any]:
        """Give the state of a stream of which nothing was said yet."""
        ...

    def step(self, values: Values, state: Mapping[str, Any], *, is_warm: bool = True) -> tuple[Score, dict[str, Any]]:
        """Score a row before the model sees it.

        Parameters
        ----------
        values : dict of column to float or None
            What came, in the order of the model's channels.
        state : dict
            As ``open`` or an earlier call gave it; not changed.
        is_warm : bool
            False: the row gets no score, and does not move what is smoothed.
        """
        ...

    def note(self, quantiles: NDArray[np.float32], levels: Sequence[float], state: Mapping[str, Any]) -> dict[str, Any]:
        """Keep what the model said after a row: quantiles (h, C, Q) of the next h rows; gives the new state."""
        ...

    def check(self, state: Any, *, n_columns: int) -> None:
        """Raise ValueError for what is no state of this scorer over so many columns."""
        ...


@dataclass(frozen=True, kw_only=True)
class Surprise:
    """Scores a row by how far its sensors lie from what was said of them before it came.

    Four kinds of parts:

    - ``"surprise"``: −log₁₀ of the probability of lying so far out. A value between two forecast quantiles gets the
      normal score between theirs; beyond the outermost, scores grow by the width of the band, and logarithmically from
      ten on: without end, and always finite. 3 is one in a thousand if the forecast distribution is right. The score is
      that of the sum of the parts (Fisher's method, with the chi-square law in Wilson's and Hilferty's form): one
      sensor far out shows as well as many that are half-way.
    - ``"deviation"``: the distance from the forecast median in units of ``scale``, which stays as it is. The score is
      the largest part.
    - ``"novelty"``: how far the value, its running mean, or the error of the forecast from longest before, lies outside
      all that the stream has had of it, in widths of that range; negative inside. The score is the largest part.
    - ``"level"``: the smoothed distance from a running level, in units of ``scale``. A sensor whose part is 3 or more
      does not move its level, so that what lasts stays visible. The score is the largest part.

    Sensors without a value, or of which nothing was said, have no part.

    Parameters
    ----------
    kind : {"surprise", "deviation", "novelty", "level"}
    horizons : tuple of int
        Steps ahead, increasing: a row is compared with what was said so many rows before it. A forecast from long
        before has not yet learned the new level. The worst of them counts.
    scale : tuple of float, or float
        Raw units per deviation of each column. Surprises have a tenth of it per normal score at least, so that a sensor
        that never moved is not infinitely surprising; ranges are a thousandth wide at least.
    smooth : float
        Rows after which a part has half its weight in the running mean that is taken in its place; 0 for none. Of
        ``"level"`` it is the distance, with its sign, that is smoothed.
    warm_rows : int, optional
        Rows of a stream before one is scored.
    judged : tuple of bool, optional
        Which columns have parts; the others are for the model alone. All by default.
    span : int
        Rows in which an extreme of ``"novelty"`` gives way by a ``scale``; by default never. Half-life of the
        ``"level"`` in rows.

    References
    ----------
    Fisher (1932), Statistical Methods for Research Workers, 4th edition, section 21.1. Wilson and Hilferty (1931), The
    distribution of chi-square, PNAS 17(12).

    Examples
    --------
    >>> import numpy as np
    >>> surprise = Surprise()
    >>> said = np.array([[[-1.28, 0.0, 1.28]]], np.float32)  # (h, C, Q)
    >>> state = surprise.note(said, (0.1, 0.5, 0.9), surprise.open())
    >>> score, state = surprise.step({"flow": 3.0}, state)
    >>> round(score.value, 1), [round(edge, 2) for edge in score.band["flow"]]
    (2.4, [-1.28, 1.28])
    """

    kind: str = "surprise"
    horizons: tuple[int, ...] = (1,)
    scale: tuple[float, ...] | float = 0.0
    smooth: float = 0.0
    warm_rows: int | None = None
    judged: tuple[bool, ...] | None = None
    span: int = NEVER

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        object.__setattr__(self, "horizons", check_horizons(self.horizons))
        check_number("smooth", self.smooth, at_least=0, below=math.inf, example=10)
        check_integer("span", self.span, at_least=1)
        if self.warm_rows is not None:
            check_integer("warm_rows", self.warm_rows, at_least=1)

    def to_json(self) -> dict[str, Any]:
        """Give plain JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_json` gave; keys that are not known are ignored.

        Raises
        ------
        ValueError
            If it is anything else.
        """
        known: dict[str, Any] = {name: document.get(name) for name in _JSON}
        check_form(known, _JSON, where="the score's settings")
        if isinstance(known["scale"], list):
            check_form(known["scale"], [float], where="the score's scale")
        elif not isinstance(known["scale"], float | int):
            raise ValueError(f"the score's scale is {known['scale']!r:.40}, expected numbers")
        tuples: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in known.items()}
        return cls(**tuples)

    def open(self) -> dict[str, Any]:
        """Give the state of a stream of which nothing was said yet; plain JSON."""
        return {"ahead": [[] for _ in self.horizons], "levels": [], "n": 0, "smooth": [], "kept": []}

    def step(self, values: Values, state: Mapping[str, Any], *, is_warm: bool = True) -> tuple[Score, dict[str, Any]]:
        """Score a row by what was said before it; see :class:`Scorer`."""
        after = dict(state)
        with np.errstate(over="ignore"):  # as the model gets them: float32 counts, and beyond it is no reading
            x = np.array([math.nan if value is None else value for value in values.values()], np.float64)
            x = x.astype(np.float32).astype(np.float64)
        x[np.isinf(x)] = math.nan
        said = [kept[0] for kept, k in zip(state["ahead"], self.horizons, strict=True) if len(kept) == k]
        quantiles = np.array(said, np.float64).reshape(len(said), len(x), len(state["levels"]))
        if self.kind == "novelty":
            far = quantiles[-1][:, state["levels"].index(0.5)] if len(said) == len(self.horizons) else np.nan * x
            parts, after["kept"] = self._novelties(x, x - far, state["kept"])
        elif self.kind == "level":
            parts, after["kept"] = self._levels(x, state["kept"])
        elif said:
            parts = np.fmax.reduce(self._distances(x, quantiles, state["levels"]), axis=0)
        else:
            parts = np.full(len(x), np.nan)
        if not (is_warm and (self.warm_rows is None or state["n"] >= self.warm_rows)):
            parts = np.full(len(x), np.nan)
        if self.judged is not None:
            parts = np.where(self.judged, parts, np.nan)
        if self.smooth and self.kind != "level":
            parts, after["smooth"] = self._smoothed(parts, state["smooth"])
        sensors = {column: part for column, part in zip(values, parts.tolist(), strict=True) if not math.isnan(part)}
        value = float(joint_surprise(parts)) if self.kind == "surprise" else max(sensors.values(), default=math.nan)
        band: dict[str, tuple[float, float]] = {}
        if said and self.horizons[0] == 1:
            edges = zip(values, quantiles[0, :, 0].tolist(), quantiles[0, :, -1].tolist(), strict=True)
            band = {column: (low, high) for column, low, high in edges if math.isfinite(low + high)}
        return Score(value=value, sensors=sensors, band=band), after

    def _distances(
        self, x: NDArray[np.float64], quantiles: NDArray[np.float64], levels: list[float]
    ) -> NDArray[np.float64]:
        """Give the parts (n, C) of values (C,) by quantiles (n, C, Q)."""
        if self.kind == "surprise":
            return surprises(normal_scores(x, quantiles, levels, floor=FLOOR * np.asarray(self.scale)))
        median = quantiles[..., levels.index(0.5)]
        return np.minimum(np.abs(x - median) / least_widths(np.asarray(self.scale), median), MOST)

    def _novelties(
        self, x: NDArray[np.float64], error: NDArray[np.float64], before: list[list[float]]
    ) -> tuple[NDArray[np.float64], Any]:
        """Give the parts of values (C,), and what is kept: mean, weight, whether errors came, highest, lowest, seen."""
        n, scale = len(x), np.broadcast_to(np.asarray(self.scale, np.float64), len(x))
        leak = scale / self.span if self.span < NEVER else 0.0 * scale
        total, weight, had_error, *edges, had_value = np.array(before or [[0.0] * n] * 10, np.float64)
        keep = 0.5 ** (1 / MEAN_ROWS)
        x, error = np.clip(x, -MOST, MOST), np.clip(error, -MOST, MOST)
        there, has_error, was_seen = ~np.isnan(x), ~np.isnan(error), had_value > 0
        total = keep * total + (1 - keep) * np.where(there, x, 0.0)
        weight = keep * weight + (1 - keep) * there
        mean = total / np.where(weight > 0, weight, 1.0)
        parts, highs, lows = [], [], []
        of_values = ((x, there, was_seen), (mean, there, was_seen), (error, has_error, had_error > 0))
        for (value, came, seen), high, low in zip(of_values, edges[:3], edges[3:], strict=True):
            high, low = high - leak, low + leak
            width = np.maximum(high - low, np.maximum(1e-3 * scale, LEAST_WIDTH))
            parts.append(np.where(came & seen, np.maximum(value - high, low - value) / width, np.nan))
            highs.append(np.where(seen, np.where(came, np.fmax(high, value), high), np.where(came, value, 0.0)))
            lows.append(np.where(seen, np.where(came, np.fmin(low, value), low), np.where(came, value, 0.0)))
        after = [total, weight, np.maximum(had_error, has_error), *highs, *lows, np.maximum(had_value, there)]
        return np.fmax.reduce(parts), [one.tolist() for one in after]

    def _levels(self, x: NDArray[np.float64], before: list[list[float]]) -> tuple[NDArray[np.float64], Any]:
        """Give the parts of values (C,), and what is kept: level, smoothed distance from it, rows up to ``span``."""
        level, off, n = np.array(before or [[0.0] * len(x)] * 3, np.float64)
        x = np.clip(x, -MOST, MOST)
        there, keep = ~np.isnan(x), 0.5 ** (1 / self.smooth) if self.smooth else 0.0
        away = np.where(there, x - np.where(n > 0, level, x), 0.0)
        off = np.where(there, keep * off + (1 - keep) * away, off)
        part = np.abs(off) / least_widths(np.asarray(self.scale, np.float64), level)
        moves = there & ((n < self.span) | (part < GATE))
        level = np.where(
            n > 0, level + np.where(moves, np.maximum(1 / (n + 1), 1 - 0.5 ** (1 / self.span)) * away, 0), x
        )
        level = np.where(there | (n > 0), level, 0.0)
        after = [level, off, np.minimum(n + there, self.span)]
        return np.where(there, part, np.nan), [one.tolist() for one in after]

    def _smoothed(self, parts: NDArray[np.float64], before: list[list[float]]) -> tuple[NDArray[np.float64], Any]:
        """Move the running means on, and give them where there is a part."""
        keep, there = 0.5 ** (1 / self.smooth), ~np.isnan(parts)
        total, weight = np.array(before or [[0.0] * len(parts)] * 2, np.float64)
        total = keep * total + (1 - keep) * np.where(there, parts, 0.0)
        weight = keep * weight + (1 - keep) * there
        return np.where(there, total / np.where(there, weight, 1.0), np.nan), [total.tolist(), weight.tolist()]

    def note(self, quantiles: NDArray[np.float32], levels: Sequence[float], state: Mapping[str, Any]) -> dict[str, Any]:
        """Keep what was said after a row; see :class:`Scorer`."""
        if len(quantiles) < self.horizons[-1]:
            raise ParameterError(
                f"horizons={self.horizons} look {self.horizons[-1]} rows ahead, the model forecasts {len(quantiles)}. "
                "Take fewer, or a model with a longer h."
            )
        ahead = []
        for kept, k in zip(state["ahead"], self.horizons, strict=True):
            flat = np.asarray(quantiles[k - 1], np.float64).ravel().tolist()
            new = [None if math.isnan(q) else q for q in flat]
            ahead.append([*kept, new][-k:])
        return {**state, "ahead": ahead, "levels": [float(level) for level in levels], "n": state["n"] + 1}

    def check(self, state: Any, *, n_columns: int) -> None:
        """Raise ValueError for what is no state of this scorer over so many columns."""
        check_form(state, FORM, where="the score's state")
        size = n_columns * len(state["levels"])
        fits = len(state["ahead"]) == len(self.horizons) and all(
            len(kept) <= k and all(len(flat) == size for flat in kept)
            for kept, k in zip(state["ahead"], self.horizons, strict=True)
        )
        if not fits or (any(state["ahead"]) and 0.5 not in state["levels"]):
            raise ValueError("its forecasts are not of these channels and their levels")
        for name, n in (("smooth", 2), ("kept", {"novelty": 10, "level": 3}.get(self.kind, 0))):
            if state[name] and [len(one) for one in state[name]] != [n_columns] * n:
                raise ValueError(f"its {name!r} is not of these channels")


def check_horizons(horizons: Any) -> tuple[int, ...]:
    """Give the steps ahead as a tuple, or raise ParameterError unless they increase from 1 on."""
    given = tuple(horizons) if isinstance(horizons, Sequence) and not isinstance(horizons, str) else (horizons,)
    found = tuple(check_integer("horizons", one, at_least=1) for one in given)
    if not found or any(a >= b for a, b in itertools.pairwise(found)):
        raise ParameterError(f"horizons={horizons!r} must be increasing numbers of rows, such as (1,) or (1, 8).")
    return found


def normal_scores(
    x: ArrayLike, quantiles: ArrayLike, levels: Sequence[float], *, floor: ArrayLike = 0.0
) -> NDArray[np.float64]:
    """Put values into the distributions that quantiles tell, as normal scores.

    Parameters
    ----------
    x : array_like of shape (…, C)
        NaN where missing.
    quantiles : array_like of shape (…, C, Q)
        NaN where unknown.
    levels : sequence of float
        The Q levels, increasing; .5 among them.
    floor : float, or array_like of shape (C,)
        Least raw units per normal score.

    Returns
    -------
    array of shape (…, C)
        Positive above the median; NaN where either is not known.
    """
    x, q = np.asarray(x, np.float64), np.asarray(quantiles, np.float64)
    z = np.array([NormalDist().inv_cdf(level) for level in levels])
    median = q[..., list(levels).index(0.5)]
    least = least_widths(np.asarray(floor, np.float64), median)
    # Knots above the median, at their distances from it; those below are the same of the mirrored law.
    above = _side(x - median, q - median[..., None], z, least)
    below = _side(median - x, median[..., None] - q[..., ::-1], -z[::-1], least)
    return np.where(x >= median, above, np.where(x < median, -below, np.nan))


def least_widths(floor: NDArray[np.float64], median: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give the least raw units that count as one: as given, and no less than rounding makes of the median."""
    return np.maximum(floor, np.maximum(1e-6 * np.abs(median), LEAST_WIDTH))


def _side(
    off: NDArray[np.float64], knots: NDArray[np.float64], z: NDArray[np.float64], least: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Interpolate on the side of the median on which ``off`` is positive."""
    middle = int(np.flatnonzero(z == 0)[0])
    total, edge = np.zeros_like(off), np.zeros_like(off)
    for i in range(middle + 1, len(z)):
        knot = np.maximum(knots[..., i], z[i] * least)
        width = np.maximum(knot - edge, LEAST_WIDTH)
        total = total + np.clip((off - edge) / width, 0, 1) * (z[i] - z[i - 1])
        edge = np.maximum(knot, edge)
    per_score = edge / z[-1] if z[-1] > 0 else least
    beyond = np.maximum(off - edge, 0) / np.maximum(per_score, LEAST_WIDTH)
    return total + TAIL * np.log1p(np.minimum(beyond, MOST) / TAIL)


def surprises(z: ArrayLike) -> NDArray[np.float64]:
    """Give −log₁₀ of the probability that a normal number lies further out than ``z``, on either side."""
    return np.maximum(log_survival(np.abs(np.asarray(z, np.float64))) - math.log10(2), 0.0)


def joint_surprise(parts: ArrayLike) -> NDArray[np.float64]:
    """Give −log₁₀ of the probability that independent parts sum to so much: Fisher's method.

    Parameters
    ----------
    parts : array_like of shape (…, C)
        Of :func:`surprises`; NaN takes no part.

    Returns
    -------
    array of shape (…,)
        NaN where there is no part. One channel's is its part.
    """
    parts = np.asarray(parts, np.float64)
    there = ~np.isnan(parts)
    n, total = there.sum(axis=-1), np.where(there, parts, 0.0).sum(axis=-1)
    if parts.shape[-1] == 1:
        return np.where(n > 0, total, np.nan)
    freedom = 2.0 * np.maximum(n, 1)
    spread = 2 / (9 * freedom)
    w = (np.cbrt(2 * math.log(10) * total / freedom) - (1 - spread)) / np.sqrt(spread)
    return np.where(n > 0, log_survival(w), np.nan)


def log_survival(w: ArrayLike) -> NDArray[np.float64]:
    """Give −log₁₀ P(X > w) of a normal number, for any w: within 0.03, and 1 % where it is above 1.

    References
    ----------
    Abramowitz and Stegun (1964), 7.1.13: bounds of Mills' ratio, of which this is the upper one.
    """
    w = np.asarray(w, np.float64)
    far = np.abs(w)
    log_tail = -0.5 * far * far - np.log(far + np.sqrt(far * far + 8 / math.pi)) + 0.5 * math.log(2 / math.pi)
    inside = -np.log(1 - np.minimum(np.exp(log_tail), 0.5))
    return np.where(w > 0, -log_tail, inside) / math.log(10)
