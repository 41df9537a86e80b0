"""Log files: find them, decode them record by record, and sort them by the source that wrote them."""

from __future__ import annotations

import importlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Final, TypeAlias

import attrs

from trackside._platform import READ, read_at
from trackside.events import DecodeError, Source, UnreadableError
from trackside.handlers.eventlog._format import (
    MAGIC,
    SUFFIX,
    VERSION,
    Ending,
    Header,
    Kind,
    Loss,
    Record,
    decode_ending,
    decode_header,
    decode_loss,
)
from trackside.handlers.eventlog._scanner import BLOCK_BYTES, TORN, Damage, Found, Scanner, undecodable
from trackside.wire import Frame, FrameDecoder

Item: TypeAlias = Frame | Header | Loss | Ending | Damage
"""An item of a file."""


class LogReader:
    """
    Reads one file; more of it with each `read`, while it is being written.

    No descriptor is held between blocks, so any number of files can be read side by side.

    Args:
        decoder: Shared by all files that are read together; it learns the sources from the headers.
        block_bytes: How much of the file to hold in memory.
        offset: The byte to begin at; the first item is then the first whole record from there on.
    """

    def __init__(self, path: Path, decoder: FrameDecoder, *, block_bytes: int = BLOCK_BYTES, offset: int = 0) -> None:
        self.path = path
        self._decoder = decoder
        self._scanner = Scanner(self._read_at, block_bytes=block_bytes, offset=offset)

    @property
    def offset(self) -> int:
        """The offset up to which the file has been read, in bytes."""
        return self._scanner.offset

    def read(self) -> Iterator[Item]:
        """
        Yield the items of the whole records that were written since the last call.

        Raises:
            UnreadableError: The file cannot be read, or no longer.
        """
        return self._decoded(self._scanner.scan())

    def finish(self) -> Iterator[Item]:
        """Yield the rest that `read` left; called when no more will be written."""
        return self._decoded(self._scanner.finish())

    def has_more(self) -> bool:
        """Return whether the file is longer than what was read of it."""
        try:
            return self.path.stat().st_size > self._scanner.offset
        except OSError:
            return False

    def start(self) -> bytes:
        """Return the file's first bytes, as many as a record's magic and version take."""
        return self._read_at(0, len(MAGIC) + 1)

    def _decoded(self, found: Iterator[Found]) -> Iterator[Item]:
        decode = self._decoder.decode
        for record in found:
            if isinstance(record, Damage):
                yield record
                continue
            try:
                if record.kind == Kind.FRAME:
                    yield decode(record.payload)
                elif (item := self._entry(record)) is not None:
                    yield item
            except DecodeError as error:
                yield Damage(record.offset, record.end - record.offset, undecodable(str(error)))

    def _entry(self, record: Record) -> Item | None:
        if record.kind == Kind.HEADER:
            header = decode_header(record.payload)
            self._decoder.introduce(header.source)
            return header
        if record.kind == Kind.GAP:
            return decode_loss(record.payload)
        if record.kind == Kind.END:
            return decode_ending(record.payload)
        raise DecodeError(f"a record of kind {record.kind}")

    def _read_at(self, offset: int, size: int) -> bytes:
        try:
            fd = os.open(self.path, READ)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise UnreadableError(str(self.path), "is no regular file", "give a file that an EventLog wrote")
                # Allocating a whole block would take much of the time if there are thousands of small files.
                size = min(size, max(0, status.st_size - offset))
                data = read_at(fd, size, offset) if size else b""
                while len(data) < size and (more := read_at(fd, size - len(data), offset + len(data))):
                    data += more
                return data
            finally:
                os.close(fd)
        except OSError as error:
            raise UnreadableError(str(self.path), str(error.strerror), "see that it can be read") from error


_PEEK_BYTES = 4096


@attrs.frozen
class LogFile:
    """A log file and the source that wrote it."""

    path: Path
    source: Source | None = None
    """None if the file holds nothing yet."""


def find_files(paths: Iterable[str | os.PathLike[str]]) -> tuple[list[Path], list[UnreadableError]]:
    """
    Return every log file that *paths* name or contain, each once and in order, and the errors of what cannot be read.

    A directory is searched at any depth for ``*.tslog``; a file may have any name. If a path is a stream
    (``nats://…``), the messages since the last time are copied into a directory of this process.
    """
    found: dict[str, Path] = {}
    problems: list[UnreadableError] = []
    for given in paths:
        try:
            path = _copied(str(given), problems) if is_stream(given) else Path(given)
        except UnreadableError as problem:
            problems.append(problem)
            continue
        below: list[Path] = []
        if os.path.isdir(path):  # noqa: PTH112  it answers where Path.is_dir may raise
            below = _find_below(path, problems)
            if not below:
                what = "holds no events yet" if is_stream(given) else f"holds no {SUFFIX} file"
                problems.append(UnreadableError(str(given), what, "give a directory of event logs"))
        elif os.path.exists(path):  # noqa: PTH110  as above
            below = [path]
        else:
            problems.append(UnreadableError(str(path), "does not exist", f"give a {SUFFIX} file or a directory"))
        for file in below:
            found.setdefault(os.path.realpath(file), file)
    return list(found.values()), problems


def _copied(address: str, problems: list[UnreadableError]) -> Path:
    copy = stream_module().copied(address)
    if copy.unreadable:
        what = f"{copy.unreadable:,} message(s) of this stream are no frames"
        problems.append(UnreadableError(address, what, "see who else publishes there"))
    return Path(copy.directory)


def _find_below(directory: Path, problems: list[UnreadableError]) -> list[Path]:
    def note(error: OSError) -> None:
        if isinstance(error, FileNotFoundError) and error.filename != os.fspath(directory):
            return  # it was removed since its name was read, so it holds nothing that could be missed
        problems.append(UnreadableError(str(error.filename), str(error.strerror), "see that it can be read"))

    return sorted(
        Path(at, name) for at, _, names in os.walk(directory, onerror=note) for name in names if name.endswith(SUFFIX)
    )


def identify(path: Path, decoder: FrameDecoder) -> LogFile:
    """
    Read *path* until it names its source.

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
            # The file is a piece of another one: read to the next header, so that events have their whole source.
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
    """Return the *files* of one source in the order of their events, whatever their names are."""
    if len(files) == 1:
        return list(files)
    return sorted(files, key=lambda file: (_first_seq(file.path, decoder), str(file.path)))


def _first_seq(path: Path, decoder: FrameDecoder) -> int:
    try:
        return next((item.first_seq for item in LogReader(path, decoder).read() if isinstance(item, Frame)), -1)
    except UnreadableError:  # reported when the file is read
        return -1


def _stranger(path: Path, reader: LogReader) -> UnreadableError:
    start = reader.start()
    if start.startswith(MAGIC) and start[len(MAGIC)] != VERSION:
        version = start[len(MAGIC)]
        remedy = "use a newer one" if version > VERSION else "read it with the release that wrote it"
        what = f"is an event log of version {version}"
        return UnreadableError(str(path), what, f"this release reads version {VERSION}; {remedy}")
    if start and not any(start):
        what = "begins with zeros, as a file may after a loss of power"
        return UnreadableError(str(path), what, "the other files are read; delete it if it holds nothing else")
    return UnreadableError(str(path), "is no event log", f"give a {SUFFIX} file or a directory")


_MEMORY_BYTES = 32 << 20
_LEAST_BLOCK_BYTES = 4096


def source_files(paths: Iterable[Path], decoder: FrameDecoder, problems: list[UnreadableError]) -> list[list[LogFile]]:
    """
    Return the files that can be read, by source and in order; add the errors of the others to *problems*.

    All files of a source get the source of the last one: a job may learn only later what it is part of.
    """
    strands: dict[str, list[LogFile]] = {}
    for path in paths:
        try:
            file = identify(path, decoder)
        except UnreadableError as problem:
            problems.append(problem)
        else:
            strands.setdefault(file.source.id if file.source else str(path), []).append(file)
    return [_of_one_source(in_order(strands[name], decoder)) for name in sorted(strands)]


def _of_one_source(files: list[LogFile]) -> list[LogFile]:
    latest = files[-1].source
    return files if all(file.source == latest for file in files) else [LogFile(file.path, latest) for file in files]


def block_bytes(files: int) -> int:
    """Return how many bytes of each of so many *files* may be in memory."""
    return min(max(_MEMORY_BYTES // max(files, 1), _LEAST_BLOCK_BYTES), BLOCK_BYTES)


_SCHEMES: Final = ("nats://", "tls://")


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Return whether *path* is the address of a stream that can be read like a log."""
    return isinstance(path, str) and path.startswith(_SCHEMES)


def stream_module() -> ModuleType:
    """
    Return the module that reads and writes streams. It needs an extra, so it is imported only on request.

    Raises:
        MissingExtraError: The library that it needs is not installed.
    """
    return importlib.import_module("trackside.handlers.nats")
