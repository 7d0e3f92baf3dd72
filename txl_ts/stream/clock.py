"""Which readings are taken in, by their stamps alone: never by the clock of this machine, so that a replay repeats."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from txl_ts.stream.statuses import CLOCK_AHEAD, CLOCK_BACK, DUPLICATE, LATE_DROPPED

_REMEMBERED = 32  # readings per tag that a repeat is compared with


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Rules for stamps; durations in the unit of the stamps.

    Parameters
    ----------
    back : int
        A reading that comes too late, and is older by more than this than the newest of its own tag, shows a clock that
        went back: it and all up to that newest stamp are ``clock_back``. Nearer ones are ``late_dropped``.
    max_jump : int
        Further ahead of the stream's newest stamp a reading is ``clock_ahead``, and moves nothing.
    believe_after : int
        So many readings that agree with each other make a jump real: ahead if they come from more than half of the tags
        that are alive, back if from more tags than agreed with the time before, or if that was no better supported.
    """

    back: int
    max_jump: int
    believe_after: int

    def open(self) -> dict[str, Any]:
        """Give the state of a clock that has seen nothing; plain JSON."""
        return {"newest": None, "tags": {}, "ahead": None, "behind": None, "support": {"n": 0, "tags": []}}

    def jump(self, tags: list[str], stamp: int, state: dict[str, Any]) -> str | None:
        """Judge one stamp against the stream's time; ``state`` is moved on.

        Returns
        -------
        str or None
            None: no jump. ``"clock_ahead"`` or ``"clock_back"``: refuse it. ``"ahead"`` or ``"behind"``: the jump is
            believed, and the state is that of a clock which begins there.
        """
        newest = state["newest"]
        if newest is None or abs(stamp - newest) <= self.max_jump:
            for side in ("ahead", "behind"):  # a tag that is back on the stream's time takes its jump back
                if state[side] is not None and not set(tags).isdisjoint(state[side]["tags"]):
                    state[side] = None
            return None
        side = "ahead" if stamp > newest else "behind"
        found = state[side]
        if found is None or abs(stamp - found["newest"]) > self.max_jump:
            found = {"n": 0, "newest": stamp, "tags": []}
        found = {"n": found["n"] + 1, "newest": stamp, "tags": sorted({*found["tags"], *tags})}
        state[side] = found
        if found["n"] >= self.believe_after and self._is_believed(side, found["tags"], state):
            state.update(self.open())
            return side
        return CLOCK_AHEAD if side == "ahead" else CLOCK_BACK

    def _is_believed(self, side: str, tags: list[str], state: dict[str, Any]) -> bool:
        if side == "behind":
            support = state["support"]
            return support["n"] < self.believe_after or len(tags) > len(support["tags"])
        alive = {tag for tag, seen in state["tags"].items() if state["newest"] - seen["newest"] <= self.max_jump}
        return 2 * len(alive.intersection(tags)) > len(alive) or not alive

    def judge(self, tag: str, stamp: int, value: Any, *, floor: int | None, state: dict[str, Any]) -> str | None:
        """Judge one reading, whose stamp is no jump; ``state`` is moved on.

        Parameters
        ----------
        floor : int or None
            The earliest stamp that can still be taken in.

        Returns
        -------
        str or None
            The status of a reading that is refused, None if it is taken in.
        """
        seen = state["tags"].get(tag)
        if seen is None:
            if floor is not None and stamp < floor:
                return LATE_DROPPED
            seen = state["tags"][tag] = {"newest": stamp, "taken": None, "is_back": False, "at": [], "values": []}
        elif (refusal := self._refusal(seen, stamp, value, floor)) is not None:
            return refusal
        if stamp > seen["newest"]:
            seen["newest"], seen["is_back"] = stamp, False
        place = bisect_right(seen["at"], stamp)
        seen["at"].insert(place, stamp)
        seen["values"].insert(place, value)
        if state["newest"] is None or stamp > state["newest"]:
            state["newest"] = stamp
        support = state["support"]
        if support["n"] < self.believe_after or tag not in support["tags"]:
            state["support"] = {"n": support["n"] + 1, "tags": sorted({*support["tags"], tag})}
        return None

    def _refusal(self, seen: dict[str, Any], stamp: int, value: Any, floor: int | None) -> str | None:
        newest, taken = seen["newest"], seen["taken"]
        is_waiting = taken is None or stamp > taken
        place = bisect_left(seen["at"], stamp)
        is_known = place < len(seen["at"]) and seen["at"][place] == stamp
        if is_known and (is_waiting or value == seen["values"][place]):
            return DUPLICATE
        if seen["is_back"] and stamp <= newest:
            return CLOCK_BACK
        if stamp == newest:
            return DUPLICATE
        if not is_waiting or (floor is not None and stamp < floor):
            if newest - stamp > self.back:
                seen["is_back"] = True
                return CLOCK_BACK
            return LATE_DROPPED
        return None

    def took(self, tag: str, stamp: int, state: dict[str, Any]) -> None:
        """Note that a reading has gone into a row: only the last few of those are remembered."""
        seen = state["tags"].get(tag)
        if seen is None:  # read before a jump that was believed since
            return
        seen["taken"] = stamp if seen["taken"] is None else max(stamp, seen["taken"])
        n_too_many = bisect_right(seen["at"], seen["taken"]) - _REMEMBERED
        if n_too_many > 0:
            del seen["at"][:n_too_many], seen["values"][:n_too_many]

    def copy(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Copy a state as deep as it is changed in place."""
        tags = {tag: {**seen, "at": seen["at"][:], "values": seen["values"][:]} for tag, seen in state["tags"].items()}
        return {**state, "tags": tags}
