"""Columns beside the target: each role does what it says, no chunking changes a number, nothing leaks."""

import copy
import datetime
import decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles.covariates import Columns
from tests.oracles.forecast import forecast as closed_form
from txl_ts import TXLForecaster
from txl_ts import model as model_module
from txl_ts.errors import (
    ColumnError,
    FileFormatError,
    FrameError,
    ParameterError,
    StampError,
    TxlError,
    UnusedColumnsWarning,
)
from txl_ts.training import Trainer

HOUR = pd.Timedelta(hours=1)
VALUES = ["TXL", "TXL_ql0.1", "TXL_ql0.8"]
LISTS = {
    "hist_cols": ["load", "mode"],
    "futr_cols": ["temp", "free"],
    "static_cols": ["size", "region"],
    "cat_cols": ["free", "region", "mode"],
}


def distance(a, b):
    """The largest difference over the largest size; NaN must stand at the same places."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert a.shape == b.shape
    assert (np.isnan(a) == np.isnan(b)).all()
    return np.nanmax(np.abs(a - b), initial=0) / max(np.nanmax(np.abs(b), initial=0), 1e-30)


def beside(rows, *, seed=1):
    """Columns beside the target, some cells missing: the target follows the temperature at the same row."""
    rng = np.random.default_rng(seed)
    n = len(rows)
    temp = rng.normal(10, 5, n)
    free = rng.choice(["no", "yes"], n)
    out = rows.assign(
        y=rows.y + 0.5 * np.abs(temp - 10) + 2 * (free == "yes"),
        load=rng.normal(100, 20, n),
        mode=rng.choice(["on", "off"], n),
        temp=temp,
        free=free,
    )
    out.loc[rng.random(n) < 0.05, "temp"] = np.nan
    out.loc[rng.random(n) < 0.05, "load"] = np.nan
    out.loc[rng.random(n) < 0.05, "free"] = None
    return out


def ahead_of(df, n_rows, *, seed=5):
    """Rows after the last one of each series, with all columns."""
    parts = []
    for name, rows in df.groupby("unique_id"):
        ds = rows.ds.max() + HOUR * np.arange(1, n_rows + 1)
        parts.append(pd.DataFrame({"unique_id": name, "ds": ds, "y": np.sin(np.arange(n_rows))}))
    return beside(pd.concat(parts, ignore_index=True), seed=seed)


def only_futr(df):
    return df[["unique_id", "ds", "temp", "free"]].fillna({"temp": 10.0, "free": "no"})


@pytest.fixture(scope="module")
def history(make_rows):
    return beside(make_rows(n_rows=140))


@pytest.fixture(scope="module")
def static():
    return pd.DataFrame({"unique_id": ["T1", "T2", "T3"], "size": [1.0, 5.0, np.nan], "region": ["a", "b", "a"]})


@pytest.fixture(scope="module")
def sizes(tiny):
    return {**tiny, "calendar": ["hour", "weekday"]}


@pytest.fixture(scope="module")
def covered(sizes, history, static):
    """A forecaster with columns of every role; never changed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "validation_loss", lambda trainer: 1.0 / (1 + trainer.progress.history.epochs))
        return TXLForecaster(**sizes).fit(history, **LISTS, static_df=static, val_size=12)


@pytest.fixture
def model(covered):
    return copy.deepcopy(covered)


@pytest.fixture(scope="module")
def coming(history):
    return ahead_of(history, 30)


# --------------------------------------------------------------------------------------------------------------- oracle


def raw_columns(model, rows, ahead, static_row):
    """The columns of one series as the oracle takes them; codes count from 1 in the order of the sorted categories."""
    both = pd.concat([rows, ahead], ignore_index=True)
    code = {"no": 1.0, "yes": 2.0, "on": 2.0, "off": 1.0, "a": 1.0, "b": 2.0}
    hour = both.ds.dt.hour.to_numpy() / 24 * 2 * np.pi
    day = both.ds.dt.day_of_week.to_numpy() / 7 * 2 * np.pi
    waves = [wave(k * part) for part, n in ((hour, 2), (day, 3)) for k in range(1, n + 1) for wave in (np.sin, np.cos)]
    futr = np.stack([both.temp.to_numpy(float), both.free.map(code).fillna(0).to_numpy(float), *waves], axis=1)
    hist = np.stack([rows.load.to_numpy(float), rows["mode"].map(code).to_numpy(float)], axis=1)
    return hist, futr, np.array([static_row["size"], code[static_row["region"]]])


def test_forecasts_equal_the_closed_form_of_each_whole_series(covered, history, static, coming):
    weights = {name: tensor.double().numpy() for name, tensor in covered._model.state_dict().items()}
    futr = only_futr(coming)
    out = covered.predict(futr_df=futr)
    for name, rows in history.groupby("unique_id"):
        rows, ahead = rows.reset_index(drop=True), futr[futr.unique_id == name]
        hist, known, whole = raw_columns(covered, rows, ahead, static.set_index("unique_id").loc[name])
        columns = Columns(hist, known, whole, weights, vars(covered.config_))
        y = rows.y.to_numpy(np.float32).astype(np.float64)[:, None]
        expected = closed_form(y, weights, vars(covered.config_), columns)[-1, :, 0]
        got = out[out.unique_id == name][["TXL_ql0.1", "TXL", "TXL_ql0.8"]]
        # The oracle is float64; the forecaster's float32 keeps 7 digits over some thousand operations.
        assert distance(got, expected) < 1e-5


def test_every_part_of_the_columns_was_trained_or_the_oracle_would_compare_zeros(covered):
    weights = covered._model.state_dict()
    for name in ("known_ahead.out.weight", "beside.from_hist.linear.weight", "beside.from_static.linear.weight"):
        assert weights[name].abs().max() > 1e-3, name
    assert covered.linear_fit_.uses_known
    assert weights["linear_path.known"].abs().max() > 1e-3


# ----------------------------------------------------------------------------------------------------- each column acts


@pytest.mark.parametrize(("column", "value"), [("temp", 30.0), ("free", "yes")])
def test_a_known_future_column_changes_the_forecast_of_its_own_step_alone(covered, coming, column, value):
    futr = only_futr(coming)
    changed = futr.copy()
    second = futr.groupby("unique_id").cumcount() == 1
    changed.loc[second, column] = value
    futr.loc[second, column] = "no" if column == "free" else futr.loc[second, column]
    a, b = covered.predict(futr_df=futr), covered.predict(futr_df=changed)
    step = a.groupby("unique_id").cumcount()
    assert (a[VALUES][step != 1] == b[VALUES][step != 1]).all().all()
    assert ((a.TXL - b.TXL)[step == 1].abs() > 1e-2).all()


@pytest.mark.parametrize("column", ["load", "mode", "temp"])
def test_the_past_of_a_column_changes_forecasts(covered, history, coming, column):
    other = history.copy()
    rng = np.random.default_rng(0)
    other[column] = rng.permutation(other[column].to_numpy())
    a = covered.predict(df=history, futr_df=only_futr(coming))
    b = covered.predict(df=other, futr_df=only_futr(coming))
    assert distance(a[VALUES], b[VALUES]) > 1e-4


def test_the_static_columns_change_forecasts(covered, history, coming, static):
    other = static.assign(region=["b", "a", "b"])
    a = covered.predict(df=history, futr_df=only_futr(coming))
    b = covered.predict(df=history, futr_df=only_futr(coming), static_df=other)
    assert distance(a[VALUES], b[VALUES]) > 1e-4


def test_an_unseen_category_is_the_same_as_any_other_unseen_one_and_as_none(covered, coming):
    futr = only_futr(coming)
    one, two = (covered.predict(futr_df=futr.assign(free=word)) for word in ("perhaps", "never"))
    pd.testing.assert_frame_equal(one, two)
    pd.testing.assert_frame_equal(one, covered.predict(futr_df=futr.assign(free=None), on_missing="mask"))
    assert distance(one[VALUES], covered.predict(futr_df=futr.assign(free="no"))[VALUES]) > 1e-4


def test_a_category_that_only_the_validation_rows_have_counts_as_unseen(sizes, history):
    late = history.groupby("unique_id").cumcount(ascending=False) < 12
    rows = history.assign(free=np.where(late, "strike", "no"))
    lists = {"futr_cols": ["free"], "cat_cols": ["free"]}
    model = TXLForecaster(**{**sizes, "max_epochs": 0}).fit(
        rows.drop(columns=["load", "mode", "temp"]), **lists, val_size=12
    )
    futr = model.make_future_frame()
    pd.testing.assert_frame_equal(
        model.predict(futr_df=futr.assign(free="strike")), model.predict(futr_df=futr.assign(free="storm"))
    )


# ------------------------------------------------------------------------------------------------- who continues whence


@pytest.mark.parametrize("cuts", [(1, 2, 7, 20), (30,), (29, 1), (4, 13, 13)])
def test_any_split_of_the_new_rows_into_updates_gives_the_same_numbers(model, history, coming, cuts):
    whole = pd.concat([history, coming], ignore_index=True)
    last = ahead_of(whole, 3, seed=9)
    expected = model.predict(df=whole, futr_df=only_futr(last))
    told, done = [], 0
    place = coming.groupby("unique_id").cumcount()
    for n in cuts:
        told.append(model.update(coming[(place >= done) & (place < done + n)]))
        done += n
    # Chunks change the order of sums: 7 digits of float32 over some thousand operations.
    assert distance(model.predict(futr_df=only_futr(last))[VALUES], expected[VALUES]) < 1e-5
    assert pd.concat(told)[VALUES].notna().all().all()


def test_what_update_says_of_a_row_is_the_forecast_that_the_row_before_made(model, coming):
    place = coming.groupby("unique_id").cumcount()
    together = copy.deepcopy(model).update(coming)
    first = model.predict(h=1, futr_df=only_futr(coming[place == 0]))
    got = together[together.groupby("unique_id").cumcount() == 0].reset_index(drop=True)
    # The columns of the row itself stand in the frame, with their holes; this one has none at its first rows' cells.
    whole = coming[place == 0][["temp", "free"]].notna().all(axis=1).to_numpy()
    assert whole.any()
    assert distance(got[VALUES][whole], first[VALUES][whole]) < 1e-6
    model.update(coming[place == 0])
    second = model.predict(h=1, futr_df=coming[place == 1][["unique_id", "ds", "temp", "free"]], on_missing="mask")
    got = together[together.groupby("unique_id").cumcount() == 1].reset_index(drop=True)
    assert distance(got[VALUES], second[VALUES]) < 1e-5


def test_the_backtest_reads_what_is_known_ahead_from_the_frame_at_each_cutoff(covered, history, coming):
    whole = pd.concat([history, coming], ignore_index=True).fillna({"temp": 10.0, "free": "no"})
    walked = covered.cross_validation(whole, n_windows=5, step_size=3, use_fitted=True)
    for cutoff, part in walked[walked.unique_id == "T2"].groupby("cutoff"):
        rows = whole[whole.unique_id == "T2"]
        known = rows[rows.ds > cutoff].head(3)
        expected = covered.predict(df=rows[rows.ds <= cutoff], futr_df=only_futr(known))
        assert distance(part[VALUES], expected[VALUES]) < 1e-5


def test_the_backtest_sees_nothing_else_of_the_future(covered, history, coming):
    """T1: after the last cutoff all but futr_cols may be anything."""
    whole = pd.concat([history, coming], ignore_index=True)
    late = whole.groupby("unique_id").cumcount(ascending=False) < 3
    other = whole.copy()
    other.loc[late, "load"] = 1e30
    other.loc[late, "mode"] = "broken"
    other.loc[late, "y"] = np.nan
    a = covered.cross_validation(whole, n_windows=4, use_fitted=True)
    b = covered.cross_validation(other, n_windows=4, use_fitted=True)
    last = a.groupby("unique_id").cutoff.transform("max") == a.cutoff
    early = a.groupby("unique_id").cutoff.transform("min") == a.cutoff
    assert (a[VALUES][early] == b[VALUES][early]).all().all()
    assert (a[VALUES][last] == b[VALUES][last]).all().all()


def test_a_refit_backtest_learns_scales_and_categories_before_its_cutoff(sizes, history):
    lists = {"futr_cols": ["temp", "free"], "cat_cols": ["free"]}
    rows = history.drop(columns=["load", "mode"])
    late = rows.groupby("unique_id").cumcount(ascending=False) < 3  # after the only cutoff
    other = rows.copy()
    other.loc[late & (rows.groupby("unique_id").cumcount(ascending=False) == 0), ["temp", "free"]] = [1e6, "unheard"]
    small = {**sizes, "max_epochs": 1}
    a = TXLForecaster(**small).cross_validation(rows, n_windows=1, **lists)
    b = TXLForecaster(**small).cross_validation(other, n_windows=1, **lists)
    first_two = a.groupby("unique_id").cumcount() < 2
    assert (a[VALUES][first_two] == b[VALUES][first_two]).all().all()


def test_a_new_series_is_forecast_with_its_own_static_row(model, history, coming):
    new = history[history.unique_id == "T1"].assign(unique_id="T9")
    its = pd.DataFrame({"unique_id": ["T9"], "size": [2.0], "region": ["c"]})
    model.update(new, static_df=its)
    futr = pd.concat([only_futr(coming), only_futr(coming[coming.unique_id == "T1"]).assign(unique_id="T9")])
    out = model.predict(futr_df=futr)
    assert set(out.unique_id) == {"T1", "T2", "T3", "T9"}
    expected = model.predict(df=new, futr_df=futr, static_df=its)
    assert distance(out[out.unique_id == "T9"][VALUES], expected[VALUES]) < 1e-5


def test_a_long_horizon_is_read_in_parts_to_the_same_numbers(covered, history, coming, monkeypatch):
    whole = pd.concat([history, coming], ignore_index=True)
    expected = covered.cross_validation(whole, n_windows=9, use_fitted=True)
    monkeypatch.setattr(model_module, "_STEPS_AT_ONCE", 20)
    got = covered.cross_validation(whole, n_windows=9, use_fitted=True)
    assert distance(got[VALUES], expected[VALUES]) < 1e-6


def test_rows_of_a_short_gap_are_missing_and_keep_their_calendar(model, history, coming):
    place = coming.groupby("unique_id").cumcount()
    after_gap = coming[place >= 4]
    whole = pd.concat([history, after_gap], ignore_index=True)
    futr = only_futr(ahead_of(whole, 3, seed=2))
    expected = model.predict(df=whole, futr_df=futr)
    model.update(after_gap)
    assert distance(model.predict(futr_df=futr)[VALUES], expected[VALUES]) < 1e-5


def test_a_forecaster_comes_back_from_its_file_to_the_bit(covered, coming, tmp_path):
    covered.save(tmp_path / "m.txl")
    back = TXLForecaster.load(tmp_path / "m.txl")
    pd.testing.assert_frame_equal(back.predict(futr_df=only_futr(coming)), covered.predict(futr_df=only_futr(coming)))
    pd.testing.assert_frame_equal(back.update(coming), copy.deepcopy(covered).update(coming))
    assert back._roles == covered._roles
    assert back.linear_fit_.uses_known == covered.linear_fit_.uses_known


def test_every_library_gives_the_same_numbers(frame, covered, sizes, history, static, coming):
    def columns(rows):
        return {c: rows[c].to_list() if rows[c].dtype != "float64" and c != "ds" else rows[c].to_numpy() for c in rows}

    words = {"free": "no"}
    small = {**sizes, "max_epochs": 1}
    whole = history.fillna(words)
    a = TXLForecaster(**small).fit(whole, **LISTS, static_df=static).predict(futr_df=only_futr(coming))
    model = TXLForecaster(**small).fit(frame(columns(whole)), **LISTS, static_df=frame(columns(static)))
    b = model.predict(futr_df=frame(columns(only_futr(coming))))
    empty = model.make_future_frame()
    assert type(b) is type(frame({"a": [1]})) is type(empty)
    got = {name: np.asarray(b[name]) for name in VALUES}
    for name in VALUES:
        assert got[name].astype(np.float32).tobytes() == a[name].to_numpy().astype(np.float32).tobytes()


def test_the_future_frame_has_the_rows_that_predict_gives(covered, coming, history):
    futr = covered.make_future_frame(2)
    out = covered.predict(2, futr_df=only_futr(coming))
    pd.testing.assert_frame_equal(futr, out[["unique_id", "ds"]])
    one = covered.make_future_frame(df=history[history.unique_id == "T2"].head(60))
    assert list(one.ds) == [history[history.unique_id == "T2"].ds.iloc[59] + HOUR * k for k in (1, 2, 3)]


def test_the_default_memory_leaves_room_for_the_state_of_the_columns(history):
    rows = history.assign(**{f"x{i}": history.load for i in range(40)})
    lists = {"hist_cols": [f"x{i}" for i in range(40)], "futr_cols": ["temp"]}
    rows = rows[["unique_id", "ds", "y", "temp", *lists["hist_cols"]]]
    model = TXLForecaster(h=24, freq="1h", max_epochs=0).fit(rows, **lists)
    assert model.config_.mem_len > 1
    assert model.params_["state_nbytes"] <= 128 * 1024


def test_a_model_without_columns_is_what_it_was(fitted):
    names = [spec.name for spec in fitted._model.state_specs()]
    assert names == ["keys_0", "values_0", "keys_1", "values_1", "count", "norm", "rows"]
    assert not [name for name in fitted._model.state_dict() if "beside" in name or "known" in name]
    assert not [name for name in fitted.config_.to_json() if "kinds" in name]


# -------------------------------------------------------------------------------------------------------------- errors


def test_missing_cells_are_listed_with_series_time_and_column(covered, coming):
    futr = only_futr(coming)
    futr = futr[~((futr.unique_id == "T2") & (futr.ds == futr[futr.unique_id == "T2"].ds.iloc[1]))]
    futr.loc[(futr.unique_id == "T3") & (futr.groupby("unique_id").cumcount() == 0), "temp"] = np.nan
    with pytest.raises(FrameError, match=r"futr_df lacks 3 cells, such as \('T2', 2024-01-07 \d\d:00, 'temp'\), "):
        covered.predict(futr_df=futr)
    assert covered.predict(futr_df=futr, on_missing="mask").TXL.notna().all()


def test_a_category_that_is_not_given_is_a_missing_cell(covered, coming):
    futr = only_futr(coming)
    futr.loc[(futr.unique_id == "T2") & (futr.groupby("unique_id").cumcount() == 1), "free"] = None
    with pytest.raises(FrameError, match=r"futr_df lacks 1 cell, such as \('T2', 2024-01-07 \d\d:00, 'free'\)"):
        covered.predict(futr_df=futr)
    # Without a word the model is told the same as by one that it never heard.
    masked = covered.predict(futr_df=futr, on_missing="mask")
    pd.testing.assert_frame_equal(masked, covered.predict(futr_df=futr.fillna({"free": "unheard"})))


def test_static_columns_without_rows_to_walk_are_refused(covered, coming):
    with pytest.raises(ParameterError, match="static_df goes with df=rows"):
        covered.predict(futr_df=only_futr(coming), static_df=pd.DataFrame({"unique_id": ["T1"], "size": [1.0]}))


def test_at_most_five_missing_cells_are_shown(covered):
    with pytest.raises(FrameError, match="without futr_df the forecast lacks 18 cells") as caught:
        covered.predict()
    assert str(caught.value).count("'temp'") + str(caught.value).count("'free'") == 5 + 2
    assert "futr_df=make_future_frame(h=3)" in str(caught.value)


def test_a_frame_of_other_series_or_times_is_told_what_it_holds(covered, coming):
    futr = only_futr(coming)
    with pytest.raises(FrameError, match=r"futr_df holds other series, such as 'X', and lacks 18 cells"):
        covered.predict(futr_df=futr.assign(unique_id="X"))
    late = futr.ds + pd.Timedelta(days=30)
    with pytest.raises(
        FrameError, match=r"futr_df holds other times, from 2024-02-05 20:00 to 2024-02-07 19:00, and lacks"
    ):
        covered.predict(futr_df=futr.assign(ds=late))


def bad_fits():
    yield {"hist_cols": "load"}, ParameterError, r"hist_cols='load' must be a list"
    yield {"hist_cols": [3]}, ParameterError, "must hold column names, strings, got 3"
    yield {"hist_cols": ["load", "load"]}, ParameterError, r"names \['load'\] twice"
    yield {"hist_cols": ["temp"], "futr_cols": ["temp"]}, ParameterError, "'temp' of futr_cols is also in hist_cols"
    yield {"futr_cols": ["y"]}, ParameterError, "is also in the id, time or target column"
    yield {"cat_cols": ["free"]}, ParameterError, r"cat_cols names \['free'\], which have no role"
    yield {"futr_cols": ["tmp"]}, ColumnError, "futr column 'tmp' is not in the frame.*Did you mean 'temp'"
    yield {"futr_cols": ["free"]}, ColumnError, "futr column 'free' must hold numbers.*name it in cat_cols"
    yield (
        {"time_col": pd.Series(["ds"])},
        ParameterError,
        "time_col must be the name of a column, a string, got a Series",
    )
    yield {"static_cols": ["size"]}, ParameterError, r"static_cols need static_df=…, and it is missing for 3 series"
    yield {"static_cols": ["region"], "cat_cols": ["region"]}, ParameterError, "need static_df"
    yield {"static_df": "static"}, ParameterError, "static_df was given, and no static_cols"


@pytest.mark.parametrize(("arguments", "error", "text"), list(bad_fits()))
def test_a_bad_list_of_columns_is_an_error_that_names_it(sizes, history, static, arguments, error, text):
    rows = history
    if "static" in text or "must hold numbers" in text:
        rows = history[
            ["unique_id", "ds", "y", *arguments.get("futr_cols", [])]
        ]  # read before the error comes, without a word on the other columns
        arguments = arguments | ({"static_df": static} if "static_df" in arguments else {})
    with pytest.raises(error, match=text):
        TXLForecaster(**sizes).fit(rows, **arguments)


def test_a_static_frame_needs_each_series_once(sizes, history, static):
    lists = {"static_cols": ["size"]}
    rows = history[["unique_id", "ds", "y"]]
    with pytest.raises(FrameError, match=r"static_df has no row for 1 series, such as \['T3'\]"):
        TXLForecaster(**sizes).fit(rows, **lists, static_df=static.head(2))
    with pytest.raises(FrameError, match=r"more than one row for 1 series, such as \['T1'\] \(again at row 3\)"):
        TXLForecaster(**sizes).fit(rows, **lists, static_df=pd.concat([static, static.head(1)]))
    with pytest.raises(
        ColumnError, match=r"static column 'size' holds 1 value outside .* series 'T1' \(first at row 0: inf\)"
    ):
        TXLForecaster(**sizes).fit(rows, **lists, static_df=static.assign(size=[np.inf, 1, 2]))


@pytest.mark.parametrize("value", [np.inf, 1e300])
def test_a_value_beyond_float32_is_refused_with_column_series_and_row(sizes, history, value):
    rows = history[["unique_id", "ds", "y", "temp"]].copy()
    rows.loc[150, "temp"] = value
    with pytest.raises(
        ColumnError,
        match=r"futr column 'temp' holds 1 value outside the finite float32 numbers in series 'T2' \(first at row 150",
    ):
        TXLForecaster(**sizes).fit(rows, futr_cols=["temp"])
    bad = TXLForecaster(**{**sizes, "on_bad_series": "skip", "max_epochs": 0})
    with pytest.warns(UserWarning, match="1 series was skipped"):
        bad.fit(rows, futr_cols=["temp"])
    assert bad.skipped_[0][0] == "T2"


def futr_errors():
    yield lambda df: df.drop(columns="temp"), ColumnError, "futr column 'temp' is not in the frame"
    yield lambda df: pd.concat([df, df.head(1)]), StampError, r"futr_df repeats times: 1 row, first at row \d+ \('T1'"
    yield lambda df: df.assign(ds=df.ds + pd.Timedelta(minutes=5)), StampError, "stamps off the 1-hour grid"
    yield lambda df: df.assign(ds=df.ds.dt.tz_localize("UTC")), StampError, "times with zone UTC, and the rows"
    yield lambda df: df.assign(temp=np.inf), ColumnError, "futr column 'temp' of futr_df holds .* series 'T1'"
    yield lambda df: df.assign(free=1.5), ColumnError, "categorical column 'free' must hold text"


@pytest.mark.parametrize(("change", "error", "text"), list(futr_errors()))
def test_a_bad_future_frame_is_refused_and_nothing_is_changed(model, coming, change, error, text):
    before = model.predict(futr_df=only_futr(coming))
    with pytest.raises(error, match=text):
        model.predict(futr_df=change(only_futr(coming)))
    pd.testing.assert_frame_equal(model.predict(futr_df=only_futr(coming)), before)


def test_a_refused_update_changes_nothing(model, coming, static):
    before = {name: array.copy() for name, array in model._fleet.state.items()}
    for bad, error in (
        (coming.drop(columns="load"), ColumnError),
        (coming.assign(temp="warm"), ColumnError),
        (coming.assign(unique_id="new"), FrameError),
    ):
        rows = bad.groupby("ds", as_index=False).head(1) if error is FrameError else bad
        with pytest.raises((error, ParameterError)):
            model.update(rows)
    for name, array in model._fleet.state.items():
        assert array.tobytes() == before[name].tobytes()


ODD = [
    *(0, 1, -3, 2**62, 0.5, 1e30, -1e30, 1e308, float("inf"), float("nan"), None, True),
    *("a", "b", "", decimal.Decimal("1.5"), datetime.date(2024, 1, 1), b"x", [1]),
]


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(ODD), min_size=1, max_size=6),
    st.sampled_from(["hist_cols", "futr_cols"]),
    st.booleans(),
    st.booleans(),
)
def test_any_column_gives_a_forecast_or_an_error_of_ours(values, role, is_cat, is_polars):
    """D1: whatever a column holds, the answer is finite, or a typed error names the column."""
    n = 60
    column = [values[i % len(values)] for i in range(n)]
    ds = [datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=i) for i in range(n)]
    y = np.sin(np.arange(n) / 3)
    try:
        df = pl.DataFrame({"ds": ds, "y": y, "x": pl.Series(column, strict=True)}) if is_polars else None
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        df = None  # polars itself refuses such a mix
    if df is None:
        df = pd.DataFrame({"ds": ds, "y": y, "x": pd.Series(column, dtype=object).infer_objects()})
    sizes = {"h": 2, "freq": "1h", "patch_len": 4, "mem_len": 2, "lookback": 6, "d_model": 4, "n_heads": 1}
    lists = {role: ["x"], "cat_cols": ["x"] if is_cat else []}
    told, out = "", None
    try:
        model = TXLForecaster(**sizes, max_epochs=0).fit(df, id_col=None, **lists)
        futr = None if role == "hist_cols" else model.make_future_frame()
        if futr is not None:
            futr = futr.with_columns(df["x"].head(2)) if isinstance(df, pl.DataFrame) else futr.assign(x=df.x)
        out = model.predict(futr_df=futr, on_missing="mask")
    except TxlError as error:
        told = str(error)
    assert "'x'" in told if out is None else np.isfinite(np.asarray(out["TXL"])).all()


def test_columns_of_a_future_frame_for_a_model_that_knows_nothing_ahead(fitted, coming):
    with pytest.raises(ParameterError, match="futr_df was given, and no futr_cols"):
        fitted.predict(futr_df=only_futr(coming))


def test_columns_without_a_role_are_told_once(sizes, history):
    with pytest.warns(UnusedColumnsWarning, match="not used: 'load', 'mode', 'free'") as told:
        TXLForecaster(**{**sizes, "max_epochs": 0}).fit(history, futr_cols=["temp"])
    assert len(told) == 1


def test_a_file_whose_columns_are_not_those_of_its_model_is_refused(covered, tmp_path, monkeypatch):
    other = copy.deepcopy(covered)
    other._roles = type(other._roles)(futr=("temp",), vocabulary={})
    other.save(tmp_path / "m.txl")
    with pytest.raises(FileFormatError):
        TXLForecaster.load(tmp_path / "m.txl")


# --------------------------------------------------------------------------------------------------------- closed form


def test_the_linear_path_with_known_columns_is_least_squares_over_explicit_windows(history):
    """Each step by itself: inputs of the look-back and the features of its own row, solved by numpy."""
    from txl_ts.config import ModelConfig
    from txl_ts.model import TXLModel
    from txl_ts.training import BesideRows, LinearFit, Origins, Pieces, fit_linear_path

    rng = np.random.default_rng(0)
    n, lookback, h = 90, 4, 3
    temp = rng.normal(size=(n, 1)).astype(np.float32)
    values = (np.convolve(rng.normal(size=n), [1, 0.5])[:n] + np.abs(temp[:, 0])).astype(np.float32)
    config = ModelConfig(
        h=h, quantiles=(0.5,), patch_len=2, stride=1, mem_len=1, lookback=lookback, half_life=10, scaler="standard",
        d_model=4, n_layers=1, n_heads=1, d_ff=4, futr_kinds=(0,),
    )  # fmt: skip
    model = TXLModel(config)
    model.beside.fit(np.zeros((n, 0), np.float32), temp, np.zeros((1, 0), np.float32))
    ones = np.ones(1, np.float32)
    beside = BesideRows(np.zeros((n, 0), np.float32), temp, np.zeros((1, 0), np.float32))
    rows = Origins(Pieces(values, np.array([0]), np.array([n]), ones, beside=beside), np.array([lookback]))
    fit_linear_path(model, rows, None, seed=0, known=LinearFit(1e-2, 0.0, torch.ones(h), True))
    z = (temp[:, 0] - temp.mean()) / temp.std()
    knots = np.quantile(z, [0.25, 0.5, 0.75, 0.9])
    phi = np.stack([z, np.ones(n), *(np.maximum(z - k, 0) for k in knots)], axis=1)
    t = np.arange(lookback, n - h)
    past = np.stack([values[t - k] - values[t] for k in range(lookback - 1, -1, -1)] + [np.ones(len(t))], axis=1)
    for k in range(1, h + 1):
        both = np.concatenate([past, phi[t + k]], axis=1).astype(np.float64)
        gram = both.T @ both
        n_past = past.shape[1]
        square = np.diagonal(gram)[: n_past - 1].mean()
        own = np.diagonal(gram)[n_past:]
        ridge = np.concatenate([np.full(n_past - 1, 1e-2 * square), [0.0], 1e-2 * own])
        tiny = np.concatenate([np.full(n_past, 1e-9 * square), np.full(len(own), 1e-9 * own.max())])
        found = np.linalg.solve(gram + np.diag(ridge + tiny), both.T @ (values[t + k] - values[t]))
        weight = found[: n_past - 1].copy()
        weight[-1] += 1 - weight.sum()
        # float32 sums of a few thousand squares
        np.testing.assert_allclose(model.linear_path.weight[k - 1].detach(), weight, atol=2e-4)
        np.testing.assert_allclose(model.linear_path.known[k - 1].detach(), found[n_past:], atol=2e-4)
