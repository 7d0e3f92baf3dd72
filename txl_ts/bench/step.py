"""What one row costs: the exported graphs on one thread, beside the byte floor, torch, and what people use instead."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from txl_ts.bench import report

COLUMNS = {
    "what": "model",
    "floor_us": "byte floor",
    "graph_us": "graph, in place",
    "fixed_us": "graph of one row, in place",
    "run_us": "graph, plain run",
    "graph_ratio": "graph / floor",
    "fixed_ratio": "graph of one row / floor",
    "gru_us": "GRU of equal weights",
    "fixed_per_gru": "graph of one row / GRU",
    "hidden_us": "memory of hidden rows",
    "window_us": "window model, M rows",
    "reach_us": "window model, L · M rows",
    "reach_ratio": "that / graph",
    "torch_us": "torch eager",
    "state_kib": "state, KiB",
    "parity": "parity",
}
WINDOWS = (128, 512, 1024)
# The window of the paper's table on evaluation speed.
PAPER_WINDOW = 3800
_CALLS, _WARM_UP = 300, 50
# What a core of today reads from memory; CORE's figure.
_BYTES_PER_US = 50_000
_SLOW_S = 0.2


def run(
    data: str | PathLike[str] | None = None,
    *,
    seeds: tuple[int, ...] = (0,),
    command: str | None = None,
    sizes: Mapping[str, Any] | None = None,
    paper_window: int = PAPER_WINDOW,
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
    sizes : mapping of str to ModelConfig, optional
        Other sizes.
    paper_window : int
        Rows that a model without a memory reads again for every row.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds[0])
            rows = [_measured(name, config) for name, config in (sizes or default_sizes()).items()]
            again = _recomputed(paper_window)
    finally:
        torch.set_num_threads(before)
    return {
        "name": "step",
        "title": "One row of one stream, in microseconds",
        "command": command or "txl-ts bench step",
        "protocol": [
            f"One lane, one row per call, one thread; medians of {_CALLS} calls (fewer where one takes long). *In "
            "place*: rings bound to their own buffers, as `StreamSession` does on a CPU; *plain run*: state fed back "
            "through `run`. The floor is 4 · [P + 2LMD + L(M + 1)D] bytes at 50 GB/s, P the weights of the layers. "
            "The GRU has as many weights as the layers. *Memory of hidden rows*: the same layers in a graph that "
            "remembers their inputs and projects them again at every row. *Window model*: a Transformer of the same "
            "layers as a graph over its whole window, M rows as one layer sees them or L · M rows as the model does.",
        ],
        "columns": COLUMNS,
        "rows": rows,
        "notes": [again["note"], "Any cache of keys and values closes the gap to a recomputed window."],
        "recomputed": again,
        "environment": report.environment(),
    }


def default_sizes() -> dict[str, Any]:
    """Give the sizes of the table: the default forecaster for hourly rows, and plain ones with three memories."""
    from txl_ts.config import ModelConfig

    common: dict[str, Any] = {"h": 24, "half_life": 168.0, "n_heads": 4, "dropout": 0.0}
    nine = tuple(i / 10 for i in range(1, 10))
    default = ModelConfig(
        quantiles=nine, patch_len=24, stride=24, mem_len=4, lookback=336, d_model=64, n_layers=2, d_ff=128, **common
    )
    return {"default forecaster, hourly": default} | {f"D 128, L 4, M {m}": _plain(m) for m in WINDOWS}


def _plain(mem_len: int) -> Any:
    from txl_ts.config import ModelConfig

    return ModelConfig(
        h=24,
        half_life=168.0,
        quantiles=(0.5,),
        patch_len=1,
        stride=1,
        mem_len=mem_len,
        lookback=0,
        d_model=128,
        n_layers=4,
        n_heads=4,
        d_ff=512,
    )


def _measured(name: str, config: Any) -> dict[str, Any]:
    import torch

    from txl_ts.export import export_onnx
    from txl_ts.model import TXLModel

    model = TXLModel(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step.onnx")
        contract = export_onnx(model, path, about=ABOUT)
        graph_us = _median_us(in_place(path, contract))
        fixed_us = _median_us(in_place(path.with_suffix(".step.onnx"), contract))
        run_us = _median_us(_graph_step(path, contract))
        gru_us = _median_us(_gru_step(Path(folder, "gru.onnx"), _layer_weights(config)))
        hidden_us = _median_us(_hidden_step(Path(folder, "hidden.onnx"), config))
        window_us = _median_us(_window_step(Path(folder, "window.onnx"), config, n_rows=config.mem_len + 1))
        reach = config.n_layers * config.mem_len + 1
        reach_us = _median_us(_window_step(Path(folder, "reach.onnx"), config, n_rows=reach))
    x, state = torch.zeros(1, 1, 1), model.init_state(1)

    def eager() -> None:
        nonlocal state
        with torch.inference_mode():
            _, state = model(x, state)

    floor = _floor_us(config)
    return {
        "what": name,
        "floor_us": floor,
        "graph_us": graph_us,
        "fixed_us": fixed_us,
        "run_us": run_us,
        "graph_ratio": graph_us / floor,
        "fixed_ratio": fixed_us / floor,
        "gru_us": gru_us,
        "fixed_per_gru": fixed_us / gru_us,
        "hidden_us": hidden_us,
        "window_us": window_us,
        "reach_us": reach_us,
        "reach_ratio": reach_us / graph_us,
        "torch_us": _median_us(eager),
        "state_kib": model.state_nbytes() / 1024,
        "parity": f"{contract['parity']['max_relative']:.1e}",
    }


def _recomputed(n_rows: int) -> dict[str, Any]:
    """Time one row of a model that keeps nothing: it reads its window again, as in 2019 and with a fused kernel."""
    import torch

    from txl_ts.export import export_onnx
    from txl_ts.model import TXLModel

    config = _plain(n_rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step.onnx")
        contract = export_onnx(TXLModel(config).eval(), path, about=ABOUT)
        graph_us = _median_us(in_place(path.with_suffix(".step.onnx"), contract))
    x = torch.randn(1, n_rows, config.d_model)
    layers = torch.nn.ModuleList(window_layer(config) for _ in range(config.n_layers)).eval()

    def through(attend: Callable[..., Any]) -> Callable[[], None]:
        def step() -> None:
            h = x
            with torch.inference_mode():
                for layer in layers:
                    h = layer(h, attend)

        return step

    naive_us = _median_us(through(_relative_attention_of_2019))
    fused_us = _median_us(through(fused_attention))
    return {
        "window": n_rows,
        "graph_us": graph_us,
        "naive_us": naive_us,
        "fused_us": fused_us,
        "note": (
            f"Attention over {n_rows:,} rows (D 128, L 4): a step with memory takes {graph_us / 1e3:.2f} ms. A model "
            f"that keeps nothing and reads its window again takes {naive_us / 1e6:.2f} s in eager torch as written in "
            f"2019 (scores of all pairs, shifted), {naive_us / graph_us:,.0f} times as long, and {fused_us / 1e6:.3f} "
            f"s with a fused attention kernel, {fused_us / graph_us:,.0f} times. (The paper's table says 1,874.)"
        ),
    }


ABOUT: dict[str, Any] = {
    "model_type": "forecaster",
    "model_digest": "0" * 64,
    "freq": "1h",
    "time": {"kind": "integer", "zone": None, "step_ns": None, "step": 1},
    "channels": [{"name": "y", "unit": None}],
    "trained": 1,
}


def _floor_us(config: Any) -> float:
    visits, width = config.mem_len, config.d_model
    floats = _layer_weights(config) + config.n_layers * width * (2 * visits + visits + 1)
    return float(4 * floats / _BYTES_PER_US)


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


def in_place(path: Path, contract: Mapping[str, Any], *, n_lanes: int = 1) -> Callable[[], None]:
    """Bind all tensors once, rings to their own buffers; the small states are copied back after each call."""
    session = _session(path)
    binding = session.io_binding()
    feed: dict[str, Any] = {"x": np.zeros((n_lanes, 1, 1), np.float32)}
    feed["start"] = np.zeros((n_lanes, 1), np.int32)
    feed |= {s["in"]: np.zeros((n_lanes, *s["dims"]), s["dtype"]) for s in contract["states"]}
    given: dict[str, Any] = {"y": np.zeros([n_lanes, 1, *contract["outputs"][0]["dims"][2:]], np.float32)}
    small = []
    for state in contract["states"]:
        given[state["out"]] = feed[state["in"]]
        if state["in"] not in contract["in_place"]:
            given[state["out"]] = feed[state["in"]].copy()
            small.append((state["in"], state["out"]))
    for bind, arrays in ((binding.bind_input, feed), (binding.bind_output, given)):
        for name, array in arrays.items():
            bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def step() -> None:
        session.run_with_iobinding(binding)
        for before, after in small:  # by name: what is bound must live as long as the binding
            feed[before][...] = given[after]

    return step


def _hidden_step(path: Path, config: Any) -> Callable[[], None]:
    """Step the same layers with a memory of hidden rows, as Transformer-XL's code keeps it."""
    import torch

    n_rows, width = config.mem_len, config.d_model
    layers = torch.nn.ModuleList(window_layer(config) for _ in range(config.n_layers)).eval()

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Any, mem: Any) -> tuple[Any, Any]:
            kept = []
            for i, layer in enumerate(self.layers):
                rows = torch.cat([mem[:, i], x], dim=1)
                kept.append(rows[:, 1:])
                x = layer(rows, last_row_attention, last_only=True)
            return x, torch.stack(kept, dim=1)

    example = (torch.randn(1, 1, width), torch.randn(1, config.n_layers, n_rows, width))
    return exported_step(path, Hidden().eval(), example, n_states=1)


def _window_step(path: Path, config: Any, *, n_rows: int) -> Callable[[], None]:
    """Run a Transformer of the same layers over a whole window, for the forecast of its last row."""
    import torch

    layers = torch.nn.ModuleList(window_layer(config) for _ in range(config.n_layers)).eval()

    class Window(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x, all_pairs_attention)
            return x[:, -1]

    return exported_step(path, Window().eval(), (torch.randn(1, n_rows, config.d_model),), n_states=0)


def exported_step(path: Path, module: Any, example: tuple[Any, ...], *, n_states: int) -> Callable[[], None]:
    """Export a module for the lanes of its example; its last ``n_states`` inputs are fed what its last outputs were."""
    from txl_ts.export.onnx import traced

    path.write_bytes(traced(module, example).SerializeToString())
    session = _session(path)
    names = [entry.name for entry in session.get_inputs()]
    feed = {name: tensor.numpy() for name, tensor in zip(names, example, strict=True)}

    def step() -> None:
        out = session.run(None, feed)
        feed.update(zip(names[len(names) - n_states :], out[len(out) - n_states :], strict=True))

    return step


def window_layer(config: Any) -> Any:
    """Make a pre-norm layer of the model's sizes, whose attention is handed in."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width, self.n_heads = config.d_model, config.n_heads
            self.norm_attention, self.norm_forward = nn.LayerNorm(width), nn.LayerNorm(width)
            self.project, self.output = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.forward_in, self.forward_out = nn.Linear(width, config.d_ff), nn.Linear(config.d_ff, width)

        def forward(self, x: torch.Tensor, attend: Callable[..., Any], *, last_only: bool = False) -> torch.Tensor:
            query, key, value = (
                part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
                for part in self.project(self.norm_attention(x)).chunk(3, dim=-1)
            )
            x = x[:, -1:] if last_only else x
            x = x + self.output(attend(query, key, value).transpose(1, 2).flatten(2))
            return x + self.forward_out(F.gelu(self.forward_in(self.norm_forward(x))))

    return Layer()


def all_pairs_attention(query: Any, key: Any, value: Any) -> Any:
    """Attend from every row to every row of (B, H, rows, K)."""
    return (query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])).softmax(-1) @ value


def last_row_attention(query: Any, key: Any, value: Any) -> Any:
    """Attend from the newest row alone."""
    return all_pairs_attention(query[:, :, -1:], key, value)


def fused_attention(query: Any, key: Any, value: Any) -> Any:
    """Attend from every row to itself and the rows before, by torch's kernel."""
    from torch.nn import functional as F

    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def _relative_attention_of_2019(query: Any, key: Any, value: Any) -> Any:
    """Score all pairs by content and by shifted position, mask, and sum; the position keys stand in as the keys."""
    import torch

    n_rows, scale = query.shape[2], 1 / math.sqrt(query.shape[-1])
    content = query @ key.transpose(-1, -2)
    position = query @ key.flip(2).transpose(-1, -2)
    padded = torch.cat([position.new_zeros(*position.shape[:-1], 1), position], dim=-1)
    shifted = padded.view(*position.shape[:2], n_rows + 1, n_rows)[:, :, 1:].reshape(position.shape)
    later = torch.ones(n_rows, n_rows, dtype=torch.bool).triu(1)
    score = ((content + shifted) * scale).masked_fill(later, -torch.inf)
    return score.softmax(-1) @ value


def _gru_step(path: Path, n_weights: int) -> Callable[[], None]:
    """One layer whose recurrent and input weights are as many as those of the model's layers."""
    import torch

    width = int((n_weights / 6) ** 0.5)
    cell = torch.nn.GRU(width, width, batch_first=True).eval()
    return exported_step(path, cell, (torch.zeros(1, 1, width), torch.zeros(1, 1, width)), n_states=1)


def _session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])


def _median_us(step: Callable[[], None]) -> float:
    """Time some hundred calls, or a few where one takes long."""
    start = time.perf_counter()
    step()
    is_slow = time.perf_counter() - start > _SLOW_S
    for _ in range(0 if is_slow else _WARM_UP):
        step()
    seconds = []
    for _ in range(3 if is_slow else _CALLS):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return 1e6 * statistics.median(seconds)
