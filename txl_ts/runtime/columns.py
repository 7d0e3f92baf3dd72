"""What a caller gives for many streams, as columns: most rows are one row of one stream, and are checked together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import ParameterError, ShapeError, StampError
from txl_ts.runtime import beside
from txl_ts.runtime.contract import Contract
from txl_ts.runtime.names import LaneName, checked_name
from txl_ts.runtime.rows import UNUSED, Rows, read_rows
from txl_ts.runtime.stamps import native_stamps

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Columns:
    """One row of each stream, but for those in ``odd``.

    Attributes
    ----------
    names : list of stream name
        Distinct.
    values : float32 array of shape (n, W)
        As the contract's layout has them, W = C where there is nothing beside the channels; NaN where missing.
    stamps : int64 array of shape (n,)
        Native stamps, where ``timed``.
    timed : bool array of shape (n,)
    odd : dict of int to Rows
        Streams with several rows, by their place.
    static : dict of int to tuple of float
        What is static of the streams that it was given for, by their place; those of ``odd`` have it in their rows.
    """

    names: list[LaneName]
    values: NDArray[np.float32]
    stamps: NDArray[np.int64]
    timed: NDArray[np.bool_]
    odd: dict[int, Rows]
    static: dict[int, tuple[float, ...]] = field(default_factory=dict)

    def rows(self, i: int) -> Rows:
        """Give the rows of one stream."""
        if i in self.odd:
            return self.odd[i]
        return Rows(self.values[i : i + 1], [int(self.stamps[i])] if self.timed[i] else None, self.static.get(i))

    @property
    def n_rows(self) -> int:
        """Rows of all streams."""
        return len(self.names) - len(self.odd) + sum(len(rows.values) for rows in self.odd.values())


def read_mapping(given: Any, *, contract: Contract) -> Columns:
    """Read a mapping of stream name to row or rows; see ``StreamSession.step``."""
    if not isinstance(given, Mapping):
        raise ParameterError(
            f"rows is of type {type(given).__name__}, expected a mapping by stream. Give {{'meter-7': row}}."
        )
    layout = contract.row_layout
    only = contract.channels[0] if layout.width == 1 else None
    n = len(given)
    names: list[LaneName] = []
    numbers, stamps, timed = np.full(n, np.nan), np.zeros(n, np.int64), np.zeros(n, bool)
    several = None if only is not None else np.full((n, layout.width), np.nan, np.float32)
    odd: dict[int, Rows] = {}
    static: dict[int, tuple[float, ...]] = {}
    for i, (name, row) in enumerate(given.items()):
        names.append(name if type(name) is str or type(name) is int else checked_name(name))
        # The usual rows are read here; all others, and whatever is wrong, where messages are made.
        if only is not None:
            if type(row) is float:
                numbers[i] = row
                continue
            if type(row) is dict and len(row) == 2 and "time" in row and "values" in row:
                time, values = row["time"], row["values"]
                if type(values) is dict and len(values) == 1 and only in values and type(time) is int:
                    value = values[only]
                    if type(value) is float and -(2**63) < time < 2**63:
                        numbers[i], stamps[i], timed[i] = value, time, True
                        continue
        read = read_rows(row, stream=names[-1], contract=contract)
        if len(read.values) > 1:
            odd[i] = read
            continue
        if several is None:
            numbers[i] = read.values[0, 0]
        else:
            several[i] = read.values[0]
        if read.stamps is not None:
            stamps[i], timed[i] = read.stamps[0], True
        if read.static is not None:
            static[i] = read.static
    return Columns(names, _float32(numbers)[:, None] if several is None else several, stamps, timed, odd, static)


def read_columns(
    names: Any, values: Any, times: Any, *, contract: Contract, futr: Any = None, static: Any = None
) -> Columns:
    """Read one row of each stream from arrays; see ``StreamSession.step_many``."""
    if isinstance(names, str) or not isinstance(names, Sequence | np.ndarray):
        raise ParameterError(f"names is of type {type(names).__name__}, expected a list of stream names. {UNUSED}")
    listed = names.tolist() if isinstance(names, np.ndarray) else list(names)
    checked = [name if type(name) is str or type(name) is int else checked_name(name) for name in listed]
    layout = contract.row_layout
    columns = [*contract.channels, *(column.name for column in layout.columns)]
    n, n_columns = len(checked), len(columns)
    if len(set(checked)) != n:
        twice = next(name for i, name in enumerate(checked) if name in checked[:i])
        raise ParameterError(f"names holds {twice!r} twice. Give one row of each stream per call. {UNUSED}")
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise ParameterError(f"values is of dtype {array.dtype}, expected numbers; NaN where one is missing. {UNUSED}")
    if array.shape != (n, n_columns) and not (n_columns == 1 and array.shape == (n,)):
        raise ShapeError(
            f"values has shape {array.shape}, expected ({n}, {n_columns}): one row of the "
            f"{'channels' if layout.is_plain else 'channels and columns'} {columns[:5]} for each of the {n} names. "
            f"{UNUSED}"
        )
    stamps, timed = _stamps(times, n, contract=contract)
    rows = _float32(array.reshape(n, n_columns))
    if layout.is_plain and futr is None and static is None:
        return Columns(checked, rows, stamps, timed, {})
    rows, known = beside.read_arrays(rows, futr, static, layout)
    return Columns(checked, rows, stamps, timed, {}, known)


def _float32(numbers: NDArray[Any]) -> NDArray[np.float32]:
    """Beyond float32 is not a number that was measured: NaN."""
    if numbers.dtype == np.float32:
        return np.where(np.isfinite(numbers), numbers, np.float32(np.nan))
    numbers = numbers.astype(np.float64)
    return np.where(np.abs(numbers) <= _LARGEST, numbers, np.nan).astype(np.float32)


def _stamps(times: Any, n: int, *, contract: Contract) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    if times is None:
        return np.zeros(n, np.int64), np.zeros(n, bool)
    array = np.asarray(times)
    if array.ndim == 0:
        (stamp,) = native_stamps(times, stream="all", contract=contract)
        return np.full(n, stamp, np.int64), np.ones(n, bool)
    if array.shape != (n,):
        raise ShapeError(
            f"times has shape {array.shape}, expected one time, or one for each of the {n} names. {UNUSED}"
        )
    if array.dtype == np.dtype("M8[ns]") and contract.is_datetime and not np.isnat(array).any():
        return array.view(np.int64), np.ones(n, bool)
    if array.dtype == np.int64:
        if n and int(array.min()) == -(2**63):
            raise StampError(f"times holds {-(2**63)}, which is no time. {UNUSED}")
        return array, np.ones(n, bool)
    return np.array(native_stamps(array, stream="of names", contract=contract), np.int64), np.ones(n, bool)
