"""The memory bench: rivals keep the promises of a stream, weights are equal, and the table says what was measured."""

import numpy as np
import pytest
import torch

from txl_ts.bench import memory
from txl_ts.bench.kept import KeptFits
from txl_ts.bench.memory import Training, fit_and_judge
from txl_ts.bench.memory_contenders import POLICIES, Contender, Policy, contenders
from txl_ts.bench.memory_rivals import Forgetful, Windowed, count
from txl_ts.bench.report import markdown
from txl_ts.errors import ParameterError

TASKS = {task.name: task for task in memory.all_tasks()}
INDUCTION = TASKS["induction"]


def made(name: str):
    contender = next(c for c in contenders() if c.name == name)
    torch.manual_seed(0)
    model = contender.make(INDUCTION).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:  # heads start at zero: answers would say nothing
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def answers(model, x, sizes):
    state, parts = model.init_rows(len(x)), []
    with torch.no_grad():
        for part in x.split(sizes, dim=1):
            z, state = model.forward_rows(part, state)
            parts.append(z)
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("name", [c.name for c in contenders(POLICIES[:1])])
def test_any_split_of_an_episode_into_calls_gives_the_same_answers(name):
    model = made(name)
    x = torch.from_numpy(INDUCTION.draw(np.random.default_rng(0), 2, 40).x)
    whole = answers(model, x, [40])
    assert whole.std() > 0.01
    for sizes in ([16, 16, 8], [1] * 40, [3, 37]):
        torch.testing.assert_close(answers(model, x, sizes), whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [c.name for c in contenders(POLICIES[:1])])
def test_the_future_changes_no_answer_and_lanes_know_nothing_of_each_other(name):
    model = made(name)
    x = torch.from_numpy(INDUCTION.draw(np.random.default_rng(0), 3, 32).x)
    before = answers(model, x, [32])
    other = x.clone()
    other[:, 20:] = other[:, 20:].flip(2)
    other[2] = other[2].flip(1)
    after = answers(model, other, [32])
    torch.testing.assert_close(after[:2, :20], before[:2, :20], atol=1e-5, rtol=1e-5)
    assert (after[:2, 20:] - before[:2, 20:]).abs().max() > 1e-3


def test_a_window_transformer_answers_from_its_window_alone():
    model = made("window Transformer")
    assert isinstance(model, Windowed)
    x = torch.from_numpy(INDUCTION.draw(np.random.default_rng(0), 1, 40).x)
    alone = answers(model, x[:, 24:], [16])[:, -1]
    torch.testing.assert_close(answers(model, x, [40])[:, -1], alone, atol=1e-5, rtol=1e-5)


def test_a_zeroed_memory_sees_the_rows_of_the_call_alone():
    model = Forgetful(made("TXL, fifo"))
    x = torch.from_numpy(INDUCTION.draw(np.random.default_rng(0), 1, 32).x)
    torch.testing.assert_close(answers(model, x, [16, 16])[:, 16:], answers(model, x[:, 16:], [16]))


def test_all_rivals_have_as_many_weights_as_ours():
    for task in TASKS.values():
        sizes = {c.name: count(c.make(task)) for c in contenders(POLICIES[:1])}
        own = sizes["TXL, fifo"]
        assert all(abs(n / own - 1) < 0.05 for n in sizes.values()), sizes


def test_no_policy_keeps_more_bytes_than_the_window_but_its_counters():
    sizes = {c.name: memory.state_nbytes(c.make(INDUCTION)) for c in contenders(rivals=())}
    window = sizes["TXL, fifo"]
    # Two int32 counters of the grid; slots come in whole ones.
    assert all(0.97 * window <= n <= window + 8 for n in sizes.values()), sizes


def test_a_gradient_through_two_segments_comes_from_one_call_of_both():
    model = made("TXL, fifo").train()
    one, two = (
        next(memory._losses(model, INDUCTION, np.random.default_rng(0), 4, n_segments)) for n_segments in (1, 2)
    )
    rows = INDUCTION.draw(np.random.default_rng(0), 4, INDUCTION.n_rows)
    for loss, n_rows in ((one, 16), (two, 32)):
        x, target, counts = next(memory.segments(rows, len_=n_rows))
        total, n = memory.loss_sum(model.forward_rows(x, model.init_rows(4))[0], target, counts)
        torch.testing.assert_close(loss, total / n)


def test_a_policy_is_a_name_and_what_the_model_needs_for_it():
    short = Policy("fifo, half", {"mem_len": 8})
    assert [c.name for c in contenders([short], ["GRU"])] == ["TXL, fifo, half", "GRU"]
    made_short = contenders([short])[0].make(INDUCTION)
    assert made_short.config.mem_len == 8
    assert isinstance(contenders()[0], Contender)


def test_the_loss_of_some_segments_is_the_mean_over_the_rows_that_count():
    z, target = torch.tensor([[[1.0], [2.0], [3.0]]]), torch.tensor([[[0.0], [0.0], [5.0]]])
    loss, n = memory.loss_sum(z, target, torch.tensor([[True, False, True]]))
    assert (float(loss), int(n)) == (5.0, 2)


SMALL = (Policy("fifo", {"d_model": 8, "d_ff": 8, "n_heads": 2}),)
HOW = {"training": Training(n_updates=3, n_lanes=2), "n_test": 4, "policies": SMALL}


def test_the_table_has_a_row_per_part_and_model_and_seeds_repeat(tmp_path):
    table = memory.run(seeds=(0, 1), tasks=("cue-driven sine",), rivals=("GRU",), kept=tmp_path, **HOW)
    assert [(row["part"], row["model"]) for row in table["rows"]] == [
        (part, model)
        for part in ("inside the reach", "beyond")
        for model in ("TXL, fifo", "TXL, fifo, memory zeroed", "GRU")
    ]
    assert {row["n_seeds"] for row in table["rows"]} == {2}
    assert "| cue-driven sine | beyond | GRU |" in markdown(table)
    again = fit_and_judge("cue-driven sine", "GRU", 1, **HOW)
    of = memory.of_fit("cue-driven sine", contenders(rivals=("GRU",))[-1], 1, training=HOW["training"], n_test=4)
    kept = KeptFits(tmp_path, "memory").find(of)
    assert [row["score"] for row in kept] == pytest.approx([row["score"] for row in again], rel=1e-6)


def test_two_processes_find_what_one_does():
    tables = (memory.run(seeds=(0,), tasks=("delayed parity",), n_jobs=n, rivals=(), **HOW) for n in (1, 2))
    one, two = ([(row["model"], row["loss"]) for row in table["rows"]] for table in tables)
    assert one == two


def test_a_stopped_run_goes_on_where_it_stopped_and_gives_the_table_of_an_unbroken_one(tmp_path, monkeypatch):
    how = {"seeds": (1, 2), "tasks": ("delayed parity",), "rivals": ("GRU",), **HOW}
    fit, fitted = memory.fit_and_judge, []

    def stopping(task, model, seed, **settings):
        fitted.append((model, seed))
        if len(fitted) == 3:
            raise KeyboardInterrupt
        return fit(task, model, seed, **settings)

    monkeypatch.setattr(memory, "fit_and_judge", stopping)
    with pytest.raises(KeyboardInterrupt):
        memory.run(kept=tmp_path, **how)
    part = memory.run(kept=tmp_path, from_kept=True, **how)
    assert [(row["model"], row["n_seeds"]) for row in part["rows"]] == [
        ("TXL, fifo", 1),
        ("TXL, fifo, memory zeroed", 1),
        ("GRU", 1),
    ]
    assert part["notes"][-1] == "2 of 4 fits are missing; seeds are counted per row."
    resumed = memory.run(kept=tmp_path, **how)
    assert fitted == [("TXL, fifo", 1), ("GRU", 1), ("TXL, fifo", 2), ("TXL, fifo", 2), ("GRU", 2)]
    without_times = [[{**row, "train_s": 0} for row in t["rows"]] for t in (resumed, memory.run(**how))]
    assert without_times[0] == without_times[1]


def test_fits_of_another_length_of_training_are_made_anew(tmp_path):
    how = {"seeds": (1,), "tasks": ("delayed parity",), "rivals": (), "kept": tmp_path}
    memory.run(**how, **HOW)
    other = memory.run(**how, **{**HOW, "training": Training(n_updates=4, n_lanes=2)}, from_kept=True)
    assert other["rows"] == []


def test_a_task_or_rival_that_is_not_known_is_refused_before_anything_is_trained():
    with pytest.raises(ParameterError, match=r"tasks=.'recal'. are not known. Choose among .'recall at lag'"):
        memory.run(tasks=("recal",))
    with pytest.raises(ParameterError, match=r"rivals=.'RNN'. are not known"):
        memory.run(tasks=("induction",), rivals=("RNN",))


@pytest.mark.slow
def test_fifo_recalls_inside_its_reach_and_fails_beyond_it():
    rows = fit_and_judge(
        "recall at lag", "TXL, fifo", 0, policies=POLICIES, training=Training(n_updates=600), n_test=64
    )
    score = {row["part"]: row["score"] for row in rows if row["model"] == "TXL, fifo"}
    assert min(score["0.5 × reach"], score["1 × reach"]) >= 0.98
    # Four symbols: what is beyond the reach is guessed, by 64 episodes to about a tenth.
    assert max(score[f"{n} × reach"] for n in (2, 4, 8, 32)) < 0.45
