"""Memory policies: what a layer keeps of the rows it has seen, one file each."""

from txl_ts.memory.fifo import Fifo

__all__ = ["Fifo"]
