"""Transformer-XL in closed form: one series, the whole history at once, an explicit matrix of distances, float64.

There is no memory here: a row that a model would remember is simply still there. Weights are plain arrays, named as in
the ``state_dict`` of the model that is judged: ``attention.query.weight`` and so on.

Dai et al. (2019), Transformer-XL (arXiv 1901.02860), section 3.3, pre-norm, u and v of each layer its own, window of
``mem_len + 1`` keys.
"""

import math

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])


def below(weights, prefix):
    """The weights whose names begin with ``prefix``, without it."""
    return {name[len(prefix) :]: array for name, array in weights.items() if name.startswith(prefix)}


def layer_norm(x, weights, eps=1e-5):
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + eps) * weights["weight"] + weights["bias"]


def gelu(x):
    return x * 0.5 * (1 + _erf(x / math.sqrt(2)))


def encode_distance(distance, d_model):
    """R_p = [sin(p f), cos(p f)], of shape (…, D)."""
    f = np.array([10000.0 ** (-2 * i / d_model) for i in range(d_model // 2)])
    angle = np.asarray(distance, dtype=np.float64)[..., None] * f
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)


def attention(x, weights, *, n_heads, mem_len, stride, times=None, clamp_len=None):
    """Attend from each row (T, D) to itself and to the rows stride, 2 · stride, …, mem_len · stride before it.

    With ``times`` (T,) the position of a key is its distance in time; the window is counted in visits all the same.
    With ``clamp_len`` a key further back than so many visits has the position of one that lies so far back.
    """
    n_rows, d_model = x.shape
    d_head = d_model // n_heads
    time = np.arange(n_rows)
    behind = time[:, None] - time[None, :]  # rows between query i and key j
    distance = behind / stride  # in visits
    visible = (behind >= 0) & (behind % stride == 0) & (distance <= mem_len)
    q = x @ weights["query.weight"].T
    k = x @ weights["key_value.weight"][:d_model].T
    v = x @ weights["key_value.weight"][d_model:].T
    apart = distance if times is None else times[:, None] - times[None, :]
    apart = apart if clamp_len is None else np.minimum(apart, clamp_len)
    r = encode_distance(apart, d_model) @ weights["position.weight"].T  # (T, T, D)
    heads = []
    for h in range(n_heads):
        part = slice(h * d_head, (h + 1) * d_head)
        content = (q[:, part] + weights["u"][h]) @ k[:, part].T
        position = np.einsum("ik,ijk->ij", q[:, part] + weights["v"][h], r[:, :, part])
        score = np.where(visible, (content + position) / math.sqrt(d_head), -np.inf)
        weight = np.exp(score - score.max(axis=1, keepdims=True))
        heads.append(weight / weight.sum(axis=1, keepdims=True) @ v[:, part])
    return np.concatenate(heads, axis=1) @ weights["output.weight"].T


def attention_row_by_row(x, weights, *, n_heads, mem_len, stride):
    """The same, by a loop over rows, heads and visits: the definition, read aloud."""
    n_rows, d_model = x.shape
    d_head = d_model // n_heads
    w_q, w_r, w_o = (weights[f"{name}.weight"] for name in ("query", "position", "output"))
    w_k, w_v = weights["key_value.weight"][:d_model], weights["key_value.weight"][d_model:]
    out = np.zeros_like(x)
    for t in range(n_rows):
        row = np.zeros(d_model)
        for h in range(n_heads):
            part = slice(h * d_head, (h + 1) * d_head)
            scores, values = [], []
            for visit in range(mem_len + 1):
                if t - visit * stride < 0:
                    break
                past = x[t - visit * stride]
                q = w_q[part] @ x[t]
                content = (q + weights["u"][h]) @ (w_k[part] @ past)
                position = (q + weights["v"][h]) @ (w_r[part] @ encode_distance(visit, d_model))
                scores.append((content + position) / math.sqrt(d_head))
                values.append(w_v[part] @ past)
            weight = np.exp(np.array(scores) - max(scores))
            row[part] = weight @ np.array(values) / weight.sum()
        out[t] = w_o @ row
    return out


def layer(x, weights, **sizes):
    """Pre-norm: attention, then the feed-forward part, each added to what comes in."""
    x = x + attention(layer_norm(x, below(weights, "norm_attention.")), below(weights, "attention."), **sizes)
    inner = layer_norm(x, below(weights, "norm_forward."))
    inner = gelu(inner @ weights["forward_in.weight"].T + weights["forward_in.bias"])
    return x + inner @ weights["forward_out.weight"].T + weights["forward_out.bias"]


def backbone(x, weights, *, n_layers, **sizes):
    """All layers and the last norm, over the whole history (T, D)."""
    for i in range(n_layers):
        x = layer(x, below(weights, f"layers.{i}."), **sizes)
    return layer_norm(x, below(weights, "norm."))
