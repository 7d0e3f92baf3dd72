"""From a model's file to a watch over it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txl_ts.cli.watch.settings import BUDGET, WATCH, alerts_of, intake_arguments
from txl_ts.errors import FileFormatError, ParameterError
from txl_ts.instants import read_duration, shown_duration
from txl_ts.runtime import StreamSession
from txl_ts.runtime.contract import Contract
from txl_ts.runtime.watching import watch_over
from txl_ts.stream import Intake, Watch


def open_watch(path: Path, settings: Mapping[str, Any]) -> Watch:
    """Open a watch without streams; torch loads for a ``.txl`` only.

    Parameters
    ----------
    path : Path
        A graph, ``.onnx``, or what ``save`` wrote: of a detector, or of a forecaster, whose scores have no p-values.
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
    about = contract.document.get("detector")
    _check_columns(path, contract)
    step = contract.step if about is None else about["calibration"]["step"]
    intake = intake_arguments(settings, contract.channels, step=step, has_grid=contract.step is not None)
    _check_tick(intake.get("tick"), contract)
    how = {name: settings[name] for name in WATCH if name in settings} | {"alerts": alerts_of(settings)}
    budget = {name: settings[name] for name in BUDGET if settings.get(name) is not None}
    if about is not None:
        return watch_over(session, **intake, **how, **budget)
    if budget:
        raise ParameterError(
            f"{str(path)!r} is a forecaster and has no calibration for {min(budget)}={budget[min(budget)]!r}. Fit a "
            "detector with txl-ts fit-detector, whose scores have p-values."
        )
    return Watch(Intake(**intake), session, **how)


def _check_columns(path: Path, contract: Contract) -> None:
    """Raise ParameterError for a model that wants more of a row than its channels."""
    layout = contract.layout
    if beside := [column.name for column in (*layout.hist, *layout.futr, *layout.static)]:
        raise ParameterError(
            f"{str(path)!r} reads the columns {beside[:5]} beside {list(contract.channels)[:5]}, and txl-ts watch "
            "gives a model its channels only. Step it in Python, with TXLForecaster.load(path).live()."
        )


def _check_tick(tick: Any, contract: Contract) -> None:
    """Raise ParameterError for rows that would lie off the model's grid."""
    if tick is None or contract.step is None:
        return
    if read_duration("tick", tick, at_least=1) % contract.step:
        step = shown_duration(contract.step) if contract.is_datetime else contract.step
        raise ParameterError(
            f"tick={tick!r} is no multiple of the model's step, {step}: its rows lie on a grid. Leave tick out, or "
            f"take tick={step!r}."
        )


def _live(path: Path) -> StreamSession:
    from txl_ts.store import peek

    role, config = peek(path)
    if role == "model" and config.get("class") == "TXLAnomalyDetector":
        from txl_ts.estimators.detector import TXLAnomalyDetector

        session = TXLAnomalyDetector.load(path).watch().model
        assert isinstance(session, StreamSession)
        return session
    if role == "model" and config.get("class") == "TXLForecaster":
        from txl_ts.estimators.forecaster import TXLForecaster

        return TXLForecaster.load(path).live()
    raise FileFormatError(
        f"{str(path)!r} holds a {config.get('class', role)}, expected a detector or a forecaster. Pass what "
        "`TXLAnomalyDetector.save` or an export of it wrote."
    )
