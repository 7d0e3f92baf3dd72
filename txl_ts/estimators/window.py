"""The fitted weights with a longer or shorter memory than in training, and which length held-out rows choose."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from txl_ts.config import ModelConfig, check_choice
from txl_ts.errors import ParameterError
from txl_ts.estimators.bands import Calibration, Watch
from txl_ts.estimators.context import held_out_ends
from txl_ts.estimators.epochs import Epochs
from txl_ts.estimators.fleet import Fleet
from txl_ts.estimators.reading import ReadsFrames
from txl_ts.estimators.sweep import MemorySweep, sweep_lengths
from txl_ts.frames import Panel
from txl_ts.model import TXLModel
from txl_ts.state import State
from txl_ts.walk import Pace


class Windows(ReadsFrames):
    """Part of :class:`TXLForecaster`: other lengths of memory."""

    mem_len: Any
    carry_memory: bool
    _fit_panel: Panel | None
    _val_size: int | None
    _epochs: Epochs | None
    calibration_: Calibration | None

    if TYPE_CHECKING:

        def _pace(self, config: ModelConfig) -> Pace: ...
        def _held_out(self, df: Any, static_df: Any, *, call: str) -> Panel: ...
        def _advance(
            self, fleet: Fleet, panel: Panel, *, one_step: bool = True, watch: Watch | None = None
        ) -> tuple[Fleet, NDArray[np.float32]]: ...
        def _describe(self) -> None: ...

    def with_memory(
        self,
        mem_len: int | Sequence[int],
        *,
        clamp_len: int | None = None,
        df: Any = None,
        static_df: Any = None,
    ) -> Self:
        """Give a copy with a longer or shorter memory than it was trained with. This estimator stays as it is.

        The weights are the same. The kept memories are rebuilt where the rows are there: those of ``df``, or, if no row
        came since, those of the fit. Otherwise (after ``update``, or from a file) what is kept goes over: the newest
        rows as far as the shorter of the two lengths; a longer memory is empty beyond them until rows come, and what
        was forecast from the last row stays until then. Bands that were calibrated with the memory of before are
        dropped; losses and validation errors stay those of the fit.

        Parameters
        ----------
        mem_len : int, or sequence of int
            Memory length in visits, of all layers or of each. Longer is not always better: see :meth:`sweep_memory`.
        clamp_len : int, optional
            Visits beyond which all keys count as if they lay so far back. The memory length of the training is a good
            one: no distance is then new to the weights. Default: as it is. Not for uneven time.
        df : frame, optional
            Rows to rebuild the memories from, with the columns of ``fit``: each of its series starts empty, and others
            are dropped.
        static_df : frame, optional
            The ``static_cols`` of series in ``df`` that were not fitted.

        Returns
        -------
        TXLForecaster
            With files, graphs and sessions of its own length.

        Raises
        ------
        NotFittedError, FrameError
        ParameterError
            If a length cannot work.
        """
        self._check_fitted()
        if df is None and static_df is not None:
            raise ParameterError("static_df goes with df=rows. Leave static_df out, or give the rows too.")
        out = copy.copy(self)
        out.mem_len, out._model = mem_len, self._model.with_memory(mem_len, clamp_len=clamp_len)
        out.config_ = out._model.config
        out.calibration_ = out._epochs = None
        out._describe()
        panel = self._rows_of_memories() if df is None else self._read_more(df, static_df, continues=False)
        if panel is not None:
            out._fleet, _ = out._advance(Fleet.fresh_for(panel, out._model), panel, one_step=False)
        else:
            fleet = self._fleet.take(self._fleet.ids)
            out._fleet = replace(fleet, state=taken_over(fleet.state, self._model, out._model))
        return out

    def sweep_memory(
        self,
        df: Any = None,
        *,
        mem_lens: Sequence[int | Sequence[int]] | None = None,
        clamp_len: int | None = None,
        n_windows: int | None = None,
        loss: str = "pinball",
        static_df: Any = None,
    ) -> MemorySweep:
        """Which length of memory do held-out rows choose? Nothing is changed.

        Each series is walked once per length, from an empty memory, with the weights that are there; errors are those
        of the forecasts at rows that were not trained on. More is not always better: the weights have not seen what a
        longer memory holds.

        Parameters
        ----------
        df : frame, optional
            Whole history with rows after those that were fitted on. Without it the rows of ``fit(val_size=k)``, which
            chose the epoch and were not trained on.
        mem_lens : sequence of int, or of sequence of int
            Lengths to try, in visits, of all layers or of each. Default: none, a quarter, half, once, twice and four
            times the length of the fit.
        clamp_len : int, optional
            For all of them, as in :meth:`with_memory`.
        n_windows : int, optional
            Forecasts per series. Default: as many as the shortest series has, thinned out to 20,000 in all.
        loss : {"pinball", "squared"}
            What the answers are about; both are measured, in deviations of each series.
        static_df : frame, optional
            The ``static_cols`` of series in ``df`` that were not fitted.

        Returns
        -------
        MemorySweep
            ``print`` it for the answer; ``best``, ``enough`` and ``table()``. ``with_memory(found.best)`` takes it. The
            rows chose the length: their errors are no estimate of errors to come.

        Raises
        ------
        NotFittedError, FrameError
        ParameterError
            If there are too few rows that were not trained on, a length cannot work, or the model never carries its
            memory.
        """
        self._check_fitted()
        check_choice("loss", loss, ("pinball", "squared"))
        if not self.carry_memory:
            raise ParameterError("carry_memory=False empties the memory at each segment: there is no length to choose.")
        panel = self._held_out(df, static_df, call="sweep_memory")
        trained = held_out_ends(panel, self._fitted_end, val_size=self._val_size if df is None else None)
        how: Any = {"mem_lens": mem_lens, "clamp_len": clamp_len, "n_windows": n_windows}
        return sweep_lengths(self, panel, trained, loss=loss, **how)

    def _rows_of_memories(self) -> Panel | None:
        """Give the rows that the kept memories have seen, if they are still there."""
        if (panel := self._fit_panel) is None:
            return None
        there, here = Fleet.at_end_of(panel, self._model), self._fleet
        stand = there.ids == here.ids and np.array_equal(there.last, here.last)
        return panel if stand and np.array_equal(there.origins, here.origins) else None


def taken_over(state: State, before: TXLModel, after: TXLModel) -> State:
    """Give the states of lanes, which a model left, as those of its copy with another length of memory."""
    tensors = {name: torch.from_numpy(array) for name, array in state.items()}
    with torch.inference_mode():
        moved = after.taken_over(tensors, before=before)
    return {spec.name: moved[spec.name].numpy() for spec in after.state_specs()}
