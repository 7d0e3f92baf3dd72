"""From a line of text to a message: csv or JSON, all sensors side by side or one reading a line."""

from __future__ import annotations

import csv
import difflib
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from txl_ts.config import check_choice
from txl_ts.errors import ColumnError, ParameterError, StampError
from txl_ts.instants import read_stamp
from txl_ts.stream import Channel

FORMATS = ("auto", "csv", "jsonl")
TIME_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
TIME_COLUMNS, ID_COLUMNS = ("time", "ds", "timestamp", "datetime"), ("stream", "unique_id")
_MISSING = frozenset({"", "na", "nan", "null", "none", "n/a", "-"})
DELIMITERS = ",;\t|"
_SECONDS_BELOW = 10**15  # of nanoseconds since 1970: twelve days of January
_CELL = 60

Message = tuple[str | None, int, Any] | dict[str, Any]


class HeaderError(ColumnError):
    """The first line does not say where the columns are: no later line can be read."""


class Lines:
    """Reads lines. What the first ones told (format, header, zone) is ``state``, plain JSON to go on from.

    Parameters
    ----------
    channels : sequence of Channel
    form : {"auto", "csv", "jsonl"}
        ``"auto"``: JSON if the first line begins with ``{``.
    time_col, id_col, tag_col, value_col : str
        Names of columns, or keys. An empty ``time_col`` or ``id_col`` is the first of the usual names that is there.
        Where there is a tag and a value column, each line is one reading.
    columns : sequence of str, optional
        Of a csv without a header.
    time_format : str
        As ``datetime.strptime`` reads it; by default ISO 8601 or numbers.
    time_unit : str
        Of times that are numbers: s, ms, us, ns. Empty: integers, as they are.
    is_datetime : bool
        True if the model counts nanoseconds since 1970: then integers that can be none are refused.
    name : str
        Of the one stream, where no column names it.
    note : callable
        Is told, once each, what is not used.
    """

    def __init__(
        self,
        channels: Sequence[Channel],
        *,
        form: str = "auto",
        time_col: str = "",
        id_col: str = "",
        tag_col: str = "tag",
        value_col: str = "value",
        columns: Sequence[str] | None = None,
        time_format: str = "",
        time_unit: str = "",
        is_datetime: bool = True,
        name: str = "stream",
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        check_choice("--format", form, FORMATS)
        if time_unit:
            check_choice("--time-unit", time_unit, tuple(TIME_UNITS))
        self.channels = {channel.name: channel for channel in channels}
        self.time_col, self.id_col, self.tag_col, self.value_col = time_col, id_col, tag_col, value_col
        self.time_format, self.time_unit, self.is_datetime, self.name = time_format, time_unit, is_datetime, name
        self._note, self._noted = note, set[str]()
        self._format, self._delimiter, self._is_integer = form, ",", False
        self._zone: bool | None = None
        self._columns: list[str] | None = None
        if columns is not None:
            self._begin_columns(list(columns), where="--columns")
        self._has_header = columns is None

    @property
    def state(self) -> dict[str, Any]:
        """What the lines so far have told; plain JSON."""
        return {
            "format": self._format,
            "delimiter": self._delimiter,
            "columns": self._columns,
            "zone": self._zone,
            "is_integer": self._is_integer,
        }

    def go_on(self, state: dict[str, Any]) -> None:
        """Take a state of before."""
        self._format, self._delimiter, self._zone = state["format"], state["delimiter"], state["zone"]
        self._is_integer = state["is_integer"]
        if state["columns"] is not None:
            self._begin_columns(state["columns"], where="the snapshot")

    @property
    def has_zone(self) -> bool:
        """True if times came with an offset from UTC."""
        return bool(self._zone)

    @property
    def has_integers(self) -> bool:
        """True if times came as integers without a unit."""
        return self._is_integer

    def read(self, raw: bytes) -> tuple[str, Message] | None:
        """Read a line.

        Returns
        -------
        (str, message) or None
            The stream and what an ``Intake`` takes; None if the line is empty or a header.

        Raises
        ------
        HeaderError
            If no line of this source can be read.
        ColumnError, StampError, ParameterError
            If this line cannot be used.
        """
        try:
            text = raw.decode("utf-8-sig" if raw.startswith(b"\xef\xbb\xbf") else "utf-8").strip("\r\n")
        except UnicodeDecodeError as error:
            raise ParameterError(f"the line is no UTF-8 text ({error.reason} at byte {error.start}).") from None
        if not text.strip():
            return None
        if self._format == "auto":
            self._format = "jsonl" if text.lstrip().startswith("{") else "csv"
        row = self._from_json(text) if self._format == "jsonl" else self._from_csv(text)
        before = self._zone, self._is_integer
        try:
            return None if row is None else self._message(row)
        except (ColumnError, StampError, ParameterError):
            self._zone, self._is_integer = before  # a line that is refused says nothing about the others
            raise

    # ---------------------------------------------------------------------------------------------------------- rows

    def _from_json(self, text: str) -> dict[str, Any]:
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ParameterError(f"the line is no JSON: {error}. It begins with {text[:_CELL]!r}.") from None
        if not isinstance(row, dict):
            raise ParameterError(f"the line is JSON, but no object: {text[:_CELL]!r}. Give {{…}}, one per line.")
        nested = row.get("values")
        return {**{k: v for k, v in row.items() if k != "values"}, **nested} if isinstance(nested, dict) else row

    def _from_csv(self, text: str) -> dict[str, Any] | None:
        if self._columns is None:
            self._delimiter = max(DELIMITERS, key=text.count)
        cells = self._cells(text)
        if self._columns is None:
            self._begin_columns(cells, where="the header")
            return None
        assert self._columns is not None
        if len(cells) != len(self._columns):
            raise ColumnError(
                f"the line has {len(cells)} fields, expected {len(self._columns)} ({', '.join(self._columns[:5])}…)."
            )
        if self._has_header and self.time_col in cells:  # another header: of the next file, or of a file that was added
            self._begin_columns(cells, where="the header")
            return None
        return dict(zip(self._columns, cells, strict=True))

    def _cells(self, text: str) -> list[str]:
        if '"' not in text:
            return [cell.strip() for cell in text.split(self._delimiter)]
        try:
            return [cell.strip() for cell in next(csv.reader([text], delimiter=self._delimiter, strict=True))]
        except csv.Error as error:
            raise ColumnError(f"the line is no csv: {error}. It begins with {text[:_CELL]!r}.") from None

    def _begin_columns(self, columns: list[str], *, where: str) -> None:
        """Find the roles among the names of a csv."""
        if len(set(columns)) != len(columns):
            twice = [name for name in columns if columns.count(name) > 1]
            raise HeaderError(f"{where} names {twice[0]!r} twice. Give distinct names.")
        time_col = self.time_col or next((name for name in TIME_COLUMNS if name in columns), "")
        if time_col not in columns:
            raise HeaderError(
                f"{where} has no column of times: it holds {columns[:8]}. Name one with --time-col; if the csv has no "
                "header, name all with --columns time,…"
            )
        if self.id_col and self.id_col not in columns:
            raise HeaderError(f"{where} has no column {self.id_col!r}: it holds {columns[:8]}. Name it with --id-col.")
        self._find_id(columns)
        if not {self.tag_col, self.value_col} <= set(columns):
            there = [name for name in columns if name in self.channels]
            if not there:
                raise HeaderError(
                    f"{where} names none of the sensors {list(self.channels)[:5]}: it holds {columns[:8]}. Rename the "
                    f"columns, or give one reading a line, as time,{self.tag_col},{self.value_col}."
                )
            roles = {time_col, self.id_col}
            self._tell("not used", [name for name in columns if name not in self.channels and name not in roles])
            self._tell("not there, and missing in every row", [n for n in self.channels if n not in there])
        self.time_col, self._columns = time_col, columns

    def _find_id(self, names: Any) -> None:
        if not self.id_col:
            self.id_col = next((name for name in ID_COLUMNS if name in names and name not in self.channels), "")

    def _tell(self, what: str, names: list[str]) -> None:
        new = [name for name in names if name not in self._noted]
        self._noted.update(new)
        if new:
            self._note(f"columns {what}: {', '.join(new[:12])}{' …' if len(new) > 12 else ''}")

    # ------------------------------------------------------------------------------------------------------ messages

    def _message(self, row: dict[str, Any]) -> tuple[str, Message]:
        time_col = self.time_col or next((name for name in TIME_COLUMNS if name in row), TIME_COLUMNS[0])
        if time_col not in row:
            raise ColumnError(f"the line has no {time_col!r}: it holds {list(row)[:8]}. Name it with --time-col.")
        self._find_id(row)
        name = row.get(self.id_col, self.name) if self.id_col else self.name
        if not isinstance(name, str | int) or isinstance(name, bool) or name == "":
            raise ColumnError(f"{self.id_col!r} is {name!r:.60}, expected the name of a stream.")
        stamp = self._stamp(row[time_col])
        if self.tag_col in row and self.value_col in row and self.tag_col not in self.channels:
            tag = row[self.tag_col]
            read = {tag: self._value(self._channel(tag), row[self.value_col])}
        else:
            read = {tag: self._value(self.channels[tag], value) for tag, value in row.items() if tag in self.channels}
            if self._format == "jsonl":
                self._check_keys(row, read, {time_col, self.id_col})
        return str(name), {"time": stamp, "values": read} if read else (None, stamp, None)

    def _check_keys(self, row: dict[str, Any], read: dict[str, Any], roles: set[str]) -> None:
        unknown = [key for key in row if key not in read and key not in roles]
        if unknown and not read:
            raise ColumnError(f"the line names none of the sensors {list(self.channels)[:5]}: it has {unknown[:5]}.")
        self._tell("not used", unknown)

    def _channel(self, tag: Any) -> Channel:
        if not isinstance(tag, str) or tag not in self.channels:
            near = difflib.get_close_matches(str(tag), self.channels, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {list(self.channels)[:5]}."
            raise ColumnError(f"there is no sensor {tag!r:.60}: {hint}")
        return self.channels[tag]

    def _value(self, channel: Channel, value: Any) -> Any:
        if not isinstance(value, str):
            # A count that reads true is a fault of the source; a gauge that does is 1.
            if isinstance(value, list | dict) or (isinstance(value, bool) and channel.kind == "counter"):
                raise ColumnError(f"sensor {channel.name!r}: value {value!r:.60} is no number.")
            return value
        if channel.kind == "state":
            return next((state for state in channel.states if str(state) == value), value or None)
        if value.lower() in _MISSING:
            return None
        number = _number(value)
        if number is None:
            raise ColumnError(f"sensor {channel.name!r}: value {value!r:.60} is no number. Leave it empty if missing.")
        return number

    def _stamp(self, value: Any) -> int:
        if isinstance(value, str) and self.time_format:
            try:
                return self._moment(datetime.strptime(value, self.time_format))
            except ValueError:
                raise StampError(f"time {value!r:.60} does not follow --time-format {self.time_format!r}.") from None
        number = _number(value) if isinstance(value, str) else value
        if isinstance(number, int | float) and not isinstance(number, bool):
            return self._counted(number, value)
        if isinstance(value, str):
            try:
                return self._moment(datetime.fromisoformat(value))
            except ValueError as error:
                if isinstance(error, StampError):
                    raise
        raise StampError(
            f"time {value!r:.60} is none. Give ISO text such as 2026-01-31T12:00:00, numbers with --time-unit, or say "
            "how it is written with --time-format."
        )

    def _moment(self, moment: datetime) -> int:
        has_offset = moment.tzinfo is not None
        if self._zone is None:
            self._zone = has_offset
        if has_offset != self._zone:
            raise StampError(
                f"time {moment.isoformat()!r:.60} has {'an' if has_offset else 'no'} offset from UTC, but those of the "
                f"lines before it have {'one' if self._zone else 'none'}. Give all times of a source alike."
            )
        return read_stamp(moment, zone=self._zone)

    def _counted(self, number: int | float, given: Any) -> int:
        if self.time_unit:
            try:
                stamp = int(Decimal(str(given)) * TIME_UNITS[self.time_unit])
            except (ArithmeticError, ValueError):
                raise StampError(f"time {given!r:.60} is none.") from None
            return read_stamp(stamp)
        if isinstance(number, float):
            raise StampError(f"time {given!r:.60} is a fraction: say of what, such as --time-unit s.")
        if self.is_datetime and abs(number) < _SECONDS_BELOW:
            raise StampError(
                f"time {given!r:.60} would be in January 1970 as nanoseconds. Say what it counts: --time-unit s."
            )
        self._is_integer = True
        return read_stamp(number)


def _number(text: str) -> int | float | None:
    """Read a number; None if it is none."""
    if "_" in text:
        return None
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return None
