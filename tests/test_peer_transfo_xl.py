"""The layer beside that of ``transformers`` 4.37.2, the last release whose TransfoXL runs; 5 has none.

Set TXL_TS_TRANSFO_XL to the Python of an environment that has it (``torch transformers==4.37.2 sacremoses``).
"""

import itertools
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from txl_ts.backbone import Backbone
from txl_ts.config import ModelConfig
from txl_ts.memory import Fifo

pytestmark = pytest.mark.peers

THEIRS = Path(__file__).parent / "oracles" / "transfo_xl_run.py"
D, H, LAYERS, D_FF, MEM_LEN, LENGTHS = 24, 3, 3, 40, 7, (5, 9, 1, 7, 7, 12)
NAMES = ("pre_lnorm", "same_length", "untie_r", "clamp_len")
READINGS = list(itertools.product((True, False), (True, False), (True, False), (None, 6)))


def made(reading):
    """Our backbone and memory; their ``same_length`` sees one key less than ours, and memories begin as zeros."""
    settings = dict(zip(NAMES, reading, strict=True))
    sizes = {"d_model": D, "n_layers": LAYERS, "n_heads": H, "d_ff": D_FF, "mem_len": MEM_LEN - settings["same_length"]}
    sizes |= {"h": 1, "quantiles": (0.5,), "patch_len": 1, "stride": 1, "lookback": 0, "half_life": 8.0}
    config = ModelConfig(**sizes, **settings, attend_zeros=True, activation="relu")
    backbone = Backbone(config).eval()
    backbone.norm = torch.nn.Identity()  # theirs has none at the end
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in backbone.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
    return backbone, Fifo(mem_len=config.mem_len), torch.randn(2, sum(LENGTHS), D, generator=generator)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """What their model says, for every reading; one process, since importing it takes longer than running it."""
    python, folder = os.environ.get("TXL_TS_TRANSFO_XL"), tmp_path_factory.mktemp("theirs")
    if not python:
        pytest.skip("TXL_TS_TRANSFO_XL names no Python that has transformers 4.37.2")
    for i, reading in enumerate(READINGS):
        backbone, _, x = made(reading)
        settings = dict(zip(NAMES, reading, strict=True))
        settings |= {"clamp_len": settings["clamp_len"] or -1, "mem_len": MEM_LEN}
        settings |= {"n_layer": LAYERS, "n_head": H, "d_inner": D_FF}
        given = {name: weight.numpy() for name, weight in backbone.state_dict().items()}
        about = {f"config.{name}": value for name, value in settings.items()}
        np.savez(folder / f"{i}.npz", x=x, lengths=LENGTHS, **given, **about)
    subprocess.run([python, str(THEIRS), str(folder)], check=True)
    return {reading: np.load(folder / f"{i}.out.npz")["y"] for i, reading in enumerate(READINGS)}


@pytest.mark.parametrize("reading", READINGS, ids=str)
def test_segments_equal_those_of_transfo_xl(theirs, reading):
    backbone, memory, x = made(reading)
    *specs, _ = memory.specs(n_layers=LAYERS, kinds=("keys", "values"), n_heads=H, d_head=D // H)
    every = [torch.zeros(2, *spec.shape) for spec in specs]
    rings, count = [tuple(every[i : i + 2]) for i in range(0, len(every), 2)], torch.zeros(2, 2, dtype=torch.int32)
    out = []
    with torch.no_grad():
        for segment in x.split(LENGTHS, dim=1):
            y, rings, count, _ = backbone(segment, rings, count, memory=memory)
            out.append(y.numpy())
    error = np.abs(np.concatenate(out, axis=1) - theirs[reading]).max() / np.abs(theirs[reading]).max()
    print(f"largest difference over largest value: {error:.1e}")  # noqa: T201 - shown with -s
    assert error < 1e-5  # float32, sums in another order
