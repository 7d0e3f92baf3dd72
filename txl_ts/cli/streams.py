"""The two real streams of the demo, as ``bokeh_sampledata`` ships them: nothing is cleaned here."""

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from txl_ts.errors import MissingExtraError


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One sensor.

    Attributes
    ----------
    name, unit, source : str
        For people.
    frame : DataFrame
        Rows in time order, with stamps off the grid and repeated as they came.
    time_col, target_col : str
    freq : str
        Nominal step.
    step_min : int
        The same in minutes.
    h : int
        Rows ahead.
    """

    name: str
    unit: str
    source: str
    frame: pd.DataFrame
    time_col: str
    target_col: str
    freq: str
    step_min: int
    h: int

    @property
    def day(self) -> int:
        """Rows of a day."""
        return 24 * 60 // self.step_min

    @property
    def horizon_h(self) -> float:
        """Hours ahead."""
        return self.h * self.step_min / 60

    def ordinals(self, origin: int) -> NDArray[np.int64]:
        """Nearest grid ordinal of each row.

        Parameters
        ----------
        origin : int
            Stamp of ordinal 0, in epoch nanoseconds.
        """
        stamps = self.frame[self.time_col].to_numpy("datetime64[ns]").astype(np.int64)
        return np.rint((stamps - origin) / (self.step_min * 60e9)).astype(np.int64)

    def tail(self, n_rows: int) -> "Stream":
        """Keep the last rows."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Stream(**fields | {"frame": self.frame.iloc[-n_rows:].reset_index(drop=True)})


def load_streams() -> list[Stream]:
    """Read both streams.

    Raises
    ------
    MissingExtraError
        Without ``bokeh_sampledata``.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # bokeh_sampledata's own use of pandas
            from bokeh_sampledata.glucose import data as glucose
            from bokeh_sampledata.sea_surface_temperature import sea_surface_temperature as sea
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            'the demo needs the data of bokeh_sampledata. Install it with `pip install "txl-ts[demo]"`.'
        ) from error
    return [
        Stream(
            name="glucose",
            unit="mg/dL",
            source="a person's glucose sensor, 2010 (bokeh_sampledata, public domain)",
            frame=glucose.reset_index(),  # with `isig`, a column of text that holds "nil": it has no role
            time_col="datetime",
            target_col="glucose",
            freq="5min",
            step_min=5,
            h=12,
        ),
        Stream(
            name="sea temperature",
            unit="°C",
            source="NERACOOS station B01, Western Maine Shelf, 2016-17 (bokeh_sampledata, free to use)",
            frame=sea.reset_index(),
            time_col="time",
            target_col="temperature",
            freq="30min",
            step_min=30,
            h=48,
        ),
    ]
