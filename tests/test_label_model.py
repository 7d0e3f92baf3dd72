"""The model with labels: heads, pooling, the promises of a session, and its training on rows with labels."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from txl_ts.checks import CheckFailed, check_label_head, check_session
from txl_ts.config import ModelConfig
from txl_ts.errors import ParameterError, TrainingError
from txl_ts.heads import ClassHead, RowPath, ValueHead
from txl_ts.label_model import LabelConfig, LabelModel
from txl_ts.training import LabelRows, LabelSettings, LabelTrainer, fit_row_path
from txl_ts.training.label_loop import label_loss
from txl_ts.training.labelled import LabelSegment, label_segments

SIZES = {"patch_len": 3, "mem_len": 4, "lookback": 2, "half_life": 12.0, "d_model": 8, "n_layers": 2, "n_heads": 2}
C, K = 2, 3


def make_model(**changes):
    model = LabelModel(LabelConfig(**(SIZES | {"d_ff": 10, "n_channels": C, "n_outputs": K} | changes))).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
    return model


class LabelSession:
    """A model with labels behind the session's protocol."""

    def __init__(self, **changes):
        self.model = make_model(**changes)

    def init_state(self, n_lanes):
        return {name: tensor.numpy() for name, tensor in self.model.init_state(n_lanes).items()}

    def step(self, x, state, start=None):
        tensors = {name: torch.tensor(array) for name, array in state.items()}
        with torch.no_grad():
            y, after = self.model(torch.tensor(x), tensors, None if start is None else torch.tensor(start))
        return y.numpy(), {name: tensor.numpy() for name, tensor in after.items()}


OURS = [
    *check_label_head(ClassHead),
    *check_label_head(ValueHead),
    *check_session(LabelSession, n_channels=C),
    *check_session(partial(LabelSession, head="values", pooling="mean", scaler="standard"), n_channels=C),
    *check_session(partial(LabelSession, head="rows", lookback=0), n_channels=C),
]


@pytest.mark.parametrize("check", OURS, ids=str)
def test_our_parts_keep_every_promise(check):
    check()


class PeekingHead(ClassHead):
    """Reads the row after its own."""

    def forward(self, hidden, centre):
        return super().forward(hidden.roll(-1, dims=1), centre)


class WarmHead(ValueHead):
    """Does not start at the linear path."""

    def __init__(self, *, d_model, n_outputs):
        super().__init__(d_model=d_model, n_outputs=n_outputs)
        nn.init.ones_(self.linear.bias)


@pytest.mark.parametrize(
    ("head", "promise"),
    [(PeekingHead, "an answer sees its own row only"), (WarmHead, "a new head answers by the centre alone")],
)
def test_a_broken_label_head_is_caught(head, promise):
    (check,) = [check for check in check_label_head(head) if check.name.partition(": ")[2] == promise]
    with pytest.raises(CheckFailed, match=r"\w+ \w+.*\.$"):
        check()


# ---------------------------------------------------------------------------------------------------------------- model


def rows_of(n_rows, *, n_lanes=2, seed=1):
    return torch.randn(n_lanes, n_rows, C, generator=torch.Generator().manual_seed(seed))


def test_the_row_path_is_one_affine_map_of_all_channels():
    path = RowPath(lookback=2, n_channels=C, n_outputs=K).double()
    with torch.no_grad():
        path.weight.copy_(torch.randn(K, 2 * C, generator=torch.Generator().manual_seed(0)))
        path.bias.copy_(torch.arange(K))
    z = torch.randn(2, 5, C, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    weight = path.weight.detach().numpy().reshape(K, C, 2)
    expected = np.einsum("bncl,kcl->bnk", z.numpy(), weight) + np.arange(K)
    np.testing.assert_allclose(path(z).detach().numpy(), expected, rtol=0, atol=1e-14)


def test_pooling_reads_the_mean_of_all_hidden_rows_so_far():
    last, mean = make_model(head="rows"), make_model(head="rows", pooling="mean")
    x = rows_of(11)
    with torch.no_grad():
        hidden, _ = last(x, last.init_state(2))
        pooled, state = mean(x[:, :4], mean.init_state(2))
        later, _ = mean(x[:, 4:], state)
    count = torch.arange(1, 12)[:, None]
    torch.testing.assert_close(torch.cat([pooled, later], dim=1), hidden.cumsum(1) / count, rtol=0, atol=1e-5)


def test_the_answer_of_the_last_row_alone_is_the_last_of_all():
    model = make_model(pooling="mean")
    with torch.no_grad():
        all_rows, state = model(rows_of(7), model.init_state(2))
        alone, other = model(rows_of(7), model.init_state(2), last_only=True)
    # Products of one row and of seven round differently, by where the rows lie in memory.
    torch.testing.assert_close(alone, all_rows[:, -1:], rtol=0, atol=1e-6)
    assert all(torch.equal(state[name], other[name]) for name in state)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_training_and_inference_give_the_same_answers(pooling):
    model = make_model(pooling=pooling)
    x = rows_of(13)
    with torch.no_grad():
        y, _ = model(x, model.init_state(2))
        state, parts = model.init_rows(2), []
        for part in x.split([5, 1, 7], dim=1):
            z, state = model.forward_rows(part, state)
            parts.append(z)
    # float32; one form keeps keys and values, the other hidden rows.
    torch.testing.assert_close(torch.cat(parts, dim=1).softmax(-1), y, rtol=0, atol=1e-5)


def test_a_label_config_survives_json_and_a_forecasters_does_not_pass_for_one():
    config = make_model(head="values", pooling="mean").config
    assert LabelConfig.from_json(config.to_json()) == config
    with pytest.raises(ParameterError, match="unknown model parameters"):
        ModelConfig.from_json(config.to_json())


@pytest.mark.parametrize(("name", "value"), [("head", "class"), ("pooling", "max"), ("n_outputs", 0)])
def test_a_wrong_choice_is_named(name, value):
    with pytest.raises(ParameterError, match=f"{name}={value!r}"):
        make_model(**{name: value})


# ------------------------------------------------------------------------------------------------------------- training


def labelled(n_rows=(9, 5, 1), *, seed=0, target=None):
    rng = np.random.default_rng(seed)
    n = sum(n_rows)
    stop = np.cumsum(n_rows)
    values = rng.normal(size=(n, C)).astype(np.float32)
    target = (values[:, 0] > 0).astype(np.int64) if target is None else target(values)
    return LabelRows(values, target, np.ones(n, np.float32), stop - n_rows, stop)


def test_every_row_comes_once_per_pass_and_only_a_first_row_starts_a_lane():
    rows = labelled()
    rows.values[:, 0] = np.arange(15)
    seen, starts = [], []
    for segment in label_segments(rows, n_lanes=2, n_rows=4, n_passes=2, jump=False, rng=np.random.default_rng(0)):
        seen += segment.x[..., 0][segment.weight > 0].tolist()
        starts += segment.x[:, 0, 0][segment.start[:, 0] & (segment.weight[:, 0] > 0)].tolist()
    assert sorted(seen) == sorted([*range(15)] * 2)
    assert sorted(starts) == [0, 0, 9, 9, 14, 14]


def test_long_runs_are_cut_and_short_ones_are_not():
    rows = labelled((40, 3)).cut(n_pieces=4, least=10)
    assert rows.first.tolist() == [0, 13, 26, 40]
    assert rows.stop.tolist() == [13, 26, 40, 43]


def test_the_loss_of_classes_is_the_weighted_cross_entropy():
    z = torch.randn(2, 3, K, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target, weight = torch.tensor([[0, 1, 2], [2, 2, 0]]), torch.tensor([[1.0, 0.5, 0.0], [2.0, 0.0, 1.0]])
    z[1, 1] = torch.nan  # weight 0
    loss, total = label_loss(z, LabelSegment(z, target, weight, torch.zeros(2, 1)))
    p = np.exp(z.numpy()) / np.exp(z.numpy()).sum(-1, keepdims=True)
    expected = sum(
        -w * np.log(p[i, j, target[i, j]]) for i, row in enumerate(weight.tolist()) for j, w in enumerate(row) if w
    )
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12)
    assert total == 4.5


def test_the_loss_of_values_leaves_out_what_is_missing():
    z = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    target = torch.tensor([[[0.0, torch.nan], [1.0, 1.0]]])
    loss, total = label_loss(z, LabelSegment(z, target, torch.tensor([[1.0, 0.5]]), torch.zeros(1, 1)))
    assert (loss.item(), total.item()) == (1 + 0.5 * (4 + 9), 2.0)


def settings(**changes):
    return LabelSettings(**({"max_epochs": 2, "batch_size": 4, "segment_len": 4, "learning_rate": 1e-2} | changes))


def test_the_closed_form_of_values_is_a_ridge_on_the_normalised_rows():
    rows = labelled((30, 20), target=lambda values: (values @ [[2.0], [-1.0]] + 0.5).astype(np.float32))
    model = make_model(head="values", n_outputs=1, lookback=1, scaler="standard")
    model.normaliser.fit(rows.values)
    fit_row_path(model, rows, seed=0)
    deviation = rows.values.std(axis=0)
    # A penalty of a thousandth per row shrinks a little.
    np.testing.assert_allclose(model.row_path.weight.detach()[0], [2.0, -1.0] * deviation, rtol=5e-3)


def test_the_closed_form_of_classes_is_a_logistic_regression():
    from sklearn.linear_model import LogisticRegression

    rows = labelled((200,), target=lambda v: (v[:, 0] + 0.5 * np.sin(9 * v[:, 1]) > 0).astype(np.int64))
    model = make_model(n_outputs=2, lookback=1, scaler="standard")
    model.normaliser.fit(rows.values)
    fit_row_path(model, rows, seed=0)
    z = (rows.values - rows.values.mean(axis=0)) / rows.values.std(axis=0)
    # Two softmax weights of opposite sign under half the sum of their squares are one of twice the size: C halves.
    oracle = LogisticRegression(C=2 / (1e-3 * 200), tol=1e-10).fit(z, rows.target)
    weight = model.row_path.weight.detach().numpy()
    np.testing.assert_allclose(weight[1] - weight[0], oracle.coef_[0], rtol=2e-3, atol=1e-3)


def test_training_lowers_the_loss_and_repeats_to_the_bit():
    rows, losses = labelled((60, 50)), []
    for _ in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = LabelModel(make_model(n_outputs=2).config)
            history = LabelTrainer(model, rows, None, settings(max_epochs=6)).run()
        losses.append(history.train)
    assert losses[0] == losses[1]
    assert losses[0][-1] < 0.6 * losses[0][0]


def test_the_best_epoch_on_the_validation_rows_is_kept():
    rows = labelled((60, 50))
    model = make_model(n_outputs=2)
    trainer = LabelTrainer(model, rows, labelled((40,), seed=5), settings(max_epochs=5, learning_rate=0.3))
    history = trainer.run()
    assert len(history.validation) == history.epochs + 1
    assert trainer.validation_loss() == history.validation[history.best_epoch] == min(history.validation)


def test_a_rate_that_explodes_is_named():
    with pytest.raises(TrainingError, match=r"the loss became (nan|inf) in epoch 1. Lower learning_rate"):
        LabelTrainer(make_model(n_outputs=2), labelled(), None, settings(learning_rate=1e30)).run()
