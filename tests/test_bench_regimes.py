"""The regimes of the bench are what they are said to be, and its table holds what was measured."""

import numpy as np
import pytest

from txl_ts.bench import regimes, report
from txl_ts.metrics import mean_forgetting

SMALL = regimes.Course(n_updates=4, n_lanes=2, replay_size=3)


@pytest.mark.parametrize("period", [regimes.PERIODS[0], regimes.PERIODS[-1]])
def test_an_oscillation_has_variance_1_and_its_own_recurrence(period):
    y = regimes.oscillations(np.random.default_rng(0), 400, 200, period=period).astype(np.float64)
    assert y.var() == pytest.approx(1, abs=0.1)
    # Least squares find the coefficients again, and the noise that is left.
    past = np.stack([y[:, 1:-1].ravel(), y[:, :-2].ravel()], axis=1)
    found, square, *_ = np.linalg.lstsq(past, y[:, 2:].ravel(), rcond=None)
    wanted = [2 * regimes.DAMPING * np.cos(2 * np.pi / period), -(regimes.DAMPING**2)]
    assert found == pytest.approx(wanted, abs=0.01)
    assert np.sqrt(square[0] / len(past)) == pytest.approx(regimes.noise_deviation(period), rel=0.01)


def test_the_table_has_a_row_for_each_model_with_and_without_replay():
    table = regimes.run(seeds=(0,), models=("TXL", "GRU"), periods=(3, 9), course=SMALL)
    assert [(row["model"], row["replay"]) for row in table["rows"]] == [
        ("TXL", "no"), ("TXL", "yes"), ("GRU", "no"), ("GRU", "yes"),
    ]  # fmt: skip
    for row, one in zip(table["rows"], table["runs"], strict=True):
        assert row["forgetting"] == pytest.approx(mean_forgetting(errors=one["errors"]))
        assert one["errors"][1][0] > 0
        assert np.isnan(one["errors"][0][1])
    assert {row["n_parameters"] for row in table["rows"][:2]} == {19_298}
    assert "the article's figure is −67 %" in table["notes"][-1]
    assert report.markdown(table).startswith("# 2 regimes in a row")


def test_memory_is_emptied_at_each_segment_of_the_model_without_it():
    model, rows = regimes.make("TXL, memory emptied at each segment"), np.zeros((1, 32, 1), np.float32)
    import torch

    rows[0, :16] = 5
    x = torch.from_numpy(rows)
    with torch.inference_mode():
        _, state = model.forward_rows(x[:, :16], model.init_rows(1))
        after, _ = model.forward_rows(x[:, 16:], state)
        alone, _ = model.forward_rows(x[:, 16:], model.init_rows(1))
    assert torch.equal(after, alone)
