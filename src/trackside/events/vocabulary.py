"""The core vocabulary: events that trackside itself publishes and its models read."""

from __future__ import annotations

from typing import Any

import attrs

from trackside.events._event import ITERATION, LIFECYCLE, PROFILE, Event, EventOfSpan, event


@event("trackside.source.started", priority=LIFECYCLE)
class SourceStarted(Event):
    """A process began to publish. Published by the bus, first in every stream."""

    identity: dict[str, Any]
    """The `Source` as plain data."""


@event("trackside.source.ended", priority=LIFECYCLE)
class SourceEnded(Event):
    """A process stopped publishing in good order. Published by the bus, last in its stream."""

    reason: str = ""
    """``closed``, ``exit``, or the name of the exception that ended the job."""


@event("trackside.clock.anchored", priority=LIFECYCLE)
class ClockAnchored(Event):
    """The monotonic and the wall clock were read together. Published by the job, once a minute."""

    mono_ns: int
    wall_ns: int
    offset_ns: int
    """The time by which the wall clock has run ahead of this process's ``at_ns`` since the process was anchored."""
    uncertainty_ns: int
    suspended_ns: int = 0
    """The time for which the machine slept since the previous reading; the monotonic clock stood still meanwhile."""


@event("trackside.span.started", priority=LIFECYCLE)
class SpanStarted(EventOfSpan):
    """A long span was opened, so that a crash cannot lose it. Published by the span, at its start."""

    name: str
    attributes: dict[str, Any] = attrs.field(factory=dict)


@event("trackside.span.ended", priority=LIFECYCLE)
class SpanEnded(EventOfSpan):
    """A span was closed. Published by the span, at its end; subclasses have other priorities."""

    name: str
    duration_ns: int
    attributes: dict[str, Any] = attrs.field(factory=dict)
    error: dict[str, str] | None = None
    """``type``, ``message`` and ``traceback`` of the exception that left the span; None if none did."""


@event("trackside.span.ended.iteration", priority=ITERATION)
class IterationSpanEnded(SpanEnded):
    """A span that occurs about once a step was closed. It had no `SpanStarted`."""


@event("trackside.span.ended.profile", priority=PROFILE)
class ProfileSpanEnded(SpanEnded):
    """A span that occurs several times a step was closed. It had no `SpanStarted`."""


@event("trackside.span.event", priority=ITERATION)
class SpanEventAdded(Event):
    """Something happened within the ambient span. Published by the span's owner, at once."""

    name: str
    attributes: dict[str, Any] = attrs.field(factory=dict)


@event("trackside.iteration.ended", priority=ITERATION)
class IterationEnded(EventOfSpan):
    """
    One iteration of a loop ended. Published by the training loop, at the iteration's end.

    It is read as a span too, unless its ``span_id`` is 0.
    """

    kind: str = "training"
    """``training``, ``validation`` or ``testing``."""
    duration_ns: int
    samples: int | None = None
    tokens: int | None = None
    flops: float | None = None
    """Floating-point operations done by this rank in the iteration."""
    loss: float | None = None
    failed: bool = False
    """Whether an exception ended it; a failed iteration is not productive."""


@event("trackside.counter.window", priority=ITERATION)
class CounterWindow(Event):
    """A counter's window closed. Published by a collector, at the end of each window, also of an empty one."""

    name: str
    kind: str = "stat"
    """The instrument: ``counter`` (a sum that only grows), ``stat`` (a distribution) or ``gauge`` (a latest value)."""
    unit: str = ""
    start_ns: int
    end_ns: int
    """The window's bounds, in ns since the epoch."""
    count: int
    """Values added in the window; 0 if there were none."""
    values: dict[str, float] = attrs.field(factory=dict)
    """The aggregations asked for, by name: ``mean``, ``max``, ``p99``, … in the counter's unit."""
    sketch: bytes = b""
    """The window's mergeable sketch; empty if no percentile was asked for."""
    total_count: int
    total_sum: float
    """
    Count and sum since the counter was made, or since an earlier job of the process ended: a lost window costs
    resolution and never the total.
    """
    non_finite: int = 0
    """Samples of the window that were NaN or infinite. NaN is in no figure above; an infinity is in all of them."""
    before_non_finite: int = 0
    """Samples of the window before its first non-finite one."""


@event("trackside.heartbeat", priority=LIFECYCLE)
class Heartbeat(Event):
    """The process is alive. Published by the job, every second unless it is configured otherwise."""

    sequence: int
    """Heartbeats before this one."""
    interval_s: float = 1.0
    """The configured time until the next one, in seconds; it determines when a process counts as silent."""
    counts: dict[str, int] = attrs.field(factory=dict)
    """The bus's counts: ``logged``, ``dropped``, ``failed``, ``in_queue``, …"""
    open_spans: dict[str, list[Any]] = attrs.field(factory=dict)
    """By thread name: id, name and start (ns since the epoch) of the innermost open span."""


@event("trackside.events.dropped", priority=LIFECYCLE)
class EventsDropped(Event):
    """Events were dropped for lack of room. Published by the bus when the next batch went through."""

    by_type: dict[str, int]
    """The number since the last such event, by wire name."""
    where: str = "queue"
    """``queue``, or the name of the handler whose own queue was full."""
    since_ns: int = 0


@event("trackside.handler.suspended", priority=LIFECYCLE)
class HandlerSuspended(Event):
    """A handler that kept failing was suspended. Published by the bus; the handler is tried again later."""

    handler: str
    failures: int
    """Failures in a row."""
    error: str = ""
    """The last failure."""
    retry_after_s: float = 0.0
    """The time after which the bus calls it again, in seconds."""


@event("trackside.event.unknown", priority=ITERATION)
class UnknownEvent(Event):
    """
    An event of a type that this reader does not know, or whose fields do not fit the type.

    Made by decoders, never published: encoding it again gives what was read.
    """

    name: str
    """The wire name that was read."""
    fields: dict[str, Any] = attrs.field(factory=dict)
    name_version: int = 1
