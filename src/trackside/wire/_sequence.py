"""The numbers of a source's stream that were read, and those that are missing."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

import attrs

from trackside.events._errors import DecodeError
from trackside.events._event import Event
from trackside.wire._decoder import Frame

_MOST_RANGES = 65_536


class Ranges:
    """
    Whole numbers seen so far, as disjoint closed ranges.

    Memory is bounded: past 65,536 ranges the lowest hole is taken as seen.
    """

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def add(self, first: int, last: int) -> None:
        """Add *first* to *last*, both included."""
        firsts, lasts = self._firsts, self._lasts
        low = bisect_left(lasts, first - 1)
        high = bisect_right(firsts, last + 1)
        if low < high:
            first, last = min(first, firsts[low]), max(last, lasts[high - 1])
        firsts[low:high] = [first]
        lasts[low:high] = [last]
        if len(firsts) > _MOST_RANGES:
            del firsts[1], lasts[0]

    def __contains__(self, number: int) -> bool:
        i = bisect_left(self._lasts, number)
        return i < len(self._lasts) and self._firsts[i] <= number

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)


MAX_HOLES: Final = 1000
MAX_COUNT: Final = 1 << 62
"""The largest count or sequence number that is believed; sums saturate there."""


def count_of(value: object) -> int:
    """
    Return *value*, which came from elsewhere, if it is a count or a number of an event.

    Raises:
        DecodeError: It is none, or above `MAX_COUNT`.
    """
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise DecodeError(f"{value!r:.40} is no count")
    return value


@attrs.define
class SequenceTracker:
    """The numbers of a source that have been read. They begin at 0 and are dense, so a hole is a loss."""

    next_seq: int = 0
    missing: int = 0
    """Numbers below `next_seq` that no frame accounted for."""
    holes: list[tuple[int, int]] = attrs.field(factory=list)
    """The first thousand ranges of these, both ends included."""
    repeated: int = 0
    """Events passed over because they were read before, or came after later ones."""

    def admit(self, frame: Frame) -> list[Event]:
        """Return the events of *frame* that were not read before; these are nearly always all."""
        events = frame.events
        due = self.next_seq
        if frame.first_seq > due:
            self.missing += frame.first_seq - due
            if len(self.holes) < MAX_HOLES:
                self.holes.append((due, frame.first_seq - 1))
        elif frame.first_seq < due:
            events = [event for event in events if event.seq is not None and event.seq >= due]
            self.repeated += len(frame.events) - len(events)
        if frame.last_seq >= due:
            self.next_seq = frame.last_seq + 1
        return events
