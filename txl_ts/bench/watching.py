"""How many rows a second a detector judges, and what a thousand of them cost at one row a second each."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from os import PathLike
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np

from txl_ts.bench import report
from txl_ts.bench.detectors import Learned

CHANNELS = (1, 8, 50)
N_STREAMS = 1_000
COLUMNS = MappingProxyType(
    {
        "channels": "sensors",
        "batch_rows": "rows/s, a series at once",
        "step_rows": "rows/s, one by one (graph)",
        "load": f"load of {N_STREAMS:,} streams at 1 Hz, one core",
        "state_kib": "KiB of state per stream",
        "fit_s": "fit, s",
        "export_s": "export, s",
    }
)
# The sizes of the default detector; weights do not change the time that a row takes.
_PARAMS = MappingProxyType({"max_epochs": 0})


def run(
    data: str | PathLike[str] | None = None,
    *,
    seeds: tuple[int, ...] = (0,),
    channels: tuple[int, ...] = CHANNELS,
    n_streams: int = N_STREAMS,
    command: str | None = None,
) -> dict[str, Any]:
    """Time a detector over noise; needs no data.

    Parameters
    ----------
    data : path, optional
        Not used.
    seeds : tuple of int
        The first draws the rows.
    channels : tuple of int
        Sensors per stream.
    n_streams : int
        Streams of the fleet.
    command : str, optional
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`.
    """
    rows = [_row(n, n_streams=n_streams, seed=seeds[0]) for n in channels]
    here = report.environment()
    here["versions"]["onnxruntime"] = metadata.version("onnxruntime")
    return {
        "name": "watching",
        "title": "Rows a second of a detector",
        "command": command or "txl-ts bench watching",
        "protocol": [
            "The default detector over normal noise, one thread of torch and of ONNX Runtime, CPU time of the process. "
            "At once: `detect` over 20,000 rows. One by one: `StreamSession.step` over the exported graph, scores and "
            f"p-values with it. Load: CPU seconds of one row for each of {n_streams:,} named streams in one call "
            "(`step_many`), median of five; 1 would be a core that does nothing else.",
        ],
        "columns": {**COLUMNS, "load": f"load of {n_streams:,} streams at 1 Hz, one core"},
        "rows": rows,
        "notes": ["Reading messages, reordering them and alerting (`txl-ts watch`) come on top."],
        "environment": here,
    }


def _row(n_channels: int, *, n_streams: int, seed: int) -> dict[str, Any]:
    from txl_ts.runtime import StreamSession

    rng = np.random.default_rng(seed)
    start = time.process_time()
    model = Learned(_PARAMS).fitted(rng.normal(size=(1_000, n_channels)), seed)
    fit = time.process_time() - start
    many = rng.normal(size=(20_000, n_channels))
    batch = _seconds(lambda: model.detect(many), n=1)
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder, "detector.onnx")
        start = time.process_time()
        model.export_onnx(graph)
        export = time.process_time() - start
        session = StreamSession(graph, providers="cpu")
        clock = iter(range(10**9))
        names = [f"pump-{i}" for i in range(n_streams)]
        values = rng.normal(size=(n_streams, n_channels)) if n_channels > 1 else rng.normal(size=n_streams)
        one = values[0]
        session.step_many(names[:1], values[:1], next(clock))
        step = _seconds(lambda: [session.step_many(names[:1], one[None], next(clock)) for _ in range(500)], n=3) / 500
        session.step_many(names, values, next(clock))
        load = _seconds(lambda: session.step_many(names, values, next(clock)), n=5)
    return {
        "channels": n_channels,
        "batch_rows": round(len(many) / batch),
        "step_rows": round(1 / step),
        "load": load,
        "state_kib": model.params_["state_nbytes"] / 1024,
        "fit_s": fit,
        "export_s": export,
    }


def _seconds(call: Callable[[], Any], *, n: int) -> float:
    """Give the median CPU time of a call."""
    found = []
    for _ in range(n):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return float(median(found))
