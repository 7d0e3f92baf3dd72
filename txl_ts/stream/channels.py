"""Sensors: from a raw reading to the numbers that a model eats, with a status and a memory of what came before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from txl_ts.config import check_choice
from txl_ts.errors import ParameterError
from txl_ts.instants import read_duration
from txl_ts.stream.statuses import MISSING, OK, OUT_OF_RANGE, RESET, STALE, STUCK, UNIT_SUSPECT, WARMING_UP

KINDS = ("gauge", "counter", "angle", "state")

# What a value looks like when its unit was changed on the way: (scale, offset) that leads back.
_CONVERSIONS = {
    "a factor of 1000": (1e-3, 0.0),
    "a factor of 1/1000": (1e3, 0.0),
    "a factor of 100": (1e-2, 0.0),
    "a factor of 1/100": (1e2, 0.0),
    "Fahrenheit for Celsius": (5 / 9, -160 / 9),
    "Celsius for Fahrenheit": (9 / 5, 32.0),
    "kelvin for Celsius": (1.0, -273.15),
    "Celsius for kelvin": (1.0, 273.15),
    "psi for bar": (0.0689475729, 0.0),
    "bar for psi": (14.503773773, 0.0),
}
_KNOWN_FROM = 32  # readings before a usual band is known
_FORGET = 1 / 256  # weight of a new reading in the usual band
_BAND = 4.0  # deviations
_FAR = 1e150
_OPEN: dict[str, Any] = {"heard": None, "at": None, "raw": None, "held": None, "since": None, "n": 0, "mean": 0.0}
CHANNEL_FORM = {
    "heard": (int, None),
    "at": (int, None),
    "raw": (float, None),
    "held": object,
    "since": (int, None),
    "n": int,
    "mean": float,
    "spread": float,
}


@dataclass(frozen=True, kw_only=True)
class Channel:
    """One sensor of a stream: what its readings mean, and when they are not to be believed.

    Parameters
    ----------
    name : str
        The tag of its messages.
    kind : {"gauge", "counter", "angle", "state"}
        ``"gauge"``: the value as it is. ``"counter"``: a count that only rises; the model gets the difference from the
        reading before, taken in integers or float64 (at 1e8 a float32 steps by 8). ``"angle"``: sine and cosine.
        ``"state"``: one of ``states``, as one column each.
    low, high : float
        Readings of a gauge, or differences of a counter, outside are ``out_of_range``, or ``unit_suspect`` if a known
        change of unit would bring them into the usual band. The model sees such a reading as missing.
    period : float
        Of an angle: 360 for degrees.
    rollover : int, optional
        Readings of a counter lie in 0 … rollover − 1 and begin again at 0. A step back of more than half of it is a
        rollover; any other step back, and every one without ``rollover``, is a counter that began anew: ``reset``.
    states : tuple
        Of a state: what it can be, texts or numbers.
    every : duration, optional
        How often it is read. A row without a reading is ``missing`` once the last one is older than this; without it,
        each row of a grid must have a reading.
    stale_after : duration, optional
        Without a reading for longer the sensor is ``stale``. By default the stream's ``max_gap``.
    stuck_after : duration, optional
        With the same value for so long or longer it is ``stuck``. Off by default. The model still gets the value.
    stuck_tolerance : float
        Values that far from the first of a run count as the same.
    may_repeat : tuple of float
        Values that are never stuck, such as the 0 of a solar panel at night.
    """

    name: str
    kind: str = "gauge"
    low: float = -math.inf
    high: float = math.inf
    period: float = 360.0
    rollover: int | None = None
    states: tuple[Any, ...] = ()
    every: Any = None
    stale_after: Any = None
    stuck_after: Any = None
    stuck_tolerance: float = 0.0
    may_repeat: tuple[float, ...] = ()
    columns: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ParameterError(f"a channel's name must be text, got {self.name!r:.60}.")
        check_choice("kind", self.kind, KINDS)
        self._check_types()
        for name in ("every", "stale_after", "stuck_after"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, read_duration(f"channel {self.name!r}: {name}", given, at_least=1))
        if not self.low < self.high:
            raise ParameterError(f"channel {self.name!r}: low={self.low} must be below high={self.high}.")
        if not (math.isfinite(self.period) and self.period > 0):
            raise ParameterError(f"channel {self.name!r}: period={self.period} must be positive, such as 360.")
        if self.rollover is not None and (type(self.rollover) is not int or self.rollover < 2):
            raise ParameterError(f"channel {self.name!r}: rollover={self.rollover!r} must be an integer such as 2**32.")
        if (self.kind == "state") != bool(self.states) or len(set(self.states)) != len(self.states):
            raise ParameterError(
                f"channel {self.name!r}: states={self.states!r:.80} with kind={self.kind!r}. "
                "Give distinct states to kind='state', and to no other."
            )
        object.__setattr__(self, "columns", self._columns())

    def _check_types(self) -> None:
        """Hold numbers and lists to their types: a settings file may hold anything."""
        for name in ("low", "high", "period", "stuck_tolerance"):
            if not _is_number(given := getattr(self, name)):
                raise ParameterError(
                    f"channel {self.name!r}: {name}={given!r:.60} ({type(given).__name__}) must be a number."
                )
        for name, what, is_one in (("states", "texts or numbers", _is_state), ("may_repeat", "numbers", _is_number)):
            given = getattr(self, name)
            listed = None if isinstance(given, str | Mapping) or not isinstance(given, Iterable) else tuple(given)
            if listed is None or not all(map(is_one, listed)):
                raise ParameterError(
                    f"channel {self.name!r}: {name}={given!r:.60} ({type(given).__name__}) must be a list of {what}."
                )
            object.__setattr__(self, name, listed)

    def _columns(self) -> tuple[str, ...]:
        if self.kind == "angle":
            return (f"{self.name}.sin", f"{self.name}.cos")
        if self.kind == "state":
            return tuple(f"{self.name}={state}" for state in self.states)
        return (self.name,)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_state(value: Any) -> bool:
    return isinstance(value, str | Real)


def open_channel() -> dict[str, Any]:
    """Give the state of a channel that has seen nothing; plain JSON."""
    return dict(_OPEN, spread=0.0)


def begin_anew(state: dict[str, Any]) -> None:
    """Forget what must not be carried over a reset: the count before it, and the run of equal values."""
    state.update(raw=None, held=None, since=None)


def is_reading(value: Any, channel: Channel) -> bool:
    """Tell a reading from a missing value: None, NaN, infinities, and for numbers whatever is none."""
    if value is None:
        return False
    if channel.kind == "state":
        return not (isinstance(value, float) and math.isnan(value))
    return math.isfinite(value)


def take(
    channel: Channel, value: Any, *, at: int, now: int, state: dict[str, Any], default_stale: int, is_due: bool
) -> tuple[list[float | None], str]:
    """Turn what a row holds of a channel into numbers and a status; ``state`` is moved on.

    Parameters
    ----------
    value : float, int, text or None
        The raw reading; None if the row has none.
    at : int
        When it was read.
    now : int
        Stamp of the row.
    default_stale : int
        For channels without a ``stale_after``.
    is_due : bool
        True if a row without a reading is missing one, unless ``every`` says otherwise.

    Returns
    -------
    list of float or None
        One for each of ``channel.columns``; None is missing.
    str
        The channel's status.
    """
    nothing: list[float | None] = [None] * len(channel.columns)
    if not is_reading(value, channel):
        heard = state["heard"]
        if heard is None:
            return nothing, MISSING if is_due or channel.every is not None else OK
        age = now - heard
        if age > (channel.stale_after or default_stale):
            return nothing, STALE
        is_missing = is_due if channel.every is None else age > channel.every
        return nothing, MISSING if is_missing else OK
    state["heard"] = at
    columns, status = _converted(channel, value, state)
    if channel.stuck_after is not None and _is_stuck(channel, value, at, state) and status == OK:
        status = STUCK
    if columns is None:
        return nothing, status
    state["at"] = at
    return columns, status


def _converted(channel: Channel, value: Any, state: dict[str, Any]) -> tuple[list[float | None] | None, str]:
    if channel.kind == "angle":
        turn = 2 * math.pi * math.fmod(value, channel.period) / channel.period
        return [math.sin(turn), math.cos(turn)], OK
    if channel.kind == "state":
        if value not in channel.states:
            return None, OUT_OF_RANGE
        return [float(value == one) for one in channel.states], OK
    if channel.kind == "counter":
        step, status = _counted(channel, value, state)
        if step is None:
            return None, status
        return _guarded(channel, step, state)
    return _guarded(channel, float(value), state)


def _counted(channel: Channel, value: Any, state: dict[str, Any]) -> tuple[float | None, str]:
    """Difference from the reading before: exact for integers, in float64 else."""
    if channel.rollover is not None and not 0 <= value < channel.rollover:
        return None, OUT_OF_RANGE
    before, state["raw"] = state["raw"], value
    if before is None:
        return None, WARMING_UP
    step = value - before
    if step < 0 and channel.rollover is not None and -step > channel.rollover // 2:
        step += channel.rollover
    return (None, RESET) if step < 0 else (float(step), OK)


def _guarded(channel: Channel, value: float, state: dict[str, Any]) -> tuple[list[float | None] | None, str]:
    if channel.low <= value <= channel.high and math.isfinite(value):
        weight = max(_FORGET, 1 / (state["n"] + 1))
        past = max(-_FAR, min(_FAR, value - state["mean"]))  # its square must stay a number
        state["mean"] += weight * past
        state["spread"] = (1 - weight) * (state["spread"] + weight * past * past)
        state["n"] = min(state["n"] + 1, _KNOWN_FROM * 100)
        return [value], OK
    return None, UNIT_SUSPECT if suspected_unit(value, state) else OUT_OF_RANGE


def suspected_unit(value: float, state: dict[str, Any]) -> str | None:
    """Name the change of unit that would explain a value: taken back, it lies in the band of recent values.

    Needs 32 good readings; None if none would, or before.
    """
    if state["n"] < _KNOWN_FROM:
        return None
    width = _BAND * max(math.sqrt(state["spread"]), 1e-3 * abs(state["mean"]))
    if abs(value - state["mean"]) < _BAND * width:
        return None  # so near that any change of unit would do
    for name, (scale, offset) in _CONVERSIONS.items():
        if offset == 0 and abs(state["mean"]) < width:
            continue  # a band around 0 has room for a fraction of anything
        if abs(scale * value + offset - state["mean"]) <= width:
            return name
    return None


def _is_stuck(channel: Channel, value: Any, at: int, state: dict[str, Any]) -> bool:
    held = state["held"]
    is_same = held is not None and (
        value == held if channel.kind == "state" else abs(value - held) <= channel.stuck_tolerance
    )
    if not is_same:
        state["held"], state["since"] = value, at
        return False
    return at - state["since"] >= channel.stuck_after and value not in channel.may_repeat
