"""The wall clock of a zone at instants, and the features that are read off it: numpy and the standard library only."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import StampError
from txl_ts.wall_clock import wall_features

_FIXED = re.compile(r"(?:UTC)?([+-])(\d\d):?(\d\d)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = 10**9
# Features of stamps that came before: the streams of a fleet share their times, and each is ahead h times.
_MOST_KEPT = 1 << 14


class WallClock:
    """Features of stamps, computed once for each.

    Parameters
    ----------
    columns : tuple of str
        As :func:`txl_ts.wall_clock.wall_features` takes them.
    zone : str or None
        Zone of instants; None: the stamps are wall time.

    Raises
    ------
    StampError
        If the zone is not known on this machine.
    """

    def __init__(self, columns: tuple[str, ...], zone: str | None) -> None:
        self.columns, self._zone = columns, None if zone is None else _zone(zone)
        self._known: dict[int, NDArray[np.float32]] = {}

    def features(self, stamps: NDArray[np.int64]) -> NDArray[np.float32]:
        """Give the features (N, n) of native stamps (N,)."""
        wanted, known = dict.fromkeys(stamps.tolist()), self._known
        if new := [stamp for stamp in wanted if stamp not in known]:
            if len(known) > _MOST_KEPT:  # another one: other threads may be reading the old
                known = self._known = {stamp: known[stamp] for stamp in wanted if stamp in known}
            known.update(zip(new, wall_features(self._wall(np.array(new, np.int64)), self.columns), strict=True))
        return np.stack([known[stamp] for stamp in stamps.tolist()])

    def _wall(self, stamps: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._zone is None:
            return stamps
        seconds = (stamps // _SECOND).tolist()
        return stamps + np.array([_offset(self._zone, second) for second in seconds], np.int64) * _SECOND


def _zone(name: str) -> tzinfo:
    if name in ("UTC", "utc"):
        return UTC
    if match := _FIXED.fullmatch(name):
        apart = timedelta(hours=int(match[2]), minutes=int(match[3]))
        return timezone(-apart if match[1] == "-" else apart)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise StampError(
            f"the model's calendar is that of time zone {name!r}, which this machine does not know ({error}). "
            "Install its data: `pip install tzdata`."
        ) from error


@lru_cache(maxsize=1 << 16)
def _offset(zone: tzinfo, second: int) -> int:
    """Seconds that a zone's clock is ahead of UTC."""
    ahead = (_EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()
    return 0 if ahead is None else round(ahead.total_seconds())
