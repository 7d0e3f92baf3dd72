"""Alerts: what lasts becomes one, with a beginning and an end; what flickers, or is being repaired, becomes none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from txl_ts.config import check_number
from txl_ts.errors import ParameterError
from txl_ts.instants import read_duration, read_stamp
from txl_ts.stream.statuses import CLOCK_AHEAD, CLOCK_BACK, OUT_OF_RANGE, STALE, STATUSES, STUCK, UNIT_SUSPECT

ANOMALY = "anomaly"
_EPISODE = {
    "id": str,
    "since": int,
    "sensors": [str],
    "band": {str: [float, float]},
    "values": {str: object},
    "level": float,
}
_KIND = {"last": (int, None), "over": [[int, int]], "episode": (_EPISODE, None), "quiet": int, "ended": (int, None)}
_WINDOW = {"first": int, "last": int, "sensors": ([str], None)}
FORM = {"n": int, "n_muted": int, "windows": [_WINDOW], "kinds": {str: _KIND}}
"""Of the state, as :func:`txl_ts.forms.check_form` reads it."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """When a condition becomes an alert, in durations.

    A row stands for the time since the row before it; the first, and the first after a reset, for none.

    Parameters
    ----------
    over, within : duration
        The condition must have held for ``over`` in all during the last ``within``: k of n rows, in time. With 0, the
        first row is enough. ``within`` is ``over`` by default: without a break.
    clear : duration
        The alert ends when the condition has not held for so long; rows that do not know count for nothing.
    cooldown : duration
        After the end of one alert the next can begin so much later.
    hysteresis : float
        In (0, 1]. An alert begins at a level of 1 and lasts while the level is at least this.
    longest : duration, optional
        A row stands for no more time than this.
    """

    over: Any = 0
    within: Any = None
    clear: Any = 0
    cooldown: Any = 0
    hysteresis: float = 1.0
    longest: Any = None

    def __post_init__(self) -> None:
        for name in ("over", "clear", "cooldown", "longest"):
            if (given := getattr(self, name)) is not None or name != "longest":
                object.__setattr__(self, name, read_duration(name, given))
        within = self.over if self.within is None else read_duration("within", self.within)
        if within < self.over:
            raise ParameterError(
                f"within={self.within!r} must be at least over={self.over} ns: it is over out of within."
            )
        object.__setattr__(self, "within", within)
        hysteresis = check_number("hysteresis", self.hysteresis, at_least=1e-9, below=math.nextafter(1, 2), example=0.5)
        object.__setattr__(self, "hysteresis", hysteresis)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a row says about one condition.

    Attributes
    ----------
    level : float
        1 and more: the condition holds. NaN: the row does not know.
    sensors : tuple of str
        Which of them, the worst first.
    band : dict of sensor to (low, high)
        What was expected.
    values : dict of sensor to float or None
        What came.
    """

    level: float
    sensors: tuple[str, ...] = ()
    band: dict[str, tuple[float, float]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Alert:
    """The beginning or the end of an episode; both carry its id.

    Attributes
    ----------
    id : str
        Distinct within a stream, and the same after a restart.
    event : {"raised", "cleared"}
    kind : str
        ``"anomaly"``, or the status that lasted.
    since : int
        Stamp of the first row of the episode in which the condition held.
    at : int
        Stamp of the row with which it was raised or cleared.
    sensors, band, values
        Those of the row with which it was raised.
    level : float
        The highest so far.
    """

    id: str
    event: str
    kind: str
    since: int
    at: int
    sensors: tuple[str, ...]
    band: dict[str, tuple[float, float]]
    values: dict[str, Any]
    level: float

    @property
    def key(self) -> str:
        """What makes it the same one when its rows are walked again, where it may be another in number."""
        return _key(self.event, self.kind, self.since, self.at)

    def to_json(self) -> dict[str, Any]:
        """Give a plain dictionary."""
        return asdict(self)


DEFAULT_RULES: Mapping[str, Rule] = MappingProxyType(
    {kind: Rule() for kind in (ANOMALY, STALE, STUCK, OUT_OF_RANGE, UNIT_SUSPECT, CLOCK_BACK, CLOCK_AHEAD)}
)


class Alerts:
    """The alert layer of one stream: ``(what a row says, state) → (alerts, state)``; the state is plain JSON.

    Parameters
    ----------
    rules : dict of kind to Rule, optional
        Which conditions alert: ``"anomaly"`` and statuses. Kinds that are not named are silent. By default an anomaly,
        sensors that are stale, stuck, out of range or in a wrong unit, and clocks that went wrong, each at once.
    maintenance : sequence of (start, end) or (start, end, sensors)
        Windows, ends included, in which nothing is counted. They can also be added with :meth:`mute`.
    zone : bool
        True if the times of ``maintenance`` carry their offset from UTC.

    Examples
    --------
    >>> alerts = Alerts({"anomaly": Rule(over=2, within=3)})
    >>> state = alerts.open()
    >>> for stamp, level in enumerate([0.1, 1.5, 0.2, 1.7]):
    ...     found, state = alerts.step(stamp, {"anomaly": Seen(level=level, sensors=("flow",))}, state)
    >>> found[0].event, found[0].since, found[0].at, found[0].sensors
    ('raised', 1, 3, ('flow',))
    """

    def __init__(
        self,
        rules: Mapping[str, Rule] | None = None,
        *,
        maintenance: Iterable[tuple[Any, ...]] = (),
        zone: bool = False,
    ) -> None:
        self.rules = dict(DEFAULT_RULES if rules is None else rules)
        if unknown := sorted(set(self.rules) - {ANOMALY, *STATUSES}):
            raise ParameterError(f"rules for {unknown[:5]}: known are {[ANOMALY, *STATUSES]}.")
        self.zone = zone
        self.maintenance = [self._window(*window) for window in maintenance]

    def _window(self, start: Any, end: Any, sensors: Any = None) -> dict[str, Any]:
        first = read_stamp(start, zone=self.zone, what="maintenance start")
        last = read_stamp(end, zone=self.zone, what="maintenance end")
        if last < first:
            raise ParameterError(f"maintenance from {start!r} to {end!r} ends before it begins.")
        return {"first": first, "last": last, "sensors": None if sensors is None else sorted(sensors)}

    def open(self) -> dict[str, Any]:
        """Give the state of a stream without alerts; plain JSON."""
        return {"n": 0, "n_muted": 0, "windows": [], "kinds": {kind: _quiet() for kind in self.rules}}

    def mute(self, start: Any, end: Any, state: Mapping[str, Any], *, sensors: Iterable[str] | None = None) -> Any:
        """Add a maintenance window; gives the new state."""
        return {**state, "windows": [*state["windows"], self._window(start, end, sensors)]}

    def after_gap(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Give the state of a stream of which nobody knows what happened since its last row."""
        return {**state, "kinds": {kind: {**one, "last": None} for kind, one in state["kinds"].items()}}

    def step(
        self,
        stamp: int,
        seen: Mapping[str, Seen],
        state: Mapping[str, Any],
        *,
        known: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[list[Alert], dict[str, Any]]:
        """Take in what a row says.

        Parameters
        ----------
        stamp : int
            Of the row; not before the last one's.
        seen : dict of kind to Seen
            Kinds that are not there are not known.
        known : mapping of key to id
            Of alerts that an earlier walk over these rows gave: they keep their ids.

        Returns
        -------
        list of Alert
            Beginnings and ends.
        dict
            The new state.
        """
        alerts: list[Alert] = []
        windows = [window for window in state["windows"] if window["last"] >= stamp]
        after: dict[str, Any] = {**state, "windows": windows, "kinds": {}}
        for kind, rule in self.rules.items():
            before = state["kinds"][kind]
            one, is_muted = self._unmuted(stamp, seen.get(kind), windows)
            after["n_muted"] += is_muted
            level = math.nan if one is None else one.level
            if math.isnan(level):  # the usual row of most kinds
                after["kinds"][kind] = {**before, "last": stamp}
                continue
            if level < 1 and before["episode"] is None and not before["over"]:
                after["kinds"][kind] = {**before, "last": stamp}
                continue
            assert one is not None
            after["kinds"][kind] = self._moved(kind, rule, stamp, one, before, after, alerts, known)
        return alerts, after

    def _unmuted(self, stamp: int, one: Seen | None, windows: Iterable[dict[str, Any]]) -> tuple[Seen | None, bool]:
        if one is None or not one.level >= 1:
            return one, False
        left = one.sensors
        for window in (*self.maintenance, *windows):
            if window["first"] <= stamp <= window["last"]:
                sensors = window["sensors"]
                if sensors is None or not left:
                    return None, True
                left = tuple(sensor for sensor in left if sensor not in sensors)
                if not left:
                    return None, True
        return (
            one if left == one.sensors else Seen(level=one.level, sensors=left, band=one.band, values=one.values)
        ), False

    def _moved(
        self,
        kind: str,
        rule: Rule,
        stamp: int,
        one: Seen,
        before: Mapping[str, Any],
        state: dict[str, Any],
        alerts: list[Alert],
        known: Mapping[str, str],
    ) -> dict[str, Any]:
        share = 0 if before["last"] is None else stamp - before["last"]
        share = share if rule.longest is None else min(share, rule.longest)
        # What a row stands for ends at its stamp: at the edge it tells where the episode began, and adds no time.
        edge = stamp - rule.within
        over = [[at, held] for at, held in before["over"] if edge <= at <= stamp]
        episode, quiet, ended = before["episode"], before["quiet"], before["ended"]
        if ended is not None and ended > stamp:  # a clock that had been ahead was put right
            ended = None
        if episode is None:
            if one.level >= 1:
                over = [*over, [stamp, share]]
                is_long = sum(held for at, held in over if at > edge or at == stamp) >= rule.over
                if is_long and (ended is None or stamp - ended >= rule.cooldown):
                    since = over[0][0]
                    name = known.get(_key("raised", kind, since, stamp))
                    if name is None:
                        name = f"{kind}-{state['n']}"
                        state["n"] += 1
                    episode = {"id": name, "since": since, **_told(one), "level": one.level}
                    quiet, over = 0, []
                    alerts.append(_alert(episode, kind, "raised", stamp))
        else:
            episode = {**episode, "level": max(episode["level"], one.level)}
            quiet = 0 if one.level >= rule.hysteresis else quiet + share
            if one.level < rule.hysteresis and quiet >= rule.clear:
                alerts.append(_alert(episode, kind, "cleared", stamp))
                episode, ended, over = None, stamp, []
        return {"last": stamp, "over": over, "episode": episode, "quiet": quiet, "ended": ended}


def _key(event: str, kind: str, since: int, at: int) -> str:
    return f"{event} {kind} {since} {at}"


def _quiet() -> dict[str, Any]:
    return {"last": None, "over": [], "episode": None, "quiet": 0, "ended": None}


def _told(one: Seen) -> dict[str, Any]:
    band = {sensor: [float(low), float(high)] for sensor, (low, high) in one.band.items()}
    return {"sensors": list(one.sensors), "band": band, "values": dict(one.values)}


def _alert(episode: Mapping[str, Any], kind: str, event: str, stamp: int) -> Alert:
    return Alert(
        id=episode["id"],
        event=event,
        kind=kind,
        since=episode["since"],
        at=stamp,
        sensors=tuple(episode["sensors"]),
        band={sensor: (low, high) for sensor, (low, high) in episode["band"].items()},
        values=episode["values"],
        level=episode["level"],
    )
