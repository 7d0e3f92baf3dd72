"""Run Hugging Face's TransfoXL on given weights and rows; for an environment of its own (transformers 4.37.2).

``python transfo_xl_run.py FOLDER`` writes ``0.out.npz`` beside ``0.npz`` and so on.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import TransfoXLConfig, TransfoXLModel


def run(given):
    """Outputs of segment after segment, (B, T, D)."""
    settings = {name.removeprefix("config."): given[name].item() for name in given.files if name.startswith("config.")}
    d_model = given["x"].shape[2]
    sizes = {"vocab_size": 8, "cutoffs": [], "div_val": 1, "d_model": d_model, "d_embed": d_model}
    sizes |= {"d_head": d_model // settings["n_head"], "dropout": 0.0, "dropatt": 0.0}
    model = TransfoXLModel(TransfoXLConfig(**sizes, **settings)).eval()
    with torch.no_grad():
        if not settings["untie_r"]:
            model.r_w_bias.copy_(torch.from_numpy(given["layers.0.attention.u"]))
            model.r_r_bias.copy_(torch.from_numpy(given["layers.0.attention.v"]))
        for i, layer in enumerate(model.layers):
            start = f"layers.{i}."
            names = [name for name in given.files if name.startswith(start)]
            fill(layer, {name.removeprefix(start): torch.from_numpy(given[name]) for name in names})
        mems, out = None, []
        for segment in torch.from_numpy(given["x"]).split(given["lengths"].tolist(), dim=1):
            found = model(inputs_embeds=segment, mems=mems)
            mems = found.mems
            out.append(found.last_hidden_state.numpy())
    return np.concatenate(out, axis=1)


def fill(layer, ours):
    """Put one layer's weights in their places."""
    attention, forward = layer.dec_attn, layer.pos_ff
    attention.qkv_net.weight.copy_(torch.cat([ours["attention.query.weight"], ours["attention.key_value.weight"]]))
    attention.r_net.weight.copy_(ours["attention.position.weight"])
    attention.o_net.weight.copy_(ours["attention.output.weight"])
    attention.r_w_bias.copy_(ours["attention.u"])
    attention.r_r_bias.copy_(ours["attention.v"])
    pairs = {"norm_attention": attention.layer_norm, "norm_forward": forward.layer_norm}
    pairs |= {"forward_in": forward.CoreNet[0], "forward_out": forward.CoreNet[3]}
    for name, module in pairs.items():
        module.weight.copy_(ours[f"{name}.weight"])
        module.bias.copy_(ours[f"{name}.bias"])


for path in sorted(Path(sys.argv[1]).glob("*.npz")):
    np.savez(path.with_suffix(".out.npz"), y=run(np.load(path)))
