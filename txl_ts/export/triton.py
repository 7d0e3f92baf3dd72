"""Write a model repository for Triton: the server keeps the memories of every stream, clients send rows only.

Triton's sequence batcher packs the next rows of many streams into one call, raises ``start`` where a stream begins, and
feeds every ``present.NN.…`` back as its ``past.NN.…``. The configuration is made of the contract alone.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from txl_ts.errors import ParameterError, SaveError
from txl_ts.export.onnx import export_onnx
from txl_ts.model import TXLModel
from txl_ts.store.atomic import replacing

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_TYPES = {"float32": "TYPE_FP32", "float16": "TYPE_FP16", "int32": "TYPE_INT32", "int64": "TYPE_INT64"}


class _Word(str):
    """A name of the configuration's own language, which stands without quotes."""

    __slots__ = ()


def export_triton(
    model: TXLModel,
    folder: str | PathLike[str],
    *,
    name: str,
    about: Mapping[str, Any],
    n_streams: int = 1024,
    n_lanes: int = 64,
    idle_min: float = 60.0,
) -> dict[str, Any]:
    """Export a model into a model repository, as ``<name>/config.pbtxt`` and ``<name>/1/model.onnx``.

    Parameters
    ----------
    model : TXLModel
    folder : path
        The repository; made if it is not there. A model of this name in it is replaced, others are left alone.
    name : str
        Under which clients ask for the model: letters, digits, ``_``, ``-`` and ``.``.
    about : mapping
        As in :func:`txl_ts.export.export_onnx`.
    n_streams, n_lanes, idle_min
        As in :func:`triton_config`.

    Returns
    -------
    dict
        The contract, which lies beside the graph.

    Raises
    ------
    ParameterError
        If the name or a number cannot be used.
    MissingExtraError, ExportError, SaveError
        As in :func:`txl_ts.export.export_onnx`. The repository is as it was then.
    """
    _check(name=name, n_streams=n_streams, n_lanes=n_lanes, idle_min=idle_min)
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A server that polls the repository must not see a graph without its configuration; it skips hidden folders.
        with tempfile.TemporaryDirectory(dir=folder, prefix=f".{name}-") as scratch:
            graph, draft, place = Path(scratch, "model.onnx"), Path(scratch, "model"), folder / name
            contract = export_onnx(model, graph, about=about)
            text = triton_config(contract, name=name, n_streams=n_streams, n_lanes=n_lanes, idle_min=idle_min)
            files = {
                "config.pbtxt": text.encode(),
                "1/model.contract.json": graph.with_suffix(".contract.json").read_bytes(),
                "1/model.onnx": graph.read_bytes(),  # a graph of one row would not do: lanes share a call
            }
            target = place if place.exists() else draft
            (target / "1").mkdir(parents=True, exist_ok=True)
            for part, data in files.items():
                with replacing(os.fspath(target / part)) as file:
                    file.write(data)
            if target == draft:
                draft.rename(place)
    except SaveError:
        raise
    except OSError as error:
        raise SaveError(
            f"could not write the model repository {str(folder)!r}: {error}. Name another folder, or make room."
        ) from error
    return contract


def triton_config(
    contract: Mapping[str, Any], *, name: str, n_streams: int = 1024, n_lanes: int = 64, idle_min: float = 60.0
) -> str:
    """Lay a contract out as ``config.pbtxt``.

    Parameters
    ----------
    contract : mapping
        What :func:`txl_ts.export.export_onnx` gave.
    name : str
        Of the model in its repository.
    n_streams : int
        Streams that are alive at once; further ones wait until one ends. Each costs ``state_nbytes`` of the contract.
    n_lanes : int
        Most streams in one call of the graph.
    idle_min : float
        Minutes without a row after which the server forgets a stream.

    Returns
    -------
    str
        A ``ModelConfig`` in protobuf's text form.

    Raises
    ------
    ParameterError
        If the name or a number cannot be used.
    """
    _check(name=name, n_streams=n_streams, n_lanes=n_lanes, idle_min=idle_min)
    inputs = [entry for entry in contract["inputs"] if entry["name"] != "start"]
    states = contract["states"]
    # Warm-up goes past the sequence batcher: whatever the batcher would have filled in has to be listed.
    warm = [(entry["name"], entry["dtype"], _dims(entry, dynamic=1)) for entry in inputs]
    warm += [("start", "int32", [1]), *((state["in"], state["dtype"], state["dims"]) for state in states)]
    one = {"string_value": "1"}
    config = {
        "name": name,
        "backend": "onnxruntime",
        "max_batch_size": n_lanes,
        "input": [_tensor(entry) for entry in inputs],
        "output": [_tensor(entry) for entry in contract["outputs"]],
        "instance_group": [{"kind": _Word("KIND_CPU"), "count": 1}],
        "parameters": [
            {"key": "intra_op_thread_count", "value": one},
            {"key": "inter_op_thread_count", "value": one},
        ],
        "sequence_batching": {
            "max_sequence_idle_microseconds": round(idle_min * 60e6),
            "oldest": {"max_candidate_sequences": n_streams},
            "control_input": [
                {
                    "name": "start",
                    "control": [{"kind": _Word("CONTROL_SEQUENCE_START"), "int32_false_true": [0, 1]}],
                }
            ],
            "state": [
                {
                    "input_name": state["in"],
                    "output_name": state["out"],
                    "data_type": _type(state["dtype"]),
                    "dims": list(state["dims"]),
                    "initial_state": [
                        {
                            "name": "zeros",
                            "data_type": _type(state["dtype"]),
                            "dims": list(state["dims"]),
                            "zero_data": True,
                        }
                    ],
                }
                for state in states
            ],
        },
        "model_warmup": [
            {
                "name": "one row",
                "batch_size": lanes,
                "inputs": [
                    {"key": key, "value": {"data_type": _type(dtype), "dims": list(dims), "zero_data": True}}
                    for key, dtype, dims in warm
                ],
            }
            for lanes in sorted({1, n_lanes})
        ],
    }
    return "\n".join(_lines(config)) + "\n"


def _check(*, name: str, n_streams: int, n_lanes: int, idle_min: float) -> None:
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ParameterError(
            f"the model's name {name!r} cannot be used by Triton. Take letters, digits, '_', '-' and '.', such as "
            "name='demand'."
        )
    for argument, value in {"n_streams": n_streams, "n_lanes": n_lanes}.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ParameterError(f"{argument}={value!r} must be a whole number of at least 1, such as {argument}=64.")
    if not 0 < idle_min < 1e9:
        raise ParameterError(f"idle_min={idle_min!r} must be minutes above 0, such as idle_min=60.")


def _tensor(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": entry["name"], "data_type": _type(entry["dtype"]), "dims": _dims(entry, dynamic=-1)}


def _dims(entry: Mapping[str, Any], *, dynamic: int) -> list[int]:
    """Give the sizes of one lane: Triton leaves the batch away, and writes −1 for what a call decides."""
    return [dynamic if isinstance(size, str) else size for size in entry["dims"][1:]]


def _type(dtype: str) -> _Word:
    return _Word(_TYPES[dtype])


def _lines(fields: Mapping[str, Any], indent: str = "") -> list[str]:
    """Write fields in protobuf's text form; a list of mappings is a repeated message."""
    lines = []
    for name, value in fields.items():
        for item in value if isinstance(value, list) and value and isinstance(value[0], dict) else [value]:
            if isinstance(item, dict):
                lines += [f"{indent}{name} {{", *_lines(item, indent + "  "), f"{indent}}}"]
            else:
                lines.append(f"{indent}{name}: {_scalar(item)}")
    return lines


def _scalar(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case _Word():
            return value
        case str():
            return f'"{value}"'
        case list():
            return f"[{', '.join(map(str, value))}]"
    return str(value)
