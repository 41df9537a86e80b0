"""The last part of a stream: its size, its age, and its beginning."""

from __future__ import annotations

import pytest

from clocks import SecondsClock
from trackside.handlers.zeromq._server import LostRange, Ring, RingBudget


@pytest.fixture
def clock():
    return SecondsClock()


@pytest.fixture
def budget(clock):
    return RingBudget(10_000, 30.0, clock)


class TestRing:
    def test_numbers(self, budget):
        """Entries are numbered from 0, and know the number of events before them."""
        ring = Ring(budget, "ring")
        for events in (3, 0, 5):
            ring.append(b"frame", events)
        ring.append(LostRange("source", 8, 9, "why"), 0)

        assert [(entry.place, entry.before, entry.events) for entry in ring.read(0, 9)] == [
            (0, 0, 3),
            (1, 3, 0),
            (2, 3, 5),
            (3, 8, 0),
        ]
        assert (ring.next_index, ring.before) == (4, 8)

    def test_bounded_by_bytes(self, budget):
        """The oldest entries are dropped when there is no room, and the others are contiguous."""
        ring = Ring(budget, "ring")
        for _ in range(100):
            ring.append(bytes(744), 1)  # 1,000 bytes with the entry's own overhead

        assert [entry.place for entry in ring.read(90, 99)] == list(range(90, 100))
        assert ring.read(89, 99) == []
        assert ring.position(3) == (90, 90)
        assert budget.size_bytes == 10_000

    def test_bounded_by_time(self, budget, clock):
        """Entries older than thirty seconds are dropped when a new one comes."""
        ring = Ring(budget, "ring")
        ring.append(b"old", 1)
        clock.now_s = 20.0
        ring.append(b"younger", 1)
        clock.now_s = 31.0
        ring.append(b"new", 1)

        assert ring.position(0) == (1, 1)

    def test_budget_is_shared(self, budget):
        """Two rings share the room of one; the larger one is shortened."""
        large, small = Ring(budget, "large"), Ring(budget, "small")
        small.append(bytes(744), 1)
        for _ in range(20):
            large.append(bytes(744), 1)

        assert len(small.read(0, 99)) == 1
        assert len(large.read(large.position(0)[0], 99)) == 9

    @pytest.mark.parametrize(("count", "expected"), [(0, (0, 0)), (1, (0, 0)), (2, (1, 3)), (50, (49, 147))])
    def test_latest(self, budget, count, expected):
        """The latest part is the last eighth of the room, 1,250 bytes: one of these entries."""
        ring = Ring(budget, "ring")
        for _ in range(count):
            ring.append(bytes(744), 3)

        assert ring.latest() == expected

    @pytest.mark.parametrize(("size", "expected"), [(0, 46), (56, 46), (57, 47), (9_000, 49)])
    def test_latest_of_others(self, budget, size, expected):
        """Smaller entries are several, as many as are wholly in it; a larger one is one all the same."""
        ring = Ring(budget, "ring")
        for _ in range(50):
            ring.append(bytes(size), 1)

        assert ring.latest()[0] == expected

    def test_larger_than_the_budget(self, budget):
        """An entry larger than the whole room is not kept, and is counted as having been there."""
        ring = Ring(budget, "ring")
        ring.append(bytes(20_000), 7)

        assert ring.position(0) == (1, 7)
        assert budget.size_bytes == 0

    def test_budget_is_released(self, budget):
        """A closed ring releases its room."""
        ring = Ring(budget, "ring")
        ring.append(bytes(744), 1)
        ring.close()
        ring.close()

        assert budget.size_bytes == 0
        assert budget.rings == []

    @pytest.mark.parametrize(("index", "most", "expected"), [(0, 2, [0, 1]), (4, 9, [4]), (5, 9, []), (2, 0, [])])
    def test_read(self, budget, index, most, expected):
        """Entries can be read from any that is kept."""
        ring = Ring(budget, "ring")
        for _ in range(5):
            ring.append(b"", 1)

        assert [entry.place for entry in ring.read(index, most)] == expected
