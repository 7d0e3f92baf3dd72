"""A session that runs for ever: flat in time and memory, the model's numbers at the end. Minutes: ``-m soak``."""

import gc
import os
import time

import numpy as np
import pytest
import torch

from txl_ts.runtime import StreamSession
from txl_ts.runtime.plan import Place

pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

N_ROWS = int(os.environ.get("TXL_TS_SOAK_ROWS", "1000000"))


def resident_bytes():
    """Bytes of this process in memory; Linux only."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        pytest.skip("no /proc/self/statm: resident memory is not known here")


def open_files():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.soak
def test_a_million_rows_are_flat_in_time_and_memory_and_end_with_the_models_numbers(graph, fitted, capsys):
    """Rows by ``step`` and by ``step_many``, in turn; stamps end near 2262, the ring's counters wrap all the time."""
    model, session = fitted._model, StreamSession(graph)
    rng, hour = np.random.default_rng(0), 3600 * 10**9
    ring = session._fleet.manner.ring
    session.step({"a": 0.0})
    lane, fleet = session._fleet.lanes["a"], session._fleet
    # As if 2^40 rows had been seen, the counter of the ring one before its wrap.
    state = [part.copy() for part in fleet.store.gather(np.array([lane]))]
    state[ring.count][0] = ring.n_slots, ring.n_slots - 1
    fleet.store.scatter(np.array([lane]), state)
    begin = (2**62 // hour - N_ROWS - 1000) * hour
    fleet.table.put(lane, Place(2**40, begin - 2**20 * hour, begin))
    reference = {
        spec.name: torch.from_numpy(part.copy()) for spec, part in zip(session.contract.specs, state, strict=True)
    }
    blocks, n_done, memory, seconds = 20, 0, [], []
    for block in range(blocks):
        x = rng.normal(size=N_ROWS // blocks).cumsum().astype(np.float32) / 30
        x[rng.random(len(x)) < 0.01] = np.nan
        start = time.thread_time()
        for t, value in enumerate(x.tolist()):
            stamp = begin + (n_done + t + 1) * hour
            if block % 2:
                y = session.step_many(["a"], [value], stamp).quantiles[0]
            else:
                y = session.step({"a": {"time": stamp, "values": {"y": value}}})["a"].quantiles
        seconds.append((time.thread_time() - start) / len(x))
        n_done += len(x)
        with torch.inference_mode():
            for piece in torch.from_numpy(x)[None, :, None].split(5000, dim=1):
                wanted, reference = model(piece, reference)
        gc.collect()
        memory.append(resident_bytes())
    error = np.abs(y - wanted.numpy()[0, -1, :, 0]).max() / np.abs(wanted.numpy()[0, -1]).max()
    slope = np.polyfit(np.arange(blocks // 2) * N_ROWS / blocks, memory[blocks // 2 :], 1)[0]  # bytes per row
    with capsys.disabled():
        print(  # noqa: T201 - the figures are what a soak is for
            f"\n{n_done} rows: {1e6 * seconds[1]:.0f} µs per row in the second block, {1e6 * seconds[-1]:.0f} in the "
            f"last; memory {memory[0] / 2**20:.1f} MiB then {memory[-1] / 2**20:.1f}, slope {slope:.3f} bytes per row; "
            f"error {error:.1e}; state {session.state_nbytes} bytes at start and end"
        )
    assert slope <= 1  # MB per million rows
    assert np.median(seconds[-4:]) < 1.3 * np.median(seconds[1:5])
    assert error < 1e-5
    assert session.metrics()["rows"] == n_done + 1


@pytest.mark.soak
def test_lanes_that_are_born_and_dropped_leave_nothing_behind(graph):
    session, x = StreamSession(graph), np.random.default_rng(0).normal(size=(100, 10))
    memory, files = [], open_files()
    for generation in range(40):
        names = [f"{generation}-{i}" for i in range(100)]
        for t in range(10):
            session.step_many(names, x[:, t], t * 3600 * 10**9)
        for name in names:
            session.close(name)
        assert session.streams == ()
        gc.collect()
        memory.append(resident_bytes())
    assert session._fleet.store.n_lanes <= 128
    assert memory[-1] - memory[10] < 1 << 20  # 3,000 lanes later
    assert open_files() == files
