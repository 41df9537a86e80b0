"""The bus: who gets what, at once or behind the queue."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final

from trackside.bus import _upkeep as upkeep
from trackside.bus._foreign import bring
from trackside.bus._identity import Identity
from trackside.bus._inline import NOBODY, InlineSeat, Recovered, ignore, is_too_deep, uncounted
from trackside.bus._lane import QUEUE_LIMIT
from trackside.bus._past import Past
from trackside.bus._patience import complain, is_power_of_two
from trackside.bus._porter import Porter
from trackside.bus._queued import QueuedSeat
from trackside.bus._relay import Relay
from trackside.bus._seating import is_event_type, seat_for
from trackside.bus._sorter import Begin, End, Join, Leave, Look
from trackside.bus._stats import BusStats, HandlerStats
from trackside.bus._subscription import Subscription
from trackside.bus._tally import Tally
from trackside.bus.counters import CounterRegistry
from trackside.events import FRAMES, ConfigError, Detail, Event, Handler, Source

if TYPE_CHECKING:
    from typing_extensions import Self

    from trackside.bus._inline import Step, Stop
    from trackside.bus._past import Seat
    from trackside.bus._rules import Rule
    from trackside.bus._sorter import View

buses: weakref.WeakSet[Bus] = weakref.WeakSet()
"""Every bus alive, for what must be done to all: at a fork and at exit."""

_LOOK_S: Final = 1.0


class Bus:
    """
    Delivers events to whoever subscribed to their type.

    Reading takes no lock: the way of each type is resolved once into a tuple. Writing takes none either: it replaces
    the table. So nothing here can deadlock, whoever calls: another thread, a signal handler, a finalizer.

    Args:
        strict: Raise what handlers raise, for tests and development.
        queue_limit: Events that may wait for the porter; 16,384 unless given.
        source: The identity of the stream; this process's unless given.
        redact: Called with each event before it is recorded or reaches any queued handler; returns the event to
            record, which is of the same type, or None for none. If it raises, the event is not recorded.
    """

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
        self._identity = Identity(source)
        self._queue_limit = queue_limit
        self._routes: dict[type, tuple[Step, ...]] = {}
        self._seats: dict[Seat, None] = {}
        self._is_closed = False
        self._is_over = False
        self._inherited: list[Seat] = []
        self._make_fresh()
        self.registry = CounterRegistry(publish=self.log, wants=self.wants, strict=strict)
        self.counter = self.registry.counter
        self.counters = self.registry.counters
        self.observe = self.registry.observe
        self.collect = self.registry.collect
        buses.add(self)

    def _make_fresh(self) -> None:
        """Set up everything that a forked child must not share with its parent."""
        self._porter = Porter(limit=self._queue_limit, identity=self._identity, redact=self._redact)
        self._relay = Relay(self._fault, self._is_seated)
        self._past = Past(functools.partial(upkeep.stats_of, porter=self._porter))
        self._after_close = Tally()
        self._misfits = Tally()

    @property
    def redact(self) -> Callable[[Event], Event | None] | None:
        """What is applied to each event before it is recorded, if anything."""
        return self._redact

    @redact.setter
    def redact(self, redact: Callable[[Event], Event | None] | None) -> None:
        self._redact = self._porter.sorter.redact = redact

    @property
    def is_idle(self) -> bool:
        """Whether nobody is subscribed."""
        return not self._seats

    # --- emitting ----------------------------------------------------------------------------------------------

    def log(self, event: Event) -> None:
        """
        Deliver *event* to every handler subscribed to its type or to a base of it.

        Plain callables have run when this returns; everybody else reads the event from the queue. Never raises, unless
        the bus is strict; never blocks, unless a plain callable does.
        """
        try:
            route = self._routes[event.__class__]
        except KeyError:
            route = self._resolve(event.__class__)
        for arrived, handle, finished, stop in route:
            if arrived() > stop.ceiling and is_too_deep(_LOG):
                stop.suppressed.add()
                if finished is not None:
                    stop.ceiling = finished()
                continue
            try:
                handle(event)
            except BaseException as error:  # a handler cannot hurt the job
                self._fault(stop, error)
            else:
                if finished is not None:
                    stop.ceiling = finished()

    def wants(self, cls: type[Event]) -> bool:
        """Return whether anybody would get an event of type *cls*: ask before building a dear one."""
        try:
            route = self._routes[cls]
        except KeyError:
            route = self._resolve(cls) if is_event_type(cls) else ()
        return not self._is_closed if route else False

    def publish(self, event: Event) -> None:
        """
        Log *event* from a model.

        As `log`, but plain callables never run on the porter's thread: there they get the event from a relay. What a
        model publishes while the bus closes is still delivered.
        """
        if not self._porter.is_here():
            self.log(event)
            return
        cls = type(event)
        if not is_event_type(cls):
            self._refuse(event)
            return
        seats = [seat for seat in list(self._seats) if seat.wants(cls)]
        inline = [seat for seat in seats if isinstance(seat, InlineSeat)]
        if len(inline) < len(seats):
            self._porter.publish(event)
        if inline:
            self._relay.bring(event, inline)

    def deliver(self, events: Sequence[Event]) -> bool:
        """Bring *events* of other processes to the handlers here, as `bring` says; False if there is no room now."""
        return bring(events, list(self._seats), self._porter, self._relay)

    # --- routes ------------------------------------------------------------------------------------------------

    def _resolve(self, cls: type) -> tuple[Step, ...]:
        """Work out the route of *cls* and keep it."""
        # The table first, the subscribers second: whoever subscribes meanwhile discards the table.
        routes = self._routes
        if not is_event_type(cls):
            return ((uncounted, self._refuse, None, NOBODY),)
        if self._is_closed:
            route: tuple[Step, ...] = ((self._after_close.add, ignore, None, NOBODY),)
        else:
            seats = [seat for seat in list(self._seats) if seat.wants(cls)]
            steps = [seat.step() for seat in seats if isinstance(seat, InlineSeat)]
            queued = [seat for seat in seats if isinstance(seat, QueuedSeat) and not seat.closing]
            if queued:
                steps.append(self._porter.lane(cls).step())
                self._porter.start()  # with the first event for the queue, and not before
                for seat in queued:
                    seat.start()
            route = tuple(steps)
        routes[cls] = route
        return route

    def _refuse(self, event: object) -> None:
        self._misfits.add()
        if self.strict:
            raise ConfigError("log()", event, "log an instance of a class declared with @trackside.event")
        if is_power_of_two(self._misfits.value):
            complain("%d thing(s) were logged that are no events, the last a %r", self._misfits.value, type(event))

    def _fault(self, stop: Stop, error: BaseException) -> None:
        """Deal with what a handler raised, inside the ``except`` that caught it."""
        if isinstance(error, Recovered):
            self._routes = {}
            return
        rested = stop.fault(error)
        if rested is not None:
            self._routes = {}
        if self.strict and isinstance(stop, InlineSeat):
            stop.patience.recover()  # whoever is told each time has nothing to be spared
        if self.strict or isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error
        if rested is not None:
            self.log(rested)

    # --- subscribing -------------------------------------------------------------------------------------------

    def subscribe(
        self,
        handler: Handler,
        *,
        to: type[Event] | str | tuple[type[Event] | str, ...] = Event,
        keep: Rule | None = None,
        detail: Detail | None = None,
        queued: bool = False,
    ) -> Subscription:
        """
        Give *handler* every event of type *to*, or derived from it, from now on.

        A plain callable runs at once, in the thread that logs; if it blocks, it blocks the caller. Models and sinks say
        themselves where they run, by their attribute ``runs_on``. On a closed bus nobody gets anything.

        Args:
            handler: Called with each event.
            to: The event type, or several; or their wire names, or globs of such, also of types declared later.
            keep: The rule that says which to keep; all unless given.
            detail: The lowest level of detail wanted; all unless given.
            queued: Run a plain callable on a thread of its own, behind a bounded queue.

        Raises:
            ConfigError: if an argument is not what it should be.
        """
        seat = seat_for(handler, to=to, keep=keep, detail=detail, queued=queued, publish=self.publish, log=_LOG)
        if not self._is_closed:
            self._seat(seat)
        return Subscription(self, seat, handler)

    def _seat(self, seat: Seat) -> None:
        if isinstance(seat, QueuedSeat):
            self._identity.find()  # now, so that a child forked before the first event knows whose child it is
            seat.subscribe(self._porter.lanes)
            self._porter.order(Join(seat))
        # Seats first: a concurrent log() may only fill the table we discard.
        self._seats[seat] = None
        self._routes = {}

    def _is_seated(self, seat: Seat) -> bool:
        return seat in self._seats

    def _unsubscribe(self, seat: Seat, timeout_s: float) -> bool:
        if self._seats.pop(seat, self) is self:
            return True
        self._routes = {}
        done = True
        if isinstance(seat, QueuedSeat):
            deadline_s = upkeep.deadline_in(timeout_s)
            seat.unsubscribe(self._porter.lanes)
            self._porter.order(Leave(seat))
            done = self._porter.settle(upkeep.left_s(deadline_s))
            done = upkeep.close_sinks([seat], deadline_s) and done
        self._past.add(seat)
        return done

    # --- keeping up --------------------------------------------------------------------------------------------

    def begin(self, source: Source) -> None:
        """
        Start a new numbered stream as *source*; what is logged from now on is its.

        Without this, a stream starts with the first event for the queue. A source whose stream has ended cannot go
        on: it gets another id.
        """
        self._porter.order(Begin(source))
        if self._queued_seats():
            self._porter.start()

    def end(self, reason: str = "closed") -> None:
        """End the numbered stream; the next event starts another, under an id that the process has from now on."""
        self._porter.order(End(reason))
        ended = self._porter.source
        if ended is not None:  # at once, so that nobody takes who has ended for his parent
            self._identity.renew(ended)

    def look(self, act: Callable[[View], object]) -> None:
        """Have the porter call *act* at this place of the stream, between two events, with what it sees there."""
        self._porter.order(Look(act))
        self._porter.start()

    def flush(self, timeout_s: float = 2.0) -> bool:
        """
        Bring every queued handler up to date with what was logged before.

        Args:
            timeout_s: The longest this may take, in seconds, whatever is stalled.

        Returns:
            Whether everything was delivered, and written where a handler writes. A model gets False: it is what others
            would wait for.
        """
        if self._porter.is_here():
            return False
        deadline_s = upkeep.deadline_in(timeout_s)
        done = self.registry.flush(upkeep.left_s(deadline_s) / 4)
        done = self._porter.settle(upkeep.left_s(deadline_s)) and done
        done = upkeep.flush_sinks(self._queued_seats(), deadline_s) and done
        return self._relay.flush(upkeep.left_s(deadline_s)) and done

    def close(self, timeout_s: float = 2.0) -> bool:
        """
        Publish the counters' last windows, flush, close every sink and stop.

        What is logged later is counted in ``after_close``. Closing twice is harmless, and finishes what an exception
        interrupted the first time.

        Args:
            timeout_s: The longest this may take, in seconds, whatever is stalled.

        Returns:
            Whether every event reached every handler. If not, a line with the number lost is logged.
        """
        if self._is_over:
            return True
        deadline_s = upkeep.deadline_in(timeout_s)
        done = self.registry.close(upkeep.left_s(deadline_s) / 4)
        if not self._porter.is_here():
            # What was logged, and what models make of it, while they can still publish.
            done = self._porter.settle(upkeep.left_s(deadline_s) / 3) and done
        self._is_closed = True
        self._routes = {}
        if self._porter.is_here():
            return False
        # Then what came meanwhile, and the end: nothing comes after that.
        done = self._porter.settle(upkeep.left_s(deadline_s) / 2) and done
        self._porter.order(End("closed", for_good=True))
        done = self._porter.settle(upkeep.left_s(deadline_s) / 2) and done
        done = self._relay.close(upkeep.left_s(deadline_s) / 2) and done
        done = upkeep.close_sinks(self._queued_seats(), deadline_s) and done
        self._porter.halt(upkeep.left_s(deadline_s))
        upkeep.report_losses(self.stats(upkeep.left_s(deadline_s)))
        self._is_over = True
        return done

    def stats(self, timeout_s: float = _LOOK_S) -> BusStats:
        """
        Return the counts. They balance whenever no call is in progress.

        Args:
            timeout_s: How long to wait for the porter to stand still, in seconds; then it looks at a moving one.
        """
        own = {"after_close": self._after_close.value, "misfits": self._misfits.value}
        return upkeep.take_stock(self._porter, self._seats, self._past, pause_s=timeout_s, **own)

    def _stats_of(self, seat: Seat, timeout_s: float) -> HandlerStats:
        with upkeep.held_still(self._porter, timeout_s):
            return upkeep.stats_of(seat, self._porter)

    def _queued_seats(self) -> list[QueuedSeat]:
        return [seat for seat in list(self._seats) if isinstance(seat, QueuedSeat)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- identity and forks ------------------------------------------------------------------------------------

    def become_child(self) -> None:
        """
        Start anew in a forked child: empty queue, zero counts, no models, no sidings, plain callables and logs kept.

        Nothing of the parent's threads, locks and files is touched. ``TRACKSIDE_FORK=off`` closes the bus instead.
        """
        if os.environ.get("TRACKSIDE_FORK") == "off":
            self._is_closed = self._is_over = True
        self._identity.become_child()
        inherited = list(self._seats)
        self._inherited += inherited  # kept, because to drop a handler may close what the parent still writes
        self._make_fresh()
        self.registry.after_fork()
        self._seats = {}
        self._routes = {}
        for seat in inherited:
            if isinstance(seat, InlineSeat):
                seat.forget()
                self._seats[seat] = None
            elif seat.runs_on is FRAMES and not self._is_closed and upkeep.goes_along(seat, self._identity.find()):
                self._seat(seat)


_LOG: Final = Bus.log.__code__
