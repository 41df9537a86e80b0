"""
A reader of torchtitan's structured records: from its JSON lines, or one by one as they are logged.

Pairs ``x_start`` and ``x_end`` become spans, nested as they were. The time between two changes of the step is an
iteration. A scalar is a window of a gauge with one value. Any other record is a span event.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from trackside.events import (
    CounterWindow,
    Event,
    IterationEnded,
    IterationSpanEnded,
    Source,
    SourceEnded,
    SourceStarted,
    SpanEventAdded,
    UnreadableError,
)
from trackside.handlers._json_lines import find_files, objects_in, refused

_MAX_DEPTH: Final = 256
_MAX_LISTED: Final = 10
_MOST: Final = 1 << 62
"""Times, durations and steps from here on are invalid; the wire form has room for all below."""
_STRUCTURED_LOGS: Final = "give the files of torchtitan's structured_logs directory"


@attrs.frozen
class TitanRecord:
    """One record: the parts of a line of torchtitan's formatter that are read here."""

    name: str
    """``fwd_bwd_start``, ``fwd_bwd_end``, ``fwd_bwd_error``, ``metric_value``, ``training_start``, …"""
    at_ns: int
    is_span: bool
    step: int = -1
    value: float | None = None
    """The value of a scalar; for an end, the duration in milliseconds."""
    metric: str = ""
    """A scalar's name."""
    track: tuple[str, int] = ("", 0)
    """The task and the thread: a start and its end have the same track."""
    message: str = ""


@attrs.define
class _OpenSpan:
    name: str
    id: int
    start_ns: int
    error: dict[str, str] | None = None


class TitanReader:
    """
    Convert the records of one process, given in order, to events.

    Args:
        next_id: Returns the number of the next span.
    """

    def __init__(self, next_id: Callable[[], int]) -> None:
        self.unpaired: int = 0
        """Ends without a start, and starts that were nested too deep."""
        self._next_id = next_id
        self._open: dict[tuple[str, int], list[_OpenSpan]] = {}
        self._step = -1
        self._step_id = 0
        self._step_start_ns = 0
        self._totals: dict[str, tuple[int, float]] = {}

    def read(self, record: TitanRecord) -> Iterator[Event]:
        """Yield the events that *record* completes; a record without a step belongs to the current one."""
        if record.step < 0:
            record = attrs.evolve(record, step=self._step)
        if record.step != self._step:
            yield from self._change_step(record.step, record.at_ns)
        if record.metric and record.value is not None:
            yield self._scalar(record.metric, record.value, record)
        elif not record.is_span:
            yield SpanEventAdded(
                at_ns=record.at_ns, span_id=self._innermost(record), step=record.step, name=record.name
            )
        else:
            yield from self._span(record)

    def finish(self, at_ns: int) -> Iterator[Event]:
        """Yield the events that the end of the records completes."""
        yield from self._change_step(-1, at_ns)

    def _change_step(self, step: int, at_ns: int) -> Iterator[Event]:
        """End the iteration of the previous step, and begin that of *step*; −1 is no step."""
        if self._step >= 0:
            yield IterationEnded(
                at_ns=at_ns,
                span_id=self._step_id,
                step=self._step,
                duration_ns=max(0, at_ns - self._step_start_ns),
            )
        self._step, self._step_start_ns = step, at_ns
        self._step_id = self._next_id() if step >= 0 else 0

    def _innermost(self, record: TitanRecord) -> int:
        stack = self._open.get(record.track)
        return stack[-1].id if stack else self._step_id

    def _span(self, record: TitanRecord) -> Iterator[Event]:
        name, _, moment = record.name.rpartition("_")
        stack = self._open.setdefault(record.track, [])
        if moment == "start":
            if len(stack) < _MAX_DEPTH:
                stack.append(_OpenSpan(name, self._next_id(), record.at_ns))
            else:
                self.unpaired += 1
        elif not stack or stack[-1].name != name:
            self.unpaired += 1
        elif moment == "error":
            stack[-1].error = {"type": "", "message": record.message}
        else:
            ended = stack.pop()
            if not stack:
                del self._open[record.track]
            # The duration in the record is from a finer clock than its times, which are cut to microseconds.
            length_ns = math.nan if record.value is None else record.value * 1e6
            duration_ns = round(length_ns) if 0 <= length_ns < _MOST else record.at_ns - ended.start_ns
            yield IterationSpanEnded(
                at_ns=record.at_ns,
                span_id=ended.id,
                parent_span_id=self._innermost(record),
                step=record.step,
                name=name,
                duration_ns=max(0, duration_ns),
                error=ended.error,
            )

    def _scalar(self, name: str, value: float, record: TitanRecord) -> Event:
        count, total = self._totals.get(name, (0, 0.0))
        count, total = self._totals[name] = count + 1, total + value
        return CounterWindow(
            at_ns=record.at_ns,
            span_id=self._innermost(record),
            step=record.step,
            name=name,
            kind="gauge",
            start_ns=record.at_ns,
            end_ns=record.at_ns,
            count=1,
            values={"value": value, "mean": value},
            total_count=count,
            total_sum=total,
        )


class TitanFiles(Iterator[Event]):
    """
    Iterate over files of torchtitan's structured logger as events, once; each file is one source.

    Args:
        paths: Files, or directories with files at any depth, named ``*.jsonl`` or ``*.json``.
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        self.records: int = 0
        self.unpaired: int = 0
        self.problems: list[UnreadableError] = []
        """The reasons why files, or lines of them, were not read."""
        self._files = sorted(find_files(paths, self.problems, _STRUCTURED_LOGS))
        self._events = itertools.chain.from_iterable(map(self._read, self._files))

    def __iter__(self) -> Iterator[Event]:  # noqa: PYI034  the chain: a for loop steps through it in C
        return self._events

    def __next__(self) -> Event:
        return next(self._events)

    def _read(self, path: Path) -> Iterator[Event]:
        """Yield the events of one file, with their source and numbers."""
        source: Source | None = None
        numbers = itertools.count()
        bad: list[int] = []
        reader = TitanReader(itertools.count(1).__next__)
        at_ns = bad_lines = 0
        try:
            for number, line in objects_in(path):
                record = _record(line) if line is not None else None
                if line is None or record is None:
                    bad_lines += 1
                    bad += [number] if len(bad) < _MAX_LISTED else []
                    continue
                self.records += 1
                at_ns = record.at_ns
                if source is None:
                    source = _source(path, line)
                    started = SourceStarted(at_ns=at_ns, span_id=0, step=-1, identity=source.to_wire())
                    yield _stamped(started, source, next(numbers))
                for event in reader.read(record):
                    yield _stamped(event, source, next(numbers))
        except OSError as error:
            self.problems.append(refused(path, error))
        if source is not None:
            for event in (*reader.finish(at_ns), SourceEnded(at_ns=at_ns, span_id=0, step=-1, reason="end of file")):
                yield _stamped(event, source, next(numbers))
        self.unpaired += reader.unpaired
        if bad and source is None:
            self.problems.append(UnreadableError(str(path), "holds no record of torchtitan's", _STRUCTURED_LOGS))
        elif bad:
            listed = f"line {', '.join(map(str, bad))}{', …' if bad_lines > len(bad) else ''}"
            what = f"{bad_lines:,} line(s) hold no record of torchtitan's: {listed}"
            self.problems.append(UnreadableError(str(path), what, "all others were read"))


def _record(line: Mapping[str, Any]) -> TitanRecord | None:
    """Return the record on a line; None if the line is not a record."""
    name, time_us = line.get("log_type_name"), _whole(line.get("time_us"), -1)
    if not isinstance(name, str) or not 0 <= time_us < _MOST // 1_000:
        return None
    value = line.get("value")
    try:
        number = float(value) if isinstance(value, (int, float)) else None
    except OverflowError:
        return None
    return TitanRecord(
        name=name,
        at_ns=time_us * 1_000,
        is_span=line.get("log_type", "event") == "event",
        step=_whole(line.get("step"), -1),
        value=number,
        metric=str(line.get("event_name") or "") if name == "metric_value" else "",
        track=(str(line.get("task_name") or ""), _whole(line.get("tid"))),
        message=str(line.get("message") or "")[:1_000],
    )


def _whole(value: Any, otherwise: int = 0) -> int:
    """Return *value* if it is an integer that an event may hold; JSON has integers of any size."""
    return value if type(value) is int and -_MOST < value < _MOST else otherwise


def _source(path: Path, line: Mapping[str, Any]) -> Source:
    """Return the source of a file, from its first record; the same for the same file of a run."""
    run_id = path.parent.parent.name or "torchtitan"
    rank, local_rank, pid = (_whole(line.get(key)) for key in ("global_rank", "local_rank", "pid"))
    return Source(
        id=hashlib.blake2b(f"{run_id}/{path.name}".encode(errors="surrogateescape"), digest_size=8).hexdigest(),
        run_id=run_id,
        host=str(line.get("host_name") or ""),
        pid=pid,
        rank=rank,
        world_size=rank + 1,  # no record names it; it is at least that
        local_rank=local_rank,
        application=str(line.get("source") or ""),
    )


def _stamped(event: Event, source: Source, seq: int) -> Event:
    event._source = source  # noqa: SLF001  as a decoder does
    event._seq = seq  # noqa: SLF001
    return event
