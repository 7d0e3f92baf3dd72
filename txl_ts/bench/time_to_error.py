"""How much training until a forecast is as good as an LSTM's? CPU seconds to equal errors on ETT's validation rows.

Each channel is a lane, one row ahead; the answer is the change from the newest row. All models walk the same segments
with their state carried, at a constant rate: a curve does not depend on when it ends.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl_ts.bench import report
from txl_ts.bench.baselines import LOOK_BACK, EqualContextRidge
from txl_ts.bench.ett import N_FITTED, N_TRAIN, N_VALIDATION, EttSet, load
from txl_ts.bench.kept import KeptFits
from txl_ts.bench.memory import one_thread, updates
from txl_ts.bench.memory_contenders import row_model
from txl_ts.bench.memory_rivals import Recurrent, RowModel, count, of_equal_weights

SEGMENT_LEN = 32
# Set and width.
CELLS = (("ETTh1", 32), ("ETTh2", 32), ("ETTh1", 64))
# Segments that the gradient runs through, an update after so many.
MODELS = MappingProxyType({"TXL": 1, "LSTM": 1, "LSTM, gradient through two segments": 2})
RATES = (1e-3, 3e-3, 1e-2)
# Rows that TXL reaches with its own, and those of the other tables.
RIDGES = (2 * SEGMENT_LEN + 1, LOOK_BACK)
# Draws the weights of the fits that choose the rates, and is not in the table.
PRACTICE_SEED = 100
# Of the lowest error of the better LSTM, and of ours.
FACTORS = (1.05, 1.02, 1.0)
COLUMNS = MappingProxyType(
    {
        "set": "set",
        "width": "width",
        "model": "model",
        "n_parameters": "parameters",
        "rate": "rate",
        "best": "lowest error",
        "spread": "± (max − min)",
        "last": "error at the end",
        **{f"LSTM_{f:g}": f"CPU s to {f:g} × LSTM's lowest" for f in FACTORS},
        **{f"TXL_{f:g}": f"CPU s to {f:g} × TXL's lowest" for f in FACTORS},
        "updates_per_s": "updates / CPU s",
        "rows_per_s": "rows / CPU s",
        "train_s": "whole training, CPU s",
        "n_seeds": "seeds",
    }
)
# Rows before the validation rows that fill the state, and rows per call there: they change no answer.
_BEFORE = _CALL = 256


@dataclass(frozen=True)
class Course:
    """How long is trained, and when is looked.

    Parameters
    ----------
    n_stretches : int
        Of the training rows, side by side: so many lanes per channel.
    n_segments, n_recurrent : int
        Segments that are trained on, by ours and by an LSTM: so that both take about as many seconds.
    n_warm_up : int
        Updates over which the rate rises.
    first_look : int
        Updates before the first look at the validation rows.
    look_factor : float
        Each next look comes after so many times the updates: what seconds are known to.
    """

    n_stretches: int = 4
    n_segments: int = 500
    n_recurrent: int = 2000
    n_warm_up: int = 50
    first_look: int = 5
    look_factor: float = 1.2

    def looks(self, n_updates: int) -> set[int]:
        """Give the updates after which is looked; the last one is among them."""
        found, at = {n_updates}, float(self.first_look)
        while at < n_updates:
            found.add(round(at))
            at *= self.look_factor
        return found


COURSE = Course()


def run(
    data: str | PathLike[str],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    cells: Sequence[tuple[str, int]] = CELLS,
    rates: Sequence[float] = RATES,
    course: Course = COURSE,
    kept: str | PathLike[str] | None = None,
    from_kept: bool = False,
    variants: Sequence[Any] | None = None,
    command: str = "txl-ts bench time-to-error --data DIR",
) -> dict[str, Any]:
    """Train every model per set, width and seed, and tell when it reaches the errors of the others.

    Parameters
    ----------
    data : path
        Folder that holds ``ett/``.
    seeds : sequence of int
        Each draws the weights.
    cells : sequence of (str, int)
        Sets, and widths of our model; an LSTM gets as many weights.
    rates : sequence of float
        Learning rates that each model chooses among, with a seed of its own.
    course : Course
    kept : path, optional
        Folder of the fits that are finished: each is kept there at once, and found again by the next call.
    from_kept : bool
        Fit nothing: the table of what is there.
    variants
        Not used.
    command : str
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`, with the curves under ``runs``.
    """
    del variants
    store = KeptFits(kept, "time_to_error")
    sets = {name: load(data, name=name) for name, _ in cells}
    baselines = [row for ett in sets.values() for row in _baselines(ett, store, from_kept=from_kept)]

    def found(name: str, width: int, model: str, rate: float, seed: int) -> Any:
        of = {"set": name, "width": width, "model": model, "rate": rate, "seed": seed}
        of |= {"course": asdict(course), "segment_len": SEGMENT_LEN}
        fit = store.find(of)
        if fit is None and not from_kept:
            with one_thread():
                fit = store.keep(of, learn(sets[name], width, model, rate=rate, seed=seed, course=course))
        return None if fit is None else of | fit

    runs, practised = [], []
    for name, width in cells:
        chosen = {}
        for model in MODELS:
            tried = [fit for rate in rates if (fit := found(name, width, model, rate, PRACTICE_SEED))]
            practised += tried
            if len(tried) == len(rates):
                chosen[model] = min(tried, key=_lowest)["rate"]
        # Models of a seed come one after the other: a busy machine is busy for all of them.
        fits = [found(name, width, model, rate, seed) for seed in seeds for model, rate in chosen.items()]
        runs += [fit for fit in fits if fit]
    n_fits = len(cells) * len(MODELS) * (len(rates) + len(seeds))
    rows = _summaries(runs)
    return {
        "name": "time_to_error",
        "title": "CPU seconds of training to equal errors, beside an LSTM of equal weights",
        "command": command,
        "protocol": [
            f"ETTh1 and ETTh2, one row ahead, each of 7 channels a lane; rows 0 to {N_TRAIN:,} train, cut into "
            f"{course.n_stretches} stretches side by side ({7 * course.n_stretches} lanes), rows to {N_FITTED:,} are "
            "looked at, the test rows are not. Error: mean squared error in variances of the training rows; all "
            "models answer with the change from the newest row.",
            f"TXL: 2 layers, FIFO memory of {SEGMENT_LEN} rows each. LSTM: 2 layers. All walk segments of "
            f"{SEGMENT_LEN} rows with their state carried: {course.n_segments} of them TXL, {course.n_recurrent} the "
            "LSTMs, which take less per segment. AdamW at a constant rate after a warm-up of "
            f"{course.n_warm_up} updates, chosen for each model, set and width among "
            f"{', '.join(f'{rate:g}' for rate in rates)} by the lowest error of one more seed: for error, not for "
            "speed.",
            f"A look comes after {course.first_look} updates, then each time after {course.look_factor:g} times as "
            "many: seconds are known to that. They are CPU seconds of one thread without the looks, to the first look "
            "at or below the level, means over the seeds that reach it (brackets: how many, if not all). Levels are "
            "per seed: the lowest error of the better LSTM, and TXL's.",
        ],
        "columns": dict(COLUMNS),
        "rows": rows + baselines,
        "runs": runs,
        "practised": practised,
        "notes": _verdicts(runs)
        + _at_any_rate(practised)
        + report.still_missing(n_fits - len(runs) - len(practised), of=n_fits),
        "seeds": list(seeds),
        "course": asdict(course),
        "environment": report.environment(),
    }


def make(model: str, width: int) -> Any:
    """Make an untrained model: ours, or an LSTM of equal weights."""
    ours = row_model(d_model=width, n_layers=2, n_heads=4, d_ff=2 * width, mem_len=SEGMENT_LEN)
    if model == "TXL":
        return ours
    return of_equal_weights(lambda n: Recurrent("lstm", n_channels=1, n_outputs=1, width=n), count(ours))


def learn(ett: EttSet, width: int, model: str, *, rate: float, seed: int, course: Course) -> dict[str, Any]:
    """Train one model; gives its curve: updates, CPU seconds without the looks, and the error, for each look.

    Parameters
    ----------
    ett : EttSet
    width : int
    model : str
        One of ``MODELS``.
    rate : float
    seed : int
    course : Course
    """
    rows = torch.from_numpy(ett.values[:N_FITTED].T.astype(np.float32))[..., None]  # (C, rows, 1)
    n_updates = (course.n_segments if model == "TXL" else course.n_recurrent) // MODELS[model]
    looks, curve, spent = course.looks(n_updates), [], 0.0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = make(model, width)
        losses = _losses(made, _stretches(rows[:, :N_TRAIN], course.n_stretches), len_=SEGMENT_LEN * MODELS[model])
        trained = updates(made, losses, rate=lambda n: rate * min(1.0, n / course.n_warm_up))
        begin = time.process_time()
        for n, _ in enumerate(itertools.islice(trained, n_updates), start=1):
            if n in looks:
                spent += time.process_time() - begin
                curve.append([n, spent, error_on(made, rows)])
                begin = time.process_time()
    n_rows = n_updates * MODELS[model] * SEGMENT_LEN * len(rows) * course.n_stretches
    return {"n_parameters": count(made), "n_updates": n_updates, "n_rows": n_rows, "train_s": spent, "curve": curve}


def _stretches(rows: Tensor, n: int) -> Tensor:
    """Cut (C, rows, 1) into n stretches side by side: (n · C, rows / n, 1)."""
    len_ = rows.shape[1] // n
    return torch.cat([rows[:, i * len_ : (i + 1) * len_] for i in range(n)])


def _losses(model: RowModel, rows: Tensor, *, len_: int) -> Iterator[Tensor]:
    """Walk all rows again and again; gives the mean loss of each call, where gradients stop."""
    while True:
        state = model.init_rows(len(rows))
        for a in range(0, rows.shape[1] - len_, len_):
            x, after = rows[:, a : a + len_], rows[:, a + 1 : a + len_ + 1]
            z, state = model.forward_rows(x, state)
            state = {part: tensor.detach() for part, tensor in state.items()}
            yield (z - (after - x)).square().mean()


def error_on(model: Any, rows: Tensor) -> float:
    """Mean squared error over the validation rows, each forecast from the one before it; leaves the model training."""
    rows = rows[:, N_TRAIN - 1 - _BEFORE :]
    state, square = model.init_rows(len(rows)), []
    model.eval()
    with torch.inference_mode():
        for x, after in zip(rows[:, :-1].split(_CALL, dim=1), rows[:, 1:].split(_CALL, dim=1), strict=True):
            z, state = model.forward_rows(x, state)
            square.append((z - (after - x)).square())
    model.train()
    return float(torch.cat(square, dim=1)[:, _BEFORE:].double().mean())


def _baselines(ett: EttSet, store: KeptFits, *, from_kept: bool) -> list[dict[str, Any]]:
    """Rows of the table for the last value, and for ridges as far as they are there or may be fitted."""
    values = ett.values[:N_FITTED]
    last = float(np.square(np.diff(values[N_TRAIN - 1 :], axis=0)).mean())
    rows: list[dict[str, Any]] = [{"set": ett.name, "model": "last value", "best": last}]
    for look_back in RIDGES:
        of = {"set": ett.name, "model": f"ridge of {look_back:,} rows"}
        found = store.find(of)
        if found is None and not from_kept:
            begin = time.process_time()
            ridge = EqualContextRidge(h=1, look_back=look_back).fit(list(values.T), n_validation=N_VALIDATION)
            train_s = time.process_time() - begin
            about = {"n_parameters": ridge.n_parameters, "train_s": train_s}
            found = store.keep(of, about | {"best": ridge.validation_mse_})
        rows += [of | found] if found else []
    return rows


def reached(curve: Sequence[Sequence[float]], level: float) -> float | None:
    """Give the CPU seconds to the first look at or below a level; None if there is none."""
    return next((seconds for _, seconds, error in curve if error <= level), None)


def _lowest(fit: Mapping[str, Any]) -> float:
    return min(error for _, _, error in fit["curve"])


def _levels(fits: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Give the levels of one seed: of the better LSTM, and of ours."""
    lowest = {model: _lowest(fit) for model, fit in fits.items()}
    bases = {"LSTM": min(error for model, error in lowest.items() if model != "TXL"), "TXL": lowest["TXL"]}
    return {f"{of}_{factor:g}": factor * base for of, base in bases.items() for factor in FACTORS}


def _by_seed(runs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], list[dict[str, Mapping[str, Any]]]]:
    """Group fits: set and width → for each seed the fits by model, where all are there."""
    groups: dict[tuple[str, int], dict[int, dict[str, Mapping[str, Any]]]] = {}
    for one in runs:
        groups.setdefault((one["set"], one["width"]), {}).setdefault(one["seed"], {})[one["model"]] = one
    return {cell: [fits for fits in by.values() if len(fits) == len(MODELS)] for cell, by in groups.items()}


def _summaries(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    table = []
    for seeds in _by_seed(runs).values():
        for model in MODELS if seeds else ():
            fits = [one[model] for one in seeds]
            lowest = [_lowest(fit) for fit in fits]
            row = {key: fits[0][key] for key in ("set", "width", "model", "n_parameters")}
            row |= {"rate": f"{fits[0]['rate']:g}", "best": float(np.mean(lowest))}
            row |= {"spread": max(lowest) - min(lowest)} if len(fits) > 1 else {}
            row["last"] = float(np.mean([fit["curve"][-1][2] for fit in fits]))
            for level in _levels(seeds[0]):
                seconds = [reached(one[model]["curve"], _levels(one)[level]) for one in seeds]
                row[level] = _said(seconds)
            train_s = float(np.mean([fit["train_s"] for fit in fits]))
            row |= {"updates_per_s": fits[0]["n_updates"] / train_s, "rows_per_s": fits[0]["n_rows"] / train_s}
            table.append(row | {"train_s": train_s, "n_seeds": len(fits)})
    return table


def _said(seconds: Sequence[float | None]) -> str:
    there = [one for one in seconds if one is not None]
    if not there:
        return "never"
    return f"{np.mean(there):.2f}" + (f" ({len(there)} of {len(seconds)})" if len(there) < len(seconds) else "")


def _verdicts(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say what was to be shown: the article that started the project has 5 times faster."""
    notes = []
    for (name, width), seeds in _by_seed(runs).items():
        if not seeds:
            continue
        said = [_ratio(seeds, f"LSTM_{factor:g}", f"{factor:g} × an LSTM's lowest error") for factor in FACTORS]
        said += [_ratio(seeds, f"TXL_{factor:g}", f"{factor:g} × TXL's lowest error") for factor in FACTORS]
        notes.append(f"{name}, width {width}, CPU seconds of the faster LSTM / TXL's: {'; '.join(said)}.")
    return [*notes, "Medians over the seeds, and ranges. The article's figure is 5 times."] if notes else []


def _ratio(seeds: Sequence[Mapping[str, Mapping[str, Any]]], level: str, name: str) -> str:
    """Say how many times our seconds the faster LSTM takes: median and range over the seeds where both get there."""
    found, missed = [], {"TXL": 0, "LSTM": 0}
    for fits in seeds:
        at = {model: reached(fit["curve"], _levels(fits)[level]) for model, fit in fits.items()}
        rivals = [seconds for model, seconds in at.items() if model != "TXL" and seconds is not None]
        ours = at["TXL"]
        missed["TXL"] += ours is None
        missed["LSTM"] += not rivals
        if ours is not None and rivals:
            found.append(min(rivals) / ours)
    said = [f"{np.median(found):.1f} ({min(found):.1f} to {max(found):.1f})"] if found else []
    said += [f"{model} never in {n} of {len(seeds)} seeds" for model, n in missed.items() if n]
    return f"to {name} {', '.join(said)}"


def _at_any_rate(practised: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say the same of the practice seed, with the rate that is the fastest to each level."""
    notes = []
    for name, width in dict.fromkeys((fit["set"], fit["width"]) for fit in practised):
        fits = [fit for fit in practised if (fit["set"], fit["width"]) == (name, width)]
        ours = [fit["curve"] for fit in fits if fit["model"] == "TXL"]
        rivals = [fit["curve"] for fit in fits if fit["model"] != "TXL"]
        if not ours or not rivals:
            continue
        lowest = min(_lowest(fit) for fit in fits if fit["model"] != "TXL")
        said = []
        for factor in FACTORS:
            mine, other = (
                min((seconds for curve in curves if (seconds := reached(curve, factor * lowest))), default=None)
                for curves in (ours, rivals)
            )
            ratio = f"{other / mine:.1f}" if mine and other else "never"
            said.append(f"{ratio} to {factor:g} ×")
        notes.append(
            f"{name}, width {width}, the practice seed at the rate that is the fastest to each level, LSTM / TXL: "
            f"{', '.join(said)} the LSTMs' lowest error."
        )
    return notes
