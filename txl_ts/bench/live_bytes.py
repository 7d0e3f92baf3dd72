"""How many bytes of tensors are alive at the worst moment of a computation, forwards and backwards."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the storages that operations make, from the moment they are made until nobody holds them.

    What was there before is not counted, nor is what an operation needs inside.

    Attributes
    ----------
    now, peak : int
        Bytes.

    Examples
    --------
    >>> with LiveBytes() as bytes_:
    ...     kept = torch.zeros(1000)
    ...     _ = torch.ones(250) + 1
    >>> bytes_.peak
    6000
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, and note what it made."""
        out = func(*args, **(kwargs or {}))
        # A view shares the storage of what it is a view of, which may have been there before.
        there = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in there:
                self._note(tensor.untyped_storage())
        return out

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known or not size:
            return
        self.now += size
        self.peak = max(self.peak, self.now)

        def gone(_: Any) -> None:
            self.now -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, gone)


def peak_bytes(compute: Callable[[], Any]) -> int:
    """Give the most bytes that were alive at once while something was computed."""
    with LiveBytes() as found:
        compute()
    return found.peak
