"""State that stays on the device: two sets of buffers, of which a step reads one and writes the other.

The lanes of a call that is repeated (a fleet whose streams come together, or one stream) are put on the device once.
Each step then moves rows up and forecasts down, and nothing else. The host's copy is behind until the state comes home,
which happens before anything else looks at these lanes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.runtime.engine import Engine
from txl_ts.runtime.lanes import Lanes, Shelves
from txl_ts.state import TensorSpec

# Sets of lanes on the device at once; each holds two copies of their state.
_MOST_SETS = 64


class Resident:
    """Some lanes on the device.

    Parameters
    ----------
    engine : Engine
    lanes : int64 array of shape (n,)
    state : list of array
        Of these lanes.
    """

    def __init__(self, engine: Engine, lanes: Lanes, state: list[NDArray[Any]]) -> None:
        contract, n = engine.contract, len(lanes)
        self.lanes, self._is_second = lanes, False
        self._layout, self._host = contract.layout, contract.layout.buffers(n)
        self._inputs = {name: engine.on_device(array) for name, array in self._host.items()}
        self._start = engine.on_device(np.zeros((n, 1), np.int32))
        shape = (n, 1, contract.horizon, contract.layout.n_channels, len(contract.quantiles))
        self._y = engine.on_device(np.zeros(shape, np.float32))
        self._sets = [[engine.on_device(array) for array in state], [engine.on_device(array) for array in state]]
        self._calls = [self._bound(engine, *pair) for pair in (self._sets, self._sets[::-1])]

    def _bound(self, engine: Engine, past: list[Any], present: list[Any]) -> Callable[[], None]:
        """Each direction has addresses of its own, and so a CUDA graph of its own; no buffer is read and written."""
        contract = engine.contract
        inputs = self._inputs | {"start": self._start} | dict(zip(contract.inputs, past, strict=True))
        return engine.bind_device(inputs, {"y": self._y} | dict(zip(contract.outputs, present, strict=True)))

    def row(self, x: NDArray[np.float32], start: NDArray[np.int32]) -> NDArray[np.float32]:
        """Run one row of each lane into the other set and give y; nothing has moved on until :meth:`commit`."""
        self._layout.write(self._host, len(x), x)
        for name, array in self._host.items():
            self._inputs[name].update_inplace(array)
        self._start.update_inplace(np.ascontiguousarray(start[:, None], np.int32))
        self._calls[self._is_second]()
        y: NDArray[np.float32] = self._y.numpy()[:, 0]
        return y

    def commit(self) -> None:
        """Let the set that was written be the one that is read."""
        self._is_second = not self._is_second

    def state(self) -> list[NDArray[Any]]:
        """Copy the state to the host."""
        return [value.numpy() for value in self._sets[self._is_second]]


class DeviceShelves(Shelves):
    """Shelves some of whose lanes are on the device; they come home before anything looks at them.

    Parameters
    ----------
    engine : Engine
    specs : sequence of TensorSpec
    lock : RLock
        Is held whenever a lane comes or goes, and by whoever runs one: a device runs one call at a time anyway.
    """

    def __init__(self, engine: Engine, specs: Sequence[TensorSpec], lock: threading.RLock) -> None:
        super().__init__(specs)
        self._engine, self.lock = engine, lock
        self._by_lanes: dict[bytes, Resident] = {}

    def resident(self, lanes: Lanes) -> Resident:
        """Give lanes on the device, in this order; they are put there if they are not."""
        with self.lock:
            key = lanes.tobytes()
            found = self._by_lanes.pop(key, None)
            if found is None:
                state = self.gather(lanes)
                while len(self._by_lanes) >= _MOST_SETS:
                    self._home(next(iter(self._by_lanes)))
                found = Resident(self._engine, lanes.copy(), state)
            self._by_lanes[key] = found  # the newest is last
            return found

    def gather_into(self, lanes: Lanes, index: int, out: NDArray[Any]) -> None:
        """Copy one tensor of some lanes into ``out``."""
        with self.lock:
            self._flush(lanes)
            super().gather_into(lanes, index, out)

    def scatter(self, lanes: Lanes, parts: Sequence[NDArray[Any]]) -> None:
        """Write lanes back."""
        with self.lock:
            self._flush(lanes)
            super().scatter(lanes, parts)

    def clear(self, lane: int) -> None:
        """Make a lane fresh."""
        with self.lock:
            self._flush(np.array([lane]))
            super().clear(lane)

    def _flush(self, lanes: Lanes) -> None:
        """Bring lanes home, with those that share a set with them."""
        for key, resident in list(self._by_lanes.items()):
            if np.isin(resident.lanes, lanes).any():
                self._home(key)

    def _home(self, key: bytes) -> None:
        resident = self._by_lanes.pop(key)
        super().scatter(resident.lanes, resident.state())
