"""Spans, as exporters get them and as a job holds them."""

from __future__ import annotations

import enum
import uuid
from typing import TYPE_CHECKING, Any, TypeAlias

from trackside.compat.one_logger._enums import StrEnum, text_of
from trackside.compat.one_logger.core.attributes import Attribute, Attributes, AttributeValue
from trackside.compat.one_logger.core.event import Event, StandardEventName
from trackside.compat.one_logger.core.exceptions import assert_that
from trackside.compat.one_logger.core.time import TracingTimestamp

if TYPE_CHECKING:
    from collections.abc import Mapping

SpanName: TypeAlias = str | enum.Enum


class StandardSpanName(StrEnum):
    """Names of spans that any application may have."""

    APPLICATION = "application"


class StandardSpanAttributeName(StrEnum):
    """Names of attributes that any span may have."""

    DURATION_MSEC = "duration_msec"
    NVTX_COLOR = "nvtx_color"


class NVTXColor(StrEnum):
    """Colours of a span's range in NVTX."""

    UNSET = "unset"
    GREEN = "green"
    BLUE = "blue"
    YELLOW = "yellow"
    PURPLE = "purple"
    RAPIDS = "rapids"
    CYAN = "cyan"
    RED = "red"
    WHITE = "white"
    DARK_GREEN = "darkgreen"
    ORANGE = "orange"


class Span:
    """A named stretch of time with its events and attributes."""

    def __init__(
        self,
        id: uuid.UUID,  # noqa: A002  One Logger's name
        name: SpanName,
        start_event: Event,
        parent_span: Span | None = None,
        span_attributes: Attributes | None = None,
    ) -> None:
        self.id = id
        self.name = name
        self.parent_span = parent_span
        self.parent_id: uuid.UUID | None = None if parent_span is None else parent_span.id
        """The parent's id, which is known even if the parent is published later and has no object yet."""
        self.events: list[Event] = [start_event]
        self._initial = Attributes() if span_attributes is None else span_attributes
        self.updated_attributes: Attributes = type(self._initial)()
        """The attributes that were added or changed since the span was opened."""

    @classmethod
    def create(
        cls,
        name: SpanName,
        parent_span: Span | None = None,
        span_attributes: Attributes | None = None,
        start_event_attributes: Attributes | None = None,
        start_time: TracingTimestamp | None = None,
    ) -> Span:
        """Return a span that begins now or at the given time."""
        begin = Event.create(StandardEventName.SPAN_START, start_event_attributes, start_time)
        return cls(uuid.uuid4(), name, begin, parent_span, span_attributes)

    @property
    def name_str(self) -> str:
        """The name as text."""
        return text_of(self.name)

    @property
    def attributes(self) -> Attributes:
        """All attributes, in an instance of the class of the initial ones."""
        return type(self._initial).merge(self._initial, self.updated_attributes)

    @property
    def start_event(self) -> Event:
        """The first event."""
        return self.events[0]

    @property
    def stop_event(self) -> Event | None:
        """The last event, once the span is closed."""
        return None if self.active else self.events[-1]

    @property
    def active(self) -> bool:
        """Whether the span is open."""
        return self.events[-1].name_str != StandardEventName.SPAN_STOP

    def add_event(self, event: Event) -> Event:
        """
        Add *event*.

        Raises:
            OneLoggerError: if the span is closed.
        """
        assert_that(self.active, f"span {self.name_str!r} is closed; no event can be added")
        self.events.append(event)
        return event

    def add_attribute(self, name: str, value: AttributeValue) -> Attribute:
        """Add a value, or replace it."""
        return self.updated_attributes.add_attribute(Attribute(text_of(name), value))

    def add_attributes(self, attributes: Mapping[str, Attribute]) -> None:
        """Add all of *attributes*, which replace those of the same name."""
        for attribute in attributes.values():
            self.add_attribute(attribute.name, attribute.value)

    def stop(self, stop_event_attributes: Attributes | None = None, stop_time: TracingTimestamp | None = None) -> None:
        """Close the span now or at the given time; a second call changes nothing."""
        if not self.active:
            return
        end = Event.create(StandardEventName.SPAN_STOP, stop_event_attributes, stop_time)
        self.events.append(end)
        began_s, ended_s = (event.timestamp.perf_counter_seconds for event in (self.start_event, end))
        duration = Attribute(StandardSpanAttributeName.DURATION_MSEC.value, int((ended_s - began_s) * 1000))
        self.updated_attributes.add_attribute(duration)

    def duration_msec(self) -> int:
        """
        Return the duration of the span, in ms.

        Raises:
            OneLoggerError: if the span is still open.
        """
        known = self.updated_attributes.get_int_value(StandardSpanAttributeName.DURATION_MSEC.value)
        assert_that(known is not None, f"span {self.name_str!r} is open; it has no duration yet")
        return known or 0

    def to_json(self) -> dict[str, Any]:
        """Return the span as plain data."""
        return {
            "name": self.name_str,
            "id": str(self.id),
            "events": [event.to_json() for event in self.events],
            "attributes": self.attributes.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Span:
        """
        Return the span that `to_json` wrote.

        Raises:
            OneLoggerError: if the name, the id or the events are missing.
        """
        assert_that(all(data.get(key) for key in ("name", "id", "events")), f"{data!r} lacks a name, an id or events")
        first, *rest = map(Event.from_json, data["events"])
        made = cls(uuid.UUID(str(data["id"])), data["name"], first, None, Attributes.from_json(data.get("attributes")))
        made.events.extend(rest)
        return made

    def __repr__(self) -> str:
        return f"<Span {self.name_str!r} {'open' if self.active else 'closed'}>"
