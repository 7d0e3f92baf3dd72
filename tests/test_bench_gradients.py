"""The bench of gradients: equal rows for every k, norms that decay by hops, and fits that are not done twice."""

import json

import numpy as np
import pytest
import torch

from txl_ts.bench import gradients
from txl_ts.bench.gradients import POLICIES, SEGMENT_LEN, cost, fit, norms_by_hop, run
from txl_ts.bench.memory_contenders import txl
from txl_ts.bench.report import markdown

FIFO = POLICIES[0]


def test_every_k_sees_as_many_rows_in_as_many_updates(monkeypatch):
    seen, unrolled = [], gradients.unrolled

    def counted(some, state, *args, **kwargs):
        seen.append(sum(len(x) * SEGMENT_LEN for x, _, _ in some))
        return unrolled(some, state, *args, **kwargs)

    monkeypatch.setattr(gradients, "unrolled", counted)
    for k in (1, 2, 8):
        seen.clear()
        settings = gradients._settings(k, 3)
        task = gradients._task()
        gradients._train(txl(task), task, settings, np.random.default_rng(0), n_updates=3)
        assert seen == [32 * SEGMENT_LEN] * 3


def test_norms_stop_where_the_window_does():
    """Two layers of 16 rows: the first row of a segment reaches 32 rows back, which is four segments of eight."""
    torch.manual_seed(0)
    task = gradients._task()
    model = txl(task)
    torch.nn.init.normal_(model.answer.linear.weight)  # a head of zeros passes nothing
    norms = norms_by_hop(model, task, np.random.default_rng(0), n_lanes=2)
    assert min(norms[:4]) > 0
    assert norms[4:] == [0, 0, 0]


def test_a_longer_step_takes_more_memory_and_a_checkpointed_one_less_of_it():
    one, four = (cost(FIFO, k, n_lanes=2, n_times=1) for k in (1, 4))
    assert four["kib"] > 3 * one["kib"]
    assert four["kib_checkpointed"] < 0.6 * four["kib"]
    assert one["us_per_row"] > 0


def test_a_table_comes_of_fits_and_fits_that_are_kept_are_not_done_again(tmp_path, monkeypatch):
    how = {"seeds": (0,), "memories": ("fifo",), "variants": ((1, 1.0), (2, 0.5)), "n_updates": 2, "n_test": 2}
    monkeypatch.setattr(
        gradients,
        "cost",
        lambda policy, k: {"us_per_row": 1.0, "us_checkpointed": 1.3, "kib": 2.0, "kib_checkpointed": 1.0},
    )
    table = run(**how, kept=tmp_path)
    assert [row["bptt_segments"] for row in table["rows"]] == [1, 2]
    assert "| fifo | 1 | 1.0000 |" in markdown(table)
    assert len((tmp_path / "gradients.fits.jsonl").read_text(encoding="utf-8").splitlines()) == 2
    json.dumps(table["rows"])
    monkeypatch.setattr(gradients, "fit", lambda *args, **kwargs: pytest.fail("it was done again"))
    again = run(**how, kept=tmp_path)
    assert again["rows"] == table["rows"]
    more = run(**how | {"seeds": (0, 1)}, kept=tmp_path, from_kept=True)
    assert more["rows"] == table["rows"]
    assert more["notes"][-1].startswith("2 of 4 fits are missing")
    figure = gradients.picture(table)
    assert [line.get_label() for line in figure.axes[1].lines] == ["fifo, k = 1"]


def test_the_same_seed_is_the_same_fit():
    how = {"bptt_segments": 2, "memory_gradient": 0.5, "n_updates": 2, "n_test": 2}
    one, other, third = (fit(FIFO, seed=seed, **how) for seed in (0, 0, 1))
    assert one["loss"] == other["loss"] != third["loss"]
    assert one["norms"] == other["norms"]
