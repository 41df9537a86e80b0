"""Reading records from bytes that may be torn, damaged or still being written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias
from zlib import crc32

from trackside.handlers.eventlog._damage import DAMAGED, TORN, Damage, unknown_version
from trackside.handlers.eventlog._records import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MAX_STORED_BYTES,
    SUMMED_BYTES,
    VERSION,
    Record,
    unstuff,
)
from trackside.handlers.eventlog._turns import Found, Turns

BLOCK_BYTES = 1 << 18
_LONG_BYTES = 256
_NOT_A_RECORD = 0
_CUT_SHORT = -1

ReadAt: TypeAlias = Callable[[int, int], bytes]
"""Return so many bytes from an offset on; fewer only where the file ends."""


class _Window:
    """One block of the file: all of it that is in memory."""

    __slots__ = ("_block_bytes", "_read_at", "block", "start")

    def __init__(self, read_at: ReadAt, block_bytes: int) -> None:
        self._read_at = read_at
        self._block_bytes = block_bytes
        self.block = b""
        self.start = 0

    def hold(self, offset: int, size: int) -> bool:
        """Have *size* bytes from *offset* on in the block; False if the file ends before, then all there are."""
        ahead = offset - self.start
        if ahead < 0 or ahead + size > len(self.block):
            self.block = b""  # first, so that two blocks are never in memory at once
            self.block = self._read_at(offset, max(size, self._block_bytes))
            self.start, ahead = offset, 0
        return ahead + size <= len(self.block)

    def forget(self) -> None:
        self.block = b""


class Scanner:
    """
    Finds every record of a file that is whole, and says which bytes it passed over.

    Memory is bounded by one block and one record. A record is yielded only if its checksum is right, and
    once. After damage the search goes on at the next place where a record can begin; a record holds the magic
    only at its start, so the time is in proportion to the bytes, whoever wrote them.
    """

    def __init__(self, read_at: ReadAt, *, block_bytes: int = BLOCK_BYTES, offset: int = 0) -> None:
        self._window = _Window(read_at, block_bytes)
        self._turns = Turns()
        self.offset = offset
        """Up to where the file has been read."""

    def scan(self) -> Iterator[Found]:
        """
        Yield what has been written since the last call, up to the last whole record.

        A tail that is no whole record yet is left for the next call, and so are bytes whose damage is not
        proven by a record after them: in a file that is being written they may still become one.
        """
        window = self._window
        window.forget()
        offset = self.offset
        while True:
            window.hold(offset, HEADER_BYTES)
            yield from self._follow(offset)
            offset = self.offset
            length = self._judge(offset)
            if length > 0:
                if (found := self._foreign(offset, length)) is not None:
                    self.offset = offset = offset + length
                    yield found
                continue
            found_at = self._search(offset + 1)
            if found_at is None:
                break
            self.offset = found_at
            yield Damage(offset, found_at - offset, DAMAGED)
            offset = found_at
        window.forget()
        yield from self._turns.release()

    def finish(self) -> Iterator[Found]:
        """Yield what `scan` left, now that nothing will be written any more."""
        window, start = self._window, self.offset
        reason = TORN if self._judge(start) == _CUT_SHORT else DAMAGED
        end = start
        while window.hold(end, 1):
            end = window.start + len(window.block)
        window.forget()
        if end > start:
            self.offset = end
            yield Damage(start, end - start, reason)

    def _follow(self, offset: int) -> Iterator[Found]:
        """Yield the records in the block that follow each other from *offset* on without a flaw."""
        block, start, turns = self._window.block, self._window.start, self._turns
        size, at, unpack = len(block), offset - self._window.start, HEADER.unpack_from
        while at + HEADER_BYTES <= size:
            magic, version, kind, stream, length, sequence, checksum = unpack(block, at)
            begin = at + HEADER_BYTES
            end = begin + length
            if magic != MAGIC or version != VERSION or end > size or length > MAX_STORED_BYTES:
                return
            # Without this a file of overlapping lengths would have every byte summed many times over.
            if length > _LONG_BYTES and block.find(MAGIC, begin, end) >= 0:
                return
            stored = block[begin:end]
            if crc32(stored, crc32(block[at : at + SUMMED_BYTES])) != checksum:
                return
            record = Record(kind, sequence, unstuff(stored), start + at, start + end, stream)
            self.offset = start + end
            if sequence == turns.due and stream == turns.stream:
                turns.due = sequence + 1
                yield record
            else:
                yield from turns.admit(record)
            at = end

    def _judge(self, offset: int) -> int:
        """Return the length of the record at *offset*; or that there is none, or that the file ends within it."""
        window = self._window
        if not window.hold(offset, HEADER_BYTES):
            rest = window.block[offset - window.start :]
            return _CUT_SHORT if rest and rest[:4] == MAGIC[: len(rest)] else _NOT_A_RECORD
        length: int
        magic, _, _, _, length, _, checksum = HEADER.unpack_from(window.block, offset - window.start)
        if magic != MAGIC or length > MAX_STORED_BYTES or self._has_magic(offset, length):
            return _NOT_A_RECORD
        whole = window.hold(offset, HEADER_BYTES + length)
        if self._has_magic(offset, length):
            return _NOT_A_RECORD
        if not whole:
            return _CUT_SHORT
        at = offset - window.start
        begin = at + HEADER_BYTES
        header = window.block[at : at + SUMMED_BYTES]
        if crc32(window.block[begin : begin + length], crc32(header)) != checksum:
            return _NOT_A_RECORD
        return HEADER_BYTES + length

    def _has_magic(self, offset: int, length: int) -> bool:
        """Return whether another record begins where the payload of one at *offset* would be."""
        window = self._window
        begin = offset - window.start + HEADER_BYTES
        return window.block.find(MAGIC, begin, begin + length) >= 0

    def _foreign(self, offset: int, length: int) -> Damage | None:
        """Return why the whole record at *offset* cannot be used, if it is of another version."""
        version: int = self._window.block[offset - self._window.start + len(MAGIC)]
        return None if version == VERSION else Damage(offset, length, unknown_version(version))

    def _search(self, offset: int) -> int | None:
        """Return where the first whole record at or after *offset* begins; None if the file has none."""
        window = self._window
        while window.hold(offset, HEADER_BYTES):
            found = window.block.find(MAGIC, offset - window.start)
            if found < 0:
                offset = max(offset + 1, window.start + len(window.block) - len(MAGIC) + 1)
                continue
            offset = window.start + found
            if self._judge(offset) > 0:
                return offset
            offset += 1
        return None
