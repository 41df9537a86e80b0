"""The viewer end of a socket: it delivers each entry of each stream once and in order, whatever the connection does."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import attrs

from trackside.core import RateLimitedLog, described
from trackside.events import (
    ClockCompared,
    DecodeError,
    Event,
    Heartbeat,
    RankFellSilent,
    RankSpokeAgain,
    Source,
    SourceEnded,
    SourceStarted,
    clock,
)
from trackside.handlers.models.liveness import LifeSigns, died_after_ns, silent_after_ns
from trackside.handlers.zeromq._protocol import (
    ALL_RECEIVE_WINDOWS_BYTES,
    BEAT_S,
    CHUNK_BYTES,
    DISTRUSTED_SNAPSHOT_BYTES,
    FORGET_AFTER_S,
    LEAST_WINDOW_BYTES,
    MAX_OPEN_SPANS_BYTES,
    MAX_OUT_OF_ORDER,
    MAX_PRODUCERS,
    MAX_PRODUCERS_OF_ADDRESS,
    MAX_SNAPSHOT_BYTES,
    MAX_SOURCES_BYTES,
    OLDEST,
    SETTLED_AFTER_S,
    SNAPSHOT_WITHIN_S,
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
    PeerBuckets,
    PeerLimits,
    Ping,
    Pong,
    Refused,
    ReplayRequest,
    Result,
    Skipped,
    Subscribe,
    Subscribed,
    Verb,
    chunk_count,
    limits_of_address,
    limits_of_newcomers,
)
from trackside.handlers.zeromq._session import Action, Role, Send, Sent, Sessions
from trackside.wire import Frame, RowEncoder, SequenceTracker, encode_frame, pack
from trackside.wire._sequence import MAX_COUNT, MAX_HOLES, count_of

GRACE_S: Final = 10.0
"""The time in which a source that is known from the log alone must come back to a restarted collector."""
FORWARDS: Final = "forwards"
"""The key, in the status of a beat, of whether its sender is a forwarder, which sends the streams of other sources."""
QUIET: Final = "quiet"
"""The key, in a forwarder's status, of the ids of sources that are alive and sent nothing since the last beat."""
SOURCE: Final = "source"
"""The key, in a status, of the id of this end's own source."""
_MAIN_THREAD: Final = "MainThread"
_COLLECTOR: Final = "collector"


@attrs.define(eq=False)
class SourceState:
    """The state of one source."""

    source: Source
    heard_s: float
    tracker: SequenceTracker = attrs.field(factory=SequenceTracker)
    """The numbers that came, those that are missing, and those that came twice."""
    events: int = 0
    """Its events that came, each counted once."""
    dropped: int = 0
    """Its events that were dropped before they had a number."""
    producer: Producer | None = None
    """The peer over which it was received last; None if it is known from the log alone."""
    silent_s: float | None = None
    """The time when it was found silent; None while it is not."""
    signs: LifeSigns = attrs.field(factory=LifeSigns)
    """The signs that it is alive, or not; times are by its own clock."""
    is_restored: bool = False
    """Whether it is known from the log alone."""
    last_step: int = -1
    open_spans: dict[str, list[Any]] = attrs.field(factory=dict)

    def admit(self, frame: Frame) -> list[Event]:
        """Return the events of *frame* that did not come before, and update the state from them."""
        self.source = frame.source
        self.dropped = min(sum(frame.dropped.values()), MAX_COUNT)
        events = self.tracker.admit(frame)
        self.events += len(events)
        for event in events:
            self.last_step = max(self.last_step, event.step)
            self.signs.read(event)
            if type(event) is Heartbeat:
                self.open_spans = _bounded(event.open_spans)
        return events

    def dump(self) -> dict[str, Any]:
        """Return the state as plain data, without the producer."""
        tracker = self.tracker
        return {
            "source": self.source.to_wire(),
            "heard_s": self.heard_s,
            "silent_s": self.silent_s,
            "numbers": [tracker.next_seq, tracker.missing, tracker.repeated],
            "holes": tracker.holes,
            "counts": [self.events, self.dropped, self.last_step],
            "signs": attrs.asdict(self.signs),
            "open_spans": self.open_spans,
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> SourceState:
        """Return the state that `dump` wrote; call it within `decoding`, which turns any exception into one error."""
        next_seq, missing, repeated = map(count_of, state["numbers"])
        events, dropped, last_step = state["counts"]
        holes, open_spans = state["holes"], dict(state["open_spans"])
        heard_s, silent_s = float(state["heard_s"]), state["silent_s"]
        signs = LifeSigns(**state["signs"])
        numbers = [last_step, signs.last_ns or 0, signs.heartbeat_interval_ns or 0, signs.exit_status or 0]
        is_sound = (
            len(holes) <= MAX_HOLES
            and all(type(spans) is list for spans in open_spans.values())
            and math.isfinite(heard_s + float(silent_s or 0))
            and all(type(number) is int for number in numbers)
            and isinstance(signs.end_reason, str | None)
        )
        if not is_sound:
            raise DecodeError("not the state of a source")
        return cls(
            Source.from_wire(state["source"]),
            heard_s,
            tracker=SequenceTracker(next_seq, missing, [(count_of(a), count_of(b)) for a, b in holes], repeated),
            events=count_of(events),
            dropped=count_of(dropped),
            silent_s=None if silent_s is None else float(silent_s),
            signs=signs,
            last_step=last_step,
            open_spans=_bounded(open_spans),
        )

    @property
    def ended(self) -> str | None:
        """The reason of its end, as it reported it; None if it did not."""
        return self.signs.end_reason

    @property
    def last_ns(self) -> int:
        """The time of its latest event, by its own clock; in ns since the epoch."""
        return self.signs.last_ns or 0

    @property
    def span(self) -> str:
        """The name of the innermost span open at the last heartbeat, of the main thread if it had one."""
        threads = self.open_spans
        found = threads.get(_MAIN_THREAD) or next(iter(threads.values()), [])
        return str(found[1]) if len(found) > 1 else ""


def _bounded(open_spans: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return those *open_spans* that are small enough to record: all, those of the main thread, or none."""
    main = {_MAIN_THREAD: open_spans.get(_MAIN_THREAD, [])}
    return next((spans for spans in (open_spans, main) if len(pack(spans)) <= MAX_OPEN_SPANS_BYTES), {})


class SourceRegistry:
    """
    The states of all sources by id, and which of them have fallen silent.

    Args:
        silent_after_s: The time after which a source without news is silent; by default by the rule of `liveness`.
        unasked_interval_s: The time between two signs of a source that sends no heartbeats, in seconds; by default the
        interval of beats. None if there is no connection to it.
    """

    def __init__(self, silent_after_s: float | None = None, *, unasked_interval_s: float | None = BEAT_S) -> None:
        self.states: dict[str, SourceState] = {}
        self.least_silence_s = 0.0
        """The shortest time without news after which a source is silent, unless *silent_after_s* is given."""
        self._silent_after_s = silent_after_s
        self._unasked_interval_ns = None if unasked_interval_s is None else round(unasked_interval_s * 1e9)

    def state_of(self, source: Source, now_s: float) -> SourceState:
        """Return the state of *source*, a new one if it is unknown."""
        state = self.states.get(source.id)
        if state is None:
            state = self.states[source.id] = SourceState(source, now_s)
        return state

    def hear(self, state: SourceState, now_s: float) -> RankSpokeAgain | None:
        """Note a sign of life of *state*; return the event to publish about it, if any."""
        silent_s, heard_s = state.silent_s, state.heard_s
        state.heard_s = max(state.heard_s, now_s)
        state.silent_s = None
        is_news = silent_s is not None and not state.is_restored
        state.is_restored = False
        if not is_news:
            return None
        source = state.source
        return RankSpokeAgain(
            source_id=source.id,
            run_id=source.run_id,
            rank=source.rank,
            attempt=source.attempt,
            silent_s=round(now_s - heard_s, 3),
            span_id=0,
            step=state.last_step,
        )

    def hear_all(self, names: Iterable[str], now_s: float) -> Iterator[RankSpokeAgain]:
        """Note a sign of life of the known sources among *names*; yield the events to publish about them."""
        for name in names:
            state = self.states.get(name)
            if state is not None and (said := self.hear(state, now_s)) is not None:
                yield said

    def is_gone(self, state: SourceState, now_s: float) -> bool:
        """
        Return whether *state* has been silent for so long that the process counts as dead, or since its log was read.
        """
        interval_ns = state.signs.heartbeat_interval_ns or round(BEAT_S * 1e9)
        is_dead = state.producer is None or now_s - state.heard_s > died_after_ns(interval_ns) / 1e9
        return state.silent_s is not None and is_dead

    def silent(self, now_s: float, now_ns: int) -> Iterator[RankFellSilent]:
        """
        Yield an event for each source that has just become silent.

        Args:
            now_s: The time now, by the clock of `hear`.
            now_ns: The time now, in ns since the epoch.
        """
        for state in self.states.values():
            unheard_s = now_s - state.heard_s
            after_s = self._silent_after_s
            if after_s is None:
                interval_ns = state.signs.heartbeat_interval_ns or self._unasked_interval_ns
                after_s = max(self.least_silence_s, silent_after_ns(interval_ns) / 1e9)
            if unheard_s < after_s or state.ended is not None or state.silent_s is not None:
                continue
            state.silent_s = now_s
            source = state.source
            if source.role == _COLLECTOR:
                continue
            last_ns = state.last_ns if state.is_restored else now_ns - int(unheard_s * 1e9)
            yield RankFellSilent(
                source_id=source.id,
                run_id=source.run_id,
                rank=source.rank,
                attempt=source.attempt,
                host=source.host,
                pid=source.pid,
                last_seq=state.tracker.next_seq - 1,
                last_heard_ns=last_ns,
                silent_s=round((now_ns - last_ns) / 1e9, 3),
                span=state.span,
                open_spans=state.open_spans,
                span_id=0,
                step=state.last_step,
            )

    def alive_over(self, sources: Iterable[str], status: Mapping[str, Any]) -> list[str]:
        """
        Return the sources that are alive because something came over a connection.

        Args:
            sources: The sources whose entries came over it.
            status: The latest status of the other end. Behind a forwarder only the sources that it names are alive.
        """
        if not status.get(FORWARDS):
            return list(sources)
        quiet = status.get(QUIET)
        return [name for name in quiet if type(name) is str] if type(quiet) is list else []

    def totals(self) -> dict[str, int]:
        """Return the counts over all sources except collectors."""
        states = [state for state in self.states.values() if state.source.role != _COLLECTOR]
        counts = {
            "sources": len(states),
            "silent": sum(state.silent_s is not None for state in states),
            "ended": sum(state.ended is not None for state in states),
            "events": sum(state.events for state in states),
            "lost": sum(state.tracker.missing for state in states),
            "repeated": sum(state.tracker.repeated for state in states),
            "dropped": sum(state.dropped for state in states),
        }
        return {name: min(count, MAX_COUNT) for name, count in counts.items()}


COLLECTORS: Final = "collectors"
"""The run id of collectors and forwarders, which belong to none of the runs that they receive."""


class OwnStream:
    """
    Numbers and encodes the collector's own events, each in a frame of its own, because there are few.

    Args:
        source: The identity of the stream's source.
        deliver: Called with each event, its frame, and its number.
    """

    def __init__(self, source: Source, deliver: Callable[[Event, bytes, int], object]) -> None:
        self.source = source
        self.next_seq: int = 0
        self.invalid: int = 0
        """Events that could not be encoded; they have no number."""
        self._deliver = deliver
        self._trouble = RateLimitedLog()
        self._encoder = RowEncoder()
        self._is_ended = False
        self.publish(SourceStarted(identity=source.to_wire(), span_id=0, step=-1))

    def publish(self, event: Event) -> None:
        """Publish *event*."""
        if self._is_ended:
            return
        seq = self.next_seq
        try:
            schema, row = self._encoder.encode(event, 0)
            frame = encode_frame(self.source.id, seq, seq, dropped={}, schemas=[schema.entry], rows=[row])
        except Exception as error:  # the event may quote a text that a peer sent
            self.invalid += 1
            self._trouble.complain("an event of %s cannot be recorded: %s", type(event).__name__, described(error))
            return
        self.next_seq += 1
        event._source = self.source  # noqa: SLF001  as the decoder does: the event is numbered here
        event._seq = seq  # noqa: SLF001
        self._deliver(event, frame, seq)

    def end(self, reason: str) -> None:
        """Publish the last event: the end of the stream, with the reason."""
        self.publish(SourceEnded(reason=reason, span_id=0, step=-1))
        self._is_ended = True


_EXCHANGES: Final = 16
_BETTER: Final = 0.8
_MOST_APART_NS: Final = 1 << 62
"""A century and a half; no two clocks differ by more."""


@attrs.frozen
class Offset:
    """The time by which the other clock is ahead of this one, as measured by one exchange."""

    offset_ns: int
    uncertainty_ns: int
    """The true offset differs from *offset_ns* by at most this, however long each way took."""


class ClockEstimate:
    """
    The offset of one peer's clock, from the quickest of the last sixteen exchanges.

    A reply that was quick leaves little room for error: the true offset differs from the estimate by at most half of
    the round trip (D. L. Mills, RFC 5905, section 8). Older exchanges are forgotten, because clocks drift.
    """

    def __init__(self) -> None:
        self.exchanges: int = 0
        self._recent: deque[Offset] = deque(maxlen=_EXCHANGES)
        self._published: Offset | None = None
        self._is_fresh = False

    def add(self, sent_ns: int, received_ns: int, replied_ns: int, now_ns: int) -> None:
        """
        Add one exchange.

        Args:
            sent_ns: When the question left, by this clock.
            received_ns: When the question arrived, by the other clock.
            replied_ns: When the answer left, by the other clock.
            now_ns: When the answer arrived, by this clock.
        """
        round_trip_ns = (now_ns - sent_ns) - (replied_ns - received_ns)
        if round_trip_ns < 0 or replied_ns < received_ns or abs(received_ns - sent_ns) > _MOST_APART_NS:
            return  # correct clocks cannot show such times
        self.exchanges += 1
        self._is_fresh = True
        offset_ns = ((received_ns - sent_ns) + (replied_ns - now_ns)) // 2
        self._recent.append(Offset(offset_ns, (round_trip_ns + 1) // 2))

    @property
    def best(self) -> Offset | None:
        """The offset from the quickest of the recent exchanges; None before the first."""
        return min(self._recent, key=lambda one: one.uncertainty_ns, default=None)

    def news(self) -> Offset | None:
        """Return the best estimate if it is better than the last one returned, or has moved; else None."""
        if not self._is_fresh:
            return None
        self._is_fresh = False
        best, published = self.best, self._published
        if best is None:
            return None
        if published is not None:
            is_better = best.uncertainty_ns < published.uncertainty_ns * _BETTER
            has_moved = abs(best.offset_ns - published.offset_ns) > best.uncertainty_ns + published.uncertainty_ns
            if not is_better and not has_moved:
                return None
        self._published = best
        return best


_ACK_BYTES: Final = 32 << 10
_ACK_ENTRIES: Final = 128
_HOLE_S: Final = 0.05
"""The time for which a hole is left to fill by itself: an entry that was overtaken will still come."""
_ASK_AGAIN_S: Final = 0.5
_FETCH: Final = 4

Entry: TypeAlias = "FrameEntry | LossEntry"


@attrs.define
class SnapshotBudget:
    """The budget of bytes for the snapshots that one viewer end fetches from all source ends."""

    one_bytes: int = MAX_SNAPSHOT_BYTES
    all_bytes: int = MAX_SNAPSHOT_BYTES
    reserved_bytes: int = 0

    def reserve(self, size_bytes: int, *, is_trusted: bool) -> bool:
        """Reserve *size_bytes*; False if there is no room for them now, or not for this producer."""
        most = self.one_bytes if is_trusted else min(self.one_bytes, DISTRUSTED_SNAPSHOT_BYTES)
        if size_bytes > most or self.reserved_bytes + size_bytes > self.all_bytes:
            return False
        self.reserved_bytes += size_bytes
        return True

    def release(self, size_bytes: int) -> None:
        """Release *size_bytes*."""
        self.reserved_bytes -= size_bytes


@attrs.define(eq=False)
class StreamConsumer:
    """
    Delivers the entries that one source end sends, each once and in order, whatever the connection does.

    It does no input or output of its own: `on` accepts messages, and *send* sends them. Only one thread may use it.

    Args:
        send: Sends a message to the source end; it may fail, because every request is repeated.
        deliver: Called with each entry, in order.
        introduce: Called with the bytes of a snapshot of the sources, before the first entry.
        window_bytes: The most bytes that may be on their way and not acknowledged.
        wanted: The events to ask for.
        models: The models whose states to ask for.
        budget: The budget of bytes for the snapshots.
    """

    send: Callable[[Message], object]
    deliver: Callable[[Entry], object]
    introduce: Callable[[bytes], object]
    window_bytes: int = WINDOW_BYTES
    stream: str = OLDEST
    wanted: Filter = attrs.field(factory=Filter)
    models: Sequence[str] = ()
    budget: SnapshotBudget = attrs.field(factory=SnapshotBudget)
    due: int = 0
    """The index that comes next."""
    before: int = 0
    """Events in the entries before the one with index *due*."""
    skipped_events: int = 0
    """Events that the source end reported as skipped."""
    repeated: int = 0
    """Entries that came twice."""
    replays: int = 0
    """The number of times that entries had to be asked for again."""
    unfinished_snapshots: int = 0
    """Snapshots that were announced and not sent in time."""
    is_subscribed: bool = False
    _request: int = 1
    _asked_s: float = -1e9
    _hole_s: float | None = None
    _seen: int = 0
    """The index after the highest known one."""
    _held: dict[int, tuple[Message, int]] = attrs.field(factory=dict)
    _held_bytes: int = 0
    _unacked_bytes: int = 0
    _acked: int = 0
    _chunks: list[bytes | None] | None = None
    _reserved_bytes: int = 0
    _fetch_by_s: float = 0.0
    _from_stream: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._from_stream = self.stream

    @property
    def is_introduced(self) -> bool:
        """Whether the beginning of the stream is known."""
        return self.is_subscribed and self._chunks is None

    @property
    def is_restless(self) -> bool:
        """Whether a request is not answered yet."""
        return not self.is_subscribed or self._chunks is not None or self._seen > self.due

    def restart(self) -> None:
        """Begin the session again, because the connection is a new one."""
        if self._chunks is not None:
            self._forget_stream(self._from_stream)  # the stream has no beginning without its snapshot
        self.close()
        self.is_subscribed = False
        self._asked_s = -1e9
        self._request += 1

    def _forget_stream(self, stream: str) -> None:
        self.stream = stream
        self._held.clear()
        self._held_bytes = 0

    def close(self) -> None:
        """Release the parts of a snapshot that have come."""
        self._chunks = None
        self.budget.release(self._reserved_bytes)
        self._reserved_bytes = 0

    def refresh(self) -> None:
        """Skip the entries that are due, and begin anew with a snapshot of this moment."""
        self._forget_stream("")
        self.restart()

    def tick(self, now_s: float) -> None:
        """Repeat the requests that are due."""
        if not self.is_subscribed:
            self._subscribe(now_s)
        elif self._chunks is not None:
            if now_s > self._fetch_by_s:
                self.unfinished_snapshots += 1
                self.restart()
            elif now_s - self._asked_s >= _ASK_AGAIN_S:
                self._fetch(now_s)
        elif self._seen > self.due:
            if self._hole_s is None:
                self._hole_s = now_s
            if now_s - self._hole_s >= _HOLE_S and now_s - self._asked_s >= _ASK_AGAIN_S:
                self._asked_s = now_s
                self.replays += 1
                self.send(ReplayRequest(self.stream, self.due))

    def on(self, message: Message, size_bytes: int, now_s: float) -> None:
        """Process a *message* of *size_bytes*; ignore messages of other kinds and other streams."""
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
            if self._chunks is None:  # an acknowledgement means that the snapshot has come, too
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
                min_priority=self.wanted.min_priority,
                rule=self.wanted.rule,
                models=list(self.models),
                resume_stream=self.stream,
                resume_index=self.due,
                window_bytes=self.window_bytes,
            )
        )

    def _begin(self, answer: Subscribed, now_s: float) -> None:
        if self.is_subscribed or answer.request != self._request:
            return  # this answer came twice, or is to an earlier request
        if answer.snapshot_chunks != chunk_count(answer.snapshot_bytes):
            raise DecodeError("a snapshot of so many bytes has another number of chunks")
        if not self.budget.reserve(answer.snapshot_bytes, is_trusted=not self.unfinished_snapshots):
            return  # the snapshot is asked for again
        self._reserved_bytes = answer.snapshot_bytes
        self.is_subscribed = True
        self._hole_s = None
        self._unacked_bytes = 0
        if not answer.resumed or answer.stream != self.stream:
            self._held.clear()
            self._held_bytes = 0
            self.stream, self.due, self.before = answer.stream, answer.next_index, answer.before
        self._seen = self._acked = self.due
        if answer.snapshot_chunks:
            self._chunks = [None] * answer.snapshot_chunks
            self._fetch_by_s = now_s + SNAPSHOT_WITHIN_S
            self._fetch(now_s)
        else:
            self._drain()

    def _fetch(self, now_s: float) -> None:
        self._asked_s = now_s
        chunks = self._chunks or []
        first = next((number for number, data in enumerate(chunks) if data is None), len(chunks))
        self.send(Fetch(self._request, first, min(_FETCH, len(chunks) - first)))

    def _add_chunk(self, chunk: Chunk, now_s: float) -> None:
        chunks = self._chunks
        if chunks is None or chunk.request != self._request or chunk.number >= len(chunks):
            return
        due = min(CHUNK_BYTES, self._reserved_bytes - chunk.number * CHUNK_BYTES)
        if len(chunk.data) != due:
            raise DecodeError(f"a chunk of {len(chunk.data)} bytes; it is one of {due}")
        chunks[chunk.number] = chunk.data
        if None not in chunks:
            self.close()
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
        if index > self.due and (self._held_bytes + size_bytes > WINDOW_BYTES or len(self._held) >= MAX_OUT_OF_ORDER):
            return  # the entry will be asked for again
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
                self.deliver(message)
        if self._unacked_bytes >= _ACK_BYTES or self.due - self._acked >= _ACK_ENTRIES:
            self._acknowledge()

    def _forget_passed(self) -> None:
        for index in [index for index in self._held if index < self.due]:
            self._held_bytes -= self._held.pop(index)[1]

    def _acknowledge(self) -> None:
        self._unacked_bytes, self._acked = 0, self.due
        self.send(Ack(self.stream, self.due))


_ROUNDS: Final = 5
_MANY: Final = 256
_ROUNDS_OF_MANY: Final = 20
_FIRST_PINGS: Final = 16
_FIRST_PING_S: Final = 0.1
_MOST_FIRST_PINGS_PER_S: Final = 1000.0
"""The most to all senders together: with thousands of them, events are more urgent than the comparison of clocks."""
_PING_S: Final = 5.0
_LEAST_EXCHANGES: Final = 8
_MOST_COMPARED: Final = 64


class Origin:
    """
    An address from which producers connect (with one key, if there are keys), and their common allowance.

    Args:
        limits: The limits of one producer.
        now_s: The time now.
    """

    def __init__(self, limits: PeerLimits, now_s: float) -> None:
        self.heard_s = now_s
        self.producers = 0
        """The number of its known producers, including those that were not heard for a while."""
        self.together: PeerBuckets = PeerBuckets(limits_of_address(limits), now_s)
        self.newcomers: PeerBuckets = PeerBuckets(limits_of_newcomers(limits), now_s, within=self.together)
        """The allowance of producers that have not greeted or not settled: a new name brings no new allowance."""


@attrs.define(eq=False)
class Producer:
    """A source end that sends here: a rank's, or that of a forwarder with all ranks of its node."""

    address: bytes
    id: str
    text: str
    user: str
    """Role and fingerprint of its key; empty without keys."""
    consumer: StreamConsumer
    buckets: PeerBuckets
    heard_s: float
    greeted_s: float = 0.0
    """The time of its first message."""
    is_settled: bool = False
    """Whether it has been connected for long enough to have an allowance of its own."""
    clock: ClockEstimate = attrs.field(factory=ClockEstimate)
    sources: set[str] = attrs.field(factory=set)
    """The ids of the sources that were received over it."""
    status: dict[str, Any] = attrs.field(factory=dict)
    """Its latest status."""
    is_known: bool = False
    """Whether it has sent a status: only then is it known whether other sources are behind it."""
    has_left: bool = False
    pinged_s: float = -1e9
    pings: int = 0
    cut_reported: int = 0
    cut_reported_s: float = -1e9
    cut_since_ns: int = 0
    origin: Origin | None = None
    """The origin to which it belongs."""

    @property
    def name(self) -> str:
        """The name to show to people."""
        return f"{self.user} {self.text}".strip()


def clock_news(producer: Producer) -> Iterator[ClockCompared]:
    """Yield the latest comparison of the clock of *producer*, for each of its sources, if it is new."""
    named = producer.status.get(SOURCE) if producer.status.get(FORWARDS) else None
    names = [named] if isinstance(named, str) else sorted(producer.sources)[:_MOST_COMPARED]
    # An offset is published once, so not before its source is known.
    if not producer.is_known or producer.clock.exchanges < _LEAST_EXCHANGES or not names:
        return
    news = producer.clock.news()
    if news is None:
        return
    for name in names:
        yield ClockCompared(
            source_id=name,
            offset_ns=news.offset_ns,
            uncertainty_ns=news.uncertainty_ns,
            exchanges=producer.clock.exchanges,
            span_id=0,
            step=-1,
        )


class Listener(Protocol):
    """The interface that a receiver reports to."""

    def on_entry(self, producer: Producer, entry: Entry) -> object:
        """Process the next entry of *producer*; entries come in order, each once."""

    def on_introduction(self, producer: Producer, snapshot: bytes) -> object:
        """Read the identities of the sources from a *snapshot*."""

    def on_heard(self, producer: Producer, message: Message | None) -> object:
        """Note that *producer* sent something, so it is alive; *message* is None if it was not read."""


class Receiver:
    """
    Receives streams from any number of source ends, without input or output of its own. Only one thread may use it.

    Args:
        listener: The object that is called with everything that was received.
        send: Sends to an address.
        on_result: Called with a producer's answer to a verb.
        limits: The limits of each producer.
        origin_of: Returns the address from which the message that is being received came.
        own_id: The id of this end; random unless given.
        monotonic_s: The clock.
        cpu_s: Returns the processor time that this thread has used.
    """

    def __init__(
        self,
        listener: Listener,
        send: Send,
        *,
        on_result: Callable[[Producer, Result | Refused], object] = lambda _producer, _message: None,
        limits: PeerLimits | None = None,
        origin_of: Callable[[], str] = str,
        own_id: str | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._sessions: Sessions[Producer] = Sessions(Role.RECEIVER, send, own_id=own_id)
        self.producers: dict[bytes, Producer] = self._sessions.peers
        """The producers, by address."""
        self.counts: Counter[str] = self._sessions.counts
        """
        The counts of the sessions, ``malformed``, ``cut``, ``cut_bytes``, and ``repeated`` and ``replays`` of producers
        that were forgotten.
        """
        self._by_id: dict[str, Producer] = {}
        self._due: list[Producer] = []
        self._share = 0
        self._restless: set[Producer] = set()
        self._listener = listener
        self._on_result = on_result
        self._limits = limits or PeerLimits()
        self._now = monotonic_s
        self._cpu_s = cpu_s
        self._snapshots = SnapshotBudget(one_bytes=MAX_SOURCES_BYTES)
        self._origin_of = origin_of
        self._origins: dict[tuple[str, str], Origin] = {}
        """The origins, by key and address."""
        self._swept_s = monotonic_s()
        self._gone: list[tuple[Producer, bytes]] = []

    def receive(self, messages: Iterable[tuple[bytes, Sequence[bytes], str]]) -> None:
        """
        Process *messages*.

        Args:
            messages: For each message, the address for an answer, the parts, and the role and fingerprint of the key of
                the connection, as in ``rank:0123abcd``.
        """
        # The clock is read once for each message, because that takes as long as decoding a small message.
        cpu_s: float | None = self._cpu_s()
        for address, parts, user in messages:
            now_s, size = self._now(), sum(map(len, parts))
            producer = self._sender(address, user, now_s)
            buckets = producer.buckets if producer is not None else self._origin(user, now_s).newcomers
            if not buckets.admit(size, now_s):
                self._cut(producer, size, now_s)
                cpu_s = None  # the time of this message must not be charged to the next
                continue
            before_s = self._cpu_s() if cpu_s is None else cpu_s
            events = buckets.charged_events
            try:
                self._receive(address, parts, user, producer=producer, now_s=now_s)
            except DecodeError:
                self.counts["malformed"] += 1
            except Exception as error:
                # No message of one sender may end the thread that serves all of them.
                self._sessions.note_failure(error)
                if producer is not None:
                    self._forget(producer)
            cpu_s = self._cpu_s()
            buckets.charge_cpu(cpu_s - before_s, size, buckets.charged_events - events)

    def _sender(self, address: bytes, user: str, now_s: float) -> Producer | None:
        """Return the producer at *address*, or None if it has to greet first."""
        producer = self.producers.get(address)
        if producer is None:
            return None
        if producer.user != user:  # another connection under the same address
            self._forget(producer)
            return None
        if not producer.is_settled and now_s - producer.greeted_s >= SETTLED_AFTER_S:
            producer.is_settled = True
            producer.buckets.settle(self._origin(user, now_s).together, now_s)
        return producer

    def _origin(self, user: str, now_s: float) -> Origin:
        """Return the origin of the message that is being received."""
        name = (user, self._origin_of())
        if name not in self._origins and len(self._origins) >= MAX_PRODUCERS:
            name = ("", "")  # many addresses must not bring many allowances
        origin = self._origins.get(name)
        if origin is None:
            origin = self._origins[name] = Origin(self._limits, now_s)
        origin.heard_s = now_s
        return origin

    def _receive(
        self, address: bytes, parts: Sequence[bytes], user: str, *, producer: Producer | None, now_s: float
    ) -> None:
        now_ns = clock.now_ns()
        action, message = self._sessions.receive(address, parts, user, now_ns)
        if isinstance(message, Hello) and action is Action.MEET:
            self._meet(address, message, user, now_s)
        elif producer is not None:
            producer.heard_s = now_s
            self._listener.on_heard(producer, message)
            if action is Action.PART:
                producer.has_left = True  # messages that it sent before may still come
            elif isinstance(message, Refused):
                self._on_result(producer, message)
            elif action is Action.DELIVER:
                self._on(producer, message, sum(map(len, parts)), now_s, now_ns)

    def _cut(self, producer: Producer | None, size: int, now_s: float) -> None:
        self.counts["cut"] += 1
        self.counts["cut_bytes"] += size
        if producer is not None:  # it sends too much, so it is alive
            producer.heard_s = now_s
            self._listener.on_heard(producer, None)

    def tick(self) -> None:
        """Do the work that is due; to be called about every 50 ms. Each producer has its turn within a second."""
        now_s = self._now()
        gone, self._gone = self._gone, []
        for producer, address in gone:
            if producer.address == address:  # it has not come back meanwhile
                self._forget(producer)
        if now_s - self._swept_s > FORGET_AFTER_S:
            self._swept_s = now_s
            self._forget_origins(now_s)
        if not self._due:
            self._due = list(self.producers.values())
            self._share = -(-len(self._due) // (_ROUNDS if len(self._due) <= _MANY else _ROUNDS_OF_MANY))
        turn, self._due = self._due[: self._share], self._due[self._share :]
        restless, self._restless = self._restless, set()
        for producer in {*turn, *restless}:
            if self._by_id.get(producer.id) is not producer:
                continue  # it was forgotten meanwhile; another producer may have its address now
            if now_s - producer.heard_s > FORGET_AFTER_S:
                self._forget(producer)
            elif not producer.has_left and not producer.buckets.is_empty(now_s):
                producer.consumer.tick(now_s)
                self._ping(producer, now_s)
                if producer.consumer.is_restless:
                    self._restless.add(producer)

    def _forget_origins(self, now_s: float) -> None:
        self._origins = {
            name: one for name, one in self._origins.items() if now_s - one.heard_s <= FORGET_AFTER_S or one.producers
        }

    def command(self, verb: Verb, producer: Producer) -> bool:
        """Pass *verb* on to *producer*; return whether it was sent."""
        is_here = self.producers.get(producer.address) is producer and not producer.has_left
        return is_here and self._post(producer.address, verb)

    def part(self, reason: str) -> None:
        """Say goodbye to all producers."""
        for producer in list(self.producers.values()):
            self._post(producer.address, Bye(reason))
        self.producers.clear()
        self._by_id.clear()

    def _meet(self, address: bytes, other: Hello, user: str, now_s: float) -> None:
        here = self.producers.get(address)
        if here is not None and here.id != other.id:
            self._forget(here)  # a connection has one producer at a time, and its limits stay with it
        producer = self._by_id.get(other.id)
        if producer is not None and producer.user != user:
            self._sessions.refuse(address, 0, "forbidden", "a peer with another key has this name")
            return
        if producer is None:
            if len(self.producers) >= MAX_PRODUCERS:
                self._sessions.refuse(address, 0, "busy", f"{MAX_PRODUCERS} senders are here already")
                return
            if self._origin(user, now_s).producers >= MAX_PRODUCERS_OF_ADDRESS:
                most = f"{MAX_PRODUCERS_OF_ADDRESS} senders of this address are here already"
                self._sessions.refuse(address, 0, "busy", most)
                return
            producer = self._new(address, other, user, here, now_s)
        else:
            self.producers.pop(producer.address, None)
            if producer.address != address:  # it has come back over a new connection
                producer.address = address
                producer.clock = ClockEstimate()
                producer.pings = 0
            producer.consumer.restart()  # an end that greets has forgotten earlier requests
        producer.heard_s = now_s
        producer.has_left = False
        self._by_id[other.id] = producer
        self._sessions.welcome(producer)
        producer.consumer.tick(now_s)
        self._restless.add(producer)

    def _new(self, address: bytes, other: Hello, user: str, here: Producer | None, now_s: float) -> Producer:
        """Return a new producer, with the allowance of the earlier one, *here*, on the same connection."""

        def send(message: Message) -> None:
            self._post(producer.address, message)

        def deliver(entry: Entry) -> None:
            self._listener.on_entry(producer, entry)

        def introduce(snapshot: bytes) -> None:
            self._listener.on_introduction(producer, snapshot)

        # The windows of the first producers may be large, but that of the thousandth must be small.
        window_bytes = max(
            LEAST_WINDOW_BYTES, min(WINDOW_BYTES, ALL_RECEIVE_WINDOWS_BYTES // (len(self.producers) + 1))
        )
        origin = (here.origin if here is not None else None) or self._origin(user, now_s)
        origin.producers += 1
        producer = Producer(
            address,
            other.id,
            other.text,
            user,
            StreamConsumer(send, deliver, introduce, window_bytes, budget=self._snapshots),
            PeerBuckets(self._limits, now_s, origin.newcomers) if here is None else here.buckets,
            now_s,
            now_s if here is None else here.greeted_s,
            is_settled=here is not None and here.is_settled,
            origin=origin,
        )
        return producer

    def _on(self, producer: Producer, message: Message, size: int, now_s: float, now_ns: int) -> None:
        if isinstance(message, Pong):
            producer.clock.add(message.sent_ns, message.received_ns, message.replied_ns, now_ns)
        elif isinstance(message, Result):
            self._on_result(producer, message)
        else:
            if isinstance(message, Beat):
                producer.status, producer.is_known = message.status, True
            producer.consumer.on(message, size, now_s)
            if producer.consumer.is_restless:
                self._restless.add(producer)

    def _ping(self, producer: Producer, now_s: float) -> None:
        first_s = max(_FIRST_PING_S, len(self.producers) / _MOST_FIRST_PINGS_PER_S)
        every_s = first_s if producer.pings < _FIRST_PINGS else _PING_S
        if producer.consumer.is_subscribed and now_s - producer.pinged_s >= every_s:
            producer.pinged_s = now_s
            producer.pings += 1
            self._post(producer.address, Ping(clock.now_ns()))

    def _forget(self, producer: Producer) -> None:
        if self._by_id.get(producer.id) is not producer:
            return
        del self._by_id[producer.id]
        if producer.origin is not None:
            producer.origin.producers -= 1
        if self.producers.get(producer.address) is producer:
            del self.producers[producer.address]
        producer.consumer.close()
        self.counts["repeated"] += producer.consumer.repeated
        self.counts["replays"] += producer.consumer.replays

    def _post(self, address: bytes, message: Message) -> bool:
        outcome = self._sessions.post(address, message)
        producer = self.producers.get(address) if outcome is Sent.GONE else None
        if producer is not None and not producer.is_settled:
            self._gone.append(
                (producer, address)
            )  # a producer with ever new names must cost nothing; settled ones may come back
        return outcome is Sent.QUEUED
