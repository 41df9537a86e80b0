"""``trackside export``: logs in another format."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import IO, Final

from trackside.cli._print import add_paths, readable, report_unread
from trackside.cli._serving import collecting_rarely
from trackside.core.text import printable
from trackside.events import UnreadableError
from trackside.handlers import Replay, replay
from trackside.wire import to_json

_PROGRESS_EVERY: Final = 100_000

HELP = "write logs in another format"
DESCRIPTION = "Write the events of logs in another format."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_paths(parser)
    formats = parser.add_mutually_exclusive_group(required=True)
    formats.add_argument(
        "--jsonl",
        metavar="FILE",
        help="write JSON, one object a line, all sources merged by time, to FILE; '-' for standard output",
    )
    formats.add_argument(
        "--parquet",
        metavar="DIR",
        help="write Parquet, a table for each type of event, parted by session, attempt and rank, below DIR",
    )
    parser.add_argument("--force", action="store_true", help="replace FILE, or an export in DIR, if it exists")


def run(options: argparse.Namespace) -> int:
    """Export; the result gets its name only when it is whole."""
    if options.parquet is not None:
        return _export_parquet(options)
    if options.jsonl == "-":
        recorded = replay(*options.path)
        _write(recorded, sys.stdout)
        return report_unread("export", recorded)
    target = Path(options.jsonl)
    if os.path.lexists(target) and not options.force:
        raise UnreadableError(str(target), "exists", "give another name, or --force")
    recorded = replay(*options.path)
    try:
        count = _write_whole(recorded, target)
    except OSError as error:
        raise _refused(target, error) from error
    return _print_result(recorded, count, target)


def _print_result(recorded: Replay, count: int, target: Path) -> int:
    if count or not recorded.problems:
        print(f"{count:,} events to {printable(str(target))}")
    return report_unread("export", recorded)


def _refused(target: Path, error: OSError) -> UnreadableError:
    return UnreadableError(str(target), f"cannot be written: {error.strerror or error}", "give another place")


def _export_parquet(options: argparse.Namespace) -> int:
    from trackside.handlers.parquet import SOURCES, ParquetFiles

    target = Path(options.parquet)
    if os.path.lexists(target):
        is_ours = (target / SOURCES).is_dir()
        if not target.is_dir() or (not is_ours and any(target.iterdir())):
            raise UnreadableError(str(target), "exists and is no export to Parquet", "give another directory")
        if is_ours and not options.force:
            raise UnreadableError(str(target), "exists", "give another name, or --force")
    recorded = replay(*options.path)
    try:
        with tempfile.TemporaryDirectory(prefix=f"{target.name}.", suffix=".part", dir=target.parent) as directory:
            files = ParquetFiles(Path(directory, "new"))
            files.directory.mkdir(mode=0o700)
            with collecting_rarely():
                for _, frames in recorded.by_source():
                    for view in frames:
                        files.add(view.events)
                        _show_progress(files.events, len(view))
            files.close()
            if files.events or not recorded.problems:
                if os.path.lexists(target):
                    target.rename(Path(directory, "old"))
                files.directory.rename(target)
    except OSError as error:
        raise _refused(target, error) from error
    _end_progress(files.events)
    return _print_result(recorded, files.events, target)


def _write_whole(recorded: Replay, target: Path) -> int:
    """Write to a file beside *target* and rename it to *target* at the end; return the number of events."""
    fd, name = tempfile.mkstemp(prefix=f"{target.name}.", suffix=".part", dir=target.parent)
    part = Path(name)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            count = _write(recorded, file)
        if count or not recorded.problems:
            part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return count


def _write(recorded: Replay, file: IO[str]) -> int:
    """Write all events that can be read; return how many."""
    count = 0
    for event in readable(recorded):
        file.write(to_json(event) + "\n")
        count += 1
        if count % _PROGRESS_EVERY == 0:
            _show_progress(count, 1)
    _end_progress(count)
    return count


def _show_progress(count: int, added: int) -> None:
    """Print the number of written events to a terminal, if the last *added* ones completed another hundred thousand."""
    if count % _PROGRESS_EVERY < added and sys.stderr.isatty():
        print(f"\r{count:,} events", end="", file=sys.stderr, flush=True)


def _end_progress(count: int) -> None:
    if count >= _PROGRESS_EVERY and sys.stderr.isatty():
        print(file=sys.stderr)
