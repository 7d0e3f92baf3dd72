"""How many false alarms are allowed, and how many must be expected."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from txl_ts.config import check_choice, check_integer, check_number
from txl_ts.errors import ParameterError
from txl_ts.instants import read_duration

_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:per|/)\s*(\d*(?:\.\d+)?\s*[a-z]+)\s*", re.ASCII)
PER = ("stream", "fleet")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """False alarms that are allowed: a share of rows, or a number in a time.

    Parameters
    ----------
    contamination : float, optional
        Share of the rows of a stream, in (0, .5]. At one row a second, 0.0001 is 8.6 alarms a day.
    false_alarms : str, optional
        ``"1 per 30d"``. Exactly one of the two must be given.
    per : {"stream", "fleet"}
        Whose budget it is. 10,000 streams at one per 30 days each are 333 alarms a day.
    n_streams : int
        Streams of the fleet.

    Raises
    ------
    ParameterError
        If an argument cannot work, or both or none are given.

    Examples
    --------
    >>> Budget(false_alarms="1 per 30d").alpha(step="1s") * 30 * 86_400
    1.0
    """

    contamination: float | None = None
    false_alarms: str | None = None
    per: str = "stream"
    n_streams: int = 1

    def __post_init__(self) -> None:
        if (self.contamination is None) == (self.false_alarms is None):
            raise ParameterError(
                f"contamination={self.contamination!r} and false_alarms={self.false_alarms!r}: give exactly one of "
                "them, such as false_alarms='1 per 30d'."
            )
        check_choice("per", self.per, PER)
        check_integer("n_streams", self.n_streams, at_least=1)
        if self.contamination is not None:
            check_number("contamination", self.contamination, at_least=1e-300, below=0.5 + 1e-12, example=0.001)
        else:
            self._rate()

    def _rate(self) -> tuple[float, int]:
        text = self.false_alarms
        match = _RATE.fullmatch(text.lower()) if isinstance(text, str) else None
        if match is None or float(match[1]) <= 0:
            raise ParameterError(f"false_alarms={text!r:.60} must be a number in a time, such as '1 per 30d'.")
        time = match[2] if match[2][0].isdigit() else f"1{match[2]}"
        return float(match[1]), read_duration("false_alarms", time, at_least=1)

    def alpha(self, *, step: Any) -> float:
        """Give the share of one stream's rows that may alarm.

        Parameters
        ----------
        step : duration
            Time between two rows.

        Raises
        ------
        ParameterError
            If that is more than half of them.
        """
        n = self.n_streams if self.per == "fleet" else 1
        if self.contamination is not None:
            return self.contamination / n
        count, time = self._rate()
        alpha = count * read_duration("step", step, at_least=1) / time / n
        if alpha > 0.5:
            raise ParameterError(
                f"false_alarms={self.false_alarms!r} with a row every {step!r} is {alpha:.3g} of all rows: above "
                "a half nothing is unusual. Allow fewer."
            )
        return alpha


def exceedance_band(*, n_calibration: float, alpha: float, n_rows: float, level: float = 0.99) -> tuple[int, int]:
    """Give how many of ``n_rows`` normal rows will alarm, from where to where: the beta-binomial band.

    With k = α(n + 1), the share of normal rows above the k-th highest of n calibration scores is itself random,
    Beta(k, n + 1 − k): its mean is α, but from one alarm allowed (k = 1) it is spread like an exponential.

    Parameters
    ----------
    n_calibration : float
        Calibration rows; their effective size where they resemble their neighbours.
    alpha : float
        The level.
    n_rows : float
        Rows that follow.
    level : float
        Probability of the band, in (0, 1).

    Returns
    -------
    tuple of int
        Lowest and highest number, ends included.

    References
    ----------
    Vovk (2012), Conditional validity of inductive conformal predictors (arXiv 1209.2673), proposition 2.
    """
    m = int(n_rows)
    a = max(np.floor(alpha * (n_calibration + 1) + 1e-9), 1e-9)
    b = n_calibration + 1 - a
    x = np.arange(m, dtype=np.float64)
    # log P(x + 1) − log P(x), summed up: exact enough over a million terms, and no special function is needed.
    ratio = np.log(m - x) - np.log(x + 1) + np.log(x + a) - np.log(m - x - 1 + b)
    logs = np.concatenate([[0.0], np.cumsum(ratio)])
    mass = np.exp(logs - logs.max())
    below = np.cumsum(mass) / mass.sum()
    low = int(np.searchsorted(below, (1 - level) / 2, side="left"))
    return low, int(np.searchsorted(below, (1 + level) / 2, side="left"))
