"""Wrong input is counted, named in the result, and never makes a wrong sum."""

from __future__ import annotations

import pytest

from trackside.events import EventsDropped, IterationEnded, SlicesCounted, Source, SpanOutOfOrder
from trackside.handlers.models.goodput import GoodputAccumulator, _track

pytestmark = pytest.mark.once

IMPOSSIBLE, MALFORMED = "an impossible time", "a malformed event"
REPEATED, OUT_OF_ORDER = "a record that was there already", "a step out of order"
NO_END = "a span without an end"


def problems_of(result):
    """Return the faults of a log besides the missing end of the job."""
    no_end = "an attempt without an end: it runs, or fell silent"
    return {name: n for name, n in result.problems.items() if name != no_end}


class TestTimes:
    @pytest.mark.parametrize("at", [0, -5, 1 << 62, 1 << 70])
    def test_impossible(self, stream, feed, at):
        """An event before 1970 or after 2116 only counts as a fault."""
        job = stream().start(1).step(0, 1, 5).beat(at).step(1, 5, 9)
        result = feed(job).result()
        assert (result.spent_ns, problems_of(result)) == ({"PRODUCTIVE": 8}, {IMPOSSIBLE: 1})

    def test_negative_duration(self, stream, feed):
        """A span that ended before it began is left out."""
        job = stream().start(1).step(0, 1, 5).span("checkpoint_load", 9, 7).step(1, 10, 6).step(1, 7, 11)
        result = feed(job).result()
        assert (result.spent_ns, problems_of(result)) == ({"PRODUCTIVE": 8, "OTHER": 2}, {IMPOSSIBLE: 2})

    @pytest.mark.parametrize("at", [1.5, None, "1", 10.0])
    def test_no_number(self, stream, feed, at):
        """A time that is no whole number is malformed, and the next event counts."""
        job = stream().start(1).step(0, 1, 5).beat(at).step(1, 5, 9)
        result = feed(job).result()
        assert (result.spent_ns, problems_of(result)) == ({"PRODUCTIVE": 8}, {MALFORMED: 1})

    @pytest.mark.parametrize("number", [1.5, None, "1"])
    def test_step_is_no_number(self, stream, feed, number):
        """A step that has no number is malformed, and the next event counts."""
        job = stream().start(1).step(0, 1, 5).step(number, 5, 9).step(2, 9, 13)
        result = feed(job).result()
        assert (result.spent_ns, problems_of(result)) == ({"PRODUCTIVE": 8, "OTHER": 4}, {MALFORMED: 1})


class TestRecords:
    def test_repeated_number(self, stream, feed):
        """A duplicate event is not read again."""
        job = stream().start(1).step(0, 1, 5)
        job.events += job.events
        assert problems_of(feed(job).result()) == {REPEATED: 2}

    def test_repeated_step(self, stream, feed):
        """An iteration recorded twice counts once."""
        result = feed(stream().start(1).step(0, 1, 5).step(0, 1, 5).step(1, 5, 9)).result()
        assert (result.spent_ns, problems_of(result)) == ({"PRODUCTIVE": 8}, {OUT_OF_ORDER: 1})

    def test_out_of_order(self, stream, feed):
        """A step recorded late has its place, its number and its time."""
        model = feed(stream().start(1).step(0, 1, 5).step(2, 9, 13).step(1, 5, 9))
        assert (model.result().spent_ns, problems_of(model.result())) == ({"PRODUCTIVE": 12}, {OUT_OF_ORDER: 1})
        assert [step.number for step in model.step_times()] == [0, 1, 2]

    def test_two_writers(self, stream, feed):
        """Two processes that write one stream make steps overlap: the time counts once."""
        job = stream().start(1)
        for step in range(4):
            job.step(step, 10 * step + 1, 10 * step + 11).step(step, 10 * step + 2, 10 * step + 12)
        result = feed(job).result()
        assert result.spent_ns == {"PRODUCTIVE": 40, "PROGRAM_STARTUP": 1}  # of the first step both ends are seen
        assert problems_of(result) == {"a step that began before the last one ended": 7}

    def test_second_process(self, stream, feed):
        """A second process of the same rank, begun and over while the first one runs, is left out."""
        first = stream(id="a", run_id="one").start(1).step(0, 1, 50).step(1, 50, 99)
        second = stream(id="b", run_id="two").start(10).step(0, 10, 20)
        result = feed(first, second).result(session="one")
        assert result.spent_ns == {"PRODUCTIVE": 98}
        tagged = [stream(id=name, run_id=name, session_tag="s") for name in "ab"]
        tagged[0].start(1).step(0, 1, 50).step(1, 50, 99)
        tagged[1].start(10).step(0, 10, 20)
        result = feed(*tagged).result()
        assert (result.spent_ns, result.attempts) == ({"PRODUCTIVE": 98}, 1)
        assert problems_of(result) == {"a second process of the same rank at the same time": 1}

    def test_attempt_before_the_last_one_ended(self, stream, feed):
        """An attempt that begins while the last one is still alive has the time from then on."""
        first, second = stream(attempt=0).start(1).step(0, 1, 21), stream(attempt=1).start(11).step(1, 11, 31)
        result = feed(first, second).result()
        assert result.spent_ns == {"PRODUCTIVE": 30}
        assert problems_of(result) == {"an attempt that began before the last one fell silent": 1}

    def test_dropped(self, stream, feed):
        """Events that the queue dropped are counted; those that one sink dropped are not."""
        job = stream().start(1)
        for where in ("queue", "TensorBoardSink"):
            job.put(EventsDropped(at_ns=5, by_type={"trackside.iteration.ended": 3}, where=where, span_id=0, step=-1))
        assert problems_of(feed(job).result()) == {"an event that was given up for lack of room": 3}

    def test_missed(self, stream, feed):
        """Events that were lost in transit are reported."""
        model = feed(stream().start(1).step(0, 1, 5))
        model.missed(Source.unknown(""), 3)
        model.missed(Source.unknown(""), 4)
        assert model.result().missed == 7

    def test_spans_out_of_order(self, stream, feed):
        """Spans that an instrument found out of order are named."""
        job = stream().start(1).put(SpanOutOfOrder(at_ns=3, name="x", problem="was closed again", span_id=0, step=-1))
        assert problems_of(feed(job).result()) == {"a span was closed again": 1}

    def test_torn_values(self, stream, feed):
        """Attributes and heartbeats of a wrong shape lose only themselves."""
        job = stream().start(1).step(0, 1, 5)
        job.beat(6, (1,))
        job.put(SlicesCounted(at_ns=7, active="2", total=None, available=2.5, span_id=0, step=-1)).step(1, 5, 9)
        result = feed(job).result()
        assert result.spent_ns == {"PRODUCTIVE": 8}
        assert problems_of(result) == {MALFORMED: 2}


class TestSpansWithoutEnd:
    def test_parent_ended(self, stream, feed):
        """A span that was never closed ends with the one around it."""
        job = stream().start(1)
        outer = job.open("validation_loop", 5)
        job.open("x", 7, parent=outer, badput_type="eval")
        job.span("validation_loop", 5, 10, id=outer).step(0, 12, 20)
        result = feed(job).result()
        assert result.spent_ns == {"OTHER": 6, "VALIDATION": 5, "PRODUCTIVE": 8}
        assert problems_of(result) == {NO_END: 1}

    def test_process_ended(self, stream, feed):
        """Spans that are open when the process comes to a good end, end then."""
        job = stream().start(1)
        job.open("checkpoint_load", 5)
        result = feed(job.end(9)).result()
        assert result.spent_ns == {"OTHER": 4, "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME": 4}
        assert problems_of(result) == {NO_END: 1}

    def test_killed(self, stream, feed):
        """Spans that are open when the process falls silent last as long as it is known to have lived."""
        job = stream().start(1)
        job.open("checkpoint_load", 5)
        result = feed(job.beat(9)).result()
        assert result.spent_ns == {"OTHER": 4, "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME": 4}
        assert problems_of(result) == {}


class TestManyLate:
    def test_in_the_order_in_which_they_came(self, stream, feed, monkeypatch):
        """A deferred slice comes before later ones, also where they only touch."""
        job = stream().step(5, 1030, 1036).span("checkpoint_load", 1003, 1006)
        job.step(0, 1008, 1009).step(3, 1009, 1015).step(2, 1015, 1016)
        expected = [step.number for step in feed(job).step_times()]
        monkeypatch.setattr(_track, "BLOCK", 1)
        assert [step.number for step in feed(job).step_times()] == expected == [0, 3, 5]

    def test_equals(self, stream, feed, monkeypatch):
        """Of two equal slices that came late the first one stays, whichever was deferred."""
        job = stream().start(1)
        for step in range(4):
            job.step(step, 10 * step + 1, 10 * step + 11)
        job.span("x", 5, 36, badput_type="first").span("x", 33, 38, badput_type="second")
        monkeypatch.setattr(_track, "BLOCK", 1)
        customs = feed(job).result().badput_s["CUSTOM_BADPUT_EVENTS"]
        assert customs == {"first": 31e-9, "second": 2e-9}

    def test_cost(self, stream):
        """Thousands of spans that come late, each far back, do not unpack the past each."""
        model = GoodputAccumulator()
        job = stream().start(1)
        for step in range(20_000):
            job.step(step, 100 * step + 1, 100 * step + 90)
        for step in range(0, 20_000, 10):
            job.span("x", 100 * step + 1, 100 * step + 11, badput_type="late")
        unpacked = []
        for event in job.events:
            model(event)
            if not isinstance(event, IterationEnded):
                unpacked.append(len(model._processes["p0-0"].track._starts))
        assert max(unpacked) < 3 * _track.BLOCK
        assert model.result().badput_s["CUSTOM_BADPUT_EVENTS"] == {"late": pytest.approx(2_000 * 10e-9)}
