"""The outline of logs: their sources, times and ends, read from the beginning and the end of each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
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
from trackside.handlers.eventlog._reader import LogFile, LogReader, find_files, source_files
from trackside.wire import Frame, FrameDecoder

_HEAD_BYTES: Final = 1 << 16
_TAIL_BYTES: Final = (1 << 18, 1 << 21, 1 << 24)
"""How many bytes at a log's end are read: more only if fewer do not hold the last event and the last step."""


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
    """By run, attempt, rank and start."""
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
    beginning and usually 256 KiB at the end. `check_logs` reads everything.

    Args:
        paths: Log files, or directories with such at any depth.

    Raises:
        UnreadableError: None of *paths* leads to a file that can be read.
    """
    found, problems = find_files(paths)
    decoder = FrameDecoder()
    by_source = source_files(found, decoder, problems)
    if not by_source:
        raise problems[0] if problems else UnreadableError("outline", "was given no path", "give one")
    sources = [seen for its_files in by_source if (seen := _outlined(its_files, decoder, problems)) is not None]
    return LogOutline(sorted(sources, key=_place), problems)


def _place(seen: SourceOutline) -> tuple[str, int, int, int, str]:
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
    """Return the facts at the end of the last file that holds events, reading as little as possible."""
    tail = _Tail()
    for file in reversed(files):
        size = file.path.stat().st_size
        for length in _TAIL_BYTES:
            tail = _read_tail(file, source, decoder, max(0, size - length))
            if length >= size or (tail.last_ns is not None and tail.trained_step is not None):
                break
        if tail.last_ns is not None:
            tail.is_whole = len(files) == 1 and length >= size
            break
    return tail


def _read_tail(file: LogFile, source: Source, decoder: FrameDecoder, offset: int) -> _Tail:
    tail = _Tail()
    reader = LogReader(file.path, decoder, offset=offset)
    for item in chain(reader.read(), reader.finish()):
        if isinstance(item, Frame) and item.source.id == source.id:
            for event in item.events:
                tail.add(event)
    return tail
