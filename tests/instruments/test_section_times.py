from __future__ import annotations

import math
import statistics
import threading

import pytest

from trackside.instruments._section import CHUNK, SectionTimes


def closed(values):
    """Return the statistics of *values*, folded whenever there are enough, as a section does."""
    times = SectionTimes("s", 1)
    for value in values:
        times.add(value)
        if len(times.times) >= CHUNK:
            times.fold()
    return times.close()


class TestStatistics:
    def test_by_hand(self):
        """
        Of 1, 2, 4 and 9: median 3, mean 4, and the population's deviation, the root of (9 + 4 + 0 + 25) / 4.
        """
        found = closed([9, 1, 4, 2])
        assert found == (4, 4, 1.0, 9.0, 3.0, 4.0, pytest.approx(math.sqrt(9.5), rel=1e-12))

    def test_one(self):
        """A single value has a deviation of 0."""
        assert closed([7]) == (1, 1, 7.0, 7.0, 7.0, 7.0, 0.0)

    def test_none(self):
        """Without a value there are no statistics."""
        assert SectionTimes("s", 1).close() is None

    @pytest.mark.parametrize("size", [2, 3, CHUNK - 1, CHUNK])
    def test_small(self, rng, size):
        """Up to a chunk every statistic is exact."""
        values = [rng.randint(1, 10**9) for _ in range(size)]
        found = closed(values)
        assert (found.timed, found.min_ns, found.max_ns, found.median_ns) == (
            size,
            min(values),
            max(values),
            statistics.median(values),
        )
        assert (found.mean_ns, found.std_ns) == pytest.approx(
            (statistics.fmean(values), statistics.pstdev(values)), rel=1e-9
        )

    def test_large(self, rng):
        """Beyond a chunk the median is that of a sample, and all other statistics are exact."""
        values = [round(rng.gauss(10**6, 10**4)) for _ in range(20 * CHUNK + 17)]
        found = closed(values)
        assert (found.timed, found.min_ns, found.max_ns) == (len(values), min(values), max(values))
        assert (found.mean_ns, found.std_ns) == pytest.approx(
            (statistics.fmean(values), statistics.pstdev(values)), rel=1e-9
        )
        # The median of 640 values or more of this noise lies within a tenth of a deviation, nearly always.
        assert found.median_ns == pytest.approx(10**6, abs=2_000)

    @pytest.mark.parametrize("portion", [CHUNK, 100, 7])
    def test_evenly_thinned(self, portion):
        """The sample of many values is every second, fourth, … of them, for any portions in which they are folded."""
        times = SectionTimes("s", 1)
        for value in range(5 * CHUNK):
            times.add(value)
            if len(times.times) >= portion:
                times.fold()
        times.fold()
        assert times._kept == list(range(0, 5 * CHUNK, 8))

    def test_bounded(self):
        """The memory is bounded for any number of values."""
        times = SectionTimes("s", 1)
        for value in range(50 * CHUNK):
            times.add(value)
            if len(times.times) >= CHUNK:
                times.fold()
        assert len(times.times) + len(times._kept) <= 2 * CHUNK

    def test_begins_anew(self):
        """Each window has its own statistics."""
        times = SectionTimes("s", 1)
        times.add(100)
        times.close()
        times.add(3)
        assert times.close() == (1, 1, 3.0, 3.0, 3.0, 3.0, 0.0)

    def test_threads(self):
        """No time is lost between threads that add and one that closes windows."""
        times = SectionTimes("s", 1)
        found = []

        def add():
            for _ in range(20_000):
                times.add(1)
                if len(times.times) >= CHUNK:
                    times.fold()

        threads = [threading.Thread(target=add) for _ in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            found.append(times.close())
        for thread in threads:
            thread.join()
        found.append(times.close())
        assert sum(one.timed for one in found if one is not None) == 60_000
