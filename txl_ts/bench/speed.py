"""What a carried memory saves: seconds, bytes and memory on one machine, in one run."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from txl_ts.bench import ett, report

if TYPE_CHECKING:
    from txl_ts.estimators.forecaster import TXLForecaster

H = 96
COLUMNS = {"what": "what", "value": "value", "unit": "unit", "beside": "beside it", "ratio": "ratio"}
_UPDATES, _WALKS, _ORIGINS = 300, 10, 20
# Peaks are read from /proc: getrusage's outlives the exec that starts the process. Linux only.
_FRAME = """
import re
import numpy as np, pandas as pd
n_series, n_rows, epochs = {n_series}, {n_rows}, {epochs}
rng = np.random.default_rng(0)
from txl_ts import TXLForecaster
from txl_ts.frames import read_long
df = pd.DataFrame({{
    "unique_id": np.repeat(np.arange(n_series), n_rows),
    "ds": np.tile(np.arange(n_rows), n_series),
    "y": rng.normal(size=n_series * n_rows).astype("float32").cumsum(),
}})
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
model = TXLForecaster(h=24, season_length=24, max_epochs=epochs, quantiles=(0.1, 0.5, 0.9))
before = peak()
read_long(df, freq=1)
read = peak()
model.fit(df, val_size=240)
print(before, read, peak(), df.memory_usage().sum() / 1024, model.params_["state_nbytes"] * n_series / 1024)
"""


def run(
    data: str | PathLike[str], *, seeds: tuple[int, ...] = (0,), training_rows: bool = True, command: str | None = None
) -> dict[str, Any]:
    """Measure, on ETTh1 with the default forecaster.

    Parameters
    ----------
    data : path
        Folder that holds ``ett/``.
    seeds : tuple of int
        The first is used.
    training_rows : bool
        Measure training memory at 0.5 and 5 million rows too: minutes.
    command : str, optional
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`.
    """
    from txl_ts.estimators.forecaster import TXLForecaster

    frame = ett.long_frame(ett.load(data, name="ETTh1"))
    fitted_rows = frame[frame.groupby("unique_id").cumcount() < ett.N_FITTED]
    model = TXLForecaster(h=H, freq="1h", max_epochs=1, random_state=seeds[0])
    model.fit(fitted_rows, val_size=ett.N_VALIDATION)
    rows = [_import_row(), _state_row(model), *_update_rows(model, frame), *_backtest_rows(model, frame)]
    if training_rows:
        rows += _training_rows()
    return {
        "name": "speed",
        "title": "What a carried memory saves",
        "command": command or "txl-ts bench speed --data DIR",
        "protocol": [
            f"ETTh1 (7 series), default forecaster at h {H}, fitted on {ett.N_FITTED:,} rows; medians of {_UPDATES} "
            "single-row updates. Peak memory is the resident set's, in a process of its own, one epoch.",
        ],
        "columns": COLUMNS,
        "rows": rows,
        "notes": [],
        "environment": report.environment(),
    }


def _row(what: str, value: float, unit: str, beside: str = "", ratio: float | None = None) -> dict[str, Any]:
    return {"what": what, "value": value, "unit": unit, "beside": beside, "ratio": ratio}


def _import_row() -> dict[str, Any]:
    code = "import resource as r; {}; print(r.getrusage(r.RUSAGE_SELF).ru_utime + r.getrusage(r.RUSAGE_SELF).ru_stime)"
    run_once = [
        min(_python(code.format(line))[0] for _ in range(5)) for line in ("pass", "import txl_ts", "import torch")
    ]
    bare, ours, torch = run_once
    return _row("import txl_ts, CPU time", 1e3 * (ours - bare), "ms", f"import torch: {1e3 * (torch - bare):.0f} ms")


def _state_row(model: TXLForecaster) -> dict[str, Any]:
    params = model.params_
    beside = f"reach {params['reach']} rows, look-back {params['lookback']} rows; budget 128 KiB"
    return _row("state of one stream", params["state_nbytes"] / 1024, "KiB", beside, params["state_nbytes"] / 2**17)


def _update_rows(model: TXLForecaster, frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    one = frame[frame["unique_id"] == "OT"]
    new = [one.iloc[i : i + 1] for i in range(ett.N_FITTED, ett.N_FITTED + _UPDATES)]
    update, predict = [], []
    for row in new:
        update.append(_seconds(partial(model.update, row)))
        predict.append(_seconds(lambda: model.predict(ids=["OT"])))
    history = one.iloc[: ett.N_FITTED + _UPDATES]
    walked = float(np.median([_seconds(lambda: model.predict(df=history)) for _ in range(_WALKS)]))
    kept, again = model.predict(ids=["OT"]), model.predict(df=history)
    apart = float(np.abs(kept["TXL"] - again["TXL"]).max())
    moved, read = float(np.median(update)), float(np.median(predict))
    yield _row("update() of one row", 1e3 * moved, "ms")
    yield _row(
        "predict() after it", 1e3 * read, "ms", f"predict(df=whole history): {1e3 * walked:.1f} ms", walked / read
    )
    yield _row(
        "update() and predict()",
        1e3 * (moved + read),
        "ms",
        f"the same forecasts: apart by {apart:.1e} deviations at most",
        walked / (moved + read),
    )


def _backtest_rows(model: TXLForecaster, frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    n_windows = ett.N_TEST - H + 1
    batches: list[Any] = []
    once = _seconds(
        lambda: batches.extend(model.cross_validation(frame, n_windows=n_windows, use_fitted=True, output="batches"))
    )
    one_pass = {(b.ids[i], int(b.ordinals[i])): b.forecast[i] for b in batches for i in range(len(b.ids))}
    rows = frame.groupby("unique_id").cumcount()
    origins = np.linspace(ett.N_FITTED - 1, ett.N_ROWS - H - 1, _ORIGINS).astype(int)
    seconds, apart = 0.0, 0.0
    for origin in origins:
        cut = frame[rows <= origin]
        start = time.perf_counter()
        slow = model.predict(df=cut, quantiles=model.config_.quantiles)
        seconds += time.perf_counter() - start
        for name, part in slow.groupby("unique_id"):
            wanted = part[[f"TXL_ql{q:g}" for q in model.config_.quantiles]].to_numpy()
            apart = max(apart, float(np.abs(wanted - one_pass[name, origin]).max()))
    every = seconds / len(origins) * n_windows
    yield _row(
        f"backtest of {n_windows:,} origins × 7 series × {H} steps, one pass",
        once,
        "s",
        f"origin by origin: {every:,.0f} s (from {_ORIGINS} origins; forecasts apart by {apart:.1e} deviations)",
        every / once,
    )


def _training_rows() -> Iterator[dict[str, Any]]:
    for n_series in (50, 500):
        code = _FRAME.format(n_series=n_series, n_rows=10_000, epochs=1)
        before, read, peak, frame, state = (kib / 1024 for kib in _python(code))
        yield _row(
            f"peak memory of a process that fits {n_series * 10_000 / 1e6:g} million rows",
            peak,
            "MiB",
            f"{before:,.0f} before (the frame: {frame:,.0f}), {read:,.0f} after reading; state of {n_series} series: "
            f"{state:,.0f}",
        )


def _python(code: str) -> tuple[float, ...]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return tuple(float(word) for word in done.stdout.split())


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
