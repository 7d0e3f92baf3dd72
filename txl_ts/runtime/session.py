"""Many named streams through one exported graph."""

from __future__ import annotations

import difflib
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike, fspath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import ParameterError, StateError
from txl_ts.runtime.contract import Contract
from txl_ts.runtime.engine import Engine, Steps
from txl_ts.runtime.files import StreamName, load_streams, save_streams
from txl_ts.runtime.plan import Place, Plan, plan
from txl_ts.runtime.result import StepResult
from txl_ts.runtime.rows import read_rows
from txl_ts.runtime.slab import Slab
from txl_ts.runtime.stamps import as_array

# Lanes, and rows of all lanes, in one run of the graph. With 130 KiB of state per lane, a row costs 0.35 ms in runs of
# 64 lanes, 0.5 in runs of 512, up to 3.5 when 5,000 go at once; in chunks of 512 rows, 28 µs in runs of 2,048 rows.
_MOST_LANES, _MOST_ROWS = 64, 2048


class StreamSession:
    """Named streams that each carry their own memory through one graph.

    A call takes rows of any of the streams and gives their forecasts; names that are new begin by themselves. A call is
    used whole or not at all: a row that is refused leaves every stream as it was. Where the step between rows has a
    fixed length, stamps must lie on the grid of the stream's first one, and rows that did not come are walked as
    missing, as the estimator does; a gap longer than the model's reach begins the stream anew. Days and months have no
    fixed length where clocks change: there each row is taken as the next.

    Threads may share a session: its calls take turns.

    Parameters
    ----------
    model : path or bytes
        What ``export_onnx`` wrote.
    providers : str or sequence of str
        ``"auto"`` (a GPU if ONNX Runtime has one, else the CPU), ``"cpu"``, ``"cuda"``, or names of ONNX Runtime in
        order of preference, of which the first must become active.
    threads : int
        Threads of one call. A step is too small to share: one is fastest for most models.

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

    def __init__(
        self, model: str | PathLike[str] | bytes, *, providers: str | Sequence[str] = "auto", threads: int = 1
    ) -> None:
        where, data = ("the graph", model) if isinstance(model, bytes) else _read(model)
        self._begin(Engine(data, where=where, providers=providers, threads=threads))

    def _begin(self, engine: Steps) -> None:
        """Start without streams. Whatever has a contract and runs arrays can be stepped: the torch twin does so."""
        self._engine, self._contract = engine, engine.contract
        self._slab = Slab(self._contract.specs)
        self._lanes: dict[StreamName, int] = {}
        self._places: dict[StreamName, Place] = {}
        self._lock = threading.Lock()

    @property
    def contract(self) -> Contract:
        """What the graph's metadata promise; ``contract.document`` is the whole of it."""
        return self._contract

    @property
    def streams(self) -> tuple[StreamName, ...]:
        """Names of the streams, in the order in which they began."""
        with self._lock:
            return tuple(self._lanes)

    @property
    def state_nbytes(self) -> int:
        """Bytes of state that one stream takes."""
        return self._contract.state_nbytes

    def step(self, rows: Mapping[Any, Any]) -> dict[StreamName, StepResult]:
        """Take in rows of any of the streams, and forecast from each of them.

        Parameters
        ----------
        rows : mapping of stream name to row or rows
            A row is ``{"time": t, "values": {"y": 3.1}}``; for catching up, both may hold equally long sequences. With
            one channel, a bare number is a row too. Without ``time``, rows follow each other. Times are integers
            (nanoseconds since 1970, if the model's times are datetimes), datetime64 (UTC, if the model has a zone) or
            datetimes. None, NaN and infinities are missing values.

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
        if not isinstance(rows, Mapping):
            raise ParameterError(
                f"rows is of type {type(rows).__name__}, expected a mapping by stream. Give {{'meter-7': row}}."
            )
        with self._lock:
            plans: dict[StreamName, Plan] = {}
            for given, row in rows.items():
                name = _checked_name(given)
                read = read_rows(row, stream=name, contract=self._contract)
                plans[name] = plan(read, self._places.get(name, Place()), stream=name, contract=self._contract)
            return self._walk(plans)

    def reset(self, name: StreamName) -> None:
        """Make a stream forget all, its times too; it begins with its next row.

        Raises
        ------
        StateError
            If there is no such stream.
        """
        with self._lock:
            self._slab.clear(self._lane(name))
            self._places[name] = Place()

    def close(self, name: StreamName) -> None:
        """End a stream and let its memory be used by others.

        Raises
        ------
        StateError
            If there is no such stream.
        """
        with self._lock:
            self._slab.give_back(self._lane(name))
            del self._lanes[name], self._places[name]

    def copy(self, name: StreamName, new: StreamName) -> None:
        """Fork a stream: ``new`` continues from where ``name`` stands, and neither knows the other.

        Raises
        ------
        StateError
            If there is no stream ``name``, or one ``new`` already.
        """
        with self._lock:
            lane, new = self._lane(name), _checked_name(new)
            if new in self._lanes:
                raise StateError(f"there is a stream {new!r} already. Close it first, or take another name.")
            (taken,) = self._slab.take(1)
            self._slab.scatter([taken], self._slab.gather([lane]))
            self._lanes[new], self._places[new] = taken, self._places[name]

    def snapshot(self, path: str | PathLike[str]) -> None:
        """Write all streams into one file, which is replaced whole or stays as it was.

        Raises
        ------
        SaveError
            If it cannot be written.
        """
        with self._lock:
            places, arrays = dict(self._places), self._slab.gather([self._lanes[name] for name in self._places])
        save_streams(path, places, arrays, self._contract)

    def restore(self, path: str | PathLike[str]) -> None:
        """Put the streams of a file in place of all that are here; they continue bit for bit.

        Parameters
        ----------
        path : path
            What ``snapshot`` or an estimator's ``export_state`` wrote.

        Raises
        ------
        StateError
            If the file holds the streams of another model.
        FileFormatError
            If it is damaged. In all cases no stream was changed.
        """
        places, arrays = load_streams(path, self._contract)
        with self._lock:
            self._slab = Slab.of(self._contract.specs, arrays)
            self._lanes = {name: lane for lane, name in enumerate(places)}
            self._places = places

    def _lane(self, name: StreamName) -> int:
        name = _checked_name(name)
        if name not in self._lanes:
            close = difflib.get_close_matches(str(name), [str(known) for known in self._lanes], n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {list(self._lanes)[:5]}"
            raise StateError(f"there is no stream {name!r} ({len(self._lanes)} in all): {hint}")
        return self._lanes[name]

    def _walk(self, plans: dict[StreamName, Plan]) -> dict[StreamName, StepResult]:
        """Run the graph on copies of the lanes; write them back when all has gone well."""
        if not plans:
            return {}
        names = list(plans)
        state = self._gathered(names)
        chunks = [list(_chunks(item, longest=self._contract.longest)) for item in plans.values()]
        outputs: list[list[NDArray[np.float32]]] = [[] for _ in names]
        for lanes, turn in self._calls(chunks):
            x = np.stack([chunks[i][turn][0] for i in lanes])
            start = np.array([[chunks[i][turn][1]] for i in lanes], np.int32)
            is_all = len(lanes) == len(names)
            past = state if is_all else [array[lanes] for array in state]
            y, *after = self._engine.run({"x": x, "start": start} | dict(zip(self._contract.inputs, past, strict=True)))
            if is_all:
                state = after
            else:
                for whole, part in zip(state, after, strict=True):
                    whole[lanes] = part
            for i, one in zip(lanes, y, strict=True):
                outputs[i].append(one)
        results = {name: self._result(item, chunks[i], outputs[i]) for i, (name, item) in enumerate(plans.items())}
        new = [name for name in names if name not in self._lanes]
        self._lanes.update(zip(new, self._slab.take(len(new)), strict=True))
        self._slab.scatter([self._lanes[name] for name in names], state)
        self._places.update((name, item.after) for name, item in plans.items())
        return results

    def _gathered(self, names: Sequence[StreamName]) -> list[NDArray[Any]]:
        """Copy the streams' state out; zeros for those that are new."""
        known = [i for i, name in enumerate(names) if name in self._lanes]
        part = self._slab.gather([self._lanes[names[i]] for i in known])
        if len(known) == len(names):
            return part
        state = [np.zeros((len(names), *spec.shape), spec.dtype) for spec in self._contract.specs]
        for whole, mine in zip(state, part, strict=True):
            whole[known] = mine
        return state

    def _calls(self, chunks: Sequence[Sequence[Any]]) -> Iterator[tuple[list[int], int]]:
        """Give the lanes of each run, and the number of their chunk: equally long ones go together."""
        for turn in range(max(map(len, chunks))):
            groups: dict[int, list[int]] = defaultdict(list)
            for i, mine in enumerate(chunks):
                if turn < len(mine):
                    groups[len(mine[turn][0])].append(i)
            for length, lanes in groups.items():
                width = max(1, min(_MOST_LANES, _MOST_ROWS // length)) if self._contract.is_lane_independent else 1
                for first in range(0, len(lanes), width):
                    yield lanes[first : first + width], turn

    def _result(self, item: Plan, chunks: Sequence[Any], outputs: Sequence[NDArray[np.float32]]) -> StepResult:
        contract = self._contract
        forecasts = np.concatenate(outputs)[np.array(item.given)]  # a copy: a result must not keep all lanes alive
        times = None
        if item.after.last is not None and contract.step is not None:
            times = as_array([item.after.last + i * contract.step for i in range(contract.horizon + 1)], contract)
        is_missing = bool(np.isnan(chunks[-1][0][-1]).any())
        is_warm = item.after.n_rows >= contract.warm_rows
        return StepResult(
            forecasts=forecasts[:, :, 0] if len(contract.channels) == 1 else forecasts,
            levels=contract.quantiles,
            times=times,
            status="missing" if is_missing else ("ok" if is_warm else "warming_up"),
        )


def _read(path: str | PathLike[str]) -> tuple[str, bytes]:
    with open(path, "rb") as file:
        return fspath(path), file.read()


def _checked_name(name: Any) -> StreamName:
    if isinstance(name, str):
        return str(name)
    if isinstance(name, int | np.integer) and not isinstance(name, bool):
        return int(name)
    raise ParameterError(
        f"stream name {name!r:.80} is of type {type(name).__name__}, expected text or an integer. "
        "Nothing of this call was used."
    )


def _chunks(item: Plan, *, longest: int) -> Iterator[tuple[NDArray[np.float32], bool]]:
    """Cut pieces into what one call takes."""
    for values, is_start in item.pieces:
        for first in range(0, len(values), longest):
            yield values[first : first + longest], is_start and first == 0
