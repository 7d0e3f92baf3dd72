"""What every detector must hold: a model whose answers carry scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txl_ts.checks.verdict import BAD_VALUES, Check, named, random, require, require_close, require_equal
from txl_ts.detector_model import unpacked

_N_ROWS, _N_LANES = 120, 3
_ERROR = 1e-5


class Detector(Protocol):
    """A function ``(x, state, start) → (y, state)`` whose ``y`` has the scores as its last step."""

    n_channels: int
    warm_rows: int

    def init_state(self, n_lanes: int) -> dict[str, Tensor]:
        """Give the state of lanes that have seen nothing."""
        ...

    def __call__(
        self, x: Tensor, state: dict[str, Tensor], start: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Give y (B, T, h + 1, C, Q) and the state, moved on."""
        ...


def check_detector(factory: Callable[[], Detector]) -> list[Check]:
    """Give the checks of a detector.

    Parameters
    ----------
    factory : callable
        Gives a detector in evaluation mode, of two sensors or more and with ``warm_rows`` below 60.

    Returns
    -------
    list of Check
    """
    return named("detector", factory, CHECKS)


def _rows(detector: Detector) -> Tensor:
    x = random(_N_LANES, _N_ROWS, detector.n_channels)
    x[1, 70:80, 0] = torch.nan
    return x


def _said(detector: Detector, x: Tensor, state: Any = None, start: Tensor | None = None) -> tuple[Any, Any]:
    with torch.inference_mode():
        y, after = detector(x, detector.init_state(len(x)) if state is None else state, start)
    return unpacked(y.numpy()), after


def _every_row_after_the_warm_up_has_a_finite_score(factory: Callable[[], Detector]) -> None:
    detector = factory()
    (_, score, parts, _), _ = _said(detector, _rows(detector))
    warm = detector.warm_rows
    require(np.isnan(score[:, :warm]).all(), f"the first {warm} rows have scores, expected NaN.")
    later = score[:, warm + 24 :]
    require(np.isfinite(later).all(), f"{(~np.isfinite(later)).sum()} rows after the warm-up have no finite score.")
    require(not np.isinf(parts).any(), "a part is infinite.")


def _any_split_of_a_stream_gives_the_same_scores(factory: Callable[[], Detector]) -> None:
    detector = factory()
    x = _rows(detector)
    (_, whole, parts, _), _ = _said(detector, x)
    state, scores, of_sensors = None, [], []
    for piece in x.split([1, 1, 2, 40, 75, 1], dim=1):
        (_, score, part, _), state = _said(detector, piece, state)
        scores.append(score)
        of_sensors.append(part)
    sentence = "A split of the rows into calls must not change the scores."
    require_close(np.concatenate(scores, axis=1), whole, sentence, tolerance=_ERROR)
    require_close(np.concatenate(of_sensors, axis=1), parts, sentence, tolerance=_ERROR)


def _a_row_is_scored_by_what_was_said_before_it_and_never_by_later_rows(factory: Callable[[], Detector]) -> None:
    detector = factory()
    x = _rows(detector)
    (_, score, parts, _), _ = _said(detector, x)
    for value in BAD_VALUES:
        later = x.clone()
        later[:, 90:] = value
        (_, found, of_sensors, _), _ = _said(detector, later)
        require_equal(found[:, :90], score[:, :90], f"{value} from row 90 on changed an earlier score.")
        require_equal(of_sensors[:, :90], parts[:, :90], f"{value} from row 90 on changed an earlier part.")


def _lanes_do_not_influence_each_other(factory: Callable[[], Detector]) -> None:
    detector = factory()
    x = _rows(detector)
    (_, score, _, _), _ = _said(detector, x)
    for value in BAD_VALUES:
        wild = x.clone()
        wild[0, 20:] = value
        (_, found, _, _), _ = _said(detector, wild)
        require_equal(found[1:], score[1:], f"{value} in lane 0 changed the scores of others.")


def _a_lane_that_starts_anew_equals_a_fresh_one(factory: Callable[[], Detector]) -> None:
    detector = factory()
    x = _rows(detector)
    (_, score, _, _), state = _said(detector, x)
    start = torch.tensor([[0], [1], [0]], dtype=torch.int32)
    (_, found, _, _), _ = _said(detector, x, state, start)
    require_equal(found[1], score[1], "A lane that was started anew must equal a fresh one.")


def _a_stream_resumes_bit_for_bit_from_its_state(factory: Callable[[], Detector]) -> None:
    detector = factory()
    x = _rows(detector)
    _, state = _said(detector, x[:, :77])
    kept = {name: torch.from_numpy(tensor.numpy().copy()) for name, tensor in state.items()}
    (_, straight, _, _), _ = _said(detector, x[:, 77:], state)
    (_, resumed, _, _), _ = _said(factory(), x[:, 77:], kept)
    require_equal(resumed, straight, "A resumed stream must go on bit for bit.")


def _a_dead_sensor_has_no_part_and_does_not_silence_the_others(factory: Callable[[], Detector]) -> None:
    detector = factory()
    x = _rows(detector)
    x[:, :, 0] = torch.nan
    x[2, 100, 1] = 1e6
    (_, score, parts, _), _ = _said(detector, x)
    warm = detector.warm_rows + 24
    require(np.isnan(parts[:, :, 0]).all(), "a sensor without a value has a part, expected NaN.")
    require(np.isfinite(score[:, warm:]).all(), "a dead sensor took the scores of the others away.")
    require(score[2, 100] > np.nanmax(score[2, warm:100]), "an absurd value of another sensor does not stand out.")
    x[1, 100:103] = torch.nan
    (_, score, _, _), _ = _said(detector, x)
    require(np.isnan(score[1, 100:103]).all(), "a row without any value has a score, expected NaN.")
    require(np.isfinite(score[1, 104]), "the row after a silence has no score.")


def _the_rows_of_a_call_stay_untouched(factory: Callable[[], Detector]) -> None:
    detector = factory()
    x, state = _rows(detector), detector.init_state(_N_LANES)
    before: tuple[NDArray[Any], ...] = (x.numpy().copy(), *(tensor.numpy().copy() for tensor in state.values()))
    _said(detector, x, state)
    for a, b in zip((x, *state.values()), before, strict=True):
        require_equal(a.numpy(), b, "A call changed its rows or its state.")


CHECKS = (
    _every_row_after_the_warm_up_has_a_finite_score,
    _any_split_of_a_stream_gives_the_same_scores,
    _a_row_is_scored_by_what_was_said_before_it_and_never_by_later_rows,
    _lanes_do_not_influence_each_other,
    _a_lane_that_starts_anew_equals_a_fresh_one,
    _a_stream_resumes_bit_for_bit_from_its_state,
    _a_dead_sensor_has_no_part_and_does_not_silence_the_others,
    _the_rows_of_a_call_stay_untouched,
)
