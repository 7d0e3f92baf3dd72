"""The ring of newest rows: order, wrap-around, counters."""

import numpy as np
import pytest
import torch

from txl_ts.memory import Fifo

SIZES = [(0, 1), (0, 3), (1, 1), (5, 1), (3, 4)]  # (mem_len, stride)
H, K = 2, 3


def start(memory, n_lanes=2, filler=0.0):
    ring, count = memory.specs(n_layers=1, kinds=("hidden",), n_heads=H, d_head=K)
    return torch.full((n_lanes, *ring.shape), filler), torch.zeros(n_lanes, *count.shape, dtype=torch.int32)


def numbered_rows(first, n_rows, n_lanes=2):
    """Row t holds t + 1 in its first entry, so that a zero is no row."""
    shape = (n_lanes, H, n_rows, K)
    code = torch.arange(first, first + n_rows)[:, None] + 1.0
    return code + 1000.0 * torch.arange(H)[:, None, None] + torch.zeros(shape)


def feed(memory, ring, count, chunks, first=0):
    for n_rows in chunks:
        ring = memory.write(ring, count, numbered_rows(first, n_rows, len(ring)))
        count = memory.advance(count, n_rows=n_rows)
        first += n_rows
    return ring, count


@pytest.mark.parametrize(("mem_len", "stride"), SIZES)
@pytest.mark.parametrize("chunks", [[1], [2, 3], [1] * 30, [29], [7, 50, 3]])
def test_fifo_gives_the_newest_rows_oldest_first(mem_len, stride, chunks):
    memory = Fifo(mem_len=mem_len, stride=stride)
    ring, count = feed(memory, *start(memory), chunks)
    seen = sum(chunks)
    newest = np.arange(seen - memory.n_rows, seen) + 1.0
    read = memory.read(ring, count)[0, 0, :, 0].numpy()
    np.testing.assert_array_equal(read, np.where(newest > 0, newest, 0.0))
    np.testing.assert_array_equal(memory.visible(count)[0].numpy(), newest > 0)


def test_fifo_keeps_the_newest_rows_when_the_segment_is_longer_than_the_memory():
    memory = Fifo(mem_len=3, stride=2)
    ring, count = feed(memory, *start(memory), [3, 41])
    assert memory.read(ring, count)[1, 0, :, 0].tolist() == [39.0, 40.0, 41.0, 42.0, 43.0, 44.0]


def test_fifo_keeps_heads_and_columns_apart():
    memory = Fifo(mem_len=3, stride=1)
    ring, count = start(memory)
    rows = torch.randn(2, H, 4, K, generator=torch.Generator().manual_seed(0))
    ring = memory.write(ring, count, rows)
    assert torch.equal(memory.read(ring, memory.advance(count, n_rows=4)), rows[:, :, 1:])


@pytest.mark.parametrize(("mem_len", "stride"), SIZES)
@pytest.mark.parametrize("filler", [torch.nan, torch.inf])
def test_unfilled_slots_read_as_zero_whatever_they_hold(mem_len, stride, filler):
    memory = Fifo(mem_len=mem_len, stride=stride)
    ring, count = feed(memory, *start(memory, filler=filler), [2])
    read, visible = memory.read(ring, count), memory.visible(count)
    assert (read.transpose(1, 2)[~visible] == 0).all()
    assert read.isfinite().all()


def test_lanes_may_stand_at_different_rows():
    memory = Fifo(mem_len=3, stride=1)
    ring, count = start(memory)
    ring, count = feed(memory, ring, count, [5])
    count = torch.stack([count[0], torch.zeros_like(count[1])])  # lane 1 begins anew
    ring, count = feed(memory, ring, count, [2], first=5)
    assert memory.read(ring, count)[0, 0, :, 0].tolist() == [5.0, 6.0, 7.0]
    assert memory.read(ring, count)[1, 0, :, 0].tolist() == [0.0, 6.0, 7.0]


@pytest.mark.parametrize(("mem_len", "stride"), SIZES)
def test_a_ring_about_to_wrap_gives_the_same_rows(mem_len, stride):
    memory = Fifo(mem_len=mem_len, stride=stride)
    ring, count = feed(memory, *start(memory), [4, 1])
    turn = int((memory.n_slots - 1 - count[0, 1]) % memory.n_slots)
    turned = torch.roll(ring, turn, dims=2)
    late = torch.stack([count[:, 0], torch.full_like(count[:, 1], memory.n_slots - 1)], dim=1)
    assert torch.equal(memory.read(turned, late), memory.read(ring, count))
    ring, count = feed(memory, ring, count, [1, 3, 2], first=5)
    turned, late = feed(memory, turned, late, [1, 3, 2], first=5)
    assert torch.equal(memory.read(turned, late), memory.read(ring, count))


def test_counters_stay_small_and_exact_over_more_rows_than_int32_can_count():
    memory = Fifo(mem_len=5, stride=3)
    _, count = start(memory)
    n_rows, n_calls = 2**30 + 7, 9
    for _ in range(n_calls):
        count = memory.advance(count, n_rows=n_rows)
        assert count.dtype == torch.int32
        assert ((count >= 0) & (count <= memory.n_slots)).all()
    assert count[0].tolist() == [memory.n_slots, n_rows * n_calls % memory.n_slots]


def test_reading_and_writing_leave_ring_counters_and_rows_untouched():
    memory = Fifo(mem_len=3, stride=2)
    ring, count = feed(memory, *start(memory), [5])
    rows = numbered_rows(5, 4)
    before = [ring.clone(), count.clone(), rows.clone()]
    memory.read(ring, count)
    memory.write(ring, count, rows)
    memory.advance(count, n_rows=4)
    assert all(torch.equal(a, b) for a, b in zip([ring, count, rows], before, strict=True))


def test_specs_name_a_ring_per_layer_and_kind_and_two_counters():
    *rings, count = Fifo(mem_len=3, stride=4).specs(n_layers=2, kinds=("keys", "values"), n_heads=3, d_head=6)
    assert [ring.name for ring in rings] == ["keys_0", "values_0", "keys_1", "values_1"]
    assert {(ring.shape, ring.dtype) for ring in rings} == {((3, 16, 6), "float32")}
    assert (count.name, count.shape, count.dtype) == ("count", (2,), "int32")
