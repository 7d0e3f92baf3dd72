"""Horizons beyond the trained one, sampled paths, fitted values, forgotten series."""

import zlib

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm

from txl_ts import TXLForecaster
from txl_ts.errors import ParameterError, StateError
from txl_ts.model import between_scores

KEYS = ["unique_id", "ds"]


def test_a_far_horizon_is_what_feeding_the_medians_by_hand_gives(fitted, forecaster):
    far = fitted.predict(h=8)
    by_hand, parts = forecaster, []
    for _ in range(3):
        part = by_hand.predict()
        parts.append(part)
        by_hand.update(part[[*KEYS, "TXL"]].rename(columns={"TXL": "y"}))
    expected = pd.concat(parts).groupby("unique_id").head(8).sort_values(KEYS).reset_index(drop=True)
    pd.testing.assert_frame_equal(far, expected, rtol=1e-4, atol=1e-4)  # float32 over other calls


def test_a_far_horizon_begins_with_the_trained_one_and_moves_nothing(fitted):
    before = fitted.predict()
    far = fitted.predict(h=10, level=[60])
    pd.testing.assert_frame_equal(far.groupby("unique_id").head(3).reset_index(drop=True), fitted.predict(level=[60]))
    assert (far.groupby("unique_id").size() == 10).all()
    pd.testing.assert_frame_equal(fitted.predict(), before)


def test_quantile_functions_are_linear_in_normal_scores_and_have_normal_tails():
    levels = np.array([0.1, 0.5, 0.8])
    scores = norm.ppf(levels)
    at = np.array([-3.0, -1.0, 0.0, 0.5, 2.5])
    exact = (5 + 2 * scores).astype(np.float32)  # a normal law is met everywhere
    found = between_scores(torch.from_numpy(np.tile(exact, (5, 1))), scores, torch.from_numpy(at))
    np.testing.assert_allclose(found, 5 + 2 * at, rtol=1e-5)


def test_paths_are_those_of_drawing_and_updating_by_hand(fitted, forecaster):
    paths = fitted.sample_paths(4, n_paths=2, ids=["T2"], random_state=7)
    assert list(paths.columns) == ["unique_id", "ds", "sample_id", "TXL"]
    one = paths[paths.sample_id == 1].reset_index(drop=True)
    assert (one.ds == fitted.predict(h=4, ids=["T2"]).ds).all()
    drawn = np.random.default_rng([7, zlib.crc32(b"'T2'")]).standard_normal((4, 2))[:, 1]
    for step in range(4):  # each drawn row moves the memory that the next one is drawn from
        quantiles = forecaster.predict(1, ids=["T2"])[["TXL_ql0.1", "TXL", "TXL_ql0.8"]].to_numpy(float)[0]
        line = np.polynomial.Polynomial.fit
        side = slice(0, 2) if drawn[step] < 0 else slice(1, 3)
        expected = line(norm.ppf([0.1, 0.5, 0.8])[side], quantiles[side], 1)(drawn[step])
        assert one.TXL[step] == pytest.approx(expected, rel=1e-4)
        forecaster.update(one.iloc[[step]][[*KEYS, "TXL"]].rename(columns={"TXL": "y"}))


def test_paths_repeat_with_their_seed_and_do_not_depend_on_other_series(fitted):
    everything = fitted.sample_paths(5, n_paths=3, random_state=1)
    alone = fitted.sample_paths(5, n_paths=3, ids=["T3"], random_state=1)
    part = everything[everything.unique_id == "T3"].reset_index(drop=True)
    pd.testing.assert_frame_equal(part, alone, rtol=1e-4)
    other = fitted.sample_paths(5, n_paths=3, ids=["T3"], random_state=2)
    assert (other.TXL != alone.TXL).all()


def test_quantiles_of_many_paths_one_step_ahead_are_the_trained_ones(fitted):
    drawn, trained = fitted.predict(1, n_paths=4000), fitted.predict(1)
    spread = (trained["TXL_ql0.8"] - trained["TXL_ql0.1"]).to_numpy()
    for column in ("TXL", "TXL_ql0.1", "TXL_ql0.8"):
        # Four standard errors of an empirical quantile of 4,000 draws, in units of the spread.
        assert np.abs(drawn[column] - trained[column]).to_numpy() == pytest.approx(0, abs=0.05 * float(spread.max()))


def test_bands_of_paths_are_wider_far_ahead_than_those_of_medians_fed_forward(fitted):
    paths, medians = fitted.predict(30, n_paths=200, level=[60]), fitted.predict(30, level=[60])
    width = [(frame["TXL-hi-60"] - frame["TXL-lo-60"]).groupby(frame.unique_id).mean() for frame in (paths, medians)]
    assert (width[0] > width[1]).all()


def test_paths_need_more_than_the_median(tiny, make_rows):
    model = TXLForecaster(**{**tiny, "quantiles": (0.5,), "max_epochs": 0}).fit(make_rows())
    with pytest.raises(ParameterError, match="only the median was trained"):
        model.sample_paths()
    with pytest.raises(ParameterError, match="n_paths=0"):
        model.predict(n_paths=0)


def test_where_there_is_no_series_there_are_no_paths(fitted, forecaster):
    forecaster.calibrate(adaptive=True).forget(["T1", "T2", "T3"])
    for model, named in ((forecaster, {}), (fitted, {"ids": []})):
        for empty, full in (
            (model.predict(**named), fitted.predict()),
            (model.predict(h=5, n_paths=2, **named), fitted.predict()),
            (model.sample_paths(n_paths=2, **named), fitted.sample_paths(n_paths=2)),
        ):
            assert len(empty) == 0
            assert list(empty.columns) == list(full.columns)


def test_fitted_values_are_the_one_step_forecasts_of_a_walk_from_empty(fitted, make_rows):
    rows = make_rows()
    values = fitted.fitted_values()
    assert list(values.columns) == ["unique_id", "ds", "TXL", "TXL_ql0.1", "TXL_ql0.8", "y"]
    pd.testing.assert_frame_equal(values[[*KEYS, "y"]], rows.astype({"y": "float32"}), check_dtype=False)
    cut = rows.ds.min() + pd.Timedelta(hours=60)
    before = fitted.predict(1, df=rows[rows.ds <= cut])
    told = values.merge(before, on=KEYS, suffixes=("", "_walked"))
    assert len(told) == 3
    np.testing.assert_allclose(told.TXL, told.TXL_walked, rtol=1e-4)
    assert values.groupby("unique_id").TXL.apply(lambda y: y.isna().sum()).tolist() == [1, 1, 1]


def test_fitted_values_need_the_rows_after_load(fitted, make_rows, tmp_path):
    fitted.save(tmp_path / "a.txl")
    again = TXLForecaster.load(tmp_path / "a.txl")
    with pytest.raises(ParameterError, match=r"a loaded file has none.*\. Give them: fitted_values\(df\)"):
        again.fitted_values()
    pd.testing.assert_frame_equal(again.fitted_values(make_rows()), fitted.fitted_values())


def test_a_forgotten_series_is_forecast_no_more_and_begins_anew(forecaster, fitted, make_rows):
    forecaster.forget(["T2"])
    left = forecaster.predict()
    assert left.unique_id.unique().tolist() == ["T1", "T3"]
    pd.testing.assert_frame_equal(left, fitted.predict(ids=["T1", "T3"]))
    rows = make_rows()
    rows = rows[rows.unique_id == "T2"]
    forecaster.update(rows)  # refused if it were still known
    pd.testing.assert_frame_equal(forecaster.predict(ids=["T2"]), fitted.predict(df=rows), rtol=1e-4)


def test_forgetting_an_unknown_series_names_it_and_drops_nothing(forecaster):
    with pytest.raises(StateError, match=r"1 series are not known, such as \['T9'\]"):
        forecaster.forget(["T1", "T9"])
    with pytest.raises(ParameterError, match="ids='T1' must be a list"):
        forecaster.forget("T1")
    assert len(forecaster.predict()) == 9
