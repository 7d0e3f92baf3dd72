"""Columns beside the target: tomorrow's load with tomorrow's temperature, holidays and the calendar.

Reads Victoria's electricity (`vic_electricity/vic_electricity.csv` in the folder that TXL_TS_DATA names), or makes a
load that follows the weather if it is not there.

    python examples/covariates.py
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd

from txl_ts import TXLForecaster

DAY = 48  # rows: one every half hour
ZONE = "Australia/Melbourne"


def loads() -> pd.DataFrame:
    """Half-hourly rows in local time: `time`, `load` in MW, `temperature` in degrees Celsius, `holiday`."""
    path = Path(os.environ.get("TXL_TS_DATA", "shared/data")) / "vic_electricity" / "vic_electricity.csv"
    if path.is_file():
        raw = pd.read_csv(path)
        time = pd.to_datetime(raw["Time"]).dt.tz_convert(ZONE)
        names = {"load": raw["Demand"], "temperature": raw["Temperature"], "holiday": raw["Holiday"].astype(bool)}
        return pd.DataFrame({"time": time, **names}).iloc[10_000:17_000]
    n, rng = 7000, np.random.default_rng(0)
    time = pd.Series(pd.date_range("2012-08-01", periods=n, freq="30min", tz=ZONE))
    row = np.arange(n)
    temperature = 16 + 6 * np.sin(2 * np.pi * row / DAY) + rng.normal(scale=0.4, size=n).cumsum() * 0.3
    holiday = rng.random(n // DAY + 1)[row // DAY] < 0.05
    load = 4500 + 600 * np.sin(2 * np.pi * (row - 10) / DAY) + 40 * np.abs(temperature - 18) - 500 * holiday
    return pd.DataFrame(
        {"time": time, "load": load + rng.normal(scale=50, size=n), "temperature": temperature, "holiday": holiday}
    )


def main() -> None:
    """Run the example."""
    df = loads()
    past, ahead = df.iloc[: -14 * DAY], df.iloc[-14 * DAY :]
    columns = {"futr_cols": ["temperature", "holiday"], "cat_cols": ["holiday"]}
    names = {"id_col": None, "time_col": "time", "target_col": "load"}
    small = {"h": DAY, "freq": "30min", "patch_len": 24, "d_model": 16, "max_epochs": 2, "random_state": 0}

    alone = TXLForecaster(**small).fit(past[["time", "load"]], **names, val_size=14 * DAY)
    model = TXLForecaster(**small, calendar=["hour", "weekday"]).fit(past, **names, **columns, val_size=14 * DAY)
    used = "uses them too" if model.linear_fit_.uses_known else "does without them"
    print(f"Columns are read by the head; the linear path {used}, as the validation rows have it.")

    futr = model.make_future_frame(h=4).merge(ahead.drop(columns="load"), on="time")
    print("\nThe next two hours, with what is known of them:")
    print(model.predict(h=4, futr_df=futr, level=[80]).to_string(index=False, float_format="%.0f"))

    rows = {"with the columns": (model, df), "without": (alone, df[["time", "load"]])}
    print("\nMean absolute error over two weeks, a day ahead from every half hour, in MW:")
    for name, (forecaster, frame) in rows.items():
        errors = forecaster.cross_validation(frame, n_windows=13 * DAY, use_fitted=True, output="metrics")
        print(f"  {name:17} {errors['mae'][0]:.0f}")


if __name__ == "__main__":
    main()
