"""A tabular estimator as a file: safetensors and JSON through :mod:`txl_ts.store`, like a forecaster."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from txl_ts import __version__
from txl_ts.errors import FileFormatError
from txl_ts.estimators import files
from txl_ts.estimators.model_files import (
    MOST_LAYERS,
    MOST_PARAMETERS,
    SCALERS,
    checked_names,
    feature_names,
    history_from_json,
    history_to_json,
    plain_params,
    put_feature_names,
    put_weights,
    reading,
    weights_expected,
    weights_of,
)
from txl_ts.label_model import LabelConfig, LabelModel
from txl_ts.state import array_table, graph_names, to_arrays
from txl_ts.store import Bundle, Expected, load, save

if TYPE_CHECKING:
    from txl_ts.estimators.tabular import TabularEstimator

    _E = TypeVar("_E", bound=TabularEstimator)

_SCALERS = (*SCALERS, "answer.level", "answer.unit")


def save_tabular(path: str | PathLike[str], estimator: TabularEstimator) -> None:
    """Write weights, memories and parameters; see :meth:`TabularEstimator.save`."""
    config = {
        "class": type(estimator).__name__,
        "library": __version__,
        "params": plain_params(estimator.get_params(deep=False)),
        "model": estimator.config_.to_json(),
        "n_features_in": estimator.n_features_in_,
        "feature_names_in": feature_names(estimator),
        "label_per": estimator._label_per,
        "named": estimator._named,
        "history": history_to_json(estimator.history_),
        "fit_seconds": estimator.fit_seconds_,
        "learned": estimator._learned(),
    }
    positions = {"names": None if estimator._names is None else list(estimator._names)}
    state = to_arrays(estimator._kept) if estimator._names is not None else {}
    save(path, Bundle("model", config, {**weights_of(estimator._model, _SCALERS), "state": state}, positions))


def load_tabular(path: str | PathLike[str], cls: type[_E]) -> _E:
    """Read what :func:`save_tabular` wrote; see :meth:`TabularEstimator.load`."""
    bundle = load(path, role="model", expected=lambda config, positions: _expected(config, positions, cls))
    config, names = bundle.config, bundle.positions["names"]
    with reading(path):
        out = cls(**config["params"])
        model = _empty_model(config, cls)
        put_weights(model, bundle.tensors)
        out._model, out.config_ = model.eval(), model.config
        put_feature_names(out, config["feature_names_in"], model.config.n_channels)
        out._label_per, out._named = _one_of(config["label_per"], ("row", "series")), bool(config["named"])
        out._names = checked_names(names)
        state = bundle.tensors.get("state", {})
        specs = model.state_specs() if out._names is not None else ()
        names_kept = graph_names(spec.name for spec in specs)
        out._kept = {spec.name: state[name] for spec, name in zip(specs, names_kept, strict=True)}
        out.history_ = history_from_json(config["history"], may_lack=True)
        out.fit_seconds_ = config["fit_seconds"]
        out._learn_from(config["learned"])
        out._describe()
    return out


def _expected(config: dict[str, Any], positions: dict[str, Any], cls: type[Any]) -> Expected:
    """Build the table of tensors from sizes alone, before any is read or made."""
    with torch.device("meta"):
        model = _empty_model(config, cls)
    table: Expected = {**weights_expected(model, _SCALERS), "state": {}}
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
    if sizes.n_layers > MOST_LAYERS or claimed > MOST_PARAMETERS:
        raise FileFormatError("the file claims a model of more layers or weights than anybody would save.")
    files.refuse_far(sizes)
    with torch.random.fork_rng(devices=[]):  # loading must not move the user's random numbers
        return LabelModel(sizes)


def _one_of(value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{value!r} is none of {choices}")
    return str(value)
