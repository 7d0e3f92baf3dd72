"""Open a watch over a detector's file, whatever kind of file it is."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import Any

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
