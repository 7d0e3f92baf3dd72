"""One list of frequency aliases for every frame: those of pandas, old and new, those of polars, and integers.

The libraries disagree, and their newer versions reject the older spellings, so the list is ours:

- ``"5m"`` is five minutes (polars); ``"m"`` is never a month.
- ``"M"``, ``"Q"``, ``"Y"`` and ``"A"`` are the **ends** of months, quarters and years (pandas before 2.2); ``"1mo"``,
  ``"1q"`` and ``"1y"`` keep the day of the first row (polars).
- ``"ms"`` is a millisecond, ``"MS"`` a month start; ``"S"`` and ``"s"`` are both a second.
- ``"D"`` and longer follow the wall clock of the time zone (23- and 25-hour days are one step); ``"24h"`` does not.
- Without an anchor (``"W"``, ``"QS"``, ``"YE"``) every series starts where its first row says; with one (``"W-MON"``,
  ``"QS-FEB"``) rows on other days are off the grid.
- ``"~1h"`` is uneven time whose distances are counted in hours.
"""

import difflib
import math
import re
from datetime import timedelta
from fractions import Fraction

from txl_ts.errors import FrequencyError
from txl_ts.frames.freq import FIXED_UNITS, MONTHS, WEEKDAYS, Freq

_FIXED = {
    "h": "h",
    "H": "h",
    "min": "min",
    "T": "min",
    "m": "min",
    "s": "s",
    "S": "s",
    "ms": "ms",
    "L": "ms",
    "us": "us",
    "U": "us",
    "µs": "us",
    "μs": "us",
    "ns": "ns",
    "N": "ns",
}
_CALENDAR = {
    "D": "D",
    "d": "D",
    "W": "W",
    "w": "W",
    "B": "B",
    "bd": "B",
    "M": "ME",
    "ME": "ME",
    "MS": "MS",
    "mo": "mo",
    "Q": "QE",
    "QE": "QE",
    "QS": "QS",
    "q": "q",
    "A": "YE",
    "Y": "YE",
    "YE": "YE",
    "AS": "YS",
    "YS": "YS",
    "y": "y",
}
_SPOKEN = {
    "hour": "1h",
    "hourly": "1h",
    "minute": "1min",
    "mins": "1min",
    "second": "1s",
    "sec": "1s",
    "day": "1D",
    "daily": "1D",
    "week": "1W",
    "weekly": "1W",
    "month": "MS",
    "monthly": "MS",
    "quarter": "QS",
    "quarterly": "QS",
    "year": "YS",
    "yearly": "YS",
    "annual": "YS",
    "BME": "ME",
    "BMS": "MS",
    "SME": "ME",
    "SMS": "MS",
    "bh": "1h",
    "C": "B",
}
_WHOLE = re.compile(r"(?P<count>\d+)?(?P<unit>[A-Za-zµμ]+)(?:-(?P<anchor>[A-Za-z]{3}))?")
_PART = re.compile(r"(\d+(?:\.\d+)?)([A-Za-zµμ]+)")


def parse_freq(freq: "str | int | timedelta | Freq") -> Freq:
    """Read a frequency in the spelling of pandas (old or new), of polars, or as an integer.

    Parameters
    ----------
    freq : str, int, timedelta or Freq
        ``"5min"``, ``"5T"``, ``"5m"``, ``"1h"``, ``"1h30m"``, ``"D"``, ``"W-MON"``, ``"MS"``, ``"1mo"``, ``"B"``, …; an
        integer, or one in a string, is the step of an integer time column.

    Returns
    -------
    Freq
        Equal for equal steps: ``"60T"``, ``"60m"`` and ``"1h"`` give one object; its ``text`` parses back to it.

    Raises
    ------
    FrequencyError
        If the alias is unknown or the step is not positive.

    Examples
    --------
    >>> from txl_ts.frames import parse_freq
    >>> [parse_freq(f).text for f in ("5m", "M", "1mo", "H", "W", 3)]
    ['5min', 'ME', '1mo', '1h', '1W', '3']
    """
    if isinstance(freq, Freq):
        return freq
    if isinstance(freq, timedelta):
        return _fixed(Fraction(freq // timedelta(microseconds=1)) * 1000, freq)
    if isinstance(freq, int) and not isinstance(freq, bool):
        return _integer(freq)
    freq = getattr(freq, "freqstr", freq)  # a pandas offset
    if not isinstance(freq, str):
        raise FrequencyError(
            f"freq must be a string such as '1h' or an integer, got {freq!r} of type {type(freq).__name__}."
        )
    text = freq.strip()
    if text.startswith("~"):
        unit = parse_freq(text[1:])
        if unit.kind == "calendar":
            raise FrequencyError(f"freq={freq!r} must name a fixed length of time, such as '~24h', or an integer.")
        return uneven_freq(unit.step, is_integer=unit.kind == "integer")
    if re.fullmatch(r"-?\d+i?", text):
        return _integer(int(text.removesuffix("i")))
    return _calendar(text, freq) or _fixed(_nanoseconds(text, freq), freq)


def rows_in(freq: Freq, duration: str | int | timedelta) -> int:
    """Rows that cover a duration, rounded up; an integer is a number of rows already.

    Parameters
    ----------
    freq : Freq
        The step of the rows.
    duration : str, int or timedelta
        ``"90d"``, ``"36h"``, ``"2y"``, or rows.

    Raises
    ------
    FrequencyError
        If a duration is given in time and the rows are numbered by integers, or if it cannot be read.

    Examples
    --------
    >>> from txl_ts.frames import parse_freq, rows_in
    >>> rows_in(parse_freq("30min"), "90d"), rows_in(parse_freq("MS"), "2y"), rows_in(parse_freq("1h"), 100)
    (4320, 24, 100)
    """
    wanted = parse_freq(duration)
    if wanted.kind == "integer":
        return wanted.step
    if freq.is_integer:
        raise FrequencyError(
            f"{duration!r} is a length of time, but the time column counts in integers. "
            "Give a number of rows, such as 168."
        )
    ratio = wanted.nominal_ns / freq.nominal_ns
    return max(1, math.ceil(round(ratio, 6)))


def fixed_freq(nanoseconds: int) -> Freq:
    """The fixed frequency of a number of nanoseconds."""
    return _fixed(Fraction(nanoseconds), nanoseconds)


def uneven_freq(step: int, *, is_integer: bool) -> Freq:
    """Uneven time whose distances are counted in ``step`` numbers or nanoseconds."""
    even = _integer(step) if is_integer else fixed_freq(step)
    return Freq(f"~{even.text}", "uneven", step, even.unit)


def _integer(step: int) -> Freq:
    _check_positive(step, step)
    return Freq(str(step), "integer", step)


def _fixed(nanoseconds: Fraction, given: object) -> Freq:
    _check_positive(nanoseconds, given)
    if nanoseconds.denominator != 1:
        raise FrequencyError(f"freq={given!r} is not a whole number of nanoseconds. Round it, for example to '1ms'.")
    step = int(nanoseconds)
    unit = next(name for name, size in FIXED_UNITS.items() if step % size == 0)
    return Freq(f"{step // FIXED_UNITS[unit]}{unit}", "fixed", step, unit)


def _calendar(text: str, given: str) -> Freq | None:
    match = _WHOLE.fullmatch(text)
    if not match or match["unit"] not in _CALENDAR:
        return None
    unit, anchor = _CALENDAR[match["unit"]], (match["anchor"] or "").upper()
    step = int(match["count"] or 1)
    _check_positive(step, given)
    if anchor:
        allowed = WEEKDAYS if unit == "W" else MONTHS if unit in {"QE", "QS", "YE", "YS"} else ()
        if anchor not in allowed:
            raise _unknown(given)
        unit = f"{unit}-{anchor}"
    bare = step == 1 and unit not in {"D", "W", "mo", "q", "y"}
    return Freq(unit if bare else f"{step}{unit}", "calendar", step, unit)


def _nanoseconds(text: str, given: str) -> Fraction:
    if text in _FIXED:
        text = f"1{text}"
    parts = _PART.findall(text)
    if "".join(number + unit for number, unit in parts) != text or not text:
        raise _unknown(given)
    if any(unit not in _FIXED for _, unit in parts):
        raise _unknown(given)
    return sum((Fraction(number) * FIXED_UNITS[_FIXED[unit]] for number, unit in parts), start=Fraction(0))


def _check_positive(step: int | Fraction, given: object) -> None:
    if step <= 0:
        raise FrequencyError(
            f"freq must be a step forward in time, got {given!r}. Give a positive one, such as '1h' or 1."
        )


def _unknown(given: str) -> FrequencyError:
    match = re.fullmatch(r"\s*(\d*)\s*(.*?)\s*", given)
    count, word = (match[1], match[2]) if match else ("", given)
    near = _suggestions(word)
    hint = " or ".join(repr(count + n.removeprefix("1") if count else n) for n in near)
    asked = f" Did you mean {hint}?" if hint else ""
    return FrequencyError(
        f"freq={given!r} is not a known frequency.{asked} "
        "Known are integers and, with a number before them, ns us ms s min h D W B MS ME QS QE YS YE mo q y "
        "(anchors as in 'W-MON' and 'QS-FEB')."
    )


def _suggestions(word: str) -> list[str]:
    spoken = {name.lower(): alias for name, alias in _SPOKEN.items()}
    if word.lower() in spoken:
        return [spoken[word.lower()]]
    known = {**{name.lower(): name for name in (*_FIXED, *_CALENDAR)}, **spoken}
    close = difflib.get_close_matches(word.lower().removesuffix("s"), list(known), n=2, cutoff=0.6)
    return list(dict.fromkeys(known[name] for name in close))
