"""From rows to frames: one batch for all, and a frame for each distinct filter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from trackside.bus._admission import Admissions, dropped_by_name
from trackside.core import complain
from trackside.events import clock
from trackside.wire import Schema, encode_frame

if TYPE_CHECKING:
    from trackside.bus._subscribers import FrameSubscriber

FULL_BYTES: Final = 160 << 10
"""
A batch of this size is cut before the next row.

With the largest row, its schema and the counts of what was dropped it stays below the 640 KiB that readers accept.
"""
WORTH_BYTES: Final = 32 << 10
"""A batch of this size does not wait for more rows: what each frame repeats is little beside them."""
ROW_EXTRA_BYTES: Final = 10
"""
Added to the size of each row, which is at least 6 bytes, so that no batch has more than the 16,384 rows that readers
accept.
"""
_SCHEMA_EXTRA_BYTES: Final = 256
"""Added for each type, so that no batch has more than the 1,024 types that readers accept."""
LINGER_NS: Final = 150_000_000
"""The time between two frames, unless the batch is worth one: each frame repeats schemas, so tiny frames waste room."""
_MAX_DROPPED_TYPES: Final = 512


class FilterGroup:
    """Frame subscribers that want exactly the same rows."""

    __slots__ = ("rows", "schemas", "subscribers")

    def __init__(self) -> None:
        self.subscribers: list[FrameSubscriber] = []
        self.rows: list[bytes] = []
        """Emptied at each cut, never replaced: the dispatcher keeps its ``append``."""
        self.schemas: dict[int, bytes] = {}


class FrameBatcher:
    """
    The rows of one batch, from which frames are cut; on the dispatcher.

    Attributes:
        batch: The number of this batch; a type whose last row was in another batch brings its schema.
        offset: Rows in the batch so far.
        room_bytes: The room left in the batch; 0 or less when it is full.
    """

    __slots__ = ("_cut_ns", "_dropped_before", "_groups", "_introduced", "batch", "first_seq", "offset", "room_bytes")

    def __init__(self) -> None:
        self._groups: dict[object, FilterGroup] = {}
        self._introduced: set[int] = set()
        self._dropped_before: dict[str, int] = {}
        self._cut_ns = 0
        self.batch = 0
        self.first_seq = 0
        self.offset = 0
        self.room_bytes = FULL_BYTES

    def join(self, subscriber: FrameSubscriber) -> None:
        """Give *subscriber* the frames from here on; the batch was just cut."""
        group = self._groups.setdefault(subscriber.filter_key, FilterGroup())
        group.subscribers.append(subscriber)
        subscriber.group = group

    def leave(self, subscriber: FrameSubscriber) -> None:
        """Give *subscriber* no more frames; the batch was just cut."""
        group = self._groups.get(subscriber.filter_key)
        if group is not None and subscriber in group.subscribers:
            group.subscribers.remove(subscriber)
            if not group.subscribers:
                del self._groups[subscriber.filter_key]

    def introduce(self, schema: Schema, groups: Iterable[FilterGroup]) -> None:
        """Add the schema of a type to the frames of *groups*, and account for the room."""
        for group in groups:  # also if it is known: another group may have joined before the batch had a row
            group.schemas[schema.number] = schema.entry
        if schema.number not in self._introduced:
            self.room_bytes -= len(schema.entry) + _SCHEMA_EXTRA_BYTES
            self._introduced.add(schema.number)

    def is_due(self) -> bool:
        """Return whether the batch is worth a frame, or the last one was cut long enough ago."""
        if self.room_bytes <= FULL_BYTES - WORTH_BYTES:
            return True
        return self.offset > 0 and clock.monotonic_ns() - self._cut_ns >= LINGER_NS

    def cut(self, source_id: str, admissions: Admissions) -> None:
        """Close the batch and hand each group its frame."""
        if self.offset == 0:
            return
        last_seq = self.first_seq + self.offset - 1
        dropped = self._dropped(admissions) if self._groups else {}
        for group in list(self._groups.values()):
            rows = group.rows.copy()
            for subscriber in group.subscribers:
                subscriber.in_hand = len(rows)
            group.rows.clear()
            schemas, group.schemas = group.schemas.values(), {}
            try:
                frame = encode_frame(source_id, self.first_seq, last_seq, dropped=dropped, schemas=schemas, rows=rows)
            except ValueError as error:  # too large for any reader, which the limits above make impossible
                complain("%d events could not be framed: %s", len(rows), error)
                for subscriber in group.subscribers:
                    subscriber.settle(is_accepted=False)
                continue
            for subscriber in group.subscribers:
                subscriber.accept(frame)
        self._cut_ns = clock.monotonic_ns()
        self._next(last_seq + 1)

    def end(self, admissions: Admissions) -> None:
        """End the frames of a source; later drops count for the next source."""
        self._dropped_before = dropped_by_name(admissions)
        self._next(0)

    def _next(self, first_seq: int) -> None:
        self.batch += 1
        self.first_seq = first_seq
        self.offset = 0
        self.room_bytes = FULL_BYTES
        self._introduced.clear()

    def dropped_total(self, admissions: Admissions) -> int:
        """Return how many events the queue dropped since the source began."""
        return sum(dropped_by_name(admissions).values()) - sum(self._dropped_before.values())

    def _dropped(self, admissions: Admissions) -> dict[str, int]:
        """Return the drops since the source began, by type; if there are too many types, those that lost most."""
        before = self._dropped_before
        counts = {name: count - before.get(name, 0) for name, count in dropped_by_name(admissions).items()}
        most = sorted(((count, name) for name, count in counts.items() if count), reverse=True)
        return {name: count for count, name in most[:_MAX_DROPPED_TYPES]}
