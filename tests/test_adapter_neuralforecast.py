"""The drop-in gives what the forecaster gives, under neuralforecast's names, and refuses by name what it cannot do."""

import inspect
import runpy
import warnings
from pathlib import Path

import narwhals as nw
import numpy as np
import pandas as pd
import pytest
from txl_ts_adapters.neuralforecast import QUANTILES, TXL, NeuralForecast

from txl_ts import TXLForecaster
from txl_ts.errors import FileFormatError, ParameterError, SaveError, UnusedArgumentWarning
from txl_ts.estimators.forecaster import NotFittedError

SMALL = {"d_model": 8, "n_heads": 2, "max_epochs": 0}


@pytest.fixture(scope="module")
def passengers():
    return runpy.run_path(str(Path(__file__).parents[1] / "examples" / "from_neuralforecast.py"))["passengers"]()


@pytest.fixture(scope="module")
def panel(passengers):
    other = passengers.assign(unique_id="Airline2", y=passengers.y + 300, trend=np.arange(144))
    return pd.concat([passengers.assign(unique_id="Airline1", trend=np.arange(144)), other], ignore_index=True)


@pytest.fixture(scope="module")
def nf(panel):
    out = NeuralForecast([TXL(h=12, input_size=24, **SMALL)], freq="ME")
    out.fit(panel)
    return out


def test_forecasts_are_those_of_the_forecaster(nf, panel):
    rows = panel.drop(columns="trend")
    model = TXLForecaster(h=12, freq="ME", context=24, quantiles=QUANTILES, random_state=1, **SMALL).fit(rows)
    pd.testing.assert_frame_equal(nf.predict(level=[80, 95]), model.predict(level=[80, 95]))
    pd.testing.assert_frame_equal(nf.predict(quantiles=[0.1]), model.predict(quantiles=[0.1]))
    assert list(nf.predict().columns) == ["unique_id", "ds", "TXL"]
    walked = nf.predict(df=panel[panel.ds < "1955"], h=3)
    assert walked.shape == (6, 3)
    assert walked.ds.min() == pd.Timestamp("1955-01-31")


def test_backtests_are_those_of_the_forecaster(nf, panel):
    found = nf.cross_validation(panel, n_windows=2, step_size=6, level=[90])
    model = TXLForecaster(h=12, freq="ME", context=24, quantiles=QUANTILES, random_state=1, **SMALL)
    expected = model.cross_validation(panel.drop(columns="trend"), n_windows=2, step_size=6, level=[90])
    expected = expected.astype({"y": float}).sort_values(["unique_id", "cutoff", "ds"], ignore_index=True)  # as theirs
    pd.testing.assert_frame_equal(found, expected)
    again = nf.cross_validation(panel, n_windows=None, test_size=18, step_size=6, level=[90])
    pd.testing.assert_frame_equal(again, found)


def test_columns_beside_the_target_have_the_roles_of_their_lists(panel):
    static = pd.DataFrame({"unique_id": ["Airline1", "Airline2"], "size": [1.0, 2.0]})
    lists = {"futr_exog_list": ["trend"], "stat_exog_list": ["size"]}
    nf = NeuralForecast([TXL(h=12, input_size=24, **lists, **SMALL)], freq="ME")
    nf.fit(panel, static_df=static)
    model = TXLForecaster(h=12, freq="ME", context=24, quantiles=QUANTILES, random_state=1, **SMALL)
    roles = {"futr_cols": ["trend"], "static_cols": ["size"], "static_df": static}
    model.fit(panel, **roles)
    ahead = model.make_future_frame().assign(trend=np.tile(np.arange(144, 156), 2))
    pd.testing.assert_frame_equal(
        nf.predict(futr_df=ahead, quantiles=[0.1]), model.predict(futr_df=ahead, quantiles=[0.1])
    )
    later = pd.concat([panel, ahead.assign(y=400.0).astype({"ds": panel.ds.dtype})], ignore_index=True)
    for use_fitted in (False, True):
        theirs = {} if use_fitted else roles
        found = nf.cross_validation(later, static_df=static, n_windows=1, use_fitted=use_fitted)
        expected = model.cross_validation(later, n_windows=1, use_fitted=use_fitted, quantiles=(), **theirs)
        np.testing.assert_array_equal(found.TXL, expected.TXL)


def test_models_stand_side_by_side_under_their_aliases(panel):
    models = [TXL(h=3, alias="A", **SMALL), TXL(h=3, alias="B", lookback=12, **SMALL)]
    nf = NeuralForecast(models, freq="ME")
    nf.fit(panel)
    assert list(nf.predict(level=[80]).columns) == [
        "unique_id",
        "ds",
        *(m + s for m in "AB" for s in ("", "-lo-80", "-hi-80")),
    ]
    found = nf.cross_validation(panel, n_windows=1)
    assert list(found.columns) == ["unique_id", "ds", "cutoff", "A", "B", "y"]


def test_polars_frames_come_back_as_polars(panel):
    import polars as pl

    nf = NeuralForecast([TXL(h=3, **SMALL)], freq="1mo")
    nf.fit(pl.from_pandas(panel.assign(ds=panel.ds + pd.Timedelta(days=1))))
    assert nw.from_native(nf.predict(), eager_only=True).implementation.is_polars()


def test_ids_that_count_in_floats_come_back_as_floats(passengers, tmp_path):
    nf = NeuralForecast([TXL(h=3, **SMALL)], freq="ME")
    nf.fit(passengers)
    assert nf.predict()["unique_id"].tolist() == [1.0] * 3
    assert nf.predict()["unique_id"].dtype == float
    nf.save(tmp_path / "nf")
    assert NeuralForecast.load(tmp_path / "nf").predict()["unique_id"].dtype == float


def test_a_saved_folder_predicts_the_same(nf, tmp_path):
    nf.save(tmp_path / "nf")
    again = NeuralForecast.load(tmp_path / "nf")
    pd.testing.assert_frame_equal(again.predict(level=[80]), nf.predict(level=[80]))
    assert sorted(path.name for path in (tmp_path / "nf").iterdir()) == ["0.txl", "neuralforecast.json"]
    with pytest.raises(SaveError, match=r"is not empty\. Give overwrite=True"):
        nf.save(tmp_path / "nf")
    nf.save(tmp_path / "nf", overwrite=True)
    with pytest.raises(NotFittedError, match="needs those of an earlier fit"):
        again.fit()
    with pytest.raises(FileFormatError, match=r"is no folder that NeuralForecast\.save wrote"):
        NeuralForecast.load(tmp_path)


def test_fit_without_rows_takes_those_of_the_last_fit(panel):
    nf = NeuralForecast([TXL(h=3, **SMALL)], freq="ME")
    nf.fit(panel)
    before = nf.predict()
    nf.fit()
    pd.testing.assert_frame_equal(nf.predict(), before)
    with pytest.warns(
        UnusedArgumentWarning, match="use_init_models=False has no effect here: a fit always starts anew"
    ):
        nf.fit(panel)


class MQLoss:
    """Stands for neuralforecast's: same name, quantiles in the order of its column names."""

    quantiles = np.array([0.5, 0.1, 0.9], np.float32)
    output_names = ("-median", "-lo-80", "-hi-80")


class MSE:
    pass


class DistributionLoss:
    pass


def test_a_quantile_loss_trains_its_quantiles_and_names_the_columns(panel):
    nf = NeuralForecast([TXL(h=3, loss=MQLoss(), **SMALL)], freq="ME")
    nf.fit(panel)
    out = nf.predict()
    assert list(out.columns) == ["unique_id", "ds", "TXL-median", "TXL-lo-80", "TXL-hi-80"]
    levels = nf.predict(level=[80])
    for own, ours in (("TXL-median", "TXL"), ("TXL-lo-80", "TXL-lo-80"), ("TXL-hi-80", "TXL-hi-80")):
        assert (out[own] == levels[ours]).all()
    found = nf.cross_validation(panel, n_windows=1)
    assert list(found.columns) == ["unique_id", "ds", "cutoff", "TXL-median", "TXL-lo-80", "TXL-hi-80", "y"]


def test_losses_are_known_by_name_and_others_are_refused():
    assert TXL(h=1, loss=MSE()).params["loss"] == "squared"
    with pytest.raises(ParameterError, match="loss=DistributionLoss cannot be trained here"):
        TXL(h=1, loss=DistributionLoss())


REFUSED = {
    "val_df": lambda nf, df: nf.fit(df, val_df=df),
    "distributed_config": lambda nf, df: nf.fit(df, distributed_config=object()),
    "prediction_intervals": lambda nf, df: nf.cross_validation(df, prediction_intervals=object()),
    "engine": lambda nf, df: nf.predict(engine="spark"),
    "some_kwarg": lambda nf, df: nf.predict(some_kwarg=1),
    "other_kwarg": lambda nf, df: NeuralForecast.load("x", other_kwarg=1),
}


@pytest.mark.parametrize("argument", REFUSED)
def test_an_argument_that_cannot_be_honoured_is_refused_by_its_name(nf, panel, argument):
    with pytest.raises(ParameterError, match=f"{argument}=.* is not supported by this adapter"):
        REFUSED[argument](nf, panel)


@pytest.mark.parametrize("argument", ["max_steps", "scaler_type", "val_check_steps", "early_stop_patience_steps"])
def test_an_argument_of_other_models_without_a_counterpart_warns_by_its_name(argument):
    with pytest.warns(UnusedArgumentWarning, match=f"{argument}=3 has no effect here"):
        TXL(h=1, **{argument: 3})


def test_local_scalers_warn_and_unknown_parameters_are_refused():
    with pytest.warns(UnusedArgumentWarning, match="local_scaler_type='standard' has no effect here"):
        NeuralForecast([TXL(h=1)], freq="ME", local_scaler_type="standard")
    with pytest.raises(ParameterError, match="TXL has no parameter 'n_blocks'"):
        TXL(h=1, n_blocks=[1])
    with pytest.raises(ParameterError, match=r"models must be TXL .* got \['dict'\]"):
        NeuralForecast([{}], freq="ME")
    with pytest.raises(ParameterError, match=r"need different names, got \['TXL', 'TXL'\]"):
        NeuralForecast([TXL(h=1), TXL(h=1)], freq="ME")
    with pytest.raises(ParameterError, match="test_size=13 must be h"):
        NeuralForecast([TXL(h=12)], freq="ME").cross_validation(pd.DataFrame(), test_size=13, step_size=2)


def test_predict_before_fit_is_an_error():
    with pytest.raises(NotFittedError, match="not fitted yet"):
        NeuralForecast([TXL(h=1)], freq="ME").predict()


# ------------------------------------------------------------------------------------------------- beside the library


@pytest.mark.peers
def test_signatures_columns_and_shapes_are_those_of_neuralforecast(panel, tmp_path):
    peer = pytest.importorskip("neuralforecast", reason="the peer runs in an environment that has neuralforecast")
    from neuralforecast.losses.pytorch import MQLoss as PeerLoss
    from neuralforecast.models import NHITS
    from neuralforecast.utils import AirPassengersDF

    warnings.simplefilter("ignore")
    for name in ("__init__", "fit", "predict", "cross_validation", "save", "load"):
        theirs = list(inspect.signature(getattr(peer.NeuralForecast, name)).parameters)
        ours = list(inspect.signature(getattr(NeuralForecast, name)).parameters)
        assert [word for word in theirs if word not in ours] == []
    quiet = {"max_steps": 2, "logger": False, "enable_progress_bar": False}
    for loss in (None, PeerLoss(level=[80, 90])):
        extra = {} if loss is None else {"loss": loss}
        a = peer.NeuralForecast([NHITS(h=12, input_size=24, **extra, **quiet)], freq="ME")
        b = NeuralForecast([TXL(h=12, input_size=24, **extra, **SMALL)], freq="ME")
        for df in (panel, AirPassengersDF):
            a.fit(df)
            b.fit(df, use_init_models=True)
            same(a.predict(), b.predict())
            windows = {"n_windows": 2, "step_size": 6}
            same(a.cross_validation(df, **windows), b.cross_validation(df, **windows))


def same(theirs, ours):
    """Equal but for the model's name and its numbers."""
    assert [name.replace("NHITS", "TXL") for name in theirs.columns] == list(ours.columns)
    assert list(theirs.dtypes) == list(ours.dtypes)
    keys = [name for name in ("unique_id", "ds", "cutoff", "y") if name in ours]
    pd.testing.assert_frame_equal(theirs[keys], ours[keys])
