"""A source end's record of one viewer: where it is in its stream, and what it may be sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import attrs

from trackside.handlers.zeromq._filter import Filter
from trackside.handlers.zeromq._protocol import (
    CHUNK_BYTES,
    WINDOW_BYTES,
    Chunk,
    FrameEntry,
    LossEntry,
    Message,
    Skipped,
    Subscribe,
    Subscribed,
)
from trackside.handlers.zeromq._ring import Entry, Lost, Ring
from trackside.handlers.zeromq._snapshot import chunk_count

MOST_IN_FLIGHT: Final = 900
"""Entries sent and not acknowledged; the socket has room for more, so that it refuses none of them."""
MOST_CHUNKS: Final = 4
_AT_ONCE: Final = 64
_REPLAY_EVERY_S: Final = 0.05
_MESSAGES_PER_S: Final = 1000.0
_OPENINGS_PER_S: Final = 16.0
"""Each stream is one of the job's handlers: a peer that wants another one all the time has to wait."""

Post: TypeAlias = Callable[[Message], bool]
"""Sends a message to one peer; False if there is no room for it now."""


@attrs.define(eq=False)
class Stream:
    """What one filter lets through, for every viewer that asked for just that."""

    wanted: Filter
    ring: Ring
    close: Callable[[], object]
    """End it at its origin."""
    is_held: bool = False
    """Whether it stays also without a viewer: whoever takes it, as a collector does, wants all there is."""
    left_s: float | None = None
    """Since when nobody has been there; None while somebody is."""


class Ready(NamedTuple):
    """A snapshot that was taken, and where the stream goes on from it."""

    data: bytes
    next_index: int
    before: int


@attrs.define(eq=False)
class Peer:
    """One viewer. For the thread of the source end."""

    address: bytes
    id: str
    text: str
    user: str
    """Role and fingerprint of its key, as ``viewer:0123abcd``; empty where no keys are used."""
    heard_s: float
    post: Post
    request: int = 0
    """The number of its last `Subscribe`."""
    stream: Stream | None = None
    cursor: int = 0
    """The next entry for it."""
    answer: Subscribed | None = None
    snapshot: bytes | None = None
    window_bytes: int = WINDOW_BYTES
    asked_s: float = -1e9
    """When it last asked for models' states."""
    _before: int = 0
    """Events in the entries before the cursor."""
    _in_flight: deque[tuple[int, int]] = attrs.field(factory=deque)
    """Index and offset of what was sent and not acknowledged."""
    _sent_to_bytes: int = 0
    _replayed_s: float = 0.0
    _allowance: float = _MESSAGES_PER_S
    _allowance_s: float = 0.0
    _openings: float = _OPENINGS_PER_S
    _openings_s: float = 0.0

    @property
    def is_live(self) -> bool:
        """Whether entries can be sent to it."""
        return self.stream is not None and self.answer is not None

    @property
    def is_drained(self) -> bool:
        """Whether it has acknowledged everything there is."""
        return self.stream is None or (not self._in_flight and self.cursor >= self.stream.ring.next_index)

    @property
    def position(self) -> tuple[int, int]:
        """The next entry's index, and the events before it."""
        return self.cursor, self._before

    def may_speak(self, now_s: float) -> bool:
        """Take one message out of a peer's allowance of a thousand a second."""
        passed_s, self._allowance_s = now_s - self._allowance_s, now_s
        self._allowance = min(_MESSAGES_PER_S, self._allowance + passed_s * _MESSAGES_PER_S) - 1
        if self._allowance < 0:
            self._allowance = 0.0
            return False
        self.heard_s = now_s
        return True

    def may_open(self, now_s: float) -> bool:
        """Take one stream that nobody has yet out of an allowance of sixteen, and of sixteen a second."""
        passed_s, self._openings_s = now_s - self._openings_s, now_s
        self._openings = min(_OPENINGS_PER_S, self._openings + passed_s * _OPENINGS_PER_S)
        if self._openings < 1:
            return False
        self._openings -= 1
        return True

    def expect(self, asked: Subscribe, stream: Stream) -> None:
        """Begin with a subscription that is yet to be answered."""
        self.leave()
        self.request = asked.request
        self.stream = stream
        stream.left_s = None
        self.window_bytes = asked.window_bytes

    def leave(self) -> None:
        """Have no stream."""
        self.stream = self.answer = self.snapshot = None
        self._in_flight.clear()

    def begin(self, index: int, before: int, *, resumed: bool, snapshot: bytes) -> None:
        """Go on from *index*, and tell the viewer."""
        if self.stream is None:
            return
        self.cursor, self._before = index, before
        self._in_flight.clear()
        self.snapshot = snapshot or None
        self.answer = Subscribed(
            request=self.request,
            stream=self.stream.ring.id,
            next_index=index,
            before=before,
            resumed=resumed,
            window_bytes=self.window_bytes,
            snapshot_bytes=len(snapshot),
            snapshot_chunks=chunk_count(len(snapshot)),
        )
        self.post(self.answer)

    def send_chunks(self, first: int, count: int) -> None:
        """Send some of the snapshot."""
        if self.snapshot is None:
            return
        for number in range(first, min(first + min(count, MOST_CHUNKS), chunk_count(len(self.snapshot)))):
            data = self.snapshot[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
            if not self.post(Chunk(self.request, number, data)):
                return

    def acknowledge(self, next_index: int) -> None:
        """Note that everything before *next_index* was taken."""
        self.snapshot = None
        while self._in_flight and self._in_flight[0][0] < next_index:
            self._in_flight.popleft()

    def go_back(self, index: int, now_s: float) -> None:
        """Send from *index* again, which is all the viewer lacks."""
        if now_s - self._replayed_s < _REPLAY_EVERY_S or index > self.cursor:
            return
        self._replayed_s = now_s
        self._in_flight.clear()
        self.cursor = index
        if self.stream is not None:
            here, before = self.stream.ring.position(index)
            self._before = before if here == index else self._before

    def pump(self, window_bytes: int) -> int:
        """Send what is due, as far as it may be sent; return how many entries."""
        if not self.is_live or self.stream is None:
            return 0
        ring, count = self.stream.ring, 0
        window_bytes = min(window_bytes, self.window_bytes)
        while self.cursor < ring.next_index and self._has_room(window_bytes):
            entries = ring.read(self.cursor, _AT_ONCE)
            if not entries and not self._skip(ring):
                return count
            for entry in entries:
                if not self._has_room(window_bytes) or not self.post(_message(ring.id, entry)):
                    return count
                self._in_flight.append((entry.place, entry.offset_bytes))
                self._sent_to_bytes = entry.offset_bytes + len(entry.content)
                self.cursor, self._before = entry.place + 1, entry.before + entry.events
                count += 1
        return count

    def _has_room(self, window_bytes: int) -> bool:
        if not self._in_flight:
            return True
        return self._sent_to_bytes - self._in_flight[0][1] < window_bytes and len(self._in_flight) < MOST_IN_FLIGHT

    def _skip(self, ring: Ring) -> bool:
        """
        Tell the viewer that what is due is no longer here, and go on with what is.

        Unless all is wanted that is the latest: while a viewer takes in the rest of the ring, as much comes after it,
        and it would stay behind.
        """
        index, before = ring.position(self.cursor)
        if index > self.cursor:
            if self.stream is not None and not self.stream.is_held:
                index, before = ring.latest()
            if not self.post(Skipped(ring.id, self.cursor, index, before)):
                return False
            self.cursor, self._before = index, before
        return True


def _message(stream: str, entry: Entry) -> FrameEntry | LossEntry:
    content = entry.content
    if isinstance(content, Lost):
        return LossEntry(stream, entry.place, entry.before, *content)
    return FrameEntry(stream, entry.place, entry.before, entry.events, content)
