"""The form of the graph with columns beside the target: the model's numbers for any split of rows, in torch alone."""

import numpy as np
import pytest
import torch

from tests.test_export import CLOSE, assert_same_bits, calls, distance, flags, make_model, walk
from txl_ts.embeddings import beside_of, row_inputs
from txl_ts.export.graph import StreamGraph

KINDS = {
    "all": {"hist_kinds": (0, 3), "futr_kinds": (0, 2, 20, -1), "static_kinds": (0, 4)},
    "known up to now": {"hist_kinds": (0, 0)},
    "a category up to now": {"hist_kinds": (2,)},
    "known ahead": {"futr_kinds": (0,)},
    "the calendar": {"futr_kinds": (-1, -1)},
    "one large vocabulary": {"futr_kinds": (20,)},
    "static": {"static_kinds": (0, 2)},
    "two channels": {"futr_kinds": (0,), "hist_kinds": (0,), "n_channels": 2},
    "a transform": {"futr_kinds": (0, 2), "transform": "asinh", "scaler": "standard"},
}


def drawn(model, n_lanes, n_rows, *, seed=1):
    """Columns for every input, some cells missing; codes among them that no category has."""
    rng, sizes = np.random.default_rng(seed), {"batch": n_lanes, "time": n_rows}
    kinds = {"hist": model.config.hist_kinds, "static": model.config.static_kinds}
    out = {}
    for name, shape in row_inputs(model.config).items():
        array = rng.normal(size=[sizes.get(size, size) for size in shape]).astype(np.float32)
        for i, kind in enumerate(kinds.get(name, model.config.futr_kinds)):
            if kind > 0:
                array[..., i] = rng.integers(-1, kind + 2, array.shape[:-1])
        array[rng.random(array.shape) < 0.1] = np.nan
        out[name] = torch.from_numpy(array)
    return out


def cut(beside, begin, end):
    return {name: t if name == "static" else t[:, begin:end] for name, t in beside.items()}


def run_model(model, x, beside, *, length, restarts):
    state, found = model.init_state(len(x)), []
    with torch.inference_mode():
        for begin, end in calls(x.shape[1], length, restarts):
            rows, start = torch.from_numpy(x[:, begin:end]), torch.from_numpy(flags(len(x), begin, restarts))
            y, state = model(rows, state, start, beside=beside_of(cut(beside, begin, end), rows))
            found.append(y.numpy())
    return np.concatenate(found, axis=1), {spec.name: state[spec.name].numpy() for spec in model.stream_specs()}


def run_graph(model, x, beside, *, length, restarts, fixed=False):
    graph = StreamGraph(model, fixed=fixed).eval()
    state, found = {spec.name: model.init_state(len(x))[spec.name] for spec in model.stream_specs()}, []
    with torch.inference_mode():
        for begin, end in calls(x.shape[1], length, restarts):
            start = torch.from_numpy(flags(len(x), begin, restarts))
            some = cut(beside, begin, end).values()
            y, *present = graph(torch.from_numpy(x[:, begin:end]), start, *some, *state.values())
            state = dict(zip(state, present, strict=True))
            found.append(y.numpy())
    return np.concatenate(found, axis=1), {name: tensor.numpy() for name, tensor in state.items()}


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_the_form_of_the_graph_gives_the_models_numbers(changes):
    model = make_model(**changes)
    x, restarts = walk(3, 130, model.config.n_channels), {50: [1], 90: [0, 2]}
    beside = drawn(model, 3, 130)
    wanted, state_wanted = run_model(model, x, beside, length=256, restarts=restarts)
    for length in (1, 7, 64):
        found, state = run_graph(model, x, beside, length=length, restarts=restarts)
        assert distance(found, wanted) <= CLOSE
        for name, array in state.items():
            assert distance(array, state_wanted[name]) <= CLOSE, name


def test_the_graph_of_one_row_gives_the_models_numbers():
    model = make_model(**KINDS["all"])
    x, restarts, beside = walk(1, 60), {25: [0]}, drawn(model, 1, 60)
    wanted, _ = run_model(model, x, beside, length=256, restarts=restarts)
    found, _ = run_graph(model, x, beside, length=1, restarts=restarts, fixed=True)
    assert distance(found, wanted) <= CLOSE


def test_rows_that_share_what_is_known_ahead_are_rows_that_each_bring_it():
    """The estimator's form of the columns and the streams' form, of the same cells."""
    model = make_model(**KINDS["all"])
    h, n = model.config.h, 40
    beside = drawn(model, 2, n + h)
    x = torch.from_numpy(walk(2, n))
    at = torch.arange(n)[:, None] + torch.arange(1, h + 1)
    own = {"hist": beside["hist"][:, :n], "futr": beside["futr"][:, :n], "futr_ahead": beside["futr"][:, at]}
    shared = beside_of({"hist": beside["hist"][:, :n], "futr": beside["futr"], "static": beside["static"]}, x)
    with torch.inference_mode():
        wanted, _ = model(x, model.init_state(2), beside=shared)
        found, _ = model(x, model.init_state(2), beside=beside_of(own | {"static": beside["static"]}, x))
    assert distance(found.numpy(), wanted.numpy()) <= CLOSE


def test_what_is_known_ahead_moves_no_state():
    model = make_model(**KINDS["all"])
    x, beside = walk(2, 30), drawn(model, 2, 30)
    other = beside | {"futr_ahead": torch.full_like(beside["futr_ahead"], torch.nan)}
    y, state = run_graph(model, x, beside, length=30, restarts={})
    z, same = run_graph(model, x, other, length=30, restarts={})
    assert distance(y, z) > 1e-3
    for name, array in state.items():
        assert_same_bits(array, same[name])


def test_a_code_that_no_category_has_is_none_of_them():
    model = make_model(**KINDS["all"])
    x, beside = walk(1, 20), drawn(model, 1, 20)
    codes = {"futr": 2, "futr_ahead": 2, "hist": 1, "static": 1}
    found = []
    for code in (0.0, 21.0, -3.0, 1e30, np.nan, np.inf):
        some = {name: t.clone() for name, t in beside.items()}
        for name, column in codes.items():
            some[name][..., column] = code
        found.append(run_graph(model, x, some, length=20, restarts={})[0])
    for other in found[1:]:
        assert_same_bits(other, found[0])
