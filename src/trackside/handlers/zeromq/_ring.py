"""The latest entries of a stream: those not yet sent, and those that may be asked for again."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import islice, takewhile
from typing import Final, NamedTuple

RING_BYTES: Final = 8 << 20
RING_S: Final = 30.0
_ENTRY_EXTRA_BYTES: Final = 256
"""What an entry takes besides its frame, about."""
_LATEST: Final = 1 / 8
"""Of the budget: where a viewer that was too slow goes on. It has read this before much more has come."""


class LostRange(NamedTuple):
    """Events of one source that did not get here."""

    source_id: str
    first_seq: int
    last_seq: int
    reason: str


class Entry(NamedTuple):
    """One entry of a stream."""

    place: int
    """Its index."""
    before: int
    """Events in all entries before it."""
    events: int
    content: bytes | LostRange
    """A frame, or what is missing."""
    offset_bytes: int
    """Bytes in all entries before it."""
    at_s: float


class RingBudget:
    """
    The bytes that all rings of one source end share, and the lock that guards them.

    Args:
        most_bytes: When more is kept, the oldest entries of the largest ring go.
        most_s: Older entries go too, when something new comes.
        monotonic_s: The clock; for tests.
    """

    def __init__(
        self,
        most_bytes: int = RING_BYTES,
        most_s: float = RING_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most_bytes = most_bytes
        self.most_s = most_s
        self.now = monotonic_s
        self.lock = threading.Lock()
        self.size_bytes = 0
        self.rings: list[Ring] = []

    def trim(self) -> None:
        """Let the oldest entries go that are one too many; the caller holds the lock."""
        while self.size_bytes > self.most_bytes:
            max(self.rings, key=lambda ring: ring.size_bytes).drop()


class Ring:
    """
    The latest entries of one stream, numbered from 0 without a hole.

    One thread appends, another reads; neither waits for anything but the other's few steps under the lock.
    """

    def __init__(self, room: RingBudget) -> None:
        self.id = os.urandom(8).hex()
        self.next_index = 0
        self.before = 0
        """Events in all entries so far."""
        self.size_bytes = 0
        self._room = room
        self._entries: deque[Entry] = deque()
        self._offset_bytes = 0
        with room.lock:
            room.rings.append(self)

    def append(self, content: bytes | LostRange, events: int) -> None:
        """Add an entry of *events* rows; never refuses, never waits."""
        room = self._room
        size = _ENTRY_EXTRA_BYTES + (len(content) if isinstance(content, bytes) else 0)
        with room.lock:
            now_s = room.now()
            entry = Entry(self.next_index, self.before, events, content, self._offset_bytes, now_s)
            self._entries.append(entry)
            self.next_index += 1
            self.before += events
            self._offset_bytes += size
            self.size_bytes += size
            room.size_bytes += size
            while len(self._entries) > 1 and now_s - self._entries[0].at_s > room.most_s:
                self.drop()
            room.trim()

    def drop(self) -> None:
        """Let the oldest entry go; the caller holds the lock."""
        dropped = self._entries.popleft()
        following = self._entries[0].offset_bytes if self._entries else self._offset_bytes
        size = following - dropped.offset_bytes
        self.size_bytes -= size
        self._room.size_bytes -= size

    def position(self, index: int) -> tuple[int, int]:
        """Return the first index from *index* on that is still here or to come, and the events before it."""
        with self._room.lock:
            if index >= self.next_index or not self._entries:
                return self.next_index, self.before
            first = self._entries[0]
            if index <= first.place:
                return first.place, first.before
            entry = self._entries[index - first.place]
            return entry.place, entry.before

    def latest(self) -> tuple[int, int]:
        """Return the first index of the last eighth of the room, or of the last entry, and the events before it."""
        with self._room.lock:
            if not self._entries:
                return self.next_index, self.before
            from_bytes = self._offset_bytes - int(self._room.most_bytes * _LATEST)
            recent = takewhile(lambda entry: entry.offset_bytes >= from_bytes, reversed(self._entries))
            first = deque(recent, maxlen=1) or [self._entries[-1]]
            return first[0].place, first[0].before

    def read(self, index: int, most: int) -> list[Entry]:
        """Return at most *most* entries from *index* on, if that is still here; else none."""
        with self._room.lock:
            if not self._entries or index < self._entries[0].place:
                return []
            start = index - self._entries[0].place
            return list(islice(self._entries, start, start + most))

    def close(self) -> None:
        """Give the room back."""
        with self._room.lock:
            if self in self._room.rings:
                self._room.rings.remove(self)
                self._room.size_bytes -= self.size_bytes
            self._entries.clear()
            self.size_bytes = 0
