"""From hidden rows to forecasts, values and classes."""

from txl_ts.heads.classes import ClassHead
from txl_ts.heads.distribution import HEADS, NegativeBinomialHead, NormalHead, StudentTHead
from txl_ts.heads.known_ahead import KnownAhead
from txl_ts.heads.linear_path import LinearPath
from txl_ts.heads.quantile import QuantileHead
from txl_ts.heads.row_path import RowPath
from txl_ts.heads.value import ValueHead

__all__ = [
    "HEADS",
    "ClassHead",
    "KnownAhead",
    "LinearPath",
    "NegativeBinomialHead",
    "NormalHead",
    "QuantileHead",
    "RowPath",
    "StudentTHead",
    "ValueHead",
]
