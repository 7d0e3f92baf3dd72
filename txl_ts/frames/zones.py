"""Between instants (epoch nanoseconds in UTC) and the wall clock of a time zone.

pandas does the conversion, and is loaded only when a zone is in play.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from txl_ts.errors import StampError

if TYPE_CHECKING:
    import pandas as pd

_PLAIN = frozenset({"UTC", "utc", "Etc/UTC", "UTC+00:00", "+00:00"})


def wall_of(instants: npt.NDArray[np.int64], zone: str | None) -> npt.NDArray[np.int64]:
    """Read the wall clock of a zone at each instant.

    Parameters
    ----------
    instants : int64 array of shape (N,)
        Epoch nanoseconds in UTC; where ``zone`` is None they are wall time already and come back as they are.
    zone : str or None
        IANA name or offset such as ``"UTC+10:00"``.

    Returns
    -------
    int64 array of shape (N,)
        Nanoseconds between 1970-01-01 00:00 on the same wall clock and the time it shows.
    """
    if zone is None or zone in _PLAIN:
        return instants
    wall: npt.NDArray[np.int64] = _index(instants, "UTC").tz_convert(zone).tz_localize(None).asi8
    return wall


def instant_of(wall: npt.NDArray[np.int64], zone: str | None) -> npt.NDArray[np.int64]:
    """Find the instant at which the clock of a zone shows a wall time.

    A time that the clock skips in spring becomes the first one after the jump; a time that it shows twice in autumn is
    the first of the two.
    """
    if zone is None or zone in _PLAIN:
        return wall
    first_of_two = np.ones(len(wall), dtype=bool)
    local = _index(wall, None).tz_localize(zone, ambiguous=first_of_two, nonexistent="shift_forward")
    instants: npt.NDArray[np.int64] = local.asi8
    return instants


def _index(nanoseconds: npt.NDArray[np.int64], zone: str | None) -> "pd.DatetimeIndex":
    import pandas as pd

    return pd.DatetimeIndex(np.ascontiguousarray(nanoseconds).view("datetime64[ns]"), tz=zone)


def check_zone(zone: str) -> None:
    """See that a time zone is known on this machine.

    Raises
    ------
    StampError
        If it is not.
    """
    import pandas as pd

    try:
        pd.DatetimeIndex([], tz=zone)
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise StampError(
            f"time zone {zone!r} is not known on this machine. "
            "Convert the time column to an IANA zone such as 'Europe/Berlin', or to 'UTC'."
        ) from error
