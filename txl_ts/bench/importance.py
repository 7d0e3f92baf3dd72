"""Memory by importance beside FIFO at equal slots, on real rows: the difference of the negative log-likelihood.

The look-back is one row, so that all that lies further back must come from memory or from the running normaliser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import torch

from txl_ts.bench import does_memory_help, report
from txl_ts.bench.baselines import FloatArray
from txl_ts.bench.does_memory_help import Case, Fits, Rows, cases_named, chosen_fits, difference, fitted, in_deviations
from txl_ts.bench.forecasters import Variant, parameter_count
from txl_ts.bench.kept import KeptFits
from txl_ts.errors import ShapeError
from txl_ts.laws import student_t_nll
from txl_ts.walk import walk

H = 8
# Rows of the window, and slots beside it.
MEM_LEN, N_SLOTS = 16, 16
FIFO, IMPORTANCE, SHORT = "fifo", "importance", "fifo, window alone"
COLUMNS = MappingProxyType(
    {
        "set": "set",
        "model": "memory",
        "slots": "window + slots per layer",
        "state_nbytes": "state, bytes",
        "validation_nll": "val NLL",
        "test_nll": "test NLL",
        "test_nll_spread": "± (max − min)",
        "difference": "NLL − fifo's, nats",
        "low": "95 % from",
        "high": "to",
        "difference_percent": "the same, % of fifo's",
        "verdict": "verdict",
        "added": "NLL − window alone's, nats",
        "added_low": "95 % from",
        "added_high": "to",
        "learning_rate": "learning rate",
        "best_epoch": "epochs",
        "n_seeds": "seeds",
        "n_parameters": "parameters",
        "train_s": "training, CPU s",
    }
)
# What validation chooses among, for each contender on each set.
CHOICES: tuple[Mapping[str, Any], ...] = (
    MappingProxyType({"learning_rate": 1e-3}),
    MappingProxyType({"learning_rate": 3e-3}),
)
# A density says nothing of a series that stands still: the narrower the law, the better, without end.
MOST_UNCHANGED = 0.2
_SIZES: Mapping[str, Any] = MappingProxyType(
    {
        "distribution": "student_t",
        "quantiles": (0.5,),
        "d_model": 32,
        "n_layers": 2,
        "patch_len": 1,
        "stride": 1,
        "lookback": 1,
        "dropout": 0.1,
        "max_epochs": 8,
        "patience": 8,
        # Four blocks of the slots: gradients end at the segment.
        "segment_len": 32,
    }
)


def contenders(case: Case) -> tuple[Variant, ...]:
    """FIFO, FIFO with the window of importance alone, and importance with as many rows to attend to as the first."""
    slots = {"memory": "importance", "memory_params": {"n_slots": N_SLOTS}}
    return (
        Variant(name=FIFO, params={**case.params, "mem_len": MEM_LEN + N_SLOTS}),
        Variant(name=SHORT, params={**case.params, "mem_len": MEM_LEN}),
        Variant(name=IMPORTANCE, params={**case.params, "mem_len": MEM_LEN, **slots}),
    )


def run(
    data: str | PathLike[str],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    sets: Sequence[str] = (),
    choices: Sequence[Mapping[str, Any]] = CHOICES,
    kept: str | PathLike[str] | None = None,
    from_kept: bool = False,
    variants: Sequence[Any] | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Fit and judge all contenders on each set.

    Parameters
    ----------
    data : path
        Folder that holds ``ett/``, ``skab/`` and ``market/``.
    seeds : sequence of int
        One fit per seed; the first one chooses the configuration.
    sets : sequence of str
        Names, of all by default.
    choices : sequence of mapping
        Arguments of the forecaster that validation chooses among.
    kept : path, optional
        Folder of the fits that are finished: each is kept there at once, and found again by the next call.
    from_kept : bool
        Fit nothing: the table of what is there.
    variants
        Not used.
    command : str, optional
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`.

    Raises
    ------
    ParameterError
        If a set is not known.
    FrameError
        If a file is not there.
    """
    del variants
    cases = cases_named(sets, CASES)
    fits = Fits(Path(data), KeptFits(kept, "importance"), from_kept=from_kept, measure=fit_and_score)
    table: list[dict[str, Any]] = []
    for n in range(1, len(seeds) + 1):  # every set gets its first seed before any gets its second
        table = [row for case in cases for row in compare(case, fits, seeds=seeds[:n], choices=choices)]
    return {
        "name": "importance",
        "title": "Memory by importance beside FIFO at equal slots",
        "command": command or "txl-ts bench importance --data DIR",
        "protocol": [
            f"A row of a layer attends to itself and {MEM_LEN + N_SLOTS} others: the rows before it (fifo), or "
            f"{MEM_LEN} rows before it and {N_SLOTS} slots; the window alone shows what the slots add. Everything else "
            "is equal: look-back and token of one row, two layers of width 32, eight epochs, segments of 32 rows. The "
            f"learning rate is {_chosen(choices)}; each fit chooses its epoch on the validation rows, and test rows "
            "are walked once.",
            f"NLL: negative logarithm, in nats, of the density of Student's law that was forecast for each of {H} "
            "steps ahead, at the value that came, mean over the steps and over all origins of the test rows; values in "
            "deviations of each series' fitted rows. Another unit would shift all of them alike, so differences are in "
            "nats, and per cent are only given where fifo's NLL is positive. The difference is paired by series and "
            "origin; its 95 % interval adds the variance between blocks of neighbouring origins to that between seeds. "
            "An interval that holds 0 is a tie.",
            f"Series of which {100 * MOST_UNCHANGED:.0f} % of the fitted rows or more repeat the row before are left "
            "out: a density says nothing of a value that stands still.",
        ],
        "columns": dict(COLUMNS),
        "rows": table,
        "notes": _verdicts(table) + _not_done(table) + report.still_missing(fits.n_missing, of=fits.n_asked),
        "seeds": list(seeds),
        "environment": report.environment(),
    }


def compare(
    case: Case, fits: Fits, *, seeds: Sequence[int], choices: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Give the rows of the table for one set, of the fits that are there."""
    table: list[dict[str, Any]] = []
    of_fifo: dict[int, dict[str, Any]] = {}
    of_window: dict[int, dict[str, Any]] = {}
    for variant in contenders(case):
        found = chosen_fits(case, fits, variant, seeds=seeds, choices=choices, score="validation_nll")
        if not found:
            continue
        row = _summary(list(found.values()))
        if variant.name == FIFO:
            of_fifo = found
        elif seeds_of_both := [seed for seed in found if seed in of_fifo]:
            mean, half = difference(found, of_fifo)
            row |= {"difference": mean, "low": mean - half, "high": mean + half}
            row["verdict"] = "tie" if abs(mean) <= half else "worse" if mean > 0 else "better"
            base = float(np.mean([of_fifo[seed]["test_nll"] for seed in seeds_of_both]))
            row |= {"difference_percent": 100 * mean / base} if base > 0 else {}
        if variant.name == SHORT:
            of_window = found
        elif variant.name == IMPORTANCE and any(seed in of_window for seed in found):
            mean, half = difference(found, of_window)
            row |= {"added": mean, "added_low": mean - half, "added_high": mean + half}
        table.append(row)
    return table


def fit_and_score(case: Case, rows: Rows, *, variant: Variant, seed: int) -> tuple[dict[str, Any], FloatArray]:
    """Fit one forecaster; gives its scores, and its NLL by series and origin of the rows that are judged.

    Parameters
    ----------
    case : Case
    rows : Rows
    variant : Variant
    seed : int

    Returns
    -------
    scores : dict
    nll : ndarray of shape (n_series, n_origins)
    """
    forecaster, train_s = fitted(case, rows, variant=variant, seed=seed)
    model: Any = forecaster
    nll = likelihood(model, rows.frame, n_rows=case.val_size + rows.n_judged)
    validation, test = nll[:, : case.val_size - case.h + 1], nll[:, case.val_size :]
    scores = {
        "set": case.name,
        "model": variant.name,
        "seed": seed,
        "validation_nll": float(np.nanmean(validation)),
        "test_nll": float(np.nanmean(test)),
        "slots": _slots(variant.params),
        "state_nbytes": int(model.params_["state_nbytes"]),
        "n_parameters": parameter_count(model),
        "freedom": model._model.head.freedom,
        "best_epoch": model.history_.best_epoch,
        "validation_losses": list(model.history_.validation),
        "learning_rate": variant.params["learning_rate"],
        "train_s": train_s,
    }
    return scores, test


def likelihood(model: Any, frame: pd.DataFrame, *, n_rows: int) -> FloatArray:
    """Negative logarithm of the density of what came, of each origin whose horizon lies in the last rows.

    Each series is walked once, from an empty memory.

    Parameters
    ----------
    model : TXLForecaster
        Fitted with ``distribution="student_t"``, one target, no covariates.
    frame : DataFrame
        Whole history.
    n_rows : int
        Last rows of each series.

    Returns
    -------
    ndarray of shape (n_series, n_rows − h + 1)
        Means over the steps ahead, in nats, by series and origin; NaN where nothing came.
    """
    panel, net, h = model._read_more(frame, continues=False), model._model, model.config_.h
    if len(panel.lengths) != panel.n_series:
        raise ShapeError(f"{panel.n_series} series have {len(panel.lengths)} pieces; fill their gaps, or cut them.")
    runs = np.split(panel.values, panel.offsets[1:-1])
    first = panel.lengths - n_rows - 1
    freedom = torch.tensor(net.head.freedom, dtype=torch.float64)
    nll = np.full((len(runs), n_rows - h + 1), np.nan)
    for stretch in walk(net, runs, None, wanted_from=first):
        laws = torch.from_numpy(stretch.y[..., 0, :]).double()  # (B, T, h, 2)
        for lane, law in zip(stretch.lanes, laws, strict=True):
            origin = stretch.row + np.arange(len(law)) - first[lane]
            inside = (origin >= 0) & (origin < nll.shape[1])
            ahead = stretch.row + np.flatnonzero(inside)[:, None] + np.arange(1, h + 1)
            y = torch.from_numpy(runs[lane][ahead]).double()
            each = student_t_nll(y, *law[inside].unbind(-1), freedom=freedom).numpy()
            there = np.isfinite(each)
            mean = np.where(there, each, 0).sum(axis=1) / np.maximum(there.sum(axis=1), 1)
            nll[lane, origin[inside]] = np.where(there.any(axis=1), mean, np.nan)
    return nll


# -- the sets ---------------------------------------------------------------------------------------------------------

_REAL = {case.name: case for case in does_memory_help.CASES}


def _last_rows(data: Path, *, name: str, n_rows: int | None, n_judged: int | None) -> Rows:
    """Give the last rows of the series of a set that move."""
    rows = _REAL[name].read(data)
    n_judged = n_judged or rows.n_judged
    count = rows.frame.groupby("unique_id", sort=False).cumcount(ascending=False)
    frame = rows.frame if n_rows is None else rows.frame[count < n_rows]
    return in_deviations(moving(frame, n_judged=n_judged), n_judged=n_judged)


def moving(frame: pd.DataFrame, *, n_judged: int) -> pd.DataFrame:
    """Keep the series of which few fitted rows repeat the row before."""
    count = frame.groupby("unique_id", sort=False).cumcount(ascending=False)
    by = frame[count >= n_judged].groupby("unique_id", sort=False)["y"]
    unchanged = by.agg(lambda y: float((np.diff(y) == 0).mean()))
    return frame[frame["unique_id"].map(unchanged) < MOST_UNCHANGED].reset_index(drop=True)


def _case(name: str, *, called: str, val_size: int, n_rows: int | None = None, n_judged: int | None = None) -> Case:
    real = _REAL[name]
    lengths = {key: real.params[key] for key in ("season_length", "half_life")}
    read = partial(_last_rows, name=name, n_rows=n_rows, n_judged=n_judged)
    return replace(real, name=called, h=H, read=read, val_size=val_size, params={**_SIZES, **lengths})


CASES = (
    _case("ETTh2", called="ETTh2", val_size=_REAL["ETTh2"].val_size),
    _case("SKAB", called="SKAB", val_size=_REAL["SKAB"].val_size),
    _case("Bitcoin by the minute", called="12000 minutes of Bitcoin", val_size=2_000, n_rows=12_000, n_judged=2_400),
)


# -- telling ----------------------------------------------------------------------------------------------------------


def _chosen(choices: Sequence[Mapping[str, Any]]) -> str:
    rates = " or ".join(f"{choice['learning_rate']:g}" for choice in choices)
    return rates if len(choices) == 1 else f"{rates}, chosen by the first seed on the validation rows"


def _slots(params: Mapping[str, Any]) -> str:
    return f"{params['mem_len']} + {params.get('memory_params', {}).get('n_slots', 0)}"


def _summary(fits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    test = [fit["test_nll"] for fit in fits]
    means = {key: float(np.mean([fit[key] for fit in fits])) for key in ("validation_nll", "test_nll", "train_s")}
    spread = {"test_nll_spread": max(test) - min(test)} if len(test) > 1 else {}
    same = {key: fits[0][key] for key in ("set", "model", "slots", "state_nbytes", "n_parameters", "learning_rate")}
    epochs = {"best_epoch": ", ".join(str(fit["best_epoch"]) for fit in fits)}
    return same | means | spread | epochs | {"n_seeds": len(fits)}


def _verdicts(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say per contender on how many sets it is better than FIFO."""
    notes = []
    for name in dict.fromkeys(row["model"] for row in table if "verdict" in row):
        said = [row["verdict"] for row in table if row["model"] == name]
        notes.append(
            f"{name} against {FIFO}: better on {said.count('better')} of {len(said)} sets, ties on "
            f"{said.count('tie')}, worse on {said.count('worse')}."
        )
    return notes


def _not_done(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say how many fits were still getting better when their epochs were over."""
    chosen = [int(epoch) for row in table for epoch in row["best_epoch"].split(", ")]
    n_epochs = int(_SIZES["max_epochs"])
    if n_epochs not in chosen:
        return []
    return [
        f"{chosen.count(n_epochs)} of {len(chosen)} fits chose the last of their {n_epochs} epochs: these are models "
        "that more training would still make better, all contenders with the same number of updates."
    ]
