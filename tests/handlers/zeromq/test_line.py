"""A viewer's end of one link."""

from __future__ import annotations

from trackside.handlers.zeromq._filter import Filter
from trackside.handlers.zeromq._line import Line
from trackside.handlers.zeromq._protocol import FrameEntry, encode


class Link:
    """A link over which a hundred large frames have come."""

    def __init__(self):
        self.waiting = [encode(FrameEntry("stream", index, index, 1, bytes(50 << 10))) for index in range(100)]

    def receive(self, most):
        """Give what has come."""
        for _ in range(min(most, len(self.waiting))):
            yield b"", self.waiting.pop(0), ""


class TestReceive:
    def test_a_little_at_once(self):
        """
        Of much that has come some 128 KiB are dealt with, and the rest stays for the next time.
        """
        link = Link()
        line = Line(link, wanted=Filter(), models=(), take=lambda entry: None, introduce=lambda snapshot: None)

        assert line.receive() == 3
        assert line.receive() == 3
        assert len(link.waiting) == 94
