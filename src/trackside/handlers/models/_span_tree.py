"""From what is remembered of a process's spans to what is told of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trackside.events import span_names
from trackside.handlers.models._span_record import Record
from trackside.handlers.models._span_report import (
    Malformation,
    NameTotals,
    OpenSpan,
    SourceSpans,
    SpanError,
    SpanEvent,
    SpanView,
)
from trackside.handlers.models._span_state import SourceState


def source_spans(state: SourceState) -> SourceSpans:
    """Return what is known of one process."""
    return SourceSpans(
        **state.identity,
        started_ns=state.started_ns,
        ended_ns=state.ended_ns,
        end_reason=state.end_reason,
        last_ns=state.last_ns,
        spans=tuple(_views(state)),
        forgotten=state.forgotten,
        open=tuple(_open(state)),
        totals=tuple(NameTotals(name=name, **_named(values)) for name, values in sorted(state.totals.items())),
        errors=tuple(
            SpanError(span_id=span_id, name=name, step=step, at_ns=at_ns, error=error)
            for span_id, name, step, at_ns, error in list(state.errors)
        ),
        malformed=tuple(
            Malformation(name=name, problem=problem, count=count, last_ns=last_ns)
            for (name, problem), (count, last_ns) in sorted(state.malformed.items())
        ),
    )


def _views(state: SourceState) -> Iterator[SpanView]:
    """Walk the tree, each span before those inside it, without recursion: spans may be nested thousands deep."""
    records = {record.id: record for record in state.records()}
    inside: dict[int, list[Record]] = {}
    for record in sorted(records.values(), key=lambda record: (-record.start_ns, -record.id)):
        around = record.parent_id if record.parent_id in records else 0
        inside.setdefault(around, []).append(record)
    inside.setdefault(0, [])
    while inside:
        # First what is inside nothing; what then remains claims to be inside itself, and is told too.
        pending = [(record, 0) for record in inside.pop(min(inside))]
        while pending:
            record, depth = pending.pop()
            yield _view(record, depth)
            pending += [(inner, depth + 1) for inner in inside.pop(record.id, [])]


def _open(state: SourceState) -> Iterable[OpenSpan]:
    long = [
        OpenSpan(
            id=record.id,
            parent_id=record.parent_id,
            name=record.name,
            start_ns=record.start_ns,
            seen_ns=state.last_ns,
            thread=str(record.attributes.get(span_names.THREAD, "")),
        )
        for record in list(state.open.values())
    ]
    short = [
        OpenSpan(id=number, parent_id=0, name=name, start_ns=start_ns, seen_ns=seen_ns, thread=thread)
        for number, (thread, name, start_ns, seen_ns) in list(state.beat.items())
    ]
    return sorted([*long, *short], key=lambda found: (found.start_ns, found.id))


def _view(record: Record, depth: int) -> SpanView:
    return SpanView(
        id=record.id,
        parent_id=record.parent_id,
        depth=depth,
        name=record.name,
        detail=record.detail,
        step=record.step,
        start_ns=record.start_ns,
        duration_ns=record.duration_ns,
        attributes=dict(record.attributes),
        error=record.error,
        failed=record.failed,
        events=tuple(
            SpanEvent(name=name, at_ns=at_ns, attributes=attributes) for name, at_ns, attributes in list(record.events)
        ),
    )


def _named(values: list[int]) -> dict[str, int]:
    return dict(zip(("count", "failed", "total_ns", "min_ns", "max_ns"), values, strict=True))
