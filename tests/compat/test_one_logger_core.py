"""Attributes, events, spans and times under One Logger's names."""

from __future__ import annotations

import time
import uuid

import pytest

from trackside.compat.one_logger.core.attributes import Attribute, Attributes
from trackside.compat.one_logger.core.event import ErrorEvent, Event, TelemetryDataError
from trackside.compat.one_logger.core.exceptions import OneLoggerError, assert_that
from trackside.compat.one_logger.core.span import NVTXColor, Span, StandardSpanAttributeName, StandardSpanName
from trackside.compat.one_logger.core.time import TracingTimestamp
from trackside.compat.one_logger.training_telemetry.api.attributes import (
    SaveCheckpointSuccessEventAttributes,
    TrainingLoopAttributes,
)
from trackside.events import TracksideError

AT = TracingTimestamp(1_700_000_000.25, 5.0)


class TestAttributes:
    def test_made_from_a_dict(self):
        """Attributes are made from a dict of values, and give them back."""
        assert Attributes({"a": 1, "b": [1.5, 2.5]}).to_json() == {"a": 1, "b": [1.5, 2.5]}

    def test_add(self):
        """Adding an attribute replaces the one of the same name."""
        assert Attributes({"a": 1}).add("a", "x").add("b", True).to_json() == {"a": "x", "b": True}

    def test_add_attributes(self):
        """On update the other's attributes win."""
        attributes = Attributes({"a": 1, "b": 2})
        attributes.add_attributes(Attributes({"b": 3}))
        assert attributes.to_json() == {"a": 1, "b": 3}

    def test_merge(self):
        """Both are merged into an instance of the class this is called on; the second wins."""
        merged = TrainingLoopAttributes.merge(Attributes({"a": 1, "b": 2}), Attributes({"b": 3}))
        assert (type(merged), merged.to_json()) == (TrainingLoopAttributes, {"a": 1, "b": 3})

    def test_merge_of_nothing(self):
        """Merging two empty sets gives an empty one."""
        assert Attributes.merge(None, None).to_json() == {}

    def test_json(self):
        """Attributes that were written are read back."""
        attributes = Attributes({"a": 1, "b": ["x"]})
        assert Attributes.from_json(attributes.to_json()) == attributes

    @pytest.mark.parametrize("value", [[1, "b"], [{}], [1, 2.5]])
    def test_list_of_several_types(self, value):
        """A list holds primitives of one type."""
        with pytest.raises(OneLoggerError, match="'x'"):
            Attribute("x", value)

    def test_other_values(self):
        """A value that is no primitive is kept as text, and nothing is raised for it."""
        assert Attributes({"a": {"b": 1}, "c": None}).to_json() == {"a": "{'b': 1}", "c": None}

    def test_typed(self):
        """Values are read by their type; none is None."""
        attributes = Attributes({"b": True, "i": 3, "f": 2.5, "s": "x"})
        read = (attributes.get_bool_value("b"), attributes.get_int_value("i"), attributes.get_float_value("f"))
        assert (*read, attributes.get_str_value("s"), attributes.get_str_value("none")) == (True, 3, 2.5, "x", None)

    def test_float_takes_an_int(self):
        """An int is a float too."""
        assert Attributes({"i": 3}).get_float_value("i") == 3

    def test_wrong_type(self):
        """A value of another type is an error."""
        with pytest.raises(OneLoggerError):
            Attributes({"s": "x"}).get_int_value("s")


class TestAttributeClasses:
    def test_required(self):
        """A required attribute must be given."""
        with pytest.raises(OneLoggerError, match="train_samples_start"):
            TrainingLoopAttributes.create(train_iterations_start=1)

    def test_none(self):
        """An attribute that is None is left out, and read as None."""
        attributes = TrainingLoopAttributes.create(1, 2, train_tokens_target=None)
        assert (attributes.to_json(), attributes.train_tokens_target) == (
            {"train_iterations_start": 1, "train_samples_start": 2},
            None,
        )

    def test_unknown(self):
        """An attribute that the class does not have is an error."""
        with pytest.raises(OneLoggerError, match="no_such"):
            TrainingLoopAttributes.create(1, 2, no_such=3)
        with pytest.raises(AttributeError):
            TrainingLoopAttributes.create(1, 2).no_such  # noqa: B018

    def test_from_json(self):
        """After reading back, the class's values are properties again."""
        attributes = SaveCheckpointSuccessEventAttributes.from_json({"checkpoint_size": 5})
        assert attributes.checkpoint_size == 5


class TestTracingTimestamp:
    def test_now(self):
        """Now is the wall clock's time and the performance counter's."""
        before, now, after = time.time(), TracingTimestamp.now(), time.time()
        assert before <= now.seconds_since_epoch <= after
        assert abs(now.perf_counter_seconds - time.perf_counter()) < 10

    def test_milliseconds(self):
        """Milliseconds are whole numbers, rounded down."""
        assert TracingTimestamp(1_700_000_000.2509, 0.0).milliseconds_since_epoch == 1_700_000_000_250

    def test_estimated_counter(self):
        """The counter of a moment in the past is as much smaller."""
        past = TracingTimestamp.for_timestamp(time.time() - 100)
        assert time.perf_counter() - past.perf_counter_seconds == pytest.approx(100, abs=1)

    def test_given_counter(self):
        """A counter that is given is taken, also if it is 0."""
        assert TracingTimestamp.for_timestamp(time.time(), 0.0).perf_counter_seconds == 0.0

    def test_eleven_minutes(self):
        """Eleven minutes ago is accepted: the limit is ten hours, as documented."""
        then = time.time() - 660
        assert TracingTimestamp.for_timestamp(then).seconds_since_epoch == then

    @pytest.mark.parametrize("ahead_s", [-11 * 3600, 11 * 3600])
    def test_far_off(self, ahead_s):
        """A moment further away is probably in other units, and refused unless the check is turned off."""
        far_off = time.time() + ahead_s
        with pytest.raises(OneLoggerError, match="ten hours"):
            TracingTimestamp.for_timestamp(far_off)
        assert TracingTimestamp.for_timestamp(far_off, validate_timestamp=False).seconds_since_epoch == far_off

    def test_json(self):
        """A time that was written is read back, also zeros; one that lacks a reading is an error."""
        zero = TracingTimestamp(0.0, 0.0)
        assert TracingTimestamp.from_json(zero.to_json()) == zero
        with pytest.raises(OneLoggerError):
            TracingTimestamp.from_json({"seconds_since_epoch": 1.0})

    def test_equality(self):
        """Both readings make a moment."""
        assert len({AT, TracingTimestamp(1_700_000_000.25, 5.0), TracingTimestamp(1_700_000_000.25, 6.0)}) == 2


class TestEvent:
    def test_timestamp_is_an_attribute(self):
        """The time in milliseconds is among the attributes."""
        event = Event.create("half way", Attributes({"share": 0.5}), AT)
        assert event.attributes.to_json() == {"share": 0.5, "timestamp_msec": 1_700_000_000_250}

    def test_now(self):
        """Without a time the event has the present one."""
        assert abs(Event.create("x").timestamp.seconds_since_epoch - time.time()) < 10

    def test_name_of_an_enum(self):
        """A name may be an enum's member."""
        assert Event.create(StandardSpanName.APPLICATION, None, AT).name_str == "application"

    def test_json(self):
        """An event that was written is read back."""
        event = Event.create("x", Attributes({"a": 1}), AT)
        assert Event.from_json(event.to_json()) == event
        assert len({event, Event.from_json(event.to_json())}) == 1

    def test_incomplete_json(self):
        """An event that lacks a name or a time is an error."""
        with pytest.raises(OneLoggerError):
            Event.from_json({"name": "x"})

    def test_error(self):
        """An error carries its exception."""
        error = ErrorEvent.create("it broke", ValueError("why"))
        assert (error.name_str, error.error_message, error.exception_type, error.exception_message) == (
            "error",
            "it broke",
            "ValueError",
            "why",
        )
        assert "ValueError: why" in error.exception_traceback

    def test_error_without_an_exception(self):
        """An error need not have one."""
        assert ErrorEvent.create("it broke").exception_type is None

    def test_exception_without_a_message(self):
        """Nor need an exception have a message."""
        assert ErrorEvent.create("it broke", ValueError()).exception_message == ""

    def test_error_json(self):
        """An error that was written is read back as one."""
        error = ErrorEvent.create("it broke", ValueError("why"))
        again = Event.from_json(error.to_json())
        assert (type(again), again.exception_message, again) == (ErrorEvent, "why", error)

    def test_error_fields(self):
        """The fields of an error stand beside its attributes; of one without an exception, its message alone."""
        written = ErrorEvent.create("it broke", ValueError("why")).to_json()
        assert (written["error_message"], written["exception_type"], written["exception_message"]) == (
            "it broke",
            "ValueError",
            "why",
        )
        assert written["exception_traceback"] == "ValueError: why\n"
        assert set(ErrorEvent.create("it broke").to_json()) == {"name", "timestamp", "attributes", "error_message"}

    def test_telemetry_data_error(self):
        """A gap in the telemetry has a type of its own."""
        gap = TelemetryDataError.create(TelemetryDataError.ErrorType.NO_TELEMETRY_DATA, "lost")
        sent = gap.attributes.to_json()
        assert (sent["telemetry_data_error_type"], sent["error_message"]) == ("no_telemetry_data", "lost")


class TestSpan:
    def test_start_and_stop(self):
        """A span begins with an event and ends with one, and knows how long it was."""
        span = Span.create("x", start_time=TracingTimestamp(100.0, 5.0))
        span.stop(stop_time=TracingTimestamp(101.0, 6.2509))
        assert [event.name_str for event in span.events] == ["span_start", "span_stop"]
        assert (span.active, span.duration_msec()) == (False, 1250)

    def test_open(self):
        """While it is open there is no stop and no duration."""
        span = Span.create("x")
        assert (span.active, span.stop_event) == (True, None)
        with pytest.raises(OneLoggerError):
            span.duration_msec()

    def test_stop_twice(self):
        """A second stop changes nothing."""
        span = Span.create("x")
        span.stop(stop_time=TracingTimestamp(101.0, 6.0))
        span.stop(stop_time=TracingTimestamp(999.0, 999.0))
        assert span.stop_event.timestamp == TracingTimestamp(101.0, 6.0)

    def test_event_on_a_closed_span(self):
        """No event can be added to a closed span; attributes can."""
        span = Span.create("x")
        span.stop()
        span.add_attribute("a", 1)
        with pytest.raises(OneLoggerError):
            span.add_event(Event.create("late"))
        assert span.attributes.to_json()["a"] == 1

    def test_changed_attributes(self):
        """Attributes that were added later are kept apart; both together are of the class of the first."""
        span = Span.create("x", span_attributes=TrainingLoopAttributes.create(1, 2))
        span.add_attribute(StandardSpanAttributeName.NVTX_COLOR, NVTXColor.RAPIDS)
        assert span.updated_attributes.to_json() == {"nvtx_color": "rapids"}
        assert (type(span.attributes), span.attributes.train_samples_start) == (TrainingLoopAttributes, 2)

    def test_parent(self):
        """A span has its parent."""
        parent = Span.create("outer")
        child = Span.create("inner", parent_span=parent)
        assert (child.parent_span, child.parent_id) == (parent, parent.id)

    def test_json(self):
        """A span that was written is read back."""
        span = Span.create("x", span_attributes=Attributes({"a": 1}))
        span.stop()
        again = Span.from_json(span.to_json())
        assert (again.id, again.name, again.events, again.active) == (span.id, "x", span.events, False)
        assert type(again.id) is uuid.UUID


class TestErrors:
    def test_ours(self):
        """A caller that catches One Logger's errors catches all of trackside's."""
        assert OneLoggerError is TracksideError

    def test_assert_that(self):
        """A broken condition is One Logger's error."""
        assert_that(True, "fine")
        with pytest.raises(OneLoggerError, match=r"^not fine$"):
            assert_that(False, "not fine")
