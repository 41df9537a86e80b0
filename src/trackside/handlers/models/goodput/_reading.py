"""The reading of a process's events: what each one changes in what is known of the process."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from trackside.events import (
    Event,
    EventsDropped,
    Heartbeat,
    IterationEnded,
    RecordFaulted,
    SlicesCounted,
    SourceEnded,
    SourceStarted,
    SpanEnded,
    SpanOutOfOrder,
    SpanStarted,
    StepStarted,
    span_names,
)
from trackside.handlers.models.goodput import _problems as problems
from trackside.handlers.models.goodput._archive import NO_STEP
from trackside.handlers.models.goodput._buckets import (
    EVALUATION,
    FAILED,
    KIND_SHIFT,
    LAST_ELASTIC,
    LOADING,
    OWN_THREAD_ONLY,
    RESTORE,
    UNSAMPLED,
    kind_of,
)
from trackside.handlers.models.goodput._process import LATEST_NS, NEVER, OpenStep, Process, UnendedSpan

Reader: TypeAlias = Callable[[Process, Any], None]

_MAIN_THREAD: Final = "MainThread"
_OF_STEP: Final = frozenset(
    {
        span_names.TRAINING_ITERATION,
        span_names.MODEL_FORWARD,
        span_names.ZERO_GRAD,
        span_names.MODEL_BACKWARD,
        span_names.GRADIENT_SYNCHRONIZATION,
        span_names.OPTIMIZER_UPDATE,
    }
)
"""A thread whose innermost open span is one of these is within a step."""


def read_event(process: Process, event: Event, read: Reader | None) -> None:
    """
    Learn from *event*.

    Args:
        process: Who published it.
        event: The next one of its events.
        read: The entry of `READERS` for it.
    """
    seq = event.seq
    if seq is not None:
        if seq < process.next_seq:
            process.problems[problems.REPEATED] += 1
            return
        process.next_seq = seq + 1
    process.version += 1
    at = event.at_ns
    if at.__class__ is not int:
        at = operator.index(at)
    if at > process.last:
        if not 0 < at < LATEST_NS:
            process.problems[problems.IMPOSSIBLE_TIME] += 1
            return
        process.last = at
        if process.start == NEVER:
            process.start = at
    elif at < process.start:
        if at <= 0:
            process.problems[problems.IMPOSSIBLE_TIME] += 1
            return
        process.start = at
    if read is not None:
        read(process, event)


def skip(process: Process, event: Event) -> None:
    """Learn nothing from an event that was derived from others."""


def _on_source_started(process: Process, event: SourceStarted) -> None:
    process.begin_by(event.at_ns)


def _on_source_ended(process: Process, event: SourceEnded) -> None:
    process.end_reason = str(event.reason)
    start, process.started_at, process.seen_open = process.started_at, NEVER, None
    if NEVER != start < event.at_ns:
        # The end of the last step is not recorded; a process that comes to a good end has done it.
        process.is_restored = process.started_restored
        process.complete(process.started_step, start, event.at_ns, UNSAMPLED)
    process.close(list(process.open_spans), event.at_ns)


def _on_span_started(process: Process, event: SpanStarted) -> None:
    thread = event.attributes.get(span_names.THREAD)
    if event.name == span_names.TRAINING_LOOP:
        process.trains_in = thread
    if event.name == span_names.TRAINING_ITERATION:
        _on_step_started(process, event)
        return
    kind = _kind(process, event)
    if kind is not None and (kind not in OWN_THREAD_ONLY or thread == process.trains_in):
        process.open_spans[event.span_id] = UnendedSpan(event.at_ns, kind, event.parent_span_id)
        if kind == RESTORE:
            process.is_restored = True


def _on_span_ended(process: Process, event: SpanEnded) -> None:
    end = event.at_ns
    start = process.stretch(end, event.duration_ns)
    if process.open_spans:
        process.open_spans.pop(event.span_id, None)
        process.end_children(event.span_id, end)
    if start is None:
        return
    seen = process.seen_open
    if isinstance(seen, UnendedSpan) and seen.start <= start:
        process.seen_open = None
    if event.name == span_names.TRAINING_ITERATION:
        process.begin_by(start)
        process.end_step(event.step, start, end, FAILED if event.error else 0)
        return
    kind = _kind(process, event)
    if kind is None or kind > LAST_ELASTIC:
        # A wait for slices may have begun before this process did; nothing else has.
        process.begin_by(start)
    if kind is None or start == end:
        return
    if kind == RESTORE:
        _restored(process, event)
    if kind not in OWN_THREAD_ONLY or (
        process.is_main and event.attributes.get(span_names.THREAD) == process.trains_in
    ):
        process.track.add(start, end, kind << KIND_SHIFT)
    elif kind == LOADING:
        process.beside.add(start, end, kind << KIND_SHIFT)


def _kind(process: Process, event: SpanStarted | SpanEnded) -> int | None:
    kind = kind_of(event)
    return process.custom(kind) if isinstance(kind, str) else kind


def _restored(process: Process, event: SpanEnded) -> None:
    process.is_restored = True
    step = event.attributes.get(span_names.CURRENT_ITERATION)
    if type(step) is int:
        process.restored_step = step


def _on_iteration(process: Process, event: IterationEnded) -> None:
    end, duration = event.at_ns, event.duration_ns
    start = end - duration
    if start < process.start or duration <= 0:
        if process.stretch(end, duration) is None:
            return
        process.begin_by(start)
    process.last_iteration_id = event.span_id
    if process.open_spans:
        process.end_children(event.span_id, end)
    if event.kind != "training":
        if duration:
            process.track.add(start, end, EVALUATION << KIND_SHIFT)
        return
    track = process.track
    usual = track.top <= start < end and 0 <= track.last_step <= event.step
    if usual and not event.failed and not process.is_restored:
        track.append_step(event.step, start, end)
        process.started_at, process.seen_open = NEVER, None
    else:
        process.end_step(event.step, start, end, FAILED if event.failed else 0)


def _on_step_started(process: Process, event: StepStarted | SpanStarted) -> None:
    start, before = process.started_at, process.started_step
    number, at = event.step, event.at_ns
    if number.__class__ is not int:
        number = operator.index(number)
    restored = process.is_restored
    if start != NEVER:
        track = process.track
        usual = track.top <= start < at and 0 <= track.last_step <= before < number
        if usual and not process.started_restored:
            track.append_step(before, start, at)
        elif at <= start or (number == before and not restored):
            process.problems[problems.REPEATED if number == before else problems.OUT_OF_ORDER] += 1
            return
        else:
            process.is_restored = process.started_restored
            process.complete(before, start, at, 0)
    process.started_step, process.started_at = number, at
    process.started_restored, process.is_restored = restored, False
    if process.first_step == NO_STEP:
        process.first_step = number


def _on_heartbeat(process: Process, event: Heartbeat) -> None:
    process.heartbeat_interval_ns = round(event.interval_s * 1e9)
    seen, process.seen_open = process.seen_open, None
    found = event.open_spans.get(process.trains_in or _MAIN_THREAD)
    if not found:
        return
    number, name, start = found
    track = process.track
    if number == process.last_iteration_id or not track.step_end <= start <= event.at_ns:
        return  # the span ended while the heartbeat was on its way
    if name in _OF_STEP:
        # The innermost span changes as the step goes on; the step began with the first one seen.
        process.seen_open = seen if isinstance(seen, OpenStep) else OpenStep(track.last_step + 1, start)
    elif name == span_names.DATA_LOADING and start >= track.top:
        process.seen_open = UnendedSpan(start, LOADING, 0)


def _on_dropped(process: Process, event: EventsDropped) -> None:
    if event.where == "queue":
        process.problems[problems.DROPPED] += sum(event.by_type.values())


def _on_faulted(process: Process, event: RecordFaulted) -> None:
    process.problems[event.problem] += 1


def _on_misplaced(process: Process, event: SpanOutOfOrder) -> None:
    process.problems[f"a span {event.problem}"] += 1


def _on_slices(process: Process, event: SlicesCounted) -> None:
    active, total, available = map(operator.index, (event.active, event.total, event.available))
    process.slices.append((event.at_ns, active, total, available))


READERS: Final[dict[type[Event], Reader]] = {
    SourceStarted: _on_source_started,
    SourceEnded: _on_source_ended,
    SpanStarted: _on_span_started,
    SpanEnded: _on_span_ended,
    IterationEnded: _on_iteration,
    StepStarted: _on_step_started,
    Heartbeat: _on_heartbeat,
    EventsDropped: _on_dropped,
    SpanOutOfOrder: _on_misplaced,
    RecordFaulted: _on_faulted,
    SlicesCounted: _on_slices,
}
"""What to do with an event, by its class or the nearest base of it."""
