"""
The event log: a job's events in files that survive whatever happens to the job.

`EventLog` writes them; `replay`, `follow` and `check_logs` read them. Any sink can write files with `Appender`.
"""

from trackside.handlers.eventlog._appender import Appender, Vanished, WriteOutcome, create_file
from trackside.handlers.eventlog._format import Loss
from trackside.handlers.eventlog._overview import (
    MOST_ENDS,
    UNWRITTEN_S,
    FileCheck,
    LogCheck,
    LogOutline,
    SourceCheck,
    SourceOutline,
    check_logs,
    outline,
    unwritten_steps,
)
from trackside.handlers.eventlog._reader import is_stream, stream_module
from trackside.handlers.eventlog._replay import Replay, feed, follow, replay
from trackside.handlers.eventlog._scanner import Damage
from trackside.handlers.eventlog._writer import EventLog

__all__ = [
    "MOST_ENDS",
    "UNWRITTEN_S",
    "Appender",
    "Damage",
    "EventLog",
    "FileCheck",
    "LogCheck",
    "LogOutline",
    "Loss",
    "Replay",
    "SourceCheck",
    "SourceOutline",
    "Vanished",
    "WriteOutcome",
    "check_logs",
    "create_file",
    "feed",
    "follow",
    "is_stream",
    "outline",
    "replay",
    "stream_module",
    "unwritten_steps",
]
