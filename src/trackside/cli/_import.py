"""``trackside import``: other systems' records, as an event log that every command reads."""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trackside.bus import Bus
from trackside.cli._print import UNREADABLE, warn
from trackside.core.text import printable
from trackside.events import Event, Source, SourceEnded, SourceStarted, UnreadableError
from trackside.handlers import EventLog
from trackside.handlers.torchtitan import TitanFiles

_CHUNK: Final = 8_000
"""Events that the bus has room for, whatever their priority."""
_FLUSH_S: Final = 60.0

HELP = "make an event log of another system's records"
DESCRIPTION = "Make an event log of torchtitan's structured logs, so that every command can read them."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("path", metavar="PATH", nargs="+", help="a .jsonl file, or a directory with such at any depth")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="where the event log goes")
    parser.add_argument("--format", choices=["torchtitan"], default="torchtitan", help="whose records they are")


def run(options: argparse.Namespace) -> int:
    """Import, and report what was not read."""
    target = Path(options.output)
    if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
        raise UnreadableError(str(target), "exists and is not empty", "give another directory")
    files = TitanFiles(options.path)
    count = sources = 0
    for source, events in itertools.groupby(files, key=_source_of):
        count += _write(source, events, target)
        sources += 1
    for problem in files.problems:
        warn(f"trackside import: {problem}")
    if files.unpaired:
        warn(f"trackside import: {files.unpaired:,} record(s) of spans have no counterpart and were passed over")
    print(f"{files.records:,} records of {sources:,} process(es): {count:,} events in {printable(str(target))}")
    return UNREADABLE if files.problems else 0


def _source_of(event: Event) -> Source:
    return event.source


def _write(source: Source, events: Iterator[Event], target: Path) -> int:
    """Write the events of one process to a log of its own; return how many there were."""
    count = 0
    with Bus(source=source) as bus:
        bus.subscribe(EventLog(target, fsync_s=None))
        for event in events:
            if not isinstance(event, (SourceStarted, SourceEnded)):  # the bus writes its own
                bus.log(event)
                count += 1
                if count % _CHUNK == 0:
                    bus.flush(_FLUSH_S)
        bus.flush(_FLUSH_S)
    return count
