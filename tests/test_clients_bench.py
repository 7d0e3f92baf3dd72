"""The table of clients with stand-ins for them: nothing is installed here."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from txl_ts.bench import clients, report
from txl_ts.errors import MissingExtraError, ParameterError

CASES = 36  # 3 batches × 3 row counts × gaps × restarts


@pytest.fixture
def table(monkeypatch, tmp_path):
    """A table over a model that doubles its rows, and four clients: exact, off, of a single lane, and not there."""

    def doubled(model, stream):
        return [2 * call.x[:, :, None, :, None] for call in stream], {}

    def torch_itself(model_path, streams):
        return [{"forecasts": doubled(None, stream)[0]} for stream in streams]

    def a_little_off(model_path, streams):
        answers = torch_itself(model_path, streams)
        for stream, answer in zip(streams, answers, strict=True):
            restarts = any(call.start.any() for call in stream[1:])
            answer["forecasts"][-1] = answer["forecasts"][-1] * (1.01 if restarts else 1)
        return answers

    def client(function, most_lanes=None):
        class Program:
            version = "stand-in 1.0"

            def __call__(self, model_path, streams):
                return function(model_path, streams)

        Program.most_lanes = most_lanes
        return lambda places: Program()

    def absent(places):
        raise MissingExtraError("node is not installed.")

    made = {"exact": client(torch_itself), "off": client(a_little_off), "one lane": client(torch_itself, 1)}
    monkeypatch.setattr(clients, "CLIENTS", {**made, "absent": absent})
    model = SimpleNamespace(config=SimpleNamespace(n_channels=1))
    monkeypatch.setattr(clients, "models", lambda: {"doubler": model})
    monkeypatch.setattr(clients, "run_torch", doubled)
    monkeypatch.setattr("txl_ts.export.export_onnx", lambda *args, **settings: None)
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "client.py").write_text("")
    return clients.run(clients=tuple(clients.CLIENTS), examples=tmp_path, environments=tmp_path)


def test_every_client_that_runs_is_a_row_with_all_its_cases(table):
    found = {row["client"]: row for row in table["rows"]}
    assert {name: row["n_cases"] for name, row in found.items()} == {
        "exact": CASES,
        "off": CASES,
        "one lane": CASES // 3,
    }
    assert found["exact"]["worst"] == "0.0e+00"
    assert found["one lane"]["batch_7"] is None
    assert len(table["cases"]) == 2 * CASES + CASES // 3


def test_an_error_stands_in_the_cells_of_its_cases_only(table):
    row = next(row for row in table["rows"] if row["client"] == "off")
    assert float(row["worst"]) > 1e-4
    assert float(row["restarts"]) > 1e-4
    assert (float(row["plain"]), float(row["gaps"])) == (0.0, 0.0)


def test_a_client_that_is_not_there_is_named_with_the_reason(table):
    assert table["not_run"] == {"absent": "node is not installed."}
    assert "- absent: not run: node is not installed." in report.markdown(table)
    assert "absent" not in {row["client"] for row in table["rows"]}


def test_the_table_is_plain_json(table):
    json.dumps(table, allow_nan=False)


def test_the_calls_of_a_stream_hold_every_row_once():
    common = {"n_lanes": 3, "n_rows": 50, "n_channels": 2, "gaps": False, "restarts": False}
    whole = clients.make_stream(lengths=(50,), **common)
    cut = clients.make_stream(lengths=(1, 7), **common)
    assert [call.x.shape[1] for call in cut][:4] == [1, 7, 1, 7]
    np.testing.assert_array_equal(np.concatenate([call.x for call in cut], axis=1), whole[0].x)
    assert [call.start.tolist() for call in cut[:2]] == [[1, 1, 1], [0, 0, 0]]


def test_gaps_and_restarts_are_in_a_stream_that_asks_for_them():
    stream = clients.make_stream(n_lanes=2, n_rows=60, n_channels=1, lengths=(1,), gaps=True, restarts=True)
    rows = np.concatenate([call.x for call in stream], axis=1)
    assert np.isnan(rows[0, :5]).all()
    assert np.isnan(rows[:, 20:27]).all()
    assert [call.start.tolist() for call in stream[1:] if call.start.any()] == [[1, 0], [0, 1]]


def test_a_forecast_that_is_nan_elsewhere_is_infinitely_far():
    assert clients.distance(np.array([1.0, np.nan]), np.array([1.0, 2.0])) == float("inf")
    assert clients.distance(np.array([1.0, np.nan]), np.array([2.0, np.nan])) == 0.5


def test_an_unknown_client_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ParameterError, match=r"no client 'rust'. Take one of \['ONNX Runtime, Node'"):
        clients.prepare("rust", environments=tmp_path)


def test_a_folder_without_clients_is_refused(tmp_path):
    with pytest.raises(ParameterError, match=r"holds no clients\. Name examples/clients of a checkout"):
        clients.prepare("OpenVINO, stateful", environments=tmp_path, examples=tmp_path)


def test_a_missing_program_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(clients, "shutil", SimpleNamespace(which=lambda program: None))
    with pytest.raises(MissingExtraError, match="node is not installed"):
        clients.Places(tmp_path, tmp_path).node("web")


def test_a_failing_install_says_which_command_and_why(tmp_path):
    with pytest.raises(MissingExtraError, match=r"`python\S* -c .* …` failed: an error, said once"):
        clients._install([sys.executable, "-c", "import sys; sys.exit('an error, said once')"])
