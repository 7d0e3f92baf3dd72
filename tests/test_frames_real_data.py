"""Real data: clocks that drift, step back, and repeat."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest

from txl_ts.errors import CleanedDataWarning, ColumnError, StampError
from txl_ts.frames import read_long


@pytest.fixture(scope="module")
def glucose():
    data = pytest.importorskip("bokeh_sampledata.glucose", reason="bokeh_sampledata is not installed").data
    return data.reset_index()


@pytest.fixture(scope="module")
def sea():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own use of pandas
        module = pytest.importorskip(
            "bokeh_sampledata.sea_surface_temperature", reason="bokeh_sampledata is not installed"
        )
    return module.sea_surface_temperature.reset_index()


def test_glucose_repeats_three_stamps(glucose):
    with pytest.raises(StampError, match=r"time column 'datetime' repeats 3 times \(first at row \d+: 2010-"):
        read_long(glucose[["datetime", "glucose"]], id_col=None, time_col="datetime", target_col="glucose")


def test_glucose_reads_on_a_five_minute_grid(glucose):
    with pytest.warns(CleanedDataWarning, match=r"stamps were moved to the 5-minute grid \(at most 2 min\)"):
        panel = read_long(
            glucose[["datetime", "glucose"]],
            id_col=None,
            time_col="datetime",
            target_col="glucose",
            align="nearest",
            max_gap=36,
        )
    assert panel.freq.text == "5min"
    assert np.count_nonzero(np.isfinite(panel.values)) == len(glucose) - panel.report.n_collided
    assert panel.n_pieces == panel.report.n_cut + 1 > 1
    assert np.nanmin(panel.values) >= glucose["glucose"].min()
    assert np.nanmax(panel.values) <= glucose["glucose"].max()


def test_a_sensor_that_writes_nil_is_told_so(glucose):
    with pytest.raises(ColumnError, match=r"target column 'isig' must hold numbers, got str with values such as "):
        read_long(glucose[["datetime", "isig"]], id_col=None, time_col="datetime", target_col="isig")


def test_sea_temperature_in_utc_runs_in_half_hours(sea):
    sea = sea.drop_duplicates("time")
    for native in (sea, pl.from_pandas(sea)):
        panel = read_long(native, id_col=None, time_col="time", target_col="temperature")
        assert (panel.freq.text, panel.zone, panel.freq.season) == ("30min", "UTC", 48)
        assert panel.report.n_filled == panel.n_rows - len(sea)


def test_a_clock_that_steps_back_is_refused_and_can_be_averaged(shared_data):
    path = next(shared_data.glob("nab/**/machine_temperature_system_failure.csv"))
    machine = pd.read_csv(path, parse_dates=["timestamp"])
    names = {"id_col": None, "time_col": "timestamp", "target_col": "value"}
    with pytest.raises(StampError, match=r"repeats 12 times \(first at row 10149: 2014-01-07 02:00\)"):
        read_long(machine, **names)
    panel = read_long(machine, **names, align="nearest", warn_cleaned=False)
    assert panel.n_rows == len(machine) - 12
    assert panel.report.lines() == ["12 rows fell on taken stamps; values were averaged."]


def test_m4_hourly_is_read_by_its_row_numbers(shared_data):
    wide = pd.read_csv(shared_data / "m4_hourly" / "Hourly-train.csv", nrows=30)
    long = wide.melt(id_vars=wide.columns[0], var_name="ds", value_name="y").dropna()
    long["ds"] = long["ds"].str.removeprefix("V").astype(int)
    panel = read_long(long, id_col=wide.columns[0])
    assert panel.freq.kind == "integer"
    assert panel.freq.step == 1
    assert panel.n_series == 30
    assert panel.n_rows == len(long)
