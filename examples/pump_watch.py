"""Watch a pump: fit a detector on rows without faults, then take rows one by one; statuses, alerts, and a picture.

Reads SKAB (github.com/waico/SKAB) from the folder that `TXL_TS_DATA` names; without it, the glucose sensor of
`bokeh_sampledata` stands in for a pump.

    pip install "txl-ts[demo]"
    python examples/pump_watch.py

Into the rows that are watched sensor faults are planted, beside what is in them.
"""

import os
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from txl_ts import TXLAnomalyDetector
from txl_ts.errors import DependentRowsWarning
from txl_ts.plots import plot_watch
from txl_ts.stream import Alerts, Channel, Rule

PICTURE = Path("pump_watch.png")


@dataclass(kw_only=True)
class Plant:
    """What is fitted on, what is watched, and how.

    Attributes
    ----------
    name : str
    past : frame
        Rows to fit on: a series, a time, sensors.
    new : frame
        Rows to watch: a time, sensors.
    planted : list of str
        What was done to them.
    intake : dict
        How messages become rows.
    rules : dict
        When what lasts becomes an alert.
    shown : list of str
        Sensors in the picture.
    params : dict
        Of the detector.
    """

    name: str
    past: pd.DataFrame
    new: pd.DataFrame
    planted: list[str]
    intake: dict[str, Any]
    rules: dict[str, Rule]
    shown: list[str]
    params: dict[str, Any] = field(default_factory=dict)


def pump(folder: Path) -> Plant:
    """SKAB: a water loop, a row a second; a valve is being closed from row 570 or so to row 970 of each file."""
    parts = []
    for path in sorted((folder / "valve1").glob("*.csv"), key=lambda path: int(path.stem)):
        df = pd.read_csv(path, sep=";", parse_dates=["datetime"]).drop(columns=["changepoint"])
        parts.append(df.assign(run=path.stem).rename(columns={"datetime": "time"}))
    is_normal = [df["anomaly"].to_numpy() == 0 for df in parts]
    past = [df[:400] for df, normal in zip(parts, is_normal, strict=True) if normal[:400].all()][:-1]
    new = parts[-1].drop(columns=["anomaly", "run"])
    sensors = [name for name in new.columns if name != "time"]
    new.loc[200:260, "Pressure"] = new.loc[200, "Pressure"]
    new.loc[300:390, "Thermocouple"] = np.nan
    new.loc[450, "Temperature"] = 7900.0
    channels = [Channel(name=name, stuck_after="20s", stale_after="30s") for name in sensors]
    channels[sensors.index("Temperature")] = Channel(name="Temperature", low=0, high=200)
    channels[sensors.index("Volume Flow RateRMS")] = Channel(name="Volume Flow RateRMS", low=0)
    return Plant(
        name="SKAB valve1/15",
        past=pd.concat(past, ignore_index=True)[["run", "time", *sensors]],
        new=new,
        planted=["Pressure stuck for a minute", "Thermocouple dead for 90 s", "one Temperature of 7900"],
        intake={"channels": channels, "max_gap": "1min"},
        rules={
            "anomaly": Rule(over="10s", within="30s", clear="60s"),
            **{kind: Rule(clear="10s") for kind in ("stale", "stuck", "out_of_range", "unit_suspect")},
        },
        shown=["Pressure", "Temperature", "Thermocouple", "Volume Flow RateRMS"],
        params={"kind": "deviation", "smooth": 8, "max_epochs": 1},
    )


def glucose() -> Plant:
    """A sensor that speaks every five minutes, for a month; what the pump's faults are planted into."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bokeh_sampledata's own use of pandas
        from bokeh_sampledata.glucose import data
    rows = data.reset_index().rename(columns={"datetime": "time"})
    rows["time"] = rows["time"].dt.round("5min")
    rows = rows.drop_duplicates("time")[["time", "glucose"]].reset_index(drop=True)[-9000:].reset_index(drop=True)
    past, new = rows[:8000], rows[8200:].reset_index(drop=True).astype({"glucose": float})
    new.loc[150, "glucose"] += 200
    new.loc[250:290, "glucose"] = new.loc[250, "glucose"]
    new.loc[400:440, "glucose"] = np.nan
    new.loc[550:620, "glucose"] += 120
    new.loc[700:711, "time"] -= pd.Timedelta("1h")
    return Plant(
        name="glucose",
        past=past.assign(run="glucose")[["run", "time", "glucose"]],
        new=new,
        planted=["a spike", "stuck for 3 h", "dead for 3 h", "a level shift of 6 h", "a clock an hour back"],
        intake={
            "channels": [Channel(name="glucose", low=20, high=600, stuck_after="1h", stale_after="1h")],
            "tick": "5min",
            "max_gap": "6h",
            "back": "10min",
        },
        rules={
            "anomaly": Rule(clear="1h"),
            **{kind: Rule(clear="30min") for kind in ("stale", "stuck", "out_of_range", "clock_back")},
        },
        shown=["glucose"],
        params={"max_epochs": 1, "contamination": 0.005},
    )


def main() -> None:
    """Run the example."""
    folder = Path(os.environ.get("TXL_TS_DATA", "shared/data")) / "skab"
    plant = pump(folder) if folder.is_dir() else glucose()
    with warnings.catch_warnings():
        # Neighbouring rows resemble each other: alarms may come several times as often as asked for.
        warnings.simplefilter("ignore", DependentRowsWarning)
        detector = TXLAnomalyDetector(d_model=16, random_state=0, **plant.params)
        detector.fit(plant.past, time="time", series_id="run")
        calibration = detector.calibration_
        watch = detector.watch(alerts=Alerts(plant.rules), **plant.intake)
    print(f"Fitted on {len(plant.past):,} rows in {detector.fit_seconds_:.0f} s; {calibration.n:,} of them say what is")
    print(
        f"normal: a row alarms from a score of {calibration.threshold:.1f} on ({calibration.alpha:.2%} of normal rows)."
    )
    print(f"\n{plant.name}, with planted faults: {', '.join(plant.planted)}.\n")

    found = []
    for row in plant.new.itertuples(index=False):
        values = dict(zip(plant.new.columns[1:], row[1:], strict=True))
        found += watch.step({plant.name: [{"time": row[0].to_datetime64(), "values": values}]})[plant.name]
        for alert in found[-1].alerts if found else ():
            if alert.event == "raised":
                time = np.datetime64(alert.at, "s") if alert.at < 10**12 else np.datetime64(alert.at, "ns")
                print(f"{time.astype('datetime64[s]')}  {alert.kind:<12}  {', '.join(alert.sensors[:3])}")

    print("\nRows by status:", dict(Counter(one.status for one in found).most_common()))
    figure = plot_watch(found, sensors=plant.shown, threshold=calibration.threshold, title=plant.name)
    figure.savefig(PICTURE, dpi=110)
    print(f"Picture: {PICTURE}")


if __name__ == "__main__":
    main()
