"""The graph of a detector: forecasts, scores and p-values, by a calibration that is inside."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from txl_ts.detector_model import DetectorModel
from txl_ts.export.onnx import contract_of
from txl_ts.model import is_memory
from txl_ts.runtime.contract import SAID
from txl_ts.state import graph_names


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
