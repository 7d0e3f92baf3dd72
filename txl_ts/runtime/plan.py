"""Where a stream stands in time, and what the graph must see so that new rows follow its old ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import StampError
from txl_ts.runtime.beside import lacks_static
from txl_ts.runtime.contract import Contract
from txl_ts.runtime.rows import UNUSED, Rows
from txl_ts.runtime.stamps import shown


@dataclass(frozen=True)
class Place:
    """Where a stream stands.

    Attributes
    ----------
    n_rows : int
        Rows of the grid since the stream began, missing ones among them.
    origin, last : int or None
        Native stamps of the first and the last row; None while no time was given.
    static : tuple of float, or None
        What is static of the stream; None until it was given.
    """

    n_rows: int = 0
    origin: int | None = None
    last: int | None = None
    static: tuple[float, ...] | None = None


@dataclass(frozen=True, eq=False)
class Plan:
    """Rows of one stream as the graph will see them.

    Attributes
    ----------
    pieces : list of (float32 array of shape (T, W), bool)
        Rows without a break, missing ones filled in; True if the stream begins with them.
    given : list of bool
        For each row of all pieces: was it given? The others were filled in.
    after : Place
        Where the stream stands then.
    """

    pieces: list[tuple[NDArray[np.float32], bool]]
    given: list[bool]
    after: Place


def plan(rows: Rows, place: Place, *, stream: object, contract: Contract) -> Plan:
    """Put rows behind those that a stream has seen: gaps become missing rows, or a new beginning where they are long.

    Raises
    ------
    StampError
        If a row is not later than the one before it, lies off the grid, or lacks its time.
    ColumnError
        If the stream begins, and what is static of it was not given.
    """
    static = place.static if rows.static is None else rows.static
    stamps = rows.stamps or _continued(len(rows.values), place, stream=stream, contract=contract)
    if stamps is None:  # no times are known: rows follow each other
        after = Place(place.n_rows + len(rows.values), static=static)
        values = completed(rows.values, None, [static], stream=stream, contract=contract)
        return Plan([(values, place.n_rows == 0)], [True] * len(rows.values), after)
    gaps = _gaps(stamps, place.last, stream=stream, contract=contract)
    pieces: list[tuple[NDArray[np.float32], bool]] = []
    given: list[bool] = []
    parts: list[NDArray[np.float32]] = []
    begins: list[int] = []  # the first stamp of each piece
    is_start, n_rows, origin = place.n_rows == 0, place.n_rows, place.origin
    if origin is None:
        origin = stamps[0] - n_rows * (contract.step or 0)
    first = 0  # of the rows that are not yet in parts
    missing = np.full((1, rows.values.shape[1]), np.nan, np.float32)
    for i, gap in enumerate(gaps):
        if gap > contract.reach:
            parts.append(rows.values[first:i])
            if any(map(len, parts)):
                pieces.append((np.concatenate(parts), is_start))
                begins.append(stamps[i - 1] - (len(pieces[-1][0]) - 1) * (contract.step or 0))
            first, parts, is_start, n_rows, origin = i, [], True, 0, stamps[i]
        elif gap:
            parts += [rows.values[first:i], np.repeat(missing, gap, axis=0)]
            first = i
            given += [False] * gap
            n_rows += gap
        given.append(True)
        n_rows += 1
    parts.append(rows.values[first:])
    pieces.append((np.concatenate(parts) if len(parts) > 1 else parts[0], is_start))
    begins.append(stamps[-1] - (len(pieces[-1][0]) - 1) * (contract.step or 0))
    if not contract.layout.is_plain:
        whens = [begin + np.arange(len(v)) * (contract.step or 0) for begin, (v, _) in zip(begins, pieces, strict=True)]
        pieces = [
            (completed(v, when, [static], stream=stream, contract=contract), is_anew)
            for when, (v, is_anew) in zip(whens, pieces, strict=True)
        ]
    return Plan(pieces, given, Place(n_rows, origin, stamps[-1], static))


def completed(
    values: NDArray[np.float32],
    stamps: NDArray[np.int64] | None,
    static: Sequence[tuple[float, ...] | None],
    *,
    stream: object,
    contract: Contract,
) -> NDArray[np.float32]:
    """Fill in what a caller does not give with each row: the calendar, and what is static.

    Parameters
    ----------
    values : float32 array of shape (n, W)
        Not changed.
    stamps : int64 array of shape (n,), or None
        Native stamps of the rows.
    static : sequence of tuple of float, or None
        Of each row, or one for all.
    stream : object
        For messages; of each row, if it is a list.
    contract : Contract

    Returns
    -------
    float32 array of shape (n, W)
    """
    layout = contract.layout
    if layout.is_plain:
        return values
    values = values.copy()
    if layout.static:
        for i, one in enumerate(static):
            if one is None:
                raise lacks_static(stream[i] if isinstance(stream, list) else stream, layout)
        values[:, layout.parts["static"][0]] = np.array(static, np.float32)
    if contract.clock is not None:
        if stamps is None:
            raise StampError(
                f"stream {stream!r}: no time was given, and the model reads the calendar. Give {{'time': …}}. {UNUSED}"
            )
        when = stamps[:, None] + np.arange(1 + layout.h) * (contract.step or 0)
        features = contract.clock.features(when.ravel()).reshape(*when.shape, -1)
        values[:, layout.calendar_places] = features
    return values


def _continued(n: int, place: Place, *, stream: object, contract: Contract) -> list[int] | None:
    """Count on from the last stamp; None if there is none."""
    if place.last is None:
        return None
    if contract.step is None:
        raise StampError(
            f"stream {stream!r}: no time was given, but its rows have had times, and freq={contract.freq!r} has no "
            f"fixed step to count on by. Give {{'time': …}} with every row. {UNUSED}"
        )
    return [place.last + (i + 1) * contract.step for i in range(n)]


def _gaps(stamps: list[int], last: int | None, *, stream: object, contract: Contract) -> list[int]:
    """Count the rows that are missing before each row."""
    gaps, step = [], contract.step
    for stamp in stamps:
        apart = 1 if last is None else stamp - last
        if apart <= 0:
            late = StampError(
                f"stream {stream!r}: time {shown(stamp, contract)} is not after {shown(last or 0, contract)}, the row "
                f"before it. Late and repeated rows cannot be taken in: drop them. {UNUSED}"
            )
            vars(late)["reason"] = "late" if apart else "duplicate"  # for the counters
            raise late
        if last is None or step is None:
            gaps.append(0)
        elif apart % step:
            raise StampError(
                f"stream {stream!r}: time {shown(stamp, contract)} is not a whole number of steps "
                f"({contract.freq}) after {shown(last, contract)}. Round times to the grid before they are given. "
                f"{UNUSED}"
            )
        else:
            gaps.append(apart // step - 1)
        last = stamp
    if step is not None and stamps[-1] + contract.horizon * step >= 2**63:
        raise StampError(
            f"stream {stream!r}: the forecast from time {shown(stamps[-1], contract)} would end beyond 64 bits (for "
            f"datetimes: in the year 2262). Correct or drop this row. {UNUSED}"
        )
    return gaps
