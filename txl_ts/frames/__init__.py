"""Long frames in and out: pandas, polars and pyarrow become panels on a grid, and results go back as the same kind.

- :func:`read_long` reads a frame into a :class:`Panel`.
- :func:`long_frame` writes one, of the kind that a :class:`FrameStyle` remembers.
- :func:`parse_freq` reads a frequency; a :class:`Freq` holds the arithmetic on stamps.
"""

from txl_ts.frames.ahead import Ahead, read_ahead, read_asked
from txl_ts.frames.aliases import parse_freq, rows_in
from txl_ts.frames.beside import run_of, with_calendar, with_static, with_vocabulary, with_words_of
from txl_ts.frames.calendar import calendar_features, check_calendar
from txl_ts.frames.freq import Freq
from txl_ts.frames.panel import ONLY_SERIES, CleaningReport, Panel
from txl_ts.frames.read import check_column_names, read_long
from txl_ts.frames.roles import Covariates, Roles
from txl_ts.frames.style import FrameStyle
from txl_ts.frames.uneven import Asked, after_ends, with_gaps
from txl_ts.frames.wide import (
    SERIES_COL,
    base_ids,
    check_targets,
    melted,
    read_wide,
    refuse_forecast_names,
    split_name,
    wide_frame,
    wide_id_frame,
)
from txl_ts.frames.write import id_frame, long_frame

__all__ = [
    "ONLY_SERIES",
    "SERIES_COL",
    "Ahead",
    "Asked",
    "CleaningReport",
    "Covariates",
    "FrameStyle",
    "Freq",
    "Panel",
    "Roles",
    "after_ends",
    "base_ids",
    "calendar_features",
    "check_calendar",
    "check_column_names",
    "check_targets",
    "id_frame",
    "long_frame",
    "melted",
    "parse_freq",
    "read_ahead",
    "read_asked",
    "read_long",
    "read_wide",
    "refuse_forecast_names",
    "rows_in",
    "run_of",
    "split_name",
    "wide_frame",
    "wide_id_frame",
    "with_calendar",
    "with_gaps",
    "with_static",
    "with_vocabulary",
    "with_words_of",
]
