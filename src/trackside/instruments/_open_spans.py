"""The spans that are open at this moment."""

from __future__ import annotations

import threading
from typing import Any, Final

from trackside.events import ambient, span_names
from trackside.instruments._span import Span, opened

_OF_EVALUATION: Final = frozenset(
    {
        span_names.VALIDATION_LOOP,
        span_names.TESTING_LOOP,
        span_names.VALIDATION_ITERATION,
        span_names.TESTING_ITERATION,
    }
)


def is_innermost(span: Span) -> bool:
    """Return whether *span* is the innermost open one of the calling thread or task."""
    return ambient.get()[0] == span.id


def is_within(span: Span, other: Span) -> bool:
    """Return whether *span* was opened inside *other*, at any depth, both being open."""
    spans = opened()
    around = spans.get(span.parent_id) if span.id else None
    while around is not None and around is not other:
        around = spans.get(around.parent_id)
    return around is not None


def is_evaluating() -> bool:
    """Return whether any span of a validation or a test is open in this process."""
    return any(span.name in _OF_EVALUATION for span in list(opened().values()))


def open_spans() -> dict[str, list[Any]]:
    """
    Return the innermost open span of each thread, by the thread's name: id, name and start (ns since the epoch).

    What a `Heartbeat` carries. Of tasks that share a thread it is the one whose span was opened last.
    """
    innermost: dict[int, Span] = {}
    for found in list(opened().values()):
        known = innermost.get(found.thread_id)
        if known is None or found.id > known.id:
            innermost[found.thread_id] = found
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    spans: dict[str, list[Any]] = {}
    for ident, found in innermost.items():
        name = names.get(ident, f"thread {ident}")
        spans[f"{name} ({ident})" if name in spans else name] = [found.id, found.name, found.start_ns]
    return spans
