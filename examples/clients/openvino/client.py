"""Step an exported model with OpenVINO, which keeps the memories inside.

    python client.py demand.onnx calls.json > forecasts.json

calls.json: [{"start": [1, 1], "x": [[[3.1]], [[null]]]}, …], one entry per call; x is lanes × rows × channels in raw
units, null is a missing value; start is 1 for a lane that begins (anew), else 0, and may be left out. Each further
calls.json is a stream of its own, and one line of JSON is printed per stream.
"""

import json
import sys
from pathlib import Path

import numpy as np
import openvino
from openvino.passes import MakeStateful, Manager


def read_contract(model):
    """Give the contract beside a graph, if this program can read it."""
    contract = json.loads(model.with_suffix(".contract.json").read_text(encoding="utf-8"))
    if contract["schema"].split(".")[0] != "1":
        sys.exit(f"{model}: contract schema {contract['schema']} found, 1.x expected. Use a newer client.")
    return contract


def plain(array):
    """JSON has no word for NaN: null."""
    return {"dims": array.shape, "data": [float(v) if np.isfinite(v) else None for v in array.ravel()]}


def open_request(path, contract):
    """Compile the graph with its memories inside, in float32 on one thread."""
    core = openvino.Core()
    graph = core.read_model(path)
    pairs = {state["in"]: state["out"] for state in contract["states"]}
    passes = Manager()
    passes.register_pass(MakeStateful(pairs))
    passes.run_passes(graph)
    # Without the hint newer processors compute in bfloat16, and the error grows through the memory.
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
    return core.compile_model(graph, "CPU", settings).create_infer_request()


def begin(request, contract, n_lanes):
    """Give every lane the state of one that begins."""
    states = {state["in"]: state for state in contract["states"]}
    for memory in request.query_state():
        state = next(state for name, state in states.items() if memory.name.startswith(name))
        memory.state = openvino.Tensor(np.zeros((n_lanes, *state["dims"]), state["dtype"]))


def run_stream(request, contract, calls):
    """Walk one stream; give forecasts and the last state."""
    forecasts = []
    for i, call in enumerate(calls):
        x = np.array(call["x"], np.float32)  # None becomes NaN
        start = np.array(call.get("start", [0] * len(x)), np.int32)[:, None]
        if i == 0:
            begin(request, contract, len(x))
        forecasts.append(plain(request.infer({"x": x, "start": start})["y"]))
    found = {memory.name: memory.state.data for memory in request.query_state()}
    names = [state["in"] for state in contract["states"]]
    state = {name: plain(next(array for key, array in found.items() if key.startswith(name))) for name in names}
    return {"forecasts": forecasts, "state": state if calls else {}}


def main(model, *streams):
    """Step every stream through one request."""
    contract = read_contract(Path(model))
    request = open_request(model, contract)
    for stream in streams:
        printed = run_stream(request, contract, json.loads(Path(stream).read_text(encoding="utf-8")))
        print(json.dumps({"quantiles": contract["quantiles"], **printed}, allow_nan=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
