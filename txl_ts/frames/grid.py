"""Put stamps on a grid: where it starts in each series, and on which of its points every row lies."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from txl_ts.frames.freq import Freq
from txl_ts.frames.modes import mode_per_series
from txl_ts.frames.slots import DAY_NS
from txl_ts.frames.zones import instant_of, wall_of

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Placed:
    """Rows on the grid.

    Attributes
    ----------
    ordinals : int64 array of shape (N,)
        Grid ordinal of each row, counted from its series' origin.
    moves : int64 array of shape (N,)
        Distance from each stamp to its grid point, in native units; 0 where the stamp lies on it.
    """

    ordinals: IntArray
    moves: IntArray


def find_origins(codes: IntArray, stamps: IntArray, n_series: int, freq: Freq, zone: str | None) -> IntArray:
    """Choose a grid point near the first row of each series, such that most of its rows lie on the grid.

    Parameters
    ----------
    codes, stamps : int64 arrays of shape (N,)
        Rows sorted by series, then time; every series has a row.
    n_series : int
        Number of series.
    freq : Freq
        Step of the grid.
    zone : str or None
        Time zone of the stamps.

    Returns
    -------
    int64 array of shape (n_series,)
        Native stamps.
    """
    first = stamps[np.flatnonzero(np.diff(codes, prepend=-1))]
    if freq.kind != "calendar":
        return _on_phase(codes, stamps, first, freq.step)
    wall, first_wall = wall_of(stamps, zone), wall_of(first, zone)
    if freq.slots.rule == "day":
        return instant_of(_on_phase(codes, wall, first_wall, freq.slots_per_step * DAY_NS), zone)
    return instant_of(_on_slots(codes, wall, first_wall, n_series, freq), zone)


def _on_phase(codes: IntArray, stamps: IntArray, first: IntArray, step: int) -> IntArray:
    """Last point at or before the first stamp whose remainder modulo the step is the most common one."""
    phases = stamps % step
    phase = first % step
    if not np.array_equal(phases, phase[codes]):
        phase, _ = mode_per_series(codes, phases, len(first))
    return first - (first - phase) % step


def _on_slots(codes: IntArray, wall: IntArray, first: IntArray, n_series: int, freq: Freq) -> IntArray:
    """Point of the slot nearest to the first stamp, at the most common time of day (and, for n > 1, slot modulo n)."""
    slots, per_step = freq.slots, freq.slots_per_step
    rest, _ = mode_per_series(codes, wall % DAY_NS, n_series)
    if slots.rule == "month_day":
        rest = rest + (first - slots.start_of(slots.slot_of(first))) // DAY_NS * DAY_NS
    near = slots.floor(wall, rest[codes])
    ahead = slots.point(near + 1, rest[codes]) - wall < wall - slots.point(near, rest[codes])
    near = near + ahead
    start = near[np.flatnonzero(np.diff(codes, prepend=-1))]
    if per_step > 1:
        phase, _ = mode_per_series(codes, near % per_step, n_series)
        start = start - (start - phase) % per_step
    return slots.point(start, rest)


def place(origins: IntArray, stamps: IntArray, freq: Freq, zone: str | None, *, nearest: bool) -> Placed:
    """Find the grid point of every row.

    Parameters
    ----------
    origins : int64 array of shape (N,)
        Origin of each row's series.
    stamps : int64 array of shape (N,)
        Native stamps.
    freq : Freq
        Step of the grid.
    zone : str or None
        Time zone of the stamps.
    nearest : bool
        Take the nearest point (the earlier of two at equal distance), else the last one at or before the stamp.
    """
    ordinals = freq.count(origins, stamps, zone)
    moves = stamps - freq.shift(origins, ordinals, zone)
    if nearest and moves.any():
        off = np.flatnonzero(moves)
        ahead = freq.shift(origins[off], ordinals[off] + 1, zone) - stamps[off]
        up = ahead < moves[off]
        ordinals[off[up]] += 1
        moves[off[up]] = -ahead[up]
    return Placed(ordinals, moves)


def average_collisions(
    codes: IntArray, ordinals: IntArray, values: npt.NDArray[np.floating]
) -> tuple[IntArray, IntArray, npt.NDArray[np.floating]]:
    """Merge rows that share a grid point into the mean of their finite values (NaN if there are none).

    Rows must be sorted by series, then ordinal. The result does not depend on the order of the merged rows.
    """
    order = np.lexsort((values, ordinals, codes))
    codes, ordinals, values = codes[order], ordinals[order], values[order]
    starts = np.flatnonzero((np.diff(codes, prepend=-1) != 0) | (np.diff(ordinals, prepend=ordinals[0] - 1) != 0))
    finite = np.isfinite(values)
    totals = np.add.reduceat(np.where(finite, values, 0.0).astype(np.float64), starts)
    counts = np.add.reduceat(finite.astype(np.int64), starts)
    means = np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)
    return codes[starts], ordinals[starts], means
