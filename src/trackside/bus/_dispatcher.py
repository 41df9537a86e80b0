"""
The dispatcher: the thread that empties the queue, numbers the events, encodes each once and delivers it.

It runs foreign code: rules with predicates, redaction, models, frame sinks and handlers subscribed with
`RunsOn.DISPATCHER`. These must not block. Event sinks have threads of their own, so they cannot stall it.
"""

from __future__ import annotations

import copy
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import attrs

from trackside._implementation import native
from trackside.bus._admission import PLACE_BYTES, Admission, dropped_by_name, make_admission
from trackside.bus._delivery import FanOut, deliver_plain
from trackside.bus._frames import ROW_EXTRA_BYTES, FrameBatcher
from trackside.bus._queue import PLACEHOLDER, make_queue
from trackside.bus._subscribers import (
    VIEW_EVENTS,
    FrameSubscriber,
    Join,
    Leave,
    ModelSubscriber,
    QueuedSubscriber,
    Waiting,
)
from trackside.bus._turns import Turns
from trackside.core import (
    LateThread,
    Mailbox,
    RateLimitedLog,
    complain,
    described,
    is_from_signal_handler,
    is_power_of_two,
    left_s,
)
from trackside.events import (
    Event,
    EventsDropped,
    Source,
    SourceEnded,
    SourceStarted,
    UnknownEvent,
    clock,
    is_declared,
    own_fields,
    process_source,
    set_process_source,
)
from trackside.events._source import is_made_here, new_id
from trackside.wire import RowEncoder, saturated, size_of

POLL_S: Final = 0.4
"""The longest pause between two drains, in seconds. A wake-up costs more than a few events do."""
BUSY_POLL_S: Final = 0.05
"""The shortest pause if none is asked for, in seconds: viewers get the frames of a busy job soon."""
_WORTH_EVENTS: Final = 1_000
"""A wake-up is cheap beside so many events: the pause is the time in which so many came, within the bounds above."""
ROUNDS: Final = 3
"""The most passes over published events in one drain, so that a model that feeds itself cannot keep the thread."""
_READ_CLOCK_EVERY: Final = 32 if native is None else 256
"""The events between two readings of the clock: some 50 µs of work."""
_REPORT_DROPPED_NS: Final = 10**9
_INJECTED_BYTES: Final = 512
"""
The size of an event of another process in a sink's queue, besides its values; its encoded size is not known any more.
"""
_WAKE: Final = "wake"
_STOP: Final = "stop"


T = TypeVar("T")


class StreamView(NamedTuple):
    """The state of the dispatcher at one moment of the stream; every frame before it was cut."""

    source: Source | None
    """The source of the stream; None if none has begun."""
    next_seq: int
    """The number of the next event."""
    dropped: int
    """Events of this source that got no number."""
    models: Sequence[Any]
    """The models, in their state after the event before."""


class Barrier(NamedTuple):
    """An entry of the queue: call *act* at this point of the stream."""

    act: Callable[[StreamView], object]


class Inject(NamedTuple):
    """An entry of the queue: events of other processes, which have their numbers."""

    events: Sequence[Event]
    sizes: Sequence[int]
    """The estimated size of each one's values, in bytes."""
    places: int
    """The places that all of them count as."""


class Describe(NamedTuple):
    """An entry of the queue: from here on the source of the stream has this description; its id is the same."""

    source: Source


class Begin(NamedTuple):
    """An entry of the queue: from here on events belong to this source."""

    source: Source


class End(NamedTuple):
    """An entry of the queue: the source's stream ends here."""

    reason: str
    for_good: bool = False
    """Whether no other stream may begin, because the bus is closed."""
    leaving: Sequence[QueuedSubscriber] = ()
    """The subscribers that get nothing of later streams."""


class StreamIdentity:
    """
    The source under which a bus numbers its events: the bus's own, else this process's.

    An id is used for one stream: it was made in this process, and no other bus of the process has used it. Any other
    source gets a new id, because readers take a repeated number for the same event and would drop the second one.

    Args:
        given: The bus's own source, if it has one.
    """

    def __init__(self, given: Source | None) -> None:
        self._given = given
        if given is not None and not self.claim(given):
            self._given = attrs.evolve(given, id=new_id())

    def find(self) -> Source:
        """Return the source of the next stream."""
        return self._given or process_source()

    def begin(self) -> Source:
        """Return the source of the stream that begins now; the process's has another id if another bus used it."""
        source = self.find()
        if self._given is None and _numbered_by.get(source.id, self) is not self:
            self._given = source = attrs.evolve(source, id=new_id())
        return source

    def claim(self, source: Source) -> bool:
        """Claim *source* for the bus, which numbers its events; return False if another bus has it."""
        return is_made_here(source.id) and _numbered_by.setdefault(source.id, self) is self

    def renew(self, ended: Source) -> Source:
        """
        Return *ended* under a new id, since a pair of source and number must never be used twice.

        If the bus or the process used the ended source, it uses the new one from now on, also as the parent of others.
        """
        fresh = attrs.evolve(ended, id=new_id())
        if self._given is ended:
            self._given = fresh
        elif self._given is None:
            set_process_source(fresh, instead_of=ended)
        return fresh

    def become_child(self) -> None:
        """In a forked child, make the source a child of the bus's own source."""
        if self._given is not None:
            self._given = self._given.child()


_numbered_by: dict[str, StreamIdentity] = {}
"""By the id of each source whose stream began in this process, the bus that numbers its events."""


class Dispatcher:
    """
    The queue, and the one thread that empties it.

    Args:
        limit: Events that may wait.
        identity: Gives the source of a stream that begins.
        redact: The function that is applied to each event first, if any.
    """

    def __init__(
        self,
        *,
        limit: int,
        identity: StreamIdentity,
        redact: Callable[[Event], Event | None] | None,
    ) -> None:
        self.queue = make_queue()
        self.queue_peak = 0
        self.admissions: dict[type[Event], Admission] = {}
        self.redact = redact
        self.source: Source | None = None
        """The source of the stream at present."""
        self._limit = limit
        self._identity = identity
        self._is_over = False
        self._thread = LateThread(self._serve, "trackside-dispatcher")
        self.draining = threading.RLock()
        """Held by the thread that works through the queue. While another one holds it, the dispatcher stands still."""
        self._requests: Mailbox[threading.Lock | str] = Mailbox()
        self._has_published = False
        self._log = RateLimitedLog()
        self._log_of_sums = RateLimitedLog()
        self._drained_s = 0.0
        self._pause_s = POLL_S
        self._turns = Turns()
        self._inject_offered = 0
        self._inject_done = 0
        self._subscribers: list[QueuedSubscriber] = []
        self._encoder = RowEncoder()
        self._batcher = FrameBatcher()
        self._fan_outs: dict[type[Event], FanOut] = {}
        self._known_ids: set[str] = set()
        self._dropped_reported: dict[str, int] = {}
        self._dropped_since_ns = clock.now_ns()
        self._dropped_reported_ns = 0

    # --- in the callers' threads -------------------------------------------------------------------------------

    def admission(self, cls: type[Event]) -> Admission:
        """Return the admission of *cls*, always the same one."""
        known = self.admissions.get(cls)
        if known is not None:
            return known
        return self.admissions.setdefault(cls, make_admission(cls, self.queue, self._limit, self._wake))

    def _wake(self) -> None:
        """Have the thread drain the queue now."""
        self._requests.put(_WAKE)

    def start(self) -> bool:
        """
        Start the thread unless it was started; False if none can be started: then callers of flush and close drain.
        """
        return self._thread.start()

    def inject(self, events: Sequence[Event]) -> bool:
        """
        Queue events of other processes; False if those that wait would take more than half as many places as there are.
        """
        sizes = [size_of(event, self.admission(type(event)).sized) for event in events]
        places = sum(size // PLACE_BYTES + 1 for size in sizes)
        waiting = self._inject_offered - self._inject_done
        if waiting and waiting + places > self._limit // 2:
            return False
        self._inject_offered += places
        self.queue.append(Inject(events, sizes, places))
        self.start()
        if waiting + places >= self._limit // 4:
            self._wake()
        return True

    def put(self, item: object) -> None:
        """Queue *item*, to be processed between the events before it and those after it, soon."""
        self.queue.append(item)
        self._wake()

    def publish(self, event: Event) -> None:
        """Queue an event of a model; normally it is processed within the current drain (see ROUNDS)."""
        self._has_published = True
        self.admission(type(event)).offer(event)

    def is_here(self) -> bool:
        """Return whether the caller is within the dispatcher's work, or holds the dispatcher."""
        # As `threading.Condition` asks. A variable of ours might not be up to date.
        return bool(self.draining._is_owned())  # type: ignore[attr-defined]  # noqa: SLF001

    def settle(self, timeout_s: float) -> bool:
        """Have everything queued so far numbered, read by models and handed to sinks; False if time ran out."""
        if self.is_here():
            return False
        deadline_s = time.monotonic() + timeout_s
        if not self._thread.is_alive:
            return self._settle_here(deadline_s)
        done = threading.Lock()
        done.acquire()
        self._requests.put(done)
        self._turns.is_awaited = True  # also if a drain has begun already
        while not done.acquire(timeout=min(POLL_S, left_s(deadline_s))):
            if not self._thread.is_alive:
                return self._settle_here(deadline_s)
            if time.monotonic() >= deadline_s:
                return False
        return True

    def _settle_here(self, deadline_s: float) -> bool:
        def drain() -> bool:
            return self._drain(at_once=True, deadline_s=deadline_s)

        return self.while_held(drain, left_s(deadline_s), otherwise=lambda: False)

    def halt(self, timeout_s: float) -> bool:
        """End the thread; return whether it has ended."""
        if self._thread.is_started:
            self._requests.put(_STOP)
        return self._thread.join(timeout_s)

    def waiting(self) -> Waiting:
        """Return what the queue holds."""
        return Waiting.of(self.queue.copy())

    def counts(self, waiting: Waiting) -> dict[str, Any]:
        """Return the dispatcher's part of `BusStats`, of a queue that holds *waiting*."""
        by_type: dict[str, int] = {}
        for admission in list(self.admissions.values()):
            numbered = admission.taken - admission.invalid - admission.redacted
            if numbered:
                name = admission.cls.wire_name
                by_type[name] = by_type.get(name, 0) + numbered
        return {
            "published": sum(by_type.values()),
            "by_type": by_type,
            "dropped_by_type": dropped_by_name(self.admissions),
            "in_queue": waiting.events(lambda _: True),
            "queue_peak": self.queue_peak,
            "strings_cut": self._encoder.cuts,
        }

    def while_held(self, act: Callable[[], T], timeout_s: float, *, otherwise: Callable[[], T]) -> T:
        """
        Return the result of *act*, called while the dispatcher stands still, so that counts can be read consistently.

        If it does not stand still within *timeout_s*, *otherwise* is called instead.
        """
        # A signal handler may raise as soon as any call has returned, also one that only asks who holds the lock.
        try:
            return act() if self.draining.acquire(timeout=timeout_s) else otherwise()
        finally:
            try:  # noqa: SIM105  `suppress` would be a call
                self.draining.release()
            except RuntimeError:
                pass  # it was not acquired

    # --- the thread --------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        stop = False
        while not stop and not self._is_over:
            waiting: list[threading.Lock] = []
            try:
                request = self._requests.get(self._pause_s)
                while True:
                    if isinstance(request, str):
                        stop = stop or request == _STOP
                    else:
                        waiting.append(request)
                    request = self._requests.get(0.0)
            except queue.Empty:
                pass
            try:
                with self.draining:
                    self._drain(at_once=bool(waiting) or stop)
            except BaseException as error:
                self._survive(error)
            for done in waiting:
                done.release()

    def _drain(self, *, at_once: bool, deadline_s: float | None = None) -> bool:
        """
        Work through the queue; *at_once* hands also an unfinished batch to the sinks.

        Returns:
            Whether everything queued at first is done; what came meanwhile may wait, so that busy callers cannot keep
            the dispatcher from its other duties.
        """
        now_s, count = time.monotonic(), self.queue.put_in_order()
        worth_s = _WORTH_EVENTS * (now_s - self._drained_s) / count if count else POLL_S
        self._drained_s, self._pause_s = now_s, min(POLL_S, max(BUSY_POLL_S, worth_s))
        self.queue_peak = max(self.queue_peak, count)
        self._turns.begin(is_awaited=at_once)
        done = self._work_through(count, deadline_s)
        for _ in range(ROUNDS - 1):
            if not self._has_published:
                break
            self._has_published = False
            self._work_through(self.queue.put_in_order(), deadline_s)
        self._finish(at_once=at_once)
        for admission in list(self.admissions.values()):
            admission.reset()
        return done

    def _work_through(self, count: int, deadline_s: float | None) -> bool:
        """Process the first *count* items of the queue; False if time ran out."""
        queue, deliver = self.queue.ordered, self._deliver
        place = 0
        try:
            while place < count:
                if not place % _READ_CLOCK_EVERY:
                    if deadline_s is not None and time.monotonic() > deadline_s:
                        return False
                    if not place % VIEW_EVENTS:
                        self._send_to_models()
                    self._turns.end_if_due()
                item = queue.popleft()
                place += 1
                try:
                    if isinstance(item, Event):
                        if deliver(item) and self.source is not None and self.redact is None:
                            most = min(count - place, -place % _READ_CLOCK_EVERY)
                            place += deliver_plain(queue, self._fan_outs, self._batcher, self.source, most)
                    elif item is not PLACEHOLDER:
                        self._process(item)
                except BaseException as error:
                    self._survive(error)
        finally:
            self._send_to_models()
        return True

    def _survive(self, error: BaseException) -> None:
        """
        Log a fault of trackside's own and continue; raise what concerns another thread that drains, such as Ctrl-C.
        """
        is_end = isinstance(error, (KeyboardInterrupt, SystemExit))
        if not self._thread.is_current and (is_end or is_from_signal_handler(error)):
            raise error
        self._log.complain("the dispatcher failed: %s; it goes on", described(error))

    def _finish(self, *, at_once: bool) -> None:
        """Do what is due after some events; with *at_once*, sinks also get an unfinished batch."""
        now_ns = clock.monotonic_ns()
        if at_once or now_ns - self._dropped_reported_ns >= _REPORT_DROPPED_NS:
            self._dropped_reported_ns = now_ns
            if self.source is not None:
                self._report_dropped()
            self._report_missed()
        if at_once or self._batcher.is_due():
            self._cut()
        for subscriber in self._subscribers:
            subscriber.send()

    # --- barriers ----------------------------------------------------------------------------------------------

    def _process(self, item: object) -> None:
        """Process an *item* that is no event, at its place between the events."""
        self._send_to_models()
        if isinstance(item, Inject):
            self._inject(item)
            return
        self._cut()
        self._fan_outs = {}
        if isinstance(item, Join):
            self._join(item.subscriber)
        elif isinstance(item, Leave):
            self._leave(item.subscriber)
        elif isinstance(item, Barrier):
            self._report_missed()
            dropped = self._batcher.dropped_total(self.admissions) if self.source is not None else 0
            models = [each.handler for each in self._subscribers if isinstance(each, ModelSubscriber)]
            item.act(StreamView(self.source, self._batcher.first_seq, dropped, models))
        elif isinstance(item, Begin):
            self._begin(item.source)
        elif isinstance(item, Describe):
            self._describe(item.source)
        elif isinstance(item, End):
            self._end(item.reason)
            self._is_over = self._is_over or item.for_good
            for subscriber in item.leaving:
                self._leave(subscriber)

    def _join(self, subscriber: QueuedSubscriber) -> None:
        if self._is_over:
            return
        subscriber.join(self.admissions)
        self._subscribers.append(subscriber)
        if isinstance(subscriber, ModelSubscriber):
            subscriber.turns = self._turns
        if isinstance(subscriber, FrameSubscriber):
            self._batcher.join(subscriber)
            if self.source is not None:
                subscriber.open(self.source)

    def _leave(self, subscriber: QueuedSubscriber) -> None:
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)
            if isinstance(subscriber, ModelSubscriber):
                subscriber.report_missed(self.admissions, self.source)
        subscriber.leave(self.admissions)
        if isinstance(subscriber, FrameSubscriber):
            self._batcher.leave(subscriber)
        subscriber.send()

    def _begin(self, source: Source) -> None:
        """Start the numbered stream of *source*, ending the one before."""
        if self._is_over:
            return
        if self.source is not None:
            self._end("succeeded by another source")
        if source.id in self._known_ids or not self._identity.claim(source):
            source = self._identity.renew(source)
            self._identity.claim(source)
        self._known_ids.add(source.id)
        self.source = source
        for subscriber in self._subscribers:
            if isinstance(subscriber, FrameSubscriber):
                subscriber.open(source)
        self._deliver_own(SourceStarted(identity=source.to_wire(), span_id=0, step=-1))

    def _describe(self, source: Source) -> None:
        """Give later events the *source*; a stream that has not begun finds its source when it begins."""
        if self.source is None or self.source == source or self.source.id != source.id:
            return
        self.source = source
        for subscriber in self._subscribers:
            if isinstance(subscriber, FrameSubscriber):
                subscriber.describe(source)
        self._deliver_own(SourceStarted(identity=source.to_wire(), span_id=0, step=-1))

    def _end(self, reason: str) -> None:
        if self.source is None:
            return
        self._report_dropped()
        self._deliver_own(SourceEnded(reason=reason, span_id=0, step=-1))
        self._send_to_models()
        self._cut()
        self._batcher.end(self.admissions)
        self.source = None

    def _cut(self) -> None:
        if self.source is not None:
            self._batcher.cut(self.source.id, self.admissions)

    def _send_to_models(self) -> None:
        for subscriber in self._subscribers:
            if isinstance(subscriber, ModelSubscriber):
                subscriber.send()

    # --- events ------------------------------------------------------------------------------------------------

    def _deliver(self, event: Event) -> bool:
        """Deliver *event* with a number, encoded once; return whether `deliver_plain` may do the next ones."""
        fan_out = self._fan_outs.get(type(event)) or self._resolve(type(event))
        admission = fan_out.admission
        if self.source is None:
            if self._is_over:
                admission.dropped.add()  # logged by a call that began before the bus was closed
                return False
            self._begin(self._identity.begin())
        admission.taken += 1
        batcher = self._batcher
        if batcher.room_bytes <= 0:
            self._cut()
        try:
            if self.redact is not None:
                redacted = _redacted(event, self.redact)
                if redacted is None:
                    admission.redacted += 1
                    return False
                event = redacted
            if fan_out.encode is None:
                schema, row = self._encoder.encode(event, batcher.offset)
                batcher.introduce(schema, fan_out.groups)
            else:
                try:
                    row = fan_out.encode(event, batcher.offset)
                except OverflowError:  # the summed values come from other processes, and must not prevent an update
                    if not event.derived:
                        raise
                    event = self._saturated(event)
                    row = fan_out.encode(event, batcher.offset)
                if fan_out.batch != batcher.batch:
                    batcher.introduce(fan_out.schema, fan_out.groups)  # type: ignore[arg-type]
                    fan_out.batch = batcher.batch  # last: if introducing was interrupted, the next event does it
            if fan_out.needs_number:
                if hasattr(event, "_seq"):  # it was logged before, and subscribers may hold it with its other number
                    event = copy.copy(event)
                event._source = self.source  # type: ignore[assignment]  # noqa: SLF001  these slots are the dispatcher's
                event._seq = batcher.first_seq + batcher.offset  # noqa: SLF001
        except BaseException as error:  # one bad value costs one event
            admission.invalid += 1
            if not isinstance(error, Exception):
                raise  # an interrupt may be meant for the thread that drains; `_survive` decides
            _report_invalid(admission, error)
            return False
        batcher.offset += 1
        batcher.room_bytes -= len(row) + ROW_EXTRA_BYTES
        for append in fan_out.appends:
            append(row)
        for frames in fan_out.ruled:
            if frames.keeps(event) and frames.group is not None:
                frames.group.rows.append(row)
        for pend in fan_out.pends:
            pend(event)
        for model in fan_out.choosing:
            model.append(event)
        for sink in fan_out.sinks:
            sink.offer(event, len(row))
        return fan_out.is_plain

    def _saturated(self, event: Event) -> Event:
        """Return *event*, of a model, with sums beyond 64 bits replaced by the largest number in 64 bits; log that."""
        self._log_of_sums.complain(
            "a sum in an event %s is larger than 64 bits hold; the largest number is recorded", event.wire_name
        )
        cls = type(event)
        own = {name: saturated(getattr(event, name)) for name in own_fields(cls)}
        return cls(at_ns=event.at_ns, span_id=event.span_id, step=event.step, **own)

    def _inject(self, injected: Inject) -> None:
        for event, size in zip(injected.events, injected.sizes, strict=True):
            fan_out = self._fan_outs.get(type(event)) or self._resolve(type(event))
            for model in fan_out.models:
                model.injected += 1
                model.has_injected = True
                model.append(event)
            for sink in fan_out.sinks:
                sink.injected += 1
                sink.offer(event, _INJECTED_BYTES + size)
        self._send_to_models()
        self._inject_done += injected.places

    def _deliver_own(self, event: Event) -> None:
        """Deliver an event that the dispatcher made itself, which needs no admission."""
        self.admission(type(event)).offered.add()
        self._deliver(event)

    def _resolve(self, cls: type[Event]) -> FanOut:
        wanting = [subscriber for subscriber in self._subscribers if subscriber.wants(cls)]
        has_schema = cls is not UnknownEvent and is_declared(cls)
        schema = self._encoder.schema_of(cls) if has_schema else None
        encode = None if schema is None else self._encoder.encoding(schema)
        self._fan_outs[cls] = FanOut(self.admission(cls), wanting, schema, encode)
        return self._fan_outs[cls]

    # --- losses ------------------------------------------------------------------------------------------------

    def _report_missed(self) -> None:
        for subscriber in self._subscribers:
            if isinstance(subscriber, ModelSubscriber):
                subscriber.report_missed(self.admissions, self.source)

    def _report_dropped(self) -> None:
        """Publish what the queue and the sink workers dropped since the last report."""
        since_ns, self._dropped_since_ns = self._dropped_since_ns, clock.now_ns()
        dropped, before = dropped_by_name(self.admissions), self._dropped_reported
        self._dropped_reported = dropped
        self._publish_dropped({name: count - before.get(name, 0) for name, count in dropped.items()}, "queue", since_ns)
        for subscriber in self._subscribers:
            by_type, subscriber.dropped_unreported = subscriber.dropped_unreported, {}
            by_type.pop(EventsDropped.wire_name, None)  # else each report would lead to another one
            self._publish_dropped(by_type, subscriber.name, since_ns)

    def _publish_dropped(self, counts: dict[str, int], where: str, since_ns: int) -> None:
        by_type = {name: count for name, count in counts.items() if count}
        if by_type:
            self._deliver_own(EventsDropped(by_type=by_type, where=where, since_ns=since_ns, span_id=0, step=-1))


def _redacted(event: Event, redact: Callable[[Event], Event | None]) -> Event | None:
    """Return the result of the user's redaction, None to leave the event out; if it fails, none is delivered."""
    kept = redact(event)
    if kept is not None and type(kept) is not type(event):
        # Routing and counts were decided by the original type, so it may not change.
        raise TypeError(f"redact returned a {type(kept).__name__} for a {type(event).__name__}")
    return kept


def _report_invalid(admission: Admission, error: Exception) -> None:
    """Report that an event of a type could not be recorded, the first time and then rarely."""
    if is_power_of_two(admission.invalid):
        name = admission.cls.wire_name or admission.cls.__qualname__
        complain("%d event(s) of type %s could not be recorded: %s", admission.invalid, name, described(error))
