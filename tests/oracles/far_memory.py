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

    of_outputs = False

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

    def mix(self, h, query, head):
        """What head ``h`` gives in the end, for its scaled query."""
        return head

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


class Compressive(Blocks):
    def absorb(self, block):
        every = self.params["every"]
        for i in range(0, len(block), every):
            row = np.concatenate(block[i : i + every]) @ self.weights["mix"]
            middle = self.t - len(block) + i + (every - 1) / 2
            self.kept.append((row, middle, 0.0))
        del self.kept[: -self.params["n_slots"]]

    def slots(self):
        return self.kept


class Gated(Blocks):
    def begin(self):
        self.kept = np.zeros((self.params["n_slots"], len(self.weights["gate"])))

    def vector(self, i):
        return layer_norm(self.kept[i], below(self.weights, "norm.")) + self.weights["identity"][i]

    def absorb(self, block):
        w, gate, after = self.weights, sigmoid(self.weights["gate"]), []
        for i, state in enumerate(self.kept):
            read = []
            for h in range(self.n_heads):
                q = self.heads(self.vector(i) @ w["query"])[h]
                k = np.array([self.heads(row @ w["key"])[h] for row in block])
                v = np.array([self.heads(row @ w["value"])[h] for row in block])
                read.append(softmax(k @ q / math.sqrt(len(q))) @ v)
            after.append(gate * state + (1 - gate) * (np.concatenate(read) @ w["output"]))
        self.kept = np.array(after)

    def slots(self):
        return [(self.vector(i), None, 0.0) for i in range(len(self.kept))]


class Importance(Blocks):
    """A list of [row, born, use]."""

    oldest = 4096

    def worth(self, row):
        return float(sigmoid(self.weights["worth.weight"][0] @ row + self.weights["worth.bias"][0]))

    def absorb(self, block):
        attention, d_model, decay = below(self.layer, "attention."), block.shape[1], self.params["decay"]
        n_old, first = len(self.kept), self.t - len(block)
        rows = [row for row, _, _ in self.kept] + list(block)
        share = np.zeros(len(rows))
        for i in range(len(block)):
            for h in range(self.n_heads):
                q = self.heads(attention["query.weight"] @ block[i])[h] + attention["u"][h]
                keys = [self.heads(attention["key_value.weight"][:d_model] @ row)[h] for row in rows[: n_old + i + 1]]
                weight = softmax(np.array(keys) @ q / math.sqrt(len(q)))
                share[: len(weight)] += weight / (len(block) * self.n_heads)
        share *= self.params["n_slots"] + len(block)
        old = [
            (row, born, decay * use + (1 - decay) * s) for (row, born, use), s in zip(self.kept, share, strict=False)
        ]
        new = [(row, first + i, share[n_old + i]) for i, row in enumerate(block)]
        best = sorted([*old, *new], key=lambda entry: -self.worth(entry[0]) * (1 + entry[2]))[: self.params["n_slots"]]
        self.kept = sorted(best, key=lambda entry: entry[1])

    def slots(self):
        return [(row, born, math.log(self.worth(row))) for row, born, _ in self.kept]


class Tokens(Blocks):
    def begin(self):
        self.kept = self.weights["first"]

    def absorb(self, block):
        attention, after = below(self.layer, "attention."), []
        d_model = block.shape[1]
        seen = [*self.kept, *block]
        for token in self.kept:
            read = []
            for h in range(self.n_heads):
                q = self.heads(attention["query.weight"] @ token)[h] + attention["u"][h]
                k = np.array([self.heads(attention["key_value.weight"][:d_model] @ row)[h] for row in seen])
                v = np.array([self.heads(attention["key_value.weight"][d_model:] @ row)[h] for row in seen])
                read.append(softmax(k @ q / math.sqrt(len(q))) @ v)
            out = token + attention["output.weight"] @ np.concatenate(read)
            after.append(layer_norm(out, below(self.weights, "norm.")))
        self.kept = after

    def slots(self):
        return [(row, None, 0.0) for row in self.kept]


class SameLayer(Blocks):
    of_outputs = True

    def absorb(self, block):
        self.kept = [(row, self.t - len(block) + i, 0.0) for i, row in enumerate(block)]

    def slots(self):
        return self.kept


class Linear(Blocks):
    def begin(self):
        d_head = len(self.weights["sink"][0]) // self.n_heads
        self.sums = [np.zeros((d_head, d_head)) for _ in range(self.n_heads)]
        self.norms = [np.zeros(d_head) for _ in range(self.n_heads)]

    @staticmethod
    def positive(x):
        return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))

    def absorb(self, block):
        both, d_model = below(self.layer, "attention.")["key_value.weight"], block.shape[1]
        for h, decay in enumerate(sigmoid(self.weights["decay"])):
            self.sums[h], self.norms[h] = decay * self.sums[h], decay * self.norms[h]
            for row in block:
                k, v = (self.heads(part @ row)[h] for part in (both[:d_model], both[d_model:]))
                self.sums[h] = self.sums[h] + np.outer(self.positive(k), v) / len(block)
                self.norms[h] = self.norms[h] + self.positive(k) / len(block)

    def slots(self):
        return [(row, None, 0.0) for row in self.weights["sink"]]

    def mix(self, h, query, head):
        if self.t < self.n_block:
            return head
        share, asked = sigmoid(self.weights["share"][h]), self.positive(query)
        return (1 - share) * head + share * (asked @ self.sums[h]) / (asked @ self.norms[h])


def attend(x, t, far, weights, *, n_heads, mem_len):
    """One row's attention over its window and the slots."""
    d_model = x.shape[1]
    d_head = d_model // n_heads
    seen = [(x[s], t - s, 0.0) for s in range(max(0, t - mem_len), t + 1)]
    seen += [(row, None if born is None else t - born, bias) for row, born, bias in far.slots()]
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
        out[part] = far.mix(h, q / math.sqrt(d_head), softmax(scores) @ np.array(values))
    return weights["output.weight"] @ out


def layer(x, weights, policy, *, n_heads, mem_len, **params):
    """One layer over the whole history (T, D)."""
    norm = below(weights, "norm_attention.")
    normed = layer_norm(x, norm)
    far, y = policy(weights, n_heads, **params), x.copy()
    for t in range(len(x)):
        y[t] += attend(normed, t, far, below(weights, "attention."), n_heads=n_heads, mem_len=mem_len)
        inner = layer_norm(y[t], below(weights, "norm_forward."))
        inner = gelu(inner @ weights["forward_in.weight"].T + weights["forward_in.bias"])
        y[t] += inner @ weights["forward_out.weight"].T + weights["forward_out.bias"]
        far.step(layer_norm(y[t], norm) if far.of_outputs else normed[t])
    return y


def backbone(x, weights, policy, *, n_layers, **sizes):
    """All layers and the last norm, over the whole history (T, D)."""
    for i in range(n_layers):
        x = layer(x, below(weights, f"layers.{i}."), policy, **sizes)
    return layer_norm(x, below(weights, "norm."))


POLICIES = {
    "sinks": Sinks,
    "compressive": Compressive,
    "two_rate": TwoRate,
    "gated": Gated,
    "importance": Importance,
    "tokens": Tokens,
    "linear": Linear,
    "same_layer": SameLayer,
}
