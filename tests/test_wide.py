"""Wide frames: several targets side by side are the series of the long frame that holds them one after the other."""

import copy

import numpy as np
import pandas as pd
import pytest

from txl_ts import TXLForecaster
from txl_ts.errors import (
    CleanedDataWarning,
    ColumnError,
    FileFormatError,
    FrameError,
    ParameterError,
    StateError,
    UnusedColumnsWarning,
)

HOUR = pd.Timedelta(hours=1)
TARGETS = ["load", "flow"]
VALUES = ["TXL", "TXL_ql0.1", "TXL_ql0.8"]


def wide(n_rows=100, *, ids=("a", "b"), first=0, seed=0):
    rng = np.random.default_rng(seed)
    parts = []
    for i, name in enumerate(ids):
        t = np.arange(n_rows) + first
        load = 10 + i + np.sin(2 * np.pi * t / 24) + rng.normal(0, 0.2, n_rows)
        flow = 300 - 20 * np.cos(2 * np.pi * t / 24) + rng.normal(0, 2, n_rows)
        flow[rng.random(n_rows) < 0.05] = np.nan
        ds = pd.Timestamp("2024-01-01").as_unit("us") + HOUR * t
        parts.append(
            pd.DataFrame({"unique_id": name, "ds": ds, "load": load, "flow": flow, "warm": rng.normal(size=n_rows)})
        )
    return pd.concat(parts, ignore_index=True)


def melted(df, *more):
    """The same rows as a long frame, written out by hand; names sort as ids first, then targets in their order."""
    rank = {"load": "load", "flow": "flow"}
    parts = [
        df.assign(unique_id=df.unique_id.astype(str) + f"/{rank[target]}", y=df[target])[
            ["unique_id", "ds", "y", *more]
        ]
        for target in TARGETS
    ]
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def rows():
    return wide()[["unique_id", "ds", *TARGETS]]


@pytest.fixture(scope="module")
def small(tiny):
    return {**tiny, "max_epochs": 1}


@pytest.fixture(scope="module")
def side_by_side(small, rows):
    return TXLForecaster(**small).fit(rows, target_col=TARGETS)


@pytest.fixture
def model(side_by_side):
    return copy.deepcopy(side_by_side)


def as_wide(long):
    """Long forecasts side by side, by pandas alone."""
    parts = long.unique_id.str.rsplit("/", n=1)
    long = long.assign(unique_id=parts.str[0], target=parts.str[1])
    keys = ["unique_id", *[c for c in ("ds", "cutoff") if c in long]]
    out = long.pivot(index=keys, columns="target")
    out.columns = [f"{target}_{value}" if value != "y" else target for value, target in out.columns]
    return out.reset_index()


def assert_same(got, expected):
    expected = expected[list(got.columns)].sort_values(
        [c for c in ("unique_id", "ds", "cutoff") if c in got], ignore_index=True
    )
    for column in got:
        if got[column].dtype.kind == "f":
            # The two models see the same lanes in another order: sums differ in their last digits.
            np.testing.assert_allclose(got[column], expected[column], rtol=2e-4, atol=2e-4)
        else:
            assert list(got[column]) == list(expected[column])


def test_forecasts_are_those_of_the_long_frame_with_a_column_per_target(small, side_by_side, rows):
    # Sorted names put "a/flow" before "a/load"; with one epoch the order of lanes would draw other dropout.
    alone = {**small, "max_epochs": 0}
    got = TXLForecaster(**alone).fit(rows, target_col=TARGETS).predict()
    expected = TXLForecaster(**alone).fit(melted(rows)).predict()
    assert list(got.columns) == ["unique_id", "ds", *(f"{t}_{v}" for t in TARGETS for v in VALUES)]
    assert len(got) == 2 * 3
    assert_same(got, as_wide(expected))
    assert list(side_by_side.predict(level=[60]).columns[2:5]) == ["load_TXL", "load_TXL-lo-60", "load_TXL-hi-60"]


def test_update_and_backtest_give_a_column_per_target_too(small, rows):
    alone = {**small, "max_epochs": 0}
    news = wide(9, first=100, seed=1)[["unique_id", "ds", *TARGETS]]
    a = TXLForecaster(**alone).fit(rows, target_col=TARGETS)
    b = TXLForecaster(**alone).fit(melted(rows))
    assert_same(a.update(news), as_wide(b.update(melted(news))))
    assert_same(a.predict(), as_wide(b.predict()))
    whole = pd.concat([rows, news], ignore_index=True)
    walked = a.cross_validation(whole, n_windows=3, use_fitted=False, target_col=TARGETS)
    assert_same(walked, as_wide(b.cross_validation(melted(whole), n_windows=3)))
    errors = a.cross_validation(whole, n_windows=3, output="metrics", target_col=TARGETS)
    expected = b.cross_validation(melted(whole), n_windows=3, output="metrics").set_index("unique_id")
    assert list(errors.columns[:3]) == ["unique_id", "load_mse", "load_mae"]
    np.testing.assert_allclose(
        errors.set_index("unique_id").loc["b", "flow_mae"], expected.loc["b/flow", "mae"], rtol=1e-3
    )


def test_any_split_of_the_new_rows_gives_the_same_forecasts(model):
    news = wide(9, first=100, seed=1)[["unique_id", "ds", *TARGETS]]
    other = copy.deepcopy(model)
    model.update(news)
    place = news.groupby("unique_id").cumcount()
    for first, stop in ((0, 2), (2, 3), (3, 9)):
        other.update(news[(place >= first) & (place < stop)])
    names = [f"{t}_{v}" for t in TARGETS for v in VALUES]
    np.testing.assert_allclose(other.predict()[names], model.predict()[names], rtol=1e-5)


def test_known_columns_serve_all_targets_of_their_row(small):
    df = wide()
    df = df.assign(load=df.load + 3 * df.warm, flow=df.flow + 30 * df.warm)
    news = wide(3, first=100, seed=2)
    model = TXLForecaster(**small, calendar=["hour"]).fit(df, target_col=TARGETS, futr_cols=["warm"])
    futr = model.make_future_frame()
    assert len(futr) == 2 * 3
    out = model.predict(futr_df=futr.merge(news[["unique_id", "ds", "warm"]]))
    changed = model.predict(futr_df=futr.merge(news[["unique_id", "ds", "warm"]].assign(warm=lambda d: d.warm + 2)))
    assert out[["load_TXL", "flow_TXL"]].notna().all().all()
    assert (changed.load_TXL - out.load_TXL > 1).all()
    assert (changed.flow_TXL - out.flow_TXL > 10).all()


def test_static_rows_belong_to_the_id_and_serve_all_its_targets(small):
    df = wide()[["unique_id", "ds", *TARGETS]]
    static = pd.DataFrame({"unique_id": ["a", "b"], "size": [1.0, 2.0]})
    model = TXLForecaster(**small).fit(df, target_col=TARGETS, static_cols=["size"], static_df=static)
    assert model._fleet.static[:, 0].tolist() == [1, 1, 2, 2]
    assert model.predict(df=df).notna().all().all()


@pytest.mark.parametrize("ids", [(7, 12), ("a", "b")])
def test_ids_keep_their_type_and_can_be_asked_for(small, ids, tmp_path):
    df = wide(ids=ids)[["unique_id", "ds", *TARGETS]]
    model = TXLForecaster(**{**small, "max_epochs": 0}).fit(df, target_col=TARGETS)
    model.save(tmp_path / "m.txl")
    model = TXLForecaster.load(tmp_path / "m.txl")
    out = model.predict(ids=[ids[1]])
    assert out.unique_id.unique().tolist() == [ids[1]]
    assert model.predict().unique_id.dtype == df.unique_id.dtype
    assert (
        model.update(wide(2, ids=ids, first=100)[["unique_id", "ds", *TARGETS]]).unique_id.dtype == df.unique_id.dtype
    )
    with pytest.raises(StateError, match="2 series are not known"):
        model.predict(ids=[99])


def test_a_frame_without_ids_may_be_wide(small):
    df = wide(ids=("a",))[["ds", *TARGETS]]
    out = TXLForecaster(**{**small, "max_epochs": 0}).fit(df, id_col=None, target_col=TARGETS).predict()
    assert list(out.columns[:2]) == ["ds", "load_TXL"]
    assert len(out) == 3


def test_every_library_gives_the_same_numbers(frame, side_by_side, small, rows):
    df = frame({c: rows[c].to_list() if c == "unique_id" else rows[c].to_numpy() for c in rows})
    out = TXLForecaster(**small).fit(df, target_col=TARGETS).predict()
    assert type(out) is type(df)
    for name in ("load_TXL", "flow_TXL_ql0.8"):
        assert np.asarray(out[name]).tobytes() == side_by_side.predict()[name].to_numpy().tobytes()


@pytest.mark.parametrize(
    ("targets", "error", "text"),
    [
        ([], ParameterError, r"target_col=\[\] must be the name of a column, or a list of different names"),
        (["load", "load"], ParameterError, "list of different names"),
        (["load", "flo"], ColumnError, "target column 'flo' is not in the frame.*Did you mean 'flow'"),
    ],
)
def test_bad_targets_are_refused(small, rows, targets, error, text):
    with pytest.raises(error, match=text):
        TXLForecaster(**small).fit(rows, target_col=targets)


def test_a_target_without_any_value_is_an_error_or_left_out_alone(small, rows):
    rows = rows.assign(flow=rows.flow.where(rows.unique_id != "b"))
    with pytest.raises(ColumnError, match="target column 'flow' has no value at all in series 'b'"):
        TXLForecaster(**small).fit(rows, target_col=TARGETS)
    lenient = TXLForecaster(**{**small, "max_epochs": 0, "on_bad_series": "skip"})
    with pytest.warns(UserWarning, match="1 series was skipped"):
        out = lenient.fit(rows, target_col=TARGETS).predict()
    assert [name for name, _ in lenient.skipped_] == ["b/flow"]
    assert out.flow_TXL.isna().tolist() == [False] * 3 + [True] * 3
    assert out.load_TXL.notna().all()


def test_columns_without_a_role_are_told_once(small):
    with pytest.warns(UnusedColumnsWarning, match="not used: 'warm'") as told:
        TXLForecaster(**{**small, "max_epochs": 0}).fit(wide(), target_col=TARGETS)
    assert len(told) == 1


def test_a_file_whose_series_are_not_named_after_its_targets_is_refused(model, tmp_path):
    model._targets = ("other",)
    model.save(tmp_path / "m.txl")
    with pytest.raises(FileFormatError):
        TXLForecaster.load(tmp_path / "m.txl")


# ------------------------------------------------------------------------------------------------------------- pictures


@pytest.mark.parametrize("channels", ["independent", "mixed"])
def test_a_picture_has_a_panel_per_id_and_target(small, rows, channels):
    pytest.importorskip("matplotlib")
    model = TXLForecaster(channels=channels, **{**small, "max_epochs": 0}).fit(rows, target_col=TARGETS)
    later = pd.concat([rows, wide(4, first=100)[["unique_id", "ds", *TARGETS]]])
    figure = model.plot(later, n_history=24)
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes}
    assert list(panels) == ["a/load", "a/flow", "b/load", "b/flow"]
    drawn = [y for line in panels["b/flow"].lines for y in line.get_ydata()]
    assert 200 < np.nanmin(drawn) < np.nanmax(drawn) < 400  # flow, not load
    assert len(model.plot(ids=["b"]).axes) == 2


def test_a_picture_of_one_wide_series_without_ids(small, rows):
    pytest.importorskip("matplotlib")
    alone = rows[rows.unique_id == "a"].drop(columns="unique_id")
    model = TXLForecaster(**{**small, "max_epochs": 0}).fit(alone, id_col=None, target_col=TARGETS)
    assert [axes.get_title(loc="left") for axes in model.plot(alone).axes] == ["load", "flow"]


# ------------------------------------------------------------------------------------------- one target was left out


@pytest.fixture
def torn(small):
    """Fitted on two targets that both follow ``warm``; then the load of "a" was left out for 20 hours."""
    df = wide(160)
    df["load"], df["flow"] = 10 * df.warm, 10 * df.warm
    hour = df.groupby("unique_id").cumcount()
    model = TXLForecaster(**{**small, "max_epochs": 0, "lookback": 4}, on_bad_series="skip")
    model.fit(df[hour < 100], target_col=TARGETS, futr_cols=["warm"])
    bad = df[(hour >= 100) & (hour < 120)].copy()
    bad.loc[(bad.unique_id == "a") & (bad.ds == bad.ds.min()), "load"] = np.inf
    with pytest.warns(CleanedDataWarning, match="1 series were skipped: 'a/load'"):
        model.update(bad)
    return model, df, hour


def test_targets_of_an_id_that_end_at_different_rows_read_their_own_rows_ahead(torn):
    model, df, hour = torn
    futr = df[["unique_id", "ds", "warm"]]
    wanted = model.make_future_frame()
    first = df.ds[hour == 100].iloc[0]
    assert wanted[wanted.unique_id == "a"].ds.tolist() == [first + HOUR * k for k in (0, 1, 2, 20, 21, 22)]
    assert wanted[wanted.unique_id == "b"].ds.tolist() == [first + HOUR * k for k in (20, 21, 22)]
    said = model.predict(futr_df=futr)
    walked = model.predict(df=df[hour < 120], futr_df=futr)
    late = said[(said.unique_id == "a") & said.flow_TXL.notna()]
    np.testing.assert_allclose(late.flow_TXL, walked[walked.unique_id == "a"].flow_TXL, rtol=1e-4)
    with pytest.raises(FrameError, match="lacks"):
        model.predict(futr_df=futr[futr.ds < first + 20 * HOUR])


def test_paths_of_targets_that_end_at_different_rows_have_the_stamps_of_their_own(torn):
    model, df, hour = torn
    paths = model.sample_paths(n_paths=2, futr_df=df[["unique_id", "ds", "warm"]])
    first = df.ds[hour == 100].iloc[0]
    for target, k in (("load", 0), ("flow", 20)):
        mine = paths[(paths.unique_id == "a") & paths[f"{target}_TXL"].notna()]
        assert mine.ds.tolist() == [first + HOUR * (k + step) for step in range(3)] * 2
        assert mine.sample_id.tolist() == [0] * 3 + [1] * 3
    assert paths[paths.unique_id == "b"].notna().all(axis=None)


def test_an_id_whose_target_was_left_out_can_be_asked_for_and_forgotten(small, rows):
    df = rows.copy()
    df.loc[df.unique_id == "a", "flow"] = np.nan
    with pytest.warns(CleanedDataWarning):
        model = TXLForecaster(**{**small, "max_epochs": 0}, on_bad_series="skip").fit(df, target_col=TARGETS)
    assert model.predict(ids=["a"]).load_TXL.notna().all()
    model.forget(["a"])
    assert model.predict().unique_id.unique().tolist() == ["b"]
    with pytest.raises(StateError, match="a/load"):
        model.predict(ids=["a"])


# --------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["TXL", "TXL-lo-80", "TXL_ql0.1"])
def test_a_target_that_is_called_like_a_forecast_is_refused(small, rows, name):
    with pytest.raises(ParameterError, match=rf"target column '{name}' has the name of a forecast column.*Rename"):
        TXLForecaster(**small).fit(rows.rename(columns={"load": name}), target_col=name)
    with pytest.raises(ParameterError, match=f"target column 'flow_{name}'"):
        TXLForecaster(**small).fit(rows.rename(columns={"load": f"flow_{name}"}), target_col=["flow", f"flow_{name}"])


def test_an_id_and_target_that_read_like_others_are_refused(small, rows):
    df = rows.assign(unique_id="plant/b").drop_duplicates(["unique_id", "ds"])
    df = df.rename(columns={"load": "c", "flow": "b/c"})
    with pytest.raises(ParameterError, match=r"id 'plant/b' with target 'c' has the name of another.*'plant/b/c'"):
        TXLForecaster(**small).fit(df, target_col=["c", "b/c"])
