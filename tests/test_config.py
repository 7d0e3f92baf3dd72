"""Sizes are checked once, and the messages say what works."""

import json
import math

import pytest

from txl_ts.config import ModelConfig
from txl_ts.errors import ParameterError, TxlError

SIZES = {"h": 3, "quantiles": (0.1, 0.5, 0.9), "patch_len": 4, "stride": 2, "mem_len": 5, "lookback": 6}
SIZES |= {"half_life": 24.0, "d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 12}


def make(**changes):
    return ModelConfig(**{**SIZES, **changes})


def test_sizes_survive_a_round_trip_through_json():
    config = make(n_channels=2, scaler="standard", dropout=0.25, lookback_season=3)
    assert ModelConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_a_configuration_cannot_be_changed():
    with pytest.raises(AttributeError):
        make().h = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "reach"),
    [
        ({}, 2 * 5 * 2 + 4 - 1),
        ({"n_layers": 1, "mem_len": 0, "stride": 7, "patch_len": 1}, 0),
        ({"n_layers": 3, "mem_len": 11, "stride": 1, "patch_len": 1}, 33),
    ],
)
def test_reach_is_layers_times_memory_times_stride_and_the_patch(changes, reach):
    assert make(**changes).reach == reach


@pytest.mark.parametrize(
    ("changes", "rows"),
    [({}, 5), ({"lookback": 0}, 3), ({"lookback": 0, "patch_len": 1}, 1), ({"lookback": 1, "patch_len": 1}, 1)],
)
def test_context_rows_serve_patch_and_linear_path_and_are_never_none(changes, rows):
    assert make(**changes).n_context_rows == rows


@pytest.mark.parametrize(
    ("name", "least"),
    [
        *[(name, 1) for name in ("h", "n_channels", "patch_len", "stride", "n_layers", "n_heads", "d_ff")],
        *[("mem_len", 0), ("lookback", 0), ("lookback_season", 0), ("d_model", 2)],
    ],
)
@pytest.mark.parametrize("value", ["less", 2.0, "4", True, None])
def test_a_count_that_is_no_integer_or_too_small_is_named_with_its_type(name, least, value):
    value = least - 1 if value == "less" else value
    with pytest.raises(ParameterError) as error:
        make(**{name: value})
    assert str(error.value) == (
        f"{name}={value!r} ({type(value).__name__}) must be an integer of at least {least}. "
        f"Take for example {name}={max(least, 1)}."
    )


@pytest.mark.parametrize("lookback", [0, 3, 4])
def test_a_season_that_fills_the_look_back_is_refused(lookback):
    with pytest.raises(ParameterError, match=rf"lookback_season=4 must be less than lookback={lookback}:.*longer"):
        make(lookback=lookback, lookback_season=4)


@pytest.mark.parametrize(
    ("d_model", "n_heads", "hint"), [(6, 4, 8), (10, 4, 8), (3, 1, 2), (9, 3, 6), (30, 4, 24)], ids=str
)
def test_a_width_that_does_not_split_into_heads_is_refused_with_one_that_does(d_model, n_heads, hint):
    message = rf"d_model={d_model} must be even and a multiple of n_heads={n_heads}\. Take for example d_model={hint}\."
    with pytest.raises(ParameterError, match=message):
        make(d_model=d_model, n_heads=n_heads)
    make(d_model=hint, n_heads=n_heads)


@pytest.mark.parametrize("half_life", [1.9, 0, -3, math.nan, math.inf, "168", None])
def test_a_half_life_that_cannot_work_is_refused(half_life):
    with pytest.raises(
        ParameterError,
        match=r"half_life=.* must be a number of at least 2 and finite\. Take for example half_life=168\.",
    ):
        make(half_life=half_life)


@pytest.mark.parametrize("dropout", [-0.1, 1, 2.0, math.nan, "0.1", None])
def test_a_dropout_outside_its_range_is_refused(dropout):
    with pytest.raises(
        ParameterError, match=r"dropout=.* must be a number of at least 0 and below 1\. Take for example dropout=0\.1\."
    ):
        make(dropout=dropout)


@pytest.mark.parametrize(
    "quantiles",
    [(), (0.1, 0.9), (0.5, 0.1), (0.5, 0.5), (0.0, 0.5), (0.5, 1.0), (0.5, math.nan), (math.nan, 0.5)],
    ids=str,
)
def test_levels_must_increase_lie_inside_and_contain_the_median(quantiles):
    message = r"quantiles=\(.*must increase, lie in \(0, 1\) and contain 0\.5 .*quantiles=\(0\.1, 0\.5, 0\.9\)"
    with pytest.raises(ParameterError, match=message):
        make(quantiles=quantiles)


@pytest.mark.parametrize("quantiles", ["abc", None, 0.5, (None,)], ids=str)
def test_levels_that_are_no_numbers_are_refused(quantiles):
    with pytest.raises(ParameterError, match=r"quantiles=.* must be numbers such as \(0\.1, 0\.5, 0\.9\)"):
        make(quantiles=quantiles)


def test_levels_may_be_any_sequence_of_numbers():
    assert make(quantiles=[0.1, 0.5]).quantiles == (0.1, 0.5)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("scaler", "runing", r"scaler='runing' is not known\. Choose one of .*'standard'\]\. Did you mean 'running'\?"),
        ("scaler", "quantum", r"scaler='quantum' is not known\. Choose one of \['running', 'standard'\]\.$"),
        ("scaler", None, r"scaler=None is not known"),
    ],
)
def test_an_unknown_choice_is_refused_with_the_nearest_known_one(name, value, message):
    with pytest.raises(ParameterError, match=message):
        make(**{name: value})


def test_a_document_with_unknown_names_is_refused_by_name():
    with pytest.raises(ParameterError, match=r"unknown model parameters \['d_modell'\]\. This version knows \["):
        ModelConfig.from_json({**make().to_json(), "d_modell": 8})


def test_a_document_that_lacks_names_is_refused_by_name():
    document = make().to_json()
    del document["stride"]
    with pytest.raises(ParameterError, match=r"incomplete or of a wrong type: .*'stride'"):
        ModelConfig.from_json(document)


@pytest.mark.parametrize("changes", [{"half_life": "168"}, {"quantiles": 3}, {"quantiles": None}, {"dropout": None}])
def test_a_document_of_wrong_types_is_a_parameter_error(changes):
    with pytest.raises(ParameterError):
        ModelConfig.from_json({**make().to_json(), **changes})


def test_parameter_errors_are_value_errors_and_ours():
    with pytest.raises(ValueError, match="h=0"):
        make(h=0)
    with pytest.raises(TxlError, match="h=0"):
        make(h=0)
