"""The sample of earlier rows in a forecaster's file: rows end to end, and whose they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.config import ModelConfig
from txl_ts.training import Reservoir, Stretch

Arrays = dict[str, NDArray[Any]]


def replay_arrays(replay: Reservoir) -> Arrays:
    """Give the rows of all stretches, end to end, and what there is one of for each; nothing of an empty sample."""
    if not replay.kept:
        return {}
    whole = {name: [getattr(one, name) for one in replay.kept] for name in ("values", "hist", "futr", "unit", "static")}
    rows = {f"replay.{name}": np.concatenate(whole[name]) for name in ("values", "hist", "futr")}
    each = {f"replay.{name}": np.stack(whole[name]) for name in ("unit", "static")}
    return {name: array for name, array in (rows | each).items() if array.size}


def replay_positions(replay: Reservoir) -> dict[str, Any]:
    """Give the series and the rows of each stretch."""
    return {
        "replay": [stretch.id for stretch in replay.kept],
        "replay_lengths": [len(stretch.values) for stretch in replay.kept],
    }


def replay_table(
    about: Mapping[str, Any], positions: Mapping[str, Any], sizes: ModelConfig
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Describe what :func:`replay_arrays` would give; ValueError or KeyError where a file claims what cannot be."""
    n, n_rows = len(positions["replay"]), sum(_lengths(about, positions))
    channels = () if sizes.n_channels == 1 else (sizes.n_channels,)
    shapes = {"values": (n_rows, *channels), "hist": (n_rows, len(sizes.hist_kinds))}
    shapes |= {"futr": (n_rows, len(sizes.futr_kinds)), "unit": (n, *channels), "static": (n, len(sizes.static_kinds))}
    return {f"replay.{name}": (shape, "float32") for name, shape in shapes.items() if np.prod(shape, dtype=object)}


def replay_from(about: Mapping[str, Any] | None, arrays: Arrays, positions: Mapping[str, Any]) -> Reservoir:
    """Take back what was saved; ValueError or KeyError for what cannot be."""
    if about is None:
        return Reservoir()
    ids, lengths = positions["replay"], _lengths(about, positions)
    if any(type(name) not in (str, int) for name in ids):
        raise ValueError("ids must be text or integers")
    ends = np.cumsum([0, *lengths])
    kept = []
    for i, name in enumerate(ids):
        rows = slice(ends[i], ends[i + 1])
        none = np.zeros((lengths[i], 0), np.float32)
        hist, futr = (arrays[name][rows] if name in arrays else none for name in ("replay.hist", "replay.futr"))
        static = arrays["replay.static"][i] if "replay.static" in arrays else none[0]
        kept.append(Stretch(name, arrays["replay.values"][rows], arrays["replay.unit"][i], hist, futr, static))
    return Reservoir(about["size"], about["n_rows"], about["n_seen"], tuple(kept))


def _lengths(about: Mapping[str, Any], positions: Mapping[str, Any]) -> list[int]:
    lengths = positions["replay_lengths"]
    counts = [about[name] for name in ("size", "n_rows", "n_seen")]
    if any(type(n) is not int or n < 0 for n in [*counts, *lengths]):
        raise ValueError("a sample counts in integers")
    size, n_rows, n_seen = counts
    if len(lengths) != len(positions["replay"]) or len(lengths) > min(size, n_seen):
        raise ValueError("a sample holds at most its size, with a length for each series")
    if not size or not all(0 < length <= n_rows for length in lengths):
        raise ValueError("stretches have from 1 to n_rows rows")
    return lengths
