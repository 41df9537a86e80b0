"""One log file, record by record, decoded."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from trackside.events import DecodeError, Frame, FrameDecoder, UnreadableError
from trackside.handlers.eventlog._damage import Damage, undecodable
from trackside.handlers.eventlog._entries import Ending, Header, Loss, decode_ending, decode_header, decode_loss
from trackside.handlers.eventlog._records import MAGIC, Kind, Record
from trackside.handlers.eventlog._scanner import BLOCK_BYTES, Scanner
from trackside.handlers.eventlog._turns import Found

Item: TypeAlias = Frame | Header | Loss | Ending | Damage
"""What a file holds."""


class LogReader:
    """
    Reads one file; more of it with each `read`, while it is being written.

    No descriptor is held between blocks, so any number of files can be read side by side.

    Args:
        decoder: Shared by all files that are read together; it learns from headers who the sources are.
        block_bytes: How much of the file to hold in memory.
        offset: Where to begin; the first thing to come is then the first whole record from there on.
    """

    def __init__(self, path: Path, decoder: FrameDecoder, *, block_bytes: int = BLOCK_BYTES, offset: int = 0) -> None:
        self.path = path
        self._decoder = decoder
        self._scanner = Scanner(self._read_at, block_bytes=block_bytes, offset=offset)

    @property
    def offset(self) -> int:
        """Up to where the file has been read, in bytes."""
        return self._scanner.offset

    def read(self) -> Iterator[Item]:
        """
        Yield what whole records hold that were written since the last call.

        Raises:
            UnreadableError: The file cannot be read, or no more.
        """
        return self._decoded(self._scanner.scan())

    def finish(self) -> Iterator[Item]:
        """Yield what `read` left in the hope of more, now that there will be none."""
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
            # Not blocking: a named pipe would wait for a writer.
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise UnreadableError(str(self.path), "is no regular file", "give a file that an EventLog wrote")
                # No room for more than there is: of thousands of small files, that alone would take much of the time.
                size = min(size, max(0, status.st_size - offset))
                data = os.pread(fd, size, offset) if size else b""
                while len(data) < size and (more := os.pread(fd, size - len(data), offset + len(data))):
                    data += more
                return data
            finally:
                os.close(fd)
        except OSError as error:
            raise UnreadableError(str(self.path), str(error.strerror), "see that it can be read") from error
