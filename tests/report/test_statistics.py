"""Means of series whose values depend on each other, and their errors."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from trackside.report._statistics import TRIM, difference, location

pytestmark = pytest.mark.once


def steps(rng, count, *, depend=0.6, spread=0.05, stumbles=0.005, slower=1.0):
    """Return step times around 0.1 s: each depends on the one before, and some take several times as long."""
    noise, state, found = spread * math.sqrt(1 - depend**2), rng.gauss(0, spread), []
    for _ in range(count):
        state = depend * state + rng.gauss(0, noise)
        stumble = rng.uniform(2, 6) if rng.random() < stumbles else 1.0
        found.append(0.1 * (1 + state) * stumble * slower)
    return found


class TestLocation:
    def test_mean(self):
        """Without trimming it is the mean."""
        values = [float(value**2 % 17) for value in range(100)]
        assert location(values).value == pytest.approx(statistics.fmean(values))

    def test_trimmed(self):
        """With a tenth trimmed, the lowest and the highest tenth do not count."""
        assert location([*[0.0] * 10, *[1.0] * 80, *[1e9] * 10], 0.1).value == 1.0

    @pytest.mark.parametrize("depend", [0.0, 0.5, 0.8])
    def test_error(self, rng, depend):
        """
        The error is that of theory: of an autoregression of order one, the spread times √((1 + a) / (1 − a) / n).
        """
        errors = [location(steps(rng, 2_000, depend=depend, stumbles=0)).error for _ in range(10)]
        expected = 0.1 * 0.05 * math.sqrt((1 + depend) / (1 - depend) / 2_000)
        assert statistics.median(errors) == pytest.approx(expected, rel=0.25)

    def test_constant(self):
        """A series without spread has no error."""
        assert location([0.25] * 100).error == 0

    def test_few(self):
        """Of a few values the error is unknown."""
        assert math.isinf(location([1.0, 2.0, 3.0]).error)

    def test_nothing(self):
        """Of no values there is no mean."""
        assert math.isnan(location([]).value)

    def test_long(self, rng):
        """A long series is made shorter first, and its error is that of all of it."""
        values = [rng.gauss(1, 0.1) for _ in range(40_000)]
        assert location(values).error == pytest.approx(0.1 / math.sqrt(40_000), rel=0.2)


class TestDifference:
    def test_alarms(self, seed, scaled):
        """Of pairs of equal runs at most one in a hundred is reported as different: 1,000 pairs in full."""
        rng, pairs = random.Random(seed), scaled(1_000)
        alarms = 0
        for _ in range(pairs):
            before, after = steps(rng, 1_000), steps(rng, 1_000)
            reported = [difference([before], [after], trim) for trim in (TRIM, 0.0)]
            alarms += any(one.is_shown and abs(one.change) >= 0.01 for one in reported)
        # Of 100 pairs at one in a hundred, four alarms or fewer are 99.7 % likely; of 1,000, 20 or fewer 99.8 %.
        assert alarms <= pairs / 100 + 3.3 * math.sqrt(pairs / 100)

    def test_finds(self, seed, scaled):
        """Of runs that are 3 % slower over 1,000 steps nine in ten are found."""
        rng, pairs = random.Random(seed), scaled(200)
        found = 0
        for _ in range(pairs):
            reported = difference([steps(rng, 1_000)], [steps(rng, 1_000, slower=1.03)], TRIM)
            found += reported.is_shown and reported.change > 0
        assert found >= 0.9 * pairs - 2

    def test_bounds(self, rng):
        """The bounds hold the true change, nearly always."""
        held = 0
        for _ in range(20):
            reported = difference([steps(rng, 500)], [steps(rng, 500, slower=1.1)], TRIM)
            held += reported.low <= 0.1 <= reported.high
        assert held >= 19

    def test_several_runs(self, rng):
        """If runs differ among themselves by more than their steps do, that counts."""
        own = [[0.1 * factor * rng.gauss(1, 0.001) for _ in range(200)] for factor in (0.95, 1.0, 1.05)]
        more = [[0.1 * factor * rng.gauss(1, 0.001) for _ in range(200)] for factor in (0.97, 1.02, 1.07)]
        assert not difference(own, more, TRIM).is_shown

    def test_shares(self):
        """The difference of shares is given in shares."""
        reported = difference([[0.9, 0.92] * 20], [[0.8, 0.82] * 20], 0.0, is_share=True)
        assert reported.change == pytest.approx(-0.1)

    def test_bounds_of_shares(self):
        """Shares differ by no more than all of the time, however little is known of them."""
        reported = difference([own := ([0.0] * 5 + [1.0] * 5) * 2], [own], 0.0, is_share=True)
        assert (reported.low, reported.high) == (-1.0, 1.0)

    def test_nothing(self):
        """Without a value on one side no change is known."""
        reported = difference([], [[1.0] * 50], 0.0)
        assert (reported.change, reported.is_shown) == (None, False)
