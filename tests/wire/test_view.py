"""A frame as models read it: by type in columns, or event by event."""

from __future__ import annotations

import pytest

from processes import numbered
from trackside.events import Event, IterationEnded, Source, SpanEnded, event
from trackside.handlers.models import (
    ClockOffsets,
    CounterBoard,
    DerivingModel,
    GoodputAccumulator,
    Model,
    SpanBuilder,
    TrainingMetrics,
)
from trackside.handlers.models.goodput import GoodputMonitor
from trackside.handlers.models.scores import ScoreAggregator
from trackside.wire import FrameView, deliver, views

HERE = Source(id="here")
THERE = Source(id="there")


@event("tests.view.noted")
class Noted(Event):
    """An event with a value."""

    value: int = 0


@event("tests.view.noted_twice")
class NotedTwice(Noted):
    """A derived event with another value."""

    again: int = 0


@event("tests.view.added_up", derived=True)
class AddedUp(Noted):
    """An event that models derive."""


@pytest.fixture
def frame():
    """Return a frame of several types, alternating."""
    events = [Noted(value=1), IterationEnded(duration_ns=5, step=3), NotedTwice(value=2), AddedUp(value=9)]
    return FrameView(HERE, numbered([*events, Noted(value=3)], HERE, 10))


class TestColumns:
    def test_base_type_merges_subclasses(self, frame):
        """A base type's columns hold its subclasses' events too, in the order of their numbers."""
        columns = frame.columns(Noted)

        assert columns["value"] == [1, 2, 3]
        assert columns.seqs == [10, 12, 14]

    def test_envelope(self, frame):
        """The fields of the envelope are columns as well."""
        assert frame.columns(IterationEnded)["step"] == [3]

    def test_rows(self, frame):
        """Several fields can be read together, one tuple an event."""
        assert list(frame.columns(Noted).rows("seq", "value")) == [(10, 1), (12, 2), (14, 3)]

    def test_absent_type(self, frame):
        """For a type without events in the frame, the columns are empty."""
        columns = frame.columns(SpanEnded)

        assert (len(columns), columns.seqs, columns["name"]) == (0, [], [])

    def test_derived_only_if_asked_for(self, frame):
        """A derived event is in the columns of its own type and in those of no base that is not derived."""
        assert frame.columns(AddedUp)["value"] == [9]
        assert 9 not in frame.columns(Noted)["value"]

    def test_no_events(self):
        """A frame that only accounts for losses has no columns."""
        assert len(FrameView(HERE, []).columns(Event)) == 0


class TestInOrder:
    def test_of_some_types(self, frame):
        """Events of several types come in the order of their numbers."""
        assert [one.seq for one in frame.of(NotedTwice, IterationEnded)] == [11, 12]

    def test_all_but_derived(self, frame):
        """For the base of all events these are all that are not derived."""
        assert [one.seq for one in frame.of(Event)] == [10, 11, 12, 14]

    def test_one_type_only(self):
        """A frame of one type gives back its events without a copy."""
        events = numbered([Noted(value=1), Noted(value=2)], HERE)

        assert FrameView(HERE, events).of(Noted) is events


class TestViews:
    def test_stretches_of_a_source(self):
        """Merged events are split where the source changes, and nowhere else."""
        events = [*numbered([Noted(), Noted()], HERE), *numbered([Noted()], THERE), *numbered([Noted()], HERE, 2)]

        assert [(view.source, len(view)) for view in views(events)] == [(HERE, 2), (THERE, 1), (HERE, 1)]

    def test_bounded(self):
        """A long stretch comes in several views, so that no whole log waits in memory."""
        events = numbered([Noted() for _ in range(2_500)], HERE)

        assert [len(view) for view in views(iter(events))] == [1_024, 1_024, 452]


class TestDeliver:
    def test_to_a_callable(self, frame):
        """A plain callable gets the events one by one, without the derived ones."""
        seen = []
        deliver(seen.append, frame)

        assert [one.seq for one in seen] == [10, 11, 12, 14]


@pytest.mark.parametrize(
    "make",
    [ClockOffsets, CounterBoard, GoodputAccumulator, GoodputMonitor, ScoreAggregator, SpanBuilder, TrainingMetrics],
)
def test_models_have_the_protocol(make):
    """Every model of the project has all methods of the protocol."""
    assert isinstance(make(), Model)


@pytest.mark.parametrize("make", [GoodputMonitor, ScoreAggregator, TrainingMetrics])
def test_deriving_models_can_be_given_publish(make):
    """Every model that derives events has a `publish` that is set when it is subscribed."""
    assert isinstance(make(), DerivingModel)
    assert make().publish is None
