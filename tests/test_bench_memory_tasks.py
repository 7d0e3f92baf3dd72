"""The memory tasks: their answers are those of someone with a pencil, and follow from the rows so far."""

import itertools
from functools import partial

import numpy as np
import pytest

from tests.oracles import memory_tasks as oracle
from txl_ts.bench.memory_tasks import DEPTH, SYMBOLS, bracket_chance, memory_tasks, open_chance

TASKS = {task.name: task for task in memory_tasks(reach=32, segment_len=16)}
ANSWERS = {
    "recall at lag": partial(oracle.last_shown, n_symbols=SYMBOLS, marker=None),
    "selective recall": partial(oracle.last_shown, n_symbols=SYMBOLS, marker=SYMBOLS),
    "adding": oracle.sum_of_marked,
    "induction": partial(oracle.value_of_key, n_symbols=SYMBOLS),
    "copying": partial(oracle.copied, n_symbols=SYMBOLS),
    "delayed parity": partial(oracle.parity, delay=6, n_bits=3),
    "cue-driven sine": oracle.sine,
    "brackets, Dyck-1": partial(oracle.top_of_stack, kinds=1),
    "brackets, Dyck-2": partial(oracle.top_of_stack, kinds=2),
}


def draws(task):
    return [draw for draw in (task.draw, task.practice) if draw is not None]


@pytest.mark.parametrize("name", TASKS)
def test_answers_are_those_read_off_the_rows_with_a_pencil(name):
    task = TASKS[name]
    for draw in draws(task):
        episodes = draw(np.random.default_rng(3), 7, task.n_rows)
        assert episodes.x.shape == (7, task.n_rows, task.n_channels)
        for i in range(7):
            answers = ANSWERS[name](episodes.x[i].tolist())
            assert [answer is not None for answer in answers] == episodes.counts[i].tolist()
            asked = episodes.counts[i]
            expected = [answer for answer in answers if answer is not None]
            # Values are float32.
            np.testing.assert_allclose(episodes.target[i][asked].reshape(-1), expected, atol=2e-5)


@pytest.mark.parametrize("name", TASKS)
def test_a_seed_repeats_its_episodes_and_another_does_not(name):
    task = TASKS[name]
    one, same, other = (task.draw(np.random.default_rng(seed), 5, task.n_rows) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.x, same.x)
    np.testing.assert_array_equal(one.target, same.target)
    assert (one.x != other.x).any()


@pytest.mark.parametrize("name", TASKS)
def test_every_part_judges_some_rows_of_its_own_ages(name):
    task = TASKS[name]
    for part in task.parts:
        episodes = task.draw(np.random.default_rng(0), 3, part.n_rows)
        rows = part.rows(episodes)
        assert rows.any()
        assert episodes.counts[rows].all()
        ages = episodes.age[rows]
        assert part.first <= ages.min() <= ages.max() <= part.last


def test_recall_is_judged_on_the_near_side_of_the_reach_and_beyond_on_the_far_side():
    ages = [(part.first, part.last) for part in TASKS["recall at lag"].parts]
    assert ages == [(15, 16), (31, 32), (64, 65), (128, 129), (256, 257), (1024, 1025)]


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if not task.n_classes])
def test_values_have_mean_zero_and_unit_variance_so_that_chance_scores_zero(name):
    task = TASKS[name]
    episodes = task.draw(np.random.default_rng(0), 4000, task.n_rows)
    # One row of each episode: rows of one episode hang together. A sine scatters around its mean by its phases.
    values = episodes.target[:, -1, 0]
    assert abs(values.mean()) < 4 / np.sqrt(4000)
    assert values.var() == pytest.approx(1, abs=0.1)
    assert task.chance(task.parts[0]) == 0


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.n_classes])
def test_the_best_constant_answer_is_right_as_often_as_chance_says(name):
    task = TASKS[name]
    for part in task.parts[:1] if "recall" in name else task.parts:
        episodes = task.draw(np.random.default_rng(1), 3000, part.n_rows)
        answers = episodes.target[part.rows(episodes)]
        share = np.bincount(answers, minlength=task.n_classes).max() / len(answers)
        # The most frequent of equally likely answers is a little more frequent than they are.
        assert share == pytest.approx(task.chance(part), abs=0.03)


@pytest.mark.parametrize("kinds", [1, 2])
def test_the_chance_of_brackets_is_that_over_all_strings(kinds):
    n_rows, empty = 8, 0.0
    for opens in itertools.product([True, False], repeat=n_rows):
        depth, weight, count = 0, 1.0, 0
        for row, is_open in enumerate(opens):
            chance = float(open_chance(np.array([depth]), n_left=n_rows - row)[0])
            weight *= chance if is_open else 1 - chance
            depth += 1 if is_open else -1
            if weight == 0:
                break
            assert 0 <= depth <= DEPTH
            count += depth == 0
        empty += weight * count / n_rows
    assert bracket_chance(n_rows, kinds=kinds) == pytest.approx(max(empty, (1 - empty) / kinds), abs=1e-12)


def test_cues_come_at_all_distances_in_practice_and_once_in_what_is_judged():
    task = TASKS["recall at lag"]
    judged = task.draw(np.random.default_rng(0), 50, 256)
    assert ((judged.age == 0).sum(axis=1) == 1).all()
    practised = task.practice(np.random.default_rng(0), 400, 256)
    octaves = [((practised.age >= n) & (practised.age < 2 * n)).mean() for n in (8, 16, 32, 64)]
    assert min(octaves) > 0.08
