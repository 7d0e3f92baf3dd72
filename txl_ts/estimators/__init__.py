"""scikit-learn's manners over frames: fit, predict, update."""

from txl_ts.estimators.forecaster import TXLForecaster

__all__ = ["TXLForecaster"]
