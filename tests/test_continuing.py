"""Training that goes on: what moves, what stays, what is trained on again, and what was forgotten."""

import copy

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from txl_ts import TXLForecaster
from txl_ts.errors import FileFormatError, ParameterError, StampError
from txl_ts.store import Bundle, load, save

HOUR = pd.Timedelta(hours=1)


def more(rows, n_rows=40, *, seed=3, period=6):
    """Rows after those of each series, of another regime."""
    rng = np.random.default_rng(seed)
    parts = []
    for name, part in rows.groupby("unique_id"):
        ds = part.ds.max() + HOUR * np.arange(1, n_rows + 1)
        y = 3 * np.sin(2 * np.pi * np.arange(n_rows) / period) + rng.normal(0, 0.1, n_rows)
        parts.append(pd.DataFrame({"unique_id": name, "ds": ds, "y": y}))
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def rows(make_rows):
    return make_rows()


@pytest.fixture(scope="module")
def news(rows):
    return more(rows)


@pytest.fixture(scope="module")
def remembering(tiny, rows):
    """A forecaster that keeps stretches of its rows; tests change copies."""
    return TXLForecaster(**tiny | {"max_epochs": 0}, replay_size=4).fit(rows, val_size=12)


def weights(model):
    return {name: tensor.numpy().copy() for name, tensor in model._model.state_dict().items()}


def same(one, other):
    return all(np.array_equal(tensor, other[name]) for name, tensor in one.items())


# ------------------------------------------------------------------------------------------------------------ the rows


def test_the_weights_learn_from_the_new_rows_and_the_memories_take_them_in(forecaster, news):
    before, moved = weights(forecaster), copy.deepcopy(forecaster)
    forecaster.partial_fit(news)
    after = weights(forecaster)
    assert not same(after, before)
    assert all(np.array_equal(after[name], before[name]) for name in before if name.startswith("normaliser."))
    moved._model = forecaster._model  # the memories of before, walked over the rows by the new weights
    moved.update(news)
    pd.testing.assert_frame_equal(forecaster.predict(), moved.predict())


def test_training_lowers_the_error_on_the_new_regime(forecaster, news):
    later = more(news, seed=4)

    def error(model):
        return (model.update(later).pipe(lambda said: said.TXL - said.y)).abs().mean()

    taught = copy.deepcopy(forecaster).partial_fit(news, max_epochs=6)
    untaught = copy.deepcopy(forecaster)
    untaught.update(news)
    assert error(taught) < 0.9 * error(untaught)


def test_a_new_series_begins_and_others_stay_as_they_were(forecaster, rows):
    before = forecaster.predict(ids=["T2"])
    new = more(rows[rows.unique_id == "T1"]).assign(unique_id="T9")
    forecaster.partial_fit(new)
    assert set(forecaster.predict().unique_id) == {"T1", "T2", "T3", "T9"}
    pd.testing.assert_frame_equal(forecaster.predict(ids=["T2"]), before)  # until its next rows


def test_rows_that_were_trained_on_later_are_refused_by_a_backtest(forecaster, rows, news):
    forecaster.partial_fit(news, max_epochs=0)
    with pytest.raises(ParameterError, match="the backtest would have seen its answers"):
        forecaster.cross_validation(pd.concat([rows, news]), n_windows=5, use_fitted=True)


def test_what_belonged_to_other_weights_is_dropped(forecaster, news):
    forecaster.calibrate()
    forecaster.partial_fit(news)
    assert forecaster.calibration_ is None
    with pytest.raises(ParameterError, match="no rows were held out"):
        forecaster.calibrate()
    with pytest.raises(ParameterError, match="after partial_fit they are not all"):
        forecaster.fitted_values()


def test_the_first_call_is_a_fit_of_so_many_epochs(tiny, rows):
    fresh = TXLForecaster(**tiny).partial_fit(rows.rename(columns={"y": "load"}), max_epochs=1, target_col="load")
    fitted = TXLForecaster(**tiny | {"max_epochs": 1}).fit(rows)
    assert same(weights(fresh), weights(fitted))
    assert fresh.max_epochs == 2


def test_it_repeats_with_its_seed_and_leaves_the_users_random_numbers_alone(forecaster, news):
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first, second = (copy.deepcopy(forecaster).partial_fit(news) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert same(weights(first), weights(second))


def test_no_epochs_only_move_the_memories(forecaster, news):
    updated = copy.deepcopy(forecaster)
    updated.update(news)
    pd.testing.assert_frame_equal(forecaster.partial_fit(news, max_epochs=0).predict(), updated.predict())


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"df": "old"}, StampError, "T1.* rows too early.*Nothing was changed. Give partial_fit only rows"),
        ({"max_epochs": -1}, ParameterError, "max_epochs=-1"),
        ({"target_col": "y"}, ParameterError, r"the columns are those of the first call: leave \['target_col'\] out"),
    ],
)
def test_a_refused_call_changes_nothing(forecaster, rows, news, wrong, error, message):
    before, said = weights(forecaster), forecaster.predict()
    with pytest.raises(error, match=message):
        forecaster.partial_fit(rows if wrong.pop("df", None) else news, **wrong)
    assert same(weights(forecaster), before)
    pd.testing.assert_frame_equal(forecaster.predict(), said)


# ------------------------------------------------------------------------------------------------------------- replay


def test_kept_stretches_are_rows_that_were_trained_on(remembering, rows):
    assert len(remembering._replay.kept) == 4
    assert remembering._replay.n_rows == 16 + 8 * 3 + 3
    trained = {name: part.y.to_numpy(np.float32)[:-12] for name, part in rows.groupby("unique_id")}
    for stretch in remembering._replay.kept:
        y = trained[stretch.id]
        at = [
            i for i in range(len(y)) if np.array_equal(y[i : i + len(stretch.values)], stretch.values, equal_nan=True)
        ]
        assert len(at) == 1
        assert at[0] % 43 == 0


def test_old_rows_are_trained_on_again(remembering, news):
    with_old = copy.deepcopy(remembering).partial_fit(news)
    without = copy.deepcopy(remembering)
    without._replay = type(without._replay)()
    without.partial_fit(news)
    assert not same(weights(with_old), weights(without))
    assert {stretch.id for stretch in with_old._replay.kept} <= {"T1", "T2", "T3"}
    assert with_old._replay.n_seen == remembering._replay.n_seen + 3


def test_a_loaded_model_goes_on_as_the_saved_one(remembering, news, tmp_path):
    remembering.save(tmp_path / "model.txl")
    loaded = TXLForecaster.load(tmp_path / "model.txl")
    kept = copy.deepcopy(remembering)
    for rows in (news, more(news)):
        loaded.partial_fit(rows)
        kept.partial_fit(rows)
    assert same(weights(loaded), weights(kept))
    assert loaded._replay.n_seen == kept._replay.n_seen
    pd.testing.assert_frame_equal(loaded.predict(), kept.predict())


def test_columns_beside_the_target_are_kept_and_saved_too(tiny, rows, news, tmp_path):
    def told(df):
        return df.assign(warm=np.cos(np.arange(len(df))), open=(np.arange(len(df)) % 3 > 0).astype(int))

    sites = pd.DataFrame({"unique_id": ["T1", "T2", "T3"], "area": [1.0, 2.0, 3.0]})
    model = TXLForecaster(**tiny | {"max_epochs": 0}, replay_size=3).fit(
        told(rows), hist_cols=["warm"], futr_cols=["open"], cat_cols=["open"], static_cols=["area"], static_df=sites
    )
    model.save(tmp_path / "model.txl")
    loaded = TXLForecaster.load(tmp_path / "model.txl").partial_fit(told(news))
    assert same(weights(loaded), weights(copy.deepcopy(model).partial_fit(told(news))))


def test_mixed_channels_are_kept_and_saved_too(tiny, rows, news, tmp_path):
    def wide(df):
        return df.assign(z=df.y * 2)

    model = TXLForecaster(**tiny | {"max_epochs": 0}, replay_size=3, channels="mixed").fit(
        wide(rows), target_col=["y", "z"]
    )
    model.save(tmp_path / "model.txl")
    loaded = TXLForecaster.load(tmp_path / "model.txl").partial_fit(wide(news))
    assert same(weights(loaded), weights(copy.deepcopy(model).partial_fit(wide(news))))


def test_a_file_without_replay_says_nothing_of_it(fitted, tmp_path):
    fitted.save(tmp_path / "model.txl")
    bundle = load(tmp_path / "model.txl", role="model", expected=_expected)
    assert "replay" not in bundle.config
    assert "replay_size" not in bundle.config["params"]


def _expected(config, positions):
    from txl_ts.estimators import files

    return files._expected(config, positions)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("config", {"size": 1}),
        ("config", {"n_seen": 1.5}),
        ("config", {"n_rows": 3}),
        ("positions", {"replay_lengths": [1, 1, 1, 1]}),
        ("positions", {"replay": ["T1", "T2"]}),
        ("positions", {"replay": ["T1", "T2", None, "T3"]}),
    ],
)
def test_a_crafted_sample_is_refused(remembering, tmp_path, part, change):
    remembering.save(tmp_path / "model.txl")
    bundle = load(tmp_path / "model.txl", role="model", expected=_expected)
    config, positions = copy.deepcopy(bundle.config), copy.deepcopy(bundle.positions)
    (config["replay"] if part == "config" else positions).update(change)
    save(tmp_path / "bad.txl", Bundle("model", config, bundle.tensors, positions))
    with pytest.raises(FileFormatError):
        TXLForecaster.load(tmp_path / "bad.txl")


def test_series_that_are_forgotten_are_not_trained_on_again(remembering, tmp_path):
    model = copy.deepcopy(remembering)
    model.forget(["T1"])
    assert "T1" in {stretch.id for stretch in remembering._replay.kept}
    assert "T1" not in {stretch.id for stretch in model._replay.kept}
    remembering.save(tmp_path / "model.txl")
    assert TXLForecaster.from_pretrained(tmp_path / "model.txl")._replay.kept == ()


def test_a_negative_size_is_refused(tiny, rows):
    with pytest.raises(ParameterError, match="replay_size=-1"):
        TXLForecaster(**tiny, replay_size=-1).fit(rows)


# ------------------------------------------------------------------------------------------------------------- regimes


@pytest.fixture(scope="module")
def regimes(rows):
    """Rows to learn from, and series of their own to judge by, so that the public backtest may be the oracle."""
    learned = [rows, more(rows)]
    return learned, [df.assign(unique_id="held-" + df.unique_id) for df in learned]


def test_the_report_holds_the_errors_of_backtests_and_what_was_lost(tiny, regimes):
    report = TXLForecaster(**tiny).learn_regimes(*regimes, n_windows=6)
    assert report[["after", "on"]].to_numpy().tolist() == [[0, 0], [1, 0], [1, 1]]
    again, found = TXLForecaster(**tiny), []
    for after, df in enumerate(regimes[0]):
        again.partial_fit(df)
        for test in regimes[1][: after + 1]:
            said = again.cross_validation(test, n_windows=6, use_fitted=True)
            found.append((said.TXL - said.y).abs().groupby(said.unique_id).mean().mean())
    # Frames carry float32; sums over rows differ in order.
    assert report.mae.tolist() == pytest.approx(found, rel=1e-5)
    assert report.forgetting.tolist() == pytest.approx([np.nan, found[1] - found[0], np.nan], rel=1e-3, nan_ok=True)


def test_the_report_is_a_frame_of_the_kind_that_was_given(tiny, regimes):
    given = [[pl.DataFrame({name: df[name].to_list() for name in df}) for df in part] for part in regimes]
    report = TXLForecaster(**tiny | {"max_epochs": 0}).learn_regimes(*given, n_windows=6, max_epochs=0)
    assert isinstance(report, pl.DataFrame)
    assert report.columns == ["after", "on", "mae", "forgetting"]
    assert report["forgetting"][1] == 0  # nothing was trained


def test_columns_that_would_be_ignored_are_refused(forecaster, tiny, rows, news):
    with pytest.raises(ParameterError, match=r"leave \['target_col'\] out"):
        forecaster.learn_regimes([news], [rows], n_windows=1, target_col="z")
    with pytest.raises(ParameterError, match=r"partial_fit does not know \['taget_col'\].*target_col"):
        TXLForecaster(**tiny).partial_fit(rows, taget_col="y")


def test_regimes_come_in_pairs(forecaster, rows):
    with pytest.raises(ParameterError, match="1 frames to train on and 0 to judge by: give a pair per regime"):
        forecaster.learn_regimes([rows], [], n_windows=2)
