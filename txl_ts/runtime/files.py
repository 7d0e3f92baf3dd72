"""Streams as a file: the same stream-state bundle that an estimator's ``export_state`` writes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts import __version__
from txl_ts.errors import FileFormatError, StateError
from txl_ts.runtime.contract import Contract
from txl_ts.runtime.plan import Place
from txl_ts.store import Bundle, Expected, load, peek, save

StreamName = str | int
_HINT = "Take another copy of the file, or save it again."


def save_streams(
    path: str | PathLike[str],
    places: Mapping[StreamName, Place],
    arrays: Sequence[NDArray[Any]],
    contract: Contract,
) -> None:
    """Write streams; lane i of ``arrays`` is the i-th of ``places``."""
    config = {
        "class": "StreamState",
        "library": __version__,
        "model": contract.document.get("model"),
        "model_digest": contract.model_digest,
        "freq": contract.freq,
        "states": [asdict(spec) | {"shape": list(spec.shape)} for spec in contract.specs],
    }
    positions = {
        "ids": list(places),
        "origins": [place.origin for place in places.values()],
        "last": [place.n_rows - 1 for place in places.values()],
        "last_stamps": [place.last for place in places.values()],
    }
    state = dict(zip(contract.inputs, arrays, strict=True))
    save(path, Bundle("stream-state", config, {"state": state}, positions))


def load_streams(path: str | PathLike[str], contract: Contract) -> tuple[dict[StreamName, Place], list[NDArray[Any]]]:
    """Read streams back.

    Raises
    ------
    StateError
        If they belong to another model.
    FileFormatError
        If the file is damaged, of another role, or not what it claims.
    """
    where = os.fspath(path)
    role, config = peek(path)
    if role == "stream-state":
        _check_model(config, contract, where)

    def expected(config: dict[str, Any], positions: dict[str, Any]) -> Expected:
        n = len(_places(positions))
        return {
            "state": {
                name: ((n, *spec.shape), spec.dtype) for name, spec in zip(contract.inputs, contract.specs, strict=True)
            }
        }

    bundle = load(path, role="stream-state", expected=expected)
    _check_model(bundle.config, contract, where)  # the file may have been replaced in between
    arrays = [bundle.tensors["state"][name] for name in contract.inputs]
    for name, array in zip(contract.inputs, arrays, strict=True):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise FileFormatError(f"{where}: {name} holds numbers that are not finite; no model leaves such. {_HINT}")
    return _places(bundle.positions), arrays


def _check_model(config: dict[str, Any], contract: Contract, where: str) -> None:
    if (found := config.get("model_digest")) != contract.model_digest:
        raise StateError(
            f"{where} holds the streams of another model: digest {str(found)[:12]}…, this graph's is "
            f"{contract.model_digest[:12]}…. Restore into the graph that was exported from the same fit, or write the "
            "state again with `export_state`."
        )


def _places(positions: dict[str, Any]) -> dict[StreamName, Place]:
    """Give the streams' places, or raise ValueError where they make no sense."""
    ids, origins, last, stamps = (positions[key] for key in ("ids", "origins", "last", "last_stamps"))
    if len({len(ids), len(origins), len(last), len(stamps)}) != 1:
        raise ValueError("ids, origins, last and last_stamps must be equally long")
    if any(type(name) not in (str, int) for name in ids) or len(set(ids)) != len(ids):
        raise ValueError("ids must be distinct, each text or an integer")
    if any(type(n) is not int or not -1 <= n < 2**62 for n in last):
        raise ValueError("last must be integers of −1 or more")
    if any(one is not None and (type(one) is not int or abs(one) >= 2**63) for one in (*origins, *stamps)):
        raise ValueError("origins and last_stamps must be 64-bit integers or null")
    if any((a is None) != (b is None) for a, b in zip(origins, stamps, strict=True)):
        raise ValueError("a stream has both of origin and last stamp, or none")
    return {
        # A series without rows has no last stamp, whatever stands there.
        name: Place(n + 1, origin, stamp) if n >= 0 else Place()
        for name, origin, n, stamp in zip(ids, origins, last, stamps, strict=True)
    }
