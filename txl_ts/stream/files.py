"""A watch as files: the streams' state and the model's memories, which always belong to the same moment."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts import __version__
from txl_ts.errors import FileFormatError, ParameterError, SaveError
from txl_ts.forms import check_form
from txl_ts.store import Bundle, Expected, load, peek, save
from txl_ts.stream.watch import FORM, Watch

_CLASS = "WatchState"
_FILE = "watch.txl"
_HINT = "Take another copy of the folder, or begin the streams anew."


def to_arrays(state: Any) -> dict[str, NDArray[Any]]:
    """Pack plain JSON with float64 arrays in it into two arrays.

    Returns
    -------
    dict
        ``"document"``: JSON text as uint8, in which an array stands as ``{"$array": [start, n]}``; ``"floats"``: the
        arrays, one behind the other.

    Raises
    ------
    ParameterError
        If something in it is neither.
    """
    parts: list[NDArray[np.float64]] = []
    at = 0

    def plain(value: Any) -> Any:
        nonlocal at
        if isinstance(value, np.ndarray):
            if value.dtype != np.float64 or value.ndim != 1:
                raise ParameterError(f"arrays of a state must be float64 of one axis, got {value.dtype} {value.shape}.")
            parts.append(value)
            at += len(value)
            return {"$array": [at - len(value), len(value)]}
        if isinstance(value, Mapping):
            return {key: plain(one) for key, one in value.items()}
        return [plain(one) for one in value] if isinstance(value, list | tuple) else value

    text = json.dumps(plain(state), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    document = np.frombuffer(text.encode("ascii"), np.uint8)
    return {"document": document, "floats": np.concatenate(parts) if parts else np.zeros(0)}


def from_arrays(arrays: Mapping[str, NDArray[Any]], *, where: str = "the state") -> Any:
    """Unpack what ``to_arrays`` packed.

    Raises
    ------
    FileFormatError
        If it is anything else.
    """
    floats = arrays["floats"]

    def full(value: Any) -> Any:
        if isinstance(value, dict):
            if value.keys() == {"$array"}:
                start, n = value["$array"]
                if type(start) is not int or type(n) is not int or not 0 <= start <= start + n <= len(floats):
                    raise ValueError(f"an array from {start!r} of {n!r} numbers does not exist")
                return floats[start : start + n].copy()
            return {key: full(one) for key, one in value.items()}
        return [full(one) for one in value] if isinstance(value, list) else value

    try:
        return full(json.loads(arrays["document"].tobytes().decode("ascii"), parse_constant=_no_number))
    except (ValueError, TypeError, RecursionError) as error:
        raise FileFormatError(f"{where}: the streams' document is damaged: {error}. {_HINT}") from error


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number")


def snapshot(watch: Watch, folder: str | PathLike[str], *, source: Any = None) -> None:
    """Write a watch and its model's memories; a kill at any moment leaves this snapshot or the one before, whole.

    The model's file goes first, under a name of its own; then ``watch.txl``, which names it, replaces the old one in
    one step; then the old model's file is removed.

    Parameters
    ----------
    watch : Watch
        Its model must have ``snapshot(path)``.
    folder : path
        Made if it is not there; nothing else should live in it.
    source : plain JSON, optional
        Where the source stood at this moment, in its own words; :func:`read_source` gives it back.

    Raises
    ------
    SaveError
        If it cannot be written; the snapshot before is intact.
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(
            f"{os.fspath(place)} cannot be made a folder: {error.strerror}. Pass a folder that is there, or a name in "
            "one that you may write to."
        ) from error
    number = 1 + (_number(peek(place / _FILE)[1]) if (place / _FILE).exists() else -1)
    model_file = f"model-{number}.txl"
    write: Callable[[str], None] = watch.model.snapshot  # type: ignore[attr-defined]
    write(os.fspath(place / model_file))
    arrays = to_arrays(watch.to_state())
    config = {
        "class": _CLASS,
        "library": __version__,
        "number": number,
        "channels": list(watch.intake.channels),
        "sizes": {name: len(array) for name, array in arrays.items()},
    }
    positions = {"streams": [[name, watch.counts(name)["n_messages"]] for name in watch.streams], "source": source}
    save(place / _FILE, Bundle("stream-state", config, {"state": arrays}, positions))
    for old in place.glob("model-*.txl"):
        if old.name != model_file:
            old.unlink()


def restore(watch: Watch, folder: str | PathLike[str]) -> dict[str | int, int]:
    """Put a snapshot in place of all streams of a watch and of its model.

    Parameters
    ----------
    watch : Watch
        Made with the same channels, rules and kind of calibration; its model must have ``restore(path)``.
    folder : path
        What :func:`snapshot` wrote.

    Returns
    -------
    dict of stream name to int
        How many messages of each had been taken in: the source is to be read on from there.

    Raises
    ------
    FileFormatError
        If a file is damaged or none of ours.
    StateError
        If it belongs to another model, other channels or other rules.
    """
    place = Path(folder)
    where = os.fspath(place / _FILE)
    bundle = _load(where)
    state = from_arrays(bundle.tensors["state"], where=where)
    beside = Watch(
        watch.intake, watch.model, score=watch.score, calibration=watch.calibration, alerts=watch.alerts
    )  # a state that does not fit must not cost the streams that are here
    try:
        check_form(state, FORM, where="the streams' document")
    except ValueError as error:
        raise FileFormatError(f"{where}: {error}. {_HINT}") from error
    beside.from_state(state)
    read: Callable[[str], None] = watch.model.restore  # type: ignore[attr-defined]
    read(os.fspath(place / f"model-{_number(bundle.config)}.txl"))
    watch.from_state(state)
    return {name: watch.counts(name)["n_messages"] for name in watch.streams}


def read_source(folder: str | PathLike[str]) -> Any:
    """Give what :func:`snapshot` was told about the source; None if it was told nothing.

    Raises
    ------
    FileFormatError
        If the file is damaged or none of ours.
    FileNotFoundError
        If there is no snapshot in the folder.
    """
    return _load(os.fspath(Path(folder) / _FILE)).positions.get("source")


def _load(where: str) -> Bundle:
    def expected(config: dict[str, Any], positions: dict[str, Any]) -> Expected:
        sizes = config["sizes"]
        if config.get("class") != _CLASS or any(type(sizes[name]) is not int for name in ("document", "floats")):
            raise ValueError("it holds no streams of a watch")
        return {"state": {"document": ((sizes["document"],), "uint8"), "floats": ((sizes["floats"],), "float64")}}

    return load(where, role="stream-state", expected=expected)


def _number(config: Mapping[str, Any]) -> int:
    number = config.get("number")
    if type(number) is not int or not 0 <= number < 2**53:
        raise FileFormatError(f"{_FILE} names the model's file by {number!r:.40}, expected a count. {_HINT}")
    return number
