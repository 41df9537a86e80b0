"""The forwarder: a node's ranks onto one connection, frames as they came."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import msgpack

from trackside.events import ClockCompared, ConfigError, DecodeError, Event, FrameDecoder, Source, __version__, clock
from trackside.handlers.zeromq._dispatch import Dispatch
from trackside.handlers.zeromq._endpoints import Safety
from trackside.handlers.zeromq._feed import Entry
from trackside.handlers.zeromq._filter import Filter
from trackside.handlers.zeromq._intake import MOST_GIVERS, WAITING_MESSAGES, Giver, Intake
from trackside.handlers.zeromq._keys import RANK, SERVER
from trackside.handlers.zeromq._link import Link, wait_for
from trackside.handlers.zeromq._outlet import Outlet
from trackside.handlers.zeromq._own_stream import COLLECTORS, OwnStream
from trackside.handlers.zeromq._peer import Ready
from trackside.handlers.zeromq._protocol import LossEntry, Message, Result
from trackside.handlers.zeromq._quota import Quota
from trackside.handlers.zeromq._ring import RING_S, Lost, Ring, Room
from trackside.handlers.zeromq._roll import QUIET, RELAYS, SOURCE, Roll
from trackside.handlers.zeromq._snapshot import Place, Snapshot, decode_snapshot, encode_snapshot

if TYPE_CHECKING:
    from typing_extensions import Self

    from trackside.handlers.zeromq._protocol import Verb

RING_BYTES: Final = 64 << 20
"""What is kept for a collector that is away, of all ranks together."""
_TICK_S: Final = 0.05
_AT_ONCE: Final = 1024
_PARTING_S: Final = 2.0
_ALIVE_S: Final = 1.5
_MOST_QUIET: Final = 2000
_LEAST_EXCHANGES: Final = 8
_HEAD_BYTES: Final = 512


class Forwarder:
    """
    Takes the streams of a node's ranks in and sends them on over one connection.

    Ranks, or other forwarders, connect to *bind*, so forwarders stack into a tree. Frames go on as they came, each
    once; while the other end is away the ring holds them, and what it cannot hold is counted there by the numbers of
    the events.

    Args:
        bind: Where ranks connect to.
        to: The collector, or another forwarder.
        keys: A directory of keys, for both: the server's secret, a rank's secret, the server's public key.
        insecure: Do without keys where they are needed.
        quota: What one rank may send.
        most_peers: How many may connect.
        ring_bytes: What is kept while the other end is away.

    Raises:
        ConfigError: An endpoint is not safe, not free or malformed, or a key is missing.
    """

    def __init__(
        self,
        bind: str,
        *,
        to: str,
        keys: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        quota: Quota | None = None,
        most_peers: int = MOST_GIVERS,
        ring_bytes: int = RING_BYTES,
    ) -> None:
        self._stop = threading.Event()
        self._is_closed = False
        self._ticked_s = 0.0
        self._lower = Link(
            bind, binds=True, role=SERVER, keys=keys, insecure=insecure, receive_messages=WAITING_MESSAGES
        )
        try:
            self._upper = Link(to, binds=False, role=RANK, keys=keys, insecure=insecure)
        except BaseException:
            self._lower.close()
            raise
        self.endpoint = self._lower.endpoint
        """Where ranks connect to; with the port that was found."""
        self.counts: Counter[str] = Counter()
        """``entries`` and ``events`` sent on, ``malformed`` frames."""
        self._rings: list[Ring] = []
        self._places: dict[str, Place] = {}
        self._spoke: set[str] = set()
        self._decoder = FrameDecoder()
        self._roll = Roll()
        self._outlet = Outlet(
            self,
            self._upper.send,
            own_id=os.urandom(8).hex(),
            connects=True,
            room=Room(ring_bytes, RING_S),
            obey=self._obey,
        )
        self._outlet.hold(Filter())
        source = Source.detect({}, run_id=COLLECTORS, role="collector", versions={"trackside": __version__})
        self._own = OwnStream(source, self._add_own)
        self.intake = Intake(self, self._lower.send, quota=quota, most=most_peers)
        self._dispatch = Dispatch(
            self.intake, self._roll, answer=self._outlet.answer, publish=self._own.publish, source_id=source.id
        )

    # --- what the intake tells ----------------------------------------------------------------------------------------

    def on_entry(self, giver: Giver, entry: Entry) -> None:
        """Send an entry on."""
        self.counts["entries"] += 1
        if isinstance(entry, LossEntry):
            self._lose(entry)
            return
        try:
            source_id, last_seq = peek(entry.frame)
            source = self._source_of(source_id, entry.frame)
        except DecodeError:
            self.counts["malformed"] += 1
            return
        self._places[source_id] = Place(source, last_seq + 1, 0)
        giver.sources.add(source_id)
        giver.purse.charge(entry.events)
        now_s = time.monotonic()
        member = self._roll.member(source, now_s)
        member.address = giver.address
        self._roll.hear(member, now_s)
        self._spoke.add(source_id)
        self.counts["events"] += entry.events
        for ring in self._rings:
            ring.append(entry.frame, entry.events)

    def _lose(self, entry: LossEntry) -> None:
        for ring in self._rings:
            ring.append(Lost(entry.source_id, entry.first_seq, entry.last_seq, entry.reason), 0)

    def on_introduction(self, giver: Giver, snapshot: bytes) -> None:
        """Learn who the sources are whose first events are no longer to be had."""
        try:
            places = decode_snapshot(snapshot).places
        except DecodeError:
            self.counts["malformed"] += 1
            return
        for place in places:
            giver.sources.add(place.source.id)
            self._places[place.source.id] = place
            self._roll.member(place.source, time.monotonic()).address = giver.address

    def on_heard(self, giver: Giver, message: Message | None) -> None:
        """Need not note it: a beat asks who was heard of."""

    def on_result(self, giver: Giver, result: Result) -> None:  # noqa: ARG002  the listener's
        """Pass on what came of a verb."""
        self._dispatch.on_result(result)

    def _source_of(self, source_id: str, frame: bytes) -> Source:
        """Return who that is; a frame is decoded only if that is not known."""
        place = self._places.get(source_id)
        return place.source if place is not None else self._decoder.decode(frame).source

    # --- what the outlet is supplied with -----------------------------------------------------------------------------

    def open_stream(self, wanted: Filter, ring: Ring) -> Callable[[], object]:
        """
        Begin to fill *ring*; see `Supply`.

        Raises:
            ConfigError: if not everything is wanted.
        """
        if not wanted.is_open:
            raise ConfigError("filter", wanted, "a forwarder sends everything on; attach to the collector")
        self._rings.append(ring)
        return lambda: self._rings.remove(ring)

    def take_snapshot(self, models: Sequence[str], ring: Ring, done: Callable[[Ready | None], None]) -> None:  # noqa: ARG002  the supply's
        """Say who the sources are; see `Supply`."""
        places = [*self._places.values(), Place(self._own.source, self._own.next_seq, 0)]
        done(Ready(encode_snapshot(Snapshot(places, {}, clock.now_ns())), ring.next_index, ring.before))

    def status(self) -> dict[str, Any]:
        """Say who is alive and had nothing to send since the last beat; see `Supply`."""
        spoke, self._spoke = self._spoke, set()
        quiet = [name for name in self._alive() if name not in spoke]
        return {RELAYS: True, SOURCE: self._own.source.id, QUIET: [self._own.source.id, *quiet[:_MOST_QUIET]]}

    def _alive(self) -> Iterator[str]:
        now_s = time.monotonic()
        for giver in self.intake.givers.values():
            if now_s - giver.heard_s < _ALIVE_S and not giver.has_left:
                yield from self._roll.alive_over(giver.sources, giver.status)

    # --- the loop -----------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Work until `stop` is called."""
        while not self._stop.is_set():
            self.turn(_TICK_S)

    def turn(self, timeout_s: float) -> None:
        """Wait for what comes, at most *timeout_s*, and deal with it."""
        more = self._outlet.pump()
        wait_for([self._lower, self._upper], 0.0 if more else timeout_s)
        for address, parts, user in self._lower.receive(_AT_ONCE):
            self.intake.receive(address, parts, user)
        self._listen_above()
        now_s = time.monotonic()
        if now_s - self._ticked_s >= _TICK_S:
            self._ticked_s = now_s
            self.intake.tick()
            for giver in list(self.intake.givers.values()):
                self._compare_clock(giver)

    def _listen_above(self) -> None:
        for address, parts, user in self._upper.receive(_AT_ONCE):
            self._outlet.receive(address, parts, time.monotonic(), clock.now_ns(), user)
        self._outlet.tick(time.monotonic())

    def stop(self) -> None:
        """Have `serve` return; on any thread, and from a signal handler."""
        self._stop.set()

    def close(self) -> bool:
        """
        Send on what is here, say goodbye, and stop; safe to call twice.

        Returns:
            Whether the other end has everything.
        """
        if self._is_closed:
            return True
        self._is_closed = True
        self._stop.set()
        self.intake.part("closed")
        self._own.end("closed")
        deadline_s = time.monotonic() + _PARTING_S
        while time.monotonic() < deadline_s and not (self._outlet.peers and self._outlet.is_drained):
            self._outlet.pump()
            self._outlet.beat()  # which is acknowledged at once
            wait_for([self._upper], _TICK_S)
            self._listen_above()
        done = bool(self._outlet.peers) and self._outlet.is_drained
        self._outlet.part("closed")
        self._lower.close()
        self._upper.close()
        return done

    def _add_own(self, event: Event, frame: bytes, seq: int) -> None:  # noqa: ARG002  the stream's
        for ring in self._rings:
            ring.append(frame, 1)

    def _compare_clock(self, giver: Giver) -> None:
        if not giver.is_known:
            return
        named = giver.status.get(SOURCE) if giver.status.get(RELAYS) else None
        names = [named] if isinstance(named, str) else sorted(giver.sources)
        if giver.clock.exchanges < _LEAST_EXCHANGES or not names:  # news is told once: not before we know of whom
            return
        news = giver.clock.news()
        if news is None:
            return
        for name in names:
            self._own.publish(
                ClockCompared(
                    source_id=name,
                    offset_ns=news.offset_ns,
                    uncertainty_ns=news.uncertainty_ns,
                    exchanges=giver.clock.exchanges,
                    span_id=0,
                    step=-1,
                )
            )

    def _obey(self, address: bytes, verb: Verb, user: str) -> None:
        # Who may command is the collector's to judge: this end connected to it, and knows it by its key.
        by = user or "the collector"
        if self._upper.safety is Safety.INSECURE:
            self._dispatch.refuse(address, verb, by)
        else:
            self._dispatch.pass_on(address, verb, by, time.monotonic(), {})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def peek(frame: bytes) -> tuple[str, int]:
    """
    Return whose a frame is and the last number it accounts for, of its first bytes alone.

    Raises:
        DecodeError: if they are not those of a frame.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=_HEAD_BYTES, max_str_len=_HEAD_BYTES)
    unpacker.feed(frame[:_HEAD_BYTES])
    try:
        unpacker.read_array_header()
        _, source_id, first_seq, last_seq = (unpacker.unpack() for _ in range(4))
    except Exception as error:  # of many kinds
        raise DecodeError("not the beginning of a frame") from error
    if not (type(source_id) is str and type(first_seq) is type(last_seq) is int):
        raise DecodeError("not the beginning of a frame")
    return source_id, last_seq
