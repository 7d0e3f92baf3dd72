"""The labelled data sets of the tabular bench, read from their original files."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from txl_ts.errors import FrameError

UEA = ("BasicMotions", "ItalyPowerDemand", "JapaneseVowels", "PickupGestureWiimoteZ")
# The sensors of FD001 that move at all.
SENSORS = (2, 3, 4, 7, 8, 9, 11, 12, 13, 14, 15, 17, 20, 21)
CAP = 125
OCCUPANCY = ("Temperature", "Humidity", "Light", "CO2", "HumidityRatio")


@dataclass(frozen=True)
class Panel:
    """Series of equal length, padded with NaN, and one class for each.

    Attributes
    ----------
    X : float array of shape (n_series, n_rows, n_features)
    y : array of shape (n_series,)
    """

    X: NDArray[np.float64]
    y: NDArray[Any]


@dataclass(frozen=True)
class Engines:
    """Cycles of engines, and how many are left.

    Attributes
    ----------
    X : float array of shape (n_rows, 14)
    unit : int array of shape (n_rows,)
        Engine of each row.
    cycle : int array of shape (n_rows,)
    raw_left : float array of shape (n_rows,)
        Remaining cycles.
    """

    X: NDArray[np.float64]
    unit: NDArray[np.int64]
    cycle: NDArray[np.int64]
    raw_left: NDArray[np.float64]

    def take(self, units: NDArray[np.int64]) -> Engines:
        """Keep some engines."""
        kept = np.isin(self.unit, units)
        return Engines(self.X[kept], self.unit[kept], self.cycle[kept], self.raw_left[kept])

    @property
    def left(self) -> NDArray[np.float64]:
        """Remaining cycles, capped at 125."""
        return np.minimum(self.raw_left, CAP)

    @property
    def last(self) -> NDArray[np.bool_]:
        """Mark the last row of each engine."""
        return np.append(self.unit[1:] != self.unit[:-1], True)


def occupancy(data: str | PathLike[str], part: str) -> pd.DataFrame:
    """Read ``datatraining``, ``datatest`` or ``datatest2``: time as index, five sensors and ``Occupancy``.

    Raises
    ------
    FrameError
        If the file is not there.
    """
    frame = pd.read_csv(_there(Path(data) / "occupancy" / f"{part}.txt"))
    return frame.assign(date=pd.to_datetime(frame["date"])).set_index("date")


def uea(data: str | PathLike[str], name: str, part: str) -> Panel:
    """Read a set of the UEA archive, ``part`` being ``"TRAIN"`` or ``"TEST"``.

    Raises
    ------
    FrameError
        If the file is not there.
    """
    text = _there(Path(data) / "uea_small" / f"{name}_{part}.ts").read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.partition("@data")[2].splitlines() if line.strip()]
    series, labels = [], []
    for line in lines:
        *channels, label = line.strip().split(":")
        series.append(np.array([[float(x) for x in channel.split(",")] for channel in channels]).T)
        labels.append(label)
    longest = max(map(len, series))
    X = np.full((len(series), longest, series[0].shape[1]), np.nan)
    for i, rows in enumerate(series):
        X[i, : len(rows)] = rows
    return Panel(X, np.array(labels))


def engines(data: str | PathLike[str], part: str) -> Engines:
    """Read FD001, ``part`` being ``"train"`` or ``"test"``.

    Raises
    ------
    FrameError
        If a file is not there.
    """
    folder = Path(data) / "cmapss"
    table = np.loadtxt(_there(folder / f"{part}_FD001.txt"))
    unit, cycle = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
    end = np.zeros(int(unit.max()) + 1)
    np.maximum.at(end, unit, cycle)
    if part == "test":
        end[1:] += np.loadtxt(_there(folder / "RUL_FD001.txt"))
    columns = [4 + sensor for sensor in SENSORS]
    return Engines(table[:, columns], unit, cycle, end[unit] - cycle)


def _there(path: Path) -> Path:
    if not path.is_file():
        raise FrameError(f"{path} is not there. Pass the folder that holds occupancy/, uea_small/ and cmapss/.")
    return path
