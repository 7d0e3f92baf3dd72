"""The bench of precision over a long stream."""

import numpy as np

from txl_ts.bench.drift import measured, run, stream
from txl_ts.bench.report import markdown


def test_fewer_bits_are_further_off():
    row = measured("fifo", 0, n_rows=3000)
    assert 0 < row["float32"] < 1e-4  # seven digits, through two layers
    assert row["float32"] < row["bf16"] < 0.2
    assert row["us_float32"] > 0
    assert row["largest"] > 0


def test_the_stream_stays_at_its_level():
    x = stream(0, 20_000)
    assert abs(x.mean() - 1000) < 0.5
    assert 0.8 < np.std(x) < 1.2


def test_the_table_has_a_row_per_memory():
    table = run(memories=("fifo", "gated"), n_rows=1100)
    assert [row["memory"] for row in table["rows"]] == ["fifo", "gated"]
    assert "| fifo |" in markdown(table)
