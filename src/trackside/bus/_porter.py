"""
The porter: the queue, and the one thread that empties it.

It calls no foreign code but rules and the redaction, so nothing else that is foreign can stall it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from trackside.bus._identity import Identity
from trackside.bus._lane import Lane, shed_by_name
from trackside.bus._patience import complain, described, is_power_of_two
from trackside.bus._sorter import Bring, Sorter
from trackside.bus._thread import LateThread
from trackside.events import Event, Source

LOOK_EVERY_S: Final = 0.2
"""Between two looks at the queue if nobody calls: to be woken costs a thread more than some events do."""
BUSY_LOOK_EVERY_S: Final = 0.05
"""The same while many events come: then that is little, and who watches does not wait long."""
_BUSY_PER_S: Final = 10_000
ROUNDS: Final = 3
"""How often a drain looks again for what models published; more would let a model that feeds itself keep it."""
_LOOK_AT_CLOCK_EVERY: Final = 256
_LOOK: Final = "look"
_STOP: Final = "stop"


class Porter:
    """The queue and what empties it."""

    def __init__(
        self,
        *,
        limit: int,
        identity: Identity,
        redact: Callable[[Event], Event | None] | None,
    ) -> None:
        self.queue: deque[Any] = deque()
        self.lanes: dict[type[Event], Lane] = {}
        self.queue_peak = 0
        self.sorter = Sorter(self.lanes, self.lane, identity, redact)
        self._limit = limit
        self._thread = LateThread(self._serve, "trackside-porter")
        self._draining = threading.RLock()
        self._holder: int | None = None
        # C code: a signal handler that flushes while its thread is inside a flush cannot deadlock here.
        self._requests: queue.SimpleQueue[threading.Lock | str] = queue.SimpleQueue()
        self._has_published = False
        self._stumbles = 0
        self._looked_s = 0.0
        self._pause_s = LOOK_EVERY_S
        self._brought = 0

    # --- in the callers' threads -------------------------------------------------------------------------------

    @property
    def source(self) -> Source | None:
        """Whose stream it is at present."""
        return self.sorter.source

    def lane(self, cls: type[Event]) -> Lane:
        """Return the lane of *cls*, one for ever."""
        lane = self.lanes.get(cls)
        return lane if lane is not None else self.lanes.setdefault(cls, Lane(cls, self.queue, self._limit, self._call))

    def _call(self) -> None:
        """Have the thread look at the queue now."""
        self._requests.put(_LOOK)

    def start(self) -> bool:
        """Start the thread if it was not started; False if none can be: flush and close drain in their own thread."""
        return self._thread.start()

    def bring(self, events: Sequence[Event]) -> bool:
        """Queue events of other processes; False if as many as half the queue holds wait already."""
        waiting = self._brought - self.sorter.brought
        if waiting and waiting + len(events) > self._limit // 2:
            return False
        self._brought += len(events)
        self.queue.append(Bring(events))
        self.start()
        if waiting + len(events) >= self._limit // 4:
            self._call()
        return True

    def order(self, item: object) -> None:
        """Queue something to be done between the events before it and those after it, soon."""
        self.queue.append(item)
        self._call()

    def publish(self, event: Event) -> None:
        """Queue what a model says, and look at it before the drain that the model is in has ended."""
        self._has_published = True
        self.lane(type(event)).offer(event)

    def is_here(self) -> bool:
        """Return whether the caller is inside the porter's work, or holds it still."""
        return self._holder == threading.get_ident()

    def settle(self, timeout_s: float) -> bool:
        """Have everything queued so far numbered, fed and handed to the sinks; False if time ran out."""
        if self.is_here():
            return False
        deadline_s = time.monotonic() + timeout_s
        if not self._thread.is_alive:
            return self._settle_here(deadline_s)
        done = threading.Lock()
        done.acquire()
        self._requests.put(done)
        while not done.acquire(timeout=min(LOOK_EVERY_S, max(0.0, deadline_s - time.monotonic()))):
            if not self._thread.is_alive:
                return self._settle_here(deadline_s)
            if time.monotonic() >= deadline_s:
                return False
        return True

    def _settle_here(self, deadline_s: float) -> bool:
        try:
            is_held = self.paused(max(0.0, deadline_s - time.monotonic()))
            return is_held and self._drain(at_once=True, deadline_s=deadline_s)
        finally:
            if self.is_here():  # also if Ctrl-C came before we knew
                self.resume()

    def halt(self, timeout_s: float) -> bool:
        """End the thread; return whether it has ended."""
        if self._thread.is_started:
            self._requests.put(_STOP)
        return self._thread.join(timeout_s)

    def counts(self, waiting: Iterable[Any]) -> dict[str, Any]:
        """Return the porter's part of `BusStats`, of a queue that holds *waiting*."""
        by_type: dict[str, int] = {}
        for lane in list(self.lanes.values()):
            numbered = lane.taken - lane.invalid - lane.redacted
            if numbered:
                by_type[lane.cls.wire_name] = by_type.get(lane.cls.wire_name, 0) + numbered
        return {
            "published": sum(by_type.values()),
            "by_type": by_type,
            "shed_by_type": shed_by_name(self.lanes),
            "in_queue": sum(isinstance(item, Event) for item in waiting),
            "queue_peak": self.queue_peak,
            "strings_cut": self.sorter.encoder.cuts,
        }

    def paused(self, timeout_s: float) -> bool:
        """Hold the porter still, for a consistent look at its counts; pair with `resume` if True."""
        if self.is_here():
            return False
        try:
            if not self._draining.acquire(timeout=timeout_s):
                return False
            self._holder = threading.get_ident()
        except BaseException:  # Ctrl-C, of which nobody knows whether it came before or after
            with contextlib.suppress(RuntimeError):  # it came before
                self._draining.release()
            raise
        return True

    def resume(self) -> None:
        """Let the porter go on."""
        self._holder = None
        self._draining.release()

    # --- on the porter's thread --------------------------------------------------------------------------------

    def _serve(self) -> None:
        stop = False
        while not stop and not self.sorter.is_over:
            waiting: list[threading.Lock] = []
            try:
                request = self._requests.get(timeout=self._pause_s)
                while True:
                    if isinstance(request, str):
                        stop = stop or request == _STOP
                    else:
                        waiting.append(request)
                    request = self._requests.get_nowait()
            except queue.Empty:
                pass
            if self.paused(threading.TIMEOUT_MAX):
                try:
                    self._drain(at_once=bool(waiting) or stop)
                except BaseException as error:
                    self._stumble(error)
                finally:
                    self.resume()
            for done in waiting:
                done.release()

    def _drain(self, *, at_once: bool, deadline_s: float | None = None) -> bool:
        """
        Work through the queue; *at_once* hands also an unfinished batch to the sinks.

        Returns:
            Whether all that was there at first is done; what came meanwhile may wait, so that busy callers cannot keep
            the porter from its other duties.
        """
        now_s, count = time.monotonic(), len(self.queue)
        is_busy = count > _BUSY_PER_S * (now_s - self._looked_s)
        self._looked_s, self._pause_s = now_s, BUSY_LOOK_EVERY_S if is_busy else LOOK_EVERY_S
        self.queue_peak = max(self.queue_peak, count)
        done = self._work_through(count, deadline_s)
        for _ in range(ROUNDS - 1):
            if not self._has_published:
                break
            self._has_published = False
            self._work_through(len(self.queue), deadline_s)
        self.sorter.finish(at_once=at_once)
        for lane in list(self.lanes.values()):
            lane.calm()
        return done

    def _work_through(self, count: int, deadline_s: float | None) -> bool:
        """Do the first *count* things of the queue; False if time ran out."""
        queue, carry, carry_alike, obey = self.queue, self.sorter.carry, self.sorter.carry_alike, self.sorter.obey
        place = 0
        while place < count:
            if deadline_s is not None and not place % _LOOK_AT_CLOCK_EVERY and time.monotonic() > deadline_s:
                return False
            item = queue.popleft()
            place += 1
            try:
                if isinstance(item, Event):
                    if carry(item) and place < count:
                        place += carry_alike(queue, min(count - place, -place % _LOOK_AT_CLOCK_EVERY))
                else:
                    obey(item)
            except BaseException as error:
                self._stumble(error)
        return True

    def _stumble(self, error: BaseException) -> None:
        """Go on after a mistake of ours; an interrupt of a thread that drains for lack of a porter is its own."""
        if isinstance(error, (KeyboardInterrupt, SystemExit)) and not self._thread.is_current:
            raise error
        self._stumbles += 1
        if is_power_of_two(self._stumbles):
            complain("the porter stumbled, %d time(s), over %s", self._stumbles, described(error), error=error)
