"""Streams that nobody uses: which go, so that a process may see new names for ever."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import numpy as np

from txl_ts.errors import ParameterError
from txl_ts.runtime.contract import Contract
from txl_ts.runtime.fleet import Fleet
from txl_ts.runtime.names import LaneName

_NS = {"ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9, "w": 7 * 86_400 * 10**9}


def native_span(idle: Any, *, contract: Contract) -> int | None:
    """Read ``idle`` in units of the stamps: nanoseconds, or plain integers."""
    if idle is None:
        return None
    match = re.fullmatch(r"(\d{1,9}) ?(ms|s|min|h|d|w)", idle) if isinstance(idle, str) else None
    if contract.is_datetime and match is not None:
        span = int(match[1]) * _NS[match[2]]
    elif contract.is_datetime and isinstance(idle, timedelta):
        span = round(idle.total_seconds() * 1e9)
    elif not contract.is_datetime and isinstance(idle, int | np.integer) and not isinstance(idle, bool):
        span = int(idle)
    else:
        span = 0
    if not 0 < span < 2**62:
        kind = "'2h' (units ms, s, min, h, d, w) or a timedelta" if contract.is_datetime else "a positive integer"
        raise ParameterError(f"idle={idle!r:.40} must be {kind}, in the time of the streams.")
    return span


def checked_most(max_streams: Any) -> int | None:
    """Read ``max_streams``."""
    if max_streams is not None and (type(max_streams) is not int or max_streams < 1):
        raise ParameterError(f"max_streams={max_streams!r:.40} must be a positive integer or None.")
    return max_streams


def newest(fleet: Fleet) -> int | None:
    """Give the newest stamp that any stream has."""
    with fleet.lock:
        lanes = np.fromiter(fleet.lanes.values(), np.int64, len(fleet.lanes))
        lanes = lanes[fleet.table.timed[lanes]]
        return int(fleet.table.last[lanes].max()) if len(lanes) else None


def idle_streams(fleet: Fleet, *, before: int) -> list[LaneName]:
    """Name the streams whose last row is older than a stamp."""
    with fleet.lock:
        names, lanes = list(fleet.lanes), np.fromiter(fleet.lanes.values(), np.int64, len(fleet.lanes))
        is_old = fleet.table.timed[lanes] & (fleet.table.last[lanes] < before)
        old = [names[i] for i in np.flatnonzero(is_old).tolist()]
        return old + [
            name for name, (place, _, _) in fleet.packed.items() if place.last is not None and place.last < before
        ]


def least_used(fleet: Fleet, n: int) -> list[LaneName]:
    """Name the ``n`` streams with a lane that were used longest ago."""
    with fleet.lock:
        names, lanes = list(fleet.lanes), np.fromiter(fleet.lanes.values(), np.int64, len(fleet.lanes))
        order = np.argsort(fleet.table.used[lanes], kind="stable")
        return [names[i] for i in order[:n].tolist()]
