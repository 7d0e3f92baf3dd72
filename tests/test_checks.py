"""Our own parts pass the checks that every part must pass, and broken ones do not."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from txl_ts.checks import (
    Check,
    CheckFailed,
    check_covariates,
    check_embedding,
    check_head,
    check_memory,
    check_normaliser,
    check_session,
)
from txl_ts.config import ModelConfig
from txl_ts.embeddings import CovariateEmbedding, PatchEmbedding, RunningNormaliser, StandardNormaliser
from txl_ts.errors import ParameterError, TxlError
from txl_ts.heads import HEADS, QuantileHead
from txl_ts.memory import Fifo
from txl_ts.model import TXLModel
from txl_ts.runtime import StreamSession, fleet_of, read_contract


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
    *check_covariates(CovariateEmbedding),
    *check_head(QuantileHead),
    *(check for head in HEADS.values() for check in check_head(head)),
    *check_session(ModelSession),
    *check_session(partial(ModelSession, n_channels=2, scaler="standard", mem_len=0), n_channels=2),
    *check_session(partial(ModelSession, n_channels=2, distribution="student_t"), n_channels=2),
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
        return super().write(ring, count, rows[:, :, -1:].expand_as(rows))


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
        return ring.gather(2, index) * visible[:, None, :, None]


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
        return scale, torch.cat([norm[:, :3], norm[:, 3:] + x[:, -1:] ** 2 * 0], dim=1)


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


class SeesAhead(CovariateEmbedding):
    def forward(self, beside, ahead, state, picked):
        tokens, moved = super().forward(beside, ahead, state, picked)
        return tokens + beside.futr[:, -1:, :1].nan_to_num(), moved


class ForgetsBetweenCalls(CovariateEmbedding):
    def forward(self, beside, ahead, state, picked):
        return super().forward(beside, ahead, {name: torch.zeros_like(t) for name, t in state.items()}, picked)


class TakesMissingForZero(CovariateEmbedding):
    def forward(self, beside, ahead, state, picked):
        whole = replace(beside, hist=beside.hist.nan_to_num(0), futr=beside.futr.nan_to_num(0))
        return super().forward(whole, self.futr(whole.futr), state, picked)


class IgnoresStaticColumns(CovariateEmbedding):
    def forward(self, beside, ahead, state, picked):
        return super().forward(replace(beside, static=torch.zeros_like(beside.static)), ahead, state, picked)


@pytest.mark.parametrize(
    ("module", "promise"),
    [
        (SeesAhead, "a later row changes no earlier token"),
        (ForgetsBetweenCalls, "any split of the rows gives one answer"),
        (TakesMissingForZero, "a missing amount is not a zero"),
        (IgnoresStaticColumns, "every role reaches the token"),
    ],
)
def test_a_broken_embedding_of_columns_is_caught(module, promise):
    assert_caught(check_covariates(module), promise)


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


# ------------------------------------------------------------------------------------------------------- named streams

CONTRACT = {
    "schema": "1.0.0",
    "model_digest": "ab" * 32,
    "inputs": [
        {"name": "x", "dims": ["batch", "time", 1], "channels": [{"name": "y"}]},
        {"name": "start", "dims": ["batch", 1]},
    ],
    "outputs": [{"name": "y"}],
    "states": [{"in": "past.00.sum", "out": "present.00.sum", "dtype": "float32", "dims": [1], "init": "zeros"}],
    "freq": "5",
    "time": {"kind": "integer", "step": 5},
    "segment": {"min": 1, "max": 32, "trained": 8},
    "memory": {"layers": 1, "length": 1, "stride": 1, "reach": 4},
    "horizon": 1,
    "quantiles": [0.5],
    "lane_independent": True,
}


class FadingSum:
    """What a session of named streams drives: a sum that fades with every row, missing ones among them."""

    def __init__(self, **changes):
        self.contract = read_contract(json.dumps(CONTRACT | changes), where="here")

    def run(self, feed):
        x, total = np.nan_to_num(feed["x"]), feed["past.00.sum"] * (feed["start"] == 0)
        y = np.empty((*x.shape[:2], 1, 1, 1), "float32")
        for t in range(x.shape[1]):
            total = (np.float32(0.9) * total + np.float32(0.1) * x[:, t]).astype("float32")
            y[:, t, 0, 0] = total
        return [y, total]


class FadingSums(StreamSession):
    """The smallest session of named streams."""

    def __init__(self, **changes):
        self._begin(fleet_of(FadingSum(**changes)))


@pytest.mark.parametrize(
    "check",
    [
        *check_session(FadingSums, protocol="streams"),
        *check_session(partial(FadingSums, time={"kind": "datetime"}, freq="MS"), protocol="streams"),
    ],
    ids=str,
)
def test_the_smallest_session_of_streams_keeps_every_promise(check):
    check()


class StepsOneAfterTheOther(FadingSums):
    def step(self, rows):
        return {name: super(StepsOneAfterTheOther, self).step({name: row})[name] for name, row in dict(rows).items()}


class SwallowsErrors(FadingSums):
    def step(self, rows):
        try:
            return super().step(rows)
        except TxlError:
            return {}


class RaisesOthersErrors(FadingSums):
    def reset(self, name):
        assert self._fleet.lanes[name] >= 0  # a KeyError
        self._fleet.reset(name)


class ForksShareALane(FadingSums):
    """What happens to the fork happens to the state of the stream that it came from."""

    shared = ()

    def copy(self, name, new):
        super().copy(name, new)
        self.shared = self.shared or (name, new)

    def step(self, rows):
        out = super().step(rows)
        lanes = [np.array([self._fleet.lanes[name]]) for name in self.shared if name in self._fleet.lanes]
        if len(lanes) == 2:
            self._fleet.store.scatter(lanes[0], self._fleet.store.gather(lanes[1]))
        return out


class RestoresRoughly(FadingSums):
    def restore(self, path):
        super().restore(path)
        for array in (array for shelf in self._fleet.store.shelves for array in shelf):
            array *= np.float32(1.001)


class StartsNothing(FadingSum):
    def run(self, feed):
        return super().run({**feed, "start": np.zeros_like(feed["start"])})


class LeavesTraces(FadingSums):
    """Whoever gets the lane of a closed stream finds what was in it, and is not told to begin."""

    def __init__(self):
        self._begin(fleet_of(StartsNothing()))


class IgnoresTimes(FadingSums):
    def step(self, rows):
        return super().step({name: {"values": row["values"]} for name, row in rows.items()})


class CountsItsCalls(FadingSum):
    n_calls = 0

    def run(self, feed):
        self.n_calls += 1
        y, total = super().run(feed)
        return [y + np.float32(self.n_calls), total]


class RemembersItsCalls(FadingSums):
    def __init__(self):
        self._begin(fleet_of(CountsItsCalls()))


class CentresSteps(FadingSum):
    def run(self, feed):
        return super().run({**feed, "x": feed["x"] - np.nan_to_num(feed["x"]).mean(axis=0)})


class CentresItsStreams(FadingSums):
    def __init__(self):
        self._begin(fleet_of(CentresSteps()))


class AnswersInOneBuffer(FadingSums):
    def step(self, rows):
        out = super().step(rows)
        self.buffer = getattr(self, "buffer", np.zeros((4, 100, 1, 1), np.float32))
        for i, result in enumerate(out.values()):
            view = self.buffer[i, : len(result.forecasts)]
            view[:] = result.forecasts
            object.__setattr__(result, "forecasts", view)
        return out


class CleansTheCallersRows(FadingSums):
    def step(self, rows):
        for row in dict(rows).values():
            np.nan_to_num(row["values"]["y"], copy=False)
        return super().step(rows)


class SortsItsStreams(FadingSums):
    @property
    def streams(self):
        return tuple(sorted(super().streams, key=str))


@pytest.mark.parametrize(
    ("session", "promise"),
    [
        (StepsOneAfterTheOther, "a refused call leaves every stream as it was"),
        (SwallowsErrors, "a refused call leaves every stream as it was"),
        (RaisesOthersErrors, "a refused call leaves every stream as it was"),
        (ForksShareALane, "a copy is a fork"),
        (RestoresRoughly, "a restored snapshot goes on bit equal"),
        (LeavesTraces, "a closed stream is gone and leaves no trace"),
        (IgnoresTimes, "rows that did not come are missing rows"),
        (IgnoresTimes, "a gap beyond the reach begins the stream anew"),
        (RemembersItsCalls, "the split of rows does not matter"),
        (RemembersItsCalls, "catching up equals row by row"),
        (RemembersItsCalls, "a new name begins by itself"),
        (CentresItsStreams, "any subset may step"),
        (CentresItsStreams, "bad values in one stream change no bit of the others"),
        (AnswersInOneBuffer, "results do not change later"),
        (CleansTheCallersRows, "the rows of a call stay untouched"),
        (SortsItsStreams, "a step answers every row of the streams that were given"),
    ],
)
def test_a_broken_session_of_streams_is_caught(session, promise):
    assert_caught(check_session(session, protocol="streams"), promise)


def test_a_protocol_that_nobody_speaks_is_refused():
    with pytest.raises(ParameterError, match="protocol='grpc', expected 'state' or 'streams'"):
        check_session(LastValue, protocol="grpc")


def test_a_failed_check_is_an_assertion_error_and_ours():
    assert issubclass(CheckFailed, AssertionError)
    assert issubclass(CheckFailed, TxlError)


def test_checks_have_names_that_read_as_sentences_and_differ():
    names = [str(check) for check in check_memory(Fifo)]
    assert "memory: shapes stay fixed" in names
    assert len(set(names)) == len(names)
    assert all(isinstance(check, Check) for check in check_memory(Fifo))
