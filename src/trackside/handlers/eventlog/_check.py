"""The check of logs from end to end: what they hold, what is missing, and which bytes are damaged."""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Final

import attrs

from trackside.events import Event, IterationEnded, Source, SourceEnded, UnreadableError
from trackside.handlers.eventlog._format import Ending, Header, Loss
from trackside.handlers.eventlog._reader import Item, LogFile, LogReader, find_files, source_files
from trackside.handlers.eventlog._scanner import DUPLICATE, Damage, joined
from trackside.wire import Frame, FrameDecoder, SequenceTracker, wire_name_of

_MOST_LISTED = 1000
UNWRITTEN_S = 1.0
"""The last second of a killed process may be in no log: events wait up to 0.7 s until they are written."""
MOST_ENDS: Final = 1024
"""As many of the last steps of a process say how many of them it takes in a second."""


def unwritten_steps(ends_ns: Iterable[int]) -> int:
    """
    Return at most how many steps a killed process took into no log: as many as ended in its busiest `UNWRITTEN_S`.

    Args:
        ends_ns: When the last `MOST_ENDS` of its steps ended, in ns since the epoch. Of less than two nothing is known,
            and the result is 0.
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
    """What the files hold of one source."""

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
    """Events that were given up before they had a number, by wire name, since the source started."""
    losses: list[Loss] = attrs.field(factory=list)
    """The first thousand gap records: what the writer itself knows it lost."""
    lost_events: int = 0
    """By all gap records. These events have numbers, so they are among the missing too."""
    lost_bytes: int = 0
    ended: str | None = None
    """Why the source ended, as it said itself; None if it did not: it runs, or died."""
    _ends_ns: deque[int] = attrs.field(factory=lambda: deque(maxlen=MOST_ENDS))

    @property
    def unwritten_steps(self) -> int:
        """At most how many steps a process without an end record, if it died, took into no log; 0 with one."""
        return unwritten_steps(self._ends_ns) if self.ended is None else 0

    @property
    def missing(self) -> int:
        """How many events below the last one are in none of the files."""
        return self.tracker.missing

    @property
    def holes(self) -> list[tuple[int, int]]:
        """The first thousand ranges of missing numbers, both ends included."""
        return self.tracker.holes

    @property
    def repeated(self) -> int:
        """How many events were found more than once."""
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
    """How one file is."""

    path: Path
    size_bytes: int = 0
    source_id: str = ""
    frames: int = 0
    is_finished: bool = False
    """Whether its writer said that nothing follows; if not, it is being written, or its writer died."""
    is_continued: bool = False
    """Whether its writer said that another part follows."""
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
    """What `check_logs` found."""

    sources: list[SourceCheck] = attrs.field(factory=list)
    """By run, attempt and rank."""
    files: list[FileCheck] = attrs.field(factory=list)
    problems: list[UnreadableError] = attrs.field(factory=list)
    """Why whole files or directories were not read."""


def check_logs(*paths: str | os.PathLike[str]) -> LogCheck:
    """
    Read logs from end to end and report on them.

    Raises:
        UnreadableError: None of *paths* leads to a file that can be read.
    """
    found, problems = find_files(paths)
    decoder = FrameDecoder()
    by_source = source_files(found, decoder, problems)
    if not by_source:
        raise problems[0] if problems else UnreadableError("check_logs", "was given no path", "give one")
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
