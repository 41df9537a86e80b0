"""Carries things to a system of somebody else's: in order, on a thread of its own, and counts what gets lost."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from trackside.events import TracksideError

T = TypeVar("T")

NO_ROOM: Final = "no room"
NOT_BY_THE_END: Final = "not delivered by the end"

_COMPLAIN_EVERY_S: Final = 60.0
_SHARE_TO_DELIVER: Final = 0.8
"""Of the time that there is at the end."""

_logger = logging.getLogger("trackside")


class RefusedError(TracksideError):
    """The other system will never take what it was given; to try again would only hold up the rest."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class _Parcel(NamedTuple):
    item: Any
    events: int
    size_bytes: int


class Courier(Generic[T]):
    """
    Delivers items in batches, and tries again what failed.

    Whatever the other system does (it is down, it hangs, it raises), `put`, `flush` and `close` return in time, memory
    is bounded, and each event that was not delivered is counted under a reason. A batch that fails is tried again
    after *first_rest_s*, then after twice as long each time up to *longest_rest_s*; nothing overtakes it.

    Args:
        deliver: Takes a batch, on the courier's thread. It raises `RefusedError` if there is no point in trying again.
        name: Whose deliveries these are, for the thread and for complaints.
        most_events: How many events may wait.
        most_bytes: How many bytes may wait.
        batch_items: Items in a batch, at most.
        every_s: How long an item waits at most for others to go with it, in seconds.
        first_rest_s: After a first failure, in seconds.
        longest_rest_s: After many failures, in seconds.
    """

    def __init__(
        self,
        deliver: Callable[[list[T]], object],
        *,
        name: str,
        most_events: int = 16_384,
        most_bytes: int = 32 << 20,
        batch_items: int = 512,
        every_s: float = 1.0,
        first_rest_s: float = 0.25,
        longest_rest_s: float = 30.0,
    ) -> None:
        self.name = name
        self._deliver = deliver
        self._most_events = most_events
        self._most_bytes = most_bytes
        self._batch_items = batch_items
        self._every_s = every_s
        self._first_rest_s = first_rest_s
        self._longest_rest_s = longest_rest_s
        self.begin_anew()

    def begin_anew(self) -> None:
        """Be as new; also what a forked child starts from, whatever the parent's thread was doing."""
        self._changed = threading.Condition()
        self._delivering = threading.Lock()
        """Held by the one thread that delivers: an item that two deliver arrives twice, and another never."""
        self._parcels: deque[_Parcel] = deque()
        self._thread: threading.Thread | None = None
        self.waiting_events = 0
        """Events that were taken and neither delivered nor given up."""
        self._waiting_bytes = 0
        self._taken = 0
        self._settled = 0
        self._asked = 0
        self._answered = 0
        self._is_closing = False
        self._is_closed = False
        self._rest_s = 0.0
        self._rests_until_s = 0.0
        self._losses: Counter[str] = Counter()
        self._complained_s: float | None = None
        self.trouble = ""
        """Why the latest delivery failed; empty if it did not."""

    @property
    def lost(self) -> int:
        """Events that were given up."""
        return sum(self.losses().values())

    def losses(self) -> dict[str, int]:
        """Return how many events were given up, by reason."""
        with self._changed:
            return dict(self._losses)

    # --- the way in --------------------------------------------------------------------------------------------

    def put(self, item: T, *, events: int = 1, size_bytes: int = 0) -> bool:
        """Take *item* for delivery; False, and nothing is counted, if there is no room or it is over."""
        with self._changed:
            full = self._parcels and (
                self.waiting_events + events > self._most_events or self._waiting_bytes + size_bytes > self._most_bytes
            )
            if self._is_closing or full:
                return False
            self._parcels.append(_Parcel(item, events, size_bytes))
            self.waiting_events += events
            self._waiting_bytes += size_bytes
            self._taken += 1
            if len(self._parcels) == self._batch_items:
                self._changed.notify_all()
            if self._thread is None:
                self._start()
        return True

    def give_up(self, events: int, reason: str) -> None:
        """Count *events* as lost."""
        with self._changed:
            self._losses[reason] += events

    # --- flush and close ---------------------------------------------------------------------------------------

    def flush(self, timeout_s: float) -> bool:
        """Try at once what waits; True if everything taken before was delivered within *timeout_s*."""
        if threading.current_thread() is self._thread:
            return False
        with self._changed:
            due, lost = self._taken, sum(self._losses.values())
            self._asked += 1
            ticket = self._asked
            self._changed.notify_all()
            is_threadless = self._thread is None
            if not is_threadless:
                self._changed.wait_for(lambda: self._answered >= ticket or self._is_closed, timeout_s)
        if is_threadless:
            self._work_through(timeout_s)
        with self._changed:
            return self._settled >= due and lost == sum(self._losses.values())

    def close(self, timeout_s: float) -> bool:
        """Try what waits once more, and stop; what is not delivered by then is lost. Safe to call twice."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            is_threadless = self._thread is None
            if not is_threadless and threading.current_thread() is not self._thread:
                # Whoever closes us waits no longer than this either: what is lost must be counted before that.
                self._changed.wait_for(lambda: self._is_closed, timeout_s * _SHARE_TO_DELIVER)
        if is_threadless:
            self._work_through(timeout_s)
        with self._changed:
            self._is_closed = True
            left = self.waiting_events
            if left:
                self._losses[NOT_BY_THE_END] += left
                self._parcels.clear()
                self.waiting_events = self._waiting_bytes = 0
            lost = sum(self._losses.values())
        if left:
            self._complain(insist=True)
        return not lost

    # --- on the thread -----------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start the thread; the caller holds `_changed`, so that nobody else starts one, or takes us to be without."""
        # Known before it runs: a signal handler of this very thread is let in.
        self._thread = thread = threading.Thread(target=self._work, name=f"trackside-{self.name}", daemon=True)
        try:
            # While an interpreter ends no thread can be started; then flush and close deliver in their caller's.
            with contextlib.suppress(RuntimeError):
                thread.start()
        finally:
            if thread.ident is None:
                self._thread = None

    def _work(self) -> None:
        if threading.current_thread() is not self._thread:
            return  # its starter was interrupted before it was born: it is nobody's
        is_last = False
        while not is_last:
            with self._changed:
                self._changed.wait_for(self._is_wanted, self._pause_s())
                asked, is_last = self._asked, self._is_closing
                is_due = is_last or asked > self._answered or time.monotonic() >= self._rests_until_s
            if is_due:
                self._work_through()
            with self._changed:
                self._answered = asked
                self._is_closed = self._is_closed or is_last
                self._changed.notify_all()

    def _is_wanted(self) -> bool:
        if self._is_closing or self._asked > self._answered:
            return True
        return not self.trouble and len(self._parcels) >= self._batch_items

    def _pause_s(self) -> float:
        return max(0.01, self._rests_until_s - time.monotonic()) if self.trouble else self._every_s

    def _work_through(self, timeout_s: float = threading.TIMEOUT_MAX) -> None:
        """Deliver what waits, batch by batch, until one fails; nothing if another does for *timeout_s*."""
        if not self._delivering.acquire(timeout=min(max(0.0, timeout_s), threading.TIMEOUT_MAX)):
            return
        try:
            with self._changed:
                due = self._taken
            while True:
                with self._changed:
                    count = min(len(self._parcels), self._batch_items, max(0, due - self._settled))
                    batch = [self._parcels[place] for place in range(count)]
                if not batch or self._is_closed or not self._attempt(batch):
                    return
        finally:
            self._delivering.release()

    def _attempt(self, batch: list[_Parcel]) -> bool:
        """Deliver *batch*, the oldest; return whether to go on with the next."""
        refused = ""
        try:
            self._deliver([parcel.item for parcel in batch])
        except RefusedError as error:
            refused = error.reason
        except Exception as error:  # whatever it is, the thread must outlive it
            self._fail(error)
            return False
        with self._changed:
            self.trouble, self._rest_s, self._rests_until_s = refused, 0.0, 0.0
            if self._is_closed:  # it took so long that what was in it is counted already
                return False
            for parcel in batch:
                self._parcels.popleft()
                self.waiting_events -= parcel.events
                self._waiting_bytes -= parcel.size_bytes
            self._settled += len(batch)
            if refused:
                self._losses[refused] += sum(parcel.events for parcel in batch)
        if refused:
            self._complain()
            self.trouble = ""
        return True

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self.trouble = _described(error)
            self._rest_s = min(max(self._first_rest_s, 2 * self._rest_s), self._longest_rest_s)
            self._rests_until_s = time.monotonic() + self._rest_s
        self._complain()

    def _complain(self, *, insist: bool = False) -> None:
        """Report trouble, once a minute unless *insist*."""
        now_s = time.monotonic()
        if not insist and self._complained_s is not None and now_s - self._complained_s < _COMPLAIN_EVERY_S:
            return
        self._complained_s = now_s
        with contextlib.suppress(Exception):  # a logging handler of the job's
            _logger.warning(
                "%s: %s; %d event(s) wait, %d are lost so far; training goes on",
                self.name,
                self.trouble or NOT_BY_THE_END,
                self.waiting_events,
                self.lost,
            )


def _described(error: Exception) -> str:
    """Return the kind and the message of *error*, whose own ``__str__`` may raise."""
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except Exception:
        return type(error).__name__
