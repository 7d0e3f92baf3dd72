"""Columns beside the channels, as a caller names them: amounts, categories, what is known ahead, what is static."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

import numpy as np

from txl_ts.errors import ColumnError, ParameterError, ShapeError
from txl_ts.runtime.layout import Column, FloatArray, Layout
from txl_ts.runtime.numbers import LARGEST, UNUSED, read_numbers


def read_column(given: Any, column: Column, *, stream: object) -> FloatArray:
    """Give a column's amounts or codes, (T,): NaN where missing, code 0 for a category that was not fitted.

    Raises
    ------
    ColumnError, ShapeError
        If it holds anything else.
    """
    if column.categories is None:
        return read_numbers(given, stream=stream, what=f"column {column.name!r}")
    if isinstance(given, str) or not isinstance(given, Iterable):
        return np.array([_code(given, column, stream=stream)], np.float32)
    if getattr(given, "ndim", 1) > 1:
        raise ShapeError(f"stream {stream!r}: column {column.name!r} has shape {np.shape(given)}, give one per row.")
    words = given.tolist() if isinstance(given, np.ndarray) else given
    return np.array([_code(word, column, stream=stream) for word in words], np.float32)


def _code(word: Any, column: Column, *, stream: object) -> float:
    """Read one category as frames do: truth values and whole numbers count as integers."""
    if type(word) is str:
        return column.codes.get(word, 0)
    if word is None or word != word or type(word).__name__ == "NAType":
        return np.nan
    if isinstance(word, str):
        return column.codes.get(str(word), 0)
    if isinstance(word, bool | np.bool_) or (isinstance(word, Real) and (np.isinf(word) or float(word).is_integer())):
        return np.nan if np.isinf(word) else column.codes.get(int(word), 0)
    raise ColumnError(
        f"stream {stream!r}: column {column.name!r} holds {word!r:.60} of type {type(word).__name__}, expected one of "
        f"its categories, such as {list((column.categories or ())[:3])}; None where it is missing. {UNUSED}"
    )


def full_rows(values: FloatArray, futr: Any, layout: Layout, *, stream: object) -> FloatArray:
    """Lay rows out in full width.

    Parameters
    ----------
    values : float32 array of shape (T, n)
        Channels and columns of each row.
    futr : mapping, or None
        What is known ahead, by column: up to h values ahead of the last row, or a sequence of such for each row. What
        is not given is not known.
    layout : Layout
    stream : object

    Returns
    -------
    float32 array of shape (T, layout.width)
        The calendar, and what is static, are still to be filled in.
    """
    out = np.full((len(values), layout.width), np.nan, np.float32)
    n_own, n_futr = values.shape[1] - len(layout.futr), len(layout.futr)
    out[:, :n_own] = values[:, :n_own]
    if n_futr:
        out[:, n_own : n_own + n_futr] = values[:, n_own:]
    if futr is not None:
        columns = _named(futr, layout.futr, what="futr", stream=stream)
        ahead, shape = layout.parts["futr_ahead"]
        known = np.full((len(out), *shape[1:]), np.nan, np.float32)
        for i, column in enumerate(layout.futr):
            if column.name in columns:
                _put_ahead(known[:, :, i], columns[column.name], column, stream=stream)
        out[:, ahead] = known.reshape(len(out), -1)
    return out


def _put_ahead(known: FloatArray, given: Any, column: Column, *, stream: object) -> None:
    """Fill in what is known ahead of rows, (T, h)."""
    n_rows, h = known.shape
    given = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    by_row = [one for one in given if not isinstance(one, str) and isinstance(one, Iterable)]
    if by_row and (len(by_row) < len(given) or len(given) != n_rows):
        raise ShapeError(
            f"stream {stream!r}: 'futr' holds {len(given)} entries of {column.name!r} for {n_rows} rows. Give up to "
            f"{h} values ahead of the last row, or a sequence of such for each row. {UNUSED}"
        )
    for row, ahead in zip(range(n_rows) if by_row else [n_rows - 1], by_row or [given], strict=True):
        values = read_column(list(ahead), column, stream=stream)
        if len(values) > h:
            raise ShapeError(
                f"stream {stream!r}: 'futr' holds {len(values)} values of {column.name!r}, but the model forecasts {h} "
                f"steps. Give the next {h} at most. {UNUSED}"
            )
        known[row, : len(values)] = values


def read_static(given: Any, layout: Layout, *, stream: object) -> tuple[float, ...]:
    """Read what is static of a stream.

    Raises
    ------
    ColumnError, ParameterError, ShapeError
        If a column is lacking or unknown, or holds something else.
    """
    columns = _named(given, layout.static, what="static", stream=stream)
    if lacking := [column.name for column in layout.static if column.name not in columns]:
        raise ColumnError(
            f"stream {stream!r}: 'static' lacks {lacking[0]!r} ({len(lacking)} lacking). "
            f"Give None where a value is not known. {UNUSED}"
        )
    values = []
    for column in layout.static:
        one = read_column(columns[column.name], column, stream=stream)
        if len(one) != 1:
            raise ShapeError(f"stream {stream!r}: 'static' holds {len(one)} of {column.name!r}, give one. {UNUSED}")
        values.append(float(one[0]))
    return tuple(values)


def lacks_static(stream: object, layout: Layout) -> ColumnError:
    """Say that a stream begins, and nobody knows what is static of it."""
    names = [column.name for column in layout.static]
    return ColumnError(
        f"stream {stream!r} begins, and its static columns {names[:5]} are not known. Give them with its first row: "
        f"{{'static': {{{names[0]!r}: …}}}}; None where a value is not known. {UNUSED}"
    )


def _named(given: Any, columns: tuple[Column, ...], *, what: str, stream: object) -> Mapping[str, Any]:
    names = [column.name for column in columns]
    if not isinstance(given, Mapping):
        raise ParameterError(
            f"stream {stream!r}: {what!r} is of type {type(given).__name__}, expected a mapping by column. Give "
            f"{{{what!r}: {{{names[0]!r}: …}}}}. {UNUSED}"
        )
    for name in given:
        if name not in names:
            close = difflib.get_close_matches(str(name), names, n=1)
            hint = f", did you mean {close[0]!r}?" if close else "."
            raise ColumnError(
                f"stream {stream!r}: {what!r} holds an unknown column {name!r}{hint} The model has {names[:5]} "
                f"({len(names)} in all) there. {UNUSED}"
            )
    return given


def read_arrays(
    rows: FloatArray, futr: Any, static: Any, layout: Layout
) -> tuple[FloatArray, dict[int, tuple[float, ...]]]:
    """Lay one row of each of n streams out in full width, from arrays in which categories are codes.

    Parameters
    ----------
    rows : float32 array of shape (n, number of channels and columns)
    futr : array of shape (n, h, n_futr), or None
    static : array of shape (n, n_static), or None
    layout : Layout

    Returns
    -------
    rows : float32 array of shape (n, layout.width)
    static : dict of int to tuple of float
        By place.

    Raises
    ------
    ShapeError, ColumnError
        If an array has another shape, or holds what is no code.
    """
    n, n_channels = len(rows), layout.n_channels
    _check_codes(rows, layout.columns, first=n_channels)
    out = full_rows(rows, None, layout, stream="all")
    if futr is not None:
        known = _checked(futr, (n, layout.h, len(layout.futr)), layout.futr, what="futr")
        ahead, shape = layout.parts["futr_ahead"]
        whole = np.full((n, *shape[1:]), np.nan, np.float32)
        whole[..., : len(layout.futr)] = known
        out[:, ahead] = whole.reshape(n, -1)
    if static is None:
        return out, {}
    found = _checked(static, (n, len(layout.static)), layout.static, what="static")
    return out, dict(enumerate(map(tuple, found.tolist())))


def _checked(given: Any, shape: tuple[int, ...], columns: tuple[Column, ...], *, what: str) -> FloatArray:
    array = np.asarray(given)
    if not columns or array.shape != shape or array.dtype.kind not in "fiu":
        raise ShapeError(
            f"{what} has shape {array.shape} and dtype {array.dtype}, expected numbers of shape {shape}: the columns "
            f"{[column.name for column in columns][:5]}, categories as codes. {UNUSED}"
        )
    array = np.where(np.abs(array.astype(np.float64)) <= LARGEST, array, np.nan).astype(np.float32)
    _check_codes(array, columns, first=0)
    return array


def _check_codes(values: FloatArray, columns: tuple[Column, ...], *, first: int) -> None:
    for i, column in enumerate(columns, start=first):
        if column.categories is None:
            continue
        codes = values[..., i][np.isfinite(values[..., i])]
        if len(bad := codes[(codes != np.round(codes)) | (codes < 0) | (codes > len(column.categories))]):
            raise ColumnError(
                f"column {column.name!r} holds {bad[0]}, expected codes of its {len(column.categories)} categories: 1 "
                f"for {column.categories[0]!r}, and so on in the contract's order; 0 for any other. {UNUSED}"
                if column.categories
                else f"column {column.name!r} holds {bad[0]}, expected 0: it has no categories. {UNUSED}"
            )
