"""Many streams through one graph: the session beside bare ONNX Runtime, files, new weights, and the bytes of each."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from txl_ts.bench import report

COLUMNS = {
    "what": "streams in a call",
    "step_us": "`step`, µs per row",
    "many_us": "`step_many`, µs per row",
    "bare_us": "bare session, µs per row",
    "step_share": "bare / `step`",
    "many_share": "bare / `step_many`",
}
_DENSE, _SPARSE, _RESTORED, _SWAPPED = (1, 64, 1024), 64, 10_000, 1000
_ROUNDS = {1: 300, 64: 60, 1024: 12}
_PACKING = 64


def run(
    data: str | PathLike[str] | None = None,
    *,
    seeds: tuple[int, ...] = (0,),
    command: str | None = None,
    quick: bool = False,
) -> dict[str, Any]:
    """Measure fleets of the default forecaster's sizes (hourly); needs no data.

    Parameters
    ----------
    data : path, optional
        Not used.
    seeds : tuple of int
        The first draws weights and rows.
    command : str, optional
        What rebuilds the table.
    quick : bool
        A hundredth of the streams, for tests.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`.
    """
    from txl_ts.runtime import StreamSession

    n_restored, n_swapped = (_RESTORED // 100, _SWAPPED // 100) if quick else (_RESTORED, _SWAPPED)
    with tempfile.TemporaryDirectory() as folder:
        graph, new = (_graph(Path(folder, f"{name}.onnx"), seed) for name, seed in (("old", seeds[0]), ("new", -1)))
        rows = [_dense(graph, n, quick=quick) for n in _DENSE]
        rng = np.random.default_rng(seeds[0])
        session = StreamSession(graph, providers="cpu")
        names = [f"meter-{i}" for i in range(n_restored)]
        for t in range(3 if quick else 24):
            session.step_many(names, rng.normal(size=n_restored), t)
        rows.append(_sparse(graph, session, names, rng, quick=quick))
        notes = [
            _restored(graph, session, Path(folder)),
            _compact(graph, Path(folder), quick=quick),
            _swapped(graph, new, n_swapped, rng),
        ]
        how = session._fleet.manner
    here = report.environment()
    here["versions"]["onnxruntime"] = metadata.version("onnxruntime")
    in_place = "in place" if how.in_place else "copied by the graph"
    return {
        "name": "fleet",
        "title": "Many streams in one session",
        "command": command or "txl-ts bench fleet",
        "protocol": [
            "The default forecaster's sizes, hourly, drawn weights; one thread, one row of each stream per call. The "
            f"bare session runs the same graph with plain `run` on packs of {_PACKING} lanes (or fewer, if there are "
            "fewer) that nobody gathers, names, checks or looks at, and feeds its state back. Rounds of the three take "
            f"turns; medians of {_ROUNDS[1]}, {_ROUNDS[64]} and {_ROUNDS[1024]} rounds, in CPU time of the "
            f"thread. Memories are {in_place}.",
        ],
        "columns": COLUMNS,
        "rows": rows,
        "notes": notes,
        "environment": here,
    }


def _graph(path: Path, seed: int) -> Path:
    import torch

    from txl_ts.config import ModelConfig
    from txl_ts.export import export_onnx
    from txl_ts.model import TXLModel

    nine = tuple(i / 10 for i in range(1, 10))
    sizes: dict[str, Any] = {"patch_len": 24, "stride": 24, "mem_len": 4, "lookback": 336, "half_life": 168.0}
    config = ModelConfig(h=24, quantiles=nine, d_model=64, n_layers=2, n_heads=4, d_ff=128, dropout=0.0, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = TXLModel(config).eval()
        for parameter in model.head.parameters():
            torch.nn.init.normal_(parameter, std=0.1)  # a head of zeros would hide the memory
    about = {
        "model_type": "forecaster",
        "model_digest": f"{seed % 16:x}" * 64,
        "freq": "1",
        "time": {"kind": "integer", "zone": None, "step_ns": None, "step": 1},
        "channels": [{"name": "y", "unit": None}],
        "trained": 1,
    }
    export_onnx(model, path, about=about)
    return path


def _dense(graph: Path, n: int, *, quick: bool) -> dict[str, Any]:
    from txl_ts.runtime import StreamSession

    session, bare = StreamSession(graph, providers="cpu"), _bare(graph, n)
    names, values = [f"meter-{i}" for i in range(n)], np.random.default_rng(0).normal(size=n)
    clock = iter(range(10**9))

    def step() -> None:
        t = next(clock)
        session.step({name: {"time": t, "values": {"y": 1.0}} for name in names})

    def many() -> None:
        session.step_many(names, values, next(clock))

    return _row(f"{n:,} of {n:,}", n, _in_turn([step, many, bare], 2 if quick else _ROUNDS[n]))


def _sparse(graph: Path, session: Any, names: list[str], rng: np.random.Generator, *, quick: bool) -> dict[str, Any]:
    values = rng.normal(size=_SPARSE)

    def chosen() -> list[str]:
        return [names[i] for i in rng.choice(len(names), _SPARSE, replace=False)]

    calls: Iterator[list[str]] = iter([chosen() for _ in range(2 * (_ROUNDS[_SPARSE] + 3))])

    def step() -> None:
        session.step(dict.fromkeys(next(calls), 1.0))

    def many() -> None:
        session.step_many(next(calls), values)

    seconds = _in_turn([step, many, _bare(graph, _SPARSE)], 2 if quick else _ROUNDS[_SPARSE])
    return _row(f"{_SPARSE} of {len(names):,}, drawn anew", _SPARSE, seconds)


def _row(what: str, n: int, seconds: list[float]) -> dict[str, Any]:
    step, many, bare = (1e6 * one / n for one in seconds)
    shares = {"step_share": bare / step, "many_share": bare / many}
    return {"what": what, "step_us": step, "many_us": many, "bare_us": bare} | shares


def _bare(graph: Path, n: int) -> Callable[[], None]:
    """Run packs of lanes, with the fixed graph for one lane where it lies beside."""
    import onnxruntime

    from txl_ts.runtime import read_contract

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    fixed = graph.with_name(f"{graph.stem}.step.onnx")
    path = fixed if n == 1 and fixed.exists() else graph
    session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    text = session.get_modelmeta().custom_metadata_map["txl_ts.contract"]
    contract = read_contract(text, where=str(path))
    feeds = []
    for first in range(0, n, _PACKING):
        width = min(_PACKING, n - first)
        feed = {"x": np.ones((width, 1, 1), np.float32), "start": np.zeros((width, 1), np.int32)}
        feeds.append(feed | _zeros(contract, width))

    def step() -> None:
        for feed in feeds:
            _, *after = session.run(["y", *contract.outputs], feed)
            feed.update(zip(contract.inputs, after, strict=True))

    return step


def _zeros(contract: Any, n: int) -> dict[str, Any]:
    return {
        name: np.zeros((n, *spec.shape), spec.dtype) for name, spec in zip(contract.inputs, contract.specs, strict=True)
    }


def _in_turn(calls: list[Callable[[], None]], n_rounds: int) -> list[float]:
    """Give the median CPU time of each call: neighbours on the machine slow all of them down at once."""
    seconds: list[list[float]] = [[] for _ in calls]
    for turn in range(n_rounds + 3):
        for call, mine in zip(calls, seconds, strict=True):
            begin = time.thread_time()
            call()
            if turn >= 3:
                mine.append(time.thread_time() - begin)
    return [statistics.median(mine) for mine in seconds]


def _restored(graph: Path, session: Any, folder: Path) -> str:
    from txl_ts.runtime import StreamSession

    path, n = folder / "full.txl", len(session.streams)
    session.snapshot(path)
    again = StreamSession(graph, providers="cpu")
    begin = time.perf_counter()
    again.restore(path)
    seconds = time.perf_counter() - begin
    same = _same(session, again, n)
    size = path.stat().st_size
    path.unlink()
    return (
        f"Restore of {n:,} streams from a full snapshot of {size:,} bytes ({size // n:,} per stream): {seconds:.2f} s; "
        f"the next row {'is equal to the bit' if same == 0 else f'differs by {same:.1e} of the largest value'}."
    )


def _compact(graph: Path, folder: Path, *, quick: bool) -> str:
    from txl_ts.runtime import StreamSession

    n, n_rows = (4, 500) if quick else (100, 1000)
    session, path = StreamSession(graph, providers="cpu"), folder / "compact.txl"
    values = np.random.default_rng(1).normal(size=(n, n_rows)).cumsum(1)
    session.warm({f"meter-{i}": {"time": list(range(n_rows)), "values": {"y": values[i]}} for i in range(n)})
    session.snapshot(path, compact=True)
    again = StreamSession(graph, providers="cpu")
    begin = time.perf_counter()
    again.restore(path)
    seconds = time.perf_counter() - begin
    each = path.stat().st_size / n
    return (
        f"Compact snapshot of {n} streams: {each / 1024:.1f} KiB per stream, of {session.state_nbytes / 1024:.1f} KiB "
        f"of state; restored in {1000 * seconds / n:.1f} ms per stream; the next row differs by "
        f"{_same(session, again, n):.1e} of the largest value."
    )


def _same(one: Any, other: Any, n: int) -> float:
    names = [f"meter-{i}" for i in range(n)][:256]
    a, b = (session.step_many(names, np.ones(len(names))).quantiles for session in (one, other))
    return float(np.nanmax(np.abs(a - b)) / np.nanmax(np.abs(a)))


def _swapped(graph: Path, new: Path, n: int, rng: np.random.Generator) -> str:
    """Swap while another thread feeds; count the rows that were answered, and those in memory afterwards."""
    from txl_ts.runtime import StreamSession

    session, names, n_rows = StreamSession(graph, providers="cpu"), list(range(n)), 400
    history = rng.normal(size=(n, n_rows)).cumsum(1)
    session.warm({i: {"time": list(range(n_rows)), "values": {"y": history[i]}} for i in names})
    answered, is_over = 0, threading.Event()

    def feed() -> None:
        nonlocal answered
        t = n_rows
        while not is_over.is_set():
            out = session.step_many(names, rng.normal(size=n), t)
            answered += len(out)
            t += 1

    feeding = threading.Thread(target=feed)
    feeding.start()
    report = session.swap(new)
    is_over.set()
    feeding.join()
    fleet = session._fleet
    last = {int(fleet.table.last[fleet.lanes[name]]) for name in names}
    lost = n * (n_rows + answered // n) - sum(max(last) + 1 for _ in names) if len(last) == 1 else -1
    return (
        f"Swap of {n:,} streams to new weights, {report['rows']:,} kept rows walked: {report['seconds']:.1f} s, while "
        f"another thread stepped {answered:,} rows; rows lost: {lost}."
    )
