"""The same weights with another length of memory: as if the model had been made so, and states that go over."""

import numpy as np
import pytest
import torch

from tests.oracles import closed_form
from txl_ts.config import ModelConfig
from txl_ts.errors import ParameterError
from txl_ts.export.graph import StreamGraph
from txl_ts.label_model import LabelConfig, LabelModel
from txl_ts.model import TXLModel

D, H = 12, 3
SIZES = {"h": 2, "quantiles": (0.1, 0.5, 0.9), "patch_len": 1, "lookback": 0, "half_life": 24.0, "scaler": "standard"}
SIZES |= {"stride": 2, "mem_len": 4, "d_model": D, "n_layers": 2, "n_heads": H, "d_ff": 10}

# Float64 keeps 16 digits; sums of some hundred terms of size one, in another order.
EXACT = {"rtol": 0, "atol": 1e-12}


def make_model(dtype=torch.float64, **changes):
    return randomise(TXLModel(ModelConfig(**{**SIZES, **changes})), dtype)


def randomise(model, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.4)
    return model.to(dtype).eval()


def rows(n_rows, n_lanes=2, dtype=torch.float64):
    return torch.as_tensor(np.random.default_rng(0).normal(size=(n_lanes, n_rows, 1)), dtype=dtype)


def run(model, x, state=None, chunks=None):
    out, state = [], model.init_state(len(x)) if state is None else state
    with torch.no_grad():
        for chunk in x.split(chunks or x.shape[1], dim=1):
            y, state = model(chunk, state)
            out.append(y)
    return torch.cat(out, dim=1), state


# ----------------------------------------------------------------------------------------------------- the same weights


@pytest.mark.parametrize("clamp_len", [None, 3])
@pytest.mark.parametrize("mem_len", [0, 2, 9, 70, (7, 1)], ids=str)
def test_a_model_with_another_memory_equals_the_closed_form_of_that_length(mem_len, clamp_len):
    model = make_model().with_memory(mem_len, clamp_len=clamp_len)
    x = torch.randn(2, 90, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    state, out = model.init_state(2), []
    rings, count = model.rings(state), state["count"]
    with torch.no_grad():
        for chunk in x.split([1, 40, 2, 47], dim=1):
            y, rings, count, _ = model.backbone(chunk, rings, count, memory=model.memory)
            out.append(y)
    weights = {name: weight.numpy() for name, weight in make_model().backbone.state_dict().items()}
    for lane, found in zip(x.numpy(), torch.cat(out, dim=1).numpy(), strict=True):
        h = lane
        for i in range(2):
            length = mem_len if isinstance(mem_len, int) else mem_len[i]
            sizes = {"n_heads": H, "mem_len": length, "stride": 2, "clamp_len": clamp_len}
            h = closed_form.layer(h, closed_form.below(weights, f"layers.{i}."), **sizes)
        np.testing.assert_allclose(found, closed_form.layer_norm(h, closed_form.below(weights, "norm.")), **EXACT)


def test_the_copy_has_weights_of_its_own_and_nothing_else_moves():
    model, drawn = make_model(), torch.random.get_rng_state()
    longer = model.with_memory(9)
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert (model.config.mem_len, longer.config.mem_len) == (4, 9)
    assert not longer.training
    assert longer.train().with_memory(2).training
    for (name, own), (other, weight) in zip(longer.state_dict().items(), model.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(own, weight)
        assert not own.numel() or own.data_ptr() != weight.data_ptr()


def test_clamp_len_stays_unless_another_is_given():
    model = make_model(clamp_len=3)
    assert model.with_memory(9).config.clamp_len == 3
    assert model.with_memory(9, clamp_len=5).config.clamp_len == 5


def test_a_clamp_that_no_distance_reaches_changes_nothing():
    x, model = rows(40), make_model()
    assert torch.equal(run(model.with_memory(4, clamp_len=4), x)[0], run(model, x)[0])
    assert not torch.equal(run(model.with_memory(4, clamp_len=3), x)[0], run(model, x)[0])


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("mem_len", [9, (2, 5)], ids=str)
def test_the_graph_of_the_copy_is_the_copy(fixed, mem_len):
    model, x = make_model(torch.float32).with_memory(mem_len, clamp_len=3), rows(60, 1, torch.float32)
    graph, state, out = StreamGraph(model, fixed=fixed), list(model.init_state(1).values()), []
    with torch.no_grad():
        for chunk in x.split(1 if fixed else [1, 20, 7, 32], dim=1):
            y, *state = graph(chunk, torch.zeros(1, 1, dtype=torch.int32), *state)
            out.append(y)
    assert torch.allclose(torch.cat(out, dim=1), run(model, x)[0], rtol=1e-5, atol=1e-5)


# -------------------------------------------------------------------------------------------------- states that go over


@pytest.mark.parametrize("chunks", [31, [2, 1, 20, 8]], ids=str)
@pytest.mark.parametrize("mem_len", [0, 1, 4, 5, 9])
@pytest.mark.parametrize("seen", [3, 29, 64])
def test_a_memory_goes_on_with_all_rows_that_fit_and_no_other(seen, mem_len, chunks):
    before, x = make_model(n_layers=1), rows(seen + 31)
    after = before.with_memory(mem_len)
    state = after.taken_over(run(before, x[:, :seen])[1], before=before)
    # One layer's memory is a function of rows: those of a shorter memory lie in it, a longer one starts where it began.
    began = max(0, seen - 2 * (4 + 1)) if mem_len > 4 else 0
    expected, _ = run(after, x[:, began:])
    np.testing.assert_allclose(run(after, x[:, seen:], state, chunks)[0], expected[:, seen - began :], **EXACT)


def test_layers_that_grow_do_not_take_what_their_ring_never_held_for_rows():
    before, x = make_model(mem_len=(6, 1)), rows(70)
    after, state = before.with_memory((6, 6)), run(before, x[:, :40])[1]
    moved = after.taken_over(state, before=before)
    filled = {name: torch.full_like(t, torch.nan) for name, t in moved.items() if name.startswith(("keys", "values"))}
    kept = moved["count"][:, :1]
    assert kept.tolist() == [[4]] * 2  # two visits of two phases
    for name, ring in filled.items():  # what is visible, in the midst of NaN
        newest = after.memory.of(int(name[-1])).read(moved[name], moved["count"])[:, :, -4:]
        order = torch.cat([kept, moved["count"][:, 1:] - 4], dim=1)
        filled[name] = after.memory.of(int(name[-1])).write(ring, order, newest)
    found, _ = run(after, x[:, 40:], moved | filled)
    assert torch.equal(found, run(after, x[:, 40:], moved)[0])


def test_the_same_length_goes_over_to_the_same_numbers():
    for policy in ("fifo", "two_rate"):
        model, x = make_model(stride=1, memory=policy), rows(50)
        state = run(model, x[:, :30])[1]
        moved = model.taken_over(state, before=model)
        np.testing.assert_allclose(run(model, x[:, 30:], moved)[0], run(model, x[:, 30:], state)[0], **EXACT)


@pytest.mark.parametrize("mem_len", [1, 9])
def test_where_time_is_uneven_the_gaps_go_over_too(mem_len):
    before, x = make_model(n_layers=1, stride=1, lookback=1, futr_kinds=(-2,)), rows(60)
    after = before.with_memory(mem_len)
    beside = before._none_known(x, 60)
    beside.futr[..., 0] = torch.as_tensor(np.random.default_rng(1).exponential(size=(2, 62)))

    def fed(model, first, stop, state):
        part = type(beside)(beside.hist[:, first:stop], beside.futr[:, first : stop + 2], beside.static)
        with torch.no_grad():
            return model(x[:, first:stop], state, beside=part)

    _, state = fed(before, 0, 30, before.init_state(2))
    found, _ = fed(after, 30, 60, after.taken_over(state, before=before))
    whole, _ = fed(after, 0, 60, after.init_state(2))
    began = max(0, 30 - 5) if mem_len > 4 else 0
    if began:  # a memory that was empty there, with the clock, the normaliser and the last rows of before
        _, there = fed(before, 0, began, before.init_state(2))
        there = after.taken_over(there, before=before)
        whole, _ = fed(after, began, 60, there | {"count": torch.zeros_like(there["count"])})
    np.testing.assert_allclose(found, whole[:, 30 - began :], **EXACT)


def test_a_model_of_labels_takes_another_memory_too():
    sizes = {
        name: SIZES[name] for name in ("patch_len", "mem_len", "half_life", "d_model", "n_layers", "n_heads", "d_ff")
    }
    model = randomise(LabelModel(LabelConfig(**sizes, lookback=1, n_outputs=3, pooling="mean")))
    x, longer = rows(40), model.with_memory(7)
    assert isinstance(longer, LabelModel)
    expected = randomise(LabelModel(LabelConfig(**{**sizes, "mem_len": 7}, lookback=1, n_outputs=3, pooling="mean")))
    assert torch.equal(run(longer, x)[0], run(expected, x)[0])
    state = longer.taken_over(run(model, x[:, :20])[1], before=model)
    assert torch.equal(state["pool"], run(model, x[:, :20])[1]["pool"])
    assert run(longer, x[:, 20:], state)[0].isfinite().all()


# ------------------------------------------------------------------------------------------------------------- refusals


def test_sizes_survive_json_and_stay_out_of_it_by_default():
    assert "clamp_len" not in make_model().config.to_json()
    config = make_model(clamp_len=3).config
    assert config.to_json()["clamp_len"] == 3
    assert ModelConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clamp_len": 0}, r"clamp_len=0 \(int\) must be an integer of at least 1"),
        ({"clamp_len": 3, "stride": 1, "lookback": 1, "futr_kinds": (-2,)}, "clamp_len=3 does not go with uneven time"),
    ],
    ids=str,
)
def test_a_clamp_that_cannot_work_is_refused(changes, message):
    with pytest.raises(ParameterError, match=message):
        make_model(**changes)
