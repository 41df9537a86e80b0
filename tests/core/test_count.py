"""Counting without a lock, in either implementation."""

from __future__ import annotations

import threading

import pytest

from trackside.core import CountByLane, ThreadSafeCount


class TestThreadSafeCount:
    def test_ahead(self):
        """add() returns the number of calls before plus the offset *ahead*; value is the number of calls."""
        count = ThreadSafeCount(ahead=2**40)
        assert [count.add(), count.add()] == [2**40, 2**40 + 1]
        assert count.value == 2

    def test_below_zero(self):
        """The count may begin below zero."""
        count = ThreadSafeCount(ahead=-2)
        assert [count.add() for _ in range(4)] == [-2, -1, 0, 1]
        assert count.value == 4

    @pytest.mark.parametrize("kind", [ThreadSafeCount, CountByLane])
    def test_threads(self, kind):
        """No increment of several threads is lost."""
        count = kind()
        threads = [threading.Thread(target=lambda: [count.add() for _ in range(20_000)]) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert count.value == 80_000
