"""The cost of a row: what is timed does what it is said to do, and the table holds the times."""

import pytest
import torch

from txl_ts.bench import row_cost
from txl_ts.bench.report import markdown
from txl_ts.bench.step import fused_attention, last_row_attention

TINY = {**row_cost.SIZES, "d_model": 8, "n_heads": 2, "d_ff": 8}


@pytest.mark.slow  # exports six graphs
def test_the_table_has_a_row_for_each_memory_and_number_of_lanes():
    pytest.importorskip("onnxruntime", reason="the extra `ort` is not installed")
    table = row_cost.run(mem_lens=(3,), lanes=(1, 2), sizes=TINY, turn_s=1e-4)
    one, two = table["rows"]
    assert set(one) == set(row_cost.COLUMNS)
    assert set(two) == set(row_cost.COLUMNS) - {"txl_step_us"}  # that graph takes one stream
    assert min(value for key, value in one.items() if key.endswith("_us")) > 0
    assert one["graph_change"] == pytest.approx(100 * (one["txl_step_us"] / one["plain_graph_us"] - 1))
    assert two["graph_change"] == pytest.approx(100 * (two["txl_graph_us"] / two["plain_graph_us"] - 1))
    assert "the article's figure is −40 %" in markdown(table)


def test_the_plain_window_answers_at_the_newest_row_as_if_all_its_layers_were_causal():
    torch.manual_seed(0)
    config = row_cost.ModelConfig(**TINY, mem_len=5, stride=1, h=1, quantiles=(0.5,))
    fast = row_cost.Plain(config, fused_attention, last_row_attention).eval()
    x = torch.randn(2, 5, 1)
    h = fast.embed(x)
    for layer in fast.layers:
        h = layer(h, fused_attention)
    # float32, and kernels that sum in another order.
    torch.testing.assert_close(fast(x), fast.answer(h)[:, -1:], rtol=1e-4, atol=1e-5)


def test_in_torch_each_call_walks_one_row_of_every_lane_and_hands_its_state_on():
    ours = row_cost.LabelModel(row_cost.LabelConfig(**TINY, mem_len=3, scaler="standard", head="values")).eval()
    lstm = row_cost.Recurrent("lstm", n_channels=1, n_outputs=1, width=4).eval()
    counts = []
    walked = ours.forward
    ours.forward = lambda x, state: counts.append((*x.shape, state["count"][0].max().item())) or walked(x, state)
    steps = row_cost._in_torch(ours, lstm, 3, n_lanes=2)
    for step in steps.values():
        step()
        step()
    assert list(steps) == ["txl_us", "same_us", "plain_us", "lstm_us"]
    assert counts == [(2, 1, 1, 0), (2, 1, 1, 1)]


def test_models_take_turns_and_each_call_is_counted_once():
    calls = []
    steps = {name: lambda name=name: calls.append(name) for name in "ab"}
    found = row_cost.cpu_us(steps, turn_s=0.0)
    assert set(found) == {"a", "b"}
    # A first call and one that counts, then five turns of one call each.
    assert calls == ["a", "a", "b", "b", *"ab" * 5]
