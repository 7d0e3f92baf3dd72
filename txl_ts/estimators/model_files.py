"""What the files of all estimators share: weights and scalers, parameters, names, losses, and how a bad one is told."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from txl_ts.errors import FileFormatError, ParameterError
from txl_ts.training import History

# The largest sizes that a file may claim, so that a stranger's cannot make the loader build a huge model.
MOST_PARAMETERS = 10**9
MOST_LAYERS = 500
# Numbers of the scaler are kept in float64.
SCALERS: tuple[str, ...] = ("normaliser.",)

Arrays = dict[str, NDArray[Any]]
Table = dict[str, tuple[tuple[int, ...], str]]


def weights_of(model: nn.Module, scalers: tuple[str, ...] = SCALERS) -> dict[str, Arrays]:
    """Give the parts ``weights`` and ``scalers`` of a bundle; names that begin with one of ``scalers`` are scalers."""
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    kept = {name: array.astype(np.float64) for name, array in arrays.items() if name.startswith(scalers)}
    return {"weights": {name: array for name, array in arrays.items() if name not in kept}, "scalers": kept}


def weights_expected(model: nn.Module, scalers: tuple[str, ...] = SCALERS) -> dict[str, Table]:
    """Describe what :func:`weights_of` would give for a model of these sizes, which may be on the meta device."""
    table: dict[str, Table] = {"weights": {}, "scalers": {}}
    for name, tensor in model.state_dict().items():
        part, dtype = ("scalers", "float64") if name.startswith(scalers) else ("weights", "float32")
        table[part][name] = (tuple(tensor.shape), dtype)
    return table


def put_weights(model: nn.Module, tensors: Mapping[str, Arrays]) -> None:
    """Put the parts ``weights`` and ``scalers`` of a bundle into a model."""
    arrays = tensors["weights"] | tensors["scalers"]
    model.load_state_dict({name: torch.from_numpy(array.astype(np.float32)) for name, array in arrays.items()})


def plain(value: Any) -> Any:
    """Put parameters into plain JSON: no tuples, nothing of numpy's."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple | list):
        return [plain(inner) for inner in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def plain_params(params: Mapping[str, Any]) -> Any:
    """Put the parameters of an estimator into plain JSON.

    Raises
    ------
    ParameterError
        If ``random_state`` is a generator.
    """
    if not isinstance(params["random_state"], int | np.integer | None):
        raise ParameterError(
            f"random_state={params['random_state']!r} cannot be saved: it is a generator. "
            "Set it to an integer with set_params(random_state=0) first; the fitted weights stay."
        )
    return plain(dict(params))


def feature_names(estimator: Any) -> list[str] | None:
    """Give the names of the features that were fitted, if they had any."""
    return estimator.feature_names_in_.tolist() if hasattr(estimator, "feature_names_in_") else None


def put_feature_names(estimator: Any, names: Any, n_features: int) -> None:
    """Take back what :func:`feature_names` gave; ValueError for anything else."""
    estimator.n_features_in_ = n_features
    if names is None:
        return
    if len(names) != n_features or not all(type(name) is str for name in names):
        raise ValueError("feature_names_in must be one text per feature")
    estimator.feature_names_in_ = np.array(names, dtype=object)


def checked_names(names: Any) -> tuple[str | int, ...] | None:
    """Give the names of series, if they have any; ValueError for what is none."""
    if names is None:
        return None
    kinds = {type(name) for name in names}
    if not isinstance(names, list) or len(set(names)) != len(names) or (kinds - {str} and kinds - {int}):
        raise ValueError("names must be distinct and all text or all integers")
    return tuple(names)


def history_to_json(history: History) -> dict[str, Any]:
    """Give losses as plain JSON, which knows no NaN; norms of hops only where there are any."""
    losses = {name: [None if x != x else float(x) for x in getattr(history, name)] for name in ("train", "validation")}
    return {
        **losses,
        "best_epoch": history.best_epoch,
        **({"hop_norms": history.hop_norms} if history.hop_norms else {}),
    }


def history_from_json(document: Any, *, may_lack: bool) -> History:
    """Take back what :func:`history_to_json` gave; TypeError or ValueError for anything else.

    ``may_lack`` says whether an epoch may have had no loss.
    """
    history = History(**document)  # unknown names are a TypeError
    if not isinstance(history.train, list) or not isinstance(history.validation, list):
        raise ValueError("losses must be lists")
    none = "nan" if may_lack else None  # float(None) is a TypeError
    train, validation = ([float(none if x is None else x) for x in one] for one in (history.train, history.validation))
    norms = [[float(norm) for norm in hops] for hops in history.hop_norms]
    return History(train, validation, int(history.best_epoch), norms)


@contextmanager
def reading(path: str | PathLike[str]) -> Iterator[None]:
    """Tell whatever a crafted config does to the code inside as a FileFormatError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FileFormatError(
            f"{os.fspath(path)!r} is a model file, but its config is not one that this version writes ({error!r}). "
            "Save the model again with the version that reads it."
        ) from error
