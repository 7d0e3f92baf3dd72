"""Mixed channels: several targets of one series with one token per row and one memory."""

import copy

import numpy as np
import pandas as pd
import pytest

from txl_ts import TXLForecaster
from txl_ts.errors import ColumnError, FileFormatError, ParameterError, StampError
from txl_ts.runtime import StreamSession
from txl_ts.store import peek

HOUR = pd.Timedelta(hours=1)
TARGETS = ["load", "flow", "heat"]
N_ROWS = 100


def wide(n_rows=N_ROWS, *, ids=("a", "b"), seed=0):
    """Flow follows load by two hours; every target has holes of its own, and one begins late."""
    rng = np.random.default_rng(seed)
    parts = []
    for i, name in enumerate(ids):
        t = np.arange(n_rows)
        load = 10 + i + np.sin(2 * np.pi * t / 24) + rng.normal(0, 0.5, n_rows)
        flow = 300 + 20 * np.roll(load, 2) + rng.normal(0, 2, n_rows)
        heat = rng.normal(0, 1, n_rows).cumsum()
        flow[20:30], load[50:55], heat[:7] = np.nan, np.nan, np.nan
        ds = pd.Timestamp("2024-01-01").as_unit("us") + HOUR * t
        parts.append(pd.DataFrame({"unique_id": name, "ds": ds, "load": load, "flow": flow, "heat": heat}))
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def joint(tiny):
    """Fitted on all but the last ten rows of each id; a law, so that one graph shows both."""
    model = TXLForecaster(channels="mixed", distribution="student_t", **tiny)
    return model.fit(first(wide()), target_col=TARGETS, val_size=12)


@pytest.fixture
def model(joint):
    return copy.deepcopy(joint)


def first(df):
    return df[df.groupby("unique_id").cumcount() < N_ROWS - 10]


def rest(df):
    return df[df.groupby("unique_id").cumcount() >= N_ROWS - 10]


def values_of(df):
    return df.drop(columns=["unique_id", "ds"]).to_numpy(float)


def test_all_targets_of_an_id_share_one_state(joint):
    assert joint.config_.n_channels == len(TARGETS)
    assert joint._fleet.ids == ("a", "b")
    assert joint.params_["state_nbytes"] == joint._model.state_nbytes()
    assert joint._fleet.forecast.shape == (2, 3, len(TARGETS) * 2)


def test_forecasts_stand_side_by_side(joint):
    found = joint.predict(level=[80])
    expected = [f"{target}_TXL{part}" for target in TARGETS for part in ("", "-lo-80", "-hi-80")]
    assert list(found.columns) == ["unique_id", "ds", *expected]
    assert len(found) == 6
    assert np.isfinite(values_of(found)).all()
    assert (found["flow_TXL"] > 100).all()  # each in its own units
    assert (found["load_TXL"] < 50).all()


def test_what_one_target_did_is_known_to_the_others(joint):
    """Only through the joint token: independent channels would not move."""
    df = first(wide())
    changed = df.copy()
    last = changed.groupby("unique_id").cumcount(ascending=False) == 0
    changed.loc[last, "load"] += 3
    before, after = joint.predict(df=df), joint.predict(df=changed)
    assert (before["flow_TXL"] != after["flow_TXL"]).all()


def test_any_split_of_the_rows_gives_the_same_numbers(model, joint):
    new = rest(wide())
    whole = model.update(new)
    split = copy.deepcopy(joint)
    parts = [split.update(part) for _, part in new.groupby(new.groupby("unique_id").cumcount() // 3)]
    parts = pd.concat(parts).sort_values(["unique_id", "ds"], ignore_index=True)
    # Another grouping of the same float32 sums, of numbers up to 600.
    np.testing.assert_allclose(values_of(whole), values_of(parts), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(values_of(model.predict()), values_of(split.predict()), rtol=1e-5, atol=1e-4)


def test_walking_from_empty_equals_fitting_and_updating(model, joint):
    model.update(rest(wide()))
    fresh = joint.predict(df=wide())
    np.testing.assert_allclose(values_of(fresh), values_of(model.predict()), rtol=1e-5, atol=1e-4)


def test_ids_do_not_influence_each_other(joint):
    both, alone = joint.predict(df=wide()), joint.predict(df=wide()[lambda df: df.unique_id == "b"])
    np.testing.assert_allclose(values_of(both[both.unique_id == "b"]), values_of(alone), rtol=1e-5, atol=1e-4)


def test_the_future_changes_no_past_forecast(joint):
    df, changed = wide(), wide()
    changed.loc[changed.groupby("unique_id").cumcount() >= N_ROWS - 10, TARGETS] = 1e4
    before, after = (joint.fitted_values(rows) for rows in (df, changed))
    past = before.groupby("unique_id").cumcount() < N_ROWS - 10
    columns = [name for name in before.columns if "TXL" in name]
    np.testing.assert_array_equal(before[past][columns], after[past][columns])


def test_update_returns_targets_beside_what_was_expected(model):
    out = model.update(rest(wide()))
    assert {"load", "load_TXL", "flow", "heat_TXL_ql0.8"} <= set(out.columns)
    np.testing.assert_allclose(out["load"], rest(wide())["load"], rtol=1e-6)
    with pytest.raises(StampError, match="Nothing was changed"):
        model.update(rest(wide()))


def test_a_row_without_any_value_is_walked(model):
    gone = rest(wide()).copy()
    gone[TARGETS] = np.nan
    model.update(gone)
    assert np.isfinite(values_of(model.predict())).all()


def test_backtests_give_each_target_by_its_name(joint, tiny):
    model = TXLForecaster(channels="mixed", **{**tiny, "max_epochs": 1})
    found = model.cross_validation(wide(), target_col=TARGETS, n_windows=4, step_size=2)
    assert len(found) == 2 * 4 * 3
    np.testing.assert_allclose(
        found[found.cutoff == found.cutoff.max()]["flow"],
        wide().groupby("unique_id").tail(3)["flow"],
        rtol=1e-6,
    )
    errors = model.cross_validation(wide(), target_col=TARGETS, n_windows=4, output="metrics")
    assert list(errors.columns)[:4] == ["unique_id", "load_mse", "load_mae", "load_pinball"]
    batches = list(joint.cross_validation(wide(), n_windows=2, use_fitted=True, output="batches"))
    assert {name for batch in batches for name in batch.ids} == {f"{i}/{t}" for i in "ab" for t in TARGETS}


def test_paths_keep_the_targets_of_a_step_together(joint):
    paths = joint.sample_paths(h=5, n_paths=4)
    assert list(paths.columns) == ["unique_id", "ds", "sample_id", *(f"{t}_TXL" for t in TARGETS)]
    assert len(paths) == 2 * 4 * 5
    assert np.isfinite(paths[[f"{t}_TXL" for t in TARGETS]].to_numpy()).all()
    assert joint.predict(h=5, n_paths=20).shape == joint.predict(h=5).shape


def test_a_file_holds_all_of_it(joint, tmp_path):
    joint.save(tmp_path / "m.txl")
    again = TXLForecaster.load(tmp_path / "m.txl")
    pd.testing.assert_frame_equal(again.predict(), joint.predict())
    pd.testing.assert_frame_equal(again.update(rest(wide())), copy.deepcopy(joint).update(rest(wide())))
    assert peek(tmp_path / "m.txl")[1]["targets"] == TARGETS


def test_a_file_whose_targets_are_not_its_channels_is_refused(joint, tmp_path):
    broken = copy.deepcopy(joint)
    broken._targets = ("load", "flow")
    broken.save(tmp_path / "m.txl")
    with pytest.raises(FileFormatError, match="channels"):
        TXLForecaster.load(tmp_path / "m.txl")


def test_bands_are_calibrated_target_by_target(model):
    before = model.predict()
    model.calibrate()
    after = model.predict()
    np.testing.assert_array_equal(before["flow_TXL"], after["flow_TXL"])
    assert (before["flow_TXL_ql0.1"] != after["flow_TXL_ql0.1"]).any()
    with pytest.raises(ParameterError, match="adaptive=True follows series with one target each"):
        model.calibrate(adaptive=True)


def test_whole_numbers_name_series_too(tiny):
    df = wide(ids=(3, 11))
    model = TXLForecaster(channels="mixed", **{**tiny, "max_epochs": 0}).fit(df, target_col=TARGETS)
    found = model.predict()
    assert found["unique_id"].unique().tolist() == [3, 11]
    model.forget([3])
    assert model.predict(ids=[11]).equals(model.predict())


def test_columns_beside_the_targets_are_those_of_the_id(tiny):
    df = wide().assign(warm=1.0, kind="x")
    static = pd.DataFrame({"unique_id": ["a", "b"], "size": [1.0, 2.0]})
    model = TXLForecaster(channels="mixed", **{**tiny, "max_epochs": 1})
    model.fit(
        df, target_col=TARGETS, futr_cols=["warm", "kind"], static_cols=["size"], cat_cols=["kind"], static_df=static
    )
    ahead = model.make_future_frame().assign(warm=0.5, kind="x")
    assert len(ahead) == 6  # a row per id and step, for all targets
    assert np.isfinite(values_of(model.predict(futr_df=ahead))).all()


def test_one_target_is_the_same_in_either_way(tiny, make_rows):
    how = {**tiny, "max_epochs": 1}
    rows = make_rows().rename(columns={"y": "load"})
    alone = TXLForecaster(**how).fit(rows, target_col="load").predict()
    mixed = TXLForecaster(channels="mixed", **how)
    pd.testing.assert_frame_equal(mixed.fit(rows, target_col="load").predict(), alone)
    listed = mixed.fit(rows, target_col=["load"]).predict()
    np.testing.assert_array_equal(listed["load_TXL"], alone["TXL"])


def test_a_target_may_be_missing_in_one_series_but_not_all_of_them(tiny):
    df = wide()
    df.loc[df.unique_id == "b", "heat"] = np.nan
    model = TXLForecaster(channels="mixed", **{**tiny, "max_epochs": 1}).fit(df, target_col=TARGETS)
    found = model.predict()
    assert found[found.unique_id == "b"]["heat_TXL"].isna().all()
    assert np.isfinite(found[found.unique_id == "b"][["load_TXL", "flow_TXL"]].to_numpy()).all()
    df.loc[df.unique_id == "b", TARGETS] = np.nan
    with pytest.raises(ColumnError, match=r"no value at all in 1 series, such as \['b'\]"):
        TXLForecaster(channels="mixed", **tiny).fit(df, target_col=TARGETS)
    skipping = TXLForecaster(channels="mixed", on_bad_series="skip", **{**tiny, "max_epochs": 0})
    with pytest.warns(UserWarning, match="1 series was skipped"):
        skipping.fit(df, target_col=TARGETS)
    assert skipping.skipped_ == (("b", "no target has any value"),)


def test_channels_must_be_one_of_two_words(tiny):
    with pytest.raises(ParameterError, match="channels='joint' is not known"):
        TXLForecaster(channels="joint", **tiny).fit(wide(), target_col=TARGETS)


# -------------------------------------------------------------------------------------------------------------- streams


@pytest.fixture(scope="module")
def graph(joint, tmp_path_factory):
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    path = tmp_path_factory.mktemp("mixed") / "plant.onnx"
    joint.export_onnx(path)
    joint.export_state(path.with_suffix(".txl"))
    return path


def test_a_graph_has_all_targets_as_channels_of_a_stream(graph, model):
    session = StreamSession(graph)
    session.restore(graph.with_suffix(".txl"))
    for _, row in rest(wide())[lambda df: df.unique_id == "b"].iterrows():
        values = {t: None if np.isnan(row[t]) else row[t] for t in TARGETS}
        result = session.step({"b": {"time": row["ds"].to_pydatetime(), "values": values}})["b"]
    model.update(rest(wide()))
    expected = values_of(model.predict(ids=["b"], quantiles=[0.1, 0.5, 0.8]))
    names = [c for c in model.predict(ids=["b"], quantiles=[0.1, 0.5, 0.8]).columns if "_ql" in c]
    expected = model.predict(ids=["b"], quantiles=[0.1, 0.5, 0.8])[names].to_numpy().reshape(3, 3, 3)
    # The graph adds in another order; relative to numbers up to 600.
    np.testing.assert_allclose(result.quantiles, expected, rtol=1e-5, atol=1e-4)


def test_the_twin_in_torch_says_the_same(joint, model):
    live = joint.live()
    rows = wide()[lambda df: df.unique_id == "a"]
    for _, row in rows.iterrows():
        values = {t: None if np.isnan(row[t]) else row[t] for t in TARGETS}
        result = live.step({"a": {"time": row["ds"].to_pydatetime(), "values": values}})["a"]
    found = joint.predict(df=rows, quantiles=[0.1, 0.5, 0.8])
    names = [c for c in found.columns if "_ql" in c]
    expected = found[names].to_numpy().reshape(3, 3, 3)
    np.testing.assert_allclose(result.quantiles, expected, rtol=1e-5, atol=1e-4)
