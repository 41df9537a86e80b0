"""The counts of a bus and of its handlers, also of those that left."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

import attrs

from trackside.events import Value

S = TypeVar("S")

_MAX_NAMES: Final = 64


@attrs.frozen(kw_only=True, eq=False, repr=False)
class HandlerStats(Value):
    """
    The counts of the events meant for one handler.

    Whenever no call is in progress,
    ``logged == handled + failed + filtered + sampled + dropped + suspended + invalid + in_queue``.
    """

    name: str
    runs_on: str
    logged: int = 0
    """Events of the handler's types, logged while it was subscribed."""
    handled: int = 0
    failed: int = 0
    """The handler raised."""
    filtered: int = 0
    """Left out by a predicate or the redaction."""
    sampled: int = 0
    """Left out by a sampling rule."""
    dropped: int = 0
    """There was no room, the sink lost it, or it was not delivered by the end."""
    suspended: int = 0
    """The handler was suspended after too many failures."""
    invalid: int = 0
    """A value could not be recorded."""
    in_queue: int = 0
    """Not yet read."""
    last_error: str = ""
    unfinished: int = 0
    """
    The times that it did not return from its last event, or was not closed, in time; events that it held may be lost
    too.
    """

    @property
    def balance(self) -> int:
        """The number of events in no count: 0 whenever no call is in progress."""
        return self.logged - (
            self.handled
            + self.failed
            + self.filtered
            + self.sampled
            + self.dropped
            + self.suspended
            + self.invalid
            + self.in_queue
        )

    @property
    def lost(self) -> int:
        """Events the handler should have had and never will."""
        return self.failed + self.dropped + self.suspended + self.invalid

    def plus(self, other: HandlerStats) -> HandlerStats:
        """Return the sum of both, under this one's name."""
        counts = {name: getattr(self, name) + getattr(other, name) for name in COUNTS}
        return attrs.evolve(self, **counts, last_error=other.last_error or self.last_error)

    def minus(self, earlier: HandlerStats) -> HandlerStats:
        """Return the counts since *earlier*, when they were those of the same handler."""
        return attrs.evolve(self, **{name: getattr(self, name) - getattr(earlier, name) for name in COUNTS})


COUNTS = (
    "logged",
    "handled",
    "failed",
    "filtered",
    "sampled",
    "dropped",
    "suspended",
    "invalid",
    "in_queue",
    "unfinished",
)


def _by_name(handlers: Iterable[HandlerStats]) -> dict[str, HandlerStats]:
    merged: dict[str, HandlerStats] = {}
    for stats in handlers:
        merged[stats.name] = merged[stats.name].plus(stats) if stats.name in merged else stats
    return merged


@attrs.frozen(kw_only=True, eq=False, repr=False)
class BusStats(Value):
    """The counts of a bus and of each of its handlers."""

    handlers: tuple[HandlerStats, ...] = ()
    """Open ones by order of subscription, then the closed ones, merged by name."""
    published: int = 0
    """Events numbered so far: the length of this process's stream."""
    by_type: dict[str, int] = attrs.field(factory=dict)
    """Numbered events by wire name."""
    dropped_by_type: dict[str, int] = attrs.field(factory=dict)
    """Events that the full queue dropped, by wire name."""
    in_queue: int = 0
    queue_peak: int = 0
    """The most places of the queue that the dispatcher found taken; a large event takes several."""
    suppressed: int = 0
    """Logged more than 16 deep within handlers, or where the stack was full, and not delivered there."""
    after_close: int = 0
    """Logged after the bus was closed."""
    not_events: int = 0
    """Objects logged that were no events."""
    strings_cut: int = 0
    """Strings shortened to 64 KiB."""

    @property
    def logged(self) -> int:
        """Deliveries that were due: an event for two handlers counts twice, here and below."""
        return self.total("logged")

    @property
    def handled(self) -> int:
        """Deliveries done."""
        return self.total("handled")

    @property
    def failed(self) -> int:
        """Deliveries in which the handler raised."""
        return self.total("failed")

    @property
    def dropped(self) -> int:
        """Deliveries that were dropped for lack of room."""
        return self.total("dropped")

    @property
    def invalid(self) -> int:
        """Deliveries that failed because a value could not be recorded."""
        return self.total("invalid")

    def total(self, count: str) -> int:
        """Return the sum over all handlers of the *count* of that name in `HandlerStats`."""
        return sum(getattr(handler, count) for handler in self.handlers)

    @property
    def lost(self) -> int:
        """Events that some handler should have had and never will; an event lost to two handlers counts twice."""
        return sum(handler.lost for handler in self.handlers)

    def since(self, earlier: BusStats) -> BusStats:
        """
        Return the counts since *earlier*, when they were those of the same bus; the peak is that of its whole life.

        Handlers are merged by name, because those that left are. Those without an event since then are left out.
        """
        before = _by_name(earlier.handlers)
        since = [
            stats.minus(before[name]) if name in before else stats for name, stats in _by_name(self.handlers).items()
        ]
        return BusStats(
            handlers=tuple(stats for stats in since if stats.logged or stats.name not in before),
            by_type=dict(Counter(self.by_type) - Counter(earlier.by_type)),
            dropped_by_type=dict(Counter(self.dropped_by_type) - Counter(earlier.dropped_by_type)),
            in_queue=self.in_queue,
            queue_peak=self.queue_peak,
            **{name: getattr(self, name) - getattr(earlier, name) for name in _GROWING},
        )


_GROWING: Final = ("published", "suppressed", "after_close", "not_events", "strings_cut")


class RetiredStatistics(Generic[S]):
    """
    The counts of subscribers that left, merged by name so that they cannot grow for ever.

    A handler may leave while it runs, so a subscriber is kept until its counts balance, and its handler no longer.

    Args:
        read: Returns the counts of a subscriber.
        suppressed: Returns how many events were logged too deep within its handler.
    """

    def __init__(self, read: Callable[[S], HandlerStats], suppressed: Callable[[S], int]) -> None:
        self._read = read
        self._suppressed_at = suppressed
        self._leaving: dict[S, bool] = {}
        """Subscribers whose counts do not balance yet, and whether they have left whole."""
        self._merged: dict[str, HandlerStats] = {}
        self._suppressed = 0
        self._merging = threading.Lock()

    def take(self, subscriber: S, subscribers: dict[S, None]) -> bool:
        """
        Move *subscriber* here from *subscribers*; return whether it has to leave yet, or an exception interrupted that.
        """
        try:
            # No call between the two steps, so that no signal handler runs there: its counts are always somewhere.
            del subscribers[subscriber]
            self._leaving[subscriber] = False
        except KeyError:
            return not self._leaving.get(subscriber, True)
        return True

    def add(self, subscriber: S) -> None:
        """Keep the separate counts of a subscriber that has left."""
        self._leaving[subscriber] = True
        self._merge()

    def leaving(self) -> list[S]:
        """Return the subscribers that have not left completely."""
        return [subscriber for subscriber, has_left in list(self._leaving.items()) if not has_left]

    def stats(self) -> tuple[HandlerStats, ...]:
        """Return the counts: merged ones first, then those of subscribers that are still busy."""
        self._merge()
        return (*self._merged.values(), *(self._read(subscriber) for subscriber in list(self._leaving)))

    @property
    def suppressed(self) -> int:
        """Events that were logged too deep within handlers that left."""
        return self._suppressed + sum(self._suppressed_at(subscriber) for subscriber in list(self._leaving))

    def _merge(self) -> None:
        # A second caller does not wait, because it may be a signal handler: the next call does the work.
        if not self._merging.acquire(blocking=False):
            return
        try:
            for subscriber, has_left in list(self._leaving.items()):
                stats = self._read(subscriber)
                if has_left and stats.balance == 0 and stats.in_queue == 0:
                    known = stats.name in self._merged or len(self._merged) < _MAX_NAMES
                    name = stats.name if known else "(others)"
                    before = self._merged.get(name) or HandlerStats(name=name, runs_on=stats.runs_on)
                    merged, suppressed = before.plus(stats), self._suppressed_at(subscriber)
                    # No call from here on, so that no signal handler runs between these.
                    self._merged[name] = merged
                    self._suppressed += suppressed
                    del self._leaving[subscriber]
        finally:
            self._merging.release()
