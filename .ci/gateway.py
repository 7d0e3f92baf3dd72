"""The gateway install, tried: ``make FOLDER`` in the environment of development, ``step FOLDER`` where torch is not."""

import sys
from pathlib import Path

FOLDER = Path(sys.argv[2])


def make() -> None:
    """Fit a small forecaster; leave its graph, its memories, and what it says after a few more rows."""
    import numpy as np
    import pandas as pd

    from txl_ts import TXLForecaster

    rows = np.arange(400)
    frame = pd.DataFrame({"unique_id": "pump-1", "ds": rows, "y": np.sin(rows * np.pi / 12)})
    model = TXLForecaster(h=3, season_length=24, patch_len=8, d_model=8, n_heads=2, max_epochs=1).fit(frame[:390])
    model.export_onnx(FOLDER / "pump.onnx")
    model.export_state(FOLDER / "pump-state.txl")
    model.update(frame[390:])
    np.save(FOLDER / "after.npy", model.predict()["TXL"].to_numpy())
    np.save(FOLDER / "rows.npy", frame["y"].to_numpy()[390:])


def step() -> None:
    """Restore the memories, step the rows one by one, compare; say how many megabytes are installed."""
    import numpy as np

    from txl_ts.runtime import StreamSession

    session = StreamSession(FOLDER / "pump.onnx")
    session.restore(FOLDER / "pump-state.txl")
    for i, y in enumerate(np.load(FOLDER / "rows.npy")):
        result = session.step({"pump-1": {"time": 390 + i, "values": {"y": float(y)}}})["pump-1"]
    apart = float(np.abs(result.median - np.load(FOLDER / "after.npy")).max())
    heavy = sorted(set(sys.modules) & {"torch", "pandas", "polars", "sklearn", "narwhals"})
    packages = Path(np.__file__).parents[1]
    size = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file()) / 2**20
    print(f"gateway: {size:.0f} MB installed, forecasts apart by {apart:.1e}, heavy modules: {heavy}")
    if apart > 1e-5 or heavy:
        sys.exit("the gateway's forecasts are not the model's, or it loaded what it must not load")


{"make": make, "step": step}[sys.argv[1]]()
