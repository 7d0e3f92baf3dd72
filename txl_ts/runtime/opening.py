"""From a file to a fleet that is ready to step: the graph, the fixed one beside it, and how both may be run."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path

from txl_ts.errors import FileFormatError
from txl_ts.runtime.desk import Manner
from txl_ts.runtime.engine import Engine, Steps
from txl_ts.runtime.fleet import Fleet
from txl_ts.runtime.manner import manner_of
from txl_ts.runtime.warned import warn

STEP_SUFFIX = ".step.onnx"


def open_fleet(
    model: str | PathLike[str] | bytes, *, providers: str | Sequence[str], threads: int, cuda_graph: bool
) -> Fleet:
    """Load a graph.

    Warns
    -----
    TxlWarning
        If the graph for one row that lies beside it belongs to another model; it is not used then.
    """
    if isinstance(model, bytes):
        engine = Engine(model, where="the graph", providers=providers, threads=threads, cuda_graph=cuda_graph)
        return Fleet(manner_of(engine, where="the graph"), stays_on_device=_stays(engine))
    where, data = _read(model)
    engine = Engine(data, where=where, providers=providers, threads=threads, cuda_graph=cuda_graph)
    one = None
    if engine.contract.fixed is None:
        one = _one_row(Path(where), engine, providers=providers, threads=threads, cuda_graph=cuda_graph)
    return Fleet(manner_of(engine, where=where), one, stays_on_device=_stays(engine))


def _stays(engine: Engine) -> bool:
    """What a detector says is put together on the host."""
    return engine.device != "cpu" and not engine.contract.is_detector


def fleet_of(steps: Steps) -> Fleet:
    """Give an empty fleet over anything that has a contract and runs arrays."""
    return Fleet(manner_of(steps, where="the model"))


def _one_row(
    path: Path, engine: Engine, *, providers: str | Sequence[str], threads: int, cuda_graph: bool
) -> Manner | None:
    beside = path.with_suffix("").with_name(path.stem + STEP_SUFFIX)
    if not beside.is_file():
        return None
    where, data = _read(beside)
    one = Engine(data, where=where, providers=providers, threads=threads, cuda_graph=cuda_graph)
    mine, other = engine.contract, one.contract
    if other.model_digest != mine.model_digest or other.specs != mine.specs or other.fixed != (1, 1):
        warn(
            f"{where} is no graph for one row of the model in {path.name} (digest {other.model_digest[:12]}…, expected "
            f"{mine.model_digest[:12]}…) and is not used. Export both again with `export_onnx`, or remove it.",
        )
        return None
    return manner_of(one, where=where)


def _read(path: str | PathLike[str]) -> tuple[str, bytes]:
    if Path(path).is_dir():
        raise FileFormatError(
            f"{fspath(path)} is a folder, expected a graph. Pass the file that `export_onnx` wrote, such as "
            f"{fspath(Path(path) / 'demand.onnx')}."
        )
    with open(path, "rb") as file:
        return fspath(path), file.read()
