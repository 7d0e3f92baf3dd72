"""The tabular estimators: rows and panels in, classes, values and hidden rows out, series told apart or refused."""

import copy
import datetime
import pickle  # noqa: TID251 - joblib copies estimators with it; no file of ours is read or written

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from txl_ts import PanelSplit, TXLClassifier, TXLEncoder, TXLRegressor
from txl_ts.errors import (
    ColumnError,
    FileFormatError,
    ParameterError,
    RowOrderWarning,
    ShapeError,
    StampError,
    StateError,
    TxlError,
)

TINY = {"d_model": 8, "n_heads": 2, "mem_len": 6, "max_epochs": 3, "batch_size": 4}
ESTIMATORS = [TXLClassifier, TXLRegressor, TXLEncoder]


def rows_of(n_rows=(40, 30, 25), *, seed=0):
    """Rows of three machines, one behind the other; the label says whether the last three values were high."""
    rng = np.random.default_rng(seed)
    X, y, ids = [], [], []
    for i, n in enumerate(n_rows):
        x = rng.normal(size=(n, 2))
        past = np.concatenate([np.zeros(2), x[:, 0]])
        X.append(x)
        y.append((past[:-2] + past[1:-1] + past[2:] > 0).astype(int))
        ids += [f"pump-{i}"] * n
    return np.concatenate(X).astype(np.float32), np.concatenate(y), np.array(ids)


def panel_of(n_series=12, n_rows=9, *, seed=0):
    X = np.random.default_rng(seed).normal(size=(n_series, n_rows, 2)).astype(np.float32)
    return X, np.where(X[:, :, 0].mean(axis=1) > 0, "up", "down")


@pytest.fixture(scope="module")
def data():
    return rows_of()


@pytest.fixture(scope="module")
def fitted(data):
    """One fitted estimator per class, never changed."""
    X, y, ids = data
    return {cls: cls(**TINY).fit(X, y, series_id=ids) for cls in ESTIMATORS}


def answers(model, X, **named):
    return getattr(model, "predict_proba", getattr(model, "predict", None) or model.transform)(X, **named)


# ------------------------------------------------------------------------------------------------------ rows and series


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_series_together_are_each_series_alone(fitted, data, cls):
    X, _, ids = data
    together = answers(fitted[cls], X, series_id=ids)
    for name in np.unique(ids):
        alone = answers(fitted[cls], X[ids == name], series_id=name)
        # float32: matrix products of other batch sizes.
        np.testing.assert_allclose(together[ids == name], alone, rtol=0, atol=2e-5)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_interleaved_series_give_the_answers_of_series_behind_each_other(fitted, data, cls):
    X, _, ids = data
    order = np.argsort(np.concatenate([np.arange(40), np.arange(30) + 0.3, np.arange(25) + 0.6]), kind="stable")
    mixed = answers(fitted[cls], X[order], series_id=ids[order])
    np.testing.assert_array_equal(mixed, answers(fitted[cls], X, series_id=ids)[order])


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_later_rows_change_no_earlier_answer(fitted, data, cls):
    X, _, ids = data
    changed = X.copy()
    changed[ids == "pump-1"] = np.where(np.arange(30)[:, None] < 20, X[ids == "pump-1"], np.nan)
    before, after = (answers(fitted[cls], x, series_id=ids)[ids == "pump-1"] for x in (X, changed))
    np.testing.assert_array_equal(before[:20], after[:20])
    assert not np.array_equal(before[20:], after[20:])


def test_a_memory_beats_a_model_without_one(data):
    X, y, ids = rows_of((300, 300, 300))
    new_x, new_y, new_ids = rows_of((300, 300), seed=9)
    strong = {"d_model": 16, "n_heads": 2, "learning_rate": 1e-2}
    score = {
        mem_len: TXLClassifier(**strong, mem_len=mem_len)
        .fit(X, y, series_id=ids)
        .score(new_x, new_y, series_id=new_ids)
        for mem_len in (0, 8)
    }
    # Two of the three values that decide lie in the past: one of them is worth about 70 %.
    assert score[8] > 0.9
    assert score[0] < 0.8


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_deterministic_answers_do_not_depend_on_other_series_to_the_bit(fitted, data, cls):
    X, _, ids = data
    model = copy.deepcopy(fitted[cls]).set_params(deterministic=True)
    together = answers(model, X, series_id=ids)
    for name in np.unique(ids):
        np.testing.assert_array_equal(together[ids == name], answers(model, X[ids == name], series_id=name))


def test_without_names_all_rows_are_one_series(data):
    X, y, _ = data
    unnamed = TXLClassifier(**TINY).fit(X, y)
    named = TXLClassifier(**TINY).fit(X, y, series_id="pump")
    np.testing.assert_array_equal(unnamed.predict_proba(X), named.predict_proba(X, series_id="pump"))


def test_answers_come_in_the_dtype_of_the_network(fitted, data):
    X, _, ids = data
    assert fitted[TXLRegressor].predict(X.astype(float), series_id=ids).dtype == np.float32
    assert fitted[TXLClassifier].predict_proba(X, series_id=ids).dtype == np.float32
    assert fitted[TXLEncoder].transform(X, series_id=ids).shape == (95, 8)


def test_probabilities_are_of_the_sorted_classes(data):
    X, y, ids = data
    words = np.array(["low", "high"], dtype=object)[y]
    model = TXLClassifier(**TINY).fit(X, words, series_id=ids)
    assert model.classes_.tolist() == ["high", "low"]
    p = model.predict_proba(X, series_id=ids)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(model.predict(X, series_id=ids), model.classes_[p.argmax(axis=1)])


def test_values_come_in_the_units_of_the_target(data):
    X, _, ids = data
    near, far = (TXLRegressor(**TINY).fit(X, y, series_id=ids) for y in (X[:, 1], 1e6 + 1e3 * X[:, 1]))
    found = (far.predict(X, series_id=ids).astype(float) - 1e6) / 1e3
    # float32 steps by 0.06 at a million: .00006 of a unit, and training rounds on its own.
    np.testing.assert_allclose(found, near.predict(X, series_id=ids), atol=0.02)


def test_missing_values_are_taken_as_they_are(data):
    X, y, ids = data
    holes = X.copy()
    holes[np.random.default_rng(0).random(X.shape) < 0.3] = np.nan
    holes[:, 1] = np.nan  # a feature that never came
    for cls in ESTIMATORS:
        model = cls(**TINY).fit(holes, y, series_id=ids)
        assert np.isfinite(answers(model, holes, series_id=ids)).all()


@pytest.mark.parametrize("scaler", ["standard", "running"])
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_scalers_and_poolings_learn(data, scaler, pooling):
    X, y, ids = data
    model = TXLClassifier(**{**TINY, "max_epochs": 10}, scaler=scaler, pooling=pooling).fit(X, y, series_id=ids)
    assert model.score(X, y, series_id=ids) > 0.7


# --------------------------------------------------------------------------------------------------------------- panels


def test_a_panel_with_a_label_per_series_gives_one_answer_per_series():
    X, y = panel_of()
    model = TXLClassifier(**{**TINY, "max_epochs": 20}).fit(X, y)
    assert model.predict(X).shape == (12,)
    assert model.predict_proba(X).shape == (12, 2)
    assert model.score(X, y) > 0.8
    # The answer of a series is that of its last row.
    ids = np.repeat(np.arange(12), 9)
    by_row = model.predict_proba(X.reshape(-1, 2), series_id=ids)
    np.testing.assert_allclose(by_row[8::9], model.predict_proba(X), atol=2e-5)


def test_a_panel_with_a_label_per_row_is_the_same_rows_with_names():
    X, _ = panel_of()
    y = X[:, :, 0].cumsum(axis=1)
    ids = np.repeat(np.arange(12), 9)
    panel = TXLRegressor(**TINY).fit(X, y)
    named = TXLRegressor(**TINY).fit(X.reshape(-1, 2), y.ravel(), series_id=ids)
    found = panel.predict(X)
    assert found.shape == (12, 9)
    np.testing.assert_array_equal(found.ravel(), named.predict(X.reshape(-1, 2), series_id=ids))
    assert panel.score(X, y) == named.score(X.reshape(-1, 2), y.ravel(), series_id=ids)


def test_a_series_of_a_panel_ends_where_only_missing_rows_follow():
    X, y = panel_of()
    short = X.copy()
    short[3, 6:] = np.nan
    model = TXLClassifier(**TINY).fit(short, y)
    np.testing.assert_allclose(model.predict_proba(short)[3], model.predict_proba(X[3:4, :6])[0], atol=2e-5)


@pytest.mark.parametrize("cls", [TXLClassifier, TXLRegressor])
def test_rows_behind_the_end_of_a_series_are_not_scored(cls):
    X, _ = panel_of()
    y = (X[:, :, 0] > 0).astype(int)
    X[::2, 4:], y[::2, 4:] = np.nan, 1
    ids, real = np.repeat(np.arange(12), 9), np.isfinite(X).all(axis=2).ravel()
    model, weight = cls(**TINY).fit(X, y), np.random.default_rng(0).random(y.shape)
    named = cls(**TINY).fit(X.reshape(-1, 2)[real], y.ravel()[real], series_id=ids[real])
    rows = (X.reshape(-1, 2)[real], y.ravel()[real])
    assert model.score(X, y) == pytest.approx(named.score(*rows, series_id=ids[real]), abs=1e-5)
    found, expected = model.score(X, y, weight), named.score(*rows, weight.ravel()[real], series_id=ids[real])
    assert found == pytest.approx(expected, abs=1e-5)


def test_an_encoder_gives_one_hidden_row_per_series_of_a_panel():
    X, _ = panel_of()
    assert TXLEncoder(**TINY).fit_transform(X).shape == (12, 8)


# ---------------------------------------------------------------------------------------------- frames of all libraries


@pytest.mark.parametrize("cls", ESTIMATORS)
@pytest.mark.parametrize("library", [pd, pl])
def test_frames_give_the_bits_of_arrays(fitted, data, cls, library):
    X, y, ids = data
    frame = library.DataFrame({"load": X[:, 0], "heat": X[:, 1]})
    model = cls(**TINY).fit(frame, library.Series(y), series_id=library.Series(ids))
    assert model.feature_names_in_.tolist() == ["load", "heat"]
    np.testing.assert_array_equal(
        answers(model, frame, series_id=library.Series(ids)), answers(fitted[cls], X, series_id=ids)
    )
    with pytest.raises(ValueError, match="feature names should match"):
        answers(model, frame[["heat", "load"]], series_id=ids)


@pytest.mark.parametrize("container", ["pandas", "polars"])
def test_an_encoder_gives_the_frame_that_was_asked_for(fitted, data, container):
    X, _, ids = data
    out = clone(fitted[TXLEncoder]).set_output(transform=container).fit(X, series_id=ids).transform(X, series_id=ids)
    assert type(out).__module__.startswith(container)
    assert list(out.columns) == [f"txlencoder{i}" for i in range(8)]


# -------------------------------------------------------------------------------------------------------------- guards


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_rows_without_names_are_refused_where_the_fit_had_them(fitted, data, cls):
    with pytest.raises(ParameterError, match=r"was fitted with series_id and is given 95 rows without.*Pass series_id"):
        answers(fitted[cls], data[0])
    assert len(answers(fitted[cls], data[0][:1])) == 1  # one row cannot mix anything


@pytest.mark.parametrize(
    "time",
    [
        np.tile(np.arange(10), 2),
        np.repeat(np.arange(10), 2),
        pd.Series(pd.date_range("2026-01-01", periods=10, freq="h").tolist() * 2),
        pd.Series(pd.date_range("2026-01-01", periods=10, freq="h", tz="Europe/Paris").tolist() * 2),
        [datetime.datetime(2026, 1, 1 + i % 10) for i in range(20)],
    ],
    ids=["numbers", "repeats", "pandas", "zone", "datetime"],
)
def test_time_that_goes_back_is_refused_since_the_rows_are_of_several_series(data, time):
    X, y, _ = data
    with pytest.raises(StampError, match=r"time repeats or goes back .*first at row .*series_id=…"):
        TXLRegressor(**TINY).fit(X[:20], y[:20], time=time)
    ids = np.array([0] * 10 + [1] * 10)
    if len(set(np.asarray(time)[:10].tolist())) == 10:
        TXLRegressor(**TINY).fit(X[:20], y[:20], time=time, series_id=ids)


def test_the_message_names_series_row_and_stamps(data):
    X, y, ids = data
    time = np.arange(95)
    time[50] = 3
    with pytest.raises(StampError, match=r"time of series 'pump-1' repeats or goes back 1 times \(first at row 50: 3"):
        TXLClassifier(**TINY).fit(X, y, series_id=ids, time=time)


def test_a_shuffled_frame_is_noticed_by_its_index(data):
    X, y, _ = data
    frame = pd.DataFrame(X, index=pd.date_range("2026-01-01", periods=95, freq="h"))
    shuffled, _, labels, _ = train_test_split(frame, y, random_state=0)
    with pytest.raises(StampError, match="time repeats or goes back"):
        TXLClassifier(**TINY).fit(shuffled, labels)
    with pytest.warns(RowOrderWarning, match="index of X goes backwards"):
        TXLClassifier(**TINY).fit(pd.DataFrame(X).loc[::-1], y)


WRONG = {
    "names too short": ({"series_id": ["a"] * 94}, ShapeError, r"series_id has shape \(94,\), and X has 95 rows"),
    "names of floats": ({"series_id": np.arange(95.0)}, ColumnError, "series_id must hold strings or integers"),
    "missing name": ({"series_id": ["a"] * 94 + [None]}, ColumnError, "got NoneType, str"),
    "time too short": ({"time": np.arange(94)}, ShapeError, r"time has shape \(94,\), expected \(95,\)"),
    "time as text": ({"time": ["x"] * 95}, ColumnError, "time must hold datetimes or numbers"),
    "time of things": ({"time": np.array([{}] * 95)}, ColumnError, "time must hold datetimes or numbers"),
    "time with a hole": ({"time": np.where(np.arange(95) == 4, np.nan, np.arange(95))}, StampError, "row 4"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_name_or_time_is_told(data, case):
    named, error, text = WRONG[case]
    with pytest.raises(error, match=text):
        TXLClassifier(**TINY).fit(data[0], data[1], **named)


PARAMETERS = {
    "no heads": ({"n_heads": 0}, "n_heads=0"),
    "unknown scaler": ({"scaler": "standart"}, "scaler='standart' is not known.*'standard'"),
    "unknown pooling": ({"pooling": "max"}, "pooling='max' is not known"),
    "misspelt auto": ({"mem_len": "atuo"}, "mem_len='atuo'"),
    "early stopping": ({"early_stopping": "yes"}, "early_stopping='yes' must be True or False"),
    "all held out": ({"validation_fraction": 1.0}, "validation_fraction=1.0"),
    "no rate": ({"learning_rate": 0}, "learning_rate=0 must be positive"),
    "no segment": ({"segment_len": 0}, "segment_len=0"),
}


@pytest.mark.parametrize("case", PARAMETERS)
def test_a_wrong_parameter_is_named_with_its_value(data, case):
    parameters, text = PARAMETERS[case]
    with pytest.raises(ParameterError, match=text):
        TXLClassifier(**{**TINY, **parameters}).fit(data[0], data[1])


@pytest.mark.parametrize("value", [np.inf, 1e300])
def test_infinity_and_what_float32_cannot_hold_are_told(data, value):
    X, y, _ = data
    with pytest.raises(ValueError, match="contains infinity or a value too large"):
        TXLClassifier(**TINY).fit(np.where(X > 2, value, X.astype(float)), y)


def test_a_column_of_words_is_named_with_its_cure(frame):
    X = frame({"flow": [1.0, 2.0, 3.0], "kind": ["a", "b", "a"]})
    with pytest.raises(ColumnError, match=r"column 'kind' of X must hold numbers.*OneHotEncoder"):
        TXLClassifier(**TINY).fit(X, [0, 1, 0])


def test_labels_that_fit_nothing_are_told():
    X, y = panel_of()
    with pytest.raises(ShapeError, match=r"y has shape \(11,\) and X \(12, 9, 2\).*one per series, \(12,\), or"):
        TXLClassifier(**TINY).fit(X, y[:11])
    with pytest.raises(ParameterError, match=r"y must hold numbers.*TXLClassifier"):
        TXLRegressor(**TINY).fit(X, y)
    with pytest.raises(ShapeError, match="12 distinct names"):
        TXLClassifier(**TINY).fit(X, y, series_id=["a"] * 12)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_an_unfitted_estimator_says_what_to_call(cls, data, tmp_path):
    for use in (lambda: answers(cls(), data[0]), lambda: cls().save(tmp_path / "a")):
        with pytest.raises(SklearnNotFittedError, match=r"not fitted yet\. Call fit") as caught:
            use()
        assert isinstance(caught.value, TxlError)


# ------------------------------------------------------------------------------------------------------------- memories


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("cls", ESTIMATORS)
def test_start_fitted_goes_on_where_the_fit_ended(cls, data, pooling):
    X, y, ids = data
    head = np.concatenate([np.flatnonzero(ids == name)[:-5] for name in np.unique(ids)])
    tail = np.setdiff1d(np.arange(95), head)
    model = cls(**TINY, pooling=pooling).fit(X[head], y[head], series_id=ids[head])
    whole = answers(model, X, series_id=ids)[tail]
    on = answers(model, X[tail], series_id=ids[tail], start="fitted")
    np.testing.assert_allclose(on, whole, rtol=0, atol=2e-5)
    assert not np.allclose(answers(model, X[tail], series_id=ids[tail]), whole, atol=1e-3)
    new = np.array(["new"] * 15)
    np.testing.assert_array_equal(
        answers(model, X[tail], series_id=new, start="fitted"), answers(model, X[tail], series_id=new)
    )


def test_predictions_change_nothing(fitted, data):
    X, _, ids = data
    model = copy.deepcopy(fitted[TXLClassifier])
    before = pickle.dumps(model)
    model.predict(X, series_id=ids, start="fitted")
    assert pickle.dumps(model) == before


def test_memories_that_were_not_kept_are_told():
    X, y = panel_of()
    model = TXLClassifier(**TINY).fit(X, y)
    with pytest.raises(StateError, match="no memories were kept: a panel without series_id"):
        model.predict(X, start="fitted")
    named = TXLClassifier(**TINY).fit(X, y, series_id=np.arange(12))
    assert named.predict(X, series_id=np.arange(12), start="fitted").shape == (12,)
    with pytest.raises(StateError, match="give series_id both to fit and here"):
        named.predict(X, start="fitted")
    with pytest.raises(ParameterError, match="start='kept' must be None or 'fitted'"):
        named.predict(X, start="kept")


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_partial_fit_trains_on_and_moves_the_memories(cls, data):
    X, y, ids = data
    first = ids != "pump-2"
    classes = {"classes": [0, 1]} if cls is TXLClassifier else {}
    model = cls(**TINY).partial_fit(X[first], y[first], **classes, series_id=ids[first])
    before = answers(model, X, series_id=ids)
    kept = copy.deepcopy(model)
    model.partial_fit(X[~first], y[~first], series_id=ids[~first])
    assert not np.array_equal(answers(model, X, series_id=ids), before)  # the weights went on
    assert model._names == ("pump-0", "pump-1", "pump-2")  # the new series is remembered
    # A series without new rows keeps its memory to the bit; the new one has the memory of a walk over its rows.
    assert all(np.array_equal(model._kept[name][:2], kept._kept[name]) for name in kept._kept)
    more = X[:4]
    on = answers(model, more, series_id="pump-2", start="fitted")
    whole = answers(model, np.concatenate([X[~first], more]), series_id="pump-2")[-4:]
    np.testing.assert_allclose(on, whole, rtol=0, atol=2e-5)


def test_partial_fit_lowers_the_loss_of_what_it_is_given(data):
    X, _, ids = rows_of((60, 60))
    model = TXLRegressor(**TINY, learning_rate=1e-2).partial_fit(X, X[:, 0], series_id=ids)
    other = 3 - 2 * X[:, 0]
    before = model.score(X, other, series_id=ids)
    for _ in range(30):
        model.partial_fit(X, other, series_id=ids)
    assert model.score(X, other, series_id=ids) > max(before + 1, 0)


def test_a_refused_partial_fit_changes_nothing(data):
    X, y, ids = data
    model = TXLRegressor(**TINY).fit(X, y)
    before = pickle.dumps(model)
    with pytest.raises(StateError, match="give series_id both to fit and here"):
        model.partial_fit(X, y, series_id=ids)
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit(X, np.where(y > 0, np.nan, y))
    assert pickle.dumps(model) == before


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_names_of_another_kind_are_refused_where_memories_go_on(cls, data):
    """Series 1 is not series "1": it would begin anew without a word, and no file takes names of two kinds."""
    X, y, ids = data
    numbers = np.unique(ids, return_inverse=True)[1]
    model = cls(**TINY | {"max_epochs": 1}).fit(X, y, series_id=numbers)
    with pytest.raises(ColumnError, match="series_id was fitted with int names and now holds str, such as '0'"):
        answers(model, X, series_id=numbers.astype(str), start="fitted")
    if cls is not TXLEncoder:
        before = pickle.dumps(model)
        with pytest.raises(ColumnError, match=r"Nothing was changed\. Cast it to int"):
            model.partial_fit(X, y, series_id=numbers.astype(str))
        assert pickle.dumps(model) == before


def test_partial_fit_refuses_what_it_cannot_know(data):
    X, y, _ = data
    with pytest.raises(ParameterError, match="classes must be passed on the first call"):
        TXLClassifier(**TINY).partial_fit(X, y)
    model = TXLClassifier(**TINY).partial_fit(X, y, classes=[0, 1, 2])
    assert model.predict_proba(X).shape == (95, 3)
    with pytest.raises(ParameterError, match=r"y holds classes that were not named: \[7\]"):
        model.partial_fit(X, np.full(95, 7))
    with pytest.raises(ParameterError, match="not the same as on the first call"):
        model.partial_fit(X, y, classes=[0, 1])


# ----------------------------------------------------------------------------------------------------- files and copies


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_a_saved_estimator_gives_the_same_bits(fitted, data, cls, tmp_path):
    X, _, ids = data
    fitted[cls].save(tmp_path / "model.txl")
    loaded = cls.load(tmp_path / "model.txl")
    for named in ({}, {"start": "fitted"}):
        found, expected = (answers(m, X, series_id=ids, **named) for m in (loaded, fitted[cls]))
        np.testing.assert_array_equal(found, expected)
    assert loaded.get_params() == fitted[cls].get_params()
    assert (loaded.params_, loaded.history_) == (fitted[cls].params_, fitted[cls].history_)
    with pytest.raises(ParameterError, match="was fitted with series_id"):
        answers(loaded, X)
    other = ESTIMATORS[ESTIMATORS.index(cls) - 1]
    with pytest.raises(FileFormatError, match=f"holds a '{cls.__name__}', expected a '{other.__name__}'"):
        other.load(tmp_path / "model.txl")


@pytest.mark.parametrize("labels", [["b", "a"], [True, False], [3, 1], [2.0, 0.0], np.uint8([7, 2])], ids=str)
def test_classes_of_every_kind_survive_a_file(labels, data, tmp_path):
    X, y, _ = data
    frame = pd.DataFrame(X, columns=["load", "heat"])
    model = TXLClassifier(**TINY).fit(frame, np.array(labels)[y])
    model.save(tmp_path / "model.txl")
    loaded = TXLClassifier.load(tmp_path / "model.txl")
    np.testing.assert_array_equal(loaded.predict(frame), model.predict(frame))
    assert loaded.classes_.dtype == model.classes_.dtype
    loaded.partial_fit(frame, np.array(labels)[y])


def test_a_generator_as_seed_cannot_be_saved_and_says_so(data, tmp_path):
    model = TXLRegressor(**TINY, random_state=np.random.RandomState(0)).fit(data[0], data[1])
    with pytest.raises(ParameterError, match=r"random_state=.*cannot be saved"):
        model.save(tmp_path / "model.txl")


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_copies_and_pickles_give_the_same_bits(fitted, data, cls):
    X, _, ids = data
    for other in (copy.deepcopy(fitted[cls]), pickle.loads(pickle.dumps(fitted[cls]))):
        np.testing.assert_array_equal(answers(other, X, series_id=ids), answers(fitted[cls], X, series_id=ids))
    assert not [name for name in vars(clone(fitted[cls])) if name not in fitted[cls].get_params()]


def test_the_same_seed_gives_the_same_bits_and_the_users_generators_stay(data):
    import torch

    X, y, ids = data
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002 - the global one is what must not move
    expected = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    first, second = (TXLClassifier(**TINY).fit(X, y, series_id=ids) for _ in range(2))
    assert torch.equal(torch.rand(3), expected[0])
    np.testing.assert_array_equal(np.random.rand(3), expected[1])  # noqa: NPY002
    np.testing.assert_array_equal(first.predict_proba(X, series_id=ids), second.predict_proba(X, series_id=ids))


# --------------------------------------------------------------------------------------------- scikit-learn's machinery


def test_a_pipeline_with_columns_of_text(data):
    X, y, _ = data
    frame = pd.DataFrame({"load": X[:, 0], "heat": X[:, 1], "mode": np.where(X[:, 1] > 0, "on", "off")})
    columns = ColumnTransformer([("number", StandardScaler(), ["load", "heat"]), ("word", OneHotEncoder(), ["mode"])])
    pipe = make_pipeline(columns, TXLClassifier(**TINY)).fit(frame, y)
    assert pipe[-1].n_features_in_ == 4
    assert pipe.predict(frame).shape == (95,)


def test_an_encoder_feeds_another_estimator(data):
    X, y, _ = data
    pipe = make_pipeline(TXLEncoder(**TINY), LogisticRegression())
    assert cross_val_score(pipe, X, y, cv=PanelSplit(n_splits=2)).shape == (2,)


def test_names_are_routed_through_a_pipeline_to_fit_predict_and_score(data):
    X, y, ids = data
    with config_context(enable_metadata_routing=True):
        model = TXLClassifier(**TINY)
        model.set_fit_request(series_id=True).set_predict_request(series_id=True).set_score_request(series_id=True)
        pipe = make_pipeline(StandardScaler(), model)
        alone = pipe.fit(X, y, series_id=ids).predict(X, series_id=ids)
        plain = TXLClassifier(**TINY).fit(StandardScaler().fit_transform(X), y, series_id=ids)
        np.testing.assert_array_equal(alone, plain.predict(StandardScaler().fit_transform(X), series_id=ids))
        scores = cross_validate(pipe, X, y, params={"series_id": ids}, cv=PanelSplit(ids, n_splits=2))
        assert np.isfinite(scores["test_score"]).all()


def test_names_that_nobody_asked_for_are_an_error_of_scikit_learn(data):
    X, y, ids = data
    with config_context(enable_metadata_routing=True):
        model = TXLClassifier(**TINY).set_fit_request(series_id=True)
        with pytest.raises(UnsetMetadataPassedError, match="series_id"):
            cross_validate(model, X, y, params={"series_id": ids}, cv=PanelSplit(ids, n_splits=2))


def test_a_score_that_forgets_the_names_is_refused(data):
    X, y, ids = data
    with config_context(enable_metadata_routing=True):
        model = TXLClassifier(**TINY).set_fit_request(series_id=True).set_score_request(series_id=False)
        with pytest.raises(ParameterError, match="fitted with series_id"):
            cross_validate(model, X, y, params={"series_id": ids}, cv=PanelSplit(ids, n_splits=2), error_score="raise")


def test_a_cross_validation_that_forgets_the_names_is_refused_if_it_has_time(data):
    X, y, _ = data
    time = pd.DatetimeIndex(np.concatenate([pd.date_range("2026-01-01", periods=n, freq="h") for n in (40, 30, 25)]))
    with pytest.raises(StampError, match="If X holds several series, name them with series_id"):
        cross_validate(TXLClassifier(**TINY), pd.DataFrame(X, index=time), y, cv=2, error_score="raise")


def test_a_grid_search_runs_in_two_processes(data):
    X, y, ids = data
    with config_context(enable_metadata_routing=True):
        model = TXLRegressor(**TINY).set_fit_request(series_id=True).set_score_request(series_id=True)
        search = GridSearchCV(model, {"mem_len": [0, 3]}, n_jobs=2, cv=PanelSplit(ids, n_splits=2), error_score="raise")
        search.fit(X, y, series_id=ids)
    assert set(search.best_params_) == {"mem_len"}
    assert search.best_estimator_.predict(X, series_id=ids).shape == (95,)


def test_panels_are_cross_validated_by_series():
    X, y = panel_of()
    assert cross_val_score(TXLClassifier(**TINY), X, y, cv=3).shape == (3,)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_parameters_have_defaults_and_stand_in_the_docstring(cls):
    document = TXLClassifier.__doc__.partition("Attributes")[0]
    for name in cls().get_params():
        assert name in document, name
    assert repr(cls()) == f"{cls.__name__}()"


def test_tags_are_true():
    for cls in ESTIMATORS:
        tags = cls().__sklearn_tags__()
        assert tags.input_tags.allow_nan
        assert tags.input_tags.three_d_array
        assert not tags.input_tags.sparse
        assert not tags.non_deterministic
    assert TXLClassifier().__sklearn_tags__().target_tags.required
    assert not TXLEncoder().__sklearn_tags__().target_tags.required
