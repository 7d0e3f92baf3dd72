"""Pictures hold what the frames hold. Read off the artists, not off pixels."""

import sys

import numpy as np
import pandas as pd
import pytest

from txl_ts.errors import ColumnError, MissingExtraError, ParameterError, StateError
from txl_ts.plots import Band, bands_of, plot_backtest, plot_forecast, plot_watch
from txl_ts.stream import Alert, Row, Watched

date2num = pytest.importorskip("matplotlib.dates", reason="pictures need the extra `plot`").date2num


def line(axes, label):
    found = [artist for artist in axes.lines if artist.get_label() == label]
    assert len(found) == 1, [artist.get_label() for artist in axes.lines]
    return found[0].get_xdata(orig=True), np.asarray(found[0].get_ydata())


def forecast_of(names=("a", "b"), n=3, start=10):
    parts = []
    for i, name in enumerate(names):
        y = np.arange(n) + 10.0 * i
        parts.append(pd.DataFrame({"unique_id": name, "ds": np.arange(start, start + n), "TXL": y, "TXL-lo-80": y - 1}))
    return pd.concat(parts, ignore_index=True).assign(**{"TXL-hi-80": lambda df: df["TXL"] + 2})


def rows_of(names=("a", "b"), n=10):
    return pd.concat(
        [
            pd.DataFrame({"unique_id": name, "ds": np.arange(n), "y": np.arange(n) * 1.0 + i})
            for i, name in enumerate(names)
        ]
    )


def test_bands_are_found_among_levels_and_among_quantiles_that_pair_widest_first():
    assert bands_of(["ds", "TXL", "TXL-lo-80", "TXL-hi-80", "TXL-lo-95", "TXL-hi-95", "X-lo-70", "X-hi-70"], "TXL") == [
        Band(95, "TXL-lo-95", "TXL-hi-95"),
        Band(80, "TXL-lo-80", "TXL-hi-80"),
    ]
    assert bands_of(["TXL_ql0.1", "TXL", "TXL_ql0.9", "TXL_ql0.7"], "TXL") == [Band(80, "TXL_ql0.1", "TXL_ql0.9")]


def test_a_panel_shows_history_median_and_a_band_that_opens_at_the_last_row(frame):
    figure = plot_forecast(frame(forecast_of().to_dict("list")), frame(rows_of().to_dict("list")), n_history=4)
    first, second = figure.axes
    assert (first.get_title(loc="left"), second.get_title(loc="left")) == ("a", "b")
    assert line(second, "history")[1].tolist() == [7.0, 8.0, 9.0, 10.0]
    times, median = line(second, "median forecast")
    assert times.tolist() == [9, 10, 11, 12]
    assert median.tolist() == [10.0, 10.0, 11.0, 12.0]
    (band,) = second.collections
    corners = band.get_paths()[0].vertices
    assert {tuple(corner) for corner in corners} >= {(9, 10), (10, 9), (10, 12), (12, 11), (12, 14)}


def test_only_the_asked_series_are_drawn_in_the_asked_order():
    figure = plot_forecast(forecast_of(("a", "b", "c")), ids=["c", "a"])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["c", "a"]


def test_at_most_six_panels_are_drawn_unasked_and_spare_ones_are_removed():
    assert len(plot_forecast(forecast_of(tuple("abcdefgh"))).axes) == 6
    assert len(plot_forecast(forecast_of(tuple("abcde"))).axes) == 5


def test_one_series_without_a_name_has_one_panel_without_a_title():
    figure = plot_forecast(forecast_of(("a",)).drop(columns="unique_id"), id_col=None)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [""]


def test_a_line_breaks_at_a_long_gap():
    history = rows_of(("a",), 30)
    history = history[(history.ds < 10) | (history.ds > 25)]
    figure = plot_forecast(forecast_of(("a",), start=30), history, n_history=100)
    assert np.isnan(line(figure.axes[0], "history")[1]).sum() == 1


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "UTC"])
def test_lines_never_go_back_when_summer_time_ends_and_ticks_show_the_clock_of_the_zone(zone, frame):
    begin = pd.Timestamp("2024-10-27 00:00" if zone == "Europe/Berlin" else "2024-11-03 00:00", tz=zone)
    forecast = forecast_of(("a",), n=30)
    ds = pd.date_range(begin, periods=30, freq="h")
    forecast["ds"] = ds
    axes = plot_forecast(frame({name: forecast[name].tolist() for name in forecast})).axes[0]
    times, _ = line(axes, "median forecast")
    np.testing.assert_array_equal(np.diff(times), np.timedelta64(1, "h"))
    axes.figure.canvas.draw()
    first = axes.xaxis.get_major_formatter().format_ticks(date2num(ds[[3, 4]].to_pydatetime()))
    assert first == [f"{stamp:%H:%M}" for stamp in ds[[3, 4]]]


def test_a_cutoff_is_named_in_the_clock_of_the_zone():
    parts = [forecast_of(("a",)).assign(cutoff=hour) for hour in (10, 13)]
    frame = pd.concat(parts, ignore_index=True).assign(y=1.0)
    day = pd.Timestamp("2024-06-01", tz="Europe/Berlin")
    frame["ds"] = day + pd.to_timedelta(frame.cutoff + np.tile([1, 2, 3], 2), unit="h")
    frame["cutoff"] = day + pd.to_timedelta(frame.cutoff, unit="h")
    for cutoff in (pd.Timestamp("2024-06-01 13:00"), pd.Timestamp("2024-06-01 11:00", tz="UTC")):
        (axes,) = plot_backtest(frame, cutoffs=[cutoff]).axes
        marks = [artist.get_xdata()[0] for artist in axes.lines if artist.get_label() == "cutoff"]
        assert marks == [np.datetime64("2024-06-01T11:00")]  # drawn in UTC
    with pytest.raises(ParameterError, match=r"it has .*2024-06-01 10:00:00\+0200"):
        plot_backtest(frame, cutoffs=[pd.Timestamp("2024-06-02")])


def test_a_backtest_shows_the_last_cutoffs_that_do_not_overlap():
    parts = [forecast_of(("a",), start=cutoff + 1).assign(cutoff=cutoff) for cutoff in range(10, 17)]
    frame = pd.concat(parts, ignore_index=True)
    frame["y"] = frame.ds * 1.0
    (axes,) = plot_backtest(frame, rows_of(("a",), 30), cutoffs=2).axes
    marks = [artist.get_xdata()[0] for artist in axes.lines if artist.get_label() == "cutoff"]
    assert marks == [13, 16]  # three rows ahead each
    times, came = line(axes, "what came")
    assert (times.tolist(), came.tolist()) == (list(range(11, 20)), [float(t) for t in range(11, 20)])


def test_a_backtest_draws_the_cutoffs_that_are_named():
    parts = [forecast_of(("a",), start=cutoff + 1).assign(cutoff=cutoff) for cutoff in (10, 11)]
    frame = pd.concat(parts, ignore_index=True).assign(y=1.0)
    (axes,) = plot_backtest(frame, cutoffs=[10]).axes
    assert [artist.get_xdata()[0] for artist in axes.lines if artist.get_label() == "cutoff"] == [10]
    with pytest.raises(ParameterError, match=r"none of cutoffs=\[99\] is in the frame"):
        plot_backtest(frame, cutoffs=[99])


def test_plot_of_a_forecaster_divides_the_rows_at_the_last_one_it_took_in(fitted, make_rows):
    rows = make_rows(n_rows=110)
    figure = fitted.plot(rows, ids=["T2"])
    (axes,) = figure.axes
    rows = rows[rows.unique_id == "T2"].reset_index(drop=True)
    old = make_rows()
    end = old[old.unique_id == "T2"].ds.max()
    expected = fitted.predict(level=[60], ids=["T2"])  # .1 and .8 are trained: the widest band that pairs
    times, median = line(axes, "median forecast")
    assert (times[-3:] == expected.ds.to_numpy()).all()
    assert [artist.get_label() for artist in axes.collections] == ["60 % band"]
    assert median[-3:] == pytest.approx(expected.TXL, rel=1e-6)
    assert line(axes, "history")[0][-1] == end.to_datetime64()
    came, values = line(axes, "what came")
    assert came[-1] == expected.ds.max().to_datetime64()
    np.testing.assert_allclose(values[-3:], rows[rows.ds.isin(expected.ds)].y, rtol=1e-6)


def test_a_forecaster_without_a_series_to_draw_says_so(fitted, forecaster):
    with pytest.raises(ParameterError, match=r"ids=\[\] names no series to draw"):
        fitted.plot(ids=[])
    forecaster.forget(["T1", "T2", "T3"])
    with pytest.raises(StateError, match=r"no series to draw: none is kept.*update\(df\)"):
        forecaster.plot()


def test_wrong_columns_and_series_are_named():
    with pytest.raises(ColumnError, match=r"no column 'ds'; it has \['unique_id', 'time'"):
        plot_forecast(forecast_of().rename(columns={"ds": "time"}))
    with pytest.raises(ParameterError, match=r"1 of ids are not in the frame, such as \['z'\]"):
        plot_forecast(forecast_of(), ids=["z"])
    with pytest.raises(ParameterError, match=r"ids='a' must be a list"):
        plot_forecast(forecast_of(), ids="a")


def test_without_matplotlib_the_install_command_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r'pip install "txl-ts\[plot\]"'):
        plot_forecast(forecast_of())


# ----------------------------------------------------------------------------------------------------- what is watched

HOUR = 3600 * 10**9
START = 500_000 * HOUR


def watched_row(i, *, status="ok", value=1.0, alerts=(), is_used=True):
    values = {"flow": value, "heat": None} if is_used else {}
    row = Row(seq=i, stamp=START + i * HOUR, status=status, is_used=is_used, values=values)
    band = {"flow": (i - 1.0, i + 1.0)} if i > 1 else {}
    score = 0.1 * i if i > 1 else float("nan")
    return Watched(row=row, status=status, score=score, p_value=float("nan"), band=band, alerts=alerts)


def an_alert(event, kind, *, since, at, name="anomaly-0"):
    stamps = {"since": START + since * HOUR, "at": START + at * HOUR}
    return Alert(id=name, event=event, kind=kind, sensors=("flow",), band={}, values={}, level=1.0, **stamps)


@pytest.fixture
def watched():
    rows = [watched_row(i, value=None if i == 3 else float(i), status="missing" if i == 3 else "ok") for i in range(10)]
    rows[5] = watched_row(5, alerts=(an_alert("raised", "anomaly", since=4, at=5),))
    rows[7] = watched_row(7, alerts=(an_alert("cleared", "anomaly", since=4, at=7),))
    rows[8] = watched_row(8, alerts=(an_alert("raised", "stale", since=8, at=8, name="stale-1"),))
    rows.append(watched_row(-300, status="clock_back", is_used=False))
    return rows


def hours(x):
    return ((np.asarray(x).astype("datetime64[ns]").astype(np.int64) - START) // HOUR).tolist()


def test_a_watched_sensor_has_its_values_its_band_and_a_hole_where_nothing_came(watched):
    figure = plot_watch(watched, threshold=0.5, title="pump 7")
    assert [axes.get_title(loc="left") for axes in figure.axes][:3] == ["flow", "heat", "score"]
    assert figure.get_suptitle() == "pump 7"
    times, values = line(figure.axes[0], "what came")
    assert hours(times) == list(range(10))
    assert np.isnan(values).tolist() == [i == 3 for i in range(10)]
    (band,) = figure.axes[0].collections
    assert {tuple(corner[1:]) for corner in band.get_paths()[0].vertices} >= {(1.0,), (10.0,), (8.0,)}
    assert line(figure.axes[2], "score")[1][2:].tolist() == pytest.approx([0.1 * i for i in range(2, 10)])
    assert line(figure.axes[2], "alarm level")[1].tolist() == [0.5, 0.5]


def test_statuses_are_marked_where_the_stream_stood_when_they_were_said(watched):
    strip = plot_watch(watched).axes[-1]
    assert [text.get_text() for text in strip.get_yticklabels()] == ["missing", "clock_back"]
    assert [hours(marks.get_xdata(orig=True)) for marks in strip.lines] == [[3], [9]]  # not 300 hours before


def test_alerts_are_shaded_from_their_first_row_to_their_end_or_the_last_row(watched):
    import matplotlib.dates

    axes = plot_watch(watched).axes[0]
    spans = {}
    for patch in axes.patches:
        first, last = patch.get_x(), patch.get_x() + patch.get_width()
        spans[patch.get_label()] = hours([matplotlib.dates.num2date(x).replace(tzinfo=None) for x in (first, last)])
    assert spans == {"alert: anomaly": [4, 7], "alert: a sensor or clock": [8, 9]}


def test_what_cannot_be_drawn_is_named(watched):
    with pytest.raises(ParameterError, match=r"sensors=\['fow'\] are not in the rows, which hold \['flow', 'heat'\]"):
        plot_watch(watched, sensors=["fow"])
    with pytest.raises(ParameterError, match="none of the 0 rows"):
        plot_watch([])
    assert [axes.get_title(loc="left") for axes in plot_watch(watched, sensors=["heat"]).axes][:2] == ["heat", "score"]


def test_a_peak_does_not_flatten_the_other_scores(watched):
    rows = [*watched, Watched(**{**{n: getattr(watched[9], n) for n in watched[9].__dataclass_fields__}, "score": 1e6})]
    assert plot_watch(rows, threshold=0.5).axes[2].get_yscale() == "symlog"
    assert plot_watch(watched, threshold=0.5).axes[2].get_yscale() == "linear"
