"""The result of `SpanBuilder`, as plain values."""

from __future__ import annotations

from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class SpanEvent:
    """Something that happened within a span."""

    name: str
    at_ns: int
    attributes: dict[str, Any]


@attrs.frozen(kw_only=True)
class SpanView:
    """One span of a tree."""

    id: int
    parent_id: int
    """The span around it, which may be forgotten by now; 0 for none."""
    depth: int
    """How many spans of the same report are around it."""
    name: str
    priority: str
    """``lifecycle``, ``iteration`` or ``profile``."""
    step: int
    start_ns: int
    duration_ns: int | None
    """None while it is open."""
    attributes: dict[str, Any]
    error: dict[str, str] | None
    """``type`` and ``message`` of the exception that left it, with ``traceback`` where it was raised, elsewhere with
    ``raised_in``, the span where it was."""
    failed: bool
    events: tuple[SpanEvent, ...]


@attrs.frozen(kw_only=True)
class OpenSpan:
    """A span that was open when its source was last heard of."""

    id: int
    parent_id: int
    name: str
    start_ns: int
    """Since when."""
    seen_ns: int
    """When it was last known to be open: a short span is known from the last heartbeat alone."""
    thread: str
    """Of a short span, the thread whose innermost it was."""


@attrs.frozen(kw_only=True)
class NameTotals:
    """All spans of one name that ended."""

    name: str
    count: int
    failed: int
    total_ns: int
    min_ns: int
    max_ns: int


@attrs.frozen(kw_only=True)
class SpanError:
    """An exception that was raised in a span."""

    span_id: int
    name: str
    step: int
    at_ns: int
    error: dict[str, str]


@attrs.frozen(kw_only=True)
class Malformation:
    """A kind of disorder among the spans, and how often it was met."""

    name: str
    """The span's name; of the rarer ones ``(others)``."""
    problem: str
    count: int
    last_ns: int


@attrs.frozen(kw_only=True)
class SourceSpans:
    """The spans of one process."""

    source_id: str
    run_id: str
    attempt: int
    role: str
    host: str
    pid: int
    rank: int
    parent_source_id: str
    """The process under whose span it was started; empty if that is not known."""
    parent_span_id: int
    started_ns: int | None
    """None if its beginning was not seen."""
    ended_ns: int | None
    """None if it did not end in good order: it still runs, or died."""
    end_reason: str
    last_ns: int
    """When it was last heard of."""
    spans: tuple[SpanView, ...]
    """The tree, each span before those inside it: long spans, and the latest of the short ones."""
    forgotten: int
    """Spans that ended and are in *totals* alone, for lack of room."""
    open: tuple[OpenSpan, ...]
    """In order of their starts; the last one is what the process was doing."""
    totals: tuple[NameTotals, ...]
    errors: tuple[SpanError, ...]
    """The latest."""
    malformed: tuple[Malformation, ...]


@attrs.frozen(kw_only=True)
class SpanReport:
    """The spans of all processes, as far as they were given."""

    sources: tuple[SourceSpans, ...]
    """By run, attempt, rank, role (main first) and start."""
    missed: int
    """Events that the model should have had and did not get."""
