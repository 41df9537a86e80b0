"""Models on a bus: the types they read, the views they get, and the events they publish."""

from __future__ import annotations

import pytest

from trackside.events import ITERATION, ConfigError, Event, HandlerSuspended, RunsOn, Source, event
from trackside.handlers import Capture
from trackside.rules import every
from trackside.testing import recorded
from trackside.wire import FrameView


@event("test.models.counted", priority=ITERATION)
class Counted(Event):
    number: int = 0


@event("test.models.other", priority=ITERATION)
class Other(Event):
    number: int = 0


@event("test.models.doubled", priority=ITERATION, derived=True)
class Doubled(Event):
    number: int = 0


class Doubling:
    """A model that derives an event from each that it reads."""

    reads = (Counted,)

    def __init__(self, publish=None):
        self.publish = publish
        self.views = []
        self.missed_events = []
        self.error = None

    def consume(self, frame):
        """Read one view."""
        if self.error is not None:
            raise self.error
        self.views.append(frame)
        if self.publish is not None:
            for counted in frame.columns(Counted).events:
                self.publish(Doubled(number=2 * counted.number))

    def missed(self, source, count):
        """Note what was missed."""
        self.missed_events.append((source.id, count))

    def numbers(self):
        """Return the numbers read so far."""
        return [event.number for view in self.views for event in view.events]


class TestSubscribing:
    def test_reads(self, bus):
        """Without to= a model gets the types that it reads, and no others."""
        model = Doubling()
        bus.subscribe(model)
        assert [bus.wants(cls) for cls in (Counted, Other)] == [True, False]
        bus.log(Other(number=1))
        bus.log(Counted(number=2))
        bus.flush()
        assert model.numbers() == [2]

    def test_to(self, bus):
        """The subscriber's to= wins."""
        bus.subscribe(Doubling(), to=Other)
        assert [bus.wants(cls) for cls in (Counted, Other)] == [False, True]

    def test_publish(self, bus):
        """A model without publish gets the bus's, and the events it derives reach the handlers."""
        got = []
        bus.subscribe(got.append, to=Doubled)
        model = Doubling()
        bus.subscribe(model)
        for number in range(3):
            bus.log(Counted(number=number))
        bus.flush()
        assert [doubled.number for doubled in got] == [0, 2, 4]

    def test_publish_sums_beyond_64_bits(self, bus, frames, caplog):
        """
        A derived event whose sum 64 bits do not hold is recorded with the largest number that they do, for sinks as for
        frames, and one line says so: a claim of others keeps no update from coming.
        """
        bus.subscribe(frames)
        sink = Capture()
        bus.subscribe(sink, to=Doubled, runs_on=RunsOn.WORKER)
        bus.subscribe(Doubling(bus.publish))
        for number in (1 << 63, 3, 1 << 62, -(1 << 63)):
            bus.log(Counted(number=number))
        assert bus.flush(20)

        expected = [(1 << 64) - 1, 6, 1 << 63, -(1 << 63)]
        assert [doubled.number for doubled in frames.events(Doubled)] == expected
        assert [doubled.number for doubled in sink.of(Doubled)] == expected
        assert bus.stats().total("invalid") == 0
        assert [record.message for record in caplog.records] == [
            "a sum in an event test.models.doubled is larger than 64 bits hold; the largest number is recorded"
        ]

    def test_logged_beyond_64_bits(self, bus, frames):
        """A number that was logged is never replaced: what 64 bits do not hold makes its event invalid."""
        bus.subscribe(frames)
        bus.log(Counted(number=1 << 64))
        bus.flush(20)

        assert (frames.events(Counted), bus.stats().total("invalid")) == ([], 1)

    def test_publish_of_its_own(self, bus):
        """A model that has publish keeps it."""
        got = []
        bus.subscribe(Doubling(publish=got.append))
        bus.log(Counted(number=4))
        bus.flush()
        assert [doubled.number for doubled in got] == [8]

    @pytest.mark.parametrize("runs_on", [RunsOn.INLINE, RunsOn.WORKER])
    def test_runs_on(self, bus, runs_on):
        """A model reads on the dispatcher, and nowhere else."""
        with pytest.raises(ConfigError, match="runs_on"):
            bus.subscribe(Doubling(), runs_on=runs_on)

    def test_class(self, bus):
        """A class is no model."""
        with pytest.raises(ConfigError, match="give an instance"):
            bus.subscribe(Doubling)


def log_in_one_drain(bus, events):
    """Log that many events, numbered from 0, before the dispatcher reads the first of them."""
    assert bus.flush(60)
    bus._dispatcher.draining.acquire(timeout=5.0)
    try:
        for number in range(events):
            bus.log(Counted(number=number))
    finally:
        bus._dispatcher.draining.release()
    assert bus.flush(60)


class TestViews:
    def test_one_drain(self, bus):
        """The events of one drain are one view, of one source, in the order of their numbers."""
        model = Doubling()
        with bus.subscribe(model):
            log_in_one_drain(bus, 10)
        (view,) = model.views
        assert isinstance(view, FrameView)
        assert ([event.number for event in view.events], view.source.id) == (list(range(10)), bus._identity.find().id)

    @pytest.mark.parametrize("keep", [None, every(1)])
    def test_bound(self, bus, keep):
        """Of 10,000 events in one drain no more than 256 wait for a model at once."""
        waited = []

        class Slow(Doubling):
            def consume(self, frame):
                """Note how many events were numbered and not read yet."""
                waited.append(10_000 - len(bus._dispatcher.queue) - len(self.numbers()))
                super().consume(frame)

        model = Slow()
        with bus.subscribe(model, keep=keep):
            log_in_one_drain(bus, 10_000)
        assert model.numbers() == list(range(10_000))
        assert max(waited) == 256

    def test_injected(self, bus):
        """Events of several sources are a view for each stretch of the same source."""
        one, two = Source(id="1" * 16), Source(id="2" * 16)
        model = Doubling()
        bus.subscribe(model)
        bus.inject([recorded(Counted(number=n), source=source, seq=n) for source in (one, two, one) for n in (0, 1)])
        bus.flush()
        assert [(view.source.id, len(view)) for view in model.views] == [(one.id, 2), (two.id, 2), (one.id, 2)]

    def test_derived_ones_are_not_read(self, bus):
        """Derived events are not read by models."""
        first, second = Doubling(), Doubling(publish=lambda event: None)
        second.reads = (Event,)
        bus.subscribe(first)
        bus.subscribe(second)
        bus.log(Counted(number=1))
        bus.flush()
        assert {type(event) for view in second.views for event in view.events} >= {Counted}
        assert Doubled not in {type(event) for view in second.views for event in view.events}

    def test_event_logged_again(self, bus, frames):
        """An event that is logged several times is recorded and read each time, with a number of its own."""
        model, called = Doubling(), []
        bus.subscribe(frames, to=Counted)
        bus.subscribe(model)
        bus.subscribe(lambda again: called.append(again.seq), to=Counted, runs_on=RunsOn.WORKER)
        again = Counted(number=7)
        for _ in range(3):
            bus.log(again)
        bus.flush()
        bus.log(again)
        bus.flush()
        assert [(one.seq, one.number) for one in frames.events()] == [(number, 7) for number in (1, 2, 3, 4)]
        assert [one.seq for view in model.views for one in view.events] == called == [1, 2, 3, 4]


class TestFailures:
    def test_counted(self, bus):
        """A model that raises fails for each event of its view; the counts balance, and it is suspended after five."""
        suspended = []
        bus.subscribe(suspended.append, to=HandlerSuspended)
        model = Doubling()
        model.error = ValueError("no")
        subscription = bus.subscribe(model)
        for _ in range(7):
            bus.log(Counted())
            bus.flush()
        stats = subscription.stats()
        assert (stats.logged, stats.failed, stats.suspended, stats.balance) == (7, 5, 2, 0)
        assert len(suspended) == 1

    def test_missed(self, bus):
        """A model learns of which source it missed how many events."""
        model = Doubling()
        bus.subscribe(model)
        bus.log(Counted(number=object()))
        bus.log(Counted(number=1))
        bus.flush()
        assert model.missed_events == [(bus._identity.find().id, 1)]
