"""Baselines against a window-by-window oracle, protocols against stand-ins, scores against published ones."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tests.oracles import ridge_windows
from txl_ts.bench import BENCHES, ett, m4, report, run_bench, step
from txl_ts.bench.baselines import EqualContextRidge, last_value, score_origins, seasonal_naive
from txl_ts.bench.forecasters import Variant, memory_variants, validation_error
from txl_ts.config import ModelConfig
from txl_ts.errors import FrameError, ParameterError, ShapeError

H, LOOK_BACK = 3, 5


@pytest.fixture(scope="module")
def walks():
    """Three random walks of different lengths."""
    rng = np.random.default_rng(1)
    return [np.cumsum(rng.normal(size=length)) for length in (60, 47, 33)]


# ------------------------------------------------------------------------------------------------------------ baselines


def test_last_value_repeats_the_row_of_the_origin():
    values = np.arange(12.0).reshape(6, 2)
    assert last_value(values, origins=np.array([1, 4]), h=3).tolist() == [
        [[2.0] * 3, [3.0] * 3],
        [[8.0] * 3, [9.0] * 3],
    ]


def test_seasonal_naive_repeats_the_season_before_the_origin_beyond_one_season():
    values = np.arange(8.0)[:, None]
    found = seasonal_naive(values, origins=np.array([2, 5]), h=4, season=3)
    assert found[:, 0].tolist() == [[0.0, 1.0, 2.0, 0.0], [3.0, 4.0, 5.0, 3.0]]


def test_seasonal_naive_refuses_an_origin_with_less_than_a_season_behind_it():
    with pytest.raises(ShapeError, match="origin 1 has 2 rows behind it, and season=3 needs 3"):
        seasonal_naive(np.zeros((9, 1)), origins=np.array([1]), h=2, season=3)


def test_every_window_is_scored_and_none_is_dropped_whatever_the_chunk(walks):
    values = walks[0][:, None]
    scores = [
        score_origins(values, partial(last_value, h=H), h=H, first=40, stop=60, chunk=chunk) for chunk in (1, 7, 99)
    ]
    by_hand = [(values[t + step, 0] - values[t - 1, 0]) ** 2 for t in range(40, 58) for step in range(H)]
    assert {score.n_windows for score in scores} == {18}
    np.testing.assert_allclose([score.mse for score in scores], np.mean(by_hand), rtol=1e-12)


def test_the_ridge_equals_scikit_learn_window_by_window(walks):
    ridge = EqualContextRidge(h=H, look_back=LOOK_BACK, penalties=(2.5,), chunk=7).fit(walks, n_validation=10)
    expected, n_windows = ridge_windows.fit(
        walks, h=H, look_back=LOOK_BACK, penalty=2.5, stop=[len(rows) - 10 for rows in walks]
    )
    # Two float64 solvers of one well-conditioned system.
    np.testing.assert_allclose(ridge.weights_, expected, rtol=1e-9, atol=1e-11)
    assert ridge.n_windows_ == n_windows


def test_the_ridge_chooses_the_penalty_with_the_least_squared_error_on_validation(walks):
    penalties = (1e-2, 1e0, 1e2, 1e4)
    ridge = EqualContextRidge(h=H, look_back=LOOK_BACK, penalties=penalties).fit(walks[:1], n_validation=10)
    found = []
    for penalty in penalties:
        weights, _ = ridge_windows.fit(walks[:1], h=H, look_back=LOOK_BACK, penalty=penalty, stop=[50])
        found.append(ridge_windows.errors(walks[0], weights=weights, h=H, look_back=LOOK_BACK, first=50, stop=60))
    best = int(np.argmin([mse for mse, _ in found]))
    assert ridge.penalty_ == penalties[best]
    np.testing.assert_allclose((ridge.validation_mse_, ridge.validation_mae_), found[best], rtol=1e-9)


def test_a_refit_trains_on_every_window_there_is(walks):
    ridge = EqualContextRidge(h=H, look_back=LOOK_BACK, penalties=(2.5,), refit=True).fit(walks, n_validation=10)
    expected, n_windows = ridge_windows.fit(
        walks, h=H, look_back=LOOK_BACK, penalty=2.5, stop=[len(rows) for rows in walks]
    )
    np.testing.assert_allclose(ridge.weights_, expected, rtol=1e-9, atol=1e-11)
    assert ridge.n_windows_ == n_windows


def test_validation_rows_do_not_reach_the_weights_without_a_refit(walks):
    changed = [np.concatenate([rows[:-10], rows[-10:] * 3.0 + 1.0]) for rows in walks]
    ridge = EqualContextRidge(h=H, look_back=LOOK_BACK, penalties=(1.0,))
    before = ridge.fit(walks, n_validation=10).weights_
    np.testing.assert_array_equal(ridge.fit(changed, n_validation=10).weights_, before)


def test_ridge_windows_with_a_gap_are_left_out(walks):
    holed = walks[0].copy()
    holed[20] = np.nan
    ridge = EqualContextRidge(h=H, look_back=LOOK_BACK, penalties=(1.0,))
    whole = ridge.fit(walks[:1], n_validation=10).n_windows_
    assert ridge.fit([holed], n_validation=10).n_windows_ == whole - (LOOK_BACK + H)
    assert np.isfinite(ridge.weights_).all()


def test_the_ridge_ignores_series_that_are_too_short(walks):
    ridge = EqualContextRidge(h=H, look_back=LOOK_BACK, penalties=(1.0,))
    before = ridge.fit(walks, n_validation=10).weights_
    np.testing.assert_array_equal(ridge.fit([*walks, np.zeros(6)], n_validation=10).weights_, before)


def test_a_ridge_without_a_window_says_how_many_rows_it_needs(walks):
    with pytest.raises(ShapeError, match=r"need 1021 rows .* longest series has 60 rows. Take a smaller look_back"):
        EqualContextRidge(h=H).fit(walks, n_validation=10)


def test_a_ridge_whose_validation_rows_hold_no_window_is_refused(walks):
    with pytest.raises(ParameterError, match="n_validation=2 must be at least h=3"):
        EqualContextRidge(h=H, look_back=LOOK_BACK).fit(walks, n_validation=2)


def test_a_shift_of_the_series_shifts_the_ridge_forecast(walks):
    ridge = EqualContextRidge(h=H, look_back=LOOK_BACK).fit(walks, n_validation=10)
    values, origins = walks[0][:, None], np.array([10, 59])
    np.testing.assert_allclose(
        ridge.predict(values + 100.0, origins=origins), ridge.predict(values, origins=origins) + 100.0, rtol=1e-12
    )


# ------------------------------------------------------------------------------------------------------------------ ETT


class LastValueForecaster:
    """A stand-in with the forecaster's public face that says the last value at every level."""

    config_ = SimpleNamespace(quantiles=(0.1, 0.5, 0.9), reach=1, lookback=1)

    def __init__(self, *, h, drop_last=0):
        self.h, self.drop_last = h, drop_last

    def fit(self, df, **settings):
        self.df, self.settings, self.validation_mse_ = df, settings, 0.25
        return self

    def predict(self):
        last = self.df.groupby("unique_id", sort=True)[["ds", "y"]].last()
        return pd.DataFrame(
            {
                "unique_id": np.repeat(last.index.to_numpy(), self.h),
                "ds": (last["ds"].to_numpy()[:, None] + np.arange(1, self.h + 1)).ravel(),
                "TXL": np.repeat(last["y"].to_numpy(), self.h),
            }
        )

    def cross_validation(self, df, *, n_windows, step_size, use_fitted, output):
        assert (step_size, use_fitted, output) == (1, True, "batches")
        for _, part in df.groupby("unique_id"):
            y = part["y"].to_numpy()
            for origin in range(len(y) - self.h - n_windows, len(y) - self.h - self.drop_last):
                forecast = np.full((1, self.h, 3), y[origin])
                forecast[..., [0, 2]] += [-9.0, 9.0]
                yield SimpleNamespace(y=y[None, origin + 1 : origin + 1 + self.h], forecast=forecast)


class StandIn(Variant):
    """A variant that builds the stand-in."""

    def make(self, *, h, freq, random_state):
        return LastValueForecaster(h=h, **self.params)


@pytest.fixture(scope="module")
def made_ett():
    """A set of ETT's size with two channels, so that a test takes a second."""
    rng = np.random.default_rng(2)
    return ett.EttSet(
        name="ETTh1",
        stamps=pd.date_range("2016-07-01", periods=ett.N_ROWS, freq="1h"),
        values=rng.normal(size=(ett.N_ROWS, 2)),
        channels=("HUFL", "OT"),
    )


def test_the_long_frame_holds_one_series_after_the_other(made_ett):
    frame = ett.long_frame(made_ett, stop=5)
    assert list(frame.columns) == ["unique_id", "ds", "y"]
    assert frame["unique_id"].tolist() == ["HUFL"] * 5 + ["OT"] * 5
    np.testing.assert_array_equal(frame["y"], made_ett.values[:5].T.ravel())
    assert frame["ds"][9] == pd.Timestamp("2016-07-01 04:00")


def test_a_forecaster_is_judged_on_the_same_windows_as_the_baselines(made_ett):
    h = 2870  # few windows, all of them up to the last row
    found = ett.forecaster_run(made_ett, variant=StandIn(name="stand-in"), h=h, seed=0)
    expected = score_origins(made_ett.values, partial(last_value, h=h), h=h, first=ett.N_FITTED, stop=ett.N_ROWS)
    assert (found["test_mse"], found["test_mae"]) == pytest.approx(expected[:2], rel=1e-12)
    assert found["validation_mse"] == 0.25


def test_a_backtest_that_drops_a_window_is_refused(made_ett):
    with pytest.raises(ShapeError, match="A dropped window would make the score incomparable"):
        ett.forecaster_run(made_ett, variant=StandIn(name="drops", params={"drop_last": 1}), h=2870, seed=0)


def test_a_validation_error_that_a_model_does_not_keep_is_nan():
    found = validation_error(SimpleNamespace(validation_mse_=0.5))
    assert found.mse == 0.5
    assert np.isnan(found.mae)


def test_a_missing_ett_file_is_named(tmp_path):
    with pytest.raises(FrameError, match=r"ETTh1.csv is not there"):
        ett.load(tmp_path, name="ETTh1")


def test_ett_is_scaled_by_its_training_rows_only(shared_data):
    loaded = ett.load(shared_data, name="ETTh1")
    np.testing.assert_allclose(loaded.values[: ett.N_TRAIN].mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(loaded.values[: ett.N_TRAIN].std(axis=0), 1.0, rtol=1e-12)
    assert loaded.values.shape == (ett.N_ROWS, 7)


def test_the_ridge_of_one_cell_has_the_score_that_benchmarks_are_held_against(shared_data):
    loaded = ett.load(shared_data, name="ETTh2")
    ridge = EqualContextRidge(h=96, penalties=(1e4,)).fit(list(loaded.values[: ett.N_FITTED].T), n_validation=2880)
    test = score_origins(loaded.values, ridge.predict, h=96, first=ett.N_FITTED, stop=ett.N_ROWS)
    # Five digits of a float64 sum over 2,785 windows of 7 channels; other BLAS libraries differ far below.
    assert (ridge.validation_mse_, ridge.validation_mae_) == pytest.approx((0.21019, 0.31806), abs=1e-5)
    assert (test.mse, test.mae, test.n_windows) == pytest.approx((0.26592, 0.33182, 2785 * 7), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scores"), [("ETTh1", (0.3670, 0.3993, 0.4177, 0.4302)), ("ETTh2", (0.2659, 0.3225, 0.3447, 0.3942))]
)
def test_the_ridge_rows_of_the_ett_table_have_the_known_scores(shared_data, name, scores):
    table = ett.run(shared_data, sets=[name], variants=[])
    found = [row["test_mse"] for row in table["rows"] if row["model"] == "ridge"]
    assert found == pytest.approx(scores, abs=1e-4)


# ------------------------------------------------------------------------------------------------------------------- M4


@pytest.fixture
def made_m4(tmp_path):
    """A folder with three short weekly series in the competition's format."""
    rng = np.random.default_rng(3)
    folder = tmp_path / "m4_weekly"
    folder.mkdir()
    train = pd.DataFrame(100.0 + np.cumsum(rng.normal(size=(11, 140)), axis=1))
    train.iloc[1, 110:] = np.nan
    test = pd.DataFrame(100.0 + rng.normal(size=(11, 13)))
    for part, table in (("train", train), ("test", test)):
        table.insert(0, "V1", [f"W{i + 1}" for i in range(11)])
        table.to_csv(folder / f"Weekly-{part}.csv", index=False)
    return tmp_path


def test_m4_series_lose_their_padding_and_keep_their_order(made_m4):
    loaded = m4.load(made_m4, group="Weekly")
    assert loaded.ids[:3] == ("W1", "W2", "W3")
    assert [len(rows) for rows in loaded.train[:3]] == [140, 110, 140]
    frame = m4.long_frame(loaded)
    assert frame["ds"][frame["unique_id"] == "W2"].tolist() == list(range(1, 111))


def test_the_held_out_set_is_the_end_of_the_training_rows(made_m4):
    loaded = m4.load(made_m4, group="Weekly")
    held = loaded.held_out()
    np.testing.assert_array_equal(held.test[1], loaded.train[1][-13:])
    np.testing.assert_array_equal(held.train[1], loaded.train[1][:-13])


def test_forecasts_find_their_series_whatever_the_order_of_the_frame(made_m4):
    """W10 sorts before W2 as text."""
    loaded = m4.load(made_m4, group="Weekly")
    found = m4.forecaster_run(loaded, variant=StandIn(name="stand-in"), seed=0)
    naive = m4.baseline_rows(loaded)[0]
    assert (found["smape"], found["mase"], found["owa"]) == pytest.approx((naive["smape"], naive["mase"], naive["owa"]))


def test_a_series_without_a_forecast_is_refused_instead_of_skipped():
    frame = pd.DataFrame({"unique_id": ["a", "a", "b", "b"], "ds": [1, 2, 1, 2], "TXL": [1.0, 2.0, 3.0, np.nan]})
    with pytest.raises(ShapeError, match=r"1 of 2 series do not have 2 finite forecasts, such as \['b'\]"):
        m4.wide_forecast(frame, ids=["a", "b"], h=2)


def test_an_unknown_group_is_refused(tmp_path):
    with pytest.raises(ParameterError, match=r"Choose one of \['Hourly', 'Weekly'\]"):
        m4.load(tmp_path, group="Daily")


def test_the_weekly_ridge_beats_the_naive_forecast(shared_data):
    naive, ridge = m4.baseline_rows(m4.load(shared_data, group="Weekly"))
    assert naive["owa"] == pytest.approx(1.0, abs=1e-3)
    assert ridge["owa"] == pytest.approx(0.857, abs=1e-3)


@pytest.mark.slow
def test_the_hourly_ridge_has_the_known_score(shared_data):
    naive, ridge = m4.baseline_rows(m4.load(shared_data, group="Hourly"))
    assert naive["owa"] == pytest.approx(0.627, abs=1e-3)
    assert ridge["owa"] == pytest.approx(0.618, abs=1e-3)


# -------------------------------------------------------------------------------------------------------------- reports


def test_a_bench_writes_its_table_as_json_and_markdown(made_m4, tmp_path):
    variants = [StandIn(name="stand-in")]
    table = run_bench("m4", made_m4, tmp_path / "results", group="Weekly", seeds=[0, 1], variants=variants)
    stored = json.loads((tmp_path / "results" / "m4-weekly.json").read_text(encoding="utf-8"))
    page = (tmp_path / "results" / "m4-weekly.md").read_text(encoding="utf-8")
    assert [row["model"] for row in stored["rows"]] == ["naive", "ridge", "Darin (quoted)", "Smyl (quoted)", "stand-in"]
    assert [run["seed"] for run in table["runs"]] == [0, 1]
    assert "| Smyl (quoted) | – | – | 0.8510 |" in page
    assert "`txl-ts bench m4 --data DIR --group Weekly`" in page


def test_a_table_tells_the_machine_class_and_no_name_or_path():
    here = report.environment()
    assert set(here["versions"]) == {"txl-ts", "python", *report.LIBRARIES}
    assert set(here) == {"versions", "cpu", "n_cpus", "n_threads", "system"}


def test_a_difference_within_the_spread_of_seeds_is_called_a_tie(made_ett):
    def row(h, model, mse, **more):
        return {"set": "ETTh1", "h": h, "model": model, "test_mse": mse, "validation_mse": mse, **more}

    about = {"n_seeds": 2, "test_mse_spread": 0.02}
    rows = [row(h, "ridge", 0.40) for h in (1, 2, 3)]
    rows += [row(h, "TXL", mse, **about) for h, mse in ((1, 0.39), (2, 0.37), (3, 0.45))]
    (note,) = ett._verdicts(rows)
    assert (
        "better in 1 of 3 cells, a tie within the spread of seeds in 1, worse in 1; validation MSE better in 2" in note
    )


def test_the_alarms_table_says_what_autocorrelation_and_left_out_alarms_cost():
    table = run_bench("alarms", n_rows=20_000, n_runs=4)
    mean = {(row["process"], row["n"], row["tail"]): row["mean"] for row in table["rows"]}
    assert 0.3 < mean["AR(1) ρ 0.0", 9_999, "empirical"] < 2
    assert mean["AR(1) ρ 0.999", 9_999, "empirical"] > 3
    assert mean["spread + 20 %", 9_999, "empirical"] > 3
    assert (
        mean["independent, online, alarms left out", 999, "empirical"] > mean["independent, online", 999, "empirical"]
    )
    assert all(row["inside"].endswith("of 4") for row in table["rows"] if "inside" in row)


def test_every_bench_is_listed_by_name():
    folder = Path(report.__file__).parent
    found = sorted(path.stem for path in folder.glob("*.py") if "\ndef run(" in path.read_text(encoding="utf-8"))
    assert found == list(BENCHES)


def test_a_bench_that_is_not_there_is_refused_by_name():
    with pytest.raises(ParameterError, match="name='etth' is no bench"):
        run_bench("etth")


def test_the_variant_without_memory_sees_as_far_by_its_linear_path():
    given = Variant(name="TXL", params={"lookback": 96})
    carried, reset, off = memory_variants(given, reach=504)
    assert carried is given
    assert dict(reset.params) == {"lookback": 96, "carry_memory": False}
    assert dict(off.params) == {"lookback": 504, "mem_len": 0}
    assert [variant.name for variant in (carried, reset, off)] == ["TXL", "TXL, memory reset", "TXL, memory off"]


@pytest.mark.slow  # exports five graphs
def test_one_row_is_timed_beside_everything_that_people_use_instead():
    pytest.importorskip("onnxruntime", reason="the extra `ort` is not installed")
    small = {"h": 2, "half_life": 8.0, "quantiles": (0.5,), "patch_len": 1, "stride": 1, "mem_len": 6, "lookback": 0}
    small |= {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 16}
    table = step.run(sizes={"tiny": ModelConfig(**small)}, paper_window=12)
    (row,) = table["rows"]
    assert set(row) == set(step.COLUMNS)
    assert all(value > 0 for value in row.values() if isinstance(value, float))
    assert row["floor_us"] == pytest.approx(4 * (4 * 64 + 2 * 8 * 16 + 8 * (3 * 6 + 1)) / 50_000)
    assert "12 rows" in table["notes"][0]


def test_a_line_of_the_heads_table_judges_rows_that_no_fit_saw():
    import pandas as pd

    from txl_ts.bench import heads

    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"ds": np.arange(160), "a": rng.normal(size=160), "b": rng.normal(size=160)})
    long = rows.melt("ds", var_name="unique_id", value_name="y")
    more = {"max_epochs": 0, "patch_len": 4, "lookback": 8, "season_length": 8, "mem_len": 2, "half_life": 24}
    task = heads.Task("t", 1, 4, lambda data, seed: long, 40, 6, {}, more=more)
    found = heads.row_of(task, long, "normal", {"distribution": "normal"}, seed=0)
    assert set(found) == set(heads.COLUMNS)
    assert found["n"] == 2 * 7  # of each series: every sixth of the cutoffs that have a horizon behind them
    assert 60 < found["inside_80"] < 98  # noise without a memory
    wide = heads.Task("w", 1, 4, lambda data, seed: rows, 40, 6, {}, targets=("a", "b"), more=more)
    apart, mixed = (heads.row_of(wide, rows, c, {"channels": c}, seed=0) for c in ("independent", "mixed"))
    assert apart["n"] == mixed["n"] == 14
    assert mixed["state"] < apart["state"]


def test_unknown_sets_of_the_heads_table_are_refused():
    with pytest.raises(ParameterError, match="are not known"):
        run_bench("heads", "nowhere", sets=("tides",))
