"""The spans of one process, kept up to date from event to event."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import attrs

from trackside.events import (
    Heartbeat,
    IterationEnded,
    Source,
    SourceEnded,
    SourceStarted,
    SpanEnded,
    SpanEventAdded,
    SpanMisplaced,
    SpanStarted,
    span_names,
)
from trackside.handlers.models._span_record import Record, plain

MAX_NAMES: Final = 1_000
MAX_OPEN: Final = 10_000
MAX_EVENTS: Final = 64
MAX_ERRORS: Final = 100
MAX_WAITING: Final = 64
OTHERS: Final = "(others)"


class SourceState:
    """
    What is known of one process.

    Args:
        max_long: How many long spans that ended are kept.
        max_short: How many short ones of each level of detail.
    """

    def __init__(self, max_long: int, max_short: int) -> None:
        self.identity: dict[str, Any] = {}
        self.started_ns: int | None = None
        self.ended_ns: int | None = None
        self.end_reason = ""
        self.last_ns = 0
        self.forgotten = 0
        self.open: OrderedDict[int, Record] = OrderedDict()
        self.ended: OrderedDict[int, Record] = OrderedDict()
        self.rings = {"iteration": deque[Record](maxlen=max_short), "profile": deque[Record](maxlen=max_short)}
        self.totals: dict[str, list[int]] = {}
        """By name: count, failed, total, shortest and longest in ns."""
        self.errors: deque[list[Any]] = deque(maxlen=MAX_ERRORS)
        self.waiting: OrderedDict[int, list[list[Any]]] = OrderedDict()
        """Events on spans that say nothing of themselves before they end."""
        self.beat: dict[int, list[Any]] = {}
        """By id, of the short spans that were open at the last heartbeat: thread, name, start and heartbeat."""
        self.malformed: dict[tuple[str, str], list[int]] = {}
        self._max_long = max_long

    def identify(self, source: Source) -> None:
        """Learn who the process is."""
        if self.identity and not source.run_id:
            return  # a reader that knows the source's id alone
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
        if event.id in self.open or event.id in self.ended:
            self.note(event.name, "started twice", event.at_ns)
            return
        record = Record(event.id, event.parent_id, event.name, "lifecycle", event.step, event.at_ns)
        record.attributes = plain(event.attributes)
        record.events = self.waiting.pop(event.id, [])
        self.open[event.id] = record
        while len(self.open) > MAX_OPEN:
            self.open.popitem(last=False)
            self.forgotten += 1

    def end(self, event: SpanEnded) -> None:
        """Read that a span was closed."""
        duration_ns = self._checked_duration(event.name, event.duration_ns, event.at_ns)
        detail = event.detail.name.lower()
        error = event.error
        record = self.open.pop(event.id, None)
        if record is None:
            if event.id in self.ended:
                self.note(event.name, "ended twice", event.at_ns)
                return
            if detail == "lifecycle":
                self.note(event.name, "ended, and its start was not seen", event.at_ns)
            record = Record(event.id, event.parent_id, event.name, detail, event.step, event.at_ns - duration_ns)
            record.events = self.waiting.pop(event.id, [])
        record.duration_ns = duration_ns
        record.attributes = plain(event.attributes)
        record.error = error
        record.failed = error is not None
        self._close(record)
        if error is not None and "raised_in" not in error:
            self.errors.append([event.id, event.name, event.step, event.at_ns, error])

    def end_iteration(self, event: IterationEnded) -> None:
        """Read an iteration as the span that it is."""
        name = span_names.OF_ITERATION.get(event.kind) or f"{event.kind}_single_iteration"
        duration_ns = self._checked_duration(name, event.duration_ns, event.at_ns)
        if not event.id:
            self._add_to_totals(name, duration_ns, failed=event.failed)
            return
        done = {"samples": event.samples, "tokens": event.tokens, "flops": event.flops, "loss": event.loss}
        record = Record(event.id, event.span_id, name, "iteration", event.step, event.at_ns - duration_ns, duration_ns)
        record.attributes = plain({key: value for key, value in done.items() if value is not None})
        record.failed = event.failed
        if event.id in self.waiting:
            record.events = self.waiting.pop(event.id)
            record.error = _error_among(record.events)
        self._close(record)
        error = record.error
        if error is not None:
            self.errors.append([event.id, name, event.step, event.at_ns, error])

    def add_event(self, event: SpanEventAdded) -> None:
        """Read that something happened within a span."""
        told = [event.name, event.at_ns, plain(event.attributes)]
        record = self.open.get(event.span_id) or self.ended.get(event.span_id)
        if record is not None:
            events = record.events
        else:
            events = self.waiting.setdefault(event.span_id, [])
            while len(self.waiting) > MAX_WAITING:
                self.waiting.popitem(last=False)
        events.append(told)
        del events[:-MAX_EVENTS]

    def hear(self, event: Heartbeat) -> None:
        """Read which spans were the innermost of their threads; one may have ended while the heartbeat was made."""
        known = {record.id for record in self.records()}
        self.beat = {
            told[0]: [thread, told[1], told[2], event.at_ns]
            for thread, told in event.open_spans.items()
            if _is_span(told) and told[0] not in known
        }

    def misplace(self, event: SpanMisplaced) -> None:
        """Read that an instrument noticed disorder."""
        self.note(event.name, event.problem, event.at_ns)

    def records(self) -> Iterator[Record]:
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

    def _close(self, record: Record) -> None:
        assert record.duration_ns is not None
        self._add_to_totals(record.name, record.duration_ns, failed=record.failed)
        if self.beat:
            self.beat.pop(record.id, None)
        if record.detail != "lifecycle":
            ring = self.rings[record.detail]
            self.forgotten += len(ring) == ring.maxlen
            ring.append(record)
            return
        self.ended[record.id] = record
        while len(self.ended) > self._max_long:
            self.ended.popitem(last=False)  # a dict would look at every place that was emptied before
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
            **{name: getattr(self, name) for name in _PLAIN},
            "identity": dict(self.identity),
            "open": [attrs.astuple(record) for record in self.open.values()],
            "ended": [attrs.astuple(record) for record in self.ended.values()],
            "rings": {detail: [attrs.astuple(record) for record in ring] for detail, ring in self.rings.items()},
            "totals": [[name, *values] for name, values in self.totals.items()],
            "errors": [list(error) for error in self.errors],
            "waiting": [[number, list(events)] for number, events in self.waiting.items()],
            "beat": [[number, *told] for number, told in self.beat.items()],
            "malformed": [[*kind, *counts] for kind, counts in self.malformed.items()],
        }

    def load(self, data: dict[str, Any]) -> None:
        """Take over what `dump` returned."""
        for name in _PLAIN:
            setattr(self, name, data[name])
        self.identity = dict(data["identity"])
        self.open = OrderedDict((record.id, record) for record in map(_record, data["open"]))
        self.ended = OrderedDict((record.id, record) for record in map(_record, data["ended"]))
        for detail, ring in self.rings.items():
            ring.clear()
            ring.extend(map(_record, data["rings"][detail]))
        self.totals = {name: values for name, *values in data["totals"]}
        self.errors.clear()
        self.errors.extend(data["errors"])
        self.waiting = OrderedDict(data["waiting"])
        self.beat = {number: told for number, *told in data["beat"]}
        self.malformed = {(name, problem): counts for name, problem, *counts in data["malformed"]}


_PLAIN: Final = ("started_ns", "ended_ns", "end_reason", "last_ns", "forgotten")


def _record(values: Iterable[Any]) -> Record:
    record = Record(*values)
    record.events = [list(event) for event in record.events]
    return record


def _is_span(told: list[Any]) -> bool:
    """Return whether *told* begins with an id, a name and a start; it may come from anybody."""
    return len(told) >= 3 and [type(value) for value in told[:3]] == [int, str, int]  # noqa: PLR2004


def _error_among(events: list[list[Any]]) -> dict[str, str] | None:
    """Return what an iteration's events tell of the exception that was raised in it."""
    for name, _, attributes in reversed(events):
        if name == span_names.ERROR and span_names.EXCEPTION_TYPE in attributes:
            return {
                "type": attributes[span_names.EXCEPTION_TYPE],
                "message": attributes.get(span_names.EXCEPTION_MESSAGE, ""),
                "traceback": attributes.get(span_names.EXCEPTION_TRACEBACK, ""),
            }
    return None
