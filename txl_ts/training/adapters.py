"""Training few of the weights: low-rank adapters (LoRA, by the library peft), or the head alone."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txl_ts.errors import MissingExtraError
from txl_ts.model import TXLModel

METHODS = ("full", "lora", "head")
# Every product of the layers, and the head. Norms, tokens, the linear path and the scaler stay as they are.
_TARGETS = r"backbone\.layers\.\d+\.(attention\.(query|key_value|output)|forward_(in|out))|head\.linear"
_HEAD = ("head.", "known_ahead.", "linear_path.")
_SCALE = 2.0  # what the product of both factors is multiplied with


@dataclass(frozen=True)
class Adapter:
    """What low-rank fine-tuning adds to the weights: for each of some of them a product of two thin matrices.

    Attributes
    ----------
    rank : int
    factors : dict of name to (A, B)
        float32 arrays of shape (rank, inputs) and (outputs, rank) for the weight of that name: it becomes
        ``W + 2 · B A``.

    References
    ----------
    Hu et al. (2021), LoRA: low-rank adaptation of large language models (arXiv 2106.09685), section 4.1.
    """

    rank: int
    factors: dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]

    @property
    def nbytes(self) -> int:
        """Bytes of all factors."""
        return sum(a.nbytes + b.nbytes for a, b in self.factors.values())

    def merged(self, model: TXLModel) -> TXLModel:
        """Give a copy of a model with the products added to its weights: the same sizes, and as fast as before."""
        out = copy.deepcopy(model)
        weights = dict(out.named_parameters())
        with torch.no_grad():
            for name, (a, b) in self.factors.items():
                weights[name].add_(torch.from_numpy(b) @ torch.from_numpy(a), alpha=_SCALE)
        return out


def adapted_weights(model: TXLModel) -> dict[str, tuple[int, ...]]:
    """Give the shapes of the weights that an adapter changes, by name."""
    found = {name.removesuffix(".weight"): tuple(p.shape) for name, p in model.named_parameters()}
    return {f"{name}.weight": shape for name, shape in found.items() if re.fullmatch(_TARGETS, name)}


def with_adapter(model: TXLModel, *, rank: int) -> TXLModel:
    """Give a copy of a model in which only low-rank factors are trained; at the start they change nothing.

    Raises
    ------
    MissingExtraError
        Without peft.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise MissingExtraError(
            'peft is needed for method="lora". Install it with `pip install "txl-ts[lora]"`.'
        ) from error
    config = LoraConfig(r=rank, lora_alpha=int(_SCALE * rank), target_modules=_TARGETS, lora_dropout=0.0)
    return cast(TXLModel, inject_adapter_in_model(config, copy.deepcopy(model)))


def adapter_of(model: TXLModel, *, rank: int) -> Adapter:
    """Take the factors out of what :func:`with_adapter` gave."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, parameter in model.named_parameters():
        if match := re.fullmatch(r"(.*)\.lora_([AB])\.default\.weight", name):
            found.setdefault(f"{match[1]}.weight", {})[match[2]] = parameter.detach().clone()
    return Adapter(rank, {name: (pair["A"].numpy(), pair["B"].numpy()) for name, pair in found.items()})


def with_head_alone(model: TXLModel) -> TXLModel:
    """Give a copy of a model in which only what turns hidden rows into forecasts is trained."""
    out = copy.deepcopy(model)
    for name, parameter in out.named_parameters():
        parameter.requires_grad_(name.startswith(_HEAD))
    return out


def with_all_trained(model: TXLModel) -> TXLModel:
    """Give a copy of a model in which every weight is trained."""
    out = copy.deepcopy(model)
    for parameter in out.parameters():
        parameter.requires_grad_(True)
    return out
