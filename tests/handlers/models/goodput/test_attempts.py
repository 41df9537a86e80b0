"""The time of each attempt."""

from __future__ import annotations


class TestAttempts:
    def test_consecutive(self, stream, feed):
        """An attempt's time goes on until the next one begins, and the last one's until the last event."""
        model = feed(stream(attempt=0).start(1).end(31), stream(attempt=1).start(51).end(91))
        assert [(one.start_ns, one.end_ns) for one in model.attempts()] == [(1, 51), (51, 91)]
