"""Make the golden files of a release, once: they stay as they are, and every later version must read them.

python tests/golden/make.py 0.1.0
"""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from txl_ts import TXLForecaster
from txl_ts.runtime import StreamSession

N_LATER = 30


def rows():
    """Two hourly series with a gap and missing values; the last rows come later, through the graph."""
    hour = np.arange(200)
    frames = []
    for i, name in enumerate(("pump-1", "pump-2")):
        y = 40 * i + 5 * np.sin(2 * np.pi * (hour + 5 * i) / 24) + np.cos(hour / 3.7)
        frame = pd.DataFrame({"unique_id": name, "ds": pd.date_range("2026-01-01", periods=200, freq="h"), "y": y})
        frame.loc[frame.index % 17 == 5, "y"] = np.nan
        frames.append(frame.drop(index=range(60, 63)))
    return pd.concat(frames, ignore_index=True)


def main(version):
    """Fit, write all files, and note what they give today."""
    folder = Path(__file__).parent / version
    folder.mkdir()
    df = rows()
    later = df.groupby("unique_id").tail(N_LATER)
    model = TXLForecaster(
        h=3,
        freq="1h",
        quantiles=(0.1, 0.5, 0.9),
        patch_len=4,
        stride=2,
        mem_len=3,
        lookback=12,
        d_model=8,
        n_layers=2,
        n_heads=2,
        d_ff=8,
        max_epochs=2,
        random_state=0,
    )
    model.fit(df.drop(later.index))
    model.save(folder / "model.txl")
    model.export_state(folder / "state.txl")
    model.export_onnx(folder / "graph.onnx")
    session = StreamSession(folder / "graph.onnx")
    session.restore(folder / "state.txl")
    told = []
    for row in later.sort_values(["ds", "unique_id"]).itertuples():
        out = session.step({row.unique_id: {"time": row.ds.value, "values": {"y": row.y}}})[row.unique_id]
        value = None if np.isnan(row.y) else row.y
        told.append({"stream": row.unique_id, "time": row.ds.value, "y": value, "told": out.quantiles.tolist()})
    predicted = model.predict().drop(columns="ds").to_dict(orient="list")
    document = {"predict": predicted, "rows": told}
    (folder / "expected.json").write_text(json.dumps(document, indent=0), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
