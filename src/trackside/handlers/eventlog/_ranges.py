"""Which whole numbers have been seen, in as few ranges as say it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

_MOST_RANGES = 65_536


class Ranges:
    """
    Whole numbers seen so far, as disjoint closed ranges.

    Memory is bounded: past 65,536 ranges the lowest hole is taken as seen, and `covered` goes on
    counting exactly.
    """

    __slots__ = ("_firsts", "_lasts", "covered")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self.covered = 0
        """How many numbers were seen."""

    def add(self, first: int, last: int) -> int:
        """Take *first* to *last*, both included, as seen; return how many of them are new."""
        firsts, lasts = self._firsts, self._lasts
        low = bisect_left(lasts, first - 1)
        high = bisect_right(firsts, last + 1)
        fresh = last - first + 1
        for i in range(low, high):
            fresh -= max(0, min(last, lasts[i]) - max(first, firsts[i]) + 1)
        if low < high:
            first, last = min(first, firsts[low]), max(last, lasts[high - 1])
        firsts[low:high] = [first]
        lasts[low:high] = [last]
        self.covered += fresh
        if len(firsts) > _MOST_RANGES:
            del firsts[1], lasts[0]
        return fresh

    def __contains__(self, number: int) -> bool:
        i = bisect_left(self._lasts, number)
        return i < len(self._lasts) and self._firsts[i] <= number

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)
