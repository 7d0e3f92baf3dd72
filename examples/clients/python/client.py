"""Step an exported model with onnxruntime and numpy alone, its memories fed back.

    python client.py demand.onnx calls.json > forecasts.json

calls.json: [{"start": [1, 1], "x": [[[3.1]], [[null]]]}, …], one entry per call; x is lanes × rows × channels in raw
units, null is a missing value; start is 1 for a lane that begins (anew), else 0, and may be left out. Each further
calls.json is a stream of its own, and one line of JSON is printed per stream.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime


def read_contract(model):
    """Give the contract beside a graph, if this program can read it."""
    contract = json.loads(model.with_suffix(".contract.json").read_text(encoding="utf-8"))
    if contract["schema"].split(".")[0] != "1":
        sys.exit(f"{model}: contract schema {contract['schema']} found, 1.x expected. Use a newer client.")
    return contract


def plain(array):
    """JSON has no word for NaN: null."""
    return {"dims": array.shape, "data": [float(v) if np.isfinite(v) else None for v in array.ravel()]}


def run_stream(session, contract, calls):
    """Walk one stream from the state of lanes that begin; give forecasts and the last state."""
    states = contract["states"]
    outputs = ["y", *(state["out"] for state in states)]
    past, forecasts = None, []
    for call in calls:
        x = np.array(call["x"], np.float32)  # None becomes NaN
        start = np.array(call.get("start", [0] * len(x)), np.int32)[:, None]
        if past is None:
            past = {state["in"]: np.zeros((len(x), *state["dims"]), state["dtype"]) for state in states}
        y, *present = session.run(outputs, {"x": x, "start": start, **past})
        past = dict(zip(past, present))  # noqa: B905 - the oldest Python that onnxruntime 1.16 knows has no strict
        forecasts.append(plain(y))
    return {"forecasts": forecasts, "state": {name: plain(array) for name, array in (past or {}).items()}}


def main(model, *streams):
    """Step every stream through one session."""
    contract = read_contract(Path(model))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # a small graph is slower on many
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    for stream in streams:
        printed = run_stream(session, contract, json.loads(Path(stream).read_text(encoding="utf-8")))
        print(json.dumps({"quantiles": contract["quantiles"], **printed}, allow_nan=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
