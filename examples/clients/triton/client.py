"""Step the streams of a model that Triton serves: rows go out, forecasts come back, the server keeps the memories.

    python client.py 127.0.0.1:8001 demand calls.json > forecasts.json

calls.json: [{"start": [1, 1], "x": [[[3.1]], [[null]]]}, …], one entry per call; x is lanes × rows × channels in raw
units, null is a missing value; start is 1 for a lane that begins (anew), else 0, and may be left out. Every lane is a
sequence of its own to Triton. Each further calls.json is a stream of its own, and one line of JSON is printed per
stream.
"""

import json
import queue
import sys
from functools import partial
from pathlib import Path

import numpy as np
from tritonclient import grpc


def plain(array):
    """JSON has no word for NaN: null."""
    return {"dims": array.shape, "data": [float(v) if np.isfinite(v) else None for v in array.ravel()]}


def run_stream(client, model, calls, *, first_id):
    """Walk one stream: a request per lane and call, those of a call at the same time."""
    forecasts = []
    for i, call in enumerate(calls):
        x = np.array(call["x"], np.float32)  # None becomes NaN
        begins = [i == 0 or bool(flag) for flag in call.get("start", [0] * len(x))]
        answers = queue.Queue()
        for lane, begin in enumerate(begins):
            rows = grpc.InferInput("x", [1, *x.shape[1:]], "FP32")
            rows.set_data_from_numpy(x[lane : lane + 1])
            # `start` and the states are the server's business. It keeps a sequence until sequence_end, or its time-out.
            about = {"sequence_id": first_id + lane, "sequence_start": begin, "sequence_end": i == len(calls) - 1}
            client.async_infer(model, [rows], callback=partial(keep, answers, lane), **about)
        found = dict(answers.get(timeout=60) for _ in begins)
        if errors := [error for error in found.values() if isinstance(error, Exception)]:
            raise errors[0]
        forecasts.append(plain(np.concatenate([found[lane] for lane in range(len(x))])))
    return {"forecasts": forecasts}


def keep(answers, lane, result, error):
    """Take an answer over from the connection's thread."""
    answers.put((lane, result.as_numpy("y") if error is None else error))


def main(url, model, *streams):
    """Step every stream through one connection."""
    client = grpc.InferenceServerClient(url)
    for i, stream in enumerate(streams):
        calls = json.loads(Path(stream).read_text(encoding="utf-8"))
        print(json.dumps(run_stream(client, model, calls, first_id=1 + 1000 * i), allow_nan=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
