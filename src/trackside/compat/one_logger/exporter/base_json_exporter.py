"""Spans and events as JSON objects, one for each record."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any

from trackside.compat.one_logger.core.event import ErrorEvent, Event, TelemetryDataError
from trackside.compat.one_logger.core.span import Span
from trackside.compat.one_logger.exporter.exporter import BaseExporter


class BaseJsonExporter(BaseExporter):
    """
    Passes records, with One Logger's types and names, to a subclass's `_write`.

    A start is written at once, so that a crash cannot lose it. A span that is exported only at its end, such as an
    iteration, is one ``complete`` record if it has no events. The record of a span names the span's parent, unlike One
    Logger's records.
    """

    def __init__(self) -> None:
        super().__init__()
        self._record_count = 0

    def export_start(self, span: Span) -> None:
        """Write a start."""
        super().export_start(span)
        self._record(_about("start", span), start_event=_plain(span.start_event))

    def export_stop(self, span: Span) -> None:
        """Write a stop."""
        super().export_stop(span)
        assert span.stop_event is not None
        self._record(_about("stop", span), stop_event=_plain(span.stop_event))

    def export_complete(self, span: Span) -> None:
        """Write a span that is over, start and stop in one record."""
        self._check_state()
        assert span.stop_event is not None
        events = {"start_event": _plain(span.start_event), "stop_event": _plain(span.stop_event)}
        self._record(_about("complete", span), **events)

    def export_event(self, event: Event, span: Span) -> None:
        """Write an event."""
        super().export_event(event, span)
        self._record({"type": "event", "span_id": str(span.id)}, event=_plain(event))

    def export_error(self, event: ErrorEvent, span: Span) -> None:
        """Write an error."""
        super().export_error(event, span)
        self._record({"type": "application_error", "span_id": str(span.id)}, event=_plain(event))

    def export_telemetry_data_error(self, error: TelemetryDataError) -> None:
        """Write that the telemetry is incomplete."""
        super().export_telemetry_data_error(error)
        self._record({"type": "telemetry_data_error"}, error=_plain(error))

    def _record(self, known: dict[str, Any], **events: dict[str, Any]) -> None:
        self._record_count += 1
        self._write({**known, **events, "count": self._record_count, "pid": os.getpid()})

    @abstractmethod
    def _write(self, json_dict: dict[str, Any]) -> None:
        """Write one record."""


def _about(kind: str, span: Span) -> dict[str, Any]:
    known: dict[str, Any] = {"type": kind, "id": str(span.id), "name": span.name_str}
    if span.parent_id is not None:
        known["parent_id"] = str(span.parent_id)
    if span.attributes:
        known["attributes"] = span.attributes.to_json()
    return known


def _plain(event: Event) -> dict[str, Any]:
    return {"name": event.name_str, "attributes": event.attributes.to_json()}
