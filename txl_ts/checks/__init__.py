"""What every memory policy, normaliser, embedding, head and session must hold, as small named checks.

Write a part of your own, then run its checks: each of them raises :class:`CheckFailed` with one sentence, or is silent.
The parts of this library pass the same checks in its tests.

Examples
--------
>>> from txl_ts.checks import check_memory
>>> from txl_ts.memory import Fifo
>>> for check in check_memory(Fifo):
...     check()

In pytest, one test per check:

>>> import pytest
>>> @pytest.mark.parametrize("check", check_memory(Fifo), ids=str)
... def test_my_policy(check):
...     check()
"""

from txl_ts.checks.detector import check_detector
from txl_ts.checks.embedding import check_embedding
from txl_ts.checks.head import check_head
from txl_ts.checks.label_head import check_label_head
from txl_ts.checks.memory import MemoryPolicy, check_memory
from txl_ts.checks.normaliser import Normaliser, check_normaliser
from txl_ts.checks.session import Session, check_session
from txl_ts.checks.streams import StreamingSession
from txl_ts.checks.verdict import Check, CheckFailed

__all__ = [
    "Check",
    "CheckFailed",
    "MemoryPolicy",
    "Normaliser",
    "Session",
    "StreamingSession",
    "check_detector",
    "check_embedding",
    "check_head",
    "check_label_head",
    "check_memory",
    "check_normaliser",
    "check_session",
]
