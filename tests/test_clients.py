"""Every client gives the numbers of the model, however its rows are cut, and keeps its lanes apart.

The clients know the file and its contract only: ONNX Runtime in Node, ONNX's reference evaluator, and our own sessions
of named streams (ONNX Runtime alone is compared in test_export.py). They walk the same 1,000 rows, with runs of NaN,
lanes that begin anew, and counters that saturate and wrap on the way. Errors are measured as in RELIABILITY.md.
"""

import functools
import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.test_export import (
    CLOSE,
    FINITE_FLOAT32,
    N_SLOTS,
    calls,
    distance,
    export_once,
    flags,
    fresh,
    run_file,
    run_model,
    walk,
)
from txl_ts.live import LiveSession
from txl_ts.runtime import StreamSession
from txl_ts.runtime.files import Saved, load_streams, save_streams
from txl_ts.runtime.plan import Place
from txl_ts.state import to_arrays

NODE = Path(__file__).parents[1] / "examples" / "clients" / "node"
N_ROWS = 1000
MIXED = (1, 2, 7, 64, 300)
BAD = [1e30, np.inf, np.nan, FINITE_FLOAT32]


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "exported_load"  # test_export.py reads the same file
    folder.mkdir(exist_ok=True)
    return export_once(folder)


# --------------------------------------------------------------------------------------------------------- the clients


@pytest.fixture(scope="session")
def node_client(tmp_path_factory):
    """A copy of the Node client with its packages, or a skip that says what is missing."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    folder = tmp_path_factory.mktemp("client") / "node"
    shutil.copytree(NODE, folder, ignore=shutil.ignore_patterns("node_modules"))
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefer-offline"]
    # Its install script would download GPU libraries.
    env = os.environ | {"ONNXRUNTIME_NODE_INSTALL": "skip"}
    try:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120)
    except subprocess.TimeoutExpired:
        pytest.skip("npm's registry did not answer within two minutes")
    if done.returncode:
        pytest.skip(f"npm cannot install the client's packages: {done.stderr.strip().splitlines()[:1]}")
    return folder


def json_rows(x):
    """Rows as nested lists; NaN is null, since JSON has no word for it, and infinity is a number too large."""
    return [[[None if np.isnan(v) else float(v) for v in row] for row in lane] for lane in x]


def arrays_of(document, dtype=np.float32):
    """Numbers back from dims and flat data; null is NaN."""
    return np.array([np.nan if v is None else v for v in document["data"]], dtype).reshape(document["dims"])


def run_node(folder, exported, document, before=None):
    """What the client prints for these calls, from the state that it printed before."""
    text = json.dumps(document).replace("Infinity", "1e999")
    (folder / "calls.json").write_text(text, encoding="utf-8")
    command = ["node", str(folder / "client.mjs"), str(exported.path), str(folder / "calls.json")]
    if before is not None:
        (folder / "before.json").write_text(json.dumps({"state": before}), encoding="utf-8")
        command += ["--after", str(folder / "before.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def by_node(exported, x, cuts, restarts, state, *, folder):
    document = [{"start": flags(len(x), a, restarts)[:, 0].tolist(), "x": json_rows(x[:, a:b])} for a, b in cuts]
    plain = {name: {"dims": array.shape, "data": array.ravel().tolist()} for name, array in state.items()}
    printed = run_node(folder, exported, document, plain)
    dtypes = {name: array.dtype for name, array in state.items()}
    after = {name: arrays_of(tensor, dtypes[name]) for name, tensor in printed["state"].items()}
    return np.concatenate([arrays_of(forecast) for forecast in printed["forecasts"]], axis=1), after


def by_reference(exported, x, cuts, restarts, state):
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    class GatherElements(OpRun):  # onnx's own is made of numpy.choose, which takes at most 64 rows
        def _run(self, data, indices, axis=0):
            return (np.take_along_axis(data, indices, axis),)

    evaluator, found = ReferenceEvaluator(exported.proto, new_ops=[GatherElements]), []
    for a, b in cuts:
        y, *present = evaluator.run(None, {"x": x[:, a:b], "start": flags(len(x), a, restarts), **state})
        state = dict(zip(state, present, strict=True))
        found.append(y)
    return np.concatenate(found, axis=1), state


def by_session(session, x, cuts, restarts, state, *, folder):
    """A session of named streams, one per lane; a lane that begins anew is a stream that was reset."""
    contract, names, found = session.contract, range(len(x)), []
    saved = Saved({name: Place(10**6) for name in names}, list(state.values()))
    save_streams(folder / "before.txl", saved, contract, small=())
    session.restore(folder / "before.txl")
    for a, b in cuts:
        for name in restarts.get(a, ()):
            session.reset(name)
        out = session.step({name: {"values": {"load": x[name, a:b, 0]}} for name in names})
        found.append(np.stack([out[name].forecasts[:, :, None] for name in names]))
    session.snapshot(folder / "after.txl")
    after = load_streams(folder / "after.txl", contract, small=(), most_rows=0)
    return np.concatenate(found, axis=1), dict(zip(state, after.arrays, strict=True))


@pytest.fixture
def run_client(request, exported, tmp_path):
    """Forecasts (B, T, h, C, Q) and the last state, by one of the clients."""

    def run(client, *given):
        if client == "node":
            return by_node(exported, *given, folder=request.getfixturevalue("node_client"))
        if client == "reference evaluator":
            return by_reference(exported, *given)
        session = (
            StreamSession(exported.path) if client == "session" else LiveSession(exported.model, exported.contract)
        )
        return by_session(session, *given, folder=tmp_path)

    return run


# ------------------------------------------------------------------------------------------------------------- numbers


@functools.cache
def begun(model, n_lanes):
    """The state of lanes that stand one row before the wrap, at it, and a turn later."""
    ages = np.resize([N_SLOTS - 1, N_SLOTS, 2 * N_SLOTS - 1], n_lanes)
    n_rows = 2 * N_SLOTS - 1
    begins = {int(n_rows - age): np.flatnonzero(ages == age).tolist() for age in np.unique(ages)[::-1]}
    _, state = run_model(model, walk(n_lanes, n_rows, seed=5), restarts=begins)
    assert state["count"].tolist() == [[min(age, N_SLOTS), age % N_SLOTS] for age in ages.tolist()]
    return state


@functools.cache
def reference(model, n_lanes, is_fresh):
    """Rows, where lanes begin anew, the state before, and what the model makes of them in one pass."""
    x, restarts = walk(n_lanes, N_ROWS), {411: (0,), 700: tuple(range(0, n_lanes, 2))}
    state = {name: t.numpy() for name, t in model.init_state(n_lanes).items()} if is_fresh else begun(model, n_lanes)
    tensors = {name: torch.from_numpy(array) for name, array in state.items()}
    return x, restarts, to_arrays(state), run_model(model, x, restarts=restarts, state=tensors)


def cut(length, restarts):
    """Calls of equal length, or of mixed ones; a restart begins a call."""
    if length != "mixed":
        return list(calls(N_ROWS, length, restarts))
    out, lengths = [], itertools.cycle(MIXED)
    for begin, end in itertools.pairwise([0, *restarts, N_ROWS]):
        while begin < end:
            out.append((begin, min(begin + next(lengths), end)))
            begin = out[-1][1]
    return out


# Where a walk row by row takes seconds, all lengths take turns in one walk.
MATRIX = [
    *itertools.product(["node"], [3], MIXED, ["fresh"]),
    *itertools.product(["session"], [3], MIXED, ["fresh"]),
    *itertools.product(["node", "session"], [3], [1, 300], ["near the wrap"]),
    *itertools.product(["node", "session", "live"], [1, 64], ["mixed"], ["near the wrap"]),
    *itertools.product(["live", "reference evaluator"], [3], ["mixed"], ["fresh", "near the wrap"]),
]
ALL = [
    *itertools.product(["node", "session", "live"], [1, 3, 64], (*MIXED, "mixed"), ["fresh", "near the wrap"]),
    *itertools.product(["reference evaluator"], [1, 3, 64], ["mixed"], ["fresh", "near the wrap"]),
]
REST = [pytest.param(*row, marks=pytest.mark.slow) for row in ALL if row not in MATRIX]


@pytest.mark.parametrize(("client", "n_lanes", "length", "lanes_are"), [*MATRIX, *REST])
def test_a_client_gives_the_models_numbers_over_1000_rows(run_client, exported, client, n_lanes, length, lanes_are):
    x, restarts, state, (wanted, state_wanted) = reference(exported.model, n_lanes, lanes_are == "fresh")
    found, after = run_client(client, x, cut(length, restarts), restarts, state)
    assert distance(found, wanted) <= CLOSE
    for name, array in zip(state_wanted, after.values(), strict=True):
        assert distance(array, state_wanted[name]) <= CLOSE, name


@pytest.mark.parametrize("bad", BAD, ids=str)
@pytest.mark.parametrize("client", ["node", "session", "live", "reference evaluator"])
def test_a_clients_lanes_do_not_see_a_bad_neighbour(run_client, exported, client, bad):
    x, cuts = walk(3, 60), [(0, 20), *((row, row + 1) for row in range(20, 30)), (30, 33), (33, 60)]
    spoilt = x.copy()
    spoilt[1, 20:] = bad
    wanted, state_wanted = run_client(client, x, cuts, {}, fresh(exported.model, 3))
    found, state = run_client(client, spoilt, cuts, {}, fresh(exported.model, 3))
    np.testing.assert_array_equal(found[[0, 2]], wanted[[0, 2]])
    for name in state:
        np.testing.assert_array_equal(state[name][[0, 2]], state_wanted[name][[0, 2]])


# ---------------------------------------------------------------------------------------------------------- Node alone


def test_the_node_client_begins_by_itself_and_goes_on_from_what_it_printed(node_client, exported):
    x = walk(2, 150)
    document = [{"x": json_rows(x[:, a:b])} for a, b in [(0, 1), (1, 80), (80, 150)]]  # without start flags
    whole = run_node(node_client, exported, document)
    first = run_node(node_client, exported, document[:2])
    rest = run_node(node_client, exported, document[2:], first["state"])
    assert rest["forecasts"] == whole["forecasts"][2:]
    assert rest["state"] == whole["state"]
    assert whole["quantiles"] == exported.contract["quantiles"]
    assert list(whole["state"]) == list(fresh(exported.model, 1))
    found = np.concatenate([arrays_of(forecast) for forecast in whole["forecasts"]], axis=1)
    assert distance(found, run_model(exported.model, x)[0]) <= CLOSE


def test_the_node_client_refuses_a_contract_of_another_major_schema(node_client, exported, tmp_path):
    shutil.copy(exported.path, tmp_path / "load.onnx")
    (tmp_path / "load.contract.json").write_text(json.dumps({**exported.contract, "schema": "2.0.0"}), encoding="utf-8")
    (tmp_path / "calls.json").write_text("[]", encoding="utf-8")
    command = ["node", str(node_client / "client.mjs"), str(tmp_path / "load.onnx"), str(tmp_path / "calls.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode != 0
    assert "contract schema 2.0.0 found, 1.x expected" in done.stderr


@pytest.mark.parametrize("precision", ["float16", "int8-weights", "int8-dynamic"])
def test_the_node_client_runs_every_precision(node_client, exported, tmp_path, precision):
    import onnx
    import onnxruntime

    from txl_ts.export.precision import lowered

    linear_path = exported.model.linear_path.weight.detach().numpy()
    proto, contract = lowered(exported.proto, exported.contract, precision, linear_path=linear_path, max_error=None)
    onnx.save(proto, tmp_path / "low.onnx")
    (tmp_path / "low.contract.json").write_text(json.dumps(contract), encoding="utf-8")
    n_lanes, length = (1, 1) if precision == "int8-dynamic" else (3, 20)
    x = walk(n_lanes, 100)
    document = [{"x": json_rows(x[:, a : a + length])} for a in range(0, 100, length)]
    low = SimpleNamespace(path=tmp_path / "low.onnx")
    printed = run_node(node_client, low, document)
    found = np.concatenate([arrays_of(forecast) for forecast in printed["forecasts"]], axis=1)
    session = onnxruntime.InferenceSession(low.path, providers=["CPUExecutionProvider"])
    wanted, _ = run_file(session, x, fresh(exported.model, n_lanes), length=length)
    # A number between two steps of 8 bits may be rounded to the other one by another version's arithmetic.
    assert distance(found, wanted) <= (CLOSE if precision != "int8-dynamic" else 1e-3)
