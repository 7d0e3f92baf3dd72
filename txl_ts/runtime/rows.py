"""What a caller gives for one stream, checked and turned into arrays."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import ColumnError, ParameterError, ShapeError
from txl_ts.runtime import beside
from txl_ts.runtime.contract import Contract
from txl_ts.runtime.layout import Layout
from txl_ts.runtime.numbers import UNUSED, read_numbers
from txl_ts.runtime.stamps import native_stamps

__all__ = ["UNUSED", "Rows", "read_rows"]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one stream.

    Attributes
    ----------
    values : float32 array of shape (T, W)
        As the contract's layout has them, W = C where there is nothing beside the channels; NaN where a value is
        missing.
    stamps : list of int, or None
        Native stamps of the T rows.
    static : tuple of float, or None
        What is static of the stream, where it was given.
    """

    values: NDArray[np.float32]
    stamps: list[int] | None
    static: tuple[float, ...] | None = None


def read_rows(given: Any, *, stream: object, contract: Contract) -> Rows:
    """Read one row or several.

    Parameters
    ----------
    given : float or mapping
        A bare number for one channel, or ``{"time": …, "values": {channel: …}}`` with single values or equally long
        sequences; ``time`` may be left out. Where there are columns beside the channels, ``values`` holds those of the
        row too, ``"futr"`` what is known ahead of it, and ``"static"`` what is known of the stream. For a detector
        ``"status"`` may hold the quality of readings by channel: what is not 0 is not used.

    Raises
    ------
    ParameterError, ColumnError, ShapeError, StampError
        If it is anything else; the message names the stream and the channel.
    """
    channels, layout = contract.channels, contract.row_layout
    if given is None or isinstance(given, Real | np.bool_):
        if len(channels) > 1 or not layout.is_plain:
            names = [*channels, *(column.name for column in layout.columns)]
            raise ColumnError(
                f"stream {stream!r}: got a bare number, but the model has the {_kinds(layout)} {names[:5]}. "
                f"Give {{'values': {{{channels[0]!r}: …, …}}}}. {UNUSED}"
            )
        return Rows(read_numbers(given, stream=stream, what=f"channel {channels[0]!r}")[:, None], None)
    if not isinstance(given, Mapping):
        raise ParameterError(
            f"stream {stream!r}: a row of type {type(given).__name__} is not understood. "
            f"Give a number, or {{'time': …, 'values': {{{channels[0]!r}: …}}}}. {UNUSED}"
        )
    keys = ["time", "values", *(["futr"] if layout.futr else []), *(["static"] if layout.static else [])]
    keys += ["status"] if contract.is_detector else []
    if unknown := [key for key in given if key not in keys]:
        raise ParameterError(
            f"stream {stream!r}: unknown keys {unknown[:5]}, expected {' and '.join(map(repr, keys))}. "
            f"Put channels under 'values': {{'values': {{{channels[0]!r}: …}}}}. {UNUSED}"
        )
    values, static = _values(given.get("values"), stream=stream, contract=contract), None
    if not layout.is_plain:
        values = beside.full_rows(values, given.get("futr"), layout, stream=stream)
        if given.get("static") is not None:
            static = beside.read_static(given["static"], layout, stream=stream)
    if contract.is_detector and given.get("status") is not None:
        values = _used(values, given["status"], stream=stream, channels=channels)
    if given.get("time") is None:
        return Rows(values, None, static)
    stamps = native_stamps(given["time"], stream=stream, contract=contract)
    if len(stamps) != len(values):
        raise ShapeError(
            f"stream {stream!r}: {len(stamps)} times for {len(values)} values. Give one time per row. {UNUSED}"
        )
    return Rows(values, stamps, static)


def _used(
    values: NDArray[np.float32], status: Any, *, stream: object, channels: tuple[str, ...]
) -> NDArray[np.float32]:
    """Make readings missing whose status is not 0."""
    if not isinstance(status, Mapping):
        raise ParameterError(
            f"stream {stream!r}: 'status' is {type(status).__name__}, expected a mapping by channel, such as "
            f"{{{channels[0]!r}: 1}} for a reading that must not be used. {UNUSED}"
        )
    values = values.copy()
    for name, given in status.items():
        if name not in channels:
            raise ColumnError(
                f"stream {stream!r}: status of an unknown channel {name!r}{_near(name, channels)} The model has "
                f"{list(channels[:5])}. {UNUSED}"
            )
        column = read_numbers(given, stream=stream, what=f"status of channel {name!r}")
        if len(column) not in (1, len(values)):
            raise ShapeError(
                f"stream {stream!r}: {len(column)} statuses of channel {name!r} for {len(values)} rows. {UNUSED}"
            )
        values[:, channels.index(name)][np.broadcast_to(column != 0, len(values))] = np.nan
    return values


def _kinds(layout: Layout) -> str:
    return "channels" if layout.is_plain else "channels and columns"


def _values(given: Any, *, stream: object, contract: Contract) -> NDArray[np.float32]:
    """Give the channels and the columns of each row, (T, n)."""
    channels, layout = contract.channels, contract.row_layout
    kinds = dict.fromkeys(channels) | {column.name: column for column in layout.columns}
    names, what = list(kinds), "channel" if layout.is_plain else "channel or column"
    if not isinstance(given, Mapping):
        raise ParameterError(
            f"stream {stream!r}: 'values' is {'missing' if given is None else type(given).__name__}, "
            f"expected a mapping by channel. Give {{'values': {{{channels[0]!r}: …}}}}. {UNUSED}"
        )
    if unknown := [name for name in given if name not in kinds]:
        raise ColumnError(
            f"stream {stream!r}: unknown {what} {unknown[0]!r}{_near(unknown[0], names)} The model has "
            f"{names[:5]} ({len(names)} in all). {UNUSED}"
        )
    if lacking := [name for name in names if name not in given]:
        raise ColumnError(
            f"stream {stream!r}: no value for {what} {lacking[0]!r} ({len(lacking)} lacking). "
            f"Give NaN where a value is missing. {UNUSED}"
        )
    columns = [
        beside.read_column(given[name], column, stream=stream)
        if column is not None
        else read_numbers(given[name], stream=stream, what=f"channel {name!r}")
        for name, column in kinds.items()
    ]
    lengths = {name: len(column) for name, column in zip(names, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        raise ShapeError(
            f"stream {stream!r}: channels have different numbers of rows: {lengths}. "
            f"Give NaN where a value is missing. {UNUSED}"
        )
    if not len(columns[0]):
        raise ShapeError(f"stream {stream!r}: no rows were given. Leave the stream out of the call. {UNUSED}")
    return np.stack(columns, axis=1)


def _near(name: object, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else "."
