"""Series never met, with 0, 50 and 500 rows of their own: frozen weights, fine-tuning, and training from scratch.

A forecaster is trained on some series of a set. Others are held out; of each the last days judge, and only the last few
rows before them are there: to walk, and to train on.
"""

from __future__ import annotations

import copy
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from txl_ts.bench import ett, m4, report
from txl_ts.config import ModelConfig
from txl_ts.errors import ParameterError, ShortSeriesWarning
from txl_ts.model import TXLModel

if TYPE_CHECKING:
    from txl_ts.estimators.forecaster import TXLForecaster

Floats = NDArray[np.float64]

H, SEASON = 24, 24
N_JUDGED = 72  # rows, from each of which but the last H − 1 a day is forecast
SHOTS = (0, 50, 500)
# Rows of a stretch of ETT; the first four days nobody may see: they only add to the scale of its errors.
_STRETCH = 4 * SEASON + max(SHOTS) + N_JUDGED
RANK = 4
SIZES: Mapping[str, Any] = MappingProxyType(
    {"patch_len": 24, "stride": 24, "mem_len": 7, "lookback": 24, "half_life": 168, "d_model": 32, "n_layers": 2}
)
# As chosen for M4 Hourly.
TRAINING: Mapping[str, Any] = MappingProxyType({"learning_rate": 4e-3, "dropout": 0.0})
LARGE: Mapping[str, Any] = MappingProxyType({**SIZES, "d_model": 256, "n_layers": 4, "n_heads": 4, "d_ff": 512})
COLUMNS = MappingProxyType(
    {
        "set": "set",
        "model": "model",
        "rows": "rows of its own",
        "mase": "error (MASE)",
        "spread": "± (max − min)",
        "seconds_s": "training, s",
        "trained": "numbers trained",
        "file": "file, bytes (memories in it)",
        "n_seeds": "seeds",
    }
)


def run(
    data: str | PathLike[str],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    sets: Sequence[str] | None = None,
    shots: Sequence[int] = SHOTS,
    n_known: int = 60,
    n_new: int = 16,
    epochs: int = 12,
    sizes: Mapping[str, Any] = SIZES,
    memory: bool = True,
    variants: Sequence[Any] | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Train on many series, then meet new ones.

    Parameters
    ----------
    data : path
        Folder that holds ``m4_hourly/`` and ``ett/``.
    seeds : sequence of int
        Each draws weights, and which series are known and which are new.
    sets : sequence of str, optional
        Names in :data:`SETS`; all by default.
    shots : sequence of int
        Rows of the new series.
    n_known, n_new : int
        Series to train on, of M4, and held-out ones.
    epochs : int
        Of the training at most, and of each fine-tuning.
    sizes : mapping
        Of the model.
    memory : bool
        Measure the memory of a training step too.
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
    """
    del variants
    sets = tuple(SETS) if sets is None else tuple(sets)
    if unknown := sorted(set(sets) - set(SETS)):
        raise ParameterError(f"sets {unknown} are not known. Choose among {list(SETS)}.")
    how: Any = {"shots": shots, "epochs": epochs, "sizes": sizes}
    runs = []
    for name in sets:
        for seed in seeds:
            known, new = SETS[name](data, np.random.default_rng(seed), n_known, n_new)
            runs += [{"set": name, "seed": seed} | one for one in met(known, new, seed, **how)]
    table = _summaries(runs)
    if memory:
        table += _memory_rows(dict(sizes), "this model", peaks=False) + _memory_rows(dict(LARGE), "a larger model")
    return {
        "name": "transfer",
        "title": "Series never met: 0, 50 and 500 rows of their own",
        "command": command or "txl-ts bench transfer --data DIR",
        "protocol": [
            f"M4 Hourly: {n_known} series to train on (at most {epochs} epochs), {n_new} others held out, both drawn "
            f"by the seed. ETT: the seven columns of ETTh1 to train on; held out are {n_new} stretches of ETTh2, "
            f"{_STRETCH} rows each, column and place drawn by the seed. "
            f"Of the last {N_JUDGED} rows of each held-out series every row that leaves a whole horizon "
            f"forecasts {H} ahead, as rows come; before them each has so many rows of its own, which fill the memory "
            "and are all that there is to train on. All held-out series are tuned together, their last rows choosing "
            "the epoch where there are enough of them. Error: absolute, in mean seasonal differences of each series "
            "(over all its rows but the judged ones), mean over series. From scratch: the same class and widths, "
            "lengths chosen from the rows (auto). The models are small: the table was made on two cores shared with "
            "others, and seconds are those of a loaded machine.",
            "Memory of a training step (32 series side by side, 24 visits): bytes of gradients, of the optimiser and "
            "of what autograd saves, counted tensor by tensor; peak: by how much a process grows while it trains. "
            f"LoRA has rank {RANK}.",
        ],
        "columns": dict(COLUMNS) | ({"memory": "memory of a step, KiB", "peak": "peak, MiB"} if memory else {}),
        "rows": table,
        "runs": runs,
        "notes": _verdicts(table),
        "seeds": list(seeds),
        "environment": report.environment(),
    }


def _of_m4(
    data: str | PathLike[str], rng: np.random.Generator, n_known: int, n_new: int
) -> tuple[list[Floats], list[Floats]]:
    """Draw series to train on, and others."""
    series = m4.load(data, group="Hourly").train
    order = rng.permutation(len(series))
    return [series[i] for i in order[:n_known]], [series[i] for i in order[n_known : n_known + n_new]]


def _of_ett(
    data: str | PathLike[str], rng: np.random.Generator, n_known: int, n_new: int
) -> tuple[list[Floats], list[Floats]]:
    """Give one transformer's columns, and draw stretches of the other's."""
    del n_known
    known, new = (ett.load(data, name=name).values for name in ("ETTh1", "ETTh2"))
    last = len(new) - _STRETCH
    places = [(int(rng.integers(last + 1)), int(rng.integers(new.shape[1]))) for _ in range(n_new)]
    return list(known.T), [new[first : first + _STRETCH, channel] for first, channel in places]


# Series to train on and series that are new, drawn by a generator: (data, generator, how many of each).
SETS: Mapping[str, Callable[..., tuple[list[Floats], list[Floats]]]] = MappingProxyType(
    {"M4 Hourly": _of_m4, "ETT": _of_ett}
)


def met(
    known: Sequence[Floats],
    new: Sequence[Floats],
    seed: int,
    *,
    shots: Sequence[int],
    epochs: int,
    sizes: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """Train on some series, and judge on others everything that is said of them; gives a row per model and shots."""
    from txl_ts.estimators.forecaster import TXLForecaster

    params: Any = {"h": H, "freq": 1, "season_length": SEASON, "quantiles": (0.5,), "random_state": seed}
    params |= {"max_epochs": epochs, **TRAINING}
    begin = time.perf_counter()
    base = TXLForecaster(**params, **sizes).fit(long_frame(known, "known"), val_size=2 * H)
    trained_s = time.perf_counter() - begin
    for n in shots:
        judged, own = long_frame(new, last=n + N_JUDGED), long_frame(new, last=n + N_JUDGED, but=N_JUDGED)
        yield {"rows": n, "model": "seasonal naive", "mase": _mase_of(judged, _seasonal(judged), new)}
        models: list[tuple[str, Any, float, dict[str, Any]]] = [
            ("frozen, memory alone", base, 0.0, {"file": _file(base.save), "seconds_pretraining": trained_s})
        ]
        for method in ("head", "lora", "full") if n else ():
            begin, one = time.perf_counter(), _bare(base)
            one.fine_tune(own, method=method, rank=RANK, max_epochs=epochs)
            told = {"file": _file(one.save_adapter if method == "lora" else one.save)}
            models.append((f"fine-tuned, {method}", one, time.perf_counter() - begin, told))
        if n:
            for name, n_epochs in (("from scratch", epochs), ("from scratch, linear path alone (ridge)", 0)):
                begin = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ShortSeriesWarning)
                    width = {"d_model": sizes["d_model"], "n_layers": sizes["n_layers"]}
                    one = TXLForecaster(**params | {"max_epochs": n_epochs}, **width).fit(own)
                models.append((name, one, time.perf_counter() - begin, {}))
        for name, model, seconds, told in models:
            error = _mase_of(judged, _said(model, judged), new)
            yield {"rows": n, "model": name, "mase": error, "seconds_s": seconds, **told}


def long_frame(series: Sequence[Floats], name: str = "new", *, last: int = 0, but: int = 0) -> pd.DataFrame:
    """Lay series end to end; of each the last rows, without the very last ``but``. Stamps are numbers of rows."""
    parts = []
    for i, y in enumerate(series):
        first, stop = len(y) - last if last else 0, len(y) - but
        parts.append(pd.DataFrame({"unique_id": f"{name}-{i:03}", "ds": np.arange(first, stop), "y": y[first:stop]}))
    return pd.concat(parts, ignore_index=True)


def _bare(model: TXLForecaster) -> TXLForecaster:
    """A copy that knows no series, as ``from_pretrained`` gives it."""
    out = copy.deepcopy(model)
    out.forget(sorted(set(out.predict().unique_id)))
    return out


def _said(model: TXLForecaster, judged: pd.DataFrame) -> Floats:
    """Forecasts from each of the judged rows that leaves a whole horizon, (n, windows, H)."""
    said = model.cross_validation(judged, n_windows=N_JUDGED - H, use_fitted=True)
    said = said.sort_values(["unique_id", "cutoff", "ds"])
    return said.TXL.to_numpy(np.float64).reshape(-1, N_JUDGED - H, H)


def _seasonal(judged: pd.DataFrame) -> Floats:
    """The value of a day before, or the last one where there is none yet."""
    out = []
    for _, part in judged.groupby("unique_id"):
        y = part.y.to_numpy(np.float64)
        for origin in range(len(y) - N_JUDGED, len(y) - H):
            back = origin + 1 - SEASON + np.arange(H) % SEASON
            out.append(np.where(back >= 0, y[np.maximum(back, 0)], y[origin]))
    return np.array(out).reshape(-1, N_JUDGED - H, H)


def _mase_of(judged: pd.DataFrame, said: Floats, series: Sequence[Floats]) -> float:
    errors = []
    for (_, part), forecast, whole in zip(judged.groupby("unique_id"), said, series, strict=True):
        y, before = part.y.to_numpy(np.float64), whole[:-N_JUDGED]
        first = len(y) - N_JUDGED + 1
        truth = np.lib.stride_tricks.sliding_window_view(y[first:], H)[: N_JUDGED - H]
        errors.append(np.abs(truth - forecast).mean() / np.abs(before[SEASON:] - before[:-SEASON]).mean())
    return float(np.mean(errors))


def _file(save: Any) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.txl")
        save(path)
        return os.path.getsize(path)


def _memory_rows(sizes: dict[str, Any], name: str, *, peaks: bool = True) -> list[dict[str, Any]]:
    """Measure a training step of each method, and the peak of a process where there is something to see."""
    from txl_ts.bench import training_memory as measured

    whole = {"h": H, "quantiles": (0.5,), "dropout": 0.2, "n_heads": 4, "d_ff": 2 * sizes["d_model"], **sizes}
    rows = []
    for method in measured.METHODS:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = TXLModel(ModelConfig(**whole))
            found = measured.step_bytes(measured.ready(model, method, rank=RANK))
        kept = sum(found[part] for part in ("gradients", "optimiser", "activations"))
        rows.append(
            {
                "model": f"step of {name}, {method}",
                "trained": found["trained"],
                "memory": kept // 1024,
                "parts": found,
            }
            | ({"peak": measured.peak_bytes(whole, method, rank=RANK) // 2**20} if peaks else {})
        )
    return rows


def _summaries(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, int, str], list[Mapping[str, Any]]] = {}
    for one in runs:
        groups.setdefault((one["set"], one["rows"], one["model"]), []).append(one)
    table = []
    for (name, n, model), fits in groups.items():
        found = [fit["mase"] for fit in fits]
        row = {"set": name, "model": model, "rows": n, "mase": float(np.mean(found)), "n_seeds": len(fits)}
        row |= {"spread": max(found) - min(found)} if len(found) > 1 else {}
        row |= {"seconds_s": float(np.mean([fit["seconds_s"] for fit in fits]))} if "seconds_s" in fits[0] else {}
        table.append(row | ({"file": fits[0]["file"]} if "file" in fits[0] else {}))
    return table


def _verdicts(table: Sequence[Mapping[str, Any]]) -> list[str]:
    notes = []
    errors = {((row["set"], row["rows"]), row["model"]): row["mase"] for row in table if "mase" in row}
    for case in dict.fromkeys(case for case, _ in errors):
        best = min((error, model) for (of, model), error in errors.items() if of == case)
        frozen = errors[case, "frozen, memory alone"]
        told = f"least error {best[0]:.3f} ({best[1]}); frozen weights {frozen:.3f}"
        notes.append(f"{case[0]}, {case[1]} rows: {told}.")
    memory = {row["model"]: row for row in table if "memory" in row}
    for name, row in memory.items():
        if not name.endswith(", lora"):
            continue
        full = memory[name.replace(", lora", ", full")]
        notes.append(
            f"{name}: {100 * (row['memory'] / full['memory'] - 1):+.0f} % memory of a step beside training all weights"
            + (f", peak {100 * (row['peak'] / full['peak'] - 1):+.0f} %" if "peak" in row else "")
            + " (the article's figure is −40 %)."
        )
    return notes
