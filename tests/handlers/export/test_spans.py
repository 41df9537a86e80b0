"""Completed spans from span events."""

from __future__ import annotations

from trackside.events import IterationEnded, SourceEnded, SpanEnded, SpanEventAdded, SpanStarted
from trackside.handlers.export import SpanAssembler
from trackside.handlers.export._span_assembler import MAX_OPEN_SPANS, MAX_SPAN_EVENTS


def read(*events):
    assembler = SpanAssembler()
    return [span for event in events for span in assembler.add(event)], assembler


def started(number, at_ns=100, parent=0):
    return SpanStarted(span_id=number, parent_span_id=parent, name=f"span{number}", at_ns=at_ns, step=-1)


def ended(number, at_ns=300, **given):
    return SpanEnded(span_id=number, parent_span_id=0, name=f"span{number}", at_ns=at_ns, duration_ns=200, **given)


def happened(number, at_ns=150):
    return SpanEventAdded(name="it", attributes={"n": number}, span_id=number, at_ns=at_ns, step=-1)


class TestSpanAssembler:
    def test_long(self):
        """A long span is complete at its end, from its start, its end and its events."""
        [span], _ = read(started(1), happened(1), ended(1))
        assert (span.start_ns, span.end_ns, span.event_count, span.is_finished) == (100, 300, 3, True)
        assert [one.at_ns for one in span.span_events] == [150]

    def test_events_of_others(self):
        """The events of another span stay with that one."""
        [one, two], _ = read(happened(1), happened(2), ended(2), ended(1))
        assert [[one.attributes["n"] for one in span.span_events] for span in (one, two)] == [[2], [1]]

    def test_iteration(self):
        """An iteration is a span if it has an id."""
        fields = {"duration_ns": 50, "at_ns": 100, "parent_span_id": 3, "step": 7, "kind": "validation"}
        [span], _ = read(IterationEnded(span_id=0, **fields), IterationEnded(span_id=4, **fields, failed=True))
        assert (span.name, span.parent_id, span.start_ns, span.failed) == ("validation_single_iteration", 3, 50, True)

    def test_what_was_raised_in_an_iteration(self):
        """An iteration's error is the last exception among its events."""
        fields = {"exception_type": "E", "exception_message": "m"}
        error = SpanEventAdded(name="error", attributes=fields, span_id=4, at_ns=1, step=-1)
        [span], _ = read(error, IterationEnded(span_id=4, duration_ns=1, failed=True))
        assert span.error == {"type": "E", "message": "m"}

    def test_open_at_the_end(self):
        """Spans that are open when the process ends are yielded, the innermost first."""
        spans, _ = read(started(1), started(2, parent=1), happened(2), SourceEnded(at_ns=900))
        assert [(span.id, span.end_ns, span.is_finished, span.event_count) for span in spans] == [
            (2, 900, False, 2),
            (1, 900, False, 1),
        ]

    def test_ends_before_it_starts(self):
        """A clock that was set back makes a span of no length."""
        [span], _ = read(SpanEnded(span_id=1, parent_span_id=0, name="n", at_ns=100, duration_ns=-5))
        assert (span.start_ns, span.end_ns) == (100, 100)

    def test_bounded(self):
        """Events that are dropped for lack of room are counted."""
        events = [started(number) for number in range(1, MAX_OPEN_SPANS + 3)]
        events += [happened(1) for _ in range(MAX_SPAN_EVENTS + 5)]
        _, assembler = read(*events)
        assert assembler.dropped == 2 + 5
