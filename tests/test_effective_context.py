"""How far back the memory helps: contexts that are really cut, and a length as in the paper."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch

from tests.oracles import context_cut
from txl_ts import TXLForecaster
from txl_ts.config import ModelConfig
from txl_ts.effective_context import Run, context_grid, context_losses, effective_context_length, enough
from txl_ts.errors import ParameterError, ShapeError
from txl_ts.model import TXLModel

H, STRIDE, LAYERS, MEM_LEN = 2, 3, 2, 4
VISIBLE = STRIDE * LAYERS * MEM_LEN


@pytest.fixture(scope="module")
def model():
    config = ModelConfig(
        h=H,
        quantiles=(0.1, 0.5, 0.9),
        patch_len=3,
        stride=STRIDE,
        mem_len=MEM_LEN,
        lookback=6,
        half_life=20,
        d_model=8,
        n_layers=LAYERS,
        n_heads=2,
        d_ff=8,
    )
    torch.manual_seed(0)
    made = TXLModel(config).eval()
    for parameter in made.parameters():  # heads start at zero: the memory would say nothing
        torch.nn.init.normal_(parameter, std=0.4)
    return made


@pytest.fixture(scope="module")
def run():
    values = np.random.default_rng(0).normal(3, 2, 90).cumsum().astype(np.float32)
    values[[5, 40, 62]] = np.nan
    return Run(values, np.array([45, 61, 87]), unit=2.5)


def losses_of(forecast, run, origin):
    y = run.values[origin + 1 : origin + 1 + H].astype(np.float64)
    squared, pinball = [], []
    for value, row in zip(y, forecast.numpy().astype(np.float64), strict=True):
        if np.isfinite(value):
            error = (value - row) / run.unit
            squared.append(error[1] ** 2)
            pinball.append(np.mean([max(q * e, (q - 1) * e) for q, e in zip((0.1, 0.5, 0.9), error, strict=True)]))
    return np.mean(squared), np.mean(pinball)


def walked(model, values, state=None):
    """In one call, one lane."""
    with torch.no_grad():
        y, state = model(torch.from_numpy(values)[None, :, None], model.init_state(1) if state is None else state)
    return y[0, -1, :, 0], state


def test_each_context_is_that_of_a_memory_which_began_so_many_rows_before_the_origin(model, run):
    contexts = (0, 10, 30)
    found = context_losses(model, [run], contexts=contexts)
    for j, origin in enumerate(run.origins.tolist()):
        whole = losses_of(walked(model, run.values[: origin + 1])[0], run, origin)
        # float32 sums in another order.
        np.testing.assert_allclose([found.whole[loss][j] for loss in ("squared", "pinball")], whole, rtol=1e-4)
        for i, context in enumerate(contexts):
            begin, rows = origin - context, run.values[origin - context : origin + 1]
            fresh = losses_of(walked(model, rows)[0], run, origin)
            np.testing.assert_allclose([found.history[loss][i, j] for loss in ("squared", "pinball")], fresh, rtol=1e-4)
            _, state = walked(model, run.values[:begin])
            empty = model.init_state(1)
            kept = {name: state[name] if name in ("norm", "rows") else empty[name] for name in state}
            cut = losses_of(walked(model, rows, kept)[0], run, origin)
            np.testing.assert_allclose([found.memory[loss][i, j] for loss in ("squared", "pinball")], cut, rtol=1e-4)


def test_a_fifo_memory_that_is_cut_at_its_reach_loses_nothing_and_one_visit_earlier_it_does(model, run):
    found = context_losses(model, [run], contexts=(VISIBLE - STRIDE, VISIBLE))
    np.testing.assert_allclose(found.memory["squared"][1], found.whole["squared"], rtol=1e-4)
    assert (np.abs(found.memory["squared"][0] / found.whole["squared"] - 1) > 1e-4).any()


def test_the_attention_by_age_is_that_of_the_layer(model, run):
    found = context_losses(model, [run], contexts=(0,))
    assert found.attention.shape == (LAYERS, MEM_LEN + 1)
    np.testing.assert_allclose(found.attention.sum(axis=1), 1, rtol=1e-5)
    attention = model.backbone.layers[0].attention
    x, key, value = torch.randn(2, 3, 8), torch.randn(2, 2, MEM_LEN + 3, 4), torch.randn(2, 2, MEM_LEN + 3, 4)
    visible = torch.tensor([[True] * MEM_LEN, [False, False, True, True]])
    weights = attention.last_row_weights(x, key, visible)  # (B, H, M + 1)
    heads = (weights[:, :, None] @ value[:, :, -MEM_LEN - 1 :])[:, :, 0]
    expected = attention(x, key, value, visible)[:, -1]
    torch.testing.assert_close(attention.output(heads.flatten(1)), expected, atol=1e-5, rtol=1e-5)


def test_measuring_changes_neither_rows_nor_weights(model, run):
    before, values = copy.deepcopy(model.state_dict()), run.values.copy()
    context_losses(model, [run], contexts=(0, 3))
    np.testing.assert_array_equal(run.values, values)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(layer.attention._forward_pre_hooks for layer in model.backbone.layers)


@pytest.mark.parametrize("r", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("is_nll", [True, False])
def test_the_length_is_that_of_the_papers_algorithm_written_out(r, is_nll):
    rng = np.random.default_rng(4)
    contexts = (0, 4, 8, 16, 32)
    used = np.minimum(np.arange(5), np.array([[1], [2], [4]]))  # three models that use more and more
    fall = np.exp(-used / 2)
    losses = 0.2 + fall[:, :, None] * rng.gamma(2, 1, (1, 1, 60)) + 0.01 * rng.random((3, 5, 60))
    how = {"r": r, "threshold": 0.05, "is_nll": is_nll}
    found = effective_context_length(losses, contexts, **how)
    assert found == context_cut.relative_length(losses.tolist(), contexts, **how)
    assert found == [4, 8, 32]


def test_a_model_that_gets_nothing_from_context_has_length_zero_and_one_that_always_gains_has_all():
    contexts = (0, 2, 4)
    flat, falling = np.ones((1, 3, 8)), np.linspace(3, 1, 3)[None, :, None].repeat(8, axis=2)
    assert effective_context_length(flat, contexts) == [0]
    assert effective_context_length(falling, contexts) == [4]


def test_losses_of_another_shape_and_shares_outside_are_refused():
    with pytest.raises(ShapeError, match=r"\(n_models, 2 contexts, n_positions\), got \(1, 3, 4\)"):
        effective_context_length(np.ones((1, 3, 4)), (0, 1))
    with pytest.raises(ParameterError, match=r"r=0 must lie in \(0, 1\]"):
        effective_context_length(np.ones((1, 2, 4)), (0, 1), r=0)


def test_enough_is_the_first_context_after_which_the_loss_stays():
    losses = np.array([3.0, 1.005, 1.5, 1.009, 1.0])[:, None]
    assert enough(losses, (0, 1, 2, 4, 8)) == 4
    assert enough(np.ones((3, 2)), (0, 1, 2)) == 0


def test_contexts_are_visits_in_half_octaves_then_the_reach_and_more():
    assert context_grid(reach=51, stride=4, more=(25, 200), longest=100) == (0, 4, 8, 12, 16, 24, 25, 32, 48, 51)


# ------------------------------------------------------------------------------------------------------ the forecaster


@pytest.fixture(scope="module")
def data():
    t, rng = np.arange(300), np.random.default_rng(0)
    parts = [
        pd.DataFrame(
            {
                "unique_id": name,
                "ds": pd.date_range("2024-01-01", periods=300, freq="h"),
                "y": scale * (np.sin(t * 2 * np.pi / 12) + rng.normal(size=300) / 10),
            }
        )
        for name, scale in (("a", 1), ("b", 50))
    ]
    return pd.concat(parts, ignore_index=True)


SIZES = {"patch_len": 4, "stride": 4, "mem_len": 3, "lookback": 12, "d_model": 8, "n_heads": 2, "max_epochs": 1}


@pytest.fixture(scope="module")
def fitted(data):
    return TXLForecaster(h=3, freq="1h", quantiles=(0.1, 0.5, 0.9), **SIZES).fit(
        data[data.ds < data.ds.iloc[260]], val_size=120
    )


def test_a_forecaster_answers_in_the_users_time(fitted, data):
    found = fitted.effective_context(n_origins=10)
    assert found.contexts == (0, 4, 8, 12, 16, 24, 27)  # the look-back of 12 rows and twice that among them
    assert found.durations[1:] == ("4 h", "8 h", "12 h", "16 h", "1 day", "27 h")
    assert found.n_origins == 10
    text = str(found)
    assert f"({found.history_rows} rows)" in text
    assert "contexts up to 27 h" in text
    table = found.table()
    assert table["context_rows"].tolist() == list(found.contexts)
    assert isinstance(table, pd.DataFrame)
    assert found.recl in found.contexts
    later = fitted.effective_context(data, n_origins=10)  # 40 rows of each series came after the fit
    assert later.n_origins == 10
    assert (later.losses.whole["squared"] != found.losses.whole["squared"]).any()


def test_a_series_of_another_scale_counts_as_much(fitted):
    found = fitted.effective_context(n_origins=10)
    whole = found.losses.whole["squared"]
    assert whole[:5].mean() == pytest.approx(whole[5:].mean(), rel=2)


def test_measuring_changes_no_forecast(fitted):
    before = fitted.predict()
    fitted.effective_context(n_origins=2)
    pd.testing.assert_frame_equal(fitted.predict(), before)


def test_a_picture_shows_both_curves_and_the_attention(fitted):
    pytest.importorskip("matplotlib", reason="pictures need the extra `plot`")
    figure = fitted.effective_context(n_origins=2).plot()
    loss, attention = figure.axes
    assert [line.get_label() for line in loss.lines[:2]] == ["memory emptied", "nothing before"]
    assert "4 h" in attention.get_xlabel()


def test_columns_known_ahead_and_the_calendar_are_walked_too(data):
    extra = data.assign(warm=np.cos(np.arange(len(data)) / 5), wind=np.sin(np.arange(len(data)) / 7))
    made = TXLForecaster(h=3, freq="1h", calendar="auto", **SIZES)
    made.fit(extra, futr_cols=["warm"], hist_cols=["wind"], val_size=120)
    found = made.effective_context(n_origins=4, contexts=(0, 24))
    np.testing.assert_allclose(found.losses.memory["squared"][1], found.losses.whole["squared"], rtol=1e-3)


def test_mixed_channels_are_measured_together_each_in_its_own_deviation(data):
    wide = data.assign(z=100 * data.y.groupby(data.unique_id).shift(3))
    early = wide[wide.ds < wide.ds.iloc[260]]
    made = TXLForecaster(h=3, freq="1h", channels="mixed", **SIZES).fit(early, target_col=["y", "z"])
    found = made.effective_context(
        wide, n_origins=2, contexts=(0, 24)
    )  # one origin of each series: its last fitted row
    np.testing.assert_allclose(found.losses.memory["squared"][1], found.losses.whole["squared"], rtol=1e-3)
    said = made.cross_validation(wide, n_windows=38, use_fitted=True)
    first = said[said.cutoff == early.ds.max()]
    for name, loss in zip("ab", found.losses.whole["squared"], strict=True):
        own, known = first[first.unique_id == name], early[early.unique_id == name]
        errors = [(own[y] - own[f"{y}_TXL"]) / known[y].std(ddof=0) for y in ("y", "z")]
        assert loss == pytest.approx(np.square(errors).mean(), rel=1e-3)


def test_held_out_rows_without_a_value_judge_nothing(fitted, data):
    empty = data.assign(y=data.y.where(data.ds < data.ds.iloc[260]))
    with pytest.raises(ParameterError, match="not trained on hold no value to judge by, in 2 series"):
        fitted.effective_context(empty)


def test_a_measurement_is_refused_where_there_is_nothing_to_measure(fitted, data):
    with pytest.raises(ParameterError, match=r"effective_context\(df\)"):
        TXLForecaster(h=3, freq="1h", **SIZES).fit(data).effective_context()
    with pytest.raises(ParameterError, match="carry_memory=False empties the memory"):
        TXLForecaster(h=3, freq="1h", carry_memory=False, **SIZES).fit(data, val_size=120).effective_context()
    with pytest.raises(ParameterError, match=r"no series has max\(contexts\)=1000 rows before, and h=3 rows behind"):
        fitted.effective_context(contexts=(1000,))
    with pytest.raises(ParameterError, match="loss='mse' is not known"):
        fitted.effective_context(loss="mse")
