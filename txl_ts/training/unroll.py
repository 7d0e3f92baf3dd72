"""One step of training: some segments one after the other, with the graph kept from each to the next."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from txl_ts.model import TorchState
from txl_ts.training.hops import Hops

_S = TypeVar("_S")


def in_steps(segments: Iterable[_S], *, n: int) -> Iterator[list[_S]]:
    """Put ``n`` consecutive segments into each step; the last one may have fewer."""
    rest = iter(segments)
    while step := list(itertools.islice(rest, n)):
        yield step


def unrolled(
    segments: Iterable[_S],
    state: TorchState,
    forward: Callable[[_S, TorchState], tuple[Tensor, Tensor, TorchState]],
    hops: Hops,
    *,
    checkpoint_activations: bool = False,
) -> tuple[Tensor, Tensor, TorchState]:
    """Walk the segments of a step; the state that comes in and the one that goes out carry no gradient.

    Parameters
    ----------
    segments : iterable
        One or more.
    state : dict of Tensor
        Of the lanes, before the first of them.
    forward : callable
        ``(segment, state) → (loss, weight, state)``: sums over the segment, and the state moved on.
    hops : Hops
        What gradients meet between two segments.
    checkpoint_activations : bool
        Keep the state between segments alone, and compute each segment once more on the way back: memory for one
        segment instead of all, for up to twice the time.

    Returns
    -------
    loss, weight : Tensor of shape ()
        Sums over all segments.
    state : dict of Tensor
    """
    losses, weights = [], []
    for i, segment in enumerate(segments):
        if i:
            state = hops.through(state, hop=i - 1)
        if checkpoint_activations:
            loss, weight, state = checkpoint(forward, segment, state, use_reentrant=False)
        else:
            loss, weight, state = forward(segment, state)
        losses.append(loss)
        weights.append(weight)
    cut = {name: tensor.detach() for name, tensor in state.items()}
    return sum(losses[1:], losses[0]), sum(weights[1:], weights[0]), cut
