"""Conformal bands against plain counting, and the adaptive levels against the paper's recursion written out."""

import copy

import numpy as np
import pandas as pd
import pytest

from txl_ts import TXLForecaster
from txl_ts.bench.coverage import adapted
from txl_ts.conformal import N_GRID, Adaptive, Conformal, spacing
from txl_ts.errors import ExportError, ParameterError

LEVELS = (0.1, 0.5, 0.9)


def normal_forecasts(n: int, *, h: int = 2, spread: float = 1.0, seed: int = 0):
    """Bands of a normal law around a wandering centre, and outcomes with ``spread`` times its deviation."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=(n, h, 1)) * 5
    size = rng.uniform(0.5, 4, size=(n, 1, 1))
    forecast = centre + size * np.array([-1.2816, 0, 1.2816])
    y = centre[..., 0] + size[..., 0] * spread * rng.normal(size=(n, h))
    return forecast.astype(np.float32), y.astype(np.float32)


def coverage(forecast, y):
    return ((y >= forecast[..., 0]) & (y <= forecast[..., -1])).mean(axis=0)


@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_bands_of_the_wrong_width_hold_their_level_after_calibration(spread):
    table = Conformal.from_forecasts([normal_forecasts(4000, spread=spread)], quantiles=LEVELS)
    forecast, y = normal_forecasts(4000, spread=spread, seed=1)
    assert (abs(coverage(forecast, y) - 0.8) > 0.1).all()
    # Both samples of 4,000 err: three standard errors of their difference.
    assert coverage(table.moved(forecast), y) == pytest.approx(0.8, abs=3 * np.sqrt(2 * 0.16 / 4000))


def test_a_quantile_moves_by_the_quantile_of_its_own_misses_in_widths():
    forecast, y = normal_forecasts(500, spread=1.7)
    table = Conformal.from_forecasts([(forecast[:200], y[:200]), (forecast[200:], y[200:])], quantiles=LEVELS)
    width = forecast[..., 2] - forecast[..., 0]
    upper = np.quantile((y - forecast[..., 2]) / width, 0.9 * 501 / 500, axis=0)
    lower = np.quantile((y - forecast[..., 0]) / width, 1 - 0.9 * 501 / 500, axis=0)
    moved = table.moved(forecast)
    # The quantile function is kept at 101 points: straight lines between them.
    np.testing.assert_allclose(moved[..., 2], forecast[..., 2] + upper * width, atol=0.02 * width.max())
    np.testing.assert_allclose(moved[..., 0], forecast[..., 0] + lower * width, atol=0.02 * width.max())
    np.testing.assert_array_equal(moved[..., 1], forecast[..., 1])


def test_a_step_ahead_is_calibrated_by_its_own_misses():
    forecast, y = normal_forecasts(3000)
    y[:, 1] = forecast[:, 1, 1] + 3 * (y[:, 1] - forecast[:, 1, 1])
    moved = Conformal.from_forecasts([(forecast, y)], quantiles=LEVELS).moved(forecast)
    width = (moved[..., 2] - moved[..., 0]) / (forecast[..., 2] - forecast[..., 0])
    assert width.mean(axis=0) == pytest.approx([1, 3], rel=0.08)


def test_moved_quantiles_never_cross_and_steps_beyond_the_table_move_like_its_last():
    rng = np.random.default_rng(0)
    scores = np.sort(rng.normal(size=(2, 5, N_GRID)).astype(np.float32) * 3, axis=-1)
    table = Conformal((0.05, 0.2, 0.5, 0.7, 0.9), scores, 100)
    forecast = np.sort(rng.normal(size=(30, 4, 5)).astype(np.float32), axis=-1)
    moved = table.moved(forecast, rng.uniform(-0.5, 1.5, size=(30, 2, 5)).astype(np.float32))
    assert (np.diff(moved, axis=-1) >= 0).all()
    same = table.moved(np.repeat(forecast[:, 1:2], 3, axis=1))
    np.testing.assert_array_equal(same[:, 1], same[:, 2])


def test_missing_values_and_bands_without_width_are_no_scores():
    forecast, y = normal_forecasts(60)
    y[::2, 0] = np.nan
    forecast[1::4] = forecast[1::4, :, 1:2]
    there = np.isfinite(y[:, 0]) & (forecast[:, 0, 2] > forecast[:, 0, 0])
    with pytest.raises(ParameterError, match=f"needs 20 forecasts of every step ahead .* has {there.sum()}"):
        Conformal.from_forecasts([(forecast, y)], quantiles=LEVELS)
    with pytest.raises(ParameterError, match="only the median was trained"):
        Conformal.from_forecasts([], quantiles=(0.5,))


def test_adaptive_levels_follow_the_papers_recursion():
    """p ← p + γ(q − 1{y ≤ band}); for an upper band this is α ← α + γ(α* − err) of arXiv 2106.00170 with p = 1 − α."""
    table = Conformal.from_forecasts([normal_forecasts(400, h=1)], quantiles=LEVELS)
    forecast, y = normal_forecasts(60, h=1, spread=2.5, seed=3)
    out = adapted(table, forecast, y, np.arange(60), rate=0.05)
    alpha = 1 - table.levels()[0, 2].astype(float)  # of the upper band
    for i in range(60):
        band = table.moved(forecast[i], np.array([[*table.levels()[0, :2], 1 - alpha]], np.float32))[0, 2]
        assert out[i, 0, 2] == pytest.approx(band, rel=1e-4, abs=1e-4)
        alpha += 0.05 * ((1 - 0.9) - (y[i, 0] > band))


def test_adaptive_bands_hold_their_level_under_drift_where_fixed_ones_do_not():
    table = Conformal.from_forecasts([normal_forecasts(1000, h=1)], quantiles=LEVELS)
    forecast, y = normal_forecasts(3000, h=1, spread=2.5, seed=4)
    fixed, online = table.moved(forecast), adapted(table, forecast, y, np.arange(3000), rate=0.02)
    assert coverage(fixed, y)[0] < 0.5
    # Without any assumption, each tail misses by at most (1 + γ) / (γ T) (the paper's proposition 4.1).
    assert coverage(online, y)[0] == pytest.approx(0.8, abs=2 * 1.02 / (0.02 * 3000))


def test_at_most_eight_forecasts_of_a_series_wait():
    for h in (1, 5, 8, 9, 24, 96, 100):
        table = Conformal(LEVELS, np.zeros((h, 3, N_GRID), np.float32), 50)
        assert Adaptive.fresh(table, n=1, rate=0.1).origins.shape[1] <= 8
        assert spacing(h) * 8 >= h


# ------------------------------------------------------------------------------------------------------- the estimator


@pytest.fixture(scope="module")
def calibrated(tiny, make_rows):
    model = TXLForecaster(**tiny).fit(make_rows(n_series=4, n_rows=150), val_size=60)
    return model.calibrate()


@pytest.fixture(scope="module")
def news(make_rows):
    rows, old = make_rows(n_series=4, n_rows=190), make_rows(n_series=4, n_rows=150)
    fresh = rows[rows.ds > rows.unique_id.map(old.groupby("unique_id").ds.max())]
    return fresh.assign(y=fresh.y * 1.5)


def test_held_out_rows_calibrate_the_bands_and_leave_the_median(calibrated, tiny, make_rows):
    plain = TXLForecaster(**tiny).fit(make_rows(n_series=4, n_rows=150), val_size=60)
    before, after = plain.predict(), calibrated.predict()
    assert (before.TXL == after.TXL).all()
    assert (before["TXL_ql0.1"] != after["TXL_ql0.1"]).all()
    y = np.stack([batch.forecast for batch in _batches(plain, make_rows)])
    assert len(y) == 4 * (60 - 3 + 1)  # what the scores were measured on
    assert calibrated.calibration_.table.n_scores <= len(y)


def _batches(model, make_rows):
    from txl_ts.estimators.backtest import backtest, cutoff_range

    panel = model._fit_panel
    cutoffs = cutoff_range(panel, h=3, n_windows=58, step_size=1)
    for batch in backtest(model._model, panel, cutoffs, h=3, pace=model._pace(model.config_)):
        for i in range(len(batch.ordinals)):
            yield type(batch)(*(getattr(batch, name)[i] for name in vars(batch)))


def test_rows_after_the_fit_calibrate_and_rows_of_the_fit_are_refused(tiny, make_rows):
    model = TXLForecaster(**{**tiny, "max_epochs": 0}).fit(make_rows(n_rows=120))
    with pytest.raises(ParameterError, match=r"no rows were held out: fit with val_size=k, or give"):
        model.calibrate()
    with pytest.raises(ParameterError, match=r"has room for 0\. Hold out more rows"):
        model.calibrate(make_rows(n_rows=120))
    with pytest.raises(ParameterError, match="needs 99 cutoffs per series"):
        model.calibrate(make_rows(n_rows=160), n_windows=99)
    assert model.calibration_ is None
    model.calibrate(make_rows(n_rows=160))
    # 40 rows more, the first forecast from the last fitted row: 38 with three rows behind; some are missing.
    assert 3 * 38 * 0.7 < model.calibration_.table.n_scores <= 3 * 38


def test_adaptive_levels_move_with_update_in_any_split_as_the_bench_moves_them(tiny, make_rows, news):
    model = TXLForecaster(**tiny).fit(make_rows(n_series=4, n_rows=150), val_size=60).calibrate(adaptive=True, rate=0.1)
    start = model.calibration_
    other = TXLForecaster(**tiny).fit(make_rows(n_series=4, n_rows=150), val_size=60).calibrate(adaptive=True, rate=0.1)
    model.update(news)
    for _, part in news.groupby(news.groupby("unique_id").cumcount() // 7):
        other.update(part)
    a, b = model.calibration_.adaptive, other.calibration_.adaptive
    np.testing.assert_allclose(a.levels, b.levels, atol=1e-6)
    np.testing.assert_array_equal(a.origins, b.origins)
    np.testing.assert_allclose(a.bands, b.bands, rtol=1e-3, atol=1e-3)
    assert (a.levels != start.adaptive.levels).any(axis=(1, 2)).all()
    assert (start.adaptive.levels == start.table.levels()).all()  # update made a new one
    pd.testing.assert_frame_equal(model.predict(), other.predict(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("at", [3, 5, 7])
def test_adaptive_levels_are_the_same_wherever_a_gap_is_cut_into_calls(tiny, make_rows, news, at):
    """Missing rows between two calls are forecast from and judged, as missing rows within one are."""
    place = news.groupby("unique_id").cumcount()
    gap, early = place.isin([5, 6]), place < at
    model = TXLForecaster(**{**tiny, "max_epochs": 0}).fit(make_rows(n_series=4, n_rows=150), val_size=60)
    whole = model.calibrate(adaptive=True, rate=0.1)
    cut = copy.deepcopy(whole)
    whole.update(news[~gap])
    cut.update(news[~gap & early])
    cut.update(news[~gap & ~early])
    a, b = whole.calibration_.adaptive, cut.calibration_.adaptive
    np.testing.assert_allclose(a.levels, b.levels, atol=1e-6)
    np.testing.assert_array_equal(a.origins, b.origins)


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_calibration_survives_a_file(tiny, make_rows, news, tmp_path, adaptive):
    model = TXLForecaster(**{**tiny, "max_epochs": 0}).fit(make_rows(n_series=4, n_rows=150), val_size=60)
    model.calibrate(adaptive=adaptive).update(news)
    model.save(tmp_path / "a.txl")
    again = TXLForecaster.load(tmp_path / "a.txl")
    pd.testing.assert_frame_equal(again.predict(), model.predict())
    more = news.assign(ds=news.ds + pd.Timedelta(days=3))
    again.update(more)
    model.update(more)
    pd.testing.assert_frame_equal(again.predict(), model.predict())


def test_a_refused_update_leaves_the_levels_and_forget_drops_them(tiny, make_rows, news):
    model = TXLForecaster(**{**tiny, "max_epochs": 0}).fit(make_rows(n_series=4, n_rows=150), val_size=60)
    model.calibrate(adaptive=True).update(news)
    before = model.calibration_
    with pytest.raises(ValueError, match="rows"):
        model.update(news)
    assert model.calibration_ is before
    model.forget(["T2"])
    assert model.calibration_.ids == ("T1", "T3", "T4")


def test_the_graph_refuses_a_calibrated_model_by_name(calibrated, tmp_path):
    with pytest.raises(ExportError, match="calibrated bands are not part of the graph"):
        calibrated.export_onnx(tmp_path / "a.onnx")


def test_calibrated_bands_of_a_non_negative_model_stay_at_zero(tiny, make_rows):
    rows = make_rows()
    rows["y"] = rows.y.clip(lower=0)
    model = TXLForecaster(**{**tiny, "max_epochs": 0}, non_negative=True).fit(rows, val_size=40).calibrate()
    assert (model.predict()["TXL_ql0.1"] >= 0).all()
