"""Columns beside the target and several targets, together with everything else a forecaster can do."""

import copy

import numpy as np
import pandas as pd
import pytest

from tests.test_covariates import HOUR, VALUES, ahead_of, beside, distance
from tests.test_wide import TARGETS, melted, wide
from txl_ts import TXLForecaster
from txl_ts.errors import ColumnError, FrameError, ParameterError
from txl_ts.training import Trainer

KNOWN = {"futr_cols": ["temp", "free"], "static_cols": ["size"], "cat_cols": ["free"]}


def whole(df):
    return df.drop(columns="mode").fillna({"temp": 10.0, "free": "no"})


@pytest.fixture(scope="module")
def history(make_rows):
    return whole(beside(make_rows(n_rows=120))).drop(columns="load")


@pytest.fixture(scope="module")
def coming(history):
    return whole(ahead_of(history, 9)).drop(columns="load")


@pytest.fixture(scope="module")
def static():
    return pd.DataFrame({"unique_id": ["T1", "T2", "T3"], "size": [1.0, 5.0, 2.0]})


@pytest.fixture(scope="module")
def covered(tiny, history, static):
    """A forecaster that knows columns ahead, a calendar and the size of each series; never changed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "validation_loss", lambda trainer: 1.0 / (1 + trainer.progress.history.epochs))
        model = TXLForecaster(**tiny, calendar=["hour"], transform="asinh", non_negative=True)
        return model.fit(history, **KNOWN, static_df=static, val_size=30)


@pytest.fixture
def model(covered):
    return copy.deepcopy(covered)


def futr(coming, n):
    return coming.groupby("unique_id").head(n)[["unique_id", "ds", "temp", "free"]]


def medians(forecast, coming):
    """Forecasts as if they had come, with the columns that were known of those rows."""
    return forecast[["unique_id", "ds", "TXL"]].rename(columns={"TXL": "y"}).merge(coming.drop(columns="y"))


# ----------------------------------------------------------------------------------------------------------- transform


def test_what_is_known_ahead_goes_back_through_the_transform_as_a_backtest_does(covered, history):
    """A backtest reads columns ahead off the walk; `predict` reads them off the kept memory: two ways, one number."""
    last = history.groupby("unique_id").tail(3)
    before = history.drop(last.index)
    got = covered.predict(df=before, futr_df=last[["unique_id", "ds", "temp", "free"]])
    walked = copy.deepcopy(covered)
    walked._fitted_end = {}
    wanted = walked.cross_validation(history, n_windows=1, use_fitted=True)
    assert (got.ds.to_numpy() == wanted.ds.to_numpy()).all()
    assert distance(got[VALUES], wanted[VALUES]) < 1e-5
    assert (got[VALUES] >= 0).all(axis=None)
    assert (got[VALUES] == 0).any(axis=None)  # the floor was reached


# --------------------------------------------------------------------------------------------------- beyond the horizon


def test_a_longer_horizon_is_the_medians_taken_in_with_the_columns_of_their_rows(covered, coming):
    first = covered.predict(futr_df=futr(coming, 3))
    fed = medians(first, coming)
    for _ in range(2):
        known = coming.merge(fed[["unique_id", "ds"]], how="left", indicator=True).query("_merge == 'left_only'")
        more = covered.predict(df=fed, start="fitted", futr_df=known[["unique_id", "ds", "temp", "free"]])
        fed = pd.concat([fed, medians(more, coming)])
        first = pd.concat([first, more])
    wanted = first.sort_values(["unique_id", "ds"])
    got = covered.predict(h=9, futr_df=futr(coming, 9))
    assert (got.ds.to_numpy() == wanted.ds.to_numpy()).all()
    assert distance(got[VALUES], wanted[VALUES]) < 1e-5
    part = covered.predict(h=7, futr_df=futr(coming, 7))
    assert distance(part[VALUES], got.groupby("unique_id").head(7)[VALUES]) < 1e-5


def test_the_future_frame_is_as_long_as_the_forecast(covered):
    frame = covered.make_future_frame(h=8)
    assert len(frame) == 3 * 8
    with pytest.raises(FrameError, match=r"futr_df lacks 24 cells.*make_future_frame\(h=8\)"):
        covered.predict(h=8, futr_df=frame.assign(temp=np.nan, free="no"))


@pytest.fixture(scope="module")
def with_hist(tiny, make_rows):
    rows = whole(beside(make_rows(n_rows=120))).drop(columns="free")
    return TXLForecaster(**{**tiny, "max_epochs": 0}).fit(rows, hist_cols=["load"], futr_cols=["temp"])


def test_rows_whose_hist_columns_nobody_knows_are_not_forecast_over(with_hist, coming):
    known = futr(coming, 4)[["unique_id", "ds", "temp"]]
    with pytest.raises(ParameterError, match=r"h=4, beyond the trained h=3, would continue .* hist_cols \['load'\]"):
        with_hist.predict(h=4, futr_df=known)
    with pytest.raises(ParameterError, match=r"n_paths=5 would continue .* hist_cols \['load'\] are not known\. Fit"):
        with_hist.predict(h=3, n_paths=5, futr_df=known)
    with pytest.raises(ParameterError, match=r"sample_paths would continue"):
        with_hist.sample_paths(2, n_paths=5, futr_df=known)
    assert with_hist.sample_paths(1, n_paths=5, futr_df=known).TXL.notna().all()  # nothing is fed


# ---------------------------------------------------------------------------------------------------------------- paths


def test_a_path_hears_of_a_column_at_its_row_and_not_before(covered, coming):
    known = futr(coming, 5)
    second = known.groupby("unique_id").cumcount() == 1
    changed = known.assign(temp=known.temp.where(~second, known.temp + 30))
    paths = [
        covered.sample_paths(5, n_paths=4, futr_df=df, random_state=1).TXL.to_numpy().reshape(3, 4, 5)
        for df in (known, changed)
    ]
    assert np.array_equal(paths[0][..., 0], paths[1][..., 0])
    assert (paths[0][..., 1] != paths[1][..., 1]).any(axis=1).all()
    assert (paths[0] >= 0).all()


def test_the_first_step_of_many_paths_has_the_quantiles_of_the_forecast(covered, coming):
    known = futr(coming, 1)
    said = covered.predict(h=1, futr_df=known, quantiles=[0.1, 0.5, 0.8])
    drawn = covered.predict(h=1, futr_df=known, quantiles=[0.1, 0.5, 0.8], n_paths=4000)
    width = (said["TXL_ql0.8"] - said["TXL_ql0.1"]).to_numpy()[:, None]
    assert np.abs((drawn[VALUES] - said[VALUES]) / width).to_numpy().max() < 0.15  # 4,000 draws


def test_paths_ask_for_the_rows_ahead(covered, coming):
    with pytest.raises(FrameError, match="futr_cols are known ahead"):
        covered.sample_paths(2, n_paths=3)
    assert covered.sample_paths(2, n_paths=3, on_missing="mask").TXL.notna().all()


def test_plot_takes_what_is_known_ahead(covered, history, coming):
    pytest.importorskip("matplotlib", reason="pictures need the extra `plot`")
    figure = covered.plot(history, h=5, futr_df=futr(coming, 5))
    assert len(figure.axes) == 3
    with pytest.raises(FrameError, match="futr_cols are known ahead"):
        covered.plot()


# ---------------------------------------------------------------------------------------------------------- calibration


def test_bands_are_calibrated_with_the_columns_known(model, coming):
    before = model.predict(futr_df=futr(coming, 3))
    model.calibrate()
    after = model.predict(futr_df=futr(coming, 3))
    assert np.array_equal(before.TXL, after.TXL)
    assert not np.array_equal(before["TXL_ql0.1"], after["TXL_ql0.1"])
    assert (after[VALUES] >= 0).all(axis=None)


def test_bands_do_not_adapt_by_forecasts_that_do_not_know_the_rows_ahead(model):
    with pytest.raises(ParameterError, match=r"adaptive=True .* futr_cols \['temp', 'free'\] .*\(adaptive=False\)"):
        model.calibrate(adaptive=True)
    assert model.calibration_ is None


def test_bands_adapt_where_only_the_calendar_is_known_ahead(tiny, history, coming):
    model = TXLForecaster(**{**tiny, "max_epochs": 0}, calendar=["hour"]).fit(
        history[["unique_id", "ds", "y"]], val_size=30
    )
    model.calibrate(adaptive=True, rate=0.2)
    before = model.calibration_.adaptive.levels.copy()
    model.update(coming[["unique_id", "ds", "y"]])
    assert not np.array_equal(model.calibration_.adaptive.levels, before)


def test_a_file_holds_columns_units_and_bands(model, history, coming, tmp_path):
    model.calibrate()
    model.save(tmp_path / "a.txl")
    again = TXLForecaster.load(tmp_path / "a.txl")
    known = futr(coming, 8)
    assert again.predict(h=8, futr_df=known).equals(model.predict(h=8, futr_df=known))
    assert again.sample_paths(4, n_paths=3, futr_df=known).equals(model.sample_paths(4, n_paths=3, futr_df=known))
    assert again.update(coming).equals(model.update(coming))
    assert again.fitted_values(history).equals(model.fitted_values(history))


def test_a_new_series_is_looked_up_in_static_df(model, history):
    new = history[history.unique_id == "T1"].assign(unique_id="new")
    with pytest.raises(ParameterError, match="static_df"):
        model.fitted_values(new)
    got = model.fitted_values(new, static_df=pd.DataFrame({"unique_id": ["new"], "size": [1.0]}))
    wanted = model.fitted_values(history[history.unique_id == "T1"])
    assert distance(got[VALUES], wanted[VALUES]) < 1e-6


# -------------------------------------------------------------------------------------------------------------- weights


def test_a_column_with_a_role_is_no_weight(tiny, history, static):
    for name in ("temp", "y", "unique_id"):
        with pytest.raises(ColumnError, match=f"sample_weight='{name}' must name a column of its own"):
            TXLForecaster(**tiny).fit(history.drop(columns="free"), futr_cols=["temp"], sample_weight=name)


def test_a_weight_counts_for_models_with_columns(tiny, history):
    """One kind of series follows the column, the other its opposite: weights decide which is learnt."""
    rng = np.random.default_rng(0)
    temp = rng.normal(size=len(history)).astype(np.float32)
    sign = np.where(history.unique_id == "T1", 1.0, -1.0)
    frame = history[["unique_id", "ds"]].assign(y=5 * sign * temp + rng.normal(0, 0.1, len(temp)), temp=temp)
    ahead = ahead_of(history, 1)[["unique_id", "ds"]]
    moves = {}
    for heavy in (True, False):
        w = np.where((frame.unique_id == "T1") == heavy, 100.0, 0.01)
        model = TXLForecaster(**{**tiny, "max_epochs": 0}).fit(frame.assign(w=w), futr_cols=["temp"], sample_weight="w")
        said = [model.predict(h=1, futr_df=ahead.assign(temp=t)).TXL.to_numpy() for t in (1.0, -1.0)]
        moves[heavy] = said[0] - said[1]
    assert (moves[True] > 3).all()
    assert (moves[False] < -3).all()


def test_weights_of_a_wide_frame_count_for_each_target(tiny):
    rows = wide()[["unique_id", "ds", *TARGETS]]
    rng = np.random.default_rng(0)
    weighted = rows.assign(w=rng.choice([0.0, 1.0, 3.0], len(rows)))
    sizes = {**tiny, "max_epochs": 0}  # the order of the series, and with it the draws of training, is another
    got = TXLForecaster(**sizes).fit(weighted, target_col=TARGETS, sample_weight="w", val_size=12)
    long = TXLForecaster(**sizes).fit(melted(weighted, "w"), sample_weight="w", val_size=12)
    plain = TXLForecaster(**sizes).fit(rows, target_col=TARGETS, val_size=12)
    assert distance(got.history_.validation, long.history_.validation) < 1e-5
    assert distance(got.history_.validation, plain.history_.validation) > 1e-3


# ------------------------------------------------------------------------------------------------------ several targets


@pytest.fixture(scope="module")
def side_by_side(tiny):
    rows = wide(ids=("b", "a"))[["unique_id", "ds", *TARGETS]]
    return TXLForecaster(**{**tiny, "max_epochs": 1}).fit(rows, target_col=TARGETS, val_size=12)


@pytest.fixture
def several(side_by_side):
    return copy.deepcopy(side_by_side)


def one_target(df, target, value="TXL"):
    return df[f"{target}_{value}"].to_numpy()


def test_paths_of_several_targets_are_those_of_their_series(several):
    """The names of the series are those of the long frame, and so are the draws."""
    got = several.sample_paths(4, n_paths=3)
    assert list(got.columns) == ["unique_id", "ds", "sample_id", "load_TXL", "flow_TXL"]
    assert list(got.unique_id) == ["a"] * 12 + ["b"] * 12
    assert list(got.sample_id) == [0] * 4 + [1] * 4 + [2] * 4 + [0] * 4 + [1] * 4 + [2] * 4
    assert list(got.ds[:4]) == list(got.ds[4:8])
    plain = copy.deepcopy(several)
    plain._targets = ()  # the same memories under their own names
    series = plain.sample_paths(4, n_paths=3)
    for target in TARGETS:
        mine = series[series.unique_id.str.endswith(f"/{target}")]
        assert np.array_equal(one_target(got, target), mine.TXL)
    assert set(several.sample_paths(2, n_paths=2, ids=["b"]).unique_id) == {"b"}


def test_several_targets_are_forecast_beyond_the_horizon_and_calibrated(several):
    several.calibrate()
    got = several.predict(h=7)
    plain = copy.deepcopy(several)
    plain._targets = ()
    series = plain.predict(h=7)
    for target in TARGETS:
        mine = series[series.unique_id.str.endswith(f"/{target}")]
        for value in VALUES:
            assert np.array_equal(one_target(got, target, value), mine[value])
    assert set(TARGETS) < set(several.fitted_values().columns)


def test_forget_drops_all_targets_of_an_id(several):
    several.calibrate(adaptive=True)
    several.forget(["a"])
    assert set(several.predict().unique_id) == {"b"}
    assert set(several.calibration_.ids) == {"b/load", "b/flow"}


def test_integer_ids_keep_their_type_in_paths(tiny):
    rows = wide(ids=(10, 9))[["unique_id", "ds", *TARGETS]]
    model = TXLForecaster(**{**tiny, "max_epochs": 0}).fit(rows, target_col=TARGETS)
    got = model.sample_paths(2, n_paths=2)
    assert got.unique_id.tolist() == [9] * 4 + [10] * 4
    assert got.ds.iloc[0] == rows.ds.max() + HOUR


# -------------------------------------------------------------------------------------------------------- deterministic


def test_numbers_with_columns_do_not_depend_on_other_series_where_that_was_asked_for(covered, history, coming):
    model = copy.deepcopy(covered).set_params(deterministic=True)
    alone = model.predict(h=7, df=history[history.unique_id == "T2"], futr_df=futr(coming[coming.unique_id == "T2"], 7))
    together = model.predict(h=7, df=history, futr_df=futr(coming, 7))
    assert np.array_equal(alone[VALUES], together[together.unique_id == "T2"][VALUES])
