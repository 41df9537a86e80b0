"""The viewer end of one link, as collectors and forwarders have it: everything, each entry once and in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import attrs

from trackside.handlers.zeromq._filter import Filter
from trackside.handlers.zeromq._outlet import OLDEST
from trackside.handlers.zeromq._protocol import (
    BEAT_S,
    CHUNK_BYTES,
    MAX_SNAPSHOT_BYTES,
    WINDOW_BYTES,
    Ack,
    Beat,
    Chunk,
    Fetch,
    FrameEntry,
    LossEntry,
    Message,
    Replay,
    Skipped,
    Subscribe,
    Subscribed,
)

_ACK_BYTES: Final = 32 << 10
_ACK_ENTRIES: Final = 128
_LOOK_S: Final = 0.05
"""How long a hole is given to fill by itself: what was overtaken is still to come."""
_ASK_AGAIN_S: Final = 0.5
_MOST_HELD: Final = 4096
_FETCH: Final = 4

Entry: TypeAlias = "FrameEntry | LossEntry"


@attrs.define(eq=False)
class Feed:
    """
    What one source end sends, each entry once and in order, whatever the link does.

    Does no input or output of its own: messages go in by `on`, out by *send*. For one thread.

    Args:
        send: Sends a message to the source end; may fail to, everything is asked again.
        take: Given each entry in its turn, and the bytes of a snapshot of the sources before the first.
        introduce: Given that snapshot.
        window_bytes: What may be on its way and not acknowledged.
        wanted: What to ask for.
        models: Whose states to ask for.
    """

    send: Callable[[Message], object]
    take: Callable[[Entry], object]
    introduce: Callable[[bytes], object]
    window_bytes: int = WINDOW_BYTES
    stream: str = OLDEST
    wanted: Filter = attrs.field(factory=Filter)
    models: Sequence[str] = ()
    due: int = 0
    """The index that comes next."""
    before: int = 0
    """Events in the entries before it."""
    skipped_events: int = 0
    """Given up by the source end, as it said."""
    repeated: int = 0
    """Entries that came twice."""
    replays: int = 0
    """How often entries had to be asked for again."""
    is_subscribed: bool = False
    _request: int = 1
    _asked_s: float = -1e9
    _hole_s: float | None = None
    _seen: int = 0
    """The index after the highest one known of."""
    _held: dict[int, tuple[Message, int]] = attrs.field(factory=dict)
    _held_bytes: int = 0
    _unacked_bytes: int = 0
    _acked: int = 0
    _chunks: list[bytes | None] | None = None

    @property
    def is_introduced(self) -> bool:
        """Whether it knows where the stream begins."""
        return self.is_subscribed and self._chunks is None

    @property
    def is_restless(self) -> bool:
        """Whether something was asked for and did not come yet."""
        return not self.is_subscribed or self._chunks is not None or self._seen > self.due

    def restart(self) -> None:
        """Begin the conversation again: the link was made anew."""
        self.is_subscribed = False
        self._asked_s = -1e9
        self._request += 1

    def refresh(self) -> None:
        """Give up what is due, and begin anew with a snapshot of this moment."""
        self.stream = ""
        self._held.clear()
        self._held_bytes = 0
        self.restart()

    def tick(self, now_s: float) -> None:
        """Ask for what has not come, if it is time to."""
        if not self.is_subscribed:
            self._subscribe(now_s)
        elif self._chunks is not None:
            if now_s - self._asked_s >= _ASK_AGAIN_S:
                self._fetch(now_s)
        elif self._seen > self.due:
            if self._hole_s is None:
                self._hole_s = now_s
            if now_s - self._hole_s >= _LOOK_S and now_s - self._asked_s >= _ASK_AGAIN_S:
                self._asked_s = now_s
                self.replays += 1
                self.send(Replay(self.stream, self.due))

    def on(self, message: Message, size_bytes: int, now_s: float) -> None:
        """Take a *message* of *size_bytes* into account; those of other kinds are passed over."""
        if isinstance(message, Subscribed):
            self._begin(message, now_s)
        elif isinstance(message, Chunk):
            self._add_chunk(message, now_s)
        elif not self.is_subscribed or getattr(message, "stream", None) != self.stream:
            return
        elif isinstance(message, (FrameEntry, LossEntry)):
            self._add(message.index, message, size_bytes)
        elif isinstance(message, Skipped):
            if message.next_index > message.index:
                self._add(message.index, message, size_bytes)
        elif isinstance(message, Beat):
            self._seen = max(self._seen, message.next_index)
            if self._chunks is None:  # an acknowledgement says that the snapshot is there, too
                self._acknowledge()

    # --- asking -------------------------------------------------------------------------------------------------------

    def _subscribe(self, now_s: float) -> None:
        if now_s - self._asked_s < BEAT_S:
            return
        self._asked_s = now_s
        self.send(
            Subscribe(
                request=self._request,
                names=list(self.wanted.names),
                detail=self.wanted.detail,
                rule=self.wanted.rule,
                models=list(self.models),
                resume_stream=self.stream,
                resume_index=self.due,
                window_bytes=self.window_bytes,
            )
        )

    def _begin(self, told: Subscribed, now_s: float) -> None:
        if self.is_subscribed or told.request != self._request:
            return  # an answer that came twice
        self.is_subscribed = True
        self._hole_s = None
        self._unacked_bytes = 0
        if not told.resumed or told.stream != self.stream:
            self._held.clear()
            self._held_bytes = 0
            self.stream, self.due, self.before = told.stream, told.next_index, told.before
        self._seen = self._acked = self.due
        if told.snapshot_chunks and told.snapshot_bytes <= MAX_SNAPSHOT_BYTES:
            self._chunks = [None] * min(told.snapshot_chunks, MAX_SNAPSHOT_BYTES // CHUNK_BYTES)
            self._fetch(now_s)
        else:
            self._chunks = None

    def _fetch(self, now_s: float) -> None:
        self._asked_s = now_s
        chunks = self._chunks or []
        first = next((number for number, data in enumerate(chunks) if data is None), len(chunks))
        self.send(Fetch(self._request, first, min(_FETCH, len(chunks) - first)))

    def _add_chunk(self, chunk: Chunk, now_s: float) -> None:
        chunks = self._chunks
        if chunks is None or chunk.request != self._request or chunk.number >= len(chunks):
            return
        chunks[chunk.number] = chunk.data
        if None not in chunks:
            self._chunks = None
            self.introduce(b"".join(data for data in chunks if data is not None))
            self._drain()
        elif chunk.number % _FETCH == _FETCH - 1:
            self._fetch(now_s)

    # --- taking -------------------------------------------------------------------------------------------------------

    def _add(self, index: int, message: Message, size_bytes: int) -> None:
        self._seen = max(self._seen, index + 1)
        end = message.next_index if isinstance(message, Skipped) else index + 1
        place = max(index, self.due)
        if end <= self.due or place in self._held:
            self.repeated += 1
            return
        if index > self.due and (self._held_bytes + size_bytes > WINDOW_BYTES or len(self._held) >= _MOST_HELD):
            return  # it will be asked for again
        self._held[place] = (message, size_bytes)
        self._held_bytes += size_bytes
        if self._chunks is None:
            self._drain()

    def _drain(self) -> None:
        while self.due in self._held:
            message, size_bytes = self._held.pop(self.due)
            self._held_bytes -= size_bytes
            self._unacked_bytes += size_bytes
            self._hole_s = None
            if isinstance(message, Skipped):
                self.skipped_events += max(0, message.before - self.before)
                self.due, self.before = message.next_index, message.before
                self._forget_passed()
            elif isinstance(message, (FrameEntry, LossEntry)):
                self.due += 1
                self.before = message.before + (message.events if isinstance(message, FrameEntry) else 0)
                self.take(message)
        if self._unacked_bytes >= _ACK_BYTES or self.due - self._acked >= _ACK_ENTRIES:
            self._acknowledge()

    def _forget_passed(self) -> None:
        for index in [index for index in self._held if index < self.due]:
            self._held_bytes -= self._held.pop(index)[1]

    def _acknowledge(self) -> None:
        self._unacked_bytes, self._acked = 0, self.due
        self.send(Ack(self.stream, self.due))
