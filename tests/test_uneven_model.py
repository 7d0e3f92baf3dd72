"""The model that knows real time: what its state promises, and that time is what it reads."""

import numpy as np
import pytest
import torch

from txl_ts.config import ModelConfig
from txl_ts.embeddings import Beside
from txl_ts.embeddings.clock import AskedTimes, Clock
from txl_ts.errors import ParameterError
from txl_ts.model import TXLModel

SIZES = {
    "h": 3,
    "quantiles": (0.1, 0.5, 0.9),
    "patch_len": 3,
    "stride": 1,
    "mem_len": 5,
    "lookback": 4,
    "half_life": 8.0,
    "d_model": 8,
    "n_layers": 2,
    "n_heads": 2,
    "d_ff": 10,
    "hist_kinds": (0,),
    "futr_kinds": (0, -2),
}
N_LANES, N_ROWS = 3, 60
SPLITS = ([1] * N_ROWS, [7, 20, 2, 31], [1, 59], [58, 1, 1])


def make_model(*, dtype=torch.float64, **sizes):
    torch.manual_seed(0)
    model = TXLModel(ModelConfig(**SIZES | sizes)).to(dtype).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # a head of zeros would hide everything
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(dtype) * 0.3)
    return model


@pytest.fixture(scope="module")
def model():
    return make_model()


def make_rows(*, seed=2, n_rows=N_ROWS, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, hist = random(N_LANES, n_rows, 1), random(N_LANES, n_rows, 1)
    x[0, 5:9], hist[1, 7:20], x[2, :4] = torch.nan, torch.nan, torch.nan
    gap = random(N_LANES, n_rows + SIZES["h"]).abs().pow(3) + 1e-3
    gap[0, 30] = 3e4  # longer than attention counts
    futr = torch.stack([random(N_LANES, n_rows + SIZES["h"]), gap], dim=-1)
    return x.to(dtype), Beside(hist.to(dtype), futr.to(dtype), torch.zeros(N_LANES, 0, dtype=dtype))


def part(beside, first, stop, *, lanes=slice(None)):
    hist, futr = beside.hist[lanes, first:stop], beside.futr[lanes, first : stop + SIZES["h"]]
    return Beside(hist, futr, beside.static[lanes])


def walk(model, x, beside, split=(N_ROWS,), state=None, start=None):
    state = model.init_state(len(x)) if state is None else state
    out, row = [], 0
    with torch.no_grad():
        for n in split:
            y, state = model(x[:, row : row + n], state, start, beside=part(beside, row, row + n))
            out.append(y)
            row += n
    return torch.cat(out, dim=1), state


def apart(a, b):
    assert (a.isnan() == b.isnan()).all()
    return float((a - b).nan_to_num().abs().max())


@pytest.mark.parametrize("split", SPLITS, ids=["rows", "uneven", "one and rest", "rest and ones"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=["f64", "f32"])
def test_any_split_into_calls_gives_the_same_forecasts_and_state(split, dtype, tolerance):
    model, (x, beside) = make_model(dtype=dtype), make_rows(dtype=dtype)
    (whole, after), (cut, moved) = walk(model, x, beside), walk(model, x, beside, split)
    scale = float(whole.nan_to_num().abs().max())
    assert apart(cut, whole) < tolerance * max(scale, 1)
    # Gaps are kept, not times: they are the same to the last bit, however the stream was cut.
    assert torch.equal(moved["gaps"], after["gaps"])
    assert torch.equal(moved["count"], after["count"])


def test_visits_in_training_give_what_inference_gives(model):
    x, beside = make_rows()
    whole, _ = walk(model, x, beside)
    with torch.no_grad():
        z, front, _ = model.forward_visits(
            x, model.init_visits(N_LANES, n_phases=1), torch.zeros(1, dtype=torch.long), beside=beside
        )
    assert apart(front.scale.restore(z), whole) < 1e-12


def test_the_last_row_of_the_state_forecasts_as_the_call_did(model):
    x, beside = make_rows()
    whole, state = walk(model, x, beside)
    with torch.no_grad():
        asked = model.forecast_from(state["last"], beside.futr[:, N_ROWS:])
    assert apart(asked, whole[:, -1]) < 1e-12


def test_a_forecast_is_for_a_time_however_many_are_asked_before_it(model):
    """The same time asked alone, third of three, or last of nine: one answer."""
    x, beside = make_rows()
    _, state = walk(model, x, beside)
    column = beside.futr[:, N_ROWS, 0]
    times = torch.tensor([0.5, 2.0, 2.5, 3.0, 5.0, 5.5, 6.0, 7.0, 7.25], dtype=torch.float64)

    def ask(of):
        gap = torch.diff(of, prepend=torch.zeros(1, dtype=torch.float64)).expand(N_LANES, -1)
        with torch.no_grad():
            return model.forecast_from(state["last"], torch.stack([column[:, None].expand_as(gap), gap], dim=-1))

    every = ask(times)
    assert apart(ask(times[[8]])[:, 0], every[:, 8]) < 1e-12
    assert apart(ask(times[[1, 4, 8]])[:, 1], every[:, 4]) < 1e-12
    assert apart(every[:, 0], every[:, 8]) > 1e-3


def test_the_future_changes_nothing_before_it_but_the_rows_that_are_asked(model):
    x, beside = make_rows()
    whole, _ = walk(model, x, beside)
    later = part(beside, 0, N_ROWS)
    later.futr.clone()
    futr, hist, values = beside.futr.clone(), beside.hist.clone(), x.clone()
    futr[:, 40:], hist[:, 40:], values[:, 40:] = 7.0, 7.0, 7.0
    changed, _ = walk(model, values, Beside(hist, futr, beside.static))
    h = SIZES["h"]
    assert apart(changed[:, : 40 - h], whole[:, : 40 - h]) == 0
    assert apart(changed[:, 39], whole[:, 39]) > 1e-3  # its asked times moved


@pytest.mark.parametrize("column", ["gap", "memory"])
def test_time_is_read(model, column):
    """Another gap before one row changes its forecast, and through the memory the forecasts after it."""
    x, beside = make_rows()
    whole, _ = walk(model, x, beside)
    futr = beside.futr.clone()
    futr[:, 20, -1] += 3
    changed, _ = walk(model, x, Beside(beside.hist, futr, beside.static))
    row = 20 if column == "gap" else 20 + SIZES["patch_len"] + 1
    assert apart(changed[:, row], whole[:, row]) > 1e-4


def test_lanes_do_not_know_each_other_and_a_late_lane_is_that_lane_alone(model):
    x, beside = make_rows()
    whole, _ = walk(model, x, beside)
    alone, _ = walk(model, x[1:2], part(beside, 0, N_ROWS, lanes=slice(1, 2)))
    assert apart(alone, whole[1:2]) < 1e-12
    order = torch.tensor([2, 0, 1])
    turned, _ = walk(model, x[order], part(beside, 0, N_ROWS, lanes=order))
    assert apart(turned, whole[order]) < 1e-14  # a lane's place in memory decides the order of its sums


def test_a_reset_lane_equals_a_fresh_one_and_the_others_stay(model):
    x, beside = make_rows()
    _, state = walk(model, x, beside)
    start = torch.tensor([[0.0], [1.0], [0.0]], dtype=torch.float64)
    again, _ = walk(model, x, beside, state=state, start=start)
    going_on, _ = walk(model, x, beside, state=state)
    fresh, _ = walk(model, x, beside)
    assert apart(again[1], fresh[1]) == 0
    assert apart(again[[0, 2]], going_on[[0, 2]]) == 0


def test_a_saved_state_goes_on_bit_for_bit(model):
    x, beside = make_rows()
    _, state = walk(model, x[:, :30], part(beside, 0, 30), (30,))
    kept = {name: torch.from_numpy(tensor.numpy().copy()) for name, tensor in state.items()}
    after = part(beside, 30, N_ROWS)
    (first, _), (second, _) = (walk(model, x[:, 30:], after, (30,), state=s) for s in (state, kept))
    assert torch.equal(first.nan_to_num(), second.nan_to_num())


def test_inputs_and_state_stay_as_they_were(model):
    x, beside = make_rows()
    state = walk(model, x, beside)[1]
    before = {name: tensor.clone() for name, tensor in state.items()}
    futr = beside.futr.clone()
    walk(model, x, beside, state=state)
    assert all(torch.equal(state[name], tensor) for name, tensor in before.items())
    assert torch.equal(beside.futr, futr)


def test_what_lies_in_unfilled_slots_never_reaches_an_output(model):
    x, beside = make_rows()
    clean, _ = walk(model, x, beside)
    dirty = {
        name: torch.full_like(tensor, torch.nan) if name.startswith(("keys_", "values_")) else tensor
        for name, tensor in model.init_state(N_LANES).items()
    }
    assert apart(walk(model, x, beside, state=dirty)[0], clean) == 0


def test_even_steps_are_taken_where_no_time_is_told(model):
    x, beside = make_rows()
    futr = beside.futr.clone()
    futr[..., -1] = 1
    told, _ = walk(model, x, Beside(beside.hist, futr, beside.static))
    futr[..., -1] = torch.nan
    untold, _ = walk(model, x, Beside(beside.hist, futr, beside.static))
    assert apart(told, untold) == 0


def test_a_stream_may_run_for_a_million_rows_without_drift():
    """The state is bounded, and a window seen after 1e6 rows of other times answers as it does at the start."""
    model = make_model(mem_len=2, half_life=2.0, hist_kinds=(), futr_kinds=(-2,), scaler="standard", lookback=1)
    x, beside = make_rows()
    x, bare = x.nan_to_num(), Beside(beside.hist[..., :0], beside.futr[..., 1:], beside.static)
    short, _ = walk(model, x, bare)
    state = model.init_state(N_LANES)
    # The clock alone walks the million: its state is all that time leaves behind.
    clock = {name: state[name] for name in ("gaps", "ages")}
    gap = torch.rand(N_LANES, 10_000, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 40
    present = torch.ones(N_LANES, 10_000, 1, dtype=torch.bool)
    for _ in range(100):
        _, clock = model.clock(gap, present, clock)
    long, _ = walk(model, x, bare, state=state | clock)
    reach = model.config.reach + 1
    assert apart(long[:, reach:], short[:, reach:]) < 1e-12
    assert clock["gaps"].shape == state["gaps"].shape


# ------------------------------------------------------------------------------------------------------------ the clock


def test_ages_are_counted_by_a_loop_over_rows():
    clock = Clock(mem_len=3, patch_len=2, n_columns=2, d_model=4).double()
    generator = torch.Generator().manual_seed(0)
    gap = torch.rand(2, 40, generator=generator, dtype=torch.float64) * 5
    present = torch.rand(2, 40, 2, generator=generator) < 0.3
    state = {"gaps": torch.zeros(2, 3, dtype=torch.float64), "ages": torch.tensor([[1.5, 0.0], [0.25, 9.0]]).double()}
    times, moved = clock(gap, present, state)
    age, expected = state["ages"].numpy().copy(), np.empty((2, 40, 2))
    for t in range(40):
        age = age + gap[:, t, None].numpy()
        expected[:, t] = age
        age = np.where(present[:, t].numpy(), 0, age)
    np.testing.assert_allclose(times.since.numpy(), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(moved["ages"].numpy(), age, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(moved["gaps"].numpy(), gap[:, -3:].numpy())


def test_what_is_left_of_the_last_value_fades_with_time():
    asked = AskedTimes()
    ahead = torch.tensor([[[0.1, 1.0, 10.0, 1e9]]])
    features = asked(ahead, torch.zeros(1, 1), torch.full((1, 1), 2.0))[0, 0]
    assert features.shape == (4, asked.n_features)
    assert (features[:-1, :5] > features[1:, :5] - 1e-9).all()
    assert features[-1, :5].abs().max() == 0
    assert features.isfinite().all()


# ----------------------------------------------------------------------------------------------------------- the config


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"stride": 2}, "stride=2 does not go with uneven time"),
        ({"n_channels": 2}, "n_channels=2 does not go with uneven time"),
        ({"lookback": 0}, "lookback=0 does not go with uneven time"),
        ({"futr_kinds": (-2, 0)}, "once and last"),
        ({"futr_kinds": (-3,)}, "futr_kinds=-3"),
    ],
)
def test_sizes_that_do_not_go_with_uneven_time_are_refused(sizes, message):
    with pytest.raises(ParameterError, match=message):
        ModelConfig(**SIZES | sizes)


def test_uneven_time_is_in_the_json_and_even_time_leaves_no_trace():
    config = ModelConfig(**SIZES)
    assert config.is_uneven
    assert ModelConfig.from_json(config.to_json()) == config
    even = ModelConfig(**SIZES | {"hist_kinds": (), "futr_kinds": ()})
    assert not even.is_uneven
    assert "futr_kinds" not in even.to_json()


# ------------------------------------------------------------------------------------------------------ the closed form


def equations(y, gap, *, first, h, lookback):
    """Inputs, features of the asked time and targets, above the last value, row by row and time by time."""
    inputs, features, targets = [], [], []
    for t in range(first, len(y) - 1):
        seen = [k for k in range(t + 1) if np.isfinite(y[k])]
        if not seen:
            continue
        past = []
        for k in range(t - lookback + 1, t + 1):
            there = [y[j] for j in range(max(k, -1) + 1) if np.isfinite(y[j])]
            past.append(there[-1] if there else 0.0)
        for step in range(1, h + 1):
            if t + step >= len(y) or not np.isfinite(y[t + step]):
                continue
            ahead = sum(gap[t + 1 : t + step + 1])
            old = ahead + sum(gap[seen[-1] + 1 : t + 1])
            left = [np.exp(-old / scale) for scale in (1, 4, 16, 64, 256)]
            features.append([*(value * past[-1] for value in left), *left, np.log1p(ahead), np.log1p(old)])
            inputs.append(np.array(past) - past[-1])
            targets.append(y[t + step] - past[-1])
    return np.array(inputs), np.array(features), np.array(targets)


def test_the_linear_path_is_one_ridge_over_all_asked_times():
    from txl_ts.training import BesideRows, LinearFit, Origins, Pieces, fit_linear_path

    sizes = SIZES | {"hist_kinds": (), "futr_kinds": (-2,), "scaler": "standard"}
    torch.manual_seed(0)
    model = TXLModel(ModelConfig(**sizes))
    rng, penalty = np.random.default_rng(0), 1e-2
    n, warm = 120, 5
    gap = rng.exponential(2, n).astype(np.float32) + 0.1
    y = np.zeros(n)
    for t in range(1, n):
        y[t] = y[t - 1] * np.exp(-gap[t] / 6) + rng.normal()
    y = y.astype(np.float32)
    y[rng.random(n) < 0.1] = np.nan
    beside = BesideRows(np.zeros((n, 0), np.float32), gap[:, None], np.zeros((1, 0), np.float32))
    pieces = Pieces(y, np.array([0]), np.array([n]), np.ones(1, np.float32), beside=beside)
    rows = Origins(pieces, np.array([warm]))
    fit_linear_path(model, rows, None, seed=0, known=LinearFit(penalty, 0.0, torch.ones(3), True))

    inputs, features, targets = equations(y.astype(np.float64), gap, first=warm, h=3, lookback=4)
    k = inputs.shape[1]
    a = np.column_stack([inputs, np.ones(len(inputs)), features])
    roots = np.sqrt(penalty * np.square(a).sum(axis=0))
    roots[:k] = np.sqrt(penalty * np.square(inputs).sum(axis=0).mean())
    roots[k] = 0  # the level is free
    solution = np.linalg.lstsq(
        np.vstack([a, np.diag(roots)]), np.concatenate([targets, np.zeros(len(roots))]), rcond=None
    )[0]
    weight = solution[:k].copy()
    weight[-1] += 1 - weight.sum()
    # The model sums in float32 and solves normal equations.
    np.testing.assert_allclose(model.linear_path.weight.detach().numpy()[0], weight, atol=2e-3)
    said = features @ model.linear_path.known.detach().numpy()[0] + model.linear_path.bias.item()
    np.testing.assert_allclose(said, features @ solution[k + 1 :] + solution[k], atol=5e-3)
