"""Rules that choose spans by their names."""

from __future__ import annotations

import pytest

from trackside.bus import Bus
from trackside.events import (
    ConfigError,
    Heartbeat,
    IterationEnded,
    IterationSpanEnded,
    SpanEnded,
    SpanEventAdded,
    SpanStarted,
)
from trackside.rules import all_of, at_most, only_spans, without_spans


def span(name, kind=SpanEnded, number=1):
    """Make an event of a span."""
    duration = {} if kind is SpanStarted else {"duration_ns": 1}
    return kind(span_id=number, parent_span_id=0, name=name, **duration)


class TestOnlySpans:
    @pytest.mark.parametrize(
        ("event", "verdict"),
        [
            (span("application"), None),
            (span("application", SpanStarted), None),
            (span("application", IterationSpanEnded), None),
            (span("training_loop"), "filtered"),
            (span("training_loop", SpanStarted), "filtered"),
            (IterationEnded(kind="training", duration_ns=1), "filtered"),
            (Heartbeat(sequence=0), None),
        ],
    )
    def test_verdict(self, event, verdict):
        """Of all spans only those named are kept, and every event that is no span."""
        assert only_spans("application").start()(event) == verdict

    def test_iterations(self):
        """An iteration has the span name that One Logger gives it."""
        keep = only_spans("training_single_iteration").start()
        assert keep(IterationEnded(kind="training", duration_ns=1)) is None
        assert keep(IterationEnded(kind="validation", duration_ns=1)) == "filtered"

    def test_odd_kind(self):
        """An iteration of an unknown kind has no name."""
        assert only_spans("x").start()(IterationEnded(kind="x", duration_ns=1)) == "filtered"


class TestWithoutSpans:
    def test_verdict(self):
        """The spans named are dropped, everything else is kept."""
        keep = without_spans("training_single_iteration", "application").start()
        assert keep(span("application")) == "filtered"
        assert keep(IterationEnded(kind="training", duration_ns=1)) == "filtered"
        assert keep(IterationEnded(kind="testing", duration_ns=1)) is None
        assert keep(span("training_loop")) is None

    def test_alias(self):
        """The one name that One Logger writes in upper case means the same."""
        keep = without_spans("TESTING_SINGLE_ITERATION").start()
        assert keep(IterationEnded(kind="testing", duration_ns=1)) == "filtered"


class TestEventsOnSpans:
    def test_go_with_their_span(self):
        """Events on a span that is dropped are dropped with it, until it ends."""
        keep = without_spans("application").start()
        on_it, on_another = SpanEventAdded(span_id=7, name="x"), SpanEventAdded(span_id=8, name="x")
        assert keep(on_it) is None
        keep(span("application", SpanStarted, 7))
        assert (keep(on_it), keep(on_another)) == ("filtered", None)
        keep(span("application", SpanEnded, 7))
        assert keep(on_it) is None

    def test_bounded(self):
        """Spans that never end are forgotten, the oldest first."""
        keep = without_spans("application").start()
        for number in range(1, 2_000):
            keep(span("application", SpanStarted, number))
        assert keep(SpanEventAdded(span_id=1, name="x")) is None
        assert keep(SpanEventAdded(span_id=1_999, name="x")) == "filtered"

    def test_state_of_its_own(self):
        """Each subscription has its own state."""
        rule = without_spans("application")
        first, second = rule.start(), rule.start()
        first(span("application", SpanStarted, 7))
        assert second(SpanEventAdded(span_id=7, name="x")) is None


class TestRule:
    def test_is_a_rule(self):
        """It combines with other rules."""
        found = []
        with Bus() as bus, bus.subscribe(found.append, keep=all_of(without_spans("a"), at_most(1, per=1e6))):
            for name in ("a", "b", "b"):
                bus.log(span(name))
            assert [(stats.handled, stats.filtered, stats.sampled) for stats in bus.stats().handlers] == [(1, 1, 1)]
        assert [event.name for event in found] == ["b"]

    def test_equal(self):
        """Equal rules are equal, in whatever order the names were given."""
        assert without_spans("a", "b") == without_spans("b", "a") != only_spans("a", "b")

    def test_to_wire(self):
        """It says what it is as plain data."""
        assert only_spans("b", "a").to_wire() == ["only_spans", ["a", "b"]]
        assert without_spans("a").to_wire() == ["without_spans", ["a"]]

    @pytest.mark.parametrize("make", [only_spans, without_spans])
    @pytest.mark.parametrize("names", [(), ("",), (7,), (["a"],), tuple(map(str, range(2_000)))])
    def test_wrong(self, make, names):
        """A value that is no name is refused."""
        with pytest.raises(ConfigError, match=f"{make.__name__}\\(names\\): .* give from 1 to 1024 names of spans"):
            make(*names)
