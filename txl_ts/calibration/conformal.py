"""Conformal p-values from held-out normal rows, and what becomes of them over time."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from txl_ts.calibration.blocks import integrated_time
from txl_ts.calibration.budget import Budget, exceedance_band
from txl_ts.calibration.tail import MIN_EXCESSES, fit_gpd, gpd_excess, gpd_survival
from txl_ts.config import check_choice
from txl_ts.errors import DependentRowsWarning, ParameterError, StateError, TailWarning
from txl_ts.forms import check_form

TAILS = ("empirical", "gpd")
_TAIL_SHARE = 0.1  # of the scores, above which the tail is fitted
_JUMP = 0.01  # Vovk et al. (2021), Retrain or not retrain, section 3
_DRIFT = 1e6  # the bet against "as in calibration" is won a million times over
_HIGHEST = 1e12
_LEAST = 1e-300  # a p-value is never 0
_CREDIT, _MOST_CREDIT = 1.5, 3.0  # alarms that may be taken in: so many times the budget, saved up to so many
BETS = {"bets": [float, float, float], "turn": int}
_FORM = {
    "calibration": str,
    "ring": ...,
    "place": int,
    "credit": float,
    "n_taken": int,
    "learned": [float],
    **BETS,
}


class Calibration:
    """Turns scores into p-values that hold on normal rows, and a budget of false alarms into a level.

    The p-value of a score is (1 + how many of n calibration scores are as high) / (n + 1): if the row is as normal as
    those, it is at most α with probability α, whatever the model is worth. It cannot be smaller than 1 / (n + 1), so a
    budget that needs less is refused.

    Parameters
    ----------
    scores : array_like of shape (n,), or sequence of such
        Scores of held-out normal rows, in the order of time: never of training rows, whose errors are too small.
        Several arrays are several assets: a pooled start for one that has no history. NaN are left out.
    step : duration, optional
        Time between two rows; needed with ``false_alarms``.
    contamination, false_alarms, per, n_streams
        See :class:`~txl_ts.calibration.Budget`.
    tail : {"empirical", "gpd"}
        ``"gpd"``: above the highest tenth a generalised Pareto law is fitted, and goes on where no score was: allows
        any budget, with a warning where it extrapolates.
    online : bool
        True: rows that do not alarm take the place of the oldest calibration rows, and of those that alarm about as
        many as the budget foresees, none higher than the tail makes plausible: else the level would creep.
    learns_most : int
        Scores of alarms called false that are kept.

    Attributes
    ----------
    n : int
        Calibration rows.
    n_effective : float
        Independent ones that would tell as much.
    alpha : float
        A row with a p-value of at most this alarms.
    threshold : float
        The score at which that begins.

    Raises
    ------
    ParameterError
        If the budget needs more calibration rows, or an argument cannot work.

    Warns
    -----
    DependentRowsWarning
        If the budget needs more independent rows than the calibration rows are worth.
    TailWarning
        If the level lies beyond all calibration scores.

    Examples
    --------
    >>> import numpy as np
    >>> normal = np.abs(np.random.default_rng(0).normal(size=9_999))
    >>> calibration = Calibration(normal, contamination=0.01)
    >>> round(calibration.threshold, 2), calibration.p_value(9.0)
    (2.57, 0.0001)
    """

    def __init__(
        self,
        scores: ArrayLike | Sequence[ArrayLike],
        *,
        step: Any = None,
        contamination: float | None = None,
        false_alarms: str | None = None,
        per: str = "stream",
        n_streams: int = 1,
        tail: str = "empirical",
        online: bool = False,
        learns_most: int = 1000,
    ) -> None:
        check_choice("tail", tail, TAILS)
        self.budget = Budget(contamination=contamination, false_alarms=false_alarms, per=per, n_streams=n_streams)
        if false_alarms is not None and step is None:
            raise ParameterError(
                f"false_alarms={false_alarms!r} is a rate in time: give step='1min', the time between two rows."
            )
        if online and tail == "gpd":
            raise ParameterError("online=True moves the scores on, tail='gpd' is fitted once. Take one of them.")
        self.step_, self.tail, self.online, self.learns_most = step, tail, online, learns_most
        parts = [np.asarray(part, np.float64).ravel() for part in _as_parts(scores)]
        self.integrated_time = max((integrated_time(part) for part in parts if len(part)), default=1.0)
        self._sequence = np.concatenate([part[~np.isnan(part)] for part in parts]) if parts else np.empty(0)
        if not np.isfinite(self._sequence).all():
            raise ParameterError(
                "scores hold infinities: give NaN where there is no score, and finite numbers elsewhere."
            )
        self._table = np.sort(self._sequence)
        self.n = len(self._table)
        self.n_effective = self.n / self.integrated_time
        self.alpha = self.budget.alpha(step=step)
        self._tail = self._fit_tail()
        self._check_budget()
        self.digest = hashlib.sha256(self._sequence.tobytes()).hexdigest()[:16]
        self.threshold = self._threshold()

    def _fit_tail(self) -> tuple[float, float, float] | None:
        """Give threshold, shape and scale."""
        if self.tail == "empirical":
            return None
        n_tail = int(self.n * _TAIL_SHARE)
        if n_tail < MIN_EXCESSES:
            raise ParameterError(
                f"tail='gpd' is fitted to the highest tenth of the calibration scores and needs {MIN_EXCESSES} there, "
                f"got {n_tail} from {self.n} rows. Give {int(MIN_EXCESSES / _TAIL_SHARE)} or more."
            )
        start = float(self._table[self.n - n_tail - 1])
        return start, *fit_gpd(self._table[self.n - n_tail :] - start)

    def _check_budget(self) -> None:
        needed = math.ceil(1 / self.alpha - 1 - 1e-6)
        if self.n >= needed:
            if self.n_effective < needed / 2 and self._tail is None:
                warnings.warn(
                    DependentRowsWarning(
                        f"the {self.n:,} calibration rows resemble their neighbours and tell as much as "
                        f"{self.n_effective:,.0f} independent ones, α = {self.alpha:.3g} needs {needed:,}: alarms may "
                        "come several times as often as asked for. Calibrate on a longer time."
                    ),
                    stacklevel=3,
                )
            return
        if self._tail is None:
            raise ParameterError(
                f"alarms at α = {self.alpha:.3g} need {needed:,} held-out rows, got {self.n:,}: no p-value can be "
                f"below 1 / {self.n + 1:,}. Allow more false alarms, calibrate on more rows, or "
                "take tail='gpd', which extrapolates."
            )
        warnings.warn(
            TailWarning(
                f"α = {self.alpha:.3g} lies beyond what {self.n:,} calibration rows have seen (1 / {self.n + 1:,}): "
                f"the level comes from a fitted tail of shape {self._tail[1]:.2f}, and may be wrong by a large factor."
            ),
            stacklevel=3,
        )

    def _threshold(self) -> float:
        if self._tail is not None:
            start, shape, scale = self._tail
            share = self.alpha / self._tail_share()
            if share < 1:
                return start + gpd_excess(share, shape=shape, scale=scale)
        k = self._n_allowed()
        # The k-th highest itself has the p-value (1 + k) / (n + 1): an alarm lies above it.
        return float(np.nextafter(self._table[self.n - k], np.inf))

    def _tail_share(self) -> float:
        """P-value at the start of the tail, so that the two parts meet."""
        return (1 + int(self.n * _TAIL_SHARE)) / (self.n + 1)

    def table(self) -> tuple[NDArray[np.float64], tuple[float, float, float, float] | None]:
        """Give what p-values are made from, for a graph: scores in order; start, shape, scale, share of the tail."""
        return self._table.copy(), None if self._tail is None else (*self._tail, self._tail_share())

    # ------------------------------------------------------------------------------------------------------ p-values

    def p_values(self, scores: ArrayLike) -> NDArray[np.float64]:
        """Give p-values by the calibration as it was made; NaN for NaN."""
        s = np.asarray(scores, np.float64)
        p = (1.0 + self.n - np.searchsorted(self._table, s, side="left")) / (self.n + 1)
        if self._tail is not None:
            start, shape, scale = self._tail
            beyond = np.maximum(self._tail_share() * gpd_survival(s - start, shape=shape, scale=scale), _LEAST)
            p = np.where(s > start, beyond, p)
        return np.where(np.isnan(s), np.nan, p)

    def p_value(self, score: float) -> float:
        """Give the p-value of one score by the calibration as it was made; NaN for NaN."""
        return float(self.p_values(score))

    def expected_alarms(self, n_rows: int, *, level: float = 0.99) -> tuple[int, int]:
        """Give how many of ``n_rows`` normal rows will alarm, from where to where.

        By the effective size of the calibration; alarms of neighbouring rows come in clumps of the integrated time.
        """
        clump = self.integrated_time
        low, high = exceedance_band(
            n_calibration=max(self.n_effective, 1 / self.alpha - 1),
            alpha=self.alpha,
            n_rows=max(1.0, n_rows / clump),
            level=level,
        )
        return int(low * clump), math.ceil(high * clump)

    def recalibrated(self, scores: ArrayLike | Sequence[ArrayLike]) -> Calibration:
        """Calibrate on other scores with the same budget, as after each fit: scores of two models do not compare."""
        return Calibration(
            scores,
            step=self.step_,
            contamination=self.budget.contamination,
            false_alarms=self.budget.false_alarms,
            per=self.budget.per,
            n_streams=self.budget.n_streams,
            tail=self.tail,
            online=self.online,
            learns_most=self.learns_most,
        )

    # --------------------------------------------------------------------------------------------------- over time

    def open(self) -> dict[str, Any]:
        """Give the state of a stream: plain JSON and, with ``online``, one array."""
        return {
            "calibration": self.digest,
            "ring": self._sequence if self.online else None,
            "place": 0,
            "credit": 1.0,
            "n_taken": 0,
            "learned": [],
            "bets": [1 / 3, 1 / 3, 1 / 3],
            "turn": 0,
        }

    def check(self, state: Any) -> None:
        """Refuse a state that is not one of this calibration.

        Raises
        ------
        StateError
            If it belongs to another one.
        ValueError
            If it is none.
        """
        check_form(state, _FORM, where="the calibration's state")
        self._check_mine(state)
        ring = state["ring"]
        is_ring = isinstance(ring, np.ndarray) and ring.shape == (self.n,) and bool(np.isfinite(ring).all())
        if not (is_ring if self.online else ring is None) or not 0 <= state["place"] < max(1, self.n):
            raise ValueError(f"the calibration's state holds no {self.n} finite scores to go on with")

    def _check_mine(self, state: Mapping[str, Any]) -> None:
        if state["calibration"] != self.digest:
            raise StateError(
                f"the state belongs to the calibration {state['calibration']!r:.40}, this is {self.digest!r}. "
                "Begin with `open()` after a recalibration: scores of two models do not compare."
            )

    def step(self, score: float, state: Mapping[str, Any]) -> tuple[float, bool, dict[str, Any]]:
        """Give the p-value of a stream's next score.

        Parameters
        ----------
        score : float
            NaN changes nothing.

        Returns
        -------
        p_value : float
        has_drifted : bool
            True while p-values are so uneven that the rows are no longer as those of the calibration.
        state : dict
            The new state.

        Raises
        ------
        StateError
            If the state belongs to another calibration.
        """
        self._check_mine(state)
        if math.isnan(score):
            return math.nan, False, dict(state)
        after = dict(state)
        p = self._p_now(score, state)
        if self.online:
            self._take_in(score, after, alarms=p <= self.alpha)
        self._bet(p, after)
        return p, sum(after["bets"]) >= _DRIFT, after

    def _p_now(self, score: float, state: Mapping[str, Any]) -> float:
        learned, ring = state["learned"], state["ring"]
        if ring is None and not learned:
            return self.p_value(score)
        if ring is None and self._tail is not None:
            as_high = self.p_value(score) * (self.n + 1)
        else:
            table = self._table if ring is None else ring
            as_high = 1.0 + np.count_nonzero(table >= score)
        return float(as_high + sum(one >= score for one in learned)) / (self.n + 1 + len(learned))

    def _take_in(self, score: float, state: dict[str, Any], *, alarms: bool) -> None:
        """Let a row take the place of the oldest one.

        Were the rows that alarm left out, the highest score would soon be the level itself, the next level lower, and
        so on: the rate creeps. Were they taken in, one anomaly would hide the next. So about as many as the budget
        foresees are taken in, none higher than the tail makes plausible.
        """
        if alarms:
            if state["credit"] < 1:
                return
            state["credit"] -= 1
            score = min(score, self._plausible(state["ring"], state["n_taken"]))
            state["n_taken"] += 1
        else:
            state["credit"] = min(state["credit"] + _CREDIT * self.alpha / (1 - self.alpha), _MOST_CREDIT)
        ring = state["ring"].copy()
        ring[state["place"]] = score
        state["ring"], state["place"] = ring, (state["place"] + 1) % self.n

    def _plausible(self, ring: NDArray[np.float64], turn: int) -> float:
        """Give a score beyond the level, as an exponential tail would: its mean is that of the highest tenth's."""
        k, n_tail = self._n_allowed(), max(1, int(self.n * _TAIL_SHARE))
        ordered = np.sort(ring)
        mean = float((ordered[self.n - n_tail :] - ordered[max(0, self.n - n_tail - 1)]).mean())
        u = (0.5 + turn * 0.6180339887498949) % 1.0  # evenly spread, without a generator to keep
        return float(ordered[self.n - k]) - mean * math.log1p(-u)

    def _n_allowed(self) -> int:
        """How many calibration scores lie beyond the level."""
        return int(self.alpha * (self.n + 1) + 1e-9)

    def _bet(self, p: float, state: dict[str, Any]) -> None:
        """Bet against even p-values, once in an integrated time, so that neighbours are not counted twice."""
        state["turn"] = (state["turn"] + 1) % max(1, round(self.integrated_time))
        if state["turn"]:
            return
        bets = state["bets"]
        total = sum(bets)
        moved = [
            ((1 - _JUMP) * bet + _JUMP * total / 3) * (1 + e * (p - 0.5))
            for bet, e in zip(bets, (-1, 0, 1), strict=True)
        ]
        total = sum(moved)
        if total < 1:  # begins again where the bet had been lost, so that old luck does not hide a new change
            moved = [1 / 3, 1 / 3, 1 / 3]
        elif total > _HIGHEST:
            moved = [bet * _HIGHEST / total for bet in moved]
        state["bets"] = moved

    def drifts(
        self, scores: ArrayLike, bets: Mapping[str, Any] | None = None
    ) -> tuple[NDArray[np.bool_], dict[str, Any]]:
        """Tell at each row of a stream, in the order of time, whether its scores have drifted; see :meth:`step`.

        Parameters
        ----------
        scores : array of shape (n,)
            NaN where there is none.
        bets : dict, optional
            What the rows before these gave; without, the stream begins.

        Returns
        -------
        has_drifted : bool array of shape (n,)
        bets : dict
            The bets after these rows, as plain JSON of the form ``BETS``.
        """
        found, before = np.zeros(np.shape(scores), bool), self.open() if bets is None else bets
        state = {name: before[name] for name in BETS}
        has_drifted = False
        for i, p in enumerate(self.p_values(scores).tolist()):
            if not math.isnan(p):
                self._bet(p, state)
                has_drifted = sum(state["bets"]) >= _DRIFT
                found[i] = has_drifted
        return found, state

    def learn(self, scores: Iterable[float], state: Mapping[str, Any]) -> dict[str, Any]:
        """Take scores of a false alarm for normal ones; gives the new state."""
        learned = [*state["learned"], *(float(one) for one in scores if not math.isnan(one))]
        return {**state, "learned": learned[-self.learns_most :]}


def _as_parts(scores: Any) -> list[Any]:
    if isinstance(scores, np.ndarray) and scores.dtype != object:
        return [scores] if scores.ndim < 2 else list(scores)
    parts = list(scores)
    return [parts] if not parts or np.ndim(parts[0]) == 0 else parts
