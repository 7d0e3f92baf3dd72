"""Other runtimes and languages step the exported graph, in environments of their own, and give torch's numbers.

Their packages come from PyPI and npm: `pytest -n 0 -m clients`, as .ci/run does. TXL_TS_CLIENTS names a folder that
keeps the environments from run to run.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.test_export import ABOUT, CLOSE, export_once, make_model
from txl_ts.bench import clients
from txl_ts.bench.clients import CLIENTS, Call, distance, prepare, run_program, run_torch
from txl_ts.errors import MissingExtraError
from txl_ts.export.triton import triton_config

pytestmark = pytest.mark.clients

TRITON = "Triton's core over OpenVINO"
EXAMPLES = Path(__file__).parents[1] / "examples" / "clients"


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "exported_load"  # test_export.py reads the same file
    folder.mkdir(exist_ok=True)
    return export_once(folder)


@pytest.fixture(scope="session")
def environments(tmp_path_factory):
    return Path(os.environ.get("TXL_TS_CLIENTS") or tmp_path_factory.mktemp("environments"))


@pytest.fixture(scope="session")
def program_of(environments):
    """Give a client that is ready to run, or skip with the reason why it is not."""
    ready = {}

    def prepared(name):
        if name not in ready:
            try:
                ready[name] = prepare(name, environments=environments, examples=EXAMPLES)
            except MissingExtraError as error:
                ready[name] = error
        if isinstance(ready[name], MissingExtraError):
            pytest.skip(f"{name}: {ready[name]}")
        return ready[name]

    return prepared


def streams(n_lanes, n_channels=1):
    """Two streams: calls of many lengths with gaps and restarts, the second one of single rows."""
    common = {"n_lanes": n_lanes, "n_channels": n_channels, "gaps": True, "restarts": True}
    mixed = clients.make_stream(lengths=(1, 2, 77, 1, 69), n_rows=300, seed=1, **common)
    return [mixed, clients.make_stream(lengths=(1,), n_rows=60, seed=2, **common)]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_walks_chained_streams_with_gaps_and_restarts_as_torch_does(name, program_of, exported):
    program = program_of(name)
    given = streams(n_lanes=min(3, program.most_lanes or 3))
    printed = program(exported.path, given)
    assert len(printed) == len(given)
    for stream, answer in zip(given, printed, strict=True):
        for found, y in zip(answer["forecasts"], run_torch(exported.model, stream)[0], strict=True):
            assert distance(found, y) <= CLOSE


@pytest.mark.parametrize("name", [name for name in CLIENTS if name not in {"OpenVINO, C++", TRITON}])
def test_a_client_ends_with_the_states_that_onnxruntime_has_in_this_process(name, program_of, exported):
    stream = streams(n_lanes=2)[0]
    states = exported.contract["states"]
    outputs = ["y", *(state["out"] for state in states)]
    past = {state["in"]: np.zeros((2, *state["dims"]), state["dtype"]) for state in states}
    for call in stream:
        _, *present = exported.session.run(outputs, {"x": call.x, "start": call.start[:, None], **past})
        past = dict(zip(past, present, strict=True))
    found = program_of(name)(exported.path, [stream])[0]["state"]
    assert list(found) == list(past)
    assert max(distance(found[state], past[state]) for state in past) <= CLOSE


@pytest.mark.parametrize("name", [name for name in CLIENTS if name != TRITON])
def test_a_client_that_never_restarts_what_torch_restarts_is_found_out(name, program_of, exported):
    """The bar can be missed: the same comparison, with one flag left out."""
    program = program_of(name)
    stream = streams(n_lanes=1)[1]
    still = [Call(call.x, call.start * (i == 0)) for i, call in enumerate(stream)]
    found = np.concatenate(program(exported.path, [still])[0]["forecasts"], axis=1)
    assert distance(found, np.concatenate(run_torch(exported.model, stream)[0], axis=1)) > 100 * CLOSE


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_steps_a_model_of_two_channels_without_a_linear_path(name, program_of, two_channels):
    program = program_of(name)
    stream = streams(n_lanes=min(2, program.most_lanes or 2), n_channels=2)[0]
    found = np.concatenate(program(two_channels.path, [stream])[0]["forecasts"], axis=1)
    assert distance(found, np.concatenate(run_torch(two_channels.model, stream)[0], axis=1)) <= CLOSE


@pytest.fixture(scope="session")
def two_channels(tmp_path_factory):
    from types import SimpleNamespace

    from txl_ts.export import export_onnx

    model = make_model(n_channels=2, lookback=0)
    path = tmp_path_factory.mktemp("two") / "two.onnx"
    channels = [{"name": "load", "unit": "MW"}, {"name": "wind", "unit": None}]
    export_onnx(model, path, about={**ABOUT, "channels": channels})
    return SimpleNamespace(model=model, path=path)


def test_the_oldest_onnxruntime_is_the_one_that_the_extra_promises(program_of):
    assert program_of("ONNX Runtime, oldest").version == "onnxruntime 1.16.3"


# --------------------------------------------------------------------------------------------------------------- Triton

PARSE = """
import json, sys
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2
config = text_format.Parse(sys.stdin.read(), model_config_pb2.ModelConfig())
print(json.dumps(json_format.MessageToDict(config, preserving_proto_field_name=True)))
"""


def test_tritons_own_parser_reads_the_configuration(program_of, exported):
    program = program_of(TRITON)
    text = triton_config(exported.contract, name="load", idle_min=2)
    config = json.loads(run_program([program.command[0], "-c", PARSE], given=text))
    sequences = config["sequence_batching"]
    assert sequences["max_sequence_idle_microseconds"] == "120000000"
    assert [state["input_name"] for state in sequences["state"]] == [s["in"] for s in exported.contract["states"]]
    assert all(state["initial_state"][0]["zero_data"] for state in sequences["state"])
    assert sequences["control_input"][0]["control"][0]["int32_false_true"] == [
        0,
        1,
    ]  # the kind is the first, not printed
    warm = config["model_warmup"][0]["inputs"]
    assert sorted(warm) == sorted(entry.name for entry in exported.proto.graph.input)


def test_tritons_core_warms_the_graph_up_with_one_lane_and_with_all(program_of, exported, tmp_path):
    program = program_of(TRITON)
    with program.serve(exported.path, tmp_path) as (_, log):
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("stand-in")]
    assert [line for line in lines if "lanes" in line] == [
        "stand-in: 1 requests, 1 lanes",
        "stand-in: 8 requests, 8 lanes",
    ]
    assert "stand-in: warm-up" in lines
