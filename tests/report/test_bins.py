"""Long series reduced to a bounded number of stretches."""

from __future__ import annotations

import itertools
import statistics

from trackside.report._gather import Bins


class TestBins:
    def test_bounded(self, rng, scaled):
        """A series of any length has no more stretches than asked for."""
        bins = Bins(64)
        for at in range(scaled(100_000)):
            bins.add(at * 10**8 + rng.randrange(10**7), rng.random())
            assert len(bins) <= 64

    def test_extremes(self, rng):
        """The lowest and the highest value, and the place of the highest, survive any reduction."""
        bins = Bins(32)
        values = [rng.uniform(1, 2) for _ in range(5_000)]
        values[1_234], values[4_321] = 9.0, 0.5
        for step, value in enumerate(values):
            bins.add(step * 10**7, value, step, step % 7)
        points = [one for _, one in bins.coarse(10)]
        highest = max(points, key=lambda one: one.high)
        assert len(points) <= 10
        assert (highest.high, highest.high_step, highest.high_rank) == (9.0, 1_234, 1_234 % 7)
        assert min(one.low for one in points) == 0.5

    def test_sums(self, rng):
        """Counts and sums are exact."""
        bins = Bins(16)
        values = [rng.randrange(100) for _ in range(3_000)]
        for at, value in enumerate(values):
            bins.add(at * 10**8, value)
        assert sum(one.count for _, one in bins.points()) == 3_000
        assert sum(one.total for _, one in bins.points()) == sum(values)

    def test_median(self, rng):
        """Of fewer than 64 values the median is exact, of more it is that of some evenly spaced."""
        few, many = Bins(), Bins(1, 1 << 50)
        values = [rng.random() for _ in range(10_001)]
        for value in values[:63]:
            few.add(0, value)
        for value in values:
            many.add(0, value)
        assert few.points()[0][1].median == statistics.median(values[:63])
        assert abs(many.points()[0][1].median - 0.5) < 0.3

    def test_negative(self):
        """The highest of values below zero is one of them."""
        bins = Bins()
        bins.add(0, -5.0, 3)
        bins.add(0, -7.0, 4)
        ((_, one),) = bins.points()
        assert (one.low, one.high, one.high_step) == (-7.0, -5.0, 3)

    def test_width_of_coarse(self):
        """Of 100 values 2 ms apart each of ten points stands for a tenth of 200 ms; each of a hundred, for 1 ms."""
        bins = Bins()
        for at in range(100):
            bins.add(at << 21, at)
        points = bins.coarse(10)
        assert abs(bins.width_of(10) / (10 << 21) - 1) < 0.02
        assert {after[0] - before[0] for before, after in itertools.pairwise(points)} == {bins.width_of(10)}
        assert bins.width_of(100) == 1 << 20

    def test_coarse_leaves_them(self):
        """Asking for fewer points changes nothing in the series."""
        bins = Bins()
        for at in range(100):
            bins.add(at << 21, at)
        before = [(at, one.count) for at, one in bins.points()]
        bins.coarse(5)
        assert [(at, one.count) for at, one in bins.points()] == before

    def test_many(self, rng):
        """Many values at once, in or out of order, give the same result as one by one."""
        alone, together = Bins(16), Bins(16)
        at_ns = 0
        for _ in range(40):
            times = []
            for _ in range(rng.randrange(1, 80)):
                at_ns += rng.randrange(10**7)
                times.append(at_ns)
            if rng.random() < 0.2:
                rng.shuffle(times)
            values = [rng.uniform(-1, 1) for _ in times]
            steps = [rng.randrange(1_000) for _ in times]
            for one, value, step in zip(times, values, steps, strict=True):
                alone.add(one, value, step, 3)
            together.add_many(times, values, steps, 3)

        def reported(bins):
            return [
                (at, one.count, round(one.total, 9), one.low, one.high, one.high_step, one.first_step, one.last_step)
                for at, one in bins.points()
            ]

        assert reported(together) == reported(alone)
