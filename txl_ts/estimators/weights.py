"""Sample weights: a column of the frame, on the grid of its panel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import ColumnError, ParameterError
from txl_ts.frames import Panel, Roles, base_ids, check_targets


def without_column(
    df: Any, column: str, *, roles: Roles, id_col: str | None, time_col: str, target_col: str | Sequence[str]
) -> Any:
    """Give the frame without its weights, for a reader that says which columns have no role.

    Raises
    ------
    ColumnError
        If the column is not there, or has another role.
    ParameterError
        If it is no name.
    """
    if not isinstance(column, str):
        raise ParameterError(
            f"sample_weight must be the name of a column of the frame, got {type(column).__name__}. Put the weights "
            "into the frame: df.assign(weight=…), sample_weight='weight'."
        )
    frame = nw.from_native(df, eager_only=True, pass_through=True)
    if not isinstance(frame, nw.DataFrame):
        return df  # the reader says what is wrong with it
    taken = (id_col, time_col, *(check_targets(target_col) or (target_col,)), *roles.hist, *roles.futr)
    if column not in frame.columns or column in taken:
        raise ColumnError(
            f"sample_weight={column!r} must name a column of its own; the frame has {frame.columns[:12]}. Leave it out "
            "for equal weights."
        )
    return frame.drop(column).to_native()


def read_weights(panel: Panel, column: str, read: Callable[[], Panel]) -> NDArray[np.float32]:
    """Read the weight of every row of a panel.

    Parameters
    ----------
    panel : Panel
        Of the target, or of several.
    column : str
    read : callable
        Reads the same frame with ``column`` as its only target.

    Returns
    -------
    float32 array of shape (N,)
        0 in rows that were filled.

    Raises
    ------
    ColumnError
        If a row with a target has no weight, a weight is negative, or none is positive.
    """
    other = read()
    pieces = _pieces_for(panel, other)
    if pieces is None or not np.array_equal(other.lengths[pieces], panel.lengths):
        raise ColumnError(
            f"weight column {column!r} does not cover the rows of the target: series or gaps differ. Give every row a "
            "weight."
        )
    values = np.concatenate([other.values[other.offsets[p] : other.offsets[p + 1]] for p in pieces])
    has_target = np.isfinite(panel.values).reshape(panel.n_rows, -1).any(axis=1)
    for wrong, what in (
        (np.isnan(values) & has_target, "is missing"),
        (values < 0, "is negative"),
    ):
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            series = panel.row_series()[row]
            raise ColumnError(
                f"weight column {column!r} {what} in {int(wrong.sum())} rows, first in series {panel.ids[series]!r} "
                f"at its row {row - int(panel.offsets[np.searchsorted(panel.piece_series, series)])}. Weights are "
                "numbers from 0 on."
            )
    if not (values > 0).any():
        raise ColumnError(f"weight column {column!r} holds no positive weight: nothing would be learnt.")
    return np.nan_to_num(values, nan=0.0)


def _pieces_for(panel: Panel, other: Panel) -> NDArray[np.int64] | None:
    """Pieces of ``other`` that hold the rows of each series of the panel; None where it lacks one."""
    where = {name: i for i, name in enumerate(other.ids)}
    series = [where.get(name, -1) for name in base_ids(panel.ids, panel.name_targets, panel.style)]
    if -1 in series:
        return None
    first = np.searchsorted(other.piece_series, np.arange(other.n_series + 1))
    return np.concatenate([np.arange(first[i], first[i + 1]) for i in series])
