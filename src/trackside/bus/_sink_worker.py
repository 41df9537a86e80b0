"""A thread and a bounded queue for one foreign sink, so that a slow or stalled one delays no other handler."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trackside.core import CircuitBreaker, LateThread

if TYPE_CHECKING:
    from trackside.bus._subscribers import InlineSubscriber
    from trackside.events import Event

MAX_ITEMS: Final = 16_384
MAX_BYTES: Final = 32 << 20


class _Command(NamedTuple):
    """A ``flush`` or ``close`` of the handler between two events, on the sink worker's thread."""

    method: str
    deadline_s: float
    done: threading.Lock
    """Held by the caller that waits, released by the sink worker."""
    outcome: list[bool]


class SinkWorker:
    """
    Delivers events to one handler on a thread of its own.

    Only the dispatcher calls `offer` and `send`, which never block.

    Args:
        handler: An object with an optional ``flush(timeout_s)``, ``close(timeout_s)`` and ``idle()``, or None.
        circuit_breaker: The handler's record of failures.
        deliver: Hands one event over; must not raise.
    """

    def __init__(self, handler: Any, circuit_breaker: CircuitBreaker, deliver: Callable[[Any], object]) -> None:
        self._handler = handler
        self._circuit_breaker = circuit_breaker
        self._deliver = deliver
        # SimpleQueue is written in C: a signal handler that interrupts its put can put too, without a deadlock.
        self._inbox: queue.SimpleQueue[list[tuple[Any, int]] | _Command] = queue.SimpleQueue()
        self._fresh: list[tuple[Any, int]] = []
        self.accepted = 0
        self._accepted_bytes = 0
        self._done = 0
        self._done_bytes = 0
        self.suspended = 0
        self._is_abandoned = False
        self._closed_well: bool | None = None
        """The result of the handler's ``close``; None until then."""
        self._thread = LateThread(self._serve, f"trackside-{circuit_breaker.name}")

    def start(self) -> None:
        """
        Start the thread; called when the first event for it is logged.

        The dispatcher would start it too late: from Python 3.12 on no thread can be started once the interpreter ends,
        and the handler would have to run in the thread that closes the bus.
        """
        self._thread.start()

    def offer(self, event: Any, size_bytes: int) -> bool:
        """Accept *event* unless 16,384 events or 32 MiB wait already; called on the dispatcher's thread."""
        if (
            self.accepted - self._done >= MAX_ITEMS
            or self._accepted_bytes - self._done_bytes + size_bytes > MAX_BYTES
            or self.is_over
        ):
            return False
        self.accepted += 1
        self._accepted_bytes += size_bytes
        self._fresh.append((event, size_bytes))
        return True

    def send(self) -> None:
        """Hand over the events that were offered since the last call, with one wake-up for all; on the dispatcher."""
        if self._fresh:
            batch, self._fresh = self._fresh, []
            self._inbox.put(batch)
            self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether it was closed or abandoned, so that no further event is delivered."""
        return self._is_abandoned or self._closed_well is not None

    @property
    def is_unfinished(self) -> bool:
        """Whether it was abandoned before the handler was closed; the handler may still hold events."""
        return self._is_abandoned and self._closed_well is None

    def flush(self, timeout_s: float) -> bool:
        """Wait until all accepted events are delivered and the handler has flushed, if it can."""
        if not self.accepted and not self._thread.is_started:
            return True
        return self._run("flush", timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Flush, close the handler, end the thread; what is not delivered by then is counted as lost."""
        if self._handler is None and not self.accepted and not self._thread.is_started:
            self._closed_well = True
        done = self._run("close", timeout_s)
        # A handler that ends its own subscription is closed after the event that it is handling.
        if self._closed_well is None and not self._thread.is_current:
            self._is_abandoned = True
        return done

    def _run(self, method: str, timeout_s: float) -> bool:
        """Have the thread call *method* after the events before it; return whether that succeeded in time."""
        if self.is_over:
            return bool(self._closed_well)
        deadline_s = time.monotonic() + timeout_s
        command = _Command(method, deadline_s, threading.Lock(), [])
        command.done.acquire()
        if self._thread.is_current:
            if method == "close":
                self._inbox.put(command)
            return False
        self._inbox.put(command)
        if not self._thread.start():
            self._work_through(deadline_s)
        if self.is_over:
            self._dismiss()
        return command.done.acquire(timeout=timeout_s) and command.outcome == [True]

    def _serve(self) -> None:
        while not self.is_over and self._handle(self._inbox.get()):
            if self._inbox.empty():
                self._call("idle")
        self._dismiss()

    def _work_through(self, deadline_s: float) -> None:
        """Empty the queue in the calling thread, because no thread can be started any more."""
        with contextlib.suppress(queue.Empty):
            while self._handle(self._inbox.get_nowait(), deadline_s):
                pass

    def _dismiss(self) -> None:
        """Release the callers whose commands will not be run."""
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._inbox.get_nowait()
                if isinstance(item, _Command):
                    item.outcome.append(bool(self._closed_well))
                    item.done.release()

    def _handle(self, item: list[tuple[Any, int]] | _Command, deadline_s: float | None = None) -> bool:
        """Deliver a batch or run a command; return whether to go on."""
        if isinstance(item, _Command):
            return self._do(item)
        for event, size_bytes in item:
            if deadline_s is not None and time.monotonic() > deadline_s:
                self._is_abandoned = True
            if self._is_abandoned:
                return False
            if self._circuit_breaker.is_open():
                self.suspended += 1
            else:
                self._deliver(event)
            self._done_bytes += size_bytes
            self._done += 1
        return True

    def _do(self, command: _Command) -> bool:
        """Flush or close the handler, if it has a method for that."""
        good = self._call(command.method, max(0.0, command.deadline_s - time.monotonic()))
        if command.method == "close":
            self._closed_well = good
        command.outcome.append(good)
        command.done.release()
        return command.method != "close"

    def _call(self, name: str, *arguments: float) -> bool:
        """Call a method if the handler has it; False if it returned False or raised."""
        method = getattr(self._handler, name, None)
        if not callable(method):
            return True
        try:
            return method(*arguments) is not False
        except BaseException as error:
            self._circuit_breaker.report(error)
            return False


class _Forwarded(NamedTuple):
    """An event that a model published, and the plain callables that are to get it."""

    event: Event
    subscribers: Sequence[InlineSubscriber]


class InlineForwarder:
    """
    Forwards what models publish to plain callables, which never run on the dispatcher's thread.

    Its own thread starts with the first such event.

    Args:
        deliver: Delivers an event to a subscriber, as `Bus.log` does.
        is_subscribed: Returns whether a callable is still subscribed.
    """

    def __init__(
        self,
        deliver: Callable[[InlineSubscriber, Event], object],
        is_subscribed: Callable[[InlineSubscriber], bool],
    ) -> None:
        self._deliver = deliver
        self._is_subscribed = is_subscribed
        self._worker = SinkWorker(None, CircuitBreaker("inline-forwarder"), self._unpack)

    def forward(self, event: Event, subscribers: Sequence[InlineSubscriber]) -> None:
        """Forward *event* to *subscribers*, or count it as dropped where too many wait; on the dispatcher."""
        if not self._worker.offer(_Forwarded(event, subscribers), 0):
            for subscriber in subscribers:
                subscriber.lane().refuse()
            return
        for subscriber in subscribers:
            subscriber.forwarded.add()
        self._worker.send()

    def _unpack(self, forwarded: _Forwarded) -> None:
        for subscriber in forwarded.subscribers:
            subscriber.forwarded_done.add()
            if self._is_subscribed(subscriber):
                # An error that a strict bus raises, or a SystemExit, has no caller on this thread; the failure is
                # counted.
                with contextlib.suppress(BaseException):
                    self._deliver(subscriber, forwarded.event)
            else:
                subscriber.lane().refuse()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all forwarded events are delivered."""
        return self._worker.flush(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Deliver the forwarded events and stop; those not delivered by then stay counted as ``in_queue``."""
        return self._worker.close(timeout_s)
