"""Attention by real time against the closed form with an explicit matrix of distances, and against the table."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.oracles import closed_form
from txl_ts.attention import RelativeAttention, rotated, waves

D, H = 12, 3  # K = 4: width, heads and head width differ

# Float64 keeps 16 digits; the sums here have some hundred terms of size one, in another order than the oracle's.
EXACT = {"rtol": 0, "atol": 1e-12}


def make_attention(mem_len, *, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    attention = RelativeAttention(d_model=D, n_heads=H, mem_len=mem_len)
    with torch.no_grad():
        for weight in attention.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.4)
    return attention.to(dtype).eval()


def random_rows(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uneven_times(n_lanes, n_rows, *, seed=2, longest=9.0):
    gaps = torch.rand(n_lanes, n_rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (gaps**4 * longest).cumsum(dim=1)  # many short gaps, some long ones


def attend(attention, x, times, *, n_past=0):
    """Rows after the first ``n_past``, which lie in the memory; slots that lack are hidden, at an absurd time."""
    mem_len = attention.mem_len
    with torch.no_grad():
        past = [kind[:, :, max(0, n_past - mem_len) :] for kind in attention.project(x[:, :n_past])]
        lacking = mem_len - past[0].shape[2]
        filler = torch.full((len(x), H, lacking, D // H), 7.0, dtype=x.dtype)
        visible = (torch.arange(mem_len) >= lacking).expand(len(x), -1)
        own = x[:, n_past:]
        pairs = zip(past, attention.project(own), strict=True)
        when = None
        if times is not None:
            kept = times[:, max(0, n_past - mem_len) : n_past]
            when = torch.cat([torch.full((len(x), lacking), -1e4, dtype=torch.float64), kept, times[:, n_past:]], dim=1)
        return attention(own, *(torch.cat([filler, before, now], dim=2) for before, now in pairs), visible, when)


def expected(attention, x, times, **sizes):
    weights = {name: weight.double().numpy() for name, weight in attention.state_dict().items()}
    lanes = zip(x.double().numpy(), times.numpy(), strict=True)
    return np.stack([closed_form.attention(lane, weights, n_heads=H, stride=1, times=t, **sizes) for lane, t in lanes])


@pytest.mark.parametrize("mem_len", [0, 1, 5])
@pytest.mark.parametrize("n_past", [0, 1, 4, 11])
def test_attention_by_uneven_times_equals_the_matrix_of_distances(mem_len, n_past):
    attention, x, times = make_attention(mem_len), random_rows(2, n_past + 6, D), uneven_times(2, n_past + 6)
    whole = expected(attention, x, times, mem_len=mem_len)[:, n_past:]
    np.testing.assert_allclose(attend(attention, x, times, n_past=n_past).numpy(), whole, **EXACT)


@pytest.mark.parametrize(("mem_len", "n_rows"), [(5, 64), (5, 65), (5, 131), (0, 65), (40, 81), (40, 203)])
def test_blocks_with_and_without_padding_equal_the_matrix_of_distances(mem_len, n_rows):
    attention, x, times = make_attention(mem_len), random_rows(2, n_rows + 3, D), uneven_times(2, n_rows + 3)
    whole = expected(attention, x, times, mem_len=mem_len)[:, 3:]
    np.testing.assert_allclose(attend(attention, x, times, n_past=3).numpy(), whole, **EXACT)


@pytest.mark.parametrize("mem_len", [1, 7])
def test_on_an_even_grid_both_forms_are_equal(mem_len):
    attention, x = make_attention(mem_len), random_rows(2, 90, D)
    even = torch.arange(90, dtype=torch.float64).expand(2, -1)
    by_time, by_table = (attend(attention, x, when, n_past=4).numpy() for when in (even, None))
    np.testing.assert_allclose(by_time, by_table, **EXACT)


def test_in_float32_both_forms_agree_to_the_figure_of_the_sketch():
    attention, x = make_attention(64, dtype=torch.float32), random_rows(2, 300, D).float()
    even = torch.arange(300, dtype=torch.float64).expand(2, -1)
    apart = (attend(attention, x, even, n_past=9) - attend(attention, x, None, n_past=9)).abs().max()
    # 3e-6 was measured on the sketch's sizes (keys of 32, width 128); this is smaller.
    assert apart < 3e-6


@pytest.mark.parametrize("origin", [0.0, 1e3, 1e6])
def test_the_origin_of_time_does_not_matter_in_float32(origin):
    attention, x, times = make_attention(8, dtype=torch.float32), random_rows(2, 50, D).float(), uneven_times(2, 50)
    here = attend(attention, x, times)
    # Times are float64 (1e6 leaves 1e-10 of a step), and angles are taken before they are rounded.
    np.testing.assert_allclose(attend(attention, x, times + origin).numpy(), here.numpy(), rtol=0, atol=1e-6)


def test_long_gaps_stay_exact_in_float32():
    attention, x = make_attention(8, dtype=torch.float32), random_rows(2, 50, D).float()
    times = uneven_times(2, 50, longest=1e4)
    whole = expected(attention, x, times, mem_len=8)
    # As exact as short ones: with angles in float32, 6e-3 was measured at such distances.
    np.testing.assert_allclose(attend(attention, x, times).numpy(), whole, rtol=0, atol=3e-6)


def test_the_whole_score_is_one_dot_product_for_any_attention_kernel():
    """Keys extended by the waves of their times: what a fused kernel takes gives the same rows."""
    attention, x, times = make_attention(9), random_rows(2, 10, D), uneven_times(2, 10)
    with torch.no_grad():
        query = attention.query(x).unflatten(-1, (H, D // H)).transpose(1, 2)
        key, value = attention.project(x)
        sine, cosine = (wave[:, None] for wave in waves(times, d_model=D))
        turned = rotated(query + attention.v[:, None], attention.position_weight(), sine, cosine)
        long_query = torch.cat([query + attention.u[:, None], turned], dim=-1)
        long_key = torch.cat([key, torch.cat([sine, cosine], dim=-1).expand(-1, H, -1, -1)], dim=-1)
        scale = (D // H) ** -0.5
        heads = F.scaled_dot_product_attention(long_query, long_key, value, is_causal=True, scale=scale)
        fused = attention.output(heads.transpose(1, 2).flatten(2))
    np.testing.assert_allclose(attend(attention, x, times).numpy(), fused.numpy(), **EXACT)


def test_gradients_reach_the_projection_of_time():
    attention = make_attention(5).train()
    x, times = random_rows(1, 9, D), uneven_times(1, 9)
    key, value = attention.project(x)
    hidden = torch.zeros(1, H, 5, D // H, dtype=x.dtype)
    visible = torch.zeros(1, 5, dtype=torch.bool)
    when = torch.cat([torch.zeros(1, 5, dtype=torch.float64), times], dim=1)
    out = attention(x, torch.cat([hidden, key], dim=2), torch.cat([hidden, value], dim=2), visible, when)
    out.square().sum().backward()
    assert attention.position.weight.grad.abs().max() > 1e-6
    assert attention.v.grad.abs().max() > 1e-6
