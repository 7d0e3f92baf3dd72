"""Fixtures that every test file may use."""

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# No clock decides a test (a first call may be slow), and the same examples run everywhere.
hypothesis.settings.register_profile("house", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("house")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Small products on two threads of a busy machine wait for each other: ten times slower. In child processes too."""
    import torch

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets: TXL_TS_DATA, or shared/data beside the checkout."""
    folder = Path(os.environ.get("TXL_TS_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no data sets at {folder}: set TXL_TS_DATA to the folder that holds ett/, m4_hourly/, …")
    return folder


@pytest.fixture(params=["pandas", "polars", "pyarrow"])
def frame(request: pytest.FixtureRequest) -> Callable[[Mapping[str, Any]], Any]:
    """Make a native frame of a dict of columns, once per dataframe library."""
    library = pytest.importorskip(request.param, reason=f"{request.param} is not installed")
    constructor: Callable[[Mapping[str, Any]], Any] = library.table if request.param == "pyarrow" else library.DataFrame
    return constructor


# ---------------------------------------------------------------------------------------------- a small forecaster


@pytest.fixture(scope="session")
def tiny() -> dict[str, Any]:
    """Parameters of a forecaster that fits within a second; lengths that could be swapped differ from each other."""
    return {
        "h": 3,
        "freq": "1h",
        "quantiles": (0.1, 0.5, 0.8),
        "patch_len": 4,
        "stride": 3,
        "mem_len": 5,
        "lookback": 16,
        "half_life": 24,
        "d_model": 8,
        "n_layers": 2,
        "n_heads": 2,
        "d_ff": 10,
        "batch_size": 8,
        "segment_len": 8,
        "max_epochs": 2,
        "learning_rate": 1e-2,
    }


@pytest.fixture(scope="session")
def make_rows() -> Callable[..., Any]:
    """Make hourly series as one pandas frame: ragged, with some missing values, each at its own level."""
    import numpy as np
    import pandas as pd

    def make(n_series: int = 3, n_rows: int = 100, *, seed: int = 0, start: str = "2024-01-01") -> Any:
        rng = np.random.default_rng(seed)
        parts = []
        for i in range(n_series):
            t = np.arange(n_rows + 7 * (i % 5))
            y = i % 7 + (1 + i % 3) * np.sin(2 * np.pi * (t + 5 * i) / 24) + rng.normal(0, 0.3, len(t))
            y[rng.random(len(t)) < 0.04] = np.nan
            y[0] = i % 7
            ds = pd.date_range(start, periods=len(t), freq="h").as_unit("us") + pd.Timedelta(hours=2 * (i % 4))
            parts.append(pd.DataFrame({"unique_id": f"T{i + 1}", "ds": ds, "y": y}))
        return pd.concat(parts, ignore_index=True)

    return make


@pytest.fixture(scope="session")
def fitted(tiny: dict[str, Any], make_rows: Callable[..., Any]) -> Any:
    """A forecaster that was fitted on ``make_rows()``; never changed: tests that change one take ``forecaster``."""
    from txl_ts import TXLForecaster
    from txl_ts.training import Trainer

    with pytest.MonkeyPatch.context() as patch:
        # Its last epoch is kept, whatever it is worth: where the linear path alone is chosen, memories prove nothing.
        patch.setattr(Trainer, "validation_loss", lambda trainer: 1.0 / (1 + trainer.progress.history.epochs))
        return TXLForecaster(**tiny).fit(make_rows(), val_size=12)


@pytest.fixture
def forecaster(fitted: Any) -> Any:
    """A copy of ``fitted`` that a test may change."""
    return copy.deepcopy(fitted)


# ------------------------------------------------------------------------------------------------ its exported graph


@pytest.fixture(scope="session")
def graph(fitted: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graph of ``fitted``; nothing lies beside it but its contract."""
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    path = tmp_path_factory.mktemp("graph") / "demand.onnx"
    fitted.export_onnx(path)
    for beside in path.parent.glob("*.step.onnx"):
        beside.unlink()
    return path


@pytest.fixture
def one_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports make, and compare with the model, the graph of one row alone: a third of the time."""
    from txl_ts.export import onnx

    monkeypatch.setattr(onnx, "put_graphs", lambda path, made: made({"batch": 1, "time": 1})[1])


@pytest.fixture(scope="session")
def changed(graph: Path) -> Callable[[Callable[[Any], Any]], bytes]:
    """Give the graph's bytes with another contract."""
    import json

    import onnx

    def change(edit: Callable[[Any], Any]) -> bytes:
        proto = onnx.load(graph)
        (entry,) = [entry for entry in proto.metadata_props if entry.key == "txl_ts.contract"]
        document = json.loads(entry.value)
        new = edit(document)
        if new is None:
            new = json.dumps(document)
        entry.value = new
        return proto.SerializeToString()

    return change


@pytest.fixture(scope="session")
def one_row(graph: Path) -> Callable[..., bytes]:
    """Give the graph's bytes with one lane and one row fixed."""
    import json

    import onnx
    from onnxruntime.tools.onnx_model_utils import make_dim_param_fixed

    def fix(**changes: Any) -> bytes:
        proto = onnx.load(graph)
        for name in ("batch", "time"):
            make_dim_param_fixed(proto.graph, name, 1)
        (entry,) = [entry for entry in proto.metadata_props if entry.key == "txl_ts.contract"]
        entry.value = json.dumps(json.loads(entry.value) | {"fixed": {"batch": 1, "time": 1}} | changes)
        return proto.SerializeToString()

    return fix
