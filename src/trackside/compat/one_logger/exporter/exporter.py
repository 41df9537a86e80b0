"""The protocol of an exporter: one call each for a span's start, its stop and the events between."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod

from trackside.compat.one_logger.core.event import ErrorEvent, Event, TelemetryDataError
from trackside.compat.one_logger.core.exceptions import OneLoggerError
from trackside.compat.one_logger.core.span import Span


class ExportError(OneLoggerError):
    """Data cannot be exported."""


class Exporter(ABC):
    """
    Exports spans and events.

    It runs on a thread with a bounded queue of its own: it costs the training nothing, and its exceptions are only
    counted. The spans that it gets are copies.
    """

    @abstractmethod
    def initialize(self) -> None:
        """Get ready; called once, when telemetry is configured."""

    @abstractmethod
    def export_start(self, span: Span) -> None:
        """Export the start of *span*, with the attributes so far."""

    @abstractmethod
    def export_stop(self, span: Span) -> None:
        """Export the end of *span*, with all attributes."""

    @abstractmethod
    def export_event(self, event: Event, span: Span) -> None:
        """Export an event within *span*."""

    @abstractmethod
    def export_error(self, event: ErrorEvent, span: Span) -> None:
        """Export an error within *span*."""

    @abstractmethod
    def export_telemetry_data_error(self, error: TelemetryDataError) -> None:
        """Export that the telemetry itself is incomplete."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources; called once, last."""


class BaseExporter(Exporter):
    """An exporter that refuses to work before it was initialized and after it was closed."""

    class _State(enum.Enum):
        NOT_INITIALIZED = "not initialized"
        READY = "ready"
        CLOSED = "closed"

    def __init__(self) -> None:
        self._state = self._State.NOT_INITIALIZED

    @property
    def ready(self) -> bool:
        """Whether the exporter can be used."""
        return self._state is self._State.READY

    @property
    def closed(self) -> bool:
        """Whether the exporter was closed."""
        return self._state is self._State.CLOSED

    def initialize(self) -> None:
        """Become ready."""
        self._state = self._State.READY

    def export_start(self, span: Span) -> None:  # noqa: ARG002  what is done with it is the subclass's
        """Check that the exporter can be used."""
        self._check_state()

    def export_stop(self, span: Span) -> None:  # noqa: ARG002
        """See `export_start`."""
        self._check_state()

    def export_event(self, event: Event, span: Span) -> None:  # noqa: ARG002
        """See `export_start`."""
        self._check_state()

    def export_error(self, event: ErrorEvent, span: Span) -> None:  # noqa: ARG002
        """See `export_start`."""
        self._check_state()

    def export_telemetry_data_error(self, error: TelemetryDataError) -> None:  # noqa: ARG002
        """See `export_start`."""
        self._check_state()

    def close(self) -> None:
        """Close the exporter."""
        self._state = self._State.CLOSED

    def _check_state(self) -> None:
        """
        Check that the exporter can be used.

        Raises:
            ExportError: if it cannot.
        """
        if not self.ready:
            raise ExportError(f"{type(self).__name__} is {self._state.value}")
