"""Streams as a file: the same stream-state bundle that an estimator's ``export_state`` writes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts import __version__
from txl_ts.errors import FileFormatError, StateError
from txl_ts.runtime.contract import Contract
from txl_ts.runtime.kept import Record
from txl_ts.runtime.names import LaneName
from txl_ts.runtime.plan import Place
from txl_ts.store import Bundle, Expected, load, peek, save

_ROWS = "kept.rows"
_HINT = "Take another copy of the file, or save it again."


@dataclass(frozen=True, eq=False)
class Saved:
    """Streams as a file holds them.

    Attributes
    ----------
    places : dict of stream name to Place
        Those with their whole state; lane i of ``arrays`` is the i-th.
    arrays : list of array
    records : dict of stream name to (Place, Record, bool)
        Those without their memory, and whether their rows are all there are.
    """

    places: dict[LaneName, Place]
    arrays: Sequence[NDArray[Any]]
    records: dict[LaneName, tuple[Place, Record, bool]] = field(default_factory=dict)


def save_streams(path: str | PathLike[str], saved: Saved, contract: Contract, *, small: Sequence[int]) -> None:
    """Write streams; ``small`` are the state tensors that a record holds."""
    places = [*saved.places.values(), *(place for place, _, _ in saved.records.values())]
    config = {
        "class": "StreamState",
        "library": __version__,
        "model": contract.document.get("model"),
        "model_digest": contract.model_digest,
        "freq": contract.freq,
        "states": [asdict(spec) | {"shape": list(spec.shape)} for spec in contract.specs],
    }
    positions: dict[str, Any] = {
        "ids": [*saved.places, *saved.records],
        "origins": [place.origin for place in places],
        "last": [place.n_rows - 1 for place in places],
        "last_stamps": [place.last for place in places],
    }
    state = dict(zip(contract.inputs, saved.arrays, strict=True))
    if n_static := len(contract.layout.static):
        positions["described"] = [place.static is not None for place in places]
        state["static"] = np.array([place.static or (0.0,) * n_static for place in places], np.float32)
        state["static"] = state["static"].reshape(len(places), n_static)
    if saved.records:
        records = [record for _, record, _ in saved.records.values()]
        positions["kept"] = [len(record.rows) for record in records]
        positions["kept_second"] = [record.second_at for record in records]
        positions["kept_whole"] = [is_whole for _, _, is_whole in saved.records.values()]
        state[_ROWS] = np.concatenate([record.rows for record in records])
        for place, index in enumerate(small):
            name = contract.inputs[index]
            state[f"base.{name}"] = np.stack([record.base[place] for record in records])
            state[f"now.{name}"] = np.stack([record.now[place] for record in records])
            # Where there is no second note, any numbers keep its place.
            seconds = [record.base if record.second is None else record.second for record in records]
            state[f"second.{name}"] = np.stack([second[place] for second in seconds])
    save(path, Bundle("stream-state", config, {"state": state}, positions))


def load_streams(path: str | PathLike[str], contract: Contract, *, small: Sequence[int], most_rows: int) -> Saved:
    """Read streams back; ``most_rows`` are the rows that a record may hold.

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
        n, counts = len(_places(positions, contract)), _kept(positions, most_rows)
        whole, k = n - len(counts), len(counts)
        table: dict[str, tuple[tuple[int, ...], str]] = {
            name: ((whole, *spec.shape), spec.dtype) for name, spec in zip(contract.inputs, contract.specs, strict=True)
        }
        if contract.layout.static:
            table["static"] = ((n, len(contract.layout.static)), "float32")
        if counts:
            table[_ROWS] = ((sum(counts), contract.layout.n_kept), "float32")
            for index in small:
                name, spec = contract.inputs[index], contract.specs[index]
                for when in _whens(positions):
                    table[f"{when}.{name}"] = ((k, *spec.shape), spec.dtype)
        return {"state": table}

    bundle = load(path, role="stream-state", expected=expected)
    _check_model(bundle.config, contract, where)  # the file may have been replaced in between
    tensors, counts = bundle.tensors["state"], _kept(bundle.positions, most_rows)
    for name, array in tensors.items():
        is_raw = name in (_ROWS, "static")
        if array.dtype.kind == "f" and not (np.isinf(array).any() if is_raw else not np.isfinite(array).all()):
            continue
        if array.dtype.kind == "f":
            raise FileFormatError(f"{where}: {name} holds numbers that are not finite; no model leaves such. {_HINT}")
    places = list(_places(bundle.positions, contract).items())
    if contract.layout.static:
        places = _described(places, bundle.positions, tensors["static"])
    n_whole, ends = len(places) - len(counts), np.cumsum(counts)
    records: dict[LaneName, tuple[Place, Record, bool]] = {}
    for i, (stream, place) in enumerate(places[n_whole:]):
        base, now, *noted = (
            [tensors[f"{when}.{contract.inputs[k]}"][i] for k in small] for when in _whens(bundle.positions)
        )
        rows = tensors[_ROWS][ends[i] - counts[i] : ends[i]]
        at = bundle.positions["kept_second"][i] if noted else 0
        record = Record(base, rows, now, noted[0] if at else None, at)
        records[stream] = (place, record, bundle.positions["kept_whole"][i])
    return Saved(dict(places[:n_whole]), [tensors[name] for name in contract.inputs], records)


def _described(
    places: list[tuple[LaneName, Place]], positions: dict[str, Any], static: NDArray[np.float32]
) -> list[tuple[LaneName, Place]]:
    """Put what is static of streams into their places."""
    flags = positions.get("described", [True] * len(places))
    return [
        (name, replace(place, static=tuple(row) if flag else None))
        for (name, place), row, flag in zip(places, static.tolist(), flags, strict=True)
    ]


def _whens(positions: dict[str, Any]) -> tuple[str, ...]:
    """Name the moments of which a record has small tensors; the first files had no second note."""
    return ("base", "now", "second") if "kept_second" in positions else ("base", "now")


def _kept(positions: dict[str, Any], most_rows: int) -> list[int]:
    """Give the rows of each record, or raise ValueError where they make no sense."""
    if "kept" not in positions:
        return []
    counts, flags = positions["kept"], positions["kept_whole"]
    if any(type(n) is not int or not 0 <= n <= most_rows for n in counts) or len(counts) > len(positions["ids"]):
        raise ValueError(f"kept must be counts of at most {most_rows} rows, for no more than all streams")
    if len(flags) != len(counts) or any(type(flag) is not bool for flag in flags):
        raise ValueError("kept_whole must be one flag for each of kept")
    seconds = positions.get("kept_second", [0] * len(counts))
    if len(seconds) != len(counts) or any(
        type(at) is not int or not 0 <= at <= n for at, n in zip(seconds, counts, strict=True)
    ):
        raise ValueError("kept_second must be a place among the rows for each of kept")
    return list(counts)


def _check_model(config: dict[str, Any], contract: Contract, where: str) -> None:
    if (found := config.get("model_digest")) != contract.model_digest:
        raise StateError(
            f"{where} holds the streams of another model: digest {str(found)[:12]}…, this graph's is "
            f"{contract.model_digest[:12]}…. Restore into the graph that was exported from the same fit, or write the "
            "state again with `export_state`."
        )


def _places(positions: dict[str, Any], contract: Contract) -> dict[LaneName, Place]:
    """Give the streams' places, or raise ValueError where they make no sense."""
    ids, origins, last, stamps = (positions[key] for key in ("ids", "origins", "last", "last_stamps"))
    if contract.targets:
        if any(type(pair) is not list or len(pair) != 2 or pair[1] not in contract.targets for pair in ids):
            raise ValueError("ids must be pairs of a stream and a target")
        names = [pair[0] for pair in ids]
        ids = [tuple(pair) for pair in ids]
    else:
        names = ids
    if len({len(ids), len(origins), len(last), len(stamps)}) != 1:
        raise ValueError("ids, origins, last and last_stamps must be equally long")
    if any(type(name) not in (str, int) for name in names) or len(set(ids)) != len(ids):
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
