"""Effective context of a group of models on a stream whose dependence is known."""

import numpy as np
import pytest
import torch

from txl_ts.bench import context
from txl_ts.bench.memory import Training
from txl_ts.bench.report import markdown

LONGEST = max(context.LAGS)


def test_a_symbol_is_that_of_a_lag_before_as_often_as_is_said():
    episodes = context.echoes(np.random.default_rng(0), 200, 128)
    symbol = episodes.x.argmax(axis=2)
    np.testing.assert_array_equal(episodes.target[:, :-1], symbol[:, 1:])
    now = symbol[:, LONGEST:]
    same = {lag: (now == symbol[:, LONGEST - lag : -lag]).mean() for lag in (*context.LAGS, 1, 7, LONGEST - 1)}
    # Kept with .3, and by accident with a quarter of the rest, .475; more, since lags of lags come again as well.
    assert all(0.55 < same[lag] < 0.7 for lag in context.LAGS)
    assert all(same[lag] == pytest.approx(0.25, abs=0.02) for lag in (1, 7, LONGEST - 1))


def test_the_best_loss_is_the_entropy_of_the_draw():
    episodes = context.judged_episodes(0, 3000)
    found = context.best_losses(episodes)
    entropies = []
    for symbols in episodes.x.argmax(axis=2):
        chance = np.full(4, 0.1 / 4)
        for lag in context.LAGS:
            chance[symbols[len(symbols) - lag]] += 0.3
        entropies.append(-chance @ np.log(chance))
    # Chances that are those of the draw, and no others, are right on average about how wrong they are.
    assert found.mean() == pytest.approx(np.mean(entropies), abs=4 * (found - entropies).std() / np.sqrt(3000))


class Peeking:
    """Answers from exactly the rows that the next one may repeat; uniform where one of them was not walked."""

    def init_rows(self, n_lanes):
        return {}

    def forward_rows(self, x, state):
        n_rows, z = x.shape[1], torch.zeros(len(x), x.shape[1], 4)
        if n_rows >= LONGEST:
            seen = [x[:, LONGEST - lag : n_rows - lag + 1] for lag in context.LAGS]
            z[:, LONGEST - 1 :] = (0.1 / 4 + 0.3 * sum(seen)).log()
        return z, state


def test_a_model_that_peeks_at_the_right_row_gains_at_its_context_alone():
    losses = context.cut_losses(Peeking(), seed=0, n_positions=300)
    mean = losses.mean(axis=1)
    enough = [n >= LONGEST - 1 for n in context.CONTEXTS]
    np.testing.assert_allclose(mean[~np.array(enough)], np.log(4), rtol=1e-5)
    best = context.best_losses(context.judged_episodes(0, 300)).mean()
    # float32 logits.
    np.testing.assert_allclose(mean[np.array(enough)], best, rtol=1e-5)


def test_the_table_has_a_row_per_model_and_the_curves_and_goes_on_with_the_next_seed(tmp_path, monkeypatch):
    how = {"rivals": ("GRU",), "training": Training(n_updates=2, n_lanes=2), "n_positions": 6, "kept": tmp_path}
    table = context.run(seeds=(0,), **how)
    assert [row["model"] for row in table["rows"]] == ["TXL, fifo", "GRU"]
    assert len(table["runs"][0]["curve"]) == len(table["contexts"])
    assert "TXL, fifo / GRU" in markdown(table)
    fit, fitted = context.fit_group, []
    monkeypatch.setattr(context, "fit_group", lambda group, seed, **how: fitted.append(seed) or fit(group, seed, **how))
    part = context.run(seeds=(0, 1), from_kept=True, **how)
    assert (part["rows"], part["notes"][-1]) == (table["rows"], "2 of 4 fits are missing; seeds are counted per row.")
    assert {row["n_seeds"] for row in context.run(seeds=(0, 1), **how)["rows"]} == {2}
    assert fitted == [1]
