"""The graph of a detector: forecasts, scores and p-values, by a calibration that is inside."""

from __future__ import annotations

import base64
import copy
from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from txl_ts.detector_model import DetectorModel, unpacked
from txl_ts.errors import ExportError
from txl_ts.export.graph import StreamGraph
from txl_ts.export.onnx import (
    LONGEST_SEGMENT,
    PROFILES,
    TOLERANCE,
    Profile,
    check_graph,
    contract_of,
    gap_of,
    opened,
    put_graphs,
    traced,
)
from txl_ts.model import is_memory
from txl_ts.runtime.contract import SAID
from txl_ts.state import graph_names, to_arrays


def detector_contract(model: DetectorModel, *, about: Mapping[str, Any], profile: str = "opset18") -> dict[str, Any]:
    """Write down what a graph of this detector promises.

    Parameters
    ----------
    model : DetectorModel
    about : mapping
        What only the estimator knows: ``model_digest``, ``channels``, ``trained``, ``step_ns``, ``alpha``,
        ``calibration`` (the arguments of :class:`~txl_ts.calibration.Calibration`) and ``scores`` (of the held-out
        rows, by series).
    profile : {"opset18", "opset23"}
    """
    time = {"kind": "datetime", "zone": None, "step_ns": None, "step": None}
    base = contract_of(
        model.core, about={"model_type": "detector", "freq": "row", "time": time, **about}, profile=profile
    )
    specs, n = model.state_specs(), model.n_channels
    past, present = (graph_names((spec.name for spec in specs), prefix=prefix) for prefix in ("past", "present"))
    x, start = base["inputs"]
    horizon, levels = model.config.h, len(model.config.quantiles)
    rows = ["batch", "time"]
    dims = {"y": [*rows, horizon, n, levels], "score": rows, "parts": [*rows, n], "p_value": rows}
    scores = about["scores"]
    return base | {
        "inputs": [
            x | {"dims": [*rows, n], "channels": list(about["channels"])},
            start,
            {"name": "status", "dtype": "int32", "dims": [*rows, n]},
        ],
        "outputs": [{"name": name, "dtype": "float32", "dims": dims[name]} for name in SAID],
        "states": [
            {"in": before, "out": after, "dtype": spec.dtype, "dims": list(spec.shape), "init": "zeros"}
            for before, after, spec in zip(past, present, specs, strict=True)
        ],
        "segment": base["segment"] | ({"max": 1} if one_row(model) else {}),
        "in_place": []
        if model.independent
        else [name for name, spec in zip(past, specs, strict=True) if is_memory(spec.name)],
        "state_nbytes": model.state_nbytes(),
        "warm_rows": model.warm_rows,
        "detector": {
            "channels": "independent" if model.independent else "mixed",
            "score": model.surprise.to_json(),
            "step_ns": about["step_ns"],
            "alpha": about["alpha"],
            "calibration": dict(about["calibration"]),
            "scores": {
                "by_series": [len(part) for part in scores],
                "float32": base64.b64encode(np.concatenate(scores).astype("<f4").tobytes()).decode("ascii"),
            },
        },
    }


class DetectorGraph(nn.Module):
    """``(x, start, status, past…) → (y, score, parts, p_value, present…)`` of a detector.

    Parameters
    ----------
    model : DetectorModel
    fixed : bool
        Take one row of one lane per call.
    """

    def __init__(self, model: DetectorModel, *, fixed: bool = False) -> None:
        super().__init__()
        self.fixed = fixed
        # The ring of one row is written first only where one row is one lane of the model.
        self.stream = StreamGraph(model.core, fixed=fixed and not model.independent)
        self.judge = copy.deepcopy(model).eval()
        self.judge.core = self.stream.model  # type: ignore[assignment]
        self.names = [spec.name for spec in model.state_specs()]
        self.n_core = len(self.stream.names)

    def forward(self, x: Tensor, start: Tensor, status: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        """Score and forecast; a reading whose ``status`` is not 0 is not used. See ``docs/anomalies.md``."""
        judge, n_lanes = self.judge, x.shape[0]
        x = torch.where(status == 0, x, torch.full_like(x, torch.nan))
        state = dict(zip(self.names[: self.n_core], past, strict=False))
        if judge.independent:
            lanes, state, begin = judge.as_lanes(x, state, start)
            y, *present = self.stream(lanes, begin, *state.values())
            y, moved = judge.from_lanes(y, dict(zip(self.stream.names, present, strict=True)), n_lanes)
            present = list(moved.values())
        else:
            y, *present = self.stream(x, start, *state.values())
        more = dict(zip(self.names[self.n_core :], past[self.n_core :], strict=True))
        judged, after = judge.judge(x, y, more, start)
        return y, judged.score, judged.parts, judged.p_value, *present, *(after[name] for name in more)


def export_detector(
    model: DetectorModel, path: str | PathLike[str], *, about: Mapping[str, Any], profile: str = "opset18"
) -> dict[str, Any]:
    """Export a detector, and check what was written against it.

    Parameters
    ----------
    model : DetectorModel
        With its calibration.
    path : path
        Ends with ``.onnx``; the contract and the graph of one row go beside it.
    about : mapping
        See :func:`detector_contract`.
    profile : {"opset18", "opset23"}

    Returns
    -------
    dict
        The contract.

    Raises
    ------
    ParameterError, MissingExtraError, ExportError, SaveError
        As :func:`~txl_ts.export.onnx.export_onnx`; nothing is written then.
    """
    onnx, path = opened(path, profile=profile)

    def made(fixed: dict[str, int]) -> tuple[Any, dict[str, Any]]:
        graph = DetectorGraph(model, fixed=bool(fixed))
        proto = _exported(graph, _examples(model, fixed=bool(fixed)), PROFILES[profile])
        contract = detector_contract(model, about=about, profile=profile) | ({"fixed": fixed} if fixed else {})
        check_graph(onnx, proto, fixed=fixed)
        contract["parity"] = _parity(proto, model, fixed=fixed)
        return proto, contract

    return put_graphs(path, made)


def _examples(model: DetectorModel, *, fixed: bool) -> tuple[Tensor, ...]:
    """Distinct random tensors for every input: one tensor given twice becomes one input of the graph, silently."""
    generator = torch.Generator().manual_seed(0)
    n_lanes, n_rows = 1 if fixed else 3, 1 if fixed or one_row(model) else 6
    state = model.init_state(n_lanes)
    for i, (name, tensor) in enumerate(state.items()):
        if tensor.dtype == torch.int32:
            state[name] = torch.arange(1, tensor.numel() + 1, dtype=torch.int32).reshape(tensor.shape) + i
        else:
            state[name] = torch.rand(tensor.shape, generator=generator) + 0.1
    x = torch.randn(n_lanes, n_rows, model.n_channels, generator=generator)
    status = torch.zeros(n_lanes, n_rows, model.n_channels, dtype=torch.int32)
    return x, torch.zeros(n_lanes, 1, dtype=torch.int32), status, *state.values()


def one_row(model: DetectorModel) -> bool:
    """Whether a call takes one row: a level that may hold still is a loop over rows, and graphs have none."""
    return model.surprise.kind == "level"


def _exported(graph: DetectorGraph, examples: tuple[Tensor, ...], profile: Profile) -> Any:
    past = graph_names(graph.names)
    lanes = {0: "batch"}
    lanes_and_rows = lanes if one_row(graph.judge) else {0: "batch", 1: "time"}
    free: dict[str, Any] = {
        "x": lanes_and_rows,
        "start": lanes,
        "status": lanes_and_rows,
        "past": tuple(lanes for _ in past),
    }
    return traced(
        graph,
        examples,
        profile=profile,
        dynamic_shapes=None if graph.fixed else free,
        input_names=["x", "start", "status", *past],
        output_names=[*SAID, *graph_names(graph.names, prefix="present")],
    )


def _parity(proto: Any, model: DetectorModel, *, fixed: Mapping[str, int]) -> dict[str, Any]:
    """Chain calls through torch and the graph, with gaps, bad readings and a restart."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    n_lanes, n_rows, n = fixed.get("batch", 5), 0, model.n_channels
    warm = min(model.warm_rows + 40, LONGEST_SEGMENT)
    lengths = [1] * (warm + 60) if fixed or one_row(model) else [1, 2, warm, 64, 300, 1, 5]
    state = model.init_state(n_lanes)
    arrays = to_arrays({name: t.numpy() for name, t in state.items()})
    gaps = dict.fromkeys(("y", "score", "parts", *arrays), (0.0, 0.0))
    # In the model's own unit: noise of the size that its scores know.
    scale = np.maximum(model.scale.numpy(), 1e-3)
    for call, length in enumerate(lengths):
        x = (rng.normal(size=(n_lanes, length, n)) * scale).cumsum(1).astype(np.float32)
        x[rng.random(x.shape) < 0.1] = np.nan
        status = (rng.random(x.shape) < 0.1).astype(np.int32)
        start = np.array([[call == len(lengths) // 3 and lane == n_lanes // 3] for lane in range(n_lanes)], np.int32)
        used = torch.from_numpy(np.where(status == 0, x, np.float32(np.nan)))
        with torch.inference_mode():
            answer, state = model(used, state, torch.from_numpy(start))
        y, score, parts, p_value = unpacked(answer.numpy())
        found = session.run(None, {"x": x, "start": start, "status": status, **arrays})
        arrays = dict(zip(arrays, found[len(SAID) :], strict=True))
        wanted = (y, score, parts, *(t.numpy() for t in state.values()))
        for name, a, b in zip(gaps, wanted, (*found[:3], *found[len(SAID) :]), strict=True):
            gap, size = gap_of(a, b)
            gaps[name] = max(gaps[name][0], gap), max(gaps[name][1], size)
        _check_p_values(p_value, found[3], n=model.n_table)
        n_rows += length
    worst = max(gap / max(size, 1e-30) for gap, size in gaps.values())
    if not worst <= TOLERANCE:
        raise ExportError(f"the graph and the model differ by {worst:.1e} of the largest value. Report this.")
    return {"max_relative": worst, "rows": n_rows, "lanes": n_lanes, "states": ["empty"]}


def _check_p_values(wanted: NDArray[np.float32], found: NDArray[np.float32], *, n: int) -> None:
    """A score that differs in its last digit may pass one score of the table, or a few that are equal."""
    if not np.array_equal(np.isnan(wanted), np.isnan(found)):
        raise ExportError("the graph and the model give p-values at different places. Report this.")
    gap = float(np.nan_to_num(np.abs(wanted - found)).max(initial=0))
    if gap > 1e-4 + 3 / (n + 1):
        raise ExportError(f"the p-values of the graph and the model differ by {gap:.1e}. Report this.")
