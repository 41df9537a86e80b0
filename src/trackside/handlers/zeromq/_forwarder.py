"""The forwarder: it sends the frames of a node's ranks, unchanged, over one connection."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgpack

from trackside.core import RateLimitedLog
from trackside.events import ConfigError, DecodeError, Event, Source, clock
from trackside.handlers.zeromq._connection import Connection, Safety
from trackside.handlers.zeromq._control import VerbForwarder
from trackside.handlers.zeromq._keys import RANK, SERVER
from trackside.handlers.zeromq._protocol import (
    EVENTS_PER_SOURCE,
    MAX_SOURCES,
    MAX_SOURCES_OF_ONE,
    PRODUCER_CONNECTIONS,
    WAITING_MESSAGES,
    Filter,
    LossEntry,
    Message,
    PeerLimits,
    Snapshot,
    SourcePosition,
    decode_snapshot,
)
from trackside.handlers.zeromq._receiver import (
    COLLECTORS,
    FORWARDS,
    QUIET,
    SOURCE,
    Entry,
    OwnStream,
    Producer,
    Receiver,
    SourceRegistry,
    clock_news,
)
from trackside.handlers.zeromq._server import RING_S, LostRange, ReadySnapshot, Ring, RingBudget, StreamServer
from trackside.handlers.zeromq._service import SERVICE_RING_BYTES, Service
from trackside.wire import FrameDecoder

if TYPE_CHECKING:
    from trackside.handlers.zeromq._protocol import Verb

_PARTING_S: Final = 2.0
_ALIVE_S: Final = 1.5
_MOST_QUIET: Final = 2000
_HEAD_BYTES: Final = 512


class ForwardedStreams:
    """
    The streams of a node's ranks, to be sent on. It does no input or output itself, and is used by one thread.

    Args:
        source: The source of this process.
        monotonic_s: The clock.
    """

    def __init__(self, source: Source, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self.registry: SourceRegistry = SourceRegistry()
        self.counts: Counter[str] = Counter()
        """``entries`` and ``events`` sent on, ``malformed`` frames, ``excess`` sources."""
        self._now = monotonic_s
        self._rings: list[Ring] = []
        self._positions: dict[str, SourcePosition] = {}
        self._spoke: set[str] = set()
        self._producers: Collection[Producer] = ()
        self._decoder = FrameDecoder()
        self._trouble = RateLimitedLog()
        self._waiting: list[bytes] = []
        """Frames of the own stream that no ring holds yet: the first is made before the first ring."""
        self.own: OwnStream = OwnStream(source, self._add_own)

    def tick(self, producers: Collection[Producer]) -> None:
        """Publish new comparisons of the clocks of *producers*, and keep the producers for `status`."""
        self._producers = producers
        for producer in producers:
            for compared in clock_news(producer):
                self.own.publish(compared)

    # --- called by the receiver ---------------------------------------------------------------------------------------

    def on_entry(self, producer: Producer, entry: Entry) -> None:
        """Send an entry on."""
        self.counts["entries"] += 1
        if isinstance(entry, LossEntry):
            self._lose(entry)
            return
        try:
            source_id, last_seq = peek(entry.frame)
            if source_id not in self._positions:
                producer.buckets.charge(EVENTS_PER_SOURCE)
                if len(self._positions) >= MAX_SOURCES or len(producer.sources) >= MAX_SOURCES_OF_ONE:
                    self.counts["excess"] += 1
                    return
            source = self._source_of(source_id, entry.frame)
        except DecodeError:
            self.counts["malformed"] += 1
            return
        self._positions[source_id] = SourcePosition(source, last_seq + 1, 0)
        producer.sources.add(source_id)
        producer.buckets.charge(entry.events)
        now_s = self._now()
        state = self.registry.state_of(source, now_s)
        state.producer = producer
        self.registry.hear(state, now_s)
        self._spoke.add(source_id)
        self.counts["events"] += entry.events
        for ring in self._rings:
            ring.append(entry.frame, entry.events)

    def _lose(self, entry: LossEntry) -> None:
        for ring in self._rings:
            ring.append(LostRange(entry.source_id, entry.first_seq, entry.last_seq, entry.reason), 0)

    def on_introduction(self, producer: Producer, snapshot: bytes) -> None:
        """Record the sources whose first frames, which describe them, are no longer available."""
        try:
            places = decode_snapshot(snapshot).places
        except DecodeError:
            self.counts["malformed"] += 1
            return
        for place in places[: MAX_SOURCES_OF_ONE - len(producer.sources)]:
            producer.sources.add(place.source.id)
            self._positions[place.source.id] = place
            self.registry.state_of(place.source, self._now()).producer = producer

    def on_heard(self, producer: Producer, message: Message | None) -> None:
        """Do nothing: `status` reads from the producers when they were last heard."""

    def _source_of(self, source_id: str, frame: bytes) -> Source:
        """Return the source with *source_id*; *frame* is decoded only if the source is unknown."""
        place = self._positions.get(source_id)
        return place.source if place is not None else self._decoder.decode(frame).source

    # --- called by the stream server ----------------------------------------------------------------------------------

    def open_stream(self, wanted: Filter, ring: Ring) -> Callable[[], object]:
        """
        Begin to fill *ring*; see `StreamProvider`.

        Raises:
            ConfigError: if *wanted* excludes any event.
        """
        if not wanted.is_open:
            raise ConfigError("filter", wanted, "a forwarder sends everything on; attach to the collector")
        self._rings.append(ring)
        while self._waiting:
            ring.append(self._waiting.pop(0), 1)
        return lambda: self._rings.remove(ring)

    def take_snapshot(self, models: Sequence[str], ring: Ring, done: Callable[[ReadySnapshot | None], None]) -> None:  # noqa: ARG002  the provider's
        """Take a snapshot of the sources; see `StreamProvider`."""
        places = [*self._positions.values(), SourcePosition(self.own.source, self.own.next_seq, 0)]
        done(ReadySnapshot.take(Snapshot(places, {}, clock.now_ns()), ring, self._trouble))

    def status(self) -> dict[str, Any]:
        """Return the sources that are alive but sent nothing since the last beat; see `StreamProvider`."""
        spoke, self._spoke = self._spoke, set()
        quiet = [name for name in self._alive() if name not in spoke]
        return {FORWARDS: True, SOURCE: self.own.source.id, QUIET: [self.own.source.id, *quiet[:_MOST_QUIET]]}

    def _alive(self) -> Iterator[str]:
        now_s = self._now()
        for producer in self._producers:
            if now_s - producer.heard_s < _ALIVE_S and not producer.has_left:
                yield from self.registry.alive_over(producer.sources, producer.status)

    def _add_own(self, event: Event, frame: bytes, seq: int) -> None:  # noqa: ARG002  the stream's
        if not self._rings:
            self._waiting.append(frame)
        for ring in self._rings:
            ring.append(frame, 1)


class Forwarder(Service):
    """
    Receives the streams of a node's ranks and sends them on over one connection.

    Ranks, or other forwarders, connect to *bind*, so forwarders can form a tree. Each frame is sent on once, unchanged.
    While the other end is away, the ring holds the frames. The other end counts those that did not fit, by the numbers
    of their events.

    Args:
        bind: The endpoint that ranks connect to.
        to: The endpoint of the collector, or of another forwarder.
        keys: A directory of keys, for both: the server's secret, a rank's secret, the server's public key.
        insecure: Allow endpoints without keys where keys are required.
        limits: The limits on what one rank sends.
        ring_bytes: The most bytes kept while the other end is away.

    Raises:
        ConfigError: An endpoint is not safe, not free or malformed, or a key is missing.
    """

    streams: ForwardedStreams
    _serving: Connection
    _server: StreamServer
    _verbs: VerbForwarder

    def __init__(
        self,
        bind: str,
        *,
        to: str,
        keys: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        limits: PeerLimits | None = None,
        ring_bytes: int = SERVICE_RING_BYTES,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {"keys": keys, "insecure": insecure}
        self._receiving = self._connect(
            bind, binds=True, role=SERVER, receive_messages=WAITING_MESSAGES, limits=PRODUCER_CONNECTIONS, **options
        )
        self._serving = self._connect(to, binds=False, role=RANK, **options)
        self.endpoint: str = self._receiving.endpoint
        """The endpoint that ranks connect to, with the port that was chosen."""
        source = Source.detect({}, run_id=COLLECTORS, role="collector")
        self.streams = ForwardedStreams(source)
        self._server = StreamServer(
            self.streams,
            self._serving.send,
            connects=True,
            budget=RingBudget(ring_bytes, RING_S),
            on_verb=self._on_verb,
        )
        self._stream = self._server.hold(Filter())
        self.receiver: Receiver = Receiver(
            self.streams,
            self._receiving.send,
            on_result=self._on_result,
            limits=limits,
            origin_of=self._receiving.origin,
        )
        self._verbs = VerbForwarder(
            self.receiver,
            self.streams.registry,
            answer=self._server.answer,
            publish=self.streams.own.publish,
            source_id=source.id,
        )

    def _listen(self, server: StreamServer, connection: Connection) -> None:
        if connection.renew(time.monotonic()):
            server.begin_again()
        super()._listen(server, connection)

    def close(self) -> bool:
        """
        Send on the frames that are left, say goodbye, and stop; safe to call twice.

        Returns:
            Whether the other end has everything.
        """
        if not self._begin_close():
            return self._closed_whole
        self._drain(self._server, self._serving, _PARTING_S)
        self._closed_whole = self._server.is_drained and not self.undelivered
        self._server.part("closed")
        self._disconnect()
        return self._closed_whole

    @property
    def delivered(self) -> int:
        """Events that the other end has acknowledged."""
        return self._stream.delivered

    @property
    def undelivered(self) -> int:
        """Events received here that the other end has not acknowledged."""
        return self._stream.undelivered

    def _on_verb(self, address: bytes, verb: Verb, user: str) -> None:
        # The collector decides who may command: this end connected to it, and knows it by its key.
        by = user or "the collector"
        if self._serving.safety is Safety.INSECURE:
            self._verbs.refuse(address, verb, by)
        else:
            self._verbs.pass_on(address, verb, by, time.monotonic(), {})


def peek(frame: bytes) -> tuple[str, int]:
    """
    Return a frame's source id and the last number it accounts for, reading only its first bytes.

    Raises:
        DecodeError: if *frame* does not begin as a frame does.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=_HEAD_BYTES, max_str_len=_HEAD_BYTES)
    unpacker.feed(frame[:_HEAD_BYTES])
    try:
        unpacker.read_array_header()
        _, source_id, first_seq, last_seq = (unpacker.unpack() for _ in range(4))
    except Exception as error:  # msgpack raises many kinds
        raise DecodeError("not the beginning of a frame") from error
    if not (type(source_id) is str and type(first_seq) is type(last_seq) is int):
        raise DecodeError("not the beginning of a frame")
    return source_id, last_seq
