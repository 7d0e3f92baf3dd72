"""What ``plot`` draws: the kept memories' forecasts between the rows before and the rows after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from txl_ts.errors import ParameterError, StateError
from txl_ts.frames import SERIES_COL, Panel, long_frame, melted, wide_frame
from txl_ts.plots import N_PANELS, plot_forecast

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from txl_ts.estimators.kept import KeptMemories


def draw_forecast(
    model: KeptMemories,
    df: Any,
    *,
    ids: Sequence[str | int] | None,
    h: int | None,
    level: Sequence[float] | None,
    n_history: int | None,
    **known: Any,
) -> Figure:
    """Draw; see :meth:`KeptMemories.plot`."""
    names = list(dict.fromkeys(model._base_names()))[:N_PANELS] if ids is None else ids
    if not len(names):
        if ids is not None:
            raise ParameterError("ids=[] names no series to draw. Leave ids out for the first six.")
        raise StateError(
            "there is no series to draw: none is kept. Give their rows to update(df) first; after from_pretrained and "
            "load_adapter a model knows none."
        )
    level = _band(model.config_.quantiles) if level is None else level
    forecast = model.predict(h, level=level, ids=names, **known)
    style, targets = model._style, model._targets
    columns: Any = {"id_col": style.id_col, "time_col": style.time_col, "target_col": style.target_col}
    shown: Sequence[str | int] | None = None if style.id_col is None else names
    if targets:
        forecast = melted(forecast, targets=targets, style=style, value=None)
        shown = [f"{name}/{target}" for name in names for target in targets][:N_PANELS]
        if style.id_col is None:
            shown = list(targets)[:N_PANELS]
        columns |= {"id_col": style.id_col or SERIES_COL, "target_col": "y"}
    if df is None:
        return plot_forecast(forecast, ids=shown, **columns)
    panel = model._read_rows(df)
    last = dict(zip(model._fleet.ids, model._last_stamps().tolist(), strict=True))
    series = panel.row_series()
    stamps = panel.stamps(series, panel.row_ordinals())
    ends = np.array([last.get(name, np.iinfo(np.int64).min) for name in panel.ids])
    wanted = np.isin(series, [i for i, name in enumerate(panel.ids) if name in set(model._lanes_of(names))])
    seen = stamps <= ends[series]
    ahead = model.config_.h if h is None else h
    # As many rows as the forecast has; what came later is another forecast's concern.
    later = wanted & ~seen & (panel.row_ordinals() <= _first_after(panel, seen)[series] + ahead - 1)
    return plot_forecast(
        forecast,
        _rows(panel, wanted & seen, stamps),
        actuals=_rows(panel, later, stamps) if later.any() else None,
        ids=shown,
        n_history=n_history,
        **columns,
    )


def _band(trained: Sequence[float]) -> list[float]:
    """80 % where the trained quantiles allow it, else the widest band that they do."""
    width = round(100 * min(1 - 2 * trained[0], 2 * trained[-1] - 1), 6)
    return [min(80.0, width)] if width > 0 else []


def _first_after(panel: Panel, seen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Grid ordinal after the last row of each series that was seen."""
    first = panel.first_ordinals().copy()
    np.maximum.at(first, panel.row_series()[seen], panel.row_ordinals()[seen] + 1)
    return first


def _rows(panel: Panel, picked: NDArray[np.bool_], stamps: NDArray[np.int64]) -> Any:
    ids: Any = (panel.ids, panel.row_series()[picked])
    if not panel.targets:
        columns = {panel.style.target_col: panel.values[picked]}
        return long_frame(panel.style, ids=ids, stamps=stamps[picked], columns=columns)
    n = panel.n_lanes_per_series
    lanes = (ids[1][:, None] * n + np.arange(n)).ravel()
    wide = wide_frame(
        panel.style,
        targets=panel.targets,
        ids=(panel.lane_names, lanes),
        stamps=stamps[picked].repeat(n),
        columns={},
        values=panel.values[picked].ravel(),
        extra_stamps=None,
    )
    return melted(wide, targets=panel.targets, style=panel.style, value="y")
