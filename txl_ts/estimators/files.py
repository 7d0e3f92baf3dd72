"""A forecaster as a file, and its memories as one: safetensors and JSON through :mod:`txl_ts.store`."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from txl_ts import __version__
from txl_ts.config import ModelConfig
from txl_ts.conformal import N_GRID, Adaptive, Conformal, spacing
from txl_ts.errors import ExportError, FileFormatError
from txl_ts.estimators.bands import Calibration
from txl_ts.estimators.fleet import Fleet
from txl_ts.estimators.model_files import (
    MOST_LAYERS,
    MOST_PARAMETERS,
    history_from_json,
    history_to_json,
    plain,
    put_weights,
    reading,
    weights_expected,
    weights_of,
)
from txl_ts.estimators.replay_files import replay_arrays, replay_from, replay_positions, replay_table
from txl_ts.export import contract_of, export_onnx
from txl_ts.export.triton import export_triton
from txl_ts.frames import FrameStyle, Panel, Roles, base_ids, parse_freq, run_of, split_name
from txl_ts.live import LiveSession
from txl_ts.memory import far_size
from txl_ts.model import TXLModel
from txl_ts.state import array_table, graph_names, to_arrays
from txl_ts.store import Bundle, Expected, load, save
from txl_ts.training import LinearFit

if TYPE_CHECKING:
    from txl_ts.estimators.exports import Exports
    from txl_ts.estimators.forecaster import TXLForecaster

    _F = TypeVar("_F", bound=TXLForecaster)


def save_forecaster(path: str | PathLike[str], model: TXLForecaster) -> None:
    """Write weights, memories and parameters; see :meth:`TXLForecaster.save`."""
    fleet = model._fleet
    config = {
        "class": "TXLForecaster",
        "library": __version__,
        "params": plain(_told_params(model)),
        "model": model.config_.to_json(),
        "freq": model._freq.text,
        "style": model._style.to_json(),
        "history": history_to_json(model.history_),
        "linear_penalty": _number(model.linear_fit_.penalty),
        "linear_error": _number(model.linear_fit_.error),
        "validation_mse": _number(model.validation_mse_),
        "validation_mae": _number(model.validation_mae_),
        "fit_seconds": model.fit_seconds_,
        "cleaned": model.cleaned_,
        "skipped": [list(pair) for pair in model.skipped_],
    }
    if model._roles:
        config |= {"covariates": model._roles.to_json(), "linear_uses_known": model.linear_fit_.uses_known}
    config |= {"targets": list(model._targets)} if model._targets else {}
    state = to_arrays(fleet.state) | {"forecast": fleet.forecast, "linear_spread": model.linear_fit_.spread.numpy()}
    state |= {"static": fleet.static} if fleet.static.shape[1] else {}
    ends = model._fitted_end
    positions = _positions(fleet) | {"fitted_end": [ends.get(name) for name in fleet.ids]}
    here = set(fleet.ids)
    if gone := {name: end for name, end in ends.items() if name not in here}:
        positions["fitted_gone"] = {"ids": list(gone), "ends": list(gone.values())}
    if (calibration := model.calibration_) is not None:
        table, adaptive = calibration.table, calibration.adaptive
        rate, floor = None if adaptive is None else adaptive.rate, 0 if calibration.floor == 0 else None
        config["calibration"] = {"n_scores": table.n_scores, "rate": rate, "floor": floor}
        state["calibration.scores"] = table.scores
        positions["calibration"] = list(calibration.ids)
        if adaptive is not None:
            state["calibration.levels"], state["calibration.bands"] = adaptive.levels, adaptive.bands
            positions["calibration_origins"] = adaptive.origins.tolist()
    if (replay := model._replay).size:
        config["replay"] = {"size": replay.size, "n_rows": replay.n_rows, "n_seen": replay.n_seen}
        positions |= replay_positions(replay)
        state |= replay_arrays(replay)
    save(path, Bundle("model", config, {**weights_of(model._model), "state": state}, positions))


def load_forecaster(path: str | PathLike[str], cls: type[_F]) -> _F:
    """Read what :func:`save_forecaster` wrote; see :meth:`TXLForecaster.load`."""
    bundle = load(path, role="model", expected=_expected)
    config, positions = bundle.config, bundle.positions
    with reading(path):
        out = cls(**config["params"])
        model = _empty_model(config)
        put_weights(model, bundle.tensors)
        arrays = bundle.tensors["state"]
        ids = _checked_ids(positions)
        specs = model.state_specs()
        names = graph_names(spec.name for spec in specs)
        out._model = model.eval()
        out._fleet = Fleet(
            ids=ids,
            origins=np.array(positions["origins"], np.int64),
            last=np.array(positions["last"], np.int64),
            state={spec.name: arrays[name] for spec, name in zip(specs, names, strict=True)},
            forecast=arrays["forecast"],
            static=arrays.get("static", np.zeros((len(ids), 0), np.float32)),
        )
        out._roles = _roles(config, model.config)
        out._fitted_end = _fitted_ends(ids, positions)
        out._targets = _targets(config, (*ids, *out._fitted_end), is_mixed=model.config.n_channels > 1)
        out._style, out._freq = FrameStyle.from_json(config["style"]), parse_freq(config["freq"])
        out.config_ = model.config
        out.history_ = history_from_json(config["history"], may_lack=False)
        out.linear_fit_ = LinearFit(
            _back(config["linear_penalty"]),
            _back(config["linear_error"]),
            torch.from_numpy(arrays["linear_spread"]),
            config.get("linear_uses_known", False) is True,
        )
        out.validation_mse_, out.validation_mae_ = _back(config["validation_mse"]), _back(config["validation_mae"])
        out.fit_seconds_ = config["fit_seconds"]
        out._fit_panel = out._val_size = out._epochs = None  # a file does not hold rows
        out.calibration_, out.adapter_ = _calibration(bundle), None
        out._replay = replay_from(config.get("replay"), arrays, positions)
        out.cleaned_ = config["cleaned"]
        out.skipped_ = tuple((name, reason) for name, reason in config["skipped"])
        out._describe()
    return out


def export_state(path: str | PathLike[str], model: Exports) -> None:
    """Write the kept memories in the graph's names; see :meth:`TXLForecaster.export_state`."""
    _refuse_for_streams(model, "export_state")
    specs, fleet = model._model.stream_specs(), model._fleet
    config = {
        "class": "StreamState",
        "library": __version__,
        "model": model.config_.to_json(),
        "model_digest": digest_of(model._model),
        "freq": model._freq.text,
        "states": [asdict(spec) | {"shape": list(spec.shape)} for spec in specs],
    }
    state = to_arrays({spec.name: fleet.state[spec.name] for spec in specs})
    state |= {"static": fleet.static} if fleet.static.shape[1] else {}
    positions = _positions(fleet) | {"last_stamps": model._last_stamps().tolist()}
    if targets := _lane_targets(model):  # the lanes of a stream: its id and a target each
        ids = base_ids(fleet.ids, targets, model._style)
        names = (targets[split_name(name, targets)[1]] for name in fleet.ids)
        positions["ids"] = [list(pair) for pair in zip(ids, names, strict=True)]
    save(path, Bundle("stream-state", config, {"state": state}, positions))


# Of the rows that the error of a precision is measured on: enough to see it, few enough for seconds.
_MOST_SERIES, _MOST_ROWS = 16, 2048


def export_graph(
    path: str | PathLike[str],
    model: Exports,
    *,
    precision: str,
    profile: str,
    panel: Panel | None,
    max_error: float | None,
) -> dict[str, Any]:
    """Write the ONNX graph and its contract; see :meth:`TXLForecaster.export_onnx`."""
    _refuse_for_streams(model, "export_onnx")
    return export_onnx(
        model._model,
        path,
        about=_about(model),
        precision=precision,
        profile=profile,
        rows=None if panel is None else newest_rows(panel, h=model.config_.h),
        max_error=max_error,
    )


def newest_rows(panel: Panel, *, h: int) -> NDArray[np.float32]:
    """Lay the newest rows of the longest pieces side by side, (B, T, W) as streams bring them; NaN before a shorter."""
    longest = np.argsort(-panel.lengths, kind="stable")[:_MOST_SERIES]
    n_rows = min(int(panel.lengths.max()), _MOST_ROWS)
    lanes = [_wide_rows(panel, int(piece), n_rows, h=h) for piece in longest]
    rows = np.full((len(lanes), n_rows, lanes[0].shape[1]), np.nan, np.float32)
    for lane, newest in zip(rows, lanes, strict=True):
        lane[len(lane) - len(newest) :] = newest
    return rows


def _wide_rows(panel: Panel, piece: int, n_rows: int, *, h: int) -> NDArray[np.float32]:
    """Give the newest rows of a piece, with the columns beside them: hist, futr, static, and futr of the rows ahead."""
    stop = int(panel.lengths[piece])
    first = max(stop - n_rows, 0)
    begin = int(panel.offsets[piece])
    values = panel.values[begin + first : begin + stop].reshape(stop - first, -1)
    if panel.covariates is None:
        return values
    beside = run_of(panel, piece, first, stop, h=h)
    n = len(values)
    static = np.broadcast_to(beside.static, (n, len(beside.static)))
    ahead = beside.futr[np.arange(n)[:, None] + np.arange(1, h + 1)].reshape(n, -1)
    return np.concatenate([values, beside.hist, beside.futr[:n], static, ahead], axis=1)


def export_repository(folder: str | PathLike[str], model: Exports, **settings: Any) -> dict[str, Any]:
    """Write a model repository for Triton; see :meth:`TXLForecaster.export_triton`."""
    _refuse_for_streams(model, "export_triton")
    return export_triton(model._model, folder, about=_about(model), **settings)


def _about(model: Exports) -> dict[str, Any]:
    """What the graph's contract needs to know of the estimator."""
    freq, style, roles, targets = model._freq, model._style, model._roles, _lane_targets(model)
    channels = ["target"] if targets else list(model._targets) or [style.target_col]
    more: dict[str, Any] = {"columns": _columns_of(roles)} if roles else {}
    more |= {"targets": list(targets)} if targets else {}
    return more | {
        "model_type": "forecaster",
        "model_digest": digest_of(model._model),
        "freq": freq.text,
        "time": {
            "kind": "integer" if freq.kind == "integer" else "datetime",
            "zone": style.zone,
            "step_ns": freq.step if freq.kind == "fixed" else _days(model) if roles.calendar else None,
            "step": freq.step if freq.kind == "integer" else None,
        },
        "channels": [{"name": name, "unit": None} for name in channels],
        "trained": model.segment_len * model.config_.stride,
    }


def _lane_targets(model: Exports) -> tuple[str, ...]:
    """Give the targets that are lanes of their own; none if they share one."""
    return model._targets if model.config_.n_channels == 1 else ()


def _columns_of(roles: Roles) -> dict[str, list[dict[str, Any]]]:
    """Describe the columns of each role for a contract: their kinds, and the categories in the order of their codes."""

    def described(name: str) -> dict[str, Any]:
        if name in roles.cat:
            return {"name": name, "kind": "category", "categories": list(roles.vocabulary[name])}
        return {"name": name, "kind": "amount"}

    columns = {role: [described(name) for name in getattr(roles, role)] for role in ("hist", "futr", "static")}
    columns["futr"] += [{"name": name, "kind": "calendar"} for name in roles.calendar]
    return columns


def _days(model: Exports) -> int | None:
    """Give the step in nanoseconds where it is days or weeks that no clock change makes longer; else None."""
    freq, zone = model._freq, model._style.zone
    if freq.kind == "calendar" and freq.family in ("D", "W") and zone in (None, "UTC"):
        return int(freq.shift([0], [1])[0])
    return None


def live_session(model: Exports) -> LiveSession:
    """Open a torch session over the model; see :meth:`TXLForecaster.live`."""
    _refuse_for_streams(model, "live")
    return LiveSession(model._model, contract_of(model._model, about=_about(model)))


def digest_of(model: TXLModel) -> str:
    """Give the sha256 of a model's sizes and weights: a state belongs to exactly one."""
    digest = hashlib.sha256(repr(sorted(model.config.to_json().items())).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def _told_params(model: TXLForecaster) -> dict[str, Any]:
    """Give the parameters that a file tells: one of later versions is left out where it changes nothing."""
    params = model.get_params()
    return {name: value for name, value in params.items() if name != "replay_size" or value}


def _positions(fleet: Fleet) -> dict[str, Any]:
    return {"ids": list(fleet.ids), "origins": fleet.origins.tolist(), "last": fleet.last.tolist()}


def _expected(config: dict[str, Any], positions: dict[str, Any]) -> Expected:
    """Build the table of tensors from sizes alone, before any is read or made."""
    with torch.device("meta"):
        model = _empty_model(config)
    n_lanes, sizes = len(positions["ids"]), model.config
    state = array_table(model.state_specs(), n_lanes=n_lanes)
    state["forecast"] = ((n_lanes, sizes.h, sizes.n_channels * sizes.law_width), "float32")
    state["linear_spread"] = ((sizes.h,), "float32")
    if "calibration" in config:
        shape, n = (sizes.h, len(sizes.quantiles)), len(positions["calibration"])
        state["calibration.scores"] = ((*shape, N_GRID), "float32")
        if config["calibration"]["rate"] is not None:
            state["calibration.levels"] = ((n, *shape), "float32")
            state["calibration.bands"] = ((n, -(-sizes.h // spacing(sizes.h)), *shape), "float32")
    if "replay" in config:
        state |= replay_table(config["replay"], positions, sizes)
    if sizes.static_kinds:
        state["static"] = ((n_lanes, len(sizes.static_kinds)), "float32")
    return {**weights_expected(model), "state": state}


def _empty_model(config: dict[str, Any]) -> TXLModel:
    """Build a model of the sizes that a config claims, if they are not absurd."""
    if config["class"] != "TXLForecaster":
        raise FileFormatError(f"the file holds a {config['class']!r}, expected a 'TXLForecaster'.")
    sizes = ModelConfig.from_json(config["model"])
    width = max(sizes.d_model, sizes.d_ff, sizes.longest_mem_len, sizes.lookback, sizes.patch_len)
    outputs = sizes.h * max(len(sizes.quantiles), sizes.law_width) * sizes.n_channels
    if sizes.n_layers > MOST_LAYERS:
        raise FileFormatError(f"the file claims a model of {sizes.n_layers} layers, at most {MOST_LAYERS} are read.")
    columns = sum(abs(kind) + 10 for kind in (*sizes.hist_kinds, *sizes.futr_kinds, *sizes.static_kinds))
    if width * (sizes.n_layers * (4 * sizes.d_model + 2 * sizes.d_ff) + outputs) > MOST_PARAMETERS or (
        columns * max(width, sizes.h) > MOST_PARAMETERS
    ):
        raise FileFormatError(f"the file claims a model of more than {MOST_PARAMETERS:.0e} parameters.")
    refuse_far(sizes)
    with torch.random.fork_rng(devices=[]):  # loading must not move the user's random numbers
        return TXLModel(sizes)


def refuse_far(sizes: ModelConfig) -> None:
    """Raise FileFormatError where a far memory is larger than anybody would save."""
    if sum(far_size(sizes)) > MOST_PARAMETERS:
        raise FileFormatError(f"the file claims a far memory of more than {MOST_PARAMETERS:.0e} numbers.")


def _roles(config: dict[str, Any], sizes: ModelConfig) -> Roles:
    """Give the columns beside the target, or raise ValueError where they are not those of the model."""
    roles = Roles.from_json(config["covariates"]) if "covariates" in config else Roles()
    kinds = (roles.kinds("hist"), roles.kinds("futr"), roles.kinds("static"))
    if kinds != (sizes.hist_kinds, sizes.futr_kinds, sizes.static_kinds):
        raise ValueError("the columns beside the target are not those of the model")
    return roles


def _fitted_ends(ids: tuple[str | int, ...], positions: dict[str, Any]) -> dict[str | int, int]:
    """Give the last stamp that was trained on of each series, of those that were forgotten too."""
    gone = positions.get("fitted_gone", {"ids": [], "ends": []})
    told = [*zip(ids, positions["fitted_end"], strict=True), *zip(gone["ids"], gone["ends"], strict=True)]
    ends = {name: end for name, end in told if end is not None}
    if any(type(name) not in (str, int) or type(end) is not int for name, end in ends.items()):
        raise ValueError("fitted ends need a name and an integer each")
    return ends


def _targets(config: dict[str, Any], ids: tuple[str | int, ...], *, is_mixed: bool) -> tuple[str, ...]:
    """Give the target columns of a wide frame, or raise ValueError where the series are not named after them."""
    targets = tuple(config.get("targets", ()))
    if any(type(name) is not str for name in targets):
        raise ValueError("targets must be column names")
    n_channels = max(len(targets), 1) if config["params"].get("channels") == "mixed" else 1
    if n_channels != config["model"].get("n_channels"):
        raise ValueError("the channels of the model are not its targets")
    if (
        targets
        and not is_mixed
        and not all(any(str(name).endswith(f"/{target}") for target in targets) for name in ids)
    ):
        raise ValueError("series must be named after an id and a target")
    return targets


def _refuse_for_streams(model: Exports, call: str) -> None:
    """Raise ExportError where no graph can be: stamps ahead that a stream cannot tell, quantiles by a search."""
    freq = model._freq
    if model._roles.is_uneven:
        raise ExportError(
            f"{call} cannot work yet for uneven time (freq=None): graphs and stream sessions count rows. Fit with a "
            "freq for streams, or feed this by update(df) and predict(futr_df=…)."
        )
    if model._roles.calendar and freq.kind == "calendar" and _days(model) is None:
        raise ExportError(
            f"{call} cannot work for a model that reads the calendar over steps of no fixed length (freq="
            f"{freq.text!r}{'' if model._style.zone is None else f', zone {model._style.zone}'}): a stream counts its "
            "steps ahead in nanoseconds. Fit with calendar=None, and give such columns as futr_cols."
        )
    if model.config_.distribution == "negative_binomial":
        raise ExportError(
            f"{call} cannot work for distribution='negative_binomial': its quantiles are found by a search, and graphs "
            "do not search. Fit quantiles, or distribution='normal' or 'student_t', for streams."
        )


def _checked_ids(positions: dict[str, Any]) -> tuple[str | int, ...]:
    """Give the series' names, or raise ValueError where the positions are not those of a fleet."""
    ids, history = positions["ids"], (positions["origins"], positions["last"])
    kinds = {type(name) for name in ids}
    if not isinstance(ids, list) or len(set(ids)) != len(ids) or (kinds - {str} and kinds - {int}):
        raise ValueError("ids must be distinct and all text or all integers")
    if any(len(numbers) != len(ids) or any(type(n) is not int for n in numbers) for numbers in history):
        raise ValueError("origins and last need one integer per series")
    return tuple(ids)


def _calibration(bundle: Any) -> Calibration | None:
    """Give the calibration that a file holds; ValueError where its positions do not fit it."""
    about = bundle.config.get("calibration")
    if about is None:
        return None
    arrays, ids = bundle.tensors["state"], tuple(bundle.positions["calibration"])
    quantiles = tuple(float(q) for q in bundle.config["model"]["quantiles"])
    table = Conformal(quantiles, arrays["calibration.scores"], int(about["n_scores"]))
    floor = -np.inf if about["floor"] is None else float(about["floor"])
    if about["rate"] is None:
        return Calibration(table, floor)
    bands = arrays["calibration.bands"]
    origins = np.array(bundle.positions["calibration_origins"], np.int64).reshape(bands.shape[:2])
    if len(set(ids)) != len(ids):
        raise ValueError("calibrated ids must be distinct")
    return Calibration(table, floor, ids, Adaptive(float(about["rate"]), arrays["calibration.levels"], bands, origins))


def _number(value: float) -> float | None:
    """NaN is not JSON."""
    return None if value != value else float(value)


def _back(value: float | None) -> float:
    return float("nan") if value is None else float(value)
