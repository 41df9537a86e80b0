"""
The way out: what subscribes.

The event log, sinks and models. Imports only `trackside.events`; a handler that emits is given a ``publish``.
"""

from trackside.handlers._capture import Capture
from trackside.handlers.eventlog import EventLog, LogReport, Replay, feed, follow, inspect, replay
from trackside.handlers.jsonl import JsonlSink

__all__ = [
    "Capture",
    "EventLog",
    "JsonlSink",
    "LogReport",
    "Replay",
    "feed",
    "follow",
    "inspect",
    "replay",
]
