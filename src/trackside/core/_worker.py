"""A worker thread with flush tickets: it works at an interval, when there is enough to do, and on request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from trackside.core._deadline import deadline_in, left_s
from trackside.core._logging import RateLimitedLog, described
from trackside.core._thread import LateThread


class Work(Protocol):
    """One round of work, called without `Worker.changed` and never by two threads at once."""

    def __call__(self, *, insist: bool, is_last: bool) -> object:
        """
        Process what waits.

        Args:
            insist: A flush or close waits for this round: do not rest after failures, and leave nothing to batch.
            is_last: The worker closes after this round: release what it holds.
        """


class Worker:
    """
    A daemon thread for I/O, which its owner never waits for except in `flush` and `close`.

    The owner keeps its queue under `changed`, a condition over a re-entrant lock, and holds it for a few instructions::

        def accept(self, item):
            with self._worker.changed:
                self._queue.append(item)
                if len(self._queue) >= ENOUGH:
                    self._worker.changed.notify_all()
                return self._worker.start()


        def flush(self, timeout_s):
            due = self._accepted
            return self._worker.flush(timeout_s) and self._written >= due

    In a forked child the owner makes a new worker. Where no thread can be started any more, because the interpreter
    ends, `flush` and `close` work in their caller's thread.

    Args:
        work: One round; what it raises is reported once a minute, and the thread goes on.
        name: For the thread's name and for reports.
        pause_s: Returns the longest wait before the next round, in seconds; called with `changed` held.
        is_wanted: Returns whether a round is due at once; called with `changed` held.
    """

    def __init__(
        self, work: Work, *, name: str, pause_s: Callable[[], float], is_wanted: Callable[[], bool] = bool
    ) -> None:
        self.changed = threading.Condition()
        self.is_closing = False
        """Whether `close` was called."""
        self.is_closed = False
        """Whether the last round is over."""
        self._work = work
        self._name = name
        self._pause_s = pause_s
        self._is_wanted = is_wanted
        self._requested = 0
        self._completed = 0
        self._working = threading.Lock()
        self._log = RateLimitedLog()
        self._thread = LateThread(self._serve, f"trackside-{name}")

    @property
    def is_current(self) -> bool:
        """Whether the caller is the worker's thread."""
        return self._thread.is_current

    def start(self) -> bool:
        """Start the thread unless it was started; False if none can be started any more."""
        with self.changed:  # a flush must not take a thread that is just starting for none
            return self._thread.start()

    def flush(self, timeout_s: float) -> bool:
        """Return whether a round that began after this call has ended within *timeout_s*; False on its own thread."""
        if self.is_current:
            return False
        deadline_s = deadline_in(timeout_s)
        with self.changed:
            self._requested += 1
            ticket = self._requested
            self.changed.notify_all()
            has_thread = self._thread.is_started
        if not has_thread:
            return self._run_here(deadline_s, is_last=False)
        with self.changed:
            self.changed.wait_for(lambda: self._completed >= ticket or self.is_closed, left_s(deadline_s))
            return self._completed >= ticket

    def close(self, timeout_s: float) -> bool:
        """Have the last round done; return whether it has ended within *timeout_s*. Safe to call twice."""
        deadline_s = deadline_in(timeout_s)
        with self.changed:
            self.is_closing = True
            self.changed.notify_all()
            has_thread = self._thread.is_started
        if not has_thread:
            return self._run_here(deadline_s, is_last=True)
        with self.changed:
            if not self.is_current:
                self.changed.wait_for(lambda: self.is_closed, left_s(deadline_s))
            return self.is_closed

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
            with self.changed:
                self.changed.wait_for(self._is_due, self._pause_s())
                requested, is_last = self._requested, self.is_closing
                insist = is_last or requested > self._completed
            with self._working:
                self._run(insist=insist, is_last=is_last)
            with self.changed:
                self._completed = requested
                self.changed.notify_all()

    def _is_due(self) -> bool:
        return self.is_closing or self._requested > self._completed or self._is_wanted()

    def _run(self, *, insist: bool, is_last: bool) -> None:
        try:
            self._work(insist=insist, is_last=is_last)
        except Exception as error:  # the thread must outlive it: no other does this work
            self._log.complain("%s failed: %s; it goes on", self._name, described(error))
        finally:
            self.is_closed = self.is_closed or is_last
