from __future__ import annotations

import random

import pytest

from trackside.events import ClockCompared, Source
from trackside.handlers.zeromq import PeerLimits
from trackside.handlers.zeromq._collector import CollectedStreams
from trackside.handlers.zeromq._protocol import PeerBuckets
from trackside.handlers.zeromq._receiver import ClockEstimate, Producer, SourceRegistry


def exchange(estimate, now_ns, offset_ns, there_ns, back_ns):
    """Let *estimate* see an exchange with a clock that is *offset_ns* ahead; return the time after it."""
    think_ns = 1000
    received = now_ns + there_ns + offset_ns
    replied = received + think_ns
    end = now_ns + there_ns + think_ns + back_ns
    estimate.add(now_ns, received, replied, end)
    return end


class TestClockOffset:
    def test_equal_directions(self):
        """If both directions take equally long, the offset is exact."""
        estimate = ClockEstimate()

        exchange(estimate, 0, 5_000_000, 300_000, 300_000)

        assert estimate.best.offset_ns == 5_000_000
        assert estimate.best.uncertainty_ns == 300_000

    @pytest.mark.parametrize("offset_ns", [0, 3_000_000_000, -3_000_000_000])
    def test_truth_is_within_the_uncertainty(self, rng, offset_ns):
        """For any difference between the directions, the true offset is within the uncertainty of the estimate."""
        for _ in range(200):
            estimate, now = ClockEstimate(), 0
            for _ in range(16):
                there, back = (int(rng.expovariate(1 / 200_000)) for _ in range(2))
                now = exchange(estimate, now, offset_ns, there, back)
            assert abs(estimate.best.offset_ns - offset_ns) <= estimate.best.uncertainty_ns

    def test_quickest_of_sixteen_counts(self):
        """
        One quick exchange among slow ones decides.
        """
        estimate, now = ClockEstimate(), 0
        for index in range(16):
            there = 10_000 if index == 9 else 5_000_000
            now = exchange(estimate, now, 777, there, 10_000)

        assert estimate.best == type(estimate.best)(777, 10_000)

    def test_follows_drift(self):
        """Old exchanges are dropped: a clock that runs 200 ppm fast is followed."""
        estimate, now = ClockEstimate(), 0
        for second in range(600):
            now = second * 1_000_000_000
            exchange(estimate, now, second * 200_000, 100_000, 100_000)

        assert abs(estimate.best.offset_ns - 599 * 200_000) <= 16 * 200_000

    def test_says_nothing_twice(self):
        """An estimate that is no better and did not move is not reported again."""
        estimate, now = ClockEstimate(), 0
        now = exchange(estimate, now, 100, 50_000, 50_000)
        assert estimate.news() is not None

        exchange(estimate, now, 101, 50_000, 50_000)

        assert estimate.news() is None

    def test_reports_a_step(self):
        """The offset of a clock that was set is reported, once no exchange of before is left."""
        estimate, now, rng = ClockEstimate(), 0, random.Random(1)
        now = exchange(estimate, now, 0, 50_000, 50_000)
        estimate.news()
        for _ in range(16):
            now = exchange(estimate, now, 3_600_000_000_000, 50_000 + rng.randrange(100), 50_000)

        assert abs(estimate.news().offset_ns - 3_600_000_000_000) < 100_000

    def test_impossible_exchange_is_passed_over(self):
        """An answer with a time before the question is ignored."""
        estimate = ClockEstimate()

        estimate.add(1000, 5000, 9000, 2000)

        assert estimate.best is None


class TestWhoIsNamed:
    @pytest.fixture
    def compared(self):
        """Give a function that has a collection compare its clock with a peer's, and returns the new offsets."""
        heard, now_s = [], [0.0]
        collection = CollectedStreams(
            Source.detect({}, run_id="run"),
            [heard.append],
            None,
            SourceRegistry(),
            monotonic_s=lambda: now_s[0],
        )

        def compare(producer):
            now_s[0] += 1.0
            collection.tick([producer])
            return [(e.source_id, e.offset_ns, e.exchanges) for e in heard if type(e) is ClockCompared]

        return compare

    @pytest.fixture
    def producer(self):
        """Give one whose clock is 5 ms ahead, after sixteen exchanges."""
        producer = Producer(
            b"address", "id", "", "", consumer=None, buckets=PeerBuckets(PeerLimits(), 0.0), heard_s=0.0
        )
        now_ns = 0
        for _ in range(16):
            now_ns = exchange(producer.clock, now_ns, 5_000_000, 300_000, 300_000)
        return producer

    def test_news_waits_for_whom_it_is_about(self, compared, producer):
        """A rank without events when its clock was compared is named with its first event."""
        producer.is_known = True
        assert compared(producer) == []
        producer.sources.add("rank")
        assert compared(producer) == [("rank", 5_000_000, 16)]

    def test_forwarder_is_not_its_rank(self, compared, producer):
        """A forwarder whose rank was heard before its own first event: the clock is the forwarder's."""
        producer.sources.add("rank")
        assert compared(producer) == []
        producer.is_known, producer.status = True, {"forwards": True, "source": "forwarder"}
        assert compared(producer) == [("forwarder", 5_000_000, 16)]


@pytest.mark.integration
class TestOverConnection:
    def test_same_machine(self, jobs, collectors, until):
        """The clock of a job on this machine is found to be the same, to within the uncertainty of the exchanges."""
        collector = collectors()
        jobs(publish=False, collector=collector.endpoint, insecure=True).log(count=1)

        until(lambda: collector.heard(ClockCompared))

        recorded = collector.heard(ClockCompared)[-1]
        assert abs(recorded.offset_ns) <= recorded.uncertainty_ns + 1_000_000
