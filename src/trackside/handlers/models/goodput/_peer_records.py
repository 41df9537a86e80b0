"""
ml-goodput-measurement's records, read as events.

Its format has only points in time, in seconds: it has no ends of steps, one writer and no attempts. An attempt begins
with a job start. Without one, for example at the beginning of a log that was cut, it begins with the first record, with
an initialization after steps, or with a step that was done before.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from trackside.events import (
    Event,
    ProfileSpanEnded,
    RecordFaulted,
    SlicesCounted,
    Source,
    SourceEnded,
    SourceStarted,
    SpanEnded,
    SpanStarted,
    StepStarted,
    span_names,
)
from trackside.handlers.models.goodput._buckets import (
    ELASTIC_REINITIALIZATION,
    ELASTIC_SCALE_UP,
    ELASTIC_SLICE_DOWN,
    TRAINING_PREP,
)

_MOST: Final = 1 << 62
"""Integers from here on are not accepted as counts: JSON has integers of any size, but events have not."""
_STEP_KEYS: Final = 3
"""The job's name, the step and its start."""
_MOST_RECORD_CHARS: Final = 200
"""The most characters that are kept of a record that could not be used."""

_NO_TIME: Final = "a record whose time is no number of seconds since the epoch"
_NO_RECORD: Final = "a record that is no object"
_UNKNOWN: Final = "a record with unknown keys"
_NO_STEP: Final = "a step record without a whole number"
_NO_START: Final = "an end without a start"
_STARTED_AGAIN: Final = "a start without an end"
_NO_JOB_START: Final = "an attempt without a job start"
_NO_PLACE: Final = "a checkpoint record without a start and a duration"

_EARLIEST_S: Final = 946_684_800.0
_LATEST_S: Final = 4e9
"""The years 2000 and 2096. A clock that was never set shows 1970, and such a record would make the job decades long."""

_SPANS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "tpu_init": (span_names.DISTRIBUTED_INIT, {}),
    "training_prep": ("training_preparation", {span_names.BADPUT_TYPE: TRAINING_PREP}),
    "data_loading": (span_names.DATA_LOADING, {}),
    "elastic_reinit": ("elastic_reinitialization", {span_names.BADPUT_TYPE: ELASTIC_REINITIALIZATION}),
}
_TYPED: Final = {"custom_badput_event": "custom_badput_event_type", "elastic_wait": "elastic_wait_event_type"}
_BESIDE_STEPS: Final = {span_names.THREAD: "loader"}
"""The attributes of a load that steps do not wait for: it is not on the training thread."""
_INITIALIZING: Final = ("tpu_init", "training_prep")
_POINTS: Final = {f"{what}_{end}_time": (what, end) for what in (*_SPANS, *_TYPED) for end in ("start", "end")}
_CHECKPOINTS: Final = {
    "save": (span_names.CHECKPOINT_SAVE_SYNC, ("checkpoint_manager_blocking", "checkpointer_blocking")),
    "restore": (span_names.CHECKPOINT_LOAD, ("checkpoint_manager", "checkpointer")),
    "emergency_restore": (span_names.CHECKPOINT_LOAD, ("checkpoint_manager", "checkpointer")),
}
_KNOWN: Final = frozenset(
    {
        "job_name",
        "job_start_time",
        "job_end_time",
        "step_count",
        "step_start_time",
        "active_slices",
        "total_slices",
        "available_slices",
        "elastic_slice_counts_timestamp",
        *_POINTS,
        *_TYPED.values(),
    }
)

_new: Final[Callable[[type[Any]], Any]] = object.__new__
_start_ns: Final = operator.attrgetter("start_ns")


class _BadTimeError(Exception):
    """A record's time is invalid."""


@attrs.frozen
class _PairStart:
    """A pair of a start and an end, of which only the start was read."""

    id: int
    start_ns: int
    name: str
    attributes: dict[str, Any]


@attrs.define
class _RecordedAttempt:
    """The records from one job start to the next."""

    source: Source
    start_ns: int
    seq: int = 0
    last_ns: int = 0


class _RecordedJob:
    """The records of one job name so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.attempts: list[_RecordedAttempt] = []
        self.last_step = -1
        self.open: dict[tuple[str, str], _PairStart] = {}
        self.is_running = False
        self._now = _RecordedAttempt(Source.unknown(""), 0)
        self._last_id = 0
        self._unplaced: list[tuple[str, object]] = []

    def stamp(self, event: Event) -> Event:
        """Return *event* as the next one of the attempt."""
        return _stamped(event, self._now)

    def begin(self, at_ns: int) -> Iterator[Event]:
        """Begin the next attempt."""
        number = len(self.attempts)
        source = Source(id=f"{self.name}#{number}", run_id=self.name, session_tag=self.name, attempt=number)
        self._now = _RecordedAttempt(source, at_ns)
        self.attempts.append(self._now)
        self.last_step, self.is_running = -1, True
        # Open spans get no end any more, except that elastic ones continue.
        self.open = {key: span for key, span in self.open.items() if key[0].startswith("elastic")}
        yield self.stamp(SourceStarted(at_ns=at_ns, span_id=0, step=-1, identity=source.to_wire()))
        unplaced, self._unplaced = self._unplaced, []
        for problem, record in unplaced:
            yield from self.fault(problem, record)

    def after(self, before: _RecordedJob) -> _RecordedJob:
        """Take over the faults of records that named no job yet."""
        if not before.attempts:
            self._unplaced += before._unplaced
            before._unplaced = []
        return self

    def fault(self, problem: str, record: object) -> Iterator[Event]:
        """Yield an event for the fault of *record*; before the first attempt, keep it until that begins."""
        if not self.attempts:
            self._unplaced.append((problem, record))
        else:
            text = repr(record)[:_MOST_RECORD_CHARS]
            yield self.stamp(RecordFaulted(at_ns=self._now.last_ns, span_id=0, step=-1, problem=problem, record=text))

    def opened(self, start_ns: int, name: str, attributes: dict[str, Any]) -> _PairStart:
        """Return the start of a span."""
        self._last_id += 1
        return _PairStart(self._last_id, start_ns, name, attributes)

    def is_own(self, span: _PairStart) -> bool:
        """Return whether *span* began in this attempt."""
        return span.start_ns >= self._now.start_ns

    def ended(self, ended: type[SpanEnded], span: _PairStart, at_ns: int) -> Event:
        """Return the end of *span*."""
        event = ended(
            at_ns=at_ns,
            span_id=span.id,
            parent_span_id=0,
            step=-1,
            name=span.name,
            duration_ns=at_ns - span.start_ns,
            attributes=span.attributes,
        )
        return _stamped(event, self._attempt_at(at_ns))

    def _attempt_at(self, at_ns: int) -> _RecordedAttempt:
        """Return the attempt that was running at *at_ns*: a record may come late."""
        if at_ns >= self._now.start_ns:
            return self._now
        return self.attempts[max(0, bisect.bisect_right(self.attempts, at_ns, key=_start_ns) - 1)]


def _stamped(event: Event, attempt: _RecordedAttempt) -> Event:
    event._source, event._seq = attempt.source, attempt.seq  # noqa: SLF001  as a decoder does
    attempt.seq += 1
    attempt.last_ns = event.at_ns
    return event


def read_payloads(payloads: Iterable[Mapping[str, Any]]) -> Iterator[Event]:
    """
    Yield ml-goodput-measurement's records as events; each job name is a session of its own.

    Elastic records and Orbax's, which are in the same log, are read too. Each fault becomes a `RecordFaulted`.

    Args:
        payloads: The records' payloads, in the order of the log.
    """
    return PayloadReader().read(payloads)


class PayloadReader:
    """Reads records like `read_payloads`, from a log that comes piece by piece."""

    def __init__(self) -> None:
        self._jobs: dict[str, _RecordedJob] = {}
        self._job = _RecordedJob("")
        self._before: object = None
        """The name of the latest record's job, as it was written."""

    def read(self, payloads: Iterable[Mapping[str, Any]]) -> Iterator[Event]:
        """Yield the events of the next *payloads* of the log."""
        job, before = self._job, self._before
        for payload in payloads:
            if not isinstance(payload, Mapping):
                yield from job.fault(_NO_RECORD, payload)
                continue
            name = payload.get("job_name", before)
            if name is not before:
                self._before = before = name
                self._job = job = self._jobs.setdefault(str(name), _RecordedJob(str(name))).after(job)
            step: Any = payload.get("step_count")
            at: Any = payload.get("step_start_time")
            # Nearly all records are steps.
            is_usual = step.__class__ is int and at.__class__ is float and len(payload) == _STEP_KEYS and job.is_running
            if is_usual and job.last_step < step < _MOST and _EARLIEST_S < at < _LATEST_S:
                job.last_step = step
                started = _new(StepStarted)
                started.at_ns = round(at * 1e6) * 1000
                started.span_id = 0
                started.step = step
                yield job.stamp(started)
                continue
            try:
                yield from _read(job, payload)
            except _BadTimeError:
                yield from job.fault(_NO_TIME, payload)


def _read(job: _RecordedJob, payload: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events of one record of any kind."""
    if "event_type" in payload:
        yield from _checkpoint(job, payload)
        return
    points = [key for key in payload if key in _POINTS]
    at_ns = _time_of(payload, points)
    if at_ns is None:
        yield from job.fault(_UNKNOWN, payload)
        return
    if "job_start_time" in payload:
        yield from job.begin(at_ns)
    elif not job.is_running or _begins_again(job, payload):
        yield from job.begin(at_ns)
        yield from job.fault(_NO_JOB_START, payload)
    if not _KNOWN.issuperset(payload):
        yield from job.fault(_UNKNOWN, payload)
    if "step_start_time" in payload:
        yield from _step(job, payload, at_ns)
    if "elastic_slice_counts_timestamp" in payload:
        yield from _slices(job, payload, at_ns)
    for key in points:
        yield from _point(job, payload, *_POINTS[key], at_ns)
    if "job_end_time" in payload:
        job.is_running = False
        yield job.stamp(SourceEnded(at_ns=at_ns, span_id=0, step=-1, reason="job_end_time"))


def _time_of(payload: Mapping[str, Any], points: Iterable[str]) -> int | None:
    for key in ("job_start_time", "step_start_time", *points, "elastic_slice_counts_timestamp", "job_end_time"):
        if key in payload:
            return _ns(payload[key])
    return None


def _ns(seconds: Any) -> int:
    # These times were made from microseconds; as floats they are off by at most a quarter of a microsecond.
    if type(seconds) not in (int, float) or not _EARLIEST_S < seconds < _LATEST_S:
        raise _BadTimeError
    return int(round(seconds * 1e6) * 1000)


def _count(value: Any) -> int | None:
    """Return *value* as a count, or None. Google Cloud Logging gives back a float for every number."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value < _MOST else None


def _begins_again(job: _RecordedJob, payload: Mapping[str, Any]) -> bool:
    """Return whether a record without a job start shows that the job was started again."""
    step = _count(payload.get("step_count"))
    if step is not None and step < job.last_step:
        return True
    is_resizing = ("elastic_reinit", "") in job.open or job.last_step < 0
    return not is_resizing and any(f"{what}_start_time" in payload for what in _INITIALIZING)


def _step(job: _RecordedJob, payload: Mapping[str, Any], at_ns: int) -> Iterator[Event]:
    step = _count(payload.get("step_count"))
    if step is None:
        yield from job.fault(_NO_STEP, payload)
    else:
        job.last_step = max(step, job.last_step)
        yield job.stamp(StepStarted(at_ns=at_ns, span_id=0, step=step))


def _slices(job: _RecordedJob, payload: Mapping[str, Any], at_ns: int) -> Iterator[Event]:
    active, total, available = (
        _count(payload.get(f"{which}_slices")) or 0 for which in ("active", "total", "available")
    )
    yield job.stamp(SlicesCounted(at_ns=at_ns, span_id=0, step=-1, active=active, total=total, available=available))


def _point(job: _RecordedJob, payload: Mapping[str, Any], what: str, end: str, at_ns: int) -> Iterator[Event]:
    """Yield the events of a record of a start or an end."""
    kind = str(payload.get(_TYPED[what], "unknown")) if what in _TYPED else ""
    is_loading = what == "data_loading"
    span = job.open.pop((what, kind), None)
    if end == "start":
        if span is not None:
            if not is_loading and job.is_own(span):
                yield job.ended(SpanEnded, span, span.start_ns)  # its duration is unknown
            yield from job.fault(_STARTED_AGAIN, payload)
        name, attributes = _SPANS[what] if what in _SPANS else _typed(what, kind)
        span = job.open[what, kind] = job.opened(at_ns, name, attributes)
        if not is_loading:  # it comes with every step, and is soon over
            yield job.stamp(
                SpanStarted(at_ns=at_ns, span_id=span.id, parent_span_id=0, step=-1, name=name, attributes=attributes)
            )
    elif span is None:
        yield from job.fault(_NO_START, payload)
    elif is_loading:
        # The peer's meaning: once steps have begun, data is loaded beside them, and their time stays productive.
        beside = attrs.evolve(span, attributes=_BESIDE_STEPS) if job.last_step >= 0 else span
        yield job.ended(ProfileSpanEnded, beside, at_ns)
    else:
        yield job.ended(SpanEnded, span, at_ns)


def _typed(what: str, kind: str) -> tuple[str, dict[str, Any]]:
    if what == "elastic_wait":
        bucket = ELASTIC_SCALE_UP if "scale_up" in kind.lower() else ELASTIC_SLICE_DOWN
        return "elastic_wait", {span_names.BADPUT_TYPE: bucket}
    return kind, {span_names.BADPUT_TYPE: kind}


def _checkpoint(job: _RecordedJob, payload: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events of a record of Orbax."""
    name, parts = _CHECKPOINTS.get(str(payload["event_type"]), ("", ()))
    for part in parts:
        start, duration = payload.get(f"{part}_start_time"), payload.get(f"{part}_duration_secs")
        if start is not None and isinstance(duration, (int, float)) and 0 <= duration < _LATEST_S:
            start_ns = _ns(start)
            break
    else:
        yield from job.fault(_NO_PLACE if parts else _UNKNOWN, payload)
        return
    if not job.attempts:
        yield from job.begin(start_ns)
    step = _count(payload.get("step"))
    attributes = {} if step is None else {span_names.CURRENT_ITERATION: step}
    yield job.ended(SpanEnded, job.opened(start_ns, name, attributes), start_ns + round(duration * 1e6) * 1000)
