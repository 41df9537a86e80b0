"""
The event log: a job's events in files that survive whatever happens to the job.

`EventLog` writes them; `replay`, `follow` and `inspect` read them. `Appender` is how any sink writes a file.
"""

from trackside.handlers.eventlog._appender import Appender, Outcome, Vanished, create_file
from trackside.handlers.eventlog._damage import Damage
from trackside.handlers.eventlog._entries import Loss
from trackside.handlers.eventlog._follow import follow
from trackside.handlers.eventlog._outline import LogOutline, SourceOutline, outline
from trackside.handlers.eventlog._replay import Replay, feed, replay
from trackside.handlers.eventlog._report import FileReport, LogReport, SourceReport, inspect
from trackside.handlers.eventlog._writer import EventLog

__all__ = [
    "Appender",
    "Damage",
    "EventLog",
    "FileReport",
    "LogOutline",
    "LogReport",
    "Loss",
    "Outcome",
    "Replay",
    "SourceOutline",
    "SourceReport",
    "Vanished",
    "create_file",
    "feed",
    "follow",
    "inspect",
    "outline",
    "replay",
]
