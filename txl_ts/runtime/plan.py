"""Where a stream stands in time, and what the graph must see so that new rows follow its old ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import StampError
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
    """

    n_rows: int = 0
    origin: int | None = None
    last: int | None = None


@dataclass(frozen=True, eq=False)
class Plan:
    """Rows of one stream as the graph will see them.

    Attributes
    ----------
    pieces : list of (float32 array of shape (T, C), bool)
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
    """
    stamps = rows.stamps or _continued(len(rows.values), place, stream=stream, contract=contract)
    if stamps is None:  # no times are known: rows follow each other
        after = Place(place.n_rows + len(rows.values))
        return Plan([(rows.values, place.n_rows == 0)], [True] * len(rows.values), after)
    gaps = _gaps(stamps, place.last, stream=stream, contract=contract)
    pieces: list[tuple[NDArray[np.float32], bool]] = []
    given: list[bool] = []
    parts: list[NDArray[np.float32]] = []
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
    return Plan(pieces, given, Place(n_rows, origin, stamps[-1]))


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
