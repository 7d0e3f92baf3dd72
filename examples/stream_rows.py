"""Fit, export, and stream: new rows go one by one through the graph, without torch, and forecasts come back.

    pip install "txl-ts[export,ort]"
    python examples/stream_rows.py

In production the first half runs where the model is trained and the second where the rows arrive; two files travel.
"""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from txl_ts import TXLForecaster
from txl_ts.runtime import StreamSession

DAY = 24  # rows: one every hour


def loads(n_rows: int = 50 * DAY) -> pd.DataFrame:
    """Hourly loads of two meters in kW: `meter`, `time`, `load`; a few rows did not come."""
    rng, row = np.random.default_rng(0), np.arange(n_rows)
    parts = []
    for i, meter in enumerate(("meter-7", "meter-8")):
        wave = 5 + 3 * i + (2 + i) * np.sin(2 * np.pi * (row - 6 * i) / DAY)
        load = wave + rng.normal(scale=0.2, size=n_rows)
        load[rng.random(n_rows) < 0.02] = np.nan
        time = pd.date_range("2026-01-01", periods=n_rows, freq="h")
        parts.append(pd.DataFrame({"meter": meter, "time": time, "load": load}))
    return pd.concat(parts, ignore_index=True)


def train(past: pd.DataFrame, folder: Path) -> TXLForecaster:
    """Fit a model; write the graph, and the memories in which the past rows are."""
    model = TXLForecaster(h=6, freq="1h", patch_len=12, mem_len=4, lookback=48, d_model=16, max_epochs=2)
    model.fit(past, id_col="meter", time_col="time", target_col="load")
    contract = model.export_onnx(folder / "load.onnx")
    model.export_state(folder / "load-state.txl")
    print(f"Exported: a meter needs {contract['state_nbytes'] / 1024:.0f} KiB of state;", end=" ")
    print(f"graph and model differ by {contract['parity']['max_relative']:.0e} of the largest value at most.")
    return model


def stream(new: pd.DataFrame, folder: Path) -> dict[str, list[np.ndarray]]:
    """Open the graph and feed it hour by hour; no torch is used from here on."""
    session = StreamSession(folder / "load.onnx")
    session.restore(folder / "load-state.txl")
    print(f"\nStreams that were restored: {', '.join(map(str, session.streams))}")
    found: dict[str, list[np.ndarray]] = {str(name): [] for name in session.streams}
    for time, hour in new.groupby("time"):
        # One call for all meters. A value that did not come is NaN; a meter may also be left out.
        results = session.step(
            {row.meter: {"time": time.to_datetime64(), "values": {"load": row.load}} for row in hour.itertuples()}
        )
        for name, result in results.items():
            found[str(name)].append(result.quantiles)
            if time.hour == 0:
                low, median, high = result.quantiles[0, [0, result.levels.index(0.5), -1]]
                print(f"  {time:%d %b}  {name}  01:00: {median:5.2f} kW, within {low:5.2f} … {high:5.2f}", end="")
                print(f"  ({result.status})")
    return found


def main() -> None:
    """Run the example."""
    df = loads()
    is_new = df["time"] >= df["time"].max() - pd.Timedelta(hours=3 * DAY - 1)
    with tempfile.TemporaryDirectory() as name:
        model = train(df[~is_new], Path(name))
        found = stream(df[is_new], Path(name))

    # The model itself, on the same rows: what update says one step ahead of each, and predict after the last.
    before = model.update(df[is_new])
    ahead = model.predict()
    columns = ["TXL" if level == 0.5 else f"TXL_ql{level:g}" for level in model.config_.quantiles]
    apart = 0.0
    for meter, forecasts in found.items():
        # update forecasts a row from those before it, the session gives what follows a row.
        walked = before.loc[before["meter"] == meter, columns].to_numpy()[1:]
        apart = max(apart, np.abs(np.stack(forecasts)[:-1, 0] - walked).max())
        last = ahead.loc[ahead["meter"] == meter, columns].to_numpy()
        apart = max(apart, np.abs(forecasts[-1] - last).max())
    print(f"\nLargest difference to update and predict of the model: {apart:.0e} kW")


if __name__ == "__main__":
    main()
