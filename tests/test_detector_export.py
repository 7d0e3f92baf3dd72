"""The graph of a detector: torch = live = ONNX row by row, with alarms, bad readings and a resume in the middle."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from txl_ts import TXLAnomalyDetector, open_watch
from txl_ts.errors import ColumnError, FileFormatError, ParameterError
from txl_ts.runtime import StreamSession, read_contract
from txl_ts.runtime.watching import calibration_of, score_of

SMALL = {"d_model": 8, "n_layers": 1, "n_heads": 2, "lookback": 8, "mem_len": 4, "max_epochs": 0, "horizons": (1, 4)}


@pytest.fixture(scope="module")
def series(shared_data):
    """A file of SKAB: 8 sensors of a pump, the first 400 rows normal; holes are made in two of them."""
    df = pd.read_csv(shared_data / "skab/valve1/0.csv", sep=";").iloc[:, 1:9]
    df.iloc[600:620, 2] = np.nan
    df.iloc[700] = np.nan
    return df


@pytest.fixture(scope="module")
def exported(series, tmp_path_factory):
    pytest.importorskip("onnxscript", reason="exports need onnxscript")
    detector = TXLAnomalyDetector(**SMALL, contamination=0.05).fit(series[:400])
    path = tmp_path_factory.mktemp("detector") / "pump.onnx"
    return detector, path, detector.export_onnx(path)


def rows(df):
    return {"values": {name: df[name].to_numpy() for name in df}}


def test_scores_parts_and_alarms_agree_row_by_row_and_across_a_resume(exported, series, tmp_path):
    detector, path, _ = exported
    later = series[400:].reset_index(drop=True)
    wanted = detector.detect(later)
    session, found = StreamSession(path), []
    found.append(session.step({"pump": rows(later[:250])})["pump"])
    session.snapshot(tmp_path / "now.txl")
    session = StreamSession(path)
    session.restore(tmp_path / "now.txl")
    found += [session.step({"pump": rows(later[i : i + 1])})["pump"] for i in range(250, len(later))]
    scores = np.concatenate([one.scores for one in found])
    parts = np.concatenate([one.sensor_parts for one in found])
    p_values = np.concatenate([one.p_values for one in found])
    np.testing.assert_allclose(scores, wanted.score, rtol=0, atol=1e-5 * np.nanmax(wanted.score))
    np.testing.assert_allclose(parts, wanted.parts, rtol=0, atol=1e-5 * np.nanmax(wanted.parts))
    # A score that differs in its last digit may pass one score of the table.
    np.testing.assert_allclose(p_values, wanted.p_value, atol=1.01 / (detector.calibration_.n + 1))
    alarms = np.array([one.alarm for one in found[1:]])
    assert (alarms != wanted.is_alarm[250:]).sum() <= 1
    assert wanted.is_alarm[250:].sum() > 10
    last = found[-1]
    assert last.score == pytest.approx(wanted.score[-1], abs=1e-4)
    assert list(last.parts) == list(series)
    assert last.p_value == pytest.approx(wanted.p_value[-1], abs=0.02)


def test_a_reading_with_a_bad_status_counts_as_missing(exported, series):
    _, path, _ = exported
    missing = series[400:500].copy()
    missing["Current"] = np.nan
    status = np.zeros(100, int)
    status[:] = 3
    a, b = StreamSession(path), StreamSession(path)
    wanted = a.step({"pump": rows(missing)})["pump"]
    found = b.step({"pump": {**rows(series[400:500]), "status": {"Current": status}}})["pump"]
    np.testing.assert_array_equal(found.scores, wanted.scores)
    assert "Current" not in found.parts
    with pytest.raises(ColumnError, match="status of an unknown channel 'Curent', did you mean 'Current'"):
        b.step({"pump": {**rows(series[400:500]), "status": {"Curent": 1}}})
    with pytest.raises(ParameterError, match="expected a mapping by channel"):
        b.step({"pump": {**rows(series[400:500]), "status": 1}})


def test_the_graph_itself_takes_the_status_of_readings(exported, series):
    import onnxruntime

    _, path, contract = exported
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x = series[400:440].to_numpy(np.float32)[None]
    feed = {one["in"]: np.zeros((1, *one["dims"]), one["dtype"]) for one in contract["states"]}
    feed |= {"start": np.zeros((1, 1), np.int32), "x": x}
    status = np.zeros(x.shape, np.int32)
    status[0, :, 2] = 7
    names = ["score", "parts", "p_value"]
    found = session.run(names, {**feed, "status": status})
    gone = x.copy()
    gone[0, :, 2] = np.nan
    for a, b in zip(found, session.run(names, {**feed, "x": gone, "status": 0 * status}), strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.isnan(found[1][0, :, 2]).all()


def test_a_row_is_warming_up_until_it_has_a_score(exported, series):
    detector, path, contract = exported
    later = series[400:440].reset_index(drop=True)
    session = StreamSession(path)
    found = [session.step({"pump": rows(later[i : i + 1])})["pump"] for i in range(len(later))]
    assert [one.status for one in found] == detector.detect(later).status.tolist()
    assert [one.status for one in found].count("warming_up") == contract["warm_rows"]
    assert all(np.isnan(one.score) == (one.status == "warming_up") for one in found)


def test_a_fleet_of_streams_steps_as_arrays(exported, series):
    detector, path, _ = exported
    session, names = StreamSession(path), [f"pump-{i}" for i in range(5)]
    wanted = detector.detect(series[400:430].reset_index(drop=True)).score
    for i, row in enumerate(series[400:430].to_numpy(np.float32)):
        found = session.step_many(names, np.tile(row, (5, 1)))
        np.testing.assert_allclose(found.score, wanted[i], rtol=1e-4, atol=1e-5)
    assert found.parts.shape == (5, 8)
    assert found.quantiles.shape == (5, 4, 8, 7)
    assert found.alarm.dtype == bool


def test_a_watch_over_the_file_gives_the_same_and_needs_no_torch(exported, series):
    detector, path, _ = exported
    later = series[400:].reset_index(drop=True)
    messages = [
        {"time": i * 10**9, "values": {n: None if np.isnan(v) else float(v) for n, v in row.items()}}
        for i, row in enumerate(later.to_dict("records"))
    ]
    watch, live = open_watch(path), detector.watch()
    found, same = (one.step({"pump": messages})["pump"] + one.flush()["pump"] for one in (watch, live))
    wanted = detector.detect(later)
    size = np.nanmax(wanted.score)
    np.testing.assert_allclose([one.score for one in found], wanted.score, rtol=0, atol=1e-5 * size)
    stories = [[(a.id, a.event, a.since, a.at) for one in said for a in one.alerts] for said in (found, same)]
    assert stories[0] == stories[1]
    assert stories[0]
    code = (
        "import sys, txl_ts; txl_ts.open_watch(sys.argv[1]);"
        "print(sorted({'torch', 'sklearn', 'pandas', 'narwhals'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_contract_says_what_a_watch_needs(exported):
    detector, path, contract = exported
    read = read_contract(json.dumps(contract), where="the contract")
    assert read.is_detector
    assert read.alpha == detector.calibration_.alpha
    assert score_of(read) == detector._model.surprise
    assert calibration_of(read).digest == detector.calibration_.digest
    assert calibration_of(read, contamination=0.1).alpha == 0.1
    assert contract["parity"]["max_relative"] < 1e-5
    assert json.loads(path.with_suffix(".contract.json").read_text()) == contract

    def all_of(text):
        one = read_contract(text, where="the contract")
        return calibration_of(one), score_of(one)

    assert all_of(json.dumps(contract))[1] == score_of(read)
    for change in ({"score": {}}, {"scores": {"by_series": [1], "float32": "AAAA"}}, {"alpha": 2.0}):
        broken = json.dumps({**contract, "detector": {**contract["detector"], **change}})
        with pytest.raises(FileFormatError, match="detector"):
            all_of(broken)


def test_a_forecasters_graph_is_no_detector():
    from pathlib import Path

    golden = Path(__file__).parent / "golden/0.1.0/graph.onnx"
    with pytest.raises(ParameterError, match="the model is no detector"):
        open_watch(golden)
