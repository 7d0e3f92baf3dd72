"""A stand-in for a model with named streams: the running mean of each channel, and one deviation to both sides.

It speaks the protocol of ``StreamSession`` and shares no code with it.
"""

import json
from types import SimpleNamespace

import numpy as np

LEVELS = (0.1, 0.5, 0.9)


class MeanSession:
    """Forecasts each channel by its mean so far; warm after five rows."""

    def __init__(self, columns, warm_rows=5):
        self.columns, self.warm_rows, self.lanes, self.n_calls = list(columns), warm_rows, {}, 0

    @property
    def streams(self):
        return tuple(self.lanes)

    def step(self, rows):
        self.n_calls += 1
        return {name: self._one(name, row) for name, row in rows.items()}

    def _one(self, name, row):
        lane = self.lanes.setdefault(name, {"n": 0, "time": None, "seen": {c: [0, 0.0, 0.0] for c in self.columns}})
        assert lane["time"] is None or row["time"] > lane["time"], "a model's rows are in order"
        assert list(row["values"]) == self.columns
        lane["time"], lane["n"] = row["time"], lane["n"] + 1
        quantiles = np.full((1, len(self.columns), 3), np.nan, np.float32)
        for c, column in enumerate(self.columns):
            seen, value = lane["seen"][column], row["values"][column]
            if value is not None:
                seen[0], seen[1], seen[2] = seen[0] + 1, seen[1] + value, seen[2] + value * value
            if seen[0]:
                mean = seen[1] / seen[0]
                spread = np.sqrt(max(seen[2] / seen[0] - mean * mean, 0.01))
                quantiles[0, c] = mean - spread, mean, mean + spread
        status = "ok" if lane["n"] >= self.warm_rows else "warming_up"
        if None in row["values"].values():
            status = "missing"
        one = len(self.columns) == 1
        return SimpleNamespace(quantiles=quantiles[:, 0] if one else quantiles, levels=LEVELS, status=status)

    def reset(self, name):
        del self.lanes[name]

    def copy(self, name, new):
        assert new not in self.lanes
        self.lanes[new] = json.loads(json.dumps(self.lanes[name]))

    def close(self, name):
        del self.lanes[name]

    def snapshot(self, path):
        with open(path, "w") as file:
            json.dump(self.lanes, file)

    def restore(self, path):
        with open(path) as file:
            self.lanes = json.load(file)

    def restore_from(self, other):
        self.lanes = json.loads(json.dumps(other.lanes))
