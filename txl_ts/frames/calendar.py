"""Features of a stamp, read off the wall clock of its zone: known for every row, past or to come.

A 23- or 25-hour day needs no rule: each instant is put on the wall clock, and the features follow the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from txl_ts.errors import ParameterError
from txl_ts.frames.freq import Freq
from txl_ts.frames.slots import DAY_NS
from txl_ts.frames.zones import wall_of
from txl_ts.wall_clock import HOLIDAYS, holidays_of, wall_features

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

FEATURES = ("hour", "weekday", "month", "yearday")
# Harmonics of each: the day has two humps in most loads; six harmonics of the week tell its days apart entirely.
_HARMONICS = {"hour": 2, "weekday": 3, "month": 2, "yearday": 2}


def check_calendar(calendar: Any, *, freq: Freq) -> tuple[str, ...]:
    """Resolve the argument ``calendar`` for rows of a frequency.

    Parameters
    ----------
    calendar : None, "auto" or sequence of str
        ``"auto"`` takes those of ``hour``, ``weekday`` and ``yearday`` that differ between rows. Names are ``hour``,
        ``weekday``, ``month``, ``yearday`` and ``holidays:CC`` or ``holidays:CC-SUB`` (country and subdivision of the
        package ``holidays``, such as ``holidays:AU-VIC``).
    freq : Freq

    Returns
    -------
    tuple of str
        One name per feature (``"weekday.1.sin"``, …), in the order of :func:`calendar_features`.

    Raises
    ------
    ParameterError
        If a name is unknown, or the rows are numbered by integers.
    MissingExtraError
        If the package ``holidays`` is needed.
    """
    if calendar is None:
        return ()
    if isinstance(calendar, str) and calendar == "auto":
        return () if freq.kind == "integer" else _columns(_varying(freq))
    if isinstance(calendar, str) or not isinstance(calendar, Sequence):
        raise ParameterError(
            f"calendar={calendar!r} must be None, 'auto' or a list such as calendar=['hour', 'weekday']."
        )
    if calendar and freq.kind == "integer":
        raise ParameterError(
            f"calendar={list(calendar)} needs datetimes, and the time column counts in integers. Leave calendar out."
        )
    for name in calendar:
        if name not in FEATURES and not (isinstance(name, str) and name.startswith(HOLIDAYS)):
            raise ParameterError(
                f"calendar names {name!r}; known are {', '.join(map(repr, FEATURES))} and 'holidays:CC' or "
                "'holidays:CC-SUB', such as 'holidays:AU-VIC'."
            )
    if len(set(calendar)) < len(calendar):
        raise ParameterError(f"calendar={list(calendar)} names a feature twice. Name each once.")
    for name in calendar:
        if name.startswith(HOLIDAYS):
            holidays_of(name, [2024])  # an unknown country is told now
    return _columns(calendar)


def calendar_features(stamps: IntArray, columns: Sequence[str], *, zone: str | None) -> FloatArray:
    """Compute features of stamps.

    Parameters
    ----------
    stamps : int64 array
        Native stamps, of any shape.
    columns : sequence of str
        As :func:`check_calendar` gives them.
    zone : str or None
        Zone whose wall clock is read; None: the stamps are wall time.

    Returns
    -------
    float32 array of shape (…, len(columns))
        Sines and cosines in [−1, 1]; holidays are 0 or 1.
    """
    wall = wall_of(np.ascontiguousarray(stamps, np.int64).ravel(), zone)
    return wall_features(wall, columns).reshape(*np.shape(stamps), len(columns))


def _columns(names: Sequence[str]) -> tuple[str, ...]:
    found: list[str] = []
    for name in names:
        if name.startswith(HOLIDAYS):
            found.append(name)
        else:
            found += [f"{name}.{k}.{wave}" for k in range(1, _HARMONICS[name] + 1) for wave in ("sin", "cos")]
    return tuple(found)


def _varying(freq: Freq) -> list[str]:
    """Features that differ between the rows of a frequency."""
    step = freq.nominal_ns
    if step < DAY_NS:
        return ["hour", "weekday", "yearday"]
    return ["weekday", "yearday"] if step < 7 * DAY_NS else ["yearday"]
