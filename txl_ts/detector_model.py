"""A forecaster of sensors that scores each row by what it had said before it: ``(x, state) → (y and scores, state)``.

The scores are those of :class:`txl_ts.stream.Surprise`, in the same formulas over tensors; what was said, and has not
come yet, is in the state. The p-values are those of :class:`txl_ts.calibration.Calibration` as it was fitted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from txl_ts.config import ModelConfig
from txl_ts.embeddings import Beside
from txl_ts.embeddings.normaliser import first_value
from txl_ts.heads import QuantileHead
from txl_ts.heads.channel_path import ChannelPath
from txl_ts.model import TorchState, TXLModel, init_weights, restarted
from txl_ts.state import TensorSpec, state_nbytes
from txl_ts.stream.score import FLOOR, GATE, LEAST_WIDTH, MEAN_ROWS, MOST, NEVER, TAIL, Surprise

# Rows whose running mean is one matrix product.
_CHUNK = 512
_RAREST = 1e-6  # see txl_ts.calibration.tail
_LEAST = 1e-37  # a p-value is never 0
_FAR = 1e30  # below any number that a sensor gives


class SensorModel(TXLModel):
    """Transformer-XL over one token per row of all sensors, with a linear path of its own for each."""

    linear_path: ChannelPath  # type: ignore[assignment]

    def _add_outputs(self) -> None:
        config = self.config
        self.linear_path = ChannelPath(lookback=config.lookback, h=config.h, n_channels=config.n_channels)
        self.apply(init_weights)
        self.head = QuantileHead(
            d_model=config.d_model, h=config.h, n_channels=config.n_channels, quantiles=config.quantiles
        )


class Tail(NamedTuple):
    """A generalised Pareto law above a score."""

    start: float
    shape: float
    scale: float
    share: float


class Judged(NamedTuple):
    """What is said about rows that came.

    Attributes
    ----------
    score, p_value : Tensor of shape (B, T)
    parts : Tensor of shape (B, T, C)
    """

    score: Tensor
    parts: Tensor
    p_value: Tensor


class DetectorModel(nn.Module):
    """A model of sensors together with the score of its surprise.

    Its ``y`` has one step more than the model's: at ``y[:, :, -1]`` stand parts (…, C, 0), score (…, C, 1) and p-value
    (…, C, 2), so that whatever walks or steps forecasters walks and steps detectors. :func:`unpacked` takes it apart.

    Parameters
    ----------
    core : SensorModel
        Of all channels, or with ``independent`` of one: each channel is then a lane of its own.
    surprise : Surprise
        With ``warm_rows``.
    independent : bool
    n_channels : int, optional
        Needed with ``independent``.
    """

    def __init__(
        self, core: SensorModel, surprise: Surprise, *, independent: bool = False, n_channels: int | None = None
    ) -> None:
        super().__init__()
        self.core, self.surprise, self.independent = core, surprise, independent
        self.config: ModelConfig = core.config
        self.n_channels = n_channels or core.config.n_channels
        scale = torch.tensor(surprise.scale, dtype=torch.float32).expand(self.n_channels).clone()
        judged = torch.tensor(surprise.judged or (True,)).expand(self.n_channels).clone()
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("judged", judged, persistent=False)
        self.scale: Tensor
        self.judged: Tensor
        self.table: Tensor | None = None
        self.n_table = 0
        self.tail: Tail | None = None

    def calibrate(self, scores: NDArray[np.float64], tail: Tail | None) -> None:
        """Give p-values from now on, from sorted scores and perhaps a tail beyond them."""
        self.n_table, self.tail = len(scores), tail
        # A square of rows: one comparison finds the row, another the place in it; exact, and of √n steps.
        side = max(math.isqrt(max(len(scores) - 1, 0)) + 1, 1)
        padded = np.full(side * side, -np.inf)
        padded[side * side - len(scores) :] = scores
        self.table = torch.from_numpy(padded.astype(np.float32)).reshape(side, side)

    def state_specs(self) -> tuple[TensorSpec, ...]:
        """Describe the state of one lane: the model's, then what was said and has not come, rows so far, the mean."""
        specs = self.core.state_specs()
        if self.independent:
            specs = tuple(TensorSpec(s.name, (self.n_channels, *s.shape), s.dtype) for s in specs)
        n_ahead, n_levels = sum(self.surprise.horizons), len(self.config.quantiles)
        more = [
            TensorSpec("ahead", (n_ahead, self.n_channels, n_levels + 1), "float32"),
            TensorSpec("age", (1,), "int32"),
        ]
        more += [TensorSpec("smooth", (2, self.n_channels), "float32")] if self.smooths_parts else []
        if n_kept := {"novelty": 11, "level": 4}.get(self.surprise.kind):
            more.append(TensorSpec("kept", (n_kept, self.n_channels), "float32"))
        return (*specs, *more)

    @property
    def smooths_parts(self) -> bool:
        """Whether running means take the place of parts; a level smooths distances itself."""
        return bool(self.surprise.smooth) and self.surprise.kind != "level"

    @property
    def warm_rows(self) -> int:
        """Rows of a lane that get no score."""
        return self.surprise.warm_rows or 1

    def state_nbytes(self) -> int:
        """Bytes of state that one lane takes."""
        return state_nbytes(self.state_specs())

    def init_state(self, n_lanes: int) -> TorchState:
        """Give the state of lanes that have seen nothing."""
        dtypes = {"float32": torch.float32, "int32": torch.int32}
        return {s.name: torch.zeros(n_lanes, *s.shape, dtype=dtypes[s.dtype]) for s in self.state_specs()}

    def forward(
        self,
        x: Tensor,
        state: TorchState,
        start: Tensor | None = None,
        *,
        last_only: bool = False,
        beside: Beside | None = None,
        as_law: bool = True,
    ) -> tuple[Tensor, TorchState]:
        """Score each row, forecast from it, and move the state on.

        Parameters
        ----------
        x : Tensor of shape (B, T, C)
            Raw values; anything that is not finite counts as missing.
        state : dict of Tensor
        start : Tensor of shape (B, 1), optional
        last_only : bool
            Give what is said of the last row only.
        beside, as_law
            Not used; walks pass them.

        Returns
        -------
        y : Tensor of shape (B, T, h + 1, C, Q)
        state : dict of Tensor
        """
        names = [spec.name for spec in self.core.state_specs()]
        core_state = {name: state[name] for name in names}
        y, moved = self.run_core(x, core_state, start)
        judged, more = self.judge(x, y, {name: t for name, t in state.items() if name not in core_state}, start)
        y = packed(y, judged)
        return (y[:, -1:] if last_only else y), {**moved, **more}

    def run_core(self, x: Tensor, state: TorchState, start: Tensor | None) -> tuple[Tensor, TorchState]:
        """Forecast from each row: y (B, T, h, C, Q), and the model's state, moved on."""
        if not self.independent:
            return self.core(x, state, start)
        lanes, flat, begin = self.as_lanes(x, state, start)
        y, moved = self.core(lanes, flat, begin)
        return self.from_lanes(y, moved, x.shape[0])

    def as_lanes(self, x: Tensor, state: TorchState, start: Tensor | None) -> tuple[Tensor, TorchState, Tensor | None]:
        """Make each channel a lane: (B, T, C) becomes (B · C, T, 1)."""
        lanes = x.transpose(1, 2).reshape(x.shape[0] * self.n_channels, x.shape[1], 1)
        begin = None if start is None else start.expand(-1, self.n_channels).reshape(-1, 1)
        return lanes, {name: tensor.flatten(0, 1) for name, tensor in state.items()}, begin

    def from_lanes(self, y: Tensor, state: TorchState, n_lanes: int) -> tuple[Tensor, TorchState]:
        """Put lanes (B · C, T, h, 1, Q) side by side again."""
        y = y[:, :, :, 0].unflatten(0, (n_lanes, self.n_channels)).permute(0, 2, 3, 1, 4)
        return y, {name: tensor.unflatten(0, (n_lanes, self.n_channels)) for name, tensor in state.items()}

    def judge(self, x: Tensor, y: Tensor, state: TorchState, start: Tensor | None) -> tuple[Judged, TorchState]:
        """Score rows by what was said before them.

        Parameters
        ----------
        x : Tensor of shape (B, T, C)
        y : Tensor of shape (B, T, h, C, Q)
            What is said after each of them.
        state : dict of Tensor
            ``ahead``, ``age``, and ``smooth`` and ``kept`` where they are needed.
        start : Tensor of shape (B, 1), optional
        """
        state = restarted(state, start)
        n_rows, levels = x.shape[1], self.config.quantiles
        middle = levels.index(0.5)
        known = y[..., middle].isfinite()[..., None]  # (B, T, h, C, 1)
        new = torch.cat([torch.where(known, y, torch.zeros_like(y)), known.to(y.dtype)], dim=-1)
        first, found, kept = 0, [], []
        for k in self.surprise.horizons:
            said = torch.cat([state["ahead"][:, first : first + k], new[:, :, k - 1]], dim=1)  # (B, k + T, C, Q + 1)
            kept.append(said[:, n_rows:])
            found.append(self._parts(x, said[:, :n_rows]))
            first += k
        age = state["age"] + torch.arange(n_rows, dtype=torch.int32, device=x.device)  # (B, T)
        more = {"ahead": torch.cat(kept, dim=1), "age": (age[:, -1:] + 1).clamp(max=self.warm_rows)}
        part, there = found[0]  # (B, T, C)
        for other, has in found[1:]:
            part = torch.where(has & there, torch.maximum(part, other), torch.where(has, other, part))
            there = there | has
        if self.surprise.kind == "novelty":
            part, there, more["kept"] = self._novelties(x, said[:, :n_rows], state["kept"])
        elif self.surprise.kind == "level":
            part, there, more["kept"] = self._levels(x, state["kept"])
        there = there & self.judged & (age >= self.warm_rows)[..., None]
        if self.smooths_parts:
            part, more["smooth"] = self._smoothed(part, there, state["smooth"])
        has_score = there.to(x.dtype).sum(dim=-1) > 0  # older runtimes have no "any"
        if self.surprise.kind == "surprise":
            score = _joint(part, there)
        else:
            score = torch.where(there, part, torch.full_like(part, -_FAR)).amax(dim=-1)
        nan = torch.full_like(score, torch.nan)
        return Judged(
            torch.where(has_score, score, nan),
            torch.where(there, part, torch.full_like(part, torch.nan)),
            torch.where(has_score, self._p_values(score), nan),
        ), more

    def _parts(self, x: Tensor, said: Tensor) -> tuple[Tensor, Tensor]:
        """Parts of rows x, (B, T, C), by what was said of them (B, T, C, Q + 1); and where there are any."""
        q, levels = said[..., :-1], self.config.quantiles
        z = [NormalDist().inv_cdf(level) for level in levels]
        there = (said[..., -1] > 0) & x.isfinite()
        median = q[..., levels.index(0.5)]
        off = torch.where(there, x, median) - median
        rounding = (1e-6 * median.abs()).clamp(min=LEAST_WIDTH)
        if self.surprise.kind != "surprise":
            # Finite: what is smoothed is multiplied by 0 in earlier rows, and 0 · ∞ is NaN.
            return (off.abs() / torch.maximum(self.scale, rounding)).clamp(max=MOST), there
        least = torch.maximum(FLOOR * self.scale, rounding)
        above = _side(off, q - median[..., None], z, least)
        below = _side(-off, (median[..., None] - q).flip(-1), [-one for one in z[::-1]], least)
        far = torch.where(off >= 0, above, below)
        return (_log_survival(far) - math.log10(2)).clamp(min=0), there

    def _novelties(self, x: Tensor, said: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Parts of rows x, (B, T, C), by the ranges before them; where there are any; what is kept (B, 11, C).

        Values are kept above the first one, so that float32 keeps the digits of a range far from 0.
        """
        n_rows, there = x.shape[1], x.isfinite()
        x = torch.where(there, x, torch.zeros_like(x)).clamp(-MOST, MOST)
        has_error = there & (said[..., -1] > 0)
        error = torch.where(has_error, x - said[..., self.config.quantiles.index(0.5)], torch.zeros_like(x))
        moments, had_error, edges, shift, had_value = before.split([2, 1, 6, 1, 1], dim=1)
        shift = torch.where(had_value > 0, shift, first_value(x, there.to(x.dtype)))
        x = torch.where(there, x - shift, torch.zeros_like(x))
        moved = self._decayed(torch.stack([x, there.to(x.dtype)], dim=2), moments, half_life=MEAN_ROWS)
        total, weight = moved.unbind(dim=2)  # (B, T, C)
        mean = total / torch.where(weight > 0, weight, torch.ones_like(weight))
        values = torch.stack([x, mean, error.clamp(-MOST, MOST)], dim=2)  # (B, T, 3, C)
        came = torch.stack([there, there, has_error], dim=2)
        values, came = torch.cat([values, -values], dim=2), torch.cat([came, came], dim=2)  # lowest: highest of −value
        sign = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0])[:, None]
        had = torch.cat([had_value, had_value, had_error] * 2, dim=1) > 0  # (B, 6, C)
        leak = self.scale / self.surprise.span if self.surprise.span < NEVER else torch.zeros_like(self.scale)
        row = torch.arange(n_rows, dtype=x.dtype, device=x.device)[:, None, None]
        # What an extreme has lost by leaking since row 0 is added, so that the highest so far is a plain maximum.
        first = torch.where(had, sign * edges, torch.full_like(edges, -_FAR)) - leak
        rising = torch.where(came, values + leak * row, torch.full_like(values, -_FAR))
        highest = self._running_max(torch.cat([first[:, None], rising], dim=1))  # (B, 1 + T, 6, C)
        high, seen = highest[:, :-1] - leak * row, highest[:, :-1] > -0.5 * _FAR
        width = torch.maximum(high[:, :, :3] + high[:, :, 3:], (1e-3 * self.scale).clamp(min=LEAST_WIDTH))
        beyond = torch.where(came & seen, (values - high) / torch.cat([width, width], dim=2), -_FAR)
        part, last = beyond.amax(dim=2), highest[:, -1]
        is_seen = last > -0.5 * _FAR
        edges = torch.where(is_seen, sign * (last - leak * row[-1]), torch.zeros_like(last))
        seen_now = is_seen[:, 2:3].to(x.dtype), is_seen[:, :1].to(x.dtype)
        after = torch.cat([moved[:, -1], seen_now[0], edges, shift, seen_now[1]], dim=1)
        return part, part > -0.5 * _FAR, after

    def _levels(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Parts of rows x, (B, T, C), by a level that holds still; where there are any; what is kept (B, 4, C).

        Values are taken above the first one, as in :meth:`_novelties`. Row by row: whether a level moves depends on
        the row before. A graph of it takes one row.
        """
        there = x.isfinite()
        x = torch.where(there, x, torch.zeros_like(x)).clamp(-MOST, MOST)
        level, off, n, shift = before.unbind(dim=1)
        keep, span = 0.5 ** (1 / self.surprise.smooth) if self.surprise.smooth else 0.0, self.surprise.span
        parts = []
        for row, came in zip(x.unbind(dim=1), there.unbind(dim=1), strict=True):
            shift = torch.where(came & (n == 0), row, shift)
            away = torch.where(came & (n > 0), (row - shift) - level, torch.zeros_like(row))
            off = torch.where(came, keep * off + (1 - keep) * away, off)
            part = off.abs() / torch.maximum(self.scale, (1e-6 * (shift + level).abs()).clamp(min=LEAST_WIDTH))
            moves = came & ((n < span) | (part < GATE))
            rate = (1 / (n + 1)).clamp(min=1 - 0.5 ** (1 / span))
            level = level + torch.where(moves & (n > 0), rate * away, torch.zeros_like(away))
            n = (n + came.to(n.dtype)).clamp(max=span)
            parts.append(part)
        return torch.stack(parts, dim=1), there, torch.stack([level, off, n, shift], dim=1)

    def _running_max(self, x: Tensor) -> Tensor:
        """Give the maximum so far along axis 1 of (B, T, 6, C)."""
        if not self.core.normaliser.in_graph:
            return x.cummax(dim=1).values
        order = torch.arange(x.shape[1], device=x.device)  # graphs have no cumulative maximum: a masked one
        earlier = (order[:, None] >= order)[:, :, None, None]
        return torch.where(earlier, x[:, None], torch.full_like(x[:, None], -_FAR)).amax(dim=2)

    def _smoothed(self, part: Tensor, there: Tensor, smooth: Tensor) -> tuple[Tensor, Tensor]:
        """Give the running means at each row (B, T, C), and their state (B, 2, C), moved on."""
        rows = torch.stack([torch.where(there, part, torch.zeros_like(part)), there.to(part.dtype)], dim=2)
        moved = self._decayed(rows, smooth, half_life=self.surprise.smooth)
        total, weight = moved.unbind(dim=2)
        return total / torch.where(weight > 0, weight, torch.ones_like(weight)), moved[:, -1]

    def _decayed(self, rows: Tensor, before: Tensor, *, half_life: float) -> Tensor:
        """Run ``s ← keep · s + (1 − keep) · row`` over rows (B, T, 2, C), from (B, 2, C); gives s at each row."""
        keep = 0.5 ** (1 / half_life)
        shape, chunks = rows.shape, []
        flat, before = rows.flatten(2), before.flatten(1)
        for chunk in (flat,) if self.core.normaliser.in_graph else flat.split(_CHUNK, dim=1):
            step = torch.arange(chunk.shape[1], dtype=torch.float32, device=rows.device)
            lag = step[:, None] - step
            decay = torch.where(lag >= 0, keep ** lag.clamp(min=0), torch.zeros_like(lag))
            left = (keep ** (step + 1))[:, None]
            chunks.append(left * before[:, None] + (1 - keep) * (decay[None] @ chunk))
            before = chunks[-1][:, -1]
        return torch.cat(chunks, dim=1).unflatten(2, shape[2:])

    def _p_values(self, score: Tensor) -> Tensor:
        """Give the share of calibration scores that are as high; NaN without a calibration."""
        if self.table is None:
            return torch.full_like(score, torch.nan)
        side, n, table = self.table.shape[0], self.n_table, self.table
        row = (table[:, -1] < score[..., None]).to(torch.int32).sum(-1).clamp(max=side - 1)
        place = (table[row.long()] < score[..., None]).to(torch.int32).sum(-1)
        below = (row * side + place - (side * side - n)).clamp(min=0)
        p = (1 + n - below).to(torch.float32) / (n + 1)
        if self.tail is not None:
            beyond = self.tail.share * _gpd_survival(score - self.tail.start, self.tail)
            p = torch.where(score > self.tail.start, beyond.clamp(min=_LEAST), p)
        return p


def packed(y: Tensor, judged: Judged) -> Tensor:
    """Put what is said about a row behind the forecasts from it: (B, T, h + 1, C, Q)."""
    parts = judged.parts[..., None]  # (B, T, C, 1)
    others = [one[..., None, None].expand_as(parts) for one in (judged.score, judged.p_value)]
    rest = torch.zeros_like(y[:, :, 0, :, 3:])
    return torch.cat([y, torch.cat([parts, *others, rest], dim=-1)[:, :, None]], dim=2)


def unpacked(y: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
    """Take apart what a detector says (…, h + 1, C, Q): forecasts, score (…), parts (…, C), p-value (…)."""
    return y[..., :-1, :, :], y[..., -1, 0, 1], y[..., -1, :, 0], y[..., -1, 0, 2]


def _side(off: Tensor, knots: Tensor, z: Sequence[float], least: Tensor) -> Tensor:
    """Interpolate on the side of the median on which ``off`` is positive; see :mod:`txl_ts.stream.score`."""
    middle = z.index(0.0)
    total, edge = torch.zeros_like(off), torch.zeros_like(off)
    for i in range(middle + 1, len(z)):
        knot = torch.maximum(knots[..., i], z[i] * least)
        width = (knot - edge).clamp(min=LEAST_WIDTH)
        total = total + ((off - edge) / width).clamp(0, 1) * (z[i] - z[i - 1])
        edge = torch.maximum(knot, edge)
    beyond = ((off - edge).clamp(min=0) / (edge / z[-1]).clamp(min=LEAST_WIDTH)).clamp(max=MOST)
    return total + TAIL * (1 + beyond / TAIL).log()


def _joint(part: Tensor, there: Tensor) -> Tensor:
    """Give the joint score (B, T) of parts (B, T, C)."""
    n = there.to(part.dtype).sum(-1)
    total = torch.where(there, part, torch.zeros_like(part)).sum(-1)
    if part.shape[-1] == 1:
        return total
    freedom = 2 * n.clamp(min=1)
    spread = 2 / (9 * freedom)
    return _log_survival(((2 * math.log(10) * total / freedom) ** (1 / 3) - (1 - spread)) / spread.sqrt())


def _log_survival(w: Tensor) -> Tensor:
    far = w.abs()
    log_tail = -0.5 * far * far - (far + (far * far + 8 / math.pi).sqrt()).log() + 0.5 * math.log(2 / math.pi)
    inside = -(1 - log_tail.exp().clamp(max=0.5)).log()
    return torch.where(w > 0, -log_tail, inside) / math.log(10)


def _gpd_survival(excess: Tensor, tail: Tail) -> Tensor:
    x = excess.clamp(min=0) / tail.scale
    shape = tail.shape
    if abs(shape) < 1e-9:
        return (-x).exp()
    if shape > 0:
        return (-(1 + shape * x).log() / shape).exp()
    last = math.expm1(-shape * math.log(_RAREST)) / shape
    rate = 1 / (1 + shape * last)
    inside = (-(1 + shape * x.clamp(max=last)).log() / shape).exp()
    return torch.where(x > last, _RAREST * (-rate * (x - last).clamp(min=0)).exp(), inside)
