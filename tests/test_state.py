"""The flat named state: pure functions on arrays."""

import numpy as np
import pytest

from txl_ts import state as st
from txl_ts.errors import StateError

SPECS = (
    st.TensorSpec("mem", (2, 3), "float32"),
    st.TensorSpec("count", (2,), "int32"),
    st.TensorSpec("age", (), "float32"),
)
N_LANES = 4


def example(n_lanes=N_LANES):
    rng = np.random.default_rng(0)
    return {
        "mem": rng.normal(size=(n_lanes, 2, 3)).astype("float32"),
        "count": rng.integers(1, 9, size=(n_lanes, 2)).astype("int32"),
        "age": rng.normal(size=n_lanes).astype("float32"),
    }


def assert_equal(a, b):
    assert list(a) == list(b)
    for name in a:
        assert a[name].dtype == b[name].dtype
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_a_fresh_state_is_zero_with_the_lane_on_axis_0():
    fresh = st.init_state(SPECS, n_lanes=N_LANES)
    assert {name: (a.shape, str(a.dtype)) for name, a in fresh.items()} == {
        "mem": ((4, 2, 3), "float32"),
        "count": ((4, 2), "int32"),
        "age": ((4,), "float32"),
    }
    assert not any(array.any() for array in fresh.values())
    assert st.n_lanes(fresh) == N_LANES


def test_bytes_of_a_lane_are_counted_from_the_specs():
    assert st.state_nbytes(SPECS) == 6 * 4 + 2 * 4 + 4
    assert st.state_nbytes(SPECS) * N_LANES == sum(a.nbytes for a in st.init_state(SPECS, n_lanes=N_LANES).values())


@pytest.mark.parametrize("lanes", [[3, 1], [], [2, 2], [True, False, True, False]], ids=str)
def test_select_copies_lanes_out(lanes):
    whole = example()
    part = st.select(whole, np.array(lanes, dtype=bool if lanes and isinstance(lanes[0], bool) else int))
    index = np.flatnonzero(lanes) if lanes and isinstance(lanes[0], bool) else np.array(lanes, dtype=int)
    assert_equal(part, {name: a[index] for name, a in whole.items()})
    for array in part.values():
        array[...] = 77
    assert_equal(whole, example())


@pytest.mark.parametrize("lanes", [np.array([3, 1]), np.array([False, True, False, True])], ids=["indices", "mask"])
def test_put_replaces_those_lanes_only_and_changes_nothing_in_place(lanes):
    whole, part = example(), st.init_state(SPECS, n_lanes=2)
    out = st.put(whole, lanes, part)
    assert_equal(st.select(out, lanes), part)
    assert_equal(st.select(out, np.array([0, 2])), st.select(whole, np.array([0, 2])))
    assert_equal(whole, example())


def test_put_undoes_select():
    whole, lanes = example(), np.array([2, 0])
    assert_equal(st.put(whole, lanes, st.select(whole, lanes)), whole)


def test_reset_makes_lanes_fresh_and_leaves_the_others_bit_for_bit():
    whole = example()
    whole["mem"][1] = np.nan
    out = st.reset(whole, np.array([1, 3]))
    assert_equal(st.select(out, np.array([1, 3])), st.init_state(SPECS, n_lanes=2))
    assert_equal(st.select(out, np.array([0, 2])), st.select(whole, np.array([0, 2])))
    assert np.isnan(whole["mem"][1]).all()


def test_names_of_the_graph_are_numbered_in_the_order_of_the_specs():
    assert list(st.to_arrays(example())) == ["past.00.mem", "past.01.count", "past.02.age"]
    assert list(st.to_arrays(example(), prefix="present")) == ["present.00.mem", "present.01.count", "present.02.age"]


def test_numbered_names_sort_in_their_order_for_a_dozen_tensors():
    names = list(st.to_arrays({f"t{i}": np.zeros(1) for i in range(12)}))
    assert sorted(names) == names


@pytest.mark.parametrize("prefix", ["past", "present"])
def test_from_arrays_undoes_to_arrays_whatever_the_order(prefix):
    written = st.to_arrays(example(), prefix=prefix)
    assert_equal(st.from_arrays(dict(reversed(written.items())), SPECS, prefix=prefix), example())


def test_from_arrays_of_no_lanes_is_a_state_of_no_lanes():
    assert st.n_lanes(st.from_arrays(st.to_arrays(example(0)), SPECS)) == 0


def test_from_arrays_names_the_arrays_it_needs_and_those_it_got():
    written = st.to_arrays(example())
    del written["past.01.count"]
    written["past.01.counts"] = np.zeros(4)
    with pytest.raises(StateError, match=r"needs the arrays \['past.00.mem', 'past.01.count', .*got .*past.01.counts'"):
        st.from_arrays(written, SPECS)


@pytest.mark.parametrize(
    ("name", "array", "got"),
    [
        ("past.00.mem", np.zeros((4, 3, 2), "float32"), r"\(n_lanes, 2, 3\) and dtype float32, got \(4, 3, 2\)"),
        ("past.00.mem", np.zeros((4, 2, 3), "float64"), r"dtype float32, got \(4, 2, 3\) and float64"),
        ("past.01.count", np.zeros((4, 2), "int64"), r"dtype int32, got \(4, 2\) and int64"),
        ("past.00.mem", np.zeros((3, 2, 3), "float32"), r"past\.0"),
        ("past.02.age", np.zeros((), "float32"), r"equally many lanes on axis 0, got .*'past.02.age': -1"),
    ],
    ids=["shape", "float", "integer", "another number of lanes", "no axis"],
)
def test_from_arrays_shows_what_it_expected_and_what_it_got(name, array, got):
    with pytest.raises(StateError, match=got):
        st.from_arrays({**st.to_arrays(example()), name: array}, SPECS)


CALLS = {"select": st.select, "reset": st.reset, "put": lambda state, lanes: st.put(state, lanes, state)}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    ("lanes", "message"),
    [
        (np.array([0, 4]), r"lanes must lie in 0\.\.3, got 0\.\.4"),
        (np.array([-1]), r"lanes must lie in 0\.\.3, got -1\.\.-1"),
        (np.array([True, False]), r"a lane mask must have shape \(4,\), got \(2,\)"),
    ],
    ids=["beyond", "negative", "short mask"],
)
def test_lanes_that_are_not_there_are_an_error_that_names_them(call, lanes, message):
    with pytest.raises(StateError, match=message):
        call(example(), lanes)


def test_lanes_between_two_lanes_are_an_error():
    with pytest.raises(StateError):
        st.select(example(), np.array([0.5]))
