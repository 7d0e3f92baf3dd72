"""The labelled series of the anomaly benchmarks, read from the folder of the data sets."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.bench.nab_scorer import n_probation

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LabelledSeries:
    """One series with what is known about it.

    Attributes
    ----------
    name : str
    values : array of shape (n, C)
    n_train : int
        First rows, which may be fitted to.
    labels : bool array of shape (n,)
        True where a row is anomalous; all False where there are none.
    times : datetime64 array of shape (n,), optional
    windows : tuple of (str, str)
        First and last time of the ranges that NAB scores.
    """

    name: str
    values: Floats
    n_train: int
    labels: NDArray[np.bool_]
    times: NDArray[np.datetime64] | None = None
    windows: tuple[tuple[str, str], ...] = field(default=())


def nab(data: str | PathLike[str]) -> list[LabelledSeries]:
    """Read the 58 files of NAB; the probation may be fitted to.

    Parameters
    ----------
    data : path
        Folder that holds ``nab/``.

    Returns
    -------
    list of LabelledSeries
    """
    folder = Path(data) / "nab"
    windows = json.loads((folder / "labels" / "combined_windows.json").read_text(encoding="utf-8"))
    series = []
    for name in sorted(windows):
        table = _table(folder / name)
        times = np.array(table["timestamp"], "datetime64[s]")
        values = np.array(table["value"], float)[:, None]
        labels = np.zeros(len(times), bool)
        for first, last in windows[name]:
            labels |= (times >= np.datetime64(first, "s")) & (times < np.datetime64(last, "s"))
        edges = tuple((str(first), str(last)) for first, last in windows[name])
        series.append(LabelledSeries(name, values, n_probation(len(times)), labels, times, edges))
    return series


# Number in TSB-AD-U, file, rows that may be fitted to.
_NAB_COPIES = (
    (1, "realKnownCause/ec2_request_latency_system_failure.csv", 1007),
    (5, "realTraffic/occupancy_6005.csv", 594),
    (6, "realKnownCause/nyc_taxi.csv", 2579),
    (8, "artificialWithAnomaly/art_load_balancer_spikes.csv", 1007),
    (9, "realTraffic/TravelTime_451.csv", 500),
    (13, "realTraffic/speed_t4013.csv", 623),
    (14, "realAdExchange/exchange-3_cpm_results.csv", 500),
    (16, "realKnownCause/ambient_temperature_system_failure.csv", 1816),
    (17, "artificialWithAnomaly/art_increase_spike_density.csv", 1007),
    (18, "realKnownCause/rogue_agent_key_hold.csv", 500),
    (19, "realAWSCloudwatch/ec2_cpu_utilization_5f5533.csv", 1007),
    (23, "realKnownCause/cpu_utilization_asg_misconfiguration.csv", 4512),
    (25, "realTweets/Twitter_volume_FB.csv", 3958),
    (26, "realTraffic/speed_6005.csv", 624),
)
# Channel and rows that may be fitted to, of the evaluation series of TSB-AD-M that come from MSL and SMAP.
_EVALUATION = MappingProxyType(
    {
        "S-2": 500,
        "P-11": 883,
        "F-4": 855,
        "F-7": 1150,
        "F-5": 980,
        "D-14": 656,
        "P-15": 714,
        "T-4": 554,
        "M-7": 539,
        "T-5": 554,
        "P-14": 1525,
        "M-5": 575,
        "T-9": 500,
        "M-6": 512,
        "P-2": 2052,
        "E-8": 2133,
        "E-11": 2128,
        "E-13": 2160,
        "B-1": 2011,
        "E-7": 2077,
        "D-6": 1971,
        "E-5": 2073,
        "G-2": 1840,
        "G-1": 2117,
        "D-5": 1907,
        "A-5": 1173,
        "E-10": 2126,
        "E-6": 2075,
        "G-7": 1757,
        "S-1": 1832,
        "E-9": 2075,
        "G-4": 1908,
        "A-3": 2051,
        "E-1": 2129,
        "A-6": 1113,
        "F-3": 2094,
        "T-3": 1998,
        "R-1": 1811,
        "A-1": 2160,
    }
)
_TUNING = ("T-12", "P-10", "E-12", "G-3")
# Where TSB-AD's copy has other ranges than the mission's table, and rows that it leaves out at the beginning.
_OTHER_RANGES = MappingProxyType({"P-2": [[5300, 6420]], "E-13": [[6449, 6569]]})
_LEFT_OUT = MappingProxyType({"G-7": 1000})


def tsb_ad(data: str | PathLike[str], part: str) -> list[LabelledSeries]:
    """Read the series of TSB-AD that are rebuilt from NAB, SMAP and MSL.

    Parameters
    ----------
    data : path
        Folder that holds ``nab/`` and ``smap_msl/``.
    part : {"U", "M", "tuning"}
        One channel (14 series), several (39), and the four of several on which choices may be made.

    Returns
    -------
    list of LabelledSeries
        In those of several channels, the first is telemetry and the others are commands, 0 or 1.
    """
    if part == "U":
        files = {one.name: one for one in nab(data)}
        # The benchmark's own copies have their labels one step early.
        return [
            LabelledSeries(f"{number:03} {name}", files[name].values[1:], n_train, files[name].labels[:-1])
            for number, name, n_train in _NAB_COPIES
        ]
    folder = Path(data) / "smap_msl"
    ranges: dict[str, list[list[int]]] = {}
    with (folder / "labeled_anomalies.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            ranges.setdefault(row["chan_id"], []).extend(json.loads(row["anomaly_sequences"]))
    names = _EVALUATION if part == "M" else _TUNING
    return [_telemetry(folder, name, ranges[name]) for name in names]


def _telemetry(folder: Path, name: str, ranges: list[list[int]]) -> LabelledSeries:
    with gzip.open(folder / "test" / f"{name}.npy.gz") as file:
        values = np.load(file)
    labels = np.zeros(len(values), bool)
    for first, last in _OTHER_RANGES.get(name, ranges):
        labels[first : last + 1] = True
    skip = _LEFT_OUT.get(name, 0)
    values, labels = values[skip:], labels[skip:]
    return LabelledSeries(name, values, _EVALUATION.get(name, max(500, len(values) // 4)), labels)


SKAB_TRAIN = 400
"""Rows of each file that the official protocol fits to."""


def skab(data: str | PathLike[str]) -> list[LabelledSeries]:
    """Read the 34 labelled files of SKAB, 8 channels each."""
    folder = Path(data) / "skab"
    names = (f"{part}/{path.name}" for part in ("valve1", "valve2", "other") for path in _sorted(folder / part))
    return [_pump(folder / name, name) for name in names]


def skab_normal(data: str | PathLike[str]) -> LabelledSeries:
    """Read the run of SKAB without any fault."""
    return _pump(Path(data) / "skab" / "anomaly-free" / "anomaly-free.csv", "anomaly-free")


def _pump(path: Path, name: str) -> LabelledSeries:
    table = _table(path, delimiter=";")
    times = np.array(table.pop("datetime"), "datetime64[s]")
    labels = np.array(table.pop("anomaly", ["0"] * len(times)), float) > 0
    table.pop("changepoint", None)
    return LabelledSeries(
        name, np.stack([np.array(column, float) for column in table.values()], 1), SKAB_TRAIN, labels, times
    )


def _sorted(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.glob("*.csv"), key=lambda path: int(path.stem))


def _table(path: Path, *, delimiter: str = ",") -> dict[str, Any]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter=delimiter))
    return {name: list(column) for name, column in zip(rows[0], zip(*rows[1:], strict=True), strict=True)}
