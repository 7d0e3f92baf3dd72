"""From a panel to a trained model: sizes, split, closed form, epochs."""

from __future__ import annotations

import hashlib
import os
import warnings
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from txl_ts.config import ModelConfig
from txl_ts.errors import ColumnError, ParameterError, ShortSeriesWarning
from txl_ts.estimators.split import Split, split, tail_rows
from txl_ts.frames import Panel
from txl_ts.model import TXLModel
from txl_ts.training import Checkpoint, History, LinearFit, Origins, Trainer, TrainingSettings, fit_linear_path


@dataclass(frozen=True)
class Fitted:
    """What fitting gives.

    Attributes
    ----------
    model : TXLModel
    history : History
        Of the run that chose the epoch.
    linear : LinearFit
        What the closed form found in that run.
    validation_mse, validation_mae : float
        Of the point forecast, in raw units, over the validation rows of that run; NaN without any.
    """

    model: TXLModel
    history: History
    linear: LinearFit
    validation_mse: float
    validation_mae: float


def fit_panel(
    panel: Panel,
    config: ModelConfig,
    settings: TrainingSettings,
    *,
    season: int,
    val_size: int | None,
    checkpoint: str | PathLike[str] | None,
    weight: NDArray[np.float32] | None = None,
) -> Fitted:
    """Train a model; ``weight`` (N,) says what the error at each row of the panel counts for.

    With ``val_size`` the last rows of each series choose the epoch and are never trained on. Without, a tail chooses
    the number of epochs, then a new model is trained on all rows for as many.
    """
    rows = tail_rows(panel, h=config.h, patch_len=config.patch_len)
    if val_size is not None:
        rows = np.full(panel.n_series, val_size, np.int64)
    if config.distribution == "negative_binomial":
        refuse_no_counts(panel)
    how: Any = {"season": season, "loss": settings.loss, "weight": weight}
    choosing = split(panel, config, val_rows=rows, **how)
    _warn_short(choosing, panel, config)
    _refuse_weightless(choosing, val_size=val_size)
    # Initial weights and dropout draw from torch's global generator; the user's own stream of numbers must not move.
    with torch.random.fork_rng(devices=[]):
        fitted = _train(panel, choosing, config, settings, checkpoint=checkpoint, stage="choose", penalty=None)
        if val_size is not None or choosing.validation is None:
            return fitted
        # The schedule of the second run ends where the best epoch of the first one ended.
        epochs = fitted.history.best_epoch
        everything = split(panel, config, val_rows=np.zeros_like(rows), **how)
        final = _train(
            panel,
            Split(everything.train, None, 0),
            config,
            replace(settings, max_epochs=epochs),
            checkpoint=checkpoint,
            stage="all-rows",
            penalty=fitted.linear,
        )
        return replace(fitted, model=final.model)


def _train(
    panel: Panel,
    rows: Split,
    config: ModelConfig,
    settings: TrainingSettings,
    *,
    checkpoint: str | PathLike[str] | None,
    stage: str,
    penalty: LinearFit | None,
) -> Fitted:
    torch.manual_seed(settings.random_state)
    model = TXLModel(config)
    trained = _trained(rows.train)
    model.normaliser.fit(model.units.into(torch.from_numpy(panel.values[trained])).numpy())
    if model.beside is not None and panel.covariates is not None:
        assert rows.train.pieces.beside is not None
        model.beside.fit(
            panel.covariates.hist[trained], panel.covariates.futr[trained], rows.train.pieces.beside.static
        )
    linear = fit_linear_path(model, rows.train, rows.validation, seed=settings.random_state, known=penalty)
    model.head.set_spread(linear.spread[: len(model.linear_path.bias)], config.quantiles)
    trainer = Trainer(model, rows.train, rows.validation, settings)
    if checkpoint is None:
        history = trainer.run()
    else:
        os.makedirs(checkpoint, exist_ok=True)
        identity = {
            "stage": stage,
            "model": config.to_json(),
            "settings": settings.to_json(),
            "rows": _digest(panel, rows),
        }
        keeper = Checkpoint(os.path.join(checkpoint, stage), identity)
        keeper.resume(trainer)
        history = trainer.run(lambda: keeper.after_step(trainer))
    mse, mae = trainer.validation_errors()
    return Fitted(model, history, linear, mse, mae)


def _trained(train: Origins) -> Any:
    inside = np.zeros(len(train.pieces.values), bool)
    for a, b in zip(train.pieces.first, train.pieces.stop, strict=True):
        inside[a:b] = True
    return inside


def refuse_no_counts(panel: Panel) -> None:
    """Raise ColumnError unless all values are counts."""
    values = panel.values.reshape(panel.n_rows, -1)
    odd = np.isfinite(values) & ((values < 0) | (values != np.floor(values)))
    if odd.any():
        row, channel = np.argwhere(odd)[0]
        series, ordinal = panel.row_series()[row], panel.row_ordinals()[row]
        column = panel.targets[channel] if panel.is_mixed else panel.style.target_col
        raise ColumnError(
            f"distribution='negative_binomial' is a law of counts, and target column {column!r} holds "
            f"{int(odd.sum())} values that are none, first {values[row, channel]:g} in series {panel.ids[series]!r} "
            f"(row {ordinal} of its grid). Give whole numbers from 0 on, or take distribution='normal' or 'student_t'."
        )


def _refuse_weightless(choosing: Split, *, val_size: int | None) -> None:
    """Raise ParameterError where no forecast that would be learnt from, or would choose the epoch, counts for anything.

    A mean over nothing is NaN, which no epoch is better than: all training would be thrown away.
    """
    if len(choosing.train.pieces) and not _weighs(choosing.train):
        raise ParameterError(
            "sample_weight is 0 at all rows that are trained on: nothing would be learnt. Give some of them a weight"
            f"{'' if val_size is None else f', or hold out fewer rows than val_size={val_size}'}."
        )
    if choosing.validation is not None and not _weighs(choosing.validation):
        which = "in the tail" if val_size is None else f"at the last val_size={val_size} rows"
        raise ParameterError(
            f"sample_weight is 0 everywhere {which} of each series, where the epoch is chosen. Give fit a val_size "
            "that reaches back to rows with a weight, or give some of those rows one, or leave them out."
        )


def _weighs(rows: Origins) -> bool:
    """Whether a value that is forecast counts for something."""
    pieces = rows.pieces
    if pieces.weight is None:
        return True
    there = np.isfinite(pieces.values).reshape(len(pieces.values), -1).any(axis=1)
    n_before = np.concatenate([[0], np.cumsum(there & (pieces.weight > 0))])
    return bool((n_before[pieces.stop] > n_before[np.minimum(rows.first + 1, pieces.stop)]).any())


def _digest(panel: Panel, rows: Split) -> str:
    digest = hashlib.sha256(panel.values.tobytes())
    if rows.train.pieces.weight is not None:
        digest.update(rows.train.pieces.weight.tobytes())
    if panel.covariates is not None:
        for values in (panel.covariates.hist, panel.covariates.futr, panel.covariates.static):
            digest.update(values.tobytes())
    for array in (rows.train.pieces.first, rows.train.pieces.stop, rows.train.first):
        digest.update(array.tobytes())
    return digest.hexdigest()


def _warn_short(choosing: Split, panel: Panel, config: ModelConfig) -> None:
    if choosing.n_untrained:
        warnings.warn(
            f"{choosing.n_untrained} of {panel.n_series} series have no more than patch_len={config.patch_len} rows "
            "to train on: they are forecast, but not trained on. Lower patch_len or val_size to use them.",
            ShortSeriesWarning,
            stacklevel=6,
        )
    if choosing.validation is None:
        warnings.warn(
            f"no series is long enough to hold out rows for h={config.h}: all epochs are trained, none is chosen, and "
            "without any whole horizon the forecast is the last value. Lower h, or give longer series.",
            ShortSeriesWarning,
            stacklevel=6,
        )
