"""A segment much longer than the window costs as much per row as a short one: counted, not timed."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from txl_ts.config import ModelConfig
from txl_ts.label_model import LabelConfig, LabelModel
from txl_ts.model import TXLModel

WINDOW = 32
SIZES = {"patch_len": 1, "stride": 1, "mem_len": WINDOW, "lookback": 0, "half_life": 64.0, "scaler": "standard"}
SIZES |= {"d_model": 12, "n_layers": 2, "n_heads": 3, "d_ff": 10}


def make_model():
    torch.manual_seed(0)
    return TXLModel(ModelConfig(h=1, quantiles=(0.5,), **SIZES))


def cost(model, n_rows):
    """Multiplications of forward and backward, and bytes that are kept for the backward pass."""
    x, kept = torch.randn(2, n_rows, 1), {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with FlopCounterMode(display=False) as counter, saved_tensors_hooks(keep, lambda tensor: tensor):
        z, _, _ = model.forward_visits(x, model.init_visits(2, n_phases=1), torch.tensor([0]))
        z.square().mean().backward()
    return counter.get_total_flops(), sum(kept.values())


def test_operations_and_bytes_grow_by_the_same_amount_with_every_so_many_rows():
    model = make_model()
    short, middle, long = (cost(model, blocks * WINDOW) for blocks in (8, 16, 24))
    for a, b, c in zip(short, middle, long, strict=True):
        # Whole blocks: nothing is padded, and what the memory in front costs is in all three.
        assert c - b == b - a
        assert 1.9 < b / a <= 2.0


def test_a_whole_matrix_of_scores_would_be_many_times_as_much():
    """What the same layer costs as one block: the window as long as the segment."""
    flops, n_bytes = cost(make_model(), 24 * WINDOW)
    wide = make_model().with_memory(24 * WINDOW)
    wide_flops, wide_bytes = cost(wide, 24 * WINDOW)
    assert wide_flops > 5 * flops
    assert wide_bytes > 5 * n_bytes


@pytest.mark.parametrize("n_rows", [8 * WINDOW])
def test_inference_over_a_long_segment_is_linear_too(n_rows):
    model = LabelModel(LabelConfig(**{**SIZES, "lookback": 1}, n_outputs=2)).eval()
    flops = []
    for blocks in (1, 2, 3):
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            model(torch.randn(1, blocks * n_rows, 1), model.init_state(1))
        flops.append(counter.get_total_flops())
    assert flops[2] - flops[1] == flops[1] - flops[0]
