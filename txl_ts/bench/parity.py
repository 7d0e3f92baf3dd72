"""One answer three ways: a detector over arrays, over streams, and as a graph, on real rows, stopped in the middle."""

from __future__ import annotations

import csv
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.bench import anomaly_sets, report

Floats = NDArray[np.float64]
_NAB = "realKnownCause/ambient_temperature_system_failure.csv"
_SIZES = MappingProxyType({"d_model": 8, "n_layers": 1, "n_heads": 2, "lookback": 16, "mem_len": 8, "max_epochs": 1})
COLUMNS = MappingProxyType(
    {
        "set": "rows of",
        "detector": "detector",
        "rows": "rows",
        "alarms": "alarms",
        "update_millionths": "`update`: score, millionths",
        "update_p_millionths": "p, millionths",
        "graph_millionths": "graph: score, millionths",
        "graph_p_millionths": "p, millionths",
        "graph_alarms": "alarms that differ",
        "watch_millionths": "watch: score, millionths",
        "watch_p_millionths": "p, millionths",
        "watch_alerts": "alerts that differ",
    }
)


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Parameters
    ----------
    of : {"NAB", "TSB-AD U", "TSB-AD M", "SKAB", "Valencia"}
    params : mapping
        Of the detector, beside small sizes.
    columns : int, optional
        First columns that are taken; all by default.
    """

    of: str
    params: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    columns: int | None = None

    @property
    def name(self) -> str:
        """What the table calls the detector."""
        return ", ".join(f"{name}={value!r}" for name, value in self.params.items()) or "default"


CASES = (
    Case("NAB", {"kind": "novelty"}),
    Case("TSB-AD U", {"kind": "deviation", "smooth": 8}),
    Case("TSB-AD U", {"tail": "gpd", "contamination": 0.0001}),
    Case("SKAB", {"kind": "level"}),
    Case("SKAB", {"channels": "independent", "horizons": (1, 6)}, 3),
    Case("Valencia", {"contamination": 0.002}, 6),
    Case("Valencia", {"kind": "novelty", "channels": "independent"}, 3),
)


def run(
    data: str | PathLike[str] | None = None,
    *,
    seeds: tuple[int, ...] = (0,),
    cases: Sequence[Case] = CASES,
    most_rows: int = 1_000,
    command: str | None = None,
) -> dict[str, Any]:
    """Fit a detector per case, and compare what it says of the rows that follow.

    Parameters
    ----------
    data : path
        Folder that holds ``nab/``, ``smap_msl/``, ``skab/`` and ``air_quality/``.
    seeds : tuple of int
        The first is used.
    cases : sequence of Case
    most_rows : int
        Of each set, behind those of the fit.
    command : str, optional
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`.
    """
    rows = [_row(Path(data or "."), case, most_rows=most_rows, seed=seeds[0]) for case in cases]
    here = report.environment()
    here["versions"]["onnxruntime"] = metadata.version("onnxruntime")
    return {
        "name": "parity",
        "title": "One detector three ways",
        "command": command or "txl-ts bench parity --data DIR",
        "protocol": [
            "A small detector is fitted to the first rows and goes on over those that follow: at once (`detect`), "
            "which is what the others are compared with; by `update` in calls of 1 to 300 rows, saved and loaded in "
            "the middle; row by row through the exported graph in a `StreamSession`; and as messages with time stamps "
            "through a watch over the graph. Both are stopped in the middle, and go on in a new session from a "
            "snapshot. The largest differences of any row are shown: scores as a share of the largest score of all "
            "(p-values as they are), alarms and alerts as the count of those that differ.",
        ],
        "columns": dict(COLUMNS),
        "rows": rows,
        "notes": [
            "A p-value moves by 1 / (n + 1) where a score that differs in its last digit passes one of the n scores of "
            "the calibration: then one row has another p-value, by that much.",
        ],
        "environment": here,
    }


def _row(data: Path, case: Case, *, most_rows: int, seed: int) -> dict[str, Any]:
    from txl_ts.errors import TxlWarning
    from txl_ts.estimators.detector import TXLAnomalyDetector  # torch loads here, not before

    values, times, n_fit = rows_of(data, case.of)
    values = values[: n_fit + most_rows, : case.columns]
    times = times[: len(values)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TxlWarning)  # of budgets that few rows support
        detector = TXLAnomalyDetector(**{**_SIZES, "random_state": seed, **case.params}).fit(values[:n_fit])
    with tempfile.TemporaryDirectory() as folder:
        detector.export_onnx(Path(folder, "graph.onnx"))
        found = differences(detector, Path(folder, "graph.onnx"), values[n_fit:], times[n_fit:])
    counts = {name: value for name, value in found.items() if isinstance(value, int)}
    gaps = {f"{name}_millionths": 1e6 * value for name, value in found.items() if isinstance(value, float)}
    return {"set": case.of, "detector": case.name, **counts, **gaps}


def differences(
    detector: Any, graph: Path, values: Floats, times: NDArray[np.datetime64] | None = None
) -> dict[str, Any]:
    """Compare ``detect`` with ``update``, the graph row by row, and a watch over it; all stopped in the middle.

    Parameters
    ----------
    detector : TXLAnomalyDetector
        Fitted to one series; moved on.
    graph : path
        What it exported, in a folder that may be written to.
    values : array of shape (n, C)
    times : datetime64 array of shape (n,), optional
        For the watch; seconds by default. Where they do not increase, rows count as seconds.

    Returns
    -------
    dict
        ``rows``, ``alarms``, and differences, as the columns of the table.
    """
    wanted = detector.detect(values, start="fitted")
    alone = detector.detect(values)  # a watch has no state of the fit
    scale = float(np.nanmax(np.abs(wanted.score)))
    detector.export_state(graph.with_suffix(".state"))
    by_row = _graph_rows(detector, graph, values)
    watched = _watched(detector, graph, values, times)
    updated = _updates(detector, graph.with_suffix(".txl"), values)
    alarms = detector.calibration_.alpha
    return {
        "rows": len(values),
        "alarms": int(wanted.is_alarm.sum()),
        "update": _gap(updated[0], wanted.score) / scale,
        "update_p": _gap(updated[1], wanted.p_value),
        "graph": max(_gap(by_row[0], wanted.score), _gap(by_row[2], wanted.parts)) / scale,
        "graph_p": _gap(by_row[1], wanted.p_value),
        "graph_alarms": int(((by_row[1] <= alarms) != wanted.is_alarm).sum()),
        "watch": _gap(watched[0], alone.score) / scale,
        "watch_p": _gap(watched[1], alone.p_value),
        "watch_alerts": len(watched[2] ^ _watched(detector, None, values, times)[2]),
    }


def _graph_rows(detector: Any, graph: Path, values: Floats) -> list[Floats]:
    from txl_ts.runtime import StreamSession

    session = StreamSession(graph)
    session.restore(graph.with_suffix(".state"))
    names, found = session.contract.channels, []
    for i, row in enumerate(values):
        if i == len(values) // 2:
            session.snapshot(graph.with_suffix(".now"))
            session = StreamSession(graph)
            session.restore(graph.with_suffix(".now"))
        one = session.step({"stream": {"values": dict(zip(names, row.tolist(), strict=True))}})["stream"]
        found.append((one.scores, one.p_values, one.sensor_parts))
    return [np.concatenate(part) for part in zip(*found, strict=True)]


def _updates(detector: Any, path: Path, values: Floats) -> list[Floats]:
    found, at, n = [], 0, 0
    while at < len(values):
        if at >= len(values) // 2 and not path.exists():
            detector.save(path)
            detector = type(detector).load(path)
        size = (1, 1, 7, 100, 300)[n % 5]
        found.append(detector.update(values[at : at + size]))
        at, n = at + size, n + 1
    return [np.concatenate([getattr(one, name) for one in found]) for name in ("score", "p_value")]


def _watched(
    detector: Any, graph: Path | None, values: Floats, times: NDArray[np.datetime64] | None
) -> tuple[Floats, Floats, set[Any]]:
    """Scores, p-values and the story of the alerts; without a graph in torch, uninterrupted."""
    from txl_ts.stream import restore, snapshot
    from txl_ts.watches import open_watch

    def opened() -> Any:
        gaps = {"max_gap": "36500d", "max_jump": "36500d"}  # arrays know of none
        return detector.watch(**gaps) if graph is None else open_watch(graph, **gaps)

    stamps = np.arange(len(values)).astype("datetime64[s]") if times is None else times.astype("datetime64[s]")
    if not (np.diff(stamps.astype(np.int64)) > 0).all():
        stamps = np.arange(len(values)).astype("datetime64[s]")
    messages = [
        {
            "time": str(time),
            "values": {n: None if np.isnan(v) else v for n, v in zip(detector._sensors(), row, strict=True)},
        }
        for time, row in zip(stamps, values.tolist(), strict=True)
    ]
    watch, half, found = opened(), len(values) // 2, []
    found += watch.step({"stream": messages[:half]})["stream"]
    if graph is not None:
        snapshot(watch, graph.with_suffix(".watch"))
        watch = opened()
        restore(watch, graph.with_suffix(".watch"))
    found += watch.step({"stream": messages[half:]})["stream"] + watch.flush()["stream"]
    story = {(alert.id, alert.event, alert.since, alert.at) for one in found for alert in one.alerts}
    return np.array([one.score for one in found]), np.array([one.p_value for one in found]), story


def _gap(found: Any, wanted: Any) -> float:
    """Give the largest difference; infinity where one has a number and the other has none."""
    found, wanted = np.asarray(found, float), np.asarray(wanted, float)
    if not np.array_equal(np.isnan(found), np.isnan(wanted)):
        return float("inf")
    return float(np.nanmax(np.abs(found - wanted), initial=0.0))


def rows_of(data: Path, name: str) -> tuple[Floats, NDArray[np.datetime64], int]:
    """Read a set: values (n, C), times, and how many rows may be fitted to."""
    if name == "Valencia":
        (path,) = sorted((data / "air_quality").glob("*.csv"))
        with path.open(encoding="utf-8", newline="") as file:
            _, *rows = csv.reader(file)
        values = np.array([[float(cell) if cell else np.nan for cell in row[1:]] for row in rows])
        return values, np.array([row[0] for row in rows], "datetime64[s]"), 3_000
    if name == "SKAB":
        series = anomaly_sets.skab(data)[0]
    elif name == "NAB":
        series = next(one for one in anomaly_sets.nab(data) if one.name == _NAB)
    else:
        series = anomaly_sets.tsb_ad(data, name[-1])[0 if name[-1] == "M" else 11]
    times = np.arange(len(series.values)).astype("datetime64[s]") if series.times is None else series.times
    return series.values, times, series.n_train
