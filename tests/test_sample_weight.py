"""A weight says what an error counts for, in the closed form, the training loss and the choice of the epoch."""

import numpy as np
import pandas as pd
import pytest
import torch

from txl_ts import TXLForecaster
from txl_ts.errors import ColumnError, ParameterError
from txl_ts.losses import LOSSES, forecast_loss

COLUMNS = ["TXL", "TXL_ql0.1", "TXL_ql0.8"]


@pytest.fixture(scope="module")
def rows(make_rows):
    return make_rows(n_series=4, n_rows=120)


def test_equal_weights_are_no_weights(tiny, rows):
    plain = TXLForecaster(**tiny).fit(rows, val_size=20)
    weighted = TXLForecaster(**tiny).fit(rows.assign(w=1.0), val_size=20, sample_weight="w")
    np.testing.assert_allclose(weighted.predict()[COLUMNS], plain.predict()[COLUMNS], rtol=1e-3, atol=1e-3)
    assert weighted.history_.validation == pytest.approx(plain.history_.validation, rel=1e-4)


def test_a_common_factor_changes_nothing(tiny, rows):
    fits = [TXLForecaster(**tiny).fit(rows.assign(w=w), val_size=20, sample_weight="w") for w in (0.5, 4.0)]
    np.testing.assert_allclose(fits[0].predict()[COLUMNS], fits[1].predict()[COLUMNS], rtol=1e-3, atol=1e-3)


def test_a_series_of_weight_zero_teaches_nothing(tiny, rows):
    def fit(df):
        return TXLForecaster(**tiny).fit(df, val_size=20, sample_weight="w")

    weighted = rows.assign(w=(rows.unique_id != "T2").astype(float))
    poisoned = weighted.assign(y=rows.y.where(rows.unique_id != "T2", 50 - 7 * rows.y**2))
    one, other = fit(weighted), fit(poisoned)
    others = ["T1", "T3", "T4"]
    np.testing.assert_allclose(one.predict(ids=others)[COLUMNS], other.predict(ids=others)[COLUMNS], rtol=1e-4)
    assert one.history_.validation == pytest.approx(other.history_.validation, rel=1e-5)
    assert np.abs(one.predict(ids=["T2"]).TXL - other.predict(ids=["T2"]).TXL).min() > 1  # it is still forecast


def test_the_linear_path_leans_to_the_heavier_rows(tiny):
    """Two kinds of series, one that repeats and one that turns around: weights decide which is learnt."""
    t = np.arange(200)
    rng = np.random.default_rng(0)
    up = np.repeat(rng.normal(size=100), 2)[: len(t)] * 3
    frame = pd.concat(
        [
            pd.DataFrame({"unique_id": "same", "ds": t, "y": np.cumsum(rng.normal(size=200)), "w": 1.0}),
            pd.DataFrame({"unique_id": "turns", "ds": t, "y": up * (-1.0) ** t, "w": 1.0}),
        ]
    )
    errors = {}
    for heavy in ("same", "turns"):
        w = np.where(frame.unique_id == heavy, 100.0, 0.01)
        sizes = {**tiny, "freq": 1, "max_epochs": 0, "h": 1}
        model = TXLForecaster(**sizes).fit(frame.assign(w=w), sample_weight="w")
        told = model.fitted_values()
        errors[heavy] = (told.TXL - told.y).abs().groupby(told.unique_id).mean()
    assert errors["same"]["same"] < errors["turns"]["same"]
    assert errors["turns"]["turns"] < errors["same"]["turns"]


@pytest.mark.parametrize("loss", LOSSES)
def test_the_loss_is_the_weighted_mean_of_single_losses(loss):
    generator = torch.Generator().manual_seed(0)
    B, n, h, Q = 2, 3, 4, 3
    forecast = torch.randn(B, n, h, 1, Q, generator=generator)
    target, weight = torch.randn(B, n, h, 1, generator=generator), torch.rand(B, n, h, 1, generator=generator)
    usable = torch.rand(B, n, h, 1, generator=generator) < 0.7
    about = {
        "quantiles": (0.1, 0.5, 0.9),
        "deviation": torch.ones(B, n, 1),
        "unit": torch.tensor([1.0, 2.0]),
        "level": torch.ones(B, n, 1),
        "loss": LOSSES[loss],
    }
    got = forecast_loss(forecast, target, usable=usable, weight=weight, **about)
    total = 0.0
    for place in usable.nonzero():
        only = torch.zeros_like(usable)
        only[tuple(place)] = True
        total += float(weight[tuple(place)]) * float(forecast_loss(forecast, target, usable=only, **about))
    assert float(got) == pytest.approx(total / float(weight[usable].sum()), rel=1e-5)


def test_weights_are_read_with_gaps_and_any_order(tiny, rows, frame):
    holes = rows[rows.ds.dt.hour % 7 != 3].sample(frac=1, random_state=0).assign(w=2.0)
    model = TXLForecaster(**{**tiny, "max_epochs": 0})
    columns = {name: holes[name].tolist() for name in holes}
    model.fit(frame(columns), sample_weight="w")
    plain = TXLForecaster(**{**tiny, "max_epochs": 0}).fit(holes.drop(columns="w"))
    told = model.predict()["TXL"]
    np.testing.assert_allclose(np.asarray(told, float), plain.predict()["TXL"], rtol=1e-4)


def test_weights_are_a_column_and_no_array(tiny, rows):
    with pytest.raises(ParameterError, match="sample_weight must be the name of a column of the frame, got ndarray"):
        TXLForecaster(**tiny).fit(rows, sample_weight=np.ones(len(rows)))


MISTAKES = {
    "absent": (lambda df: df, "nope", "sample_weight='nope' must name a column of its own"),
    "target": (lambda df: df, "y", "sample_weight='y' must name a column of its own"),
    "negative": (
        lambda df: df.assign(w=-1.0),
        "w",
        "weight column 'w' is negative in 526 rows, first in series 'T1' at its row 0",
    ),
    "missing": (
        lambda df: df.assign(w=np.where(df.index == 7, np.nan, 1.0)),
        "w",
        "'w' is missing in 1 rows, first in series 'T1' at its row 7",
    ),
    "zero": (lambda df: df.assign(w=0.0), "w", "holds no positive weight"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_weights_that_cannot_be_used_are_named_with_series_and_row(tiny, rows, mistake):
    change, column, text = MISTAKES[mistake]
    df = change(rows)
    with pytest.raises(ColumnError, match=text.replace("526", str(len(df) if mistake == "negative" else 526))):
        TXLForecaster(**{**tiny, "max_epochs": 0}).fit(df, sample_weight=column)


@pytest.mark.parametrize(
    ("weight", "val_size", "text"),
    [
        (lambda place: place < 90, 20, r"0 everywhere at the last val_size=20 rows .* a val_size that reaches back"),
        (lambda place: place < 90, None, "0 everywhere in the tail of each series, where the epoch is chosen"),
        (lambda place: place >= 130, 20, r"0 at all rows that are trained on.*, or hold out fewer rows than val_size"),
        (lambda place: place < 3, None, "0 at all rows that are trained on: nothing would be learnt"),
    ],
)
def test_rows_that_train_and_rows_that_choose_both_need_a_weight(tiny, make_rows, weight, val_size, text):
    """Losses over nothing are NaN: no epoch would be better than none, and training was thrown away."""
    rows = make_rows(n_series=1, n_rows=150)
    rows = rows.assign(w=weight(rows.index).astype(float))
    with pytest.raises(ParameterError, match=text):
        TXLForecaster(**tiny).fit(rows, val_size=val_size, sample_weight="w")


def test_mixed_channels_share_the_weight_of_their_row(tiny, rows):
    wide = rows.assign(z=rows.y.shift(3), w=np.where(rows.unique_id == "T2", 0.5, 1.5))
    sizes = {**tiny, "channels": "mixed", "max_epochs": 1}
    weighted = TXLForecaster(**sizes).fit(wide, target_col=["y", "z"], val_size=20, sample_weight="w")
    twice = TXLForecaster(**sizes).fit(wide.assign(w=2 * wide.w), target_col=["y", "z"], val_size=20, sample_weight="w")
    plain = TXLForecaster(**sizes).fit(wide.drop(columns="w"), target_col=["y", "z"], val_size=20)
    assert weighted.history_.validation == pytest.approx(twice.history_.validation, rel=1e-4)
    assert weighted.history_.validation != pytest.approx(plain.history_.validation, rel=1e-4)
