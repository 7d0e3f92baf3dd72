"""From labelled rows to a trained model: what chooses the epoch, the closed form, the epochs."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from txl_ts.heads import ValueHead
from txl_ts.label_model import LabelConfig, LabelModel
from txl_ts.training import History, LabelRows, LabelSettings, LabelTrainer, fit_row_path

# With fewer series than this, time is cut instead: each series' last rows choose the epoch.
_LEAST_SERIES = 10


@dataclass(frozen=True)
class LabelSplit:
    """Rows to train on, and rows that choose the epoch.

    Attributes
    ----------
    train : LabelRows
    validation : LabelRows or None
    """

    train: LabelRows
    validation: LabelRows | None


def hold_out(
    rows: LabelRows, *, fraction: float, reach: int, strata: NDArray[np.int64] | None, seed: int
) -> LabelSplit:
    """Hold out whole series, or with few of them the last rows of each.

    Parameters
    ----------
    rows : LabelRows
        One run per series.
    fraction : float
        In (0, 1).
    reach : int
        Rows before the held-out ones that fill the memory.
    strata : int64 array of shape (n,), optional
        Class of each series: every class gives its part.
    seed : int
    """
    n = len(rows)
    if n >= _LEAST_SERIES:
        held = np.zeros(n, bool)
        order = np.random.default_rng(seed).permutation(n)
        groups = [order] if strata is None else [order[strata[order] == c] for c in np.unique(strata)]
        for group in groups:
            held[group[: round(fraction * len(group))]] = True
        if held.any() and not held.all():
            return LabelSplit(_take(rows, ~held), _take(rows, held))
        return LabelSplit(rows, None)
    length = rows.stop - rows.first
    cut = rows.stop - np.floor(length * fraction).astype(np.int64)
    weight = rows.weight.copy()
    for a, b in zip(rows.first, cut, strict=True):
        weight[a:b] = 0
    validation = replace(rows, weight=weight, first=np.maximum(rows.first, cut - reach))
    train = replace(rows, stop=cut)
    return LabelSplit(train, validation) if validation.n_counting and train.n_counting else LabelSplit(rows, None)


def fit_labels(
    split: LabelSplit,
    rows: LabelRows,
    config: LabelConfig,
    settings: LabelSettings,
    *,
    scale: tuple[NDArray[np.float64], NDArray[np.float64]] | None,
) -> tuple[LabelModel, History]:
    """Train a model: first on ``split.train`` to choose the number of epochs, then anew on all rows for as many.

    Parameters
    ----------
    split : LabelSplit
        Without validation rows there is one run, of all epochs.
    rows : LabelRows
        All of them; values as targets are in deviations.
    config : LabelConfig
    settings : LabelSettings
    scale : pair of array of shape (K,), optional
        Level and deviation of the targets, kept in the model.

    Returns
    -------
    model : LabelModel
    history : History
        Of the run that chose.
    """
    # Initial weights and dropout draw from torch's global generator; the user's own stream of numbers must not move.
    with torch.random.fork_rng(devices=[]):
        model, history = _train(split, config, settings)
        if split.validation is not None:
            settings = replace(settings, max_epochs=history.best_epoch)
            model, _ = _train(LabelSplit(rows, None), config, settings)
    if scale is not None and isinstance(model.answer, ValueHead):
        model.answer.set_scale(*(torch.from_numpy(part.astype(np.float32)) for part in scale))
    return model, history


def continue_labels(model: LabelModel, rows: LabelRows, settings: LabelSettings) -> LabelModel:
    """Give a copy of a model, trained one pass further on these rows alone; its scaler stays.

    Targets are as for :func:`fit_labels`: values in deviations of the model's own scale.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.random_state)
        trained = copy.deepcopy(model)
        LabelTrainer(trained, rows, None, replace(settings, max_epochs=min(settings.max_epochs, 1))).run()
    return trained


def _train(split: LabelSplit, config: LabelConfig, settings: LabelSettings) -> tuple[LabelModel, History]:
    torch.manual_seed(settings.random_state)
    model = LabelModel(config)
    train = split.train
    inside = np.concatenate([train.values[a:b] for a, b in zip(train.first, train.stop, strict=True)])
    model.normaliser.fit(inside)
    fit_row_path(model, train, seed=settings.random_state)
    return model, LabelTrainer(model, train, split.validation, settings).run()


def _take(rows: LabelRows, picked: NDArray[np.bool_]) -> LabelRows:
    return replace(rows, first=rows.first[picked], stop=rows.stop[picked])
