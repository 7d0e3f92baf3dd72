"""Sizes that fit the data: what ``"auto"`` means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from txl_ts.config import ModelConfig, check_integer, check_quantiles
from txl_ts.errors import FrequencyError, ParameterError
from txl_ts.frames import Freq, Roles, rows_in
from txl_ts.memory import completed, far_size, policy

# A stream's whole state should fit in this; the memory takes what the look-back leaves.
STATE_BUDGET = 128 * 1024
DEFAULT_QUANTILES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_LONGEST_PATCH = 48
_LONGEST_LOOKBACK = 1008
# Where time is uneven, attention by time does what long patches do on a grid.
_UNEVEN_PATCH = 4
_NOTHING = Roles()


def resolve_season(season_length: Any, *, freq: Freq) -> int:
    """Rows of a season: as given, or what the frequency suggests."""
    season = freq.season if season_length == "auto" else season_length
    check_integer("season_length", season, at_least=1)
    return int(season)


def resolve_sizes(
    params: Mapping[str, Any],
    *,
    freq: Freq,
    season: int,
    typical_length: int,
    beside: Roles = _NOTHING,
    n_channels: int = 1,
) -> ModelConfig:
    """Turn an estimator's parameters into a model's sizes.

    Parameters
    ----------
    params : mapping
        As ``TXLForecaster.get_params()`` gives them; ``"auto"`` and ``None`` are filled in.
    freq : Freq
    season : int
        Rows of a season.
    typical_length : int
        Rows of a typical series; the look-back leaves most of them for training.
    beside : Roles
        Columns beside the target.
    n_channels : int
        Targets of one lane.

    Raises
    ------
    ParameterError
        If a value cannot work.
    """
    patch_len = _given(params, "patch_len", lambda: _UNEVEN_PATCH if freq.is_uneven else _patch(season))
    far = policy(params["memory"])
    one_by_one = freq.is_uneven or (far is not None and far.has_state)
    stride = _given(params, "stride", lambda: 1 if one_by_one else patch_len)
    context = None if params["context"] is None else _context_rows(params["context"], freq=freq)
    lookback = _given(params, "lookback", lambda: _lookback(season, patch_len, typical_length, context))
    d_model, n_layers = params["d_model"], params["n_layers"]
    sizes = {
        "h": params["h"],
        "quantiles": DEFAULT_QUANTILES if params["quantiles"] is None else check_quantiles(params["quantiles"]),
        "patch_len": patch_len,
        "stride": stride,
        "lookback": lookback,
        "half_life": _given(params, "half_life", lambda: max(7 * min(season, 168), 4 * patch_len)),
        "scaler": params["scaler"],
        "transform": "none" if params["transform"] is None else params["transform"],
        "non_negative": params["non_negative"],
        "distribution": "none" if params["distribution"] is None else params["distribution"],
        "n_channels": n_channels,
        "memory": params["memory"],
        "precision": params["precision"],
        "memory_params": {} if params["memory_params"] is None else params["memory_params"],
        "d_model": d_model,
        "n_layers": n_layers,
        "n_heads": params["n_heads"],
        "d_ff": _given(params, "d_ff", lambda: 2 * d_model),
        "dropout": params["dropout"],
        **{f"{role}_kinds": beside.kinds(role) for role in ("hist", "futr", "static")},
    }
    # Checked before they are divided by.
    checked = completed(ModelConfig(**sizes, mem_len=0))
    mem_len = _given(params, "mem_len", lambda: _mem_len(checked, context))
    repeats = 1 < season < checked.lookback and not freq.is_uneven
    return replace(checked, mem_len=mem_len, lookback_season=season if repeats else 0)


def _given(params: Mapping[str, Any], name: str, auto: Any) -> Any:
    value = params[name]
    if isinstance(value, str) and value == "auto":
        return auto()
    if value is None or isinstance(value, str):
        raise ParameterError(f"{name}={value!r} must be a number or 'auto'.")
    return value


def _context_rows(context: Any, *, freq: Freq) -> int:
    try:
        return rows_in(freq, context)
    except FrequencyError as error:
        raise ParameterError(f"context={context!r} cannot be read: {error}") from error


def _patch(season: int) -> int:
    """One season if that is short, else the largest part of one that is."""
    if season < 4:
        return 8
    return max(n for n in range(1, min(season, _LONGEST_PATCH) + 1) if season % n == 0)


def _lookback(season: int, patch_len: int, typical_length: int, context: int | None) -> int:
    wanted = max(14 * season, 8 * patch_len) if context is None else context
    return max(min(wanted, _LONGEST_LOOKBACK, typical_length // 3), patch_len, 1)


def _mem_len(config: ModelConfig, context: int | None) -> int:
    """Fill the budget of state bytes, or reach as far as ``context`` asks."""
    if context is not None:
        return max(1, -(-(context - config.patch_len + 1) // (config.n_layers * config.stride)))
    slot = config.n_layers * 2 * config.stride * config.d_model * 4
    rest = config.n_context_rows * config.n_channels * 2 * 4 + 256  # kept rows; normaliser and counters
    rest += len(config.hist_kinds) * (2 * max(config.patch_len, 2) + 15) * 4
    rest += far_size(config)[1]
    rest += (config.d_model + (config.h + 2) * config.n_channels + 1) * 4 if config.futr_kinds else 0
    return max((STATE_BUDGET - rest) // slot - 1, 1)
