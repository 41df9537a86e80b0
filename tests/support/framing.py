"""Frames and logs of given events, as a process would have written them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside.events import IterationEnded
from trackside.handlers import EventLog
from trackside.wire import RowEncoder, encode_frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from trackside.events import Event, Source

EVENTS_PER_FRAME = 2_000


def frame_of(
    source_id: str,
    events: Iterable[Event],
    *,
    first_seq: int = 0,
    last_seq: int | None = None,
    dropped: Mapping[str, int] | None = None,
) -> bytes:
    """Return the frame of *events*, numbered from *first_seq*; it accounts for the numbers up to *last_seq*."""
    encoder = RowEncoder()
    schemas: dict[int, bytes] = {}
    rows: list[bytes] = []
    for offset, event in enumerate(events):
        schema, row = encoder.encode(event, offset)
        schemas[schema.number] = schema.entry
        rows.append(row)
    last = first_seq + len(rows) - 1 if last_seq is None else last_seq
    return encode_frame(source_id, first_seq, last, dropped=dropped or {}, schemas=schemas.values(), rows=rows)


def iterations_of(source: Source, first: int, count: int) -> bytes:
    """Return a frame of iterations, numbered from *first*, of which each took as many ns as its number says."""
    iterations = [IterationEnded(duration_ns=seq) for seq in range(first, first + count)]
    return frame_of(source.id, iterations, first_seq=first)


def write_log(directory: Path, source: Source, events: Iterable[Event]) -> Path:
    """Write *events* as the process *source* would have, and return the file."""
    log = EventLog(directory, fsync_s=None)
    log.open(source)
    events = list(events)
    for first in range(0, len(events), EVENTS_PER_FRAME):
        part = events[first : first + EVENTS_PER_FRAME]
        assert log.accept(frame_of(source.id, part, first_seq=first), events=len(part))
    assert log.close(60)
    return log.paths[0]
