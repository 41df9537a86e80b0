"""The counts of handlers that left."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeAlias

from trackside.bus._inline import InlineSeat
from trackside.bus._queued import QueuedSeat
from trackside.bus._stats import HandlerStats

Seat: TypeAlias = InlineSeat | QueuedSeat

_MAX_NAMES: Final = 64


class Past:
    """
    Keeps the counts of handlers that left, merged by name so that they cannot grow for ever.

    A handler may leave while it runs, so a seat is kept until its counts balance, and its handler no longer.

    Args:
        read: Returns the counts of a seat.
    """

    def __init__(self, read: Callable[[Seat], HandlerStats]) -> None:
        self._read = read
        self._leaving: dict[Seat, None] = {}
        self._merged: dict[str, HandlerStats] = {}
        self._suppressed = 0
        self._merging = threading.Lock()

    def add(self, seat: Seat) -> None:
        """Remember a seat that is no longer on the bus."""
        self._leaving[seat] = None
        self._merge()

    def stats(self) -> tuple[HandlerStats, ...]:
        """Return the counts of all who left: merged, then those of seats that are still busy."""
        self._merge()
        return (*self._merged.values(), *(self._read(seat) for seat in list(self._leaving)))

    @property
    def suppressed(self) -> int:
        """Events that were logged too deep within those who left."""
        return self._suppressed + sum(suppressed_at(seat) for seat in list(self._leaving))

    def _merge(self) -> None:
        # Whoever comes second leaves it to the next time rather than wait: it may be a signal handler.
        if not self._merging.acquire(blocking=False):
            return
        try:
            for seat in list(self._leaving):
                stats = self._read(seat)
                if stats.balance == 0 and stats.in_queue == 0:
                    known = stats.name in self._merged or len(self._merged) < _MAX_NAMES
                    name = stats.name if known else "(others)"
                    past = self._merged.get(name) or HandlerStats(name=name, runs_on=stats.runs_on)
                    self._merged[name] = past.plus(stats)
                    self._suppressed += suppressed_at(seat)
                    del self._leaving[seat]
        finally:
            self._merging.release()


def suppressed_at(seat: Seat) -> int:
    """Return how many events were logged too deep within the handlers of *seat*."""
    return seat.suppressed.value if isinstance(seat, InlineSeat) else 0
