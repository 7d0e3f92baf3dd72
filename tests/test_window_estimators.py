"""Another length of memory as a user meets it: memories that are rebuilt or go over, files, sessions."""

import numpy as np
import pandas as pd
import pytest

from txl_ts import TXLClassifier, TXLEncoder, TXLForecaster
from txl_ts.errors import ParameterError
from txl_ts.estimators.forecaster import NotFittedError


def split_rows(rows, n=6):
    """The last rows of each series, and those before."""
    last = rows.groupby("unique_id").cumcount(ascending=False) < n
    return rows[~last], rows[last]


@pytest.fixture(scope="module")
def history(make_rows):
    return split_rows(make_rows())


@pytest.fixture(scope="module")
def early(history, tiny):
    """Fitted on all rows but the last few."""
    return TXLForecaster(**tiny).fit(history[0], val_size=12)


def same(found, expected):
    pd.testing.assert_frame_equal(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mem_len", [0, 2, 9, (8, 1)], ids=str)
def test_right_after_a_fit_the_memories_are_those_of_a_walk_with_the_other_length(early, history, mem_len):
    other = early.with_memory(mem_len, clamp_len=4)
    assert (other.params_["mem_len"], other.params_["clamp_len"]) == (
        list(mem_len) if isinstance(mem_len, tuple) else mem_len,
        4,
    )
    assert other.get_params()["mem_len"] == mem_len
    assert other.params_["state_nbytes"] == other._model.state_nbytes()
    same(other.predict(), other.predict(df=history[0]))
    same(other.update(history[1]), early.with_memory(mem_len, clamp_len=4).update(history[1]))


def test_the_estimator_itself_stays_as_it_is(early, history):
    before, params = early.predict(), early.get_params()
    other = early.with_memory(9)
    other.update(history[1])
    pd.testing.assert_frame_equal(early.predict(), before)
    assert early.get_params() == params
    assert "clamp_len" not in early.params_
    assert (other.predict()["TXL"] != before["TXL"]).any()


def test_what_the_copy_learns_later_the_estimator_itself_has_not_seen(tiny, history):
    early, news = history
    model = TXLForecaster(**{**tiny, "max_epochs": 0}).fit(early)
    model.with_memory(2).partial_fit(news, max_epochs=0)
    whole = pd.concat([early, news])
    assert len(model.cross_validation(whole, n_windows=4, use_fitted=True)) == 3 * 4 * 3


def test_after_an_update_the_newest_rows_go_over_and_a_shorter_memory_of_one_layer_is_exact(tiny, history):
    rows, new = history
    model = TXLForecaster(**{**tiny, "n_layers": 1}).fit(rows)
    first, rest = split_rows(new, 3)
    model.update(first)
    shorter = model.with_memory(2)
    same(shorter.predict(), model.predict())  # what was said stays until rows come
    shorter.update(rest)
    same(shorter.predict(), shorter.predict(df=pd.concat([rows, new])))


def test_rows_rebuild_a_longer_memory_of_a_file(early, history, tmp_path):
    early.save(tmp_path / "model.txl")
    loaded = TXLForecaster.load(tmp_path / "model.txl")
    rebuilt = loaded.with_memory(9, df=history[0])
    same(rebuilt.predict(), early.with_memory(9).predict())
    carried = loaded.with_memory(9)
    assert carried._fleet.state["count"][:, 0].max() == 3 * 6  # three phases of mem_len + 1 visits, in room for 30
    few = loaded.with_memory(9, df=history[0][history[0].unique_id == "T2"])
    assert few.predict()["unique_id"].unique().tolist() == ["T2"]


def test_a_copy_with_a_clamp_goes_through_a_file(early, history, tmp_path):
    other = early.with_memory((8, 1), clamp_len=4)
    other.save(tmp_path / "other.txl")
    again = TXLForecaster.load(tmp_path / "other.txl")
    assert again.config_ == other.config_
    pd.testing.assert_frame_equal(again.predict(), other.predict())
    again.update(history[1])
    other.update(history[1])
    pd.testing.assert_frame_equal(again.predict(), other.predict())


def test_a_session_of_the_copy_goes_on_where_it_stands(early, history, tmp_path):
    other = early.with_memory(9, clamp_len=4)
    other.export_state(tmp_path / "state.txl")
    session = other.live()
    session.restore(tmp_path / "state.txl")
    new = history[1][history[1].unique_id == "T1"]
    for time, y in zip(new.ds, new.y, strict=True):
        said = session.step({"T1": {"time": time, "values": {"y": y}}})["T1"]
    other.update(history[1])
    expected = other.predict(ids=["T1"])
    np.testing.assert_allclose(said.median.ravel(), expected["TXL"], rtol=1e-4, atol=1e-4)


@pytest.mark.slow  # an export through torch takes half a minute
def test_the_graph_of_the_copy_is_compared_with_it_at_export(early, tmp_path):
    other = early.with_memory((8, 1), clamp_len=4)
    contract = other.export_onnx(tmp_path / "other.onnx")
    assert [state["dims"][1] for state in contract["states"][:4:2]] == [27, 6]


def test_calibrated_bands_are_dropped_with_the_memory_that_they_were_measured_with(tiny, make_rows):
    model = TXLForecaster(**tiny).fit(make_rows(), val_size=30).calibrate()
    assert model.with_memory(2).calibration_ is None
    assert model.calibration_ is not None


def test_what_cannot_work_is_refused(early, tiny, history):
    with pytest.raises(NotFittedError):
        TXLForecaster(**tiny).with_memory(3)
    with pytest.raises(ParameterError, match=r"mem_len=\(3, 4, 5\) has 3 lengths for n_layers=2"):
        early.with_memory((3, 4, 5))
    with pytest.raises(ParameterError, match="static_df goes with df=rows"):
        early.with_memory(3, static_df=history[0])


@pytest.mark.parametrize("kind", [TXLClassifier, TXLEncoder])
def test_estimators_of_rows_take_another_memory_and_their_series_go_on(kind):
    rng = np.random.default_rng(0)
    X, name = rng.normal(size=(90, 2)).astype(np.float32), np.repeat(["a", "b", "c"], 30)
    y = (np.roll(X[:, 0], 2) > 0).astype(int)
    sizes = {"d_model": 8, "n_heads": 2, "n_layers": 1, "mem_len": 4, "max_epochs": 1}
    model = kind(**sizes).fit(X, y, series_id=name)
    ask = "predict_proba" if kind is TXLClassifier else "transform"
    shorter, longer = model.with_memory(2), model.with_memory(9, clamp_len=4)
    new, names = rng.normal(size=(3, 2)).astype(np.float32), np.array(["a", "b", "c"])
    whole = np.concatenate([np.concatenate([X[name == one], new[[i]]]) for i, one in enumerate(names)])
    expected = getattr(shorter, ask)(whole, series_id=np.repeat(names, 31))[30::31]
    found = getattr(shorter, ask)(new, series_id=names, start="fitted")
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)  # one layer: a shorter memory is exact
    assert longer.params_["clamp_len"] == 4
    assert getattr(longer, ask)(new, series_id=names, start="fitted").shape == expected.shape
    assert (model.mem_len, model.config_.mem_len, longer.config_.mem_len) == (4, 4, 9)


SMALL = {"h": 2, "quantiles": (0.1, 0.5, 0.9), "patch_len": 2, "mem_len": 4, "lookback": 3, "half_life": 12}
SMALL |= {"d_model": 8, "n_layers": 1, "n_heads": 2, "max_epochs": 1}


def test_where_time_is_uneven_memories_are_rebuilt_and_lengths_are_swept():
    rng = np.random.default_rng(0)
    stamps = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.cumsum(rng.integers(20, 120, 120)), unit="min")
    df = pd.DataFrame({"unique_id": "a", "ds": stamps, "y": rng.normal(size=120).cumsum()})
    model = TXLForecaster(freq=None, **SMALL).fit(df, val_size=20)
    other = model.with_memory(9)
    same(other.predict(), other.predict(df=df))
    assert model.sweep_memory(mem_lens=(0, 4, 9)).losses["pinball"].shape == (3, 19)


def test_mixed_channels_with_columns_known_ahead_are_swept_channel_by_channel():
    t = np.arange(150)
    rng = np.random.default_rng(0)
    load, flow = np.sin(t / 4) + rng.normal(0, 0.1, 150), np.cos(t / 4) * 10
    df = pd.DataFrame({"unique_id": "a", "ds": t, "load": load, "flow": flow, "warm": np.cos(t / 3)})
    model = TXLForecaster(freq=1, season_length=1, channels="mixed", **SMALL)
    model.fit(df, target_col=["load", "flow"], futr_cols=["warm"], val_size=20)
    assert model.sweep_memory(mem_lens=(0, 4), n_windows=3).losses["squared"].shape == (2, 2 * 3)
    other = model.with_memory(9)
    ahead = other.make_future_frame().assign(warm=0.3)
    same(other.predict(futr_df=ahead), other.predict(df=df, futr_df=ahead))
