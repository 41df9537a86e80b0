"""Frames that wait for the disk, and the losses among them."""

from __future__ import annotations

import threading

import pytest

from trackside.handlers.eventlog._format import Loss
from trackside.handlers.eventlog._writer import WaitingFrame, WriteBuffer


@pytest.fixture
def buffer(fake_clock):
    return WriteBuffer(100, fake_clock, threading.Condition())


class TestBuffer:
    def test_order(self, buffer):
        """Frames come out in the order they went in."""
        for frame in (b"a", b"b", b"c"):
            buffer.put(frame, 1)
        assert buffer.batch(1000) == [WaitingFrame(b"a", 1), WaitingFrame(b"b", 1), WaitingFrame(b"c", 1)]

    def test_batch_size(self, buffer):
        """A batch ends with the entry that reaches its size."""
        for _ in range(5):
            buffer.put(b"x" * 10, 1)
        assert len(buffer.batch(25)) == 3

    def test_kept_until_settled(self, buffer):
        """An entry that was read stays until it is settled, and takes its room until then."""
        buffer.put(b"x" * 60, 2)
        assert buffer.batch(1000) == buffer.batch(1000)
        assert not buffer.put(b"y" * 60, 1)
        buffer.settle(buffer.batch(1000)[:1])
        assert buffer.put(b"y" * 60, 1)

    def test_counts(self, buffer):
        """Frames, events and bytes are counted while they wait."""
        buffer.put(b"x" * 60, 2)
        buffer.put(b"y" * 30, 3)
        buffer.settle(buffer.batch(1))
        assert (buffer.taken, buffer.settled, buffer.waiting_events, buffer.size_bytes) == (2, 1, 3, 30)

    def test_refused_in_place(self, buffer, fake_clock):
        """A loss stands between the frames before it and those after it."""
        buffer.put(b"x" * 100, 1)
        buffer.put(b"refused", 4)
        fake_clock.advance(1)
        buffer.put(b"too", 1)
        buffer.settle([WaitingFrame(b"x" * 100, 1)])
        buffer.put(b"next", 1)
        reason = "the disk is slower than the stream"
        assert buffer.batch(1000) == [Loss(5, 10, reason, 10**12), WaitingFrame(b"next", 1)]

    def test_refused_at_last(self, buffer):
        """The same holds if no frame came after it."""
        buffer.put(b"x" * 100, 1)
        buffer.put(b"refused", 4)
        assert [type(entry) for entry in buffer.batch(1000)] == [WaitingFrame, Loss]

    def test_refusals_join(self, buffer):
        """One stretch of refusals is one loss, however often the disk is tried meanwhile."""
        buffer.put(b"x" * 100, 1)
        for _ in range(5):
            buffer.put(b"refused", 4)
            buffer.batch(1000)
        assert buffer.batch(1000)[1:] == [Loss(20, 35, "the disk is slower than the stream", 10**12)]

    def test_reason(self, buffer):
        """The reason for a refusal is the disk's trouble, if it has any."""
        buffer.trouble = "No space left on device"
        buffer.put(b"x" * 101, 1)
        assert buffer.batch(1000)[0].reason == "No space left on device"

    def test_put_first(self, buffer):
        """A loss of frames that were written before comes before the frames that wait."""
        buffer.put(b"x", 1)
        loss = Loss(7, 70, "vanished", 0)
        buffer.put_first(loss)
        assert buffer.batch(1000) == [loss, WaitingFrame(b"x", 1)]
