"""What every session must hold: rows and state in, outputs and state out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from txl_ts.checks.streams import STREAM_CHECKS, StreamBench
from txl_ts.checks.verdict import BAD_VALUES, Check, named, require, require_close, require_equal
from txl_ts.errors import ParameterError
from txl_ts.state import TensorSpec, from_arrays, reset, select, to_arrays

Arrays = Mapping[str, NDArray[Any]]


class Session(Protocol):
    """A model as a function of rows and state, in numpy. Axis 0 of every array is the lane."""

    def init_state(self, n_lanes: int) -> Arrays:
        """Give the state of lanes that have seen nothing."""

    def step(self, x: NDArray[Any], state: Arrays, start: NDArray[Any] | None = None) -> tuple[NDArray[Any], Arrays]:
        """Take rows (B, T, C) in; give the outputs (B, T, …) and the next state.

        ``start``, int32 of shape (B, 1), is non-zero where a lane begins anew before its first row.
        """


def check_session(
    session_factory: Callable[[], Any],
    *,
    protocol: Literal["state", "streams"] = "state",
    n_channels: int = 1,
    tolerance: float = 1e-5,
) -> list[Check]:
    """List the checks of a session.

    Parameters
    ----------
    session_factory : callable
        Gives a session; every one must give the same numbers. It is called when a check runs.
    protocol : {"state", "streams"}
        What the session speaks: ``"state"`` is ``init_state(n_lanes)`` and ``step(x, state, start)``, as in
        :class:`Session`; ``"streams"`` are named streams with ``step({name: rows})``, ``reset``, ``close``, ``copy``,
        ``snapshot`` and ``restore``, as in :class:`StreamingSession`.
    n_channels : int
        Channels of the rows of ``"state"``; streams know theirs by the contract.
    tolerance : float
        Largest difference over largest size that is allowed where lanes or chunks are grouped otherwise.

    Returns
    -------
    list of Check

    Raises
    ------
    ParameterError
        If the protocol is another.
    """
    if protocol == "streams":
        return named("streams", StreamBench(session_factory, tolerance), STREAM_CHECKS)
    if protocol != "state":
        raise ParameterError(f"protocol={protocol!r}, expected 'state' or 'streams'.")
    return named("session", partial(_Bench, session_factory, n_channels, tolerance), _SESSION_CHECKS)


class _Bench:
    """A session on the bench: rows to feed it with, and how close is close enough."""

    def __init__(self, factory: Callable[[], Session], n_channels: int, tolerance: float) -> None:
        self.session, self.n_channels, self.tolerance = factory(), n_channels, tolerance

    def rows(self, n_rows: int = 50, *, n_lanes: int = 4, seed: int = 0) -> NDArray[Any]:
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n_lanes, n_rows, self.n_channels)) + 5
        x[rng.random(x.shape) < 0.15] = np.nan
        x[:, 0] = 5.0  # every lane's level is known from the first row on
        return x.astype(np.float32)

    def run(
        self, x: NDArray[Any], chunks: Sequence[int] | None = None, state: Arrays | None = None
    ) -> tuple[NDArray[Any], Arrays]:
        state = self.session.init_state(len(x)) if state is None else state
        out = []
        for chunk in np.split(x, np.cumsum(chunks or [x.shape[1]])[:-1], axis=1):
            y, state = self.session.step(chunk, state, None)
            out.append(y)
        return np.concatenate(out, axis=1), state

    def require_close(self, found: NDArray[Any], expected: NDArray[Any], sentence: str) -> None:
        require_close(found, expected, sentence, tolerance=self.tolerance)


def _every_row_has_an_output_and_the_state_keeps_its_form(make: Callable[[], _Bench]) -> None:
    bench = make()
    fresh = bench.session.init_state(4)
    for n_rows in (1, 7):
        y, state = bench.run(bench.rows(n_rows))
        require(y.shape[:2] == (4, n_rows), f"{n_rows} rows of 4 lanes gave outputs of shape {y.shape}.")
        form = {name: (array.shape, array.dtype) for name, array in state.items()}
        same = form == {name: (array.shape, array.dtype) for name, array in fresh.items()}
        require(same and list(state) == list(fresh), f"after {n_rows} rows the state has another form: {form}.")


def _outputs_do_not_depend_on_the_split_of_rows(make: Callable[[], _Bench]) -> None:
    bench = make()
    whole, state = bench.run(bench.rows())
    for chunks in ([1] * 50, [2, 11, 37], [49, 1]):
        y, last = bench.run(bench.rows(), chunks)
        bench.require_close(y, whole, f"Outputs of chunks {chunks[:3]} must be those of 50 rows at once.")
        for name in state:
            bench.require_close(last[name], state[name], f"State {name!r} after chunks {chunks[:3]} must be the same.")


def _later_rows_change_no_earlier_output(make: Callable[[], _Bench]) -> None:
    bench = make()
    before, _ = bench.run(bench.rows())
    for row in (1, 17, 49):
        for value in (*BAD_VALUES, 0.0):
            x = bench.rows()
            x[:, row:] = value
            after, _ = bench.run(x)
            require_equal(after[:, :row], before[:, :row], f"{value} in row {row} changed an earlier output.")


def _lanes_alone_equal_lanes_together(make: Callable[[], _Bench]) -> None:
    bench = make()
    x = bench.rows()
    together, _ = bench.run(x)
    for lane in range(4):
        alone, _ = bench.run(x[lane : lane + 1])
        bench.require_close(alone, together[lane : lane + 1], f"Lane {lane} alone must equal lane {lane} of four.")
    order = [3, 1, 0, 2]
    bench.require_close(bench.run(x[order])[0], together[order], "Permuting lanes must permute outputs.")


def _one_bad_lane_leaves_the_others_bit_equal(make: Callable[[], _Bench]) -> None:
    bench = make()
    before, state = bench.run(bench.rows(), [25, 25])
    for value in BAD_VALUES:
        x = bench.rows()
        x[2, 20:] = value
        after, other = bench.run(x, [25, 25])
        require_equal(after[[0, 1, 3]], before[[0, 1, 3]], f"{value} in lane 2 changed another lane's output.")
        for name in state:
            kept = other[name][[0, 1, 3]], state[name][[0, 1, 3]]
            require_equal(*kept, f"{value} in lane 2 changed state {name!r} of another lane.")


def _no_value_makes_the_state_non_finite(make: Callable[[], _Bench]) -> None:
    bench = make()
    for value in BAD_VALUES:
        for row in (0, 5):
            x = bench.rows(8)
            x[:, row], x[:, -1] = value, -value
            _, state = bench.run(x)
            bad = [name for name, array in state.items() if not np.isfinite(array).all()]
            require(not bad, f"{value} in row {row}, {-value} in the last one made the state {bad} non-finite.")


def _a_started_lane_is_a_fresh_lane(make: Callable[[], _Bench]) -> None:
    bench = make()
    _, state = bench.run(bench.rows())
    x = bench.rows(seed=1)
    plain, fresh = bench.run(x, state=state)[0], bench.run(x)[0]
    flags = np.array([[0], [1], [0], [1]], dtype=np.int32)
    y, after = bench.session.step(x, state, flags)
    require_equal(y[[1, 3]], fresh[[1, 3]], "A lane with a start flag must equal a fresh one.")
    require_equal(y[[0, 2]], plain[[0, 2]], "A start flag must leave the other lanes bit for bit.")
    again = bench.rows(seed=2)
    onwards, fresh = bench.run(again, state=after)[0], bench.run(np.concatenate([x, again], axis=1), [50, 50])[0]
    require_equal(onwards[[1, 3]], fresh[[1, 3], 50:], "A started lane must stay equal to a fresh one.")


def _a_reset_lane_is_a_fresh_lane(make: Callable[[], _Bench]) -> None:
    bench = make()
    _, state = bench.run(bench.rows())
    x = bench.rows(seed=1)
    plain, fresh = bench.run(x, state=state)[0], bench.run(x)[0]
    y, _ = bench.run(x, state=reset(state, np.array([1, 3])))
    require_equal(y[[1, 3]], fresh[[1, 3]], "A lane whose state was reset must equal a fresh one.")
    require_equal(y[[0, 2]], plain[[0, 2]], "Resetting lanes must leave the others bit for bit.")


def _a_restored_stream_goes_on_bit_equal(make: Callable[[], _Bench]) -> None:
    bench = make()
    x = bench.rows(60)
    for row in (0, 1, 20):
        state = bench.run(x[:, :row])[1] if row else bench.session.init_state(4)
        y, after = bench.run(x[:, row:], [7] * 5 + [25 - row], state)
        specs = [TensorSpec(name, array.shape[1:], str(array.dtype)) for name, array in state.items()]
        saved = {name: array.tobytes() for name, array in to_arrays(state).items()}
        arrays = {
            full: np.frombuffer(saved[full], array.dtype).reshape(array.shape).copy()
            for full, array in to_arrays(state).items()
        }
        other = make()
        resumed, resumed_after = other.run(x[:, row:], [7] * 5 + [25 - row], from_arrays(arrays, specs))
        require_equal(resumed, y, f"Saved and restored after {row} rows, a stream must go on bit-equal.")
        for name in after:
            require_equal(resumed_after[name], after[name], f"A restored state {name!r} must be bit-equal.")


def _a_call_repeats_and_keeps_nothing_outside_the_state(make: Callable[[], _Bench]) -> None:
    bench = make()
    _, state = bench.run(bench.rows())
    x = bench.rows(seed=1)
    first, _ = bench.run(x, state=state)
    bench.run(bench.rows(seed=2))  # other streams in between
    require_equal(bench.run(x, state=state)[0], first, "The same call must give the same outputs again.")


def _session_inputs_stay_untouched(make: Callable[[], _Bench]) -> None:
    bench = make()
    _, state = bench.run(bench.rows())
    x, flags = bench.rows(seed=1), np.array([[0], [1], [0], [1]], dtype=np.int32)
    inputs = {**state, "x": x, "start": flags}
    before = {name: array.copy() for name, array in inputs.items()}
    bench.session.step(x, state, flags)
    for name, array in inputs.items():
        require_equal(array, before[name], f"{name!r} was changed in place.")


def _lanes_may_join_and_leave(make: Callable[[], _Bench]) -> None:
    bench = make()
    x = bench.rows()
    whole, _ = bench.run(x)
    _, state = bench.run(x[:, :20])
    picked = np.array([3, 1])
    y, _ = bench.run(x[picked, 20:], state=select(state, picked))
    bench.require_close(y, whole[picked, 20:], "Lanes picked out of a state must go on as before.")


_SESSION_CHECKS = (
    _every_row_has_an_output_and_the_state_keeps_its_form,
    _outputs_do_not_depend_on_the_split_of_rows,
    _later_rows_change_no_earlier_output,
    _lanes_alone_equal_lanes_together,
    _one_bad_lane_leaves_the_others_bit_equal,
    _no_value_makes_the_state_non_finite,
    _a_started_lane_is_a_fresh_lane,
    _a_reset_lane_is_a_fresh_lane,
    _a_restored_stream_goes_on_bit_equal,
    _a_call_repeats_and_keeps_nothing_outside_the_state,
    _session_inputs_stay_untouched,
    _lanes_may_join_and_leave,
)
