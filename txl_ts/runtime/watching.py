"""A watch over a session of a detector: score, calibration and sensors are read from its contract."""

from __future__ import annotations

import base64
import binascii
import inspect
import warnings
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

import numpy as np

from txl_ts.calibration import Calibration
from txl_ts.errors import FileFormatError, ParameterError, TxlError, TxlWarning
from txl_ts.forms import check_form
from txl_ts.runtime.contract import Contract
from txl_ts.runtime.session import StreamSession
from txl_ts.stream import Intake, Watch
from txl_ts.stream.score import Surprise

_BUDGET = ("contamination", "false_alarms")
_CALIBRATION = ("step", *_BUDGET, "per", "n_streams", "tail", "online")
_FORM = {"score": ..., "calibration": dict.fromkeys(_CALIBRATION, ...), "scores": {"by_series": [int], "float32": str}}


def watch_over(session: StreamSession, **options: Any) -> Watch:
    """Open a watch over a session of a detector, in torch or of its graph.

    Parameters
    ----------
    session : StreamSession
    **options
        Of :class:`~txl_ts.stream.Intake` (``channels`` are the sensors, as gauges, unless they are given), of
        :class:`~txl_ts.stream.Watch`, and of :class:`~txl_ts.calibration.Calibration` for another budget than the
        detector's: ``contamination`` or ``false_alarms``, ``step``, ``per``, ``n_streams``, ``tail``, ``online``.

    Returns
    -------
    Watch

    Raises
    ------
    ParameterError
        If an option is unknown or cannot work, or the model is no detector.
    """
    contract = session.contract
    of_intake, of_watch = _names(Intake) - {"channels"}, _names(Watch) - {"intake", "model", "score"}
    known = {"channels", *of_intake, *of_watch, *_CALIBRATION}
    if unknown := sorted(set(options) - known):
        raise ParameterError(f"watch does not know {unknown[:5]}. It takes {sorted(known)}.")
    budget = {name: options[name] for name in _CALIBRATION if name in options}
    more = {name: options[name] for name in of_watch if name in options}
    if "calibration" in more and budget:
        raise ParameterError(f"calibration=… has a budget of its own: leave out {sorted(budget)}.")
    if "calibration" not in more:
        more["calibration"] = calibration_of(contract, **budget)
    intake = Intake(
        options.get("channels", contract.channels), **{name: options[name] for name in of_intake if name in options}
    )
    if intake.columns != contract.channels:
        raise ParameterError(
            f"channels make the columns {list(intake.columns)[:10]}, the detector was fitted on "
            f"{list(contract.channels)[:10]}. Give channels with these columns, in this order."
        )
    return Watch(intake, session, score=score_of(contract), **more)


def open_graph_watch(path: str | PathLike[str], *, session: Mapping[str, Any] | None = None, **options: Any) -> Watch:
    """Open a watch over an exported detector.

    Parameters
    ----------
    path : path
        What ``TXLAnomalyDetector.export_onnx`` wrote.
    session : mapping, optional
        Arguments of :class:`StreamSession`.
    **options
        See :func:`watch_over`.
    """
    return watch_over(StreamSession(fspath(path), **(session or {})), **options)


def moved_watch(watch: Watch, model: Any, *, history: Any = None) -> dict[str, Any]:
    """Move a watch to the detector of a later fit: its streams, its score and its calibration; the budget stays.

    Parameters
    ----------
    watch : Watch
        As :func:`watch_over` opened it. Learned scores are forgotten: those of two models do not compare. Where the new
        detector scores in another way, streams warm up again.
    model, history
        Of :meth:`StreamSession.swap`.

    Returns
    -------
    dict
        What ``swap`` reports.

    Raises
    ------
    ParameterError
        If the new detector's held-out rows cannot support the budget, or the model is no detector.
    StateError, FileFormatError
        As ``swap``. In all cases the old detector goes on.
    """
    session, old = watch.model, watch.calibration
    if not isinstance(session, StreamSession) or not isinstance(old, Calibration):
        raise ParameterError("the watch is not over a detector: take its session's `swap` and its own `recalibrate`.")
    budget = {name: getattr(old.budget, name) for name in ("contamination", "false_alarms", "per", "n_streams")}
    report = session.swap(model, history=history)
    try:
        score = score_of(session.contract)
        calibration = calibration_of(session.contract, **budget, step=old.step_, tail=old.tail, online=old.online)
    except TxlError:
        session.roll_back()
        raise
    watch.recalibrate(calibration, score=score)
    session.settle()
    return report


def score_of(contract: Contract) -> Surprise:
    """Read how a detector scores, from its contract.

    Raises
    ------
    ParameterError
        If the model is no detector.
    FileFormatError
        If the contract is damaged.
    """
    try:
        return Surprise.from_json(_about(contract)["score"])
    except (ValueError, AttributeError) as error:
        raise _damaged(error) from error


def calibration_of(contract: Contract, **budget: Any) -> Calibration:
    """Make a detector's calibration, from its contract, perhaps with another budget; raises as :func:`score_of`."""
    about = _about(contract)
    settings = dict(about["calibration"])
    if any(name in budget for name in _BUDGET):
        settings |= dict.fromkeys(_BUDGET)
    settings |= budget
    try:
        flat = np.frombuffer(base64.b64decode(about["scores"]["float32"], validate=True), "<f4").astype(np.float64)
        sizes = about["scores"]["by_series"]
        if sum(sizes) != len(flat) or min(sizes, default=0) < 0 or not np.isfinite(flat).all():
            raise ValueError(f"there are {len(flat)} scores for {sum(sizes)} rows")
    except (ValueError, binascii.Error) as error:
        raise _damaged(error) from error
    with warnings.catch_warnings():
        if not budget:
            warnings.simplefilter("ignore", TxlWarning)  # said when it was fitted
        return Calibration(np.split(flat, np.cumsum(sizes)[:-1]), **settings)


def _about(contract: Contract) -> dict[str, Any]:
    about = contract.document.get("detector")
    if about is None:
        raise ParameterError(
            "the model is no detector: its contract says nothing of scores. Give the file of a TXLAnomalyDetector, or "
            "make a Watch(intake, session, calibration=…) for a forecaster."
        )
    try:
        check_form({name: about.get(name) for name in _FORM}, _FORM, where="detector")
    except (ValueError, AttributeError) as error:
        raise _damaged(error) from error
    return dict(about)


def _damaged(error: Exception) -> FileFormatError:
    return FileFormatError(f"the contract of the detector is damaged: {error}. Export the model again.")


def _names(cls: type) -> set[str]:
    return set(inspect.signature(cls).parameters)
