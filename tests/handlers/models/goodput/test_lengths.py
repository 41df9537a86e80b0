"""The lengths of steps."""

from __future__ import annotations

import random
import statistics

import pytest

from trackside.handlers.models.goodput._packed import Lengths, _bucket, _upper
from trackside.handlers.models.goodput._result import LengthSummary

pytestmark = pytest.mark.once


def lengths_of(*values):
    lengths = Lengths()
    lengths.add(values)
    return lengths


class TestBuckets:
    def test_bounds(self, rng):
        """Each length is in the one bucket whose greatest length is the next one up."""
        for length in [*range(1, 2_000), *(rng.randrange(1, 1 << 60) for _ in range(2_000))]:
            upper = _upper(_bucket(length))
            assert length <= upper
            assert (_bucket(upper), _bucket(upper + 1)) == (_bucket(length), _bucket(length) + 1)

    def test_width(self, rng):
        """A bucket is at most 1/128 of its lengths wide."""
        for length in (rng.randrange(1 << 10, 1 << 60) for _ in range(1_000)):
            assert (_upper(_bucket(length)) - length) / length <= 1 / 128


class TestLengths:
    def test_removed(self, rng):
        """After their removal, lengths are as if they had never been added."""
        kept = [rng.randrange(1, 10**12) for _ in range(300)]
        gone = [rng.randrange(1, 10**12) for _ in range(300)]
        lengths = lengths_of(*kept, *gone)
        lengths.remove(gone)
        assert lengths.ordered() == lengths_of(*kept).ordered()
        assert (lengths.count, lengths.total) == (300, sum(kept))

    def test_merged(self):
        """Merging adds the lengths of another set, and merging with -1 removes them."""
        both = lengths_of(1, 5, 9)
        both.merge(lengths_of(5, 700))
        assert both.ordered() == lengths_of(1, 5, 5, 9, 700).ordered()
        both.merge(lengths_of(1, 9), -1)
        assert both.ordered() == lengths_of(5, 5, 700).ordered()

    def test_copied(self):
        """A copy is independent."""
        lengths = lengths_of(5)
        lengths.copy().add([7])
        assert lengths.count == 1

    def test_beyond(self):
        """The time beyond a limit is exact where no bucket lies across it."""
        assert lengths_of(90, 100, 110, 250).beyond(100) == 160


class TestLengthSummary:
    def test_none(self):
        """An empty set has no statistics."""
        summary = LengthSummary.of(Lengths())
        assert (summary.count, summary.ideal, summary.p50) == (0, 0, 0.0)

    def test_alike(self):
        """For equal steps each statistic is their length, exactly."""
        summary = LengthSummary.of(lengths_of(*[3 * 10**9] * 50))
        assert (summary.ideal, summary.p50, summary.p99, summary.deviation) == (3 * 10**9, 3e9, 3e9, 0.0)

    def test_exact(self, rng):
        """Counted one by one, of any number of lengths, medians and the deviation's are the middle, or between two."""
        for count in (1, 2, 7, 500):
            values = [rng.randrange(1, 10**10) for _ in range(count)]
            summary = LengthSummary.of(Lengths.each(values), 10**9)
            distances = [abs(value - 10**9) for value in values]
            assert (summary.p50, summary.deviation_p50) == (statistics.median(values), statistics.median(distances))

    @pytest.mark.parametrize("spread", [0.01, 0.3])
    def test_percentiles(self, rng, spread):
        """Percentiles are those of the sorted lengths, within 0.8 %."""
        values = sorted(int(3e8 * rng.lognormvariate(0, spread)) for _ in range(5_001))
        summary = LengthSummary.of(lengths_of(*values))
        assert [summary.p50, summary.p90, summary.p99] == pytest.approx(
            [values[2_500], values[4_500], values[4_950]], rel=0.008
        )

    def test_ideal(self):
        """The ideal is the mean of the steps no longer than the median and three median absolute deviations."""
        values = [100, 102, 104, 106, 108, 110, 112, 5_000, 9_000]
        median = statistics.median(values)
        limit = median + 3 * statistics.median(abs(value - median) for value in values)
        summary = LengthSummary.of(lengths_of(*values))
        assert limit == 120
        assert (summary.ideal, summary.slow) == (106, 2)

    def test_one_straggler_changes_nothing(self):
        """One step of an hour leaves the ideal as it was."""
        usual = [3 * 10**8 + n for n in range(99)]
        assert LengthSummary.of(lengths_of(*usual, 3_600 * 10**9)).ideal == pytest.approx(statistics.mean(usual))

    def test_deviation(self):
        """Deviations are distances from the ideal, slow or fast."""
        summary = LengthSummary.of(lengths_of(90, 100, 110), 100)
        assert (summary.deviation, summary.deviation_p50, summary.deviation_p99) == (
            pytest.approx(20 / 3),
            10.0,
            10.0,
        )


class TestRandom:
    def test_order_does_not_matter(self, seed):
        """For any order and portions, the statistics are the same, to the last bit."""
        rng = random.Random(seed)
        values = [rng.randrange(1, 10**10) for _ in range(500)]
        first = LengthSummary.of(lengths_of(*values))
        rng.shuffle(values)
        second = Lengths()
        for place in range(0, 500, 7):
            second.add(values[place : place + 7])
        assert LengthSummary.of(second) == first
