"""``trackside import``: other systems' records, as an event log that every command reads."""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trackside.cli._print import UNREADABLE, warn
from trackside.core.text import printable
from trackside.events import Event, Source, SourceEnded, SourceStarted, UnreadableError
from trackside.handlers import EventLog
from trackside.handlers.torchtitan import TitanFiles
from trackside.wire import RowEncoder, encode_frame

_FRAME_BYTES: Final = 256 << 10
"""The size at which a frame is cut: with another row it is still smaller than the largest one that readers accept."""
_ROW_EXTRA_BYTES: Final = 16
"""Added for each row, so that a frame has fewer rows than readers accept."""
_FLUSH_S: Final = 60.0

HELP = "make an event log of another system's records"
DESCRIPTION = "Make an event log of torchtitan's structured logs, so that every command can read them."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("path", metavar="PATH", nargs="+", help="a .jsonl file, or a directory with such at any depth")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="where the event log goes")
    parser.add_argument("--format", choices=["torchtitan"], default="torchtitan", help="whose records they are")


def run(options: argparse.Namespace) -> int:
    """Import the records, and report those that were not read; return 2 if part of the input could not be read."""
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
    if not sources:
        if not files.problems:
            remedy = "give the files of its structured_logs directory"
            raise UnreadableError(" ".join(options.path), "holds no record of torchtitan's", remedy)
        return UNREADABLE
    print(f"{files.records:,} records of {sources:,} process(es): {count:,} events in {printable(str(target))}")
    return UNREADABLE if files.problems else 0


def _source_of(event: Event) -> Source:
    return event.source


def _write(source: Source, events: Iterator[Event], target: Path) -> int:
    """
    Write the events of one process to a log of its own; return how many there were, besides its start and its end.

    It uses no bus, because a bus would begin and end the stream now, and not when the process did.
    """
    log, encoder, count, first_seq = EventLog(target, fsync_s=None), RowEncoder(), 0, 0
    log.open(source)
    rows: list[bytes] = []
    schemas: dict[int, Any] = {}

    def cut() -> None:
        nonlocal first_seq
        last_seq = first_seq + len(rows) - 1
        frame = encode_frame(source.id, first_seq, last_seq, dropped={}, schemas=schemas.values(), rows=rows)
        log.accept(frame, events=len(rows))
        log.flush(_FLUSH_S)
        first_seq = last_seq + 1
        rows.clear()
        schemas.clear()

    size_bytes = 0
    for event in events:
        schema, row = encoder.encode(event, len(rows))
        schemas[schema.number] = schema.entry
        rows.append(row)
        size_bytes += len(row) + _ROW_EXTRA_BYTES
        count += not isinstance(event, (SourceStarted, SourceEnded))
        if size_bytes >= _FRAME_BYTES:
            cut()
            size_bytes = 0
    cut()
    log.close(_FLUSH_S)
    return count
