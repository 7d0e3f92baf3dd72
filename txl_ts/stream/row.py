"""A row, as it leaves the intake."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a stream, or readings that were refused.

    Attributes
    ----------
    seq : int
        Counts the rows of the stream from 0, refused ones among them.
    stamp : int
        Nanoseconds since 1970, or a number of an integer clock.
    status : str
        The heaviest of what can be said, one of ``txl_ts.stream.STATUSES``.
    is_used : bool
        True if a model is to be stepped with it; False for refused readings and for the notice of a gap.
    is_reset : bool
        True if the memory must be emptied before.
    values : dict of column to float or None
        What the model eats, None where it is missing; empty if the row is not used.
    ages : dict of tag to int or None
        Since the last good reading of each channel, in the unit of stamps; None if there was none.
    raw : dict of tag to value
        What was read.
    channels : dict of tag to str
        Status of each channel; of refused readings only theirs.
    """

    seq: int
    stamp: int
    status: str
    is_used: bool
    is_reset: bool = False
    values: dict[str, float | None] = field(default_factory=dict)
    ages: dict[str, int | None] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)
    channels: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Give a plain dictionary, without NaN."""
        return asdict(self)
