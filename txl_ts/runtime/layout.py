"""A row as a stream takes it: its channels and the columns beside them, side by side in one array.

Rows are cut, joined, filled in and kept as such; only where the graph is called are they taken apart into its inputs. A
row holds the channels, ``hist``, ``futr`` and ``static``, and last what is known ahead of it: ``h`` rows of ``futr``,
which no memory depends on and which is therefore not kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class Column:
    """One column beside the channels.

    Attributes
    ----------
    name : str
    categories : tuple of str or int, or None
        None if it holds amounts; else code i + 1 is the i-th of them, and 0 is any other.
    """

    name: str
    categories: tuple[str | int, ...] | None = None

    @cached_property
    def codes(self) -> dict[str | int, int]:
        """Codes of the categories."""
        return {word: code + 1 for code, word in enumerate(self.categories or ())}


@dataclass(frozen=True)
class Layout:
    """Where each part of a row lies.

    Parameters
    ----------
    n_channels : int
    h : int
        Steps ahead.
    hist, futr, static : tuple of Column
        Known up to now, known ahead, known of the stream as a whole.
    calendar : tuple of str
        Features of the stamp; they stand behind ``futr``, and are known ahead, too.
    """

    n_channels: int
    h: int
    hist: tuple[Column, ...] = ()
    futr: tuple[Column, ...] = ()
    static: tuple[Column, ...] = ()
    calendar: tuple[str, ...] = ()

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Columns that every row brings, in their order behind the channels."""
        return self.hist + self.futr

    @cached_property
    def parts(self) -> dict[str, tuple[slice, tuple[int, ...]]]:
        """Where the graph's inputs beside ``x`` lie in a row, and the shape of each in a call of one row."""
        n_futr = len(self.futr) + len(self.calendar)
        shapes: dict[str, tuple[int, ...]] = {
            "hist": (1, len(self.hist)),
            "futr": (1, n_futr),
            "static": (len(self.static),),
            "futr_ahead": (1, self.h, n_futr),
        }
        parts, begin = {}, self.n_channels
        for name, shape in shapes.items():
            if 0 not in shape:
                parts[name] = (slice(begin, begin + int(np.prod(shape))), shape)
                begin += int(np.prod(shape))
        return parts

    @cached_property
    def width(self) -> int:
        """Numbers of a row."""
        return max([self.n_channels, *(part.stop for part, _ in self.parts.values())])

    @cached_property
    def n_kept(self) -> int:
        """Numbers of a row that memory depends on."""
        ahead = self.parts.get("futr_ahead")
        return self.width if ahead is None else ahead[0].start

    @cached_property
    def is_plain(self) -> bool:
        """True if there is nothing beside the channels."""
        return not self.parts

    def buffers(self, n_lanes: int) -> dict[str, FloatArray]:
        """Give arrays for one row of each lane, under the graph's names."""
        shapes = {"x": (1, self.n_channels)} | {name: shape for name, (_, shape) in self.parts.items()}
        return {name: np.zeros((n_lanes, *shape), np.float32) for name, shape in shapes.items()}

    def write(self, buffers: Mapping[str, FloatArray], n: int, rows: FloatArray) -> None:
        """Take rows (n, width) apart into the first ``n`` lanes of :meth:`buffers`."""
        buffers["x"][:n, 0] = rows[:, : self.n_channels]
        for name, (part, shape) in self.parts.items():
            buffers[name][:n] = rows[:, part].reshape(n, *shape)

    def feed(self, rows: FloatArray) -> dict[str, FloatArray]:
        """Take rows (B, T, width) apart into the graph's inputs; what is static is that of each lane's first row."""
        if self.is_plain:
            return {"x": rows}
        feed = {"x": np.ascontiguousarray(rows[..., : self.n_channels])}
        for name, (part, shape) in self.parts.items():
            if name == "static":
                feed[name] = np.ascontiguousarray(rows[:, 0, part])
            else:
                feed[name] = np.ascontiguousarray(rows[..., part]).reshape(*rows.shape[:2], *shape[1:])
        return feed

    def kept(self, rows: FloatArray) -> FloatArray:
        """Leave away what is known ahead."""
        return rows[..., : self.n_kept]

    def unkept(self, rows: FloatArray) -> FloatArray:
        """Put rows that were kept back into their full width: nothing is known ahead of them any more."""
        out = np.full((*rows.shape[:-1], self.width), np.nan, np.float32)
        out[..., : self.n_kept] = rows
        return out

    @cached_property
    def calendar_places(self) -> NDArray[np.int64]:
        """Where the features of the calendar lie in a row, (1 + h, n_calendar): its own, then those ahead of it."""
        (own, _), (ahead, shape) = self.parts["futr"], self.parts["futr_ahead"]
        ends = np.append(own.stop, ahead.start + (np.arange(self.h) + 1) * shape[-1])
        return ends[:, None] + np.arange(-len(self.calendar), 0)
