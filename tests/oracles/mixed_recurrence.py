"""Transformer-XL by segments, in torch: ``m ← s · m + (1 − s) · stop(m)`` at each hop, for autograd to judge.

Nothing is ever overwritten: the memory of a layer is all its inputs so far, and an explicit matrix of distances says
what of it a row sees. Weights are named as in the ``state_dict`` of the backbone that is judged.

Dai et al. (2019), Transformer-XL (arXiv 1901.02860), section 3.3, pre-norm, u and v of each layer its own.
"""

import math

import torch


def norm(x, weights, name):
    centred = x - x.mean(dim=-1, keepdim=True)
    return (
        centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"]
        + weights[f"{name}.bias"]
    )


def layer(rows, n_new, w, *, n_heads, mem_len):
    """The newest ``n_new`` of some rows (N, D) through a layer; the others are its memory."""
    d_model = rows.shape[1]
    normed = norm(rows, w, "norm_attention")
    q = normed[-n_new:] @ w["attention.query.weight"].T
    k = normed @ w["attention.key_value.weight"][:d_model].T
    v = normed @ w["attention.key_value.weight"][d_model:].T
    distance = torch.arange(len(rows))[-n_new:, None] - torch.arange(len(rows))
    visible = (distance >= 0) & (distance <= mem_len)
    f = 10000.0 ** (-2 * torch.arange(d_model // 2, dtype=rows.dtype) / d_model)
    angle = distance[..., None].to(rows.dtype) * f
    r = torch.cat([angle.sin(), angle.cos()], dim=-1) @ w["attention.position.weight"].T  # (T, N, D)
    heads = []
    for h in range(n_heads):
        part = slice(h * d_model // n_heads, (h + 1) * d_model // n_heads)
        content = (q[:, part] + w["attention.u"][h]) @ k[:, part].T
        position = torch.einsum("ik,ijk->ij", q[:, part] + w["attention.v"][h], r[:, :, part])
        score = (content + position) / math.sqrt(d_model // n_heads)
        weight = torch.where(visible, score.exp(), torch.zeros_like(score))
        heads.append(weight / weight.sum(dim=1, keepdim=True) @ v[:, part])
    x = rows[-n_new:] + torch.cat(heads, dim=1) @ w["attention.output.weight"].T
    inner = norm(x, w, "norm_forward") @ w["forward_in.weight"].T + w["forward_in.bias"]
    inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
    return x + inner @ w["forward_out.weight"].T + w["forward_out.bias"]


def run(segments, weights, *, n_layers, n_heads, mem_len, share):
    """Outputs of segments (T, D), one after the other; ``share(place)`` of a memory row, the newest has place 0."""
    memories, out = [segments[0][:0]] * n_layers, []
    for x in segments:
        carried = []
        for i, memory in enumerate(memories):
            prefix = f"layers.{i}."
            own = {name.removeprefix(prefix): t for name, t in weights.items() if name.startswith(prefix)}
            rows = torch.cat([memory, x])
            x = layer(rows, len(x), own, n_heads=n_heads, mem_len=mem_len)
            s = torch.tensor([share(place) for place in reversed(range(len(rows)))], dtype=rows.dtype)[:, None]
            carried.append(s * rows + (1 - s) * rows.detach())
        memories = carried
        out.append(norm(x, weights, "norm"))
    return torch.cat(out)
