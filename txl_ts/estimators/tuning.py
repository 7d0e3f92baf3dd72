"""Starting from a model that was trained on other series: all weights, few of them, or the head alone."""

from __future__ import annotations

import os
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from txl_ts import __version__
from txl_ts.config import ModelConfig, check_choice, check_integer
from txl_ts.errors import FileFormatError, ParameterError, StateError
from txl_ts.estimators.bands import Calibration
from txl_ts.estimators.context import later_ends
from txl_ts.estimators.epochs import Epochs
from txl_ts.estimators.files import digest_of
from txl_ts.estimators.fitting import Fitted
from txl_ts.estimators.fleet import Fleet
from txl_ts.estimators.reading import ReadsFrames
from txl_ts.estimators.sizes import resolve_season
from txl_ts.estimators.split import split, tail_rows
from txl_ts.frames import Panel, Roles
from txl_ts.model import TXLModel
from txl_ts.store import Bundle, load, save
from txl_ts.training import (
    METHODS,
    Adapter,
    LinearFit,
    Reservoir,
    Trainer,
    TrainingSettings,
    adapted_weights,
    adapter_of,
    with_adapter,
    with_all_trained,
    with_head_alone,
)
from txl_ts.walk import Pace

_MOST_RANK = 4096


class Tunes(ReadsFrames):
    """Part of :class:`TXLForecaster`: methods that start from weights that are there."""

    adapter_: Adapter | None = None
    _adapter_base: str
    linear_fit_: LinearFit
    _fit_panel: Panel | None
    _val_size: int | None
    calibration_: Calibration | None
    _epochs: Epochs | None
    _replay: Reservoir

    if TYPE_CHECKING:

        @classmethod
        def load(cls, path: str | PathLike[str]) -> Self:
            """Load; see the subclass."""

        def _settings(self, *, val_size: int | None = None) -> TrainingSettings: ...
        def _pace(self, config: ModelConfig) -> Pace: ...
        def _keep(self, fitted: Fitted, panel: Panel, fleet: Fleet, roles: Roles, *, val_size: int | None) -> None: ...

    @classmethod
    def from_pretrained(cls, path: str | PathLike[str]) -> Self:
        """Load the weights of a saved model and none of its series.

        It forecasts series that it has never met at once (``predict(df=history)``, ``update``), and :meth:`fine_tune`
        trains it further. No weights are shipped with the library: the file is one of your own. Of the series that it
        was trained on, the names and the last times stay known, so that no backtest sees its answers.

        Parameters
        ----------
        path : path
            What :meth:`save` wrote.

        Raises
        ------
        FileFormatError
        """
        out = cls.load(path)
        out._forget_all(out._model)
        return out

    def fine_tune(
        self,
        df: Any,
        *,
        method: str = "full",
        rank: int = 8,
        val_size: int | None = None,
        max_epochs: int | None = None,
        learning_rate: float | None = None,
        static_df: Any = None,
    ) -> Self:
        """Train the weights that are there further, on other series or newer rows.

        Sizes, columns, frequency and scaler stay those of ``fit``. Afterwards the memories are those of the series in
        ``df``: memories that other weights wrote would be read wrongly, so series that are not in ``df`` are dropped.

        Parameters
        ----------
        df : frame
            With the columns of ``fit``; each series starts empty.
        method : {"full", "lora", "head"}
            Train all weights; low-rank additions to the layers' and the head's products (extra ``lora``; kilobytes,
            see :meth:`save_adapter`); or only what turns hidden rows into forecasts.
        rank : int
            Of the additions, for ``"lora"``.
        val_size : int, optional
            As in :meth:`fit`: the last rows of each series choose the epoch. Without it a tail chooses the number of
            epochs, and then all rows are trained on, from the weights of before.
        max_epochs : int, optional
        learning_rate : float, optional
            Default: those of the estimator.
        static_df : frame, optional
            The ``static_cols`` of series that were not fitted.

        Returns
        -------
        TXLForecaster
            Itself. ``history_.validation[0]`` is the loss before training, and epoch 0 is kept if none is better.

        Raises
        ------
        NotFittedError, FrameError, ParameterError, TrainingError
        MissingExtraError
            For ``"lora"`` without peft.

        References
        ----------
        Hu et al. (2021), LoRA: low-rank adaptation of large language models (arXiv 2106.09685).
        """
        self._check_fitted()
        check_choice("method", method, METHODS)
        rank = check_integer("rank", rank, at_least=1)
        given: dict[str, Any] = {"max_epochs": max_epochs, "learning_rate": learning_rate}
        settings = replace(
            self._settings(val_size=val_size), **{name: value for name, value in given.items() if value is not None}
        )
        panel = self._read_more(df, static_df, continues=False)
        before, season = self._model, resolve_season(self.season_length, freq=panel.freq)
        how: Any = {"method": method, "rank": rank, "season": season, "val_size": val_size}
        tuned, trainer = _tuned(before, panel, settings, **how)
        adapter = adapter_of(tuned, rank=rank) if method == "lora" else None
        model = tuned if adapter is None else adapter.merged(before)
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        fitted = Fitted(model.eval(), trainer.progress.history, self.linear_fit_, *trainer.validation_errors())
        fleet, _ = Fleet.fresh_for(panel, model).advance(
            model, panel, max_gap=self._gap(model.config), pace=self._pace(model.config), one_step=False
        )
        ends = self._fitted_end
        self._keep(fitted, panel, fleet, self._roles, val_size=val_size)
        self._fitted_end = later_ends(ends, self._fitted_end)  # what the weights saw before, they have seen
        self.adapter_, self._adapter_base = adapter, digest_of(before)
        return self

    def save_adapter(self, path: str | PathLike[str]) -> None:
        """Save what ``fine_tune(method="lora")`` added to the weights, without the weights: kilobytes.

        Raises
        ------
        NotFittedError, SaveError
        StateError
            If the last fit or fine-tuning had no adapter.
        """
        self._check_fitted()
        if (adapter := self.adapter_) is None:
            raise StateError('there is no adapter: fine-tune with fine_tune(df, method="lora") first.')
        config = {
            "class": "Adapter",
            "library": __version__,
            "rank": adapter.rank,
            "base": self._adapter_base,
        }
        tensors = {
            f"{name}.{part}": t for name, pair in adapter.factors.items() for part, t in zip("AB", pair, strict=True)
        }
        save(path, Bundle("adapter", config, {"weights": tensors}, {}))

    def load_adapter(self, path: str | PathLike[str]) -> Self:
        """Add what :meth:`save_adapter` wrote to the weights that it was trained on; peft is not needed.

        All memories are dropped: they were written by other weights. Give histories to ``predict(df=…)`` or rows to
        ``update``.

        Parameters
        ----------
        path : path

        Returns
        -------
        TXLForecaster
            Itself; exported graphs have the additions inside.

        Raises
        ------
        NotFittedError
        FileFormatError
            If the file is damaged or no adapter.
        StateError
            If it belongs to other weights; nothing is changed.
        """
        self._check_fitted()
        shapes = adapted_weights(self._model)

        def expected(config: dict[str, Any], positions: dict[str, Any]) -> dict[str, dict[str, tuple[Any, str]]]:
            rank = config.get("rank")
            if config.get("class") != "Adapter" or type(rank) is not int or not 0 < rank <= _MOST_RANK:
                raise FileFormatError(f"{os.fspath(path)!r} holds no adapter of this library.")
            table: dict[str, tuple[Any, str]] = {}
            for name, (n_out, n_in) in shapes.items():
                table |= {f"{name}.A": ((rank, n_in), "float32"), f"{name}.B": ((n_out, rank), "float32")}
            return {"weights": table}

        bundle = load(path, role="adapter", expected=expected)
        base, arrays = digest_of(self._model), bundle.tensors["weights"]
        if bundle.config.get("base") != base:
            raise StateError(
                f"{os.fspath(path)!r} was trained on other weights than these. Load the model that fine_tune started "
                "from: TXLForecaster.from_pretrained(…).load_adapter(…)."
            )
        adapter = Adapter(bundle.config["rank"], {name: (arrays[f"{name}.A"], arrays[f"{name}.B"]) for name in shapes})
        self._forget_all(adapter.merged(self._model))
        self.adapter_, self._adapter_base = adapter, base
        return self

    def _forget_all(self, model: TXLModel) -> None:
        """Take a model over, with no series. Where those that it was trained on ended stays known."""
        self._model, self._fleet = model.eval(), Fleet.fresh(model)
        self._fit_panel = self._val_size = self.calibration_ = None
        self.adapter_ = self._epochs = None
        self._replay = Reservoir(self._replay.size, self._replay.n_rows)


def _tuned(
    model: TXLModel,
    panel: Panel,
    settings: TrainingSettings,
    *,
    method: str,
    rank: int,
    season: int,
    val_size: int | None,
) -> tuple[TXLModel, Trainer]:
    """Train a copy of a model; gives it, and the trainer of the run that chose the epoch."""
    config = model.config
    rows = tail_rows(panel, h=config.h, patch_len=config.patch_len)
    if val_size is not None:
        rows = np.full(panel.n_series, val_size, np.int64)
    choosing = split(panel, config, val_rows=rows, season=season, loss=settings.loss)
    if not len(choosing.train.pieces):
        raise ParameterError(
            f"no series of the frame has more than patch_len={config.patch_len} rows to train on. Give longer series."
        )
    with torch.random.fork_rng(devices=[]):  # the user's own stream of numbers must not move
        torch.manual_seed(settings.random_state)
        trained = _ready(model, method, rank)
        trainer = Trainer(trained, choosing.train, choosing.validation, settings)
        trainer.run()
        if val_size is not None or choosing.validation is None:
            return trained, trainer
        everything = split(panel, config, val_rows=np.zeros_like(rows), season=season, loss=settings.loss)
        torch.manual_seed(settings.random_state)
        final = _ready(model, method, rank)
        epochs = trainer.progress.history.best_epoch
        Trainer(final, everything.train, None, replace(settings, max_epochs=epochs)).run()
        return final, trainer


def _ready(model: TXLModel, method: str, rank: int) -> TXLModel:
    if method == "lora":
        return with_adapter(model, rank=rank)
    return with_head_alone(model) if method == "head" else with_all_trained(model)
