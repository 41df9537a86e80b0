"""Reading recorded events back."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

from trackside.events import Event, Frame, FrameDecoder, Source, UnreadableError
from trackside.handlers.eventlog._damage import Damage
from trackside.handlers.eventlog._find import LogFile, find_files
from trackside.handlers.eventlog._ledger import Ledger
from trackside.handlers.eventlog._reader import LogReader
from trackside.handlers.eventlog._strand import block_bytes, identified, merged

M = TypeVar("M", bound=Callable[[Any], object])


def replay(
    *paths: str | os.PathLike[str],
    types: type[Event] | tuple[type[Event], ...] | None = None,
    sources: Callable[[Source], bool] | None = None,
) -> Replay:
    """
    Iterate over recorded events; each has its ``source`` and its ``seq``.

    Those of one source come in the order of their numbers, each once, across all parts of its log; those of
    several sources are merged by time. What is torn or damaged is passed over; the returned `Replay` says how
    much that was.

    Args:
        paths: Log files, or directories with such at any depth.
        types: Yield only events of these classes.
        sources: Says whose events to yield; the files of all others are not read.

    Raises:
        UnreadableError: At once if there is nothing to read. If some of it cannot be read, when all the rest has been.
    """
    return Replay(paths, types=types, sources=sources)


class Replay(Iterator[Event]):
    """
    The events of some logs, once; made by `replay`. Its counts are true of what has been read so far.

    Memory is bounded by one frame for each source and 32 MiB; no file stays open.
    """

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        *,
        types: type[Event] | tuple[type[Event], ...] | None = None,
        sources: Callable[[Source], bool] | None = None,
    ) -> None:
        self.ledgers: dict[str, Ledger] = defaultdict(Ledger)
        """By source id, what was read and what is not there."""
        self.damaged_bytes = 0
        """Bytes passed over: torn, damaged, read before or of another version."""
        self.problems: list[UnreadableError] = []
        """Why whole files were not read."""
        self._types = types
        self._sources = sources
        self._decoder = FrameDecoder()
        self._files, self.problems = find_files(paths)
        if not self._files:
            raise self.problems[0] if self.problems else UnreadableError("replay", "was given no path", "give one")
        self._events = self._read()

    @property
    def missing(self) -> int:
        """How many events are known to be in none of the files."""
        return sum(ledger.missing for ledger in self.ledgers.values())

    @property
    def repeated(self) -> int:
        """How many events were passed over because they had been read."""
        return sum(ledger.repeated for ledger in self.ledgers.values())

    def __iter__(self) -> Iterator[Event]:  # noqa: PYI034  the generator: a for loop steps through it in C
        return self._events

    def __next__(self) -> Event:
        return next(self._events)

    def by_source(self) -> list[tuple[Source, Iterator[Sequence[Event]]]]:
        """
        Return each source and its events in batches, instead of all events merged by time.

        For what does not care how sources interleave: it takes half the time, and a source that nobody asks for costs
        nothing. Files that hold nothing yet are left out. `problems` says what could not be read.
        """
        strands = identified(self._files, self._decoder, self.problems)
        size = block_bytes(1)
        return [(files[0].source, self._strand(files, size)) for files in strands if files[0].source is not None]

    def _read(self) -> Iterator[Event]:
        strands = identified(self._files, self._decoder, self.problems)
        if self._sources is not None:
            strands = [files for files in strands if files[0].source is not None and self._sources(files[0].source)]
        size = block_bytes(len(strands))
        yield from merged([self._strand(files, size) for files in strands])
        if self.problems:
            raise self.problems[0]

    def _strand(self, files: Sequence[LogFile], size: int) -> Iterator[Sequence[Event]]:
        for file in files:
            reader = LogReader(file.path, self._decoder, block_bytes=size)
            try:
                for item in chain(reader.read(), reader.finish()):
                    if isinstance(item, Frame):
                        yield self._admitted(item)
                    elif isinstance(item, Damage):
                        self.damaged_bytes += item.length_bytes
            except UnreadableError as problem:
                self.problems.append(problem)

    def _admitted(self, frame: Frame) -> Sequence[Event]:
        events = self.ledgers[frame.source.id].admit(frame)
        types = self._types
        return events if types is None else [event for event in events if isinstance(event, types)]


def feed(events: Iterable[Event], *models: M) -> tuple[M, ...]:
    """Call each of *models* with each of *events*, and return them."""
    for event in events:
        for model in models:
            model(event)
    return models
