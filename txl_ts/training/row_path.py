"""Where the linear path of labels starts: a ridge for values, a logistic regression for classes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from txl_ts.label_model import LabelModel
from txl_ts.model import restarted
from txl_ts.training.labelled import LabelRows, label_segments

# Neither needs more rows than this; which ones is drawn by the seed.
_MOST_ROWS = 30_000
_SEGMENT_ROWS = 256
_LANES = 16
# Relative to the mean square of an input, per row.
_PENALTY = 1e-3
_NEWTON_STEPS = 60


@torch.no_grad()
def fit_row_path(model: LabelModel, rows: LabelRows, *, seed: int) -> None:
    """Fit ``model.row_path`` in place.

    Parameters
    ----------
    model : LabelModel
        Its normaliser is fitted.
    rows : LabelRows
    seed : int
        Draws the rows when there are more than are needed.

    References
    ----------
    Hoerl and Kennard (1970), Ridge regression; Cox (1958), The regression analysis of binary sequences.
    """
    inputs, target, weight = _equations(model, rows, seed=seed)
    path = model.row_path
    if not len(inputs):
        return
    if target.ndim == 1:
        beta = _logistic(inputs, target, weight, n_classes=len(path.bias))
    else:
        beta = _ridge(inputs, target, weight)
    path.weight.copy_(beta[:-1].T)
    path.bias.copy_(beta[-1])


def _equations(model: LabelModel, rows: LabelRows, *, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Give inputs (n, K + 1) with a constant 1 at the end, targets and weights of the rows that count."""
    rng = np.random.default_rng(seed)
    share = min(1.0, _MOST_ROWS / max(rows.n_counting, 1))
    n_lanes = min(len(rows), _LANES)
    state = model.init_rows(n_lanes)
    picked = torch.arange(_SEGMENT_ROWS)
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for segment in label_segments(rows, n_lanes=n_lanes, n_rows=_SEGMENT_ROWS, n_passes=1, jump=False, rng=rng):
        state = restarted(state, segment.start)
        front, state["norm"], state["rows"] = model.front(segment.x, state["norm"], state["rows"], picked)
        used = (segment.weight > 0) & torch.from_numpy(rng.random(segment.weight.shape) < share)
        if segment.target.ndim == 3:
            used &= segment.target.isfinite().all(dim=-1)
        window = front.lookback.flatten(2)[used]
        found.append((window, segment.target[used], segment.weight[used]))
    window, target, weight = (torch.cat(parts) for parts in zip(*found, strict=True))
    return torch.cat([window, torch.ones_like(weight)[:, None]], dim=1).double(), target, weight.double()


def _ridge(inputs: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    weighted = inputs * weight[:, None]
    return torch.linalg.solve(weighted.T @ inputs + _penalties(inputs, weight).diag(), weighted.T @ target.double())


def _logistic(inputs: Tensor, target: Tensor, weight: Tensor, *, n_classes: int) -> Tensor:
    penalty = _penalties(inputs, weight)[:, None] / weight.sum()
    beta = torch.zeros(inputs.shape[1], n_classes, dtype=inputs.dtype, requires_grad=True)
    solver = torch.optim.LBFGS([beta], max_iter=_NEWTON_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        each = F.cross_entropy(inputs @ beta, target, reduction="none")
        value = (each * weight).sum() / weight.sum() + 0.5 * (penalty * beta.square()).sum()
        value.backward()
        return value

    with torch.enable_grad():
        solver.step(loss)
    return beta.detach()


def _penalties(inputs: Tensor, weight: Tensor) -> Tensor:
    """One penalty per input; the constant has next to none."""
    penalty = torch.full_like(inputs[0], _PENALTY)
    mean_square = (inputs[:, :-1].square() * weight[:, None]).sum() / (weight.sum() * max(inputs.shape[1] - 1, 1))
    penalty *= mean_square.clamp(min=1e-6) * weight.sum()
    penalty[-1] = 1e-9 * weight.sum()
    return penalty
