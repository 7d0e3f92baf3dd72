"""Attention and backbone against Transformer-XL in closed form, in float64."""

import math

import numpy as np
import pytest
import torch

from tests.oracles import closed_form
from txl_ts.attention import RelativeAttention, band_shift, sinusoid_table
from txl_ts.backbone import Backbone
from txl_ts.config import ModelConfig
from txl_ts.errors import ShapeError
from txl_ts.memory import Fifo

D, H = 12, 3  # K = 4: width, heads and head width differ

# Float64 keeps 16 digits; the sums here have some hundred terms of size one, in another order than the oracle's.
EXACT = {"rtol": 0, "atol": 1e-12}


def randomise(module, seed=0):
    """Weights of such a size that every part counts: a zero would hide an error."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.4)
    return module.double().eval()


def random_rows(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def arrays(module):
    return {name: weight.numpy() for name, weight in module.state_dict().items()}


def make_attention(mem_len):
    return randomise(RelativeAttention(d_model=D, n_heads=H, mem_len=mem_len))


def attend(attention, x, *, n_past=0):
    """Rows after the first ``n_past``, which lie in the memory; what does not fit is cut off, what lacks is hidden."""
    mem_len = attention.mem_len
    with torch.no_grad():
        past = [kind[:, :, max(0, n_past - mem_len) :] for kind in attention.project(x[:, :n_past])]
        lacking = mem_len - past[0].shape[2]
        filler = torch.full((len(x), H, lacking, D // H), 7.0, dtype=x.dtype)
        visible = (torch.arange(mem_len) >= lacking).expand(len(x), -1)
        own = x[:, n_past:]
        pairs = zip(past, attention.project(own), strict=True)
        return attention(own, *(torch.cat([filler, before, now], dim=2) for before, now in pairs), visible)


def expected_attention(attention, x, **sizes):
    weights = arrays(attention)
    return np.stack([closed_form.attention(lane, weights, n_heads=H, **sizes) for lane in x.numpy()])


# ----------------------------------------------------------------------------------------------------------- the oracle


@pytest.mark.parametrize(("mem_len", "stride"), [(0, 1), (1, 1), (5, 1), (2, 4)])
def test_the_closed_form_agrees_with_a_loop_over_rows_heads_and_visits(mem_len, stride):
    attention, x = make_attention(mem_len), random_rows(13, D)
    sizes = {"n_heads": H, "mem_len": mem_len, "stride": stride}
    whole = closed_form.attention(x.numpy(), arrays(attention), **sizes)
    by_row = closed_form.attention_row_by_row(x.numpy(), arrays(attention), **sizes)
    np.testing.assert_allclose(whole, by_row, **EXACT)


# ------------------------------------------------------------------------------------------------------------ attention


@pytest.mark.parametrize("mem_len", [0, 1, 5])
@pytest.mark.parametrize("n_rows", [1, 3, 9])
def test_attention_from_an_empty_memory_equals_the_closed_form(mem_len, n_rows):
    attention, x = make_attention(mem_len), random_rows(2, n_rows, D)
    np.testing.assert_allclose(
        attend(attention, x).numpy(), expected_attention(attention, x, mem_len=mem_len, stride=1), **EXACT
    )


@pytest.mark.parametrize("mem_len", [0, 1, 5])
@pytest.mark.parametrize("n_past", [1, 4, 11])
def test_attention_over_memory_and_segment_equals_the_closed_form_over_the_history(mem_len, n_past):
    attention, x = make_attention(mem_len), random_rows(2, n_past + 3, D)
    expected = expected_attention(attention, x, mem_len=mem_len, stride=1)[:, n_past:]
    np.testing.assert_allclose(attend(attention, x, n_past=n_past).numpy(), expected, **EXACT)


@pytest.mark.parametrize(
    ("mem_len", "n_rows"),
    [(5, 64), (5, 65), (5, 96), (5, 131), (0, 65), (1, 100), (40, 80), (40, 81), (40, 203)],
)
def test_attention_in_blocks_with_and_without_padding_equals_the_closed_form(mem_len, n_rows):
    attention, x = make_attention(mem_len), random_rows(2, n_rows + 3, D)
    expected = expected_attention(attention, x, mem_len=mem_len, stride=1)[:, 3:]
    np.testing.assert_allclose(attend(attention, x, n_past=3).numpy(), expected, **EXACT)


def test_a_window_longer_than_the_stream_so_far_is_no_window():
    x = random_rows(2, 7, D)
    wide, wider = make_attention(7), make_attention(19)
    np.testing.assert_allclose(attend(wide, x).numpy(), attend(wider, x).numpy(), **EXACT)


def test_position_and_both_biases_change_the_result():
    x, attention = random_rows(2, 6, D), make_attention(5)
    before = attend(attention, x)
    for name in ("u", "v", "position.weight"):
        other = make_attention(5)
        with torch.no_grad():
            other.get_parameter(name).mul_(2)
        assert (attend(other, x) - before).abs().max() > 1e-3, name


def test_the_table_encodes_the_farthest_distance_first_with_sines_in_front():
    table = sinusoid_table(n_distances=4, d_model=6)
    assert table.shape == (4, 6)
    for row, distance in enumerate((3, 2, 1, 0)):
        for i in range(3):
            angle = distance * 10000 ** (-2 * i / 6)
            assert table[row, i] == pytest.approx(math.sin(angle), abs=1e-15)
            assert table[row, 3 + i] == pytest.approx(math.cos(angle), abs=1e-15)


def test_band_shift_puts_the_score_of_each_distance_at_its_key():
    window, n_rows = 4, 3
    by_distance = random_rows(2, n_rows, window + 1)  # distances 4 … 0
    by_key = band_shift(by_distance, n_keys=window + n_rows)
    assert by_key.shape == (2, n_rows, window + n_rows)
    for i in range(n_rows):
        for distance in range(window + 1):
            expected = by_distance[:, i, window - distance]
            assert torch.equal(by_key[:, i, window + i - distance], expected)


def test_band_shift_says_which_number_of_keys_it_needs():
    with pytest.raises(ShapeError, match=r"n_keys=6 must be W \+ T = 4 \+ 3"):
        band_shift(torch.zeros(2, 3, 5), n_keys=6)


# ------------------------------------------------------------------------------------------------------------- backbone

N_LAYERS = 2


def make_backbone(*, mem_len, stride):
    config = ModelConfig(
        h=1,
        quantiles=(0.5,),
        patch_len=1,
        lookback=0,
        half_life=8.0,
        mem_len=mem_len,
        stride=stride,
        d_model=D,
        n_layers=N_LAYERS,
        n_heads=H,
        d_ff=10,
    )
    return randomise(Backbone(config)), Fifo(mem_len=mem_len, stride=stride)


KINDS = {"hidden rows": {"kinds": ("hidden",), "n_heads": 1, "d_head": D}}
KINDS["keys and values"] = {"kinds": ("keys", "values"), "n_heads": H, "d_head": D // H}


def run_backbone(backbone, memory, x, chunks, *, form="keys and values", filler=0.0):
    n_kinds = len(KINDS[form]["kinds"])
    *specs, count = memory.specs(n_layers=N_LAYERS, **KINDS[form])
    every = [torch.full((len(x), *spec.shape), filler, dtype=x.dtype) for spec in specs]
    rings = [tuple(every[i : i + n_kinds]) for i in range(0, len(every), n_kinds)]
    counters = torch.zeros(len(x), *count.shape, dtype=torch.int32)
    out = []
    with torch.no_grad():
        for chunk in x.split(chunks, dim=1):
            y, rings, counters, _ = backbone(chunk, rings, counters, memory=memory)
            out.append(y)
    return torch.cat(out, dim=1)


def expected_backbone(backbone, x, **sizes):
    weights = arrays(backbone)
    return np.stack([closed_form.backbone(lane, weights, n_layers=N_LAYERS, n_heads=H, **sizes) for lane in x.numpy()])


CHUNKS = {"whole": [102], "one by one": [1] * 20 + [82], "uneven": [2, 1, 7, 3, 30, 5, 23, 31], "long": [97, 5]}


@pytest.mark.parametrize("stride", [1, 4])
@pytest.mark.parametrize("mem_len", [0, 1, 5])
@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
def test_backbone_equals_the_closed_form_in_any_chunks(mem_len, stride, chunks):
    backbone, memory = make_backbone(mem_len=mem_len, stride=stride)
    x = random_rows(2, 102, D)
    expected = expected_backbone(backbone, x, mem_len=mem_len, stride=stride)
    np.testing.assert_allclose(run_backbone(backbone, memory, x, chunks).numpy(), expected, **EXACT)


@pytest.mark.parametrize("stride", [1, 4])
def test_backbone_over_hidden_rows_equals_the_closed_form(stride):
    backbone, memory = make_backbone(mem_len=5, stride=stride)
    x = random_rows(2, 102, D)
    expected = expected_backbone(backbone, x, mem_len=5, stride=stride)
    np.testing.assert_allclose(
        run_backbone(backbone, memory, x, CHUNKS["uneven"], form="hidden rows").numpy(), expected, **EXACT
    )


def test_interleaved_phases_may_be_long_enough_for_blocks():
    backbone, memory = make_backbone(mem_len=5, stride=2)
    x = random_rows(1, 139, D)  # 70 rows of a phase: more than one block, with padding in phase and block
    expected = expected_backbone(backbone, x, mem_len=5, stride=2)
    np.testing.assert_allclose(run_backbone(backbone, memory, x, 139).numpy(), expected, **EXACT)


@pytest.mark.parametrize("form", KINDS)
@pytest.mark.parametrize("filler", [math.nan, math.inf, 1e300])
def test_what_lies_in_unfilled_slots_never_reaches_an_output(form, filler):
    backbone, memory = make_backbone(mem_len=5, stride=4)
    x = random_rows(2, 102, D)
    clean = run_backbone(backbone, memory, x, CHUNKS["uneven"], form=form)
    dirty = run_backbone(backbone, memory, x, CHUNKS["uneven"], form=form, filler=filler)
    assert torch.equal(dirty, clean)
