"""scikit-learn's manners over frames and arrays: fit, predict, update."""

from txl_ts.estimators.classifier import TXLClassifier
from txl_ts.estimators.detector import TXLAnomalyDetector
from txl_ts.estimators.encoder import TXLEncoder
from txl_ts.estimators.forecaster import TXLForecaster
from txl_ts.estimators.panel_split import PanelSplit
from txl_ts.estimators.regressor import TXLRegressor

__all__ = ["PanelSplit", "TXLAnomalyDetector", "TXLClassifier", "TXLEncoder", "TXLForecaster", "TXLRegressor"]
