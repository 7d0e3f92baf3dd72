"""The running normaliser against a loop over rows, and what sensors do to it."""

import math

import numpy as np
import pytest
import torch

from tests.oracles.normaliser import RowByRow
from txl_ts.embeddings import RunningNormaliser, StandardNormaliser

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def normalise(x, chunks=None, *, half_life=8.0, dtype=torch.float64, norm=None):
    """Scales of all rows, each (B, T, C), and the last state."""
    x = torch.as_tensor(np.asarray(x), dtype=dtype)
    normaliser = RunningNormaliser(half_life=half_life, n_channels=x.shape[2])
    (spec,) = normaliser.specs()
    norm = torch.zeros(len(x), *spec.shape, dtype=dtype) if norm is None else norm
    parts = {name: [] for name in ("level", "deviation", "drift", "age", "known")}
    for chunk in x.split(chunks or x.shape[1], dim=1):
        present = chunk.isfinite()
        scale, norm = normaliser(torch.where(present, chunk, 0.0), present, norm)
        level = torch.where(scale.known, scale.shift + (scale.mean + scale.rest), torch.nan)
        parts["level"].append(level)
        for name in ("deviation", "drift", "age", "known"):
            parts[name].append(getattr(scale, name))
    return {name: torch.cat(tensors, dim=1).double().numpy() for name, tensors in parts.items()}, norm


def row_by_row(x, *, half_life=8.0):
    x = np.asarray(x, dtype=np.float64)
    names = ("level", "deviation", "drift", "age", "known")
    out = {name: np.zeros((*x.shape, 2) if name == "drift" else x.shape) for name in names}
    for b, c in np.ndindex(x.shape[0], x.shape[2]):
        lane = RowByRow(half_life=half_life)
        for t in range(x.shape[1]):
            scale = lane.step(x[b, t, c])
            scale["level"] = scale["shift"] + scale["mean"] if scale["known"] else np.nan
            for name in names:
                out[name][b, t, c] = scale[name]
    return out


def assert_same(found, expected, *, tolerance):
    for name, values in expected.items():
        size = max(1.0, float(np.nan_to_num(np.abs(values)).max()))
        np.testing.assert_allclose(found[name], values, rtol=0, atol=tolerance * size, err_msg=name)


def noise(n_rows, n_lanes=2, n_channels=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n_lanes, n_rows, n_channels))


def with_gaps(x, seed=1):
    return np.where(np.random.default_rng(seed).random(x.shape) < 0.2, np.nan, x)


# Float64 keeps 16 digits; a chunk sums up to 128 products where the loop adds one by one.
EXACT = 1e-12

SERIES = {
    "noise": noise(300),
    "gaps": with_gaps(noise(300)),
    "walk": noise(300).cumsum(axis=1),
    "high level": 101325 + 10 * noise(300),
    "step": noise(300) + 50 * (np.arange(300) >= 150)[:, None],
    "late start": np.where((np.arange(300) < 40)[:, None], np.nan, noise(300)),
    "all missing": np.full((1, 40, 1), np.nan),
    "one row": noise(1),
}


@pytest.mark.parametrize("x", SERIES.values(), ids=SERIES)
@pytest.mark.parametrize("half_life", [2.0, 24.0])
def test_normaliser_equals_the_loop_over_rows(x, half_life):
    expected = row_by_row(x, half_life=half_life)
    for chunks in (None, 1 if x.shape[1] < 50 else 7, 129):
        assert_same(normalise(x, chunks, half_life=half_life)[0], expected, tolerance=EXACT)


@pytest.mark.parametrize("half_life", [8.0, 24.0, 168.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clipping_starts_at_the_row_after_sixteen_in_any_chunks(half_life, dtype):
    for row, is_clipped in ((15, False), (16, True)):
        x = noise(40, 1, 1)
        x[:, row] = 1e4
        deviation = row_by_row(x, half_life=half_life)["deviation"]
        assert (deviation.max() < 100) == is_clipped
        for chunks in (None, 1, 3, 16, 17):
            found = normalise(x, chunks, half_life=half_life, dtype=dtype)[0]["deviation"]
            # float32: 1e4 squared leaves few digits for deviations of 1.
            np.testing.assert_allclose(found, deviation, rtol=1e-12 if dtype == torch.float64 else 1e-3)


def test_deviation_of_a_high_level_is_right_in_float32():
    x = (101325 + 10 * noise(2000, 1, 1)).astype(np.float32)
    expected = row_by_row(x, half_life=168.0)
    for chunks in (None, 64):
        found, _ = normalise(x, chunks, half_life=168.0, dtype=torch.float32)
        # float32 near 101325 has steps of 1/128: a thousandth of the deviation of 10.
        np.testing.assert_allclose(found["deviation"], expected["deviation"], rtol=1e-3)
        np.testing.assert_allclose(found["level"], expected["level"], rtol=0, atol=0.01)


def test_deviation_is_right_in_float32_far_from_the_first_value():
    x = noise(1000, 1, 1).cumsum(axis=1)
    x[:, 0] = -1e4
    expected = row_by_row(x.astype(np.float32))
    found, _ = normalise(x, 64, dtype=torch.float32)
    # float32 near 1e4 has steps of a thousandth; the deviation is some units.
    np.testing.assert_allclose(found["deviation"][:, 200:], expected["deviation"][:, 200:], rtol=1e-3)


def test_first_row_is_its_own_level_with_deviation_zero():
    found, _ = normalise([[[5.0, -3.0]]])
    assert found["level"].tolist() == [[[5.0, -3.0]]]
    assert found["deviation"].tolist() == [[[0.0, 0.0]]]
    assert found["drift"].tolist() == [[[[0.0, 0.0], [0.0, 0.0]]]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_series_has_deviation_zero_and_its_value_as_level(dtype):
    found, norm = normalise(np.full((1, 3000, 1), 0.1), 500, dtype=dtype)
    assert (found["deviation"] == 0).all()
    assert (found["level"] == float(torch.tensor(0.1, dtype=dtype))).all()
    assert norm.isfinite().all()


def test_level_is_unknown_until_the_first_finite_value_even_inside_a_chunk():
    found, _ = normalise([[[np.nan], [np.inf], [4.0], [np.nan]]])
    assert found["known"].ravel().tolist() == [0, 0, 1, 1]


def test_age_counts_rows_since_the_last_value_across_chunks():
    x = [[[v] for v in (np.nan, np.nan, 1.0, np.nan, np.nan, 2.0, 3.0, np.nan)]]
    for chunks in (None, 1, 3):
        assert normalise(x, chunks)[0]["age"].ravel().tolist() == [1, 2, 0, 1, 2, 0, 0, 1]


# ------------------------------------------------------------------------------------------------- missing runs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_level_and_deviation_outlive_a_hundred_thousand_missing_rows_in_short_calls(dtype):
    x = np.concatenate([50 + noise(200, 1, 1), np.full((1, 100_000, 1), np.nan)], axis=1)
    found, norm = normalise(x, 4096, half_life=168.0, dtype=dtype)
    for name in ("level", "deviation"):
        np.testing.assert_allclose(found[name][0, -1], found[name][0, 199], rtol=1e-4, err_msg=name)
    assert norm.isfinite().all()
    assert found["age"][0, -1, 0] == 100_000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("half_life", [2.0, 168.0])
def test_level_and_deviation_outlive_a_hundred_thousand_missing_rows_in_one_call(dtype, half_life):
    x = np.concatenate([50 + noise(200, 1, 1), np.full((1, 100_000, 1), np.nan)], axis=1)
    found, _ = normalise(x, half_life=half_life, dtype=dtype)
    for name in ("level", "deviation"):
        np.testing.assert_allclose(found[name][0, -1], found[name][0, 199], rtol=1e-4, err_msg=name)


def test_a_call_of_512_rows_may_be_almost_all_missing_at_the_shortest_half_life():
    x = np.full((1, 512, 1), np.nan, dtype=np.float32)
    x[:, :40] = 50 + noise(40, 1, 1)
    found, _ = normalise(x, half_life=2.0, dtype=torch.float32)
    for name in ("level", "deviation"):
        np.testing.assert_allclose(found[name][0, -1], found[name][0, 39], rtol=1e-4, err_msg=name)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_a_long_missing_run_gives_the_same_numbers_in_any_chunks(dtype, tolerance):
    x = noise(1400, 1, 1)
    x[:, 300:1300] = np.nan
    whole, _ = normalise(x, half_life=8.0, dtype=dtype)
    for chunks in (1400 // 2, 61):
        assert_same(normalise(x, chunks, half_life=8.0, dtype=dtype)[0], whole, tolerance=tolerance)


# ------------------------------------------------------------------------------------------------- spikes and floods


def test_one_spike_of_a_million_does_not_blind_a_lane():
    x = noise(600, 1, 1)
    x[:, 300] = 1e6
    found, _ = normalise(x, half_life=168.0, dtype=torch.float32)
    assert found["deviation"][:, 300:].max() < 2
    assert np.abs(found["level"][:, 300:]).max() < 1


def test_a_lasting_change_of_level_is_followed():
    x = noise(400, 1, 1)
    x[:, 200:] += 1000
    found, _ = normalise(x, half_life=8.0)
    assert abs(found["level"][0, -1, 0] - 1000) < 2


@pytest.mark.parametrize("value", [LARGEST_FLOAT32, -LARGEST_FLOAT32, 1e30, 1e-45, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("row", [0, 1, 30])
def test_no_input_makes_the_state_or_the_scale_non_finite(value, row):
    for other in (0.0, -LARGEST_FLOAT32):
        x = noise(60, 1, 1).astype(np.float32)
        x[:, row], x[:, row + 3] = value, other
        for chunks in (None, 1):
            found, norm = normalise(x, chunks, dtype=torch.float32)
            assert norm.isfinite().all()
            for name in ("deviation", "drift", "age"):
                assert np.isfinite(found[name]).all(), name
            assert np.isfinite(found["level"][found["known"] > 0]).all()


def test_deviation_never_falls_below_a_part_of_the_slow_one():
    x = noise(400, 1, 1)
    x[:, 200:] = x[:, 199:200]
    found, _ = normalise(x, half_life=4.0)
    assert found["deviation"][0, -1, 0] > 0.01  # without the floor 200 constant rows of half-life 4 leave 3e-8
    assert_same(found, row_by_row(x, half_life=4.0), tolerance=EXACT)


@pytest.mark.parametrize(("dtype", "chunks"), [(torch.float32, 1), (torch.float32, 61), (torch.float64, 61)])
def test_z_of_a_sensor_that_stands_still_is_no_rounding_noise(dtype, chunks):
    x = torch.as_tensor(noise(1400, 1, 1), dtype=dtype)
    x[:, 100:] = 7.0
    normaliser = RunningNormaliser(half_life=2.0, n_channels=1)
    norm = torch.zeros(1, *normaliser.specs()[0].shape, dtype=dtype)
    z = []
    for chunk in x.split(chunks, dim=1):
        scale, norm = normaliser(chunk, chunk.isfinite(), norm)
        z.append(scale.normalise((chunk - scale.shift)[..., None]))
    # 200 constant rows are 100 half-lives: the level is the value, and the deviation cannot have vanished as fast.
    assert torch.cat(z, dim=1)[:, 300:].abs().max() < 1e-3


# ------------------------------------------------------------------------------------------------- habits


def test_normaliser_leaves_its_inputs_untouched_and_knows_no_other_lane():
    x = torch.as_tensor(noise(50, 3, 2))
    normaliser = RunningNormaliser(half_life=8.0, n_channels=2)
    norm = normalise(noise(20, 3, 2, seed=5))[1]
    before = [x.clone(), norm.clone()]
    scale, after = normaliser(x, x.isfinite(), norm)
    assert torch.equal(x, before[0])
    assert torch.equal(norm, before[1])
    wild = x.clone()
    wild[1] = 1e30
    other, other_after = normaliser(wild, wild.isfinite(), norm)
    for lane in (0, 2):
        assert torch.equal(other.deviation[lane], scale.deviation[lane])
        assert torch.equal(other_after[lane], after[lane])


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_a_later_row_changes_no_earlier_statistic(value):
    x = noise(150, 1, 2)
    early, _ = normalise(x)
    for k in (1, 77, 129, 149):
        changed = x.copy()
        changed[:, k:] = value
        late, _ = normalise(changed)
        for name in early:
            np.testing.assert_array_equal(late[name][:, :k], early[name][:, :k], err_msg=name)


def test_statistics_stay_float32_under_autocast():
    x = torch.as_tensor(101325 + 10 * noise(200, 1, 1), dtype=torch.float32)
    normaliser = RunningNormaliser(half_life=24.0, n_channels=1)
    norm = torch.zeros(1, *normaliser.specs()[0].shape)
    plain, _ = normaliser(x, x.isfinite(), norm)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast, after = normaliser(x, x.isfinite(), norm)
    assert after.dtype == torch.float32
    torch.testing.assert_close(cast.deviation, plain.deviation, rtol=1e-6, atol=0)


def test_standard_normaliser_gives_the_fitted_scale_and_only_counts_age():
    normaliser = StandardNormaliser(n_channels=2)
    normaliser.mean.copy_(torch.tensor([3.0, -1.0]))
    normaliser.deviation.copy_(torch.tensor([2.0, 5.0]))
    x = torch.tensor([[[5.0, 4.0], [0.0, 4.0], [0.0, 9.0]]])
    present = torch.tensor([[[True, True], [False, True], [False, True]]])
    scale, norm = normaliser(x, present, torch.zeros(1, 3, 2))
    assert scale.normalise(x[..., None])[0, 0, :, 0].tolist() == [1.0, 1.0]
    assert scale.age[0].tolist() == [[0, 0], [1, 0], [2, 0]]
    assert (scale.drift == 0).all()
    assert scale.known.all()
    again, _ = normaliser(x, torch.zeros_like(present), norm)
    assert again.age[0, :, 0].tolist() == [3, 4, 5]


def test_restore_undoes_normalise():
    x = torch.as_tensor(noise(30, 2, 3))
    normaliser = RunningNormaliser(half_life=8.0, n_channels=3)
    scale, _ = normaliser(x, x.isfinite(), torch.zeros(2, *normaliser.specs()[0].shape, dtype=x.dtype))
    z = scale.normalise((x - scale.shift)[..., None])  # (B, T, C, 1)
    back = scale.restore(z[:, :, None])  # (B, T, h = 1, C, Q = 1)
    # Exact up to rounding; where the deviation is 0 so is x − level.
    torch.testing.assert_close(back[:, :, 0, :, 0], x, rtol=0, atol=1e-14)
