"""Whole spans from the events that tell of them."""

from __future__ import annotations

from trackside.events import IterationEnded, SourceEnded, SpanEnded, SpanEventAdded, SpanStarted
from trackside.handlers._assembly import MOST_EVENTS, MOST_OPEN, SpanAssembly


def read(*events):
    assembly = SpanAssembly()
    return [span for event in events for span in assembly.read(event)], assembly


def started(number, at_ns=100, parent=0):
    return SpanStarted(id=number, parent_id=parent, name=f"span{number}", at_ns=at_ns, span_id=parent, step=-1)


def ended(number, at_ns=300, **given):
    return SpanEnded(id=number, parent_id=0, name=f"span{number}", at_ns=at_ns, duration_ns=200, span_id=0, **given)


def happened(number, at_ns=150):
    return SpanEventAdded(name="it", attributes={"n": number}, span_id=number, at_ns=at_ns, step=-1)


class TestSpanAssembly:
    def test_long(self):
        """A long span is whole at its end, and was made of start, end and what happened in it."""
        [span], _ = read(started(1), happened(1), ended(1))
        assert (span.start_ns, span.end_ns, span.events, span.finished) == (100, 300, 3, True)
        assert [happening.at_ns for happening in span.happenings] == [150]

    def test_happenings_of_others(self):
        """What happened in another span is that one's."""
        [one, two], _ = read(happened(1), happened(2), ended(2), ended(1))
        assert [[h.attributes["n"] for h in span.happenings] for span in (one, two)] == [[2], [1]]

    def test_iteration(self):
        """An iteration is a span if it has an id."""
        told = {"duration_ns": 50, "at_ns": 100, "span_id": 3, "step": 7, "kind": "validation"}
        [span], _ = read(IterationEnded(id=0, **told), IterationEnded(id=4, **told, failed=True))
        assert (span.name, span.parent_id, span.start_ns, span.failed) == ("validation_single_iteration", 3, 50, True)

    def test_what_was_raised_in_an_iteration(self):
        """An iteration's error is the last one that was told of in it."""
        told = {"exception_type": "E", "exception_message": "m"}
        error = SpanEventAdded(name="error", attributes=told, span_id=4, at_ns=1, step=-1)
        [span], _ = read(error, IterationEnded(id=4, duration_ns=1, failed=True))
        assert span.error == {"type": "E", "message": "m"}

    def test_open_at_the_end(self):
        """What is open when the process ends is handed out, the innermost first."""
        spans, _ = read(started(1), started(2, parent=1), happened(2), SourceEnded(at_ns=900))
        assert [(span.id, span.end_ns, span.finished, span.events) for span in spans] == [
            (2, 900, False, 2),
            (1, 900, False, 1),
        ]

    def test_ends_before_it_starts(self):
        """A clock that was set back makes a span of no length."""
        [span], _ = read(SpanEnded(id=1, parent_id=0, name="n", at_ns=100, duration_ns=-5))
        assert (span.start_ns, span.end_ns) == (100, 100)

    def test_bounded(self):
        """What is forgotten for lack of room is counted."""
        events = [started(number) for number in range(1, MOST_OPEN + 3)]
        events += [happened(1) for _ in range(MOST_EVENTS + 5)]
        _, assembly = read(*events)
        assert assembly.forgotten == 2 + 5
