"""What a training step keeps in memory: gradients, optimiser, activations, counted tensor by tensor."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl_ts.model import TXLModel
from txl_ts.training import Origins, Pieces, Trainer, TrainingSettings, with_adapter, with_all_trained, with_head_alone

METHODS = ("full", "lora", "head")
N_LANES = 32
# In a process of its own, before it and at its height; the peak is that of the resident set, from /proc. Linux only.
_PEAK = """
import re, torch
torch.set_num_threads(1)
from txl_ts.bench import training_memory as tm
from txl_ts.config import ModelConfig
model = tm.ready(tm.TXLModel(ModelConfig(**{sizes})), {method!r}, rank={rank})
read = lambda name: int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1])
before = read("VmRSS")
tm.one_epoch(model)
print(before, read("VmHWM"))
"""


def ready(model: TXLModel, method: str, *, rank: int) -> TXLModel:
    """Give a copy of a model in which that is trained which a method of ``fine_tune`` trains."""
    if method == "lora":
        return with_adapter(model, rank=rank)
    return with_head_alone(model) if method == "head" else with_all_trained(model)


def step_bytes(model: TXLModel) -> dict[str, int]:
    """Count the bytes that a training step keeps besides the weights.

    Parameters
    ----------
    model : TXLModel
        As :func:`ready` gave it.

    Returns
    -------
    dict of str to int
        ``weights`` (all of them), ``trained`` (numbers that are trained), ``gradients``, ``optimiser``, and
        ``activations``: what autograd saves for the way back, each storage once, without weights.
    """
    trainer = _trainer(model)
    # Weights lie in storages that are kept anyway, whether they are trained or not.
    known = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}
    saved: dict[int, tuple[int, Tensor]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:  # the tensor is held, so that no address is given out twice
            saved[storage.data_ptr()] = (storage.nbytes(), tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), suppress(_OneStepDone):
        trainer.run(_stop)
    parameters = list(model.parameters())
    state = [t for of in trainer.optimiser.state.values() for t in of.values() if isinstance(t, Tensor) and t.dim()]
    return {
        "weights": sum(p.numel() * p.element_size() for p in parameters),
        "trained": sum(p.numel() for p in parameters if p.requires_grad),
        "gradients": sum(p.grad.numel() * p.grad.element_size() for p in parameters if p.grad is not None),
        "optimiser": sum(t.numel() * t.element_size() for t in state),
        "activations": sum(nbytes for nbytes, _ in saved.values()),
    }


def peak_bytes(sizes: dict[str, Any], method: str, *, rank: int) -> int:
    """Give by how much the resident set of a process grows at most while it trains."""
    code = _PEAK.format(sizes=sizes, method=method, rank=rank)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, peak = (int(word) for word in done.stdout.split())
    return 1024 * (peak - before)


def one_epoch(model: TXLModel) -> None:
    """Train a few steps."""
    _trainer(model).run()


class _OneStepDone(Exception):  # noqa: N818 - it ends a run, and is no error
    pass


def _stop() -> None:
    raise _OneStepDone


def _trainer(model: TXLModel) -> Trainer:
    n = model.config.lookback + 2 * 24 * model.config.stride
    values = np.random.default_rng(0).normal(size=N_LANES * n).astype(np.float32)
    first = n * np.arange(N_LANES)
    pieces = Pieces(values, first, first + n, np.ones(N_LANES, np.float32))
    settings = TrainingSettings(max_epochs=1, batch_size=N_LANES, least_steps=2, phases_per_epoch=1)
    return Trainer(model, Origins(pieces, first + model.config.patch_len), None, settings)
