"""Other readings of Transformer-XL's layer, each against a closed form or the original's own steps, in float64."""

import copy
import itertools

import numpy as np
import pytest
import torch

from tests.oracles import closed_form, original_code
from txl_ts.backbone import Backbone
from txl_ts.config import ModelConfig
from txl_ts.errors import ExportError, ParameterError
from txl_ts.export.graph import StreamGraph
from txl_ts.memory import Fifo
from txl_ts.model import TXLModel
from txl_ts.walk import walk

D, H, LAYERS = 12, 3, 2
SIZES = {"h": 1, "quantiles": (0.5,), "patch_len": 1, "lookback": 0, "half_life": 8.0, "scaler": "standard"}
SIZES |= {"stride": 1, "mem_len": 5, "d_model": D, "n_layers": LAYERS, "n_heads": H, "d_ff": 10}

# Float64 keeps 16 digits; sums of some hundred terms of size one, in another order.
EXACT = {"rtol": 0, "atol": 1e-12}


def randomise(module):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.4)
    return module.double().eval()


def make_backbone(**changes):
    config = ModelConfig(**{**SIZES, **changes})
    return randomise(Backbone(config)), Fifo(mem_len=config.mem_len, stride=config.stride)


def random_rows(n_rows, seed=1):
    return torch.randn(2, n_rows, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def arrays(module):
    return {name: weight.numpy() for name, weight in module.state_dict().items()}


KINDS = {"hidden rows": {"kinds": ("hidden",), "n_heads": 1, "d_head": D}}
KINDS["keys and values"] = {"kinds": ("keys", "values"), "n_heads": H, "d_head": D // H}


def run(backbone, memory, x, chunks, form="keys and values", filler=0.0):
    """Outputs, and the rings after the last call."""
    n_kinds = len(KINDS[form]["kinds"])
    *specs, count = memory.specs(n_layers=LAYERS, **KINDS[form])
    every = [torch.full((len(x), *spec.shape), filler, dtype=x.dtype) for spec in specs]
    rings = [tuple(every[i : i + n_kinds]) for i in range(0, len(every), n_kinds)]
    counters, out = torch.zeros(len(x), *count.shape, dtype=torch.int32), []
    with torch.no_grad():
        for chunk in x.split(chunks, dim=1):
            y, rings, counters, _ = backbone(chunk, rings, counters, memory=memory)
            out.append(y)
    return torch.cat(out, dim=1), rings, counters


def expected(backbone, x, **reading):
    weights = arrays(backbone)
    sizes = {"n_layers": LAYERS, "n_heads": H, "mem_len": 5, "stride": 1} | reading
    return np.stack([closed_form.backbone(lane, weights, **sizes) for lane in x.numpy()])


# ------------------------------------------------------------------------------------------- each reading, and together


@pytest.mark.parametrize("form", KINDS)
@pytest.mark.parametrize(
    ("changes", "reading"),
    [
        ({"pre_lnorm": False}, {"pre": False}),
        ({"activation": "relu"}, {"act": closed_form.relu}),
        ({"untie_r": False}, {}),
        ({"gate": "gru"}, {"gated": True}),
        ({"gate": "gru", "pre_lnorm": False, "stride": 4}, {"gated": True, "pre": False, "stride": 4}),
        ({"attend_zeros": True}, {"zeros": 5}),
        ({"attend_zeros": True, "stride": 4, "pre_lnorm": False}, {"zeros": 20, "stride": 4, "pre": False}),
        ({"clamp_len": 2, "pre_lnorm": False}, {"clamp_len": 2, "pre": False}),
    ],
    ids=lambda value: "+".join(value),  # names alone: an address is another one in every process
)
def test_a_reading_equals_its_closed_form_in_any_chunks(changes, reading, form):
    backbone, memory = make_backbone(**changes)
    x = random_rows(90)
    found, *_ = run(backbone, memory, x, [2, 1, 7, 40, 5, 35], form, filler=np.nan)
    np.testing.assert_allclose(found.numpy(), expected(backbone, x, **reading), **EXACT)


@pytest.mark.parametrize("form", KINDS)
@pytest.mark.parametrize("stride", [1, 4])
@pytest.mark.parametrize("chunks", [[3, 8, 1, 12, 12], [36], [12, 12, 12]], ids=str)
def test_rows_that_see_their_whole_call_equal_the_closed_form_of_these_calls(chunks, stride, form):
    backbone, memory = make_backbone(same_length=False, stride=stride, clamp_len=9)
    x, ends = random_rows(36), np.cumsum(chunks)
    starts = np.repeat([0, *ends[:-1]], chunks)
    found, *_ = run(backbone, memory, x, chunks, form)
    reading = {"starts": starts, "stride": stride, "clamp_len": 9}
    np.testing.assert_allclose(found.numpy(), expected(backbone, x, **reading), **EXACT)


def test_rows_that_see_their_whole_call_depend_on_the_calls():
    backbone, memory = make_backbone(same_length=False)
    x = random_rows(36)
    whole, parts = (run(backbone, memory, x, chunks)[0] for chunks in ([36], [12, 12, 12]))
    assert (whole - parts).abs().max() > 1e-3


def test_one_u_and_v_are_one_parameter_in_copies_and_files_too():
    backbone, _ = make_backbone(untie_r=False)
    free, _ = make_backbone()
    assert sum(p.numel() for p in free.parameters()) - sum(p.numel() for p in backbone.parameters()) == 2 * D
    for one in (backbone, copy.deepcopy(backbone)):
        first, second = (layer.attention for layer in one.layers)
        assert first.u is second.u
        assert first.v is second.v
    other = Backbone(ModelConfig(**SIZES, untie_r=False)).double()
    other.load_state_dict(backbone.state_dict())
    assert other.layers[0].attention.u is other.layers[1].attention.u
    assert torch.equal(other.layers[1].attention.u, backbone.layers[0].attention.u)


def test_a_gate_begins_close_to_letting_rows_through():
    torch.manual_seed(0)
    gate = Backbone(ModelConfig(**SIZES, gate="gru")).layers[0].gate_attention
    for weight in (gate.of_new.weight, gate.of_old.weight, gate.candidate.weight):
        torch.nn.init.normal_(weight, std=0.02)
    x, new = torch.randn(40, D), torch.randn(40, D)
    with torch.no_grad():
        share = (gate(x, new) / x).median()
    assert share == pytest.approx(1 - 1 / (1 + np.exp(2)), abs=0.03)


def test_tokens_may_be_scaled_by_the_root_of_the_width():
    plain, scaled = (TXLModel(ModelConfig(**SIZES, scale_embedding=on)) for on in (False, True))
    scaled.load_state_dict(plain.state_dict())
    x, state = torch.randn(1, 7, 1), plain.init_state(1)
    tokens = [model.eval().front(x, state["norm"], state["rows"], None)[0].tokens for model in (plain, scaled)]
    torch.testing.assert_close(tokens[1], tokens[0] * D**0.5)


# ------------------------------------------------------------------------------------------------- the original's steps


@pytest.mark.parametrize("same_length", [False, True])
def test_segments_go_as_in_the_originals_code(same_length):
    """Its ``same_length`` sees ``mem_len`` keys, the own one among them: one less than ours."""
    lengths, theirs = [5, 5, 3, 8, 1, 5], 6
    mem_len = theirs - 1 if same_length else theirs
    reading = {"same_length": same_length, "pre_lnorm": False, "untie_r": False, "activation": "relu"}
    backbone, memory = make_backbone(**reading, mem_len=mem_len)
    x = random_rows(sum(lengths))
    found, rings, count = run(backbone, memory, x, lengths, "hidden rows")
    for lane in range(2):
        segments = np.split(x[lane].numpy(), np.cumsum(lengths)[:-1])
        outputs, mems = original_code.segments(
            segments, arrays(backbone), n_layers=LAYERS, n_heads=H, mem_len=theirs, same_length=same_length
        )
        np.testing.assert_allclose(found[lane].numpy(), np.concatenate(outputs), **EXACT)
        # A layer's memory holds its own inputs, those of the layer below: the tokens for the first one.
        for (ring,), mem in zip(rings, mems[:LAYERS], strict=True):
            kept = memory.read(ring, count)[lane, 0].numpy()
            np.testing.assert_allclose(kept, mem[-mem_len:], **EXACT)
        np.testing.assert_allclose(mems[0], x[lane, -theirs:].numpy(), **EXACT)


def test_the_originals_memory_grows_to_its_length_and_drops_the_oldest():
    weights, rows = arrays(make_backbone(pre_lnorm=False, activation="relu")[0]), random_rows(14)[0].numpy()
    how = {"n_layers": LAYERS, "n_heads": H, "mem_len": 6, "same_length": False}
    lengths = []
    for n in (1, 2, 3):
        _, mems = original_code.segments(np.split(rows[: 4 * n], n), weights, **how)
        lengths.append({len(mem) for mem in mems})
    assert lengths == [{4}, {6}, {6}]


def test_the_originals_shift_puts_each_distance_at_its_key():
    n_rows, n_keys = 3, 7  # four rows of memory
    by_distance = np.arange(n_keys - 1, -1, -1.0)[None] + 100 * np.arange(n_rows)[:, None]
    shifted = original_code.rel_shift(by_distance)
    for i, j in itertools.product(range(n_rows), range(n_keys)):
        if j <= i + 4:
            assert shifted[i, j] == 100 * i + (i + 4 - j)


# -------------------------------------------------------------------------------------------------- graphs and refusals


@pytest.mark.parametrize("fixed", [False, True])
def test_the_graph_knows_the_readings_that_keep_the_promise(fixed):
    changes = {"pre_lnorm": False, "untie_r": False, "gate": "gru", "activation": "relu", "scale_embedding": True}
    model = randomise(TXLModel(ModelConfig(**{**SIZES, **changes, "clamp_len": 3}))).float()
    x = torch.randn(1, 40, 1, generator=torch.Generator().manual_seed(2))
    graph, state, out = StreamGraph(model, fixed=fixed), list(model.init_state(1).values()), []
    with torch.no_grad():
        for chunk in x.split(1 if fixed else [1, 20, 7, 12], dim=1):
            y, *state = graph(chunk, torch.zeros(1, 1, dtype=torch.int32), *state)
            out.append(y)
        whole, _ = model(x, model.init_state(1))
    torch.testing.assert_close(torch.cat(out, dim=1), whole, rtol=1e-5, atol=1e-5)
    assert model.backbone.layers[0].activation is torch.nn.functional.relu  # the model itself stays as it is


def test_what_depends_on_calls_is_refused_by_all_that_cuts_streams_itself():
    model = TXLModel(ModelConfig(**SIZES, same_length=False))
    with pytest.raises(ParameterError, match="a graph's client cuts streams as it likes"):
        StreamGraph(model)
    with pytest.raises(ParameterError, match="a walk cuts streams as it likes"):
        next(walk(model, [np.zeros(3, np.float32)], None))
    with pytest.raises(ExportError, match="attend_zeros=True has no graph"):
        StreamGraph(TXLModel(ModelConfig(**SIZES, attend_zeros=True)))


def test_readings_survive_json_and_stay_out_of_it_by_default():
    changes = {"same_length": False, "attend_zeros": True, "pre_lnorm": False, "untie_r": False, "gate": "gru"}
    changes |= {"activation": "relu", "scale_embedding": True}
    config = ModelConfig(**SIZES, **changes)
    assert ModelConfig.from_json(config.to_json()) == config
    assert not set(changes) & set(ModelConfig(**SIZES).to_json())
    for name, value in changes.items():
        assert ModelConfig(**SIZES, **{name: value}).to_json()[name] == value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre_lnorm": 0}, "pre_lnorm=0 must be True or False"),
        ({"gate": "lstm"}, r"gate='lstm' is not known\. Choose one of \['none', 'gru'\]"),
        ({"activation": "Relu"}, r"activation='Relu' is not known.*Did you mean 'relu'"),
        ({"same_length": False, "memory": "two_rate"}, "same_length=False does not go with memory='two_rate'"),
        ({"same_length": False, "lookback": 1, "futr_kinds": (-2,)}, "same_length=False does not go with uneven time"),
        ({"attend_zeros": True, "lookback": 1, "futr_kinds": (-2,)}, "attend_zeros=True does not go with uneven time"),
    ],
    ids=str,
)
def test_readings_that_cannot_work_are_refused(changes, message):
    with pytest.raises(ParameterError, match=message):
        ModelConfig(**{**SIZES, **changes})
