"""Layers whose memories differ in length: rings of different sizes, one pair of counters."""

import numpy as np
import pytest
import torch

from tests.oracles import closed_form
from txl_ts.config import ModelConfig
from txl_ts.errors import ParameterError
from txl_ts.export.graph import StreamGraph
from txl_ts.model import TXLModel

LENGTHS = (5, 1, 0)
SIZES = {"h": 2, "quantiles": (0.1, 0.5, 0.9), "patch_len": 1, "lookback": 0, "half_life": 24.0, "scaler": "standard"}
SIZES |= {"d_model": 12, "n_layers": 3, "n_heads": 3, "d_ff": 10}


def make_model(dtype=torch.float64, **changes):
    model = TXLModel(ModelConfig(**{**SIZES, "mem_len": LENGTHS, "stride": 2, **changes}))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.4)
    return model.to(dtype).eval()


def rows(n_rows, n_lanes=2, dtype=torch.float64):
    return torch.as_tensor(np.random.default_rng(0).normal(size=(n_lanes, n_rows, 1)), dtype=dtype)


def run(model, x, chunks=None):
    state, out = model.init_state(len(x)), []
    with torch.no_grad():
        for chunk in x.split(chunks or x.shape[1], dim=1):
            y, state = model(chunk, state)
            out.append(y)
    return torch.cat(out, dim=1), state


@pytest.mark.parametrize("chunks", [[90], [1] * 90, [7, 1, 40, 2, 40]], ids=str)
def test_layers_of_different_memory_equal_the_closed_form(chunks):
    backbone, x = make_model().backbone, torch.randn(1, 90, 12, generator=torch.Generator().manual_seed(1)).double()
    weights = {name: weight.numpy() for name, weight in backbone.state_dict().items()}
    expected = x[0].numpy()
    for i, mem_len in enumerate(LENGTHS):
        own = closed_form.below(weights, f"layers.{i}.")
        expected = closed_form.layer(expected, own, n_heads=3, mem_len=mem_len, stride=2)
    expected = closed_form.layer_norm(expected, closed_form.below(weights, "norm."))
    model, out = make_model(), []
    state = model.init_state(1)
    rings, count = model.rings(state), state["count"]
    with torch.no_grad():
        for chunk in x.split(chunks, dim=1):
            y, rings, count, _ = backbone(chunk, rings, count, memory=model.memory)
            out.append(y)
    # Float64 keeps 16 digits; sums of some hundred terms in another order.
    np.testing.assert_allclose(torch.cat(out, dim=1)[0].numpy(), expected, rtol=0, atol=1e-12)


def test_the_reach_is_the_sum_over_layers():
    model = make_model()
    assert model.config.reach == 2 * sum(LENGTHS)
    x, t = rows(40), 39
    for lag, counts in ((model.config.reach + 1, False), (model.config.reach, True)):
        changed = x.clone()
        changed[:, t - lag] += 1
        assert torch.equal(run(model, changed)[0][:, t], run(model, x)[0][:, t]) is not counts


def test_each_ring_has_the_size_of_its_layer_and_counters_wrap_at_all_of_them():
    model = make_model()
    sizes = {spec.name: spec.shape[1] for spec in model.state_specs() if spec.name.startswith("keys")}
    assert sizes == {"keys_0": 12, "keys_1": 4, "keys_2": 2}
    assert model.memory.turn == 12
    _, state = run(model, rows(25))
    assert state["count"].tolist() == [[12, 1]] * 2


def test_uneven_time_goes_with_layers_of_different_memory():
    changes = {"stride": 1, "lookback": 1, "futr_kinds": (-2,)}
    model, x = make_model(**changes), rows(60)
    assert torch.allclose(run(model, x, 7)[0], run(model, x)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("fixed", [False, True])
def test_the_graph_has_a_view_per_length(fixed):
    model, x = make_model(torch.float32), rows(60, 1, torch.float32)
    graph, state, out = StreamGraph(model, fixed=fixed), list(model.init_state(1).values()), []
    with torch.no_grad():
        for chunk in x.split(1 if fixed else [1, 20, 7, 32], dim=1):
            y, *state = graph(chunk, torch.zeros(1, 1, dtype=torch.int32), *state)
            out.append(y)
    assert torch.allclose(torch.cat(out, dim=1), run(model, x)[0], rtol=1e-5, atol=1e-5)


def test_equal_lengths_are_one_number_and_sizes_survive_json():
    assert make_model(mem_len=[4, 4, 4]).config.mem_len == 4
    config = make_model().config
    assert ModelConfig.from_json(config.to_json()) == config
    assert config.to_json()["mem_len"] == [5, 1, 0]


@pytest.mark.parametrize(
    ("mem_len", "message"),
    [
        ((3, 4), r"mem_len=\(3, 4\) has 2 lengths for n_layers=3"),
        ((3, -1, 4), r"mem_len=-1 \(int\) must be an integer of at least 0"),
        ((996, 1008, 1012), "rings that stand alike only every .* such as 15, 31, 63"),
    ],
    ids=str,
)
def test_lengths_that_cannot_work_are_refused(mem_len, message):
    with pytest.raises(ParameterError, match=message):
        make_model(mem_len=mem_len)
