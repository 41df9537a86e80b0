"""
Reading of records from bytes that may be torn, damaged, duplicated or still being written.

The scanner finds whole records, the duplicate filter skips copies of them, and a `Damage` is a range of bytes that
could not be used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias
from zlib import crc32

import attrs

from trackside.handlers.eventlog._format import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MAX_STORED_BYTES,
    SUMMED_BYTES,
    VERSION,
    Record,
    unstuff,
)
from trackside.wire import Ranges

TORN = "torn tail"
"""The file ends within a record: its writer was killed, or is still writing."""
DAMAGED = "damaged"
"""Bytes that are no record."""
DUPLICATE = "duplicate"
"""A record that was read before."""
OUT_OF_ORDER = "out of order"
"""A copy of a record whose original comes later in the file."""


class Damage(NamedTuple):
    """Bytes of a file that were passed over."""

    offset: int
    length_bytes: int
    reason: str

    def __str__(self) -> str:
        return f"bytes {self.offset}-{self.offset + self.length_bytes - 1}: {self.reason}"


def unknown_version(version: int) -> str:
    """Return the reason for passing over a record of another *version*."""
    return f"unknown version {version}"


def joined(first: Damage, second: Damage) -> Damage | None:
    """Return both as one if *second* starts where *first* ends and has the same reason; else None."""
    if first.reason == second.reason and first.offset + first.length_bytes == second.offset:
        return Damage(first.offset, first.length_bytes + second.length_bytes, first.reason)
    return None


def undecodable(problem: str) -> str:
    """Return the reason for passing over a whole record whose payload cannot be decoded."""
    return f"undecodable: {problem}"


_HELD_BYTES = 1 << 20
_HELD_RECORDS = 8192
_MOST_STREAMS = 4096
_NEVER = -1

Found: TypeAlias = Record | Damage


@attrs.define
class _Stream:
    """The sequence numbers read from one writer."""

    seen: Ranges = attrs.field(factory=Ranges)
    next: int = _NEVER
    """The number that is due; `_NEVER` before the first record."""


class DuplicateFilter:
    """
    Passes over records that are copies, and yields each record once.

    Sequence numbers have no holes. A record with a higher number than expected follows damage or a cut, or it is in a
    block that was copied to the wrong place. The filter holds it back. If a lower number follows, the record is a copy;
    if none follows within 1 MiB or 8,192 records, it is accepted.

    While records follow each other, which is nearly always, the scanner advances `due` itself; every other record goes
    through `admit`.
    """

    __slots__ = ("_held", "_held_bytes", "_run_first", "_streams", "due", "stream")

    def __init__(self) -> None:
        self.stream = -1
        self.due = _NEVER
        """The only number that the scanner may accept without `admit`; `_NEVER` if there is none."""
        self._run_first = 0
        self._streams: dict[int, _Stream] = {}
        self._held: dict[int, Record] = {}
        self._held_bytes = 0

    def admit(self, record: Record) -> Iterator[Found]:
        """Yield *record*, or damage if it is a duplicate, and the held records that it decides."""
        if record.stream != self.stream:
            yield from self.release()
            self._turn_to(record.stream)
        state = self._settle()
        number = record.sequence
        if number in self._held or number in state.seen:
            yield Damage(record.offset, record.end - record.offset, DUPLICATE)
        elif number < state.next:
            state.seen.add(number, number)
            yield record
        else:
            yield from self._expose(number)
            is_first = state.next == _NEVER and record.offset == 0
            if not self._held and (is_first or number == state.next):
                yield self._accept(state, record)
            else:
                self._held[number] = record
                self._held_bytes += record.end - record.offset
                if self._held_bytes > _HELD_BYTES or len(self._held) > _HELD_RECORDS:
                    yield from self.release()
        self.due = _NEVER if self._held else state.next

    def release(self) -> Iterator[Found]:
        """Yield the held records as accepted: no lower number has shown them to be copies."""
        state = self._settle()
        held, self._held, self._held_bytes = self._held, {}, 0
        for record in held.values():
            yield self._accept(state, record)
        self.due = state.next

    def _expose(self, number: int) -> Iterator[Damage]:
        """Yield as out of order the held records that have higher numbers than *number*, which follows them."""
        while self._held and next(reversed(self._held)) > number:
            _, record = self._held.popitem()
            self._held_bytes -= record.end - record.offset
            yield Damage(record.offset, record.end - record.offset, OUT_OF_ORDER)

    def _accept(self, state: _Stream, record: Record) -> Record:
        state.seen.add(record.sequence, record.sequence)
        state.next = self._run_first = record.sequence + 1
        return record

    def _settle(self) -> _Stream:
        """Note the records that the scanner accepted without `admit`."""
        state = self._streams.setdefault(self.stream, _Stream())
        if self.due > self._run_first:
            state.seen.add(self._run_first, self.due - 1)
            state.next = self._run_first = self.due
        return state

    def _turn_to(self, stream: int) -> None:
        state = self._streams.setdefault(stream, _Stream())
        if len(self._streams) > _MOST_STREAMS:
            del self._streams[next(iter(self._streams))]
        self.stream, self.due = stream, state.next
        self._run_first = max(state.next, 0)


BLOCK_BYTES = 1 << 18
_LONG_BYTES = 256
_NOT_A_RECORD = 0
_CUT_SHORT = -1

ReadAt: TypeAlias = Callable[[int, int], bytes]
"""Return the bytes at an offset, as many as the second argument says; fewer only at the end of the file."""


class _ReadWindow:
    """The one block of the file that is in memory."""

    __slots__ = ("_block_bytes", "_read_at", "block", "start")

    def __init__(self, read_at: ReadAt, block_bytes: int) -> None:
        self._read_at = read_at
        self._block_bytes = block_bytes
        self.block = b""
        self.start = 0

    def hold(self, offset: int, size: int) -> bool:
        """Load *size* bytes from *offset* on into the block; return False if the file ends before."""
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
    Finds every whole record of a file, and reports the bytes that it passed over.

    Memory is bounded by one block and one record. A record is yielded once, and only if its
    checksum is right. After damage the search continues at the next place where a record can begin. A record holds the
    magic only at its start, so the time is in proportion to the bytes, even in a hostile file.
    """

    def __init__(self, read_at: ReadAt, *, block_bytes: int = BLOCK_BYTES, offset: int = 0) -> None:
        self._window = _ReadWindow(read_at, block_bytes)
        self._turns = DuplicateFilter()
        self.offset = offset
        """The offset up to which the file has been read, in bytes."""

    def scan(self) -> Iterator[Found]:
        """
        Yield the records and the damage since the last call, up to the last whole record.

        The bytes after the last whole record are left for the next call: in a file that is being written they may
        still become a record.
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
        """Yield the bytes that `scan` left, as damage: nothing will be written any more."""
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
            # Without this check every byte of a file with overlapping lengths would be summed many times.
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
        """Return the length of the record at *offset*; else `_NOT_A_RECORD`, or `_CUT_SHORT` if the file ends in it."""
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
        """Return the offset of the first whole record at or after *offset*; None if the file has none."""
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
