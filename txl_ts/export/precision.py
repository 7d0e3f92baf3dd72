"""Fewer bits for the weights of the layers, with the error that they cost measured before the graph is kept.

What is lowered is the graph that was exported and checked in float32, and of it only the matrices that layers multiply
rows by. The state stays float32 in every precision, so that a state file of the model fits all of its graphs, and since
the normaliser's moments are sums over thousands of rows: rounded to float16 after each row they put forecasts up to
.019 deviations off (`benchmarks/results/precision.md`), and a level of 101,325 is no float16 at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import ExportError, ParameterError, ShapeError
from txl_ts.runtime.contract import read_contract
from txl_ts.runtime.layout import Layout

# Largest difference between a forecast and that of the float32 graph, in standard deviations of the target.
LARGEST_ERROR = 0.05
_BLOCK = 32  # weights that share a scale in MatMulNBits
_LARGEST_FLOAT16 = 65504.0
_PRODUCTS = ("MatMul", "Gemm")
_N_LANES, _N_ROWS = 4, 320
_MOST_SINGLE_ROWS = 512  # of a lane, where each row is a call of its own

Array = NDArray[Any]


@dataclass(frozen=True)
class Precision:
    """One way to keep the weights of the layers.

    Attributes
    ----------
    lower : callable
        ``lower(onnx, name, weight, x=…, y=…)`` gives the nodes and initializers of ``y = x @ weight``.
    keeps_linear_path : bool
        True if the linear path stays float32: it was fitted in closed form, and sums a look-back of hundreds of rows.
    is_lane_independent : bool
        False if the scale of a call's numbers is shared by all its lanes and rows. Then a call has one row of one lane.
    onnxruntime : str
        The oldest version that runs it.
    domains : tuple of str
        Operator sets beside ONNX's own.
    """

    lower: Callable[..., tuple[list[Any], list[Any]]]
    keeps_linear_path: bool
    is_lane_independent: bool
    onnxruntime: str
    domains: tuple[str, ...] = ()


def lowered(
    proto: Any,
    contract: Mapping[str, Any],
    precision: str,
    *,
    linear_path: Array,
    rows: Array | None = None,
    max_error: float | None = LARGEST_ERROR,
) -> tuple[Any, dict[str, Any]]:
    """Give a graph with fewer bits, and its contract with the error that was measured.

    Parameters
    ----------
    proto : ModelProto
        The float32 graph; not changed.
    contract : mapping
        Of that graph; not changed.
    precision : {"float16", "int8-weights", "int8-dynamic"}
    linear_path : float32 array of shape (h, lookback)
        The weights of the linear path, which the 8-bit precisions leave as they are.
    rows : float32 array of shape (B, T, W), optional
        Raw rows to measure the error on, as streams bring them (channels, then columns beside them), NaN where missing;
        without them they are drawn.
    max_error : float or None
        Largest error that is kept, in standard deviations of the target; None keeps any.

    Raises
    ------
    ParameterError, ShapeError
        If an argument cannot work.
    ExportError
        If the error is larger, or a lane changes another one where it must not.
    """
    way = _ways(precision)
    layout = _layout(contract)
    rows = _checked_rows(rows, width=layout.width)
    low = _rewritten(proto, way, linear_path if way.keeps_linear_path else None)
    changes = {
        "precision": precision,
        "lane_independent": way.is_lane_independent,
        "min_onnxruntime": needed_onnxruntime(precision, contract["min_onnxruntime"]),
        "domains": list(way.domains),
    }
    if not way.is_lane_independent:
        changes["segment"] = {**contract["segment"], "max": 1}
    contract = {**contract, **changes}
    contract["precision_error"] = error = _measured(proto, low, contract, rows)
    if way.is_lane_independent and "fixed" not in contract:
        _refuse_mixed_lanes(low, contract)
    if max_error is not None and not error["max"] <= max_error:
        raise ExportError(
            f"precision={precision!r} moves a forecast by {error['max']:.2g} standard deviations of the target (root "
            f"mean square {error['rms']:.2g}), allowed are {max_error:g}. Nothing was written. Take another precision, "
            f"give rows of your own if the drawn ones are not like them, or lift the bound with max_error=None."
        )
    return low, contract


def needed_onnxruntime(precision: str, base: str) -> str:
    """Give the oldest version of ONNX Runtime that runs a precision; ``base`` is what the float32 graph needs.

    Raises
    ------
    ParameterError
        If there is no such precision.
    """
    return base if precision == "float32" else max(base, _ways(precision).onnxruntime, key=version_of)


def _ways(precision: str) -> Precision:
    if precision not in WAYS:
        raise ParameterError(f"precision={precision!r}, expected one of {['float32', *WAYS]}.")
    return WAYS[precision]


# -- rewriting --------------------------------------------------------------------------------------------------------


def _rewritten(proto: Any, way: Precision, kept: Array | None) -> Any:
    """Put every layer's product in another form; its weight goes, and what takes its place has its name in front."""
    import onnx

    low = onnx.ModelProto()
    low.CopyFrom(proto)
    weights = _layer_weights(low, kept)
    nodes: list[Any] = []
    for node in low.graph.node:
        weight = weights.get(node.input[1]) if node.op_type in _PRODUCTS else None
        if weight is None:
            nodes.append(node)
            continue
        bias = node.input[2] if len(node.input) > 2 else ""
        product = f"{weight.name}.product" if bias else node.output[0]
        made, initializers = way.lower(onnx, weight.name, weight.array, x=node.input[0], y=product)
        nodes += made
        if bias:
            nodes.append(onnx.helper.make_node("Add", [product, bias], [node.output[0]]))
        low.graph.initializer.extend(initializers)
    others = [entry for entry in low.graph.initializer if entry.name not in weights]
    _replace_all(low.graph.initializer, others)
    _replace_all(low.graph.node, nodes)
    for domain in way.domains:
        low.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    onnx.checker.check_model(low)
    return low


@dataclass(frozen=True)
class _Weight:
    """A matrix (n_in, n_out) that rows are multiplied by."""

    name: str
    array: Array


def _layer_weights(proto: Any, kept: Array | None) -> dict[str, _Weight]:
    """Find the float32 matrices that are read once, at the right of a product: they are those of the layers."""
    from onnx import TensorProto, numpy_helper

    readers: dict[str, list[Any]] = {}
    for node in proto.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found = {}
    for entry in proto.graph.initializer:
        if entry.data_type != TensorProto.FLOAT or len(entry.dims) != 2 or len(readers.get(entry.name, ())) != 1:
            continue
        (node,) = readers[entry.name]
        if node.op_type not in _PRODUCTS or node.input[1] != entry.name:
            continue
        given = {attribute.name: attribute.i or attribute.f for attribute in node.attribute}
        if given.get("transA", 0) or given.get("alpha", 1) != 1 or given.get("beta", 1) != 1:
            continue
        array = numpy_helper.to_array(entry)
        array = array.T if given.get("transB", 0) else array
        if kept is None or not _is_same(array, kept.T):
            found[entry.name] = _Weight(entry.name, np.ascontiguousarray(array))
    if not found:
        raise ExportError("the graph multiplies by no constant matrix: there is nothing to lower. Report this.")
    return found


def _is_same(a: Array, b: Array) -> bool:
    return a.shape == b.shape and bool(np.array_equal(a, b))


def _replace_all(field: Any, entries: Sequence[Any]) -> None:
    copies = []
    for entry in entries:
        copies.append(type(entry)())
        copies[-1].CopyFrom(entry)
    del field[:]
    field.extend(copies)


def _float16(onnx: Any, name: str, array: Array, *, x: str, y: str) -> tuple[list[Any], list[Any]]:
    """Keep the weight in float16; the product is one of float32, so that a call's split and company do not show."""
    if np.abs(array).max(initial=0) > _LARGEST_FLOAT16:
        raise ExportError(f"a weight of {np.abs(array).max():.3g} is beyond float16. Take precision='float32'.")
    cast = onnx.helper.make_node("Cast", [f"{name}.float16"], [f"{name}.float32"], to=onnx.TensorProto.FLOAT)
    product = onnx.helper.make_node("MatMul", [x, f"{name}.float32"], [y])
    return [cast, product], [onnx.numpy_helper.from_array(array.astype(np.float16), f"{name}.float16")]


def _int8_weights(onnx: Any, name: str, array: Array, *, x: str, y: str) -> tuple[list[Any], list[Any]]:
    """Keep the weight in 8 bits, a scale for each 32 rows of a column; rows are not rounded.

    ``accuracy_level`` 1 asks for a float32 product. Faster ones round the rows to 8 bits, too: then the last digit of a
    row, which the split into calls decides, may decide a whole step of 1/127.
    """
    n_in, n_out = array.shape
    n_blocks = -(-n_in // _BLOCK)
    padded = np.zeros((n_blocks * _BLOCK, n_out), np.float32)
    padded[:n_in] = array
    blocks = padded.T.reshape(n_out, n_blocks, _BLOCK)
    scale = _scales(blocks, axis=2)
    node = onnx.helper.make_node(
        "MatMulNBits",
        [x, f"{name}.int8", f"{name}.scale"],
        [y],
        domain="com.microsoft",
        K=n_in,
        N=n_out,
        bits=8,
        block_size=_BLOCK,
        accuracy_level=1,
    )
    return [node], [
        onnx.numpy_helper.from_array(_rounded(blocks, scale), f"{name}.int8"),
        onnx.numpy_helper.from_array(scale.reshape(-1), f"{name}.scale"),
    ]


def _int8_dynamic(onnx: Any, name: str, array: Array, *, x: str, y: str) -> tuple[list[Any], list[Any]]:
    """Multiply in integers: the weight has a scale per column, the rows of a call one that they give at run time."""
    scale = _scales(array, axis=0)
    make = onnx.helper.make_node
    nodes = [
        make("DynamicQuantizeLinear", [x], [f"{name}.x", f"{name}.x_scale", f"{name}.x_zero"]),
        make("MatMulInteger", [f"{name}.x", f"{name}.int8", f"{name}.x_zero", f"{name}.zero"], [f"{name}.sum"]),
        make("Cast", [f"{name}.sum"], [f"{name}.sum_float32"], to=onnx.TensorProto.FLOAT),
        make("Mul", [f"{name}.x_scale", f"{name}.scale"], [f"{name}.both_scales"]),
        make("Mul", [f"{name}.sum_float32", f"{name}.both_scales"], [y]),
    ]
    return nodes, [
        onnx.numpy_helper.from_array(_rounded(array, scale), f"{name}.int8"),
        onnx.numpy_helper.from_array(scale.reshape(-1), f"{name}.scale"),
        onnx.numpy_helper.from_array(np.array(128, np.uint8), f"{name}.zero"),
    ]


def _scales(array: Array, *, axis: int) -> Array:
    """Give the step (axis kept) with which the largest value along an axis is 127 steps."""
    largest = np.abs(array).max(axis=axis, keepdims=True)
    return np.where(largest > 0, largest / np.float32(127), np.float32(1)).astype(np.float32)


def _rounded(array: Array, scale: Array) -> Array:
    """Round to steps around 128: unsigned, since a product of signed bytes saturates on processors without VNNI."""
    rounded: Array = (np.round(array / scale) + 128).astype(np.uint8)
    return rounded


WAYS: dict[str, Precision] = {
    "float16": Precision(_float16, keeps_linear_path=False, is_lane_independent=True, onnxruntime="1.16"),
    "int8-weights": Precision(
        _int8_weights,
        keeps_linear_path=True,
        is_lane_independent=True,
        onnxruntime="1.23",  # 1.17 to 1.22 know the operator, but not with 8 bits and float32 products
        domains=("com.microsoft",),
    ),
    "int8-dynamic": Precision(_int8_dynamic, keeps_linear_path=True, is_lane_independent=False, onnxruntime="1.16"),
}

# -- measuring --------------------------------------------------------------------------------------------------------


def _measured(proto: Any, low: Any, contract: Mapping[str, Any], rows: Array | None) -> dict[str, Any]:
    """Walk the same rows through both graphs, each with its own state, and compare their forecasts."""
    is_drawn = rows is None
    layout = _layout(contract)
    x = _drawn_rows(layout) if rows is None else rows
    if _longest(contract) == 1:
        x = x[:_N_LANES, -_MOST_SINGLE_ROWS:]
    size = _deviations(x[..., : layout.n_channels])[:, None, None, :, None]
    wanted, found = (_walked(_session(graph), x, contract) for graph in (proto, low))
    if not np.array_equal(np.isnan(wanted), np.isnan(found)):
        raise ExportError(f"precision={contract['precision']!r} gives forecasts that are not numbers. Take another.")
    apart = np.abs(found - wanted) / np.where(size > 0, size, np.nan)
    error = apart[np.isfinite(apart)]
    if not error.size:
        raise ParameterError("rows hold no two different values of a series: no error can be measured on them.")
    return {
        "max": float(error.max()),
        "rms": float(np.sqrt(np.mean(np.square(error, dtype=np.float64)))),
        "unit": "standard deviations of the target",
        "rows": int(x.shape[1]),
        "lanes": int(x.shape[0]),
        "on": "drawn rows" if is_drawn else "given rows",
    }


def _layout(contract: Mapping[str, Any]) -> Layout:
    return read_contract(json.dumps(contract), where="the contract").layout


def _checked_rows(rows: Array | None, *, width: int) -> Array | None:
    if rows is None:
        return None
    rows = np.asarray(rows, np.float32)
    if rows.ndim != 3 or rows.shape[2] != width or not rows.size:
        raise ShapeError(f"rows must have shape (series, rows, {width}), got {rows.shape}.")
    return rows


def _deviations(x: Array) -> Array:
    """Give the standard deviation of each lane's channels, (B, C); 0 where there are no two different values."""
    x = np.where(np.isfinite(x), x, np.nan).astype(np.float64)
    n = np.isfinite(x).sum(axis=1)
    mean = np.nansum(x, axis=1) / np.maximum(n, 1)
    return np.sqrt(np.nansum((x - mean[:, None]) ** 2, axis=1) / np.maximum(n, 1))


def _drawn_rows(layout: Layout) -> Array:
    """Draw lanes at far levels: a season, a walk and noise; a twentieth missing. Columns beside them are noise."""
    n_channels = layout.n_channels
    rng = np.random.default_rng(0)
    shape = (_N_LANES, _N_ROWS, n_channels)
    season = np.sin(2 * np.pi * (np.arange(_N_ROWS) / 24)[:, None] + rng.uniform(0, 6, (_N_LANES, 1, n_channels)))
    x = 20 * rng.normal(size=(_N_LANES, 1, n_channels)) + 3 * season
    x = x + 0.2 * rng.normal(size=shape).cumsum(axis=1) + 0.5 * rng.normal(size=shape)
    x[rng.random(shape) < 0.05] = np.nan
    if not layout.is_plain:
        beside = np.round(rng.normal(size=(*shape[:2], layout.width - n_channels)), 1)
        beside[..., ::2] = np.round(np.abs(beside[..., ::2]))  # codes, where there are any
        x = np.concatenate([x, beside], axis=2)
    return x.astype(np.float32)


def _session(proto: Any) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ExportError(
            f"ONNX Runtime {onnxruntime.__version__} cannot run the graph: {error}. Upgrade onnxruntime, or take "
            "another precision or profile."
        ) from error


def _walked(session: Any, x: Array, contract: Mapping[str, Any]) -> Array:
    """Give forecasts (B, T, h, C, Q) from empty states, in calls that the contract allows."""
    if not contract["lane_independent"] or "fixed" in contract:
        return np.concatenate([_chained(session, x[i : i + 1], contract) for i in range(len(x))])
    return _chained(session, x, contract)


def _longest(contract: Mapping[str, Any]) -> int:
    """Rows that a call of the graph may have: one in the graph of one row, and where rows share a scale."""
    return int(contract.get("fixed", {}).get("time", contract["segment"]["max"]))


def _chained(session: Any, x: Array, contract: Mapping[str, Any]) -> Array:
    states, length, layout = contract["states"], min(64, _longest(contract)), _layout(contract)
    past = {state["in"]: np.zeros((len(x), *state["dims"]), state["dtype"]) for state in states}
    names, found = ["y", *(state["out"] for state in states)], []
    start = np.zeros((len(x), 1), np.int32)
    for row in range(0, x.shape[1], length):
        feed = layout.feed(x[:, row : row + length])
        y, *present = session.run(names, feed | {"start": start, **past})
        past = dict(zip(past, present, strict=True))
        found.append(y)
    return np.concatenate(found, axis=1)


def _refuse_mixed_lanes(proto: Any, contract: Mapping[str, Any]) -> None:
    """Raise unless a lane that goes wild leaves the others bit for bit."""
    session, calm = _session(proto), _drawn_rows(_layout(contract))[:, :96]
    wild = calm.copy()
    wild[1, 32:] = 1e30
    others = [lane for lane in range(len(calm)) if lane != 1]
    wanted, found = (_chained(session, x, contract)[others] for x in (calm, wild))
    if not np.array_equal(wanted, found, equal_nan=True):
        raise ExportError(f"precision={contract['precision']!r}: a lane changed another one. Report this.")


def version_of(text: str) -> tuple[int, ...]:
    """Give the numbers at the head of a version, ``(1, 23)`` of ``"1.23.2"``."""
    return tuple(int(part) for part in text.split(".")[:2])
