"""Features of the stamp: the wall clock of the zone, on days of 23, 24 and 25 hours."""

import sys
import types

import numpy as np
import pandas as pd
import pytest

from txl_ts import TXLForecaster
from txl_ts.errors import MissingExtraError, ParameterError
from txl_ts.frames import calendar_features, check_calendar, parse_freq

MELBOURNE = "Australia/Melbourne"
# In 2012 the clocks of Melbourne went back on 1 April at 03:00 and forward on 7 October at 02:00.
CHANGES = {"2012-04-01": 25, "2012-10-07": 23}
VALUES = ["TXL", "TXL_ql0.1", "TXL_ql0.8"]


def stamps_of(index):
    return index.tz_convert("UTC").as_unit("ns").asi8 if index.tz is not None else index.as_unit("ns").asi8


@pytest.mark.parametrize("day", CHANGES)
def test_hours_follow_the_wall_clock_on_days_of_23_and_25_hours(day):
    index = pd.date_range(f"{day} 00:00", pd.Timestamp(day) + pd.Timedelta(days=1), freq="30min", tz=MELBOURNE)[:-1]
    assert len(index) == 2 * CHANGES[day]
    columns = check_calendar(["hour"], freq=parse_freq("30min"))
    got = calendar_features(stamps_of(index), columns, zone=MELBOURNE)
    hour = np.array([stamp.hour + stamp.minute / 60 for stamp in index])  # python's own clock
    expected = np.stack(
        [wave(2 * np.pi * k * hour / 24) for k in (1, 2) for wave in (np.sin, np.cos)], axis=1
    )  # fmt: skip
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_days_of_the_week_and_of_the_year_are_those_of_the_zone():
    index = pd.date_range("2011-12-30", "2013-01-03", freq="7h", tz=MELBOURNE)
    columns = check_calendar(["weekday", "month", "yearday"], freq=parse_freq("7h"))
    got = calendar_features(stamps_of(index), columns, zone=MELBOURNE)
    parts = (
        ([stamp.weekday() / 7 for stamp in index], 3),
        ([(stamp.month - 1) / 12 for stamp in index], 2),
        ([(stamp.day_of_year - 1) / (366 if stamp.is_leap_year else 365) for stamp in index], 2),
    )
    expected = [
        wave(2 * np.pi * k * np.array(part)) for part, n in parts for k in range(1, n + 1) for wave in (np.sin, np.cos)
    ]
    np.testing.assert_allclose(got, np.stack(expected, axis=1), atol=1e-6)


def test_seven_weekdays_are_seven_different_rows_that_a_linear_map_tells_apart():
    index = pd.date_range("2024-01-01", periods=7, freq="D")
    got = calendar_features(stamps_of(index), check_calendar(["weekday"], freq=parse_freq("1D")), zone=None)
    assert np.linalg.matrix_rank(np.concatenate([got, np.ones((7, 1))], axis=1)) == 7


def test_stamps_before_1970_have_a_calendar_too():
    index = pd.DatetimeIndex(["1969-12-31 23:00", "1900-03-01 00:00"])
    got = calendar_features(stamps_of(index), ("weekday.1.sin", "hour.1.cos"), zone=None)
    np.testing.assert_allclose(got[:, 0], np.sin(2 * np.pi * np.array([2, 3]) / 7), atol=1e-6)
    np.testing.assert_allclose(got[:, 1], np.cos(2 * np.pi * np.array([23, 0]) / 24), atol=1e-6)


@pytest.mark.parametrize(
    ("freq", "names"),
    [
        ("30min", {"hour", "weekday", "yearday"}),
        ("1D", {"weekday", "yearday"}),
        ("1W", {"yearday"}),
        ("MS", {"yearday"}),
        (1, set()),
    ],
)
def test_auto_takes_what_differs_between_rows(freq, names):
    assert {column.split(".")[0] for column in check_calendar("auto", freq=parse_freq(freq))} == names


@pytest.mark.parametrize(
    ("calendar", "freq", "text"),
    [
        ("hour", "1h", "calendar='hour' must be None, 'auto' or a list"),
        (["hours"], "1h", "calendar names 'hours'; known are 'hour', 'weekday'"),
        (["hour", "hour"], "1h", "names a feature twice"),
        (["hour"], 1, "needs datetimes, and the time column counts in integers"),
        (3, "1h", "calendar=3 must be None"),
    ],
)
def test_a_calendar_that_cannot_be_is_refused(calendar, freq, text):
    with pytest.raises(ParameterError, match=text):
        check_calendar(calendar, freq=parse_freq(freq))


# ------------------------------------------------------------------------------------------------------------- holidays


@pytest.fixture
def invented_holidays(monkeypatch):
    """A stand-in for the package ``holidays``: New Year is free everywhere, 9 October too in the south."""
    import datetime

    def country_holidays(country, subdiv=None, years=()):
        if country != "XX":
            raise NotImplementedError(f"Country {country} not available")
        days = {datetime.date(year, 1, 1): "New Year" for year in years}
        return days | {datetime.date(year, 10, 9): "South" for year in years if subdiv == "S"}

    module = types.ModuleType("holidays")
    module.country_holidays = country_holidays
    monkeypatch.setitem(sys.modules, "holidays", module)


def test_holidays_are_whole_local_days(invented_holidays):
    index = pd.date_range("2012-12-31 12:00", periods=60, freq="1h", tz=MELBOURNE)
    got = calendar_features(stamps_of(index), check_calendar(["holidays:XX"], freq=parse_freq("1h")), zone=MELBOURNE)
    assert got[:, 0].tolist() == [float(stamp.date() == pd.Timestamp("2013-01-01").date()) for stamp in index]
    south = calendar_features(stamps_of(index[:1] + pd.Timedelta(days=-83)), ("holidays:XX-S",), zone=MELBOURNE)
    assert south.tolist() == [[1.0]]


def test_an_unknown_country_is_told_before_anything_is_read(invented_holidays):
    with pytest.raises(ParameterError, match="'holidays:YY', which the package holidays does not know"):
        check_calendar(["holidays:YY"], freq=parse_freq("1h"))


def test_the_missing_package_is_named_with_the_way_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "holidays", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'txl-ts\[holidays\]'"):
        check_calendar(["holidays:AU"], freq=parse_freq("1h"))


# ------------------------------------------------------------------------------------------------------- the forecaster


@pytest.fixture(scope="module")
def across_changes(shared_data):
    """Victoria's electricity over 2012, both clock changes among its rows."""
    df = pd.read_csv(shared_data / "vic_electricity" / "vic_electricity.csv", nrows=366 * 48)
    ds = pd.to_datetime(df.Time).dt.tz_convert(MELBOURNE).astype(f"datetime64[us, {MELBOURNE}]")
    return pd.DataFrame({"unique_id": "vic", "ds": ds, "y": df.Demand, "temp": df.Temperature})


@pytest.fixture(scope="module")
def model(tiny, across_changes):
    """Fitted on the rows up to the second change."""
    small = {**tiny, "freq": "30min", "h": 48, "max_epochs": 1, "calendar": "auto", "batch_size": 32}
    rows = across_changes[across_changes.ds < "2012-10-06 12:00"]
    return TXLForecaster(**small).fit(rows.tail(4000), futr_cols=["temp"], val_size=480)


def test_a_forecast_across_a_day_of_23_hours_has_the_stamps_of_the_clock(model, across_changes):
    futr = model.make_future_frame()
    ahead = across_changes[across_changes.ds > "2012-10-06 11:30"].head(48)
    assert list(futr.ds) == list(ahead.ds)
    assert futr.ds.dtype == across_changes.ds.dtype
    out = model.predict(futr_df=across_changes[["unique_id", "ds", "temp"]])
    assert list(out.ds) == list(ahead.ds)
    assert out.TXL.notna().all()
    # 02:00 and 02:30 are not on the clock of that day.
    assert not [t for t in out.ds if t.day == 7 and t.hour == 2]


@pytest.mark.parametrize(("day", "hours"), CHANGES.items())
def test_a_backtest_walks_over_both_changes_with_every_half_hour_once(model, across_changes, day, hours):
    stop = pd.Timestamp(day, tz=MELBOURNE) + pd.Timedelta(days=3)
    rows = across_changes[(across_changes.ds < stop)].tail(1200)
    out = model.predict(df=rows[rows.ds < day], futr_df=rows[["unique_id", "ds", "temp"]])
    same = out[out.ds.dt.day == pd.Timestamp(day).day]
    assert len(same) == min(2 * hours, 48)
    assert out.ds.is_unique
    walked = copy_without_end(model).cross_validation(rows, n_windows=49, h=48, use_fitted=True)
    assert len(walked) == 49 * 48
    assert walked.TXL.notna().all()


def copy_without_end(model):
    """The backtest guards against rows that were fitted on; these tests ask for stamps, not for an honest error."""
    import copy

    other = copy.copy(model)
    other._fitted_end = {}
    return other


def test_the_zone_of_the_column_changes_the_calendar_and_nothing_else(tiny, across_changes):
    """The same instants in UTC have other hours: the calendar reads the wall clock of the column."""
    rows = across_changes.head(600)
    small = {**tiny, "freq": "30min", "max_epochs": 0}
    local = TXLForecaster(**small, calendar=["hour"]).fit(rows[["unique_id", "ds", "y"]])
    utc = TXLForecaster(**small, calendar=["hour"]).fit(
        rows.assign(ds=rows.ds.dt.tz_convert("UTC"))[["unique_id", "ds", "y"]]
    )
    instants = [model.make_future_frame().ds.dt.tz_convert("UTC").tolist() for model in (local, utc)]
    assert instants[0] == instants[1]


def test_later_rows_with_another_zone_are_read_on_the_clock_that_was_fitted(tiny, make_rows):
    """The same instants are the same rows: hours, days and answers are those of the fitted zone."""
    rows = make_rows(2, 200)
    rows = rows.assign(ds=rows.ds.dt.tz_localize("Europe/Berlin", ambiguous="raise"))
    small = {**tiny, "max_epochs": 0, "lookback": 4}
    old = rows.groupby("unique_id").cumcount() < 150
    answers = []
    for zone in ("Europe/Berlin", "America/New_York"):
        model = TXLForecaster(**small, calendar=["hour"]).fit(rows[old])
        answers.append(model.update(rows[~old].assign(ds=rows.ds[~old].dt.tz_convert(zone))))
        answers.append(model.predict())
    pd.testing.assert_frame_equal(answers[0], answers[2])
    pd.testing.assert_frame_equal(answers[1], answers[3])


def test_a_calendar_alone_needs_no_future_frame_and_survives_the_file(tiny, make_rows, tmp_path):
    model = TXLForecaster(**{**tiny, "max_epochs": 1}, calendar=["hour"]).fit(make_rows())
    out = model.predict()
    model.save(tmp_path / "m.txl")
    pd.testing.assert_frame_equal(TXLForecaster.load(tmp_path / "m.txl").predict(), out)
    rows = make_rows()
    pd.testing.assert_frame_equal(model.predict(df=rows)[["unique_id", "ds"]], out[["unique_id", "ds"]])
    np.testing.assert_allclose(model.predict(df=rows)[VALUES], out[VALUES], rtol=1e-4, atol=1e-5)


def test_integer_time_with_auto_has_no_calendar_and_works(tiny, make_rows):
    rows = make_rows()
    rows = rows.assign(ds=rows.groupby("unique_id").cumcount())
    model = TXLForecaster(**{**tiny, "freq": 1, "max_epochs": 0}, calendar="auto").fit(rows)
    assert model.config_.futr_kinds == ()
    assert len(model.predict()) == 9
