"""What has to be remembered of a frame to give the same kind back."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from txl_ts.errors import ParameterError

Unit = Literal["s", "ms", "us", "ns", "D", "integer"]

NS_PER_UNIT: Mapping[str, int] = {"D": 86_400 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
"""Nanoseconds in one tick of a time column."""

_TYPE_TEXT = re.compile(r"[A-Za-z0-9_\[\]<>(),=:/+\- ]{1,200}")


@dataclass(frozen=True)
class FrameStyle:
    """Library, column names and column types of a long frame.

    Attributes
    ----------
    implementation : {"pandas", "polars", "pyarrow"}
        Library of the frame.
    id_col : str or None
        Column with the name of the series; None for a frame that holds one series and does not name it.
    time_col, target_col : str
        Columns with the stamps and the values.
    id_type, time_type : str
        Types of those columns in the words of the library (``id_type`` is empty without an id column).
    unit : {"s", "ms", "us", "ns", "D", "integer"}
        Resolution of the time column: ``"D"`` for dates, ``"integer"`` for plain numbers.
    zone : str or None
        Time zone of the time column.
    categories : tuple of str or int, or None
        Categories of a categorical or enum id column, in their order.
    ordered : bool
        Whether these categories are ordered.

    Examples
    --------
    >>> import polars as pl
    >>> from txl_ts.frames import FrameStyle, read_long
    >>> panel = read_long(pl.DataFrame({"unique_id": ["a", "a"], "ds": [1, 2], "y": [0.5, 1.5]}))
    >>> FrameStyle.from_json(panel.style.to_json()) == panel.style
    True
    """

    implementation: Literal["pandas", "polars", "pyarrow"]
    id_col: str | None
    time_col: str
    target_col: str
    id_type: str
    time_type: str
    unit: Unit
    zone: str | None = None
    categories: tuple[str | int, ...] | None = None
    ordered: bool = False

    def to_json(self) -> dict[str, Any]:
        """Give the style as a dict of plain JSON values."""
        plain = asdict(self)
        plain["categories"] = None if self.categories is None else list(self.categories)
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> "FrameStyle":
        """Rebuild a style from :meth:`to_json`.

        Raises
        ------
        ParameterError
            If a field is missing, unknown, or not what :meth:`to_json` writes.
        """
        if not isinstance(plain, Mapping) or set(plain) != set(cls.__dataclass_fields__):
            got = sorted(plain) if isinstance(plain, Mapping) else type(plain).__name__
            raise ParameterError(
                f"a frame style needs the fields {sorted(cls.__dataclass_fields__)}, got {got}. "
                "Pass what FrameStyle.to_json() gave."
            )
        for name, is_allowed in _CHECKS.items():
            if not is_allowed(plain[name]):
                raise ParameterError(
                    f"frame style field {name!r} cannot be {plain[name]!r}. Pass what FrameStyle.to_json() gave."
                )
        categories = plain["categories"]
        return cls(**{**plain, "categories": None if categories is None else tuple(categories)})


def _is_name(value: object) -> bool:
    return isinstance(value, str)


def _is_type(value: object) -> bool:
    return isinstance(value, str) and bool(_TYPE_TEXT.fullmatch(value))


def _are_categories(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, list | tuple) and all(isinstance(v, str | int) for v in value)


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "implementation": lambda value: value in ("pandas", "polars", "pyarrow"),
    "id_col": lambda value: value is None or _is_name(value),
    "time_col": _is_name,
    "target_col": _is_name,
    "id_type": lambda value: value == "" or _is_type(value),
    "time_type": _is_type,
    "unit": lambda value: value in (*NS_PER_UNIT, "integer"),
    "zone": lambda value: value is None or _is_type(value),
    "categories": _are_categories,
    "ordered": lambda value: isinstance(value, bool),
}
