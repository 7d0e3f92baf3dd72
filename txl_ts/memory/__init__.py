"""Memory policies: what a layer keeps of the rows it has seen, one file each.

Every layer has a window of its newest rows (:class:`Fifo`). A policy adds a far memory to it: a :class:`FarMemory`.
"""

from txl_ts.memory.compressive import Compressive
from txl_ts.memory.far import FarMemory, Kept, Slots, in_line, is_far
from txl_ts.memory.fifo import Fifo
from txl_ts.memory.gated import Gated
from txl_ts.memory.importance import Importance
from txl_ts.memory.linear import Linear
from txl_ts.memory.registry import completed, far_memory, far_size, policies, policy, register
from txl_ts.memory.same_layer import SameLayer
from txl_ts.memory.sinks import Sinks
from txl_ts.memory.tokens import Tokens
from txl_ts.memory.two_rate import TwoRate

__all__ = [
    "Compressive",
    "FarMemory",
    "Fifo",
    "Gated",
    "Importance",
    "Kept",
    "Linear",
    "SameLayer",
    "Sinks",
    "Slots",
    "Tokens",
    "TwoRate",
    "completed",
    "far_memory",
    "far_size",
    "in_line",
    "is_far",
    "policies",
    "policy",
    "register",
]
