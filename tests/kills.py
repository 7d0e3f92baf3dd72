"""Runs of ``txl-ts watch`` that die by SIGKILL at a chosen point."""

import os
import subprocess
import sys
from pathlib import Path

ENV = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONIOENCODING": "utf-8"}

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
    """Run ``txl-ts watch`` once for each point, and say how each ended. The folder of snapshots stands last."""
    code = [sys.executable, "-c", KILLED, ",".join(map(str, points)), "watch", *map(str, args)]
    done = subprocess.run(code, env=ENV, capture_output=True, encoding="utf-8", check=False, timeout=1800)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
