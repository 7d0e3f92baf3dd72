"""One pass over many series: every row once, lanes that do not know each other, calls of bounded size."""

import numpy as np
import pytest
import torch

from txl_ts.config import ModelConfig
from txl_ts.model import TXLModel
from txl_ts.state import init_state
from txl_ts.walk import Pace, walk

H, Q = 2, 3
FIXED = Pace(fixed_grid=True)


@pytest.fixture(scope="module")
def model():
    sizes = {"patch_len": 4, "stride": 3, "mem_len": 5, "lookback": 7, "half_life": 24.0, "h": H}
    width = {"d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 10, "quantiles": (0.1, 0.5, 0.8)}
    model = TXLModel(ModelConfig(**sizes, **width))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # every weight counts: what starts at zero is drawn too
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
    return model.eval()


def runs_of(lengths, seed=0):
    rng = np.random.default_rng(seed)
    runs = [rng.normal(3 * i, 1 + i % 3, n).astype(np.float32) for i, n in enumerate(lengths)]
    for run in runs:
        run[rng.random(len(run)) < 0.1] = np.nan
    return runs


def state_of(model, n_lanes, seed=5):
    """Lanes that have seen other numbers of rows."""
    state = init_state(model.state_specs(), n_lanes=n_lanes)
    for _ in walk(model, runs_of([(7 * i) % 23 for i in range(n_lanes)], seed), state):
        pass
    return state


def alone(model, run, state=None, lane=0):
    """The slow way: one lane, one call of the model."""
    specs = model.state_specs()
    past = init_state(specs, n_lanes=1) if state is None else {n: a[lane : lane + 1].copy() for n, a in state.items()}
    if not len(run):
        return np.zeros((0, H, 1, Q), np.float32), past
    with torch.inference_mode():
        y, new = model(torch.from_numpy(run)[None, :, None], {n: torch.from_numpy(a) for n, a in past.items()})
    return y[0].numpy(), {n: t.numpy() for n, t in new.items()}


def gather(stretches, lengths):
    """All rows by lane; a row that is given twice, or not at all, is seen."""
    out = [np.full((n, H, 1, Q), np.inf, np.float32) for n in lengths]
    for stretch in stretches:
        assert stretch.y.shape[0] == len(stretch.lanes)
        for i, lane in enumerate(stretch.lanes):
            part = out[lane][stretch.row : stretch.row + stretch.y.shape[1]]
            assert part.shape[0] == stretch.y.shape[1], "rows beyond the end of the run"
            assert np.isposinf(part).all(), "a row was given twice"
            part[...] = stretch.y[i]
    return out


def assert_close(a, b):
    """RELIABILITY.md: the largest difference over the largest size is at most 1e-5."""
    assert (np.isnan(a) == np.isnan(b)).all()
    if np.isfinite(b).any():
        assert np.nanmax(np.abs(a - b)) <= 1e-5 * np.nanmax(np.abs(b))


LENGTHS = (40, 1, 0, 63, 40, 17, 64, 2)


@pytest.mark.parametrize("fixed_grid", [False, True])
@pytest.mark.parametrize("lane_width", [1, 3, 64])
@pytest.mark.parametrize("kept", [False, True])
def test_every_row_of_every_run_is_forecast_once_as_if_it_were_alone(model, fixed_grid, lane_width, kept):
    runs = runs_of(LENGTHS)
    state = state_of(model, len(runs)) if kept else None
    before = {n: a.copy() for n, a in state.items()} if kept else None
    told = gather(walk(model, runs, state, pace=Pace(lane_width=lane_width, fixed_grid=fixed_grid)), LENGTHS)
    for lane, run in enumerate(runs):
        y, new = alone(model, run, before, lane)
        assert_close(told[lane], y)
        for name in new if kept else ():
            assert_close(state[name][lane : lane + 1].astype(np.float64), new[name].astype(np.float64))


def test_an_empty_run_leaves_its_lane_as_it_was_to_the_bit(model):
    state = state_of(model, 3)
    before = {n: a.copy() for n, a in state.items()}
    list(walk(model, runs_of((5, 0, 9)), state))
    for name, array in state.items():
        np.testing.assert_array_equal(array[1], before[name][1])
        assert name == "count" or (array[0] != before[name][0]).any()


def test_no_runs_and_empty_runs_give_nothing(model):
    assert list(walk(model, [], None)) == []
    assert list(walk(model, runs_of((0, 0)), None)) == []
    assert list(walk(model, runs_of((0, 0)), None, pace=FIXED)) == []


def test_runs_are_left_as_they_were(model):
    runs = runs_of(LENGTHS)
    before = [run.copy() for run in runs]
    list(walk(model, runs, None))
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(runs, before, strict=True))


@pytest.mark.parametrize("fixed_grid", [False, True])
def test_rows_from_wanted_on_are_given_and_the_state_does_not_depend_on_them(model, fixed_grid):
    lengths = (40, 20, 300, 90)
    wanted = np.array([39, 0, 280, 45])
    runs = runs_of(lengths)
    a, b = state_of(model, 4), state_of(model, 4)
    whole = gather(walk(model, runs, a, pace=Pace(fixed_grid=fixed_grid)), lengths)
    some = gather(walk(model, runs, b, wanted_from=wanted, pace=Pace(fixed_grid=fixed_grid)), lengths)
    for lane, first in enumerate(wanted):
        assert not np.isposinf(some[lane][first:]).any()
        assert_close(some[lane][first:], whole[lane][first:])
    for name in a:
        assert_close(b[name].astype(np.float64), a[name].astype(np.float64))


def test_rows_before_wanted_are_not_held(model):
    rows = sum(s.y.shape[1] * len(s.lanes) for s in walk(model, runs_of((9000,)), None, wanted_from=np.array([8990])))
    assert rows < 4096 + 10


def test_a_call_never_has_more_rows_than_the_budget(model, monkeypatch):
    """Memory is O(lanes × rows of a call), however long the runs are and however many."""
    shapes = []
    forward = TXLModel.forward

    def spy(self, x, *args, **kwargs):
        shapes.append(x.shape)
        return forward(self, x, *args, **kwargs)

    monkeypatch.setattr(TXLModel, "forward", spy)
    list(walk(model, runs_of((5000, 4999, *[90] * 130)), None))
    assert max(lanes * rows for lanes, rows, _ in shapes) <= 4096
    assert max(lanes for lanes, _, _ in shapes) == 64
    n_calls = len(shapes)
    shapes.clear()
    list(walk(model, runs_of([90] * 3), None, pace=FIXED))
    assert {lanes for lanes, _, _ in shapes} == {1}
    assert {rows for _, rows, _ in shapes} <= {64, 16, 4, 1}
    assert n_calls < 20  # a handful of calls, not one per row


def test_on_the_fixed_grid_a_lane_does_not_know_the_others_to_the_bit(model):
    """T3: 1, 2, 3, 64, 65 and 130 lanes, in any order."""
    lengths = [33 + i % 4 for i in range(130)]
    runs = runs_of(lengths)
    state = state_of(model, 130)
    together = {name: array.copy() for name, array in state.items()}
    told = gather(walk(model, runs, together, pace=FIXED), lengths)
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 64, 65):
        picked = rng.permutation(130)[:n]
        part = {name: array[picked].copy() for name, array in state.items()}
        few = gather(walk(model, [runs[i] for i in picked], part, pace=FIXED), [lengths[i] for i in picked])
        for lane, i in enumerate(picked):
            assert few[lane].tobytes() == told[i].tobytes(), n
        for name in part:
            assert part[name].tobytes() == together[name][picked].tobytes(), (n, name)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30, np.finfo(np.float32).max])
def test_absurd_values_in_one_lane_leave_the_others_to_the_bit(model, poison):
    """T4, at equal width and calls."""
    lengths = (40, 40, 40)
    runs, other = runs_of(lengths), runs_of(lengths)
    other[1][10:30:3] = poison
    a, b = (gather(walk(model, some, None), lengths) for some in (runs, other))
    for lane in (0, 2):
        assert a[lane].tobytes() == b[lane].tobytes()
    assert a[1][:10].tobytes() == b[1][:10].tobytes()  # T1: rows before it do not know


@pytest.mark.parametrize("fixed_grid", [False, True])
def test_memories_that_are_reset_every_so_many_rows_begin_there_and_the_normaliser_goes_on(model, fixed_grid):
    lengths = (40, 25, 7)
    runs = runs_of(lengths)
    told = gather(walk(model, runs, None, pace=Pace(fixed_grid=fixed_grid, reset_every=9)), lengths)
    for lane, run in enumerate(runs):
        state = {name: torch.from_numpy(a) for name, a in init_state(model.state_specs(), n_lanes=1).items()}
        parts = []
        for begin in range(0, len(run), 9):
            fresh = model.init_state(1)
            state = {name: tensor if name in ("norm", "rows") else fresh[name] for name, tensor in state.items()}
            with torch.inference_mode():
                y, state = model(torch.from_numpy(run[begin : begin + 9])[None, :, None], state)
            parts.append(y[0].numpy())
        assert_close(told[lane], np.concatenate(parts))


def test_walking_computes_no_gradients_and_draws_no_numbers(model):
    before = torch.get_rng_state()
    for stretch in walk(model, runs_of((20, 30)), None):
        assert isinstance(stretch.y, np.ndarray)
    assert torch.equal(torch.get_rng_state(), before)
