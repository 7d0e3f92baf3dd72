"""Build the page: fit a small model, export it, and write the stream, Python's numbers for it, and the runtime.

    pip install "txl-ts[demo]"     # and node with npm
    python examples/browser/build.py site
    python -m http.server --directory site --bind 127.0.0.1 8000

The stream is the glucose sensor that bokeh_sampledata ships (public domain): the model is fitted on its earlier rows,
and the page replays the last days.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from txl_ts import TXLForecaster

HERE = Path(__file__).parent
PAGE = ("index.html", "page.mjs", "chart.mjs")
RUNTIME = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
STEP_MIN, HOUR = 5, 12  # minutes of a row, rows of an hour
SIZES = {"patch_len": 12, "d_model": 16, "n_heads": 2, "lookback": 96, "max_epochs": 3, "random_state": 0}


def glucose() -> pd.Series:
    """Values in mg/dL on a grid of five minutes; NaN where the sensor was silent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bokeh_sampledata's own use of pandas
        from bokeh_sampledata.glucose import data
    values = data["glucose"].astype(float)
    values.index = values.index.round(f"{STEP_MIN}min")
    values = values[~values.index.duplicated()]
    return values.asfreq(f"{STEP_MIN}min")


def fit(past: pd.Series) -> TXLForecaster:
    """Fit on the rows before the replay, an hour ahead."""
    frame = pd.DataFrame({"unique_id": "sensor", "ds": past.index, "y": past.to_numpy()})
    return TXLForecaster(h=HOUR, freq=f"{STEP_MIN}min", **SIZES).fit(frame)


def forecasts(model: TXLForecaster, replay: pd.Series) -> np.ndarray:
    """What torch says after each row, from an empty memory as in the page: (T, h, Q)."""
    session = model.live()
    rows = [{"time": time.to_datetime64(), "values": {"y": value}} for time, value in replay.items()]
    return np.stack([session.step({"sensor": row})["sensor"].quantiles for row in rows])


def runtime(folder: Path, npm: Path | None) -> None:
    """Copy what a browser needs of onnxruntime-web; npm fetches it if no folder of packages is given."""
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        if npm is None:
            shutil.copy(HERE / "package.json", scratch)
            subprocess.run(["npm", "install", "--no-audit", "--no-fund"], cwd=scratch, check=True, capture_output=True)
            npm = Path(scratch, "node_modules")
        for name in RUNTIME:
            shutil.copy(npm / "onnxruntime-web" / "dist" / name, folder)


def main() -> None:
    """Write the site."""
    arguments = argparse.ArgumentParser(description="Build the page.")
    arguments.add_argument("site", type=Path, help="folder to write; made if it is not there")
    arguments.add_argument("--rows", type=int, default=10 * 24 * HOUR, help="rows of the replay")
    arguments.add_argument("--past", type=int, default=30 * 24 * HOUR, help="rows that the model is fitted on")
    arguments.add_argument("--npm", type=Path, help="a node_modules folder that has onnxruntime-web already")
    given = arguments.parse_args()

    values = glucose()
    past, replay = values.iloc[-given.rows - given.past : -given.rows], values.iloc[-given.rows :]
    given.site.mkdir(parents=True, exist_ok=True)
    model = fit(past)
    contract = model.export_onnx(given.site / "model.onnx")
    expected = forecasts(model, replay)
    expected.astype("<f4").tofile(given.site / "expected.bin")
    stream = {
        "name": "Glucose",
        "unit": "mg/dL",
        "lead": "an hour",
        "first_ms": int(replay.index[0].timestamp() * 1000),
        "step_ms": STEP_MIN * 60_000,
        "values": [None if np.isnan(value) else value for value in replay],
    }
    (given.site / "stream.json").write_text(json.dumps(stream, allow_nan=False), encoding="utf-8")
    for name in PAGE:
        shutil.copy(HERE / name, given.site)
    runtime(given.site / "ort", given.npm)
    size = sum(path.stat().st_size for path in given.site.rglob("*") if path.is_file()) / 2**20
    print(f"{len(replay):,} rows to replay, {contract['state_nbytes'] / 1024:.1f} KiB of state, {size:.0f} MB in all.")
    print(f"Serve it: python -m http.server --directory {given.site} --bind 127.0.0.1 8000")


if __name__ == "__main__":
    main()
