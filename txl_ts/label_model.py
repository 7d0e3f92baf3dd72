"""The same core with labels as outputs: ``(x, state) → (classes or values, state)``, one answer per row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from txl_ts.config import ModelConfig, check_choice, check_integer
from txl_ts.embeddings import Beside
from txl_ts.heads import ClassHead, RowPath, ValueHead
from txl_ts.model import TorchState, TXLModel, far_of, restarted
from txl_ts.state import TensorSpec

HEADS = ("classes", "values", "rows")
POOLINGS = ("last", "mean")
# The running mean over rows turns into an exponential one here: float32 would stop moving otherwise.
_MOST_POOLED = 100_000.0


@dataclass(frozen=True, kw_only=True)
class LabelConfig(ModelConfig):
    """Sizes of a model with labels. The fields of :class:`ModelConfig` that forecasts alone need have one value here.

    Parameters
    ----------
    head : {"classes", "values", "rows"}
        Probabilities of classes; values of targets; or, for an encoder, the hidden row itself (trained to predict the
        next row).
    n_outputs : int
        Classes, targets, or channels of the next row.
    pooling : {"last", "mean"}
        What the head reads at each row: its hidden row, or the mean of the hidden rows up to it.
    """

    h: int = 1
    quantiles: tuple[float, ...] = (0.5,)
    stride: int = 1
    head: str = "classes"
    n_outputs: int = 1
    pooling: str = "last"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("head", self.head, HEADS)
        check_choice("pooling", self.pooling, POOLINGS)
        check_integer("n_outputs", self.n_outputs, at_least=1)


class LabelModel(TXLModel):
    """Transformer-XL over raw rows of all features, with a linear path beside it and an answer per row.

    Parameters
    ----------
    config : LabelConfig

    References
    ----------
    Dai et al. (2019), Transformer-XL (arXiv 1901.02860).
    """

    config: LabelConfig

    def __init__(self, config: LabelConfig) -> None:
        super().__init__(config)

    def _add_outputs(self) -> None:
        config = self.config
        self.row_path = RowPath(lookback=config.lookback, n_channels=config.n_channels, n_outputs=config.n_outputs)
        self.apply(_init_weights)
        self.answer: ClassHead | ValueHead = (
            ClassHead(d_model=config.d_model, n_outputs=config.n_outputs)
            if config.head == "classes"
            else ValueHead(d_model=config.d_model, n_outputs=config.n_outputs)
        )

    def state_specs(self) -> tuple[TensorSpec, ...]:
        """Describe the state of one lane, in the order of the graph's names."""
        return (*super().state_specs(), *self._pool_specs())

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
        """Answer at each row and move the state on.

        Parameters
        ----------
        x : Tensor of shape (B, T, C)
            Raw values; anything that is not finite counts as missing.
        state : dict of Tensor
            As :meth:`init_state` or an earlier call gave it; not changed.
        start : Tensor of shape (B, 1), optional
            1 where a lane begins anew before its first row, else 0.
        last_only : bool
            Answer at the last row only.
        beside : None
            Not used: all columns are channels of ``x``.
        as_law : bool
            Not used: labels have no law.

        Returns
        -------
        y : Tensor of shape (B, T, K)
            Probabilities of the classes, values in units of the targets, or hidden rows (K is D then); T is 1 with
            ``last_only``.
        state : dict of Tensor
        """
        self._check(x)
        state = restarted(state, start)
        picked = torch.arange(x.shape[1], device=x.device)
        front, norm, rows = self.front(x, state["norm"], state["rows"], picked)
        hidden, rings, count, far = self.recur(
            front.tokens, self.rings(state), state["count"], memory=self.memory, far=far_of(state)
        )
        read, pool = self._pooled(hidden, state)
        if self.config.head == "rows":
            y = read[:, -1:] if last_only else read
        else:
            window = front.lookback
            if last_only:
                read, window = read[:, -1:], window[:, -1:]
            y = self.answer.outputs(self.answer(read, self.row_path(window)))
        return y, self._named(rings, count=count, **far, norm=norm, rows=rows, **pool)

    def init_rows(self, n_lanes: int) -> TorchState:
        """Give a fresh training state: its memory holds hidden rows, not keys and values."""
        return self.init_visits(n_lanes, n_phases=1) | self._zeros(self._pool_specs(), n_lanes)

    def forward_rows(self, x: Tensor, state: TorchState, start: Tensor | None = None) -> tuple[Tensor, TorchState]:
        """Answer at each row, with memory that gives gradients to its projections.

        Parameters
        ----------
        x : Tensor of shape (B, T, C)
        state : dict of Tensor
            Of :meth:`init_rows`.
        start : Tensor of shape (B, 1), optional

        Returns
        -------
        z : Tensor of shape (B, T, K)
            Logits, or values in deviations of the training targets.
        state : dict of Tensor
            With its graph: how far back gradients go is the trainer's to say (``detach``).
        """
        self._check(x)
        state = restarted(state, start)
        picked = torch.arange(x.shape[1], device=x.device)
        front, norm, rows = self.front(x, state["norm"], state["rows"], picked)
        memory = self._visited_memory()
        hidden, rings, count, far = self.recur(
            front.tokens, self.rings(state), state["count"], memory=memory, far=far_of(state)
        )
        read, pool = self._pooled(hidden, state)
        z = self.answer(read, self.row_path(front.lookback))
        return z, self._named(rings, count=count, **far, norm=norm, rows=rows, **pool)

    def _pool_specs(self) -> tuple[TensorSpec, ...]:
        if self.config.pooling == "last":
            return ()
        # The mean of the hidden rows so far, then how many they are.
        return (TensorSpec("pool", (self.config.d_model + 1,), "float32"),)

    def _pooled(self, hidden: Tensor, state: TorchState) -> tuple[Tensor, TorchState]:
        """Give what the head reads at each row, and the pool moved on."""
        if self.config.pooling == "last":
            return hidden, {}
        mean, n = state["pool"][:, None, :-1], state["pool"][:, None, -1:]
        rows = torch.arange(1, hidden.shape[1] + 1, device=hidden.device, dtype=hidden.dtype)[:, None]
        # About the mean of before: sums of many rows would lose their last digits.
        mean = mean + (hidden - mean).cumsum(dim=1) / (n + rows)
        pool = torch.cat([mean[:, -1], (n[:, 0] + rows[-1]).clamp(max=_MOST_POOLED)], dim=-1)
        return mean, {"pool": pool}


def _init_weights(module: nn.Module) -> None:
    """Draw linear maps from N(0, 1 / inputs): hundreds of steps do not lead a narrow model away from N(0, 0.02)."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=module.in_features**-0.5)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
