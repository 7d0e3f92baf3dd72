"""The model: ``(x, state) → (y, state)``.

Raw rows in, quantiles in raw units out; scaling, masks, the linear path and the memories are inside. One call may bring
one row or thousands, for one lane or many: the numbers are the same.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from txl_ts.backbone import Backbone, Rows
from txl_ts.config import ModelConfig
from txl_ts.embeddings import (
    LARGEST,
    AskedTimes,
    Beside,
    Clock,
    CovariateEmbedding,
    PatchEmbedding,
    Projection,
    RowWindow,
    RunningNormaliser,
    Scale,
    StandardNormaliser,
    Times,
    Units,
)
from txl_ts.errors import ShapeError
from txl_ts.heads import HEADS, KnownAhead, LinearPath, QuantileHead
from txl_ts.laws import normal_scores
from txl_ts.memory import Fifo, Kept, completed, is_far
from txl_ts.state import TensorSpec, state_nbytes

TorchState = dict[str, Tensor]

# What each layer keeps: projected rows, or in training the rows themselves, for the gradient of the projections.
_KINDS, _TRAINED_KINDS = ("keys", "values"), ("hidden",)
# Width of the network that reads the rows ahead.
_KNOWN_WIDTH = 32
# Rows × steps ahead that it reads at once where no gradient is needed: a long horizon would else fill the memory.
_STEPS_AT_ONCE = 200_000


@dataclass(frozen=True)
class Front:
    """What the rows of a call give before the backbone, at the rows that were picked.

    Attributes
    ----------
    tokens : Tensor of shape (B, n, D)
    lookback : Tensor of shape (B, n, C, lookback)
        Windows of the linear path, in deviations.
    scale : Scale
    """

    tokens: Tensor
    lookback: Tensor
    scale: Scale

    @property
    def last(self) -> Tensor | None:
        """The last value of the first channel, in deviations, (B, n); None without a look-back."""
        return self.lookback[:, :, 0, -1] if self.lookback.shape[-1] else None


@dataclass(frozen=True)
class Known:
    """What is known of the rows of a call and of those ahead.

    Attributes
    ----------
    features : Tensor of shape (B, T + h, F)
        Of the columns that are known ahead.
    times : Times or None
        Where rows come unevenly.
    own : Tensor of shape (B, T, h, n), optional
        Raw columns of the rows ahead of each row, where they come with the row instead.
    """

    features: Tensor
    times: Times | None = None
    own: Tensor | None = None


class TXLModel(nn.Module):
    """Transformer-XL over raw rows, with a linear path beside it.

    Parameters
    ----------
    config : ModelConfig

    References
    ----------
    Dai et al. (2019), Transformer-XL (arXiv 1901.02860).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config = completed(config)
        self.precision = config.precision
        channels = config.n_channels
        self.units = Units(config.transform, config.non_negative)
        self.normaliser = (
            RunningNormaliser(half_life=config.half_life, n_channels=channels)
            if config.scaler == "running"
            else StandardNormaliser(n_channels=channels)
        )
        self.window = RowWindow(length=config.n_context_rows + 1, n_channels=channels, season=config.lookback_season)
        self.embedding = PatchEmbedding(patch_len=config.patch_len, n_channels=channels, d_model=config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.memory = Fifo(mem_len=config.mem_len, stride=config.stride)
        self.backbone = Backbone(config)
        self.beside = CovariateEmbedding(config) if config.has_covariates else None
        self.clock = self._make_clock() if config.is_uneven else None
        self.known_ahead: KnownAhead | None = None
        self._add_outputs()

    def _make_clock(self) -> Clock:
        assert self.beside is not None
        c, n_columns = self.config, 1 + len(self.beside.amounts)
        return Clock(mem_len=c.longest_mem_len, patch_len=c.patch_len, n_columns=n_columns, d_model=c.d_model)

    def _add_outputs(self) -> None:
        """Draw the weights and add what turns hidden rows into forecasts."""
        config = self.config
        # Where rows come unevenly, a forecast is for a time, not for a step: all steps share one map.
        h, n_more = (1, AskedTimes.n_features) if config.is_uneven else (config.h, 0)
        n_known = n_more + (0 if self.beside is None else self.beside.futr.n_fixed)
        self.linear_path = LinearPath(lookback=config.lookback, h=h, n_known=n_known)
        self.apply(init_weights)
        # After the line above: the head starts at zero, so that the first forecast is the linear path's alone.
        head = HEADS.get(config.distribution, QuantileHead)
        self.head = head(d_model=config.d_model, h=h, n_channels=config.n_channels, quantiles=config.quantiles)
        if self.beside is not None and config.futr_kinds:
            self.known_ahead = KnownAhead(
                Projection(self.beside.futr, _KNOWN_WIDTH, n_more=n_more),
                d_model=config.d_model,
                h=h,
                n_channels=config.n_channels,
                n_quantiles=config.law_width,
                width=_KNOWN_WIDTH,
            )

    def state_specs(self) -> tuple[TensorSpec, ...]:
        """Describe the state of one lane, in the order of the graph's names."""
        c = self.config
        rings = self.memory.specs(n_layers=c.n_layers, kinds=_KINDS, n_heads=c.n_heads, d_head=c.d_model // c.n_heads)
        specs = (*rings, *self.backbone.far_specs(), *self.normaliser.specs(), *self.window.specs())
        return specs + self._beside_specs() + self._last_specs()

    def stream_specs(self) -> tuple[TensorSpec, ...]:
        """Describe the state of one lane in a graph or a session.

        What is kept of the last row, to forecast from it once the rows ahead are known, is left out: streams bring what
        is known ahead with each row.
        """
        return tuple(spec for spec in self.state_specs() if spec.name != "last")

    def state_nbytes(self) -> int:
        """Bytes of state that one lane takes."""
        return state_nbytes(self.state_specs())

    def init_state(self, n_lanes: int) -> TorchState:
        """Give the state of lanes that have seen nothing."""
        return self._zeros(self.state_specs(), n_lanes)

    def forward(
        self,
        x: Tensor,
        state: TorchState,
        start: Tensor | None = None,
        *,
        last_only: bool = False,
        beside: Beside | None = None,
        as_law: bool = False,
    ) -> tuple[Tensor, TorchState]:
        """Forecast from each row and move the state on.

        Parameters
        ----------
        x : Tensor of shape (B, T, C)
            Raw values; anything that is not finite counts as missing.
        state : dict of Tensor
            As :meth:`init_state` or an earlier call gave it; not changed.
        start : Tensor of shape (B, 1), optional
            1 where a lane begins anew before its first row, else 0.
        last_only : bool
            Give the forecast of the last row only.
        beside : Beside, optional
            Columns beside the target; all are missing without it.
        as_law : bool
            Give what :meth:`read` reads at any level, instead of the quantiles of the config.

        Returns
        -------
        y : Tensor of shape (B, T, h, C, Q)
            Quantiles in raw units; T is 1 with ``last_only``. With ``as_law`` the last axis is ``config.law_width``.
        state : dict of Tensor
        """
        self._check(x)
        n_rows = x.shape[1]
        state = restarted(state, start)
        picked = None if n_rows == 1 else torch.arange(n_rows, device=x.device)
        front, norm, rows = self.front(x, state["norm"], state["rows"], picked)
        front, known, moved = self._with_beside(x, front, beside, state, picked)
        hidden, rings, count, far = self.recur(
            front.tokens,
            self.rings(state),
            state["count"],
            memory=self.memory,
            times=_slots(known),
            far=far_of(state),
        )
        if last_only:
            picked = torch.tensor([n_rows - 1], device=x.device)
            hidden = hidden[:, -1:]
            front = Front(front.tokens[:, -1:], front.lookback[:, -1:], front.scale.at(picked))
        centre = self.linear_path(front.lookback)
        z = self._answer(hidden, centre, known, picked, front.last)
        y = self._in_units(z, front.scale.level, front.scale.deviation)
        y = y if as_law else self.read(y, self.config.quantiles)
        moved |= self._last(hidden, centre, front, known)
        return y, self._named(rings, count=count, **far, norm=norm, rows=rows, **moved)

    def read(self, law: Tensor, levels: Sequence[float]) -> Tensor:
        """Read quantiles, in raw units, off what a call said with ``as_law``.

        Parameters
        ----------
        law : Tensor of shape (…, law_width)
        levels : sequence of float
            In (0, 1); without a distribution those of the config only.

        Returns
        -------
        Tensor of shape (…, len(levels))
        """
        if isinstance(self.head, QuantileHead):
            return law
        return self.head.at(law, levels, self.units.back)

    def mean_of(self, law: Tensor) -> Tensor:
        """Give the mean of a law, of shape (…,), in the model's units."""
        assert not isinstance(self.head, QuantileHead)
        return self.head.mean(law)

    def draws(self, rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
        """Draw what :meth:`drawn` turns into values."""
        return rng.standard_normal(size) if isinstance(self.head, QuantileHead) else self.head.draws(rng, size)

    def drawn(self, law: Tensor, draws: Tensor) -> Tensor:
        """Turn what a call said with ``as_law`` (…, law_width) and one draw for each (…,) into raw values (…,).

        Between trained quantiles the quantile function is linear in normal scores, beyond them it goes on so.
        """
        if isinstance(self.head, QuantileHead):
            row = between_scores(law, normal_scores(self.config.quantiles), draws)
            return torch.where(row < 0, torch.zeros_like(row), row) if self.config.non_negative else row
        return self.head.drawn(law, draws, self.units.back)

    def forecast_from(self, last: Tensor, futr: Tensor) -> Tensor:
        """Forecast from what the last row left in the state, now that the rows ahead are known.

        Parameters
        ----------
        last : Tensor of shape (B, n)
            ``state["last"]``.
        futr : Tensor of shape (B, h, n_futr)
            Raw columns of the rows ahead; for uneven time any number of rows.

        Returns
        -------
        Tensor of shape (B, h, C, law_width)
            As :meth:`forward` gives it with ``as_law``; NaN where nothing had been seen.
        """
        assert self.beside is not None
        h, channels, width = len(self.linear_path.bias), self.config.n_channels, self.config.d_model
        parts = [width, h * channels, channels, channels, 1]
        hidden, centre, level, deviation, seen, *more = last.split(parts + self._n_more_last, dim=1)
        row_before = torch.tensor([-1], device=last.device)  # the rows of futr are those ahead of it
        centre = centre.unflatten(1, (1, h, channels))
        known = Known(self.beside.futr(futr))
        if self.clock is not None:
            known = replace(known, times=self.clock.asked(futr[..., -1], age=more[1]))
        z = self._answer(hidden[:, None], centre, known, row_before, more[0] if more else None)
        level = torch.where(seen > 0, level, torch.nan)
        return self._in_units(z, level[:, None], deviation[:, None])[:, 0]

    # -- another length of memory -----------------------------------------------------------------------------------

    def with_memory(self, mem_len: int | Sequence[int], *, clamp_len: int | None = None) -> Self:
        """Give a copy of the model, weights and all, with a longer or shorter memory than it was trained with.

        Parameters
        ----------
        mem_len : int, or sequence of int
            Visits, of all layers or of each.
        clamp_len : int, optional
            Visits beyond which all keys count as if they lay so far back, such as the memory length of the training: no
            distance is then new to the weights. Default: as it is.
        """
        clamp_len = self.config.clamp_len if clamp_len is None else clamp_len
        config = replace(self.config, mem_len=mem_len, clamp_len=clamp_len)
        with torch.random.fork_rng(devices=[]):  # weights are drawn, and thrown away
            out = type(self)(config)
        out.to(self.embedding.linear.weight).load_state_dict(self.state_dict())
        return out.train(self.training)

    def taken_over(self, state: TorchState, *, before: TXLModel) -> TorchState:
        """Give a state of this model with all that fits of one that ``before``, of another memory length, left.

        The newest rows of each memory go on; room that they do not fill is invisible until rows come. Rows of the
        second layer on stay as they were written, by a model that saw as far as ``before``.
        """
        rings, out, count = before.rings(state), dict(state), state["count"]
        for i, kind in enumerate(_KINDS):
            of_kind, count = self.memory.taken_over([ring[i] for ring in rings], state["count"], before=before.memory)
            out |= {f"{kind}_{layer}": ring for layer, ring in enumerate(of_kind)}
        if self.clock is not None and before.clock is not None:
            out["gaps"] = F.pad(state["gaps"], (self.clock.n_kept - before.clock.n_kept, 0))  # newest last
        return out | {"count": count}

    # -- training: hidden rows instead of keys and values, a few phases as lanes of their own ------------------------

    def init_visits(self, n_lanes: int, *, n_phases: int) -> TorchState:
        """Give a fresh training state: one front per lane, one memory of hidden rows per lane and phase."""
        c = self.config
        rings = self._visited_memory().specs(n_layers=c.n_layers, kinds=_TRAINED_KINDS, n_heads=1, d_head=c.d_model)
        back = self._zeros(rings, n_lanes * n_phases) | self._zeros(self.backbone.far_specs(), n_lanes)
        return back | self._zeros((*self.normaliser.specs(), *self.window.specs(), *self._beside_specs()), n_lanes)

    def forward_visits(
        self,
        x: Tensor,
        state: TorchState,
        phases: Tensor,
        start: Tensor | None = None,
        *,
        beside: Beside | None = None,
    ) -> tuple[Tensor, Front, TorchState]:
        """Forecast from the rows of some phases only, with memory that gives gradients to its projections.

        Parameters
        ----------
        x : Tensor of shape (B, T, C)
            Raw rows; T is a multiple of the stride.
        state : dict of Tensor
            Of :meth:`init_visits`.
        phases : int64 Tensor of shape (P,)
            Which rows of each stride are visited, in 0..stride − 1.
        start : Tensor of shape (B, 1), optional
            1 where a lane begins anew, else 0.
        beside : Beside, optional
            Columns beside the target.

        Returns
        -------
        z : Tensor of shape (B, n · P, h, C, law_width)
            Quantiles, or location and spread of a law, in deviations, at the visited rows in the order (visit, phase).
        front : Front
            At the same rows.
        state : dict of Tensor
            With its graph: how far back gradients go is the trainer's to say (``detach``).
        """
        self._check(x)
        stride = self.config.stride
        n_visits, n_phases = x.shape[1] // stride, len(phases)
        if x.shape[1] % stride:
            raise ShapeError(f"training segments must be a multiple of stride={stride} rows, got {x.shape[1]}.")
        lane_start = None if start is None else start.repeat_interleave(n_phases, dim=0)
        count = restarted({"count": state["count"]}, lane_start)["count"]
        ahead = restarted({name: t for name, t in state.items() if name != "count" and not is_memory(name)}, start)
        picked = (torch.arange(n_visits, device=x.device)[:, None] * stride + phases).flatten()
        front, norm, rows = self.front(x, ahead["norm"], ahead["rows"], picked)
        front, known, moved = self._with_beside(x, front, beside, ahead, picked)
        lanes = front.tokens.unflatten(1, (n_visits, n_phases)).transpose(1, 2).flatten(0, 1)  # (B · P, n, D)
        hidden, rings, count, far = self.recur(
            lanes,
            self.rings(state),
            count,
            memory=self._visited_memory(),
            times=_slots(known),
            far=far_of(ahead),
        )
        hidden = hidden.unflatten(0, (len(x), n_phases)).transpose(1, 2).flatten(1, 2)  # (B, n · P, D)
        z = self._answer(hidden, self.linear_path(front.lookback), known, picked, front.last)
        return z, front, self._named(rings, count=count, **far, norm=norm, rows=rows, **moved)

    # -- parts ------------------------------------------------------------------------------------------------------

    def front(self, x: Tensor, norm: Tensor, rows: Tensor, picked: Tensor | None) -> tuple[Front, Tensor, Tensor]:
        """Normalise the rows of a call and embed those that are picked (None: all); no memory here.

        Returns
        -------
        front : Front
        norm, rows : Tensor
            The two state tensors, moved on.
        """
        present = x.isfinite()
        # where, before any product: 0 · NaN is NaN.
        x = self.units.into(torch.where(present, x, x.new_zeros(())))
        scale, norm = self.normaliser(x, present, norm)
        scale = scale.in_units(self.units)
        # Clamped like the normaliser's input: the difference of two finite values may be infinite.
        above = torch.where(present, (x - scale.shift).clamp(-LARGEST, LARGEST), x.new_zeros(()))
        history, rows = self.window.extend(above, present, scale.age, rows)
        scale = scale.at(picked)
        # Not in training: what is made up would teach the linear path a season that it has to find, and rows that are
        # left out teach it to do without them.
        z, seen = self.window.at(history, picked, scale, repeats=not self.training)
        patch = slice(z.shape[-1] - self.config.patch_len, None)
        tokens = self.embedding(z[..., patch] * seen[..., patch], seen[..., patch], scale)
        if self.config.scale_embedding:
            tokens = tokens * self.config.d_model**0.5
        return Front(self.dropout(tokens), z[..., z.shape[-1] - self.config.lookback :], scale), norm, rows

    def recur(self, tokens: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, list[Rows], Tensor, Kept]:
        """Run the backbone in the precision of this model; what it keeps is float32 in any.

        Only here: in bfloat16 a running mean of long memory stands still, and the linear path would lose its digits.
        """
        if self.precision == "float32":
            return cast(Any, self.backbone(tokens, *args, **kwargs))
        with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
            hidden, rings, count, far = self.backbone(tokens, *args, **kwargs)
        return hidden.to(tokens.dtype), rings, count, far

    def in_float32(self) -> Self:
        """Give the same model, with the same weights, that computes in float32, as its graph does."""
        out = copy.copy(self)
        out.precision = "float32"
        return out

    def rings(self, state: TorchState) -> list[Rows]:
        """Give what each layer keeps: the tensors of the state that are memory, in the order of layers."""
        kinds = _KINDS if "keys_0" in state else _TRAINED_KINDS
        return [tuple(state[f"{kind}_{layer}"] for kind in kinds) for layer in range(self.config.n_layers)]

    def _named(self, rings: list[Rows], **small: Tensor) -> TorchState:
        kinds = _KINDS if len(rings[0]) == len(_KINDS) else _TRAINED_KINDS
        named = {f"{kind}_{layer}": t for layer, ring in enumerate(rings) for kind, t in zip(kinds, ring, strict=True)}
        return named | small

    # -- columns beside the target -----------------------------------------------------------------------------------

    def known(
        self, x: Tensor, beside: Beside | None, front: Front, state: TorchState, picked: Tensor
    ) -> tuple[Tensor | None, TorchState]:
        """Give the features of the rows ahead of some rows, (B, n, h, F); None where nothing is known ahead.

        Parameters
        ----------
        x : Tensor of shape (B, T, C)
            Raw rows.
        beside : Beside or None
        front : Front
            At the picked rows.
        state : dict of Tensor
            Only what belongs to the times is read; it is given moved on.
        picked : int64 Tensor of shape (n,)
        """
        if self.beside is None or beside is None or not self.config.futr_kinds:
            return None, {}
        times, moved = self._times(x, beside, state)
        return self._ahead_of(Known(self.beside.futr(beside.futr), times), picked, front.last), moved

    def _with_beside(
        self, x: Tensor, front: Front, beside: Beside | None, state: TorchState, picked: Tensor | None
    ) -> tuple[Front, Known | None, TorchState]:
        """Add the columns beside the target to the tokens, and when the rows came; gives what is known ahead too."""
        if self.beside is None:
            return front, None, {}
        beside = self._none_known(front.tokens, x.shape[1]) if beside is None else beside
        known = self.beside.futr(beside.futr)
        added, moved = self.beside(beside, known, state, picked)
        times, clock = self._times(x, beside, state)
        if self.clock is not None and times is not None:
            added = added + self.clock.tokens(times, picked)
        front = replace(front, tokens=front.tokens + self.dropout(added))
        return front, Known(known, times, beside.ahead), moved | clock

    def _times(self, x: Tensor, beside: Beside, state: TorchState) -> tuple[Times | None, TorchState]:
        if self.clock is None or self.beside is None:
            return None, {}
        amounts = beside.hist[..., self.beside.amounts]
        return self.clock(beside.futr[..., -1], torch.cat([x, amounts], dim=-1).isfinite(), state)

    def _answer(
        self, hidden: Tensor, centre: Tensor, known: Known | None, picked: Tensor | None, last: Tensor | None
    ) -> Tensor:
        """Quantiles, or a law, in deviations, from the picked rows (None: all); ``last`` (B, n) is their value."""
        if self.known_ahead is None or known is None:
            return self.read_out(hidden, centre)
        n, z = hidden.shape[1], []
        picked = torch.arange(n, device=hidden.device) if picked is None else picked
        size = n if torch.is_grad_enabled() else max(_STEPS_AT_ONCE // (len(hidden) * self.config.h), 1)
        for first in range(0, n, size):
            some = slice(first, first + size)
            ahead = self._ahead_of(known, picked[some], None if last is None else last[:, some])
            z.append(self.read_out(hidden[:, some], centre[:, some], ahead))
        return torch.cat(z, dim=1)

    def read_out(self, hidden: Tensor, centre: Tensor, known: Tensor | None = None, *, as_law: bool = True) -> Tensor:
        """Quantiles, or a law, in deviations.

        Parameters
        ----------
        hidden : Tensor of shape (B, n, D)
        centre : Tensor of shape (B, n, h, C)
            The linear path's forecast.
        known : Tensor of shape (B, n, h, F), optional
            Features of the rows ahead.
        as_law : bool
            False gives the quantiles of the config, of a distribution too.

        Returns
        -------
        Tensor of shape (B, n, h, C, law_width), or (B, n, h, C, Q)
        """
        head = self.head.law if as_law else self.head
        if self.known_ahead is None or known is None:
            return head(hidden, centre)
        return head(hidden, centre + self.linear_path.ahead(known), self.known_ahead(hidden, known))

    def _in_units(self, z: Tensor, level: Tensor, deviation: Tensor) -> Tensor:
        """From deviations (B, n, h, C, law_width) to raw quantiles, or to a law in the model's units."""
        level, deviation = level[:, :, None], deviation[:, :, None]
        if isinstance(self.head, QuantileHead):
            return self.units.back(level[..., None] + z * deviation[..., None])
        return self.head.in_units(z, level, deviation)

    def _ahead_of(self, known: Known, picked: Tensor, last: Tensor | None) -> Tensor:
        """Features (B, n, h, F) of the rows ahead of some rows."""
        if known.own is not None and self.beside is not None:
            return self.beside.futr(known.own[:, picked])
        features, times = known.features, known.times
        h = self.config.h if times is None or times.n_asked is None else times.n_asked
        ahead = features[:, picked[:, None] + torch.arange(1, h + 1, device=features.device)]
        if times is None or last is None:
            return ahead
        asked = AskedTimes()(times.ahead(picked, h=h), times.age[:, picked], last)
        return torch.cat([asked, ahead], dim=-1)

    def _last(self, hidden: Tensor, centre: Tensor, front: Front, known: Known | None) -> TorchState:
        """What :meth:`forecast_from` needs of the last row."""
        if self.known_ahead is None:
            return {}
        scale = front.scale
        level = (scale.shift + (scale.mean[:, -1:] + scale.rest[:, -1:]))[:, 0]
        seen = scale.known[:, -1].any(dim=1, keepdim=True).to(level.dtype)
        parts = [hidden[:, -1], centre[:, -1].flatten(1), level, scale.deviation[:, -1], seen]
        if known is not None and known.times is not None and front.last is not None:
            parts += [front.last[:, -1:], known.times.age[:, -1:]]
        return {"last": torch.cat(parts, dim=1)}

    def _beside_specs(self) -> tuple[TensorSpec, ...]:
        specs = () if self.beside is None else self.beside.specs()
        return specs if self.clock is None else specs + self.clock.specs()

    def _last_specs(self) -> tuple[TensorSpec, ...]:
        if self.known_ahead is None:
            return ()
        n = self.config.d_model + (len(self.linear_path.bias) + 2) * self.config.n_channels + 1
        n += sum(self._n_more_last)
        return (TensorSpec("last", (n,), "float32"),)

    @property
    def _n_more_last(self) -> list[int]:
        """What ``state["last"]`` holds beside: the last value and its age, where rows come unevenly."""
        return [] if self.clock is None else [1, 1]

    def _none_known(self, like: Tensor, n_rows: int) -> Beside:
        config, n = self.config, len(like)
        hist = like.new_full((n, n_rows, len(config.hist_kinds)), torch.nan)
        futr = like.new_full((n, n_rows + config.h, len(config.futr_kinds)), torch.nan)
        return Beside(hist, futr, like.new_full((n, len(config.static_kinds)), torch.nan))

    def _visited_memory(self) -> Fifo:
        return Fifo(mem_len=self.config.mem_len)

    def _zeros(self, specs: tuple[TensorSpec, ...], n_lanes: int) -> TorchState:
        weight = self.embedding.linear.weight
        dtypes = {"float32": weight.dtype, "int32": torch.int32}
        return {s.name: torch.zeros(n_lanes, *s.shape, dtype=dtypes[s.dtype], device=weight.device) for s in specs}

    def _check(self, x: Tensor) -> None:
        if x.ndim != 3 or x.shape[2] != self.config.n_channels or not x.shape[1]:
            raise ShapeError(
                f"x must have shape (lanes, rows ≥ 1, n_channels={self.config.n_channels}), got {tuple(x.shape)}."
            )


def between_scores(quantiles: Tensor, scores: Sequence[float], at: Tensor) -> Tensor:
    """Read quantile functions (…, Q), given at the normal ``scores`` of their levels, at one score each, (…,)."""
    of = torch.tensor(scores, dtype=at.dtype)
    right = torch.searchsorted(of, at.contiguous()).clamp(1, len(scores) - 1)
    low, high = (quantiles.gather(-1, side[..., None])[..., 0] for side in (right - 1, right))
    part = (at - of[right - 1]) / (of[right] - of[right - 1])
    return (low + part * (high - low)).to(quantiles.dtype)


def _slots(known: Known | None) -> Tensor | None:
    return None if known is None or known.times is None else known.times.slots


def is_memory(name: str) -> bool:
    """Tell whether a state tensor is a layer's ring: the others are small, and are what a restart replaces."""
    return name.rpartition("_")[0] in (*_KINDS, *_TRAINED_KINDS)


def far_of(state: TorchState) -> Kept:
    """Pick the far memories out of a state."""
    return {name: tensor for name, tensor in state.items() if is_far(name)}


def empties_memory(name: str) -> bool:
    """Tell whether a lane forgets what it remembers when this state tensor becomes zero."""
    return name == "count" or is_far(name)


def forgotten(state: TorchState) -> TorchState:
    """Empty the memories of all lanes; the normaliser and the other small states stay."""
    return {name: torch.zeros_like(t) if empties_memory(name) else t for name, t in state.items()}


def restarted(state: TorchState, start: Tensor | None) -> TorchState:
    """Make some lanes fresh. Their memory rows stay, but are invisible: the counters say that no slot is filled."""
    if start is None:
        return state
    fresh = start.reshape(-1) > 0
    return {
        name: t if is_memory(name) else torch.where(fresh.reshape(-1, *(1,) * (t.ndim - 1)), torch.zeros_like(t), t)
        for name, t in state.items()
    }


def init_weights(module: nn.Module) -> None:
    """Draw linear maps from N(0, 0.02), as Transformer-XL does."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
