"""Who may work on which streams: a stream has one thread at a time, a session as many as there are streams."""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Iterator
from contextlib import contextmanager


class Turns:
    """Names that are being worked on. A thread takes all that it needs at once, so that no two wait for each other."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy: set[Hashable] = set()
        self._n_waiting_for_all = 0
        self._is_all_taken = False

    @contextmanager
    def of(self, names: Collection[Hashable]) -> Iterator[None]:
        """Work on some streams, once nobody else does."""
        with self._changed:
            # Who wants all goes first, or a busy fleet would never be saved.
            while self._is_all_taken or self._n_waiting_for_all or not self._busy.isdisjoint(names):
                self._changed.wait()
            self._busy.update(names)
        try:
            yield
        finally:
            with self._changed:
                self._busy.difference_update(names)
                self._changed.notify_all()

    @contextmanager
    def of_all(self) -> Iterator[None]:
        """Work on all streams, once nobody works on any."""
        with self._changed:
            self._n_waiting_for_all += 1
            try:
                while self._is_all_taken or self._busy:
                    self._changed.wait()
                self._is_all_taken = True
            finally:
                self._n_waiting_for_all -= 1
        try:
            yield
        finally:
            with self._changed:
                self._is_all_taken = False
                self._changed.notify_all()
