"""Estimation theory of the bench against closed forms, and a table that holds what was measured."""

import numpy as np
import pytest

from txl_ts.bench import adaptation, report
from txl_ts.bench.memory import Training
from txl_ts.bench.unknown_systems import READING_NOISE, Oscillators, bank, kalman, least_squares


@pytest.fixture(scope="module")
def systems():
    return Oscillators.drawn(np.random.default_rng(0), 3)


@pytest.fixture(scope="module")
def y(systems):
    return systems.readings(np.random.default_rng(1), 12)


def covariance(systems, i, n):
    """Of the first n readings of a system: a rotation in a stationary state of unit variance."""
    lag = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    signal = systems.damping[i] ** lag * np.cos(2 * np.pi * lag / systems.period[i])
    return signal + READING_NOISE**2 * np.eye(n)


def test_readings_have_the_covariance_of_their_system(systems):
    one = Oscillators(np.repeat(systems.period[:1], 20_000), np.repeat(systems.damping[:1], 20_000))
    drawn = one.readings(np.random.default_rng(2), 5)
    # Four standard errors of a covariance of 20,000 draws.
    assert np.cov(drawn.T) == pytest.approx(covariance(systems, 0, 5), abs=4 * 1.1 * np.sqrt(2 / 20_000))


def test_the_kalman_filter_is_the_conditional_mean(systems, y):
    forecast, variance = kalman(y, systems)
    for i in range(3):
        for n in (1, 5, 11):
            whole = covariance(systems, i, n + 1)
            weights = np.linalg.solve(whole[:n, :n], whole[:n, n])
            assert forecast[i, n - 1] == pytest.approx(weights @ y[i, :n], rel=1e-9)
            assert variance[i, n - 1] == pytest.approx(whole[n, n] - weights @ whole[:n, n], rel=1e-9)


def test_the_bank_weighs_its_filters_by_the_likelihood_of_the_readings(systems, y):
    found, n = bank(y[:1], systems), 7
    likelihood, said = [], []
    for i in range(3):
        whole = covariance(systems, i, n + 1)
        past = whole[:n, :n]
        likelihood.append(np.exp(-0.5 * y[0, :n] @ np.linalg.solve(past, y[0, :n])) / np.sqrt(np.linalg.det(past)))
        said.append(np.linalg.solve(past, whole[:n, n]) @ y[0, :n])
    assert found[0, n - 1] == pytest.approx(np.dot(likelihood, said) / np.sum(likelihood), rel=1e-9)


def test_recursive_least_squares_is_the_ridge_of_all_rows_so_far(y):
    found, order, n = least_squares(y, order=2, prior=0.5), 2, 9
    padded = np.concatenate([np.zeros((3, 2)), y], axis=1)
    for i in range(3):
        past = np.stack([padded[i, row : row + 2][::-1] for row in range(1, n)])  # of the readings 1 … n − 1
        weights = np.linalg.solve(past.T @ past + 0.5 * np.eye(order), past.T @ y[i, 1:n])
        assert found[i, n - 1] == pytest.approx(weights @ y[i, n - 2 : n][::-1], rel=1e-9)


def test_errors_are_binned_by_the_rows_that_were_seen():
    y = np.zeros((2, 256))
    forecast = np.tile(np.sqrt(np.arange(1, 257)), (2, 1))  # its square is the number of rows seen
    assert adaptation.binned(y, forecast).tolist() == pytest.approx([(a + b) / 2 for a, b in adaptation.BINS])


def test_the_table_has_theory_rivals_and_the_memory_zeroed():
    small = Training(n_updates=2, n_lanes=2)
    table = adaptation.run(seeds=(0,), training=small, n_test=4, n_candidates=3)
    names = [row["model"] for row in table["rows"]]
    assert names[0] == "Kalman filter, parameters known"
    assert names[1] == "3 Kalman filters, structure known"
    ours = ["TXL, fifo", "TXL, fifo, memory zeroed", "TXL, same_layer", "TXL, same_layer, memory zeroed"]
    assert names[-5:] == [*ours, "GRU"]
    assert [table["rows"][0][f"rows_{a}"] for a, _ in adaptation.BINS] == [1.0] * 8
    assert len(table["runs"]) == 5
    assert report.markdown(table).startswith("# Systems never met")


def test_a_walk_carries_the_memory_from_segment_to_segment():
    import torch

    from txl_ts.bench.memory_contenders import contenders

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = contenders(adaptation.POLICIES, ())[0].make(adaptation.TASK).eval()
        torch.nn.init.normal_(model.answer.linear.weight)  # it begins at 0
    y = np.ones((1, 40))
    y[0, 0] = 4
    other = y.copy()
    other[0, 0] = -4
    carried = [adaptation.said(model, rows, segment_len=16) for rows in (y, other)]
    assert abs(carried[0][0, 20] - carried[1][0, 20]) > 1e-6  # the first row is still there in the second segment
