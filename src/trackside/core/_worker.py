"""
The threads that others are built on, a thread's stop event, and a thread's queue of requests.

A `LateThread` is started once, by the first caller that needs it. A `Worker` works at an interval, when there is enough
to do, and on request; `flush` and `close` wait for it with a ticket.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from trackside.core._closing import deadline_in, left_s
from trackside.core._logging import RateLimitedLog, described

_MOMENT_S: Final = 0.0001
_LOOK_S: Final = 0.05
T = TypeVar("T")


class Mailbox(Generic[T]):
    """
    A queue for one thread that reads, which any thread, finalizer or signal handler may put into.

    A wait ends when its timeout has passed. Up to Python 3.12 `queue.SimpleQueue` waits for ever if the timeout passes
    before the thread sleeps, while a signal handler runs, or while the thread waits for the interpreter lock.
    """

    __slots__ = ("_has_news", "_items")

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._has_news = threading.Lock()
        """Unlocked if an item was put in since the reader last found none."""
        self._has_news.acquire()

    def put(self, item: T) -> None:
        """Add *item*, and wake the reader."""
        try:
            self._items.append(item)
        finally:  # also if a signal handler raises now
            try:  # noqa: SIM105  `suppress` is Python, in which a signal handler may raise
                self._has_news.release()
            except RuntimeError:  # the reader has not looked since the last item
                pass

    def get(self, timeout_s: float | None = None) -> T:
        """
        Remove and return the oldest item; wait for it for at most *timeout_s* seconds, or for ever if that is None.

        Raises:
            queue.Empty: No item came in time.
        """
        deadline_s = None if timeout_s is None else deadline_in(timeout_s)
        while True:
            try:
                return self._items.popleft()
            except IndexError:
                pass
            if not self._has_news.acquire(timeout=-1 if deadline_s is None else left_s(deadline_s)):
                raise queue.Empty


class StopEvent(threading.Event):
    """
    A `threading.Event` that is set once, for one waiting thread.

    A signal handler may set it, or raise while it is being set: no Python code takes a lock that could stay locked.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False
        self._calls: Mailbox[None] = Mailbox()

    def is_set(self) -> bool:
        """Return whether it was set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake the thread that waits."""
        self._is_set = True
        self._calls.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most *timeout* seconds; return whether it is."""
        if not self._is_set:
            with contextlib.suppress(queue.Empty):
                self._calls.get(timeout)
        return self._is_set


def wait_until_set(stop: threading.Event, timeout_s: float) -> None:
    """
    Wait until *stop* is set, at most *timeout_s* seconds; a signal handler of the waiting thread may set it.

    `threading.Event.wait` takes the lock that `set` takes, so such a handler would wait for its own thread.
    """
    deadline_s = deadline_in(timeout_s)
    while not stop.is_set() and time.monotonic() < deadline_s:
        time.sleep(min(_LOOK_S, left_s(deadline_s)))


class LateThread:
    """
    A daemon thread that does not exist until it is needed.

    Any number of threads and signal handlers may start it at once; none of them waits for another.
    """

    __slots__ = ("_has_ended", "_starting", "_target", "_thread", "name")

    def __init__(self, target: Callable[[], object], name: str) -> None:
        self.name: str = name
        self._target = target
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._has_ended = False
        """Kept because `Thread.is_alive` says, after a signal handler raised in it, that a running thread has ended."""

    def start(self) -> bool:
        """
        Start the thread unless it was started; False if no thread can be started because the interpreter is ending.
        """
        if self._thread is None and self._starting.acquire(blocking=False):
            try:
                return self._thread is not None or self._start()
            finally:
                self._starting.release()
        return True

    def _start(self) -> bool:
        # The thread is stored before it runs, so that an interrupt in between cannot lead to a second thread.
        self._thread = thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        finally:
            if thread.ident is None:
                self._thread = None
        return True

    def _run(self) -> None:
        # If its starter was interrupted before the thread ran, another may have been started since.
        if self._thread is threading.current_thread():
            try:
                self._target()
            finally:
                self._has_ended = True

    @property
    def is_started(self) -> bool:
        """Whether the thread was started; it may have ended since."""
        return self._thread is not None

    @property
    def is_alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread is not None and self._thread.ident is not None and not self._has_ended

    @property
    def is_current(self) -> bool:
        """Whether the caller is the thread."""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; return whether it came."""
        thread = self._thread
        if thread is None or thread.ident is None:  # never started, or another thread is about to start it
            return True
        if self.is_current:
            return False
        deadline_s = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(RuntimeError):  # it runs already, but a moment passes before `threading` says so
                thread.join(max(0.0, deadline_s - time.monotonic()))
            if not self.is_alive:
                return True
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_MOMENT_S)


class Work(Protocol):
    """One round of work, called without `Worker.lock` and never by two threads at once."""

    def __call__(self, *, insist: bool, is_last: bool) -> object:
        """
        Process what waits.

        Args:
            insist: A flush or close waits for this round: do not pause after a failure, and do not wait for a full
            batch.
            is_last: The worker closes after this round: release what it holds.
        """


class _Ticket(NamedTuple):
    """A caller that waits for a round, and whether one was done for it."""

    done: threading.Lock
    outcome: list[bool]


class Worker:
    """
    A daemon thread for I/O, which its owner never waits for except in `flush` and `close`.

    The owner keeps its queue under `lock`, which is re-entrant, and holds it for a few instructions::

        def accept(self, item):
            with self._worker.lock:
                self._queue.append(item)
                if len(self._queue) >= ENOUGH:
                    self._worker.wake()
                return self._worker.start()


        def flush(self, timeout_s):
            due = self._accepted
            return self._worker.flush(timeout_s) and self._written >= due

    In a forked child the owner makes a new worker. Where no thread can be started any more, because the interpreter
    ends, `flush` and `close` work in their caller's thread.

    Args:
        work: One round; an error that it raises is reported, at most one a minute, and the thread goes on.
        name: For the thread's name and for reports.
        pause_s: Returns the longest wait before the next round, in seconds; called with `lock` held.
        is_wanted: Returns whether a round is due at once; called with `lock` held.
    """

    def __init__(
        self, work: Work, *, name: str, pause_s: Callable[[], float], is_wanted: Callable[[], bool] = bool
    ) -> None:
        # Not a `threading.Condition`: it is entered by Python code, and a signal handler that raises there leaves it
        # locked.
        self.lock: threading.RLock = threading.RLock()
        self.is_closing: bool = False
        """Whether `close` was called."""
        self.is_closed: bool = False
        """Whether the last round is over."""
        self._work = work
        self._name = name
        self._pause_s = pause_s
        self._is_wanted = is_wanted
        self._requests: Mailbox[_Ticket | None] = Mailbox()
        self._working = threading.Lock()
        self._log = RateLimitedLog()
        self._thread = LateThread(self._serve, f"trackside-{name}")

    @property
    def is_current(self) -> bool:
        """Whether the caller is the worker's thread."""
        return self._thread.is_current

    def start(self) -> bool:
        """Start the thread unless it was started; False if none can be started any more."""
        with self.lock:  # so that `_request` does not see a starting thread as no thread
            return self._thread.start()

    def wake(self) -> None:
        """Have the thread check whether a round is due."""
        self._requests.put(None)

    def flush(self, timeout_s: float) -> bool:
        """Return whether a round that began after this call has ended within *timeout_s*; False on its own thread."""
        if self.is_current:
            return False
        return self._request(deadline_in(timeout_s), is_last=False)

    def close(self, timeout_s: float) -> bool:
        """Have the last round done; return whether it has ended within *timeout_s*. Safe to call twice."""
        with self.lock:
            self.is_closing = True
        if self.is_current:
            self.wake()
        else:
            self._request(deadline_in(timeout_s), is_last=True)
        return self.is_closed

    def _request(self, deadline_s: float, *, is_last: bool) -> bool:
        """Wait until *deadline_s* for the end of a round that begins after this call; return whether it came."""
        with self.lock:
            has_thread = self._thread.is_started
        if not has_thread:
            return self._run_here(deadline_s, is_last=is_last)
        ticket = _Ticket(threading.Lock(), [])
        ticket.done.acquire()
        self._requests.put(ticket)
        if self.is_closed:
            self._dismiss()
        return ticket.done.acquire(timeout=left_s(deadline_s)) and bool(ticket.outcome)

    def _run_here(self, deadline_s: float, *, is_last: bool) -> bool:
        """Do a round in the calling thread; False if another thread is still in one at *deadline_s*."""
        if not self._working.acquire(timeout=left_s(deadline_s)):
            return False
        try:
            if not self.is_closed:
                self._run(insist=True, is_last=is_last)
        finally:
            self._working.release()
        return True

    def _serve(self) -> None:
        while not self.is_closed:
            tickets, is_last = self._wait(), self.is_closing
            with self._working:
                self._run(insist=is_last or bool(tickets), is_last=is_last)
            for ticket in tickets:
                ticket.outcome.append(True)
                ticket.done.release()
        self._dismiss()

    def _wait(self) -> list[_Ticket]:
        """Return when a round is due, with the tickets of those that wait for it."""
        tickets: list[_Ticket] = []
        with self.lock:
            deadline_s = deadline_in(self._pause_s())
        while True:
            with self.lock:
                is_due = bool(tickets) or self.is_closing or self._is_wanted()
            try:
                request = self._requests.get(0.0 if is_due else left_s(deadline_s))
            except queue.Empty:
                return tickets
            if request is not None:
                tickets.append(request)

    def _dismiss(self) -> None:
        """Release the callers for which no further round will be done."""
        with contextlib.suppress(queue.Empty):
            while True:
                request = self._requests.get(0.0)
                if request is not None:
                    request.done.release()

    def _run(self, *, insist: bool, is_last: bool) -> None:
        try:
            self._work(insist=insist, is_last=is_last)
        except Exception as error:  # the thread must outlive it: no other does this work
            self._log.complain("%s failed: %s; it goes on", self._name, described(error))
        finally:
            self.is_closed = self.is_closed or is_last
