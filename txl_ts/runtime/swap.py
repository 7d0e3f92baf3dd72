"""New weights for streams that do not stop: built in the shadow, compared if wished, switched at once, rolled back.

While the new fleet is built, calls go on with the old one and are noted in a journal, which the new fleet then walks.
The switch happens while no call is under way. So each row is answered once, and whoever answers next remembers it.
After the switch the journal goes on, and the old fleet walks it if it has to come back.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from txl_ts.errors import StateError, TxlError
from txl_ts.runtime.columns import Columns
from txl_ts.runtime.contract import Contract
from txl_ts.runtime.fleet import Answer, Fleet
from txl_ts.runtime.names import LaneName
from txl_ts.runtime.plan import Place
from txl_ts.runtime.rows import Rows

# Rows that the journal holds after a switch; the fleet that was can come back until then.
MOST_ROWS = 1_000_000
_BATCH = 64
# How often the journal is walked beside the old fleet: each time it is shorter, unless rows come as fast as they can.
_PASSES = 3


@dataclass(frozen=True)
class Event:
    """What a session did: rows, or one of ``reset``, ``close``, ``copy`` with its names."""

    columns: Columns | None = None
    call: str = ""
    names: tuple[LaneName, ...] = ()

    def on(self, fleet: Fleet) -> None:
        """Do it again."""
        if self.columns is not None:
            fleet.take(self.columns, wants_all=False)
        else:
            getattr(fleet, self.call)(*self.names)


class Journal:
    """What happened, in an order in which each stream's events stand as they were."""

    def __init__(self, *, most_rows: int | None = None) -> None:
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._n_rows, self._most_rows = 0, most_rows
        self.is_over = False

    def note(self, event: Event) -> None:
        """Add an event; a journal that is over keeps nothing."""
        with self._lock:
            if self.is_over:
                return
            self._n_rows += 0 if event.columns is None else event.columns.n_rows
            self._events.append(event)
            if self._most_rows is not None and self._n_rows > self._most_rows:
                self.is_over, self._events = True, []

    def taken(self) -> list[Event]:
        """Give the events and forget them."""
        with self._lock:
            events, self._events = self._events, []
            return events


class Shadow:
    """A fleet that follows: it walks the journal, or each call beside the one that answers.

    Attributes
    ----------
    fleet : Fleet or None
        None while it is not there yet.
    journal : Journal or None
        None once the fleet walks with each call.
    error : TxlError or None
        Why it does not follow any more.
    """

    def __init__(self, *, most_rows: int | None = None) -> None:
        self.fleet: Fleet | None = None
        self.error: TxlError | None = None
        self.journal: Journal | None = Journal(most_rows=most_rows)
        self._lock = threading.Lock()
        self._n, self._change, self._largest, self._width = 0, 0.0, 0.0, 0.0
        self._covered = {"old": [0, 0], "new": [0, 0]}

    def follow(self, event: Event, answer: Answer | None = None, contract: Contract | None = None) -> None:
        """See what happened; ``answer`` is what the other fleet said."""
        if self.journal is not None:
            self.journal.note(event)
            return
        if self.error is not None or (fleet := self.fleet) is None:
            return
        try:
            if event.columns is None or answer is None or contract is None:
                event.on(fleet)
            else:
                self._compare(answer, fleet.take(event.columns, wants_all=False), contract, fleet.contract)
        except TxlError as error:
            self.error = error  # the call itself went well

    def walk_journal(self) -> None:
        """Do again what happened; what comes in the meantime stays for the next time."""
        for _ in range(_PASSES):
            if self.fleet is None or self.journal is None or not (events := self.journal.taken()):
                return
            for event in events:
                event.on(self.fleet)

    def report(self) -> dict[str, Any]:
        """Say how the forecasts differ."""
        with self._lock:
            return {
                "rows": self._n,
                "median_change": self._change / self._width if self._width else None,
                "largest_change": self._largest if self._n else None,
                **{f"coverage_{who}": k / n if n else None for who, (k, n) in self._covered.items()},
            }

    def _compare(self, old: Answer, new: Answer, contract: Contract, mine: Contract) -> None:
        h = min(contract.horizon, mine.horizon)
        a = old.y[:, :h, :, contract.quantiles.index(0.5)].astype(np.float64)
        b = new.y[:, :h, :, mine.quantiles.index(0.5)]
        width = old.y[:, :h, :, -1].astype(np.float64) - old.y[:, :h, :, 0]
        known = np.isfinite(a) & np.isfinite(b)
        with self._lock:
            self._n += len(a)
            for who, answer in (("old", old), ("new", new)):
                self._covered[who][0] += answer.n_covered
                self._covered[who][1] += answer.n_judged
            if known.any():
                change = np.abs(b - a)[known]
                self._change += float(change.sum())
                self._largest = max(self._largest, float(change.max()))
                self._width += float(width[known].sum())


def check_alike(old: Contract, new: Contract) -> None:
    """Refuse a model for other streams.

    Raises
    ------
    StateError
        If channels, the columns beside them or the grid of time differ.
    """
    for name in ("channels", "targets", "freq", "is_datetime", "zone", "step"):
        here, there = getattr(old, name), getattr(new, name)
        if here != there:
            raise StateError(
                f"the new model has {name}={there!r}, the streams have {here!r}. Open a session of its own for it."
            )
    if old.layout != new.layout and not (old.layout.is_plain and new.layout.is_plain):
        raise StateError(
            "the new model has other columns beside the target, other categories or another horizon: the rows that "
            "were kept of the streams cannot be walked by it. Open a session of its own, and warm it with history."
        )


def build(fleet: Fleet, kept: Mapping[LaneName, tuple[Place, Rows]], history: Mapping[LaneName, Rows]) -> int:
    """Let an empty fleet walk the history of streams and the rows that were kept of them; gives the number of rows."""
    names, n_rows = list(kept), 0
    for first in range(0, len(names), _BATCH):
        batch = names[first : first + _BATCH]
        rows = {name: _joined(*kept[name], history.get(name)) for name in batch}
        for name in batch:
            if not len(rows[name].values):
                fleet.begin(name, static=kept[name][0].static)
        batch = [name for name in batch if len(rows[name].values)]
        n = len(batch)
        odd = {i: rows[name] for i, name in enumerate(batch)}
        values = np.zeros((n, fleet.contract.layout.width), np.float32)
        fleet.take(Columns(batch, values, np.zeros(n, np.int64), np.zeros(n, bool), odd), wants_all=False)
        for name in batch:
            _put_in_time(fleet, name, kept[name][0])
        n_rows += sum(len(rows[name].values) for name in batch)
    return n_rows


def _joined(place: Place, kept: Rows, history: Rows | None) -> Rows:
    """Put the kept rows behind the history, which may reach into them."""
    if history is None or not len(history.values):
        return kept
    history = replace(history, static=history.static or place.static)
    if history.stamps is None or place.last is None:
        return history  # by agreement it ends where the swap begins
    stamps = np.array(history.stamps, np.int64)
    if kept.stamps is None:
        is_early = stamps <= place.last
        return replace(history, values=history.values[is_early], stamps=stamps[is_early].tolist())
    is_early = stamps < kept.stamps[0]
    values = np.concatenate([history.values[is_early], kept.values])
    return replace(history, values=values, stamps=stamps[is_early].tolist() + kept.stamps)


def _put_in_time(fleet: Fleet, name: LaneName, old: Place) -> None:
    """Give a stream its times where it walked rows without."""
    lane = fleet.lanes[name]
    place, step = fleet.table.place(lane), fleet.contract.step
    if place.last is None and old.last is not None:
        origin = old.origin if step is None else old.last - (place.n_rows - 1) * step
        fleet.table.put(lane, replace(place, origin=origin, last=old.last))
