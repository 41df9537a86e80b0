"""Which files there are to read, and whose they are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import attrs

from trackside.events import Frame, FrameDecoder, Source, UnreadableError
from trackside.handlers.eventlog._damage import TORN, Damage
from trackside.handlers.eventlog._entries import Header
from trackside.handlers.eventlog._reader import LogReader
from trackside.handlers.eventlog._records import MAGIC, SUFFIX, VERSION

_PEEK_BYTES = 4096


@attrs.frozen
class LogFile:
    """A file and whose it is."""

    path: Path
    source: Source | None = None
    """Whose it is; None if it holds nothing yet."""


def find_files(paths: Iterable[str | os.PathLike[str]]) -> tuple[list[Path], list[UnreadableError]]:
    """
    Return every log file that *paths* name or contain, each once and in order, and what cannot be read.

    A directory is searched with all below it for ``*.tslog``; a file is taken whatever its name is.
    """
    found: dict[str, Path] = {}
    problems: list[UnreadableError] = []
    for path in map(Path, paths):
        below: list[Path] = []
        if os.path.isdir(path):  # noqa: PTH112  it answers where Path.is_dir may raise
            below = _find_below(path, problems)
            if not below:
                problems.append(UnreadableError(str(path), f"holds no {SUFFIX} file", "give a directory of event logs"))
        elif os.path.exists(path):  # noqa: PTH110  as above
            below = [path]
        else:
            problems.append(UnreadableError(str(path), "does not exist", f"give a {SUFFIX} file or a directory"))
        for file in below:
            found.setdefault(os.path.realpath(file), file)
    return list(found.values()), problems


def _find_below(directory: Path, problems: list[UnreadableError]) -> list[Path]:
    def note(error: OSError) -> None:
        problems.append(UnreadableError(str(error.filename), str(error.strerror), "see that it can be read"))

    return sorted(
        Path(at, name) for at, _, names in os.walk(directory, onerror=note) for name in names if name.endswith(SUFFIX)
    )


def identify(path: Path, decoder: FrameDecoder) -> LogFile:
    """
    Read as much of *path* as says whose it is.

    Raises:
        UnreadableError: It cannot be read, is no event log, or is of a version that this release does not know.
    """
    reader = LogReader(path, decoder, block_bytes=_PEEK_BYTES)
    first: Damage | None = None
    file: LogFile | None = None
    is_empty = True
    for item in chain(reader.read(), reader.finish()):
        if isinstance(item, Header):
            return file or LogFile(path, item.source)
        if isinstance(item, Frame):
            file = file or LogFile(path, item.source)
            if item.source != Source.unknown(item.source.id):
                return file
            # The file is a piece of another: go on to the next header, so that events carry who they are from.
        elif isinstance(item, Damage):
            first = first or item
        else:
            is_empty = False
    if file is not None:
        return file
    if first is not None and first.reason != TORN and is_empty:
        raise _stranger(path, reader)
    return LogFile(path)


def in_order(files: Sequence[LogFile], decoder: FrameDecoder) -> list[LogFile]:
    """Return the *files* of one source in the order of what they hold, whatever they are called."""
    if len(files) == 1:
        return list(files)
    return sorted(files, key=lambda file: (_first_seq(file.path, decoder), str(file.path)))


def _first_seq(path: Path, decoder: FrameDecoder) -> int:
    try:
        return next((item.first_seq for item in LogReader(path, decoder).read() if isinstance(item, Frame)), -1)
    except UnreadableError:  # said again when it is read
        return -1


def _stranger(path: Path, reader: LogReader) -> UnreadableError:
    start = reader.start()
    if start.startswith(MAGIC) and start[len(MAGIC)] != VERSION:
        what = f"is an event log of version {start[len(MAGIC)]}"
        return UnreadableError(str(path), what, f"this release reads version {VERSION}; use a newer one")
    return UnreadableError(str(path), "is no event log", f"give a {SUFFIX} file or a directory")
