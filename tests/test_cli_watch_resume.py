"""``txl-ts watch --state``: what is killed goes on, and an output in a file holds every line once."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from txl_ts.cli import main

pytest.importorskip("typer", reason="the command line needs the extra `cli`")
pytest.importorskip("onnxruntime", reason="a graph needs the extra `ort`")
ROOT = Path(__file__).parents[1]
GRAPH = str(ROOT / "tests" / "golden" / "0.1.0" / "graph.onnx")  # one channel, y, every hour
GUARDS = ["--range", "y=0:130", "--stuck-after", "12h", "--stale-after", "20h", "--max-gap", "40h"]


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def call(*args) -> int:
    with pytest.raises(SystemExit) as end:
        main(["watch", GRAPH, *map(str, args)])
    return end.value.code or 0


def command(*args) -> list[str]:
    return [sys.executable, "-W", "error", "-c", "from txl_ts.cli import main; main()", "watch", GRAPH, *map(str, args)]


ENV = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}


@pytest.fixture(scope="session")
def recordings(shared_data, tmp_path_factory):
    """A real temperature whose clock steps back, and real air with holes and planted faults, in one table."""
    machine = (shared_data / "nab/realKnownCause/machine_temperature_system_failure.csv").read_text().splitlines()
    rows = [(time, "machine", value) for time, value in (line.split(",") for line in machine[9_900:11_100])]
    air = (shared_data / "air_quality/air_quality_valencia.csv").read_text().splitlines()
    pm10 = [(line.split(",")[0], line.split(",")[5]) for line in air[20_000:20_900]]
    rows_of_air = [(time, "air", value) for time, value in pm10]
    rows_of_air[200:216] = [(time, "air", "31.0") for time, _, _ in rows_of_air[200:216]]  # stuck
    rows_of_air[300] = (rows_of_air[300][0], "air", "900")  # a peak
    del rows_of_air[400:430]  # dead
    rows_of_air[500:500] = rows_of_air[470:475]  # said again
    rows_of_air[600:600] = [("tomorrow", "air", "1"), ("2031-01-01 00:00:00", "air", "3")]
    rows_of_air[700] = (rows_of_air[700][0], "air", "err")
    share = len(rows) / len(rows_of_air)  # one behind the other in the file, as far as their numbers allow
    order = sorted([(i, row) for i, row in enumerate(rows)] + [(share * i, row) for i, row in enumerate(rows_of_air)])
    path = tmp_path_factory.mktemp("recordings") / "plant.csv"
    path.write_text("\n".join(["time,stream,y", *(",".join(row) for _, row in order)]) + "\n", encoding="utf-8")
    return path


# Counts what leaves a trace and what does not; the process ends before, or in the middle of, the n-th.
KILLED = """
import os, signal, sys
import txl_ts.cli.program, txl_ts.cli.watch.start, onnxruntime
from txl_ts.cli import main
from txl_ts.stream import Watch

def killing(function, at, seen, is_write=False):
    def called(*args, **kwargs):
        seen[0] += 1
        if seen[0] == at:
            if is_write:
                function(args[0], bytes(args[1])[: len(args[1]) // 2])  # a torn line
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return called

def run(at, tell=None):
    seen = [0]
    for name in ("write", "fsync", "replace", "unlink"):
        setattr(os, name, killing(getattr(os, name), at, seen, is_write=name == "write"))
    Watch.step = killing(Watch.step, at, seen)
    try:
        main(sys.argv[2:])
    finally:
        if tell:
            open(tell, "w").write(str(seen[0]))

for at in map(int, sys.argv[1].split(",")):
    child = os.fork()  # a process of its own, without loading all again
    if not child:
        try:
            run(at, tell=f"{sys.argv[-1]}/n_events")
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    print("killed" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL else f"ended {status}")
"""


def killed(points, *args) -> list[str]:
    code = [sys.executable, "-c", KILLED, ",".join(map(str, points)), "watch", GRAPH, *map(str, args)]
    done = subprocess.run(code, env=ENV, capture_output=True, encoding="utf-8", check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="session")
def uninterrupted(recordings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    args = [recordings, *GUARDS, "--every", 40, "--details", "--out", folder / "rows", "--alerts", folder / "alerts"]
    assert killed([10**9], *args, "--state", folder) == ["ended 0"]
    return folder


def test_the_recordings_hold_all_kinds_of_faults(uninterrupted):
    rows = lines_of(uninterrupted / "rows")
    statuses = {line["status"] for line in rows}
    assert statuses >= {"ok", "missing", "stale", "stuck", "out_of_range", "clock_back", "clock_ahead", "gap_bridged"}
    assert {line["kind"] for line in lines_of(uninterrupted / "alerts")} >= {"stale", "stuck", "out_of_range"}
    assert [alert["id"] for line in rows for alert in line["alerts"]] == [
        alert["id"] for alert in lines_of(uninterrupted / "alerts")
    ]


@pytest.mark.parametrize("seed", [0, 1])
def test_after_kill_9_at_random_points_every_line_is_there_once_and_equal_to_the_byte(
    seed, recordings, uninterrupted, tmp_path
):
    n_events = int((uninterrupted / "n_events").read_text())
    rng = np.random.default_rng(seed)
    # Each point counts from the restart, and the runs together pass through the whole file.
    points = rng.integers(1, n_events // 12, size=20).tolist()
    args = [
        recordings,
        *GUARDS,
        "--every",
        40,
        "--details",
        "--out",
        tmp_path / "rows",
        "--alerts",
        tmp_path / "alerts",
    ]
    ended = killed([*points, 10**9], *args, "--state", tmp_path)
    assert ended.count("killed") == 20, f"seed {seed}: {ended}"
    assert ended[-1] == "ended 0"
    for name in ("alerts", "rows"):
        assert (tmp_path / name).read_bytes() == (uninterrupted / name).read_bytes(), f"seed {seed}"


def test_standard_output_in_a_file_holds_every_line_once_too(recordings, uninterrupted, tmp_path):
    args = command(recordings, *GUARDS, "--every", 40, "--alerts-only", "--state", tmp_path / "state")
    with open(tmp_path / "out", "ab") as out:
        process = subprocess.Popen(args, env=ENV, stdout=out, stderr=subprocess.PIPE)
        while (tmp_path / "out").stat().st_size < 2_000 and process.poll() is None:
            pass
        process.kill()
        process.communicate()
        done = subprocess.run(args, env=ENV, stdout=out, stderr=subprocess.PIPE, check=False)
    assert (process.returncode, done.returncode) == (-signal.SIGKILL, 0)
    assert (tmp_path / "out").read_bytes() == (uninterrupted / "alerts").read_bytes()
