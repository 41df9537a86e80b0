"""A thread and a bounded queue for one foreign sink, so that whatever it does starves nobody else."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trackside.bus._thread import LateThread

if TYPE_CHECKING:
    from trackside.bus._patience import Patience

MAX_ITEMS: Final = 16_384
MAX_BYTES: Final = 32 << 20


class _Errand(NamedTuple):
    """Something to do between two events, on the siding's thread: ``flush`` or ``close``."""

    method: str
    deadline_s: float
    done: threading.Lock
    """Held by whoever waits, released by the siding."""
    outcome: list[bool]


class Siding:
    """
    Delivers events to one handler on a thread of its own.

    The porter alone offers. Nothing here blocks the porter.

    Args:
        handler: What may have a ``flush(timeout_s)``, a ``close(timeout_s)`` and an ``idle()``; None for nothing.
        patience: The handler's record of failures.
        deliver: Hands one event over; must not raise.
    """

    def __init__(self, handler: Any, patience: Patience, deliver: Callable[[Any], object]) -> None:
        self._handler = handler
        self._patience = patience
        self._deliver = deliver
        # SimpleQueue is written in C: its put can be interrupted by a signal handler that puts, and not deadlock.
        self._inbox: queue.SimpleQueue[list[tuple[Any, int]] | _Errand] = queue.SimpleQueue()
        self._fresh: list[tuple[Any, int]] = []
        self.accepted = 0
        self._accepted_bytes = 0
        self._done = 0
        self._done_bytes = 0
        self.rested = 0
        self._is_abandoned = False
        self._closed_well: bool | None = None
        """What the handler's ``close`` came to; None until then."""
        self._thread = LateThread(self._serve, f"trackside-{patience.name}")

    def start(self) -> None:
        """
        Start the thread, with the first event that is logged for it.

        Not later, on the porter: from Python 3.12 on no thread can be started once the interpreter ends, and then the
        handler would have to run in the thread that waits for the end.
        """
        self._thread.start()

    def offer(self, event: Any, size_bytes: int) -> bool:
        """Accept *event* unless 16,384 events or 32 MiB wait already; on the porter."""
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
        """Hand over what was offered since the last time: one wake-up for a whole batch; on the porter."""
        if self._fresh:
            batch, self._fresh = self._fresh, []
            self._inbox.put(batch)
            self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether it was closed, or given up: what was not delivered will not be."""
        return self._is_abandoned or self._closed_well is not None

    @property
    def is_unfinished(self) -> bool:
        """Whether it was given up before the handler was closed, which may hold something that it took."""
        return self._is_abandoned and self._closed_well is None

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything accepted so far was delivered and the handler, if it can, flushed."""
        if not self.accepted and not self._thread.is_started:
            return True
        return self._run("flush", timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Flush, close the handler, end the thread; what is not delivered by then is counted as lost."""
        if self._handler is None and not self.accepted and not self._thread.is_started:
            self._closed_well = True
        done = self._run("close", timeout_s)
        # A handler that closes itself is closed after the event that it is at.
        if self._closed_well is None and not self._thread.is_current:
            self._is_abandoned = True
        return done

    def _run(self, method: str, timeout_s: float) -> bool:
        """Have the thread do something when it has delivered what came before; return whether that went well."""
        if self.is_over:
            return bool(self._closed_well)
        deadline_s = time.monotonic() + timeout_s
        errand = _Errand(method, deadline_s, threading.Lock(), [])
        errand.done.acquire()
        if self._thread.is_current:
            if method == "close":
                self._inbox.put(errand)
            return False
        self._inbox.put(errand)
        if not self._thread.start():
            self._work_through(deadline_s)
        if self.is_over:
            self._dismiss()
        return errand.done.acquire(timeout=timeout_s) and errand.outcome == [True]

    def _serve(self) -> None:
        while not self.is_over and self._handle(self._inbox.get()):
            if self._inbox.empty():
                self._call("idle")
        self._dismiss()

    def _work_through(self, deadline_s: float) -> None:
        """Do in the calling thread what no thread can be started for any more."""
        with contextlib.suppress(queue.Empty):
            while self._handle(self._inbox.get_nowait(), deadline_s):
                pass

    def _dismiss(self) -> None:
        """Let nobody wait for what will not be done."""
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._inbox.get_nowait()
                if isinstance(item, _Errand):
                    item.outcome.append(bool(self._closed_well))
                    item.done.release()

    def _handle(self, item: list[tuple[Any, int]] | _Errand, deadline_s: float | None = None) -> bool:
        """Deliver a batch or run an errand; return whether to go on."""
        if isinstance(item, _Errand):
            return self._do(item)
        for event, size_bytes in item:
            if deadline_s is not None and time.monotonic() > deadline_s:
                self._is_abandoned = True
            if self._is_abandoned:
                return False
            if self._patience.is_resting():
                self.rested += 1
            else:
                self._deliver(event)
            self._done_bytes += size_bytes
            self._done += 1
        return True

    def _do(self, errand: _Errand) -> bool:
        """Let the handler flush or close, if it has a method for that."""
        good = self._call(errand.method, max(0.0, errand.deadline_s - time.monotonic()))
        if errand.method == "close":
            self._closed_well = good
        errand.outcome.append(good)
        errand.done.release()
        return errand.method != "close"

    def _call(self, name: str, *arguments: float) -> bool:
        """Call a method that the handler may have; False if it said so, or raised."""
        method = getattr(self._handler, name, None)
        if not callable(method):
            return True
        try:
            return method(*arguments) is not False
        except BaseException as error:
            self._patience.report(error)
            return False
