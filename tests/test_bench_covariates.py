"""The bench of columns beside the target: its ridge against scikit-learn, its protocol on files that stand in."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from txl_ts.bench import covariates, run_bench
from txl_ts.errors import FrameError, ShapeError

H, LOOK_BACK = 3, 4


def test_the_ridge_with_known_columns_equals_scikit_learn_step_by_step():
    rng = np.random.default_rng(0)
    n, n_validation = 70, 20
    known = rng.normal(size=(n, 2))
    values = np.cumsum(rng.normal(size=n)) + 2 * known[:, 0]
    model = covariates.KnownRidge(h=H, look_back=LOOK_BACK, penalties=(0.5, 50.0)).fit(
        values, known, n_validation=n_validation
    )
    origins = np.arange(n - n_validation - 1, n - H)
    found = []
    for penalty in (0.5, 50.0):
        forecast = np.zeros((len(origins), H))
        for k in range(1, H + 1):
            at = list(range(LOOK_BACK - 1, n - n_validation - H))

            def row(t, k=k):
                return [values[t - j] - values[t] for j in range(LOOK_BACK - 1, -1, -1)] + [1.0, *known[t + k]]

            ridge = Ridge(alpha=penalty, fit_intercept=False, solver="svd")
            ridge.fit([row(t) for t in at], [values[t + k] - values[t] for t in at])
            forecast[:, k - 1] = ridge.predict([row(t) for t in origins]) + values[origins]
        truth = np.array([[values[t + k] for k in range(1, H + 1)] for t in origins])
        found.append((np.mean((forecast - truth) ** 2), penalty, forecast))
    _, penalty, forecast = min(found, key=lambda item: item[0])
    assert model.penalty_ == penalty
    got = model.forecaster(known)(values[:, None], origins=origins)[:, 0]
    np.testing.assert_allclose(got, forecast, rtol=1e-8)  # float64, another solver


def test_holes_are_filled_forward_or_by_the_season_before():
    values = np.array([[1.0], [2.0], [np.nan], [np.nan], [5.0], [np.nan]])
    assert covariates.filled_forward(values)[:, 0].tolist() == [1, 2, 2, 2, 5, 5]
    assert covariates.filled_by_season(values, season=2)[:, 0].tolist() == [1, 2, 1, 2, 5, 2]


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Small files with the columns of the real ones: eight weeks of air, four months of electricity."""
    rng = np.random.default_rng(0)
    (tmp_path / "air_quality").mkdir()
    hours = pd.date_range("2022-12-01", "2023-01-20", freq="h")
    air = {
        name: 10 + 3 * np.sin(np.arange(len(hours)) * 2 * np.pi / 24) + rng.normal(size=len(hours))
        for name in covariates.POLLUTANTS
    }
    air = pd.DataFrame({"datetime": hours, **air})
    air.loc[100:130, "co"] = np.nan
    air.loc[900:930, "no2"] = np.nan
    air.to_csv(tmp_path / "air_quality" / "air_quality_valencia.csv", index=False)
    (tmp_path / "vic_electricity").mkdir()
    halves = pd.date_range("2013-11-20T00:00Z", "2014-01-20T00:00Z", freq="30min")
    warm = 20 + rng.normal(size=len(halves)) * 5
    demand = 4000 + 50 * np.abs(warm - 18) + 300 * np.sin(np.arange(len(halves)) * 2 * np.pi / 48)
    power = pd.DataFrame({"Time": halves.strftime("%Y-%m-%dT%H:%M:%SZ"), "Demand": demand, "Temperature": warm})
    power.assign(Date="", Holiday=False).to_csv(tmp_path / "vic_electricity" / "vic_electricity.csv", index=False)
    monkeypatch.setattr(covariates, "VALENCIA_VALIDATION", 96)
    monkeypatch.setattr(covariates, "VICTORIA_VALIDATION", 200)
    monkeypatch.setattr(covariates, "LOOK_BACKS", {"victoria": 48, "valencia": 24})
    return tmp_path


@pytest.fixture
def small_cases():
    """The cases of the table, as small as can be: the linear path alone."""
    tiny = {"patch_len": 8, "lookback": 48, "d_model": 8, "n_heads": 2, "max_epochs": 0, "quantiles": (0.5,)}
    return tuple(
        dataclasses.replace(case, params={**{k: v for k, v in case.params.items() if k == "calendar"}, **tiny})
        for case in covariates.CASES
        if case.name in {"TXL", "TXL, temperature", "TXL, temperature shuffled", "TXL, holes filled forward"}
    )


def test_the_table_holds_both_sets_and_says_what_the_columns_are_worth(made, small_cases, tmp_path):
    table = run_bench("covariates", made, tmp_path / "out", variants=small_cases)
    by_name = {(row["set"], row["model"]): row for row in table["rows"]}
    own = by_name[covariates.VICTORIA, "TXL"]["test_mae"]
    assert by_name[covariates.VICTORIA, "TXL, temperature"]["test_mae"] < 0.5 * own  # the load is made of it
    assert by_name[covariates.VICTORIA, "TXL, temperature shuffled"]["test_mae"] > 0.95 * own
    assert by_name[covariates.VICTORIA, "ridge, temperature"]["test_mae"] < 0.5 * own
    assert any("Known temperature changes the error of the same model by -" in note for note in table["notes"])
    assert {"ridge, holes filled forward", "seasonal naive, a day"} <= {model for _, model in by_name}
    assert json.loads((tmp_path / "out" / "covariates.json").read_text(encoding="utf-8"))["name"] == "covariates"


def test_filled_rows_are_judged_on_the_cells_that_were_measured(made, small_cases):
    rows = covariates.load_valencia(made)
    case = next(case for case in small_cases if case.filled)
    run = covariates.forecaster_run(rows, case=case, seed=0)
    hidden = dataclasses.replace(rows, values=np.where(np.isnan(rows.values), 1e6, rows.values))
    assert run["test_mae"] < 5  # a filled cell that counted, or a hole read as a number, would be seen
    assert covariates.forecaster_run(hidden, case=case, seed=0)["test_mae"] > 100


def test_a_backtest_that_drops_a_window_is_refused(made, small_cases, monkeypatch):
    rows = covariates.load_valencia(made)
    monkeypatch.setattr(covariates, "_errors_of", lambda *args, **kwargs: (covariates.RunningErrors(), 3))
    with pytest.raises(ShapeError, match="the backtest gave 3 windows"):
        covariates.forecaster_run(rows, case=small_cases[-1], seed=0)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FrameError, match=r"vic_electricity\.csv is not there"):
        covariates.load_victoria(tmp_path)


def test_the_real_files_have_the_days_that_the_protocol_counts(shared_data):
    victoria, valencia = covariates.load_victoria(shared_data), covariates.load_valencia(shared_data)
    assert (len(victoria.values), victoria.n_fitted) == (52_608, 731 * 48)
    assert (len(valencia.values), valencia.n_fitted) == (3 * 365 * 24, 2 * 365 * 24)
    hours = pd.Series(victoria.stamps.date).value_counts() / 2
    assert sorted(hours[hours != 24]) == [23, 23, 23, 25, 25, 25]
    assert np.isnan(valencia.values).mean() > 0.01
