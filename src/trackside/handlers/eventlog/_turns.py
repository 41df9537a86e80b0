"""Which records of a file are in their turn: not read before, and not copied here from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import attrs

from trackside.handlers.eventlog._damage import DUPLICATE, MISPLACED, Damage
from trackside.handlers.eventlog._ranges import Ranges
from trackside.handlers.eventlog._records import Record

_HELD_BYTES = 1 << 20
_HELD_RECORDS = 8192
_MOST_STREAMS = 4096
_NEVER = -1

Found: TypeAlias = Record | Damage


@attrs.define
class _Stream:
    """What was read of one writer's records."""

    seen: Ranges = attrs.field(factory=Ranges)
    next: int = _NEVER
    """The number that is due; `_NEVER` before the first record."""


class Turns:
    """
    Tells records in their turn from copies of a block.

    Sequence numbers have no holes. A record that is ahead of its turn follows either damage, or a cut, or it
    is part of a block that was copied to the wrong place. It is held back until a lower number follows,
    which shows that it is a copy, or a megabyte does without one.

    The scanner keeps `due` itself while records follow each other, which is nearly always; every other
    record goes through `admit`.
    """

    __slots__ = ("_held", "_held_bytes", "_run_first", "_streams", "due", "stream")

    def __init__(self) -> None:
        self.stream = -1
        self.due = _NEVER
        """The only number that need not be asked about; `_NEVER` if each must be."""
        self._run_first = 0
        self._streams: dict[int, _Stream] = {}
        self._held: dict[int, Record] = {}
        self._held_bytes = 0

    def admit(self, record: Record) -> Iterator[Found]:
        """Yield what *record* lets be known: itself, that it is out of place, or what it proves of the held ones."""
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
        """Yield the held records, of which nothing has shown that they are out of place."""
        state = self._settle()
        held, self._held, self._held_bytes = self._held, {}, 0
        for record in held.values():
            yield self._accept(state, record)
        self.due = state.next

    def _expose(self, number: int) -> Iterator[Damage]:
        """Yield as misplaced what is held of higher numbers than *number*, which comes after it."""
        while self._held and next(reversed(self._held)) > number:
            _, record = self._held.popitem()
            self._held_bytes -= record.end - record.offset
            yield Damage(record.offset, record.end - record.offset, MISPLACED)

    def _accept(self, state: _Stream, record: Record) -> Record:
        state.seen.add(record.sequence, record.sequence)
        state.next = self._run_first = record.sequence + 1
        return record

    def _settle(self) -> _Stream:
        """Note the records that the scanner passed without asking."""
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
