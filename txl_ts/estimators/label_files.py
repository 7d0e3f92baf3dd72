"""A tabular estimator as a file: safetensors and JSON through :mod:`txl_ts.store`, like a forecaster."""

from __future__ import annotations

import os
from dataclasses import asdict
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from txl_ts import __version__
from txl_ts.errors import FileFormatError, ParameterError
from txl_ts.estimators import files
from txl_ts.label_model import LabelConfig, LabelModel
from txl_ts.state import array_table, graph_names, to_arrays
from txl_ts.store import Bundle, Expected, load, save

if TYPE_CHECKING:
    from txl_ts.estimators.tabular import TabularEstimator

    _E = TypeVar("_E", bound=TabularEstimator)

_SCALERS = ("normaliser.", "answer.level", "answer.unit")


def save_tabular(path: str | PathLike[str], estimator: TabularEstimator) -> None:
    """Write weights, memories and parameters; see :meth:`TabularEstimator.save`."""
    arrays = {name: tensor.numpy() for name, tensor in estimator._model.state_dict().items()}
    scalers = {name: array.astype(np.float64) for name, array in arrays.items() if name.startswith(_SCALERS)}
    weights = {name: array for name, array in arrays.items() if name not in scalers}
    params = estimator.get_params(deep=False)
    if not isinstance(params["random_state"], int | np.integer | None):
        raise ParameterError(
            f"random_state={params['random_state']!r} cannot be saved: it is a generator. "
            "Set it to an integer with set_params(random_state=0) first; the fitted weights stay."
        )
    names = estimator.feature_names_in_.tolist() if hasattr(estimator, "feature_names_in_") else None
    config = {
        "class": type(estimator).__name__,
        "library": __version__,
        "params": files._plain(params),
        "model": estimator.config_.to_json(),
        "n_features_in": estimator.n_features_in_,
        "feature_names_in": names,
        "label_per": estimator._label_per,
        "named": estimator._named,
        "history": _without_nan(asdict(estimator.history_)),
        "fit_seconds": estimator.fit_seconds_,
        "learned": estimator._learned(),
    }
    positions = {"names": None if estimator._names is None else list(estimator._names)}
    state = to_arrays(estimator._kept) if estimator._names is not None else {}
    save(path, Bundle("model", config, {"weights": weights, "scalers": scalers, "state": state}, positions))


def load_tabular(path: str | PathLike[str], cls: type[_E]) -> _E:
    """Read what :func:`save_tabular` wrote; see :meth:`TabularEstimator.load`."""
    bundle = load(path, role="model", expected=lambda config, positions: _expected(config, positions, cls))
    config, names = bundle.config, bundle.positions["names"]
    try:
        out = cls(**config["params"])
        model = _empty_model(config, cls)
        arrays = bundle.tensors["weights"] | bundle.tensors["scalers"]
        model.load_state_dict({name: torch.from_numpy(array.astype(np.float32)) for name, array in arrays.items()})
        out._model, out.config_ = model.eval(), model.config
        out.n_features_in_ = model.config.n_channels
        if (columns := config["feature_names_in"]) is not None:
            if len(columns) != model.config.n_channels or not all(type(column) is str for column in columns):
                raise ValueError("feature_names_in must be one text per feature")
            out.feature_names_in_ = np.array(columns, dtype=object)
        out._label_per, out._named = _one_of(config["label_per"], ("row", "series")), bool(config["named"])
        out._names = _checked_names(names)
        state = bundle.tensors.get("state", {})
        specs = model.state_specs() if out._names is not None else ()
        names_kept = graph_names(spec.name for spec in specs)
        out._kept = {spec.name: state[name] for spec, name in zip(specs, names_kept, strict=True)}
        out.history_ = files._history(_with_nan(config["history"]))
        out.fit_seconds_ = config["fit_seconds"]
        out._learn_from(config["learned"])
        out._describe()
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FileFormatError(
            f"{os.fspath(path)!r} is a model file, but its config is not one that this version writes ({error!r}). "
            "Save the model again with the version that reads it."
        ) from error
    return out


def _expected(config: dict[str, Any], positions: dict[str, Any], cls: type[Any]) -> Expected:
    """Build the table of tensors from sizes alone, before any is read or made."""
    with torch.device("meta"):
        model = _empty_model(config, cls)
    table: dict[str, dict[str, tuple[tuple[int, ...], str]]] = {"weights": {}, "scalers": {}, "state": {}}
    for name, tensor in model.state_dict().items():
        part, dtype = ("scalers", "float64") if name.startswith(_SCALERS) else ("weights", "float32")
        table[part][name] = (tuple(tensor.shape), dtype)
    if positions["names"] is not None:
        table["state"] = array_table(model.state_specs(), n_lanes=len(positions["names"]))
    return table


def _empty_model(config: dict[str, Any], cls: type[Any]) -> LabelModel:
    if config["class"] != cls.__name__:
        raise FileFormatError(f"the file holds a {config['class']!r}, expected a {cls.__name__!r}.")
    sizes = LabelConfig.from_json(config["model"])
    if sizes.head != cls._head or sizes.stride != 1:
        raise FileFormatError(f"the file's model has the head {sizes.head!r}, expected {cls._head!r}.")
    width = max(sizes.d_model, sizes.d_ff, sizes.longest_mem_len)
    inputs = sizes.n_channels * (sizes.lookback + 2 * sizes.patch_len + 3)
    claimed = width * sizes.n_layers * (4 * sizes.d_model + 2 * sizes.d_ff) + inputs * (sizes.n_outputs + sizes.d_model)
    if sizes.n_layers > files._MOST_LAYERS or claimed > files._MOST_PARAMETERS:
        raise FileFormatError("the file claims a model of more layers or weights than anybody would save.")
    files.refuse_far(sizes)
    with torch.random.fork_rng(devices=[]):  # loading must not move the user's random numbers
        return LabelModel(sizes)


def _checked_names(names: Any) -> tuple[str | int, ...] | None:
    if names is None:
        return None
    kinds = {type(name) for name in names}
    if not isinstance(names, list) or len(set(names)) != len(names) or (kinds - {str} and kinds - {int}):
        raise ValueError("names must be distinct and all text or all integers")
    return tuple(names)


def _one_of(value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{value!r} is none of {choices}")
    return str(value)


def _without_nan(history: dict[str, Any]) -> dict[str, Any]:
    """NaN is not JSON."""
    return {
        name: [None if x != x else float(x) for x in value] if isinstance(value, list) else value
        for name, value in history.items()
    }


def _with_nan(history: Any) -> dict[str, Any]:
    return {
        name: [float("nan") if x is None else x for x in value] if isinstance(value, list) else value
        for name, value in history.items()
    }
