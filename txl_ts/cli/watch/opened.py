"""From a model's file to a watch over it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txl_ts.cli.watch.settings import WATCH, alerts_of, intake_arguments
from txl_ts.errors import FileFormatError
from txl_ts.runtime import StreamSession
from txl_ts.stream import Intake, Watch


def open_watch(path: Path, settings: Mapping[str, Any]) -> Watch:
    """Open a watch without streams; torch loads for a ``.txl`` only.

    Parameters
    ----------
    path : Path
        A graph, ``.onnx``, or what ``save`` wrote.
    settings : mapping
        See :func:`~txl_ts.cli.watch.settings.read_settings`.

    Raises
    ------
    FileFormatError
        If the file holds no model that can be watched.
    ParameterError
        If a setting does not fit the model.
    """
    session = StreamSession(path) if path.suffix == ".onnx" else _live(path)
    contract = session.contract
    intake = Intake(**intake_arguments(settings, contract.channels, step=contract.step))
    how = {name: settings[name] for name in WATCH if name in settings}
    return Watch(intake, session, alerts=alerts_of(settings), **how)


def _live(path: Path) -> StreamSession:
    from txl_ts.store import peek

    role, config = peek(path)
    if role != "model" or config.get("class") != "TXLForecaster":
        raise FileFormatError(
            f"{str(path)!r} holds a {config.get('class', role)}, expected a model that gives forecasts. Pass what "
            "`TXLForecaster.save` or an export wrote."
        )
    from txl_ts.estimators.forecaster import TXLForecaster

    return TXLForecaster.load(path).live()
