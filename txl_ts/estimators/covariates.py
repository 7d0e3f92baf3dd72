"""Forecasts of series whose rows ahead are partly known."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from txl_ts.model import TXLModel

# Lanes × steps in one call: what is known of each step becomes a few dozen numbers.
_CELLS_PER_CALL = 100_000


def forecast_known(model: TXLModel, last: NDArray[np.float32], futr: NDArray[np.float32]) -> NDArray[np.float32]:
    """Forecast from kept memories, now that the rows ahead are known.

    Parameters
    ----------
    model : TXLModel
    last : float32 array of shape (n_series, …)
        ``state["last"]``.
    futr : float32 array of shape (n_series, n_ahead, n_futr)
        Raw columns, of at most ``h`` rows.

    Returns
    -------
    float32 array of shape (n_series, n_ahead, C · law_width)
    """
    h, n_ahead = model.config.h, futr.shape[1]
    out = np.full((len(last), n_ahead, model.config.n_channels * model.config.law_width), np.nan, np.float32)
    padded = padded_ahead(futr, n_rows=h)
    width = max(_CELLS_PER_CALL // h, 1)
    for first in range(0, len(last), width):
        some = slice(first, first + width)
        with torch.inference_mode():
            y = model.forecast_from(torch.from_numpy(last[some]), torch.from_numpy(padded[some]))
        out[some] = y[:, :n_ahead].flatten(2).numpy()
    return out


def padded_ahead(futr: NDArray[np.float32], *, n_rows: int) -> NDArray[np.float32]:
    """Put rows of which nothing is known behind (n_series, n, n_futr), up to ``n_rows`` of them."""
    return np.pad(futr, ((0, 0), (0, max(n_rows - futr.shape[1], 0)), (0, 0)), constant_values=np.nan)
