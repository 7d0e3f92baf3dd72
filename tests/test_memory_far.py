"""Far memories: each policy against its oracle, and the promises that all of them keep."""

import math

import numpy as np
import pytest
import torch

from tests.oracles import far_memory
from txl_ts.backbone import Backbone
from txl_ts.config import ModelConfig
from txl_ts.errors import ParameterError
from txl_ts.memory import Compressive, Fifo, completed, is_far
from txl_ts.model import TXLModel

D, H, N_LAYERS, M = 12, 3, 2, 5
# Small enough that slots fill up and leave within a few dozen rows.
PARAMS = {
    "sinks": {"n_slots": 3},
    "compressive": {"n_slots": 7, "every": 2, "block": 4},
    "two_rate": {"n_slots": 4, "every": 3},
    "gated": {"n_slots": 3, "block": 4},
    "importance": {"n_slots": 4, "block": 3, "decay": 0.7},
    "tokens": {"n_slots": 3, "block": 5},
    "linear": {"block": 4},
    "same_layer": {"block": 4},
}
SIZES = {"h": 2, "quantiles": (0.1, 0.5, 0.9), "patch_len": 2, "stride": 1, "lookback": 4, "half_life": 24.0}
SIZES |= {"d_model": D, "n_layers": N_LAYERS, "n_heads": H, "d_ff": 10, "mem_len": M}
# Float64 keeps 16 digits; sums of some hundred terms of size one, in another order than the oracle's.
EXACT = {"rtol": 0, "atol": 1e-12}

every_policy = pytest.mark.parametrize("name", PARAMS)


def config_of(name, **changes):
    return completed(ModelConfig(**{**SIZES, "memory": name, "memory_params": PARAMS.get(name, {}), **changes}))


def randomise(module, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.4)
    return module.eval()


def make_model(name, dtype=torch.float32, **changes):
    return randomise(TXLModel(config_of(name, **changes))).to(dtype)


def random_rows(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def random_chunks(n_rows, rng, longest=40):
    chunks = []
    while (left := n_rows - sum(chunks)) > 0:
        chunks.append(min(left, int(np.exp(rng.uniform(0, np.log(longest))))))
    return chunks


def run(model, x, chunks=None, state=None, starts=None):
    state = model.init_state(len(x)) if state is None else state
    out = []
    with torch.no_grad():
        for i, chunk in enumerate(x.split(chunks or x.shape[1], dim=1)):
            y, state = model(chunk, state, (starts or {}).get(i))
            out.append(y)
    return torch.cat(out, dim=1), state


def distance(a, b):
    a, b = a.double().nan_to_num(0), b.double().nan_to_num(0)
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))


def run_backbone(backbone, x, chunks, *, training=False):
    heads = {"kinds": ("hidden",), "n_heads": 1, "d_head": D} if training else None
    heads = heads or {"kinds": ("keys", "values"), "n_heads": H, "d_head": D // H}
    memory, n_kinds = Fifo(mem_len=M), len(heads["kinds"])
    *specs, count = memory.specs(n_layers=N_LAYERS, **heads)
    every = [torch.zeros(len(x), *spec.shape, dtype=x.dtype) for spec in specs]
    rings = [tuple(every[i : i + n_kinds]) for i in range(0, len(every), n_kinds)]
    count = torch.zeros(len(x), *count.shape, dtype=torch.int32)
    dtypes = {"int32": torch.int32, "float32": x.dtype}
    far = {s.name: torch.zeros(len(x), *s.shape, dtype=dtypes[s.dtype]) for s in backbone.far_specs()}
    out = []
    with torch.no_grad():
        for chunk in x.split(chunks, dim=1):
            y, rings, count, far = backbone(chunk, rings, count, memory=memory, far=far)
            out.append(y)
    return torch.cat(out, dim=1)


# -------------------------------------------------------------------------------------------------------- the oracle

CHUNKS = {"whole": [71], "one by one": [1] * 71, "uneven": [2, 1, 7, 3, 20, 5, 33]}


@every_policy
@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("training", [False, True])
def test_layers_equal_the_oracle_row_by_row(name, chunks, training):
    backbone = randomise(Backbone(config_of(name))).double()
    x = random_rows(2, 71, D)
    weights = {key: weight.numpy() for key, weight in backbone.state_dict().items()}
    sizes = {"n_layers": N_LAYERS, "n_heads": H, "mem_len": M, **config_of(name).memory_params}
    expected = [far_memory.backbone(lane, weights, far_memory.POLICIES[name], **sizes) for lane in x.numpy()]
    found = run_backbone(backbone, x, chunks, training=training)
    np.testing.assert_allclose(found.numpy(), np.stack(expected), **EXACT)


# ------------------------------------------------------------------------------------------- chunks, lanes, causality


@every_policy
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_any_split_of_a_stream_gives_the_same_outputs_and_state(name, dtype, tolerance):
    model, x = make_model(name, dtype), random_rows(2, 700, 1, dtype=dtype)
    whole, state = run(model, x)
    for seed in (20, 21):
        y, other = run(model, x, random_chunks(700, np.random.default_rng(seed)))
        assert distance(y, whole) <= tolerance, f"seed {seed}"
        assert all(distance(other[key], state[key]) <= tolerance for key in state), f"seed {seed}"


@every_policy
def test_changing_later_rows_changes_no_earlier_output_at_all(name):
    model, x = make_model(name), random_rows(1, 90, 1, dtype=torch.float32)
    before, _ = run(model, x)
    for row in (1, 6, 7, 40, 41, 42, 89):
        changed = x.clone()
        changed[:, row:] = math.nan if row % 2 else 9.0
        assert torch.equal(run(model, changed)[0][:, :row], before[:, :row]), row


@every_policy
def test_lanes_may_stand_at_different_places_of_the_grid(name):
    model, x = make_model(name, torch.float64), random_rows(3, 100, 1)
    chunks = [31, 1, 1, 20, 47]
    starts = {i: torch.tensor([[0], [i == 1], [i == 2]]) for i in (1, 2)}
    y, state = run(model, x, chunks, starts=starts)
    alone, own = run(model, x[1:2, 31:])
    assert distance(y[1:2, 31:], alone) <= 1e-12
    assert all(distance(state[key][1:2], own[key]) <= 1e-12 for key in state if not key.startswith(("keys", "values")))
    alone, _ = run(model, x[2:3, 32:], 9)
    assert distance(y[2:3, 32:], alone) <= 1e-12
    order = [2, 0, 1]
    starts = {i: start[order] for i, start in starts.items()}
    permuted, _ = run(model, x[order], chunks, starts=starts)
    assert distance(permuted, y[order]) <= 1e-12


@every_policy
def test_what_happens_in_one_lane_leaves_the_others_bit_equal(name):
    model, x = make_model(name), random_rows(3, 60, 1, dtype=torch.float32)
    before, state = run(model, x, 25)
    bad = x.clone()
    bad[1, 20:40] = math.inf
    after, other = run(model, bad, 25)
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert all(torch.equal(other[key][[0, 2]], state[key][[0, 2]]) for key in state)
    assert all(tensor.isfinite().all() for tensor in other.values())


@every_policy
def test_a_stream_goes_on_from_its_state_bit_for_bit(name):
    model, x = make_model(name), random_rows(2, 80, 1, dtype=torch.float32)
    y, _ = run(model, x, [40, 13, 27])
    _, state = run(model, x[:, :40])
    kept = {key: tensor.numpy().copy() for key, tensor in state.items()}
    assert list(kept) == [spec.name for spec in model.state_specs()]
    later, _ = run(model, x[:, 40:], [13, 27], {key: torch.from_numpy(array) for key, array in kept.items()})
    assert torch.equal(later, y[:, 40:])


@every_policy
def test_ten_thousand_rows_leave_the_state_finite_and_bounded(name):
    model, x = make_model(name), random_rows(1, 10_000, 1, dtype=torch.float32)
    state, sizes = model.init_state(1), []
    for chunk in x.split(1000, dim=1):
        with torch.no_grad():
            y, state = model(chunk, state, last_only=True)
        assert y.isfinite().all()
        sizes.append(max((float(t.abs().max()) for key, t in state.items() if is_far(key)), default=0.0))
    assert max(sizes[5:]) <= 2 * max(sizes[:5])


# ----------------------------------------------------------------------------------------------------------- training


@every_policy
def test_training_walks_the_same_numbers(name):
    model, x = make_model(name, torch.float64), random_rows(2, 96, 1)
    state, out = model.init_visits(2, n_phases=1), []
    with torch.no_grad():
        for chunk in x.split(24, dim=1):
            z, front, state = model.forward_visits(chunk, state, torch.tensor([0]))
            out.append(front.scale.restore(z))
    assert distance(torch.cat(out, dim=1), run(model, x)[0]) <= 1e-12


@every_policy
def test_every_weight_gets_a_gradient_within_a_segment(name):
    model, x = make_model(name).train(), random_rows(2, 60, 1, dtype=torch.float32)
    first, _, state = model.forward_visits(x[:, :30], model.init_visits(2, n_phases=1), torch.tensor([0]))
    state = {key: tensor.detach() for key, tensor in state.items()}
    z, _, _ = model.forward_visits(x[:, 30:], state, torch.tensor([0]))
    (first + z).square().mean().backward()
    missing = [key for key, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert missing == []


def test_the_loss_of_compression_stays_in_the_convolution(monkeypatch):
    x, found = random_rows(2, 60, 1, dtype=torch.float32), []
    for own_loss in (Compressive.own_loss, lambda self, rows, attention: None):
        monkeypatch.setattr(Compressive, "own_loss", own_loss)
        model = make_model("compressive").train()
        z, _, _ = model.forward_visits(x, model.init_visits(2, n_phases=1), torch.tensor([0]))
        z.square().mean().backward()
        found.append({key: p.grad for key, p in model.named_parameters()})
    on, off = found
    for key in on:
        if key.endswith("far.mix"):
            assert on[key].abs().max() > 0
            assert off[key] is None
        else:
            assert torch.equal(on[key], off[key]), key


def test_the_loss_of_compression_falls_to_nothing_where_compression_loses_nothing():
    model = make_model("compressive", torch.float64)
    layer = model.backbone.layers[0]
    same = random_rows(3, 2, 1, D).expand(-1, -1, 4, -1).flatten(0, 1)  # blocks of equal rows: their mean is all of it
    with torch.no_grad():
        layer.far.mix.copy_(torch.eye(D).repeat(2, 1) / 2)
        assert float(layer.far.own_loss(same, layer.attention)) < 1e-25
        assert float(layer.far.own_loss(random_rows(6, 4, D), layer.attention)) > 1e-3


# -------------------------------------------------------------------------------------------------------------- reach


def moves_the_last_row(model, *, n_rows, lag):
    """Whether a change of the row ``lag`` rows before the last one changes what is said there."""
    x = random_rows(1, n_rows, 1)
    changed = x.clone()
    changed[:, n_rows - 1 - lag] += 1.5
    return not torch.equal(run(model, x)[0][:, -1], run(model, changed)[0][:, -1])


PLAIN = {"scaler": "standard", "lookback": 0, "patch_len": 1}


def test_two_rates_reach_as_far_as_promised_and_the_window_alone_does_not():
    model, fifo = (make_model(name, torch.float64, **PLAIN) for name in ("two_rate", "fifo"))
    every, n_slots = 3, 4
    assert model.config.reach == N_LAYERS * every * n_slots
    assert fifo.config.reach == N_LAYERS * M
    for n_rows in (61, 62, 63):
        offset = (n_rows - 1) % every  # a row sees whole blocks: up to a block further than is promised
        assert moves_the_last_row(model, n_rows=n_rows, lag=model.config.reach)
        assert not moves_the_last_row(model, n_rows=n_rows, lag=model.config.reach + offset + 1)
        assert not moves_the_last_row(fifo, n_rows=n_rows, lag=fifo.config.reach + 1)


def test_compressed_rows_reach_as_far_as_promised():
    model = make_model("compressive", torch.float64, **PLAIN)
    assert model.config.reach == N_LAYERS * 2 * 7
    for n_rows in (81, 82, 83, 84):
        assert moves_the_last_row(model, n_rows=n_rows, lag=model.config.reach)
        assert not moves_the_last_row(model, n_rows=n_rows, lag=model.config.reach + 2 * 4)


@pytest.mark.parametrize("name", ["gated", "tokens", "linear", "same_layer"])
def test_a_state_that_is_carried_on_reaches_beyond_any_window(name):
    model = make_model(name, torch.float64, **PLAIN)
    assert model.config.reach == N_LAYERS * M  # promised is what the window gives
    assert moves_the_last_row(model, n_rows=150, lag=20 * N_LAYERS * M // 2)


def test_sinks_claim_no_reach_beyond_the_window():
    model = make_model("sinks", torch.float64, **PLAIN)
    assert model.config.reach == N_LAYERS * M
    assert not moves_the_last_row(model, n_rows=60, lag=N_LAYERS * M + 1)


# --------------------------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory": "fifi"}, r"memory='fifi' is not known\. Choose one of \['fifo'.*Did you mean 'fifo'\?"),
        (
            {"memory": "two_rate", "memory_params": {"evry": 3}},
            r"has \['evry'\], which memory='two_rate' does not know",
        ),
        ({"memory": "fifo", "memory_params": {"n_slots": 3}}, r"memory='fifo' does not know\. It has none"),
        ({"memory": "two_rate", "memory_params": {"every": 0}}, r"memory_params\['every'\]=0 .* at least 1"),
        (
            {"memory": "two_rate", "memory_params": {}, "stride": 2},
            "stride=2 does not go with memory='two_rate'.*stride=1",
        ),
    ],
    ids=str,
)
def test_parameters_that_cannot_work_are_refused(changes, message):
    with pytest.raises(ParameterError, match=message):
        config_of("fifo", **changes)


def test_sizes_say_all_parameters_of_the_policy_and_survive_json():
    config = config_of("two_rate", memory_params={"every": 6})
    assert config.memory_params == {"n_slots": 16, "every": 6}
    assert ModelConfig.from_json(config.to_json()) == config
    assert "memory_params" not in config_of("fifo").to_json()


@pytest.mark.parametrize(
    ("changes", "params"),
    [({"mem_len": 0}, {"n_slots": 4, "every": 3}), ({}, {"n_slots": 6, "every": 1}), ({}, {"n_slots": 1, "every": 50})],
    ids=str,
)
def test_any_split_gives_the_same_at_the_edges_of_the_sizes(changes, params):
    model = make_model("two_rate", torch.float64, memory_params=params, **changes)
    x = random_rows(2, 130, 1)
    whole, _ = run(model, x)
    for chunks in (1, 7, 49, 51):
        assert distance(run(model, x, chunks)[0], whole) <= 1e-12


def test_slots_go_with_uneven_time():
    model = make_model("two_rate", torch.float64, futr_kinds=(-2,))
    x = random_rows(2, 60, 1)
    assert distance(run(model, x, 7)[0], run(model, x)[0]) <= 1e-12


def test_sinks_go_with_interleaved_phases():
    model, x = make_model("sinks", torch.float64, stride=2), random_rows(2, 60, 1)
    assert distance(run(model, x, 7)[0], run(model, x)[0]) <= 1e-12
