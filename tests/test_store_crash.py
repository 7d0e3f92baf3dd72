"""Kills, full disks and other writers: what was acknowledged is there, and nothing is ever torn."""

import contextlib
import errno
import os
import random
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from txl_ts.errors import SaveError
from txl_ts.store import Bundle, atomic, load, save, save_epoch

resource = pytest.importorskip("resource", reason="limits on file sizes are for POSIX systems")

TABLE = {"state": {"m": ((300, 7), "F64")}}
WRITERS = {"zip": save, "folder": save_epoch}


def make_bundle(seq, writer=0):
    return Bundle("stream-state", {}, {"state": {"m": np.full((300, 7), seq, float)}}, {"seq": seq, "writer": writer})


def loaded(path):
    """Load, check that nothing is mixed, and give (writer, seq)."""
    bundle = load(path, role="stream-state", expected=lambda config, positions: TABLE)
    assert (bundle.tensors["state"]["m"] == bundle.positions["seq"]).all()
    return bundle.positions["writer"], bundle.positions["seq"]


@pytest.fixture(params=WRITERS)
def write(request):
    return WRITERS[request.param]


def litter(path):
    """Give what a save left behind beside what must be there."""
    names = set(os.listdir(path.parent)) - {path.name}
    if path.is_dir():
        inside = set(os.listdir(path)) - {"CURRENT", "LOCK"}
        live = (path / "CURRENT").read_text().split(".")[0].split("-")[1]
        names |= {name for name in inside if int(name.split(".")[0].split("-")[-1]) not in (int(live), int(live) - 1)}
    return names


# ------------------------------------------------------------------------------------------------------ failing disks


def fail_call(monkeypatch, name, number):
    """Let the ``number``-th call of ``os.<name>`` fail as a disk does; returns the count of calls."""
    real, calls = getattr(os, name), []

    def failing(*args, **kwargs):
        calls.append(args)
        if len(calls) == number:
            raise OSError(errno.EIO, "Input/output error")
        return real(*args, **kwargs)

    monkeypatch.setattr(os, name, failing)
    return calls


@pytest.mark.parametrize("name", ["open", "fsync", "replace", "mkdir", "listdir"])
def test_whatever_call_fails_the_previous_save_is_intact_and_the_error_is_raised(write, name, tmp_path, monkeypatch):
    path = tmp_path / "s"
    write(path, make_bundle(0))
    seq, failures = 0, []
    for number in range(1, 30):
        with monkeypatch.context() as patch:
            calls = fail_call(patch, name, number)
            try:
                write(path, make_bundle(seq + 1))
            except SaveError as error:
                failures.append(error)
            else:
                seq += 1
        got = loaded(path)[1]
        if got == seq + 1:  # the one exception: the file is in place and only its folder could not be flushed
            assert name in ("fsync", "open")
            seq += 1
        assert got == seq
        assert litter(path) == set() or name == "listdir"  # nobody can sweep what he cannot list
        if len(calls) < number:
            break
    assert failures or name in ("mkdir", "listdir")
    assert all(error.errno == errno.EIO and "Input/output error" in str(error) for error in failures)
    assert all(isinstance(error.__cause__, OSError) for error in failures)
    write(path, make_bundle(99))
    assert loaded(path) == (0, 99)
    assert litter(path) == set()


def test_files_are_flushed_before_they_are_named_and_the_folder_afterwards(write, tmp_path, monkeypatch):
    """No kill can show this, only a power cut: so the order of the calls is what is tested."""
    write(tmp_path / "s", make_bundle(0))
    real_fsync, real_replace, calls = os.fsync, os.replace, []

    def fsync(fd):
        calls.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        real_fsync(fd)

    def replace(source, target):
        calls.append("replace")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write(tmp_path / "s", make_bundle(1))
    last = ["file", "replace", "folder"]
    assert calls == (last if write is save else ["file"] * 4 + ["folder"] + last)


def test_a_failed_first_save_leaves_nothing_behind(write, tmp_path, monkeypatch):
    path = tmp_path / "s"
    with monkeypatch.context() as patch:
        fail_call(patch, "replace", 1)
        with pytest.raises(SaveError, match=r"could not save .* Make room or another folder, and save again"):
            write(path, make_bundle(0))
    assert (os.listdir(path) if path.is_dir() else os.listdir(tmp_path)) in ([], ["LOCK"])
    write(path, make_bundle(1))
    assert loaded(path) == (0, 1)


def test_a_disk_that_is_full_after_any_number_of_bytes_leaves_the_previous_save(write, tmp_path):
    path = tmp_path / "s"
    write(path, make_bundle(0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in [*range(0, 16_000, 997), 16_000]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))  # the kernel itself refuses the next byte
        try:
            with pytest.raises(SaveError) as caught:
                write(path, make_bundle(1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert caught.value.errno == errno.EFBIG
        assert loaded(path) == (0, 0)
        assert litter(path) == set()
    write(path, make_bundle(2))
    assert loaded(path) == (0, 2)


def test_an_interrupt_removes_the_temporaries_and_passes_on(write, tmp_path, monkeypatch):
    path = tmp_path / "s"
    write(path, make_bundle(0))

    def interrupted(fd):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(path, make_bundle(1))
    assert loaded(path) == (0, 0)
    assert litter(path) == set()


def test_a_file_system_that_cannot_flush_folders_is_served_all_the_same(write, tmp_path, monkeypatch):
    real = os.fsync

    def fsync(fd):
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    write(tmp_path / "s", make_bundle(1))
    assert loaded(tmp_path / "s") == (0, 1)


def test_without_posix_calls_the_nearest_safe_ones_are_used(write, tmp_path, monkeypatch):
    """A stand-in for Windows: files are closed before they are replaced, folders are not flushed."""
    monkeypatch.setattr(atomic, "IS_WINDOWS", True)
    monkeypatch.delattr(os, "O_DIRECTORY")
    for seq in range(3):
        write(tmp_path / "s", make_bundle(seq))
    assert loaded(tmp_path / "s") == (0, 2)
    assert litter(tmp_path / "s") == set()


def test_no_second_copy_of_the_arrays_is_held_while_saving_or_loading(tmp_path):
    """In a process of its own, for the peak of memory never goes down again."""
    code = """
import resource, sys
import numpy as np
from txl_ts.store import Bundle, load, save, table_of
mib = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
arrays = {"weights": {f"w{i}": np.ones((256, 1024, 8), np.float32) for i in range(8)}}  # 8 MiB each
before = mib()
save(sys.argv[1], Bundle("model", {}, arrays, {}))
saved = mib()
load(sys.argv[1], role="model", expected=lambda c, p: table_of(arrays))
print(saved - before, mib() - saved)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], capture_output=True, text=True, check=True)
    saving, loading = map(float, done.stdout.split())
    assert saving < 8
    assert loading < 64 + 8


# ----------------------------------------------------------------------------------------------------------- turns


def test_a_writer_that_waits_too_long_says_so(tmp_path, monkeypatch):
    save_epoch(tmp_path, make_bundle(0))
    monkeypatch.setattr(atomic, "LOCK_TIMEOUT_S", 0.02)
    with (
        atomic.turn(str(tmp_path)),
        pytest.raises(SaveError, match=r"another process has been writing to .* for 0.02 s"),
    ):
        save_epoch(tmp_path, make_bundle(1))
    assert save_epoch(tmp_path, make_bundle(2)) == 1


def test_temporaries_of_the_living_are_not_swept_and_those_of_the_dead_are(tmp_path):
    path = tmp_path / "s"
    with atomic.replacing(str(path)) as file:
        file.write(b"alive")
        name = os.listdir(tmp_path)[0]
        dead = tmp_path / (name[:-8] + "dead.tmp")
        dead.write_bytes(b"left by a kill")
        stranger = tmp_path / ".txl-other.tmp"
        stranger.write_bytes(b"of another file")
        save(path, make_bundle(1))
        assert sorted(os.listdir(tmp_path)) == sorted([name, stranger.name, "s"])
    assert path.read_bytes() == b"alive"


@pytest.mark.parametrize("n_threads", [4])
def test_threads_that_save_to_one_place_leave_one_whole_bundle(write, tmp_path, n_threads):
    path = tmp_path / "s"
    write(path, make_bundle(0))
    epochs, errors = [], []

    def work(writer):
        try:
            epochs.extend(write(path, make_bundle(seq, writer)) for seq in range(5))
        except BaseException as error:  # noqa: BLE001 - told by the test below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(n_threads)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        loaded(path)  # a reader in the middle of it
    assert errors == []
    assert loaded(path)[1] == 4
    assert litter(path) == set()
    if write is save_epoch:
        assert sorted(epochs) == list(range(1, 1 + 5 * n_threads))


# ------------------------------------------------------------------------------------------------------------ kills

WRITER = """
import os, sys
import numpy as np
from txl_ts.store import Bundle, save, save_epoch

kind, path = sys.argv[1:]
write = {"zip": save, "folder": save_epoch}[kind]
for line in sys.stdin:  # "<writer> <first seq>": a child that saves until it is killed
    writer, seq = map(int, line.split())
    pid = os.fork()
    if pid == 0:
        os.write(1, b"pid %d %d\\n" % (writer, os.getpid()))
        while True:
            state = {"m": np.full((300, 7), seq, float)}
            epoch = write(path, Bundle("stream-state", {}, {"state": state}, {"seq": seq, "writer": writer}))
            os.write(1, b"ack %d %d %d\\n" % (writer, seq, -1 if epoch is None else epoch))
            seq += 1
    os.waitpid(pid, os.WNOHANG)
"""


@pytest.fixture
def memory_path(tmp_path):
    """Give a folder in memory where there is one: a kill asks nothing of the disk, and a second holds more of them."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=memory) as path:
        yield Path(path)


class Zoo:
    """A process whose children save until they are killed; what they acknowledged is read from its pipe."""

    def __init__(self, kind, path):
        command = [sys.executable, "-c", WRITER, kind, str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.acked, self.pids, self.epoch, self._rest = {}, {}, -1, b""

    def start(self, writer):
        self.pids.pop(writer, None)
        self.process.stdin.write(b"%d %d\n" % (writer, self.acked.get(writer, -1) + 1))
        self.process.stdin.flush()
        while writer not in self.pids:
            self.listen()
            time.sleep(0.0005)

    def wait_for_ack(self, writer):
        before = self.acked.get(writer)
        while self.acked.get(writer) == before:
            self.listen()
            time.sleep(0.0002)

    def listen(self):
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.process.stdout.fileno(), 65536):
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                for line in lines:
                    word, writer, *numbers = line.decode().split()
                    if word == "pid":
                        self.pids[int(writer)] = int(numbers[0])
                    else:
                        self.acked[int(writer)] = int(numbers[0])
                        self.epoch = max(self.epoch, int(numbers[1]))

    def kill(self, writer):
        os.kill(self.pids[writer], signal.SIGKILL)
        while os.path.exists(f"/proc/{self.pids[writer]}/fd/1"):  # it is dead once its files are closed
            time.sleep(0.0002)
        self.listen()

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def run_kills(kind, path, *, n_kills, n_writers, seed):
    rng = random.Random(seed)
    zoo = Zoo(kind, path)
    try:
        begin = time.perf_counter()
        WRITERS[kind](path, make_bundle(-1))
        duration_s = time.perf_counter() - begin
        for writer in range(n_writers):
            zoo.start(writer)
        for kill in range(n_kills):
            told = f"seed {seed}, kill {kill}"
            writer = rng.randrange(n_writers)
            if rng.random() < 0.7:
                zoo.wait_for_ack(writer)
            time.sleep(rng.uniform(0.0, 2 * duration_s))
            zoo.kill(writer)
            acked, epoch = dict(zoo.acked), zoo.epoch  # whatever follows may only be newer
            got_writer, got_seq = loaded(path)
            assert got_seq >= acked.get(got_writer, -1), told
            if n_writers == 1:
                assert got_seq <= acked.get(0, -1) + 1, told
            if kind == "folder":
                live = int((path / "CURRENT").read_text().split(".")[0].split("-")[1])
                assert live >= epoch, told
            zoo.start(writer)
        for writer in range(n_writers):
            zoo.kill(writer)
    finally:
        for pid in zoo.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        zoo.close()
    assert sum(zoo.acked.values()) >= n_kills / 3  # the writers did get to save in between
    WRITERS[kind](path, make_bundle(10**6))
    assert loaded(path) == (0, 10**6)
    assert litter(path) == set()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="asks /proc whether a process is gone")
@pytest.mark.parametrize("n_writers", [1, 2])
@pytest.mark.parametrize("kind", WRITERS)
def test_kill_9_while_saving_never_tears_and_never_loses_what_was_acknowledged(kind, n_writers, memory_path):
    run_kills(kind, memory_path / "s", n_kills=15, n_writers=n_writers, seed=23)


@pytest.mark.soak
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="asks /proc whether a process is gone")
@pytest.mark.parametrize("kind", WRITERS)
def test_1000_kills_tear_nothing(kind, memory_path):
    run_kills(kind, memory_path / "s", n_kills=1_000, n_writers=2, seed=29)
