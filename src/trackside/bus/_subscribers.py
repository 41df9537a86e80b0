"""Subscribers: a handler on a bus, and the counts of the events meant for it."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Collection
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias

from trackside._free_threading import lane
from trackside._implementation import native
from trackside.bus._admission import NEVER, is_settled
from trackside.bus._sink_worker import SinkWorker
from trackside.bus._stats import HandlerStats
from trackside.bus._turns import Turns
from trackside.core import CircuitBreaker, ThreadSafeCount, is_from_signal_handler
from trackside.events import Event, HandlerSuspended, RunsOn, Source
from trackside.wire import FrameView, views

if TYPE_CHECKING:
    from trackside.bus._admission import Admission, Admissions
    from trackside.bus._frames import FilterGroup
    from trackside.rules import Decide, Rule

    Step: TypeAlias = tuple[Callable[[], float], Callable[[Any], object], Callable[[], float] | None, "Target"]
    """One step of a route: count the arrival, call, count the end (None if there is none to count), and the target."""

DEEPEST: Final = 16
"""The depth to which handlers may log from within handlers."""

SUSPICIOUS: Final = 4
"""
Calls of one handler in progress that make `Bus.log` look at the stack.

Less than `DEEPEST`, because handlers may log in turns, and each is then less deep than all of them together.
"""

VIEW_EVENTS: Final = 256
"""The most events that wait before a model reads them."""

uncounted: Final[Callable[[], int]] = int
"""In place of a count that is not kept; ``int()`` is the cheapest call that returns a number."""


class Target(Protocol):
    """The target of a step of a route, as `Bus.log` uses it."""

    ceiling: float
    """
    The number of arrivals from which handlers may be logging too deep: a few more than the calls that have returned.

    A first test that costs one comparison. Threads that log at once can pass it without being deep, so the caller then
    looks at its own stack.
    """

    suppressed: ThreadSafeCount
    failed: ThreadSafeCount
    """The count of events that there is no room on the stack to deliver."""

    def fail(self, error: BaseException) -> HandlerSuspended | None:
        """Count a delivery that raised *error*; return what to publish if the handler is suspended from now on."""

    def interrupt(self, error: BaseException) -> None:
        """Count a delivery that a signal handler of the program ended by raising *error*."""


class NoHandler:
    """The target of a step that has no handler: it counts events without a subscriber."""

    ceiling: float = NEVER

    def __init__(self) -> None:
        self.suppressed: ThreadSafeCount = ThreadSafeCount()
        self.failed: ThreadSafeCount = ThreadSafeCount()

    def fail(self, error: BaseException) -> None:
        """Do nothing."""

    def interrupt(self, error: BaseException) -> None:
        """Do nothing."""


NO_HANDLER: Final = NoHandler()


def is_too_deep(log: CodeType) -> bool:
    """Return whether this thread is inside more than 16 calls of *log*; too expensive to ask without cause."""
    depth = 0 if native is None else native.calls_of_log()
    frame = sys._getframe(1)  # noqa: SLF001  the only way to see one's own stack
    while frame is not None:
        depth += frame.f_code is log
        frame = frame.f_back  # type: ignore[assignment]
    return depth > DEEPEST


class Recovered(Exception):  # noqa: N818  a signal to the bus, not an error
    """A suspended handler succeeded: its route can be the short one again."""


class Lane:
    """The target of a plain callable's step: its calls by the threads of one lane."""

    __slots__ = ("arrived", "ceiling", "failed", "finished", "subscriber", "suppressed")

    def __init__(self, subscriber: InlineSubscriber) -> None:
        self.subscriber: InlineSubscriber = subscriber
        self.arrived: ThreadSafeCount = ThreadSafeCount()
        self.finished: ThreadSafeCount = ThreadSafeCount(ahead=SUSPICIOUS)
        """Arrivals that are over, one way or another."""
        self.ceiling: float = SUSPICIOUS - 1
        self.suppressed: ThreadSafeCount = subscriber.suppressed
        self.failed: ThreadSafeCount = subscriber.failed

    def refuse(self) -> None:
        """Count an event that was meant for the callable and could not be forwarded to it."""
        self.arrived.add()
        self.subscriber.dropped.add()
        self.ceiling = self.finished.add()

    def interrupt(self, error: BaseException) -> None:
        """Count a delivery that a signal handler of the program ended by raising *error*."""
        if not is_settled(error, _DELIVER):
            self.failed.add()
        self.ceiling = self.finished.add()

    def fail(self, error: BaseException) -> HandlerSuspended | None:
        """Count a delivery that raised *error*; return what to publish if the handler is suspended from now on."""
        self.ceiling = self.finished.add()
        if isinstance(error, Recovered):
            return None
        return self.subscriber.circuit_breaker.record_failure(error, self.subscriber.handled)


class InlineSubscriber:
    """A plain callable, which runs at once in the thread that logs."""

    __slots__ = (
        "_decide",
        "_keep",
        "_lanes",
        "circuit_breaker",
        "dropped",
        "failed",
        "filtered",
        "forwarded",
        "forwarded_done",
        "handle",
        "name",
        "sampled",
        "suppressed",
        "suspended",
        "wants",
    )

    def __init__(
        self,
        handle: Callable[[Any], object],
        *,
        name: str,
        wants: Callable[[type[Event]], bool],
        keep: Rule | None,
    ) -> None:
        self.handle: Callable[[Any], object] = handle
        self.wants: Callable[[type[Event]], bool] = wants
        self._keep = keep
        self.name: str = name
        self.forget()

    def forget(self) -> None:
        """Begin with nothing counted, as a forked child does."""
        self.circuit_breaker: CircuitBreaker = CircuitBreaker(self.name)
        self.failed: ThreadSafeCount = self.circuit_breaker.failed
        self._lanes: dict[int, Lane] = {}
        self.filtered: ThreadSafeCount = ThreadSafeCount()
        self.sampled: ThreadSafeCount = ThreadSafeCount()
        self.suspended: ThreadSafeCount = ThreadSafeCount()
        self.dropped: ThreadSafeCount = ThreadSafeCount()
        self.suppressed: ThreadSafeCount = ThreadSafeCount()
        self.forwarded: ThreadSafeCount = ThreadSafeCount()
        """Events that models published, on their way through the inline forwarder."""
        self.forwarded_done: ThreadSafeCount = ThreadSafeCount()
        """Of those, the ones that arrived."""
        self._decide = self._keep.start() if self._keep is not None else None

    def lane(self) -> Lane:
        """Return the callable's state in this thread's lane."""
        number = lane()
        return self._lanes.get(number) or self._lanes.setdefault(number, Lane(self))

    def step(self) -> Step:
        """Return this subscriber's step for this thread: the bare handler where nothing has to be decided before."""
        is_plain = self._decide is None and self.circuit_breaker.open_until_ns is None
        lane = self.lane()
        return lane.arrived.add, self.handle if is_plain else self._deliver, lane.finished.add, lane

    def _deliver(self, event: Event) -> None:
        """Deliver by the rule and the circuit breaker; what the handler raises comes out."""
        breaker = self.circuit_breaker
        is_suspended = breaker.open_until_ns is not None
        if is_suspended and breaker.is_open():
            reason = self.suspended
        else:
            verdict = self._decide(event) if self._decide is not None else None
            if verdict is None:
                self.handle(event)
                if is_suspended:
                    breaker.close()
                    raise Recovered
                return
            breaker.cancel_try()
            reason = self.sampled if verdict == "sampled" else self.filtered
        reason.add()  # the last line: see `is_settled`

    @property
    def handled(self) -> int:
        """Calls of the handler that returned."""
        others = (self.failed, self.filtered, self.sampled, self.suspended, self.dropped, self.suppressed)
        finished = sum(lane.finished.value for lane in list(self._lanes.values()))
        return finished - sum(count.value for count in others)

    def stats(self) -> HandlerStats:
        """Return the counts so far."""
        waiting = self.forwarded.value - self.forwarded_done.value
        arrived = sum(lane.arrived.value for lane in list(self._lanes.values()))
        return HandlerStats(
            name=self.name,
            runs_on=RunsOn.INLINE.value,
            logged=arrived - self.suppressed.value + waiting,
            handled=self.handled,
            failed=self.failed.value,
            filtered=self.filtered.value,
            sampled=self.sampled.value,
            dropped=self.dropped.value,
            suspended=self.suspended.value,
            in_queue=waiting,
            last_error=self.circuit_breaker.last_error,
        )


_DELIVER: Final = InlineSubscriber._deliver.__code__  # noqa: SLF001


class Join(NamedTuple):
    """An entry of the queue: from here on the subscriber gets its events."""

    subscriber: QueuedSubscriber


class Leave(NamedTuple):
    """An entry of the queue: from here on the subscriber gets no more events."""

    subscriber: QueuedSubscriber


class Waiting(NamedTuple):
    """The content of the queue at one moment."""

    items: Collection[Any]
    kinds: Counter[type]
    """The number of items of each class."""

    @classmethod
    def of(cls, items: Collection[Any]) -> Waiting:
        """Count *items* by class, once for all who ask."""
        return cls(items, Counter(map(type, items)))

    def events(self, wants: Callable[[type[Event]], bool]) -> int:
        """Return the number of events of the classes that *wants* names."""
        return sum(count for kind, count in self.kinds.items() if issubclass(kind, Event) and wants(kind))


class _AtQueue(NamedTuple):
    """The fate, before or in the queue, of the events meant for a subscriber."""

    logged: int = 0
    dropped: int = 0
    invalid: int = 0
    redacted: int = 0


class _Progress(NamedTuple):
    """The fate of the events that left the queue for a subscriber, read at one moment."""

    handled: int
    failed: int
    suspended: int
    waiting: int
    abandoned: int = 0
    is_unfinished: bool = False


class QueuedSubscriber:
    """
    The common part of the subscribers behind the queue: which events are meant for them, and the counts.

    The counts are plain numbers: each is written by one thread alone. How many events were meant for it is known from
    the admissions of its types, counted by others.
    """

    runs_on: ClassVar[str]

    def __init__(
        self,
        handler: Any,
        *,
        name: str,
        wants: Callable[[type[Event]], bool],
        keep: Rule | None,
        publish: Callable[[Event], None],
    ) -> None:
        self.handler = handler
        self.wants = wants
        self.name = name
        self._keep = keep
        self._publish = publish
        self.forget()

    def forget(self) -> None:
        """Begin with nothing counted, as a forked child does."""
        self.circuit_breaker: CircuitBreaker = CircuitBreaker(self.name)
        self._rule_breaker = CircuitBreaker(self.name)
        """Of the rule, whose predicate is foreign code too."""
        self._decided = 0
        self.decide: Decide | None = self._keep.start() if self._keep is not None else None
        self.in_hand = 0
        """Events of the call in progress, which may last for ever."""
        self.handled = 0
        self.failed = 0
        self.injected = 0
        """Events of other processes, which no admission has counted."""
        self.filtered: int = 0
        self.sampled: int = 0
        self.dropped = 0
        self.suspended: int = 0
        self.dropped_unreported: dict[str, int] = {}
        """The events that this subscriber dropped and that are not published yet: how many, by wire name."""
        self.joined: bool = False
        self.closing: bool = False
        self._dropped_before: dict[Admission, int] = {}
        self._dropped_until: dict[Admission, int] | None = None
        self._taken_before: dict[Admission, tuple[int, int, int]] = {}
        self._at_leave: _AtQueue | None = None

    # --- what differs ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the handler's own thread, if it has one; called in the thread that logs the first event for it."""

    def send(self) -> None:
        """Hand over the collected events; on the dispatcher."""

    def flush(self, timeout_s: float) -> bool:  # noqa: ARG002
        """Have the handler flush."""
        return True

    def close(self, timeout_s: float) -> bool:  # noqa: ARG002
        """Have the handler close."""
        return True

    def _progress(self) -> _Progress:
        """Return the outcomes of the events that left the queue."""
        return _Progress(self.handled, self.failed, self.suspended, self.in_hand)

    # --- joining and leaving -----------------------------------------------------------------------------------

    def subscribe(self, admissions: Admissions) -> None:
        """Note the drops so far, which do not count; in the thread that subscribes."""
        self._dropped_before = {admission: admission.dropped.value for admission in list(admissions.values())}

    def unsubscribe(self, admissions: Admissions) -> None:
        """Count nothing that is dropped from now on; in the thread that unsubscribes."""
        if not self.closing:
            self._dropped_until = {admission: admission.dropped.value for admission in list(admissions.values())}
            self.closing = True

    def join(self, admissions: Admissions) -> None:
        """Begin at this point of the queue; on the dispatcher."""
        self._taken_before = {each: (each.taken, each.invalid, each.redacted) for each in list(admissions.values())}
        self.joined = True

    def leave(self, admissions: Admissions) -> None:
        """End at this point of the queue; on the dispatcher."""
        self._at_leave = self._at_leave or self._at_queue(admissions, in_queue=0)

    # --- deciding ----------------------------------------------------------------------------------------------

    def keeps(self, event: Event) -> bool:
        """Return whether the rule keeps *event*, counting it if not; on the dispatcher."""
        # Rules fail apart from the handler, which may run on another thread; and a frame sink is never suspended.
        if self._rule_breaker.is_open():
            self.suspended += 1
            return False
        try:
            reason = self.decide(event)  # type: ignore[misc]  # asked only where there is a rule
        except BaseException as error:
            self.publish_suspension(self._rule_breaker.record_failure(error, self._decided))
            return False
        self._decided += 1
        if self._rule_breaker.open_until_ns is not None:
            self._rule_breaker.close()
        if reason == "sampled":
            self.sampled += 1
        elif reason is not None:
            self.filtered += 1
        return reason is None

    def publish_suspension(self, suspended: HandlerSuspended | None) -> None:
        """Publish *suspended*, if it is an event."""
        if suspended is not None:
            with contextlib.suppress(BaseException):  # a strict bus raises, and this thread has no caller to reach
                self._publish(suspended)

    # --- counting ----------------------------------------------------------------------------------------------

    def count_waiting(self, waiting: Waiting) -> int:
        """Count the items of *waiting* for this subscriber: those after its `Join` and before its `Leave`."""
        if Join not in waiting.kinds and Leave not in waiting.kinds:
            return waiting.events(self.wants) if self.joined else 0
        count = 0
        inside = self.joined
        for item in waiting.items:
            if isinstance(item, Event):
                count += inside and self.wants(type(item))
            elif isinstance(item, Join) and item.subscriber is self:
                inside = True
            elif isinstance(item, Leave) and item.subscriber is self:
                break
        return count

    def stats(self, admissions: Admissions, in_queue: int) -> HandlerStats:
        """
        Return the counts so far.

        Args:
            admissions: The bus's admissions.
            in_queue: Events for this subscriber that wait in the queue.
        """
        if self._at_leave is not None:
            in_queue = 0
        at_queue = self._at_leave or self._at_queue(admissions, in_queue)
        lost = self._lost_by_handler()
        progress = self._progress()
        return HandlerStats(
            name=self.name,
            runs_on=self.runs_on,
            logged=at_queue.logged + self.injected,
            handled=progress.handled - lost,
            failed=progress.failed + self._rule_breaker.failed.value,
            filtered=self.filtered + at_queue.redacted,
            sampled=self.sampled,
            dropped=at_queue.dropped + self.dropped + lost + progress.abandoned,
            suspended=progress.suspended,
            invalid=at_queue.invalid,
            in_queue=in_queue + progress.waiting,
            last_error=self.circuit_breaker.last_error or self._rule_breaker.last_error,
            unfinished=int(progress.is_unfinished),
        )

    def _lost_by_handler(self) -> int:
        """Return the number of events that the handler accepted and its disk or network did not."""
        try:
            lost = getattr(self.handler, "lost", 0)
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            self.circuit_breaker.report(error)
            return 0
        return lost if isinstance(lost, int) else 0

    def _at_queue(self, admissions: Admissions, in_queue: int) -> _AtQueue:
        logged = dropped = invalid = redacted = 0
        for admission in list(admissions.values()):
            if not self.wants(admission.cls):
                continue
            dropped_before = self._dropped_before.get(admission, 0)
            until = self._dropped_until
            dropped_now = admission.dropped.value if until is None else until.get(admission, dropped_before)
            dropped += dropped_now - dropped_before
            if not self.joined or self.closing:
                # The queue also holds events that are not for this subscriber: before its place, or behind it.
                logged += dropped_now - dropped_before
            if self.joined:
                taken, invalid_before, redacted_before = self._taken_before.get(admission, (0, 0, 0))
                invalid += admission.invalid - invalid_before
                redacted += admission.redacted - redacted_before
                if self.closing:
                    logged += admission.taken - taken
                else:
                    logged += admission.offered.value - taken - dropped_before
        if not self.joined or self.closing:
            logged += in_queue
        return _AtQueue(logged, dropped, invalid, redacted)


class ModelSubscriber(QueuedSubscriber):
    """A model, which reads views of frames on the dispatcher; or a callable that runs there, event by event."""

    runs_on = RunsOn.DISPATCHER.value

    def forget(self) -> None:
        """Begin with nothing counted, as a forked child does."""
        super().forget()
        self.pending: list[Event] = []
        """Events of the view that the model gets next; the dispatcher, too, appends here what no rule chooses from."""
        self.has_injected = False
        """Whether some of them may come from other processes."""
        self.turns = Turns()
        """Those of the thread that calls the model; the dispatcher sets them."""
        self._missed = 0
        self._is_model = callable(getattr(self.handler, "consume", None))

    def append(self, event: Event) -> None:
        """Keep *event* for the next view, if the rule keeps it."""
        if self.decide is None or self.keeps(event):
            self.pending.append(event)
            if len(self.pending) >= VIEW_EVENTS:
                self.send()

    def send(self) -> None:
        """Let the model read what is pending."""
        if not self.pending:
            return
        events = self.pending.copy()
        self.pending.clear()
        self.in_hand = len(events)
        if self._is_model:
            # The dispatcher sends what it has before it injects, and before its source changes.
            found = views(events) if self.has_injected else [FrameView(events[0].source, events)]
            self.has_injected = False
            for view in found:
                self._consume(self.handler.consume, view, len(view))
                self.turns.end_if_due()
        else:
            for event in events:
                self._consume(self.handler, event, 1)
                self.turns.end_if_due()

    def _consume(self, consume: Callable[[Any], object], what: FrameView | Event, count: int) -> None:
        breaker = self.circuit_breaker
        if breaker.open_until_ns is not None and breaker.is_open():
            self.suspended += count
            self.in_hand -= count
            return
        try:
            consume(what)
        except BaseException as error:
            self.failed += count
            self.publish_suspension(breaker.record_failure(error, self.handled))
        else:
            self.handled += count
            if breaker.open_until_ns is not None:
                breaker.close()
        finally:
            self.in_hand -= count

    def report_missed(self, admissions: Admissions, source: Source | None) -> None:
        """Report to a model how many events of *source* it should have had and did not get."""
        missed = getattr(self.handler, "missed", None)
        if missed is None or source is None:
            return
        stats = self.stats(admissions, in_queue=0)
        total = stats.lost + stats.filtered + stats.sampled
        if total > self._missed:
            try:
                missed(source, total - self._missed)
            except BaseException as error:
                self.circuit_breaker.report(error)
            self._missed = total

    def _progress(self) -> _Progress:
        return super()._progress()._replace(waiting=self.in_hand + len(self.pending))

    def _lost_by_handler(self) -> int:
        return 0


class SinkSubscriber(QueuedSubscriber):
    """A callable on a sink worker: a thread of its own behind a bounded queue."""

    runs_on = RunsOn.WORKER.value

    def forget(self) -> None:
        """Begin with nothing counted, as a forked child does."""
        super().forget()
        self.worker = SinkWorker(self.handler, self.circuit_breaker, self._deliver)

    def start(self) -> None:
        """Start the worker's thread."""
        self.worker.start()

    def offer(self, event: Event, size_bytes: int) -> None:
        """Offer *event* to the worker, if the rule keeps it; on the dispatcher."""
        if (self.decide is None or self.keeps(event)) and not self.worker.offer(event, size_bytes):
            self.dropped += 1
            name = type(event).wire_name
            self.dropped_unreported[name] = self.dropped_unreported.get(name, 0) + 1

    def send(self) -> None:
        """Hand over what was offered."""
        self.worker.send()

    def _deliver(self, event: Event) -> None:
        """Call the handler, on the worker's thread."""
        try:
            self.handler(event)
        except BaseException as error:
            suspended = self.circuit_breaker.record_failure(error, self.handled)
            self.failed += 1
            self.publish_suspension(suspended)
            return
        self.handled += 1
        if self.circuit_breaker.open_until_ns is not None:
            self.circuit_breaker.close()

    def flush(self, timeout_s: float) -> bool:
        """Have the worker deliver and the handler flush."""
        return self.worker.flush(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Have the worker deliver, the handler close, and the thread end."""
        return self.worker.close(timeout_s)

    def _progress(self) -> _Progress:
        worker = self.worker
        # Each count is read once: what the worker does meanwhile moves an event from one to another.
        handled, failed, suspended = self.handled, self.failed, worker.suspended
        left = worker.accepted - handled - failed - suspended
        waiting, abandoned = (0, left) if worker.is_over else (left, 0)
        return _Progress(handled, failed, self.suspended + suspended, waiting, abandoned, worker.is_unfinished)


class FrameSubscriber(QueuedSubscriber):
    """A `FrameSink`, which accepts encoded frames on the dispatcher and has a thread of its own for I/O."""

    runs_on = "frames"

    def __init__(self, handler: Any, *, filter_key: object, **options: Any) -> None:
        self.filter_key = filter_key
        """Subscribers with equal keys share their frames."""
        super().__init__(handler, **options)

    def forget(self) -> None:
        """Begin with nothing counted, as a forked child does."""
        super().forget()
        self.group: FilterGroup | None = None
        self.is_open = False
        """Whether the sink knows the source of its frames."""

    def open(self, source: Source) -> None:
        """Give the sink the *source* of its first frame."""
        if not self.is_open:
            self.is_open = True
            self.describe(source)

    def describe(self, source: Source) -> None:
        """Pass *source* to the sink."""
        try:
            self.handler.open(source)
        except BaseException as error:
            self.circuit_breaker.report(error)

    def accept(self, frame: bytes) -> None:
        """Hand over *frame* with the events that were collected for it, and count them."""
        try:
            is_accepted = bool(self.handler.accept(frame, events=self.in_hand))
        except BaseException as error:  # a fault of one sink must not affect the others
            self.circuit_breaker.report(error)
            is_accepted = False
        self.settle(is_accepted=is_accepted)

    def settle(self, *, is_accepted: bool) -> None:
        """Count the events that were collected for the frame."""
        if is_accepted:
            self.handled += self.in_hand
        else:
            self.dropped += self.in_hand
        self.in_hand = 0

    def flush(self, timeout_s: float) -> bool:
        """Have the sink flush."""
        return not self.is_open or self._call("flush", timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Have the sink close."""
        return self._call("close", timeout_s)

    def _call(self, method: str, timeout_s: float) -> bool:
        try:
            return bool(getattr(self.handler, method)(timeout_s))
        except Exception as error:  # a fault of one sink must not affect the others
            if is_from_signal_handler(error):
                raise
            self.circuit_breaker.report(error)
            return False

    def goes_along(self, source: Source) -> bool:
        """In a forked child, have the sink begin anew; return whether it does, or stays with the parent."""
        self.forget()
        try:
            return self.handler.after_fork(source) is not False
        except Exception as error:
            self.circuit_breaker.report(error)
            return False

    def _progress(self) -> _Progress:
        batched = len(self.group.rows) if self.group is not None and self._at_leave is None else 0
        return super()._progress()._replace(waiting=self.in_hand + batched)


Subscriber: TypeAlias = InlineSubscriber | QueuedSubscriber
