"""Columns beside the target, one row and one step at a time, float64."""

import math

import numpy as np

from tests.oracles.closed_form import below, gelu
from tests.oracles.normaliser import RowByRow

CLIP, MOST_FLAGS = 10.0, 16


def flags_or_number(raw, kinds, weights):
    """Fixed features of one row, and the codes of large vocabularies: amounts, plain numbers, flags, codes."""
    amounts, plain, flags, codes = [], [], [], []
    k = start = 0
    order = [i for i, kind in enumerate(kinds) if 0 < kind <= MOST_FLAGS]
    order += [i for i, kind in enumerate(kinds) if kind > MOST_FLAGS]
    starts = {}
    for i in order:
        starts[i] = start
        start += kinds[i] + 1
    z, masks, hinges = [], [], []
    for i, kind in enumerate(kinds):
        x = raw[i]
        if kind == 0:
            there = math.isfinite(x)
            value = np.clip((x - weights["mean"][k]) / weights["deviation"][k], -CLIP, CLIP) if there else 0.0
            z.append(value)
            masks.append(float(there))
            hinges += [max(value - knot, 0.0) * there for knot in weights["knots"][k]]
            k += 1
        elif kind < 0:
            plain.append(x if math.isfinite(x) else 0.0)
    amounts = [*z, *masks, *hinges]
    for i in order:
        code = int(raw[i]) if math.isfinite(raw[i]) else 0
        code *= int(weights["trained"][starts[i] + code])
        if kinds[i] <= MOST_FLAGS:
            flags += [float(code == j) for j in range(kinds[i] + 1)]
        else:
            codes.append(code)
    return np.array([*amounts, *plain, *flags]), codes


def project(features, codes, weights):
    out = weights["linear.weight"] @ features if len(features) else 0.0
    for i, code in enumerate(codes):
        out = out + weights[f"tables.{i}.weight"][code]
    return out


class Columns:
    """What the columns of one lane add to tokens and forecasts.

    ``hist`` (T, n), ``futr`` (≥ T + h, n), ``static`` (n,): raw, NaN where missing.
    """

    def __init__(self, hist, futr, static, weights, config):
        self.hist, self.futr, self.static, self.weights, self.config = hist, futr, static, weights, config
        self.own = below(weights, "beside.")
        amounts = [i for i, kind in enumerate(config["hist_kinds"]) if kind == 0]
        self.amounts = amounts
        lanes = [RowByRow(half_life=config["half_life"]) for _ in amounts]
        self.scales = [[lane.step(x) for x in hist[:, i]] for i, lane in zip(amounts, lanes, strict=True)]

    def token(self, t):
        out = np.zeros(self.config["d_model"])
        if self.amounts:
            features = []
            for c, i in enumerate(self.amounts):
                features += self.patch_of(self.hist[:, i], t, self.scales[c][t])
            out = out + self.own["patch.linear.weight"] @ np.array(features) + self.own["patch.linear.bias"]
        codes = [i for i, kind in enumerate(self.config["hist_kinds"]) if kind > 0]
        if codes:
            kinds = [self.config["hist_kinds"][i] for i in codes]
            seen = flags_or_number(self.hist[t, codes], kinds, below(self.own, "hist."))
            out = out + project(*seen, below(self.own, "from_hist."))
        if self.config["futr_kinds"]:
            out = out + project(*self.futr_features(t), below(self.own, "from_futr."))
        if self.config["static_kinds"]:
            seen = flags_or_number(self.static, self.config["static_kinds"], below(self.own, "static."))
            out = out + project(*seen, below(self.own, "from_static."))
        return out

    def patch_of(self, x, t, scale):
        unit = scale["deviation"] if scale["deviation"] > 0 else 1.0
        z, mask = [], []
        for row in range(t - self.config["patch_len"] + 1, t + 1):
            there = row >= 0 and math.isfinite(x[row])
            z.append(np.clip((x[row] - scale["shift"] - scale["mean"]) / unit, -CLIP, CLIP) if there else 0.0)
            mask.append(float(there))
        return [*z, *mask, *scale["drift"], math.log1p(scale["age"])]

    def futr_features(self, row):
        return flags_or_number(self.futr[row], self.config["futr_kinds"], below(self.own, "futr."))

    def ahead(self, hidden, t):
        h, shape = self.config["h"], (1, len(self.config["quantiles"]))
        centre, more = np.zeros(h), np.zeros((h, *shape))
        if not self.config["futr_kinds"]:
            return centre, more
        w = below(self.weights, "known_ahead.")
        context = w["context.weight"] @ hidden + w["context.bias"]
        for k in range(h):
            features, codes = self.futr_features(t + 1 + k)
            centre[k] = self.weights["linear_path.known"][k] @ features
            mixed = gelu(project(features, codes, below(w, "projection.")) + context + w["step"][k])
            inner = gelu(w["inner.weight"] @ mixed + w["inner.bias"])
            more[k] = (w["out.weight"] @ inner + w["out.bias"]).reshape(shape)
        return centre, more
