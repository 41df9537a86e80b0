"""
The road: who gets what, and when.

The bus with its routes, rules and counters, and the porter behind the queue. Imports only `trackside.events`.
"""

from trackside.bus._bus import Bus
from trackside.bus._default import (
    close,
    collect,
    counter,
    counters,
    default_bus,
    flush,
    log,
    observe,
    stats,
    subscribe,
    wants,
)
from trackside.bus._names import only_spans, without_spans
from trackside.bus._rules import (
    Rule,
    all_of,
    any_of,
    at_most,
    every,
    fraction,
    rule_from_wire,
    where,
)
from trackside.bus._stats import BusStats, HandlerStats
from trackside.bus._subscription import Subscription
from trackside.bus.counters import Aggregation, Collector, Counter, CounterRegistry, Observation, Timer

__all__ = [
    "Aggregation",
    "Bus",
    "BusStats",
    "Collector",
    "Counter",
    "CounterRegistry",
    "HandlerStats",
    "Observation",
    "Rule",
    "Subscription",
    "Timer",
    "all_of",
    "any_of",
    "at_most",
    "close",
    "collect",
    "counter",
    "counters",
    "default_bus",
    "every",
    "flush",
    "fraction",
    "log",
    "observe",
    "only_spans",
    "rule_from_wire",
    "stats",
    "subscribe",
    "wants",
    "where",
    "without_spans",
]
