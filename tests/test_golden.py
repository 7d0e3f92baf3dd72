"""Files of released versions are read for ever, and give the numbers that they gave."""

import json
from pathlib import Path

import numpy as np
import pytest

from txl_ts import TXLForecaster

GOLDEN = sorted(path for path in (Path(__file__).parent / "golden").iterdir() if path.is_dir())
# Another processor or runtime sums in another order; float32 keeps 7 digits, the values are some tens.
CLOSE = 1e-5


@pytest.fixture(params=GOLDEN, ids=lambda path: path.name)
def golden(request):
    return request.param


def expected(golden):
    return json.loads((golden / "expected.json").read_text(encoding="utf-8"))


def assert_close(found, wanted):
    wanted = np.asarray(wanted, np.float64)
    assert np.abs(np.asarray(found, np.float64) - wanted).max() <= CLOSE * np.abs(wanted).max()


def test_there_is_a_golden_folder():
    assert [path.name for path in GOLDEN][:1] == ["0.1.0"]


def test_a_released_model_is_loaded_and_predicts_the_same(golden):
    found = TXLForecaster.load(golden / "model.txl").predict()
    wanted = expected(golden)["predict"]
    assert found["unique_id"].to_list() == wanted.pop("unique_id")
    for column, values in wanted.items():
        assert_close(found[column], values)


@pytest.mark.parametrize("has_step_graph", [True, False])
def test_a_released_graph_goes_on_from_its_released_state(golden, tmp_path, has_step_graph):
    pytest.importorskip("onnxruntime", reason="the extra `ort` is not installed")
    from txl_ts.runtime import StreamSession

    graph = golden / "graph.onnx"
    session = StreamSession(graph if has_step_graph else graph.read_bytes())
    session.restore(golden / "state.txl")
    for row in expected(golden)["rows"]:
        name, value = row["stream"], np.nan if row["y"] is None else row["y"]
        told = session.step({name: {"time": row["time"], "values": {"y": value}}})[name]
        assert_close(told.quantiles, row["told"])


def test_a_released_model_takes_the_same_rows_in_as_the_graph(golden):
    import pandas as pd

    document = expected(golden)
    model = TXLForecaster.load(golden / "model.txl")
    rows = pd.DataFrame([{k: row[k] for k in ("stream", "time", "y")} for row in document["rows"]])
    rows["time"] = pd.to_datetime(rows["time"])
    model.update(rows.rename(columns={"stream": "unique_id", "time": "ds"}))
    found = model.predict()
    for name in ("pump-1", "pump-2"):
        last = [row["told"] for row in document["rows"] if row["stream"] == name][-1]
        assert_close(found.loc[found.unique_id == name, ["TXL_ql0.1", "TXL", "TXL_ql0.9"]], last)
