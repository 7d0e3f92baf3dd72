"""What `import txl_ts` costs and gives. Imports are watched in fresh interpreters, since this one has them all."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import txl_ts

ROOT = Path(__file__).parents[1]

FRAMES = {"narwhals", "numpy", "pandas", "polars", "pyarrow"}  # pandas 3 and polars load pyarrow where it is installed
HEAVY = FRAMES | {
    "bokeh_sampledata",
    "matplotlib",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "safetensors",
    "scipy",
    "sklearn",
    "torch",
    "tqdm",
    "typer",
}

_ESTIMATORS = FRAMES | {"safetensors", "scipy", "sklearn", "torch", "tqdm"}
MAY_LOAD_BY_NAME = {
    "PanelSplit": _ESTIMATORS,
    "TXLAnomalyDetector": _ESTIMATORS,
    "TXLClassifier": _ESTIMATORS,
    "TXLEncoder": _ESTIMATORS,
    "TXLRegressor": _ESTIMATORS,
    "TXLForecaster": FRAMES | {"safetensors", "scipy", "sklearn", "torch", "tqdm"},
    "TxlError": set(),
    "TxlWarning": set(),
    "__version__": set(),
    "open_watch": {"numpy", "onnxruntime", "safetensors"},
    "retrain_watch": {"numpy", "onnxruntime", "safetensors"},
}

MAY_LOAD_BY_ROOM = {
    "txl_ts.errors": set(),
    "txl_ts.config": {"numpy"},
    "txl_ts.forms": set(),
    "txl_ts.instants": {"numpy"},
    "txl_ts.spec": {"numpy"},
    "txl_ts.state": {"numpy"},
    "txl_ts.store": {"numpy", "safetensors"},
    "txl_ts.stream": {"numpy", "safetensors"},
    "txl_ts.calibration": {"numpy"},
    "txl_ts.frames": FRAMES,
    "txl_ts.runtime": {"numpy", "onnxruntime", "safetensors"},
    "txl_ts.cli": {"typer"},
    "txl_ts_adapters": set(),
}


def run_fresh(code: str) -> subprocess.CompletedProcess[str]:
    """What a new interpreter does with this code, with the checkout's packages on its path."""
    path = f"import sys; sys.path[:0] = {[str(ROOT), str(ROOT / 'adapters')]!r}\n"
    done = subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def heavy_after(statement: str) -> set[str]:
    """The heavy libraries that a statement brings into a new interpreter."""
    code = f"import json\nbefore = set(sys.modules)\n{statement}\nprint(json.dumps(sorted(set(sys.modules) - before)))"
    return HEAVY.intersection(json.loads(run_fresh(code).stdout))


def test_importing_the_package_loads_no_library():
    assert heavy_after("import txl_ts") == set()


def test_listing_the_names_loads_no_library():
    assert heavy_after("import txl_ts; dir(txl_ts)") == set()


@pytest.mark.parametrize("name", txl_ts.__all__)
def test_a_public_name_brings_only_the_libraries_that_it_needs(name):
    assert heavy_after(f"from txl_ts import {name}") <= MAY_LOAD_BY_NAME[name]


@pytest.mark.parametrize("room", MAY_LOAD_BY_ROOM)
def test_a_room_brings_only_the_libraries_that_it_needs(room):
    if find_spec(room) is None:
        pytest.skip(f"{room} is not in this release")
    assert heavy_after(f"import {room}") <= MAY_LOAD_BY_ROOM[room]


def test_importing_the_package_takes_less_than_50_ms():
    code = "import time\nstart = time.process_time()\nimport txl_ts\nprint(time.process_time() - start)"
    # CPU time, not the clock; the best of five, since a neighbour's work can only make a run slower.
    assert min(float(run_fresh(code).stdout) for _ in range(5)) < 0.050


@pytest.mark.parametrize("name", txl_ts.__all__)
def test_every_public_name_is_there_and_knows_its_name(name):
    value = getattr(txl_ts, name)
    assert getattr(value, "__name__", name) == name


def test_dir_lists_every_public_name():
    assert set(txl_ts.__all__) <= set(dir(txl_ts))


def test_star_import_gives_the_public_names():
    printed = run_fresh("from txl_ts import *\nimport json\nprint(json.dumps(sorted(globals())))").stdout
    assert set(txl_ts.__all__) <= set(json.loads(printed))


def test_an_unknown_name_is_an_attribute_error_that_lists_the_names():
    with pytest.raises(AttributeError, match=r"no attribute 'TXLForcaster'\. It offers PanelSplit, "):
        _ = txl_ts.TXLForcaster


def test_importing_every_room_prints_nothing_and_starts_no_thread():
    code = """
import importlib, json, pkgutil, threading
import txl_ts
for module in pkgutil.walk_packages(txl_ts.__path__, "txl_ts."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(json.dumps([thread.name for thread in threading.enumerate()]))
"""
    done = run_fresh(code)
    assert (done.stdout, done.stderr) == ('["MainThread"]\n', "")
