"""The part of a session that moves its streams to new weights, and back."""

from __future__ import annotations

import time
from typing import Any

from txl_ts.errors import StateError
from txl_ts.runtime.contract import Contract
from txl_ts.runtime.fleet import Fleet
from txl_ts.runtime.history import read_history
from txl_ts.runtime.names import LaneName, stream_of
from txl_ts.runtime.rows import Rows
from txl_ts.runtime.swap import MOST_ROWS, Shadow, build, check_alike
from txl_ts.runtime.targets import spread_history
from txl_ts.runtime.turns import Turns


class Swapping:
    """New weights for the streams of a session; see :mod:`txl_ts.runtime.swap` for how."""

    _fleet: Fleet
    _turns: Turns
    _shadow: Shadow | None
    _is_switched: bool

    def _open(self, model: Any) -> Fleet:
        raise NotImplementedError

    @property
    def contract(self) -> Contract:
        """What the graph's metadata promise; ``contract.document`` is the whole of it."""
        return self._fleet.contract

    def swap(
        self,
        model: Any,
        *,
        history: Any = None,
        shadow: bool = False,
        id_col: str = "unique_id",
        time_col: str = "ds",
    ) -> dict[str, Any]:
        """Move all streams to new weights while other threads go on stepping: no row is lost, none is answered twice.

        The new model walks the history of each stream, then the rows that this session kept of it, then what came in
        the meantime. Then it answers, at once for all streams. The old one can come back: see :meth:`roll_back`.

        Parameters
        ----------
        model : path or bytes
            Another graph, for the same channels and grid.
        history : mapping or frame, optional
            As :meth:`warm` takes it; rows that the session kept itself are used in its stead. Without times, it has to
            end with the last row before this call. Without it, streams are rebuilt from the kept rows: as many as the
            recurrent memory reaches back, so look-back and normaliser know less than they would.
        shadow : bool
            Do not switch: from now on the new model walks along with each call, and :meth:`shadow_report` compares,
            until :meth:`switch` or :meth:`roll_back`.
        id_col, time_col : str
            Names of the history's columns.

        Returns
        -------
        dict
            ``streams``, ``rows`` that were walked, ``seconds``, and ``without_history``: streams with no row to walk.

        Raises
        ------
        StateError
            If channels or time differ, or another swap is under way.
        FileFormatError, ColumnError, ShapeError, ParameterError, StampError
            If the graph cannot be opened, or the history not be walked. In all cases the old model goes on.
        """
        began = time.perf_counter()
        with self._turns.of_all():
            if self._shadow is not None and not self._is_switched:
                raise StateError("another swap is under way. Call `switch()` or `roll_back()` first.")
            follower = self._shadow = Shadow()
            self._is_switched = False
            kept = {name: self._fleet.recent(name) for name in self._fleet.names}
        try:
            fleet = self._open(model)
            check_alike(self.contract, fleet.contract)
            by_name: dict[LaneName, Rows] = {}
            if history is not None:
                rows = read_history(history, contract=fleet.contract, id_col=id_col, time_col=time_col)
                by_name = spread_history(rows, fleet.contract)
            n_rows = build(fleet, kept, by_name)
            follower.fleet = fleet
            follower.walk_journal()
            with self._turns.of_all():
                follower.walk_journal()
                follower.journal = None
                if not shadow:
                    self._switch(follower)
        except BaseException:  # the old one goes on
            with self._turns.of_all():
                self._shadow = None
            raise
        without = {stream_of(n) for n, (_, rows) in kept.items() if not len(rows.values) and n not in by_name}
        n_streams, seconds = len(set(map(stream_of, kept))), time.perf_counter() - began
        return {"streams": n_streams, "rows": n_rows, "seconds": seconds, "without_history": len(without)}

    def shadow_report(self) -> dict[str, Any]:
        """Compare the new model with the old one over the rows since ``swap(…, shadow=True)``.

        Returns
        -------
        dict
            ``rows``; ``median_change``, the mean change of the median in units of the old outer band;
            ``largest_change``, in units of the target; ``coverage_old`` and ``coverage_new`` of the outer quantiles.

        Raises
        ------
        StateError
            If nothing walks along, or it could not.
        """
        return self._followed().report()

    def switch(self) -> None:
        """Let the new model answer from the next call on.

        Raises
        ------
        StateError
            If ``swap(…, shadow=True)`` was not called, or the new model could not walk along.
        """
        with self._turns.of_all():
            self._switch(self._followed())

    def roll_back(self) -> None:
        """Give up the new model: the old one answers, and has seen all rows that came since.

        Raises
        ------
        StateError
            If there was no swap, or more than a million rows have come since the switch.
        """
        with self._turns.of_all():
            shadow = self._shadow
            if shadow is None:
                raise StateError("there is nothing to go back to: no `swap` was made, or `settle` was called.")
            if self._is_switched:
                if shadow.journal is None or shadow.journal.is_over:
                    raise StateError(
                        f"more than {MOST_ROWS} rows have come since the switch, and the old model was let go. "
                        "Swap to its graph instead, with a history."
                    )
                shadow.walk_journal()
                self._fleet = shadow.fleet or self._fleet
            self._shadow, self._is_switched = None, False

    def settle(self) -> None:
        """Let the old model go after a switch; it and the rows since then take memory until this is called."""
        with self._turns.of_all():
            if self._is_switched:
                self._shadow, self._is_switched = None, False

    def _followed(self) -> Shadow:
        shadow = self._shadow
        if shadow is None or shadow.journal is not None:
            raise StateError("no new model walks along. Call `swap(model, shadow=True)` first.")
        if shadow.error is not None:
            raise StateError(
                f"the new model could not walk along: {shadow.error} Call `roll_back()`."
            ) from shadow.error
        return shadow

    def _switch(self, follower: Shadow) -> None:
        self._shadow = Shadow(most_rows=MOST_ROWS)
        self._shadow.fleet = self._fleet
        self._fleet, self._is_switched = follower.fleet or self._fleet, True
