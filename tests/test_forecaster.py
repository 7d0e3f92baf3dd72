"""Who continues from where: fit fills the memories, update moves them, predict reads them and moves nothing."""

import copy
import hashlib

import numpy as np
import pandas as pd
import pytest

from tests.oracles.forecast import forecast as closed_form
from txl_ts import TXLForecaster
from txl_ts.errors import FrameError, ParameterError, StampError, StateError

HOUR = pd.Timedelta(hours=1)
VALUES = ["TXL", "TXL_ql0.1", "TXL_ql0.8"]


def digest(model):
    """The bytes of all that a forecaster keeps."""
    parts = hashlib.sha256(repr((model.get_params(), model._fleet.ids, model.history_, model.params_)).encode())
    fleet = model._fleet
    weights = [tensor.numpy() for tensor in model._model.state_dict().values()]
    for array in (fleet.origins, fleet.last, fleet.forecast, *fleet.state.values(), *weights):
        parts.update(np.ascontiguousarray(array).tobytes())
    return parts.hexdigest()


def distance(a, b):
    """The largest difference over the largest size (RELIABILITY.md); NaN must stand at the same places."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert a.shape == b.shape
    assert (np.isnan(a) == np.isnan(b)).all()
    return np.nanmax(np.abs(a - b), initial=0) / max(np.nanmax(np.abs(b), initial=0), 1e-30)


def joined(a, b):
    """Two frames with the same ids and times, in one order."""
    keys = ["unique_id", "ds"]
    a, b = (f.sort_values(keys).reset_index(drop=True) for f in (a, b))
    pd.testing.assert_frame_equal(a[keys], b[keys], check_dtype=False)
    return a, b


def after(df, n_rows, *, seed=5):
    """More rows for each series, from the hour after its last one."""
    rng = np.random.default_rng(seed)
    parts = []
    for name, rows in df.groupby("unique_id"):
        ds = rows.ds.max() + HOUR * np.arange(1, n_rows + 1)
        y = rng.normal(rows.y.mean(), 1, n_rows)
        y[rng.random(n_rows) < 0.1] = np.nan
        parts.append(pd.DataFrame({"unique_id": name, "ds": ds, "y": y}))
    return pd.concat(parts, ignore_index=True)


def rows_of(df, name):
    return df[df.unique_id == name]


@pytest.fixture(scope="module")
def history(make_rows):
    return make_rows()


@pytest.fixture(scope="module")
def news(history):
    return after(history, 30)


# ------------------------------------------------------------------------------------------------------------- predict


def test_predict_gives_h_rows_after_the_last_row_of_each_series(fitted, history):
    out = fitted.predict()
    assert list(out.columns) == ["unique_id", "ds", *VALUES]
    for name, rows in history.groupby("unique_id"):
        assert list(rows_of(out, name).ds) == [rows.ds.max() + HOUR * k for k in (1, 2, 3)]


def test_predict_equals_the_closed_form_of_each_whole_series(fitted, history):
    weights = {name: tensor.double().numpy() for name, tensor in fitted._model.state_dict().items()}
    out = fitted.predict()
    for name, rows in history.groupby("unique_id"):
        y = rows.y.to_numpy(np.float32).astype(np.float64)[:, None]
        expected = closed_form(y, weights, vars(fitted.config_))[-1, :, 0]
        # The oracle is float64; the forecaster's float32 keeps 7 digits over some thousand operations.
        assert distance(rows_of(out, name)[["TXL_ql0.1", "TXL", "TXL_ql0.8"]], expected) < 1e-5


def test_the_memories_matter_or_the_tests_of_this_file_would_prove_nothing(fitted, history):
    other = copy.deepcopy(fitted)
    for name in set(other._fleet.state) - {"norm", "rows"}:
        other._fleet.state[name][:] = 0
    nxt = after(history, 1).assign(y=0.0)
    a, b = copy.deepcopy(fitted), other
    a.update(nxt)
    b.update(nxt)
    assert distance(a.predict()[VALUES], b.predict()[VALUES]) > 1e-3  # a hundred times the tolerance of the others


def test_predict_is_the_same_after_itself(fitted):
    pd.testing.assert_frame_equal(fitted.predict(), fitted.predict())


def test_a_shorter_horizon_is_the_beginning_of_the_longer_one(fitted):
    whole, two = fitted.predict(), fitted.predict(h=2)
    pd.testing.assert_frame_equal(two, whole.groupby("unique_id").head(2).reset_index(drop=True))


def test_predict_with_rows_starts_every_series_empty(fitted, history):
    alone = fitted.predict(df=rows_of(history, "T2").tail(40))
    weights = {name: tensor.double().numpy() for name, tensor in fitted._model.state_dict().items()}
    y = rows_of(history, "T2").y.tail(40).to_numpy(np.float32).astype(np.float64)[:, None]
    expected = closed_form(y, weights, vars(fitted.config_))[-1, :, 0]
    assert distance(alone[["TXL_ql0.1", "TXL", "TXL_ql0.8"]], expected) < 1e-5


def test_predict_on_the_rows_of_fit_is_predict(fitted, history):
    a, b = joined(fitted.predict(df=history), fitted.predict())
    assert distance(a[VALUES], b[VALUES]) < 1e-5


def test_predict_with_rows_takes_series_that_were_never_fitted(fitted, history):
    renamed = history.assign(unique_id="new-" + history.unique_id)
    a, b = fitted.predict(df=renamed), fitted.predict()
    assert list(a.unique_id.str.removeprefix("new-")) == list(b.unique_id)
    assert distance(a[VALUES], b[VALUES]) < 1e-5


@pytest.mark.parametrize("arguments", [{}, {"start": "fitted"}])
def test_predict_changes_neither_model_nor_frame(forecaster, news, arguments):
    before, frame = digest(forecaster), news.copy(deep=True)
    forecaster.predict()
    forecaster.predict(df=news, **arguments)
    forecaster.predict(df=news, ids=["T1"], level=[50], **arguments)
    assert digest(forecaster) == before
    pd.testing.assert_frame_equal(news, frame)


def test_predict_from_the_fitted_memories_is_update_and_predict(forecaster, news):
    ahead = forecaster.predict(df=news, start="fitted")
    forecaster.update(news)
    pd.testing.assert_frame_equal(ahead, forecaster.predict())  # the same calls in the same order: bit for bit


def test_predict_from_the_fitted_memories_gives_only_the_series_of_the_rows(fitted, news):
    out = fitted.predict(df=rows_of(news, "T3"), start="fitted")
    assert set(out.unique_id) == {"T3"}


def test_predict_from_the_fitted_memories_refuses_rows_that_were_taken_in(fitted, history):
    with pytest.raises(StampError, match=r"Give predict\(start='fitted'\) only rows after the last one"):
        fitted.predict(df=history, start="fitted")


def test_start_fitted_without_rows_says_that_it_is_not_needed(fitted):
    with pytest.raises(ParameterError, match=r"start='fitted' goes with df=rows; predict\(\) alone reads"):
        fitted.predict(start="fitted")
    with pytest.raises(ParameterError, match="start='begin' must be None or 'fitted'"):
        fitted.predict(start="begin")


def test_ids_pick_series_and_leave_the_numbers(fitted):
    whole = fitted.predict()
    some = fitted.predict(ids=["T3", "T1"])
    pd.testing.assert_frame_equal(some, whole[whole.unique_id != "T2"].reset_index(drop=True))


def test_unknown_ids_are_named_with_the_way_out(fitted):
    with pytest.raises(StateError, match=r"1 series are not known, such as \['T9'\].*predict\(df=rows\), or update"):
        fitted.predict(ids=["T1", "T9"])


def test_ids_as_one_text_are_one_id_or_an_error_and_never_its_letters(fitted):
    try:
        out = fitted.predict(ids="T1")
    except ParameterError as error:
        assert "ids" in str(error)  # noqa: PT017 - either way is fine
    else:
        assert set(out.unique_id) == {"T1"}


@pytest.mark.parametrize("h", [0, 4, 2.0, True])
def test_a_horizon_that_was_not_trained_is_refused(fitted, h):
    text = "h=4 is more than the trained h=3" if h == 4 else "must be an integer of at least 1"
    with pytest.raises(ParameterError, match=text):
        fitted.predict(h=h)


# -------------------------------------------------------------------------------------------------------------- update


@pytest.mark.parametrize("seed", range(4))
def test_update_in_any_split_equals_one_pass(forecaster, history, news, seed):
    """Promise 1: random splits of the new rows, series by series, into calls that leave some series out."""
    rng = np.random.default_rng(seed)
    whole = copy.deepcopy(forecaster)
    expected_steps = whole.update(news)
    places = dict.fromkeys(news.unique_id.unique(), 0)
    seen = []
    while any(place < 30 for place in places.values()):
        parts = []
        for name, place in places.items():
            n = int(rng.integers(0, 8))
            parts.append(rows_of(news, name).iloc[place : place + n])
            places[name] = place + n
        rows = pd.concat(parts)
        if len(rows):
            seen.append(forecaster.update(rows.sample(frac=1, random_state=seed)))
    a, b = joined(pd.concat(seen), expected_steps)
    assert distance(a[[*VALUES, "y"]], b[[*VALUES, "y"]]) < 1e-5, f"seed {seed}"
    at_once = forecaster.predict(df=pd.concat([history, news]))
    for other in (whole.predict(), at_once):
        a, b = joined(forecaster.predict(), other)
        assert distance(a[VALUES], b[VALUES]) < 1e-5, f"seed {seed}"
    assert (forecaster._fleet.last == whole._fleet.last).all()
    for name, array in whole._fleet.state.items():
        assert distance(forecaster._fleet.state[name], array) < 1e-5, f"seed {seed}, state {name}"


def test_update_row_by_row_equals_one_pass(forecaster, history, news):
    stamps = sorted(news.ds.unique())
    for stamp in stamps:
        forecaster.update(news[news.ds == stamp])
    a, b = joined(forecaster.predict(), forecaster.predict(df=pd.concat([history, news])))
    assert distance(a[VALUES], b[VALUES]) < 1e-5


def test_update_gives_what_predict_had_said_one_step_before(forecaster, news):
    first = news.groupby("unique_id").head(1)
    said = forecaster.predict(h=1)
    told = forecaster.update(first)
    assert list(told.columns) == ["unique_id", "ds", *VALUES, "y"]
    pd.testing.assert_frame_equal(told[["unique_id", "ds", *VALUES]], said)
    np.testing.assert_array_equal(told.y, first.y.astype(np.float32))


def test_one_step_forecasts_of_update_do_not_know_the_row_they_forecast(forecaster, news):
    other = copy.deepcopy(forecaster)
    k = 17
    changed = news.assign(y=np.where(news.groupby("unique_id").cumcount() >= k, 1e6, news.y))
    a, b = forecaster.update(news), other.update(changed)
    before = a.groupby("unique_id").cumcount() <= k  # the forecast of row k saw the rows up to k − 1
    np.testing.assert_array_equal(a[before][VALUES], b[before][VALUES])  # exactly: equal calls
    assert not np.allclose(a[~before].TXL, b[~before].TXL)


def test_update_leaves_frame_and_weights(forecaster, news):
    frame = news.copy(deep=True)
    weights = {name: tensor.clone() for name, tensor in forecaster._model.state_dict().items()}
    forecaster.update(news)
    pd.testing.assert_frame_equal(news, frame)
    assert all((tensor == weights[name]).all() for name, tensor in forecaster._model.state_dict().items())


def test_update_leaves_series_that_it_does_not_name(forecaster, news):
    whole = copy.deepcopy(forecaster)
    forecaster.update(rows_of(news, "T2"))
    kept, before = forecaster.predict(ids=["T1", "T3"]), whole.predict(ids=["T1", "T3"])
    pd.testing.assert_frame_equal(kept, before)


OLD = {
    "the last row again": lambda news: news.assign(ds=news.ds - HOUR),
    "one series late": lambda news: news.assign(ds=news.ds.where(news.unique_id != "T2", news.ds - 5 * HOUR)),
    "before the series began": lambda news: pd.concat(
        [news, pd.DataFrame({"unique_id": ["T1"], "ds": [pd.Timestamp("2023-12-01")], "y": [0.0]})]
    ),
    "a row twice": lambda news: pd.concat([news, news.iloc[[3]]]),
}


@pytest.mark.parametrize("case", OLD)
def test_update_refuses_old_and_repeated_rows_whole(forecaster, news, case):
    before = digest(forecaster)
    rows = pd.concat([OLD[case](news), pd.DataFrame({"unique_id": ["new"], "ds": news.ds[:1], "y": [1.0]})])
    with pytest.raises(StampError):
        forecaster.update(rows)
    assert digest(forecaster) == before


def test_the_error_about_old_rows_counts_them(forecaster, news):
    with pytest.raises(StampError, match=r"'T2' starts 5 rows too early.*Nothing was changed. Give update only rows"):
        forecaster.update(OLD["one series late"](news))


BAD = {
    "off the grid": lambda news: news.assign(ds=news.ds + pd.Timedelta(minutes=7)),
    "no target column": lambda news: news.drop(columns="y"),
    "infinite": lambda news: news.assign(y=news.y.where(news.index != 4, np.inf)),
    "no rows": lambda news: news.iloc[:0],
    "integer times": lambda news: news.assign(ds=np.arange(len(news))),
}


@pytest.mark.parametrize("case", BAD)
def test_update_refuses_bad_frames_whole(forecaster, news, case):
    before = digest(forecaster)
    with pytest.raises(FrameError):
        forecaster.update(BAD[case](news))
    assert digest(forecaster) == before


def test_new_series_join_empty_and_speak_from_their_second_row_on(forecaster, news):
    new = pd.DataFrame({"unique_id": "T0", "ds": news.ds[:6], "y": [3.0, 4.0, 2.0, 5.0, 1.0, 3.0]})
    out = forecaster.update(pd.concat([news, new], ignore_index=True))
    told = rows_of(out, "T0")
    assert told.TXL.isna().tolist() == [True] + [False] * 5
    a = forecaster.predict(ids=["T0"])
    assert distance(a[VALUES], forecaster.predict(df=new)[VALUES]) < 1e-5
    everything = forecaster.predict()
    keys = list(zip(everything.unique_id, everything.ds, strict=True))
    assert keys == sorted(keys)  # sorted by id although it came last
    assert "T0" not in rows_of(everything, "T1").unique_id.tolist()


def test_missing_values_are_walked_as_rows(forecaster, history, news):
    missing = news.assign(y=np.nan)
    out = forecaster.update(missing.groupby("unique_id").head(3))
    assert out.y.isna().all()
    assert out.TXL.notna().all()
    a, b = joined(
        forecaster.predict(), forecaster.predict(df=pd.concat([history, missing.groupby("unique_id").head(3)]))
    )
    assert distance(a[VALUES], b[VALUES]) < 1e-5


def test_a_gap_is_walked_as_missing_rows(forecaster, history, news):
    reach = forecaster.config_.reach
    assert reach == 2 * 5 * 3 + 3
    skip, longer = 6, after(history, reach + 10)
    assert skip < reach
    n = longer.groupby("unique_id").cumcount()
    holes = copy.deepcopy(forecaster)
    out = forecaster.update(longer[n >= skip])
    filled = holes.update(longer.assign(y=longer.y.where(n >= skip)))
    assert len(out) == int((n >= skip).sum())  # rows of the gap are not told
    a, b = joined(out, filled[n >= skip])
    assert distance(a[VALUES], b[VALUES]) < 1e-5
    a, b = joined(forecaster.predict(), holes.predict())
    assert distance(a[VALUES], b[VALUES]) < 1e-5


@pytest.mark.parametrize("max_gap", [None, 4])
def test_a_gap_longer_than_max_gap_begins_the_series_anew(forecaster, history, max_gap):
    forecaster.set_params(max_gap=max_gap)
    limit = forecaster.config_.reach if max_gap is None else max_gap
    longer = after(history, limit + 9).fillna({"y": 1.0})
    n = longer.groupby("unique_id").cumcount()
    at_limit, beyond = longer[n >= limit], longer[n >= limit + 1]
    walked, anew = copy.deepcopy(forecaster), copy.deepcopy(forecaster)
    assert walked.update(at_limit).groupby("unique_id").TXL.first().notna().all()
    told = anew.update(beyond)
    assert told[told.groupby("unique_id").cumcount() == 0].TXL.isna().all()
    fresh = anew.predict(df=beyond)
    a, b = joined(anew.predict(), fresh)
    assert distance(a[VALUES], b[VALUES]) < 1e-5
    a, b = joined(walked.predict(), walked.predict(df=at_limit))
    assert distance(a[VALUES], b[VALUES]) > 1e-4


def test_a_long_gap_within_one_update_begins_the_series_anew(forecaster, history):
    reach = forecaster.config_.reach
    longer = after(history, reach + 25).fillna({"y": 1.0})  # a series that begins with a missing value says nothing yet
    n = longer.groupby("unique_id").cumcount()
    rows = longer[(n < 8) | (n >= 8 + reach + 1)]
    out = forecaster.update(rows)
    second = out.groupby("unique_id").cumcount() == 8
    assert out[second].TXL.isna().all()
    assert out[~second].TXL.notna().all()
    a, b = joined(forecaster.predict(), forecaster.predict(df=longer[n >= 8 + reach + 1]))
    assert distance(a[VALUES], b[VALUES]) < 1e-5


def test_gaps_in_the_rows_of_fit_follow_the_same_rule(tiny, history):
    model = TXLForecaster(**{**tiny, "max_epochs": 0})
    n = history.groupby("unique_id").cumcount()
    gap = history[(n < 30) | (n >= 80)]  # 50 rows, the reach is 33
    model.fit(gap, val_size=4)
    a, b = joined(model.predict(), model.predict(df=history[n >= 80]))
    assert distance(a[VALUES], b[VALUES]) < 1e-5
    assert any("longer than max_gap" in line for line in model.cleaned_)


# ------------------------------------------------------------------------------------- rows of another kind than fitted


def test_ids_of_another_type_are_refused_and_cannot_spoil_the_forecaster(forecaster, news):
    """Series 7 beside series 'T1' can never be sorted or written again."""
    before = digest(forecaster)
    rows = pd.DataFrame({"unique_id": [7, 7], "ds": news.ds[:2].to_numpy(), "y": [1.0, 2.0]})
    with pytest.raises(FrameError, match="id column 'unique_id'"):
        forecaster.update(rows)
    assert digest(forecaster) == before
    forecaster.predict()


def test_naive_rows_do_not_continue_a_series_with_a_time_zone(tiny, history, news):
    aware = history.assign(ds=history.ds.dt.tz_localize("Asia/Tokyo"))
    model = TXLForecaster(**{**tiny, "max_epochs": 0}).fit(aware, val_size=4)
    with pytest.raises(FrameError, match="Asia/Tokyo"):
        model.update(news)  # read as UTC, these would be nine hours late


def test_aware_rows_do_not_continue_a_naive_series(forecaster, news):
    west = news.assign(ds=news.ds.dt.tz_localize("America/New_York"))
    with pytest.raises(FrameError, match="America/New_York"):
        forecaster.update(west)  # read as wall time, these would be five hours late


def test_rows_in_another_zone_continue_at_the_same_instants(tiny, history, news):
    zones = ("Europe/Berlin", "Asia/Tokyo")
    model = TXLForecaster(**{**tiny, "max_epochs": 0})
    model.fit(history.assign(ds=history.ds.dt.tz_localize("UTC").dt.tz_convert(zones[0])), val_size=4)
    a, b = model, copy.deepcopy(model)
    a.update(news.assign(ds=news.ds.dt.tz_localize("UTC").dt.tz_convert(zones[0])))
    b.update(news.assign(ds=news.ds.dt.tz_localize("UTC").dt.tz_convert(zones[1])))
    pd.testing.assert_frame_equal(a.predict(), b.predict())


# -------------------------------------------------------------------------------------------------------- deterministic


def test_deterministic_numbers_do_not_depend_on_other_series_to_the_bit(forecaster, make_rows):
    """T3: 70 lanes, more than the lane width, alone and together, in predict and in update."""
    forecaster.set_params(deterministic=True)
    many = make_rows(70, 40, seed=3)
    many["unique_id"] = "n" + many.unique_id  # none of them was fitted
    news = after(many, 3)
    together = forecaster.predict(df=many)
    fleet = copy.deepcopy(forecaster)
    fleet.update(many)
    told = fleet.update(news)
    for picked in (["nT1"], ["nT2", "nT70"], [f"nT{i}" for i in range(1, 65)], [f"nT{i}" for i in range(3, 68)]):
        rows, later = many[many.unique_id.isin(picked)], news[news.unique_id.isin(picked)]
        alone = forecaster.predict(df=rows)
        expected = together[together.unique_id.isin(picked)].reset_index(drop=True)
        pd.testing.assert_frame_equal(alone, expected, check_exact=True)
        few = copy.deepcopy(forecaster)
        few.update(rows)
        expected = told[told.unique_id.isin(picked)].reset_index(drop=True)
        pd.testing.assert_frame_equal(few.update(later), expected, check_exact=True)


def test_other_series_move_no_number_beyond_rounding(fitted, make_rows):
    many = make_rows(70, 40, seed=3)
    many["unique_id"] = "n" + many.unique_id
    together = fitted.predict(df=many)
    for picked in (["nT1"], ["nT2", "nT70"], [f"nT{i}" for i in range(3, 68)]):
        alone = fitted.predict(df=many[many.unique_id.isin(picked)])
        expected = together[together.unique_id.isin(picked)]
        assert distance(alone[VALUES], expected[VALUES]) < 1e-5


def test_a_lane_of_absurd_values_leaves_the_others(forecaster, make_rows, news):
    """T4: the largest finite values in one series."""
    before = forecaster.predict(df=make_rows(4, 40, seed=3)).query("unique_id != 'T4'")
    rows = make_rows(4, 40, seed=3)
    rows.loc[(rows.unique_id == "T4") & (rows.index % 2 == 0), "y"] = 3e38
    after_ = forecaster.predict(df=rows).query("unique_id != 'T4'")
    np.testing.assert_array_equal(before[VALUES], after_[VALUES])
