"""Open a watch over a detector's file, whatever kind of file it is, and move it to that of a later fit."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import Any

from txl_ts.errors import ParameterError
from txl_ts.stream import Watch


def open_watch(path: str | PathLike[str], **options: Any) -> Watch:
    """Open a watch over a detector that was saved (``.txl``) or exported (``.onnx``).

    An exported one runs without torch.

    Parameters
    ----------
    path : path
        What ``TXLAnomalyDetector.save`` or its ``export_onnx`` wrote; a name that ends with ``.onnx`` is a graph.
    **options
        Of :class:`~txl_ts.stream.Intake` (``tick``, ``late``, ``max_gap``, …; ``channels`` are the sensors as gauges,
        unless they are given), of :class:`~txl_ts.stream.Watch` (``alerts``, ``protect_memory``, ``on_revision``, …),
        and another budget than the detector's (``contamination`` or ``false_alarms``, ``step``, ``tail``, …).

    Returns
    -------
    Watch
        Without streams: they begin with their first message.

    Raises
    ------
    FileFormatError
        If it is no such file.
    ParameterError
        If an option is unknown or cannot work.
    MissingExtraError
        Of a graph, without onnxruntime.

    Examples
    --------
    >>> from txl_ts import open_watch
    >>> watch = open_watch("pump.onnx", tick="1min", false_alarms="1 per 30d", step="1min")  # doctest: +SKIP
    """
    if Path(path).suffix == ".onnx":
        from txl_ts.runtime.watching import open_graph_watch

        return open_graph_watch(fspath(path), **options)
    from txl_ts.estimators.detector import TXLAnomalyDetector

    return TXLAnomalyDetector.load(path).watch(**options)


def retrain_watch(watch: Watch, path: str | PathLike[str], *, history: Any = None) -> dict[str, Any]:
    """Move the streams of a watch to the detector of a later fit: its weights, score and calibration; the budget stays.

    Memories are rebuilt by the new weights from the history and the rows that were kept. What was learned from feedback
    and from rows is forgotten, since scores of two models do not compare.

    Parameters
    ----------
    watch : Watch
        As :func:`open_watch` or ``detector.watch()`` gave it.
    path : path
        Of the same kind as that of the watch: an exported graph for a watch over a graph, else what ``save`` wrote.
    history : mapping or frame, optional
        Rows from before, as :meth:`~txl_ts.runtime.StreamSession.swap` takes them.

    Returns
    -------
    dict
        ``streams``, ``rows`` that were walked, ``seconds`` and ``without_history``.

    Raises
    ------
    ParameterError
        If the new detector's held-out rows cannot support the watch's budget, or the path is of the other kind.
    StateError, FileFormatError
        If it has other sensors, or cannot be read. In all cases the old detector goes on.
    """
    from txl_ts.runtime.watching import moved_watch

    is_graph = Path(path).suffix == ".onnx"
    if is_graph == getattr(watch.model, "is_live", None):
        wanted = "what `save` wrote" if is_graph else "what `export_onnx` wrote"
        raise ParameterError(f"path={fspath(path)!r} is not what this watch runs on: give {wanted}.")
    if is_graph:
        return moved_watch(watch, fspath(path), history=history)
    from txl_ts.estimators.detector import TXLAnomalyDetector
    from txl_ts.estimators.detector_files import contract_of_detector

    detector = TXLAnomalyDetector.load(path)
    return moved_watch(watch, (detector._model, contract_of_detector(detector)), history=history)
