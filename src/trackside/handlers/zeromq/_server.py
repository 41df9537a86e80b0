"""The stream server: its viewers, their subscriptions and streams."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import attrs

from trackside.core import Closing, RateLimitedLog, StopEvent, described
from trackside.events import DecodeError, Source, TracksideError, UnreadableError, clock
from trackside.events._selected import EVERYTHING
from trackside.handlers.eventlog import create_file
from trackside.handlers.zeromq._connection import Connection, Safety, is_served
from trackside.handlers.zeromq._protocol import (
    ALL_WINDOWS_BYTES,
    ALWAYS,
    BEAT_S,
    CHUNK_BYTES,
    FORGET_AFTER_S,
    LEAST_WINDOW_BYTES,
    MAX_ANSWERS,
    MAX_CHUNKS,
    MAX_IN_FLIGHT,
    MAX_SNAPSHOT_BYTES,
    MAX_VIEWERS,
    MIN_WINDOW_BYTES,
    NEW_STREAMS_PER_S,
    OLDEST,
    SILENT_AFTER_BEATS,
    SNAPSHOT_WITHIN_S,
    VERBS_AT_ONCE,
    VERBS_PER_S,
    VIEWER_MESSAGES_PER_S,
    WINDOW_BYTES,
    Ack,
    Beat,
    Bye,
    Chunk,
    Fetch,
    Filter,
    FrameEntry,
    Hello,
    LossEntry,
    Message,
    ReplayRequest,
    Result,
    Skipped,
    Snapshot,
    SourcePosition,
    Subscribe,
    Subscribed,
    TokenBucket,
    Verb,
    Welcome,
    chunk_count,
    dump_models,
    encode_snapshot,
)
from trackside.handlers.zeromq._session import Action, Role, Send, Sent, Sessions
from trackside.wire import pack

RING_BYTES: Final = 8 << 20
RING_S: Final = 30.0
_ENTRY_EXTRA_BYTES: Final = 256
"""The approximate bytes of an entry besides its frame."""
_LATEST: Final = 1 / 8
"""The share of the budget that a viewer still gets after it was too slow: this much is read before much more comes."""


class LostRange(NamedTuple):
    """Events of one source that did not arrive here."""

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
    """A frame, or the range of events that are missing."""
    offset_bytes: int
    """Bytes in all entries before it."""
    at_s: float


class RingBudget:
    """
    The bytes that all rings of one stream server share, and the lock that guards them.

    Args:
        most_bytes: When the rings hold more, the oldest entries of the largest ring are removed.
        most_s: Entries older than this, in seconds, are removed when a new one is appended.
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
        self.lock: threading.Lock = threading.Lock()
        self.size_bytes = 0
        self.rings: list[Ring] = []

    def trim(self) -> None:
        """Remove the oldest entries until the budget is met; the caller holds the lock."""
        while self.size_bytes > self.most_bytes:
            max(self.rings, key=lambda ring: ring.size_bytes).drop()


class Ring:
    """
    The latest entries of one stream, numbered from 0 without a hole.

    One thread appends, another reads; neither waits for anything except the other's few steps under the lock.

    Args:
        room: The budget that it shares with the other rings of its stream server.
        name: Its id, unique among the streams of all processes.
    """

    def __init__(self, room: RingBudget, name: str) -> None:
        self.id = name
        self.next_index: int = 0
        self.before: int = 0
        """Events in all entries so far."""
        self.size_bytes: int = 0
        self._room = room
        self._entries: deque[Entry] = deque()
        self._offset_bytes = 0
        with room.lock:
            room.rings.append(self)

    def append(self, content: bytes | LostRange, events: int) -> None:
        """Add an entry of *events* rows; this never fails and never waits."""
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
        """Remove the oldest entry; the caller holds the lock."""
        dropped = self._entries.popleft()
        following = self._entries[0].offset_bytes if self._entries else self._offset_bytes
        size = following - dropped.offset_bytes
        self.size_bytes -= size
        self._room.size_bytes -= size

    def position(self, index: int) -> tuple[int, int]:
        """Return the first index from *index* on that is kept or still to come, and the number of events before it."""
        with self._room.lock:
            if index >= self.next_index or not self._entries:
                return self.next_index, self.before
            first = self._entries[0]
            if index <= first.place:
                return first.place, first.before
            entry = self._entries[index - first.place]
            return entry.place, entry.before

    def latest(self) -> tuple[int, int]:
        """Return the first index in the last eighth of the budget, else the last index; and the events before it."""
        with self._room.lock:
            if not self._entries:
                return self.next_index, self.before
            from_bytes = self._offset_bytes - int(self._room.most_bytes * _LATEST)
            recent = takewhile(lambda entry: entry.offset_bytes >= from_bytes, reversed(self._entries))
            first = deque(recent, maxlen=1) or [self._entries[-1]]
            return first[0].place, first[0].before

    def read(self, index: int, most: int) -> list[Entry]:
        """Return at most *most* entries from *index* on, or none if that entry is no longer kept."""
        with self._room.lock:
            if not self._entries or index < self._entries[0].place:
                return []
            start = index - self._entries[0].place
            return list(islice(self._entries, start, start + most))

    def close(self) -> None:
        """Remove all entries, and return their bytes to the budget."""
        with self._room.lock:
            if self in self._room.rings:
                self._room.rings.remove(self)
                self._room.size_bytes -= self.size_bytes
            self._entries.clear()
            self.size_bytes = 0


_ENTRIES_AT_ONCE: Final = 64
_REPLAY_EVERY_S: Final = 0.05

Post: TypeAlias = Callable[[Message], bool]
"""Sends a message to one viewer; False if it could not be sent now."""


@attrs.define(eq=False)
class Stream:
    """The stream of one filter, shared by all viewers that subscribed with that filter."""

    wanted: Filter
    ring: Ring
    close: Callable[[], object]
    """Ends the subscription that fills the ring."""
    is_held: bool = False
    """Whether it is kept even without a viewer: a collector gets every event."""
    left_s: float | None = None
    """The time since which it has had no viewer; None while it has one."""
    delivered: int = 0
    """Events that were acknowledged."""
    _settled: int = 0
    """The number of events up to the last acknowledged one."""
    _given_up: deque[tuple[int, int]] = attrs.field(factory=deque)
    """Ranges of later events that were skipped: for each, the number of events before its start and before its end."""

    def acknowledge(self, before: int) -> None:
        """Note that a viewer has the first *before* events, except those it was instructed to pass over."""
        if before <= self._settled:
            return
        self.delivered += before - self._settled
        while self._given_up and self._given_up[0][0] < before:
            start, end = self._given_up.popleft()
            self.delivered -= min(end, before) - max(start, self._settled)
        self._settled = before

    def resume(self, index: int) -> int:
        """
        Note that a viewer has all entries before *index*; return the number of events in them.

        If that entry is no longer kept, the number is that up to the last acknowledged event.
        """
        here, before = self.ring.position(index)
        before = before if here == index else self._settled
        self.acknowledge(before)
        self._given_up.clear()  # entries that another viewer skipped are due again
        return before

    def give_up(self, first: int, before: int) -> None:
        """Note that a viewer was instructed to pass over the events from number *first* to the one before *before*."""
        start = max(first, self._settled, self._given_up[-1][1] if self._given_up else 0)
        if before > start:
            self._given_up.append((start, before))

    @property
    def lost(self) -> int:
        """Events that no viewer has acknowledged and that are no longer kept."""
        return max(self._settled, self.ring.position(0)[1]) - self.delivered

    @property
    def undelivered(self) -> int:
        """Events that no viewer has acknowledged."""
        return self.ring.before - self.delivered


class ReadySnapshot(NamedTuple):
    """A snapshot, and the position at which the stream continues from it."""

    data: bytes
    next_index: int
    before: int

    @classmethod
    def take(cls, snapshot: Snapshot, ring: Ring, trouble: RateLimitedLog) -> ReadySnapshot | None:
        """Return *snapshot* at the end of *ring*; None, with a warning, if it cannot be encoded."""
        try:
            data = encode_snapshot(snapshot)
        except Exception as error:
            trouble.complain("a snapshot could not be taken: %s", described(error))
            return None
        return cls(data, ring.next_index, ring.before)


@attrs.define(eq=False)
class ViewerState:
    """One viewer. Only the thread of the stream server may use it."""

    address: bytes
    id: str
    text: str
    user: str
    """Role and fingerprint of its key, as in ``viewer:0123abcd``; empty if no keys are used."""
    heard_s: float
    post: Post
    request: int = 0
    """The number of its last `Subscribe`."""
    stream: Stream | None = None
    cursor: int = 0
    """The index of the next entry to send."""
    answer: Subscribed | None = None
    snapshot: bytes | None = None
    window_bytes: int = WINDOW_BYTES
    began_s: float = 0.0
    """The time when its snapshot was ready."""
    asked_s: float = -1e9
    """The time when it last asked for models' states."""
    _before: int = 0
    """Events in the entries before the cursor."""
    _in_flight: deque[tuple[int, int, int]] = attrs.field(factory=deque)
    """For each entry sent and not acknowledged: its index, its offset in bytes, and the events up to its end."""
    _sent_to_bytes: int = 0
    _replayed_s: float = 0.0
    _messages: TokenBucket = attrs.field(factory=lambda: TokenBucket(VIEWER_MESSAGES_PER_S, VIEWER_MESSAGES_PER_S))
    _openings: TokenBucket = attrs.field(factory=lambda: TokenBucket(NEW_STREAMS_PER_S, NEW_STREAMS_PER_S))

    @property
    def is_live(self) -> bool:
        """Whether entries can be sent to it."""
        return self.stream is not None and self.answer is not None

    @property
    def is_drained(self) -> bool:
        """Whether it has acknowledged every entry; False until its latest subscription is answered."""
        if self.stream is None:
            return True
        return self.answer is not None and not self._in_flight and self.cursor >= self.stream.ring.next_index

    @property
    def position(self) -> tuple[int, int]:
        """The next entry's index, and the events before it."""
        return self.cursor, self._before

    def may_speak(self, now_s: float) -> bool:
        """Return whether one more message is within the limit of a thousand a second."""
        if not self._messages.take(now_s):
            return False
        self.heard_s = now_s
        return True

    def may_open(self, now_s: float) -> bool:
        """Return whether opening one more new stream is within the limit of 16 at once and 16 a second."""
        return self._openings.take(now_s)

    def expect(self, asked: Subscribe, stream: Stream) -> None:
        """Replace the subscription by *asked*, which is still to be answered."""
        self.leave()
        self.request = asked.request
        self.stream = stream
        stream.left_s = None
        self.window_bytes = asked.window_bytes

    def leave(self) -> None:
        """Leave the stream."""
        self.stream = self.answer = self.snapshot = None
        self._in_flight.clear()

    def begin(self, index: int, before: int, *, resumed: bool, snapshot: bytes) -> None:
        """Continue from the entry *index*, and send the viewer its answer."""
        if self.stream is None:
            return
        self.cursor, self._before = index, before
        self._in_flight.clear()
        if not resumed and self.stream.is_held:
            self.stream.give_up(0, before)
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
        """Send *count* chunks of the snapshot, from number *first* on."""
        if self.snapshot is None:
            return
        for number in range(first, min(first + min(count, MAX_CHUNKS), chunk_count(len(self.snapshot)))):
            data = self.snapshot[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
            if not self.post(Chunk(self.request, number, data)):
                return

    def acknowledge(self, next_index: int) -> None:
        """Note that the viewer has all entries before *next_index*."""
        self.snapshot = None
        while self._in_flight and self._in_flight[0][0] < next_index:
            _, _, before = self._in_flight.popleft()
            if self.stream is not None:
                self.stream.acknowledge(before)

    def go_back(self, index: int, now_s: float) -> None:
        """Send the entries from *index* on again."""
        if self.stream is None or now_s - self._replayed_s < _REPLAY_EVERY_S or index > self.cursor:
            return
        self._replayed_s = now_s
        self.acknowledge(index)
        self._in_flight.clear()
        self.cursor, self._before = index, self.stream.resume(index)

    def pump(self, window_bytes: int) -> int:
        """Send the entries that are due and fit into the window; return their number."""
        if not self.is_live or self.stream is None:
            return 0
        ring, count = self.stream.ring, 0
        window_bytes = min(window_bytes, self.window_bytes)
        while self.cursor < ring.next_index and self._has_room(window_bytes):
            entries = ring.read(self.cursor, _ENTRIES_AT_ONCE)
            if not entries and not self._skip(ring):
                return count
            for entry in entries:
                if not self._has_room(window_bytes) or not self.post(_message(ring.id, entry)):
                    return count
                self._in_flight.append((entry.place, entry.offset_bytes, entry.before + entry.events))
                self._sent_to_bytes = entry.offset_bytes + len(entry.content)
                self.cursor, self._before = entry.place + 1, entry.before + entry.events
                count += 1
        return count

    def _has_room(self, window_bytes: int) -> bool:
        if not self._in_flight:
            return True
        return self._sent_to_bytes - self._in_flight[0][1] < window_bytes and len(self._in_flight) < MAX_IN_FLIGHT

    def _skip(self, ring: Ring) -> bool:
        """
        Notify the viewer if the entries that are due are no longer kept, and go on with later ones.

        Unless the stream is held, these are the latest ones: while a slow viewer read the rest of the ring, as much
        would be added, and it would stay behind.
        """
        index, before = ring.position(self.cursor)
        if index > self.cursor:
            if self.stream is not None and not self.stream.is_held:
                index, before = ring.latest()
            if not self.post(Skipped(ring.id, self.cursor, index, before)):
                return False
            if self.stream is not None:
                self.stream.give_up(self._before, before)
            self.cursor, self._before = index, before
        return True


def _message(stream: str, entry: Entry) -> FrameEntry | LossEntry:
    content = entry.content
    if isinstance(content, LostRange):
        return LossEntry(stream, entry.place, entry.before, *content)
    return FrameEntry(stream, entry.place, entry.before, entry.events, content)


_PUMP_ROUNDS: Final = 16
_MOST_STATUS_BYTES: Final = 48 << 10


class StreamProvider(Protocol):
    """The interface that gives a stream server its streams and snapshots."""

    def open_stream(self, wanted: Filter, ring: Ring) -> Callable[[], object]:
        """
        Begin to fill *ring* with the events that *wanted* selects; return a function that ends this.

        Raises:
            TracksideError: if there is no such stream.
        """

    def take_snapshot(self, models: Sequence[str], ring: Ring, done: Callable[[ReadySnapshot | None], None]) -> None:
        """Call *done*, on any thread, with a snapshot and *ring*'s position at that time, or with None."""

    def status(self) -> dict[str, Any]:
        """Return the status to send in a beat."""


class StreamServer:
    """
    Serves any number of viewers, without input or output of its own.

    Only one thread may use it, unless a method says otherwise.

    Args:
        provider: The origin of streams and snapshots.
        send: Sends to an address, which is empty for a connection that this end made.
        own_id: The id of this end, constant while its streams exist; by default random.
        connects: Whether this end made the connection, and so greets first.
        wake: Wakes the thread; called on any thread.
        budget: The limits of all rings together.
        most_viewers: The most viewers at once; more are refused.
        on_verb: Performs a `Verb` for an address and its user, and gives each `Result` to `answer`; None refuses all.
    """

    def __init__(
        self,
        provider: StreamProvider,
        send: Send,
        *,
        own_id: str | None = None,
        connects: bool = False,
        wake: Callable[[], object] = lambda: None,
        budget: RingBudget | None = None,
        most_viewers: int = MAX_VIEWERS,
        on_verb: Callable[[bytes, Verb, str], object] | None = None,
    ) -> None:
        self._sessions: Sessions[ViewerState] = Sessions(
            Role.PRODUCER if connects else Role.SERVER, send, own_id=own_id
        )
        self.viewers: dict[bytes, ViewerState] = self._sessions.peers
        """The viewers that are here, by address."""
        self.counts: Counter[str] = self._sessions.counts
        """The counts of the sessions, ``malformed`` and ``ignored`` messages, and entries ``sent``."""
        self._provider = provider
        self._connects = connects
        self._wake = wake
        self._budget = budget or RingBudget()
        self._most_viewers = most_viewers
        self._on_verb = on_verb
        self._streams: dict[Filter, Stream] = {}
        self._opened = 0
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._answers: list[tuple[bytes, Result]] = []
        """Results of verbs, in order; one waits while the queue to its viewer is full."""
        self._verbs: dict[str, TokenBucket] = {}
        """The limit of each user, because each use of a verb is recorded, allowed or not."""
        self._beat_s = 0.0
        self._now_s = 0.0
        self._trouble = RateLimitedLog()

    # --- what others ask of it ----------------------------------------------------------------------------------------

    def hold(self, wanted: Filter) -> Stream:
        """Open a stream before any viewer subscribes, and keep it, so that its first viewer gets its beginning."""
        stream = self._stream(wanted)
        stream.is_held = True
        return stream

    def answer(self, address: bytes, result: Result) -> None:
        """Send a verb's result; may be called on any thread."""
        self._inbox.put(lambda: self._answers.append((address, result)))
        self._wake()

    def receive(self, address: bytes, parts: Sequence[bytes], now_s: float, received_ns: int, user: str = "") -> None:
        """Handle one message from *address*; *user* is the role and fingerprint of its key."""
        self._now_s = now_s
        try:
            self._receive(address, parts, now_s, received_ns, user)
        except Exception as error:
            # No message of one viewer may end the thread that serves all of them.
            self._let_go(address, now_s, error)

    def _let_go(self, address: bytes, now_s: float, error: Exception) -> None:
        self._sessions.note_failure(error)
        with contextlib.suppress(Exception):
            self._forget(address, at_once=True, now_s=now_s)

    def _receive(self, address: bytes, parts: Sequence[bytes], now_s: float, received_ns: int, user: str) -> None:
        viewer = self.viewers.get(address)
        if viewer is not None and viewer.user != user:  # another connection under the same address
            self._forget(address, at_once=False, now_s=now_s)
            viewer = None
        if viewer is not None and not viewer.may_speak(now_s):
            self.counts["ignored"] += 1
            return
        try:
            action, message = self._sessions.receive(address, parts, user, received_ns)
        except DecodeError:
            self.counts["malformed"] += 1
            return
        if isinstance(message, (Hello, Welcome)) and action is Action.MEET:
            self._meet(address, message, user, now_s)
        elif action in {Action.PART, Action.GREET_AGAIN}:
            self._forget(address, at_once=action is Action.PART, now_s=now_s)
        elif action is Action.DELIVER and viewer is not None:
            self._on(viewer, message, now_s)

    def tick(self, now_s: float) -> None:
        """Send the beats and greetings that are due, and forget silent viewers."""
        self._now_s = now_s
        self._empty_inbox()
        if self._connects:
            self._forget_mute(now_s)
        self._sessions.tick(now_s)
        if now_s - self._beat_s < BEAT_S:
            return
        self._beat_s = now_s
        for viewer in list(self.viewers.values()):
            if not self._connects and now_s - viewer.heard_s > FORGET_AFTER_S:
                self._forget(viewer.address, at_once=True, now_s=now_s)
            elif viewer.snapshot is not None and now_s - viewer.began_s > SNAPSHOT_WITHIN_S:
                viewer.leave()
                self._refuse(viewer.address, viewer.request, "busy", "the snapshot was not fetched in time")
        for stream in list(self._streams.values()):
            if stream.left_s is not None and now_s - stream.left_s > FORGET_AFTER_S:
                self._drop(stream)
        self.beat()

    def pump(self) -> bool:
        """Send every viewer the entries that are due; return whether there may be more to send at once."""
        self._empty_inbox()
        share = max(LEAST_WINDOW_BYTES, ALL_WINDOWS_BYTES // max(1, len(self.viewers)))
        for _ in range(_PUMP_ROUNDS):
            sent = sum(self._pump(viewer, min(share, WINDOW_BYTES)) for viewer in list(self.viewers.values()))
            self.counts["sent"] += sent
            if not sent:
                return False
        return True

    def _pump(self, viewer: ViewerState, window_bytes: int) -> int:
        try:
            return viewer.pump(window_bytes)
        except Exception as error:
            self._let_go(viewer.address, self._now_s, error)
            return 0

    @property
    def is_drained(self) -> bool:
        """Whether every viewer has acknowledged everything; False until one subscribes, if this end connected."""
        if self._connects and all(viewer.stream is None for viewer in self.viewers.values()):
            return False
        return all(viewer.is_drained for viewer in self.viewers.values())

    def begin_again(self) -> None:
        """Greet the other end again, because this end has reconnected."""
        self._forget(b"", at_once=False, now_s=self._now_s)
        self._sessions.greet_again()

    def part(self, reason: str) -> None:
        """Say goodbye to all viewers and end every stream."""
        for viewer in list(self.viewers.values()):
            self._post(viewer.address, Bye(reason))
        self.viewers.clear()
        for stream in list(self._streams.values()):
            self._drop(stream)

    # --- peers --------------------------------------------------------------------------------------------------------

    def _meet(self, address: bytes, other: Hello | Welcome, user: str, now_s: float) -> None:
        viewer = self.viewers.get(address)
        if viewer is None or viewer.id != other.id:
            for known in [known for known in self.viewers.values() if known.id == other.id or known is viewer]:
                self._forget(known.address, at_once=False, now_s=now_s)  # it has come back over a new connection
            if len(self.viewers) >= self._most_viewers:
                self._refuse(address, 0, "busy", f"{self._most_viewers} viewers are here already")
                return
            viewer = ViewerState(
                address, other.id, other.text, user, now_s, lambda message: self._post(address, message)
            )
        self._sessions.welcome(viewer)

    def _forget(self, address: bytes, *, at_once: bool, now_s: float) -> None:
        """Remove a viewer; unless *at_once*, its stream is kept for a while, in case the viewer comes back."""
        viewer = self.viewers.pop(address, None)
        if viewer is None or viewer.stream is None:
            return
        stream = viewer.stream
        viewer.leave()
        self._leave(stream, now_s, at_once=at_once)

    def _forget_mute(self, now_s: float) -> None:
        """
        Remove the viewers that welcomed this end but did not subscribe: the connection broke in between.

        A viewer that subscribed gets each beat, and answers with `Reset` if it does not know this end any more.
        """
        for viewer in list(self.viewers.values()):
            if viewer.stream is None and now_s - viewer.heard_s >= SILENT_AFTER_BEATS * BEAT_S:
                self._forget(viewer.address, at_once=False, now_s=now_s)
                self._sessions.greet_again()

    def _leave(self, stream: Stream, now_s: float, *, at_once: bool) -> None:
        """Drop a stream that has no viewer any more: after a while, or *at_once*."""
        if stream.is_held or any(viewer.stream is stream for viewer in self.viewers.values()):
            return
        stream.left_s = now_s
        if at_once:
            self._drop(stream)

    def _on(self, viewer: ViewerState, message: Message, now_s: float) -> None:
        if isinstance(message, Ack):
            if viewer.stream is not None and message.stream == viewer.stream.ring.id:
                viewer.acknowledge(message.next_index)
        elif isinstance(message, ReplayRequest):
            if viewer.stream is not None and message.stream == viewer.stream.ring.id:
                viewer.go_back(message.next_index, now_s)
        elif isinstance(message, Subscribe):
            self._subscribe(viewer, message, now_s)
        elif isinstance(message, Fetch):
            if message.request == viewer.request:
                viewer.send_chunks(message.first, message.count)
        elif isinstance(message, Verb):
            self._command(viewer, message)

    def _command(self, viewer: ViewerState, verb: Verb) -> None:
        bucket = self._verbs.setdefault(viewer.user, TokenBucket(VERBS_PER_S, VERBS_AT_ONCE))
        if self._on_verb is None:
            self._refuse(viewer.address, verb.request, "forbidden", "no verb is accepted on this endpoint")
        elif not bucket.take(self._now_s):
            self._refuse(viewer.address, verb.request, "busy", f"more than {VERBS_PER_S:g} verbs a second")
        else:
            self._on_verb(viewer.address, verb, viewer.user)

    # --- streams ------------------------------------------------------------------------------------------------------

    def _subscribe(self, viewer: ViewerState, asked: Subscribe, now_s: float) -> None:
        if asked.request == viewer.request and viewer.stream is not None:
            if viewer.answer is not None:
                viewer.post(viewer.answer)  # the first answer did not arrive
            return
        before = viewer.stream
        try:
            wanted = Filter.from_wire(asked.names, asked.min_priority, asked.rule)
            if wanted not in self._streams and not viewer.may_open(now_s):
                self._refuse(viewer.address, asked.request, "busy", "it asks for something else too often")
                return
            stream = self._stream(wanted)
        except TracksideError as error:
            self._refuse(viewer.address, asked.request, "malformed", str(error))
            return
        viewer.expect(asked, stream)
        viewer.window_bytes = max(asked.window_bytes, MIN_WINDOW_BYTES // 8)
        if before is not None and before is not stream:
            self._leave(before, now_s, at_once=True)
        if asked.resume_stream == stream.ring.id and asked.resume_index <= stream.ring.next_index:
            viewer.begin(asked.resume_index, stream.resume(asked.resume_index), resumed=True, snapshot=b"")
            return
        if asked.models:
            if now_s - viewer.asked_s < BEAT_S:
                viewer.leave()
                self._refuse(viewer.address, asked.request, "busy", "ask for models' states once a second")
                return
            viewer.asked_s = now_s
        ring, request, oldest = stream.ring, asked.request, asked.resume_stream == OLDEST

        def done(ready: ReadySnapshot | None) -> None:  # on the thread that took the snapshot
            self._inbox.put(lambda: self._begin(viewer, request, ready, oldest=oldest))
            self._wake()

        self._provider.take_snapshot(asked.models, ring, done)

    def _begin(self, viewer: ViewerState, request: int, ready: ReadySnapshot | None, *, oldest: bool) -> None:
        """Answer a subscription whose snapshot is ready."""
        if self.viewers.get(viewer.address) is not viewer or viewer.request != request or viewer.stream is None:
            return
        waiting = sum(len(other.snapshot or b"") for other in self.viewers.values())
        if ready is None or waiting + len(ready.data) > MAX_SNAPSHOT_BYTES:
            viewer.leave()
            self._refuse(viewer.address, request, "busy", "the snapshot cannot be taken now")
            return
        index, before = viewer.stream.ring.position(0) if oldest else (ready.next_index, ready.before)
        viewer.began_s = self._now_s
        viewer.begin(index, before, resumed=False, snapshot=ready.data)

    def _stream(self, wanted: Filter) -> Stream:
        stream = self._streams.get(wanted)
        if stream is None:
            self._opened += 1
            ring = Ring(self._budget, f"{self._sessions.id}.{self._opened}")
            try:
                close = self._provider.open_stream(wanted, ring)
            except BaseException:
                ring.close()
                raise
            stream = self._streams[wanted] = Stream(wanted, ring, close)
        return stream

    def _drop(self, stream: Stream) -> None:
        self._streams.pop(stream.wanted, None)
        stream.close()
        stream.ring.close()

    # --- sending ------------------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Send every viewer the position of its stream, which it acknowledges at once."""
        if not any(viewer.is_live for viewer in self.viewers.values()):
            return
        status = _fitting(self._provider.status())
        for viewer in list(self.viewers.values()):
            if viewer.is_live and viewer.stream is not None:
                index, before = viewer.position
                self._post(viewer.address, Beat(viewer.stream.ring.id, index, before, status))

    def _refuse(self, address: bytes, request: int, code: str, text: str) -> None:
        self._sessions.refuse(address, request, code, text)

    def _post(self, address: bytes, message: Message) -> bool:
        outcome = self._sessions.post(address, message)
        if outcome is Sent.GONE:
            self._inbox.put(lambda: self._forget(address, at_once=False, now_s=self._now_s))
        return outcome is Sent.QUEUED

    def _empty_inbox(self) -> None:
        while True:
            try:
                act = self._inbox.get_nowait()
            except queue.Empty:
                break
            try:
                act()
            except Exception as error:
                self.counts["failed"] += 1
                self._trouble.complain("what a message asked for could not be done: %s", described(error))
        if self._answers:
            self._send_answers()

    def _send_answers(self) -> None:
        waiting, self._answers = self._answers, []
        full: set[bytes] = set()
        for address, result in waiting:
            outcome = Sent.FULL if address in full else self._sessions.post(address, result)
            if outcome is Sent.INVALID:
                rank = {"rank": result.values["rank"]} if "rank" in result.values else {}
                error = "the result cannot be sent: it is too large, or holds values of no known type"
                failure = attrs.evolve(result, done=False, values={**rank, "error": error})
                outcome = self._sessions.post(address, failure)
            if outcome is Sent.FULL and address in self.viewers and len(self._answers) < MAX_ANSWERS:
                full.add(address)
                self._answers.append((address, result))


def _fitting(status: dict[str, Any]) -> dict[str, Any]:
    """Return *status* without the largest values that make it too large for a beat."""
    while status:
        try:
            if len(pack(status)) <= _MOST_STATUS_BYTES:
                break
        except (TypeError, ValueError, OverflowError):
            return {}
        largest = max(status, key=lambda name: len(pack(status[name])))
        status = {name: value for name, value in status.items() if name != largest}
    return status


_SUFFIX: Final = ".endpoint"
_MAX_FILE_BYTES: Final = 1024
_MAX_FILES: Final = 4096


class EndpointFile:
    """A file with the endpoint at which a process can be watched; removed when the process ends."""

    def __init__(self, directory: Path, source: Source, endpoint: str) -> None:
        run = re.sub(r"[^A-Za-z0-9._-]+", "-", source.run_id)[:100].strip("-.") or "run"
        self._path = directory / run / f"rank-{source.rank:05d}.attempt-{source.attempt}.{source.id[:8]}{_SUFFIX}"
        try:
            fd = create_file(directory, f"{run}/{self._path.name}")
        except OSError:  # viewers can still be given the endpoint itself
            return
        with open(fd, "w", encoding="utf-8") as file:  # noqa: PTH123  a descriptor
            file.write(endpoint + "\n")

    def remove(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def find_endpoints(directory: str | os.PathLike[str]) -> list[str]:
    """
    Return the endpoints of the live processes that write below *directory*, in the order of runs and ranks.

    Raises:
        UnreadableError: There is no such directory, or no job in it that can be watched.
    """
    where = Path(directory)
    if not where.is_dir():
        raise UnreadableError(
            str(where), "is no directory and no endpoint", "give ipc://…, tcp://… or a run's directory"
        )
    found = [_read_endpoint(path) for path in sorted(where.rglob(f"*{_SUFFIX}"))[:_MAX_FILES]]
    live = [endpoint for endpoint in found if endpoint and (not endpoint.startswith("ipc:") or is_served(endpoint))]
    if not live:
        raise UnreadableError(
            str(where), "no publishing job is running there", "start it with remote=Remote(publish=True)"
        )
    return live


def _read_endpoint(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_FILE_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return text if text.startswith(("ipc://", "tcp://")) else ""


_TICK_S: Final = 0.25
_IDLE_S: Final = 2.0
"""The wait while there is no viewer; a first message wakes the thread, and so does `close`."""
_DRAINING_S: Final = 0.005
_ASK_EVERY_S: Final = 0.05
_AT_ONCE: Final = 256


class BarrierView(Protocol):
    """The state of a bus at one point of its stream."""

    source: Source | None
    next_seq: int
    dropped: int
    models: Sequence[Any]


class ViewerStream:
    """Puts the frames of one filter from the dispatcher into a ring. Delivery to viewers is not guaranteed."""

    lost = 0

    def __init__(self, ring: Ring, wake: Callable[[], object]) -> None:
        self._ring = ring
        self._wake = wake

    def open(self, source: Source) -> None:
        """Do nothing: each stream holds the events that describe its source."""

    def accept(self, frame: bytes, *, events: int) -> bool:
        """Append *frame* to the ring, which removes its oldest entries for it."""
        self._ring.append(frame, events)
        self._wake()
        return True

    def flush(self, timeout_s: float) -> bool:  # noqa: ARG002  the protocol's
        """Return at once: delivery to viewers is not guaranteed."""
        return True

    def close(self, timeout_s: float) -> bool:  # noqa: ARG002  the protocol's
        """Do nothing: there is nothing to close."""
        return True

    def after_fork(self, source: Source) -> bool:  # noqa: ARG002  the protocol's
        """Stay with the parent: a forked child publishes nothing."""
        return False


class CollectorStream(ViewerStream):
    """The stream of a collector: events that it did not acknowledge and that are no longer kept are lost."""

    stream: Stream | None = None
    _is_over = False

    @property
    def lost(self) -> int:  # type: ignore[override]
        """The number of events that the collector will never get."""
        if self.stream is None:
            return 0
        return self.stream.undelivered if self._is_over else self.stream.lost

    def end(self) -> None:
        """Count the events that were not acknowledged by now as lost."""
        self._is_over = True


class Publisher(Closing):
    """
    Sends a bus's stream to its viewers; each gets only the events that it subscribed to.

    Its thread does all input and output; the dispatcher puts its frames into a ring and never waits. Without a viewer
    or collector it is subscribed to nothing. A forked child publishes nothing.

    Args:
        endpoint: The endpoint for viewers: ``ipc:///path``, in a directory that is this user's alone, or
            ``tcp://host:port`` with *keys*. With *connects*, the collector to connect to.
        subscribe: Subscribes a frame sink with a filter, and returns a function that ends the subscription.
        at_barrier: Has the dispatcher call a function at one point of the stream, as `Bus.at_barrier` does.
        connects: Connect to a collector instead of binding, and offer all events from the beginning.
        keys: A directory of keys, as `trackside keys new` makes it.
        insecure: Allow an endpoint without keys where they are required.
        status: Returns the job's status, sent each second: plain data, by name.
        on_verb: Carries out verbs; see `StreamServer`.
        ring_bytes: The most bytes kept for viewers that are slow or reconnect.

    Raises:
        ConfigError: The endpoint is not safe, not free or malformed.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        subscribe: Callable[[ViewerStream, Filter], Callable[[], object]],
        at_barrier: Callable[[Callable[[Any], object]], object],
        connects: bool = False,
        keys: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        status: Callable[[], dict[str, Any]] = dict,
        on_verb: Callable[[bytes, Verb, str], object] | None = None,
        ring_bytes: int = RING_BYTES,
    ) -> None:
        self._subscribe_to_bus = subscribe
        self._at_barrier = at_barrier
        self._status = status
        self._pid = os.getpid()
        self._connection = Connection(endpoint, binds=not connects, role="rank", keys=keys, insecure=insecure)
        self.endpoint: str = self._connection.endpoint
        """The endpoint at which it can be reached, with the port that was chosen."""
        self.safety: Safety = self._connection.safety
        self.connects = connects
        """Whether it connected out, to a collector."""
        self.server: StreamServer = StreamServer(
            self,
            self._connection.send,
            connects=connects,
            wake=self._connection.wake,
            budget=RingBudget(ring_bytes),
            on_verb=on_verb,
        )
        self._promised: CollectorStream | None = None
        self._is_closing = StopEvent()
        self._close_by_s = 0.0
        self._drained = False
        self._trouble = RateLimitedLog()
        if connects:
            stream = self.server.hold(Filter())
            if self._promised is not None:
                self._promised.stream = stream
        self._thread = threading.Thread(target=self._run, name="trackside-publisher", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # raised by a signal handler: nobody could close this publisher
            self._close_soon(0.0)
            raise

    # --- what the server is supplied with, on the thread --------------------------------------------------------------

    def open_stream(self, wanted: Filter, ring: Ring) -> Callable[[], object]:
        """Subscribe to the events that *wanted* selects; see `StreamProvider`."""
        if EVERYTHING not in wanted.names:
            names = tuple(dict.fromkeys((*wanted.names, *ALWAYS)))
            wanted = Filter(names, wanted.min_priority, wanted.rule_bytes)
        kind = ViewerStream
        if self.connects and self._promised is None and not self._is_closing.is_set():
            kind = CollectorStream
        taker = kind(ring, self._connection.wake)
        if isinstance(taker, CollectorStream):
            self._promised = taker
        return self._subscribe_to_bus(taker, wanted)

    def take_snapshot(self, models: Sequence[str], ring: Ring, done: Callable[[ReadySnapshot | None], None]) -> None:
        """Have the dispatcher dump the models; see `StreamProvider`."""
        names = list(models)

        def act(view: BarrierView) -> None:  # on the dispatcher, which alone appends to the ring
            places = [SourcePosition(view.source, view.next_seq, view.dropped)] if view.source is not None else []
            snapshot = Snapshot(places, dump_models(view.models, names), clock.now_ns())
            done(ReadySnapshot.take(snapshot, ring, self._trouble))

        self._at_barrier(act)

    def status(self) -> dict[str, Any]:
        """Return the job's status; see `StreamProvider`."""
        try:
            return self._status()
        except Exception as error:
            self._trouble.complain("the status could not be read: %s", described(error))
            return {}

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closing.is_set():
            try:
                self._serve(_TICK_S if self.connects or self.server.viewers else _IDLE_S)
            except Exception as error:
                self._trouble.complain("the publisher goes on after an error: %s", described(error))
                self._is_closing.wait(_TICK_S)
        with contextlib.suppress(Exception):
            self._finish()
        self._connection.close()

    def _serve(self, timeout_s: float) -> None:
        more = self.server.pump()
        self._connection.wait(0.0 if more else timeout_s)
        for address, parts, user in self._connection.receive(_AT_ONCE):
            self.server.receive(address, parts, time.monotonic(), clock.now_ns(), user)
        if self._connection.renew(time.monotonic()):
            self.server.begin_again()
        self.server.tick(time.monotonic())

    def _finish(self) -> None:
        """Send the viewers the entries that are left, at least once even if no time is left, and say goodbye."""
        beat_s = 0.0
        is_late = False
        while not is_late:
            is_late = time.monotonic() >= self._close_by_s
            if time.monotonic() - beat_s >= _ASK_EVERY_S:
                beat_s = time.monotonic()
                self.server.pump()
                self.server.beat()
            self._serve(_DRAINING_S)
            is_awaited = self.connects and not self.server.viewers  # the collector may be restarting
            if self.server.is_drained and not is_awaited:
                self._drained = True
                break
        if self._promised is not None:
            self._promised.end()
            if self._promised.lost:
                self._drained = False
        self.server.part("closed")

    # --- in the job's threads -----------------------------------------------------------------------------------------

    def close(self, timeout_s: float = 0.5) -> bool:
        """
        Send viewers the entries that are left, say goodbye and stop; safe to call twice, and in a forked child.

        Returns:
            Whether all viewers, or the collector, have acknowledged everything.
        """
        if os.getpid() != self._pid:
            return True
        if not self._is_closing.is_set():
            self._close_soon(timeout_s)
        self._thread.join(timeout_s + 1.0)
        return self._drained

    def _close_soon(self, timeout_s: float) -> None:
        self._close_by_s = time.monotonic() + timeout_s
        self._is_closing.set()
        self._connection.wake()

    @property
    def is_watched(self) -> bool:
        """Whether a viewer gets a stream now, and sent something in the last three seconds."""
        heard_s = time.monotonic() - SILENT_AFTER_BEATS * BEAT_S
        return any(peer.is_live and peer.heard_s >= heard_s for peer in list(self.server.viewers.values()))

    def stats(self) -> dict[str, int]:
        """Return the counts: viewers that are here, entries sent, refusals, messages that were malformed or ignored."""
        return {"viewers": len(self.server.viewers), **self.server.counts}
