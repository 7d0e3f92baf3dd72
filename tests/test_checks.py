"""Our own parts pass the checks that every part must pass, and broken ones do not."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from txl_ts.checks import (
    Check,
    CheckFailed,
    check_embedding,
    check_head,
    check_memory,
    check_normaliser,
    check_session,
)
from txl_ts.config import ModelConfig
from txl_ts.embeddings import PatchEmbedding, RunningNormaliser, StandardNormaliser
from txl_ts.errors import TxlError
from txl_ts.heads import QuantileHead
from txl_ts.memory import Fifo
from txl_ts.model import TXLModel


class ModelSession:
    """A torch model behind the session's protocol."""

    def __init__(self, **changes):
        sizes = {
            "h": 2,
            "quantiles": (0.1, 0.5, 0.9),
            "patch_len": 3,
            "stride": 3,
            "mem_len": 4,
            "lookback": 5,
            "half_life": 12.0,
        }
        sizes |= {"d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 10}
        self.model = TXLModel(ModelConfig(**(sizes | changes))).eval()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in [*self.model.parameters(), *self.model.linear_path.buffers()]:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)

    def init_state(self, n_lanes):
        return {name: tensor.numpy() for name, tensor in self.model.init_state(n_lanes).items()}

    def step(self, x, state, start=None):
        tensors = {name: torch.tensor(array) for name, array in state.items()}
        with torch.no_grad():
            y, after = self.model(torch.tensor(x), tensors, None if start is None else torch.tensor(start))
        return y.numpy(), {name: tensor.numpy() for name, tensor in after.items()}


OURS = [
    *check_memory(Fifo),
    *check_normaliser(partial(RunningNormaliser, half_life=8.0)),
    *check_normaliser(StandardNormaliser),
    *check_embedding(PatchEmbedding),
    *check_head(QuantileHead),
    *check_session(ModelSession),
    *check_session(partial(ModelSession, n_channels=2, scaler="standard", mem_len=0), n_channels=2),
]


@pytest.mark.parametrize("check", OURS, ids=str)
def test_our_parts_keep_every_promise(check):
    check()


# ---------------------------------------------------------------------------------------------- broken parts are caught


def assert_caught(checks, promise):
    """The check of that promise fails, with a sentence."""
    (check,) = [check for check in checks if check.name.partition(": ")[2] == promise]
    with pytest.raises(CheckFailed, match=r"\w+ \w+.*\.$"):
        check()


class CountsForEver(Fifo):
    def advance(self, count, *, n_rows):
        return (count + n_rows).to(torch.int32)


class WritesInPlace(Fifo):
    def write(self, ring, count, rows):
        return ring.copy_(super().write(ring, count, rows))


class ShowsEverything(Fifo):
    def visible(self, count):
        return torch.ones_like(super().visible(count))


class KeepsOneRowOfEachCall(Fifo):
    def write(self, ring, count, rows):
        return super().write(ring, count, rows[:, -1:].expand_as(rows))


class ReadsTheMeanOfAllLanes(Fifo):
    def read(self, ring, count):
        rows = super().read(ring, count)
        return rows - rows.mean(dim=0, keepdim=True)


class Amnesia(Fifo):
    def write(self, ring, count, rows):
        return ring.clone()


class MultipliesByTheMask(Fifo):
    def read(self, ring, count):
        visible = self.visible(count)
        slot = torch.remainder(count[:, 1:] - self.n_rows + torch.arange(self.n_rows), self.n_slots).long()
        index = slot[:, None, :, None].expand(-1, ring.shape[1], -1, ring.shape[3])
        return ring.gather(2, index).transpose(1, 2) * visible[:, :, None, None]


BROKEN_MEMORIES = {
    CountsForEver: "counters never leave int32",
    WritesInPlace: "memory inputs stay untouched",
    ShowsEverything: "unfilled slots read as zero even when they hold nan",
    KeepsOneRowOfEachCall: "reads do not depend on the split of writes",
    ReadsTheMeanOfAllLanes: "a memory lane does not know the others",
    Amnesia: "what was written can be read",
    MultipliesByTheMask: "unfilled slots read as zero even when they hold nan",
}


@pytest.mark.parametrize(("policy", "promise"), BROKEN_MEMORIES.items(), ids=lambda part: getattr(part, "__name__", ""))
def test_a_broken_memory_is_caught(policy, promise):
    assert_caught(check_memory(policy), promise)


class LooksAhead(RunningNormaliser):
    """Shifts by the mean of the whole call, as a scaler that is fitted on all rows does."""

    def forward(self, x, present, norm):
        scale, norm = super().forward(x, present, norm)
        scale.mean.add_(x.mean(dim=1, keepdim=True) * 1e-3)
        return scale, norm


class TrustsEveryValue(RunningNormaliser):
    def forward(self, x, present, norm):
        scale, norm = super().forward(x, present, norm)
        return scale, torch.cat([norm[..., :3], norm[..., 3:] + x[:, -1, :, None] ** 2 * 0], dim=-1)


@pytest.mark.parametrize(
    ("module", "promise"),
    [
        (LooksAhead, "a later row changes no earlier scale"),
        (LooksAhead, "scale does not depend on the split of rows"),
        (TrustsEveryValue, "no value makes scale or state non finite"),
    ],
)
def test_a_broken_normaliser_is_caught(module, promise):
    assert_caught(check_normaliser(partial(module, half_life=8.0)), promise)


class ForgetsTheMask(PatchEmbedding):
    def forward(self, z, present, scale):
        return super().forward(z, torch.ones_like(present), scale)


class MixesRows(PatchEmbedding):
    def forward(self, z, present, scale):
        tokens = super().forward(z, present, scale)
        return tokens - tokens.mean(dim=1, keepdim=True)


class MixesLanes(PatchEmbedding):
    def forward(self, z, present, scale):
        tokens = super().forward(z, present, scale)
        return tokens - tokens.mean(dim=0, keepdim=True)


@pytest.mark.parametrize(
    ("module", "promise"),
    [
        (ForgetsTheMask, "a missing value is not a zero"),
        (MixesRows, "a token sees its own patch only"),
        (MixesLanes, "an embedding lane does not know the others"),
    ],
)
def test_a_broken_embedding_is_caught(module, promise):
    assert_caught(check_embedding(module), promise)


class Crosses(nn.Module):
    """One linear map per level: nothing keeps them in order."""

    def __init__(self, *, d_model, h, n_channels, quantiles):
        super().__init__()
        self.shape = (h, n_channels, len(quantiles))
        self.linear = nn.Linear(d_model, h * n_channels * len(quantiles))

    def forward(self, hidden, centre):
        return self.linear(hidden).unflatten(-1, self.shape) + centre[..., None]


class Explodes(QuantileHead):
    def forward(self, hidden, centre):
        return super().forward(hidden.exp(), centre)


class SwapsAxes(QuantileHead):
    def forward(self, hidden, centre):
        return super().forward(hidden, centre).transpose(2, 3)


class IgnoresTheCentre(QuantileHead):
    def forward(self, hidden, centre):
        return super().forward(hidden, torch.zeros_like(centre))


@pytest.mark.parametrize(
    ("module", "promise"),
    [
        (Crosses, "quantiles increase"),
        (Explodes, "outputs and gradients of huge hidden rows are finite"),
        (SwapsAxes, "there is one value per row step channel and level"),
        (IgnoresTheCentre, "forecasts move with the centre"),
    ],
)
def test_a_broken_head_is_caught(module, promise):
    assert_caught(check_head(module), promise)


class LastValue:
    """The smallest session: it forecasts the newest value of each lane."""

    def init_state(self, n_lanes):
        return {"last": np.zeros((n_lanes, 1), "float32")}

    def step(self, x, state, start=None):
        last = state["last"][:, 0].copy()
        if start is not None:
            last[start[:, 0] > 0] = 0
        y = np.empty((*x.shape[:2], 1), "float32")
        for t in range(x.shape[1]):
            last = np.where(np.isfinite(x[:, t, 0]), x[:, t, 0], last)
            y[:, t, 0] = last
        return y, {"last": last[:, None]}


@pytest.mark.parametrize("check", check_session(LastValue), ids=str)
def test_the_smallest_session_keeps_every_promise(check):
    check()


class HiddenState(LastValue):
    def __init__(self):
        self.calls = 0

    def step(self, x, state, start=None):
        self.calls += 1
        y, state = super().step(x, state, start)
        return y + np.float32(self.calls), state


class IgnoresStart(LastValue):
    def step(self, x, state, start=None):
        return super().step(np.where(np.arange(x.shape[1])[:, None] == 0, np.nan, x), state)


class StateInPlace(LastValue):
    def step(self, x, state, start=None):
        y, after = super().step(x, state, start)
        state["last"][:] = after["last"]
        return y, after


class CentresTheBatch(LastValue):
    def step(self, x, state, start=None):
        return super().step(x - np.nan_to_num(x).mean(axis=0), state, start)


class PassesNanOn(LastValue):
    def step(self, x, state, start=None):
        y, _ = super().step(x, state, start)
        return y, {"last": x[:, -1]}


@pytest.mark.parametrize(
    ("session", "promise"),
    [
        (HiddenState, "a call repeats and keeps nothing outside the state"),
        (IgnoresStart, "a started lane is a fresh lane"),
        (StateInPlace, "session inputs stay untouched"),
        (CentresTheBatch, "lanes alone equal lanes together"),
        (PassesNanOn, "no value makes the state non finite"),
    ],
)
def test_a_broken_session_is_caught(session, promise):
    assert_caught(check_session(session), promise)


def test_a_failed_check_is_an_assertion_error_and_ours():
    assert issubclass(CheckFailed, AssertionError)
    assert issubclass(CheckFailed, TxlError)


def test_checks_have_names_that_read_as_sentences_and_differ():
    names = [str(check) for check in check_memory(Fifo)]
    assert "memory: shapes stay fixed" in names
    assert len(set(names)) == len(names)
    assert all(isinstance(check, Check) for check in check_memory(Fifo))
