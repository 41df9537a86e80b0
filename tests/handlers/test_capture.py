"""The handler that keeps the events it gets."""

from __future__ import annotations

import threading

from trackside.bus import Bus
from trackside.events import Event, RunsOn, event
from trackside.handlers import Capture


@event("test.capture.seen")
class Seen(Event):
    """An event."""

    number: int = 0


@event("test.capture.seen.twice")
class SeenTwice(Seen):
    """An event that is derived from it."""


@event("test.capture.heard")
class Heard(Event):
    """An event of another type."""


class TestCapture:
    def test_keeps_in_order(self):
        """Events are kept in the order in which they were logged."""
        captured = Capture()
        with Bus() as bus, bus.subscribe(captured):
            for number in range(3):
                bus.log(Seen(number=number))

        assert [seen.number for seen in captured] == [0, 1, 2]

    def test_keeps_the_very_events(self):
        """A kept event is the logged object, not a copy."""
        captured, seen = Capture(), Seen()
        with Bus() as bus, bus.subscribe(captured):
            bus.log(seen)

        assert captured.events[0] is seen

    def test_at_once(self):
        """An event is there as soon as log() has returned."""
        captured = Capture()
        with Bus() as bus, bus.subscribe(captured, to=Seen):
            bus.log(Seen())
            assert len(captured) == 1

    def test_of_a_type(self):
        """Events can be asked for by type; those of derived types are among them."""
        captured = Capture()
        first, second, third = Seen(), Heard(), SeenTwice()
        for given in (first, second, third):
            captured(given)

        assert captured.of(Seen) == [first, third]
        assert captured.of(SeenTwice) == [third]

    def test_of_a_type_that_never_came(self):
        """Of a type that never came the list is empty."""
        assert Capture().of(Heard) == []

    def test_clear(self):
        """After clear(), it starts anew."""
        captured = Capture()
        captured(Seen(number=1))
        captured.clear()
        captured(Seen(number=2))

        assert [seen.number for seen in captured] == [2]

    def test_queued(self):
        """Queued, it has everything after a flush, with the numbers of the stream."""
        captured = Capture()
        with Bus() as bus, bus.subscribe(captured, to=Seen, runs_on=RunsOn.WORKER):
            for number in range(3):
                bus.log(Seen(number=number))
            bus.flush()
            got = [(seen.number, seen.seq) for seen in captured]

        assert got == [(0, 1), (1, 2), (2, 3)]  # 0 is SourceStarted

    def test_threads(self):
        """Threads that log at once lose nothing."""
        captured = Capture()
        with Bus() as bus, bus.subscribe(captured, to=Seen):
            threads = [
                threading.Thread(target=lambda: [bus.log(Seen(number=number)) for number in range(1000)])
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        assert sorted(seen.number for seen in captured) == sorted(list(range(1000)) * 4)
