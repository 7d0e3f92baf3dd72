"""The contract of an exported graph: what it eats, what it remembers, and in which time it lives."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from txl_ts.errors import FileFormatError
from txl_ts.runtime.layout import Column, Layout
from txl_ts.runtime.wall import WallClock
from txl_ts.state import TensorSpec, state_nbytes
from txl_ts.wall_clock import is_feature

CONTRACT_KEY = "txl_ts.contract"
MAJOR = 1
_HINT = "Export the model again with `export_onnx`."
_DTYPES = ("float32", "int32")
SAID = ("y", "score", "parts", "p_value")
"""What the graph of a detector gives, before the states."""
# Inputs for the columns beside the channels.
BESIDE = ("hist", "futr", "futr_ahead", "static")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Contract:
    """What a graph's metadata promise; every key was checked.

    Attributes
    ----------
    model_digest : str
        sha256 of the model's sizes and weights: a state belongs to exactly one.
    channels : tuple of str
        Names of the C channels, in the graph's order; or of the targets, each of which is a lane of its own.
    horizon : int
        Steps ahead, h.
    quantiles : tuple of float
        Levels, increasing; .5 is among them.
    specs : tuple of TensorSpec
        The state of one stream, in the graph's order.
    inputs, outputs : tuple of str
        Names of the graph's state tensors, ``past.NN.…`` and ``present.NN.…``, in the order of ``specs``.
    freq : str
        The step between rows.
    is_datetime : bool
        True if stamps are nanoseconds since 1970, False if they are plain integers.
    zone : str or None
        Zone of the time column: stamps are then instants in UTC. None means wall time.
    step : int or None
        The step in units of the stamps; None if it has no fixed length (days of a zone, months).
    longest : int
        Rows that one call of the graph takes.
    reach : int
        Missing rows that are walked before a stream begins anew.
    warm_rows : int
        Rows after which the look-back and one layer's memory are filled.
    n_layers, mem_len, stride : int
        Layers of memory, visits that each keeps, and rows between two visits.
    in_place : tuple of str
        Names of ``inputs`` whose output may share their buffer; none unless the contract says so.
    fixed : tuple of int, or None
        Lanes and rows of each call, for a graph that takes no others.
    is_lane_independent : bool
        False if the graph mixes lanes; streams are then run one by one.
    is_detector : bool
        The graph scores each row, and takes the quality of each reading as ``status``.
    alpha : float
        Of a detector: the p-value at which rows alarm.
    layout : Layout
        What a row of one lane holds.
    targets : tuple of str
        The channels of a stream, where each of them is a lane of its own; else none.
    document : dict
        All of the contract, as it was read.
    """

    model_digest: str
    channels: tuple[str, ...]
    horizon: int
    quantiles: tuple[float, ...]
    specs: tuple[TensorSpec, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    freq: str
    is_datetime: bool
    zone: str | None
    step: int | None
    longest: int
    reach: int
    warm_rows: int
    n_layers: int
    mem_len: int
    stride: int
    in_place: tuple[str, ...]
    fixed: tuple[int, int] | None
    is_lane_independent: bool
    is_detector: bool
    alpha: float
    layout: Layout
    targets: tuple[str, ...]
    document: dict[str, Any] = field(repr=False)

    @property
    def state_nbytes(self) -> int:
        """Bytes that one stream's state takes."""
        return state_nbytes(self.specs) * max(1, len(self.targets))

    @cached_property
    def row_layout(self) -> Layout:
        """What a row of one stream holds: all targets, and the columns that they share."""
        return replace(self.layout, n_channels=len(self.channels))

    @cached_property
    def clock(self) -> WallClock | None:
        """What reads the calendar off the stamps; None if the graph has none."""
        return WallClock(self.layout.calendar, self.zone) if self.layout.calendar else None

    @property
    def answer_shape(self) -> tuple[int, int, int]:
        """Shape of what is said of one row: (h, C, Q), with one step more for the scores of a detector."""
        return self.horizon + self.is_detector, self.layout.n_channels, len(self.quantiles)

    def tensors(self) -> dict[str, tuple[str, tuple[int | None, ...]]]:
        """Give dtype and shape of everything that the graph takes and gives; None where a size is free."""
        n, h, q = self.layout.n_channels, self.horizon, len(self.quantiles)
        batch, time = self.fixed or (None, 1 if self.longest == 1 else None)
        table: dict[str, tuple[str, tuple[int | None, ...]]] = {
            "x": ("float32", (batch, time, n)),
            "start": ("int32", (batch, 1)),
            "y": ("float32", (batch, time, h, n, q)),
        }
        if self.is_detector:
            table |= {"status": ("int32", (batch, time, n)), "parts": ("float32", (batch, time, n))}
            table |= dict.fromkeys(("score", "p_value"), ("float32", (batch, time)))
        for name, (_, shape) in self.layout.parts.items():
            table[name] = ("float32", (batch, *shape) if name == "static" else (batch, time, *shape[1:]))
        for before, after, spec in zip(self.inputs, self.outputs, self.specs, strict=True):
            table[before] = table[after] = (spec.dtype, (batch, *spec.shape))
        return table


def read_contract(text: str | None, *, where: str) -> Contract:
    """Read a contract from a model's metadata.

    Parameters
    ----------
    text : str or None
        What stands under ``txl_ts.contract``; None if nothing does.
    where : str
        The file's name for messages.

    Raises
    ------
    FileFormatError
        If it is not there, of an unknown major schema, or lacks something. Unknown keys are ignored.
    """
    if text is None:
        raise FileFormatError(f"{where} carries no {CONTRACT_KEY!r} in its metadata: it is no graph of txl-ts. {_HINT}")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{where}: the contract is not JSON: {error}. {_HINT}") from error
    root = _Node(document, "", where)
    _check_schema(root.text("schema"), where)
    inputs = {node.text("name"): node for node in root.nodes("inputs")}
    outputs = [node.text("name") for node in root.nodes("outputs")]
    is_detector = outputs == list(SAID)
    more = ("status",) if is_detector else BESIDE
    if not {"x", "start"} <= set(inputs) <= {"x", "start", *more} or not (is_detector or outputs == ["y"]):
        root.fail(f"has the inputs {sorted(inputs)} and outputs {outputs}", "['start', 'x'] and ['y']")
    states, memory, segment = root.nodes("states"), root.node("memory"), root.node("segment")
    is_datetime, zone, step = _time(root)
    if segment.count("min", least=1) != 1:
        root.fail("has a shortest segment of more than one row", "segment.min = 1")
    lookback = root.count("lookback", least=0) if "lookback" in root.items else 0
    mem_len, stride = memory.count("length", least=0), memory.count("stride", least=1)
    channels, targets = _channels(inputs["x"]), _targets(root)
    horizon = root.count("horizon", least=1)
    layout = _layout(inputs, n_channels=len(channels), h=horizon, taken=targets or channels)
    if layout.calendar and step is None:
        root.fail("reads the calendar ahead, and its step has no fixed length", "time.step_ns")
    names, fixed = _distinct(root, [node.text("in") for node in states]), _fixed(root)
    longest = segment.count("max", least=1)
    return Contract(
        model_digest=root.text("model_digest"),
        channels=targets or channels,
        horizon=horizon,
        quantiles=_quantiles(root),
        specs=tuple(_spec(node) for node in states),
        inputs=names,
        outputs=_distinct(root, [node.text("out") for node in states]),
        freq=root.text("freq"),
        is_datetime=is_datetime,
        zone=zone,
        step=step,
        longest=longest if fixed is None else fixed[1],
        reach=memory.count("reach", least=0),
        warm_rows=root.count("warm_rows", least=0) if "warm_rows" in root.items else max(lookback, mem_len * stride),
        n_layers=memory.count("layers", least=0),
        mem_len=mem_len,
        stride=stride,
        in_place=_in_place(root, names),
        fixed=fixed,
        is_lane_independent=root.get("lane_independent", bool),
        is_detector=is_detector,
        alpha=_alpha(root) if is_detector else math.nan,
        layout=layout,
        targets=targets,
        document=document,
    )


class _Node:
    """One object of the document, which knows its place for messages."""

    def __init__(self, items: Any, place: str, where: str) -> None:
        self.place, self.where = place, where
        if not isinstance(items, Mapping):
            self.fail(f"is a {type(items).__name__}", "an object")
        self.items: Mapping[str, Any] = items

    def fail(self, found: str, expected: str) -> Any:
        name = f"the contract's {self.place!r}" if self.place else "the contract"
        raise FileFormatError(f"{self.where}: {name} {found}, expected {expected}. {_HINT}")

    def get(self, key: str, kind: type[_T]) -> _T:
        if key not in self.items:
            self.fail(f"lacks {key!r} (it holds {', '.join(sorted(map(str, self.items)))})", f"a {kind.__name__} there")
        value = self.items[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.fail(f"has {key}={value!r:.80}", f"a {kind.__name__}")
        return value

    def text(self, key: str) -> str:
        return self.get(key, str)

    def count(self, key: str, *, least: int, most: int = 2**31) -> int:
        value = self.get(key, int)
        if not least <= value < most:
            self.fail(f"has {key}={value}", f"{least} or more")
        return value

    def node(self, key: str) -> _Node:
        return _Node(self.get(key, dict), self._inside(key), self.where)

    def nodes(self, key: str) -> list[_Node]:
        return [_Node(item, f"{self._inside(key)}[{i}]", self.where) for i, item in enumerate(self.get(key, list))]

    def _inside(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place else key


def _alpha(root: _Node) -> float:
    alpha = root.node("detector").get("alpha", float)
    if not 0 < alpha <= 1:
        root.fail(f"has detector.alpha={alpha!r}", "a number in (0, 1]")
    return alpha


def _check_schema(schema: str, where: str) -> None:
    if schema.partition(".")[0] != str(MAJOR):
        raise FileFormatError(
            f"{where} has a contract of schema {schema!r:.40}, this version reads {MAJOR}.x. "
            "Upgrade txl-ts where the graph runs, or export the model again with the version installed here."
        )


def _channels(x: _Node) -> tuple[str, ...]:
    names = tuple(node.text("name") for node in x.nodes("channels"))
    if not names or len(set(names)) != len(names) or x.get("dims", list)[-1:] != [len(names)]:
        x.fail(f"has the channels {list(names)} and dims {x.items['dims']}", "one distinct name for each channel")
    return names


def _targets(root: _Node) -> tuple[str, ...]:
    if root.items.get("targets") is None:
        return ()
    names = root.get("targets", list)
    if not names or any(type(name) is not str for name in names) or len(set(names)) != len(names):
        root.fail(f"has targets={names!r:.80}", "distinct names")
    return tuple(names)


def _layout(inputs: Mapping[str, _Node], *, n_channels: int, h: int, taken: tuple[str, ...]) -> Layout:
    """Read the columns beside the channels, and hold the sizes of their inputs to them."""
    found: dict[str, list[Column]] = {name: [] for name in ("hist", "futr", "static")}
    calendar: list[str] = []
    for name, columns in found.items():
        for node in inputs[name].nodes("columns") if name in inputs else ():
            kind = node.text("kind")
            if kind == "calendar" and name == "futr" and is_feature(node.text("name")):
                calendar.append(node.text("name"))
            elif kind not in ("amount", "category") or (name == "futr" and calendar):
                node.fail(
                    f"has kind={kind!r:.40}",
                    "'amount' or 'category', and 'calendar' features that are known at the end of futr",
                )
            else:
                columns.append(Column(node.text("name"), _categories(node) if kind == "category" else None))
    layout = Layout(n_channels, h, *(tuple(columns) for columns in found.values()), tuple(calendar))
    names = [*taken, *(column.name for columns in found.values() for column in columns)]
    for name in BESIDE:
        wanted = list(layout.parts[name][1]) if name in layout.parts else None
        dims = inputs[name].get("dims", list) if name in inputs else None
        if wanted is not None and name != "static":
            wanted = ["time", *wanted[1:]]
        if dims != (wanted if wanted is None else ["batch", *wanted]):
            inputs["x"].fail(f"stands beside {name!r} of dims {dims}", f"{['batch', *(wanted or ())]} by its columns")
    if len(set(names)) != len(names):
        inputs["x"].fail(f"stands beside the columns {names[:5]}", "distinct names")
    return layout


def _categories(node: _Node) -> tuple[str | int, ...]:
    words = node.get("categories", list)
    if any(type(word) not in (str, int) for word in words) or len(set(words)) != len(words):
        node.fail(f"has categories={words!r:.80}", "distinct texts or integers")
    return tuple(words)


def _quantiles(root: _Node) -> tuple[float, ...]:
    levels = root.get("quantiles", list)
    if not all(type(level) is float and 0 < level < 1 for level in levels) or sorted(set(levels)) != levels:
        root.fail(f"has quantiles={levels!r:.80}", "increasing numbers between 0 and 1")
    if 0.5 not in levels:
        root.fail(f"has quantiles={levels!r:.80}", "0.5 among them")
    return tuple(levels)


def _spec(node: _Node) -> TensorSpec:
    name, dtype, init, dims = node.text("in"), node.text("dtype"), node.text("init"), node.get("dims", list)
    if dtype not in _DTYPES or init != "zeros":
        node.fail(f"has dtype={dtype!r} and init={init!r}", f"one of {_DTYPES} and 'zeros'")
    if not all(type(n) is int and 0 < n < 2**31 for n in dims) or np.prod([float(n) for n in dims]) > 2**31:
        node.fail(f"has dims={dims!r:.80}", "the sizes without the batch")
    if name.count(".") < 2:
        node.fail(f"has in={name!r}", "a name such as 'past.00.keys_0'")
    return TensorSpec(name.split(".", 2)[2], tuple(dims), dtype)


def _distinct(root: _Node, names: list[str]) -> tuple[str, ...]:
    if not names or len(set(names)) != len(names):
        root.fail(f"has the state tensors {names}", "one distinct name for each")
    return tuple(names)


def _in_place(root: _Node, names: tuple[str, ...]) -> tuple[str, ...]:
    if root.items.get("in_place") is None:
        return ()
    given = root.get("in_place", list)
    if unknown := [name for name in given if name not in names]:
        root.fail(f"has in_place={unknown[:3]!r:.80}", f"some of {list(names)}")
    return tuple(given)


def _fixed(root: _Node) -> tuple[int, int] | None:
    if root.items.get("fixed") is None:
        return None
    node = root.node("fixed")
    return node.count("batch", least=1), node.count("time", least=1)


def _time(root: _Node) -> tuple[bool, str | None, int | None]:
    """Give what stamps are, their zone, and the step in their unit."""
    time = root.node("time")
    kind = time.text("kind")
    if kind not in ("datetime", "integer"):
        time.fail(f"has kind={kind!r:.40}", "'datetime' or 'integer'")
    zone = None if time.items.get("zone") is None else time.text("zone")
    if kind == "datetime":
        return True, zone, None if time.items.get("step_ns") is None else time.count("step_ns", least=1, most=2**63)
    if time.items.get("step") is not None:
        return False, None, time.count("step", least=1, most=2**63)
    freq = root.text("freq")
    if not freq.isascii() or not freq.isdigit() or int(freq) == 0:
        root.fail(f"has freq={freq!r:.40} with integer stamps", "a positive number")
    return False, None, int(freq)
