"""
Counters: values go in, windows come out.

A counter only accumulates. Collectors decide when a window ends and what is told of it; one thread serves them all.
"""

from trackside.bus.counters._aggregation import DEFAULT, Aggregation
from trackside.bus.counters._collector import Collector
from trackside.bus.counters._counter import Counter, CounterSnapshot
from trackside.bus.counters._observation import Observation
from trackside.bus.counters._registry import CounterRegistry
from trackside.bus.counters._timer import Timer

__all__ = [
    "DEFAULT",
    "Aggregation",
    "Collector",
    "Counter",
    "CounterRegistry",
    "CounterSnapshot",
    "Observation",
    "Timer",
]
