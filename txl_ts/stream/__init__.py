"""Streams of sensors: messages become rows, every row has a status, and alerts come once. Numpy only."""

from txl_ts.stream.alerts import Alert, Alerts, Rule, Seen
from txl_ts.stream.channels import Channel
from txl_ts.stream.files import from_arrays, restore, snapshot, to_arrays
from txl_ts.stream.intake import Intake
from txl_ts.stream.row import Row
from txl_ts.stream.score import Score, Scorer, Surprise
from txl_ts.stream.statuses import STATUSES
from txl_ts.stream.watch import Watch, Watched

__all__ = [
    "STATUSES",
    "Alert",
    "Alerts",
    "Channel",
    "Intake",
    "Row",
    "Rule",
    "Score",
    "Scorer",
    "Seen",
    "Surprise",
    "Watch",
    "Watched",
    "from_arrays",
    "restore",
    "snapshot",
    "to_arrays",
]
