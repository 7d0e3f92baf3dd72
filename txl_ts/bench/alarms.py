"""How many alarms a budget gives on normal rows, and what autocorrelation, drift and extrapolation make of it."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.bench import report
from txl_ts.calibration import Calibration, exceedance_band
from txl_ts.errors import TxlWarning

COLUMNS = {
    "process": "process",
    "n": "calibration rows",
    "alpha": "budget α",
    "tail": "tail",
    "median": "alarms ÷ budget, median",
    "low": "5 %",
    "high": "95 %",
    "mean": "mean",
    "band": "99 % band ÷ budget",
    "inside": "runs inside",
    "inside_effective": "inside by effective size",
    "seconds_s": "seconds",
}
N_ROWS, N_RUNS = 1_000_000, 40

Floats = NDArray[np.float64]
Draw = Callable[..., Floats]


def run(
    data: str | PathLike[str] | None = None,
    *,
    seeds: tuple[int, ...] = (0,),
    n_rows: int = N_ROWS,
    n_runs: int = N_RUNS,
    command: str | None = None,
) -> dict[str, Any]:
    """Simulate normal rows and count their alarms; needs no data.

    Parameters
    ----------
    data : path, optional
        Not used.
    seeds : tuple of int
        The first draws the runs.
    n_rows : int
        Normal rows after the calibration, of each run.
    n_runs : int
        Runs, each with a calibration of its own.
    command : str, optional
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`.
    """
    rows = [
        _row(name, draw, n, alpha, tail, seed=seeds[0], n_rows=n_rows, n_runs=n_runs)
        for name, draw, n, alpha, tail in _cases()
    ]
    rows += [
        _online(name, seed=seeds[0], n_runs=max(2, n_runs // 10), n_rows=max(2_000, n_rows // 50))
        for name in ("off", "on", "naive")
    ]
    return {
        "name": "alarms",
        "title": "Alarms on normal rows",
        "command": command or "txl-ts bench alarms",
        "protocol": [
            f"Scores are |x| of a simulated process. Each of {n_runs} runs calibrates on its first rows and counts "
            f"alarms in the {n_rows:,} that follow; 1 is the budget. The plain band is the beta-binomial one of the "
            "calibration size, as if rows were independent; the wider one is `expected_alarms`, by their effective "
            f"size. Online rows are counted in the second half of {max(2_000, n_rows // 50):,}.",
        ],
        "columns": COLUMNS,
        "rows": rows,
        "notes": [
            "AR(1) ρ: every row is ρ times the one before plus noise, distributed as the independent rows. From ρ .99 "
            "on, a DependentRowsWarning is raised: the calibration rows tell as much as a few independent ones.",
            "Spread + 5 %: the rows after the calibration are that much wider, as when a sensor ages.",
            "gpd: the level comes from a generalised Pareto tail above the highest tenth; TailWarning is raised.",
            "Alarms of a process with autocorrelation come in clumps: episodes are fewer than rows.",
        ],
        "environment": report.environment(),
    }


def _cases() -> list[tuple[str, Draw, int, float, str]]:
    independent = _process()
    cases = [("independent", independent, n, 1e-4, "empirical") for n in (9_999, 29_999, 99_999)]
    cases += [("independent", independent, n, 1e-4, "gpd") for n in (1_000, 2_000, 9_999)]
    cases.append(("Student t, 4 degrees", _process(heavy=True), 2_000, 1e-4, "gpd"))
    cases += [(f"AR(1) ρ {rho}", _process(rho=rho), 9_999, 1e-3, "empirical") for rho in (0.0, 0.5, 0.9, 0.99, 0.999)]
    cases += [
        (f"spread + {round(100 * wider)} %", _process(wider=wider), 9_999, 1e-3, "empirical")
        for wider in (0.02, 0.05, 0.1, 0.2)
    ]
    return cases


def _process(*, rho: float = 0.0, wider: float = 0.0, heavy: bool = False) -> Draw:
    """Make a process; calibration rows (``is_later=False``) are never wider."""

    def draw(rng: np.random.Generator, n: int, *, is_later: bool = True) -> Floats:
        noise = rng.standard_t(4, n) if heavy else rng.standard_normal(n)
        if rho:
            from scipy.signal import lfilter

            first = np.array([rho * rng.standard_normal()])
            noise, _ = lfilter([math.sqrt(1 - rho * rho)], [1.0, -rho], noise, zi=first)
        return np.abs(noise) * (1 + wider * is_later)

    return draw


def _row(
    name: str, draw: Any, n: int, alpha: float, tail: str, *, seed: int, n_rows: int, n_runs: int
) -> dict[str, Any]:
    start = time.perf_counter()
    ratios, n_expected = [], 0
    for i in range(n_runs):
        rng = np.random.default_rng([seed, i, n, round(1 / alpha)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TxlWarning)
            calibration = Calibration(draw(rng, n, is_later=False), contamination=alpha, tail=tail)
        alarms = int(np.count_nonzero(draw(rng, n_rows) >= calibration.threshold))
        ratios.append(float(alarms / (n_rows * alpha)))
        fewest, most = calibration.expected_alarms(n_rows)
        n_expected += fewest <= alarms <= most
    row = {"process": name, "n": n, "alpha": f"{alpha:g}", "tail": tail, **_spread(ratios)}
    if alpha * (n + 1) >= 1 - 1e-9:
        low, high = (one / (n_rows * alpha) for one in exceedance_band(n_calibration=n, alpha=alpha, n_rows=n_rows))
        inside = sum(low - 1e-9 <= ratio <= high + 1e-9 for ratio in ratios)
        row |= {"band": f"{low:.2f} … {high:.2f}", "inside": f"{inside} of {n_runs}"}
        row["inside_effective"] = f"{n_expected} of {n_runs}"
    return row | {"seconds_s": time.perf_counter() - start}


def _online(mode: str, *, seed: int, n_runs: int, n_rows: int) -> dict[str, Any]:
    """Walk row by row: a fixed table, the online update, and one that simply leaves out what alarms."""
    start, alpha, n = time.perf_counter(), 0.01, 999
    ratios = []
    for i in range(n_runs):
        rng = np.random.default_rng([seed, i, 7])
        scores, rows = np.abs(rng.standard_normal(n)), np.abs(rng.standard_normal(n_rows))
        alarms = _naive(scores, rows, alpha) if mode == "naive" else _walked(scores, rows, alpha, online=mode == "on")
        ratios.append(float(alarms[n_rows // 2 :].mean() / alpha))
    names = {
        "off": "independent, not updated",
        "on": "independent, online",
        "naive": "independent, online, alarms left out",
    }
    row = {"process": names[mode], "n": n, "alpha": f"{alpha:g}", "tail": "empirical"}
    return row | _spread(ratios) | {"seconds_s": time.perf_counter() - start}


def _walked(scores: Floats, rows: Floats, alpha: float, *, online: bool) -> NDArray[np.bool_]:
    calibration = Calibration(scores, contamination=alpha, online=online)
    state, found = calibration.open(), np.empty(len(rows), bool)
    for i, score in enumerate(rows.tolist()):
        p, _, state = calibration.step(score, state)
        found[i] = p <= alpha
    return found


def _naive(scores: Floats, rows: Floats, alpha: float) -> NDArray[np.bool_]:
    ring, place, found = scores.copy(), 0, np.empty(len(rows), bool)
    for i, score in enumerate(rows.tolist()):
        found[i] = (1 + np.count_nonzero(ring >= score)) / (len(ring) + 1) <= alpha
        if not found[i]:
            ring[place] = score
            place = (place + 1) % len(ring)
    return found


def _spread(ratios: list[float]) -> dict[str, float]:
    low, median, high = np.quantile(ratios, [0.05, 0.5, 0.95])
    return {"median": float(median), "low": float(low), "high": float(high), "mean": float(np.mean(ratios))}
