"""From hidden rows to forecasts."""

from txl_ts.heads.known_ahead import KnownAhead
from txl_ts.heads.linear_path import LinearPath
from txl_ts.heads.quantile import QuantileHead

__all__ = ["KnownAhead", "LinearPath", "QuantileHead"]
