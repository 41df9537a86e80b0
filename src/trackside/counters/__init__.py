"""
Counters, stats and gauges: values go in, windows come out.

An instrument only accumulates. Collectors decide when a window ends and which figures it has; one thread serves them
all.
"""

from trackside.counters._aggregation import Aggregation
from trackside.counters._instruments import Counter, CounterSnapshot, Gauge, Instrument, Stat, Timer
from trackside.counters._registry import CounterRegistry, Sampler
from trackside.counters._window_collector import CounterCollector

__all__ = [
    "Aggregation",
    "Counter",
    "CounterCollector",
    "CounterRegistry",
    "CounterSnapshot",
    "Gauge",
    "Instrument",
    "Sampler",
    "Stat",
    "Timer",
]
