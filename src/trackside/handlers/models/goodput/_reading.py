"""The reading of a process's events: each event changes the known state of the process."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import attrs

from trackside._implementation import native
from trackside.events import (
    Event,
    EventsDropped,
    Heartbeat,
    IterationEnded,
    IterationSpanEnded,
    ProfileSpanEnded,
    RecordFaulted,
    SlicesCounted,
    Source,
    SourceEnded,
    SourceStarted,
    SpanEnded,
    SpanOutOfOrder,
    SpanStarted,
    StepStarted,
    clock,
    span_names,
)
from trackside.handlers.models.goodput._buckets import (
    BY_NAME,
    CUSTOM,
    EVALUATION,
    FAILED,
    FIRST_CUSTOM,
    INSIDE,
    KIND_SHIFT,
    LAST_ELASTIC,
    LOADING,
    NO_STEP,
    OWN_THREAD_ONLY,
    RESTORE,
    STEP,
    STEP_CODE,
    UNSAMPLED,
    WHOLE_STEP,
    Problem,
    kind_of,
)
from trackside.handlers.models.goodput._track import Track
from trackside.handlers.models.liveness import GOOD_ENDS, LifeSigns

NEVER: Final = -1
LATEST_NS: Final = 1 << 62
"""Times from here on, in the year 2116, are impossible."""


@attrs.frozen
class UnendedSpan:
    """A span that began and has not ended yet."""

    start: int
    kind: int
    parent_id: int


@attrs.frozen
class UnendedStep:
    """A step that began and has not ended yet."""

    number: int
    start: int


class ProcessState:
    """
    The state of one process, as far as its events show it.

    Attributes:
        source: Its identity.
        start: The time when it began, in ns since the epoch; `NEVER` as long as nothing is known of it.
        last: Its last proven activity.
        version: The number of its events that were read; it changes whenever anything else does.
        next_seq: The lowest number that its next event can have.
        end_reason: The reason that it gave for its end; None if it did not end.
        heartbeat_interval_ns: As in its heartbeats; None if there was none.
        track: The time of its training thread.
        beside: The time of its data loading in the background.
        open_spans: By id.
        customs: The types of its custom badput, in order of appearance.
        first_step: The lowest step it trained from; `NO_STEP` if it trained none.
        laps: The number of times that its steps began anew without a checkpoint being loaded.
        restored_step: The step of the last checkpoint it loaded; `NO_STEP` if none was given.
        is_restored: Whether it loaded a checkpoint since its last step.
        started_step: The number of the last step whose start was reported.
        started_at: The start of that step; `NEVER` if it has ended.
        started_restored: Whether a checkpoint was loaded between that step and the previous one.
        seen_open: The step or the data loading that was open at its last heartbeat.
        last_iteration_id: The span id of the last iteration that ended.
        trains_in: The thread of its training loop; None if that is the main one.
        slices: Time, active, total and available slices at each change.
        problems: The problems of its events, and how often each occurred.
    """

    __slots__ = (
        "_places",
        "beside",
        "customs",
        "end_reason",
        "first_step",
        "heartbeat_interval_ns",
        "is_restored",
        "laps",
        "last",
        "last_iteration_id",
        "next_seq",
        "open_spans",
        "problems",
        "restored_step",
        "seen_open",
        "slices",
        "source",
        "start",
        "started_at",
        "started_restored",
        "started_step",
        "track",
        "trains_in",
        "version",
    )

    def __init__(self, source: Source) -> None:
        self.source = source
        self.start = self.last = NEVER
        self.version = self.next_seq = 0
        self.end_reason: str | None = None
        self.heartbeat_interval_ns: int | None = None
        self.track, self.beside = Track(), Track()
        self.open_spans: dict[int, UnendedSpan] = {}
        self.customs: list[str] = []
        self._places: dict[str, int] = {}
        self.first_step = self.restored_step = NO_STEP
        self.laps = 0
        self.is_restored = False
        self.started_step, self.started_at, self.started_restored = NO_STEP, NEVER, False
        self.seen_open: UnendedStep | UnendedSpan | None = None
        self.last_iteration_id = 0
        self.trains_in: str | None = None
        self.slices: list[tuple[int, int, int, int]] = []
        self.problems: collections.Counter[str] = collections.Counter()

    @property
    def has_ended(self) -> bool:
        """Whether it reported its end."""
        return self.end_reason is not None

    @property
    def signs(self) -> LifeSigns:
        """Its signs of life, for `liveness`."""
        return LifeSigns(
            last_ns=None if self.last == NEVER else self.last,
            heartbeat_interval_ns=self.heartbeat_interval_ns,
            end_reason=self.end_reason,
        )

    @property
    def is_main(self) -> bool:
        """Whether it is a rank, and not a helper of one."""
        return self.source.role == "main"

    @property
    def open_step(self) -> UnendedStep | None:
        """The step in progress, as far as is known."""
        if self.started_at != NEVER:
            return UnendedStep(self.started_step, self.started_at)
        return self.seen_open if isinstance(self.seen_open, UnendedStep) else None

    def opened(self) -> list[UnendedSpan]:
        """Return the spans in progress, the latest first."""
        found = list(self.open_spans.values())
        if isinstance(self.seen_open, UnendedSpan):
            found.append(self.seen_open)
        return sorted(found, key=lambda span: -span.start)

    def begin_by(self, start: int) -> None:
        """Record that the process had begun by *start*."""
        self.start = min(self.start, start)

    def stretch(self, end: int, duration: int) -> int | None:
        """Return the start of a span that ended at *end*; if it is impossible, count a problem and return None."""
        start = operator.index(end - duration)
        if duration < 0 or start <= 0:
            self.problems[Problem.IMPOSSIBLE_TIME] += 1
            return None
        return start

    def custom(self, name: str) -> int:
        """Return the kind of custom badput of type *name*."""
        place = self._places.get(name)
        if place is None:
            place = self._places[name] = len(self.customs)
            self.customs.append(name)
        return FIRST_CUSTOM + place

    def end_children(self, span_id: int, at_ns: int) -> None:
        """Close the spans that are still open within a span that ended: their ends were lost."""
        if span_id:
            self.close([number for number, span in self.open_spans.items() if span.parent_id == span_id], at_ns)

    def close(self, numbers: Iterable[int], at_ns: int) -> None:
        """Close spans whose end was lost."""
        for number in numbers:
            span = self.open_spans.pop(number)
            self.problems[Problem.NO_END] += 1
            if span.start < at_ns:
                self.track.add(span.start, at_ns, span.kind << KIND_SHIFT)

    def end_step(self, number: int, start: int, end: int, flags: int) -> None:
        """Record the end of a step with a known start and end; its *number* is -1 if not known."""
        if self.started_at != NEVER:
            self.is_restored = self.is_restored or self.started_restored
            self.started_at = NEVER
        if start < end:
            self.complete(self.track.last_step + 1 if number < 0 else number, start, end, flags)

    def complete(self, number: int, start: int, end: int, flags: int) -> None:
        """Add a step that has ended."""
        track = self.track
        number, start, end = operator.index(number), operator.index(start), operator.index(end)
        self.seen_open = None
        if self.first_step == NO_STEP:
            self.first_step = number
        if start >= track.step_end:
            if number < track.last_step + self.is_restored:
                self._go_back(number, start)
            track.add_step(number, start, end, flags)
        elif end > track.step_end:
            self.problems[Problem.OVERLAPPING_STEPS] += 1
            track.add_step(number if number > track.last_step else None, track.step_end, end, flags)
        else:
            self.problems[Problem.OUT_OF_ORDER] += 1
            track.add_late_step(number, start, end, flags)
        self.is_restored = False

    def _go_back(self, number: int, start: int) -> None:
        """Continue at a lower step: from a checkpoint, or because steps are counted anew, for example in each epoch."""
        if self.is_restored:
            self.track.mark_redone_from(number)
            if not self.laps:
                self.first_step = min(self.first_step, number)
        else:
            self.problems[Problem.COUNTED_ANEW] += 1
            self.laps += 1
            self.track.lap_start = start
            self.track.last_step = NO_STEP

    def mend(self) -> None:
        """Remove the stored part of an event with values of the wrong type."""
        self.problems[Problem.MALFORMED] += 1
        self.track.mend()
        self.beside.mend()

    def dump(self) -> dict[str, Any]:
        """Return the state as plain data."""
        seen = self.seen_open
        return {
            "source": self.source.to_wire(),
            "times": [self.start, self.last],
            "events": [self.version, self.next_seq],
            "tracks": [self.track.dump(), self.beside.dump()],
            "open_spans": [[number, *attrs.astuple(span)] for number, span in self.open_spans.items()],
            "life": [self.end_reason, self.heartbeat_interval_ns],
            "flags": [self.is_restored, self.started_restored],
            "steps": [self.first_step, self.laps, self.restored_step, self.last_iteration_id],
            "started": [self.started_step, self.started_at],
            "seen_open": None if seen is None else [isinstance(seen, UnendedStep), *attrs.astuple(seen)],
            "trains_in": self.trains_in,
            "customs": list(self.customs),
            "slices": [list(change) for change in self.slices],
            "problems": [list(item) for item in self.problems.items()],
        }

    @classmethod
    def load(cls, data: Any) -> ProcessState:
        """
        Return the process that `dump` wrote.

        Raises:
            ValueError: if *data* is anything else; values of other types may raise other exceptions.
        """
        process = cls(Source.from_wire(data["source"]))
        process.start, process.last = map(operator.index, data["times"])
        process.version, process.next_seq = map(operator.index, data["events"])
        reason, interval_ns = data["life"]
        process.end_reason = None if reason is None else str(reason)
        process.heartbeat_interval_ns = None if interval_ns is None else operator.index(interval_ns)
        process.is_restored, process.started_restored = map(bool, data["flags"])
        process.track, process.beside = map(Track.load, data["tracks"])
        process.first_step, process.laps, process.restored_step, process.last_iteration_id = map(
            operator.index, data["steps"]
        )
        process.started_step, process.started_at = map(operator.index, data["started"])
        for name in data["customs"]:
            process.custom(str(name))
        process.open_spans = {
            operator.index(number): UnendedSpan(*map(operator.index, span)) for number, *span in data["open_spans"]
        }
        if data["seen_open"] is not None:
            is_step, *seen = data["seen_open"]
            process.seen_open = (UnendedStep if is_step else UnendedSpan)(*map(operator.index, seen))
        process.trains_in = None if data["trains_in"] is None else str(data["trains_in"])
        process.slices = [tuple(map(operator.index, change)) for change in data["slices"]]  # type: ignore[misc]
        process.problems.update({str(name): operator.index(count) for name, count in data["problems"]})
        if not all(map(process._knows, process._kinds())):
            raise ValueError("a kind of time that there is none of")
        return process

    def _kinds(self) -> Iterator[int]:
        yield from self.track.kinds()
        yield from self.beside.kinds()
        yield from (span.kind for span in self.opened())

    def _knows(self, kind: int) -> bool:
        return FIRST_CUSTOM <= kind < FIRST_CUSTOM + len(self.customs) or (0 <= kind <= STEP and kind != CUSTOM)


Reader: TypeAlias = Callable[[ProcessState, Any], None]

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


def read_event(process: ProcessState, event: Event, read: Reader | None) -> None:
    """
    Update *process* from *event*.

    Args:
        process: The process that published it.
        event: The next one of its events.
        read: The entry of `READERS` for it.
    """
    seq = event.seq
    if seq is not None:
        if seq < process.next_seq:
            process.problems[Problem.REPEATED] += 1
            return
        process.next_seq = seq + 1
    process.version += 1
    at = event.at_ns
    if at.__class__ is not int:
        at = operator.index(at)
    if at > process.last:
        if not 0 < at < LATEST_NS:
            process.problems[Problem.IMPOSSIBLE_TIME] += 1
            return
        process.last = at
        if process.start == NEVER:
            process.start = at
    elif at < process.start:
        if at <= 0:
            process.problems[Problem.IMPOSSIBLE_TIME] += 1
            return
        process.start = at
    if read is not None:
        read(process, event)


def skip(process: ProcessState, event: Event) -> None:
    """Ignore a derived event."""


def _on_source_started(process: ProcessState, event: SourceStarted) -> None:
    process.begin_by(event.at_ns)


def _on_source_ended(process: ProcessState, event: SourceEnded) -> None:
    process.end_reason = str(event.reason)
    start, process.started_at, process.seen_open = process.started_at, NEVER, None
    if NEVER != start < event.at_ns and process.end_reason in GOOD_ENDS:
        # The end of the last step is not recorded; a process that ends in good order has completed it.
        process.is_restored = process.started_restored
        process.complete(process.started_step, start, event.at_ns, UNSAMPLED)
    process.close(list(process.open_spans), event.at_ns)


def _on_span_started(process: ProcessState, event: SpanStarted) -> None:
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


def _on_span_ended(process: ProcessState, event: SpanEnded) -> None:
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
        # Only a wait for slices may have begun before this process.
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


def _kind(process: ProcessState, event: SpanStarted | SpanEnded) -> int | None:
    kind = kind_of(event)
    return process.custom(kind) if isinstance(kind, str) else kind


def _restored(process: ProcessState, event: SpanEnded) -> None:
    process.is_restored = True
    step = event.attributes.get(span_names.CURRENT_ITERATION)
    if type(step) is int:
        process.restored_step = step


def _on_iteration(process: ProcessState, event: IterationEnded) -> None:
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
    process.end_step(event.step, start, end, FAILED if event.failed else 0)


def _on_step_started(process: ProcessState, event: StepStarted | SpanStarted) -> None:
    start, before = process.started_at, process.started_step
    number, at = event.step, event.at_ns
    if number.__class__ is not int:
        number = operator.index(number)
    restored = process.is_restored
    if start != NEVER:
        if at <= start or (number == before and not restored):
            process.problems[Problem.REPEATED if number == before else Problem.OUT_OF_ORDER] += 1
            return
        process.is_restored = process.started_restored
        process.complete(before, start, at, 0)
    process.started_step, process.started_at = number, at
    process.started_restored, process.is_restored = restored, False
    if process.first_step == NO_STEP:
        process.first_step = number


def _on_heartbeat(process: ProcessState, event: Heartbeat) -> None:
    process.heartbeat_interval_ns = clock.ns_of(event.interval_s)
    seen, process.seen_open = process.seen_open, None
    found = event.open_spans.get(process.trains_in or _MAIN_THREAD)
    if not found:
        return
    number, name, start = found
    track = process.track
    if number == process.last_iteration_id or not track.step_end <= start <= event.at_ns:
        return  # the span ended while the heartbeat was on its way
    if name in _OF_STEP:
        # The innermost span changes during the step; the step began with the first one seen.
        process.seen_open = seen if isinstance(seen, UnendedStep) else UnendedStep(track.last_step + 1, start)
    elif name == span_names.DATA_LOADING and start >= track.top:
        process.seen_open = UnendedSpan(start, LOADING, 0)


def _on_dropped(process: ProcessState, event: EventsDropped) -> None:
    if event.where == "queue":
        process.problems[Problem.DROPPED] += sum(event.by_type.values())


def _on_faulted(process: ProcessState, event: RecordFaulted) -> None:
    process.problems[event.problem] += 1


def _on_out_of_order(process: ProcessState, event: SpanOutOfOrder) -> None:
    process.problems[f"a span {event.problem}"] += 1


def _on_slices(process: ProcessState, event: SlicesCounted) -> None:
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
    SpanOutOfOrder: _on_out_of_order,
    RecordFaulted: _on_faulted,
    SlicesCounted: _on_slices,
}
"""The function that reads an event, by the event's class or the nearest base of it."""


_BROKEN: Final = (TypeError, ValueError, AttributeError, LookupError)
_USUAL_SPANS: Final = frozenset((SpanEnded, IterationSpanEnded, ProfileSpanEnded))
"""Exactly these classes: a subclass may have another meaning."""
_MAIN: Final = "main"
_TRAINING: Final = "training"
_LOADED: Final = LOADING << KIND_SHIFT
_TIMED: Final = frozenset((*BY_NAME, span_names.TRAINING_ITERATION))
"""The spans whose time has a kind."""


def read_usual(process: ProcessState, source: Source | None, events: Sequence[Event], place: int, before: int) -> int:
    """
    Read *events* from *place* on like `read_event` as long as they are usual, at a half to a third of its cost.

    A usual event comes in order, within the life of a process in which no span is open, and is

    - the end of a span whose time has no kind, or of a loading of data;
    - the end of a training iteration that did not fail, has the number of the previous one or a higher one, and began
      after that ended, with at most one loading of data within it;
    - the start of a step after the start of the previous step, with a higher number and nothing in between.

    Args:
        process: The process whose events are expected.
        source: The source of that process.
        events: The events, perhaps some of another process.
        place: The index of the first event to be read.
        before: An event at or after this time, in ns since the epoch, is not usual.

    Returns:
        The index of the first event that is not usual, which was not read; the number of events if there is none.
    """
    begin, last, next_seq, version = process.start, process.last, process.next_seq, process.version
    if begin <= 0 or process.open_spans or process.seen_open is not None:
        return place
    track = process.track
    event: Any
    try:
        for event in events[place:] if place else events:
            kind, at, seq = event.__class__, event.at_ns, event._seq  # noqa: SLF001  the property would be a call
            if (
                event._source is not source  # noqa: SLF001  as above
                or seq < next_seq
                or type(at) is not int
                or not last <= at < before
            ):
                break
            if kind in _USUAL_SPANS:
                duration, attributes, name = event.duration_ns, event.attributes, event.name
                if (
                    type(duration) is not int
                    or not 0 <= duration <= at - begin
                    or (attributes and attributes.get(span_names.BADPUT_TYPE) is not None)
                ):
                    break
                if name in _TIMED:
                    if name != span_names.DATA_LOADING:
                        break
                    is_own = attributes.get(span_names.THREAD) == process.trains_in and process.source.role == _MAIN
                    if duration:
                        (track if is_own else process.beside).add(at - duration, at, _LOADED)
            elif kind is IterationEnded:
                duration, step, span_id = event.duration_ns, event.step, event.span_id
                if (
                    type(duration) is not int
                    or type(step) is not int
                    or not 0 < duration <= at - begin
                    or not 0 <= track.last_step <= step < LATEST_NS
                    or event.kind != _TRAINING
                    or event.failed
                    or process.is_restored
                    or (process.started_at != NEVER and process.started_restored)
                ):
                    break
                start = at - duration
                if track.top <= start:
                    track.append_step(step, start, at)
                elif (
                    process.started_at != NEVER
                    or process.first_step == NO_STEP
                    or not track.append_over(step, start, at)
                ):
                    break
                process.last_iteration_id, process.started_at = span_id, NEVER
            elif kind is StepStarted:
                step, start, number = event.step, process.started_at, process.started_step
                if (
                    type(step) is not int
                    or start == NEVER
                    or not track.top <= start < at
                    or not begin <= at
                    or not 0 <= track.last_step <= number < step < LATEST_NS
                    or process.started_restored
                    or process.is_restored
                    or process.first_step == NO_STEP
                ):
                    break
                track.append_step(number, start, at)
                process.started_step, process.started_at = step, at
            else:
                break
            last, next_seq = at, seq + 1
            version += 1
    except _BROKEN:
        pass  # an event with a value of the wrong type is not usual
    place += version - process.version
    process.last, process.next_seq, process.version = last, next_seq, version
    return place


if native is not None:
    read_usual = native.compile_goodput(
        read_usual,
        ProcessState,
        Track,
        (Event, SpanEnded, IterationEnded, StepStarted),
        tuple(_USUAL_SPANS),
        _TIMED,
        (span_names.DATA_LOADING, span_names.THREAD, span_names.BADPUT_TYPE, _TRAINING, _MAIN, "role"),
        (NEVER, NO_STEP, LATEST_NS, _LOADED, WHOLE_STEP, _LOADED | INSIDE, STEP_CODE),
    )
