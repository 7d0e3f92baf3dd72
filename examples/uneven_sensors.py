"""Rows that come when they come: heart rates of intensive care, forecast at the times that are asked for.

Reads 40 patients of PhysioNet 2012 (`physionet2012/set-a/` in the folder that TXL_TS_DATA names), or draws patients
whose nurse comes more often when it matters, if it is not there.

    python examples/uneven_sensors.py
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd

from txl_ts import TXLForecaster

N_PATIENTS = 40


def heart_rates() -> pd.DataFrame:
    """One row per charted heart rate: `patient`, `minute` since admission, `rate` in beats per minute."""
    folder = Path(os.environ.get("TXL_TS_DATA", "shared/data")) / "physionet2012" / "set-a"
    parts = []
    for path in sorted(folder.glob("*.txt"))[:N_PATIENTS]:
        raw = pd.read_csv(path)
        raw = raw[(raw["Parameter"] == "HR") & (raw["Value"] > 0)].drop_duplicates("Time")
        minute = raw["Time"].str[:2].astype(int) * 60 + raw["Time"].str[3:].astype(int)
        parts.append(pd.DataFrame({"patient": path.stem, "minute": minute, "rate": raw["Value"]}))
    return pd.concat(parts, ignore_index=True) if parts else drawn_rates()


def drawn_rates() -> pd.DataFrame:
    """Rates that fall back to a patient's own level after each episode, charted every few minutes to hours."""
    rng = np.random.default_rng(0)
    parts = []
    for patient in range(N_PATIENTS):
        minute = np.cumsum(rng.choice([5, 15, 60, 120], 60, p=[0.2, 0.2, 0.5, 0.1]))
        own, above, rate = rng.normal(85, 12), 0.0, np.empty(60)
        for k, gap in enumerate(np.diff(minute, prepend=0)):
            above = above * np.exp(-gap / 180) + (rng.normal(30, 8) if rng.random() < 0.1 else 0)
            rate[k] = own + above + rng.normal(0, 3)
        parts.append(pd.DataFrame({"patient": f"P{patient:02}", "minute": minute, "rate": rate.round()}))
    return pd.concat(parts, ignore_index=True)


def main() -> None:
    """Run the example."""
    df = heart_rates()
    df = df[df.groupby("patient")["minute"].transform("size") >= 24]
    names = {"id_col": "patient", "time_col": "minute", "target_col": "rate"}
    rank = df.groupby("patient").cumcount(ascending=False)
    past, ahead = df[rank >= 8], df[rank < 8]
    gaps = past.groupby("patient")["minute"].diff().dropna()
    low, middle, high = gaps.quantile([0.05, 0.5, 0.95])
    print(
        f"{df['patient'].nunique()} patients, {len(df):,} rows, {low:.0f} to {high:.0f} minutes apart ({middle:.0f})."
    )

    model = TXLForecaster(h=4, freq=None, mem_len=24, lookback=6, half_life=24, d_model=16, max_epochs=3)
    model.fit(past, **names, val_size=6)
    print(f"Distances are counted in {model.params_['freq']} minutes; {model.params_['state_nbytes']:,} bytes each.")

    patient = past["patient"].iloc[0]
    last = past.loc[past["patient"] == patient, "minute"].max()
    asked = pd.DataFrame({"patient": patient, "minute": last + np.array([10, 60, 360])})
    print(f"\nPatient {patient}, last seen at minute {last}, is asked for at three times:")
    print(model.predict(futr_df=asked, level=[80]).to_string(index=False, float_format="%.0f"))

    said = model.update(ahead)  # one step ahead, at the times when the rows came
    held = ahead.merge(past.groupby("patient")["rate"].last().rename("held"), on="patient").sort_values(
        ["patient", "minute"], ignore_index=True
    )
    before = held.groupby("patient")["rate"].shift().fillna(held["held"])
    errors = {"the model": (said["TXL"] - said["rate"]).abs(), "the last value": (before - held["rate"]).abs()}
    print("\nThe next 8 rows of every patient, each forecast before it came; mean absolute error:")
    for name, error in errors.items():
        print(f"  {name:14} {error.mean():.2f}")


if __name__ == "__main__":
    main()
