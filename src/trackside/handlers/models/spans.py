"""The span tree of every process, live, and as it was when the process died."""

from __future__ import annotations

import base64
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import index
from typing import Any, ClassVar, Final

import attrs

from trackside.events import (
    ConfigError,
    Event,
    Heartbeat,
    IterationEnded,
    RunsOn,
    Source,
    SourceEnded,
    SourceStarted,
    SpanEnded,
    SpanEventAdded,
    SpanOutOfOrder,
    SpanStarted,
    span_names,
)
from trackside.handlers.models._model import VersionedModel
from trackside.wire import FrameView
from trackside.wire._values import mended


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
    """The number of spans of the same report around it."""
    name: str
    priority: str
    """``lifecycle``, ``iteration`` or ``profile``."""
    step: int
    start_ns: int
    duration_ns: int | None
    """None while it is open."""
    attributes: dict[str, Any]
    error: dict[str, str] | None
    """``type`` and ``message`` of the exception that left it. The span that raised it also has ``traceback``; the
    others have ``raised_in``, the id of that span."""
    failed: bool
    events: tuple[SpanEvent, ...]


@attrs.frozen(kw_only=True)
class OpenSpan:
    """A span that was open when its source was last heard of."""

    id: int
    parent_id: int
    name: str
    start_ns: int
    """The time when it was opened."""
    seen_ns: int
    """The time when it was last known to be open; for a short span, the time of the last heartbeat."""
    thread: str
    """For a short span, the thread whose innermost span it was; for a long one, its thread attribute or ``""``."""


@attrs.frozen(kw_only=True)
class NameTotals:
    """The totals of all ended spans of one name."""

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
    """A kind of disorder among the spans, and its count."""

    name: str
    """The span's name; ``(others)`` after the first 1,000 kinds."""
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
    """None if its end was not seen: it still runs, or died."""
    end_reason: str
    last_ns: int
    """The time of its latest event."""
    spans: tuple[SpanView, ...]
    """The tree, each span before those inside it: long spans, and the latest of the short ones."""
    forgotten: int
    """Spans that were dropped for lack of room; *totals* has those that ended."""
    open: tuple[OpenSpan, ...]
    """In the order of their starts; the last one shows what the process was doing."""
    totals: tuple[NameTotals, ...]
    errors: tuple[SpanError, ...]
    """The latest errors."""
    malformed: tuple[Malformation, ...]


@attrs.frozen(kw_only=True)
class SpanReport:
    """The spans of all processes whose events were read."""

    sources: tuple[SourceSpans, ...]
    """Ordered by run, attempt, rank, role (main first) and start."""
    missed: int
    """Events that the model should have had and did not get."""


MAX_NAMES: Final = 1_000
MAX_OPEN: Final = 10_000
MAX_EVENTS: Final = 64
MAX_ERRORS: Final = 100
MAX_WAITING: Final = 64
OTHERS: Final = "(others)"


_SCALARS: Final = frozenset((bool, int, float, str, type(None)))


@attrs.define
class SpanRecord:
    """A span, open or ended."""

    id: int
    parent_id: int
    name: str
    priority: str
    step: int
    start_ns: int
    duration_ns: int | None = None
    attributes: dict[str, Any] = attrs.field(factory=dict)
    error: dict[str, str] | None = None
    failed: bool = False
    events: list[list[Any]] = attrs.field(factory=list)
    """``[name, at_ns, attributes]`` each."""


def plain(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return *attributes* as a replay would read them, with values that JSON can hold."""
    if _SCALARS.issuperset(map(type, attributes.values())):
        return attributes
    kept: dict[str, Any] = {}
    for name, value in attributes.items():
        try:
            kept[name] = _json(mended(value)[0])
        except (TypeError, ValueError):
            kept[name] = None
    return kept


def _json(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dict):
        return {key: _json(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_json(entry) for entry in value]
    return value


class ProcessSpans:
    """
    The spans of one process.

    Args:
        max_long: The number of ended long spans to keep.
        max_short: The number of ended short spans to keep, of each priority.
    """

    def __init__(self, max_long: int, max_short: int) -> None:
        self.identity: dict[str, Any] = {}
        self.started_ns: int | None = None
        self.ended_ns: int | None = None
        self.end_reason: str = ""
        self.last_ns = 0
        self.forgotten: int = 0
        self.open: OrderedDict[int, SpanRecord] = OrderedDict()
        self.ended: OrderedDict[int, SpanRecord] = OrderedDict()
        self.rings: dict[str, deque[SpanRecord]] = {
            "iteration": deque(maxlen=max_short),
            "profile": deque(maxlen=max_short),
        }
        self.totals: dict[str, list[int]] = {}
        """By name: count, failed, total, shortest and longest in ns."""
        self.errors: deque[list[Any]] = deque(maxlen=MAX_ERRORS)
        self.waiting: OrderedDict[int, list[list[Any]]] = OrderedDict()
        """By span id, the events of spans that become known only when they end."""
        self.heartbeat: dict[int, list[Any]] = {}
        """By id, thread, name, start and heartbeat time of the short spans that were open at the last heartbeat."""
        self.malformed: dict[tuple[str, str], list[int]] = {}
        self._max_long = max_long

    def identify(self, source: Source) -> None:
        """Record the identity of the process."""
        if self.identity and not source.run_id:
            return  # *source* has only an id
        parent = source.parent
        self.identity = {
            "source_id": source.id,
            "run_id": source.run_id,
            "attempt": source.attempt,
            "role": source.role,
            "host": source.host,
            "pid": source.pid,
            "rank": source.rank,
            "parent_source_id": parent.source_id if parent is not None else "",
            "parent_span_id": parent.span_id if parent is not None else 0,
        }

    def start_source(self, event: SourceStarted) -> None:
        """Read that the process began to publish."""
        self.started_ns = event.at_ns

    def end_source(self, event: SourceEnded) -> None:
        """Read that the process stopped publishing."""
        self.ended_ns = event.at_ns
        self.end_reason = event.reason

    def start(self, event: SpanStarted) -> None:
        """Read that a long span was opened."""
        if event.span_id in self.open or event.span_id in self.ended:
            self.note(event.name, "started twice", event.at_ns)
            return
        record = SpanRecord(event.span_id, event.parent_span_id, event.name, "lifecycle", event.step, event.at_ns)
        record.attributes = plain(event.attributes)
        record.events = self.waiting.pop(event.span_id, [])
        self.open[event.span_id] = record
        while len(self.open) > MAX_OPEN:
            self.open.popitem(last=False)
            self.forgotten += 1

    def end(self, event: SpanEnded) -> None:
        """Read that a span was closed."""
        duration_ns = self._checked_duration(event.name, event.duration_ns, event.at_ns)
        priority = event.priority.name.lower()
        error = event.error
        record = self.open.pop(event.span_id, None)
        if record is None:
            if event.span_id in self.ended:
                self.note(event.name, "ended twice", event.at_ns)
                return
            if priority == "lifecycle":
                self.note(event.name, "ended, and its start was not seen", event.at_ns)
            record = SpanRecord(
                event.span_id, event.parent_span_id, event.name, priority, event.step, event.at_ns - duration_ns
            )
            record.events = self.waiting.pop(event.span_id, [])
        record.duration_ns = duration_ns
        record.attributes = plain(event.attributes)
        record.error = error
        record.failed = error is not None
        self._close(record)
        if error is not None and "raised_in" not in error:
            self.errors.append([event.span_id, event.name, event.step, event.at_ns, error])

    def end_iteration(self, event: IterationEnded) -> None:
        """Read an iteration as a span that ended."""
        name = span_names.OF_ITERATION.get(event.kind) or f"{event.kind}_single_iteration"
        duration_ns = self._checked_duration(name, event.duration_ns, event.at_ns)
        if not event.span_id:
            self._add_to_totals(name, duration_ns, failed=event.failed)
            return
        done = {"samples": event.samples, "tokens": event.tokens, "flops": event.flops, "loss": event.loss}
        record = SpanRecord(
            event.span_id, event.parent_span_id, name, "iteration", event.step, event.at_ns - duration_ns, duration_ns
        )
        record.attributes = plain({key: value for key, value in done.items() if value is not None})
        record.failed = event.failed
        if event.span_id in self.waiting:
            record.events = self.waiting.pop(event.span_id)
            record.error = _error_among(record.events)
        self._close(record)
        error = record.error
        if error is not None:
            self.errors.append([event.span_id, name, event.step, event.at_ns, error])

    def add_event(self, event: SpanEventAdded) -> None:
        """Read that something happened within a span."""
        added = [event.name, event.at_ns, plain(event.attributes)]
        record = self.open.get(event.span_id) or self.ended.get(event.span_id)
        if record is not None:
            events = record.events
        else:
            events = self.waiting.setdefault(event.span_id, [])
            while len(self.waiting) > MAX_WAITING:
                self.waiting.popitem(last=False)
        events.append(added)
        del events[:-MAX_EVENTS]

    def read_heartbeat(self, event: Heartbeat) -> None:
        """Read the innermost span of each thread; one may have ended while the heartbeat was made."""
        known = {record.id for record in self.records()}
        self.heartbeat = {
            span[0]: [thread, span[1], span[2], event.at_ns]
            for thread, span in event.open_spans.items()
            if _is_span(span) and span[0] not in known
        }

    def read_disorder(self, event: SpanOutOfOrder) -> None:
        """Read that an instrument noticed disorder."""
        self.note(event.name, event.problem, event.at_ns)

    def records(self) -> Iterator[SpanRecord]:
        """Yield every span that is remembered, the open ones first."""
        yield from list(self.open.values())
        yield from list(self.ended.values())
        for ring in self.rings.values():
            yield from list(ring)

    def note(self, name: str, problem: str, at_ns: int) -> None:
        """Count a kind of disorder."""
        known = self.malformed.get((name, problem))
        if known is None:
            if len(self.malformed) >= MAX_NAMES:
                name = OTHERS
            known = self.malformed.setdefault((name, problem), [0, 0])
        known[0] += 1
        known[1] = at_ns

    def _checked_duration(self, name: str, duration_ns: int, at_ns: int) -> int:
        if duration_ns < 0:
            self.note(name, "ended before it started", at_ns)
            return 0
        return duration_ns

    def _close(self, record: SpanRecord) -> None:
        assert record.duration_ns is not None
        self._add_to_totals(record.name, record.duration_ns, failed=record.failed)
        if self.heartbeat:
            self.heartbeat.pop(record.id, None)
        if record.priority != "lifecycle":
            ring = self.rings[record.priority]
            self.forgotten += len(ring) == ring.maxlen
            ring.append(record)
            return
        self.ended[record.id] = record
        while len(self.ended) > self._max_long:
            self.ended.popitem(last=False)  # a dict would step over each slot that was emptied before
            self.forgotten += 1

    def _add_to_totals(self, name: str, duration_ns: int, *, failed: bool) -> None:
        totals = self.totals.get(name)
        if totals is None:
            if len(self.totals) >= MAX_NAMES:
                name = OTHERS
            totals = self.totals.setdefault(name, [0, 0, 0, duration_ns, duration_ns])
        totals[0] += 1
        totals[1] += failed
        totals[2] += duration_ns
        if duration_ns < totals[3]:  # noqa: PLR1730  min() would cost several times as much, for every span
            totals[3] = duration_ns
        if duration_ns > totals[4]:  # noqa: PLR1730
            totals[4] = duration_ns

    def dump(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "started_ns": self.started_ns,
            "ended_ns": self.ended_ns,
            "end_reason": self.end_reason,
            "last_ns": self.last_ns,
            "forgotten": self.forgotten,
            "identity": dict(self.identity),
            "open": [attrs.astuple(record) for record in self.open.values()],
            "ended": [attrs.astuple(record) for record in self.ended.values()],
            "rings": {priority: [attrs.astuple(record) for record in ring] for priority, ring in self.rings.items()},
            "totals": [[name, *values] for name, values in self.totals.items()],
            "errors": [list(error) for error in self.errors],
            "waiting": [[number, list(events)] for number, events in self.waiting.items()],
            "heartbeat": [[number, *known] for number, known in self.heartbeat.items()],
            "malformed": [[*kind, *counts] for kind, counts in self.malformed.items()],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the state that `dump` returned; raise if it is anything else."""
        for name in ("last_ns", "forgotten"):
            setattr(self, name, index(state[name]))
        for name in ("started_ns", "ended_ns"):
            setattr(self, name, None if state[name] is None else index(state[name]))
        self.end_reason = str(state["end_reason"])
        self.identity = {name: of(state["identity"][name]) for name, of in _IDENTITY.items()}
        self.open = OrderedDict((record.id, record) for record in map(_record, state["open"]))
        self.ended = OrderedDict((record.id, record) for record in map(_record, state["ended"]))
        for priority, ring in self.rings.items():
            ring.extend(map(_record, state["rings"][priority]))
        for name, count, failed, *lengths_ns in state["totals"]:
            total_ns, least_ns, most_ns = lengths_ns
            self.totals[str(name)] = list(map(index, (count, failed, total_ns, least_ns, most_ns)))
        for span_id, name, step, at_ns, error in state["errors"]:
            self.errors.append([index(span_id), str(name), index(step), index(at_ns), dict(error)])
        self.waiting = OrderedDict((index(number), _span_events(events)) for number, events in state["waiting"])
        for number, thread, name, start_ns, at_ns in state["heartbeat"]:
            self.heartbeat[index(number)] = [str(thread), str(name), index(start_ns), index(at_ns)]
        for name, problem, count, at_ns in state["malformed"]:
            self.malformed[str(name), str(problem)] = [index(count), index(at_ns)]


_IDENTITY: Final[dict[str, Callable[[Any], Any]]] = {
    "source_id": str,
    "run_id": str,
    "attempt": index,
    "role": str,
    "host": str,
    "pid": index,
    "rank": index,
    "parent_source_id": str,
    "parent_span_id": index,
}


def _record(values: Iterable[Any]) -> SpanRecord:
    number, parent_id, name, priority, step, start_ns, duration_ns, attributes, error, failed, events = values
    return SpanRecord(
        index(number),
        index(parent_id),
        str(name),
        str(priority),
        index(step),
        index(start_ns),
        None if duration_ns is None else index(duration_ns),
        dict(attributes),
        None if error is None else dict(error),
        bool(failed),
        _span_events(events),
    )


def _span_events(events: Iterable[Any]) -> list[list[Any]]:
    return [[str(name), index(at_ns), dict(attributes)] for name, at_ns, attributes in events]


def _is_span(values: list[Any]) -> bool:
    """Return whether *values* begin with an id, a name and a start; they may come from a peer."""
    return len(values) >= 3 and [type(value) for value in values[:3]] == [int, str, int]  # noqa: PLR2004


def _error_among(events: list[list[Any]]) -> dict[str, str] | None:
    """Return the last exception among the *events* of an iteration; None if there is none."""
    for name, _, attributes in reversed(events):
        if name == span_names.ERROR and span_names.EXCEPTION_TYPE in attributes:
            return {
                "type": attributes[span_names.EXCEPTION_TYPE],
                "message": attributes.get(span_names.EXCEPTION_MESSAGE, ""),
                "traceback": attributes.get(span_names.EXCEPTION_TRACEBACK, ""),
            }
    return None


_Read = Callable[[ProcessSpans, Any], None]
_READERS: Final[dict[type[Event], _Read]] = {
    IterationEnded: ProcessSpans.end_iteration,
    SpanEnded: ProcessSpans.end,
    SpanStarted: ProcessSpans.start,
    SpanEventAdded: ProcessSpans.add_event,
    Heartbeat: ProcessSpans.read_heartbeat,
    SpanOutOfOrder: ProcessSpans.read_disorder,
    SourceStarted: ProcessSpans.start_source,
    SourceEnded: ProcessSpans.end_source,
}


class SpanBuilder(VersionedModel):
    """
    Builds the span tree of every process from its events.

    Long spans are known from their start: after a crash `result` has those that were open, with their start. It has the
    short spans that the last heartbeat named. Memory does not grow with the length of the job: the latest ended spans
    are kept, and by name, of all ended spans, the count and the total, shortest and longest time.

    Args:
        max_long: Ended long spans to keep, for each process.
        max_short: Ended short spans to keep, of each priority and process.

    Raises:
        ConfigError: if a limit is below 1.
    """

    version = 1

    runs_on = RunsOn.DISPATCHER
    reads: ClassVar[tuple[type[Event], ...]] = tuple(_READERS)
    stands_for: ClassVar[tuple[str, ...]] = ("OpenSpans",)
    """Models with the same state: viewers that ask for them may get this one's."""

    def __init__(self, *, max_long: int = 1_000, max_short: int = 256) -> None:
        for field, given in (("max_long", max_long), ("max_short", max_short)):
            if given < 1:
                raise ConfigError(field, given, "give a whole number of at least 1")
        self._max_long = max_long
        self._max_short = max_short
        self._states: dict[str, ProcessSpans] = {}
        self._identified: dict[str, Source] = {}
        self._readers: dict[type[Event], _Read] = dict(_READERS)

    def consume(self, frame: FrameView) -> None:
        """Read one frame, or a part of one, of one source."""
        events = frame.of(*self.reads)
        if not events:
            return
        source = frame.source
        state = self._states.get(source.id)
        if state is None:
            state = self._states[source.id] = ProcessSpans(self._max_long, self._max_short)
        if self._identified.get(source.id) is not source:
            self._identified[source.id] = source
            state.identify(source)
        readers = self._readers
        last_ns = state.last_ns
        for event in events:
            kind = type(event)
            read = readers.get(kind)
            if read is None:
                read = readers[kind] = next(read for base, read in _READERS.items() if issubclass(kind, base))
            if event.at_ns > last_ns:  # noqa: PLR1730  max() would cost several times as much, for every event
                last_ns = event.at_ns
            read(state, event)
        state.last_ns = last_ns

    def result(self) -> SpanReport:
        """Return the spans as they are known now."""
        found = [source_spans(state) for state in list(self._states.values())]
        return SpanReport(sources=tuple(sorted(found, key=_place)), missed=self._missed)

    def _dump(self) -> dict[str, Any]:
        sources = [[source_id, state.dump()] for source_id, state in sorted(self._states.items())]
        return {"sources": sources}

    def _load(self, state: Mapping[str, Any]) -> None:
        self._states, self._identified = {}, {}
        for source_id, dumped in state["sources"]:
            self._states[str(source_id)] = ProcessSpans(self._max_long, self._max_short)
            self._states[str(source_id)].load(dumped)


class OpenSpans(SpanBuilder):
    """
    A `SpanBuilder` for viewers that ask mainly for the open spans.

    A job subscribes it by ``subscribe(OpenSpans(), min_priority=LIFECYCLE)``: it gets only long spans and heartbeats,
    so it costs nothing in a step. A viewer continues from its state with all events.
    """

    stands_for: ClassVar[tuple[str, ...]] = ()


def _place(spans: SourceSpans) -> tuple[Any, ...]:
    first_ns = spans.last_ns if spans.started_ns is None else spans.started_ns
    return (spans.run_id, spans.attempt, spans.rank, spans.role != "main", first_ns, spans.source_id)


# --- results ---------------------------------------------------------------------------------------------------------


def source_spans(state: ProcessSpans) -> SourceSpans:
    """Return the state of one process."""
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


def _views(state: ProcessSpans) -> Iterator[SpanView]:
    """Walk the tree, each span before those inside it, without recursion: spans may be nested thousands deep."""
    records = {record.id: record for record in state.records()}
    inside: dict[int, list[SpanRecord]] = {}
    for record in sorted(records.values(), key=lambda record: (-record.start_ns, -record.id)):
        around = record.parent_id if record.parent_id in records else 0
        inside.setdefault(around, []).append(record)
    inside.setdefault(0, [])
    while inside:
        # First the spans that are inside no other. Those that then remain are in cycles, and are returned too.
        pending = [(record, 0) for record in inside.pop(min(inside))]
        while pending:
            record, depth = pending.pop()
            yield _view(record, depth)
            pending += [(inner, depth + 1) for inner in inside.pop(record.id, [])]


def _open(state: ProcessSpans) -> Iterable[OpenSpan]:
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
        for number, (thread, name, start_ns, seen_ns) in list(state.heartbeat.items())
    ]
    return sorted([*long, *short], key=lambda found: (found.start_ns, found.id))


def _view(record: SpanRecord, depth: int) -> SpanView:
    return SpanView(
        id=record.id,
        parent_id=record.parent_id,
        depth=depth,
        name=record.name,
        priority=record.priority,
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
