"""Plain JSON, both ways: what is written can be read again, and what is read holds no surprises."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple, NoReturn

from txl_ts.errors import FileFormatError, ParameterError
from txl_ts.store.caps import INTEGER_CAP, JSON_DEPTH_CAP, JSON_ITEMS_CAP, NUMBER_TEXT_CAP, shown


class _Trail(NamedTuple):
    """The way from a value back to the root."""

    parent: _Trail | None
    key: object


def encode(value: dict[str, Any], *, what: str, cap: int) -> bytes:
    """Spell a dict as JSON, the same bytes for equal content.

    Parameters
    ----------
    value : dict
        Plain content: dicts with text keys, lists, tuples (they come back as lists), text, numbers, booleans, None.
    what : str
        The word for it in messages.
    cap : int
        The most bytes that a reader will take.

    Raises
    ------
    ParameterError
        If a reader would refuse it, or would read something else than was given.
    """
    if not isinstance(value, dict):
        raise ParameterError(
            f"{what} must be a dict, got {type(value).__name__}. Pass {{}} if there is nothing to say."
        )
    problem = _find_problem(value)
    if problem:
        raise ParameterError(
            f"{what} is not plain JSON: {problem}. Keep to dicts with text keys, lists, text, finite numbers."
        )
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    if len(text) > cap or _items(text) > JSON_ITEMS_CAP:
        raise ParameterError(
            f"{what} is too large: {len(text)} bytes with {_items(text)} items, at most {cap} bytes with "
            f"{JSON_ITEMS_CAP} items can be read back. Put arrays among the tensors, or split the streams over files."
        )
    return text


def decode(data: bytes, *, where: str) -> dict[str, Any]:
    """Read a JSON object that no one may have tampered with unseen.

    Refused are: anything but ASCII (which ``encode`` writes), keys that repeat, NaN and Infinity in any spelling
    (``1e999`` too), integers of more than 128 bits, more than 32 levels, and more items than fit into the memory that
    reading may take.

    Raises
    ------
    FileFormatError
        For any of these; ``where`` says in which file.
    """
    if _items(data) > JSON_ITEMS_CAP:
        raise FileFormatError(f"{where} holds {_items(data)} items, at most {JSON_ITEMS_CAP} are read. {_HINT}")
    try:
        value = json.loads(
            data.decode("ascii"),
            object_pairs_hook=_distinct,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_no_constant,
        )
    except RecursionError:
        raise FileFormatError(
            f"{where} is nested too deeply, at most {JSON_DEPTH_CAP} levels are read. {_HINT}"
        ) from None
    except ValueError as error:  # also UnicodeDecodeError, JSONDecodeError and what the hooks raise
        raise FileFormatError(f"{where} is not JSON that can be trusted: {error}. {_HINT}") from error
    problem = _find_problem(value)
    if problem:
        raise FileFormatError(f"{where} is not JSON that can be trusted: {problem}. {_HINT}")
    if not isinstance(value, dict):
        raise FileFormatError(f"{where} must hold a JSON object, got {type(value).__name__}. {_HINT}")
    return value


_HINT = "Take another copy of the file, or save it again."


def _items(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _find_problem(value: object) -> str | None:
    """Walk without recursion, so that neither depth nor cycles can hurt; the trail is spelled only when needed."""
    stack: list[tuple[object, int, _Trail | None]] = [(value, 1, None)]
    while stack:
        item, depth, trail = stack.pop()
        problem = _own_problem(item, depth)
        if problem:
            return f"{_spell(trail)} {problem}"
        if isinstance(item, dict):
            stack.extend((child, depth + 1, _Trail(trail, key)) for key, child in item.items())
        elif isinstance(item, list | tuple):
            stack.extend((child, depth + 1, _Trail(trail, index)) for index, child in enumerate(item))
    return None


def _own_problem(item: object, depth: int) -> str | None:
    if depth > JSON_DEPTH_CAP:
        return f"is nested too deeply, at most {JSON_DEPTH_CAP} levels"
    if isinstance(item, dict):
        odd = next((key for key in item if not isinstance(key, str)), None)
        return None if odd is None else f"has the key {shown(odd)} of type {type(odd).__name__}, not text"
    if isinstance(item, float):
        return None if math.isfinite(item) else f"is {item!r}, not a finite number"
    if isinstance(item, int):
        return None if abs(item) < INTEGER_CAP else "is a huge integer, at most 128 bits"
    if item is None or isinstance(item, str | list | tuple):
        return None
    return f"is of type {type(item).__name__}"


def _spell(trail: _Trail | None) -> str:
    steps: list[str] = []
    while trail is not None:
        trail, key = trail
        steps.append(f"[{shown(key)}]")
    return "the value" + "".join(reversed(steps[:8]))


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shown(repeated)} is there twice")
    return result


def _integer(text: str) -> int:
    if len(text) > NUMBER_TEXT_CAP:
        raise ValueError(f"a huge integer of {len(text)} digits")
    return int(text)


def _finite(text: str) -> float:
    if len(text) > NUMBER_TEXT_CAP or not math.isfinite(float(text)):
        raise ValueError(f"{shown(text)} is not a finite number of usual length")
    return float(text)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")
