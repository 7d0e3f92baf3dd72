"""Warnings that point at the caller's line, however deep in the runtime they are raised."""

from __future__ import annotations

import sys
import warnings

from txl_ts.errors import TxlWarning


def warn(text: str) -> None:
    """Warn of something, at the line that called the runtime."""
    level, frame = 1, sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("txl_ts."):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(text, TxlWarning, stacklevel=level)
