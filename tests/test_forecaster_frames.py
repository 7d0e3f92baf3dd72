"""Frames in, frames out: the library, the order and the names of a frame change no number."""

import copy

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_ts import TXLForecaster
from txl_ts.errors import (
    CleanedDataWarning,
    ColumnError,
    ParameterError,
    StampError,
    UnusedColumnsWarning,
)

VALUES = ["TXL", "TXL_ql0.1", "TXL_ql0.8"]


def columns(rows, **names):
    """A pandas frame as plain columns, as the ``frame`` fixture takes them."""
    return {names.get(c, c): rows[c].to_list() if rows[c].dtype == "str" else rows[c].to_numpy() for c in rows}


def read(frame):
    """Any frame as a dict of lists."""
    return {name: column.to_list() for name, column in nw.from_native(frame, eager_only=True).to_dict().items()}


def bits(frame, names=VALUES):
    return np.array([read(frame)[name] for name in names], np.float32).tobytes()


@pytest.fixture(scope="module")
def rows(make_rows):
    return make_rows()


@pytest.fixture(scope="module")
def linear(tiny):
    """Parameters of a forecaster that fits in a tenth of a second: the linear path alone."""
    return {**tiny, "max_epochs": 0}


@pytest.fixture(scope="module")
def once(tiny, rows):
    """One epoch on pandas."""
    return TXLForecaster(**{**tiny, "max_epochs": 1}).fit(rows)


# ----------------------------------------------------------------------------------------------------------- libraries


def test_every_library_gives_the_same_numbers_and_gets_its_own_kind_back(frame, once, tiny, rows):
    df = frame(columns(rows))
    model = TXLForecaster(**{**tiny, "max_epochs": 1}).fit(df)
    out = model.predict()
    assert type(out) is type(df)
    assert bits(out) == bits(once.predict())
    assert read(out)["unique_id"] == read(once.predict())["unique_id"]
    assert read(out)["ds"] == read(once.predict())["ds"]
    assert nw.from_native(out).schema["ds"] == nw.from_native(df).schema["ds"]
    assert nw.from_native(out).schema["unique_id"] == nw.from_native(df).schema["unique_id"]


def test_update_and_backtest_give_the_kind_that_they_got(frame, forecaster, rows):
    later = rows.assign(ds=rows.ds + pd.Timedelta(days=30))
    df = frame(columns(later))
    pandas = copy.deepcopy(forecaster)
    out, expected = forecaster.update(df), pandas.update(later)
    assert type(out) is type(df)
    assert bits(out, [*VALUES, "y"]) == bits(expected, [*VALUES, "y"])
    assert isinstance(forecaster.predict(), pd.DataFrame)  # as it was fitted
    assert type(forecaster.predict(df=df)) is type(df)
    for output in ("frame", "metrics"):
        walked = forecaster.cross_validation(df, n_windows=2, use_fitted=True, output=output)
        assert type(walked) is type(df)
    expected = forecaster.cross_validation(later, n_windows=2, use_fitted=True)
    walked = forecaster.cross_validation(df, n_windows=2, use_fitted=True)
    assert bits(walked) == bits(expected)
    assert read(walked)["cutoff"] == read(expected)["cutoff"]


def test_frames_stay_as_they_were(frame, linear, rows):
    df = frame(columns(rows))
    before = copy.deepcopy(read(df))
    model = TXLForecaster(**linear).fit(df)
    model.predict(df=df)
    model.cross_validation(df, n_windows=2)
    after = read(df)
    assert list(after) == list(before)
    for name in before:
        np.testing.assert_array_equal(np.array(after[name]), np.array(before[name]))


@settings(max_examples=25)
@given(
    st.lists(st.one_of(st.floats(-1e6, 1e6, width=32), st.just(float("nan"))), min_size=1, max_size=40),
    st.sampled_from([pl.DataFrame, "pyarrow"]),
)
def test_any_values_give_the_same_bits_in_every_library(fitted, values, library):
    make = pytest.importorskip("pyarrow", reason="pyarrow is not installed").table if library == "pyarrow" else library
    values = [0.5, *values]  # a series without any value is an error, told elsewhere
    ds = np.datetime64("2024-01-01T00", "us") + np.arange(len(values)) * np.timedelta64(3600 * 10**6, "us")
    data = {"unique_id": ["a"] * len(values), "ds": ds, "y": np.array(values)}
    assert bits(fitted.predict(df=make(data))) == bits(fitted.predict(df=pd.DataFrame(data)))


# -------------------------------------------------------------------------------------------------------------- labels


def test_order_of_rows_and_columns_changes_nothing(linear, rows):
    """T5: joined on (id, time), a fit on the same rows in another order is the same fit."""
    expected = TXLForecaster(**linear).fit(rows).predict()
    shuffled = rows.sample(frac=1, random_state=0)[["y", "ds", "unique_id"]]
    out = TXLForecaster(**linear).fit(shuffled).predict()
    pd.testing.assert_frame_equal(out, expected)


def test_one_epoch_does_not_see_the_order_of_rows(once, tiny, rows):
    out = TXLForecaster(**{**tiny, "max_epochs": 1}).fit(rows.sample(frac=1, random_state=1)).predict()
    pd.testing.assert_frame_equal(out, once.predict())


@pytest.mark.parametrize("names", [{"T1": "T1", "T2": "T11", "T3": "T2"}, {"T1": 1, "T2": 2, "T3": 11}])
def test_ids_that_sort_otherwise_as_text_keep_their_own_numbers(fitted, rows, names):
    """T1, T11, T2 as text and 1, 2, 11 as integers: each series' forecast follows its rows, not its place."""
    renamed = rows.assign(unique_id=rows.unique_id.map(names))
    out, expected = fitted.predict(df=renamed), fitted.predict(df=rows)
    assert out.unique_id.to_list() == sorted(out.unique_id)
    for old, new in names.items():
        a = out[out.unique_id == new][VALUES].to_numpy()
        b = expected[expected.unique_id == old][VALUES].to_numpy()
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(b).max())


def test_categorical_ids_come_back_categorical(linear, rows):
    df = rows.assign(unique_id=rows.unique_id.astype("category"))
    out = TXLForecaster(**linear).fit(df).predict()
    assert out.unique_id.dtype == "category"
    plain = TXLForecaster(**linear).fit(rows).predict()
    pd.testing.assert_frame_equal(out.astype({"unique_id": "str"}), plain.astype({"unique_id": "str"}))


def test_columns_may_have_other_names(frame, linear, rows):
    names = {"unique_id": "meter", "ds": "at", "y": "kWh"}
    model = TXLForecaster(**linear)
    model.fit(frame(columns(rows, **names)), id_col="meter", time_col="at", target_col="kWh")
    out = read(model.predict())
    assert list(out) == ["meter", "at", *VALUES]
    plain = TXLForecaster(**linear).fit(rows)
    assert bits(model.predict()) == bits(plain.predict())
    later = rows.assign(ds=rows.ds + pd.Timedelta(days=30))
    assert list(read(model.update(frame(columns(later, **names))))) == ["meter", "at", *VALUES, "kWh"]


def test_one_series_needs_no_id_column(frame, linear, rows):
    one = rows[rows.unique_id == "T2"]
    df = frame(columns(one.drop(columns="unique_id")))
    model = TXLForecaster(**linear).fit(df, id_col=None)
    out = model.predict()
    assert list(read(out)) == ["ds", *VALUES]
    assert bits(out) == bits(TXLForecaster(**linear).fit(one).predict())
    assert list(read(model.predict(df=df))) == ["ds", *VALUES]
    later = frame(columns(one.drop(columns="unique_id").assign(ds=one.ds + pd.Timedelta(days=30))))
    assert list(read(model.update(later))) == ["ds", *VALUES, "y"]
    walked = model.cross_validation(df, n_windows=2, id_col=None)
    assert list(read(walked)) == ["ds", "cutoff", *VALUES, "y"]


def test_columns_without_a_role_are_named_once(linear, rows):

    with pytest.warns(UnusedColumnsWarning, match="price") as caught:
        TXLForecaster(**linear).fit(rows.assign(price=1.0))
    assert len(caught) == 1


def test_skipped_series_are_listed_and_the_others_are_forecast(linear, rows):

    bad = rows.assign(y=rows.y.where(rows.unique_id != "T2"))
    with pytest.raises(ColumnError, match="'T2'"):
        TXLForecaster(**linear).fit(bad)
    model = TXLForecaster(**linear, on_bad_series="skip")
    with pytest.warns(CleanedDataWarning, match="1 series was skipped"):
        model.fit(bad)
    assert set(model.predict().unique_id) == {"T1", "T3"}
    ((name, reason),) = model.skipped_
    assert name == "T2"
    assert "no value at all" in reason
    assert any("skipped" in line for line in model.cleaned_)


# --------------------------------------------------------------------------------------------------------------- times


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_the_unit_of_time_changes_no_bit(tiny, once, rows, unit):
    """T6: the epoch never meets float32."""
    df = rows.assign(ds=rows.ds.dt.as_unit(unit))
    out = TXLForecaster(**{**tiny, "max_epochs": 0}).fit(df)
    expected = TXLForecaster(**{**tiny, "max_epochs": 0}).fit(rows)
    assert bits(out.predict()) == bits(expected.predict())
    assert out.predict().ds.dtype == df.ds.dtype
    assert bits(once.predict(df=df)) == bits(once.predict(df=rows))


@pytest.mark.parametrize("start", ["1970-01-01", "1931-03-01", "2200-06-01"])
def test_the_origin_of_time_changes_no_bit(fitted, rows, start):
    shifted = rows.assign(ds=rows.ds - pd.Timestamp("2024-01-01") + pd.Timestamp(start))
    assert bits(fitted.predict(df=shifted)) == bits(fitted.predict(df=rows))


def test_integer_times_count_in_their_step(linear, rows):
    n = rows.groupby("unique_id").cumcount()
    df = rows.assign(ds=1000 + 5 * n)
    out = TXLForecaster(**{**linear, "freq": 5}).fit(df).predict()
    assert bits(out) == bits(TXLForecaster(**linear).fit(rows).predict())
    first = out.groupby("unique_id").ds.first()
    assert (first == df.groupby("unique_id").ds.max() + 5).all()


def test_auto_finds_the_step_from_all_series_and_days_of_23_hours_are_kept(linear):
    ds = pd.date_range("2024-03-29", periods=60, freq="h", tz="Europe/Berlin")  # 31 March: no 02:00
    y = np.sin(np.arange(60) / 4)
    df = pd.DataFrame({"unique_id": "a", "ds": ds, "y": y})
    model = TXLForecaster(**{**linear, "freq": "auto"}).fit(df[df.ds < "2024-03-31 01:00+01:00"], val_size=5)
    assert model.params_["freq"] == "1h"
    out = model.predict()
    assert [str(t) for t in out.ds] == [
        "2024-03-31 01:00:00+01:00",
        "2024-03-31 03:00:00+02:00",
        "2024-03-31 04:00:00+02:00",
    ]


def test_stamps_off_the_grid_are_moved_on_request_and_counted(linear, rows):

    off = rows.assign(ds=rows.ds + pd.to_timedelta(np.where(rows.index == 50, 7, 0), unit="min"))
    with pytest.raises(StampError, match="off the 1-hour grid"):
        TXLForecaster(**linear).fit(off)
    model = TXLForecaster(**linear, align="nearest")
    with pytest.warns(CleanedDataWarning, match="1 stamp was moved"):
        model.fit(off)
    assert bits(model.predict()) == bits(TXLForecaster(**linear).fit(rows).predict())


def test_a_scaled_and_shifted_series_is_forecast_scaled_and_shifted(fitted, rows):
    """T6: the running scaler makes the forecaster blind to unit and zero."""
    plain = fitted.predict(df=rows)
    for a, b in ((1000.0, 0.0), (0.01, 5.0), (3.0, -200.0)):
        moved = fitted.predict(df=rows.assign(y=a * rows.y + b))
        back = (moved[VALUES].to_numpy(np.float64) - b) / a
        error = np.abs(back - plain[VALUES]).to_numpy().max() / np.abs(plain[VALUES]).to_numpy().max()
        # 200 above ±3 costs two of float32's seven digits.
        assert error < 1e-4, (a, b)


# ----------------------------------------------------------------------------------------------------- level, quantiles


def test_columns_are_named_as_the_long_frame_libraries_do(fitted):
    assert list(fitted.predict().columns)[2:] == VALUES
    assert list(fitted.predict(level=[40, 60]).columns)[2:] == [
        "TXL",
        "TXL-lo-60",
        "TXL-lo-40",
        "TXL-hi-40",
        "TXL-hi-60",
    ]
    assert list(fitted.predict(quantiles=[0.25, 0.5]).columns)[2:] == ["TXL", "TXL_ql0.25", "TXL_ql0.5"]
    assert list(fitted.predict(quantiles=[]).columns)[2:] == ["TXL"]


def test_trained_quantiles_are_given_to_the_bit_and_those_between_linearly(fitted):
    trained = fitted.predict()
    out = fitted.predict(quantiles=[0.1, 0.2, 0.5, 0.65, 0.8])
    for q in ("0.1", "0.8"):
        np.testing.assert_array_equal(out[f"TXL_ql{q}"], trained[f"TXL_ql{q}"])
    np.testing.assert_array_equal(out["TXL_ql0.5"], trained["TXL"])
    np.testing.assert_allclose(out["TXL_ql0.2"], 0.75 * trained["TXL_ql0.1"] + 0.25 * trained["TXL"], rtol=1e-6)
    np.testing.assert_allclose(out["TXL_ql0.65"], 0.5 * trained["TXL"] + 0.5 * trained["TXL_ql0.8"], rtol=1e-6)


def test_a_level_is_its_two_quantiles(fitted):
    level, quantiles = fitted.predict(level=[60]), fitted.predict(quantiles=[0.2, 0.8])
    np.testing.assert_array_equal(level["TXL-lo-60"], quantiles["TXL_ql0.2"])
    np.testing.assert_array_equal(level["TXL-hi-60"], quantiles["TXL_ql0.8"])


def test_quantiles_never_cross(fitted, make_rows):
    rng = np.random.default_rng(0)
    wild = make_rows(6, 60, seed=4)
    wild["y"] *= 10 ** rng.uniform(-3, 3, len(wild))
    levels = np.round(np.linspace(0.1, 0.8, 15), 3)
    out = fitted.predict(df=wild, quantiles=list(levels))
    steps = np.diff(out[[f"TXL_ql{q:g}" for q in levels]].to_numpy(np.float64), axis=1)
    assert (steps >= -1e-6 * np.abs(out.TXL.to_numpy(np.float64))[:, None]).all()  # the last bit of an interpolation
    trained = fitted.predict(df=wild)
    assert (trained["TXL_ql0.1"] < trained["TXL"]).all()
    assert (trained["TXL"] < trained["TXL_ql0.8"]).all()


def test_the_median_alone_may_be_trained(linear, rows):
    model = TXLForecaster(**{**linear, "quantiles": (0.5,)}).fit(rows)
    assert list(model.predict().columns) == ["unique_id", "ds", "TXL"]
    with pytest.raises(ParameterError, match=r"quantile 0.1 lies outside the trained ones, 0.5 to 0.5"):
        model.predict(level=[80])


ERRORS = {
    "both": ({"level": [80], "quantiles": [0.1]}, r"level=\[80\] and quantiles=\[0.1\] were both given. Give one"),
    "level outside": ({"level": [95]}, "quantile 0.025 lies outside the trained ones, 0.1 to 0.8.*Fit with quantiles"),
    "upper end outside": ({"level": [80]}, "quantile 0.9 lies outside the trained ones"),
    "quantile outside": ({"quantiles": [0.05]}, "quantile 0.05 lies outside the trained ones"),
    "no percentage": ({"level": [0]}, r"level=0.0 must lie in \[1, 100\) percent"),
    "hundred": ({"level": [100]}, r"level=100.0 must lie in \[1, 100\) percent"),
    "share": ({"level": [0.8]}, r"level=0.8 must lie in \[1, 100\) percent"),
    "number": ({"level": 80}, r"level=80 must be a list, such as level=\[80\]"),
    "numpy number": ({"level": np.int64(80)}, "must be a list"),
    "text": ({"quantiles": "0.1"}, "must be a list"),
    "no number": ({"quantiles": ["x"]}, "quantiles"),
    "text in level": ({"level": ["wide"]}, "level"),
    "nan": ({"quantiles": [float("nan")]}, "nan"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_wrong_levels_and_quantiles_are_refused_with_the_way_out(fitted, case):
    arguments, text = ERRORS[case]
    with pytest.raises(ParameterError, match=text):
        fitted.predict(**arguments)
