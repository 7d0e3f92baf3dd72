"""Far memories row by row, in plain numpy and float64: a list of slots per layer, and what one more row does to it.

A slot is (row, born, bias): the row that keys and values are made of, the place in time that it stands for (in rows
from the start of the stream; None if it has none), and what is added to its score.
"""

import math

import numpy as np

from tests.oracles.closed_form import below, encode_distance, gelu, layer_norm


def softmax(scores):
    weight = np.exp(np.asarray(scores) - np.max(scores))
    return weight / weight.sum()


def sigmoid(x):
    return 1 / (1 + np.exp(-np.asarray(x)))


class Blocks:
    """Rows are counted, and every ``n_block``-th one ends a block."""

    def __init__(self, weights, n_heads, **params):
        self.weights, self.n_heads, self.params = below(weights, "far."), n_heads, params
        self.layer, self.block, self.t = weights, [], 0
        self.begin()

    def begin(self):
        self.kept = []

    def step(self, row):
        self.block.append(row)
        self.t += 1
        if len(self.block) == self.n_block:
            self.absorb(np.array(self.block))
            self.block = []

    @property
    def n_block(self):
        return self.params["block"]

    def heads(self, row):
        return np.split(row, self.n_heads)


class Sinks(Blocks):
    n_block = math.inf

    def slots(self):
        return [(row, None, 0.0) for row in self.weights["rows"]]


class TwoRate(Blocks):
    @property
    def n_block(self):
        return self.params["every"]

    def absorb(self, block):
        placed = block + self.weights["place"]
        scores = block @ self.weights["score.weight"].T + self.weights["place_score"]  # (N, H)
        summary = [
            softmax(scores[:, h]) @ np.array([self.heads(row)[h] for row in placed]) for h in range(self.n_heads)
        ]
        self.kept.append((np.concatenate(summary), self.t - (len(block) + 1) / 2, 0.0))
        del self.kept[: -self.params["n_slots"]]

    def slots(self):
        return self.kept


def attend(x, t, slots, weights, *, n_heads, mem_len):
    """One row's attention over its window and the slots."""
    d_model = x.shape[1]
    d_head = d_model // n_heads
    seen = [(x[s], t - s, 0.0) for s in range(max(0, t - mem_len), t + 1)]
    seen += [(row, None if born is None else t - born, bias) for row, born, bias in slots]
    out = np.zeros(d_model)
    for h in range(n_heads):
        part = slice(h * d_head, (h + 1) * d_head)
        q = (weights["query.weight"] @ x[t])[part]
        scores, values = [], []
        for row, distance, bias in seen:
            both = weights["key_value.weight"] @ row
            score = (q + weights["u"][h]) @ both[:d_model][part]
            if distance is not None:
                r = weights["position.weight"] @ encode_distance(distance, d_model)
                score += (q + weights["v"][h]) @ r[part]
            scores.append(score / math.sqrt(d_head) + bias)
            values.append(both[d_model:][part])
        out[part] = softmax(scores) @ np.array(values)
    return weights["output.weight"] @ out


def layer(x, weights, policy, *, n_heads, mem_len, **params):
    """One layer over the whole history (T, D)."""
    normed = layer_norm(x, below(weights, "norm_attention."))
    far, y = policy(weights, n_heads, **params), x.copy()
    for t in range(len(x)):
        y[t] += attend(normed, t, far.slots(), below(weights, "attention."), n_heads=n_heads, mem_len=mem_len)
        far.step(normed[t])
    inner = layer_norm(y, below(weights, "norm_forward."))
    inner = gelu(inner @ weights["forward_in.weight"].T + weights["forward_in.bias"])
    return y + inner @ weights["forward_out.weight"].T + weights["forward_out.bias"]


def backbone(x, weights, policy, *, n_layers, **sizes):
    """All layers and the last norm, over the whole history (T, D)."""
    for i in range(n_layers):
        x = layer(x, below(weights, f"layers.{i}."), policy, **sizes)
    return layer_norm(x, below(weights, "norm."))


POLICIES = {"sinks": Sinks, "two_rate": TwoRate}
