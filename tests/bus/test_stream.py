"""Numbered streams, and the frames they are cut into."""

from __future__ import annotations

import itertools
import threading

import attrs
import pytest

from ticking import Ticked
from trackside.bus._dispatcher import End
from trackside.events import (
    ITERATION,
    Event,
    Source,
    SourceEnded,
    SourceStarted,
    UnknownEvent,
    event,
    process_source,
    set_process_source,
)
from trackside.rules import every


@event("test.stream.empty", priority=ITERATION)
class Empty(Event):
    pass


class WithoutCopies:
    """Cannot be copied."""

    def __copy__(self):
        raise TypeError("no copy")


@event("test.stream.uncopied")
class Uncopied(WithoutCopies, Event):
    number: int = 0


def first_and_last(frames):
    return [(frame.first_seq, frame.last_seq) for frame in frames.decoded()]


def begun(frames):
    """Return the ids of the streams, in order."""
    return [one.source.id for one in frames.events(SourceStarted)]


def assert_dense(frames):
    """Check that each stream is accounted for from 0, without gap or overlap."""
    next_seq = {}
    for frame in frames.decoded():
        assert frame.first_seq == next_seq.get(frame.source.id, 0)
        next_seq[frame.source.id] = frame.last_seq + 1
    return next_seq


@pytest.fixture
def own_identity():
    """Give the process a source of this test's."""
    set_process_source(Source(run_id="of this test"))
    yield
    set_process_source(None)


class TestBeginAndEnd:
    def test_one_stream(self, bus, frames):
        """A stream starts with its identity, at number 0, and ends with the bus."""
        bus.subscribe(frames)
        bus.log(Ticked(number=7))
        bus.close()
        assert [(type(one).__name__, one.seq) for one in frames.events()] == [
            ("SourceStarted", 0),
            ("Ticked", 1),
            ("SourceEnded", 2),
        ]
        (started,) = frames.events(SourceStarted)
        assert Source.from_wire(started.identity) == process_source()
        assert frames.events(SourceEnded)[0].reason == "closed"
        assert [source.id for source in frames.opened] == [process_source().id]

    def test_nothing_logged(self, bus, frames):
        """Without an event there is no stream."""
        bus.subscribe(frames)
        bus.close()
        assert frames.frames == []
        assert frames.is_closed

    def test_begin(self, bus, frames, model):
        """A source that begins ends the one before; each numbers from 0, starts with its start, ends with its end."""
        first, second = Source(run_id="first"), Source(run_id="second")
        bus.subscribe(frames)
        bus.subscribe(model)
        bus.begin(first)
        bus.log(Ticked(number=1))
        bus.log(Ticked(number=2))
        bus.begin(second)
        bus.log(Ticked(number=3))
        bus.close()
        expected = [
            ("first", 0, "SourceStarted"),
            ("first", 1, "Ticked"),
            ("first", 2, "Ticked"),
            ("first", 3, "SourceEnded"),
            ("second", 0, "SourceStarted"),
            ("second", 1, "Ticked"),
            ("second", 2, "SourceEnded"),
        ]
        for events in (frames.events(), model.events):
            assert [(one.source.run_id, one.seq, type(one).__name__) for one in events] == expected
        assert [one.reason for one in frames.events(SourceEnded)] == ["succeeded by another source", "closed"]

    def test_begin_without_events(self, bus, frames):
        """A stream that was begun is recorded though nothing is logged in it."""
        bus.subscribe(frames)
        bus.begin(Source(run_id="mine"))
        bus.close()
        assert [type(one) for one in frames.events()] == [SourceStarted, SourceEnded]
        assert frames.opened[0].run_id == "mine"

    def test_end(self, bus, frames):
        """After an end the next event starts another stream, with an id of its own: no number is used twice."""
        bus.subscribe(frames)
        bus.log(Ticked(number=1))
        bus.end("a pause")
        bus.log(Ticked(number=2))
        bus.close()
        frames_by_source = assert_dense(frames)
        assert list(frames_by_source.values()) == [3, 3]
        assert [one.reason for one in frames.events(SourceEnded)] == ["a pause", "closed"]
        sources = [one.source for one in frames.events(SourceStarted)]
        assert sources[0].run_id == sources[1].run_id
        assert len({(one.source.id, one.seq) for one in frames.events()}) == 6

    def test_end_with_those_that_leave(self, bus, make_frames):
        """An event after the end is part of another stream, and nothing for those that leave with the end."""
        leaving, staying = make_frames(), make_frames()
        subscriptions = [bus.subscribe(sink, to=(Ticked, SourceStarted, SourceEnded)) for sink in (leaving, staying)]
        bus.log(Ticked(number=1))
        bus.end(leaving=subscriptions[:1])
        bus.log(Ticked(number=2))
        bus.flush()
        assert [one.number for one in leaving.events(Ticked)] == [1]
        assert [one.number for one in staying.events(Ticked)] == [1, 2]
        assert (len(begun(leaving)), len(begun(staying))) == (1, 2)
        subscriptions[0].close()
        stats = [one.stats() for one in subscriptions]
        # Each stream has a start, and the first one an end.
        assert [(one.logged, one.handled, one.balance) for one in stats] == [(3, 3, 0), (5, 5, 0)]

    def test_end_of_the_process_at_once(self, bus, frames, own_identity, monkeypatch):
        """The process gets a new source also where the dispatcher ends the stream before `end` returns."""
        bus.subscribe(frames)
        bus.log(Ticked(number=1))
        bus.flush()
        before, put = process_source(), bus._dispatcher.put

        def put_and_wait(item):
            put(item)
            if isinstance(item, End):
                bus.flush()

        monkeypatch.setattr(bus._dispatcher, "put", put_and_wait)
        bus.end()
        assert process_source() == attrs.evolve(before, id=process_source().id)
        assert process_source().id != before.id

    def test_end_of_the_process(self, bus, frames, own_identity):
        """
        After an end the bus goes on as the process's current source at once: the source that has ended is nobody's
        parent.
        """
        bus.subscribe(frames)
        bus.log(Ticked(number=1))
        bus.flush()
        before = process_source()
        bus.end()
        after = process_source()
        assert after == attrs.evolve(before, id=after.id)
        assert after.child().parent.source_id != before.id
        bus.log(Ticked(number=2))
        bus.flush()
        assert begun(frames) == [before.id, after.id]
        assert process_source() is after

    def test_end_before_the_beginning(self, bus, frames, held_still, own_identity):
        """The same holds if no event of the stream that ends was read yet."""
        bus.subscribe(frames)
        go_on = held_still(bus)
        bus.log(Ticked(number=1))
        bus.end()
        bus.log(Ticked(number=2))
        go_on()
        bus.flush()
        assert len(set(begun(frames))) == 2
        assert process_source().id == begun(frames)[-1]

    def test_end_of_another(self, bus, frames, own_identity):
        """A source that the process took on meanwhile is left alone."""
        bus.subscribe(frames)
        bus.log(Ticked())
        bus.flush()
        other = Source(run_id="other")
        set_process_source(other)
        bus.end()
        assert process_source() is other
        bus.log(Ticked())
        bus.flush()
        assert begun(frames)[-1] == other.id

    def test_end_of_a_given_source(self, make_bus, frames):
        """A bus with a source of its own goes on as that source too."""
        bus = make_bus(source=Source(run_id="mine"))
        bus.subscribe(frames)
        process = process_source()
        for _ in range(2):
            bus.log(Ticked())
            bus.flush()
            bus.end()
        bus.flush()
        assert [one.source.run_id for one in frames.events(SourceStarted)] == ["mine", "mine"]
        assert len(set(begun(frames))) == 2
        assert process_source() is process

    def test_end_twice(self, bus, frames):
        """An end without a stream is nothing."""
        bus.subscribe(frames)
        bus.end()
        bus.log(Ticked())
        bus.end()
        bus.end()
        bus.close()
        assert [type(one) for one in frames.events()] == [SourceStarted, Ticked, SourceEnded]

    def test_begin_again(self, bus, frames):
        """A source that begins twice gets another id the second time."""
        source = Source(run_id="mine")
        bus.subscribe(frames)
        bus.begin(source)
        bus.begin(source)
        bus.close()
        ids = [one.source.id for one in frames.events(SourceStarted)]
        assert ids[0] == source.id
        assert ids[1] not in {"", source.id}

    def test_opened_with_the_source_that_begins(self, bus, frames):
        """A frame sink that joined before the stream began learns the right source, once."""
        first, second = Source(run_id="first"), Source(run_id="second")
        bus.subscribe(frames)
        bus.flush()
        assert frames.opened == []
        bus.begin(first)
        bus.begin(second)
        bus.flush()
        assert frames.opened == [first]

    def test_late_sink(self, bus, make_frames):
        """A frame sink that joins later learns the source at once, and its first frame says from which number on."""
        early, late = make_frames(), make_frames()
        bus.subscribe(early)
        bus.log(Ticked(number=1))
        bus.subscribe(late, to=Ticked)
        bus.log(Ticked(number=2))
        bus.flush()
        assert late.opened == early.opened
        assert first_and_last(late) == [(2, 2)]
        assert_dense(early)

    def test_dropped_is_the_streams_own(self, make_bus, frames, held_still):
        """The count of events dropped during one stream is not in the frames of the next."""
        bus = make_bus(queue_limit=10)
        bus.subscribe(frames)
        bus.begin(Source(run_id="first"))
        bus.flush()
        go_on = held_still(bus)
        for number in range(20):
            bus.log(Ticked(number=number))
        go_on()
        bus.flush()
        bus.begin(Source(run_id="second"))
        bus.log(Ticked())
        bus.flush()
        printed = {frame.source.run_id: frame.dropped for frame in frames.decoded()}
        assert printed == {"first": {"test.ticked": 12}, "second": {}}


class TestFrames:
    def test_dense(self, bus, frames, scaled):
        """Frames continue each other: the next starts at the last number + 1."""
        bus.subscribe(frames)
        for number in range(scaled(20_000)):
            bus.log(Ticked(number=number))
            if number % 777 == 0:
                bus.flush()
        bus.close()
        assert list(assert_dense(frames).values()) == [scaled(20_000) + 2]
        assert [one.number for one in frames.events(Ticked)] == list(range(scaled(20_000)))

    def test_event_counts(self, bus, frames, held_still):
        """With each frame the sink learns how many rows it has."""
        bus.subscribe(frames, to=Ticked)
        go_on = held_still(bus)
        for _ in range(5):
            bus.log(Ticked())
            bus.log(Empty())
        go_on()
        bus.flush()
        assert [events for _, events in frames.frames] == [5]

    def test_without_flush(self, bus, frames):
        """A batch that waited a quarter of a second is handed over."""
        accepted = threading.Event()
        accept = frames.accept

        def note(frame, *, events):
            accepted.set()
            return accept(frame, events=events)

        frames.accept = note
        bus.subscribe(frames, to=Ticked)
        bus.log(Ticked())
        assert accepted.wait(10)

    def test_tiny_events(self, make_bus, frames, held_still):
        """Frames of the smallest events hold no more rows than readers accept."""
        bus = make_bus(queue_limit=10**6)
        bus.subscribe(frames)
        go_on = held_still(bus)
        for _ in range(50_000):
            bus.log(Empty(at_ns=1, span_id=0, step=1))
        go_on()
        bus.flush(20)
        assert_dense(frames)
        assert len(frames.events(Empty)) == 50_000
        assert 8_000 < max(events for _, events in frames.frames) <= 16_384

    def test_huge_events(self, make_bus, frames):
        """Frames of the largest events stay below the size that readers accept."""
        bus = make_bus()
        bus.subscribe(frames)
        for number in range(50):
            bus.log(Ticked(number=number, text="x" * 70_000))
        bus.flush(20)
        assert_dense(frames)
        assert [one.number for one in frames.events(Ticked)] == list(range(50))
        assert max(len(frame) for frame, _ in frames.frames) < 1 << 20
        assert bus.stats().strings_cut == 50

    def test_many_types(self, make_bus, frames):
        """Frames of very many types name no more of them than readers accept."""
        classes = []
        for number in range(1500):

            class Kind(Event):
                pass

            Kind.__qualname__ = f"Kind{number}"
            classes.append(event(f"test.stream.kind{number}")(Kind))
        bus = make_bus()
        bus.subscribe(frames)
        for cls in classes:
            bus.log(cls())
        bus.flush(20)
        assert_dense(frames)
        assert len(frames.events()) == 1501

    def test_redeclared_class(self, bus, frames):
        """Two classes that share a name, as in a notebook cell that ran twice, are each read as they were written."""

        def declare(fields):
            body = {"__annotations__": fields, "__module__": "cell"}
            return event("test.stream.again")(type("Again", (Event,), body))

        bus.subscribe(frames)
        old = declare({"number": int})
        one = old(number=1)
        bus.log(one)
        bus.flush()
        new = declare({"text": str})
        bus.log(new(text="a"))
        bus.flush()
        assert bus.stats().by_type["test.stream.again"] == 2
        last = frames.events()[-1]
        assert (type(last), last.text) == (new, "a")

    def test_unknown_events(self, bus, frames):
        """An event that a decoder did not know is recorded as it was read."""
        bus.subscribe(frames)
        for number in range(3):
            bus.log(UnknownEvent(name="other.library.event", fields={"number": number}, name_version=4))
        bus.flush()
        assert [(one.name, one.fields, one.name_version) for one in frames.events(UnknownEvent)] == [
            ("other.library.event", {"number": number}, 4) for number in range(3)
        ]

    def test_schema_that_failed(self, bus, frames, held_still):
        """If a type cannot be introduced to a frame, its event is invalid and the next one is readable."""

        class ShortOfMemory(dict):
            failures = 1

            def __setitem__(self, number, entry):
                self.failures -= 1
                if self.failures == 0:
                    raise MemoryError
                super().__setitem__(number, entry)

        subscription = bus.subscribe(frames, to=Ticked)
        bus.log(Ticked(number=0))
        bus.flush()
        go_on = held_still(bus)
        bus.log(Ticked(number=1))
        bus.log(Ticked(number=2))
        (group,) = bus._dispatcher._batcher._groups.values()
        group.schemas = ShortOfMemory()
        go_on()
        bus.flush()
        assert [one.number for one in frames.events()] == [0, 2]
        stats = subscription.stats()
        assert (stats.logged, stats.handled, stats.invalid, stats.balance) == (3, 2, 1, 0)

    def test_sink_that_joins_after_a_failure(self, bus, model, frames):
        """A sink that joins where a batch has a type but no row gets the schema with the first row."""
        bus.subscribe(model)
        uncopied = Uncopied()
        bus.log(uncopied)
        bus.flush()
        bus.log(uncopied)  # it has a number, so the dispatcher copies it
        bus.subscribe(frames, to=Uncopied)
        bus.log(Uncopied(number=1))
        bus.flush()
        assert [one.number for one in frames.events()] == [1]
        assert bus.stats().invalid == 1

    def test_shared_by_equal_sinks(self, bus, make_frames, held_still):
        """Frame sinks that want the same get the same frame, cut once; one that wants less gets its own."""
        sinks = [make_frames(), make_frames(), make_frames()]
        bus.subscribe(sinks[0])
        bus.subscribe(sinks[1])
        bus.subscribe(sinks[2], to=Ticked)
        go_on = held_still(bus)
        bus.log(Ticked())
        bus.log(Empty())
        go_on()
        bus.flush()
        assert sinks[0].frames[0][0] is sinks[1].frames[0][0]
        assert len(sinks[2].events()) == 1
        assert first_and_last(sinks[2]) == first_and_last(sinks[0]) == [(0, 2)]

    def test_refused(self, bus, frames):
        """Frames that a sink refuses are counted as dropped, and leave a gap of exactly that length."""
        subscription = bus.subscribe(frames)
        for number in range(30):
            frames.accepts = not 10 <= number < 20
            bus.log(Ticked(number=number))
            bus.flush()
        stats = subscription.stats()
        assert (stats.logged, stats.handled, stats.dropped, stats.balance) == (31, 21, 10, 0)
        ranges = first_and_last(frames)
        gaps = [after[0] - before[1] - 1 for before, after in itertools.pairwise(ranges)]
        assert sum(gaps) == 10

    def test_lost_later(self, bus, frames):
        """Events that a frame sink accepted and then lost move from handled to dropped."""
        subscription = bus.subscribe(frames, to=Ticked)
        for _ in range(5):
            bus.log(Ticked())
        bus.flush()
        frames.lost = 2
        stats = subscription.stats()
        assert (stats.handled, stats.dropped, stats.balance) == (3, 2, 0)

    @pytest.mark.parametrize("keep", [None, every(1)])
    def test_sink_that_leaves(self, bus, make_frames, keep):
        """A frame sink gets a frame of all that was logged before it left, and another goes on."""
        leaving, staying = make_frames(), make_frames()
        subscription = bus.subscribe(leaving, keep=keep)
        bus.subscribe(staying)
        for number in range(3):
            bus.log(Ticked(number=number))
        assert subscription.close(60)
        bus.log(Ticked(number=3))
        bus.flush()
        assert [one.number for one in leaving.events(Ticked)] == [0, 1, 2]
        assert [one.number for one in staying.events(Ticked)] == [0, 1, 2, 3]
        assert leaving.is_closed
        assert not staying.is_closed


class TestIdentity:
    def test_as_of_the_first_event(self, bus, frames, monkeypatch):
        """The stream's source is the process's source when its first event comes."""
        bus.subscribe(frames)
        mine = attrs.evolve(process_source(), run_id="set later")
        set_process_source(mine)
        bus.log(Ticked())
        bus.flush()
        assert frames.opened == [mine]
        assert {one.source for one in frames.events()} == {mine} or frames.events()[0].source.run_id == "set later"

    def test_another_bus(self, make_bus, make_frames, own_identity):
        """A second bus of the process has the process's source too, with another id: no number is used twice."""
        both = [make_frames(), make_frames()]
        for frames in both:
            bus = make_bus()
            bus.subscribe(frames)
            bus.log(Ticked())
            bus.flush()
        first, second = (frames.opened[0] for frames in both)
        assert first == process_source()
        assert second == attrs.evolve(first, id=second.id)
        assert second.id != first.id

    def test_one_source_for_two(self, make_bus, make_frames):
        """Of two buses that are given one source, the second has another id, also when the first is closed."""
        given = Source(run_id="run", rank=3)
        opened = []
        for _ in range(2):
            bus, frames = make_bus(source=given), make_frames()
            bus.subscribe(frames)
            bus.log(Ticked())
            bus.close(10)
            opened += frames.opened
        assert opened[0] == given
        assert opened[1] == attrs.evolve(given, id=opened[1].id)
        assert opened[1].id != given.id

    def test_stream_of_another_bus(self, make_bus, make_frames):
        """A stream that is begun with the source of another bus has an id of its own."""
        given = Source(run_id="run")
        make_bus(source=given)
        bus, frames = make_bus(), make_frames()
        bus.begin(given)
        bus.subscribe(frames)
        bus.log(Ticked())
        bus.flush()
        assert frames.opened == [attrs.evolve(given, id=frames.opened[0].id)]
        assert frames.opened[0].id != given.id

    def test_id_made_elsewhere(self, make_bus, make_frames):
        """A source whose id no call of this process made, as one that a container image holds, gets another id."""
        given = Source(id="00c0ffee00c0ffee", run_id="run")
        for begin in (False, True):
            bus, frames = make_bus(source=None if begin else given), make_frames()
            if begin:
                bus.begin(given)
            bus.subscribe(frames)
            bus.log(Ticked())
            bus.flush()
            assert frames.opened == [attrs.evolve(given, id=frames.opened[0].id)]
            assert frames.opened[0].id != given.id

    def test_bus_beside_a_stream_that_was_begun(self, make_bus, make_frames, own_identity):
        """A bus whose first event comes between a stream's beginning and that stream's first event has another id."""
        begun_here, other = make_bus(), make_bus()
        theirs, ours = make_frames(), make_frames()
        begun_here.begin(process_source())
        other.subscribe(theirs)
        other.log(Ticked())
        other.flush()
        begun_here.subscribe(ours)
        begun_here.log(Ticked())
        begun_here.flush()
        assert ours.opened[0] == process_source()
        assert theirs.opened[0].id != ours.opened[0].id
