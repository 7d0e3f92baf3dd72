"""Columns beside the target: which role each has, and their values as arrays on the grid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from txl_ts.config import UNEVEN
from txl_ts.errors import ColumnError, ParameterError
from txl_ts.frames.columns import Column, Frame, read_number

FloatArray = npt.NDArray[np.float32]
Category = str | int

# A categorical column with more than this many categories is an identifier by mistake.
_MOST_CATEGORIES = 100_000


@dataclass(frozen=True)
class Roles:
    """What each column beside the target is for.

    Parameters
    ----------
    hist : tuple of str
        Known up to now.
    futr : tuple of str
        Known ahead.
    static : tuple of str
        One value per series.
    cat : tuple of str
        Those of the above that hold categories, not amounts.
    calendar : tuple of str
        Features of the stamp, as :mod:`txl_ts.frames.calendar` names them; known ahead by themselves.
    vocabulary : mapping of str to tuple of str or int
        Categories of each column of ``cat``, as they were fitted; code 0 is none of them, code i + 1 the i-th.
    is_uneven : bool
        The time since the row before is known ahead too.
    """

    hist: tuple[str, ...] = ()
    futr: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    cat: tuple[str, ...] = ()
    calendar: tuple[str, ...] = ()
    vocabulary: Mapping[str, tuple[Category, ...]] = field(default_factory=dict)
    is_uneven: bool = False

    @classmethod
    def named(cls, *, taken: Sequence[str | None], calendar: tuple[str, ...] = (), **columns: Any) -> Roles:
        """Check the arguments ``hist_cols``, ``futr_cols``, ``static_cols`` and ``cat_cols`` of a call.

        Parameters
        ----------
        taken : sequence of str
            The id, time and target columns.
        calendar : tuple of str
        **columns
            The four arguments.

        Raises
        ------
        ParameterError
            If one is no list of names, or a column has two roles, or ``cat_cols`` names one without a role.
        """
        lists = {name: _names(name, value) for name, value in columns.items()}
        hist, futr, static, cat = (lists[f"{role}_cols"] for role in ("hist", "futr", "static", "cat"))
        owner = dict.fromkeys((name for name in taken if isinstance(name, str)), "the id, time or target column")
        for role, names in (("hist_cols", hist), ("futr_cols", futr), ("static_cols", static)):
            for name in names:
                if name in owner:
                    raise ParameterError(f"column {name!r} of {role} is also in {owner[name]}. Give it one role.")
                owner[name] = role
        known = (*hist, *futr, *static)
        if missing := [name for name in cat if name not in known]:
            raise ParameterError(
                f"cat_cols names {missing[:5]}, which have no role; it tells which of hist_cols, futr_cols and "
                f"static_cols hold categories. Add them there too, such as futr_cols=[{missing[0]!r}]."
            )
        return cls(hist, futr, static, cat, calendar)

    def __bool__(self) -> bool:
        return bool(self.hist or self.futr or self.static or self.calendar or self.is_uneven)

    def kinds(self, role: str) -> tuple[int, ...]:
        """What a model needs to know of the columns of a role.

        Returns
        -------
        tuple of int
            0 for amounts, the number of categories for categories, −1 for features that need no scaling (calendar),
            −2 for the time since the row before.
        """
        found = tuple(len(self.vocabulary[name]) if name in self.cat else 0 for name in getattr(self, role))
        own = (-1,) * len(self.calendar) + (UNEVEN,) * self.is_uneven
        return found + own if role == "futr" else found

    def asked(self) -> list[tuple[str, str]]:
        """Roles and columns of the rows, as :func:`~txl_ts.frames.columns.check_roles` takes them."""
        return [("hist column", name) for name in self.hist] + [("futr column", name) for name in self.futr]

    def to_json(self) -> dict[str, Any]:
        """Give the plain dictionary that :meth:`from_json` reads."""
        lists: dict[str, Any] = {
            name: list(getattr(self, name)) for name in ("hist", "futr", "static", "cat", "calendar")
        }
        lists |= {"vocabulary": {name: list(words) for name, words in self.vocabulary.items()}}
        return lists | ({"is_uneven": True} if self.is_uneven else {})

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Roles:
        """Build from a plain dictionary; ValueError if it is not one that :meth:`to_json` gives."""
        lists = {name: tuple(document[name]) for name in ("hist", "futr", "static", "cat", "calendar")}
        words = {name: tuple(found) for name, found in document["vocabulary"].items()}
        if any(type(name) is not str for names in lists.values() for name in names) or set(words) != set(lists["cat"]):
            raise ValueError("roles must hold column names, and a vocabulary for each categorical one")
        if any(type(word) not in (str, int) for found in words.values() for word in found):
            raise ValueError("categories must be text or integers")
        return cls(**lists, vocabulary=words, is_uneven=document.get("is_uneven", False) is True)


@dataclass(frozen=True)
class Covariates:
    """Values beside the target. NaN where a number is missing; categories are codes, 0 where not known.

    Attributes
    ----------
    hist : float32 array of shape (N, n_hist)
    futr : float32 array of shape (N, n_futr)
        The columns of the frame, then the calendar's, then the time since the row before. For one run of rows, ``h``
        more rows than ``hist``.
    static : float32 array of shape (n_series, n_static)
        For one run of rows of shape (n_static,).
    """

    hist: FloatArray
    futr: FloatArray
    static: FloatArray

    def keep_rows(self, kept: npt.NDArray[np.bool_]) -> Covariates:
        """Drop all other rows."""
        return replace(self, hist=self.hist[kept], futr=self.futr[kept])


def learn_vocabulary(roles: Roles, frames: Mapping[str, Frame]) -> Roles:
    """Collect the categories of each categorical column from the frame that it stands in.

    Raises
    ------
    ColumnError
        If a column holds something else than text, categories, truth values or integers, or absurdly many.
    """
    words: dict[str, tuple[Category, ...]] = {}
    for name, frame in frames.items():
        found = {word for word in _words(frame[name]) if word is not None}
        if len(found) > _MOST_CATEGORIES:
            raise ColumnError(
                f"categorical column {name!r} has {len(found):,} categories, at most {_MOST_CATEGORIES:,} are read. "
                "Is it an identifier? Leave it out of cat_cols, or group its rare categories."
            )
        words[name] = tuple(sorted(found, key=lambda word: (isinstance(word, str), word)))
    return replace(roles, vocabulary=words)


def read_column(
    frame: Frame, name: str, roles: Roles, *, role: str, missing_code: float = 0
) -> FloatArray | npt.NDArray[np.float64]:
    """Read a column: numbers with NaN where missing, or codes of categories, ``missing_code`` where missing.

    Raises
    ------
    ColumnError
        If it holds something else.
    """
    if name not in roles.cat:
        return read_number(frame, name, role=f"{role} column")
    codes = {word: code + 1 for code, word in enumerate(roles.vocabulary[name])}
    return np.array([missing_code if w is None else codes.get(w, 0) for w in _words(frame[name])], np.float32)


def _words(series: Column) -> list[Category | None]:
    """Values of a categorical column; None where missing. Truth values and whole floats count as integers."""
    dtype = series.dtype
    values = series.to_list()
    if dtype.is_integer() and not series.null_count():
        return values
    found: list[Category | None] = []
    for row, value in enumerate(values):
        if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
            found.append(value)
        elif value is None or value is _pandas_na(series) or value != value:
            found.append(None)
        elif isinstance(value, bool | np.bool_) or (isinstance(value, float) and value.is_integer()):
            found.append(int(value))
        else:
            raise ColumnError(
                f"categorical column {series.name!r} must hold text, categories, truth values or integers, got "
                f"{value!r} of type {type(value).__name__} (first at row {row}). Cast it to text, or leave it out of "
                "cat_cols if it is an amount."
            )
    return found


def _pandas_na(series: Column) -> Any:
    if not series.implementation.is_pandas():
        return None
    import pandas as pd

    return pd.NA


def _names(argument: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ParameterError(f"{argument}={value!r} must be a list of column names, such as {argument}=[{value!r}].")
    names = tuple(value)
    if odd := [name for name in names if not isinstance(name, str)]:
        raise ParameterError(f"{argument} must hold column names, strings, got {odd[0]!r}.")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ParameterError(f"{argument} names {twice[:5]} twice. Name each column once.")
    return names
