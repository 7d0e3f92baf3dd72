"""Seeded tasks whose answers lie rows back: what a memory is made to show.

Every task draws episodes. A lane begins anew with each of them, and the answer at a row is a function of the rows up to
it, so that a perfect memory scores 1. What knows nothing scores ``chance``, in closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

_Ints = NDArray[np.int64]

SYMBOLS = 4
# Lags of recall, in reaches.
LAGS = (0.5, 1, 2, 4, 8, 32)
# Lengths that brackets are judged at, in lengths of the training.
LENGTHS = (1, 2, 4, 10)
DEPTH = 4


@dataclass(frozen=True)
class Episodes:
    """Some episodes of one length.

    Attributes
    ----------
    x : float32 array of shape (B, T, C)
    target : int64 array of shape (B, T), or float32 array of shape (B, T, 1)
        Number of the class; or a value, in deviations.
    counts : bool array of shape (B, T)
        Rows at which there is something to say; training counts them all.
    age : int64 array of shape (B, T)
        Rows since the first row that the answer needs; −1 where nothing counts.
    """

    x: NDArray[np.float32]
    target: NDArray[np.int64] | NDArray[np.float32]
    counts: NDArray[np.bool_]
    age: NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """What is judged: episodes of some length, at the rows of some ages.

    Attributes
    ----------
    name : str
    n_rows : int
    first, last : int
        Ages that are judged, both included.
    """

    name: str
    n_rows: int
    first: int = 0
    last: int = 1 << 40

    def rows(self, episodes: Episodes) -> NDArray[np.bool_]:
        """Mark the rows (B, T) that are judged."""
        return episodes.counts & (episodes.age >= self.first) & (episodes.age <= self.last)


@dataclass(frozen=True)
class MemoryTask:
    """A task.

    Attributes
    ----------
    name : str
    draw : callable
        ``draw(rng, n_episodes, n_rows)`` gives :class:`Episodes`.
    n_channels : int
    n_classes : int
        0 where values are asked for.
    n_rows : int
        Of an episode in training.
    parts : tuple of Part
    chance : callable
        Score at a :class:`Part` of the best answer that looks at no row: a share of right classes; for values, where
        the score is 1 − squared error / variance, 0.
    practice : callable, optional
        What draws the episodes of the training, where one cue in an episode would teach little.
    span : int
        Segments that a recurrent net's gradient should run through: all of an episode where only its end is judged.
    """

    name: str
    draw: Callable[[np.random.Generator, int, int], Episodes]
    n_channels: int
    n_classes: int
    n_rows: int
    parts: tuple[Part, ...]
    chance: Callable[[Part], float]
    practice: Callable[[np.random.Generator, int, int], Episodes] | None = None
    span: int = 2

    @property
    def n_outputs(self) -> int:
        """Numbers that a model gives per row."""
        return self.n_classes or 1


def memory_tasks(*, reach: int, segment_len: int) -> tuple[MemoryTask, ...]:
    """Give all tasks, sized to the rows that a FIFO memory reaches back.

    Parameters
    ----------
    reach : int
        Layers × window, in rows.
    segment_len : int
        Rows of a training segment.
    """
    n = segment_len
    near = max(reach // 16, 1)  # neighbours of a lag, on its own side of the reach
    lags = [(f"{lag:g} × reach", round(lag * reach)) for lag in LAGS]
    recall = tuple(
        Part(name, 33 * reach, *((lag + 1 - near, lag) if lag <= reach else (lag, lag + near - 1)))
        for name, lag in lags
    )
    many = {name: partial(draw, many=True) for name, draw in (("r", _recall), ("s", _selective), ("w", _sine))}
    last = Part("99 distractors", 7 * n, 99, 99)
    waves = (Part("inside the reach", 6 * n, 1, reach), Part("beyond", 6 * n, reach + 1))
    return (
        MemoryTask("recall at lag", _recall, SYMBOLS, SYMBOLS, 8 * reach, recall, _guess, many["r"]),
        MemoryTask("selective recall", _selective, SYMBOLS + 1, SYMBOLS, 8 * n, (last,), _guess, many["s"]),
        MemoryTask("adding", _adding, 2, 0, 4 * n, (Part(f"{4 * n} rows", 4 * n),), _nothing, span=4),
        MemoryTask("induction", _induction, 2 * SYMBOLS, SYMBOLS, 4 * n, (Part("keys seen before", 4 * n),), _guess),
        MemoryTask("copying", _copying, SYMBOLS + 1, SYMBOLS, 6 * n, (Part("six segments", 6 * n),), _guess, span=6),
        MemoryTask("delayed parity", _parity, 1, 2, 4 * n, (Part("three bits", 4 * n),), lambda _: 0.5),
        MemoryTask("cue-driven sine", _sine, 2, 0, 6 * n, waves, _nothing, many["w"]),
        *(_brackets(kinds, n_rows=reach) for kinds in (1, 2)),
    )


def _brackets(kinds: int, *, n_rows: int) -> MemoryTask:
    parts = tuple(Part(f"{times} × length", times * n_rows) for times in LENGTHS)
    chance = partial(_bracket_guess, kinds=kinds)
    return MemoryTask(f"brackets, Dyck-{kinds}", _dyck(kinds), 2 * kinds, kinds + 1, n_rows, parts, chance)


def _bracket_guess(part: Part, *, kinds: int) -> float:
    return bracket_chance(part.n_rows, kinds=kinds)


def _guess(part: Part) -> float:
    return 1 / SYMBOLS


def _nothing(part: Part) -> float:
    return 0.0


def _recall(rng: np.random.Generator, n_episodes: int, n_rows: int, *, many: bool = False) -> Episodes:
    """Ask which symbol the last row showed that was not empty."""
    shown, cue, age = _cued(rng, n_episodes, n_rows, many=many)
    x = np.eye(SYMBOLS, dtype=np.float32)[shown] * (age == 0)[..., None]
    return Episodes(x, np.take_along_axis(shown, cue, axis=1), age >= 0, age)


def _selective(rng: np.random.Generator, n_episodes: int, n_rows: int, *, many: bool = False) -> Episodes:
    """Ask which symbol the last marked row showed; all others show one too."""
    shown, cue, age = _cued(rng, n_episodes, n_rows, many=many)
    x = np.concatenate([np.eye(SYMBOLS)[shown], (age == 0)[..., None]], axis=2, dtype=np.float32)
    return Episodes(x, np.take_along_axis(shown, cue, axis=1), age >= 0, age)


def _cued(rng: np.random.Generator, n_episodes: int, n_rows: int, *, many: bool) -> tuple[_Ints, _Ints, _Ints]:
    """Draw a symbol per row, and the rows that are cues; gives symbols, the row of the last cue, and its age.

    The first cue comes in the first eight rows. ``many`` goes on with a chance of 1 / (4 + age) per row, so that ages
    of all sizes are practised: as many rows between 8 and 16 rows back as between 64 and 128.
    """
    shown = rng.integers(SYMBOLS, size=(n_episodes, n_rows))
    cue, age = np.zeros_like(shown), np.full_like(shown, -1)
    first = rng.integers(8, size=n_episodes)
    last = np.full(n_episodes, -1)
    for row in range(n_rows):
        more = (last >= 0) & (rng.random(n_episodes) < 1 / (4 + row - last)) if many else False
        last = np.where((row == first) | more, row, last)
        cue[:, row], age[:, row] = np.maximum(last, 0), np.where(last >= 0, row - last, -1)
    return shown, cue, age


def _adding(rng: np.random.Generator, n_episodes: int, n_rows: int) -> Episodes:
    """Ask for the sum of the numbers at two marked rows, one in each half.

    References
    ----------
    Hochreiter and Schmidhuber (1997), Long short-term memory, experiment 4.
    """
    numbers = rng.random((n_episodes, n_rows), np.float32)
    first, second = rng.integers(n_rows // 2, size=n_episodes), rng.integers(n_rows // 2, n_rows, size=n_episodes)
    lane, row = np.arange(n_episodes), np.arange(n_rows)
    marked = (row == first[:, None]) | (row == second[:, None])
    # The sum of two uniform numbers has mean 1 and variance 1 / 6.
    total = (numbers[lane, first] + numbers[lane, second] - 1) * np.float32(np.sqrt(6))
    counts = row >= second[:, None]
    age = np.where(counts, row - first[:, None], -1)
    x = np.stack([numbers, marked], axis=2, dtype=np.float32)
    return Episodes(x, np.repeat(total[:, None, None], n_rows, axis=1), counts, age)


def _induction(rng: np.random.Generator, n_episodes: int, n_rows: int) -> Episodes:
    """Ask what follows a key; keys and values take turns, and each episode has a value of its own per key.

    References
    ----------
    Olsson et al. (2022), In-context learning and induction heads (arXiv 2209.11895).
    """
    value_of = rng.integers(SYMBOLS, size=(n_episodes, SYMBOLS))
    key = rng.integers(SYMBOLS, size=(n_episodes, -(-n_rows // 2)))
    value = np.take_along_axis(value_of, key, axis=1)
    token = np.stack([key, SYMBOLS + value], axis=2).reshape(n_episodes, -1)[:, :n_rows]
    target = np.repeat(value, 2, axis=1)[:, :n_rows]
    counts, age = np.zeros((n_episodes, n_rows), bool), np.full((n_episodes, n_rows), -1)
    last = np.full((n_episodes, SYMBOLS), -1)
    lane = np.arange(n_episodes)
    for row in range(0, n_rows, 2):
        before = last[lane, token[:, row]]
        counts[:, row], age[:, row] = before >= 0, np.where(before >= 0, row - before, -1)
        last[lane, token[:, row]] = row
    return Episodes(np.eye(2 * SYMBOLS, dtype=np.float32)[token], target, counts, age)


def _copying(rng: np.random.Generator, n_episodes: int, n_rows: int) -> Episodes:
    """Eight symbols, then empty rows, then eight rows that ask for them in their order.

    References
    ----------
    Hochreiter and Schmidhuber (1997); Bulatov et al. (2022), Recurrent memory transformer (arXiv 2207.06881).
    """
    n = 8
    shown = rng.integers(SYMBOLS, size=(n_episodes, n))
    x = np.zeros((n_episodes, n_rows, SYMBOLS + 1), np.float32)
    x[:, :n, :SYMBOLS] = np.eye(SYMBOLS, dtype=np.float32)[shown]
    x[:, -n:, SYMBOLS] = 1
    target = np.zeros((n_episodes, n_rows), np.int64)
    target[:, -n:] = shown
    counts = np.broadcast_to(np.arange(n_rows) >= n_rows - n, target.shape)
    return Episodes(x, target, counts, np.where(counts, n_rows - n, -1))


def _parity(rng: np.random.Generator, n_episodes: int, n_rows: int, *, delay: int = 6, n_bits: int = 3) -> Episodes:
    """Ask for the parity of the random bits 6, 7 and 8 rows back."""
    bits = rng.integers(2, size=(n_episodes, n_rows))
    sums = np.cumsum(np.pad(bits, ((0, 0), (n_bits, 0))), axis=1)
    parity = (sums[:, n_bits:] - sums[:, :-n_bits]) % 2  # of the last bits up to each row
    first = delay + n_bits - 1
    target = np.zeros_like(bits)
    target[:, first:] = parity[:, n_bits - 1 : n_rows - delay]
    counts = np.broadcast_to(np.arange(n_rows) >= first, bits.shape)
    return Episodes((2 * bits[..., None] - 1).astype(np.float32), target, counts, np.where(counts, first, -1))


def _sine(rng: np.random.Generator, n_episodes: int, n_rows: int, *, many: bool = False) -> Episodes:
    """One row tells a frequency, then nothing comes: the sine of that frequency, from its zero on.

    References
    ----------
    Sussillo and Barak (2013), Opening the black box, Neural computation 25 (a sine generator driven by an input).
    """
    _, cue, age = _cued(rng, n_episodes, n_rows, many=many)
    part = np.take_along_axis(rng.random((n_episodes, n_rows)), cue, axis=1)  # of the way from slowest to fastest
    rate = 2 * np.pi * (1 / 32 + part * (1 / 8 - 1 / 32))
    x = np.stack([age == 0, (age == 0) * (2 * part - 1)], axis=2, dtype=np.float32)
    wave = np.sqrt(2) * np.sin(rate * age)  # in deviations
    return Episodes(x, wave[..., None].astype(np.float32), age >= 0, age)


def _dyck(kinds: int) -> Callable[[np.random.Generator, int, int], Episodes]:
    def draw(rng: np.random.Generator, n_episodes: int, n_rows: int) -> Episodes:
        """Ask which bracket would have to be closed, if any is open; brackets are balanced, at most four deep.

        References
        ----------
        Suzgun et al. (2019), LSTM networks can perform dynamic counting (arXiv 1906.03648), per step.
        """
        lane = np.arange(n_episodes)
        stack = np.zeros((n_episodes, DEPTH + 1), np.int64)  # kinds from 1 on; level 0 stays empty
        opened = np.full((n_episodes, DEPTH + 1), 0)
        depth = np.zeros(n_episodes, np.int64)
        token, target, age = (np.zeros((n_episodes, n_rows), np.int64) for _ in range(3))
        for row in range(n_rows):
            opens = rng.random(n_episodes) < open_chance(depth, n_left=n_rows - row)
            kind = rng.integers(kinds, size=n_episodes)
            token[:, row] = np.where(opens, kind, kinds + stack[lane, depth] - 1)
            depth = depth + np.where(opens, 1, -1)
            stack[lane[opens], depth[opens]] = kind[opens] + 1
            opened[lane[opens], depth[opens]] = row
            target[:, row], age[:, row] = stack[lane, depth], np.where(depth > 0, row - opened[lane, depth], 0)
        x = np.eye(2 * kinds, dtype=np.float32)[token]
        return Episodes(x, target, np.ones_like(target, bool), age)

    return draw


def open_chance(depth: NDArray[np.int64], *, n_left: int) -> NDArray[np.float64]:
    """How likely the next of ``n_left`` brackets opens one: a half where both are possible, so that all end closed."""
    can_open, can_close = (depth < DEPTH) & (depth + 1 < n_left), depth > 0
    return np.where(can_open & can_close, 0.5, can_open.astype(float))


def bracket_chance(n_rows: int, *, kinds: int) -> float:
    """Share of rows that the best constant answer gets right, from the chances of the depths."""
    at, empty = np.eye(DEPTH + 1)[0], 0.0
    for row in range(n_rows):
        opens = open_chance(np.arange(DEPTH + 1), n_left=n_rows - row)
        at = np.append(0, (at * opens)[:-1]) + np.append((at * (1 - opens))[1:], 0)
        empty += at[0] / n_rows
    return float(max(empty, (1 - empty) / kinds))
