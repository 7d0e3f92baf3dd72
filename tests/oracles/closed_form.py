"""Transformer-XL in closed form: one series, the whole history at once, an explicit matrix of distances, float64.

There is no memory here: a row that a model would remember is simply still there. Weights are plain arrays, named as in
the ``state_dict`` of the model that is judged: ``attention.query.weight`` and so on.

Dai et al. (2019), Transformer-XL (arXiv 1901.02860), section 3.3, pre-norm, u and v of each layer its own, window of
``mem_len + 1`` keys; other readings by arguments.
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


def relu(x):
    return np.maximum(x, 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def encode_distance(distance, d_model):
    """R_p = [sin(p f), cos(p f)], of shape (…, D)."""
    f = np.array([10000.0 ** (-2 * i / d_model) for i in range(d_model // 2)])
    angle = np.asarray(distance, dtype=np.float64)[..., None] * f
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)


def attention(x, weights, *, n_heads, mem_len, stride, times=None, clamp_len=None, starts=None):
    """Attend from each row (T, D) to itself and to the rows stride, 2 · stride, …, mem_len · stride before it.

    With ``times`` (T,) the position of a key is its distance in time; the window is counted in visits all the same.
    With ``clamp_len`` a key further back than so many visits has the position of one that lies so far back.
    With ``starts`` (T,), the first row of the call that each row came with, it sees all of its call and the ``mem_len``
    visits before it.
    """
    n_rows, d_model = x.shape
    d_head = d_model // n_heads
    time = np.arange(n_rows)
    behind = time[:, None] - time[None, :]  # rows between query i and key j
    distance = behind / stride  # in visits
    visible = (behind >= 0) & (behind % stride == 0) & (distance <= mem_len)
    if starts is not None:
        first = np.asarray(starts)[:, None]
        last = first - 1 - (first - 1 - time[:, None]) % stride  # the row's phase was visited there before its call
        visible = (behind >= 0) & (behind % stride == 0) & ((last - time[None, :]) // stride < mem_len)
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


def gru(x, y, weights):
    """The gate of GTrXL (Parisotto et al. 2019, arXiv 1910.06764, section 3.2), y after a ReLU."""
    W_r, W_z, W_g = np.split(weights["of_new.weight"], 3)
    U_r, U_z = np.split(weights["of_old.weight"], 2)
    y = relu(y)
    r = sigmoid(y @ W_r.T + x @ U_r.T)
    z = sigmoid(y @ W_z.T + x @ U_z.T - weights["bias"])
    h = np.tanh(y @ W_g.T + (r * x) @ weights["candidate.weight"].T)
    return (1 - z) * x + z * h


def layer(x, weights, *, pre=True, act=gelu, gated=False, zeros=0, **sizes):
    """Attention, then the feed-forward part, each added to what comes in; normalised before each, or behind each sum.

    ``zeros`` rows of zeros came before the first row.
    """
    norms = [below(weights, f"norm_{part}.") for part in ("attention", "forward")]
    gates = [below(weights, f"gate_{part}.") for part in ("attention", "forward")]

    def join(x, y, gate, norm):
        x = gru(x, y, gate) if gated else x + y
        return x if pre else layer_norm(x, norm)

    every = np.concatenate([np.zeros((zeros, x.shape[1])), x])
    every = layer_norm(every, norms[0]) if pre else every
    x = join(x, attention(every, below(weights, "attention."), **sizes)[zeros:], gates[0], norms[0])
    inner = layer_norm(x, norms[1]) if pre else x
    inner = act(inner @ weights["forward_in.weight"].T + weights["forward_in.bias"])
    return join(x, inner @ weights["forward_out.weight"].T + weights["forward_out.bias"], gates[1], norms[1])


def backbone(x, weights, *, n_layers, **reading):
    """All layers and, with norms before the parts, the last norm, over the whole history (T, D)."""
    for i in range(n_layers):
        x = layer(x, below(weights, f"layers.{i}."), **reading)
    return layer_norm(x, below(weights, "norm.")) if reading.get("pre", True) else x
