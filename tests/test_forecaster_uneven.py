"""The forecaster of uneven time, from a frame to forecasts at asked times."""

import copy

import numpy as np
import pandas as pd
import pytest

from txl_ts import TXLForecaster
from txl_ts.errors import ExportError, FileFormatError, ParameterError, StampError
from txl_ts.training import Trainer

PARAMS = {
    "h": 3,
    "freq": None,
    "quantiles": (0.1, 0.5, 0.9),
    "patch_len": 3,
    "mem_len": 5,
    "lookback": 4,
    "half_life": 16,
    "d_model": 8,
    "n_layers": 2,
    "n_heads": 2,
    "d_ff": 10,
    "batch_size": 8,
    "segment_len": 8,
    "max_epochs": 2,
    "learning_rate": 1e-2,
}
N_ROWS, N_LATER = 90, 12


def make_rows(n_rows=N_ROWS, *, seed=0, unit="us", zone="UTC", factor=1):
    rng = np.random.default_rng(seed)
    parts = []
    for i in range(4):
        n = n_rows + 5 * i
        minutes = np.cumsum(np.ceil(60 * rng.exponential(1, n)).astype(np.int64))
        y = 2 * np.sin(2 * np.pi * minutes / 1440 + i) + rng.normal(0, 0.1, n) + i
        y[rng.random(n) < 0.05] = np.nan
        ds = pd.DatetimeIndex(
            pd.Timestamp("2024-01-01") + pd.to_timedelta(factor * minutes, unit="min"), tz=zone
        ).as_unit(unit)
        temperature = np.cos(2 * np.pi * minutes / 1440)
        parts.append(pd.DataFrame({"unique_id": f"s{i}", "ds": ds, "y": y, "temperature": temperature}))
    return pd.concat(parts, ignore_index=True)


def cut(df, n_later=N_LATER):
    """The last rows of each series, and all others."""
    later = df.groupby("unique_id").cumcount(ascending=False) < n_later
    return df[~later].reset_index(drop=True), df[later].reset_index(drop=True)


def fit(df, **params):
    with pytest.MonkeyPatch.context() as patch:
        # Its last epoch is kept, whatever it is worth: where the linear path alone is chosen, memories prove nothing.
        patch.setattr(Trainer, "validation_loss", lambda trainer: 1.0 / (1 + trainer.progress.history.epochs))
        return TXLForecaster(**PARAMS | params).fit(df, val_size=12)


@pytest.fixture(scope="module")
def rows():
    return make_rows()[["unique_id", "ds", "y"]]


@pytest.fixture(scope="module")
def fitted(rows):
    return fit(cut(rows)[0])


@pytest.fixture
def model(fitted):
    return copy.deepcopy(fitted)


def values(frame):
    return frame.filter(like="TXL").to_numpy()


def apart(a, b):
    assert (np.isnan(a) == np.isnan(b)).all()
    return np.nanmax(np.abs(a - b))


def test_a_forecast_without_times_is_for_median_steps(fitted, rows):
    forecast = fitted.predict(h=7)  # any number, and no median is fed forward
    last = cut(rows)[0].groupby("unique_id")["ds"].max()
    steps = forecast.groupby("unique_id")["ds"].apply(lambda ds: ds.diff().dropna().unique().tolist())
    unit = pd.Timedelta(fitted.params_["freq"].removeprefix("~"))
    assert steps.tolist() == [[unit]] * 4
    assert (forecast.groupby("unique_id")["ds"].min() - last == unit).all()
    assert forecast["TXL"].notna().all()
    asked = fitted.predict(futr_df=fitted.make_future_frame(7))
    pd.testing.assert_frame_equal(asked, forecast)


def test_times_that_are_asked_for_are_answered_each_for_itself(fitted, rows):
    """Series may ask for different numbers of times, in any order; what else is asked changes no answer."""
    last = cut(rows)[0].groupby("unique_id")["ds"].max()
    minutes = {"s2": [1, 250, 13], "s0": [600]}
    asked = pd.DataFrame(
        [(name, last[name] + pd.Timedelta(minutes=m)) for name, some in minutes.items() for m in some],
        columns=["unique_id", "ds"],
    )
    answer = fitted.predict(futr_df=asked)
    assert answer["unique_id"].tolist() == ["s0", "s2", "s2", "s2"]
    assert ((answer["ds"] - answer["unique_id"].map(last)) / pd.Timedelta("1min")).tolist() == [600, 1, 13, 250]
    alone = fitted.predict(futr_df=asked.iloc[[1]])
    # Sums over 3 gaps instead of one, in float64, then rounded to float32.
    assert apart(values(alone), values(answer)[[3]]) < 1e-5
    assert abs(answer["TXL"].iloc[3] - answer["TXL"].iloc[1]) > 1e-3


def test_update_row_by_row_equals_update_at_once_and_cross_validation(model, rows):
    later = cut(rows)[1]
    other = copy.deepcopy(model)
    whole = model.update(later)
    parts = [other.update(part) for _, part in later.groupby(later.groupby("unique_id").cumcount())]
    split = pd.concat(parts).sort_values(["unique_id", "ds"], ignore_index=True)
    pd.testing.assert_frame_equal(split[["unique_id", "ds", "y"]], whole[["unique_id", "ds", "y"]])
    assert apart(values(split), values(whole)) < 1e-4  # of values of size 5, in float32
    assert apart(values(other.predict()), values(model.predict())) < 1e-4
    walked = model.cross_validation(rows, h=1, n_windows=N_LATER, use_fitted=True)
    assert walked["ds"].tolist() == whole["ds"].tolist()
    assert apart(values(walked), values(whole)) < 1e-4


def test_forecasts_of_a_backtest_are_for_the_true_times_of_the_next_rows(fitted, rows):
    walked = fitted.cross_validation(rows, n_windows=1, use_fitted=True)
    assert len(walked) == 4 * PARAMS["h"]
    shown = walked[walked["unique_id"] == "s1"]
    tail = rows[rows["unique_id"] == "s1"].tail(PARAMS["h"])
    assert shown["ds"].tolist() == tail["ds"].tolist()
    history = rows.drop(rows.groupby("unique_id").tail(PARAMS["h"]).index)
    asked = fitted.predict(df=history, futr_df=tail[["unique_id", "ds"]])
    assert apart(values(asked), values(shown)) < 1e-4


def test_a_refit_backtest_runs(rows):
    model = TXLForecaster(**PARAMS | {"max_epochs": 1})
    errors = model.cross_validation(rows, n_windows=4, step_size=2, refit=2, output="metrics")
    assert errors["mae"].notna().all()


def test_predict_of_other_rows_starts_empty_or_goes_on(fitted, rows):
    before, later = cut(rows)
    fresh = fitted.predict(df=before)
    assert apart(values(fresh), values(fitted.predict())) < 1e-4
    going_on = fitted.predict(df=later, start="fitted")
    updated = copy.deepcopy(fitted)
    updated.update(later)
    assert apart(values(going_on), values(updated.predict())) < 1e-4
    assert apart(values(fitted.predict(df=later)), values(going_on)) > 1e-3


def test_new_series_start_empty_and_go_on(model, rows):
    late = make_rows(20, seed=5)[["unique_id", "ds", "y"]].replace({"s0": "n0", "s1": "n1", "s2": "n2", "s3": "n3"})
    first, second = cut(late, 5)
    model.update(first)
    model.update(second)
    whole = model.predict(df=late)
    assert apart(values(model.predict(ids=["n0", "n1", "n2", "n3"])), values(whole)) < 1e-4


def test_a_file_gives_the_same_forecasts_and_goes_on(model, rows, tmp_path):
    later = cut(rows)[1]
    model.save(tmp_path / "model.txl")
    loaded = TXLForecaster.load(tmp_path / "model.txl")
    pd.testing.assert_frame_equal(loaded.predict(), model.predict())
    assert loaded.params_ == model.params_
    pd.testing.assert_frame_equal(loaded.update(later), model.update(later))
    pd.testing.assert_frame_equal(loaded.predict(), model.predict())


def test_fitted_values_are_one_step_ahead_at_the_true_times(fitted, rows):
    before = cut(rows)[0]
    said = fitted.fitted_values()
    assert said["ds"].tolist() == before["ds"].tolist()
    pd.testing.assert_frame_equal(fitted.fitted_values(before), said)
    known = said.groupby("unique_id").cumcount() > 0
    assert said.loc[~known, "TXL"].isna().all()


def test_sampled_paths_come_at_median_steps(fitted):
    paths = fitted.sample_paths(4, n_paths=5)
    assert len(paths) == 4 * 5 * 4
    assert paths["TXL"].notna().all()
    through = fitted.predict(h=4, n_paths=20)
    assert through["TXL"].notna().all()


@pytest.mark.parametrize(("unit", "zone"), [("s", "UTC"), ("ms", "UTC"), ("ns", "UTC"), ("us", None)])
def test_the_unit_of_the_stamps_changes_no_bit(rows, fitted, unit, zone):
    other = make_rows(unit=unit, zone=zone)[["unique_id", "ds", "y"]]
    again = fit(cut(other)[0])
    assert np.array_equal(values(again.predict()), values(fitted.predict()), equal_nan=True)
    assert again.history_.train == fitted.history_.train


def test_integer_time_gives_the_same_numbers(rows, fitted):
    minutes = (rows["ds"] - pd.Timestamp("2023-05-05", tz="UTC")) // pd.Timedelta("1min")
    again = fit(cut(rows.assign(ds=minutes))[0])
    assert np.array_equal(values(again.predict()), values(fitted.predict()), equal_nan=True)


def test_polars_and_pyarrow_come_back_with_the_same_numbers(frame, fitted, rows):
    before = cut(rows)[0]
    native = frame({name: before[name].to_list() for name in before})
    again = fit(native)
    out = again.predict()
    assert type(out) is type(native)
    column = out["TXL"].to_numpy() if hasattr(out["TXL"], "to_numpy") else np.array(out["TXL"])
    assert np.array_equal(column, fitted.predict()["TXL"].to_numpy())


def test_columns_beside_the_target_and_the_calendar_go_with_uneven_time():
    df = make_rows()
    before, later = cut(df)
    model = TXLForecaster(**PARAMS | {"calendar": ["hour"]}).fit(before, futr_cols=["temperature"], val_size=12)
    asked = later.groupby("unique_id").head(2)[["unique_id", "ds", "temperature"]]
    forecast = model.predict(futr_df=asked)
    assert len(forecast) == len(asked)
    other = model.predict(futr_df=asked.assign(temperature=asked["temperature"] + 1))
    assert apart(values(other), values(forecast)) > 1e-4
    with pytest.raises(ValueError, match="lacks 1 cell"):
        model.predict(futr_df=asked.assign(temperature=asked["temperature"].where(asked.index != asked.index[0])))
    assert len(model.update(later)) == len(later)
    hist = TXLForecaster(**PARAMS).fit(before, hist_cols=["temperature"], val_size=12)
    assert hist.update(later)["TXL"].notna().any()
    assert hist.predict(h=9)["TXL"].notna().all()


# --------------------------------------------------------------------------------------------------------- what matters


def test_time_lowers_the_error_where_it_carries_the_signal():
    """A decay after each jump: rows alone cannot tell how far it went."""
    rng = np.random.default_rng(1)
    parts = []
    for i in range(6):
        hours = np.cumsum(rng.choice([0.2, 1.0, 6.0], 150))
        level, y = 0.0, np.empty(150)
        for k, gap in enumerate(np.diff(hours, prepend=0)):
            level = level * np.exp(-gap / 3)
            if rng.random() < 0.2:
                level += rng.choice([4.0, 8.0])
            y[k] = level + rng.normal(0, 0.05)
        parts.append(pd.DataFrame({"unique_id": i, "ds": (hours * 10).round().astype(np.int64), "y": y}))
    df = pd.concat(parts, ignore_index=True)
    rows_only = df.assign(ds=df.groupby("unique_id").cumcount())
    params = PARAMS | {"h": 1, "max_epochs": 8, "d_model": 16, "quantiles": (0.5,)}
    errors = {}
    for name, frame, freq in (("time", df, None), ("rows", rows_only, 1)):
        model = TXLForecaster(**params | {"freq": freq, "stride": 1}).fit(cut(frame, 40)[0], val_size=20)
        errors[name] = model.cross_validation(frame, n_windows=40, use_fitted=True, output="metrics")["mae"].mean()
    assert errors["time"] < 0.8 * errors["rows"]


def test_a_gap_of_more_than_max_gap_begins_a_series_anew(rows):
    before, later = cut(rows)
    model = fit(before, max_gap=50)
    far = later.assign(ds=later["ds"] + pd.Timedelta("90D"))
    near = copy.deepcopy(model)
    before_first = model.update(far).groupby("unique_id").head(1)
    assert before_first["TXL"].isna().all()
    assert apart(values(model.predict()), values(model.predict(df=far))) < 1e-4
    assert near.update(later).groupby("unique_id").head(1)["TXL"].notna().all()


def test_by_default_no_gap_begins_a_series_anew(model, rows):
    later = cut(rows)[1]
    far = later.assign(ds=later["ds"] + pd.Timedelta("900D"))
    assert model.update(far)["TXL"].notna().all()


# ------------------------------------------------------------------------------------------------------------- refusals


def test_old_rows_are_refused_whole(model, rows):
    before, later = cut(rows)
    kept = model.predict()
    for bad in (rows, before.tail(1), pd.concat([later, before.tail(1)])):
        with pytest.raises(StampError, match=r"rows already taken in: .* Nothing was changed"):
            model.update(bad)
    pd.testing.assert_frame_equal(model.predict(), kept)
    with pytest.raises(StampError, match="repeats"):
        model.update(pd.concat([later, later.head(1)]))
    pd.testing.assert_frame_equal(model.predict(), kept)


def test_asked_times_that_cannot_be_are_refused(fitted, rows):
    before, later = cut(rows)
    asked = later[["unique_id", "ds"]]
    for bad, message in (
        (before[["unique_id", "ds"]].tail(2), r"futr_df asks for times at or before the last row: 2 rows, first 's3'"),
        (pd.concat([asked, asked.head(1)]), "futr_df repeats times: 1 row, first 's0'"),
        (asked.assign(ds=asked["ds"].dt.tz_localize(None)), "holds times without a zone"),
    ):
        with pytest.raises(StampError, match=message):
            fitted.predict(futr_df=bad)
    with pytest.raises(ParameterError, match="asks for no time of any known series"):
        fitted.predict(futr_df=asked.assign(unique_id="other"))
    with pytest.raises(ParameterError, match="leave h and n_paths out"):
        fitted.predict(h=2, futr_df=asked)


def test_what_does_not_go_with_uneven_time_is_refused_by_name(fitted, rows, tmp_path):
    with pytest.raises(ParameterError, match=r"calibrate\(\) counts misses by step ahead"):
        fitted.calibrate()
    with pytest.raises(ParameterError, match=r"effective_context\(\) cuts the context by rows"):
        fitted.effective_context()
    for call in ("export_onnx", "export_state"):
        with pytest.raises(ExportError, match=rf"{call} cannot work yet for uneven time \(freq=None\)"):
            getattr(fitted, call)(tmp_path / "out")
    with pytest.raises(ExportError, match="live cannot work yet for uneven time"):
        fitted.live()
    with pytest.raises(ParameterError, match="stride=2 does not go with uneven time"):
        TXLForecaster(**PARAMS | {"stride": 2}).fit(rows)
    wide = rows.assign(z=rows["y"])
    with pytest.raises(ParameterError, match="uneven time\\) takes one target column"):
        TXLForecaster(**PARAMS).fit(wide, target_col=["y", "z"])


def test_a_file_whose_roles_do_not_fit_its_model_is_refused(model, tmp_path):
    model._roles = type(model._roles)()
    model.save(tmp_path / "model.txl")
    with pytest.raises(FileFormatError):
        TXLForecaster.load(tmp_path / "model.txl")


def test_the_picture_of_uneven_rows_is_drawn(fitted, rows):
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    figure = fitted.plot(rows, ids=["s0"])
    assert len(figure.axes) == 1
