"""Which length of memory held-out rows choose: each is what a model of that length says."""

import numpy as np
import pandas as pd
import pytest

from txl_ts import TXLForecaster
from txl_ts.bench import window
from txl_ts.errors import ParameterError, ShortSeriesWarning
from txl_ts.estimators.sweep import MemorySweep

LEVELS = np.array([0.1, 0.5, 0.8])


@pytest.fixture(scope="module")
def early(tiny, make_rows):
    return TXLForecaster(**tiny).fit(make_rows(2, 80), val_size=14)


def of_rows(model, rows, *, n_windows, val_size, h):
    """Mean pinball and squared losses by a loop: feed each history, compare what came, in deviations."""
    pinball, squared = [], []
    for _, series in rows.groupby("unique_id"):
        y = series.y.to_numpy(np.float64)
        unit = np.nanstd(y[: len(y) - val_size].astype(np.float32).astype(np.float64))
        for origin in range(len(y) - h - n_windows, len(y) - h):
            said = model.predict(df=series.iloc[: origin + 1])
            error = (
                y[origin + 1 : origin + 1 + h, None] - said[["TXL_ql0.1", "TXL", "TXL_ql0.8"]].to_numpy(np.float64)
            ) / unit
            pinball.append(np.nanmean(np.maximum(LEVELS * error, (LEVELS - 1) * error)))
            squared.append(np.nanmean(np.square(error[:, 1])))
    return np.mean(pinball), np.mean(squared)


def test_each_loss_is_that_of_the_forecasts_of_a_copy_of_that_length(early, make_rows):
    found = early.sweep_memory(mem_lens=(0, 9), clamp_len=4, n_windows=3)
    assert (found.mem_lens, found.trained, found.losses["pinball"].shape) == ((0, 9), 5, (2, 6))
    for i, mem_len in enumerate(found.mem_lens):
        copy = early.with_memory(mem_len, clamp_len=4)
        expected = of_rows(copy, make_rows(2, 80), n_windows=3, val_size=14, h=3)
        measured = [found.losses[loss][i].mean() for loss in ("pinball", "squared")]
        np.testing.assert_allclose(measured, expected, rtol=1e-4)  # float32 sums in another order
        assert found.state_nbytes[i] == copy._model.state_nbytes()
        assert found.reaches[i] == copy.config_.reach


def test_by_default_parts_and_multiples_of_the_trained_length_are_tried_on_all_held_out_rows(early):
    found = early.sweep_memory()
    assert found.mem_lens == (0, 1, 2, 5, 10, 20)
    assert found.losses["pinball"].shape == (6, 2 * (14 - 3 + 1))
    layered = early.with_memory((8, 3)).sweep_memory(n_windows=1)
    assert layered.mem_lens == (0, (2, 0), (4, 1), (8, 3), (16, 6), (32, 12))
    assert layered.table()["mem_len"].tolist() == ["0", "(2, 0)", "(4, 1)", "(8, 3)", "(16, 6)", "(32, 12)"]


def swept(means, mem_lens=(0, 4, 8, 16), trained=8):
    losses = np.repeat(np.array(means)[:, None], 3, axis=1)
    reaches = tuple(2 * n for n in mem_lens)
    durations = tuple(f"{n} h" for n in reaches)
    return MemorySweep(mem_lens, reaches, durations, reaches, {"pinball": losses}, trained, "pinball", "pandas")


def test_more_is_not_always_better_and_the_shortest_good_enough_length_is_told_too():
    found = swept([2.0, 1.004, 1.1, 1.0])
    assert (found.best, found.enough) == (16, 4)
    said = str(found)
    assert "mem_len=16 (reach 32 h) has the least pinball loss, 9.1 % less than the 8 of the fit" in said
    assert "mem_len=4 (reach 8 h) is within 1 % of it" in said
    assert swept([3.0, 2.0, 1.0, 1.5]).best == 8
    assert swept([1.0, 1.0, 1.0, 1.0]).best == 0


def test_later_rows_of_a_frame_choose_too_and_nothing_is_changed(early, make_rows):
    longer = pd.concat([make_rows(2, 80), make_rows(2, 110).groupby("unique_id").tail(30)])
    longer = longer.drop_duplicates(["unique_id", "ds"])
    before = early.predict()
    found = early.sweep_memory(longer, mem_lens=(2, 5))
    assert found.losses["pinball"].shape == (2, 2 * 28)
    pd.testing.assert_frame_equal(early.predict(), before)


def test_a_series_of_fewer_rows_than_were_held_out_is_held_out_but_for_its_first(tiny, make_rows):
    rows = make_rows(2, 80)
    rows = pd.concat([rows[rows.unique_id == "T1"], rows[rows.unique_id == "T2"].head(10)])
    with pytest.warns(ShortSeriesWarning, match="1 of 2 series"):
        model = TXLForecaster(**{**tiny, "max_epochs": 0}).fit(rows, val_size=14)
    assert model.sweep_memory(mem_lens=(5,)).losses["pinball"].shape == (1, 2 * (10 - 1 - 3 + 1))


def test_held_out_rows_without_a_value_choose_nothing(early, make_rows):
    rows = make_rows(2, 110)
    empty = rows.assign(y=rows.y.where(rows.groupby("unique_id").cumcount() < 75))
    with pytest.raises(ParameterError, match="not trained on hold no value to judge by, in 2 series"):
        early.sweep_memory(empty, mem_lens=(5,))


def test_what_cannot_be_measured_is_refused(early, tiny, make_rows):
    rows = make_rows(2, 80)
    with pytest.raises(ParameterError, match=r"fit with val_size=k.*sweep_memory\(df\)"):
        TXLForecaster(**tiny).fit(rows).sweep_memory()
    with pytest.raises(ParameterError, match="carry_memory=False empties the memory"):
        TXLForecaster(**tiny, carry_memory=False).fit(rows, val_size=14).sweep_memory()
    with pytest.raises(ParameterError, match=r"mem_lens=\(\) is empty"):
        early.sweep_memory(mem_lens=())
    with pytest.raises(ParameterError, match="sweep_memory needs 13 cutoffs per series"):
        early.sweep_memory(n_windows=13)


def test_the_table_of_the_bench_compares_every_length_with_the_trained_one():
    one = {"trained": 4, "mem_lens": [0, 4, 8], "reach": ["a", "b", "c"], "state_nbytes": [1, 2, 3], "best": 8}
    one |= {"pinball": [2.0, 1.0, 0.5], "clamped": [2.0, 1.0, 0.4], "n_forecasts": 10}
    runs = [one | {"seed": 0}, one | {"seed": 1, "pinball": [3.0, 1.0, 0.7], "best": 0}]
    table = window.table_of(runs, command="x")
    assert [row["ratio"] for row in table["rows"]] == pytest.approx([2.5, 1, 0.6])
    assert [row["ratio_spread"] for row in table["rows"]] == pytest.approx([1, 0, 0.2])
    assert table["notes"] == ["Least loss, by seed: mem_len 8, 0."]
