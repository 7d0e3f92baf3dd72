"""What one row costs: the exported graph on one thread, beside the byte floor, torch, and a GRU of equal weights."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from txl_ts.bench import report

COLUMNS = {
    "what": "model",
    "graph_us": "graph, µs",
    "floor_us": "byte floor, µs",
    "floor_ratio": "graph / floor",
    "torch_us": "torch eager, µs",
    "gru_us": "GRU of equal weights, µs",
    "state_kib": "state, KiB",
    "parity": "parity",
}
WINDOWS = (128, 512, 1024)
_CALLS, _WARM_UP = 300, 50
# What a core of today reads from memory; CORE's figure.
_BYTES_PER_US = 50_000


def run(
    data: str | PathLike[str] | None = None, *, seeds: tuple[int, ...] = (0,), command: str | None = None
) -> dict[str, Any]:
    """Measure the default forecaster's sizes and D 128, L 4 with three memory lengths; needs no data.

    Parameters
    ----------
    data : path, optional
        Not used.
    seeds : tuple of int
        The first draws the weights.
    command : str, optional
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`.
    """
    import torch

    from txl_ts.config import ModelConfig

    common: dict[str, Any] = {"h": 24, "half_life": 168.0, "n_heads": 4, "dropout": 0.0}
    nine = tuple(i / 10 for i in range(1, 10))
    default = ModelConfig(
        quantiles=nine, patch_len=24, stride=24, mem_len=4, lookback=336, d_model=64, n_layers=2, d_ff=128, **common
    )
    plain: dict[str, Any] = {
        "quantiles": (0.5,),
        "patch_len": 1,
        "stride": 1,
        "lookback": 0,
        "d_model": 128,
        "n_layers": 4,
        "d_ff": 512,
    }
    sizes = {"default forecaster, hourly": default}
    sizes |= {f"D 128, L 4, M {m}": ModelConfig(mem_len=m, **plain, **common) for m in WINDOWS}
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds[0])
            rows = [_measured(name, config) for name, config in sizes.items()]
    finally:
        torch.set_num_threads(before)
    return {
        "name": "step",
        "title": "One row of one stream",
        "command": command or "txl-ts bench step",
        "protocol": [
            f"One lane, one row per call, one thread, state fed back by plain `run`; medians of {_CALLS} calls. The "
            "floor is 4 · [P + 2LMD + L(M + 1)D] bytes at 50 GB/s, P the weights of the layers.",
        ],
        "columns": COLUMNS,
        "rows": rows,
        "notes": [
            "Any cache of keys and values closes the gap to a recomputed window; that is not what is shown here."
        ],
        "environment": report.environment(),
    }


def _measured(name: str, config: Any) -> dict[str, Any]:
    import torch

    from txl_ts.export import export_onnx
    from txl_ts.model import TXLModel

    model = TXLModel(config).eval()
    about = {
        "model_type": "forecaster",
        "model_digest": "0" * 64,
        "freq": "1h",
        "time": {"kind": "integer", "zone": None, "step_ns": None, "step": 1},
        "channels": [{"name": "y", "unit": None}],
        "trained": 1,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step.onnx")
        contract = export_onnx(model, path, about=about)
        graph = _graph_step(path, contract)
        gru = _gru_step(Path(folder, "gru.onnx"), _layer_weights(config))
    x, state = torch.zeros(1, 1, 1), model.init_state(1)

    def eager() -> None:
        nonlocal state
        with torch.inference_mode():
            _, state = model(x, state)

    visits, width = config.mem_len, config.d_model
    floats = _layer_weights(config) + config.n_layers * width * (2 * visits + visits + 1)
    floor = 4 * floats / _BYTES_PER_US
    graph_us = _median_us(graph)
    return {
        "what": name,
        "graph_us": graph_us,
        "floor_us": floor,
        "floor_ratio": graph_us / floor,
        "torch_us": _median_us(eager),
        "gru_us": _median_us(gru),
        "state_kib": model.state_nbytes() / 1024,
        "parity": f"{contract['parity']['max_relative']:.1e}",
    }


def _layer_weights(config: Any) -> int:
    width = config.d_model
    return int(config.n_layers * (4 * width * width + 2 * width * config.d_ff))


def _graph_step(path: Path, contract: dict[str, Any]) -> Callable[[], None]:
    session = _session(path)
    feed = {"x": np.zeros((1, 1, 1), np.float32), "start": np.zeros((1, 1), np.int32)}
    feed |= {s["in"]: np.zeros((1, *s["dims"]), s["dtype"]) for s in contract["states"]}
    outputs = [s["out"] for s in contract["states"]]
    inputs = [s["in"] for s in contract["states"]]

    def step() -> None:
        _, *after = session.run(["y", *outputs], feed)
        feed.update(zip(inputs, after, strict=True))

    return step


def _gru_step(path: Path, n_weights: int) -> Callable[[], None]:
    """One layer whose recurrent and input weights are as many as those of the model's layers."""
    import torch

    width = int((n_weights / 6) ** 0.5)
    cell = torch.nn.GRU(width, width, batch_first=True).eval()
    example = (torch.zeros(1, 1, width), torch.zeros(1, 1, width))
    program: Any = torch.onnx.export(cell, example, dynamo=True, opset_version=18, verbose=False)
    program.save(path)
    session = _session(path)
    names = [entry.name for entry in session.get_inputs()]
    feed = {name: np.zeros((1, 1, width), np.float32) for name in names}

    def step() -> None:
        _, feed[names[1]] = session.run(None, feed)

    return step


def _session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])


def _median_us(step: Callable[[], None]) -> float:
    for _ in range(_WARM_UP):
        step()
    seconds = []
    for _ in range(_CALLS):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return 1e6 * statistics.median(seconds)
