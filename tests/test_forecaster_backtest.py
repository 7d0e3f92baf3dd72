"""Backtests: one walk gives what predict would have said at every cutoff, and nothing has seen its answer."""

import copy

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import mean_absolute_error, mean_pinball_loss, mean_squared_error

from txl_ts import TXLForecaster
from txl_ts.errors import CleanedDataWarning, ColumnError, ParameterError, StampError

VALUES = ["TXL", "TXL_ql0.1", "TXL_ql0.8"]
KEYS = ["unique_id", "ds", "cutoff"]
HOUR = pd.Timedelta(hours=1)


def distance(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert a.shape == b.shape
    assert (np.isnan(a) == np.isnan(b)).all()
    return np.nanmax(np.abs(a - b), initial=0) / max(np.nanmax(np.abs(b), initial=0), 1e-30)


def until(df, cutoffs):
    """Rows of each series up to its own cutoff."""
    return df[df.ds <= df.unique_id.map(cutoffs)]


def cutoffs_of(walked, k):
    """The k-th cutoff of each series."""
    return walked.groupby("unique_id").cutoff.apply(lambda c: sorted(c.unique())[k])


def at(walked, cutoffs):
    return walked[walked.cutoff == walked.unique_id.map(cutoffs)].reset_index(drop=True)


def assert_is_the_slow_way(model, df, walked, *, windows):
    """Oracle: cut the frame at a cutoff, predict, look up what came."""
    for k in windows:
        cutoffs = cutoffs_of(walked, k)
        slow, fast = model.predict(df=until(df, cutoffs)), at(walked, cutoffs)
        pd.testing.assert_frame_equal(slow[["unique_id", "ds"]], fast[["unique_id", "ds"]])
        assert distance(fast[VALUES], slow[VALUES]) < 1e-5, f"window {k}"
        came = fast.merge(df, on=["unique_id", "ds"], how="left", suffixes=("", "_came"))
        np.testing.assert_array_equal(came.y, came.y_came.astype(np.float32))


@pytest.fixture(scope="module")
def rows(make_rows):
    return make_rows()


@pytest.fixture(scope="module")
def later(rows, make_rows):
    """The rows of fit and 40 hours more."""
    more = make_rows(3, 140, seed=9)
    return pd.concat([rows, more[more.ds > more.unique_id.map(rows.groupby("unique_id").ds.max())]], ignore_index=True)


@pytest.fixture(scope="module")
def linear(tiny):
    return {**tiny, "max_epochs": 0}


@pytest.fixture(scope="module")
def walked(fitted, later):
    return fitted.cross_validation(later, n_windows=12, step_size=3, use_fitted=True)


# ---------------------------------------------------------------------------------------------------- what stands there


def test_the_frame_has_h_rows_for_each_cutoff_sorted_and_complete(walked, later):
    assert list(walked.columns) == [*KEYS, *VALUES, "y"]
    assert len(walked) == 3 * 12 * 3
    assert (walked.ds > walked.cutoff).all()
    assert (walked.ds <= walked.cutoff + 3 * HOUR).all()
    assert not walked.duplicated(KEYS).any()
    pd.testing.assert_frame_equal(walked, walked.sort_values(KEYS).reset_index(drop=True))
    last = later.groupby("unique_id").ds.max()
    assert (cutoffs_of(walked, -1) == last - 3 * HOUR).all()
    assert (cutoffs_of(walked, 0) == last - 3 * HOUR - 11 * 3 * HOUR).all()


def test_every_cutoff_says_what_predict_would_have_said(fitted, later, walked):
    assert_is_the_slow_way(fitted, later, walked, windows=[0, 1, 5, 11])


def test_a_shorter_horizon_is_the_beginning_of_the_longer_one(fitted, later):
    short = fitted.cross_validation(later, n_windows=4, h=2, use_fitted=True)
    assert (short.groupby(["unique_id", "cutoff"]).size() == 2).all()
    second = cutoffs_of(short, 1)
    assert distance(at(short, second)[VALUES], fitted.predict(h=2, df=until(later, second))[VALUES]) < 1e-5


def test_columns_follow_level_and_quantiles(fitted, later):
    out = fitted.cross_validation(later, n_windows=2, use_fitted=True, level=[40])
    assert list(out.columns) == [*KEYS, "TXL", "TXL-lo-40", "TXL-hi-40", "y"]
    out = fitted.cross_validation(later, n_windows=2, use_fitted=True, quantiles=[0.3])
    assert list(out.columns) == [*KEYS, "TXL", "TXL_ql0.3", "y"]
    with pytest.raises(ParameterError, match="lies outside the trained ones"):
        TXLForecaster(h=3, quantiles=(0.1, 0.5, 0.8)).cross_validation(later, n_windows=2, level=[90])


def test_without_use_fitted_one_fit_before_the_first_cutoff_is_walked(linear, rows):
    model = TXLForecaster(**linear)
    out = model.cross_validation(rows, n_windows=6, step_size=2, val_size=5)
    by_hand = TXLForecaster(**linear).fit(until(rows, cutoffs_of(out, 0)), val_size=5)
    assert_is_the_slow_way(by_hand, rows, out, windows=[0, 3, 5])


def test_an_epoch_of_training_is_the_fit_by_hand_too(tiny, rows):
    settings = {**tiny, "max_epochs": 1}
    out = TXLForecaster(**settings).cross_validation(rows, n_windows=3)
    by_hand = TXLForecaster(**settings).fit(until(rows, cutoffs_of(out, 0)))
    assert_is_the_slow_way(by_hand, rows, out, windows=[0, 2])


@pytest.mark.parametrize(("refit", "fits_at"), [(2, [0, 2, 4]), (True, [0, 1, 2, 3, 4]), (3, [0, 3])])
def test_refit_fits_again_every_k_cutoffs_as_by_hand(linear, rows, refit, fits_at):
    out = TXLForecaster(**linear).cross_validation(rows, n_windows=5, refit=refit)
    for k in range(5):
        begin = max(i for i in fits_at if i <= k)
        by_hand = TXLForecaster(**linear).fit(until(rows, cutoffs_of(out, begin)))
        assert_is_the_slow_way(by_hand, rows, out, windows=[k])


def test_missing_targets_stay_missing(fitted, later):
    holes = later.assign(y=later.y.where(later.ds.dt.hour % 5 != 0))
    out = fitted.cross_validation(holes, n_windows=8, use_fitted=True)
    assert out.y.isna().any()
    assert out.TXL.notna().all()
    assert_is_the_slow_way(fitted, holes, out, windows=[0, 6])


def test_a_gap_longer_than_the_reach_begins_the_series_anew_in_backtests_too(fitted, tiny, make_rows):
    """With ``max_gap=None`` fit and predict cut at the reach, and the backtest has to walk what they walk."""
    df = make_rows(3, 200, seed=2)
    n = df.groupby("unique_id").cumcount()
    assert fitted.config_.reach < 40
    holes = df[(n < 60) | (n >= 100)]
    settings = {**tiny, "max_epochs": 0}
    out = TXLForecaster(**settings).cross_validation(holes, n_windows=10)
    by_hand = TXLForecaster(**settings).fit(until(holes, cutoffs_of(out, 0)))
    assert_is_the_slow_way(by_hand, holes, out, windows=[0, 9])


def test_cutoffs_inside_a_long_gap_have_no_forecast_and_the_others_stay(fitted, later):
    n = later.groupby("unique_id").cumcount(ascending=False)
    holes = later[(n < 5) | (n >= 5 + 35)]  # 35 missing rows, the reach is 33
    last = holes.groupby("unique_id").ds.max()
    out = fitted.cross_validation(holes, n_windows=4, h=1, use_fitted=True)
    newest = cutoffs_of(out, -1)
    assert (newest == last - HOUR).all()
    assert distance(at(out, newest)[VALUES], fitted.predict(h=1, df=until(holes, newest))[VALUES]) < 1e-5


def test_deterministic_backtests_do_not_depend_on_other_series_to_the_bit(forecaster, later):
    forecaster.set_params(deterministic=True)
    together = forecaster.cross_validation(later, n_windows=5, use_fitted=True)
    alone = forecaster.cross_validation(later[later.unique_id == "T2"], n_windows=5, use_fitted=True)
    expected = together[together.unique_id == "T2"].reset_index(drop=True)
    pd.testing.assert_frame_equal(alone, expected, check_exact=True)


# --------------------------------------------------------------------------------------------------------------- leaks


def test_values_after_a_cutoff_change_no_forecast_made_before_it(fitted, later, walked):
    """Exactly: equal frames give equal calls."""
    middle = cutoffs_of(walked, 6)
    poisoned = later.assign(y=later.y.where(later.ds <= later.unique_id.map(middle), 1e9 - later.y))
    out = fitted.cross_validation(poisoned, n_windows=12, step_size=3, use_fitted=True)
    early = walked.cutoff <= walked.unique_id.map(middle)
    pd.testing.assert_frame_equal(out[early][[*KEYS, *VALUES]], walked[early][[*KEYS, *VALUES]], check_exact=True)
    assert distance(out[~early][VALUES], walked[~early][VALUES]) > 1e-2


@pytest.mark.parametrize("scaler", ["running", "standard"])
def test_values_after_the_first_cutoff_change_nothing_about_the_fit(tiny, rows, scaler):
    """The scale, the closed form, the epoch and the weights: the first cutoff's forecasts tell of them all."""
    model = TXLForecaster(**{**tiny, "max_epochs": 1, "scaler": scaler})
    out = model.cross_validation(rows, n_windows=4)
    first = cutoffs_of(out, 0)
    poisoned = rows.assign(y=rows.y.where(rows.ds <= rows.unique_id.map(first), 1e9 - rows.y))
    other = model.cross_validation(poisoned, n_windows=4)
    pd.testing.assert_frame_equal(
        at(other, first)[[*KEYS, *VALUES]], at(out, first)[[*KEYS, *VALUES]], check_exact=True
    )


def test_a_later_refit_may_see_the_rows_between_and_no_more(linear, rows):
    model = TXLForecaster(**linear)
    out = model.cross_validation(rows, n_windows=4, refit=2)
    second = cutoffs_of(out, 2)
    poisoned = rows.assign(y=rows.y.where(rows.ds <= rows.unique_id.map(second), 1e9 - rows.y))
    other = model.cross_validation(poisoned, n_windows=4, refit=2)
    early = out.cutoff <= out.unique_id.map(second)
    pd.testing.assert_frame_equal(other[early][[*KEYS, *VALUES]], out[early][[*KEYS, *VALUES]], check_exact=True)


def test_use_fitted_refuses_cutoffs_before_the_fitted_end(fitted, later, rows):
    with pytest.raises(ParameterError, match=r"for 3 series, such as \['T1', 'T2', 'T3'\], the first cutoff"):
        fitted.cross_validation(rows, n_windows=1, use_fitted=True)
    one = pd.concat([later[later.unique_id != "T2"], rows[rows.unique_id == "T2"]])
    with pytest.raises(ParameterError, match=r"for 1 series, such as \['T2'\].*would have seen its answers"):
        fitted.cross_validation(one, n_windows=2, use_fitted=True)


def test_use_fitted_is_exact_at_the_fitted_end(fitted, later, rows):
    end = rows.groupby("unique_id").ds.max()
    n = int(((later.groupby("unique_id").ds.max() - end) / HOUR).iloc[0]) - 2
    out = fitted.cross_validation(later, n_windows=n, use_fitted=True)
    assert (cutoffs_of(out, 0) == end).all()
    with pytest.raises(ParameterError, match="lies before"):
        fitted.cross_validation(later, n_windows=n + 1, use_fitted=True)


def test_update_and_load_do_not_move_the_fitted_end(forecaster, later, rows, tmp_path):
    news = later[later.ds > later.unique_id.map(rows.groupby("unique_id").ds.max())]
    before = forecaster.cross_validation(later, n_windows=5, use_fitted=True)
    forecaster.update(news)
    forecaster.save(tmp_path / "a.txl")
    loaded = TXLForecaster.load(tmp_path / "a.txl")
    for model in (forecaster, loaded):
        pd.testing.assert_frame_equal(model.cross_validation(later, n_windows=5, use_fitted=True), before)
        with pytest.raises(ParameterError, match="lies before"):
            model.cross_validation(rows, n_windows=1, use_fitted=True)


def pretrained(model, rows, path):
    model.save(path)
    return TXLForecaster.from_pretrained(path)


def tuned_on_others(model, rows, path):
    return model.fine_tune(rows.assign(unique_id="new" + rows.unique_id), max_epochs=0, val_size=12)


def tuned_on_earlier_rows(model, rows, path):
    return model.fine_tune(rows[rows.groupby("unique_id").cumcount() < 60], max_epochs=0, val_size=12)


def forgotten(model, rows, path):
    model.forget(["T1", "T2", "T3"])
    model.save(path)
    return TXLForecaster.load(path)


@pytest.mark.parametrize("moved", [pretrained, tuned_on_others, tuned_on_earlier_rows, forgotten])
def test_weights_know_the_rows_that_they_have_seen_whichever_series_are_kept(forecaster, rows, tmp_path, moved):
    model = moved(forecaster, rows, tmp_path / "a.txl")
    with pytest.raises(ParameterError, match=r"for 3 series, such as \['T1', 'T2', 'T3'\].*seen its answers"):
        model.cross_validation(rows, n_windows=1, use_fitted=True)
    for judges in (model.calibrate, model.sweep_memory):
        with pytest.raises(ParameterError, match=r"has room for 0\. Hold out more rows"):
            judges(rows)
    with pytest.raises(ParameterError, match="that was not trained on"):
        model.effective_context(rows)


def test_rows_whose_names_or_zone_are_of_another_kind_judge_nothing(linear, rows):
    """Their ends would not be found, and a backtest would see its answers."""
    rows = rows.assign(unique_id=rows.unique_id.str[1:], ds=rows.ds.dt.tz_localize("Europe/Berlin", ambiguous=True))
    model = TXLForecaster(**linear).fit(rows)
    whole = rows.assign(unique_id=rows.unique_id.astype(int))
    naive = rows.assign(ds=rows.ds.dt.tz_localize(None))
    for wrong, error, text in (
        (whole, ColumnError, "was fitted with str names and now holds int, such as 1"),
        (naive, StampError, "was fitted with zone Europe/Berlin and now comes without a zone"),
    ):
        with pytest.raises(error, match=text):
            model.cross_validation(wrong, n_windows=1, use_fitted=True)
        for judges in (model.calibrate, model.sweep_memory, model.effective_context):
            with pytest.raises(error, match=text):
                judges(wrong)


def test_series_that_were_never_fitted_may_be_walked_from_their_beginning(fitted, rows):
    renamed = rows.assign(unique_id="new" + rows.unique_id)
    out = fitted.cross_validation(renamed, n_windows=60, use_fitted=True)
    assert_is_the_slow_way(fitted, renamed, out, windows=[0, 59])


@pytest.fixture
def gapped(linear, later):
    """Fitted on the first 70 rows of each series, and the whole with rows 75 to 84 missing, a gap that is cut."""
    place = later.groupby("unique_id").cumcount()
    model = TXLForecaster(**linear, max_gap=5).fit(later[place < 70])
    whole = later[~place.between(75, 84) & (place < 98)]
    return model, whole


def test_cutoffs_in_a_gap_that_was_cut_are_left_out_and_named(gapped):
    model, whole = gapped
    with pytest.warns(CleanedDataWarning, match=r"3 of 9 cutoffs, of 3 series \('T1' 1, 'T2' 1, 'T3' 1\), lie in gaps"):
        out = model.cross_validation(whole, n_windows=3, step_size=12, use_fitted=True)  # at rows 70, 82 and 94
    assert (out.groupby("unique_id").cutoff.nunique() == 2).all()


def test_a_backtest_whose_cutoffs_all_lie_in_gaps_is_refused(gapped):
    model, whole = gapped
    short = whole[whole.groupby("unique_id").cumcount() < 78]  # three rows behind the gap
    with pytest.raises(ParameterError, match=r"3 of 3 cutoffs.*no row to forecast from\. Give more windows"):
        model.cross_validation(short, n_windows=1, use_fitted=True)


# -------------------------------------------------------------------------------------------------------------- outputs


def test_metrics_are_those_of_the_frame(fitted, later):
    holes = later.assign(y=later.y.where(later.ds.dt.hour % 5 != 0))
    arguments = {"n_windows": 7, "step_size": 2, "use_fitted": True}
    frame = fitted.cross_validation(holes, **arguments)
    metrics = fitted.cross_validation(holes, **arguments, output="metrics")
    assert list(metrics.columns) == ["unique_id", "mse", "mae", "pinball"]
    assert list(metrics.unique_id) == ["T1", "T2", "T3"]
    for _, told in metrics.iterrows():
        part = frame[(frame.unique_id == told.unique_id) & frame.y.notna()]
        part = part.astype(dict.fromkeys([*VALUES, "y"], float))
        losses = [
            mean_pinball_loss(part.y, part[column], alpha=q)
            for column, q in (("TXL_ql0.1", 0.1), ("TXL", 0.5), ("TXL_ql0.8", 0.8))
        ]
        assert told.mse == pytest.approx(mean_squared_error(part.y, part.TXL), rel=1e-9)
        assert told.mae == pytest.approx(mean_absolute_error(part.y, part.TXL), rel=1e-9)
        assert told.pinball == pytest.approx(np.mean(losses), rel=1e-9)


def test_batches_hold_the_rows_of_the_frame(fitted, later):
    arguments = {"n_windows": 7, "step_size": 2, "use_fitted": True}
    frame = fitted.cross_validation(later, **arguments)
    batches = fitted.cross_validation(later, **arguments, output="batches")
    assert iter(batches) is batches  # nothing is held
    told = []
    for batch in batches:
        k, h, n_quantiles = batch.forecast.shape
        assert (h, n_quantiles) == (3, 3)
        assert batch.y.shape == (k, h)
        for i in range(k):
            cutoff = pd.Timestamp(batch.cutoffs[i])
            told += [
                (batch.ids[i], cutoff + (j + 1) * HOUR, cutoff, *batch.forecast[i, j, [1, 0, 2]], batch.y[i, j])
                for j in range(h)
            ]
    told = pd.DataFrame(told, columns=frame.columns).sort_values(KEYS).reset_index(drop=True)
    pd.testing.assert_frame_equal(told, frame, check_dtype=False, check_exact=True)


def test_the_estimator_is_left_as_it_was(forecaster, rows, later):
    before, params = forecaster.predict(), copy.deepcopy(forecaster.get_params())
    state = {name: array.copy() for name, array in forecaster._fleet.state.items()}
    forecaster.cross_validation(later, n_windows=2, use_fitted=True)
    forecaster.set_params(max_epochs=0).cross_validation(rows, n_windows=2)
    forecaster.set_params(max_epochs=params["max_epochs"])
    assert forecaster.get_params() == params
    pd.testing.assert_frame_equal(forecaster.predict(), before, check_exact=True)
    assert all((forecaster._fleet.state[name] == array).all() for name, array in state.items())
    unfitted = TXLForecaster(**{**params, "max_epochs": 0})
    unfitted.cross_validation(rows, n_windows=2)
    assert [name for name in vars(unfitted) if name.endswith("_")] == []


def test_use_fitted_reads_the_quantiles_that_were_trained_not_those_set_since(forecaster, later):
    before = forecaster.cross_validation(later, n_windows=2, use_fitted=True)
    metrics = forecaster.cross_validation(later, n_windows=2, use_fitted=True, output="metrics")
    forecaster.set_params(quantiles=(0.5, 0.6, 0.7))
    out = forecaster.cross_validation(later, n_windows=2, use_fitted=True)
    pd.testing.assert_frame_equal(out, before)
    again = forecaster.cross_validation(later, n_windows=2, use_fitted=True, output="metrics")
    pd.testing.assert_frame_equal(again, metrics)


# --------------------------------------------------------------------------------------------------------------- errors


def test_series_that_are_too_short_are_named_with_their_rows(linear, rows):
    short = rows[(rows.unique_id != "T2") | (rows.groupby("unique_id").cumcount() < 15)]
    with pytest.raises(ParameterError, match=r"n_windows=5 with step_size=4 and h=3 needs 20.*1 have fewer.*'T2'"):
        TXLForecaster(**linear).cross_validation(short, n_windows=5, step_size=4)


ERRORS = {
    "no windows": ({"n_windows": 0}, "n_windows=0.*must be an integer of at least 1"),
    "no step": ({"n_windows": 2, "step_size": 0}, "step_size=0"),
    "fraction": ({"n_windows": 2.0}, r"n_windows=2.0 \(float\)"),
    "unknown output": ({"n_windows": 2, "output": "metric"}, "Did you mean 'metrics'"),
    "longer h": ({"n_windows": 2, "h": 4}, "h=4 is more than the estimator's h=3"),
    "no h": ({"n_windows": 2, "h": 0}, "h=0"),
    "negative refit": ({"n_windows": 2, "refit": -1}, "refit"),
    "fractional refit": ({"n_windows": 2, "refit": 1.5}, "refit"),
    "no validation rows": ({"n_windows": 2, "val_size": 0}, "val_size=0"),
    "negative validation rows": ({"n_windows": 2, "val_size": -5}, "val_size=-5"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_wrong_arguments_are_refused_before_anything_is_trained(linear, rows, case):
    arguments, text = ERRORS[case]
    with pytest.raises(ParameterError, match=text):
        TXLForecaster(**linear).cross_validation(rows, **arguments)


def test_use_fitted_and_refit_exclude_each_other(fitted, later):
    with pytest.raises(ParameterError, match="use_fitted=True and refit exclude each other"):
        fitted.cross_validation(later, n_windows=2, use_fitted=True, refit=2)
    with pytest.raises(ParameterError, match="h=4 is more than the trained h=3"):
        fitted.cross_validation(later, n_windows=2, use_fitted=True, h=4)


def test_wrong_parameters_raise_where_batches_are_asked_for_not_where_they_are_read(rows, tiny):
    with pytest.raises(ParameterError, match="loss='pinbal' is not known"):
        TXLForecaster(**{**tiny, "loss": "pinbal"}).cross_validation(rows, n_windows=2, output="batches")
