"""Many series on their grids, packed end to end."""

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from txl_ts.frames.freq import Freq
from txl_ts.frames.roles import Covariates
from txl_ts.frames.style import FrameStyle
from txl_ts.frames.words import counted

IntArray = npt.NDArray[np.int64]
SeriesId = str | int

ONLY_SERIES = "series"
"""Name of the series of a frame without an id column."""


@dataclass(frozen=True)
class CleaningReport:
    """What was done to the rows of a frame while it was read.

    Attributes
    ----------
    n_moved : int
        Stamps that were moved to the grid (``align="nearest"``).
    max_move : str
        The longest such move, in words.
    n_collided : int
        Rows that fell on a grid stamp already taken; their finite values were averaged.
    n_filled : int
        Rows without values that were put into gaps.
    n_cut : int
        Gaps longer than ``max_gap``, at which a new piece starts.
    n_missing : int
        Rows of the frame whose target is missing.
    n_skipped : int
        Series that were left out (``on_bad_series="skip"``).
    n_coarse : int
        Series whose level is so far above their changes that float32 rounds a part of these away.
    grid : str
        The grid in words, such as ``"5-minute"``.
    """

    n_moved: int = 0
    max_move: str = ""
    n_collided: int = 0
    n_filled: int = 0
    n_cut: int = 0
    n_missing: int = 0
    n_skipped: int = 0
    n_coarse: int = 0
    grid: str = ""

    def changes(self) -> list[str]:
        """Say what was moved, merged or left out; gaps and missing values are no change."""
        return replace(self, n_filled=0, n_cut=0, n_missing=0).lines()

    def lines(self) -> list[str]:
        """Say it in sentences, one for each thing that happened."""
        stamps = counted(self.n_moved, "stamp was", "stamps were")
        told = (
            (self.n_moved, f"{stamps} moved to the {self.grid} grid (at most {self.max_move})."),
            (self.n_collided, f"{counted(self.n_collided, 'row', 'rows')} fell on taken stamps; values were averaged."),
            (self.n_filled, f"{counted(self.n_filled, 'missing row was', 'missing rows were')} put into gaps."),
            (
                self.n_cut,
                f"{counted(self.n_cut, 'gap was', 'gaps were')} longer than max_gap; a new piece starts after each.",
            ),
            (self.n_missing, f"{counted(self.n_missing, 'row has', 'rows have')} no value."),
            (self.n_skipped, f"{counted(self.n_skipped, 'series was', 'series were')} skipped."),
            (
                self.n_coarse,
                f"{counted(self.n_coarse, 'series has', 'series have')} a level so far above the changes that float32 "
                "(7 digits) rounds a part of these away; subtract a level from the column.",
            ),
        )
        return [sentence for happened, sentence in told if happened]


@dataclass(frozen=True)
class Panel:
    """Series as pieces of consecutive rows on a grid.

    A piece is a run of rows with one grid step between neighbours; a gap that was too long to fill ends it. Pieces are
    sorted by series, then by time.

    Attributes
    ----------
    ids : tuple of str or int
        Names of the series: distinct, sorted, of the type they had in the frame (``("series",)`` without an id column).
    origins : int64 array of shape (n_series,)
        Native stamp of each series' grid ordinal 0: epoch nanoseconds (the UTC instant if the column has a zone, else
        wall time), or the plain integer.
    piece_series : int64 array of shape (n_pieces,)
        Position in ``ids``.
    piece_first : int64 array of shape (n_pieces,)
        Grid ordinal of the piece's first row.
    offsets : int64 array of shape (n_pieces + 1,)
        Rows of piece ``p`` are ``values[offsets[p]:offsets[p + 1]]``.
    values : float32 array of shape (N,), or (N, C)
        The target on the grid, or the targets of mixed channels side by side; NaN where missing.
    freq : Freq
        Step of the grid.
    style : FrameStyle
        Kind of frame that was read.
    skipped : tuple of (id, reason)
        Series that were left out.
    report : CleaningReport
        What was moved, merged, filled or cut.
    source : int64 array of shape (N,) or None
        Row of the frame that each row came from (the first of several that were averaged), −1 where it was filled;
        kept where there are columns beside the target.
    covariates : Covariates or None
        Columns beside the target.
    calendar : tuple of str
        Features of the stamp among them, the last columns of ``covariates.futr``.
    targets : tuple of str
        Target columns of a wide frame, whose series are named ``"id/target"`` unless channels are mixed; empty for a
        long frame.
    row_stamps : int64 array of shape (N,) or None
        Native stamp of every row where time is uneven: an ordinal then is the number of a row, and a piece ends at a
        gap that was too long.
    """

    ids: tuple[SeriesId, ...]
    origins: IntArray
    piece_series: IntArray
    piece_first: IntArray
    offsets: IntArray
    values: npt.NDArray[np.float32]
    freq: Freq
    style: FrameStyle
    skipped: tuple[tuple[SeriesId, str], ...] = ()
    report: CleaningReport = field(default_factory=CleaningReport)
    source: IntArray | None = None
    covariates: Covariates | None = None
    calendar: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    row_stamps: IntArray | None = None

    @property
    def n_series(self) -> int:
        """Number of series."""
        return len(self.ids)

    @property
    def is_mixed(self) -> bool:
        """Whether each series has several targets."""
        return self.values.ndim == 2

    @property
    def n_lanes_per_series(self) -> int:
        """Targets of each series."""
        return self.values.shape[1] if self.values.ndim == 2 else 1

    @property
    def lane_names(self) -> tuple[SeriesId, ...]:
        """Names of what is forecast: the series, or ``"id/target"`` of each target of a series."""
        return tuple(f"{name}/{t}" for name in self.ids for t in self.targets) if self.is_mixed else self.ids

    @property
    def name_targets(self) -> tuple[str, ...]:
        """Targets that are part of the names in ``ids``."""
        return () if self.is_mixed else self.targets

    @property
    def n_pieces(self) -> int:
        """Number of pieces; every series has at least one."""
        return len(self.piece_series)

    @property
    def n_rows(self) -> int:
        """Number of rows on the grid, filled ones included."""
        return len(self.values)

    @property
    def lengths(self) -> IntArray:
        """Rows in each piece."""
        return np.diff(self.offsets)

    @property
    def zone(self) -> str | None:
        """Time zone of the stamps."""
        return self.style.zone

    def stamps(self, series: npt.ArrayLike, ordinals: npt.ArrayLike) -> IntArray:
        """Native stamps of grid ordinals.

        Parameters
        ----------
        series : int64 array
            Positions in ``ids``.
        ordinals : int64 array, broadcast against ``series``
            Grid ordinals; those beyond the last row are the stamps of a forecast.
        """
        if self.row_stamps is not None:
            return self._uneven_stamps(
                *np.broadcast_arrays(np.asarray(series, np.int64), np.asarray(ordinals, np.int64))
            )
        return self.freq.shift(self.origins[np.asarray(series, dtype=np.int64)], ordinals, self.style.zone)

    def _uneven_stamps(self, series: IntArray, ordinals: IntArray) -> IntArray:
        """Look stamps up; rows beyond the last one come at median steps."""
        assert self.row_stamps is not None
        start = self.offsets[np.searchsorted(self.piece_series, np.arange(self.n_series), side="left")]
        row = ordinals - self.first_ordinals()[series]
        inside = np.clip(row, 0, self.series_rows()[series] - 1)
        return self.freq.shift(self.row_stamps[start[series] + inside], row - inside)

    def row_series(self) -> IntArray:
        """Position in ``ids`` of every row of ``values``."""
        return np.repeat(self.piece_series, self.lengths)

    def row_ordinals(self) -> IntArray:
        """Grid ordinal of every row of ``values``."""
        return np.arange(self.n_rows) + np.repeat(self.piece_first - self.offsets[:-1], self.lengths)

    def first_ordinals(self) -> IntArray:
        """Grid ordinal of each series' first row here: 0, or more where it continues known origins."""
        return self.piece_first[np.searchsorted(self.piece_series, np.arange(self.n_series), side="left")]

    def last_ordinals(self) -> IntArray:
        """Grid ordinal of each series' last row."""
        last = np.searchsorted(self.piece_series, np.arange(self.n_series), side="right") - 1
        return self.piece_first[last] + self.lengths[last] - 1

    def series_rows(self) -> IntArray:
        """Rows of each series, over all its pieces."""
        rows = np.zeros(self.n_series, dtype=np.int64)
        np.add.at(rows, self.piece_series, self.lengths)
        return rows
