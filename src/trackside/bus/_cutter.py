"""From rows to frames: one batch for all, a frame for each distinct audience."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from trackside.bus._lane import Lanes, shed_by_name
from trackside.bus._patience import complain
from trackside.events import Schema, clock, encode_frame

if TYPE_CHECKING:
    from trackside.bus._queued import QueuedSeat

FULL_BYTES: Final = 160 << 10
"""
A batch of this size is cut before the next row.

With the largest row, its schema and the counts of what was shed it stays below the 640 KiB that readers accept.
"""
WORTH_BYTES: Final = 32 << 10
"""A batch of this size does not wait for more: beside its rows, what a frame repeats is little."""
ROW_EXTRA_BYTES: Final = 10
"""Charged for each row, which has 6 bytes at least: so no batch has more than the 16,384 rows that readers accept."""
_SCHEMA_EXTRA_BYTES: Final = 256
"""Charged for each type: so no batch has more than the 1,024 types that readers accept."""
LINGER_NS: Final = 150_000_000
"""Between two frames, unless the batch is worth one: schemas are repeated in each, so tiny frames waste room."""
_MAX_SHED_TYPES: Final = 512


class Audience:
    """Frame takers that want exactly the same rows."""

    __slots__ = ("rows", "schemas", "seats")

    def __init__(self) -> None:
        self.seats: list[QueuedSeat] = []
        self.rows: list[bytes] = []
        """Emptied at each cut, never replaced: the porter keeps its ``append``."""
        self.schemas: dict[int, bytes] = {}


class Cutter:
    """
    Collects the rows of one batch and cuts frames of it; on the porter.

    Attributes:
        batch: Which batch this is; a type that met another one last time has to bring its schema.
        offset: Rows in the batch so far.
        room_bytes: What may come before the batch is full; 0 or less says it is.
    """

    __slots__ = ("_audiences", "_cut_ns", "_met", "_shed_before", "batch", "first_seq", "offset", "room_bytes")

    def __init__(self) -> None:
        self._audiences: dict[object, Audience] = {}
        self._met: set[int] = set()
        self._shed_before: dict[str, int] = {}
        self._cut_ns = 0
        self.batch = 0
        self.first_seq = 0
        self.offset = 0
        self.room_bytes = FULL_BYTES

    def join(self, seat: QueuedSeat) -> None:
        """Let *seat* have the frames from here on; the batch was just cut."""
        audience = self._audiences.setdefault(seat.audience_key, Audience())
        audience.seats.append(seat)
        seat.audience = audience

    def leave(self, seat: QueuedSeat) -> None:
        """Let *seat* have no more frames; the batch was just cut."""
        audience = self._audiences.get(seat.audience_key)
        if audience is not None and seat in audience.seats:
            audience.seats.remove(seat)
            if not audience.seats:
                del self._audiences[seat.audience_key]

    def introduce(self, schema: Schema, audiences: Iterable[Audience]) -> None:
        """Have the frames of *audiences* say how rows of a type are to be read, and account for the room."""
        if schema.number not in self._met:
            self._met.add(schema.number)
            self.room_bytes -= len(schema.entry) + _SCHEMA_EXTRA_BYTES
            for audience in audiences:
                audience.schemas[schema.number] = schema.entry

    def is_due(self) -> bool:
        """Return whether the batch is worth a frame, or the last one was cut long enough ago."""
        if self.room_bytes <= FULL_BYTES - WORTH_BYTES:
            return True
        return self.offset > 0 and clock.monotonic_ns() - self._cut_ns >= LINGER_NS

    def cut(self, source_id: str, lanes: Lanes) -> None:
        """Close the batch and hand each audience its frame."""
        if self.offset == 0:
            return
        last_seq = self.first_seq + self.offset - 1
        shed = self._shed(lanes) if self._audiences else {}
        for audience in list(self._audiences.values()):
            rows = audience.rows.copy()
            for seat in audience.seats:
                seat.in_hand = len(rows)
            audience.rows.clear()
            schemas, audience.schemas = audience.schemas.values(), {}
            try:
                frame = encode_frame(source_id, self.first_seq, last_seq, shed=shed, schemas=schemas, rows=rows)
            except ValueError as error:  # too large for any reader, which the limits above make impossible
                complain("%d events could not be framed: %s", len(rows), error)
                for seat in audience.seats:
                    seat.settle(taken=False)
                continue
            for seat in audience.seats:
                seat.settle(taken=_is_taken(seat, frame))
        self._cut_ns = clock.monotonic_ns()
        self._next(last_seq + 1)

    def end(self, lanes: Lanes) -> None:
        """End the frames of a source; what is shed from now on is the next one's."""
        self._shed_before = shed_by_name(lanes)
        self._next(0)

    def _next(self, first_seq: int) -> None:
        self.batch += 1
        self.first_seq = first_seq
        self.offset = 0
        self.room_bytes = FULL_BYTES
        self._met.clear()

    def shed_total(self, lanes: Lanes) -> int:
        """Return how many events the queue refused since the source began."""
        return sum(shed_by_name(lanes).values()) - sum(self._shed_before.values())

    def _shed(self, lanes: Lanes) -> dict[str, int]:
        """Return what was shed since the source began, of the types that lost most if there are too many."""
        before = self._shed_before
        counts = {name: count - before.get(name, 0) for name, count in shed_by_name(lanes).items()}
        most = sorted(((count, name) for name, count in counts.items() if count), reverse=True)
        return {name: count for count, name in most[:_MAX_SHED_TYPES]}


def _is_taken(seat: QueuedSeat, frame: bytes) -> bool:
    try:
        return bool(seat.handler.take(frame, events=seat.in_hand))
    except BaseException as error:  # whatever is wrong with a sink, the others get theirs
        seat.patience.report(error)
        return False
