"""State as flat, named, fixed-shape arrays: axis 0 is the lane, every initial value is zero.

The torch model, the exported graph and the files all carry the same tensors under the same names. Nothing is changed in
place: every function gives new arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import StateError

State = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape of one lane, and dtype of one state tensor.

    Parameters
    ----------
    name : str
        Short name, such as ``"keys_0"``.
    shape : tuple of int
        Shape without the lane axis.
    dtype : str
        Numpy name of the dtype, ``"float32"`` or ``"int32"``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of one lane."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


def init_state(specs: Iterable[TensorSpec], *, n_lanes: int) -> State:
    """Give the state of lanes that have seen nothing."""
    return {spec.name: np.zeros((n_lanes, *spec.shape), spec.dtype) for spec in specs}


def state_nbytes(specs: Iterable[TensorSpec]) -> int:
    """Bytes that one lane's state takes."""
    return sum(spec.nbytes for spec in specs)


def n_lanes(state: Mapping[str, NDArray[Any]]) -> int:
    """Count the lanes of a state."""
    return len(next(iter(state.values())))


def select(state: Mapping[str, NDArray[Any]], lanes: NDArray[Any]) -> State:
    """Copy some lanes (indices or mask) out of a state."""
    return {name: array[_checked(lanes, n=len(array))].copy() for name, array in state.items()}


def put(state: Mapping[str, NDArray[Any]], lanes: NDArray[Any], part: Mapping[str, NDArray[Any]]) -> State:
    """Give the state with some lanes replaced by those of ``part``."""
    out = {}
    for name, array in state.items():
        out[name] = array.copy()
        out[name][_checked(lanes, n=len(array))] = part[name]
    return out


def reset(state: Mapping[str, NDArray[Any]], lanes: NDArray[Any]) -> State:
    """Give the state with some lanes made fresh; the others stay bit for bit."""
    out = {}
    for name, array in state.items():
        out[name] = array.copy()
        out[name][_checked(lanes, n=len(array))] = 0
    return out


def graph_names(names: Iterable[str], *, prefix: str = "past") -> list[str]:
    """Give the graph's names of state tensors, ``past.00.keys_0`` and so on: they sort alike for inputs and outputs."""
    return [f"{prefix}.{i:02d}.{name}" for i, name in enumerate(names)]


def to_arrays(state: Mapping[str, NDArray[Any]], *, prefix: str = "past") -> State:
    """Rename to :func:`graph_names`."""
    return dict(zip(graph_names(state, prefix=prefix), state.values(), strict=True))


def array_table(specs: Iterable[TensorSpec], *, n_lanes: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """Give shape and dtype of each array that :func:`to_arrays` writes, by its name and in the order of ``specs``."""
    specs = tuple(specs)
    names = graph_names(spec.name for spec in specs)
    return {name: ((n_lanes, *spec.shape), spec.dtype) for name, spec in zip(names, specs, strict=True)}


def from_arrays(arrays: Mapping[str, NDArray[Any]], specs: Iterable[TensorSpec], *, prefix: str = "past") -> State:
    """Read a state back from the graph's names.

    Raises
    ------
    StateError
        If a name is missing or unknown, or a shape or dtype is not that of ``specs``.
    """
    specs = tuple(specs)
    names = dict(zip(graph_names((spec.name for spec in specs), prefix=prefix), specs, strict=True))
    if set(names) != set(arrays):
        raise StateError(
            f"the state needs the arrays {list(names)}, got {sorted(arrays)}. "
            "Give all that `to_arrays` of the same model wrote, and nothing else."
        )
    n = {name: len(array) if array.ndim else -1 for name, array in arrays.items()}
    if len(set(n.values())) != 1:
        raise StateError(f"the state's arrays must have equally many lanes on axis 0, got {n}.")
    for full, spec in names.items():
        array = arrays[full]
        if array.shape != (n[full], *spec.shape) or array.dtype != np.dtype(spec.dtype):
            raise StateError(
                f"state array {full!r} must have shape (n_lanes, {', '.join(map(str, spec.shape))}) and dtype "
                f"{spec.dtype}, got {array.shape} and {array.dtype}. Is it the state of another model?"
            )
    return {spec.name: arrays[full] for full, spec in names.items()}


def _checked(lanes: NDArray[Any], *, n: int) -> NDArray[Any]:
    lanes = np.asarray(lanes)
    if lanes.dtype == bool:
        if lanes.shape != (n,):
            raise StateError(f"a lane mask must have shape ({n},), got {lanes.shape}.")
    elif lanes.size and lanes.dtype.kind not in "iu":
        raise StateError(f"lanes must be integers or a mask, got dtype {lanes.dtype}.")
    elif lanes.size and (lanes.min() < 0 or lanes.max() >= n):
        raise StateError(f"lanes must lie in 0..{n - 1}, got {lanes.min()}..{lanes.max()}.")
    return lanes if lanes.dtype == bool else lanes.astype(np.int64)
