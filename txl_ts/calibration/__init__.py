"""From scores to alarms at a rate that was asked for: p-values from held-out rows, budgets, tails. Numpy only."""

from txl_ts.calibration.blocks import effective_size, held_out_blocks, integrated_time
from txl_ts.calibration.budget import Budget, exceedance_band
from txl_ts.calibration.conformal import Calibration
from txl_ts.calibration.tail import fit_gpd, gpd_excess, gpd_survival

__all__ = [
    "Budget",
    "Calibration",
    "effective_size",
    "exceedance_band",
    "fit_gpd",
    "gpd_excess",
    "gpd_survival",
    "held_out_blocks",
    "integrated_time",
]
