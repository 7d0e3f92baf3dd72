"""Names of streams."""

from __future__ import annotations

from typing import Any

import numpy as np

from txl_ts.errors import ParameterError

StreamName = str | int


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
