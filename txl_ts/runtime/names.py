"""Names of streams."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import numpy as np

from txl_ts.errors import ParameterError, StateError

StreamName = str | int
# Where each target is a lane of its own: the stream and the target.
LaneName = StreamName | tuple[StreamName, str]


def stream_of(lane: LaneName) -> StreamName:
    """Give the stream that a lane belongs to."""
    return lane[0] if isinstance(lane, tuple) else lane


def unknown_stream(name: LaneName, lanes: Iterable[LaneName]) -> StateError:
    """Say that there is no such stream, and which one may be meant."""
    known = list(dict.fromkeys(map(stream_of, lanes)))
    close = difflib.get_close_matches(str(stream_of(name)), [str(other) for other in known], n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are {known[:5]}"
    return StateError(f"there is no stream {stream_of(name)!r} ({len(known)} in all): {hint}")


def checked_name(name: Any) -> StreamName:
    """Give a stream's name as text or int.

    Raises
    ------
    ParameterError
        If it is neither.
    """
    if isinstance(name, str):
        return str(name)
    if isinstance(name, int | np.integer) and not isinstance(name, bool):
        return int(name)
    raise ParameterError(
        f"stream name {name!r:.80} is of type {type(name).__name__}, expected text or an integer. "
        "Nothing of this call was used."
    )
