"""Find the frequency of a panel from all of its series."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from txl_ts.errors import FrequencyError
from txl_ts.frames.aliases import fixed_freq, parse_freq
from txl_ts.frames.freq import FIXED_UNITS, Freq
from txl_ts.frames.modes import mode_per_series
from txl_ts.frames.slots import DAY_NS, Slots
from txl_ts.frames.zones import wall_of

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_STEP, _DAYS, _START, _END, _SAME_DAY, _BUSINESS, _SHORT_WEEK = range(7)
_MONTH_ALIASES = {_START: ("MS", "QS", "YS"), _END: ("ME", "QE", "YE"), _SAME_DAY: ("1mo", "1q", "1y")}


@dataclass(frozen=True)
class Votes:
    """What each series says about the frequency.

    Attributes
    ----------
    winner : Freq
        What most voting series say (of equally many, what the first in the order of names says).
    others : dict of int to Freq
        Voting series that say something else.
    """

    winner: Freq
    others: dict[int, Freq]


def infer_freq(codes: IntArray, stamps: IntArray, n_series: int, *, is_integer: bool, zone: str | None) -> Votes:
    """Infer the frequency from the most common step of every series.

    A series with one row does not vote, and one whose most common step occurs only once (three rows with a gap, say)
    votes only if no series has a better claim. Steps of days and longer are looked at on the wall clock of the zone:
    business days if no row falls on a weekend, months, quarters and years if all rows share a day of the month.

    Parameters
    ----------
    codes, stamps : int64 arrays of shape (N,)
        Rows sorted by series, then time. Repeated stamps count once.
    n_series : int
        Number of series.
    is_integer : bool
        Whether the stamps are plain numbers.
    zone : str or None
        Time zone of the stamps.

    Raises
    ------
    FrequencyError
        If no series has two rows.
    """
    steps, counts = _common_steps(codes, stamps, n_series)
    rules = np.full(n_series, _STEP, dtype=np.int64)
    if not is_integer:
        long = steps >= 23 * FIXED_UNITS["h"]
        if long.any():
            _look_at_calendar(long, codes, stamps, zone, rules, steps, counts)
    voters = np.flatnonzero(counts >= 2)
    if not voters.size:
        voters = np.flatnonzero(counts == 1)
    if not voters.size:
        raise FrequencyError(
            "freq='auto' needs a series with two rows at least, got one row per series. "
            "Give freq, for example freq='1h'."
        )
    return _tally(voters, rules, steps, is_integer=is_integer)


def _common_steps(codes: IntArray, stamps: IntArray, n_series: int) -> tuple[IntArray, IntArray]:
    steps = np.diff(stamps)
    counted = (codes[1:] == codes[:-1]) & (steps > 0)
    return mode_per_series(codes[1:][counted], steps[counted], n_series)


def _look_at_calendar(
    long: BoolArray,
    codes: IntArray,
    stamps: IntArray,
    zone: str | None,
    rules: IntArray,
    steps: IntArray,
    counts: IntArray,
) -> None:
    """Replace the votes of series with steps of about a day or longer, in place."""
    rows = long[codes]
    codes, wall = codes[rows], wall_of(stamps[rows], zone)
    days, day_counts = _common_steps(codes, wall, len(long))
    whole = long & (days % DAY_NS == 0) & (days > 0)
    rules[whole], counts[whole], steps[whole] = _DAYS, day_counts[whole], days[whole] // DAY_NS
    daily = whole & (steps == 1)
    if daily.any():
        _look_for_weekends(daily, codes, wall, rules)
    monthly = whole & (steps >= 28)
    if monthly.any():
        _look_for_months(monthly, codes, wall, rules, steps, counts)


def _look_for_weekends(daily: BoolArray, codes: IntArray, wall: IntArray, rules: IntArray) -> None:
    weekday = (wall // DAY_NS + 3) % 7
    has_weekend = _any_per_series(weekday >= 5, codes, len(daily))
    week = (wall // DAY_NS + 3) // 7
    crosses = _any_per_series((week[1:] != week[:-1]) & (codes[1:] == codes[:-1]), codes[1:], len(daily))
    rules[daily & ~has_weekend] = _SHORT_WEEK
    rules[daily & ~has_weekend & crosses] = _BUSINESS


def _look_for_months(
    monthly: BoolArray, codes: IntArray, wall: IntArray, rules: IntArray, steps: IntArray, counts: IntArray
) -> None:
    n = len(monthly)
    rows = monthly[codes]
    codes, wall = codes[rows], wall[rows]
    slots = Slots("month_day")
    month = slots.slot_of(wall)
    day = (wall - slots.start_of(month)) // DAY_NS
    last = (slots.start_of(month + 1) - slots.start_of(month)) // DAY_NS - 1
    top = np.full(n, -1, dtype=np.int64)
    np.maximum.at(top, codes, day)
    time_of_day = wall % DAY_NS
    steady = ~_any_per_series((codes[1:] == codes[:-1]) & (np.diff(time_of_day) != 0), codes[1:], n)
    starts = ~_any_per_series(day != 0, codes, n)
    ends = ~_any_per_series(day != last, codes, n)
    same = ~_any_per_series(day != np.minimum(top[codes], last), codes, n)
    months, month_counts = _common_steps(codes, month, n)
    fits = monthly & steady & (month_counts > 0)
    for rule, holds in ((_SAME_DAY, same), (_END, ends), (_START, starts)):
        chosen = fits & holds
        rules[chosen], steps[chosen], counts[chosen] = rule, months[chosen], month_counts[chosen]


def _any_per_series(flags: BoolArray, codes: IntArray, n_series: int) -> BoolArray:
    return np.bincount(codes[flags], minlength=n_series) > 0


def _tally(voters: IntArray, rules: IntArray, steps: IntArray, *, is_integer: bool) -> Votes:
    rules = _settle_short_weeks(voters, rules, steps)
    ballots, which = np.unique(np.stack([rules[voters], steps[voters]], axis=1), axis=0, return_inverse=True)
    which = which.ravel()
    freqs = [_freq(int(rule), int(step), is_integer=is_integer) for rule, step in ballots]
    counts = np.bincount(which, minlength=len(freqs))
    best = which[np.argmax(counts[which] == counts.max())]  # the first voter among equals
    others = {int(voter): freqs[vote] for voter, vote in zip(voters, which, strict=True) if vote != best}
    return Votes(freqs[best], others)


def _settle_short_weeks(voters: IntArray, rules: IntArray, steps: IntArray) -> IntArray:
    """A series within one working week fits daily and business-daily data: it joins the others."""
    business = (rules[voters] == _BUSINESS).sum()
    daily = ((rules[voters] == _DAYS) & (steps[voters] == 1)).sum()
    return np.where(rules == _SHORT_WEEK, _BUSINESS if business > daily else _DAYS, rules)


def _freq(rule: int, step: int, *, is_integer: bool) -> Freq:
    if is_integer:
        return parse_freq(step)
    if rule == _STEP:
        return fixed_freq(step)
    if rule == _BUSINESS:
        return parse_freq("B")
    if rule == _DAYS:
        return parse_freq(f"{step // 7}W" if step % 7 == 0 else f"{step}D")
    month, quarter, year = _MONTH_ALIASES[rule]
    if step in {1, 3, 12}:
        return parse_freq({1: month, 3: quarter, 12: year}[step])
    return parse_freq(f"{step}{month.removeprefix('1')}")
