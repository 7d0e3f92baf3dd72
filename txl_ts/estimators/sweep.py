"""Which length of memory do held-out rows choose? The fitted weights, walked with each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from txl_ts.effective_context import TOLERANCE
from txl_ts.errors import ParameterError
from txl_ts.estimators.backtest import backtest, held_out_cutoffs
from txl_ts.estimators.context import unit_of
from txl_ts.frames import Panel

if TYPE_CHECKING:
    from txl_ts.estimators.window import Windows

MemLen = int | tuple[int, ...]

# Lengths that are tried by themselves, in parts of the trained one.
_PARTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class MemorySweep:
    """Errors of a forecaster's weights on held-out rows, by the length of its memory.

    Attributes
    ----------
    mem_lens : tuple of int, or of tuple of int
        In visits, in the order of their reach.
    reaches : tuple of int
        Rows back that the recurrent path sees with each.
    durations : tuple of str
        The same in the user's time.
    state_nbytes : tuple of int
        Bytes of state per series.
    losses : dict of str to float64 array of shape (n_mem_lens, n_forecasts)
        ``"squared"`` (the median) and ``"pinball"`` (all quantiles), means over the steps ahead, in deviations of each
        series.
    trained : int or tuple of int
        Length that the forecaster itself has.
    loss : {"pinball", "squared"}
        What the answers below are about.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from txl_ts import TXLForecaster
    >>> t = np.arange(400)
    >>> df = pd.DataFrame({"unique_id": "a", "ds": t, "y": np.sin(t * 2 * np.pi / 24)})
    >>> sizes = {"patch_len": 8, "mem_len": 4, "d_model": 8, "n_heads": 2, "max_epochs": 1}
    >>> found = TXLForecaster(h=3, **sizes).fit(df, val_size=100).sweep_memory()
    >>> found.mem_lens
    (0, 1, 2, 4, 8, 16)
    >>> list(found.table().columns)
    ['mem_len', 'reach_rows', 'reach', 'state_nbytes', 'pinball', 'squared']
    """

    mem_lens: tuple[MemLen, ...]
    reaches: tuple[int, ...]
    durations: tuple[str, ...]
    state_nbytes: tuple[int, ...]
    losses: dict[str, NDArray[np.float64]]
    trained: MemLen
    loss: str
    _implementation: Any

    @property
    def means(self) -> NDArray[np.float64]:
        """Mean loss of each length."""
        return self.losses[self.loss].mean(axis=1)

    @property
    def best(self) -> MemLen:
        """The length with the least mean loss; of equal ones the shortest."""
        return self.mem_lens[int(self.means.argmin())]

    @property
    def enough(self) -> MemLen:
        """The shortest length whose mean loss is within 1 % of the least."""
        means = self.means
        return self.mem_lens[int(np.flatnonzero(means <= (1 + TOLERANCE) * means.min())[0])]

    def table(self) -> Any:
        """Give mean losses by length, as a frame of the kind that was fitted on."""
        one = all(isinstance(mem_len, int) for mem_len in self.mem_lens)
        columns: dict[str, Any] = {
            "mem_len": list(self.mem_lens) if one else [str(mem_len) for mem_len in self.mem_lens],
            "reach_rows": list(self.reaches),
            "reach": list(self.durations),
            "state_nbytes": list(self.state_nbytes),
            **{loss: self.losses[loss].mean(axis=1) for loss in ("pinball", "squared")},
        }
        return nw.from_dict(columns, backend=self._implementation).to_native()

    def __str__(self) -> str:
        """Answer in sentences."""
        means = dict(zip(self.mem_lens, self.means.tolist(), strict=True))
        reach = dict(zip(self.mem_lens, self.durations, strict=True))
        said = f"mem_len={self.best} (reach {reach[self.best]}) has the least {self.loss} loss"
        if self.trained in means and self.best != self.trained:
            gain = 1 - means[self.best] / means[self.trained]
            said += f", {100 * gain:.1f} % less than the {self.trained} of the fit"
        if self.enough != self.best:
            said += f"; mem_len={self.enough} (reach {reach[self.enough]}) is within {100 * TOLERANCE:g} % of it"
        return f"{said}. Measured with {self.losses[self.loss].shape[1]} forecasts per length, which chose it."


def sweep_lengths(
    model: Windows,
    panel: Panel,
    trained: NDArray[np.int64],
    *,
    mem_lens: Sequence[int | Sequence[int]] | None,
    clamp_len: int | None,
    n_windows: int | None,
    loss: str,
) -> MemorySweep:
    """Measure; see :meth:`Windows.sweep_memory`."""
    config = model.config_
    cutoffs = held_out_cutoffs(panel, trained, h=config.h, n_windows=n_windows, call="sweep_memory")
    lengths = _default_lengths(config.mem_len) if mem_lens is None else tuple(mem_lens)
    if not lengths:
        raise ParameterError("mem_lens=() is empty. Give lengths to try, such as (0, 8, 16, 32).")
    models = {m.config.mem_len: m for m in (model._model.with_memory(n, clamp_len=clamp_len) for n in lengths)}
    order = sorted(models.values(), key=lambda made: (made.config.reach, made.state_nbytes()))
    units = _units(panel, trained)
    losses: dict[str, list[NDArray[np.float64]]] = {"squared": [], "pinball": []}
    levels, median = np.array(config.quantiles), config.quantiles.index(0.5)
    for made in order:
        found: dict[str, list[NDArray[np.float64]]] = {name: [] for name in losses}
        for batch in backtest(made, panel, cutoffs, h=config.h, pace=model._pace(config)):
            error = (batch.y[..., None].astype(np.float64) - batch.forecast) / units[batch.series][:, None, None]
            there = ~np.isnan(error[..., median])  # (k, h)
            some = there.any(axis=1)
            pinball = np.maximum(levels * error, (levels - 1) * error).mean(axis=-1)
            for name, each in (("squared", np.square(error[..., median])), ("pinball", pinball)):
                found[name].append(np.mean(each[some], axis=1, where=there[some]))
        for name, parts in found.items():
            losses[name].append(np.concatenate(parts))
        if not len(losses["squared"][-1]):
            raise ParameterError(
                f"the rows that were not trained on hold no value to judge by, in {panel.n_series} series. Give df "
                "with later rows that have values."
            )
    return MemorySweep(
        mem_lens=tuple(made.config.mem_len for made in order),  # type: ignore[misc]
        reaches=tuple(made.config.reach for made in order),
        durations=tuple(model._freq.duration(made.config.reach) for made in order),
        state_nbytes=tuple(made.state_nbytes() for made in order),
        losses={name: np.stack(parts) for name, parts in losses.items()},
        trained=config.mem_len,  # type: ignore[arg-type]
        loss=loss,
        _implementation=panel.style.implementation,
    )


def _default_lengths(mem_len: Any) -> tuple[MemLen, ...]:
    """Parts and multiples of the trained length, of each layer."""
    if isinstance(mem_len, int):
        return tuple(int(part * mem_len) for part in _PARTS)
    return tuple(tuple(int(part * length) for length in mem_len) for part in _PARTS)


def _units(panel: Panel, trained: NDArray[np.int64]) -> NDArray[np.float64]:
    """Deviation of each lane's rows that were trained on, to measure its errors in."""
    known, series = panel.row_ordinals() <= trained[panel.row_series()], panel.row_series()
    bounds = np.searchsorted(series, np.arange(panel.n_series + 1))
    units = []
    for first, stop in itertools.pairwise(bounds.tolist()):
        rows = panel.values[first:stop][known[first:stop]].reshape(-1, panel.n_lanes_per_series)
        units += [unit_of(channel) for channel in rows.T]
    return np.array(units)
