"""Several targets of one stream, each a lane of its own: rows are spread over lanes, answers laid together again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from txl_ts.runtime.columns import Columns
from txl_ts.runtime.contract import Contract
from txl_ts.runtime.fleet import Answer
from txl_ts.runtime.names import LaneName, StreamName
from txl_ts.runtime.rows import Rows


def lanes_of(name: StreamName, contract: Contract) -> list[LaneName]:
    """Name the lanes of a stream: one, or one per target."""
    return [(name, target) for target in contract.targets] if contract.targets else [name]


def spread(columns: Columns, contract: Contract) -> Columns:
    """Give the rows of each lane: a target, and the columns that all targets of a row share."""
    n_targets = len(contract.targets)
    if not n_targets:
        return columns
    n = len(columns.names)
    values = np.empty((n, n_targets, contract.layout.width), np.float32)
    values[:, :, 0] = columns.values[:, :n_targets]
    values[:, :, 1:] = columns.values[:, None, n_targets:]
    odd = {
        i * n_targets + k: one for i, rows in columns.odd.items() for k, one in enumerate(_by_target(rows, n_targets))
    }
    return Columns(
        names=[(name, target) for name in columns.names for target in contract.targets],  # type: ignore[misc]
        values=values.reshape(n * n_targets, -1),
        stamps=columns.stamps.repeat(n_targets),
        timed=columns.timed.repeat(n_targets),
        odd=odd,
        static={i * n_targets + k: one for i, one in columns.static.items() for k in range(n_targets)},
    )


def spread_history(by_name: Mapping[StreamName, Rows], contract: Contract) -> dict[LaneName, Rows]:
    """Give the history of each lane."""
    if not contract.targets:
        return dict(by_name)
    return {
        lane: one
        for name, rows in by_name.items()
        for lane, one in zip(lanes_of(name, contract), _by_target(rows, len(contract.targets)), strict=True)
    }


def _by_target(rows: Rows, n_targets: int) -> list[Rows]:
    shared = rows.values[:, n_targets:]
    return [replace(rows, values=np.concatenate([rows.values[:, k : k + 1], shared], axis=1)) for k in range(n_targets)]


def gathered(answer: Answer, contract: Contract) -> Answer:
    """Lay the answers of a stream's lanes side by side, as channels."""
    n = len(contract.targets)
    if not n:
        return answer
    several = {}
    for first in sorted(answer.several)[::n]:
        several[first // n] = np.concatenate([answer.several[first + k] for k in range(n)], axis=2)
    y = answer.y[:, :, 0]  # (streams · targets, h, Q)
    return Answer(
        y=np.moveaxis(y.reshape(-1, n, *y.shape[1:]), 1, 2),
        is_missing=answer.is_missing.reshape(-1, n).any(axis=1),
        n_rows=answer.n_rows.reshape(-1, n).min(axis=1),
        last=answer.last[::n],
        timed=answer.timed[::n],
        several=several,
        n_gaps=answer.n_gaps // n,
        n_resets=answer.n_resets // n,
        n_covered=answer.n_covered,
        n_judged=answer.n_judged,
    )
