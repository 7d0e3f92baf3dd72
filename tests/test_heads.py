"""Quantiles that cannot cross, and the linear path."""

from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.forecast import quantile_steps
from txl_ts.heads import LinearPath, QuantileHead

B, N, D, HORIZON, C = 2, 3, 5, 4, 6
LEVELS = [(0.5,), (0.1, 0.5, 0.9), (0.5, 0.9), (0.01, 0.02, 0.5), tuple(i / 10 for i in range(1, 10))]


def make_head(quantiles, *, scale=0.5, seed=0):
    head = QuantileHead(d_model=D, h=HORIZON, n_channels=C, quantiles=quantiles)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
    return head.double()


def inputs(scale=1.0, seed=1):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(B, N, D, generator=generator, dtype=torch.float64) * scale
    return hidden, torch.randn(B, N, HORIZON, C, generator=generator, dtype=torch.float64) * scale


@pytest.mark.parametrize("quantiles", LEVELS, ids=str)
def test_quantiles_are_the_median_and_positive_steps_outwards(quantiles):
    head, (hidden, centre) = make_head(quantiles), inputs()
    found = head(hidden, centre)
    assert found.shape == (B, N, HORIZON, C, len(quantiles))
    weight, bias = (p.detach().numpy() for p in (head.linear.weight, head.linear.bias))
    for b, n in np.ndindex(B, N):
        raw = (weight @ hidden[b, n].numpy() + bias).reshape(HORIZON, C, len(quantiles))
        for step, c in np.ndindex(HORIZON, C):
            expected = quantile_steps(raw[step, c], quantiles, centre[b, n, step, c].item())
            # A handful of additions in float64; softplus is taken as linear beyond 20 (an error of 2e-9 at most).
            np.testing.assert_allclose(found[b, n, step, c].detach().numpy(), expected, rtol=0, atol=1e-8)


@given(
    seed=st.integers(0, 2**16),
    scale=st.sampled_from([1e-6, 1.0, 1e3, 1e12, 1e25]),
    quantiles=st.sampled_from(LEVELS),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_quantiles_never_cross_and_stay_finite_for_any_hidden_row(seed, scale, quantiles, dtype):
    head = make_head(quantiles, scale=1.0, seed=seed).to(dtype)
    found = head(*(tensor.to(dtype) for tensor in inputs(scale, seed)))
    assert found.isfinite().all()
    assert (found.diff(dim=-1) >= 0).all()


@pytest.mark.parametrize("quantiles", LEVELS, ids=str)
def test_a_new_head_gives_the_normal_quantiles_around_the_centre(quantiles):
    head = QuantileHead(d_model=D, h=HORIZON, n_channels=C, quantiles=quantiles)
    hidden, centre = (tensor.float() for tensor in inputs())
    normal = torch.tensor([NormalDist().inv_cdf(q) for q in quantiles])
    # float32; softplus of its own inverse.
    torch.testing.assert_close(head(hidden, centre), centre[..., None] + normal, rtol=0, atol=2e-6)


def test_spread_may_differ_by_step_ahead():
    quantiles = (0.1, 0.5, 0.9)
    head = QuantileHead(d_model=D, h=HORIZON, n_channels=C, quantiles=quantiles)
    deviation = torch.tensor([0.5, 1.0, 2.0, 3.0])
    head.set_spread(deviation, quantiles)
    hidden, centre = (tensor.float() for tensor in inputs())
    normal = torch.tensor([NormalDist().inv_cdf(q) for q in quantiles])
    expected = centre[..., None] + (deviation[:, None] * normal)[:, None]
    torch.testing.assert_close(head(hidden, centre), expected, rtol=0, atol=5e-6)


def test_linear_path_is_one_affine_map_for_all_channels():
    path = LinearPath(lookback=3, h=HORIZON).double()
    with torch.no_grad():
        path.weight.copy_(inputs()[1][0, 0, :, :3])
        path.bias.copy_(torch.arange(HORIZON))
    z = torch.randn(B, N, C, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected = np.einsum("bncl,hl->bnhc", z.numpy(), path.weight.detach().numpy()) + np.arange(HORIZON)[:, None]
    np.testing.assert_allclose(path(z).detach().numpy(), expected, rtol=0, atol=1e-14)


def test_a_linear_path_without_lookback_is_zero():
    path = LinearPath(lookback=0, h=HORIZON)
    assert torch.equal(path(torch.zeros(B, N, C, 0)), torch.zeros(B, N, HORIZON, C))
