"""The detector as an estimator: signs, budgets, memories, frames, files, watches; on made-up and on real rows."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from txl_ts import TXLAnomalyDetector, open_watch, retrain_watch
from txl_ts.errors import DependentRowsWarning, FileFormatError, ParameterError, ShapeError, StampError, StateError
from txl_ts.estimators.forecaster import NotFittedError

SMALL = {"d_model": 8, "n_layers": 1, "n_heads": 2, "lookback": 8, "mem_len": 4, "max_epochs": 1}
SECOND = 10**9


def made_up(n=700, seed=0):
    """A wave with noise, a sluggish walk, and noise."""
    rng = np.random.default_rng(seed)
    x = np.empty((n, 3), np.float32)
    x[:, 0] = np.sin(np.arange(n) / 8) + 0.1 * rng.normal(size=n)
    x[:, 1] = np.convolve(rng.normal(size=n + 19), np.ones(20) / 4, "valid")
    x[:, 2] = 50 + rng.normal(size=n)
    return x


def messages(x, names, *, step=SECOND):
    return [
        {"time": i * step, "values": {n: None if np.isnan(v) else float(v) for n, v in zip(names, row, strict=True)}}
        for i, row in enumerate(x)
    ]


@pytest.fixture(scope="module")
def fitted():
    return TXLAnomalyDetector(**SMALL).fit(made_up())


@pytest.fixture
def rows():
    x = made_up(200, seed=1)
    x[120, 0] += 3
    x[140:150, 2] = np.nan
    x[160] = np.nan
    return x


# ------------------------------------------------------------------------------------------------------ scikit-learn's


def test_signs_are_scikit_learns_and_a_row_without_a_score_is_no_outlier(fitted, rows):
    score, decision, said = fitted.score_samples(rows), fitted.decision_function(rows), fitted.predict(rows)
    np.testing.assert_array_equal(fitted.anomaly_score(rows), -score)
    np.testing.assert_array_equal(decision, score - fitted.offset_)
    there = ~np.isnan(score)
    np.testing.assert_array_equal(said[there] == -1, decision[there] < 0)
    assert (said[~there] == 1).all()
    assert said[120] == -1
    assert set(np.unique(said)) == {-1, 1}
    np.testing.assert_array_equal(said == -1, fitted.detect(rows).is_alarm)


def test_a_row_names_the_sensor_that_is_off_and_what_was_expected(fitted, rows):
    found = fitted.detect(rows)
    assert found.worst[120] == "x0"
    assert found.low[120, 0] < found.median[120, 0] < found.high[120, 0] < rows[120, 0]
    assert found.status[[0, 145, 160]].tolist() == ["warming_up", "missing", "missing"]
    assert np.isnan(found.parts[140:150, 2]).all()
    assert not np.isnan(found.score[141:150]).any()
    assert np.isnan(found.score[[0, 7, 160]]).all()
    assert found.to_frame()["part:x0"][120] == found.parts[120, 0]


def test_about_as_many_normal_rows_alarm_as_the_budget_says(fitted):
    alarms = fitted.detect(made_up(3000, seed=5)).is_alarm.sum()
    low, high = fitted.calibration_.expected_alarms(3000)
    assert fitted.contamination_ == fitted.calibration_.alpha
    assert low <= alarms <= high


def test_parameters_survive_clone_and_a_pipeline(fitted, rows):
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError, match=r"not fitted yet. Call fit\(X\)"):
        copy.predict(rows)
    pipe = make_pipeline(StandardScaler(), TXLAnomalyDetector(**SMALL | {"max_epochs": 0})).fit(made_up())
    assert pipe.predict(rows)[120] == -1


def test_two_fits_with_one_seed_are_equal(rows):
    a, b = (TXLAnomalyDetector(**SMALL, random_state=3).fit(made_up(300)).score_samples(rows) for _ in range(2))
    np.testing.assert_array_equal(a, b)


# -------------------------------------------------------------------------------------------------------------- budgets


def test_a_budget_that_the_rows_cannot_support_is_refused():
    with pytest.raises(ParameterError, match=r"alarms at α = 0.0001 need 9,999 held-out rows, got 1"):
        TXLAnomalyDetector(**SMALL | {"max_epochs": 0}, contamination=0.0001).fit(made_up())


def test_a_rate_needs_to_know_how_far_rows_are_apart():
    detector = TXLAnomalyDetector(**SMALL | {"max_epochs": 0}, false_alarms="1 per 1d")
    with pytest.raises(ParameterError, match="Give datetimes as time=…, or step='1min'"):
        detector.fit(made_up())
    times = pd.date_range("2026-01-01", periods=700, freq="20min")
    fitted = detector.fit(made_up(), time=times)
    assert fitted.contamination_ == pytest.approx(20 / 1440)
    assert clone(detector).set_params(step="20min").fit(made_up()).contamination_ == fitted.contamination_


def test_contamination_and_false_alarms_exclude_each_other():
    with pytest.raises(ParameterError, match="give one of them"):
        TXLAnomalyDetector(contamination=0.01, false_alarms="1 per 1d").fit(made_up())


@pytest.mark.parametrize(
    ("params", "error", "text"),
    [
        ({"kind": "surprize"}, ParameterError, "Did you mean 'surprise'"),
        ({"channels": "each"}, ParameterError, "Choose one of"),
        ({"horizons": (4, 2)}, ParameterError, "increasing numbers of rows"),
        ({"context": ["valve"]}, ParameterError, r"context names \['valve'\]"),
        ({"context": [0, 1, 2]}, ParameterError, "nothing left to judge"),
        ({"quantiles": (0.5, 0.9)}, ParameterError, "on both sides of 0.5"),
        ({"warm_up": 700}, ShapeError, "leave no held-out row with a score"),
        ({"contamination": 0.7}, ParameterError, "contamination=0.7"),
    ],
)
def test_what_cannot_work_is_said(params, error, text):
    with pytest.raises(error, match=text):
        TXLAnomalyDetector(**SMALL | {"max_epochs": 0} | params).fit(made_up())


# ------------------------------------------------------------------------------------------------- memories and frames


def test_any_split_of_updates_gives_the_scores_of_one_call(fitted, rows, tmp_path):
    fitted.save(tmp_path / "a.txl")
    one, two = (TXLAnomalyDetector.load(tmp_path / "a.txl") for _ in range(2))
    whole = one.update(rows)
    np.testing.assert_array_equal(whole.score, fitted.detect(rows, start="fitted").score)
    parts = [two.update(rows[a:b]) for a, b in ((0, 1), (1, 2), (2, 50), (50, 200))]
    found = np.concatenate([one.score for one in parts])
    np.testing.assert_allclose(found, whole.score, rtol=1e-4, atol=1e-5)
    assert whole.status[0] == "ok"
    assert {name: (a == two._kept[name]).all() for name, a in one._kept.items() if name in ("count", "age")} == {
        "count": True,
        "age": True,
    }


@pytest.mark.parametrize("name", [None, "pump"])
def test_drift_does_not_depend_on_how_rows_were_cut_nor_on_a_file_between(name, tmp_path):
    wide = made_up(300, seed=2) + np.random.default_rng(3).normal(size=(300, 3)).astype(np.float32)
    TXLAnomalyDetector(**SMALL | {"max_epochs": 0}).fit(made_up(), series_id=name).save(tmp_path / "a.txl")
    one, two = (TXLAnomalyDetector.load(tmp_path / "a.txl") for _ in range(2))
    found = []
    for a in range(0, 300, 25):
        found += two.update(wide[a : a + 25], series_id=name).status.tolist()
        two.save(tmp_path / "b.txl")
        two = TXLAnomalyDetector.load(tmp_path / "b.txl")
    assert one.detect(wide, series_id=name, start="fitted").status.tolist() == found
    assert one.update(wide, series_id=name).status.tolist() == found
    assert found.count("drift") > 100
    after = two.detect(wide[:5], series_id=name, start="fitted").status.tolist()
    assert after == one.update(wide[:5], series_id=name).status.tolist() == ["drift"] * 5


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_a_long_frame_brings_its_ids_and_times(make):
    parts = []
    for name, seed in (("pump-1", 1), ("pump-2", 2)):
        x = made_up(300, seed)
        ds = pd.date_range("2026-01-01", periods=300, freq="min")
        parts.append(pd.DataFrame({"unique_id": name, "ds": ds, "flow": x[:, 0], "heat": x[:, 1]}))
    long = pd.concat(parts, ignore_index=True)
    df = make(long if make is pd.DataFrame else {name: long[name].to_numpy() for name in long})
    detector = TXLAnomalyDetector(**SMALL).fit(df)
    assert detector.feature_names_in_.tolist() == ["flow", "heat"]
    assert detector._step_ns == 60 * SECOND
    assert detector._names == ("pump-1", "pump-2")
    found = detector.detect(df)
    alone = detector.detect(df[300:])
    np.testing.assert_allclose(found.score[300:], alone.score, rtol=1e-4, atol=1e-5)
    later = pd.DataFrame({"flow": [0.1], "heat": [0.2]})
    assert detector.update(later, series_id="pump-2").status.tolist() == ["ok"]
    with pytest.raises(StampError, match="repeats or goes back"):
        detector.detect(long[::-1].drop(columns="unique_id"), series_id="pump-1")


def test_a_panel_holds_one_series_each_and_short_ones_are_padded(fitted):
    panel = np.stack([made_up(90, 1), made_up(90, 2)])
    panel[1, 60:] = np.nan
    found = fitted.detect(panel)
    np.testing.assert_allclose(found.score[:90], fitted.detect(panel[0]).score, rtol=1e-4, atol=1e-5)
    assert np.isnan(found.score[150:]).all()
    assert (found.status[150:] == "missing").all()


def test_rows_of_several_series_without_names_are_refused():
    ids = np.repeat(["a", "b"], 350)
    detector = TXLAnomalyDetector(**SMALL | {"max_epochs": 0}).fit(made_up(), series_id=ids)
    with pytest.raises(ParameterError, match="one memory would run across all of them"):
        detector.predict(made_up())
    with pytest.raises(StateError, match="give series_id"):
        detector.detect(made_up(1), start="fitted")


def test_sensors_of_the_context_have_no_part(rows):
    detector = TXLAnomalyDetector(**SMALL | {"max_epochs": 0}, context=[0]).fit(made_up())
    found = detector.detect(rows)
    assert np.isnan(found.parts[:, 0]).all()
    assert not found.is_alarm[120]


@pytest.mark.parametrize("score", ["surprise", "deviation", "novelty", "level"])
@pytest.mark.parametrize("channels", ["mixed", "independent"])
def test_a_spike_alarms_whatever_the_score(score, channels, rows):
    rows[120, 0] += 10
    detector = TXLAnomalyDetector(**SMALL | {"max_epochs": 0}, kind=score, channels=channels).fit(made_up())
    found = detector.detect(rows)
    assert found.is_alarm[120:122].any()
    assert found.worst[120] == "x0"


# ---------------------------------------------------------------------------------------------------- files and watches


def test_a_loaded_detector_says_the_same(fitted, rows, tmp_path):
    fitted.save(tmp_path / "a.txl")
    loaded = TXLAnomalyDetector.load(tmp_path / "a.txl")
    for a, b in zip(vars(fitted.detect(rows)).values(), vars(loaded.detect(rows)).values(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert loaded.params_ == fitted.params_
    assert loaded.offset_ == fitted.offset_


def test_another_class_and_a_crafted_config_are_refused(fitted, tmp_path):
    from txl_ts import TXLRegressor

    TXLRegressor(max_epochs=0).fit(made_up()[:, :2], made_up()[:, 2]).save(tmp_path / "r.txl")
    with pytest.raises(FileFormatError, match="holds a 'TXLRegressor'"):
        TXLAnomalyDetector.load(tmp_path / "r.txl")
    fitted.save(tmp_path / "a.txl")
    data = bytearray((tmp_path / "a.txl").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "b.txl").write_bytes(data)
    with pytest.raises(FileFormatError):
        TXLAnomalyDetector.load(tmp_path / "b.txl")


def test_a_watch_gives_the_scores_of_detect_and_alerts_once(fitted, rows, tmp_path):
    fitted.save(tmp_path / "a.txl")
    for watch in (fitted.watch(), open_watch(tmp_path / "a.txl")):
        found = watch.step({"pump": messages(rows, fitted._sensors())})["pump"] + watch.flush()["pump"]
        wanted = fitted.detect(rows)
        np.testing.assert_allclose([one.score for one in found], wanted.score, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose([one.p_value for one in found], wanted.p_value, atol=2 / fitted.calibration_.n)
        raised = [a for one in found for a in one.alerts if a.event == "raised" and a.since == 120 * SECOND]
        assert [a.sensors[0] for a in raised] == ["x0"]


def test_a_session_goes_on_from_the_fitted_memories(fitted, rows, tmp_path):
    fitted.export_state(tmp_path / "state.txl")
    session = fitted.live()
    session.restore(tmp_path / "state.txl")
    values = {name: rows[:, i] for i, name in enumerate(fitted._sensors())}
    found = session.step({"stream": {"values": values}})["stream"]
    np.testing.assert_allclose(found.scores, fitted.detect(rows, start="fitted").score, rtol=1e-4, atol=1e-5)
    assert found.status == "ok"


def test_a_watch_refuses_options_and_channels_that_are_not_its_own(fitted):
    with pytest.raises(ParameterError, match=r"does not know \['tikc'\]"):
        fitted.watch(tikc="1min")
    with pytest.raises(ParameterError, match="channels make the columns"):
        fitted.watch(channels=["flow"])
    with pytest.raises(ParameterError, match="need 9,999 held-out rows"):
        fitted.watch(contamination=0.0001)
    assert fitted.watch(contamination=0.05).calibration.alpha == 0.05


def test_a_watch_with_a_protected_memory_does_not_learn_what_alarms(fitted, rows):
    rows[120:135, 0] += 5
    open_, protected = (fitted.watch(protect_memory=protect) for protect in (False, True))
    bands = []
    for watch in (open_, protected):
        found = watch.step({"pump": messages(rows, fitted._sensors())})["pump"]
        bands.append(np.array([one.band["x0"] for one in found[122:135]]))
    assert bands[1].mean() < bands[0].mean()


def test_a_watch_moves_to_the_detector_of_a_later_fit_and_keeps_its_budget(fitted, rows, tmp_path):
    later = TXLAnomalyDetector(**SMALL | {"max_epochs": 0}).fit(made_up(900, seed=3))
    later.save(tmp_path / "later.txl")
    watch, names = fitted.watch(contamination=0.05), fitted._sensors()
    log = messages(rows, names)
    watch.step({"pump": log[:100]})
    report = retrain_watch(watch, tmp_path / "later.txl")
    assert report["streams"] == 1
    assert watch.calibration.alpha == 0.05
    assert watch.calibration.digest == later.calibration_.digest
    found = watch.step({"pump": log[100:]})["pump"]
    # Memories were rebuilt from the rows that were kept, which is less than all: the look-back is, the scaler is not.
    wanted = later.detect(rows).score[100:]
    assert np.isfinite([one.score for one in found[2:20]]).all()
    assert np.corrcoef([one.score for one in found[10:19]], wanted[10:19])[0, 1] > 0.9


def test_a_detector_that_cannot_keep_the_budget_leaves_a_watch_as_it_was(fitted, rows, tmp_path):
    watch = fitted.watch(contamination=0.01)
    log = messages(rows, fitted._sensors())
    found = watch.step({"pump": log[:100]})["pump"]
    TXLAnomalyDetector(**SMALL | {"max_epochs": 0}).fit(made_up(200, seed=3)).save(tmp_path / "short.txl")
    with pytest.raises(ParameterError, match="need 99 held-out rows"):
        retrain_watch(watch, tmp_path / "short.txl")
    with pytest.raises(ParameterError, match="is not what this watch runs on"):
        retrain_watch(watch, tmp_path / "short.onnx")
    found += watch.step({"pump": log[100:]})["pump"]
    whole = fitted.watch(contamination=0.01).step({"pump": log})["pump"]
    np.testing.assert_array_equal([one.p_value for one in found], [one.p_value for one in whole])


# ------------------------------------------------------------------------------------------------------------ real data


def skab(folder, name="valve1/0"):
    return pd.read_csv(folder / "skab" / f"{name}.csv", sep=";").iloc[:, 1:9]


@pytest.mark.parametrize("which", ["skab", "nab", "air_quality"])
def test_predict_watch_and_a_resume_agree_on_real_rows(which, shared_data, tmp_path):
    if which == "skab":
        df = skab(shared_data)
    elif which == "nab":
        df = pd.read_csv(shared_data / "nab/realKnownCause/machine_temperature_system_failure.csv")[["value"]][:1500]
    else:
        (file,) = list((shared_data / "air_quality").glob("*.csv"))[:1] or pytest.skip("no csv of air_quality")
        df = pd.read_csv(file).select_dtypes("number")[:1500].astype(np.float32)
        df = df.loc[:, df.notna().mean() > 0.5].iloc[:, -6:]
    cut = len(df) // 2
    try:
        detector = TXLAnomalyDetector(**SMALL | {"max_epochs": 0}).fit(df[:cut])
    except DependentRowsWarning:
        pytest.fail("the budget that is found must not warn")
    later = df[cut:].reset_index(drop=True)
    wanted = detector.detect(later)
    names = detector._sensors()
    session, half = detector.live(), len(later) // 2
    calls = [later[:half], later[half:]]
    scores = []
    for i, call in enumerate(calls):
        values = {name: call[name].to_numpy() for name in names}
        scores.append(session.step({"s": {"values": values}})["s"].scores)
        session.snapshot(tmp_path / f"{i}.txl")
        session = detector.live()
        session.restore(tmp_path / f"{i}.txl")
    size = np.nanmax(np.abs(wanted.score))
    np.testing.assert_allclose(np.concatenate(scores), wanted.score, rtol=0, atol=1e-5 * size)
    watch = detector.watch()
    found = watch.step({"s": messages(later.to_numpy(np.float64), names)})["s"] + watch.flush()["s"]
    np.testing.assert_allclose([one.score for one in found], wanted.score, rtol=0, atol=1e-5 * size)
    assert np.isfinite(wanted.score).mean() > 0.5
