"""Training: lanes of segments that slide along the series, and the closed form of the linear path."""

from txl_ts.training.adapters import (
    METHODS,
    Adapter,
    adapted_weights,
    adapter_of,
    with_adapter,
    with_all_trained,
    with_head_alone,
)
from txl_ts.training.checkpoint import Checkpoint
from txl_ts.training.closed_form import LinearFit, fit_linear_path
from txl_ts.training.epochs import History
from txl_ts.training.label_loop import LabelSettings, LabelTrainer
from txl_ts.training.labelled import LabelRows
from txl_ts.training.loop import Trainer
from txl_ts.training.pieces import BesideRows, Pieces
from txl_ts.training.replay import Reservoir, Stretch
from txl_ts.training.row_path import fit_row_path
from txl_ts.training.segments import Origins
from txl_ts.training.settings import GRADIENTS, TrainingSettings

__all__ = [
    "GRADIENTS",
    "METHODS",
    "Adapter",
    "BesideRows",
    "Checkpoint",
    "History",
    "LabelRows",
    "LabelSettings",
    "LabelTrainer",
    "LinearFit",
    "Origins",
    "Pieces",
    "Reservoir",
    "Stretch",
    "Trainer",
    "TrainingSettings",
    "adapted_weights",
    "adapter_of",
    "fit_linear_path",
    "fit_row_path",
    "with_adapter",
    "with_all_trained",
    "with_head_alone",
]
