"""What was read of one source: each event once, in order, and what is not there."""

from __future__ import annotations

import attrs

from trackside.events import Event, Frame

_MOST_HOLES = 1000


@attrs.define
class Ledger:
    """Which of a source's numbers have been read. They begin at 0 and are dense, so a hole is a loss."""

    next_seq: int = 0
    missing: int = 0
    """Numbers below `next_seq` that no frame accounted for."""
    holes: list[tuple[int, int]] = attrs.field(factory=list)
    """The first thousand ranges of these, both ends included."""
    repeated: int = 0
    """Events passed over because they were read before, or came after later ones."""

    def admit(self, frame: Frame) -> list[Event]:
        """Return the events of *frame* whose turn it is, which are nearly always all."""
        events = frame.events
        due = self.next_seq
        if frame.first_seq > due:
            self.missing += frame.first_seq - due
            if len(self.holes) < _MOST_HOLES:
                self.holes.append((due, frame.first_seq - 1))
        elif frame.first_seq < due:
            events = [event for event in events if event.seq is not None and event.seq >= due]
            self.repeated += len(frame.events) - len(events)
        if frame.last_seq >= due:
            self.next_seq = frame.last_seq + 1
        return events
