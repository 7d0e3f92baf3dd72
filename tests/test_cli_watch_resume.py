"""``txl-ts watch --state``: what is killed goes on, and an output in a file holds every line once."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.kills import ENV, killed
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


@pytest.fixture(scope="session")
def uninterrupted(recordings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    args = [recordings, *GUARDS, "--every", 40, "--details", "--out", folder / "rows", "--alerts", folder / "alerts"]
    assert killed([10**9], GRAPH, *args, "--state", folder) == ["ended 0"]
    return folder


def test_the_recordings_hold_all_kinds_of_faults(uninterrupted):
    rows = lines_of(uninterrupted / "rows")
    statuses = {line["status"] for line in rows}
    assert statuses >= {"ok", "missing", "stale", "stuck", "out_of_range", "clock_back", "clock_ahead", "gap_bridged"}
    assert {line["kind"] for line in lines_of(uninterrupted / "alerts")} >= {"stale", "stuck", "out_of_range"}
    assert [alert["id"] for line in rows for alert in line["alerts"]] == [
        alert["id"] for alert in lines_of(uninterrupted / "alerts")
    ]


def test_after_kill_9_at_random_points_every_line_is_there_once_and_equal_to_the_byte(
    recordings, uninterrupted, tmp_path
):
    seed = 0
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
    ended = killed([*points, 10**9], GRAPH, *args, "--state", tmp_path)
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


# ------------------------------------------------------------------------------------------------- ends, and going on


def hour(i):
    return f"2026-01-{1 + i // 24:02d}T{i % 24:02d}:00"


def csv_rows(first, end):
    return "".join(f"{hour(i)},{20 + (i * 7 % 11)}\n" for i in range(first, end))


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("time,y\n" + csv_rows(0, 80))
    return path


@pytest.fixture
def said(table, tmp_path):
    assert call(table, "--out", tmp_path / "expected") == 0
    return (tmp_path / "expected").read_bytes()


def a_run(source, *, out, folder=None, manner=None, notes=None, settings=None):
    from txl_ts.cli.watch.lines import Lines
    from txl_ts.cli.watch.opened import open_watch
    from txl_ts.cli.watch.run import Manner, Run

    watch = open_watch(Path(GRAPH), settings or {})
    say = (lambda text: None) if notes is None else notes.append
    lines = Lines(list(watch.intake.channels.values()), note=say)
    return Run(watch, lines, source, out=out, folder=folder, manner=manner or Manner(), settings=settings, say=say)


def to_end(one):
    from txl_ts.cli.watch.run import run

    return run(one, with_metrics=False)


def stopping(number, after=0):
    """Wait for a file by asking ourselves to stop, as the shell would."""
    calls = [0]

    def wait():
        calls[0] += 1
        if calls[0] > after:
            os.kill(os.getpid(), number)

    return wait


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_to_stop_ends_with_a_snapshot_from_which_the_run_goes_on(number, code, table, said, tmp_path):
    from txl_ts.cli.watch.sink import Sink
    from txl_ts.cli.watch.source import FileSource

    whole = table.read_text()
    table.write_text(whole[:333])  # within a line
    before = signal.getsignal(number)
    source = FileSource(table, follow=True, wait=stopping(number))
    assert to_end(a_run(source, out=Sink.open(tmp_path / "out"), folder=tmp_path / "state")) == code
    assert signal.getsignal(number) is before
    n_done = len(lines_of(tmp_path / "out"))
    assert 10 < n_done < 20
    table.write_text(whole)
    notes = []
    one = a_run(FileSource(table), out=Sink.open(tmp_path / "out"), folder=tmp_path / "state", notes=notes)
    assert to_end(one) == 0
    assert (tmp_path / "out").read_bytes() == said
    assert one.counts.lines == 81 - 1 - n_done
    assert notes == []


def test_a_followed_file_is_read_as_it_grows_is_cut_off_and_is_rotated(table, said, tmp_path):
    from txl_ts.cli.watch.sink import Sink
    from txl_ts.cli.watch.source import FileSource

    table.write_text("time,y\n" + csv_rows(0, 20) + hour(20))

    def grow():
        with table.open("a") as file:
            file.write(csv_rows(20, 30).removeprefix(hour(20)))

    def cut_off():
        table.write_text(csv_rows(30, 35))  # shorter than before, without a header

    def rotate():
        with table.open("a") as file:
            file.write(csv_rows(35, 50))  # which nobody has read yet
        table.rename(f"{table}.1")
        table.write_text("time,y\n" + csv_rows(50, 80))

    happen = [grow, cut_off, rotate, stopping(signal.SIGTERM)]
    source = FileSource(table, follow=True, wait=lambda: happen.pop(0)())
    assert to_end(a_run(source, out=Sink.open(tmp_path / "out"))) == 0
    assert (tmp_path / "out").read_bytes() == said


def test_a_file_that_was_rotated_meanwhile_is_read_to_its_end_first(table, said, tmp_path):
    whole = table.read_text()
    args = ["--out", tmp_path / "out", "--state", tmp_path / "state"]
    at = len("time,y\n" + csv_rows(0, 30))
    table.write_text(whole[:at])
    assert call(table, *args) == 0
    with table.open("a") as file:
        file.write(csv_rows(30, 50))
    table.rename(tmp_path / "rows.csv.1")
    table.write_text("time,y\n" + csv_rows(50, 80))
    assert call(table, *args) == 0
    assert (tmp_path / "out").read_bytes() == said


def test_a_pipe_that_repeats_rows_after_a_restart_gives_each_once(table, said, tmp_path, monkeypatch):
    """An output in a file, and a producer that begins an hour too early, or from the start."""
    from txl_ts.cli.watch.sink import Sink
    from txl_ts.cli.watch.source import PipeSource

    notes = []
    for first, end in [(0, 30), (25, 50), (0, 80)]:
        read, write = os.pipe()
        os.write(write, ("time,y\n" + csv_rows(first, end)).encode())
        os.close(write)
        one = a_run(PipeSource(read), out=Sink.open(tmp_path / "out"), folder=tmp_path / "state", notes=notes)
        assert to_end(one) == 0
    assert (tmp_path / "out").read_bytes() == said
    assert one.counts.overlap == 50
    assert "taken for the same ones" in notes[0]


def test_lines_for_a_reader_that_is_gone_are_given_to_the_next_one(table, said, tmp_path):
    from txl_ts.cli.watch.sink import Sink
    from txl_ts.cli.watch.source import FileSource

    whole = table.read_text()
    at = len("time,y\n" + csv_rows(0, 30))
    table.write_text(whole[:at])
    read, write = os.pipe()
    assert to_end(a_run(FileSource(table), out=Sink(write), folder=tmp_path / "state")) == 0
    first = os.read(read, 10**6)
    table.write_text(whole[: len("time,y\n" + csv_rows(0, 50))])
    read, write = os.pipe()
    os.close(read)
    assert to_end(a_run(FileSource(table), out=Sink(write), folder=tmp_path / "state")) == 0
    table.write_text(whole)
    read, write = os.pipe()
    assert to_end(a_run(FileSource(table), out=Sink(write), folder=tmp_path / "state")) == 0
    assert first + os.read(read, 10**6) == said


def test_a_shell_pipe_that_ends_early_is_no_error(table):
    done = subprocess.run(
        f"{' '.join(map(repr, command(table)))} | head -n 3", shell=True, env=ENV, capture_output=True, check=False
    )
    assert (done.stdout.count(b"\n"), done.stderr) == (3, b"")


def test_ctrl_c_at_a_pipe_ends_with_130_and_sigusr1_prints_the_counters(tmp_path):
    process = subprocess.Popen(
        command("--state", tmp_path), env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdin.write(("time,y\n" + csv_rows(0, 5)).encode())
    process.stdin.flush()
    said = [json.loads(process.stdout.readline()) for _ in range(5)]
    process.send_signal(signal.SIGUSR1)
    assert json.loads(process.stderr.readline().decode())["rows"] == 5
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert process.communicate() == (b"", b"")
    assert said[4]["seq"] == 4
    assert (tmp_path / "watch.txl").exists()


@pytest.mark.skipif(os.name == "nt", reason="a wait for a pipe cannot be broken there")
def test_a_signal_just_before_the_wait_for_a_pipe_ends_it(tmp_path, monkeypatch):
    from txl_ts.cli.watch.sink import Sink
    from txl_ts.cli.watch.source import PipeSource

    read, write = os.pipe()  # the writer stays: without the signal the run would wait for ever
    os.write(write, ("time,y\n" + csv_rows(0, 5)).encode())
    source = PipeSource(read)
    has_more = source._has_more

    def asked_to_stop_first():
        if source.n_lines:
            signal.raise_signal(signal.SIGINT)
        return has_more()

    monkeypatch.setattr(source, "_has_more", asked_to_stop_first)
    assert to_end(a_run(source, out=Sink.open(tmp_path / "out"))) == 130
    assert len(lines_of(tmp_path / "out")) == 5
    os.close(write)


def test_at_the_end_of_a_source_rows_that_wait_go_out_unless_a_next_run_goes_on(tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text(f"time,y\n{hour(0)},1\n2026-01-01T00:20,2\n")
    assert call(rows, "--out", tmp_path / "a") == 0
    assert [line["time"] for line in lines_of(tmp_path / "a")] == ["2026-01-01T00:00:00", "2026-01-01T01:00:00"]
    assert call(rows, "--out", tmp_path / "b", "--state", tmp_path / "state") == 0
    assert len(lines_of(tmp_path / "b")) == 1
    rows.write_text(rows.read_text() + "2026-01-01T01:00,3\n")
    assert call(rows, "--out", tmp_path / "b", "--state", tmp_path / "state", "--details") == 0
    assert lines_of(tmp_path / "b")[1]["values"] == {"y": 3}


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_a_snapshot_is_written_every_so_many_lines_whatever_the_batch(kind, table, said, tmp_path):
    from txl_ts.cli.watch.run import Manner
    from txl_ts.cli.watch.sink import Sink
    from txl_ts.cli.watch.source import FileSource, PipeSource

    source = FileSource(table)
    if kind == "pipe":
        read, write = os.pipe()
        os.write(write, table.read_bytes())
        os.close(write)
        source = PipeSource(read)
    manner = Manner(every=20, batch=1000)
    one = a_run(source, out=Sink.open(tmp_path / "out"), folder=tmp_path / "state", manner=manner)
    assert to_end(one) == 0
    assert one.counts.snapshots == 1 + 81 // 20 + 1  # when it begins, every 20 lines, when it ends
    assert (tmp_path / "out").read_bytes() == said


def test_lines_of_a_slow_pipe_count_towards_the_next_snapshot(tmp_path):
    from txl_ts.cli.watch.run import Manner
    from txl_ts.cli.watch.sink import Sink
    from txl_ts.cli.watch.source import PipeSource

    class SlowPipe(PipeSource):
        """Waits before each line."""

        def __iter__(self):
            for line in ("time,y\n" + csv_rows(0, 60)).splitlines(keepends=True):
                yield None
                self.n_lines += 1
                yield line.encode()

    one = a_run(
        SlowPipe(0), out=Sink.open(tmp_path / "out"), folder=tmp_path / "state", manner=Manner(every=5, batch=100)
    )
    assert to_end(one) == 0
    assert one.counts.snapshots == 1 + 61 // 5 + 1


def test_a_strict_run_meets_the_same_line_again(table, tmp_path, capsys):
    rows = table.read_text().splitlines(keepends=True)
    table.write_text("".join([*rows[:40], "now,1\n", *rows[40:]]))
    args = [table, "--strict", "--out", tmp_path / "out", "--state", tmp_path / "state"]
    assert [call(*args), call(*args)] == [2, 2]
    assert capsys.readouterr().err.count("line 41: time 'now' is none") == 2
    assert len(lines_of(tmp_path / "out")) == 39


def test_an_output_with_lines_of_somebody_else_is_added_to(table, said, tmp_path):
    out = tmp_path / "out"
    out.write_text("older\n")
    assert call(table, "--out", out, "--state", tmp_path / "state") == 0
    assert out.read_bytes() == b"older\n" + said


# ------------------------------------------------------------------------------------------------------------ refusals


def test_a_snapshot_of_other_settings_is_refused_and_stays(table, tmp_path, capsys):
    assert call(table, "--state", tmp_path / "state", "--out", tmp_path / "out", "--stuck-after", "5h") == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "state").iterdir()}
    assert call(table, "--state", tmp_path / "state", "--out", tmp_path / "out", "--stuck-after", "6h") == 2
    assert "was made with stuck_after='5h', now it is '6h'" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (tmp_path / "state").iterdir()} == before


def test_a_folder_serves_one_process_at_a_time(table, tmp_path, capsys, monkeypatch):
    from txl_ts.cli.watch import run
    from txl_ts.store.atomic import turn

    monkeypatch.setattr(run, "_PATIENCE_S", 0)
    (tmp_path / "state").mkdir()
    with turn(str(tmp_path / "state")):
        assert call(table, "--state", tmp_path / "state") == 2
    assert "A folder serves one txl-ts watch at a time" in capsys.readouterr().err


def test_a_snapshot_that_python_made_is_refused(table, tmp_path, capsys):
    from txl_ts.cli.watch.opened import open_watch
    from txl_ts.stream import snapshot

    snapshot(open_watch(Path(GRAPH), {}), tmp_path / "state", source=[1, 2])
    assert call(table, "--state", tmp_path / "state") == 2
    assert "is none of txl-ts watch" in capsys.readouterr().err


def test_a_graph_is_watched_without_torch_and_dataframes(table, tmp_path):
    code = "import sys; from txl_ts.cli import main\ntry: main()\nexcept SystemExit as end: print(end.code or 0)\n"
    code += "print([name for name in ('torch', 'pandas', 'polars', 'sklearn', 'matplotlib') if name in sys.modules])"
    args = ["watch", GRAPH, str(table), "--state", str(tmp_path / "state"), "--out", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", code, *args], env=ENV, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0\n[]\n", "")


def test_an_output_that_cannot_be_written_is_named(table, tmp_path, capsys):
    from txl_ts.cli.watch.sink import Sink
    from txl_ts.cli.watch.source import FileSource
    from txl_ts.errors import SaveError

    assert call(table, "--out", tmp_path / "no" / "out") == 2
    assert "cannot be written" in capsys.readouterr().err
    assert call(table, "--out", tmp_path / "one", "--alerts", tmp_path / "one") == 2
    assert "Give rows and alerts a file each" in capsys.readouterr().err
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with pytest.raises(SaveError, match=r"the output cannot be written: .*No space left"):
        to_end(a_run(FileSource(table), out=Sink(os.open("/dev/full", os.O_WRONLY))))
