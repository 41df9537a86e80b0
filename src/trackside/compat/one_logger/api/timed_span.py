"""Spans of any name."""

from __future__ import annotations

from trackside.compat.one_logger._held import Held
from trackside.compat.one_logger.api.one_logger_provider import OneLoggerProvider
from trackside.compat.one_logger.api.recorder import Recorder
from trackside.compat.one_logger.core.attributes import Attributes
from trackside.compat.one_logger.core.span import SpanName
from trackside.compat.one_logger.recorder.default_recorder import span_called


def get_recorder() -> Recorder:
    """
    Return the process's recorder.

    Raises:
        OneLoggerError: if nothing is configured yet.
    """
    return OneLoggerProvider.instance().recorder


def timed_span(
    name: SpanName,
    span_attributes: Attributes | None = None,
    start_event_attributes: Attributes | None = None,
) -> Held:
    """
    Return the span *name*; use it with ``with``, or as a decorator.

    Args:
        name: Any text, or an enum's member.
        span_attributes: What is known of it.
        start_event_attributes: What is known of its start, which is said of the span.
    """
    return Held(span_called(name, Attributes.merge(start_event_attributes, span_attributes).to_json()))
