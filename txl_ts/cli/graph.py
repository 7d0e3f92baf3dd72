"""``txl-ts export`` and ``txl-ts inspect``: a saved model becomes a graph, and any of our files a data sheet."""

import json
from pathlib import Path
from typing import Any

from txl_ts.errors import FileFormatError, ParameterError


def run_export(
    model: Path, out: Path | None, *, precision: str = "float32", profile: str = "opset18", max_error: float = 0.05
) -> None:
    """Write graphs, contract and fitted memories of a saved forecaster, side by side.

    Parameters
    ----------
    model : Path
        What ``TXLForecaster.save`` wrote.
    out : Path or None
        The graph; by default beside the model, with the suffix ``.onnx``.
    precision, profile, max_error
        As in ``TXLForecaster.export_onnx``.

    Raises
    ------
    ParameterError
        If ``out`` is no name of a graph.
    """
    from txl_ts.estimators.forecaster import TXLForecaster
    from txl_ts.export import STEP_SUFFIX

    graph = model.with_suffix(".onnx") if out is None else out
    if graph.suffix != ".onnx":
        raise ParameterError(
            f"--out {str(graph)!r} must end with .onnx: take {str(graph.with_suffix('.onnx'))!r}. What goes beside the "
            "graph is named after it."
        )
    state = graph.with_name(f"{graph.stem}-state.txl")
    forecaster = TXLForecaster.load(model)
    contract = forecaster.export_onnx(graph, precision=precision, profile=profile, max_error=max_error)
    forecaster.export_state(state)
    print("\n".join(contract_lines(contract)))
    beside = f"{graph.with_suffix(STEP_SUFFIX)}, {graph.with_suffix('.contract.json')}, {state}"
    print(f"\nWritten: {graph} ({graph.stat().st_size / 1024:,.0f} KiB), {beside}")


def run_export_triton(model: Path, repository: Path) -> None:
    """Write a model repository for Triton that holds a saved forecaster under its file's name.

    Parameters
    ----------
    model : Path
        What ``TXLForecaster.save`` wrote.
    repository : Path
        The folder; other models in it are left alone.
    """
    from txl_ts.estimators.forecaster import TXLForecaster

    contract = TXLForecaster.load(model).export_triton(repository, name=model.stem)
    print("\n".join(contract_lines(contract)))
    print(f"\nWritten: {repository / model.stem}. Serve it with tritonserver --model-repository={repository}")


def run_inspect(path: Path) -> None:
    """Print what a model, state, graph or contract is.

    Raises
    ------
    FileFormatError
        If it is none of ours.
    """
    if path.suffix == ".onnx":
        print("\n".join(contract_lines(_contract_of(path))))
    elif path.suffix == ".json":
        print("\n".join(contract_lines(_parsed(path.read_text(encoding="utf-8"), path))))
    else:
        from txl_ts.store import peek

        role, config = peek(path)
        print("\n".join([_line("role", role), *(_line(name, config[name]) for name in config if name != "states")]))


def contract_lines(contract: dict[str, Any]) -> list[str]:
    """Lay a contract out as a data sheet."""
    memory, segment = contract["memory"], contract["segment"]
    targets = contract.get("targets") or [channel["name"] for channel in contract["inputs"][0]["channels"]]
    channels = ", ".join(targets)
    parity = contract["parity"]
    return [
        _line("model", f"{contract['model_type']}, schema {contract['schema']}, txl-ts {contract['library']}"),
        _line("channels", f"{channels} (raw units; {contract['missing']} = missing)"),
        *(_line(entry["name"], _columns(entry)) for entry in contract["inputs"] if "columns" in entry),
        _line("step", contract["freq"]),
        _line("forecast", f"{contract['horizon']} steps ahead, quantiles {contract['quantiles']}"),
        _line("memory", f"{memory['layers']} layers × {memory['length']} visits of stride {memory['stride']}"),
        _line("reach", f"{memory['reach']} rows; look-back of the linear path {contract['lookback']} rows"),
        _line("state", f"{contract['state_nbytes'] / 1024:.1f} KiB per stream"),
        *(_line(f"  {s['in']}", f"{s['dtype']} [batch, {', '.join(map(str, s['dims']))}]") for s in contract["states"]),
        _line("rows per call", f"{segment['min']} to {segment['max']}"),
        _line("opset, IR", f"{contract['opset']}, {contract['ir']}{_runtime(contract)}"),
        _line("precision", _precision(contract)),
        _line("parity", f"{parity['max_relative']:.1e} over {parity['rows']} rows × {parity['lanes']} lanes"),
    ]


def _columns(entry: dict[str, Any]) -> str:
    """Name the columns of an input; the calendar's features in one word."""
    names = [column["name"] for column in entry["columns"] if column["kind"] != "calendar"]
    features = [column["name"].partition(".")[0] for column in entry["columns"] if column["kind"] == "calendar"]
    return ", ".join(names + [f"calendar ({', '.join(dict.fromkeys(features))})"] * bool(features))


def _runtime(contract: dict[str, Any]) -> str:
    return f"; ONNX Runtime {contract['min_onnxruntime']} or newer" if "min_onnxruntime" in contract else ""


def _precision(contract: dict[str, Any]) -> str:
    error = contract.get("precision_error")
    if error is None:
        return str(contract["precision"])
    return f"{contract['precision']}: off by at most {error['max']:.1e} {error['unit']}, on {error['on']}"


def _line(name: str, value: Any) -> str:
    return f"{name:<16} {value}"


def _contract_of(path: Path) -> dict[str, Any]:
    from txl_ts.export import CONTRACT_KEY, load_proto

    entries = {entry.key: entry.value for entry in load_proto(path).metadata_props}
    if CONTRACT_KEY not in entries:
        raise FileFormatError(
            f"{str(path)!r} is an ONNX graph without a txl-ts contract. Export it with txl-ts export."
        )
    return _parsed(entries[CONTRACT_KEY], path)


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        contract = json.loads(text)
        contract_lines(contract)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise FileFormatError(f"{str(path)!r} holds no contract of txl-ts ({error!r}).") from error
    return dict(contract)
