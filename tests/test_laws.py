"""Densities and quantiles of laws, against scipy's, which shares no code with them."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from tests.oracles.laws import scipy_law
from txl_ts.heads import HEADS, NegativeBinomialHead, NormalHead, StudentTHead
from txl_ts.laws import (
    negative_binomial_nll,
    negative_binomial_quantile,
    normal_nll,
    normal_scores,
    student_t_nll,
    student_t_scores,
)

LEVELS = (1e-4, 0.01, 0.05, 0.3, 0.5, 0.7, 0.9, 0.99, 0.9999)
B, N, D, HORIZON, C = 2, 3, 5, 4, 6


def counts(n=400, seed=0):
    """Means from .002 to 60,000 and dispersions from next to Poisson to nearly always 0."""
    rng = np.random.default_rng(seed)
    return np.exp(rng.uniform(-6, 11, n)), np.exp(rng.uniform(-13, 4, n)), rng.uniform(0.001, 0.999, n)


def tensors(*arrays):
    return [torch.from_numpy(array) for array in arrays]


def test_normal_densities_and_quantiles_are_those_of_scipy():
    y, location, scale = np.random.default_rng(0).normal(size=(3, 50))
    found = normal_nll(*tensors(y, location, np.exp(scale)))
    np.testing.assert_allclose(found, -stats.norm.logpdf(y, location, np.exp(scale)), rtol=1e-12)
    np.testing.assert_allclose(normal_scores(LEVELS), stats.norm.ppf(LEVELS), rtol=1e-9)


@pytest.mark.parametrize("freedom", [2.0001, 3.0, 8.0, 200.0])
def test_student_densities_and_quantiles_are_those_of_scipy(freedom):
    y, location, scale = np.random.default_rng(0).normal(size=(3, 50))
    found = student_t_nll(*tensors(y, location, np.exp(scale)), freedom=torch.tensor(freedom, dtype=torch.float64))
    np.testing.assert_allclose(found, -stats.t.logpdf(y, freedom, location, np.exp(scale)), rtol=1e-10)
    np.testing.assert_allclose(student_t_scores(LEVELS, freedom=freedom), stats.t.ppf(LEVELS, freedom), rtol=1e-9)


def test_negative_binomial_densities_are_those_of_scipy():
    mean, dispersion, _ = counts()
    y = np.random.default_rng(1).poisson(mean).astype(float)
    expected = -stats.nbinom.logpmf(y, 1 / dispersion, 1 / (1 + dispersion * mean))
    # Differences of logarithms of gamma near 1e6 leave 1e-9 of float64.
    np.testing.assert_allclose(negative_binomial_nll(*tensors(y, mean, dispersion)), expected, rtol=1e-7, atol=1e-8)


def test_negative_binomial_quantiles_are_those_of_scipy_to_the_count():
    mean, dispersion, level = counts()
    expected = stats.nbinom.ppf(level, 1 / dispersion, 1 / (1 + dispersion * mean))
    np.testing.assert_array_equal(negative_binomial_quantile(*tensors(mean, dispersion, level)), expected)


def test_quantiles_of_huge_counts_are_found_to_a_millionth_of_the_mean():
    mean = np.array([3e6, 1e15])
    for dispersion in (0.01, 2.0):
        found = negative_binomial_quantile(*tensors(mean, np.array(dispersion), np.array(0.9)))
        exact = stats.gamma.ppf(0.9, 1 / dispersion, scale=dispersion * mean)  # what is left of the law there
        np.testing.assert_allclose(found, exact, rtol=1e-4)


def test_quantiles_of_counts_are_nan_where_the_law_is_not_known():
    mean = torch.tensor([3.0, torch.nan])
    found = negative_binomial_quantile(mean, torch.tensor(0.1), torch.tensor(0.5))
    assert found[0] == 3
    assert found[1].isnan()


# --------------------------------------------------------------------------------------------------------------- heads


def make_head(kind, *, quantiles=(0.1, 0.5, 0.9), seed=0):
    head = HEADS[kind](d_model=D, h=HORIZON, n_channels=C, quantiles=quantiles)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.5)
    return head.eval()


def said(head, seed=1):
    """A law in the model's units, with the level and deviation behind it."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(B, N, D, generator=generator)
    centre = torch.randn(B, N, HORIZON, C, generator=generator)
    level = torch.rand(B, N, 1, C, generator=generator) * 50
    deviation = torch.rand(B, N, 1, C, generator=generator) * 5 + 0.1
    law = head.law(hidden, centre)
    return law, level, deviation


@pytest.mark.parametrize("kind", list(HEADS))
def test_a_head_answers_at_any_level_as_the_law_of_its_parameters(kind):
    head = make_head(kind)
    law, level, deviation = said(head)
    units = head.in_units(law, level, deviation).detach()
    found = head.at(units, LEVELS, lambda z: z).numpy()
    expected = scipy_law(kind, units.numpy(), freedom=getattr(head, "freedom", None))
    quantiles = np.stack([expected.ppf(q) for q in LEVELS], axis=-1)
    if head.is_of_counts:
        np.testing.assert_array_equal(found, quantiles.astype(np.float32))
    else:  # float32 products of numbers up to 50
        np.testing.assert_allclose(found, quantiles, rtol=1e-5, atol=1e-4)
    # The mean of heavy tails is a sum of large numbers in float32.
    np.testing.assert_allclose(head.mean(units).numpy(), expected.mean(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", list(HEADS))
def test_the_loss_is_the_negative_logarithm_of_the_density_per_unit_of_the_series(kind):
    head = make_head(kind)
    law, level, deviation = said(head)
    rng = np.random.default_rng(2)
    target = rng.poisson(30, (B, N, HORIZON, C)).astype(np.float32)
    unit = 0.5  # small enough for the floor of the spread not to matter
    how = {"level": level, "deviation": deviation, "unit": torch.tensor(unit)}
    found = head.nll(law, torch.from_numpy(target), **how).detach().numpy()
    expected = scipy_law(
        kind, head.in_units(law, level, deviation).detach().numpy(), freedom=getattr(head, "freedom", 0)
    )
    # A count is a count in any unit; a density is one per unit.
    exact = -expected.logpmf(target) if head.is_of_counts else -expected.logpdf(target) - math.log(unit)
    np.testing.assert_allclose(found, exact, rtol=2e-4, atol=2e-4)


def test_where_a_sensor_stands_still_densities_stay_bounded():
    for kind in HEADS:
        head = make_head(kind)
        law, level, _ = said(head)
        how = {"level": level, "deviation": torch.zeros_like(level), "unit": torch.tensor(3.0)}
        loss = head.nll(law, level.expand(law.shape[:-1]).round(), **how)
        assert loss.isfinite().all(), kind
        loss.sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in head.parameters()), kind


def test_degrees_of_freedom_are_learned_from_tails():
    generator = np.random.default_rng(0)
    target = torch.from_numpy(generator.standard_t(3, size=(4000, 1, 1))).float()
    head = StudentTHead(d_model=2, h=1, n_channels=1, quantiles=(0.5, 0.9))
    before = head.constants.clone()
    one, zero = torch.ones(1), torch.zeros(1)
    solver = torch.optim.Adam(head.parameters(), lr=0.05)
    for _ in range(150):
        solver.zero_grad()
        law = head.law(torch.zeros(4000, 1, 2), torch.zeros(4000, 1, 1, 1))[:, 0]
        head.nll(law, target, level=zero, deviation=one, unit=one).mean().backward()
        solver.step()
    assert 2.5 < head.freedom < 3.8
    assert torch.equal(head.constants, before)  # those of a graph wait for the end of training
    head.eval()
    assert float(head.constants[1]) == pytest.approx(stats.t.ppf(0.9, head.freedom))
    again = StudentTHead(d_model=2, h=1, n_channels=1, quantiles=(0.5, 0.9))
    again.load_state_dict(head.state_dict())
    assert torch.equal(again.constants, head.constants)


def test_a_new_head_is_the_centre_with_the_given_deviation_per_step():
    for kind in HEADS:
        head = HEADS[kind](d_model=D, h=HORIZON, n_channels=C, quantiles=(0.5,))
        head.set_spread(torch.tensor([0.5, 1.0, 2.0, 4.0]), (0.5,))
        centre = torch.arange(float(HORIZON)).reshape(1, 1, HORIZON, 1).expand(B, N, -1, C)
        law = head.law(torch.randn(B, N, D), centre)
        torch.testing.assert_close(law[..., 0], centre)
        torch.testing.assert_close(law[0, 0, :, 0, 1], torch.tensor([0.5, 1.0, 2.0, 4.0]))


def test_draws_follow_the_law():
    rng = np.random.default_rng(0)
    for kind, parameters in {"normal": (5.0, 2.0), "student_t": (5.0, 2.0), "negative_binomial": (5.0, 0.4)}.items():
        head = make_head(kind)
        law = torch.tensor(parameters).expand(20_000, 2)
        draws = torch.from_numpy(head.draws(rng, (20_000,)))
        found = head.drawn(law, draws, lambda z: z).double().numpy()
        exact = scipy_law(kind, np.array(parameters), freedom=getattr(head, "freedom", None))
        for q in (0.1, 0.5, 0.9):
            at = exact.ppf(q)
            share = (found <= at + 1e-6).mean()  # the distribution function jumps at counts
            assert abs(share - exact.cdf(at)) < 4 * math.sqrt(0.25 / 20_000), (kind, q)


def test_a_mean_of_counts_stays_above_zero_and_meets_the_location_where_that_is_large():
    head = NegativeBinomialHead(d_model=2, h=1, n_channels=1, quantiles=(0.5,))
    deviation, spread = torch.ones(1), torch.ones(1)
    for location, close in ((-30.0, 0.0), (0.0, 0.17), (5.0, 5.0)):
        law = torch.stack([torch.tensor([location]), spread], dim=-1)
        mean = head.in_units(law, torch.zeros(1), deviation)[0, 0]
        assert mean > 0
        assert float(mean) == pytest.approx(close, abs=0.01)


def test_a_lane_that_was_always_zero_is_forecast_as_zero():
    head = NegativeBinomialHead(d_model=2, h=1, n_channels=1, quantiles=(0.5,))
    law = head.in_units(torch.tensor([[0.0, 1.0]]), torch.zeros(1), torch.zeros(1))
    assert head.at(law, [0.01, 0.5, 0.99], lambda z: z).tolist() == [[0.0, 0.0, 0.0]]


def test_a_level_that_is_not_known_gives_nan():
    for kind, head_type in {"normal": NormalHead, "counts": NegativeBinomialHead}.items():
        head = head_type(d_model=2, h=1, n_channels=1, quantiles=(0.5,))
        law = head.in_units(torch.tensor([[0.0, 1.0]]), torch.tensor([torch.nan]), torch.zeros(1))
        assert head.at(law, [0.5, 0.9], lambda z: z).isnan().all(), kind
