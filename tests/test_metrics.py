"""Metrics against hand formulas, scikit-learn and published figures."""

import math

import numpy as np
import pytest
from sklearn.metrics import mean_pinball_loss

from txl_ts import metrics
from txl_ts.bench import m4
from txl_ts.bench.baselines import seasonal_naive
from txl_ts.errors import ParameterError, ShapeError

NAN = math.nan
QUANTILES = (0.1, 0.5, 0.8)


@pytest.fixture
def drawn():
    """Three series, horizon 5, three levels: no two axes alike except where they must be."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(4, 5)), rng.normal(size=(4, 5, 3))


# ------------------------------------------------------------------------------------------------------ point forecasts


def test_mse_and_mae_are_the_textbook_means(drawn):
    y, forecast = drawn[0], drawn[1][..., 0]
    assert metrics.mse(y=y, forecast=forecast) == pytest.approx(sum((y - forecast).ravel() ** 2) / 20)
    assert metrics.mae(y=y, forecast=forecast) == pytest.approx(sum(abs(y - forecast).ravel()) / 20)


def test_an_axis_gives_one_score_per_remaining_cell(drawn):
    y, forecast = drawn[0], drawn[1][..., 0]
    per_series = metrics.mae(y=y, forecast=forecast, axis=-1)
    assert per_series.shape == (4,)
    assert per_series[2] == pytest.approx(metrics.mae(y=y[2], forecast=forecast[2]))


@pytest.mark.parametrize("metric", [metrics.mse, metrics.mae, metrics.smape])
def test_a_nan_on_either_side_leaves_the_pair_out(metric):
    assert metric(y=[1.0, NAN, 3.0], forecast=[2.0, 9.0, NAN]) == metric(y=[1.0], forecast=[2.0])


@pytest.mark.parametrize("metric", [metrics.mse, metrics.mae, metrics.smape])
def test_a_mean_over_nothing_is_nan_and_no_warning(metric):
    assert math.isnan(metric(y=[NAN], forecast=[1.0]))


@pytest.mark.parametrize("metric", [metrics.mse, metrics.mae, metrics.smape])
def test_a_shape_that_would_broadcast_is_refused(metric):
    with pytest.raises(ShapeError, match=r"y has shape \(3, 1\) and forecast has shape \(3,\)"):
        metric(y=np.ones((3, 1)), forecast=np.ones(3))


def test_metrics_leave_their_inputs_untouched(drawn):
    y, forecast = drawn
    before = y.copy(), forecast.copy()
    metrics.weighted_quantile_loss(y=y, forecast=forecast, quantiles=QUANTILES)
    metrics.smape(y=y, forecast=forecast[..., 0])
    np.testing.assert_array_equal(y, before[0])
    np.testing.assert_array_equal(forecast, before[1])


# --------------------------------------------------------------------------------------------------- quantile forecasts


def test_pinball_equals_scikit_learn(drawn):
    y, forecast = drawn
    expected = [
        mean_pinball_loss(y.ravel(), forecast[..., i].ravel(), alpha=level) for i, level in enumerate(QUANTILES)
    ]
    np.testing.assert_allclose(
        metrics.pinball(y=y, forecast=forecast, quantiles=QUANTILES, axis=(0, 1)), expected, rtol=1e-12
    )
    assert metrics.pinball(y=y, forecast=forecast, quantiles=QUANTILES) == pytest.approx(np.mean(expected))


def test_pinball_passes_over_missing_values(drawn):
    y, forecast = drawn
    holed = y.copy()
    holed[1] = NAN
    whole = [0, 2, 3]
    assert metrics.pinball(y=holed, forecast=forecast, quantiles=QUANTILES) == pytest.approx(
        metrics.pinball(y=y[whole], forecast=forecast[whole], quantiles=QUANTILES)
    )


def test_weighted_quantile_loss_is_twice_the_summed_pinball_over_the_summed_size(drawn):
    y, forecast = drawn
    by_hand = []
    for i, level in enumerate(QUANTILES):
        total = 0.0
        for value, said in zip(y.ravel(), forecast[..., i].ravel(), strict=True):
            total += level * (value - said) if value > said else (1 - level) * (said - value)
        by_hand.append(2 * total / abs(y).sum())
    found = metrics.weighted_quantile_loss(y=y, forecast=forecast, quantiles=QUANTILES)
    assert found == pytest.approx(np.mean(by_hand))


def test_a_missing_value_counts_in_neither_sum_of_the_weighted_quantile_loss(drawn):
    y, forecast = drawn
    holed = y.copy()
    holed[:, 0] = NAN
    assert metrics.weighted_quantile_loss(y=holed, forecast=forecast, quantiles=QUANTILES) == pytest.approx(
        metrics.weighted_quantile_loss(y=y[:, 1:], forecast=forecast[:, 1:], quantiles=QUANTILES)
    )


def test_the_weighted_quantile_loss_of_zeros_is_nan():
    assert math.isnan(metrics.weighted_quantile_loss(y=[0.0], forecast=[[1.0]], quantiles=[0.5]))


def test_levels_must_stand_on_the_last_axis(drawn):
    y, forecast = drawn
    with pytest.raises(ShapeError, match=r"\(3, 4, 5\); \(4, 5, 3\) is needed"):
        metrics.pinball(y=y, forecast=np.moveaxis(forecast, -1, 0), quantiles=QUANTILES)


def test_a_level_outside_0_and_1_is_refused():
    with pytest.raises(ParameterError, match=r"\[10.0\] must lie in \(0, 1\)"):
        metrics.pinball(y=[1.0], forecast=[[1.0]], quantiles=[10.0])


def test_coverage_counts_the_ends_and_passes_over_missing_cells():
    y = [1.0, 2.0, 3.0, NAN, 5.0]
    assert metrics.coverage(y=y, lower=[1.0, 0.0, 4.0, 0.0, NAN], upper=[1.0, 2.0, 5.0, 1.0, 9.0]) == pytest.approx(
        2 / 3
    )


# ----------------------------------------------------------------------------------------------------------- M4's three


def test_smape_weighs_every_series_the_same_when_values_are_missing():
    y, forecast = [[1.0, NAN], [1.0, 1.0]], [[3.0, 3.0], [1.0, 1.0]]
    assert metrics.smape(y=y, forecast=forecast) == pytest.approx((100.0 + 0.0) / 2)
    np.testing.assert_allclose(metrics.smape(y=y, forecast=forecast, axis=-1), [100.0, 0.0])


def test_smape_of_two_zeros_is_zero():
    assert metrics.smape(y=[0.0], forecast=[0.0]) == 0.0


def test_mase_divides_by_the_seasonal_step_of_the_rows_before():
    insample = [1.0, 5.0, 2.0, 8.0, 4.0]  # steps at season 2: 1, 3, 2
    assert metrics.mase(y=[10.0, 10.0], forecast=[9.0, 13.0], insample=insample, season=2) == pytest.approx(2.0 / 2.0)


@pytest.mark.parametrize("padding", ["left", "right", "none"])
def test_mase_takes_series_of_any_length_padded_or_not(padding):
    rows = [[1.0, 2.0, 4.0, 7.0], [3.0, 5.0]]
    if padding == "left":
        rows = [rows[0], [NAN, NAN, *rows[1]]]
    elif padding == "right":
        rows = [rows[0], [*rows[1], NAN, NAN]]
    y, forecast = [[1.0, 1.0], [2.0, 2.0]], [[2.0, 4.0], [3.0, 3.0]]
    scores = metrics.mase(y=y, forecast=forecast, insample=rows, season=1, axis=-1)
    np.testing.assert_allclose(scores, [2.0 / 2.0, 1.0 / 2.0])
    assert metrics.mase(y=y, forecast=forecast, insample=rows, season=1) == pytest.approx(0.75)


def test_a_constant_series_has_no_mase_and_does_not_count():
    found = metrics.mase(
        y=[[1.0], [2.0]], forecast=[[2.0], [2.5]], insample=[[7.0, 7.0, 7.0], [1.0, 2.0, 3.0]], season=1
    )
    assert found == pytest.approx(0.5)


def test_mase_refuses_another_number_of_series():
    with pytest.raises(ShapeError, match="insample holds 1 series and y holds 2"):
        metrics.mase(y=[[1.0], [2.0]], forecast=[[1.0], [2.0]], insample=[[1.0, 2.0]], season=1)


@pytest.mark.parametrize("season", [0, 1.5, True])
def test_mase_refuses_a_season_that_is_no_count(season):
    with pytest.raises(ParameterError, match="must be an integer of at least 1"):
        metrics.mase(y=[1.0], forecast=[1.0], insample=[1.0, 2.0], season=season)


def test_owa_of_naive2_itself_is_one():
    for naive2 in metrics.M4_NAIVE2.values():
        assert metrics.owa(smape=naive2.smape, mase=naive2.mase, naive2=naive2) == 1.0


@pytest.mark.parametrize(
    ("group", "season", "smape", "mase", "owa"),
    [("Hourly", 24, 13.912, 1.193, 0.628), ("Weekly", 1, 9.161, 2.777, 1.000)],
)
def test_the_seasonal_naive_has_the_scores_that_the_m4_competition_published(
    shared_data, group, season, smape, mase, owa
):
    loaded = m4.load(shared_data, group=group)
    h = loaded.test.shape[1]
    forecast = np.stack(
        [seasonal_naive(x[:, None], origins=np.array([len(x) - 1]), h=h, season=season)[0, 0] for x in loaded.train]
    )
    found = m4.scores(loaded, forecast=forecast)
    # Published with three digits; OWA from them, so its last digit is theirs to ± 1.
    assert found["smape"] == pytest.approx(smape, abs=6e-4)
    assert found["mase"] == pytest.approx(mase, abs=6e-4)
    assert found["owa"] == pytest.approx(owa, abs=1.1e-3)


# ---------------------------------------------------------------------------------------------------------- forgetting


def test_forgetting_is_measured_from_the_best_that_was_reached_before():
    errors = np.array([[1.0, NAN, NAN], [0.5, 2.0, NAN], [0.9, 1.5, 3.0]])
    found = metrics.forgetting(errors=errors)
    np.testing.assert_allclose(found, [[NAN, NAN, NAN], [-0.5, NAN, NAN], [0.4, -0.5, NAN]])
    assert metrics.mean_forgetting(errors=errors) == pytest.approx((0.4 - 0.5) / 2)


def test_a_regime_that_was_measured_before_it_was_learned_counts_from_its_best_too():
    assert metrics.forgetting(errors=[[1.0, 2.0, 9.0], [1.0, 2.5, 9.0], [1.0, 2.2, 9.0]])[2, 1] == pytest.approx(0.2)


def test_nothing_can_be_forgotten_of_one_regime():
    assert math.isnan(metrics.mean_forgetting(errors=[[1.0]]))


def test_forgetting_needs_a_square_table():
    with pytest.raises(ShapeError, match=r"errors has shape \(2, 3\); \(K, K\) is needed"):
        metrics.forgetting(errors=np.zeros((2, 3)))
