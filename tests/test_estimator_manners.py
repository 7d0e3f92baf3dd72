"""scikit-learn's manners, and what each wrong parameter is told."""

import copy
import inspect
import pickle  # noqa: TID251 - process pools copy estimators with it; no file is read or written

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.utils.validation import check_is_fitted

from txl_ts import TXLForecaster
from txl_ts.errors import FrequencyError, ParameterError, TrainingError, TxlError


@pytest.fixture(scope="module")
def rows(make_rows):
    return make_rows(2, 60)


@pytest.fixture(scope="module")
def linear(tiny):
    return {**tiny, "max_epochs": 0}


# ------------------------------------------------------------------------------------------------------------- manners


def test_clone_copies_parameters_and_nothing_that_was_learned(fitted):
    copied = clone(fitted)
    assert copied.get_params() == fitted.get_params()
    assert not [name for name in vars(copied) if name not in copied.get_params()]


def test_init_stores_every_argument_untouched():
    values = {name: object() for name in inspect.signature(TXLForecaster).parameters}
    model = TXLForecaster(**values)
    assert all(getattr(model, name) is value for name, value in values.items())
    assert model.get_params() == values


def test_every_parameter_has_a_default_and_stands_in_the_docstring():
    document = TXLForecaster.__doc__.partition("Attributes")[0]
    for name, parameter in inspect.signature(TXLForecaster).parameters.items():
        assert parameter.default is not inspect.Parameter.empty, name
        assert name in document, name


def test_parameters_are_set_and_read_by_name():
    model = TXLForecaster().set_params(h=7, d_model=32)
    assert (model.h, model.get_params()["d_model"]) == (7, 32)
    with pytest.raises(ValueError, match="Invalid parameter 'd_modle'"):
        model.set_params(d_modle=8)


def test_the_text_of_an_estimator_shows_only_what_was_changed():
    assert repr(TXLForecaster()) == "TXLForecaster()"
    assert repr(TXLForecaster(h=24, scaler="standard")) == "TXLForecaster(h=24, scaler='standard')"
    assert isinstance(TXLForecaster(), BaseEstimator)


@pytest.mark.parametrize("use", ["predict", "update", "save", "export_state", "use_fitted"])
def test_an_unfitted_forecaster_says_what_to_call(use, rows, tmp_path):
    model = TXLForecaster()
    calls = {
        "predict": model.predict,
        "update": lambda: model.update(rows),
        "save": lambda: model.save(tmp_path / "a"),
        "export_state": lambda: model.export_state(tmp_path / "a"),
        "use_fitted": lambda: model.cross_validation(rows, n_windows=1, use_fitted=True),
    }
    with pytest.raises(SklearnNotFittedError, match=r"this TXLForecaster is not fitted yet\. Call fit") as caught:
        calls[use]()
    assert isinstance(caught.value, TxlError)
    assert not (tmp_path / "a").exists()


def test_check_is_fitted_agrees(fitted):
    check_is_fitted(fitted)
    with pytest.raises(SklearnNotFittedError):
        check_is_fitted(clone(fitted))


def test_a_fit_that_fails_leaves_an_estimator_unfitted_or_as_it_was(forecaster, tiny, rows):
    with pytest.raises(ParameterError):
        TXLForecaster(**{**tiny, "loss": "no"}).fit(rows)
    before = forecaster.predict()
    with pytest.raises(ParameterError):
        forecaster.set_params(d_model=7).fit(rows)
    pd.testing.assert_frame_equal(forecaster.predict(), before, check_exact=True)


def test_copies_are_independent_and_predict_the_same_bits(forecaster, rows):
    copies = [copy.deepcopy(forecaster), pickle.loads(pickle.dumps(forecaster))]
    before = forecaster.predict()
    news = pd.DataFrame({"unique_id": "new", "ds": rows.ds[:5], "y": np.arange(5.0)})
    for other in copies:
        pd.testing.assert_frame_equal(other.predict(), before, check_exact=True)
        other.update(news)
        assert "new" in set(other.predict().unique_id)
    pd.testing.assert_frame_equal(forecaster.predict(), before, check_exact=True)


def test_fitting_again_forgets_the_first_fit(linear, make_rows):
    model = TXLForecaster(**linear).fit(make_rows(3, 80, seed=1))
    again = model.fit(make_rows(2, 60)).predict()
    pd.testing.assert_frame_equal(again, TXLForecaster(**linear).fit(make_rows(2, 60)).predict(), check_exact=True)


def test_fit_gives_the_estimator_and_leaves_its_parameters(linear, rows):
    model = TXLForecaster(**linear)
    before = model.get_params()
    assert model.fit(rows) is model
    assert model.get_params() == before


def test_nothing_is_printed_unless_asked_for(tiny, rows, capsys):
    model = TXLForecaster(**{**tiny, "max_epochs": 1}).fit(rows)
    model.predict()
    assert capsys.readouterr() == ("", "")
    TXLForecaster(**{**tiny, "max_epochs": 1}, verbose=True).fit(rows)
    out, bar = capsys.readouterr()
    assert "training" in bar
    assert "with the linear path alone" in out
    assert "KiB of state per series" in out


# ------------------------------------------------------------------------------------------------------ what was chosen


def test_auto_sizes_are_told_and_keep_within_the_budget(make_rows):
    model = TXLForecaster(h=2, max_epochs=0).fit(make_rows(2, 400))
    told = model.params_
    assert (told["patch_len"], told["stride"]) == (24, 24)  # a day of hours
    assert told["freq"] == "1h"
    assert told["state_nbytes"] <= 128 * 1024
    assert told["state_nbytes"] == sum(array.nbytes for array in model._fleet.state.values()) / 2
    assert told["reach"] == model.config_.reach == told["n_layers"] * told["mem_len"] * 24 + 23
    assert told["quantiles"] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


def test_context_sets_how_far_back_a_forecast_reaches(linear, rows):
    free = {**linear, "lookback": "auto", "mem_len": "auto"}
    rows_ = TXLForecaster(**free, context=48).fit(rows)
    days = TXLForecaster(**free, context="2d").fit(rows)
    assert rows_.params_ == days.params_
    assert days.config_.reach >= 48 > days.config_.reach - days.config_.n_layers * days.config_.stride


def test_learned_counts_are_true(fitted):
    weights = fitted._model.state_dict()
    assert weights["linear_path.weight"].shape == (3, 16)  # counted too
    assert fitted.n_parameters_ == sum(tensor.numel() for tensor in weights.values())
    assert fitted.fit_seconds_ > 0
    assert fitted.history_.epochs == 2


# ----------------------------------------------------------------------------------------------------- wrong parameters

ERRORS = {
    "no horizon": ({"h": 0}, r"h=0 \(int\) must be an integer of at least 1. Take for example h=1"),
    "horizon as text": ({"h": "3"}, r"h='3' \(str\) must be an integer"),
    "horizon as a truth": ({"h": True}, r"h=True \(bool\)"),
    "width and heads": ({"d_model": 9}, r"d_model=9 must be even and a multiple of n_heads=2.*example d_model=8"),
    "odd width": ({"d_model": 7, "n_heads": 7}, "d_model=7 must be even"),
    "no heads": ({"n_heads": 0}, "n_heads=0"),
    "no layers": ({"n_layers": 0}, "n_layers=0"),
    "unknown loss": ({"loss": "pinbal"}, r"loss='pinbal' is not known. Choose one of \[.*\]. Did you mean 'pinball'\?"),
    "unknown scaler": ({"scaler": "standart"}, "scaler='standart' is not known.*Did you mean 'standard'"),
    "unknown memory": ({"memory": "fifo2"}, "memory='fifo2' is not known.*Did you mean 'fifo'"),
    "no median": ({"quantiles": (0.1, 0.9)}, "must increase, lie in .0, 1. and contain 0.5"),
    "falling quantiles": ({"quantiles": (0.9, 0.5)}, "must increase"),
    "quantile of one": ({"quantiles": (0.5, 1.0)}, r"lie in \(0, 1\)"),
    "no quantiles": ({"quantiles": ()}, "contain 0.5"),
    "one number": ({"quantiles": 0.5}, "quantiles=0.5 must be numbers such as"),
    "misspelt auto": ({"patch_len": "atuo"}, "patch_len='atuo' must be a number or 'auto'"),
    "misspelt auto memory": ({"mem_len": "Auto"}, "mem_len='Auto' must be a number or 'auto'"),
    "no patch": ({"patch_len": 0}, "patch_len=0"),
    "no stride": ({"stride": 0}, "stride=0"),
    "negative memory": ({"mem_len": -1}, "mem_len=-1"),
    "short half-life": ({"half_life": 1}, "half_life=1 .* must be .*at least 2"),
    "no half-life": ({"half_life": None}, "half_life=None"),
    "nan half-life": ({"half_life": float("nan")}, "half_life=nan"),
    "all dropped": ({"dropout": 1.0}, r"dropout=1.0.* must .*(below 1|\[0, 1\))"),
    "dropout as text": ({"dropout": "a"}, "dropout='a'"),
    "no rate": ({"learning_rate": 0}, "learning_rate=0 must be positive. Take for example 1e-3"),
    "nan rate": ({"learning_rate": float("nan")}, "learning_rate=nan"),
    "no number for a rate": ({"learning_rate": None}, "learning_rate=None"),
    "negative decay": ({"weight_decay": -1.0}, "weight_decay=-1.0 .*at least 0"),
    "negative epochs": ({"max_epochs": -1}, "max_epochs=-1"),
    "no batch": ({"batch_size": 0}, "batch_size=0"),
    "no segment": ({"segment_len": 0}, "segment_len=0"),
    "no patience": ({"patience": 0}, "patience=0"),
    "no seed": ({"random_state": None}, "random_state"),
    "negative seed": ({"random_state": -1}, "random_state=-1"),
    "seed as text": ({"random_state": "a"}, "random_state='a'"),
    "unknown align": ({"align": "neerest"}, "align must be one of"),
    "unknown treatment": ({"on_bad_series": "drop"}, "on_bad_series must be one of"),
    "negative gap": ({"max_gap": -1}, "max_gap must be a number of rows"),
    "no context": ({"context": 0, "lookback": "auto"}, "context"),
    "negative context": ({"context": -5, "lookback": "auto"}, "context"),
    "context in words": ({"context": "long", "lookback": "auto"}, "context='long'"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_a_wrong_parameter_is_named_with_its_value_and_what_works(linear, rows, case):
    parameters, text = ERRORS[case]
    with pytest.raises(ParameterError, match=text):
        TXLForecaster(**{**linear, **parameters}).fit(rows)


@pytest.mark.parametrize("val_size", [0, -1, 2.0, "5", True])
def test_validation_rows_are_a_positive_count(linear, rows, val_size):
    with pytest.raises(ParameterError, match="val_size="):
        TXLForecaster(**linear).fit(rows, val_size=val_size)


def test_an_unknown_frequency_lists_the_known_ones(linear, rows):
    with pytest.raises(FrequencyError, match=r"freq='1hour' is not a known.*mean '1h'\? Known are"):
        TXLForecaster(**{**linear, "freq": "1hour"}).fit(rows)


def test_a_rate_that_explodes_is_named(tiny, rows):
    """The loss leaves the finite numbers; that is an error with the setting that works, and no warning beside it."""
    with pytest.raises(TrainingError, match=r"the loss became (nan|inf) in epoch 1. Lower learning_rate"):
        TXLForecaster(**{**tiny, "learning_rate": 1e38}).fit(rows)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("h", np.int64(3)),
        ("d_model", np.int32(8)),
        ("patch_len", np.int64(4)),
        ("half_life", np.float32(24)),
        ("learning_rate", np.float64(1e-2)),
        ("random_state", np.int64(0)),
        ("quantiles", np.array([0.1, 0.5, 0.8])),
    ],
)
def test_numpy_numbers_are_numbers(linear, rows, name, value):
    out = TXLForecaster(**{**linear, name: value}).fit(rows).predict()
    pd.testing.assert_frame_equal(out, TXLForecaster(**linear).fit(rows).predict(), check_exact=True)
