"""What a file of txl-ts may hold at most, and what may be called what: every limit and every list in one place."""

from __future__ import annotations

import re
from collections.abc import Iterable

FORMAT = "txl"
VERSION = "1.0"
ROLES = ("model", "stream-state", "checkpoint", "adapter")

PARTS = ("weights", "scalers", "state", "optimiser")
FINITE_PARTS = frozenset({"weights", "scalers"})
FLOAT64_PARTS = frozenset({"scalers"})
EPOCH_STEMS = frozenset({"state", "positions"})  # carry their epoch in the name, in the zip too

CURRENT = "CURRENT"
LOCK = "LOCK"
CURRENT_CAP = 256
MANIFEST_CAP = 2**20
CONFIG_CAP = 4 * 2**20
POSITIONS_CAP = 4 * 2**20
HEADER_CAP = 4 * 2**20  # 10,000 tensors with the longest names need 2.3 MiB
TENSOR_CAP = 10_000  # in all parts together
DIMENSION_CAP = 2**31 - 1
AXES_CAP = 8
EPOCH_CAP = 10**18 - 1

# Text of 3 bytes per list becomes 64 bytes per list in memory, and one character beyond the basic plane makes text four
# times as large. With this many commas and brackets at most, and 4 MiB, no JSON takes more than 64 MiB to read.
JSON_ITEMS_CAP = 2**18
JSON_DEPTH_CAP = 32
INTEGER_CAP = 2**128  # the states of numpy's PCG64 have 128 bits
NUMBER_TEXT_CAP = 64

# safetensors' word for a dtype -> numpy's, little-endian as the format is.
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1", "BOOL": "|b1"}
WORDS = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
    "bool": "BOOL",
}

Table = dict[str, tuple[tuple[int, ...], str]]
"""Tensor name -> (shape, dtype); the dtype as ``"F32"`` or as ``"float32"``."""

Expected = dict[str, Table]
"""Part -> tensor name -> (shape, dtype)."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)


def is_name(text: object) -> bool:
    """Tell whether ``text`` may name a file or a tensor: letters, digits and ``_ . -``, but no ``.`` or ``..``."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None and text not in (".", "..")


def shown(value: object, limit: int = 80) -> str:
    """Spell a value from a file for a message: printable ASCII, cut when long."""
    text = ascii(value[: limit + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= limit else f"{text[:limit]}…"


def some(names: Iterable[object]) -> str:
    """List at most five names and say how many there are."""
    listed = list(names)
    more = f", … ({len(listed)} in all)" if len(listed) > 5 else ""
    return ", ".join(shown(name) for name in listed[:5]) + more
