"""What fewer bits cost: the errors of each precision on a fitted model, beside what is not offered, and why."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.bench import ett, report

COLUMNS = {
    "precision": "precision",
    "kib": "file, KiB",
    "max": "largest error",
    "rms": "root mean square",
    "growth": "growth",
    "us": "one row, CPU µs",
}
H = 24
_N_ROWS, _N_TURNS = 1000, 10
_CALLS = 300
_SHOWN = "8 bits, linear path too"
_ROUNDED = "float32, normaliser's state in float16"

Array = NDArray[Any]


def run(data: str | PathLike[str], *, seeds: tuple[int, ...] = (0,), command: str | None = None) -> dict[str, Any]:
    """Fit, export, lower and measure.

    Parameters
    ----------
    data : path
        Folder that holds ``ett/ETTh1.csv``.
    seeds : tuple of int
        The first is used.
    command : str, optional
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`.
    """
    from txl_ts.estimators.forecaster import TXLForecaster

    frame = ett.long_frame(ett.load(data, name="ETTh1"))
    fitted = frame[frame.groupby("unique_id").cumcount() < ett.N_FITTED]
    model = TXLForecaster(h=H, freq="1h", max_epochs=1, random_state=seeds[0]).fit(fitted, val_size=ett.N_VALIDATION)
    rows = list(_rows(model, frame))
    plain, fused = _attention_us(n_keys=5), _attention_us(n_keys=43)
    return {
        "name": "precision",
        "title": "Fewer bits",
        "command": command or "txl-ts bench precision --data DIR",
        "protocol": [
            f"ETTh1, default forecaster at h {H}, one epoch, fitted on {ett.N_FITTED:,} rows. Errors: "
            "forecasts beside those of the float32 graph, all steps and quantiles, in standard deviations of each "
            "series, over the newest rows (2,048 at most) of all 7 series; "
            "where a row is a call of its own, over 512 rows of 4 series.",
            f"Growth: {_N_ROWS:,} rows of one series, {_N_TURNS} times after each other; root mean square of the last "
            "turn over that of the second. CPU time: one row of one stream, one thread, median of "
            f"{_CALLS} calls.",
        ],
        "columns": COLUMNS,
        "rows": rows,
        "notes": [
            f"The rows {_SHOWN!r} and {_ROUNDED!r} are not offered: they show what is left alone, and why.",
            "ONNX's operator Attention (opset 23) instead of plain products, 64 rows, 4 heads of width 16, additive "
            f"mask: {plain[1]:.0f} instead of {plain[0]:.0f} µs with 5 keys, {fused[1]:.0f} instead of {fused[0]:.0f} "
            "with 43.",
        ],
        "environment": report.environment(),
    }


def _rows(model: Any, df: Any) -> Iterator[dict[str, Any]]:
    from txl_ts.export import load_proto
    from txl_ts.export.precision import WAYS, lowered

    with tempfile.TemporaryDirectory() as folder:
        # Exported once: the other precisions are made of the float32 graph.
        contract = model.export_onnx(Path(folder, "model.onnx"))
        proto = load_proto(Path(folder, "model.onnx"))
    rows = _newest(model, df)
    turns = np.tile(_series(rows), (1, _N_TURNS, 1))
    wanted = _chained(_stepper(proto, contract), turns)
    yield {"precision": "float32", "kib": _kib(proto), "us": _row_us(_stepper(proto, contract))}
    linear_path = model._model.linear_path.weight.detach().numpy()
    ways = {way: (way, linear_path) for way in WAYS} | {_SHOWN: ("int8-weights", linear_path[:0])}
    for shown, (precision, kept) in ways.items():
        low, promised = lowered(proto, contract, precision, linear_path=kept, rows=rows, max_error=None)
        found = _chained(_stepper(low, contract), turns, length=min(50, promised["segment"]["max"]))
        yield {
            "precision": shown,
            "kib": _kib(low),
            "max": promised["precision_error"]["max"],
            "rms": promised["precision_error"]["rms"],
            "growth": _growth(found - wanted),
            "us": _row_us(_stepper(low, contract)),
        }
    found = _chained(_stepper(proto, contract, rounded="norm"), turns, length=1)
    error = np.abs(found - wanted) / np.nanstd(turns)
    yield {
        "precision": _ROUNDED,
        "kib": _kib(proto),
        "max": float(np.nanmax(error)),
        "rms": float(np.sqrt(np.nanmean(error**2))),
        "growth": _growth(found - wanted),
        "us": None,
    }


def _newest(model: Any, df: Any) -> Array:
    from txl_ts.estimators.files import newest_rows

    return newest_rows(model._read_more(df, continues=False), h=model.config_.h)


def _series(rows: Array) -> Array:
    """Give the newest rows of the first series, (1, T, C)."""
    return rows[:1, -_N_ROWS:]


def _growth(apart: Array) -> float:
    """Compare the last turn with the second: in the first, the memories fill."""
    n = apart.shape[1] // _N_TURNS
    second, last = apart[:, n : 2 * n], apart[:, -n:]
    return float(np.sqrt(np.nanmean(last**2) / np.nanmean(second**2)))


def _kib(proto: Any) -> float:
    return float(proto.ByteSize() / 1024)


def _stepper(proto: Any, contract: Mapping[str, Any], *, rounded: str = "") -> Callable[[Array], Array]:
    """Give a function that takes rows (1, T, C) in and carries the state; ``rounded`` names a part kept in float16."""
    session = _session(proto.SerializeToString())
    states = contract["states"]
    past = {state["in"]: np.zeros((1, *state["dims"]), state["dtype"]) for state in states}
    names, start = ["y", *(state["out"] for state in states)], np.zeros((1, 1), np.int32)

    def step(x: Array) -> Array:
        y, *present = session.run(names, {"x": x, "start": start, **past})
        for state, array in zip(states, present, strict=True):
            is_rounded = bool(rounded) and state["in"].endswith(rounded)
            past[state["in"]] = array.astype(np.float16).astype(np.float32) if is_rounded else array
        forecast: Array = y
        return forecast

    return step


def _session(data: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def _chained(step: Callable[[Array], Array], x: Array, *, length: int = 50) -> Array:
    parts = [step(x[:, row : row + length]).astype(np.float64) for row in range(0, x.shape[1], length)]
    return np.concatenate(parts, axis=1)


def _row_us(step: Callable[[Array], Array]) -> float:
    x = np.random.default_rng(0).normal(size=(_CALLS, 1, 1, 1)).astype(np.float32)
    return _median_us([partial(step, row) for row in x])


def _median_us(calls: list[Callable[[], Any]]) -> float:
    """Give the median of CPU times: a neighbour's work does not count."""
    times = []
    for call in calls:
        begin = time.thread_time_ns()
        call()
        times.append(time.thread_time_ns() - begin)
    return statistics.median(times) / 1e3


def _attention_us(*, n_keys: int) -> tuple[float, float]:
    """Time the attention of 64 rows, each with keys of its own: by plain products, and by ONNX's operator."""
    feed = attention_feed(n_keys=n_keys)
    sessions = [_session(attention_graph(feed, is_fused=is_fused)) for is_fused in (False, True)]
    plain, fused = (_median_us([partial(session.run, None, feed)] * _CALLS) for session in sessions)
    return plain, fused


def attention_feed(*, n_keys: int) -> dict[str, Array]:
    """Draw queries, keys, values, scores of positions, and which keys are visible (the last one always)."""
    rng = np.random.default_rng(0)
    sizes = {
        "q": (64, 4, 1, 16),
        "k": (64, 4, n_keys, 16),
        "v": (64, 4, n_keys, 16),
        "position": (64, 4, 1, n_keys),
    }
    feed: dict[str, Array] = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    return feed | {"visible": np.arange(n_keys) > rng.integers(-1, n_keys - 1, (64, 1, 1, 1))}


def attention_graph(feed: Mapping[str, Array], *, is_fused: bool) -> bytes:
    """Write the attention of a layer as plain products, or with the operator of opset 23."""
    from onnx import TensorProto, helper, numpy_helper

    node = helper.make_node
    nodes = [
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["content"]),
        node("Add", ["content", "position"], ["both"]),
        node("Where", ["visible", "both", "low"], ["score"]),
        node("Softmax", ["score"], ["soft"], axis=-1),
        node("Where", ["visible", "soft", "zero"], ["weight"]),
        node("MatMul", ["weight", "v"], ["out"]),
    ]
    if is_fused:
        nodes = [  # keys that are not finite would give NaN in spite of the mask
            node("Transpose", ["visible"], ["seen"], perm=[0, 1, 3, 2]),
            node("Where", ["seen", "k", "zero"], ["clean"]),
            node("Where", ["visible", "position", "never"], ["mask"]),
            node("Attention", ["q", "clean", "v", "mask"], ["out"], scale=1.0),
        ]
    graph = helper.make_graph(
        nodes,
        "attention",
        [
            helper.make_tensor_value_info(name, TensorProto.BOOL if name == "visible" else TensorProto.FLOAT, a.shape)
            for name, a in feed.items()
        ],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.array(value, np.float32), name)
            for name, value in {"zero": 0.0, "low": -1e30, "never": -np.inf}.items()
        ],
    )
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11
    ).SerializeToString()
    return made
