"""A detector as a file: safetensors and JSON through :mod:`txl_ts.store`; and as a session, and a watch over it."""

from __future__ import annotations

import hashlib
import json
import warnings
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from txl_ts import __version__
from txl_ts.calibration.conformal import BETS
from txl_ts.config import ModelConfig
from txl_ts.detector_model import DetectorModel, SensorModel
from txl_ts.errors import FileFormatError, StateError, TxlWarning
from txl_ts.estimators import files
from txl_ts.estimators.model_files import (
    MOST_LAYERS,
    MOST_PARAMETERS,
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
from txl_ts.export.detector import detector_contract
from txl_ts.forms import check_form
from txl_ts.live import LiveSession
from txl_ts.runtime import read_contract
from txl_ts.runtime.files import Saved, save_streams
from txl_ts.runtime.names import LaneName
from txl_ts.runtime.plan import Place
from txl_ts.runtime.watching import watch_over
from txl_ts.state import array_table, graph_names, to_arrays
from txl_ts.store import Bundle, Expected, load, save
from txl_ts.stream import Watch
from txl_ts.stream.score import Surprise

if TYPE_CHECKING:
    from txl_ts.estimators.detector import TXLAnomalyDetector

    _D = TypeVar("_D", bound=TXLAnomalyDetector)

CLASS = "TXLAnomalyDetector"
STREAM = "stream"
"""What the only series is called where streams have names."""
# The most sensors that a file may claim.
_MOST_CHANNELS = 100_000


def save_detector(path: str | PathLike[str], detector: TXLAnomalyDetector) -> None:
    """Write weights, calibration, memories and parameters; see :meth:`TXLAnomalyDetector.save`."""
    model = detector._model
    config = {
        "class": CLASS,
        "library": __version__,
        "params": plain_params(detector.get_params(deep=False)),
        "model": detector.config_.to_json(),
        "surprise": model.surprise.to_json(),
        "n_features_in": detector.n_features_in_,
        "feature_names_in": feature_names(detector),
        "named": detector._named,
        "history": history_to_json(detector.history_),
        "fit_seconds": detector.fit_seconds_,
        "step_ns": detector._step_ns,
        "block_len": detector.block_len_,
        "contamination": detector.calibration_.budget.contamination,
        "scores": [len(part) for part in detector._scores],
    }
    positions: dict[str, Any] = {"names": None if detector._names is None else list(detector._names)}
    if detector._bets:
        positions["bets"] = [detector._bets.get(name) for name in positions["names"]]
    state = to_arrays(detector._kept) if detector._names is not None else {}
    state |= {"calibration": np.concatenate(detector._scores)}
    save(path, Bundle("model", config, {**weights_of(model.core), "state": state}, positions))


def load_detector(path: str | PathLike[str], cls: type[_D]) -> _D:
    """Read what :func:`save_detector` wrote; see :meth:`TXLAnomalyDetector.load`."""
    bundle = load(path, role="model", expected=_expected)
    config, tensors = bundle.config, bundle.tensors
    with reading(path):
        out = cls(**{name: _from_plain(name, value) for name, value in config["params"].items()})
        model = _empty_model(config)
        put_weights(model.core, tensors)
        out._model, out.config_ = model.eval(), model.config
        put_feature_names(out, config["feature_names_in"], model.n_channels)
        out._named, out._names = bool(config["named"]), checked_names(bundle.positions["names"])
        specs = model.state_specs() if out._names is not None else ()
        kept = graph_names(spec.name for spec in specs)
        out._kept = {spec.name: tensors["state"][name] for spec, name in zip(specs, kept, strict=True)}
        bets = bundle.positions.get("bets", [])  # older files have none
        check_form(bets, [(BETS, None)], where="bets")
        named = zip(out._names or (), bets, strict=True) if bets else ()
        out._bets = {name: one for name, one in named if one is not None}
        out.history_ = history_from_json(config["history"], may_lack=True)
        out.fit_seconds_, out._step_ns, out.block_len_ = config["fit_seconds"], config["step_ns"], config["block_len"]
        edges = np.cumsum(config["scores"])[:-1]
        out._scores = np.split(tensors["state"]["calibration"], edges)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TxlWarning)  # said when it was fitted
            out._take_calibration(out._calibrated(out._scores, config["contamination"], out._step_ns))
        out._describe()
    return out


def _from_plain(name: str, value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _expected(config: dict[str, Any], positions: dict[str, Any]) -> Expected:
    """Build the table of tensors from sizes alone, before any is read or made."""
    with torch.device("meta"):
        model = _empty_model(config)
    table: Expected = {**weights_expected(model.core), "state": {}}
    if positions["names"] is not None:
        table["state"] = array_table(model.state_specs(), n_lanes=len(positions["names"]))
    sizes = config["scores"]
    if not all(type(n) is int and n >= 0 for n in sizes):
        raise ValueError("scores must be counts")
    table["state"]["calibration"] = ((sum(sizes),), "float64")
    return table


def _empty_model(config: dict[str, Any]) -> DetectorModel:
    if config["class"] != CLASS:
        raise FileFormatError(f"the file holds a {config['class']!r}, expected a {CLASS!r}.")
    sizes, n = ModelConfig.from_json(config["model"]), config["n_features_in"]
    independent = config["params"]["channels"] == "independent"
    if type(n) is not int or not 0 < n <= _MOST_CHANNELS or sizes.n_channels != (1 if independent else n):
        raise FileFormatError("the file's model is not of as many sensors as the file says.")
    width = max(sizes.d_model, sizes.d_ff, sizes.longest_mem_len)
    inputs = sizes.n_channels * (2 * sizes.patch_len + 3 + sizes.lookback * sizes.h)
    outputs = sizes.h * sizes.n_channels * len(sizes.quantiles)
    claimed = width * (sizes.n_layers * (4 * sizes.d_model + 2 * sizes.d_ff) + outputs) + inputs * sizes.d_model
    if sizes.n_layers > MOST_LAYERS or claimed > MOST_PARAMETERS or sizes.has_covariates:
        raise FileFormatError("the file claims a model of more layers or weights than anybody would save.")
    surprise = Surprise.from_json(config["surprise"])
    of_columns = [one for one in (surprise.scale, surprise.judged) if isinstance(one, tuple)]
    if surprise.horizons[-1] > sizes.h or any(len(one) != n for one in of_columns):
        raise FileFormatError("the file's score is not one of its model.")
    with torch.random.fork_rng(devices=[]):  # loading must not move the user's random numbers
        return DetectorModel(SensorModel(sizes), surprise, independent=independent, n_channels=n)


# ---------------------------------------------------------------------------------------------------------- sessions


def live_session(detector: TXLAnomalyDetector) -> LiveSession:
    """Open a torch session over the model."""
    return LiveSession(detector._model, contract_of_detector(detector))  # type: ignore[arg-type]


def export_state(path: str | PathLike[str], detector: TXLAnomalyDetector) -> None:
    """Write the kept memories alone; see :meth:`TXLAnomalyDetector.export_state`."""
    if detector._names is None:
        raise StateError(
            "no memories were kept: a panel without series_id cannot be told apart later. Name the series in fit."
        )
    contract = read_contract(json.dumps(contract_of_detector(detector)), where="the contract")
    ages = detector._kept["age"][:, 0].tolist()
    places: dict[LaneName, Place] = {}
    for name, n_rows in zip(detector._names, ages, strict=True):
        places[name if detector._named else STREAM] = Place(n_rows)
    arrays = [detector._kept[spec.name] for spec in contract.specs]
    save_streams(path, Saved(places, arrays), contract, small=[])


def contract_of_detector(detector: TXLAnomalyDetector) -> dict[str, Any]:
    """Write down what a graph of this detector promises."""
    return detector_contract(detector._model, about=about_detector(detector))


def about_detector(detector: TXLAnomalyDetector) -> dict[str, Any]:
    """What the graph's contract needs to know of the estimator."""
    calibration = detector.calibration_
    budget = calibration.budget
    return {
        "model_digest": digest_of(detector._model),
        "channels": [{"name": name, "unit": None} for name in detector._sensors()],
        "trained": detector.segment_len,
        "step_ns": detector._step_ns,
        "alpha": calibration.alpha,
        "calibration": {
            "step": calibration.step_,
            "contamination": budget.contamination,
            "false_alarms": budget.false_alarms,
            "per": budget.per,
            "n_streams": budget.n_streams,
            "tail": calibration.tail,
            "online": calibration.online,
        },
        "scores": detector._scores,
    }


def digest_of(model: DetectorModel) -> str:
    """Give the sha256 of a detector's sizes, weights and score: a state belongs to exactly one."""
    digest = hashlib.sha256(files.digest_of(model.core).encode())
    digest.update(repr(sorted(model.surprise.to_json().items())).encode())
    return digest.hexdigest()


def opened_watch(detector: TXLAnomalyDetector, options: dict[str, Any]) -> Watch:
    """Open a watch over the torch model; see :meth:`TXLAnomalyDetector.watch`."""
    return watch_over(live_session(detector), **options)
