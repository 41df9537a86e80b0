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
    Carries spans and events out.

    It has a thread and a bounded queue of its own: what it does costs the training nothing, and what it raises is
    counted, and nothing else. The spans it gets are its own.
    """

    @abstractmethod
    def initialize(self) -> None:
        """Get ready; called once, when telemetry is configured."""

    @abstractmethod
    def export_start(self, span: Span) -> None:
        """Export that *span* began, with what is known of it."""

    @abstractmethod
    def export_stop(self, span: Span) -> None:
        """Export that *span* ended, with all that is known of it."""

    @abstractmethod
    def export_event(self, event: Event, span: Span) -> None:
        """Export what happened within *span*."""

    @abstractmethod
    def export_error(self, event: ErrorEvent, span: Span) -> None:
        """Export an error within *span*."""

    @abstractmethod
    def export_telemetry_data_error(self, error: TelemetryDataError) -> None:
        """Export that the telemetry itself lacks something."""

    @abstractmethod
    def close(self) -> None:
        """Release what is held; called once, last."""


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
        """Whether it can be used."""
        return self._state is self._State.READY

    @property
    def closed(self) -> bool:
        """Whether it is done."""
        return self._state is self._State.CLOSED

    def initialize(self) -> None:
        """Be ready from now on."""
        self._state = self._State.READY

    def export_start(self, span: Span) -> None:  # noqa: ARG002  what is done with it is the subclass's
        """Check that it can be used, as the next four do."""
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
        """Be done."""
        self._state = self._State.CLOSED

    def _check_state(self) -> None:
        """
        Check that it can be used.

        Raises:
            ExportError: if it cannot.
        """
        if not self.ready:
            raise ExportError(f"{type(self).__name__} is {self._state.value}")
