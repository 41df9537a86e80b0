"""What the porter does with each thing from the queue: it numbers, encodes once, and hands to whoever it is for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from trackside.bus._cutter import ROW_EXTRA_BYTES, Cutter
from trackside.bus._identity import Identity
from trackside.bus._lane import Lane, Lanes, shed_by_name
from trackside.bus._patience import complain, described, is_power_of_two
from trackside.bus._queued import QueuedSeat
from trackside.events import (
    FRAMES,
    PORTER,
    SIDING,
    Event,
    EventsShed,
    RowEncoder,
    Schema,
    Source,
    SourceEnded,
    SourceStarted,
    UnknownEvent,
    clock,
    is_declared,
)

_TELL_LOSSES_EVERY_NS: Final = 10**9
_FOREIGN_BYTES: Final = 512
"""What an event of another process counts for in a sink's queue: how large it was is no longer known."""


class Join(NamedTuple):
    """In the queue: from here on the seat gets its events."""

    seat: QueuedSeat


class Leave(NamedTuple):
    """In the queue: from here on the seat gets no more."""

    seat: QueuedSeat


class View(NamedTuple):
    """What the porter sees at one place of the stream; every frame before it was cut."""

    source: Source | None
    """Whose stream it is; None if none has begun."""
    next_seq: int
    """The number of the next event."""
    shed: int
    """Events of this source that got no number."""
    models: Sequence[Any]
    """As they are after the event before."""


class Look(NamedTuple):
    """In the queue: let somebody see how things are at this place."""

    act: Callable[[View], object]


class Bring(NamedTuple):
    """In the queue: events of other processes, which have their numbers."""

    events: Sequence[Event]


class Begin(NamedTuple):
    """In the queue: from here on events are this source's."""

    source: Source


class End(NamedTuple):
    """In the queue: the source's stream ends here."""

    reason: str
    for_good: bool = False
    """Whether no other may begin: the bus is closed."""


class Hands:
    """Who gets events of one type, resolved once."""

    __slots__ = (
        "appends",
        "audiences",
        "batch",
        "encode",
        "is_plain",
        "lane",
        "models",
        "ruled",
        "schema",
        "sidings",
        "stamped",
    )

    def __init__(self, lane: Lane, seats: Sequence[QueuedSeat]) -> None:
        takers = {seat.audience_key: seat for seat in seats if seat.audience is not None}
        self.lane = lane
        self.schema: Schema | None = None
        self.encode: Callable[[Event, int], bytes] | None = None
        self.batch = -1
        self.audiences = tuple(seat.audience for seat in takers.values() if seat.audience is not None)
        self.appends = tuple(a.rows.append for a in self.audiences if all(seat.decide is None for seat in a.seats))
        self.ruled = tuple(seat for seat in takers.values() if seat.decide is not None)
        self.models = tuple(seat for seat in seats if seat.runs_on is PORTER)
        self.sidings = tuple(seat for seat in seats if seat.runs_on is SIDING)
        self.stamped = bool(self.models or self.sidings or self.ruled)
        """Whether anybody looks at the event itself, and so at its number."""
        self.is_plain = not self.stamped and len(self.appends) == 1
        """Whether it is wanted in one place, as a row: so are most where many come."""


class Sorter:
    """
    Carries the queue's events and obeys what stands between them; on the porter.

    Args:
        lanes: The bus's lanes; `lane` finds one or makes it.
        lane: Returns the lane of a type.
        identity: Says who this process is, when its stream begins with its first event.
        redact: What is applied to each event first, if anything.
    """

    def __init__(
        self,
        lanes: Lanes,
        lane: Callable[[type[Event]], Lane],
        identity: Identity,
        redact: Callable[[Event], Event | None] | None,
    ) -> None:
        self.seats: list[QueuedSeat] = []
        self.encoder = RowEncoder()
        self.source: Source | None = None
        self.redact = redact
        self._lanes = lanes
        self._lane = lane
        self._identity = identity
        self._cutter = Cutter()
        self._hands: dict[type[Event], Hands] = {}
        self.is_over = False
        self.brought = 0
        """Events of other processes so far."""
        self._known_ids: set[str] = set()
        self._shed_reported: dict[str, int] = {}
        self._shed_since_ns = clock.now_ns()
        self._losses_told_ns = 0

    # --- between events ----------------------------------------------------------------------------------------

    def obey(self, item: object) -> None:
        """Do what *item* says, at its place between the events."""
        if isinstance(item, Bring):
            self._bring(item.events)
            return
        self._cut()
        self._hands = {}
        if isinstance(item, Join):
            self._join(item.seat)
        elif isinstance(item, Leave):
            self._leave(item.seat)
        elif isinstance(item, Look):
            self._show(item.act)
        elif isinstance(item, Begin):
            self._begin(item.source)
        elif isinstance(item, End):
            self._end(item.reason)
            self.is_over = self.is_over or item.for_good

    def finish(self, *, at_once: bool) -> None:
        """Do what is due after some events; *at_once* hands also an unfinished batch to the sinks."""
        now_ns = clock.monotonic_ns()
        if at_once or now_ns - self._losses_told_ns >= _TELL_LOSSES_EVERY_NS:
            self._losses_told_ns = now_ns
            self._tell_losses()
        if at_once or self._cutter.is_due():
            self._cut()
        for seat in self.seats:
            if seat.siding is not None:
                seat.siding.send()

    def _tell_losses(self) -> None:
        if self.source is not None:
            self._report_shed()
        for seat in self.seats:
            seat.tell_missed(self._lanes)

    def _join(self, seat: QueuedSeat) -> None:
        if self.is_over:
            return
        seat.join(self._lanes)
        self.seats.append(seat)
        if seat.runs_on is FRAMES:
            self._cutter.join(seat)
        if self.source is not None:
            self._open(seat, self.source)

    def _open(self, seat: QueuedSeat, source: Source) -> None:
        if seat.runs_on is FRAMES and not seat.opened:
            seat.opened = True
            try:
                seat.handler.open(source)
            except BaseException as error:
                seat.patience.report(error)

    def _leave(self, seat: QueuedSeat) -> None:
        if seat in self.seats:
            self.seats.remove(seat)
            seat.tell_missed(self._lanes)
        seat.leave(self._lanes)
        self._cutter.leave(seat)
        if seat.siding is not None:
            seat.siding.send()

    def _show(self, act: Callable[[View], object]) -> None:
        models = [seat for seat in self.seats if seat.runs_on is PORTER]
        for seat in models:
            seat.tell_missed(self._lanes)
        shed = self._cutter.shed_total(self._lanes) if self.source is not None else 0
        act(View(self.source, self._cutter.first_seq, shed, [seat.handler for seat in models]))

    def _begin(self, source: Source) -> None:
        """Start the numbered stream of *source*, ending whichever ran before."""
        if self.is_over:
            return
        if self.source is not None:
            self._end("succeeded by another source")
        if source.id in self._known_ids:
            source = self._identity.renew(source)
        self._known_ids.add(source.id)
        self.source = source
        for seat in self.seats:
            self._open(seat, source)
        self._carry_own(SourceStarted(identity=source.to_wire(), span_id=0, step=-1))

    def _end(self, reason: str) -> None:
        if self.source is None:
            return
        self._report_shed()
        self._carry_own(SourceEnded(reason=reason, span_id=0, step=-1))
        self._cut()
        self._cutter.end(self._lanes)
        self.source = None

    def _cut(self) -> None:
        if self.source is not None:
            self._cutter.cut(self.source.id, self._lanes)

    # --- events ------------------------------------------------------------------------------------------------

    def carry(self, event: Event) -> bool:
        """Give *event* its number, encode it once and hand it on; return whether `carry_alike` may do the next ones."""
        hands = self._hands.get(type(event)) or self._resolve(type(event))
        lane = hands.lane
        if self.source is None:
            if self.is_over:
                lane.shed.add()  # of a log() that had begun before the bus was closed
                return False
            self._begin(self._identity.find())
        lane.taken += 1
        cutter = self._cutter
        if cutter.room_bytes <= 0:
            self._cut()
        try:
            if self.redact is not None:
                kept = _redacted(event, self.redact)
                if kept is None:
                    lane.redacted += 1
                    return False
                event = kept
            if hands.encode is None:
                schema, row = self.encoder.encode(event, cutter.offset)
                cutter.introduce(schema, hands.audiences)
            else:
                row = hands.encode(event, cutter.offset)
                if hands.batch != cutter.batch:
                    hands.batch = cutter.batch
                    cutter.introduce(hands.schema, hands.audiences)  # type: ignore[arg-type]
            if hands.stamped:
                event._source = self.source  # type: ignore[assignment]  # noqa: SLF001  these slots are the porter's
                event._seq = cutter.first_seq + cutter.offset  # noqa: SLF001
        except BaseException as error:  # one bad value costs one event
            lane.invalid += 1
            if not isinstance(error, Exception):
                raise  # an interrupt may be meant for the thread that drains; the porter decides
            _complain_ever_rarer(lane, error)
            return False
        cutter.offset += 1
        cutter.room_bytes -= len(row) + ROW_EXTRA_BYTES
        for append in hands.appends:
            append(row)
        for seat in hands.ruled:
            if seat.admits(event) and seat.audience is not None:
                seat.audience.rows.append(row)
        for seat in hands.models:
            seat.give(event)
        if hands.sidings:
            self._offer(hands, event, len(row))
        return hands.is_plain

    def carry_alike(self, queue: deque[Any], most: int) -> int:
        """
        Take at most *most* events of the first one's type from *queue*, if `carry` just took one of that type.

        Does what `carry` does with each, and leaves to that the first that cannot be encoded.

        Returns:
            How many were taken.
        """
        cls, cutter = type(queue[0]), self._cutter
        hands = self._hands.get(cls)
        if hands is None or not hands.is_plain or hands.batch != cutter.batch or self.redact is not None:
            return 0
        encode, (append,), take = hands.encode, hands.appends, queue.popleft
        first = offset = cutter.offset
        try:
            while offset - first < most and cutter.room_bytes > 0 and type(queue[0]) is cls:
                row = encode(queue[0], offset)  # type: ignore[misc]  # plain ones have been encoded
                take()
                append(row)
                offset += 1
                cutter.room_bytes -= len(row) + ROW_EXTRA_BYTES
        except Exception:  # noqa: S110  `carry` meets it again
            pass
        finally:
            hands.lane.taken += offset - first
            cutter.offset = offset
        return offset - first

    def _bring(self, events: Sequence[Event]) -> None:
        for event in events:
            hands = self._hands.get(type(event)) or self._resolve(type(event))
            for seat in (*hands.models, *hands.sidings):
                seat.brought += 1
            for seat in hands.models:
                seat.give(event)
            self._offer(hands, event, _FOREIGN_BYTES)
        self.brought += len(events)

    @staticmethod
    def _offer(hands: Hands, event: Event, size_bytes: int) -> None:
        """Offer a numbered event to the sinks."""
        for seat in hands.sidings:
            if seat.admits(event) and not (seat.siding is not None and seat.siding.offer(event, size_bytes)):
                seat.shed += 1
                name = hands.lane.cls.wire_name
                seat.refused[name] = seat.refused.get(name, 0) + 1

    def _carry_own(self, event: Event) -> None:
        """Carry an event of the porter's own, which no queue had to admit."""
        self._lane(type(event)).offered.add()
        self.carry(event)

    def _resolve(self, cls: type[Event]) -> Hands:
        hands = self._hands[cls] = Hands(self._lane(cls), [seat for seat in self.seats if seat.wants(cls)])
        if cls is not UnknownEvent and is_declared(cls):
            hands.schema = self.encoder.schema_of(cls)
            hands.encode = self.encoder.encoding(hands.schema)
        return hands

    def _report_shed(self) -> None:
        """Publish what the queue and the sidings refused since the last report."""
        since_ns, self._shed_since_ns = self._shed_since_ns, clock.now_ns()
        shed, before = shed_by_name(self._lanes), self._shed_reported
        self._shed_reported = shed
        self._carry_shed({name: count - before.get(name, 0) for name, count in shed.items()}, "queue", since_ns)
        for seat in self.seats:
            refused, seat.refused = seat.refused, {}
            refused.pop(EventsShed.wire_name, None)  # or one report would lead to the next for ever
            self._carry_shed(refused, seat.patience.name, since_ns)

    def _carry_shed(self, counts: dict[str, int], where: str, since_ns: int) -> None:
        by_type = {name: count for name, count in counts.items() if count}
        if by_type:
            self._carry_own(EventsShed(by_type=by_type, where=where, since_ns=since_ns, span_id=0, step=-1))


def _redacted(event: Event, redact: Callable[[Event], Event | None]) -> Event | None:
    """Return what the user's redaction makes of *event*; without one nothing may leave."""
    kept = redact(event)
    if kept is not None and type(kept) is not type(event):
        # Who gets it, and what is counted where, was settled by its type.
        raise TypeError(f"redact returned a {type(kept).__name__} for a {type(event).__name__}")
    return kept


def _complain_ever_rarer(lane: Lane, error: Exception) -> None:
    """Report that an event of a type could not be recorded, the first time and then rarely."""
    if is_power_of_two(lane.invalid):
        name = lane.cls.wire_name or lane.cls.__qualname__
        complain("%d event(s) of type %s could not be recorded: %s", lane.invalid, name, described(error))
