"""Columns beside the target as numbers that a layer can take: scaled amounts with masks and hinges, and categories.

Columns are described by their kinds: 0 is an amount (NaN where missing), k > 0 a code in 0..k of one of k categories
(0: none of them), −1 a number that needs no scaling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from txl_ts.config import ModelConfig
from txl_ts.embeddings.normaliser import LARGEST, RunningNormaliser
from txl_ts.embeddings.patch import PatchEmbedding
from txl_ts.embeddings.window import RowWindow
from txl_ts.state import TensorSpec

# Amounts beyond this many deviations are clipped.
_CLIP = 10.0
# Hinges stand at these quantiles of the training rows: load against temperature is a valley, not a line.
_KNOTS = (0.25, 0.5, 0.75, 0.9)
# Up to this many categories are columns of 0 and 1, which the linear path can use too; more are a table of vectors.
_MOST_FLAGS = 16
# In training, a category is hidden from a lane for a segment with this probability: what stands for "none of them" is
# learned so.
_HIDDEN = 0.05


@dataclass(frozen=True)
class Beside:
    """Raw columns beside the target for one call.

    Attributes
    ----------
    hist : Tensor of shape (B, T, n_hist)
    futr : Tensor of shape (B, T + h, n_futr)
        Of the rows of the call and the ``h`` after them.
    static : Tensor of shape (B, n_static)
    ahead : Tensor of shape (B, T, h, n_futr), optional
        What is known ahead of each row by itself, as streams have it; ``futr`` then holds the rows of the call alone.
    """

    hist: Tensor
    futr: Tensor
    static: Tensor
    ahead: Tensor | None = None


def row_inputs(config: ModelConfig) -> dict[str, tuple[int | str, ...]]:
    """Give names and sizes of what streams and graphs bring beside the target; those that the model has, in order."""
    n_hist, n_futr, n_static = (len(kinds) for kinds in (config.hist_kinds, config.futr_kinds, config.static_kinds))
    table: dict[str, tuple[int | str, ...]] = {}
    if n_hist:
        table["hist"] = ("batch", "time", n_hist)
    if n_futr:
        table["futr"] = ("batch", "time", n_futr)
        table["futr_ahead"] = ("batch", "time", config.h, n_futr)
    if n_static:
        table["static"] = ("batch", n_static)
    return table


def beside_of(given: Mapping[str, Tensor], x: Tensor) -> Beside | None:
    """Read the inputs of :func:`row_inputs` for rows ``x`` (B, T, C); None where the model has none of them."""
    if not given:
        return None
    nothing = x[..., :0]
    return Beside(
        hist=given.get("hist", nothing),
        futr=given.get("futr", nothing),
        static=given.get("static", nothing[:, 0]),
        ahead=given.get("futr_ahead"),
    )


class Features(nn.Module):
    """Raw columns to features: fixed ones that any linear map can use, then the codes of large vocabularies.

    Parameters
    ----------
    kinds : sequence of int
        As this module describes them.
    """

    def __init__(self, kinds: Sequence[int]) -> None:
        super().__init__()
        self.amounts = [i for i, kind in enumerate(kinds) if kind == 0]
        self.plain = [i for i, kind in enumerate(kinds) if kind < 0]
        self.flags = [(i, kind) for i, kind in enumerate(kinds) if 0 < kind <= _MOST_FLAGS]
        self.tables = [(i, kind) for i, kind in enumerate(kinds) if kind > _MOST_FLAGS]
        self.coded = self.flags + self.tables
        self.n_words = dict(self.coded)
        n = len(self.amounts)
        self.register_buffer("mean", torch.zeros(n))
        self.register_buffer("deviation", torch.ones(n))
        self.register_buffer("knots", torch.zeros(n, len(_KNOTS)))
        # Which codes the training rows held: the others are none of them, as a name that is not in the vocabulary.
        self.first_code = dict(
            zip([i for i, _ in self.coded], np.cumsum([0] + [k + 1 for _, k in self.coded]), strict=False)
        )
        self.register_buffer("trained", torch.ones(sum(kind + 1 for _, kind in self.coded)))
        self.trained: Tensor
        self.mean: Tensor
        self.deviation: Tensor
        self.knots: Tensor
        self.n_fixed = n * (2 + len(_KNOTS)) + len(self.plain) + sum(kind + 1 for _, kind in self.flags)
        self.n_features = self.n_fixed + len(self.tables)

    def fit(self, rows: NDArray[np.float32]) -> None:
        """Take scales and knots from the training rows (N, n_columns); NaN is left out."""
        for k, i in enumerate(self.amounts):
            there = rows[:, i].astype(np.float64)
            there = there[np.isfinite(there)]
            if not len(there):
                continue
            mean, deviation = there.mean(), there.std()
            # A column that never moved in training says nothing, however far it moves later.
            deviation = deviation if deviation > 1e-9 * max(abs(mean), 1e-30) else max(abs(mean), 1.0)
            self.mean[k], self.deviation[k] = float(mean), float(deviation)
            self.knots[k] = torch.from_numpy((np.quantile(there, _KNOTS) - mean) / deviation)
        for i, kind in self.coded:
            codes = np.unique(rows[:, i][np.isfinite(rows[:, i])]).astype(np.int64)
            part = self.trained[self.first_code[i] : self.first_code[i] + kind + 1]
            part.zero_()
            part[torch.from_numpy(codes)] = 1

    def forward(self, raw: Tensor) -> Tensor:
        """Map (B, …, n_columns) to (B, …, n_features)."""
        parts = []
        if self.amounts:
            x = raw[..., self.amounts]
            present = x.isfinite()
            x = torch.where(present, x, self.mean.to(x.dtype)).clamp(-LARGEST, LARGEST)
            z = ((x - self.mean) / self.deviation).clamp(-_CLIP, _CLIP)
            mask = present.to(x.dtype)
            hinges = ((z[..., None] - self.knots).clamp(min=0) * mask[..., None]).flatten(-2)
            parts += [z, mask, hinges]
        if self.plain:
            plain = raw[..., self.plain]
            parts.append(torch.where(plain.isfinite(), plain, plain.new_zeros(())))
        for i, kind in self.flags:
            parts.append((self._code(raw, i)[..., None] == torch.arange(kind + 1, device=raw.device)).to(raw.dtype))
        parts += [self._code(raw, i)[..., None] for i, _ in self.tables]
        return torch.cat(parts, dim=-1) if parts else raw[..., :0]

    def _code(self, raw: Tensor, column: int) -> Tensor:
        code = raw[..., column]
        # What is no code (NaN too) is none of them: a graph must not read beside its tables.
        code = torch.where((code >= 0) & (code <= self.n_words[column]), code, raw.new_zeros(()))
        code = code * self.trained[self.first_code[column] + code.long()]
        if not self.training:
            return code
        shown = torch.rand(len(raw), *(1,) * (raw.ndim - 2), device=raw.device) >= _HIDDEN
        return code * shown.to(code.dtype)


class Projection(nn.Module):
    """Features of :class:`Features` to vectors.

    Parameters
    ----------
    features : Features
    width : int
    """

    def __init__(self, features: Features, width: int) -> None:
        super().__init__()
        self.n_fixed = features.n_fixed
        self.linear = nn.Linear(max(features.n_fixed, 1), width, bias=False)
        self.tables = nn.ModuleList(nn.Embedding(kind + 1, width) for _, kind in features.tables)
        nn.init.normal_(self.linear.weight, std=0.02)
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.02)  # type: ignore[arg-type]

    def forward(self, features: Tensor) -> Tensor:
        """Map (…, n_features) to (…, width)."""
        fixed, codes = features[..., : self.n_fixed], features[..., self.n_fixed :]
        out = self.linear(fixed) if self.n_fixed else 0 * self.linear.weight[:, 0]
        for i, table in enumerate(self.tables):
            out = out + table(codes[..., i].long())
        return out


class CovariateEmbedding(nn.Module):
    """What columns beside the target add to a token.

    Those known up to now are scaled and cut into patches as the target is, with a state of their own; those known ahead
    add what they are at the token's row; static ones are the same at each.

    Parameters
    ----------
    config : ModelConfig
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.d_model
        self.amounts = [i for i, kind in enumerate(config.hist_kinds) if kind == 0]
        self.codes = [i for i, kind in enumerate(config.hist_kinds) if kind > 0]
        n = len(self.amounts)
        self.patch_len = config.patch_len
        if n:
            self.normaliser = RunningNormaliser(half_life=config.half_life, n_channels=n)
            self.window = RowWindow(length=max(config.patch_len, 2), n_channels=n)
            self.patch = PatchEmbedding(patch_len=config.patch_len, n_channels=n, d_model=width)
            nn.init.normal_(self.patch.linear.weight, std=0.02)
            nn.init.zeros_(self.patch.linear.bias)
        self.hist = Features([config.hist_kinds[i] for i in self.codes])
        self.futr = Features(config.futr_kinds)
        self.static = Features(config.static_kinds)
        self.from_hist = Projection(self.hist, width) if self.hist.n_features else None
        self.from_futr = Projection(self.futr, width) if self.futr.n_features else None
        self.from_static = Projection(self.static, width) if self.static.n_features else None

    def specs(self) -> tuple[TensorSpec, ...]:
        """Describe the state of the columns that are known up to now."""
        if not self.amounts:
            return ()
        return tuple(
            TensorSpec(f"hist_{spec.name}", spec.shape, spec.dtype)
            for spec in (*self.normaliser.specs(), *self.window.specs())
        )

    def fit(self, hist: NDArray[np.float32], futr: NDArray[np.float32], static: NDArray[np.float32]) -> None:
        """Take scales from the training rows (N, n_hist), (N, n_futr) and the trained series (n_series, n_static)."""
        self.hist.fit(hist[:, self.codes])
        self.futr.fit(futr)
        self.static.fit(static)

    def forward(
        self, beside: Beside, ahead: Tensor, state: dict[str, Tensor], picked: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Give what is added to the tokens of some rows, and move the state on.

        Parameters
        ----------
        beside : Beside
        ahead : Tensor of shape (B, T + h, n_features)
            ``futr(beside.futr)``.
        state : dict of Tensor
            As :meth:`specs` describes it.
        picked : int64 Tensor of shape (n,), optional
            Rows of the call; None is all of them.

        Returns
        -------
        tokens : Tensor of shape (B, n, D)
        state : dict of Tensor
        """
        parts: list[Tensor] = []
        moved: dict[str, Tensor] = {}
        if self.amounts:
            x = beside.hist[..., self.amounts]
            present = x.isfinite()
            x = torch.where(present, x, x.new_zeros(()))
            scale, norm = self.normaliser(x, present, state["hist_norm"])
            above = torch.where(present, (x - scale.shift).clamp(-LARGEST, LARGEST), x.new_zeros(()))
            history, rows = self.window.extend(above, present, scale.age, state["hist_rows"])
            moved = {"hist_norm": norm, "hist_rows": rows}
            scale = scale.at(picked)
            z, seen = self.window.at(history, picked, scale)
            z, seen = z[..., z.shape[-1] - self.patch_len :], seen[..., seen.shape[-1] - self.patch_len :]
            parts.append(self.patch(z * seen, seen, scale))
        if self.from_hist is not None:
            parts.append(self.from_hist(self.hist(_at(beside.hist[..., self.codes], picked))))
        if self.from_futr is not None:
            n_rows = beside.hist.shape[1]
            parts.append(self.from_futr(_at(ahead[:, :n_rows], picked)))
        if self.from_static is not None:
            parts.append(self.from_static(self.static(beside.static))[:, None])
        return torch.stack(torch.broadcast_tensors(*parts)).sum(dim=0), moved


def _at(rows: Tensor, picked: Tensor | None) -> Tensor:
    return rows if picked is None else rows.index_select(1, picked)
