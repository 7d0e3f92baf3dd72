"""``precision="bf16"``: the layers compute in bfloat16, and what lasts is float32."""

import numpy as np
import pandas as pd
import pytest
import torch

from txl_ts import TXLClassifier, TXLForecaster
from txl_ts.config import ModelConfig
from txl_ts.errors import ParameterError
from txl_ts.label_model import LabelConfig, LabelModel
from txl_ts.memory import policies
from txl_ts.model import TXLModel

SIZES = {"h": 2, "quantiles": (0.1, 0.5, 0.9), "patch_len": 2, "stride": 1, "lookback": 4, "half_life": 5000.0}
NETWORK = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24, "mem_len": 6}


def models(cls=TXLModel, seed=0, **changes):
    """The same weights twice: in float32, and in bfloat16."""
    config = ModelConfig(**{**SIZES, **NETWORK, **changes})
    if cls is LabelModel:
        config = LabelConfig(**NETWORK, patch_len=2, lookback=1, half_life=50.0, n_outputs=2, **changes)
    made = []
    for precision in ("float32", "bf16"):
        model = cls(type(config)(**{**vars(config), "precision": precision})).eval()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.2)
        made.append(model)
    return made


def rows(n_lanes, n_rows, seed=0):
    return torch.randn(n_lanes, n_rows, 1, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("memory", policies())
def test_what_is_kept_is_float32_and_answers_are_near(memory):
    plain, low = models(memory=memory)
    with torch.no_grad():
        expected, _ = plain(rows(2, 70), plain.init_state(2))
        y, state = low(rows(2, 70), low.init_state(2))
        _, _, visits = low.forward_visits(rows(2, 70), low.init_visits(2, n_phases=1), torch.tensor([0]))
    for kept in (state, visits):
        counters = {name for name, tensor in kept.items() if tensor.dtype == torch.int32}
        assert counters == {name for name in kept if name.endswith("count")}
        assert {tensor.dtype for name, tensor in kept.items() if name not in counters} == {torch.float32}
    assert y.dtype == torch.float32
    # Eight bits of fraction, two layers, answers of size one; and it must not be float32 in disguise.
    assert 1e-5 < float((y - expected).abs().max()) < 0.1


def test_layers_do_compute_in_bfloat16():
    _, low = models()
    found = []
    for layer in low.backbone.layers:
        layer.forward_in.register_forward_hook(lambda module, args, out: found.append(out.dtype))
    low.embedding.register_forward_hook(lambda module, args, out: found.append(out.dtype))
    with torch.no_grad():
        low(rows(1, 5), low.init_state(1))
    assert found == [torch.float32, torch.bfloat16, torch.bfloat16]


def test_the_running_normaliser_is_bit_for_bit_that_of_float32_after_20_000_rows():
    plain, low = models(d_model=4, n_heads=1, n_layers=1, d_ff=4)
    states = [model.init_state(1) for model in (plain, low)]
    x = 101325 + 10 * rows(1, 20_000) + torch.linspace(0, 50, 20_000)[:, None]
    with torch.inference_mode():
        for part in x.split(1000, dim=1):
            states = [model(part, state, last_only=True)[1] for model, state in zip((plain, low), states, strict=True)]
    for name in ("norm", "rows", "count"):
        assert torch.equal(states[0][name], states[1][name]), name
    assert (states[0]["keys_0"] != states[1]["keys_0"]).any()


def test_any_split_of_a_stream_gives_near_answers():
    """Equal calls are equal; other splits move sums by a digit of bfloat16."""
    _, low = models()
    x = rows(2, 40)
    with torch.no_grad():
        whole, _ = low(x, low.init_state(2))
        state, parts = low.init_state(2), []
        for part in x.split([17, 1, 22], dim=1):
            y, state = low(part, state)
            parts.append(y)
    assert float((torch.cat(parts, dim=1) - whole).abs().max()) < 0.1


@pytest.mark.parametrize("cls", [TXLModel, LabelModel])
def test_gradients_are_float32_and_near_those_of_float32(cls):
    found = []
    for model in models(cls):
        if cls is LabelModel:
            z, _ = model.forward_rows(rows(2, 30), model.init_rows(2))
        else:
            z, _, _ = model.forward_visits(rows(2, 30), model.init_visits(2, n_phases=1), torch.tensor([0]))
        z.square().mean().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    plain, low = found
    assert low.dtype == torch.float32
    assert 0 < float((low - plain).norm() / plain.norm()) < 0.05


def test_the_graphs_twin_shares_its_weights_and_computes_in_float32():
    plain, low = models()
    with torch.no_grad():
        expected, _ = plain(rows(1, 9), plain.init_state(1))
        y, _ = low.in_float32()(rows(1, 9), low.init_state(1))
    assert torch.equal(y, expected)
    assert low.precision == "bf16"
    assert low.in_float32().embedding is low.embedding


def test_estimators_train_save_and_load_it(tmp_path):
    t = np.arange(120)
    df = pd.DataFrame({"unique_id": "a", "ds": t, "y": np.sin(t / 3)})
    small = {"d_model": 8, "n_heads": 2, "n_layers": 1, "max_epochs": 1}
    sizes = {"patch_len": 4, "stride": 2, "mem_len": 4, "lookback": 8, "half_life": 20}
    model = TXLForecaster(h=2, freq=1, precision="bf16", **small, **sizes).fit(df)
    plain = TXLForecaster(h=2, freq=1, **small, **sizes).fit(df)
    model.save(tmp_path / "model.txl")
    loaded = TXLForecaster.load(tmp_path / "model.txl")
    assert loaded.config_.precision == loaded._model.precision == "bf16"
    pd.testing.assert_frame_equal(loaded.predict(), model.predict())
    assert 0 < float((model.predict()["TXL"] - plain.predict()["TXL"]).abs().max()) < 0.1
    assert "precision" not in plain.config_.to_json()
    X = np.random.default_rng(0).normal(size=(40, 2))
    classifier = TXLClassifier(precision="bf16", **small).fit(X, (X[:, 0] > 0).astype(int))
    assert classifier._model.precision == "bf16"


def test_another_precision_is_refused():
    with pytest.raises(ParameterError, match="precision='float16' is not known"):
        ModelConfig(**SIZES, **NETWORK, precision="float16")
