"""The streams of one graph: their names, where they stand, what they remember, and how rows move them on.

No stream is worked on by two threads at once: :mod:`.turns` sees to it. The lock is held for bookkeeping only, never
while the graph runs.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import StateError
from txl_ts.runtime.catchup import Walk, run_walks, walk_of
from txl_ts.runtime.columns import Columns
from txl_ts.runtime.contract import Contract
from txl_ts.runtime.desk import Desk, Manner, Pending
from txl_ts.runtime.engine import Engine
from txl_ts.runtime.files import Saved
from txl_ts.runtime.kept import Kept, Record
from txl_ts.runtime.lanes import Lanes, Shelves
from txl_ts.runtime.names import LaneName, stream_of, unknown_stream
from txl_ts.runtime.plan import Place, Plan, completed, lacks_time, plan
from txl_ts.runtime.resident import DeviceShelves, Resident
from txl_ts.runtime.ring import ring_of
from txl_ts.runtime.rows import Rows
from txl_ts.runtime.table import Table
from txl_ts.state import state_nbytes

# Lanes in one run of the graph, and the bytes of state that they may have. With 130 KiB per lane, a row in runs of 64
# lanes costs half of what it does in runs of 128, whose state does not fit into the caches.
_MOST_LANES, _MOST_BYTES = 64, 8 << 20


@dataclass(eq=False)
class Answer:
    """What a call gives, in the order of its names.

    Attributes
    ----------
    y : float32 array of shape (n, h, C, Q)
        Forecasts from the last row of each stream; of a detector with its scores, see ``Contract.answer_shape``.
    several : dict of int to float32 array of shape (T, h, C, Q)
        All forecasts of the streams that brought several rows.
    is_missing : bool array of shape (n,)
        The last row lacks a value.
    n_rows, last : int64 array of shape (n,)
    timed : bool array of shape (n,)
        Where the streams stand now.
    n_gaps, n_resets : int
        Rows that were filled in, streams that began anew after a long gap.
    n_covered, n_judged : int
        Values inside the outer quantiles that were forecast one step before them, and values that were compared.
    """

    y: NDArray[np.float32]
    is_missing: NDArray[np.bool_]
    n_rows: NDArray[np.int64]
    last: NDArray[np.int64]
    timed: NDArray[np.bool_]
    several: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    n_gaps: int = 0
    n_resets: int = 0
    n_covered: int = 0
    n_judged: int = 0


@dataclass(eq=False)
class _Work:
    """A call whose rows were all accepted."""

    columns: Columns
    lanes: Lanes  # −1 where a stream begins
    origin: NDArray[np.int64]
    answer: Answer
    start: NDArray[np.int32]
    x: NDArray[np.float32]
    walks: dict[int, Walk]
    is_anew: bool
    static: list[tuple[float, ...] | None]  # of each stream, or none


class Fleet:
    """Named streams of one graph.

    Parameters
    ----------
    manner : Manner
    one : Manner, optional
        The same model for calls of one lane and one row.
    stays_on_device : bool
        Keep the state of streams that come together in buffers of the engine's device.
    """

    def __init__(self, manner: Manner, one: Manner | None = None, *, stays_on_device: bool = False) -> None:
        self.manner, self.one, self._stays_on_device = manner, one, stays_on_device
        self.contract: Contract = manner.steps.contract
        ring = ring_of(self.contract)  # as a file has it, whatever came of trying it
        rings = () if ring is None else ring.axes
        self.small = [i for i in range(len(self.contract.specs)) if i not in rings]
        self.lock = threading.RLock()
        self.lanes: dict[LaneName, int] = {}
        self.packed: dict[LaneName, tuple[Place, Record, bool]] = {}
        self.n_calls = 0
        self._desks: list[tuple[Desk, Desk | None]] = []
        self.width = _width(self.contract)
        self._begin(self._new_store())

    def _new_store(self, arrays: list[NDArray[Any]] | None = None) -> Shelves:
        specs, engine = self.contract.specs, self.manner.steps
        store = Shelves(specs)
        if self._stays_on_device:
            assert isinstance(engine, Engine)
            store = DeviceShelves(engine, specs, self.lock)
        if arrays is not None:
            store.put_up(arrays)
        return store

    def _begin(self, store: Shelves) -> None:
        contract = self.contract
        layout = contract.layout
        self.store = store
        self.table = Table(n_channels=layout.n_channels, n_static=len(layout.static))
        self.kept = Kept(
            [contract.specs[i] for i in self.small],
            n_channels=layout.n_kept,
            n_rows=contract.n_layers * contract.mem_len * contract.stride,
        )
        self._make_room(store.n_lanes)

    @property
    def has_records(self) -> bool:
        """True if a memory can be rebuilt from rows: it is made of rings."""
        return self.manner.ring is not None and not any(s.name.startswith("far_") for s in self.contract.specs)

    def empty(self) -> Fleet:
        """Give another fleet of the same graph, without streams."""
        return Fleet(self.manner, self.one, stays_on_device=self._stays_on_device)

    @property
    def names(self) -> tuple[LaneName, ...]:
        """All streams."""
        return (*self.lanes, *self.packed)

    def lane(self, name: LaneName) -> int:
        """Give a stream's lane; a packed one is unpacked.

        Raises
        ------
        StateError
            If there is no such stream.
        """
        if name in self.packed:
            self.unpack([name])
        if name not in self.lanes:
            raise unknown_stream(name, self.names)
        return self.lanes[name]

    # -- a call -----------------------------------------------------------------------------------------------------

    def take(self, columns: Columns, *, wants_all: bool = True) -> Answer:
        """Take in rows and forecast from them: all of them, or none and an error."""
        if self.packed and (back := [name for name in columns.names if name in self.packed]):
            self.unpack(back)
        if isinstance(self.store, DeviceShelves):
            with self.lock:
                return self._take(columns, wants_all=wants_all)
        if len(columns.names) == 1 and (answer := self._take_one(columns)) is not None:
            return answer
        return self._take(columns, wants_all=wants_all)

    def _take(self, columns: Columns, *, wants_all: bool) -> Answer:
        work = self._planned(columns)
        if not columns.names:
            return work.answer
        new = np.flatnonzero(work.lanes < 0)
        with self.lock:
            work.lanes[new] = taken = self.store.take(len(new))
            self._make_room(self.store.n_lanes)
        desks = self._taken_desks()
        try:
            pending, residents, after = self._run(work, desks)
        except BaseException:
            with self.lock:
                self.store.give_back(taken)
            raise
        finally:
            self._desks.append(desks)
        for part in pending:
            part.commit(self.store, self.manner.ring)
        for resident in residents:
            resident.commit()
        with self.lock:
            self._commit(work, after)
            self.lanes.update(zip([columns.names[i] for i in new.tolist()], taken.tolist(), strict=True))
        if wants_all:
            for i, walk in work.walks.items():
                work.answer.several[i] = np.concatenate(walk.outputs)[np.array(walk.plan.given)]
        return work.answer

    def _take_one(self, columns: Columns) -> Answer | None:
        """Take in one row that just follows, without arrays of one; None if it is any other."""
        lane, table, step = self.lanes.get(columns.names[0]), self.table, self.contract.step
        if lane is None or columns.odd or step is None or not (n_rows := int(table.n_rows[lane])) or columns.static:
            return None
        timed, last = bool(table.timed[lane]), int(table.last[lane])
        if columns.timed[0] and not (timed and int(columns.stamps[0]) - last == step):
            return None
        if timed and (last := last + step) >= 2**62 - self.contract.horizon * step:
            return None
        layout, x = self.contract.layout, columns.values[0]
        if not layout.is_plain:
            static = tuple(table.static[lane].tolist()) if table.described[lane] else None
            when = np.array([last]) if timed else None
            x = completed(columns.values, when, [static], stream=stream_of(columns.names[0]), contract=self.contract)[0]
        desks = self._taken_desks()
        try:
            y = (desks[1] or desks[0]).one(self.store, lane, x)
        finally:
            self._desks.append(desks)
        row, x = x, x[: layout.n_channels]
        with self.lock:
            low, high = table.low[lane], table.high[lane]
            n_judged = n_covered = 0
            for value, least, most in zip(x.tolist(), low.tolist(), high.tolist(), strict=True):
                if value == value and least == least:
                    n_judged += 1
                    n_covered += least <= value <= most
            table.low[lane], table.high[lane] = y[0, :, 0], y[0, :, -1]
            self.n_calls += 1
            table.n_rows[lane], table.last[lane], table.used[lane] = n_rows + 1, last, self.n_calls
            if self.has_records:
                self.kept.add_one(lane, layout.kept(row), self._small)
        return Answer(
            y=y[None],
            is_missing=np.isnan(x).any(keepdims=True),
            n_rows=np.array([n_rows + 1]),
            last=np.array([last]),
            timed=np.array([timed]),
            n_judged=n_judged,
            n_covered=n_covered,
        )

    def check(self, columns: Columns) -> None:
        """Raise what :meth:`take` would raise for these rows; nothing is changed."""
        if self.packed and (back := [name for name in columns.names if name in self.packed]):
            self.unpack(back)
        self._planned(columns)

    def _planned(self, columns: Columns) -> _Work:
        """Put one row behind each stream at once; look at those one by one whose rows do not just follow."""
        names, contract = columns.names, self.contract
        n, step = len(names), contract.step
        lanes = np.fromiter((self.lanes.get(name, -1) for name in names), np.int64, n)
        is_known, table = lanes >= 0, self.table
        at = np.where(is_known, lanes, 0)
        if len(table.n_rows):
            n_rows = np.where(is_known, table.n_rows[at], 0)
            has, last = is_known & table.timed[at], table.last[at]
            origin = table.origin[at]
        else:
            n_rows, last, origin = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
            has = np.zeros(n, bool)
        most = 2**62 - contract.horizon * (step or 0)
        stamps = columns.stamps
        is_plain = (np.abs(last) < most) & (np.abs(stamps) < most)
        if step is None:
            is_plain &= ~has | (columns.timed & (stamps > last))
        else:
            is_plain &= ~has | ~columns.timed | (stamps - last == step)
            stamps = np.where(columns.timed, stamps, last + step)
        timed = has | columns.timed
        origin = np.where(has, origin, stamps - n_rows * (step or 0))
        for i in columns.odd:
            is_plain[i] = False
        answer = Answer(
            y=np.empty((n, *contract.answer_shape), np.float32),
            is_missing=np.asarray(np.isnan(columns.values[:, : contract.layout.n_channels]).any(axis=1)),
            n_rows=n_rows + 1,
            last=stamps,
            timed=timed,
        )
        # What is odd and still one row, as a history may be, is put in its place by its plan.
        x = columns.values.copy() if columns.odd else columns.values
        start = (n_rows == 0).astype(np.int32)
        work = _Work(columns, lanes, origin, answer, start, x, {}, is_anew=False, static=self._static(columns, lanes))
        if not contract.layout.is_plain:
            work.x = self._completed(work, is_plain)
        for i in np.flatnonzero(~is_plain).tolist():
            self._plan_one(work, i)
        return work

    def _static(self, columns: Columns, lanes: Lanes) -> list[tuple[float, ...] | None]:
        """What is static of each stream of a call: as it is given now, else as it was."""
        if not self.contract.layout.static:
            return []
        given = columns.static | {i: rows.static for i, rows in columns.odd.items() if rows.static is not None}
        known = (self.table.place(lane).static if lane >= 0 else None for lane in lanes.tolist())
        return [given.get(i, before) for i, before in enumerate(known)]

    def _completed(self, work: _Work, is_plain: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Fill in the calendar and what is static of the rows that just follow; the others are planned one by one."""
        x, plain = work.x.copy(), np.flatnonzero(is_plain)
        if not len(plain):
            return x
        names = [stream_of(work.columns.names[i]) for i in plain.tolist()]
        static = [work.static[i] for i in plain.tolist()] if work.static else [None]
        if self.contract.clock is not None and not work.answer.timed[plain].all():
            raise lacks_time(names[int(np.flatnonzero(~work.answer.timed[plain])[0])])
        x[plain] = completed(x[plain], work.answer.last[plain], static, stream=names, contract=self.contract)
        return x

    def _plan_one(self, work: _Work, i: int) -> None:
        answer, lane = work.answer, int(work.lanes[i])
        place = self.table.place(lane) if lane >= 0 else Place()
        one = plan(work.columns.rows(i), place, stream=stream_of(work.columns.names[i]), contract=self.contract)
        answer.n_rows[i], answer.last[i] = one.after.n_rows, one.after.last or 0
        answer.timed[i], work.origin[i] = one.after.last is not None, one.after.origin or 0
        answer.n_gaps += len(one.given) - sum(one.given)
        n_resets = sum(is_start for _, is_start in one.pieces) - (place.n_rows == 0)
        answer.n_resets += n_resets
        work.is_anew |= n_resets > 0
        last = one.pieces[-1][0][-1]
        answer.is_missing[i] = bool(np.isnan(last[: self.contract.layout.n_channels]).any())
        if len(one.given) == 1:
            (work.start[i],) = (int(is_start) for _, is_start in one.pieces)
            work.x[i] = last
            return
        n_kept = self.kept.n_needed if self.has_records else 0
        work.walks[i] = walk_of(one, longest=self.contract.longest, n_kept=n_kept)

    def _run(
        self, work: _Work, desks: tuple[Desk, Desk | None]
    ) -> tuple[list[Pending], list[Resident], list[NDArray[Any]]]:
        """Run the graph; nothing is written yet that a stream would notice."""
        answer, width = work.answer, self.width
        pending: list[Pending] = []
        residents: list[Resident] = []
        single = np.array([i for i in range(len(work.lanes)) if i not in work.walks]) if work.walks else None
        n = len(work.lanes) if single is None else len(single)
        for first in range(0, n, width):
            part: Any = slice(first, first + width) if single is None else single[first : first + width]
            lanes = work.lanes[part]
            if isinstance(self.store, DeviceShelves):
                residents.append(self.store.resident(lanes))
                answer.y[part] = residents[-1].row(work.x[part], work.start[part])
                continue
            desk = desks[1] if len(lanes) == 1 and desks[1] is not None else desks[0]
            y = answer.y[part]
            pending.append(desk.row(self.store, lanes, work.x[part], work.start[part], is_anew=work.is_anew, y=y))
            if single is not None:
                answer.y[part] = y
        if not work.walks:
            return pending, residents, []
        walks = list(work.walks.values())
        state = self.store.gather(work.lanes[list(work.walks)])
        after = run_walks(self.manner.steps, walks, state, small=self.small, width=width)
        for i, walk in work.walks.items():
            answer.y[i] = walk.outputs[-1][-1]
        return pending, residents, after

    def _commit(self, work: _Work, after: list[NDArray[Any]]) -> None:
        answer, lanes, table = work.answer, work.lanes, self.table
        self.n_calls += 1
        walked = np.array(list(work.walks), np.int64)
        if len(walked):
            self.store.scatter(lanes[walked], after)
        self._judge(work, walked)
        table.n_rows[lanes], table.origin[lanes] = answer.n_rows, work.origin
        table.last[lanes], table.timed[lanes] = answer.last, answer.timed
        table.used[lanes] = self.n_calls
        table.low[lanes], table.high[lanes] = answer.y[:, 0, :, 0], answer.y[:, 0, :, -1]
        if work.static:
            table.static[lanes], table.described[lanes] = np.array(work.static, np.float32), True
        if not self.has_records:
            return
        single = np.ones(len(lanes), bool)
        single[walked] = False
        mine = lanes if not len(walked) else lanes[single]
        if len(mine):
            if (starting := work.start[single] > 0).any():
                self.kept.begin(mine[starting])
            self.kept.add(mine, self.contract.layout.kept(work.x[single][:, None]), self._small)
        for place, (i, walk) in enumerate(work.walks.items()):
            self._keep_walk(lanes[i : i + 1], walk, [after[k][place : place + 1] for k in self.small])

    def _keep_walk(self, lane: Lanes, walk: Walk, small: list[NDArray[Any]]) -> None:
        kept, tail = self.kept, self.contract.layout.kept(walk.tail)
        if walk.noted is not None:
            rows = tail[-kept.n_needed :]
            kept.put(int(lane[0]), Record(walk.noted, rows, [part[0] for part in small]), is_whole=False)
            return
        if walk.plan.pieces[-1][1]:
            kept.begin(lane)
        kept.add(lane, tail[None], lambda _: small)

    def _judge(self, work: _Work, walked: NDArray[np.int64]) -> None:
        """Compare the values with what was forecast for them one step before."""
        n_channels = self.contract.layout.n_channels
        low, high, x = self.table.low[work.lanes], self.table.high[work.lanes], work.x[:, :n_channels]
        known = np.isfinite(x) & np.isfinite(low) & (work.start[:, None] == 0)
        inside = known & (low <= x) & (x <= high)
        known[walked] = inside[walked] = False
        n_judged, n_covered = int(known.sum()), int(inside.sum())
        for i, walk in work.walks.items():
            rows = np.concatenate([values[:, :n_channels] for values, _ in walk.chunks])
            y = np.concatenate(walk.outputs)[:-1, 0]
            before = np.concatenate([np.stack([low[i], high[i]], axis=-1)[None], y[..., [0, -1]]])
            begins = np.concatenate([[is_start] + [False] * (len(values) - 1) for values, is_start in walk.chunks])
            known = np.isfinite(rows) & np.isfinite(before).all(axis=-1) & ~begins[:, None]
            n_judged += int(known.sum())
            n_covered += int((known & (before[..., 0] <= rows) & (rows <= before[..., 1])).sum())
        work.answer.n_judged, work.answer.n_covered = n_judged, n_covered

    def _small(self, lanes: Lanes) -> list[NDArray[Any]]:
        out = []
        for index in self.small:
            spec = self.contract.specs[index]
            part = np.empty((len(lanes), *spec.shape), spec.dtype)
            self.store.gather_into(lanes, index, part)
            out.append(part)
        return out

    def _taken_desks(self) -> tuple[Desk, Desk | None]:
        try:
            return self._desks.pop()
        except IndexError:
            pass
        return Desk(self.manner, width=self.width), None if self.one is None else Desk(self.one, width=1)

    def _make_room(self, n: int) -> None:
        self.table.make_room(n)
        if self.has_records:
            self.kept.make_room(n)

    # -- streams that come and go -----------------------------------------------------------------------------------

    def reset(self, name: LaneName) -> None:
        """Make a stream forget all but what is static of it."""
        lane = self.lane(name)
        with self.lock:
            self.store.clear(lane)
            self.table.put(lane, Place(static=self.table.place(lane).static))
            if self.has_records:
                self.kept.begin(np.array([lane]))

    def close(self, name: LaneName) -> None:
        """End a stream."""
        if self.packed.pop(name, None) is not None:
            return
        lane = self.lane(name)
        with self.lock:
            del self.lanes[name]
            self.store.give_back([lane])

    def begin(self, name: LaneName, *, static: tuple[float, ...] | None = None) -> None:
        """Let a stream be there that has seen nothing."""
        with self.lock:
            lane = int(self.store.take(1)[0])
            self._make_room(self.store.n_lanes)
            self.lanes[name] = lane
            self.table.put(lane, Place(static=static))
        self.reset(name)

    def is_idle(self, name: LaneName, *, before: int) -> bool:
        """Tell whether a stream is there and its last row is older than a stamp."""
        if name in self.packed:
            last = self.packed[name][0].last
        elif name in self.lanes:
            last = self.table.place(self.lanes[name]).last
        else:
            return False
        return last is not None and last < before

    def copy(self, name: LaneName, new: LaneName) -> None:
        """Fork a stream."""
        lane = self.lane(name)
        if new in self.lanes or new in self.packed:
            raise StateError(f"there is a stream {new!r} already. Close it first, or take another name.")
        with self.lock:
            to = self.store.take(1)
            self._make_room(self.store.n_lanes)
            self.store.scatter(to, self.store.gather(np.array([lane])))
            self.table.put(int(to[0]), self.table.place(lane))
            self.table.used[to] = self.n_calls
            if self.has_records:
                self.kept.copy(lane, int(to[0]))
            self.lanes[new] = int(to[0])

    def record(self, name: LaneName) -> tuple[Place, Record, bool] | None:
        """Give a stream without its memory, and whether its rows are all there are; None if too few were kept."""
        if name in self.packed:
            return self.packed[name]
        lane = np.array([self.lane(name)])
        if not self.has_records or not self.kept.is_enough(lane)[0]:
            return None
        record = self.kept.record(int(lane[0]), [part[0] for part in self._small(lane)])
        return self.table.place(int(lane[0])), record, bool(self.kept.is_whole[lane[0]])

    def pack(self, name: LaneName) -> bool:
        """Replace a stream's memory by its record; False if too few rows were kept."""
        if name in self.packed or (packed := self.record(name)) is None:
            return name in self.packed
        with self.lock:
            self.store.give_back([self.lanes.pop(name)])
            self.packed[name] = packed
        return True

    def unpack(self, names: Sequence[LaneName]) -> None:
        """Rebuild the memories of packed streams, in one pass over their rows."""
        records = [self.packed[name] for name in names]
        state = self.rebuilt([record for _, record, _ in records])
        with self.lock:
            lanes = self.store.take(len(names))
            self._make_room(self.store.n_lanes)
            self.store.scatter(lanes, state)
            self.settle(lanes, records)
            for name, lane in zip(names, lanes.tolist(), strict=True):
                del self.packed[name]
                self.lanes[name] = lane

    def settle(self, lanes: Lanes, records: Sequence[tuple[Place, Record, bool]]) -> None:
        """Note places and kept rows of lanes."""
        self.table.puts(lanes, [place for place, _, _ in records])
        self.table.used[lanes] = self.n_calls
        for lane, (_, record, is_whole) in zip(lanes.tolist(), records, strict=True):
            self.kept.put(lane, record, is_whole=is_whole)

    def rebuilt(self, records: Sequence[Record]) -> list[NDArray[Any]]:
        """Give the whole state of streams from their records; memories agree to 1e-5, small tensors to the bit."""
        specs, ring = self.contract.specs, self.manner.ring
        assert ring is not None
        state: list[NDArray[Any]] = [np.zeros((len(records), *spec.shape), spec.dtype) for spec in specs]
        for place, index in enumerate(self.small):
            for lane, record in enumerate(records):
                state[index][lane] = record.base[place]
        state[ring.count][:, 0] = 0  # no slot is filled: the memory before the base is not there
        walks, busy = [], [lane for lane, record in enumerate(records) if len(record.rows)]
        for lane in busy:
            rows = records[lane].rows
            rows = rows if self.contract.layout.is_plain else self.contract.layout.unkept(rows)
            one = Plan([(rows, False)], [True] * len(rows), Place())
            walks.append(walk_of(one, longest=self.contract.longest, n_kept=0))
        if busy:
            after = run_walks(
                self.manner.steps, walks, [array[busy] for array in state], small=self.small, width=self.width
            )
            for whole, part in zip(state, after, strict=True):
                whole[busy] = part
        for place, index in enumerate(self.small):
            for lane, record in enumerate(records):
                state[index][lane] = record.now[place]
        return state

    def recent(self, name: LaneName) -> tuple[Place, Rows]:
        """Give the rows that were kept of a stream, with their times where these are on a grid."""
        if name in self.packed:
            place, record, _ = self.packed[name]
            values = record.rows
        else:
            lane = self.lanes[name]
            place = self.table.place(lane)
            n = int(self.kept.n[lane]) if self.has_records else 0
            values = self.kept.rows[lane, :n].copy() if n else self.kept.rows[:0, 0]
        values = values if self.contract.layout.is_plain else self.contract.layout.unkept(values)
        step, stamps = self.contract.step, None
        if place.last is not None and step is not None:
            stamps = [place.last - i * step for i in range(len(values) - 1, -1, -1)]
        return place, Rows(values, stamps, place.static)

    @property
    def most_kept_rows(self) -> int:
        """Rows that a record may hold."""
        return self.kept.rows.shape[1]

    def with_rebuilt(self, saved: Saved) -> list[NDArray[Any]]:
        """Give the state of all streams of a file, those with their memory first.

        Raises
        ------
        StateError
            If there are streams without their memory, and this graph's cannot be rebuilt.
        """
        if not saved.records:
            return list(saved.arrays)
        if not self.has_records:
            raise StateError(
                "the snapshot is a compact one, and the memory of this graph cannot be rebuilt from rows. "
                "Write it again with `snapshot(path)`."
            )
        records = [record for _, record, _ in saved.records.values()]
        parts = [self.rebuilt(records[i : i + _MOST_LANES]) for i in range(0, len(records), _MOST_LANES)]
        return [np.concatenate([whole, *rest]) for whole, *rest in zip(saved.arrays, *parts, strict=True)]

    def replace(self, saved: Saved, arrays: list[NDArray[Any]]) -> None:
        """Put the streams of a file in place of all; ``arrays`` are theirs from now on."""
        names, n_whole = [*saved.places, *saved.records], len(saved.places)
        with self.lock:
            self._begin(self._new_store(arrays))
            self._desks.clear()  # they are bound to the shelves that were
            lanes = np.arange(len(names))
            self.lanes = dict(zip(names, lanes.tolist(), strict=True))
            self.packed = {}
            whole = lanes[:n_whole]
            self.table.puts(whole, list(saved.places.values()))
            if self.has_records and n_whole:
                fresh = self.table.n_rows[whole] == 0
                self.kept.begin(whole[~fresh], self._small(whole[~fresh]))
                self.kept.begin(whole[fresh])
            self.settle(lanes[n_whole:], list(saved.records.values()))


def _width(contract: Contract) -> int:
    """Give the most lanes of one run."""
    if contract.fixed is not None:
        return contract.fixed[0]
    if not contract.is_lane_independent:
        return 1
    return max(4, min(_MOST_LANES, _MOST_BYTES // max(1, state_nbytes(contract.specs))))
