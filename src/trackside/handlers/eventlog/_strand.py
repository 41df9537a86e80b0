"""Strands: the files of one source, one after the other; and strands merged by time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path

from trackside.events import Event, FrameDecoder, UnreadableError
from trackside.handlers.eventlog._find import LogFile, identify, in_order
from trackside.handlers.eventlog._scanner import BLOCK_BYTES

_MEMORY_BYTES = 32 << 20
_LEAST_BLOCK_BYTES = 4096


def identified(paths: Iterable[Path], decoder: FrameDecoder, problems: list[UnreadableError]) -> list[list[LogFile]]:
    """Return the files that can be read, by source and in order; note the others."""
    strands: dict[str, list[LogFile]] = {}
    for path in paths:
        try:
            file = identify(path, decoder)
        except UnreadableError as problem:
            problems.append(problem)
        else:
            strands.setdefault(file.source.id if file.source else str(path), []).append(file)
    return [in_order(strands[name], decoder) for name in sorted(strands)]


def block_bytes(files: int) -> int:
    """Return how much of each of so many files may be in memory."""
    return min(max(_MEMORY_BYTES // max(files, 1), _LEAST_BLOCK_BYTES), BLOCK_BYTES)


def merged(strands: Sequence[Iterator[Sequence[Event]]]) -> Iterator[Event]:
    """
    Yield the events of all *strands* by time, those of each in its own order.

    An event is placed by the latest time its strand has reached, so that one that was given a time of its
    own holds up nobody and overtakes nobody of its source.
    """
    if len(strands) == 1:
        for events in strands[0]:
            yield from events
        return
    for _, event in heapq.merge(*map(_timed, strands), key=itemgetter(0)):
        yield event


def _timed(strand: Iterator[Sequence[Event]]) -> Iterator[tuple[int, Event]]:
    latest_ns = 0
    for events in strand:
        for event in events:
            at_ns = event.at_ns
            if at_ns > latest_ns:  # noqa: PLR1730  max() is a call for every event
                latest_ns = at_ns
            yield latest_ns, event
