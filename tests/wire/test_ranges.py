"""Whole numbers in few ranges."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trackside.wire import Ranges, _sequence

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1])))


class TestRanges:
    @given(SPANS)
    def test_as_a_set(self, spans):
        """Membership and the ranges are those of a plain set of numbers."""
        ranges, numbers = Ranges(), set()
        for first, last in spans:
            ranges.add(first, last)
            numbers |= set(range(first, last + 1))

        assert {n for n in range(80) if n in ranges} == numbers
        assert [n for first, last in ranges for n in range(first, last + 1)] == sorted(numbers)

    @given(SPANS)
    def test_no_two_touch(self, spans):
        """Neighbouring ranges are joined."""
        ranges = Ranges()
        for first, last in spans:
            ranges.add(first, last)
        firsts = [first for first, _ in ranges]
        lasts = [last for _, last in ranges]
        assert all(first > last + 1 for last, first in zip(lasts, firsts[1:], strict=False))

    def test_bounded(self, monkeypatch):
        """Past the bound the lowest hole is taken as seen."""
        monkeypatch.setattr(_sequence, "_MOST_RANGES", 3)
        ranges = Ranges()
        for number in (0, 10, 20, 30):
            ranges.add(number, number)

        assert list(ranges) == [(0, 10), (20, 20), (30, 30)]
