"""Is a longer memory than in training better? ETTh1's validation rows, the same weights with every length.

The look-back is one day: what lies further back, the memory must hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from types import MappingProxyType
from typing import Any

import numpy as np

from txl_ts.bench import report
from txl_ts.bench.ett import N_FITTED, N_TRAIN, N_VALIDATION, load, long_frame
from txl_ts.bench.forecasters import Variant

H = 24
MEM_LEN = 8
MEM_LENS = (0, 1, 2, 4, 8, 12, 16, 32, 64)
FORECASTER = Variant(
    name="TXL",
    params=MappingProxyType(
        {
            "mem_len": MEM_LEN,
            "patch_len": 24,
            "stride": 24,
            "lookback": 24,
            "d_model": 32,
            "max_epochs": 6,
            "patience": 6,
        }
    ),
)
COLUMNS = MappingProxyType(
    {
        "mem_len": "mem_len, visits",
        "reach": "reach",
        "state_nbytes": "state, bytes",
        "pinball": "pinball loss",
        "clamped": "the same with clamp_len",
        "ratio": "loss / trained length's",
        "ratio_spread": "± (max − min)",
        "n_seeds": "seeds",
    }
)


def run(
    data: str | PathLike[str],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    variants: Sequence[Variant] = (FORECASTER,),
    mem_lens: Sequence[int] = MEM_LENS,
    n_windows: int | None = None,
    command: str = "txl-ts bench window --data DIR",
) -> dict[str, Any]:
    """Fit once per seed, and sweep the length of the memory on the validation rows.

    Parameters
    ----------
    data : path
        Folder that holds ``ett/``.
    seeds : sequence of int
    variants : sequence of Variant
        The first is fitted.
    mem_lens : sequence of int
    n_windows : int, optional
        Forecasts per channel and length; of 20,000 in all without it.
    command : str
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`.
    """
    return table_of(
        [one_run(data, variant=variants[0], seed=seed, mem_lens=mem_lens, n_windows=n_windows) for seed in seeds],
        command=command,
    )


def one_run(
    data: str | PathLike[str], *, variant: Variant, seed: int, mem_lens: Sequence[int], n_windows: int | None
) -> dict[str, Any]:
    """Fit, and sweep without and with ``clamp_len``."""
    ett = load(data, name="ETTh1")
    model = variant.make(h=H, freq="1h", random_state=seed)
    model.fit(long_frame(ett, stop=N_FITTED), val_size=N_VALIDATION)
    trained = model.config_.longest_mem_len
    found = model.sweep_memory(mem_lens=mem_lens, n_windows=n_windows)
    clamped = model.sweep_memory(mem_lens=mem_lens, n_windows=n_windows, clamp_len=trained)
    return {
        "seed": seed,
        "trained": trained,
        "mem_lens": list(found.mem_lens),
        "reach": list(found.durations),
        "state_nbytes": list(found.state_nbytes),
        "pinball": found.losses["pinball"].mean(axis=1).tolist(),
        "squared": found.losses["squared"].mean(axis=1).tolist(),
        "clamped": clamped.losses["pinball"].mean(axis=1).tolist(),
        "best": found.best,
        "enough": found.enough,
        "n_forecasts": found.losses["pinball"].shape[1],
        "fit_s": model.fit_seconds_,
    }


def table_of(runs: Sequence[dict[str, Any]], *, command: str) -> dict[str, Any]:
    """Average over seeds; see :func:`run`."""
    first = runs[0]
    at = first["mem_lens"].index(first["trained"])
    loss, clamped = (np.array([one[name] for one in runs]) for name in ("pinball", "clamped"))  # (seeds, lengths)
    ratio = loss / loss[:, at : at + 1]
    rows = [
        {
            "mem_len": mem_len,
            "reach": first["reach"][i],
            "state_nbytes": first["state_nbytes"][i],
            "pinball": float(loss[:, i].mean()),
            "clamped": float(clamped[:, i].mean()),
            "ratio": float(ratio[:, i].mean()),
            "ratio_spread": float(np.ptp(ratio[:, i])),
            "n_seeds": len(runs),
        }
        for i, mem_len in enumerate(first["mem_lens"])
    ]
    best = [str(one["best"]) for one in runs]
    return {
        "name": "window",
        "title": f"ETTh1, validation rows: one model of mem_len {first['trained']}, other lengths at inference",
        "command": command,
        "protocol": [
            f"Rows 0 to {N_TRAIN:,} train, to {N_FITTED:,} choose the epoch and judge here ({first['n_forecasts']:,} "
            f"forecasts of {H} rows per length and seed, 7 channels, {len(runs)} seeds); the test rows are not looked "
            "at. A visit is a day, and so is the look-back: what lies further back, the memory must hold.",
            "Pinball losses over nine quantiles, in deviations of each series. The weights are the same in all rows; "
            f"with clamp_len={first['trained']}, keys further back count as if they lay so far back.",
        ],
        "columns": dict(COLUMNS),
        "rows": rows,
        "runs": list(runs),
        "notes": [f"Least loss, by seed: mem_len {', '.join(best)}."],
        "seeds": [one["seed"] for one in runs],
        "environment": report.environment(),
    }
