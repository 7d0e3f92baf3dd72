"""Every kind of score keeps the promises of a detector; a broken one does not."""

import pytest
import torch

from tests.test_surprise import KINDS, tiny
from txl_ts.checks import CheckFailed, check_detector

CASES = [
    (kind, independent) for kind in KINDS for independent in (False, True) if not (independent and kind == "level")
]


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=f"{kind}{', independent' * independent}: {check}")
        for kind, independent in CASES
        for check in check_detector(
            lambda kind=kind, independent=independent: tiny(KINDS[kind], independent=independent)
        )
    ],
)
def test_a_detector_keeps_its_promises(check):
    check()


def test_a_detector_that_scores_by_the_row_itself_fails():
    class Peeks(torch.nn.Module):
        n_channels, warm_rows = 3, 5

        def __init__(self):
            super().__init__()
            self.model = tiny(KINDS["surprise"])

        def init_state(self, n_lanes):
            return self.model.init_state(n_lanes)

        def forward(self, x, state, start=None):
            y, after = self.model(x, state, start)
            y[:, :, -1, :, 1] += torch.nan_to_num(x).clamp(-1, 1).roll(-1, dims=1).sum(-1, keepdim=True)
            return y, after

    failed = []
    for check in check_detector(Peeks):
        try:
            check()
        except CheckFailed:
            failed.append(str(check))
    assert any("never by later rows" in name for name in failed)
