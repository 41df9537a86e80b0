"""
The queue between the threads that log and the dispatcher.

With the interpreter lock it is one deque. Without it, threads that append to one deque wait for each other, so each
lane has a deque of its own, and the dispatcher puts what they hold in order by the moment at which it was logged.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from itertools import repeat, starmap
from operator import itemgetter
from typing import Any, Final, TypeAlias

from trackside._free_threading import FREE_THREADED, lane, shared

Entry: TypeAlias = tuple[int, Any]
"""An item of a lane, after the moment at which it was logged, in nanoseconds of the performance counter."""

now_ns: Final = shared(time.perf_counter_ns)
_moment: Final = itemgetter(0)
_item: Final = itemgetter(1)


class Placeholder:
    """An item of the queue that is nothing, and takes a place: a large event has some before it."""


PLACEHOLDER: Final = Placeholder()


class Queue(deque[Any]):
    """One deque, to which all threads append."""

    __slots__ = ()

    @property
    def ordered(self) -> deque[Any]:
        """The items that the dispatcher takes, in order."""
        return self

    def put_in_order(self) -> int:
        """Return how many items wait: they are in order."""
        return len(self)

    def fill(self, places: int) -> None:
        """Append as many placeholders."""
        self.extend(repeat(PLACEHOLDER, places))


class QueueByLane:
    """
    A deque for each lane.

    Events of one thread keep their order, and so do events of two threads if the second call began after the first had
    returned. For that, all threads must read the same clock, which advances between the two calls.
    """

    __slots__ = ("_lanes", "_later", "_moves", "ordered")

    def __init__(self) -> None:
        self.ordered: deque[Any] = deque()
        """The items that the dispatcher takes, in order."""
        self._lanes: dict[int, deque[Entry]] = {}
        self._later: deque[Entry] = deque()
        """Entries that left their lanes, and are not in order yet."""
        self._moves = 0
        """Raised when entries begin to move and when they have moved, so odd meanwhile."""

    def __len__(self) -> int:
        """Return how many items wait; perhaps too few while they are taken, but never too many, which drops events."""
        while True:
            moves = self._moves
            places = [*list(self._lanes.values()), self._later, self.ordered]
            # While no entries move, the dispatcher takes items from the last place: it is counted last. While entries
            # move, it takes none, and each comes to a later place: the last is counted first.
            if moves % 2:
                places.reverse()
            count = sum(map(len, places))
            if moves == self._moves:
                return count

    def of_lane(self) -> deque[Entry]:
        """Return the deque of this thread's lane."""
        number = lane()
        entries = self._lanes.get(number)
        return self._lanes.setdefault(number, shared(deque())) if entries is None else entries

    def append(self, item: object) -> None:
        """Append *item* in this thread's lane."""
        self.of_lane().append((now_ns(), item))

    def fill(self, places: int) -> None:
        """Append as many placeholders in this thread's lane."""
        self.of_lane().extend(repeat((now_ns(), PLACEHOLDER), places))

    def put_in_order(self) -> int:
        """Put in order what was logged before this call; return how many items wait in order."""
        # Later items wait for the next call: their lane may have been emptied before that of their predecessors.
        until_ns = now_ns()
        self._moves |= 1  # it is odd already if an exception of a signal handler ended the previous call
        # Each of the calls that move entries is one into C: no such exception can come within it.
        for entries in list(self._lanes.values()):
            self._later.extend(starmap(entries.popleft, repeat((), len(entries))))
        unsorted, in_order = self._later, sorted(self._later, key=_moment)
        self._later = deque(in_order)
        unsorted.clear()  # another thread may be about to count it
        due = bisect_right(in_order, until_ns, key=_moment)
        self.ordered.extend(map(_item, starmap(self._later.popleft, repeat((), due))))
        self._moves += 1
        return len(self.ordered)

    def copy(self) -> list[Any]:
        """Return all items, in order."""
        waiting = self._later.copy()
        for entries in list(self._lanes.values()):
            waiting += entries.copy()
        return [*self.ordered.copy(), *map(_item, sorted(waiting, key=_moment))]


def make_queue() -> Queue | QueueByLane:
    """Return an empty queue of the kind that this interpreter needs."""
    return shared(QueueByLane() if FREE_THREADED else Queue())
