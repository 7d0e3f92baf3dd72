"""The model's promises: one function of rows and state, the same numbers however it is called."""

import copy
import io
import math

import numpy as np
import pytest
import torch

from tests.oracles.forecast import forecast
from txl_ts.backbone import Backbone
from txl_ts.config import ModelConfig
from txl_ts.errors import ShapeError
from txl_ts.model import TXLModel, is_memory
from txl_ts.state import from_arrays, to_arrays

SIZES = {
    "h": 3,
    "quantiles": (0.1, 0.5, 0.8, 0.9),
    "n_channels": 1,
    "patch_len": 4,
    "stride": 4,
    "mem_len": 5,
    "lookback": 7,
}
SIZES |= {"half_life": 24.0, "d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 10}
FINITE_FLOAT32 = float(np.finfo(np.float32).max)


def make_model(dtype=torch.float32, seed=0, **changes):
    """A model whose every weight counts: what starts at zero is drawn too."""
    model = TXLModel(ModelConfig(**{**SIZES, **changes}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in [*model.parameters(), *model.linear_path.buffers()]:
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
        if model.config.scaler == "standard":
            model.normaliser.mean.uniform_(-1, 1, generator=generator)
            model.normaliser.deviation.uniform_(0.5, 2, generator=generator)
    return model.to(dtype).eval()


def noise(n_rows, n_lanes=2, n_channels=1, seed=0, dtype=torch.float32):
    rng = np.random.default_rng(seed)
    return torch.as_tensor(rng.normal(size=(n_lanes, n_rows, n_channels)), dtype=dtype)


def with_gaps(x, seed=1):
    missing = torch.as_tensor(np.random.default_rng(seed).random(x.shape) < 0.2)
    return x.masked_fill(missing, torch.nan)


def run(model, x, chunks=None, state=None, starts=None):
    """Forecasts of all rows and the last state; ``starts`` maps the number of a call to its flags."""
    state = model.init_state(len(x)) if state is None else state
    out = []
    with torch.no_grad():
        for i, chunk in enumerate(x.split(chunks or x.shape[1], dim=1)):
            y, state = model(chunk, state, (starts or {}).get(i))
            out.append(y)
    return torch.cat(out, dim=1), state


def distance(a, b):
    """The largest difference over the largest size (RELIABILITY.md); NaN must stand at the same places."""
    assert torch.equal(a.isnan(), b.isnan())
    a, b = a.double().nan_to_num(0), b.double().nan_to_num(0)
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))


def same_bits(a, b):
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(0), b.nan_to_num(0))


def random_chunks(n_rows, rng, longest, *, short_ones=False):
    """Lengths in 1..longest that sum to ``n_rows``; log-uniform when short ones should be as many as long ones."""
    chunks = []
    while (left := n_rows - sum(chunks)) > 0:
        length = np.exp(rng.uniform(0, np.log(longest + 1))) if short_ones else rng.integers(1, longest + 1)
        chunks.append(min(left, int(length)))
    return chunks


# ------------------------------------------------------------------------------------------------------ the closed form

VARIANTS = {
    "default": {},
    "no memory": {"mem_len": 0},
    "one visit": {"mem_len": 1},
    "row by row": {"patch_len": 1, "stride": 1},
    "two channels": {"n_channels": 2},
    "standard scaler": {"scaler": "standard", "n_channels": 2},
    "no linear path": {"lookback": 0},
    "linear path shorter than the patch": {"lookback": 2},
    "linear path with a season": {"lookback": 23, "lookback_season": 5, "n_channels": 2},
    "linear path with one row for a season": {"lookback_season": 1},
    "stride longer than the patch": {"patch_len": 3, "stride": 5, "n_layers": 1},
    "median only": {"quantiles": (0.5,), "h": 1},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_model_equals_the_closed_form_row_by_row(changes):
    model = make_model(torch.float64, **changes)
    config = model.config
    x = with_gaps(noise(90, 1, config.n_channels, dtype=torch.float64))
    x[0, 40] = 1e3  # a spike
    x[0, :2, 0] = torch.nan  # a late start
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    expected = forecast(x[0].numpy(), weights, vars(config))
    for chunks in (None, 7, [1] * 9 + [81]):
        y, _ = run(model, x, chunks)
        assert y.shape == (1, 90, config.h, config.n_channels, len(config.quantiles))
        # Float64 keeps 16 digits; outputs are of size 10 after some thousand operations.
        np.testing.assert_allclose(y[0].numpy(), expected, rtol=0, atol=1e-12 * max(1.0, np.nanmax(np.abs(expected))))


def test_a_season_is_for_rows_whose_look_back_is_not_filled_and_never_in_training():
    plain, model = make_model(), make_model(lookback_season=3)
    model.load_state_dict(plain.state_dict())
    x, full = with_gaps(noise(40, 2)), plain.config.lookback - 1
    x[:, 0] = 1.0  # both lanes begin with a value
    y, _ = run(plain, x)
    found, _ = run(model, x)
    assert same_bits(found[:, full:], y[:, full:])
    assert same_bits(found[:, :2], y[:, :2])  # no whole season yet
    assert not (found[:, 2:full] == y[:, 2:full]).all()
    assert same_bits(run(model.train(), x)[0], run(plain.train(), x)[0])


def test_only_the_last_row_is_given_on_request():
    model, x = make_model(), noise(30)
    y, state = run(model, x)
    with torch.no_grad():
        last, state_last = model(x, model.init_state(2), last_only=True)
    assert last.shape == (2, 1, 3, 1, 4)
    assert distance(last, y[:, -1:]) < 1e-6  # a product with another number of rows may round otherwise
    assert all(torch.equal(state_last[name], state[name]) for name in state)


def test_quantiles_of_the_model_never_cross():
    x = with_gaps(noise(200, 3))
    x[1] *= 1e6
    x[2, 50:] = 3.0
    y, _ = run(make_model(), x)
    assert not (y.diff(dim=-1) < 0).any()


def test_a_constant_series_is_forecast_to_stay():
    y, state = run(make_model(), torch.full((2, 300, 1), 0.1), 64)
    assert (y == torch.tensor(0.1)).all()
    assert all(tensor.isfinite().all() for tensor in state.values())


def test_a_missing_run_keeps_the_forecast_at_its_level():
    x = noise(1200, 1) + 500
    x[:, 200:] = torch.nan
    y, state = run(make_model(), x, 256)
    assert y.isfinite().all()
    assert (y[:, 200:] - 500).abs().max() < 50
    assert all(tensor.isfinite().all() for tensor in state.values())


# ---------------------------------------------------------------------------------------------------------- T2 chunking


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_any_split_of_ten_thousand_rows_gives_the_same_outputs_and_state(dtype, tolerance):
    plain = noise(10_000, 1)
    x = torch.cat([plain, with_gaps(plain.cumsum(dim=1)), 101325 + 10 * plain]).to(dtype)
    model, rng = make_model(dtype), np.random.default_rng(20)
    whole, state = run(model, x, 512)
    for short_ones in (False, True):
        chunks = random_chunks(10_000, rng, 512, short_ones=short_ones)
        y, other = run(model, x, chunks)
        for lane in range(3):
            assert distance(y[lane], whole[lane]) <= tolerance, f"seed 20, lane {lane}, chunks {chunks[:9]}…"
            for name in state:
                assert distance(other[name][lane], state[name][lane]) <= tolerance, (name, lane)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_any_split_gives_the_same_outputs_in_every_variant(changes):
    model = make_model(torch.float64, **changes)
    x = with_gaps(noise(300, 2, model.config.n_channels, dtype=torch.float64))
    rng = np.random.default_rng(21)
    whole, state = run(model, x)
    for longest in (9, 200):
        y, other = run(model, x, random_chunks(300, rng, longest))
        assert distance(y, whole) <= 1e-12
        assert all(distance(other[name], state[name]) <= 1e-12 for name in state)


def test_any_split_gives_the_same_outputs_after_a_sensor_stood_still():
    model = make_model(half_life=2.0)
    x = noise(1100)
    x[:, 60:1080] = 7.0
    whole, _ = run(model, x, 512)
    assert distance(run(model, x, [1] * 1100)[0][:, 1080:], whole[:, 1080:]) <= 1e-5


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_any_split_gives_the_same_outputs_across_a_long_missing_run(dtype, tolerance):
    model = make_model(dtype, half_life=8.0)
    x = noise(1300, dtype=dtype)
    x[:, 200:1200] = torch.nan
    whole, _ = run(model, x)
    assert distance(run(model, x, 61)[0], whole) <= tolerance


# --------------------------------------------------------------------------------------------------------- T1 causality


@pytest.mark.parametrize("value", [1.5, math.nan, math.inf, FINITE_FLOAT32, -FINITE_FLOAT32])
@pytest.mark.parametrize("chunks", [None, 60])
def test_changing_later_rows_changes_no_earlier_output_at_all(value, chunks):
    model, x = make_model(), with_gaps(noise(240))
    before, _ = run(model, x, chunks)
    for k in np.random.default_rng(22).choice(240, size=50, replace=False).tolist():
        changed = x.clone()
        changed[:, k:] = value
        after, _ = run(model, changed, chunks)
        assert same_bits(after[:, :k], before[:, :k]), f"row {k}"


@pytest.mark.parametrize("row", [0, 1, 30])
def test_no_input_makes_an_output_or_the_state_non_finite(row):
    bad = torch.tensor([math.nan, math.inf, -math.inf, 1e30, FINITE_FLOAT32, -FINITE_FLOAT32])
    model, x = make_model(n_channels=2), noise(45, len(bad), 2)
    x[:, row] = bad[:, None]
    state = model.init_state(len(x))
    for i in range(45):
        y, state = run(model, x[:, i : i + 1], state=state)
        assert [name for name, tensor in state.items() if not tensor.isfinite().all()] == [], i
        unknown = ~bad.isfinite() & (row == 0) & (i == 0)  # no value was seen yet
        assert torch.equal(y.isnan().flatten(1).any(dim=1), unknown), i


def test_float32_max_of_both_signs_leaves_the_state_finite():
    model, x = make_model(), noise(12, 2)
    x[:, 0], x[:, 11] = FINITE_FLOAT32, -FINITE_FLOAT32
    _, state = run(model, x)
    assert [name for name, tensor in state.items() if not tensor.isfinite().all()] == []


# --------------------------------------------------------------------------------------------------------- T3, T4 lanes


def test_64_lanes_alone_equal_64_lanes_together():
    model, x = make_model(), with_gaps(noise(50, 64))
    together, state = run(model, x, 30)
    for lane in range(64):
        alone, own = run(model, x[lane : lane + 1], 30)
        assert distance(alone, together[lane : lane + 1]) <= 1e-5
        assert all(distance(own[name], state[name][lane : lane + 1]) <= 1e-5 for name in own)


def test_the_number_of_lanes_does_not_matter():
    model, x = make_model(), with_gaps(noise(40, 257))
    whole, _ = run(model, x, 16)
    for n_lanes in (1, 2, 3, 64):
        assert distance(run(model, x[:n_lanes], 16)[0], whole[:n_lanes]) <= 1e-5


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30, FINITE_FLOAT32])
@pytest.mark.parametrize("n_bad", [1, 30])
def test_what_happens_in_one_lane_leaves_the_others_bit_equal(value, n_bad):
    model, x = make_model(), noise(60, 5)
    before, state = run(model, x, 25)
    bad = x.clone()
    bad[2, 20 : 20 + n_bad] = value
    after, other = run(model, bad, 25)
    rest = [0, 1, 3, 4]
    assert same_bits(after[rest], before[rest])
    assert all(torch.equal(other[name][rest], state[name][rest]) for name in state)


def test_permuting_lanes_permutes_outputs_and_states():
    model, x = make_model(), with_gaps(noise(60, 5))
    order = [3, 0, 4, 1, 2]
    y, state = run(model, x, 25)
    permuted, other = run(model, x[order], 25)
    assert distance(permuted, y[order]) <= 1e-6  # a kernel may take lanes in groups
    assert all(distance(other[name], state[name][order]) <= 1e-6 for name in state)


@pytest.mark.parametrize("dirty", [False, True])
def test_a_start_flag_gives_those_lanes_a_fresh_state_and_leaves_the_others_bit_identical(dirty):
    model, first, second = make_model(), noise(57, 4), noise(60, 4, seed=5)
    _, state = run(model, first)
    if dirty:  # what a started lane left behind may be anything
        state = {name: tensor.clone() for name, tensor in state.items()}
        for lane in (1, 2):
            for name in set(state) - {"count"}:
                state[name][lane] = torch.nan
    flags = torch.tensor([[0], [1], [1], [0]], dtype=torch.int32)
    started, after = run(model, second, 25, state, {0: flags})
    fresh, _ = run(model, second, 25)
    goes_on, _ = run(model, second[[0, 3]], 25, {name: tensor[[0, 3]] for name, tensor in state.items()})
    assert same_bits(started[[1, 2]], fresh[[1, 2]])
    assert distance(started[[0, 3]], goes_on) <= 1e-6
    clean = {name: tensor.nan_to_num(0) for name, tensor in state.items()}
    unflagged, _ = run(model, second, 25, clean)
    assert same_bits(started[[0, 3]], unflagged[[0, 3]])
    assert after["count"][:, 0].tolist() == [24, 24, 24, 24]


def test_a_stream_that_starts_late_equals_that_stream_alone():
    model, x = make_model(), noise(90, 3)
    chunks = [31, 22, 37]
    y, _ = run(model, x, chunks, starts={1: torch.tensor([[0], [1], [0]])})
    alone, _ = run(model, x[1:2, 31:], [22, 37])
    assert distance(y[1:2, 31:], alone) <= 1e-6


def test_a_start_in_the_middle_of_a_phase_equals_a_fresh_stream():
    model, x = make_model(torch.float64), noise(50, 1, dtype=torch.float64)
    for n_before in range(1, 9):
        y, _ = run(model, x, [n_before, 50 - n_before], starts={1: torch.ones(1, 1)})
        assert distance(y[:, n_before:], run(model, x[:, n_before:])[0]) <= 1e-13


# ------------------------------------------------------------------------------------------------------------ reach


@pytest.mark.parametrize(
    "changes",
    [
        {"n_layers": 2, "mem_len": 3, "stride": 2, "patch_len": 4},
        {"n_layers": 1, "mem_len": 4, "stride": 1, "patch_len": 5},
        {"n_layers": 3, "mem_len": 2, "stride": 3, "patch_len": 1},
        {"n_layers": 2, "mem_len": 0, "stride": 4, "patch_len": 3},
        {"n_layers": 1, "mem_len": 0, "stride": 1, "patch_len": 1},
    ],
    ids=str,
)
def test_reach_is_exact(changes):
    model = make_model(torch.float64, scaler="standard", lookback=0, **changes)
    reach = model.config.reach
    assert reach == changes["n_layers"] * changes["mem_len"] * changes["stride"] + changes["patch_len"] - 1
    t = reach + 5
    x = noise(t + 1, 1, dtype=torch.float64)
    for chunks in (None, 3):
        y = run(model, x, chunks)[0][:, t]
        for row, counts in ((t - reach - 1, False), (t - reach, True), (t, True)):
            changed = x.clone()
            changed[:, row] += 1.5
            assert torch.equal(run(model, changed, chunks)[0][:, t], y) is not counts, f"row t − {t - row}"


# ----------------------------------------------------------------------------------------------- hidden form = K/V form


def run_visits(model, x, phases, chunks, starts=None):
    state = model.init_visits(len(x), n_phases=len(phases))
    out = []
    with torch.no_grad():
        for i, chunk in enumerate(x.split(chunks, dim=1)):
            z, front, state = model.forward_visits(chunk, state, torch.tensor(phases), (starts or {}).get(i))
            out.append(front.scale.restore(z))
    return torch.cat(out, dim=1), state


def visited(phases, *, n_rows, stride):
    return [visit * stride + phase for visit in range(n_rows // stride) for phase in phases]


@pytest.mark.parametrize("phases", [[0, 1, 2, 3], [2], [3, 0, 2]], ids=str)
def test_hidden_rows_give_the_same_forecasts_as_keys_and_values_over_ten_thousand_rows(phases):
    model, x = make_model(torch.float64), with_gaps(noise(10_000, dtype=torch.float64))
    y, _ = run(model, x, 512)
    trained, _ = run_visits(model, x, phases, 400)
    # Without drift: the last thousand rows are as close as the first.
    assert distance(trained, y[:, visited(phases, n_rows=10_000, stride=4)]) <= 1e-12


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_rows_give_the_same_forecasts_in_every_variant(changes):
    model = make_model(torch.float64, **changes)
    stride = model.config.stride
    x = noise(60 * stride, 2, model.config.n_channels, dtype=torch.float64)
    phases = list(range(stride))[::-2]
    trained, _ = run_visits(model, x, phases, 7 * stride)
    y, _ = run(model, x)
    assert distance(trained, y[:, visited(phases, n_rows=x.shape[1], stride=stride)]) <= 1e-12


def test_a_start_flag_in_training_equals_a_fresh_lane():
    model, x = make_model(), noise(160, 3)
    flags = {1: torch.tensor([[0], [1], [0]])}
    z, _ = run_visits(model, x, [1, 3], 80, flags)
    plain, _ = run_visits(model, x, [1, 3], 80)
    fresh, _ = run_visits(model, x[:, 80:], [1, 3], 80)
    assert same_bits(z[1, 40:], fresh[1])
    assert same_bits(z[[0, 2]], plain[[0, 2]])


# ---------------------------------------------------------------------------------------------------------- gradients


def test_projections_get_gradients_through_memory_rows():
    """The gradient equals the change of the loss when the weights move and the remembered rows stay."""
    model = make_model(torch.float64, n_layers=1)
    x, phases = noise(40, dtype=torch.float64), torch.tensor([1, 2])
    with torch.no_grad():
        _, _, state = model.forward_visits(x[:, :36], model.init_visits(2, n_phases=2), phases)
    weight = model.backbone.layers[0].attention.key_value.weight

    def loss():
        return model.forward_visits(x[:, 36:], state, phases)[0].square().sum()

    (gradient,) = torch.autograd.grad(loss(), [weight])
    step = 1e-5
    for i, j in ((0, 0), (3, 5), (8, 1), (15, 7)):  # rows 0–7 are keys, 8–15 values
        with torch.no_grad():
            weight[i, j] += step
            above = loss()
            weight[i, j] -= 2 * step
            below = loss()
            weight[i, j] += step
        # Central differences: an error of step² plus 1e-16 / step.
        assert float((above - below) / (2 * step)) == pytest.approx(float(gradient[i, j]), rel=1e-5, abs=1e-7)
    empty = model.init_visits(2, n_phases=2)
    z, _, _ = model.forward_visits(x[:, 36:], empty, phases)
    (alone,) = torch.autograd.grad(z.square().sum(), [weight])
    # One visible key has weight 1 whatever it is: without memory W_k gets no gradient.
    assert alone[:8].abs().max() < 1e-12
    assert gradient[:8].abs().max() > 1e-6


def test_every_weight_gets_a_gradient():
    model = make_model()
    x = noise(80)
    z, _, _ = model.forward_visits(x, model.init_visits(2, n_phases=1), torch.tensor([1]))
    z.square().mean().backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert missing == []


# ------------------------------------------------------------------------------------------------------- counters, wrap


def test_a_stream_about_to_wrap_gives_the_same_outputs():
    model, x = make_model(), noise(90, 2)
    _, state = run(model, x[:, :37])
    n_slots = model.memory.n_slots
    turn = int(n_slots - 1 - state["count"][0, 1])
    turned = {
        **{name: torch.roll(t, turn, dims=2) if is_memory(name) else t for name, t in state.items()},
        "count": torch.stack([state["count"][:, 0], torch.full((2,), n_slots - 1, dtype=torch.int32)], dim=1),
    }
    for chunks in (1, 5, 53):
        y, _ = run(model, x[:, 37:], chunks, state)
        assert same_bits(run(model, x[:, 37:], chunks, turned)[0], y)


def test_counters_stay_within_the_ring_over_a_long_run():
    model = make_model(d_model=2, n_heads=1, n_layers=1)
    _, state = run(model, noise(20_000, 1), 2000)
    assert state["count"].dtype == torch.int32
    assert state["count"].tolist() == [[24, 20_000 % 24]]


@pytest.mark.parametrize("filler", [math.nan, 1e6])
def test_unfilled_slots_never_reach_an_output(filler):
    model, x = make_model(), noise(60)
    dirty = {name: torch.full_like(t, filler) if is_memory(name) else t for name, t in model.init_state(2).items()}
    assert same_bits(run(model, x, 7, dirty)[0], run(model, x, 7)[0])


# ---------------------------------------------------------------------------------------- T6 equivariance, T8, T10, T11


@pytest.mark.parametrize(("a", "b"), [(1.0, 0.0), (3700.0, -2e4), (1e-3, 5e-2), (1e6, 1e6), (0.7, 60.0)])
def test_the_running_scaler_makes_forecasts_follow_a_change_of_units(a, b):
    model, x = make_model(), with_gaps(noise(500))
    y, _ = run(model, x, 128)
    moved, _ = run(model, a * x + b, 128)
    # Float32 rounds a·x + b: up to b / a · 6e-8 of a deviation.
    assert distance((moved.double() - b) / a, y) <= 1e-4


def test_the_same_seed_gives_the_same_weights_and_forecasts():
    found = []
    for _ in range(3):
        torch.manual_seed(7)
        model = TXLModel(ModelConfig(**SIZES)).eval()
        found.append((model.state_dict(), run(model, noise(40))[0]))
    for weights, y in found[1:]:
        assert all(torch.equal(weights[name], found[0][0][name]) for name in weights)
        assert same_bits(y, found[0][1])


def test_a_call_leaves_rows_state_flags_and_weights_untouched():
    model, x = make_model(), with_gaps(noise(40))
    _, state = run(model, x)
    flags = torch.tensor([[1], [0]])
    parts = {**state, **model.state_dict(), "x": x, "flags": flags}
    before = {name: tensor.clone() for name, tensor in parts.items()}
    run(model, x, state=state, starts={0: flags})
    assert all(same_bits(parts[name], before[name]) for name in before)


def test_a_deep_copy_is_the_same_model_and_lives_alone():
    model, x = make_model(), noise(40)
    other = copy.deepcopy(model)
    y, _ = run(model, x)
    assert same_bits(run(other, x)[0], y)
    with torch.no_grad():
        other.embedding.linear.weight.mul_(2)
    assert same_bits(run(model, x)[0], y)


def to_bytes(model, state):
    file = io.BytesIO()
    np.savez(file, **to_arrays({name: tensor.numpy() for name, tensor in state.items()}))
    return file.getvalue()


def from_bytes(model, blob):
    with np.load(io.BytesIO(blob)) as arrays:
        state = from_arrays(dict(arrays), model.state_specs())
    return {name: torch.from_numpy(array) for name, array in state.items()}


def test_a_stream_saved_and_restored_at_any_point_goes_on_bit_equal():
    model, x = make_model(), with_gaps(noise(600))
    rng = np.random.default_rng(23)
    chunks = rng.integers(1, 10, size=100).tolist()
    points = [0, *np.cumsum(chunks).tolist()]
    state = model.init_state(2)
    n_next = 0
    for point, n_next in zip(points, [*chunks, 12], strict=True):
        part = x[:, point : point + n_next]
        y, after = run(model, part, state=state)
        resumed, resumed_after = run(model, part, state=from_bytes(model, to_bytes(model, state)))
        assert same_bits(resumed, y), f"seed 23, row {point}"
        assert all(torch.equal(resumed_after[name], after[name]) for name in after), f"seed 23, row {point}"
        state = after


@pytest.mark.parametrize("row", [0, 5, 20])
def test_a_stream_restored_once_stays_bit_equal_to_its_end(row):
    model, x = make_model(), noise(150)
    _, state = run(model, x[:, :row]) if row else (None, model.init_state(2))
    y, _ = run(model, x[:, row:], 10, state)
    assert same_bits(run(model, x[:, row:], 10, from_bytes(model, to_bytes(model, state)))[0], y)


# ----------------------------------------------------------------------------------------------------- specs and errors


def test_state_specs_describe_the_state():
    model = make_model(n_channels=2)
    state = model.init_state(3)
    assert [spec.name for spec in model.state_specs()] == [
        *("keys_0", "values_0", "keys_1", "values_1"),
        *("count", "norm", "rows"),
    ]
    for spec in model.state_specs():
        assert state[spec.name].shape == (3, *spec.shape)
        assert str(state[spec.name].dtype) == f"torch.{spec.dtype}"
        assert not state[spec.name].any()
    assert model.state_nbytes() == sum(tensor[0].nbytes for tensor in state.values())
    _, after = run(model, noise(9, 3, 2))
    assert {name: (t.shape, t.dtype) for name, t in after.items()} == {n: (t.shape, t.dtype) for n, t in state.items()}
    assert list(after) == list(state)


@pytest.mark.parametrize("shape", [(2, 9), (2, 9, 2), (2, 0, 1)])
def test_rows_of_another_shape_are_refused(shape):
    model = make_model()
    with pytest.raises(ShapeError, match=r"x must have shape \(lanes, rows ≥ 1, n_channels=1\), got \(2, "):
        model(torch.zeros(shape), model.init_state(2))


def test_training_segments_must_be_whole_strides():
    model = make_model()
    with pytest.raises(ShapeError, match=r"multiple of stride=4 rows, got 9"):
        model.forward_visits(torch.zeros(2, 9, 1), model.init_visits(2, n_phases=1), torch.tensor([0]))


@pytest.mark.parametrize("form", ["keys and values", "hidden rows"])
def test_memory_stays_float32_while_compute_is_bfloat16(form):
    model, x = make_model(), noise(80)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        if form == "keys and values":
            y, state = model(x, model.init_state(2))
            plain, _ = run(model, x)
        else:
            z, front, state = model.forward_visits(x, model.init_visits(2, n_phases=1), torch.tensor([3]))
            y = front.scale.restore(z)
    if form == "hidden rows":
        plain, _ = run_visits(model, x, [3], 80)
    assert {name: tensor.dtype for name, tensor in state.items()} == {
        **dict.fromkeys(state, torch.float32),
        "count": torch.int32,
    }
    assert distance(y.float(), plain) < 0.05  # bfloat16 keeps two to three digits


def test_dropout_acts_in_training_only():
    model, x = make_model(dropout=0.5), noise(40)
    first, _ = run(model, x)
    assert same_bits(run(model, x)[0], first)
    model.train()
    assert not same_bits(run(model, x)[0], first)


def test_layers_do_not_share_their_biases():
    backbone = Backbone(ModelConfig(**SIZES))
    names = [name for name, _ in backbone.named_parameters() if name.endswith(("attention.u", "attention.v"))]
    assert len(names) == 4
