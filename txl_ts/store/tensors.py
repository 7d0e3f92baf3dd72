"""The safetensors format for one part: arrays to bytes without a second copy, and bytes to arrays without trust.

The header is read here, not by the safetensors library: version 0.8 of it takes keys that repeat, shapes such as
``[2**40, 0]``, NaN weights and a tensor called ``../../x``. The bytes are the same, and a test compares the two.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import FileFormatError, ParameterError
from txl_ts.store import plain_json
from txl_ts.store.caps import (
    AXES_CAP,
    DIMENSION_CAP,
    DTYPES,
    FINITE_PARTS,
    FLOAT64_PARTS,
    HEADER_CAP,
    TENSOR_CAP,
    WORDS,
    Table,
    is_name,
    shown,
    some,
)

Array = NDArray[Any]
EMPTY_BYTES = 16  # of a file without tensors
_CHUNK = 2**20  # bytes; small enough to stay in the cache between hashing and writing
_HINT = "Take another copy of the file, or save it again."


class Encoded(NamedTuple):
    """A part that is ready to be written: its size in bytes, its prefix, and its arrays in the order of the file."""

    size: int
    prefix: bytes
    arrays: list[Array]

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Give the bytes piece by piece; an array is copied only while its turn lasts, and only if it is strided."""
        yield self.prefix
        for array in self.arrays:
            flat = np.asarray(array, dtype=DTYPES[_word(array)], order="C").reshape(-1).view(np.uint8)
            for start in range(0, flat.size, _CHUNK):
                yield flat[start : start + _CHUNK].data


def encode(part: str, arrays: Mapping[str, Array]) -> Encoded:
    """Lay out the arrays of one part as safetensors.

    Wide dtypes come first, then the names in order, as the safetensors library does: every array is aligned.

    Raises
    ------
    ParameterError
        If an array could not be loaded again: its name, dtype or shape, or NaN or infinity in weights or scalers.
    """
    for name, array in arrays.items():
        _check_array(part, name, array)
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    header, end = {}, 0
    for name in order:
        array = arrays[name]
        header[name] = {
            "dtype": _word(array),
            "shape": list(array.shape),
            "data_offsets": [end, end + array.nbytes],
        }
        end += array.nbytes
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    return Encoded(8 + len(text) + end, len(text).to_bytes(8, "little") + text, [arrays[name] for name in order])


def decode(buffer: NDArray[np.uint8], *, part: str, where: str, expected: Table) -> dict[str, Array]:
    """Read the arrays of one part, if they are exactly the expected ones.

    The arrays are writable views of ``buffer``, so nothing is held twice; they live and are freed together.

    Parameters
    ----------
    buffer : array of uint8, shape (n,)
        The whole file, hash already compared.
    part : str
        The name of the part; decides which floats must be finite.
    where : str
        The file, for messages.
    expected : dict of name to (shape, dtype)
        Normalised; nothing else is taken.

    Raises
    ------
    FileFormatError
        If header, names, shapes, dtypes, offsets or values are not as they must be.
    """
    text, start = _header_text(buffer, where)
    found = _table(plain_json.decode(text, where=where), buffer.size - start, where)
    _compare({name: (shape, word) for name, (shape, word, _) in found.items()}, expected, where)
    arrays = {}
    for name, (shape, word, offset) in found.items():
        count = math.prod(shape)
        dtype = np.dtype(DTYPES[word])
        raw = buffer[start + offset : start + offset + count * dtype.itemsize]
        if word == "BOOL" and count and int(raw.max()) > 1:
            raise FileFormatError(f"{where}: tensor {shown(name)} is BOOL and holds bytes other than 0 and 1. {_HINT}")
        array = raw.view(dtype).reshape(shape)
        arrays[name] = array if array.flags.aligned else array.copy()
        if part in FINITE_PARTS and not _is_finite(array):
            raise FileFormatError(f"{where}: tensor {shown(name)} holds NaN or infinity. {_HINT}")
    return arrays


def expected_bytes(table: Table) -> int:
    """Count the bytes that the arrays of a normalised table take."""
    return sum(math.prod(shape) * np.dtype(DTYPES[word]).itemsize for shape, word in table.values())


def normalised(table: Table) -> Table:
    """Spell a table as headers do: shapes as tuples of int, dtypes as ``"F32"``.

    Raises
    ------
    ParameterError
        If a dtype is not among those that can be stored, or a shape holds anything but counts.
    """
    return {name: (_plain_shape(shape), _plain_word(dtype)) for name, (shape, dtype) in table.items()}


def table_of(arrays: Mapping[str, Array]) -> Table:
    """Give the names, shapes and dtypes of arrays."""
    return {name: (tuple(array.shape), _word(array)) for name, array in arrays.items()}


def _word(array: Array) -> str:
    return WORDS[array.dtype.name]


def _plain_word(dtype: object) -> str:
    word = WORDS.get(str(dtype), str(dtype))
    if word not in DTYPES:
        raise ParameterError(f"expected dtype {shown(dtype)} is none of {', '.join(DTYPES)}.")
    return word


def _plain_shape(shape: Iterable[int]) -> tuple[int, ...]:
    plain = tuple(operator.index(n) for n in shape)
    if min(plain, default=0) < 0:
        raise ParameterError(f"expected shape {shown(plain)} has a negative axis.")
    return plain


def _check_array(part: str, name: str, array: object) -> None:
    where = f"{part} tensor {shown(name)}"
    if not is_name(name) or name == "__metadata__":
        raise ParameterError(f"{where} has a name that cannot be stored. Use 1 to 128 of A-Z a-z 0-9 _ . -")
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        raise ParameterError(f"{where} must be a plain numpy array, got {type(array).__name__}. Use numpy.asarray(…).")
    if array.dtype.name not in WORDS:
        raise ParameterError(f"{where} has dtype {array.dtype}, which cannot be stored. Use one of {', '.join(WORDS)}.")
    if array.ndim > AXES_CAP or max(array.shape, default=0) > DIMENSION_CAP:
        raise ParameterError(
            f"{where} has shape {array.shape}; at most {AXES_CAP} axes of {DIMENSION_CAP} can be stored."
        )
    if part in FLOAT64_PARTS and array.dtype.kind == "f" and array.dtype.itemsize != 8:
        raise ParameterError(f"{where} has dtype {array.dtype}, {part} are kept in float64. Use .astype('float64').")
    if part in FINITE_PARTS and not _is_finite(array):
        raise ParameterError(f"{where} holds NaN or infinity. Train again with a smaller learning rate before saving.")


def _is_finite(array: Array) -> bool:
    """Ask the smallest and the largest value: NaN passes through both, and no second array is made."""
    if array.dtype.kind != "f" or array.size == 0:
        return True
    with np.errstate(invalid="ignore"):
        return bool(np.isfinite(array.min()) and np.isfinite(array.max()))


def _header_text(buffer: NDArray[np.uint8], where: str) -> tuple[bytes, int]:
    length = int.from_bytes(buffer[:8].tobytes(), "little") if buffer.size >= 8 else -1
    if length < 0 or length > min(HEADER_CAP, buffer.size - 8):
        raise FileFormatError(
            f"{where} claims a header of {length} bytes in a file of {buffer.size}, "
            f"at most {HEADER_CAP} are read. {_HINT}"
        )
    return buffer[8 : 8 + length].tobytes(), 8 + length


def _table(header: dict[str, Any], n_bytes: int, where: str) -> dict[str, tuple[tuple[int, ...], str, int]]:
    """Check the header by itself; the result is sorted by name: (shape, dtype word, offset)."""
    if len(header) > TENSOR_CAP:
        raise FileFormatError(f"{where} holds {len(header)} tensors, at most {TENSOR_CAP} are read. {_HINT}")
    spans = []
    for name, entry in header.items():
        if not is_name(name) or name == "__metadata__":
            raise FileFormatError(
                f"{where}: tensor name {shown(name)} is not of the form [A-Za-z0-9_.-]{{1,128}}. {_HINT}"
            )
        spans.append((*_span(entry, f"{where}: tensor {shown(name)}"), name))
    table, last = {}, 0
    for begin, end, shape, word, name in sorted(spans):
        if begin != last:
            raise FileFormatError(f"{where}: tensor {shown(name)} begins at byte {begin}, expected {last}. {_HINT}")
        table[name], last = (shape, word, begin), end
    if last != n_bytes:
        raise FileFormatError(f"{where}: the tensors cover {last} bytes, the file holds {n_bytes}. {_HINT}")
    return dict(sorted(table.items()))


def _span(entry: object, where: str) -> tuple[int, int, tuple[int, ...], str]:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise FileFormatError(f"{where} needs exactly dtype, shape, data_offsets, got {shown(entry)}. {_HINT}")
    word, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(word, str) or word not in DTYPES:
        raise FileFormatError(f"{where} has dtype {shown(word)}, expected one of {', '.join(DTYPES)}. {_HINT}")
    if not _are_counts(shape) or len(shape) > AXES_CAP or max(shape, default=0) > DIMENSION_CAP:
        raise FileFormatError(
            f"{where} has shape {shown(shape)}, expected at most {AXES_CAP} axes of 0 to {DIMENSION_CAP}. {_HINT}"
        )
    if not _are_counts(offsets) or len(offsets) != 2:
        raise FileFormatError(f"{where} has data_offsets {shown(offsets)}, expected [begin, end]. {_HINT}")
    n_bytes = math.prod(shape) * np.dtype(DTYPES[word]).itemsize
    if offsets[1] - offsets[0] != n_bytes:
        raise FileFormatError(
            f"{where} spans {offsets[1] - offsets[0]} bytes, shape {shown(shape)} of {word} takes {n_bytes}. {_HINT}"
        )
    return offsets[0], offsets[1], tuple(shape), word


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _compare(found: Table, wanted: Table, where: str) -> None:
    if found == wanted:
        return
    problems = []
    if missing := sorted(wanted.keys() - found.keys()):
        problems.append(f"tensors are missing: {some(missing)}")
    if extra := sorted(found.keys() - wanted.keys()):
        problems.append(f"tensors are not expected: {some(extra)}")
    for name in [name for name in sorted(found.keys() & wanted.keys()) if found[name] != wanted[name]][:5]:
        got, want = found[name], wanted[name]
        problems.append(f"tensor {shown(name)} has shape {got[0]} of {got[1]}, expected {want[0]} of {want[1]}")
    raise FileFormatError(
        f"{where}: {'; '.join(problems)}. "
        f"The file belongs to another configuration: load it with the model it was saved from."
    )
