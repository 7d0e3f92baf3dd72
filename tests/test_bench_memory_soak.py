"""The soak of memory policies: one stream in three precisions, and a fresh start beside it."""

import pytest
import torch

from txl_ts.bench import memory_soak as soak
from txl_ts.bench.report import markdown


def test_the_table_has_a_row_per_policy_and_a_fresh_start_only_where_the_past_is_forgotten():
    table = soak.run(policies=("two_rate", "gated"), n_rows=4_000, call=200)
    slow, gated = table["rows"]
    assert [slow["policy"], gated["policy"]] == ["two_rate", "gated"]
    assert "fresh_millionths" not in gated
    # Float32 keeps 7 digits of outputs of about 1, bfloat16 less than 3; and the noise of two layers comes on top.
    for row in table["rows"]:
        assert 0 < row["float32_last"] < 1e2
        assert 1e-4 < row["bf16_last"] < 0.2
    assert slow["fresh_millionths"] < 1e2
    assert "| two_rate |" in markdown(table)


def test_policies_that_are_kept_are_not_walked_again(tmp_path, monkeypatch):
    how = {"policies": ("fifo", "gated"), "n_rows": 400, "call": 16, "kept": tmp_path}
    first = soak.run(**how | {"policies": ("fifo",)})
    monkeypatch.setattr(soak, "walk", lambda *args, **kwargs: pytest.fail("it was walked again"))
    there = soak.run(**how, from_kept=True)
    assert there["rows"] == first["rows"]
    assert there["notes"][-1].startswith("1 of 2 fits are missing")
    assert not soak.run(**how | {"n_rows": 416}, from_kept=True)["rows"]


@pytest.mark.parametrize("n_rows", [3_000, 3_008])
def test_a_fresh_start_at_another_line_or_too_late_would_be_seen(n_rows):
    """The difference is one: a stream that began off the grid, or within the reach, gives other numbers."""
    model = soak.make_model("two_rate", seed=0)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(1, n_rows, 1, generator=draw)
    with torch.inference_mode():
        _, state = model(x, model.init_state(1))
        n_fresh = 2 * soak._reach_in_blocks(model) * soak.BLOCK
        how = {"n_rows": n_rows, "draw": draw}
        right = soak._fresh_difference(model, state, x, n_fresh=n_fresh, **how)
        off_the_grid = soak._fresh_difference(model, state, x, n_fresh=n_fresh + 16, **how)
        too_late = soak._fresh_difference(model, state, x, n_fresh=soak.BLOCK, **how)
    assert right < 1e-4 < 1e-2 < min(off_the_grid, too_late)
