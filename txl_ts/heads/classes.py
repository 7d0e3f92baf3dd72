"""One class out of several, for each row."""

from __future__ import annotations

from torch import Tensor, nn


class ClassHead(nn.Module):
    """Logits of ``n_outputs`` classes, and their probabilities.

    Parameters
    ----------
    d_model : int
    n_outputs : int
        Classes.
    """

    def __init__(self, *, d_model: int, n_outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d_model, n_outputs)
        # A zero start: the first answer is the linear path's alone.
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor, centre: Tensor) -> Tensor:
        """Add what hidden rows (B, n, D) say to the linear path's logits (B, n, K)."""
        return centre + self.linear(hidden)

    def outputs(self, z: Tensor) -> Tensor:
        """Turn logits (B, n, K) into probabilities."""
        return z.softmax(dim=-1)
