"""
Handlers, which subscribe to events: the event log, sinks and models.

No module here imports the bus; a handler that publishes events is given a ``publish``.
"""

from trackside.handlers._capture import Capture
from trackside.handlers.eventlog import EventLog, LogCheck, Replay, check_logs, feed, follow, replay
from trackside.handlers.jsonl import JsonlSink

__all__ = [
    "Capture",
    "EventLog",
    "JsonlSink",
    "LogCheck",
    "Replay",
    "check_logs",
    "feed",
    "follow",
    "replay",
]
