"""From messages to rows: put in order, assembled, checked, and every one with a status."""

from __future__ import annotations

import difflib
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

import numpy as np

from txl_ts.config import check_choice, check_integer
from txl_ts.errors import ColumnError, ParameterError, StampError, StateError
from txl_ts.instants import read_duration, read_stamp, shown_integer, shown_stamp
from txl_ts.stream.channels import CHANNEL_FORM, Channel, begin_anew, is_reading, open_channel, take
from txl_ts.stream.clock import Clock
from txl_ts.stream.row import Row
from txl_ts.stream.statuses import GAP_BRIDGED, REFUSED, RESET, STALE, STATUSES, heaviest

ORDERS = ("drop", "raise")
_UNUSED = "Nothing of this call was used."
_SCHEMA = 1
_SEEN = {"newest": int, "taken": (int, None), "is_back": bool, "at": [int], "values": [object]}
_JUMP = {"n": int, "newest": int, "tags": [str]}
_CLOCK = {
    "newest": (int, None),
    "tags": {str: _SEEN},
    "ahead": (_JUMP, None),
    "behind": (_JUMP, None),
    "support": {"n": int, "tags": [str]},
}
_GAP = {"read": (int, None), "is_said": bool, "is_reset_due": bool, "n_rows": int, "n_bridged": int, "n_resets": int}
FORM = {
    "schema": int,
    "n_messages": int,
    "n_rows": int,
    "clock": _CLOCK,
    "waiting": [[int, int, str, object]],
    "row": ({"stamp": int, "first": int, "read": {str: [int, object]}}, None),
    "closed": (int, None),
    "gap": _GAP,
    "channels": {str: CHANNEL_FORM},
    "counts": dict.fromkeys(STATUSES, int),
}
"""Of the state, as :func:`txl_ts.forms.check_form` reads it."""


class Intake:
    """Turns the messages of one stream into rows: ``(messages, state) → (rows, state)``.

    A message is ``(tag, time, value)``, or ``{"time": t, "values": {tag: value}}`` for several tags at once, or
    ``(None, time, None)``: no reading, but time has come so far (a heartbeat; it is believed). Messages are taken in
    the order in which they arrive, and no clock of this machine is asked: any split of them into calls gives the same
    rows. The state is plain JSON; the one that was given is left as it was, also when an error is raised.

    Parameters
    ----------
    channels : sequence of Channel or str
        The sensors; a name alone is a gauge.
    tick : duration, optional
        Rows on a grid: each holds the newest reading of every tag since the row before. A row goes out when time has
        passed it, or when all tags were read exactly at it.
    origin : time
        A stamp of the grid; 0 by default.
    timeout : duration, optional
        Rows that wait: from the first reading until all tags are there, one comes again, or the time-out has passed.
        With neither ``tick`` nor ``timeout``, each stamp makes a row (on change).
    late : duration
        Readings wait so long, in the time of the stream, and are put in order.
    max_gap : duration
        Without a reading for up to so long a gap is bridged by missing rows; after it the memory is reset.
    max_jump : duration
        A stamp further ahead of the newest is refused, until ``believe_after`` of them agree.
    back : duration
        A stamp so far behind the newest of its own tag is that of a clock which went back; nearer, it is late.
    believe_after : int
        See ``max_jump``.
    order : {"drop", "raise"}
        What to do with readings whose stamp cannot be used: give them out as rows with their status, or raise.
    zone : bool
        True if times carry their offset from UTC.

    Raises
    ------
    ParameterError
        If an argument cannot work.

    Examples
    --------
    >>> intake = Intake(["flow", "heat"], tick="1min")
    >>> rows, state = intake.step([("flow", "2026-01-01T00:00:20", 3.5), ("heat", "2026-01-01T00:00:50", 71.0)])
    >>> rows, state = intake.step([("flow", "2026-01-01T00:01:20", 3.6)], state)
    >>> rows[0].status, rows[0].values
    ('ok', {'flow': 3.5, 'heat': 71.0})
    """

    def __init__(
        self,
        channels: Sequence[Channel | str],
        *,
        tick: Any = None,
        origin: Any = 0,
        timeout: Any = None,
        late: Any = 0,
        max_gap: Any = "10min",
        max_jump: Any = "1d",
        back: Any = "1min",
        believe_after: int = 3,
        order: str = "drop",
        zone: bool = False,
    ) -> None:
        given = [channels] if isinstance(channels, str | Channel) else list(channels)
        self.channels = {one.name: one for one in (Channel(name=c) if isinstance(c, str) else c for c in given)}
        if not given or len(self.channels) != len(given):
            raise ParameterError(f"channels={[str(c) for c in given][:5]} must be one or more, with distinct names.")
        if tick is not None and timeout is not None:
            raise ParameterError(f"tick={tick!r} and timeout={timeout!r} exclude each other. Give one, or none.")
        check_choice("order", order, ORDERS)
        self.tick = None if tick is None else read_duration("tick", tick, at_least=1)
        self.timeout = None if timeout is None else read_duration("timeout", timeout)
        self.zone, self.order = bool(zone), order
        self.origin = read_stamp(origin, zone=self.zone, what="origin")
        self.late, self.max_gap = read_duration("late", late), read_duration("max_gap", max_gap)
        self.clock = Clock(
            back=read_duration("back", back),
            max_jump=read_duration("max_jump", max_jump, at_least=1),
            believe_after=check_integer("believe_after", believe_after, at_least=1),
        )
        if self.tick is not None and self.max_gap < self.tick:
            raise ParameterError(f"max_gap={max_gap!r} must be at least one tick ({tick!r}): it is the longest bridge.")

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of what the rows' ``values`` hold, in order."""
        return tuple(column for channel in self.channels.values() for column in channel.columns)

    def open(self) -> dict[str, Any]:
        """Give the state of a stream that has seen nothing; plain JSON."""
        return {
            "schema": _SCHEMA,
            "n_messages": 0,
            "n_rows": 0,
            "clock": self.clock.open(),
            "waiting": [],  # [stamp, message number, tag, value], in this order
            "row": None,  # {"stamp": …, "read": {tag: [stamp, value]}}
            "closed": None,  # stamp of the last row that has gone out
            "gap": {"read": None, "is_said": False, "is_reset_due": False, "n_rows": 0, "n_bridged": 0, "n_resets": 0},
            "channels": {name: open_channel() for name in self.channels},
            "counts": dict.fromkeys(STATUSES, 0),
        }

    def step(self, messages: Iterable[Any], state: Mapping[str, Any] | None = None) -> tuple[list[Row], dict[str, Any]]:
        """Take in messages.

        Parameters
        ----------
        messages : iterable
            See the class. None, NaN and infinities say that a sensor was asked and gave nothing.
        state : dict, optional
            What the last call gave; a stream begins without it.

        Returns
        -------
        list of Row
            Rows that are complete, and readings that were refused, in the order in which that was known.
        dict
            The new state.

        Raises
        ------
        StampError
            If a time is none; with ``order="raise"`` also if it cannot be used.
        ColumnError
            If a tag is unknown, or its value of another type.
        StateError
            If the state belongs to other channels. In all cases nothing of the call was used.
        """
        run = _Run(self, self._checked(state))
        for message in messages:
            run.take(message)
        return run.rows, run.state

    def flush(self, state: Mapping[str, Any]) -> tuple[list[Row], dict[str, Any]]:
        """Give out what still waits, as at the end of a file; the stream can go on after it."""
        run = _Run(self, self._checked(state))
        run.flush()
        return run.rows, run.state

    def _checked(self, state: Mapping[str, Any] | None) -> dict[str, Any]:
        if state is None:
            return self.open()
        if state.get("schema") != _SCHEMA or list(state.get("channels", ())) != list(self.channels):
            raise StateError(
                f"the state is of schema {state.get('schema')!r} for the channels {list(state.get('channels', ()))[:5]}"
                f", this intake has schema {_SCHEMA} and {list(self.channels)[:5]}. Begin with `intake.open()`."
            )
        # As deep as it is changed in place: a copy of all would cost more than the rows.
        row = state["row"]
        return {
            **state,
            "clock": self.clock.copy(state["clock"]),
            "waiting": list(state["waiting"]),
            "row": None if row is None else {**row, "read": dict(row["read"])},
            "gap": dict(state["gap"]),
            "channels": {name: dict(one) for name, one in state["channels"].items()},
            "counts": dict(state["counts"]),
        }

    def grid(self, stamp: int) -> int:
        """Give the first stamp of the grid that is not before ``stamp``."""
        tick = self.tick or 1
        return stamp + (self.origin - stamp) % tick


def cloned(value: Any) -> Any:
    """Copy plain JSON; arrays are never changed in place and stay the same."""
    if type(value) is dict:
        return {key: cloned(one) for key, one in value.items()}
    return [cloned(one) for one in value] if type(value) in (list, tuple) else value


class _Run:
    """One call: a state of its own, and the rows that came out so far."""

    def __init__(self, intake: Intake, state: dict[str, Any]) -> None:
        self.intake, self.state, self.rows = intake, state, list[Row]()

    # ------------------------------------------------------------------------------------------------------ messages

    def take(self, message: Any) -> None:
        stamp, read = self._read(message)
        clock, state = self.intake.clock, self.state["clock"]
        self.state["n_messages"] += 1
        if not read:
            if state["newest"] is None or stamp > state["newest"]:
                state["newest"] = stamp
            self._release()
            return
        jump = clock.jump(list(read), stamp, state)
        if jump in REFUSED:
            self._refuse(stamp, read, dict.fromkeys(read, jump))
            return
        if jump is not None:
            self._begin_elsewhere(is_back=jump == "behind")
        floor, refused = self._floor(), {}
        for tag, value in read.items():
            verdict = clock.judge(tag, stamp, value, floor=floor, state=state)
            if verdict is not None:
                refused[tag] = verdict
            else:
                insort(self.state["waiting"], [stamp, self.state["n_messages"], tag, value], key=lambda one: one[:2])
        if refused:
            self._refuse(stamp, read, refused)
        self._release()

    def _read(self, message: Any) -> tuple[int, dict[str, Any]]:
        if isinstance(message, Mapping):
            time, values = message.get("time"), message.get("values")
            if not isinstance(values, Mapping):
                raise ParameterError(f"message {message!r:.120} lacks 'values', a mapping by tag. {_UNUSED}")
        elif isinstance(message, Sequence) and not isinstance(message, str) and len(message) == 3:
            tag, time, value = message
            values = {} if tag is None else {tag: value}
        else:
            raise ParameterError(
                f"message {message!r:.120} is none. Give (tag, time, value), {{'time': …, 'values': {{tag: value}}}}, "
                f"or (None, time, None) for time alone. {_UNUSED}"
            )
        stamp = read_stamp(time, zone=self.intake.zone)
        return stamp, {tag: self._value(tag, value) for tag, value in values.items()}

    def _value(self, tag: Any, value: Any) -> Any:
        channel = self.intake.channels.get(tag)
        if channel is None:
            near = difflib.get_close_matches(str(tag), self.intake.channels, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {list(self.intake.channels)[:5]}."
            raise ColumnError(f"there is no channel {tag!r:.60}: {hint} {_UNUSED}")
        if isinstance(value, np.generic):
            value = value.item()
        is_text = isinstance(value, str) and channel.kind == "state"
        is_truth = isinstance(value, bool) and channel.kind == "counter"  # no count; a gauge takes it for 0 or 1
        if is_truth or not (value is None or is_text or isinstance(value, int | float)):
            raise ColumnError(
                f"channel {tag!r}: value {value!r:.60} is of type {type(value).__name__}, expected "
                f"{'text or ' if channel.kind == 'state' else ''}a number, or None where it is missing. {_UNUSED}"
            )
        if isinstance(value, int) and abs(value) >= 2**64:
            raise ColumnError(
                f"channel {tag!r}: value {shown_integer(value)} lies beyond 64 bits. Give a float. {_UNUSED}"
            )
        return value if is_reading(value, channel) else None

    def _refuse(self, stamp: int, read: Mapping[str, Any], refused: Mapping[str, Any]) -> None:
        if self.intake.order == "raise":
            tag, status = next(iter(refused.items()))
            newest = self.state["clock"]["newest"]
            raise StampError(
                f"channel {tag!r}: time {shown_stamp(stamp)} is {status} (the newest is {shown_stamp(newest)}; "
                f"{len(refused)} of {len(read)} readings of this message). Drop it, wait for late readings with "
                f"`late=…`, or take order='drop', which counts them. {_UNUSED}"
            )
        for status in dict.fromkeys(refused.values()):
            tags = [tag for tag, one in refused.items() if one == status]
            raw, channels = {tag: read[tag] for tag in tags}, dict.fromkeys(tags, status)
            self._out(stamp=stamp, status=status, is_used=False, raw=raw, channels=channels)

    def _begin_elsewhere(self, *, is_back: bool) -> None:
        """Give out what is there: time goes on elsewhere."""
        self.flush()
        if is_back:
            self.state["closed"] = None
            self.state["gap"].update(read=None, is_reset_due=True)
            for channel in self.state["channels"].values():
                channel.update(heard=None, at=None)

    # ---------------------------------------------------------------------------------------------------- assembling

    def _floor(self) -> int | None:
        """Give the earliest stamp that can still go into a row."""
        row, closed = self.state["row"], self.state["closed"]
        if self.intake.tick is None and self.intake.timeout is None and row is not None:
            return int(row["stamp"])
        return None if closed is None else closed + 1

    def _release(self) -> None:
        """Move on to the watermark."""
        newest = self.state["clock"]["newest"]
        if newest is None:
            return
        watermark, waiting = newest - self.intake.late, self.state["waiting"]
        n = sum(1 for _ in takewhile(lambda one: one[0] <= watermark, waiting))
        self._add_all(waiting[:n])
        del waiting[:n]
        self._pass(watermark)

    def _add_all(self, waiting: Iterable[list[Any]]) -> None:
        messages = [(key[0], list(one)) for key, one in groupby(waiting, key=lambda one: one[:2])]
        for i, (stamp, message) in enumerate(messages):
            read = {tag: value for _, _, tag, value in message}
            at = self.intake.grid(stamp) if self.intake.tick is not None else stamp
            if self.state["row"] is not None and self._must_close(self.state["row"], read, at):
                self._close()
            for tag, value in read.items():
                self._add(tag, stamp, value, at=at)
            row = self.state["row"]
            # What comes at its stamp goes into a full row too: two rows cannot have one stamp.
            if self._is_full(row) and (i + 1 == len(messages) or messages[i + 1][0] > row["stamp"]):
                self._close()

    def _is_full(self, row: Mapping[str, Any]) -> bool:
        if len(row["read"]) < len(self.intake.channels):
            return False
        return self.intake.tick is None or all(one == row["stamp"] for one, _ in row["read"].values())

    def _add(self, tag: str, stamp: int, value: Any, *, at: int) -> None:
        row = self.state["row"]
        if self.intake.tick is not None:
            if self.state["closed"] is None:
                self.state["closed"] = at - self.intake.tick  # no row before the first
            self._fill(before=at)
        if row is None:
            row = self.state["row"] = {"stamp": at, "first": stamp, "read": {}}
        row["stamp"] = max(row["stamp"], at)
        row["first"] = min(row["first"], stamp)
        row["read"][tag] = [stamp, value]
        self.intake.clock.took(tag, stamp, self.state["clock"])

    def _must_close(self, row: Mapping[str, Any], tags: Iterable[str], at: int) -> bool:
        if self.intake.timeout is not None:
            # At the row's own stamp a reading takes the place of an older one: two rows cannot have one stamp.
            is_again = at > row["stamp"] and not row["read"].keys().isdisjoint(tags)
            return is_again or bool(at > row["first"] + self.intake.timeout)
        return bool(at > row["stamp"])

    def _pass(self, watermark: int) -> None:
        """Close what time has passed."""
        row = self.state["row"]
        if row is not None:
            timeout = self.intake.timeout
            if (row["stamp"] if timeout is None else row["first"] + timeout) < watermark:
                self._close()
        if self.intake.tick is not None:
            self._fill(before=self.intake.grid(watermark))
        elif self.state["row"] is None:
            self._say_gap(watermark)

    def flush(self) -> None:
        self._add_all(self.state["waiting"])
        self.state["waiting"] = []
        if self.state["row"] is not None:
            self._close()

    # ---------------------------------------------------------------------------------------------------------- gaps

    def _fill(self, *, before: int) -> None:
        """Give out the rows of the grid in which nothing was read, as far as a gap is bridged."""
        closed, tick = self.state["closed"], self.intake.tick or 1
        row = self.state["row"]
        if row is not None and row["stamp"] < before:
            return  # closed first, by whoever saw that its time is over
        while closed is not None and closed + tick < before:
            closed += tick
            gap = self.state["gap"]
            if gap["read"] is not None and closed - gap["read"] > self.intake.max_gap:
                self._say_gap(closed)
                self.state["closed"] = before - tick
                return
            self._give(closed, {})

    def _say_gap(self, now: int) -> None:
        """Say once that a gap has become too long to be bridged."""
        gap = self.state["gap"]
        if gap["read"] is None or gap["is_said"] or now - gap["read"] <= self.intake.max_gap:
            return
        gap["is_said"] = True
        at = now if self.intake.tick is not None else gap["read"] + self.intake.max_gap + 1
        channels = dict.fromkeys(self.intake.channels, STALE)
        self._out(stamp=at, status=STALE, is_used=False, ages=self._ages(at), channels=channels)
        self.state["closed"] = at

    def _close(self) -> None:
        row, self.state["row"] = self.state["row"], None
        if self.intake.tick is None:
            self._say_gap(row["first"])
        self._give(row["stamp"], row["read"])

    # ---------------------------------------------------------------------------------------------------------- rows

    def _give(self, stamp: int, read: Mapping[str, Any]) -> None:
        """Give out a row of the stream."""
        gap = self.state["gap"]
        is_read = any(value is not None for _, value in read.values())
        silence = 0 if gap["read"] is None else stamp - gap["read"]
        is_lost = silence > self.intake.max_gap
        is_reset = (is_read and is_lost) or gap["is_reset_due"]
        gap["is_reset_due"] = False
        is_bridged = is_read and not is_reset and self.intake.tick is not None and silence > self.intake.tick
        statuses = [RESET] if is_reset else [GAP_BRIDGED] if is_bridged else []
        if is_reset:
            for channel in self.state["channels"].values():
                begin_anew(channel)
        values, channels = self._convert(stamp, read)
        if is_read:
            gap.update(read=stamp, is_said=False, n_rows=0)
            gap["n_bridged"] += is_bridged
        else:
            gap["n_rows"] += 1
        gap["n_resets"] += is_reset
        is_used = is_read or not is_lost
        self.state["closed"] = stamp
        self._out(
            stamp=stamp,
            status=heaviest([*statuses, *channels.values()]) if is_used else STALE,
            is_used=is_used,
            is_reset=is_reset,
            values=values if is_used else {},
            ages=self._ages(stamp),
            raw={tag: read[tag][1] for tag in self.intake.channels if tag in read},
            channels=channels,
        )

    def _convert(self, stamp: int, read: Mapping[str, Any]) -> tuple[dict[str, float | None], dict[str, str]]:
        values: dict[str, float | None] = {}
        channels: dict[str, str] = {}
        for name, channel in self.intake.channels.items():
            at, value = read.get(name, (stamp, None))
            is_due = self.intake.tick is not None or name in read
            columns, channels[name] = take(
                channel,
                value,
                at=at,
                now=stamp,
                state=self.state["channels"][name],
                default_stale=self.intake.max_gap,
                is_due=is_due,
            )
            values.update(zip(channel.columns, columns, strict=True))
        return values, channels

    def _ages(self, now: int) -> dict[str, int | None]:
        channels = self.state["channels"]
        return {name: None if one["at"] is None else now - one["at"] for name, one in channels.items()}

    def _out(self, *, status: str, **fields: Any) -> None:
        self.rows.append(Row(seq=self.state["n_rows"], status=status, **fields))
        self.state["n_rows"] += 1
        self.state["counts"][status] += 1
