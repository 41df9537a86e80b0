"""What comes in every step, learnt from in one go: by `take` it costs twice to three times as much."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from trackside.events import (
    Event,
    IterationEnded,
    IterationSpanEnded,
    ProfileSpanEnded,
    Source,
    SpanEnded,
    span_names,
)
from trackside.handlers.models.goodput._archive import NO_STEP
from trackside.handlers.models.goodput._buckets import BY_NAME, KIND_SHIFT, LOADING
from trackside.handlers.models.goodput._process import LATEST_NS, NEVER, Process

Usual: TypeAlias = Callable[[Process, "Source | None", Any], bool]

_BROKEN: Final = (TypeError, ValueError, AttributeError, LookupError)
_MAIN: Final = "main"
_TRAINING: Final = "training"
_LOADED: Final = LOADING << KIND_SHIFT
_TELLING: Final = frozenset((*BY_NAME, span_names.TRAINING_ITERATION))
"""The spans that say something about time."""


def take_span(process: Process, source: Source | None, event: SpanEnded) -> bool:
    """
    Learn from the end of a span, in the usual case; False, and nothing is learnt, in any other.

    Usual is a span in its turn, within the life of its process and while nothing is open in that, which says nothing
    about time or is a loading of data.

    Args:
        process: Whose turn it is.
        source: Who that is.
        event: The next one; perhaps another process's.
    """
    try:
        end, duration, attributes = event.at_ns, event.duration_ns, event.attributes
        seq = event._seq  # noqa: SLF001  the property would be a call
        name = event.name
        if (
            event._source is not source  # noqa: SLF001  as above
            or seq < process.next_seq
            or type(end) is not int
            or type(duration) is not int
            or duration < 0
            or not process.last <= end < LATEST_NS
            or not 0 < process.start <= end - duration
            or process.open_spans
            or process.seen_open is not None
            or (attributes and attributes.get(span_names.BADPUT_TYPE) is not None)
        ):
            return False
        is_loading = name in _TELLING
        if is_loading:
            if name != span_names.DATA_LOADING:
                return False
            thread = attributes.get(span_names.THREAD)
    except _BROKEN:
        return False
    process.next_seq = seq + 1
    process.version += 1
    process.last = end
    if is_loading and duration:
        is_own = thread == process.trains_in and process.source.role == _MAIN
        (process.track if is_own else process.beside).add(end - duration, end, _LOADED)
    return True


def take_iteration(process: Process, source: Source | None, event: IterationEnded) -> bool:
    """
    Learn from the end of an iteration, in the usual case; False, and nothing is learnt, in any other.

    Usual is a step of training that did not fail, has the number of the one before or a higher one and began after
    that ended, with at most a loading of data within it.

    Args:
        process: As for `take_span`.
        source: As for `take_span`.
        event: As for `take_span`.
    """
    try:
        end, duration, step = event.at_ns, event.duration_ns, event.step
        seq = event._seq  # noqa: SLF001  the property would be a call
        track = process.track
        if (
            event._source is not source  # noqa: SLF001  as above
            or seq < process.next_seq
            or type(end) is not int
            or type(duration) is not int
            or type(step) is not int
            or duration <= 0
            or not process.last <= end < LATEST_NS
            or not 0 < process.start <= end - duration
            or not 0 <= track.last_step <= step < LATEST_NS
            or event.kind != _TRAINING
            or event.failed
            or process.is_restored
            or process.open_spans
        ):
            return False
    except _BROKEN:
        return False
    start = end - duration
    if track.top <= start:
        track.append_step(step, start, end)
    elif process.started_at != NEVER or process.first_step == NO_STEP or not track.append_over(step, start, end):
        return False
    process.next_seq = seq + 1
    process.version += 1
    process.last = end
    process.last_iteration_id = event.id
    process.started_at, process.seen_open = NEVER, None
    return True


USUAL: Final[Mapping[type[Event], Usual]] = {
    SpanEnded: take_span,
    IterationSpanEnded: take_span,
    ProfileSpanEnded: take_span,
    IterationEnded: take_iteration,
}
"""What to try first with an event, by its class; not by a base of it, which may have been given another meaning."""
