"""Ten thousand ragged series: frame → fitted → forecast, in seconds and bytes, beside another library's preparation."""

from __future__ import annotations

import json
import subprocess
import sys
from os import PathLike
from typing import Any

from txl_ts.bench import report

COLUMNS = {
    "what": "what",
    "seconds_s": "seconds",
    "cpu_s": "CPU seconds",
    "added_MiB": "memory added, MiB",
    "peak_MiB": "peak, MiB",
}
# Each step says its seconds and the peak of the process after it (/proc: Linux only). The last series holds one
# infinite value.
_FRAME = """
import json, re, time, warnings
import numpy as np, pandas as pd
warnings.simplefilter("ignore")
n_series, n_rows = {n_series}, {n_rows}
rng = np.random.default_rng({seed})
lengths = rng.integers(n_rows // 5, 2 * n_rows - n_rows // 5 + 1, n_series)
ids = np.repeat(np.arange(n_series), lengths)
ds = np.concatenate([np.arange(n) for n in lengths])
y = (np.sin(2 * np.pi * (ds + ids % 24) / 24) + 0.3 * rng.normal(size=len(ds))).astype("float32")
df = pd.DataFrame({{"unique_id": ids, "ds": pd.Timestamp("2024-01-01") + pd.to_timedelta(ds, unit="h"), "y": y}})
del ids, ds, y
steps = []
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
class step:
    def __init__(self, what): self.what = what
    def __enter__(self): self.before, self.begin, self.cpu = peak(), time.perf_counter(), time.process_time()
    def __exit__(self, *_):
        times = {{"seconds_s": time.perf_counter() - self.begin, "cpu_s": time.process_time() - self.cpu}}
        grown = {{"added_MiB": round(peak() - self.before), "peak_MiB": round(peak())}}
        steps.append({{"what": self.what, **times, **grown}})
"""
_OURS = (
    _FRAME
    + """
df.loc[len(df) - 1, "y"] = np.inf
import torch
torch.set_num_threads(1)
from txl_ts import TXLForecaster
from txl_ts.frames import read_long
with step("txl-ts: frame read"):
    read_long(df, freq="1h", on_bad_series="skip", warn_cleaned=False)
model = TXLForecaster(h=24, freq="1h", max_epochs=1, on_bad_series="skip")
with step("txl-ts: fit, one epoch"):
    model.fit(df, val_size=24)
with step("txl-ts: forecasts of all series"):
    out = model.predict()
print(json.dumps({{
    "steps": steps, "n_rows": len(df), "skipped": [[str(i), why] for i, why in model.skipped_],
    "n_forecast": int(out["unique_id"].nunique()),
    "state_MiB": model.params_["state_nbytes"] * len(model._fleet) / 2**20,
}}))
"""
)
_PEER = (
    _FRAME
    + """
import neuralforecast
from neuralforecast.tsdataset import TimeSeriesDataset
with step(f"neuralforecast {{neuralforecast.__version__}}: frame → dataset"):
    TimeSeriesDataset.from_df(df, id_col="unique_id", time_col="ds", target_col="y")
print(json.dumps({{"steps": steps}}))
"""
)


def run(
    data: str | PathLike[str] | None = None,
    *,
    n_series: int = 10_000,
    n_rows: int = 500,
    seeds: tuple[int, ...] = (0,),
    peer: str | PathLike[str] | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Measure on made-up series, each process from scratch.

    Parameters
    ----------
    data : path, optional
        Not used.
    n_series, n_rows : int
        Series, and their mean length: a fifth of it to nine fifths.
    seeds : tuple of int
        The first draws the rows.
    peer : path, optional
        Python of an environment that has neuralforecast; its row is left out without it.
    command : str, optional
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`.
    """
    sizes = {"n_series": n_series, "n_rows": n_rows, "seed": seeds[0]}
    ours = _measured(sys.executable, _OURS, **sizes)
    rows = list(ours["steps"])
    if peer is not None:
        rows += _measured(peer, _PEER, **sizes)["steps"]
    return {
        "name": "ragged",
        "title": f"{n_series:,} ragged series",
        "command": command or "txl-ts bench ragged",
        "protocol": [
            f"{n_series:,} hourly series of {n_rows // 5} to {2 * n_rows - n_rows // 5} rows, {ours['n_rows']:,} in "
            "all, as a pandas frame; default forecaster, h 24, one epoch, the last day of each series held out, "
            "one thread.",
            "Memory added is how much the peak of the process rose in that step; every process makes the frame anew.",
        ],
        "columns": COLUMNS,
        "rows": rows,
        "notes": [
            f"One series holds an infinite value: {len(ours['skipped'])} skipped, and named: "
            f"{'; '.join(f'{name}: {why}' for name, why in ours['skipped'])}. {ours['n_forecast']:,} were forecast.",
            f"Of the memory added by the fit, {ours['state_MiB']:,.0f} MiB are the states of all series.",
        ],
        "environment": report.environment(),
    }


def _measured(python: str | PathLike[str], program: str, **sizes: int) -> dict[str, Any]:
    done = subprocess.run([python, "-c", program.format(**sizes)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the measured process failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
