"""The model repository for Triton: read back by a parser that knows nothing of the writer."""

import json

import pytest

from tests.oracles.text_proto import parse
from tests.test_export import ABOUT, export_once, make_model
from txl_ts.errors import ExportError, ParameterError, SaveError
from txl_ts.export.triton import export_triton, triton_config

TYPES = {"float32": "TYPE_FP32", "int32": "TYPE_INT32"}


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "exported_load"  # test_export.py reads the same file
    folder.mkdir(exist_ok=True)
    return export_once(folder)


@pytest.fixture(scope="session")
def config(exported):
    return parse(triton_config(exported.contract, name="load", n_streams=300, n_lanes=16, idle_min=2.5))


def many(value):
    return value if isinstance(value, list) else [value]


def test_inputs_and_outputs_are_those_of_the_graph_without_states_and_start(config, exported):
    sizes = exported.model.config
    assert config["input"] == {"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 1]}
    assert config["output"] == {"name": "y", "data_type": "TYPE_FP32", "dims": [-1, sizes.h, 1, len(sizes.quantiles)]}


def test_every_state_begins_as_zeros_of_one_lane(config, exported):
    found = config["sequence_batching"]["state"]
    assert [(state["input_name"], state["output_name"]) for state in found] == [
        (state["in"], state["out"]) for state in exported.contract["states"]
    ]
    for state, wanted in zip(found, exported.contract["states"], strict=True):
        kind = {"data_type": TYPES[wanted["dtype"]], "dims": wanted["dims"]}
        assert state["initial_state"] == {"name": "zeros", **kind, "zero_data": True}
        assert {key: state[key] for key in kind} == kind


def test_the_server_raises_start_where_a_sequence_begins(config):
    assert config["sequence_batching"]["control_input"] == {
        "name": "start",
        "control": {"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]},
    }


def test_warm_up_lists_every_input_of_the_graph(config, exported):
    for warm in config["model_warmup"]:
        found = {entry["key"]: entry["value"] for entry in warm["inputs"]}
        assert list(found) == [entry.name for entry in exported.proto.graph.input]
        assert found["x"]["dims"] == [1, 1]
        assert found["start"] == {"data_type": "TYPE_INT32", "dims": [1], "zero_data": True}
    assert [warm["batch_size"] for warm in config["model_warmup"]] == [1, 16]


def test_streams_lanes_and_idle_time_are_what_was_asked_for(config):
    assert config["sequence_batching"]["oldest"] == {"max_candidate_sequences": 300}
    assert config["sequence_batching"]["max_sequence_idle_microseconds"] == 150_000_000
    assert config["max_batch_size"] == 16


def test_the_graph_runs_on_one_thread_of_the_cpu(config):
    assert config["backend"] == "onnxruntime"
    assert config["instance_group"] == {"kind": "KIND_CPU", "count": 1}
    threads = {entry["key"]: entry["value"]["string_value"] for entry in config["parameters"]}
    assert threads == {"intra_op_thread_count": "1", "inter_op_thread_count": "1"}


def test_states_are_read_from_the_contract_whatever_they_are_called(exported):
    states = [
        {"in": f"past.{i:02d}.new", "out": f"present.{i:02d}.new", "dtype": "float32", "dims": [7, i + 1]}
        for i in range(3)
    ]
    found = parse(triton_config({**exported.contract, "states": states}, name="load"))
    assert [state["dims"] for state in found["sequence_batching"]["state"]] == [[7, 1], [7, 2], [7, 3]]
    assert [entry["key"] for entry in found["model_warmup"][0]["inputs"]][2:] == [state["in"] for state in states]


# --------------------------------------------------------------------------------------------------- the repository


@pytest.fixture
def quick_export(exported, monkeypatch):
    """Write what was exported once instead of exporting again."""

    def write(model, path, *, about):
        path.write_bytes(exported.path.read_bytes())
        path.with_suffix(".contract.json").write_text(json.dumps(exported.contract), encoding="utf-8")
        return exported.contract

    monkeypatch.setattr("txl_ts.export.triton.export_onnx", write)


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_repository_holds_graph_contract_and_configuration(quick_export, exported, tmp_path):
    contract = export_triton(make_model(), tmp_path / "served", name="load", about=ABOUT)
    assert contract == exported.contract
    assert tree(tmp_path) == [
        "served/load/1/model.contract.json",
        "served/load/1/model.onnx",
        "served/load/config.pbtxt",
    ]
    assert (tmp_path / "served/load/1/model.onnx").read_bytes() == exported.path.read_bytes()
    assert parse((tmp_path / "served/load/config.pbtxt").read_text(encoding="utf-8"))["name"] == "load"


def test_a_second_export_replaces_the_model_and_leaves_its_neighbours_alone(quick_export, tmp_path):
    export_triton(make_model(), tmp_path, name="pump", about=ABOUT)
    export_triton(make_model(), tmp_path, name="load", about=ABOUT, n_lanes=3)
    before = (tmp_path / "pump/config.pbtxt").read_bytes()
    export_triton(make_model(), tmp_path, name="load", about=ABOUT, n_lanes=5)
    assert parse((tmp_path / "load/config.pbtxt").read_text(encoding="utf-8"))["max_batch_size"] == 5
    assert (tmp_path / "pump/config.pbtxt").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["load", "pump"]


def test_a_graph_that_is_refused_leaves_the_repository_as_it_was(monkeypatch, tmp_path):
    def refuse(model, path, *, about):
        raise ExportError("the graph and the model differ")

    monkeypatch.setattr("txl_ts.export.triton.export_onnx", refuse)
    with pytest.raises(ExportError, match="differ"):
        export_triton(make_model(), tmp_path, name="load", about=ABOUT)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_an_error_of_ours(quick_export, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SaveError, match=r"could not write the model repository .*Name another folder"):
        export_triton(make_model(), tmp_path / "file", name="load", about=ABOUT)


@pytest.mark.parametrize("name", ["", ".load", "a/b", "two words", "über"])
def test_a_name_that_triton_cannot_use_is_refused(name, exported, tmp_path):
    with pytest.raises(ParameterError, match=r"cannot be used by Triton\. Take letters"):
        export_triton(make_model(), tmp_path, name=name, about=ABOUT)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"n_streams": 0}, "n_streams=0 must be a whole number of at least 1"),
        ({"n_lanes": 2.0}, r"n_lanes=2\.0 must be a whole number"),
        ({"idle_min": 0}, "idle_min=0 must be minutes above 0"),
        ({"idle_min": float("nan")}, "idle_min=nan must be minutes above 0"),
    ],
)
def test_a_number_that_cannot_be_is_refused_by_name(settings, text, exported):
    with pytest.raises(ParameterError, match=text):
        triton_config(exported.contract, name="load", **settings)


def test_the_command_writes_the_model_under_its_files_name(quick_export, fitted, tmp_path, capsys):
    pytest.importorskip("typer", reason="the command line needs the extra `cli`")
    from txl_ts.cli import main

    fitted.save(tmp_path / "demand.txl")
    with pytest.raises(SystemExit) as end:
        main(["export", str(tmp_path / "demand.txl"), "--triton", str(tmp_path / "served")])
    assert not end.value.code
    assert tree(tmp_path / "served") == ["demand/1/model.contract.json", "demand/1/model.onnx", "demand/config.pbtxt"]
    assert f"tritonserver --model-repository={tmp_path / 'served'}" in capsys.readouterr().out


def test_the_command_takes_one_place_at_a_time(fitted, tmp_path, capsys):
    pytest.importorskip("typer", reason="the command line needs the extra `cli`")
    from txl_ts.cli import main

    fitted.save(tmp_path / "demand.txl")
    with pytest.raises(SystemExit) as end:
        main(["export", str(tmp_path / "demand.txl"), "--out", "a.onnx", "--triton", "served"])
    assert end.value.code == 2
    assert "--out and --triton name two places" in capsys.readouterr().err
