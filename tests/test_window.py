"""Windows over the rows of a call and the rows before it."""

import math

import pytest
import torch

from txl_ts.embeddings import PatchEmbedding, RowWindow, Scale

B, T, C, LENGTH = 2, 5, 3, 4


def flat_scale(n_rows, *, mean=0.0, deviation=1.0):
    shape = (B, n_rows, C)
    return Scale(
        torch.zeros(B, 1, C),
        torch.full(shape, mean),
        torch.zeros(shape),
        torch.full(shape, deviation),
        torch.zeros(*shape, 2),
        torch.zeros(shape),
        torch.ones(shape, dtype=torch.bool),
    )


def rows_of(n_rows, seed=0):
    return torch.randn(B, n_rows, C, generator=torch.Generator().manual_seed(seed))


def extend(window, x, kept, present=None, age=None):
    """Extend by rows that are all there, unless told otherwise."""
    present = torch.ones_like(x, dtype=torch.bool) if present is None else present
    return window.extend(x, present, torch.zeros_like(x) if age is None else age, kept)


def fresh(window):
    (spec,) = window.specs()
    return torch.zeros(B, *spec.shape)


def test_each_window_ends_at_its_row_newest_last():
    window, x = RowWindow(length=LENGTH, n_channels=C), rows_of(T)
    history, _ = extend(window, x, fresh(window))
    z, present = window.at(history, torch.arange(T), flat_scale(T))
    assert z.shape == present.shape == (B, T, C, LENGTH)
    for t in range(T):
        for back in range(LENGTH):
            expected = x[:, t - back] if t >= back else torch.zeros(B, C)
            assert torch.equal(z[:, t, :, LENGTH - 1 - back], expected)
            assert (present[:, t, :, LENGTH - 1 - back] == float(t >= back)).all()


@pytest.mark.parametrize("chunks", [[1] * 11, [11], [2, 9], [7, 1, 3]])
def test_windows_do_not_depend_on_the_split(chunks):
    window, x = RowWindow(length=LENGTH, n_channels=C), rows_of(11)
    kept, parts = fresh(window), []
    for chunk in x.split(chunks, dim=1):
        n_rows = chunk.shape[1]
        history, kept = extend(window, chunk, kept)
        parts.append(window.at(history, torch.arange(n_rows), flat_scale(n_rows))[0])
    history, last = extend(window, x, fresh(window))
    assert torch.equal(torch.cat(parts, dim=1), window.at(history, torch.arange(11), flat_scale(11))[0])
    assert torch.equal(kept, last)


def test_windows_are_normalised_by_the_statistics_of_their_last_row():
    window, x = RowWindow(length=2, n_channels=C), rows_of(3)
    history, _ = extend(window, x, fresh(window))
    scale = flat_scale(3, mean=0.5, deviation=2.0)
    scale.mean[:, 2] = -1.0
    z, _ = window.at(history, torch.tensor([1, 2]), scale.at(torch.tensor([1, 2])))
    assert torch.equal(z[:, 0, :, 1], (x[:, 1] - 0.5) / 2)
    assert torch.equal(z[:, 1, :, 0], (x[:, 1] + 1.0) / 2)


def test_far_values_are_clipped_and_nothing_is_zero_before_the_first_value():
    window = RowWindow(length=2, n_channels=C)
    x = torch.tensor([-1e30, 0.0, 3e38]).expand(B, 1, C)
    present = torch.tensor([True, False, True]).expand(B, 1, C)
    history, _ = extend(window, x, fresh(window), present, (~present).float())
    z, seen = window.at(history, torch.arange(1), flat_scale(1, mean=4.0, deviation=1e-3))
    assert z[0, 0, :, 1].tolist() == [-10.0, 0.0, 10.0]
    assert seen[0, 0, :, 1].tolist() == [1.0, 0.0, 1.0]
    assert z.isfinite().all()


@pytest.mark.parametrize("chunks", [[9], [1] * 9, [4, 5], [3, 1, 5]])
def test_before_its_first_value_a_series_repeats_its_first_season_once_that_is_there(chunks):
    window = RowWindow(length=6, n_channels=C, season=3)
    x = torch.arange(-1.0, 8.0)[:, None].expand(9, C)  # values 1, 2, …; before them two rows that did not come
    there, kept, found, came = x > 0, fresh(window), [], []
    for part, present in zip(x.split(chunks), there.split(chunks), strict=True):
        n = len(part)
        rows = [t.expand(B, n, C) for t in (part * present, present, (~present).float())]
        history, kept = window.extend(*rows, kept)
        z, seen = window.at(history, torch.arange(n), flat_scale(n))
        came.append(seen[1, :, 2].sum(dim=-1))
        found += z[1, :, 2].tolist()
    assert found == [
        *([[0] * 6] * 2),  # nothing
        [0, 0, 0, 0, 0, 1],
        [0, 0, 0, 0, 1, 2],
        [1, 2, 3, 1, 2, 3],
        [2, 3, 1, 2, 3, 4],
        [3, 1, 2, 3, 4, 5],
        [1, 2, 3, 4, 5, 6],
        [2, 3, 4, 5, 6, 7],
    ]
    assert torch.cat(came).tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 6]  # tokens are told the truth


@pytest.mark.parametrize("chunks", [[7], [1] * 7, [3, 4], [4, 2, 1]])
def test_a_missing_row_carries_the_value_before_it_and_says_so(chunks):
    window = RowWindow(length=LENGTH, n_channels=C)
    there = torch.tensor([False, True, True, False, False, True, False])
    x = torch.arange(1.0, 8.0)[:, None].expand(7, C) * there[:, None]
    age = torch.tensor([1.0, 0, 0, 1, 2, 0, 1])[:, None].expand(7, C)
    kept = fresh(window)
    zs, masks = [], []
    for part, present, old in zip(x.split(chunks), there.split(chunks), age.split(chunks), strict=True):
        n = len(part)
        rows = [t.expand(B, n, C) for t in (part, present[:, None], old)]
        history, kept = window.extend(*rows, kept)
        z, seen = window.at(history, torch.arange(n), flat_scale(n))
        zs.append(z[0, :, 0, -1])
        masks.append(seen[0, :, 0, -1])
    assert torch.cat(zs).tolist() == [0, 2, 3, 3, 3, 6, 6]
    assert torch.cat(masks).tolist() == there.float().tolist()


def test_only_picked_rows_come_back_in_the_order_of_the_picks():
    window, x = RowWindow(length=LENGTH, n_channels=C), rows_of(T)
    history, _ = extend(window, x, fresh(window))
    every, _ = window.at(history, torch.arange(T), flat_scale(T))
    picked, _ = window.at(history, torch.tensor([4, 1]), flat_scale(2))
    assert torch.equal(picked, every[:, [4, 1]])


def test_patch_embedding_sees_values_masks_drift_and_age_of_every_channel():
    embedding = PatchEmbedding(patch_len=2, n_channels=C, d_model=7)
    z, present, scale = torch.randn(B, T, C, 2), torch.ones(B, T, C, 2), flat_scale(T)
    token = embedding(z, present, scale)
    assert token.shape == (B, T, 7)
    changed = {
        "value": (z + 1, present, scale),
        "mask": (z, present * 0, scale),
        "drift": (z, present, Scale(**{**vars(scale), "drift": scale.drift + 1})),
        "age": (z, present, Scale(**{**vars(scale), "age": scale.age + 1})),
    }
    for name, inputs in changed.items():
        assert not torch.equal(embedding(*inputs), token), name
    assert embedding.linear.in_features == C * (2 + 2 + 2 + 1)


def test_age_enters_by_its_logarithm():
    embedding = PatchEmbedding(patch_len=1, n_channels=C, d_model=7)
    zeros = torch.zeros(B, T, C, 1)
    ages = [
        embedding(zeros, zeros, Scale(**{**vars(flat_scale(T)), "age": torch.full((B, T, C), age)}))
        for age in (0.0, math.e - 1, math.e**2 - 1)
    ]
    # Equal steps of the logarithm are equal steps of the token.
    torch.testing.assert_close(ages[2] - ages[1], ages[1] - ages[0], rtol=0, atol=1e-5)
