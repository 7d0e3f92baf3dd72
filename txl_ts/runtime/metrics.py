"""Counters of a session, as a dict or as Prometheus text."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from txl_ts.errors import TxlError
from txl_ts.runtime.result import STATUSES

# Calls whose durations are looked at, and comparisons of values with their forecasts.
_RECENT_CALLS, _RECENT_VALUES = 1024, 10_000
_HELP = {
    "rows": "Rows that were taken in.",
    "calls": "Calls that were used.",
    "refused": "Calls that were refused whole.",
    "late": "Calls refused for a row before the last one.",
    "duplicates": "Calls refused for a repeated row.",
    "gaps": "Rows that did not come and were walked as missing.",
    "resets": "Streams that began anew after a long gap.",
    "evicted": "Streams packed or dropped by max_streams or idle.",
}


class Counters:
    """Counts what calls did; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = dict.fromkeys(_HELP, 0)
        self._statuses = np.zeros(len(STATUSES), np.int64)
        self._seconds = np.zeros(_RECENT_CALLS)
        self._n_timed = 0
        self._judged: list[tuple[int, int]] = []

    def used(
        self, *, n_rows: int, codes: np.ndarray[Any, np.dtype[np.int64]], n_gaps: int, n_resets: int, seconds: float
    ) -> None:
        """Count a call."""
        with self._lock:
            totals = self._totals
            totals["rows"] += n_rows
            totals["calls"] += 1
            totals["gaps"] += n_gaps
            totals["resets"] += n_resets
            self._statuses += np.bincount(codes, minlength=len(STATUSES))
            self._seconds[self._n_timed % _RECENT_CALLS] = seconds
            self._n_timed += 1

    def judged(self, n_covered: int, n_judged: int) -> None:
        """Count values that came, and how many of them lay inside what was forecast one step before."""
        if not n_judged:
            return
        with self._lock:
            self._judged.append((n_covered, n_judged))
            if len(self._judged) > 64:  # keep the list short, and the newest values in it
                total = 0
                for first in range(len(self._judged) - 1, -1, -1):
                    total += self._judged[first][1]
                    if total >= _RECENT_VALUES:
                        break
                self._judged = _halved(self._judged[first:])

    def refused(self, error: TxlError) -> None:
        """Count a call that was not used."""
        with self._lock:
            self._totals["refused"] += 1
            reason = getattr(error, "reason", None)
            if reason is not None:
                self._totals["late" if reason == "late" else "duplicates"] += 1

    def evicted(self, n: int) -> None:
        """Count streams that were packed or dropped."""
        with self._lock:
            self._totals["evicted"] += n

    def read(self, *, n_streams: int, n_packed: int) -> dict[str, Any]:
        """Give all of it."""
        with self._lock:
            seconds = self._seconds[: min(self._n_timed, _RECENT_CALLS)]
            p50, p99 = np.quantile(seconds, (0.5, 0.99)).tolist() if len(seconds) else (None, None)
            n_judged = sum(n for _, n in self._judged)
            return {
                "streams": n_streams,
                "packed": n_packed,
                **self._totals,
                "statuses": dict(zip(STATUSES, self._statuses.tolist(), strict=True)),
                "call_seconds_p50": p50,
                "call_seconds_p99": p99,
                "coverage": sum(n for n, _ in self._judged) / n_judged if n_judged else None,
            }


def prometheus(metrics: dict[str, Any]) -> str:
    """Write :meth:`Counters.read` in Prometheus' text format; what is not known yet is left out."""
    lines = []
    for name in ("streams", "packed"):
        lines += [f"# TYPE txl_ts_{name} gauge", f"txl_ts_{name} {metrics[name]}"]
    for name, text in _HELP.items():
        full = f"txl_ts_{name}_total"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} counter", f"{full} {metrics[name]}"]
    lines += ["# HELP txl_ts_results_total Results by status.", "# TYPE txl_ts_results_total counter"]
    lines += [f'txl_ts_results_total{{status="{status}"}} {n}' for status, n in metrics["statuses"].items()]
    if metrics["call_seconds_p50"] is not None:
        lines += ["# HELP txl_ts_call_seconds Seconds of recent calls.", "# TYPE txl_ts_call_seconds gauge"]
        lines += [
            f'txl_ts_call_seconds{{quantile="{q}"}} {metrics[f"call_seconds_p{q[2:]}"]:.9g}' for q in ("0.50", "0.99")
        ]
    if metrics["coverage"] is not None:
        lines += ["# HELP txl_ts_coverage Share of recent values inside the outer quantiles forecast for them."]
        lines += ["# TYPE txl_ts_coverage gauge", f"txl_ts_coverage {metrics['coverage']:.9g}"]
    return "\n".join(lines) + "\n"


def _halved(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Add neighbours up until there are few."""
    while len(pairs) > 32:
        odd = pairs[:1] if len(pairs) % 2 else []
        rest = pairs[len(odd) :]
        pairs = odd + [(a + c, b + d) for (a, b), (c, d) in zip(rest[::2], rest[1::2], strict=True)]
    return pairs
