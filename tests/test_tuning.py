"""Starting from weights that are there: what is trained, what stays, and what fits into an adapter's file."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch

from txl_ts import TXLForecaster
from txl_ts.errors import FileFormatError, ParameterError, StateError
from txl_ts.training import Adapter, adapted_weights, with_adapter


@pytest.fixture(scope="module")
def others(make_rows):
    """Series of another kind: a faster season, other levels."""
    rows = make_rows(n_series=2, n_rows=120, seed=7)
    t = rows.groupby("unique_id").cumcount()
    return rows.assign(unique_id="new-" + rows.unique_id, y=5 * np.sin(2 * np.pi * t / 6) + 0.1 * rows.y)


@pytest.fixture(scope="module")
def lora(fitted, others):
    pytest.importorskip("peft", reason="peft is not installed")
    return copy.deepcopy(fitted).fine_tune(others, method="lora", rank=2, max_epochs=3, val_size=12)


def weights(model):
    return {name: tensor.numpy() for name, tensor in model._model.state_dict().items()}


def changed(model, before):
    return {name for name, tensor in weights(model).items() if not np.array_equal(tensor, weights(before)[name])}


# -------------------------------------------------------------------------------------------------------- pretrained


def test_a_pretrained_model_knows_no_series_and_forecasts_new_ones(fitted, others, tmp_path):
    fitted.save(tmp_path / "base.txl")
    model = TXLForecaster.from_pretrained(tmp_path / "base.txl")
    with pytest.raises(StateError, match="T1"):
        model.predict(ids=["T1"])
    expected = copy.deepcopy(fitted).predict(df=others)
    pd.testing.assert_frame_equal(model.predict(df=others), expected)
    model.update(others)
    assert set(model.predict().unique_id) == set(others.unique_id)
    assert not changed(model, fitted)


# ------------------------------------------------------------------------------------------------------ what is trained


def test_full_tuning_trains_everything_and_helps_on_other_series(fitted, others):
    model = copy.deepcopy(fitted).fine_tune(others, max_epochs=6, val_size=12)
    assert model.history_.best_epoch > 0
    assert min(model.history_.validation) < 0.9 * model.history_.validation[0]
    parts = {name.split(".")[0] for name in changed(model, fitted)}
    assert {"backbone", "head", "embedding"} <= parts
    assert set(model.predict().unique_id) == set(others.unique_id)  # memories of other weights are gone


def test_tuning_of_the_head_leaves_the_layers_as_they_were(fitted, others):
    model = copy.deepcopy(fitted).fine_tune(others, method="head", max_epochs=3, val_size=12)
    assert model.history_.best_epoch > 0
    assert {name.split(".")[0] for name in changed(model, fitted)} <= {"head", "linear_path"}
    assert all(parameter.requires_grad for parameter in model._model.parameters())


def test_an_adapter_changes_the_adapted_weights_alone_by_matrices_of_its_rank(fitted, lora):
    assert lora.history_.best_epoch > 0
    moved = changed(lora, fitted)
    assert moved
    assert moved <= set(adapted_weights(fitted._model))
    for name in moved:
        rank = np.linalg.matrix_rank((weights(lora)[name] - weights(fitted)[name]).astype(np.float64), tol=1e-5)
        assert rank <= 2, name


def test_at_its_start_an_adapter_changes_nothing(fitted):
    pytest.importorskip("peft", reason="peft is not installed")
    model = fitted._model
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 9, 1)).astype(np.float32))
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        adapted = with_adapter(model, rank=3)
        same = torch.equal(adapted(x, model.init_state(2))[0], model(x, model.init_state(2))[0])
    assert same


def test_the_merged_weights_are_those_that_were_trained(fitted):
    """The oracle is peft's own merge."""
    pytest.importorskip("peft", reason="peft is not installed")
    from peft.tuners.lora import LoraLayer

    from txl_ts.training import adapter_of

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        adapted = with_adapter(fitted._model, rank=3)
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter)
    ours = adapter_of(adapted, rank=3).merged(fitted._model).state_dict()
    for name, module in adapted.named_modules():
        if isinstance(module, LoraLayer):
            module.merge()
            torch.testing.assert_close(module.base_layer.weight, ours[f"{name}.weight"])


def test_without_rows_to_hold_out_all_are_trained_on_from_the_weights_of_before(fitted, others):
    model = copy.deepcopy(fitted).fine_tune(others, max_epochs=2)
    assert changed(model, fitted)
    assert len(model.history_.validation) == 3


def test_tuning_repeats_with_its_seed_and_leaves_the_users_random_numbers_alone(fitted, others):
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first, second = (copy.deepcopy(fitted).fine_tune(others, max_epochs=1, val_size=12) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not changed(first, second)


# --------------------------------------------------------------------------------------------------------------- files


def test_an_adapter_comes_back_to_the_weights_that_it_was_trained_on(fitted, lora, others, tmp_path):
    fitted.save(tmp_path / "base.txl")
    lora.save_adapter(tmp_path / "small.txl")
    assert (tmp_path / "small.txl").stat().st_size < (tmp_path / "base.txl").stat().st_size
    back = TXLForecaster.from_pretrained(tmp_path / "base.txl").load_adapter(tmp_path / "small.txl")
    pd.testing.assert_frame_equal(back.predict(df=others), lora.predict(df=others))
    assert isinstance(back.adapter_, Adapter)
    assert back.adapter_.nbytes == lora.adapter_.nbytes


def test_an_adapter_of_other_weights_is_refused_and_nothing_changes(fitted, lora, tmp_path):
    lora.save_adapter(tmp_path / "small.txl")
    other = copy.deepcopy(lora)
    before = other.predict()
    with pytest.raises(StateError, match=r"trained on other weights.*from_pretrained"):
        other.load_adapter(tmp_path / "small.txl")
    pd.testing.assert_frame_equal(other.predict(), before)


def test_a_model_is_no_adapter_and_an_adapter_no_model(fitted, lora, tmp_path):
    lora.save_adapter(tmp_path / "small.txl")
    fitted.save(tmp_path / "base.txl")
    with pytest.raises(FileFormatError, match="is a adapter, expected a model"):
        TXLForecaster.load(tmp_path / "small.txl")
    with pytest.raises(FileFormatError, match="is a model, expected a adapter"):
        copy.deepcopy(fitted).load_adapter(tmp_path / "base.txl")


def test_a_tuned_model_saves_and_a_new_fit_has_no_adapter(lora, others, make_rows, tmp_path):
    lora.save(tmp_path / "tuned.txl")
    pd.testing.assert_frame_equal(TXLForecaster.load(tmp_path / "tuned.txl").predict(), lora.predict())
    again = copy.deepcopy(lora).fit(make_rows(), val_size=12)
    assert again.adapter_ is None
    with pytest.raises(StateError, match=r"there is no adapter: fine-tune with fine_tune\(df, method=\"lora\"\)"):
        again.save_adapter(tmp_path / "none.txl")


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "lara"}, r"method='lara' is not known\. Choose one of \['full', 'lora', 'head'\]\. Did you mean"),
        ({"rank": 0}, "rank=0 .* must be an integer of at least 1"),
        ({"learning_rate": -1}, "learning_rate=-1"),
        ({"val_size": 0}, "val_size=0"),
    ],
)
def test_wrong_arguments_are_refused_and_nothing_changes(fitted, others, wrong, message):
    model = copy.deepcopy(fitted)
    with pytest.raises(ParameterError, match=message):
        model.fine_tune(others, **wrong)
    assert model._fleet.ids == fitted._fleet.ids
    assert not changed(model, fitted)


def test_series_too_short_to_train_on_are_refused(fitted, others):
    with pytest.raises(ParameterError, match="no series of the frame has more than patch_len=4 rows"):
        copy.deepcopy(fitted).fine_tune(others.groupby("unique_id").head(3))
