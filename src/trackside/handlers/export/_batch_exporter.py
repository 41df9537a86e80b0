"""The batch exporter: items for another system, delivered in order from a thread of its own, or counted as lost."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from trackside.core import RateLimitedLog, Worker, complain, described
from trackside.events import TracksideError

T = TypeVar("T")

_FIRST_RETRY_S: Final = 0.25
QUEUE_FULL: Final = "queue full"
CLOSED: Final = "not delivered before close"

_DELIVERY_SHARE: Final = 0.8
"""The part of the time for `BatchExporter.close` that is spent waiting for deliveries."""
_SHORTEST_PAUSE_S: Final = 0.01


class RefusedError(TracksideError):
    """The other system will never accept a batch; another attempt would only delay the batches behind it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class _Item(NamedTuple):
    value: Any
    events: int
    size_bytes: int


class BatchExporter(Generic[T]):
    """
    Deliver items in batches, and retry a batch that failed.

    Whether the other system is down, hangs or raises: `put`, `flush` and `close` return in time, memory is bounded, and
    each event that was not delivered is counted under a reason. The first retry comes after 0.25 s; each further
    failure doubles the pause, up to *max_retry_s*. Items stay in order: nothing overtakes a batch that failed.

    Args:
        deliver: Sends one batch; called on the exporter's thread. It raises `RefusedError` where a retry is pointless,
            and anything else where it is not.
        name: The name in the thread's name and in warnings.
        max_events: The most events that may wait.
        max_bytes: The most bytes that may wait.
        max_batch_items: The most items in one batch.
        export_interval_s: The time that an item waits for others before its batch is sent, in seconds.
        max_retry_s: The longest pause between two attempts, in seconds.
    """

    def __init__(
        self,
        deliver: Callable[[list[T]], object],
        *,
        name: str,
        max_events: int = 16_384,
        max_bytes: int = 32 << 20,
        max_batch_items: int = 512,
        export_interval_s: float = 1.0,
        max_retry_s: float = 30.0,
    ) -> None:
        self.name = name
        self._deliver = deliver
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._max_batch_items = max_batch_items
        self._export_interval_s = export_interval_s
        self._max_retry_s = max_retry_s
        self.reset()

    def reset(self) -> None:
        """Start from nothing, without the parent's thread, locks and items; for a forked child."""
        self._worker = Worker(self._work, name=self.name, pause_s=self._pause_s, is_wanted=self._has_batch)
        self._items: deque[_Item] = deque()
        self.waiting_events: int = 0
        """Events that were accepted and neither delivered nor counted as lost."""
        self._waiting_bytes = 0
        self._accepted = 0
        self._settled = 0
        self._is_closed = False
        self._retry_pause_s = 0.0
        self._retry_at_s = 0.0
        self._losses: Counter[str] = Counter()
        self._log = RateLimitedLog()
        self.last_error: str = ""
        """The reason why the latest delivery failed; empty if it succeeded."""

    @property
    def lost(self) -> int:
        """Events that will not be delivered."""
        return sum(self.losses().values())

    def losses(self) -> dict[str, int]:
        """Return the number of lost events by reason."""
        with self._worker.lock:
            return dict(self._losses)

    def put(self, item: T, *, events: int = 1, size_bytes: int = 0) -> bool:
        """Accept *item* for delivery; False, without counting a loss, if the queue is full or the exporter closed."""
        with self._worker.lock:
            is_full = self._items and (
                self.waiting_events + events > self._max_events or self._waiting_bytes + size_bytes > self._max_bytes
            )
            if self._worker.is_closing or is_full:
                return False
            self._items.append(_Item(item, events, size_bytes))
            self.waiting_events += events
            self._waiting_bytes += size_bytes
            self._accepted += 1
            if len(self._items) == self._max_batch_items:
                self._worker.wake()
            self._worker.start()
        return True

    def put_or_drop(self, item: T, *, events: int = 1, size_bytes: int = 0) -> None:
        """Accept *item* for delivery, or count its events as lost."""
        if not self.put(item, events=events, size_bytes=size_bytes):
            self.drop(events, QUEUE_FULL)

    def drop(self, events: int, reason: str) -> None:
        """Count *events* as lost."""
        with self._worker.lock:
            self._losses[reason] += events

    def flush(self, timeout_s: float) -> bool:
        """Deliver the waiting items now; True if everything accepted before was delivered within *timeout_s*."""
        with self._worker.lock:
            due, lost = self._accepted, sum(self._losses.values())
        is_done = self._worker.flush(timeout_s)
        with self._worker.lock:
            return is_done and self._settled >= due and lost == sum(self._losses.values())

    def close(self, timeout_s: float) -> bool:
        """Try once to deliver all, stop, and count the rest as lost. False if any event was lost. Safe to repeat."""
        # The caller gives up after timeout_s, and the losses must be counted by then.
        self._worker.close(timeout_s * _DELIVERY_SHARE)
        with self._worker.lock:
            self._is_closed = True
            undelivered = self.waiting_events
            if undelivered:
                self._losses[CLOSED] += undelivered
                self._items.clear()
                self.waiting_events = self._waiting_bytes = 0
            lost = sum(self._losses.values())
        if undelivered:
            self._report(at_once=True)
        return not lost

    # --- on the exporter's thread ------------------------------------------------------------------------------

    def _work(self, *, insist: bool, is_last: bool) -> None:  # noqa: ARG002  there is nothing to release at the end
        """Deliver batch by batch until one fails."""
        if not insist and time.monotonic() < self._retry_at_s:
            return
        with self._worker.lock:
            due = self._accepted
        while True:
            with self._worker.lock:
                count = min(len(self._items), self._max_batch_items, max(0, due - self._settled))
                batch = [self._items[index] for index in range(count)]
            if not batch or self._is_closed or not self._attempt(batch):
                return

    def _has_batch(self) -> bool:
        return not self.last_error and len(self._items) >= self._max_batch_items

    def _pause_s(self) -> float:
        if not self.last_error:
            return self._export_interval_s
        return max(_SHORTEST_PAUSE_S, self._retry_at_s - time.monotonic())

    def _attempt(self, batch: list[_Item]) -> bool:
        """Deliver *batch*, the oldest items; return whether to go on with the next batch."""
        refusal = ""
        try:
            self._deliver([item.value for item in batch])
        except RefusedError as error:
            refusal = error.reason
        except Exception as error:  # the thread must outlive whatever a client library raises
            self._schedule_retry(error)
            return False
        with self._worker.lock:
            self.last_error, self._retry_pause_s, self._retry_at_s = refusal, 0.0, 0.0
            if self._is_closed:  # the delivery outlasted close(), which counted this batch as lost
                return False
            for item in batch:
                self._items.popleft()
                self.waiting_events -= item.events
                self._waiting_bytes -= item.size_bytes
            self._settled += len(batch)
            if refusal:
                self._losses[refusal] += sum(item.events for item in batch)
        if refusal:
            self._report()
            self.last_error = ""
        return True

    def _schedule_retry(self, error: Exception) -> None:
        with self._worker.lock:
            self.last_error = described(error)
            self._retry_pause_s = min(max(_FIRST_RETRY_S, 2 * self._retry_pause_s), self._max_retry_s)
            self._retry_at_s = time.monotonic() + self._retry_pause_s
        self._report()

    def _report(self, *, at_once: bool = False) -> None:
        """Log a warning with the counts: once a minute, or *at_once*."""
        report = complain if at_once else self._log.complain
        error = self.last_error or CLOSED
        message = "%s: %s; %d event(s) wait, %d are lost so far; training goes on"
        report(message, self.name, error, self.waiting_events, self.lost)


class Exporting:
    """A base of sinks that deliver accepted events through one `BatchExporter`."""

    _exporter: BatchExporter[Any]

    @property
    def lost(self) -> int:
        """Events that were accepted and will not be delivered."""
        return self._exporter.lost

    def losses(self) -> dict[str, int]:
        """Return the number of lost events by reason."""
        return self._exporter.losses()
