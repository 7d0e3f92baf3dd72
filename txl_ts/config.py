"""The sizes and choices that fix a model: plain JSON, checked once, never changed."""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from numbers import Integral, Real
from typing import Any, Self

from txl_ts.errors import ParameterError

SCALERS = ("running", "standard")
TRANSFORMS = ("none", "log1p", "sqrt", "asinh")
PRECISIONS = ("float32", "bf16")
DISTRIBUTIONS = ("none", "normal", "student_t", "negative_binomial")
GATES = ("none", "gru")
ACTIVATIONS = ("gelu", "relu")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of one model. Lengths are in rows unless they say otherwise.

    Parameters
    ----------
    h : int
        Steps ahead of the direct forecast.
    quantiles : tuple of float
        Increasing levels in (0, 1); .5 must be among them.
    n_channels : int
        Channels of one lane, each of them a target.
    patch_len : int
        Rows that one token looks back over, its own among them.
    stride : int
        Rows between two visits of the memory: row t attends to rows t, t − stride, … (same phase only).
    mem_len : int, or tuple of int
        Memory length in visits, of all layers or of each. A row sees ``mem_len + 1`` keys, its own among them.
    clamp_len : int, optional
        Keys of the window that lie further back than so many visits count as if they lay so far back; slots of a far
        memory keep their age.
    same_length : bool
        False lets a row see the whole memory and all of its own call: numbers then depend on how a stream is cut, and
        what cuts streams by itself refuses it. This and the fields below are there for parity with other readings of
        Transformer-XL.
    attend_zeros : bool
        Slots that hold nothing are rows of zeros that are attended to, as in some ports, not invisible. No graph.
    pre_lnorm : bool
        False normalises behind each sum, as the paper does, and not before each part and at the end.
    untie_r : bool
        False gives all layers one ``u`` and one ``v``.
    gate : {"none", "gru"}
        Layers add what they found to their rows, or let a GRU mix it in (GTrXL).
    activation : {"gelu", "relu"}
        Of the feed-forward part.
    scale_embedding : bool
        Multiply tokens by the root of ``d_model``.
    lookback : int
        Rows of the linear path beside the recurrent one; 0 switches it off.
    lookback_season : int
        Less than ``lookback``. To the linear path a series that is at least so long, and shorter than the look-back,
        repeated its first ``lookback_season`` rows before it began; in training, and with 0, what was before it
        stands at the mean.
    half_life : float
        Half-life of the running normaliser, in rows.
    scaler : {"running", "standard"}
        ``"running"`` normalises each lane by what it has seen; ``"standard"`` by the training rows, once for all.
    transform : {"none", "log1p", "sqrt", "asinh"}
        Map of the target into the model; forecasts come back through its inverse.
    non_negative : bool
        Forecasts below 0 become 0.
    distribution : {"none", "normal", "student_t", "negative_binomial"}
        Law of each step ahead, which is trained and then read at the quantiles; ``"none"`` trains the quantiles.
    memory : str
        Memory policy: ``"fifo"``, the window alone, or one that adds a far memory (see :mod:`txl_ts.memory`).
    memory_params : dict
        Its parameters, as far as they are not its defaults.
    precision : {"float32", "bf16"}
        In which the layers compute; memory, normaliser and all else are float32 in both.
    d_model, n_layers, n_heads, d_ff : int
        Width, layers, heads, width of the feed-forward part.
    dropout : float
        In [0, 1), during training only.
    hist_kinds, futr_kinds, static_kinds : tuple of int
        Columns beside the target that are known up to now, ahead, and for the whole series: 0 is an amount, a positive
        number the count of categories, −1 (ahead only) a number that needs no scaling. −2 (ahead only, the last one) is
        the time since the row before, in median steps: rows then come unevenly, and attention goes by time.
    """

    h: int
    quantiles: tuple[float, ...]
    n_channels: int = 1
    patch_len: int
    stride: int
    mem_len: int | Sequence[int]
    lookback: int
    half_life: float
    scaler: str = "running"
    transform: str = "none"
    non_negative: bool = False
    distribution: str = "none"
    memory: str = "fifo"
    memory_params: dict[str, int | float] = field(default_factory=dict, hash=False)
    precision: str = "float32"
    d_model: int
    n_layers: int
    n_heads: int
    d_ff: int
    dropout: float = 0.0
    hist_kinds: tuple[int, ...] = ()
    futr_kinds: tuple[int, ...] = ()
    static_kinds: tuple[int, ...] = ()
    lookback_season: int = 0
    clamp_len: int | None = None
    same_length: bool = True
    attend_zeros: bool = False
    pre_lnorm: bool = True
    untie_r: bool = True
    gate: str = "none"
    activation: str = "gelu"
    scale_embedding: bool = False

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            object.__setattr__(self, name, check_integer(name, getattr(self, name), at_least=least))
        object.__setattr__(self, "mem_len", self._checked_mem_len())
        if self.clamp_len is not None:
            object.__setattr__(self, "clamp_len", check_integer("clamp_len", self.clamp_len, at_least=1))
        object.__setattr__(self, "quantiles", check_quantiles(self.quantiles))
        if self.d_model % self.n_heads or self.d_model % 2:
            raise ParameterError(
                f"d_model={self.d_model} must be even and a multiple of n_heads={self.n_heads}. "
                f"Take for example d_model={2 * self.n_heads * max(1, self.d_model // (2 * self.n_heads))}."
            )
        half_life = check_number("half_life", self.half_life, at_least=2, below=math.inf, example=168)
        object.__setattr__(self, "half_life", half_life)
        object.__setattr__(self, "dropout", check_number("dropout", self.dropout, at_least=0, below=1, example=0.1))
        check_choice("scaler", self.scaler, SCALERS)
        check_choice("precision", self.precision, PRECISIONS)
        self._check_memory()
        check_choice("transform", self.transform, TRANSFORMS)
        check_choice("distribution", self.distribution, DISTRIBUTIONS)
        if self.distribution == "negative_binomial" and self.transform != "none":
            raise ParameterError(
                f"distribution='negative_binomial' is a law of counts, and transform={self.transform!r} would turn "
                "them into other numbers. Leave transform out."
            )
        for name in ("non_negative", *(name for name, default in _READING.items() if isinstance(default, bool))):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(f"{name}={getattr(self, name)!r} must be True or False.")
        check_choice("gate", self.gate, GATES)
        check_choice("activation", self.activation, ACTIVATIONS)
        for name in _KINDS:
            least = UNEVEN if name == "futr_kinds" else 0
            kinds = tuple(check_integer(name, kind, at_least=least) for kind in getattr(self, name))
            object.__setattr__(self, name, kinds)
        self._check_uneven()
        if self.lookback_season and self.lookback_season >= self.lookback:
            raise ParameterError(
                f"lookback_season={self.lookback_season} must be less than lookback={self.lookback}: a series that is "
                "a season long fills such a look-back. Take lookback_season=0, or a longer look-back."
            )
        if not self.same_length and self.memory != "fifo":
            raise ParameterError(
                f"same_length=False does not go with memory={self.memory!r}, whose slots change on a grid of rows "
                "whatever a call brings. Take memory='fifo'."
            )

    def _checked_mem_len(self) -> int | tuple[int, ...]:
        if not isinstance(self.mem_len, tuple | list):
            return check_integer("mem_len", self.mem_len, at_least=0)
        lengths = tuple(check_integer("mem_len", length, at_least=0) for length in self.mem_len)
        if len(lengths) != self.n_layers:
            raise ParameterError(
                f"mem_len={self.mem_len} has {len(lengths)} lengths for n_layers={self.n_layers}. Give one per layer, "
                "or one number for all."
            )
        return lengths[0] if len(set(lengths)) == 1 else lengths

    def _check_memory(self) -> None:
        if not isinstance(self.memory, str):
            raise ParameterError(f"memory={self.memory!r} must be the name of a memory policy such as 'fifo'.")
        params = self.memory_params
        plain = isinstance(params, dict) and all(isinstance(name, str) for name in params)
        if not plain or not all(type(value) in (int, float) for value in params.values()):
            raise ParameterError(f"memory_params={params!r} must be a dictionary of numbers such as {{'n_slots': 16}}.")
        object.__setattr__(self, "memory_params", dict(params))

    def _check_uneven(self) -> None:
        if UNEVEN in self.futr_kinds[:-1]:
            raise ParameterError(f"futr_kinds={self.futr_kinds} must have {UNEVEN}, the time, once and last.")
        if not self.is_uneven:
            return
        for name, value, cure in (
            ("stride", self.stride, 1),
            ("n_channels", self.n_channels, 1),
            ("lookback_season", self.lookback_season, 0),
        ):
            if value != cure:
                raise ParameterError(
                    f"{name}={value} does not go with uneven time (freq=None), where rows have no phase and each "
                    f"channel is a lane. Take {name}={cure}."
                )
        for name, default in {"clamp_len": None, "same_length": True, "attend_zeros": False}.items():
            if getattr(self, name) is not default:
                raise ParameterError(
                    f"{name}={getattr(self, name)} does not go with uneven time (freq=None), where attention goes by "
                    f"time and not by visits. Leave {name} out."
                )
        if self.lookback < 1:
            raise ParameterError(
                "lookback=0 does not go with uneven time (freq=None): a forecast starts from the last value. "
                "Take lookback=1 or more."
            )

    def check_any_split(self, call: str) -> None:
        """Raise ParameterError where numbers depend on how a stream is cut into calls."""
        if not self.same_length:
            raise ParameterError(
                f"same_length=False lets a row see all of its own call, and {call} cuts streams as it likes: the "
                "numbers would depend on it. Call the model with segments of your own, or take same_length=True."
            )

    @property
    def is_uneven(self) -> bool:
        """Whether the model knows when each row came."""
        return self.futr_kinds[-1:] == (UNEVEN,)

    @property
    def law_width(self) -> int:
        """Numbers that a forecast of one step and channel is kept as: its quantiles, or the parameters of its law."""
        return len(self.quantiles) if self.distribution == "none" else 2

    @property
    def has_covariates(self) -> bool:
        """Whether there are columns beside the target."""
        return bool(self.hist_kinds or self.futr_kinds or self.static_kinds)

    @property
    def reach(self) -> int:
        """Rows back that the recurrent path can see (the normaliser and the linear path reach further).

        For a far memory whose slots stand for some rows each, what they stand for, layer upon layer: what it makes of
        the hop from one to the next it has to learn. For one that keeps what it likes, the window's.
        """
        far = self.memory_params.get("n_slots", 0) * self.memory_params.get("every", 0)
        if isinstance(self.mem_len, int):
            return self.n_layers * max(self.mem_len * self.stride, int(far)) + self.patch_len - 1
        return sum(max(length * self.stride, int(far)) for length in self.mem_len) + self.patch_len - 1

    @property
    def longest_mem_len(self) -> int:
        """Memory length of the layer that has the longest."""
        return self.mem_len if isinstance(self.mem_len, int) else max(self.mem_len)

    def mem_len_of(self, layer: int) -> int:
        """Memory length of one layer."""
        return self.mem_len if isinstance(self.mem_len, int) else self.mem_len[layer]

    @property
    def n_context_rows(self) -> int:
        """Raw rows that the state keeps for patches and the linear path; at least one: empty tensors break graphs."""
        return max(self.patch_len, self.lookback, 2) - 1

    def to_json(self) -> dict[str, Any]:
        """Give the plain dictionary that :meth:`from_json` reads."""
        document = {**asdict(self), "quantiles": list(self.quantiles)}
        if self.distribution == "none":  # readers of before know no laws
            del document["distribution"]
        # nor what came later
        for name, default in {"clamp_len": None, "lookback_season": 0, **_READING}.items():
            if document[name] == default:
                del document[name]
        for name in _KINDS:
            kinds = document.pop(name)
            document |= {name: list(kinds)} if kinds else {}
        if isinstance(self.mem_len, tuple):
            document["mem_len"] = list(self.mem_len)
        if not self.memory_params:  # older versions do not know them
            del document["memory_params"]
        if self.precision == "float32":
            del document["precision"]
        return document

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Build from a plain dictionary; unknown and missing names are refused."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(document) - known):
            raise ParameterError(f"unknown model parameters {unknown[:5]}. This version knows {sorted(known)}.")
        try:
            lists = {name: tuple(document[name]) for name in ("quantiles", *_KINDS) if name in document}
            return cls(**{"quantiles": (), **document, **lists})
        except TypeError as error:
            raise ParameterError(f"the model's parameters are incomplete or of a wrong type: {error}.") from error


# Fields that give another reading of Transformer-XL's layer than this library's.
_READING: dict[str, Any] = {
    "same_length": True,
    "attend_zeros": False,
    "pre_lnorm": True,
    "untie_r": True,
    "gate": "none",
    "activation": "gelu",
    "scale_embedding": False,
}
# Kind of the column that says how long ago the row before came.
UNEVEN = -2
_KINDS = ("hist_kinds", "futr_kinds", "static_kinds")
_LEAST = {
    "h": 1,
    "n_channels": 1,
    "patch_len": 1,
    "stride": 1,
    "lookback": 0,
    "lookback_season": 0,
    "d_model": 2,
    "n_layers": 1,
    "n_heads": 1,
    "d_ff": 1,
}


def check_integer(name: str, value: Any, *, at_least: int) -> int:
    """Give a plain int, of numpy's too, or raise ParameterError unless it is at least ``at_least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < at_least:
        raise ParameterError(
            f"{name}={value!r} ({type(value).__name__}) must be an integer of at least {at_least}. "
            f"Take for example {name}={max(at_least, 1)}."
        )
    return int(value)


def check_number(name: str, value: Any, *, at_least: float, below: float, example: float) -> float:
    """Give a plain float, or raise ParameterError unless ``at_least <= value < below``."""
    if isinstance(value, bool) or not isinstance(value, Real) or not at_least <= float(value) < below:
        upper = "finite" if below == math.inf else f"below {below:g}"
        raise ParameterError(
            f"{name}={value!r} ({type(value).__name__}) must be a number of at least {at_least:g} and {upper}. "
            f"Take for example {name}={example:g}."
        )
    return float(value)


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise ParameterError with a suggestion unless ``value`` is one of ``choices``."""
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ParameterError(f"{name}={value!r} is not known. Choose one of {list(choices)}.{hint}")


def check_quantiles(quantiles: Any) -> tuple[float, ...]:
    """Give the levels as a tuple of floats, or raise ParameterError."""
    try:
        levels = tuple(float(q) for q in quantiles)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"quantiles={quantiles!r} must be numbers such as (0.1, 0.5, 0.9).") from error
    increasing = all(a < b for a, b in itertools.pairwise(levels))
    if not levels or not increasing or not 0 < levels[0] or not levels[-1] < 1 or 0.5 not in levels:
        raise ParameterError(
            f"quantiles={levels} must increase, lie in (0, 1) and contain 0.5 (the median is the point forecast). "
            "Take for example quantiles=(0.1, 0.5, 0.9)."
        )
    return levels
