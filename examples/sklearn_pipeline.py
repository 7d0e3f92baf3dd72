"""Classify rows of a sensor stream in a scikit-learn pipeline: whether a room is occupied.

Reads the occupancy data set (UCI 357) from `TXL_TS_DATA` or shared/data beside the checkout, or makes a room up.

    python examples/sklearn_pipeline.py
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import sklearn
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from txl_ts import PanelSplit, TXLClassifier

SENSORS = ["Temperature", "Humidity", "Light", "CO2", "HumidityRatio"]


def rooms() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Minutes to train on and minutes to judge by: five sensors, and whether somebody was there."""
    folder = Path(os.environ.get("TXL_TS_DATA") or Path(__file__).parents[2] / "shared" / "data") / "occupancy"
    if not (folder / "datatraining.txt").is_file():
        made = made_up_room(4000)
        return made[:3000], made[3000:]
    parts = (pd.read_csv(folder / f"{name}.txt") for name in ("datatraining", "datatest"))
    train, test = (part.assign(date=pd.to_datetime(part["date"])).set_index("date") for part in parts)
    return train, test


def made_up_room(n: int) -> pd.DataFrame:
    """People come and go; air and warmth follow them slowly, the light at once, but not always."""
    rng = np.random.default_rng(0)
    there = np.repeat(rng.integers(0, 2, n // 50 + 1), 50)[:n]
    slow = np.zeros(n)
    for i in range(1, n):
        slow[i] = slow[i - 1] + 0.05 * (there[i] - slow[i - 1])
    light = 450 * (there ^ (rng.random(n) < 0.1)) + rng.normal(0, 20, n)
    columns = [20 + 2 * slow + rng.normal(0, 0.1, n), 25 + slow, light, 450 + 400 * slow + rng.normal(0, 15, n)]
    frame = pd.DataFrame(np.column_stack([*columns, 0.004 + 0.001 * slow]), columns=SENSORS)
    frame.index = pd.date_range("2026-01-01", periods=n, freq="min")
    return frame.assign(Occupancy=there)


def main() -> None:
    """Run the example."""
    train, test = rooms()
    # Rooms are told apart by name, and scikit-learn carries the names to fit, predict and score.
    sklearn.set_config(enable_metadata_routing=True)
    model = TXLClassifier(max_epochs=4, d_model=16, random_state=0)
    model.set_fit_request(series_id=True).set_predict_request(series_id=True).set_score_request(series_id=True)
    pipe = make_pipeline(FunctionTransformer(), model)  # any transformer of rows

    X, y = train[SENSORS], train["Occupancy"]
    room = np.repeat("room 1", len(X))
    splits = PanelSplit(room, n_splits=2, test_size=len(X) // 4)
    search = GridSearchCV(pipe, {"txlclassifier__mem_len": [0, 16]}, cv=splits, error_score="raise")
    search.fit(X, y, series_id=room)
    for params, score in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True):
        print(
            f"memory of {params['txlclassifier__mem_len']:>2} rows: accuracy {score:.3f} on later rows of the same room"
        )

    other = np.repeat("room 2", len(test))
    truth = test["Occupancy"]
    print(f"accuracy on {len(test)} new rows: {search.score(test[SENSORS], truth, series_id=other):.3f}")
    print(f"the rule Light >= 365:     {((test['Light'] >= 365).astype(int) == truth).mean():.3f}")

    said = search.best_estimator_.predict(test[SENSORS], series_id=other)
    print(f"first minutes of room 2: {said[:10].tolist()}")


if __name__ == "__main__":
    main()
