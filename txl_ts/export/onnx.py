"""Write the graph: export, contract, lint. By default the file runs wherever ONNX Runtime 1.16 or newer does.

There are two graphs: ``<name>.onnx`` takes any number of lanes and rows, ``<name>.step.onnx`` one row of one lane in
two thirds of the time, with the same states. The contract is one JSON document, inside each file
(``metadata_props["txl_ts.contract"]``) and beside them (``<name>.contract.json``), since browsers cannot read metadata.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txl_ts import __version__
from txl_ts.embeddings import beside_of, row_inputs
from txl_ts.errors import ExportError, FileFormatError, MissingExtraError, ParameterError, SaveError
from txl_ts.export.graph import StreamGraph
from txl_ts.export.precision import LARGEST_ERROR, lowered, needed_onnxruntime, version_of
from txl_ts.model import TXLModel, is_memory
from txl_ts.runtime.contract import CONTRACT_KEY
from txl_ts.runtime.opening import STEP_SUFFIX
from txl_ts.state import graph_names, state_nbytes, to_arrays
from txl_ts.store.atomic import replacing

# Of graphs that every reader of 1.x knows, and of those with columns beside the target or a lane for each target.
SCHEMA, SCHEMA_BESIDE = "1.0.0", "1.1.0"


class Profile(NamedTuple):
    """Version of ONNX's operators and of its file format, and the oldest ONNX Runtime that reads both."""

    opset: int
    ir: int
    onnxruntime: str


PROFILES = {"opset18": Profile(18, 8, "1.16"), "opset23": Profile(23, 11, "1.23")}
# A call's rows are one triangular matrix product in the graph; more rows are split by the session.
LONGEST_SEGMENT = 512
# Rows × steps ahead of a call, where columns are known ahead.
_MOST_STEPS = 50_000
# Largest error over largest size between torch and the graph.
TOLERANCE = 1e-5
_CONTROL_FLOW = {"If", "Loop", "Scan"}


def export_onnx(
    model: TXLModel,
    path: str | PathLike[str],
    *,
    about: Mapping[str, Any],
    precision: str = "float32",
    profile: str = "opset18",
    rows: NDArray[Any] | None = None,
    max_error: float | None = LARGEST_ERROR,
) -> dict[str, Any]:
    """Export a model and check what was written against it.

    Parameters
    ----------
    model : TXLModel
    path : path
        Ends with ``.onnx``; the contract and the graph of one row go beside it.
    about : mapping
        What only the estimator knows: ``model_type``, ``model_digest``, ``freq``, ``time``, ``channels`` and
        ``trained`` (rows of a training segment); where there are columns beside the target ``columns``, their
        descriptions by input, and where each target is a lane of its own ``targets``.
    precision : {"float32", "float16", "int8-weights", "int8-dynamic"}
        Of the weights of the layers, see :mod:`txl_ts.export.precision`.
    profile : {"opset18", "opset23"}
        Version of ONNX's operators.
    rows, max_error
        What the error of a precision is measured on, and how large it may be; see
        :func:`~txl_ts.export.precision.lowered`.

    Returns
    -------
    dict
        The contract.

    Raises
    ------
    ParameterError, ShapeError
        If an argument cannot work.
    MissingExtraError
        Without onnx, onnxscript or onnxruntime.
    ExportError
        If the graph is not what the contract says, its numbers are not the model's, or those of the precision are
        further from them than ``max_error``. Nothing is written then.
    SaveError
        If a file cannot be written.
    """
    onnx, path = opened(path, profile=profile, precision=precision)
    model = model.in_float32()
    linear_path = model.linear_path.weight.detach().numpy()

    def made(fixed: dict[str, int]) -> tuple[Any, dict[str, Any]]:
        graph = StreamGraph(model, fixed=bool(fixed))
        proto = _exported(graph, _examples(model, fixed=bool(fixed)), PROFILES[profile])
        contract = contract_of(model, about=about, profile=profile) | ({"fixed": fixed} if fixed else {})
        check_graph(onnx, proto, fixed=fixed)
        contract["parity"] = _parity(proto, model, fixed=fixed)
        if precision == "float32":
            return proto, contract
        return lowered(proto, contract, precision, linear_path=linear_path, rows=rows, max_error=max_error)

    return put_graphs(path, made)


def put_graphs(path: Path, made: Callable[[dict[str, int]], tuple[Any, dict[str, Any]]]) -> dict[str, Any]:
    """Make the dynamic graph and that of one row, then write both with their contracts; gives the first contract.

    Parameters
    ----------
    path : Path
    made : callable
        Gives a checked graph and its contract, for sizes that are fixed: none, or batch and time 1.
    """
    data, contracts = {}, []
    for suffix, fixed in ((".onnx", {}), (STEP_SUFFIX, {"batch": 1, "time": 1})):
        proto, contract = made(fixed)
        entry = proto.metadata_props.add()
        entry.key, entry.value = CONTRACT_KEY, json.dumps(contract, allow_nan=False)
        data[path.with_suffix(suffix)] = proto.SerializeToString()
        contracts.append(contract)
    data[path.with_suffix(".contract.json")] = json.dumps(contracts[0], indent=1, allow_nan=False).encode()
    for each, content in data.items():
        put_file(each, content)
    return contracts[0]


def opened(path: str | PathLike[str], *, profile: str, precision: str = "float32") -> tuple[Any, Path]:
    """See that all is there for an export; give the onnx package, and where to write; raises as :func:`export_onnx`."""
    if profile not in PROFILES:
        raise ParameterError(f"profile={profile!r}, expected one of {list(PROFILES)}.")
    onnx = _onnx(needed_onnxruntime(precision, PROFILES[profile].onnxruntime))
    path = Path(path)
    if not path.parent.is_dir():
        raise SaveError(f"there is no folder {str(path.parent)!r} to write {path.name!r} into. Make it first.")
    return onnx, path


def load_proto(path: str | PathLike[str]) -> Any:
    """Read an ONNX file.

    Raises
    ------
    FileFormatError
        If it is none.
    """
    onnx = _onnx()
    from google.protobuf.message import DecodeError

    try:
        return onnx.load(os.fspath(path))
    except DecodeError as error:
        raise FileFormatError(f"{os.fspath(path)!r} is no ONNX graph ({error}).") from error


def _onnx(runtime: str = "0") -> Any:
    """Import onnx, and see that the packages are there with which a graph is made and run before it is trusted."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 - torch's exporter needs it
    except ImportError as error:
        raise MissingExtraError(
            f'{error.name} is needed to export. Install it with `pip install "txl-ts[export,ort]"`.'
        ) from error
    if version_of(onnxruntime.__version__) < version_of(runtime):
        raise ExportError(
            f"this graph needs onnxruntime {runtime}, {onnxruntime.__version__} is installed. Upgrade it, or take "
            "precision='float32' and profile='opset18'."
        )
    return onnx


def _examples(model: TXLModel, *, fixed: bool) -> tuple[Tensor, ...]:
    """Distinct random tensors for every input: one tensor given twice becomes one input of the graph, silently."""
    generator = torch.Generator().manual_seed(0)
    n_lanes, n_rows = (1, 1) if fixed else (3, 6)
    specs = {spec.name for spec in model.stream_specs()}
    state = {name: t for name, t in model.init_state(n_lanes).items() if name in specs}
    noise = {name: torch.rand(t.shape, generator=generator) + 0.1 for name, t in state.items()}
    counts = torch.arange(n_lanes, dtype=torch.int32)[:, None].repeat(1, 2)
    noise |= {name: counts + i for i, (name, t) in enumerate(state.items()) if t.dtype == torch.int32}
    x = torch.randn(n_lanes, n_rows, model.config.n_channels, generator=generator)
    sizes: Any = {"batch": n_lanes, "time": n_rows}
    beside = [
        torch.rand([sizes.get(size, size) for size in shape], generator=generator)
        for shape in row_inputs(model.config).values()
    ]
    return x, torch.zeros(n_lanes, 1, dtype=torch.int32), *beside, *noise.values()


def _exported(graph: StreamGraph, examples: tuple[Tensor, ...], profile: Profile) -> Any:
    past = graph_names(graph.names)
    lanes, lanes_and_rows = {0: "batch"}, {0: "batch", 1: "time"}
    beside = {name: lanes if name == "static" else lanes_and_rows for name in graph.beside}
    return traced(
        graph,
        examples,
        profile=profile,
        dynamic_shapes=None
        if graph.fixed
        else {"x": lanes_and_rows, "start": lanes, "rest": (*beside.values(), *(lanes for _ in past))},
        input_names=["x", "start", *beside, *past],
        output_names=["y", *graph_names(graph.names, prefix="present")],
    )


def traced(
    module: torch.nn.Module, examples: tuple[Tensor, ...], *, profile: Profile = PROFILES["opset18"], **options: Any
) -> Any:
    """Run torch's exporter in a profile of our graphs, without what it prints and notes.

    Parameters
    ----------
    module : Module
    examples : tuple of Tensor
    profile : Profile
    **options
        Of ``torch.onnx.export``: names, dynamic shapes.

    Returns
    -------
    onnx.ModelProto
    """
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the exporter logs its progress
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own deprecations
            program: Any = torch.onnx.export(
                module, examples, dynamo=True, opset_version=profile.opset, verbose=False, **options
            )
    finally:
        logging.disable(level)
    proto = program.model_proto
    proto.ir_version = profile.ir
    # The exporter notes where in whose sources each node was made: most of the file, and nobody's business.
    for holder in (proto, proto.graph, *proto.graph.node, *proto.graph.value_info):
        del holder.metadata_props[:]
        if hasattr(holder, "doc_string"):
            holder.ClearField("doc_string")
    return proto


def contract_of(model: TXLModel, *, about: Mapping[str, Any], profile: str = "opset18") -> dict[str, Any]:
    """Write down what a graph of this model promises; ``about`` as in :func:`export_onnx`."""
    config = model.config
    shape = ["batch", "time", config.h, config.n_channels, len(config.quantiles)]
    specs = model.stream_specs()
    past, present = (graph_names((spec.name for spec in specs), prefix=prefix) for prefix in ("past", "present"))
    return {
        "schema": SCHEMA_BESIDE if "columns" in about or "targets" in about else SCHEMA,
        "model_type": about["model_type"],
        "library": __version__,
        "model_digest": about["model_digest"],
        "inputs": [
            {
                "name": "x",
                "dtype": "float32",
                "dims": ["batch", "time", config.n_channels],
                "channels": list(about["channels"]),
            },
            {"name": "start", "dtype": "int32", "dims": ["batch", 1]},
            *(
                {"name": name, "dtype": "float32", "dims": list(dims)}
                | ({} if name == "futr_ahead" else {"columns": about["columns"][name]})
                for name, dims in row_inputs(config).items()
            ),
        ],
        "outputs": [{"name": "y", "dtype": "float32", "dims": shape}],
        "states": [
            {"in": before, "out": after, "dtype": spec.dtype, "dims": list(spec.shape), "init": "zeros"}
            for before, after, spec in zip(past, present, specs, strict=True)
        ],
        # The runtime writes the slot that the counter names: it is one and the same for layers of one length only.
        "in_place": [
            name
            for name, spec in zip(past, specs, strict=True)
            if is_memory(spec.name) and isinstance(config.mem_len, int)
        ],
        "state_nbytes": state_nbytes(specs),
        "freq": about["freq"],
        "time": dict(about["time"]),
        "segment": {"min": 1, "max": longest_segment(model), "trained": about["trained"]},
        "memory": {
            "layers": config.n_layers,
            "length": config.longest_mem_len,
            "stride": config.stride,
            "dim": config.d_model,
            "reach": config.reach,
        },
        "lookback": config.lookback,
        "horizon": config.h,
        "quantiles": list(config.quantiles),
        "scaler": config.scaler,
        "missing": "NaN",
        "calendar": [
            column["name"] for column in about.get("columns", {}).get("futr", ()) if column["kind"] == "calendar"
        ],
        "precision": "float32",
        "opset": PROFILES[profile].opset,
        "ir": PROFILES[profile].ir,
        "domains": [],
        "min_onnxruntime": PROFILES[profile].onnxruntime,
        "lane_independent": True,
    } | ({"channels": "independent", "targets": list(about["targets"])} if "targets" in about else {})


def longest_segment(model: TXLModel) -> int:
    """Rows of a call: far memories move on once per call, and rows known ahead become dozens of numbers per step."""
    far, config = model.backbone.far, model.config
    longest = far.block if far is not None and far.has_state else LONGEST_SEGMENT
    return min(longest, max(1, _MOST_STEPS // config.h)) if config.futr_kinds else longest


def check_graph(onnx: Any, proto: Any, *, fixed: Mapping[str, int]) -> None:
    """Refuse a graph that breaks the contract."""
    onnx.checker.check_model(proto, full_check=True)
    ops = {node.op_type for node in proto.graph.node}
    if found := ops & _CONTROL_FLOW:
        raise ExportError(f"the graph holds control flow ({sorted(found)}). Report this: no model of ours should.")
    used = {name for node in proto.graph.node for name in node.input}
    if unused := [entry.name for entry in proto.graph.input if entry.name not in used]:
        raise ExportError(f"the graph does not use its inputs {unused}: it would forget. Report this.")
    for entry in proto.graph.input:
        lanes = entry.type.tensor_type.shape.dim[0]
        found, wanted = lanes.dim_param or lanes.dim_value, fixed.get("batch", "batch")
        if found != wanted:
            raise ExportError(f"input {entry.name!r} is for {found} lanes, expected {wanted}. Report this.")
    past = [entry.name for entry in proto.graph.input if entry.name.startswith("past.")]
    present = [entry.name for entry in proto.graph.output if entry.name.startswith("present.")]
    if sorted(name.replace("past", "present", 1) for name in past) != sorted(present):
        raise ExportError(f"the graph's states do not pair: {past} and {present}. Report this.")


def _parity(proto: Any, model: TXLModel, *, fixed: Mapping[str, int]) -> dict[str, Any]:
    """Chain calls through torch and the graph, with gaps and a restart: from empty states and others.

    Two states that were swapped, or one that stands for another, look alike while all of them are empty.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    # Not the number of lanes that was exported with; more rows than a ring has slots, where that takes a moment.
    n_lanes, worst, n_rows = fixed.get("batch", 5), 0.0, 0
    longest = longest_segment(model)
    lengths = [1] * 256 if fixed else [min(length, longest) for length in (1, 2, 7, 64, 300, 1, 5)]
    if model.backbone.far is not None and model.backbone.far.has_state and not fixed:
        lengths = lengths * 5
    kept = [spec.name for spec in model.stream_specs()]
    starts = {"empty": model.init_state(n_lanes), "drawn": _drawn_state(model, rng, n_lanes)}
    for state in starts.values():
        arrays = to_arrays({name: state[name].numpy() for name in kept})
        static = _drawn_beside(rng, model, n_lanes, 1).get("static")
        # Over all calls: one row may forecast nearly nothing, from levels that are not.
        gaps = dict.fromkeys(("y", *arrays), (0.0, 0.0))
        for call, length in enumerate(lengths):
            x = _drawn_rows(rng, n_lanes, length, model.config.n_channels)
            start = np.array(
                [[call == len(lengths) // 2 and lane == n_lanes // 3] for lane in range(n_lanes)], np.int32
            )
            beside = _drawn_beside(rng, model, n_lanes, length) | ({} if static is None else {"static": static})
            y, state = _called(model, x, state, start, beside)
            got, *present = session.run(None, {"x": x, "start": start, **beside, **arrays})
            arrays = dict(zip(arrays, present, strict=True))
            after = (state[name] for name in kept)
            for name, wanted, found in zip(gaps, (y, *after), (got, *present), strict=True):
                gap, size = gap_of(wanted.numpy(), found)
                gaps[name] = max(gaps[name][0], gap), max(gaps[name][1], size)
            n_rows += length
        worst = max(worst, *(gap / max(size, 1e-30) for gap, size in gaps.values()))
    if not worst <= TOLERANCE:
        raise ExportError(f"the graph and the model differ by {worst:.1e} of the largest value. Report this.")
    return {"max_relative": worst, "rows": n_rows, "lanes": n_lanes, "states": list(starts)}


def _called(
    model: TXLModel,
    x: NDArray[Any],
    state: Mapping[str, Tensor],
    start: NDArray[Any],
    beside: Mapping[str, NDArray[Any]],
) -> tuple[Tensor, dict[str, Tensor]]:
    rows = torch.from_numpy(x)
    with torch.inference_mode():
        given = beside_of({name: torch.from_numpy(array) for name, array in beside.items()}, rows)
        return model(rows, dict(state), torch.from_numpy(start), beside=given)


def _drawn_beside(rng: np.random.Generator, model: TXLModel, n_lanes: int, n_rows: int) -> dict[str, NDArray[Any]]:
    """Draw the columns beside the target: amounts and codes, a tenth missing, and some codes that there are not."""
    config = model.config
    sizes: Any = {"batch": n_lanes, "time": n_rows}
    kinds = {"hist": config.hist_kinds, "futr": config.futr_kinds, "static": config.static_kinds}
    drawn = {}
    for name, shape in row_inputs(config).items():
        columns = rng.normal(size=[sizes.get(size, size) for size in shape]).astype(np.float32)
        for i, kind in enumerate(kinds["futr" if name == "futr_ahead" else name]):
            if kind > 0:
                columns[..., i] = rng.integers(-1, kind + 2, columns.shape[:-1])
        columns[rng.random(columns.shape) < 0.1] = np.nan
        drawn[name] = columns
    return drawn


def _drawn_rows(rng: np.random.Generator, n_lanes: int, n_rows: int, n_channels: int) -> np.ndarray[Any, Any]:
    """Draw random walks, a tenth missing."""
    x = rng.normal(size=(n_lanes, n_rows, n_channels)).cumsum(1).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    return x


def _drawn_state(model: TXLModel, rng: np.random.Generator, n_lanes: int) -> dict[str, Tensor]:
    """Draw a state that no two lanes share, whatever its layout: rows are walked, then all memory is noise.

    The ages lie where counters saturate and wrap: with the next row, with this one, a turn of the ring later, in
    between, and hardly begun.
    """
    turn = model.config.stride * (model.config.longest_mem_len + 1)
    ages = np.resize([turn - 1, turn, 2 * turn - 1, turn + turn // 2, 3], n_lanes)
    state, edges = model.init_state(n_lanes), [0, *sorted({int(age) for age in ages})]
    for younger, older in zip(edges[-2::-1], edges[:0:-1], strict=True):  # lanes begin at their ages, oldest first
        x = torch.from_numpy(_drawn_rows(rng, n_lanes, older - younger, model.config.n_channels))
        start = torch.from_numpy((ages[:, None] == older).astype(np.int32))
        beside = {n: torch.from_numpy(a) for n, a in _drawn_beside(rng, model, n_lanes, older - younger).items()}
        with torch.inference_mode():
            _, state = model(x, state, start, last_only=True, beside=beside_of(beside, x))
    noise = {name: rng.normal(size=t.shape).astype(np.float32) for name, t in state.items() if is_memory(name)}
    return state | {name: torch.from_numpy(array) for name, array in noise.items()}


def gap_of(wanted: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Give the largest difference and the largest size; infinite apart where NaN is not at the same places."""
    if not np.array_equal(np.isnan(wanted), np.isnan(found)):
        return float("inf"), 1.0
    wanted, found = np.nan_to_num(wanted.astype(np.float64)), np.nan_to_num(found.astype(np.float64))
    return float(np.abs(wanted - found).max()), float(np.abs(wanted).max())


def put_file(path: Path, data: bytes) -> None:
    """Write a file whole, or raise SaveError."""
    try:
        with replacing(os.fspath(path)) as file:
            file.write(data)
    except OSError as error:
        raise SaveError(
            f"could not write {str(path)!r}: {error}. Make room or another folder, and export again."
        ) from error
