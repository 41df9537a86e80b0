"""Spans of any name."""

from __future__ import annotations

import contextlib
from types import TracebackType

from trackside.compat.one_logger._enums import text_of
from trackside.compat.one_logger._held import Held
from trackside.compat.one_logger.api.one_logger_provider import OneLoggerProvider
from trackside.compat.one_logger.api.recorder import Recorder
from trackside.compat.one_logger.core.attributes import Attributes
from trackside.compat.one_logger.core.span import Span, SpanName
from trackside.compat.one_logger.recorder.default_recorder import DefaultRecorder, span_called


def get_recorder() -> Recorder:
    """
    Return the process's recorder.

    Raises:
        OneLoggerError: if nothing is configured yet.
    """
    return OneLoggerProvider.instance().recorder


class _Recorded(contextlib.ContextDecorator):
    """A span of the job's own recorder, which is called as One Logger calls it."""

    def __init__(
        self, recorder: Recorder, name: SpanName, attributes: tuple[Attributes | None, Attributes | None]
    ) -> None:
        self._recorder = recorder
        self._name = name
        self._attributes = attributes
        self._open: list[Span] = []

    def __enter__(self) -> Span:
        self._open.append(self._recorder.start(self._name, *self._attributes))
        return self._open[-1]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        span = self._open.pop()
        try:
            if isinstance(error, Exception):
                self._recorder.error(span, f"Error in {text_of(self._name)}: {error}", error)
        finally:
            self._recorder.stop(span)


def timed_span(
    name: SpanName,
    span_attributes: Attributes | None = None,
    start_event_attributes: Attributes | None = None,
) -> Held | _Recorded:
    """
    Return the span *name*; use it with ``with``, or as a decorator.

    Args:
        name: Any text, or an enum's member.
        span_attributes: The attributes of the span.
        start_event_attributes: The attributes of the span's start, which become the span's.
    """
    provider = OneLoggerProvider.instance()
    if provider.one_logger_enabled and not isinstance(provider.recorder, DefaultRecorder):
        return _Recorded(provider.recorder, name, (span_attributes, start_event_attributes))
    return Held(span_called(name, Attributes.merge(start_event_attributes, span_attributes).to_json()))
