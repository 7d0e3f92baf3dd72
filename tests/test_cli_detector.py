"""The whole road of a detector through the command line: a table, a model, a watch."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.kills import killed
from txl_ts import TXLAnomalyDetector
from txl_ts.cli import main
from txl_ts.errors import DependentRowsWarning

pytest.importorskip("typer", reason="the command line needs the extra `cli`")
pytestmark = pytest.mark.filterwarnings("ignore", category=DependentRowsWarning)
SET = ["--set", "max_epochs=0", "--set", "d_model=8", "--set", "lookback=8", "--set", "mem_len=4"]


def call(*args) -> int:
    with pytest.raises(SystemExit) as end:
        main([*map(str, args)])
    return end.value.code or 0


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def rows(n, *, seed, start="2026-01-01"):
    rng, minute = np.random.default_rng(seed), np.arange(n)
    flow = 20 + 3 * np.sin(minute / 9) + rng.normal(scale=0.3, size=n)
    heat = 70 + 0.5 * flow + rng.normal(scale=0.2, size=n)
    time = pd.date_range(start, periods=n, freq="min")
    return pd.DataFrame({"time": time, "stream": "pump-7", "flow": flow.round(3), "heat": heat.round(3)})


@pytest.fixture(scope="module")
def new():
    df = rows(200, seed=1, start="2026-02-01")
    df.loc[100, "heat"] += 9
    df.loc[150:159, "flow"] = np.nan
    return df


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted")
    rows(1500, seed=0).to_csv(folder / "past.csv", index=False, sep=";")
    assert call("fit-detector", folder / "past.csv", "--out", folder / "pump.txl", *SET) == 0
    return folder / "pump.txl"


@pytest.fixture
def table(new, tmp_path):
    new.to_csv(tmp_path / "new.csv", index=False)
    return tmp_path / "new.csv"


def test_fit_detector_says_what_it_read_and_how_alarms_begin(fitted, tmp_path, capsys):
    rows(600, seed=0).to_parquet(tmp_path / "past.parquet")
    args = ["--sensors", "heat", "--contamination", "0.05", "--out", tmp_path / "heat.txl"]
    assert call("fit-detector", tmp_path / "past.parquet", *args, *SET) == 0
    printed = capsys.readouterr().out
    assert "600 rows from" in printed
    assert "Sensors: heat\n" in printed
    assert "0.05 of normal rows" in printed
    assert TXLAnomalyDetector.load(tmp_path / "heat.txl").feature_names_in_.tolist() == ["heat"]


def test_a_detector_of_the_command_line_is_the_one_of_python(fitted, new):
    past = rows(1500, seed=0)
    detector = TXLAnomalyDetector(max_epochs=0, d_model=8, lookback=8, mem_len=4)
    detector.fit(past, time="time", series_id="stream")
    other = TXLAnomalyDetector.load(fitted)
    assert other.calibration_.threshold == detector.calibration_.threshold
    X = new[["flow", "heat"]]
    np.testing.assert_array_equal(other.anomaly_score(X, series_id="a"), detector.anomaly_score(X, series_id="a"))


def test_what_is_watched_has_the_scores_and_p_values_of_the_detector(fitted, table, new, tmp_path):
    assert call("watch", fitted, table, "--out", tmp_path / "out.jsonl", "--details") == 0
    said = lines_of(tmp_path / "out.jsonl")
    detector = TXLAnomalyDetector.load(fitted)
    found = detector.detect(new[["flow", "heat"]], series_id="pump-7")
    score = np.array([np.nan if one["score"] is None else one["score"] for one in said])
    np.testing.assert_allclose(score, found.score, rtol=1e-4, atol=1e-5)
    p_value = np.array([np.nan if one["p_value"] is None else one["p_value"] for one in said])
    np.testing.assert_allclose(p_value, found.p_value, atol=2 / detector.calibration_.n)
    (raised,) = [a for one in said[95:105] for a in one["alerts"] if a["event"] == "raised"]
    assert (raised["kind"], raised["at"], raised["sensors"][0]) == ("anomaly", "2026-02-01T01:40:00", "heat")
    assert [one["status"] for one in said[149:161]] == ["ok", *["missing"] * 10, "ok"]
    assert said[155]["parts"].get("flow") is None


def test_another_budget_may_be_asked_for_and_is_refused_where_the_rows_cannot_tell(fitted, table, tmp_path, capsys):
    assert call("watch", fitted, table, "--contamination", "0.2", "--alerts-only", "--out", tmp_path / "many") == 0
    assert call("watch", fitted, table, "--alerts-only", "--out", tmp_path / "few") == 0
    assert len(lines_of(tmp_path / "many")) > 3 * len(lines_of(tmp_path / "few"))
    assert call("watch", fitted, table, "--false-alarms", "1 per 30d") == 2
    assert "need 43,199 held-out rows" in capsys.readouterr().err


def test_gaps_are_bridged_for_ten_steps_of_the_rows_that_were_fitted(fitted, new, tmp_path):
    new.drop(index=[*range(40, 48), *range(120, 140)]).to_csv(tmp_path / "gaps.csv", index=False)
    assert call("watch", fitted, tmp_path / "gaps.csv", "--tick", "1min", "--out", tmp_path / "out") == 0
    said = {one["time"][11:16]: one["status"] for one in lines_of(tmp_path / "out")}
    assert [said["00:40"], said["00:47"], said["00:48"]] == ["missing", "missing", "gap_bridged"]
    assert said["02:20"] == "reset"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--sensors", "flw"],
            "has no column 'flw'; it has ['time', 'stream', 'flow', 'heat']. Name it with --sensors",
        ),
        (["--time-col", "when"], "has no column 'when'"),
        (["--out", "pump.json"], "must end with .txl, the model, or .onnx, its graph"),
        (["--set", "d_modl=8"], "the detector has no parameter 'd_modl'. Did you mean 'd_model'?"),
    ],
)
def test_what_cannot_be_fitted_is_named(args, message, table, capsys):
    assert call("fit-detector", table, *args) == 2
    assert message in capsys.readouterr().err


def test_a_forecaster_has_no_budget(table, capsys):
    graph = Path(__file__).parent / "golden" / "0.1.0" / "graph.onnx"
    pytest.importorskip("onnxruntime", reason="a graph needs the extra `ort`")
    assert call("watch", graph, table, "--contamination", "0.1") == 2
    assert "is a forecaster and has no calibration for contamination=0.1" in capsys.readouterr().err


def test_a_state_is_no_model(table, capsys):
    state = Path(__file__).parent / "golden" / "0.1.0" / "state.txl"
    assert call("watch", state, table) == 2
    assert "expected a detector or a forecaster" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------ real pump


@pytest.fixture(scope="session")
def pump(shared_data, tmp_path_factory):
    """SKAB: a detector from rows without faults, its graph, and a run in which a valve is closed and sensors fail."""
    pytest.importorskip("onnxscript", reason="exports need the extra `export`")
    pytest.importorskip("onnxruntime", reason="a graph needs the extra `ort`")
    folder = tmp_path_factory.mktemp("pump")
    sensors = ["Current", "Temperature", "Volume Flow RateRMS"]
    runs = [pd.read_csv(shared_data / "skab" / "valve1" / f"{i}.csv", sep=";") for i in (1, 3, 5, 7, 15)]
    past = [df[:400].assign(unique_id=f"run {i}") for i, df in enumerate(runs[:-1])]
    pd.concat(past)[["unique_id", "datetime", *sensors]].to_csv(folder / "past.csv", index=False)
    new = runs[-1][["datetime", *sensors]][300:900].reset_index(drop=True).astype({"Temperature": object})
    new.loc[100:140, "Current"] = 0.9
    new.loc[160:200, "Temperature"] = np.nan
    new.loc[220, "Temperature"] = "broken"
    new.loc[240, "Volume Flow RateRMS"] = 900
    new.loc[450:452, "datetime"] = new.loc[440, "datetime"]
    new.to_csv(folder / "new.csv", index=False)
    more = ["--set", "kind=deviation", "--set", "smooth=8", "--out", folder / "pump.txl"]
    assert call("fit-detector", folder / "past.csv", *SET, *more) == 0
    TXLAnomalyDetector.load(folder / "pump.txl").export_onnx(folder / "pump.onnx")
    return folder


GUARDS = ["--stuck-after", "20s", "--stale-after", "20s", "--max-gap", "1min", "--range", "Volume Flow RateRMS=0:100"]


def test_the_graph_says_what_the_model_says(pump, tmp_path):
    for name in ("pump.txl", "pump.onnx"):
        assert call("watch", pump / name, pump / "new.csv", *GUARDS, "--details", "--out", tmp_path / name) == 0
    torch, onnx = lines_of(tmp_path / "pump.txl"), lines_of(tmp_path / "pump.onnx")
    assert len(torch) == len(onnx)
    for a, b in zip(torch, onnx, strict=True):
        assert (a["time"], a["status"], a["score"] is None) == (b["time"], b["status"], b["score"] is None)
        assert a["score"] is None or b["score"] == pytest.approx(a["score"], rel=1e-4)
        assert [(x["id"], x["event"], x["at"]) for x in a["alerts"]] == [
            (x["id"], x["event"], x["at"]) for x in b["alerts"]
        ]
    kinds = {alert["kind"] for line in torch for alert in line["alerts"]}
    assert kinds >= {"anomaly", "stuck", "stale"}


def test_after_kill_9_at_twenty_points_the_alerts_of_a_real_run_are_there_once(pump, tmp_path):
    def args(folder):
        outputs = ["--out", folder / "rows", "--alerts", folder / "alerts", "--state", folder]
        return [pump / "pump.onnx", pump / "new.csv", *GUARDS, "--every", 20, *outputs]

    once, again = tmp_path / "once", tmp_path / "again"
    once.mkdir()
    again.mkdir()
    assert killed([10**9], *args(once)) == ["ended 0"]
    n_events = int((once / "n_events").read_text())
    points = np.random.default_rng(2).integers(1, n_events // 12, size=20).tolist()
    assert killed([*points, 10**9], *args(again)) == [*["killed"] * 20, "ended 0"]
    assert (again / "alerts").read_bytes() == (once / "alerts").read_bytes()
    assert (again / "rows").read_bytes() == (once / "rows").read_bytes()
    assert {alert["kind"] for alert in lines_of(once / "alerts")} >= {"anomaly", "stuck", "stale"}
