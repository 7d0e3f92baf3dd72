"""The sample of earlier rows: fair, reproducible, and true to the rows."""

import numpy as np
import pytest

from txl_ts.training import BesideRows, Origins, Pieces, Reservoir
from txl_ts.training.replay import slot_of


def pieces(*lengths, beside=False):
    """Rows 0, 1, 2, … of pieces that lie end to end, but for a row between them that is of none."""
    stop = np.cumsum([n + 1 for n in lengths]) - 1
    first = stop - np.array(lengths)
    values = np.arange(stop[-1] + 1, dtype=np.float32)
    columns = None
    if beside:
        columns = BesideRows(values[:, None] + 0.25, values[:, None] + 0.5, np.arange(len(lengths))[:, None] + 0.75)
    return Pieces(values, first, stop, np.arange(1, len(lengths) + 1, dtype=np.float32), beside=columns)


def rows_of(reservoir):
    return [stretch.values.tolist() for stretch in reservoir.kept]


def test_every_item_is_kept_as_often_as_any_other():
    size, n, n_seeds = 3, 12, 2000
    kept = np.zeros(n)
    for seed in range(n_seeds):
        slots = {}
        for number in range(n):
            if (slot := slot_of(number, size=size, seed=seed)) is not None:
                slots[slot] = number
        kept[list(slots.values())] += 1
    # Five standard deviations of a binomial count.
    assert np.abs(kept / n_seeds - size / n).max() < 5 * np.sqrt(0.25 * 0.75 / n_seeds)


def test_stretches_are_rows_of_one_piece_and_short_rests_are_not_offered():
    found = Reservoir(size=9, n_rows=4).with_pieces(pieces(9, 6), ["a", "b"], least=1, seed=0)
    assert rows_of(found) == [[0, 1, 2, 3], [4, 5, 6, 7], [10, 11, 12, 13], [14, 15]]
    assert [stretch.id for stretch in found.kept] == ["a", "a", "b", "b"]
    assert [float(stretch.unit) for stretch in found.kept] == [1, 1, 2, 2]
    assert found.n_seen == 4


def test_offers_of_two_calls_keep_what_one_call_would_have_kept():
    whole, empty = pieces(40, 28), Reservoir(size=3, n_rows=4)
    at_once = empty.with_pieces(whole, ["a", "b"], least=1, seed=5)
    first, second = (whole.take(np.array([i])) for i in range(2))
    in_turn = empty.with_pieces(first, ["a"], least=1, seed=5).with_pieces(second, ["b"], least=1, seed=5)
    assert rows_of(at_once) == rows_of(in_turn)
    assert at_once.n_seen == in_turn.n_seen == 17
    assert len(at_once.kept) == 3
    assert rows_of(at_once) != rows_of(empty.with_pieces(whole, ["a", "b"], least=1, seed=6))


def test_a_sample_does_not_hold_on_to_the_frame():
    rows = pieces(9)
    found = Reservoir(size=2, n_rows=4).with_pieces(rows, ["a"], least=1, seed=0)
    rows.values[:] = -1
    assert min(min(one) for one in rows_of(found)) >= 0


def test_dropped_series_leave_slots_free():
    full = Reservoir(size=4, n_rows=4).with_pieces(pieces(9, 6), ["a", "b"], least=1, seed=0)
    left = full.without(["b"])
    assert rows_of(left) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    refilled = left.with_pieces(pieces(400), ["c"], least=1, seed=0)
    assert len(refilled.kept) == 4
    assert refilled.n_seen == full.n_seen + 100


@pytest.mark.parametrize("beside", [False, True])
def test_kept_rows_are_trained_on_beside_the_new_ones(beside):
    kept = Reservoir(size=9, n_rows=5).with_pieces(pieces(9, 7, beside=beside), ["a", "b"], least=1, seed=0)
    new = Origins(pieces(6, beside=beside), np.array([2]))
    both = kept.beside(new, lookback=3, patch_len=2, h=1)
    found = [both.pieces.values[a:b].tolist() for a, b in zip(both.pieces.first, both.pieces.stop, strict=True)]
    assert found == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4], [5, 6, 7, 8], [10, 11, 12, 13, 14], [15, 16]]
    # A look-back has been seen, or a patch where no forecast would be left; never beyond the end.
    assert (both.first - both.pieces.first).tolist() == [2, 3, 2, 3, 2]
    assert both.pieces.unit.tolist() == [1, 1, 1, 2, 2]
    if beside:
        np.testing.assert_array_equal(both.pieces.beside.hist[6:], both.pieces.values[6:, None] + 0.25)
        np.testing.assert_array_equal(both.pieces.beside.futr[6:], both.pieces.values[6:, None] + 0.5)
        assert both.pieces.beside.static.ravel().tolist() == [0.75, 0.75, 0.75, 1.75, 1.75]


def test_an_empty_sample_changes_nothing_and_a_size_of_0_keeps_nothing():
    new = Origins(pieces(6), np.array([2]))
    assert Reservoir(size=9, n_rows=5).beside(new, lookback=3, patch_len=2, h=1) is new
    assert Reservoir().with_pieces(pieces(6), ["a"], least=1, seed=0) == Reservoir()
