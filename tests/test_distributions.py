"""Forecasters whose steps have a law: any level, a mean, paths, files, graphs; quantiles to the rest of the house."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from txl_ts import TXLForecaster
from txl_ts.errors import ColumnError, ExportError, ParameterError
from txl_ts.laws import LAWS


@pytest.fixture(scope="module")
def counts(make_rows):
    """The house's rows as counts, some of them 0."""
    df = make_rows()
    rng = np.random.default_rng(0)
    there = df["y"].notna()
    df.loc[there, "y"] = rng.poisson(np.maximum(df["y"][there], 0.2)).astype(float)
    return df


@pytest.fixture(scope="module")
def models(tiny, make_rows, counts):
    def fit(law):
        df = counts if law == "negative_binomial" else make_rows()
        return TXLForecaster(distribution=law, **tiny).fit(df, val_size=12)

    return {law: fit(law) for law in LAWS}


@pytest.fixture(params=LAWS)
def model(request, models):
    return models[request.param]


def rows_of(model, make_rows, counts):
    return counts if model.distribution == "negative_binomial" else make_rows()


def test_any_level_is_answered_and_no_two_cross(model):
    found = model.predict(level=[10, 80, 99.8])
    names = ["TXL-lo-99.8", "TXL-lo-80", "TXL-lo-10", "TXL", "TXL-hi-10", "TXL-hi-80", "TXL-hi-99.8"]
    assert (np.diff(found[names].to_numpy(), axis=1) >= 0).all()
    assert (found["TXL-hi-99.8"] > found["TXL-lo-99.8"]).all()


def test_levels_are_those_of_one_law(models):
    for name, freedom in (("normal", None), ("student_t", models["student_t"]._model.head.freedom)):
        found = models[name].predict(quantiles=[0.001, 0.1, 0.8, 0.97])
        law = stats.norm if freedom is None else stats.t(freedom)
        spread = (found["TXL_ql0.8"] - found["TXL"]) / law.ppf(0.8)
        for q in (0.001, 0.1, 0.97):
            # float32 sums of numbers below 10
            np.testing.assert_allclose(found[f"TXL_ql{q:g}"], found["TXL"] + spread * law.ppf(q), rtol=0, atol=1e-4)


def test_forecasts_of_counts_are_counts(models):
    found = models["negative_binomial"].predict(level=[50, 98])
    values = found.drop(columns=["unique_id", "ds"]).to_numpy()
    np.testing.assert_array_equal(values, np.floor(values))
    assert (values >= 0).all()


def test_the_mean_is_shown_on_request(models, tiny, fitted):
    for name in ("normal", "student_t"):
        found = models[name].predict(mean=True)
        assert list(found.columns) == ["unique_id", "ds", "TXL", "TXL-mean", "TXL_ql0.1", "TXL_ql0.8"]
        np.testing.assert_array_equal(found["TXL-mean"], found["TXL"])  # symmetric laws
    found = models["negative_binomial"].predict(mean=True, quantiles=[])
    assert (found["TXL-mean"] != found["TXL"]).any()
    with pytest.raises(ParameterError, match="trained quantiles do not say what the mean is"):
        fitted.predict(mean=True)


def test_a_mean_behind_a_map_is_refused_by_name(tiny, make_rows):
    model = TXLForecaster(distribution="normal", transform="log1p", **{**tiny, "max_epochs": 0}).fit(make_rows())
    with pytest.raises(ParameterError, match="transform='log1p'"):
        model.predict(mean=True)
    found = model.predict(level=[99])
    # The map of a quantile is the quantile of the map: symmetric before it, lopsided after it.
    low, high = (np.log1p(found[f"TXL-{side}-99"].abs()) * np.sign(found[f"TXL-{side}-99"]) for side in ("lo", "hi"))
    middle = np.log1p(found["TXL"].abs()) * np.sign(found["TXL"])
    np.testing.assert_allclose((low + high) / 2, middle, atol=1e-4)


def test_update_moves_on_and_one_pass_equals_row_by_row(model, make_rows, counts, tmp_path):
    model.save(tmp_path / "m.txl")
    df = rows_of(model, make_rows, counts)
    new = df.groupby("unique_id").tail(4).copy()
    new["ds"] += pd.Timedelta(hours=4)
    whole, by_row = (TXLForecaster.load(tmp_path / "m.txl") for _ in range(2))
    at_once = whole.update(new)
    step_by_step = [by_row.update(part) for _, part in new.groupby(new.groupby("unique_id").cumcount())]
    step_by_step = pd.concat(step_by_step).sort_values(["unique_id", "ds"], ignore_index=True)
    # Another grouping of the same float32 sums; a count may fall to its neighbour where the law's step is.
    off = 1.0 if model.distribution == "negative_binomial" else 1e-4
    for a, b in ((at_once, step_by_step), (whole.predict(), by_row.predict())):
        for name in a.columns[2:]:
            np.testing.assert_allclose(a[name], b[name], rtol=0, atol=off)
    with pytest.raises(AssertionError):
        pd.testing.assert_frame_equal(model.predict(), whole.predict())


def test_a_file_gives_the_same_forecasts_bit_for_bit(model, tmp_path):
    model.save(tmp_path / "m.txl")
    again = TXLForecaster.load(tmp_path / "m.txl")
    pd.testing.assert_frame_equal(again.predict(level=[99]), model.predict(level=[99]))
    pd.testing.assert_frame_equal(again.sample_paths(n_paths=3), model.sample_paths(n_paths=3))


def test_backtests_and_fitted_values_read_the_same_laws(model, make_rows, counts):
    df = rows_of(model, make_rows, counts)
    found = model.cross_validation(df, n_windows=3, level=[98], mean=True, val_size=12)
    assert (found["TXL-hi-98"] >= found["TXL"]).all()
    batches = list(model.cross_validation(df, n_windows=3, val_size=12, output="batches"))
    assert all(batch.forecast.shape[1:] == (3, 3) for batch in batches)  # quantiles, not parameters
    one_step = model.fitted_values(quantiles=[0.01])
    assert (one_step["TXL_ql0.01"].dropna() <= one_step["TXL"].dropna()).all()
    assert one_step["TXL"].notna().sum() > 100


def test_horizons_beyond_the_trained_one_and_paths(model):
    far, drawn = model.predict(h=7, level=[90]), model.predict(h=7, level=[90], n_paths=40)
    assert len(far) == len(drawn) == 21
    assert np.isfinite(far["TXL"]).all()
    assert np.isfinite(drawn["TXL-hi-90"]).all()


def test_paths_are_drawn_from_the_law_of_their_step(models):
    for model in models.values():
        paths = model.sample_paths(h=1, n_paths=2000, ids=["T2"])["TXL"].to_numpy()
        low, high = model.predict(h=1, level=[80], ids=["T2"])[["TXL-lo-80", "TXL-hi-80"]].to_numpy()[0]
        inside = ((paths >= low) & (paths <= high)).mean()
        exact = 0.8
        if model.distribution == "negative_binomial":
            mean, dispersion = model._fleet.take(["T2"]).forecast[0, 0]
            law = stats.nbinom(1 / dispersion, 1 / (1 + mean * dispersion))
            exact = law.cdf(high) - law.cdf(low - 1)
        assert abs(inside - exact) < 4 * np.sqrt(0.25 / 2000)


def test_calibration_moves_the_quantiles_of_a_law(models, tmp_path):
    models["student_t"].save(tmp_path / "m.txl")
    model = TXLForecaster.load(tmp_path / "m.txl")
    model._fit_panel, model._val_size = models["student_t"]._fit_panel, 12
    before = model.predict()
    model.calibrate(adaptive=True)
    after = model.predict(mean=True)
    np.testing.assert_array_equal(before["TXL"], after["TXL"])
    assert (before["TXL_ql0.1"] != after["TXL_ql0.1"]).any()
    with pytest.raises(ParameterError, match="outside those that were calibrated"):
        model.predict(level=[90])


def test_weights_and_known_columns_work_with_a_law(tiny, make_rows):
    df = make_rows()
    df["w"], df["warm"] = 1.0, np.sin(np.arange(len(df)))
    model = TXLForecaster(distribution="normal", **{**tiny, "max_epochs": 1})
    model.fit(df, futr_cols=["warm"], sample_weight="w")
    ahead = model.make_future_frame().assign(warm=0.5)
    assert model.predict(futr_df=ahead, level=[99]).notna().all(axis=None)


# ------------------------------------------------------------------------------------------------------------- refusals


def test_what_is_no_count_is_refused_with_its_place(tiny, make_rows):
    with pytest.raises(ColumnError, match=r"is a law of counts, and target column 'y' holds \d+ values that are none"):
        TXLForecaster(distribution="negative_binomial", **tiny).fit(make_rows())


@pytest.mark.parametrize("call", ["update", "partial_fit", "predict"])
def test_later_rows_that_are_no_counts_are_refused_and_change_nothing(models, counts, call):
    model = models["negative_binomial"]
    before = model.predict()
    later = counts.groupby("unique_id").tail(3)
    later = later.assign(ds=later.ds + pd.Timedelta(hours=3), y=-3.5)
    with pytest.raises(ColumnError, match="is a law of counts"):
        model.predict(df=later) if call == "predict" else getattr(model, call)(later)
    pd.testing.assert_frame_equal(model.predict(), before)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"distribution": "gaussian"}, "distribution='gaussian' is not known"),
        ({"distribution": "normal", "loss": "squared"}, "is trained by its likelihood"),
        ({"distribution": "negative_binomial", "transform": "log1p"}, "is a law of counts"),
    ],
)
def test_parameters_that_cannot_work_are_refused(tiny, make_rows, wrong, told):
    with pytest.raises(ParameterError, match=told):
        TXLForecaster(**{**tiny, **wrong}).fit(make_rows())


def test_levels_must_be_levels(models):
    with pytest.raises(ParameterError, match="must lie in"):
        models["normal"].predict(quantiles=[0.0])


def test_counts_are_not_exported(models, tmp_path):
    with pytest.raises(ExportError, match="graphs do not search"):
        models["negative_binomial"].export_onnx(tmp_path / "m.onnx")


def test_files_of_models_without_a_law_do_not_name_one(fitted):
    assert "distribution" not in fitted.config_.to_json()
