"""Rows that were corrected after they had been taken in: walked again, as if they had come so from the start."""

import copy

import numpy as np
import pandas as pd
import pytest

from txl_ts import TXLForecaster
from txl_ts.errors import ParameterError, StampError

HOUR = pd.Timedelta(hours=1)


@pytest.fixture(scope="module")
def later(make_rows):
    """Thirty rows of each series after those that ``fitted`` saw, with a gap of two in the second."""
    new = make_rows(n_rows=130, seed=3)
    seen = make_rows().groupby("unique_id")["ds"].max()
    new = new[new["ds"] > new["unique_id"].map(seen)]
    new = new[new.groupby("unique_id").cumcount() < 30]
    second = new["unique_id"] == "T2"
    return new[~(second & new.groupby("unique_id").cumcount().isin([11, 12]))].reset_index(drop=True)


def part(df, first, stop):
    return df[df.groupby("unique_id").cumcount().between(first, stop - 1)]


def corrected(df, name, at, y):
    """One series' row ``at`` with another value."""
    rows = df[df["unique_id"] == name].iloc[[at]].copy()
    rows["y"] = y
    return rows


def with_rows(df, rows):
    """The frame as it would have been."""
    return pd.concat([df, rows]).drop_duplicates(["unique_id", "ds"], keep="last").sort_values(["unique_id", "ds"])


def assert_same(a, b):
    # Another grouping of the same float32 sums.
    np.testing.assert_allclose(a.predict().iloc[:, 2:], b.predict().iloc[:, 2:], rtol=1e-5, atol=1e-5)
    for name, array in a._fleet.state.items():
        np.testing.assert_allclose(array, b._fleet.state[name], rtol=1e-4, atol=1e-4, err_msg=name)


def bits(model):
    return [a.tobytes() for a in (*model._fleet.state.values(), model._fleet.forecast, model._fleet.last)]


@pytest.mark.parametrize("y", [25.0, np.nan], ids=["another value", "no value"])
def test_a_revised_row_counts_as_if_it_had_come_so(forecaster, fitted, later, y):
    for first in range(0, 30, 10):
        forecaster.update(part(later, first, first + 10), on_revision="rewind")
    rows = corrected(later, "T1", 4, y)
    out = forecaster.update(rows, on_revision="rewind")
    right = copy.deepcopy(fitted)
    exact = right.update(with_rows(later, rows))
    assert_same(forecaster, right)
    assert len(out) == 1  # what was said before that row, not about all rows since
    at = exact.merge(rows[["unique_id", "ds"]])
    np.testing.assert_allclose(out["TXL"], at["TXL"], rtol=1e-5)


def test_other_series_stay_bit_for_bit(forecaster, later):
    forecaster.update(later, on_revision="rewind")
    before = forecaster._fleet.take(["T2", "T3"])
    forecaster.update(corrected(later, "T1", 4, 25.0), on_revision="rewind")
    after = forecaster._fleet.take(["T2", "T3"])
    for name, array in before.state.items():
        np.testing.assert_array_equal(array, after.state[name])


def test_late_rows_fill_a_gap_and_new_rows_may_come_with_them(forecaster, fitted, later, make_rows):
    forecaster.update(part(later, 0, 25), on_revision="rewind")
    second = later[later["unique_id"] == "T2"]
    gap = pd.DataFrame({"unique_id": "T2", "ds": [second["ds"].iloc[10] + HOUR], "y": 1.5})
    rows = pd.concat([gap, part(later, 25, 30)])
    out = forecaster.update(rows, on_revision="rewind")
    right = copy.deepcopy(fitted)
    right.update(with_rows(later, gap))
    assert_same(forecaster, right)
    pd.testing.assert_frame_equal(
        out[["unique_id", "ds"]], rows[["unique_id", "ds"]].sort_values(["unique_id", "ds"], ignore_index=True)
    )


def test_rows_between_two_revised_ones_are_left_as_they_were(forecaster, fitted, later):
    """A frame with holes must not empty the rows in its holes."""
    forecaster.update(later, on_revision="rewind")
    rows = pd.concat([corrected(later, "T1", 4, 25.0), corrected(later, "T1", 8, -3.0)])
    forecaster.update(rows, on_revision="rewind")
    right = copy.deepcopy(fitted)
    right.update(with_rows(later, rows))
    assert_same(forecaster, right)


def test_revisions_add_up_and_go_back_to_the_newest_epoch_that_reaches(forecaster, fitted, later):
    for first in range(0, 30, 2):
        forecaster.update(part(later, first, first + 2), on_revision="rewind", epoch_rows=6)
    now = later
    for at, y in ((28, 9.0), (19, -4.0), (27, 2.0)):  # the newest epoch, the older one, then what came of it
        rows = corrected(later, "T3", at, y)
        forecaster.update(rows, on_revision="rewind", epoch_rows=6)
        now = with_rows(now, rows)
        right = copy.deepcopy(fitted)
        right.update(now)
        assert_same(forecaster, right)


def test_rows_from_before_the_oldest_epoch_are_refused_by_name_and_nothing_changes(forecaster, later):
    for first in range(0, 30, 2):
        forecaster.update(part(later, first, first + 2), on_revision="rewind", epoch_rows=6)
    before, n = bits(forecaster), forecaster._epochs.nbytes
    rows = pd.concat([corrected(later, "T1", 2, 1.0), corrected(later, "T3", 29, 1.0)])
    with pytest.raises(
        StampError, match=r"1 series have revised rows .*'T1' starts \d+ rows before the oldest that is kept"
    ):
        forecaster.update(rows, on_revision="rewind")
    assert bits(forecaster) == before
    assert forecaster._epochs.nbytes == n


def test_rows_of_the_fit_cannot_be_revised(forecaster, make_rows, later):
    last = make_rows()[lambda df: df.unique_id == "T1"].tail(1)
    with pytest.raises(StampError, match="'T1' keeps no rows"):
        forecaster.update(last, on_revision="rewind")
    forecaster.update(later, on_revision="rewind")
    with pytest.raises(StampError, match="'T1' starts 1 rows before the oldest that is kept"):
        forecaster.update(last, on_revision="rewind")


def test_without_being_asked_late_rows_are_refused_as_before(forecaster, later):
    forecaster.update(later, on_revision="rewind")
    before = bits(forecaster)
    with pytest.raises(StampError, match="correct earlier ones with on_revision='rewind'"):
        forecaster.update(corrected(later, "T1", 4, 25.0))
    assert bits(forecaster) == before


def test_calls_that_do_not_ask_are_kept_too_once_epochs_are(forecaster, fitted, later):
    forecaster.update(part(later, 0, 10), on_revision="rewind")
    forecaster.update(part(later, 10, 30))
    rows = corrected(later, "T1", 15, 25.0)
    forecaster.update(rows, on_revision="rewind")
    right = copy.deepcopy(fitted)
    right.update(with_rows(later, rows))
    assert_same(forecaster, right)


def test_what_is_kept_is_bounded(forecaster, later):
    n_rows, sizes = 6, []
    for first in range(30):
        forecaster.update(part(later, first, first + 1), on_revision="rewind", epoch_rows=n_rows)
        sizes.append(forecaster._epochs.nbytes)
    # Two states and a forecast each, and the rows since the older: 12 bytes for value and ordinal.
    lane = (
        sum(array[0].nbytes for array in forecaster._fleet.state.values()) + forecaster._fleet.forecast[0].nbytes + 16
    )
    assert max(sizes) <= 3 * (2 * lane + 3 * n_rows * 12)
    assert max(sizes[15:]) == max(sizes)


def test_adaptive_bands_are_rewound_too(forecaster, later):
    forecaster.calibrate(adaptive=True, rate=0.05)
    start = copy.deepcopy(forecaster)
    forecaster.update(part(later, 0, 20), on_revision="rewind")
    forecaster.update(part(later, 20, 30))
    rows = corrected(later, "T1", 12, 25.0)
    forecaster.update(rows, on_revision="rewind")
    start.update(with_rows(later, rows))
    a, b = forecaster.calibration_, start.calibration_
    for name in b.ids:
        np.testing.assert_allclose(a.lane(name).levels, b.lane(name).levels, atol=1e-6)
    np.testing.assert_allclose(forecaster.predict().iloc[:, 2:], start.predict().iloc[:, 2:], rtol=1e-4, atol=1e-4)


def test_rows_from_before_a_calibration_can_be_revised_unless_bands_adapt(forecaster, later):
    start = copy.deepcopy(forecaster).calibrate()
    forecaster.update(part(later, 0, 20), on_revision="rewind")
    forecaster.calibrate()
    rows = corrected(later, "T1", 12, 25.0)
    forecaster.update(rows, on_revision="rewind")
    start.update(with_rows(part(later, 0, 20), rows))
    assert_same(forecaster, start)
    forecaster.calibrate(adaptive=True)
    with pytest.raises(StampError, match="'T1' keeps no rows"):
        forecaster.update(rows, on_revision="rewind")


def test_mixed_channels_and_columns_are_walked_again_too(tiny, make_rows):
    df = make_rows(n_series=1)
    df = df.assign(flow=df["y"] * 2 + 1, warm=np.arange(len(df)) / 10.0)
    model = TXLForecaster(channels="mixed", **{**tiny, "max_epochs": 1})
    model.fit(df.iloc[:80], target_col=["y", "flow"], hist_cols=["warm"])
    right = copy.deepcopy(model)
    model.update(df.iloc[80:], on_revision="rewind")
    rows = df.iloc[[85]].assign(flow=-9.0, warm=0.0)
    model.update(rows, on_revision="rewind")
    right.update(with_rows(df.iloc[80:], rows))
    np.testing.assert_allclose(model.predict().iloc[:, 2:], right.predict().iloc[:, 2:], rtol=1e-5, atol=1e-5)


def test_series_that_were_forgotten_are_not_rewound(forecaster, later):
    forecaster.update(later, on_revision="rewind")
    forecaster.forget(["T1"])
    assert "T1" not in forecaster._epochs
    forecaster.update(later[later["unique_id"] == "T1"], on_revision="rewind")  # begins anew


def test_a_file_begins_anew(forecaster, later, tmp_path):
    forecaster.update(later, on_revision="rewind")
    forecaster.save(tmp_path / "m.txl")
    again = TXLForecaster.load(tmp_path / "m.txl")
    with pytest.raises(StampError, match="'T1' keeps no rows"):
        again.update(corrected(later, "T1", 4, 25.0), on_revision="rewind")


def test_words_are_checked(forecaster, later):
    with pytest.raises(ParameterError, match="on_revision='rewnd' is not known"):
        forecaster.update(later, on_revision="rewnd")
    with pytest.raises(ParameterError, match="epoch_rows=0"):
        forecaster.update(later, on_revision="rewind", epoch_rows=0)
