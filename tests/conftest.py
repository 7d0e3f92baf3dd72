"""Fixtures that every test file may use."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# No clock decides a test (a first call may be slow), and the same examples run everywhere.
hypothesis.settings.register_profile("house", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("house")


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
