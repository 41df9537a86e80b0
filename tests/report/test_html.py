"""The page's axes, for any values."""

from __future__ import annotations

import itertools
import math

import pytest

from trackside.report._gather import Bin
from trackside.report._html import HEIGHT, Axis, spark

ODD = [-1.7e308, -5.0, -1e-300, -5e-324, 0.0, 5e-324, 2.2e-310, 1e-300, 0.3, 5.0, 1e15, 1e300, 1.7e308]


class TestAxis:
    @pytest.mark.parametrize("has_zero", [True, False])
    @pytest.mark.parametrize(("low", "high"), list(itertools.combinations_with_replacement(ODD, 2)))
    def test_figures_of_any_size(self, low, high, has_zero):
        """Any finite float has a place on the axis, denormals and the largest too, and there are a few ticks."""
        for usual in (low, high):
            axis = Axis(low, high, usual, has_zero=has_zero)
            ticks = axis.ticks()

            assert len(ticks) <= 24
            assert all(-1 <= axis.place(value) <= HEIGHT + 1 for value in (low, high))
            assert all(math.isfinite(axis.place(tick)) for tick in ticks)

    def test_linear(self):
        """An axis of usual figures begins at zero and has round ticks."""
        axis = Axis(2.0, 10.0, 5.0)

        assert axis.ticks() == [0.0, 5.0, 10.0]
        assert axis.place(0.0) == HEIGHT

    @pytest.mark.parametrize(("low", "ticks"), [(2.0, [2.0, 2.1, 2.2]), (1.0, [0.0, 1.0, 2.0])])
    def test_without_zero(self, low, ticks):
        """An axis need not begin at zero where the figures differ by less than half of the highest."""
        assert Axis(low, 2.2, 2.1, has_zero=False).ticks() == pytest.approx(ticks)

    def test_logarithmic(self):
        """An axis with one figure far above the usual is logarithmic."""
        axis = Axis(1.0, 1000.0, 2.0)

        assert axis.is_log
        assert axis.place(1.0) - axis.place(10.0) == pytest.approx(axis.place(10.0) - axis.place(100.0))


class TestSpark:
    @pytest.mark.parametrize(
        ("values", "heights"),
        [
            ([0.0, 10.0], [21.0, 1.0]),
            ([5.0, 5.0], [11.0, 11.0]),
            ([-1e308, 1e308], [21.0, 1.0]),
            ([2**63 - 1, 2.0**63], [11.0, 11.0]),
        ],
        ids=["apart", "level", "farther apart than a float can say", "apart by less than a float can say"],
    )
    def test_heights(self, values, heights):
        """The lowest value is at the bottom, 21, the highest at the top, 1; equal values, in the middle."""
        line = spark([(at_ns, Bin(samples=[value])) for at_ns, value in enumerate(values)])
        assert [float(point.split()[1]) for point in line.partition('d="M')[2].partition('"')[0].split("L")] == heights
