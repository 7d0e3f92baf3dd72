"""Many named streams through one exported graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import StateError, TxlError
from txl_ts.runtime import idle as eviction
from txl_ts.runtime.columns import Columns, read_columns, read_mapping
from txl_ts.runtime.contract import Contract
from txl_ts.runtime.files import Saved, load_streams, save_streams
from txl_ts.runtime.fleet import Answer, Fleet
from txl_ts.runtime.history import read_history
from txl_ts.runtime.metrics import Counters, prometheus
from txl_ts.runtime.names import StreamName, checked_name, stream_of, unknown_stream
from txl_ts.runtime.opening import open_fleet
from txl_ts.runtime.result import STATUSES, StepColumns, StepResult
from txl_ts.runtime.rows import Rows
from txl_ts.runtime.swap import Event
from txl_ts.runtime.swapping import Swapping
from txl_ts.runtime.targets import gathered, lanes_of, spread
from txl_ts.runtime.turns import Turns
from txl_ts.runtime.verify import verify

_WARM_BATCH = 64


class StreamSession(Swapping):
    """Named streams that each carry their own memory through one graph.

    A call takes rows of any of the streams and gives their forecasts; names that are new begin by themselves. A call is
    used whole or not at all: a row that is refused leaves every stream as it was. Where the step between rows has a
    fixed length, stamps must lie on the grid of the stream's first one, and rows that did not come are walked as
    missing, as the estimator does; a gap longer than the model's reach begins the stream anew. Days and months have no
    fixed length where clocks change: there each row is taken as the next.

    Threads may share a session. A stream is stepped by one thread at a time, in the order in which they come; threads
    that step different streams run side by side.

    Parameters
    ----------
    model : path or bytes
        What ``export_onnx`` wrote. ``<name>.step.onnx`` beside ``<name>.onnx`` is used for calls of one row of one
        stream, if it belongs to the same model.
    providers : str or sequence of str
        ``"auto"`` (a GPU if ONNX Runtime has one, else the CPU), ``"cpu"``, ``"cuda"``, or names of ONNX Runtime in
        order of preference, of which the first must become active.
    threads : int
        Threads of one call. A step is too small to share: one is fastest for most models.
    max_streams : int, optional
        Streams whose memory is at hand. Of more, those used longest ago are packed: their last rows and small tensors
        stay, and their memory is rebuilt when they return, to 1e-5. Those that cannot be rebuilt yet stay as they are.
    idle : str, timedelta or int, optional
        Streams whose last row is so much older than the newest one of all are closed, such as ``"2h"``; in the time of
        the stamps, no clock is asked. An integer where stamps are integers.
    cuda_graph : bool
        Record the steps of a GPU as CUDA graphs.

    Raises
    ------
    MissingExtraError
        If onnxruntime is not installed, or has not the provider that was asked for.
    FileFormatError
        If the file is no graph of ours, of an unknown major schema, or not what its contract says.

    Examples
    --------
    >>> from txl_ts.runtime import StreamSession
    >>> session = StreamSession("demand.onnx")  # doctest: +SKIP
    >>> session.step({"meter-7": {"time": 1_704_067_200_000_000_000, "values": {"y": 3.1}}})  # doctest: +SKIP
    """

    is_live = False

    def __init__(
        self,
        model: str | PathLike[str] | bytes,
        *,
        providers: str | Sequence[str] = "auto",
        threads: int = 1,
        max_streams: int | None = None,
        idle: Any = None,
        cuda_graph: bool = False,
    ) -> None:
        self._how: dict[str, Any] = {"providers": providers, "threads": threads, "cuda_graph": cuda_graph}
        self._begin(self._open(model), max_streams=max_streams, idle=idle)

    def _begin(self, fleet: Fleet, *, max_streams: int | None = None, idle: Any = None) -> None:
        """Start without streams. Whatever has a contract and runs arrays can be stepped: the torch twin does so."""
        self._fleet = fleet
        self._max_streams = eviction.checked_most(max_streams)
        self._idle = eviction.native_span(idle, contract=fleet.contract)
        self._swept_at: int | None = None
        self._turns, self._counters = Turns(), Counters()
        self._shadow = None
        self._is_switched = False

    def _open(self, model: Any) -> Fleet:
        return open_fleet(model, **self._how)

    @property
    def streams(self) -> tuple[StreamName, ...]:
        """Names of the streams, in the order in which they began."""
        with self._fleet.lock:
            return tuple(dict.fromkeys(map(stream_of, self._fleet.names)))

    @property
    def state_nbytes(self) -> int:
        """Bytes of state that one stream takes."""
        return self.contract.state_nbytes

    # -- rows -------------------------------------------------------------------------------------------------------

    def step(self, rows: Mapping[Any, Any]) -> dict[StreamName, StepResult]:
        """Take in rows of any of the streams, and forecast from each of them.

        Parameters
        ----------
        rows : mapping of stream name to row or rows
            A row is ``{"time": t, "values": {"y": 3.1}}``; for catching up, both may hold equally long sequences. With
            one channel, a bare number is a row too. Without ``time``, rows follow each other. Times are integers
            (nanoseconds since 1970, if the model's times are datetimes), datetime64 (UTC, if the model has a zone) or
            datetimes. None, NaN and infinities are missing values.

            Columns beside the target stand with it in ``values``, categories as they were fitted (any other counts as
            not known). ``"futr"`` tells what is known ahead of the last row, ``{"temp": [21.5, 22.0]}`` with up to h
            values, or of each row, with a sequence for each; what is not given is not known. ``"static"`` tells what
            is static of a stream, with its first row.

        Returns
        -------
        dict of stream name to StepResult
            In the order of ``rows``.

        Raises
        ------
        StampError
            If a time is late, repeated, off the grid, or of another kind than the model's.
        ColumnError, ShapeError, ParameterError
            If values do not fit the contract. In all cases no stream was changed.
        """
        columns, answer, contract, codes = self._take(lambda c: read_mapping(rows, contract=c), wants_all=True)
        y = answer.y
        lasts: list[Any] = answer.last.tolist()
        if not answer.timed.all():
            lasts = [last if timed else None for last, timed in zip(lasts, answer.timed.tolist(), strict=True)]
        names: Any = columns.names
        out = {
            # A copy: a result that is kept must not keep those of all other streams alive.
            name: StepResult(one.copy(), STATUSES[code], last, contract)
            for name, one, code, last in zip(names, y[:, None], codes.tolist(), lasts, strict=True)
        }
        for i, forecasts in answer.several.items():
            out[names[i]] = StepResult(forecasts, out[names[i]].status, lasts[i], contract)
        return out

    def step_many(
        self, names: Sequence[Any], values: Any, times: Any = None, *, futr: Any = None, static: Any = None
    ) -> StepColumns:
        """Take in one row of each of many streams, as arrays: a tenth of the time that ``step`` takes beside the graph.

        Parameters
        ----------
        names : sequence of stream name, of length n
            Distinct.
        values : array of shape (n, C), or (n,) with one channel
            NaN where missing. Columns beside the target follow the channels, in the contract's order; categories are
            codes, from 1 on in the contract's order.
        times : one time, or array of shape (n,), optional
            As in :meth:`step`; datetime64[ns] and int64 are fastest.
        futr : array of shape (n, h, number of columns known ahead), optional
            What is known of the rows ahead.
        static : array of shape (n, number of static columns), optional
            Needed where a stream begins.

        Returns
        -------
        StepColumns
            In the order of ``names``.

        Raises
        ------
        StampError, ShapeError, ParameterError
            As :meth:`step`; no stream was changed.
        """
        columns, answer, contract, codes = self._take(
            lambda c: read_columns(names, values, times, contract=c, futr=futr, static=static), wants_all=False
        )
        named: Any = columns.names
        return StepColumns(named, answer.y, codes, answer.last, answer.timed, contract)

    def warm(self, history: Any, *, id_col: str = "unique_id", time_col: str = "ds") -> int:
        """Fill memories from history: the rows are walked as ``step`` walks them, many at once, without results.

        Parameters
        ----------
        history : mapping or frame
            ``{"meter-7": {"time": […], "values": {"y": […]}}}``, or columns by name: a dict of arrays, or a frame of
            pandas, polars or pyarrow in long form, with one column for each channel.
        id_col, time_col : str
            Names of columns.

        Returns
        -------
        int
            Rows that were given.

        Raises
        ------
        ColumnError, ShapeError, ParameterError, StampError
            If they cannot be read; no stream was changed.
        """
        by_name = read_history(history, contract=self.contract, id_col=id_col, time_col=time_col)
        batches = [list(by_name)[first : first + _WARM_BATCH] for first in range(0, len(by_name), _WARM_BATCH)]
        contract = self.contract
        with self._turns.of([lane for name in by_name for lane in lanes_of(name, contract)]):
            for batch in batches:
                self._fleet.check(spread(_columns_of(by_name, batch, contract), contract))
        for batch in batches:
            self._take(partial(_columns_of, by_name, batch), wants_all=False)
        return sum(len(rows.values) for rows in by_name.values())

    def _take(
        self, read: Callable[[Contract], Columns], *, wants_all: bool
    ) -> tuple[Columns, Answer, Contract, NDArray[np.int64]]:
        began = time.perf_counter()
        try:
            columns = read(self.contract)
            lanes = spread(columns, self.contract)
            with self._turns.of(lanes.names):
                fleet = self._fleet
                answer = fleet.take(lanes, wants_all=wants_all)
                if self._shadow is not None:
                    self._shadow.follow(Event(lanes), answer, fleet.contract)
            answer = gathered(answer, fleet.contract)
        except TxlError as error:
            self._counters.refused(error)
            raise
        contract = fleet.contract
        # A detector compares with the forecast before the row, and so needs one row more.
        is_warming = answer.n_rows < contract.warm_rows + contract.is_detector
        codes = np.where(answer.is_missing, 2, np.where(is_warming, 1, 0))
        self._counters.used(
            n_rows=columns.n_rows,
            codes=codes,
            n_gaps=answer.n_gaps,
            n_resets=answer.n_resets,
            seconds=time.perf_counter() - began,
        )
        self._counters.judged(answer.n_covered, answer.n_judged)
        if self._max_streams is not None or self._idle is not None:
            self._evict(answer)
        return columns, answer, contract, codes

    # -- streams ----------------------------------------------------------------------------------------------------

    def reset(self, name: StreamName) -> None:
        """Make a stream forget all but what is static of it, its times too; it begins with its next row.

        Raises
        ------
        StateError
            If there is no such stream.
        """
        self._do("reset", checked_name(name))

    def close(self, name: StreamName) -> None:
        """End a stream and let its memory be used by others.

        Raises
        ------
        StateError
            If there is no such stream.
        """
        self._do("close", checked_name(name))

    def copy(self, name: StreamName, new: StreamName) -> None:
        """Fork a stream: ``new`` continues from where ``name`` stands, and neither knows the other.

        Raises
        ------
        StateError
            If there is no stream ``name``, or one ``new`` already.
        """
        self._do("copy", checked_name(name), checked_name(new))

    def _do(self, call: str, *names: StreamName) -> None:
        contract = self.contract
        by_lane = list(zip(*(lanes_of(name, contract) for name in names), strict=True))
        with self._turns.of([lane for lanes in by_lane for lane in lanes]):
            if contract.targets:
                known = set(self._fleet.names)  # a stream may lack a lane: series of an estimator may lack a target
                by_lane = [lanes for lanes in by_lane if lanes[0] in known]
                if not by_lane:
                    raise unknown_stream(names[0], known)
                if any(lane in known for name in names[1:] for lane in lanes_of(name, contract)):
                    raise StateError(f"there is a stream {names[1]!r} already. Close it first, or take another name.")
            for lanes in by_lane:
                getattr(self._fleet, call)(*lanes)
                if self._shadow is not None:
                    self._shadow.follow(Event(call=call, names=lanes))

    def _evict(self, answer: Answer) -> None:
        fleet, gone = self._fleet, set()
        most = None if self._max_streams is None else self._max_streams * max(1, len(self.contract.targets))
        if self._idle is not None and answer.timed.any():
            newest = int(answer.last[answer.timed].max())
            # Backwards too: one clock that was far ahead must not end the sweeping.
            if self._swept_at is None or abs(newest - self._swept_at) > self._idle // 8:
                self._swept_at = newest
                for name in eviction.idle_streams(fleet, before=newest - self._idle):
                    with self._turns.of([name]):
                        if self._fleet.is_idle(name, before=newest - self._idle):
                            self._fleet.close(name)
                            if self._shadow is not None:
                                self._shadow.follow(Event(call="close", names=(name,)))
                            gone.add(stream_of(name))
        if most is not None and (excess := len(fleet.lanes) - most) > 0:
            for name in eviction.least_used(fleet, max(excess, most // 16)):
                with self._turns.of([name]):
                    if name in fleet.lanes and fleet.pack(name):
                        gone.add(stream_of(name))
        if gone:
            self._counters.evicted(len(gone))

    # -- files ------------------------------------------------------------------------------------------------------

    def snapshot(self, path: str | PathLike[str], *, compact: bool = False) -> None:
        """Write all streams into one file, which is replaced whole or stays as it was.

        Parameters
        ----------
        path : path
        compact : bool
            Leave memories out where the rows that were kept give them back: some KiB per stream instead of a hundred.
            ``restore`` then walks these rows, and continues to 1e-5 instead of bit for bit. Streams that came from a
            file or a copy too few rows ago are written whole.

        Raises
        ------
        SaveError
            If it cannot be written.
        """
        with self._turns.of_all():
            fleet = self._fleet
            records = dict(fleet.packed)
            if compact:
                records |= {name: kept for name in fleet.lanes if (kept := fleet.record(name)) is not None}
            whole = {name: lane for name, lane in fleet.lanes.items() if name not in records}
            lanes = np.fromiter(whole.values(), np.int64, len(whole))
            places = {name: fleet.table.place(lane) for name, lane in whole.items()}
            saved = Saved(places, fleet.store.gather(lanes), records)
            contract, small = fleet.contract, fleet.small
        save_streams(path, saved, contract, small=small)

    def restore(self, path: str | PathLike[str]) -> None:
        """Put the streams of a file in place of all that are here; they continue bit for bit.

        Parameters
        ----------
        path : path
            What ``snapshot`` or an estimator's ``export_state`` wrote. Streams of a compact snapshot are rebuilt.

        Raises
        ------
        StateError
            If the file holds the streams of another model, or a swap is under way.
        FileFormatError
            If it is damaged. In all cases no stream was changed.
        """
        fleet = self._fleet
        saved = load_streams(path, fleet.contract, small=fleet.small, most_rows=fleet.most_kept_rows)
        arrays = fleet.with_rebuilt(saved)
        with self._turns.of_all():
            if self._fleet is not fleet or (self._shadow is not None and not self._is_switched):
                raise StateError("a swap is under way. Call `switch()` or `roll_back()` first.")
            fleet.replace(saved, arrays)
            self._shadow, self._is_switched = None, False

    # -- looking at it ----------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, Any]:
        """Count what was done since the session was opened.

        Returns
        -------
        dict
            ``streams``, ``packed`` (of these), ``rows``, ``calls``, ``refused`` calls, ``late`` and ``duplicates`` of
            these, ``gaps`` (missing rows that were walked), ``resets`` (after long gaps), ``evicted``, ``statuses``,
            ``call_seconds_p50`` and ``call_seconds_p99`` of the last 1,024 calls, and ``coverage``: the share of the
            last 10,000 values or so that lay inside the outer quantiles forecast one step before.
        """
        fleet = self._fleet
        packed = set(map(stream_of, fleet.packed))
        return self._counters.read(n_streams=len({*map(stream_of, fleet.lanes), *packed}), n_packed=len(packed))

    def metrics_text(self) -> str:
        """Give :meth:`metrics` in the text format of Prometheus."""
        return prometheus(self.metrics())

    def verify(self, fn: Any, *, init: Any = None, bound: float = 1e-5, seed: int = 0) -> float:
        """Compare the graph, stepped as this session steps it, with a function; see :func:`~.verify.verify`."""
        fleet = self._fleet
        return verify(fleet.empty, fn, init=init, bound=bound, seed=seed)


def _columns_of(by_name: Mapping[StreamName, Rows], batch: list[StreamName], contract: Contract) -> Columns:
    n = len(batch)
    return Columns(
        batch,
        np.zeros((n, contract.row_layout.width), np.float32),
        np.zeros(n, np.int64),
        np.zeros(n, bool),
        {i: by_name[name] for i, name in enumerate(batch)},
    )
