"""neuralforecast's quick-start with TXL: one import and the model's name change, the calls stay.

Runs without neuralforecast; the monthly passengers of its quick-start (Box and Jenkins, 1949 to 1960) stand below.

    python examples/from_neuralforecast.py
"""

import pandas as pd

# from neuralforecast import NeuralForecast
# from neuralforecast.models import NHITS
from txl_ts_adapters.neuralforecast import TXL, NeuralForecast

PASSENGERS = """
112 118 132 129 121 135 148 148 136 119 104 118 115 126 141 135 125 149 170 170 158 133 114 140
145 150 178 163 172 178 199 199 184 162 146 166 171 180 193 181 183 218 230 242 209 191 172 194
196 196 236 235 229 243 264 272 237 211 180 201 204 188 235 227 234 264 302 293 259 229 203 229
242 233 267 269 270 315 364 347 312 274 237 278 284 277 317 313 318 374 413 405 355 306 271 306
315 301 356 348 355 422 465 467 404 347 305 336 340 318 362 348 363 435 491 505 404 359 310 337
360 342 406 396 420 472 548 559 463 407 362 405 417 391 419 461 472 535 622 606 508 461 390 432
"""


def passengers() -> pd.DataFrame:
    """AirPassengersDF of neuralforecast: `unique_id`, `ds` (month ends), `y`."""
    y = [float(word) for word in PASSENGERS.split()]
    ds = pd.date_range("1949-01-31", periods=len(y), freq="ME")
    return pd.DataFrame({"unique_id": 1.0, "ds": ds, "y": y})


def main() -> None:
    """Run the example."""
    df = passengers()
    train, test = df.iloc[:-12], df.iloc[-12:].reset_index(drop=True)

    # nf = NeuralForecast(models=[NHITS(h=12, input_size=24)], freq="ME")
    nf = NeuralForecast(models=[TXL(h=12, input_size=24)], freq="ME")
    nf.fit(df=train)
    forecast = nf.predict(level=[80])
    print(forecast.head(3).to_string(index=False))

    naive = train.y.tail(12).to_numpy()
    print("\nMean absolute error over the last year, thousands of passengers:")
    print(f"  TXL             {(forecast['TXL'] - test['y']).abs().mean():.1f}")
    print(f"  the year before {abs(test['y'] - naive).mean():.1f}")

    backtest = nf.cross_validation(df, n_windows=3, step_size=12, level=[80])
    inside = (backtest["y"] >= backtest["TXL-lo-80"]) & (backtest["y"] <= backtest["TXL-hi-80"])
    print(f"\n{backtest['cutoff'].nunique()} backtests of a year each: {inside.mean():.0%} inside the 80 % band")

    nf.save("passengers", overwrite=True)
    again = NeuralForecast.load("passengers")
    # What neuralforecast has no counterpart for: new rows move the memory, without a refit.
    again.models[0].forecaster_.update(test.assign(unique_id=1))
    print(f"\nAfter a year more: {again.predict()['TXL'].round().head(3).tolist()}")


if __name__ == "__main__":
    main()
