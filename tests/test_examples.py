"""Every example runs as a program of its own, with warnings as errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(*args: str, folder: Path) -> str:
    path = os.pathsep.join([str(ROOT), str(ROOT / "adapters")])
    done = subprocess.run(
        [sys.executable, "-W", "error", *args],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(example, tmp_path):
    assert run(str(example), folder=tmp_path)


def test_the_frame_example_makes_its_own_data_where_the_package_is_missing(tmp_path):
    blocked = (
        "import runpy, sys; sys.modules['bokeh_sampledata'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    printed = run("-c", blocked, str(ROOT / "examples" / "forecast_frame.py"), folder=tmp_path)
    assert "Mean absolute error of 289 forecasts" in printed
    assert "2026-06-16" in printed  # the invented stamps
