"""Barriers, subscribing to types by name, and events injected from other processes."""

from __future__ import annotations

import pytest

import trackside
from trackside.events import ConfigError, RunsOn, Source, UnknownEvent
from trackside.testing import recorded

TEXT = "x" * 199_400


@trackside.event("barrier.step.taken")
class StepTaken(trackside.Event):
    """An event."""

    number: int


@trackside.event("barrier.step.taken.slowly")
class SlowStepTaken(StepTaken):
    """An event that is derived from the other."""


@trackside.event("barrier.other.happened", priority=trackside.LIFECYCLE)
class OtherHappened(trackside.Event):
    """An event of another family."""


@trackside.event("barrier.noted")
class Noted(trackside.Event):
    """An event that may be large."""

    text: str


class Counter:
    """A model that counts."""

    runs_on = RunsOn.DISPATCHER

    def __init__(self):
        self.count = self.missed_events = 0

    def __call__(self, event):
        """Count."""
        self.count += 1

    def missed(self, source, count):
        """Count what did not come."""
        self.missed_events += count


class CountingSink:
    """A frame sink that records how many events were in each frame."""

    lost = 0

    def __init__(self):
        self.accepted = []

    def open(self, source):
        """Need nothing."""

    def accept(self, frame, *, events):
        """Note it."""
        self.accepted.append(events)
        return True

    def flush(self, timeout_s):
        """Have nothing to do."""
        return True

    def close(self, timeout_s):
        """Have nothing to do."""
        return True

    def after_fork(self, source):
        """Stay with the parent."""
        return False


class TestLook:
    def test_between_two_events(self, bus):
        """A barrier sees the state after the event before it, whatever is logged immediately after."""
        model, sink, seen = Counter(), CountingSink(), []
        bus.subscribe(model)
        bus.subscribe(sink)
        for number in range(10):
            bus.log(StepTaken(number=number))
            if number == 6:
                bus.at_barrier(lambda view: seen.append((view.next_seq, view.models[0].count, sum(sink.accepted))))
        bus.flush()

        # SourceStarted has number 0, and every frame with an event before the barrier was cut.
        assert seen == [(8, 8, 8)]
        assert sum(sink.accepted) == 11

    def test_source(self, bus):
        """A barrier knows the stream's source, once the stream has begun."""
        seen = []
        bus.at_barrier(lambda view: seen.append(view.source))
        bus.subscribe(Counter())
        bus.log(StepTaken(number=1))
        bus.at_barrier(lambda view: seen.append(view.source))
        bus.flush()

        assert seen[0] is None
        assert seen[1].id == trackside.events.process_source().id

    def test_dropped(self, make_bus):
        """Events that got no number are counted, and known to the models at the barrier."""
        bus, seen = make_bus(queue_limit=10), []
        bus.subscribe(Counter())
        bus.flush()
        bus._dispatcher.draining.acquire(timeout=5.0)
        try:
            for number in range(20):
                bus.log(StepTaken(number=number))
            bus.at_barrier(lambda view: seen.append((view.dropped, view.models[0].missed_events)))
        finally:
            bus._dispatcher.draining.release()
        bus.flush()

        assert seen == [(12, 12)]  # events of one a step may fill eight of ten places

    def test_failure(self, bus, caplog):
        """An exception raised at a barrier is reported, and the stream goes on."""
        model = Counter()
        bus.subscribe(model)
        bus.at_barrier(lambda view: 1 / 0)
        bus.log(StepTaken(number=1))
        bus.flush()

        assert model.count == 2
        assert "ZeroDivisionError" in caplog.text


class TestNames:
    @pytest.mark.parametrize(
        ("to", "expected"),
        [
            ("*", 3),
            ("barrier.step.taken", 2),
            ("barrier.*", 3),
            ("*.slowly", 1),
            (("barrier.step.taken.slowly", OtherHappened), 2),
            ("BARRIER.*", 0),
        ],
    )
    def test_wanted(self, bus, to, expected):
        """A name stands for its type and those derived from it, a glob for all that match, also beside classes."""
        seen = []
        bus.subscribe(seen.append, to=to)
        for event in (StepTaken(number=1), SlowStepTaken(number=2), OtherHappened()):
            bus.log(event)

        assert len(seen) == expected

    def test_declared_later(self, bus):
        """A type declared after the subscription is found by its name."""
        seen = []
        bus.subscribe(seen.append, to="barrier.late.*")
        late = trackside.event("barrier.late.came")(type("LateCame", (trackside.Event,), {"__module__": __name__}))
        assert bus.wants(late)
        bus.log(late())

        assert len(seen) == 1

    def test_with_priority(self, bus):
        """A priority applies to names too."""
        bus.subscribe(print, to="*", min_priority=trackside.LIFECYCLE)
        assert bus.wants(OtherHappened)
        assert not bus.wants(StepTaken)

    @pytest.mark.parametrize("to", ["", "barrier", (), ("x.*", 3), (StepTaken, "")], ids=repr)
    def test_wrong(self, bus, to):
        """A filter that matches no type is refused."""
        with pytest.raises(ConfigError):
            bus.subscribe(print, to=to)


def test_stays_with_the_parent(bus):
    """A frame sink that refuses to fork is not on the child's bus, and nothing is reported."""
    sink = CountingSink()
    bus.subscribe(sink)
    bus.log(StepTaken(number=1))
    bus.flush()
    bus.become_child()

    assert bus.is_idle
    bus.log(StepTaken(number=2))
    bus.flush()
    assert sum(sink.accepted) == 2


class TestDeliver:
    def foreign(self, count):
        """Return events as they come from another process."""
        with trackside.Bus(source=Source(rank=7)) as other:
            sink = Kept()
            other.subscribe(sink)
            for number in range(count):
                other.log(StepTaken(number=number))
        return sink.events

    def test_keeps_its_identity(self, bus):
        """Callables, models and sinks get the events of other processes with the sources and numbers of those."""
        inline, queued, model, sink = [], [], Kept(), CountingSink()
        bus.subscribe(inline.append, to=StepTaken)
        bus.subscribe(queued.append, to=StepTaken, runs_on=RunsOn.WORKER)
        bus.subscribe(model)
        bus.subscribe(sink)
        foreign = self.foreign(5)
        theirs = foreign[0].source.id
        assert bus.inject(foreign)
        bus.log(StepTaken(number=99))
        bus.flush()

        for events in (inline, queued, [event for event in model.events if isinstance(event, StepTaken)]):
            assert [event.number for event in events] == [0, 1, 2, 3, 4, 99]
            assert {(event.source.id, event.source.rank) for event in events[:5]} == {(theirs, 7)}
            assert [event.seq for event in events[:5]] == [1, 2, 3, 4, 5]
            assert events[5].source.id != theirs
        assert sum(sink.accepted) == 2  # this process's own: its start, and what it logged
        assert all(handler.balance == 0 for handler in bus.stats().handlers)
        assert bus.stats().lost == 0

    def test_full(self, make_bus):
        """While the dispatcher is behind, it accepts no injected events beyond its capacity, and none is lost."""
        bus, model = make_bus(queue_limit=100), Kept()
        bus.subscribe(model)
        events = self.foreign(49)
        bus._dispatcher.draining.acquire(timeout=5.0)
        try:
            accepted = [bus.inject(events) for _ in range(3)]
        finally:
            bus._dispatcher.draining.release()
        bus.flush()

        assert accepted == [True, False, False]
        assert len(model.events) == len(events)
        assert bus.inject(events)

    @pytest.mark.parametrize(
        "event",
        [
            recorded(Noted(text=TEXT)),
            recorded(UnknownEvent(name="of.another.library", fields={"text": TEXT})),
        ],
        ids=["declared", "unknown"],
    )
    def test_large(self, bus, held_still, event):
        """Of events of 199,464 bytes, 49 places of 4 KiB each, 167 fit into half of the queue, 8,192 places."""
        bus.subscribe(Kept())
        held_still(bus)
        accepted = [bus.inject([event]) for _ in range(200)]

        assert accepted == [True] * 167 + [False] * 33

    def test_large_after_others(self, bus, held_still):
        """Once large events are delivered there is room for as many as before."""
        bus.subscribe(Kept())
        for _ in range(2):
            go_on = held_still(bus)
            accepted = [bus.inject([recorded(Noted(text=TEXT))]) for _ in range(168)]
            go_on()
            bus.flush(30)

            assert accepted == [True] * 167 + [False]

    def test_large_for_a_stalled_sink(self, bus, gate):
        """Of events of 199,976 bytes, 64 beside the letters and 512 the event's own, 167 fit into a sink's 32 MiB."""
        subscription = bus.subscribe(gate, to=Noted, runs_on=RunsOn.WORKER)
        for _ in range(20):
            assert bus.inject([recorded(Noted(text=TEXT))] * 10)
            assert bus._dispatcher.settle(30)

        stats = subscription.stats()
        assert (stats.logged, stats.in_queue, stats.dropped) == (200, 167, 33)

    def test_rules(self, bus):
        """Rules apply to injected events."""
        seen = []
        bus.subscribe(seen.append, to=StepTaken, keep=trackside.every(2))
        bus.inject(self.foreign(6))

        assert [event.number for event in seen] == [0, 2, 4]

    def test_failing_handler(self, make_bus):
        """An exception that a callable raises for an injected event is counted, and the next event comes."""
        bus, seen = make_bus(), []
        bus.subscribe(lambda event: 1 / 0)
        bus.subscribe(seen.append)
        events = self.foreign(3)
        bus.inject(events)

        assert len(seen) >= len(events)
        assert bus.stats().failed == len(events)


class Kept:
    """A model that keeps what it gets."""

    runs_on = RunsOn.DISPATCHER

    def __init__(self):
        self.events = []

    def __call__(self, event):
        """Keep it."""
        self.events.append(event)
