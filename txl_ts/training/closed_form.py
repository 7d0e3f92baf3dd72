"""The linear path's closed form: a ridge from the last normalised rows to the next ``h``, in two passes over the rows.

Inputs and targets are counted from the last value: the penalty then pulls towards "nothing changes", not towards the
mean. It is chosen on the validation rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from txl_ts.model import TXLModel, restarted
from txl_ts.training.pieces import schedule
from txl_ts.training.segments import Origins, segments

PENALTIES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0)
# The normal equations need no more rows than this; which ones is drawn by the seed.
_MOST_ROWS = 100_000
_SEGMENT_ROWS = 256
# Rows whose running deviation is more than this many units count no more than one with this many.
_LARGEST_RATIO = 20.0
# A squared error counts for the spread up to this many squared deviations.
_LARGEST_SQUARE = 25.0


@dataclass(frozen=True)
class LinearFit:
    """What the closed form found.

    Attributes
    ----------
    penalty : float
        Chosen on the validation rows; relative to the mean square of an input.
    error : float
        Mean squared validation error, in the units of the pieces.
    spread : Tensor of shape (h,)
        Deviation of the validation errors per step ahead, in running deviations.
    """

    penalty: float
    error: float
    spread: Tensor


@torch.no_grad()
def fit_linear_path(
    model: TXLModel, train: Origins, validation: Origins | None, *, seed: int, known: LinearFit | None = None
) -> LinearFit:
    """Fit ``model.linear_path`` in place and give what was found.

    Parameters
    ----------
    model : TXLModel
    train : Origins
        Rows of the normal equations.
    validation : Origins or None
        Rows that choose the penalty; None takes a middle one.
    seed : int
        Draws the rows when there are more than are needed.
    known : LinearFit, optional
        An earlier fit whose penalty and spread are taken over.

    References
    ----------
    Hoerl and Kennard (1970), Ridge regression.
    """
    path, h = model.linear_path, model.config.h
    n_inputs = path.lookback + 1
    gram, cross = torch.zeros(n_inputs, n_inputs, dtype=torch.float64), torch.zeros(n_inputs, h, dtype=torch.float64)
    for inputs, target, _ in _equations(model, train, seed=seed):
        gram += (inputs.T @ inputs).double()
        cross += (inputs.T @ target).double()
    if not gram[-1, -1] > 0:
        # Without a single whole horizon to learn from: the last value.
        path.weight[:, -1:] = 1
        return LinearFit(math.nan, math.nan, torch.ones(h))
    mean_square = gram.diagonal()[:-1].mean().clamp(min=1e-12) if path.lookback else gram.new_ones(())
    ridge = torch.diag(torch.tensor([1.0] * path.lookback + [0.0], dtype=torch.float64))  # the bias is free
    tiny = 1e-9 * mean_square * torch.eye(n_inputs, dtype=torch.float64)
    penalties = PENALTIES if known is None else (known.penalty,)
    maps = torch.stack([torch.linalg.solve(gram + p * mean_square * ridge + tiny, cross) for p in penalties]).float()
    found = _judge(model, maps, validation, seed=seed) if known is None else known
    best = penalties.index(found.penalty)
    path.weight.copy_(maps[best, :-1].T)
    # Inputs and targets were counted from the last value.
    if path.lookback:
        path.weight[:, -1:] += 1 - path.weight.sum(dim=1, keepdim=True)
    path.bias.copy_(maps[best, -1])
    return found


def _judge(model: TXLModel, maps: Tensor, validation: Origins | None, *, seed: int) -> LinearFit:
    """Choose among the maps of all penalties by their squared error on the validation rows."""
    h = model.config.h
    error, square, count = torch.zeros(len(PENALTIES)), torch.zeros(len(PENALTIES), h), 0
    for inputs, target, weight in _equations(model, validation, seed=seed) if validation else ():
        miss = (inputs @ maps - target).square()  # (penalties, rows, h)
        error += miss.mean(-1).sum(-1)
        square += (miss / weight[:, None].square()).clamp(max=_LARGEST_SQUARE).sum(1)
        count += len(target)
    if not count:
        return LinearFit(PENALTIES[len(PENALTIES) // 2], math.nan, torch.ones(h))
    best = int(error.argmin())
    return LinearFit(PENALTIES[best], float(error[best] / count), (square[best] / count).sqrt())


def _equations(model: TXLModel, origins: Origins, *, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Give inputs (rows, lookback + 1), targets (rows, h) and weights (rows,), where all targets are there.

    Inputs and targets are in units of their piece; targets are above the last value.
    """
    rng = np.random.default_rng(seed)
    pieces, h = origins.pieces, model.config.h
    n_lanes = min(len(pieces), 16)
    share = min(1.0, _MOST_ROWS / max(origins.count(h=h), 1))
    state = model.init_visits(n_lanes, n_phases=1)
    steps = schedule(pieces, n_lanes=n_lanes, n_passes=1, n_rows=_SEGMENT_ROWS, stride=1, jump=False, rng=rng)
    for segment in segments(origins, steps, n_rows=_SEGMENT_ROWS, h=h):
        kept = rng.random(_SEGMENT_ROWS) < share
        picked = torch.from_numpy(np.flatnonzero(kept))
        state = restarted(state, segment.start)
        front, state["norm"], state["rows"] = model.front(segment.x, state["norm"], state["rows"], picked)
        target, usable = segment.targets(picked, front.scale)
        usable = usable.all(dim=2)[..., 0] & (front.scale.deviation[..., 0] > 0)  # (B, n)
        weight = (front.scale.deviation[..., 0] / segment.unit[:, None]).clamp(max=_LARGEST_RATIO)
        if (counts := segment.target_weights(picked)) is not None:
            counts = counts[..., 0].mean(dim=2)  # the map of all steps is solved at once
            usable, weight = usable & (counts > 0), weight * counts.sqrt()
        z = (target[..., 0] - front.scale.mean - front.scale.rest) / front.scale.deviation
        window = front.lookback[:, :, 0]
        last = window[..., -1:] if model.linear_path.lookback else torch.zeros_like(z[..., :1])
        window, z = window - last, z - last
        inputs = torch.cat([window, torch.ones_like(z[..., :1])], dim=-1)
        inputs, z, weight = inputs[usable], z[usable], weight[usable]
        yield inputs * weight[:, None], z * weight[:, None], weight
