"""Counting without a lock."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trackside._free_threading import FREE_THREADED, lane
from trackside._implementation import native

_count: Callable[[int], Any] = itertools.count if native is None else native.Count


class ThreadSafeCount:
    """
    A count that any number of threads, signal handlers and finalizers may raise at once.

    ``add()`` is one call into C, so it is exact without a lock, with the GIL or without it.
    """

    __slots__ = ("_counter", "_start", "add")

    def __init__(self, ahead: int = 0) -> None:
        self._start = ahead
        self._counter = _count(ahead)
        self.add: Callable[[], int] = self._counter.__next__
        """Count one more; returns how many there were before, plus *ahead*."""

    @property
    def value(self) -> int:
        """The number of calls of `add`."""
        # There is no other way, in every Python version, to read `itertools.count` without advancing it.
        upcoming = self._counter.next if native is not None else int(repr(self._counter)[6:-1])
        return upcoming - self._start


if TYPE_CHECKING or not FREE_THREADED:
    CountByLane = ThreadSafeCount
else:

    class CountByLane:
        """A `ThreadSafeCount` for each lane, and their sum: threads that count at once do not wait for each other."""

        __slots__ = ("_lanes",)

        def __init__(self) -> None:
            self._lanes: dict[int, ThreadSafeCount] = {}

        @property
        def add(self) -> Callable[[], int]:
            """Count one more in the lane of this thread; any other may call it too."""
            number = lane()
            count = self._lanes.get(number) or self._lanes.setdefault(number, ThreadSafeCount())
            return count.add

        @property
        def value(self) -> int:
            """The number of calls of `add`."""
            return sum(count.value for count in list(self._lanes.values()))
