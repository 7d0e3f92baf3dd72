"""The steps of Transformer-XL's own PyTorch code in numpy: a list of memories, masks by triangles, a shift by padding.

After kimiyoung/transformer-xl, ``pytorch/mem_transformer.py`` (Apache 2.0), restated: post-norm, one u and v for all
layers, ReLU, no dropout, ``ext_len`` 0, memories that start empty and grow. One series. Weights are named as in the
``state_dict`` of the model that is judged.
"""

import numpy as np


def rel_shift(x):
    """Move row i of (qlen, klen) so that entry j belongs to key j: pad a column, read in another shape, drop a row."""
    qlen, klen = x.shape
    padded = np.concatenate([np.zeros((qlen, 1)), x], axis=1)
    return padded.reshape(klen + 1, qlen)[1:].reshape(qlen, klen)


def update_mems(hids, mems, mlen, qlen, mem_len):
    """Keep the newest ``mem_len`` of what was remembered and what came; hids are those of every layer, tokens first."""
    end_idx = mlen + max(0, qlen)
    beg_idx = max(0, end_idx - mem_len)
    return [np.concatenate([mem, hid])[beg_idx:end_idx] for mem, hid in zip(mems, hids, strict=True)]


def dec_attn_mask(qlen, mlen, mem_len, same_length):
    """True where a key must not be seen, (qlen, klen)."""
    klen = mlen + qlen
    all_ones = np.ones((qlen, klen))
    if not same_length:
        return np.triu(all_ones, 1 + mlen) > 0
    mask_len = klen - mem_len
    mask_shift_len = qlen - mask_len if mask_len > 0 else qlen
    return np.triu(all_ones, 1 + mlen) + np.tril(all_ones, -mask_shift_len) > 0


def norm(x, w, name):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def dec_layer(w_in, r, mems, mask, p, bias, n_head):
    """One decoder layer: attention over cat(mems, w), normalised behind the sum, then the feed-forward part."""
    cat = np.concatenate([mems, w_in])
    q = w_in @ p["attention.query.weight"].T
    k, v = np.split(cat @ p["attention.key_value.weight"].T, 2, axis=1)
    r_k = r @ p["attention.position.weight"].T
    d_head = q.shape[1] // n_head
    out = []
    for n in range(n_head):
        s = slice(n * d_head, (n + 1) * d_head)
        AC = (q[:, s] + bias[0][n]) @ k[:, s].T
        BD = rel_shift((q[:, s] + bias[1][n]) @ r_k[:, s].T)
        attn_score = np.where(mask, -np.inf, (AC + BD) / d_head**0.5)
        attn_prob = np.exp(attn_score - attn_score.max(1, keepdims=True))
        out.append(attn_prob / attn_prob.sum(1, keepdims=True) @ v[:, s])
    output = norm(w_in + np.concatenate(out, 1) @ p["attention.output.weight"].T, p, "norm_attention")
    core = np.maximum(output @ p["forward_in.weight"].T + p["forward_in.bias"], 0)
    return norm(output + core @ p["forward_out.weight"].T + p["forward_out.bias"], p, "norm_forward")


def segments(words, weights, *, n_layers, n_heads, mem_len, same_length):
    """Outputs of segment after segment (each (qlen, D)), and the memories that the last one leaves."""
    d_model = words[0].shape[1]
    layers = [
        {name.removeprefix(f"layers.{i}."): w for name, w in weights.items() if name.startswith(f"layers.{i}.")}
        for i in range(n_layers)
    ]
    bias = layers[0]["attention.u"], layers[0]["attention.v"]
    inv_freq = 1 / 10000 ** (np.arange(0.0, d_model, 2.0) / d_model)
    mems = [np.empty((0, d_model)) for _ in range(n_layers + 1)]
    outputs = []
    for word_emb in words:
        qlen, mlen = len(word_emb), len(mems[0])
        sinusoid_inp = np.outer(np.arange(mlen + qlen - 1, -1, -1.0), inv_freq)
        pos_emb = np.concatenate([np.sin(sinusoid_inp), np.cos(sinusoid_inp)], -1)
        mask = dec_attn_mask(qlen, mlen, mem_len, same_length)
        core_out, hids = word_emb, [word_emb]
        for p, mems_i in zip(layers, mems[:n_layers], strict=True):
            core_out = dec_layer(core_out, pos_emb, mems_i, mask, p, bias, n_heads)
            hids.append(core_out)
        mems = update_mems(hids, mems, mlen, qlen, mem_len)
        outputs.append(core_out)
    return outputs, mems
