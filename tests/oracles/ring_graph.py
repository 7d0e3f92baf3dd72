"""A graph small enough to be followed by hand, which keeps the contract and writes its ring in place; and its oracle.

Each row goes into a ring of ``stride · (mem_len + 1)`` slots, four numbers wide. The forecast is the sum of the rows
that are a whole number of strides old, with the row before this one for a small tensor.
"""

import json

import numpy as np
import onnx
from onnx import parser

STRIDE, MEM_LEN, SLOTS, H, LEVELS = 2, 2, 6, 2, (0.1, 0.5, 0.9)

_TEXT = """
<ir_version: 8, opset_import: ["" : 18]>
toy (
  float[batch, time, 1] x, int32[batch, 1] start, int32[batch, 2] past_count, float[batch, 6, 4] past_mem,
  float[batch, 1] past_last
) => (
  float[batch, time, 2, 1, 3] y, int32[batch, 2] present_count, float[batch, 6, 4] present_mem,
  float[batch, 1] present_last
) <
  float[1, 4] width = {1, 2, 3, 4}, float[3] levels = {-1, 0, 1}, float zero = {0}, float half = {0.5},
  int32 i_zero = {0}, int32 i_one = {1}, int32 i_two = {2}, int32 i_four = {4}, int32 i_six = {6},
  int32[1, 6] slots = {0, 1, 2, 3, 4, 5}, int64 l_zero = {0}, int64 l_one = {1},
  int64[1] axis_one = {1}, int64[1] axis_two = {2}, int64[2] both = {1, 2}, int64[3] all = {1, 2, 3},
  int64[2] late = {3, 4},  int64[5] out = {1, 1, 2, 1, 3},
  int64[1] first = {0}, int64[1] second = {1}, int64[1] third = {2}
> {
  fresh = Greater (start, i_zero)
  count = Where (fresh, i_zero, past_count)
  last = Where (fresh, zero, past_last)
  row = Squeeze (x, axis_one)
  missing = IsNaN (row)
  value = Where (missing, last, row)
  present_last = Identity (value)
  wide = Mul (value, width)
  carried = Mul (last, half)
  rows = Add (wide, carried)
  valid = Slice (count, first, second, axis_one)
  phase = Slice (count, second, third, axis_one)
  shape = Shape (count)
  n = Gather (shape, l_zero)
  lanes = Range (l_zero, n, l_one)
  lane = Unsqueeze (lanes, axis_one)
  slot = Cast <to: int = 7> (phase)
  index = Concat <axis: int = 1> (lane, slot)
  present_mem = ScatterND (past_mem, index, rows)
  back = Sub (phase, slots)
  age = Mod (back, i_six)
  young = LessOrEqual (age, valid)
  near = LessOrEqual (age, i_four)
  odd = Mod (age, i_two)
  even = Equal (odd, i_zero)
  seen1 = And (young, near)
  seen2 = And (seen1, even)
  seen = Unsqueeze (seen2, axis_two)
  shown = Where (seen, present_mem, zero)
  sum = ReduceSum <keepdims: int = 0> (shown, both)
  READ
  sum1 = Unsqueeze (told, axis_one)
  sum2 = Add (sum1, levels)
  sum3 = Unsqueeze (sum2, all)
  one_row = Expand (sum3, out)
  gone = IsNaN (x)
  gone1 = Cast <to: int = 1> (gone)
  gone2 = Mul (gone1, zero)
  nothing = Unsqueeze (gone2, late)
  y = Add (one_row, nothing)
  more = Add (valid, i_one)
  valid1 = Min (more, i_six)
  next = Add (phase, i_one)
  phase1 = Mod (next, i_six)
  present_count = Concat <axis: int = 1> (valid1, phase1)
}
"""
# The hazard: the old ring is read after the new one was written.
_AFTER = """nought = Mul (sum, zero)
  nought1 = Unsqueeze (nought, both)
  old = Add (past_mem, nought1)
  olds = ReduceSum <keepdims: int = 0> (old, both)
  told = Add (sum, olds)"""
_NAMES = {
    f"{when}_{name}": f"{when}.{i:02d}.{name}"
    for when in ("past", "present")
    for i, name in enumerate(("count", "mem", "last"))
}


def ring_graph(*, in_place=True, reads_old=False, **changes):
    """Give the bytes of the graph; ``changes`` go into its contract."""
    text = _TEXT.replace("READ", _AFTER if reads_old else "told = Identity (sum)")
    proto = parser.parse_model(text)
    for node in proto.graph.node:
        for side in (node.input, node.output):
            side[:] = [_NAMES.get(name, name) for name in side]
    for entry in (*proto.graph.input, *proto.graph.output):
        entry.name = _NAMES.get(entry.name, entry.name)
    onnx.checker.check_model(proto, full_check=True)
    contract = {
        "schema": "1.0.0",
        "model_digest": "ab" * 32,
        "inputs": [
            {"name": "x", "dims": ["batch", "time", 1], "channels": [{"name": "y"}]},
            {"name": "start", "dims": ["batch", 1]},
        ],
        "outputs": [{"name": "y"}],
        "states": [
            {"in": f"past.{i:02d}.{n}", "out": f"present.{i:02d}.{n}", "dtype": d, "dims": s, "init": "zeros"}
            for i, (n, d, s) in enumerate(
                (("count", "int32", [2]), ("mem", "float32", [6, 4]), ("last", "float32", [1]))
            )
        ],
        "freq": "1",
        "time": {"kind": "integer", "step": 1},
        "segment": {"min": 1, "max": 1},
        "memory": {"layers": 1, "length": MEM_LEN, "stride": STRIDE, "dim": 4, "reach": 4},
        "horizon": H,
        "quantiles": list(LEVELS),
        "lane_independent": True,
    }
    if in_place:
        contract["in_place"] = ["past.01.mem"]
    entry = proto.metadata_props.add()
    entry.key, entry.value = "txl_ts.contract", json.dumps(contract | changes)
    return proto.SerializeToString()


def ring_forecasts(values):
    """Give the medians of one stream, from all its rows at once."""
    values, last, rows, out = np.asarray(values, np.float64), 0.0, [], []
    for value in values:
        value = last if np.isnan(value) else value
        rows.append(value * np.arange(1, 5) + 0.5 * last)
        last = value
        out.append(sum(rows[t].sum() for t in range(len(rows) - 1, max(-1, len(rows) - 6), -2)))
    return np.array(out)
