"""PanelSplit cuts by time inside each series."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from sklearn.model_selection import TimeSeriesSplit, cross_val_score

from txl_ts import PanelSplit
from txl_ts.errors import ParameterError, ShapeError


@given(
    lengths=st.lists(st.integers(8, 30), min_size=1, max_size=5),
    n_splits=st.integers(1, 4),
    gap=st.integers(0, 2),
    seed=st.integers(0, 100),
)
def test_every_series_trains_on_its_past_and_tests_on_what_follows(lengths, n_splits, gap, seed):
    ids = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(lengths)), lengths))
    tested = []
    for train, test in PanelSplit(ids, n_splits=n_splits, test_size=1, gap=gap).split(ids):
        for name in range(len(lengths)):
            past, ahead = (np.flatnonzero(ids == name).searchsorted(part[ids[part] == name]) for part in (train, test))
            # Positions within the series: all before the gap, then the gap, then the test rows.
            assert past.tolist() == list(range(len(past)))
            assert ahead.tolist() == [len(past) + gap]
        tested.append(test)
    assert len(tested) == n_splits
    assert len(np.unique(np.concatenate(tested))) == n_splits * len(lengths)


def test_one_series_is_cut_like_scikit_learns_time_series_split():
    X = np.zeros((23, 1))
    ours, theirs = PanelSplit(n_splits=3, test_size=4, gap=2), TimeSeriesSplit(n_splits=3, test_size=4, gap=2)
    for found, expected in zip(ours.split(X), theirs.split(X), strict=True):
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])


def test_names_may_come_as_groups_and_as_a_frames_column():
    ids = pl.Series(["b", "a"] * 6)
    by_groups = [(a.tolist(), b.tolist()) for a, b in PanelSplit(n_splits=2).split(np.zeros(12), groups=ids)]
    by_name = [(a.tolist(), b.tolist()) for a, b in PanelSplit(ids, n_splits=2).split(np.zeros(12))]
    assert by_groups == by_name
    assert by_name[-1] == (list(range(8)), [8, 9, 10, 11])
    assert PanelSplit(n_splits=2).get_n_splits() == 2


def test_it_serves_any_estimator():
    X = np.random.default_rng(0).normal(size=(40, 2))
    scores = cross_val_score(Ridge(), X, X[:, 0], groups=np.repeat([1, 2], 20), cv=PanelSplit(n_splits=3))
    assert (scores > 0.9).all()


def test_what_cannot_be_cut_is_told():
    with pytest.raises(ParameterError, match=r"needs more than 6 rows of each series, and 1 have no more: 'b'"):
        next(PanelSplit(["a"] * 9 + ["b"] * 6, n_splits=3, test_size=2).split(np.zeros(15)))
    with pytest.raises(ShapeError, match=r"series_id has shape \(3,\), and X has 4 rows"):
        next(PanelSplit([1, 1, 1]).split(np.zeros(4)))
    with pytest.raises(ParameterError, match="n_splits=0"):
        PanelSplit(n_splits=0).get_n_splits()
    with pytest.raises(ParameterError, match="gap=-1"):
        next(PanelSplit(gap=-1).split(np.zeros(40)))
