"""Units of the target: a monotone map in, its inverse out, in torch and in the exported graph."""

import itertools

import numpy as np
import pytest
import torch

from txl_ts import TXLForecaster
from txl_ts.embeddings import Units
from txl_ts.errors import ParameterError
from txl_ts.model import TXLModel

NAMES = ("log1p", "sqrt", "asinh")
NUMPY = {
    "log1p": (lambda x: np.sign(x) * np.log1p(np.abs(x)), lambda z: np.sign(z) * np.expm1(np.abs(z))),
    "sqrt": (lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda z: np.sign(z) * z**2),
    "asinh": (np.arcsinh, np.sinh),
}
VALUES = np.concatenate([[0.0], *[s * 10.0 ** np.arange(-9, 13) for s in (1, -1)]]).astype(np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_both_ways_are_numpys_from_the_smallest_to_the_largest_values(name):
    into, back = NUMPY[name]
    units = Units(name)
    z = units.into(torch.from_numpy(VALUES)).numpy()
    np.testing.assert_allclose(z, into(VALUES.astype(np.float64)), rtol=1e-6)
    np.testing.assert_allclose(units.back(torch.from_numpy(z)).numpy(), back(z.astype(np.float64)), rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_way_back_is_finite_for_any_forecast_and_keeps_nan_and_order(name):
    z = torch.tensor([-1e6, -90.0, -1.0, 0.0, 1e-30, 2.0, 90.0, 1e6])
    y = Units(name).back(z)
    assert y.isfinite().all()
    assert (y.diff() >= 0).all()
    assert Units(name).back(torch.tensor([torch.nan])).isnan().all()


def test_non_negative_forecasts_end_at_zero_and_keep_nan():
    y = Units("none", True).back(torch.tensor([-2.0, 3.0, torch.nan]))
    assert y[:2].tolist() == [0.0, 3.0]
    assert y[2].isnan()


@pytest.mark.parametrize(("transform", "scaler"), list(itertools.product(NAMES, ("running", "standard"))))
def test_a_model_with_units_is_a_plain_one_between_the_two_maps(tiny, make_rows, transform, scaler):
    """Fitted on mapped rows, a plain model gives the same quantiles: those of a monotone map are the map of those."""
    rows = make_rows()
    rows["y"] = rows.y.abs() * 40
    sizes = {**tiny, "scaler": scaler, "max_epochs": 1}
    model = TXLForecaster(**sizes, transform=transform).fit(rows, val_size=12)
    into, back = NUMPY[transform]
    plain = TXLForecaster(**sizes).fit(rows.assign(y=into(rows.y)), val_size=12)
    columns = ["TXL", "TXL_ql0.1", "TXL_ql0.8"]
    # float32 maps on both ways.
    np.testing.assert_allclose(model.predict()[columns], back(plain.predict()[columns].astype(float)), rtol=2e-3)
    assert model.history_.validation == pytest.approx(plain.history_.validation, rel=1e-3)
    y = rows.groupby("unique_id").y.apply(lambda y: y.iloc[-12:])
    assert 0 < model.validation_mae_ < 3 * y.std()  # in raw units


def test_units_survive_a_file(tiny, make_rows, tmp_path):
    model = TXLForecaster(**{**tiny, "max_epochs": 0}, transform="sqrt", non_negative=True).fit(make_rows())
    model.save(tmp_path / "a.txl")
    again = TXLForecaster.load(tmp_path / "a.txl")
    assert (again.config_.transform, again.config_.non_negative) == ("sqrt", True)
    assert again.predict().equals(model.predict())
    assert (again.predict()[["TXL", "TXL_ql0.1"]] >= 0).all(axis=None)


@pytest.mark.usefixtures("one_row_alone")
def test_the_exported_graph_has_the_units(tiny, make_rows, tmp_path):
    pytest.importorskip("onnxscript", reason="exports need the extra `export`")
    pytest.importorskip("onnxruntime", reason="graphs need the extra `ort`")
    model = TXLForecaster(**{**tiny, "max_epochs": 1}, transform="asinh", non_negative=True).fit(make_rows())
    contract = model.export_onnx(tmp_path / "a.onnx")  # compared with the model before it is kept
    assert contract["parity"]["max_relative"] < 1e-5


def test_an_unknown_transform_is_refused_with_the_choices(make_rows):
    with pytest.raises(ParameterError, match=r"transform='log' is not known\. Choose one of .*'log1p'.*Did you mean"):
        TXLForecaster(transform="log", freq="1h").fit(make_rows())


def test_a_plain_model_is_untouched_by_units(fitted):
    assert isinstance(fitted._model, TXLModel)
    x = torch.tensor([1.0, -2.0])
    assert fitted._model.units.into(x) is x
    assert fitted._model.units.back(x) is x
