"""Forecast a polars frame: fit, forecast, take in new rows, backtest.

Reads the sea temperatures of `bokeh_sampledata` (`pip install "txl-ts[demo]"`), or makes some if it is not installed.

    python examples/forecast_frame.py
"""

import warnings
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from txl_ts import TXLForecaster

DAY = 48  # rows: one every half hour


def temperatures() -> pl.DataFrame:
    """Half-hourly temperatures in degrees Celsius: `time`, `temperature`; some stamps repeat."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # bokeh_sampledata's own use of pandas
            from bokeh_sampledata.sea_surface_temperature import sea_surface_temperature
    except ModuleNotFoundError:
        start, n = datetime(2026, 1, 1, tzinfo=UTC), 8000
        stamps = pl.datetime_range(start, start + (n - 1) * timedelta(minutes=30), "30m", eager=True)
        row = np.arange(n)
        wave = 10 + 5 * np.sin(row * 2 * np.pi / (365 * DAY)) + 0.3 * np.sin(row * 2 * np.pi / DAY)
        wander = np.random.default_rng(0).normal(scale=0.05, size=n).cumsum()
        return pl.DataFrame({"time": stamps, "temperature": wave + wander})
    return pl.from_pandas(sea_surface_temperature.reset_index())


def main() -> None:
    """Run the example."""
    df = temperatures().tail(8000).unique("time", keep="first", maintain_order=True)
    past, new = df.head(-7 * DAY), df.tail(7 * DAY)

    model = TXLForecaster(h=DAY, freq="30m", patch_len=12, d_model=32, max_epochs=3, random_state=0)
    model.fit(past, id_col=None, time_col="time", target_col="temperature", val_size=1200)
    print(
        f"Reach of the memory: {model.params_['reach_time']}; {model.params_['state_nbytes'] / 1024:.0f} KiB of state."
    )

    model.update(new)
    print("\nThe next two hours:")
    print(model.predict(h=4, level=[80]))

    metrics = model.cross_validation(df, n_windows=6 * DAY + 1, use_fitted=True, output="metrics")
    y = df["temperature"].to_numpy()
    origins = np.arange(len(y) - 7 * DAY - 1, len(y) - DAY)
    ahead = y[origins[:, None] + np.arange(1, DAY + 1)]
    print(f"\nMean absolute error of {len(origins)} forecasts, a day ahead each, over the last week:")
    print(f"  txl-ts      {metrics['mae'][0]:.3f} °C")
    print(f"  last value  {np.abs(ahead - y[origins, None]).mean():.3f} °C")


if __name__ == "__main__":
    main()
