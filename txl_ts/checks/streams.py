"""What every session of named streams must hold: each stream is as if it were alone, and no call is used by half."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from txl_ts.checks.verdict import BAD_VALUES, CheckFailed, require, require_close, require_equal
from txl_ts.errors import TxlError

# The first row of every stream, in steps: late rows need room before it.
_FIRST = 10
_N_ROWS = 48
_NAMES = ("pump", 7, "valve", "7")  # a number is not its text


class Promises(Protocol):
    """What a session of streams tells of its rows: the names of channels, and the step of their times."""

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels."""

    @property
    def step(self) -> int | None:
        """Step between rows, in the unit of integer times; None if it has no fixed length."""

    @property
    def longest(self) -> int:
        """Rows that one run takes: a longer call is split."""

    @property
    def reach(self) -> int:
        """Missing rows that are walked before a stream begins anew."""


class NamedColumn(Protocol):
    """A column beside the channels; ``categories`` is None where it holds amounts."""

    @property
    def name(self) -> str:
        """Under which rows bring it."""

    @property
    def categories(self) -> tuple[Any, ...] | None:
        """Its categories."""


class Beside(Protocol):
    """What rows bring beside the channels, where promises have a ``row_layout``."""

    @property
    def columns(self) -> Sequence[NamedColumn]:
        """Columns of each row, those known ahead among them."""

    @property
    def futr(self) -> Sequence[NamedColumn]:
        """Columns known ahead."""

    @property
    def static(self) -> Sequence[NamedColumn]:
        """Columns of a stream as a whole."""


class StreamingSession(Protocol):
    """Named streams that each carry their own memory; see :class:`txl_ts.runtime.StreamSession`."""

    @property
    def contract(self) -> Promises:
        """What the model promises."""

    @property
    def streams(self) -> tuple[Any, ...]:
        """Names of the streams, in the order in which they began."""

    def step(self, rows: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Take in rows of any of the streams; give each an object with ``forecasts`` (T, …)."""

    def reset(self, name: Any) -> None:
        """Make a stream forget all, its times too."""

    def close(self, name: Any) -> None:
        """End a stream."""

    def copy(self, name: Any, new: Any) -> None:
        """Fork a stream."""

    def snapshot(self, path: str | PathLike[str]) -> None:
        """Write all streams into one file."""

    def restore(self, path: str | PathLike[str]) -> None:
        """Put the streams of a file in place of all that are here."""


class StreamBench:
    """Sessions on the bench: rows to feed them with, and how close is close enough.

    Parameters
    ----------
    factory : callable
        Gives a session without streams.
    tolerance : float
    """

    def __init__(self, factory: Callable[[], StreamingSession], tolerance: float) -> None:
        self.open, self.tolerance = factory, tolerance

    @cached_property
    def promises(self) -> Promises:
        """What the sessions promise."""
        return self.open().contract

    @cached_property
    def beside(self) -> Beside | None:
        """What the rows bring beside the channels."""
        layout: Beside | None = getattr(self.promises, "row_layout", None)
        return layout

    @property
    def _columns(self) -> Sequence[NamedColumn]:
        return () if self.beside is None else self.beside.columns

    def values(self, n_rows: int = _N_ROWS, *, seed: int = 0) -> dict[Any, NDArray[Any]]:
        """Draw rows (n_rows, C + columns) for each of the names, a level apart, some of them missing."""
        rng, drawn = np.random.default_rng(seed), {}
        for i, name in enumerate(_NAMES):
            x = rng.normal(size=(n_rows, len(self.promises.channels) + len(self._columns))) + 3 * i
            x[rng.random(x.shape) < 0.15] = np.nan
            x[0] = 3 * i  # every stream's level is known from its first row on
            drawn[name] = x
        return drawn

    def rows(self, values: NDArray[Any], first: int = 0) -> dict[str, Any]:
        """Write rows (T, C + columns) as a caller does; the first of them is the stream's first-th."""
        n_channels = len(self.promises.channels)
        given: dict[str, Any] = {"values": dict(zip(self.promises.channels, values.T[:n_channels].copy(), strict=True))}
        beside = dict(zip((column.name for column in self._columns), values.T[n_channels:], strict=True))
        given["values"] |= {column.name: _written(column, beside[column.name]) for column in self._columns}
        if self.beside is not None and self.beside.futr:
            # One step more is known ahead of each row, as far as its own value goes.
            given["futr"] = {
                column.name: [_written(column, one + np.arange(1, 3)) for one in beside[column.name]]
                for column in self.beside.futr
            }
        if self.beside is not None and self.beside.static:
            given["static"] = {column.name: _written(column, np.ones(1))[0] for column in self.beside.static}
        if self.promises.step is not None:
            given["time"] = [self.stamp(first + i) for i in range(len(values))]
        return given

    def stamp(self, row: int) -> int:
        """Give the time of a row."""
        return (_FIRST + row) * (self.promises.step or 1)

    def part(self, values: Mapping[Any, NDArray[Any]], rows: slice, names: Sequence[Any] = _NAMES) -> dict[Any, Any]:
        """Write some rows of some streams as one call."""
        return {name: self.rows(values[name][rows], rows.start or 0) for name in names}

    def require_close(self, found: NDArray[Any], expected: NDArray[Any], sentence: str) -> None:
        """Fail unless two arrays agree up to rounding."""
        require_close(found, expected, sentence, tolerance=self.tolerance)

    def alone(self, values: Mapping[Any, NDArray[Any]]) -> dict[Any, NDArray[Any]]:
        """Give every stream's forecasts (T, …) as a session of its own gives them in one call."""
        return {name: self.open().step({name: self.rows(x)})[name].forecasts for name, x in values.items()}


def _written(column: NamedColumn, values: NDArray[Any]) -> Any:
    """Write drawn numbers as the amounts or categories of a column."""
    if column.categories is None:
        return values.copy()
    words = column.categories
    return [words[int(abs(one)) % len(words)] if words and np.isfinite(one) else None for one in values.tolist()]


def _a_step_answers_every_row_of_the_streams_that_were_given(bench: StreamBench) -> None:
    session, values = bench.open(), bench.values()
    require(session.streams == (), f"a new session has the streams {session.streams}.")
    out = session.step(bench.part(values, slice(0, 5), _NAMES[2:0:-1]))
    require(list(out) == list(_NAMES[2:0:-1]), f"{_NAMES[2:0:-1]} were given, answers came for {list(out)}.")
    lengths = {name: len(result.forecasts) for name, result in out.items()}
    require(set(lengths.values()) == {5}, f"5 rows were given, forecasts came for {lengths}.")
    session.step(bench.part(values, slice(0, 1), _NAMES[:1]))
    require(session.streams == (*_NAMES[2:0:-1], _NAMES[0]), f"streams must stand as they began: {session.streams}.")
    require(not session.step({}), "a call without rows must give no results.")


def _any_subset_may_step(bench: StreamBench) -> None:
    session, values = bench.open(), bench.values()
    alone, rng, at = bench.alone(values), np.random.default_rng(1), dict.fromkeys(_NAMES, 0)
    while any(row < _N_ROWS for row in at.values()):
        chosen = [name for name in _NAMES if at[name] < _N_ROWS and rng.random() < 0.6]
        n_rows = {name: min(int(rng.integers(1, 6)), _N_ROWS - at[name]) for name in chosen}
        out = session.step({n: bench.rows(values[n][at[n] : at[n] + n_rows[n]], at[n]) for n in chosen})
        for name in chosen:
            expected = alone[name][at[name] : at[name] + n_rows[name]]
            sentence = f"Stream {name!r} among others must equal that stream alone."
            bench.require_close(out[name].forecasts, expected, sentence)
            at[name] += n_rows[name]


def _a_new_name_begins_by_itself(bench: StreamBench) -> None:
    session, values = bench.open(), bench.values()
    session.step(bench.part(values, slice(0, 20), _NAMES[:2]))
    out = session.step({**bench.part(values, slice(20, 30), _NAMES[:2]), "new": bench.rows(values["valve"])})
    found = out["new"].forecasts
    fresh = bench.open().step({"new": bench.rows(values["valve"])})["new"].forecasts
    bench.require_close(found, fresh, "A stream that begins later must equal a stream of a new session.")


def _the_order_of_streams_does_not_matter(bench: StreamBench) -> None:
    values, (left, right) = bench.values(), (bench.open(), bench.open())
    for rows in (slice(0, 9), slice(9, 10), slice(10, _N_ROWS)):
        here = left.step(bench.part(values, rows))
        there = right.step(bench.part(values, rows, _NAMES[::-1]))
        for name in _NAMES:
            sentence = f"Stream {name!r} must not depend on the order of streams in a call."
            bench.require_close(there[name].forecasts, here[name].forecasts, sentence)


def _the_split_of_rows_does_not_matter(bench: StreamBench) -> None:
    values = bench.values()
    alone = bench.alone(values)
    for chunks in ([1] * _N_ROWS, [2, 7, 30, 9], [_N_ROWS - 1, 1]):
        session, row = bench.open(), 0
        for n_rows in chunks:
            out = session.step(bench.part(values, slice(row, row + n_rows)))
            for name in _NAMES:
                sentence = f"Rows in chunks {chunks[:3]} must give what {_N_ROWS} rows at once give."
                expected = alone[name][row : row + n_rows]
                bench.require_close(out[name].forecasts, expected, sentence)
            row += n_rows


def _catching_up_equals_row_by_row(bench: StreamBench) -> None:
    n_rows = bench.promises.longest + 80  # more than one run takes
    x = bench.values(n_rows)["valve"]
    caught_up, slow = bench.open(), bench.open()
    whole = caught_up.step({"valve": bench.rows(x)})["valve"].forecasts
    require(len(whole) == n_rows, f"{n_rows} rows were given, {len(whole)} forecasts came.")
    slow.step({"valve": bench.rows(x[:-60])})
    for row in range(n_rows - 60, n_rows):
        found = slow.step({"valve": bench.rows(x[row : row + 1], row)})["valve"].forecasts
        sentence = f"Row {row} of a catch-up must have the forecast that it has when it comes alone."
        bench.require_close(whole[row : row + 1], found, sentence)


def _rows_that_did_not_come_are_missing_rows(bench: StreamBench) -> None:
    if bench.promises.step is None:
        return  # no fixed step: nobody can tell how many did not come
    values, n_lacking = bench.values()["pump"], min(3, bench.promises.reach)
    told, silent = bench.open(), bench.open()
    values[20 : 20 + n_lacking] = np.nan
    told.step({"pump": bench.rows(values[:20])})
    silent.step({"pump": bench.rows(values[:20])})
    expected = told.step({"pump": bench.rows(values[20:], 20)})["pump"].forecasts[n_lacking:]
    found = silent.step({"pump": bench.rows(values[20 + n_lacking :], 20 + n_lacking)})["pump"].forecasts
    bench.require_close(found, expected, "Rows left out must count as missing ones.")


def _a_gap_beyond_the_reach_begins_the_stream_anew(bench: StreamBench) -> None:
    if bench.promises.step is None:
        return
    values, later = bench.values()["pump"], 20 + bench.promises.reach + 1
    session = bench.open()
    session.step({"pump": bench.rows(values[:20])})
    found = session.step({"pump": bench.rows(values, later)})["pump"].forecasts
    fresh = bench.open().step({"pump": bench.rows(values, later)})["pump"].forecasts
    require_equal(found, fresh, "After a gap longer than the reach, a stream must equal a new one.")


def _a_reset_stream_is_a_fresh_stream(bench: StreamBench) -> None:
    values, (session, straight) = bench.values(), (bench.open(), bench.open())
    for one in (session, straight):
        one.step(bench.part(values, slice(0, 20)))
    session.reset("pump")
    require(session.streams == _NAMES, f"a reset stream must stay: {session.streams}.")
    # From its first row again: the times are forgotten, too.
    found = session.step({"pump": bench.rows(values["pump"])})["pump"].forecasts
    fresh = bench.open().step({"pump": bench.rows(values["pump"])})["pump"].forecasts
    require_equal(found, fresh, "A stream that was reset must equal a new one.")
    rest = bench.part(values, slice(20, 30), _NAMES[1:])
    _require_same_future(session, straight, [rest], "A reset must leave the other streams bit for bit.")


def _a_closed_stream_is_gone_and_leaves_no_trace(bench: StreamBench) -> None:
    values, session = bench.values(), bench.open()
    session.step(bench.part(values, slice(0, 20)))
    for name in ("pump", "7"):
        session.close(name)
    require(session.streams == (7, "valve"), f"'pump' and '7' were closed, {session.streams} are there.")
    out = session.step(bench.part(values, slice(0, 30), ("pump", "7")))
    fresh = bench.open().step(bench.part(values, slice(0, 30), ("pump", "7")))
    for name, result in out.items():
        require_equal(result.forecasts, fresh[name].forecasts, f"A new stream {name!r} must not know the closed one.")


def _a_copy_is_a_fork(bench: StreamBench) -> None:
    values, (session, straight) = bench.values(), (bench.open(), bench.open())
    for one in (session, straight):
        one.step(bench.part(values, slice(0, 20)))
    session.copy("pump", "what if")
    require(session.streams == (*_NAMES, "what if"), f"a copy must be the newest stream: {session.streams}.")
    session.copy("pump", "twin")
    session.step({"what if": bench.rows(values["valve"][20:30] + 100, 20)})
    rest = bench.part(values, slice(20, 30))
    _require_same_future(session, straight, [rest], "What happens to a copy must leave the others bit for bit.")
    left = session.step({"twin": bench.rows(values["pump"][20:], 20)})["twin"].forecasts
    right = straight.step({"pump": bench.rows(values["pump"][30:], 30)})["pump"].forecasts
    bench.require_close(left[10:], right, "A copy must go on as its original does.")


def _a_restored_snapshot_goes_on_bit_equal(bench: StreamBench) -> None:
    values, session = bench.values(), bench.open()
    calls = [bench.part(values, slice(20, 21)), bench.part(values, slice(21, 40)), bench.part(values, slice(40, 48))]
    for _ in range(2):  # the second time, after rows and a reset
        other = bench.open()
        other.step({"stranger": bench.rows(values["pump"])})
        with tempfile.TemporaryDirectory() as folder:
            session.snapshot(Path(folder) / "now.txl")
            other.restore(Path(folder) / "now.txl")
        require(other.streams == session.streams, f"{session.streams} were saved, {other.streams} came back.")
        if session.streams:
            _require_same_future(session, other, calls, "A restored stream must go on bit for bit.")
        else:
            session.step(bench.part(values, slice(0, 20)))
            session.step({"new": bench.rows(values["valve"])})
            session.reset("new")


def _a_refused_call_leaves_every_stream_as_it_was(bench: StreamBench) -> None:
    values, (session, straight) = bench.values(), (bench.open(), bench.open())
    for one in (session, straight):
        one.step(bench.part(values, slice(0, 20)))
    for what, call in _bad_calls(bench, values).items():
        try:
            call(session)
        except TxlError:
            pass
        except Exception as error:
            raise CheckFailed(f"{what} raised {error!r}, expected an error of txl_ts.errors.") from error
        else:
            raise CheckFailed(f"{what} was taken in without an error.")
        require(session.streams == _NAMES, f"after {what} was refused, the streams are {session.streams}.")
    calls = [bench.part(values, slice(20, 21)), bench.part(values, slice(21, _N_ROWS))]
    _require_same_future(session, straight, calls, "Refused calls must leave every stream bit for bit.")


def _bad_calls(
    bench: StreamBench, values: Mapping[Any, NDArray[Any]]
) -> dict[str, Callable[[StreamingSession], object]]:
    """Give calls that must be refused; where one row is bad, good ones stand before and behind it."""
    channel = bench.promises.channels[0]
    good = bench.rows(values["pump"][20:22], 20)

    def step(bad: Any) -> Callable[[StreamingSession], object]:
        call = {"pump": good, "new": good, "valve": bad, "7": good}
        return lambda session: session.step(call)

    def restore(session: StreamingSession) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "odd.txl").write_bytes(b"no state")
            session.restore(Path(folder) / "odd.txl")

    calls: dict[str, Callable[[StreamingSession], object]] = {
        "a call that is no mapping": lambda session: session.step([1.0]),  # type: ignore[arg-type]
        "a name that is neither text nor a number": lambda session: session.step({"pump": good, 1.5: good}),
        "an unknown channel": step({"values": {**good["values"], "no such channel": 1.0}}),
        "a lacking channel": step({"values": {k: v for k, v in good["values"].items() if k != channel}}),
        "a text as value": step({"values": {**good["values"], channel: "3.1"}}),
        "an unknown key of a row": step({**good, "tmie": 1}),
        "a row that is a list": step([1.0]),
        "a stamp that is a text": step({**good, "time": ["yesterday", "today"]}),
        "three stamps for two rows": step({**good, "time": [bench.stamp(row) for row in (20, 21, 22)]}),
        "a late stamp": step({**good, "time": [bench.stamp(row) for row in (3, 20)]}),
        "a repeated stamp": step({**good, "time": [bench.stamp(row) for row in (20, 20)]}),
        "a reset of an unknown stream": lambda session: session.reset("new"),
        "a close of an unknown stream": lambda session: session.close("new"),
        "a copy of an unknown stream": lambda session: session.copy("new", "newer"),
        "a copy onto a stream": lambda session: session.copy("pump", "valve"),
        "a file that is no snapshot": restore,
    }
    if bench.promises.step is None:  # late is what is not after the last row: there was none with a time
        del calls["a late stamp"]
    elif bench.promises.step > 1:
        calls["a stamp off the grid"] = step({**good, "time": [bench.stamp(20) + 1, bench.stamp(21) + 1]})
    return calls


def _bad_values_in_one_stream_change_no_bit_of_the_others(bench: StreamBench) -> None:
    values, others = bench.values(), [name for name in _NAMES if name != "valve"]
    for value in (*BAD_VALUES, 1e300):
        calm, wild = bench.open(), bench.open()
        bad = {**values, "valve": values["valve"].copy()}
        bad["valve"][20:] = value
        for rows in (slice(0, 20), slice(20, 21), slice(21, 40)):
            here, there = calm.step(bench.part(values, rows)), wild.step(bench.part(bad, rows))
            for name in others:
                sentence = f"{value} in stream 'valve' changed the forecasts of {name!r}."
                require_equal(there[name].forecasts, here[name].forecasts, sentence)


def _results_do_not_change_later(bench: StreamBench) -> None:
    values, session = bench.values(), bench.open()
    out = session.step(bench.part(values, slice(0, 9)))
    before = {name: result.forecasts.copy() for name, result in out.items()}
    session.step(bench.part(values, slice(9, 18)))
    for name, result in out.items():
        require_equal(result.forecasts, before[name], f"A later step changed an earlier result of {name!r}.")


def _the_rows_of_a_call_stay_untouched(bench: StreamBench) -> None:
    values, session = bench.values(), bench.open()
    call, twin = bench.part(values, slice(0, 9)), bench.part(values, slice(0, 9))
    session.step(call)
    require(list(call) == list(twin), "a step changed which streams stand in its rows.")
    for name in _NAMES:
        require(call[name].get("time") == twin[name].get("time"), f"a step changed the times of {name!r}.")
        for channel, column in call[name]["values"].items():
            same = np.asarray(column), np.asarray(twin[name]["values"][channel])
            require_equal(*same, f"A step changed the values of {name!r}.")


def _require_same_future(
    session: StreamingSession, twin: StreamingSession, calls: Sequence[Mapping[Any, Any]], sentence: str
) -> None:
    """Fail unless two sessions answer the same calls with the same bits."""
    for call in calls:
        here, there = session.step(call), twin.step(call)
        for name in call:
            require_equal(here[name].forecasts, there[name].forecasts, sentence)


STREAM_CHECKS = (
    _a_step_answers_every_row_of_the_streams_that_were_given,
    _any_subset_may_step,
    _a_new_name_begins_by_itself,
    _the_order_of_streams_does_not_matter,
    _the_split_of_rows_does_not_matter,
    _catching_up_equals_row_by_row,
    _rows_that_did_not_come_are_missing_rows,
    _a_gap_beyond_the_reach_begins_the_stream_anew,
    _a_reset_stream_is_a_fresh_stream,
    _a_closed_stream_is_gone_and_leaves_no_trace,
    _a_copy_is_a_fork,
    _a_restored_snapshot_goes_on_bit_equal,
    _a_refused_call_leaves_every_stream_as_it_was,
    _bad_values_in_one_stream_change_no_bit_of_the_others,
    _results_do_not_change_later,
    _the_rows_of_a_call_stay_untouched,
)
