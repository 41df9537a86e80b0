"""One Logger's span object over a span of trackside's, for a job to hold while it is open."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, TypeVar

from trackside.bus import default_bus
from trackside.compat.one_logger._bridge import span_uuid
from trackside.compat.one_logger._enums import text_of
from trackside.compat.one_logger.core.attributes import Attribute, Attributes, AttributeValue
from trackside.compat.one_logger.core.event import Event, StandardEventAttributeName, StandardEventName
from trackside.compat.one_logger.core.span import Span
from trackside.compat.one_logger.core.time import TracingTimestamp
from trackside.events import Ambient, SpanEventAdded, ambient, process_source
from trackside.instruments import Span as OurSpan

F = TypeVar("F", bound=Callable[..., Any])

_MOST_EVENTS: Final = 64


class HeldSpan(Span):
    """A One Logger span that delegates to an open span of trackside's, and makes its values only on request."""

    def __init__(self, live: OurSpan, parent_span: Span | None = None) -> None:
        self.live = live
        self.parent_span = parent_span
        self.parent_id: uuid.UUID | None = None if parent_span is None else parent_span.id
        self._id: uuid.UUID | None = None
        self._added: list[Event] = []
        self._way_back: tuple[Ambient, Ambient] | None = None

    def open_within(self, parent: HeldSpan, at_ns: int | None) -> None:
        """Open the span within *parent*, which need not be the current span; closing it restores the current span."""
        around = ambient.get()
        inside_parent = (parent.live.id, around[1])
        self._way_back = inside_parent, around
        ambient.set(inside_parent)
        self.live.open(at_ns=at_ns)

    @property
    def id(self) -> uuid.UUID:  # type: ignore[override]  # an attribute there
        """The span's id, as exporters get it; a random one if the span is not recorded."""
        if self._id is None:
            self._id = span_uuid(process_source().id, self.live.id) if self.live.id else uuid.uuid4()
        return self._id

    @property
    def name(self) -> str:  # type: ignore[override]  # an attribute there
        """The span's name."""
        return self.live.name

    @property
    def attributes(self) -> Attributes:
        """The attributes of the span so far."""
        return Attributes(self.live.attributes if self.live.id else {})

    @property
    def updated_attributes(self) -> Attributes:  # type: ignore[override]  # an attribute there
        """The same as `attributes`: updates are not kept apart."""
        return self.attributes

    @property
    def events(self) -> list[Event]:  # type: ignore[override]  # an attribute there
        """The start event, and the events added by this object."""
        begin = TracingTimestamp.of_ns(self.live.start_ns) if self.live.id else TracingTimestamp.now()
        return [Event(StandardEventName.SPAN_START, begin), *self._added]

    @property
    def active(self) -> bool:
        """Whether the span is open, and a handler wants it."""
        return self.live.is_open

    def add_event(self, event: Event) -> Event:
        """Record *event*."""
        if len(self._added) < _MOST_EVENTS:
            self._added.append(event)
        if self.live.id and default_bus.wants(SpanEventAdded):
            fields = event.attributes.to_json()
            fields.pop(StandardEventAttributeName.TIMESTAMP_MSEC.value, None)
            at_ns = event.timestamp.at_ns
            default_bus.log(SpanEventAdded(at_ns=at_ns, span_id=self.live.id, name=event.name_str, attributes=fields))
        return event

    def add_attribute(self, name: str, value: AttributeValue) -> Attribute:
        """Add a value, or replace it."""
        added = Attribute(text_of(name), value)
        self.live.set(**{added.name: added.value})
        return added

    def add_attributes(self, attributes: Mapping[str, Attribute]) -> None:
        """Add all of *attributes*; they replace those of the same name."""
        for attribute in attributes.values():
            self.add_attribute(attribute.name, attribute.value)

    def stop(self, stop_event_attributes: Attributes | None = None, stop_time: TracingTimestamp | None = None) -> None:
        """Close the span, at *stop_time* or now; a second call does nothing."""
        if not self.live.is_open:
            return
        if stop_event_attributes:
            self.add_attributes(stop_event_attributes)
        self.live.close(at_ns=None if stop_time is None else stop_time.at_ns)
        if self._way_back is not None and ambient.get() is self._way_back[0]:
            ambient.set(self._way_back[1])


class Held:
    """A span of trackside's as a context manager that returns One Logger's span; also a decorator."""

    __slots__ = ("_live",)

    def __init__(self, live: OurSpan) -> None:
        self._live = live

    def __enter__(self) -> HeldSpan:
        return HeldSpan(self._live.open())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        """Return *function* with a span around each call."""
        return self._live(function)
