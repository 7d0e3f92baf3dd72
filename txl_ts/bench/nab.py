"""The Numenta Anomaly Benchmark: 58 streams, one configuration, official and honest thresholds."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from txl_ts.bench import anomaly_sets, report
from txl_ts.bench.anomaly_sets import LabelledSeries
from txl_ts.bench.detectors import (
    NAIVE,
    Detector,
    Learned,
    isolation_forest,
    outside_range,
    relative_entropy,
    ridge,
    windowed_gaussian,
)
from txl_ts.bench.nab_scorer import PROFILES, Corpus, LabelledRows, label_rows
from txl_ts.calibration import Calibration
from txl_ts.errors import ParameterError, TxlWarning

Floats = NDArray[np.float64]
EPISODE = 100
"""Rows that an alert speaks for: within them, only a higher score alerts again."""
MOST_FALSE = 29
"""False rows of the strict reading: 0.01 % of the rows that are not in a window."""
ALPHAS = (1e-2, 1e-3, 1e-4)
"""Levels of the honest threshold; none is better than another before the labels are seen, so all are shown."""
# The corpus in two halves, for choices on one that are reported on the other.
_FIRST_HALF = ("artificialNoAnomaly", "artificialWithAnomaly", "realAWSCloudwatch", "realAdExchange")

NOVELTY = MappingProxyType(
    {"kind": "novelty", "span": 10**9, "horizons": (24,), "lookback": 64, "half_life": 300, "max_epochs": 0}
)
DEVIATION = MappingProxyType({"kind": "deviation", "max_epochs": 0})
COLUMNS = MappingProxyType(
    {
        "model": "detector",
        "alerts": "alerts",
        "standard": "standard",
        "low_fp": "low FP",
        "low_fn": "low FN",
        "n_false": "false rows",
        "strict": f"at ≤ {MOST_FALSE} false rows",
        "other_half": "by the other half",
        **{f"honest_{alpha:g}": f"honest, {100 * alpha:g} %" for alpha in ALPHAS},
        "spread": "± (max − min)",
        "seconds_s": "seconds",
    }
)


def detectors() -> tuple[Detector, ...]:
    """Give the rows of the table."""
    return (
        *NAIVE,
        Detector("windowed Gaussian", windowed_gaussian),
        Detector("relative entropy (sees the whole file's range)", relative_entropy),
        Detector("isolation forest", isolation_forest, is_random=True),
        Detector("ridge residual", ridge),
        Detector("outside the range so far (no model)", outside_range),
        Detector("TXL, deviation", Learned(DEVIATION), is_random=True),
        Detector("TXL, novelty", Learned(NOVELTY), is_random=True),
    )


def run(
    data: str | PathLike[str],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    variants: Sequence[Detector] | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Score every detector on every file.

    Parameters
    ----------
    data : path
        Folder that holds ``nab/``.
    seeds : sequence of int
        One run per seed; means and spread of the standard score are shown. What is not random runs once.
    variants : sequence of Detector, optional
        Instead of :func:`detectors`; an empty one stands for those of them that do not learn.
    command : str, optional
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`; every single run under ``runs``.
    """
    series = anomaly_sets.nab(data)
    labelled = [label_rows(one.times, one.windows) for one in series if one.times is not None]
    wanted = variants or detectors()
    if variants is not None and not variants:
        wanted = [one for one in wanted if not isinstance(one.scores, Learned)]
    rows, runs = [], []
    for detector in wanted:
        found = []
        for seed in seeds if detector.is_random else seeds[:1]:
            start = time.perf_counter()
            scores = [detector.scores(one, seed) for one in series]
            seconds = time.perf_counter() - start
            found.append([{**row, "seconds_s": seconds} for row in judge(series, labelled, scores)])
            runs += [{"model": detector.name, "seed": seed, **row} for row in found[-1]]
        rows += [{"model": detector.name, **_mean(alike)} for alike in zip(*found, strict=True)]
    return {
        "name": "nab",
        "title": "Numenta Anomaly Benchmark",
        "command": command or "txl-ts bench nab --data DIR",
        "protocol": [
            "58 files, 116 windows, one configuration for all. Scores are causal; the first 15 % of a file, 750 rows "
            "at most, are its probation: models fit to them, and they are not scored. Standard, low FP and low FN are "
            "the official scores: one threshold for the corpus, chosen by the scorer on the labels, as all published "
            "scores have it.",
            f"“One per episode”: of {EPISODE} rows only one that scores above all before it alerts; false rows are "
            "counted as NAB does, each of them. “By the other half”: the threshold of each half of the corpus comes "
            "from the other half (artificial, AWS and AdExchange against the rest), both scores weighted by windows.",
            "Honest: each file's threshold is a level of its own probation scores, by a generalised Pareto tail (the "
            "highest of them where they are too few for one), without any label; one alert per episode.",
        ],
        "columns": dict(COLUMNS),
        "rows": rows,
        "runs": runs,
        "notes": _notes(data),
        "environment": report.environment(),
    }


def judge(
    series: Sequence[LabelledSeries], labelled: Sequence[LabelledRows], scores: Sequence[Floats]
) -> list[dict[str, Any]]:
    """Judge one run twice: each row by itself, and one alert per episode."""
    corpus = Corpus(labelled)
    episodes = {
        "alerts": "one per episode",
        **_official(series, labelled, [one_per_episode(score) for score in scores]),
    }
    for alpha in ALPHAS:
        point = corpus.at([honest_alarms(one, score, alpha=alpha) for one, score in zip(series, scores, strict=True)])
        episodes |= {f"honest_{alpha:g}": point.score, f"honest_{alpha:g}_false": point.n_false}
    return [{"alerts": "each row", **_official(series, labelled, scores)}, episodes]


def one_per_episode(scores: Floats, *, rows: int = EPISODE) -> Floats:
    """Keep the scores that are above all of the last ``rows`` before them; the others become NaN."""
    known = np.where(np.isfinite(scores), scores, -np.inf)
    before = sliding_window_view(np.concatenate([np.full(rows, -np.inf), known]), rows)[:-1].max(axis=1)
    return np.where(known > before, known, np.nan)


def honest_alarms(series: LabelledSeries, scores: Floats, *, alpha: float) -> NDArray[np.bool_]:
    """Alarm by a threshold from the probation rows alone, once per episode."""
    calm = scores[: series.n_train]
    calm = calm[np.isfinite(calm)]
    if not len(calm):
        return np.zeros(len(scores), bool)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TxlWarning)  # of extrapolation: it is what the protocol asks for
            threshold = Calibration(calm, contamination=alpha, tail="gpd").threshold
    except ParameterError:  # too few rows, or scores that do not vary
        threshold = float(np.nextafter(calm.max(), np.inf))
    alarms = np.zeros(len(scores), bool)
    last = -EPISODE
    for i in np.flatnonzero(np.nan_to_num(scores, nan=-np.inf) >= threshold).tolist():
        if i - last >= EPISODE:
            alarms[i], last = True, i
    return alarms


def _official(
    series: Sequence[LabelledSeries], labelled: Sequence[LabelledRows], scores: Sequence[Floats]
) -> dict[str, Any]:
    corpus = Corpus(labelled)
    best = {profile: corpus.best(scores, profile=profile) for profile in PROFILES}
    in_first = [one.name.split("/")[0] in _FIRST_HALF for one in series]
    halves = [[i for i, first in enumerate(in_first) if first is side] for side in (True, False)]
    parts = [(Corpus([labelled[i] for i in half]), [scores[i] for i in half]) for half in halves]
    total = 0.0
    for (here, mine), (there, others) in zip(parts, reversed(parts), strict=True):
        threshold = there.best(others).threshold
        total += here.at([np.nan_to_num(one, nan=-np.inf) >= threshold for one in mine]).score * here.n_windows
    return {
        "standard": best["standard"].score,
        "low_fp": best["reward_low_FP_rate"].score,
        "low_fn": best["reward_low_FN_rate"].score,
        "n_found": best["standard"].n_found,
        "n_false": best["standard"].n_false,
        "strict": corpus.best(scores, most_false=MOST_FALSE).score,
        "other_half": total / corpus.n_windows,
    }


def _mean(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {"alerts": runs[0]["alerts"]}
    for key in runs[0]:
        if key not in ("alerts", "seed"):
            mean = float(np.mean([one[key] for one in runs]))
            row[key] = round(mean) if key.endswith(("false", "found")) else mean
    row["spread"] = float(np.ptp([one["standard"] for one in runs])) if len(runs) > 1 else None
    return row


def _notes(data: str | PathLike[str]) -> list[str]:
    published = json.loads((Path(data) / "nab" / "final_results.json").read_text(encoding="utf-8"))
    ranked = sorted(published.items(), key=lambda item: -item[1]["standard"])
    quoted = ", ".join(f"{name} {scores['standard']:.1f}" for name, scores in ranked)
    return [
        f"Published standard scores, quoted from the benchmark's own table: {quoted}.",
        "The scorer is checked by two of them: the windowed Gaussian and the relative entropy, written anew here, get "
        "what is published (39.65 and 54.64).",
    ]
