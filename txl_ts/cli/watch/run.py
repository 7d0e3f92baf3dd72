"""The loop of ``txl-ts watch``: read a line, take it in, say what came of it, and now and then write all that is known.

A snapshot holds, as of one moment: the streams and their memories, where the next line begins, how long the outputs
are. Everything that is said follows from the lines, and from nothing else; so after a kill the same lines from the
position of the snapshot give the same output, and what had been written already is recognised.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from txl_ts.cli.watch.lines import HeaderError, Lines, Message
from txl_ts.cli.watch.sink import Sink
from txl_ts.cli.watch.source import FileSource, PipeSource
from txl_ts.errors import ColumnError, FileFormatError, ParameterError, SaveError, StampError, StateError
from txl_ts.forms import check_form
from txl_ts.store.atomic import turn
from txl_ts.stream import Watch, Watched, read_source, restore, snapshot

_SHOWN = 20  # bad lines that are shown; the others are counted
_POLL_S = 0.2
_PATIENCE_S = 2.0  # for the process before us to let go of the folder
_FORM = {
    "source": ({"kind": str, "offset": int, "lines": int, "seam": str}, None),
    "lines": {"format": str, "delimiter": str, "columns": ([str], None), "zone": (bool, None), "is_integer": bool},
    "sinks": {str: {"size": int, "seam": str, "waiting": str}},
    "settings": ...,
}


@dataclass(kw_only=True)
class Manner:
    """How much is said, and how often it is written down.

    Attributes
    ----------
    details : bool
        Values, parts, bands and the status of every sensor.
    alerts_only : bool
        No rows; each alert is a line.
    every : int
        Lines between two snapshots.
    batch : int
        Lines that are taken together at most.
    is_strict : bool
        Stop at a line that cannot be used.
    """

    details: bool = False
    alerts_only: bool = False
    every: int = 1000
    batch: int = 1
    is_strict: bool = False


@dataclass
class Counts:
    """What was done since the start of this process."""

    lines: int = 0
    bad: int = 0
    overlap: int = 0
    rows: int = 0
    snapshots: int = 0
    status: Counter[str] = field(default_factory=Counter)
    alerts: Counter[str] = field(default_factory=Counter)
    began: float = field(default_factory=time.perf_counter)
    cpu_began: float = field(default_factory=time.process_time)

    def to_json(self, *, n_streams: int, n_there: int) -> dict[str, Any]:
        """Give plain numbers."""
        seconds = time.perf_counter() - self.began
        return {
            "lines": self.lines,
            "bad_lines": self.bad,
            "overlap": self.overlap,
            "rows": self.rows,
            "status": dict(sorted(self.status.items())),
            "alerts": dict(sorted(self.alerts.items())),
            "already_written": n_there,
            "streams": n_streams,
            "snapshots": self.snapshots,
            "seconds": round(seconds, 3),
            "cpu_seconds": round(time.process_time() - self.cpu_began, 3),
            "rows_per_second": round(self.rows / seconds, 1) if seconds else 0.0,
        }


class Overlap:
    """Readings that a pipe gives again after a restart: not later than the newest of their sensor in the snapshot.

    From the first later one on, a sensor's readings are judged by the intake again.
    """

    def __init__(self, watch: Watch) -> None:
        state = watch.to_state()
        self._newest: dict[tuple[str, str], int] = {
            (str(name), tag): seen["newest"]
            for name, one in zip(state["names"], state["streams"], strict=True)
            for tag, seen in one["now"]["intake"]["clock"]["tags"].items()
        }

    def left(self, name: str, message: Message) -> Message | None:
        """Give what of a message is new; None if nothing is."""
        if not self._newest or isinstance(message, tuple):
            return message
        values = {}
        for tag, value in message["values"].items():
            newest = self._newest.get((name, tag))
            if newest is None or message["time"] > newest:
                self._newest.pop((name, tag), None)
                values[tag] = value
        return {**message, "values": values} if values else None


class Run:
    """One run of the command.

    Parameters
    ----------
    watch : Watch
    lines : Lines
    source : FileSource or PipeSource
    out, alerts : Sink
        For rows (or alerts, with ``manner.alerts_only``), and for alerts alone.
    folder : Path or None
        Of snapshots.
    settings : mapping
        What the streams' state depends on; a snapshot made with others is refused.
    manner : Manner
    say : callable
        Takes messages for people.
    """

    def __init__(
        self,
        watch: Watch,
        lines: Lines,
        source: FileSource | PipeSource,
        *,
        out: Sink,
        alerts: Sink | None = None,
        folder: Path | None = None,
        settings: Mapping[str, Any] | None = None,
        manner: Manner | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.watch, self.lines, self.source = watch, lines, source
        self.sinks = {"out": out, **({} if alerts is None else {"alerts": alerts})}
        self.folder, self.settings = folder, dict(settings or {})
        self.manner, self.say, self.counts = manner or Manner(), say, Counts()
        self._alert_sinks = [out] if self.manner.alerts_only else []
        self._alert_sinks += [] if alerts is None else [alerts]
        self._overlap: Overlap | None = None
        self._batch: list[tuple[int, str, Message]] = []
        self._n_unsaved = 0
        self.wants_stop = False

    # --------------------------------------------------------------------------------------------------------- start

    def begin(self) -> None:
        """Go on from the snapshot in the folder, or make the first one.

        Raises
        ------
        StateError
            If it belongs to another model, or to other settings.
        FileFormatError
            If it is damaged.
        """
        if self.folder is None:
            return
        try:
            state = read_source(self.folder)
        except FileNotFoundError:
            self.save()  # what is in the outputs now is not ours
            return
        self._check(state)
        restore(self.watch, self.folder)
        self.lines.go_on(state["lines"])
        for name, sink in self.sinks.items():
            if name in state["sinks"] and (note := sink.go_on(state["sinks"][name])):
                self.say(note)
        is_found = isinstance(self.source, FileSource) and self.source.go_on(state["source"])
        if not is_found:
            self._overlap = Overlap(self.watch)
            self.say(
                "the source cannot be read on from the snapshot: readings that are not later than those in it are "
                "taken for the same ones"
            )

    def _check(self, state: Any) -> None:
        where = f"the snapshot in {str(self.folder)!r}"
        try:
            form = dict(_FORM)
            if isinstance(state, dict) and isinstance(state.get("source"), dict) and state["source"]["kind"] == "pipe":
                form["source"] = {"kind": str, "lines": int}
            check_form(state, form, where="its source")
        except (ValueError, KeyError) as error:
            raise FileFormatError(f"{where} is none of txl-ts watch: {error}. Name another folder.") from error
        other = {
            name
            for name in self.settings.keys() | state["settings"].keys()
            if self.settings.get(name) != state["settings"].get(name)
        }
        if other:
            name = min(other)
            raise StateError(
                f"{where} was made with {name}={state['settings'].get(name)!r:.80}, now it is "
                f"{self.settings.get(name)!r:.80} (settings that differ: {len(other)}). Give the same, or begin anew "
                "with another --state."
            )

    # ---------------------------------------------------------------------------------------------------------- loop

    def go(self) -> None:
        """Read until the source ends, or a signal asks to stop.

        Raises
        ------
        ColumnError, StampError, ParameterError
            With ``is_strict``, for a line that cannot be used; always for a header.
        BrokenPipeError
            If nobody reads the output any more.
        """
        for raw in self.source:
            if self.wants_stop and (raw is None or self.source.is_replayable):
                break  # what was read from a pipe does not come again: it is used first
            if raw is None:
                self._take()
                self._flush()
            else:
                self._read(raw)
            if self._n_unsaved >= self.manner.every and self.folder is not None:
                self.save()
            elif len(self._batch) >= self.manner.batch:
                self._take()

    def _read(self, raw: bytes) -> None:
        self.counts.lines += 1
        self._n_unsaved += 1
        try:
            found = self.lines.read(raw)
        except HeaderError:
            raise
        except (ColumnError, StampError, ParameterError) as error:
            self._bad(self.source.n_lines, error)
            return
        if found is None:
            return
        name, message = found
        if self._overlap is not None:
            left = self._overlap.left(name, message)
            if left is None:
                self.counts.overlap += 1
                return
            message = left
        self._batch.append((self.source.n_lines, name, message))

    def _take(self) -> None:
        """Take in the lines that were read."""
        batch, self._batch = self._batch, []
        if not batch:
            return
        messages: dict[str | int, list[Message]] = {}
        for _, name, message in batch:
            messages.setdefault(name, []).append(message)
        try:
            found = self.watch.step(messages)
        except (ColumnError, StampError, ParameterError) as error:
            self._check_model(error)
            if len(batch) == 1:
                self._bad(batch[0][0], error)
                return
            for one in batch:  # nothing of them was used
                self._batch = [one]
                self._take()
            return
        self._tell(found)

    def _check_model(self, error: Exception) -> None:
        """Raise StateError if it was the model that failed: then the last snapshot is the last word."""
        try:
            self.watch.step({})
        except StateError:
            raise StateError(
                f"the model cannot take these rows: {error} They had been taken in. Give rows that fit the model, and "
                "go on from the last snapshot, or begin anew."
            ) from error

    def _bad(self, line: int, error: Exception) -> None:
        self.counts.bad += 1
        if self.manner.is_strict:
            raise type(error)(f"line {line}: {error}") from error
        if self.counts.bad <= _SHOWN:
            self.say(f"line {line}: {type(error).__name__}: {error} The line is skipped.")
        if self.counts.bad == _SHOWN:
            self.say("further lines that cannot be used are counted, not shown")

    # -------------------------------------------------------------------------------------------------------- output

    def _tell(self, found: Mapping[str | int, Sequence[Watched]]) -> None:
        for name, rows in found.items():
            for one in rows:
                self.counts.rows += 1
                self.counts.status[one.status] += 1
                head = {"stream": name, "seq": one.row.seq, "time": self._shown(one.row.stamp)}
                alerts = [self._alert(alert.to_json()) for alert in one.alerts]
                self.counts.alerts.update(alert["kind"] for alert in alerts if alert["event"] == "raised")
                if not self.manner.alerts_only:
                    self.sinks["out"].write({**head, **self._row(one), "alerts": alerts})
                for alert in alerts:
                    for sink in self._alert_sinks:
                        sink.write({**head, **alert})
        if any(sink.is_full for sink in self.sinks.values()):
            self._flush()

    def _row(self, one: Watched) -> dict[str, Any]:
        said: dict[str, Any] = {"status": one.status, "score": _number(one.score), "p_value": _number(one.p_value)}
        if self.manner.details:
            said["values"] = one.row.values if one.row.is_used else one.row.raw
            said["parts"], said["band"] = _numbers(one.parts), {k: list(v) for k, v in one.band.items()}
            said["sensors"] = one.row.channels
        return said

    def _alert(self, alert: dict[str, Any]) -> dict[str, Any]:
        return {**alert, "since": self._shown(alert["since"]), "at": self._shown(alert["at"])}

    def _shown(self, stamp: int) -> str | int:
        if self.lines.has_integers:
            return stamp
        text = str(np.datetime64(stamp, "ns")).rstrip("0").rstrip(".") if stamp % 10**9 else _seconds(stamp)
        return text + ("+00:00" if self.lines.has_zone else "")

    def _flush(self) -> None:
        broken: BrokenPipeError | None = None
        for sink in self.sinks.values():  # one whose reader is gone must not stop the other
            try:
                sink.flush()
            except BrokenPipeError as error:
                broken = error
        if broken is not None:
            raise broken

    # ----------------------------------------------------------------------------------------------------------- end

    def save(self) -> None:
        """Write all that is known; a kill at any moment leaves this snapshot or the one before.

        Raises
        ------
        SaveError
            If it cannot be written; the one before is intact.
        """
        if self.folder is None:
            return
        with suppress(BrokenPipeError):  # what a reader did not take is in the snapshot
            self._take()
            self._flush()
        state = {
            "source": self.source.position(),
            "lines": self.lines.state,
            "sinks": {name: sink.position() for name, sink in self.sinks.items()},
            "settings": self.settings,
        }
        snapshot(self.watch, self.folder, source=state)
        self.counts.snapshots += 1
        self._n_unsaved = 0

    def finish(self, *, is_at_end: bool) -> None:
        """Use what was read; at the end of the source, give out the rows that wait, unless a next run will go on."""
        self._take()
        if is_at_end and self.folder is None:
            self._tell(self.watch.flush())
        self._flush()

    def metrics(self) -> dict[str, Any]:
        """Count what was done since the start."""
        n_there = sum(sink.n_there for sink in self.sinks.values())
        return self.counts.to_json(n_streams=len(self.watch.streams), n_there=n_there)


def run(run: Run, *, with_metrics: bool) -> int:
    """Run to the end; gives the exit code.

    A signal to end (Ctrl-C, SIGTERM) and a reader that is gone end the run after the line that is under way, with a
    snapshot. SIGUSR1 prints the counters.
    """
    code = 0
    try:
        with _turn(run.folder), _signals(run) as stopped:
            run.begin()
            try:
                run.go()
                run.finish(is_at_end=not stopped)
                run.save()
            except BrokenPipeError:
                run.save()
            except (StampError, ColumnError, ParameterError):
                run._flush()  # and no snapshot: a run that goes on meets this line again
                raise
            code = 130 if signal.SIGINT in stopped else 0
    finally:
        if with_metrics:
            run.say(json.dumps(run.metrics()))
        for sink in run.sinks.values():
            sink.close()
    return code


@contextmanager
def _turn(folder: Path | None) -> Iterator[None]:
    """Hold the folder, so that no second process writes to it."""
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        turn_of = turn(os.fspath(folder), timeout_s=_PATIENCE_S)
        turn_of.__enter__()
    except OSError as error:
        raise SaveError(
            f"--state {str(folder)!r} cannot be used: {error} A folder serves one txl-ts watch at a time."
        ) from error
    try:
        yield
    finally:
        turn_of.__exit__(None, None, None)


@contextmanager
def _signals(run: Run) -> Iterator[list[int]]:
    """Note signals, and wake a run that waits."""
    stopped: list[int] = []

    def stop(number: int, frame: Any) -> None:
        stopped.append(number)
        run.wants_stop = True

    def tell(number: int, frame: Any) -> None:
        os.write(2, (json.dumps(run.metrics()) + "\n").encode())

    before = {one: signal.signal(one, stop) for one in (signal.SIGINT, signal.SIGTERM)}
    if hasattr(signal, "SIGUSR1"):
        before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, tell)
    try:
        with _waking(run):
            yield stopped
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def _waking(run: Run) -> Iterator[None]:
    """Let each signal end the wait for a pipe: a handler alone misses one that comes just before the wait."""
    source = run.source
    # A file's waits are short; on Windows, select takes sockets only.
    if isinstance(source, FileSource) or os.name == "nt":
        yield
        return
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    source.wake = read
    try:
        yield
    finally:
        source.wake = None
        signal.set_wakeup_fd(before)
        os.close(read)
        os.close(write)


def wait() -> None:
    """Let a followed file grow."""
    time.sleep(_POLL_S)


def say(text: str) -> None:
    """Tell people, not programs."""
    print(f"txl-ts watch: {text}", file=sys.stderr, flush=True)


def _seconds(stamp: int) -> str:
    return str(np.datetime64(stamp // 10**9, "s"))


def _number(value: float) -> float | None:
    return value if value == value else None


def _numbers(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _number(value) for name, value in values.items()}
