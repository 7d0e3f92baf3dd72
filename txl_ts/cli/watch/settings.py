"""How a stream is to be watched, from a JSON file and from options."""

from __future__ import annotations

import difflib
import inspect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any

from txl_ts.errors import ParameterError
from txl_ts.instants import read_stamp
from txl_ts.stream import Alerts, Channel, Intake, Rule

INTAKE = tuple(name for name in inspect.signature(Intake).parameters if name not in ("channels", "zone", "order"))
WATCH = ("protect_memory", "score_while_warming")
BUDGET = ("false_alarms", "contamination", "per", "n_streams", "tail", "online")
_OTHER = ("channels", "stale_after", "stuck_after", "rules", "maintenance")
_KINDS = (
    ("channels", dict, "an object of channels by name, such as {'flow': {…}}"),
    ("rules", dict | None, "an object of rules by kind, such as {'anomaly': {…}}"),
    ("maintenance", list, "a list of windows, such as [[start, end]]"),
)
_BRIDGED_STEPS = 10  # Intake bridges ten of its minutes


def read_settings(path: Path | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Read the settings of a file; options that are given stand above it.

    Parameters
    ----------
    path : Path or None
        A JSON object: the arguments of ``Intake``, ``channels`` (arguments of ``Channel`` by name), ``rules``
        (arguments of ``Rule`` by kind), ``maintenance``, and those of ``Watch`` and of ``Calibration``.
    given : mapping
        Options; None is none.

    Raises
    ------
    ParameterError
        If the file is no such object.
    """
    found: dict[str, Any] = {}
    if path is not None:
        try:
            found = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
        except (OSError, ValueError) as error:
            raise ParameterError(f"--settings {str(path)!r} cannot be read as JSON: {error}.") from error
        if not isinstance(found, dict):
            raise ParameterError(f"--settings {str(path)!r} holds a {type(found).__name__}, expected an object {{…}}.")
    _check_names("--settings", found, (*INTAKE, *WATCH, *BUDGET, *_OTHER))
    for name, kind, what in _KINDS:
        if name in found and not isinstance(found[name], kind):
            raise ParameterError(f"--settings: {name} is {found[name]!r:.60}, expected {what}.")
    return {**found, **{name: value for name, value in given.items() if value is not None}}


def ranges(pairs: Sequence[str]) -> dict[str, dict[str, float]]:
    """Read ``["flow=0:50", "heat=:90"]``.

    Raises
    ------
    ParameterError
        If a pair is anything else.
    """
    found: dict[str, dict[str, float]] = {}
    for pair in pairs:
        name, equals, span = pair.rpartition("=")
        low, colon, high = span.partition(":")
        try:
            if not equals or not colon:
                raise ValueError
            found[name] = {key: float(text) for key, text in (("low", low), ("high", high)) if text.strip()}
            if not all(map(math.isfinite, found[name].values())):
                raise ValueError
        except ValueError:
            raise ParameterError(
                f"--range {pair!r} must be NAME=LOW:HIGH, such as --range flow=0:50, or flow=0: without a limit above."
            ) from None
    return found


def intake_arguments(
    settings: Mapping[str, Any], columns: Sequence[str], *, step: int | None, has_grid: bool
) -> dict[str, Any]:
    """Give the arguments of a model's ``Intake``.

    Parameters
    ----------
    settings : mapping
    columns : sequence of str
        What the model eats. Columns that no channel of the settings gives are gauges of that name.
    step : int or None
        Time between two of the model's rows: ten of them are bridged, unless the settings say otherwise.
    has_grid : bool
        True if the model wants its rows on a grid of that step: the tick, unless the settings say otherwise.

    Raises
    ------
    ParameterError
        If the channels do not give the model's columns, or a setting cannot work.
    """
    told = settings.get("channels", {})
    usual = {name: settings[name] for name in ("stale_after", "stuck_after") if settings.get(name) is not None}
    own: dict[str, Channel] = {}
    for name, one in told.items():
        _check_names(f"channel {name!r}", one, [field.name for field in fields(Channel) if field.init])
        channel = Channel(**{**usual, **one, "name": name})
        own.update(dict.fromkeys(channel.columns, channel))
    channels = list(dict.fromkeys(own.get(column) or Channel(name=column, **usual) for column in columns))
    given = tuple(column for channel in channels for column in channel.columns)
    if given != tuple(columns) or set(own) - set(columns):
        surplus = sorted(set(own) - set(columns))
        raise ParameterError(
            f"the model eats {list(columns)[:8]}; the channels of the settings give "
            f"{surplus[:5] if surplus else list(given)[:8]}. Name them as the model does."
        )
    how: dict[str, Any] = {name: settings[name] for name in INTAKE if name in settings}
    if step is not None and has_grid and how.get("tick") is None and how.get("timeout") is None:
        how["tick"] = step
    if step is not None:
        how.setdefault("max_gap", _BRIDGED_STEPS * step)
    return {"channels": channels, **how}


def alerts_of(settings: Mapping[str, Any]) -> Alerts:
    """Make the alert layer.

    Raises
    ------
    ParameterError
        If a rule cannot work.
    """
    told = settings.get("rules")
    rules = None
    if told is not None:
        for kind, one in told.items():
            _check_names(f"rule {kind!r}", one, [field.name for field in fields(Rule)])
        rules = {kind: Rule(**one) for kind, one in told.items()}
    return Alerts(rules, maintenance=list(map(_window, settings.get("maintenance", []))))


def _window(given: Any) -> tuple[Any, ...]:
    """Read a window; a time with an offset from UTC is turned to UTC, as those of lines are."""
    is_list = isinstance(given, list) and len(given) in (2, 3)
    sensors = given[2] if is_list and len(given) == 3 else None
    if not is_list or not (sensors is None or (isinstance(sensors, list) and all(isinstance(s, str) for s in sensors))):
        raise ParameterError(
            f"maintenance has {given!r:.80}, expected [start, end] or [start, end, [sensor, …]], such as "
            "['2026-01-31T12:00', '2026-01-31T14:00']."
        )
    return (*(read_stamp(time, zone=True) if _has_offset(time) else time for time in given[:2]), sensors)


def _has_offset(time: Any) -> bool:
    try:
        return datetime.fromisoformat(time).tzinfo is not None
    except (TypeError, ValueError):
        return False


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def _check_names(where: str, given: Any, known: Sequence[str]) -> None:
    if not isinstance(given, dict):
        raise ParameterError(f"{where} is {given!r:.60}, expected an object {{…}}.")
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {list(known)}."
            raise ParameterError(f"{where} has {name!r}: {hint}")
