"""
The bus: routes, subscribers, statistics, and the dispatcher behind the queue.

`log` delivers at once to plain callables, and queues the event for the dispatcher, which numbers it, encodes it once
and delivers it to models, sinks and frame sinks.
"""

from trackside.bus._bus import (
    Bus,
    Subscription,
    close,
    collect,
    counter,
    counters,
    default_bus,
    flush,
    gauge,
    log,
    stat,
    stats,
    subscribe,
    wants,
)
from trackside.bus._stats import BusStats, HandlerStats

__all__ = [
    "Bus",
    "BusStats",
    "HandlerStats",
    "Subscription",
    "close",
    "collect",
    "counter",
    "counters",
    "default_bus",
    "flush",
    "gauge",
    "log",
    "stat",
    "stats",
    "subscribe",
    "wants",
]
