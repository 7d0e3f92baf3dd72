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
    uses_known : bool
        Whether the columns that are known ahead are in the map: they are where that lowers the validation error.
    """

    penalty: float
    error: float
    spread: Tensor
    uses_known: bool = False


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
        An earlier fit whose penalty, spread and choice of columns are taken over.

    References
    ----------
    Hoerl and Kennard (1970), Ridge regression.
    """
    path = model.linear_path
    h = len(path.bias)  # where rows come unevenly, one map for all steps
    sums = _Sums(n_inputs=path.lookback + 1, h=h, n_known=path.n_known)
    for rows in _equations(model, train, seed=seed):
        sums.add(rows)
    if not sums.gram[-1, -1] > 0:
        # Without a single whole horizon to learn from: the last value.
        path.weight[:, -1:] = 1
        return LinearFit(math.nan, math.nan, torch.ones(model.config.h))
    choices = [(penalty, uses) for uses in ((False, True) if path.n_known else (False,)) for penalty in PENALTIES]
    if known is not None:
        choices = [(known.penalty, known.uses_known)]
    maps = [sums.solve(penalty, uses_known=uses) for penalty, uses in choices]
    found = _judge(model, maps, choices, validation, seed=seed) if known is None else known
    inputs, ahead = maps[choices.index((found.penalty, found.uses_known))]
    path.weight.copy_(inputs[:-1].T)
    # Inputs and targets were counted from the last value.
    if path.lookback:
        path.weight[:, -1:] += 1 - path.weight.sum(dim=1, keepdim=True)
    path.bias.copy_(inputs[-1])
    if path.n_known:
        path.known.copy_(ahead)
    return found


@dataclass(frozen=True)
class _Rows:
    """Rows of the normal equations: inputs (n, lookback + 1), features of the rows ahead, targets (n, h), weights."""

    inputs: Tensor
    ahead: Tensor  # (n, h, n_known)
    target: Tensor
    weight: Tensor  # (n,)


class _Sums:
    """Normal equations of all steps ahead: the inputs are common to them, the features ahead are each step's own."""

    def __init__(self, *, n_inputs: int, h: int, n_known: int) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64)

        self.gram, self.cross = zeros(n_inputs, n_inputs), zeros(n_inputs, h)
        self.mixed, self.own, self.own_cross = (
            zeros(h, n_inputs, n_known),
            zeros(h, n_known, n_known),
            zeros(h, n_known),
        )

    def add(self, rows: _Rows) -> None:
        """Sum rows."""
        self.gram += (rows.inputs.T @ rows.inputs).double()
        self.cross += (rows.inputs.T @ rows.target).double()
        if self.own.shape[-1]:
            ahead = rows.ahead.transpose(0, 1)  # (h, n, n_known)
            self.mixed += (rows.inputs.T @ ahead).double()
            self.own += (ahead.transpose(1, 2) @ ahead).double()
            self.own_cross += torch.einsum("hnf,nh->hf", ahead, rows.target).double()

    def solve(self, penalty: float, *, uses_known: bool) -> tuple[Tensor, Tensor]:
        """Give the map of the inputs (n_inputs, h) and that of the features ahead (h, n_known), 0 where not used."""
        n = len(self.gram)
        mean_square = self.gram.diagonal()[:-1].mean().clamp(min=1e-12) if n > 1 else self.gram.new_ones(())
        ridge = torch.diag(torch.tensor([1.0] * (n - 1) + [0.0], dtype=torch.float64))  # the bias is free
        system = self.gram + (penalty * ridge + 1e-9 * torch.eye(n, dtype=torch.float64)) * mean_square
        if not uses_known:
            return torch.linalg.solve(system, self.cross).float(), torch.zeros(self.own_cross.shape)
        # Each step's own block, after the inputs were eliminated (Schur complement): no system of all steps at once.
        h, _, n_known = self.mixed.shape
        both = torch.cat([self.cross, self.mixed.permute(1, 0, 2).reshape(n, -1)], dim=1)
        solved = torch.linalg.solve(system, both)
        alone, per_feature = solved[:, :h], solved[:, h:].unflatten(1, (h, n_known)).permute(1, 0, 2)  # (h, n, F)
        # Features are in their own units: each is penalised by its own mean square.
        size = self.own.diagonal(dim1=1, dim2=2)
        least = 1e-9 * size.amax(dim=1, keepdim=True).clamp(min=1e-12)
        block = self.own - self.mixed.transpose(1, 2) @ per_feature + torch.diag_embed(penalty * size + least)
        rest = self.own_cross - torch.einsum("hnf,nh->hf", self.mixed, alone)
        ahead = torch.linalg.solve(block, rest[..., None])[..., 0]
        return (alone - torch.einsum("hnf,hf->nh", per_feature, ahead)).float(), ahead.float()


def _judge(
    model: TXLModel,
    maps: list[tuple[Tensor, Tensor]],
    choices: list[tuple[float, bool]],
    validation: Origins | None,
    *,
    seed: int,
) -> LinearFit:
    """Choose among maps by their squared error on the validation rows."""
    h, n_spread = len(model.linear_path.bias), model.config.h
    error, square, count = torch.zeros(len(maps)), torch.zeros(len(maps), h), 0
    for rows in _equations(model, validation, seed=seed) if validation else ():
        for i, (inputs, ahead) in enumerate(maps):
            forecast = rows.inputs @ inputs
            if choices[i][1]:
                forecast = forecast + torch.einsum("nhf,hf->nh", rows.ahead, ahead)
            miss = (forecast - rows.target).square()
            error[i] += miss.mean(-1).sum(-1)
            square[i] += (miss / rows.weight[:, None].square()).clamp(max=_LARGEST_SQUARE).sum(0)
        count += len(rows.target)
    if not count:
        return LinearFit(PENALTIES[len(PENALTIES) // 2], math.nan, torch.ones(n_spread), model.linear_path.n_known > 0)
    best = int(error.argmin())
    spread = (square[best] / count).sqrt().expand(n_spread).clone()
    return LinearFit(choices[best][0], float(error[best] / count), spread, choices[best][1])


def _equations(model: TXLModel, origins: Origins, *, seed: int) -> Iterator[_Rows]:
    """Give the rows whose targets are all there; where rows come unevenly, each target that is there.

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
        known, moved = model.known(segment.x, segment.beside, front, state, picked)
        state |= moved
        # All channels share the map: each is rows of its own.
        target, usable = segment.targets(picked, front.scale)
        usable = usable & (front.scale.deviation > 0)[:, :, None]  # (B, n, h, C)
        unit = segment.unit.reshape(len(segment.unit), 1, -1)
        weight = (front.scale.deviation / unit).clamp(max=_LARGEST_RATIO)
        counts = segment.target_weights(picked)
        scale = front.scale
        z = ((target - scale.mean[:, :, None] - scale.rest[:, :, None]) / scale.deviation[:, :, None]).transpose(2, 3)
        window = front.lookback  # (B, n, C, lookback), as z is (B, n, C, h)
        if model.config.is_uneven:  # an equation of its own for each asked time
            window, weight = (rows[:, :, None].expand(-1, -1, h, *rows.shape[2:]) for rows in (window, weight))
            window, weight, usable = (rows.flatten(1, 2) for rows in (window, weight, usable))
            z = z.transpose(2, 3).flatten(1, 2)[..., None]
            counts = None if counts is None else counts.flatten(1, 2)
            known = None if known is None else known.flatten(1, 2)[:, :, None]
        else:
            usable = usable.all(dim=2)
            counts = None if counts is None else counts.mean(dim=2)  # the map of all steps is solved at once
        if counts is not None:
            usable, weight = usable & (counts > 0), weight * counts.sqrt()
        last = window[..., -1:] if model.linear_path.lookback else torch.zeros_like(z[..., :1])
        window, z = window - last, z - last
        inputs = torch.cat([window, torch.ones_like(z[..., :1])], dim=-1)
        inputs, z, weight = inputs[usable], z[usable], weight[usable]
        ahead = inputs.new_zeros(len(inputs), z.shape[1], 0)
        if known is not None:
            ahead = known[..., : model.linear_path.n_known][usable.nonzero()[:, :2].unbind(1)] * weight[:, None, None]
        yield _Rows(inputs * weight[:, None], ahead, z * weight[:, None], weight)
