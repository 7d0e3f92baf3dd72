"""Clients in other languages give the numbers of the model: they know the file and its contract only."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.test_export import (
    CLOSE,
    assert_close_states,
    distance,
    export_once,
    flags,
    fresh,
    run_file,
    run_model,
    walk,
)

NODE = Path(__file__).parents[1] / "examples" / "clients" / "node"
N_LANES, N_ROWS = 2, 150
CALLS = [(0, 1), (1, 3), (3, 80), (80, 81), (81, 150)]
RESTARTS = {80: [1]}


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "exported_load"  # test_export.py reads the same file
    folder.mkdir(exist_ok=True)
    return export_once(folder)


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
    return folder / "client.mjs"


def json_rows(x):
    """Rows as nested lists; what is not finite is null, since JSON has no word for it."""
    return [[[float(v) if np.isfinite(v) else None for v in row] for row in lane] for lane in x]


def arrays_of(document):
    """Numbers back from dims and flat data; null is NaN."""
    return np.array([np.nan if v is None else v for v in document["data"]], np.float32).reshape(document["dims"])


def test_the_node_client_gives_the_models_numbers(node_client, exported, tmp_path):
    x = walk(N_LANES, N_ROWS)
    document = [{"start": flags(N_LANES, a, RESTARTS)[:, 0].tolist(), "x": json_rows(x[:, a:b])} for a, b in CALLS]
    del document[0]["start"]  # may be left out: the first state is that of a lane that begins
    (tmp_path / "calls.json").write_text(json.dumps(document, allow_nan=False), encoding="utf-8")

    command = ["node", str(node_client), str(exported.path), str(tmp_path / "calls.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)

    found = np.concatenate([arrays_of(forecast) for forecast in printed["forecasts"]], axis=1)
    wanted, state_wanted = run_model(exported.model, x, restarts=RESTARTS)
    by_python, _ = run_file(exported.session, x, fresh(exported.model, N_LANES), length=16, restarts=RESTARTS)
    assert printed["quantiles"] == exported.contract["quantiles"]
    assert distance(found, wanted) <= CLOSE
    assert distance(found, by_python) <= CLOSE
    assert list(printed["state"]) == list(fresh(exported.model, 1))
    assert_close_states({name: arrays_of(tensor) for name, tensor in printed["state"].items()}, state_wanted)


def test_the_node_client_refuses_a_contract_of_another_major_schema(node_client, exported, tmp_path):
    shutil.copy(exported.path, tmp_path / "load.onnx")
    (tmp_path / "load.contract.json").write_text(json.dumps({**exported.contract, "schema": "2.0.0"}), encoding="utf-8")
    (tmp_path / "calls.json").write_text("[]", encoding="utf-8")
    command = ["node", str(node_client), str(tmp_path / "load.onnx"), str(tmp_path / "calls.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode != 0
    assert "contract schema 2.0.0 found, 1.x expected" in done.stderr
