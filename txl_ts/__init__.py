"""Transformer-XL's recurrent memory for time series and sensor streams.

Names load when they are first used, so that ``import txl_ts`` costs milliseconds and a name brings only the libraries
that it needs.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "PanelSplit",
    "TXLAnomalyDetector",
    "TXLClassifier",
    "TXLEncoder",
    "TXLForecaster",
    "TXLRegressor",
    "TxlError",
    "TxlWarning",
    "__version__",
    "open_watch",
    "retrain_watch",
]

if TYPE_CHECKING:
    from txl_ts.errors import TxlError, TxlWarning
    from txl_ts.estimators.classifier import TXLClassifier
    from txl_ts.estimators.detector import TXLAnomalyDetector
    from txl_ts.estimators.encoder import TXLEncoder
    from txl_ts.estimators.forecaster import TXLForecaster
    from txl_ts.estimators.panel_split import PanelSplit
    from txl_ts.estimators.regressor import TXLRegressor
    from txl_ts.watches import open_watch, retrain_watch
else:
    _HOMES = {
        "PanelSplit": "txl_ts.estimators.panel_split",
        "TXLAnomalyDetector": "txl_ts.estimators.detector",
        "TXLClassifier": "txl_ts.estimators.classifier",
        "TXLEncoder": "txl_ts.estimators.encoder",
        "TXLForecaster": "txl_ts.estimators.forecaster",
        "TXLRegressor": "txl_ts.estimators.regressor",
        "TxlError": "txl_ts.errors",
        "TxlWarning": "txl_ts.errors",
        "open_watch": "txl_ts.watches",
        "retrain_watch": "txl_ts.watches",
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}. It offers {', '.join(__all__)}.")
        from importlib import import_module

        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value  # the next use does not come through here
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
