"""Whether the same rows in every container, unit and origin of time give the same numbers, to the bit.

It runs in an environment per version of pandas and adds its rows to the report that is there:

    python -m txl_ts.bench.containers --out benchmarks/results
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from txl_ts.bench import report

NAME = "containers"
_START = np.datetime64("2024-02-01T00", "us")
_N_ROWS, _N_FITTED = 400, 390
_FORECASTER = {"h": 6, "freq": "1h", "max_epochs": 1, "patch_len": 6, "d_model": 16, "n_heads": 2, "lookback": 48}
_REGRESSOR = {"max_epochs": 2, "d_model": 16, "n_heads": 2, "random_state": 0}


def series(*, unit: str = "us", shift: int = 0) -> dict[str, Any]:
    """Three hourly series with a few holes, as columns; ``shift`` moves the origin of time by so many hours."""
    rng = np.random.default_rng(0)
    t = np.arange(_N_ROWS)
    y = [i + np.sin(2 * np.pi * (t + 5 * i) / 24) + rng.normal(0, 0.3, _N_ROWS) for i in range(3)]
    values = np.where(rng.random(3 * _N_ROWS) < 0.03, np.nan, np.concatenate(y))
    stamps = (_START + (t + shift) * np.timedelta64(1, "h")).astype(f"datetime64[{unit}]")
    return {"unique_id": np.repeat([1, 2, 3], _N_ROWS), "ds": np.tile(stamps, 3), "y": values}


def forecast_digest(make: Callable[[dict[str, Any]], Any], **rows: Any) -> str:
    """Fit, update and predict; give a hash of the numbers."""
    from txl_ts.estimators import TXLForecaster

    columns = series(**rows)
    is_first = np.arange(len(columns["y"])) % _N_ROWS < _N_FITTED
    first, then = ({name: column[mask] for name, column in columns.items()} for mask in (is_first, ~is_first))
    model = TXLForecaster(**_FORECASTER).fit(make(first))  # type: ignore[arg-type]
    updated, ahead = model.update(make(then)), model.predict()
    return _hashed([*_numbers(updated), *_numbers(ahead)])


def label_digest(make: Callable[[Any], Any]) -> str:
    """Fit a regressor on rows and predict; give a hash of the numbers."""
    from txl_ts.estimators import TXLRegressor

    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = np.cumsum(X[:, 0]) * 0.1 + X[:, 1]
    return _hashed([TXLRegressor(**_REGRESSOR).fit(make(X), y).predict(make(X))])  # type: ignore[arg-type]


def _numbers(frame: Any) -> list[Any]:
    names = frame.column_names if isinstance(frame, pa.Table) else frame.columns
    return [np.asarray(frame[name], np.float32) for name in names if name.startswith("TXL")]


def _hashed(arrays: list[Any]) -> str:
    parts = (np.ascontiguousarray(array, np.float32).tobytes() for array in arrays)
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def run_rows() -> Iterator[dict[str, str]]:
    """Give a row per container, unit and origin, with the libraries that are installed here."""
    names = ["a", "b", "c"]
    frames: dict[str, Callable[[Any], Any]] = {
        f"pandas {pd.__version__}": pd.DataFrame,
        f"polars {pl.__version__}": pl.DataFrame,
        f"pyarrow {pa.__version__}": pa.table,
    }
    arrays: dict[str, Callable[[Any], Any]] = {
        f"numpy {np.__version__}": lambda x: x,
        f"pandas {pd.__version__}": lambda x: pd.DataFrame(x, columns=names),
        f"polars {pl.__version__}": lambda x: pl.DataFrame(x, schema=names),
    }
    for container, make in frames.items():
        yield {"what": "forecaster", "container": container, "rows": "as they are", "digest": forecast_digest(make)}
    for unit in ("s", "ms", "ns"):
        digest = forecast_digest(pd.DataFrame, unit=unit)
        yield {"what": "forecaster", "container": f"pandas {pd.__version__}", "rows": f"unit {unit}", "digest": digest}
    for shift in (-60 * 365 * 24, 24 * 365 * 40):
        digest, what = forecast_digest(pd.DataFrame, shift=shift), f"{shift:+,} hours"
        yield {"what": "forecaster", "container": f"pandas {pd.__version__}", "rows": what, "digest": digest}
    for container, make in arrays.items():
        yield {"what": "regressor", "container": container, "rows": "as they are", "digest": label_digest(make)}


def table(rows: list[dict[str, str]]) -> dict[str, Any]:
    """Lay the rows out, with how many different numbers there are."""
    kinds = {what: len({row["digest"] for row in rows if row["what"] == what}) for what in ("forecaster", "regressor")}
    return {
        "name": NAME,
        "title": "The same numbers from every container",
        "command": "python -m txl_ts.bench.containers --out benchmarks/results",
        "protocol": [
            "Three hourly series with holes: fit on 390 rows each, update with 10, predict 6. A regressor on 300 rows "
            "of three features: fit, predict. The digest is of the bits of all numbers that came back.",
            "The command runs once in an environment per version of pandas, on one machine, and adds its rows.",
        ],
        "columns": {"what": "estimator", "container": "container", "rows": "rows", "digest": "digest of the numbers"},
        "rows": rows,
        "notes": [f"{what}: {n} different digest{'s' * (n > 1)}." for what, n in kinds.items()],
        "environment": report.environment(),
    }


def main() -> None:
    """Run, add the rows to the report, and write it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--anew", action="store_true", help="forget the rows of other versions")
    given = parser.parse_args()
    known = given.out / f"{NAME}.json"
    before = json.loads(known.read_text(encoding="utf-8"))["rows"] if known.is_file() and not given.anew else []
    here = list(run_rows())
    keys = {(row["what"], row["container"], row["rows"]) for row in here}
    rows = [row for row in before if (row["what"], row["container"], row["rows"]) not in keys] + here
    written = table(sorted(rows, key=lambda row: (row["what"], row["container"], row["rows"])))
    report.write(written, out=given.out)
    print(report.markdown(written))


if __name__ == "__main__":
    main()
