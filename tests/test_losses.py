"""Losses against formulas written out by hand, in numpy and by scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, mean_pinball_loss, mean_squared_error

from txl_ts.losses import LOSSES, forecast_loss, pinball

QUANTILES = (0.1, 0.5, 0.7)
B, N, H, C, Q = 2, 3, 4, 1, 3


def case(seed=0, missing=0.0):
    rng = np.random.default_rng(seed)
    usable = rng.random((B, N, H, C)) >= missing
    return {
        "forecast": rng.normal(size=(B, N, H, C, Q)),
        "target": np.where(usable, rng.normal(size=(B, N, H, C)), np.nan),
        "deviation": rng.uniform(0.5, 1, size=(B, N, C)),
        "unit": np.array([2.0, 0.5]),
        "level": rng.normal(size=(B, N, C)) * 3,
        "usable": usable,
    }


def loss_of(name, quantiles=QUANTILES, **arrays):
    tensors = {key: torch.as_tensor(array) for key, array in arrays.items()}
    return float(forecast_loss(**tensors, quantiles=quantiles, loss=LOSSES[name]))


def by_hand(name, *, forecast, target, deviation, unit, level, usable):
    """One target after the other, as the docstrings say it."""
    total, count = 0.0, 0
    for b, n, h, c in np.argwhere(usable):
        scale = max(unit[b], deviation[b, n, c] / 20)
        for q, quantile in enumerate(QUANTILES):
            error = target[b, n, h, c] - forecast[b, n, h, c, q]
            weight = 1 / scale
            if name == "owa":
                size = abs(target[b, n, h, c] + level[b, n, c]) + abs(forecast[b, n, h, c, q] + level[b, n, c])
                weight += 20 / max(size, 1e-3 * scale)
            if name == "squared" and quantile == 0.5:
                total += (error * weight) ** 2
            else:
                total += 2 * (quantile * error if error >= 0 else (quantile - 1) * error) * weight
            count += 1
    return total / count


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_each_loss_is_its_formula_over_the_usable_targets(name, missing):
    arrays = case(missing=missing)
    assert loss_of(name, **arrays) == pytest.approx(by_hand(name, **arrays), rel=1e-12)


def test_pinball_is_scikit_learns_doubled():
    rng = np.random.default_rng(1)
    y, forecast = rng.normal(size=50), rng.normal(size=(50, Q))
    told = pinball(torch.as_tensor(y[:, None] - forecast), QUANTILES).mean(0)
    for i, q in enumerate(QUANTILES):
        assert float(told[i]) == pytest.approx(2 * mean_pinball_loss(y, forecast[:, i], alpha=q), rel=1e-12)


@pytest.mark.parametrize(("name", "metric"), [("pinball", mean_absolute_error), ("squared", mean_squared_error)])
def test_the_median_alone_is_the_mean_error_in_units_of_the_series(name, metric):
    arrays = case() | {"unit": np.array([3.0, 3.0]), "forecast": case()["forecast"][..., :1]}
    told = loss_of(name, quantiles=(0.5,), **arrays)
    expected = metric(arrays["target"].ravel() / 3, arrays["forecast"].ravel() / 3)
    assert told == pytest.approx(expected, rel=1e-12)


def test_the_relative_term_is_smape():
    """M4's sMAPE is the mean of 2 |y − f| / (|y| + |f|): 20 times half of it."""
    arrays = case() | {"level": np.zeros((B, N, C)), "unit": np.array([1e3, 1e3])}  # 1e-3 of it is less than the sizes
    arrays["target"], arrays["forecast"] = arrays["target"] + 9, arrays["forecast"][..., :1] + 9
    y, f = arrays["target"], arrays["forecast"][..., 0]
    smape = np.mean(2 * np.abs(y - f) / (np.abs(y) + np.abs(f)))
    relative = loss_of("owa", quantiles=(0.5,), **arrays) - loss_of("mase", quantiles=(0.5,), **arrays)
    assert relative == pytest.approx(10 * smape, rel=1e-9)


def test_units_make_the_loss_blind_to_the_unit_of_a_series():
    arrays = case()
    scaled = {key: array if key == "usable" else array * 1000 for key, array in arrays.items()}
    for name in LOSSES:
        assert loss_of(name, **scaled) == pytest.approx(loss_of(name, **arrays), rel=1e-12)


def test_rows_of_an_exploding_deviation_weigh_no_more_than_their_share():
    arrays = case()
    arrays["deviation"] = arrays["deviation"].copy()
    arrays["deviation"][0, 0] = 1e6
    assert loss_of("pinball", **arrays) == pytest.approx(by_hand("pinball", **arrays), rel=1e-12)


def test_nothing_usable_is_a_loss_of_0_with_gradients_of_0():
    arrays = {key: torch.as_tensor(array) for key, array in case(missing=1.1).items()}
    arrays["forecast"].requires_grad_()
    for loss in LOSSES.values():
        arrays["forecast"].grad = None
        value = forecast_loss(**arrays, quantiles=QUANTILES, loss=loss)
        value.backward()
        assert float(value.detach()) == 0
        assert not arrays["forecast"].grad.any()


def test_missing_targets_give_no_gradient_and_no_nan():
    """0 · NaN is NaN: what is not usable has to be cut out before any product."""
    arrays = {key: torch.as_tensor(array) for key, array in case(missing=0.4).items()}
    arrays["forecast"].requires_grad_()
    for loss in LOSSES.values():
        arrays["forecast"].grad = None
        forecast_loss(**arrays, quantiles=QUANTILES, loss=loss).backward()
        grad = arrays["forecast"].grad
        assert grad.isfinite().all()
        assert not grad[~arrays["usable"]].any()
        assert grad[arrays["usable"]].all()


def test_the_size_in_the_relative_term_gives_no_gradient():
    """Else a forecast could lower its loss by growing."""
    arrays = {key: torch.as_tensor(array) for key, array in case().items()}
    forecast = arrays["forecast"].requires_grad_()
    forecast_loss(**arrays, quantiles=QUANTILES, loss=LOSSES["owa"]).backward()
    level = torch.tensor(QUANTILES, dtype=torch.float64)
    error = (arrays["target"][..., None] - forecast).detach()
    raw = arrays["level"][:, :, None, :, None]
    size = (arrays["target"][..., None] + raw).abs() + (forecast.detach() + raw).abs()
    weight = 1 / arrays["unit"][:, None, None, None, None] + 20 / size
    expected = -2 * torch.where(error > 0, level, level - 1) * weight / error.numel()
    torch.testing.assert_close(forecast.grad, expected, rtol=1e-9, atol=0)
