"""The linear path's closed form against least squares over explicit windows, one by one."""

import numpy as np
import pytest
import torch

from txl_ts.config import ModelConfig
from txl_ts.model import TXLModel
from txl_ts.training import Origins, Pieces, closed_form, fit_linear_path

LOOKBACK, H = 5, 3
MEAN, DEVIATION = 1.5, 2.0
PENALTIES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0)


def make_model(**changes):
    sizes = {"h": H, "quantiles": (0.1, 0.5, 0.8), "patch_len": 4, "stride": 3, "mem_len": 2, "lookback": LOOKBACK}
    width = {"half_life": 24.0, "d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 10, "scaler": "standard"}
    model = TXLModel(ModelConfig(**{**sizes, **width, **changes}))
    if model.config.scaler == "standard":
        model.normaliser.mean.fill_(MEAN)
        model.normaliser.deviation.fill_(DEVIATION)
    return model


def rows_of(lengths, *, seed, warm, units=None, missing=0.0):
    rng = np.random.default_rng(seed)
    stop = np.cumsum(lengths)
    first = stop - lengths
    values = np.zeros(stop[-1] + 5)
    for a, b in zip(first, stop, strict=True):
        noise = rng.normal(size=b - a)
        for t in range(a, b):  # an autoregression that a window can learn
            values[t] = 0.6 * values[t - 1] * (t > a) - 0.5 * values[t - 2] * (t > a + 1) + noise[t - a]
    values = (values + 2).astype(np.float32)
    values[rng.random(len(values)) < missing] = np.nan
    units = np.ones(len(lengths)) if units is None else units
    return Origins(Pieces(values, first, stop, np.asarray(units, np.float32)), first + warm)


def carried(z, t):
    """The value of a row, or the last one before it; the mean where nothing had come yet."""
    there = [value for value in z[: max(t + 1, 0)] if np.isfinite(value)]
    return min(max(there[-1], -10.0), 10.0) if there else 0.0


def windows(origins):
    """Inputs, targets and weights, in deviations above the last value: the definition, read aloud."""
    inputs, targets, weights = [], [], []
    pieces = origins.pieces
    for first, stop, begin, unit in zip(pieces.first, pieces.stop, origins.first, pieces.unit, strict=True):
        z = (pieces.values[first:stop].astype(np.float64) - MEAN) / DEVIATION
        for t in range(begin - first, stop - first - H):
            future = z[t + 1 : t + 1 + H]
            if not np.isfinite(future).all():
                continue
            past = np.array([carried(z, t - k) for k in range(LOOKBACK - 1, -1, -1)])
            inputs.append(past - past[-1])
            targets.append(future - past[-1])
            weights.append(min(DEVIATION / float(unit), 20.0))
    return np.array(inputs), np.array(targets), np.array(weights)


def ridge(inputs, targets, weights, penalty):
    """Least squares over the windows and one row of √penalty for each input: no normal equations."""
    n = inputs.shape[1]
    a = np.column_stack([inputs, np.ones(len(inputs))]) * weights[:, None]
    root = np.sqrt(penalty * np.mean(np.sum(np.square(a[:, :-1]), axis=0)))
    a = np.vstack([a, root * np.eye(n, n + 1)])
    b = np.vstack([targets * weights[:, None], np.zeros((n, H))])
    return np.linalg.lstsq(a, b, rcond=None)[0]


def by_hand(train, validation):
    """Weights (h, lookback) and bias (h,) on values in deviations, the chosen penalty, its error and the spread."""
    x, y, w = windows(train)
    found = []
    for penalty in PENALTIES:
        solution = ridge(x, y, w, penalty)
        vx, vy, vw = windows(validation)
        miss = vx @ solution[:-1] + solution[-1] - vy
        error = np.mean(np.square(miss * vw[:, None]))
        spread = np.sqrt(np.mean(np.minimum(np.square(miss), 25), axis=0))
        found.append((error, penalty, solution, spread))
    error, penalty, solution, spread = min(found, key=lambda entry: entry[0])
    weight = solution[:-1].T.copy()
    weight[:, -1] += 1 - weight.sum(axis=1)  # inputs and targets were counted from the last value
    return weight, solution[-1], penalty, error, spread


CASES = {
    "plain": {},
    "missing values": {"missing": 0.15},
    "series of other units": {"units": [0.5, 4.0, 0.01]},
    "windows that begin before their piece": {"warm": 1},
}


@pytest.mark.parametrize("case", CASES)
def test_the_linear_path_is_the_ridge_that_is_best_on_the_validation_rows(case):
    kwargs = {"warm": LOOKBACK, **CASES[case]}
    train = rows_of(np.array([60, 45, 300]), seed=0, **kwargs)  # 300 rows are two segments
    validation = rows_of(np.array([50, 20, 70]), seed=1, **kwargs)
    weight, bias, penalty, error, spread = by_hand(train, validation)
    model = make_model()
    found = fit_linear_path(model, train, validation, seed=0)
    assert found.penalty == penalty
    # Inputs are float32 and the equations are squared: five digits are left.
    np.testing.assert_allclose(model.linear_path.weight.detach().numpy(), weight, rtol=0, atol=2e-5)
    np.testing.assert_allclose(model.linear_path.bias.detach().numpy(), bias, rtol=0, atol=2e-5)
    assert found.error == pytest.approx(error, rel=1e-4)
    np.testing.assert_allclose(found.spread.numpy(), spread, rtol=1e-4)


def test_an_earlier_fit_gives_its_penalty_and_spread():
    train, validation = (rows_of(np.array([60, 45]), seed=seed, warm=LOOKBACK) for seed in (0, 1))
    earlier = fit_linear_path(make_model(), train, validation, seed=0)
    more = rows_of(np.array([60, 45, 50]), seed=3, warm=LOOKBACK)
    model = make_model()
    found = fit_linear_path(model, more, None, seed=0, known=earlier)
    assert found is earlier
    solution = ridge(*windows(more), earlier.penalty)
    np.testing.assert_allclose(model.linear_path.bias.detach().numpy(), solution[-1], rtol=0, atol=2e-5)


def test_without_validation_rows_a_middle_penalty_and_a_spread_of_one_are_taken():
    model = make_model()
    found = fit_linear_path(model, rows_of(np.array([60]), seed=0, warm=LOOKBACK), None, seed=0)
    assert found.penalty == pytest.approx(3e-2)
    assert found.error != found.error
    assert found.spread.tolist() == [1, 1, 1]


def test_without_a_single_whole_horizon_the_forecast_is_the_last_value():
    model = make_model()
    found = fit_linear_path(model, rows_of(np.array([LOOKBACK + H - 1]), seed=0, warm=LOOKBACK), None, seed=0)
    window = torch.tensor([[[[0.3, 0.1, -2.0, 0.5, 0.7]]]])
    assert model.linear_path(window).flatten().tolist() == pytest.approx([0.7] * H)
    assert found.penalty != found.penalty


def test_no_rows_at_all_leave_the_last_value():
    nothing = Origins(
        Pieces(np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)),
        np.zeros(0, np.int64),
    )
    model = make_model()
    fit_linear_path(model, nothing, None, seed=0)
    assert model.linear_path.weight.sum(dim=1).tolist() == [1, 1, 1]


def test_without_a_look_back_only_a_level_is_fitted():
    train = rows_of(np.array([80, 60]), seed=0, warm=LOOKBACK)
    model = make_model(lookback=0)
    fit_linear_path(model, train, None, seed=0)
    targets = []
    for first, stop, begin in zip(train.pieces.first, train.pieces.stop, train.first, strict=True):
        z = (train.pieces.values[first:stop] - MEAN) / DEVIATION
        targets += [z[t + 1 : t + 1 + H] for t in range(begin - first, stop - first - H)]
    np.testing.assert_allclose(model.linear_path.bias.detach().numpy(), np.mean(targets, axis=0), atol=1e-5)


@pytest.mark.parametrize("scaler", ["running", "standard"])
def test_shift_and_unit_of_the_rows_change_no_weight(scaler):
    """The running scaler does it by itself; the standard one is fitted to the moved rows."""
    paths = []
    for a, b in ((1.0, 0.0), (1000.0, 1e5)):
        rows = rows_of(np.array([120, 90]), seed=0, warm=20)
        pieces = rows.pieces
        values = (a * pieces.values.astype(np.float64) + b).astype(np.float32)
        rows = Origins(Pieces(values, pieces.first, pieces.stop, pieces.unit * np.float32(a)), rows.first)
        model = make_model(scaler=scaler)
        model.normaliser.fit(values)
        fit_linear_path(model, rows, rows, seed=0)
        paths.append(model.linear_path.weight.detach().numpy())
    # 1e5 above rows of ±1000 leaves five digits of float32 to the rows.
    np.testing.assert_allclose(paths[1], paths[0], rtol=0, atol=1e-3)


def test_the_global_random_numbers_stay():
    model = make_model()
    before = torch.get_rng_state()
    fit_linear_path(model, rows_of(np.array([60]), seed=0, warm=LOOKBACK), None, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_more_rows_than_are_needed_are_drawn_by_the_seed(monkeypatch):
    monkeypatch.setattr(closed_form, "_MOST_ROWS", 100)
    rows = rows_of(np.array([300, 300]), seed=0, warm=LOOKBACK)
    weights = []
    for seed in (0, 0, 1):
        model = make_model()
        fit_linear_path(model, rows, None, seed=seed)
        weights.append(model.linear_path.weight.detach().clone())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert (weights[0] - weights[2]).abs().max() < 0.5  # other rows, the same law
