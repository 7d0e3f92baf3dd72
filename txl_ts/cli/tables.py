"""Tables on disk for the command line: csv and parquet in and out."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from txl_ts.cli.watch.lines import DELIMITERS, ID_COLUMNS, TIME_COLUMNS
from txl_ts.errors import ColumnError, FrameError, ParameterError, SaveError

_SUFFIXES = (".csv", ".parquet")


def check_suffix(option: str, path: Path) -> None:
    """Raise ParameterError unless a path ends with ``.csv`` or ``.parquet``."""
    if path.suffix.lower() not in _SUFFIXES:
        raise ParameterError(f"{option} {str(path)!r} must end with .csv or .parquet, which says how it is written.")


def read_table(
    path: Path, *, id_col: str | None, time_col: str, target_col: str, ids_are_text: bool = True, time_format: str = ""
) -> pl.DataFrame:
    """Read the columns that are named, and leave the others.

    Parameters
    ----------
    path : Path
        ``.csv`` with a header, or ``.parquet``.
    id_col : str or None
        Read as text from csv, so that ``007`` stays what it is, unless ``ids_are_text`` is False.
    time_col, target_col : str
    ids_are_text : bool
    time_format : str
        How stamps are written in csv, such as ``"%d.%m.%Y %H:%M"``; by default ISO 8601 or whole numbers.

    Raises
    ------
    ParameterError
        If the suffix is another.
    FrameError
        If the file cannot be read as what its suffix says.
    ColumnError
        If a column is not there, or does not hold what it should.
    """
    check_suffix("DATA", path)
    is_csv = path.suffix.lower() == ".csv"
    text = {id_col: pl.String} if id_col is not None and ids_are_text else {}
    try:
        if is_csv:
            header = pl.read_csv(path, n_rows=0).columns
            known = {name: kind for name, kind in text.items() if name in header}
            table = pl.read_csv(
                path, schema_overrides=known, try_parse_dates=not time_format, infer_schema_length=10000
            )
        else:
            table = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise FrameError(f"{str(path)!r} cannot be read as {path.suffix[1:]}: {error}") from error
    _check_rows(table, path)
    wanted = {"--id-col": id_col, "--time-col": time_col, "--target-col": target_col}
    for option, name in wanted.items():
        if name is not None and name not in table.columns:
            ways = f"{option} NAME" + (", or --no-id if the file is one series" if option == "--id-col" else "")
            raise ColumnError(
                f"{str(path)!r} has no column {name!r}; it has {table.columns[:12]}. Name it with {ways}."
            )
    table = table.select([name for name in wanted.values() if name is not None])
    if is_csv and table[time_col].dtype == pl.String:
        table = _parsed(table, path, time_col, time_format)
    return _numeric(table, path, target_col)


def read_sensors(
    path: Path, *, id_col: str, time_col: str, sensors: Sequence[str] | None, time_format: str = ""
) -> tuple[pl.DataFrame, str | None, str]:
    """Read sensors side by side, one row per time, and perhaps series.

    Parameters
    ----------
    path : Path
        ``.csv`` with a header (commas, semicolons, tabs or bars), or ``.parquet``.
    id_col, time_col : str
        Empty: the first of the usual names that is there; there may be no series.
    sensors : sequence of str, optional
        By default all other columns.
    time_format : str
        See :func:`read_table`.

    Returns
    -------
    frame, id_col, time_col
        The frame holds these and the sensors.

    Raises
    ------
    ParameterError, FrameError, ColumnError
        As :func:`read_table`.
    """
    check_suffix("DATA", path)
    is_csv = path.suffix.lower() == ".csv"
    try:
        if is_csv:
            with path.open(encoding="utf-8-sig", errors="replace") as file:
                header = file.readline()
            separator = max(DELIMITERS, key=header.count)
            table = pl.read_csv(path, separator=separator, try_parse_dates=not time_format, infer_schema_length=10000)
        else:
            table = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise FrameError(f"{str(path)!r} cannot be read as {path.suffix[1:]}: {error}") from error
    _check_rows(table, path)
    names = table.columns
    time_col = time_col or next((name for name in TIME_COLUMNS if name in names), "")
    given_id = id_col
    id_col = id_col or next((name for name in ID_COLUMNS if name in names), "")
    asked = {"--time-col": [time_col], "--id-col": [given_id] if given_id else [], "--sensors": list(sensors or [])}
    for option, wanted in asked.items():
        for name in wanted:
            if name not in names:
                what = repr(name) if name else "of times"
                raise ColumnError(f"{str(path)!r} has no column {what}; it has {names[:12]}. Name it with {option}.")
    chosen = list(sensors) if sensors else [name for name in names if name not in (time_col, id_col)]
    table = table.select([*([id_col] if id_col else []), time_col, *chosen])
    if id_col:
        table = table.with_columns(pl.col(id_col).cast(pl.String))  # as `txl-ts watch` names streams
    if is_csv and table[time_col].dtype == pl.String:
        table = _parsed(table, path, time_col, time_format)
    for name in chosen:
        table = _numeric(table, path, name, option="--sensors")
    return table, id_col or None, time_col


def write_table(table: pl.DataFrame, path: Path) -> None:
    """Write ``.csv`` or ``.parquet``.

    Raises
    ------
    SaveError
        If the file cannot be written.
    """
    try:
        if path.suffix.lower() == ".csv":
            table.write_csv(path)
        else:
            table.write_parquet(path)
    except OSError as error:
        raise SaveError(f"{str(path)!r} cannot be written: {error}. Name another with --out.") from error


def print_table(table: pl.DataFrame) -> None:
    """Print csv.

    Raises
    ------
    SaveError
        If standard output cannot be written. A reader that is gone is a BrokenPipeError.
    """
    try:
        if sys.stdout is None:  # closed before we began
            raise OSError(errno.EBADF, "standard output is closed")
        sys.stdout.write(table.write_csv())
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.stdout = None  # Python would try to write the rest once more when it ends
        raise SaveError(f"the table cannot be printed: {error}. Make room, or name a file with --out.") from error


def _check_rows(table: pl.DataFrame, path: Path) -> None:
    if table.is_empty():
        raise FrameError(
            f"{str(path)!r} has the columns {table.columns[:12]} and no rows. Give a table with at least one row."
        )


def _parsed(table: pl.DataFrame, path: Path, time_col: str, time_format: str) -> pl.DataFrame:
    text = table[time_col]
    if not time_format:
        raise ColumnError(
            f"time column {time_col!r} of {str(path)!r} holds text that is no ISO stamp, such as "
            f'{text.head(1).item()!r}. Say how it is written, for example --time-format "%d.%m.%Y %H:%M".'
        )
    try:
        stamps = text.str.to_datetime(time_format, strict=False)
    except pl.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0]
        raise ParameterError(f"--time-format {time_format!r} cannot be used: {reason}") from error
    wrong = stamps.is_null() & text.is_not_null()
    if wrong.any():
        row = wrong.to_list().index(True)
        raise ColumnError(
            f"time column {time_col!r} of {str(path)!r} does not follow --time-format {time_format!r} in {wrong.sum()} "
            f"rows (first at row {row}: {text[row]!r}). Give the format of that column."
        )
    return table.with_columns(stamps)


def _numeric(table: pl.DataFrame, path: Path, column: str, *, option: str = "--target-col") -> pl.DataFrame:
    """Missing values are often written as words; a column of text otherwise is a mistake."""
    values = table[column]
    if values.dtype != pl.String:
        return table
    numbers = values.str.strip_chars().cast(pl.Float64, strict=False)
    missing = values.str.strip_chars().str.to_lowercase().is_in(["", "na", "nan", "null", "none", "n/a", "-"])
    wrong = numbers.is_null() & values.is_not_null() & ~missing
    if wrong.any():
        row = wrong.to_list().index(True)
        raise ColumnError(
            f"{'target column' if option == '--target-col' else 'column'} {column!r} of {str(path)!r} holds "
            f"{wrong.sum()} values that are no numbers (first at row {row}: {values[row]!r}). Correct them, or name "
            f"other columns with {option}."
        )
    return table.with_columns(numbers)
