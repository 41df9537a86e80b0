"""Counting without a lock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from trackside._implementation import native

_count: Callable[[int], Iterator[int]] = itertools.count if native is None else native.Count


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
        """How often `add` was called."""
        # The only way to look at a count without advancing it that every Python version has.
        return int(repr(self._counter)[6:-1]) - self._start
