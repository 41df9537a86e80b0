"""
The bus: it delivers events to subscribers, at once or behind the queue.

Also the default bus, whose methods are the module-level functions of trackside, and the hooks that run for every bus at
a fork and at exit.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, cast

from trackside._free_threading import FREE_THREADED, lane, shared
from trackside._implementation import native
from trackside._platform import after_fork_in_child
from trackside.bus._admission import PLACE_BYTES, QUEUE_LIMIT, Admission
from trackside.bus._dispatcher import Barrier, Begin, Describe, Dispatcher, End, StreamIdentity, StreamView
from trackside.bus._sink_worker import InlineForwarder
from trackside.bus._stats import BusStats, HandlerStats, RetiredStatistics
from trackside.bus._subscribers import (
    NO_HANDLER,
    FrameSubscriber,
    InlineSubscriber,
    Join,
    Lane,
    Leave,
    ModelSubscriber,
    QueuedSubscriber,
    Recovered,
    SinkSubscriber,
    Waiting,
    is_too_deep,
    uncounted,
)
from trackside.core import (
    Closing,
    Once,
    ThreadSafeCount,
    complain,
    deadline_in,
    described,
    is_from_signal_handler,
    left_s,
)
from trackside.counters import CounterRegistry
from trackside.events import ConfigError, Event, Handler, Priority, RunsOn, Source
from trackside.events._selected import SelectedTypes, checked_priority, checked_rule
from trackside.events._settings import suggests_settings

if TYPE_CHECKING:
    from trackside.bus._subscribers import Step, Subscriber, Target
    from trackside.events._selected import EventTypes
    from trackside.rules import Rule

buses: weakref.WeakSet[Bus] = weakref.WeakSet()
"""Every live bus, for the hooks that run at a fork and at exit."""

EXIT_S: Final = 2.0
_STATS_TIMEOUT_S: Final = 1.0
_FRAME_SINK_METHODS: Final = ("open", "accept", "flush", "close", "after_fork")


class Subscription(Closing):
    """
    The subscription of a handler to a bus; end it with `close`, or use it as a context manager.

    Dropping the object changes nothing: the handler stays subscribed.
    """

    __slots__ = ("_bus", "_closing", "_subscriber", "handler")

    def __init__(self, bus: Bus, subscriber: Subscriber, handler: Any) -> None:
        self._bus = bus
        self._closing = Once()
        self._subscriber = subscriber
        self.handler: Any = handler

    def close(self, timeout_s: float = 2.0) -> bool:
        """
        Give the handler no more events; closing twice is harmless, and finishes what an exception interrupted.

        A handler behind the queue first gets what was logged before, then its own ``close`` is called if it has one.

        Args:
            timeout_s: The longest this may take, in seconds.

        Returns:
            Whether it was done in time. Events not delivered by then are counted as dropped.
        """
        return self._closing.run(lambda: self._bus._unsubscribe(self._subscriber, timeout_s))  # noqa: SLF001

    @property
    def closed(self) -> bool:
        """Whether the handler has left the bus."""
        return not self._bus._is_subscribed(self._subscriber)  # noqa: SLF001

    def stats(self, timeout_s: float = _STATS_TIMEOUT_S) -> HandlerStats:
        """Return the handler's counts, also after it left; *timeout_s* is as for `Bus.stats`."""
        return self._bus._held_stats_of(self._subscriber, timeout_s)  # noqa: SLF001


class Bus(Closing):
    """
    Delivers events to the handlers subscribed to their type.

    `log` takes no lock: it reads the route of a type, a tuple that is resolved once. Subscribing takes none either: it
    replaces the table of routes. So neither can deadlock, even in a signal handler or a finalizer.

    Args:
        strict: Raise what handlers raise, for tests and development.
        queue_limit: The most events that may wait for the dispatcher, at least 1; by default 16,384.
        source: The source of the stream; by default this process's. Its id is kept only if this process made it and no
            other bus uses it: no pair of source id and number is used twice.
        redact: Called with each event before it is recorded or reaches any handler behind the queue; returns the event
            to record, of the same type, or None to record nothing. If it raises, the event is not recorded.

    Raises:
        ConfigError: if *queue_limit* is below 1.
    """

    # Slots for the attributes that the compiled core or the lanes read; all others are in the dict.
    __slots__ = ("__dict__", "__weakref__", "_is_closed", "_routes", "_routes_by_lane", "_subscribers")

    def __init__(
        self,
        *,
        strict: bool = False,
        queue_limit: int = QUEUE_LIMIT,
        source: Source | None = None,
        redact: Callable[[Event], Event | None] | None = None,
    ) -> None:
        if queue_limit < 1:
            raise ConfigError("queue_limit", queue_limit, "give a whole number of at least 1")
        self.strict = strict
        self._redact = redact
        self._identity = StreamIdentity(source)
        self._queue_limit = queue_limit
        self._subscribers: dict[Subscriber, None] = {}
        self._is_closed = False
        self._is_over = False
        self._inherited: list[Subscriber] = []
        self._make_fresh()
        self.registry: CounterRegistry = CounterRegistry(publish=self.log, wants=self.wants, strict=strict)
        self.counter: Final = self.registry.counter
        """
        `CounterRegistry.counter`, for the counters of this bus. The next four attributes are the registry's methods,
        too.
        """
        self.stat: Final = self.registry.stat
        self.gauge: Final = self.registry.gauge
        self.counters: Final = self.registry.counters
        self.collect: Final = self.registry.collect
        buses.add(shared(self))

    def _make_fresh(self) -> None:
        """Set up everything that a forked child must not share with its parent."""
        self._routes_by_lane: dict[int, dict[type, tuple[Step, ...]]] = shared({})
        self._routes: dict[type, tuple[Step, ...]] = {}
        self._dispatcher = Dispatcher(limit=self._queue_limit, identity=self._identity, redact=self._redact)
        self._forwarder = InlineForwarder(self._deliver_inline, self._is_subscribed)
        self._retired: RetiredStatistics[Subscriber] = RetiredStatistics(self._stats_of, _suppressed_at)
        self._after_close = ThreadSafeCount()
        self._not_events = ThreadSafeCount()
        self._stack_full = 0
        """Events logged when the stack was full; a plain number, because increasing it needs no call."""

    @property
    def redact(self) -> Callable[[Event], Event | None] | None:
        """The function applied to each event before it is recorded, if any."""
        return self._redact

    @redact.setter
    def redact(self, redact: Callable[[Event], Event | None] | None) -> None:
        self._redact = self._dispatcher.redact = redact

    @property
    def is_idle(self) -> bool:
        """Whether no handler is subscribed."""
        return not self._subscribers

    # --- emitting ----------------------------------------------------------------------------------------------

    def log(self, event: Event) -> None:
        """
        Deliver *event* to every handler subscribed to its type or to a base of it.

        Plain callables have run when this returns; all others read the event from the queue. Never raises of its own,
        unless the bus is strict; never blocks, unless a plain callable does. If a signal handler of the program
        raises meanwhile, its exception is raised after the event was delivered to the other handlers.

        An event may be logged again, and then is another event of the stream. In pure Python, do not assign fields of
        an event anew after it was logged: the queue holds the same object.
        """
        try:
            route = self._routes[type(event)]
        except KeyError:
            try:
                route = self._resolve(type(event))
            except RecursionError:
                self._stack_full += 1
                return
        try:
            for arrived, handle, finished, target in route:
                begun: Target | None = target
                # Python runs signal handlers after a call: if one raises from here on, `arrived` has already counted
                # the event.
                if arrived() > target.ceiling and is_too_deep(_LOG):
                    target.suppressed.add()
                else:
                    handle(event)
                begun = None
                if finished is not None:
                    target.ceiling = finished()
        except BaseException as error:  # a handler must not harm the job
            try:
                raised = self._recover(route, target, begun, event, error)
            except RecursionError:
                # The stack has no room for a Python call, so only C functions count the events; even these may have no
                # room.
                raised = None
                is_next = False
                try:
                    for arrived, _, finished, other in route:
                        if is_next:
                            arrived()
                        elif other is target:
                            is_next = True
                            if begun is None:
                                continue
                        else:
                            continue
                        other.failed.add()
                        if finished is not None:
                            other.ceiling = finished()
                except RecursionError:
                    self._stack_full += 1
            if raised is not None:
                raise raised  # noqa: B904  in most cases `raised` is `error` itself

    def wants(self, cls: type[Event]) -> bool:
        """
        Return whether any handler would get an event of type *cls*; to be asked before an expensive event is built.
        """
        try:
            route = self._routes[cls]
        except KeyError:
            route = self._resolve(cls) if _is_event_type(cls) else ()
        return not self._is_closed if route else False

    def publish(self, event: Event) -> None:
        """
        Log *event* from a model.

        Like `log`, except that plain callables never run on the dispatcher's thread: a forwarder calls them. An event
        that a model publishes while the bus closes is still delivered.
        """
        if not self._dispatcher.is_here():
            self.log(event)
            return
        cls = type(event)
        if not _is_event_type(cls):
            self._refuse(event)
            return
        wanting = [subscriber for subscriber in list(self._subscribers) if subscriber.wants(cls)]
        inline = [subscriber for subscriber in wanting if isinstance(subscriber, InlineSubscriber)]
        if len(inline) < len(wanting):
            self._dispatcher.publish(event)
        if inline:
            self._forwarder.forward(event, inline)

    def inject(self, events: Sequence[Event]) -> bool:
        """
        Deliver *events* of other processes to the handlers here, with the sources and numbers that they have.

        Plain callables run at once, in this thread; models and sinks read the events from the queue. Frame sinks do
        not get them: an event log is the stream of its own process. Only one thread may call it at a time.

        Returns:
            False if the queue has no room now; then no handler got anything.
        """
        subscribers = list(self._subscribers)
        is_queued = any(isinstance(each, (ModelSubscriber, SinkSubscriber)) for each in subscribers)
        if is_queued and not self._dispatcher.inject(events):
            return False
        inline = [each for each in subscribers if isinstance(each, InlineSubscriber)]
        for event in events if inline else ():
            for subscriber in inline:
                if subscriber.wants(type(event)):
                    # A strict bus raises only in the thread that logs; here the error is just counted.
                    with contextlib.suppress(Exception):
                        self._deliver_inline(subscriber, event)
        return True

    # --- routes and failures -----------------------------------------------------------------------------------

    def _resolve(self, cls: type) -> tuple[Step, ...]:
        """Resolve the route of *cls* and keep it."""
        # Read the table before the subscribers: a subscriber added in between replaces the table.
        routes = self._routes
        if not _is_event_type(cls):
            return ((uncounted, self._refuse, None, NO_HANDLER),)
        if self._is_closed:
            route: tuple[Step, ...] = ((self._after_close.add, _ignore, None, NO_HANDLER),)
        else:
            wanting = [subscriber for subscriber in list(self._subscribers) if subscriber.wants(cls)]
            steps = [subscriber.step() for subscriber in wanting if isinstance(subscriber, InlineSubscriber)]
            queued = [each for each in wanting if isinstance(each, QueuedSubscriber) and not each.closing]
            if queued:
                steps.append(self._dispatcher.admission(cls).step())
                self._dispatcher.start()  # a stream starts with the first event for the queue
                for subscriber in queued:
                    subscriber.start()
            route = tuple(steps)
        routes[cls] = route
        return route

    def _refuse(self, event: object) -> None:
        is_first = not self._not_events.add()
        if self.strict:
            raise ConfigError("log()", event, "log an instance of a class declared with @trackside.event")
        if is_first:
            remedy = "trackside.metrics(…) records named values" if isinstance(event, dict) else "see trackside.event"
            complain("log() was given a %s, which is no event; %s", type(event).__name__, remedy)

    def _recover(
        self,
        route: tuple[Step, ...],
        target: Target,
        begun: Target | None,
        event: Event,
        error: BaseException,
    ) -> BaseException | None:
        """
        Account for the delivery that *error* ended, and deliver *event* to the rest of its route.

        Args:
            route: The route of *event*.
            target: The last target that was reached.
            begun: *target* if its delivery has not ended, else None.
            event: The event.
            error: The exception that was raised.

        Returns:
            The exception that the caller must raise, or None.
        """
        raised = error if begun is None else self._fail(begun, error)
        is_next = False
        for step in route:
            if is_next:
                raised = self._deliver_step(step, event) or raised
            is_next = is_next or step[3] is target
        return raised

    def _deliver_step(self, step: Step, event: Event) -> BaseException | None:
        """Deliver *event* to one target, as `log` does; return the exception to raise, or None."""
        arrived, handle, finished, target = step
        arrived()
        try:
            handle(event)
        except BaseException as error:
            return self._fail(target, error)
        if finished is not None:
            target.ceiling = finished()
        return None

    def _deliver_inline(self, subscriber: InlineSubscriber, event: Event) -> None:
        raised = self._deliver_step(subscriber.step(), event)
        if raised is not None:
            raise raised

    def _fail(self, target: Target, error: BaseException) -> BaseException | None:
        """Count a delivery that raised, and log a suspension; return *error* if the caller must raise it."""
        if is_from_signal_handler(error):
            target.interrupt(error)
            return error
        is_done = isinstance(error, Recovered)
        try:
            suspended = target.fail(error)
            if is_done or suspended is not None:
                self._routes = {}
            if self.strict and isinstance(target, Lane):
                target.subscriber.circuit_breaker.close()  # a strict bus raises every error and suspends no handler
            elif suspended is not None:
                self.log(suspended)
        except RecursionError:  # the failure is counted; there is no room on the stack to report it
            pass
        is_raised = not is_done and (self.strict or isinstance(error, (KeyboardInterrupt, SystemExit)))
        return error if is_raised else None

    # --- subscribing -------------------------------------------------------------------------------------------

    @suggests_settings()
    def subscribe(
        self,
        handler: Handler,
        *,
        to: EventTypes | None = None,
        keep: Rule | None = None,
        min_priority: Priority | None = None,
        runs_on: RunsOn | None = None,
    ) -> Subscription:
        """
        Give *handler* every event of type *to*, or of a subclass of it, from now on.

        A plain callable runs at once, in the thread that logs; if it blocks, it blocks the caller. On a closed bus no
        handler gets anything. The bus sets the attribute ``publish`` of a model that derives events, unless it is
        already set.

        Args:
            handler: A callable of one event, a model or a `FrameSink`.
            to: A class, a wire name or a glob of wire names, or a tuple of these; names match types declared later too.
                By default what a model ``reads``, and every event for any other handler.
            keep: The rule that selects the events to keep; by default all are kept.
            min_priority: The lowest priority that is delivered; by default all are.
            runs_on: The thread that calls the handler: the caller's (``RunsOn.INLINE``), the bus's own
                (``RunsOn.DISPATCHER``), or one of its own behind a bounded queue (``RunsOn.WORKER``). By default
                the handler's attribute ``runs_on``, else ``INLINE``. Leave it out for a model or a `FrameSink`.

        Raises:
            ConfigError: if an argument is invalid.
        """
        subscriber = self._subscriber_for(handler, to, keep, min_priority, runs_on)
        subscription = Subscription(self, subscriber, handler)
        if not self._is_closed:
            if isinstance(subscriber, ModelSubscriber) and getattr(handler, "publish", self) is None:
                handler.publish = self.publish  # type: ignore[union-attr]
            try:
                self._add(subscriber)
            except BaseException:  # raised by a signal handler: the caller gets no subscription that it could end
                self._subscribers.setdefault(subscriber)
                self._unsubscribe(subscriber, 0.0)
                raise
        return subscription

    def _subscriber_for(
        self, handler: Any, to: object, keep: Rule | None, min_priority: Priority | None, runs_on: RunsOn | None
    ) -> Subscriber:
        kind = _kind_of(handler, runs_on)
        is_model = kind is ModelSubscriber and not callable(getattr(handler, "reads", None))
        if to is None:
            to = getattr(handler, "reads", Event) if is_model else Event
        types = SelectedTypes.of(to)
        lowest = checked_priority(min_priority)
        checked_rule(keep)

        @lru_cache(maxsize=256)  # each count of the bus asks for all types
        def find(cls: type[Event]) -> bool:
            return cls.priority >= lowest and types.has(cls)

        wants = cast("Callable[[type[Event]], bool]", find)

        def wants_original(cls: type[Event]) -> bool:
            return wants(cls) and not cls.derived  # a replay computes derived events again

        name = name_of(handler)
        if kind is InlineSubscriber:
            return InlineSubscriber(handler, name=name, wants=wants, keep=keep)
        options: dict[str, Any] = {"name": name, "wants": wants, "keep": keep, "publish": self.publish}
        if kind is FrameSubscriber:
            key = (types, lowest) if keep is None else object()
            return FrameSubscriber(handler, filter_key=key, **options)
        if kind is ModelSubscriber:
            return ModelSubscriber(handler, **{**options, "wants": wants_original})
        return SinkSubscriber(handler, **options)

    def _add(self, subscriber: Subscriber) -> None:
        if isinstance(subscriber, QueuedSubscriber):
            self._identity.find()  # at once, so that a child forked before the first event knows its parent
            subscriber.subscribe(self._dispatcher.admissions)
            self._dispatcher.put(Join(subscriber))
        # Subscribers before routes: a concurrent log() can then fill only the table that is replaced here.
        self._subscribers[subscriber] = None
        self._routes = {}

    def _is_subscribed(self, subscriber: Subscriber) -> bool:
        return subscriber in self._subscribers

    def _forget_routes(self) -> None:
        self._routes = {}
        if native is not None:
            native.forget_routes()  # keep no reference to a handler that left

    def _unsubscribe(self, subscriber: Subscriber, timeout_s: float) -> bool:
        if not self._retired.take(subscriber, self._subscribers):
            return True
        self._forget_routes()
        done = True
        if isinstance(subscriber, QueuedSubscriber):
            deadline_s = deadline_in(timeout_s)
            subscriber.unsubscribe(self._dispatcher.admissions)
            self._dispatcher.put(Leave(subscriber))
            done = self._dispatcher.settle(left_s(deadline_s))
            done = subscriber.close(left_s(deadline_s)) and done
        self._retired.add(subscriber)
        return done

    # --- the stream --------------------------------------------------------------------------------------------

    def begin(self, source: Source) -> None:
        """
        Start a new numbered stream of *source*, to which all later events belong.

        Without this call, a stream starts with the first event for the queue; its source is the bus's own or else the
        process's. If another bus numbers events under the process's id, the source gets a new id. A source whose stream
        has ended gets another id: a stream cannot continue.
        """
        self._identity.claim(source)  # claim it now, before the first event of another bus does
        self._dispatcher.put(Begin(source))
        if self._queued():
            self._dispatcher.start()

    def describe(self, source: Source) -> None:
        """Describe the stream's source as *source* from here on; do nothing if the stream's source has another id."""
        self._dispatcher.put(Describe(source))
        if self._queued():
            self._dispatcher.start()

    def end(self, reason: str = "closed", *, leaving: Iterable[Subscription] = ()) -> None:
        """
        End the numbered stream. Its source gets a new id now, under which the next event starts a new stream.

        Args:
            reason: The reason that the stream records.
            leaving: Subscriptions whose handlers get nothing of a later stream. Close them soon.
        """
        ended = self._dispatcher.source  # before the dispatcher, which may be faster than this thread, forgets it
        subscribers = [one._subscriber for one in leaving if not one.closed]  # noqa: SLF001
        queued = [one for one in subscribers if isinstance(one, QueuedSubscriber)]
        for one in queued:
            one.unsubscribe(self._dispatcher.admissions)
        self._forget_routes()
        self._dispatcher.put(End(reason, leaving=queued))
        if ended is not None:  # at once, so that no child takes the ended source for its parent
            self._identity.renew(ended)

    def at_barrier(self, act: Callable[[StreamView], object]) -> None:
        """Have the dispatcher call *act*, between two events, with the state of the stream at that moment."""
        self._dispatcher.put(Barrier(act))
        self._dispatcher.start()

    # --- flush, close and stats --------------------------------------------------------------------------------

    def flush(self, timeout_s: float = 2.0) -> bool:
        """
        Bring every handler behind the queue up to date with what was logged before.

        Args:
            timeout_s: The longest this may take, in seconds, even if a handler is stalled.

        Returns:
            Whether everything was delivered, and written where a handler writes. False if a model calls this: the flush
            would wait for that model.
        """
        if self._dispatcher.is_here():
            return False
        deadline_s = deadline_in(timeout_s)
        done = self.registry.flush(left_s(deadline_s) / 4)
        done = self._dispatcher.settle(left_s(deadline_s)) and done
        queued = self._queued()
        for place, subscriber in enumerate(queued):
            # Each handler gets an equal share of the time left, so that a stalled one does not use up the others' time.
            done = subscriber.flush(left_s(deadline_s) / (len(queued) - place)) and done
        return self._forwarder.flush(left_s(deadline_s)) and done

    def close(self, timeout_s: float = 2.0) -> bool:
        """
        Publish the last windows of counters, flush, close every sink and stop.

        Events logged later are counted in ``after_close``. Closing twice is harmless, and finishes what an exception
        interrupted the first time.

        Args:
            timeout_s: The longest this may take, in seconds, even if a handler is stalled.

        Returns:
            Whether all that waited reached every handler in time, and no sink lost any of it. Events that the full
            queue dropped do not count here. If any events were lost, these included, one line with their number is
            logged.
        """
        if self._is_over:
            return True
        deadline_s = deadline_in(timeout_s)
        done = self.registry.close(left_s(deadline_s) / 4)
        if not self._dispatcher.is_here():
            # Deliver what was logged, while models can still publish derived events.
            done = self._dispatcher.settle(left_s(deadline_s) / 3) and done
        self._is_closed = True
        self._routes = {}
        if self._dispatcher.is_here():
            return False
        # Then deliver the events that were logged meanwhile, and end the stream.
        done = self._dispatcher.settle(left_s(deadline_s) / 2) and done
        self._dispatcher.put(End("closed", for_good=True))
        done = self._dispatcher.settle(left_s(deadline_s) / 2) and done
        done = self._forwarder.close(left_s(deadline_s) / 2) and done
        queued = self._queued()
        for place, subscriber in enumerate(queued):
            done = subscriber.close(left_s(deadline_s) / (len(queued) - place)) and done
        for leaving in self._retired.leaving():  # an exception interrupted their unsubscription
            done = self._unsubscribe(leaving, left_s(deadline_s)) and done
        self._dispatcher.halt(left_s(deadline_s))
        _report_losses(self.stats(left_s(deadline_s)))
        self._is_over = True
        return done

    @property
    def closed(self) -> bool:
        """Whether `close` was called. Nothing opens a bus again."""
        return self._is_closed

    def stats(self, timeout_s: float = _STATS_TIMEOUT_S) -> BusStats:
        """
        Return the counts. They balance whenever no call is in progress.

        Args:
            timeout_s: The longest wait for the dispatcher to pause, in seconds; if it does not, the counts may not
                balance.
        """
        return self._dispatcher.while_held(self._stats, timeout_s, otherwise=self._stats)

    def _stats(self) -> BusStats:
        waiting = self._dispatcher.waiting()
        now = list(self._subscribers)
        suppressed = sum(map(_suppressed_at, now)) + self._retired.suppressed + self._stack_full
        return BusStats(
            handlers=(*(self._stats_of(subscriber, waiting) for subscriber in now), *self._retired.stats()),
            suppressed=suppressed,
            after_close=self._after_close.value,
            not_events=self._not_events.value,
            **self._dispatcher.counts(waiting),
        )

    def _stats_of(self, subscriber: Subscriber, waiting: Waiting | None = None) -> HandlerStats:
        """Return the counts of one subscriber; *waiting* is the content of the queue, read here if not given."""
        if isinstance(subscriber, InlineSubscriber):
            return subscriber.stats()
        in_queue = subscriber.count_waiting(self._dispatcher.waiting() if waiting is None else waiting)
        return subscriber.stats(self._dispatcher.admissions, in_queue)

    def _held_stats_of(self, subscriber: Subscriber, timeout_s: float) -> HandlerStats:
        def read() -> HandlerStats:
            return self._stats_of(subscriber)

        return self._dispatcher.while_held(read, timeout_s, otherwise=read)

    def _queued(self) -> list[QueuedSubscriber]:
        return [subscriber for subscriber in list(self._subscribers) if isinstance(subscriber, QueuedSubscriber)]

    # --- forks -------------------------------------------------------------------------------------------------

    def become_child(self) -> None:
        """
        Start anew in a forked child: empty queue, zero counts, no models or sinks.

        Callables stay, and so do frame sinks that go along. No thread, lock or file of the parent is used.
        ``TRACKSIDE_FORK=off`` closes the bus instead.
        """
        if os.environ.get("TRACKSIDE_FORK") == "off":
            self._is_closed = self._is_over = True
        self._identity.become_child()
        inherited = list(self._subscribers)
        self._inherited += inherited  # kept, because freeing a handler may close a file that the parent writes
        self._make_fresh()
        self.registry.after_fork()
        self._subscribers = {}
        self._routes = {}
        for subscriber in inherited:
            if isinstance(subscriber, InlineSubscriber):
                subscriber.forget()
                self._subscribers[subscriber] = None
            elif (
                isinstance(subscriber, FrameSubscriber)
                and not self._is_closed
                and subscriber.goes_along(self._identity.find())
            ):
                self._add(subscriber)


_LOG: Final = Bus.log.__code__

if native is not None:
    _methods = native.compile_bus(Bus, Lane, Admission, ThreadSafeCount, partial(is_too_deep, _LOG), PLACE_BYTES)
    for _name, _method in zip(("log", "wants"), _methods, strict=True):
        setattr(Bus, _name, _method)

if FREE_THREADED:

    def _routes_of_lane(bus: Bus) -> dict[type, tuple[Step, ...]]:
        by_lane = bus._routes_by_lane  # noqa: SLF001  our own class, here and below
        number = lane()
        try:
            return by_lane[number]
        except KeyError:
            return by_lane.setdefault(number, {})

    def _forget_routes(bus: Bus, _none: dict[type, tuple[Step, ...]]) -> None:
        bus._routes_by_lane.clear()  # noqa: SLF001

    # One table of routes for each lane: following a route counts references, and threads that share one would wait.
    Bus._routes = property(_routes_of_lane, _forget_routes)  # type: ignore[assignment]  # noqa: SLF001


def name_of(handler: object) -> str:
    """Return the name of *handler* in reports."""
    name = getattr(handler, "__qualname__", None)
    module = getattr(handler, "__module__", None)
    if not isinstance(name, str):
        name, module = type(handler).__qualname__, type(handler).__module__
    return name if module in {None, "builtins"} else f"{module}.{name}"


def _ignore(_event: object) -> None:
    """Do nothing with an event that came after the bus was closed."""


def _is_event_type(cls: object) -> bool:
    """Return whether instances of *cls* can be logged."""
    return isinstance(cls, type) and issubclass(cls, Event) and isinstance(cls.priority, Priority)


def _suppressed_at(subscriber: Subscriber) -> int:
    """Return how many events were logged too deep within the handler of *subscriber*."""
    return subscriber.suppressed.value if isinstance(subscriber, InlineSubscriber) else 0


def _kind_of(handler: Any, given: RunsOn | None) -> type[Subscriber]:
    """Return the class of the subscriber for *handler*."""
    methods = [name for name in _FRAME_SINK_METHODS if callable(getattr(handler, name, None))]
    is_frame_sink = "accept" in methods or ("open" in methods and not callable(handler))
    is_model = callable(getattr(handler, "consume", None))
    declared = getattr(handler, "runs_on", None)
    for field, value in (("handler.runs_on", declared), ("runs_on", given)):
        if value is not None and not isinstance(value, RunsOn):
            raise ConfigError(field, value, "give RunsOn.INLINE, RunsOn.DISPATCHER or RunsOn.WORKER")
    runs_on = given or declared or (RunsOn.DISPATCHER if is_model else RunsOn.INLINE)
    if isinstance(handler, type) and (is_frame_sink or is_model or runs_on is not RunsOn.INLINE):
        raise ConfigError("handler", handler, "give an instance of it")
    if is_frame_sink:
        missing = [name for name in _FRAME_SINK_METHODS if name not in methods]
        if missing:
            raise ConfigError("handler", handler, f"give a frame sink the missing {', '.join(missing)}")
        if given is not None:
            raise ConfigError("runs_on", given, "leave it out: a frame sink accepts frames, and has its own thread")
        return FrameSubscriber
    if is_model and runs_on is RunsOn.DISPATCHER:
        return ModelSubscriber
    if not callable(handler):
        remedy = (
            "leave it out: a model reads on the dispatcher" if is_model else "give what can be called with one event"
        )
        raise ConfigError("runs_on" if is_model else "handler", given if is_model else handler, remedy)
    return {
        RunsOn.INLINE: InlineSubscriber,
        RunsOn.DISPATCHER: ModelSubscriber,
        RunsOn.WORKER: SinkSubscriber,
    }[runs_on]


def _report_losses(stats: BusStats) -> None:
    """Report in one line how many events did not reach a handler, if any did not."""
    lost = stats.lost + stats.total("in_queue")
    if not lost:
        return
    parts = []
    for handler in stats.handlers:
        reasons = {name: getattr(handler, name) for name in ("failed", "dropped", "suspended", "invalid", "in_queue")}
        listed = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in reasons.items() if count)
        if listed:
            parts.append(f"{handler.name} ({listed})")
    complain("lost %d event(s): %s", lost, "; ".join(parts))


default_bus: Final = Bus()

log: Final = shared(default_bus.log)
wants: Final = shared(default_bus.wants)
subscribe: Final = default_bus.subscribe
flush: Final = default_bus.flush
close: Final = default_bus.close
stats: Final = default_bus.stats
counter: Final = default_bus.registry.counter
counters: Final = default_bus.registry.counters
stat: Final = default_bus.registry.stat
gauge: Final = default_bus.registry.gauge
collect: Final = default_bus.registry.collect


def _close_all() -> None:
    """Close every bus, so that it delivers what it holds; all of them together take two seconds at most."""
    deadline_s = deadline_in(EXIT_S)
    waiting = list(buses)
    while waiting:
        bus = waiting.pop()
        try:
            # Half of the time left is for the other buses: most need little, and a stalled bus must leave them some.
            bus.close(left_s(deadline_s) / (2 if waiting else 1))
        except BaseException:  # Ctrl-C once more: the losses are reported all the same
            deadline_s = deadline_in(0.0)
            with contextlib.suppress(BaseException):
                bus.close(0.0)


def _become_child() -> None:
    for bus in list(buses):
        try:
            bus.become_child()
        except Exception as error:  # the others are to work in the child all the same
            complain("a bus could not begin anew after a fork: %s", described(error), error=error)
    _close_with_multiprocessing()


_is_registered = False


def _close_with_multiprocessing() -> None:
    """
    Have the children of multiprocessing close every bus as they end: they run no atexit function.

    They run multiprocessing's finalizers, but first clear the inherited ones and those made while the process object is
    unpickled. So `_register_end`, which multiprocessing calls after that, makes the finalizer.
    """
    global _is_registered  # noqa: PLW0603  children inherit what is registered
    util = sys.modules.get("multiprocessing.util")
    if util is not None and not _is_registered:
        _is_registered = True
        util.register_after_fork(util, _register_end)


def _register_end(util: Any) -> None:
    util.Finalize(None, _close_all, exitpriority=0)


atexit.register(_close_all)
after_fork_in_child(_become_child)
_close_with_multiprocessing()
if "multiprocessing.process" in sys.modules and sys.modules["multiprocessing.process"].parent_process() is not None:
    _register_end(sys.modules["multiprocessing.util"])  # this child imports the module only now
