"""The rows of a panel while it is read, and the sieve that refuses or skips bad series."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from txl_ts.errors import FrameError
from txl_ts.frames.panel import SeriesId
from txl_ts.frames.stamps import show
from txl_ts.frames.style import FrameStyle

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_EMPTY = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Rows:
    """Rows sorted by series, then time.

    Attributes
    ----------
    codes : int64 array of shape (N,)
        Series of each row.
    stamps : int64 array of shape (N,)
        Native stamps.
    values : float array of shape (N,)
        The target; NaN where missing.
    order : int64 array of shape (N,)
        Position of each row in the frame; empty if the frame was sorted.
    ordinals, moves : int64 arrays of shape (N,)
        Grid ordinal, and distance to it; empty until the rows are placed.
    """

    codes: IntArray
    stamps: IntArray
    values: npt.NDArray[np.floating[Any]]
    order: IntArray
    ordinals: IntArray
    moves: IntArray

    @classmethod
    def sorted(cls, codes: IntArray, stamps: IntArray, values: npt.NDArray[np.floating[Any]]) -> "Rows":
        """Sort rows by series, then time; rows with equal stamps keep their order."""
        same = codes[1:] == codes[:-1]
        if bool(((codes[1:] > codes[:-1]) | (same & (stamps[1:] >= stamps[:-1]))).all()):
            return cls(codes, stamps, values, _EMPTY, _EMPTY, _EMPTY)
        order = np.lexsort((stamps, codes))
        return cls(codes[order], stamps[order], values[order], order, _EMPTY, _EMPTY)

    def keep(self, kept: BoolArray) -> "Rows":
        """Drop all other rows."""
        order = self.order if self.order.size else np.arange(len(self.codes))
        placed = [array[kept] if array.size else array for array in (self.ordinals, self.moves)]
        return Rows(self.codes[kept], self.stamps[kept], self.values[kept], order[kept], *placed)

    def position(self, row: int) -> int:
        """Position of a row in the frame."""
        return int(self.order[row]) if self.order.size else row

    def starts(self) -> IntArray:
        """First row of each series."""
        return np.flatnonzero(np.diff(self.codes, prepend=-1))


class Sieve:
    """Rows that were found good so far; a bad series raises, or is taken out and remembered.

    Parameters
    ----------
    rows : Rows
        All rows.
    ids : tuple of str or int
        Name of each code.
    style : FrameStyle
        For stamps in messages.
    skip : bool
        Whether bad series are skipped.
    """

    def __init__(self, rows: Rows, ids: tuple[SeriesId, ...], style: FrameStyle, *, skip: bool) -> None:
        self.rows = rows
        self.ids = ids
        self.skipped: list[tuple[SeriesId, str]] = []
        self._style = style
        self._skip = skip

    def refuse(
        self,
        bad: BoolArray,
        error: type[FrameError],
        problem: Callable[[int, int], str],
        cure: str,
        *,
        detail: Callable[[int], str] | None = None,
    ) -> None:
        """Raise for the first bad row, or skip every series that has one.

        Parameters
        ----------
        bad : bool array of shape (N,)
            Bad rows.
        error : type
            What to raise.
        problem : callable
            Says what is wrong, given the position of a series' first bad row and the number of its bad rows.
        cure : str
            Says what to do.
        detail : callable, optional
            What to show of that row, by default its stamp.
        """
        at = np.flatnonzero(bad)
        if not at.size:
            return
        series, first, counts = np.unique(self.rows.codes[at], return_index=True, return_counts=True)
        firsts = at[first]
        if not self._skip:
            others = [repr(self.ids[code]) for code in series[1:5]]
            more = f" Series with the same problem: {len(series)}, among them {', '.join(others)}." if others else ""
            raise error(f"{self._reason(firsts[0], counts[0], problem, detail)}.{more} {cure}")
        for code, row, count in zip(series, firsts, counts, strict=True):
            self.skipped.append((self.ids[code], self._reason(row, count, problem, detail)))
        self._drop(series)

    def _reason(
        self, row: int, count: int, problem: Callable[[int, int], str], detail: Callable[[int], str] | None
    ) -> str:
        name = "" if self._style.id_col is None else f" in series {self.ids[self.rows.codes[row]]!r}"
        shown = detail(int(row)) if detail else show(int(self.rows.stamps[row]), self._style)
        return f"{problem(int(row), int(count))}{name} (first at row {self.rows.position(int(row))}: {shown})"

    def _drop(self, series: IntArray) -> None:
        kept = np.ones(len(self.ids), dtype=bool)
        kept[series] = False
        if not kept.any():
            name, reason = self.skipped[0]
            raise FrameError(
                f"all {len(self.skipped)} series were skipped; the first is {name!r}: {reason}. "
                "Read with on_bad_series='raise' to see what to do."
            )
        rows = self.rows.keep(kept[self.rows.codes])
        renumbered = np.cumsum(kept) - 1
        self.rows = replace(rows, codes=renumbered[rows.codes])
        self.ids = tuple(name for name, keep in zip(self.ids, kept, strict=True) if keep)
