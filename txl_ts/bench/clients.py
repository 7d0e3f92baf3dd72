"""Foreign clients of the exported graph, in environments of their own, and how far they are from torch.

A client is a program of ``examples/clients`` that knows the graph's file and its contract only. It is given streams as
JSON (what each file holds is said in the clients themselves) and prints one document per stream.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from txl_ts.bench import report
from txl_ts.errors import MissingExtraError, ParameterError

EXAMPLES = Path("examples/clients")
# The oldest onnxruntime that reads opset 18 with IR 8 was built against numpy 1.
OLDEST_ORT, ITS_NUMPY = "onnxruntime==1.16.3", "numpy<2"
BATCHES = (1, 2, 7)
# Rows per call: one, a catch-up, and calls that all differ and outgrow the ring.
LENGTHS: Mapping[str, tuple[int, ...]] = {"1": (1,), "64": (64,), "mixed": (1, 3, 70, 1, 300)}
COLUMNS = {
    "model": "model",
    "client": "client",
    "version": "version",
    "n_cases": "cases",
    "worst": "largest error",
    **{f"batch_{n}": f"batch {n}" for n in BATCHES},
    **{f"rows_{name}": f"T {name}" for name in LENGTHS},
    "plain": "no gaps",
    "gaps": "gaps",
    "restarts": "restarts",
    "both": "gaps, restarts",
}
_INSTALL_S, _RUN_S, _READY_S = 600, 600, 60


# ------------------------------------------------------------------------------------------------------------- streams


@dataclass(frozen=True)
class Call:
    """One call of a stream.

    Attributes
    ----------
    x : array of shape (B, T, C)
        Raw rows, NaN where missing.
    start : array of shape (B,) of int32
    """

    x: NDArray[np.float32]
    start: NDArray[np.int32]


Stream = Sequence[Call]


def write_stream(stream: Stream, path: Path) -> None:
    """Write a stream as the clients read it; what is not finite is null, since JSON has no word for it."""
    calls = [
        {
            "start": call.start.tolist(),
            "x": [[[float(v) if np.isfinite(v) else None for v in row] for row in lane] for lane in call.x],
        }
        for call in stream
    ]
    path.write_text(json.dumps(calls, allow_nan=False), encoding="utf-8")


def read_array(document: Mapping[str, Any]) -> NDArray[np.float32]:
    """Give the array of a printed ``{"dims", "data"}``; null is NaN."""
    data = [np.nan if v is None else v for v in document["data"]]
    return np.array(data, np.float32).reshape(document["dims"])


# ------------------------------------------------------------------------------------------------------------- clients


class Program(Protocol):
    """A client that is ready to run."""

    @property
    def version(self) -> str:
        """Name and version of the runtime."""

    @property
    def most_lanes(self) -> int | None:
        """Lanes that a stream may have; None: any number."""

    def __call__(self, model: Path, streams: Sequence[Stream]) -> list[dict[str, Any]]:
        """Run each stream from the state of lanes that begin.

        Returns
        -------
        list of dict
            Per stream ``forecasts``: one array (B, T, h, C, Q) per call; and ``state``: arrays by the names of the
            inputs, where the client can tell.
        """


@dataclass(frozen=True, kw_only=True)
class JsonProgram:
    """A program that is called with the graph and the streams, and prints a line of JSON per stream."""

    command: Sequence[str]
    version: str
    most_lanes: int | None = None

    def __call__(self, model: Path, streams: Sequence[Stream]) -> list[dict[str, Any]]:
        """Run each stream; see :class:`Program`."""
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder, f"{i}.json") for i in range(len(streams))]
            for stream, file in zip(streams, files, strict=True):
                write_stream(stream, file)
            printed = run_program([*self.command, str(model), *map(str, files)]).splitlines()
        return [_arrays(json.loads(line)) for line in printed]


@dataclass(frozen=True, kw_only=True)
class TextProgram:
    """A program that reads one line per call of one lane, and prints one line of numbers."""

    command: Sequence[str]
    version: str
    most_lanes: int | None = 1

    def __call__(self, model: Path, streams: Sequence[Stream]) -> list[dict[str, Any]]:
        """Run each stream; see :class:`Program`."""
        lines, shapes = [], []
        contract = json.loads(model.with_suffix(".contract.json").read_text(encoding="utf-8"))
        for stream in streams:
            for i, call in enumerate(stream):
                # A new stream begins by the flag alone, over whatever the stream before it has left in the memory.
                words = [str(max(int(call.start[0]), int(i == 0))), *(f"{v:.9g}" for v in call.x.ravel())]
                lines.append(" ".join(words))
                shapes.append((1, call.x.shape[1], *contract["outputs"][0]["dims"][2:]))
        printed = iter(run_program([*self.command, str(model)], given="\n".join(lines) + "\n").splitlines())
        arrays = iter([np.array(line.split(), np.float32).reshape(s) for line, s in zip(printed, shapes, strict=True)])
        return [{"forecasts": [next(arrays) for _ in stream], "state": {}} for stream in streams]


@dataclass(frozen=True, kw_only=True)
class TritonProgram:
    """A server over a model repository, and a client that sends rows; the server is stopped after each run."""

    server: Path
    backends: Path
    command: Sequence[str]
    version: str
    most_lanes: int | None = None

    def __call__(self, model: Path, streams: Sequence[Stream]) -> list[dict[str, Any]]:
        """Run each stream; see :class:`Program`."""
        with tempfile.TemporaryDirectory() as folder, self.serve(model, Path(folder)) as (url, _):
            files = [Path(folder, f"{i}.json") for i in range(len(streams))]
            for stream, file in zip(streams, files, strict=True):
                write_stream(stream, file)
            printed = run_program([*self.command, url, "model", *map(str, files)]).splitlines()
        return [_arrays(json.loads(line)) for line in printed]

    @contextmanager
    def serve(self, model: Path, folder: Path) -> Iterator[tuple[str, Path]]:
        """Serve a graph; give the address and the server's log."""
        from txl_ts.export.triton import triton_config

        place = folder / "repository" / "model"
        (place / "1").mkdir(parents=True)
        shutil.copy(model, place / "1" / "model.onnx")
        contract = json.loads(model.with_suffix(".contract.json").read_text(encoding="utf-8"))
        (place / "config.pbtxt").write_text(triton_config(contract, name="model", n_lanes=8), encoding="utf-8")
        port, grpc_port = _free_ports(2)
        command = [str(self.server), f"--model-repository={place.parent}", f"--backend-directory={self.backends}"]
        command += ["--http-address=127.0.0.1", f"--http-port={port}", "--allow-metrics=false"]
        command += ["--grpc-address=127.0.0.1", f"--grpc-port={grpc_port}"]
        log = folder / "server.log"
        with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as server:
            try:
                _wait_until_ready(server, f"http://127.0.0.1:{port}/v2/health/ready", log)
                yield f"127.0.0.1:{grpc_port}", log
            finally:
                server.terminate()
                try:
                    server.wait(timeout=30)
                except subprocess.TimeoutExpired:
                    server.kill()


def _free_ports(n: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(n)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _wait_until_ready(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + _READY_S
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    lines = [line for line in log.read_text(errors="replace").splitlines() if not line.startswith(("|", "+"))]
    raise RuntimeError("the server did not become ready:\n" + "\n".join(lines[-20:]))


def run_program(command: Sequence[str], *, given: str | None = None) -> str:
    """Run a client; give what it prints.

    Raises
    ------
    RuntimeError
        If it fails, with what it said.
    """
    done = subprocess.run(command, input=given, capture_output=True, encoding="utf-8", timeout=_RUN_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _arrays(document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "forecasts": [read_array(entry) for entry in document["forecasts"]],
        "state": {name: read_array(entry) for name, entry in document.get("state", {}).items()},
    }


# -------------------------------------------------------------------------------------------------------- environments


@dataclass(frozen=True)
class Places:
    """Where the clients' sources are, and where their environments are made (and found again)."""

    examples: Path
    environments: Path

    def python(self, name: str, *requirements: str) -> Path:
        """Give the interpreter of an environment that has these packages."""
        folder = self.environments / name
        program = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
        stamp = folder / "requirements.json"
        wanted = json.dumps(requirements)
        if not (stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted):
            _install([sys.executable, "-m", "venv", "--clear", str(folder)])
            _install([str(program), "-m", "pip", "install", "--quiet", *requirements])
            stamp.write_text(wanted, encoding="utf-8")
        return program

    def node(self, name: str) -> Path:
        """Give a client's folder with its packages."""
        _need("node", "npm")
        source, folder = self.examples / name, self.environments / f"npm-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        package = (source / "package.json").read_text(encoding="utf-8")
        stamp = folder / "installed.json"
        if not (stamp.is_file() and stamp.read_text(encoding="utf-8") == package):
            shutil.copy(source / "package.json", folder)
            # The install script of onnxruntime-node would download GPU libraries.
            skip = {"ONNXRUNTIME_NODE_INSTALL": "skip"}
            _install(["npm", "install", "--no-audit", "--no-fund", "--prefer-offline"], cwd=folder, env=skip)
            stamp.write_text(package, encoding="utf-8")
        shutil.copy(source / "client.mjs", folder)
        return folder

    def compiled(self, name: str, source: Path, openvino: Path, *flags: str) -> Path:
        """Give a C++ program that was built against OpenVINO's wheel."""
        _need("g++")
        target = self.environments / "compiled" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_file() or target.stat().st_mtime < source.stat().st_mtime:
            libraries = sorted(map(str, (openvino / "libs").glob("libopenvino.so*")))
            command = ["g++", "-std=c++17", "-O1", *flags, f"-I{openvino / 'include'}", str(source), "-o", str(target)]
            _install([*command, *libraries, f"-Wl,-rpath,{openvino / 'libs'}"])
        return target


def _need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            raise MissingExtraError(f"{program} is not installed. Install it with the system's package manager.")


def _install(command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            capture_output=True,
            encoding="utf-8",
            timeout=_INSTALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MissingExtraError(f"`{Path(command[0]).name}` did not end within {_INSTALL_S} s.") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "error" in line.lower()][:1] or ["it said nothing"]
        raise MissingExtraError(f"`{' '.join([Path(command[0]).name, *command[1:4]])} …` failed: {said[0].strip()}")


def _version_of(python: Path, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return f"{package} {run_program([str(python), '-c', code]).strip()}"


def _package_folder(python: Path, package: str) -> Path:
    code = f"from importlib.util import find_spec; print(find_spec({package!r}).submodule_search_locations[0])"
    return Path(run_program([str(python), "-c", code]).strip())


def _ort_oldest(places: Places) -> Program:
    python = places.python("ort-oldest", OLDEST_ORT, ITS_NUMPY)
    return JsonProgram(command=_script(places, python, "python"), version=_version_of(python, "onnxruntime"))


def _ort_newest(places: Places) -> Program:
    python = places.python("ort-newest", "onnxruntime")
    return JsonProgram(command=_script(places, python, "python"), version=_version_of(python, "onnxruntime"))


def _ort_node(places: Places) -> Program:
    return _node_program(places, "node", "onnxruntime-node")


def _ort_web(places: Places) -> Program:
    return _node_program(places, "web", "onnxruntime-web")


def _node_program(places: Places, name: str, package: str) -> Program:
    folder = places.node(name)
    about = json.loads((folder / "node_modules" / package / "package.json").read_text(encoding="utf-8"))
    return JsonProgram(command=["node", str(folder / "client.mjs")], version=f"{package} {about['version']}")


def _openvino(places: Places) -> Program:
    python = places.python("openvino", "openvino")
    return JsonProgram(command=_script(places, python, "openvino"), version=_version_of(python, "openvino"))


def _openvino_cpp(places: Places) -> Program:
    python = places.python("openvino", "openvino")
    folder = _package_folder(python, "openvino")
    program = places.compiled("client_openvino", places.examples / "cpp" / "client_openvino.cpp", folder)
    return TextProgram(command=[str(program)], version=_version_of(python, "openvino"))


def _triton(places: Places) -> Program:
    if sys.platform != "linux":
        raise MissingExtraError("nvidia-pytriton carries Triton for Linux only.")
    openvino = places.python("openvino", "openvino")
    python = places.python("triton", "nvidia-pytriton")
    library = Path("backends", "onnxruntime", "libtriton_onnxruntime.so")
    (places.environments / "compiled" / library.parent).mkdir(parents=True, exist_ok=True)
    source, folder = places.examples / "triton" / "stand_in.cpp", _package_folder(openvino, "openvino")
    built = places.compiled(str(library), source, folder, "-shared", "-fPIC")
    return TritonProgram(
        server=_package_folder(python, "pytriton") / "tritonserver" / "bin" / "tritonserver",
        backends=built.parents[1],
        command=_script(places, python, "triton"),
        version=_version_of(python, "nvidia-pytriton"),
    )


def _script(places: Places, python: Path, name: str) -> list[str]:
    return [str(python), str(places.examples / name / "client.py")]


CLIENTS: Mapping[str, Callable[[Places], Program]] = {
    "ONNX Runtime, oldest": _ort_oldest,
    "ONNX Runtime, newest": _ort_newest,
    "ONNX Runtime, Node": _ort_node,
    "ONNX Runtime, WebAssembly": _ort_web,
    "OpenVINO, stateful": _openvino,
    "OpenVINO, C++": _openvino_cpp,
    "Triton's core over OpenVINO": _triton,
}


def prepare(name: str, *, environments: str | PathLike[str], examples: str | PathLike[str] = EXAMPLES) -> Program:
    """Make a client ready to run; its packages come from PyPI and npm.

    Parameters
    ----------
    name : str
        A key of ``CLIENTS``.
    environments : path
        Folder of the environments; what is there already is used again.
    examples : path
        ``examples/clients`` of a checkout.

    Returns
    -------
    Program

    Raises
    ------
    ParameterError
        If there are no such clients, or no such client.
    MissingExtraError
        If the client cannot run here, with the reason.
    """
    if name not in CLIENTS:
        raise ParameterError(f"there is no client {name!r}. Take one of {sorted(CLIENTS)}.")
    if not Path(examples, "python", "client.py").is_file():
        raise ParameterError(f"{str(examples)!r} holds no clients. Name examples/clients of a checkout of txl-ts.")
    return CLIENTS[name](Places(Path(examples).resolve(), Path(environments).resolve()))


# --------------------------------------------------------------------------------------------------------------- cases


def distance(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Give the largest difference over the largest size; infinity where they are not NaN at the same places."""
    if not np.array_equal(np.isnan(found), np.isnan(wanted)):
        return float("inf")
    wanted, found = np.nan_to_num(wanted.astype(np.float64)), np.nan_to_num(found.astype(np.float64))
    return float(np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-30))


def make_stream(
    *, n_lanes: int, lengths: Sequence[int], n_rows: int, n_channels: int, gaps: bool, restarts: bool, seed: int = 0
) -> list[Call]:
    """Make random walks around levels far apart, cut into calls.

    Parameters
    ----------
    n_lanes, n_rows, n_channels : int
    lengths : sequence of int
        Rows of the calls, over and over.
    gaps : bool
        Single missing rows, a run of them, and a late first value.
    restarts : bool
        The first lane begins anew about the middle, the last one a little later.
    seed : int

    Returns
    -------
    list of Call
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_lanes, n_rows, n_channels)).cumsum(axis=1) + 20 * rng.normal(size=(n_lanes, 1, n_channels))
    if gaps:
        x[rng.random(x.shape) < 0.1] = np.nan
        x[:, n_rows // 3 : n_rows // 3 + n_rows // 8] = np.nan
        x[0, :5] = np.nan
    edges = [0]
    while edges[-1] < n_rows:
        edges.append(min(edges[-1] + lengths[(len(edges) - 1) % len(lengths)], n_rows))
    calls = []
    for i, (begin, end) in enumerate(itertools.pairwise(edges)):
        start = np.full(n_lanes, int(i == 0), np.int32)
        start[0] |= restarts and i == len(edges) // 2
        start[-1] |= restarts and i == len(edges) // 2 + 1
        calls.append(Call(x[:, begin:end].astype(np.float32), start))
    return calls


def run_torch(model: Any, stream: Stream) -> tuple[list[NDArray[Any]], dict[str, NDArray[Any]]]:
    """Give the model's own forecasts of a stream and its last state, by the names of the model."""
    import torch

    state, found = model.init_state(len(stream[0].x)), []
    with torch.inference_mode():
        for call in stream:
            y, state = model(torch.from_numpy(call.x), state, torch.from_numpy(call.start[:, None]))
            found.append(y.numpy())
    return found, {name: tensor.numpy() for name, tensor in state.items()}


def models() -> dict[str, Any]:
    """Make the models of the table: random weights, so that whatever is not fed back shows."""
    import torch

    from txl_ts.config import ModelConfig
    from txl_ts.model import TXLModel

    common: dict[str, Any] = {"h": 3, "quantiles": (0.1, 0.5, 0.9), "half_life": 24.0, "dropout": 0.0}
    small = {**common, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24}
    hourly = {**small, "patch_len": 24, "stride": 24, "mem_len": 4, "lookback": 336}
    sizes = {
        "hourly forecaster, narrow": ModelConfig(**hourly),
        "row by row, M 40": ModelConfig(**small, patch_len=1, stride=1, mem_len=40, lookback=0),
        "two channels, standard scaler": ModelConfig(
            **small, n_channels=2, patch_len=4, stride=3, mem_len=5, lookback=16, scaler="standard"
        ),
        "no memory": ModelConfig(**small, patch_len=4, stride=4, mem_len=0, lookback=16),
    }
    generator = torch.Generator().manual_seed(0)
    made = {}
    for name, config in sizes.items():
        model: Any = TXLModel(config).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.2)
            if config.scaler == "standard":
                model.normaliser.mean.uniform_(-1, 1, generator=generator)
                model.normaliser.deviation.uniform_(0.5, 2, generator=generator)
        made[name] = model
    return made


def run(
    data: str | PathLike[str] | None = None,
    *,
    seeds: tuple[int, ...] = (0,),
    command: str | None = None,
    environments: str | PathLike[str] | None = None,
    examples: str | PathLike[str] = EXAMPLES,
    clients: Sequence[str] = tuple(CLIENTS),
) -> dict[str, Any]:
    """Measure every client on every model, batch, number of rows per call, with and without gaps and restarts.

    Parameters
    ----------
    data : path, optional
        Not used.
    seeds : tuple of int
        The first draws the rows.
    command : str, optional
        What rebuilds the table.
    environments : path, optional
        Folder of the clients' environments. Default: new ones, thrown away afterwards.
    examples : path
        ``examples/clients`` of a checkout.
    clients : sequence of str
        Which ones.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`; ``cases`` holds every case by itself, ``not_run`` the reasons.
    """
    from txl_ts.export import export_onnx

    about = {
        "model_type": "forecaster",
        "model_digest": "0" * 64,
        "freq": "1h",
        "time": {"kind": "integer", "zone": None, "step_ns": None, "step": 1},
        "trained": 1,
    }
    rows, cases, not_run = [], [], {}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        programs = {}
        for name in clients:
            try:
                programs[name] = prepare(name, environments=environments or scratch / "envs", examples=examples)
            except MissingExtraError as error:
                not_run[name] = str(error)
        for model_name, model in models().items():
            channels = [{"name": f"y{i}", "unit": None} for i in range(model.config.n_channels)]
            path = scratch / "model.onnx"
            export_onnx(model, path, about={**about, "channels": channels})
            streams = _streams(model.config.n_channels, seed=seeds[0])
            wanted = [np.concatenate(run_torch(model, stream)[0], axis=1) for _, stream in streams]
            for client, program in programs.items():
                fit = [i for i, (case, _) in enumerate(streams) if case["batch"] <= (program.most_lanes or 10**9)]
                given = program(path, [streams[i][1] for i in fit])
                errors = [
                    distance(np.concatenate(answer["forecasts"], axis=1), wanted[i])
                    for i, answer in zip(fit, given, strict=True)
                ]
                found = [{**streams[i][0], "error": error} for i, error in zip(fit, errors, strict=True)]
                cases += [{"model": model_name, "client": client, **case} for case in found]
                rows.append({"model": model_name, "client": client, "version": program.version, **_worst(found)})
    return {
        "name": "clients",
        "title": "Clients of the exported graph beside torch",
        "command": command or "txl-ts bench clients",
        "protocol": [
            "Each client steps one exported file through chained calls, its memories fed back, beside the torch model "
            "on the same rows. The figure is the largest difference over the largest value, over all rows, steps ahead "
            "and quantiles; every cell is the worst of its cases. T: rows per call; "
            f"mixed: {', '.join(map(str, LENGTHS['mixed']))}.",
        ],
        "columns": COLUMNS,
        "rows": rows,
        "notes": [
            "Triton's own core (nvidia-pytriton) validates the configuration, warms up, batches sequences and keeps "
            "the states; the graph is run by a stand-in for its onnxruntime backend, which the wheel lacks.",
            "A stream of the C++ client is one lane.",
            *(f"{name}: not run: {reason}" for name, reason in not_run.items()),
        ],
        "environment": report.environment(),
        "cases": cases,
        "not_run": not_run,
    }


def _streams(n_channels: int, *, seed: int) -> list[tuple[dict[str, Any], list[Call]]]:
    made: list[tuple[dict[str, Any], list[Call]]] = []
    for batch in BATCHES:
        for rows, lengths in LENGTHS.items():
            for gaps in (False, True):
                for restarts in (False, True):
                    stream = make_stream(
                        n_lanes=batch,
                        lengths=lengths,
                        n_rows=90 if rows == "1" else 450,
                        n_channels=n_channels,
                        gaps=gaps,
                        restarts=restarts,
                        seed=seed + len(made),
                    )
                    made.append(({"batch": batch, "rows": rows, "gaps": gaps, "restarts": restarts}, stream))
    return made


def _worst(cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Give the margins of a client's cases, as text: they are powers of ten."""

    def worst(**wanted: Any) -> str | None:
        errors = [case["error"] for case in cases if all(case[name] == value for name, value in wanted.items())]
        return f"{max(errors):.0e}" if errors else None

    return {
        "n_cases": len(cases),
        "worst": f"{max(case['error'] for case in cases):.1e}",
        **{f"batch_{n}": worst(batch=n) for n in BATCHES},
        **{f"rows_{name}": worst(rows=name) for name in LENGTHS},
        "plain": worst(gaps=False, restarts=False),
        "gaps": worst(gaps=True, restarts=False),
        "restarts": worst(gaps=False, restarts=True),
        "both": worst(gaps=True, restarts=True),
    }
