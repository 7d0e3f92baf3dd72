"""A drop-in for ``neuralforecast``: change the import and the model's name, keep the frames and the calls.

    from txl_ts_adapters.neuralforecast import TXL, NeuralForecast

    nf = NeuralForecast(models=[TXL(h=12, input_size=24)], freq="ME")
    nf.fit(df)
    nf.predict(level=[80])

neuralforecast itself is not needed. Arguments that cannot be honoured raise or warn by their name, never silently. What
differs: memories outlive ``predict`` (``nf.models[0].forecaster_.update(rows)`` moves them on), ``cross_validation``
walks each series once and leaves what was fitted as it is, and files hold no pickle.

References
----------
neuralforecast 3.3 (Nixtla), ``neuralforecast.core.NeuralForecast``.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import narwhals.stable.v2 as nw

from txl_ts.errors import FileFormatError, ParameterError, SaveError, UnusedArgumentWarning
from txl_ts.estimators.forecaster import NotFittedError, TXLForecaster

__all__ = ["TXL", "NeuralForecast"]

# Wide enough for level=[95]; neuralforecast's users ask for levels when they predict.
QUANTILES = (0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975)
_MANIFEST = "neuralforecast.json"
# Losses by the name of their class, and what trains the same thing here.
_LOSSES = MappingProxyType(
    {"MAE": "pinball", "MQLoss": "pinball", "QuantileLoss": "pinball", "IQLoss": "pinball"}
    | {"MSE": "squared", "RMSE": "squared", "MASE": "mase"}
)
# Arguments of neuralforecast's models without a counterpart, and what to look at instead.
_WITHOUT_COUNTERPART = MappingProxyType(
    {
        "max_steps": "training is counted in max_epochs, with early stopping by patience",
        "val_check_steps": "validation follows every epoch",
        "early_stop_patience_steps": "patience counts epochs",
        "num_lr_decays": "the learning rate follows a cosine",
        "valid_loss": "the training loss chooses the epoch",
        "valid_batch_size": "validation needs no batch size",
        "windows_batch_size": "segments of lanes are trained on, not windows",
        "inference_windows_batch_size": "forecasts need no windows",
        "start_padding_enabled": "short series need no padding",
        "training_data_availability_threshold": "missing rows are masked",
        "step_size": "segments of lanes are trained on, not windows",
        "scaler_type": "each series is normalised by what it has seen (scaler='running'), or scaler='standard'",
        "drop_last_loader": "no rows are dropped",
        "optimizer": "AdamW is used",
        "optimizer_kwargs": "AdamW is used, with learning_rate and weight_decay",
        "lr_scheduler": "the learning rate follows a cosine",
        "lr_scheduler_kwargs": "the learning rate follows a cosine",
        "dataloader_kwargs": "there is no data loader",
        "exclude_insample_y": "the past of the target is always read",
        "categorical_cardinalities": "categories are counted in the rows that are trained on",
        "cat_emb_dim": "the width follows d_model",
        "accelerator": "training runs on the CPU",
        "enable_progress_bar": "fit(verbose=True) shows a bar",
        "logger": "nothing is logged to files",
    }
)
_ROLES = MappingProxyType(
    {
        "futr_exog_list": "futr_cols",
        "hist_exog_list": "hist_cols",
        "stat_exog_list": "static_cols",
        "cat_exog_list": "cat_cols",
    }
)


class TXL:
    """The model of :class:`NeuralForecast`: a :class:`~txl_ts.TXLForecaster` with neuralforecast's argument names.

    Parameters
    ----------
    h : int
        Steps ahead.
    input_size : int, optional
        Rows that forecasts should reach back to: sizes the look-back and the memory. None or −1: by the frequency and
        the length of the series. Rows beyond it still count, through the normaliser.
    futr_exog_list, hist_exog_list, stat_exog_list, cat_exog_list : sequence of str, optional
        Columns known ahead, known so far, per series, and categories among them.
    loss : object or str, optional
        An object of neuralforecast's ``MAE``, ``MSE``, ``RMSE``, ``MQLoss`` (whose quantiles are trained, and whose
        column names are kept), ``QuantileLoss`` or ``MASE``, or a name of :class:`~txl_ts.TXLForecaster`'s. Default:
        quantiles from .025 to .975, so that ``predict(level=[95])`` works.
    learning_rate : float
    batch_size : int
        Lanes (series × phases) in a training step.
    random_seed : int
    alias : str, optional
        Name of the columns. Default: ``"TXL"``.
    **params
        Any other parameter of :class:`~txl_ts.TXLForecaster`, such as ``max_epochs=5`` or ``d_model=32``. Those of
        neuralforecast's models without a counterpart give an UnusedArgumentWarning.

    Attributes
    ----------
    forecaster_ : TXLForecaster
        After ``fit``: ``update``, ``export_onnx`` and all else.

    Raises
    ------
    ParameterError
        If an argument is unknown, or a loss cannot be trained.
    """

    forecaster_: TXLForecaster

    def __init__(
        self,
        h: int,
        input_size: int | None = None,
        *,
        futr_exog_list: Sequence[str] | None = None,
        hist_exog_list: Sequence[str] | None = None,
        stat_exog_list: Sequence[str] | None = None,
        cat_exog_list: Sequence[str] | None = None,
        loss: Any = None,
        learning_rate: float = 1e-3,
        batch_size: int = 32,
        random_seed: int = 1,
        alias: str | None = None,
        **params: Any,
    ) -> None:
        self.h, self.alias = h, alias or "TXL"
        lists = (futr_exog_list, hist_exog_list, stat_exog_list, cat_exog_list)
        self.roles = {role: list(names) for role, names in zip(_ROLES.values(), lists, strict=True) if names}
        params = _without_counterpart(params)
        # Columns of the loss's own names, such as "-median": {suffix: quantile}; empty for the house's names.
        self.outputs, trained = _loss_parameters(loss)
        known = inspect.signature(TXLForecaster.__init__).parameters
        if unknown := [name for name in params if name not in known or name == "self"]:
            raise ParameterError(
                f"TXL has no parameter {unknown[0]!r}. It takes neuralforecast's h, input_size, *_exog_list, loss, "
                f"learning_rate, batch_size, random_seed and alias, and those of TXLForecaster."
            )
        self.params: dict[str, Any] = {
            "h": h,
            "context": None if input_size is None or input_size < 0 else input_size,
            "learning_rate": learning_rate,
            "batch_size": batch_size,
            "random_state": random_seed,
            **trained,
            **params,
        }

    def __repr__(self) -> str:
        return self.alias

    def make(self, *, freq: str | int, verbose: bool) -> TXLForecaster:
        """Build the unfitted forecaster."""
        return TXLForecaster(**{"freq": freq, **self.params, "verbose": verbose or self.params.get("verbose", False)})

    def fit_arguments(self, static_df: Any) -> dict[str, Any]:
        """Covariates as ``TXLForecaster.fit`` takes them."""
        return self.roles | self.only_used(static_df=static_df)

    def only_used(self, **frames: Any) -> dict[str, Any]:
        """Keep of ``futr_df`` and ``static_df`` those that are given and have columns of the model."""
        roles = {"futr_df": "futr_cols", "static_df": "static_cols"}
        return {name: frame for name, frame in frames.items() if frame is not None and roles[name] in self.roles}


class NeuralForecast:
    """Shaped like ``neuralforecast.NeuralForecast``, for models of :class:`TXL`.

    Parameters
    ----------
    models : list of TXL
        With different aliases.
    freq : str or int
        In the spelling of pandas or polars.
    local_scaler_type, local_static_scaler_type : None
        Anything else warns: each series is normalised inside the model.

    Raises
    ------
    ParameterError
        If a model is another, or two have one alias.
    """

    def __init__(
        self,
        models: Sequence[TXL],
        freq: str | int,
        local_scaler_type: str | None = None,
        local_static_scaler_type: str | None = None,
    ) -> None:
        foreign = [type(model).__name__ for model in models if not isinstance(model, TXL)]
        if foreign or not models:
            raise ParameterError(
                f"models must be TXL of txl_ts_adapters.neuralforecast, got {foreign or 'none'}. Run other models with "
                "neuralforecast's own NeuralForecast, and merge the frames on id and time."
            )
        names = [model.alias for model in models]
        if len(set(names)) < len(names):
            raise ParameterError(f"models need different names, got {names}. Give each TXL an alias=….")
        for name, value in {
            "local_scaler_type": local_scaler_type,
            "local_static_scaler_type": local_static_scaler_type,
        }.items():
            if value is not None:
                _warn_unused(name, value, "each series is normalised inside the model, by what it has seen")
        self.models, self.freq = list(models), freq
        self._rows: tuple[Any, Any, dict[str, str]] | None = None
        self._has_float_ids = False

    def fit(
        self,
        df: Any = None,
        static_df: Any = None,
        val_size: int | None = 0,
        val_df: Any = None,
        use_init_models: bool = False,
        verbose: bool = False,
        id_col: str = "unique_id",
        time_col: str = "ds",
        target_col: str = "y",
        distributed_config: Any = None,
        prediction_intervals: Any = None,
    ) -> None:
        """Train every model on a long frame.

        Parameters
        ----------
        df : frame, optional
            None: the rows of the last fit.
        static_df : frame, optional
            One row per series, for ``stat_exog_list``.
        val_size : int
            Last rows of each series that choose the epoch and are not trained on. 0: a tail chooses the number of
            epochs, then all rows are trained on.
        use_init_models : bool
            A fit always starts anew here; False warns from the second fit on, where neuralforecast would go on.
        verbose : bool
            Show bars.
        id_col, time_col, target_col : str
        val_df, distributed_config, prediction_intervals : None
            Anything else is an error.

        Raises
        ------
        ParameterError, FrameError
        """
        _refuse(val_df=(val_df, "hold rows out with val_size"))
        _refuse(distributed_config=(distributed_config, "train in one process"))
        _refuse(prediction_intervals=(prediction_intervals, "quantiles are trained: ask for level or quantiles"))
        columns = {"id_col": id_col, "time_col": time_col, "target_col": target_col}
        if df is None:
            df, static_df, columns = self._last_rows("fit", static_df)
            id_col = columns["id_col"]
        elif not use_init_models and hasattr(self.models[0], "forecaster_"):
            _warn_unused("use_init_models", False, "a fit always starts anew")
        for model in self.models:
            rows = self._columns_of(df, model, columns)
            model.forecaster_ = model.make(freq=self.freq, verbose=verbose).fit(
                rows, **columns, val_size=val_size or None, **model.fit_arguments(static_df)
            )
        self._rows = (df, static_df, columns)
        self._has_float_ids = _has_floats(df, id_col)

    def predict(
        self,
        df: Any = None,
        static_df: Any = None,
        futr_df: Any = None,
        verbose: bool = False,
        engine: Any = None,
        level: Sequence[float] | None = None,
        quantiles: Sequence[float] | None = None,
        h: int | None = None,
        **data_kwargs: Any,
    ) -> Any:
        """Forecast after the last row of each series.

        Parameters
        ----------
        df : frame, optional
            Rows to forecast after, each series from an empty memory. None: those of ``fit``.
        static_df, futr_df : frame, optional
            Covariates.
        verbose : bool
            Not used here: forecasts come at once.
        engine : None
            Anything else is an error.
        level, quantiles : sequence, optional
            Columns ``TXL-lo-80``, … or ``TXL_ql0.1``, …. Neither: the point forecast, or what the loss names.
        h : int, optional
            Steps ahead.
        **data_kwargs
            Refused by name.

        Returns
        -------
        frame
            Id, time and the columns of every model.

        Raises
        ------
        NotFittedError, ParameterError, FrameError
        """
        _refuse(engine=(engine, "give a pandas or polars frame"))
        _refuse(**{name: (value, "leave it out") for name, value in data_kwargs.items()})
        parts = []
        for model in self.models:
            forecaster = self._fitted(model)
            extra = model.only_used(futr_df=futr_df, static_df=static_df)
            rows = None if df is None else self._columns_of(df, model, self._columns(forecaster))
            wanted = _wanted(model, level, quantiles)
            parts.append(_named(forecaster.predict(h, df=rows, **wanted, **extra), model, level, quantiles))
        return self._back(_merged(parts, n_keys=2))

    def cross_validation(
        self,
        df: Any = None,
        static_df: Any = None,
        n_windows: int | None = 1,
        step_size: int = 1,
        val_size: int | None = 0,
        test_size: int | None = None,
        use_init_models: bool = False,
        use_fitted: bool = False,
        verbose: bool = False,
        refit: bool | int = False,
        id_col: str = "unique_id",
        time_col: str = "ds",
        target_col: str = "y",
        prediction_intervals: Any = None,
        level: Sequence[float] | None = None,
        quantiles: Sequence[float] | None = None,
        h: int | None = None,
        **data_kwargs: Any,
    ) -> Any:
        """Backtest: fit on the rows before the first cutoff, then forecast from every cutoff in one walk.

        Parameters
        ----------
        df : frame, optional
            None: the rows of the last fit.
        static_df : frame, optional
        n_windows : int or None
            Cutoffs per series; None takes them from ``test_size``.
        step_size : int
            Rows between cutoffs.
        val_size : int
            As in :meth:`fit`.
        test_size : int, optional
            Rows that all windows cover: h + step_size × (n_windows − 1).
        use_init_models : bool
            Every backtest fits anew (unless ``use_fitted``), so both values are the same.
        use_fitted : bool
            Walk with what was fitted; refuses cutoffs that it has seen.
        verbose : bool
        refit : bool or int
        id_col, time_col, target_col : str
        prediction_intervals : None
        level, quantiles : sequence, optional
        h : int, optional
        **data_kwargs
            Refused by name.

        Returns
        -------
        frame
            Id, time, cutoff, the columns of every model, target.

        Raises
        ------
        NotFittedError, ParameterError, FrameError
        """
        del use_init_models
        _refuse(prediction_intervals=(prediction_intervals, "quantiles are trained: ask for level or quantiles"))
        _refuse(**{name: (value, "leave it out") for name, value in data_kwargs.items()})
        columns = {"id_col": id_col, "time_col": time_col, "target_col": target_col}
        if df is None:
            df, static_df, columns = self._last_rows("cross_validation", static_df)
        parts = []
        for model in self.models:
            windows = _windows(n_windows, test_size, h=model.h if h is None else h, step_size=step_size)
            forecaster = self._fitted(model) if use_fitted else model.make(freq=self.freq, verbose=verbose)
            beside = model.only_used(static_df=static_df) if use_fitted else model.fit_arguments(static_df)
            named: dict[str, Any] = columns | beside
            found = forecaster.cross_validation(
                self._columns_of(df, model, columns),
                h=h,
                n_windows=windows,
                step_size=step_size,
                refit=refit,
                use_fitted=use_fitted,
                val_size=None if use_fitted else val_size or None,
                **_wanted(model, level, quantiles),
                **named,
            )
            parts.append(_named(found, model, level, quantiles))
        return self._back(_merged(parts, n_keys=3, target_col=columns["target_col"]), df)

    def save(
        self,
        path: str | PathLike[str],
        model_index: Sequence[int] | None = None,
        save_dataset: bool = True,
        overwrite: bool = False,
    ) -> None:
        """Write a folder with one file per model: weights and memories (safetensors and JSON, no pickle).

        Parameters
        ----------
        path : path
            A folder; made when missing.
        model_index : sequence of int, optional
            Only these models.
        save_dataset : bool
            True is all the same: the memories stand for the rows, and ``predict`` needs no others. The rows themselves
            are not written, so that ``fit`` and ``cross_validation`` need a frame after :meth:`load`.
        overwrite : bool
            Write into a folder that holds something.

        Raises
        ------
        NotFittedError, SaveError
        """
        if not save_dataset:
            _warn_unused("save_dataset", False, "memories are part of a model's file")
        folder = Path(path)
        if folder.is_dir() and any(folder.iterdir()) and not overwrite:
            raise SaveError(f"{str(folder)!r} is not empty. Give overwrite=True, or another folder.")
        picked = self.models if model_index is None else [self.models[i] for i in model_index]
        fitted = [(model, self._fitted(model)) for model in picked]
        try:
            os.makedirs(folder, exist_ok=True)
            entries = []
            for i, (model, forecaster) in enumerate(fitted):
                forecaster.save(folder / f"{i}.txl")
                entries.append({"alias": model.alias, "roles": model.roles, "outputs": model.outputs})
            document = {"format": 1, "freq": self.freq, "float_ids": self._has_float_ids, "models": entries}
            (folder / _MANIFEST).write_text(json.dumps(document, indent=1), encoding="utf-8")
        except OSError as error:
            raise SaveError(f"{str(folder)!r} cannot be written: {error}. Name another folder.") from error

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        verbose: bool = False,
        allow_pickle: bool = False,
        trust_remote: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Read what :meth:`save` wrote.

        Parameters
        ----------
        path : path
        verbose : bool
            Not used here: nothing is to be told.
        allow_pickle, trust_remote : bool
            There is nothing to allow: True warns.
        **kwargs
            Refused by name.

        Raises
        ------
        FileFormatError
            If the folder holds something else.
        """
        _refuse(**{name: (value, "leave it out") for name, value in kwargs.items()})
        for name, value in {"allow_pickle": allow_pickle, "trust_remote": trust_remote}.items():
            if value:
                _warn_unused(name, value, "no pickle is read, and nothing is fetched")
        folder = Path(path)
        try:
            document = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
            entries, freq = document["models"], document["freq"]
            models = []
            for i, entry in enumerate(entries):
                forecaster = TXLForecaster.load(folder / f"{i}.txl")
                model = TXL(forecaster.h, alias=str(entry["alias"]))
                model.params = forecaster.get_params()
                model.roles = {str(k): [str(name) for name in names] for k, names in entry["roles"].items()}
                model.outputs = {str(k): float(q) for k, q in entry["outputs"].items()}
                model.forecaster_ = forecaster
                models.append(model)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError(f"{str(folder)!r} is no folder that NeuralForecast.save wrote: {error!r}.") from error
        out = cls(models, freq)
        out._has_float_ids = document.get("float_ids") is True
        return out

    def _fitted(self, model: TXL) -> TXLForecaster:
        if not hasattr(model, "forecaster_"):
            raise NotFittedError("this NeuralForecast is not fitted yet. Call fit(df), or load a saved one.")
        return model.forecaster_

    def _last_rows(self, call: str, static_df: Any) -> tuple[Any, Any, dict[str, str]]:
        if self._rows is None:
            raise NotFittedError(f"{call}() without rows needs those of an earlier fit, and none are kept. Give df=….")
        df, static, columns = self._rows
        return df, static if static_df is None else static_df, columns

    def _back(self, table: nw.DataFrame[Any], df: Any = None) -> Any:
        """Give ids and target the types that they came with (AirPassengersDF counts its series in floats)."""
        name = table.columns[0]
        floats = self._has_float_ids if df is None else _has_floats(df, name)
        table = table.with_columns(nw.col(name).cast(nw.Float64)) if floats else table
        if df is not None:  # a backtest: by cutoff, then time; its target is float32 inside
            table = nw.maybe_reset_index(table.sort([name, table.columns[2], table.columns[1]]))
            kind = nw.from_native(df, eager_only=True)[table.columns[-1]].dtype
            table = table.with_columns(nw.col(table.columns[-1]).cast(kind)) if kind.is_float() else table
        return table.to_native()

    @staticmethod
    def _columns(forecaster: TXLForecaster) -> dict[str, str]:
        style = forecaster._style
        return {"id_col": str(style.id_col), "time_col": style.time_col, "target_col": style.target_col}

    @staticmethod
    def _columns_of(df: Any, model: TXL, columns: Mapping[str, str]) -> Any:
        """Keep the columns that have a role, as neuralforecast does; whole numbers as ids may come as floats."""
        frame = nw.from_native(df, eager_only=True)
        static = model.roles.get("static_cols", [])
        wanted = [*columns.values(), *(n for r in model.roles.values() for n in r if n not in static)]
        frame = frame.select([name for name in dict.fromkeys(wanted) if name in frame.columns])
        name = columns["id_col"]
        if name in frame.columns and frame[name].dtype.is_float():
            whole = frame[name].cast(nw.Int64)
            if (whole.cast(nw.Float64) == frame[name].cast(nw.Float64)).all():
                frame = frame.with_columns(whole.alias(name))
        return frame.to_native()


def _loss_parameters(loss: Any) -> tuple[dict[str, float], dict[str, Any]]:
    """Read columns and trained quantiles off a loss of neuralforecast's, known by the name of its class."""
    if loss is None:
        return {}, {"quantiles": QUANTILES}
    if isinstance(loss, str):
        return {}, {"quantiles": QUANTILES, "loss": loss}
    kind = type(loss).__name__
    if kind not in _LOSSES:
        raise ParameterError(
            f"loss={kind} cannot be trained here. Give one of {sorted(_LOSSES)}, or a name: 'pinball', "
            "'squared', 'mase' or 'owa'."
        )
    levels = getattr(loss, "quantiles", None) if kind == "MQLoss" else getattr(loss, "q", None)
    if levels is None:
        return {}, {"quantiles": QUANTILES, "loss": _LOSSES[kind]}
    asked = [round(float(q), 4) for q in (levels if kind == "MQLoss" else [levels])]
    names = [str(name) for name in getattr(loss, "output_names", [])]
    outputs = dict(zip(names, asked, strict=True)) if len(names) == len(asked) else {}
    return outputs, {"quantiles": tuple(sorted({*asked, 0.5})), "loss": _LOSSES[kind]}


def _without_counterpart(params: dict[str, Any]) -> dict[str, Any]:
    for name in [name for name in params if name in _WITHOUT_COUNTERPART]:
        _warn_unused(name, params[name], _WITHOUT_COUNTERPART[name])
    return {name: value for name, value in params.items() if name not in _WITHOUT_COUNTERPART}


def _wanted(model: TXL, level: Any, quantiles: Any) -> dict[str, Any]:
    if level is None and quantiles is None:
        return {"quantiles": list(model.outputs.values())}
    return {"level": level, "quantiles": quantiles}


def _named(frame: Any, model: TXL, level: Any, quantiles: Any) -> nw.DataFrame[Any]:
    """Give the columns the names of the model, or those of its loss where nothing else was asked for."""
    table = nw.from_native(frame, eager_only=True)
    if level is None and quantiles is None and model.outputs:
        # neuralforecast puts the median first.
        order = sorted(model.outputs, key=lambda suffix: suffix != "-median")
        own = {f"TXL_ql{model.outputs[suffix]:g}": f"{model.alias}{suffix}" for suffix in order}
        others = [name for name in table.columns if name != "TXL" and name not in own]
        n_keys = 3 if "cutoff" in others else 2
        return table.select([*others[:n_keys], *own, *others[n_keys:]]).rename(own)
    return table.rename(
        {name: model.alias + name[3:] for name in table.columns if name == "TXL" or name.startswith(("TXL-", "TXL_"))}
    )


def _has_floats(df: Any, column: str) -> bool:
    frame = nw.from_native(df, eager_only=True)
    return column in frame.columns and frame[column].dtype.is_float()


def _merged(parts: Sequence[nw.DataFrame[Any]], *, n_keys: int, target_col: str | None = None) -> nw.DataFrame[Any]:
    """Put the models' columns side by side: all frames have the same rows in the same order."""
    first, *others = parts
    keys = first.columns[:n_keys]
    shown = [first.select([name for name in first.columns if name != target_col])]
    for other in others:
        if not all((other[key] == first[key]).all() for key in keys):
            raise ParameterError("the models' forecasts differ in id or time. Give all models one h.")
        shown.append(other.select([name for name in other.columns if name not in (*keys, target_col)]))
    shown += [first.select(target_col)] if target_col is not None else []
    return nw.concat(shown, how="horizontal")


def _windows(n_windows: int | None, test_size: int | None, *, h: int, step_size: int) -> int:
    if test_size is None:
        if n_windows is None:
            raise ParameterError("n_windows=None needs test_size=…: one of the two says how many cutoffs there are.")
        return n_windows
    if (test_size - h) % step_size or test_size < h:
        raise ParameterError(
            f"test_size={test_size} must be h + step_size × (n_windows − 1), with h={h} and step_size={step_size}. "
            f"Take for example test_size={h + step_size * max(math.ceil((test_size - h) / step_size), 0)}."
        )
    return (test_size - h) // step_size + 1


def _refuse(**arguments: tuple[Any, str]) -> None:
    for name, (value, instead) in arguments.items():
        if value is not None:
            raise ParameterError(f"{name}={_shown(value)} is not supported by this adapter: {instead}.")


def _warn_unused(name: str, value: Any, instead: str) -> None:
    warnings.warn(f"{name}={_shown(value)} has no effect here: {instead}.", UnusedArgumentWarning, stacklevel=4)


def _shown(value: Any) -> str:
    """A plain value as it is; of anything else its type."""
    return repr(value) if isinstance(value, str | int | float | list | dict) else f"<{type(value).__name__}>"
