"""
Overviews of logs: `check_logs` reads whole logs, `outline` reads the beginning and the end of each.

`check_logs` reports what logs hold, what is missing and which bytes are damaged; `outline` reports their sources, times
and ends.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import attrs

from trackside.events import (
    Event,
    Heartbeat,
    IterationEnded,
    ProgramEnded,
    Source,
    SourceEnded,
    TrainingConfigured,
    UnreadableError,
    clock,
)
from trackside.handlers.eventlog._format import Ending, Header, Loss
from trackside.handlers.eventlog._reader import Item, LogFile, LogReader, find_files, source_files
from trackside.handlers.eventlog._scanner import DUPLICATE, Damage, joined
from trackside.wire import Frame, FrameDecoder, SequenceTracker, wire_name_of

_MOST_LISTED = 1000
UNWRITTEN_S = 1.0
"""Events wait up to 0.7 s until they are written: the last second of a killed process may be missing from its log."""
MOST_ENDS: Final = 1024
"""The number of last steps of a process from which its steps per second are computed."""
_HEAD_BYTES: Final = 1 << 16
_TAIL_BYTES: Final = (1 << 18, 1 << 21, 1 << 24)
"""The numbers of bytes read at a log's end: more only if fewer do not hold the last event and the last step."""
_MOST_TAILS: Final = 8
"""The number of a process's last files that are read: its own and a collector's copy, whose parts alternate."""


def unwritten_steps(ends_ns: Iterable[int]) -> int:
    """
    Return how many steps a killed process's log may lack: as many as ended in its busiest `UNWRITTEN_S`.

    They may be more if its last steps, which are in no log, were shorter than those.

    Args:
        ends_ns: When the last `MOST_ENDS` of its steps ended, in ns since the epoch; fewer than two give 0.
    """
    ends = sorted(ends_ns)
    if len(ends) < 2:  # noqa: PLR2004
        return 0
    length_ns = round(UNWRITTEN_S * 1e9)
    span_ns = ends[-1] - ends[0]
    if span_ns < length_ns:
        return 1 + math.ceil((len(ends) - 1) * length_ns / max(1, span_ns))
    return max(place + 1 - bisect_left(ends, end - length_ns) for place, end in enumerate(ends))


@attrs.define
class SourceCheck:
    """The events of one source that the files hold, and those that they lack."""

    source: Source
    events: int = 0
    by_type: Counter[str] = attrs.field(factory=Counter)
    """Events by wire name."""
    first_seq: int | None = None
    last_seq: int | None = None
    first_ns: int | None = None
    """The earliest time of an event, in ns since the epoch."""
    last_ns: int | None = None
    tracker: SequenceTracker = attrs.field(factory=SequenceTracker)
    dropped: dict[str, int] = attrs.field(factory=dict)
    """Events that were dropped before they had a number, by wire name, since the source started."""
    losses: list[Loss] = attrs.field(factory=list)
    """The first thousand gap records: the losses that the writer itself recorded."""
    lost_events: int = 0
    """The number of events in all gap records. These have numbers, so they are among the missing, too."""
    lost_bytes: int = 0
    ended: str | None = None
    """The reason for the source's end, as the source recorded it; None if it runs or died."""
    _ends_ns: deque[int] = attrs.field(factory=lambda: deque(maxlen=MOST_ENDS))

    @property
    def unwritten_steps(self) -> int:
        """The `unwritten_steps` of the log, if the process died; 0 if the log holds its end."""
        return unwritten_steps(self._ends_ns) if self.ended is None else 0

    @property
    def missing(self) -> int:
        """The number of events below the last one that are in none of the files."""
        return self.tracker.missing

    @property
    def holes(self) -> list[tuple[int, int]]:
        """The first thousand ranges of missing numbers, both ends included."""
        return self.tracker.holes

    @property
    def repeated(self) -> int:
        """The number of events found more than once."""
        return self.tracker.repeated

    def add_frame(self, frame: Frame) -> None:
        """Account for *frame*."""
        self.source = frame.source
        self.dropped = frame.dropped
        for event in self.tracker.admit(frame):
            self._add(event)

    def add_loss(self, loss: Loss) -> None:
        """Account for a gap record."""
        self.lost_events += loss.events
        self.lost_bytes += loss.size_bytes
        if len(self.losses) < _MOST_LISTED:
            self.losses.append(loss)

    def _add(self, event: Event) -> None:
        self.events += 1
        self.by_type[wire_name_of(event)] += 1
        self.last_seq = event.seq
        if self.first_seq is None:
            self.first_seq = event.seq
        at_ns = event.at_ns
        if self.first_ns is None or at_ns < self.first_ns:
            self.first_ns = at_ns
        if self.last_ns is None or at_ns > self.last_ns:
            self.last_ns = at_ns
        if type(event) is IterationEnded and event.kind == "training":
            self._ends_ns.append(at_ns)
        elif type(event) is SourceEnded:
            self.ended = event.reason


@attrs.define
class FileCheck:
    """The state of one file."""

    path: Path
    size_bytes: int = 0
    source_id: str = ""
    frames: int = 0
    is_finished: bool = False
    """Whether its writer recorded its end; if not, it is being written, or its writer died."""
    is_continued: bool = False
    """Whether its writer recorded that another part follows."""
    damage: list[Damage] = attrs.field(factory=list)
    """The first thousand ranges of bytes that were passed over, and why."""
    damaged_bytes: int = 0
    repeated_records: int = 0

    def add_damage(self, damage: Damage) -> None:
        """Account for bytes that were passed over."""
        self.damaged_bytes += damage.length_bytes
        self.repeated_records += damage.reason == DUPLICATE
        whole = joined(self.damage[-1], damage) if self.damage else None
        if whole is not None:
            self.damage[-1] = whole
        elif len(self.damage) < _MOST_LISTED:
            self.damage.append(damage)


@attrs.define
class LogCheck:
    """The result of `check_logs`."""

    sources: list[SourceCheck] = attrs.field(factory=list)
    """Ordered by run, attempt and rank."""
    files: list[FileCheck] = attrs.field(factory=list)
    problems: list[UnreadableError] = attrs.field(factory=list)
    """The errors of the files and directories that were not read."""


def _logs_of_sources(
    caller: str, paths: Sequence[str | os.PathLike[str]], decoder: FrameDecoder, problems: list[UnreadableError]
) -> list[list[LogFile]]:
    """Return the files of each source in *paths*; raise the first of the *problems* if there are none."""
    found, unread = find_files(paths)
    problems += unread
    by_source = source_files(found, decoder, problems)
    if not by_source:
        raise problems[0] if problems else UnreadableError(caller, "was given no path", "give one")
    return by_source


def check_logs(*paths: str | os.PathLike[str]) -> LogCheck:
    """
    Read logs from end to end and report on them.

    Raises:
        UnreadableError: None of *paths* leads to a file that can be read.
    """
    decoder = FrameDecoder()
    problems: list[UnreadableError] = []
    by_source = _logs_of_sources("check_logs", paths, decoder, problems)
    reports: dict[str, SourceCheck] = {}
    files = [_inspected(file, decoder, reports, problems) for its_files in by_source for file in its_files]
    sources = sorted(reports.values(), key=_place)
    return LogCheck(sources, sorted(files, key=lambda file: file.path), problems)


def _place(report: SourceCheck) -> tuple[str, int, int, str, str]:
    source = report.source
    return source.run_id, source.attempt, source.rank, source.role, source.id


def _inspected(
    file: LogFile, decoder: FrameDecoder, reports: dict[str, SourceCheck], problems: list[UnreadableError]
) -> FileCheck:
    reader = LogReader(file.path, decoder)
    report = FileCheck(file.path, source_id=file.source.id if file.source else "")
    source = file.source
    try:
        report.size_bytes = file.path.stat().st_size
        for item in chain(reader.read(), reader.finish()):
            if isinstance(item, (Frame, Header)):
                source = item.source
            if source is not None:
                _account(item, reports.setdefault(source.id, SourceCheck(source)))
            _describe(item, report)
    except OSError as error:
        problems.append(UnreadableError(str(file.path), str(error.strerror), "see that it can be read"))
    except UnreadableError as problem:
        problems.append(problem)
    return report


def _account(item: Item, report: SourceCheck) -> None:
    if isinstance(item, Frame):
        report.add_frame(item)
    elif isinstance(item, Loss):
        report.add_loss(item)
    elif isinstance(item, Header):
        report.source = item.source


def _describe(item: Item, report: FileCheck) -> None:
    if isinstance(item, Damage):
        report.add_damage(item)
        return
    report.frames += isinstance(item, Frame)
    report.is_finished = isinstance(item, Ending)
    report.is_continued = isinstance(item, Ending) and item.is_continued


@attrs.define(kw_only=True)
class SourceOutline:
    """A source, as the beginning and the end of its log describe it."""

    source: Source
    perf_tags: tuple[str, ...] = ()
    """The source's own tags; else those in the training's configuration."""
    first_ns: int | None = None
    """The earliest time among the first events, in ns since the epoch; None if no event is in the log."""
    last_ns: int | None = None
    """The latest time among the last events, in ns since the epoch; None if no event is in the log."""
    last_heartbeat_ns: int | None = None
    heartbeat_interval_ns: int | None = None
    """The time between heartbeats, as the last heartbeat states it; None if there was none."""
    last_step: int | None = None
    """The step of the last training iteration; of the last event with a step if the log's end holds no iteration."""
    ended: str | None = None
    """The reason for the source's end, as it recorded it; None if it runs or died."""
    exit_status: int | None = None
    """The exit status of the program that this source launched, negative for a signal; None without one."""

    def add_first(self, event: Event) -> None:
        """Account for one of the first events."""
        if self.first_ns is None or event.at_ns < self.first_ns:
            self.first_ns = event.at_ns
        if isinstance(event, TrainingConfigured) and not self.perf_tags:
            self.perf_tags = tuple(event.perf_tag)


@attrs.define
class LogOutline:
    """The result of `outline`."""

    sources: list[SourceOutline]
    """Ordered by run, attempt, rank and start."""
    problems: list[UnreadableError]
    """The errors of the files and directories that were not read."""


@attrs.define
class _Tail:
    """The facts in the last events of a source."""

    is_whole: bool = False
    """Whether these are all of its events."""
    first_ns: int | None = None
    last_ns: int | None = None
    trained_step: int | None = None
    any_step: int | None = None
    ended: str | None = None
    exit_status: int | None = None
    last_heartbeat_ns: int | None = None
    heartbeat_interval_ns: int | None = None
    tags: tuple[str, ...] = ()

    def add(self, event: Event) -> None:
        at_ns = event.at_ns
        if self.last_ns is None or at_ns > self.last_ns:
            self.last_ns = at_ns
        if self.first_ns is None or at_ns < self.first_ns:
            self.first_ns = at_ns
        self.ended = event.reason if isinstance(event, SourceEnded) else None
        if event.step >= 0:
            self.any_step = event.step
            if isinstance(event, IterationEnded) and event.kind == "training":
                self.trained_step = event.step
        if isinstance(event, Heartbeat):
            self.last_heartbeat_ns = event.at_ns
            self.heartbeat_interval_ns = clock.ns_of(event.interval_s)
        elif isinstance(event, ProgramEnded):
            self.exit_status = event.exit_status
        elif isinstance(event, TrainingConfigured) and not self.tags:
            self.tags = tuple(event.perf_tag)


def outline(*paths: str | os.PathLike[str]) -> LogOutline:
    """
    Read the beginning and the end of logs: their sources, first and last times, and whether they ended.

    The time grows with the number of files and not with their size: for each process up to 64 KiB are read at the
    beginning and usually 256 KiB at the end of each of its last files. `check_logs` reads everything.

    Args:
        paths: Log files, or directories that contain some at any depth.

    Raises:
        UnreadableError: None of *paths* leads to a file that can be read.
    """
    decoder = FrameDecoder()
    problems: list[UnreadableError] = []
    by_source = _logs_of_sources("outline", paths, decoder, problems)
    sources = [seen for its_files in by_source if (seen := _outlined(its_files, decoder, problems)) is not None]
    return LogOutline(sorted(sources, key=_start_order), problems)


def _start_order(seen: SourceOutline) -> tuple[str, int, int, int, str]:
    source = seen.source
    return source.run_id, source.attempt, source.rank, seen.first_ns or 0, source.id


def _outlined(files: Sequence[LogFile], decoder: FrameDecoder, problems: list[UnreadableError]) -> SourceOutline | None:
    source = next((file.source for file in files if file.source is not None), None)
    if source is None:
        return None  # no file holds anything yet
    seen = SourceOutline(source=source, perf_tags=source.perf_tags)
    try:
        tail = _last_events(files, source, decoder)
        if tail.is_whole:
            seen.first_ns = tail.first_ns
        else:
            for event in _first_events(files, source, decoder):
                seen.add_first(event)
        _add_tail(seen, tail)
    except OSError as error:
        problems.append(UnreadableError(str(error.filename), str(error.strerror), "see that it can be read"))
    except UnreadableError as problem:
        problems.append(problem)
    return seen


def _add_tail(seen: SourceOutline, tail: _Tail) -> None:
    seen.last_ns = tail.last_ns if tail.last_ns is not None else seen.first_ns
    seen.last_heartbeat_ns = tail.last_heartbeat_ns
    seen.heartbeat_interval_ns = tail.heartbeat_interval_ns
    seen.last_step = tail.trained_step if tail.trained_step is not None else tail.any_step
    seen.ended = tail.ended
    seen.exit_status = tail.exit_status
    seen.perf_tags = seen.perf_tags or tail.tags


def _first_events(files: Sequence[LogFile], source: Source, decoder: FrameDecoder) -> Iterator[Event]:
    """Yield the events of the first frame, and of those that follow in the first 64 KiB of its file."""
    for file in files:
        reader = LogReader(file.path, decoder, block_bytes=_HEAD_BYTES)
        is_found = False
        for item in chain(reader.read(), reader.finish()):
            if isinstance(item, Frame) and item.source.id == source.id:
                yield from item.events
                is_found = is_found or bool(item.events)
            if is_found and reader.offset >= _HEAD_BYTES:
                return
        if is_found:
            return


def _last_events(files: Sequence[LogFile], source: Source, decoder: FrameDecoder) -> _Tail:
    """
    Return the facts at the end of the file that goes furthest, reading as little as possible.

    It need not be the last file: a collector's copy of the process's own log may have less.
    """
    furthest = _Tail()
    for file in files[-_MOST_TAILS:]:
        size = file.path.stat().st_size
        for length in _TAIL_BYTES:
            tail = _read_tail(file, source, decoder, max(0, size - length))
            if length >= size or (tail.last_ns is not None and tail.trained_step is not None):
                break
        if tail.last_ns is not None:
            tail.is_whole = len(files) == 1 and length >= size
            furthest = max(furthest, tail, key=_reach)
    return furthest


def _reach(tail: _Tail) -> tuple[int, bool]:
    return tail.last_ns or 0, tail.ended is not None


def _read_tail(file: LogFile, source: Source, decoder: FrameDecoder, offset: int) -> _Tail:
    tail = _Tail()
    reader = LogReader(file.path, decoder, offset=offset)
    for item in chain(reader.read(), reader.finish()):
        if isinstance(item, Frame) and item.source.id == source.id:
            for event in item.events:
                tail.add(event)
    return tail
