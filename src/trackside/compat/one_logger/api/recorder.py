"""The protocol of a recorder, which opens and closes spans and records events and errors within them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from trackside.compat.one_logger.core.attributes import Attributes
from trackside.compat.one_logger.core.event import ErrorEvent, Event
from trackside.compat.one_logger.core.span import Span, SpanName
from trackside.compat.one_logger.core.time import TracingTimestamp


class Recorder(ABC):
    """Records spans, events and errors."""

    @abstractmethod
    def start(
        self,
        span_name: SpanName,
        span_attributes: Attributes | None = None,
        start_event_attributes: Attributes | None = None,
        start_time: TracingTimestamp | None = None,
        parent_span: Span | None = None,
    ) -> Span:
        """Open a span."""

    @abstractmethod
    def stop(
        self,
        span: Span,
        stop_event_attributes: Attributes | None = None,
        stop_time: TracingTimestamp | None = None,
    ) -> None:
        """Close a span."""

    @abstractmethod
    def event(self, span: Span, event: Event) -> Event:
        """Record an event within a span."""

    @abstractmethod
    def error(self, span: Span, error_message: str, exception: Exception | None = None) -> ErrorEvent:
        """Record an error within a span."""

    @abstractmethod
    def telemetry_data_error(self, error_message: str, attributes: Attributes | None = None) -> None:
        """Record that the telemetry itself is incomplete."""

    @abstractmethod
    def close(self) -> None:
        """Stop recording."""
