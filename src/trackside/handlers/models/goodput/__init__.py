"""
Goodput: every second of a training session in exactly one bucket.

docs/goodput-model.md describes the stored state, how each bucket is found, and why the sum is exact.
"""

from trackside.handlers.models.goodput._account import EndedStep
from trackside.handlers.models.goodput._buckets import AFTER_STEPS, BEFORE_STEPS, PEER_NAMES
from trackside.handlers.models.goodput._goodput_monitor import GoodputAccumulator, GoodputMonitor, update_of
from trackside.handlers.models.goodput._peer_records import PayloadReader, read_payloads
from trackside.handlers.models.goodput._result import (
    AttemptTimes,
    GoodputResult,
    RankTimes,
    SliceEfficiency,
    Slowest,
    StepTimes,
)

__all__ = [
    "AFTER_STEPS",
    "BEFORE_STEPS",
    "PEER_NAMES",
    "AttemptTimes",
    "EndedStep",
    "GoodputAccumulator",
    "GoodputMonitor",
    "GoodputResult",
    "PayloadReader",
    "RankTimes",
    "SliceEfficiency",
    "Slowest",
    "StepTimes",
    "read_payloads",
    "update_of",
]
