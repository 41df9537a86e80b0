"""Reading of recorded events: all at once, or while they are being recorded."""

from __future__ import annotations

import heapq
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Final, TypeVar

from trackside.core import LOGGER, wait_until_set
from trackside.events import Event, Source, UnreadableError
from trackside.events._selected import EventTypes
from trackside.handlers.eventlog._reader import (
    LogFile,
    LogReader,
    block_bytes,
    find_files,
    identify,
    in_order,
    is_stream,
    source_files,
)
from trackside.handlers.eventlog._scanner import Damage
from trackside.rules import EventSelection, Rule
from trackside.wire import Frame, FrameDecoder, FrameView, SequenceTracker

M = TypeVar("M")

_VIEW_EVENTS: Final = 1024
"""The most events in one view, so that a long log is never in memory at once."""


def replay(
    *paths: str | os.PathLike[str],
    to: EventTypes = Event,
    keep: Rule | None = None,
    sources: Callable[[Source], bool] | None = None,
) -> Replay:
    """
    Iterate over recorded events; each has its ``source`` and its ``seq``.

    The events of one source come in the order of their numbers, each once, across all parts of its log. The events of
    several sources are merged by time. Torn and damaged bytes are passed over; the returned `Replay` counts them.

    Args:
        paths: Log files, or directories that contain some at any depth.
        to: The event types to yield: a class, a wire name, a glob of wire names, or a tuple of these.
        keep: The rule that says which of their events to yield; it decides for each source on its own.
        sources: Returns whether to yield the events of a source; the files of the other sources are not read.

    Raises:
        ConfigError: if *to* or *keep* is invalid.
        UnreadableError: At once if there is nothing to read; after all the rest if a part cannot be read.
    """
    return Replay(paths, to=to, keep=keep, sources=sources)


class Replay(Iterator[Event]):
    """
    The events of some logs, once; made by `replay`. Its counts cover what has been read so far.

    Memory is bounded by one frame for each source and 32 MiB; no file stays open.
    """

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        *,
        to: EventTypes = Event,
        keep: Rule | None = None,
        sources: Callable[[Source], bool] | None = None,
    ) -> None:
        self.trackers: dict[str, SequenceTracker] = defaultdict(SequenceTracker)
        """By source id, the numbers that were read and those that are missing."""
        self.damaged_bytes: int = 0
        """Bytes passed over: torn, damaged, read before or of another version."""
        self.problems: list[UnreadableError] = []
        """The reasons why whole files were not read."""
        self._selection = EventSelection(to, keep)
        self._sources = sources
        self._decoder = FrameDecoder()
        self._files, self.problems = find_files(paths)
        if not self._files:
            raise self.problems[0] if self.problems else UnreadableError("replay", "was given no path", "give one")
        self._events = self._read()

    @property
    def missing(self) -> int:
        """The number of events known to be in none of the files."""
        return sum(tracker.missing for tracker in self.trackers.values())

    @property
    def repeated(self) -> int:
        """The number of events passed over because they had been read."""
        return sum(tracker.repeated for tracker in self.trackers.values())

    def __iter__(self) -> Iterator[Event]:  # noqa: PYI034  the generator: a for loop steps through it in C
        return self._events

    def __next__(self) -> Event:
        return next(self._events)

    def by_source(self) -> list[tuple[Source, Iterator[FrameView]]]:
        """
        Return each source with its frames, instead of all events merged by time.

        This is for readers that do not need sources to interleave: it takes half the time, and a source whose iterator
        is not used costs nothing. Files that hold nothing yet are left out. `problems` lists what could not be read.
        """
        by_source = source_files(self._files, self._decoder, self.problems)
        size = block_bytes(1)
        return [(files[0].source, self._frames(files, size)) for files in by_source if files[0].source is not None]

    def _read(self) -> Iterator[Event]:
        by_source = source_files(self._files, self._decoder, self.problems)
        if self._sources is not None:
            by_source = [files for files in by_source if files[0].source is not None and self._sources(files[0].source)]
        size = block_bytes(len(by_source))
        yield from _merge_by_time([self._frames(files, size) for files in by_source])
        if self.problems:
            raise self.problems[0]

    def _frames(self, files: Sequence[LogFile], size: int) -> Iterator[FrameView]:
        """Yield the frames of one source, whose *files* are in order."""
        for file in files:
            reader = LogReader(file.path, self._decoder, block_bytes=size)
            try:
                for item in chain(reader.read(), reader.finish()):
                    if isinstance(item, Frame):
                        source = item.source
                        events = self.trackers[source.id].admit(item)
                        yield FrameView(source, self._selection.of(source.id, events))
                    elif isinstance(item, Damage):
                        self.damaged_bytes += item.length_bytes
            except UnreadableError as problem:
                self.problems.append(problem)


def feed(events: Iterable[Event], *models: M) -> tuple[M, ...]:
    """
    Let each of *models* read all of *events*, and return the models.

    A model reads them in views of one source each; any other callable is called with one event at a time.
    """
    consumers = [model.consume for model in models if hasattr(model, "consume")]
    callables: list[Any] = [model for model in models if not hasattr(model, "consume")]
    for source, run in groupby(events, attrgetter("source")):
        while part := list(islice(run, _VIEW_EVENTS)):
            view = FrameView(source, part)
            for consume in consumers:
                consume(view)
            for call in callables:
                for event in part:
                    call(event)
    return models


def follow(
    *paths: str | os.PathLike[str],
    to: EventTypes = Event,
    keep: Rule | None = None,
    sources: Callable[[Source], bool] | None = None,
    poll_interval_s: float = 0.5,
    stop: threading.Event | None = None,
    wait: bool = False,
) -> Iterator[Event]:
    """
    Iterate over events that are recorded and being recorded, until *stop* is set.

    The recorded events come as from `replay`. Later events come as they are written; those found in one poll are merged
    by time. A half-written record is waited for. New parts and new files are picked up. A file that cannot be read is
    passed over with a warning of the logger ``trackside``.

    Args:
        paths: Log files, or directories that contain some at any depth, now or later.
        to: The event types to yield, as for `replay`.
        keep: The rule that says which of their events to yield, as for `replay`.
        sources: Returns whether to yield the events of a source; the files of the other sources are not read.
        poll_interval_s: The time between two polls of the files, in seconds.
        stop: Ends the iteration once it is set and all events written by then have been read. A signal handler may set
            it.
        wait: Wait for paths that do not exist yet.

    Raises:
        ConfigError: if *to* or *keep* is invalid.
        UnreadableError: A path does not exist, and *wait* is False.
    """
    stop = stop or threading.Event()
    for path in paths:
        if not wait and not is_stream(path) and not Path(path).exists():
            raise UnreadableError(str(path), "does not exist", "give a .tslog file or a directory")
    return _follow(_GrowingLogs(paths, EventSelection(to, keep), sources), poll_interval_s, stop)


def _follow(logs: _GrowingLogs, poll_interval_s: float, stop: threading.Event) -> Iterator[Event]:
    while True:
        is_last = stop.is_set()
        yield from logs.read_new()
        if is_last:
            return
        wait_until_set(stop, poll_interval_s)


class _GrowingLogs:
    """The logs below some paths and how far each was read."""

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        selection: EventSelection,
        sources: Callable[[Source], bool] | None,
    ) -> None:
        self._paths = tuple(paths)
        self._selection = selection
        self._sources = sources
        self._decoder = FrameDecoder()
        self._trackers: dict[str, SequenceTracker] = defaultdict(SequenceTracker)
        self._readers: dict[str, list[LogReader]] = {}
        self._known: set[Path] = set()
        self._unidentified: dict[Path, int] = {}
        """For each file that names no source yet, its size when it was last read."""

    def read_new(self) -> Iterator[Event]:
        """Yield the events written since the last call."""
        self._open_new_files()
        by_source = [[reader for reader in readers if reader.has_more()] for readers in self._readers.values()]
        return _merge_by_time([self._frames(readers) for readers in by_source if readers])

    def _open_new_files(self) -> None:
        files = [file for path in find_files(self._paths)[0] if (file := self._identify_new(path)) is not None]
        self._known.update(file.path for file in files)
        size = block_bytes(len(self._known))
        for file in in_order(files, self._decoder):
            assert file.source is not None
            if self._sources is not None and not self._sources(file.source):
                continue
            reader = LogReader(file.path, self._decoder, block_bytes=size)
            self._readers.setdefault(file.source.id, []).append(reader)

    def _identify_new(self, path: Path) -> LogFile | None:
        """Return the file at *path* if it is new and names its source; else None, until it has grown."""
        if path in self._known:
            return None
        try:
            size = path.stat().st_size
            if self._unidentified.get(path) == size:
                return None
            self._unidentified[path] = size
            file = identify(path, self._decoder)
        except OSError:  # it was removed
            return None
        except UnreadableError as problem:
            LOGGER.warning("not read: %s", problem)
            return None
        return None if file.source is None else file

    def _frames(self, readers: Sequence[LogReader]) -> Iterator[FrameView]:
        for reader in readers:
            try:
                for item in reader.read():
                    if isinstance(item, Frame):
                        events = self._trackers[item.source.id].admit(item)
                        yield FrameView(item.source, self._selection.of(item.source.id, events))
            except UnreadableError:  # the file was removed
                continue


def _merge_by_time(by_source: Sequence[Iterator[FrameView]]) -> Iterator[Event]:
    """
    Yield the events of all sources by time, those of each source in their own order.

    An event is placed by the latest time that its source has reached. An event whose time the caller gave therefore
    delays no other event and overtakes none of its source.
    """
    if len(by_source) == 1:
        for view in by_source[0]:
            yield from view.events
        return
    for _, event in heapq.merge(*map(_timed, by_source), key=itemgetter(0)):
        yield event


def _timed(frames: Iterator[FrameView]) -> Iterator[tuple[int, Event]]:
    latest_ns = 0
    for view in frames:
        for event in view.events:
            at_ns = event.at_ns
            if at_ns > latest_ns:  # noqa: PLR1730  max() is a call for every event
                latest_ns = at_ns
            yield latest_ns, event
