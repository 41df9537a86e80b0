"""
Goodput: every second of a training session in exactly one bucket.

What is kept, how each bucket is found and why the sum is exact stands in docs/goodput.md.
"""

from trackside.handlers.models.goodput._account import StepTime
from trackside.handlers.models.goodput._accumulator import GoodputAccumulator
from trackside.handlers.models.goodput._buckets import PEER_NAMES
from trackside.handlers.models.goodput._monitor import GoodputMonitor
from trackside.handlers.models.goodput._payloads import PayloadReader, read_payloads
from trackside.handlers.models.goodput._result import (
    GoodputResult,
    RankTimes,
    SliceEfficiency,
    Slowest,
    StepTimes,
)
from trackside.handlers.models.goodput._update import update_of

__all__ = [
    "PEER_NAMES",
    "GoodputAccumulator",
    "GoodputMonitor",
    "GoodputResult",
    "PayloadReader",
    "RankTimes",
    "SliceEfficiency",
    "Slowest",
    "StepTime",
    "StepTimes",
    "read_payloads",
    "update_of",
]
