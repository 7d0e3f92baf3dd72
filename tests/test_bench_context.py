"""Effective context of a group of models on a stream whose dependence is known."""

import numpy as np
import pytest
import torch

from txl_ts.bench import context
from txl_ts.bench.memory import Training
from txl_ts.bench.report import markdown


def test_a_symbol_is_drawn_as_is_said():
    episodes = context.echoes(np.random.default_rng(0), 400, 96)
    symbol = episodes.x.argmax(axis=2)
    np.testing.assert_array_equal(episodes.target[:, :-1], symbol[:, 1:])
    now, before = symbol[:, 28:], np.stack([symbol[:, 28 - lag : -lag] for lag in (3, 9, 28)])
    differ = (before[0] != before[1]) & (before[1] != before[2]) & (before[0] != before[2])
    # For the row itself, and a quarter of the .1 that is left.
    for part, chance in zip(before, (0.2, 0.2, 0.5), strict=True):
        assert (now[differ] == part[differ]).mean() == pytest.approx(chance + 0.025, abs=0.02)


def test_the_best_loss_is_the_entropy_of_the_draw_and_beats_guessing():
    episodes = context.judged_episodes(0, 3000)
    x = episodes.x[:, -28:]
    likely = 0.025 + 0.5 * x[:, 0] + 0.2 * x[:, 19] + 0.2 * x[:, 25]  # 28, 9 and 3 rows before the next symbol
    np.testing.assert_allclose(likely.sum(axis=1), 1, rtol=1e-6)
    entropy = -(likely * np.log(likely)).sum(axis=1).mean()
    found = context.best_losses(episodes)
    assert found.mean() == pytest.approx(entropy, abs=4 * found.std() / np.sqrt(3000))
    assert found.mean() < np.log(4) - 0.2


class Peeking:
    """Knows how the stream is drawn, as far as rows were walked; uniform before the longest lag."""

    def init_rows(self, n_lanes):
        return {}

    def forward_rows(self, x, state):
        likely = torch.full((len(x), x.shape[1], 4), 0.25)
        if x.shape[1] >= 28:
            parts = (p * x[:, 28 - lag : x.shape[1] + 1 - lag] for lag, p in ((3, 0.2), (9, 0.2), (28, 0.5)))
            likely[:, 27:] = 0.025 + sum(parts)
        return likely.log(), state


def test_a_model_that_knows_the_stream_reaches_the_best_loss_at_its_context_and_not_before():
    mean = context.cut_losses(Peeking(), seed=0, n_positions=300).mean(axis=1)
    enough = np.array(context.CONTEXTS) >= 27
    np.testing.assert_allclose(mean[~enough], np.log(4), rtol=1e-5)
    # float32 logarithms.
    np.testing.assert_allclose(mean[enough], context.best_losses(context.judged_episodes(0, 300)).mean(), rtol=1e-5)


def test_the_table_has_a_row_per_model_and_the_curves():
    table = context.run(seeds=(0,), rivals=("GRU",), training=Training(n_updates=2, n_lanes=2), n_positions=6)
    assert [row["model"] for row in table["rows"]] == ["TXL, fifo", "GRU"]
    assert len(table["runs"][0]["curve"]) == len(table["contexts"])
    assert "TXL, fifo / GRU" in markdown(table)
