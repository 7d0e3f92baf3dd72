"""The promises, on the model that the demo trains: glucose with its gaps, float32. Slow: it is fitted first.

Run it with ``pytest -m slow tests/test_demo_model.py -s`` to see the figures.
"""

import numpy as np
import pytest
import torch

from txl_ts.state import from_arrays, select, to_arrays

pytestmark = pytest.mark.slow
ROWS = 10_000
FLOAT32_MAX = float(np.finfo(np.float32).max)


@pytest.fixture(scope="module")
def demo():
    pytest.importorskip("bokeh_sampledata", reason="the demo's data are not installed")
    from txl_ts.cli.demo import PARAMS
    from txl_ts.cli.streams import load_streams
    from txl_ts.cli.trial import fit, read_grid

    stream = load_streams()[0]
    model = fit(stream, int(len(stream.frame) * 0.8), params=PARAMS)
    values = read_grid(stream, max_gap=model.config_.reach).values.astype(np.float32)
    return model._model, torch.from_numpy(values[:ROWS])[None, :, None]


def run(model, x, chunks=(512,), state=None, start=None):
    """Forecasts and last state; the chunks are repeated until the rows are used up."""
    state = model.init_state(len(x)) if state is None else state
    found, row, turn = [], 0, 0
    with torch.inference_mode():
        while row < x.shape[1]:
            n = min(chunks[turn % len(chunks)], x.shape[1] - row)
            y, state = model(x[:, row : row + n], state, start if row == 0 else None)
            found.append(y)
            row, turn = row + n, turn + 1
    return torch.cat(found, dim=1), state


def distance(a, b):
    """Largest difference over the largest size; NaN must be at the same places."""
    a, b = a.double(), b.double()
    assert torch.equal(a.isnan(), b.isnan())
    return float((a - b).nan_to_num().abs().max() / b.nan_to_num().abs().max().clamp(min=1e-30))


def lanes_of(x, n, n_rows):
    """Cut ``n`` different lanes out of one stream."""
    starts = np.linspace(0, x.shape[1] - n_rows, n).astype(int)
    return torch.cat([x[:, a : a + n_rows] for a in starts])


def test_t1_no_future_value_changes_an_earlier_forecast(demo):
    model, x = demo
    x = x[:, :600]
    whole, _ = run(model, x, chunks=(600,))
    rng = np.random.default_rng(1)
    for k in rng.integers(1, 599, 50):
        for value in (7.0, np.nan, np.inf, FLOAT32_MAX):
            changed = x.clone()
            changed[:, k:] = value
            found, _ = run(model, changed, chunks=(600,))
            assert torch.equal(found[:, :k].nan_to_num(), whole[:, :k].nan_to_num())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_t2_any_partition_of_ten_thousand_rows_gives_the_same_forecasts_and_state(demo, dtype):
    model, x = demo
    model, x = (model.double(), x.double()) if dtype == torch.float64 else (model, x)
    try:
        whole, last = run(model, x)
        worst = 0.0
        for seed in range(4):
            chunks = np.random.default_rng(seed).integers(1, 513, 400).tolist()
            found, state = run(model, x, chunks=chunks)
            worst = max(worst, distance(found, whole), *(distance(state[name], last[name]) for name in last))
        found, state = run(model, x[:, :1500], chunks=(1,))
        worst = max(worst, distance(found, whole[:, :1500]))
    finally:
        model.float()
    print(f"T2, {dtype}: e = {worst:.1e} over {ROWS:,} rows")
    assert worst <= (1e-5 if dtype == torch.float32 else 1e-12)


def test_t3_a_lane_gives_the_same_alone_and_beside_others(demo):
    model, x = demo
    x = lanes_of(x, 257, 400)
    whole, _ = run(model, x, chunks=(100,))
    worst = max(distance(run(model, x[:n], chunks=(100,))[0], whole[:n]) for n in (1, 2, 3, 64))
    print(f"T3: e = {worst:.1e} for 1, 2, 3 and 64 of 257 lanes")
    assert worst <= 1e-5


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30, FLOAT32_MAX])
def test_t4_a_faulty_lane_leaves_the_others_bit_for_bit(demo, value):
    model, x = demo
    x = lanes_of(x, 8, 300)
    whole, last = run(model, x, chunks=(60,))
    faulty = x.clone()
    faulty[3, 100:200] = value
    found, state = run(model, faulty, chunks=(60,))
    others = [i for i in range(8) if i != 3]
    assert torch.equal(found[others].nan_to_num(), whole[others].nan_to_num())
    assert all(torch.equal(state[name][others], last[name][others]) for name in last)
    assert all(array.isfinite().all() for array in state.values())


def test_t4_a_lane_that_is_reset_in_mid_stream_equals_a_fresh_one_and_the_others_stay(demo):
    model, x = demo
    x = lanes_of(x, 5, 300)
    _, state = run(model, x[:, :150], chunks=(150,))
    start = torch.tensor([[0], [0], [1], [0], [0]], dtype=torch.int32)
    reset, _ = run(model, x[:, 150:], chunks=(150,), state=state, start=start)
    plain, _ = run(model, x[:, 150:], chunks=(150,), state=state)
    fresh, _ = run(model, x[:, 150:], chunks=(150,))
    assert torch.equal(reset[2].nan_to_num(), fresh[2].nan_to_num())
    others = [0, 1, 3, 4]
    assert torch.equal(reset[others].nan_to_num(), plain[others].nan_to_num())


def test_t10_a_stream_that_is_saved_and_resumed_anywhere_goes_on_bit_for_bit(demo):
    model, x = demo
    x = x[:, :800]
    whole, _ = run(model, x, chunks=(1,))
    rows = {0, model.config.mem_len, *np.random.default_rng(2).integers(1, 799, 100).tolist()}
    state = model.init_state(1)
    specs = model.state_specs()
    with torch.inference_mode():
        for row in range(800):
            if row in rows:
                kept = to_arrays(select({name: t.numpy() for name, t in state.items()}, np.array([0])))
                state = {name: torch.from_numpy(a) for name, a in from_arrays(kept, specs).items()}
            y, state = model(x[:, row : row + 1], state)
            assert torch.equal(y.nan_to_num(), whole[:, row : row + 1].nan_to_num())
