from __future__ import annotations

from trackside.handlers.zeromq._protocol import BURST_S, PeerBuckets, PeerLimits

SMALL = PeerLimits(events=10.0, size_bytes=1000.0, messages=5.0)


class TestTokenBuckets:
    def test_burst(self):
        """At first the burst allowance passes, and no more."""
        buckets = PeerBuckets(SMALL, 0.0)

        admitted = sum(buckets.admit(1, 0.0) for _ in range(100))

        assert admitted == SMALL.messages * BURST_S

    def test_rate(self):
        """After that, the allowed number of messages per second passes."""
        buckets = PeerBuckets(SMALL, 0.0)
        while buckets.admit(1, 0.0):
            pass

        admitted = sum(buckets.admit(1, 0.1 * tick) for tick in range(1, 101) for _ in range(10))

        assert abs(admitted - 10 * SMALL.messages) <= 1

    def test_bytes(self):
        """Large messages use up the allowance of bytes."""
        buckets = PeerBuckets(SMALL, 0.0)

        assert [buckets.admit(3000, 0.0) for _ in range(3)] == [True, True, False]

    def test_events_are_charged_afterwards(self):
        """The number of events in a message is known after it was read: the next messages wait for it."""
        buckets = PeerBuckets(SMALL, 0.0)
        buckets.charge(100)  # 40 were there, 60 are owed

        assert not buckets.admit(1, 5.9)
        assert buckets.admit(1, 6.1)

    def test_what_is_cut_is_counted(self):
        """
        Messages and bytes that were not admitted are counted.
        """
        buckets = PeerBuckets(SMALL, 0.0)
        buckets.charge(1000)

        buckets.admit(10, 0.0)
        buckets.admit(32, 0.0)

        assert (buckets.cut_messages, buckets.cut_bytes) == (2, 42)
