"""Completed spans from span events, for systems that accept a span only when it has ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import attrs

from trackside.events import (
    Event,
    IterationEnded,
    SourceEnded,
    SpanEnded,
    SpanEventAdded,
    SpanStarted,
    span_names,
)
from trackside.handlers.models.spans import SpanEvent

MAX_OPEN_SPANS: Final = 4_096
MAX_SPAN_EVENTS: Final = 128

SPAN_EVENTS: Final = (SpanStarted, SpanEnded, IterationEnded, SpanEventAdded, SourceEnded)
"""The event types that spans are assembled from."""


@attrs.frozen(kw_only=True)
class CompletedSpan:
    """A span from its start to its end, with the ids that it has in its process."""

    id: int
    parent_id: int
    """0 if it has no parent in its process."""
    name: str
    start_ns: int
    end_ns: int
    step: int
    attributes: dict[str, Any]
    span_events: list[SpanEvent]
    error: dict[str, str] | None
    """``type``, ``message`` and ``traceback`` of the exception that ended it, as far as they are known."""
    failed: bool
    event_count: int
    """The number of events that it was assembled from."""
    is_finished: bool = True
    """False if its process ended first."""


class SpanAssembler:
    """
    Assemble the completed spans of one process.

    Memory is bounded: at most 4,096 open spans and 128 events of one span are kept. Beyond that the oldest are dropped
    and counted.
    """

    def __init__(self) -> None:
        self.dropped: int = 0
        """Events that were dropped because too many spans, or events of one span, were open."""
        self._open: dict[int, SpanStarted] = {}
        self._span_events: dict[int, deque[SpanEvent]] = {}

    def add(self, event: Event) -> Iterator[CompletedSpan]:
        """Yield the spans that *event* completes."""
        if isinstance(event, SpanStarted):
            self._open[event.span_id] = event
            self._drop_oldest(self._open)
        elif isinstance(event, SpanEventAdded):
            self._add_span_event(event)
        elif isinstance(event, SpanEnded):
            yield self._ended(event)
        elif isinstance(event, IterationEnded):
            if event.span_id:
                yield self._iteration(event)
        elif isinstance(event, SourceEnded):
            yield from self._unfinished(event.at_ns)

    def _add_span_event(self, event: SpanEventAdded) -> None:
        span_events = self._span_events.setdefault(event.span_id, deque(maxlen=MAX_SPAN_EVENTS))
        self.dropped += len(span_events) == MAX_SPAN_EVENTS
        span_events.append(SpanEvent(name=event.name, at_ns=event.at_ns, attributes=event.attributes))
        self._drop_oldest(self._span_events)

    def _drop_oldest(self, table: dict[int, Any]) -> None:
        if len(table) > MAX_OPEN_SPANS:
            oldest = table.pop(next(iter(table)))
            self.dropped += len(oldest) if isinstance(oldest, deque) else 1

    def _ended(self, event: SpanEnded) -> CompletedSpan:
        was_open = self._open.pop(event.span_id, None) is not None
        return self._completed(
            event, name=event.name, attributes=dict(event.attributes), error=event.error, was_open=was_open
        )

    def _iteration(self, event: IterationEnded) -> CompletedSpan:
        values = {name: getattr(event, name) for name in ("samples", "tokens", "flops", "loss")}
        completed = self._completed(
            event,
            name=span_names.OF_ITERATION.get(event.kind) or f"{event.kind}_single_iteration",
            attributes={f"trackside.{name}": value for name, value in values.items() if value is not None},
        )
        return attrs.evolve(completed, error=_exception_in(completed.span_events), failed=event.failed)

    def _unfinished(self, at_ns: int) -> Iterator[CompletedSpan]:
        """Yield the spans that are open when the process ends, the innermost first."""
        for event in reversed(list(self._open.values())):
            completed = self._completed(event, name=event.name, attributes=dict(event.attributes))
            yield attrs.evolve(completed, end_ns=max(at_ns, event.at_ns), is_finished=False)
        self._open.clear()
        self._span_events.clear()

    def _completed(
        self,
        event: SpanStarted | SpanEnded | IterationEnded,
        *,
        name: str,
        attributes: dict[str, Any],
        error: dict[str, str] | None = None,
        was_open: bool = False,
    ) -> CompletedSpan:
        """Return the span that *event* ends or, if it is unfinished, starts, with the events added to it."""
        span_events = list(self._span_events.pop(event.span_id, ()))
        return CompletedSpan(
            id=event.span_id,
            parent_id=event.parent_span_id,
            name=name,
            start_ns=event.at_ns - max(0, getattr(event, "duration_ns", 0)),
            end_ns=event.at_ns,
            step=event.step,
            attributes=attributes,
            span_events=span_events,
            error=error,
            failed=error is not None,
            event_count=1 + was_open + len(span_events),
        )


def _exception_in(span_events: list[SpanEvent]) -> dict[str, str] | None:
    """Return the last exception among the events of an iteration."""
    for span_event in reversed(span_events):
        attributes = span_event.attributes
        if span_event.name == span_names.ERROR and span_names.EXCEPTION_TYPE in attributes:
            return {
                "type": str(attributes[span_names.EXCEPTION_TYPE]),
                "message": str(attributes.get(span_names.EXCEPTION_MESSAGE, "")),
            }
    return None
