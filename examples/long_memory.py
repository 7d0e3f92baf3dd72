"""How much history should I feed? A stream whose next value depends on the one 24 hours before it.

The linear path looks back 4 hours only, so what the forecast knows of yesterday comes from the memory. Emptying the
memory some hours before a forecast shows how far back it helps.

    python examples/long_memory.py
"""

import numpy as np
import pandas as pd

from txl_ts import TXLForecaster

DAY = 24


def echoes(n_rows: int, *, seed: int) -> np.ndarray:
    """Every value is 0.95 times that of 24 rows before, and noise of a deviation of 0.3."""
    noise = np.random.default_rng(seed).normal(size=n_rows) * 0.3
    y = noise.copy() * 3
    for row in range(DAY, n_rows):
        y[row] = 0.95 * y[row - DAY] + noise[row]
    return y


def main() -> None:
    """Fit, measure, print."""
    n_rows = 1200
    stamps = pd.date_range("2024-01-01", periods=n_rows, freq="h")
    parts = [pd.DataFrame({"unique_id": f"s{i}", "ds": stamps, "y": echoes(n_rows, seed=i)}) for i in range(4)]
    sizes = {"patch_len": 4, "stride": 4, "mem_len": 8, "n_layers": 1, "lookback": 4}
    model = TXLForecaster(
        h=1, freq="1h", quantiles=(0.5,), d_model=32, dropout=0.0, learning_rate=5e-3, max_epochs=6, **sizes
    )
    model.fit(pd.concat(parts, ignore_index=True), val_size=300)

    found = model.effective_context(loss="squared", n_origins=80)
    print(found)
    print(
        found.table()[["context_rows", "context", "memory_squared", "history_squared"]].round(3).to_string(index=False)
    )


if __name__ == "__main__":
    main()
