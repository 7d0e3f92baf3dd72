"""A memory policy of somebody else: written, checked and used without a line changed in this library."""

from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest
import torch
from torch import nn

from txl_ts import memory
from txl_ts.checks import CheckFailed, check_memory
from txl_ts.config import ModelConfig
from txl_ts.errors import ParameterError
from txl_ts.memory import FarMemory, Slots, policies, policy, register, registry
from txl_ts.model import TXLModel

BUILT_IN = [name for name in policies() if name != "fifo"]


class FadingMean(FarMemory):
    """One slot: the mean of all rows, older ones fading. This class is all that a plug-in needs."""

    defaults: ClassVar = {"block": 4, "decay": 0.9}

    def __init__(self, *, d_model, n_heads, block, decay):
        super().__init__()
        self.n_slots, self.block, self.decay = 1, block, decay
        self.map = nn.Linear(d_model, d_model)

    def specs(self):
        return {"mean": (1, self.map.in_features)}

    def read(self, kept, n_blocks):
        return Slots(self.map(kept["mean"].to(self.map.weight.dtype)), n_blocks[:, None] > 0)

    def absorb(self, kept, rows, n_blocks, attention):
        return {"mean": self.decay * kept["mean"] + (1 - self.decay) * rows.mean(dim=1, keepdim=True)}


@pytest.mark.parametrize("check", check_memory(FadingMean), ids=str)
def test_the_plug_in_keeps_every_promise(check):
    check()


@pytest.mark.parametrize("check", [c for name in BUILT_IN for c in check_memory(policy(name))], ids=str)
def test_the_policies_of_this_library_keep_every_promise(check):
    check()


@pytest.fixture
def names(monkeypatch):
    monkeypatch.setattr(registry, "_POLICIES", dict(registry._POLICIES))


SIZES = {"h": 2, "quantiles": (0.5,), "patch_len": 1, "stride": 1, "mem_len": 3, "lookback": 2, "half_life": 8.0}
SIZES |= {"d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 8}


def forecast(name, **params):
    model = TXLModel(ModelConfig(**SIZES, memory=name, memory_params=params)).eval()
    with torch.no_grad():
        y, state = model(torch.randn(2, 30, 1, generator=torch.Generator().manual_seed(0)), model.init_state(2))
    return model, y, state


def test_a_registered_policy_is_used_by_its_name(names):
    assert register("fading_mean", FadingMean) is FadingMean
    model, y, state = forecast("fading_mean", block=5)
    assert y.isfinite().all()
    assert state["far_mean_1"].shape == (2, 1, 8)
    assert model.config.memory_params == {"block": 5, "decay": 0.9}


def test_a_policy_of_an_installed_package_is_found_by_its_entry_point(names, monkeypatch):
    monkeypatch.setattr(memory, "FadingMean", FadingMean, raising=False)
    point = EntryPoint("fading_mean", "txl_ts.memory:FadingMean", "txl_ts.memory")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "txl_ts.memory" else [])
    assert "fading_mean" in policies()
    assert forecast("fading_mean")[1].isfinite().all()


def test_a_taken_name_and_what_is_no_policy_are_refused(names):
    with pytest.raises(ParameterError, match="name='gated' is the memory policy"):
        register("gated", FadingMean)
    with pytest.raises(ParameterError, match="must be a subclass of"):
        register("list", list)


class CountsCalls(FadingMean):
    """Updates at the end of each call instead of each block."""

    def read(self, kept, n_blocks):
        self.n_calls = getattr(self, "n_calls", 0) + 1
        return super().read({"mean": kept["mean"] + self.n_calls}, n_blocks)


class MixesLanes(FadingMean):
    def absorb(self, kept, rows, n_blocks, attention):
        return super().absorb(kept, rows - rows.mean(dim=0, keepdim=True), n_blocks, attention)


class Grows(FadingMean):
    def absorb(self, kept, rows, n_blocks, attention):
        return {"mean": kept["mean"] * 1.5 + rows[:, :1]}


class WritesInPlace(FadingMean):
    def absorb(self, kept, rows, n_blocks, attention):
        return {"mean": kept["mean"].mul_(0.9).add_(0.1 * rows.mean(dim=1, keepdim=True))}


class LearnsNothing(FadingMean):
    def read(self, kept, n_blocks):
        return Slots(self.map(kept["mean"]).detach(), n_blocks[:, None] > 0)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (CountsCalls, "split of rows"),
        (MixesLanes, "does not know the others"),
        (Grows, "stays bounded"),
        (WritesInPlace, "untouched"),
        (LearnsNothing, "gets a gradient"),
    ],
)
def test_a_broken_policy_is_caught(broken, promise):
    (check,) = [check for check in check_memory(broken) if promise in str(check)]
    with pytest.raises(CheckFailed):
        check()
