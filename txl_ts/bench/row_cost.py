"""What one more row costs: carried memory beside a window that is computed again, and beside an LSTM.

In torch and as graphs, one thread, one stream and many; CPU time, so that a shared machine does not count as work.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from txl_ts.bench import report
from txl_ts.bench.memory import one_thread
from txl_ts.bench.memory_rivals import Recurrent, Windowed, count, of_equal_weights
from txl_ts.bench.step import (
    ABOUT,
    all_pairs_attention,
    exported_step,
    fused_attention,
    in_place,
    last_row_attention,
    window_layer,
)
from txl_ts.config import ModelConfig
from txl_ts.export import STEP_SUFFIX, export_onnx
from txl_ts.label_model import LabelConfig, LabelModel
from txl_ts.model import TXLModel

Step = Callable[[], None]

MEM_LENS = (16, 64, 256)
LANES = (1, 64)
SIZES: Mapping[str, Any] = MappingProxyType(
    {"d_model": 64, "n_layers": 2, "n_heads": 4, "d_ff": 128, "patch_len": 1, "lookback": 0, "half_life": 168.0}
)
COLUMNS = MappingProxyType(
    {
        "mem_len": "M, rows",
        "n_lanes": "lanes",
        "txl_us": "torch: TXL, memory carried",
        "same_us": "window, same layers",
        "same_change": "TXL beside it, %",
        "plain_us": "window, plain layers, fused attention",
        "plain_change": "TXL beside it, %",
        "lstm_us": "LSTM",
        "txl_graph_us": "graph: TXL",
        "txl_step_us": "TXL, graph of one row",
        "plain_graph_us": "window, plain layers",
        "graph_change": "TXL beside it, %",
        "lstm_graph_us": "LSTM",
        "n_parameters": "weights of TXL",
        "n_lstm": "weights of the LSTM",
    }
)
_TURNS, _TURN_S = 15, 0.02


def run(
    data: str | PathLike[str] | None = None,
    *,
    seeds: Sequence[int] = (0,),
    mem_lens: Sequence[int] = MEM_LENS,
    lanes: Sequence[int] = LANES,
    sizes: Mapping[str, Any] = SIZES,
    turn_s: float = _TURN_S,
    variants: Sequence[Any] | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Measure all models at each length of memory and number of lanes; needs no data.

    Parameters
    ----------
    data
        Not used.
    seeds : sequence of int
        The first draws the weights.
    mem_lens : sequence of int
        Rows of memory per layer, and rows of the window.
    lanes : sequence of int
    sizes : mapping
        Of the layers, fields of :class:`~txl_ts.config.ModelConfig`.
    turn_s : float
        CPU seconds of one turn of one model.
    variants
        Not used.
    command : str, optional
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`.
    """
    del data, variants
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds[0])
        rows = [row for mem_len in mem_lens for row in _measured(mem_len, lanes, sizes, turn_s)]
    return {
        "name": "row_cost",
        "title": "One more row: carried memory, a window computed again, an LSTM",
        "command": command or "txl-ts bench row-cost",
        "protocol": [
            f"CPU microseconds per row and lane, one row per call, one thread; models take turns, medians of {_TURNS} "
            f"turns of at least {turn_s:g} CPU s after a warm-up (5 turns of one call where one takes longer). "
            f"{sizes['n_layers']} layers of width {sizes['d_model']}; one channel, one answer. M: rows that a layer of "
            "TXL remembers, and rows of the window, the newest among them: the window sees M rows, TXL reaches "
            f"{sizes['n_layers']} · M.",
            "*Same layers*: our layers over the window, from an empty memory, as the memory bench judges its window "
            "Transformer. *Plain layers*: the same sizes without relative positions, the last layer for the newest "
            "row alone, and torch's fused attention: what a window costs at its best. Graphs run in ONNX Runtime; "
            "that of TXL is the whole forecaster (one step ahead) with its normaliser, its rings written in place. "
            "*Graph of one row*: the one for a single stream. The LSTM has two layers and as many weights as TXL.",
            "Beside it, %: CPU time of TXL less that of the window, over that of the window; of a single stream the "
            "graph of one row counts. Below 0 TXL is cheaper.",
        ],
        "columns": dict(COLUMNS),
        "rows": rows,
        "notes": _verdicts(rows),
        "seeds": list(seeds[:1]),
        "environment": report.environment(),
    }


class Plain(nn.Module):
    """A window Transformer of plain layers: (B, rows, 1) → an answer at the newest row, (B, 1, 1).

    Parameters
    ----------
    config : ModelConfig
    attend, attend_last : callable
        Attention of all rows, and that of the newest row alone for the last layer.
    """

    def __init__(self, config: Any, attend: Callable[..., Any], attend_last: Callable[..., Any]) -> None:
        super().__init__()
        self.attend, self.attend_last = attend, attend_last
        self.embed, self.answer = nn.Linear(1, config.d_model), nn.Linear(config.d_model, 1)
        self.layers = nn.ModuleList(window_layer(config) for _ in range(config.n_layers))

    def forward(self, x: Tensor) -> Tensor:
        """Answer at the newest row."""
        *layers, last = self.layers
        x = self.embed(x)
        for layer in layers:
            x = layer(x, self.attend)
        return self.answer(last(x, self.attend_last, last_only=True))


class _LstmStep(nn.Module):
    """An LSTM as a graph takes it: (x, hidden, cell) → (answer, hidden, cell)."""

    def __init__(self, model: Recurrent) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, (hidden, cell) = self.model.core(x, (hidden, cell))
        return self.model.out(y), hidden, cell


def _measured(mem_len: int, lanes: Sequence[int], sizes: Mapping[str, Any], turn_s: float) -> list[dict[str, Any]]:
    ours = LabelModel(LabelConfig(**sizes, mem_len=mem_len, scaler="standard", head="values")).eval()
    forecaster = TXLModel(ModelConfig(**sizes, mem_len=mem_len, stride=1, h=1, quantiles=(0.5,))).eval()
    lstm: Any = of_equal_weights(lambda n: Recurrent("lstm", n_channels=1, n_outputs=1, width=n), count(ours)).eval()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "txl.onnx"
        contract = export_onnx(forecaster, path, about=ABOUT)
        for n in lanes:
            steps = _in_torch(ours, lstm, mem_len, n_lanes=n) | _as_graphs(folder, forecaster, lstm, mem_len, n_lanes=n)
            steps["txl_graph_us"] = in_place(path, contract, n_lanes=n)
            if n == 1:
                steps["txl_step_us"] = in_place(path.with_suffix(STEP_SUFFIX), contract)
            found = {key: value / n for key, value in cpu_us(steps, turn_s=turn_s).items()}
            found["same_change"] = _change(found["txl_us"], found["same_us"])
            found["plain_change"] = _change(found["txl_us"], found["plain_us"])
            graph_us = found.get("txl_step_us", found["txl_graph_us"])
            found["graph_change"] = _change(graph_us, found["plain_graph_us"])
            sizes_of = {"n_parameters": count(ours), "n_lstm": count(lstm)}
            rows.append({"mem_len": mem_len, "n_lanes": n} | found | sizes_of)
    return rows


def _in_torch(ours: LabelModel, lstm: Recurrent, mem_len: int, *, n_lanes: int) -> dict[str, Step]:
    x = torch.randn(n_lanes, 1, 1)
    window = torch.randn(n_lanes, mem_len, 1)
    plain = Plain(ours.config, fused_attention, last_row_attention).eval()
    same = Windowed(ours, window=mem_len).eval()
    before = {"rows": window[:, 1:]}
    return {
        "txl_us": _carrying(lambda state: ours(x, state)[1], ours.init_state(n_lanes)),
        "same_us": _carrying(lambda state: same.forward_rows(x, state)[1], before),
        "plain_us": _carrying(lambda _: plain(window), None),
        "lstm_us": _carrying(lambda state: lstm.forward_rows(x, state)[1], lstm.init_rows(n_lanes)),
    }


def _as_graphs(folder: Path, forecaster: TXLModel, lstm: Recurrent, mem_len: int, *, n_lanes: int) -> dict[str, Step]:
    plain = Plain(forecaster.config, all_pairs_attention, last_row_attention).eval()
    window = torch.randn(n_lanes, mem_len, 1)
    state = [torch.randn(lstm.n_layers, n_lanes, lstm.width) for _ in range(2)]
    example = (torch.randn(n_lanes, 1, 1), *state)
    return {
        "plain_graph_us": exported_step(folder / f"window_{n_lanes}.onnx", plain, (window,), n_states=0),
        "lstm_graph_us": exported_step(folder / f"lstm_{n_lanes}.onnx", _LstmStep(lstm).eval(), example, n_states=2),
    }


def _carrying(move: Callable[[Any], Any], state: Any) -> Step:
    """Make a call that hands on its state."""

    def step() -> None:
        nonlocal state
        with torch.inference_mode():
            state = move(state)

    return step


def cpu_us(steps: Mapping[str, Step], *, turn_s: float) -> dict[str, float]:
    """Give CPU microseconds of one call of each, which take turns: medians over the turns.

    Parameters
    ----------
    steps : mapping of str to callable
    turn_s : float
        CPU seconds that a turn takes at least, unless one call does.
    """
    n_calls = {}
    for name, step in steps.items():
        step()
        begin, n = time.process_time(), 0
        while not n or time.process_time() - begin < turn_s:
            step()
            n += 1
        n_calls[name] = n
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(_TURNS):
        for name, step in steps.items():
            n = n_calls[name]
            if n == 1 and turn >= _TURNS // 3:
                continue
            begin = time.process_time()
            for _ in range(n):
                step()
            taken[name].append((time.process_time() - begin) / n)
    return {name: 1e6 * statistics.median(seconds) for name, seconds in taken.items()}


def _change(ours: float, theirs: float) -> float:
    return 100 * (ours / theirs - 1)


def _verdicts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say what was to be shown: the article that started the project has 40 % less than a window Transformer."""
    kinds = {
        "same_change": "Torch, beside our own layers over the window",
        "plain_change": "Torch, beside plain layers with fused attention",
        "graph_change": "Graphs, beside plain layers over the window",
    }
    notes = []
    for n in dict.fromkeys(row["n_lanes"] for row in rows):
        at = [row for row in rows if row["n_lanes"] == n]
        lanes = "one lane" if n == 1 else f"{n} lanes"
        for key, words in kinds.items():
            changes = ", ".join(f"{row[key]:+.0f} % at M {row['mem_len']}" for row in at).replace("-", "−")
            notes.append(f"{words}, {lanes}: {changes} (the article's figure is −40 %).")
        times = ", ".join(f"{row['txl_us'] / row['lstm_us']:.0f}" for row in at)
        graphs = ", ".join(f"{row.get('txl_step_us', row['txl_graph_us']) / row['lstm_graph_us']:.1f}" for row in at)
        notes.append(
            f"An LSTM of equal weights, {lanes}: TXL takes {times} times as long in torch, {graphs} as graphs."
        )
    return notes
